"""Events about waiting work: told once for each cause, and never pushing out what happens seldom."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from stead.asks import Ask
from stead.engine import Engine
from stead.engine.facts import AskRunning, NodeJoined, NodeTainted
from stead.node import Node
from stead.ray import patience
from stead.ray.book import EVENTS_MAX, Book
from stead.ray.page import pass_name
from stead.ray.patience import WaitingWork
from stead.ray.tables import PendingRow, Status
from stead.taints import Taint

ROW = PendingRow({pass_name("plain", 0): 0.5, "CPU": 4.0}, (), 3)


@pytest.fixture
def book(tmp_path: Path) -> Book:
    return Book(tmp_path / "book.sqlite")


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "LOOK_S", 0.0)


def waiting_work(book: Book) -> WaitingWork:
    return WaitingWork(book, lambda row, id: Ask.of(id, {"CPU": row.resources["CPU"]}))


def _same(engine: Engine, _: Status) -> Engine:
    return engine


def test_a_number_that_changes_in_the_advice_is_no_news(book: Book) -> None:
    work, engine = waiting_work(book), Engine()
    engine.apply(*(NodeJoined(Node.of(f"n-{n}", {"CPU": 4})) for n in range(3)))
    for turn in range(20):
        used = [AskRunning(Ask.of(f"used-{turn}-{n}", {"CPU": 1 + (turn + n) % 3}), f"n-{n}") for n in range(3)]
        fork = engine.fork()
        fork.apply(*used)
        work.look(Status({}, (ROW,)), partial(_same, fork))
    assert [event.kind for event in book.events()] == ["waiting"]


def test_another_cause_is_news(book: Book) -> None:
    work, engine = waiting_work(book), Engine()
    engine.apply(NodeJoined(Node.of("n", {"CPU": 4})), AskRunning(Ask.of("used", {"CPU": 1}), "n"))
    for _ in range(3):
        work.look(Status({}, (ROW,)), partial(_same, engine))
    engine.apply(NodeTainted("n", Taint("team", "blue")))
    for _ in range(3):
        work.look(Status({}, (ROW,)), partial(_same, engine))
    first, second = book.events()
    assert "short of" in first.text
    assert "tainted team=blue" in second.text


def test_events_of_one_kind_do_not_push_out_those_of_another(book: Book) -> None:
    book.add_event(1.0, "evicted", "a", "ended on node n")
    for number in range(EVENTS_MAX + 10):
        book.add_event(2.0, "waiting", "b", str(number))
    kinds = [event.kind for event in book.events(limit=2 * EVENTS_MAX)]
    assert kinds.count("evicted") == 1
    assert kinds.count("waiting") == EVENTS_MAX
