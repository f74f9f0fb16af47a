"""Launched nodes that nobody uses: when to drain, when to end, and when to take them back.

Rule: a node is drained and labelled first, and ended in a later step, if it is still empty then. What is drained is in
the cluster, so a restart continues there. Only nodes that match an instance are touched.

A node that a person has drained is ended once it is idle for long enough, as if it took work; it is never uncordoned.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf

from stead.engine.engine import Engine
from stead.engine.facts import NodeDrained
from stead.engine.scaling.decisions import (
    LaunchEnded,
    LaunchId,
    NodeRetired,
    RetirementBegun,
    RetirementCancelled,
    ScaleDecision,
)
from stead.language.asks import Ask
from stead.language.nodes import Node, NodeId, NodeTemplate
from stead.planner.launches import REPEAT_S, Launched, Launches
from stead.planner.plans import Stock
from stead.planner.resting import Resting
from stead.planner.retiring import retirable
from stead.planner.trials import settle

RETIRING = "stead.dev/retiring"
"""The label of a node that the autoscaler drains, so that the next autoscaler continues after a crash. The value is the
id of the launch. Set it before the node is drained, and remove it after the node is uncordoned: a drained node without
the label was drained by a person."""


@dataclass(frozen=True, slots=True)
class Standing:
    """A launched node that is part of the cluster: what it is used for, and why it is kept.

    `idle_since` is None while it is in use. `kept` says why an idle node stays; `is_retiring` once it is drained.
    """

    launch: LaunchId
    kind: str
    node: NodeId
    idle_since: float | None = None
    kept: str = ""
    is_retiring: bool = False


def uncordoned(engine: Engine, nodes: Iterable[NodeId]) -> Engine:
    """A settled fork in which these nodes take work again."""
    fork = engine.fork()
    fork.apply(*(NodeDrained(node, False) for node in nodes))
    settle(fork)
    return fork


class IdleNodes:
    """Decides about idle nodes at one moment: `take_back` first, then `retire`.

    Args:
        now: The time.
        engine: The cluster.
        launches: All launches; what is noted there is for the next moment.
        kinds: The kinds of nodes, by name.
        idle_s: How long a node must be idle.
        settle_s: How long a drained node must be empty until it ends: work that was on its way may still arrive.
    """

    def __init__(
        self,
        now: float,
        engine: Engine,
        launches: Launches,
        kinds: Mapping[str, NodeTemplate],
        idle_s: float,
        settle_s: float,
    ) -> None:
        self._now, self._engine, self._kinds = now, engine, kinds
        self._idle_s, self._settle_s = idle_s, settle_s
        self.due: list[float] = []
        """When to look again if nothing happens before."""
        self.standing: tuple[Standing, ...] = ()
        """The launched nodes that have joined."""
        self._nodes = engine.nodes
        busy = {*engine.placed.values(), *engine.used, *engine.nominated.values(), *engine.reserved}
        self._here = [launch for launch in launches if launch.node and not launch.is_going]
        for launch in self._here:
            since = now if launch.idle is None else launch.idle
            launch.idle = None if launch.node in busy else since
        alive = Counter(launch.kind for launch in launches if not launch.is_going)
        usable = Counter(launch.kind for launch in self._here if self._is_usable(launch))
        self._known = {kind: kinds.get(kind, NodeTemplate(kind)) for kind in alive}
        self._spare = Counter({kind: usable[kind] - each.count_min for kind, each in self._known.items()})
        alive.subtract(launch.kind for launch in self._here if self._is_retiring(launch))
        self._surplus = Counter({kind: alive[kind] - each.count_max for kind, each in self._known.items()})

    def _is_usable(self, launch: Launched) -> bool:
        """Whether its node counts as one of its kind and takes work."""
        return launch.counts and launch.begun is None and not self._nodes[launch.node].draining

    def _is_drained_here(self, launch: Launched) -> bool:
        """Whether its node is drained by the autoscaler: this one, or one before a restart."""
        node = self._nodes[launch.node]
        return node.draining and RETIRING in node.labels

    # -- taking back

    def take_back(self, expected: Engine) -> tuple[Engine, list[ScaleDecision]]:
        """Retirements that end because the node is needed. They take effect in the returned fork of `expected`."""
        retiring = [launch for launch in self._here if self._is_drained_here(launch)]
        empty = [launch.node for launch in retiring if launch.idle is not None and not launch.wrong]
        wanted: frozenset[NodeId] = frozenset()
        if expected.waiting and empty:
            wanted = frozenset(uncordoned(expected, empty).placed.values()).intersection(empty)
        owners, back = self._owned_taints() if retiring else {}, dict[NodeId, str]()
        for launch in retiring:
            if launch.idle is None:
                back[launch.node] = "work runs there"
            elif launch.node in owners:
                back[launch.node] = owners[launch.node]
            elif launch.node in wanted:
                back[launch.node] = "pending work fits there"
            elif not launch.wrong and self._spare[launch.kind] < 0:
                back[launch.node] = "its kind has fewer nodes than its minimum"
            else:
                continue
            self._spare[launch.kind] += 1
        decisions: list[ScaleDecision] = []
        for launch in retiring:
            if launch.node in back:
                launch.begun = launch.emptied = None
                if self._is_time(launch.cancelled):
                    launch.cancelled = self._now
                    decisions.append(RetirementCancelled(launch.id, launch.kind, launch.node, back[launch.node]))
        return uncordoned(expected, back) if back else expected, decisions

    def _is_time(self, done: float | None) -> bool:
        """Whether to decide what was last decided at `done`: again only if it has no effect for a long time."""
        moment = -inf if done is None else done + REPEAT_S
        self.due.append(max(moment, self._now + REPEAT_S) if self._now >= moment else moment)
        return self._now >= moment

    # -- retiring

    def retire(self, expected: Engine, unplanned: Collection[str], resting: Resting) -> list[ScaleDecision]:
        """Retirements that begin or end, and in `standing` the reason why each other node stays. In `expected`, the
        nodes that are coming have joined; `unplanned` is pending work that may need more nodes than these."""
        decisions: list[ScaleDecision] = []
        for launch in self._here:
            node = self._nodes[launch.node]
            self._note_cordon(launch, node)
            if self._is_drained_here(launch):
                decisions += self._finished(launch, resting) if launch.cancelled is None else ()
            elif RETIRING in node.labels and self._is_not_being_drained(launch):
                launch.idle = None if launch.idle is None else self._now
                if self._is_time(launch.cancelled):
                    launch.cancelled = self._now
                    why = "somebody has uncordoned it"
                    decisions.append(RetirementCancelled(launch.id, launch.kind, node.id, why))
        by_age = sorted(self._here, key=lambda each: (inf if each.idle is None else each.idle, each.id))
        due = [launch for launch in by_age if self._is_due(launch)]
        kept = self._kept(due, expected, unplanned)
        for launch in due:
            if launch.node not in kept:
                decisions += self._begun(launch)
        self.standing = tuple(
            Standing(
                launch.id,
                launch.kind,
                launch.node,
                launch.idle,
                kept.get(launch.node) or launch.wrong,
                self._is_retiring(launch),
            )
            for launch in self._here
            if launch.ended is None
        )
        return decisions

    def _is_retiring(self, launch: Launched) -> bool:
        return launch.cancelled is None and (launch.begun is not None or self._is_drained_here(launch))

    def _kept(self, due: Sequence[Launched], expected: Engine, unplanned: Collection[str]) -> dict[NodeId, str]:
        """Why idle nodes stay whose time has come."""
        kept = self._owned_taints() if due else {}
        usable = {launch.node: launch.kind for launch in self._here if self._is_usable(launch)}
        asked = []
        for launch in due:
            if launch.node in usable and self._spare[launch.kind] <= 0:
                kept[launch.node] = f"the minimum of its kind is {self._known[launch.kind].count_min}"
            elif launch.node in usable and launch.node not in kept:
                asked.append(launch.node)
        if asked:
            wanted = _wanted(expected, unplanned)
            asked = [node for node in asked if node not in wanted]
            kept |= retirable(expected, tuple(self._known.values()), Stock(usable), asked).kept
        return {launch.node: kept[launch.node] for launch in due if launch.node in kept}

    def _note_cordon(self, launch: Launched, node: Node) -> None:
        """Forget what has taken effect, and what never will."""
        if not node.draining and RETIRING not in node.labels:
            launch.cancelled = None
            if launch.begun is not None and launch.idle is None and self._now >= launch.begun + REPEAT_S:
                launch.begun = None
        if not node.draining or launch.idle is None:
            launch.emptied = None

    def _is_not_being_drained(self, launch: Launched) -> bool:
        """Whether no drain of its node is under way."""
        return launch.begun is None or self._now >= launch.begun + REPEAT_S

    def _is_due(self, launch: Launched) -> bool:
        """Whether an idle node has been idle for long enough. Nodes over the maximum, and those that are not what they
        should be, need no time."""
        if launch.idle is None or self._is_drained_here(launch) or not self._is_not_being_drained(launch):
            return False
        is_surplus = launch.begun is None and self._surplus[launch.kind] > 0
        self._surplus[launch.kind] -= is_surplus
        moment = launch.idle + (0.0 if is_surplus or launch.wrong else self._idle_s)
        self.due.append(moment)
        return self._now >= moment

    def _begun(self, launch: Launched) -> Iterable[ScaleDecision]:
        assert launch.idle is not None
        if self._nodes[launch.node].draining:  # by a person
            return [self._ended(launch, NodeRetired(launch.id, launch.kind, launch.node))]
        if not self._is_time(launch.begun):
            return []
        launch.begun, launch.cancelled = self._now, None
        self.due.append(self._now + self._settle_s)
        return [RetirementBegun(launch.id, launch.kind, launch.node, self._now - launch.idle)]

    def _finished(self, launch: Launched, resting: Resting) -> Iterable[ScaleDecision]:
        """The end of a drained node, once it is empty for long enough."""
        launch.emptied = self._now if launch.emptied is None else launch.emptied
        if self._now < launch.emptied + self._settle_s:
            self.due.append(launch.emptied + self._settle_s)
            return []
        if not launch.wrong:
            return [self._ended(launch, NodeRetired(launch.id, launch.kind, launch.node))]
        rest = resting.of(launch.kind, self._now)
        retry = self._now if rest is None else rest.until
        return [self._ended(launch, LaunchEnded(launch.id, launch.kind, launch.wrong, retry))]

    def _ended(self, launch: Launched, decision: ScaleDecision) -> ScaleDecision:
        launch.end, launch.ended = decision, self._now
        return decision

    def _owned_taints(self) -> dict[NodeId, str]:
        """For each node with a taint that belongs to a person or a job: that as a reason to keep it."""
        found: dict[NodeId, str] = {}
        for end in self._engine.taint_ends:
            if end.job:
                found[end.node] = f"its taint {end.key} belongs to the job {end.job}"
            elif end.owner:
                found[end.node] = f"its taint {end.key} belongs to {end.owner}"
        return found


def _wanted(engine: Engine, pending: Collection[str]) -> frozenset[NodeId]:
    """The nodes that some of this pending work could use if nothing else ran there."""
    found: dict[object, frozenset[NodeId]] = {}
    for id in pending:
        item = engine.item(id)
        for ask in (item,) if isinstance(item, Ask) else item.all_members:
            if ask.shape_key not in found:
                found[ask.shape_key] = engine.feasible(ask)
    return frozenset().union(*found.values())
