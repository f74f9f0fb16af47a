"""The simulated cluster: a clock that jumps, a heap of what is to come, and work that runs for a while.

Rule: it decides nothing. Bound work runs at once and ends after its duration; a node that leaves takes
its work with it; evicted work is lost and waits again, with its whole duration before it. Nothing here
is random, so a scenario and its settings determine the run.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import count

from stead import solver
from stead.asks import Ask, AskId, Group
from stead.controller import Controller
from stead.engine import Engine
from stead.engine.decisions import BatchDecided, Decision, Evicted, GroupPlaced, Moved, Placed, Refused, Waiting
from stead.engine.facts import (
    AskEnded,
    AskLost,
    AskRunning,
    AskSubmitted,
    Fact,
    GroupEnded,
    GroupSubmitted,
    NodeLeft,
)
from stead.errors import Invalid
from stead.journal import Journal
from stead.node import NodeId
from stead.sim.scenario import Scenario

STEPS_AT_ONE_MOMENT_MAX = 1_000

STEPS_MAX = 20_000
"""Steps of a run without an end in which work only changes places: nothing comes, ends or is refused."""


_Coming = tuple[float, int, Fact, tuple[str, int] | None]  # when, in which turn, what, and which run it belongs to


@dataclass(frozen=True, slots=True)
class Happening:
    """One line of the timeline: something happened, or the engine decided something."""

    moment: float
    what: Fact | Decision


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended: the engine as it stands, everything that was known, and how it came about."""

    scenario: Scenario
    moment: float
    engine: Engine
    timeline: tuple[Happening, ...]
    submitted: dict[str, Ask | Group]
    ended: tuple[str, ...]
    refused: tuple[Refused, ...]


class SimCluster:
    """A `Cluster` in virtual time. `advance` moves its clock to the next moment at which something happens."""

    def __init__(self, scenario: Scenario) -> None:
        self.timeline: list[Happening] = []
        self.submitted: dict[str, Ask | Group] = {}
        self.running: dict[AskId, NodeId] = {}
        self.since: dict[str, float] = {}  # when work was submitted, or took its place
        self.ended: list[str] = []
        self.refused: list[Refused] = []
        self.progress = 0  # how often something happened that cannot happen for ever
        self._over: set[str] = set()  # asks and groups that ended or were refused
        self._durations = scenario.durations
        self._now = 0.0
        self._turns = count()
        self._runs: defaultdict[str, int] = defaultdict(int)  # which run of an ask or group is the present one
        self._members: dict[AskId, Ask] = {}
        self._group_of: dict[AskId, str] = {}
        self._due: list[Fact] = []
        self._coming: list[_Coming] = []
        for moment, fact in scenario.moments:
            self._plan(moment, fact)

    def advance(self, moment: float | None, until: float | None = None) -> bool:
        """Move to the next event, or to `moment` if that is sooner; False when there is none before `until`."""
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

    def hear(self, *facts: Fact, moment: float | None = None, instead_of: str = "") -> None:
        """Something happens that is not in the scenario: now, or at a moment to come; then, if it has a name, in
        place of what was to come under that name."""
        if instead_of:
            self._runs[instead_of] += 1
        for fact in facts:
            self._plan(self._now if moment is None else moment, fact, instead_of or None)

    def take_back(self, *facts: Fact) -> None:
        """These, told last, did not happen after all."""
        for fact in facts:
            last = max(number for number, happening in enumerate(self.timeline) if happening.what == fact)
            del self.timeline[last]

    # What the controller asks for.

    def now(self) -> float:
        return self._now

    def facts(self) -> Iterable[Fact]:
        facts, self._due = self._due, []
        return [fact for fact in facts if self._hear(fact)]

    def bind(self, placed: Placed | GroupPlaced) -> None:
        self._tell(placed)
        if isinstance(placed, Placed):
            self._start(placed.ask, placed.node)
            self._end_later(placed.ask, AskEnded(placed.ask))
        else:
            for member, node in placed.members:
                self._start(member, node)
            self._runs[placed.group] += 1
            self._end_later(placed.group, GroupEnded(placed.group))

    def evict(self, evicted: Evicted) -> None:
        self._tell(evicted)
        self._plan(self._now, AskLost(evicted.ask), evicted.ask)

    def refuse(self, refused: Refused) -> None:
        self._tell(refused)
        self.refused.append(refused)
        self._over.add(refused.id)
        self.progress += 1

    def explain(self, waiting: Waiting) -> None:
        self._tell(waiting)

    def move(self, moved: Moved) -> None:
        """Work that moves goes on where it was, and ends when it would have ended."""
        self._tell(moved)
        self.running[moved.ask] = moved.target

    def take_note(self, decided: BatchDecided) -> None:
        """How a batch was decided: nothing to do, but worth telling."""
        self._tell(decided)

    # What happens inside.

    def _plan(self, moment: float, fact: Fact, run: str | None = None) -> None:
        """`fact` will happen; if it belongs to a `run` of work, only if that run then still goes on."""
        heapq.heappush(self._coming, (moment, next(self._turns), fact, (run, self._runs[run]) if run else None))

    def _still_comes(self, coming: _Coming) -> bool:
        run = coming[3]
        return run is None or self._runs[run[0]] == run[1]

    def _tell(self, what: Fact | Decision) -> None:
        self.timeline.append(Happening(self._now, what))

    def _hear(self, fact: Fact) -> bool:
        """Keep our own books, as a real cluster does; False if it cannot happen (ended work cannot end again)."""
        match fact:
            case AskRunning():
                return True  # the timeline says that it was placed; that it also runs is no news
            case AskLost(ask) if ask not in self.running:
                return False
            case AskEnded(id) | GroupEnded(id) if not self._is_on(id):
                return False
            case AskSubmitted(ask):
                self.since[ask.id] = self._now
                self.submitted[ask.id] = self._members[ask.id] = ask
            case GroupSubmitted(group):
                self.since[group.id] = self._now
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
        self._tell(fact)
        return True

    def _is_on(self, id: str) -> bool:
        """It was submitted and is not over, and neither is its group."""
        known = id in self.submitted or id in self._members
        return known and id not in self._over and self._group_of.get(id) not in self._over

    def _end(self, id: str) -> None:
        self._runs[id] += 1
        self._over.add(id)
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
        """The work is gone before its end, and with it the end that was planned (for a group: of all of it)."""
        if self.running.pop(ask, None) is not None:
            self._runs[ask] += 1
            if ask in self._group_of:
                self._runs[self._group_of[ask]] += 1


