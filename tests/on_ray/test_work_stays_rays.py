"""Work that stead places is still Ray's: real refs and handles, also while it is pending, and plain Ray's
accounting."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import ray

import stead
from stead.ray.local.local_cluster import LocalCluster
from tests.on_ray.conftest import ClusterOf
from tests.on_ray.waiting import wait_for
from tests.on_ray.workload import (
    SOON_S,
    Resident,
    attached,
    indexes,
    labelled,
    landed,
    resident,
    run_driver,
    waits,
    where,
)

pytestmark = pytest.mark.long

NODES: list[dict[str, Any]] = [
    {"num_cpus": 2, "labels": {"zone": "a"}},
    {"num_cpus": 2, "labels": {"zone": "b"}, "resources": {"slot": 2}},
]


@pytest.fixture(scope="module")
def cluster(cluster_of: ClusterOf) -> Iterator[LocalCluster]:
    with attached(cluster_of(NODES)) as started:
        yield started


def until(word: str) -> dict[str, Any]:
    """Options of work that is pending until a node gets this label."""
    return {"label_selector": {"admits": word}, "num_cpus": 0.1}


def admitting(cluster: LocalCluster, word: str) -> Any:
    return labelled(cluster.nodes[1].node_id, {"admits": word})


@pytest.fixture(scope="module")
def kinds() -> dict[str, Any]:
    """Functions and classes that are pickled by value, because they belong to no module."""

    def pair() -> tuple[int, int]:
        return 1, 2

    def stream(count: int) -> Iterator[int]:
        for value in range(count):  # noqa: UP028  # Ray sends into what it iterates, which a range cannot take
            yield value

    def pass_on(actor: Any, **options: Any) -> Any:
        """Submits labelled work from a worker, and calls an actor whose handle it received."""
        here = ray.remote(lambda: ray.get_runtime_context().get_node_id()).options(**options).remote()
        return [ray.get(here), ray.get(actor.where.remote())]

    class Asynchronous:
        async def submit(self, options: Any) -> Any:
            here = ray.remote(lambda: ray.get_runtime_context().get_node_id())
            return await asyncio.gather(*(here.options(**each).remote() for each in options))

        async def twice(self, value: int) -> int:
            return 2 * value

        async def count(self, end: int) -> AsyncIterator[int]:
            for value in range(end):
                yield value

    return {
        "pair": ray.remote(num_returns=2)(pair),
        "stream": ray.remote(num_returns="streaming")(stream),
        "pass_on": ray.remote(pass_on),
        "Asynchronous": ray.remote(Asynchronous),
    }


class TestWorkThatWaits:
    def test_calls_queue_on_a_waiting_actor_and_run_in_their_order(self, cluster: LocalCluster) -> None:
        with resident(**until("calls")) as actor:
            assert isinstance(actor, ray.actor.ActorHandle)
            calls = [actor.where.remote() for _ in range(3)]
            counted = actor.counted.remote()
            assert isinstance(counted, ray.ObjectRef)
            assert waits(*calls, counted)
            with pytest.raises(ray.exceptions.GetTimeoutError):
                ray.get(counted, timeout=0.1)
            with admitting(cluster, "calls"):
                assert ray.get(counted, timeout=SOON_S) == 3
                assert indexes(cluster, calls) == {1}

    def test_refs_of_several_returns_and_of_streams_are_there_at_once(
        self, cluster: LocalCluster, kinds: dict[str, Any]
    ) -> None:
        one, two = kinds["pair"].options(**until("refs")).remote()
        stream = kinds["stream"].options(**until("refs")).remote(3)
        assert isinstance(stream, ray.ObjectRefGenerator)
        assert waits(one, two)
        assert "2 lack admits in {refs}" in str(stead.why(one))
        assert "2 lack admits in {refs}" in str(stead.why(stream))
        with admitting(cluster, "refs"):
            assert ray.get([two, one], timeout=SOON_S) == [2, 1]
            assert [ray.get(ref) for ref in stream] == [0, 1, 2]

    def test_wait_returns_ready_refs_and_leaves_pending_ones(self, cluster: LocalCluster) -> None:
        waiting, ready = where.options(**until("never")).remote(), where.options(label_selector={"zone": "a"}).remote()
        assert ray.wait([waiting, ready], num_returns=1, timeout=SOON_S) == ([ready], [waiting])
        ray.cancel(waiting)

    def test_a_waiting_task_can_be_cancelled_and_never_runs(self, cluster: LocalCluster) -> None:
        doomed, other = where.options(**until("cancel")).remote(), where.options(**until("cancel")).remote()
        depending = where.remote(doomed)
        assert waits(doomed, other)
        ray.cancel(doomed)
        with pytest.raises(ray.exceptions.TaskCancelledError):
            ray.get(doomed, timeout=SOON_S)
        with pytest.raises(ray.exceptions.RayError):
            ray.get(depending, timeout=SOON_S)
        with admitting(cluster, "cancel"):
            assert indexes(cluster, [other]) == {1}

    def test_a_waiting_actor_can_be_killed_and_its_name_is_free_again(self, cluster: LocalCluster) -> None:
        doomed = Resident.options(name="short-lived", **until("never")).remote()
        call = doomed.where.remote()
        assert waits(call)
        ray.kill(doomed)
        with pytest.raises(ray.exceptions.RayActorError):
            ray.get(call, timeout=SOON_S)
        again = wait_for(lambda: _named("short-lived"), SOON_S, "the release of the name")
        assert again._actor_id != doomed._actor_id
        ray.kill(again)

    def test_a_waiting_actor_is_found_by_its_name(self, cluster: LocalCluster) -> None:
        with resident(name="found", **until("name")) as actor:
            assert ray.get_actor("found")._actor_id == actor._actor_id
            same = Resident.options(name="found", get_if_exists=True, **until("name")).remote()
            assert same._actor_id == actor._actor_id
            with pytest.raises(ValueError, match="found"):
                Resident.options(name="found", **until("name")).remote()
            call = ray.get_actor("found").where.remote()
            assert waits(call)
            with admitting(cluster, "name"):
                assert indexes(cluster, [call]) == {1}

    def test_handles_of_waiting_actors_travel_between_workers(
        self, cluster: LocalCluster, kinds: dict[str, Any]
    ) -> None:
        with resident(**until("travel")) as actor, resident(num_cpus=0, label_selector={"zone": "a"}) as asker:
            through_a_task = kinds["pass_on"].options(num_cpus=0.1).remote(actor, **until("travel"))
            through_an_actor = asker.ask.remote(actor)
            assert waits(through_a_task, through_an_actor)
            with admitting(cluster, "travel"):
                there = cluster.nodes[1].node_id
                assert ray.get(through_a_task, timeout=SOON_S) == [there, there]
                assert ray.get(through_an_actor, timeout=SOON_S) == there


def _named(name: str) -> Any:
    try:
        return Resident.options(name=name, num_cpus=0).remote()
    except ValueError:
        return None


class TestAsyncActors:
    def test_a_waiting_one_keeps_its_calls_and_itself_submits_labelled_work(
        self, cluster: LocalCluster, kinds: dict[str, Any]
    ) -> None:
        actor = kinds["Asynchronous"].options(**until("async")).remote()
        calls, stream = [actor.twice.remote(value) for value in range(4)], actor.count.remote(3)
        assert waits(*calls)
        rules = [
            {"label_selector": {"zone": "b"}},
            {"scheduling_strategy": stead.node_affinity(stead.label_in("zone", ["a"], is_soft=True))},
            {"scheduling_strategy": stead.node_affinity("zone in [b, c]")},
        ]
        with admitting(cluster, "async"):
            assert ray.get(calls, timeout=SOON_S) == [0, 2, 4, 6]
            assert [ray.get(ref) for ref in stream] == [0, 1, 2]
            first, second = (node.node_id for node in cluster.nodes)
            assert ray.get(actor.submit.remote(rules), timeout=SOON_S) == [second, first, second]
        ray.kill(actor)


OTHER_DRIVER = """
    import json, sys
    import ray, stead
    stead.init(sys.argv[1], namespace="tests", log_to_driver=False, logging_level="error")

    @ray.remote
    class Lasting:
        def where(self):
            return ray.get_runtime_context().get_node_id()

    @ray.remote(num_cpus=0.1)
    def where():
        return ray.get_runtime_context().get_node_id()

    waiting = {"label_selector": {"admits": "drivers"}, "num_cpus": 0.1}
    Lasting.options(name="lasting", lifetime="detached", **waiting).remote()
    mine = where.options(**waiting).remote()
    found = {"waits": not ray.wait([mine], timeout=1.0)[0], "why": str(stead.why(mine))}
    found["theirs"] = ray.get(ray.get_actor("theirs").where.remote(), timeout=60)
    found["nodes"] = len(stead.nodes())
    print(json.dumps(found))
