"""Packing: how many new nodes of which kind would hold pending work, if resources were all that counts.

Rule: a proposal, never a decision. It works with columns: a row for each new node, and one step for each kind of work,
so it takes as long for 10,000 equal pieces of work as for 10.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto

import numpy as np
from numpy.typing import NDArray

from stead.language.nodes import NodeTemplate
from stead.language.resources import usable
from stead.planner.allowance import Allowance
from stead.planner.demand import Want, Way

Amounts = NDArray[np.int64]

EXTRA = 1e-6
"""How much dearer a kind counts for each kind of resource that it has, so that of two kinds with equal prices, the one
without unneeded devices is taken."""

FREE = 1e-3
"""What a kind without a price counts, as a part of the lowest price of the others."""


class Order(Enum):
    """Which work is packed first. The cheapest first serves more where a limit forbids some of it."""

    DEAREST = auto()
    LARGEST = auto()
    CHEAPEST = auto()


class Choice(Enum):
    """Which kind of node is opened for work: the one where a piece costs the least on a full node, the one where all
    pieces that are left cost the least, or the same with no other work on these nodes."""

    BY_PIECE = auto()
    BY_WHOLE = auto()
    ALONE = auto()


@dataclass(frozen=True, slots=True)
class Packed:
    """`counts` new nodes in addition to those that were given, their price, and how many pieces found no room."""

    counts: Counter[str]
    price: float
    left: int


class Packing:
    """Proposes new nodes for some work.

    Args:
        catalog: The kinds of nodes.
        wants: The work.
        allowance: What limits leave for new nodes.
    """

    def __init__(self, catalog: Sequence[NodeTemplate], wants: Sequence[Want], allowance: Allowance) -> None:
        self._catalog, self._wants, self._allowance = catalog, wants, allowance
        self._resources = sorted({resource for want in wants for way in want.ways for resource in way.needs})
        capacities = [[usable(each, kind.capacity.get(each)) for each in self._resources] for kind in catalog]
        self._capacity: Amounts = np.array(capacities, np.int64).reshape(len(catalog), len(self._resources))
        least = min((kind.price for kind in catalog if kind.price > 0), default=1 / FREE)
        self.prices = [(kind.price or least * FREE) * (1 + EXTRA * len(kind.capacity)) for kind in catalog]
        self._per_node = {id(way): self._on_empty(way) for want in wants for way in want.ways}
        self._cost = [self._cheapest(want) for want in wants]

    def packed(
        self, order: Order, choice: Choice, had: Mapping[str, int], start: Mapping[str, int], by_priority: bool
    ) -> Packed:
        """The new nodes that the work needs in addition to `had`, of which those in `start` are empty."""
        bins = _Bins(self._capacity, self._catalog, self._resources)
        counts = Counter[str](had)
        for row, kind in enumerate(self._catalog):
            if start.get(kind.name):
                bins.open(row, start[kind.name], is_new=False)
        left = 0
        for place in self._sorted(order, by_priority):
            left += self._place(self._wants[place], choice, bins, counts)
        if choice is not Choice.ALONE:
            self._shrink(bins, counts)
        counts.subtract(had)
        new = +counts
        price = sum(count * self._price_of(name) for name, count in new.items())
        return Packed(new, price, left)

    def least_price(self) -> float:
        """No plan for all of this work is cheaper, if it starts without empty nodes."""
        best = 0.0
        for column, resource in enumerate(self._resources):
            total = 0.0
            for want in self._wants:
                total += want.count * min(
                    self._catalog[row].price * way.needs.get(resource, 0) / int(self._capacity[row, column])
                    if way.needs.get(resource)
                    else 0.0
                    for way in want.ways
                    for row in way.kinds
                )
            best = max(best, total)
        return best

    def _price_of(self, name: str) -> float:
        return next(price for kind, price in zip(self._catalog, self.prices, strict=True) if kind.name == name)

    def _on_empty(self, way: Way) -> dict[int, int]:
        """How many pieces an empty node of each kind takes."""
        found = {}
        for row in way.kinds:
            fits = [
                int(self._capacity[row, column]) // way.needs[resource]
                for column, resource in enumerate(self._resources)
                if way.needs.get(resource)
            ]
            found[row] = min(fits, default=1 << 30)
        return found

    def _cheapest(self, want: Want) -> float:
        """What a piece costs at least, on a full node."""
        way = want.ways[0]
        return min((self.prices[row] / max(1, self._most(want, way, row)) for row in way.kinds), default=0.0)

    def _most(self, want: Want, way: Way, row: int) -> int:
        fits = self._per_node[id(way)][row]
        return min(fits, want.together) if want.apart >= 0 else fits

    def _sorted(self, order: Order, by_priority: bool) -> list[int]:
        def size(place: int) -> float:
            if order is not Order.LARGEST:
                return self._cost[place] if order is Order.DEAREST else -self._cost[place]
            per_node = self._per_node[id(self._wants[place].ways[0])]
            return 1 / max(1, min(per_node.values(), default=1))

        places = range(len(self._wants))
        return sorted(places, key=lambda place: (-self._wants[place].priority * by_priority, -size(place), place))

    def _place(self, want: Want, choice: Choice, bins: _Bins, counts: Counter[str]) -> int:
        """Put the pieces into open nodes, then into new ones. Returns how many found no room."""
        left, is_alone = want.count, choice is Choice.ALONE
        for way in want.ways:
            if not is_alone:
                left -= bins.fill(way, want, left)
            ruled_out = set[int]()
            while left:
                rows = [row for row in way.kinds if row not in ruled_out and self._most(want, way, row) > 0]
                if not rows:
                    break
                row = min(rows, key=lambda row: self._opening_cost(want, way, row, left, choice))
                most = self._most(want, way, row)
                count = min(-(-left // most), self._allowance.more(self._catalog[row], counts)[0])
                if count <= 0:
                    ruled_out.add(row)
                    continue
                bins.open(row, count, is_new=True)
                counts[self._catalog[row].name] += count
                before = left
                left -= bins.fill(way, want, left, last=count)
                if is_alone:
                    bins.close()
                if left == before:
                    ruled_out.add(row)
            if not left:
                break
        return left

    def _opening_cost(self, want: Want, way: Way, row: int, left: int, choice: Choice) -> tuple[float, int]:
        most = self._most(want, way, row)
        if choice is Choice.BY_PIECE:
            return self.prices[row] / most, row
        return self.prices[row] * -(-left // most) / left, row

    def _shrink(self, bins: _Bins, counts: Counter[str]) -> None:
        """Replace nodes by cheaper ones that hold the same."""
        for number, old, row in bins.cheaper(np.array(self.prices)):
            counts[self._catalog[old].name] -= 1
            may = self._allowance.more(self._catalog[row], counts)[0] > 0
            counts[self._catalog[row if may else old].name] += 1
            bins.kind[number] = row if may else old


class _Bins:
    """New nodes while they are packed, as columns."""

    def __init__(self, capacity: Amounts, catalog: Sequence[NodeTemplate], resources: Sequence[str]) -> None:
        self._capacity, self._column = capacity, {resource: column for column, resource in enumerate(resources)}
        self._free: Amounts = np.empty((64, len(resources)), np.int64)
        self.kind: Amounts = np.empty(64, np.int64)
        self.is_new = np.empty(64, np.bool_)
        self._takes = np.empty((64, len(catalog)), np.bool_)
        self._apart: dict[int, Amounts] = {}
        self.size = 0

    def open(self, row: int, count: int, is_new: bool) -> None:
        """So many nodes of a kind are empty."""
        end = self.size + count
        while end > len(self.kind):
            self._free = np.concatenate([self._free, np.empty_like(self._free)])
            self.kind = np.concatenate([self.kind, np.empty_like(self.kind)])
            self.is_new = np.concatenate([self.is_new, np.empty_like(self.is_new)])
            self._takes = np.concatenate([self._takes, np.empty_like(self._takes)])
        self._free[self.size : end] = self._capacity[row]
        self.kind[self.size : end] = row
        self.is_new[self.size : end] = is_new
        self._takes[self.size : end] = True
        self.size = end

    def close(self) -> None:
        """The open nodes take no more work."""
        self._free[: self.size] = -1

    def fill(self, way: Way, want: Want, left: int, last: int | None = None) -> int:
        """Put up to `left` pieces into nodes (into the `last` ones), the first node first. Returns how many."""
        begin = 0 if last is None else self.size - last
        if begin >= self.size or not left:
            return 0
        takes = np.zeros(self._takes.shape[1], np.bool_)
        takes[list(way.kinds)] = True
        room = np.where(takes[self.kind[begin : self.size]], left, 0)
        for resource, need in way.needs.items():
            if need:
                np.minimum(room, self._free[begin : self.size, self._column[resource]] // need, out=room)
        used = self._used_apart(want.apart)[begin : self.size] if want.apart >= 0 else None
        if used is not None:
            np.minimum(room, want.together - used, out=room)
        np.maximum(room, 0, out=room)
        sums = np.cumsum(room)
        taken = np.minimum(room, np.maximum(0, left - (sums - room)))
        for resource, need in way.needs.items():
            self._free[begin : self.size, self._column[resource]] -= taken * need
        if used is not None:
            used += taken
        self._takes[begin : self.size] &= takes | (taken == 0)[:, None]
        return int(min(left, sums[-1]))

    def _used_apart(self, apart: int) -> Amounts:
        found = self._apart.get(apart, np.zeros(0, np.int64))
        if len(found) < len(self.kind):
            found = np.concatenate([found, np.zeros(len(self.kind) - len(found), np.int64)])
            self._apart[apart] = found
        return found

    def cheaper(self, prices: NDArray[np.float64]) -> list[tuple[int, int, int]]:
        """The new nodes for which a cheaper kind would do: each with its kind and the cheapest such kind."""
        kind = self.kind[: self.size]
        used = self._capacity[kind] - self._free[: self.size]
        fits = self._takes[: self.size] & (self._capacity[None] >= used[:, None]).all(axis=2)
        cost = np.where(fits, prices, np.inf)
        best = cost.argmin(axis=1)
        where = np.flatnonzero(self.is_new[: self.size] & (cost.min(axis=1, initial=np.inf) < prices[kind]))
        return [(int(number), int(kind[number]), int(best[number])) for number in where]


def proposals(
    packing: Packing, orders: Iterable[Order], start: Mapping[str, int], by_priority: bool
) -> Iterator[Packed]:
    """Different proposals for the same work. The nodes in `start` are there and empty."""
    for choice in (Choice.BY_PIECE, Choice.BY_WHOLE):
        for order in orders:
            yield packing.packed(order, choice, start, start, by_priority)
