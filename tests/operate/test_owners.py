"""Owners of work by name, with what they use and wait for."""

from __future__ import annotations

import pickle

import pytest

from stead.engine.engine import Engine
from stead.engine.facts import AskSubmitted, GroupSubmitted, NodeJoined
from stead.language.asks import Ask, Group
from stead.language.nodes import Node
from stead.operate.changes import Absent, Conflict
from stead.operate.snapshot import Known, KnownOwner, Query, Snapshot
from stead.operate.views import OwnerView


@pytest.fixture
def snapshot() -> Snapshot:
    """Two jobs with one name, one with another name, and a team with only an id."""
    engine = Engine()
    engine.apply(
        NodeJoined(Node.of("n", {"CPU": 4, "GPU": 1})),
        AskSubmitted(Ask.of("a", {"CPU": 1})),
        AskSubmitted(Ask.of("b", {"CPU": 0.5, "GPU": 1})),
        AskSubmitted(Ask.of("c", {"CPU": 8})),
        AskSubmitted(Ask.of("d", {"CPU": 9})),
        AskSubmitted(Ask.of("e", {"CPU": 1}, owner="team-blue")),
        GroupSubmitted(Group("g", ((Ask.of("g-1", {"CPU": 20}), Ask.of("g-2", {"CPU": 20})),))),
        AskSubmitted(Ask.of("nobody's", {"CPU": 0.1})),
    )
    engine.decide()
    known = {
        "a": Known("task", owner="01"),
        "b": Known("task", owner="01"),
        "c": Known("task", owner="01", count=3),
        "d": Known("actor", owner="02"),
        "g": Known("group", owner="03"),
    }
    owners = {
        "01": KnownOwner("train.py", "running", 5.0),
        "02": KnownOwner("tune.py", "ended", 6.0),
        "03": KnownOwner("tune.py", "running", 7.0),
    }
    return Snapshot(engine, 10.0, known, owners=owners, links={"job": "http://127.0.0.1:8265/#/jobs/{id}"})


def test_owners_with_the_most_work_come_first(snapshot: Snapshot) -> None:
    found = snapshot.owners().items
    assert [(each.id, each.running, each.waiting, each.groups) for each in found] == [
        ("01", 2, 3, 0),
        ("03", 0, 2, 1),
        ("team-blue", 1, 0, 0),
        ("02", 0, 1, 0),
    ]


def test_an_owner_shows_what_it_uses_and_requests(snapshot: Snapshot) -> None:
    uses, asks_for = {"CPU": 1.5, "GPU": 1.0}, {"CPU": 24.0}
    assert snapshot.owner("train.py") == OwnerView("01", "job", "train.py", "running", 5.0, 2, 3, 0, uses, asks_for)


def test_an_unknown_owner_has_only_its_id(snapshot: Snapshot) -> None:
    found = snapshot.owner("team-blue")
    assert (found.kind, found.name, found.title, found.state, found.since) == ("owner", "", "team-blue", "", None)


def test_by_conditions(snapshot: Snapshot) -> None:
    assert [each.id for each in snapshot.owners(Query(("kind=job", "state!=ended"))).items] == ["01", "03"]


def test_a_name_of_two_owners_is_refused_with_the_ids(snapshot: Snapshot) -> None:
    with pytest.raises(Conflict, match=r"'tune.py' matches 2 owners: 03, 02; give the id of one"):
        snapshot.owner("tune.py")


def test_an_unknown_owner_is_refused_with_a_similar_name(snapshot: Snapshot) -> None:
    with pytest.raises(
        Absent, match=r"there is no owner 'trian.py' with work in this cluster .did you mean 'train.py'"
    ):
        snapshot.owner("trian.py")


def test_work_and_groups_show_the_name_of_their_owner(snapshot: Snapshot) -> None:
    assert [(each.owner, each.owner_title) for each in (snapshot.one("a"), snapshot.one("e"), snapshot.one("g-1"))] == [
        ("01", "train.py"),
        ("team-blue", "team-blue"),
        ("03", "tune.py"),
    ]
    assert snapshot.groups().items[0].owner_title == "tune.py"


@pytest.mark.parametrize(
    ("condition", "ids"),
    [
        ("owner=tune.py", ["d", "g-1", "g-2"]),
        ("owner=02", ["d"]),
        ("owner!=tune.py", ["c", "a", "e", "b", "nobody's"]),
    ],
)
def test_work_is_found_by_the_name_of_its_owner_too(snapshot: Snapshot, condition: str, ids: list[str]) -> None:
    assert [each.id for each in snapshot.work(Query((condition,))).items] == ids


def test_groups_too(snapshot: Snapshot) -> None:
    assert [each.id for each in snapshot.groups(Query(("owner=tune.py",))).items] == ["g"]
    assert snapshot.groups(Query(("owner=train.py",))).items == ()


def test_a_pickled_snapshot_keeps_them(snapshot: Snapshot) -> None:
    arrived = pickle.loads(pickle.dumps(snapshot))
    assert arrived.owners() == snapshot.owners()
    assert arrived.summary.links == {"job": "http://127.0.0.1:8265/#/jobs/{id}"}
