"""Why a node was refused, as typed values.

Rule: a reason is data with a stable `code`; the sentence about it is made in `wording.py`, at the rim.
The classes stand in the order in which they take the blame for a node that several of them refuse.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from stead.asks import Affinity, Spread
from stead.labelling import Requirement, Selector
from stead.taints import Taint


@dataclass(frozen=True, slots=True)
class Draining:
    """The node takes no new work."""

    code: ClassVar[str] = "draining"


@dataclass(frozen=True, slots=True)
class LacksLabel:
    """The one term of the selector has a requirement that the node's labels do not meet."""

    code: ClassVar[str] = "lacks-label"
    requirement: Requirement


@dataclass(frozen=True, slots=True)
class NoTermMatches:
    """None of the selector's several terms (or of no terms at all) matches the node's labels."""

    code: ClassVar[str] = "no-term-matches"
    selector: Selector


@dataclass(frozen=True, slots=True)
class NotNear:
    """The work it must be near is not in the node's domain."""

    code: ClassVar[str] = "not-near"
    affinity: Affinity


@dataclass(frozen=True, slots=True)
class TargetDead:
    """The work it must be near is named by its id, and all that is named is over: it waits in vain."""

    code: ClassVar[str] = "target-dead"
    affinity: Affinity


@dataclass(frozen=True, slots=True)
class TooNear:
    """Work it must be apart from is in the node's domain."""

    code: ClassVar[str] = "too-near"
    affinity: Affinity


@dataclass(frozen=True, slots=True)
class NoAlternativeHolds:
    """The ask's affinities are alternatives (an OR), and none of them holds on the node."""

    code: ClassVar[str] = "no-alternative-holds"
    affinities: tuple[tuple[Affinity, ...], ...]


@dataclass(frozen=True, slots=True)
class KeptAway:
    """Work that is placed in the node's domain keeps work like this away (symmetric anti-affinity)."""

    code: ClassVar[str] = "kept-away"
    affinity: Affinity


@dataclass(frozen=True, slots=True)
class Skewed:
    """One more here would make the spread too uneven, or the node lacks the topology key."""

    code: ClassVar[str] = "skewed"
    spread: Spread


@dataclass(frozen=True, slots=True)
class Tainted:
    """The node has a taint that the ask does not tolerate."""

    code: ClassVar[str] = "tainted"
    taint: Taint


@dataclass(frozen=True, slots=True)
class NeverFits:
    """Even empty, the node has too little of a resource."""

    code: ClassVar[str] = "never-fits"
    resource: str
    need: int


@dataclass(frozen=True, slots=True)
class ShortOf:
    """The node has enough of a resource, but not free now."""

    code: ClassVar[str] = "short-now"
    resource: str
    need: int


@dataclass(frozen=True, slots=True)
class Reserved:
    """The node is held for work that has waited too long; `owner` is the id of the ask or group."""

    code: ClassVar[str] = "reserved"
    owner: str


Reason = (
    Draining
    | LacksLabel
    | NoTermMatches
    | NotNear
    | TargetDead
    | TooNear
    | NoAlternativeHolds
    | KeptAway
    | Skewed
    | Tainted
    | NeverFits
    | ShortOf
    | Reserved
)
