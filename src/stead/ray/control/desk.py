"""The desk of a Ray cluster, inside its controller. Other processes use `stead.ray.remote_desk`.

Rule: a snapshot is the engine plus everything else in Ray's tables: actors and groups that Ray placed, pending demands
(equal ones as one, with a count), and what unlisted work uses. All of it becomes asks, so that the engine can predict
what a change does to it.
"""

from __future__ import annotations

import hashlib
import pickle
import re
import secrets
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import ray

from stead.controller import Tally
from stead.engine.engine import Engine
from stead.engine.explain.events import Event, event_of
from stead.engine.explain.explanations import Explanation
from stead.engine.facts import AskEnded, AskRunning, AskSubmitted, Fact, GroupEnded, GroupSubmitted
from stead.engine.scaling.decisions import ScaleDecision
from stead.engine.timing.taint_times import TaintEnd
from stead.errors import Invalid
from stead.journal import Journal
from stead.language.asks import Ask
from stead.language.nodes import Node
from stead.operate.audit import Audit, Author
from stead.operate.changes import Absent, NodeChange
from stead.operate.desk import Carried, Changes, Desk, LocalDesk, listed
from stead.operate.history import Replayed, replay_decision
from stead.operate.scale import ScaleView
from stead.operate.snapshot import Known, KnownOwner, Snapshot
from stead.operate.what_if import Difference
from stead.ray.control.cluster import in_use, real_amounts, static_labels
from stead.ray.control.commands import Placing
from stead.ray.control.ray_work import RayWork
from stead.ray.control.slots import Slots
from stead.ray.control.state_store import StateStore
from stead.ray.control.why import Unlisted
from stead.ray.submit.messages import Recalled
from stead.ray.wire.folders import private
from stead.ray.wire.gcs import ControlStore, TaskRow
from stead.ray.wire.own_names import PREFIX, SLOT, TICKET, is_own_actor, is_own_group
from stead.ray.wire.tables import SHAPES_LISTED_MAX, ActorRow

FRESH_S = 0.5
"""How long a snapshot is used. A change creates a new one at once."""

TASKS_S = 1.0
"""How long a list of tasks is used. Owners report their tasks to Ray every second."""

JOBS_S = 5.0
"""How long the list of jobs is used. Names of jobs do not change, so only the running state can be this old."""

EVENTS_COUNTED = 10_000
"""Maximum number of events counted in one pass."""

DASHBOARD = re.compile(r"([A-Za-z0-9.-]+|\[[0-9a-fA-F:.]+\]):[0-9]{1,5}")

NOTHING_RECALLED = Recalled()

Kind = tuple[Any, ...]


class Within(Protocol):
    """What the desk needs from its controller."""

    def carry_out(self, changes: Sequence[NodeChange]) -> Sequence[str]: ...
    def await_node(self, id: str) -> None: ...


