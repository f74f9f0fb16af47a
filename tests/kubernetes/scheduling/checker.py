"""Recomputes, from the objects of the API server alone, whether the pods on the nodes break any rule.

Rule: it knows nothing of stead. The meaning of each rule is that of the oracle (tests/kubernetes/kube_filters.py); only
the order is different: the oracle asks whether one more pod may come, the checker whether those that are there may be
there together. That is the same question as long as nodes do not change and no pod ends: then whatever a pod was
allowed to do when it came still holds at the end.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from itertools import combinations

from tests.kubernetes import kube_filters
from tests.kubernetes.kube_cluster import Cluster, Place, Placed
from tests.kubernetes.kube_requests import host_ports, ports_conflict
from tests.kubernetes.kube_selectors import Fields, PodTerm, labels_of, matches, name_of, namespace_of

Kind = tuple[str, tuple[tuple[str, str], ...]]
"""The namespace and the labels of a pod: what terms select by."""

OF_THE_NODE = {
    "cordon": kube_filters.node_unschedulable,
    "taints": kube_filters.taint_toleration,
    "node affinity": kube_filters.node_affinity,
}


def broken_rules(
    nodes: Iterable[Fields], pods: Iterable[Fields], namespaces: Mapping[str, Mapping[str, str]] | None = None
) -> list[str]:
    """One sentence for each rule that is broken."""
    cluster = Cluster(nodes, pods, namespaces)
    return [
        *_of_each_pod(cluster),
        *over_capacity(cluster),
        *_ports(cluster),
        *_anti_affinity(cluster),
        *_affinity(cluster),
        *_spread(cluster),
    ]


def _of_each_pod(cluster: Cluster) -> Iterator[str]:
    """Selectors, taints and cordons."""
    for place, each in cluster.every_placed():
        for rule, refusals in OF_THE_NODE.items():
            if refusals(cluster, each.pod, place):
                yield f"{rule}: {name_of(each.pod)} may not be on {name_of(place.node)}"


def over_capacity(cluster: Cluster) -> Iterator[str]:
    """Nodes that hold more than they can give."""
    for name, place in cluster.places.items():
        if len(place.placed) > place.allocatable.get("pods", 0):
            yield f"capacity: {name} has {len(place.placed)} pods"
        for resource in {resource for each in place.placed for resource in each.held}:
            held, room = place.held(resource), place.allocatable.get(resource, 0)
            if held > room:
                yield f"capacity: {name} has {room} {resource}, and its pods hold {held}"


def _ports(cluster: Cluster) -> Iterator[str]:
    for name, place in cluster.places.items():
        held = [(name_of(each.pod), port) for each in place.placed for port in host_ports(each.pod)]
        for (one, port), (other, same) in combinations(held, 2):
            if one != other and ports_conflict(port, same):
                yield f"ports: {one} and {other} both have {port} on {name}"


class _Domains:
    """How many pods of each kind every domain has."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._by_key: dict[str, dict[str, Counter[Kind]]] = {}

    def of(self, key: str) -> dict[str, Counter[Kind]]:
        """By the value of the label `key`. Empty domains are there too."""
        if key not in self._by_key:
            found: dict[str, Counter[Kind]] = defaultdict(Counter)
            for place in self._cluster.places.values():
                if key in place.labels:
                    found[place.labels[key]].update(kind_of(each.pod) for each in place.placed)
            self._by_key[key] = found
        return self._by_key[key]

    def selected(self, terms: Iterable[PodTerm], key: str, value: str, without: Fields | None = None) -> int:
        """How many pods in this domain all the terms select, without this one, which is in the domain."""
        here = self.of(key).get(value, Counter())
        terms = list(terms)
        count = sum(number for kind, number in here.items() if self.select(terms, kind))
        return count - (without is not None and self.select(terms, kind_of(without)))

    def select(self, terms: Iterable[PodTerm], kind: Kind) -> bool:
        pod = {"metadata": {"namespace": kind[0], "labels": dict(kind[1])}}
        return all(kube_filters.selects_for(self._cluster, term, pod) for term in terms)


def kind_of(pod: Fields) -> Kind:
    return namespace_of(pod), tuple(sorted(labels_of(pod).items()))


def _anti_affinity(cluster: Cluster) -> Iterator[str]:
    """Both directions at once: whichever of two pods came first, they may not be in one domain."""
    domains = _Domains(cluster)
    for place, each in cluster.every_placed():
        for term in each.terms.anti_affinity:
            value = place.labels.get(term.topology_key)
            if value is not None and domains.selected([term], term.topology_key, value, each.pod):
                yield f"anti-affinity: {name_of(each.pod)} is with others in {term.topology_key}={value}"


def _affinity(cluster: Cluster) -> Iterator[str]:
    """A pod has a partner in its domain, or there is no partner anywhere and it matches its own terms."""
    domains = _Domains(cluster)
    for place, each in cluster.every_placed():
        terms = each.terms.affinity
        for term in terms:
            key, value = term.topology_key, place.labels.get(term.topology_key)
            if value is None:
                yield f"affinity: {name_of(each.pod)} is on a node without {key}"
            elif not domains.selected(terms, key, value, each.pod) and not _may_be_first(domains, each, key, value):
                yield f"affinity: {name_of(each.pod)} has no partner in {key}={value}"


def _may_be_first(domains: _Domains, each: Placed, key: str, own: str) -> bool:
    terms = each.terms.affinity
    others = [value for value in domains.of(key) if value != own]
    return domains.select(terms, kind_of(each.pod)) and not any(domains.selected(terms, key, one) for one in others)


def _spread(cluster: Cluster) -> Iterator[str]:
    """Every domain has at most `maxSkew` pods more than the one with the fewest."""
    seen = set()
    for place, each in cluster.every_placed():
        constraints = kube_filters.spread_constraints(each.pod, "DoNotSchedule")
        for constraint in constraints:
            key = (kind_of(each.pod), constraint, place.labels.get(constraint.topology_key))
            if key in seen or not matches(constraint.selector, labels_of(each.pod)):
                continue
            seen.add(key)
            yield from _skew(cluster, each, place, constraints, constraint)


def _skew(
    cluster: Cluster,
    each: Placed,
    place: Place,
    constraints: list[kube_filters.Constraint],
    constraint: kube_filters.Constraint,
) -> Iterator[str]:
    counts = kube_filters.pods_by_domain(cluster, each.pod, constraints, constraint)
    value = place.labels.get(constraint.topology_key)
    if value is None:
        yield f"spread: {name_of(each.pod)} is on a node without {constraint.topology_key}"
        return
    least = min(counts.values()) if counts and len(counts) >= constraint.min_domains else 0
    if counts.get(value, 0) - least > constraint.max_skew:
        yield f"spread: {constraint.topology_key}={value} has {counts[value]} like {name_of(each.pod)}, another {least}"
