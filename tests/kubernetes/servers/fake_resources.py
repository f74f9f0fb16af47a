"""What the fake API server knows of each kind: where its objects are, which defaults they get, and what is refused.

Rule: a default or a check is here only if it matters to a scheduler; the comparison with the real server shows which
of them are the same.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tests.kubernetes.servers.fake_status import forbidden, invalid

Object = dict[str, Any]
Cause = tuple[str, str, str]

GRACE_SECONDS = 30
REQUIRED = "Required value"
METADATA_FIELDS = ("metadata.name", "metadata.namespace")
POD_FIELDS = (
    "spec.nodeName spec.restartPolicy spec.schedulerName spec.serviceAccountName status.phase status.podIP "
    "status.nominatedNodeName"
).split()
EVENT_FIELDS = (
    "involvedObject.kind involvedObject.namespace involvedObject.name involvedObject.uid reason source type"
).split()


@dataclass(frozen=True)
class Resource:
    """A kind of object and its peculiarities."""

    api_version: str
    kind: str
    plural: str
    namespaced: bool = True
    subresources: frozenset[str] = frozenset()
    fields: tuple[str, ...] = METADATA_FIELDS
    unconditional_update: bool = True
    created_by_update: bool = False
    returns_deleted: bool = False
    keeps_status_on_create: bool = False

    @property
    def group(self) -> str:
        return self.api_version.rpartition("/")[0]

    @property
    def has_status(self) -> bool:
        return "status" in self.subresources


STATUS = frozenset({"status"})

RESOURCES = (
    Resource("v1", "Namespace", "namespaces", namespaced=False, subresources=STATUS),
    Resource(
        "v1",
        "Node",
        "nodes",
        namespaced=False,
        subresources=STATUS,
        fields=(*METADATA_FIELDS, "spec.unschedulable"),
        keeps_status_on_create=True,
    ),
    Resource(
        "v1",
        "Pod",
        "pods",
        subresources=frozenset({"status", "binding", "eviction"}),
        fields=(*METADATA_FIELDS, *POD_FIELDS),
        returns_deleted=True,
    ),
    Resource("v1", "Event", "events", fields=(*METADATA_FIELDS, *EVENT_FIELDS), created_by_update=True),
    Resource("v1", "Service", "services", subresources=STATUS),
    Resource("v1", "ReplicationController", "replicationcontrollers", subresources=STATUS),
    Resource("apps/v1", "ReplicaSet", "replicasets", subresources=STATUS),
    Resource("apps/v1", "StatefulSet", "statefulsets", subresources=STATUS),
    Resource("coordination.k8s.io/v1", "Lease", "leases", unconditional_update=False, created_by_update=True),
    Resource("scheduling.k8s.io/v1", "PriorityClass", "priorityclasses", namespaced=False),
    Resource("policy/v1", "PodDisruptionBudget", "poddisruptionbudgets", subresources=STATUS),
    Resource("scheduling.k8s.io/v1alpha1", "Workload", "workloads"),
    Resource("scheduling.k8s.io/v1alpha2", "PodGroup", "podgroups"),
    Resource("scheduling.x-k8s.io/v1alpha1", "PodGroup", "podgroups", unconditional_update=False),
    Resource("scheduling.volcano.sh/v1beta1", "PodGroup", "podgroups", unconditional_update=False),
    Resource("ray.io/v1", "RayCluster", "rayclusters", subresources=STATUS, unconditional_update=False),
    Resource("v1", "PersistentVolumeClaim", "persistentvolumeclaims", subresources=STATUS, returns_deleted=True),
    Resource(
        "v1", "PersistentVolume", "persistentvolumes", namespaced=False, subresources=STATUS, returns_deleted=True
    ),
    Resource("storage.k8s.io/v1", "StorageClass", "storageclasses", namespaced=False),
    Resource("storage.k8s.io/v1", "CSINode", "csinodes", namespaced=False),
)

BY_PLACE = {(resource.api_version, resource.plural): resource for resource in RESOURCES}
PODS = BY_PLACE["v1", "pods"]
NAMESPACES = BY_PLACE["v1", "namespaces"]
BUDGETS = BY_PLACE["policy/v1", "poddisruptionbudgets"]
PRIORITY_CLASSES = BY_PLACE["scheduling.k8s.io/v1", "priorityclasses"]

SYSTEM_PRIORITIES = {"system-node-critical": 2_000_001_000, "system-cluster-critical": 2_000_000_000}

STORAGE_DEFAULTS = {
    "PersistentVolumeClaim": {"volumeMode": "Filesystem"},
    "PersistentVolume": {"volumeMode": "Filesystem", "persistentVolumeReclaimPolicy": "Retain"},
}

EVICTED_AFTER = [
    {"key": f"node.kubernetes.io/{name}", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}
    for name in ("not-ready", "unreachable")
]


def field_of(resource: Resource, obj: Mapping[str, Any], field: str) -> str:
    """The value of a field for a field selector; an absent one is the empty string."""
    value: Any = obj
    for part in field.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    if field == "spec.unschedulable":
        return "true" if value else "false"
    if resource.kind == "Event" and field == "source":
        return str((value or {}).get("component", ""))
    return "" if value is None else str(value)


def set_defaults(resource: Resource, obj: Object, priority_class_of: Callable[[Object], Object | None]) -> None:
    """Fill in what the real server fills in. `priority_class_of` finds the priority class of a pod."""
    if resource.kind == "Pod":
        _set_pod_defaults(obj, priority_class_of(obj))
    elif resource.kind == "Node":
        obj.setdefault("spec", {})
        status = obj.setdefault("status", {})
        if "capacity" in status:
            status.setdefault("allocatable", dict(status["capacity"]))
    elif resource.kind == "Namespace":
        obj.setdefault("spec", {}).setdefault("finalizers", ["kubernetes"])
        obj["status"] = {"phase": "Active"}
    elif resource.kind == "PriorityClass":
        obj.setdefault("preemptionPolicy", "PreemptLowerPriority")
    elif resource.kind in STORAGE_DEFAULTS:
        obj["spec"] = {**STORAGE_DEFAULTS[resource.kind], **obj["spec"]}
        obj["status"] = {"phase": "Pending"}
    elif resource.kind == "StorageClass":
        obj.setdefault("reclaimPolicy", "Delete")
        obj.setdefault("volumeBindingMode", "Immediate")
    elif resource.has_status:
        obj.setdefault("status", {})
    if resource.kind == "ReplicationController":
        labels = obj.get("spec", {}).get("template", {}).get("metadata", {}).get("labels")
        obj["metadata"].setdefault("labels", labels)
        obj["spec"].setdefault("selector", labels)


def _set_pod_defaults(pod: Object, priority_class: Object | None) -> None:
    spec = pod["spec"]
    _set_priority(pod, priority_class)
    for key, value in (
        ("restartPolicy", "Always"),
        ("terminationGracePeriodSeconds", GRACE_SECONDS),
        ("dnsPolicy", "ClusterFirst"),
        ("schedulerName", "default-scheduler"),
        ("enableServiceLinks", True),
    ):
        spec.setdefault(key, value)
    spec.setdefault("securityContext", {})
    for container in [*spec["containers"], *(spec.get("initContainers") or ())]:
        resources = container.setdefault("resources", {})
        if resources.get("limits"):
            resources["requests"] = {**resources["limits"], **(resources.get("requests") or {})}
        image = str(container.get("image", ""))
        latest = image.endswith(":latest") or ":" not in image.rpartition("/")[2]
        container.setdefault("imagePullPolicy", "Always" if latest else "IfNotPresent")
    add_tolerations(spec)
    pod["status"] = {"phase": "Pending", "qosClass": quality_of_service(spec)}


def _set_priority(pod: Object, priority_class: Object | None) -> None:
    spec, found = pod["spec"], priority_class or {"value": 0}
    if spec.get("priority", found["value"]) != found["value"]:
        why = (
            f"the integer value of priority ({spec['priority']}) must not be provided in pod spec; priority admission "
            f"controller computed {found['value']} from the given PriorityClass name"
        )
        raise forbidden("pods", "", pod["metadata"]["name"], why)
    spec["priority"] = found["value"]
    spec.setdefault("preemptionPolicy", found.get("preemptionPolicy", "PreemptLowerPriority"))
    if priority_class:
        spec["priorityClassName"] = priority_class["metadata"]["name"]


def add_tolerations(spec: Object) -> None:
    """What an admission plugin of the real server does to every pod that is created or changed."""
    tolerations = list(spec.get("tolerations") or ())
    for wanted in EVICTED_AFTER:
        if not any(_tolerates(toleration, str(wanted["key"])) for toleration in tolerations):
            tolerations.append(dict(wanted))
    spec["tolerations"] = tolerations


def _tolerates(toleration: Mapping[str, Any], key: str) -> bool:
    return toleration.get("key", "") in {"", key} and toleration.get("effect", "") in {"", "NoExecute"}


def quality_of_service(spec: Mapping[str, Any]) -> str:
    """Guaranteed, Burstable or BestEffort, from cpu and memory as they are written."""
    containers = [*spec["containers"], *(spec.get("initContainers") or ())]
    amounts = [(one["resources"].get("requests") or {}, one["resources"].get("limits") or {}) for one in containers]
    if not any(name in part for pair in amounts for part in pair for name in ("cpu", "memory")):
        return "BestEffort"
    equal = all(
        name in limits and requests.get(name) == limits[name]
        for requests, limits in amounts
        for name in ("cpu", "memory")
    )
    return "Guaranteed" if equal else "Burstable"


def check_new(resource: Resource, obj: Object) -> None:
    """Refuse what cannot be created."""
    metadata = obj["metadata"]
    name = metadata.get("name") or ""
    causes: list[Cause] = []
    if not name:
        causes.append(("FieldValueRequired", "metadata.name", f"{REQUIRED}: name or generateName is required"))
    elif resource.kind in {"Node", "Pod", "Lease"} and not re.fullmatch(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?", name):
        causes.append(("FieldValueInvalid", "metadata.name", f"Invalid value: {name!r}"))
    if resource.kind == "Pod":
        causes += _pod_causes(obj)
    if causes:
        raise invalid(resource.kind, resource.group, name, causes)


def _pod_causes(pod: Object) -> list[Cause]:
    spec = pod.get("spec")
    containers = spec.get("containers") if isinstance(spec, dict) else None
    if not containers:
        return [("FieldValueRequired", "spec.containers", REQUIRED)]
    return [
        ("FieldValueRequired", f"spec.containers[{index}].{field}", REQUIRED)
        for index, container in enumerate(containers)
        for field in ("name", "image")
        if not container.get(field)
    ]


MUTABLE_IN_A_POD = ("containers", "initContainers", "tolerations", "activeDeadlineSeconds", "schedulingGates")


def check_changed(resource: Resource, old: Object, new: Object) -> None:
    """Refuse a change of what cannot be changed, and complete what can."""
    if resource.kind != "Pod":
        return
    before = old["spec"]
    after = new["spec"] = dict(new.get("spec") or {})
    add_tolerations(after)
    kept = [{key: value for key, value in spec.items() if key not in MUTABLE_IN_A_POD} for spec in (before, after)]
    same = kept[0] == kept[1]
    same &= [_without_image(one) for one in before["containers"]] == [
        _without_image(one) for one in after["containers"]
    ]
    same &= all(one in (after.get("tolerations") or ()) for one in before.get("tolerations") or ())
    gates = [one["name"] for one in before.get("schedulingGates") or ()]
    same &= all(one["name"] in gates for one in after.get("schedulingGates") or ())
    if not same:
        message = (
            "Forbidden: pod updates may not change fields other than `spec.containers[*].image`, "
            "`spec.initContainers[*].image`, `spec.activeDeadlineSeconds` or `spec.tolerations` (only additions to "
            "existing tolerations)"
        )
        raise invalid("Pod", "", old["metadata"]["name"], [("FieldValueForbidden", "spec", message)])


def _without_image(container: Mapping[str, Any]) -> Object:
    return {key: value for key, value in container.items() if key != "image"}
