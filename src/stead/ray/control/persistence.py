"""The controller's files on the head, and their copy in Ray's own key-value store.

Rule: readable files are used; unreadable ones are moved aside and kept. Neither stops the controller from starting. The
copy is for a replaced head, and is restored only if the head's folder has no journal. It is written at most once a
second, or at once when labels or taints change, so it may lack the last second of work. Its size is limited.
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
from stead.engine.engine import Engine
from stead.engine.explain.events import EventKind
from stead.engine.facts import AskEnded, ClockAdvanced, GroupEnded, NodeJoined, NodeTainted
from stead.engine.restart.checkpoints import Checkpoint
from stead.engine.settings import Settings
from stead.engine.timing.taint_times import TaintEnd
from stead.errors import Invalid, Unready
from stead.journal import Journal, Superseded, difference, recover
from stead.language.nodes import Node, NodeId
from stead.ray.control.state_store import StateStore
from stead.ray.wire.folders import private
from stead.ray.wire.gcs import KeyValues

JOURNAL, STATE = "journal.sqlite", "book.sqlite"
KEY = "controller"
COPY_S = 1.0
COPY_SHARE = 20
"""The pause after a copy is this many times the duration of writing it."""

COPY_BYTES_MAX = 16_000_000
"""A larger copy omits where work runs (Ray's tables show it), and then the work. It always has labels and taints."""

ASIDE_MAX = 3
"""How many unreadable files of each kind are kept."""

T = TypeVar("T")
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Copy:
    """What is kept in Ray's store: the nodes with their labels and taints, the engine, and the state store (a SQLite
    file). The nodes and the ends of their taints are separate, because every version of stead can read them."""

    at: float
    nodes: tuple[Node, ...]
    engine: bytes
    state_store: bytes
    ends: tuple[TaintEnd, ...] = ()

    def packed(self) -> bytes:
        parts = (dumps(self.at), dumps(list(self.nodes)), self.engine, self.state_store, dumps(list(self.ends)))
        return zlib.compress(b"".join(struct.pack("!Q", len(part)) + part for part in parts), 1)

    @staticmethod
    def unpacked(packed: bytes) -> Copy:
        rest, parts = zlib.decompress(packed), list[bytes]()
        while rest:
            (length,) = struct.unpack_from("!Q", rest)
            parts.append(rest[8 : 8 + length])
            rest = rest[8 + length :]
        at, nodes, engine, state_store, ends = (*parts, b"[]")[:5]
        return Copy(
            loads(at, float), loads(nodes, tuple[Node, ...]), engine, state_store, loads(ends, tuple[TaintEnd, ...])
        )

    def restored_engine(self, settings: Settings) -> Engine:
        if self.engine:
            try:
                return Engine.restored(loads(self.engine, Checkpoint), settings, solver.found())
            except Exception:
                log.exception("the engine in Ray's store has another version; only its nodes are restored")
        engine = Engine(settings, solver.found())
        engine.apply(ClockAdvanced(self.at), *map(NodeJoined, self.nodes))
        for end in self.ends:
            for taint in engine.nodes[end.node].taints if end.node in engine.nodes else ():
                if (taint.key, taint.effect) == (end.key, end.effect):
                    engine.apply(NodeTainted(end.node, taint, end.until, end.job, end.owner))
        engine.decide()
        return engine


class Stores:
    """The open files. `engine` is the restored state; `news` is what users should know about how it was restored."""

    def __init__(self, folder: Path, settings: Settings, values: KeyValues) -> None:
        self._folder, self._settings, self._values = folder, settings, values
        self.news: list[tuple[EventKind, str]] = []
        journal_is_new, store_is_new = (_is_new(folder / name) for name in (JOURNAL, STATE))
        found = None if journal_is_new else self._or_aside(JOURNAL, self._open_journal)
        copy = self._copy() if found is None else None
        if copy is not None and store_is_new:
            private(folder / STATE).write_bytes(copy.state_store)
        self.state_store: StateStore = self._or_aside(STATE, self._open_store) or self._open_store()
        try:
            self.journal, self.engine = found or self._new_journal(copy)
        except BaseException:
            self.state_store.close()
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
        self.state_store.close()
        self._is_closed = True
        self._offered.set()

    def report_news(self) -> None:
        """Write the news as events, and check in the background that this version makes the same decisions as the
        journal."""
        for kind, text in self.news:
            log.warning("%s: %s", kind, text)
            self.state_store.record(kind, "controller", text)
        self.news.clear()
        threading.Thread(target=self._check, name="stead-check", daemon=True).start()

    def _check(self) -> None:
        try:
            divergence = difference(self._folder / JOURNAL)
            if divergence:
                log.warning("this version decides the journal differently: %s", divergence)
                text = f"past decisions were kept, but this version decides differently: {divergence[:500]}"
                self.state_store.record(EventKind.DIVERGED, "controller", text)
        except Exception:
            log.exception("the journal could not be replayed")

    # -- opening

    def _open_store(self) -> StateStore:
        return StateStore(private(self._folder / STATE))

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
                    (self._folder / JOURNAL).unlink()  # so that the next attempt restores the copy again
                raise
            age = max(0.0, time.time() - copy.at)
            self.news.append((EventKind.RESTORED, f"from the copy in Ray's key-value store, written {age:.0f} s ago"))
        return journal, engine

    def _forget_ended(self, engine: Engine) -> None:
        """End work in a restored engine that the state store, which may be newer, does not know."""
        groups = [asked.group for asked, _ in self.state_store.groups()]
        known = {each.id for each in self.state_store.registered()} | {group.id for group in groups}
        known |= {member.id for group in groups for member in group.all_members}
        engine.apply(*(GroupEnded(id) for id in engine.groups if id not in known))
        known |= {id for id in (*engine.placed, *engine.waiting) if "#" in id}  # tasks in slots
        engine.apply(*(AskEnded(id) for id in (*engine.placed, *engine.waiting) if id not in known))
        engine.assume(())

    def _or_aside(self, name: str, opened: Callable[[], T]) -> T | None:
        """The file's content; None if it cannot be read, and then the file is moved aside."""
        try:
            return opened()
        except (Unready, Superseded):
            raise
        except (Invalid, sqlite3.Error, ValueError, KeyError, TypeError, AttributeError) as error:
            kept = self._move_aside(name)
            self.news.append((EventKind.UNREADABLE, f"{name} could not be used and was moved to {kept}: {error}"))
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
            self.news.append((EventKind.UNREADABLE, f"the copy in Ray's key-value store could not be used: {error}"))
            return None

    def update_copy(self, engine: Engine) -> None:
        """Write a new copy if something changed and the pause has passed; called in every round. Changes of nodes do
        not wait, because users make them."""
        now, nodes = time.monotonic(), engine.nodes
        state = (self.journal.steps_written, self.state_store.revision)
        if state == self._put or now < (self._next if nodes == self._nodes else self._rested):
            return
        self._put, self._nodes, self._latest = state, nodes, self._packed(engine)
        self._offered.set()
        self._rested = now + COPY_SHARE * (time.monotonic() - now)
        self._next = max(now + COPY_S, self._rested)

    def _packed(self, engine: Engine) -> bytes:
        nodes, ends = tuple(engine.nodes.values()), engine.taint_ends
        copy = Copy(time.time(), nodes, dumps(engine.checkpoint()), self.state_store.image(), ends).packed()
        is_large, self._is_large = self._is_large, len(copy) > COPY_BYTES_MAX
        if not self._is_large:
            return copy
        if not is_large:
            text = f"the copy in Ray's key-value store omits where work runs, because it would have {len(copy)} bytes"
            self.state_store.record(EventKind.COPY, "controller", text)
        copy = Copy(time.time(), nodes, b"", self.state_store.image(), ends).packed()
        if len(copy) <= COPY_BYTES_MAX:
            return copy
        return Copy(time.time(), nodes, b"", self.state_store.image(False), ends).packed()

    def _put_copies(self) -> None:
        while not self._is_closed:
            self._offered.wait()
            self._offered.clear()
            latest, self._latest = self._latest, None
            if latest is not None:
                try:
                    self._values.put(KEY, latest)
                except Exception:  # for example, the control store restarts; the next round retries
                    log.warning("the copy in Ray's key-value store could not be written", exc_info=True)
                    self._put = (-1, -1)


def _is_new(path: Path) -> bool:
    return not path.exists() or not path.stat().st_size
