"""Where amounts fit, and the scores of kube-scheduler's default plugins that need no other node, as columns.

Rule: all work that requests the same shares one `FitScores`. A reader that has seen a `generation` of it needs to look
only at the rows that changed since.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

from stead.engine.columns.amounts import Amounts
from stead.engine.columns.change_log import IMAGES, NODES
from stead.engine.fleet import Fleet, as_flags
from stead.engine.shapes import Demand
from stead.language.resources import CPU, MEMORY, UNIT

SCORE_MAX = 100

MIB = 1 << 20
IMAGE_BYTES_MIN, IMAGE_BYTES_MAX = 23 * MIB, 1000 * MIB

SCALES = ((CPU, UNIT // 1000), (MEMORY, UNIT))
"""The resources that are scored, and how many units are one of upstream's: thousandths of a CPU, and bytes."""

REPAIRED_MAX = 8
"""After more changed rows than this, all rows are computed again."""

Rows = Collection[int] | None
"""A few rows; None for all of them."""


class FitScores:
    """The columns of one request: `fits`, and `base`, the sum of NodeResourcesFit (least allocated),
    NodeResourcesBalancedAllocation and ImageLocality. Never write to them."""

    __slots__ = (
        "_image_names",
        "_images",
        "_is_balanced",
        "_needs",
        "_scored",
        "_seen",
        "_stamp",
        "base",
        "fits",
        "generation",
    )

    def __init__(self, demand: Demand) -> None:
        self.fits: NDArray[np.bool_] = np.empty(0, np.bool_)
        self.base: Amounts = np.empty(0, np.int64)
        self.generation = 0
        """How often all rows were computed."""
        self._needs, self._image_names = demand.needs, demand.images
        needs, estimates = dict(demand.needs), demand.estimates
        self._scored = tuple(
            (resource, scale, needs.get(resource, 0) // scale, estimates.get(resource) // scale)
            for resource, scale in SCALES
        )
        self._is_balanced = any(need for _, _, need, _ in self._scored)
        """Whether it gets a score for balance: upstream gives none to work that requests neither resource."""
        self._images: Amounts | None = None
        self._stamp: tuple[int, ...] = ()
        self._seen = 0

    def refresh(self, fleet: Fleet, generation: int, seen: int) -> Rows:
        """Update the columns for what changed since the last call; row by row where only few rows changed. Returns the
        rows that changed since a reader saw this generation with this end of the log; None if these may be many."""
        stamp, end, before = (*fleet.stamp((NODES, IMAGES)), fleet.extent), fleet.touched.end, self._seen
        rows: Rows = ()
        if stamp != self._stamp:
            rows, self._images = None, self._locality(fleet)
        elif before < end:
            rows = self._touched(fleet, before)
        if rows is None:
            self.fits, self.base = self._fitting(fleet), self._scores(fleet)
            self.generation += 1
        else:
            for row in rows:
                self.fits[row], self.base[row] = self._fits_in(fleet, row), self.score(fleet, row, 0)
        self._stamp, self._seen = stamp, end
        if generation != self.generation:
            return None
        return rows if seen == before else self._touched(fleet, seen)

    @staticmethod
    def _touched(fleet: Fleet, since: int) -> Rows:
        touched = fleet.touched.since(since)
        rows = None if touched is None else dict.fromkeys(touched)
        return None if rows is None or len(rows) > REPAIRED_MAX else rows

    def score(self, fleet: Fleet, row: int, more: int) -> int:
        """`base` for one row if `more` equal asks were placed there first."""
        least = counted = 0
        shares = []
        for resource, scale, need, estimate in self._scored:
            amount = fleet.amount(resource)
            total = amount.total.item(row) // scale
            if not total:
                continue
            used = total - amount.free.item(row) // scale + more * need
            assumed = fleet.estimated(resource).item(row) // scale + more * estimate
            least += max(total - used - assumed - need - estimate, 0) * SCORE_MAX // total
            counted += 1
            shares.append((min(used / total, 1.0), min((used + need) / total, 1.0)))
        score = least // max(counted, 1)
        if self._is_balanced:
            score += SCORE_MAX // 2
            if counted == len(SCALES):
                (cpu, cpu_after), (memory, memory_after) = shares
                before = int((1 - abs((cpu - memory) / 2)) * SCORE_MAX)
                after = int((1 - abs((cpu_after - memory_after) / 2)) * SCORE_MAX)
                score += (SCORE_MAX // 2 + after - before) // 2
            else:
                score += SCORE_MAX // 4
        return score if self._images is None else score + self._images.item(row)

    def room(self, fleet: Fleet, row: int) -> int:
        """How many such asks still fit on the node."""
        return min((fleet.amount(resource).room(row, need) for resource, need in self._needs), default=1 << 60)

    def _fits_in(self, fleet: Fleet, row: int) -> bool:
        for resource, need in self._needs:  # noqa: SIM110 - twice as fast as a generator
            if fleet.amount(resource).fitting(need).item(row) < need:
                return False
        return True

    def _fitting(self, fleet: Fleet) -> NDArray[np.bool_]:
        fits = np.ones(fleet.extent, np.bool_)
        for resource, need in self._needs:
            fits &= fleet.amount(resource).fitting(need)[: fleet.extent] >= need
        return fits

    def _scores(self, fleet: Fleet) -> Amounts:
        least: Amounts = np.zeros(fleet.extent, np.int64)
        counted = least.copy()
        shares = []
        for resource, scale, need, estimate in self._scored:
            amount, used_rows = fleet.amount(resource), slice(fleet.extent)
            total = amount.total[used_rows] // scale
            used = total - amount.free[used_rows] // scale
            left = total - used - fleet.estimated(resource)[used_rows] // scale - need - estimate
            some = np.maximum(total, 1)
            least += np.where((total > 0) & (left > 0), left * SCORE_MAX // some, 0)
            counted += total > 0
            shares.append((np.minimum(used / some, 1.0), np.minimum((used + need) / some, 1.0)))
        least //= np.maximum(counted, 1)
        if self._is_balanced:
            (cpu, cpu_after), (memory, memory_after) = shares
            both = counted == len(SCALES)
            before = ((1 - np.where(both, np.abs((cpu - memory) / 2), 0.0)) * SCORE_MAX).astype(np.int64)
            after = ((1 - np.where(both, np.abs((cpu_after - memory_after) / 2), 0.0)) * SCORE_MAX).astype(np.int64)
            least += SCORE_MAX // 2 + (SCORE_MAX // 2 + after - before) // 2
        return least if self._images is None else least + self._images

    def _locality(self, fleet: Fleet) -> Amounts | None:
        """ImageLocality: how much of the images a node has; images that few nodes have count less."""
        stored = [fleet.images.map[name] for name in self._image_names if name in fleet.images.map]
        if not stored:
            return None
        found = np.zeros(fleet.extent, np.int64)
        nodes_all = fleet.alive.bit_count()
        for size, nodes in stored:
            found += as_flags(nodes, fleet.extent) * np.int64(int(size * (nodes.bit_count() / nodes_all)))
        most = IMAGE_BYTES_MAX * len(self._image_names)
        return SCORE_MAX * (np.clip(found, IMAGE_BYTES_MIN, most) - IMAGE_BYTES_MIN) // (most - IMAGE_BYTES_MIN)
