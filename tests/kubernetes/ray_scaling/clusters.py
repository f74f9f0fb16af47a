"""RayClusters for tests, and a provider for one of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from stead.kubernetes.api.config import load
from stead.kubernetes.ray_scaling.provider import RayClusterProvider
from stead.planner.instances import Instance, InstanceState
from tests.kubernetes.objects import JSON_PATCH, Kubectl, Object
from tests.kubernetes.servers.credentials import ADMIN
from tests.kubernetes.servers.interface import ApiServer

NAMESPACE = "default"
ACCOUNT = f"system:serviceaccount:{NAMESPACE}:stead-autoscaler"
"""The user whose rights are those of the Role in docs/kuberay.md."""


def group(name: str = "gpu", least: int = 0, most: int = 4, hosts: int = 1, **more: Any) -> Object:
    """A worker group of pods with 8 CPUs. `replicas` is the minimum, unless it is given."""
    container = {"name": "ray-worker", "image": "ray:2.60.0", "resources": {"limits": {"cpu": "8"}}}
    return {
        "groupName": name,
        "replicas": least,
        "minReplicas": least,
        "maxReplicas": most,
        "numOfHosts": hosts,
        "rayStartParams": {},
        "template": {"metadata": {"labels": {"zone": "a"}}, "spec": {"containers": [container]}},
        **more,
    }


def ray_cluster(*groups: Object, name: str = "vision", namespace: str = "default", **spec: Any) -> Object:
    """A RayCluster with these worker groups; other arguments go into `spec`."""
    head = {"rayStartParams": {}, "template": {"spec": {"containers": [{"name": "ray-head", "image": "ray:2.60.0"}]}}}
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayCluster",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"headGroupSpec": head, "workerGroupSpecs": list(groups), **spec},
    }


@contextmanager
def provider_on(
    server: ApiServer, name: str = "vision", user: str = ADMIN, **more: Any
) -> Iterator[RayClusterProvider]:
    """A provider with connections of its own, like another process."""
    provider = RayClusterProvider(load(str(server.kubeconfig_path), user), name, **more)
    try:
        yield provider
    finally:
        provider.close()


def states(provider: RayClusterProvider) -> dict[str, str]:
    """The state of each instance by the id of its launch."""
    return {each.launch: each.state.value for each in provider.list()}


def instance(provider: RayClusterProvider, id: str) -> Instance:
    """The instance of a launch."""
    return next(each for each in provider.list() if each.launch == id)


def lost(id: str) -> Instance:
    """What an autoscaler may know of a launch."""
    return Instance(id, "gpu", InstanceState.STARTING)


def written(kubectl: Kubectl, index: int = 0, name: str = "vision") -> tuple[int, list[str]]:
    """`replicas` and `workersToDelete` of a worker group."""
    found = kubectl.get("RayCluster", name)["spec"]["workerGroupSpecs"][index]
    return found["replicas"], (found.get("scaleStrategy") or {}).get("workersToDelete") or []


def change(kubectl: Kubectl, path: str, value: Any, name: str = "vision") -> None:
    """What a person changes in the spec of a RayCluster."""
    operation = {"op": "add", "path": f"/spec/{path}", "value": value}
    kubectl.patch("RayCluster", name, [operation], content_type=JSON_PATCH)