"""


def test_two_drivers_share_one_cluster_and_a_detached_actor_outlives_its_driver(cluster: LocalCluster) -> None:
    with resident(name="theirs", num_cpus=0):
        found = run_driver(OTHER_DRIVER, {}, cluster.address)
    assert found == {
        "waits": True,
        "why": found["why"],
        "theirs": found["theirs"],
        "nodes": 2,
    }
    assert "2 lack admits in {drivers}" in found["why"]
    lasting = ray.get_actor("lasting")
    call = lasting.where.remote()
    assert waits(call)
    assert "2 lack admits in {drivers}" in str(stead.why(lasting))
    with admitting(cluster, "drivers"):
        assert indexes(cluster, [call]) == {1}
    ray.kill(lasting)


def test_plain_work_is_unchanged(cluster: LocalCluster) -> None:
    """With ``stead.init`` and without a taint, work without stead's options carries none of stead's resources."""

    carried: Any = ray.remote(lambda: list(ray.get_runtime_context().get_assigned_resources()))
    assert ray.get(carried.remote(), timeout=SOON_S) == ["CPU"]
    named = ray.get(carried.options(label_selector={"zone": "a"}).remote(), timeout=SOON_S)
    assert sorted(name.partition(".")[0] for name in named) == ["CPU", "stead"]
    assert landed(cluster, 1) <= {0, 1}


ACCOUNTING = """
    import json, sys, time
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy
    ray.init(log_to_driver=False, logging_level="error")
    a, b = sys.argv[1:]

    def here():
        return ray.get_runtime_context().get_node_id()

    @ray.remote
    class Default:
        def here(self):
            return here()

        def carried(self):
            return sorted(name.partition(".")[0] for name in ray.get_runtime_context().get_assigned_resources())

    @ray.remote
    def work(depth=0):
        return [here()] + (ray.get(work.remote(depth - 1)) if depth else [])

    @ray.remote
    def parent(count):
        return ray.get([child.remote() for _ in range(count)])

    @ray.remote
    def child():
        held = ray.get_runtime_context().get_assigned_resources()
        return [ray.util.get_current_placement_group().id.hex(), *held]

    def free():
        until = time.monotonic() + 20
        while (found := ray.available_resources().get("CPU")) != 4.0 and time.monotonic() < until:
            time.sleep(0.05)
        return found

    pins = {True: NodeAffinitySchedulingStrategy(b, soft=True), False: NodeAffinitySchedulingStrategy(b, soft=False)}
    found = {"nested": len(ray.get(work.remote(4), timeout=90))}  # their workers are warm then for the actors
    actors = [Default.remote() for _ in range(3)]
    actors += [Default.options(scheduling_strategy="SPREAD").remote() for _ in range(2)]
    found["default actors"] = len(ray.get([actor.here.remote() for actor in actors], timeout=90))
    found["spread over"] = len(set(ray.get([actor.here.remote() for actor in actors[3:]])))
    found["free beside them"] = free()
    found["carried"] = ray.get(actors[0].carried.remote())
    pinned = [Default.options(scheduling_strategy=pin).remote() for pin in pins.values()]
    found["pinned actors"] = ray.get([actor.here.remote() for actor in pinned], timeout=60) == [b, b]
    found["free beside the pinned"] = free()
    tasks = [work.options(scheduling_strategy=pin).remote() for pin in pins.values()]
    found["pinned tasks"] = ray.get(tasks, timeout=60) == [[b], [b]]
    slot = Default.options(resources={"slot": 1}).remote()
    ray.get(slot.here.remote(), timeout=60)
    found["an actor with an amount holds"] = 4.0 - ray.available_resources()["CPU"]
    for actor in (*actors, *pinned, slot):
        ray.kill(actor)
    group = ray.util.placement_group([{"CPU": 2}], strategy="STRICT_PACK")
    ray.get(group.ready(), timeout=60)
    captured = PlacementGroupSchedulingStrategy(group, placement_group_capture_child_tasks=True)
    children = ray.get(parent.options(scheduling_strategy=captured).remote(2), timeout=60)
    found["captured"] = children == [[group.id.hex(), "CPU"]] * 2
    ray.util.remove_placement_group(group)
    found["free at the end"] = free()
    print(json.dumps(found))
