"""Label selectors on a real cluster: every form, with every strategy, with fallbacks, and where they are ignored."""

from __future__ import annotations

from collections.abc import Iterator
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import ray
from ray.util.scheduling_strategies import DoesNotExist, Exists, In, NodeLabelSchedulingStrategy, NotIn

import stead
from stead.ray.local.local_cluster import LocalCluster
from tests.on_ray.conftest import ClusterOf
from tests.on_ray.waiting import wait_for
from tests.on_ray.workload import (
    SOON_S,
    PlainResident,
    attached,
    free_cpus,
    indexes,
    labelled,
    landed,
    occupied,
    pinned,
    resident,
    run_driver,
    wait_for_every_cpu,
    waits,
    where,
    where_am_i,
)

MARKET, ACCELERATOR = "ray.io/market-type", "ray.io/accelerator-type"
pytestmark = pytest.mark.long

SPOT = {MARKET: "spot", "region": "us", "cores": "4", ACCELERATOR: "L4"}
DEMAND = {MARKET: "on-demand", "region": "eu", "cores": "16"}
NODES: list[dict[str, Any]] = [
    {"num_cpus": 1},
    {"num_cpus": 1, "labels": SPOT},
    {"num_cpus": 1, "labels": DEMAND, "resources": {"accelerator_type:A100": 1}},
]
"""Unrestricted work runs on the head, where the driver is: the rules must keep work away from node 0."""


@pytest.fixture(scope="module")
def cluster(cluster_of: ClusterOf) -> Iterator[LocalCluster]:
    with attached(cluster_of(NODES)) as started:
        yield started


def test_labels_given_at_start_are_in_rays_own_table_and_show_their_source(cluster: LocalCluster) -> None:
    rays = {node["NodeID"]: node["Labels"] for node in ray.nodes()}
    views = {view.id: view for view in stead.nodes()}
    for node, given in zip(cluster.nodes, ({}, SPOT, DEMAND), strict=True):
        assert rays[node.node_id].items() >= given.items()
        assert views[node.node_id].labels.items() >= given.items()
        assert {views[node.node_id].sources[key] for key in given} <= {"start"}
        assert views[node.node_id].labels["node_id"] == views[node.node_id].labels["ray.io/node-id"] == node.node_id


class TestConditions:
    @pytest.mark.parametrize(
        ("selector", "allowed"),
        [
            ({"region": "us"}, {1}),
            ({"region": "!us"}, {0, 2}),
            ({"region": "in(us,eu)"}, {1, 2}),
            ({"region": "IN(eu, mars)"}, {2}),
            ({"region": "!in(us,mars)"}, {0, 2}),
            ({"region": "exists()"}, {1, 2}),
            ({"region": "Exists()", "cores": "!4"}, {2}),
            ({"region": "!exists()"}, {0}),
            ({"cores": "gt(4)"}, {2}),
            ({"cores": "LT(16)"}, {1}),
            ({MARKET: "spot"}, {1}),
            ({MARKET: "!spot", "region": "exists()"}, {2}),
            ({MARKET: "in(on-demand,spot)", "region": "!us"}, {2}),
        ],
        ids=str,
    )
    def test_a_condition_selects_the_nodes_that_match(
        self, cluster: LocalCluster, selector: dict[str, str], allowed: set[int]
    ) -> None:
        assert landed(cluster, 2, label_selector=selector) <= allowed

    @pytest.mark.parametrize(
        "condition", ["(us)", "!(us)", "in()", "in(us", "gt(many)", "lt()", "exists(us)", "near(us)", "!gt(3)", "a b"]
    )
    def test_a_typo_is_refused_where_it_was_written(self, cluster: LocalCluster, condition: str) -> None:
        with pytest.raises(stead.Invalid, match="region") as refusal:
            where.options(label_selector={"region": condition})
        assert "\n" not in str(refusal.value)
        with pytest.raises(stead.Invalid):
            ray.remote(label_selector={"region": condition})(lambda: None)

    def test_it_can_be_set_in_the_decorator_and_overridden_in_the_options(self, cluster: LocalCluster) -> None:
        here = ray.remote(num_cpus=1, label_selector={"region": "eu"})(where_am_i)
        assert indexes(cluster, [here.remote()]) == {2}
        assert indexes(cluster, [here.options(label_selector={"region": "us"}).remote()]) == {1}
        assert indexes(cluster, [here.options(num_cpus=0.5).remote()]) == {2}

    def test_actors_follow_selectors_in_decorator_and_options(self, cluster: LocalCluster) -> None:
        big = ray.remote(num_cpus=1, label_selector={"cores": "gt(8)"})(PlainResident).remote()
        with resident(label_selector={"region": "us"}) as small:
            assert indexes(cluster, [big.where.remote()]) == {2}
            assert indexes(cluster, [small.where.remote()]) == {1}
        ray.kill(big)

    def test_it_combines_with_any_strategy(self, cluster: LocalCluster) -> None:
        zoned, second = {"region": "exists()"}, cluster.nodes[2].node_id
        strategies: list[tuple[Any, set[int]]] = [
            ("DEFAULT", {1, 2}),
            ("SPREAD", {1, 2}),
            (pinned(second), {2}),
            (pinned(second, soft=True), {2}),
            (pinned(cluster.nodes[0].node_id, soft=True), {1, 2}),
            (stead.node_affinity(stead.label_not_in("cores", ["4"])), {2}),
        ]
        for strategy, allowed in strategies:
            assert landed(cluster, 2, label_selector=zoned, scheduling_strategy=strategy) <= allowed, strategy

    def test_an_unmet_selector_is_enforced_here_although_plain_ray_would_name_no_reason(
        self, cluster: LocalCluster
    ) -> None:
        task = where.options(label_selector={"region": "mars"}).remote()
        assert waits(task)
        assert "3 lack region in {mars}" in str(stead.why(task))
        with labelled(cluster.nodes[1].node_id, {"region": "mars"}):
            assert indexes(cluster, [task]) == {1}
        stead.label(cluster.nodes[1].node_id, {"region": "us"})


