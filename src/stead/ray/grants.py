"""The one private call of Ray that stead leans on: changing a custom resource of a node while it runs.

Rule: nothing else in stead knows this call. It was built into Ray for pods that are resized in place; it may
change with any release, so it is looked for at the start, and without it `detect` says so and stead works with
less (see `WEAKER`). Should Ray learn to change labels of a running node, this is the file to replace.
"""

from __future__ import annotations

import os
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


class Grants(Protocol):
    def set(self, node_id: str, amounts: Mapping[str, float]) -> None:
        """Make these the node's totals of these resources; 0 removes one. What is in use stays in use."""


class RayletGrants:
    def __init__(self, gcs: Any) -> None:
        self._gcs = gcs

    def set(self, node_id: str, amounts: Mapping[str, float]) -> None:
        self._gcs.resize_raylet_resource_instances(node_id, dict(amounts))


def detect(gcs: Any) -> Grants | None:
    """The call behind its interface, or None where this Ray has no such call."""
    if os.environ.get(OFF) == "1":
        return None
    return RayletGrants(gcs) if callable(getattr(gcs, "resize_raylet_resource_instances", None)) else None


def is_supported(version: str) -> bool:
    return version == SUPPORTED or version.startswith(SUPPORTED + ".")
