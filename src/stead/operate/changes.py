"""Changes of a node, as one value: its labels, taints and draining from now on.

Rule: a change becomes facts only here, for every kind of cluster, so that a preview (`what_if`) and the change itself
do the same. The state of a node before and after (`state_of`) is all that an undo (`inverse`) needs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stead.engine.facts import Fact, NodeDrained, NodeLabelled, NodeTainted, NodeUntainted
from stead.engine.timing.taint_times import TaintEnd
from stead.errors import Invalid, check_name
from stead.language.arguments import effect_text, taint_text
from stead.language.labels import EMPTY, Labels
from stead.language.nodes import Node
from stead.language.taints import Effect, Taint
from stead.language.times import SECONDS_MAX
from stead.text import short_id

if TYPE_CHECKING:
    from stead.operate.audit import Entry

RATE_MAX = 1e6
OWNER_MAX = 256
DRAINED = "node.stead.io/drained"
"""The taint that evicts the work of a node when it is drained with `evict`."""


class Absent(Invalid):
    """There is nothing with this name."""


class Conflict(Invalid):
    """The current state of the cluster does not allow this."""


@dataclass(frozen=True, slots=True)
class Removal:
    """Taints to remove: all with this key, or only those with this value or this effect."""

    key: str
    value: str | None = None
    effect: Effect | None = None

    def matches(self, taint: Taint) -> bool:
        return taint.key == self.key and self.value in (None, taint.value) and self.effect in (None, taint.effect)

    def __str__(self) -> str:
        text = self.key if self.value is None else f"{self.key}={self.value}"
        return text if self.effect is None else f"{text}:{effect_text(self.effect)}"


@dataclass(frozen=True, slots=True)
class NodeChange:
    """What to change on one node. `for_s`, `until_job` and `owner` belong to the taints that are set."""

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
    overwrite: bool = True  # whether a taint or label may get another value
    missing_ok: bool = False  # whether what is to be removed may be missing
    rate: float = 0.0  # maximum evictions per second; 0 means no limit
    unlabel_values: Labels = EMPTY  # of `unlabels`, those to remove only if their value is equal

    @property
    def action(self) -> str:
        """One word for it, as the audit shows it."""
        words = self.taints or self.untaints
        if (self.draining is not None) + bool(self.labels or self.unlabels) + bool(words) > 1:
            return "change"
        if self.draining is not None:
            return "drain" if self.draining else "uncordon"
        if self.labels or self.unlabels:
            return "label"
        return "taint" if self.taints else "untaint"

    def check(self) -> None:
        """Refuse what cannot be done on any node."""
        if not (self.taints or self.untaints or self.labels or self.unlabels or self.draining is not None):
            raise Invalid("the change is empty; name a taint or a label, for example {'gpu_node': 'true'}")
        if self.for_s is not None and not 0 < self.for_s <= SECONDS_MAX:
            raise Invalid(f"the duration of a taint must be above 0, for example 2h, not {self.for_s:g} seconds")
        for name, text in (("owner", self.owner), ("until_job", self.until_job)):
            if text:
                check_name(name, text, OWNER_MAX, "ml-team")
        if self.evict and not self.draining:
            raise Invalid("evict needs drain; drain the node too")
        if self.rate and (not self.evict or not 0 < self.rate <= RATE_MAX):
            raise Invalid(f"a rate of {self.rate:g} is for evictions, for example 10 per second; drain with evict too")
        seen, gone = set(), {removal.key for removal in self.untaints}
        for taint in self.taints:
            if (taint.key, taint.effect) in seen:
                raise Invalid(f"taint {taint.key!r} is given twice; give it once, for example '{taint_text(taint)}'")
            seen.add((taint.key, taint.effect))
            if taint.key in gone and any(removal.matches(taint) for removal in self.untaints):
                raise self._contradiction(f"taint {taint}", taint.key)
        for key in sorted(self.labels.keys() & set(self.unlabels)):
            raise self._contradiction(f"label {key!r}", key)
        for key in sorted(self.unlabel_values.keys() - set(self.unlabels)):
            raise Invalid(f"unlabel_values has label {key!r}, which is not removed; add {key!r} to unlabels")

    def _contradiction(self, what: str, key: str) -> Invalid:
        whose = f" of node {short_id(self.node)}" if self.node else ""
        return Invalid(f"{what}{whose} is set and removed in one change; keep one of the two, for example '{key}-'")

    def check_on(self, node: Node) -> None:
        """Refuse what cannot be done on this node in its current state."""
        self.check()
        title = node.title
        for removal in self.untaints if not self.missing_ok else ():
            if not any(removal.matches(taint) for taint in node.taints):
                has = ", ".join(map(str, node.taints)) or "no taints"
                raise Absent(f"node {title} has no taint {removal}; it has {has}")
        for key in self.unlabels if not self.missing_ok else ():
            if key not in node.labels or not self._unlabels(key, node):
                has = ",".join(f"{name}={value}" for name, value in sorted(node.labels.items())) or "no labels"
                wanted = f"{key}={self.unlabel_values[key]}" if key in self.unlabel_values else key
                raise Absent(f"node {title} has no label {wanted}; it has {has}")
        if self.overwrite:
            return
        for taint in self.taints:
            for there in node.taints:
                if (there.key, there.effect) == (taint.key, taint.effect) and there.value != taint.value:
                    raise Conflict(f"node {title} is tainted {there}; to change it to {taint}, give --overwrite")
        for key, value in self.labels.items():
            if node.labels.get(key, value) != value:
                there_too = f"{key}={node.labels[key]}"
                raise Conflict(f"node {title} is labelled {there_too}; to change it to {key}={value}, give --overwrite")

    def facts(self, node: Node, now: float) -> list[Fact]:
        """The facts that carry out this change on the node, at this moment of the engine's clock."""
        found: list[Fact] = []
        if self.labels or self.unlabels:
            gone = tuple(key for key in self.unlabels if self._unlabels(key, node))
            found.append(NodeLabelled(node.id, self.labels, gone))
        found += [NodeUntainted(node.id, taint.key, taint.effect) for taint in self.untainted(node)]
        until = None if self.for_s is None else now + self.for_s
        found += [NodeTainted(node.id, taint, until, self.until_job, self.owner) for taint in self.taints]
        drained = Taint(DRAINED, "", Effect.NO_EXECUTE)
        if self.draining is not None:
            found.append(NodeDrained(node.id, self.draining))
            if self.draining and self.evict:
                found.append(NodeTainted(node.id, drained))
            elif not self.draining and drained in node.taints:
                found.append(NodeUntainted(node.id, DRAINED, Effect.NO_EXECUTE))
        return found

    def _unlabels(self, key: str, node: Node) -> bool:
        value = self.unlabel_values.get(key)
        return value is None or node.labels.get(key) == value

    def untainted(self, node: Node) -> list[Taint]:
        """The taints of the node that this change removes."""
        return [taint for taint in node.taints if any(removal.matches(taint) for removal in self.untaints)]


