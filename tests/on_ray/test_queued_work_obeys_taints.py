"""Work that was queued before a taint does not start on the tainted node, whatever ends there meanwhile.

Three raylets of two CPUs. A task returns where and when its function started; all are on one machine, so they share one
clock.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

import stead
from tests.on_ray.waiting import wait_for

ray = pytest.importorskip("ray")
from tests.on_ray.workload import attached  # noqa: E402

pytestmark = pytest.mark.long

ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import a test

SOON_S = 120.0


@pytest.fixture(scope="module")
def ids(cluster_of: Any) -> Iterator[list[str]]:
    nodes = [{"num_cpus": 2}, {"num_cpus": 2}, {"num_cpus": 2, "resources": {"disk": 2}}]
    environment = {"RAY_NODE_REGION": "north"}
    with attached(cluster_of(nodes, environment=environment)) as cluster:
        yield [node.node_id for node in cluster.nodes]


@pytest.fixture(autouse=True)
def as_it_was(ids: list[str]) -> Iterator[None]:
    """Plain work is bound before a test, and no node is tainted after it."""
    stead.taint(ids[1], {"before": "yes"})
    stead.untaint(ids[1], ["before"])
    yield
    for view in stead.nodes():
        if view.taints:
            stead.untaint(view.id, [taint.key for taint in view.taints])


def begins(seconds: float = 0.0, *_: Any) -> tuple[str, float]:
    """Where and when it started."""
    began = ray.get_runtime_context().get_node_id(), time.time()
    threading.Event().wait(seconds)
    return began


begun: Any = ray.remote(num_cpus=1, max_retries=0)(begins)


def taint(id: str, **options: Any) -> float:
    """Taint the node, and return the time when that was done."""
    stead.taint(id, {"repair": "yes"}, **options)
    return time.time()


def escaped(ran: list[tuple[str, float]], id: str, since: float, until: float = float("inf")) -> list[float]:
    """How long after the taint functions started on the tainted node."""
    return [at - since for node, at in ran if node == id and since < at < until]


# -- tasks of several lengths in deep queues


@pytest.mark.parametrize(("seconds", "count"), [(0.001, 10_000), (1.0, 120)])
def test_no_queued_task_begins_on_a_tainted_node_and_none_fails(
    seconds: float, count: int, ids: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    refs = [begun.remote(seconds) for _ in range(count)]
    ray.wait(refs, num_returns=count // 10)
    first = taint(ids[1])
    ray.wait(refs, num_returns=count // 4)
    second = taint(ids[2])
    ray.wait(refs, num_returns=count // 3)
    open_again = time.time()
    stead.untaint(ids[1], ["repair"])
    wait_for(lambda: any(node == ids[1] for node, _ in ray.get([begun.remote() for _ in range(6)])), SOON_S, "a return")
    ray.wait(refs, num_returns=count // 2)
    third = taint(ids[1])
    ran = ray.get(refs, timeout=600)
    late = [
        *escaped(ran, ids[1], first, open_again),
        *escaped(ran, ids[2], second),
        *escaped(ran, ids[1], third),
    ]
    with capsys.disabled():
        queued = sum(at > first for _, at in ran)
        sys.stdout.write(
            f"\n{count} tasks of {seconds} s: {queued} queued at the first taint, {len(late)} escaped {late}\n"
        )
    assert late == []
    assert len(ran) == count, "none failed"
