"""Work of the flow policies on its way to the engine: what arrives in a burst is told in one step, as one batch.

Rule: nothing is kept for longer than `MOST_S`, whatever goes on arriving, and no batch is larger than `MANY`: a solver
holds the controller's interpreter while it works. Order and number are all that is known of the work here.
"""

from __future__ import annotations

from collections.abc import Iterable

from stead.ray.book import Registered

QUIET_S = 0.01
"""A burst is over when nothing has come for so long. A program that submits in a loop is heard of every few ms."""

MOST_S = 0.1
"""As long as Ray's nodes take to hear of a grant, which each piece waits for anyway."""

MANY = 2_000


class Gathering:
    def __init__(self) -> None:
        self._kept: list[Registered] = []
        self._first = self._last = 0.0

    def add(self, arrived: Iterable[Registered], now: float) -> None:
        before = len(self._kept)
        self._kept += arrived
        if len(self._kept) > before:
            self._first, self._last = self._first if before else now, now

    @property
    def due(self) -> float | None:
        """When the batch is told; None while there is none."""
        if not self._kept:
            return None
        return self._first if len(self._kept) >= MANY else min(self._last + QUIET_S, self._first + MOST_S)

    def take(self, now: float) -> list[Registered]:
        """The batch, if its time has come; what is too much for one is due at once after it."""
        if self.due is None or self.due > now:
            return []
        taken, self._kept = self._kept[:MANY], self._kept[MANY:]
        self._last = self._first
        return taken
