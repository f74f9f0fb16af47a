"""What a what-if distinguishes: work that stays pending, new work, and new nodes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from stead.language.labels import Labels
from stead.language.taints import Effect, Taint
from stead.operate.audit import Author
from stead.operate.changes import NodeChange, Removal
from stead.service.pages.wording import mood, outcome
from stead.sim.desk import SimDesk
from tests.serving import simulated

CLUSTER = """
title: small
nodes: [{id: n-1, capacity: {CPU: 4}}]
work:
- {id: runs, resources: {CPU: 2}}
- {id: large, resources: {CPU: 8}}
groups:
- {id: gang, bundles: [{CPU: 6}, {CPU: 6}]}
"""


@pytest.fixture
def desk() -> Iterator[SimDesk]:
    with simulated(CLUSTER) as desk:
        yield desk


def test_new_pending_work_is_distinguished_from_work_that_stays_pending(desk: SimDesk) -> None:
    found = desk.what_if({"work": [{"id": "more", "count": 3, "resources": {"CPU": 2}}]})
    assert [fate.ids for fate in found.placed] == [("more-1",)]
    assert [fate.ids for fate in found.unplaced] == [("more-2", "more-3")]
    assert sorted(id for fate in found.waiting for id in fate.ids) == ["gang-1", "gang-2", "large"]


def test_the_headline_counts_new_pending_work_as_a_warning(desk: SimDesk) -> None:
    found = desk.what_if({"work": [{"id": "more", "count": 3, "resources": {"CPU": 2}}]})
    assert outcome(found) == "1 piece of work would start; 2 are new and would be pending"
    assert mood(found) == "warn"


def test_a_new_gang_that_does_not_fit_is_new(desk: SimDesk) -> None:
    found = desk.what_if({"groups": [{"id": "ring", "bundles": [{"CPU": 3}, {"CPU": 3}]}]})
    assert sorted(id for fate in found.unplaced for id in fate.ids) == ["ring-1", "ring-2"]


def test_work_whose_request_a_suggestion_relaxes_is_not_new(desk: SimDesk) -> None:
    found = desk.what_if({"changes": [{"suggested": "large"}]})
    assert [fate.ids for fate in found.placed] == [("large",)]
    assert found.unplaced == ()
    assert mood(found) == "good"


def test_added_nodes_are_listed(desk: SimDesk) -> None:
    found = desk.what_if({"changes": [{"join": {"id": "big", "count": 2, "capacity": {"CPU": 16}}}]})
    assert found.added == ("big-1", "big-2")
    assert outcome(found) == "3 pieces of work would start"


PAIR = """
nodes: [{id: a, capacity: {CPU: 1}, taints: 'old=yes', labels: {disk: ssd}}, {id: b, capacity: {CPU: 1}}]
work: [{id: w, resources: {CPU: 1}}, {id: next, resources: {CPU: 1}}, {id: ssd, resources: {CPU: 1}, selector: disk}]
"""

SAME: list[tuple[dict[str, Any], NodeChange]] = [
    ({"undrain": "b"}, NodeChange("b", draining=False)),
    ({"drain": "a"}, NodeChange("a", draining=True)),
    ({"drain": "a", "evict": True}, NodeChange("a", draining=True, evict=True)),
    ({"taint": "a", "taints": "k=v:NoExecute"}, NodeChange("a", (Taint("k", "v", Effect.NO_EXECUTE),))),
    ({"untaint": "a", "key": "old"}, NodeChange("a", untaints=(Removal("old"),))),
    ({"label": "b", "labels": {"disk": "ssd"}}, NodeChange("b", labels=Labels({"disk": "ssd"}))),
]


@pytest.mark.parametrize(("written", "change"), SAME, ids=[" ".join(written) for written, _ in SAME])
def test_a_what_if_shows_what_the_change_itself_would_do(written: dict[str, Any], change: NodeChange) -> None:
    with simulated(PAIR) as desk:
        desk.change(NodeChange("b", draining=True, evict=True), Author("ann"))
        assert desk.what_if({"changes": [written]}) == desk.blast(change)


def test_uncordoning_in_a_what_if_also_removes_the_taint_of_a_drain_that_evicts() -> None:
    with simulated("nodes: [{id: a, capacity: {CPU: 1}}]\nwork: [{id: w, resources: {CPU: 1}}]") as desk:
        desk.change(NodeChange("a", draining=True, evict=True), Author("ann"))
        assert [fate.ids for fate in desk.what_if({"changes": [{"undrain": "a"}]}).placed] == [("w",)]
        assert [fate.ids for fate in desk.what_if({"changes": [{"suggested": "w"}]}).placed] == [("w",)]
