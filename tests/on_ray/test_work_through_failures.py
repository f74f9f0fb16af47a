"""Work that is placed relative to other work, while processes, nodes, drivers and the controller die."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray

import stead
from stead import Exists, actor_affinity, affinity, anti_affinity
from stead.ray.local.local_cluster import LocalCluster
from stead.ray.submit.connection import connection
from tests.on_ray.conftest import ClusterOf
from tests.on_ray.waiting import wait_for
from tests.on_ray.workload import landed, tickets

pytestmark = pytest.mark.long

ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import the tests

DRIVERS = Path(__file__).parent / "drivers"
FOREVER = {"max_restarts": -1, "max_task_retries": -1, "num_cpus": 0.1}  # the CPU keeps them away from the head


class _Actor:
    def where(self) -> str:
        return str(ray.get_runtime_context().get_node_id())

    def pid(self) -> int:
        return os.getpid()


def _dies_once(marks: str) -> str:
    mark = Path(marks)
    if not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return str(ray.get_runtime_context().get_node_id())


Actor: Any = ray.remote(_Actor)
dies_once: Any = ray.remote(_dies_once)


@pytest.fixture(scope="module")
def cluster(cluster_of: ClusterOf) -> Iterator[LocalCluster]:
    started = cluster_of([{"num_cpus": 0}, {"num_cpus": 2}, {"num_cpus": 2}, {"num_cpus": 2}])
    stead.init(started.address, namespace="failures", log_to_driver=False, logging_level="error")
    # From the first taint on, all submissions are bound.
    stead.taint(started.nodes[1].node_id, {"away": "yes"})
    stead.untaint(started.nodes[1].node_id, ["away"])
    yield started
    ray.shutdown()


@pytest.fixture(autouse=True)
def clean(cluster: LocalCluster) -> Iterator[None]:
    yield
    for node in stead.nodes():
        if node.taints:
            stead.untaint(node.id, [taint.key for taint in node.taints])
    wait_for(lambda: not connection().ask("registered_ids"), 60, "the end of all work of the test")
    wait_for(lambda: not tickets(), 60, "the end of all tickets")


def where(actor: Any, seconds: float = 60) -> str:
    return str(ray.get(actor.where.remote(), timeout=seconds))


def kill(actor: Any) -> None:
    """Kill its process, like a crash."""
    os.kill(ray.get(actor.pid.remote(), timeout=60), signal.SIGKILL)


def kill_controller() -> None:
    os.kill(connection().ask("hello")["pid"], signal.SIGKILL)


def state_of(actor: Any) -> str:
    return str(ray._private.state.actors(actor._actor_id.hex())["State"])


def pair() -> tuple[Any, Any]:
    """B is near A. B tolerates the taint that moves A in these tests, so only A determines B's node."""
    a = Actor.options(**FOREVER).remote()
    where(a)
    near = actor_affinity(affinity(a))
    b = Actor.options(scheduling_strategy=near, tolerations={"away": Exists()}, **FOREVER).remote()
    assert where(b) == where(a)
    return a, b


def send_away(actor: Any) -> str:
    """Let it fail on a node where it may not restart. Returns its new node."""
    before = where(actor)
    stead.taint(before, {"away": "yes"})
    kill(actor)
    wait_for(lambda: where(actor) != before, 60, "a restart elsewhere")
    return where(actor)


