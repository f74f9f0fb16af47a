"""`stead autoscale` on KubeRay: the command, a fake API server, a double of KubeRay's operator, and a real Ray node in
each pod, started by `stead start` as in docs/kuberay.md.

On this machine all nodes would have one address, so each pod's node gets a loopback address of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self

import pytest
import ray
import yaml

import stead
from stead import label_in, node_affinity
from stead.ray.local.local_cluster import LocalCluster
from tests.kubernetes.objects import ApiError, Kubectl, Object
from tests.kubernetes.ray_scaling.clusters import group, ray_cluster, written
from tests.kubernetes.ray_scaling.kuberay import KubeRay
from tests.kubernetes.servers.credentials import ADMIN
from tests.kubernetes.servers.fake import FakeServer
from tests.on_ray.conftest import ClusterOf
from tests.on_ray.waiting import wait_for
from tests.on_ray.workload import SOON_S, attached

pytestmark = pytest.mark.long

STEAD = [sys.executable, "-c", "import sys; from stead.cli import main; sys.exit(main())"]
START = ["--num-cpus=1", "--object-store-memory=80000000", "--disable-usage-stats", "--block"]


def chip_group() -> Object:
    """Nodes with a chip, a zone and a taint."""
    found = group("chip", most=2, rayStartParams={"num-cpus": "1", "resources": "'{\"chip\": 1}'"})
    container = {"name": "ray-worker", "image": "ray:2.60.0", "args": ["stead start --labels-file=/etc/podinfo/labels"]}
    metadata = {"labels": {"zone": "b"}, "annotations": {"stead/taints": "chip_node=true", "stead/price": "5"}}
    return {**found, "template": {"metadata": metadata, "spec": {"containers": [container]}}}


class Kubelets:
    """Runs the operator all the time, and a Ray node for each pod, until the block ends."""

    def __init__(self, cluster: LocalCluster, kubectl: Kubectl, folder: Path) -> None:
        self._cluster, self._kubectl, self._folder = cluster, kubectl, folder
        self.kuberay = KubeRay(kubectl)
        self.nodes: dict[str, subprocess.Popen[bytes]] = {}
        self._started = 0
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kubelets")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()
        for node in self.nodes.values():
            end(node)

    def _run(self) -> None:
        while not self._stopping.wait(0.1):
            with suppress(ApiError):  # somebody changed the RayCluster meanwhile
                self.kuberay.settle()
            pods = {pod["metadata"]["name"]: pod for pod in self.kuberay.pods()}
            for name in self.nodes.keys() - pods.keys():
                end(self.nodes.pop(name))
            for name in pods.keys() - self.nodes.keys():
                self._start(pods[name])

    def _start(self, pod: Object) -> None:
        self._started += 1
        ip, name = f"127.0.0.{self._started + 1}", pod["metadata"]["name"]
        folder = self._folder / name
        folder.mkdir()
        template = self._kubectl.get("RayCluster", "vision")["spec"]["workerGroupSpecs"][0]["template"]["metadata"]
        for file, values in (("labels", pod["metadata"]["labels"]), ("annotations", template["annotations"])):
            (folder / file).write_text("\n".join(f"{key}={json.dumps(value)}" for key, value in values.items()))
        words = ["start", f"--address={self._cluster.address}", f"--node-ip-address={ip}", *START]
        words += ["--resources", '{"chip": 1}', "--labels-file", str(folder / "labels")]
        environment = {**os.environ, "RAY_NODE_TYPE_NAME": "chip"}
        with (folder / "log").open("wb") as log:
            self.nodes[name] = subprocess.Popen([*STEAD, *words], env=environment, stdout=log, stderr=log)
        self.kuberay.set_status(pod, {"phase": "Running", "podIP": ip, "podIPs": [{"ip": ip}]})


def end(node: subprocess.Popen[bytes]) -> None:
    node.terminate()
    try:
        node.wait(SOON_S)
    except subprocess.TimeoutExpired:
        node.kill()


@ray.remote(num_cpus=0, resources={"chip": 1})
class Trainer:
    def labels(self) -> dict[str, str]:
        return dict(ray.get_runtime_context().get_node_labels())


@contextmanager
def autoscaler(words: list[str]) -> Iterator[None]:
    """The command, until it is killed. A test that fails shows what it printed."""
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        yield
    finally:
        process.kill()
        sys.stdout.write(process.communicate()[0])


def alive() -> int:
    return sum(row["Alive"] for row in ray.nodes())


def test_pending_work_makes_a_pod_appear_runs_in_it_and_the_pod_goes(cluster_of: ClusterOf, tmp_path: Path) -> None:
    with FakeServer() as server, Kubectl(server) as kubectl:
        kubectl.create(ray_cluster(chip_group()))
        where = {"cluster": "vision", "kubeconfig": str(server.kubeconfig_path), "context": ADMIN}
        quick = {"idle_timeout_minutes": 0.05, "metadata": {"stead": {"join": "5m", "settle": "1s"}}}
        config = tmp_path / "autoscale.yaml"
        config.write_text(yaml.safe_dump({"provider": {"type": "kuberay", **where}, **quick}))
        cluster = cluster_of([{"num_cpus": 1}])
        words = [*STEAD, "autoscale", "--config", str(config), "--address", cluster.address]
        with attached(cluster), Kubelets(cluster, kubectl, tmp_path) as kubelets:
            options: dict[str, Any] = {"scheduling_strategy": node_affinity(label_in("zone", ["b"]))}
            remote: Any = Trainer
            trainer = remote.options(tolerations={"chip_node": stead.Exists()}, **options).remote()
            running = trainer.labels.remote()
            dry = subprocess.run([*words, "--dry-run"], capture_output=True, text=True, timeout=SOON_S, check=False)
            assert dry.returncode == 0 and "chip" in dry.stdout, dry
            assert not [each for each in server.writes if each.path.endswith("/vision")]
            with autoscaler(words):
                labels = ray.get(running, timeout=3 * SOON_S)
                assert labels["zone"] == "b" and labels["ray.io/node-group"] == "chip"
                assert (written(kubectl), alive()) == ((1, []), 2)
            with autoscaler(words):  # another process continues
                ray.kill(trainer)
                wait_for(lambda: (written(kubectl), alive()) == ((0, []), 1), SOON_S, "the end of the node")
            assert kubelets.kuberay.at_random == []
