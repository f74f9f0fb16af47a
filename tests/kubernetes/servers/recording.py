"""Runs a script of requests against an API server and records what matters in its answers.

Rule: what two right servers may do differently is not in a recording: uids, times, and the numbers of versions. Whether
a version is new or the one from before is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.kubernetes.objects import KINDS, Answer, Kubectl, Object
from tests.kubernetes.servers.interface import ApiServer

METADATA = (
    "name generateName namespace labels annotations ownerReferences finalizers deletionGracePeriodSeconds continue "
    "remainingItemCount"
).split()
TIMES = ("lastTransitionTime", "lastProbeTime", "lastHeartbeatTime", "lastUpdateTime")

COMPARED: Mapping[str, Mapping[str, Sequence[str]]] = {
    "Pod": {
        "spec": (
            "nodeName schedulerName priority priorityClassName preemptionPolicy restartPolicy tolerations nodeSelector "
            "affinity topologySpreadConstraints containers initContainers terminationGracePeriodSeconds overhead"
        ).split(),
        "status": "phase qosClass conditions nominatedNodeName".split(),
    },
    "Node": {"spec": ["taints", "unschedulable", "providerID"], "status": "capacity allocatable conditions".split()},
    "Namespace": {"spec": ["finalizers"], "status": ["phase"]},
    "Lease": {"spec": "holderIdentity leaseDurationSeconds leaseTransitions acquireTime renewTime".split()},
    "Service": {"spec": ["selector"]},
    "ReplicationController": {"spec": ["replicas", "selector"]},
    "ReplicaSet": {"spec": ["replicas", "selector"]},
    "StatefulSet": {"spec": ["replicas", "selector", "serviceName"]},
    "Event": {},
    "PriorityClass": {},
    "PersistentVolumeClaim": {
        "spec": "accessModes resources storageClassName volumeMode volumeName selector".split(),
        "status": ["phase"],
    },
    "PersistentVolume": {
        "spec": "accessModes capacity storageClassName volumeMode claimRef csi nodeAffinity".split(),
        "status": ["phase"],
    },
    "StorageClass": {},
    "CSINode": {"spec": ["drivers"]},
}
"""The fields of each kind that a scheduler reads, and that both servers must agree on."""

TOP_FIELDS = {
    "Event": "involvedObject reason message type count source".split(),
    "PriorityClass": ["value", "globalDefault", "preemptionPolicy"],
    "StorageClass": ["provisioner", "volumeBindingMode", "allowedTopologies"],
}
CONTAINER = ("name", "image", "imagePullPolicy", "resources")


@dataclass(frozen=True)
class Step:
    """One request and the status code it must get. `{name}` in a text is replaced by what was remembered under it.

    `remember` keeps the answer's uid as `<word>.uid` and its version as `<word>.version`, and `<word>.continue`.
    """

    code: int
    method: str
    path: str
    body: Any = None
    query: Mapping[str, str] = field(default_factory=dict)
    content_type: str | None = None
    remember: str | None = None
    compare_message: bool = True


@dataclass(frozen=True)
class Watched:
    """Reads some events of a watch, or all until it ends. Those of a watch without a version have no order."""

    kind: str
    query: Mapping[str, str]
    events: int | None


class Compacted:
    """The server forgets the past."""


Script = Sequence[Step | Watched | Compacted]


class Recorder:
    """Runs scripts, each in a namespace of its own."""

    def __init__(self, server: ApiServer, kubectl: Kubectl) -> None:
        self._server = server
        self._kubectl = kubectl

    def run(self, script: Script, namespace: str) -> list[Any]:
        self._kubectl.create({"kind": "Namespace", "metadata": {"name": namespace}})
        known = {"ns": namespace}
        shape = _Shape(known)
        recorded: list[Any] = []
        for step in script:
            if isinstance(step, Compacted):
                self._server.compact()
            elif isinstance(step, Watched):
                recorded.append(self._watched(step, known, shape))
            else:
                answer = self._answer(step, known)
                if step.remember:
                    _remember(known, step.remember, answer.body)
                recorded.append({"code": answer.status, **shape.of(answer.body, step.compare_message)})
        return recorded

    def _answer(self, step: Step, known: Mapping[str, str]) -> Answer:
        path, query = _filled(step.path, known), _filled(dict(step.query), known)
        return self._kubectl.request(step.method, path, _filled(step.body, known), step.content_type, **query)

    def _watched(self, step: Watched, known: Mapping[str, str], shape: _Shape) -> list[Any]:
        namespace = known["ns"] if KINDS[step.kind].namespaced else None
        events: list[Any] = []
        with self._kubectl.watch(step.kind, namespace, **_filled(dict(step.query), known)) as found:
            while step.events is None or len(events) < step.events:
                event = next(found, None)
                if event is None:
                    break
                events.append({"type": event["type"], **shape.of(event["object"], event["type"] != "ERROR")})
        return events if step.query.get("resourceVersion", "0") != "0" else sorted(events, key=_name)


class _Shape:
    """What is compared of an object. It knows which versions of an object it has seen."""

    def __init__(self, known: Mapping[str, str]) -> None:
        self._known = known
        self._versions: dict[str, str] = {}

    def of(self, obj: Object, with_message: bool = True) -> Object:
        kind = obj.get("kind")
        if kind == "Status":
            return self._status(obj, with_message)
        if "items" in obj:
            # A list of version 0 comes from a cache that knows no order.
            items = sorted((self._object(item, str(kind).removesuffix("List")) for item in obj["items"]), key=_name)
            return {"kind": kind, "metadata": self._metadata(obj, is_list=True), "items": items}
        return self._object(obj, kind) if kind and "metadata" in obj else {}

    def _object(self, obj: Object, kind: str) -> Object:
        parts = {part: _picked(obj.get(part) or {}, fields) for part, fields in COMPARED[kind].items()}
        parts |= _picked(obj, [*TOP_FIELDS.get(kind, ()), "kind", "apiVersion"])
        return dict(_without_empty({"metadata": self._metadata(obj), **self._named(parts)}))

    def _metadata(self, obj: Object, is_list: bool = False) -> Object:
        metadata = obj["metadata"]
        found = {key: metadata[key] for key in METADATA if key in metadata}
        if "generateName" in found and found.get("name", "").startswith(found["generateName"]):
            found["name"] = f"{found['generateName']}(generated)"
        if "continue" in found:
            found["continue"] = bool(found["continue"])
        found["deletionTimestamp"] = "deletionTimestamp" in metadata
        version = metadata.get("resourceVersion", "")
        if not is_list:
            uid = metadata.get("uid", "")
            found["version"] = "as before" if self._versions.get(uid) == version else "new"
            self._versions[uid] = version
        return dict(_without_empty(self._named(found)))

    def _status(self, status: Object, with_message: bool) -> Object:
        details = dict(status.get("details") or {})
        details.pop("uid", None)
        causes = [
            {key: cause[key] for key in ("reason", "field") if key in cause} for cause in details.get("causes", ())
        ]
        found = {key: status.get(key) for key in ("kind", "status", "reason", "code")}
        found["details"] = {**details, "causes": causes}
        found["message"] = status.get("message") if with_message else None
        return dict(_without_empty(self._named(found)))

    def _named(self, value: Any) -> Any:
        """With the words under which uids, versions and the namespace are remembered in their places."""
        if isinstance(value, dict):
            return {key: self._named(inner) for key, inner in value.items()}
        if isinstance(value, list):
            return [self._named(inner) for inner in value]
        if isinstance(value, str):
            for word, found in self._known.items():
                value = re.sub(rf"(?<![\w-]){re.escape(found)}(?![\w-])", f"<{word}>", value) if found else value
        return value


def _name(recorded: Object) -> str:
    return str(recorded["metadata"]["name"])


def _picked(obj: Object, fields: Sequence[str]) -> Object:
    found = {key: obj[key] for key in fields if key in obj}
    for key in ("containers", "initContainers"):
        if key in found:
            found[key] = [{part: one[part] for part in CONTAINER if part in one} for one in found[key]]
    if "conditions" in found:
        found["conditions"] = [{key: one[key] for key in one if key not in TIMES} for one in found["conditions"]]
    return found


def _without_empty(value: Any) -> Any:
    """Without what is empty or false: an absent field means the same."""
    if isinstance(value, dict):
        inner = {key: _without_empty(one) for key, one in value.items()}
        return {key: one for key, one in inner.items() if one or (one == 0 and one is not False)}
    if isinstance(value, list):
        return [_without_empty(one) for one in value]
    return value


def _filled(value: Any, known: Mapping[str, str]) -> Any:
    if isinstance(value, dict):
        return {key: _filled(inner, known) for key, inner in value.items()}
    if isinstance(value, list):
        return [_filled(inner, known) for inner in value]
    return re.sub(r"\{([\w.-]+)\}", lambda found: known[found[1]], value) if isinstance(value, str) else value


def _remember(known: dict[str, str], word: str, body: Object) -> None:
    metadata = body["metadata"]
    known[f"{word}.uid"] = metadata.get("uid", "")
    known[f"{word}.version"] = metadata.get("resourceVersion", "")
    known[f"{word}.continue"] = metadata.get("continue", "")
