"""A process that is killed before or after the one write of each call: the next one goes on, and nothing is launched
twice or left.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from stead.kubernetes.ray_scaling.provider import RayClusterProvider
from tests.kubernetes.objects import Kubectl
from tests.kubernetes.ray_scaling.clusters import group, instance, provider_on, ray_cluster, states, written
from tests.kubernetes.ray_scaling.kuberay import KubeRay
from tests.kubernetes.servers.credentials import ADMIN
from tests.kubernetes.servers.fake import FakeServer

AUTOSCALER = """
import sys
from stead.kubernetes.api.config import load
from stead.kubernetes.ray_scaling.provider import RayClusterProvider
kubeconfig, user, call = sys.argv[1:]
provider = RayClusterProvider(load(kubeconfig, user), "vision")
if call == "launch":
    provider.launch("launch-1", provider.catalog()[0])
elif call == "retire":
    provider.retire(next(each for each in provider.list() if each.launch == "launch-1"))
else:
    provider.list()
print("done", flush=True)
sys.stdin.read()
"""


@contextmanager
def autoscaler(fake: FakeServer, call: str) -> Iterator[subprocess.Popen[str]]:
    """A process that makes one call of a provider. It is killed at the end of the block."""
    words = [sys.executable, "-c", AUTOSCALER, str(fake.kubeconfig_path), ADMIN, call]
    process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def killed(fake: FakeServer, kubectl: Kubectl, call: str, point: str) -> None:
    """Kill an autoscaler at a point of a call. Before the write: the server has the request and never acts on it."""
    if point == "before":
        fake.hang_next("PATCH", "/rayclusters/vision$")
    with autoscaler(fake, call) as process:
        if point == "before":
            kubectl.wait_until(lambda: fake.hanging)
        else:
            assert process.stdout is not None
            assert process.stdout.readline() == "done\n"


def launched(provider: RayClusterProvider) -> None:
    """What an autoscaler does in its first turn if one node is needed: only a launch that is not listed is new."""
    if not provider.list():
        provider.launch("launch-2", provider.catalog()[0])


POINTS = ["before", "after"]


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("is_operator_first", [True, False])
def test_a_killed_launch_is_one_node_or_none(
    fake: FakeServer, kubectl: Kubectl, kuberay: KubeRay, point: str, is_operator_first: bool
) -> None:
    kubectl.create(ray_cluster(group()))
    killed(fake, kubectl, "launch", point)
    if is_operator_first:
        kuberay.settle()
    with provider_on(fake) as provider:
        launched(provider)
        kuberay.settle()
        kuberay.run_pods()
        assert states(provider) == {"launch-2" if point == "before" else "launch-1": "running"}
        assert (len(kuberay.pods()), written(kubectl)) == (1, (1, []))


@pytest.mark.parametrize("point", POINTS)
def test_a_killed_retirement_is_finished_by_the_next_autoscaler(
    fake: FakeServer, kubectl: Kubectl, kuberay: KubeRay, point: str
) -> None:
    kubectl.create(ray_cluster(group()))
    with provider_on(fake) as provider:
        for id in ("launch-1", "busy"):
            provider.launch(id, provider.catalog()[0])
        kuberay.settle()
        kuberay.run_pods()
        provider.list()
        killed(fake, kubectl, "retire", point)
        assert states(provider)["launch-1"] == ("running" if point == "before" else "ending")
        provider.retire(instance(provider, "launch-1"))
        kuberay.settle()
        assert (states(provider), written(kubectl), kuberay.at_random) == ({"busy": "running"}, (1, []), [])


@pytest.mark.parametrize("point", POINTS)
def test_a_pod_keeps_its_launch_when_the_process_that_matched_them_is_killed(
    fake: FakeServer, kubectl: Kubectl, kuberay: KubeRay, point: str
) -> None:
    kubectl.create(ray_cluster(group()))
    with provider_on(fake) as provider:
        for id in ("launch-1", "launch-2"):
            provider.launch(id, provider.catalog()[0])
        kuberay.settle()
        kuberay.run_pods()
        killed(fake, kubectl, "list", point)
        before = list(provider.list())
        assert states(provider) == {"launch-1": "running", "launch-2": "running"}
        assert len({each.ip for each in before}) == 2
    with provider_on(fake) as another:
        assert list(another.list()) == before
