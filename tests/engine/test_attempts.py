"""An undone attempt on the board leaves no trace, and a kept one wakes only work that it could help."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from stead.engine.board import Board
from stead.engine.columns.change_log import ChangeLog, Column
from stead.engine.engine import Engine
from stead.engine.facts import AskRunning, NodeJoined
from stead.language.asks import Ask
from stead.language.nodes import Node

Step = tuple[str, int, int]
STEPS = st.lists(
    st.tuples(st.sampled_from(["place", "lift", "open", "keep", "back"]), st.integers(0, 5), st.integers(0, 2))
)


def begun() -> Board:
    engine = Engine()
    engine.apply(*(NodeJoined(Node.of(f"n{row}", {"CPU": 8, "GPU": 2})) for row in range(3)))
    engine.apply(*(AskRunning(ask(number), f"n{number}") for number in range(3)))
    board = engine._parts.board
    board.fleet.news.take()
    return board


def ask(number: int) -> Ask:
    return Ask.of(f"a{number}", {"CPU": 1, "GPU": 0.5})


def shown(board: Board) -> Any:
    amounts = {name: (each.free.tolist(), each.share.tolist()) for name, each in board.fleet.amounts.map.items()}
    placed = {id: (placement.row, placement.held) for id, placement in board.work.placements.map.items()}
    return amounts, placed, {row: set(ids) for row, ids in board.work.residents.map.items()}


def take(board: Board, number: int, row: int) -> None:
    placed = board.work.placements.map
    if ask(number).id in placed:
        board.lift(ask(number).id)
    else:
        board.place(ask(number), board.shape_of(ask(number)).demands[0], row, 0.0, 0)


@given(STEPS)
def test_an_attempt_that_is_not_kept_changes_nothing(steps: list[Step]) -> None:
    board = begun()
    before = shown(board)
    with board.attempt():
        inside = []
        for what, number, row in steps:
            if what == "open":
                inside.append(board.attempt())
            elif what in ("keep", "back") and inside:
                inside.pop().keep() if what == "keep" else inside.pop().take_back()
            elif what in ("place", "lift"):
                take(board, number, row)
    assert shown(board) == before
    assert len(board.fleet.news) == 0


@given(STEPS)
def test_a_kept_attempt_wakes_work_only_where_something_became_free(steps: list[Step]) -> None:
    board = begun()
    before = {id: placement.row for id, placement in board.work.placements.map.items()}
    with board.attempt() as tried:
        for what, number, row in steps:
            if what in ("place", "lift"):
                take(board, number, row)
        tried.keep()
    after = {id: placement.row for id, placement in board.work.placements.map.items()}
    freed = {row for id, row in before.items() if after.get(id) != row}
    assert {row for column, row in board.fleet.news.take() if column.kind == "free"} == freed


def test_an_error_inside_takes_back_what_was_tried() -> None:
    board = begun()
    before = shown(board)
    try:
        with board.attempt():
            board.attempt()
            take(board, 4, 0)
            raise KeyError("somewhere deep inside")
    except KeyError:
        pass
    assert shown(board) == before and board.attempted is None


@given(st.lists(st.one_of(st.integers(0, 9), st.none()), max_size=60))
def test_a_reader_of_a_log_gets_all_new_entries_or_must_start_again(steps: list[int | None]) -> None:
    """None: old entries are dropped."""
    log: ChangeLog[int] = ChangeLog()
    written: list[int] = []
    cursors = [(0, 0)]
    for step in steps:
        if step is None:
            log.keep_at_most(2)
        else:
            log.add(step)
            written.append(step)
        cursors.append((log.end, len(written)))
        for cursor, seen in cursors:
            assert log.since(cursor) in (None, written[seen:])
        assert log.since(log.end) == []


def test_columns_are_equal_by_what_they_are() -> None:
    assert Column("label", "zone") == Column("label", "zone") != Column("label", "rack")
