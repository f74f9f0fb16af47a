"""Nodes, pods and other objects for tests and benchmarks, and a small client that creates and reads them.

    with FakeServer() as server, Kubectl(server) as kubectl:
        kubectl.create(node("a"))
        kubectl.create(pod("web", cpu="2"))
        kubectl.wait_until(lambda: node_of(kubectl.get("Pod", "web")) == "a")

Rule: a builder returns a plain dictionary, as it stands in a manifest. The client knows nothing of stead.
"""

from __future__ import annotations

import http.client
import json
import select
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self, TypeVar
from urllib.parse import urlencode, urlsplit

from tests.kubernetes.servers.credentials import ADMIN
from tests.kubernetes.servers.interface import ApiServer

Object = dict[str, Any]
T = TypeVar("T")

TIMEOUT_SECONDS = 30.0
POLL_SECONDS = 0.02
BULK_CONNECTIONS = 8

HOSTNAME = "kubernetes.io/hostname"
ZONE = "topology.kubernetes.io/zone"

MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
JSON_PATCH = "application/json-patch+json"


@dataclass(frozen=True)
class Kind:
    """Where the objects of a kind are found."""

    api_version: str
    plural: str
    namespaced: bool = True

    def path(self, namespace: str | None = None, name: str | None = None, subresource: str | None = None) -> str:
        root = f"/api/{self.api_version}" if self.api_version == "v1" else f"/apis/{self.api_version}"
        parts = [root, *(["namespaces", namespace] if self.namespaced and namespace else []), self.plural]
        return "/".join([*parts, *([name] if name else []), *([subresource] if subresource else [])])


KINDS = {
    "Namespace": Kind("v1", "namespaces", namespaced=False),
    "Node": Kind("v1", "nodes", namespaced=False),
    "Pod": Kind("v1", "pods"),
    "Event": Kind("v1", "events"),
    "Service": Kind("v1", "services"),
    "ReplicationController": Kind("v1", "replicationcontrollers"),
    "ReplicaSet": Kind("apps/v1", "replicasets"),
    "StatefulSet": Kind("apps/v1", "statefulsets"),
    "Lease": Kind("coordination.k8s.io/v1", "leases"),
    "PriorityClass": Kind("scheduling.k8s.io/v1", "priorityclasses", namespaced=False),
    "PodDisruptionBudget": Kind("policy/v1", "poddisruptionbudgets"),
    "PodGroup": Kind("scheduling.x-k8s.io/v1alpha1", "podgroups"),
    "RayCluster": Kind("ray.io/v1", "rayclusters"),
    "ClusterRole": Kind("rbac.authorization.k8s.io/v1", "clusterroles", namespaced=False),
    "ClusterRoleBinding": Kind("rbac.authorization.k8s.io/v1", "clusterrolebindings", namespaced=False),
    "Role": Kind("rbac.authorization.k8s.io/v1", "roles"),
    "RoleBinding": Kind("rbac.authorization.k8s.io/v1", "rolebindings"),
    "ServiceAccount": Kind("v1", "serviceaccounts"),
    "ConfigMap": Kind("v1", "configmaps"),
    "PersistentVolumeClaim": Kind("v1", "persistentvolumeclaims"),
    "PersistentVolume": Kind("v1", "persistentvolumes", namespaced=False),
    "StorageClass": Kind("storage.k8s.io/v1", "storageclasses", namespaced=False),
    "CSINode": Kind("storage.k8s.io/v1", "csinodes", namespaced=False),
}


# Builders


def node(
    name: str,
    cpu: str = "8",
    memory: str = "32Gi",
    pods: str = "110",
    labels: Mapping[str, str] | None = None,
    taints: Sequence[Mapping[str, str]] = (),
    resources: Mapping[str, str] | None = None,
    ready: bool = True,
    **spec: Any,
) -> Object:
    """A node with its hostname label. `resources` adds extended resources; other arguments go into `spec`."""
    amounts = {"cpu": cpu, "memory": memory, "pods": pods, **(resources or {})}
    condition = {"type": "Ready", "status": "True" if ready else "False", "reason": "Test"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {HOSTNAME: name, **(labels or {})}},
        "spec": {**({"taints": [dict(taint) for taint in taints]} if taints else {}), **spec},
        "status": {"capacity": amounts, "allocatable": dict(amounts), "conditions": [condition]},
    }


def nodes(count: int, zones: int = 3, prefix: str = "node", **more: Any) -> list[Object]:
    """`node-0`, `node-1`, ... spread over zones `zone-0`, `zone-1`, ...; `more` goes to each `node`."""
    labels = more.pop("labels", {})
    return [node(f"{prefix}-{i}", labels={ZONE: f"zone-{i % zones}", **labels}, **more) for i in range(count)]


