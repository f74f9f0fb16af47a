"""Fragmentation: how much of the free devices the work that usually comes could not use, and what an ask adds to it.

Rule: all whole numbers, so that every machine finds the same costs. A cost only ranks places; whether an ask fits, and
which devices it takes there, is what `amounts` says, and the same picking is foreseen here.

The expected fragmentation of a node is taken over the kinds of work seen so far, each by how often it came. To a kind
that cannot run there now, all of the node's free devices are lost; to one that can, the free shares too small for it.
The cost of an ask is how much its coming changes that (the fragmentation gradient of Weng et al., USENIX ATC '23).
Kinds that want no device lose none, so they have no part in it; an ask of theirs pays for the devices that it leaves
without CPU or memory.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stead.engine.amounts import Amounts
from stead.engine.fleet import NODES, Column, Fleet, as_flags
from stead.engine.shapes import Demand
from stead.engine.sharing import Sheet
from stead.labelling import Selector
from stead.resources import DEVICES, UNIT

Rows = NDArray[np.intp]
Needs = tuple[tuple[str, int], ...]
Work = tuple[Needs, Selector]
"""What matters of a kind of work: what it needs, and which nodes are open to it."""

OFFSET = 100_000
"""The cost where nothing changes. It is one for all asks: where two want one place, who fragments less gets it."""
COST_MAX = 2 * OFFSET
PER_DEVICE = 1_000
"""Costs are in thousandths of a device."""
LEFT_MAX = 10
"""What an ask without devices pays more on an empty node than on one that is full, its devices too: it rather fills
what others can use least."""

KINDS_MAX = 512
GROWTH = 4
"""The weights are taken again when the counts have grown by one part in so many."""
COUNT_MAX = 1 << 16
"""With so many asks counted, all counts are halved: what has not come for long is forgotten."""
STANDS_MAX = 1 << 16
MOVED_MAX = 1 << 12
CELLS_MAX = 1 << 22
"""So many costs are kept at most, of all demands together."""


@dataclass(frozen=True, slots=True)
class SavedKind:
    needs: Needs
    selector: Selector
    count: int


@dataclass(frozen=True, slots=True)
class SavedMix:
    """A mix as it is kept in a checkpoint: all counts, and the kinds whose weights are in force (None: not taken)."""

    counts: tuple[SavedKind, ...] = ()
    counted: int = 0
    since: int = 0
    edition: int = 0
    taken: tuple[SavedKind, ...] | None = None


class Mix:
    """The kinds of work seen so far, by how often they came. It is learnt, never configured."""

    __slots__ = ("_chart", "_counted", "_counts", "_since", "_taken", "edition")

    def __init__(self) -> None:
        self._counts: Sheet[Work, int] = Sheet()
        self._counted = self._since = 0
        self._chart: Chart | None = None
        self._taken: tuple[tuple[Work, int], ...] = ()
        """The kinds that the chart was made of."""
        self.edition = 0
        """How often the weights have been taken."""

    def fork(self, lasting: bool = True) -> Mix:
        twin = Mix.__new__(Mix)
        twin._counts = self._counts.fork(lasting)
        twin._counted, twin._since = self._counted, self._since
        twin._chart, twin.edition = self._chart and self._chart.fork(), self.edition
        twin._taken = self._taken
        return twin

    def saved(self) -> SavedMix:
        counts = tuple(SavedKind(*work, count) for work, count in self._counts.map.items())
        taken = None if self._chart is None else tuple(SavedKind(*work, count) for work, count in self._taken)
        return SavedMix(counts, self._counted, self._since, self.edition, taken)

    def restore(self, saved: SavedMix) -> None:
        self._counts = Sheet({(kind.needs, kind.selector): kind.count for kind in saved.counts})
        self._counted, self._since, self.edition = saved.counted, saved.since, saved.edition
        if saved.taken is not None:
            self._taken = tuple(((kind.needs, kind.selector), kind.count) for kind in saved.taken)
            self._chart = Chart(self.edition, self._taken)

    def add(self, demand: Demand, count: int = 1) -> None:
        """So many asks of this demand have come."""
        counts = self._counts.write()
        work = (demand.needs, demand.selector)
        counts[work] = counts.get(work, 0) + count
        self._counted += count
        self._since += count
        if len(counts) > 2 * KINDS_MAX or self._counted > COUNT_MAX:
            self._forget(counts)
        if self._since * GROWTH > self._counted - self._since:
            self._chart = None

    @property
    def kinds(self) -> list[tuple[Work, int]]:
        """The most common kinds, the first of them first; those that came first among equals."""
        return sorted(self._counts.map.items(), key=lambda entry: -entry[1])[:KINDS_MAX]

    @property
    def chart(self) -> Chart:
        """The weights, as they were last taken."""
        if self._chart is None:
            self.edition += 1
            self._since = 0
            self._taken = tuple(self.kinds)
            self._chart = Chart(self.edition, self._taken)
        return self._chart

    def _forget(self, counts: dict[Work, int]) -> None:
        kept = self.kinds
        if self._counted > COUNT_MAX:
            kept = [(work, count // 2) for work, count in kept if count > 1]
        counts.clear()
        counts.update(kept)
        self._counted = sum(counts.values())
        self._since = self._counted


@dataclass(frozen=True, slots=True)
class Devices:
    """One device resource, as the profiles of a chart want it."""

    resource: str
    profiles: NDArray[np.intp]
    """Which of the chart's profiles want some of it."""
    needs: Amounts
    steps: Amounts
    """The distinct amounts that a device must have free to be of use to one of them, rising."""
    ranks: NDArray[np.intp]
    """The how manieth of those each of them has."""
    weight: int
    """Of all kinds that want some of it."""

    def usable(self, shares: Amounts) -> Amounts:
        """What is free on devices that have enough for each profile (second axis), from what is free on each device
        (first axis) of many rows (second)."""
        rows, width = shares.shape[1], len(self.steps) + 1
        place = np.searchsorted(self.steps, shares, side="right") + np.arange(rows) * width
        sums = np.bincount(place.ravel(), shares.ravel(), rows * width).astype(np.int64).reshape(rows, width)
        found: Amounts = sums[:, ::-1].cumsum(axis=1)[:, ::-1][:, self.ranks]
        return found


