"""The autoscaler of a simulated cluster: the planner's scaler and a simulated provider in virtual time.

Rule: it decides nothing. Decisions of the scaler become calls of the provider and facts about nodes, and are part of
the timeline.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING

from stead.controller import Controller
from stead.engine.facts import NodeDrained, NodeLabelled
from stead.engine.scaling.decisions import (
    LaunchEnded,
    NodeArrived,
    NodeLost,
    NodeRequested,
    NodeRetired,
    RetirementBegun,
    RetirementCancelled,
    ScaleDecision,
)
from stead.language.labels import Labels
from stead.language.nodes import NodeId
from stead.operate.scale import Tallied
from stead.planner.instances import LaunchFailed
from stead.planner.scaler import RETIRING, Scaler, Seen
from stead.sim.provider import SimProvider
from stead.sim.scaling import Scaling

if TYPE_CHECKING:
    from stead.sim.cluster import SimCluster

FAILURES_MAX = 10
"""After so many launches in a row that failed, a run without other events ends."""


@dataclass(frozen=True, slots=True)
class KindCount:
    """What became of the launches of one kind, and what its nodes cost."""

    kind: str
    nodes: int
    launched: int
    failed: int
    retired: int
    lost: int
    spent: float


class SimAutoscaler:
    """Call `step` after each step of the controller."""

    def __init__(self, scaling: Scaling, cluster: SimCluster, controller: Controller, taken: set[NodeId]) -> None:
        self._scaling, self._cluster, self._controller = scaling, cluster, controller
        self._ids = (f"launch-{number}" for number in count(1))
        self._failures: list[LaunchFailed] = []
        self._in_a_row, self._has_begun = 0, False
        self._counts: dict[str, Counter[type]] = {kind.name: Counter() for kind in scaling.catalog}
        self.title = "simulated nodes"
        self.tallied = Tallied()
        self.provider = SimProvider(scaling, taken)
        self.scaler = self._new_scaler()

    def _new_scaler(self) -> Scaler:
        given = self._scaling
        return Scaler(given.catalog, given.settings, given.limits, lambda: next(self._ids))

    def restart(self) -> None:
        """Continue with a new scaler, as after a crash: it knows what the provider lists, and nothing else."""
        self.scaler, self._failures = self._new_scaler(), []

    @property
    def next_moment(self) -> float | None:
        """When to call `step` if nothing happens before; None if nothing more will be decided."""
        if self._failures or not self._has_begun:
            return self._cluster.now()
        moments = [self.provider.next_moment]
        if self._in_a_row < FAILURES_MAX or self.provider.may_recover(self._cluster.now()):
            moments.append(self.scaler.next_moment)
        return min((moment for moment in moments if moment is not None), default=None)

    def step(self) -> list[ScaleDecision]:
        """Report the nodes that have joined or were taken back, decide, and carry the decisions out."""
        now, self._has_begun = self._cluster.now(), True
        self._cluster.inject(*self.provider.happened(now))
        failures, self._failures = self._failures, []
        decisions = self.scaler.step(Seen(now, self._controller.engine, self.provider.listed(), failures))
        for decision in decisions:
            self._carry_out(decision, now)
            kind = decision.template.name if isinstance(decision, NodeRequested) else decision.kind
            self._counts.setdefault(kind, Counter())[type(decision)] += 1
        if decisions:
            self.tallied = self.tallied.plus(decisions)
            self._cluster.tell(decisions)
        return decisions

    def _carry_out(self, decision: ScaleDecision, now: float) -> None:
        match decision:
            case NodeRequested(launch, template):
                failed = self.provider.launch(launch, template, now)
                self._failures += [failed] if failed is not None else []
            case NodeArrived():
                self._in_a_row = 0
            case RetirementBegun(launch, _, node):
                self._cluster.inject(NodeLabelled(node, Labels({RETIRING: launch})), NodeDrained(node))
            case RetirementCancelled(_, _, node):
                self._cluster.inject(NodeDrained(node, False), NodeLabelled(node, removed=(RETIRING,)))
            case LaunchEnded(launch):
                self._in_a_row += 1
                self._cluster.inject(*self.provider.end(launch, now))
            case NodeRetired(launch) | NodeLost(launch):
                self._cluster.inject(*self.provider.end(launch, now))

    def counts(self) -> list[KindCount]:
        """What became of the launches of each kind."""
        spent = self.provider.cost(self._cluster.now())
        nodes = Counter(instance.kind for instance in self.provider.listed() if instance.node)
        return [
            KindCount(
                kind,
                nodes[kind],
                found[NodeArrived],
                found[LaunchEnded],
                found[NodeRetired],
                found[NodeLost],
                spent[kind],
            )
            for kind, found in self._counts.items()
        ]
