"""Work for tests on real clusters: it returns where it runs, and runs as long as a test needs.

Functions and classes here are pickled by value, so a worker does not import the tests.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

import stead
from stead.ray.local.local_cluster import LocalCluster
from tests.on_ray.waiting import wait_for

ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])

NOBODY = "ab" * 28
"""A node id that no node has."""

SOON_S = 60.0
"""How long a test waits for what should happen at once: a limit for hangs, not a measure of speed."""

STILL_S = 1.0
"""How long a test checks that nothing happens: a wrong grant starts work within 0.2 s."""


def where_am_i(*_: Any) -> str:
    """The id of the node it runs on."""
    return str(ray.get_runtime_context().get_node_id())


class PlainResident:
    """An actor that returns its node, and counts its calls."""

    def __init__(self) -> None:
        self.count = 0

    def where(self) -> str:
        self.count += 1
        return str(ray.get_runtime_context().get_node_id())

    def counted(self) -> int:
        return self.count

    def ask(self, other: Any) -> str:
        """The node of another actor, asked from here."""
        return str(ray.get(other.where.remote()))


where: Any = ray.remote(num_cpus=1)(where_am_i)
Resident: Any = ray.remote(num_cpus=1)(PlainResident)


@contextmanager
def attached(cluster: LocalCluster, namespace: str = "tests", **options: Any) -> Iterator[LocalCluster]:
    """Connects this process with ``stead.init`` for a block."""
    assert not ray.is_initialized(), "something before this is still connected"
    stead.init(cluster.address, namespace=namespace, log_to_driver=False, logging_level="error", **options)
    try:
        yield cluster
    finally:
        ray.shutdown()


def indexes(cluster: LocalCluster, refs: Sequence[Any]) -> set[int]:
    """The nodes on which this work ran, by index in the cluster."""
    ids = [node.node_id for node in cluster.nodes]
    return {ids.index(id) for id in ray.get(list(refs), timeout=SOON_S)}


def landed(cluster: LocalCluster, times: int = 3, **options: Any) -> set[int]:
    """Where tasks with these options run."""
    return indexes(cluster, [where.options(**options).remote() for _ in range(times)])


def tickets() -> list[str]:
    """Every ticket on any node."""
    totals = ray._private.state.state.total_resources_per_node()
    return [name for names in totals.values() for name in names if name.startswith("stead.t/")]


def waits(*refs: Any) -> bool:
    """Whether none of the work starts while we watch."""
    return not ray.wait(list(refs), timeout=STILL_S, fetch_local=False)[0]


@contextmanager
def resident(**options: Any) -> Iterator[Any]:
    """An actor, for a block."""
    actor = Resident.options(**options).remote()
    try:
        yield actor
    finally:
        ray.kill(actor)


@contextmanager
def occupied(node_id: str, cpus: float) -> Iterator[None]:
    """Occupies this many CPUs of a node with a placement group, which needs no process."""
    group = ray.util.placement_group([{"CPU": cpus}], bundle_label_selector=[{"ray.io/node-id": node_id}])
    assert group.wait(60), f"no group on {node_id}"
    try:
        yield
    finally:
        ray.util.remove_placement_group(group)
        wait_for(lambda: free_cpus(node_id) >= cpus, SOON_S, "the release of the CPUs")


def free_cpus(node_id: str) -> float:
    return next(view.available.get("CPU", 0.0) for view in stead.nodes() if view.id == node_id)


def cpus_are_free(cluster: LocalCluster) -> bool:
    """Whether Ray shows every CPU of every node as free."""
    free = ray._private.state.state.available_resources_per_node()
    return all(free[node.node_id].get("CPU") == node.spec.num_cpus for node in cluster.nodes)


def wait_for_every_cpu(cluster: LocalCluster) -> None:
    """Waits until Ray has released the CPUs of ended tasks: a preference gives way where there is no room."""
    wait_for(lambda: cpus_are_free(cluster), SOON_S, "room on the nodes that are only preferred")


@contextmanager
def labelled(node_id: str, labels: dict[str, str]) -> Iterator[None]:
    """Sets labels on a running node for a block."""
    stead.label(node_id, labels)
    try:
        yield
    finally:
        for key in labels:
            with suppress(stead.Invalid):  # the test has removed it itself
                stead.label(node_id, remove=[key])


def pinned(node_id: str, soft: bool = False) -> NodeAffinitySchedulingStrategy:
    """Ray's own node affinity."""
    return NodeAffinitySchedulingStrategy(node_id, soft=soft)


def run_driver(program: str, environment: Mapping[str, str], *arguments: str) -> Any:
    """Runs a separate program with its own connection to Ray. Its last line of output is its answer, as JSON."""
    told = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0", "RAY_DEDUP_LOGS": "0", **environment}
    command = [sys.executable, "-c", textwrap.dedent(program), *arguments]
    ended = subprocess.run(command, env=told, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stderr[-4000:]
    return json.loads(ended.stdout.splitlines()[-1])
