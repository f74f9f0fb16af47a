"""What a what-if distinguishes: work that stays pending, new work, and new nodes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

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
