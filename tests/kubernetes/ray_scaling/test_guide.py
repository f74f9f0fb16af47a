"""The guide docs/kuberay.md: its RayCluster, its file for the autoscaler, and its Role, which has exactly the rights
that are used.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from stead.errors import Invalid
from stead.kubernetes.ray_scaling.provider import RayClusterProvider, ray_cluster_provider
from stead.scaling.catalog import cluster_of
from stead.scaling.provider import Unlaunched
from tests.kubernetes.objects import Kubectl, Object
from tests.kubernetes.ray_scaling.clusters import ACCOUNT, group, instance, ray_cluster, states, written
from tests.kubernetes.ray_scaling.kuberay import KubeRay
from tests.kubernetes.servers.fake import FakeServer
from tests.kubernetes.servers.interface import ApiServer
from tests.kubernetes.servers.real import RealServer
from tests.kubernetes.test_rights import right_of, rights_of

PAGE = Path(__file__).parents[3] / "docs" / "kuberay.md"


def file(name: str) -> list[Any]:
    """The documents of a YAML file that the page shows."""
    text = PAGE.read_text(encoding="utf-8").split(f"```yaml\n# file: {name}\n")[1].split("```")[0]
    return list(yaml.safe_load_all(text))


@contextmanager
def provider_of_the_page(server: ApiServer, user: str, read_only: bool = False) -> Iterator[RayClusterProvider]:
    """The provider that the page's file describes, as a user."""
    fields = cluster_of(file("autoscale.yaml")[0]).provider_fields
    where = {"kubeconfig": str(server.kubeconfig_path), "context": user}
    provider = ray_cluster_provider({**fields, **where}, read_only)
    try:
        yield provider
    finally:
        provider.close()


@contextmanager
def granted(kubectl: Kubectl, *objects: Object) -> Iterator[None]:
    """With these objects, which end with the block."""
    for each in objects:
        kubectl.create(each)
    try:
        yield
    finally:
        for each in objects:
            kubectl.delete(each["kind"], each["metadata"]["name"], each["metadata"]["namespace"])


def journey(provider: RayClusterProvider, kubectl: Kubectl, kuberay: KubeRay) -> None:
    """A launch, its pod, its node and its end."""
    gpu = next(each for each in provider.catalog() if each.name == "gpu")
    provider.launch("launch-1", gpu)
    kuberay.settle()
    kuberay.run_pods()
    assert states(provider)["launch-1"] == "running"
    provider.retire(instance(provider, "launch-1"))
    kuberay.settle()
    assert "launch-1" not in states(provider)
    assert written(kubectl, 1) == (0, [])


def test_the_rights_of_the_page_are_exactly_those_that_are_used(
    fake: FakeServer, kubectl: Kubectl, kuberay: KubeRay
) -> None:
    kubectl.create(file("raycluster.yaml")[0])
    with provider_of_the_page(fake, ACCOUNT) as provider:
        assert {each.name: each.price for each in provider.catalog()} == {"cpu": 0.4, "gpu": 2.5}
        journey(provider, kubectl, kuberay)
    _, role, binding = file("rights.yaml")
    used = {right_of(seen) for seen in fake.requests if seen.user == ACCOUNT}
    assert used == rights_of(role)
    subject = binding["subjects"][0]
    assert f"system:serviceaccount:{subject['namespace']}:{subject['name']}" == ACCOUNT


@pytest.mark.kube
def test_a_real_server_allows_the_autoscaler_of_the_page_what_it_does_and_nothing_else(real: RealServer) -> None:
    with Kubectl(real) as kubectl:
        created = [file("raycluster.yaml")[0], ray_cluster(group(), name="other")]
        created[0]["metadata"]["namespace"] = "default"
        with granted(kubectl, *created), provider_of_the_page(real, ACCOUNT) as provider:
            with pytest.raises(Invalid, match="you may not get rayclusters in the namespace 'default'; grant the Role"):
                provider.list()
            with granted(kubectl, *file("rights.yaml")):
                kubectl.wait_until(lambda: allowed(provider))
                kuberay = KubeRay(kubectl)
                journey(provider, kubectl, kuberay)
                with Kubectl(real, ACCOUNT) as own:
                    path = "/apis/ray.io/v1/namespaces/default/rayclusters"
                    assert own.request("GET", f"{path}/other").status == 403
                    assert own.request("DELETE", f"{path}/vision").status == 403
            for pod in kuberay.pods():
                kubectl.delete("Pod", pod["metadata"]["name"], grace_seconds=0)


def allowed(provider: RayClusterProvider) -> bool:
    """Whether the API server knows the new Role."""
    try:
        provider.list()
    except Invalid:
        return False
    return True


def test_the_command_of_the_head_pod_is_one_that_a_shell_understands() -> None:
    written_args = PAGE.read_text(encoding="utf-8").split("```text\nargs:")[1].split("```")[0]
    (command,) = yaml.safe_load(f"args:{written_args}")["args"]
    assert "stead autoscale --config /etc/stead/autoscale.yaml" in command
    assert subprocess.run(["bash", "-n", "-c", command], check=False).returncode == 0


def test_a_dry_run_writes_nothing(fake: FakeServer, kubectl: Kubectl, kuberay: KubeRay) -> None:
    kubectl.create(file("raycluster.yaml")[0])
    kuberay.settle()
    with provider_of_the_page(fake, ACCOUNT, read_only=True) as provider:
        (found,) = provider.list()
        with pytest.raises(Unlaunched, match="is only read here, so nothing is launched or retired"):
            provider.launch("launch-1", provider.catalog()[0])
        with pytest.raises(Invalid, match="is only read here"):
            provider.retire(found)
    assert not [seen for seen in fake.writes if seen.user == ACCOUNT]
