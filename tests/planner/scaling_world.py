"""A cluster and a provider for tests of the scaler: plain lists and a clock, changed by the test and by decisions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import count

from stead.engine.engine import Engine
from stead.engine.facts import (
    AskEnded,
    AskSubmitted,
    ClockAdvanced,
    Fact,
    NodeDrained,
    NodeJoined,
    NodeLabelled,
    NodeLeft,
)
from stead.engine.scaling.decisions import (
    LaunchEnded,
    LaunchId,
    NodeLost,
    NodeRequested,
    NodeRetired,
    RetirementBegun,
    RetirementCancelled,
    ScaleDecision,
)
from stead.language.asks import Ask
from stead.language.labels import Labels
from stead.language.nodes import Node, NodeTemplate
from stead.language.resources import Resources
from stead.language.taints import Taint
from stead.planner.instances import Instance, InstanceState, LaunchFailed
from stead.planner.plans import NO_LIMITS, Limits
from stead.planner.scaler import RETIRING, Scaler, ScaleSettings, Seen

QUICK = ScaleSettings(idle_s=100, settle_s=1, join_s=50, retry_s=20, retry_max_s=200, stock_out_s=60)


def kind(
    name: str = "cpu",
    capacity: Mapping[str, float] | None = None,
    labels: Mapping[str, str] | None = None,
    taints: Sequence[Taint] = (),
    least: int = 0,
    most: int = 10,
    price: float = 1.0,
) -> NodeTemplate:
    amounts = Resources.of(capacity or {"CPU": 4})
    return NodeTemplate(name, amounts, Labels(labels or {}), tuple(taints), least, most, price)


class World:
    """`step` lets the scaler decide and carries the decisions out; nodes join by `join`."""

    def __init__(
        self,
        *kinds: NodeTemplate,
        settings: ScaleSettings = QUICK,
        limits: Limits = NO_LIMITS,
        lag: bool = False,
        stubborn: bool = False,
    ) -> None:
        self.kinds, self.settings, self.limits, self.is_lagging = kinds or (kind(),), settings, limits, lag
        self.is_stubborn = stubborn  # instances do not end
        self.ids = (f"launch-{number}" for number in count(1))
        self.now, self.engine = 0.0, Engine()
        self.instances: dict[LaunchId, Instance] = {}
        self.failures: list[LaunchFailed] = []
        self.unlisted: list[Instance] = []
        self.restart()

    def restart(self) -> None:
        """A new scaler, as after a crash."""
        self.scaler = Scaler(self.kinds, self.settings, self.limits, lambda: next(self.ids))

    def apply(self, *facts: Fact) -> None:
        self.engine.apply(ClockAdvanced(self.now), *facts)
        self.engine.decide()

    def submit(self, *asks: Ask) -> None:
        self.apply(*map(AskSubmitted, asks))

    def end(self, *ids: str) -> None:
        self.apply(*map(AskEnded, ids))

    def step(self, after: float = 0.0) -> list[ScaleDecision]:
        self.now += after
        self.apply()
        seen = Seen(self.now, self.engine, tuple(self.instances.values()), tuple(self.failures))
        self.failures = []
        decisions = self.scaler.step(seen)
        for decision in decisions:
            self.carry_out(decision)
        return decisions

    def until(self, moment: float) -> list[ScaleDecision]:
        """Step whenever a step is due or something was decided, up to this time."""
        decisions = new = self.step()
        while True:
            due = self.now if new else self.scaler.next_moment
            if due is None or due > moment:
                break
            new = self.step(due - self.now)
            decisions += new
        self.now = moment
        return decisions + self.step()

    def carry_out(self, decision: ScaleDecision) -> None:
        match decision:
            case NodeRequested(launch, template):
                instance = Instance(launch, template.name, InstanceState.STARTING, self.now)
                if self.is_lagging:
                    self.unlisted.append(instance)
                else:
                    self.instances[launch] = instance
            case RetirementBegun(launch, _, node):
                self.apply(NodeLabelled(node, Labels({RETIRING: launch})), NodeDrained(node))
            case RetirementCancelled(_, _, node):
                self.apply(NodeDrained(node, False), NodeLabelled(node, removed=(RETIRING,)))
            case NodeRetired(launch) | LaunchEnded(launch) | NodeLost(launch) if not self.is_stubborn:
                gone = self.instances.pop(launch, None)
                if gone is not None and gone.node:
                    self.apply(NodeLeft(gone.node))

    def join(self, *launches: LaunchId, **differences: object) -> None:
        """The nodes of these launches, or of all that have not joined, join as described, except for `differences`."""
        kinds = {each.name: each for each in self.kinds}
        for launch in launches or [each.launch for each in self.instances.values() if not each.node]:
            instance = self.instances[launch]
            node = f"node-{launch}"
            self.instances[launch] = replace(instance, state=InstanceState.RUNNING, node=node)
            self.apply(NodeJoined(replace(kinds[instance.kind].node(node), **differences)))  # type: ignore[arg-type]

    def start(self, count: int, kind: str = "cpu") -> list[LaunchId]:
        """Nodes that were launched before."""
        for _ in range(count):
            launch = next(self.ids)
            self.instances[launch] = Instance(launch, kind, InstanceState.RUNNING, self.now)
        self.join()
        return list(self.instances)

    def node(self, launch: LaunchId) -> Node:
        return self.engine.nodes[f"node-{launch}"]


def cpus(id: str = "w", amount: float = 1, **more: object) -> Ask:
    return Ask.of(id, {"CPU": amount}, **more)  # type: ignore[arg-type]
