"""The one private call of Ray that stead leans on: changing a custom resource of a node while it runs.

Rule: nothing else in stead knows this call. It was built into Ray for pods that are resized in place; it may
change with any release, so it is looked for at the start, and without it `detect` says so and stead works with
less (see `WEAKER`). Should Ray learn to change labels of a running node, this is the file to replace.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from typing import Any, Protocol

SUPPORTED = "2.60"
"""The versions of Ray that stead was measured on: this one and its patch releases."""

OFF = "STEAD_NO_GRANTS"
"""Set to 1, stead behaves as if this Ray had no such call."""

WEAKER = (
    "this Ray cannot change a node's resources while it runs, so stead places by what it knows when work is "
    "submitted: work that already waits does not follow later changes of taints and labels"
)


ANSWER_S = 3.0


class NotSent(RuntimeError):
    """The node has not answered an earlier call, so it was not even asked."""


class Grants(Protocol):
    def set(self, node_id: str, amounts: Mapping[str, float]) -> None:
        """Make these the node's totals of these resources; 0 removes one. What is in use stays in use. Raises where
        the node does not answer; it may still hear of it later."""


class RayletGrants:
    """A raylet that hangs would hold up the call until Ray gives it up, a minute later, and with it every other node;
    so each call has a thread, and a node with a call under way gets no other one."""

    def __init__(self, gcs: Any) -> None:
        self._gcs = gcs
        self._hanging: dict[str, threading.Thread] = {}

    def set(self, node_id: str, amounts: Mapping[str, float]) -> None:
        hanging = self._hanging.get(node_id)
        if hanging is not None and hanging.is_alive():
            raise NotSent(f"node {node_id} does not answer")
        self._hanging.pop(node_id, None)
        errors: list[Exception] = []

        def call() -> None:
            try:
                self._gcs.resize_raylet_resource_instances(node_id, dict(amounts))
            except Exception as error:
                errors.append(error)

        thread = threading.Thread(target=call, name="stead-grant", daemon=True)
        thread.start()
        thread.join(ANSWER_S)
        if thread.is_alive():
            self._hanging[node_id] = thread
            raise RuntimeError(f"node {node_id} did not answer within {ANSWER_S:g} s")
        if errors:
            raise errors[0]


def detect(gcs: Any) -> Grants | None:
    """The call behind its interface, or None where this Ray has no such call."""
    if os.environ.get(OFF) == "1":
        return None
    return RayletGrants(gcs) if callable(getattr(gcs, "resize_raylet_resource_instances", None)) else None


def is_supported(version: str) -> bool:
    return version == SUPPORTED or version.startswith(SUPPORTED + ".")
