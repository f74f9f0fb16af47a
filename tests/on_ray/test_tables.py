"""Reading Ray's tables and stead's events."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import ray

import stead
from stead.ray import api
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


def test_two_groups_with_one_name_in_two_namespaces_are_two_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = {
        id: {"name": "ring", "state": state} for id, state in (("a", "CREATED"), ("b", "PENDING"), ("c", "REMOVED"))
    }
    monkeypatch.setattr(ray.util, "placement_group_table", lambda: rows)
    assert {id: row["name"] for id, row in Tables.groups(object.__new__(Tables)).items()} == {"a": "ring", "b": "ring"}


@pytest.mark.parametrize(
    ("given", "asked"),
    [({}, (-1000, 1000)), ({"limit": 5}, (-5, 5)), ({"after": 0}, (0, 1000)), ({"after": 7, "limit": 5}, (7, 5))],
    ids=str,
)
def test_without_a_number_the_latest_events_are_asked_for(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, int], asked: tuple[int, int]
) -> None:
    seen: list[tuple[int, ...]] = []

    def listed(*numbers: int) -> tuple[Any, ...]:
        seen.append(numbers)
        return ()

    monkeypatch.setattr(api, "remote_desk", lambda: SimpleNamespace(events=listed))
    assert stead.events(**given) == []
    assert seen == [asked]
