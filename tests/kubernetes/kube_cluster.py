"""A Kubernetes cluster at one moment, as kube-scheduler sees it: nodes, the pods on them, namespaces and controllers.

Rule: objects are completed here as the API server completes them, once, when they enter. No one else changes an object.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from tests.kubernetes.kube_requests import (
    amounts,
    container_amounts,
    counted_for_score,
    held_by,
    is_hugepages,
    is_native,
    is_pod_level,
    quantity,
    rounded_up,
    whole_units,
)
from tests.kubernetes.kube_selectors import Fields, Labels, PodTerms, labels_of, name_of, pod_terms, spec_of


@dataclass(frozen=True)
class Placed:
    """A pod on a node, with its affinity terms parsed.

    `held` is what it holds of the node, `counted` what it counts for in the least-allocated score.
    """

    pod: Fields
    terms: PodTerms
    held: Mapping[str, int]
    counted: Mapping[str, int]


@dataclass(frozen=True)
class Place:
    """A node, what it can give, and the pods on it."""

    node: Fields
    allocatable: Mapping[str, int]
    placed: list[Placed]

    @property
    def labels(self) -> Labels:
        return labels_of(self.node)

    def held(self, resource: str) -> int:
        return sum(each.held.get(resource, 0) for each in self.placed)


class Cluster:
    """Nodes by name, each with its pods.

    Pods that succeeded or failed, and pods on nodes that do not exist, are not part of it. The order of the nodes
    matters in one place: kube-scheduler takes the size of an image from the first node that has it.
    """

    def __init__(
        self,
        nodes: Iterable[Fields],
        pods: Iterable[Fields] = (),
        namespaces: Mapping[str, Labels] | None = None,
        services: Iterable[Fields] = (),
        replicasets: Iterable[Fields] = (),
        statefulsets: Iterable[Fields] = (),
        replicationcontrollers: Iterable[Fields] = (),
    ) -> None:
        self.namespaces = dict(namespaces or {})
        self.services = list(services)
        self.controllers = {
            ("apps/v1", "ReplicaSet"): list(replicasets),
            ("apps/v1", "StatefulSet"): list(statefulsets),
            ("v1", "ReplicationController"): list(replicationcontrollers),
        }
        self.places: dict[str, Place] = {}
        for node in nodes:
            self.places[name_of(node)] = Place(node, whole_units(amounts(allocatable_of(node))), [])
        for pod in pods:
            self.place(pod)

    def place(self, pod: Fields) -> None:
        """Add a pod to the node that its spec names."""
        phase = (pod.get("status") or {}).get("phase")
        place = self.places.get(spec_of(pod).get("nodeName") or "")
        if place is not None and phase not in ("Succeeded", "Failed"):
            pod = completed(pod)
            place.placed.append(Placed(pod, pod_terms(pod), held_by(pod), counted_for_score(pod)))

    def bind(self, pod: Fields, node: str) -> None:
        """Add a pending pod to a node, as if it had been bound there."""
        self.place({**pod, "spec": {**spec_of(pod), "nodeName": node}})

    def every_placed(self) -> list[tuple[Place, Placed]]:
        return [(place, each) for place in self.places.values() for each in place.placed]


def allocatable_of(node: Fields) -> Fields:
    """What a node can give; its capacity if it does not say."""
    status = node.get("status") or {}
    allocatable = status.get("allocatable")
    found = status.get("capacity") if allocatable is None else allocatable
    return found or {}


# -- what the API server completes


def completed(pod: Fields) -> Fields:
    """The pod as the API server stores it. A pod that was stored already does not change its meaning."""
    found: dict[str, Any] = deepcopy(dict(pod))
    spec = dict(spec_of(found))
    found["spec"] = spec
    containers = [*(spec.get("containers") or ()), *(spec.get("initContainers") or ())]
    for container in containers:
        _complete_resources(container)
        if spec.get("hostNetwork"):
            for port in container.get("ports") or ():
                port["hostPort"] = port.get("hostPort") or port.get("containerPort") or 0
    if spec.get("overhead"):
        spec["overhead"] = _in_thousandths(spec["overhead"])
    if spec.get("resources"):
        _complete_pod_resources(found, spec["resources"])
    for kind in ("podAffinity", "podAntiAffinity"):
        _complete_terms((spec.get("affinity") or {}).get(kind) or {}, labels_of(found))
    return found


def _in_thousandths(resources: Fields) -> dict[str, str]:
    """Amounts rounded up to thousandths, as integers of thousandths."""
    return {name: f"{int(rounded_up(quantity(text), 1000) * 1000)}m" for name, text in resources.items()}


def _complete_resources(container: dict[str, Any]) -> None:
    """A container that limits a resource and does not request it requests its limit."""
    resources = container.get("resources") or {}
    limits = _in_thousandths(resources.get("limits") or {})
    requests = _in_thousandths(resources.get("requests") or {})
    container["resources"] = {**resources, "limits": limits, "requests": {**limits, **requests}}


def _complete_pod_resources(pod: Fields, resources: dict[str, Any]) -> None:
    """A pod that limits a resource as a whole and does not request it: what its containers request, or the limit."""
    limits = _in_thousandths(resources.get("limits") or {})
    requests = _in_thousandths(resources.get("requests") or {})
    if limits or requests:
        for name, amount in container_amounts(pod, "limits").items():
            if is_hugepages(name) and name not in requests:
                limits.setdefault(name, f"{int(amount * 1000)}m")
    if limits:
        for name, amount in container_amounts(pod, "requests").items():
            if is_pod_level(name) and is_native(name) and not is_hugepages(name):
                requests.setdefault(name, f"{int(amount * 1000)}m")
        for name, text in limits.items():
            if is_pod_level(name):
                requests.setdefault(name, text)
    resources.update(limits=limits, requests=requests)


def _complete_terms(affinity: dict[str, Any], labels: Labels) -> None:
    """Merge matchLabelKeys and mismatchLabelKeys into the selectors. A null selector stays: it matches nothing."""
    weighted = affinity.get("preferredDuringSchedulingIgnoredDuringExecution") or ()
    preferred = [term["podAffinityTerm"] for term in weighted if term and term.get("podAffinityTerm")]
    required = [term for term in affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or () if term]
    for term in (*required, *preferred):
        selector = term.get("labelSelector")
        if selector is None:
            continue
        added = [
            {"key": key, "operator": operator, "values": [labels[key]]}
            for field, operator in (("matchLabelKeys", "In"), ("mismatchLabelKeys", "NotIn"))
            for key in term.get(field) or ()
            if key in labels
        ]
        selector["matchExpressions"] = [*(selector.get("matchExpressions") or ()), *added]
