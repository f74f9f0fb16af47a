"""How to choose among the nodes that remain.

Rule: a policy only ranks; it never refuses. A rank is a small int, lower is better, made from the
*load* of a node: how full it would be with the ask on it, in 1/10000 of what it has. A policy says how
its rank moves as one node takes more equal asks, which lets a batch be placed exactly as if one by one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from stead.asks import PolicyName
from stead.engine.amounts import LOAD_MAX, REFUSED
from stead.resources import UNIT


class Policy(Protocol):
    @property
    def sticky(self) -> bool:
        """Whether a node that took one more becomes better for the next (True) or never better (False)."""

    @property
    def by_chance(self) -> bool:
        """Whether the best preferred nodes are drawn from rather than ranked."""

    @property
    def level(self) -> int:
        """Loads up to this one all have the same rank."""

    def ranks(self, loads: NDArray[np.int64]) -> NDArray[np.int64]:
        """The ranks of many loads at once. Where the policy is not sticky, REFUSED stays REFUSED."""

    def rank(self, load: int) -> int:
        """The same for one."""


@dataclass(frozen=True, slots=True)
class EmptiestFirst:
    """The least loaded node first."""

    sticky: bool = False
    by_chance: bool = False
    level: int = -1

    def ranks(self, loads: NDArray[np.int64]) -> NDArray[np.int64]:
        return loads

    def rank(self, load: int) -> int:
        return load


@dataclass(frozen=True, slots=True)
class FullestFirst:
    """The most loaded node first, so that others stay empty."""

    sticky: bool = True
    by_chance: bool = False
    level: int = -1

    def ranks(self, loads: NDArray[np.int64]) -> NDArray[np.int64]:
        ranks: NDArray[np.int64] = LOAD_MAX - loads
        return ranks

    def rank(self, load: int) -> int:
        return LOAD_MAX - load


@dataclass(frozen=True, slots=True)
class Hybrid:
    """Ray's default: nodes up to the threshold fill in table order, then the least loaded first."""

    level: int = UNIT // 2
    sticky: bool = False
    by_chance: bool = False

    def ranks(self, loads: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.where(loads <= self.level, 0, loads)

    def rank(self, load: int) -> int:
        return 0 if load <= self.level else load


@dataclass(frozen=True, slots=True)
class AtRandom:
    """Any of the best preferred nodes, by the engine's seeded generator."""

    sticky: bool = False
    by_chance: bool = True
    level: int = LOAD_MAX

    def ranks(self, loads: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.where(loads == REFUSED, REFUSED, 0)

    def rank(self, load: int) -> int:
        return 0


def policies(hybrid_threshold: float) -> dict[PolicyName, Policy]:
    return {
        PolicyName.HYBRID: Hybrid(round(hybrid_threshold * UNIT)),
        PolicyName.PACK: FullestFirst(),
        PolicyName.SPREAD: EmptiestFirst(),
        PolicyName.RANDOM: AtRandom(),
        # Of work in batches only what the graph cannot say is ranked, one at a time.
        PolicyName.FLOW: EmptiestFirst(),
        PolicyName.FLOW_PACK: FullestFirst(),
        PolicyName.FLOW_FGD: FullestFirst(),
    }


class Dice:
    """A seeded generator (splitmix64) whose whole state is one int, so that forks and replays agree."""

    __slots__ = ("state",)

    def __init__(self, state: int) -> None:
        self.state = state

    def below(self, count: int) -> int:
        """A number from 0 to count - 1."""
        self.state = (self.state + 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFFFFFF
        mixed = self.state
        mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
        mixed ^= mixed >> 31
        return mixed * count >> 64
