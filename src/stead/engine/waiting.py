"""Waiting work: who is next, who sleeps, and what wakes them.

Rule: asks of one shape wait as one. A *sleeper* (a shape, or the shape of a group) that found no place
sleeps until a column changes that one of its rules reads, on a node where that could help; a change
that concerns no sleeper costs one dictionary lookup. Work is tried by priority, then by the moment it
was submitted; asks of one moment and one shape go together.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

from stead.asks import Ask, Group
from stead.engine.decisions import Refusal
from stead.engine.fleet import NODES, Column, Nodes
from stead.engine.shapes import Shape
from stead.engine.sharing import Sheet, Shelf


class Sleeper(Protocol):
    """A shape or a group's shape: hashed by identity."""

    turn: int


class Entry(NamedTuple):
    """An ask or group in the line. `moment` is when it was submitted and `turn` in which order; `since` is
    when it began to wait, which is later for work that had a place and lost it."""

    item: Ask | Group
    moment: float
    turn: int
    since: float


class Line(NamedTuple):
    """Where equal work waits: one shape, one priority."""

    sleeper: Sleeper
    priority: int


class Waiting:
    def __init__(self) -> None:
        self._lines: Shelf[Line, str, Entry] = Shelf()
        self._line_of: Sheet[str, Line] = Sheet()
        self._lines_of: Shelf[Sleeper, Line, None] = Shelf()
        self._unsorted: set[Line] = set()
        self._ready: dict[Sleeper, None] = {}
        self._readers: Shelf[Column, Sleeper, None] = Shelf()
        self._columns: Sheet[Sleeper, tuple[Column, ...]] = Sheet()
        self._hopes: Sheet[Sleeper, Nodes] = Sheet()
        self._told: Sheet[Sleeper, tuple[Refusal, ...]] = Sheet()
        self._untold: Shelf[Sleeper, str, None] = Shelf()

    def fork(self) -> Waiting:
        twin = Waiting.__new__(Waiting)
        for name in ("_lines", "_line_of", "_lines_of", "_readers", "_columns", "_hopes", "_told", "_untold"):
            setattr(twin, name, getattr(self, name).fork())
        twin._unsorted, twin._ready = set(self._unsorted), dict(self._ready)
        return twin

    # -- the line

    def __contains__(self, id: str) -> bool:
        return id in self._line_of.map

    @property
    def ids(self) -> Mapping[str, object]:
        """Everything that waits, by id."""
        return self._line_of.map

    def add(self, sleeper: Sleeper, priority: int, entries: Sequence[Entry]) -> None:
        """Queue items of one shape and priority, in the order of their turns, awake."""
        line = Line(sleeper, priority)
        waiting = self._lines.write(line)
        if waiting and next(reversed(waiting.values())).turn > entries[0].turn:
            self._unsorted.add(line)
        new = {entry.item.id: entry for entry in entries}
        waiting.update(new)
        self._line_of.write().update(dict.fromkeys(new, line))
        self._untold.write(sleeper).update(dict.fromkeys(new))
        if line not in self._lines_of.read(sleeper):
            self._lines_of.write(sleeper)[line] = None
        self._ready[sleeper] = None

    def remove(self, *ids: str) -> None:
        """Remove items of one line."""
        line_of = self._line_of.write()
        line = line_of[ids[0]]
        waiting, untold = self._lines.write(line), self._untold.write(line.sleeper)
        for id in ids:
            del line_of[id]
        if len(ids) == len(waiting) == len(untold):
            waiting.clear()
            untold.clear()
        else:
            for id in ids:
                del waiting[id]
                untold.pop(id, None)
        if not untold:
            self._untold.clear(line.sleeper)
        if not waiting:
            self._lines.clear(line)
            self._unsorted.discard(line)
            self._lines_of.drop(line.sleeper, line)
            if line.sleeper not in self._lines_of:
                self._forget(line.sleeper)

    def entry(self, id: str) -> Entry:
        return self._lines.read(self._line_of.map[id])[id]

    def sleeper_of(self, id: str) -> Sleeper:
        return self._line_of.map[id].sleeper

    def entries_of(self, sleeper: Sleeper) -> list[Entry]:
        """All that wait with a shape, the next first."""
        lines = sorted(self._lines_of.read(sleeper), key=lambda line: -line.priority)
        return [entry for line in lines for entry in self._sorted(line).values()]

    def in_order(self) -> list[Entry]:
        """Everything that waits, in the order in which it will be tried."""
        found = [
            ((-line.priority, entry.moment, line.sleeper.turn, entry.turn), entry)
            for line in self._lines
            for entry in self._sorted(line).values()
        ]
        return [entry for _, entry in sorted(found, key=lambda pair: pair[0])]

    def heads(self) -> Iterator[tuple[Line, Entry]]:
        """The first of every line, in no particular order."""
        for line in self._lines:
            yield line, next(iter(self._sorted(line).values()))

    def shapes(self) -> Iterator[Shape]:
        """The shapes of asks that wait."""
        return (sleeper for sleeper in self._lines_of if isinstance(sleeper, Shape))

    # -- who is next

    def runs(self) -> Iterator[tuple[Line, list[Entry]]]:
        """Items that are awake, a run at a time: of one shape, priority and moment, the next run first.

        After each run the caller has removed what it placed and put to sleep what found no place.
        """
        heap: list[tuple[int, float, int, int, Line]] = []
        queued: set[Line] = set()

        def push(line: Line) -> None:
            entries = self._sorted(line)
            if entries and line not in queued:
                head = next(iter(entries.values()))
                heapq.heappush(heap, (-line.priority, head.moment, line.sleeper.turn, head.turn, line))
                queued.add(line)

        for sleeper in self._ready:
            for line in self._lines_of.read(sleeper):
                push(line)
        while heap:
            _, moment, _, _, line = heapq.heappop(heap)
            queued.discard(line)
            if line.sleeper not in self._ready or line not in self._lines:
                continue
            run = []
            for entry in self._sorted(line).values():
                if entry.moment != moment:
                    break
                run.append(entry)
            if run:
                yield line, run
            if line.sleeper in self._ready and line in self._lines:
                push(line)

    # -- sleeping and waking

    def sleep(self, sleeper: Sleeper, columns: Iterable[Column], hopes: Nodes) -> None:
        """Nothing fits: sleep until a column changes. `hopes`: the nodes where more free amounts could help."""
        self._ready.pop(sleeper, None)
        new = tuple(dict.fromkeys((*columns, NODES)))
        old = self._columns.map.get(sleeper, ())
        if new != old:
            for column in old:
                self._readers.drop(column, sleeper)
            for column in new:
                self._readers.write(column)[sleeper] = None
            self._columns.write()[sleeper] = new
        if self._hopes.map.get(sleeper) != hopes:
            self._hopes.write()[sleeper] = hopes

    def wake(self, news: Iterable[tuple[Column, int]]) -> None:
        """Wake the sleepers that these changes concern."""
        for column, row in news:
            for sleeper in self._readers.read(column):
                if sleeper in self._ready:
                    continue
                if column[0] == "free" and not self._hopes.map.get(sleeper, 0) >> row & 1:
                    continue
                self._ready[sleeper] = None

    def awake(self) -> bool:
        return bool(self._ready)

    def tell(self, sleeper: Sleeper, refusals: tuple[Refusal, ...]) -> tuple[str, ...]:
        """Whom these reasons are news to: all of the sleeper's items when the reasons changed (counts
        alone are no news), else those that came since."""
        told = self._told.map.get(sleeper)
        if told is None or [refusal.reason for refusal in told] != [refusal.reason for refusal in refusals]:
            ids = tuple(entry.item.id for entry in self.entries_of(sleeper))
        else:
            ids = tuple(self._untold.read(sleeper))
        self._told.write()[sleeper] = refusals
        self._untold.clear(sleeper)
        return ids

    def told(self, sleeper: Sleeper) -> tuple[Refusal, ...]:
        return self._told.map.get(sleeper, ())

    def _sorted(self, line: Line) -> dict[str, Entry]:
        if line in self._unsorted:
            entries = self._lines.write(line)
            ordered = sorted(entries.items(), key=lambda pair: pair[1].turn)
            entries.clear()
            entries.update(ordered)
            self._unsorted.discard(line)
        return self._lines.map.get(line, {})

    def _forget(self, sleeper: Sleeper) -> None:
        self._ready.pop(sleeper, None)
        if sleeper in self._columns.map:
            for column in self._columns.write().pop(sleeper):
                self._readers.drop(column, sleeper)
        if sleeper in self._hopes.map:
            del self._hopes.write()[sleeper]
        if sleeper in self._told.map:
            del self._told.write()[sleeper]
        self._untold.clear(sleeper)
