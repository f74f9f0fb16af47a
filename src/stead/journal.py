"""The journal: facts, decisions and engine checkpoints on disk, and the replay that verifies them.

Rule: one step of the controller is one row, written in one transaction before anything is bound. Only the process that
opened the journal last may write to it; an older writer, such as a controller that hung and came back, is refused. A
row holds exactly the facts the engine got and the decisions it made. `recover` restores the engine from the newest
checkpoint and the rows after it, and decides nothing again. `replay` decides again as a check: it gets the same bytes
or names the first step that differs. Old steps and checkpoints are deleted by age and size; the newest checkpoint and
all later steps are always kept.
"""

from __future__ import annotations

import sqlite3
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self, cast

from stead import solver
from stead.codec import dumps, loads
from stead.engine.decisions import Decision
from stead.engine.engine import Engine
from stead.engine.facts import Fact
from stead.engine.restart.checkpoints import Checkpoint
from stead.engine.settings import Settings
from stead.errors import Invalid, Unwritable

VERSION = 4
"""The version of the table schema. A journal of another version is refused, never converted in place."""

KEPT_S = 7 * 86400.0
KEPT_BYTES = 1_000_000_000
"""Steps beyond this age or total size are deleted."""

CHECKPOINT_STEPS = 1_000
CHECKPOINT_BYTES = 1_000_000
STATE_TIMES = 8
"""A checkpoint is due after this many steps or bytes of steps. For a large state, the byte limit is STATE_TIMES its
size. This balances the cost of writing checkpoints against the cost of reading the steps after them."""

_APPLICATION_ID = 0x53544541  # "STEA", in the file header: marks a SQLite file as a stead journal
_TABLES = """
    CREATE TABLE about (name TEXT PRIMARY KEY, value NOT NULL);
    CREATE TABLE steps (number INTEGER PRIMARY KEY, facts BLOB NOT NULL, decisions BLOB NOT NULL);
    CREATE TABLE checkpoints (step INTEGER PRIMARY KEY, at REAL NOT NULL, bytes INTEGER NOT NULL, state BLOB NOT NULL);
"""
_BROKEN = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR, sqlite3.SQLITE_FORMAT})
"""SQLite errors that mean a damaged file rather than a failing disk."""


class Unreadable(Invalid):
    """The file is not a journal, or it is damaged."""


class Superseded(Invalid):
    """Another writer opened the journal later; this one must stop."""


