"""What the controller on Ray must not forget, beside the engine's journal: passes, ends of taints, deadlines, events.

Rule: written before it is acknowledged, in one SQLite file. What Ray's own tables can tell again (who runs, what is
free, which names are granted) is not in here. What cannot be written raises `Unwritable` and is not in memory either.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stead.asks import Ask, Group
from stead.codec import dumps, loads
from stead.journal import Unreadable, writing
from stead.labelling import Labels
from stead.operate.views import Event, TaintEnd
from stead.ray.compile import Pass

VERSION = 1
"""The form of the tables; to be raised with every change of one. A book of another version is refused."""

EVENTS_MAX = 2_000  # of each kind, so that what comes often does not push out what comes seldom
SHAPES_MAX, SHAPES_REMEMBERED_MAX = 100_000, 4_096
PASSES_MAX = 10_000
REFUSED_MAX = 10_000
"""Of each so many are kept, the newest."""

COPIED = ("passes", "taints", "timed", "registered", "slot_shapes", "groups", "marks")
"""The tables that must outlive the head; events are news, and only of use to people."""
OF_WORK = ("registered", "slot_shapes", "timed")

_TABLES = """
    CREATE TABLE passes (key TEXT PRIMARY KEY, rule BLOB NOT NULL, generation INTEGER NOT NULL);
    CREATE TABLE taints (
        node TEXT, key TEXT, effect TEXT, since REAL NOT NULL, until REAL, job TEXT NOT NULL, owner TEXT NOT NULL,
        PRIMARY KEY (node, key, effect));
    CREATE TABLE timed (
        id TEXT PRIMARY KEY, kind TEXT NOT NULL, owner TEXT NOT NULL, ask BLOB NOT NULL, refused TEXT);
    CREATE TABLE events (
        number INTEGER PRIMARY KEY AUTOINCREMENT, at REAL NOT NULL, kind TEXT NOT NULL, subject TEXT NOT NULL,
        text TEXT NOT NULL, count INTEGER NOT NULL);
    CREATE TABLE registered (
        id TEXT PRIMARY KEY, kind TEXT NOT NULL, name TEXT NOT NULL, job TEXT NOT NULL, ask BLOB NOT NULL,
        running BLOB NOT NULL);
    CREATE TABLE slot_shapes (key TEXT PRIMARY KEY, ask BLOB NOT NULL);
    CREATE TABLE groups (id TEXT PRIMARY KEY, asked BLOB NOT NULL, taken INTEGER);
    CREATE TABLE marks (name TEXT PRIMARY KEY, value TEXT NOT NULL);
"""

_BY_KIND = "CREATE INDEX IF NOT EXISTS events_by_kind ON events (kind, number)"
_TOO_OLD = """
    DELETE FROM events WHERE kind = ?
        AND number <= (SELECT number FROM events WHERE kind = ? ORDER BY number DESC LIMIT 1 OFFSET ?)
