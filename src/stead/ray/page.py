"""The page: what every process of a node must know before it submits or goes on working.

Rule: one writer, many readers, no answer needed. A page is a folder with a counter of eight bytes, which readers
map into memory (reading it costs about 100 ns), and one file of JSON per count. The file is complete before the
counter moves, so whoever sees a count can read what belongs to it, and a process that hangs holds up nobody.

Every user of the machine may read pages, because programs of several users share a cluster; only the owner writes
them. Beside them is what only the controller may read (journal, book, audit), in a folder that others can traverse but
not list (see `stead.ray.folders`). A reader ignores fields that it does not know: the controller may be newer.
"""

from __future__ import annotations

import json
import logging
import mmap
import os
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from functools import lru_cache
from pathlib import Path
from typing import Self

from stead.errors import Invalid
from stead.ray.folders import Folder, NotOurs, protect

PROTOCOL = 1
"""Changes when a program and a controller with different numbers would misunderstand each other: what messages and
pages mean, not what is in them."""

FOLDER, COUNTER = "stead", "count"
KEPT = 8
"""Old files kept for readers that saw an old count a moment ago."""

PREFIX = "stead."
"""Every resource name of stead's begins so, and no other should."""

TIMED = f"{PREFIX}timed"
"""Held by work that reports when it starts, because it has a deadline."""

TICKET = f"{PREFIX}t/"
"""How the names of tickets begin: passes for one piece of work each (see `stead.ray.tickets`)."""

SLOT = f"{PREFIX}s/"
"""How the names of slots begin: one for each shape of tasks that the engine places (see `stead.ray.slots`)."""

ONE = 0.0001
"""The least Ray can say."""

ENTRY, SOFT_ENTRY = 5000 * ONE, ONE
"""What tasks and bundles ask of a pass and hold; and what a task asks that only prefers the node it is sent to."""

ACTOR_ENTRY, ACTOR_HOLDS = 7000 * ONE, 50 * ONE
"""What an actor asks of a pass to be placed, and what it then holds while it lives.

So, on a node that the pass was withdrawn from: what actors leave behind is not enough to start a task, and what a task
leaves behind is not enough for an actor. A withdrawn name that only actors hold counts as free of work. And a few
`SOFT_ENTRY` let in tasks that only prefer the node, and nothing else."""

SOFT_ACTOR_ENTRY = 1.0
"""What an actor that only prefers its node asks of its pass's `soft_name`; it holds nothing of it."""

BOTH = 2 * ONE
"""What an actor asks of its ticket to be placed; it then holds `ONE`, which is not enough to be placed again."""

REFRESH_S = 1.0
"""How often the controller is asked for the page by a process that cannot read it."""

SYNC_S = 0.15
"""How long raylets take to hear of each other's amounts: a period of Ray's sync, and a half. It gives no sign of it."""


log = logging.getLogger(__name__)


class NoPage(Invalid):
    """The page of this node cannot be read, and the controller cannot be asked for it."""


class Unreadable(Exception):
    """A page is there and cannot be read; the message says why."""


@dataclass(frozen=True)
class Page:
    """What the controller tells every process."""

    count: int = 0
    protocol: int = PROTOCOL
    bound: bool = False  # plain work carries the plain pass too, also where only stead.init was called
    grants: bool = True  # False: this Ray has no grants, so `only` binds work instead
    policy: str = ""  # how nodes are chosen for work that does not say it; "" leaves it to Ray
    solves: bool = True  # False: the controller has no solver, so there is no flow
    generations: Mapping[str, int] = field(default_factory=dict)  # pass key -> the generation of new submissions
    slots: Mapping[str, int] = field(
        default_factory=dict
    )  # shape of tasks -> the generation of new submissions, if not 0
    tiers: Mapping[str, list[list[str]]] = field(default_factory=dict)  # wish key -> node ids, best first
    # pass key -> label selectors for Ray, the first one first, where there are no grants
    only: Mapping[str, list[dict[str, str]]] = field(default_factory=dict)
    rare: Mapping[str, str] = field(default_factory=dict)  # resource -> the name its taint carries
    tainted: Mapping[str, str] = field(default_factory=dict)  # node id -> its taints, in words
    away: Mapping[str, list[str]] = field(default_factory=dict)  # node id -> names withdrawn there
    # node id -> name -> since when, and for how many seconds, what holds the name may stay
    evict: Mapping[str, Mapping[str, tuple[float, float]]] = field(default_factory=dict)

    def name(self, key: str) -> str:
        """The resource name that new submissions under a pass carry."""
        return pass_name(key, self.generations.get(key, 0))

    def text(self) -> str:
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def of(cls, text: str) -> Self:
        """A page as it was written, perhaps by a newer controller."""
        try:
            found = dict(json.loads(text))
        except (ValueError, TypeError) as error:
            raise Unreadable(f"it is not a page: {error}") from None
        if found.get("protocol") != PROTOCOL:
            raise Unreadable(
                f"the cluster's controller has protocol {found.get('protocol')} and this program has {PROTOCOL}; "
                "install the same version of stead on both"
            )
        known = {each.name for each in fields(cls)}
        return cls(**{name: value for name, value in found.items() if name in known})


def slot_name(key: str, generation: int) -> str:
    return f"{SLOT}{key}/{generation}"


def read_slot(name: str) -> tuple[str, int] | None:
    """The shape and the generation in the name of a slot; None for every other resource."""
    key, _, generation = name[len(SLOT) :].partition("/")
    return (key, int(generation)) if name.startswith(SLOT) and generation.isdigit() else None


def pass_name(key: str, generation: int) -> str:
    return f"{PREFIX}{key}.{generation}"


