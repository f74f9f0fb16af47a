"""The work on every node that may be evicted for other work, as columns.

Rule: a row of the table is a node; its slots are the node's preemptible work, most important first: the higher
priority, then the earlier start. A row is read again when work came to the node or left it. The table is a cache of one
engine.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from math import inf
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stead.engine.columns.amounts import Amounts
from stead.engine.columns.change_log import ChangeLog
from stead.engine.fleet import Fleet
from stead.engine.work import Kind, Placement, Work
from stead.language.asks import Affinity, AskId, HostPort

EMPTY_SLOT = int(np.iinfo(np.int64).max)
"""The priority of an empty slot: nothing has a higher one, so nothing is placed there."""

SLOTS_MIN = 8

Flags = NDArray[np.bool_]


class Traits(NamedTuple):
    """What rules about other work can see of placed work."""

    kind: Kind
    affinities: tuple[tuple[Affinity, ...], ...]
    ports: tuple[HostPort, ...]


class Evictable:
    """The table. Call `refresh` before you read it. The first axis of its columns is the slot, the second the row."""

    def __init__(self) -> None:
        self.priorities: Amounts = np.full((SLOTS_MIN, 0), EMPTY_SLOT, np.int64)
        self.starts = np.zeros((SLOTS_MIN, 0))
        """When the work in a slot started; infinity if it has not started yet."""
        self.kinds: Amounts = np.zeros((SLOTS_MIN, 0), np.int64)
        """The number of the kind of the work in a slot."""
        self.is_ending: Flags = np.zeros((SLOTS_MIN, 0), np.bool_)
        self.kind_numbers: dict[Traits, int] = {}
        self.changes: ChangeLog[int] = ChangeLog()
        """The rows that were read again."""
        self.beginnings = 0
        """How often all rows were read again."""
        self._needs: dict[str, Amounts] = {}
        self._ids: dict[int, tuple[AskId, ...]] = {}
        self._seen = -1
        self._stale: set[int] = set()

    def look_again(self, row: int) -> None:
        """Something else than its work has changed about a row: some work is ending, or has started."""
        if self._seen >= 0:
            self._stale.add(row)

    def refresh(self, fleet: Fleet, work: Work, ending: Collection[AskId], kept: Collection[AskId]) -> None:
        """Read the rows that changed. Work in `kept` cannot be evicted."""
        changed = fleet.touched.since(self._seen) if self._seen >= 0 else None
        self._seen = fleet.touched.end
        if changed is None or self.priorities.shape[1] != fleet.size:
            self._begin(fleet.size)
            rows: Iterable[int] = work.residents
        else:
            rows = sorted({*changed, *self._stale})
            self.changes.keep_at_most(fleet.size)
            self.changes.extend(rows)
        for row in rows:
            self._read(row, work, ending, kept)
        self._stale.clear()

    def lowest(self) -> int:
        """The lowest priority in the table."""
        return int(self.priorities.min(initial=EMPTY_SLOT))

    def needs(self, resource: str, work: Work) -> Amounts:
        """What the work in every slot uses of a resource."""
        found = self._needs.get(resource)
        if found is None:
            found = self._needs[resource] = np.zeros(self.priorities.shape, np.int64)
            for row, ids in self._ids.items():
                for slot, id in enumerate(ids):
                    found[slot, row] = _need(work.placements.map[id], resource)
        return found

    def ids(self, row: int) -> tuple[AskId, ...]:
        """The work in the slots of a row."""
        return self._ids.get(row, ())

    def _begin(self, size: int) -> None:
        self._ids.clear()
        self._needs.clear()
        self.kind_numbers.clear()
        self.beginnings += 1
        shape = (self.priorities.shape[0], size)
        self.priorities, self.starts = np.full(shape, EMPTY_SLOT, np.int64), np.zeros(shape)
        self.kinds, self.is_ending = np.zeros(shape, np.int64), np.zeros(shape, np.bool_)

    def _read(self, row: int, work: Work, ending: Collection[AskId], kept: Collection[AskId]) -> None:
        placements = work.placements.map
        found = [placements[id] for id in work.residents.read(row)]
        found = [each for each in found if each.ask.preemptible and each.ask.id not in kept]
        before = len(self._ids.get(row, ()))
        if not found and not before:
            return
        found.sort(key=_importance)
        count = len(found)
        self._widen(count)
        self.priorities[:count, row] = [each.ask.priority for each in found]
        self.priorities[count:before, row] = EMPTY_SLOT
        self.starts[:count, row] = [started(each) for each in found]
        self.kinds[:count, row] = [self._kind(each) for each in found]
        self.is_ending[:count, row] = [each.ask.id in ending for each in found]
        for resource, column in self._needs.items():
            column[:count, row] = [_need(each, resource) for each in found]
            column[count:before, row] = 0
        self._ids[row] = tuple([each.ask.id for each in found])
        if not found:
            del self._ids[row]

    def _kind(self, placement: Placement) -> int:
        ask = placement.ask
        traits = Traits((ask.namespace, ask.labels), ask.affinities, ask.ports)
        return self.kind_numbers.setdefault(traits, len(self.kind_numbers))

    def _widen(self, slots: int) -> None:
        """Make sure that a row has this many slots."""
        width, rows = self.priorities.shape
        if slots <= width:
            return
        shape = (max(width, slots - width), rows)
        self.priorities = np.vstack([self.priorities, np.full(shape, EMPTY_SLOT, np.int64)])
        self.starts = np.vstack([self.starts, np.zeros(shape)])
        self.kinds = np.vstack([self.kinds, np.zeros(shape, np.int64)])
        self.is_ending = np.vstack([self.is_ending, np.zeros(shape, np.bool_)])
        self._needs = {name: np.vstack([each, np.zeros(shape, np.int64)]) for name, each in self._needs.items()}


def _importance(placement: Placement) -> tuple[int, float, float, int]:
    return -placement.ask.priority, started(placement), placement.moment, placement.turn


def started(placement: Placement) -> float:
    """When the work started; infinity if that is not known, or if it has not started yet."""
    return inf if placement.started is None else placement.started


def _need(placement: Placement, resource: str) -> int:
    return placement.ask.choices[placement.choice].resources.get(resource)