class Diverged(Invalid):
    """A replay decided differently from the journal; `step` is the first step that differs."""

    def __init__(self, step: int, written: Sequence[Decision], decided: Sequence[Decision]) -> None:
        self.step, self.written, self.decided = step, tuple(written), tuple(decided)
        pairs = zip((*written, None), (*decided, None), strict=False)
        old, new = next(((old, new) for old, new in pairs if old != new), (None, None))
        super().__init__(
            f"step {step} differs: the journal says {_shown(old)}, but the engine now decides {_shown(new)}"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle by the constructor's arguments; the default would pass the message."""
        return Diverged, (self.step, self.written, self.decided)


def _shown(decision: Decision | None) -> str:
    return "nothing more" if decision is None else dumps(decision).decode()


@dataclass(frozen=True, slots=True)
class Entry:
    """One step: the facts the engine got, and the decisions it made."""

    step: int
    facts: tuple[Fact, ...]
    decisions: tuple[Decision, ...]


class Journal:
    """An open journal: use `open` to write and `reading` to read. Close it, preferably with a ``with`` statement."""

    def __init__(self, path: Path, connection: sqlite3.Connection, epoch: int | None) -> None:
        self.path = path
        self._connection = connection
        self._epoch = epoch  # None: read-only
        self.settings: Settings = loads(self._about("settings"), Settings)
        self.kept_s, self.kept_bytes = KEPT_S, KEPT_BYTES
        self._steps_since, self._bytes_since = self._since(self.newest_checkpoint)
        self._state_bytes = 0
        self.steps_written = 0
        """How many steps were written through this object."""

    @classmethod
    def open(cls, path: Path | str, settings: Settings | None = None) -> Journal:
        """Open for writing. A new journal stores `settings`; an existing one must have the same settings."""
        path = Path(path)
        with _sqlite_errors_as_sentences(path), writing(path):
            connection = _connect(path.resolve().as_uri())
            try:
                if not _is_empty(connection):
                    _check_kind(path, connection)  # before any write: the file may belong to another program
                connection.execute("PRAGMA journal_mode = WAL")
                connection.execute("BEGIN IMMEDIATE")
                if _is_empty(connection):
                    _create(connection, settings or Settings())
                connection.execute("UPDATE about SET value = value + 1 WHERE name = 'epoch'")
                epoch = connection.execute("SELECT value FROM about WHERE name = 'epoch'").fetchone()[0]
                connection.execute("COMMIT")
                journal = cls(path, connection, epoch)
                if settings is not None and settings != journal.settings:
                    raise Invalid(f"{path} was created with {journal.settings}, so it cannot be used with {settings}")
            except BaseException:
                connection.close()
                raise
            return journal

    @classmethod
    def reading(cls, path: Path | str) -> Journal:
        """Open for reading, also while another process writes.

        The connection opens in write mode but forbids writes: only then does SQLite delete its -wal and -shm files when
        the last connection closes.
        """
        path = Path(path)
        if not path.is_file():
            raise Unreadable(f"there is no journal at {path}")
        with _sqlite_errors_as_sentences(path):
            connection = _connect(f"{path.resolve().as_uri()}?mode=rw")
            try:
                connection.execute("PRAGMA query_only = ON")
                _check_kind(path, connection)
                return cls(path, connection, None)
            except BaseException:
                connection.close()
                raise

    def append(self, facts: Iterable[Fact], decisions: Iterable[Decision]) -> int:
        """Write one step durably and return its number."""
        row = (dumps(list(facts)), dumps(list(decisions)))
        with self._writing() as connection:
            number = connection.execute("INSERT INTO steps (facts, decisions) VALUES (?, ?)", row).lastrowid
        assert number is not None
        self.steps_written += 1
        self._steps_since += 1
        self._bytes_since += sum(map(len, row))
        return number

    @property
    def is_checkpoint_due(self) -> bool:
        most = max(CHECKPOINT_BYTES, STATE_TIMES * self._state_bytes)
        return self._steps_since >= CHECKPOINT_STEPS or self._bytes_since >= most

    def keep(self, state: Checkpoint) -> None:
        """Write a checkpoint of the engine after the last step, then delete expired steps."""
        written = dumps(state)
        row = (time.time(), self._bytes_since, zlib.compress(written, 1))
        with self._writing() as connection:
            connection.execute(
                "INSERT OR REPLACE INTO checkpoints SELECT coalesce(max(number), 0), ?, ? + length(?3), ?3 FROM steps",
                row,
            )
            self._prune(connection)
        self._steps_since = self._bytes_since = 0
        self._state_bytes = len(written)

    def _prune(self, connection: sqlite3.Connection) -> None:
        """Delete the oldest steps up to a checkpoint, so that the rest can be replayed from it."""
        found = connection.execute("SELECT step, at, bytes FROM checkpoints ORDER BY step DESC").fetchall()
        base, size = found[0][0], 0
        for (_, at, added), (before, *_) in zip(found, [*found[1:], (0,)], strict=True):
            size += added
            if at < time.time() - self.kept_s or size > self.kept_bytes:
                break
            base = before
        last = connection.execute("SELECT max(number) FROM steps").fetchone()[0] or 0
        connection.execute("DELETE FROM steps WHERE number <= ? AND number < ?", (base, last))
        connection.execute("DELETE FROM checkpoints WHERE step < ?", (base,))

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        """One transaction, refused unless this is the latest writer."""
        if self._epoch is None:
            raise Invalid(f"{self.path} is open for reading only; use Journal.open to write to it")
        with _sqlite_errors_as_sentences(self.path), writing(self.path):
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                self.check()
                yield self._connection
                self._connection.execute("COMMIT")
            except BaseException:
                # After an interrupt that follows the commit, there is nothing to roll back.
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise

    def check(self) -> None:
        """Raise `Superseded` if another writer has opened the journal since."""
        with _sqlite_errors_as_sentences(self.path):
            if self._epoch is not None and self._about("epoch") != self._epoch:
                raise Superseded(f"{self.path} was opened by another writer, so this one may not write to it")

    def read(self, after: int | None = None) -> Iterator[Entry]:
        """All steps that can be replayed, or those after one of them; oldest first."""
        for number, facts, decisions in self._rows(self.kept_after if after is None else after):
            yield self._entry(number, facts, decisions)

    @property
    def kept_after(self) -> int:
        """The step after which everything is kept: 0, or the oldest checkpoint's step if older steps were deleted."""
        with _sqlite_errors_as_sentences(self.path):
            if self._connection.execute("SELECT 1 FROM steps WHERE number = 1").fetchone():
                return 0
            return self._connection.execute("SELECT min(step) FROM checkpoints").fetchone()[0] or 0

    @property
    def newest_checkpoint(self) -> int:
        """The step after which the newest checkpoint was taken; 0 if there is none."""
        return self.checkpoint_before(1 << 62)

    def checkpoint_before(self, step: int) -> int:
        """The newest step before this one after which a checkpoint was taken; 0 if there is none."""
        with _sqlite_errors_as_sentences(self.path):
            query = "SELECT max(step) FROM checkpoints WHERE step < ?"
            return self._connection.execute(query, (step,)).fetchone()[0] or 0

    def checkpoint(self, step: int) -> Checkpoint | None:
        """The engine as it was after a step, if a checkpoint was taken then."""
        with _sqlite_errors_as_sentences(self.path):
            found = self._connection.execute("SELECT state FROM checkpoints WHERE step = ?", (step,)).fetchone()
        if found is None:
            return None
        try:
            return cast(Checkpoint, loads(zlib.decompress(found[0]), Checkpoint))
        except (Invalid, zlib.error) as error:
            raise Unreadable(f"the checkpoint after step {step} of {self.path} is damaged: {error}") from None

    def checkpoint_at(self, step: int) -> float | None:
        """When the checkpoint after a step was taken."""
        with _sqlite_errors_as_sentences(self.path):
            found = self._connection.execute("SELECT at FROM checkpoints WHERE step = ?", (step,)).fetchone()
        return None if found is None else float(found[0])

    def last(self) -> Entry | None:
        """The last step, or None before the first."""
        with _sqlite_errors_as_sentences(self.path):
            found = self._connection.execute("SELECT * FROM steps ORDER BY number DESC LIMIT 1").fetchone()
        return None if found is None else self._entry(*found)

    def __len__(self) -> int:
        with _sqlite_errors_as_sentences(self.path):
            return int(self._connection.execute("SELECT count(*) FROM steps").fetchone()[0])

    def close(self) -> None:
        """Close, and leave one file that you can copy. If others have it open, the last one to close does this."""
        if self._epoch is not None:
            with suppress(sqlite3.Error):  # in use by others, or already closed
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
            raise Unreadable(f"{self.path} is damaged: it has no {name}")
        return found[0]

    def _entry(self, number: int, facts: bytes, decisions: bytes) -> Entry:
        try:
            return Entry(number, loads(facts, tuple[Fact, ...]), loads(decisions, tuple[Decision, ...]))
        except Invalid as error:
            raise Unreadable(f"step {number} of {self.path} is damaged: {error}") from None

    def _rows(self, after: int) -> Iterator[tuple[int, bytes, bytes]]:
        query = "SELECT * FROM steps WHERE number > ? ORDER BY number"
        with _sqlite_errors_as_sentences(self.path), closing(self._connection.execute(query, (after,))) as rows:
            for expected, row in enumerate(rows, start=after + 1):
                if row[0] != expected:
                    raise Unreadable(f"{self.path} is damaged: step {expected} is missing")
                yield row

    def _since(self, step: int) -> tuple[int, int]:
        """The number of steps after this one, and their bytes."""
        query = "SELECT count(*), coalesce(sum(length(facts) + length(decisions)), 0) FROM steps WHERE number > ?"
        count, size = self._connection.execute(query, (step,)).fetchone()
        return int(count), int(size)


def recover(journal: Journal) -> Engine:
    """The engine as it was after the last step: the newest checkpoint, plus every later fact and decision as written.
    Nothing is decided again, so a new version of the engine or its solver gives the same state."""
    step, engine = _newest_readable(journal)
    engine.solver = solver.OrTools()  # keeps accepted work even if OR-tools is no longer installed
    for entry in journal.read(after=step):
        engine.apply(*entry.facts)
        engine.assume(entry.decisions)
    engine.solver = solver.found()
    return engine


def _newest_readable(journal: Journal) -> tuple[int, Engine]:
    """The newest checkpoint that is not damaged, and its engine."""
    step = journal.newest_checkpoint
    while True:
        try:
            return step, engine_after(journal, step)
        except Unreadable:
            if step <= journal.kept_after:
                raise
            step = journal.checkpoint_before(step)


def engine_after(journal: Journal, step: int, settings: Settings | None = None) -> Engine:
    """The engine from the checkpoint taken after a step; for step 0 without one, an empty engine."""
    saved = journal.checkpoint(step)
    if saved is None:
        if step:
            raise Invalid(f"{journal.path} has no checkpoint after step {step}")
        return Engine(settings or journal.settings, solver.found())
    return Engine.restored(saved, settings or journal.settings, solver.found())


def replay(
    journal: Journal,
    settings: Settings | None = None,
    progress: Callable[[int], None] | None = None,
    after: int | None = None,
) -> Engine:
    """The engine after the last step, with every kept fact applied and every decision made again. It continues from
    each checkpoint on the way, as a restarted controller does.

    Raises `Diverged` at the first step whose decisions are not byte-equal to the written ones. `progress` is called
    with the number of each equal step. `after`: start at the checkpoint after this step.
    """
    base = journal.kept_after if after is None else after
    engine = engine_after(journal, base, settings)
    for entry in journal.read(after=base):
        decide_again(engine, entry)
        if progress is not None:
            progress(entry.step)
        if journal.checkpoint_at(entry.step) is not None:
            engine = engine_after(journal, entry.step, settings)
    return engine


def difference(path: Path) -> str:
    """Replay the steps between the last two checkpoints: those that the previous writer wrote after its last
    checkpoint. Returns the first difference as a sentence, or "" if there is none."""
    with Journal.reading(path) as journal:
        end = journal.newest_checkpoint
        after = max(journal.checkpoint_before(end), journal.kept_after)
        engine = engine_after(journal, after)
        try:
            for entry in journal.read(after):
                if entry.step > end:
                    break
                decide_again(engine, entry)
        except Diverged as error:
            return str(error)
        return ""


def decide_again(engine: Engine, entry: Entry) -> tuple[Decision, ...]:
    """Apply a step's facts and decide; raises `Diverged` if the result differs from the step's decisions."""
    engine.apply(*entry.facts)
    decided = engine.decide()
    if dumps(decided) != dumps(entry.decisions):
        raise Diverged(entry.step, entry.decisions, decided)
    return tuple(decided)


def _connect(uri: str) -> sqlite3.Connection:
    """A connection for any thread. The journal's owner makes sure that only one thread uses it at a time."""
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
        raise Unreadable(f"{path} is not a stead journal; use another file name")
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if version != VERSION:
        raise Unreadable(f"{path} is a journal of version {version}, but this version of stead reads {VERSION}")


@contextmanager
def _sqlite_errors_as_sentences(path: Path) -> Iterator[None]:
    """Turn SQLite errors into one sentence about the journal; `Unreadable` only if the file is damaged."""
    try:
        yield
    except sqlite3.Error as error:
        kind = Unreadable if is_broken(error) else Unwritable
        raise kind(f"{path} cannot be used as a journal: {error}") from error


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn temporary disk errors of a SQLite file into `Unwritable`."""
    try:
        yield
    except sqlite3.Error as error:
        if is_broken(error):
            raise
        raise Unwritable(f"{path} cannot be written: {error}") from error


def is_broken(error: sqlite3.Error) -> bool:
    """Whether the file is damaged or of another kind, so that a retry cannot help."""
    return getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF in _BROKEN
