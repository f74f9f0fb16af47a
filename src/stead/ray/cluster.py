"""Ray as a cluster of the controller: its tables as the engine's facts.

Rule: turns what Ray says into facts and nothing more. A node's dynamic labels and taints are the journal's, so a
node that is already known is never told again as a whole; what Ray can change under us (amounts, draining) is.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from stead.asks import Ask, PolicyName
from stead.engine.decisions import Evicted, GroupPlaced, Moved, Placed, Refused, Waiting
from stead.engine.facts import AskRunning, Fact, NodeDrained, NodeJoined, NodeLeft, NodeResized
from stead.errors import Invalid
from stead.labelling import IDENTITY_KEYS, Labels, Selector
from stead.node import Node
from stead.ray.marks import plain_labels, policy_in, rare_in, rare_resource, rare_taint, taints_in
from stead.ray.page import ONE, PREFIX, SLOT, TICKET, TIMED
from stead.ray.tables import NodeRow, Status
from stead.resources import DEVICES, UNIT, Resources

HEAD = "node:__internal_head__"
IN_USE = "in use on "
"""How the ids begin under which the engine hears of work that is not told singly."""

ACCELERATOR = "ray.io/accelerator-type"
_ACCELERATOR_RESOURCE = "accelerator_type:"
OF_A_GROUP = re.compile(r"_group_(?:\d+_)?([0-9a-f]{20,})$")
"""What is set aside for a placement group has such a name, with the group's id in it."""


def real_amounts(amounts: Mapping[str, float]) -> dict[str, float]:
    """What a node has for work: without our names, Ray's marks of nodes, and what groups have set aside."""
    return {
        name: amount
        for name, amount in amounts.items()
        if not name.startswith((PREFIX, "node:")) and not OF_A_GROUP.search(name)
    }


class Commands(Protocol):
    """Whoever carries out on Ray what the engine wants done."""

    def bind(self, placed: Placed | GroupPlaced) -> None: ...

    def evict(self, evicted: Evicted) -> None: ...

    def refuse(self, refused: Refused) -> None: ...

    def explain(self, waiting: Waiting) -> None: ...


class RayCluster:
    def __init__(self, commands: Commands) -> None:
        self.commands = commands
        self._heard: list[Fact] = []
        self._late = 0.0
        self._totals: dict[str, Mapping[str, float]] = {}  # of each node, as it was last compared
        self.rare: tuple[str, ...] = ()
        self.policy: PolicyName | None = None  # that the head was started with

    # -- what the controller asks of a cluster

    def now(self) -> float:
        self._late = max(self._late, time.time())
        return self._late

    def facts(self) -> Iterable[Fact]:
        heard, self._heard = self._heard, []
        return heard

    def bind(self, placed: Placed | GroupPlaced) -> None:
        self.commands.bind(placed)

    def move(self, moved: Moved) -> None:
        raise AssertionError("work on Ray does not move: its settings allow none")

    def evict(self, evicted: Evicted) -> None:
        self.commands.evict(evicted)

    def refuse(self, refused: Refused) -> None:
        self.commands.refuse(refused)

    def explain(self, waiting: Waiting) -> None:
        self.commands.explain(waiting)

    # -- what is heard

    def hear(self, *facts: Fact) -> None:
        self._heard.extend(facts)

    def look(self, status: Status, names: Mapping[str, str], known: Mapping[str, Node]) -> None:
        """Compare Ray's tables with what the engine knows, and hear the difference."""
        for row in status.nodes.values():
            if HEAD in row.total:
                self.rare, self.policy = rare_in(row.labels), policy_in(row.labels)
        for id in known.keys() - status.nodes.keys():
            self.hear(NodeLeft(id))
            self._totals.pop(id, None)
        for id, row in status.nodes.items():
            if not row.total:
                continue  # Ray lists it, and does not know its amounts yet: nobody could say whether it is rare
            if self._totals.get(id) == row.total and id in known and row.draining == known[id].draining:
                continue
            self._totals[id] = row.total
            capacity = Resources.of(whole_devices(real_amounts(row.total)))
            if id not in known:
                self.hear(NodeJoined(self.node(row, names.get(id, ""))))
                if row.draining:
                    self.hear(NodeDrained(id))
                continue
            if known[id].capacity != capacity:
                self.hear(NodeResized(id, capacity))
            if row.draining and not known[id].draining:
                self.hear(NodeDrained(id))

    def node(self, row: NodeRow, name: str) -> Node:
        amounts = whole_devices(real_amounts(row.total))
        labels = static_labels(row)
        taints = [*taints_in(row.labels), *(rare_taint(rare) for rare in self.rare if amounts.get(rare_resource(rare)))]
        return Node.of(row.id, amounts, labels, taints, ip=row.ip, name=name if name != row.ip else "")


