"""Turns a what-if into changes that can be applied: one `NodeChange` for each node that it changes.

Rule: only labels, taints and draining of existing nodes can be applied. A what-if with anything else (new nodes, new
work, removed nodes) is refused as a whole, and the error names that part.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from stead.engine.facts import Fact, NodeDrained, NodeLabelled, NodeTainted, NodeUntainted
from stead.errors import Invalid
from stead.language.labels import Labels
from stead.language.taints import Effect
from stead.operate.changes import DRAINED, NodeChange, Removal
from stead.operate.what_if import FIELDS, SUGGESTED
from stead.specs.documents import EVENT, VERBS, node_facts, some_text
from stead.specs.sections import Section, at
from stead.text import short_id

CHANGED = ("drain", "undrain", "taint", "untaint", "label")
"""The node events of a what-if that can be applied."""

GOOD = ", ".join(CHANGED)


def changes_in(document: Any, find: Callable[[str], str]) -> list[NodeChange]:
    """The changes in a what-if document, one for each node. `find` returns the id of the node that a name refers to."""
    file = Section(document, "", FIELDS)
    for name in ("work", "groups"):
        if file.fields.get(name):
            raise Invalid(f"{name} of a what-if cannot be applied: submit it yourself; you can apply {GOOD}")
    facts: dict[str, list[Fact]] = {}
    for section in file.sections("changes", (*EVENT, SUGGESTED)):
        verb = _verb(section)
        section = Section(section.fields, section.path, (verb, *VERBS[verb]))
        for item, path in section.each(verb):
            with at(path):
                node = find(some_text(item))
            with at(section.path):
                for fact in node_facts(verb, node, section):
                    facts.setdefault(node, []).append(fact)
    if not facts:
        raise Invalid(f"the what-if has no change to apply; you can apply {GOOD}")
    return [_change(node, found) for node, found in facts.items()]


def _verb(section: Section) -> str:
    verbs = [verb for verb in (*VERBS, SUGGESTED) if verb in section]
    if len(verbs) == 1 and verbs[0] in CHANGED:
        return verbs[0]
    found = {"join": "a new node", "leave": "a removed node"}.get(" ".join(verbs), " and ".join(verbs) or "nothing")
    raise Invalid(f"{section.path}: {found} cannot be applied; you can apply {GOOD}")


def _change(node: str, facts: Sequence[Fact]) -> NodeChange:
    found = NodeChange(node)
    for fact in facts:
        found = _with(found, fact)
    if found.evict and not found.draining:
        raise Invalid(f"node {short_id(node)} would evict its work without being drained; add drain")
    return found


def _with(change: NodeChange, fact: Fact) -> NodeChange:
    """The change with one more fact; two facts that contradict each other are refused."""
    match fact:
        case NodeDrained(node, draining):
            if change.draining not in (None, draining):
                raise Invalid(
                    f"node {short_id(node)} is drained and uncordoned in the same what-if; keep one of the two"
                )
            return replace(change, draining=draining)
        case NodeTainted(_, taint) if (taint.key, taint.effect) == (DRAINED, Effect.NO_EXECUTE):
            return replace(change, evict=True)
        case NodeTainted(node, taint):
            others = tuple(each for each in change.taints if (each.key, each.effect) != (taint.key, taint.effect))
            if any(removal.matches(taint) for removal in change.untaints):
                raise _contradiction(f"taint {taint}", node)
            return replace(change, taints=(*others, taint))
        case NodeUntainted(node, key, effect):
            removal = Removal(key, None, effect)
            if any(removal.matches(taint) for taint in change.taints):
                raise _contradiction(f"taint {removal}", node)
            return replace(change, untaints=tuple(dict.fromkeys((*change.untaints, removal))))
        case NodeLabelled(node, labels, removed):
            return _labelled(change, node, labels, removed)
    raise Invalid(f"{type(fact).__name__} cannot be applied; you can apply {GOOD}")


def _labelled(change: NodeChange, node: str, labels: Mapping[str, str], removed: Sequence[str]) -> NodeChange:
    wanted = {**change.labels, **labels}
    gone = tuple(dict.fromkeys((*change.unlabels, *removed)))
    for key in wanted.keys() & set(gone):
        raise _contradiction(f"label {key}", node)
    return replace(change, labels=Labels(wanted), unlabels=gone)


def _contradiction(what: str, node: str) -> Invalid:
    return Invalid(f"{what} of node {short_id(node)} is set and removed in the same what-if; keep one of the two")
