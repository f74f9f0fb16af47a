"""Amounts: one resource over all nodes, as columns of int64 units.

Rule: this file alone computes how full a node would be and which devices an ask would get, for all nodes at once or for
one node by the same arithmetic. Other files compare a need with its columns.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from stead.engine.columns.change_log import ChangeLog, Column
from stead.language.resources import DEVICES, UNIT

Amounts = NDArray[np.int64]

DeviceShares = tuple[tuple[int, int], ...]
"""(device index, units) pairs that a placed ask holds of one device resource."""

REFUSED = int(np.iinfo(np.int64).max)
"""The level, and the key, of a node that does not take the ask."""
LOAD_MAX = (1 << 40) - 1
"""Loads above this (an extremely overcommitted node) count as this."""

FREE_MIN = -(1 << 60)
"""The free amount of a node in the column is at least this."""

LEVELS_MAX = 32
SCALARS_MAX = 6
"""Up to this many rows, a loop is faster than arrays."""


TOUCHED_PLAINLY_MAX = 64
"""Up to this many rows are logged without removing duplicates."""


class Amount:
    """One resource over all nodes: the total and the free amount.

    For devices it also keeps the free share of every device, and two columns that tell in one comparison whether a need
    fits: `whole` (units on completely free devices) and `share` (the largest free share of one device).
    """

    __slots__ = (
        "_debts",
        "_levels",
        "_touched",
        "became_free",
        "free",
        "share",
        "share_total",
        "shares",
        "shares_total",
        "total",
        "whole",
        "whole_total",
    )

    def __init__(self, resource: str, size: int) -> None:
        devices = resource in DEVICES
        self.became_free = Column("free", resource)
        self.total: Amounts = np.zeros(size, np.int64)
        self.free: Amounts = np.zeros(size, np.int64)
        self.shares: Amounts | None = np.zeros((0, size), np.int64) if devices else None
        self.shares_total: Amounts | None = np.zeros((0, size), np.int64) if devices else None
        self.whole = self.share = self.free
        self.whole_total = self.share_total = self.total
        if devices:
            self.whole, self.share = np.zeros(size, np.int64), np.zeros(size, np.int64)
            self.whole_total, self.share_total = np.zeros(size, np.int64), np.zeros(size, np.int64)
        self._levels: dict[int, tuple[Amounts, int]] = {}
        self._touched: ChangeLog[int] = ChangeLog()
        self._debts: dict[int, int] = {}

    def copy(self) -> Amount:
        twin = Amount.__new__(Amount)
        twin.became_free = self.became_free
        twin.total, twin.free = self.total.copy(), self.free.copy()
        twin.shares, twin.shares_total = self.shares, self.shares_total
        twin.whole = twin.share = twin.free
        twin.whole_total = twin.share_total = twin.total
        if self.shares is not None and self.shares_total is not None:
            twin.shares, twin.shares_total = self.shares.copy(), self.shares_total.copy()
            twin.whole, twin.share = self.whole.copy(), self.share.copy()
            twin.whole_total, twin.share_total = self.whole_total.copy(), self.share_total.copy()
        twin._levels, twin._touched, twin._debts = {}, ChangeLog(), dict(self._debts)
        return twin

    def grow(self, size: int) -> None:
        self._levels.clear()
        for name in ("total", "free"):
            setattr(self, name, grown(getattr(self, name), size))
        if self.shares is None or self.shares_total is None:
            self.whole = self.share = self.free
            self.whole_total = self.share_total = self.total
            return
        self.shares, self.shares_total = grown(self.shares, size), grown(self.shares_total, size)
        for name in ("whole", "share", "whole_total", "share_total"):
            setattr(self, name, grown(getattr(self, name), size))

    def fitting(self, need: int) -> Amounts:
        """The column to compare with `need`: a node fits now where it is at least `need`."""
        return self.share if need < UNIT else self.whole

    def fitting_total(self, need: int) -> Amounts:
        """The same for an empty node."""
        return self.share_total if need < UNIT else self.whole_total

    def levels(self, need: int) -> Amounts:
        """How full every node would be with `need` more, in 1/10000; REFUSED where that does not fit now.

        Many shapes need the same amount, so the column is cached and updated for the rows that changed. Read it at once
        and never write to it.
        """
        found = self._levels.get(need)
        changed = None if found is None else self._touched.since(found[1])
        if found is None or changed is None or len(changed) > len(self.free) // 8:
            column = self._level_of(slice(None), need)
        else:
            column, rows = found[0], list(dict.fromkeys(changed))
            if len(rows) > SCALARS_MAX:
                where = np.array(rows)
                column[where] = self._level_of(where, need)
            else:
                for row in rows:
                    column[row] = self.level(row, need)
        if len(self._levels) > LEVELS_MAX:
            self._levels.clear()
        self._levels[need] = column, self._touched.end
        return column

    def level(self, row: int, need: int, more: int = 0) -> int:
        """The same for one node if `more` asks of `need` were placed there first; the caller checks that they fit."""
        if not more and self.fitting(need).item(row) < need:
            return REFUSED
        return self.load(row, need * (more + 1))

    def load(self, row: int, need: int) -> int:
        """How full the node would be with `need` more, whether it fits or not."""
        total = self.total.item(row)
        return min((total - self.free.item(row) + need) * UNIT // (total or 1), LOAD_MAX)

    def _level_of(self, where: NDArray[np.intp] | slice, need: int) -> Amounts:
        return np.where(self.fitting(need)[where] >= need, self.loads(where, need), REFUSED)

    def loads(self, where: NDArray[np.intp] | slice, need: int) -> Amounts:
        """How full these nodes would be with `need` more, whether it fits or not."""
        total = self.total[where]
        return np.minimum(shares_of(total - self.free[where] + need, total), LOAD_MAX)

    def room_at_level(self, row: int, need: int, level: int) -> int:
        """How many asks of `need` the node takes before it is fuller than `level`."""
        total = self.total.item(row)
        return (((level + 1) * total - 1) // UNIT - (total - self.free.item(row))) // need

    def room(self, row: int, need: int) -> int:
        """How many asks of `need` units still fit on the node."""
        if self.shares is None:
            return max(0, int(self.free[row]) // need)
        if need >= UNIT:
            return int(self.whole[row]) // need
        return sum(max(0, free) // need for free in self.shares[:, row].tolist())

    def rooms(self, rows: NDArray[np.intp], need: int) -> Amounts:
        """The same for many nodes."""
        if self.shares is None or need >= UNIT:
            return np.maximum(self.fitting(need)[rows], 0) // need
        found: Amounts = (np.maximum(self.shares[:, rows], 0) // need).sum(axis=0)
        return found

    def lacking(self, row: int, need: int) -> int:
        """The smallest amount that must become free on the node for `need` to fit."""
        if self.shares is None or self.shares_total is None:
            return max(0, need - int(self.free[row]))
        if need < UNIT:
            return max(0, need - int(self.share[row]))
        whole = self.shares_total[:, row] == UNIT
        in_use = sorted((UNIT - self.shares[:, row][whole]).tolist())
        return sum(in_use[: need // UNIT])

    def lacking_total(self, row: int, need: int) -> int:
        """The smallest capacity to add to the node so that `need` fits now."""
        if self.shares is None:
            return max(0, need - min(int(self.free[row]), int(self.total[row])))
        return UNIT if need < UNIT else need - int(self.whole[row])

    def free_up(self, row: int, need: int) -> None:
        """Pretend that just enough became free on the node for `need` to fit (see `lacking`)."""
        missing = self.lacking(row, need)
        self._touch(row)
        self.free[row] += missing
        if self.shares is None or self.shares_total is None:
            return
        if need < UNIT:
            self.shares[int(self.shares[:, row].argmax()), row] += missing
        else:
            whole = np.flatnonzero(self.shares_total[:, row] == UNIT)
            emptiest = whole[np.argsort(UNIT - self.shares[whole, row], kind="stable")]
            self.shares[emptiest[: need // UNIT], row] = UNIT
        self._review(row)

    def resize(self, row: int, total: int) -> None:
        """Set the node's total; what is in use stays in use."""
        self._touch(row)
        self._change_free(row, total - self.total.item(row))
        self.total[row] = total
        if self.shares is None or self.shares_total is None:
            return
        count = total // UNIT
        self.make_room(count)
        new = np.zeros(len(self.shares), np.int64)
        new[:count] = UNIT
        self.shares[:, row] += new - self.shares_total[:, row]
        self.shares_total[:, row] = new
        self.whole_total[row] = total
        self.share_total[row] = min(total, UNIT)
        self._review(row)

    def make_room(self, devices: int) -> None:
        """Make sure that the tables have an entry for this many devices."""
        if self.shares is not None and self.shares_total is not None and devices > len(self.shares):
            extra = np.zeros((devices - len(self.shares), self.shares.shape[1]), np.int64)
            self.shares = np.concatenate([self.shares, extra])
            self.shares_total = np.concatenate([self.shares_total, extra])

    def fill(self, rows: list[int], totals: list[int]) -> None:
        """Set the capacities of many nodes in a new column; nothing is in use."""
        self.total[rows] = totals
        if self.shares is not None:
            devices = np.arange(int(self.total.max(initial=0)) // UNIT)
            self.shares_total = (devices[:, None] < self.total // UNIT) * np.int64(UNIT)
            self.shares = self.shares_total.copy()
            self.whole_total[:], self.whole[:] = self.total, self.total
            self.share_total[:] = self.share[:] = np.minimum(self.total, UNIT)
        self.free[:] = self.total

    def _change_free(self, row: int, step: int) -> None:
        """Change the free amount of a node. Clusters may report far more than fits: what does not fit into the column
        is kept as a debt, so that nothing is lost."""
        if self._debts:
            step -= self._debts.pop(row, 0)
        left = self.free.item(row) + step
        if left < FREE_MIN:
            self._debts[row] = FREE_MIN - left
            left = FREE_MIN
        self.free[row] = left

    def take(self, row: int, need: int) -> DeviceShares:
        """Use `need` units on the node. Returns the devices used, for `give`."""
        self._touch(row)
        self._change_free(row, -need)
        if self.shares is None:
            return ()
        held = self._pick(row, need)
        for device, units in held:
            self.shares[device, row] -= units
        self._review(row)
        return held

    def take_again(self, row: int, need: int, held: DeviceShares) -> None:
        """Use `need` units on the node, on these devices."""
        self._touch(row)
        self._change_free(row, -need)
        if self.shares is None:
            return
        for device, units in held:
            self.shares[device, row] -= units
        self._review(row)

    def _touch(self, row: int) -> None:
        """Log a changed row. After more changes than rows, recomputing a column is cheaper than updating it."""
        self._touched.keep_at_most(len(self.free))
        self._touched.add(row)

    def take_many(self, rows: NDArray[np.intp], need: int) -> None:
        """Use `need` units once for each of `rows`. Not for devices."""
        self._touched.keep_at_most(len(self.free))
        self._touched.extend(np.unique(rows).tolist() if len(rows) > TOUCHED_PLAINLY_MAX else rows.tolist())
        np.subtract.at(self.free, rows, need)

    def give(self, row: int, need: int, held: DeviceShares) -> None:
        self._touch(row)
        self._change_free(row, need)
        if self.shares is None:
            return
        for device, units in held:
            self.shares[device, row] += units
        self._review(row)

    def _pick(self, row: int, need: int) -> DeviceShares:
        """The devices to use. If the cluster runs more than fits, these cover less than `need`."""
        assert self.shares is not None and self.shares_total is not None
        free = self.shares[:, row].tolist()
        if need < UNIT:
            fitting = [(amount, device) for device, amount in enumerate(free) if amount >= need]
            return ((min(fitting)[1], need),) if fitting else ()
        whole = [device for device, amount in enumerate(free) if amount == UNIT]
        return tuple((device, UNIT) for device in whole[: need // UNIT])

    def _review(self, row: int) -> None:
        assert self.shares is not None and self.shares_total is not None
        shares = self.shares[:, row]
        # If devices were removed under running work, the other devices may show more free than the node has in total.
        free = max(int(self.free[row]), 0)
        whole = int(np.count_nonzero((shares == UNIT) & (self.shares_total[:, row] == UNIT))) * UNIT
        self.share[row] = min(max(int(shares.max(initial=0)), 0), free)
        self.whole[row] = min(whole, free // UNIT * UNIT)


def as_needs(resource: str, units: int) -> Iterator[tuple[str, int]]:
    """A used amount as needs: whole devices, and a share of one more."""
    share = units % UNIT if resource in DEVICES and units > UNIT else 0
    yield resource, units - share
    if share:
        yield resource, share


def laid_on(shares: Amounts, need: int) -> Amounts:
    """The free shares of every device (first axis) of many nodes after `Amount.take` of `need` on each."""
    if not need or not len(shares):
        return shares
    if need < UNIT:
        fullest = np.where(shares >= need, shares, UNIT + 1).argmin(axis=0)
        after = shares.copy()
        after[fullest, np.arange(shares.shape[1])] -= need
        return np.maximum(after, 0)
    whole = shares == UNIT
    return np.where(whole & (whole.cumsum(axis=0) <= need // UNIT), 0, shares)


def shares_of(used: Amounts, total: Amounts) -> Amounts:
    """used * 10000 // total, exactly, although the product may overflow an int64 (memory in bytes is large).

    The float quotient is off by at most one. The remainder shows the error. It is small, so it is correct even if both
    products overflow.
    """
    total = np.maximum(total, 1)
    estimate = np.minimum(used / total * UNIT, LOAD_MAX).astype(np.int64)
    rest = used * UNIT - estimate * total
    exact: Amounts = estimate + (rest >= total) - (rest < 0)
    return exact


def grown(column: Amounts, size: int) -> Amounts:
    grown = np.zeros((*column.shape[:-1], size), np.int64)
    grown[..., : column.shape[-1]] = column
    return grown
