"""The private Ray call that stead depends on: changing a custom resource of a running node.

Rule: only this file uses that call. Ray has it for pods that are resized in place. It may change with any release, so
stead looks for it at the start. Without it, `detect` returns None and stead works with limits (see `WEAKER`). If Ray
can change labels of a running node one day, replace this file.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from enum import Enum, auto
from typing import Any, Protocol

from ray._private.gcs_utils import _GRPC_OPTIONS
from ray._private.grpc_utils import init_grpc_channel
from ray.core.generated import autoscaler_pb2, autoscaler_pb2_grpc

SUPPORTED = "2.60"
"""The tested versions of Ray: this one and its patch releases."""

OFF = "STEAD_NO_GRANTS"
"""Set it to 1 to make stead ignore the call."""

WEAKER = (
    "this Ray cannot change a node's resources while it runs, so stead places work by the state when it is "
    "submitted: pending and restarting work does not follow later changes of taints and labels"
)

ANSWER_S = 1.0
"""How long a call waits for a node. A healthy node answers in milliseconds."""

GIVEN_UP_S = 60.0
"""After this long without an answer, the call is given up and the node is called again."""

RECONNECT_MS = 500
"""How soon to retry the control store after it was away."""


class Outcome(Enum):
    """The result of a call to one node."""

    ANSWERED = auto()
    SILENT = auto()
    """Called, but no answer in time, or an error. The change may still happen later."""
    NOT_ASKED = auto()
    """Not called, because an earlier call to this node has no answer yet."""


class Call(Protocol):
    """A gRPC call in progress."""

    def done(self) -> bool: ...
    def exception(self) -> BaseException | None: ...
    def result(self) -> Any: ...
    def add_done_callback(self, callback: Callable[[Any], None]) -> None: ...


class Grants(Protocol):
    def set_many(self, changes: Mapping[str, Mapping[str, float]]) -> dict[str, Outcome]:
        """Set totals of custom resources, by node id; 0 removes one. What is in use stays in use.

        All nodes are called at once, each with one call, and each has `ANSWER_S` to answer. So a hanging node delays
        the others by at most that time, once. It is not called again before that call has ended.
        """


class ReadingGrants(Grants, Protocol):
    def shrink(self, changes: Mapping[str, Mapping[str, float]]) -> dict[str, Mapping[str, float]]:
        """Like `set_many`, but returns the current totals of each node that answered. What is still above the requested
        amount is in use."""


class RayletGrants:
    def __init__(self, send: Callable[[str, Mapping[str, float]], Call]) -> None:
        self._send = send
        self._lock = threading.Lock()
        self._late: dict[str, Call] = {}

    def set_many(self, changes: Mapping[str, Mapping[str, float]]) -> dict[str, Outcome]:
        return self._ask(changes)[0]

    def shrink(self, changes: Mapping[str, Mapping[str, float]]) -> dict[str, Mapping[str, float]]:
        outcomes, calls = self._ask(changes)
        answered = [node for node, outcome in outcomes.items() if outcome is Outcome.ANSWERED]
        return {node: dict(calls[node].result().total_resources) for node in answered}

    def _ask(self, changes: Mapping[str, Mapping[str, float]]) -> tuple[dict[str, Outcome], dict[str, Call]]:
        with self._lock:
            self._late = {node: call for node, call in self._late.items() if not call.done()}
            hanging = self._late.keys() & changes.keys()
        calls = {node: self._send(node, amounts) for node, amounts in changes.items() if node not in hanging}
        _wait_for(list(calls.values()), ANSWER_S)
        outcomes = dict.fromkeys(hanging, Outcome.NOT_ASKED)
        for node, call in calls.items():
            if call.done():
                outcomes[node] = Outcome.SILENT if call.exception() else Outcome.ANSWERED
            else:
                outcomes[node] = Outcome.SILENT
                with self._lock:
                    self._late[node] = call
        return outcomes, calls


def _wait_for(calls: list[Call], seconds: float) -> None:
    """Wait until all of them are done, or the time has passed."""
    done = threading.Semaphore(0)
    for call in calls:
        call.add_done_callback(lambda _: done.release())
    end = time.monotonic() + seconds
    for _ in calls:
        if not done.acquire(timeout=max(0.0, end - time.monotonic())):
            return


def detect(address: str) -> RayletGrants | None:
    """The call, or None if this Ray does not have it."""
    if os.environ.get(OFF) == "1":
        return None
    options = [*_GRPC_OPTIONS, ("grpc.max_reconnect_backoff_ms", RECONNECT_MS)]
    stub = autoscaler_pb2_grpc.AutoscalerStateServiceStub(init_grpc_channel(address, options))
    resize = getattr(stub, "ResizeRayletResourceInstances", None)
    if resize is None:
        return None

    def send(node_id: str, amounts: Mapping[str, float]) -> Any:
        request = autoscaler_pb2.ResizeRayletResourceInstancesRequest(node_id=bytes.fromhex(node_id))
        request.resources.update(amounts)
        return resize.future(request, timeout=GIVEN_UP_S)

    return RayletGrants(send)


def is_supported(version: str) -> bool:
    return version == SUPPORTED or version.startswith(SUPPORTED + ".")