def pod(
    name: str,
    namespace: str = "default",
    scheduler: str = "stead",
    cpu: str = "100m",
    memory: str = "128Mi",
    labels: Mapping[str, str] | None = None,
    resources: Mapping[str, str] | None = None,
    owner: Mapping[str, Any] | None = None,
    **spec: Any,
) -> Object:
    """A pod with one container. `resources` adds extended resources; other arguments go into `spec`."""
    requests = {"cpu": cpu, "memory": memory, **(resources or {})}
    needed = {"requests": requests, **({"limits": dict(resources)} if resources else {})}
    metadata: Object = {"name": name, "namespace": namespace, "labels": dict(labels or {})}
    if owner:
        metadata["ownerReferences"] = [dict(owner)]
    container = {"name": "main", "image": "registry.invalid/pause:1", "resources": needed}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {"schedulerName": scheduler, "containers": [container], **spec},
    }


def pods(count: int, prefix: str = "pod", **more: Any) -> list[Object]:
    """`pod-0`, `pod-1`, ...; `more` goes to each `pod`."""
    return [pod(f"{prefix}-{i}", **more) for i in range(count)]


def replicas(name: str, count: int, owner_uid: str = "", **more: Any) -> list[Object]:
    """The pods of a deployment: equal, with the label `app` and a controlling ReplicaSet."""
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": name, "uid": owner_uid or f"uid-of-{name}"}
    labels = {"app": name, **more.pop("labels", {})}
    return pods(count, name, labels=labels, owner={**owner, "controller": True}, **more)


def replica_set(name: str, count: int, namespace: str = "default") -> Object:
    labels = {"app": name}
    template = {"metadata": {"labels": labels}, "spec": pod(name)["spec"]}
    return {
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "metadata": {"name": name, "namespace": namespace, "labels": labels},
        "spec": {"replicas": count, "selector": {"matchLabels": labels}, "template": template},
    }


def service(name: str, selector: Mapping[str, str], namespace: str = "default") -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"selector": dict(selector), "ports": [{"port": 80}]},
    }


def namespace(name: str, labels: Mapping[str, str] | None = None) -> Object:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": dict(labels or {})}}


def priority_class(name: str, value: int, **more: Any) -> Object:
    return {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": name},
        "value": value,
        **more,
    }


def taint(key: str, value: str = "", effect: str = "NoSchedule") -> dict[str, str]:
    return {"key": key, **({"value": value} if value else {}), "effect": effect}


def binding(name: str, node_name: str, uid: str | None = None) -> Object:
    metadata = {"name": name, **({"uid": uid} if uid else {})}
    target = {"apiVersion": "v1", "kind": "Node", "name": node_name}
    return {"apiVersion": "v1", "kind": "Binding", "metadata": metadata, "target": target}


def node_of(pod: Mapping[str, Any]) -> str | None:
    """The node a pod is bound to."""
    return pod["spec"].get("nodeName") or None


def condition_of(obj: Mapping[str, Any], kind: str) -> Object | None:
    """The condition of this type in an object's status."""
    return next((dict(one) for one in obj["status"].get("conditions") or () if one["type"] == kind), None)


# The client


@dataclass(frozen=True)
class Answer:
    """An HTTP response whose body is JSON, or {"text": ...} where it is not."""

    status: int
    body: Object


class ApiError(Exception):
    """An answer that is not a success."""

    def __init__(self, answer: Answer, request: str) -> None:
        super().__init__(f"{request}: {answer.status} {answer.body.get('message') or answer.body}")
        self.status = answer.status
        self.reason: str | None = answer.body.get("reason")


