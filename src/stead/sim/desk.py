"""A simulated cluster that people can inspect and change: a scenario that has run and then continues in real time.

Rule: it is the simulator's cluster under the real controller; changes reach it as facts, like events of the scenario.
After the scenario, virtual time follows the wall clock, `speed` times as fast.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from stead import solver
from stead.controller import Controller, Tally
from stead.engine.decisions import GroupPlaced, Placed, TaintExpired, Waiting
from stead.engine.engine import Engine
from stead.engine.explain.events import Event, event_of
from stead.engine.facts import (
    AskSubmitted,
    Fact,
    GroupSubmitted,
    NodeDrained,
    NodeJoined,
    NodeLabelled,
    NodeTainted,
    NodeUntainted,
)
from stead.engine.timing.taint_times import TaintEnd
from stead.errors import Invalid, Unwritable
from stead.journal import Journal
from stead.language.asks import Ask, Group
from stead.language.labels import Labels
from stead.language.nodes import Node
from stead.operate.audit import Audit
from stead.operate.changes import Absent, NodeChange
from stead.operate.desk import LocalDesk
from stead.operate.history import Replayed, replay_decision
from stead.operate.scale import Proposing, ScaleView, scale_view
from stead.operate.snapshot import Known, Snapshot
from stead.sim.cluster import SimCluster, autoscaler_of, play
from stead.sim.scenario import Scenario
from stead.text import short_id

WORDS = (NodeDrained, NodeLabelled, NodeTainted, NodeUntainted, TaintExpired, Waiting)
"""Facts and decisions that place or remove no work."""


class SimDesk(LocalDesk):
    """The desk of a scenario. Its journal and audit are files in `folder`. `began` is time 0 of the scenario on the
    wall clock; by default it is chosen so that the scenario ends now."""

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
        self._autoscaler = autoscaler_of(scenario, self._cluster, self._controller)
        self._proposing = Proposing()
        self._snapshot: Snapshot | None = None
        self._latest: Snapshot | None = None  # may be out of date
        self._known: dict[str, Known] = {}
        self._started: dict[str, Labels] = {}  # the labels each node joined with
        self._read = 0  # the number of timeline entries read so far
        self._moved = True  # whether work was placed or removed since the latest snapshot
        self._play(scenario.until if until is None else until)
        self._began = time.time() - self._cluster.now() if began is None else began
        self._caught_up_at = time.monotonic()

    def _play(self, until: float | None) -> None:
        play(self._cluster, self._controller, until, self._autoscaler)

    def now(self) -> float:
        return self._began + self._cluster.now()

    @property
    def tally(self) -> Tally:
        """Counters of what was decided since the scenario began."""
        with self._lock:
            return self._controller.tally.copy()

    def scale(self) -> ScaleView | None:
        """The autoscaler of the scenario, or one of its own that has reported."""
        if self._autoscaler is None:
            return super().scale()
        with self._lock:
            with suppress(Unwritable):
                self._catch_up()
            found = self._autoscaler
            engine = self._controller.engine
            proposals = self._proposing.proposals(found.scaler, engine)
            view = scale_view(found.scaler, engine, found.title, self.now(), self._began, proposals)
            return replace(view, tallied=found.tallied)

    def _catch_up(self) -> None:
        """Advance virtual time to the wall clock."""
        passed = (time.monotonic() - self._caught_up_at) * self._speed
        self._caught_up_at = time.monotonic()
        before = len(self._cluster.timeline)
        self._play(self._cluster.now() + passed)
        if len(self._cluster.timeline) != before:
            self._snapshot = None

    def snapshot(self) -> Snapshot:
        with self._lock:
            with suppress(Unwritable):  # time continues when the disk can be written again
                self._catch_up()
            if self._snapshot is None:
                self._read_timeline()
                before = None if self._moved else self._latest
                engine, known = self._controller.engine.fork(), {} if before else dict(self._known)
                self._snapshot = self._latest = Snapshot(
                    engine, self.now(), known, self.ends(), self._started, title=self._scenario.title, before=before
                )
                self._moved = False
            return self._snapshot

    def _read_timeline(self) -> None:
        """Read what happened since the last call."""
        new, self._read = self._cluster.timeline[self._read :], len(self._cluster.timeline)
        for happening in new:
            self._moved = self._moved or not isinstance(happening.what, WORDS)
            match happening.what:
                case NodeJoined(Node(id, labels=labels)):
                    self._started[id] = labels
                case AskSubmitted(Ask(id)) | GroupSubmitted(Group(id)) | Placed(id) | GroupPlaced(id):
                    item = self._cluster.submitted[id]
                    self._known[id] = Known(owner=item.owner, since=self._since(id))

    def _since(self, id: str) -> float | None:
        moment = self._cluster.since.get(id)
        return None if moment is None else self._began + moment

    def ends(self) -> Iterable[TaintEnd]:
        """The ends of all taints, in wall-clock time."""
        with self._lock:
            return [self._on_the_wall(end) for end in self._controller.engine.taint_ends]

    def _on_the_wall(self, end: TaintEnd) -> TaintEnd:
        until = None if end.until is None else self._began + end.until
        return replace(end, since=self._began + end.since, until=until)

    def check(self, change: NodeChange, node: Node) -> None:
        super().check(change, node)
        if change.until_job:
            raise Invalid("a simulation has no jobs, so a taint cannot end with one; give a time, for example 2h")

    def carry_out(self, changes: Sequence[NodeChange]) -> Sequence[str]:
        with self._lock:
            self._catch_up()
            nodes = self._controller.engine.nodes
            for change in changes:
                if change.node not in nodes:
                    raise Absent(f"node {short_id(change.node)} has left the cluster")
            now = self._cluster.now()
            self._apply([fact for change in changes for fact in change.facts(nodes[change.node], now)])
            self._snapshot = None
            return ()

    def _apply(self, facts: Sequence[Fact]) -> None:
        """Apply facts now; if the journal cannot be written, drop them."""
        self._cluster.inject(*facts)
        try:
            self._play(self._cluster.now())
        except Unwritable:
            if self._controller.take_back(*facts):
                raise

    def events(self, after: int, limit: int) -> Sequence[Event]:
        with self._lock:
            with suppress(Unwritable):
                self._catch_up()
            timeline = self._cluster.timeline
            first = after if after >= 0 else max(0, len(timeline) + after)
            chosen = enumerate(timeline[first : first + limit], start=first + 1)
            names = self._controller.engine.titles
            events = (event_of(each.what, each.moment, names, number) for number, each in chosen)
            return [replace(event, at=self._began + event.at) for event in events if event is not None]

    def replay(self, ask: str = "", at: float | None = None) -> Replayed:
        with Journal.reading(self._journal_path) as journal:
            found = replay_decision(journal, ask, None if at is None else at - self._began)
        return replace(found, moment=self._began + found.moment)

    def close(self) -> None:
        self._journal.close()
        self._audit.close()
