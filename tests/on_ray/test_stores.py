"""The controller's files: what can be read is used, what cannot is moved aside, and a copy takes its place."""

from __future__ import annotations

import pickle
import sqlite3
import threading
from pathlib import Path
from typing import Any

import pytest
from waiting import wait_for

from stead.asks import Ask, Group
from stead.codec import dumps
from stead.engine import Settings
from stead.engine.facts import AskRunning, AskSubmitted, ClockAdvanced, Fact, GroupSubmitted, NodeJoined, NodeTainted
from stead.errors import Unready, Unwritable
from stead.journal import Unreadable
from stead.labelling import Labels
from stead.node import Node
from stead.operate.views import TaintEnd
from stead.ray import book as books
from stead.ray import stores as opened
from stead.ray.book import Book, GroupAsked, Registered, Timed
from stead.ray.compile import Pass, route
from stead.ray.readiness import Readiness, when_ready
from stead.ray.stores import BOOK, JOURNAL, KEY, Copy, Stores
from stead.taints import Taint

SETTINGS = Settings(patience=None)
NODE = Node.of("n", {"CPU": 4}, {"zone": "a"})
TAINT = Taint("mine", "yes")
FACTS: list[Fact] = [ClockAdvanced(1.0), NodeJoined(NODE), NodeTainted("n", TAINT)]


class Values:
    """Ray's key-value store, or what is left of it."""

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
    """A run of the controller: a tainted node, an actor that runs, a task and a group that wait, and an end unseen."""
    stores.book.keep_registered([registered("runs"), registered("waits", "task")])
    stores.book.keep_group(GROUP)
    stores.book.keep_taint(TaintEnd("n", "mine", "no-schedule", 1.0, None, "", "me"))
    stores.book.mark("policy", "pack")
    facts = [*FACTS, AskRunning(registered("runs").ask, "n"), AskRunning(Ask.of("ended", {"CPU": 1}), "n")]
    facts += [AskSubmitted(registered("waits").ask), GroupSubmitted(GROUP.group)]
    stores.engine.apply(*facts)
    stores.journal.append(facts, stores.engine.decide())


def test_files_are_opened_as_they_were_left(tmp_path: Path) -> None:
    stores = open_in(tmp_path)
    work(stores)
    before = stores.engine
    stores.close()
    again = open_in(tmp_path)
    assert again.engine.nodes == before.nodes
    assert again.engine.placed == before.placed
    assert [each.id for each in again.book.registered()] == ["runs", "waits"]
    assert again.news == []
    again.close()


def test_a_new_head_goes_on_with_the_copy(tmp_path: Path) -> None:
    values = Values()
    stores = open_in(tmp_path / "old", values)
    work(stores)
    stores.mind_copy(stores.engine)
    wait_for(lambda: values.kept, 10, "the copy")
    stores.close()

    again = open_in(tmp_path / "new", values)
    assert again.engine.nodes["n"].taints == (TAINT,)
    assert again.engine.placed == {"runs": "n"}, "what ended is not in the book, so it is over"
    assert set(again.engine.waiting) == {"waits", "g"}
    assert [each.owner for each in again.book.taint_ends()] == ["me"]
    assert (again.book.marked("policy"), again.book.groups()) == ("pack", [(GROUP, None)])
    assert [kind for kind, _ in again.news] == ["restored"]
    again.close()
    third = open_in(tmp_path / "new", Values())  # from now on by its own journal
    assert third.engine.nodes["n"].taints == (TAINT,)
    assert third.news == []
    third.close()


def test_a_copy_is_not_used_where_there_is_a_journal(tmp_path: Path) -> None:
    stores = open_in(tmp_path)
    work(stores)
    stores.close()
    again = open_in(tmp_path, Values({KEY: b"whatever"}))
    assert again.engine.placed.keys() == {"runs", "ended"}
    again.close()


