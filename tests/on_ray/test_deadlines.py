"""Deadlines are durations: they hold whatever the clocks of programs and the controller show, and across its
restarts."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import ray

import stead
from stead.ray.local.local_cluster import LocalCluster
from stead.ray.submit.connection import connection
from tests.on_ray.conftest import ClusterOf
from tests.on_ray.waiting import wait_for
from tests.on_ray.workload import SOON_S, attached, run_driver, where

pytestmark = pytest.mark.long

ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import the tests

SHIFTED = """
    import json, sys, time
    real, shift = time.time, float(sys.argv[2])
    time.time = lambda: real() + shift
    import ray, stead
    stead.init(sys.argv[1], namespace="shifted", log_to_driver=False, logging_level="error")
    class Resident:
        def ping(self):
            return "here"
    where = ray.remote(num_cpus=1)(lambda: ray.get_runtime_context().get_node_id())
    never = dict(label_selector={"never": "yes"}, deadline_s=1.0)
    refs = [where.options(**never).remote() for _ in range(10)]
    refs += [ray.remote(Resident).options(num_cpus=1, **never).remote().ping.remote() for _ in range(2)]
    detached = ray.remote(Resident).options(
        name="late", lifetime="detached", num_cpus=1, label_selector={"later": "yes"}, deadline_s=30.0
    ).remote()
    ended = 0
    for ref in refs:
        try:
            stead.get(ref, timeout=60)
        except stead.Unplaced:
            ended += 1
    node = stead.nodes()[0].id
    stead.label(node, {"later": "yes"})
    answer = ray.get(detached.ping.remote(), timeout=60)
    stead.label(node, remove=["later"])
    ray.kill(detached)
    print(json.dumps([ended, answer]))
"""


@pytest.fixture(scope="module")
def cluster(cluster_of: ClusterOf) -> Iterator[LocalCluster]:
    with attached(cluster_of([{"num_cpus": 2}])) as started:
        yield started


@pytest.mark.parametrize("shift_s", [0.05, 3600.0, -3600.0])
def test_deadlines_hold_for_a_program_whose_clock_differs(cluster: LocalCluster, shift_s: float) -> None:
    """A clock that is behind does not end work early either."""
    assert run_driver(SHIFTED, {}, cluster.address, str(shift_s)) == [12, "here"]


def kill_controller() -> None:
    os.kill(connection().ask("hello")["pid"], signal.SIGKILL)


def test_a_deadline_that_passes_while_the_controller_is_away_holds(cluster: LocalCluster) -> None:
    never: dict[str, Any] = {"label_selector": {"never": "yes"}, "deadline_s": 1.0}
    task = where.options(**never).remote()
    actor = ray.remote(num_cpus=1)(type("Idle", (), {"ping": lambda self: 1})).options(**never).remote()
    kill_controller()
    for ref in (task, actor.ping.remote()):
        with pytest.raises(stead.Unplaced):
            stead.get(ref, timeout=SOON_S)


def test_work_that_starts_while_the_controller_is_away_is_not_ended(cluster: LocalCluster) -> None:
    """Its worker reports that as soon as there is a controller."""
    event: Any = ray.remote(num_cpus=0)(_Signal).remote()
    ray.get(where.options(deadline_s=30.0).remote(), timeout=SOON_S)
    kill_controller()
    task = ray.remote(num_cpus=1)(_until).options(deadline_s=2.0).remote(event)
    wait_for(lambda: not connection().deadlines._due, SOON_S, "the question whether it may go on")
    assert not ray.wait([task], timeout=0)[0]
    ray.get(event.set.remote())
    assert stead.get(task, timeout=SOON_S) == "done"
    ray.kill(event)


class _Signal:
    def __init__(self) -> None:
        self.is_set = False

    def set(self) -> None:
        self.is_set = True

    def get(self) -> bool:
        return self.is_set


def _until(event: Any) -> str:
    import threading

    while not ray.get(event.get.remote()):
        threading.Event().wait(0.1)
    return "done"
