"""Placement groups that the engine decides: each is created in Ray when its decision is made.

Rule: a group has its id from the start, so that work can refer to it while it is pending. Ray gets the group when the
engine has found nodes for all of it, and places its bundles by their passes, all or none. So when Ray later moves a
bundle whose node died, the current rules apply. The engine learns from Ray where each bundle is.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import ray

from stead.engine.decisions import Evicted, GroupPlaced
from stead.engine.explain.events import EventKind
from stead.engine.facts import AskLost, AskRunning, Fact, GroupEnded, GroupSubmitted
from stead.errors import Invalid
from stead.language.resources import UNIT, Resources
from stead.ray.control.passes import FULL
from stead.ray.control.state_store import StateStore
from stead.ray.submit.compile import Pass
from stead.ray.submit.messages import GroupAsked
from stead.ray.wire.gcs import ControlStore, GroupSpec
from stead.ray.wire.node_page import ENTRY
from stead.ray.wire.own_names import NEVER, is_own_group
from stead.ray.wire.tables import Status, Tables, handle

LOOK_S, SHOWN_S, LEAVES_S, LAGS_S = 1.0, 5.0, 10.0, 2.0
LOOKS_AGAIN_MAX = 6
BUNDLE = "bundle_group_"
"""Prefix of a resource that Ray gives a node for each bundle it holds; the bundle's index and group id follow."""


@dataclass(slots=True)
class GroupLife:
    asked: GroupAsked
    taken: int | None = None  # the alternative that was created in Ray
    decided: tuple[int, frozenset[str]] | None = None  # the alternative that the engine placed, and its nodes
    nodes: dict[int, str] = field(default_factory=dict)  # where its bundles are
    looked: float = 0.0
    changed: float = 0.0  # when it was created in Ray, or Ray moved one of its bundles
    shown: bool = False  # whether Ray's tables have shown all of its bundles since

    @property
    def is_placed(self) -> bool:
        """Whether Ray has placed all of its bundles."""
        return self.taken is not None and len(self.nodes) == len(self.asked.passes[self.taken])


