"""The simulated cluster: a clock that jumps from event to event, a heap of future events, and running work.

Rule: it decides nothing. Bound work runs at once and ends after its duration. When a node leaves, its work is lost.
Lost and evicted work is pending again and then runs for its full duration. All work can be preempted. Nothing is
random, so the scenario and its settings determine the run.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import count

from stead import solver
from stead.controller import Controller
from stead.engine.decisions import (
    Evicted,
    GroupPlaced,
    GroupReleased,
    Moved,
    NominationEnded,
    Placed,
    Preempted,
    Refused,
)
from stead.engine.engine import Engine
from stead.engine.explain.events import Happened
from stead.engine.facts import (
    AskEnded,
    AskLost,
    AskRunning,
    AskSubmitted,
    ClockAdvanced,
    Fact,
    GroupChanged,
    GroupEnded,
    GroupSubmitted,
    NodeJoined,
    NodeLeft,
)
from stead.errors import Invalid
from stead.journal import Journal
from stead.language.asks import Ask, AskId, Group
from stead.language.nodes import NodeId
from stead.sim.autoscaler import KindCount, SimAutoscaler
from stead.sim.scenario import Scenario

STEPS_AT_ONE_MOMENT_MAX = 1_000

STEPS_MAX = 20_000
"""A run without an end stops after this many steps in which work is only placed and evicted."""


_Coming = tuple[float, int, Fact, tuple[str, int] | None]  # time, order, fact, and the run of work it belongs to


@dataclass(frozen=True, slots=True)
class Happening:
    """One entry of the timeline: a fact or a decision."""

    moment: float
    what: Happened


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a simulation ended.

    Attributes:
        scenario: What was simulated.
        moment: The time at the end, in seconds.
        engine: The engine at the end.
        timeline: What happened, in order.
        submitted: Every ask and group, by id.
        ended: The ids of work that ended.
        refused: The refusals.
        kinds: What an autoscaler has launched, by kind of node.
    """

    scenario: Scenario
    moment: float
    engine: Engine
    timeline: tuple[Happening, ...]
    submitted: dict[str, Ask | Group]
    ended: tuple[str, ...]
    refused: tuple[Refused, ...]
    kinds: tuple[KindCount, ...] = ()


def _preemptible(fact: Fact) -> Fact:
    """The same, with work that may be evicted for work of a higher priority."""
    match fact:
        case AskSubmitted(ask):
            return AskSubmitted(replace(ask, preemptible=True))
        case GroupSubmitted(group):
            return GroupSubmitted(_all_preemptible(group))
        case GroupChanged(group):
            return GroupChanged(_all_preemptible(group))
        case _:
            return fact


def _all_preemptible(group: Group) -> Group:
    alternatives = (tuple(replace(ask, preemptible=True) for ask in members) for members in group.alternatives)
    return replace(group, alternatives=tuple(alternatives))


