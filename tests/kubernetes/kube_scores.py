"""How kube-scheduler's default plugins rank the nodes that are feasible.

Rule: a score looks at all the feasible nodes and returns 0 to 100 for each, before its weight. `SCORES` has each with
its weight. Integers divide as in Go, towards zero, and floats are computed in Go's order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from tests.kubernetes.kube_cluster import Cluster, Place
from tests.kubernetes.kube_filters import (
    HOSTNAME,
    Constraint,
    CycleError,
    has_keys,
    selects_for,
    selects_incoming,
    spread_constraints,
)
from tests.kubernetes.kube_requests import DEFAULT_REQUESTS, requests, whole_units
from tests.kubernetes.kube_selectors import (
    NOTHING,
    Fields,
    Labels,
    NotParsed,
    PodTerm,
    Selector,
    affinity_of,
    label_selector,
    labels_of,
    labels_selector,
    matches,
    name_of,
    namespace_of,
    pod_terms,
    preferred_terms,
    spec_of,
    untolerated_taints,
)

ZONE = "topology.kubernetes.io/zone"
MAX = 100
MEBIBYTE = 2**20
SMALLEST_IMAGE = 23 * MEBIBYTE
LARGEST_IMAGE = 1000 * MEBIBYTE
RESOURCES = ("cpu", "memory")

Scores = dict[str, int]
"""By node name."""


# -- Go's arithmetic


def divided(number: int, by: int) -> int:
    """Integer division towards zero."""
    quotient = abs(number) // abs(by)
    return quotient if (number < 0) == (by < 0) else -quotient


def rounded(number: float) -> int:
    """Round half away from zero."""
    whole = math.trunc(number)
    return whole + int(math.copysign(1, number)) if abs(number - whole) >= 0.5 else whole


def normalised(scores: Scores, reverse: bool = False) -> Scores:
    """From 0..largest to 0..100, or from 100 down to 0."""
    most = max(scores.values(), default=0)
    if most == 0:
        return dict.fromkeys(scores, MAX) if reverse else scores
    shares = {name: divided(MAX * score, most) for name, score in scores.items()}
    return {name: MAX - share for name, share in shares.items()} if reverse else shares


# -- taints and node affinity


def taint_toleration(cluster: Cluster, pod: Fields, places: Sequence[Place]) -> Scores:
    """The fewer untolerated PreferNoSchedule taints, the better."""
    counts = {name_of(each.node): len(untolerated_taints(pod, each.node, ["PreferNoSchedule"])) for each in places}
    return normalised(counts, reverse=True)


def node_affinity(cluster: Cluster, pod: Fields, places: Sequence[Place]) -> Scores:
    try:
        terms = preferred_terms(affinity_of(pod, "nodeAffinity").get("preferredDuringSchedulingIgnoredDuringExecution"))
    except NotParsed as error:
        raise CycleError(f'running PreScore plugin "NodeAffinity": {error}') from None
    sums = {name_of(each.node): sum(weight for weight, term in terms if term.matches(each.node)) for each in places}
    return normalised(sums)


# -- topology spread


def pod_topology_spread(cluster: Cluster, pod: Fields, places: Sequence[Place]) -> Scores:
    """Fewer matching pods in the node's domains are better. Nodes without a key of the pod's constraints get 0.

    The default constraints do not require their keys: a node without a zone is spread by hostname only.
    """
    own = bool(spec_of(pod).get("topologySpreadConstraints"))
    try:
        constraints = spread_constraints(pod, "ScheduleAnyway") if own else default_constraints(cluster, pod)
    except NotParsed as error:
        message = f"calculating preScoreState: obtaining pod's soft topology spread constraints: {error}"
        raise CycleError(f'running PreScore plugin "PodTopologySpread": {message}') from None
    if not constraints:
        return dict.fromkeys((name_of(each.node) for each in places), 0)
    scored = [each for each in places if not own or has_keys(constraints, each.node)]
    counts = [soft_counts(cluster, pod, constraints, which, scored, own) for which in constraints]
    raw: Scores = {}
    for place in scored:
        total = 0.0
        for which, by_domain in zip(constraints, counts, strict=True):
            if which.topology_key not in place.labels:
                continue
            if which.topology_key == HOSTNAME:
                domains, here = len(scored), which.pods_on(place, namespace_of(pod))
            else:
                domains, here = len(by_domain), by_domain[place.labels[which.topology_key]]
            total += float(here) * math.log(float(domains + 2)) + float(which.max_skew - 1)
        raw[name_of(place.node)] = rounded(total)
    least, most = min(raw.values(), default=0), max(raw.values(), default=0)
    found = dict.fromkeys((name_of(each.node) for each in places), 0)
    for name, score in raw.items():
        found[name] = divided(MAX * (most + least - score), most) if most else MAX
    return found


def soft_counts(
    cluster: Cluster,
    pod: Fields,
    constraints: list[Constraint],
    which: Constraint,
    scored: Sequence[Place],
    own: bool,
) -> dict[str, int]:
    """The pods that one constraint counts in the domains of the feasible nodes. No label is the domain of no name."""
    found = {place.labels.get(which.topology_key, ""): 0 for place in scored}
    for place in cluster.places.values():
        if own and not has_keys(constraints, place.node):
            continue
        value = place.labels.get(which.topology_key, "")
        if value in found and which.counts_node(pod, place.node):
            found[value] += which.pods_on(place, namespace_of(pod))
    return found


def default_constraints(cluster: Cluster, pod: Fields) -> list[Constraint]:
    """Spread the pods of one service or controller over hosts and zones. Other pods are not spread."""
    selector = default_selector(cluster, pod)
    if not selector:
        return []
    return [
        Constraint(max_skew, key, selector, min_domains=1, honors_affinity=True, honors_taints=False)
        for key, max_skew in ((HOSTNAME, 3), (ZONE, 5))
    ]


def default_selector(cluster: Cluster, pod: Fields) -> Selector:
    """What selects the pod's siblings: its services and the controller that owns it."""
    merged: dict[str, str] = {}
    for service in cluster.services:
        selector = spec_of(service).get("selector")
        if selector is None or namespace_of(service) != namespace_of(pod):
            continue
        if matches(labels_selector(selector), labels_of(pod)):
            merged.update(selector)
    owners = (pod.get("metadata") or {}).get("ownerReferences") or ()
    owner = next((each for each in owners if each.get("controller")), None)
    if owner is None:
        return labels_selector(merged)
    kind = (owner.get("apiVersion") or "", owner.get("kind") or "")
    controller = next(
        (
            each
            for each in cluster.controllers.get(kind, ())
            if name_of(each) == owner.get("name") and namespace_of(each) == namespace_of(pod)
        ),
        None,
    )
    if controller is None:
        return labels_selector(merged)
    if kind == ("v1", "ReplicationController"):
        return labels_selector({**merged, **(spec_of(controller).get("selector") or {})})
    return (*(labels_selector(merged) or ()), *(requirements_of(controller) or ()))