class Kubectl:
    """A synchronous client with a pool of connections. Threads may share it."""

    def __init__(self, server: ApiServer, user: str = ADMIN) -> None:
        self._server = server
        self._headers = {"Authorization": f"Bearer {server.tokens[user]}", "Content-Type": "application/json"}
        self._idle: deque[http.client.HTTPConnection] = deque()
        self._trust = ssl.create_default_context(cafile=str(server.ca_file)) if server.ca_file else None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        while self._idle:
            self._idle.pop().close()

    def request(
        self, method: str, path: str, body: Any = None, content_type: str | None = None, **query: object
    ) -> Answer:
        """Send one request and return the answer, whatever its status."""
        headers = {**self._headers, **({"Content-Type": content_type} if content_type else {})}
        with self._connection() as connection:
            connection.request(method, _with_query(path, query), None if body is None else json.dumps(body), headers)
            response = connection.getresponse()
            return Answer(response.status, _decoded(response.read()))

    def create(self, obj: Mapping[str, Any]) -> Object:
        kind = KINDS[obj["kind"]]
        return self._checked("POST", kind.path(obj["metadata"].get("namespace", "default")), obj)

    def create_many(self, objects: Iterable[Mapping[str, Any]], connections: int = BULK_CONNECTIONS) -> None:
        """Create many objects, in no particular order."""
        with ThreadPoolExecutor(connections, "kubectl") as pool:
            deque(pool.map(self.create, objects), maxlen=0)

    def get(self, kind: str, name: str, namespace: str = "default") -> Object:
        return self._checked("GET", KINDS[kind].path(namespace, name))

    def list(self, kind: str, namespace: str | None = None, **query: object) -> list[Object]:
        """All objects of a kind, of one namespace or of all, read in pages if `limit` is given."""
        items: list[Object] = []
        while True:
            page = self._checked("GET", KINDS[kind].path(namespace), None, **query)
            items += page["items"]
            if not (more := page["metadata"].get("continue")):
                return items
            query = {**query, "continue": more}

    def replace(self, obj: Mapping[str, Any], subresource: str | None = None) -> Object:
        metadata = obj["metadata"]
        path = KINDS[obj["kind"]].path(metadata.get("namespace"), metadata["name"], subresource)
        return self._checked("PUT", path, obj)

    def patch(
        self,
        kind: str,
        name: str,
        change: Any,
        namespace: str = "default",
        subresource: str | None = None,
        content_type: str = STRATEGIC,
    ) -> Object:
        path = KINDS[kind].path(namespace, name, subresource)
        return self._checked("PATCH", path, change, content_type=content_type)

    def delete(self, kind: str, name: str, namespace: str = "default", grace_seconds: int | None = None) -> Object:
        options = {} if grace_seconds is None else {"gracePeriodSeconds": grace_seconds}
        return self._checked("DELETE", KINDS[kind].path(namespace, name), options or None)

    def bind(self, name: str, node_name: str, namespace: str = "default", uid: str | None = None) -> None:
        path = KINDS["Pod"].path(namespace, name, "binding")
        self._checked("POST", path, binding(name, node_name, uid))

    def set_phase(self, name: str, phase: str, namespace: str = "default") -> Object:
        """What a kubelet reports: Running, Succeeded or Failed."""
        return self.patch("Pod", name, {"status": {"phase": phase}}, namespace, "status")

    @contextmanager
    def watch(self, kind: str, namespace: str | None = None, **query: object) -> Iterator[Iterator[Object]]:
        """The events of a watch, each with `type` and `object`. A silence of 30 s is an error."""
        connection = self._connect()
        try:
            path = _with_query(KINDS[kind].path(namespace), {"watch": "true", **query})
            connection.request("GET", path, headers=self._headers)
            response = connection.getresponse()
            if response.status != 200:
                raise ApiError(Answer(response.status, _decoded(response.read())), path)
            yield (json.loads(line) for line in iter(response.readline, b""))
            response.close()
        finally:
            connection.close()

    def wait_until(self, condition: Callable[[], T], timeout: float = TIMEOUT_SECONDS) -> T:
        """Ask again and again until the answer is true, and return it."""
        deadline, pause = time.monotonic() + timeout, threading.Event()
        while True:
            answer = condition()
            if answer:
                return answer
            if time.monotonic() > deadline:
                raise TimeoutError(f"still {answer!r} after {timeout:g} s")
            pause.wait(POLL_SECONDS)

    def wait_until_bound(self, count: int, timeout: float = TIMEOUT_SECONDS) -> Sequence[Object]:
        """Wait until this many pods have a node, and return them."""

        def bound() -> Sequence[Object] | None:
            found = [one for one in self.list("Pod") if node_of(one)]
            return found if len(found) >= count else None

        return self.wait_until(bound, timeout) or ()

    def _checked(self, method: str, path: str, body: Any = None, **query: Any) -> Object:
        answer = self.request(method, path, body, **query)
        if answer.status >= 300:
            raise ApiError(answer, f"{method} {path}")
        return answer.body

    @contextmanager
    def _connection(self) -> Iterator[http.client.HTTPConnection]:
        connection = self._reusable() or self._connect()
        try:
            yield connection
        except BaseException:
            connection.close()
            raise
        self._idle.append(connection)

    def _reusable(self) -> http.client.HTTPConnection | None:
        """An idle connection on which nothing arrived: after a restart of the server the end has."""
        while True:
            try:
                connection = self._idle.pop()
            except IndexError:
                return None
            if connection.sock is not None and not select.select([connection.sock], [], [], 0)[0]:
                return connection
            connection.close()

    def _connect(self) -> http.client.HTTPConnection:
        address = urlsplit(self._server.url)
        assert address.hostname
        if self._trust is None:
            return http.client.HTTPConnection(address.hostname, address.port, timeout=TIMEOUT_SECONDS)
        return http.client.HTTPSConnection(address.hostname, address.port, timeout=TIMEOUT_SECONDS, context=self._trust)


def _with_query(path: str, query: Mapping[str, object]) -> str:
    return f"{path}?{urlencode(query)}" if query else path


def _decoded(body: bytes) -> Object:
    try:
        found = json.loads(body or b"{}")
    except ValueError:
        return {"text": body.decode(errors="replace")}
    return found if isinstance(found, dict) else {"text": found}
