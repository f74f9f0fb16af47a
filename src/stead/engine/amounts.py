"""Amounts: one resource over all nodes, as columns of int64 units.

Rule: whether a need fits, how full a node would be, and which devices it would take is answered here
and nowhere else; for all nodes at once, or for one node by the same arithmetic.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from stead.resources import UNIT

Amounts = NDArray[np.int64]

DeviceShares = tuple[tuple[int, int], ...]
"""(device index, units) pairs that a placed ask holds of one device resource."""

REFUSED = int(np.iinfo(np.int64).max)
"""The level, and the key, of a node that does not take the ask."""
LOAD_MAX = (1 << 40) - 1
"""Loads above this (a node that took part in wild overcommitment) count as this."""

LEVELS_MAX = 32
SCALARS_MAX = 6
"""Up to so many rows are quicker one by one than as arrays."""


TOUCHED_PLAINLY_MAX = 64
"""Up to so many rows are noted as they are, even if some are there twice."""


class Amount:
    """One resource over all nodes: how much there is and how much is free.

    For devices it also keeps the share of every device, and two views that answer "does it fit" in one
    comparison: `whole` (units on wholly free devices) and `share` (the most that one device has free).
    """

    __slots__ = (
        "_levels",
        "_touched",
        "free",
        "share",
        "share_total",
        "shares",
        "shares_total",
        "total",
        "whole",
        "whole_total",
    )

    def __init__(self, size: int, devices: bool) -> None:
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
        self._touched: list[int] = []

    def copy(self) -> Amount:
        twin = Amount.__new__(Amount)
        twin.total, twin.free = self.total.copy(), self.free.copy()
        twin.shares, twin.shares_total = self.shares, self.shares_total
        twin.whole = twin.share = twin.free
        twin.whole_total = twin.share_total = twin.total
        if self.shares is not None and self.shares_total is not None:
            twin.shares, twin.shares_total = self.shares.copy(), self.shares_total.copy()
            twin.whole, twin.share = self.whole.copy(), self.share.copy()
            twin.whole_total, twin.share_total = self.whole_total.copy(), self.share_total.copy()
        twin._levels, twin._touched = {}, []
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
        """What to compare `need` with, now: a node fits where this is at least `need`."""
        return self.share if need < UNIT else self.whole

    def fitting_total(self, need: int) -> Amounts:
        """The same for an empty node."""
        return self.share_total if need < UNIT else self.whole_total

    def levels(self, need: int) -> Amounts:
        """How full every node would be with `need` more, in 1/10000; REFUSED where that does not fit now.

        Many shapes need the same amount, so the column is kept and repaired for the rows that changed. It
        is to be read at once and never written.
        """
        found = self._levels.get(need)
        if found is None or len(self._touched) - found[1] > len(self.free) // 8:
            column = self._level_of(slice(None), need)
        else:
            column, seen = found
            rows = list(dict.fromkeys(self._touched[seen:]))
            if len(rows) > SCALARS_MAX:
                where = np.array(rows)
                column[where] = self._level_of(where, need)
            else:
                for row in rows:
                    column[row] = self.level(row, need)
        if len(self._touched) > 4 * len(self.free) or len(self._levels) > LEVELS_MAX:
            self._levels.clear()
            self._touched.clear()
        self._levels[need] = column, len(self._touched)
        return column

    def level(self, row: int, need: int, more: int = 0) -> int:
        """The same for one node, if `more` asks of `need` were placed there first (room for them is then
        the caller's concern)."""
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
        """The least amount that has to become free on the node for `need` to fit."""
        if self.shares is None or self.shares_total is None:
            return max(0, need - int(self.free[row]))
        if need < UNIT:
            return max(0, need - int(self.share[row]))
        whole = self.shares_total[:, row] == UNIT
        in_use = sorted((UNIT - self.shares[:, row][whole]).tolist())
        return sum(in_use[: need // UNIT])

    def lacking_total(self, row: int, need: int) -> int:
        """The least capacity that has to be added to the node for `need` to fit it at all, and then now."""
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
        """The node now has `total` units; what is in use stays in use. Devices count whole."""
        if self.shares is not None:
            total -= total % UNIT
        self._touch(row)
        self.free[row] += total - self.total[row]
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
        """Have columns for so many devices; never fewer than before."""
        if self.shares is not None and self.shares_total is not None and devices > len(self.shares):
            extra = np.zeros((devices - len(self.shares), self.shares.shape[1]), np.int64)
            self.shares = np.concatenate([self.shares, extra])
            self.shares_total = np.concatenate([self.shares_total, extra])

    def fill(self, rows: list[int], totals: list[int]) -> None:
        """The capacities of many nodes of a new column, nothing of which is in use."""
        self.total[rows] = totals
        if self.shares is not None:
            self.total -= self.total % UNIT
            devices = np.arange(int(self.total.max(initial=0)) // UNIT)
            self.shares_total = (devices[:, None] < self.total // UNIT) * np.int64(UNIT)
            self.shares = self.shares_total.copy()
            self.whole_total[:], self.whole[:] = self.total, self.total
            self.share_total[:] = self.share[:] = np.minimum(self.total, UNIT)
        self.free[:] = self.total

    def take(self, row: int, need: int) -> DeviceShares:
        """Use `need` units on the node; the devices they lie on, for `give`."""
        self._touch(row)
        self.free[row] -= need
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
        self.free[row] -= need
        if self.shares is None:
            return
        for device, units in held:
            self.shares[device, row] -= units
        self._review(row)

    def _touch(self, row: int) -> None:
        """The row changed. More changes than rows, and a kept column is cheaper made anew than repaired."""
        if len(self._touched) > len(self.free):
            self._levels.clear()
            self._touched.clear()
        self._touched.append(row)

    def take_many(self, rows: NDArray[np.intp], need: int) -> None:
        """Use `need` units once for each of `rows`; not for devices, whose shares differ."""
        self._touched.extend(np.unique(rows).tolist() if len(rows) > TOUCHED_PLAINLY_MAX else rows.tolist())
        np.subtract.at(self.free, rows, need)

    def give(self, row: int, need: int, held: DeviceShares) -> None:
        self._touch(row)
        self.free[row] += need
        if self.shares is None:
            return
        for device, units in held:
            self.shares[device, row] += units
        self._review(row)

    def _pick(self, row: int, need: int) -> DeviceShares:
        assert self.shares is not None and self.shares_total is not None
        free = self.shares[:, row].tolist()
        if need < UNIT:
            fitting = [(amount, device) for device, amount in enumerate(free) if amount >= need]
            if fitting:
                return ((min(fitting)[1], need),)
        else:
            whole = [device for device, amount in enumerate(free) if amount == UNIT]
            if len(whole) * UNIT >= need:
                return tuple((device, UNIT) for device in whole[: need // UNIT])
        # The cluster runs more than fits: it is right, so the fullest view of it is kept.
        if not free:
            return ()
        return ((max(range(len(free)), key=lambda device: (free[device], -device)), need),)

    def _review(self, row: int) -> None:
        assert self.shares is not None and self.shares_total is not None
        shares = self.shares[:, row]
        # Where devices were taken away under running work, more seems free on the others than there is in all.
        free = max(int(self.free[row]), 0)
        whole = int(np.count_nonzero((shares == UNIT) & (self.shares_total[:, row] == UNIT))) * UNIT
        self.share[row] = min(max(int(shares.max(initial=0)), 0), free)
        self.whole[row] = min(whole, free // UNIT * UNIT)


def shares_of(used: Amounts, total: Amounts) -> Amounts:
    """used * 10000 // total, exactly, although the product may not fit an int64 (memory in bytes is large).

    A float quotient is off by at most one. How far it is off shows in the rest of the division, which is
    small, so it comes out right although both products that make it up may wrap around.
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
