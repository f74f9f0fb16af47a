"""The control loop: a cluster's facts -> the engine -> commands to the cluster.

Rule: the controller contains no scheduling rule and depends on no specific cluster. It writes each step to the journal
before it acts, so after a crash the journal holds everything that may have happened. If a step cannot be written, it is
dropped: nothing is carried out, and the engine returns to the state in the journal.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Protocol, runtime_checkable

from stead.engine.decisions import (
    BatchDecided,
    DeadlinePassed,
    Decision,
    Evicted,
    GroupPlaced,
    GroupReleased,
    Moved,
    NominationEnded,
    Placed,
    Preempted,
    Refused,
    TaintExpired,
    Waiting,
)
from stead.engine.engine import Engine
from stead.engine.facts import ClockAdvanced, Fact
from stead.errors import Invalid, Unwritable
from stead.journal import Journal, recover


class Cluster(Protocol):
    """What the controller needs from a cluster: Ray, Kubernetes or the simulator.

    Commands return at once. The result arrives later as a fact: `AskRunning` when bound work runs, `AskLost` when a
    bind failed or work was evicted. After a crash the controller repeats its last commands, so every command must be
    idempotent.
    """

    def now(self) -> float:
        """The time in seconds, on any clock that never goes back."""

    def facts(self) -> Iterable[Fact]:
        """What happened since the last call, in order."""

    def bind(self, placed: Placed | GroupPlaced) -> None:
        """Run the ask, or all members of the group, on the chosen nodes."""

    def evict(self, evicted: Evicted) -> None:
        """Stop the work; it may be placed again."""

    def preempt(self, preempted: Preempted) -> None:
        """Stop the victims to make room for other work. Report `AskEnding` for each, or `EvictionFailed`."""

    def end_nomination(self, ended: NominationEnded) -> None:
        """The work does not wait for this node any more."""

    def release(self, released: GroupReleased) -> None:
        """Take members of a group off their nodes, as far as the cluster can; they are placed again."""

    def refuse(self, refused: Refused) -> None:
        """Fail the work: it will not be placed."""

    def tell(self, happened: Sequence[Fact | Decision]) -> None:
        """Publish one step to users: its facts and its decisions. `event_of` turns them into events."""


@runtime_checkable
class MovesWork(Protocol):
    """A cluster that can move running work. The setting `moves` is allowed only on such a cluster."""

    def move(self, moved: Moved) -> None:
        """Run the work on the other node from now on."""


DECISION_BOUNDS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Upper bounds of the histogram buckets for decision times; one more bucket holds the rest."""

NO_REASON = "other"
"""The reason code if no node refuses the work: each member of a group fits, but not all of them together."""

TOO_FEW_MEMBERS = "too-few-members"
"""The reason code of a group that has fewer members than its minimum."""


@dataclass(slots=True)
class Tally:
    """Counters of what a controller has decided since it started.

    `placed`, `moved`, `evicted` and `preempted` count pieces of work; each member of a group counts. `refusals` counts,
    by reason code, how often work or a group was reported as pending or refused; several reasons count once each.
    `took` is a histogram of decision times, with the bucket bounds `DECISION_BOUNDS_S`.
    """

    placed: int = 0
    moved: int = 0
    evicted: int = 0
    preempted: int = 0
    refusals: dict[str, int] = field(default_factory=dict)
    took: list[int] = field(default_factory=lambda: [0] * (len(DECISION_BOUNDS_S) + 1))
    seconds: float = 0.0

    def count(self, decisions: Iterable[Decision], seconds: float) -> None:
        """Count the decisions of one step and the time they took."""
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
                case Preempted(victims=victims):
                    self.preempted += len(victims)
                case Waiting(asks):
                    codes = {each.reason.code for each in decision.refusals if each.nodes} or {_code_of(decision)}
                    self._refuse(codes, len(asks))
                case Refused(cause=cause):
                    self._refuse(["deadline-passed" if isinstance(cause, DeadlinePassed) else "node-unknown"])

    def _refuse(self, codes: Iterable[str], times: int = 1) -> None:
        for code in codes:
            self.refusals[code] = self.refusals.get(code, 0) + times

    def copy(self) -> Tally:
        """A copy that later steps do not change."""
        return replace(self, refusals=dict(self.refusals), took=list(self.took))


