"""Actors and tasks with `preemptible=True` are evicted for work of a higher priority, and start again (two raylets)."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray

import stead
from stead.errors import Invalid
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


def test_a_task_that_must_not_run_twice_is_refused(cluster: LocalCluster) -> None:
    with pytest.raises(Invalid, match=r"needs a task that may run again; .* max_retries=3$"):
        where.options(preemptible=True, max_retries=0).remote()


def runs_until(folder: Path, name: str) -> str:
    """Writes down each node that it starts on, and ends when the file `end` exists."""
    with (folder / name).open("a") as file:
        file.write(str(ray.get_runtime_context().get_node_id()) + "\n")
    while not (folder / "end").exists():
        threading.Event().wait(0.05)
    return name


def starts(folder: Path) -> dict[str, list[str]]:
    return {path.name: path.read_text().split() for path in folder.iterdir() if path.name != "end"}


@pytest.mark.parametrize("kind", ["actor", "task"])
def test_a_preemptible_task_is_interrupted_and_runs_again(cluster: LocalCluster, tmp_path: Path, kind: str) -> None:
    low, high = tmp_path / "low", tmp_path / "high"
    low.mkdir()
    high.mkdir()
    task = ray.remote(num_cpus=1)(runs_until)
    refs = [task.options(preemptible=True, max_retries=1).remote(low, name) for name in ("one", "two")]
    wait_for(lambda: len(starts(low)) == 2, SOON_S, "the start of both tasks")
    urgent, ref = None, None
    if kind == "actor":
        urgent = Resident.options(priority=10).remote()
        (home,) = started(urgent)
    else:
        ref = task.options(priority=10).remote(high, "urgent")
        wait_for(lambda: len(starts(high)) == 1, SOON_S, "the start of the urgent task")
        ((home,),) = starts(high).values()
    (victim,) = [name for name, homes in starts(low).items() if homes == [home]]
    assert "preempted" in {each.kind for each in stead.events()}
    assert starts(low)[victim] == [home], "it waits"
    if urgent is not None:
        ray.kill(urgent)
    else:
        (high / "end").touch()
        assert ray.get(ref, timeout=SOON_S) == "urgent"
    wait_for(lambda: starts(low)[victim] == [home, home], SOON_S, "its second start")
    (low / "end").touch()
    assert ray.get(refs, timeout=SOON_S) == ["one", "two"]
    assert {name: len(homes) for name, homes in starts(low).items() if name != victim} == {
        name: 1 for name in ("one", "two") if name != victim
    }, "the other one was not interrupted"
    wait_for(lambda: sum(each.available.get("CPU", 0) for each in stead.nodes()) == 2, SOON_S, "the end of all work")


def test_of_several_tasks_on_a_node_only_as_many_as_needed_are_interrupted(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    task = ray.remote(num_cpus=0.25)(runs_until)
    refs = [task.options(preemptible=True).remote(tmp_path, f"t{number}") for number in range(8)]
    wait_for(lambda: len(starts(tmp_path)) == 8, SOON_S, "the start of all tasks")
    urgent = Resident.options(num_cpus=0.5, priority=10).remote()
    started(urgent)
    ray.kill(urgent)
    wait_for(lambda: sum(map(len, starts(tmp_path).values())) >= 10, SOON_S, "the second start of two of them")
    (tmp_path / "end").touch()
    assert sorted(ray.get(refs, timeout=SOON_S)) == [f"t{number}" for number in range(8)]
    assert sum(map(len, starts(tmp_path).values())) == 10