class TestAccelerators:
    @pytest.mark.parametrize(
        ("options", "node"),
        [
            ({"accelerator_type": "A100"}, 2),
            ({"label_selector": {ACCELERATOR: "A100"}}, 2),
            ({"label_selector": {ACCELERATOR: "L4"}}, 1),
            ({"label_selector": {ACCELERATOR: "in(A100,H100)"}, "accelerator_type": "A100"}, 2),
        ],
        ids=["option", "a resource counts as the label", "label", "both"],
    )
    def test_the_type_is_found_by_option_and_by_label(
        self, cluster: LocalCluster, options: dict[str, Any], node: int
    ) -> None:
        assert landed(cluster, 1, **options) == {node}


FIRST = {"label_selector": {"region": "us"}, "fallback_strategy": [{"label_selector": {"region": "eu"}}]}
NATIVE = {"label_selector": {MARKET: "spot"}, "fallback_strategy": [{"label_selector": {MARKET: "on-demand"}}]}


class TestFallbacks:
    @pytest.mark.parametrize("options", [FIRST, NATIVE], ids=["own keys", "Ray's keys"])
    def test_the_first_choice_is_taken_while_there_is_room(
        self, cluster: LocalCluster, options: dict[str, Any]
    ) -> None:
        wait_for(lambda: free_cpus(cluster.nodes[1].node_id) >= 1, SOON_S, "the release of what the last test leased")
        assert landed(cluster, 1, **options) == {1}

    @pytest.mark.parametrize("options", [FIRST, NATIVE], ids=["own keys", "Ray's keys"])
    def test_a_fallback_is_taken_when_the_first_choice_is_full(
        self, cluster: LocalCluster, options: dict[str, Any]
    ) -> None:
        with occupied(cluster.nodes[1].node_id, 1):
            assert landed(cluster, 1, **options) == {2}

    def test_a_fallback_is_taken_when_no_node_is_of_the_first_choice(self, cluster: LocalCluster) -> None:
        mars, eu = {"label_selector": {"region": "mars"}}, {"label_selector": {"region": "eu"}}
        assert landed(cluster, 1, **mars, fallback_strategy=[mars, eu]) == {2}
        with resident(**mars, fallback_strategy=[eu]) as actor:
            assert indexes(cluster, [actor.where.remote()]) == {2}

    @pytest.mark.parametrize("options", [FIRST, NATIVE], ids=["own keys", "Ray's keys"])
    def test_when_nothing_is_free_it_waits_for_the_first_node_that_becomes_free(
        self, cluster: LocalCluster, options: dict[str, Any]
    ) -> None:
        with occupied(cluster.nodes[2].node_id, 1):
            with occupied(cluster.nodes[1].node_id, 1):
                task = where.options(**options).remote()
                assert waits(task)
            assert indexes(cluster, [task]) == {1}

    def test_work_that_matches_no_node_waits_for_a_label(self, cluster: LocalCluster) -> None:
        nowhere = {"label_selector": {"shelf": "x"}, "fallback_strategy": [{"label_selector": {"shelf": "y"}}]}
        task = where.options(**nowhere).remote()
        assert waits(task)
        with labelled(cluster.nodes[2].node_id, {"shelf": "y"}):
            assert indexes(cluster, [task]) == {2}

    def test_a_preference_orders_the_nodes_within_each_choice(self, cluster: LocalCluster) -> None:
        big = stead.node_affinity([stead.label_in("cores", ["16"], is_soft=True)])
        choices = {"label_selector": {"region": "exists()"}, "fallback_strategy": [{"label_selector": {}}]}
        wait_for_every_cpu(cluster)
        assert landed(cluster, 1, **choices, scheduling_strategy=big) == {2}
        with occupied(cluster.nodes[2].node_id, 1):
            wait_for(lambda: free_cpus(cluster.nodes[1].node_id) >= 1, SOON_S, "room on the next node")
            assert landed(cluster, 1, **choices, scheduling_strategy=big) == {1}
            with occupied(cluster.nodes[1].node_id, 1):
                assert landed(cluster, 1, **choices, scheduling_strategy=big) == {0}


