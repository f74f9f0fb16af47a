"""`stead start` itself: a head and a worker as users start them, and an unmodified program."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stead.ray.local.local_cluster import OBJECT_STORE_BYTES
from tests.on_ray.processes import answers, end, free_ports
from tests.on_ray.waiting import wait_for
from tests.on_ray.workload import run_driver

pytestmark = pytest.mark.long

STEAD = Path(sys.executable).with_name("stead")

PROGRAM = """
    import json, sys
    import ray, stead

    @ray.remote(num_cpus=1)
    def where():
        return ray.get_runtime_context().get_node_labels().get("zone", "head")

    @ray.remote(num_cpus=0)
    def nested():
        return ray.get([where.remote() for _ in range(2)])

    ray.init(sys.argv[1], log_to_driver=False, logging_level="error")
    plain = ray.get([where.remote() for _ in range(4)], timeout=60) + ray.get(nested.remote(), timeout=60)
    tolerant = where.options(tolerations={"team": stead.In("blue")}, label_selector={"zone": "a"})
    there = ray.get(tolerant.remote(), timeout=60)  # by now the worker has joined
    nodes = [[dict(node.labels), dict(node.sources), [str(taint) for taint in node.taints]] for node in stead.nodes()]
    print(json.dumps({"plain": plain, "tolerant": there, "nodes": nodes}))
"""


@pytest.fixture
def address(private_home: Path) -> Iterator[str]:
    directory = Path(tempfile.mkdtemp(prefix="st-", dir="/tmp"))
    (port,) = free_ports(1)
    common = f"""
        --block --num-cpus=1 --object-store-memory={OBJECT_STORE_BYTES}
        --min-worker-port=0 --max-worker-port=0 --dashboard-agent-listen-port=0
    """.split()
    started: list[subprocess.Popen[Any]] = []

    def start(name: str, *words: str, **variables: str) -> None:
        started.append(
            subprocess.Popen(
                [STEAD, "start", *words, *common],
                env={**os.environ, **variables},
                stdout=(directory / name).open("w"),
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        )

    try:
        own = "--node-ip-address=127.0.0.1"
        start("head.out", "--head", own, f"--port={port}", f"--temp-dir={directory}", "--include-dashboard=false")
        wait_for(lambda: answers(port), 60, f"the start of a head in {directory}")
        labels = "--labels={zone:a}"  # as after a shell that removed the quotes
        taints = '--taints={"team": "blue"}'
        own = "--node-ip-address=127.0.0.2"  # of a worker Ray would take 127.0.0.1 for the public address
        start("worker.out", own, f"--address=LOCALHOST:{port}", labels, taints, RAY_NODE_LABELS='{"disk": "ssd"}')
        yield f"LOCALHOST:{port}"  # in capitals, so that Ray does not replace it with the public address
    finally:
        for process in started:
            end(process, directory)
        shutil.rmtree(directory, ignore_errors=True)


def test_labels_and_taints_given_at_start_bind_an_unmodified_program(address: str) -> None:
    """The program only runs under RAY_RUNTIME_ENV_HOOK."""
    found = run_driver(PROGRAM, {"RAY_RUNTIME_ENV_HOOK": "stead.ray.hook"}, address)
    assert set(found["plain"]) == {"head"}
    assert found["tolerant"] == "a"
    labels, sources, taints = next(node for node in found["nodes"] if node[0].get("zone"))
    assert (labels["zone"], labels["disk"]) == ("a", "ssd")
    assert (sources["zone"], sources["disk"], sources["node_id"]) == ("start", "start", "stead")
    assert taints == ["team=blue"]
    head = next(node for node in found["nodes"] if not node[0].get("zone"))
    assert head[0]["ray.io/node-group"] == "head"