class Groups:
    def __init__(
        self, state_store: StateStore, tables: Tables, store: ControlStore, name_of: Callable[[Pass], str]
    ) -> None:
        self._state_store, self._tables, self._store, self._name_of = state_store, tables, store, name_of
        self.lives = {asked.group.id: GroupLife(asked, taken) for asked, taken in state_store.groups()}
        self._arrived: list[GroupAsked] = []
        self._over: list[str] = []
        self._again: list[GroupAsked] = []
        self._evicted: dict[str, tuple[float, Evicted]] = {}  # groups that must leave a node -> since when, and why
        self._leaving: dict[str, GroupLife] = {}  # removed, but Ray's tables may not show that yet
        self._world: object = None
        self._looks_left, self._pause = 0, LOOK_S
        self._looked_again = 0.0

    # -- requests

    def register(self, asked: GroupAsked) -> None:
        if asked.group.id in self.lives:
            return  # stored by a controller that died before it answered
        if asked.name:
            known = {id: life.asked.name for id, life in self.lives.items() if id != asked.group.id}
            named = {*known.values(), *(row["name"] for row in self._tables.groups().values())}
            if asked.name in named:
                raise Invalid(f"a placement group named {asked.name!r} exists already; choose another name")
        self._state_store.keep_group(asked)
        self.lives[asked.group.id] = GroupLife(asked)
        self._arrived.append(asked)

    def end(self, id: str) -> None:
        """Remove a group, also one that Ray does not know. Work that waits for the group stays pending, as in Ray."""
        life = self.lives.pop(id, None)
        self._state_store.forget_group(id)
        if life is not None:
            life.looked, self._leaving[id] = time.monotonic(), life
        if life is not None and life.taken is None:
            # Create it in Ray, so that Ray can report its removal. It must not be placed meanwhile: Ray 2.60 may lose
            # resources of a group that is removed while it is being placed.
            self._store.create_group(_spec(life.asked, 0, lambda _: NEVER))
        ray.util.remove_placement_group(handle(id))
        self._over.append(id)

    def again(self, id: str, current: Callable[[str], str]) -> None:
        """Remove a placed group from its nodes and place it again under its own id: programs keep their handle, and its
        actors restart when it is placed. A group that was submitted directly to Ray is placed by Ray, under the current
        passes (`current` returns their names)."""
        life = self.lives.get(id)
        if life is None:
            spec, _ = self._store.group(id)
            bundles = tuple({current(name): amount for name, amount in each.items()} for each in spec.bundles)
            ray.util.remove_placement_group(handle(id))
            self._store.create_group(replace(spec, bundles=bundles))
            return
        self._state_store.keep_group(life.asked)
        life.looked, self._leaving[id] = time.monotonic(), life
        self.lives[id] = GroupLife(life.asked)
        ray.util.remove_placement_group(handle(id))
        self._again.append(life.asked)

    def placed_at(self, id: str) -> float:
        return self._store.group(id)[1]

    def is_being_placed(self, id: str) -> bool:
        life = self.lives.get(id)
        return life is not None and life.taken is not None and not life.is_placed

    def passes(self) -> set[str]:
        """Keys of passes that groups carry or will carry."""
        return {rule.key for life in self.lives.values() for rules in life.asked.passes for rule in rules}

    @property
    def has_news(self) -> bool:
        return bool(self._arrived or self._over or self._again)

    # -- facts

    def not_in_engine(self, known: set[str]) -> list[Fact]:
        """After a restart: acknowledged groups that the engine does not know."""
        return [
            GroupSubmitted(life.asked.group)
            for id, life in self.lives.items()
            if life.taken is None and id not in known and not any(m.id in known for m in life.asked.group.all_members)
        ]

    def facts(self, status: Status) -> list[Fact]:
        facts: list[Fact] = []
        arrived, self._arrived = self._arrived, []
        facts += [GroupSubmitted(asked.group) for asked in arrived if asked.group.id in self.lives]
        over, self._over = self._over, []
        for id in over:
            facts += self._forget(id)
        again, self._again = self._again, []
        for asked in again:
            if asked.group.id in self.lives:
                facts += [GroupEnded(asked.group.id), GroupSubmitted(asked.group)]
        for id, life in list(self.lives.items()):
            if life.taken is not None and self._is_due(life, status):
                facts += self._look(id, life)
            life.shown = life.shown or _is_shown(life, status)
        return facts

    def _is_due(self, life: GroupLife, status: Status) -> bool:
        complete = len(life.nodes) == len(life.asked.passes[life.taken or 0])
        lost = not all(node in status.nodes for node in life.nodes.values())
        return not complete or lost or time.monotonic() - life.looked > LOOK_S

    def _look(self, id: str, life: GroupLife) -> list[Fact]:
        life.looked = time.monotonic()
        row = self._tables.group(id)
        if not row or row["state"] == "REMOVED":
            return self._forget(id)
        assert life.taken is not None
        facts: list[Fact] = []
        members = life.asked.group.alternatives[life.taken]
        places = {int(index): node for index, node in row["bundles_to_node_id"].items() if node}
        for index, member in enumerate(members):
            node, before = places.get(index, ""), life.nodes.get(index, "")
            if node and node != before:
                facts.append(AskRunning(member, node))
            elif before and not node:
                facts.append(AskLost(member.id))
        if places != life.nodes:
            life.nodes, life.changed, life.shown = places, time.monotonic(), False
        return facts

    def _forget(self, id: str) -> list[Fact]:
        self.lives.pop(id, None)
        self._state_store.forget_group(id)
        return [GroupEnded(id)]

    def owners(self) -> set[str]:
        return {_owner(life.asked) for life in self.lives.values() if not life.asked.detached}

    def owners_ended(self, live: set[str]) -> list[Fact]:
        """A group ends with its owner. Ray removes the groups that it knows."""
        gone = [id for id, life in self.lives.items() if not life.asked.detached and _owner(life.asked) not in live]
        for id in gone:
            if self.lives[id].taken is not None:
                ray.util.remove_placement_group(handle(id))
        return [fact for id in gone for fact in self._forget(id)]

    # -- the engine's commands

    def bind(self, placed: GroupPlaced) -> None:
        life = self.lives.get(placed.group)
        if life is not None and life.taken is None:
            life.decided = (placed.alternative, frozenset(node for _, node in placed.members))
            life.looked = time.monotonic()

    def evict(self, evicted: Evicted) -> bool:
        """A member has to leave its node, so the whole group is placed again. Returns False if it is no member."""
        for id, life in self.lives.items():
            if any(member.id == evicted.ask for member in life.asked.group.all_members):
                self._evicted.setdefault(id, (time.monotonic(), evicted))
                return True
        return False

    def evictions(self, status: Status) -> dict[str, Evicted]:
        """Groups to place again now. Ray's tables should first show that their passes are withdrawn from the node, else
        Ray may choose it again."""
        now, found = time.monotonic(), dict[str, Evicted]()
        for id, (since, evicted) in list(self._evicted.items()):
            life, row = self.lives.get(id), status.nodes.get(evicted.node)
            names = {self._name_of(rule) for rules in life.asked.passes for rule in rules} if life else set()
            is_withdrawn = row is None or all(row.total.get(name, 0.0) < FULL for name in names)
            if is_withdrawn or now - since > LAGS_S:
                del self._evicted[id]
                if life is not None and life.taken is not None:
                    found[id] = evicted
        return found

    def carry_out(self, status: Status) -> None:
        """Create decided groups, once Ray's tables show their passes on the chosen nodes. Any earlier, Ray would treat
        them as infeasible."""
        for life in self.lives.values():
            if life.taken is None and life.decided is not None:
                alternative, nodes = life.decided
                names = {self._name_of(rule) for rule in life.asked.passes[alternative]}
                shown = all(names <= status.nodes[node].total.keys() for node in nodes if node in status.nodes)
                if shown or time.monotonic() - life.looked > SHOWN_S:
                    self._create(life, alternative)

    def _create(self, life: GroupLife, alternative: int) -> None:
        asked = life.asked
        self._state_store.keep_group(asked, alternative)
        life.taken, life.changed = alternative, time.monotonic()
        try:
            self._store.create_group(_spec(asked, alternative, self._name_of))
        except RuntimeError as error:  # for example, its name was taken meanwhile
            self._state_store.record(EventKind.REFUSED, asked.group.id, f"refused: {error}")
            self._over.append(asked.group.id)

    def create_again(self, placed: Mapping[str, str]) -> None:
        """After a restart: create groups that were about to be created when the controller died."""
        for life in self.lives.values():
            for number, members in enumerate(life.asked.group.alternatives):
                if life.taken is None and all(member.id in placed for member in members):
                    life.decided = (number, frozenset(placed[member.id] for member in members))
            if life.taken is not None and not self._tables.group(life.asked.group.id):
                self._create(life, life.taken)

    @property
    def is_creating(self) -> bool:
        """Whether a group is about to be created, or Ray is placing one."""
        lives = self.lives.values()
        return any((life.decided or life.taken is not None) and not life.is_placed for life in lives)

    def shown(self, status: Status) -> dict[str, list[Resources]]:
        """By node, what bundles of these groups hold there, as far as Ray's tables show it."""
        found: dict[str, list[Resources]] = {}
        self._forget_leaving()
        for row in status.nodes.values():
            for name in row.total:
                index, _, id = name.removeprefix(BUNDLE).partition("_") if name.startswith(BUNDLE) else ("", "", "")
                lives = (self.lives.get(id), self._leaving.get(id))
                for life in [each for each in lives if each is not None and each.taken is not None][:1]:
                    member = life.asked.group.alternatives[life.taken or 0][int(index)]
                    found.setdefault(row.id, []).append(member.choices[0].resources)
        return found

    def unclear(self) -> set[str]:
        """Nodes where Ray's tables may show the resources of a bundle as used, but not the bundle yet: a node reports
        one before the other. Until all bundles are shown, it is unknown whether the group or other work uses them."""
        self._forget_leaving()
        now, found = time.monotonic(), set[str]()
        lives = [(life, life.changed) for life in self.lives.values()]
        for life, since in (*lives, *((life, life.looked) for life in self._leaving.values())):
            if life.taken is not None and not life.shown and now - since < LAGS_S:
                found |= {*life.nodes.values(), *(life.decided[1] if life.decided else ())}
        return found

    def _forget_leaving(self) -> None:
        now = time.monotonic()
        self._leaving = {id: life for id, life in self._leaving.items() if now - life.looked < LEAVES_S}

    # -- groups that Ray no longer retries

    def look_again(
        self, status: Status, allowed: Mapping[str, set[str]], fits: Callable[[str, Mapping[str, Any]], bool]
    ) -> None:
        """Ray retries an infeasible group only when a node joins. If passes or nodes have changed since, and the group
        `fits` according to the engine, make Ray retry it: a few times, because its tables lag."""
        now = time.monotonic()
        world = {key: frozenset(nodes) for key, nodes in allowed.items()}, frozenset(status.nodes)
        if world != self._world:
            self._world, self._looks_left, self._looked_again = world, LOOKS_AGAIN_MAX, now
            self._pause = LOOK_S / 4
        if not status.groups_wait or not self._looks_left or now - self._looked_again < self._pause:
            return
        self._looked_again = now
        self._looks_left -= 1
        self._pause *= 2
        if any(fits(row["id"], row) for row in self._infeasible()):
            self._store.look_again()

    def _infeasible(self) -> list[Mapping[str, Any]]:
        return [
            row
            for row in self._tables.groups().values()
            if row["state"] in ("PENDING", "RESCHEDULING")
            and row["stats"]["scheduling_state"] == "INFEASIBLE"
            and not is_own_group(row["name"])
        ]


def _owner(asked: GroupAsked) -> str:
    return asked.actor or asked.job


def _is_shown(life: GroupLife, status: Status) -> bool:
    names = {(node, f"{BUNDLE}{index}_{life.asked.group.id}") for index, node in life.nodes.items()}
    complete = life.taken is not None and len(names) == len(life.asked.passes[life.taken])
    return complete and all(node in status.nodes and name in status.nodes[node].total for node, name in names)


def _spec(asked: GroupAsked, alternative: int, name_of: Callable[[Pass], str]) -> GroupSpec:
    members, passes = asked.group.alternatives[alternative], asked.passes[alternative]
    amounts = [bundle(member.choices[0].resources) for member in members]
    return GroupSpec(
        asked.group.id,
        tuple({**each, name_of(rule): ENTRY} for each, rule in zip(amounts, passes, strict=True)),
        asked.natives[alternative],
        asked.group.strategy.value,
        {key: strategy.value for key, strategy in asked.group.topology},
        asked.name,
        asked.job,
        asked.actor,
        asked.detached,
    )


def bundle(resources: Resources) -> dict[str, float]:
    return {name: units / UNIT for name, units in resources.items()}
