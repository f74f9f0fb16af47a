"""What the kubelets of a cluster would do: pods that run report it, and pods that are being deleted end.

Rule: it does only what a test needs of kubelets, on a thread, until the block ends.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.kubernetes.api.servers import certificate, tls_server
from tests.kubernetes.objects import ApiError, Kubectl, Object
from tests.kubernetes.servers.interface import ApiServer

POLL_SECONDS = 0.05


class Kubelets:
    """They end deleted pods at once, in place of the grace period, after a call of `before` with the name. `ended`
    lists them in order. With `exit_code`, they run pods: a pod ends with this exit code, and goes on if it is None."""

    def __init__(
        self,
        server: ApiServer,
        before: Callable[[str], None] = lambda name: None,
        exit_code: Callable[[Object], int | None] | None = None,
    ) -> None:
        self.ended: list[str] = []
        self._before = before
        self._exit_code = exit_code
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
                if not pod["spec"].get("nodeName"):
                    continue
                if pod["metadata"].get("deletionTimestamp"):
                    self._end(pod)
                elif self._exit_code is not None:
                    self._go_on(pod, self._exit_code(pod))

    def _go_on(self, pod: Object, code: int | None) -> None:
        name, namespace = pod["metadata"]["name"], pod["metadata"]["namespace"]
        try:
            if pod["status"]["phase"] == "Pending":
                start(self._kubectl, name, datetime.now(UTC), namespace)
            elif pod["status"]["phase"] == "Running" and code is not None:
                finish(self._kubectl, pod, code)
        except ApiError as error:
            if error.status != 404:  # it was deleted meanwhile
                raise

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


def finish(kubectl: Kubectl, pod: Object, code: int, reason: str = "") -> None:
    """The container of the pod has ended."""
    container = pod["spec"]["containers"][0]
    ended = {"exitCode": code, "reason": reason or ("Error" if code else "Completed")}
    status = {
        "phase": "Failed" if code else "Succeeded",
        "containerStatuses": [
            {
                "name": container["name"],
                "image": container["image"],
                "imageID": "",
                "ready": False,
                "restartCount": 0,
                "state": {"terminated": ended},
            }
        ],
    }
    metadata = pod["metadata"]
    kubectl.patch("Pod", metadata["name"], {"status": status}, metadata["namespace"], subresource="status")


class Logs:
    """The port of a kubelet, where the API server reads logs. Every pod has printed the same."""

    def __init__(self, folder: Path, printed: bytes) -> None:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(200)
                self.send_header("Content-Length", str(len(printed)))
                self.end_headers()
                self.wfile.write(printed)

            def log_message(self, format: str, *args: object) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.socket = tls_server(*certificate(folder)).wrap_socket(self._server.socket, server_side=True)
        self._thread = threading.Thread(target=self._server.serve_forever, name="logs", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def on(self, node: Object) -> Object:
        """The node with the address of this port."""
        where = {
            "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": self._server.server_address[1]}},
        }
        return {**node, "status": {**node["status"], **where}}
