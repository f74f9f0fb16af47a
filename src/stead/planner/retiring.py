"""Which nodes are not needed: idle nodes that can go, and nodes that moves of running work would free.

Rule: nothing is changed, and nothing is moved: moves are only proposed. Whether anything needs a node is what the
engine decides on a fork without it. Time is not considered: how long a node must be idle is the scaler's concern.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from stead.engine.engine import Engine
from stead.engine.facts import NodeLeft
from stead.language.asks import AskId
from stead.language.nodes import NodeId, NodeTemplate
from stead.planner.plans import NO_STOCK, Stock
from stead.planner.trials import settle

TRIES_MAX = 200
"""The maximum number of nodes that are tried one at a time."""


@dataclass(frozen=True, slots=True)
class Retirable:
    """`nodes` can go together, those that are drained first; `kept` says why each other node of a known kind stays."""

    nodes: tuple[NodeId, ...]
    kept: Mapping[NodeId, str]


@dataclass(frozen=True, slots=True)
class Consolidation:
    """If this running work moved, the node could go, which would save its price. The moves are done in the order of the
    proposals: each one counts on the ones before it."""

    node: NodeId
    kind: str
    moves: tuple[tuple[AskId, NodeId], ...]
    saves: float


def retirable(
    engine: Engine,
    catalog: Sequence[NodeTemplate],
    stock: Stock = NO_STOCK,
    candidates: Collection[NodeId] | None = None,
) -> Retirable:
    """The idle nodes among `candidates` (by default all nodes of known kinds) that can go together.

    A node stays while work, a member of a group or unmanaged work runs there, or would once all pending work is placed;
    while a taint on it has an owner or ends with a job; and while its kind would have fewer than its minimum. Nodes
    that are coming do not count as nodes of their kind: they may never join.
    """
    base = engine.fork()
    settle(base)
    nodes, busy = engine.nodes, set(base.placed.values()) | {id for id, used in base.used.items() if used.pieces}
    marked = {end.node: end for end in engine.taint_ends if end.owner or end.job}
    spare = Counter(kind for id, kind in stock.running.items() if id in nodes)
    spare.subtract({kind.name: kind.count_min for kind in catalog})
    prices = {kind.name: kind.price for kind in catalog}
    known = [id for id, kind in stock.running.items() if id in nodes and kind in prices]
    order = {id: (not nodes[id].draining, -prices[stock.running[id]], place) for place, id in enumerate(known)}
    chosen, kept = list[NodeId](), dict[NodeId, str]()
    for id in sorted(known, key=order.__getitem__):
        if id in busy:
            kept[id] = (
                "work runs on it" if id in set(engine.placed.values()) | set(engine.used) else "pending work fits it"
            )
        elif id in marked:
            end = marked[id]
            kept[id] = f"{end.owner or 'job ' + end.job} has set the taint {end.key}"
        elif candidates is not None and id not in candidates:
            kept[id] = "it is not asked for"
        elif spare[stock.running[id]] <= 0:
            kept[id] = "its kind has its minimum"
        else:
            chosen.append(id)
            spare[stock.running[id]] -= 1
    gone = _without(base, chosen)
    kept.update((id, "pending work needs it") for id in chosen if id not in gone)
    return Retirable(tuple(gone), kept)


def consolidation(
    engine: Engine, catalog: Sequence[NodeTemplate], stock: Stock = NO_STOCK, most: int = 10
) -> tuple[Consolidation, ...]:
    """Moves of running work that would free at most so many nodes of known kinds: those first that save the most for
    each piece that moves. Nodes with members of groups or unmanaged work are left alone."""
    raise NotImplementedError


def _without(base: Engine, chosen: Sequence[NodeId]) -> list[NodeId]:
    """As many of these nodes as can leave without more pending work; `base` is settled."""
    pending = set(base.waiting)
    fork = base.fork()
    fork.apply(*map(NodeLeft, chosen))
    settle(fork)
    if set(fork.waiting) <= pending:
        return list(chosen)
    gone, current = list[NodeId](), base
    for id in chosen[:TRIES_MAX]:
        fork = current.fork()
        fork.apply(NodeLeft(id))
        settle(fork)
        if set(fork.waiting) <= pending:
            gone.append(id)
            current = fork
    return gone
