"""Every reason for which kube-scheduler's default plugins refuse a node, in kube-scheduler's words.

Rule: a filter looks at one pod and one node and returns all its reasons; no reason means it allows the node. `FILTERS`
has them in the order of the default profile. Filters for volumes and for dynamic resources are not covered.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tests.kubernetes.kube_cluster import Cluster, Place
from tests.kubernetes.kube_requests import host_ports, ports_conflict, requested
from tests.kubernetes.kube_selectors import (
    EVERYTHING,
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
    matches_node,
    name_of,
    namespace_of,
    pod_terms,
    spec_of,
    tolerates,
    untolerated_taints,
)

NODE_NAME = "node(s) didn't match the requested node name"
UNSCHEDULABLE = "node(s) were unschedulable"
TAINTED = "node(s) had untolerated taint(s)"
NODE_AFFINITY = "node(s) didn't match Pod's node affinity/selector"
NODE_AFFINITY_CONFLICT = "pod affinity terms conflict"
NOT_IN_NODE_SET = "node(s) didn't satisfy plugin(s) [NodeAffinity]"
PORTS = "node(s) didn't have free ports for the requested pod ports"
TOO_MANY_PODS = "Too many pods"
SKEWED = "node(s) didn't match pod topology spread constraints"
SKEWED_NO_LABEL = f"{SKEWED} (missing required label)"
AFFINITY = "node(s) didn't match pod affinity rules"
ANTI_AFFINITY = "node(s) didn't match pod anti-affinity rules"
EXISTING_ANTI_AFFINITY = "node(s) didn't satisfy existing pods anti-affinity rules"

BLOCKING = ("NoSchedule", "NoExecute")
HOSTNAME = "kubernetes.io/hostname"


class CycleError(Exception):
    """The scheduling cycle of a pod ends with an error: neither a node nor a list of refusals."""


# -- before any node is looked at


def refusal_of_all_nodes(pod: Fields) -> str | None:
    """A reason in the pod itself that refuses every node at once. Raises if the cycle cannot go on."""
    if node_set(pod) == set():
        return NODE_AFFINITY_CONFLICT
    try:
        spread_constraints(pod, "DoNotSchedule")
    except NotParsed as error:
        message = f"get constraints from pod: obtaining pod's hard topology spread constraints: {error}"
        raise CycleError(f'running PreFilter plugin "PodTopologySpread": {message}') from None
    if errors := pod_terms(pod).errors:
        return f"parsing pod: {NotParsed(errors)}"
    return None


def node_set(pod: Fields) -> set[str] | None:
    """The nodes that required node affinity names by `metadata.name`; None if a term names no node at all."""
    required = affinity_of(pod, "nodeAffinity").get("requiredDuringSchedulingIgnoredDuringExecution") or {}
    terms = required.get("nodeSelectorTerms") or ()
    if not terms:
        return None
    union: set[str] = set()
    for term in terms:
        named = [
            set(field.get("values") or ())
            for field in (term or {}).get("matchFields") or ()
            if field.get("key") == "metadata.name" and field.get("operator") == "In"
        ]
        if not named:
            return None
        union |= set.intersection(*named)
    return union


# -- the filters


def node_name(cluster: Cluster, pod: Fields, place: Place) -> list[str]:
    wanted = spec_of(pod).get("nodeName")
    return [NODE_NAME] if wanted and wanted != name_of(place.node) else []


def node_unschedulable(cluster: Cluster, pod: Fields, place: Place) -> list[str]:
    taint = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
    tolerations = spec_of(pod).get("tolerations") or ()
    if not spec_of(place.node).get("unschedulable") or any(tolerates(each, taint) for each in tolerations):
        return []
    return [UNSCHEDULABLE]


def taint_toleration(cluster: Cluster, pod: Fields, place: Place) -> list[str]:
    return [TAINTED] if untolerated_taints(pod, place.node, BLOCKING) else []


def node_affinity(cluster: Cluster, pod: Fields, place: Place) -> list[str]:
    return [] if matches_node(pod, place.node) else [NODE_AFFINITY]


def node_ports(cluster: Cluster, pod: Fields, place: Place) -> list[str]:
    used = [port for each in place.placed for port in host_ports(each.pod)]
    conflict = any(ports_conflict(one, other) for one in host_ports(pod) for other in used)
    return [PORTS] if conflict else []


def node_resources_fit(cluster: Cluster, pod: Fields, place: Place) -> list[str]:
    """All the resources that do not suffice: pods first, then the three common ones, then the others by name."""
    found = []
    if len(place.placed) + 1 > place.allocatable.get("pods", 0):
        found.append(TOO_MANY_PODS)
    wanted = requested(pod)
    common = ["cpu", "memory", "ephemeral-storage"]
    for resource in (*common, *sorted(wanted.keys() - set(common))):
        free = place.allocatable.get(resource, 0) - place.held(resource)
        if wanted.get(resource, 0) > 0 and wanted[resource] > free:
            found.append(f"Insufficient {resource}")
    return found


# -- topology spread


@dataclass(frozen=True)
class Constraint:
    """One topology spread constraint."""

    max_skew: int
    topology_key: str
    selector: Selector
    min_domains: int
    honors_affinity: bool
    honors_taints: bool

    def counts_node(self, pod: Fields, node: Fields) -> bool:
        """Whether the constraint's node policies let this node take part."""
        if self.honors_affinity and not matches_node(pod, node):
            return False
        return not (self.honors_taints and untolerated_taints(pod, node, BLOCKING))

    def pods_on(self, place: Place, namespace: str) -> int:
        """The pods on a node that the constraint counts. Terminating pods do not count, and `{}` counts no pod."""
        if self.selector == EVERYTHING:
            return 0
        return sum(
            namespace_of(each.pod) == namespace
            and not (each.pod.get("metadata") or {}).get("deletionTimestamp")
            and matches(self.selector, labels_of(each.pod))
            for each in place.placed
        )