def soft_name(key: str) -> str:
    """The resource that nodes have which the pass is allowed on, and that is never plugged: without it a node is
    infeasible, so Ray sends actors that only prefer the node to another."""
    return f"{PREFIX}{key}.soft"


def read_soft(name: str) -> str | None:
    """The key of the pass in its `soft_name`; None for every other resource."""
    return name[len(PREFIX) : -len(".soft")] if name.startswith(PREFIX) and name.endswith(".soft") else None


@lru_cache(maxsize=16_384)
def read_name(name: str) -> tuple[str, int] | None:
    """The key and the generation in a pass's name; None for every other resource."""
    if not name.startswith(PREFIX) or name == TIMED:
        return None
    key, _, generation = name[len(PREFIX) :].rpartition(".")
    return (key, int(generation)) if key and generation.isdigit() else None


def folder_of(session_dir: str | Path, node_id: str) -> Path:
    return Path(session_dir) / FOLDER / node_id


def open_folder(session_dir: str | Path) -> Path:
    """The folder that pages and private files are in: created if needed, and traversable for others. Raises `NotOurs`
    if another user may have put it there."""
    return _opened_folder(Path(session_dir)).path


def _opened_folder(session: Path) -> Folder:
    protect(session)
    return Folder.made(session / FOLDER, 0o711)


class Writer:
    """Writes the page of one node."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._files = Folder.made(folder, 0o755, _opened_folder(folder.parent.parent))

    def write(self, page: Page) -> None:
        """The counter must stay the same file: readers have mapped it."""
        count = page.count.to_bytes(8, "little")
        self._files.replace(f"{page.count}.json", page.text().encode(), 0o644)
        if not self._files.overwrite(COUNTER, count, 0o644):
            self._files.replace(COUNTER, count, 0o644)
        for name in self._files.names():
            number, _, kind = name.partition(".")
            if kind == "json" and number.isdigit() and int(number) <= page.count - KEPT:
                self._files.remove(name)

    @property
    def count(self) -> int:
        """The count of the page that stands, 0 before the first."""
        try:
            return int.from_bytes(self._files.read(COUNTER), "little")
        except FileNotFoundError:
            return 0


class Reader:
    """Reads the page of this process's node; `page()` costs next to nothing while it does not change. Before the first
    page it is an empty one. A page counts only if the owner of Ray's session folder, root or this user wrote it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._files: Folder | None = None
        self._counter: mmap.mmap | None = None
        self._count = b""
        self._page = Page()

    def page(self) -> Page:
        counter = self._counter or self._open()
        if counter is None:
            return self._page
        count = counter[:8]
        if count != self._count:
            self._page = self._load(int.from_bytes(count, "little"))
            self._count = count
        return self._page

    def _open(self) -> mmap.mmap | None:
        try:
            owners = frozenset({0, os.geteuid(), self.folder.parent.parent.stat().st_uid})
            self._files = Folder.entered(self.folder, owners, Folder.entered(self.folder.parent, owners))
            number = self._files.open(COUNTER)
        except FileNotFoundError:
            return None
        except (NotOurs, OSError) as error:
            raise Unreadable(str(error)) from None
        try:
            self._counter = mmap.mmap(number, 8, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            raise Unreadable(str(error)) from None
        finally:
            os.close(number)
        return self._counter

    def _load(self, count: int) -> Page:
        assert self._files is not None
        assert self._counter is not None
        while True:
            try:
                return Page.of(self._files.read(f"{count}.json").decode())
            except FileNotFoundError as error:  # so old that it is gone: there is a newer one
                newer = int.from_bytes(self._counter[:8], "little")
                if newer == count:
                    raise Unreadable(str(error)) from None
                count = newer
            except (NotOurs, OSError, UnicodeDecodeError) as error:
                raise Unreadable(str(error)) from None


class AskedPage:
    """The page for a process that cannot read its node's: the controller is asked for it, about once a second.

    The last answer holds until there is a newer one: what it names is still granted, so Ray still enforces it. Without
    any answer there is no page, and whoever needs one is told so.
    """

    def __init__(self, reader: Reader, why: Unreadable, ask: Callable[[], str], is_over: Callable[[], bool]) -> None:
        self._reader, self._ask, self._is_over = reader, ask, is_over
        self._page: Page | None = None
        self._unread = f"the page of this node cannot be read ({why})"
        self._why, self.is_needed = self._unread, True
        if self._refresh():
            log.warning(
                "stead cannot read the page of this node (%s), so it asks the controller every second; a taint reaches "
                "this program up to a second later",
                why,
            )
        else:
            log.warning(
                "stead does not bind this program, because %s. Work that asks nothing of stead goes to Ray as it is: "
                "taints, drained nodes, labels set at run time and the cluster's policy are not enforced for it",
                self._why,
            )
        threading.Thread(target=self._run, name="stead-page", daemon=True).start()

    def page(self) -> Page:
        if self._page is None:
            raise NoPage(f"stead cannot tell which nodes this work may use: {self._why}")
        return self._page

    def _refresh(self) -> bool:
        try:
            self._page = Page.of(self._ask())
        except (Exception, SystemExit) as error:  # Ray ends calls by the latter when a process leaves
            first = (str(error).strip() or type(error).__name__).splitlines()[0]
            self._why = f"{self._unread} and the controller did not tell it ({first})"
            return False
        return True

    def _run(self) -> None:
        while self.is_needed and not self._is_over():
            time.sleep(REFRESH_S)
            with suppress(Unreadable):
                self._reader.page()
                self.is_needed = False
                return
            self._refresh()
