"""Holds: nodes kept free for work that has waited too long.

Rule: at most one hold at a time, for the first piece of waiting work that is late and that could fit if
the work which is running now were gone. A hold refuses others (`rules.NotReserved`); it never ends
running work.
"""

from __future__ import annotations

from stead.engine.board import Board
from stead.engine.fleet import Nodes
from stead.engine.groups import GroupRecord, GroupShape, place_missing
from stead.engine.rules import Hold, World, allowed
from stead.engine.shapes import Shape


def hold_for_ask(board: Board, id: str, shape: Shape) -> Hold | None:
    """Hold the least loaded node that refuses the ask for nothing but lack of room."""
    for demand in shape.demands:
        hopes = board.hopes(demand)
        if hopes:
            return Hold(id, shape, 1 << board.emptiest(demand, hopes))
    return None


def hold_for_group(board: Board, record: GroupRecord, shape: GroupShape) -> Hold | None:
    """Hold the nodes that the group would take if nothing ran."""
    twin = _free_of_other_work(board, record)
    placed = place_missing(twin, shape, record)
    if placed is None:
        return None
    nodes = 0
    for ask in placed.missing(board):
        nodes |= 1 << twin.work.placements.map[ask.id].row
    return Hold(record.group.id, shape, nodes) if nodes else None


def is_of_use(board: Board, hold: Hold) -> bool:
    """Whether its owner could still go to the nodes that are held for it."""
    if isinstance(hold.holder, Shape):
        return any(hold.nodes & board.hopes(demand) for demand in hold.holder.demands)
    assert isinstance(hold.holder, GroupShape)
    unheld = World(board.fleet, board.work)
    open_to_some: Nodes = 0
    for shape in {shape for shapes in hold.holder.alternatives for shape in shapes}:
        rules = shape.demands[0].rules
        open_to_some |= allowed((*rules.regardless_of_work, rules.could_fit), unheld)
    return not hold.nodes & ~open_to_some


def _free_of_other_work(board: Board, record: GroupRecord) -> Board:
    """A fork in which nothing but the group's own members uses any amounts."""
    twin = board.fork(lasting=False)
    for placement in board.work.placements.map.values():
        if placement.group != record.group.id:
            needs = placement.ask.choices[placement.choice].resources.items()
            twin.fleet.give(placement.row, needs, placement.held)
    return twin
