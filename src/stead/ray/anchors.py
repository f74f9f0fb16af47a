"""Anchors: what keeps a slot's name feasible for Ray while no node has a slot of it.

Rule: Ray fails queued work when the last node that could run it loses the resource. So every live name has one unit
more on the head than it has slots there, and a placement group holds the smallest part of that unit: the name stays
feasible, and no task can ever take the unit, because it is never whole. The part is held before the unit is granted,
and the unit is gone before the part is released.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from enum import Enum, auto
from typing import Any

import ray

from stead.ray.page import ONE, SYNC_S
from stead.ray.tables import Status, handle

NAME = "stead-anchor"
HEARD_S = 2 * SYNC_S
"""After this Ray's tables show what a node was told."""

KNOWN_S = 5.0
"""After this every raylet knows what Ray's tables show, on a busy machine too: no table tells when. Usually it takes a
tenth of a second, but a raylet that hears of an anchor too late fails what is queued there."""

GROUPS_A_ROUND = 10
"""How many groups are created in one round: each costs a call."""


class State(Enum):
    ASKED = auto()  # the part is being granted
    HOLDING = auto()  # the group is being created
    UP = auto()  # the unit is granted
    LOWERED = auto()  # the unit is being taken away
    RELEASED = auto()  # the part is being taken away


class Anchors:
    """`node` is the head's id; `groups` are the placement groups there are, by name."""

    def __init__(
        self,
        node: str,
        groups: Callable[[], Mapping[str, Mapping[str, Any]]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.node, self._groups, self._clock = node, groups, clock
        self._states: dict[str, State] = {}
        self._held: dict[str, Any] = {}
        self._standing: dict[str, float] = {}  # since when Ray's tables show the unit

    def recover(self, names: Iterable[str]) -> None:
        """After a restart: which anchors stand. Those of names that nobody knows are removed."""
        known = set(names)
        for name, row in self._groups().items():
            if not name.startswith(f"{NAME}/"):
                continue
            anchored = name.removeprefix(f"{NAME}/")
            if row["state"] == "CREATED" and anchored in known:
                self._held[anchored] = handle(row["id"])
                self._states[anchored] = State.HOLDING
            else:
                self._release(handle(row["id"]))

    def amount(self, name: str) -> float:
        """What the head has of a name beside its slots."""
        match self._states.get(name):
            case State.UP:
                return 1.0
            case State.ASKED | State.HOLDING | State.LOWERED:
                return ONE
        return 0.0

    def is_safe(self, name: str) -> bool:
        """Whether the name's slots can be withdrawn: it stays feasible without them, or it is on its way out."""
        if self._states.get(name) in (State.LOWERED, State.RELEASED):
            return True
        return name in self._standing and self._clock() - self._standing[name] > KNOWN_S

    def advance(self, slots: Mapping[str, int], status: Status) -> None:
        """The next step for each name, once Ray's tables show the last one. `slots`: how many of it the head has."""
        head, made = status.nodes.get(self.node), 0
        if head is None:
            return
        for name, there in slots.items():
            state = self._states.get(name)
            if state is None:
                self._states[name] = State.ASKED
            elif state is State.LOWERED:
                self._states[name] = State.HOLDING
            elif state is State.ASKED and head.total.get(name, 0.0) >= ONE and made < GROUPS_A_ROUND:
                made += 1
                # Created before the tables show the part, Ray would take the group for infeasible and never look again.
                self._held[name] = self._hold(name)
                self._states[name] = State.HOLDING
            elif state is State.UP and name not in self._standing and head.total.get(name, 0.0) >= 1.0 + there:
                self._standing[name] = self._clock()
            elif state is State.HOLDING and _is_held(head.total.get(name, 0.0), head.available.get(name, 0.0)):
                self._states[name] = State.UP

    def remove(self, name: str, status: Status) -> bool:
        """One step towards no anchor. True: it is gone."""
        head, state = status.nodes.get(self.node), self._states.get(name)
        if state is None or head is None:
            return True
        if state is State.UP:
            self._states[name] = State.LOWERED
            self._standing.pop(name, None)
        elif state in (State.ASKED, State.HOLDING, State.LOWERED) and head.total.get(name, 0.0) < 1.0:
            if name in self._held:
                self._release(self._held.pop(name))
            self._states[name] = State.RELEASED
        elif state is State.RELEASED and name not in head.total:
            del self._states[name]
            return True
        return False

    def _hold(self, name: str) -> Any:
        return ray.util.placement_group(
            [{name: ONE}],
            name=f"{NAME}/{name}",
            lifetime="detached",
            bundle_label_selector=[{"ray.io/node-id": self.node}],
        )

    def _release(self, group: Any) -> None:
        ray.util.remove_placement_group(group)


def _is_held(total: float, available: float) -> bool:
    """Whether something holds a part of a unit: tasks hold whole ones."""
    part = (total - available) % 1.0
    return ONE / 2 < part < 1.0 - ONE / 2
