"""The controller's files on the head, opened so that it can go on, and their copy in Ray's own key-value store.

Rule: what can be read is used, and what cannot is moved aside and kept; neither stops the controller from starting. The
copy is for a head that was replaced: it is restored only where the head's folder has no journal. It is put at most once
a second, or when labels and taints have changed, so it may lack the last second of work. It is bounded in size.
"""

from __future__ import annotations

import logging
import sqlite3
import struct
import threading
import time
import zlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from stead import solver
from stead.codec import dumps, loads
from stead.engine import Engine, Settings
from stead.engine.checkpoints import Checkpoint
from stead.engine.facts import AskEnded, GroupEnded, NodeJoined
from stead.errors import Invalid, Unready
from stead.journal import Journal, Superseded, difference, recover
from stead.node import Node, NodeId
from stead.ray.book import Book
from stead.ray.cluster import IN_USE
from stead.ray.folders import private
from stead.ray.gcs import KeyValues

JOURNAL, BOOK = "journal.sqlite", "book.sqlite"
KEY = "controller"
COPY_S = 1.0
COPY_SHARE = 20
"""The next copy is made no sooner than after so many times as long as the last one took."""

COPY_BYTES_MAX = 16_000_000
"""A larger copy leaves out where work runs (Ray's tables tell), and then the work. Labels and taints always stay."""

ASIDE_MAX = 3
"""So many files of a kind that could not be read are kept."""

T = TypeVar("T")
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Copy:
    """What is kept in Ray's store: the nodes with their labels and taints, the engine, and the book (a SQLite file).
    The nodes are there by themselves because every version of stead can read them."""

    at: float
    nodes: tuple[Node, ...]
    engine: bytes
    book: bytes

    def packed(self) -> bytes:
        parts = (dumps(self.at), dumps(list(self.nodes)), self.engine, self.book)
        return zlib.compress(b"".join(struct.pack("!Q", len(part)) + part for part in parts), 1)

    @staticmethod
    def unpacked(packed: bytes) -> Copy:
        rest, parts = zlib.decompress(packed), list[bytes]()
        while rest:
            (length,) = struct.unpack_from("!Q", rest)
            parts.append(rest[8 : 8 + length])
            rest = rest[8 + length :]
        at, nodes, engine, book = parts
        return Copy(loads(at, float), loads(nodes, tuple[Node, ...]), engine, book)

    def restored_engine(self, settings: Settings) -> Engine:
        if self.engine:
            try:
                return Engine.restored(loads(self.engine, Checkpoint), settings, solver.found())
            except Exception:
                log.exception("the engine's copy in Ray's store is of another version; its nodes are used")
        engine = Engine(settings, solver.found())
        engine.apply(*map(NodeJoined, self.nodes))
        engine.decide()
        return engine