"""


def test_under_the_hook_plain_work_keeps_plain_rays_accounting(cluster: LocalCluster) -> None:
    """Seven default actors on 4 CPUs start and hold none, five nested tasks end, child tasks stay captured."""
    told = {"RAY_ADDRESS": cluster.address, "RAY_RUNTIME_ENV_HOOK": "stead.ray.hook"}
    found = run_driver(ACCOUNTING, told, *(node.node_id for node in cluster.nodes))
    assert found == {
        "default actors": 5,
        "spread over": 2,
        "free beside them": 4.0,
        "carried": ["stead"],
        "pinned actors": True,
        "free beside the pinned": 4.0,
        "pinned tasks": True,
        "an actor with an amount holds": 1.0,
        "nested": 5,
        "captured": True,
        "free at the end": 4.0,
    }


UNPATCHED = """
    import json, sys
    import ray, stead
    from stead.ray.submit import core_worker as submission
    ray.init(sys.argv[1], log_to_driver=False, logging_level="error")
    a, b = sys.argv[2:]
    before = ray.remote_function.RemoteFunction._remote, ray.util.placement_group

    @stead.remote(num_cpus=0.1, label_selector={"zone": "b"})
    def where():
        return ray.get_runtime_context().get_node_id()

    @stead.remote
    class Resident:
        def where(self):
            return ray.get_runtime_context().get_node_id()

    @stead.remote(num_returns=2, num_cpus=0.1)
    def pair():
        return 1, 2

    @stead.remote(num_returns="streaming", num_cpus=0.1)
    def stream():
        for value in range(3):
            yield value

    in_a = stead.node_affinity(stead.label_in("zone", ["a"]))
    found = {"decorated": ray.get(where.remote(), timeout=60) == b}
    found["options"] = ray.get(where.options(label_selector={"zone": "!b"}).remote(), timeout=60) == a
    found["affinity"] = ray.get(where.options(label_selector=None, scheduling_strategy=in_a).remote(), timeout=60) == a
    actor = Resident.options(scheduling_strategy=in_a).remote()
    found["actor"] = ray.get(actor.where.remote(), timeout=60) == a
    found["handle"] = isinstance(actor, ray.actor.ActorHandle)
    found["pair"] = ray.get(pair.options(scheduling_strategy=in_a).remote(), timeout=60)
    found["stream"] = [ray.get(ref) for ref in stream.options(label_selector={"zone": "b"}).remote()]
    waiting = where.options(label_selector={"zone": "mars"}).remote()
    found["waits"] = not ray.wait([waiting], timeout=1.0)[0]
    found["why"] = str(stead.why(waiting)).partition(":")[0]
    stead.taint(b, {"closed": "yes"})
    tainted = where.remote()
    found["tainted waits"] = not ray.wait([tainted], timeout=1.0)[0]
    tolerant = where.options(tolerations={"closed": stead.Exists()}).remote()
    found["tolerant"] = ray.get(tolerant, timeout=60) == b
    stead.untaint(b, ["closed"])
    found["untainted"] = ray.get(tainted, timeout=60) == b
    found["late"] = ""
    try:
        stead.get(where.options(label_selector={"zone": "mars"}, deadline_s=1).remote(), timeout=60)
    except stead.Unplaced as error:
        found["late"] = "2 lack zone in {mars}" in str(error)
    after = ray.remote_function.RemoteFunction._remote, ray.util.placement_group
    found["patched"] = submission.is_installed() or before != after
    print(json.dumps(found))
