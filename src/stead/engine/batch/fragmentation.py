"""Fragmentation: how much of the free devices typical work cannot use, and how much an ask adds to that.

Rule: all numbers are integers, so every machine computes the same costs. A cost only ranks nodes; `amounts` decides
whether an ask fits and which devices it gets, and this file predicts the same devices.

The expected fragmentation of a node is an average over the kinds of work seen so far, weighted by how often each was
submitted. For a kind that cannot run there now, all free devices of the node are lost; for one that can, the free
shares that are too small for it. The cost of an ask is how much it changes this average (the fragmentation gradient of
Weng et al., USENIX ATC '23). Kinds without devices do not count. An ask without devices pays for the devices that it
leaves without CPU or memory.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stead.engine.columns.amounts import Amounts, laid_on
from stead.engine.columns.change_log import NODES, ChangeLog, Column
from stead.engine.columns.sharing import Sheet
from stead.engine.fleet import Fleet, as_flags
from stead.engine.shapes import Demand
from stead.language.labels import Selector
from stead.language.resources import DEVICES, UNIT

Rows = NDArray[np.intp]
Needs = tuple[tuple[str, int], ...]
Work = tuple[Needs, Selector]
"""A kind of work: what it needs, and which nodes it selects."""

OFFSET = 100_000
"""The cost if fragmentation does not change. It is the same for all asks, so of two asks for one node, the one that
fragments less gets it."""
COST_MAX = 2 * OFFSET
PER_DEVICE = 1_000
"""Costs are in thousandths of a device."""
LEFT_MAX = 10
"""The extra cost of an empty node, compared with a full one, for an ask without devices: such asks fill nodes that are
of least use to others."""

KINDS_MAX = 512
GROWTH = 4
"""The weights are recomputed when the counts have grown by 1/GROWTH."""
COUNT_MAX = 1 << 16
"""At this many counted asks, all counts are halved, so that old kinds are forgotten."""
STANDS_MAX = 1 << 16
MOVED_MAX = 1 << 12
CELLS_MAX = 1 << 22
"""The maximum number of cached costs over all demands."""


@dataclass(frozen=True, slots=True)
class SavedKind:
    needs: Needs
    selector: Selector
    count: int


@dataclass(frozen=True, slots=True)
class SavedMix:
    """A mix in a checkpoint: all counts, and the kinds that the current weights were computed from (None: no weights
    yet)."""

    counts: tuple[SavedKind, ...] = ()
    counted: int = 0
    since: int = 0
    edition: int = 0
    taken: tuple[SavedKind, ...] | None = None


class Mix:
    """The kinds of work seen so far, with how often each was submitted. It is learned, never configured."""

    __slots__ = ("_chart", "_counted", "_counts", "_since", "_taken", "edition")

    def __init__(self) -> None:
        self._counts: Sheet[Work, int] = Sheet()
        self._counted = self._since = 0
        self._chart: Chart | None = None
        self._taken: tuple[tuple[Work, int], ...] = ()
        """The kinds that the chart was made from."""
        self.edition = 0
        """How often the weights have been computed."""

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
        """Count submitted asks of this demand."""
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
        """The most common kinds first; equally common kinds in the order of their first submission."""
        return sorted(self._counts.map.items(), key=lambda entry: -entry[1])[:KINDS_MAX]

    @property
    def chart(self) -> Chart:
        """The current weights, computed if they are out of date."""
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
    """One device resource, as the profiles of a chart need it."""

    resource: str
    profiles: NDArray[np.intp]
    """Indexes of the chart's profiles that need this resource."""
    needs: Amounts
    steps: Amounts
    """The distinct amounts that a device must have free to be useful to a profile, rising."""
    ranks: NDArray[np.intp]
    """Each profile's index in `steps`, plus 1."""
    weight: int
    """The total weight of the kinds that need this resource."""

    def usable(self, shares: Amounts) -> Amounts:
        """For each row (first axis) and profile (second axis): what is free on devices that have enough for the
        profile. `shares` is what is free on each device (first axis) of each row (second axis)."""
        rows, width = shares.shape[1], len(self.steps) + 1
        place = np.searchsorted(self.steps, shares, side="right") + np.arange(rows) * width
        sums = np.bincount(place.ravel(), shares.ravel(), rows * width).astype(np.int64).reshape(rows, width)
        found: Amounts = sums[:, ::-1].cumsum(axis=1)[:, ::-1][:, self.ranks]
        return found


