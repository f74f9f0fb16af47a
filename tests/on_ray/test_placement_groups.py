"""Placement groups on seven real raylets, with `stead.init`.

The head has four CPUs. Two nodes have an H100 and are tainted; four have two A100s each, in two zones. GPUs are a rare
resource, so bundles without one belong on the head. Each test restores the cluster.
"""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import stead
from stead.ray.local.local_cluster import LocalCluster
from tests.on_ray.conftest import ClusterOf
from tests.on_ray.waiting import wait_for

ray = pytest.importorskip("ray")
from ray.exceptions import TaskPlacementGroupRemoved  # noqa: E402
from ray.util.placement_group import PlacementGroup, get_current_placement_group, placement_group_table  # noqa: E402
from ray.util.scheduling_strategies import In, PlacementGroupSchedulingStrategy  # noqa: E402

ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import a test

ALLOWED = {"gpu_node": stead.Exists()}
H100, A100 = {"gpu_type": "H100"}, {"gpu_type": "A100"}
H100S, A100S = ["h100-a", "h100-b"], ["a100-a1", "a100-a2", "a100-b1", "a100-b2"]
GPU, CPU = dict[str, float](GPU=1), dict[str, float](CPU=1)


@pytest.fixture(scope="module")
def cluster(cluster_of: ClusterOf) -> Iterator[LocalCluster]:
    h100s = [
        {"num_gpus": 1, "name": name, "labels": {**H100, "zone": name[-1]}, "taints": {"gpu_node": "true"}}
        for name in H100S
    ]
    a100s = [
        {"num_gpus": 2, "name": name, "labels": {**A100, "zone": name[5], "memory_gb": str(40 * int(name[-1]))}}
        for name in A100S
    ]
    found = cluster_of([{"num_cpus": 4, "name": "head"}, *h100s, *a100s], ["gpu"])
    stead.init(found.address, namespace="tests", log_to_driver=False, logging_level="error")
    yield found
    ray.shutdown()


@pytest.fixture(scope="module")
def names(cluster: LocalCluster) -> dict[str, str]:
    """The names of nodes, by id."""
    return {node.node_id: node.spec.name or "" for node in cluster.nodes}


@pytest.fixture(autouse=True)
def as_it_was(names: dict[str, str]) -> Iterator[None]:
    """After each test, its groups and actors are gone, everything is free, and the head has none of its taints."""
    yield
    for actor in Started.actors:
        ray.kill(actor)
    for made in Started.groups:
        ray.util.remove_placement_group(made)
    del Started.actors[:], Started.groups[:]
    for node in stead.nodes():
        if any(taint.key == "later" for taint in node.taints):
            stead.untaint(node.id, ["later"])
    wait_for(lambda: used() == {}, what="the end of all that the test started")


class Started:
    actors: list[Any] = []  # noqa: RUF012
    groups: list[PlacementGroup] = []  # noqa: RUF012


def group(bundles: list[dict[str, float]], *given: Any, **options: Any) -> Any:
    made = stead.placement_group(bundles, *given, **options)
    Started.groups.append(made)
    return made


def plain_group(bundles: list[dict[str, float]], **options: Any) -> Any:
    made = ray.util.placement_group(bundles, **options)
    Started.groups.append(made)
    return made


def example(**options: Any) -> Any:
    """Two H100s, or else four A100s."""
    return group(
        [{"GPU": 1}] * 2,
        strategy="STRICT_SPREAD",
        bundle_label_selector=[{"gpu_type": "H100"}] * 2,
        tolerations={"gpu_node": stead.Exists()},
        fallback_strategy=[{"bundles": [{"GPU": 1}] * 4, "bundle_label_selector": [{"gpu_type": "A100"}] * 4}],
        **options,
    )


def all_gpus() -> list[Any]:
    """Groups that hold every GPU: the H100s, and the A100s."""
    h100s = group([GPU] * 2, bundle_label_selector=[H100] * 2, tolerations=ALLOWED)
    a100s = group([GPU] * 8, bundle_label_selector=[A100] * 8)
    assert h100s.wait(60)
    assert a100s.wait(60)
    return [h100s, a100s]


