"""Actors with `preemptible=True` are evicted for work of a higher priority, and restart elsewhere (two raylets)."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest
import ray

import stead
from stead.errors import Invalid, Unsupported
from stead.ray.local.local_cluster import LocalCluster
from tests.on_ray.waiting import ClusterOf, wait_for
from tests.on_ray.workload import SOON_S, Resident, attached, where

ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])

FOREVER = {"max_restarts": -1, "max_task_retries": -1}


@pytest.fixture(scope="module")
def cluster(cluster_of: ClusterOf) -> Iterator[LocalCluster]:
    with attached(cluster_of([{"num_cpus": 0}, {"num_cpus": 1}, {"num_cpus": 1}])) as cluster:
        yield cluster


@pytest.fixture
def actors(cluster: LocalCluster) -> Iterator[list[Any]]:
    made: list[Any] = []
    yield made
    for each in made:
        ray.kill(each)
    wait_for(lambda: sum(each.available.get("CPU", 0) for each in stead.nodes()) == 2, SOON_S, "the end of all actors")


def started(*actors: Any) -> list[str]:
    found: list[str] = ray.get([each.where.remote() for each in actors], timeout=SOON_S)
    return found


def test_a_preemptible_actor_makes_room_and_starts_again_once_there_is_some(actors: list[Any]) -> None:
    """Each of them may restart once, but an eviction does not count."""
    low = [Resident.options(preemptible=True, max_restarts=1, max_task_retries=-1).remote() for _ in range(2)]
    actors += low
    homes = started(*low)
    for _ in range(3):
        urgent = Resident.options(priority=10).remote()
        (home,) = started(urgent)
        (victim,) = [each for each, node in zip(low, homes, strict=True) if node == home]
        event = [each for each in stead.events() if each.kind == "preempted"][-1]
        assert victim._actor_id.hex() in event.subject
        assert event.text.startswith("evicted from")
        assert event.text.endswith(f"for {urgent._actor_id.hex()}")
        assert "0 of 3 nodes fit" in str(stead.why(victim))
        ray.kill(urgent)
        assert started(victim) == [home]


def test_an_actor_of_an_equal_priority_waits(actors: list[Any]) -> None:
    low = [Resident.options(preemptible=True, priority=10, **FOREVER).remote() for _ in range(2)]
    actors += low
    started(*low)
    equal = Resident.options(priority=10).remote()
    actors.append(equal)
    wait_for(lambda: "0 of 3 nodes fit" in str(stead.why(equal)), SOON_S, "the reason why it is pending")
    assert ray.get([each.counted.remote() for each in low], timeout=SOON_S) == [1, 1]


def test_actors_that_did_not_agree_are_not_evicted(actors: list[Any]) -> None:
    low = [Resident.options(priority=-5, **FOREVER).remote() for _ in range(2)]
    actors += low
    started(*low)
    urgent = Resident.options(priority=10).remote()
    actors.append(urgent)
    wait_for(lambda: "0 of 3 nodes fit" in str(stead.why(urgent)), SOON_S, "the reason why it is pending")
    assert ray.get([each.counted.remote() for each in low], timeout=SOON_S) == [1, 1]


def test_an_actor_that_cannot_restart_is_refused(cluster: LocalCluster) -> None:
    with pytest.raises(Invalid, match=r"needs an actor that can restart elsewhere; .* max_restarts=-1$"):
        Resident.options(preemptible=True).remote()


def test_tasks_are_refused(cluster: LocalCluster) -> None:
    with pytest.raises(Unsupported, match="preemptible=True is for actors"):
        where.options(preemptible=True).remote()
