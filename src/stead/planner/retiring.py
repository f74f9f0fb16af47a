"""Which nodes are not needed: idle nodes that can go, and nodes that moves of running work would free.

Rule: nothing is changed, and nothing is moved: moves are only proposed. Whether anything needs a node is what the
engine decides on a fork without it. Time is not considered: how long a node must be idle is the scaler's concern.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from stead.engine.engine import Engine
from stead.engine.facts import AskLost, NodeDrained, NodeLeft
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
    """If this running work moved, the node could go, which would save its price. Each proposal counts on those before
    it."""

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
    running, busy = {*engine.placed.values(), *engine.used}, {*base.placed.values(), *base.used}
    spare, prices, nodes = _spare(engine, catalog, stock), {kind.name: kind.price for kind in catalog}, engine.nodes
    known = [id for id, kind in stock.running.items() if id in nodes and kind in prices]
    owners = _owners(engine)
    chosen, kept = list[NodeId](), dict[NodeId, str]()
    for id in sorted(known, key=lambda id: (not nodes[id].draining, -prices[stock.running[id]])):
        if id in running:
            kept[id] = "work runs on it"
        elif id in busy:
            kept[id] = "pending work fits it"
        elif id in owners:
            kept[id] = owners[id]
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
    """Moves of running work that would free at most so many nodes of known kinds, in addition to idle nodes: those
    first that save the most for each piece of work that moves.

    Nodes with members of groups, unmanaged work, work that is ending or a taint with an owner are left alone. The moves
    are what the engine decides if all these nodes are drained together and all their work is placed again.
    """
    base = engine.fork()
    settle(base)
    base.apply(*map(NodeLeft, retirable(base, catalog, stock).nodes))
    settle(base)
    spare, prices, nodes = _spare(base, catalog, stock), {kind.name: kind.price for kind in catalog}, base.nodes
    work: dict[NodeId, list[AskId]] = {}
    for id, node in base.placed.items():
        work.setdefault(node, []).append(id)
    members = {member.id for group in base.groups.values() for member in group.all_members}
    alone = {node for node, ids in work.items() if not members.isdisjoint(ids)}
    alone |= {*base.used, *base.ending.values(), *_owners(base)}
    known = [id for id, kind in stock.running.items() if id in work and id not in alone and kind in prices]
    order = {id: len(work[id]) / (prices[stock.running[id]] or 1.0) for id in known if not nodes[id].draining}
    freed, then = list[NodeId](), base
    for id in sorted(order, key=order.__getitem__)[:TRIES_MAX]:
        if len(freed) < most and spare[stock.running[id]] > 0:
            fork = base.fork()
            fork.apply(*map(NodeDrained, (*freed, id)), *(AskLost(ask) for node in (*freed, id) for ask in work[node]))
            settle(fork)
            if _serves_as_much(fork, base):
                freed.append(id)
                spare[stock.running[id]] -= 1
                then = fork
    placed = then.placed
    return tuple(
        Consolidation(id, stock.running[id], tuple((ask, placed[ask]) for ask in work[id]), prices[stock.running[id]])
        for id in freed
    )


def _spare(engine: Engine, catalog: Sequence[NodeTemplate], stock: Stock) -> Counter[str]:
    """How many nodes of each kind there are beyond its minimum."""
    spare = Counter(kind for id, kind in stock.running.items() if id in engine.nodes)
    spare.subtract({kind.name: kind.count_min for kind in catalog})
    return spare


def _owners(engine: Engine) -> dict[NodeId, str]:
    """The nodes with a taint that belongs to somebody, and to whom."""
    return {
        end.node: f"{end.owner or f'job {end.job}'} has set the taint {end.key}"
        for end in engine.taint_ends
        if end.owner or end.job
    }


def _serves_as_much(fork: Engine, base: Engine) -> bool:
    """Whether all work that was placed is placed, and all pending work is placed or still pending."""
    placed = fork.placed
    lost = [id for id in base.waiting if id not in placed and id not in fork.groups and not fork.is_pending(id)]
    return not lost and base.placed.keys() <= placed.keys() and set(fork.waiting) <= set(base.waiting)


def _without(base: Engine, chosen: Sequence[NodeId]) -> list[NodeId]:
    """As many of these nodes as can leave without more pending work; `base` is settled."""
    fork = base.fork()
    fork.apply(*map(NodeLeft, chosen))
    settle(fork)
    if _serves_as_much(fork, base):
        return list(chosen)
    gone, current = list[NodeId](), base
    for id in chosen[:TRIES_MAX]:
        fork = current.fork()
        fork.apply(NodeLeft(id))
        settle(fork)
        if _serves_as_much(fork, base):
            gone.append(id)
            current = fork
    return gone
