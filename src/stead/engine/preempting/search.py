"""The search for a node where evicting work makes room for one ask.

Rule: the cheapest node is taken (`ranking.py`), and nothing is evicted unless the ask then fits there by every rule.
All nodes are compared at once, by amounts and by the work that must go. Where rules about other work or devices matter,
the nodes with the lowest costs are tried on the board, one after the other.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

from stead.engine.board import Board
from stead.engine.fleet import Nodes, from_flags
from stead.engine.preempting.obstacles import Obstacles
from stead.engine.preempting.ranking import Cost, Needs, Ranking, Sources, cost_of
from stead.engine.rules import ClaimFree, Rule, World, allowed
from stead.engine.shapes import Demand, Shape
from stead.engine.work import Placement
from stead.language.asks import AskId

TRIED_MIN, TRIED_MAX = 8, 128
"""How many nodes are tried on the board for one ask, the lowest costs first: at least so many to find a cheaper one, at
most so many to find one at all."""

RANKINGS_MAX = 64
ANYWHERE: Nodes = -1


class Room(NamedTuple):
    """Where an ask fits once these victims are gone; `violations` of them exceed a budget."""

    demand: Demand
    row: int
    victims: tuple[AskId, ...]
    violations: int
    cost: Cost


class Rankings:
    """The rankings that were used lately."""

    def __init__(self) -> None:
        self._found: OrderedDict[tuple[Needs, int, Demand | None], Ranking] = OrderedDict()

    def of(self, sources: Sources, needs: Needs, priority: int, demand: Demand | None = None) -> Ranking:
        """The ranking for this need and priority, up to date; by the rules about work of a demand, if there is one."""
        key = needs, priority, demand
        ranking = self._found.get(key)
        if ranking is None:
            if len(self._found) >= RANKINGS_MAX:
                self._found.popitem(last=False)
            ranking = self._found[key] = Ranking(needs, priority, Obstacles(demand) if demand is not None else None)
        self._found.move_to_end(key)
        ranking.refresh(sources)
        return ranking


def room_for(
    sources: Sources,
    rankings: Rankings,
    shape: Shape,
    priority: int,
    fence: Nodes = ANYWHERE,
    more: Sequence[Rule] = (),
) -> Room | None:
    """The cheapest room inside the fence for an ask of this shape and priority, by the first of its choices that has
    one. `more` are rules in addition to its own."""
    for demand in shape.demands:
        found = _room(sources, rankings, demand, priority, fence, more)
        if found is not None:
            return found
    return None


def open_after_evictions(sources: Sources, demand: Demand) -> Nodes:
    """The nodes that only amounts refuse, or rules whose refusals may end when work is evicted."""
    rules, world = demand.rules, sources.board.world
    nodes = open_but_for_work(sources.board, demand) & allowed((rules.could_fit,), world)
    for rule in rules.liftable:
        if isinstance(rule, ClaimFree):
            nodes &= rule.where_evicting_helps(world)
    return nodes


def open_but_for_work(board: Board, demand: Demand) -> Nodes:
    """The same, also where there is not enough even on an empty node."""
    return board.view(demand).open_but_for_work(board.world)


def _room(
    sources: Sources, rankings: Rankings, demand: Demand, priority: int, fence: Nodes, more: Sequence[Rule]
) -> Room | None:
    board = sources.board
    nodes = open_after_evictions(sources, demand) & fence
    if more:
        nodes &= allowed(tuple(more), board.world)
    if not nodes:
        return None
    if not demand.on_devices and not _looks_at_work(sources, demand):
        ranking = rankings.of(sources, demand.needs, priority)
        row = ranking.best(nodes)
        if row is None:
            return None
        victims, violations = ranking.victims(sources, row)
        return Room(demand, row, tuple(victims), violations, ranking.cost(row))
    ranking = rankings.of(sources, demand.needs, priority, demand)
    assert ranking.obstacles is not None
    nodes &= from_flags(ranking.obstacles.hopeful(board.world, sources.table, priority))
    tried_min = 1 if ranking.obstacles.are_all_known else TRIED_MIN
    best: Room | None = None
    for number, row in enumerate(ranking.in_order(nodes)[:TRIED_MAX]):
        if best is not None and number >= tried_min and best.cost <= ranking.cost(row):
            break
        found = tried_on_board(sources, demand, priority, row)
        if found is not None and (best is None or (found.cost, found.row) < (best.cost, best.row)):
            best = found
    return best


def _looks_at_work(sources: Sources, demand: Demand) -> bool:
    """Whether other work can change where the demand may go, besides what it uses."""
    always = [rule for rule in demand.rules.about_work if rule is not demand.rules.kept_away]
    return bool(always or sources.board.work.keepers(demand.kind))


def tried_on_board(sources: Sources, demand: Demand, priority: int, row: int) -> Room | None:
    """What must be evicted on one node by every rule, tried on the board and undone; None if it does not fit even
    without any work of a lower priority."""
    board, table = sources.board, sources.table
    ids = table.ids(row)
    lower = [slot for slot in range(len(ids)) if table.priorities.item(slot, row) < priority]
    exceeding = sources.protection.exceeding_on(table, row, lower, sources.left)
    with board.attempt():
        for each in board.work.nominations_below(priority, row):
            board.end_nomination(each.ask.id)
        lifted = {slot: board.lift(ids[slot]) for slot in lower}
        if not _fits(sources, demand, row):
            return None
        victims: list[int] = []
        wanted = [slot for slot in lower if not table.is_ending.item(slot, row)]
        for slot in sorted(wanted, key=lambda slot: slot not in exceeding):  # protected work is given back first
            board.put_back(lifted[slot])
            if not _fits(sources, demand, row):
                board.lift(ids[slot])
                victims.append(slot)
    victims.sort()
    gone: list[Placement] = [lifted[slot] for slot in victims]
    violations = sum(slot in exceeding for slot in victims)
    return Room(demand, row, tuple(ids[slot] for slot in victims), violations, cost_of(gone, violations))


def _fits(sources: Sources, demand: Demand, row: int) -> bool:
    """Whether the node takes the demand now, by the rules about work and by amounts; the others hold already."""
    world: World = sources.board.world
    for rule in demand.rules.about_work:
        for _, refused in rule.refusals(world):
            if refused >> row & 1:
                return False
    return all(world.fleet.amount(resource).fitting(need).item(row) >= need for resource, need in demand.needs)
