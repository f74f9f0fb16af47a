"""Plans as values: what they may use, and what they propose."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from stead.engine.decisions import Verdict
from stead.language.asks import AskId
from stead.language.labels import EMPTY, Labels
from stead.language.nodes import NodeId, NodeTemplate
from stead.language.resources import Resources

HYPOTHETICAL = "(hypothetical)"
"""The id of a node that does not exist yet, and the id prefix of work that was not submitted."""

PRICE = "price"
"""How plans name the limit `Limits.price_max`."""


@dataclass(frozen=True, slots=True)
class Quota:
    """An upper limit on nodes with these labels together, whatever their kind, for example all nodes of a zone.

    Attributes:
        name: Its name.
        labels: The labels of the nodes that count; empty: all nodes.
        nodes_max: The maximum number of such nodes; None means no limit.
        resources_max: The maximum of their resources together, for example 16 GPUs; others have no limit. (Zero is no
            amount: for no GPUs at all, set the maximum of their kinds to 0.)
        only_launched: Whether only nodes of known kinds count (`Stock.running`), and not for example the head.
    """

    name: str
    labels: Labels = EMPTY
    nodes_max: int | None = None
    resources_max: Resources | None = None
    only_launched: bool = False


@dataclass(frozen=True, slots=True)
class Limits:
    """What a plan must respect beside `count_max` of each kind.

    Attributes:
        quotas: Upper limits over several kinds. Nodes of the engine count, too.
        price_max: The maximum price of all nodes of known kinds together; None means no limit.
    """

    quotas: tuple[Quota, ...] = ()
    price_max: float | None = None


@dataclass(frozen=True, slots=True)
class Stock:
    """Nodes that a plan counts on, by kind.

    Attributes:
        running: The kind of each node of the engine that is of a known kind; it counts against `count_max`.
        coming: How many nodes of each kind were requested and have not joined yet.
    """

    running: Mapping[NodeId, str] = field(default_factory=dict)
    coming: Mapping[str, int] = field(default_factory=dict)


NO_LIMITS, NO_STOCK = Limits(), Stock()


@dataclass(frozen=True, slots=True)
class Launch:
    """`count` new nodes of one kind, and the work that would run on them.

    Attributes:
        template: The kind.
        count: How many nodes.
        serves: The work that would run on them.
        wave: Nodes of a later wave are for what is still pending once all nodes of the waves before it have joined.
            Most plans have only wave 0. You can launch all waves at once.
    """

    template: NodeTemplate
    count: int
    serves: tuple[AskId, ...]
    wave: int = 0


@dataclass(frozen=True, slots=True)
class Unserved:
    """Equal pending asks, or one group, that stay pending. `nearest` is the kind of node that lacks the least, and
    `verdict` says what a new one lacks; it has a candidate if only the relation to other work, or a limit, is in the
    way. Without kinds of nodes, `nearest` is empty. `limit` names the limit that is in the way: a kind or a quota."""

    ids: tuple[str, ...]
    nearest: str = ""
    verdict: Verdict | None = None
    limit: str = ""


@dataclass(frozen=True, slots=True)
class Plan:
    """New nodes for pending work.

    Attributes:
        fits: Pending work that would run on existing nodes.
        launches: The new nodes, with the work that would run on them. A launch may serve nothing if it is for the
            minimum of its kind.
        unserved: What stays pending.
        limits: Names of kinds and quotas of which the plan has the maximum.
        coming: Nodes that were requested before, with the work that would run on them.
    """

    fits: tuple[AskId, ...]
    launches: tuple[Launch, ...]
    unserved: tuple[Unserved, ...]
    limits: tuple[str, ...] = ()
    coming: tuple[Launch, ...] = ()

    @property
    def price(self) -> float:
        """What the new nodes cost together."""
        return sum(each.count * each.template.price for each in self.launches)
