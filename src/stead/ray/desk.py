"""The desk of a Ray cluster, inside its controller. Other processes use `stead.ray.remote_desk`.

Rule: a snapshot is the engine and everything else that Ray's tables show: actors and groups that Ray placed by itself,
demands that wait (equal ones as one, with their count), and what is in use by work that no table lists. All of it
becomes asks, so that the engine can say what would become of it.
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
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import ray

from stead.asks import Ask, Group
from stead.controller import Tally
from stead.engine import Engine
from stead.engine.explain import Explanation
from stead.engine.facts import AskEnded, AskRunning, AskSubmitted, Fact, GroupSubmitted
from stead.journal import Journal
from stead.node import Node
from stead.operate.audit import Audit, Author
from stead.operate.changes import NodeChange
from stead.operate.desk import Carried, Changes, Desk, LocalDesk, listed
from stead.operate.history import Replayed, replay_decision
from stead.operate.snapshot import Known, KnownOwner, Snapshot
from stead.operate.views import Event, TaintEnd
from stead.operate.what_if import Difference
from stead.ray.attach import NAMESPACE
from stead.ray.cluster import in_use, real_amounts, static_labels
from stead.ray.folders import private
from stead.ray.gcs import ControlStore, TaskRow
from stead.ray.page import PREFIX, SLOT, TICKET
from stead.ray.placing import Placing
from stead.ray.slots import Slots
from stead.ray.tables import ActorRow, PendingRow, Tables

FRESH_S = 0.5
"""A snapshot is good for so long; a change makes a new one at once."""

TASKS_S = 1.0
"""Owners tell Ray of their tasks every second, so a look at them is good for as long."""

JOBS_S = 5.0
"""Names of jobs do not change; whether they run is told so late at most."""

EVENTS_COUNTED = 10_000
"""How many events one look counts at most."""

OWN_GROUPS = ("stead-plug", "stead-ticket", "stead-anchor")

DASHBOARD = re.compile(r"([A-Za-z0-9.-]+|\[[0-9a-fA-F:.]+\]):[0-9]{1,5}")

Kind = tuple[Any, ...]


class Within(Protocol):
    """What the desk needs of the controller it belongs to."""

    @property
    def placing(self) -> Placing: ...
    @property
    def tables(self) -> Tables: ...

    def locked(self) -> AbstractContextManager[Any]: ...
    def taint_ends(self) -> list[TaintEnd]: ...
    def events(self, after: int = 0, limit: int = 1000) -> list[Event]: ...
    def carry_out(self, changes: Sequence[NodeChange]) -> Sequence[str]: ...
    def check(self, change: NodeChange) -> None: ...
    def node_id(self, said: str) -> str: ...
    def why_id(self, id: str) -> Explanation: ...
    def ask_of(self, row: ActorRow | TaskRow) -> Ask: ...
    def ask_of_demand(self, row: PendingRow, id: str) -> Ask: ...
    def group_of(self, id: str, row: Mapping[str, Any], whole: bool) -> Group: ...


class RayDesk(LocalDesk):
    """Inside the controller, which counts its decisions in `tally`. Its audit is beside the journal."""

    def __init__(self, controller: Within, folder: Path, address: str) -> None:
        super().__init__(Audit(private(folder / "audit.sqlite")))
        self._controller, self._folder, self._title = controller, folder, address
        self._store = ControlStore(address)
        self._looking, self._packing = threading.Lock(), threading.Lock()
        self.tally, self._counted = Tally(), Tally()
        self._evicted, self._last_event = 0, -1
        self._made: tuple[float, Snapshot] | None = None
        self._packed: tuple[str, Snapshot, bytes] | None = None
        self._first_seen: dict[str, float] = {}
        self._jobs_seen: tuple[float, tuple[Mapping[str, KnownOwner], Mapping[str, str]]] = (-JOBS_S, ({}, {}))
        self._tasks_seen: tuple[float, tuple[Sequence[TaskRow], Sequence[TaskRow]]] = (0.0, ((), ()))

    def now(self) -> float:
        return time.time()

    def ends(self) -> Iterable[TaintEnd]:
        return self._controller.taint_ends()

    def events(self, after: int, limit: int) -> Sequence[Event]:
        return self._controller.events(after, limit)

    def replay(self, ask: str = "", at: float | None = None) -> Replayed:
        with Journal.reading(self._folder / "journal.sqlite") as journal:
            return replay_decision(journal, self.snapshot().work_id(ask), at)

    def blast(self, *changes: NodeChange) -> Difference:
        return super().blast(*self._meant(changes))

    def change(self, changes: Changes, author: Author) -> Carried:
        return super().change(self._meant(listed(changes)), author)

    def _meant(self, changes: Sequence[NodeChange]) -> list[NodeChange]:
        """The changes with whole ids of nodes, which may have joined just now. If Ray calls again because a controller
        was killed, what is to go may be gone."""
        found = [replace(change, node=self._controller.node_id(change.node)) for change in changes]
        self._look_anew()
        again = is_called_again()
        return [replace(change, missing_ok=True, overwrite=True) for change in found] if again else found

    def check(self, change: NodeChange, node: Node) -> None:
        super().check(change, node)
        self._controller.check(change)

    def carry_out(self, changes: Sequence[NodeChange]) -> Sequence[str]:
        unconfirmed = self._controller.carry_out(changes)
        self._look_anew()
        return unconfirmed

    def why(self, id: str) -> Explanation:
        """Of what the snapshot does not list, say a task that waits by itself, Ray's tables may know more."""
        snapshot = self.snapshot()
        id = snapshot.work_id(id)
        return snapshot.engine.explain(id) if snapshot.rows.knows(id) else self._controller.why_id(id)

    def snapshot(self) -> Snapshot:
        with self._looking:
            made = self._made
            if made is None or time.monotonic() - made[0] > FRESH_S:
                self._made = made = (time.monotonic(), self._look())
            return made[1]

    def packed(self, held: str) -> tuple[str, bytes]:
        """The snapshot of now and its tally, for another process, with their name; nothing but the name if that
        process holds them."""
        snapshot = self.snapshot()
        with self._packing:
            if self._packed is None or self._packed[1] is not snapshot:
                content = pickle.dumps((snapshot, self._counted), pickle.HIGHEST_PROTOCOL)
                self._packed = (secrets.token_hex(8), snapshot, content)
            name, _, content = self._packed
        return name, b"" if name == held else content

    def resolved(self, changes: Sequence[NodeChange]) -> list[NodeChange]:
        """The changes with whole ids of nodes, refused if they cannot be made."""
        found = self._meant(changes)
        for change in found:
            self.check(change, self.snapshot().find(change.node))
        return found

    def _look_anew(self) -> None:
        """The next snapshot is made after this moment, also where somebody is making one."""
        with self._looking:
            self._made = None

    def _look(self) -> Snapshot:
        tables = self._controller.tables
        running, waiting = self._tasks()
        listed = Listed(running, waiting, tables.actors(), tables.groups())
        jobs, links = self._jobs()
        self._count_evictions()
        with self._controller.locked():
            self._counted = replace(self.tally.copy(), evicted=self._evicted)
            everything = Everything(self._controller, listed)
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
            )

    def _jobs(self) -> tuple[Mapping[str, KnownOwner], Mapping[str, str]]:
        looked, found = self._jobs_seen
        if time.monotonic() - looked > JOBS_S:
            tables = self._controller.tables
            found = (tables.jobs(), dashboard_links(tables.dashboard()))
            self._jobs_seen = (time.monotonic(), found)
        return found

    def _count_evictions(self) -> None:
        """By the events since the controller began: of work that Ray placed by itself the engine decides none."""
        if self._last_event < 0:
            self._last_event = max((event.number for event in self._controller.events(0, 1)), default=0)
        for event in self._controller.events(self._last_event, EVENTS_COUNTED):
            self._last_event = event.number
            self._evicted += event.count if event.kind == "evicted" else 0

    def _with_ages(self, known: Mapping[str, Known]) -> dict[str, Known]:
        """Of groups, and of work that is only counted, Ray tells no beginning: it is when they were first seen."""
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
    """What Ray's tables list singly, looked up before anybody is held up."""

    running: Sequence[TaskRow]
    waiting: Sequence[TaskRow]
    actors: Sequence[ActorRow]
    groups: Mapping[str, Mapping[str, Any]]