class TestRaysOwnLabelStrategy:
    @pytest.mark.parametrize(
        ("hard", "soft", "allowed"),
        [
            ({"region": In("us")}, {}, {1}),
            ({"region": NotIn("us"), "cores": Exists()}, {}, {2}),
            ({"region": DoesNotExist()}, {}, {0}),
            ({"region": Exists()}, {"cores": In("16")}, {2}),
            ({}, {"region": In("us")}, {1}),
        ],
        ids=["in", "not in", "does not exist", "soft within hard", "soft alone"],
    )
    def test_it_selects_the_nodes_that_match(
        self, cluster: LocalCluster, hard: Any, soft: Any, allowed: set[int]
    ) -> None:
        strategy = NodeLabelSchedulingStrategy(hard=hard, soft=soft)
        wait_for_every_cpu(cluster)
        assert landed(cluster, 1, scheduling_strategy=strategy) == allowed

    def test_it_obeys_labels_of_running_nodes(self, cluster: LocalCluster) -> None:
        task = where.options(scheduling_strategy=NodeLabelSchedulingStrategy(hard={"rack": In("7")})).remote()
        assert waits(task)
        with labelled(cluster.nodes[2].node_id, {"rack": "7"}):
            assert indexes(cluster, [task]) == {2}

    def test_it_obeys_taints(self, cluster: LocalCluster) -> None:
        strategy = NodeLabelSchedulingStrategy(hard={"region": Exists()}, soft={"region": In("us")})
        stead.taint(cluster.nodes[1].node_id, {"closed": "yes"})
        try:
            assert landed(cluster, 2, scheduling_strategy=strategy) == {2}
            tolerant = where.options(scheduling_strategy=strategy, tolerations={"closed": stead.Exists()})
            wait_for_every_cpu(cluster)
            assert indexes(cluster, [tolerant.remote()]) == {1}
        finally:
            stead.untaint(cluster.nodes[1].node_id, ["closed"])


DOCUMENTED = """
    import json, ray
    ray.init(log_to_driver=False, logging_level="error")

    def here():
        return ray.get_runtime_context().get_node_id()

    @ray.remote(label_selector={"region": "us"})
    def in_decorator():
        return here()

    @ray.remote
    def in_options():
        return here()

    @ray.remote(label_selector={"ray.io/market-type": "on-demand"})
    class InDecorator:
        def here(self):
            return here()

    @ray.remote
    class InOptions:
        def here(self):
            return here()

    @ray.remote(
        label_selector={"region": "mars"},
        fallback_strategy=[{"label_selector": {"region": "venus"}}, {"label_selector": {"region": "eu"}}],
    )
    def with_fallback():
        return here()

    @ray.remote
    def labels():
        return ray.get_runtime_context().get_node_labels()

    two = ray.util.placement_group(
        bundles=[{"CPU": 1}] * 2,
        bundle_label_selector=[{"ray.io/market-type": "spot"}, {"ray.io/market-type": "on-demand"}],
    )
    ray.get(two.ready(), timeout=60)
    nodes = ray.util.placement_group_table(two)["bundles_to_node_id"]
    ray.util.remove_placement_group(two)
    found = {
        "decorator": in_decorator.remote(),
        "options": in_options.options(label_selector={"region": "eu"}).remote(),
        "not equal": in_options.options(label_selector={"region": "!us", "cores": "16"}).remote(),
        "in": in_options.options(label_selector={"region": "in(eu,mars)"}).remote(),
        "not in": in_options.options(label_selector={"region": "!in(eu,mars)", "cores": "4"}).remote(),
        "fallback": with_fallback.remote(),
        "labels": labels.options(label_selector={"region": "eu"}).remote(),
    }
    found = {name: ray.get(ref, timeout=60) for name, ref in found.items()}
    found["actor"] = ray.get(InDecorator.remote().here.remote(), timeout=60)
    found["actor options"] = ray.get(
        InOptions.options(label_selector={"ray.io/accelerator-type": "L4"}).remote().here.remote(), timeout=60
    )
    pending = in_options.options(label_selector={"region": "mars"}).remote()
    found["pending"] = not ray.wait([pending], timeout=1.0)[0]
    found["group"] = [nodes[0], nodes[1]]
    print(json.dumps(found))
"""


