"""Moves: running work that would cost less on another node, by the costs of its own policy.

Rule: nothing moves unless the settings or a caller ask for it. Only asks of a batch policy move, one at a time, to
nodes that their rules allow and where they fit now. Members of groups never move. Neither does work that has affinities
or spreads, nor work that the affinities or spreads of other work match. The gain is the price of the old node (without
the ask) minus the price of the new one.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator

import numpy as np

from stead.engine.batch.flow import fitting
from stead.engine.board import Board
from stead.engine.decisions import Moved
from stead.engine.shapes import Demand
from stead.language.asks import AskId, PolicyName

PLACES_MAX = 2_000
"""The maximum number of (shape, node) pairs to consider: all asks of a shape on a node gain the same."""
GAIN_MIN = 20
"""The smallest gain that is worth a move: two hundredths of a node or of a device."""

Place = tuple[Demand, int]


def best_moves(board: Board, policy: PolicyName, limit: int) -> list[Moved]:
    """The moves that gain most, best first, each computed after the previous ones; they are made on the board."""
    with board.attempt() as tried:
        moves = _Moves(board, policy)
        found: list[Moved] = []
        while len(found) < limit and (move := moves.make_best()) is not None:
            found.append(move)
        tried.keep()
    return found


class _Moves:
    def __init__(self, board: Board, policy: PolicyName) -> None:
        self.board, self.fleet, self.prices = board, board.fleet, board.prices(policy)
        self.places: dict[Place, list[AskId]] = {}
        for demand, row, id in self._movable(policy):
            self.places.setdefault((demand, row), []).append(id)
        self.resources = sorted({resource for demand, _ in self.places for resource, _ in demand.needs})
        self._best: list[tuple[int, int, Place, int]] = []
        """(minus gain, turn, place, target row): the gain of each place when it was last computed."""
        for turn, place in enumerate(list(self.places)[:PLACES_MAX]):
            self._look(place, turn)

    def _movable(self, policy: PolicyName) -> Iterator[tuple[Demand, int, AskId]]:
        """Work that may move, starting with the most expensive nodes."""
        prices = self.prices.nodes(self.fleet, sorted(self.fleet.amounts.map))
        found = []
        for id, placement in self.board.work.placements.map.items():
            shape = self.board.shape_of(placement.ask)
            pinned = placement.group is not None or self.board.work.watches(shape.kind)
            if shape.batch is policy and not pinned and id not in self.board.work.watched:
                found.append((-int(prices[placement.row]), placement.row, id, shape.demands[placement.choice]))
        for _, row, id, demand in sorted(found, key=lambda each: each[:3]):
            yield demand, row, id

    def make_best(self) -> Moved | None:
        """Make the move that gains most now, if any gain is large enough."""
        while self._best:
            _, turn, place, _ = heapq.heappop(self._best)
            gain, target = self._gain(place)
            if target is None or gain < GAIN_MIN:
                continue
            if self._best and gain < -self._best[0][0]:
                heapq.heappush(self._best, (-gain, turn, place, target))  # earlier moves changed its gain
                continue
            return self._make(place, turn, gain, target)
        return None

    def _make(self, place: Place, turn: int, gain: int, target: int) -> Moved:
        demand, row = place
        id = self.places[place].pop()
        self._shift(id, demand, target)
        if self.places[place]:
            self._look(place, turn)
        return Moved(id, self.board.node_id(row), self.board.node_id(target), gain)

    def _look(self, place: Place, turn: int) -> None:
        gain, target = self._gain(place)
        if target is not None and gain >= GAIN_MIN:
            heapq.heappush(self._best, (-gain, turn, place, target))

    def _gain(self, place: Place) -> tuple[int, int | None]:
        """The gain of moving one ask away from the place, and the best target row."""
        demand, row = place
        id = self.places[place][-1]
        placement = self.board.lift(id)
        view = self.board.view(demand)
        fits = view.flags[: self.fleet.extent] & fitting(self.fleet, demand.needs)
        prices = self.prices.nodes(self.fleet, self.resources)
        column = self.prices.column(self.fleet, demand, fits)
        if column is not None:
            prices = prices + column
        if view.worth is not None:
            prices = prices - view.worth[: self.fleet.extent]
        here = int(prices[row])
        fits[row] = False
        rows = np.flatnonzero(fits)
        self.board.place(placement.ask, demand, row, placement.moment, placement.turn)
        if not len(rows):
            return 0, None
        target = int(rows[np.argmin(prices[rows])])
        return here - int(prices[target]), target

    def _shift(self, id: AskId, demand: Demand, row: int) -> None:
        placement = self.board.lift(id)
        self.board.place(placement.ask, demand, row, placement.moment, placement.turn)
