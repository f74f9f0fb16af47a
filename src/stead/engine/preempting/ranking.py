"""What evicting would cost on every node, for one need and priority.

Rule: the order is kube-scheduler's: the fewest evictions that exceed a budget, then the lowest priority of the most
important victim, then the smallest sum of priorities, then the fewest victims, then the latest start of the most
important ones. On every node, as much as possible stays, the most important work first. Work that is ending costs
nothing, and places kept for work of a lower priority give way. Amounts are looked at, and which work must go because of
rules about other work, for all nodes at once; what these cannot tell is tried (`search.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf

import numpy as np
from numpy.typing import NDArray

from stead.engine.board import Board
from stead.engine.columns.amounts import Amounts
from stead.engine.fleet import Nodes, as_flags
from stead.engine.preempting.evictable import Evictable, Flags, started
from stead.engine.preempting.obstacles import Obstacles
from stead.engine.preempting.protection import Protection
from stead.engine.work import Placement
from stead.language.asks import AskId

Needs = tuple[tuple[str, int], ...]

PRIORITY_OFFSET = 1 << 31
"""Added to every priority before they are summed, so that more victims never have a smaller sum."""

NO_VICTIM = -(1 << 40)
"""The priority of the most important victim where there is none."""

Cost = tuple[int, int, int, int, float]
"""Exceeded budgets, the most important victim's priority, sum of priorities, victims, minus the first start."""


@dataclass(frozen=True, slots=True)
class Sources:
    """What a ranking reads. `left` is how many evictions each budget still allows."""

    board: Board
    table: Evictable
    protection: Protection
    left: Amounts


def cost_of(victims: Sequence[Placement], violations: int) -> Cost:
    """What evicting these costs."""
    if not victims:
        return violations, NO_VICTIM, 0, 0, -inf
    priorities = [each.ask.priority for each in victims]
    top = max(priorities)
    first = min(started(each) for each in victims if each.ask.priority == top)
    return violations, top, sum(priorities) + PRIORITY_OFFSET * len(priorities), len(priorities), -first