def end(made: Any) -> None:
    Started.groups.remove(made)
    stead.remove_placement_group(made)


def state(made: Any) -> str:
    return str((placement_group_table(made) or {}).get("state", "unknown to Ray"))


def used() -> dict[str, float]:
    """The used resources of the whole cluster, without internal ones."""
    total, free = ray.cluster_resources(), ray.available_resources()
    found = {name: total[name] - free.get(name, 0.0) for name in ("CPU", "GPU")}
    return {name: amount for name, amount in found.items() if amount}


def inside(made: Any, index: int = -1, **options: Any) -> dict[str, Any]:
    return {"scheduling_strategy": PlacementGroupSchedulingStrategy(made, index, **options)}


@ray.remote(num_cpus=0)  # type: ignore[untyped-decorator]
def where() -> tuple[str, str]:
    """The node it runs on, and the id of the group it is in."""
    current = get_current_placement_group()
    return str(ray.get_runtime_context().get_node_id()), current.id.hex() if current else ""


class Home:
    def where(self) -> str:
        return str(ray.get_runtime_context().get_node_id())

    def make_group(self) -> Any:
        return ray.util.placement_group([{"CPU": 1}])


Stayer: Any = ray.remote(num_cpus=0)(Home)


def started(**options: Any) -> Any:
    actor = Stayer.options(**options).remote()
    Started.actors.append(actor)
    return actor


Places = Callable[..., list[str]]


@pytest.fixture
def places(names: dict[str, str]) -> Places:
    """The nodes that hold the bundles of a group, in the order of the bundles, once they do."""

    def of(made: Any) -> list[str]:
        assert made.wait(60), f"{placement_group_table(made)} {stead.why(made)}"
        found = placement_group_table(made)["bundles_to_node_id"]
        return [names[found[index]] for index in range(len(found))]

    return of


@pytest.fixture
def head(cluster: LocalCluster) -> str:
    return cluster.nodes[0].node_id


# -- fallbacks


class TestFallbacks:
    def test_it_is_ready_on_the_nodes_of_its_first_choice(self, places: Places) -> None:
        made = example()
        assert ray.get(made.ready(), timeout=60) == made
        assert sorted(places(made)) == H100S
        stead.remove_placement_group(made)
        assert state(made) == "REMOVED"

    def test_it_takes_its_fallback_while_the_first_choice_is_full_and_the_first_again_when_it_is_free(
        self, places: Places
    ) -> None:
        first, second = example(), example()
        assert [sorted(places(each)) for each in (first, second)] == [H100S, A100S]
        for _ in range(8):  # at once: Ray's tables still show what the removed one held
            end(first)
            first = example()
            assert sorted(places(first)) == H100S

    def test_it_takes_its_fallback_if_the_first_choice_does_not_exist(self, places: Places) -> None:
        fallback = [{"bundle_label_selector": [{"gpu_type": "B300"}]}, {"bundle_label_selector": [A100]}]
        made = group([GPU], bundle_label_selector=[{"gpu_type": "B200"}], fallback_strategy=fallback)
        assert places(made)[0] in A100S

    def test_it_is_pending_while_every_choice_is_full_and_explains_why(self, places: Places) -> None:
        h100s, _ = all_gpus()
        made = example()
        assert not made.wait(0.3)
        assert state(made) == "unknown to Ray"
        assert "0 of 7 nodes fit: 5 lack gpu_type in {H100}; 2 short of 1 GPU" in str(stead.why(made))
        told = wait_for(
            lambda: [each.kind for each in stead.events() if each.subject == made.id.hex()], what="the event"
        )
        assert told == ["waiting"]
        end(h100s)
        assert sorted(places(made)) == H100S

    def test_bundles_count_with_their_maximum_until_one_choice_is_taken(self, places: Places) -> None:
        h100s, _ = all_gpus()
        made = example()
        assert (made.bundle_count, made.bundle_specs) == (4, [GPU] * 4)
        end(h100s)
        places(made)
        assert (made.bundle_count, made.bundle_specs) == (2, [GPU] * 2)

    def test_a_fallback_may_ask_for_less(self, places: Places) -> None:
        fallback = [{"bundles": [{"GPU": 2}]}]
        made = group([{"GPU": 4}], bundle_label_selector=[A100], fallback_strategy=fallback)
        assert places(made)[0] in A100S
        assert made.bundle_specs == [{"GPU": 2}]

    def test_rays_own_function_accepts_it_too(self, places: Places) -> None:
        made = plain_group(
            [GPU] * 3,
            strategy="STRICT_SPREAD",
            bundle_label_selector=[H100] * 3,
            tolerations=ALLOWED,
            fallback_strategy=[{"bundle_label_selector": [A100] * 3}],
        )
        assert set(places(made)) < set(A100S)


