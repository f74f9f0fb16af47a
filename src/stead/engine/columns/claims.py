"""Claims: what is known of each, where placed work uses them, and how many volumes a node may have.

Rule: a volume counts once on each node where placed work uses its claim, however many pieces of work do. The columns
that a change concerns are returned to the caller, who logs it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from stead.engine.columns.change_log import Column
from stead.engine.columns.sharing import Sheet, Shelf
from stead.language.claims import Claim, ClaimId

NO_LIMIT = np.iinfo(np.int64).max


class Claims:
    """All claims, and the work that uses them."""

    def __init__(self) -> None:
        self.known: Sheet[ClaimId, Claim] = Sheet()
        self._users: Shelf[ClaimId, int, int] = Shelf()  # how many pieces of placed work on each row use a claim
        self._volumes: Shelf[str, int, int] = Shelf()  # how many volumes of a driver are in use on each row
        self._columns: dict[str, NDArray[np.int64]] = {}  # the same as columns, made when first read

    def fork(self, lasting: bool = True) -> Claims:
        twin = Claims()
        for name in ("known", "_users", "_volumes"):
            setattr(twin, name, getattr(self, name).fork(lasting))
        return twin

    def rows(self, claim: ClaimId) -> Iterable[int]:
        """The rows where placed work uses a claim."""
        return self._users.read(claim)

    def nodes(self, claim: ClaimId) -> int:
        """The same as a set of nodes."""
        found = 0
        for row in self._users.read(claim):
            found |= 1 << row
        return found

    def of_drivers(self, claims: Iterable[ClaimId]) -> dict[str, list[ClaimId]]:
        """Those of the claims that count against a limit, by driver."""
        found: dict[str, list[ClaimId]] = {}
        for id in claims:
            claim = self.known.map.get(id)
            if claim is not None and claim.driver:
                found.setdefault(claim.driver, []).append(id)
        return found

    def volumes_with(self, driver: str, claims: Sequence[ClaimId], size: int) -> NDArray[np.int64]:
        """How many volumes of a driver each row would have with these claims; 0 where it has all of them already."""
        more = np.full(size, len(claims), np.int64)
        for id in claims:
            for row in self._users.read(id):
                more[row] -= 1
        return np.where(more > 0, self._column(driver, size) + more, 0)

    def _column(self, driver: str, size: int) -> NDArray[np.int64]:
        found = self._columns.get(driver)
        if found is None or len(found) != size:
            found = self._columns[driver] = np.zeros(size, np.int64)
            for row, count in self._volumes.read(driver).items():
                found[row] = count
        return found

    # -- changes

    def set(self, claim: Claim) -> list[Column]:
        """A claim is new, or is now this. Returns the columns that changed."""
        before = self.known.map.get(claim.id)
        if before == claim:
            return []
        self.known.write()[claim.id] = claim
        return self._move(claim.id, before.driver if before else "", claim.driver)

    def end(self, id: ClaimId) -> list[Column]:
        """There is no such claim any more."""
        before = self.known.map.get(id)
        if before is None:
            return []
        del self.known.write()[id]
        return self._move(id, before.driver, "")

    def count(self, claims: Iterable[ClaimId], row: int, step: int) -> list[Column]:
        """So many more pieces of work that use these claims are on a row. Returns the columns that changed."""
        changed: list[Column] = []
        for id in dict.fromkeys(claims):
            before = self._users.read(id).get(row, 0)
            if before + step:
                self._users.write(id)[row] = before + step
            else:
                self._users.drop(id, row)
            if not before or not before + step:
                claim = self.known.map.get(id)
                changed.append(Column("claim-use", id))
                if claim is not None and claim.driver:
                    self._count_volume(claim.driver, row, 1 if step > 0 else -1)
                    changed.append(Column("volumes", claim.driver))
        return changed

    def _move(self, id: ClaimId, old: str, new: str) -> list[Column]:
        """The volume of a claim counts for another driver."""
        changed = [Column("claim", id)]
        if old != new:
            for driver, step in ((old, -1), (new, +1)):
                for row in self._users.read(id) if driver else ():
                    self._count_volume(driver, row, step)
            changed += [Column("volumes", driver) for driver in (old, new) if driver and id in self._users]
        return changed

    def _count_volume(self, driver: str, row: int, step: int) -> None:
        count = self._volumes.read(driver).get(row, 0) + step
        if count:
            self._volumes.write(driver)[row] = count
        else:
            self._volumes.drop(driver, row)
        column = self._columns.get(driver)
        if column is not None and row < len(column):
            column[row] = count
        else:
            self._columns.pop(driver, None)


class VolumeLimits:
    """How many volumes of each driver the nodes may have."""

    def __init__(self) -> None:
        self._limits: Shelf[str, int, int] = Shelf()
        self._columns: dict[str, NDArray[np.int64]] = {}  # made when first read

    def fork(self, lasting: bool = True) -> VolumeLimits:
        twin = VolumeLimits()
        twin._limits, twin._columns = self._limits.fork(lasting), dict(self._columns)
        return twin

    def column(self, driver: str, size: int) -> NDArray[np.int64] | None:
        """The limit of every row, `NO_LIMIT` where there is none; None if no row has one. Never write to it."""
        limits = self._limits.read(driver)
        if not limits:
            return None
        found = self._columns.get(driver)
        if found is None or len(found) != size:
            found = self._columns[driver] = np.full(size, NO_LIMIT, np.int64)
            found[list(limits)] = list(limits.values())
        return found

    def set(self, row: int, old: Iterable[tuple[str, int]], new: Iterable[tuple[str, int]]) -> list[Column]:
        """The limits of a row are now these. Returns the columns that changed."""
        before, after = dict(old), dict(new)
        changed = [driver for driver in dict.fromkeys((*before, *after)) if before.get(driver) != after.get(driver)]
        for driver in changed:
            self._columns.pop(driver, None)
            if driver in after:
                self._limits.write(driver)[row] = after[driver]
            else:
                self._limits.drop(driver, row)
        return [Column("volume-limits", driver) for driver in changed]