def static_labels(row: NodeRow) -> dict[str, str]:
    """The labels a node joined with; its accelerator's name counts as one, also where Ray knows only the resource."""
    labels = {key: value for key, value in plain_labels(row.labels).items() if key not in IDENTITY_KEYS}
    for name in row.total:
        if name.startswith(_ACCELERATOR_RESOURCE):
            labels.setdefault(ACCELERATOR, name.removeprefix(_ACCELERATOR_RESOURCE))
    kept = {}
    for key, value in labels.items():
        try:
            Labels.checked({key: value})
        except Invalid:
            continue  # Ray takes a few labels that nobody could select by
        kept[key] = value
    return kept


def whole_devices(amounts: Mapping[str, float]) -> dict[str, float]:
    return {name: float(int(amount)) if name in DEVICES else amount for name, amount in amounts.items()}


def in_use(
    status: Status, mine: Mapping[str, Sequence[Resources]], plugged: Mapping[tuple[str, str], float]
) -> list[AskRunning]:
    """What runs on each node beside `mine`, whoever manages it, as a running ask per node (and share of a device).

    They fit nowhere, so that the engine does not look for another place for them when their node is gone.
    """
    used = others_in_use(status, mine, plugged)
    return [
        AskRunning(Ask.of(f"{IN_USE}{node} ({index})", part, Selector(())), node)
        for node, parts in used.items()
        for index, part in enumerate(parts)
    ]


def others_in_use(
    status: Status, mine: Mapping[str, Sequence[Resources]], plugged: Mapping[tuple[str, str], float]
) -> dict[str, list[dict[str, float]]]:
    """By node, what is in use there beside `mine`, in parts that could each be asked for.

    A node on which something runs that uses nothing has one empty part: somebody holds a pass there.
    """
    found: dict[str, list[dict[str, float]]] = {}
    for row in status.nodes.values():
        total, available = real_amounts(row.total), real_amounts(row.available)
        used = {name: round(amount - available.get(name, 0.0), 4) for name, amount in total.items()}
        for amounts in mine.get(row.id, ()):
            for name, units in amounts.items():
                used[name] = round(used.get(name, 0.0) - units / UNIT, 4)
        used = {name: amount for name, amount in used.items() if amount > 0}
        parts = [used] if used or _is_occupied(row, plugged) else []
        for name in DEVICES & used.keys():  # above one, devices are asked for whole
            share = round(used[name] % 1, 4)
            if used[name] > 1 and share:
                used[name] -= share
                parts.append({name: share})
        if parts:
            found[row.id] = parts
    return found


def _is_occupied(row: NodeRow, plugged: Mapping[tuple[str, str], float]) -> bool:
    """Whether something holds a pass, and so runs there, whatever else it uses."""
    return any(
        total - row.available.get(name, 0.0) - plugged.get((row.id, name), 0.0) > ONE / 2
        for name, total in row.total.items()
        if name.startswith(PREFIX) and name != TIMED and not name.startswith((TICKET, SLOT))
    )
