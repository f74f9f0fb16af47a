"""Benchmarks: how fast the engine is, as ratios against a reference measured in the same run.

Rule: absolute times mean little on a noisy machine, so every row has a reference next to it (mostly the
oracle of the tests doing the same work), and no test ever fails because of a time.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Row:
    """One measurement. `ratio` is how many times better than the reference (growth: how many times it);
    `met` is None where no goal is set."""

    name: str
    ours: float
    unit: str
    reference: float | None
    ratio: float | None
    goal: str
    met: bool | None
