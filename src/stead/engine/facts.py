"""Facts: what happened. They are the engine's only input.

Rule: a fact is plain data, complete and in the past tense; the engine never asks for more. Facts about unknown things
(a node that already left, an ask that already ended) are ignored, because clusters repeat facts and report them out of
order.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from stead.language.asks import Ask, AskId, Group, GroupId
from stead.language.budgets import Budget
from stead.language.claims import Claim, ClaimId
from stead.language.labels import EMPTY, Labels
from stead.language.nodes import Node, NodeId
from stead.language.resources import Resources
from stead.language.taints import Effect, Taint


@dataclass(frozen=True, slots=True)
class ClockAdvanced:
    """The time is `now` (seconds, any epoch). Time never goes back: an earlier time is ignored."""

    now: float


@dataclass(frozen=True, slots=True)
class NodeJoined:
    """A node joined. If the id is known, the new record replaces the old one; its work stays placed."""

    node: Node


@dataclass(frozen=True, slots=True)
class NodeLeft:
    """A node left. Its work is pending again and keeps its submission time."""

    node: NodeId


@dataclass(frozen=True, slots=True)
class NodeLabelled:
    """Labels of a running node were set or removed; they override the labels it joined with."""

    node: NodeId
    labels: Labels = EMPTY
    """The labels that were set."""
    removed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class NodeTainted:
    """A taint was set; it replaces one of the same key and effect. It expires at `until`.

    `owner` (who set it) and `job` (the job that it ends with) are only shown to users. When the job ends, the cluster
    reports `NodeUntainted`.
    """

    node: NodeId
    """The node that has the taint."""
    taint: Taint
    until: float | None = None
    job: str = ""
    owner: str = ""


@dataclass(frozen=True, slots=True)
class NodeUntainted:
    """The taints of a key were removed: those of one effect, or all (None). `reason` is shown to users."""

    node: NodeId
    """The node that had the taints."""
    key: str
    effect: Effect | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class NodeDrained:
    """The node takes no new work (`draining`), or takes new work again."""

    node: NodeId
    draining: bool = True


@dataclass(frozen=True, slots=True)
class NodeResized:
    """The node's capacity is now this."""

    node: NodeId
    capacity: Resources


@dataclass(frozen=True, slots=True)
class NodeUsed:
    """Unmanaged work uses these amounts of the node, in `pieces` (the cluster's own tasks, or pods of another
    scheduler). It replaces the previous report; 0 pieces mean that no unmanaged work runs there.

    The report overrides what the engine assumed, even if more is used than the node has.
    """

    node: NodeId
    amounts: Resources
    pieces: int = 1


@dataclass(frozen=True, slots=True)
class AskSubmitted:
    """Work was submitted. An id that is already known is ignored."""

    ask: Ask
    """The work."""


@dataclass(frozen=True, slots=True)
class AsksSubmitted:
    """`count` equal pieces of work were submitted. They are like `ask`; their ids are `ask.id`, `#` and a number that
    starts at `first`. Ids that are already known are ignored."""

    ask: Ask
    first: int
    count: int

    def each(self) -> Iterator[AskSubmitted]:
        """The same as one fact for each piece of work."""
        numbers = range(self.first, self.first + self.count)
        return (AskSubmitted(replace(self.ask, id=f"{self.ask.id}#{number}")) for number in numbers)


@dataclass(frozen=True, slots=True)
class AskRunning:
    """The work runs on the node: this confirms a decision, or reports work that the engine did not place.

    The report overrides what the engine assumed, even if more runs than fits. Work that the engine did not place uses
    the resources of its first choice. A report for an unknown node is ignored.
    """

    ask: Ask
    """The work."""
    node: NodeId
    started: float | None = None
    """When it started; None means now, or when it was placed."""


@dataclass(frozen=True, slots=True)
class AskEnded:
    """The work finished, was cancelled or died for good: it is no longer pending and uses nothing. A group continues
    without an ended member."""

    ask: AskId
    """The id of the work."""


@dataclass(frozen=True, slots=True)
class AskLost:
    """The work lost its place (its process died, its bind failed, or it was evicted) and must be placed again."""

    ask: AskId
    """The id of the work."""


@dataclass(frozen=True, slots=True)
class AskChanged:
    """Placed work is now described like this; it keeps its place. Ignored if it is not placed."""

    ask: Ask
    """The work."""


@dataclass(frozen=True, slots=True)
class AskEnding:
    """The work is being stopped: it ends soon, and uses its node until then."""

    ask: AskId
    """The id of the work."""


@dataclass(frozen=True, slots=True)
class EvictionFailed:
    """The cluster did not evict the work, so it goes on. It is not chosen again if `is_final`."""

    ask: AskId
    """The id of the work."""
    is_final: bool = True


@dataclass(frozen=True, slots=True)
class AskNominated:
    """The pending work waits for this node, where others are being evicted for it, since before the engine began."""

    ask: AskId
    """The id of the work."""
    node: NodeId


@dataclass(frozen=True, slots=True)
class BudgetChanged:
    """A budget is new, or allows another number of evictions."""

    budget: Budget


@dataclass(frozen=True, slots=True)
class BudgetEnded:
    """There is no such budget any more."""

    budget: str
    """The id of the budget."""


@dataclass(frozen=True, slots=True)
class ClaimChanged:
    """A claim is new, or is now this: it was bound, or other nodes can use it."""

    claim: Claim


@dataclass(frozen=True, slots=True)
class ClaimEnded:
    """There is no such claim any more. Work that uses it keeps its place."""

    claim: ClaimId


@dataclass(frozen=True, slots=True)
class GroupSubmitted:
    """A group was submitted: asks to place together or not at all. An id that is already known is ignored."""

    group: Group
    """The group."""


@dataclass(frozen=True, slots=True)
class GroupChanged:
    """The group is now this: members joined or left it, or its minimum or another field changed. An unknown group is
    submitted, and a known one keeps its position in the order. A member that is known, in whatever group, keeps its
    place; what is no longer a member has ended."""

    group: Group
    """The group."""


@dataclass(frozen=True, slots=True)
class GroupEnded:
    """The group ended: it is no longer pending, and its members use nothing."""

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
    | NodeUsed
    | AskSubmitted
    | AsksSubmitted
    | AskRunning
    | AskEnded
    | AskLost
    | AskChanged
    | AskEnding
    | EvictionFailed
    | AskNominated
    | BudgetChanged
    | BudgetEnded
    | ClaimChanged
    | ClaimEnded
    | GroupSubmitted
    | GroupChanged
    | GroupEnded
)
