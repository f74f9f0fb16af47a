"""What happened on an API server, not as the scheduler says: a watch of pods, and who sent which request.

Rule: a recording misses nothing that matters to its question. The watch lists again after a failure of the server; a
node that a pod has, or had, cannot be missed, because no request takes it away again.
"""

from __future__ import annotations

import http.client
import json
import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.kubernetes.objects import ApiError, Kubectl
from tests.kubernetes.scheduling.running import WAIT_SECONDS_MAX
from tests.kubernetes.servers.fake import FakeServer
from tests.kubernetes.servers.interface import ApiServer

PODS = "/api/v1/pods"
WATCH_SECONDS = 1
RETRY_SECONDS = 0.05

AUDIT_POLICY = """\
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: Metadata
  users: [scheduler-1, scheduler-2, least-privileged]
- level: None
"""
"""The real server records the requests of the schedulers, and of nobody else."""


@dataclass
class PodHistory:
    """A pod and every node it was seen with, in order."""

    name: str
    nodes: list[str] = field(default_factory=list)


class RecordedPods:
    """Records, inside its `with` block, every pod by its uid and the nodes that it is assigned to."""

    def __init__(self, server: ApiServer) -> None:
        self._server = server
        self._changed = threading.Condition()
        self._pods: dict[str, PodHistory] = {}
        self._is_stopping = threading.Event()
        self._thread = threading.Thread(target=self._record, name="recorded-pods", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._is_stopping.set()  # the thread ends with its watch, at most a second later

    @property
    def pods(self) -> Mapping[str, PodHistory]:
        with self._changed:
            return {uid: PodHistory(seen.name, list(seen.nodes)) for uid, seen in self._pods.items()}

    @property
    def assigned(self) -> int:
        """How many pods were seen with a node."""
        with self._changed:
            return self._count()

    def wait_until_assigned(self, count: int) -> None:
        """Return as soon as this many pods were seen with a node."""
        with self._changed:
            found = self._changed.wait_for(lambda: self._count() >= count, WAIT_SECONDS_MAX)
            assert found, f"only {self._count()} of {count} pods have a node after {WAIT_SECONDS_MAX:g} s"

    def assigned_twice(self) -> list[PodHistory]:
        """Pods that were seen with more than one node."""
        return [seen for seen in self.pods.values() if len(seen.nodes) > 1]

    def _count(self) -> int:
        return sum(bool(seen.nodes) for seen in self._pods.values())

    def _record(self) -> None:
        version = None
        with Kubectl(self._server) as kubectl:
            while not self._is_stopping.is_set():
                try:
                    version = self._follow(kubectl, version) if version else self._list(kubectl)
                except (OSError, http.client.HTTPException, ApiError, ValueError):
                    version = None
                    self._is_stopping.wait(RETRY_SECONDS)

    def _list(self, kubectl: Kubectl) -> str:
        answer = kubectl.request("GET", PODS)
        if answer.status != 200:
            raise ApiError(answer, f"GET {PODS}")
        for pod in answer.body["items"]:
            self._see(pod)
        return str(answer.body["metadata"]["resourceVersion"])

    def _follow(self, kubectl: Kubectl, version: str) -> str | None:
        """Watch for a second. Returns the version to go on from; None after an error."""
        with kubectl.watch("Pod", resourceVersion=version, timeoutSeconds=WATCH_SECONDS) as events:
            for event in events:
                if event["type"] == "ERROR":
                    return None
                self._see(event["object"])
                version = event["object"]["metadata"]["resourceVersion"]
        return version

    def _see(self, pod: Mapping[str, Any]) -> None:
        metadata, node = pod["metadata"], pod["spec"].get("nodeName")
        with self._changed:
            seen = self._pods.setdefault(metadata["uid"], PodHistory(metadata["name"]))
            if node and node not in seen.nodes[-1:]:
                seen.nodes.append(node)
                self._changed.notify_all()


@dataclass(frozen=True)
class Sent:
    """A request that reached the API server."""

    method: str
    path: str


class RequestLog:
    """Which requests each user sent: the log of the fake server, or the audit log of the real one."""

    def __init__(self, server: ApiServer, audit_log: Path | None) -> None:
        self._server = server
        self._audit_log = audit_log

    def of(self, user: str, method: str, pattern: str) -> list[Sent]:
        """The requests of a user with this method and a path in which the pattern is found."""
        found = re.compile(pattern)
        return [one for one in self._all(user) if one.method == method and found.search(one.path)]

    def bindings(self, user: str) -> list[Sent]:
        return self.of(user, "POST", "/binding$")

    def writes(self, user: str) -> list[Sent]:
        """Everything but reads and the renewal of the Lease."""
        return [one for one in self._all(user) if one.method != "GET" and "/leases" not in one.path]

    def _all(self, user: str) -> list[Sent]:
        if isinstance(self._server, FakeServer):
            return [Sent(one.method, one.path) for one in self._server.requests if one.user == user]
        assert self._audit_log is not None, "a real server of these tests has an audit log"
        return [
            Sent(METHODS.get(line["verb"], line["verb"]), line["requestURI"].partition("?")[0])
            for line in map(json.loads, self._audit_log.read_text(encoding="utf-8").splitlines())
            if line["user"]["username"] == user
        ]


METHODS = {"create": "POST", "update": "PUT", "patch": "PATCH", "delete": "DELETE"} | dict.fromkeys(
    ("get", "list", "watch"), "GET"
)
