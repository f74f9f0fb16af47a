"""One change of several nodes: one preview, one audit entry, one undo; made on all of them or on none."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from stead.errors import Invalid
from stead.language.labels import Labels
from stead.language.taints import Effect, Taint
from stead.operate.audit import Author
from stead.operate.changes import Absent, Conflict, NodeChange, Removal
from stead.operate.desk import carried_json
from stead.sim.desk import SimDesk
from tests.serving import simulated

CLUSTER = """
title: three
nodes:
- {id: a, capacity: {CPU: 1}, labels: {zone: x}}
- {id: b, capacity: {CPU: 1}, labels: {zone: x}}
- {id: c, capacity: {CPU: 1}, taints: old=yes}
work: [{id: one, resources: {CPU: 1}}, {id: two, resources: {CPU: 1}}]
"""
ANN = Author("ann")
BLUE = Taint("team", "blue")


@pytest.fixture
def desk() -> Iterator[SimDesk]:
    with simulated(CLUSTER) as desk:
        yield desk


def both(**given: object) -> list[NodeChange]:
    return [NodeChange(node, **given) for node in ("a", "b")]  # type: ignore[arg-type]  # fields of any kind


def taints(desk: SimDesk) -> dict[str, list[str]]:
    return {node: [str(taint) for taint in desk.node(node).taints] for node in "abc"}


def test_is_one_entry_of_the_audit_with_every_node_before_and_after(desk: SimDesk) -> None:
    carried = desk.change(both(taints=(BLUE,), owner="ml"), ANN)
    assert [view.id for view in carried.nodes] == ["a", "b"]
    (entry,) = desk.audit()
    assert (entry.title, entry.action, entry.changes) == ("2 nodes", "taint", "+team=blue:no-schedule")
    assert list(entry.states) == ["a", "b"]
    assert desk.verify() == 1


def test_is_undone_as_one(desk: SimDesk) -> None:
    before = taints(desk)
    number = desk.change(both(taints=(BLUE,)), ANN).entry.number
    assert taints(desk)["a"] == taints(desk)["b"] == ["team=blue"]
    undone = desk.undo(number, ANN)
    assert [view.id for view in undone.nodes] == ["a", "b"]
    assert taints(desk) == before


def test_a_change_that_fails_on_one_node_is_made_on_none(desk: SimDesk) -> None:
    desk.change(NodeChange("a", (BLUE,)), ANN)
    with pytest.raises(Absent, match="node b has no taint team"):
        desk.change(both(untaints=(Removal("team"),)), ANN)
    assert taints(desk)["a"] == ["team=blue"]
    assert len(desk.audit()) == 1


def test_cannot_be_undone_once_one_of_them_was_changed_again(desk: SimDesk) -> None:
    number = desk.change(both(labels=Labels({"disk": "ssd"})), ANN).entry.number
    desk.change(NodeChange("b", labels=Labels({"disk": "hdd"})), ANN)
    with pytest.raises(Conflict, match="disk of node b was changed since"):
        desk.undo(number, ANN)
    assert desk.node("a").labels["disk"] == "ssd"


def test_is_previewed_as_one_so_that_work_does_not_move_between_the_nodes(desk: SimDesk) -> None:
    evict = Taint("off", "", Effect.NO_EXECUTE)
    alone = desk.blast(NodeChange("a", (evict,)))
    together = desk.blast(*both(taints=(evict,)))
    assert sum(fate.count for fate in alone.stranded) == 1
    assert sum(fate.count for fate in together.stranded) == 2


def test_shows_the_name_of_one_node_or_the_number_of_several(desk: SimDesk) -> None:
    assert carried_json(desk.change(NodeChange("a", draining=True), ANN))["node"]["id"] == "a"
    told = carried_json(desk.change(both(draining=True), ANN))
    assert [node["id"] for node in told["nodes"]] == ["a", "b"]


@pytest.mark.parametrize("changes", [[], ()])
def test_of_no_node_is_refused(desk: SimDesk, changes: list[NodeChange]) -> None:
    with pytest.raises(Invalid, match="no node to change"):
        desk.change(changes, ANN)
