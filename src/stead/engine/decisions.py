"""Decisions: what the engine wants done.

Rule: a decision is plain data and complete, and equal facts give equal decisions in the same order.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from stead.engine.reasons import Reason, TargetDead
from stead.language.asks import AskId, GroupId, PolicyName
from stead.language.nodes import NodeId
from stead.language.taints import Taint


@dataclass(frozen=True, slots=True)
class Refusal:
    """Nodes refused for one reason. `nodes` counts the nodes for which it is the first reason in blame order (that of
    the classes in `reasons`), so that the counts add up; `alone` counts the nodes for which it is the only reason."""

    reason: Reason
    nodes: int
    alone: int


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result for one choice of an ask: of `nodes` live nodes, `candidates` would take it now, and `feasible` would
    if nothing else ran there. The refusals, in blame order, say why the others do not. Refused nodes, candidates and
    `other_nodes` (refused for `other_reasons`, which are not listed) add up to all nodes."""

    nodes: int
    candidates: int
    refusals: tuple[Refusal, ...]
    feasible: int = 0
    other_reasons: int = 0
    other_nodes: int = 0

    def leading(self, most: int) -> Verdict:
        """The same verdict with only the refusals that have the most nodes; the others are counted."""
        if len(self.refusals) <= most:
            return self
        by_nodes = sorted(range(len(self.refusals)), key=lambda place: -self.refusals[place].nodes)
        kept = tuple(self.refusals[place] for place in sorted(by_nodes[:most]))
        left_out = sum(each.nodes for each in self.refusals) - sum(each.nodes for each in kept)
        return replace(
            self,
            refusals=kept,
            other_reasons=self.other_reasons + len(self.refusals) - most,
            other_nodes=self.other_nodes + left_out,
        )

    @property
    def main_reasons(self) -> tuple[Reason, ...]:
        """The reasons to report: each is the only reason on some node, or says that a target is dead. If there are
        none, all reasons that count nodes. So a taint on a node that refuses the ask anyway is not reported."""
        main = tuple(each.reason for each in self.refusals if each.alone or isinstance(each.reason, TargetDead))
        return main or tuple(each.reason for each in self.refusals if each.nodes)


@dataclass(frozen=True, slots=True)
class Placed:
    """Run the ask on the node. `choice` is the index of the choice taken."""

    ask: AskId
    node: NodeId
    choice: int = 0


@dataclass(frozen=True, slots=True)
class GroupPlaced:
    """Run the members of the group on these nodes, all or none. `alternative` is the index of the alternative taken.
    Members that are already placed are not listed, and in a group with a minimum, neither are members that do not fit:
    the group is pending for them."""

    group: GroupId
    alternative: int
    members: tuple[tuple[AskId, NodeId], ...]


@dataclass(frozen=True, slots=True)
class Waiting:
    """No node fits these equal asks (or this group) now. Reported once, and again when a retry finds other
    `main_reasons`.

    `verdicts` has one entry per choice. For a group they are about `member`, the first member that fits no node once
    the members before it are placed; they are empty if each member fits, but not all together. `more_members` is how
    many members a group lacks to have its minimum: it is not tried before they are submitted.
    """

    asks: tuple[str, ...]
    verdicts: tuple[Verdict, ...] = ()
    member: AskId = ""
    more_members: int = 0

    @property
    def verdict(self) -> Verdict | None:
        """The verdict of the first choice that only lacks free resources, or else of the first choice."""
        first = self.verdicts[0] if self.verdicts else None
        return next((verdict for verdict in self.verdicts if verdict.feasible), first)

    @property
    def refusals(self) -> tuple[Refusal, ...]:
        """The refusals of `verdict`."""
        return self.verdict.refusals if self.verdict else ()


@dataclass(frozen=True, slots=True)
class NodeUnknown:
    """Refused at once: none of the nodes that it requires by id is alive."""

    nodes: tuple[NodeId, ...]
    """The ids that it requires."""


@dataclass(frozen=True, slots=True)
class DeadlinePassed:
    """Refused: it was pending until its deadline; `verdicts` say why, as in `Waiting`."""

    deadline: float
    verdicts: tuple[Verdict, ...] = ()


@dataclass(frozen=True, slots=True)
class Refused:
    """The ask or group (`id`) will not be placed, and the engine has forgotten it."""

    id: str
    cause: NodeUnknown | DeadlinePassed
    """Why."""


@dataclass(frozen=True, slots=True)
class Evicted:
    """Stop this work: its node has a NoExecute taint that it does not tolerate, or no longer tolerates."""

    ask: AskId
    """The id of the work."""
    node: NodeId
    taint: Taint


@dataclass(frozen=True, slots=True)
class Preempted:
    """Stop the victims, all on this node, because `ask` has a higher priority and fits nowhere. A place on the node is
    kept for the ask until the victims are gone; then it is placed. There are no victims if work that is ending anyway
    makes room.

    `violations` is how many of the victims a budget protects. A member of a group names its `group`, whose other
    members wait for their nodes, too. `choice` is the one of its choices that fits there.
    """

    ask: AskId
    """The id of the work that is to run there."""
    node: NodeId
    victims: tuple[AskId, ...]
    violations: int = 0
    group: GroupId | None = None
    choice: int = 0


@dataclass(frozen=True, slots=True)
class NominationEnded:
    """The node is no longer kept for the ask, which is pending as before: the node does not fit any more, or work of a
    higher priority needs it."""

    ask: AskId
    """The id of the work."""
    node: NodeId


@dataclass(frozen=True, slots=True)
class GroupReleased:
    """Take these members of the group off their nodes where that is possible, and report them as lost: fewer than its
    minimum are placed, and its time-out has passed."""

    group: GroupId
    members: tuple[AskId, ...]


@dataclass(frozen=True, slots=True)
class TaintExpired:
    """The taint has expired. The engine has removed it; the cluster must remove it too."""

    node: NodeId
    """The node that had the taint."""
    taint: Taint


@dataclass(frozen=True, slots=True)
class BatchDecided:
    """A batch was decided together, as a min-cost flow: the number of asks, how many were placed, and in how many
    rounds.

    `cost` is the total cost in the policy's units, and `bound` a proven lower bound (None: not proven). `repaired`
    counts how often the flow chose a node that does not fit. Groups that the batch could not place whole are tried one
    at a time afterwards and are not counted as placed here.
    """

    policy: PolicyName
    asks: int
    placed: int
    cost: int
    bound: int | None = None
    repaired: int = 0
    rounds: int = 1


@dataclass(frozen=True, slots=True)
class Moved:
    """Move running work to a cheaper node. `gain` is how much less the new node costs, in the policy's units. Only for
    clusters that can move work."""

    ask: AskId
    """The id of the work."""
    source: NodeId
    """The node that it runs on."""
    target: NodeId
    """The node to move it to."""
    gain: int


Decision = (
    Placed
    | GroupPlaced
    | Waiting
    | Refused
    | Evicted
    | GroupReleased
    | Preempted
    | NominationEnded
    | TaintExpired
    | BatchDecided
    | Moved
)