# -- strategies, selectors, topology


class TestStrategies:
    @pytest.mark.parametrize(
        ("strategy", "bundles", "nodes"),
        [("PACK", 2, 1), ("SPREAD", 4, 4), ("STRICT_PACK", 2, 1), ("STRICT_SPREAD", 3, 3)],
    )
    def test_the_bundles_are_placed_by_the_strategy(
        self, strategy: str, bundles: int, nodes: int, places: Places
    ) -> None:
        assert len(set(places(group([GPU] * bundles, strategy)))) == nodes

    @pytest.mark.parametrize(("strategy", "bundles"), [("STRICT_PACK", 3), ("STRICT_SPREAD", 5)])
    def test_a_strict_one_that_cannot_be_met_stays_pending_as_a_whole(self, strategy: str, bundles: int) -> None:
        made = group([GPU] * bundles, strategy)
        assert not made.wait(0.3)
        assert "no placement was found for all of them together" in str(stead.why(made))
        assert used() == {}

    def test_topology_puts_all_of_it_in_one_zone(self, places: Places) -> None:
        made = group([{"GPU": 2}] * 2, topology_strategy={"zone": "STRICT_PACK", "ray.io/node-id": "STRICT_SPREAD"})
        assert sorted(places(made)) in (A100S[:2], A100S[2:])
        third = group([GPU] * 4, topology_strategy={"zone": "STRICT_PACK"})
        assert set(places(third)) in (set(A100S[:2]), set(A100S[2:])) and not set(places(third)) & set(places(made))


SELECTORS = {
    "H100": (GPU, {"gpu_type": "H100"}, H100S),
    "not H100": (GPU, {"gpu_type": "!H100"}, A100S),
    "one of": (GPU, {"gpu_type": "in(H100,T4)"}, H100S),
    "one of, in capitals": (GPU, {"gpu_type": "IN(H100,T4)"}, H100S),
    "none of": (GPU, {"gpu_type": "!in(H100,T4)"}, A100S),
    "any": (GPU, {"gpu_type": "exists()", "zone": "!a"}, ["h100-b", *A100S[2:]]),
    "none": (CPU, {"gpu_type": "!exists()"}, ["head"]),
    "above": (GPU, {"memory_gb": "gt(50)"}, ["a100-a2", "a100-b2"]),
    "below": (GPU, {"memory_gb": "lt(50)", "zone": "b"}, ["a100-b1"]),
}


class TestSelectors:
    @pytest.mark.parametrize(("bundle", "selector", "good"), SELECTORS.values(), ids=SELECTORS.keys())
    def test_each_bundle_is_placed_by_its_selector(
        self, bundle: dict[str, float], selector: dict[str, str], good: list[str], places: Places
    ) -> None:
        made = group([bundle], bundle_label_selector=[selector], tolerations=ALLOWED)
        assert places(made)[0] in good

    def test_every_bundle_can_have_its_own(self, places: Places) -> None:
        selectors: list[dict[str, str]] = [A100, {}, H100]
        first, second, third = places(group([GPU, CPU, GPU], bundle_label_selector=selectors, tolerations=ALLOWED))
        assert (first in A100S, second, third in H100S) == (True, "head", True)

    @pytest.mark.parametrize("make", [group, plain_group], ids=["stead's", "Ray's"])
    def test_a_group_waits_for_a_label_that_is_set_at_run_time(self, make: Any, head: str, places: Places) -> None:
        made = make([CPU], bundle_label_selector=[{"disk": "ssd"}])
        assert not made.wait(0.3)
        assert "7 lack disk in {ssd}" in str(stead.why(made))
        stead.label(head, {"disk": "ssd"})
        assert places(made) == ["head"]
        stead.label(head, remove=["disk"])


