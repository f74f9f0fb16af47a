"""Decisions: what the engine wants done.

Rule: a decision is plain and complete, and equal facts give equal decisions in an equal order.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from stead.asks import AskId, GroupId, PolicyName
from stead.engine.reasons import Reason
from stead.node import NodeId
from stead.taints import Taint


@dataclass(frozen=True, slots=True)
class Refusal:
    """Nodes refused for one reason. `nodes` are those it takes the blame for (the first reason in blame
    order does, so that counts add up); `alone` are those for which it is the only obstacle. A taint is not `telling`
    while each of its nodes is refused for good by something that is no taint."""

    reason: Reason
    nodes: int
    alone: int
    telling: bool = field(default=True, compare=False)


@dataclass(frozen=True, slots=True)
class Placed:
    """Run the ask on the node. `choice` is the index of the choice taken."""

    ask: AskId
    node: NodeId
    choice: int = 0


@dataclass(frozen=True, slots=True)
class GroupPlaced:
    """Run the members of the group on these nodes, all or none. `alternative` is the one taken; members
    that were placed before and still are do not appear."""

    group: GroupId
    alternative: int
    members: tuple[tuple[AskId, NodeId], ...]


@dataclass(frozen=True, slots=True)
class Waiting:
    """Nothing fits these equal asks (or this group) now. Said once, and again when they were tried again and
    the telling reasons had become others.

    `refusals` hold the reasons of the first choice that is feasible in principle (or of the first).
    """

    asks: tuple[str, ...]
    refusals: tuple[Refusal, ...]


@dataclass(frozen=True, slots=True)
class NodeUnknown:
    """Refused at once: every node id it insists on is not alive."""

    nodes: tuple[NodeId, ...]


@dataclass(frozen=True, slots=True)
class DeadlinePassed:
    """Refused: it waited until its deadline; `refusals` say why it waited."""

    deadline: float
    refusals: tuple[Refusal, ...]


@dataclass(frozen=True, slots=True)
class Refused:
    """The ask or group (`id`) will not be placed, and the engine has forgotten it."""

    id: str
    cause: NodeUnknown | DeadlinePassed


@dataclass(frozen=True, slots=True)
class Evicted:
    """End this work: its node has a no-execute taint that it does not tolerate (any longer)."""

    ask: AskId
    node: NodeId
    taint: Taint


@dataclass(frozen=True, slots=True)
class BatchDecided:
    """Work was decided together, as a min-cost flow: so many asks, of which so many were placed, in so many rounds.

    `cost` is what was reached, in the units of the policy's costs, and `bound` what no placement of these asks can go
    below; None where nothing is proven. `repaired`: how often the flow wanted what does not fit, and was corrected.
    Groups that no arrangement of the batch could take whole are tried one at a time after it; here they are left out.
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
    """Running work lies better elsewhere: move it. `gain` is what the old place costs more than the new one, in the
    units of its policy's costs. Only where the cluster said that it may move work."""

    ask: AskId
    source: NodeId
    target: NodeId
    gain: int


Decision = Placed | GroupPlaced | Waiting | Refused | Evicted | BatchDecided | Moved
