"""A cluster of these tests: an API server, a client of it, and the schedulers that run against it.

Rule: tests use only this, so that they do not depend on which server there is. What only the fake server can do is
reached through `fake`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from tests.kubernetes.objects import KINDS, ApiError, Kubectl, Object, condition_of, node_of
from tests.kubernetes.scheduling.recorded import RecordedPods, RequestLog
from tests.kubernetes.scheduling.running import RunningScheduler, wait_until
from tests.kubernetes.servers.credentials import MASTERS
from tests.kubernetes.servers.fake import FakeServer
from tests.kubernetes.servers.interface import ApiServer
from tests.kubernetes.servers.real import RealServer

T = TypeVar("T")

USERS: Mapping[str, Sequence[str]] = {
    "scheduler-1": [MASTERS],
    "scheduler-2": [MASTERS],
    "without-rights": [],
    "least-privileged": [],
}
"""The schedulers have different users, so that the log of requests tells them apart."""

EMPTIED = ("Service", "ReplicaSet", "StatefulSet", "ReplicationController", "Lease", "PersistentVolumeClaim")
"""What tests leave behind besides pods and nodes. Events may stay: they are found by the uid of their pod."""


class ClusterUnderTest:
    """An API server with its objects. Leaving the `with` block ends all schedulers."""

    def __init__(self, server: ApiServer, folder: Path, audit_log: Path | None = None) -> None:
        self.server = server
        self.folder = folder
        self.requests = RequestLog(server, audit_log)
        self.running: list[RunningScheduler] = []
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        self.kubectl = self._stack.enter_context(Kubectl(self.server))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.end_schedulers()
        self._stack.close()

    @property
    def is_fake(self) -> bool:
        return isinstance(self.server, FakeServer)

    @property
    def fake(self) -> FakeServer:
        """For what only the fake server can do."""
        assert isinstance(self.server, FakeServer), "this test is for the fake server only"
        return self.server

    @property
    def real(self) -> RealServer:
        assert isinstance(self.server, RealServer), "this test is for the real server only"
        return self.server

    # -- schedulers

    def scheduler(self, *options: str, user: str = "scheduler-1") -> RunningScheduler:
        """Start a scheduler."""
        return self.prepared_scheduler(*options, user=user).start()

    def prepared_scheduler(self, *options: str, user: str = "scheduler-1") -> RunningScheduler:
        """A scheduler that is not started yet."""
        log = self.folder / f"{user}-{len(self.running)}.log"
        found = RunningScheduler(self.server.kubeconfig_path, log, user, *options)
        self.running.append(found)
        return found

    def end_schedulers(self) -> None:
        for each in self.running:
            each.__exit__(None, None, None)
        self.running.clear()

    def recorded(self) -> RecordedPods:
        return RecordedPods(self.server)

    # -- objects

    def create(self, *objects: Object) -> None:
        """Create objects, in order."""
        for obj in objects:
            self.kubectl.create(obj)

    def create_many(self, objects: Iterable[Object]) -> None:
        """Create many objects of one kind, in any order. On the fake server this leaves no trace in its requests."""
        if self.is_fake:
            self.fake.load(objects)
        else:
            self.kubectl.create_many(objects)

    def empty(self) -> None:
        """Delete what tests create."""
        for namespace in {one["metadata"]["namespace"] for one in self.kubectl.list("Pod")}:
            self._delete_all("Pod", namespace)
        for kind in ("Node", "PersistentVolume", "StorageClass", "CSINode"):
            self._delete_all(kind, None)
        for kind in EMPTIED:
            for namespace in {one["metadata"]["namespace"] for one in self.kubectl.list(kind)} & {"default"}:
                self._delete_all(kind, namespace)

    def _delete_all(self, kind: str, namespace: str | None) -> None:
        options = {"kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": 0}
        path = KINDS[kind].path(namespace)
        if kind != "Service" or self.is_fake:
            answer = self.kubectl.request("DELETE", path, options)
            if answer.status >= 300:
                raise ApiError(answer, f"DELETE {path}")
            return
        for one in self.kubectl.list(kind, namespace):  # 1.20 cannot delete a collection of services
            if one["metadata"]["name"] != "kubernetes":
                self.kubectl.delete(kind, one["metadata"]["name"], namespace or "default")

    # -- pods

    def pods(self, namespace: str | None = None) -> dict[str, Object]:
        """The pods by name."""
        return {one["metadata"]["name"]: one for one in self.kubectl.list("Pod", namespace)}

    def node_of(self, name: str, namespace: str = "default") -> str | None:
        return node_of(self.kubectl.get("Pod", name, namespace))

    def wait_until_bound(self, *names: str) -> dict[str, str]:
        """Wait until these pods, or all pods, have a node, and return the nodes by pod."""

        def bound() -> dict[str, str] | None:
            pods = self.pods()
            wanted = names or pods
            found = {name: node for name in wanted if name in pods and (node := node_of(pods[name]))}
            missing.clear()
            missing.extend(name for name in wanted if name not in found)
            return None if missing else found or {"": ""}

        missing: list[str] = []
        try:
            return self._wait(bound, "pods to be bound") or {}
        except TimeoutError as error:
            raise TimeoutError(f"{error}\nnot bound: {missing[:20]} ({len(missing)} in all)") from None

    def wait_until_pending(self, name: str, namespace: str = "default", saying: str = "") -> Object:
        """Wait until the pod has the condition that it cannot be scheduled, and return the condition."""

        def pending() -> Object | None:
            found = condition_of(self.kubectl.get("Pod", name, namespace), "PodScheduled")
            return found if found and found["status"] == "False" and saying in found["message"] else None

        found = self._wait(pending, f"{name} to be pending with {saying!r}")
        assert found is not None
        return found

    def events_of(self, name: str, reason: str, namespace: str = "default") -> list[Object]:
        """The events about the pod that has this name now."""
        uid = self.kubectl.get("Pod", name, namespace)["metadata"]["uid"]
        found = self.kubectl.list("Event", namespace, fieldSelector=f"involvedObject.uid={uid},reason={reason}")
        return sorted(found, key=lambda event: event["metadata"]["name"])

    def wait_for_event(self, name: str, reason: str, namespace: str = "default") -> Object:
        """Wait for an event about the pod, and return the newest."""
        found = self._wait(lambda: self.events_of(name, reason, namespace), f"an event {reason} about {name}")
        return found[-1]

    def wait_until_it_knows_everything(self, scheduler: RunningScheduler | None = None) -> None:
        """Wait until the scheduler has seen all nodes and pods that there are now."""
        pods = [one for one in self.kubectl.list("Pod") if one["status"]["phase"] not in ("Succeeded", "Failed")]
        which = scheduler or self.running[0]
        which.wait_until_it_knows(len(self.kubectl.list("Node")), len(pods))

    def _wait(self, condition: Callable[[], T], what: str) -> T:
        """Wait, and show the end of the schedulers' logs if that fails."""
        try:
            return wait_until(condition, f"waiting for {what}")
        except TimeoutError as error:
            ends = [f"{one.log.name}:\n" + "\n".join(one.text.splitlines()[-15:]) for one in self.running]
            raise TimeoutError("\n".join([str(error), *ends])) from None
