"""Nodes that Ray's autoscaler must not end although they are idle: somebody owns a taint there.

Rule: a node is kept by a placement group that holds one byte of its memory, so Ray does not count the node as idle. The
group has no process, disappears with its node, and stays when the controller dies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

import ray

from stead.engine.engine import Engine
from stead.language.resources import Resources
from stead.ray.wire.node_page import HEAD
from stead.ray.wire.own_names import KEPT
from stead.ray.wire.tables import Status, group_on, handle

HELD = "memory"
HELD_AMOUNT = Resources.of({HELD: 1})
"""What each of these groups holds."""


class Holds(Protocol):
    """The groups that hold nodes."""

    def add(self, node: str) -> None: ...
    def remove(self, node: str) -> None: ...
    def nodes(self) -> Iterable[str]: ...


class KeptNodes:
    def __init__(self, holds: Holds) -> None:
        self._holds = holds
        self.why: Mapping[str, str] = {}
        """By node that is kept: why."""

    def update(self, status: Status, engine: Engine) -> None:
        """Keep the nodes that an autoscaler launched and that have a taint with an owner, or one that ends with a job.
        A node that somebody drains is not kept."""
        nodes = engine.nodes
        owned = {end.node: end for end in engine.taint_ends if end.owner or end.job}
        self.why = {
            id: f"{owned[id].owner or 'job ' + owned[id].job} has set the taint {owned[id].key}"
            for id, row in status.nodes.items()
            if id in owned and row.kind and HEAD not in row.total and row.total.get(HELD) and not nodes[id].draining
        }
        held = set(self._holds.nodes())
        for id in held - self.why.keys():
            self._holds.remove(id)
        for id in self.why.keys() - held:
            self._holds.add(id)

    def clear(self) -> None:
        """Keep no node."""
        self.why = {}
        for id in self._holds.nodes():
            self._holds.remove(id)


class GroupHolds:
    """Holds as placement groups. Those of an earlier controller are taken over.

    Args:
        groups: Lists Ray's placement groups.
    """

    def __init__(self, groups: Callable[[], Mapping[str, Mapping[str, Any]]]) -> None:
        self._list = groups
        self._groups: dict[str, Any] | None = None

    @property
    def _known(self) -> dict[str, Any]:
        if self._groups is None:
            rows = self._list().values()
            self._groups = {
                row["name"].removeprefix(KEPT): handle(row["id"]) for row in rows if row["name"].startswith(KEPT)
            }
        return self._groups

    def add(self, node: str) -> None:
        self._known[node] = group_on(node, f"{KEPT}{node}", HELD, 1)

    def remove(self, node: str) -> None:
        ray.util.remove_placement_group(self._known.pop(node))

    def nodes(self) -> Iterable[str]:
        return tuple(self._known)
