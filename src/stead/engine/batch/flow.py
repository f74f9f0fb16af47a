"""Min-cost flow: place many asks together at the lowest total cost.

Rule: this file builds graphs and reads the results; an external `Solver` solves them. The rules (`View`) say which
nodes are open to an ask, and the amounts say where it fits. A flow may put more on a node than fits, so each round is
checked ask by ask; what does not fit goes to the next round.

The graph does not have one arc per ask and node. Equal asks are one source. Nodes that look equal to all sources are
one *cluster of nodes* between source and sink, and the costs of the next asks on its nodes are merged into one rising
curve. This is exact as long as a cost is a(shape, node) + g(node, k) for the k-th new ask there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from stead.engine.columns.amounts import Amounts, shares_of
from stead.engine.fleet import Fleet
from stead.engine.ranking.policies import Dice
from stead.engine.ranking.views import View
from stead.engine.shapes import Demand
from stead.language.resources import DEVICES, UNIT

Flags = NDArray[np.bool_]
Rows = NDArray[np.intp]

OFFSET = 1_000
"""Added to every cost to keep it positive; increased if preferences weigh more than this."""
STEP = 100
"""How much more each further ask on a node costs."""
QUANTUM = 10
"""Node costs are multiples of this, so that similar nodes count as equal."""
SLOTS_FIRST = 8
"""A node first offers slots for at least this many new asks; more if the flow uses them all."""

_MIX = np.uint64(0x9E3779B97F4A7C15)
_SHIFT = np.uint64(29)


class Solver(Protocol):
    """Solves a min-cost flow. Arc i goes from tails[i] to heads[i]; supplies (negative: demands) add up to 0."""

    def solve(
        self, tails: Amounts, heads: Amounts, capacities: Amounts, costs: Amounts, supplies: Amounts
    ) -> Amounts: ...


class Prices(Protocol):
    """The costs of placements: whole numbers, lower is better."""

    @property
    def step(self) -> int:
        """How much more each further ask on a node costs."""

    @property
    def one_a_round(self) -> bool:
        """Whether a node's price is recomputed after each ask, so that it takes only one ask per round."""

    def nodes(self, fleet: Fleet, resources: Sequence[str]) -> Amounts:
        """The current cost of each node for any ask; a multiple of QUANTUM."""

    def column(self, fleet: Fleet, demand: Demand, fits: Flags) -> Amounts | None:
        """The additional cost of this demand on each node where it fits; None means no additional cost."""