class RayDesk(LocalDesk):
    """The desk inside the controller, which counts its decisions in `tally`. Its audit log is beside the journal."""

    def __init__(
        self,
        controller: Within,
        lock: threading.RLock,
        work: RayWork,
        state_store: StateStore,
        tally: Tally,
        folder: Path,
    ) -> None:
        super().__init__(Audit(private(folder / "audit.sqlite")))
        self._controller, self._lock, self._folder = controller, lock, folder
        self._work, self._state_store = work, state_store
        self._title = work.tables.address
        self._store = ControlStore(self._title)
        self._unlisted = Unlisted(work, self._store, state_store)
        self._looking, self._packing = threading.Lock(), threading.Lock()
        self._tally, self._counted = tally, Tally()
        self._evicted, self._last_event = 0, -1
        self._made: tuple[float, Snapshot] | None = None
        self._packed: tuple[str, Snapshot, bytes] | None = None
        self._first_seen: dict[str, float] = {}
        self._jobs_seen: tuple[float, tuple[Mapping[str, KnownOwner], Mapping[str, str]]] = (-JOBS_S, ({}, {}))
        self._tasks_seen: tuple[float, tuple[Sequence[TaskRow], Sequence[TaskRow]]] = (0.0, ((), ()))

    def now(self) -> float:
        return time.time()

    def ends(self) -> Iterable[TaintEnd]:
        with self._lock:
            return self._work.placing.taint_ends

    def events(self, after: int, limit: int) -> Sequence[Event]:
        return self._state_store.events(after, limit)

    def report_scale(self, view: ScaleView, decisions: Sequence[ScaleDecision]) -> None:
        """If the call is repeated because a controller was killed, its events may already exist. From the first report
        on, all new work obeys taints and drains: nodes may come with taints, and every node may be drained."""
        if not self._state_store.marked("bound"):
            self._state_store.mark("bound", "yes")
        with self._lock:
            titles = self._work.placing.titles
            events = [event_of(each, self.now(), titles) for each in decisions]
        if is_called_again():
            known = {(each.kind, each.subject, each.text) for each in self.events(-EVENTS_COUNTED, EVENTS_COUNTED)}
            events = [each for each in events if (each.kind, each.subject, each.text) not in known]
        for event in events:
            self._state_store.add_event(event)
        super().report_scale(view, decisions)

    def replay(self, ask: str = "", at: float | None = None) -> Replayed:
        with Journal.reading(self._folder / "journal.sqlite") as journal:
            return replay_decision(journal, self.snapshot().work_id(ask), at)

    def blast(self, *changes: NodeChange) -> Difference:
        return super().blast(*self._meant(changes))

    def change(self, changes: Changes, author: Author) -> Carried:
        return super().change(self._meant(listed(changes)), author)

    def _meant(self, changes: Sequence[NodeChange]) -> list[NodeChange]:
        """The changes with full node ids. If the call is repeated because a controller was killed, what it removes may
        already be gone."""
        found = [replace(change, node=self._find(change.node).id) for change in changes]
        self.expire_snapshot()
        again = is_called_again()
        return [replace(change, missing_ok=True, overwrite=True) for change in found] if again else found

    def _find(self, name: str) -> Node:
        """The node with this id or name. It may have just joined."""
        try:
            return self.snapshot().find(name)
        except Absent:
            self._controller.await_node(name)
            self.expire_snapshot()
            return self.snapshot().find(name)

    def check(self, change: NodeChange, node: Node) -> None:
        super().check(change, node)
        for key in (*change.labels, *change.unlabels):
            if key.startswith("ray.io/"):
                raise Invalid(
                    f"label {key!r} cannot change while a node runs, because Ray itself matches it; "
                    f"set it when the node starts, or use a key of your own, for example 'zone'"
                )
        if change.until_job and change.until_job not in self._work.tables.live_jobs():
            raise Invalid(
                f"until_job {change.until_job!r} is not a running job; use ray.get_runtime_context().get_job_id()"
            )

    def carry_out(self, changes: Sequence[NodeChange]) -> Sequence[str]:
        unconfirmed = self._controller.carry_out(changes)
        self.expire_snapshot()
        return unconfirmed

    def why(self, id: str, recalled: Recalled = NOTHING_RECALLED) -> Explanation:
        """Answered from a snapshot. If even a new one does not list the work, `Unlisted` answers."""
        if recalled.ask is not None and self._work.recall(id, recalled.ask):
            self.expire_snapshot()
        snapshot = self.snapshot()
        if not snapshot.rows.knows(snapshot.work_id(id)):
            self.expire_snapshot()
            snapshot = self.snapshot()
        found = snapshot.work_id(id)
        if snapshot.rows.knows(found) and not recalled.has_ended:
            return snapshot.why(found)
        return self._unlisted.why(found, snapshot, recalled)

    def why_refused(self, ask: Ask) -> Explanation:
        """Why work is pending whose deadline has passed."""
        snapshot = self.snapshot()
        return snapshot.why(ask.id) if snapshot.rows.knows(ask.id) else snapshot.engine.explain(ask)

    def snapshot(self) -> Snapshot:
        with self._looking:
            made = self._made
            if made is None or time.monotonic() - made[0] > FRESH_S:
                self._made = made = (time.monotonic(), self._look())
            return made[1]

    def packed(self, held: str) -> tuple[str, bytes]:
        """The current snapshot and its tally for another process, with a name for this version; only the name if the
        process already holds it."""
        snapshot = self.snapshot()
        with self._packing:
            if self._packed is None or self._packed[1] is not snapshot:
                content = pickle.dumps((snapshot, self._counted), pickle.HIGHEST_PROTOCOL)
                self._packed = (secrets.token_hex(8), snapshot, content)
            name, _, content = self._packed
        return name, b"" if name == held else content

    def resolved(self, changes: Sequence[NodeChange]) -> list[NodeChange]:
        """The changes with full node ids. Raises if they are not possible."""
        found = self._meant(changes)
        for change in found:
            self.check(change, self.snapshot().find(change.node))
        return found

    def expire_snapshot(self) -> None:
        """Make the next snapshot start after this moment, even if one is being created."""
        with self._looking:
            self._made = None

    def _look(self) -> Snapshot:
        tables = self._work.tables
        running, waiting = self._tasks()
        listed = Listed(running, waiting, tables.actors(), tables.groups())
        jobs, links = self._jobs()
        self._count_evictions()
        with self._lock:
            self._counted = replace(self._tally.copy(), evicted=self._evicted)
            everything = Everything(self._work, listed)
            owners = {each.owner for each in everything.known.values()}
            return Snapshot(
                everything.engine,
                time.time(),
                self._with_ages(everything.known),
                self.ends(),
                started={row.id: static_labels(row) for row in everything.status.nodes.values()},
                measured={
                    row.id: (real_amounts(row.total), real_amounts(row.available))
                    for row in everything.status.nodes.values()
                },
                title=self._title,
                kind="ray",
                owners={id: known for id, known in jobs.items() if id in owners},
                links=links,
                starting=everything.starting,
            )

    def _jobs(self) -> tuple[Mapping[str, KnownOwner], Mapping[str, str]]:
        looked, found = self._jobs_seen
        if time.monotonic() - looked > JOBS_S:
            tables = self._work.tables
            found = (tables.jobs(), dashboard_links(tables.dashboard()))
            self._jobs_seen = (time.monotonic(), found)
        return found

    def _count_evictions(self) -> None:
        """Count evictions from events since the controller started: the engine does not decide those of work Ray
        placed."""
        if self._last_event < 0:
            self._last_event = max((event.number for event in self._state_store.events(-1, 1)), default=0)
        for event in self._state_store.events(self._last_event, EVENTS_COUNTED):
            self._last_event = event.number
            self._evicted += event.count if event.kind == "evicted" else 0

    def _with_ages(self, known: Mapping[str, Known]) -> dict[str, Known]:
        """Ray does not report when groups and counted work started, so their age counts from when they were first
        seen."""
        self._first_seen = {id: self._first_seen.get(id, time.time()) for id in known}
        return {
            id: replace(each, since=self._first_seen[id]) if each.since is None else each for id, each in known.items()
        }

    def _tasks(self) -> tuple[Sequence[TaskRow], Sequence[TaskRow]]:
        looked, found = self._tasks_seen
        if time.monotonic() - looked > TASKS_S:
            found = (self._store.tasks("RUNNING"), self._store.tasks("PENDING_NODE_ASSIGNMENT"))
            self._tasks_seen = (time.monotonic(), found)
        return found