class Chart:
    """A mix whose weights have been taken, laid out to be compared with many rows at once.

    How a row stands to the mix, its devices aside, is a few small numbers: which selectors hold there, and how many
    of the distinct needs of each plain resource would fit. What weight of the mix could run in such a *stand* is
    computed once and kept.
    """

    def __init__(self, edition: int, kinds: Sequence[tuple[Work, int]]) -> None:
        self.edition = edition
        kinds = [(work, count) for work, count in kinds if _on_devices(work[0])]
        needs = [dict(needs) for (needs, _), _ in kinds]
        self.selectors = list(dict.fromkeys(selector for (_, selector), _ in kinds))
        self._selector_of = np.array([self.selectors.index(selector) for (_, selector), _ in kinds], np.intp)
        keys = sorted({key for selector in self.selectors for key in selector.keys})
        self._columns: tuple[Column, ...] = (NODES, *(("label", key) for key in keys))
        profiles = list(dict.fromkeys(_on_devices(needs) for (needs, _), _ in kinds))
        self._weights = np.zeros((len(kinds), len(profiles)), np.int64)
        for index, ((wanted, _), count) in enumerate(kinds):
            self._weights[index, profiles.index(_on_devices(wanted))] = count
        resources = sorted({resource for profile in profiles for resource, _ in profile})
        self.devices = [_devices(resource, profiles, self._weights.sum(axis=0)) for resource in resources]
        self.plain: dict[str, Amounts] = {}
        """The distinct needs of each other resource, rising."""
        self._ranks: list[Amounts] = []
        """For each of them: the how manieth of those needs each kind has; 0: none."""
        for resource in sorted({name for each in needs for name in each if name not in DEVICES}):
            wanted_of = np.array([each.get(resource, 0) for each in needs], np.int64)
            self.plain[resource] = np.unique(wanted_of[wanted_of > 0])
            self._ranks.append(np.searchsorted(self.plain[resource], wanted_of, side="right"))
        self._unlearn()

    def fork(self) -> Chart:
        """The same weights; what was learnt of the rows of one fleet is not that of another."""
        twin = copy.copy(self)
        twin._unlearn()
        return twin

    def _unlearn(self) -> None:
        self._stamp: tuple[int, ...] | None = None
        self._classes: dict[bytes, int] = {}
        self._class_of: NDArray[np.uint32] = np.zeros(0, np.uint32)
        self._holds: NDArray[np.bool_] = np.zeros((0, len(self.selectors)), np.bool_)
        self._stands: dict[bytes, int] = {}
        self._runnable: Amounts = np.zeros((64, self._weights.shape[1]), np.int64)
        self.moved: list[int] = []
        """Rows on which other selectors hold than before, in order."""
        self.era = object()
        """Another one when `moved` began anew."""

    def look(self, fleet: Fleet) -> None:
        """Find out which selectors hold on which rows; rows on which the same ones hold are of one class."""
        stamp = fleet.stamp(self._columns)
        if not self.selectors or (stamp == self._stamp and len(self._class_of) == fleet.size):
            return
        if len(self.moved) > max(MOVED_MAX, 4 * fleet.size) or len(self._classes) > STANDS_MAX:
            self._unlearn()
        self._stamp = stamp
        holds = np.array([as_flags(fleet.selected(selector), fleet.size) for selector in self.selectors])
        packed = np.packbits(np.ascontiguousarray(holds.T), axis=1)
        names = _names(packed)
        fresh = {name: row for row, name in enumerate(names) if name not in self._classes}
        self._holds = np.concatenate([self._holds, holds.T[list(fresh.values())]])
        self._classes.update(zip(fresh, range(len(self._classes), len(self._holds)), strict=True))
        before, self._class_of = self._class_of, np.array([self._classes[name] for name in names], np.uint32)
        if len(before):
            self.moved.extend(np.flatnonzero(before != self._class_of[: len(before)]).tolist())

    def lost(
        self, fleet: Fleet, rows: Rows, free: Mapping[str, Amounts], shares: Mapping[str, Amounts]
    ) -> list[Amounts]:
        """The expected fragmentation of these rows, one entry for each of `devices`, in units times its weight: with
        so much free of the plain resources, and on each device."""
        runnable = self._runnable_of(fleet, rows, free)
        usable = [device.usable(shares[device.resource]) for device in self.devices]
        for device, amounts in zip(self.devices, usable, strict=True):
            runnable[:, device.profiles] *= amounts >= device.needs
        return [
            shares[device.resource].sum(axis=0) * device.weight - (runnable[:, device.profiles] * amounts).sum(axis=1)
            for device, amounts in zip(self.devices, usable, strict=True)
        ]

    def _runnable_of(self, fleet: Fleet, rows: Rows, free: Mapping[str, Amounts]) -> Amounts:
        """The weight of the kinds of each profile (second axis) that could run on each row, if devices sufficed."""
        self.look(fleet)
        stands = np.empty((len(rows), 1 + len(self.plain)), np.uint32)
        stands[:, 0] = self._class_of[rows]
        for index, (resource, steps) in enumerate(self.plain.items(), start=1):
            stands[:, index] = np.searchsorted(steps, free[resource], side="right")
        names = _names(stands)
        known = self._stands
        if not known.keys() >= set(names):
            self._learn(names, stands)
        return self._runnable[[known[name] for name in names]]

    def _learn(self, names: Sequence[bytes], stands: NDArray[np.uint32]) -> None:
        """Compute the weights of the stands never met before."""
        if len(self._stands) + len(names) > STANDS_MAX:
            self._stands.clear()
        where = {name: index for index, name in enumerate(names) if name not in self._stands}
        begin, end = len(self._stands), len(self._stands) + len(where)
        fresh = stands[list(where.values())]
        fits = self._holds[fresh[:, 0]][:, self._selector_of]
        for index, ranks in enumerate(self._ranks, start=1):
            fits &= fresh[:, index, None] >= ranks
        while len(self._runnable) < end:
            self._runnable = np.concatenate([self._runnable, np.zeros_like(self._runnable)])
        self._runnable[begin:end] = fits @ self._weights
        self._stands.update(zip(where, range(begin, end), strict=True))


