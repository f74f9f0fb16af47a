"""Pending work: its order, which shapes sleep, and which changes wake them.

Rule: pending work sleeps and wakes by shape. A *sleeper* (the shape of asks or of a group) that fits no node sleeps
until a column that one of its rules reads changes on a node where that could help. A change that no sleeper reads costs
one dictionary lookup. Work is tried by priority, then by submission time. Equal asks with the same priority and time
form one *line*.
"""

from __future__ import annotations

import heapq
from collections.abc import Container, Hashable, Iterable, Iterator, Mapping
from itertools import count
from math import inf
from typing import NamedTuple, Protocol

from stead.engine.columns.change_log import NODES, Column
from stead.engine.columns.sharing import Sheet, Shelf
from stead.engine.decisions import Verdict
from stead.engine.fleet import Fleet, Nodes
from stead.engine.shapes import Shape
from stead.language.asks import Ask, Group, PolicyName

Item = Ask | Group


class Sleeper(Hashable, Protocol):
    """The shape of asks or of a group, compared by identity."""

    @property
    def policy(self) -> PolicyName: ...

    @property
    def batch(self) -> PolicyName | None:
        """The batch policy that decides it together with other work, if any."""


class Line(NamedTuple):
    """Equal pending work of one priority and one submission time (`moment`). `turn` orders lines of the same moment.
    `since` is when it became pending: later than `moment` for work that lost its place."""

    sleeper: Sleeper
    priority: int
    moment: float
    turn: int
    since: float

    @property
    def order(self) -> tuple[int, float, int, float]:
        return -self.priority, self.moment, self.turn, self.since


class Rest(NamedTuple):
    """The state of a sleeper: the columns that wake it, the nodes where more free resources could help (`hopes`), the
    verdicts last reported (None: not yet), and the items for which nothing was reported yet."""

    columns: tuple[Column, ...]
    hopes: Nodes
    reported: tuple[Verdict, ...] | None
    unreported: tuple[str, ...]


