"""Anchors: what keeps a slot's name feasible for Ray while no node has a slot of it.

Rule: Ray fails queued work when the last node that could ever run it loses the resource. So two nodes that are large
enough for such tasks have one unit more of every live name than they have slots, and a placement group there holds the
smallest part of that unit: the name stays feasible, also when one of the two dies, and no task can ever take the unit,
because it is never whole. The part is held before the unit is granted, and the unit goes before the part is released.

Ray lets a task wait in the queue of a node that could run it, an idle one first, and there it finds a slot elsewhere
late. So anchors are on nodes that the rules of the tasks allow, if they allow any; if that is one, on that one alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from enum import Enum, auto
from itertools import islice
from typing import Any

import ray

from stead.ray.page import ONE, SYNC_S
from stead.ray.tables import NodeRow, Status, handle

NAME = "stead-anchor"
HEARD_S = 2 * SYNC_S
"""After this Ray's tables show what a node was told."""

KNOWN_S = 5.0
"""After this every raylet knows what Ray's tables show, on a busy machine too: no table tells when. Usually it takes a
tenth of a second, but a raylet that hears of an anchor too late fails what is queued there."""

ANCHORS = 2
GROUPS_A_ROUND = 10
"""How many groups are created in one round: each costs a call."""

Place = tuple[str, str]
"""The name of a resource, and the id of a node."""


class State(Enum):
    ASKED = auto()  # the part is being granted
    HOLDING = auto()  # the group is being created
    UP = auto()  # the unit is granted
    LOWERED = auto()  # the unit is being taken away
    RELEASED = auto()  # the part is being taken away


