"""What the kubelets of a cluster would do: pods that run report it, and pods that are being deleted end.

Rule: it does only what a test needs of kubelets, on a thread, until the block ends.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import UTC, datetime
from types import TracebackType
from typing import Self

from tests.kubernetes.objects import ApiError, Kubectl, Object
from tests.kubernetes.servers.interface import ApiServer

POLL_SECONDS = 0.05


class Kubelets:
    """They end deleted pods at once, in place of the grace period, after a call of `before` with the name. `ended`
    lists them in order."""

    def __init__(self, server: ApiServer, before: Callable[[str], None] = lambda name: None) -> None:
        self.ended: list[str] = []
        self._before = before
        self._kubectl = Kubectl(server)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kubelets", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._stopping.set()
        self._thread.join()
        self._kubectl.close()

    def _run(self) -> None:
        while not self._stopping.wait(POLL_SECONDS):
            for pod in self._kubectl.list("Pod"):
                if pod["spec"].get("nodeName") and pod["metadata"].get("deletionTimestamp"):
                    self._end(pod)

    def _end(self, pod: Object) -> None:
        metadata = pod["metadata"]
        self._before(metadata["name"])
        try:
            self._kubectl.delete("Pod", metadata["name"], metadata["namespace"], grace_seconds=0)
        except ApiError as error:
            if error.status != 404:
                raise
        else:
            self.ended.append(metadata["name"])


def start(kubectl: Kubectl, name: str, at: datetime, namespace: str = "default") -> None:
    """The pod has been running since then."""
    started = at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    status = {"phase": "Running", "startTime": started}
    kubectl.patch("Pod", name, {"status": status}, namespace, subresource="status")