# -- taints


class TestTaints:
    @pytest.mark.parametrize(
        "match",
        [stead.Exists(), stead.In("true"), stead.NotIn("false"), In("true")],
        ids=["any", "in", "not in", "Ray's"],
    )
    @pytest.mark.parametrize("make", [group, plain_group], ids=["stead's", "Ray's"])
    def test_a_matching_toleration_admits_bundles(self, make: Any, match: Any, places: Places) -> None:
        made = make([GPU] * 2, bundle_label_selector=[H100] * 2, tolerations={"gpu_node": match})
        assert sorted(places(made)) == H100S

    @pytest.mark.parametrize("tolerations", [None, {"gpu_node": stead.In("false")}], ids=["none", "another value"])
    @pytest.mark.parametrize("make", [group, plain_group], ids=["stead's", "Ray's"])
    def test_without_one_the_group_is_pending_and_the_reason_names_the_taint(self, make: Any, tolerations: Any) -> None:
        made = make([GPU, CPU], bundle_label_selector=[H100, {}], tolerations=tolerations)
        assert not made.wait(0.3)
        assert "2 tainted gpu_node=true" in str(stead.why(made))
        assert used() == {}

    @pytest.mark.parametrize("make", [group, plain_group], ids=["stead's", "Ray's"])
    def test_a_taint_set_while_the_group_waits_binds_it(self, make: Any, head: str, places: Places) -> None:
        full = group([{"CPU": 4}])
        assert places(full) == ["head"]
        made = make([{"CPU": 2}])
        assert not made.wait(0.2)
        stead.taint(head, {"later": "yes"})
        end(full)
        assert not made.wait(0.5)
        assert "1 tainted later=yes" in str(stead.why(made))
        stead.untaint(head, ["later"])
        assert places(made) == ["head"]

    def test_a_bundle_that_is_committed_counts_as_placed(
        self, head: str, names: dict[str, str], places: Places
    ) -> None:
        made = group([{"CPU": 2}])
        assert places(made) == ["head"]
        stead.taint(head, {"later": "yes"})
        node, within = ray.get(where.options(num_cpus=1, **inside(made)).remote(), timeout=60)
        assert (names[node], within) == ("head", made.id.hex())
        assert state(made) == "CREATED"
        assert str(stead.why(made)) == "All members are placed."

    def test_bundles_with_a_rare_resource_go_to_its_nodes_and_no_others_do(self, places: Places) -> None:
        first, second = places(group([GPU, CPU], "SPREAD"))
        assert (first in A100S, second) == (True, "head")
        crowd = group([CPU] * 5)
        assert not crowd.wait(0.3)
        assert "tainted rare_resource.ray.io/gpu=true" in str(stead.why(crowd))


# -- the group in use


