"""Work is found by its name, not only by its id."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from stead.engine.engine import Engine
from stead.engine.facts import AskSubmitted, GroupSubmitted, NodeJoined
from stead.errors import Invalid
from stead.language.asks import Ask, Group
from stead.language.nodes import Node
from stead.operate.audit import Entry
from stead.operate.changes import Absent, Conflict, inverse
from stead.operate.snapshot import Known, Snapshot

LONG = "1ffa5a11158d68c1ffffffffffffffffffffffff01000000"


@pytest.fixture
def snapshot() -> Snapshot:
    engine = Engine()
    engine.apply(
        NodeJoined(Node.of("n", {"CPU": 4})),
        AskSubmitted(Ask.of(LONG, {"CPU": 1})),
        AskSubmitted(Ask.of("t-1", {"CPU": 3})),
        *(AskSubmitted(Ask.of(f"t-{number}", {"CPU": 3})) for number in (2, 3)),
        AskSubmitted(Ask.of("a", {"CPU": 5})),
        AskSubmitted(Ask.of("b", {"CPU": 6})),
        GroupSubmitted(Group("g", ((Ask.of("g-1", {"CPU": 9}),),))),
    )
    engine.decide()
    names = {LONG: "trainer", "t-1": "tune", "t-2": "tune", "t-3": "tune", "a": "odd", "b": "odd", "g": "gang"}
    return Snapshot(engine, 0.0, {id: Known("task", name) for id, name in names.items()})


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        (LONG, LONG),
        ("trainer", LONG),
        ("1ffa5a11158d", LONG),
        ("gang", "g"),
        ("tune", "t-2"),  # of equal ones, the first that is waiting
        ("nobody", "nobody"),
    ],
)
def test_by_its_id_the_beginning_of_it_or_its_name(snapshot: Snapshot, said: str, meant: str) -> None:
    assert snapshot.work_id(said) == meant


def test_an_ambiguous_name_is_refused_with_the_ids(snapshot: Snapshot) -> None:
    with pytest.raises(Conflict, match="'odd' matches 2 pieces of work: a, b; give the id of one"):
        snapshot.work_id("odd")


def test_one_piece_is_found_by_its_name(snapshot: Snapshot) -> None:
    assert snapshot.one("trainer").id == LONG


@pytest.mark.parametrize("ask", [Snapshot.one, Snapshot.why])
def test_unknown_work_is_refused_with_a_similar_name(
    snapshot: Snapshot, ask: Callable[[Snapshot, str], object]
) -> None:
    with pytest.raises(Absent, match=r"^there is no work 'trianer' in this cluster \(did you mean 'trainer'\?\)$"):
        ask(snapshot, "trianer")


def test_work_that_waits_inside_a_placed_group_is_found_but_not_explained() -> None:
    engine = Engine()
    member = Ask.of("g-1", {"CPU": 1})
    engine.apply(NodeJoined(Node.of("n", {"CPU": 1})), GroupSubmitted(Group("g", ((member,),))))
    engine.decide()
    engine.apply(AskSubmitted(Ask.of("inner", {"CPU": 1})))
    snapshot = Snapshot(engine, 0.0, {"inner": Known("task", inside="g")})
    with pytest.raises(Invalid, match="group g is placed; its pending work waits for free resources") as refused:
        snapshot.why("inner")
    assert not isinstance(refused.value, Absent)


@pytest.mark.parametrize(("name", "called"), [("", "5e5e5e5e5e5e"), ("gang", "gang")])
def test_sentences_have_the_name_of_a_group_or_its_short_id(name: str, called: str) -> None:
    engine, id = Engine(), "5e" * 28
    group = Group(id, ((Ask.of(f"{id}-1", {"CPU": 1}),),))
    engine.apply(NodeJoined(Node.of("n", {"CPU": 1})), GroupSubmitted(group), AskSubmitted(Ask.of("inner", {"CPU": 1})))
    engine.decide()
    snapshot = Snapshot(engine, 0.0, {id: Known(name=name), "inner": Known(inside=id)})
    with pytest.raises(Invalid, match=f"^group {called} is placed"):
        snapshot.why("inner")
    with pytest.raises(Invalid, match=f"^'{called}' is a group"):
        snapshot.one(id)
    with pytest.raises(Invalid, match=r"^there is no group '4d4d4d4d4d4d', so work"):
        snapshot.why_inside("4d" * 28)


def test_an_undo_names_a_node_that_is_gone_by_its_short_id() -> None:
    state = {"labels": {}, "taints": {}, "draining": False}
    entry = Entry(7, 0.0, "ann", "", "cli", "", "drain", "5e" * 28, state, {**state, "draining": True}, "")
    with pytest.raises(Conflict, match=r"^entry 7 cannot be undone: node 5e5e5e5e5e5e is gone$"):
        inverse(entry, {}, 0.0)
