"""Timers: what becomes due by the passing of time alone.

Rule: a timer never acts; it only says what is due. Entries that no longer matter (the ask is placed,
the taint is gone) are dropped when they come up, not when they lose their meaning.
"""

from __future__ import annotations

import heapq
from collections.abc import Container, Iterable, Iterator, Mapping
from math import inf

from stead.asks import AskId
from stead.engine.sharing import Sheet, Shelf
from stead.taints import Taint


class Timers:
    def __init__(self) -> None:
        self._deadlines: list[tuple[float, str]] = []
        self._deadline_of: Sheet[str, float] = Sheet()
        self._evictions: list[tuple[float, AskId, Taint]] = []
        self._evict_at: Shelf[AskId, Taint, float] = Shelf()
        self._evicted: Sheet[AskId, None] = Sheet()

    def fork(self) -> Timers:
        twin = Timers()
        twin._deadlines, twin._evictions = list(self._deadlines), list(self._evictions)
        twin._deadline_of = self._deadline_of.fork()
        twin._evict_at, twin._evicted = self._evict_at.fork(), self._evicted.fork()
        return twin

    def set_deadline(self, id: str, moment: float) -> None:
        """It is late at that moment; a later call for the same id replaces this one."""
        self._deadline_of.write()[id] = moment
        heapq.heappush(self._deadlines, (moment, id))

    def renew_deadline(self, id: str, moment: float | None, now: float) -> None:
        """It lost its place: a deadline still to come counts again; one that passed meanwhile spares it for good."""
        if moment is not None and moment > now:
            self.set_deadline(id, moment)
        elif id in self._deadline_of.map:
            del self._deadline_of.write()[id]

    def set_eviction(self, id: AskId, taint: Taint, moment: float) -> None:
        """The ask must go because of the taint; a later call for the same two replaces this one."""
        self._evict_at.write(id)[taint] = moment
        heapq.heappush(self._evictions, (moment, id, taint))

    def passed_deadlines(self, now: float) -> Iterator[tuple[float, str]]:
        while self._deadlines and self._deadlines[0][0] <= now:
            passed = self._pop_deadline()
            if passed is not None:
                yield passed

    def _pop_deadline(self) -> tuple[float, str] | None:
        """The first entry, taken off; None if it was replaced meanwhile, or spared."""
        moment, id = heapq.heappop(self._deadlines)
        if self._deadline_of.map.get(id) != moment:
            return None
        del self._deadline_of.write()[id]
        return moment, id

    def due_evictions(self, now: float) -> Iterator[tuple[AskId, Taint]]:
        """Asks that must go, each with the taint that comes first; the caller says which are `evicted`."""
        while self._evictions and self._evictions[0][0] <= now:
            moment, id, taint = heapq.heappop(self._evictions)
            if self._evict_at.read(id).get(taint) == moment:
                self._evict_at.drop(id, taint)
                if id not in self._evicted.map:
                    yield id, taint

    def evicted(self, id: AskId) -> None:
        """It has been told to go: once is enough, until it has left its place."""
        self._evicted.write()[id] = None

    def left(self, id: AskId) -> None:
        """It is no longer where it was: whatever was due because of that place is not."""
        self._evict_at.clear(id)
        if id in self._evicted.map:
            del self._evicted.write()[id]

    def _is_stale(self, moment: float, id: AskId, taint: Taint) -> bool:
        """Whether an eviction was replaced by a later one, or is not due any more."""
        return self._evict_at.read(id).get(taint) != moment

    def forget_eviction(self, id: AskId, taint: Taint) -> None:
        """It was carried out."""
        self._evict_at.drop(id, taint)

    # -- to be kept and restored

    @property
    def deadlines(self) -> Mapping[str, float]:
        return self._deadline_of.map

    @property
    def evictions(self) -> Iterator[tuple[AskId, Taint, float]]:
        return ((id, taint, at) for id, due in self._evict_at.map.items() for taint, at in due.items())

    @property
    def told_to_go(self) -> Iterable[AskId]:
        return self._evicted.map

    def next_moment(self, waiting: Container[str]) -> float:
        """When the next entry comes up that still matters (a deadline: of what waits); infinity if none does."""
        deadlines, deadline_of = self._deadlines, self._deadline_of
        while deadlines and (deadlines[0][1] not in waiting or deadline_of.map.get(deadlines[0][1]) != deadlines[0][0]):
            self._pop_deadline()
        while self._evictions and self._is_stale(*self._evictions[0]):
            heapq.heappop(self._evictions)
        return min((heap[0][0] for heap in (self._deadlines, self._evictions) if heap), default=inf)