class TestUse:
    def test_tasks_and_actors_run_in_the_bundle_they_name(self, names: dict[str, str], places: Places) -> None:
        made = example()
        lies = places(made)
        tasks = [where.options(num_gpus=0.5, **inside(made, index)).remote() for index in (0, 1, -1)]
        ran = ray.get(tasks, timeout=60)
        assert [names[node] for node, _ in ran[:2]] == lies
        assert names[ran[2][0]] in lies
        assert {within for _, within in ran} == {made.id.hex()}
        actor = started(num_gpus=0.5, **inside(made, 1))
        assert names[ray.get(actor.where.remote(), timeout=60)] == lies[1]

    def test_a_child_task_is_captured(self, names: dict[str, str], places: Places) -> None:
        made = group([{"GPU": 1, "CPU": 1}], bundle_label_selector=[H100], tolerations=ALLOWED)

        @ray.remote(num_cpus=0, num_gpus=0.5)  # type: ignore[untyped-decorator]
        def parent() -> tuple[str, str]:
            found: tuple[str, str] = ray.get(where.options(num_gpus=0.5).remote())
            return found

        node, within = ray.get(
            parent.options(**inside(made, placement_group_capture_child_tasks=True)).remote(), timeout=60
        )
        assert ([names[node]], within) == (places(made), made.id.hex())

    def test_work_in_a_pending_group_runs_once_it_is_placed(self, names: dict[str, str], places: Places) -> None:
        h100s, _ = all_gpus()
        made = example()
        ready, task = made.ready(), where.options(num_gpus=1, **inside(made, 1)).remote()
        actor = started(num_gpus=1, **inside(made, 0))
        home = actor.where.remote()
        assert ray.wait([ready, task, home], timeout=0.3)[0] == []
        assert "2 short of 1 GPU" in str(stead.why(task))
        assert "2 short of 1 GPU" in str(stead.why(actor))
        end(h100s)
        lies = places(made)
        assert [names[ray.get(home, timeout=60)], names[ray.get(task, timeout=60)[0]]] == lies
        assert ray.get(ready, timeout=60) == made

    def test_a_pending_group_can_be_passed_to_a_task_and_used_there(self, places: Places) -> None:
        full = group([{"CPU": 4}])
        assert places(full) == ["head"]
        made = group([{"CPU": 1}], fallback_strategy=[{"bundles": [{"CPU": 2}]}])

        @ray.remote(num_cpus=0, resources={"node:__internal_head__": 0.001})  # type: ignore[untyped-decorator]
        def user(given: Any) -> Any:
            return [where.options(num_cpus=1, **inside(given, 0)).remote()]

        [ref] = ray.get(user.remote(made), timeout=60)
        end(full)
        assert ray.get(ref, timeout=60)[1] == made.id.hex()

    def test_rays_table_shows_it_as_requested(self, places: Places) -> None:
        made = group([GPU] * 2, "STRICT_SPREAD", "shown", bundle_label_selector=[A100] * 2)
        places(made)
        row = placement_group_table(made)
        assert (row["name"], row["strategy"], row["state"]) == ("shown", "STRICT_SPREAD", "CREATED")
        bundles = [
            {name: each[name] for name in each if not name.startswith("stead.")} for each in row["bundles"].values()
        ]
        assert bundles == made.bundle_specs == [GPU] * 2

    @pytest.mark.long
    def test_rules_on_nodes_choose_among_the_bundles(self, names: dict[str, str], places: Places) -> None:
        made = group([GPU] * 4, "STRICT_SPREAD", bundle_label_selector=[A100] * 4)
        assert places(made)
        rule = stead.node_affinity([stead.label_in("zone", ["b"]), stead.label_in("memory_gb", ["80"])])
        both: Any = [rule, PlacementGroupSchedulingStrategy(made)]
        assert names[ray.get(where.options(num_gpus=1, scheduling_strategy=both).remote(), timeout=60)[0]] == "a100-b2"
        actor = started(num_gpus=0.5, scheduling_strategy=both)
        near: Any = [stead.actor_affinity(stead.affinity(actor)), PlacementGroupSchedulingStrategy(made)]
        assert names[ray.get(actor.where.remote(), timeout=60)] == "a100-b2"
        beside = started(num_gpus=0.5, scheduling_strategy=near)
        assert names[ray.get(beside.where.remote(), timeout=60)] == "a100-b2"


# -- names, lifetimes, ends

PROGRAM = textwrap.dedent("""
    import ray, stead, sys
    stead.init(sys.argv[1], namespace="tests", log_to_driver=False, logging_level="error")
    made = [stead.placement_group([{"CPU": cpus}], name=name, lifetime=lifetime) for name, cpus, lifetime in [
        ("kept", 1, "detached"), ("gone", 1, None), ("kept, waits", 4, "detached"), ("gone, waits", 5, None)]]
    assert made[0].wait(60) and made[1].wait(60)
    print(*(each.id.hex() for each in made), flush=True)
    sys.stdin.read()
""")


