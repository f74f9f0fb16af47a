"""What the controller on Ray must keep in addition to the engine's journal: passes, deadlines, events.

Rule: stored before it is acknowledged, in one SQLite file. What Ray's own tables show again after a restart (what runs,
what is free, which names are granted) is not stored. A failed write raises `Unwritable` and changes nothing in memory.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from stead.codec import dumps, loads
from stead.engine.explain.events import Event, EventKind
from stead.journal import Unreadable, writing
from stead.language.asks import Ask
from stead.ray.submit.compile import Pass
from stead.ray.submit.messages import GroupAsked, Registered, SlotShape, Timed

VERSION = 2
"""The version of the tables. Increase it with every change. A file of another version is refused."""

EVENTS_MAX = 2_000  # per kind, so that frequent events do not displace rare ones
SHAPES_MAX, SHAPES_REMEMBERED_MAX = 100_000, 4_096
PASSES_MAX = 10_000
REFUSED_MAX = 10_000
"""Maximum number of rows kept of each; the newest ones stay."""

COPIED = ("passes", "timed", "registered", "slot_shapes", "groups", "marks")
"""The tables that must survive the loss of the head. Events need not."""
OF_WORK = ("registered", "slot_shapes", "timed")

_TABLES = """
    CREATE TABLE passes (key TEXT PRIMARY KEY, rule BLOB NOT NULL, generation INTEGER NOT NULL);
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


class StateStore:
    def __init__(self, path: Path) -> None:
        self._shapes: dict[str, SlotShape] = {}
        self._lock, self._path = threading.RLock(), path  # the actor's other threads read while its loop writes
        self.revision = 0
        """Increases with every change of what is copied."""
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
        """A transaction."""
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
        """A SQLite file with everything that must survive the loss of the head; `work=False` omits the engine's
        work."""
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
        """A pass that was ever issued, and the last generation that new submissions carried."""
        return self._passes.get(key)

    def keep_pass(self, rule: Pass, generation: int) -> None:
        with self._writing():
            self._db.execute("INSERT OR REPLACE INTO passes VALUES (?, ?, ?)", (rule.key, dumps(rule), generation))
            gone = [key for key in self._passes if key != rule.key][: max(0, len(self._passes) - PASSES_MAX)]
            self._db.executemany("DELETE FROM passes WHERE key = ?", [(key,) for key in gone])
        for key in (rule.key, *gone):
            self._passes.pop(key, None)
        self._passes[rule.key] = (rule, generation)

    # -- deadlines

    def timed_of(self, id: str) -> Timed | None:
        with self._lock:
            return self._timed.get(id)

    def all_timed(self) -> list[Timed]:
        with self._lock:
            return list(self._timed.values())

    def open_timed(self) -> list[Timed]:
        """Work that has neither started nor been refused."""
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

    # -- work that the engine places

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
        """Unfinished groups, and the alternative that each was created with, if any."""
        rows: list[Any] = self._read("SELECT asked, taken FROM groups ORDER BY rowid")
        return [(loads(asked, GroupAsked), taken) for asked, taken in rows]

    def keep_group(self, asked: GroupAsked, taken: int | None = None) -> None:
        self._do("INSERT OR REPLACE INTO groups VALUES (?, ?, ?)", asked.group.id, dumps(asked), taken)

    def forget_group(self, id: str) -> None:
        self._do("DELETE FROM groups WHERE id = ?", id)

    # -- events

    def add_event(self, event: Event) -> None:
        """Add an event with the next number."""
        with self._lock, writing(self._path):
            self._db.execute(
                "INSERT INTO events (at, kind, subject, text, count) VALUES (?, ?, ?, ?, ?)",
                (event.at, event.kind, event.subject, event.text, event.count),
            )
            self._db.execute(_TOO_OLD, (event.kind, event.kind, EVENTS_MAX))

    def record(self, kind: EventKind, subject: str, text: str) -> None:
        """Add an event of this cluster, with the current time."""
        self.add_event(Event(0, time.time(), kind, subject, text))

    def events(self, after: int = -1000, limit: int = 1000) -> list[Event]:
        """Events after this number, oldest first; -n returns the last n."""
        newest = "SELECT * FROM (SELECT * FROM events ORDER BY number DESC LIMIT ?) ORDER BY number LIMIT ?"
        since = "SELECT * FROM events WHERE number > ? ORDER BY number LIMIT ?"
        with self._lock:
            rows = self._db.execute(newest if after < 0 else since, (abs(after), limit)).fetchall()
        return [Event(number, at, EventKind(kind), *rest) for number, at, kind, *rest in rows]

    # -- marks

    def mark(self, name: str, value: str) -> None:
        self._do("INSERT OR REPLACE INTO marks VALUES (?, ?)", name, value)

    def marked(self, name: str) -> str:
        found = self._read("SELECT value FROM marks WHERE name = ?", name)
        return str(found[0][0]) if found else ""

    def close(self) -> None:
        self._db.close()


def _begin(connection: sqlite3.Connection, path: Path) -> None:
    """Create the tables of a new file, or check the version of an old one."""
    is_new = not connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if not is_new and version != VERSION:
        raise Unreadable(f"{path} has version {version}, but this stead reads version {VERSION}")
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")
    if is_new:
        connection.executescript(f"BEGIN; {_TABLES} PRAGMA user_version = {VERSION}; COMMIT;")
    connection.execute(_BY_KIND)
