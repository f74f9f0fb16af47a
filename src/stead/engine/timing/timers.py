"""Timers: deadlines, evictions, taint expirations and time-outs of groups.

Rule: a timer never acts; it only returns what is due. An entry that no longer applies may stay until it is due; the
caller then ignores it.
"""

from __future__ import annotations

import heapq
from collections.abc import Container, Iterable, Iterator
from enum import StrEnum
from math import inf
from typing import Generic, TypeVar

from stead.engine.columns.sharing import Sheet, Shelf
from stead.language.asks import AskId, GroupId
from stead.language.nodes import NodeId
from stead.language.taints import Effect, Taint

Owner = TypeVar("Owner", bound=str)
What = TypeVar("What")


class Alarms(Generic[Owner, What]):
    """When things are due, by owner. Setting an alarm again moves it."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, Owner, What]] = []
        self._at: Shelf[Owner, What, float] = Shelf()

    def fork(self) -> Alarms[Owner, What]:
        twin: Alarms[Owner, What] = Alarms.__new__(Alarms)
        twin._heap, twin._at = list(self._heap), self._at.fork()
        return twin

    def set(self, owner: Owner, what: What, moment: float) -> None:
        self._at.write(owner)[what] = moment
        heapq.heappush(self._heap, (moment, owner, what))

    def is_set(self, owner: Owner, what: What) -> bool:
        return what in self._at.read(owner)

    def drop(self, owner: Owner, what: What) -> None:
        if what in self._at.read(owner):
            self._at.drop(owner, what)

    def drop_all(self, owner: Owner) -> None:
        self._at.clear(owner)

    def due(self, now: float) -> Iterator[tuple[Owner, What, float]]:
        """What is due, earliest first; each alarm is returned once."""
        return self._due(now) if self._heap and self._heap[0][0] <= now else iter(())

    def _due(self, now: float) -> Iterator[tuple[Owner, What, float]]:
        while self._heap and self._heap[0][0] <= now:
            moment, owner, what = heapq.heappop(self._heap)
            if self._at.read(owner).get(what) == moment:
                self._at.drop(owner, what)
                yield owner, what, moment

    def next_moment(self, owners: Container[str] | None = None) -> float:
        """When the next alarm is due, optionally only for these owners; infinity if there is none."""
        while self._heap:
            moment, owner, what = self._heap[0]
            is_current = self._at.read(owner).get(what) == moment
            if is_current and (owners is None or owner in owners):
                return moment
            heapq.heappop(self._heap)
            if is_current:
                self._at.drop(owner, what)
        return inf

    def __iter__(self) -> Iterator[tuple[Owner, What, float]]:
        return ((owner, what, moment) for owner, due in self._at.map.items() for what, moment in due.items())


class Timeout(StrEnum):
    """What ends for a group when its time-out has passed: its places while fewer than its minimum are placed
    (`MINIMUM`), its reservation of nodes (`HOLD`), or the rest until it may get the next reservation (`REST`)."""

    MINIMUM = "minimum"
    HOLD = "hold"
    REST = "rest"


class Timers:
    """`deadlines` of pending work, `evictions` of work on NoExecute-tainted nodes, `taint_ends` of nodes, `timeouts` of
    groups."""

    def __init__(self) -> None:
        self.deadlines: Alarms[str, str] = Alarms()
        self.evictions: Alarms[AskId, Taint] = Alarms()
        self.taint_ends: Alarms[NodeId, tuple[str, Effect]] = Alarms()
        self.timeouts: Alarms[GroupId, Timeout] = Alarms()
        self._evicted: Sheet[AskId, None] = Sheet()

    def fork(self) -> Timers:
        twin = Timers.__new__(Timers)
        twin.deadlines, twin.evictions = self.deadlines.fork(), self.evictions.fork()
        twin.taint_ends, twin._evicted = self.taint_ends.fork(), self._evicted.fork()
        twin.timeouts = self.timeouts.fork()
        return twin

    def set_deadline(self, id: str, moment: float) -> None:
        self.deadlines.set(id, "", moment)

    def renew_deadline(self, id: str, moment: float | None, now: float) -> None:
        """Work lost its place: a future deadline applies again; one that passed while it ran never applies."""
        if moment is not None and moment > now:
            self.set_deadline(id, moment)
        else:
            self.deadlines.drop_all(id)

    def evicted(self, id: AskId) -> None:
        """The ask was evicted: do not evict it again before it has left its node."""
        self._evicted.write()[id] = None

    def left(self, id: AskId) -> None:
        """The ask has left its node: cancel the evictions for that node."""
        self.evictions.drop_all(id)
        if id in self._evicted.map:
            del self._evicted.write()[id]

    def is_being_evicted(self, id: AskId) -> bool:
        return id in self._evicted.map

    @property
    def being_evicted(self) -> Iterable[AskId]:
        return self._evicted.map

    def next_moment(self, waiting: Container[str]) -> float:
        """When the next alarm is due (deadlines: only of pending work); infinity if there is none."""
        always = (self.evictions.next_moment(), self.taint_ends.next_moment(), self.timeouts.next_moment())
        return min(self.deadlines.next_moment(waiting), *always)
