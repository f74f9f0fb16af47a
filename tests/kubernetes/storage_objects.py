"""Storage objects for tests: claims, volumes, classes and limits, as they stand in a manifest.

Rule: a builder returns a plain dictionary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tests.kubernetes.objects import ZONE, Object, pod

NO_PROVISIONER = "kubernetes.io/no-provisioner"
DRIVER = "disk.csi.test"
SELECTED_NODE = "volume.kubernetes.io/selected-node"
BIND_COMPLETED = "pv.kubernetes.io/bind-completed"


def storage_class(
    name: str,
    provisioner: str = DRIVER,
    mode: str = "WaitForFirstConsumer",
    topologies: Mapping[str, Sequence[str]] | None = None,
) -> Object:
    found: Object = {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": name},
        "provisioner": provisioner,
        "volumeBindingMode": mode,
    }
    if topologies:
        expressions = [{"key": key, "values": list(values)} for key, values in topologies.items()]
        found["allowedTopologies"] = [{"matchLabelExpressions": expressions}]
    return found


def claim(
    name: str,
    class_name: str = "disk",
    size: str = "1Gi",
    modes: Sequence[str] = ("ReadWriteOnce",),
    owner: Mapping[str, Any] | None = None,
    **spec: Any,
) -> Object:
    """A PersistentVolumeClaim. Other arguments go into `spec`."""
    metadata: Object = {"name": name}
    if owner:
        metadata["ownerReferences"] = [dict(owner)]
    asked = {"accessModes": list(modes), "resources": {"requests": {"storage": size}}, "storageClassName": class_name}
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": {**asked, **spec}}


def claim_reference(name: str, namespace: str, uid: str) -> Object:
    kind = {"apiVersion": "v1", "kind": "PersistentVolumeClaim"}
    return {**kind, "namespace": namespace, "name": name, "uid": uid}


def volume(
    name: str,
    class_name: str = "disk",
    key: str = ZONE,
    *values: str,
    size: str = "1Gi",
    modes: Sequence[str] = ("ReadWriteOnce",),
    labels: Mapping[str, str] | None = None,
    **spec: Any,
) -> Object:
    """A PersistentVolume for nodes whose label has one of the values; without values, for all nodes."""
    given: Object = {
        "accessModes": list(modes),
        "capacity": {"storage": size},
        "storageClassName": class_name,
        "csi": {"driver": DRIVER, "volumeHandle": name},
    }
    if values:
        term = {"matchExpressions": [{"key": key, "operator": "In", "values": list(values)}]}
        given["nodeAffinity"] = {"required": {"nodeSelectorTerms": [term]}}
    metadata: Object = {"name": name, "labels": dict(labels or {})}
    return {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": metadata, "spec": {**given, **spec}}


def csi_node(name: str, limits: Mapping[str, int | None]) -> Object:
    drivers: list[Object] = []
    for driver, count in limits.items():
        drivers.append({"name": driver, "nodeID": name, "topologyKeys": None})
        if count is not None:
            drivers[-1]["allocatable"] = {"count": count}
    return {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "CSINode",
        "metadata": {"name": name},
        "spec": {"drivers": drivers},
    }


def pod_with(name: str, *claims: str, **more: Any) -> Object:
    """A pod that uses these claims; `more` goes to `pod`."""
    volumes = [{"name": f"v{index}", "persistentVolumeClaim": {"claimName": each}} for index, each in enumerate(claims)]
    return pod(name, volumes=volumes, **more)
