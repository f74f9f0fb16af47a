"""Taints repel work from a node; tolerations allow it.

Rule: a taint is (key, value, effect) and is unique on a node by key and effect. Only this file decides whether a
toleration covers a taint.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class Effect(StrEnum):
    """What a taint does to work that does not tolerate it.

    Attributes:
        NO_SCHEDULE: New work is not placed on the node.
        PREFER_NO_SCHEDULE: New work prefers other nodes, but the node does not refuse it.
        NO_EXECUTE: New work is not placed on the node, and running work is evicted.

    Example:
        ```python
        Taint("maintenance", effect=Effect.NO_EXECUTE)
        ```
    """

    NO_SCHEDULE = "no-schedule"
    PREFER_NO_SCHEDULE = "prefer-no-schedule"
    NO_EXECUTE = "no-execute"

    @property
    def refuses(self) -> bool:
        """Whether it forbids new work; `PREFER_NO_SCHEDULE` does not."""
        return self is not Effect.PREFER_NO_SCHEDULE


@dataclass(frozen=True, slots=True, order=True)
class Taint:
    """A mark on a node that work must tolerate to run there. A node has one taint for each key and effect.

    Attributes:
        key: The key, for example ``gpu_node``.
        value: The value; it may be empty.
        effect: What it does to work that does not tolerate it.

    Example:
        ```python
        Taint("gpu_node", "true")
        ```
    """

    key: str
    value: str = ""
    effect: Effect = Effect.NO_SCHEDULE

    def __str__(self) -> str:
        """``gpu_node=true``, with the effect only if it is not NoSchedule."""
        body = f"{self.key}={self.value}" if self.value else self.key
        return body if self.effect is Effect.NO_SCHEDULE else f"{body}:{self.effect}"


@dataclass(frozen=True, slots=True)
class Toleration:
    """What an ask tolerates: every taint that its key, values and effect cover.

    Attributes:
        key: The key of the taint; None covers every key.
        values: The values it covers, or with `complement` those it does not.
        complement: Whether it covers every value except `values`. Without values, it covers every value.
        effect: The effect it covers; None covers every effect.
        seconds: How long running work stays under a no-execute taint; None means forever. Placement ignores it.

    Example:
        ```python
        Toleration("gpu_type", frozenset({"A100"}), complement=False)
        ```
    """

    key: str | None
    values: frozenset[str] = frozenset()
    complement: bool = True
    effect: Effect | None = None
    seconds: float | None = None

    def covers(self, taint: Taint) -> bool:
        """Whether work with this toleration tolerates `taint`."""
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
    """Say whether work tolerates a taint.

    Args:
        taint: The taint.
        tolerations: The tolerations of the work.

    Returns:
        Whether one of them covers the taint.

    Example:
        ```python
        tolerated(Taint("gpu_node", "true"), [Toleration("gpu_node")])  # True
        ```
    """
    return any(toleration.covers(taint) for toleration in tolerations)


def stay_under(taint: Taint, tolerations: Iterable[Toleration]) -> float | None:
    """How long work with these tolerations may stay under a NoExecute taint: 0 means not at all, None forever.

    If several tolerations cover the taint, the shortest time counts, as in Kubernetes.
    """
    stays = [toleration.seconds for toleration in tolerations if toleration.covers(taint)]
    if not stays:
        return 0.0
    limits = [max(0.0, seconds) for seconds in stays if seconds is not None]
    return min(limits) if limits else None
