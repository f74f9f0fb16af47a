"""Actors that die right after their start, and a controller that dies right after it has let them start.

At that moment the grant they used is not revoked yet.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import Any, Literal

import pytest
import ray

import stead
from stead.engine.decisions import Placed
from stead.journal import Journal
from stead.ray.local.local_cluster import LocalCluster
from stead.ray.submit.connection import connection
from stead.ray.wire.node_page import FOLDER
from tests.on_ray.conftest import ClusterOf
from tests.on_ray.killing import TICKET, Killer, Step
from tests.on_ray.waiting import wait_for
from tests.on_ray.workload import free_cpus, tickets

pytestmark = pytest.mark.long

ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import the tests

CPUS, NAMES = 2, ("first", "second")


class _Slow:
    """Reports where each of its processes starts, and finishes its start when it may continue."""

    def __init__(self, folder: str) -> None:
        starts = Path(folder) / "starts"
        with starts.open("a") as file:
            file.write(f"{os.getpid()} {ray.get_runtime_context().get_node_id()}\n")
        number = len(starts.read_text().splitlines())
        while not (Path(folder) / f"go-{number}").exists():
            Event().wait(0.01)

    def where(self) -> str:
        return str(ray.get_runtime_context().get_node_id())


Slow: Any = ray.remote(_Slow)


@pytest.fixture(scope="module")
def killer(tmp_path_factory: pytest.TempPathFactory) -> Killer:
    return Killer(tmp_path_factory.mktemp("killing"))


@pytest.fixture(scope="module")
def cluster(cluster_of: ClusterOf, killer: Killer) -> Iterator[LocalCluster]:
    nodes = [{"num_cpus": 0}, *({"num_cpus": CPUS, "resources": {name: 1}} for name in NAMES)]
    started = cluster_of(nodes, environment=killer.environment)
    stead.init(started.address, namespace="restarts", log_to_driver=False, logging_level="error")
    yield started
    ray.shutdown()


def starts(folder: Path) -> list[tuple[int, str]]:
    """Process and node of every start so far."""
    path = folder / "starts"
    words = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
    return [(int(pid), node) for pid, node in words]


def hold(name: str, cpus: float) -> Any:
    """Holds CPUs of the node that has a resource of this name, without the controller."""
    group = ray.util.placement_group([{"CPU": cpus, name: 0.001}])
    assert group.wait(60)
    return group


@contextmanager
def controller_stopped() -> Iterator[None]:
    """After this block, it receives at once what it would have received one after the other."""
    pid = connection().ask("hello")["pid"]
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


@pytest.fixture(autouse=True)
def clean(cluster: LocalCluster) -> Iterator[None]:
    yield
    wait_for(lambda: not connection().ask("registered_ids"), 60, "the end of the actor")
    wait_for(lambda: not tickets(), 60, "the end of its ticket")


def is_alive(actor: Any) -> bool:
    return bool(ray._private.state.actors(actor._actor_id.hex())["State"] == "ALIVE")


def placed(cluster: LocalCluster, actor: Any) -> list[str]:
    """Where the engine placed it, in order."""
    path = next(Path(cluster.temp_dir).rglob(f"{FOLDER}/journal.sqlite"))
    with Journal.reading(path) as journal:
        decisions = [decision for entry in journal.read() for decision in entry.decisions]
    return [each.node for each in decisions if isinstance(each, Placed) and each.ask == actor._actor_id.hex()]


def test_an_actor_that_dies_during_its_start_restarts_where_the_engine_placed_it(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    """It restarts with the same grant. The engine would now choose the other node, which has more room, and would
    wrongly record the actor there."""
    first, second = (node.node_id for node in cluster.nodes[1:])
    there, held = hold("second", CPUS / 2), list[Any]()
    wait_for(lambda: free_cpus(second) < free_cpus(first) == CPUS, 60, "the controller's knowledge of it")
    again = {"max_restarts": -1, "max_task_retries": -1}  # a call may be sent before its death is known
    options = {"num_cpus": CPUS / 4, "labels": {"app": "slow"}, "scheduling_strategy": "SPREAD", **again}
    actor = Slow.options(**options).remote(str(tmp_path))
    try:
        [(pid, node)] = wait_for(lambda: starts(tmp_path), 60, "its first start")
        assert node == first
        with controller_stopped():
            (tmp_path / "go-1").touch()
            wait_for(lambda: is_alive(actor), 60, "its life")
            ray.util.remove_placement_group(there)
            held.append(hold("first", CPUS / 2))
            os.kill(pid, signal.SIGKILL)
            wait_for(lambda: len(starts(tmp_path)) == 2, 60, "its second start, while nobody decides")
        connection().ask("settled")
        connection().ask("settled")
        (tmp_path / "go-2").touch()
        assert ray.get(actor.where.remote(), timeout=60) == first
        connection().ask("settled")
        assert set(placed(cluster, actor)) == {first}
    finally:
        ray.kill(actor)
        for group in [there, *held]:
            ray.util.remove_placement_group(group)


@pytest.mark.parametrize("moment", ["before", "after"])
def test_an_actor_granted_while_the_controller_dies_starts_where_the_engine_placed_it(
    cluster: LocalCluster, killer: Killer, tmp_path: Path, moment: Literal["before", "after"]
) -> None:
    (tmp_path / "go-1").touch()
    with killer.at(Step(TICKET, moment), since="AskSubmitted"):
        actor = Slow.options(num_cpus=CPUS / 4, labels={"app": "slow"}).remote(str(tmp_path))
        home = ray.get(actor.where.remote(), timeout=60)
    connection().ask("settled")
    assert placed(cluster, actor)[-1] == home
    ray.kill(actor)