class Lines:
    """All pending work."""

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
        self._begin()
        self._readers: Shelf[Column, Sleeper, None] = Shelf()
        self._columns: Sheet[Sleeper, tuple[Column, ...]] = Sheet()
        self._hopes: Sheet[Sleeper, Nodes] = Sheet()
        self._reported: Sheet[Sleeper, tuple[Verdict, ...]] = Sheet()
        self._unreported: Shelf[Sleeper, str, None] = Shelf()

    def _begin(self) -> None:
        """Forget the queue of awake sleepers; `lines` builds it again."""
        self._queue: list[tuple[tuple[int, float, int, float], int, Line]] = []
        self._queued: dict[Sleeper, Line] = {}
        self._tries = count()
        self._given: Sleeper | None = None

    def fork(self) -> Lines:
        twin = Lines.__new__(Lines)
        for name in (
            "_items",
            "_line_of",
            "_lines",
            "_turns",
            "_readers",
            "_columns",
            "_hopes",
            "_reported",
            "_unreported",
        ):
            setattr(twin, name, getattr(self, name).fork())
        twin._by_age, twin._late, twin._arrivals = list(self._by_age), dict(self._late), self._arrivals
        twin._unsorted, twin._ready, twin._woken = set(self._unsorted), dict(self._ready), []
        twin._begin()
        return twin

    # -- the lines

    def __contains__(self, id: object) -> bool:
        return id in self._line_of.map

    @property
    def ids(self) -> Mapping[str, object]:
        """All pending work, by id."""
        return self._line_of.map

    def item(self, id: str) -> Item:
        return self._items.map[self._line_of.map[id]][id]

    def line_of(self, id: str) -> Line:
        return self._line_of.map[id]

    def turn_of(self, sleeper: Sleeper, priority: int, moment: float) -> int | None:
        """The turn of pending equal work of this priority and moment, if there is any."""
        return self._turns.map.get((sleeper, priority, moment))

    def add(self, line: Line, items: Mapping[str, Item]) -> None:
        """Queue items and wake their sleeper."""
        sleeper = line.sleeper
        self._items.write(line).update(items)
        self._line_of.write().update(dict.fromkeys(items, line))
        self._unreported.write(sleeper).update(dict.fromkeys(items))
        lines = self._lines.write(sleeper)
        if line not in lines:
            if lines and next(reversed(lines)).order > line.order:
                self._unsorted.add(sleeper)
            lines[line] = None
            self._turns.write()[line[:3]] = line.turn
            self._arrivals += 1
            heapq.heappush(self._by_age, (line.since, self._arrivals, line))
            self._woken.append(sleeper)
        elif sleeper not in self._ready:
            self._woken.append(sleeper)
        self._ready[sleeper] = None

    def remove(self, *ids: str) -> None:
        """Remove items of one line."""
        line_of = self._line_of.write()
        line = line_of[ids[0]]
        items, unreported = self._items.write(line), self._unreported.write(line.sleeper)
        all_unreported = len(ids) == len(items) and unreported.keys() == items.keys()
        for id in ids:
            del line_of[id]
        if all_unreported:
            items.clear()
            unreported.clear()
        else:
            for id in ids:
                del items[id]
                unreported.pop(id, None)
        if not unreported:
            self._unreported.clear(line.sleeper)
        if not items:
            self._items.clear(line)
            self._lines.drop(line.sleeper, line)
            self._turns.write().pop(line[:3], None)
            if line.sleeper not in self._lines:
                self._forget(line.sleeper)

    def items_of(self, sleeper: Sleeper) -> list[Item]:
        """All pending items of a sleeper, in order."""
        return [item for line in self._sorted(sleeper) for item in self._items.map[line].values()]

    def lines_of(self, sleeper: Sleeper) -> list[Line]:
        """All lines of a sleeper, in order."""
        return list(self._sorted(sleeper))

    def in_order(self) -> list[Item]:
        """All pending work, in the order in which it will be tried."""
        lines = sorted(self._items, key=lambda line: line.order)
        return [item for line in lines for item in self._items.map[line].values()]

    def waiting_since(self, moment: float) -> list[Line]:
        """The lines that are pending since this moment or longer, in the order in which they will be tried."""
        while self._by_age and self._by_age[0][0] <= moment:
            self._late[heapq.heappop(self._by_age)[-1]] = None
        self._late = {line: None for line in self._late if line in self._items}
        return sorted(self._late, key=lambda line: line.order)

    @property
    def next_since(self) -> float:
        """Since when the oldest line that `waiting_since` has not returned is pending; infinity if there is none."""
        while self._by_age and self._by_age[0][-1] not in self._items:
            heapq.heappop(self._by_age)
        return self._by_age[0][0] if self._by_age else inf

    def hopes(self, sleeper: Sleeper) -> Nodes:
        """The nodes where more free resources could help a sleeper."""
        return self._hopes.map.get(sleeper, 0)

    @property
    def sleepers(self) -> Iterable[Sleeper]:
        """The shapes of all pending work."""
        return self._lines

    def shapes(self) -> Iterator[Shape]:
        """The shapes of pending asks."""
        return (sleeper for sleeper in self._lines if isinstance(sleeper, Shape))

    @property
    def columns(self) -> Container[Column]:
        """Every column that can wake a sleeper."""
        return self._readers

    # -- checkpoints

    @property
    def all_lines(self) -> Mapping[Line, Mapping[str, Item]]:
        """Every line with its items, in the order of their arrival."""
        return self._items.map

    @property
    def rests(self) -> dict[Sleeper, Rest]:
        """The state of every sleeper, in the order in which a change wakes them."""
        return {
            sleeper: Rest(
                self._columns.map.get(sleeper, ()),
                self._hopes.map.get(sleeper, 0),
                self._reported.map.get(sleeper),
                tuple(self._unreported.read(sleeper)),
            )
            for sleeper in dict.fromkeys((*self._columns.map, *self._lines))
        }

    @property
    def ready(self) -> Iterable[Sleeper]:
        """The sleepers that are awake, in the order in which they woke."""
        return self._ready

    def restore_rests(self, rests: Mapping[Sleeper, Rest], ready: Iterable[Sleeper]) -> None:
        """Restore all sleepers, after all lines were added; those in `ready` stay awake."""
        for sleeper, rest in rests.items():
            if rest.columns:
                self.sleep(sleeper, rest.columns, rest.hopes)
            if rest.reported is not None:
                self._reported.write()[sleeper] = rest.reported
            self._unreported.clear(sleeper)
            if rest.unreported:
                self._unreported.write(sleeper).update(dict.fromkeys(rest.unreported))
        self._ready = dict.fromkeys(ready)
        self._begin()

    def wake_all(self) -> None:
        self._ready = dict.fromkeys(self._lines)
        self._begin()

    # -- the next line

    def items_in(self, line: Line) -> Mapping[str, Item]:
        return self._items.read(line)

    def lines(self) -> Iterator[Line]:
        """Lines of awake sleepers, in order.

        After each line, the caller must have removed what it placed, put to sleep what did not fit, and called `wake`.
        Newly woken sleepers take their position in the order at once. A caller that stops before the last line
        continues there with the next call, so what it costs does not grow with what is pending.
        """
        if not self._queue:
            self._woken = list(self._ready)
        while True:
            for sleeper in self._woken if self._given is None else (self._given, *self._woken):
                self._enqueue(sleeper)
            self._woken, self._given = [], None
            if not self._queue:
                break
            line = heapq.heappop(self._queue)[-1]
            self._given = line.sleeper
            if self._queued.get(line.sleeper) is line:
                del self._queued[line.sleeper]
            if line in self._items and line.sleeper in self._ready:
                yield line

    def _enqueue(self, sleeper: Sleeper) -> None:
        """Queue the first line of an awake sleeper, unless it is queued at that position or before: a line that is gone
        when its turn comes gives way to the first one."""
        if sleeper in self._ready:
            line, queued = next(iter(self._sorted(sleeper))), self._queued.get(sleeper)
            if queued is None or line.order < queued.order:
                self._queued[sleeper] = line
                heapq.heappush(self._queue, (line.order, next(self._tries), line))

    def ready_lines(self) -> Iterator[Line]:
        """All lines of awake sleepers, sleeper by sleeper."""
        for sleeper in self._ready:
            yield from self._sorted(sleeper)

    # -- sleeping and waking

    def sleep(self, sleeper: Sleeper, columns: Iterable[Column], hopes: Nodes) -> None:
        """No node fits: sleep until a column changes. `hopes`: the nodes where more free resources could help."""
        self._ready.pop(sleeper, None)
        new = tuple(dict.fromkeys((*columns, NODES)))
        old = self._columns.map.get(sleeper, ())
        if new != old:
            for column in old:
                self._readers.drop(column, sleeper)
            for column in new:
                self._readers.write(column)[sleeper] = None
            read = self._columns.write()
            read.pop(sleeper, None)  # keeps the sleepers in the order in which a change wakes them
            read[sleeper] = new
        if self._hopes.map.get(sleeper) != hopes:
            self._hopes.write()[sleeper] = hopes

    def wake(self, fleet: Fleet) -> None:
        """Wake the sleepers that the latest changes could help."""
        for column, row in fleet.news.take():
            if len(self._ready) == len(self._lines.map):  # all are awake
                break
            for sleeper in self._readers.read(column):
                if sleeper in self._ready:
                    continue
                if column.kind == "free" and not self._hopes.map.get(sleeper, 0) >> row & 1:
                    continue
                self._ready[sleeper] = None
                self._woken.append(sleeper)

    def wake_sleeper(self, sleeper: Sleeper) -> None:
        """Wake this sleeper, whatever has changed."""
        if sleeper not in self._ready:
            self._ready[sleeper] = None
            self._woken.append(sleeper)

    def awake(self) -> bool:
        return bool(self._ready)

    def would_wake(self, columns: Iterable[Column]) -> bool:
        """Whether a change of one of these columns could wake a sleeper."""
        return any(sleeper not in self._ready for column in columns for sleeper in self._readers.read(column))

    @property
    def has_woken(self) -> bool:
        """Whether `wake` has woken a sleeper since `lines` returned the last line."""
        return bool(self._woken)

    def report(self, sleeper: Sleeper, verdicts: tuple[Verdict, ...]) -> tuple[str, ...]:
        """Remember these verdicts as reported. Returns the items to report them for: all items of the sleeper if the
        main reasons changed (counts alone do not matter), else only the items added since."""
        reported = self._reported.map.get(sleeper)
        if reported is None or [each.main_reasons for each in reported] != [each.main_reasons for each in verdicts]:
            ids = tuple([id for line in self._sorted(sleeper) for id in self._items.map[line]])
        else:
            ids = tuple(self._unreported.read(sleeper))
        self._reported.write()[sleeper] = verdicts
        self._unreported.clear(sleeper)
        return ids

    def last_reported(self, sleeper: Sleeper) -> tuple[Verdict, ...]:
        return self._reported.map.get(sleeper, ())

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
        if sleeper in self._reported.map:
            del self._reported.write()[sleeper]
        self._unreported.clear(sleeper)
