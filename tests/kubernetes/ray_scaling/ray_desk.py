"""A simulated Ray cluster whose nodes are the pods of a RayCluster: what `stead autoscale` would see of one.

Rule: a pod that runs is a node of its group's kind, with the pod's IP address; the engine decides what runs there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from stead.engine.engine import Engine
from stead.engine.facts import AskEnded, AskSubmitted, ClockAdvanced, Fact, NodeJoined, NodeLeft
from stead.engine.scaling.decisions import ScaleDecision
from stead.kubernetes.ray_clusters import GROUP
from stead.language.asks import Ask
from stead.language.nodes import NodeTemplate
from stead.operate.audit import Author, Entry
from stead.operate.changes import NodeChange
from stead.operate.desk import Carried, Changes
from stead.operate.scale import ScaleView
from stead.operate.snapshot import Snapshot
from tests.kubernetes.ray_scaling.kuberay import KubeRay


class RayDesk:
    """`killed` is the work whose node went away while it ran."""

    def __init__(self, kuberay: KubeRay, kinds: Sequence[NodeTemplate], clock: Callable[[], float]) -> None:
        self._kuberay, self._kinds, self._clock = kuberay, {each.name: each for each in kinds}, clock
        self.engine = Engine()
        self.killed: set[str] = set()
        self.views: list[ScaleView] = []

    def submit(self, *asks: Ask) -> None:
        self._apply(*map(AskSubmitted, asks))

    def end(self, *ids: str) -> None:
        self._apply(*map(AskEnded, ids))

    @property
    def groups(self) -> dict[str, str]:
        """The group of the node that each piece of work runs on."""
        return {ask: self.engine.nodes[node].labels["ray.io/node-group"] for ask, node in self.engine.placed.items()}

    def snapshot(self) -> Snapshot:
        running = {}
        for pod in self._kuberay.pods():
            if pod["status"].get("phase") == "Running" and "deletionTimestamp" not in pod["metadata"]:
                running[f"node-{pod['metadata']['name']}"] = pod
        gone = self.engine.nodes.keys() - running.keys()
        self.killed |= {ask for ask, node in self.engine.placed.items() if node in gone}
        joined = []
        for id in sorted(running.keys() - self.engine.nodes.keys()):
            template = self._kinds[running[id]["metadata"]["labels"][GROUP]]
            node = replace(template.node(id), ip=running[id]["status"]["podIP"])
            joined.append(NodeJoined(node))
        self._apply(*joined, *map(NodeLeft, gone))
        return Snapshot(self.engine.fork(), self._clock())

    def change(self, changes: Changes, author: Author) -> Carried:
        assert isinstance(changes, NodeChange)
        now = self._clock()
        self._apply(*changes.facts(self.engine.nodes[changes.node], now))
        return Carried((), Entry(0, now, author.who, "", author.via, "", changes.action, changes.node, {}, {}, ""))

    def report_scale(self, view: ScaleView, decisions: Sequence[ScaleDecision]) -> None:
        self.views.append(view)

    def _apply(self, *facts: Fact) -> None:
        self.engine.apply(ClockAdvanced(self._clock()), *facts)
        self.engine.decide()
