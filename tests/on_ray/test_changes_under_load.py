"""Changes while work is pending and running: nothing fails, and work that has not started obeys (three raylets of one
CPU)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import stead
from tests.on_ray.drivers.stream import stream
from tests.on_ray.waiting import wait_for

ray = pytest.importorskip("ray")
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy  # noqa: E402

pytestmark = pytest.mark.long

ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import a test
ray.cloudpickle.register_pickle_by_value(sys.modules[stream.__module__])

STREAM = Path(__file__).parent / "drivers" / "stream.py"
LANES = {"left": 1, "right": 1}
ESCAPED_MAX = 0.05
"""The share of tasks submitted but not started when the taint took effect that may still run there."""


@pytest.fixture(scope="module")
def cluster(cluster_of: Any) -> Iterator[Any]:
    found = cluster_of(
        [
            {"num_cpus": 1, "resources": LANES},
            {"num_cpus": 1, "resources": {**LANES, "disk": 9}, "labels": {"zone": "b"}},
            {"num_cpus": 1, "resources": LANES, "taints": {"spare": "yes"}},
        ]
    )
    stead.init(found.address, namespace="tests", log_to_driver=False, logging_level="error")
    stead.untaint(found.nodes[2].node_id, ["spare"])  # after the first taint, plain work is bound
    yield found
    ray.shutdown()


@pytest.fixture(scope="module")
def ids(cluster: Any) -> list[str]:
    return [node.node_id for node in cluster.nodes]


@ray.remote(num_cpus=1, max_retries=0)  # type: ignore[untyped-decorator]
def where(seconds: float = 0.0) -> str:
    threading.Event().wait(seconds)
    return str(ray.get_runtime_context().get_node_id())


class Home:
    def where(self) -> str:
        return str(ray.get_runtime_context().get_node_id())


Stayer: Any = ray.remote(num_cpus=1)(Home)


@pytest.fixture(autouse=True)
def as_it_was(ids: list[str]) -> Iterator[None]:
    """After each test, no node is tainted."""
    yield
    for view in stead.nodes():
        if view.taints:
            stead.untaint(view.id, [taint.key for taint in view.taints])


def filled(id: str, **options: Any) -> Any:
    """An actor that holds a node's only CPU, under its own pass, so other work cannot use what it frees."""
    pin = NodeAffinitySchedulingStrategy(id, soft=False)
    options.setdefault("tolerations", {"nothing": stead.Exists()})
    actor = Stayer.options(scheduling_strategy=pin, **options).remote()
    assert ray.get(actor.where.remote(), timeout=60) == id
    return actor


# -- the only node that fits is lost and comes back


@pytest.mark.parametrize(
    "needs",
    [{"label_selector": {"zone": "b"}}, {"resources": {"disk": 1}}],
    ids=["by its label", "by a resource of its own"],
)
def test_pending_work_survives_a_taint_of_the_only_node_that_fits(needs: dict[str, Any], ids: list[str]) -> None:
    blocker = filled(ids[1])
    tasks = [where.options(**needs).remote() for _ in range(20)]
    actors = [Stayer.options(max_restarts=-1, **needs).remote() for _ in range(2)]
    homes = [actor.where.remote() for actor in actors]
    assert ray.wait([*tasks, *homes], timeout=0.3)[0] == []

    stead.taint(ids[1], {"repair": "yes"})
    ray.kill(blocker)
    assert ray.wait([*tasks, *homes], timeout=2.0)[0] == [], "none runs there, and none has failed"

    stead.untaint(ids[1], ["repair"])
    for _ in actors:  # one CPU: they take turns
        [home], homes = ray.wait(homes, timeout=60)
        assert ray.get(home) == ids[1]
        ray.kill(next(actor for actor in actors if actor._actor_id == home.task_id().actor_id()))
    assert set(ray.get(tasks, timeout=60)) == {ids[1]}


def test_work_that_ends_on_a_tainted_node_admits_at_most_one_queued_piece(ids: list[str]) -> None:
    """Ray gives what a piece of work frees to its own queue before stead can withdraw it."""
    blocker = filled(ids[1], tolerations=None)
    tasks = [where.options(resources={"disk": 1}).remote() for _ in range(20)]
    assert ray.wait(tasks, timeout=0.3)[0] == []
    stead.taint(ids[1], {"repair": "yes"})
    ray.kill(blocker)
    ran = ray.wait(tasks, num_returns=len(tasks), timeout=2.0)[0]
    assert len(ran) <= 1
    stead.untaint(ids[1], ["repair"])
    assert set(ray.get(tasks, timeout=60)) == {ids[1]}


# -- the only grant moves


@pytest.mark.parametrize("gap", [False, True], ids=["set, then removed", "removed, then set"])
def test_work_follows_a_label_that_moves_under_load(gap: bool, ids: list[str]) -> None:
    first, second = (ids[1], ids[2]) if gap else (ids[2], ids[1])
    stead.label(first, {"tier": "fast"})
    follower = where.options(label_selector={"tier": "fast"})
    assert ray.get(follower.remote(), timeout=60) == first
    before = [follower.remote(0.02) for _ in range(60)]
    ray.wait(before, num_returns=5)
    if gap:
        stead.label(first, remove=["tier"])
        stead.label(second, {"tier": "fast"})
    else:
        stead.label(second, {"tier": "fast"})
        stead.label(first, remove=["tier"])
    after = [follower.remote() for _ in range(20)]
    assert set(ray.get(after, timeout=60)) == {second}
    there = ray.get(before, timeout=60)
    assert set(there) == {first, second}, "some had run, the others moved"
    stead.label(second, remove=["tier"])


# -- the lease trap


def streaming_elsewhere(cluster: Any, nodes: list[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(STREAM), cluster.address, "right", *nodes],
        env={**os.environ, "RAY_RUNTIME_ENV_HOOK": "stead.ray.hook"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def test_a_taint_holds_against_streams_of_leased_work_from_two_drivers(
    cluster: Any, ids: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Ray keeps using a leased worker, whatever happens to the resource it was leased for."""
    until, ready, mine = threading.Event(), threading.Event(), list[tuple[float, str, float]]()
    thread = threading.Thread(target=lambda: mine.extend(stream("left", set(ids), ready, until)))
    with streaming_elsewhere(cluster, ids) as other:
        assert other.stdin and other.stdout
        thread.start()
        assert ready.wait(60)
        assert other.stdout.readline() == "ready\n"
        called = time.time()
        stead.taint(ids[2], {"repair": "yes"})
        held = time.time()
        wait_for(lambda: time.time() > held + 6.0, what="more of the stream")
        until.set()
        other.stdin.close()
        theirs = json.loads(other.stdout.read())
    thread.join()

    assert other.returncode == 0, "no task of the other driver failed"
    for name, ran in (("this driver", mine), ("the other driver", theirs)):
        after = [(node, at) for submitted, node, at in ran if submitted > held]
        queued = [(node, at) for submitted, node, at in ran if submitted <= held < at]
        escaped = [at - held for node, at in queued if node == ids[2]]
        assert len(after) > 50, "the stream went on"
        assert [node for node, _ in after if node == ids[2]] == []
        assert any(node == ids[2] for submitted, node, at in ran if at < called), "it had flowed there before"
        with capsys.disabled():
            sys.stdout.write(
                f"\n{name}: taint {held - called:.2f} s; {len(ran)} tasks, {len(after)} submitted after it, "
                f"{len(queued)} waited then, {len(escaped)} of them ran there, "
                f"the last {max(escaped, default=0.0):.3f} s later"
            )
        assert len(escaped) <= max(2, ESCAPED_MAX * len(queued))
