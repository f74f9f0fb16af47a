"""Improvement of a batch: place asks that the flow left out, by moving other asks of the same batch.

Rule: the flow counts asks, not amounts, so asks of different sizes leave small gaps. For every ask left out, this looks
for a node where it would fit if some asks of the batch moved to nodes where they fit now. Each success places one more
ask. Running work never moves. The search is bounded by the number of nodes it looks at.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from stead.engine.batch.flow import fitting
from stead.engine.board import Board
from stead.engine.columns.amounts import Amounts
from stead.engine.shapes import Demand
from stead.engine.waiting import Line
from stead.language.asks import Ask, GroupId

LOOKS_MAX = 8_000_000
"""The maximum number of nodes to look at in one batch, summed over all searches."""
LOOK_LEAST = 2_000
"""Each search counts as at least this many nodes."""
MOVES_MAX = 3
"""The maximum number of asks that move to make room for one."""
ROWS_TRIED_MAX = 32
"""The maximum number of nodes tried for one ask, starting with the smallest shortage."""


class Seat:
    """An ask that a batch has placed on a row."""

    __slots__ = ("ask", "demand", "group", "line", "row")

    def __init__(self, ask: Ask, demand: Demand, row: int, line: Line, group: GroupId | None) -> None:
        self.ask, self.demand, self.row, self.line, self.group = ask, demand, row, line, group


class Improvement:
    """All seats of a batch, and the search for asks that can make room for others."""

    def __init__(self, board: Board, seats: Iterable[Seat]) -> None:
        self.board, self.fleet = board, board.fleet
        self.seats: dict[Demand, dict[int, list[Seat]]] = {}
        self.used: dict[str, Amounts] = {}
        """What the seats use on each row, by resource: only seats can make room."""
        self.looks_left = LOOKS_MAX
        for seat in seats:
            self.add(seat)

    def add(self, seat: Seat) -> None:
        """Register an ask that is placed on the board."""
        self.seats.setdefault(seat.demand, {}).setdefault(seat.row, []).append(seat)
        self._use(seat, +1)

    def _use(self, seat: Seat, step: int) -> None:
        for resource, need in seat.demand.needs:
            if resource not in self.used:
                self.used[resource] = np.zeros(self.fleet.extent, np.int64)
            self.used[resource][seat.row] += step * need

    def room_for(self, demand: Demand) -> int | None:
        """A row where an ask of the demand fits now, after moving other asks on the board if necessary."""
        row = self._fitting_row(demand, frozenset())
        for moves in range(1, MOVES_MAX + 1):
            if row is None:
                row = self._cleared_row(demand, moves)
        return row

    def _fitting_row(self, demand: Demand, closed: frozenset[int]) -> int | None:
        """The row where the demand fits and the least stays free."""
        self.looks_left -= max(self.fleet.extent, LOOK_LEAST)
        rows = np.flatnonzero(self._open_to(demand) & fitting(self.fleet, demand.needs))
        if closed:
            rows = rows[~np.isin(rows, list(closed))]
        return int(rows[np.argmin(self._left(rows, demand))]) if len(rows) else None

    def _cleared_row(self, demand: Demand, moves: int) -> int | None:
        """A row where the demand fits after at most `moves` moves; rows with the smallest shortage are tried first."""
        self.looks_left -= max(self.fleet.extent, LOOK_LEAST)
        rows = np.flatnonzero(self._open_to(demand))
        lack = np.zeros(len(rows))
        for resource, need in demand.needs:
            amount, used = self.fleet.amount(resource), self.used.get(resource)
            missing = np.maximum(need - amount.free[rows], 0)
            could = missing <= (0 if used is None else used[rows])
            rows, lack = rows[could], (lack + missing / max(int(amount.total.max(initial=0)), 1))[could]
        for row in rows[np.argsort(lack, kind="stable")][:ROWS_TRIED_MAX].tolist():
            if self.looks_left > 0 and self._clear(row, demand, moves, frozenset({row})):
                return int(row)
        return None

    def _clear(self, row: int, demand: Demand, moves: int, closed: frozenset[int]) -> bool:
        """Move asks off the row until the demand fits; on failure, undo the moves."""
        if fitting(self.fleet, demand.needs)[row]:
            return True
        if not moves:
            return False
        here = [other for other, rows in self.seats.items() if rows.get(row) and other is not demand]
        for other in sorted(here, key=_size):
            seat = self.seats[other][row][-1]
            self._lift(seat)
            target = self._fitting_row(other, closed)
            self._place(seat, row if target is None else target)
            if target is None:
                continue
            if self._clear(row, demand, moves - 1, closed):
                return True
            self._lift(seat)
            self._place(seat, row)
        return False

    def _open_to(self, demand: Demand) -> NDArray[np.bool_]:
        return self.board.view(demand).flags[: self.fleet.extent]

    def _left(self, rows: NDArray[np.intp], demand: Demand) -> NDArray[np.float64]:
        """How much stays free on each row with the demand on it, as a fraction of the largest node."""
        left = np.zeros(len(rows))
        for resource, need in demand.needs:
            amount = self.fleet.amount(resource)
            left += (amount.free[rows] - need) / max(int(amount.total.max(initial=0)), 1)
        return left

    def _lift(self, seat: Seat) -> None:
        self.seats[seat.demand][seat.row].remove(seat)
        self._use(seat, -1)
        self.board.lift(seat.ask.id)

    def _place(self, seat: Seat, row: int) -> None:
        seat.row = row
        self.board.place(seat.ask, seat.demand, row, seat.line.moment, seat.line.turn, seat.group)
        self.add(seat)


def _size(demand: Demand) -> int:
    return sum(need for _, need in demand.needs)
