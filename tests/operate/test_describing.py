"""A node, a piece of work and a group, each with everything that is known about it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import cast

import pytest

from stead.errors import Invalid
from stead.language.taints import Taint
from stead.operate.audit import Author
from stead.operate.changes import Absent, Conflict, NodeChange
from stead.operate.describing import describe, description_json, find_group, uses_of
from stead.operate.desk import Desk
from stead.operate.snapshot import Query
from stead.operate.views import GroupView, Page
from stead.sim.desk import SimDesk
from tests.serving import BEGAN, simulated

CLUSTER = """
title: described
until: 60s
nodes:
- {id: node-1, name: big, capacity: {CPU: 4, GPU: 2}, labels: {zone: a}}
- {id: node-2, capacity: {CPU: 1}}
work:
- {id: train, resources: {GPU: 0.5, CPU: 1}, owner: blue}
- {id: web, count: 3, resources: {CPU: 8}}
groups:
- {id: ring, bundles: [{CPU: 1}, {CPU: 1}], strategy: PACK}
- {id: huge-1, bundles: [{CPU: 9}, {CPU: 9}]}
- {id: huge-2, bundles: [{CPU: 9}]}
"""
ANN = Author("ann")


@pytest.fixture
def desk() -> Iterator[SimDesk]:
    with simulated(CLUSTER) as desk:
        yield desk


@pytest.mark.parametrize("said", ["node-1", "big"])
def test_a_node_by_id_or_name(desk: SimDesk, said: str) -> None:
    found = describe(desk, "node", said)
    assert (found.kind, found.id, found.name, found.state) == ("node", "node-1", "big", "ready")
    assert (found.since, found.at, found.age) == (BEGAN, BEGAN + 60, 60.0)
    assert [(use.resource, use.used, use.total, use.percent) for use in found.uses] == [
        ("CPU", 3.0, 4.0, 75.0),
        ("GPU", 0.5, 2.0, 25.0),
    ]
    assert [(each.resource, each.amount, each.work) for each in found.shares] == [("GPU", 0.5, "train")]
    assert {view.id for view in found.work} == {"train", "ring-1", "ring-2"}
    assert found.work_total == 3
    assert [event.kind for event in found.events] == ["joined"]


def test_a_changed_node_shows_who_changed_it(desk: SimDesk) -> None:
    desk.change(NodeChange("node-1", (Taint("team", "blue"),), owner="ml", for_s=60.0), ANN)
    desk.change([NodeChange("node-1", draining=True), NodeChange("node-2", draining=True)], ANN)
    desk.change(NodeChange("node-2", draining=False), ANN)
    found = describe(desk, "node", "node-1")
    assert [(entry.number, entry.action) for entry in found.changes] == [(1, "taint"), (2, "drain")]
    assert found.state == "draining"
    assert [event.kind for event in found.events] == ["joined", "tainted", "drained"]
    told = description_json(found)["subject"]["taints"][0]
    assert (told["owner"], told["since"], told["until"]) == ("ml", BEGAN + 60, BEGAN + 120)


def test_running_work_shows_its_node_and_why(desk: SimDesk) -> None:
    found = describe(desk, "work", "train")
    assert (found.state, [view.name for view in found.nodes]) == ("running", ["big"])
    assert str(found.why).startswith("Placed on big")
    assert [event.kind for event in found.events] == ["submitted", "placed"]
    assert (found.work, found.changes, found.uses) == ((), (), ())


def test_pending_work_shows_why_and_its_events(desk: SimDesk) -> None:
    found = describe(desk, "work", "web-2")
    assert (found.state, found.nodes) == ("waiting", ())
    assert "too small for 8 CPU" in str(found.why)
    assert found.events[-1].subject == "web-1..3"


def test_a_group_shows_its_members_and_their_nodes(desk: SimDesk) -> None:
    found = describe(desk, "group", "ring")
    assert (found.state, [view.id for view in found.nodes]) == ("placed", ["node-1"])
    assert [(view.id, view.node) for view in found.work] == [("ring-1", "node-1"), ("ring-2", "node-1")]
    waiting = describe(desk, "group", "huge-1")
    assert (waiting.state, waiting.nodes) == ("waiting", ())
    assert "too small for 9 CPU" in str(waiting.why)
    member = describe(desk, "work", "huge-1-1")
    assert str(member.why) == str(waiting.why)  # it is pending with its group


@pytest.mark.parametrize(
    ("kind", "said", "error", "sentence"),
    [
        ("node", "node-9", Absent, "there is no node 'node-9' in this cluster"),
        ("work", "nobody", Absent, "there is no work 'nobody' in this cluster; for example, there is "),
        ("work", "ring", Invalid, "'ring' is a group"),
        ("group", "rign", Absent, "there is no group 'rign' in this cluster (did you mean 'ring'?)"),
    ],
)
def test_an_unknown_name_is_refused(desk: SimDesk, kind: str, said: str, error: type[Invalid], sentence: str) -> None:
    with pytest.raises(error) as caught:
        describe(desk, kind, said)
    assert str(caught.value).startswith(sentence)


def test_a_unique_beginning_of_a_groups_id_is_enough() -> None:
    with simulated(CLUSTER.replace("huge-", "longname-")) as desk:
        assert describe(desk, "group", "longname-1").id == "longname-1"
        with pytest.raises(Conflict, match="'longname' matches 2 groups: longname-1, longname-2; give the id of one"):
            describe(desk, "group", "longname")


def test_only_the_latest_events_and_changes_are_shown(desk: SimDesk) -> None:
    for number in range(25):
        desk.change(NodeChange("node-1", (Taint("k", str(number)),)), ANN)
    found = describe(desk, "node", "node-1")
    assert [entry.number for entry in found.changes] == list(range(6, 26))
    assert len(found.events) == 20
    assert found.since == BEGAN  # it joined before the events that are shown


def test_a_resource_with_a_total_of_zero_is_not_used(desk: SimDesk) -> None:
    assert [use.resource for use in uses_of(desk.node("node-2"))] == ["CPU"]


class OneAtATime:
    """A desk whose pages have one group."""

    def __init__(self, desk: SimDesk) -> None:
        self._desk = desk

    def groups(self, query: Query) -> Page[GroupView]:
        return self._desk.groups(replace(query, limit=1))


def test_a_group_is_found_by_the_beginning_of_its_id_on_any_page() -> None:
    groups = ", ".join(f"{{id: {id}, bundles: [{{CPU: 1}}]}}" for id in ("abcdef12", "abcdef34", "fedcba"))
    with simulated(f"nodes: []\ngroups: [{groups}]") as desk:
        paged = cast(Desk, OneAtATime(desk))
        assert find_group(paged, "abcdef3").id == "abcdef34"
        with pytest.raises(Conflict, match="'abcdef' matches 2 groups: abcdef12, abcdef34; give the id of one"):
            find_group(paged, "abcdef")