def requirements_of(controller: Fields) -> Selector:
    """The selector of a ReplicaSet or StatefulSet; nothing to add if it does not parse."""
    try:
        return label_selector(spec_of(controller).get("selector"))
    except NotParsed:
        return NOTHING


# -- pod affinity


def inter_pod_affinity(cluster: Cluster, pod: Fields, places: Sequence[Place]) -> Scores:
    """Sum, over the existing pods in the node's domains, what the pod thinks of them and what they think of the pod."""
    mine = pod_terms(pod)
    pulls: dict[tuple[str, str], int] = {}

    def pull(term: PodTerm, weight: int, labels: Labels) -> None:
        if term.topology_key in labels:
            domain = term.topology_key, labels[term.topology_key]
            pulls[domain] = pulls.get(domain, 0) + weight

    for there, other in cluster.every_placed():
        for sign, terms in ((1, mine.preferred), (-1, mine.preferred_anti)):
            for term in terms:
                if selects_for(cluster, term, other.pod):
                    pull(term, sign * term.weight, there.labels)
        for sign, terms in ((1, other.terms.preferred), (-1, other.terms.preferred_anti)):
            for term in terms:
                if selects_incoming(cluster, term, pod):
                    pull(term, sign * term.weight, there.labels)
        for term in other.terms.affinity:
            if selects_incoming(cluster, term, pod):
                pull(term, 1, there.labels)
    sums = {
        name_of(each.node): sum(weight for (key, value), weight in pulls.items() if each.labels.get(key) == value)
        for each in places
    }
    least, most = min(sums.values(), default=0), max(sums.values(), default=0)
    if most == least:
        return dict.fromkeys(sums, 0)
    return {name: int(float(MAX) * (float(score - least) / float(most - least))) for name, score in sums.items()}


