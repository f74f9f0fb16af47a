"""The controller's files: readable ones are used, unreadable ones are moved aside, and a copy replaces them."""

from __future__ import annotations

import pickle
import sqlite3
import threading
from pathlib import Path
from typing import Any

import pytest

from stead.codec import dumps
from stead.engine.explain.events import EventKind
from stead.engine.facts import AskRunning, AskSubmitted, ClockAdvanced, Fact, GroupSubmitted, NodeJoined, NodeTainted
from stead.engine.settings import Settings
from stead.errors import Unready, Unwritable
from stead.journal import Unreadable
from stead.language.asks import Ask, Group
from stead.language.labels import Labels
from stead.language.nodes import Node
from stead.language.taints import Taint
from stead.ray.control import persistence as opened
from stead.ray.control import state_store as books
from stead.ray.control.persistence import JOURNAL, KEY, STATE, Copy, Stores
from stead.ray.control.readiness import Readiness, when_ready
from stead.ray.control.state_store import StateStore
from stead.ray.submit.compile import Pass, route
from stead.ray.submit.messages import GroupAsked, Registered, Timed
from tests.on_ray.waiting import wait_for

SETTINGS = Settings(patience=None)
NODE = Node.of("n", {"CPU": 4}, {"zone": "a"})
TAINT = Taint("mine", "yes")
FACTS: list[Fact] = [ClockAdvanced(1.0), NodeJoined(NODE), NodeTainted("n", TAINT, until=1e10, owner="me")]


class Values:
    """A fake of Ray's key-value store."""

    def __init__(self, kept: dict[str, bytes] | None = None) -> None:
        self.kept = {} if kept is None else kept

    def get(self, key: str) -> bytes | None:
        return self.kept.get(key)

    def put(self, key: str, value: bytes) -> None:
        self.kept[key] = value


def open_in(folder: Path, values: Values | None = None) -> Stores:
    folder.mkdir(exist_ok=True)
    return Stores(folder, SETTINGS, values or Values())  # type: ignore[arg-type]


def registered(id: str, kind: str = "actor") -> Registered:
    ask = Ask.of(id, {"CPU": 1}, labels={"app": "a"})
    return Registered(id, kind, f"stead.t/{id}", "01", ask, ask)


GROUP = GroupAsked(Group("g", ((Ask.of("g-1", {"CPU": 1}),),)), ((Pass(),),), ((Labels(),),), "", "01", "", False)


def work(stores: Stores) -> None:
    """A run of the controller: a tainted node, a running actor, a pending task, a pending group, and an end that the
    journal does not have."""
    stores.state_store.keep_registered([registered("runs"), registered("waits", "task")])
    stores.state_store.keep_group(GROUP)
    stores.state_store.mark("policy", "pack")
    facts = [*FACTS, AskRunning(registered("runs").ask, "n"), AskRunning(Ask.of("ended", {"CPU": 1}), "n")]
    facts += [AskSubmitted(registered("waits").ask), GroupSubmitted(GROUP.group)]
    stores.engine.apply(*facts)
    stores.journal.append(facts, stores.engine.decide())


def test_files_are_opened_in_their_last_state(tmp_path: Path) -> None:
    stores = open_in(tmp_path)
    work(stores)
    before = stores.engine
    stores.close()
    again = open_in(tmp_path)
    assert again.engine.nodes == before.nodes
    assert again.engine.placed == before.placed
    assert [each.id for each in again.state_store.registered()] == ["runs", "waits"]
    assert again.news == []
    again.close()


def test_a_new_head_continues_from_the_copy(tmp_path: Path) -> None:
    values = Values()
    stores = open_in(tmp_path / "old", values)
    work(stores)
    stores.update_copy(stores.engine)
    wait_for(lambda: values.kept, 60, "the copy")
    stores.close()

    again = open_in(tmp_path / "new", values)
    assert again.engine.nodes["n"].taints == (TAINT,)
    assert again.engine.placed == {"runs": "n"}, "what ended is not in the state store, so it has ended"
    assert set(again.engine.waiting) == {"waits", "g"}
    assert [each.owner for each in again.engine.taint_ends] == ["me"]
    assert (again.state_store.marked("policy"), again.state_store.groups()) == ("pack", [(GROUP, None)])
    assert [kind for kind, _ in again.news] == ["restored"]
    again.close()
    third = open_in(tmp_path / "new", Values())  # from now on by its own journal
    assert third.engine.nodes["n"].taints == (TAINT,)
    assert third.news == []
    third.close()


