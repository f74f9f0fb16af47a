"""The ranking of nodes for one demand, by preference, then by its policy, then by table order.

Rule: it ranks the nodes that no rule refuses. Many equal asks are ranked at once exactly as if they were placed one by
one. A ranking follows the changes of the fleet row by row where that is cheaper than computing it again.
"""

from __future__ import annotations

import heapq

import numpy as np
from numpy.typing import NDArray

from stead.engine.columns.amounts import LOAD_MAX, REFUSED, SCALARS_MAX, Amounts
from stead.engine.fleet import Fleet, Nodes, as_flags, from_flags, rows_of
from stead.engine.ranking.policies import Dice
from stead.engine.ranking.views import View
from stead.engine.rules import World
from stead.engine.shapes import Demand
from stead.language.resources import UNIT

_PREFERENCE_STEP = LOAD_MAX + 1


class Standing:
    """One demand's ranking of all nodes of one engine: a key per row, lower is better, `REFUSED` where it does not fit.
    Call `refresh` before you read it."""

    __slots__ = ("_extent", "_preference", "_seen", "_view", "demand", "keys", "nodes")

    def __init__(self, demand: Demand) -> None:
        self.demand = demand
        self.nodes: Nodes = 0
        self.keys: Amounts = np.empty(0, np.int64)
        self._preference: Amounts | None = None
        self._view = View(demand)
        self._seen = self._extent = 0

    def refresh(self, world: World) -> None:
        """Update the keys: recompute the mask if a column it reads has changed, and the keys of rows whose mask or
        amounts have changed."""
        fleet = world.fleet
        self._extent = fleet.extent
        end = fleet.touched.end
        if self._view.refresh(world) and self._look_again(fleet):
            self._seen = end
        elif self._seen < end:
            changed = fleet.touched.since(self._seen)
            if changed is None:
                self._compute(fleet)
            else:
                self._repair(fleet, changed)
            self._seen = end

    def _look_again(self, fleet: Fleet) -> bool:
        """Update the keys after the view changed. Returns True if all keys were recomputed."""
        old, old_preference = self.nodes, self._preference
        self.nodes, self._preference = self._view.nodes, self._view.worth
        if len(self.keys) == fleet.size and _same(old_preference, self._preference):
            changed = rows_of(old ^ self.nodes)
            if len(changed) < fleet.size // 8:
                self._repair(fleet, changed)
                return False
        self._compute(fleet)
        return True

    def _compute(self, fleet: Fleet) -> None:
        """Recompute all keys."""
        self.keys = np.full(fleet.size, REFUSED, np.int64)
        inside = self._view.flags[: fleet.extent]
        if self.nodes.bit_count() * 2 > fleet.extent:
            used = slice(0, fleet.extent)
            self.keys[used] = np.where(inside, self._computed(fleet, used), REFUSED)
        else:
            where = np.flatnonzero(inside)
            self.keys[where] = self._computed(fleet, where)

    def _repair(self, fleet: Fleet, rows: list[int]) -> None:
        rows = list(dict.fromkeys(rows))
        if len(rows) <= SCALARS_MAX:
            for row in rows:
                self.keys[row] = self.key_of(fleet, row)
            return
        where = np.array(rows)
        inside = as_flags(self.nodes, fleet.size)[where]
        self.keys[where] = np.where(inside, self._computed(fleet, where), REFUSED)

    def _computed(self, fleet: Fleet, where: NDArray[np.intp] | slice) -> Amounts:
        """Keys of many rows at once, as if all of them were in the mask."""
        if not self.demand.needs:
            return self._keys_of(fleet.ask_counts[where] * UNIT, where)
        levels = [fleet.amount(resource).levels(need)[where] for resource, need in self.demand.needs]
        fullest = levels[0]
        for level in levels[1:]:
            fullest = np.maximum(fullest, level)
        if self._preference is None and not self.demand.policy.sticky:
            return self.demand.policy.ranks(fullest)  # keeps REFUSED unchanged
        return np.where(fullest == REFUSED, REFUSED, self._keys_of(np.minimum(fullest, LOAD_MAX), where))

    def _keys_of(self, loads: Amounts, where: NDArray[np.intp] | slice) -> Amounts:
        ranks = self.demand.policy.ranks(loads)
        return ranks if self._preference is None else ranks - self._preference[where] * _PREFERENCE_STEP

    def key_of(self, fleet: Fleet, row: int, more: int = 0) -> int:
        """The key of one row if `more` equal asks were placed there first; the caller checks that they fit. The same
        arithmetic as `_computed`."""
        if not self.nodes >> row & 1:
            return REFUSED
        load = self._load_of(fleet, row, more)
        if load == REFUSED:
            return REFUSED
        key = self.demand.policy.rank(load)
        return key if self._preference is None else key - self._preference.item(row) * _PREFERENCE_STEP

    def _load_of(self, fleet: Fleet, row: int, more: int = 0) -> int:
        if not self.demand.needs:
            return min((fleet.ask_counts.item(row) + more) * UNIT, LOAD_MAX)
        return max(fleet.amount(resource).level(row, need, more) for resource, need in self.demand.needs)

    def score(self, fleet: Fleet, row: int) -> tuple[int, int]:
        """(preference, load in 1/10000) of a row, for explanations."""
        preference = 0 if self._preference is None else self._preference.item(row)
        if not self.demand.needs:
            return preference, self._load_of(fleet, row)
        return preference, max(fleet.amount(resource).load(row, need) for resource, need in self.demand.needs)

    def worth(self, rows: list[int]) -> list[int]:
        """The ask's preference for each of these rows."""
        return [0] * len(rows) if self._preference is None else self._preference[rows].tolist()

    # -- choosing

    def candidates(self) -> Nodes:
        return from_flags(self.keys != REFUSED)

    def best(self, dice: Dice) -> int | None:
        """The row of the best node, or None; among equal nodes, the first in table order (or a random one)."""
        row = int(self.keys[: self._extent].argmin()) if self._extent else 0
        least = self.keys.item(row)
        if least == REFUSED:
            return None
        if self.demand.policy.by_chance:
            equals = np.flatnonzero(self.keys == least)
            return int(equals[dice.below(len(equals))])
        return row

    def best_many(self, world: World, count: int) -> list[int]:
        """The rows that `count` equal asks would get one after the other; fewer if not all fit."""
        fleet = world.fleet
        if self.demand.policy.sticky:
            return self._fill(fleet, count)
        first = self._first_rows(count)
        keys: list[int] = self.keys[first].tolist()
        again: list[tuple[int, int, int]] = []
        rows: list[int] = []
        fresh = 0
        # Each iteration takes the best node (an unused one, or one from the heap of used nodes) for as many asks as
        # leave its rank unchanged, and pushes it back with the rank of one more ask.
        while len(rows) < count and (again or fresh < len(first)):
            if again and (fresh == len(first) or again[0][:2] < (keys[fresh], first[fresh])):
                _, row, taken = heapq.heappop(again)
            else:
                row, taken = first[fresh], 0
                fresh += 1
            room = self._room(fleet, row, count)
            more = min(max(1, self._level_room(fleet, row) - taken), room - taken, count - len(rows))
            rows.extend([row] * more)
            if taken + more < room:
                heapq.heappush(again, (self.key_of(fleet, row, taken + more), row, taken + more))
        return rows

    def _level_room(self, fleet: Fleet, row: int) -> int:
        """How many asks the node takes while its load stays in the range where the policy ranks all loads equally."""
        level = self.demand.policy.level
        if level < 0 or not self.demand.needs:
            return 0
        return min(fleet.amount(resource).room_at_level(row, need, level) for resource, need in self.demand.needs)

    def _fill(self, fleet: Fleet, count: int) -> list[int]:
        """For a policy that prefers fuller nodes: fill one node after the other."""
        rows: list[int] = []
        for row in self._first_rows(count):
            rows.extend([row] * min(self._room(fleet, row, count), count - len(rows)))
            if len(rows) >= count:
                break
        return rows

    def _first_rows(self, count: int) -> list[int]:
        """The best `count` rows in order of (key, row): `count` asks never need others."""
        keys = self.keys[: self._extent]
        if not len(keys):
            return []
        least = keys.min()
        found = np.flatnonzero(keys == least) if least != REFUSED else np.empty(0, np.intp)
        if len(found) < count:
            if count < len(keys) // 2:
                limit = np.partition(keys, count - 1).item(count - 1)
                found = np.flatnonzero(keys <= min(limit, REFUSED - 1))
            else:
                found = np.flatnonzero(keys != REFUSED)
            found = found[np.argsort(keys[found], kind="stable")]
        rows: list[int] = found[:count].tolist()
        return rows

    def _room(self, fleet: Fleet, row: int, most: int) -> int:
        room = most
        for resource, need in self.demand.needs:
            room = min(room, fleet.amount(resource).room(row, need))
        return room


def _same(one: Amounts | None, other: Amounts | None) -> bool:
    if one is None or other is None:
        return one is other
    return one is other or bool(np.array_equal(one, other))
