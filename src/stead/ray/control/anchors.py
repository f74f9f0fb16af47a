"""Anchors keep a slot's resource name feasible for Ray while no node has a slot of it.

Rule: Ray fails queued work when the last node that could run it loses the resource. So two nodes that are large enough
for such tasks have one unit of every live name in addition to their slots, and a placement group there holds the
smallest part of that unit. The name stays feasible, also when one of the two nodes dies. No task can take the unit,
because it is never whole. The group gets its part before the unit is granted, and the unit is removed before the part.

Ray queues a task on a node that could run it, preferably an idle one, and from there it finds a slot elsewhere late. So
anchors are on nodes that the tasks' rules allow, if there are any. If the rules allow one node, only that one has an
anchor.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from enum import Enum, auto
from itertools import islice
from typing import Any

import ray

from stead.ray.wire.node_page import ONE, SYNC_S
from stead.ray.wire.own_names import ANCHORS
from stead.ray.wire.tables import NodeRow, Status, group_on, handle

SHOWN_S = 2 * SYNC_S
"""After this time, Ray's tables show a change on a node."""

KNOWN_S = 5.0
"""After this time, every raylet knows what Ray's tables show, also on a busy machine. No table shows when. Usually it
takes 0.1 s, but a raylet that learns about an anchor too late fails the work in its queue."""

ANCHORS_EACH = 2
GROUPS_A_ROUND = 10
"""Maximum number of groups created in one round. Each one costs a call."""

NameAndNode = tuple[str, str]
"""A resource name and a node id."""


class State(Enum):
    ASKED = auto()  # the part is being granted
    HOLDING = auto()  # the group is being created
    UP = auto()  # the unit is granted
    LOWERED = auto()  # the unit is being removed
    RELEASED = auto()  # the part is being removed


class Anchors:
    """`head` is the head's node id; `groups` returns the existing placement groups, by name."""

    def __init__(
        self,
        head: str,
        groups: Callable[[], Mapping[str, Mapping[str, Any]]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._head, self._groups, self._clock = head, groups, clock
        self._states: dict[str, dict[str, State]] = {}  # name -> node -> state of the anchor
        self._held: dict[NameAndNode, Any] = {}
        self._standing: dict[NameAndNode, float] = {}  # when Ray's tables first showed the unit
        self._allowed: dict[str, set[str]] = {}  # name -> the nodes that the rules of its tasks allow
        self._searched: dict[str, Collection[str]] = {}  # name -> the nodes that existed when its anchors were chosen

    def recover(self, names: Iterable[str]) -> None:
        """After a restart: find the existing anchors. Remove those of unknown names."""
        known = set(names)
        for row in self._groups().values():
            if not row["name"].startswith(ANCHORS):
                continue
            _, node, name = row["name"].split("/", 2)
            if row["state"] == "CREATED" and name in known:
                self._held[name, node] = handle(row["id"])
                self._states.setdefault(name, {})[node] = State.HOLDING
            else:
                self._release(handle(row["id"]))

    def nodes(self, name: str) -> Collection[str]:
        """The nodes with an anchor of the name, or with one being created."""
        return self._states.get(name, {}).keys()

    def amount(self, name: str, node: str) -> float:
        """The amount of a name that a node has in addition to its slots."""
        match self._states.get(name, {}).get(node):
            case State.UP:
                return 1.0
            case State.ASKED | State.HOLDING | State.LOWERED:
                return ONE
        return 0.0

    def is_safe(self, name: str) -> bool:
        """Whether the name's slots can be withdrawn: it stays feasible without them, or it is being removed."""
        states, now = self._states.get(name, {}), self._clock()
        staying = [node for node, state in states.items() if state not in (State.LOWERED, State.RELEASED)]
        return bool(states) and all(now - self._standing.get((name, node), now) > KNOWN_S for node in staying)

    def allow(self, name: str, nodes: set[str]) -> None:
        """Set the nodes that the rules of the tasks allow now."""
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
        """Take the next step for each name, once Ray's tables show the last one. `slots` returns how many slots of a
        name a node has, `suits` whether the node could ever run such a task, and `allowed` which nodes the rules allow.
        `allowed` is called once per name."""
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
                    # If the group were created before the tables show the part, Ray would treat it as infeasible for
                    # good.
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
        """Choose the head if it is large enough, because it is the most stable node, and another large enough node."""
        states = self._states.setdefault(name, {})
        if self._searched.get(name) == status.nodes.keys():
            return
        self._searched[name] = frozenset(status.nodes)
        if name not in self._allowed:
            self._allowed[name] = allowed(name)
        fitting = self._allowed[name]
        have = sum(node in fitting for node in states)
        if have >= ANCHORS_EACH:
            return
        order = dict.fromkeys((self._head, *status.nodes))
        rest = [node for node in order if node in status.nodes and node not in states]
        best = (node for node in rest if node in fitting and suits(name, status.nodes[node]))
        states.update(dict.fromkeys(islice(best, ANCHORS_EACH - have), State.ASKED))
        if not fitting & states.keys() and len(states) < ANCHORS_EACH:
            large = (node for node in rest if suits(name, status.nodes[node]))
            states.update(dict.fromkeys(islice(large, ANCHORS_EACH - len(states)), State.ASKED))

    def _needless(self, name: str) -> set[str]:
        """Anchors on nodes that the rules do not allow, once every raylet knows an anchor on a node that they allow."""
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
            if (name, node) in self._held:  # remove the group, or Ray would place it on another node
                self._release(self._held.pop((name, node)))

    def remove(self, name: str, status: Status) -> bool:
        """Take one step to remove all anchors of a name. Returns True when they are gone."""
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
        """Take one step to remove the anchor on a node."""
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
        return group_on(node, f"{ANCHORS}{node}/{name}", name, ONE)

    def _release(self, group: Any) -> None:
        ray.util.remove_placement_group(group)


def _is_held(total: float, available: float) -> bool:
    """Whether a part of a unit is held. Tasks hold only whole units."""
    part = (total - available) % 1.0
    return ONE / 2 < part < 1.0 - ONE / 2