class Anchors:
    """`head` is the id of the head; `groups` are the placement groups there are, by name."""

    def __init__(
        self,
        head: str,
        groups: Callable[[], Mapping[str, Mapping[str, Any]]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._head, self._groups, self._clock = head, groups, clock
        self._states: dict[str, dict[str, State]] = {}  # name -> node -> how far it is
        self._held: dict[Place, Any] = {}
        self._standing: dict[Place, float] = {}  # since when Ray's tables show the unit
        self._allowed: dict[str, set[str]] = {}  # by name, the nodes that the rules of its tasks allow
        self._searched: dict[str, Collection[str]] = {}  # names, and the nodes there were when anchors were chosen

    def recover(self, names: Iterable[str]) -> None:
        """After a restart: which anchors stand. Those of names that nobody knows are removed."""
        known = set(names)
        for group, row in self._groups().items():
            if not group.startswith(f"{NAME}/"):
                continue
            _, node, name = group.split("/", 2)
            if row["state"] == "CREATED" and name in known:
                self._held[name, node] = handle(row["id"])
                self._states.setdefault(name, {})[node] = State.HOLDING
            else:
                self._release(handle(row["id"]))

    def nodes(self, name: str) -> Collection[str]:
        """Where the name is anchored, or about to be."""
        return self._states.get(name, {}).keys()

    def amount(self, name: str, node: str) -> float:
        """What a node has of a name beside its slots."""
        match self._states.get(name, {}).get(node):
            case State.UP:
                return 1.0
            case State.ASKED | State.HOLDING | State.LOWERED:
                return ONE
        return 0.0

    def is_safe(self, name: str) -> bool:
        """Whether the name's slots can be withdrawn: it stays feasible without them, or it is on its way out."""
        states, now = self._states.get(name, {}), self._clock()
        staying = [node for node, state in states.items() if state not in (State.LOWERED, State.RELEASED)]
        return bool(states) and all(now - self._standing.get((name, node), now) > KNOWN_S for node in staying)

    def allow(self, name: str, nodes: set[str]) -> None:
        """The rules of the tasks allow these nodes now."""
        if self._allowed.get(name) != nodes:
            self._allowed[name] = nodes
            self._searched.pop(name, None)

    def advance(
        self,
        slots: Mapping[str, Callable[[str], int]],
        status: Status,
        suits: Callable[[str, NodeRow], bool],
        allowed: Callable[[str], set[str]],
    ) -> None:
        """The next step for each name, once Ray's tables show the last one. `slots` tells how many of a name a node
        has, `suits` whether it could ever run such a task, and `allowed` which nodes the rules allow; it is asked once
        for each name."""
        made = 0
        for name, count in slots.items():
            self._forget_dead(name, status)
            self._choose(name, status, suits, allowed)
            needless = self._needless(name)
            for node, state in list(self._states[name].items()):
                place, row = (name, node), status.nodes[node]
                total = row.total.get(name, 0.0)
                if node in needless:
                    self._lower(name, node, total)
                elif state is State.LOWERED:
                    self._states[name][node] = State.HOLDING
                elif state is State.RELEASED:
                    self._states[name][node] = State.ASKED
                elif state is State.ASKED and total >= ONE and made < GROUPS_A_ROUND:
                    made += 1
                    # Created before the tables show the part, Ray would take the group for infeasible for good.
                    self._held[place] = self._hold(name, node)
                    self._states[name][node] = State.HOLDING
                elif state is State.UP and place not in self._standing and total >= 1.0 + count(node):
                    self._standing[place] = self._clock()
                elif state is State.HOLDING and _is_held(total, row.available.get(name, 0.0)):
                    self._states[name][node] = State.UP

    def _choose(
        self,
        name: str,
        status: Status,
        suits: Callable[[str, NodeRow], bool],
        allowed: Callable[[str], set[str]],
    ) -> None:
        """The head, if it is large enough, because it stays; and whatever else is."""
        states = self._states.setdefault(name, {})
        if self._searched.get(name) == status.nodes.keys():
            return
        self._searched[name] = frozenset(status.nodes)
        if name not in self._allowed:
            self._allowed[name] = allowed(name)
        fitting = self._allowed[name]
        have = sum(node in fitting for node in states)
        if have >= ANCHORS:
            return
        order = dict.fromkeys((self._head, *status.nodes))
        rest = [node for node in order if node in status.nodes and node not in states]
        best = (node for node in rest if node in fitting and suits(name, status.nodes[node]))
        states.update(dict.fromkeys(islice(best, ANCHORS - have), State.ASKED))
        if not fitting & states.keys() and len(states) < ANCHORS:
            large = (node for node in rest if suits(name, status.nodes[node]))
            states.update(dict.fromkeys(islice(large, ANCHORS - len(states)), State.ASKED))

    def _needless(self, name: str) -> set[str]:
        """Anchors on nodes that the rules do not allow, once every raylet knows of one on a node that they do."""
        now, states, allowed = self._clock(), self._states[name], self._allowed[name]
        standing = [node for node in states if node in allowed and (name, node) in self._standing]
        if any(now - self._standing[name, node] > KNOWN_S for node in standing):
            return states.keys() - allowed
        return set()

    def _forget_dead(self, name: str, status: Status) -> None:
        states = self._states.get(name, {})
        for node in [node for node in states if node not in status.nodes]:
            del states[node]
            self._standing.pop((name, node), None)
            if (name, node) in self._held:  # Ray would look for another place for it
                self._release(self._held.pop((name, node)))

    def remove(self, name: str, status: Status) -> bool:
        """One step towards no anchors. True: they are gone."""
        self._forget_dead(name, status)
        states = self._states.get(name, {})
        for node in list(states):
            self._lower(name, node, status.nodes[node].total.get(name, 0.0))
        if states:
            return False
        for known in (self._states, self._searched, self._allowed):
            known.pop(name, None)
        return True

    def _lower(self, name: str, node: str, total: float) -> None:
        """One step towards no anchor on a node."""
        states, place = self._states[name], (name, node)
        state = states[node]
        if state is State.UP:
            states[node] = State.LOWERED
            self._standing.pop(place, None)
        elif state in (State.ASKED, State.HOLDING, State.LOWERED) and total < 1.0:
            if place in self._held:
                self._release(self._held.pop(place))
            states[node] = State.RELEASED
        elif state is State.RELEASED and not total:
            del states[node]

    def _hold(self, name: str, node: str) -> Any:
        return ray.util.placement_group(
            [{name: ONE}],
            name=f"{NAME}/{node}/{name}",
            lifetime="detached",
            bundle_label_selector=[{"ray.io/node-id": node}],
        )

    def _release(self, group: Any) -> None:
        ray.util.remove_placement_group(group)


def _is_held(total: float, available: float) -> bool:
    """Whether something holds a part of a unit: tasks hold whole ones."""
    part = (total - available) % 1.0
    return ONE / 2 < part < 1.0 - ONE / 2