def costs(fleet: Fleet, mix: Mix, demand: Demand, rows: Rows) -> Amounts:
    """What an ask of the demand costs on each of these rows, on which it fits: OFFSET, and the change of expected
    fragmentation in thousandths of a device."""
    chart = mix.chart
    found = np.full(len(rows), OFFSET, np.int64)
    if not demand.on_devices:
        found += _left(fleet, _leftovers(demand, chart), rows)
    if not chart.devices or not len(rows):
        return found
    needs, both = dict(demand.needs), np.concatenate([rows, rows])
    free, shares = {}, {}
    for resource in chart.plain:
        before = fleet.amount(resource).free[rows]
        free[resource] = np.concatenate([before, before - needs.get(resource, 0)])
    for device in chart.devices:
        column = fleet.amount(device.resource).shares
        assert column is not None, "a device"
        share = np.clip(column[:, rows], 0, UNIT)
        shares[device.resource] = np.concatenate([share, _taken(share, needs.get(device.resource, 0))], axis=1)
    for device, lost in zip(chart.devices, chart.lost(fleet, both, free, shares), strict=True):
        change = lost[len(rows) :] - lost[: len(rows)]
        found += change * PER_DEVICE // (device.weight * UNIT)
    return np.clip(found, 0, COST_MAX)