def test_the_forms_that_ray_documents_run_unchanged_under_the_hook(cluster: LocalCluster) -> None:
    told = {"RAY_ADDRESS": cluster.address, "RAY_RUNTIME_ENV_HOOK": "stead.ray.hook"}
    found = run_driver(DOCUMENTED, told)
    _, us, eu = (node.node_id for node in cluster.nodes)
    assert found.pop("labels").items() >= DEMAND.items()
    assert found == {
        "decorator": us,
        "options": eu,
        "not equal": eu,
        "in": eu,
        "not in": us,
        "fallback": eu,
        "actor": eu,
        "actor options": us,
        "pending": True,
        "group": [us, eu],
    }


class TestAClusterThatTheProgramStartedItself:
    """One node, started by ``init`` without an address: a program that you try on a laptop."""

    PROGRAM = """
        import json, os, sys, warnings
        import ray
        own = dict(num_cpus=1, include_dashboard=False, _temp_dir=sys.argv[1], log_to_driver=False,
                   logging_level="error", object_store_memory=80 * 2**20)
        if sys.argv[2] == "hook":
            ray.init(**own)
        else:
            import stead
            stead.init(**own)
        import stead

        @ray.remote(num_cpus=1)
        def work():
            return "ran"

        mars = {"label_selector": {"region": "mars"}}
        found = {}
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            found["selector"] = ray.get([work.options(**mars).remote() for _ in range(3)], timeout=60)
            found["fallback"] = ray.get(work.options(fallback_strategy=[mars], **mars).remote(), timeout=60)
        found["said"] = [str(each.message) for each in said if "label_selector" in str(each.message)]
        affinity = work.options(scheduling_strategy=stead.node_affinity(stead.label_in("region", ["mars"]))).remote()
        found["affinity"] = len(ray.wait([affinity], timeout=1.0)[0])
        ray.cancel(affinity)
        os.environ["STEAD_ENFORCE_LABELS"] = "1"
        enforced = work.options(**mars).remote()
        found["enforced"] = len(ray.wait([enforced], timeout=1.0)[0])
        node = stead.nodes()[0].id
        stead.label(node, {"region": "mars"})
        found["labelled"] = ray.get(enforced, timeout=60)
        stead.taint(node, {"closed": "yes"})
        del os.environ["STEAD_ENFORCE_LABELS"]
        tainted = work.options(**mars).remote()
        found["tainted"] = len(ray.wait([tainted], timeout=1.0)[0])
        stead.untaint(node, ["closed"])
        found["untainted"] = ray.get(tainted, timeout=60)
        print(json.dumps(found))
        ray.shutdown()
    """

    @pytest.mark.parametrize("way", ["init", "hook"])
    def test_a_label_selector_is_ignored_there_and_all_other_rules_hold(self, way: str) -> None:
        told = {"RAY_RUNTIME_ENV_HOOK": "stead.ray.hook"} if way == "hook" else {}
        with TemporaryDirectory(prefix="stead-", dir="/tmp") as place:  # sockets end at 107 characters
            found = run_driver(self.PROGRAM, told, place, way)
        warning = found.pop("said")
        assert len(warning) == 1 and "STEAD_ENFORCE_LABELS=1" in warning[0]
        assert found == {
            "selector": ["ran"] * 3,
            "fallback": "ran",
            "affinity": 0,
            "enforced": 0,
            "labelled": "ran",
            "tainted": 0,
            "untainted": "ran",
        }
