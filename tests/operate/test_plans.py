"""Plans of a cluster: the kinds of nodes to choose from, and the plan as plain values."""

from __future__ import annotations

from typing import Any

import pytest

from stead.errors import Invalid
from stead.operate.plans import PlanView, kinds_of, plan_json, plan_of
from tests.serving import simulated

NODES = """
nodes:
- {id: cpu, count: 3, capacity: {CPU: 4}, labels: {zone: a}}
- {id: other, capacity: {CPU: 4}, labels: {zone: b}, taints: "team=blue"}
- {id: gpu-1, capacity: {CPU: 4, GPU: 1}, labels: {zone: a, host: gpu-1}, taints: "gpu_node=true"}
- {id: gpu-2, capacity: {CPU: 4, GPU: 1}, labels: {zone: a, host: gpu-2}, taints: ["gpu_node=true", "team=blue"]}
"""
WORK = """
work:
- {id: web, count: 14, resources: {CPU: 1}, selector: zone = a}
- {id: train, count: 2, resources: {GPU: 1}, tolerations: gpu_node=true}
- {id: more, resources: {GPU: 1}, tolerations: gpu_node=true}
- {id: huge, resources: {CPU: 64}}
"""


def planned(written: Any = None, scenario: str = NODES + WORK) -> PlanView:
    with simulated(scenario) as desk:
        found = desk.plan(written)
    assert plan_of(plan_json(found)) == found
    return found


def test_nodes_with_equal_resources_and_labels_are_of_one_kind() -> None:
    with simulated(NODES) as desk:
        kinds = {kind.name: kind for kind in kinds_of(desk.snapshot())}
    assert list(kinds) == ["cpu-1", "other", "gpu-1"]
    assert kinds["gpu-1"].own_keys == ("host",)
    assert dict(kinds["gpu-1"].labels) == {"zone": "a"}


def test_a_kind_has_the_taints_that_all_of_its_nodes_have() -> None:
    with simulated(NODES) as desk:
        kinds = {kind.name: kind for kind in kinds_of(desk.snapshot())}
    assert [str(taint) for taint in kinds["gpu-1"].taints] == ["gpu_node=true"]
    assert [str(taint) for taint in kinds["other"].taints] == ["team=blue"]


def test_a_plan_with_the_kinds_of_the_cluster() -> None:
    found = planned()
    assert [(each.name, each.is_like) for each in found.new_nodes] == [("cpu-1", True), ("gpu-1", True)]
    assert [(each.ids, each.nearest, each.why) for each in found.pending] == [
        (("huge",), "cpu-1", "too small for 64 CPU")
    ]


def test_a_plan_with_kinds_from_a_file() -> None:
    kind = {"id": "large", "capacity": {"CPU": 80, "GPU": 4}, "labels": {"zone": "a"}, "price": 9, "max": 5}
    found = planned({"nodes": [kind]})
    (new,) = found.new_nodes
    assert (new.name, new.count, new.is_like, new.at_limit) == ("large", 1, False, False)
    assert (found.price, found.pending) == (9.0, ())


def test_what_is_placed_by_the_next_decision_needs_no_new_node() -> None:
    assert planned(scenario=NODES + "work:\n- {id: web, resources: {CPU: 1}}") == PlanView((), (), (), 0.0)


WRONG = {
    "no kinds": ({"nodes": []}, r"there is no kind of node; a good file is nodes: \[\{id: cpu"),
    "an unknown field": ({"kinds": []}, r"kinds: is not a known field"),
    "no id": ({"nodes": [{"capacity": {"CPU": 1}}]}, r"nodes\[0\]\.id: is missing"),
    "a label of stead": ({"nodes": [{"id": "a", "labels": {"node_id": "x"}}]}, r"nodes\[0\]\.labels: label 'node_id'"),
    "a price in words": (
        {"nodes": [{"id": "a", "price": "cheap"}]},
        r"nodes\[0\]\.price: must be a number such as 2\.5",
    ),
    "a negative price": ({"nodes": [{"id": "a", "price": -1}]}, r"must be a number such as 2\.5, not -1"),
    "too many": ({"nodes": [{"id": "a", "max": 500_000}]}, r"nodes\[0\]\.max: must be from 1 to 100000, not 500000"),
    "one kind twice": ({"nodes": [{"id": "a"}, {"id": "a"}]}, r"the id 'a' is already used by nodes\[0\]\.id"),
    "half a device": ({"nodes": [{"id": "a", "capacity": {"GPU": 0.5}}]}, r"nodes\[0\]\.capacity: .*0\.5 GPU"),
}


@pytest.mark.parametrize(("written", "sentence"), WRONG.values(), ids=WRONG.keys())
def test_bad_kinds_are_refused_in_one_sentence(written: Any, sentence: str) -> None:
    with pytest.raises(Invalid, match=sentence):
        planned(written)


def test_without_nodes_the_kinds_must_be_described() -> None:
    with pytest.raises(Invalid, match="describe kinds of nodes"):
        planned(scenario="nodes: []\nwork:\n- {id: web, resources: {CPU: 1}}")
