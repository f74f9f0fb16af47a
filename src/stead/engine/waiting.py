"""Waiting work: who is next, who sleeps, and what wakes them.

Rule: asks of one shape wait as one. A *sleeper* (a shape, or the shape of a group) that found no place
sleeps until a column changes that one of its rules reads, on a node where that could help; a change
that concerns no sleeper costs one dictionary lookup. Work is tried by priority, then by the moment it
was submitted; equal asks of one moment stand in one *line* and go together.
"""

from __future__ import annotations

import heapq
from collections.abc import Container, Hashable, Iterable, Iterator, Mapping
from itertools import count
from math import inf
from typing import NamedTuple, Protocol

from stead.asks import Ask, Group, PolicyName
from stead.engine.decisions import Refusal
from stead.engine.fleet import NODES, Column, Nodes
from stead.engine.shapes import Shape
from stead.engine.sharing import Sheet, Shelf

Item = Ask | Group


class Sleeper(Hashable, Protocol):
    """A shape or a group's shape, by identity."""

    @property
    def policy(self) -> PolicyName: ...

    @property
    def batch(self) -> PolicyName | None:
        """The policy by which it is decided together with others, if it is."""


class Line(NamedTuple):
    """Where equal work of one priority and one moment waits. `turn` is its place among peers of that moment.
    `since` is when it began to wait: later than `moment` for work that had a place and lost it."""

    sleeper: Sleeper
    priority: int
    moment: float
    turn: int
    since: float

    @property
    def order(self) -> tuple[int, float, int, float]:
        return -self.priority, self.moment, self.turn, self.since


class Rest(NamedTuple):
    """How a sleeper rests: what would wake it, where more free amounts could help, what was told of it (None: nothing),
    and to whom of its items not yet."""

    columns: tuple[Column, ...]
    hopes: Nodes
    told: tuple[Refusal, ...] | None
    untold: tuple[str, ...]


