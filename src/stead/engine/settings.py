"""Settings: options that are fixed when an engine is created.

Rule: a journal stores the settings, so a replay makes the same decisions as the first run.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from stead.errors import one_of


class Unscheduled(StrEnum):
    """What it costs to leave work out of a batch: the same for all work, more for larger work, or more for older work.
    Priority always counts first."""

    UNIFORM = "uniform"
    SIZE = "size"
    AGE = "age"

    @staticmethod
    def of(name: object) -> Unscheduled:
        """The value called `name`; raises `Invalid` if there is none."""
        return one_of(Unscheduled, name, "unscheduled")


@dataclass(frozen=True, slots=True)
class Settings:
    """Options of an engine, fixed when it is created.

    Attributes:
        patience: How many seconds work may be pending before nodes are reserved for it; None means never.
        hybrid_threshold: How full a node gets, from 0 to 1, before the hybrid policy uses others.
        seed: The seed of the random policy.
        unscheduled: What it costs to leave work out of a batch.
        moves: How many pieces of running work may move after a batch; 0 if the cluster cannot move work.
        placed_at_once: How many asks and groups one call of `decide` places, so that the cluster can begin to start
            them; None means all. Work of a batch policy is never split.

    Example:
        ```python
        Engine(Settings(patience=None, seed=7))
        ```
    """

    patience: float | None = 60.0
    hybrid_threshold: float = 0.5
    seed: int = 0
    unscheduled: Unscheduled = Unscheduled.UNIFORM
    moves: int = 0
    placed_at_once: int | None = None


DEFAULTS = Settings()