def _code_of(waiting: Waiting) -> str:
    return TOO_FEW_MEMBERS if waiting.more_members else NO_REASON


class Controller:
    """Runs the control loop, one `step` at a time, and counts decisions in `tally` (by default, a new one)."""

    def __init__(
        self, cluster: Cluster, engine: Engine, journal: Journal | None = None, tally: Tally | None = None
    ) -> None:
        if journal is not None and journal.settings != engine.settings:
            raise Invalid(
                f"{journal.path} was created with {journal.settings}, but the engine has {engine.settings};"
                " use the same settings for both, for example Journal.open(path, engine.settings)"
            )
        if engine.settings.moves and not isinstance(cluster, MovesWork):
            raise Invalid("this cluster cannot move running work; leave the setting `moves` at 0")
        self.cluster = cluster
        self.engine = engine
        self.journal = journal
        self.tally = Tally() if tally is None else tally
        self.has_failed = False
        """Whether the last step failed: the engine could not decide, or the journal could not be written."""
        self._is_ahead = False
        self._unwritten: list[Fact] = []

    @classmethod
    def resumed(
        cls, cluster: Cluster, journal: Journal, engine: Engine | None = None, tally: Tally | None = None
    ) -> Controller:
        """A controller that continues where the journal ends, with the engine recovered from it.

        The last step was written but perhaps not carried out, so its decisions are carried out again.
        """
        controller = cls(cluster, engine or recover(journal), journal, tally)
        last = journal.last()
        if last is not None:
            journal.keep(controller.engine.checkpoint())  # replay continues from this checkpoint
        for decision in last.decisions if last else ():
            controller._carry_out(decision)
        return controller

    def step(self) -> list[Decision]:
        """One turn of the loop: read facts, decide, write the journal, act. Cheap when nothing happened.

        If the journal cannot be written, the facts are kept and applied again in the next step.
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
        self.cluster.tell((*facts, *decisions))
        if self.journal is not None and self.journal.is_checkpoint_due:
            with suppress(Unwritable):  # the step itself is written; the next one tries again
                self.journal.keep(self.engine.checkpoint())
        return decisions

    def _decide(self, facts: list[Fact]) -> list[Decision]:
        """Decide and write the step to the journal; on failure, restore the engine."""
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
        """Restore the engine from the journal. Without a journal it keeps its state."""
        if self.journal is not None:
            self.engine.become(recover(self.journal))
        self._is_ahead = False

    def take_back(self, *facts: Fact) -> bool:
        """Drop facts that could not be written, after their sender got an error. Returns False if they were written."""
        if not all(fact in self._unwritten for fact in facts):
            return False
        for fact in facts:
            self._unwritten.remove(fact)
        return True

    def _is_due(self, now: float) -> bool:
        """Whether a deadline, an eviction or the end of `patience` is due."""
        moment = self.next_moment
        return moment is not None and moment <= now

    @property
    def next_moment(self) -> float | None:
        """When the next step is due if no fact arrives before; None if never."""
        return self.engine.now if self._unwritten else self.engine.next_moment

    def _carry_out(self, decision: Decision) -> None:
        match decision:
            case Placed() | GroupPlaced():
                self.cluster.bind(decision)
            case Evicted():
                self.cluster.evict(decision)
            case Preempted():
                self.cluster.preempt(decision)
            case NominationEnded():
                self.cluster.end_nomination(decision)
            case GroupReleased():
                self.cluster.release(decision)
            case Refused():
                self.cluster.refuse(decision)
            case Moved():
                assert isinstance(self.cluster, MovesWork), "settings allow moves only there"
                self.cluster.move(decision)
            case Waiting() | BatchDecided() | TaintExpired():
                pass  # published as events; the cluster has nothing to do
