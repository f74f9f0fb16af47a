"""Collects actors of the flow policies on their way to the engine, so that a burst is decided as one batch.

Rule: nothing waits longer than `MOST_S`, and no batch of actors is larger than `MANY`, because a solver holds the
controller's interpreter while it runs. This module knows only the order and the number of actors. Tasks are counted,
not kept, so `slots.py` waits for their counts instead.
"""

from __future__ import annotations

from collections.abc import Iterable

from stead.ray.submit.messages import Registered

QUIET_S = 0.01
"""A burst is complete when nothing has arrived for this long. A program that submits in a loop sends every few ms."""

MOST_S = 0.1
"""Maximum wait. Ray's nodes take as long to learn about a grant, which each piece waits for anyway."""

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
        """When the batch is due; None if it is empty."""
        if not self._kept:
            return None
        return self._first if len(self._kept) >= MANY else min(self._last + QUIET_S, self._first + MOST_S)

    def take(self, now: float) -> list[Registered]:
        """The batch, if it is due. Work above the maximum size is due directly after it."""
        if self.due is None or self.due > now:
            return []
        taken, self._kept = self._kept[:MANY], self._kept[MANY:]
        self._last = self._first
        return taken