def change_json(change: NodeChange) -> dict[str, Any]:
    """A change as ``PATCH /nodes/{id}`` takes it, without fields that have their default value."""
    found = {
        "taints": [{"key": each.key, "value": each.value, "effect": each.effect.value} for each in change.taints],
        "untaints": [
            {"key": each.key, "value": each.value, "effect": None if each.effect is None else each.effect.value}
            for each in change.untaints
        ],
        "labels": dict(change.labels),
        "unlabels": list(change.unlabels),
        "unlabel_values": dict(change.unlabel_values),
        "draining": change.draining,
        "evict": change.evict,
        "rate": change.rate,
        "for": change.for_s,
        "owner": change.owner,
        "until_job": change.until_job,
        "missing_ok": change.missing_ok,
    }
    explicit = {"draining", "for"}  # False and 0 are not the defaults of these
    found = {name: value for name, value in found.items() if value or (name in explicit and value is not None)}
    return found if change.overwrite else {**found, "overwrite": False}


def state_of(node: Node, ends: Iterable[TaintEnd] = ()) -> dict[str, Any]:
    """The part of a node that a change can change, as the audit stores it."""
    known = {(end.key, end.effect): end for end in ends if end.node == node.id}
    taints = {}
    for taint in node.taints:
        end = known.get((taint.key, taint.effect.value))
        state = {"value": taint.value}
        if end is not None:
            state |= {name: getattr(end, name) for name in ("until", "job", "owner") if getattr(end, name)}
        taints[f"{taint.key}:{taint.effect.value}"] = state
    return {"labels": dict(node.labels), "taints": taints, "draining": node.draining}


def inverse(entry: Entry, nodes: Mapping[str, Node], now: float) -> list[NodeChange]:
    """The changes that undo an entry of the audit. Refused when a node is gone, or when what the entry changed was
    changed again since."""
    found: list[NodeChange] = []
    for id, (before, after) in entry.states.items():
        if id not in nodes:
            raise Conflict(f"entry {entry.number} cannot be undone: node {short_id(id)} is gone")
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
                    f"entry {entry.number} cannot be undone: {key} of node {node.title} was changed since; "
                    f"set it yourself, for example with `stead {what[:-1]}`"
                )
    found: list[NodeChange] = []
    lost = set()
    if before["draining"] != after["draining"] and node.draining == after["draining"]:
        found.append(NodeChange(node.id, draining=before["draining"]))
        if not before["draining"]:  # uncordoning also removes the taint of a drain, even if it was set before
            lost.add(f"{DRAINED}:{Effect.NO_EXECUTE.value}")
    gone = [key for key in after["taints"] if key not in before["taints"]]
    if gone:
        found.append(NodeChange(node.id, untaints=tuple(_removal(key) for key in gone)))
    for key, old in before["taints"].items():
        if after["taints"].get(key) != old or key in lost:
            name, _, effect = key.rpartition(":")
            left = None if old.get("until") is None else max(1.0, old["until"] - now)
            taint = Taint(name, old["value"], Effect(effect))
            end = {"for_s": left, "until_job": old.get("job", ""), "owner": old.get("owner", "")}
            found.append(NodeChange(node.id, (taint,), **end))
    labels = {key: value for key, value in before["labels"].items() if after["labels"].get(key) != value}
    unlabels = tuple(key for key in after["labels"] if key not in before["labels"])
    if labels or unlabels:
        found.append(NodeChange(node.id, labels=Labels(labels), unlabels=unlabels))
    return found


def _plain(value: Any) -> Any:
    """Only the value of a taint: another owner or end does not make it another taint."""
    return value["value"] if isinstance(value, Mapping) else value


def _removal(key: str) -> Removal:
    name, _, effect = key.rpartition(":")
    return Removal(name, None, Effect(effect))