class Everything:
    """The engine's own work and all other that Ray's tables tell of, in one engine."""

    def __init__(self, controller: Within, listed: Listed) -> None:
        self._controller, placing = controller, controller.placing
        self.status = controller.tables.status()
        self.known: dict[str, Known] = {}
        self._facts: list[Fact] = []
        self._mine = {node: list(amounts) for node, amounts in placing.mine(self.status, slots=False).items()}
        self._lives = placing.decided.lives
        self._demands = [row for row in self.status.pending if not row.of_a_group]
        self._wait = Counter[Kind]()
        for row in self._demands:
            self._wait[_kind_of(row.resources)] += row.count
        self._taken: Counter[Kind] = Counter()  # of the demands, those that are listed singly
        self._starts = {row.id: row for row in listed.waiting if row.is_actor}
        self._in_slots: Counter[tuple[str, str]] = Counter()  # by node and name, the tasks that are listed singly
        self._actors(listed.actors)
        self._tasks(listed)
        self._groups(listed.groups)
        self._rest()
        self._slots(placing.slots)
        for id, life in self._lives.items():
            self.known.setdefault(id, Known(life.what.kind, owner=life.what.job))
        for id, waits in placing.groups.lives.items():
            self.known[id] = Known("group", waits.asked.name, waits.asked.job)
        self.engine: Engine = placing.engine_alone()
        self.engine.apply(*self._facts)
        others = in_use(self.status, self._mine, placing.plugged)
        self.engine.apply(*others)
        self.known |= {fact.ask.id: Known("other", hidden=True) for fact in others}

    def _actors(self, rows: Iterable[ActorRow]) -> None:
        for row in rows:
            start = self._starts.get(row.id)
            since = row.since if row.state == "ALIVE" else start.since if start else None
            self.known[row.id] = Known(
                "actor", row.name or row.class_name, row.job_id, since, hidden=row.namespace == NAMESPACE
            )
            if row.id in self._lives:
                continue
            self._facts.append(AskEnded(row.id))  # where others only name it, the engine has heard less of it
            ask = self._controller.ask_of(row)
            if row.state == "ALIVE":
                self._runs(ask, row.node_id)
            else:
                self._facts.append(AskSubmitted(ask))
                self._taken[_kind_of(row.resources)] += 1

    def _tasks(self, listed: Listed) -> None:
        """Those that run, and as many of those that wait as wait by the scheduler's own count, which is never late."""
        for row in listed.running:
            if not row.is_actor and row.node_id in self.status.nodes and self._is_news(row):
                self._runs(self._controller.ask_of(row), row.node_id)
                self._in_slots.update((row.node_id, name) for name in row.resources if name.startswith(SLOT))
        for row in listed.waiting:
            kind = _kind_of(row.resources)
            if row.is_actor or not self._left(kind) or not self._is_news(row):
                continue
            self._facts.append(AskSubmitted(self._controller.ask_of(row)))
            self._taken[kind] += 1

    def _is_news(self, row: TaskRow) -> bool:
        """Whether the engine has not got it."""
        self.known[row.id] = Known("task", row.name, row.job_id, row.since)
        return row.id not in self._lives

    def _left(self, kind: Kind) -> int:
        return self._wait[kind] - self._taken[kind]

    def _runs(self, ask: Ask, node: str) -> None:
        self._facts.append(AskRunning(ask, node))
        self._mine.setdefault(node, []).append(ask.choices[0].resources)

    def _groups(self, rows: Mapping[str, Mapping[str, Any]]) -> None:
        for name, row in rows.items():
            id = row["id"]
            if name.startswith(OWN_GROUPS):
                continue
            self.known[id] = Known("group", row["name"])
            if id in self._controller.placing.groups.lives:
                continue
            group = self._controller.group_of(id, row, whole=True)
            self._facts.append(GroupSubmitted(group))
            for member, index in zip(group.all_members, sorted(row["bundles"]), strict=True):
                node = row["bundles_to_node_id"].get(index)
                if node:
                    self._runs(member, node)

    def _slots(self, slots: Slots) -> None:
        """Tasks in slots that are not listed singly stand under the id of the slot; those that wait are demands."""
        self._facts += map(AskEnded, slots.pools.waiting_ids())
        for node, name, ids, used in slots.pools.in_use():
            self._facts += map(AskEnded, ids)
            for id in ids[self._in_slots[node, name] : used]:
                self._runs(replace(slots.pools[name].shape.ask, id=id), node)
                self.known[id] = Known("task")

    def _rest(self) -> None:
        """What waits by the scheduler's count and is not listed: equal ones as one."""
        for row in self._demands:
            kind = _kind_of(row.resources)
            listed = min(row.count, self._taken[kind])
            self._taken[kind] -= listed
            if listed == row.count or any(name.startswith(TICKET) for name in row.resources):
                continue
            id = f"demand-{hashlib.sha256(repr((kind, row.labels)).encode()).hexdigest()[:12]}"
            self._facts.append(AskSubmitted(self._controller.ask_of_demand(row, id)))
            self.known[id] = Known("task", count=row.count - listed)