class Ranking:
    """The costs on every node. Call `refresh` before you read it."""

    def __init__(self, needs: Needs, priority: int, obstacles: Obstacles | None = None) -> None:
        self.needs, self.priority, self.obstacles = needs, priority, obstacles
        self._columns: list[NDArray[np.int64] | NDArray[np.float64]] = []
        self._is_enough: Flags = np.zeros(0, np.bool_)
        self._seen: tuple[int, int, int, tuple[int, ...]] = (-1, 0, -1, ())
        self._left: tuple[int, ...] = ()

    def refresh(self, sources: Sources) -> None:
        """Compute the rows that changed. After a change of a budget, these are all rows; after an eviction that counts
        against one, all rows with protected work."""
        table = sources.table
        changed = table.changes.since(self._seen[1])
        labels = sources.board.fleet.stamp(self.obstacles.columns() if self.obstacles is not None else ())
        seen = table.beginnings, table.changes.end, sources.protection.version, labels
        size = table.priorities.shape[1]
        left = tuple(sources.left.tolist())
        if changed is None or (self._seen[0], *self._seen[2:]) != (seen[0], *seen[2:]):
            self._is_enough = np.zeros(size, np.bool_)
            self._columns = [*(np.zeros(size, np.int64) for _ in range(4)), np.zeros(size)]
            self._compute(sources, np.arange(sources.board.fleet.extent))
        else:
            rows = np.unique(np.array(changed, np.int64))
            if left != self._left:
                rows = np.union1d(rows, sources.protection.protected_rows(table))
            if len(rows):
                self._compute(sources, rows)
        self._seen, self._left = seen, left

    def enough(self) -> Flags:
        """The rows with enough of everything once all that may be evicted is gone."""
        return self._is_enough

    def best(self, nodes: Nodes) -> int | None:
        """The row of these nodes where evicting costs least; the first of equal ones."""
        rows = np.flatnonzero(self._is_enough & as_flags(nodes, len(self._is_enough)))
        for column in self._columns:
            if len(rows) < 2:
                break
            values = column[rows]
            rows = rows[values == values.min()]
        return int(rows[0]) if len(rows) else None

    def in_order(self, nodes: Nodes) -> list[int]:
        """These nodes as far as there is enough, the cheapest first."""
        rows = np.flatnonzero(self._is_enough & as_flags(nodes, len(self._is_enough)))
        order = np.lexsort([column[rows] for column in reversed(self._columns)])
        found: list[int] = rows[order].tolist()
        return found

    def cost(self, row: int) -> Cost:
        exceeded, top, total, count = (int(column.item(row)) for column in self._columns[:4])
        return exceeded, top, total, count, float(self._columns[4].item(row))

    def victims(self, sources: Sources, row: int) -> tuple[list[AskId], int]:
        """The work to evict on a row, and how many evictions exceed a budget."""
        victims, exceeding = self._victims(sources, np.array([row]))
        ids = sources.table.ids(row)
        return [ids[slot] for slot in np.flatnonzero(victims[:, 0])], int((victims & exceeding).sum())

    def _compute(self, sources: Sources, rows: Amounts) -> None:
        table = sources.table
        victims, exceeding = self._victims(sources, rows)
        priorities = table.priorities[: len(victims), rows]
        top = np.where(victims, priorities, NO_VICTIM).max(axis=0, initial=NO_VICTIM)
        starts = table.starts[: len(victims), rows]
        first = np.where(victims & (priorities == top), starts, inf).min(axis=0, initial=inf)
        self._columns[0][rows] = (victims & exceeding).sum(axis=0)
        self._columns[1][rows] = top
        self._columns[2][rows] = np.where(victims, priorities + PRIORITY_OFFSET, 0).sum(axis=0)
        self._columns[3][rows] = victims.sum(axis=0)
        self._columns[4][rows] = -first

    def _victims(self, sources: Sources, rows: Amounts) -> tuple[Flags, Flags]:
        """The slots to evict in these rows, and those that would exceed a budget. Also notes where there is enough."""
        fleet, table, work = sources.board.fleet, sources.table, sources.board.work
        lower = table.priorities[:, rows] < self.priority
        used_slots = np.flatnonzero(lower.any(axis=1))
        slots = int(used_slots[-1]) + 1 if len(used_slots) else 0
        lower = lower[:slots]
        ending = table.is_ending[:slots, rows]
        wanted = lower & ~ending
        lowest = self._lower_nominations(sources, rows)
        enough = np.ones(len(rows), np.bool_)
        spare: list[tuple[Amounts, Amounts]] = []
        for resource, need in self.needs:
            used = table.needs(resource, work)[:slots, rows]
            free = fleet.amount(resource).free[rows] + lowest.get(resource, 0) + (used * lower).sum(axis=0)
            enough &= free >= need
            spare.append((used, free - need))
        self._is_enough[rows] = enough
        exceeding = sources.protection.exceeding(table, rows, wanted, sources.left)
        none = np.zeros(wanted.shape, np.bool_)
        victims = none.copy()
        if self.obstacles is not None and slots:
            victims = wanted & enough & self.obstacles.must_go(table, fleet, slots, rows)
            wanted &= ~victims
        for group in (wanted,) if exceeding is None else (wanted & exceeding, wanted & ~exceeding):
            for slot in range(slots):
                if group[slot].any():
                    victims[slot] |= _not_given_back(group[slot] & enough, slot, spare)
        return victims, none if exceeding is None else exceeding

    def _lower_nominations(self, sources: Sources, rows: Amounts) -> dict[str, Amounts]:
        """What places that are kept for work of a lower priority take of the rows: they give way."""
        kept = sources.board.work.nominations_below(self.priority)
        if not kept:
            return {}
        found = {resource: np.zeros(sources.board.fleet.size, np.int64) for resource, _ in self.needs}
        for each in kept:
            for resource, need in each.ask.choices[each.choice].resources.items():
                if resource in found:
                    found[resource][each.row] += need
        return {resource: column[rows] for resource, column in found.items()}


def _not_given_back(wanted: Flags, slot: int, spare: Iterable[tuple[Amounts, Amounts]]) -> Flags:
    """Give back the work in a slot where there is room for it. Returns where there is none."""
    fits = wanted.copy()
    for used, left in spare:
        fits &= used[slot] <= left
    for used, left in spare:
        left -= used[slot] * fits
    return wanted & ~fits