@pytest.mark.parametrize("copy", [b"whatever", b"", Copy(0.0, (), b"", b"").packed()[:-4]])
def test_a_copy_that_cannot_be_read_keeps_nobody_from_starting(tmp_path: Path, copy: bytes) -> None:
    stores = open_in(tmp_path, Values({KEY: copy}))
    assert stores.engine.nodes == {}
    assert [kind for kind, _ in stores.news] == (["unreadable"] if copy else [])
    stores.close()


def test_of_a_copy_of_another_version_the_nodes_are_used(tmp_path: Path) -> None:
    book = Book(tmp_path / "other.sqlite")
    copy = Copy(0.0, (NODE,), b'{"unknown":1}', book.image())
    stores = open_in(tmp_path / "new", Values({KEY: copy.packed()}))
    assert stores.engine.nodes == {"n": NODE}
    stores.close()
    book.close()


def test_a_copy_that_would_be_too_large_leaves_out_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opened, "COPY_BYTES_MAX", 100)
    values = Values()
    stores = open_in(tmp_path, values)
    work(stores)
    stores.mind_copy(stores.engine)
    wait_for(lambda: values.kept, 10, "the copy")
    copy = Copy.unpacked(values.kept[KEY])
    assert (copy.nodes[0].taints, copy.engine) == ((TAINT,), b"")
    assert [event.kind for event in stores.book.events()] == ["copy"]
    stores.close()
    (tmp_path / "copy.sqlite").write_bytes(copy.book)
    book = Book(tmp_path / "copy.sqlite")
    assert (book.registered(), book.marked("policy")) == ([], "pack")
    book.close()


def test_a_copy_is_put_when_something_changed_and_not_too_often(tmp_path: Path) -> None:
    stores = open_in(tmp_path)
    made: list[int] = []
    stores._packed = lambda engine: made.append(len(engine.nodes)) or b"copy"  # type: ignore[method-assign,func-returns-value]
    stores.mind_copy(stores.engine)
    stores.mind_copy(stores.engine)
    stores.book.mark("a", "b")
    stores.mind_copy(stores.engine)  # within a second
    assert made == [0]
    work(stores)
    stores.mind_copy(stores.engine)  # a change of nodes does not wait
    assert made == [0, 1]
    stores.close()


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        ("UPDATE steps SET facts = 'torn'", "this is not JSON"),
        ("PRAGMA user_version = 99", "is a journal of version 99"),
        ("DELETE FROM about WHERE name = 'settings'", "does not say its settings"),
        ("UPDATE about SET value = '{\"seed\":7}' WHERE name = 'settings'", "was begun with"),
    ],
)
def test_a_journal_that_cannot_be_used_is_moved_aside_and_the_copy_takes_its_place(
    tmp_path: Path, damage: str, said: str
) -> None:
    values = Values()
    for _ in range(opened.ASIDE_MAX + 2):
        stores = open_in(tmp_path, values)
        work(stores)
        stores.mind_copy(stores.engine)
        wait_for(lambda: values.kept, 10, "the copy")
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
    stores.tell()
    assert [event.kind for event in stores.book.events()][-2:] == ["unreadable", "restored"]
    stores.close()


def test_a_book_that_cannot_be_used_is_moved_aside(tmp_path: Path) -> None:
    (tmp_path / BOOK).write_text("no database " * 400)
    stores = open_in(tmp_path)
    assert [kind for kind, _ in stores.news] == ["unreadable"]
    stores.book.mark("a", "b")
    stores.close()


def test_a_journal_that_somebody_holds_is_not_taken_for_damaged(tmp_path: Path) -> None:
    stores = open_in(tmp_path)
    work(stores)
    stores.journal._connection.execute("BEGIN IMMEDIATE")  # as a controller that hangs might
    with pytest.raises(Unready, match="database is locked"):
        open_in(tmp_path)
    stores.journal._connection.execute("ROLLBACK")
    assert not list(tmp_path.glob("*.unreadable"))
    stores.close()


# -- the book