# -- resources


def node_resources_fit(cluster: Cluster, pod: Fields, places: Sequence[Place]) -> Scores:
    """The more cpu and memory stay free, the better.

    The pending pod's own containers are counted even if the pod requests resources as a whole: that is what
    kube-scheduler does here, unlike everywhere else.
    """
    wanted = whole_units(requests(pod, defaults=DEFAULT_REQUESTS, pod_level=False))
    return {name_of(each.node): least_allocated(each, wanted) for each in places}


def least_allocated(place: Place, wanted: Mapping[str, int]) -> int:
    shares = []
    for resource in RESOURCES:
        capacity = place.allocatable.get(resource, 0)
        if capacity == 0:
            continue
        used = wanted.get(resource, 0) + sum(each.counted[resource] for each in place.placed)
        shares.append(0 if used > capacity else divided((capacity - used) * MAX, capacity))
    return divided(sum(shares), len(shares)) if shares else 0


def balanced_allocation(cluster: Cluster, pod: Fields, places: Sequence[Place]) -> Scores:
    """The more evenly the pod leaves cpu and memory used, compared with before, the better."""
    wanted = whole_units(requests(pod))
    if not any(wanted.get(resource) for resource in RESOURCES):
        return dict.fromkeys((name_of(each.node) for each in places), 0)
    found = {}
    for place in places:
        before = {resource: place.held(resource) for resource in RESOURCES}
        after = {resource: before[resource] + wanted.get(resource, 0) for resource in RESOURCES}
        change = balance(after, place.allocatable) - balance(before, place.allocatable)
        found[name_of(place.node)] = MAX // 2 + divided(MAX // 2 + change, 2)
    return found


def balance(used: Mapping[str, int], allocatable: Mapping[str, int]) -> int:
    """100 if cpu and memory are used in the same proportion."""
    fractions = [
        min(float(used[resource]) / float(allocatable[resource]), 1.0)
        for resource in RESOURCES
        if allocatable.get(resource)
    ]
    deviation = abs((fractions[0] - fractions[1]) / 2) if len(fractions) == 2 else 0.0
    return int((1 - deviation) * float(MAX))


# -- images


def image_locality(cluster: Cluster, pod: Fields, places: Sequence[Place]) -> Scores:
    """The more of the pod's image bytes are on the node already, the better; images on few nodes count less."""
    spec = spec_of(pod)
    containers = [*(spec.get("initContainers") or ()), *(spec.get("containers") or ())]
    images = [each.get("image") or "" for each in containers]
    images += [each["image"].get("reference") or "" for each in spec.get("volumes") or () if each.get("image")]
    sizes: dict[str, int] = {}
    spread: dict[str, int] = {}
    for place in cluster.places.values():
        for image in image_names(place):
            spread[image] = spread.get(image, 0) + 1
        for status in (place.node.get("status") or {}).get("images") or ():
            for image in status.get("names") or ():
                sizes.setdefault(image, status.get("sizeBytes") or 0)
    largest = LARGEST_IMAGE * len(containers)
    found = {}
    for place in places:
        present = [image for image in map(tagged, images) if image in image_names(place)]
        total = sum(int(float(sizes[image]) * (spread[image] / len(cluster.places))) for image in present)
        clamped = SMALLEST_IMAGE if total < SMALLEST_IMAGE else min(total, largest)
        found[name_of(place.node)] = divided(MAX * (clamped - SMALLEST_IMAGE), largest - SMALLEST_IMAGE)
    return found


def image_names(place: Place) -> set[str]:
    images = (place.node.get("status") or {}).get("images") or ()
    return {name for image in images for name in image.get("names") or ()}


def tagged(image: str) -> str:
    """An image without a tag means its latest."""
    return image if image.rfind(":") > image.rfind("/") else f"{image}:latest"


Score = Callable[[Cluster, Fields, Sequence[Place]], Scores]

SCORES: Mapping[str, tuple[int, Score]] = {
    "TaintToleration": (3, taint_toleration),
    "NodeAffinity": (2, node_affinity),
    "NodeResourcesFit": (1, node_resources_fit),
    "PodTopologySpread": (2, pod_topology_spread),
    "InterPodAffinity": (2, inter_pod_affinity),
    "NodeResourcesBalancedAllocation": (1, balanced_allocation),
    "ImageLocality": (1, image_locality),
}
