"""Tasks that wait for a slot on a node that dies do not fail, even if it was the only one they could use."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import ray

from stead import actor_affinity, affinity
from tests.on_ray.waiting import ClusterOf
from tests.on_ray.workload import SOON_S, Resident, attached, where

ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])

pytestmark = pytest.mark.long

ANCHORED_S = 8.0
"""After this time, the name of a slot is anchored, and unusable slots are gone."""


def wait_for_file(path: str) -> str:
    """Runs until a file exists. Returns its node."""
    pause = threading.Event()
    while not Path(path).exists():
        pause.wait(0.05)
    return str(ray.get_runtime_context().get_node_id())


@pytest.mark.parametrize("idle_s", [0.0, ANCHORED_S], ids=["at once", "when their name is anchored"])
def test_tasks_near_an_actor_follow_it_when_their_only_node_dies(
    idle_s: float, cluster_of: ClusterOf, tmp_path: Path
) -> None:
    """They are queued only on that node."""
    nodes: list[dict[str, Any]] = [{"num_cpus": 0, "name": f"head-{idle_s}"}, {"num_cpus": 2}, {"num_cpus": 2}]
    with attached(cluster_of(nodes)) as cluster:
        ids = [node.node_id for node in cluster.nodes]
        actor = Resident.options(num_cpus=0.1, max_restarts=-1, max_task_retries=-1).remote()
        home = ids.index(ray.get(actor.where.remote(), timeout=SOON_S))
        near = actor_affinity(affinity(actor))
        door = tmp_path / "open"
        held = ray.remote(wait_for_file).options(num_cpus=1, scheduling_strategy=near, max_retries=-1).remote(str(door))
        shapes = [
            where.options(scheduling_strategy=near, labels={"n": f"n{number}"}, max_retries=0, num_cpus=1.5)
            for number in range(5)
        ]
        queued = [shapes[number % 5].remote(number) for number in range(200)]
        assert ray.wait([held, *queued], timeout=2.0 + idle_s)[0] == [], "they wait for a CPU"
        cluster.kill_node(home)
        door.touch()
        other = ids[3 - home]
        assert ray.get(actor.where.remote(), timeout=2 * SOON_S) == other
        assert ray.get(held, timeout=2 * SOON_S) == other
        assert set(ray.get(queued, timeout=4 * SOON_S)) == {other}
    cluster.close()
