"""Node affinity on a real cluster: expressions in every spelling, why work is pending, labels of running nodes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import ray
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

import stead
from stead import (
    LabelMatchExpression,
    LabelMatchOperator,
    NodeAffinity,
    NodeAffinitySchedulingStrategy,
    Requirement,
    Selector,
    label_does_not_exist,
    label_exist,
    label_exists,
    label_in,
    label_not_in,
    node_affinity,
)
from stead.ray.local.local_cluster import LocalCluster, NodeOptions
from tests.on_ray.conftest import ClusterOf
from tests.on_ray.waiting import wait_for
from tests.on_ray.workload import (
    NOBODY,
    SOON_S,
    Resident,
    attached,
    indexes,
    labelled,
    landed,
    occupied,
    pinned,
    resident,
    wait_for_every_cpu,
    waits,
    where,
)

A100, P100 = {"gpu_type": "A100", "zone": "a"}, {"gpu_type": "P100", "zone": "b"}
pytestmark = pytest.mark.long

NODES: list[dict[str, Any]] = [
    {"num_cpus": 2},
    {"num_cpus": 2, "labels": A100, "name": "first"},
    {"num_cpus": 2, "labels": P100, "name": "second", "resources": {"slot": 2}},
]
"""Unrestricted work runs on the head, where the driver is: the rules must keep work away from node 0."""


@pytest.fixture(scope="module")
def cluster(cluster_of: ClusterOf) -> Iterator[LocalCluster]:
    with attached(cluster_of(NODES)) as started:
        yield started


def test_work_without_a_rule_stays_with_the_driver(cluster: LocalCluster) -> None:
    assert landed(cluster, 1) == {0}


class TestExpressions:
    @pytest.mark.parametrize(
        ("expressions", "allowed"),
        [
            (label_in("gpu_type", ["A100"]), {1}),
            (label_in("gpu_type", "P100"), {2}),
            (label_in("gpu_type", ["A100", "P100"]), {1, 2}),
            (label_not_in("gpu_type", ["A100"]), {0, 2}),
            (label_not_in("zone", ["b"]), {0, 1}),
            (label_exists("gpu_type"), {1, 2}),
            (label_exist("zone"), {1, 2}),
            (label_does_not_exist("gpu_type"), {0}),
            ([label_exists("gpu_type"), label_not_in("zone", ["a"])], {2}),
            ([label_in("zone", ["a", "b"]), label_in("gpu_type", ["A100"])], {1}),
        ],
        ids=str,
    )
    def test_a_task_runs_only_where_every_expression_holds(
        self, cluster: LocalCluster, expressions: Any, allowed: set[int]
    ) -> None:
        assert landed(cluster, scheduling_strategy=node_affinity(expressions)) <= allowed

    @pytest.mark.parametrize(
        ("preferred", "chosen"),
        [
            ([label_in("zone", ["b"], is_soft=True)], {2}),
            ([label_in("zone", ["a"], is_soft=True), label_exists("gpu_type")], {1}),
            ([label_in("zone", ["mars"], is_soft=True), label_in("zone", ["b"])], {2}),
            ([label_not_in("zone", ["a"], is_soft=True), label_exists("zone", is_soft=True)], {2}),
        ],
        ids=str,
    )
    def test_a_soft_expression_is_preferred_while_there_is_room(
        self, cluster: LocalCluster, preferred: Any, chosen: set[int]
    ) -> None:
        wait_for_every_cpu(cluster)
        assert landed(cluster, 1, scheduling_strategy=node_affinity(preferred)) == chosen

    def test_a_soft_expression_gives_way_when_its_nodes_are_full(self, cluster: LocalCluster) -> None:
        soft = node_affinity([label_in("zone", ["b"], is_soft=True), label_exists("zone")])
        with occupied(cluster.nodes[2].node_id, 2):
            assert landed(cluster, 1, scheduling_strategy=soft) == {1}

    def test_actors_follow_the_same_expressions(self, cluster: LocalCluster) -> None:
        hard = node_affinity(label_in("gpu_type", ["P100"]))
        soft = node_affinity([label_in("zone", ["a"], is_soft=True), label_exists("zone")])
        wait_for_every_cpu(cluster)
        with resident(scheduling_strategy=hard) as one, resident(scheduling_strategy=soft) as other:
            assert indexes(cluster, [one.where.remote()]) == {2}
            assert indexes(cluster, [other.where.remote()]) == {1}

    @pytest.mark.parametrize(
        ("expressions", "allowed"),
        [
            ([label_in("zone", ["a"]), label_in("gpu_type", ["P100"])], {1, 2}),
            ([label_in("zone", ["mars"]), label_in("gpu_type", ["P100"])], {2}),
            ([label_in("zone", ["a"]), label_in("zone", ["mars"]), label_exists("gpu_type", is_soft=True)], {1}),
        ],
        ids=["either", "one holds", "the soft one is no alternative"],
    )
    def test_with_or_semantics_one_hard_expression_is_enough(
        self, cluster: LocalCluster, expressions: Any, allowed: set[int]
    ) -> None:
        for strategy in (
            node_affinity(expressions, is_or_semantics=True),
            NodeAffinitySchedulingStrategy(expressions, is_or_semantics=True),
        ):
            assert landed(cluster, 2, scheduling_strategy=strategy) <= allowed

    def test_or_semantics_leave_soft_expressions_preferences(self, cluster: LocalCluster) -> None:
        either = [label_in("zone", ["a"]), label_in("zone", ["b"]), label_in("gpu_type", ["P100"], is_soft=True)]
        wait_for_every_cpu(cluster)
        assert landed(cluster, 1, scheduling_strategy=node_affinity(either, is_or_semantics=True)) == {2}


class TestSpellings:
    @pytest.mark.parametrize(
        "strategy",
        [
            NodeAffinity([("gpu_type", LabelMatchOperator.IN, ["P100"], False)]),
            NodeAffinitySchedulingStrategy([LabelMatchExpression("gpu_type", "in", ["P100"], False)]),
            NodeAffinitySchedulingStrategy(
                [
                    LabelMatchExpression("gpu_type", operator="NotIn", values=["A100"]),
                    LabelMatchExpression("gpu_type", operator="exists", soft=False),
                ]
            ),
            NodeAffinitySchedulingStrategy(
                [LabelMatchExpression("zone", match_operator=LabelMatchOperator.IN, values=["b"], is_soft=False)]
            ),
            node_affinity("gpu_type in [P100, T100]"),
            "zone == b and gpu_type",
            "gpu_type in [P100]",
        ],
        ids=range(7),
    )
    def test_every_spelling_leads_to_the_same_node(self, cluster: LocalCluster, strategy: Any) -> None:
        assert landed(cluster, 2, scheduling_strategy=strategy) == {2}

    @pytest.mark.parametrize("soft", [False, True])
    def test_the_old_strategy_is_unchanged(self, cluster: LocalCluster, soft: bool) -> None:
        node = cluster.nodes[2].node_id
        assert landed(cluster, 1, scheduling_strategy=pinned(node, soft)) == {2}
        assert landed(cluster, 1, scheduling_strategy=NodeAffinitySchedulingStrategy(node_id=node, soft=soft)) == {2}

    def test_identity_is_an_ordinary_label(self, cluster: LocalCluster) -> None:
        ids = [node.node_id for node in cluster.nodes]
        cases: list[tuple[Any, set[int]]] = [
            (label_in("node_id", [ids[2]]), {2}),
            (label_in("ray.io/node-id", [ids[1]]), {1}),
            (label_not_in("node_id", [ids[0], ids[2]]), {1}),
            (label_in("node_name", ["second"]), {2}),
            ([label_in("node_ip", [stead.nodes()[0].ip]), label_exists("node_name")], {1, 2}),
        ]
        for expressions, allowed in cases:
            assert landed(cluster, 2, scheduling_strategy=node_affinity(expressions)) <= allowed, expressions


class TestTogetherWithOtherOptions:
    def test_amounts_and_labels_must_both_match(self, cluster: LocalCluster) -> None:
        zoned = node_affinity(label_exists("zone"))
        assert landed(cluster, 2, num_cpus=0.5, resources={"slot": 1}, scheduling_strategy=zoned) == {2}
        both = where.options(resources={"slot": 1}, scheduling_strategy=node_affinity(label_in("zone", ["a"]))).remote()
        assert waits(both)
        ray.cancel(both)

    def test_spread_spreads_over_the_nodes_that_match(self, cluster: LocalCluster) -> None:
        """With new rules: the allowed nodes must be known before the first node is chosen."""
        spread = [node_affinity([label_exists("zone"), label_not_in("room", ["cellar"])]), "SPREAD"]
        with resident(scheduling_strategy=spread) as one, resident(scheduling_strategy=spread) as other:
            assert indexes(cluster, [one.where.remote(), other.where.remote()]) == {1, 2}

    def test_a_group_and_labels_must_both_match(self, cluster: LocalCluster) -> None:
        zones = [{"zone": "a"}, {"zone": "b"}]
        group = ray.util.placement_group([{"CPU": 1}, {"CPU": 1}], bundle_label_selector=zones)
        inside = PlacementGroupSchedulingStrategy(group)
        try:
            assert group.wait(SOON_S)
            for zone, expected in (("a", {1}), ("b", {2})):
                both = [node_affinity(label_in("zone", [zone])), inside]
                assert landed(cluster, 2, scheduling_strategy=both) == expected
            neither = where.options(scheduling_strategy=[node_affinity(label_does_not_exist("zone")), inside])
            with pytest.raises(stead.Invalid, match="no bundle of the placement group is on a node with not zone"):
                neither.remote()
        finally:
            ray.util.remove_placement_group(group)


class TestLabelIndex:
    def test_nodes_are_found_by_a_selector_in_every_form(self, cluster: LocalCluster) -> None:
        ids = [node.node_id for node in cluster.nodes]
        cases: list[tuple[Any, set[str]]] = [
            (None, set(ids)),
            ("zone in [b]", {ids[2]}),
            ({"zone": "in(a,b)"}, {ids[1], ids[2]}),
            ({"gpu_type": "!A100"}, {ids[0], ids[2]}),
            (Selector.all_of(Requirement.does_not_exist("zone")), {ids[0]}),
            ({"node_name": "first"}, {ids[1]}),
            ("zone in [mars]", set()),
        ]
        for selector, expected in cases:
            assert {view.id for view in stead.nodes(selector=selector)} == expected, selector

    def test_a_label_lists_the_nodes_that_have_it(self, cluster: LocalCluster) -> None:
        ids = [node.node_id for node in cluster.nodes]
        assert stead.labels()["zone"] == {"a": [ids[1]], "b": [ids[2]]}
        with labelled(ids[0], {"zone": "a", "shelf": "1"}):
            assert {value: set(nodes) for value, nodes in stead.labels()["zone"].items()} == {
                "a": {ids[0], ids[1]},
                "b": {ids[2]},
            }
            assert stead.labels()["shelf"] == {"1": [ids[0]]}
        assert "shelf" not in stead.labels()
        assert stead.labels()["zone"]["a"] == [ids[1]]


class TestWhatCannotBeMet:
    @pytest.mark.parametrize(
        "options",
        [
            {"scheduling_strategy": node_affinity(label_in("node_id", [NOBODY]))},
            {"scheduling_strategy": node_affinity(label_in("ray.io/node-id", [NOBODY, "e" * 56]))},
            {"scheduling_strategy": node_affinity([label_in("node_id", [NOBODY]), label_exists("zone")])},
            {"scheduling_strategy": node_affinity(label_in("node_id", ["nobody"]))},
            {"scheduling_strategy": pinned(NOBODY)},
            {"label_selector": {"ray.io/node-id": NOBODY}},
            {"label_selector": {"ray.io/node-id": f"in({NOBODY})"}},
        ],
        ids=[
            "node_id",
            "two ids",
            "with another label",
            "no id at all",
            "the old strategy",
            "selector",
            "selector with a list",
        ],
    )
    def test_work_for_nodes_that_are_not_alive_fails_at_once(
        self, cluster: LocalCluster, options: dict[str, Any]
    ) -> None:
        task = where.options(**options).remote()
        actor = Resident.options(**options).remote()
        with pytest.raises(ray.exceptions.TaskUnschedulableError):
            ray.get(task, timeout=SOON_S)
        with pytest.raises(ray.exceptions.ActorUnschedulableError):
            ray.get(actor.where.remote(), timeout=SOON_S)

    def test_a_preference_for_a_dead_node_is_ignored(self, cluster: LocalCluster) -> None:
        soft = node_affinity([label_in("node_id", [NOBODY], is_soft=True), label_in("zone", ["b"])])
        assert landed(cluster, 1, scheduling_strategy=soft) == {2}
        assert landed(cluster, 1, scheduling_strategy=pinned(NOBODY, soft=True)) <= {0, 1, 2}

    def test_one_living_node_among_the_ids_is_enough(self, cluster: LocalCluster) -> None:
        some = node_affinity(label_in("node_id", [NOBODY, cluster.nodes[2].node_id]))
        assert landed(cluster, 1, scheduling_strategy=some) == {2}

    @pytest.mark.parametrize(
        ("options", "obstacles"),
        [
            ({"label_selector": {"crater": "x"}}, ["3 lack crater in {x}"]),
            ({"num_cpus": 64}, ["3 too small for 64 CPU"]),
            ({"num_cpus": 64, "label_selector": {"zone": "a"}}, ["2 lack zone in {a}", "1 too small for 64 CPU"]),
            (
                {"resources": {"slot": 5}, "scheduling_strategy": node_affinity(label_not_in("zone", ["a"]))},
                ["zone", "too small for 5 slot"],
            ),
        ],
        ids=["labels", "amounts", "both", "other amounts"],
    )
    def test_it_is_pending_and_the_reason_names_each_obstacle(
        self, cluster: LocalCluster, options: dict[str, Any], obstacles: list[str]
    ) -> None:
        before = max((event.number for event in stead.events()), default=0)
        # A deadline makes stead a party to it, also where only amounts are short.
        task = where.options(**options, deadline_s=600).remote()
        actor = Resident.options(**options, deadline_s=600).remote()
        call = actor.where.remote()
        for reason in (str(stead.why(task)), str(stead.why(actor))):
            assert all(obstacle in reason for obstacle in obstacles), reason
        wait_for(
            lambda: any(
                event.kind == "waiting" and all(obstacle in event.text for obstacle in obstacles)
                for event in stead.events(before)
            ),
            SOON_S,
            "an event that names each obstacle",
        )
        assert waits(task, call)
        ray.cancel(task)
        ray.kill(actor)

    def test_an_event_is_recorded_once_for_each_change_of_the_reason(self, cluster: LocalCluster) -> None:
        head, first = cluster.nodes[0].node_id, cluster.nodes[1].node_id
        task = where.options(num_cpus=64, label_selector={"quarry": "x"}).remote()

        def told(part: str) -> list[str]:
            return [event.text for event in stead.events() if event.kind == "waiting" and part in event.text]

        wait_for(lambda: told("3 lack quarry in {x}"), SOON_S)
        with labelled(head, {"quarry": "x"}), labelled(first, {"quarry": "x"}):
            wait_for(lambda: told("1 lacks quarry in {x}; 2 too small for 64 CPU"), SOON_S)
            assert waits(task)
        assert len(told("1 lacks quarry in {x}; 2 too small for 64 CPU")) == 1
        ray.cancel(task)


class TestLabelsOfRunningNodes:
    def test_waiting_work_starts_when_a_node_gets_the_label(self, cluster: LocalCluster) -> None:
        strategy = node_affinity(label_in("disk", ["ssd"]))
        tasks = [where.options(scheduling_strategy=strategy).remote() for _ in range(3)]
        with resident(scheduling_strategy=strategy) as actor:
            call = actor.where.remote()
            assert waits(*tasks, call)
            with labelled(cluster.nodes[1].node_id, {"disk": "ssd"}):
                assert indexes(cluster, [*tasks, call]) == {1}

    def test_pending_work_starts_when_a_label_that_excludes_a_node_is_removed(self, cluster: LocalCluster) -> None:
        with (
            labelled(cluster.nodes[0].node_id, {"busy": "yes"}),
            labelled(cluster.nodes[1].node_id, {"busy": "yes"}),
            labelled(cluster.nodes[2].node_id, {"busy": "yes"}),
        ):
            task = where.options(scheduling_strategy=node_affinity(label_does_not_exist("busy"))).remote()
            assert waits(task)
            stead.label(cluster.nodes[2].node_id, remove=["busy"])
            assert indexes(cluster, [task]) == {2}

    def test_new_work_follows_a_label_that_moves(self, cluster: LocalCluster) -> None:
        role = node_affinity(label_in("role", ["leader"]))
        for index in (1, 2):
            with labelled(cluster.nodes[index].node_id, {"role": "leader"}):
                assert landed(cluster, 4, scheduling_strategy=role) == {index}

    def test_a_label_set_at_run_time_overrides_the_one_given_at_start(self, cluster: LocalCluster) -> None:
        first = cluster.nodes[1].node_id
        stead.label(first, {"gpu_type": "P100"}, remove=["zone"])
        try:
            (view,) = stead.nodes({"node_id": first})
            assert (view.labels["gpu_type"], view.sources["gpu_type"]) == ("P100", "run time")
            assert "zone" not in view.labels
            task = where.options(scheduling_strategy=node_affinity(label_in("gpu_type", ["A100"]))).remote()
            other = where.options(label_selector={"zone": "a"}).remote()
            assert waits(task, other)
            both = node_affinity([label_in("gpu_type", ["P100"]), label_does_not_exist("zone")])
            assert landed(cluster, scheduling_strategy=both) == {1}
        finally:
            stead.label(first, {"gpu_type": "A100", "zone": "a"})
        assert indexes(cluster, [task, other]) == {1}

    def test_a_node_that_comes_back_is_a_new_node(self, cluster: LocalCluster) -> None:
        """The last test of the file that adds a node: it stays."""
        room: NodeOptions = {"num_cpus": 1, "labels": {"room": "x"}, "name": "third"}
        gone = cluster.add_node(**room)
        stead.label(gone.node_id, {"room": "y", "seen": "yes"})
        y = node_affinity(label_in("room", ["y"]))
        cluster.kill_node(gone.index)
        wait_for(lambda: gone.node_id not in {view.id for view in stead.nodes()}, SOON_S, "the end of the node")
        back = cluster.add_node(**room)
        (view,) = wait_for(lambda: stead.nodes({"node_id": back.node_id}), SOON_S, "the return of the node")
        assert back.node_id != gone.node_id
        assert (view.labels["room"], view.sources["room"], "seen" in view.labels) == ("x", "start", False)
        task = where.options(scheduling_strategy=y).remote()
        assert waits(task)
        stead.label(back.node_id, {"room": "y"})
        assert indexes(cluster, [task]) == {back.index}
