"""A Kubernetes cluster at one moment: as every other cluster, with pods for work.

Rule: a cordoned node is shown as draining, without the taint that stands for the cordon. The engine keeps the taint,
because pods can tolerate it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property

from stead.engine.engine import Engine
from stead.engine.facts import AskLost, Fact, NodeDrained, NodeJoined, NodeTainted, NodeUntainted
from stead.kubernetes.desk.explaining import KubeExplanation, explained, not_bound_yet, placed
from stead.kubernetes.nodes import UNSCHEDULABLE
from stead.kubernetes.pod_manifest import KUBE_GPU
from stead.kubernetes.requesting import PODS
from stead.kubernetes.templates import Pod
from stead.language.arguments import kubectl_spelling
from stead.language.asks import Ask, Group, PolicyName
from stead.language.nodes import Node
from stead.language.resources import CPU, GPU, UNIT, Resources
from stead.language.taints import Effect, Toleration
from stead.operate.changes import DRAINED
from stead.operate.draining import STAYS
from stead.operate.rows import Known, KnownOwner, Requested, Rows
from stead.operate.snapshot import Snapshot
from stead.operate.views import amounts, rules_of

ADDED = tuple(
    Toleration(f"node.kubernetes.io/{problem}", effect=Effect.NO_EXECUTE, seconds=300.0)
    for problem in ("not-ready", "unreachable")
)
"""The tolerations that Kubernetes adds to every pod."""


PODS_OF_A_NODE = 110
"""How many pods a kubelet runs by default."""


def cordon_as_draining(node: Node) -> Node:
    """A node as people see it."""
    if UNSCHEDULABLE not in node.taints:
        return node
    taints = tuple(taint for taint in node.taints if taint != UNSCHEDULABLE)
    return replace(node, taints=taints, draining=True)


class KubeRows(Rows):
    """Pods without what every pod has: one of the node's pods, and the tolerations that Kubernetes adds."""

    def requested(self, ask: Ask) -> Requested:
        found = self._in_words.get(shape := self._shapes.of(ask))
        if found is None:
            own = tuple(each for each in ask.tolerations if each not in ADDED)
            plain = replace(
                ask, tolerations=own, policy=PolicyName.HYBRID if ask.policy == PolicyName.KUBE else ask.policy
            )
            resources = {name: amount for name, amount in amounts(ask.choices[0].resources).items() if name != PODS}
            rules = tuple(map(kubectl_spelling, rules_of(plain)))
            found = self._in_words[shape] = Requested(resources, rules, dict(ask.labels))
        return found

    @cached_property
    def _in_words(self) -> dict[int, Requested]:
        return {}


OF_NODES = frozenset({"by_id", "all_nodes", "_order_made", "_names", "titles", "labels", "greatest"})
"""The tables of a snapshot that depend on nothing but its nodes."""


class KubeSnapshot(Snapshot):
    """`pods` are all that are not finished, also those that the engine does not place. The tables of nodes are those of
    `nodes_of`, a snapshot with the same nodes."""

    def __init__(
        self,
        engine: Engine,
        at: float,
        known: Mapping[str, Known],
        owners: Mapping[str, KnownOwner],
        pods: Mapping[str, Pod],
        title: str,
        nodes_of: KubeSnapshot | None = None,
    ) -> None:
        super().__init__(engine, at, known, title=title, kind="kubernetes")
        self.rows = KubeRows(engine, known, owners)
        self.pods = pods
        if nodes_of is not None:
            self._labels = nodes_of._labels
            self.__dict__.update({name: table for name, table in vars(nodes_of).items() if name in OF_NODES})

    @cached_property
    def by_id(self) -> Mapping[str, Node]:
        return {id: cordon_as_draining(node) for id, node in self.engine.nodes.items()}

    def explained_by(self, engine: Engine, what: str | Ask | Group) -> KubeExplanation:
        return explained(engine, what)

    def why(self, name: str) -> KubeExplanation:
        """A pod of a gang waits for its gang."""
        group = self.rows.group_of.get(name, "")
        is_waiting = group in self.rows.waiting_groups and name not in self.rows.placed
        found = super().why(group if is_waiting else name)
        assert isinstance(found, KubeExplanation)
        pod = self.pods.get(found.id)
        if pod is None or found.members:
            return found
        if found.chosen is not None:
            return placed(found, pod)
        return not_bound_yet(found, pod) if found.fits else found

    def evictable(self, node: str) -> list[str]:
        """The pods that a drain evicts from a node."""
        ids = self.by_node.get(node, ())
        return [id for id in ids if not self.rows.ask(id).owner.startswith(STAYS)]

    def capacity_of_new(self, described: Resources) -> Resources:
        """Also room for pods. `cpu` and `GPU` may be called as pods call them, or as work does."""
        names = {"cpu": CPU, GPU: KUBE_GPU}
        named = {names.get(name, name): units for name, units in described.items()}
        return Resources({PODS: PODS_OF_A_NODE * UNIT, **named})

    def in_kubernetes(self, facts: Iterable[Fact]) -> Iterator[Fact]:
        """Changes of nodes as Kubernetes carries them out: a cordon is a taint that some pods tolerate, and a drain
        evicts pods one by one."""
        for fact in facts:
            match fact:
                case NodeJoined(node) if node.id not in self.by_id:
                    yield NodeJoined(replace(node, capacity=self.capacity_of_new(node.capacity)))
                case NodeDrained(node, True):
                    yield NodeTainted(node, UNSCHEDULABLE)
                case NodeDrained(node, False):
                    yield NodeUntainted(node, UNSCHEDULABLE.key)
                case NodeTainted(node, taint) if taint.key == DRAINED:
                    yield from map(AskLost, self.evictable(node))
                case NodeUntainted(_, key) if key == DRAINED:
                    pass
                case _:
                    yield fact
