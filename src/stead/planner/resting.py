"""Kinds of nodes that rest: after a launch failed, no node of the kind is launched for a while.

Rule: each failure in a row doubles the rest. Launches that were requested before a rest began neither prolong nor end
it, so a burst of launches that fail together counts as one failure.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Rest:
    """A kind that is not launched until `until`, and why. `failures` counts the failures in a row."""

    kind: str
    until: float
    why: str
    failures: int = 1
    is_stock_out: bool = False
    began: float = 0.0


class Resting:
    """The rests of all kinds, by the time of each call.

    Args:
        retry_s: The first rest after a failure.
        stock_out_s: The first rest after the provider had no more nodes of the kind.
        longest_s: The longest rest.
    """

    def __init__(self, retry_s: float, stock_out_s: float, longest_s: float) -> None:
        self._retry_s, self._stock_out_s, self._longest_s = retry_s, stock_out_s, longest_s
        self._rests: dict[str, Rest] = {}

    def failed(self, kind: str, requested: float, why: str, is_stock_out: bool, now: float) -> float:
        """A launch that was requested at this time failed. Returns when the kind may be launched again."""
        before = self._rests.get(kind)
        if before is not None and requested <= before.began:
            return max(now, before.until)
        failures = before.failures + 1 if before is not None else 1
        first = self._stock_out_s if is_stock_out else self._retry_s
        length = min(first * 2.0 ** min(failures - 1, 30), max(first, self._longest_s))
        self._rests[kind] = Rest(kind, now + length, why, failures, is_stock_out, now)
        return now + length

    def arrived(self, kind: str, requested: float) -> None:
        """A launch that was requested at this time succeeded."""
        before = self._rests.get(kind)
        if before is not None and requested > before.began:
            del self._rests[kind]

    def at(self, now: float) -> tuple[Rest, ...]:
        """The kinds that rest now. A kind that has not failed again for the longest rest starts anew."""
        for kind, rest in tuple(self._rests.items()):
            if now > rest.until + self._longest_s:
                del self._rests[kind]
        return tuple(rest for rest in self._rests.values() if rest.until > now)

    def of(self, kind: str, now: float) -> Rest | None:
        """The rest of this kind, if it rests now."""
        return next((rest for rest in self.at(now) if rest.kind == kind), None)


def earliest(rests: Iterable[Rest]) -> float | None:
    """When the first of these rests ends."""
    return min((rest.until for rest in rests), default=None)