def test_what_cannot_be_written_in_the_book_is_not_in_memory_either(tmp_path: Path) -> None:
    book = Book(tmp_path / BOOK)
    pages = book._db.execute("PRAGMA page_count").fetchone()[0]
    book._db.execute(f"PRAGMA max_page_count = {pages}")
    large = [Timed(f"t-{n}", "task", "p", Ask.of(f"t-{n}", {"CPU": 1}, labels={"l": "v" * 60})) for n in range(200)]
    with pytest.raises(Unwritable, match=r"book\.sqlite cannot be written: database or disk is full"):
        book.keep_timed(large)
    assert book.open_timed() == []
    with pytest.raises(Unwritable):
        book.keep_registered([registered(f"r-{n}") for n in range(200)])
    assert book.registered() == []
    book._db.execute("PRAGMA max_page_count = 1000000")
    book.keep_timed(large)
    assert len(book.open_timed()) == 200
    book.close()


def test_the_book_keeps_a_bounded_number_of_what_is_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PASSES_MAX", "REFUSED_MAX"):
        monkeypatch.setattr(books, name, 5)
    book = Book(tmp_path / BOOK)
    rules = [route({"label_selector": {"key": f"v{n}"}}).wish.admits for n in range(9)]
    for rule in rules:
        book.keep_pass(rule, 1)
    book.keep_pass(rules[4], 2)
    assert [book.pass_of(rule.key) is not None for rule in rules] == [False] * 4 + [True] * 5
    for n in range(9):
        book.keep_timed(
            [Timed(f"t-{n}", "task", "p", Ask.of("x"), "refused"), Timed(f"open-{n}", "task", "p", Ask.of("x"))]
        )
    assert [n for n in range(9) if book.timed_of(f"t-{n}")] == [4, 5, 6, 7, 8]
    assert len(book.open_timed()) == 9
    book.close()
    again = Book(tmp_path / BOOK)
    assert [again.pass_of(rule.key) is not None for rule in rules] == [False] * 4 + [True] * 5
    again.close()


def test_a_book_of_another_version_is_refused(tmp_path: Path) -> None:
    book = Book(tmp_path / BOOK)
    book._db.execute("PRAGMA user_version = 99")
    book.close()
    with pytest.raises(Unreadable, match="is a book of version 99"):
        Book(tmp_path / BOOK)


def test_an_image_of_the_book_is_a_book_without_its_events(tmp_path: Path) -> None:
    book = Book(tmp_path / BOOK)
    book.keep_registered([registered("a"), registered("b", "task")])
    book.add_event(1.0, "tainted", "n", "text")
    (tmp_path / "image").write_bytes(book.image())
    again = Book(tmp_path / "image")
    assert dumps(again.registered()) == dumps(book.registered())
    assert again.events() == []
    again.close()
    book.close()


# -- calls before it is ready


@when_ready
class Answering:
    def __init__(self) -> None:
        self.readiness = Readiness()

    def answer(self, *given: Any) -> Any:
        return given


def test_a_call_is_answered_once_all_is_ready() -> None:
    controller = Answering()
    threading.Timer(0.1, controller.readiness.ready).start()
    assert controller.answer(1, 2) == (1, 2)


def test_trouble_is_one_sentence_that_crosses_the_border_of_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stead.ray.readiness.PASSES_S", 0.0)
    controller = Answering()
    for error, kind, said in (
        (Unwritable("j cannot be written: disk full"), Unwritable, "cannot write its files now: j cannot be written"),
        (KeyError("boom"), Unready, "cannot start now: KeyError: 'boom'; it tries again by itself"),
        (Unready("wait"), Unready, "cannot start now: wait; it tries"),
    ):
        controller.readiness.failed(error)
        with pytest.raises(kind, match=said) as told:
            controller.answer()
        again = pickle.loads(pickle.dumps(told.value))
        assert (type(again), str(again)) == (kind, str(told.value))
    controller.readiness.ready()
    assert controller.answer() == ()
