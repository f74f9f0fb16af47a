"""A controller that was killed for good with Ray's own API: programs continue with the next one, which knows
everything."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import ray

import stead
from stead.ray.local.local_cluster import LocalCluster
from stead.ray.wire.own_names import CONTROLLER, NAMESPACE
from tests.on_ray.conftest import ClusterOf
from tests.on_ray.waiting import wait_for
from tests.on_ray.workload import SOON_S, attached, labelled, run_driver, where

pytestmark = pytest.mark.long

REPLACES_IT = """
    import json, sys, ray, stead
    ray.init(sys.argv[1], namespace="another", log_to_driver=False, logging_level="error")
    ray.kill(ray.get_actor("stead-controller", "stead"))
    stead.init()
    print(json.dumps(len(stead.nodes())))
"""


@pytest.fixture(scope="module")
def cluster(cluster_of: ClusterOf) -> Iterator[LocalCluster]:
    with attached(cluster_of([{"num_cpus": 2}, {"num_cpus": 2}])) as started:
        yield started


@pytest.fixture
def ids(cluster: LocalCluster) -> list[str]:
    return [node.node_id for node in cluster.nodes]


def actor_id() -> str:
    """The id of the current controller; "" if there is none."""
    try:
        found: Any = ray.get_actor(CONTROLLER, NAMESPACE)
    except ValueError:
        return ""
    return str(found._actor_id.hex())


def end_controller() -> str:
    """Kill it for good, as any program can: Ray does not restart it. Returns its id."""
    controller = ray.get_actor(CONTROLLER, NAMESPACE)
    before = str(controller._actor_id.hex())
    ray.kill(controller)
    wait_for(lambda: actor_id() != before, SOON_S, "the end of the controller")
    return before


def test_a_program_continues_when_another_one_has_started_the_next_controller(cluster: LocalCluster) -> None:
    ray.get(where.options(labels={"app": "before"}).remote(), timeout=SOON_S)
    assert run_driver(REPLACES_IT, {}, cluster.address) == 2
    late = where.options(labels={"app": "after"}).remote()
    assert len(stead.nodes()) == 2
    ray.get(late, timeout=SOON_S)


def test_work_that_is_submitted_while_there_is_no_controller_is_placed(ids: list[str]) -> None:
    end_controller()
    tasks = [where.options(labels={"app": "meanwhile"}).remote() for _ in range(20)]
    ruled = where.options(label_selector={"disk": "ssd"}).remote()
    assert set(ray.get(tasks, timeout=SOON_S)) <= set(ids)
    with labelled(ids[1], {"disk": "ssd"}):
        assert ray.get(ruled, timeout=SOON_S) == ids[1]


def test_it_is_restarted_automatically_and_knows_all_earlier_changes(cluster: LocalCluster, ids: list[str]) -> None:
    """No call is made: a connected program notices that it is gone."""
    stead.taint(ids[1], {"mine": "yes"})
    waiting = where.options(labels={"app": "waits"}, label_selector={"later": "yes"}).remote()
    try:
        before = end_controller()
        wait_for(lambda: actor_id() not in ("", before), SOON_S, "the next controller")
        run_driver(REPLACES_IT, {}, cluster.address)  # its plugs are found again from another namespace too
        assert set(ray.get([where.remote() for _ in range(8)], timeout=SOON_S)) == {ids[0]}
        assert [str(taint) for node in stead.nodes() for taint in node.taints] == ["mine=yes"]
        with labelled(ids[0], {"later": "yes"}):
            assert ray.get(waiting, timeout=SOON_S) == ids[0]
    finally:
        stead.untaint(ids[1], ["mine"])
    assert ray.get(where.options(scheduling_strategy="SPREAD").remote(), timeout=SOON_S) in ids


def test_a_taint_set_while_it_is_replaced_holds(ids: list[str]) -> None:
    end_controller()
    stead.taint(ids[1], {"now": "yes"})
    try:
        assert set(ray.get([where.remote() for _ in range(8)], timeout=SOON_S)) == {ids[0]}
    finally:
        stead.untaint(ids[1], ["now"])
