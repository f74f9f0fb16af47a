"""An eviction costs no retry and no restart, and work without room elsewhere is pending (three raylets of one CPU)."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import stead
from tests.on_ray.waiting import wait_for

ray = pytest.importorskip("ray")
from stead.ray.wire.tables import Tables  # noqa: E402
from tests.on_ray.workload import Resident, attached, pinned, where_am_i  # noqa: E402

pytestmark = pytest.mark.long

ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import a test

SOON_S = 90.0
LONG_S = 8.0
"""Longer than it took (before a fix) until work came back to its drained node and was evicted again."""


@pytest.fixture(scope="module")
def ids(cluster_of: Any) -> Iterator[list[str]]:
    with attached(cluster_of([{"num_cpus": 1}] * 3)) as cluster:
        found = [node.node_id for node in cluster.nodes]
        stead.taint(found[0], {"before": "yes"})  # from the first taint on, plain work is bound
        stead.untaint(found[0], ["before"])
        yield found


@pytest.fixture(autouse=True)
def as_it_was(ids: list[str]) -> Iterator[None]:
    yield
    for view in stead.nodes():
        if view.draining:
            stead.uncordon(view.id)
    wait_for(lambda: sum(view.available.get("CPU", 0) for view in stead.nodes()) == 3, SOON_S, "the end of all work")


@contextmanager
def busy(*ids: str) -> Iterator[None]:
    """Nodes whose CPU is in use by work that stays."""
    options = {"tolerations": {"nothing": stead.Exists(), "node.stead.io/drained": stead.Exists()}}
    held = [Resident.options(scheduling_strategy=pinned(id), **options).remote() for id in ids]
    ray.get([each.where.remote() for each in held], timeout=SOON_S)
    yield
    for each in held:
        ray.kill(each)


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def runs_until_told(folder: Path, *_: Any) -> str:
    """Writes down each node that it starts on, and ends when the file `end` exists."""
    with (folder / "began").open("a") as file:
        file.write(where_am_i() + "\n")
    while not (folder / "end").exists():
        threading.Event().wait(0.05)
    return where_am_i()


def began_on(folder: Path, *nodes: str) -> None:
    wait_for(lambda: lines(folder / "began") == list(nodes), SOON_S, f"starts on {nodes}")


def state_of(actor: Any) -> str:
    row = Tables(ray.get_runtime_context().gcs_address).actor(actor._actor_id.hex())
    return row.state if row else "gone"


def test_a_task_is_pending_while_no_other_node_has_room_and_loses_no_retry(ids: list[str], tmp_path: Path) -> None:
    with busy(ids[1], ids[2]):
        ref = ray.remote(num_cpus=1, max_retries=1)(runs_until_told).remote(tmp_path)
        began_on(tmp_path, ids[0])
        stead.drain(ids[0], evict=True)
        assert not ray.wait([ref], timeout=LONG_S)[0]
        assert lines(tmp_path / "began") == [ids[0]]
    wait_for(lambda: len(lines(tmp_path / "began")) == 2, SOON_S, "the start elsewhere")
    second = lines(tmp_path / "began")[1]
    third = ({*ids[1:]} - {second}).pop()
    stead.drain(second, evict=True)
    began_on(tmp_path, ids[0], second, third)
    (tmp_path / "end").touch()
    assert ray.get(ref, timeout=SOON_S) == third, "after two evictions with one retry"


def test_an_actor_is_pending_while_no_other_node_has_room_and_loses_no_restart(ids: list[str]) -> None:
    with busy(ids[1], ids[2]):
        actor = Resident.options(max_restarts=1, max_task_retries=-1).remote()
        assert ray.get(actor.where.remote(), timeout=SOON_S) == ids[0]
        stead.drain(ids[0], evict=True)
        wait_for(lambda: state_of(actor) == "RESTARTING", SOON_S, "the eviction")
        home = actor.where.remote()
        assert not ray.wait([home], timeout=LONG_S)[0]
    second = ray.get(home, timeout=SOON_S)
    assert second in ids[1:]
    stead.drain(second, evict=True)
    third = ({*ids[1:]} - {second}).pop()
    wait_for(lambda: ray.get(actor.where.remote(), timeout=SOON_S) == third, SOON_S, "the second move")
    stead.uncordon(ids[0])
    stead.uncordon(second)
    os.kill(ray.get(actor.__ray_call__.remote(lambda _: os.getpid()), timeout=SOON_S), signal.SIGKILL)
    assert ray.get(actor.where.remote(), timeout=SOON_S) in ids, "its one restart is still there"
    ray.kill(actor)


def test_a_task_without_retries_does_not_run_twice(ids: list[str], tmp_path: Path) -> None:
    with busy(ids[1], ids[2]):
        ref = ray.remote(num_cpus=1, max_retries=0)(runs_until_told).remote(tmp_path)
        began_on(tmp_path, ids[0])
    stead.drain(ids[0], evict=True)
    with pytest.raises(ray.exceptions.WorkerCrashedError):
        ray.get(ref, timeout=SOON_S)
    assert lines(tmp_path / "began") == [ids[0]]


def test_an_evicted_task_gets_its_original_arguments_again(ids: list[str], tmp_path: Path) -> None:
    def changes(folder: Path, given: list[int], *, named: dict[str, int]) -> tuple[list[int], dict[str, int]]:
        seen = list(given), dict(named)
        given.clear()
        named.clear()
        runs_until_told(folder)
        return seen

    with busy(ids[1], ids[2]):
        ref = ray.remote(num_cpus=1)(changes).remote(tmp_path, [1, 2], named={"a": 1})
        began_on(tmp_path, ids[0])
    stead.drain(ids[0], evict=True)
    wait_for(lambda: len(lines(tmp_path / "began")) == 2, SOON_S, "the start elsewhere")
    (tmp_path / "end").touch()
    assert ray.get(ref, timeout=SOON_S) == ([1, 2], {"a": 1})


def test_an_evicted_generator_continues_where_it_stopped(ids: list[str], tmp_path: Path) -> None:
    def counts(folder: Path) -> Iterator[tuple[int, str]]:
        for number in range(4):
            if number == 2:
                runs_until_told(folder)
            yield number, where_am_i()

    with busy(ids[1], ids[2]):
        refs = ray.remote(num_cpus=1)(counts).remote(tmp_path)
        began_on(tmp_path, ids[0])
        assert [ray.get(next(refs)) for _ in range(2)] == [(0, ids[0]), (1, ids[0])]
    stead.drain(ids[0], evict=True)
    wait_for(lambda: len(lines(tmp_path / "began")) == 2, SOON_S, "the start elsewhere")
    (tmp_path / "end").touch()
    rest = [ray.get(ref, timeout=SOON_S) for ref in refs]
    assert [number for number, _ in rest] == [2, 3]
    assert ids[0] not in {node for _, node in rest}


def test_a_generator_receives_what_ray_sends_about_its_items(ids: list[str]) -> None:
    """Ray Data uses this to learn how long Ray took to store a block."""

    def hears() -> Iterator[Any]:
        stored: Any = yield "block"
        yield stored.object_creation_dur_s

    _, seconds = [ray.get(ref, timeout=SOON_S) for ref in ray.remote(num_cpus=1)(hears).remote()]
    assert seconds >= 0


def test_a_cancelled_task_is_not_treated_as_evicted(ids: list[str], tmp_path: Path) -> None:
    ref = ray.remote(num_cpus=1)(runs_until_told).remote(tmp_path)
    wait_for(lambda: lines(tmp_path / "began"), SOON_S, "the start")
    ray.cancel(ref)
    with pytest.raises(ray.exceptions.TaskCancelledError):
        ray.get(ref, timeout=SOON_S)


# -- drain


def test_drain_waits_until_the_node_is_empty_or_reports_what_is_left(ids: list[str], tmp_path: Path) -> None:
    with busy(ids[1], ids[2]):
        ref = ray.remote(num_cpus=1)(runs_until_told).remote(tmp_path)
        began_on(tmp_path, ids[0])
        with pytest.raises(TimeoutError, match="1 piece of work is still on node"):
            stead.drain(ids[0], wait=True, timeout_s=3)
    (tmp_path / "end").touch()
    assert stead.drain(ids[0], evict=True, wait=True, timeout_s=SOON_S) == ids[0]
    assert ray.wait([ref], timeout=0)[0] == [ref]


def test_drain_evicts_no_faster_than_its_rate(ids: list[str]) -> None:
    options = {"num_cpus": 0.3, "max_restarts": -1, "max_task_retries": -1}
    with busy(ids[1], ids[2]):
        actors = [Resident.options(**options).remote() for _ in range(3)]
        assert set(ray.get([actor.where.remote() for actor in actors], timeout=SOON_S)) == {ids[0]}
    since = max((event.number for event in stead.events()), default=0)
    stead.drain(ids[0], evict=True, rate=0.5)

    def evicted() -> list[float]:
        return [event.at for event in stead.events(after=since) if event.kind == "evicted"]

    wait_for(lambda: len(evicted()) == 3, SOON_S, "three evictions")
    first, second, third = evicted()
    assert second - first >= 1.9
    assert third - second >= 1.9
    for actor in actors:
        ray.kill(actor)
