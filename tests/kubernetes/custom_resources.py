"""Resources that an API server gets by a CustomResourceDefinition: pod groups of every kind, and RayClusters.

Rule: a resource accepts any fields; only those who read it know what they mean. A RayCluster has the fields, defaults
and required fields of KubeRay's own definition where an autoscaler reads or writes them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from stead.kubernetes.gangs import PATHS
from tests.kubernetes.objects import Kubectl

DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
APPROVED = {"api-approved.kubernetes.io": "https://github.com/kubernetes-sigs/scheduler-plugins/pull/50"}
"""The API server wants this annotation for a group of Kubernetes itself."""

COSCHEDULING = "/apis/scheduling.x-k8s.io/v1alpha1/podgroups"
OWN_GROUP = "scheduling.k8s.io"
"""A group of Kubernetes itself. An API server that is older than a resource of it does not let others define it."""

RAY_CLUSTERS = "/apis/ray.io/v1/rayclusters"

ANYTHING: dict[str, Any] = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
WORKER_GROUP = {
    **ANYTHING,
    "required": ["groupName", "maxReplicas", "minReplicas", "template"],
    "properties": {
        "groupName": {"type": "string"},
        "replicas": {"type": "integer", "format": "int32", "default": 0},
        "minReplicas": {"type": "integer", "format": "int32", "default": 0},
        "maxReplicas": {"type": "integer", "format": "int32", "default": 2**31 - 1},
        "numOfHosts": {"type": "integer", "format": "int32", "default": 1},
        "suspend": {"type": "boolean"},
        "scaleStrategy": {
            "type": "object",
            "properties": {"workersToDelete": {"type": "array", "items": {"type": "string"}}},
        },
        "rayStartParams": {"type": "object", "additionalProperties": {"type": "string"}},
        "template": ANYTHING,
    },
}
RAY_CLUSTER = {
    "type": "object",
    "properties": {
        "spec": {
            **ANYTHING,
            "required": ["headGroupSpec"],
            "properties": {
                "enableInTreeAutoscaling": {"type": "boolean"},
                "suspend": {"type": "boolean"},
                "headGroupSpec": ANYTHING,
                "workerGroupSpecs": {"type": "array", "items": WORKER_GROUP},
            },
        },
        "status": ANYTHING,
    },
}
SCHEMAS = {RAY_CLUSTERS: RAY_CLUSTER}
WITH_STATUS = {RAY_CLUSTERS}

DEFINABLE = tuple(paths[0] for paths in PATHS.values() if f"/{OWN_GROUP}/" not in paths[0])


def install(kubectl: Kubectl, *paths: str) -> None:
    """Define the resources at these paths, and wait until the API server has them."""
    for path in paths:
        group, version, plural = path.removeprefix("/apis/").split("/")
        kind = {"podgroups": "PodGroup", "workloads": "Workload", "rayclusters": "RayCluster"}[plural]
        served: dict[str, Any] = {"name": version, "served": True, "storage": True}
        served["schema"] = {"openAPIV3Schema": SCHEMAS.get(path, ANYTHING)}
        if path in WITH_STATUS:
            served["subresources"] = {"status": {}}
        definition = {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": f"{plural}.{group}", "annotations": APPROVED},
            "spec": {
                "group": group,
                "scope": "Namespaced",
                "names": {"kind": kind, "plural": plural},
                "versions": [served],
            },
        }
        answer = kubectl.request("POST", DEFINITIONS, definition)
        assert answer.status in (201, 409), answer
    kubectl.wait_until(lambda: all(kubectl.request("GET", path).status == 200 for path in paths))


@contextmanager
def installed(kubectl: Kubectl, *paths: str) -> Iterator[None]:
    """Define the resources for as long as the block takes; their objects go with them."""
    install(kubectl, *paths)
    try:
        yield
    finally:
        for path in paths:
            group, _, plural = path.removeprefix("/apis/").split("/")
            assert kubectl.request("DELETE", f"{DEFINITIONS}/{plural}.{group}").status == 200
        kubectl.wait_until(lambda: all(kubectl.request("GET", path).status == 404 for path in paths))
