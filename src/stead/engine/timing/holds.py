"""Holds: nodes reserved for work that has been pending too long.

Rule: there is at most one hold at a time. It is for the first piece of pending work that is late and that would fit if
the running work were gone. A hold makes its nodes refuse other work (`rules.NotReserved`); it never evicts running
work. The hold of a group with a time-out ends after it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from math import inf
from typing import TypeVar

from stead.engine.board import Board
from stead.engine.fleet import Nodes
from stead.engine.groups.lifecycle import GroupRecord, Groups, GroupShape, place_missing
from stead.engine.rules import Hold, World, allowed
from stead.engine.shapes import Shape
from stead.engine.timing.timers import Alarms, Timeout
from stead.engine.waiting import Line, Lines
from stead.language.asks import GroupId

HOPELESS_MAX = 4096
Timeouts = Alarms[GroupId, Timeout]
T = TypeVar("T")


class Holds:
    """Sets and releases the hold. `late_at` is when the next pending work becomes late."""

    def __init__(
        self, board: Board, waiting: Lines, groups: Groups, timeouts: Timeouts, patience: float | None
    ) -> None:
        self._board, self._waiting, self._groups, self._patience = board, waiting, groups, patience
        self._timeouts = timeouts
        self.late_at = inf
        self._hopeless: dict[Hashable, int] = {}  # shapes for which no hold helps, with the fleet version at that time

    def fork(self, board: Board, waiting: Lines, groups: Groups, timeouts: Timeouts) -> Holds:
        twin = Holds(board, waiting, groups, timeouts, self._patience)
        twin.late_at, twin._hopeless = self.late_at, dict(self._hopeless)
        return twin

    def release_if_useless(self) -> None:
        """End a hold whose owner is no longer pending, or could no longer run on the reserved nodes."""
        hold, board = self._board.world.hold, self._board
        if hold is not None and (
            hold.owner not in self._waiting or (len(board.fleet.news) and not _is_of_use(board, hold))
        ):
            board.set_hold(None)

    def node_left(self, row: int) -> None:
        hold = self._board.world.hold
        if hold is not None and hold.nodes >> row & 1:
            self._board.set_hold(None)

    def open_to(self, owner: str, place: Callable[[], T]) -> T:
        """Try to place a group; nodes reserved for it do not refuse its members meanwhile."""
        hold = self._board.world.hold
        if hold is None or hold.owner != owner:
            return place()
        self._board.set_hold(None, news=False)
        placed = place()
        self._board.set_hold(hold if placed is None else None)
        return placed

    def end(self, group: GroupId, now: float) -> None:
        """The time-out of a group has passed. It rests as long as it may hold nodes before it gets the next
        reservation, so other late work has its turn."""
        hold, timeout_s = self._board.world.hold, self._groups.record(group).group.timeout_s
        if hold is not None and hold.owner == group and timeout_s is not None:
            self._board.set_hold(None)
            self._timeouts.set(group, Timeout.REST, now + timeout_s)
            self.late_at = now

    def rested(self, now: float) -> None:
        """A group may get a reservation again."""
        self.late_at = min(self.late_at, now)

    def _limit(self, owner: str, now: float) -> None:
        timeout_s = self._groups.record(owner).group.timeout_s if owner in self._groups else None
        if timeout_s is not None:
            self._timeouts.set(owner, Timeout.HOLD, now + timeout_s)

    def hold_for_the_late(self, now: float) -> None:
        """Reserve nodes for the first piece of work that has been pending too long and could fit."""
        self.late_at = inf
        if self._patience is None or self._board.world.hold is not None:
            return
        for line in self._waiting.waiting_since(now - self._patience):
            hold = self._hold_for(line)
            if hold is not None:
                self._board.set_hold(hold)
                self._limit(hold.owner, now)
                return
        self.late_at = self._waiting.next_since + self._patience

    def _hold_for(self, line: Line) -> Hold | None:
        """Nodes to reserve for the first item of a line, if it only lacks free resources."""
        sleeper, item = line.sleeper, next(iter(self._waiting.items_in(line).values()))
        if self._timeouts.is_set(item.id, Timeout.REST):
            return None
        if not self._waiting.hopes(sleeper) or self._hopeless.get(sleeper) == self._board.fleet.version:
            return None
        if isinstance(sleeper, Shape):
            hold = _hold_for_ask(self._board, item.id, sleeper)
        else:
            assert isinstance(sleeper, GroupShape)
            hold = _hold_for_group(self._board, self._groups.record(item.id), sleeper)
        if hold is None:
            if len(self._hopeless) > HOPELESS_MAX:
                self._hopeless.clear()
            self._hopeless[sleeper] = self._board.fleet.version
        return hold


def _hold_for_ask(board: Board, id: str, shape: Shape) -> Hold | None:
    """Reserve the least loaded node that would take the ask if enough were free."""
    for demand in shape.demands:
        hopes = board.hopes(demand)
        if hopes:
            return Hold(id, shape, 1 << board.emptiest(demand, hopes))
    return None


def _hold_for_group(board: Board, record: GroupRecord, shape: GroupShape) -> Hold | None:
    """Reserve the nodes that the group would get if nothing else ran."""
    twin = _free_of_other_work(board, record)
    alternative = place_missing(twin, record)
    if alternative is None:
        return None
    nodes = 0
    placed = twin.work.placements.map
    for ask in record._replace(alternative=alternative).missing(board):
        nodes |= 1 << placed[ask.id].row if ask.id in placed else 0
    return Hold(record.group.id, shape, nodes) if nodes else None


def _is_of_use(board: Board, hold: Hold) -> bool:
    """Whether its owner could still run on the reserved nodes."""
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
    """A fork in which only the group's own members use resources."""
    twin = board.fork(lasting=False)
    for placement in board.work.placements.map.values():
        if placement.group != record.group.id:
            needs = placement.ask.choices[placement.choice].resources.items()
            twin.fleet.give(placement.row, needs, placement.held)
    for row, used in board.work.unmanaged.map.items():
        twin.fleet.give(row, used.needs, used.held)
    return twin