class Stores:
    """The open files. `engine` is the state to go on with; `news` is what people should know of how it was found."""

    def __init__(self, folder: Path, settings: Settings, values: KeyValues) -> None:
        self._folder, self._settings, self._values = folder, settings, values
        self.news: list[tuple[str, str]] = []
        journal_is_new, book_is_new = (_is_new(folder / name) for name in (JOURNAL, BOOK))
        found = None if journal_is_new else self._or_aside(JOURNAL, self._open_journal)
        copy = self._copy() if found is None else None
        if copy is not None and book_is_new:
            private(folder / BOOK).write_bytes(copy.book)
        self.book: Book = self._or_aside(BOOK, self._open_book) or self._open_book()
        try:
            self.journal, self.engine = found or self._new_journal(copy)
        except BaseException:
            self.book.close()
            raise
        self._offered = threading.Event()
        self._latest: bytes | None = None
        self._put: tuple[int, int] = (-1, -1)
        self._nodes: Mapping[NodeId, Node] = {}
        self._next = self._rested = 0.0
        self._is_large = self._is_closed = False
        threading.Thread(target=self._put_copies, name="stead-copies", daemon=True).start()

    def close(self) -> None:
        self.journal.close()
        self.book.close()
        self._is_closed = True
        self._offered.set()

    def tell(self) -> None:
        """Write the news down as events, and check in the background that what was written is decided alike today."""
        for kind, text in self.news:
            log.warning("%s: %s", kind, text)
            self.book.add_event(time.time(), kind, "controller", text)
        self.news.clear()
        threading.Thread(target=self._check, name="stead-check", daemon=True).start()

    def _check(self) -> None:
        try:
            said = difference(self._folder / JOURNAL)
            if said:
                log.warning("the journal is not decided alike by this version: %s", said)
                text = f"decisions of the past were kept, but this version decides otherwise: {said[:500]}"
                self.book.add_event(time.time(), "diverged", "controller", text)
        except Exception:
            log.exception("the journal could not be decided again")

    # -- opening

    def _open_book(self) -> Book:
        return Book(private(self._folder / BOOK))

    def _open_journal(self) -> tuple[Journal, Engine]:
        journal = Journal.open(private(self._folder / JOURNAL), self._settings)
        try:
            return journal, recover(journal)
        except BaseException:
            journal.close()
            raise

    def _new_journal(self, copy: Copy | None) -> tuple[Journal, Engine]:
        journal, engine = self._open_journal()
        if copy is not None:
            engine = copy.restored_engine(self._settings)
            self._forget_ended(engine)
            try:
                journal.keep(engine.checkpoint())
            except BaseException:
                journal.close()
                with suppress(OSError):
                    (self._folder / JOURNAL).unlink()  # so that the next try restores the copy, too
                raise
            age = max(0.0, time.time() - copy.at)
            self.news.append(("restored", f"from the copy in Ray's key-value store, put {age:.0f} s ago"))
        return journal, engine

    def _forget_ended(self, engine: Engine) -> None:
        """End work in a restored engine that the book, which may be newer, does not know."""
        groups = [asked.group for asked, _ in self.book.groups()]
        known = {each.id for each in self.book.registered()} | {group.id for group in groups}
        known |= {member.id for group in groups for member in group.all_members}
        engine.apply(*(GroupEnded(id) for id in engine.groups if id not in known))
        known |= {
            id for id in (*engine.placed, *engine.waiting) if id.startswith(IN_USE) or "#" in id
        }  # tasks in slots
        engine.apply(*(AskEnded(id) for id in (*engine.placed, *engine.waiting) if id not in known))
        engine.assume(())

    def _or_aside(self, name: str, opened: Callable[[], T]) -> T | None:
        """What the file holds; None if it cannot be read for good, and then it is moved aside."""
        try:
            return opened()
        except (Unready, Superseded):
            raise
        except (Invalid, sqlite3.Error, ValueError, KeyError, TypeError, AttributeError) as error:
            kept = self._move_aside(name)
            self.news.append(("unreadable", f"{name} could not be used and was moved to {kept}: {error}"))
            return None

    def _move_aside(self, name: str) -> Path:
        path = self._folder / name
        aside = path.with_name(f"{name}.{time.strftime('%Y%m%d-%H%M%S')}.unreadable")
        for suffix in ("", "-wal", "-shm"):
            with suppress(FileNotFoundError):
                path.with_name(name + suffix).rename(aside.with_name(aside.name + suffix))
        old = sorted(self._folder.glob(f"{name}.*.unreadable"))[:-ASIDE_MAX]
        for each in old:
            for suffix in ("", "-wal", "-shm"):
                each.with_name(each.name + suffix).unlink(missing_ok=True)
        return aside

    # -- the copy

    def _copy(self) -> Copy | None:
        found = self._values.get(KEY)
        if not found:
            return None
        try:
            return Copy.unpacked(found)
        except (Invalid, ValueError, struct.error, zlib.error) as error:
            self.news.append(("unreadable", f"the copy in Ray's key-value store could not be used: {error}"))
            return None

    def mind_copy(self, engine: Engine) -> None:
        """Called in every round: have a new copy put if something changed, and it is time. A change of nodes, which
        people make, does not wait for a second to pass."""
        now, nodes = time.monotonic(), engine.nodes
        state = (self.journal.steps_written, self.book.revision)
        if state == self._put or now < (self._next if nodes == self._nodes else self._rested):
            return
        self._put, self._nodes, self._latest = state, nodes, self._packed(engine)
        self._offered.set()
        self._rested = now + COPY_SHARE * (time.monotonic() - now)
        self._next = max(now + COPY_S, self._rested)

    def _packed(self, engine: Engine) -> bytes:
        nodes = tuple(engine.nodes.values())
        copy = Copy(time.time(), nodes, dumps(engine.checkpoint()), self.book.image()).packed()
        is_large, self._is_large = self._is_large, len(copy) > COPY_BYTES_MAX
        if not self._is_large:
            return copy
        if not is_large:
            text = f"it would have {len(copy)} bytes, so the copy in Ray's key-value store leaves out where work runs"
            self.book.add_event(time.time(), "copy", "controller", text)
        copy = Copy(time.time(), nodes, b"", self.book.image()).packed()
        return copy if len(copy) <= COPY_BYTES_MAX else Copy(time.time(), nodes, b"", self.book.image(False)).packed()

    def _put_copies(self) -> None:
        while not self._is_closed:
            self._offered.wait()
            self._offered.clear()
            latest, self._latest = self._latest, None
            if latest is not None:
                try:
                    self._values.put(KEY, latest)
                except Exception:  # the control store restarts: the next round offers one again
                    log.warning("the copy in Ray's key-value store could not be put", exc_info=True)
                    self._put = (-1, -1)


def _is_new(path: Path) -> bool:
    return not path.exists() or not path.stat().st_size