class TestTwoThatBelongTogether:
    def test_when_one_restarts_elsewhere_the_other_stays(self) -> None:
        a, b = pair()
        home, pid = where(b), ray.get(b.pid.remote())
        assert send_away(a) != home
        assert (where(b), ray.get(b.pid.remote())) == (home, pid)

    def test_when_the_other_then_fails_it_restarts_next_to_the_first(self) -> None:
        a, b = pair()
        new = send_away(a)
        kill(b)
        assert where(b) == new

    def test_when_only_the_second_fails_it_restarts_next_to_the_first(self) -> None:
        a, b = pair()
        kill(b)
        assert where(b) == where(a)

    def test_the_controller_may_die_in_between(self) -> None:
        a, b = pair()
        new = send_away(a)
        kill_controller()
        kill(b)
        assert where(b) == new

    def test_a_restart_never_uses_the_rest_of_an_old_grant(self) -> None:
        """What a dead actor held becomes free on its node, and Ray tries to place it at once: that must not be
        enough."""
        a, b = pair()
        new = send_away(a)
        for _ in range(4):
            kill(b)
            assert where(b) == new

    def test_one_that_must_be_apart_moves_when_the_other_comes_to_its_node(self) -> None:
        a = Actor.options(**FOREVER).remote()
        c = Actor.options(scheduling_strategy=actor_affinity(anti_affinity(a)), **FOREVER).remote()
        where(a)
        if where(c) == where(a):  # c was placed before a had its place, which is right: it does not wait for a
            kill(c)
        wait_for(lambda: where(c) != where(a), 60, "c apart from a")
        home = where(c)
        others = [node.id for node in stead.nodes() if node.id not in (home, where(a)) and node.total.get("CPU")]
        for id in others:
            stead.taint(id, {"away": "yes"})
        assert send_away(a) == home
        stead.untaint(others[0], ["away"])
        kill(c)
        assert where(c) != home

    def test_tasks_near_an_actor_are_retried(self, tmp_path: Path) -> None:
        a = Actor.options(**FOREVER).remote()
        near = actor_affinity(affinity(a))
        refs = [
            dies_once.options(num_cpus=0, max_retries=3, scheduling_strategy=near).remote(str(tmp_path / str(number)))
            for number in range(2)
        ]
        assert set(ray.get(refs, timeout=90)) == {where(a)}


class TestNodesAndDrivers:
    def test_when_their_node_dies_both_start_again_together(self, cluster: LocalCluster) -> None:
        a, b = pair()
        home = where(a)
        index = next(index for index, node in enumerate(cluster.nodes) if node.node_id == home)
        cluster.kill_node(index)
        cluster.add_node(num_cpus=2)
        wait_for(lambda: where(a) != home, 60, "the first on another node")
        assert where(b) == where(a)

    def test_a_hanging_node_delays_no_other(self, cluster: LocalCluster) -> None:
        """Its raylet is stopped, so it applies no grant; Ray itself would give it up only after a minute."""
        index, node = next((index, node) for index, node in enumerate(cluster.nodes) if index and node.alive)
        os.kill(node.raylet_pid, signal.SIGSTOP)
        try:
            assert index not in landed(cluster, 1, tolerations={"a_new_rule": Exists()})
        finally:
            os.kill(node.raylet_pid, signal.SIGCONT)

    def test_one_whose_partner_is_pending_waits_for_it(self, cluster: LocalCluster) -> None:
        in_use = {view.id for view in stead.nodes()}  # a node that hung for too long is not, and may still end
        first, second = [node.node_id for node in cluster.nodes[1:] if node.alive and node.node_id in in_use][:2]
        stead.label(first, {"home": "yes"})
        a = Actor.options(label_selector={"home": "yes"}, **FOREVER).remote()
        b = Actor.options(scheduling_strategy=actor_affinity(affinity(a)), **FOREVER).remote()
        assert where(b) == where(a) == first
        cluster.kill_node(next(index for index, node in enumerate(cluster.nodes) if node.node_id == first))
        cluster.add_node(num_cpus=2)
        wait_for(lambda: {state_of(a), state_of(b)} == {"RESTARTING"}, 60, "the loss of both")
        wait_for(lambda: "not near" in str(stead.why(b)), 60, "b waiting for a, although there is room")
        stead.label(second, {"home": "yes"})
        assert where(a) == second
        assert where(b) == second

    def test_the_work_of_a_driver_ends_with_it_except_detached_actors(self, cluster: LocalCluster) -> None:
        target = Actor.options(name="target", lifetime="detached", **FOREVER).remote()
        where(target)
        words = [sys.executable, str(DRIVERS / "leaves.py"), cluster.address]
        driver = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert driver.stdout is not None
        assert driver.stdout.readline().strip() == "ready"
        assert len(connection().ask("registered_ids")) == 4
        driver.kill()
        driver.wait()
        wait_for(lambda: len(connection().ask("registered_ids")) == 1, 60, "the end of what went with the driver")
        left = ray.get_actor("left", namespace="failures")
        kill(left)
        assert where(left) == where(target)
        for actor in (left, target):
            ray.kill(actor)