@dataclass(frozen=True)
class Listed:
    """What Ray's tables list individually, read before the lock is taken."""

    running: Sequence[TaskRow]
    waiting: Sequence[TaskRow]
    actors: Sequence[ActorRow]
    groups: Mapping[str, Mapping[str, Any]]


class Everything:
    """The engine's own work and all other work in Ray's tables, in one engine."""

    def __init__(self, work: RayWork, listed: Listed) -> None:
        self._work, placing = work, work.placing
        self.status = work.tables.status()
        self.known: dict[str, Known] = {}
        self.starting: list[str] = []
        self._facts: list[Fact] = []
        self._mine = {node: list(amounts) for node, amounts in placing.mine(self.status, slots=False).items()}
        self._lives = placing.ticketed.lives
        self._demands = [row for row in self.status.pending if not row.of_a_group]
        self._wait = Counter[Kind]()
        for row in self._demands:
            self._wait[_kind_of(row.resources)] += row.count
        self._taken: Counter[Kind] = Counter()  # the demands that are listed individually
        self._starts = {row.id: row for row in listed.waiting if row.is_actor}
        self._in_slots: Counter[tuple[str, str]] = Counter()  # by node and name, the tasks that are listed individually
        self._actors(listed.actors)
        self._tasks(listed)
        self._groups(listed.groups)
        self._rest()
        self._slots(placing.slots)
        for id, life in self._lives.items():
            self.known.setdefault(id, Known(life.what.kind, owner=life.what.job))
        self.engine: Engine = placing.engine_alone()
        self._decided_groups(placing)
        self.engine.apply(*self._facts)
        self.engine.apply(*in_use(self.status, self._mine, placing.plugged))

    def _actors(self, rows: Iterable[ActorRow]) -> None:
        for row in rows:
            if is_own_actor(row.namespace):
                continue
            start = self._starts.get(row.id)
            since = row.since if row.state == "ALIVE" else start.since if start else None
            self.known[row.id] = Known("actor", row.name or row.class_name, row.job_id, since, inside=row.group)
            if row.id in self._lives:
                continue
            self._facts.append(AskEnded(row.id))  # replaces what the engine knows from work that names it
            ask, kind = self._work.ask_of(row), _kind_of(row.resources)
            if row.state == "ALIVE":
                self._runs(ask, row.node_id)
            else:
                self._facts.append(AskSubmitted(ask))
                if self._left(kind) <= 0 and len(self._demands) < SHAPES_LISTED_MAX:
                    self.starting.append(row.id)  # it has a node, and its process starts
                self._taken[kind] += 1

    def _tasks(self, listed: Listed) -> None:
        """Running tasks, and as many pending ones as the scheduler counts: its count is always up to date."""
        for row in listed.running:
            if not row.is_actor and row.node_id in self.status.nodes and self._is_news(row):
                self._runs(self._work.ask_of(row), row.node_id)
                self._in_slots.update((row.node_id, name) for name in row.resources if name.startswith(SLOT))
        for row in listed.waiting:
            kind = _kind_of(row.resources)
            if row.is_actor or not self._left(kind) or not self._is_news(row):
                continue
            self._facts.append(AskSubmitted(self._work.ask_of(row)))
            self._taken[kind] += 1

    def _is_news(self, row: TaskRow) -> bool:
        """Whether the engine does not have the task yet."""
        self.known[row.id] = Known("task", row.name, row.job_id, row.since, inside=row.group)
        return row.id not in self._lives

    def _left(self, kind: Kind) -> int:
        return self._wait[kind] - self._taken[kind]

    def _runs(self, ask: Ask, node: str) -> None:
        self._facts.append(AskRunning(ask, node))
        self._mine.setdefault(node, []).append(ask.choices[0].resources)

    def _groups(self, rows: Mapping[str, Mapping[str, Any]]) -> None:
        for id, row in rows.items():
            if is_own_group(row["name"]):
                continue
            self.known[id] = Known("group", row["name"])
            if id in self._work.placing.groups.lives:
                continue
            group = self._work.group_of(id, row, whole=True)
            self._facts.append(GroupSubmitted(group))
            for member, index in zip(group.all_members, sorted(row["bundles"]), strict=True):
                node = row["bundles_to_node_id"].get(index)
                if node:
                    self._runs(member, node)

    def _decided_groups(self, placing: Placing) -> None:
        """Groups that the engine places. A group is pending until Ray has placed it, even if it is decided."""
        waiting = {*self.engine.waiting}
        for id, life in list(placing.groups.lives.items()):
            self.known[id] = Known("group", life.asked.name, life.asked.job)
            if id not in waiting and not life.is_placed:
                self._facts += [GroupEnded(id), GroupSubmitted(life.asked.group)]

    def _slots(self, slots: Slots) -> None:
        """Running tasks in slots that are not listed get the id of their slot. Pending ones are demands."""
        self._facts += map(AskEnded, slots.pools.waiting_ids())
        for node, name, ids, used in slots.pools.in_use():
            self._facts += map(AskEnded, ids)
            for id in ids[self._in_slots[node, name] : used]:
                self._runs(replace(slots.pools[name].shape.ask, id=id), node)
                self.known[id] = Known("task")

    def _rest(self) -> None:
        """Pending work that the scheduler counts and no table lists: equal demands as one."""
        for row in self._demands:
            kind = _kind_of(row.resources)
            listed = min(row.count, self._taken[kind])
            self._taken[kind] -= listed
            if listed == row.count or any(name.startswith(TICKET) for name in row.resources):
                continue
            id = f"demand-{hashlib.sha256(repr((kind, row.labels)).encode()).hexdigest()[:12]}"
            self._facts.append(AskSubmitted(self._work.ask_of_demand(row, id)))
            self.known[id] = Known("task", count=row.count - listed)


