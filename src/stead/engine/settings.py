"""What an engine is told once, at its start.

Rule: settings are part of a journal, so that a replay decides as the first run did.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Settings:
    """`patience`: seconds after which nodes are held for the oldest waiting work that could fit (None:
    never). `hybrid_threshold`: how full a node gets before the hybrid policy turns to others.
    """

    patience: float | None = 60.0
    hybrid_threshold: float = 0.5
    seed: int = 0


DEFAULTS = Settings()
