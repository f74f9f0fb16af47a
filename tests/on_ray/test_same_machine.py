"""Which nodes are on the controller's own machine: an address alone does not show that."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import ray

from stead.ray.control.node_agents import is_here
from stead.ray.local.local_cluster import LocalCluster
from stead.ray.wire.tables import Raylet, Tables
from tests.on_ray.conftest import ClusterOf
from tests.on_ray.workload import attached

pytestmark = pytest.mark.long

SESSION = "/tmp/ray/session_1"


@pytest.fixture
def listening(tmp_path: Path) -> Iterator[str]:
    """A socket with a listener."""
    path = str(tmp_path / "raylet.1")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        server.listen()
        yield path


HOME = Raylet("/tmp/ray/session_1/sockets/raylet", SESSION)


def test_a_node_whose_raylet_answers_here_is_here(listening: str) -> None:
    assert is_here("other", "home", {"home": HOME, "other": Raylet(listening, SESSION)})


def test_a_node_whose_socket_is_not_here_is_elsewhere(tmp_path: Path) -> None:
    other = Raylet(str(tmp_path / "raylet.1"), SESSION)
    assert not is_here("other", "home", {"home": HOME, "other": other})


def test_a_socket_without_a_listener_does_not_count(tmp_path: Path) -> None:
    path = str(tmp_path / "raylet.1")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
    assert not is_here("other", "home", {"home": HOME, "other": Raylet(path, SESSION)})


def test_a_socket_that_two_nodes_claim_belongs_to_neither(listening: str) -> None:
    """The first raylet of every machine has the same name, so one of another machine may seem to be here."""
    claimed = Raylet(listening, SESSION)
    assert not is_here("other", "home", {"home": claimed, "other": claimed})
    assert not is_here("other", "home", {"home": HOME, "other": claimed, "third": claimed})


def test_a_node_with_another_session_directory_reads_other_files(listening: str) -> None:
    assert not is_here("other", "home", {"home": HOME, "other": Raylet(listening, "/elsewhere/session_1")})


def test_a_node_that_is_gone_is_not_here(listening: str) -> None:
    assert not is_here("other", "home", {"home": HOME})


def test_raylets_of_one_machine_know_each_other_and_need_no_agent(cluster_of: ClusterOf) -> None:
    started: LocalCluster = cluster_of([{"num_cpus": 1}, {"num_cpus": 1}])
    with attached(started):
        tables = Tables(ray.get_runtime_context().gcs_address)
        home, other = [node.node_id for node in started.nodes]
        assert is_here(other, home, tables.raylets())
        assert "PageAgent" not in {row.class_name for row in tables.actors()}
        assert [node["Alive"] for node in ray.nodes()] == [True, True]  # no raylet minds that somebody has knocked