@dataclass(frozen=True, slots=True)
class Emptiest:
    """The least used and best balanced node first, with as few new asks per node as possible."""

    step: int = STEP
    one_a_round: bool = False

    def nodes(self, fleet: Fleet, resources: Sequence[str]) -> Amounts:
        total, least, most = _zeros(fleet), np.full(fleet.extent, 1000), _zeros(fleet)
        count = _zeros(fleet)
        for resource in resources:
            amount = fleet.amount(resource)
            has, free = amount.total[: fleet.extent], amount.free[: fleet.extent]
            there = has > 0
            used = np.clip(_thousandths(has - free, has), 0, 1000)
            total += np.where(there, used, 0)
            count += there
            least = np.where(there, np.minimum(least, used), least)
            most = np.where(there, np.maximum(most, used), most)
        fill = (total // np.maximum(count, 1) + np.maximum(most - least, 0)) // 2
        return np.where(count > 0, fill - fill % QUANTUM, 0)

    def column(self, fleet: Fleet, demand: Demand, fits: Flags) -> Amounts | None:
        return None


@dataclass(frozen=True, slots=True)
class Fullest:
    """Best fit: the node with the least free first, so that others stay empty. Free devices count even if no ask needs
    them, so that asks without devices leave device nodes to others."""

    step: int = 0
    one_a_round: bool = False

    def nodes(self, fleet: Fleet, resources: Sequence[str]) -> Amounts:
        left = _zeros(fleet)
        devices = [device for device in DEVICES if fleet.amount(device).total.any()]
        counted = sorted({*resources, *devices})
        for resource in counted:
            amount = fleet.amount(resource)
            largest = amount.total[: fleet.extent].max(initial=0)
            left += np.clip(_thousandths(amount.free[: fleet.extent], np.full(fleet.extent, largest)), 0, 1000)
        left //= max(len(counted), 1)
        return left - left % QUANTUM

    def column(self, fleet: Fleet, demand: Demand, fits: Flags) -> Amounts | None:
        return None


class Want:
    """Equal asks of one batch: how many are still unplaced, and what it costs to leave each of them out (runs of
    (number, cost), the most expensive first; these are placed first)."""

    __slots__ = ("count", "leaving", "view")

    def __init__(self, view: View, leaving: Sequence[tuple[int, int]]) -> None:
        self.view = view
        self.leaving = list(leaving)
        self.count = sum(count for count, _ in leaving)

    @property
    def demand(self) -> Demand:
        return self.view.demand

    @property
    def left_out(self) -> int:
        """The cost of leaving out all unplaced asks."""
        return sum(count * cost for count, cost in self.leaving)

    def placed(self, count: int) -> None:
        """Record that `count` asks are placed: those that are most expensive to leave out."""
        self.count -= count
        while count:
            first, cost = self.leaving[0]
            if first > count:
                self.leaving[0] = (first - count, cost)
                return
            count -= first
            self.leaving.pop(0)


@dataclass(slots=True)
class Round:
    """The result of one round: which want (by index) goes to which row, and what each ask pays in addition to the
    node's curve. `cost` is the optimum of the graph; `refused` counts asks that the flow put where they do not fit."""

    wants: NDArray[np.int64]
    rows: Rows
    paid: Amounts
    cost: int
    refused: int


class Ledger:
    """The node costs of a batch: the prices before it, and how many new asks each node has taken."""

    def __init__(self, fleet: Fleet, prices: Prices, views: Sequence[View]) -> None:
        self.prices = prices
        resources = sorted({resource for view in views for resource, _ in view.demand.needs})
        self.start = np.zeros(fleet.extent, np.int64) if prices.one_a_round else prices.nodes(fleet, resources)
        self.taken = np.zeros(fleet.extent, np.int64)
        self.offset = max([OFFSET, *(int(view.worth.max()) for view in views if view.worth is not None)])

    @property
    def curves(self) -> int:
        """The total cost of the nodes for the asks they have taken."""
        taken = self.taken
        return int((self.start * taken).sum() + self.prices.step * (taken * (taken + 1) // 2).sum())

    def first(self, rows: Rows) -> Amounts:
        """The cost of the next ask on each of the rows."""
        found: Amounts = self.start[rows] + self.prices.step * (self.taken[rows] + 1)
        return found


class Flow:
    """Places the asks of a batch, round after round."""

    def __init__(self, fleet: Fleet, solver: Solver, ledger: Ledger, wants: Sequence[Want]) -> None:
        self.fleet, self.solver, self.ledger, self.wants = fleet, solver, ledger, wants
        self.inside: list[int] = []
        """The wants (by index) that had an open node in the last round."""

    def round(self) -> Round | None:
        """The part of the cheapest placement that really fits. None if no node is open to any want."""
        graph = _RoundGraph(self, [index for index, want in enumerate(self.wants) if want.count])
        self.inside = graph.indexes
        if not graph.wants:
            return None
        return graph.solved()


class _RoundGraph:
    """The graph of one round and its solution."""

    def __init__(self, flow: Flow, indexes: Sequence[int]) -> None:
        self.flow, self.fleet, self.ledger = flow, flow.fleet, flow.ledger
        extent = self.fleet.extent
        fits: dict[tuple[tuple[str, int], ...], Flags] = {}
        self.wants: list[Want] = []
        self.indexes: list[int] = []
        open_to: list[Flags] = []
        for index in indexes:
            want = flow.wants[index]
            needs = want.demand.needs
            if needs not in fits:
                fits[needs] = fitting(self.fleet, needs)
            flags = want.view.flags[:extent] & fits[needs]
            if flags.any():
                self.wants.append(want)
                self.indexes.append(index)
                open_to.append(flags)
        if not self.wants:
            return
        self.needs = _needs_of(self.wants)
        self.open = np.stack(open_to)
        self.columns = [self._column(want, flags) for want, flags in zip(self.wants, self.open, strict=True)]
        self._group()

    def _column(self, want: Want, flags: Flags) -> Amounts | None:
        """What an ask pays on each node in addition to the node's curve; None if it is the same on all nodes."""
        column = self.ledger.prices.column(self.fleet, want.demand, flags)
        worth = want.view.worth
        if worth is None:
            return column
        return (column if column is not None else 0) - worth[: self.fleet.extent]

    def _group(self) -> None:
        """Group nodes that look equal to all wants into clusters, in the order of their first rows."""
        # Each distinct mask has a random number; a node's signature combines the numbers of the masks it is in.
        signature, somewhere = np.zeros(self.fleet.extent, np.uint64), np.zeros(self.fleet.extent, np.bool_)
        masks = {
            packed.tobytes(): flags for packed, flags in zip(np.packbits(self.open, axis=1), self.open, strict=True)
        }
        numbers = Dice(0)
        for flags in masks.values():
            signature ^= flags * np.uint64(numbers.below(1 << 64))
            somewhere |= flags
        for column, flags in zip(self.columns, self.open, strict=True):
            if column is not None:
                signature = _mixed(signature, np.where(flags, column, 0).view(np.uint64))
        self.rows = np.flatnonzero(somewhere)
        _, first, inverse = np.unique(signature[self.rows], return_index=True, return_inverse=True)
        order = np.argsort(first)
        rank = np.empty(len(order), np.intp)
        rank[order] = np.arange(len(order))
        cluster = rank[inverse]
        # From here on, rows are ordered by cluster, then by row.
        by_cluster = np.argsort(cluster, kind="stable")
        self.rows, self.cluster = self.rows[by_cluster], cluster[by_cluster]
        self.counts = np.bincount(self.cluster)
        self.begins = np.cumsum(self.counts) - self.counts
        self.reps = self.rows[self.begins]

    def solved(self) -> Round:
        seen = self.open[:, self.reps]
        prices = np.zeros(seen.shape, np.int64)
        for source, column in enumerate(self.columns):
            if column is not None:
                prices[source] = column[self.reps]
        if self.ledger.prices.one_a_round:
            seen = self._worth_an_arc(seen, prices)
        sources, clusters = np.nonzero(seen)
        arc_costs = self.ledger.offset + prices[sources, clusters]
        room, step = self._rooms(seen), self.ledger.prices.step
        wanted = sum(want.count for want in self.wants)
        cap = np.full(len(self.reps), max(SLOTS_FIRST, 2 * -(-wanted // len(self.rows))) if step else wanted)
        while True:
            slots = np.minimum(room, cap[self.cluster])
            levels = self._levels(slots)
            flows, level_flows, cost = self._solve(sources, clusters, arc_costs, levels)
            used = np.bincount(clusters, flows, len(self.reps)).astype(np.int64)
            offered = np.bincount(self.cluster, slots, len(self.reps)).astype(np.int64)
            short = (used >= offered) & (np.bincount(self.cluster, room > slots, len(self.reps)) > 0)
            if not short.any():
                break
            cap[short] *= 4  # the flow used all slots offered there, and there are more
        per_row = self._per_row(slots, levels, level_flows)
        sources, rows, refused = self._dealt(sources, clusters, flows, per_row)
        at = np.empty(self.fleet.extent, np.intp)
        at[self.rows] = self.cluster
        paid = self.ledger.offset + prices[sources, at[rows]]
        return Round(np.array(self.indexes, np.int64)[sources], rows, paid, cost, refused)

    def _worth_an_arc(self, seen: Flags, prices: Amounts) -> Flags:
        """Keep only the cheapest arcs of each source. If a node takes one ask, no source needs more nodes than asks."""
        asks = sum(want.count for want in self.wants)
        order = np.argsort(np.where(seen, prices, np.iinfo(np.int64).max), axis=1, kind="stable")
        counts = self.counts[order] * np.take_along_axis(seen, order, axis=1)
        cheap = np.cumsum(counts, axis=1) - counts < asks
        found = np.zeros_like(seen)
        np.put_along_axis(found, order, cheap, axis=1)
        return found & seen

    def _rooms(self, seen: Flags) -> Amounts:
        """An upper bound on the asks per row: the number that fits if all were of the smallest possible size."""
        most = np.full(len(self.rows), sum(want.count for want in self.wants), np.int64)
        if self.ledger.prices.one_a_round:
            return np.minimum(most, 1)
        for resource, needs in self.needs.items():
            least = np.where(seen, needs[:, None], np.iinfo(np.int64).max).min(axis=0)[self.cluster]
            for need in np.unique(least).tolist():
                if need:
                    where = np.flatnonzero(least == need)
                    most[where] = np.minimum(most[where], self.fleet.amount(resource).rooms(self.rows[where], need))
        return most

    def _levels(self, slots: Amounts) -> tuple[NDArray[np.intp], Amounts, Amounts]:
        """The cost curves: (cluster, cost, number of slots at that cost), by cluster and rising cost."""
        step = self.ledger.prices.step
        first = self.ledger.first(self.rows)
        cluster, weights = self.cluster, slots
        if step:
            ends = np.cumsum(slots)
            nth = np.arange(ends[-1] if len(ends) else 0) - np.repeat(ends - slots, slots)
            cluster, first = np.repeat(self.cluster, slots), np.repeat(first, slots) + step * nth
            weights = np.ones(len(first), np.int64)
        low = int(first.min(initial=0))
        span = int(first.max(initial=0) - low) // QUANTUM + 1
        keys = cluster * span + (first - low) // QUANTUM
        if len(self.reps) * span <= 1 << 22:
            capacities = np.bincount(keys, weights, len(self.reps) * span)
            found = np.flatnonzero(capacities)
            counts = capacities[found].astype(np.int64)
        else:
            found, inverse = np.unique(keys, return_inverse=True)
            counts = np.bincount(inverse, weights).astype(np.int64)
        return found // span, found % span * QUANTUM + low, counts

    def _solve(
        self,
        sources: NDArray[np.intp],
        clusters: NDArray[np.intp],
        costs: Amounts,
        levels: tuple[NDArray[np.intp], Amounts, Amounts],
    ) -> tuple[Amounts, Amounts, int]:
        """The flow from each source to each cluster, the flow on each level, and the total cost."""
        counts = np.array([want.count for want in self.wants])
        leaving = [(source, *run) for source, want in enumerate(self.wants) for run in want.leaving]
        left = np.array(leaving, np.int64).reshape(-1, 3)
        sink = len(self.wants) + len(self.reps)
        at, level_costs, capacities = levels
        tails = np.concatenate([sources, at + len(self.wants), left[:, 0]])
        heads = np.concatenate([clusters + len(self.wants), np.full(len(at) + len(left), sink)])
        caps = np.concatenate([counts[sources], capacities, left[:, 1]])
        leaving_costs = left[:, 2] - self._needless(costs, level_costs, left[:, 2])
        arc_costs = np.concatenate([costs, level_costs, leaving_costs])
        supplies = np.zeros(sink + 1, np.int64)
        supplies[: len(counts)] = counts
        supplies[sink] = -counts.sum()
        unit = max(int(np.gcd.reduce(arc_costs)), 1)
        flows = self.flow.solver.solve(tails, heads, caps, arc_costs // unit, supplies)
        placed, seated, out = np.split(flows, [len(sources), len(sources) + len(at)])
        cost = int((placed * costs).sum() + (seated * level_costs).sum() + (out * left[:, 2]).sum())
        return placed, seated, cost

    def _needless(self, costs: Amounts, levels: Amounts, leaving: Amounts) -> int:
        """How much can be subtracted from every cost of leaving out without changing the optimum. Small costs are
        solved faster.

        To place one more ask, at most every source moves to another cluster, each for at most the spread of the costs,
        and one more slot is used. While leaving out costs more than that, every optimum places as many asks as
        possible, so the subtracted amount is the same in all of them.
        """
        spread = int(costs.max() - costs.min())
        enough = int(costs.max()) + int(levels.max(initial=0)) + len(self.wants) * spread + 1
        return max(int(leaving.min()) - enough, 0) // 1000 * 1000

    def _per_row(self, slots: Amounts, levels: tuple[NDArray[np.intp], Amounts, Amounts], flows: Amounts) -> Amounts:
        """How many asks the flow puts on each row: the cheapest slots of its cluster, up to the last level used."""
        at, costs, _ = levels
        used = np.flatnonzero(flows)
        last = np.full(len(self.reps), -1)
        last[at[used]] = used  # the most expensive comes last
        threshold = np.where(last >= 0, costs[last], np.iinfo(np.int64).min)[self.cluster]
        quota = np.where(last >= 0, flows[last], 0)[self.cluster]
        step = self.ledger.prices.step
        first = self.ledger.first(self.rows)
        nothing = threshold == np.iinfo(np.int64).min
        if step:
            gap = np.where(nothing, 0, threshold - first)
            below = np.where(nothing, 0, np.clip(-(-gap // step), 0, slots))
            at_last = ~nothing & (gap >= 0) & (gap % step == 0) & (gap // step < slots)
            extra = at_last.astype(np.int64)
        else:
            below = np.where(~nothing & (first < threshold), slots, 0)
            extra = np.where(~nothing & (first == threshold), slots, 0)
        before = np.cumsum(extra) - extra
        before -= before[self.begins][self.cluster]
        counts: Amounts = below + np.clip(quota - before, 0, extra)
        return counts

    def _dealt(
        self, sources: NDArray[np.intp], clusters: NDArray[np.intp], flows: Amounts, per_row: Amounts
    ) -> tuple[NDArray[np.intp], Rows, int]:
        """Deal the asks of each cluster to its rows, one per row in turn; asks that do not fit are dropped."""
        order = self._dealing_order(sources, clusters, flows, per_row)
        units = np.repeat(sources[order], flows[order])
        next_unit = np.zeros(len(self.reps), np.int64)
        totals = np.bincount(clusters[order], flows[order], len(self.reps)).astype(np.int64)
        next_unit[:] = np.cumsum(totals) - totals
        check = _Check(self.fleet, self.needs)
        found_sources, found_rows, refused = [], [], 0
        left = np.flatnonzero(per_row)
        turn = 0
        while len(left):
            turn += 1
            cluster = self.cluster[left]
            here = np.bincount(cluster, minlength=len(self.reps))
            begins = np.cumsum(here) - here
            unit = units[next_unit[cluster] + np.arange(len(left)) - begins[cluster]]
            rows = self.rows[left]
            takes = self.open[unit, rows] & check.take(unit, rows)
            found_sources.append(unit[takes])
            found_rows.append(rows[takes])
            refused += int(len(takes) - np.count_nonzero(takes))
            next_unit += here
            left = left[per_row[left] > turn]
        if not found_rows:
            return np.empty(0, np.intp), np.empty(0, np.intp), 0
        return np.concatenate(found_sources), np.concatenate(found_rows), refused

    def _dealing_order(
        self, sources: NDArray[np.intp], clusters: NDArray[np.intp], flows: Amounts, per_row: Amounts
    ) -> NDArray[np.intp]:
        """The arcs with a flow, by cluster. Large asks come first, because small ones fit into the gaps. But if a
        cluster has too little for all, asks that are most expensive to leave out come first, and of these the
        smallest."""
        used = np.flatnonzero(flows)
        sources, clusters, flows = sources[used], clusters[used], flows[used]
        sizes, crowded = np.zeros(len(self.wants)), np.zeros(len(self.reps), np.bool_)
        for resource, needs in self.needs.items():
            amount = self.fleet.amount(resource)
            sizes = np.maximum(sizes, needs / max(int(amount.total.max(initial=0)), 1))
            free = np.where(per_row > 0, amount.free[self.rows], 0)
            wanted = np.bincount(clusters, flows * needs[sources], len(self.reps))
            crowded |= wanted > np.bincount(self.cluster, free, len(self.reps))
        leaving = np.array([want.leaving[0][1] for want in self.wants], np.float64)
        tight = crowded[clusters]
        last = np.where(tight, sizes[sources], -sizes[sources])
        return used[np.lexsort((last, np.where(tight, -leaving[sources], 0), clusters))]


class _Check:
    """Whether asks fit on rows, one per row at a time, after what this round has put there before.

    The check is conservative for devices, because which device a share gets is known only when it is placed: a row that
    took anything on devices takes no share in the same round, and a share counts as a whole device.
    """

    def __init__(self, fleet: Fleet, needs: dict[str, Amounts]) -> None:
        self.needs = needs
        self.free: dict[str, Amounts] = {}
        self.share: dict[str, Amounts] = {}
        for resource in needs:
            amount = fleet.amount(resource)
            devices = resource in DEVICES
            self.free[resource] = (amount.whole if devices else amount.free).copy()
            if devices:
                self.share[resource] = amount.share.copy()

    def take(self, units: NDArray[np.intp], rows: Rows) -> Flags:
        """Which of the units fit, each on its row; those are taken."""
        fits = np.ones(len(units), np.bool_)
        for resource, needs in self.needs.items():
            need = needs[units]
            enough = self.free[resource][rows] >= need
            if resource in self.share:
                shared = need < UNIT
                enough = np.where(shared, self.share[resource][rows] >= need, enough)
            fits &= enough | (need == 0)
        for resource, needs in self.needs.items():
            need = np.where(fits, needs[units], 0)
            free = self.free[resource]
            if resource in self.share:
                asked = need > 0
                self.share[resource][rows[asked]] = 0
                need = np.where(asked, np.maximum(need, UNIT), 0)
            free[rows] -= need
        return fits


def fitting(fleet: Fleet, needs: tuple[tuple[str, int], ...]) -> Flags:
    """The rows where enough of every resource is free."""
    flags = np.ones(fleet.extent, np.bool_)
    for resource, need in needs:
        flags &= fleet.amount(resource).fitting(need)[: fleet.extent] >= need
    return flags


def _needs_of(wants: Sequence[Want]) -> dict[str, Amounts]:
    """What each want needs: one column per resource."""
    columns: dict[str, Amounts] = {}
    for index, want in enumerate(wants):
        for resource, need in want.demand.needs:
            if resource not in columns:
                columns[resource] = np.zeros(len(wants), np.int64)
            columns[resource][index] = need
    return columns


def _zeros(fleet: Fleet) -> Amounts:
    return np.zeros(fleet.extent, np.int64)


def _thousandths(part: Amounts, whole: Amounts) -> Amounts:
    return shares_of(part, whole) // (UNIT // 1000)


def _mixed(signature: NDArray[np.uint64], word: NDArray[np.uint64]) -> NDArray[np.uint64]:
    found = (signature ^ word) * _MIX
    mixed: NDArray[np.uint64] = found ^ (found >> _SHIFT)
    return mixed
