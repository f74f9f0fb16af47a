"""The smallest change for pending work, tried: it does what the explanation says."""

from __future__ import annotations

import pytest

from stead.errors import Invalid
from stead.operate.what_if import Difference
from stead.sim.desk import SimDesk
from tests.serving import simulated

NODES = """
nodes:
  - {id: cpu, count: 2, capacity: {CPU: 4}, labels: {disk: ssd}}
  - {id: gpu, capacity: {CPU: 4, GPU: 1}, taints: gpu=true}
  - {id: old, capacity: {CPU: 4, TPU: 1}, labels: {disk: tape}, draining: true}
"""
WORK = f"""{NODES}
work:
  - {{id: web, count: 2, resources: {{CPU: 3}}, selector: disk = ssd}}
"""
ALONE = {  # each is pending for another reason: the suggestion, and what it would start
    "{id: one, resources: {GPU: 1}}": ("Tolerating gpu=true", {"one"}),
    "{id: one, resources: {CPU: 1}, selector: disk = hdd}": ("Allowing disk=ssd", {"one"}),
    "{id: one, resources: {CPU: 2}, selector: disk = ssd}": ("Freeing 1 CPU on cpu-1", {"one"}),
    "{id: one, resources: {CPU: 6}, selector: disk = ssd}": ("Adding 5 CPU to cpu-1", {"one"}),
    "{id: one, resources: {CPU: 1}, apart: {selector: not x, topology: disk}}": ("", {"one"}),
}


def tried(desk: SimDesk, id: str) -> Difference:
    return desk.what_if({"changes": [{"suggested": id}]})


def started(found: Difference) -> set[str]:
    return {id for fate in found.placed for id in fate.ids}


@pytest.mark.parametrize("work", ALONE)
def test_the_suggested_change_places_the_work(work: str) -> None:
    said, expected = ALONE[work]
    with simulated(f"{WORK}  - {work}\n") as desk:
        assert said in str(desk.why("one"))
        found = tried(desk, "one")
        assert started(found) == expected
        assert not found.harms
        assert desk.one("one").state == "waiting", "nothing is changed"


def test_a_drained_node_is_uncordoned() -> None:
    work = "{id: one, resources: {TPU: 1}, selector: disk = tape}"
    with simulated(f"{WORK}  - {work}\n") as desk:
        assert "Uncordoning old" in str(desk.why("one"))
        assert started(tried(desk, "one")) == {"one"}


def test_all_members_of_a_group_request_less() -> None:
    bundles = "bundles: [{resources: {CPU: 1}, selector: disk = hdd, count: 2}]"
    with simulated(f"{WORK}groups: [{{id: pair, {bundles}}}]") as desk:
        assert "Allowing disk=ssd" in str(desk.why("pair"))
        assert started(tried(desk, "pair")) == {"pair-1", "pair-2"}


@pytest.mark.parametrize(
    ("id", "said"),
    [
        ("web-1", "changes[0].suggested: there is nothing to suggest for 'web-1': it is already placed"),
        ("wide", "changes[0].suggested: there is nothing to suggest for 'wide': it is pending, but no small change"),
        ("nobody", "changes[0].suggested: "),
    ],
)
def test_work_without_a_smallest_change_is_refused(id: str, said: str) -> None:
    wide = "groups: [{id: wide, bundles: [{resources: {CPU: 4}, count: 2}], tolerations: all}]"
    with simulated(f"{WORK.replace('gpu, capacity: {CPU: 4', 'gpu, capacity: {CPU: 1')}{wide}") as desk:
        with pytest.raises(Invalid) as refused:
            tried(desk, id)
        assert str(refused.value).startswith(said)


def test_it_can_be_combined_with_other_changes_but_not_in_one_row() -> None:
    work = "{id: one, resources: {CPU: 1}, selector: disk = hdd}"
    with simulated(f"{WORK}  - {work}\n") as desk:
        both = desk.what_if({"changes": [{"suggested": "one"}, {"leave": "cpu-1"}]})
        assert "one" in started(both) and both.nodes_after == 3
        with pytest.raises(Invalid, match="taint"):
            desk.what_if({"changes": [{"suggested": "one", "taint": "cpu-1"}]})