def run(scenario: Scenario, until: float | None = None, journal: Journal | None = None) -> Outcome:
    """Play the scenario under the real controller until nothing more can happen, or until a moment."""
    until = scenario.until if until is None else until
    cluster, engine = SimCluster(scenario), Engine(scenario.settings, solver.found())
    controller = Controller(cluster, engine, journal)
    try:
        play(cluster, controller, until)
    except (MemoryError, OverflowError):
        raise Invalid(
            "the scenario is too large to be simulated here; take smaller counts and amounts, for example GPU: 8"
        ) from None
    # Time that passes while nothing happens, say to the deadline of work long done, is no part of the run.
    last = cluster.timeline[-1].moment if cluster.timeline else 0.0
    return Outcome(
        scenario,
        last if until is None else cluster.now(),
        engine,
        tuple(cluster.timeline),
        cluster.submitted,
        tuple(cluster.ended),
        tuple(cluster.refused),
    )


def play(cluster: SimCluster, controller: Controller, until: float | None) -> None:
    """Go on until nothing more can happen, or until a moment."""
    steps = steps_here = told = progress = 0
    before = 0.0
    while cluster.advance(controller.next_moment, until):
        for decision in controller.step():
            if isinstance(decision, BatchDecided):
                cluster.take_note(decision)
        steps_here = steps_here + 1 if cluster.now() == before else 0
        before = cluster.now()
        if steps_here > STEPS_AT_ONE_MOMENT_MAX:
            raise Invalid(f"the simulation does not get past {before:g} s: work is placed and evicted for ever")
        if cluster.progress > progress:
            steps = 0
        elif len(cluster.timeline) > told:
            steps += 1
        progress, told = cluster.progress, len(cluster.timeline)
        if steps > STEPS_MAX and until is None:
            raise Invalid(
                f"the simulation does not end by itself: up to {before:g} s work was placed and evicted {steps} times"
                " and nothing else happened; give it an end, for example until: 1h"
            )
