"""Plugs keep a withdrawn name on a node, so that work that carries it stays feasible there and cannot start.

Rule: a plug is a placement group of one bundle that holds what a node keeps of a withdrawn name. So Ray never fails the
work as infeasible, and the work does not start. A plug has no process, disappears with its node, and stays when the
controller dies.

For groups, a name that a node never had is *shown* there. The node first gets less of it than any work asks for, so
that nothing starts before Ray knows the name and the plug is placed. Then it gets as much as a bundle asks for. That is
less than an actor asks for, so Ray does not queue actors on such a node.

Ray places one group at a time in the whole cluster, so a group on a hanging node would block all others. Plug only
nodes that have answered a moment ago.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

import ray

from stead.ray.wire.node_page import ACTOR_ENTRY, ENTRY, ONE
from stead.ray.wire.own_names import PLUGS
from stead.ray.wire.tables import group_on, handle

KEPT = ACTOR_ENTRY
"""What a node keeps of a withdrawn name, all of it plugged: as much as any piece of work asks for."""

SHOWN, SHOWN_PLUG = ENTRY, ENTRY - 100 * ONE
"""What a node has of a shown name, and how much of it is plugged."""

PLACED_S = 1.0
"""How long a round waits for new plugs. In whole seconds, because Ray truncates the timeout."""

AGAIN_S = 5.0
"""A plug that is not placed after this time is created again: Ray may consider it infeasible."""

NodeAndName = tuple[str, str]
"""A node id and a resource name."""


class Plugs(Protocol):
    def add(self, places: Mapping[NodeAndName, float]) -> None:
        """Plug these amounts. `placed` shows which plugs were placed soon enough."""

    def remove(self, places: Iterable[NodeAndName]) -> None: ...

    def placed(self) -> dict[NodeAndName, float]:
        """How much is plugged where."""

    def asked(self) -> set[NodeAndName]:
        """All plugs: placed ones, and those that Ray has not placed yet."""


class GroupPlugs:
    def __init__(self, groups: Callable[[], Mapping[str, Mapping[str, Any]]]) -> None:
        self._placed: dict[NodeAndName, tuple[Any, float]] = {}
        self._coming: dict[NodeAndName, tuple[Any, float, float]] = {}
        for row in groups().values():
            if row["name"].startswith(PLUGS):
                _, node_id, held = row["name"].split("/", 2)
                group = handle(row["id"])
                amount = sum(bundle.get(held, 0.0) for bundle in row["bundles"].values())
                if row["state"] == "CREATED":
                    self._placed[node_id, held] = (group, amount)
                else:
                    self._coming[node_id, held] = (group, amount, time.monotonic())

    def add(self, places: Mapping[NodeAndName, float]) -> None:
        now, missing = time.monotonic(), {place: places[place] for place in places if place not in self._placed}
        self._remove(place for place in missing if place in self._coming and now - self._coming[place][2] > AGAIN_S)
        for place, amount in missing.items():
            if place not in self._coming and (group := self._made(*place, amount)) is not None:
                self._coming[place] = (group, amount, now)
        for place in [place for place in missing if place in self._coming]:
            left = 1 if time.monotonic() - now < PLACED_S else 0
            if self._coming[place][0].wait(left):
                self._placed[place] = self._coming.pop(place)[:2]

    def _made(self, node_id: str, name: str, amount: float) -> Any | None:
        try:
            return group_on(node_id, f"{PLUGS}{node_id}/{name}", name, amount)
        except ValueError:  # an old group of this name is still being removed; the next round retries
            return None

    def remove(self, places: Iterable[NodeAndName]) -> None:
        self._remove(places)

    def _remove(self, places: Iterable[NodeAndName]) -> None:
        for place in list(places):
            found = self._placed.pop(place, None) or self._coming.pop(place, None)
            if found is not None:
                ray.util.remove_placement_group(found[0])

    def placed(self) -> dict[NodeAndName, float]:
        return {place: amount for place, (_, amount) in self._placed.items()}

    def asked(self) -> set[NodeAndName]:
        return {*self._placed, *self._coming}