class Chart:
    """The weights of a mix, prepared for comparing with many rows at once.

    Without devices, a row's *stand* is a few small numbers: which selectors match it, and how many of the distinct
    needs of each plain resource would fit. The weight that could run in each stand is computed once and cached.
    """

    def __init__(self, edition: int, kinds: Sequence[tuple[Work, int]]) -> None:
        self.edition = edition
        kinds = [(work, count) for work, count in kinds if _on_devices(work[0])]
        needs = [dict(needs) for (needs, _), _ in kinds]
        self.selectors = list(dict.fromkeys(selector for (_, selector), _ in kinds))
        self._selector_of = np.array([self.selectors.index(selector) for (_, selector), _ in kinds], np.intp)
        keys = sorted({key for selector in self.selectors for key in selector.keys})
        self._columns: tuple[Column, ...] = (NODES, *(Column("label", key) for key in keys))
        profiles = list(dict.fromkeys(_on_devices(needs) for (needs, _), _ in kinds))
        self._weights = np.zeros((len(kinds), len(profiles)), np.int64)
        for index, ((wanted, _), count) in enumerate(kinds):
            self._weights[index, profiles.index(_on_devices(wanted))] = count
        resources = sorted({resource for profile in profiles for resource, _ in profile})
        self.devices = [_devices(resource, profiles, self._weights.sum(axis=0)) for resource in resources]
        self.plain: dict[str, Amounts] = {}
        """The distinct needs of each resource that is not a device, rising."""
        self._ranks: list[Amounts] = []
        """For each of these resources: each kind's index in its needs, plus 1; 0: no need."""
        for resource in sorted({name for each in needs for name in each if name not in DEVICES}):
            wanted_of = np.array([each.get(resource, 0) for each in needs], np.int64)
            self.plain[resource] = np.unique(wanted_of[wanted_of > 0])
            self._ranks.append(np.searchsorted(self.plain[resource], wanted_of, side="right"))
        self._reset()

    def fork(self) -> Chart:
        """The same weights with empty caches: another fleet has other rows."""
        twin = copy.copy(self)
        twin._reset()
        return twin

    def _reset(self) -> None:
        self._stamp: tuple[int, ...] | None = None
        self._classes: dict[bytes, int] = {}
        self._class_of: NDArray[np.uint32] = np.zeros(0, np.uint32)
        self._holds: NDArray[np.bool_] = np.zeros((0, len(self.selectors)), np.bool_)
        self._stands: dict[bytes, int] = {}
        self._runnable: Amounts = np.zeros((64, self._weights.shape[1]), np.int64)
        self.moved: ChangeLog[int] = ChangeLog()
        """Rows whose matching selectors have changed."""
        self.era = object()
        """A new object whenever the caches are reset."""

    def look(self, fleet: Fleet) -> None:
        """Compute which selectors match which rows; rows with the same matching selectors form one class."""
        stamp = fleet.stamp(self._columns)
        if not self.selectors or (stamp == self._stamp and len(self._class_of) == fleet.size):
            return
        if len(self._classes) > STANDS_MAX:
            self._reset()
        self.moved.keep_at_most(max(MOVED_MAX, 4 * fleet.size))
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
        """The expected fragmentation of these rows, one entry for each of `devices`, in units times its weight. `free`
        and `shares` are the free amounts of plain resources and of each device."""
        runnable = self._runnable_of(fleet, rows, free)
        usable = [device.usable(shares[device.resource]) for device in self.devices]
        for device, amounts in zip(self.devices, usable, strict=True):
            runnable[:, device.profiles] *= amounts >= device.needs
        return [
            shares[device.resource].sum(axis=0) * device.weight - (runnable[:, device.profiles] * amounts).sum(axis=1)
            for device, amounts in zip(self.devices, usable, strict=True)
        ]

    def _runnable_of(self, fleet: Fleet, rows: Rows, free: Mapping[str, Amounts]) -> Amounts:
        """The weight of the kinds of each profile (second axis) that could run on each row if it had enough devices."""
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
        """Compute and cache the weights of new stands."""
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
    """The cost of an ask on each of these rows, where it must fit: OFFSET plus the change of expected fragmentation, in
    thousandths of a device."""
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
        shares[device.resource] = np.concatenate([share, laid_on(share, needs.get(device.resource, 0))], axis=1)
    for device, lost in zip(chart.devices, chart.lost(fleet, both, free, shares), strict=True):
        change = lost[len(rows) :] - lost[: len(rows)]
        found += change * PER_DEVICE // (device.weight * UNIT)
    return np.clip(found, 0, COST_MAX)