"""


def test_steads_own_decorator_works_the_same_without_patching(cluster: LocalCluster) -> None:
    found = run_driver(UNPATCHED, {}, cluster.address, *(node.node_id for node in cluster.nodes))
    assert found == {
        "decorated": True,
        "options": True,
        "affinity": True,
        "actor": True,
        "handle": True,
        "pair": [1, 2],
        "stream": [0, 1, 2],
        "waits": True,
        "why": "0 of 2 nodes fit",
        "tainted waits": True,
        "tolerant": True,
        "untainted": True,
        "late": True,
        "patched": False,
    }


LEAVES_EARLY = """
    import json, sys, threading
    import ray, stead

    @ray.remote
    def never():
        pass

    stead.init(sys.argv[1], log_to_driver=False, logging_level="error")
    never.options(label_selector={"zone": "mars"}, deadline_s=1).remote()
    ray.shutdown()
    watching = [thread for thread in threading.enumerate() if thread.name == "stead-deadlines"]
    for thread in watching:
        thread.join(60)
    print(json.dumps([len(watching), any(thread.is_alive() for thread in watching), ray.is_initialized()]))
"""


def test_a_deadline_that_passes_after_a_program_has_left_starts_no_other_ray(cluster: LocalCluster) -> None:
    """Ray automatically starts a cluster for a program that calls an actor without a connection."""
    assert run_driver(LEAVES_EARLY, {}, cluster.address) == [1, False, False]