def _kind_of(resources: Mapping[str, float]) -> Kind:
    """Equal demands, also of an actor that asks for two parts of its pass until it has started."""
    names = sorted(name for name in resources if name.startswith(PREFIX))
    return (*names, *sorted(item for item in resources.items() if not item[0].startswith(PREFIX)))


def dashboard_links(address: str) -> dict[str, str]:
    """Where Ray's dashboard at HOST:PORT shows what, with ``{id}`` where the id goes; nothing if there is none."""
    if not DASHBOARD.fullmatch(address):
        return {}
    pages = {"job": "jobs/{id}", "node": "cluster/nodes/{id}", "actor": "actors/{id}", "logs": "logs/?nodeId={id}"}
    return {kind: f"http://{address}/#/{page}" for kind, page in pages.items()}


_calls = threading.local()


@contextmanager
def called_again() -> Iterator[None]:
    """For a call that a program makes once more, because the controller it asked before is gone for good."""
    _calls.is_again = True
    try:
        yield
    finally:
        _calls.is_again = False


def is_called_again() -> bool:
    """Whether this call is made once more, because a controller died on it: it may have been carried out."""
    if getattr(_calls, "is_again", False):
        return True
    return bool(ray._private.worker.global_worker.core_worker.get_current_task_attempt_number())


METHODS = frozenset(name for name in vars(Desk) if not name.startswith("_")) | {"packed", "resolved"}
"""What may be asked of the desk inside the controller."""
