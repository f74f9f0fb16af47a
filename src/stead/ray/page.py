"""The page: what every process of a node must know before it submits or goes on working.

Rule: one writer, many readers, no answer needed. A page is a folder with a counter of eight bytes, which readers
map into memory (reading it costs about 100 ns), and one file of JSON per count. The file is complete before the
counter moves, so whoever sees a count can read what belongs to it, and a process that hangs holds up nobody.
"""

from __future__ import annotations

import json
import mmap
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

FOLDER = "stead"
KEPT = 8
"""Old files kept for readers that saw an old count a moment ago."""

PREFIX = "stead."
"""Every resource name of stead's begins so, and no other should."""

TIMED = f"{PREFIX}timed"
"""Held by work that reports when it starts, because it has a deadline."""

TICKET = f"{PREFIX}t/"
"""How the names of tickets begin: passes for one piece of work each (see `stead.ray.tickets`)."""

ONE = 0.0001
"""What one piece of work holds of a pass, the least Ray can say."""

BOTH = 2 * ONE
"""What an actor asks of a pass to be placed; it then holds `ONE`. So what it leaves behind on a node that the pass was
withdrawn from is not enough for it to start there again. Also what is left there, plugged, to keep it feasible."""

SYNC_S = 0.15
"""How long raylets take to hear of each other's amounts: a period of Ray's sync, and a half. It gives no sign of it."""


@dataclass(frozen=True)
class Page:
    """What the controller tells every process."""

    count: int = 0
    bound: bool = False  # plain work carries the plain pass too, also where only stead.init was called
    grants: bool = True  # False: this Ray has no grants, so `only` names nodes instead
    policy: str = ""  # how nodes are chosen for work that does not say it; "" leaves it to Ray
    solves: bool = True  # False: the controller has no solver, so there is no flow
    generations: Mapping[str, int] = field(default_factory=dict)  # pass key -> the generation of new submissions
    tiers: Mapping[str, list[list[str]]] = field(default_factory=dict)  # wish key -> node ids, best first
    only: Mapping[str, list[str]] = field(default_factory=dict)  # pass key -> node ids, where there are no grants
    rare: Mapping[str, str] = field(default_factory=dict)  # resource -> the name its taint carries
    tainted: Mapping[str, str] = field(default_factory=dict)  # node id -> its taints, in words
    away: Mapping[str, list[str]] = field(default_factory=dict)  # node id -> names withdrawn there
    # node id -> name -> since when, and for how many seconds, what holds the name may stay
    evict: Mapping[str, Mapping[str, tuple[float, float]]] = field(default_factory=dict)

    def name(self, key: str) -> str:
        """The resource name that new submissions under a pass carry."""
        return pass_name(key, self.generations.get(key, 0))


def pass_name(key: str, generation: int) -> str:
    return f"{PREFIX}{key}.{generation}"


def read_name(name: str) -> tuple[str, int] | None:
    """The key and the generation in a pass's name; None for every other resource."""
    if not name.startswith(PREFIX) or name == TIMED:
        return None
    key, _, generation = name[len(PREFIX) :].rpartition(".")
    return (key, int(generation)) if key and generation.isdigit() else None


def folder_of(session_dir: str | Path, node_id: str) -> Path:
    return Path(session_dir) / FOLDER / node_id


class Writer:
    """Writes the page of one node."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        self._counter = folder / "count"

    def write(self, page: Page) -> None:
        text = json.dumps(asdict(page), separators=(",", ":"))
        unfinished = self.folder / "unfinished"
        unfinished.write_text(text, encoding="utf-8")
        unfinished.replace(self.folder / f"{page.count}.json")
        if self._counter.exists():
            with self._counter.open("r+b", buffering=0) as counter:
                counter.write(page.count.to_bytes(8, "little"))
        else:
            unfinished.write_bytes(page.count.to_bytes(8, "little"))
            unfinished.replace(self._counter)
        for old in self.folder.glob("*.json"):
            if old.stem.isdigit() and int(old.stem) <= page.count - KEPT:
                old.unlink(missing_ok=True)

    @property
    def count(self) -> int:
        """The count of the page that stands, 0 before the first."""
        try:
            return int.from_bytes(self._counter.read_bytes(), "little")
        except FileNotFoundError:
            return 0


class Reader:
    """Reads the page of this process's node; `page()` costs next to nothing while it does not change."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
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
            number = os.open(self.folder / "count", os.O_RDONLY)
        except FileNotFoundError:
            return None
        try:
            self._counter = mmap.mmap(number, 8, access=mmap.ACCESS_READ)
        finally:
            os.close(number)
        return self._counter

    def _load(self, count: int) -> Page:
        while True:
            try:
                return Page(**json.loads((self.folder / f"{count}.json").read_text(encoding="utf-8")))
            except FileNotFoundError:  # so old that it is gone: there is a newer one
                assert self._counter is not None
                newer = int.from_bytes(self._counter[:8], "little")
                if newer == count:
                    raise
                count = newer