def test_a_copy_is_not_used_if_there_is_a_journal(tmp_path: Path) -> None:
    stores = open_in(tmp_path)
    work(stores)
    stores.close()
    again = open_in(tmp_path, Values({KEY: b"whatever"}))
    assert again.engine.placed.keys() == {"runs", "ended"}
    again.close()


@pytest.mark.parametrize("copy", [b"whatever", b"", Copy(0.0, (), b"", b"").packed()[:-4]])
def test_an_unreadable_copy_does_not_stop_the_controller_from_starting(tmp_path: Path, copy: bytes) -> None:
    stores = open_in(tmp_path, Values({KEY: copy}))
    assert stores.engine.nodes == {}
    assert [kind for kind, _ in stores.news] == (["unreadable"] if copy else [])
    stores.close()


def test_the_nodes_of_a_copy_of_another_version_are_used(tmp_path: Path) -> None:
    state_store = StateStore(tmp_path / "other.sqlite")
    copy = Copy(0.0, (NODE,), b'{"unknown":1}', state_store.image())
    stores = open_in(tmp_path / "new", Values({KEY: copy.packed()}))
    assert stores.engine.nodes == {"n": NODE}
    stores.close()
    state_store.close()


def test_a_copy_that_would_be_too_large_omits_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opened, "COPY_BYTES_MAX", 100)
    values = Values()
    stores = open_in(tmp_path, values)
    work(stores)
    stores.update_copy(stores.engine)
    wait_for(lambda: values.kept, 60, "the copy")
    copy = Copy.unpacked(values.kept[KEY])
    assert (copy.nodes[0].taints, copy.engine) == ((TAINT,), b"")
    assert [(each.until, each.owner) for each in copy.restored_engine(SETTINGS).taint_ends] == [(1e10, "me")]
    assert [event.kind for event in stores.state_store.events()] == ["copy"]
    stores.close()
    (tmp_path / "copy.sqlite").write_bytes(copy.state_store)
    state_store = StateStore(tmp_path / "copy.sqlite")
    assert (state_store.registered(), state_store.marked("policy")) == ([], "pack")
    state_store.close()


def test_a_copy_is_written_when_something_changed_and_not_too_often(tmp_path: Path) -> None:
    stores = open_in(tmp_path)
    made: list[int] = []
    stores._packed = lambda engine: made.append(len(engine.nodes)) or b"copy"  # type: ignore[method-assign,func-returns-value]
    stores.update_copy(stores.engine)
    stores.update_copy(stores.engine)
    stores.state_store.mark("a", "b")
    stores.update_copy(stores.engine)  # within a second
    assert made == [0]
    work(stores)
    stores.update_copy(stores.engine)  # a change of nodes does not wait
    assert made == [0, 1]
    stores.close()


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        ("UPDATE steps SET facts = 'torn'", "this is not JSON"),
        ("PRAGMA user_version = 99", "is a journal of version 99"),
        ("DELETE FROM about WHERE name = 'settings'", "it has no settings"),
        ("UPDATE about SET value = '{\"seed\":7}' WHERE name = 'settings'", "was created with"),
    ],
)
def test_an_unusable_journal_is_moved_aside_and_the_copy_replaces_it(tmp_path: Path, damage: str, said: str) -> None:
    values = Values()
    for _ in range(opened.ASIDE_MAX + 2):
        stores = open_in(tmp_path, values)
        work(stores)
        stores.update_copy(stores.engine)
        wait_for(lambda: values.kept, 60, "the copy")
        stores.close()
        with sqlite3.connect(tmp_path / JOURNAL) as behind:
            behind.execute(damage)
            if "UPDATE steps" in damage:
                behind.execute("DELETE FROM checkpoints")
        behind.close()
    stores = open_in(tmp_path, values)
    assert [kind for kind, _ in stores.news] == ["unreadable", "restored"]
    assert said in stores.news[0][1]
    assert stores.engine.nodes["n"].taints == (TAINT,)
    aside = list(tmp_path.glob(f"{JOURNAL}.*.unreadable"))
    assert 1 <= len(aside) <= opened.ASIDE_MAX
    stores.report_news()
    assert [event.kind for event in stores.state_store.events()][-2:] == ["unreadable", "restored"]
    stores.close()


def test_an_unusable_state_store_is_moved_aside(tmp_path: Path) -> None:
    (tmp_path / STATE).write_text("no database " * 400)
    stores = open_in(tmp_path)
    assert [kind for kind, _ in stores.news] == ["unreadable"]
    stores.state_store.mark("a", "b")
    stores.close()