class TestNamesAndLifetimes:
    def test_a_name_finds_the_group_once_it_is_placed_and_is_unique(self, places: Places) -> None:
        full = group([{"CPU": 4}])
        assert places(full) == ["head"]
        made = group([{"CPU": 2}], name="ring")
        for _ in ("waiting", "created"):
            with pytest.raises(stead.Invalid, match="a placement group named 'ring' exists already"):
                group([CPU], name="ring")
            if full in Started.groups:
                end(full)
                places(made)
        assert ray.util.get_placement_group("ring") == made
        end(made)
        assert places(group([CPU], name="ring")) == ["head"]

    @pytest.mark.long
    def test_only_detached_groups_outlive_their_program(self, cluster: LocalCluster) -> None:
        with subprocess.Popen(
            [sys.executable, "-c", PROGRAM, cluster.address], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as program:
            assert program.stdin and program.stdout
            kept, gone, kept_waiting, gone_waiting = (
                PlacementGroup(ray.PlacementGroupID.from_hex(id)) for id in program.stdout.readline().split()
            )
            Started.groups.extend([kept, kept_waiting])
            program.stdin.close()
        wait_for(lambda: state(gone) == "REMOVED", what="the end of the group that was created")
        wait_for(lambda: is_forgotten(gone_waiting), what="the end of the group that waited")
        assert state(kept) == "CREATED"
        end(kept)
        assert kept_waiting.wait(60)


def is_forgotten(made: Any) -> bool:
    try:
        stead.why(made)
    except stead.Invalid as error:
        return "no placement group" in str(error)
    return False


REMOVE = {"stead's": stead.remove_placement_group, "Ray's": ray.util.remove_placement_group}


class TestRemoval:
    @pytest.mark.parametrize("remove", REMOVE.values(), ids=REMOVE.keys())
    def test_a_pending_group_is_never_created(self, remove: Any, places: Places) -> None:
        full = group([{"CPU": 4}])
        places(full)
        made = group([{"CPU": 3}], fallback_strategy=[{"bundles": [{"CPU": 2}]}])
        ready = made.ready()
        remove(made)
        wait_for(lambda: is_forgotten(made), what="the end of the group")
        with pytest.raises(TaskPlacementGroupRemoved):
            ray.get(ready, timeout=60)
        end(full)
        assert places(group([{"CPU": 4}])) == ["head"]

    @pytest.mark.parametrize("remove", REMOVE.values(), ids=REMOVE.keys())
    def test_what_a_created_group_held_is_free_again(self, remove: Any, places: Places) -> None:
        made = group([{"CPU": 4}])
        after = group([{"CPU": 4}])
        places(made)
        remove(made)
        assert places(after) == ["head"]
        wait_for(lambda: is_forgotten(made), what="the end of the group in the controller's books")

    def test_removing_it_twice_is_allowed(self) -> None:
        made = group([CPU])
        stead.remove_placement_group(made)
        stead.remove_placement_group(made)
        ray.util.remove_placement_group(made)

    @pytest.mark.parametrize("rounds", [5, pytest.param(50, marks=pytest.mark.long)])
    def test_nothing_is_left_after_four_groups_a_round(self, rounds: int) -> None:
        """No group is removed while Ray is placing it: Ray 2.60 itself then loses its resources."""
        made: list[Any] = []
        for number in range(rounds):
            created, *waiting = (stead.placement_group([{"CPU": 4}], name=f"{number}{which}") for which in "abcd")
            assert created.wait(60)
            made += [*waiting, created]
            list(map(REMOVE["Ray's" if number % 2 else "stead's"], made[-4:]))
        wait_for(lambda: used() == {}, what="all that they held")
        wait_for(lambda: all(is_forgotten(each) for each in made[::20] + made[-3:]), what="the end of all of them")
        left = {row["name"][:10] for row in placement_group_table().values() if row["state"] != "REMOVED"}
        assert left <= {"stead-plug"}
        total = {name for node in ray._private.state.state.total_resources_per_node().values() for name in node}
        assert not [name for name in total for each in made if each.id.hex() in name]


# -- groups without stead's options


class TestUnmodifiedGroups:
    def test_one_that_every_node_refuses_is_placed_when_the_taint_is_removed(self, head: str, places: Places) -> None:
        stead.taint(head, {"later": "yes"})
        made = plain_group([CPU] * 2)
        assert not made.wait(0.5)
        assert "1 tainted later=yes" in str(stead.why(made))
        stead.untaint(head, ["later"])
        assert places(made) == ["head"] * 2

    def test_so_does_one_of_a_worker(self, head: str) -> None:
        maker = started()
        assert ray.get(maker.where.remote(), timeout=60)
        stead.taint(head, {"later": "yes"})
        made = ray.get(maker.make_group.remote(), timeout=60)
        Started.groups.append(made)  # it would go only with its actor and its program
        assert not made.wait(0.5)
        stead.untaint(head, ["later"])
        assert made.wait(60)


# -- bad input

BAD: dict[str, tuple[dict[str, Any], str]] = {
    "no bundles": ({"bundles": []}, r"bundles \[\].*for example"),
    "a bundle alone": ({"bundles": {"CPU": 1}}, "must be a list"),
    "an empty bundle": ({"bundles": [{}]}, r"bundle \{\}.*for example"),
    "text for an amount": ({"bundles": [{"CPU": "1"}]}, "'1' of 'CPU', which must be a number"),
    "a negative amount": ({"bundles": [{"CPU": -1}]}, "-1 of 'CPU'"),
    "one GPU and a half": ({"bundles": [{"GPU": 1.5}]}, "whole devices, for example 2"),
    "an unknown strategy": ({"strategy": "TIGHT"}, "TIGHT"),
    "an unknown lifetime": ({"lifetime": "long"}, "long"),
    "a number for a name": ({"name": 3}, "name 3 of a placement group.*for example 'ring'"),
    "one selector for two bundles": ({"bundle_label_selector": [A100]}, "one selector for each of the 2 bundles"),
    "a selector alone": ({"bundle_label_selector": A100}, "one selector for each of the 2 bundles"),
    "a bad condition": ({"bundle_label_selector": [{"zone": "(a)"}] * 2}, r"'\(a\)' on label 'zone'.*'in\(a,b\)'"),
    "a bad key": ({"bundle_label_selector": [{"my zone": "a"}] * 2}, "label key 'my zone'.*for example 'zone'"),
    "a toleration by value": ({"tolerations": {"gpu_node": "true"}}, r"'true' of 'gpu_node'.*Exists\(\)"),
    "a fallback alone": ({"fallback_strategy": {"bundles": [CPU]}}, "must be a list, for example"),
    "a fallback of a task's": ({"fallback_strategy": [{"label_selector": A100}]}, "'label_selector'.*for example"),
    "a fallback without bundles": (
        {"fallback_strategy": [{"bundles": []}]},
        r"fallback_strategy has bundles \[\].*for example",
    ),
    "a strategy twice": ({"strategy": "PACK", "topology_strategy": {"zone": "STRICT_PACK"}}, "cannot both"),
    "a strategy Ray has not for labels": ({"topology_strategy": {"zone": "SPREAD"}}, "'SPREAD' for label 'zone'"),
}


class TestBadInput:
    @pytest.mark.parametrize(("options", "sentence"), BAD.values(), ids=BAD.keys())
    def test_it_is_refused_in_one_sentence(self, options: dict[str, Any], sentence: str) -> None:
        with pytest.raises(ValueError, match=sentence):
            group(**{"bundles": [CPU, CPU], **options})

    def test_only_a_group_can_be_removed(self) -> None:
        with pytest.raises(stead.Invalid, match="'ring' is not a placement group"):
            stead.remove_placement_group("ring")

    def test_an_unknown_group_has_no_reason(self) -> None:
        with pytest.raises(stead.Invalid, match="no placement group"):
            stead.why(PlacementGroup(ray.PlacementGroupID.of(ray.JobID.from_int(1))))
