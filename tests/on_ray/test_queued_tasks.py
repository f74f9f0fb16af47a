"""Queued tasks that the engine places are never forgotten, whatever happens to the controller meanwhile."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray

import stead
from stead import actor_affinity, affinity, label_not_in
from stead.ray.local.local_cluster import LocalCluster
from stead.ray.submit.connection import connection
from stead.ray.wire.own_names import SLOT
from tests.on_ray.waiting import ClusterOf, wait_for
from tests.on_ray.workload import SOON_S, Resident, attached, where

ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])

pytestmark = pytest.mark.long

LATE_S = 8.0
"""Longer than any time after which the controller could consider a task gone."""


@pytest.fixture(scope="module")
def cluster(cluster_of: ClusterOf) -> Iterator[LocalCluster]:
    with attached(cluster_of([{"num_cpus": 0}, {"num_cpus": 2}, {"num_cpus": 2}])) as cluster:
        yield cluster


def waits_for(path: str, begun: str | None = None) -> str:
    """Runs until a file exists, and first writes a file to the folder `begun`. Returns its node."""
    if begun is not None:
        Path(begun, str(os.getpid())).touch()
    pause = threading.Event()
    while not Path(path).exists():
        pause.wait(0.05)
    return str(ray.get_runtime_context().get_node_id())


gate: Any = ray.remote(num_cpus=1, max_retries=0)(waits_for)


def kill_controller() -> None:
    os.kill(connection().ask("hello")["pid"], signal.SIGKILL)


def slot_names() -> set[str]:
    """Every slot of any node, without the anchors' units."""
    rows = ray._private.state.state.available_resources_per_node().values()
    return {name for row in rows for name, amount in row.items() if name.startswith(SLOT) and amount >= 1.0}


class TestQueues:
    def test_three_hundred_queued_tasks_all_run_after_the_controller_was_killed(
        self, cluster: LocalCluster, tmp_path: Path
    ) -> None:
        door, begun = tmp_path / "open", tmp_path / "begun"
        begun.mkdir()
        first = [gate.options(labels={"role": "queued"}).remote(str(door), str(begun)) for _ in range(4)]
        rest = [where.options(labels={"role": "queued"}, max_retries=0).remote(number) for number in range(296)]
        kill_controller()
        stead.nodes()
        kill_controller()
        wait_for(lambda: len(list(begun.iterdir())) == 4, 2 * SOON_S, "work on every CPU of both nodes")
        door.touch()
        ran = ray.get([*first, *rest], timeout=4 * SOON_S)
        assert len(ran) == 300
        assert set(ran) == {node.node_id for node in cluster.nodes[1:]}

    def test_a_task_with_a_late_input_runs_when_it_arrives(self, cluster: LocalCluster, tmp_path: Path) -> None:
        door = tmp_path / "open"
        late = gate.remote(str(door))
        queued = where.options(labels={"role": "late"}).remote(late)
        threading.Timer(LATE_S, door.touch).start()
        assert ray.get(queued, timeout=LATE_S + SOON_S)

    def test_also_if_no_controller_was_running_when_it_was_submitted(
        self, cluster: LocalCluster, tmp_path: Path
    ) -> None:
        pid = connection().ask("hello")["pid"]
        os.kill(pid, signal.SIGSTOP)
        try:
            queued = [where.options(labels={"role": "unheard"}).remote(number) for number in range(20)]
        finally:
            os.kill(pid, signal.SIGKILL)
        assert len(ray.get(queued, timeout=2 * SOON_S)) == 20

    def test_many_shapes_at_once_all_run(self, cluster: LocalCluster) -> None:
        """Ray lists at most 100 shapes per raylet."""
        queued = [where.options(labels={"number": f"n{number}"}).remote(number) for number in range(130)]
        assert len(ray.get(queued, timeout=6 * SOON_S)) == 130

    def test_shapes_with_deep_queues_share_the_room_and_no_task_fails(self, cluster: LocalCluster) -> None:
        """A shape that lends its slots to others has tasks queued everywhere. The head has no CPUs, so it does not make
        them feasible."""
        shapes = [where.options(labels={"deep": f"n{number}"}, max_retries=0) for number in range(20)]
        queued = [shapes[number % 20].remote(number) for number in range(3000)]
        assert len(ray.get(queued, timeout=6 * SOON_S)) == 3000

    def test_unused_slots_are_removed(self, cluster: LocalCluster) -> None:
        ray.get(where.options(labels={"role": "short"}).remote(0), timeout=SOON_S)
        wait_for(lambda: not slot_names(), SOON_S, "the return of all slots")


class TestChanges:
    def test_work_near_an_actor_follows_it_while_it_is_queued(self, cluster: LocalCluster) -> None:
        actor = Resident.options(num_cpus=0.5).remote()
        home = ray.get(actor.where.remote(), timeout=SOON_S)
        near = actor_affinity(affinity(actor))
        assert set(ray.get([where.options(scheduling_strategy=near).remote(0) for _ in range(5)], timeout=SOON_S)) == {
            home
        }
        ray.kill(actor)

    def test_tasks_apart_from_a_label_avoid_an_actor_that_came_later(self, cluster: LocalCluster) -> None:
        apart = actor_affinity(label_not_in("role", ["noisy"]))
        quiet = where.options(scheduling_strategy=apart, num_cpus=0.5)
        assert ray.get(quiet.remote(0), timeout=SOON_S)
        noisy = Resident.options(num_cpus=0.5, labels={"role": "noisy"}).remote()
        home = ray.get(noisy.where.remote(), timeout=SOON_S)
        wait_for(
            lambda: home not in ray.get([quiet.remote(number) for number in range(6)], timeout=SOON_S),
            SOON_S,
            "work that avoids the noisy actor",
        )
        assert home not in ray.get([quiet.remote(number) for number in range(30)], timeout=SOON_S)
        ray.kill(noisy)
