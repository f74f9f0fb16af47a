"""Why a node was refused, as typed values.

Rule: a reason is data with a stable `code`; `explain/wording.py` turns it into a sentence. The classes are in blame
order: a node with several reasons is counted under the first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from stead.language.asks import Affinity, HostPort, Spread
from stead.language.claims import ClaimId
from stead.language.labels import Requirement, Selector
from stead.language.taints import Taint


@dataclass(frozen=True, slots=True)
class Draining:
    """The node takes no new work."""

    code: ClassVar[str] = "draining"


@dataclass(frozen=True, slots=True)
class LacksLabel:
    """The selector has one term, and the node's labels do not meet this requirement of it."""

    code: ClassVar[str] = "lacks-label"
    requirement: Requirement


@dataclass(frozen=True, slots=True)
class NoTermMatches:
    """The selector has several terms, or none, and no term matches the node's labels."""

    code: ClassVar[str] = "no-term-matches"
    selector: Selector


@dataclass(frozen=True, slots=True)
class ClaimUnusable:
    """No work can use the claim now, whatever the node."""

    code: ClassVar[str] = "claim-unusable"
    claim: ClaimId
    problem: str = ""
    """Why, as a short clause; empty if there is no such claim."""


@dataclass(frozen=True, slots=True)
class ClaimElsewhere:
    """The claim cannot be used on the node."""

    code: ClassVar[str] = "claim-elsewhere"
    claim: ClaimId
    selector: Selector
    """Which nodes can use it."""
    bound: bool = True
    """Whether its volume exists; if not, this is where it can be created."""


@dataclass(frozen=True, slots=True)
class NotNear:
    """The work it must be near is not in the node's domain."""

    code: ClassVar[str] = "not-near"
    affinity: Affinity
    """What the ask requires."""


@dataclass(frozen=True, slots=True)
class TargetDead:
    """The ask must be near work that it names by id, and all of that work has ended. It cannot be placed."""

    code: ClassVar[str] = "target-dead"
    affinity: Affinity
    """What the ask requires."""


@dataclass(frozen=True, slots=True)
class TooNear:
    """Work it must be apart from is in the node's domain."""

    code: ClassVar[str] = "too-near"
    affinity: Affinity
    """What the ask requires."""


@dataclass(frozen=True, slots=True)
class NoAlternativeHolds:
    """The ask's affinities are alternatives (an OR), and none of them holds on the node."""

    code: ClassVar[str] = "no-alternative-holds"
    affinities: tuple[tuple[Affinity, ...], ...]


@dataclass(frozen=True, slots=True)
class KeptAway:
    """Work placed in the node's domain has a symmetric anti-affinity to work like this."""

    code: ClassVar[str] = "kept-away"
    affinity: Affinity


@dataclass(frozen=True, slots=True)
class Skewed:
    """One more piece here would exceed the maximum skew, or the node lacks the topology key."""

    code: ClassVar[str] = "skewed"
    spread: Spread
    """What the ask requires."""


@dataclass(frozen=True, slots=True)
class Tainted:
    """The node has a taint that the ask does not tolerate."""

    code: ClassVar[str] = "tainted"
    taint: Taint


@dataclass(frozen=True, slots=True)
class PortTaken:
    """Work on the node has opened a port that the ask needs."""

    code: ClassVar[str] = "port-taken"
    port: HostPort


@dataclass(frozen=True, slots=True)
class ClaimInUse:
    """The claim takes one piece of work at a time, and placed work uses it."""

    code: ClassVar[str] = "claim-in-use"
    claim: ClaimId


@dataclass(frozen=True, slots=True)
class ClaimBeingBound:
    """The volume of the claim will be created for another node, where placed work uses it."""

    code: ClassVar[str] = "claim-being-bound"
    claim: ClaimId


@dataclass(frozen=True, slots=True)
class TooManyVolumes:
    """The node may not have more volumes of the driver."""

    code: ClassVar[str] = "too-many-volumes"
    driver: str


@dataclass(frozen=True, slots=True)
class HasMember:
    """The group is strictly spread, and another member is in the node's domain or the node lacks the topology key."""

    code: ClassVar[str] = "has-member"
    topology: str


@dataclass(frozen=True, slots=True)
class ApartFromGroup:
    """The group is strictly packed, and the other members are not in the node's domain or the node lacks the topology
    key."""

    code: ClassVar[str] = "apart-from-group"
    topology: str


@dataclass(frozen=True, slots=True)
class NeverFits:
    """Even empty, the node has too little of a resource."""

    code: ClassVar[str] = "never-fits"
    resource: str
    need: int
    """How much the ask needs, in units."""


@dataclass(frozen=True, slots=True)
class ShortOf:
    """The node has enough of a resource, but too little of it is free now."""

    code: ClassVar[str] = "short-now"
    resource: str
    need: int
    """How much the ask needs, in units."""


@dataclass(frozen=True, slots=True)
class Reserved:
    """The node is reserved for work that has been pending too long; `owner` is the id of the ask or group."""

    code: ClassVar[str] = "reserved"
    owner: str


Reason = (
    Draining
    | LacksLabel
    | NoTermMatches
    | ClaimUnusable
    | ClaimElsewhere
    | NotNear
    | TargetDead
    | TooNear
    | NoAlternativeHolds
    | KeptAway
    | Skewed
    | Tainted
    | PortTaken
    | ClaimInUse
    | ClaimBeingBound
    | TooManyVolumes
    | HasMember
    | ApartFromGroup
    | NeverFits
    | ShortOf
    | Reserved
)
