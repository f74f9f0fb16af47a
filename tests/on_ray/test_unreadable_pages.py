"""Programs that cannot read their node's page, on a real cluster: plain work does not fail, and no taint is ignored
without a warning."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import ray

import stead
from stead.ray.local.local_cluster import LocalCluster
from stead.ray.submit.connection import connection
from tests.on_ray.conftest import ClusterOf
from tests.on_ray.workload import SOON_S, attached, run_driver

pytestmark = pytest.mark.long

HOOKED = {"RAY_RUNTIME_ENV_HOOK": "stead.ray.hook", "RAY_worker_register_timeout_seconds": "60"}

PLAIN_WORK = """
    import json, logging, os, sys, ray
    warned = []
    logging.getLogger("stead").addHandler(type("H", (logging.Handler,), {"emit": lambda _, r: warned.append(r)})())
    ray.init(sys.argv[1], log_to_driver=False, logging_level="error")
    where = ray.remote(num_cpus=1)(lambda: ray.get_runtime_context().get_node_id())
    if sys.argv[2]:  # as another user, who cannot import what Ray imports late
        import pydantic.main
        ray.get(ray.put(0)), ray.get(ray.get_actor("stead-controller", "stead").hello.remote())
        os.setgroups([]), os.setresgid(65534, 65534, 65534), os.setresuid(65534, 65534, 65534)
    nodes = ray.get([where.remote() for _ in range(10)], timeout=60)
    native = ray.get(where.options(label_selector={"ray.io/node-id": sys.argv[3]}).remote(), timeout=60)
    try:
        refused = ray.get(where.options(labels={"app": "x"}).remote(), timeout=60) and ""
    except ValueError as error:
        refused = str(error)
    warnings = [record.getMessage() for record in warned if record.levelno >= logging.WARNING]
    print(json.dumps([sorted(set(nodes)), native, refused, warnings]))
"""


@pytest.fixture(scope="module")
def cluster(cluster_of: ClusterOf) -> Iterator[LocalCluster]:
    with attached(cluster_of([{"num_cpus": 2}, {"num_cpus": 2}])) as started:
        stead.taint(started.nodes[1].node_id, {"mine": "yes"})
        yield started


@pytest.fixture
def ids(cluster: LocalCluster) -> list[str]:
    return [node.node_id for node in cluster.nodes]


def folder() -> Path:
    return Path(ray._private.worker.global_worker.node.get_session_dir_path()) / "stead"


@contextmanager
def damaged_pages(ids: list[str]) -> Iterator[None]:
    """Makes every page unreadable during a block."""
    paths = [max((folder() / id).glob("*.json"), key=lambda path: int(path.stem)) for id in ids]
    before = [path.read_bytes() for path in paths]
    for path in paths:
        path.write_text("unreadable")
    try:
        yield
    finally:
        for path, content in zip(paths, before, strict=True):
            path.write_bytes(content)


@contextmanager
def stopped_controller() -> Iterator[None]:
    pid = connection().ask("hello")["pid"]
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def test_the_controllers_files_are_private(cluster: LocalCluster, ids: list[str]) -> None:
    modes = {path.name: path.stat().st_mode & 0o777 for path in folder().iterdir()}
    assert {id: modes.pop(id) for id in ids} == dict.fromkeys(ids, 0o755)
    assert {"journal.sqlite", "book.sqlite", "audit.sqlite"} <= modes.keys()
    assert set(modes.values()) == {0o600}
    assert folder().stat().st_mode & 0o777 == 0o711


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_a_program_of_another_user_is_bound_like_any_other(cluster: LocalCluster, ids: list[str]) -> None:
    nodes, native, refused, warnings = run_driver(PLAIN_WORK, HOOKED, cluster.address, "another", ids[0])
    assert (nodes, native, refused, warnings) == ([ids[0]], ids[0], "", [])


def test_a_program_that_cannot_read_the_page_asks_for_it(cluster: LocalCluster, ids: list[str]) -> None:
    with damaged_pages(ids):
        nodes, native, refused, warnings = run_driver(PLAIN_WORK, HOOKED, cluster.address, "", ids[0])
    assert (nodes, native, refused) == ([ids[0]], ids[0], "")
    assert len(warnings) == 1
    assert "it asks the controller every second" in warnings[0]


def test_without_any_page_plain_work_runs_and_the_program_is_warned(cluster: LocalCluster, ids: list[str]) -> None:
    """Even if Ray places it on a tainted node: stead has warned that taints are not enforced. Work that needs stead is
    refused in one sentence."""
    with damaged_pages(ids), stopped_controller():
        nodes, native, refused, warnings = run_driver(PLAIN_WORK, HOOKED, cluster.address, "", ids[1])
    assert set(nodes) <= set(ids)
    assert native == ids[1]
    assert refused.startswith("stead does not know which nodes this work may use: the page of this node cannot be read")
    assert len(warnings) == 1
    assert "taints, drained nodes, labels set at run time and the cluster's policy are not enforced" in warnings[0]
    assert stead.nodes()
    assert ray.get(ray.remote(num_cpus=1)(lambda: 1).remote(), timeout=SOON_S) == 1


def test_a_controller_with_another_protocol_is_refused_in_one_sentence(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stead.ray.api.PROTOCOL", 2)
    with pytest.raises(
        stead.Unsupported, match=r"does not understand the cluster's controller, stead 0\.1\.0; install"
    ):
        stead.init()
