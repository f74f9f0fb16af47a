"""A simulated cluster that people can look at and change: a scenario that was played and then goes on.

Rule: it is the simulator's own cluster under the real controller; changes reach it as facts, like events of the
scenario. After the scenario was played, virtual time goes on with the clock on the wall, `speed` times as fast.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from stead import solver
from stead.asks import Ask, Group
from stead.controller import Controller, Tally
from stead.engine import Engine
from stead.engine.decisions import BatchDecided, GroupPlaced, Placed, Waiting
from stead.engine.facts import (
    AskSubmitted,
    Fact,
    GroupSubmitted,
    NodeDrained,
    NodeJoined,
    NodeLabelled,
    NodeLeft,
    NodeTainted,
    NodeUntainted,
)
from stead.errors import Invalid, Unwritable
from stead.journal import Journal
from stead.labelling import Labels
from stead.node import Node
from stead.operate.audit import Audit
from stead.operate.changes import NodeChange
from stead.operate.desk import LocalDesk
from stead.operate.history import Replayed, replay_decision
from stead.operate.snapshot import Known, Snapshot
from stead.operate.views import Event, TaintEnd
from stead.sim.cluster import Happening, SimCluster, play
from stead.sim.report import sentence
from stead.sim.scenario import Scenario

WORDS = (NodeDrained, NodeLabelled, NodeTainted, NodeUntainted, Waiting)
"""What happens, or is said, and by itself moves no work."""


class SimDesk(LocalDesk):
    """The desk of a scenario. Its files (journal and audit) are in `folder`; its moment 0 is `began`, else such that
    the end of the scenario is now."""

    def __init__(
        self,
        scenario: Scenario,
        folder: Path,
        until: float | None = None,
        speed: float = 1.0,
        began: float | None = None,
    ) -> None:
        super().__init__(Audit(folder / "audit.sqlite"))
        self._journal_path = folder / "journal.sqlite"
        self._lock = threading.RLock()
        self._scenario, self._speed = scenario, speed
        self._cluster = SimCluster(scenario)
        self._journal = Journal.open(self._journal_path, scenario.settings)
        self._controller = Controller(self._cluster, Engine(scenario.settings, solver.found()), self._journal)
        self._ends: dict[tuple[str, str, str], TaintEnd] = {}
        self._snapshot: Snapshot | None = None
        self._latest: Snapshot | None = None  # also when it is out of date
        self._known: dict[str, Known] = {}
        self._started: dict[str, Labels] = {}  # the labels with which each node joined
        self._heard = 0  # so much of the timeline is in them
        self._moved = True  # whether more happened since the latest snapshot than changes of nodes' words
        play(self._cluster, self._controller, scenario.until if until is None else until)
        self._began = time.time() - self._cluster.now() if began is None else began
        self._went_on = time.monotonic()

    def now(self) -> float:
        return self._began + self._cluster.now()

    @property
    def tally(self) -> Tally:
        """What was decided since the scenario began, as counts."""
        with self._lock:
            return self._controller.tally.copy()

    def _go_on(self) -> None:
        """Let virtual time catch up with the clock on the wall."""
        passed = (time.monotonic() - self._went_on) * self._speed
        self._went_on = time.monotonic()
        told = len(self._cluster.timeline)
        play(self._cluster, self._controller, self._cluster.now() + passed)
        if len(self._cluster.timeline) != told:
            self._snapshot = None

    def snapshot(self) -> Snapshot:
        with self._lock:
            with suppress(Unwritable):  # what was written stands; time goes on when there is room again
                self._go_on()
            if self._snapshot is None:
                self._hear()
                before = None if self._moved else self._latest
                engine, known = self._controller.engine.fork(), {} if before else dict(self._known)
                self._snapshot = self._latest = Snapshot(
                    engine, self.now(), known, self.ends(), self._started, title=self._scenario.title, before=before
                )
                self._moved = False
            return self._snapshot

    def _hear(self) -> None:
        """Learn from what happened since the last time."""
        heard, self._heard = self._cluster.timeline[self._heard :], len(self._cluster.timeline)
        for happening in heard:
            self._moved = self._moved or not isinstance(happening.what, WORDS)
            match happening.what:
                case NodeUntainted(node, key, effect):
                    for end in [end for end in self._ends if end[:2] == (node, key)]:
                        if effect is None or end[2] == effect.value:
                            del self._ends[end]
                case NodeJoined(Node(id, labels=labels)):
                    self._started[id] = labels
                case NodeLeft(node):
                    self._ends = {end: said for end, said in self._ends.items() if end[0] != node}
                case AskSubmitted(Ask(id)) | GroupSubmitted(Group(id)) | Placed(id) | GroupPlaced(id):
                    item = self._cluster.submitted[id]
                    self._known[id] = Known(owner=item.owner, since=self._since(id))

    def _since(self, id: str) -> float | None:
        moment = self._cluster.since.get(id)
        return None if moment is None else self._began + moment

    def ends(self) -> Iterable[TaintEnd]:
        with self._lock:
            return [*self._ends.values()]

    def check(self, change: NodeChange, node: Node) -> None:
        super().check(change, node)
        if change.until_job:
            raise Invalid("a simulation has no jobs, so a taint cannot end with one; give a time, for example 2h")

    def carry_out(self, changes: Sequence[NodeChange]) -> Sequence[str]:
        with self._lock:
            self._go_on()
            nodes = self._controller.engine.nodes
            for change in changes:
                if change.node not in nodes:
                    raise Invalid(f"node {change.node} is gone")
            self._tell([fact for change in changes for fact in change.facts(nodes[change.node])])
            now = self._cluster.now()
            for change in changes:
                for taint in change.taints:
                    key = (change.node, taint.key, taint.effect.value)
                    gone = () if change.for_s is None else (NodeUntainted(change.node, taint.key, taint.effect),)
                    self._cluster.hear(*gone, moment=now + (change.for_s or 0.0), instead_of=" ".join(key))
            self._hear()
            for change in changes:
                until = None if change.for_s is None else self._began + now + change.for_s
                for taint in change.taints:
                    key = (change.node, taint.key, taint.effect.value)
                    self._ends[key] = TaintEnd(*key, self._began + now, until, "", change.owner)
            self._snapshot = None
            return ()

    def _tell(self, facts: Sequence[Fact]) -> None:
        """Let it happen now; if it cannot be written down, it did not happen."""
        self._cluster.hear(*facts)
        try:
            play(self._cluster, self._controller, self._cluster.now())
        except Unwritable:
            if self._controller.take_back(*facts):
                self._cluster.take_back(*facts)
                raise

    def events(self, after: int, limit: int) -> Sequence[Event]:
        with self._lock:
            with suppress(Unwritable):
                self._go_on()
            chosen = self._cluster.timeline[after : after + limit]
            return [self._event(number, each) for number, each in enumerate(chosen, start=after + 1)]

    def _event(self, number: int, happening: Happening) -> Event:
        subject, words = sentence(happening.what)
        kind = "batch" if isinstance(happening.what, BatchDecided) else words.partition(" ")[0].rstrip(":")
        return Event(number, self._began + happening.moment, kind, subject, words)

    def replay(self, ask: str = "", at: float | None = None) -> Replayed:
        with Journal.reading(self._journal_path) as journal:
            found = replay_decision(journal, ask, None if at is None else at - self._began)
        return replace(found, moment=self._began + found.moment)

    def close(self) -> None:
        self._journal.close()
        self._audit.close()
