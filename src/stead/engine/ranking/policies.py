"""Policies: how to choose among the candidate nodes.

Rule: a policy only ranks nodes; it never refuses one. A rank is an int, lower is better, computed from the *load* of a
node: how full it would be with the ask on it, in 1/10000 of its capacity. A policy also says how the rank changes as a
node takes more equal asks, so that many asks can be placed at once exactly as if they were placed one by one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from stead.engine.columns.amounts import LOAD_MAX, REFUSED
from stead.language.asks import PolicyName
from stead.language.resources import UNIT


class Policy(Protocol):
    @property
    def sticky(self) -> bool:
        """Whether a node's rank improves with each ask it takes (True), or never does (False)."""

    @property
    def by_chance(self) -> bool:
        """Whether the node is picked at random among the most preferred ones."""

    @property
    def level(self) -> int:
        """All loads up to this one have the same rank."""

    def ranks(self, loads: NDArray[np.int64]) -> NDArray[np.int64]:
        """The ranks of many loads at once. If the policy is not sticky, REFUSED stays REFUSED."""

    def rank(self, load: int) -> int:
        """The rank of one load."""


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
    """The most loaded node first, so that other nodes stay empty."""

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
    """Like Ray's default: fill nodes up to the threshold in table order, then use the least loaded first."""

    level: int = UNIT // 2
    sticky: bool = False
    by_chance: bool = False

    def ranks(self, loads: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.where(loads <= self.level, 0, loads)

    def rank(self, load: int) -> int:
        return 0 if load <= self.level else load


@dataclass(frozen=True, slots=True)
class AtRandom:
    """A random choice among the most preferred nodes, by the engine's seeded generator."""

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
        # Batch work is ranked only where the flow graph cannot express it: then it is placed one at a time.
        PolicyName.FLOW: EmptiestFirst(),
        PolicyName.FLOW_PACK: FullestFirst(),
        PolicyName.FLOW_FGD: FullestFirst(),
        # Ranked by `kube_scores`.
        PolicyName.KUBE: EmptiestFirst(),
    }


class Dice:
    """A seeded random generator (splitmix64). Its whole state is one int, so forks and replays agree."""

    __slots__ = ("state",)

    def __init__(self, state: int) -> None:
        self.state = state

    def below(self, count: int) -> int:
        """A random number from 0 to count - 1."""
        self.state = (self.state + 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFFFFFF
        mixed = self.state
        mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
        mixed ^= mixed >> 31
        return mixed * count >> 64
