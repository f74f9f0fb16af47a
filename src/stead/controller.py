"""The one loop: a cluster's facts -> the engine -> commands to the cluster.

Rule: the controller contains no scheduling rule and knows no cluster. What it does is written to the
journal before it is done, so after a crash the journal says everything that may have happened.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from stead.engine import Engine
from stead.engine.decisions import BatchDecided, Decision, Evicted, GroupPlaced, Moved, Placed, Refused, Waiting
from stead.engine.facts import ClockAdvanced, Fact
from stead.errors import Invalid
from stead.journal import Journal, replay


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


class Controller:
    def __init__(self, cluster: Cluster, engine: Engine, journal: Journal | None = None) -> None:
        if journal is not None and journal.settings != engine.settings:
            raise Invalid(
                f"{journal.path} was begun with {journal.settings}, but the engine has {engine.settings};"
                " give both the same, for example Journal.open(path, engine.settings)"
            )
        self.cluster = cluster
        self.engine = engine
        self.journal = journal

    @classmethod
    def resumed(cls, cluster: Cluster, journal: Journal) -> Controller:
        """A controller that goes on where the journal ends.

        The last step was written but perhaps not carried out, so it is carried out (again).
        """
        controller = cls(cluster, replay(journal), journal)
        last = journal.last()
        for decision in last.decisions if last else ():
            controller._carry_out(decision)
        return controller

    def step(self) -> list[Decision]:
        """Once around: hear, decide, write down, act. Cheap when nothing happened."""
        now, facts = self.cluster.now(), list(self.cluster.facts())
        if not facts and not self._is_due(now):
            return []
        facts.insert(0, ClockAdvanced(now))
        self.engine.apply(*facts)
        decisions = self.engine.decide()
        if self.journal is not None:
            self.journal.append(facts, decisions)
        for decision in decisions:
            self._carry_out(decision)
        return decisions

    def _is_due(self, now: float) -> bool:
        """Whether time alone could change a decision by now: a deadline, an eviction, patience at its end."""
        moment = self.engine.next_moment
        return moment is not None and moment <= now

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