class SimCluster:
    """A `Cluster` in virtual time. `advance` moves its clock to the next event."""

    def __init__(self, scenario: Scenario) -> None:
        self.timeline: list[Happening] = []
        self.submitted: dict[str, Ask | Group] = {}
        self.running: dict[AskId, NodeId] = {}
        self.since: dict[str, float] = {}  # when work was submitted or placed
        self.ended: list[str] = []
        self.refused: list[Refused] = []
        self.progress = 0  # counts events that cannot repeat forever
        self._finished: set[str] = set()  # asks and groups that ended or were refused
        self._durations = scenario.durations
        self._now = 0.0
        self._turns = count()
        self._runs: defaultdict[str, int] = defaultdict(int)  # the number of the current run of an ask or group
        self._ending: dict[str, int] = {}  # the run of each group whose end is planned
        self._members: dict[AskId, Ask] = {}
        self._group_of: dict[AskId, str] = {}
        self._due: list[Fact] = []
        self._coming: list[_Coming] = []
        for moment, fact in scenario.moments:
            self._plan(moment, _preemptible(fact))

    def advance(self, moment: float | None, until: float | None = None) -> bool:
        """Move to the next event, or to `moment` if that is earlier; False if there is none before `until`."""
        while self._coming and not self._still_comes(self._coming[0]):
            heapq.heappop(self._coming)
        moments = [self._coming[0][0]] if self._coming else []
        if moment is not None:
            moments.append(max(moment, self._now))
        if not moments or (until is not None and min(moments) > until):
            self._now = max(self._now, until or 0.0)
            return False
        self._now = max(self._now, min(moments))
        while self._coming and self._coming[0][0] <= self._now:
            coming = heapq.heappop(self._coming)
            if self._still_comes(coming):
                self._due.append(coming[2])
        return True

    def inject(self, *facts: Fact) -> None:
        """Make facts happen now that are not in the scenario."""
        for fact in facts:
            self._plan(self._now, fact)

    # The `Cluster` protocol.

    def now(self) -> float:
        return self._now

    def facts(self) -> Iterable[Fact]:
        facts, self._due = self._due, []
        return [fact for fact in facts if self._record(fact)]

    def bind(self, placed: Placed | GroupPlaced) -> None:
        if isinstance(placed, Placed):
            self._start(placed.ask, placed.node)
            self._end_later(placed.ask, AskEnded(placed.ask))
        else:
            for member, node in placed.members:
                self._start(member, node)
            if self._ending.get(placed.group) != self._runs[placed.group]:  # else only more of its members start
                self._runs[placed.group] += 1
                self._ending[placed.group] = self._runs[placed.group]
                self._end_later(placed.group, GroupEnded(placed.group))

    def evict(self, evicted: Evicted) -> None:
        self._plan(self._now, AskLost(evicted.ask), evicted.ask)

    def preempt(self, preempted: Preempted) -> None:
        for victim in preempted.victims:
            self._plan(self._now, AskLost(victim), victim)

    def end_nomination(self, ended: NominationEnded) -> None:
        """Nobody outside the engine keeps places."""

    def release(self, released: GroupReleased) -> None:
        for member in released.members:
            self._plan(self._now, AskLost(member), member)

    def refuse(self, refused: Refused) -> None:
        self.refused.append(refused)
        self._finished.add(refused.id)
        self.progress += 1

    def tell(self, happened: Sequence[Happened]) -> None:
        """Add the step to the timeline, without `ClockAdvanced` and `AskRunning`."""
        news = (what for what in happened if not isinstance(what, ClockAdvanced | AskRunning))
        self.timeline += [Happening(self._now, what) for what in news]

    def move(self, moved: Moved) -> None:
        """Moved work continues without a restart and ends when it would have ended."""
        self.running[moved.ask] = moved.target

    # What happens inside.

    def _plan(self, moment: float, fact: Fact, run: str | None = None) -> None:
        """Schedule a fact; if it belongs to a `run` of work, it is dropped when that run has ended."""
        heapq.heappush(self._coming, (moment, next(self._turns), fact, (run, self._runs[run]) if run else None))

    def _still_comes(self, coming: _Coming) -> bool:
        run = coming[3]
        return run is None or self._runs[run[0]] == run[1]

    def _record(self, fact: Fact) -> bool:
        """Update the cluster's own state; False if the fact is impossible (ended work cannot end again)."""
        match fact:
            case AskRunning():
                return True
            case AskLost(ask) if ask not in self.running:
                return False
            case AskEnded(id) | GroupEnded(id) if not self._is_active(id):
                return False
            case AskSubmitted(ask):
                self.since[ask.id] = self._now
                self.submitted[ask.id] = self._members[ask.id] = ask
            case GroupSubmitted(group) | GroupChanged(group):
                self.since.setdefault(group.id, self._now)
                self.submitted[group.id] = group
                for member in (member for members in group.alternatives for member in members):
                    self._members[member.id] = member
                    self._group_of[member.id] = group.id
            case NodeLeft(node):
                for ask in [ask for ask, where in self.running.items() if where == node]:
                    self._stop(ask)
            case AskEnded(ask):
                self.running.pop(ask, None)
                self._end(ask)
            case GroupEnded(group):
                for ask in [ask for ask in self.running if self._group_of.get(ask) == group]:
                    self._stop(ask)
                self._end(group)
            case AskLost(ask):
                self._stop(ask)
        self.progress += not isinstance(fact, AskLost)
        return True

    def _is_active(self, id: str) -> bool:
        """Whether it was submitted, and neither it nor its group has ended."""
        known = id in self.submitted or id in self._members
        return known and id not in self._finished and self._group_of.get(id) not in self._finished

    def _end(self, id: str) -> None:
        self._runs[id] += 1
        self._finished.add(id)
        self.ended.append(id)

    def _start(self, ask: AskId, node: NodeId) -> None:
        if self.running.get(ask) != node:
            self.running[ask] = node
            self.since[ask] = self._now
            self._runs[ask] += 1
            self._plan(self._now, AskRunning(self._members[ask], node), ask)

    def _end_later(self, id: str, ended: AskEnded | GroupEnded) -> None:
        if id in self._durations:
            self._plan(self._now + self._durations[id], ended, id)

    def _stop(self, ask: AskId) -> None:
        """Stop work before its end, and drop its scheduled end (of a member: the end of its group)."""
        if self.running.pop(ask, None) is not None:
            self._runs[ask] += 1
            if ask in self._group_of:
                self._runs[self._group_of[ask]] += 1