def spread_constraints(pod: Fields, action: str) -> list[Constraint]:
    """The pod's own constraints for this action, DoNotSchedule or ScheduleAnyway."""
    return [
        constraint_of(fields, labels_of(pod))
        for fields in spec_of(pod).get("topologySpreadConstraints") or ()
        if fields.get("whenUnsatisfiable") == action
    ]


def constraint_of(fields: Fields, labels: Labels) -> Constraint:
    selector = label_selector(fields.get("labelSelector"))
    same = {key: labels[key] for key in fields.get("matchLabelKeys") or () if key in labels}
    if selector is not None:
        selector = (*(labels_selector(same) or ()), *selector)
    min_domains = fields.get("minDomains")
    return Constraint(
        max_skew=fields.get("maxSkew") or 0,
        topology_key=fields.get("topologyKey") or "",
        selector=selector,
        min_domains=1 if min_domains is None else min_domains,
        honors_affinity=(fields.get("nodeAffinityPolicy") or "Honor") == "Honor",
        honors_taints=(fields.get("nodeTaintsPolicy") or "Ignore") == "Honor",
    )


def has_keys(constraints: list[Constraint], node: Fields) -> bool:
    return all(constraint.topology_key in labels_of(node) for constraint in constraints)


def pods_by_domain(cluster: Cluster, pod: Fields, constraints: list[Constraint], which: Constraint) -> dict[str, int]:
    """How many pods one constraint counts in each of its domains. Only nodes with the keys of all constraints count."""
    found: dict[str, int] = {}
    for place in cluster.places.values():
        if has_keys(constraints, place.node) and which.counts_node(pod, place.node):
            value = place.labels[which.topology_key]
            found[value] = found.get(value, 0) + which.pods_on(place, namespace_of(pod))
    return found


def pod_topology_spread(cluster: Cluster, pod: Fields, place: Place) -> list[str]:
    constraints = spread_constraints(pod, "DoNotSchedule")
    for constraint in constraints:
        if constraint.topology_key not in place.labels:
            return [SKEWED_NO_LABEL]
        counts = pods_by_domain(cluster, pod, constraints, constraint)
        # With fewer domains than wanted, the missing ones count as empty.
        least = min(counts.values()) if counts and len(counts) >= constraint.min_domains else 0
        myself = 1 if matches(constraint.selector, labels_of(pod)) else 0
        here = counts.get(place.labels[constraint.topology_key], 0)
        if here + myself - least > constraint.max_skew:
            return [SKEWED]
    return []


# -- pod affinity


def selects_for(cluster: Cluster, term: PodTerm, existing: Fields) -> bool:
    """Whether a term of the incoming pod selects this pod. A namespace selector finds only namespaces that exist."""
    namespace = namespace_of(existing)
    inside = (
        namespace in term.namespaces
        or term.namespace_selector == EVERYTHING
        or (namespace in cluster.namespaces and matches(term.namespace_selector, cluster.namespaces[namespace]))
    )
    return inside and matches(term.selector, labels_of(existing))


def selects_incoming(cluster: Cluster, term: PodTerm, incoming: Fields) -> bool:
    """Whether a term of an existing pod selects the incoming pod. A namespace that does not exist has no labels."""
    namespace = namespace_of(incoming)
    inside = namespace in term.namespaces or matches(term.namespace_selector, cluster.namespaces.get(namespace) or {})
    return inside and matches(term.selector, labels_of(incoming))


def same_domain(key: str, one: Labels, other: Labels) -> bool:
    return key in one and key in other and one[key] == other[key]


def inter_pod_affinity(cluster: Cluster, pod: Fields, place: Place) -> list[str]:
    if not affinity_holds(cluster, pod, place):
        return [AFFINITY]
    existing = cluster.every_placed()
    for term in pod_terms(pod).anti_affinity:
        for there, other in existing:
            if selects_for(cluster, term, other.pod) and same_domain(term.topology_key, there.labels, place.labels):
                return [ANTI_AFFINITY]
    for there, other in existing:
        for term in other.terms.anti_affinity:
            if selects_incoming(cluster, term, pod) and same_domain(term.topology_key, there.labels, place.labels):
                return [EXISTING_ANTI_AFFINITY]
    return []


def affinity_holds(cluster: Cluster, pod: Fields, place: Place) -> bool:
    """Every term finds, in the node's own domain, a pod that matches all the terms.

    If there is no such pod in any domain, a pod that matches its own terms may be the first.
    """
    terms = pod_terms(pod).affinity
    if any(term.topology_key not in place.labels for term in terms):
        return False
    partners = [
        there
        for there, other in cluster.every_placed()
        if terms and all(selects_for(cluster, term, other.pod) for term in terms)
    ]
    if all(any(same_domain(term.topology_key, there.labels, place.labels) for there in partners) for term in terms):
        return True
    somewhere = any(term.topology_key in there.labels for there in partners for term in terms)
    return not somewhere and all(selects_for(cluster, term, pod) for term in terms)


Filter = Callable[[Cluster, Fields, Place], list[str]]

FILTERS: Mapping[str, Filter] = {
    "NodeName": node_name,
    "NodeUnschedulable": node_unschedulable,
    "TaintToleration": taint_toleration,
    "NodeAffinity": node_affinity,
    "NodePorts": node_ports,
    "NodeResourcesFit": node_resources_fit,
    "PodTopologySpread": pod_topology_spread,
    "InterPodAffinity": inter_pod_affinity,
}
