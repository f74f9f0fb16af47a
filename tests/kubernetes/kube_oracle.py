"""The oracle for Kubernetes: what kube-scheduler 1.36 with its default plugins does with one pod, restated naively.

Rule: nothing comes from stead. Objects are dicts in the API's JSON form. Everything is computed again for every node.

It looks at all nodes, where kube-scheduler samples clusters of more than 100. Scheduling gates, volumes, dynamic
resources, declared features, nominated nodes and preemption are not covered.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from tests.kubernetes import kube_filters, kube_scores
from tests.kubernetes.kube_cluster import Cluster, completed
from tests.kubernetes.kube_filters import CycleError
from tests.kubernetes.kube_selectors import Fields

__all__ = ["Cluster", "CycleError", "best", "feasible", "filter", "message", "scores"]

NO_NODES = "no nodes available to schedule pods"


def filter(cluster: Cluster, pod: Fields) -> dict[str, list[str]]:
    """For every node the reasons of the first plugin that refuses it. No reasons: the node is feasible."""
    pod = completed(pod)
    if refusal := kube_filters.refusal_of_all_nodes(pod):
        return {name: [refusal] for name in cluster.places}
    named = kube_filters.node_set(pod)
    found: dict[str, list[str]] = {}
    for name, place in cluster.places.items():
        if named is not None and name not in named:
            found[name] = [kube_filters.NOT_IN_NODE_SET]
            continue
        refusals = (each(cluster, pod, place) for each in kube_filters.FILTERS.values())
        found[name] = next((reasons for reasons in refusals if reasons), [])
    return found


def feasible(cluster: Cluster, pod: Fields) -> list[str]:
    return [name for name, reasons in filter(cluster, pod).items() if not reasons]


def message(cluster: Cluster, pod: Fields) -> str:
    """What kube-scheduler says about a pod that fits no node, without the part about preemption."""
    if not cluster.places:
        return NO_NODES
    refused = filter(cluster, pod)
    if not all(refused.values()):
        raise ValueError("the pod fits a node, so there is no message")
    head = f"0/{len(refused)} nodes are available:"
    if refusal := kube_filters.refusal_of_all_nodes(completed(pod)):
        return f"{head} {refusal}."
    counts = Counter(reason for reasons in refused.values() for reason in reasons)
    return f"{head} {', '.join(sorted(f'{count} {reason}' for reason, count in counts.items()))}."


def scores(cluster: Cluster, pod: Fields, feasible: Collection[str]) -> dict[str, dict[str, int]]:
    """For every feasible node the score of each plugin, times its weight. Raises if the pod has a broken preference."""
    pod = completed(pod)
    places = [place for name, place in cluster.places.items() if name in feasible]
    found: dict[str, dict[str, int]] = {name: {} for name in cluster.places if name in feasible}
    for plugin, (weight, score) in kube_scores.SCORES.items():
        for name, points in score(cluster, pod, places).items():
            found[name][plugin] = weight * points
    return found


def best(cluster: Cluster, pod: Fields) -> set[str]:
    """The nodes kube-scheduler chooses among. A single feasible node is taken without any scoring."""
    candidates = feasible(cluster, pod)
    if len(candidates) < 2:
        return set(candidates)
    totals = {name: sum(points.values()) for name, points in scores(cluster, pod, candidates).items()}
    return {name for name, total in totals.items() if total == max(totals.values())}