def test_a_locked_journal_is_not_treated_as_damaged(tmp_path: Path) -> None:
    stores = open_in(tmp_path)
    work(stores)
    stores.journal._connection.execute("BEGIN IMMEDIATE")  # as a controller that hangs might
    with pytest.raises(Unready, match="database is locked"):
        open_in(tmp_path)
    stores.journal._connection.execute("ROLLBACK")
    assert not list(tmp_path.glob("*.unreadable"))
    stores.close()


# -- the state store


def test_a_failed_write_to_the_state_store_changes_nothing_in_memory(tmp_path: Path) -> None:
    state_store = StateStore(tmp_path / STATE)
    pages = state_store._db.execute("PRAGMA page_count").fetchone()[0]
    state_store._db.execute(f"PRAGMA max_page_count = {pages}")
    large = [Timed(f"t-{n}", "task", "p", Ask.of(f"t-{n}", {"CPU": 1}, labels={"l": "v" * 60})) for n in range(200)]
    with pytest.raises(Unwritable, match=r"book\.sqlite cannot be written: database or disk is full"):
        state_store.keep_timed(large)
    assert state_store.open_timed() == []
    with pytest.raises(Unwritable):
        state_store.keep_registered([registered(f"r-{n}") for n in range(200)])
    assert state_store.registered() == []
    state_store._db.execute("PRAGMA max_page_count = 1000000")
    state_store.keep_timed(large)
    assert len(state_store.open_timed()) == 200
    state_store.close()


def test_the_state_store_keeps_a_limited_number_of_finished_items(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PASSES_MAX", "REFUSED_MAX"):
        monkeypatch.setattr(books, name, 5)
    state_store = StateStore(tmp_path / STATE)
    rules = [route({"label_selector": {"key": f"v{n}"}}).wish.admits for n in range(9)]
    for rule in rules:
        state_store.keep_pass(rule, 1)
    state_store.keep_pass(rules[4], 2)
    assert [state_store.pass_of(rule.key) is not None for rule in rules] == [False] * 4 + [True] * 5
    for n in range(9):
        state_store.keep_timed(
            [Timed(f"t-{n}", "task", "p", Ask.of("x"), "refused"), Timed(f"open-{n}", "task", "p", Ask.of("x"))]
        )
    assert [n for n in range(9) if state_store.timed_of(f"t-{n}")] == [4, 5, 6, 7, 8]
    assert len(state_store.open_timed()) == 9
    state_store.close()
    again = StateStore(tmp_path / STATE)
    assert [again.pass_of(rule.key) is not None for rule in rules] == [False] * 4 + [True] * 5
    again.close()


def test_a_state_store_of_another_version_is_refused(tmp_path: Path) -> None:
    state_store = StateStore(tmp_path / STATE)
    state_store._db.execute("PRAGMA user_version = 99")
    state_store.close()
    with pytest.raises(Unreadable, match="has version 99"):
        StateStore(tmp_path / STATE)


def test_an_image_of_the_state_store_has_everything_but_its_events(tmp_path: Path) -> None:
    state_store = StateStore(tmp_path / STATE)
    state_store.keep_registered([registered("a"), registered("b", "task")])
    state_store.record(EventKind.TAINTED, "n", "text")
    (tmp_path / "image").write_bytes(state_store.image())
    again = StateStore(tmp_path / "image")
    assert dumps(again.registered()) == dumps(state_store.registered())
    assert again.events() == []
    again.close()
    state_store.close()


# -- calls before it is ready


@when_ready
class Answering:
    def __init__(self) -> None:
        self.readiness = Readiness()

    def answer(self, *given: Any) -> Any:
        return given


def test_a_call_is_answered_once_the_controller_is_ready() -> None:
    controller = Answering()
    threading.Timer(0.1, controller.readiness.ready).start()
    assert controller.answer(1, 2) == (1, 2)


def test_a_startup_problem_is_one_sentence_that_can_be_pickled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stead.ray.control.readiness.PASSES_S", 0.0)
    controller = Answering()
    for error, kind, said in (
        (Unwritable("j cannot be written: disk full"), Unwritable, "cannot write its files now: j cannot be written"),
        (KeyError("boom"), Unready, "cannot start now: KeyError: 'boom'; it retries automatically"),
        (Unready("wait"), Unready, "cannot start now: wait; it retries"),
    ):
        controller.readiness.failed(error)
        with pytest.raises(kind, match=said) as told:
            controller.answer()
        again = pickle.loads(pickle.dumps(told.value))
        assert (type(again), str(again)) == (kind, str(told.value))
    controller.readiness.ready()
    assert controller.answer() == ()
