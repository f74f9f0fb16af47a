"""Places runs of equal asks: at once where that is exact, else one after the other.

Rule: every ask gets the node that it would get if the asks before it in the run were placed alone. An ask that fits
nowhere ends the run; what follows from that is not decided here.
"""

from __future__ import annotations

from collections.abc import Sequence

from stead.engine.decisions import Decision, Placed
from stead.engine.parts import Parts
from stead.engine.ranking.in_turn import RUN_MIN
from stead.engine.shapes import Demand, Shape
from stead.engine.waiting import Line
from stead.language.asks import Ask, AskId


def place_run(parts: Parts, line: Line, shape: Shape, run: Sequence[Ask]) -> list[Decision]:
    """Place as many equal asks as fit, each by the first of its choices that fits."""
    if len(run) == 1:
        return _place_one(parts, line, shape, run[0])
    decisions: list[Decision] = []
    for demand in shape.demands:
        asks = run[len(decisions) :]
        if asks:
            rows = parts.board.standing(demand).best_many(parts.board.world, len(asks))
            decisions += _place_rows(parts, line, demand, asks, rows)
    return decisions


def place_in_turn(parts: Parts, line: Line, shape: Shape, run: Sequence[Ask]) -> list[Decision]:
    """The same for asks of which each may change where the next can go. Stops where a placement has woken other work,
    which may come first."""
    waiting, board = parts.waiting, parts.board
    decisions: list[Decision] = []
    while len(decisions) < len(run):
        asks, rows = run[len(decisions) :], list[int]()
        may_be_foreseen = len(decisions) < 2 and len(asks) >= RUN_MIN  # perhaps not before the first one is placed
        if may_be_foreseen and not waiting.would_wake(board.work.columns_of(shape.kind)):
            rows = board.best_in_turn(shape, len(asks))
        placed = _place_rows(parts, line, shape.demands[0], asks, rows) or _place_one(parts, line, shape, asks[0])
        decisions += placed
        waiting.wake(board.fleet)
        if not placed or waiting.has_woken:
            break
    return decisions


def announce(parts: Parts, demand: Demand, ids: list[AskId], rows: list[int]) -> list[Decision]:
    """The decisions about asks that are on these rows now."""
    nodes, choice = parts.board.fleet.nodes.map, demand.index
    parts.taint_times.all_placed(ids, parts.now)
    return [Placed(id, nodes[row].id, choice) for id, row in zip(ids, rows, strict=True)]


def _place_one(parts: Parts, line: Line, shape: Shape, ask: Ask) -> list[Decision]:
    board = parts.board
    if ask.id not in board.work.nominations.map:
        return _place_now(parts, line, shape, ask)
    with board.attempt() as tried:  # the place that is kept for an ask does not count for the ask itself
        board.end_nomination(ask.id)
        placed = _place_now(parts, line, shape, ask)
        if placed:
            tried.keep()
    return placed


def _place_now(parts: Parts, line: Line, shape: Shape, ask: Ask) -> list[Decision]:
    board = parts.board
    for demand in shape.demands:
        row = board.standing(demand).best(board.dice)
        if row is not None:
            parts.stop_waiting(ask.id)
            board.place(ask, demand, row, line.moment, line.turn)
            return announce(parts, demand, [ask.id], [row])
    return []


def _place_rows(parts: Parts, line: Line, demand: Demand, asks: Sequence[Ask], rows: list[int]) -> list[Decision]:
    """Place the first asks on these rows."""
    if not rows:
        return []
    asks = asks[: len(rows)]
    ids = [ask.id for ask in asks]
    parts.stop_waiting(*ids)
    parts.board.place_many([(demand, asks, rows, line)])
    return announce(parts, demand, ids, rows)
