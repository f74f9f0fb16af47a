"""Work that is placed by other work, while processes, nodes, drivers and the controller die (A6)."""

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
from conftest import ClusterOf
from waiting import wait_for
from workload import landed, tickets

import stead
from stead import Exists, actor_affinity, affinity, anti_affinity
from stead.ray.attach import connection
from stead.ray.local import LocalCluster

pytestmark = pytest.mark.long

ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import the tests

DRIVERS = Path(__file__).parent / "drivers"
FOREVER = {"max_restarts": -1, "max_task_retries": -1, "num_cpus": 0.1}  # which keeps them off the head


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
    # From the first taint on, everything that is submitted is bound.
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
    wait_for(lambda: not connection().ask("registered_ids"), 40, "the end of all work of the test")
    wait_for(lambda: not tickets(), 40, "the end of all tickets")


def where(actor: Any, seconds: float = 60) -> str:
    return str(ray.get(actor.where.remote(), timeout=seconds))


def kill(actor: Any) -> None:
    """Its process, as a crash would."""
    os.kill(ray.get(actor.pid.remote(), timeout=60), signal.SIGKILL)


def kill_controller() -> None:
    os.kill(connection().ask("hello")["pid"], signal.SIGKILL)


def state_of(actor: Any) -> str:
    return str(ray._private.state.actors(actor._actor_id.hex())["State"])


def pair() -> tuple[Any, Any]:
    """B with A. B tolerates the taint by which the tests send A away, so nothing but A keeps B anywhere."""
    a = Actor.options(**FOREVER).remote()
    where(a)
    near = actor_affinity(affinity(a))
    b = Actor.options(scheduling_strategy=near, tolerations={"away": Exists()}, **FOREVER).remote()
    assert where(b) == where(a)
    return a, b


def send_away(actor: Any) -> str:
    """Let it fail where it may not start again; returns where it is then."""
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

    def test_when_the_other_fails_then_it_goes_where_the_first_is(self) -> None:
        a, b = pair()
        new = send_away(a)
        kill(b)
        assert where(b) == new

    def test_when_the_second_fails_alone_it_comes_back_to_the_first(self) -> None:
        a, b = pair()
        kill(b)
        assert where(b) == where(a)

    def test_the_controller_may_die_in_between(self) -> None:
        a, b = pair()
        new = send_away(a)
        kill_controller()
        kill(b)
        assert where(b) == new

    def test_a_restart_never_comes_back_through_what_is_left_of_its_grant(self) -> None:
        """What a dead actor held comes free on its node, and Ray looks for a place at once: it must not be enough."""
        a, b = pair()
        new = send_away(a)
        for _ in range(4):
            kill(b)
            assert where(b) == new

    def test_one_that_must_be_apart_moves_on_when_the_other_has_come_to_its_node(self) -> None:
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

    def test_tasks_that_are_placed_by_an_actor_are_tried_again(self, tmp_path: Path) -> None:
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

    def test_a_node_that_hangs_holds_up_nobody_else(self, cluster: LocalCluster) -> None:
        """Its raylet is stopped, so it takes no grant; Ray itself would give it up only after a minute."""
        index, node = next((index, node) for index, node in enumerate(cluster.nodes) if index and node.alive)
        os.kill(node.raylet_pid, signal.SIGSTOP)
        try:
            assert index not in landed(cluster, 1, tolerations={"a_new_rule": Exists()})
        finally:
            os.kill(node.raylet_pid, signal.SIGCONT)

    def test_one_whose_partner_has_no_place_waits_for_it(self, cluster: LocalCluster) -> None:
        in_use = {view.id for view in stead.nodes()}  # a node that hung for too long is not, and may still end
        first, second = [node.node_id for node in cluster.nodes[1:] if node.alive and node.node_id in in_use][:2]
        stead.label(first, {"home": "yes"})
        a = Actor.options(label_selector={"home": "yes"}, **FOREVER).remote()
        b = Actor.options(scheduling_strategy=actor_affinity(affinity(a)), **FOREVER).remote()
        assert where(b) == where(a) == first
        cluster.kill_node(next(index for index, node in enumerate(cluster.nodes) if node.node_id == first))
        cluster.add_node(num_cpus=2)
        wait_for(lambda: {state_of(a), state_of(b)} == {"RESTARTING"}, 60, "the loss of both")
        wait_for(lambda: "not near" in str(stead.why(b)), 30, "b waiting for a, although there is room")
        stead.label(second, {"home": "yes"})
        assert where(a) == second
        assert where(b) == second

    def test_a_driver_takes_its_work_along_but_not_its_detached_actors(self, cluster: LocalCluster) -> None:
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