class LeastFragmenting:
    """The prices of a batch (`flow.Prices`) in which asks go where they add least to fragmentation.

    What each demand costs on each row is kept, and computed again for rows that changed. `forget` must be called when
    the fleet's list of changed rows begins anew.
    """

    __slots__ = ("_kept", "mix", "one_a_round", "step")

    def __init__(self, mix: Mix) -> None:
        self.mix = mix
        self.step, self.one_a_round = 0, True
        self._kept: dict[Demand, _Kept] = {}

    def fork(self, lasting: bool = True) -> LeastFragmenting:
        return LeastFragmenting(self.mix.fork(lasting))

    def forget(self) -> None:
        self._kept.clear()

    def nodes(self, fleet: Fleet, resources: Sequence[str]) -> Amounts:
        return np.zeros(fleet.extent, np.int64)

    def column(self, fleet: Fleet, demand: Demand, fits: NDArray[np.bool_]) -> Amounts:
        """What an ask of the demand costs on each row where it fits. To be read at once, and never written."""
        chart = self.mix.chart
        chart.look(fleet)
        steps = tuple(_steps(fleet, _leftovers(demand, chart)))
        kept = self._kept.get(demand)
        if kept is None or kept.era is not chart.era or kept.steps != steps or len(kept.costs) > fleet.extent:
            if kept is None and len(self._kept) * fleet.extent > CELLS_MAX:
                self._kept.clear()
            kept = self._kept[demand] = _Kept(chart.era, steps, fleet.extent)
        else:
            kept.grow(fleet.extent)
            kept.stale[fleet.touched[kept.seen :]] = True
            kept.stale[chart.moved[kept.looked :]] = True
        kept.seen, kept.looked = len(fleet.touched), len(chart.moved)
        rows = np.flatnonzero(kept.stale & fits)
        if len(rows):
            kept.costs[rows] = costs(fleet, self.mix, demand, rows)
            kept.stale[rows] = False
        return kept.costs


class _Kept:
    """The costs of one demand, and which of them are not known now."""

    __slots__ = ("costs", "era", "looked", "seen", "stale", "steps")

    def __init__(self, era: object, steps: tuple[int, ...], extent: int) -> None:
        self.era, self.steps = era, steps
        self.costs: Amounts = np.zeros(extent, np.int64)
        self.stale = np.ones(extent, np.bool_)
        self.seen = self.looked = 0

    def grow(self, extent: int) -> None:
        more = extent - len(self.costs)
        if more:
            self.costs = np.concatenate([self.costs, np.zeros(more, np.int64)])
            self.stale = np.concatenate([self.stale, np.ones(more, np.bool_)])


def _taken(share: Amounts, need: int) -> Amounts:
    """What is free on every device (first axis) when `need` lies there, as `Amount.take` would lay it."""
    if not need or not len(share):
        return share
    if need < UNIT:
        fullest = np.where(share >= need, share, UNIT + 1).argmin(axis=0)
        after = share.copy()
        after[fullest, np.arange(share.shape[1])] -= need
        return np.maximum(after, 0)
    whole = share == UNIT
    return np.where(whole & (whole.cumsum(axis=0) <= need // UNIT), 0, share)


def _leftovers(demand: Demand, chart: Chart) -> list[str]:
    """What an ask without devices looks at where nothing would be stranded."""
    if demand.on_devices:
        return []
    return [*dict(demand.needs), *(device.resource for device in chart.devices)]


def _steps(fleet: Fleet, resources: Sequence[str]) -> list[int]:
    return [max(int(fleet.amount(resource).total.max(initial=0)) // LEFT_MAX, 1) for resource in resources]


def _left(fleet: Fleet, resources: Sequence[str], rows: Rows) -> Amounts:
    """How empty the rows are, from 0 to LEFT_MAX: the mean over the resources."""
    total = np.zeros(len(rows), np.int64)
    for resource, step in zip(resources, _steps(fleet, resources), strict=True):
        total += np.clip(fleet.amount(resource).free[rows] // step, 0, LEFT_MAX)
    return total // max(len(resources), 1)


def _names(table: NDArray[np.uint32] | NDArray[np.uint8]) -> list[bytes]:
    """Every line of a table as bytes, by which it can be looked up."""
    lines: list[bytes] = table.view(f"V{table.itemsize * table.shape[1]}")[:, 0].tolist()
    return lines


def _on_devices(needs: Needs) -> Needs:
    return tuple((resource, need) for resource, need in needs if resource in DEVICES)


def _devices(resource: str, profiles: Sequence[Needs], weights: Amounts) -> Devices:
    where = np.array([index for index, profile in enumerate(profiles) if resource in dict(profile)], np.intp)
    needs = np.array([dict(profiles[index])[resource] for index in where.tolist()], np.int64)
    steps, ranks = np.unique(np.minimum(needs, UNIT), return_inverse=True)
    return Devices(resource, where, needs, steps, ranks.reshape(-1) + 1, int(weights[where].sum()))
