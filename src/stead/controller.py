"""The one loop: a cluster's facts -> the engine -> commands to the cluster.

Rule: the controller contains no scheduling rule and knows no cluster. What it does is written to the journal before it
is done, so after a crash the journal says everything that may have happened. A step that cannot be written did not
happen: nothing is carried out, and the engine is again as the journal has it.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Protocol

from stead.engine import Engine
from stead.engine.decisions import (
    BatchDecided,
    DeadlinePassed,
    Decision,
    Evicted,
    GroupPlaced,
    Moved,
    Placed,
    Refused,
    Waiting,
)
from stead.engine.facts import ClockAdvanced, Fact
from stead.errors import Invalid, Unwritable
from stead.journal import Journal, recover


class Cluster(Protocol):
    """What the controller needs of a place where work runs: Ray, Kubernetes, the simulator.

    Commands return at once. Whether they worked arrives later as a fact: `AskRunning` when bound work
    runs, `AskLost` when a bind failed or work was evicted. After a crash the last commands come again,
    so each must do nothing when it is already done.
    """

    def now(self) -> float:
        """Seconds, on any clock that never goes back."""

    def facts(self) -> Iterable[Fact]:
        """What happened since the last call, in order."""

    def bind(self, placed: Placed | GroupPlaced) -> None:
        """Run the ask, or all members of the group, on the nodes chosen."""

    def evict(self, evicted: Evicted) -> None:
        """End the work; it may be placed again."""

    def refuse(self, refused: Refused) -> None:
        """Fail the work: it will not be placed."""

    def explain(self, waiting: Waiting) -> None:
        """Show why the work waits."""

    def move(self, moved: Moved) -> None:
        """Run the work on the other node from now on. Asked only of clusters whose settings allow moves."""


DECISION_BOUNDS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Upper bounds of the classes in which a tally counts how long decisions took; one more class has the rest."""

NO_REASON = "other"
"""The code under which work is counted that no single node refuses: the members of a group do not fit together."""


@dataclass(slots=True)
class Tally:
    """What a controller decided since it began, as counts that only grow.

    `placed`, `moved` and `evicted` count pieces of work, a group by its members. `refusals` count how often work, or a
    group, was told that it has to wait or will not run, by the code of the reason; several reasons count once each.
    `took` counts the steps by how long their decisions took, in classes with the bounds `DECISION_BOUNDS_S`.
    """

    placed: int = 0
    moved: int = 0
    evicted: int = 0
    refusals: dict[str, int] = field(default_factory=dict)
    took: list[int] = field(default_factory=lambda: [0] * (len(DECISION_BOUNDS_S) + 1))
    seconds: float = 0.0

    def count(self, decisions: Iterable[Decision], seconds: float) -> None:
        """Count what one step decided, in so many seconds."""
        self.took[bisect_left(DECISION_BOUNDS_S, seconds)] += 1
        self.seconds += seconds
        for decision in decisions:
            match decision:
                case Placed():
                    self.placed += 1
                case GroupPlaced(members=members):
                    self.placed += len(members)
                case Moved():
                    self.moved += 1
                case Evicted():
                    self.evicted += 1
                case Waiting(asks, refusals):
                    codes = {each.reason.code for each in refusals if each.nodes} or {NO_REASON}
                    self._refuse(codes, len(asks))
                case Refused(cause=cause):
                    self._refuse(["deadline-passed" if isinstance(cause, DeadlinePassed) else "node-unknown"])

    def _refuse(self, codes: Iterable[str], times: int = 1) -> None:
        for code in codes:
            self.refusals[code] = self.refusals.get(code, 0) + times

    def copy(self) -> Tally:
        """The counts of now, which nobody changes any more."""
        return replace(self, refusals=dict(self.refusals), took=list(self.took))


class Controller:
    """`tally` is what it counts in; its own, if none is given."""

    def __init__(
        self, cluster: Cluster, engine: Engine, journal: Journal | None = None, tally: Tally | None = None
    ) -> None:
        if journal is not None and journal.settings != engine.settings:
            raise Invalid(
                f"{journal.path} was begun with {journal.settings}, but the engine has {engine.settings};"
                " give both the same, for example Journal.open(path, engine.settings)"
            )
        self.cluster = cluster
        self.engine = engine
        self.journal = journal
        self.tally = Tally() if tally is None else tally
        self.has_failed = False
        """Whether the last step was not taken: the engine could not decide it, or the journal could not be written."""
        self._is_ahead = False
        self._unwritten: list[Fact] = []

    @classmethod
    def resumed(
        cls, cluster: Cluster, journal: Journal, engine: Engine | None = None, tally: Tally | None = None
    ) -> Controller:
        """A controller that goes on where the journal ends, with the engine recovered from it.

        The last step was written but perhaps not carried out, so it is carried out (again).
        """
        controller = cls(cluster, engine or recover(journal), journal, tally)
        last = journal.last()
        if last is not None:
            journal.keep(controller.engine.checkpoint())  # from here on, replay goes on with this engine
        for decision in last.decisions if last else ():
            controller._carry_out(decision)
        return controller

    def step(self) -> list[Decision]:
        """Once around: hear, decide, write down, act. Cheap when nothing happened.

        If the journal cannot be written, the facts are kept and heard again by the next step.
        """
        if self._is_ahead:
            self._go_back()
        now, facts = self.cluster.now(), list(self.cluster.facts())
        if not facts and not self._is_due(now):
            return []
        facts = [*self._unwritten, ClockAdvanced(now), *facts]
        decisions = self._decide(facts)
        for decision in decisions:
            self._carry_out(decision)
        if self.journal is not None and self.journal.is_checkpoint_due:
            with suppress(Unwritable):  # the step itself is written; the next one tries again
                self.journal.keep(self.engine.checkpoint())
        return decisions

    def _decide(self, facts: list[Fact]) -> list[Decision]:
        """Decide, and write it down; or be as before."""
        self._unwritten = []
        try:
            began = time.perf_counter()
            self.engine.apply(*facts)
            decisions = self.engine.decide()
            seconds = time.perf_counter() - began
            if self.journal is not None:
                self.journal.append(facts, decisions)
        except BaseException as error:
            if isinstance(error, Unwritable):
                self._unwritten = facts
            self.has_failed = self._is_ahead = True
            self._go_back()
            raise
        self.has_failed = False
        self.tally.count(decisions, seconds)
        return decisions

    def _go_back(self) -> None:
        """Make the engine again what the journal says; without a journal there is no way back."""
        if self.journal is not None:
            self.engine.become(recover(self.journal))
        self._is_ahead = False

    def take_back(self, *facts: Fact) -> bool:
        """Forget facts that could not be written, because whoever told them was told so. False: they are written."""
        if not all(fact in self._unwritten for fact in facts):
            return False
        for fact in facts:
            self._unwritten.remove(fact)
        return True

    def _is_due(self, now: float) -> bool:
        """Whether time alone could change a decision by now: a deadline, an eviction, patience at its end."""
        moment = self.next_moment
        return moment is not None and moment <= now

    @property
    def next_moment(self) -> float | None:
        """When the next step is due, if nothing happens before; None if it then never is."""
        return self.engine.now if self._unwritten else self.engine.next_moment

    def _carry_out(self, decision: Decision) -> None:
        match decision:
            case Placed() | GroupPlaced():
                self.cluster.bind(decision)
            case Evicted():
                self.cluster.evict(decision)
            case Refused():
                self.cluster.refuse(decision)
            case Waiting():
                self.cluster.explain(decision)
            case Moved():
                self.cluster.move(decision)
            case BatchDecided():
                pass  # news for people; nothing is to be done
