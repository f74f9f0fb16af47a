"""Facts: what the world tells the engine. The only way in.

Rule: a fact is past tense, plain and complete; the engine never asks back. Facts about things the
engine does not know (a node that already left, an ask that already ended) are harmless: clusters
repeat themselves and report out of order.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from stead.asks import Ask, AskId, Group, GroupId
from stead.labelling import EMPTY, Labels
from stead.node import Node, NodeId
from stead.resources import Resources
from stead.taints import Effect, Taint


@dataclass(frozen=True, slots=True)
class ClockAdvanced:
    """It is now `now` (seconds, any epoch). Time never goes back: an earlier moment is ignored."""

    now: float


@dataclass(frozen=True, slots=True)
class NodeJoined:
    """A node is there. The same id again replaces what was known of it; its work stays where it is."""

    node: Node


@dataclass(frozen=True, slots=True)
class NodeLeft:
    """A node is gone. What was placed on it waits again, and counts as submitted when it was."""

    node: NodeId


@dataclass(frozen=True, slots=True)
class NodeLabelled:
    """Labels of a running node were set or removed; they override the ones it joined with."""

    node: NodeId
    labels: Labels = EMPTY
    removed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class NodeTainted:
    """A taint was set; it replaces one of the same key and effect."""

    node: NodeId
    taint: Taint


@dataclass(frozen=True, slots=True)
class NodeUntainted:
    """The taints of a key are gone: of one effect, or of all (None)."""

    node: NodeId
    key: str
    effect: Effect | None = None


@dataclass(frozen=True, slots=True)
class NodeDrained:
    """The node takes no new work (`draining`), or takes it again."""

    node: NodeId
    draining: bool = True


@dataclass(frozen=True, slots=True)
class NodeResized:
    """The node's capacity is now this."""

    node: NodeId
    capacity: Resources


@dataclass(frozen=True, slots=True)
class AskSubmitted:
    """Work looks for a node. An id that is already known is ignored."""

    ask: Ask


@dataclass(frozen=True, slots=True)
class AsksSubmitted:
    """`count` equal pieces of work look for a node. They are like `ask`; their ids are `ask.id`, `#` and a number, from
    `first` on. Ids that are already known are ignored."""

    ask: Ask
    first: int
    count: int

    def each(self) -> Iterator[AskSubmitted]:
        numbers = range(self.first, self.first + self.count)
        return (AskSubmitted(replace(self.ask, id=f"{self.ask.id}#{number}")) for number in numbers)


@dataclass(frozen=True, slots=True)
class AskRunning:
    """The cluster says that this work runs there: a decision confirmed, or work the engine did not place.

    What the cluster says wins over what the engine assumed, also where more runs than fits. Work that the
    engine did not place uses what its first choice says. On a node that is not known it means nothing.
    """

    ask: Ask
    node: NodeId


@dataclass(frozen=True, slots=True)
class AskEnded:
    """The work is over, cancelled or dead for good: it waits no more and holds nothing. A group goes on
    without a member that has ended."""

    ask: AskId


@dataclass(frozen=True, slots=True)
class AskLost:
    """The work lost its place (its process died, its bind was refused, it was evicted) and wants another."""

    ask: AskId


@dataclass(frozen=True, slots=True)
class GroupSubmitted:
    """Asks that want to be placed together or not at all. An id that is already known is ignored."""

    group: Group


@dataclass(frozen=True, slots=True)
class GroupEnded:
    """The group is over: it waits no more, and its members hold nothing."""

    group: GroupId


Fact = (
    ClockAdvanced
    | NodeJoined
    | NodeLeft
    | NodeLabelled
    | NodeTainted
    | NodeUntainted
    | NodeDrained
    | NodeResized
    | AskSubmitted
    | AsksSubmitted
    | AskRunning
    | AskEnded
    | AskLost
    | GroupSubmitted
    | GroupEnded
)
