"""Nodes are returned to Ray: an idle node ends, and a node with work stays."""

from __future__ import annotations

import pytest
import ray

from stead.ray.wire.gcs import ControlStore
from tests.on_ray.conftest import ClusterOf
from tests.on_ray.waiting import wait_for
from tests.on_ray.workload import SOON_S, Resident, attached

pytestmark = pytest.mark.long


def alive() -> set[str]:
    return {node["NodeID"] for node in ray.nodes() if node["Alive"]}


def test_a_node_ends_once_it_is_idle(cluster_of: ClusterOf) -> None:
    with attached(cluster_of([{"num_cpus": 1}, {"num_cpus": 1, "resources": {"there": 1}}])):
        store = ControlStore(ray.get_runtime_context().gcs_address)
        resident = Resident.options(num_cpus=0, resources={"there": 1}).remote()
        node = ray.get(resident.where.remote())
        assert not store.end_if_idle(node, "it has work")
        assert node in alive()
        ray.kill(resident)
        wait_for(lambda: store.end_if_idle(node, "it is idle"), SOON_S, "the node to agree")
        wait_for(lambda: node not in alive(), SOON_S, "the node to leave")
