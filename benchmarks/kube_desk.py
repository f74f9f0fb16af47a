"""Explanations of pods of kube-scheduler on a large cluster: by a desk that knows it, and by a command that reads it.

Rule: the desk answers each pod for the first time, and no two pods have the same requests, so no answer is remembered,
only the tables of nodes that all answers share. The API server is the fake one of the tests, in this process: the time
of the command includes what it costs to serve the lists.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from tests.kubernetes import objects as o
from tests.kubernetes.servers.fake import FakeServer

from benchmarks import Row
from stead.kubernetes.api.config import load
from stead.kubernetes.desk.desk import KubeDesk, Scope

NODES, BOUND, ASKED, KINDS, COLD = 5_000, 20_000, 100, 5, 3
ZONE, HOSTNAME = "topology.kubernetes.io/zone", "kubernetes.io/hostname"
CODE = "import sys; from stead.cli import main; sys.exit(main())"


def pending() -> Iterator[dict[str, Any]]:
    """Pods that fit nowhere, for different reasons, each with an amount of its own."""
    apart = {"requiredDuringSchedulingIgnoredDuringExecution": [
        {"labelSelector": {"matchLabels": {"app": "bound"}}, "topologyKey": HOSTNAME}
    ]}  # fmt: skip
    kinds: list[dict[str, Any]] = [
        {},
        {"nodeSelector": {ZONE: "zone-1"}},
        {"nodeSelector": {"disk": "nvme"}, "tolerations": [{"key": "gpu", "operator": "Exists"}]},
        {"affinity": {"podAntiAffinity": apart}},
        {"topologySpreadConstraints": [
            {"maxSkew": 1, "topologyKey": ZONE, "whenUnsatisfiable": "DoNotSchedule",
             "labelSelector": {"matchLabels": {"app": "bound"}}}
        ]},
    ]  # fmt: skip
    for number in range(ASKED):
        more = kinds[number % KINDS]
        yield o.pod(f"huge-{number}", scheduler="default-scheduler", cpu=str(100 + number), **more)


def filled(server: FakeServer) -> None:
    gpu = [o.taint("gpu")]
    server.load(o.nodes(NODES - 500, cpu="16"))
    server.load(o.nodes(500, prefix="gpu", cpu="16", taints=gpu))
    bound = o.pods(BOUND, "bound", labels={"app": "bound"}, cpu="2", scheduler="default-scheduler")
    for number, pod in enumerate(bound):
        pod["spec"]["nodeName"] = f"node-{number % (NODES - 500)}"
    server.load(bound)
    server.load(pending())


def explanations() -> list[Row]:
    with FakeServer(require_token=True) as server, tempfile.TemporaryDirectory() as folder:
        filled(server)
        desk = KubeDesk(load(str(server.kubeconfig_path)), Path(folder), Scope(), lambda _: None)
        try:
            desk.follow()
            desk.why("default/bound-0")  # what all answers of a snapshot share
            for number in range(KINDS):
                desk.why(f"default/huge-{number}")
            times = []
            for number in range(KINDS, ASKED):
                began = time.perf_counter()
                found = desk.why(f"pod/huge-{number}")
                times.append((time.perf_counter() - began) * 1e3)
                assert f"0/{NODES} nodes are available" in str(found)
        finally:
            desk.close()
        cold = median(_command(server, f"pod/huge-{number}") for number in range(COLD))
    who = f"why for a pod of kube-scheduler, {NODES:,} nodes"
    spread = f"95th percentile {quantiles(times, n=20)[-1]:.1f} ms, worst {max(times):.1f} ms of {len(times)}"
    return [
        Row(f"{who}: a desk that follows it", median(times), "ms", None, None, "< 50 ms", median(times) < 50, spread),
        Row(f"{who} and {BOUND:,} pods: the command", cold, "s", None, None, "", None),
    ]


def _command(server: FakeServer, pod: str) -> float:
    """Seconds of `stead why`, from the start of the process to its end."""
    environment = {**os.environ, "KUBECONFIG": str(server.kubeconfig_path), "STEAD_CONTEXT": "admin"}
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", CODE, "why", pod], env=environment, capture_output=True, check=True)
    return time.perf_counter() - began
