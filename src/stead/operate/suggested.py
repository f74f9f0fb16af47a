"""The smallest change that would place pending work, as facts that a fork can try.

Rule: the engine's own suggestion (`explain`), applied to a fork: work that should request less is submitted again under
its own id, and what should become free on a node is added to the capacity of the node.
"""

from __future__ import annotations

from dataclasses import replace

from stead.engine.explain.smallest_change import AddCapacity, AddLabel, Change, FreeUp, Uncordon, loosened
from stead.engine.facts import (
    AskEnded,
    AskSubmitted,
    Fact,
    GroupEnded,
    GroupSubmitted,
    NodeResized,
)
from stead.errors import Invalid
from stead.language.asks import Ask, Group
from stead.language.labels import Labels
from stead.language.resources import Resources
from stead.operate.changes import NodeChange
from stead.operate.snapshot import Snapshot


def suggested(id: str, snapshot: Snapshot) -> list[Fact]:
    """The facts of the smallest change for a pending ask, or for the members of a group."""
    engine, id = snapshot.engine, snapshot.existing(id)
    item, found = engine.item(id), engine.explain(id)
    explained = {found.id: found, **{member.id: member for member in found.members}}
    changes = {ask: each.change for ask, each in explained.items() if each.change is not None}
    if not changes:
        state = "is already placed" if found.chosen is not None else "is pending, but no small change would help it"
        raise Invalid(f"there is nothing to suggest for {id!r}: it {state}")
    facts: list[Fact] = []
    for change in changes.values():
        facts += [fact for fact in _on_nodes(change, snapshot) if fact not in facts]
    if isinstance(item, Group):
        members = tuple(_asking_less(member, changes.get(member.id)) for member in item.alternatives[0])
        if members != item.alternatives[0]:
            alternatives = (members, *item.alternatives[1:])
            facts += [GroupEnded(id), GroupSubmitted(replace(item, alternatives=alternatives))]
    else:
        less = _asking_less(item, changes[id])
        if less != item:
            facts += [AskEnded(id), AskSubmitted(less)]
    return facts


def _on_nodes(change: Change, snapshot: Snapshot) -> list[Fact]:
    facts: list[Fact] = []
    more: dict[str, dict[str, int]] = {}
    for edit in change.edits:
        match edit:
            case FreeUp(node, resource, amount) | AddCapacity(node, resource, amount):
                added = more.setdefault(node, {})
                added[resource] = added.get(resource, 0) + amount
            case AddLabel(node, key, value):
                facts += _facts(NodeChange(node, labels=Labels({key: value})), snapshot)
            case Uncordon(node):
                facts += _facts(NodeChange(node, draining=False), snapshot)
    for node, added in more.items():
        facts.append(NodeResized(node, snapshot.engine.nodes[node].capacity + Resources(added)))
    return facts


def _facts(change: NodeChange, snapshot: Snapshot) -> list[Fact]:
    return change.facts(snapshot.by_id[change.node], snapshot.engine.now)


def _asking_less(ask: Ask, change: Change | None) -> Ask:
    for edit in change.edits if change is not None else ():
        ask = loosened(ask, edit)
    return ask
