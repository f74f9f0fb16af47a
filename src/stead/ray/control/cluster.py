"""Ray as a cluster of the controller: turns Ray's tables into facts for the engine.

Rule: only translates. Dynamic labels and taints of a node come from the journal, so a known node is never added again
as a whole. Only what Ray can change (amounts, draining) is updated.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from stead.engine.decisions import (
    Decision,
    Evicted,
    GroupPlaced,
    GroupReleased,
    NominationEnded,
    Placed,
    Preempted,
    Refused,
)
from stead.engine.facts import Fact, NodeDrained, NodeJoined, NodeLeft, NodeResized, NodeUsed
from stead.errors import Invalid
from stead.language.asks import PolicyName
from stead.language.labels import IDENTITY_KEYS, Labels
from stead.language.nodes import Node
from stead.language.resources import UNIT, Resources, usable
from stead.ray.control.node_types import NodeTypes
from stead.ray.wire.node_page import HEAD, ONE
from stead.ray.wire.own_names import PREFIX, SLOT, TICKET, TIMED
from stead.ray.wire.tables import NodeRow, Status
from stead.ray.wire.taint_labels import plain_labels, policy_in, rare_in, rare_resource, rare_taint, taints_in

ACCELERATOR = "ray.io/accelerator-type"
_ACCELERATOR_RESOURCE = "accelerator_type:"
OF_A_GROUP = re.compile(r"_group_(?:\d+_)?([0-9a-f]{20,})$")
"""The form of resource names that Ray reserves for a placement group. They contain the group's id."""


def real_amounts(amounts: Mapping[str, float]) -> dict[str, float]:
    """What a node has for work: without stead's names, Ray's node resources, and resources reserved for groups."""
    return {
        name: amount
        for name, amount in amounts.items()
        if not name.startswith((PREFIX, "node:")) and not OF_A_GROUP.search(name)
    }


class Commands(Protocol):
    """Carries out the engine's commands on Ray."""

    def bind(self, placed: Placed | GroupPlaced) -> None: ...
    def evict(self, evicted: Evicted) -> None: ...
    def preempt(self, preempted: Preempted) -> None: ...
    def refuse(self, refused: Refused) -> None: ...
    def tell(self, happened: Sequence[Fact | Decision]) -> None: ...


class RayCluster:
    def __init__(self, commands: Commands) -> None:
        self.commands = commands
        self._facts: list[Fact] = []
        self._late = 0.0
        self._totals: dict[str, Mapping[str, float]] = {}  # by node, as of the last comparison
        self.rare: tuple[str, ...] = ()
        self.policy: PolicyName | None = None  # the policy that the head was started with
        self.node_types: NodeTypes | None = None  # the types of nodes that Ray's autoscaler launches, if they are known

    # -- the controller's interface to a cluster

    def now(self) -> float:
        self._late = max(self._late, time.time())
        return self._late

    def facts(self) -> Iterable[Fact]:
        facts, self._facts = self._facts, []
        return facts

    def bind(self, placed: Placed | GroupPlaced) -> None:
        self.commands.bind(placed)

    def evict(self, evicted: Evicted) -> None:
        self.commands.evict(evicted)

    def preempt(self, preempted: Preempted) -> None:
        self.commands.preempt(preempted)

    def end_nomination(self, ended: NominationEnded) -> None:
        """Nobody outside the engine keeps places."""

    def release(self, released: GroupReleased) -> None:
        """Ray's placement groups have no time-out."""

    def refuse(self, refused: Refused) -> None:
        self.commands.refuse(refused)

    def tell(self, happened: Sequence[Fact | Decision]) -> None:
        self.commands.tell(happened)

    # -- facts

    def report(self, *facts: Fact) -> None:
        self._facts.extend(facts)

    def look(self, status: Status, names: Mapping[str, str], known: Mapping[str, Node]) -> None:
        """Compare Ray's tables with what the engine knows, and queue the differences as facts."""
        for row in status.nodes.values():
            if HEAD in row.total:
                self.rare, self.policy = rare_in(row.labels), policy_in(row.labels)
        for id in known.keys() - status.nodes.keys():
            self.report(NodeLeft(id))
            self._totals.pop(id, None)
        for id, row in status.nodes.items():
            if not row.total:
                continue  # Ray lists the node, but does not know its amounts yet
            if self._totals.get(id) == row.total and id in known and row.draining == known[id].draining:
                continue
            self._totals[id] = row.total
            capacity = capacity_of(row)
            if id not in known:
                self.report(NodeJoined(self.node(row, names.get(id, ""))))
                if row.draining:
                    self.report(NodeDrained(id))
                continue
            if known[id].capacity != capacity:
                self.report(NodeResized(id, capacity))
            if row.draining and not known[id].draining:
                self.report(NodeDrained(id))

    def node(self, row: NodeRow, name: str) -> Node:
        capacity = capacity_of(row)
        rare = [rare_taint(each) for each in self.rare if capacity.get(rare_resource(each))]
        more, typed = self.node_types.added_to(row.kind) if self.node_types and row.kind else (Labels(), ())
        taints = {(taint.key, taint.effect): taint for taint in (*typed, *taints_in(row.labels), *rare)}
        labels, name = Labels({**more, **static_labels(row)}), name if name != row.ip else ""
        return Node(row.id, capacity, labels, tuple(taints.values()), row.ip, name)


def capacity_of(row: NodeRow) -> Resources:
    """What a node has for work. Devices are rounded down to whole ones."""
    amounts = Resources.of(real_amounts(row.total))
    return Resources({name: usable(name, units) for name, units in amounts.items()})


def static_labels(row: NodeRow) -> dict[str, str]:
    """The labels that a node joined with. Its accelerator type counts as one, also if Ray knows only the resource."""
    labels = {key: value for key, value in plain_labels(row.labels).items() if key not in IDENTITY_KEYS}
    for name in row.total:
        if name.startswith(_ACCELERATOR_RESOURCE):
            labels.setdefault(ACCELERATOR, name.removeprefix(_ACCELERATOR_RESOURCE))
    kept = {}
    for key, value in labels.items():
        try:
            Labels.checked({key: value})
        except Invalid:
            continue  # Ray accepts some labels that no selector can match
        kept[key] = value
    return kept


def in_use(
    status: Status, mine: Mapping[str, Sequence[Resources]], plugged: Mapping[tuple[str, str], float]
) -> list[NodeUsed]:
    """What runs on each node besides `mine`. Ray does not count the pieces of work, so all of it counts as one, also if
    it holds a pass and nothing else."""
    found = []
    for row in status.nodes.values():
        total, available = real_amounts(row.total), real_amounts(row.available)
        used = {name: round(amount - available.get(name, 0.0), 4) for name, amount in total.items()}
        for amounts in mine.get(row.id, ()):
            for name, units in amounts.items():
                used[name] = round(used.get(name, 0.0) - units / UNIT, 4)
        used = {name: amount for name, amount in used.items() if amount > 0}
        found.append(NodeUsed(row.id, Resources.of(used), int(bool(used) or _is_occupied(row, plugged))))
    return found


def _is_occupied(row: NodeRow, plugged: Mapping[tuple[str, str], float]) -> bool:
    """Whether something holds a pass, and so runs there, even if it uses nothing else."""
    return any(
        total - row.available.get(name, 0.0) - plugged.get((row.id, name), 0.0) > ONE / 2
        for name, total in row.total.items()
        if name.startswith(PREFIX) and name != TIMED and not name.startswith((TICKET, SLOT))
    )
