"""Events about pending work: one per cause, without displacing rare events."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from stead.engine.engine import Engine
from stead.engine.explain.events import EventKind
from stead.engine.facts import AskRunning, NodeJoined, NodeTainted
from stead.language.asks import Ask
from stead.language.nodes import Node
from stead.language.taints import Taint
from stead.ray.control import ray_placed_work
from stead.ray.control.ray_placed_work import PendingKinds
from stead.ray.control.state_store import EVENTS_MAX, StateStore
from stead.ray.wire.own_names import pass_name
from stead.ray.wire.tables import PendingRow, Status

ROW = PendingRow({pass_name("plain", 0): 0.5, "CPU": 4.0}, (), 3)


@pytest.fixture
def state_store(tmp_path: Path) -> StateStore:
    return StateStore(tmp_path / "book.sqlite")


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_placed_work, "LOOK_S", 0.0)


def waiting_work(state_store: StateStore) -> PendingKinds:
    return PendingKinds(state_store, lambda row, id: Ask.of(id, {"CPU": row.resources["CPU"]}))


def _same(engine: Engine, _: Status) -> Engine:
    return engine


def test_a_number_that_changes_in_the_advice_is_not_reported_again(state_store: StateStore) -> None:
    work, engine = waiting_work(state_store), Engine()
    engine.apply(*(NodeJoined(Node.of(f"n-{n}", {"CPU": 4})) for n in range(3)))
    for turn in range(20):
        used = [AskRunning(Ask.of(f"used-{turn}-{n}", {"CPU": 1 + (turn + n) % 3}), f"n-{n}") for n in range(3)]
        fork = engine.fork()
        fork.apply(*used)
        work.look(Status({}, (ROW,)), partial(_same, fork))
    assert [event.kind for event in state_store.events()] == ["waiting"]


def test_another_cause_is_reported(state_store: StateStore) -> None:
    work, engine = waiting_work(state_store), Engine()
    engine.apply(NodeJoined(Node.of("n", {"CPU": 4})), AskRunning(Ask.of("used", {"CPU": 1}), "n"))
    for _ in range(3):
        work.look(Status({}, (ROW,)), partial(_same, engine))
    engine.apply(NodeTainted("n", Taint("team", "blue")))
    for _ in range(3):
        work.look(Status({}, (ROW,)), partial(_same, engine))
    first, second = state_store.events()
    assert "short of" in first.text
    assert "tainted team=blue" in second.text


def test_events_of_one_kind_do_not_displace_those_of_another(state_store: StateStore) -> None:
    state_store.record(EventKind.EVICTED, "a", "evicted from n")
    for number in range(EVENTS_MAX + 10):
        state_store.record(EventKind.WAITING, "b", str(number))
    kinds = [event.kind for event in state_store.events(0, 2 * EVENTS_MAX)]
    assert kinds.count(EventKind.EVICTED) == 1
    assert kinds.count(EventKind.WAITING) == EVENTS_MAX


def test_events_come_oldest_first_after_a_number_or_are_the_last_ones(state_store: StateStore) -> None:
    for number in range(5):
        state_store.record(EventKind.WAITING, "w", str(number))
    assert [event.number for event in state_store.events(1, 2)] == [2, 3]
    assert [event.number for event in state_store.events(-2, 10)] == [4, 5]
    assert [event.number for event in state_store.events(-9, 2)] == [1, 2]
