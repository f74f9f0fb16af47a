"""Launched nodes that nobody uses: when to drain, when to end, and when to take them back.

Rule: a node is drained and labelled first, and ended in a later step, if it is still empty then. What is drained is in
the cluster, so a restart continues there. Only nodes that match an instance are touched.

A node that a person has drained is ended once it is idle for long enough, as if it took work; it is never uncordoned.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
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
from stead.planner.resting import Resting

RETIRING = "stead.dev/retiring"
"""The label of a node that the autoscaler drains, so that the next autoscaler continues after a crash. The value is the
id of the launch. Set it before the node is drained, and remove it after the node is uncordoned: a drained node without
the label was drained by a person."""

DECIDES_MAX = 1_000
"""The maximum number of calls of `Engine.decide` until a fork is settled."""


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


def settled(fork: Engine) -> Engine:
    """The same fork, with everything decided that can be decided now."""
    for _ in range(DECIDES_MAX):
        fork.decide()
        if fork.next_moment is None or fork.next_moment > fork.now:
            break
    return fork


def uncordoned(engine: Engine, nodes: Iterable[NodeId]) -> Engine:
    """A settled fork in which these nodes take work again."""
    fork = engine.fork()
    fork.apply(*(NodeDrained(node, False) for node in nodes))
    return settled(fork)


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
        self._nodes = engine.nodes
        busy = {*engine.placed.values(), *engine.used, *engine.nominated.values(), *engine.reserved}
        self._here = [launch for launch in launches if launch.node and not launch.is_going]
        for launch in self._here:
            since = now if launch.idle is None else launch.idle
            launch.idle = None if launch.node in busy else since
        alive = Counter(launch.kind for launch in launches if not launch.is_going)
        usable = Counter(launch.kind for launch in self._here if launch.counts and self._takes_work(launch))
        self._spare, self._surplus = Counter[str](), Counter[str]()
        for kind in alive:
            template = kinds.get(kind)
            self._spare[kind] = usable[kind] - (template.count_min if template is not None else 0)
            self._surplus[kind] = alive[kind] - (template.count_max if template is not None else 0)

    def _takes_work(self, launch: Launched) -> bool:
        return not self._nodes[launch.node].draining and launch.begun is None

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
        back: dict[NodeId, str] = {}
        for launch in retiring:
            if launch.idle is None:
                back[launch.node] = "work runs there"
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

    def retire(
        self, expected: Engine, unserved: Collection[str], resting: Resting
    ) -> tuple[list[ScaleDecision], tuple[Standing, ...]]:
        """Retirements that begin or end, and every launched node with the reason why it stays. Pending work that is
        `unserved` needs no node."""
        decisions: list[ScaleDecision] = []
        standing = []
        owners = self._owned_taints()
        wanted: frozenset[NodeId] | None = None
        for launch in sorted(self._here, key=self._order):
            node, kept, is_retiring = self._nodes[launch.node], "", False
            self._note_cordon(launch, node)
            if self._is_drained_here(launch):
                is_retiring = launch.cancelled is None
                decisions += self._finished(launch, resting) if is_retiring else ()
            elif RETIRING in node.labels and self._was_uncordoned(launch):
                launch.idle = None if launch.idle is None else self._now
                if self._is_time(launch.cancelled):
                    launch.cancelled = self._now
                    why = "somebody has uncordoned it"
                    decisions.append(RetirementCancelled(launch.id, launch.kind, node.id, why))
            elif launch.idle is not None and self._is_due(launch):
                if wanted is None:
                    wanted = _wanted(expected, unserved)
                kept = owners.get(node.id, "") or self._why_kept(launch, node, wanted)
                if not kept:
                    is_retiring = True
                    decisions += self._begun(launch, node)
            standing.append(Standing(launch.id, launch.kind, node.id, launch.idle, kept or launch.wrong, is_retiring))
        return decisions, tuple(standing)

    def _order(self, launch: Launched) -> tuple[bool, float, LaunchId]:
        """Nodes that are not what they should be go first, then those that are idle for longest."""
        return not launch.wrong, inf if launch.idle is None else launch.idle, launch.id

    def _note_cordon(self, launch: Launched, node: Node) -> None:
        """Forget what has taken effect, and what never will."""
        if not node.draining and RETIRING not in node.labels:
            launch.cancelled = None
            if launch.begun is not None and launch.idle is None and self._now >= launch.begun + REPEAT_S:
                launch.begun = None
        if not node.draining or launch.idle is None:
            launch.emptied = None

    def _was_uncordoned(self, launch: Launched) -> bool:
        """Whether its node has the label of a retirement that is not just being begun."""
        return launch.begun is None or self._now >= launch.begun + REPEAT_S

    def _is_due(self, launch: Launched) -> bool:
        """Whether it is idle for long enough. Nodes over the maximum, and those that are not what they should be, have
        no time."""
        assert launch.idle is not None
        at_once = bool(launch.wrong) or self._surplus[launch.kind] > 0
        moment = launch.idle + (0.0 if at_once else self._idle_s)
        self.due.append(moment)
        return self._now >= moment

    def _why_kept(self, launch: Launched, node: Node, wanted: Collection[NodeId]) -> str:
        """Why an idle node stays; empty if it can go."""
        if node.id in wanted and not launch.wrong:
            return "pending work may need it"
        if launch.counts and self._takes_work(launch) and self._spare[launch.kind] <= 0:
            return f"the minimum of its kind is {self._kinds[launch.kind].count_min}"
        return ""

    def _begun(self, launch: Launched, node: Node) -> Iterable[ScaleDecision]:
        assert launch.idle is not None
        if launch.counts and self._takes_work(launch):
            self._spare[launch.kind] -= 1
        self._surplus[launch.kind] -= 1
        if node.draining:  # by a person
            return [self._ended(launch, NodeRetired(launch.id, launch.kind, node.id))]
        if not self._is_time(launch.begun):
            return []
        launch.begun = self._now
        return [RetirementBegun(launch.id, launch.kind, node.id, self._now - launch.idle)]

    def _finished(self, launch: Launched, resting: Resting) -> Iterable[ScaleDecision]:
        """The end of a drained node, once it is empty for long enough."""
        self._surplus[launch.kind] -= 1
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


def _wanted(engine: Engine, unserved: Collection[str]) -> frozenset[NodeId]:
    """The nodes that some pending work could use if nothing else ran there, without that which is unserved."""
    found: dict[object, frozenset[NodeId]] = {}
    for id in engine.waiting:
        if id not in unserved:
            item = engine.item(id)
            for ask in (item,) if isinstance(item, Ask) else item.all_members:
                if ask.shape_key not in found:
                    found[ask.shape_key] = engine.feasible(ask)
    return frozenset().union(*found.values())
