"""Placement groups through failures: nodes and the controller are killed with SIGKILL, at exact steps of its loop.

A bundle whose node died is placed again under the current rules. An acknowledged group is created once, whatever
happens to the controller. The nodes of the pool have one CPU each; every test adds its own.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import stead
from stead.ray.local.local_cluster import LocalCluster, LocalNode
from stead.ray.submit.connection import connection
from tests.on_ray.conftest import ClusterOf
from tests.on_ray.killing import SETTLE, WRITE, Killer, Step
from tests.on_ray.waiting import wait_for

ray = pytest.importorskip("ray")
from ray.util.placement_group import PlacementGroup, placement_group_table  # noqa: E402
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy  # noqa: E402

pytestmark = pytest.mark.long

ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import a test

CPU: dict[str, float] = {"CPU": 1}
POOL = {"pool": "exists()"}


@pytest.fixture(scope="module")
def killer(tmp_path_factory: pytest.TempPathFactory) -> Killer:
    return Killer(tmp_path_factory.mktemp("killing"))


@pytest.fixture(scope="module")
def cluster(cluster_of: ClusterOf, killer: Killer) -> Iterator[LocalCluster]:
    found = cluster_of([{"num_cpus": 2}], environment=killer.environment)
    stead.init(found.address, namespace="tests", log_to_driver=False, logging_level="error")
    yield found
    ray.shutdown()


Pool = Callable[..., list[LocalNode]]


@pytest.fixture
def pool(cluster: LocalCluster) -> Iterator[Pool]:
    """Nodes with the label that the groups of a test ask for; they end with it."""
    first = len(cluster.nodes)

    def start(*cpus: int) -> list[LocalNode]:
        return [cluster.add_node(num_cpus=each, labels={"pool": "yes"}) for each in cpus]

    yield start
    for node in cluster.nodes[first:]:
        cluster.kill_node(node.index)
    wait_for(lambda: len(stead.nodes()) == 1, what="the end of the pool")


@pytest.fixture(autouse=True)
def as_it_was(cluster: LocalCluster) -> Iterator[None]:
    yield
    for made in Started.groups:
        ray.util.remove_placement_group(made)
    del Started.groups[:]


class Started:
    groups: list[PlacementGroup] = []  # noqa: RUF012


def group(bundles: list[dict[str, float]], *given: Any, **options: Any) -> Any:
    made = stead.placement_group(bundles, *given, **options)
    Started.groups.append(made)
    return made


def in_pool(count: int, strategy: str = "PACK", **options: Any) -> Any:
    return group([CPU] * count, strategy, bundle_label_selector=[POOL] * count, **options)


def end(made: Any) -> None:
    Started.groups.remove(made)
    stead.remove_placement_group(made)


def state(made: Any) -> str:
    return str((placement_group_table(made) or {}).get("state", "unknown to Ray"))


def places(made: Any) -> list[str]:
    """The nodes of the bundles, "" for those that have none."""
    found = placement_group_table(made)["bundles_to_node_id"]
    return [found[index] for index in sorted(found)]


def placed(made: Any) -> list[str]:
    """The nodes of the bundles, once all of them have one."""

    def all_of_them() -> list[str]:
        found = places(made) if state(made) == "CREATED" else []
        return found if all(found) else []

    return wait_for(all_of_them, 60, f"the placement of {made.id.hex()}")


def kill(cluster: LocalCluster, node_id: str) -> None:
    """Kill a node, and wait until Ray and the controller know."""
    cluster.kill_node(next(node.index for node in cluster.nodes if node.node_id == node_id))
    wait_for(lambda: node_id not in {each.id for each in stead.nodes()}, what="the news of the node's end")


@ray.remote(num_cpus=1)  # type: ignore[untyped-decorator]
def where() -> str:
    return str(ray.get_runtime_context().get_node_id())


def run_in(made: Any, index: int) -> str:
    strategy = PlacementGroupSchedulingStrategy(made, index)
    return str(ray.get(where.options(scheduling_strategy=strategy).remote(), timeout=60))


class TestANodeThatDies:
    def test_its_bundle_is_placed_again_under_the_current_rules(self, cluster: LocalCluster, pool: Pool) -> None:
        spare = pool(1, 1, 1)
        made = in_pool(2, "STRICT_SPREAD")
        stays, dies = placed(made)
        [other] = [node.node_id for node in spare if node.node_id not in (stays, dies)]
        stead.taint(other, {"later": "yes"})
        kill(cluster, dies)
        wait_for(lambda: places(made) == [stays, ""], what="the loss of the bundle")
        assert not made.wait(1)
        assert "1 tainted later=yes" in str(stead.why(made))
        stead.untaint(other, ["later"])
        assert placed(made) == [stays, other]
        assert run_in(made, 1) == other

    def test_its_bundles_are_placed_again_all_or_none(self, cluster: LocalCluster, pool: Pool) -> None:
        [big] = pool(2)
        made = in_pool(2)
        assert placed(made) == [big.node_id] * 2
        pool(1)
        kill(cluster, big.node_id)
        wait_for(lambda: places(made) == ["", ""], what="the loss of the bundles")
        assert not made.wait(1)
        assert places(made) == ["", ""]
        assert "no placement was found for all of them together" in str(stead.why(made))
        pool(1)
        assert all(placed(made))

    def test_one_that_dies_while_the_group_is_created_leaves_no_partial_group(
        self, cluster: LocalCluster, pool: Pool
    ) -> None:
        first, second = pool(1, 1)
        before = in_pool(2, "STRICT_SPREAD")  # so that the pass for such groups is there already
        assert all(placed(before))
        end(before)
        wait_for(lambda: ray.available_resources().get("CPU") == ray.cluster_resources()["CPU"], what="room again")
        os.kill(second.raylet_pid, signal.SIGSTOP)  # it no longer answers, and no other process knows yet
        made = in_pool(2, "STRICT_SPREAD")
        wait_for(lambda: state(made) == "PENDING", what="the beginning of its creation")
        kill(cluster, second.node_id)
        assert not made.wait(1)
        [third] = pool(1)
        assert sorted(placed(made)) == sorted([first.node_id, third.node_id])

    @pytest.mark.parametrize("make", [stead.placement_group, ray.util.placement_group], ids=["stead's", "Ray's"])
    def test_a_group_that_no_node_can_hold_any_more_is_placed_when_one_joins(
        self, make: Any, cluster: LocalCluster, pool: Pool
    ) -> None:
        [only] = pool(3)
        made = make([{"CPU": 3}])
        Started.groups.append(made)
        assert placed(made) == [only.node_id]
        kill(cluster, only.node_id)
        wait_for(lambda: places(made) == [""], what="the loss of the bundle")
        [joined] = pool(3)
        assert placed(made) == [joined.node_id]

    @pytest.mark.parametrize("make", [stead.placement_group, ray.util.placement_group], ids=["stead's", "Ray's"])
    def test_or_when_a_taint_is_removed(self, make: Any, cluster: LocalCluster, pool: Pool) -> None:
        stead.taint(cluster.nodes[0].node_id, {"first": "yes"})  # from the first taint on, plain groups are bound
        stead.untaint(cluster.nodes[0].node_id, ["first"])
        [only] = pool(3)
        made = make([{"CPU": 3}])
        Started.groups.append(made)
        assert placed(made) == [only.node_id]
        [other] = pool(3)
        stead.taint(other.node_id, {"later": "yes"})
        kill(cluster, only.node_id)
        wait_for(lambda: places(made) == [""], what="the loss of the bundle")
        assert not made.wait(1)
        stead.untaint(other.node_id, ["later"])
        assert placed(made) == [other.node_id]


class TestANodeThatJoins:
    @pytest.mark.parametrize("make", [stead.placement_group, ray.util.placement_group], ids=["stead's", "Ray's"])
    def test_a_group_that_no_node_could_hold_is_placed(self, make: Any, pool: Pool) -> None:
        made = make([{"CPU": 3}])
        Started.groups.append(made)
        assert not made.wait(0.3)
        assert "1 too small for 3 CPU" in str(stead.why(made))
        [joined] = pool(3)
        assert placed(made) == [joined.node_id]


STEPS = {
    "before it is written down": Step(WRITE, "before"),
    "while it is written down": Step(WRITE, "within"),
    "when it is decided and not yet created": Step(WRITE, "after"),
    "when it is created and not yet heard of": Step(SETTLE, "before"),
    "after the round": Step(SETTLE, "after"),
}


ENDS = {name: STEPS[f"{name} it is written down"] for name in ("before", "while")}
ENDS["when it is written down"] = Step(WRITE, "after")


class TestAControllerThatDies:
    @pytest.mark.parametrize("step", STEPS.values(), ids=STEPS.keys())
    def test_a_group_is_created_once(self, step: Step, cluster: LocalCluster, killer: Killer) -> None:
        before = connection().ask("hello")["pid"]
        full = group([CPU])
        assert placed(full)
        with killer.at(step, since="GroupSubmitted"):
            made = group([CPU], name=f"killed {step}")
            wait_for(lambda: connection().ask("hello")["pid"] != before, what="another controller")
        assert placed(made) == [cluster.nodes[0].node_id]
        named = [row for row in placement_group_table().values() if row["name"] == f"killed {step}"]
        assert [row["state"] for row in named] == ["CREATED"]
        end(made)
        wait_for(lambda: ray.available_resources().get("CPU") == 1, what="what it held")

    @pytest.mark.parametrize("step", ENDS.values(), ids=ENDS.keys())
    def test_a_removed_group_frees_its_room_for_the_next(
        self, step: Step, cluster: LocalCluster, killer: Killer
    ) -> None:
        before = connection().ask("hello")["pid"]
        made = group([CPU, CPU])
        assert placed(made)
        with killer.at(step, since="GroupEnded"):
            end(made)
            wait_for(lambda: connection().ask("hello")["pid"] != before, what="another controller")
        assert placed(group([CPU, CPU])) == [cluster.nodes[0].node_id] * 2

    def test_pending_groups_are_then_placed_in_order(self, cluster: LocalCluster) -> None:
        full = group([{"CPU": 2}])
        assert placed(full)
        waiting = [group([{"CPU": 2}], name=f"waiting {number}") for number in range(3)]
        refs = [run_later(made) for made in waiting]
        pid = connection().ask("hello")["pid"]
        os.kill(pid, signal.SIGKILL)
        wait_for(lambda: connection().ask("hello")["pid"] != pid, what="another controller")
        assert [state(made) for made in waiting] == ["unknown to Ray"] * 3
        assert all("short of 2 CPU" in str(stead.why(made)) for made in waiting)
        end(full)
        for made, ref in zip(waiting, refs, strict=True):
            assert ray.get(ref, timeout=60) == cluster.nodes[0].node_id
            assert [state(each) for each in waiting].count("CREATED") == 1
            end(made)

    def test_no_group_is_lost_or_created_twice_while_it_is_killed_repeatedly(self, cluster: LocalCluster) -> None:
        made = []
        for number in range(12):
            made.append(group([{"CPU": 0.1}], name=f"often {number}"))
            if number % 4 == 1:
                os.kill(connection().ask("hello")["pid"], signal.SIGKILL)
        assert all(placed(each) for each in made)
        names = [row["name"] for row in placement_group_table().values() if row["state"] == "CREATED"]
        assert sorted(name for name in names if name.startswith("often")) == sorted(f"often {n}" for n in range(12))
        for each in made:
            end(each)
        wait_for(lambda: ray.available_resources().get("CPU") == 2, what="what they held")


def run_later(made: Any) -> Any:
    return where.options(scheduling_strategy=PlacementGroupSchedulingStrategy(made, 0)).remote()


# -- a no-execute taint


class Member:
    def where(self) -> str:
        return str(ray.get_runtime_context().get_node_id())


def member_of(made: Any, index: int) -> Any:
    inside = PlacementGroupSchedulingStrategy(made, index)
    return (
        ray.remote(num_cpus=1, max_restarts=-1, max_task_retries=-1)(Member)
        .options(scheduling_strategy=inside)
        .remote()
    )


def direct(count: int, strategy: str = "PACK") -> Any:
    """A group without rules, which goes directly to Ray."""
    made = ray.util.placement_group([CPU] * count, strategy)
    Started.groups.append(made)
    return made


@pytest.mark.parametrize("made_by", [in_pool, direct], ids=["decided by the engine", "left to Ray"])
def test_a_group_under_a_no_execute_taint_is_placed_again_and_its_actors_follow(
    cluster: LocalCluster, pool: Pool, made_by: Callable[..., Any]
) -> None:
    nodes = [node.node_id for node in pool(1, 1, 1)]
    stead.taint(cluster.nodes[0].node_id, {"away": "yes"})
    made = made_by(2, "STRICT_SPREAD")
    before = placed(made)
    actors = [member_of(made, index) for index in range(2)]
    assert ray.get([actor.where.remote() for actor in actors], timeout=60) == before
    (free,) = set(nodes) - set(before)
    since = max((event.number for event in stead.events()), default=0)

    stead.taint(before[0], {"repair": "disk"}, effect="no-execute")

    wait_for(lambda: state(made) == "CREATED" and set(places(made)) == {free, before[1]}, 60, "the new places")
    assert set(ray.get([actor.where.remote() for actor in actors], timeout=60)) == {free, before[1]}
    told = [event for event in stead.events(since) if event.kind == "evicted" and event.subject == made.id.hex()]
    assert ["repair=disk:no-execute" in event.text for event in told] == [True]
    stead.untaint(cluster.nodes[0].node_id, ["away"])


def test_a_group_without_other_room_is_pending_and_returns_when_the_taint_is_gone(
    cluster: LocalCluster, pool: Pool
) -> None:
    (only,) = pool(1)
    made = in_pool(1)
    assert placed(made) == [only.node_id]
    stead.taint(only.node_id, {"repair": "disk"}, effect="no-execute")
    wait_for(lambda: state(made) != "CREATED", what="the end of its place")
    wait_for(lambda: "repair=disk" in why(made), what="why it waits")  # answers can be up to half a second old
    stead.untaint(only.node_id, ["repair"])
    assert placed(made) == [only.node_id]


def test_a_group_that_tolerates_a_taint_for_some_seconds_stays_that_long(cluster: LocalCluster, pool: Pool) -> None:
    one, two = (node.node_id for node in pool(1, 1))
    made = in_pool(1, tolerations={"repair": stead.Exists(effect="no-execute", seconds=3.0)})
    (before,) = placed(made)
    stead.taint(two if before == one else one, {"away": "yes"})
    tainted = time.time()
    stead.taint(before, {"repair": "disk"}, effect="no-execute")
    told = wait_for(
        lambda: [e for e in stead.events() if e.kind == "evicted" and e.subject == made.id.hex()], what="the eviction"
    )
    assert told[0].at - tainted >= 3.0


def why(made: Any) -> str:
    try:
        return str(stead.why(made))
    except stead.Invalid:
        return ""
