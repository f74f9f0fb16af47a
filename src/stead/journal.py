"""Facts and decisions on disk, and the replay that proves them.

Rule: one step of the controller is one row, written in one transaction before anything is bound. Rows
are only ever added. Whoever opened the journal last may write to it; an older writer, say a controller
that hung and came back, is refused. A row holds exactly what the engine saw and said, so re-deciding
it gives the same bytes or points at the first step that differs.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from stead import solver
from stead.codec import dumps, loads
from stead.engine import Engine, Settings
from stead.engine.decisions import Decision
from stead.engine.facts import Fact
from stead.errors import Invalid

VERSION = 1
"""The form of the tables. A journal of another version is refused, never converted in place."""

_APPLICATION_ID = 0x53544541  # "STEA", in the header of the file: tells our SQLite files from others
_TABLES = """
    CREATE TABLE about (name TEXT PRIMARY KEY, value NOT NULL);
    CREATE TABLE steps (number INTEGER PRIMARY KEY, facts BLOB NOT NULL, decisions BLOB NOT NULL);
"""


class Unreadable(Invalid):
    """The file is not a journal, or a damaged one."""


class Superseded(Invalid):
    """Another writer opened the journal later; this one must stop."""


class Diverged(Invalid):
    """Deciding again did not give what the journal says; `step` is the first that differs."""

    def __init__(self, step: int, written: Sequence[Decision], decided: Sequence[Decision]) -> None:
        self.step, self.written, self.decided = step, tuple(written), tuple(decided)
        pairs = zip((*written, None), (*decided, None), strict=False)
        old, new = next(((old, new) for old, new in pairs if old != new), (None, None))
        super().__init__(
            f"step {step} differs: the journal says {_shown(old)}, but the engine now decides {_shown(new)}"
        )


def _shown(decision: Decision | None) -> str:
    return "nothing more" if decision is None else dumps(decision).decode()


@dataclass(frozen=True, slots=True)
class Entry:
    """One step: what the engine was told, and what it then decided."""

    step: int
    facts: tuple[Fact, ...]
    decisions: tuple[Decision, ...]


class Journal:
    """An open journal. `open` writes, `reading` only reads; both are to be closed, best by ``with``."""

    def __init__(self, path: Path, connection: sqlite3.Connection, epoch: int | None) -> None:
        self.path = path
        self._connection = connection
        self._epoch = epoch  # None: only reads
        self.settings: Settings = loads(self._about("settings"), Settings)

    @classmethod
    def open(cls, path: Path | str, settings: Settings | None = None) -> Journal:
        """For writing. A new journal begins with `settings`; an old one keeps its own, and the two must agree."""
        path = Path(path)
        with _in_words(path):
            connection = _connect(path.resolve().as_uri())
            try:
                if not _is_empty(connection):
                    _check_kind(path, connection)  # before anything is written: it may be someone else's file
                connection.execute("PRAGMA journal_mode = WAL")
                connection.execute("BEGIN IMMEDIATE")
                if _is_empty(connection):
                    _create(connection, settings or Settings())
                connection.execute("UPDATE about SET value = value + 1 WHERE name = 'epoch'")
                epoch = connection.execute("SELECT value FROM about WHERE name = 'epoch'").fetchone()[0]
                connection.execute("COMMIT")
                journal = cls(path, connection, epoch)
                if settings is not None and settings != journal.settings:
                    raise Invalid(f"{path} was begun with {journal.settings}, so it cannot go on with {settings}")
            except BaseException:
                connection.close()
                raise
            return journal

    @classmethod
    def reading(cls, path: Path | str) -> Journal:
        """For reading; a writer may be at work meanwhile.

        The connection could write but is told not to: only such a one, when it is the last, takes SQLite's own
        files beside the journal (-wal, -shm) away again.
        """
        path = Path(path)
        if not path.is_file():
            raise Unreadable(f"there is no journal at {path}")
        with _in_words(path):
            connection = _connect(f"{path.resolve().as_uri()}?mode=rw")
            try:
                connection.execute("PRAGMA query_only = ON")
                _check_kind(path, connection)
                return cls(path, connection, None)
            except BaseException:
                connection.close()
                raise

    def append(self, facts: Iterable[Fact], decisions: Iterable[Decision]) -> int:
        """Write one step, durably, and return its number."""
        if self._epoch is None:
            raise Invalid(f"{self.path} is open for reading only; open it by Journal.open to write to it")
        row = (dumps(list(facts)), dumps(list(decisions)))
        with _in_words(self.path):
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                self.check()
                number = self._connection.execute("INSERT INTO steps (facts, decisions) VALUES (?, ?)", row).lastrowid
                self._connection.execute("COMMIT")
            except BaseException:
                # An interrupt may come after the commit: then there is nothing to take back.
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise
        assert number is not None
        return number

    def check(self) -> None:
        """Raise `Superseded` if another writer opened the journal since."""
        with _in_words(self.path):
            if self._epoch is not None and self._about("epoch") != self._epoch:
                raise Superseded(f"{self.path} was opened by another writer, so this one may not write to it")

    def read(self) -> Iterator[Entry]:
        """All steps, oldest first."""
        for number, facts, decisions in self._rows():
            yield self._entry(number, facts, decisions)

    def last(self) -> Entry | None:
        """The last step, or None before the first."""
        with _in_words(self.path):
            found = self._connection.execute("SELECT * FROM steps ORDER BY number DESC LIMIT 1").fetchone()
        return None if found is None else self._entry(*found)

    def __len__(self) -> int:
        with _in_words(self.path):
            return int(self._connection.execute("SELECT count(*) FROM steps").fetchone()[0])

    def close(self) -> None:
        """Leave one file, which can be copied and read as it is; if others have it open, the last of them does."""
        if self._epoch is not None:
            with suppress(sqlite3.Error):  # in use by others, or closed before
                self._connection.execute("PRAGMA busy_timeout = 0")
                self._connection.execute("PRAGMA journal_mode = DELETE")
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _about(self, name: str) -> Any:
        found = self._connection.execute("SELECT value FROM about WHERE name = ?", (name,)).fetchone()
        if found is None:
            raise Unreadable(f"{self.path} is damaged: it does not say its {name}")
        return found[0]

    def _entry(self, number: int, facts: bytes, decisions: bytes) -> Entry:
        try:
            return Entry(number, loads(facts, tuple[Fact, ...]), loads(decisions, tuple[Decision, ...]))
        except Invalid as error:
            raise Unreadable(f"step {number} of {self.path} is damaged: {error}") from None

    def _rows(self) -> Iterator[tuple[int, bytes, bytes]]:
        with _in_words(self.path), closing(self._connection.execute("SELECT * FROM steps ORDER BY number")) as rows:
            for expected, row in enumerate(rows, start=1):
                if row[0] != expected:
                    raise Unreadable(f"{self.path} is damaged: step {expected} is missing")
                yield row


def replay(journal: Journal, settings: Settings | None = None, progress: Callable[[int], None] | None = None) -> Engine:
    """The engine as it was after the last step: every fact applied again, every decision made again.

    Raises `Diverged` at the first step whose decisions are not byte-equal to the written ones; `progress` is told
    every step that is equal.
    """
    engine = Engine(settings or journal.settings, solver.found())
    for entry in journal.read():
        engine.apply(*entry.facts)
        decided = engine.decide()
        if dumps(decided) != dumps(entry.decisions):
            raise Diverged(entry.step, entry.decisions, decided)
        if progress is not None:
            progress(entry.step)
    return engine


def _connect(uri: str) -> sqlite3.Connection:
    """Whoever has a journal sees to it that one thread at a time uses it; which one is nobody's business."""
    return sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False)


def _is_empty(connection: sqlite3.Connection) -> bool:
    return not connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]


def _create(connection: sqlite3.Connection, settings: Settings) -> None:
    for statement in _TABLES.split(";"):
        connection.execute(statement)
    connection.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {VERSION}")
    connection.execute("INSERT INTO about VALUES ('settings', ?), ('epoch', 0)", (dumps(settings),))


def _check_kind(path: Path, connection: sqlite3.Connection) -> None:
    if connection.execute("PRAGMA application_id").fetchone()[0] != _APPLICATION_ID:
        raise Unreadable(f"{path} is not a journal of stead; give another file name")
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if version != VERSION:
        raise Unreadable(f"{path} is a journal of version {version}, but this stead reads version {VERSION}")


@contextmanager
def _in_words(path: Path) -> Iterator[None]:
    """SQLite's errors as one sentence about the journal."""
    try:
        yield
    except sqlite3.Error as error:
        raise Unreadable(f"{path} cannot be used as a journal: {error}") from error
