"""The simulated provider: it launches, lists and ends nodes in virtual time, and goes wrong as the scenario says.

Rule: it decides nothing, and nothing is random. A node joins once its launch is done, and costs its price from the
request until it is gone.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from stead.engine.facts import NodeJoined, NodeLeft
from stead.engine.scaling.decisions import LaunchId
from stead.language.labels import EMPTY
from stead.language.nodes import NodeId, NodeTemplate
from stead.planner.instances import Instance, InstanceState, LaunchFailed
from stead.sim.scaling import Fault, FaultKind, Scaling

HOUR_S = 3600.0


@dataclass(slots=True)
class _Running:
    instance: Instance
    template: NodeTemplate
    node: NodeId
    joins: float | None
    has_joined: bool = False


class SimProvider:
    """A provider whose clock is the time of each call.

    Args:
        scaling: The kinds of nodes and the faults.
        taken: The ids of other nodes.
    """

    def __init__(self, scaling: Scaling, taken: Iterable[NodeId] = ()) -> None:
        self._scaling, self._taken = scaling, set(taken)
        self._losses = [fault for fault in scaling.faults if fault.fault is FaultKind.LOSS]
        self._numbers: Counter[str] = Counter()
        self._running: dict[LaunchId, _Running] = {}
        self.spent: defaultdict[str, float] = defaultdict(float)
        """What the nodes of each kind that are gone have cost."""

    def listed(self) -> Sequence[Instance]:
        """Every node that is launched and not gone."""
        return [each.instance for each in self._running.values()]

    def launch(self, id: LaunchId, template: NodeTemplate, now: float) -> LaunchFailed | None:
        """Start one node. Returns why it was not started, if it was not."""
        faults = {fault.fault for fault in self._scaling.faults if self._is_active(fault, template.name, now)}
        if FaultKind.STOCK_OUT in faults:
            return LaunchFailed(id, f"there are no more nodes of kind {template.name}", is_stock_out=True)
        if FaultKind.FAIL in faults:
            return LaunchFailed(id, "the provider failed to start the node")
        joins = None if FaultKind.HANG in faults else now + self._scaling.takes(template.name)
        made = replace(template, labels=EMPTY, taints=()) if FaultKind.INCOMPLETE in faults else template
        instance = Instance(id, template.name, InstanceState.STARTING, now)
        self._running[id] = _Running(instance, made, self._name(template.name), joins)
        return None

    def end(self, id: LaunchId, now: float) -> list[NodeLeft]:
        """End a node, if it is not gone. Its work is lost."""
        gone = self._running.pop(id, None)
        if gone is None:
            return []
        self.spent[gone.instance.kind] += self._cost(gone, now)
        return [NodeLeft(gone.node)] if gone.has_joined else []

    def happened(self, now: float) -> list[NodeJoined | NodeLeft]:
        """The nodes that have joined or were taken back since the last call."""
        facts: list[NodeJoined | NodeLeft] = []
        while self._losses and self._losses[0].begin <= now:
            loss = self._losses.pop(0)
            running = [id for id, each in self._running.items() if each.instance.kind == loss.kind and each.has_joined]
            for id in running[: loss.count]:
                facts += self.end(id, now)
        for each in self._running.values():
            if not each.has_joined and each.joins is not None and each.joins <= now:
                each.has_joined = True
                each.instance = replace(each.instance, state=InstanceState.RUNNING, node=each.node)
                facts.append(NodeJoined(each.template.node(each.node)))
        return facts

    @property
    def next_moment(self) -> float | None:
        """When a node joins or is taken back, if nothing happens before."""
        moments = [each.joins for each in self._running.values() if not each.has_joined and each.joins is not None]
        moments += [fault.begin for fault in self._losses[:1]] if self._running else []
        return min(moments, default=None)

    def may_recover(self, now: float) -> bool:
        """Whether a fault ends later."""
        return any(now < fault.end for fault in self._scaling.faults if fault.end != float("inf"))

    def cost(self, now: float) -> Mapping[str, float]:
        """What the nodes of each kind have cost."""
        found = self.spent.copy()
        for each in self._running.values():
            found[each.instance.kind] += self._cost(each, now)
        return found

    @staticmethod
    def _cost(each: _Running, now: float) -> float:
        return each.template.price * (now - each.instance.since) / HOUR_S

    @staticmethod
    def _is_active(fault: Fault, kind: str, now: float) -> bool:
        return fault.kind == kind and fault.begin <= now < fault.end

    def _name(self, kind: str) -> NodeId:
        while True:
            self._numbers[kind] += 1
            name = f"{kind}-{self._numbers[kind]}"
            if name not in self._taken:
                return name
