"""Ray as a cluster of the controller: its tables as the engine's facts.

Rule: turns what Ray says into facts and nothing more. A node's dynamic labels and taints are the journal's, so a
node that is already known is never told again as a whole; what Ray can change under us (amounts, draining) is.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping

from stead.asks import Ask
from stead.engine.decisions import Evicted, GroupPlaced, Placed, Refused, Waiting
from stead.engine.facts import AskRunning, Fact, NodeDrained, NodeJoined, NodeLeft, NodeResized
from stead.errors import Invalid
from stead.labelling import IDENTITY_KEYS, Labels
from stead.node import Node
from stead.ray.marks import plain_labels, rare_in, rare_resource, rare_taint, taints_in
from stead.ray.page import PREFIX
from stead.ray.tables import NodeRow, Status
from stead.resources import DEVICES, UNIT, Resources

HEAD = "node:__internal_head__"
ACCELERATOR = "ray.io/accelerator-type"
_ACCELERATOR_RESOURCE = "accelerator_type:"
_OF_A_GROUP = re.compile(r"_group_(\d+_)?[0-9a-f]{20,}$")


def real_amounts(amounts: Mapping[str, float]) -> dict[str, float]:
    """What a node has for work: without our names, Ray's marks of nodes, and what groups have set aside."""
    return {
        name: amount
        for name, amount in amounts.items()
        if not name.startswith((PREFIX, "node:")) and not _OF_A_GROUP.search(name)
    }


class RayCluster:
    def __init__(self) -> None:
        self._heard: list[Fact] = []
        self._late = 0.0
        self.rare: tuple[str, ...] = ()

    # -- what the controller asks of a cluster

    def now(self) -> float:
        self._late = max(self._late, time.time())
        return self._late

    def facts(self) -> Iterable[Fact]:
        heard, self._heard = self._heard, []
        return heard

    def bind(self, placed: Placed | GroupPlaced) -> None:
        raise AssertionError("on Ray the engine is not yet told of single asks, so it places none")

    def evict(self, evicted: Evicted) -> None:
        raise AssertionError("on Ray the engine is not yet told of single asks, so it evicts none")

    def refuse(self, refused: Refused) -> None:
        raise AssertionError("on Ray the engine is not yet told of single asks, so it refuses none")

    def explain(self, waiting: Waiting) -> None:
        raise AssertionError("on Ray the engine is not yet told of single asks, so none waits in it")

    # -- what is heard

    def hear(self, *facts: Fact) -> None:
        self._heard.extend(facts)

    def look(self, status: Status, names: Mapping[str, str], known: Mapping[str, Node]) -> None:
        """Compare Ray's tables with what the engine knows, and hear the difference."""
        for row in status.nodes.values():
            if HEAD in row.total:
                self.rare = rare_in(row.labels)
        for id in known.keys() - status.nodes.keys():
            self.hear(NodeLeft(id))
        for id, row in status.nodes.items():
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


def in_use(status: Status, but: Mapping[str, Ask] | None = None) -> list[Fact]:
    """Everything that runs on each node, whoever manages it, as one running ask per node (and share of a device).

    `but`: by node, an ask that runs there and is told by itself.
    """
    facts: list[Fact] = []
    for row in status.nodes.values():
        total, available = real_amounts(row.total), real_amounts(row.available)
        used = {name: round(amount - available.get(name, 0.0), 4) for name, amount in total.items()}
        if but and row.id in but:
            for name, units in but[row.id].choices[0].resources.items():
                used[name] = round(used.get(name, 0.0) - units / UNIT, 4)
        used = {name: amount for name, amount in used.items() if amount > 0}
        parts = [used]
        for name in DEVICES & used.keys():  # above one, devices are asked for whole
            share = round(used[name] % 1, 4)
            if used[name] > 1 and share:
                used[name] -= share
                parts.append({name: share})
        for index, part in enumerate(parts):
            if part:
                facts.append(AskRunning(Ask.of(f"in use on {row.id} ({index})", part), row.id))
    return facts
