"""What is read of Ray's tables: on a real cluster, and for moments that cannot be waited for, from tables made here."""

from __future__ import annotations

from typing import Any

import pytest
import ray
from conftest import ClusterOf, Connected
from ray.core.generated import autoscaler_pb2, gcs_pb2
from waiting import wait_for
from workload import PlainResident

from stead.ray import tables as tables_of_ray
from stead.ray.tables import Tables


def test_actors_are_listed_in_every_state_but_dead(cluster_of: ClusterOf, connected: Connected) -> None:
    with connected(cluster_of([{"num_cpus": 1}], hooked=False)):
        actor: Any = ray.remote(num_cpus=0)(PlainResident)
        alive, dead, waiting = actor.remote(), actor.remote(), actor.options(resources={"none": 1}).remote()
        ray.get([alive.where.remote(), dead.where.remote()])
        ray.kill(dead)
        tables = Tables(ray.get_runtime_context().gcs_address)
        wait_for(lambda: (row := tables.actor(dead._actor_id.hex())) and row.state == "DEAD", 30, "the actor's end")
        found = {row.id: row.state for row in tables.actors()}
        assert found == {alive._actor_id.hex(): "ALIVE", waiting._actor_id.hex(): "PENDING_CREATION"}


def test_a_node_whose_amounts_ray_does_not_know_yet_is_not_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    reply = autoscaler_pb2.GetClusterStatusReply()
    known = reply.cluster_resource_state.node_states.add(node_id=b"known")
    known.total_resources["CPU"] = 1.0
    reply.cluster_resource_state.node_states.add(node_id=b"joins")

    class Gcs:
        def get_cluster_status(self) -> bytes:
            return bytes(reply.SerializeToString())

    class Accessor:
        def get_all_resource_usage(self) -> bytes:
            return bytes(gcs_pb2.ResourceUsageBatchData().SerializeToString())

    monkeypatch.setattr(tables_of_ray, "_accessor", Accessor)
    tables = Tables.__new__(Tables)
    tables.gcs = Gcs()
    assert list(tables.status().nodes) == [b"known".hex()]
