"""The page: what every process of a node must know before it submits work or runs the next task.

Rule: one writer, many readers, no confirmation from readers. A page is a folder with an 8-byte counter, which readers
map into memory (reading it takes about 100 ns), and one JSON file per count. The file is complete before the counter
increases, so a reader that sees a count can read its file. A process that hangs blocks no other.

Every user of the machine can read pages, because programs of several users share a cluster; only the owner can write
them. The controller's private files (journal, state store, audit) are beside them, in a folder that others can traverse
but not list (see `stead.ray.wire.folders`). A reader ignores unknown fields: the controller may be newer.
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
from pathlib import Path
from typing import Self

from stead.errors import Invalid
from stead.ray.wire.folders import Folder, NotOurs, protect
from stead.ray.wire.own_names import pass_name

PROTOCOL = 1
"""Increase it when the meaning of messages or pages changes, so that programs and controllers with different numbers
would misunderstand each other. A new field alone does not need that."""

FOLDER, COUNTER = "stead", "count"
KEPT = 8
"""How many old files are kept for readers that have just seen an old count."""

HEAD = "node:__internal_head__"
"""A resource that Ray gives only to the head node."""

ONE = 0.0001
"""The smallest amount in Ray."""

ENTRY, SOFT_ENTRY = 5000 * ONE, ONE
"""What tasks and bundles ask of a pass and hold; and what a task asks that only prefers its node."""

ACTOR_ENTRY, ACTOR_HOLDS = 7000 * ONE, 50 * ONE
"""What an actor asks of a pass to be placed, and what it then holds while it runs.

So, on a node that the pass was withdrawn from, what actors release is not enough to start a task, and what a task
releases is not enough for an actor. A withdrawn name that only actors hold counts as unused. And a few `SOFT_ENTRY`
admit only tasks that prefer the node."""

SOFT_ACTOR_ENTRY = 1.0
"""What an actor that only prefers its node asks of its pass's `soft_name`; it does not hold it."""

BOTH = 2 * ONE
"""What an actor asks of its ticket to be placed. It then holds `ONE`, which is not enough to be placed again."""

REFRESH_S = 1.0
"""How often a process that cannot read its page requests it from the controller."""

SYNC_S = 0.15
"""How long raylets take to learn each other's amounts: 1.5 periods of Ray's sync, which gives no confirmation."""


log = logging.getLogger(__name__)


class NoPage(Invalid):
    """The page of this node can neither be read nor requested from the controller."""


class Unreadable(Exception):
    """A page exists and cannot be read; the message has the reason."""


@dataclass(frozen=True)
class Page:
    """What the controller publishes to every process."""

    count: int = 0
    protocol: int = PROTOCOL
    bound: bool = False  # plain work carries the plain pass too, even with only stead.init
    grants: bool = True  # False: this Ray has no grants, so `only` binds work instead
    policy: str = ""  # the default policy; "" leaves the choice to Ray
    solves: bool = True  # False: the controller has no solver, so no flow policies
    generations: Mapping[str, int] = field(default_factory=dict)  # pass key -> the generation of new submissions
    slots: Mapping[str, int] = field(
        default_factory=dict
    )  # shape of tasks -> the generation of new submissions, if not 0
    tiers: Mapping[str, list[list[str]]] = field(default_factory=dict)  # wish key -> node ids, best first
    # pass key -> label selectors for Ray, first to last, if there are no grants
    only: Mapping[str, list[dict[str, str]]] = field(default_factory=dict)
    rare: Mapping[str, str] = field(default_factory=dict)  # resource -> the name in its taint
    tainted: Mapping[str, str] = field(default_factory=dict)  # node id -> its taints as text
    late: list[str] = field(default_factory=list)  # ids of nodes that may lack a pass until they answer
    away: Mapping[str, list[str]] = field(default_factory=dict)  # node id -> names withdrawn there
    # node id -> name -> since when its holders must leave, and how many seconds they may stay
    evict: Mapping[str, Mapping[str, tuple[float, float]]] = field(default_factory=dict)

    def name(self, key: str) -> str:
        """The resource name that new submissions under a pass carry."""
        return pass_name(key, self.generations.get(key, 0))

    def text(self) -> str:
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def of(cls, text: str) -> Self:
        """Parse a page, which a newer controller may have written."""
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


def folder_of(session_dir: str | Path, node_id: str) -> Path:
    return Path(session_dir) / FOLDER / node_id


def open_folder(session_dir: str | Path) -> Path:
    """The folder of pages and private files: created if needed, and traversable for other users. Raises `NotOurs` if
    another user may have put it there."""
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
        """Write the page. The counter must stay the same file, because readers have mapped it."""
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
        """The count of the current page; 0 before the first."""
        try:
            return int.from_bytes(self._files.read(COUNTER), "little")
        except FileNotFoundError:
            return 0


class Reader:
    """Reads the page of this process's node. `page()` is very cheap while it does not change, and empty before the
    first one. A page is used only if the owner of Ray's session folder, root or this user wrote it."""

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
            except FileNotFoundError as error:  # already removed, so there is a newer one
                newer = int.from_bytes(self._counter[:8], "little")
                if newer == count:
                    raise Unreadable(str(error)) from None
                count = newer
            except (NotOurs, OSError, UnicodeDecodeError) as error:
                raise Unreadable(str(error)) from None


class AskedPage:
    """The page for a process that cannot read its node's: requested from the controller about once a second.

    The last answer is used until there is a newer one: its names are still granted, so Ray still enforces them. Without
    any answer there is no page, and `page` raises `NoPage`.
    """

    def __init__(self, reader: Reader, why: Unreadable, ask: Callable[[], str], has_left: Callable[[], bool]) -> None:
        self._reader, self._ask, self._has_left = reader, ask, has_left
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
                "stead cannot bind this program, because %s. Work that uses no option of stead goes to Ray unchanged: "
                "taints, drained nodes, labels set at run time and the cluster's policy are not enforced for it",
                self._why,
            )
        threading.Thread(target=self._run, name="stead-page", daemon=True).start()

    def page(self) -> Page:
        if self._page is None:
            raise NoPage(f"stead does not know which nodes this work may use: {self._why}")
        return self._page

    def _refresh(self) -> bool:
        try:
            self._page = Page.of(self._ask())
        except (Exception, SystemExit) as error:  # Ray raises the latter when a process exits
            first = (str(error).strip() or type(error).__name__).splitlines()[0]
            self._why = f"{self._unread} and the controller did not send it ({first})"
            return False
        return True

    def _run(self) -> None:
        while self.is_needed and not self._has_left():
            time.sleep(REFRESH_S)
            with suppress(Unreadable):
                self._reader.page()
                self.is_needed = False
                return
            self._refresh()
