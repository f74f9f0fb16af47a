"""The one private call of Ray that stead leans on: changing a custom resource of a node while it runs.

Rule: nothing else in stead knows this call. It was built into Ray for pods that are resized in place; it may
change with any release, so it is looked for at the start, and without it `detect` says so and stead works with
less (see `WEAKER`). Should Ray learn to change labels of a running node, this is the file to replace.
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
"""The versions of Ray that stead was measured on: this one and its patch releases."""

OFF = "STEAD_NO_GRANTS"
"""Set to 1, stead behaves as if this Ray had no such call."""

WEAKER = (
    "this Ray cannot change a node's resources while it runs, so stead places by what it knows when work is "
    "submitted: work that already waits or restarts does not follow later changes of taints and labels"
)

ANSWER_S = 1.0
"""How long a node may take to answer before the others go on without it. A healthy node answers in milliseconds."""

GIVEN_UP_S = 60.0
"""After this long without an answer the call is over, and the node is asked again."""

RECONNECT_MS = 500
"""How soon the control store is tried again after it was away."""


class Outcome(Enum):
    """What came of a call to one node."""

    ANSWERED = auto()
    SILENT = auto()
    """It was asked and did not answer in time, or answered with an error. The change may still happen later."""
    NOT_ASKED = auto()
    """An earlier call to this node is still without an answer, so nothing was sent."""


class Call(Protocol):
    """A call under way, as gRPC has it."""

    def done(self) -> bool: ...
    def exception(self) -> BaseException | None: ...
    def result(self) -> Any: ...
    def add_done_callback(self, told: Callable[[Any], None]) -> None: ...


class Grants(Protocol):
    def set_many(self, changes: Mapping[str, Mapping[str, float]]) -> dict[str, Outcome]:
        """Set totals of custom resources, by node id; 0 removes one. What is in use stays in use.

        All nodes are asked at once, each in one call, and each has `ANSWER_S` to answer: a node that hangs delays the
        others by no more than that, once. It is then not asked again before that call has ended.
        """


class ReadingGrants(Grants, Protocol):
    def shrink(self, changes: Mapping[str, Mapping[str, float]]) -> dict[str, Mapping[str, float]]:
        """The same; returns all totals of each node that answered, as they are now. What is still above the amount
        asked for is in use."""


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
    """Until all of them are done, or the time is up."""
    done = threading.Semaphore(0)
    for call in calls:
        call.add_done_callback(lambda _: done.release())
    end = time.monotonic() + seconds
    for _ in calls:
        if not done.acquire(timeout=max(0.0, end - time.monotonic())):
            return


def detect(address: str) -> RayletGrants | None:
    """The call behind its interface, or None where this Ray has no such call."""
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