class Lines:
    """All waiting work."""

    def __init__(self) -> None:
        self._items: Shelf[Line, str, Item] = Shelf()
        self._line_of: Sheet[str, Line] = Sheet()
        self._lines: Shelf[Sleeper, Line, None] = Shelf()
        self._turns: Sheet[tuple[Sleeper, int, float], int] = Sheet()
        self._by_age: list[tuple[float, int, Line]] = []
        self._arrivals = 0
        self._late: dict[Line, None] = {}
        self._unsorted: set[Sleeper] = set()
        self._ready: dict[Sleeper, None] = {}
        self._woken: list[Sleeper] = []
        self._readers: Shelf[Column, Sleeper, None] = Shelf()
        self._columns: Sheet[Sleeper, tuple[Column, ...]] = Sheet()
        self._hopes: Sheet[Sleeper, Nodes] = Sheet()
        self._told: Sheet[Sleeper, tuple[Refusal, ...]] = Sheet()
        self._untold: Shelf[Sleeper, str, None] = Shelf()

    def fork(self) -> Lines:
        twin = Lines.__new__(Lines)
        for name in ("_items", "_line_of", "_lines", "_turns", "_readers", "_columns", "_hopes", "_told", "_untold"):
            setattr(twin, name, getattr(self, name).fork())
        twin._by_age, twin._late, twin._arrivals = list(self._by_age), dict(self._late), self._arrivals
        twin._unsorted, twin._ready, twin._woken = set(self._unsorted), dict(self._ready), []
        return twin

    # -- the lines

    def __contains__(self, id: object) -> bool:
        return id in self._line_of.map

    @property
    def ids(self) -> Mapping[str, object]:
        """Everything that waits, by id."""
        return self._line_of.map

    def item(self, id: str) -> Item:
        return self._items.map[self._line_of.map[id]][id]

    def line_of(self, id: str) -> Line:
        return self._line_of.map[id]

    def turn_of(self, sleeper: Sleeper, priority: int, moment: float) -> int | None:
        """The turn of equal work of this priority and moment, if such work waits."""
        return self._turns.map.get((sleeper, priority, moment))

    def add(self, line: Line, items: Mapping[str, Item]) -> None:
        """Queue items, awake."""
        sleeper = line.sleeper
        self._items.write(line).update(items)
        self._line_of.write().update(dict.fromkeys(items, line))
        self._untold.write(sleeper).update(dict.fromkeys(items))
        lines = self._lines.write(sleeper)
        if line not in lines:
            if lines and next(reversed(lines)).order > line.order:
                self._unsorted.add(sleeper)
            lines[line] = None
            self._turns.write()[line[:3]] = line.turn
            self._arrivals += 1
            heapq.heappush(self._by_age, (line.since, self._arrivals, line))
        self._ready[sleeper] = None

    def remove(self, *ids: str) -> None:
        """Remove items of one line."""
        line_of = self._line_of.write()
        line = line_of[ids[0]]
        items, untold = self._items.write(line), self._untold.write(line.sleeper)
        all_untold = len(ids) == len(items) and untold.keys() == items.keys()
        for id in ids:
            del line_of[id]
        if all_untold:
            items.clear()
            untold.clear()
        else:
            for id in ids:
                del items[id]
                untold.pop(id, None)
        if not untold:
            self._untold.clear(line.sleeper)
        if not items:
            self._items.clear(line)
            self._lines.drop(line.sleeper, line)
            self._turns.write().pop(line[:3], None)
            if line.sleeper not in self._lines:
                self._forget(line.sleeper)

    def items_of(self, sleeper: Sleeper) -> list[Item]:
        """All that wait with a shape, the next first."""
        return [item for line in self._sorted(sleeper) for item in self._items.map[line].values()]

    def in_order(self) -> list[Item]:
        """Everything that waits, in the order in which it will be tried."""
        lines = sorted(self._items, key=lambda line: line.order)
        return [item for line in lines for item in self._items.map[line].values()]

    def waiting_since(self, moment: float) -> list[Line]:
        """The lines that began to wait at this moment or before, in the order in which they will be tried."""
        while self._by_age and self._by_age[0][0] <= moment:
            self._late[heapq.heappop(self._by_age)[-1]] = None
        self._late = {line: None for line in self._late if line in self._items}
        return sorted(self._late, key=lambda line: line.order)

    @property
    def next_since(self) -> float:
        """When the oldest line began to wait that `waiting_since` has not returned yet; infinity if none."""
        while self._by_age and self._by_age[0][-1] not in self._items:
            heapq.heappop(self._by_age)
        return self._by_age[0][0] if self._by_age else inf

    def hopes(self, sleeper: Sleeper) -> Nodes:
        """The nodes where more free amounts could help a sleeper."""
        return self._hopes.map.get(sleeper, 0)

    def shapes(self) -> Iterator[Shape]:
        """The shapes of asks that wait."""
        return (sleeper for sleeper in self._lines if isinstance(sleeper, Shape))

    @property
    def columns(self) -> Container[Column]:
        """Every column that somebody who sleeps waits for."""
        return self._readers

    # -- to be kept and restored

    @property
    def all_lines(self) -> Mapping[Line, Mapping[str, Item]]:
        """Every line with its items, in the order of their arrival."""
        return self._items.map

    @property
    def rests(self) -> dict[Sleeper, Rest]:
        """How everybody rests who waits, in the order in which a change would wake them."""
        return {
            sleeper: Rest(
                self._columns.map.get(sleeper, ()),
                self._hopes.map.get(sleeper, 0),
                self._told.map.get(sleeper),
                tuple(self._untold.read(sleeper)),
            )
            for sleeper in dict.fromkeys((*self._columns.map, *self._lines))
        }

    @property
    def ready(self) -> Iterable[Sleeper]:
        """Who is awake, the first to be woken first."""
        return self._ready

    def restore_rests(self, rests: Mapping[Sleeper, Rest], ready: Iterable[Sleeper]) -> None:
        """After all lines were added: let everybody rest as before, but those who were awake."""
        for sleeper, rest in rests.items():
            if rest.columns:
                self.sleep(sleeper, rest.columns, rest.hopes)
            if rest.told is not None:
                self._told.write()[sleeper] = rest.told
            self._untold.clear(sleeper)
            if rest.untold:
                self._untold.write(sleeper).update(dict.fromkeys(rest.untold))
        self._ready = dict.fromkeys(ready)

    def wake_all(self) -> None:
        self._ready = dict.fromkeys(self._lines)

    # -- who is next

    def items_in(self, line: Line) -> Mapping[str, Item]:
        return self._items.read(line)

    def lines(self) -> Iterator[Line]:
        """Lines of those who are awake, the next one first.

        After each the caller has removed what it placed, put to sleep what found no place, and woken whom
        that concerns: those take their place in the order at once.
        """
        heap: list[tuple[tuple[int, float, int, float], int, Line]] = []
        tries = count()
        queued: set[Sleeper] = set()
        self._woken = list(self._ready)
        while heap or self._woken:
            for sleeper in self._woken:
                if sleeper in self._ready and sleeper not in queued:
                    queued.add(sleeper)
                    line = next(iter(self._sorted(sleeper)))
                    heapq.heappush(heap, (line.order, next(tries), line))
            self._woken = []
            if not heap:
                break
            line = heapq.heappop(heap)[-1]
            queued.discard(line.sleeper)
            if line in self._items and line.sleeper in self._ready:
                yield line
            if line.sleeper in self._ready:
                self._woken.append(line.sleeper)

    def ready_lines(self) -> Iterator[Line]:
        """All lines of those who are awake, sleeper by sleeper."""
        for sleeper in self._ready:
            yield from self._sorted(sleeper)

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
            read = self._columns.write()
            read.pop(sleeper, None)  # so that sleepers stand here in the order in which they are woken
            read[sleeper] = new
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
                self._woken.append(sleeper)

    def awake(self) -> bool:
        return bool(self._ready)

    def tell(self, sleeper: Sleeper, refusals: tuple[Refusal, ...]) -> tuple[str, ...]:
        """Whom these reasons are news to: all of the sleeper's items when the telling ones changed (counts
        alone are no news), else those that came since."""
        told = self._told.map.get(sleeper)
        if told is None or [r.reason for r in told if r.telling] != [r.reason for r in refusals if r.telling]:
            ids = tuple([id for line in self._sorted(sleeper) for id in self._items.map[line]])
        else:
            ids = tuple(self._untold.read(sleeper))
        self._told.write()[sleeper] = refusals
        self._untold.clear(sleeper)
        return ids

    def told(self, sleeper: Sleeper) -> tuple[Refusal, ...]:
        return self._told.map.get(sleeper, ())

    def _sorted(self, sleeper: Sleeper) -> Mapping[Line, None]:
        if sleeper in self._unsorted:
            lines = self._lines.write(sleeper)
            ordered = sorted(lines, key=lambda line: line.order)
            lines.clear()
            lines.update(dict.fromkeys(ordered))
            self._unsorted.discard(sleeper)
        return self._lines.read(sleeper)

    def _forget(self, sleeper: Sleeper) -> None:
        self._ready.pop(sleeper, None)
        self._unsorted.discard(sleeper)
        if sleeper in self._columns.map:
            for column in self._columns.write().pop(sleeper):
                self._readers.drop(column, sleeper)
        if sleeper in self._hopes.map:
            del self._hopes.write()[sleeper]
        if sleeper in self._told.map:
            del self._told.write()[sleeper]
        self._untold.clear(sleeper)
