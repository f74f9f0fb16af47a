"""What a batch left out, let in by moving work of the same batch that nobody has been told of yet.

Rule: flow counts asks and not amounts, so where sizes differ it leaves splinters. For every ask left out this looks for
a node on which it would fit if some others of the batch went elsewhere, where they fit as it is. Each success places
one ask more, and nobody moves who runs. The search is bounded by how many nodes it looks at.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from stead.asks import Ask, GroupId
from stead.engine.amounts import Amounts
from stead.engine.board import Board
from stead.engine.flow import fitting
from stead.engine.shapes import Demand
from stead.engine.waiting import Line

LOOKS_MAX = 8_000_000
"""How many nodes are looked at in all, over all columns, for one batch."""
LOOK_LEAST = 2_000
"""What a look at a small column costs, as if it had so many nodes."""
MOVES_MAX = 3
"""How many asks move, at most, to let one in."""
ROWS_TRIED_MAX = 32
"""How many nodes are tried for one ask, those first that lack least."""


class Seat:
    """An ask that a batch has placed on a row."""

    __slots__ = ("ask", "demand", "group", "line", "row")

    def __init__(self, ask: Ask, demand: Demand, row: int, line: Line, group: GroupId | None) -> None:
        self.ask, self.demand, self.row, self.line, self.group = ask, demand, row, line, group


class Improvement:
    """All seats of a batch, and who could make room for whom."""

    def __init__(self, board: Board, seats: Iterable[Seat]) -> None:
        self.board, self.fleet = board, board.fleet
        self.seats: dict[Demand, dict[int, list[Seat]]] = {}
        self.used: dict[str, Amounts] = {}
        """What the seats on each row use, resource by resource: nobody else makes room."""
        self.looks_left = LOOKS_MAX
        for seat in seats:
            self.sit(seat)

    def sit(self, seat: Seat) -> None:
        """Take note of an ask that has its place on the board."""
        self.seats.setdefault(seat.demand, {}).setdefault(seat.row, []).append(seat)
        self._use(seat, +1)

    def _use(self, seat: Seat, step: int) -> None:
        for resource, need in seat.demand.needs:
            if resource not in self.used:
                self.used[resource] = np.zeros(self.fleet.extent, np.int64)
            self.used[resource][seat.row] += step * need

    def room_for(self, demand: Demand) -> int | None:
        """A row where an ask of the demand fits now, after moving others on the board if need be."""
        row = self._fitting_row(demand, frozenset())
        for moves in range(1, MOVES_MAX + 1):
            if row is None:
                row = self._cleared_row(demand, moves)
        return row

    def _fitting_row(self, demand: Demand, closed: frozenset[int]) -> int | None:
        """Of the rows where the demand fits the one where the least stays free."""
        self.looks_left -= max(self.fleet.extent, LOOK_LEAST)
        rows = np.flatnonzero(self._open_to(demand) & fitting(self.fleet, demand.needs))
        if closed:
            rows = rows[~np.isin(rows, list(closed))]
        return int(rows[np.argmin(self._left(rows, demand))]) if len(rows) else None

    def _cleared_row(self, demand: Demand, moves: int) -> int | None:
        """A row where the demand fits after so many moves; those that lack least are tried first."""
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
        """Move others off the row until the demand fits; if that does not work out, nobody has moved."""
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
        """How much stays free on each row with the demand on it, in nodes."""
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
        self.sit(seat)


def _size(demand: Demand) -> int:
    return sum(need for _, need in demand.needs)