def run(scenario: Scenario, until: float | None = None, journal: Journal | None = None) -> Outcome:
    """Simulate a scenario in virtual time, with the real controller.

    Args:
        scenario: What happens, and when.
        until: When to stop, in seconds; by default when the scenario says, or when nothing more can happen.
        journal: Where to record facts and decisions.

    Returns:
        How it ended.

    Raises:
        Invalid: The scenario is too large to be simulated.

    Example:
        ```python
        run(load("scenarios/demo.yaml")).engine.waiting
        ```
    """
    until = scenario.until if until is None else until
    cluster, engine = SimCluster(scenario), Engine(scenario.settings, solver.found())
    controller = Controller(cluster, engine, journal)
    autoscaler = autoscaler_of(scenario, cluster, controller)
    try:
        play(cluster, controller, until, autoscaler)
    except (MemoryError, OverflowError):
        raise Invalid(
            "the scenario is too large to simulate on this machine; use smaller counts and amounts, for example GPU: 8"
        ) from None
    # The run ends with its last event; a later time at which nothing happens (an old deadline) does not count.
    last = cluster.timeline[-1].moment if cluster.timeline else 0.0
    return Outcome(
        scenario,
        last if until is None else cluster.now(),
        engine,
        tuple(cluster.timeline),
        cluster.submitted,
        tuple(cluster.ended),
        tuple(cluster.refused),
        tuple(autoscaler.counts()) if autoscaler is not None else (),
    )


def autoscaler_of(scenario: Scenario, cluster: SimCluster, controller: Controller) -> SimAutoscaler | None:
    """The autoscaler that the scenario describes, if it describes one."""
    if scenario.scaling is None:
        return None
    taken = {fact.node.id for _, fact in scenario.moments if isinstance(fact, NodeJoined)}
    return SimAutoscaler(scenario.scaling, cluster, controller, taken)


def play(
    cluster: SimCluster, controller: Controller, until: float | None, autoscaler: SimAutoscaler | None = None
) -> None:
    """Run until nothing more can happen, or until a time."""
    steps = steps_here = seen = progress = 0
    before = 0.0
    while cluster.advance(_next_moment(controller, autoscaler), until):
        controller.step()
        if autoscaler is not None:
            autoscaler.step()
        steps_here = steps_here + 1 if cluster.now() == before else 0
        before = cluster.now()
        if steps_here > STEPS_AT_ONE_MOMENT_MAX:
            raise Invalid(f"the simulation does not get past {before:g} s: work is placed and evicted forever")
        if cluster.progress > progress:
            steps = 0
        elif len(cluster.timeline) > seen:
            steps += 1
        progress, seen = cluster.progress, len(cluster.timeline)
        if steps > STEPS_MAX and until is None:
            raise Invalid(
                f"the simulation does not end: up to {before:g} s work was placed and evicted {steps} times and"
                " nothing else happened; set an end, for example until: 1h"
            )


def _next_moment(controller: Controller, autoscaler: SimAutoscaler | None) -> float | None:
    moments = (controller.next_moment, None if autoscaler is None else autoscaler.next_moment)
    return min((moment for moment in moments if moment is not None), default=None)