class LeastFragmenting:
    """Batch prices (`flow.Prices`) that put asks where they add least to fragmentation.

    The costs of each demand are cached and recomputed for rows that changed.
    """

    __slots__ = ("_cached", "mix", "one_a_round", "step")

    def __init__(self, mix: Mix) -> None:
        self.mix = mix
        self.step, self.one_a_round = 0, True
        self._cached: dict[Demand, _CachedCosts] = {}

    def fork(self, lasting: bool = True) -> LeastFragmenting:
        return LeastFragmenting(self.mix.fork(lasting))

    def nodes(self, fleet: Fleet, resources: Sequence[str]) -> Amounts:
        return np.zeros(fleet.extent, np.int64)

    def column(self, fleet: Fleet, demand: Demand, fits: NDArray[np.bool_]) -> Amounts:
        """The cost of an ask on each row where it fits. Read it at once and never write to it."""
        chart = self.mix.chart
        chart.look(fleet)
        steps = tuple(_steps(fleet, _leftovers(demand, chart)))
        cached = self._cached.get(demand)
        changed = None if cached is None else fleet.touched.since(cached.seen)
        moved = None if cached is None else chart.moved.since(cached.looked)
        if (
            cached is None
            or changed is None
            or moved is None
            or cached.era is not chart.era
            or cached.steps != steps
            or len(cached.costs) > fleet.extent
        ):
            if cached is None and len(self._cached) * fleet.extent > CELLS_MAX:
                self._cached.clear()
            cached = self._cached[demand] = _CachedCosts(chart.era, steps, fleet.extent)
        else:
            cached.grow(fleet.extent)
            cached.stale[changed] = True
            cached.stale[moved] = True
        cached.seen, cached.looked = fleet.touched.end, chart.moved.end
        rows = np.flatnonzero(cached.stale & fits)
        if len(rows):
            cached.costs[rows] = costs(fleet, self.mix, demand, rows)
            cached.stale[rows] = False
        return cached.costs


class _CachedCosts:
    """The costs of one demand, and which of them are out of date."""

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


def _leftovers(demand: Demand, chart: Chart) -> list[str]:
    """The resources whose free amounts rank nodes for an ask without devices; empty for other asks."""
    if demand.on_devices:
        return []
    return [*dict(demand.needs), *(device.resource for device in chart.devices)]


def _steps(fleet: Fleet, resources: Sequence[str]) -> list[int]:
    return [max(int(fleet.amount(resource).total.max(initial=0)) // LEFT_MAX, 1) for resource in resources]


def _left(fleet: Fleet, resources: Sequence[str], rows: Rows) -> Amounts:
    """How empty the rows are, from 0 to LEFT_MAX: the average over the resources."""
    total = np.zeros(len(rows), np.int64)
    for resource, step in zip(resources, _steps(fleet, resources), strict=True):
        total += np.clip(fleet.amount(resource).free[rows] // step, 0, LEFT_MAX)
    return total // max(len(resources), 1)


def _names(table: NDArray[np.uint32] | NDArray[np.uint8]) -> list[bytes]:
    """Every row of a table as bytes, for use as a dictionary key."""
    lines: list[bytes] = table.view(f"V{table.itemsize * table.shape[1]}")[:, 0].tolist()
    return lines


def _on_devices(needs: Needs) -> Needs:
    return tuple((resource, need) for resource, need in needs if resource in DEVICES)


def _devices(resource: str, profiles: Sequence[Needs], weights: Amounts) -> Devices:
    where = np.array([index for index, profile in enumerate(profiles) if resource in dict(profile)], np.intp)
    needs = np.array([dict(profiles[index])[resource] for index in where.tolist()], np.int64)
    steps, ranks = np.unique(np.minimum(needs, UNIT), return_inverse=True)
    return Devices(resource, where, needs, steps, ranks.reshape(-1) + 1, int(weights[where].sum()))
