"""Changes of a node: what is to hold there from now on, as one value.

Rule: a change becomes facts here, for every cluster alike, so that what is tried (`what_if`) is what is done. A node's
state before and after (`state_of`) is all that is needed to take a change back (`inverse`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from stead.engine.facts import Fact, NodeDrained, NodeLabelled, NodeTainted, NodeUntainted
from stead.errors import Invalid
from stead.labelling import EMPTY, Labels
from stead.node import Node
from stead.operate.audit import Entry
from stead.operate.views import TaintEnd
from stead.specs import SECONDS_MAX
from stead.taints import Effect, Taint

RATE_MAX = 1e6
OWNER_MAX = 256
DRAINED = "node.stead.io/drained"
"""The taint under which what runs on a node is ended, when it is drained with `evict`."""


class Absent(Invalid):
    """What is meant is not there."""


class Conflict(Invalid):
    """It cannot be done as things are."""


@dataclass(frozen=True, slots=True)
class Removal:
    """Taints to remove: of a key; with a value only an equal one; of one effect or of all."""

    key: str
    value: str | None = None
    effect: Effect | None = None

    def matches(self, taint: Taint) -> bool:
        return taint.key == self.key and self.value in (None, taint.value) and self.effect in (None, taint.effect)

    def __str__(self) -> str:
        said = self.key if self.value is None else f"{self.key}={self.value}"
        return said if self.effect is None else f"{said}:{self.effect}"


@dataclass(frozen=True, slots=True)
class NodeChange:
    """What is to hold on one node from now on. `for_s`, `until_job` and `owner` are of the taints that are set."""

    node: str
    taints: tuple[Taint, ...] = ()
    untaints: tuple[Removal, ...] = ()
    labels: Labels = EMPTY
    unlabels: tuple[str, ...] = ()
    draining: bool | None = None
    evict: bool = False
    for_s: float | None = None
    until_job: str = ""
    owner: str = ""
    overwrite: bool = True  # whether a taint or label of another value may be replaced
    missing_ok: bool = False  # whether what is to be removed may be gone already
    rate: float = 0.0  # how many pieces of work are evicted in a second at most; 0 is no limit

    @property
    def action(self) -> str:
        """One word for it."""
        words = self.taints or self.untaints
        if (self.draining is not None) + bool(self.labels or self.unlabels) + bool(words) > 1:
            return "change"
        if self.draining is not None:
            return "drain" if self.draining else "uncordon"
        if self.labels or self.unlabels:
            return "label"
        return "taint" if self.taints else "untaint"

    def check(self, node: Node) -> None:
        """Refuse, in words, what cannot be done on the node as it is now."""
        if not (self.taints or self.untaints or self.labels or self.unlabels or self.draining is not None):
            raise Invalid("the change is empty; name a taint or a label, for example {'gpu_node': 'true'}")
        if self.for_s is not None and not 0 < self.for_s <= SECONDS_MAX:
            raise Invalid(f"a taint can end after some time, for example 2h, but not after {self.for_s:g} seconds")
        for name, said in (("owner", self.owner), ("until_job", self.until_job)):
            if len(said) > OWNER_MAX or not said.isprintable():
                raise Invalid(f"{name} {said[:100]!r} must have up to {OWNER_MAX} printable characters, like 'ml-team'")
        if self.evict and not self.draining:
            raise Invalid("evict is for a node that is drained; drain it too")
        if self.rate and (not self.evict or not 0 < self.rate <= RATE_MAX):
            raise Invalid(f"a rate of {self.rate:g} is for evictions, for example 10 a second; drain with evict too")
        if len({(taint.key, taint.effect) for taint in self.taints}) < len(self.taints):
            raise Invalid("a taint is there twice with one effect; give it once, for example gpu_node=true:NoSchedule")
        for removal in self.untaints if not self.missing_ok else ():
            if not any(removal.matches(taint) for taint in node.taints):
                has = ", ".join(map(str, node.taints)) or "no taints"
                raise Absent(f"node {node.id} has no taint {removal}; it has {has}")
        for key in self.unlabels if not self.missing_ok else ():
            if key not in node.labels:
                has = ", ".join(sorted(node.labels)) or "none"
                raise Absent(f"node {node.id} has no label {key!r}; it has {has}")
        if self.overwrite:
            return
        for taint in self.taints:
            for there in node.taints:
                if (there.key, there.effect) == (taint.key, taint.effect) and there.value != taint.value:
                    raise Conflict(f"node {node.id} is tainted {there}; to make it {taint}, give --overwrite")
        for key, value in self.labels.items():
            if node.labels.get(key, value) != value:
                there_too = f"{key}={node.labels[key]}"
                raise Conflict(f"node {node.id} is labelled {there_too}; to make it {key}={value}, give --overwrite")

    def facts(self, node: Node) -> list[Fact]:
        """What happens when it is carried out on the node."""
        found: list[Fact] = []
        if self.labels or self.unlabels:
            found.append(NodeLabelled(node.id, self.labels, self.unlabels))
        found += [NodeUntainted(node.id, taint.key, taint.effect) for taint in self.untainted(node)]
        found += [NodeTainted(node.id, taint) for taint in self.taints]
        drained = Taint(DRAINED, "", Effect.NO_EXECUTE)
        if self.draining is not None:
            found.append(NodeDrained(node.id, self.draining))
            if self.draining and self.evict:
                found.append(NodeTainted(node.id, drained))
            elif not self.draining and drained in node.taints:
                found.append(NodeUntainted(node.id, DRAINED, Effect.NO_EXECUTE))
        return found

    def untainted(self, node: Node) -> list[Taint]:
        """The taints of the node that go."""
        return [taint for taint in node.taints if any(removal.matches(taint) for removal in self.untaints)]


def change_json(change: NodeChange) -> dict[str, Any]:
    """A change as ``PATCH /nodes/{id}`` takes it; what is as it would be anyway is left out."""
    found = {
        "taints": [{"key": each.key, "value": each.value, "effect": each.effect.value} for each in change.taints],
        "untaints": [
            {"key": each.key, "value": each.value, "effect": None if each.effect is None else each.effect.value}
            for each in change.untaints
        ],
        "labels": dict(change.labels),
        "unlabels": list(change.unlabels),
        "draining": change.draining,
        "evict": change.evict,
        "rate": change.rate,
        "for": change.for_s,
        "owner": change.owner,
        "until_job": change.until_job,
        "missing_ok": change.missing_ok,
    }
    said = {"draining", "for"}  # here False and 0 say something
    found = {name: value for name, value in found.items() if value or (name in said and value is not None)}
    return found if change.overwrite else {**found, "overwrite": False}


def state_of(node: Node, ends: Iterable[TaintEnd] = ()) -> dict[str, Any]:
    """What a change may change of a node, as the audit keeps it."""
    known = {(end.key, end.effect): end for end in ends if end.node == node.id}
    taints = {}
    for taint in node.taints:
        end = known.get((taint.key, taint.effect.value))
        said = {"value": taint.value}
        if end is not None:
            said |= {name: getattr(end, name) for name in ("until", "job", "owner") if getattr(end, name)}
        taints[f"{taint.key}:{taint.effect.value}"] = said
    return {"labels": dict(node.labels), "taints": taints, "draining": node.draining}


def inverse(entry: Entry, nodes: Mapping[str, Node], now: float) -> list[NodeChange]:
    """What takes an entry of the audit back. Refused when a node is gone, or was changed since in what the entry
    changed."""
    found: list[NodeChange] = []
    for id, (before, after) in entry.states.items():
        if id not in nodes:
            raise Conflict(f"entry {entry.number} cannot be undone: node {id} is gone")
        found += _inverse(entry, nodes[id], before, after, now)
    if not found:
        raise Conflict(f"entry {entry.number} changed nothing, so there is nothing to undo")
    return found


def _inverse(
    entry: Entry, node: Node, before: Mapping[str, Any], after: Mapping[str, Any], now: float
) -> list[NodeChange]:
    state = state_of(node)
    for what in ("taints", "labels"):
        for key in before[what].keys() | after[what].keys():
            if _plain(before[what].get(key)) == _plain(after[what].get(key)):
                continue
            if _plain(state[what].get(key)) != _plain(after[what].get(key)):
                raise Conflict(
                    f"entry {entry.number} cannot be undone: {key} of node {node.id} was changed since; "
                    f"set it by hand, for example by `stead {what[:-1]}`"
                )
    found: list[NodeChange] = []
    lost = set()
    if before["draining"] != after["draining"] and node.draining == after["draining"]:
        found.append(NodeChange(node.id, draining=before["draining"]))
        if not before["draining"]:  # then the taint of a drain goes too, also where it was there before
            lost.add(f"{DRAINED}:{Effect.NO_EXECUTE.value}")
    gone = [key for key in after["taints"] if key not in before["taints"]]
    if gone:
        found.append(NodeChange(node.id, untaints=tuple(_removal(key) for key in gone)))
    for key, said in before["taints"].items():
        if after["taints"].get(key) != said or key in lost:
            name, _, effect = key.rpartition(":")
            left = None if said.get("until") is None else max(1.0, said["until"] - now)
            taint = Taint(name, said["value"], Effect(effect))
            end = {"for_s": left, "until_job": said.get("job", ""), "owner": said.get("owner", "")}
            found.append(NodeChange(node.id, (taint,), **end))
    labels = {key: value for key, value in before["labels"].items() if after["labels"].get(key) != value}
    unlabels = tuple(key for key in after["labels"] if key not in before["labels"])
    if labels or unlabels:
        found.append(NodeChange(node.id, labels=Labels(labels), unlabels=unlabels))
    return found


def _plain(value: Any) -> Any:
    """A taint by its value alone: whose it is and until when is no other taint."""
    return value["value"] if isinstance(value, Mapping) else value


def _removal(key: str) -> Removal:
    name, _, effect = key.rpartition(":")
    return Removal(name, None, Effect(effect))


def told(change: NodeChange, node: Node) -> Iterable[tuple[str, str]]:
    """A change as events: kind and text."""
    end = "" if change.for_s is None else f" for {change.for_s:g} s"
    end += f" until job {change.until_job} ends" if change.until_job else ""
    yield from (("untainted", f"{taint} is gone") for taint in change.untainted(node))
    yield from (("tainted", f"{taint}{end}{f' by {change.owner}' if change.owner else ''}") for taint in change.taints)
    said = [f"{key}={value}" for key, value in change.labels.items()]
    said += [f"{key} removed" for key in change.unlabels]
    if said:
        yield "labelled", ", ".join(said)
    if change.draining:
        yield "drained", "takes no new work" + (", and what runs there is evicted" if change.evict else "")
    elif change.draining is not None:
        yield "uncordoned", "takes work again"
