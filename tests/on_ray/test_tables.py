"""Reading Ray's tables, on a real cluster."""

from __future__ import annotations

from typing import Any

import pytest
import ray

from stead.ray.wire.tables import Tables
from tests.on_ray.conftest import ClusterOf, Connected
from tests.on_ray.waiting import wait_for
from tests.on_ray.workload import PlainResident


@pytest.mark.long
def test_actors_are_listed_in_every_state_but_dead(cluster_of: ClusterOf, connected: Connected) -> None:
    with connected(cluster_of([{"num_cpus": 1}], hooked=False)):
        actor: Any = ray.remote(num_cpus=0)(PlainResident)
        alive, dead, waiting = actor.remote(), actor.remote(), actor.options(resources={"none": 1}).remote()
        ray.get([alive.where.remote(), dead.where.remote()])
        ray.kill(dead)
        tables = Tables(ray.get_runtime_context().gcs_address)
        wait_for(lambda: (row := tables.actor(dead._actor_id.hex())) and row.state == "DEAD", 60, "the actor's end")
        found = {row.id: row.state for row in tables.actors()}
        assert found == {alive._actor_id.hex(): "ALIVE", waiting._actor_id.hex(): "PENDING_CREATION"}
