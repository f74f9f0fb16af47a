"""Plans of a cluster: the kinds of nodes to choose from, and the plan as plain values."""

from __future__ import annotations

from typing import Any

import pytest

from stead.engine.facts import NodeJoined
from stead.errors import Invalid
from stead.language.labels import Labels
from stead.language.nodes import Node, NodeTemplate
from stead.language.resources import Resources
from stead.language.taints import Effect, Taint
from stead.operate.audit import Author
from stead.operate.changes import NodeChange
from stead.operate.plans import (
    NODE_GROUP,
    Catalog,
    PlanView,
    described,
    kinds_of,
    limits_json,
    limits_of,
    plan_json,
    plan_of,
    plan_view,
    read_catalog,
)
from stead.planner.plans import PRICE, Launch, Limits, Plan, Quota
from tests.autoscaled import CPU, GPU, report_scaling
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


def test_everything_that_the_nearest_kind_lacks_is_named() -> None:
    """Also what a node lacks beside the first reason."""
    kind = {"id": "gpu", "capacity": {"CPU": 4}, "taints": "gpu_node=true"}
    (found,) = planned({"nodes": [kind]}, "nodes: []\nwork: [{id: huge, resources: {CPU: 64}}]").pending
    assert (found.nearest, found.why) == ("gpu", "tainted gpu_node=true; too small for 64 CPU")


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
    "a price that no computer can add": (
        {"nodes": [{"id": "a", "price": 10**400}]},
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


SMALL = {"id": "small", "capacity": {"CPU": 4}, "labels": {"zone": "b"}, "price": 1}
WEB = {"work": [{"id": "more-web", "count": 3, "resources": {"CPU": 4}, "selector": "zone = b"}]}
FULL = """
nodes: [{id: first, capacity: {CPU: 4}, labels: {zone: b, ray.io/node-group: small}}]
work: [{id: there, resources: {CPU: 4}}]
"""


class TestLimitsInADocument:
    @pytest.mark.parametrize(
        ("limits", "count", "limit", "why"),
        [
            ({}, 3, "", ""),
            ({"nodes": [{**SMALL, "max": 2}]}, 1, "small", "the maximum number of such nodes is reached"),
            (
                {"quotas": [{"name": "zone-b", "labels": {"zone": "b"}, "nodes": 3}]},
                2,
                "zone-b",
                "the limit zone-b is reached",
            ),
            ({"quotas": [{"name": "cpus", "resources": {"CPU": 8}}]}, 1, "cpus", "the limit cpus is reached"),
            ({"price_max": 2}, 1, PRICE, "the maximum price is reached"),
        ],
        ids=["none", "the kind", "nodes of a quota", "resources of a quota", "the price"],
    )
    def test_a_node_counts_if_its_label_names_the_kind(
        self, limits: dict[str, Any], count: int, limit: str, why: str
    ) -> None:
        found = planned({"nodes": [SMALL], **limits, **WEB}, FULL)
        assert [(each.name, each.count) for each in found.new_nodes] == [("small", count)]
        assert [(each.limit, each.why) for each in found.pending] == ([(limit, why)] if limit else [])
        assert found.limits == ((limit,) if limit else ())

    def test_the_minimum_of_a_kind_is_launched_for_nothing(self) -> None:
        found = planned({"nodes": [{**SMALL, "min": 3}]}, FULL)
        assert [(each.count, each.serves) for each in found.new_nodes] == [(2, ())]

    def test_kinds_and_limits_come_back_from_their_document(self) -> None:
        taints = (Taint("gpu", "true"), Taint("spot", "", Effect.PREFER_NO_SCHEDULE))
        capacity = Resources.of(CPU="500m", GPU=2, memory=2**33)
        kinds = (
            NodeTemplate("a", capacity, Labels({"zone": "a"}), taints, 1, 20_000, 0.25),
            NodeTemplate("b", count_max=1),
        )
        quotas = (
            Quota("gpus", Labels({"zone": "a"}), resources_max=Resources.of(GPU=8, CPU="1500m")),
            Quota("all", nodes_max=5, only_launched=True),
        )
        limits = Limits(quotas, 12.5)
        assert read_catalog(described(kinds, limits)) == Catalog(kinds, limits)
        assert limits_of(limits_json(limits)) == limits

    @pytest.mark.parametrize(
        ("written", "sentence"),
        [
            ({"quotas": [{"name": "none"}]}, r"quotas\[0\]: limits nothing; give nodes: 10"),
            ({"quotas": [{"nodes": 3}]}, r"quotas\[0\]\.name: is missing"),
            ({"nodes": [{**SMALL, "min": 5, "max": 4}]}, r"nodes\[0\]\.min: must be from 0 to 4, not 5"),
            ({"price_max": "much"}, r"price_max: must be a number such as 2\.5"),
        ],
    )
    def test_a_bad_limit_is_refused_in_one_sentence(self, written: Any, sentence: str) -> None:
        with pytest.raises(Invalid, match=sentence):
            planned({"nodes": [SMALL], **written}, FULL)


class TestWorkThatIsNotSubmitted:
    def test_is_planned_for_beside_pending_work(self) -> None:
        found = planned({"nodes": [SMALL], **WEB}, FULL)
        assert found.new_nodes[0].serves == ("more-web-1", "more-web-2", "more-web-3")

    def test_needs_no_description_of_kinds(self) -> None:
        found = planned(WEB, FULL)
        assert [(each.name, each.count, each.is_like) for each in found.new_nodes] == [("first", 3, True)]

    def test_may_be_groups(self) -> None:
        group = {"id": "ring", "bundles": [{"CPU": 4}, {"CPU": 4}], "strategy": "STRICT_SPREAD"}
        found = planned({"groups": [group]}, FULL)
        assert [(each.count, len(each.serves)) for each in found.new_nodes] == [(2, 2)]

    def test_is_refused_under_the_id_of_other_work(self) -> None:
        with pytest.raises(Invalid, match=r"work\[0\]\.id: the id 'there' is already used"):
            planned({"work": [{"id": "there"}]}, FULL)


class TestWithAnAutoscaler:
    """Its nodes `cpu-1` and `cpu-2` run, a node of the kind `cpu` is coming, and the kind `gpu` rests."""

    CLUSTER = "nodes: [{id: cpu, count: 2, capacity: {CPU: 8, memory: 16Gi}, labels: {zone: a}}]"

    def planned(self, work: str, written: Any = None) -> PlanView:
        with simulated(f"{self.CLUSTER}\nwork: [{work}]") as desk:
            report_scaling(desk, CPU, GPU)
            return desk.plan(written)

    def test_its_kinds_are_used_and_nodes_that_are_coming_count(self) -> None:
        found = self.planned("{id: web, count: 5, resources: {CPU: 8}}")
        assert [(each.name, each.count, len(each.serves)) for each in found.coming] == [("cpu", 1, 1)]
        assert [(each.name, each.count, each.is_like) for each in found.new_nodes] == [("cpu", 2, False)]
        assert found.price == 3.0

    def test_a_node_that_has_joined_since_its_report_is_not_coming(self) -> None:
        with simulated(self.CLUSTER) as desk:
            report_scaling(desk, CPU, GPU)
            desk.change(NodeChange("cpu-1", labels=Labels({NODE_GROUP: "cpu"})), Author("test"))
            assert [each.count for each in desk.plan().coming] == [1]
            desk._apply([NodeJoined(Node.of("new", {"CPU": 8}, {NODE_GROUP: "cpu"}))])
            desk._snapshot = None
            assert desk.plan().coming == ()

    def test_its_limits_hold(self) -> None:
        found = self.planned("{id: web, count: 50, resources: {CPU: 8}}")
        assert [(each.name, each.count, each.at_limit) for each in found.new_nodes] == [("cpu", 7, True)]
        assert [each.limit for each in found.pending] == ["cpu"]

    def test_a_kind_that_rests_is_not_launched_and_the_plan_says_why(self) -> None:
        found = self.planned("{id: train, resources: {GPU: 1}, tolerations: gpu_node=true}")
        assert found.new_nodes == ()
        assert [(each.nearest, each.why) for each in found.pending] == [
            ("gpu", "it rests: the provider has no more such nodes")
        ]
        assert found.limits == ()

    def test_kinds_in_a_document_are_used_instead(self) -> None:
        kind = {"id": "huge", "capacity": {"CPU": 64}}
        found = self.planned("{id: web, count: 5, resources: {CPU: 8}}", {"nodes": [kind]})
        assert [(each.name, each.count) for each in found.new_nodes] == [("huge", 1)]
        assert found.coming == ()

    def test_a_what_if_can_add_nodes_of_its_kinds(self) -> None:
        with simulated(f"{self.CLUSTER}\nwork: [{{id: train, resources: {{GPU: 1}}, tolerations: gpu_node}}]") as desk:
            report_scaling(desk, CPU, GPU)
            found = desk.what_if({"changes": [{"join": {"kind": "gpu", "count": 2}}]})
            assert found.added == ("gpu-1", "gpu-2")
            assert [(fate.ids, fate.after) for fate in found.placed] == [(("train",), "gpu-1")]
            with pytest.raises(Invalid, match=r"join\.kind: there is no kind 'gpux' \(did you mean 'gpu'\?\)"):
                desk.what_if({"changes": [{"join": {"kind": "gpux"}}]})

    def test_without_an_autoscaler_there_is_no_kind(self) -> None:
        with simulated(self.CLUSTER) as desk, pytest.raises(Invalid, match="there is no autoscaler and so no kind"):
            desk.what_if({"changes": [{"join": {"kind": "gpu"}}]})


def test_a_kind_that_is_launched_in_several_waves_is_listed_once() -> None:
    kind = NodeTemplate("cpu", Resources.of(CPU=1), price=2)
    found = plan_view(Plan((), (Launch(kind, 2, ("a", "b")), Launch(kind, 1, ("c",), 1)), ()), is_like=False)
    assert [(each.name, each.count, each.serves) for each in found.new_nodes] == [("cpu", 3, ("a", "b", "c"))]
    assert found.price == 6