def _kind_of(resources: Mapping[str, float]) -> Kind:
    """The kind of a demand. An actor asks for two parts of its pass until it has started; that is the same kind."""
    names = sorted(name for name in resources if name.startswith(PREFIX))
    return (*names, *sorted(item for item in resources.items() if not item[0].startswith(PREFIX)))


def dashboard_links(address: str) -> dict[str, str]:
    """URLs of Ray's dashboard at HOST:PORT, with ``{id}`` as a placeholder; empty without a dashboard."""
    if not DASHBOARD.fullmatch(address):
        return {}
    pages = {"job": "jobs/{id}", "node": "cluster/nodes/{id}", "actor": "actors/{id}", "logs": "logs/?nodeId={id}"}
    return {kind: f"http://{address}/#/{page}" for kind, page in pages.items()}


_calls = threading.local()


@contextmanager
def called_again() -> Iterator[None]:
    """For a repeated call: the controller that was called before is gone."""
    _calls.is_again = True
    try:
        yield
    finally:
        _calls.is_again = False


def is_called_again() -> bool:
    """Whether this call is repeated because a controller died. It may already have been carried out."""
    if getattr(_calls, "is_again", False):
        return True
    return bool(ray._private.worker.global_worker.core_worker.get_current_task_attempt_number())


METHODS = frozenset(name for name in vars(Desk) if not name.startswith("_")) | {"packed", "resolved"}
"""Methods of the desk that other processes may call."""
