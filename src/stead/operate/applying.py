"""The changes of nodes in a what-if: one `NodeChange` for each node that it changes.

Rule: a what-if is tried and applied as the same changes. Only labels, taints and draining of existing nodes can be
applied. A what-if with anything else (new nodes, new work, removed nodes) is refused as a whole, and the error names
that part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from stead.errors import Invalid
from stead.language.labels import Labels
from stead.language.taints import Effect, Taint
from stead.operate.changes import NodeChange, Removal
from stead.specs import documents
from stead.specs.documents import labels_changed, taint_removed, taints_set
from stead.specs.sections import Section, at
from stead.specs.values import flag, some_text
from stead.text import short_id

FIELDS = ("changes", "work", "groups")
SUGGESTED = "suggested"  # the smallest change for a pending piece of work
VERBS = {**documents.VERBS, "drain": ("evict",)}
"""The events of a scenario; in a what-if, a drain may also evict."""

EVENT = (*documents.EVENT, "evict", SUGGESTED)
CHANGED = ("drain", "undrain", "taint", "untaint", "label")
"""The node events of a what-if that can be applied."""

GOOD = ", ".join(CHANGED)

NodeEvent = tuple[str, str, Section]
"""The id of a node, a verb of `CHANGED`, and the section of the event."""


def changes_in(document: Any, find: Callable[[str], str]) -> list[NodeChange]:
    """The changes in a what-if document, one for each node. `find` returns the id of the node that a name refers to."""
    file = Section(document, "", FIELDS)
    for name in ("work", "groups"):
        if file.fields.get(name):
            raise Invalid(f"{name} of a what-if cannot be applied: submit it yourself; you can apply {GOOD}")
    events: list[NodeEvent] = []
    for section in file.sections("changes", EVENT):
        verb = _verb(section)
        section = Section(section.fields, section.path, (verb, *VERBS[verb]))
        for item, path in section.each(verb):
            with at(path):
                events.append((find(some_text(item)), verb, section))
    if not events:
        raise Invalid(f"the what-if has no change to apply; you can apply {GOOD}")
    return list(node_changes(events))


def _verb(section: Section) -> str:
    verbs = [verb for verb in (*VERBS, SUGGESTED) if verb in section]
    if len(verbs) == 1 and verbs[0] in CHANGED:
        return verbs[0]
    found = {"join": "a new node", "leave": "a removed node"}.get(" ".join(verbs), " and ".join(verbs) or "nothing")
    raise Invalid(f"{section.path}: {found} cannot be applied; you can apply {GOOD}")


def node_changes(events: Iterable[NodeEvent]) -> Iterator[NodeChange]:
    """The events of each node as one change, checked. Of two values for one taint or label, the last one wins."""
    by_node: dict[str, list[tuple[str, Section]]] = {}
    for node, verb, section in events:
        by_node.setdefault(node, []).append((verb, section))
    for node, found in by_node.items():
        change = _together(node, found)
        change.check()
        yield change


def _together(node: str, events: Sequence[tuple[str, Section]]) -> NodeChange:
    taints: dict[tuple[str, Effect], Taint] = {}
    untaints: dict[Removal, None] = {}
    labels: dict[str, str] = {}
    unlabels: dict[str, None] = {}
    draining, evict = None, False
    for verb, section in events:
        match verb:
            case "taint":
                taints.update({(taint.key, taint.effect): taint for taint in taints_set(section)})
            case "untaint":
                key, effect = taint_removed(section)
                untaints[Removal(key, None, effect)] = None
            case "label":
                wanted, gone = labels_changed(section)
                labels.update(wanted)
                unlabels.update(dict.fromkeys(gone))
            case _:
                if draining not in (None, verb == "drain"):
                    raise Invalid(
                        f"node {short_id(node)} is drained and uncordoned in the same what-if; keep one of the two"
                    )
                draining, evict = verb == "drain", evict or section.read("evict", flag, False)
    return NodeChange(node, tuple(taints.values()), tuple(untaints), Labels(labels), tuple(unlabels), draining, evict)
