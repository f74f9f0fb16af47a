"""On random clusters, translation and engine choose a node that kube-scheduler's rules allow and rank best.

Rule: the oracle restates kube-scheduler naively and shares no code with stead. A failing seed is the test's name.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from random import Random

import pytest

from stead.engine.decisions import Placed
from stead.engine.engine import Engine
from stead.engine.facts import AskEnded, AskRunning, AskSubmitted, NodeJoined
from stead.engine.settings import Settings
from stead.errors import Invalid, Unsupported
from stead.kubernetes.default_spread import OwnerKind, Owners
from stead.kubernetes.podspec import ask_of, node_of
from stead.kubernetes.selecting import selector_of
from stead.kubernetes.wording import fit_error
from stead.language.asks import Ask
from tests.kubernetes import kube_oracle, random_clusters
from tests.kubernetes.kube_cluster import allocatable_of, completed
from tests.kubernetes.kube_selectors import Fields
from tests.kubernetes.random_clusters import RandomCluster

SEEDS = 2000 if os.environ.get("STEAD_SOAK") else 60


class Both:
    """A random cluster in the engine and in the oracle."""

    def __init__(self, seed: int, size: int) -> None:
        random = Random(seed)
        self.world: RandomCluster = random_clusters.cluster(random, size)
        for pod in (*self.world.placed, *self.world.pending):
            self.world.namespaces.setdefault(pod["metadata"]["namespace"], {})  # a pod's namespace always exists
        nodes = [stored(node) for node in self.world.nodes]
        self.oracle = kube_oracle.Cluster(
            nodes,
            self.world.placed,
            self.world.namespaces,
            services=self.world.services,
            replicasets=self.world.replicasets,
        )
        self.owners = Owners()
        for kind, objects in (
            (OwnerKind.SERVICE, self.world.services),
            (OwnerKind.REPLICA_SET, self.world.replicasets),
        ):
            for each in objects:
                metadata = each["metadata"]
                self.owners.put(kind, metadata["namespace"], metadata["name"], each["spec"].get("selector"))
        self.engine = Engine(Settings(patience=None))
        self.engine.apply(*(NodeJoined(node_of(node)) for node in nodes))
        for pod in self.world.placed:
            phase = (pod.get("status") or {}).get("phase")
            if phase not in ("Succeeded", "Failed"):
                self.engine.apply(AskRunning(self.ask(pod, lenient=True), pod["spec"]["nodeName"]))

    def ask(self, pod: Fields, lenient: bool = False) -> Ask:
        return ask_of(completed(pod), self.world.namespaces, owners=self.owners, lenient=lenient)

    def asks(self) -> Iterator[tuple[Fields, Ask]]:
        """The pending pods that stead places."""
        for pod in self.world.pending:
            try:
                yield pod, self.ask(pod)
            except Unsupported:
                tolerations = pod["spec"]["tolerations"]  # nothing else that the generator makes is refused
                assert any(each.get("operator") in ("Lt", "Gt") for each in tolerations)
            except Invalid:
                assert self.is_unschedulable(pod)

    def best(self, pod: Fields) -> Collection[str]:
        """The nodes that may be chosen: the best ones, except in two cases. For the pod that it places, upstream's
        least-allocated score ignores requests of the pod as a whole, although they count once it is placed; stead
        counts them in both. And stead counts image volumes as upstream does since 1.37."""
        has_image_volume = any((volume or {}).get("image") for volume in pod["spec"].get("volumes") or ())
        if pod["spec"].get("resources") or has_image_volume:
            return kube_oracle.feasible(self.oracle, pod)
        return kube_oracle.best(self.oracle, pod)

    def is_unschedulable(self, pod: Fields) -> bool:
        """Whether upstream cannot place it on any cluster: its cycle fails, or it refuses all nodes at once."""
        try:
            everywhere = all(kube_oracle.filter(self.oracle, pod).values())
            kube_oracle.scores(self.oracle, pod, list(self.oracle.places))
        except kube_oracle.CycleError:
            return True
        return everywhere


def names_nodes_beside_broken_terms(pod: Fields) -> bool:
    """Whether its node affinity names nodes, and has terms that are empty or do not parse. The translation leaves those
    out, so the nodes are the same, but upstream words the refusal differently."""
    node = (pod["spec"].get("affinity") or {}).get("nodeAffinity") or {}
    required = node.get("requiredDuringSchedulingIgnoredDuringExecution")
    terms = (required or {}).get("nodeSelectorTerms") or ()
    kept = selector_of(None, required).terms if required else ()
    return any((term or {}).get("matchFields") for term in terms) and len(kept) < len(terms)


def stored(node: Fields) -> Fields:
    """The node as the API server returns it, with the taint that Kubernetes' own controller gives cordoned nodes."""
    spec, taints = node.get("spec") or {}, list((node.get("spec") or {}).get("taints") or ())
    if spec.get("unschedulable") and all(taint.get("key") != CORDONED["key"] for taint in taints):
        taints.append(CORDONED)
    return {
        **node,
        "spec": {**spec, "taints": taints},
        "status": {**node["status"], "allocatable": allocatable_of(node)},
    }


CORDONED = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}


@pytest.mark.parametrize("size", [3, 12])
@pytest.mark.parametrize("seed", range(SEEDS))
def test_pods_placed_one_after_the_other_get_one_of_the_best_nodes(seed: int, size: int) -> None:
    both = Both(seed, size)
    for pod, ask in both.asks():
        refused = kube_oracle.filter(both.oracle, pod)
        both.engine.apply(AskSubmitted(ask))
        assert set(both.engine.candidates(ask)[0]) == {name for name, reasons in refused.items() if not reasons}
        both.engine.decide()
        node = both.engine.placed.get(ask.id)
        if node is not None:
            assert node in both.best(pod)
            both.oracle.bind(pod, node)
            continue
        if not names_nodes_beside_broken_terms(pod):
            message = fit_error(len(both.engine.nodes), both.engine.refusals_by_plugin(ask))
            assert message == kube_oracle.message(both.oracle, pod)
        both.engine.apply(AskEnded(ask.id))  # so that no later pod makes it fit


@pytest.mark.parametrize("seed", range(SEEDS))
def test_pods_decided_together_get_what_they_would_get_one_after_the_other(seed: int) -> None:
    """In the order of the decisions, every pod gets one of the nodes that are best at that moment."""
    both = Both(seed, 8)
    pods = {ask.id: (pod, ask) for pod, ask in both.asks()}
    both.engine.apply(*(AskSubmitted(ask) for _, ask in pods.values()))
    for decision in both.engine.decide():
        if isinstance(decision, Placed):
            pod, _ = pods[decision.ask]
            assert decision.node in both.best(pod)
            both.oracle.bind(pod, decision.node)
    for id in both.engine.waiting:
        assert not kube_oracle.feasible(both.oracle, pods[id][0])
