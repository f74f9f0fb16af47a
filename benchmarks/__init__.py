"""Benchmarks: how fast the engine is, as ratios against a reference measured in the same run.

Rule: absolute times mean little on a noisy machine, so every row has a reference next to it (mostly the
oracle of the tests doing the same work), and no test ever fails because of a time.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Row:
    """One measurement. `ratio` is how many times better than the reference (growth: how many times it);
    `met` is None where no goal is set. `detail` holds what differs from run to run, such as an interval or the
    number of samples: a row's name is the same in every run. `step` is filled in by `make bench`."""

    name: str
    ours: float
    unit: str
    reference: float | None
    ratio: float | None
    goal: str
    met: bool | None
    detail: str = ""
    step: str = ""
