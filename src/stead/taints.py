"""Taints keep work off a node; tolerations let it on.

Rule: a taint is (key, value, effect) and is unique on a node by key and effect. Whether a toleration
covers a taint is decided here and nowhere else.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class Effect(StrEnum):
    """What a taint does to work that does not tolerate it."""

    NO_SCHEDULE = "no-schedule"
    PREFER_NO_SCHEDULE = "prefer-no-schedule"
    NO_EXECUTE = "no-execute"

    @property
    def refuses(self) -> bool:
        """Whether new work is kept off (a preference only makes the node the last resort)."""
        return self is not Effect.PREFER_NO_SCHEDULE


@dataclass(frozen=True, slots=True, order=True)
class Taint:
    key: str
    value: str = ""
    effect: Effect = Effect.NO_SCHEDULE

    def __str__(self) -> str:
        """``gpu_node=true``, with the effect only when it is not the default one."""
        body = f"{self.key}={self.value}" if self.value else self.key
        return body if self.effect is Effect.NO_SCHEDULE else f"{body}:{self.effect}"


@dataclass(frozen=True, slots=True)
class Toleration:
    """Covers taints of `key` (None: of any key) whose value is in `values` (or is not, with
    `complement`: no values and complement is "whatever the value"), of `effect` (None: of all).

    `seconds` is how long running work stays under a no-execute taint; None is for ever. It has no
    say in placement.
    """

    key: str | None
    values: frozenset[str] = frozenset()
    complement: bool = True
    effect: Effect | None = None
    seconds: float | None = None

    def covers(self, taint: Taint) -> bool:
        return (
            (self.key is None or self.key == taint.key)
            and (self.effect is None or self.effect is taint.effect)
            and (taint.value in self.values) != self.complement
        )

    def __str__(self) -> str:
        key = "any taint" if self.key is None else self.key
        if self.values:
            key += (" not in {" if self.complement else " in {") + ", ".join(sorted(self.values)) + "}"
        return key if self.effect is None else f"{key}:{self.effect}"


TOLERATE_ALL = Toleration(None)


def tolerated(taint: Taint, tolerations: Iterable[Toleration]) -> bool:
    return any(toleration.covers(taint) for toleration in tolerations)


def stay_under(taint: Taint, tolerations: Iterable[Toleration]) -> float | None:
    """How long work with these tolerations may stay under a no-execute taint: 0 at once, None for ever.

    Several covering tolerations: the shortest stay counts, as in Kubernetes.
    """
    stays = [toleration.seconds for toleration in tolerations if toleration.covers(taint)]
    if not stays:
        return 0.0
    limits = [max(0.0, seconds) for seconds in stays if seconds is not None]
    return min(limits) if limits else None