"""


@dataclass(frozen=True, slots=True)
class Timed:
    """Work that has to start before its deadline; `refused` is the explanation once it did not. Its owner says only how
    long that may take (`within_s`). The ask's deadline is on the controller's clock, from when it heard of the work."""

    id: str
    kind: str  # "task" or "actor"
    owner: str  # a detached actor or a job, with whom the work goes
    ask: Ask
    refused: str | None = None
    within_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Registered:
    """Work that the engine places by itself. `ask` is what it needs to start, `running` what it holds then; `name` is
    its ticket, or nothing where Ray places it and the engine only hears of it."""

    id: str
    kind: str  # "task" or "actor"
    name: str
    job: str
    ask: Ask
    running: Ask


@dataclass(frozen=True, slots=True)
class SlotShape:
    """What equal tasks have in common. `ask` is any one of them, with `key` as its id."""

    key: str
    ask: Ask


@dataclass(frozen=True, slots=True)
class GroupAsked:
    """A placement group that the engine decides, with what Ray has to be told of each bundle of each alternative: its
    pass, and what Ray's own labels can say. It goes with `actor`, the detached actor that made it or whose work did, or
    else with its job."""

    group: Group
    passes: tuple[tuple[Pass, ...], ...]
    natives: tuple[tuple[Labels, ...], ...]
    name: str
    job: str
    actor: str
    detached: bool


class Book:
    def __init__(self, path: Path) -> None:
        self._shapes: dict[str, SlotShape] = {}
        self._lock, self._path = threading.RLock(), path  # the actor's threads read while its loop writes
        self.revision = 0
        """Grows with every change of what is copied."""
        with writing(path):
            self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
            try:
                _begin(self._db, path)
                rows = self._db.execute("SELECT key, rule, generation FROM passes ORDER BY rowid").fetchall()
                self._passes = {key: (loads(rule, Pass), generation) for key, rule, generation in rows}
                found = self._db.execute("SELECT id, kind, owner, ask, refused FROM timed ORDER BY rowid").fetchall()
                self._timed = {id: Timed(id, kind, by, loads(ask, Ask), no) for id, kind, by, ask, no in found}
            except BaseException:
                self._db.close()
                raise

    def _read(self, statement: str, *values: object) -> list[tuple[object, ...]]:
        with self._lock:
            return self._db.execute(statement, values).fetchall()

    def _do(self, statement: str, *values: object) -> None:
        with self._writing():
            self._db.execute(statement, values)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """One change, all of it or nothing."""
        with self._lock, writing(self._path):
            self._db.execute("BEGIN")
            try:
                yield
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise
            self.revision += 1

    def image(self, work: bool = True) -> bytes:
        """A SQLite file with all that must outlive the head; or without the work that the engine places."""
        with self._lock, closing(sqlite3.connect(":memory:", isolation_level=None)) as copy:
            _begin(copy, self._path)
            copy.execute("BEGIN")
            for table in COPIED:
                rows = self._db.execute(f"SELECT * FROM {table} ORDER BY rowid").fetchall()
                if rows and (work or table not in OF_WORK):
                    copy.executemany(f"INSERT INTO {table} VALUES ({', '.join('?' * len(rows[0]))})", rows)
            copy.execute("COMMIT")
            return copy.serialize()

    # -- passes

    def pass_of(self, key: str) -> tuple[Pass, int] | None:
        """A pass that was ever issued, and the generation that new submissions last carried."""
        return self._passes.get(key)

    def keep_pass(self, rule: Pass, generation: int) -> None:
        with self._writing():
            self._db.execute("INSERT OR REPLACE INTO passes VALUES (?, ?, ?)", (rule.key, dumps(rule), generation))
            gone = [key for key in self._passes if key != rule.key][: max(0, len(self._passes) - PASSES_MAX)]
            self._db.executemany("DELETE FROM passes WHERE key = ?", [(key,) for key in gone])
        for key in (rule.key, *gone):
            self._passes.pop(key, None)
        self._passes[rule.key] = (rule, generation)

    # -- ends of taints

    def taint_ends(self) -> list[TaintEnd]:
        with self._lock:
            return [TaintEnd(*row) for row in self._db.execute("SELECT * FROM taints").fetchall()]

    def keep_taint(self, end: TaintEnd) -> None:
        row = (end.node, end.key, end.effect, end.since, end.until, end.job, end.owner)
        self._do("INSERT OR REPLACE INTO taints VALUES (?, ?, ?, ?, ?, ?, ?)", *row)

    def forget_taint(self, node: str, key: str, effect: str) -> None:
        self._do("DELETE FROM taints WHERE node = ? AND key = ? AND effect = ?", node, key, effect)

    # -- deadlines

    def timed_of(self, id: str) -> Timed | None:
        with self._lock:
            return self._timed.get(id)

    def all_timed(self) -> list[Timed]:
        with self._lock:
            return list(self._timed.values())

    def open_timed(self) -> list[Timed]:
        """What has neither started nor been refused."""
        with self._lock:
            return [timed for timed in self._timed.values() if timed.refused is None]

    def keep_timed(self, timed: Iterable[Timed]) -> None:
        timed = list(timed)
        rows = [(each.id, each.kind, each.owner, dumps(each.ask), each.refused) for each in timed]
        with self._lock:
            with self._writing():
                self._db.executemany("INSERT OR REPLACE INTO timed VALUES (?, ?, ?, ?, ?)", rows)
            self._timed.update({each.id: each for each in timed})
            many = self._timed.items() if len(self._timed) > REFUSED_MAX else ()
            refused = [id for id, each in many if each.refused is not None]
        self.forget_timed(refused[: max(0, len(refused) - REFUSED_MAX)])

    def forget_timed(self, ids: Iterable[str]) -> None:
        ids = [id for id in ids if id in self._timed]
        if not ids:
            return
        with self._lock:
            with self._writing():
                self._db.executemany("DELETE FROM timed WHERE id = ?", [(id,) for id in ids])
            for id in ids:
                self._timed.pop(id, None)

    # -- work that is placed singly

    def registered(self) -> list[Registered]:
        rows: list[Any] = self._read("SELECT id, kind, name, job, ask, running FROM registered ORDER BY rowid")
        return [Registered(r[0], r[1], r[2], r[3], loads(r[4], Ask), loads(r[5], Ask)) for r in rows]

    def keep_registered(self, many: Iterable[Registered]) -> None:
        rows = [(each.id, each.kind, each.name, each.job, dumps(each.ask), dumps(each.running)) for each in many]
        with self._writing():
            self._db.executemany("INSERT OR REPLACE INTO registered VALUES (?, ?, ?, ?, ?, ?)", rows)

    def forget_registered(self, ids: Iterable[str]) -> None:
        rows = [(id,) for id in ids]
        if rows:
            with self._writing():
                self._db.executemany("DELETE FROM registered WHERE id = ?", rows)

    # -- shapes of tasks

    def slot_shape(self, key: str) -> SlotShape | None:
        with self._lock:
            if key not in self._shapes:
                rows: list[Any] = self._read("SELECT ask FROM slot_shapes WHERE key = ?", key)
                if not rows:
                    return None
                self._remember_shape(SlotShape(key, loads(rows[0][0], Ask)))
            return self._shapes[key]

    def keep_slot_shape(self, shape: SlotShape) -> None:
        with self._lock:
            if shape.key not in self._shapes:
                self._do("INSERT OR IGNORE INTO slot_shapes VALUES (?, ?)", shape.key, dumps(shape.ask))
                self._do("DELETE FROM slot_shapes WHERE rowid <= (SELECT max(rowid) FROM slot_shapes) - ?", SHAPES_MAX)
                self._remember_shape(shape)

    def _remember_shape(self, shape: SlotShape) -> None:
        while len(self._shapes) >= SHAPES_REMEMBERED_MAX:
            del self._shapes[next(iter(self._shapes))]
        self._shapes[shape.key] = shape

    # -- groups

    def groups(self) -> list[tuple[GroupAsked, int | None]]:
        """Groups that are not over, and which alternative each was created with, if it was."""
        rows: list[Any] = self._read("SELECT asked, taken FROM groups ORDER BY rowid")
        return [(loads(asked, GroupAsked), taken) for asked, taken in rows]

    def keep_group(self, asked: GroupAsked, taken: int | None = None) -> None:
        self._do("INSERT OR REPLACE INTO groups VALUES (?, ?, ?)", asked.group.id, dumps(asked), taken)

    def forget_group(self, id: str) -> None:
        self._do("DELETE FROM groups WHERE id = ?", id)

    # -- events

    def add_event(self, at: float, kind: str, subject: str, text: str, count: int = 1) -> None:
        with self._lock, writing(self._path):
            self._db.execute(
                "INSERT INTO events (at, kind, subject, text, count) VALUES (?, ?, ?, ?, ?)",
                (at, kind, subject, text, count),
            )
            self._db.execute(_TOO_OLD, (kind, kind, EVENTS_MAX))

    def events(self, after: int = 0, limit: int = 1000) -> list[Event]:
        """The newest `limit` after a number, oldest first."""
        statement = "SELECT * FROM events WHERE number > ? ORDER BY number DESC LIMIT ?"
        with self._lock:
            return [Event(*row) for row in self._db.execute(statement, (after, limit)).fetchall()][::-1]

    # -- marks

    def mark(self, name: str, value: str) -> None:
        self._do("INSERT OR REPLACE INTO marks VALUES (?, ?)", name, value)

    def marked(self, name: str) -> str:
        found = self._read("SELECT value FROM marks WHERE name = ?", name)
        return str(found[0][0]) if found else ""

    def close(self) -> None:
        self._db.close()


def _begin(connection: sqlite3.Connection, path: Path) -> None:
    """Make the tables of a new book, or see that an old one has these."""
    is_new = not connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if not is_new and version != VERSION:
        raise Unreadable(f"{path} is a book of version {version}, but this stead reads version {VERSION}")
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")
    if is_new:
        connection.executescript(f"BEGIN; {_TABLES} PRAGMA user_version = {VERSION}; COMMIT;")
    connection.execute(_BY_KIND)
