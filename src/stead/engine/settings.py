"""What an engine is told once, at its start.

Rule: settings are part of a journal, so that a replay decides as the first run did.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from stead.errors import one_of


class Unscheduled(StrEnum):
    """What leaving work out of a batch costs: the same for all; more, the more of a node it asks for; more, the
    longer it has waited. Priority counts before any of them."""

    UNIFORM = "uniform"
    SIZE = "size"
    AGE = "age"

    @staticmethod
    def of(name: object) -> Unscheduled:
        return one_of(Unscheduled, name, "unscheduled")


@dataclass(frozen=True, slots=True)
class Settings:
    """`patience`: seconds after which nodes are held for the oldest waiting work that could fit (None:
    never). `hybrid_threshold`: how full a node gets before the hybrid policy turns to others. `unscheduled`: what
    leaving work out of a batch costs. `moves`: how many pieces of running work may move after a batch; 0 where a
    cluster may not move work.
    """

    patience: float | None = 60.0
    hybrid_threshold: float = 0.5
    seed: int = 0
    unscheduled: Unscheduled = Unscheduled.UNIFORM
    moves: int = 0


DEFAULTS = Settings()
