"""Lint: what work asks for that nothing in the cluster has today, with the word that was perhaps meant.

Rule: a finding is about words (a label key, a value, a resource), never about room: what only has to wait is not
found here. Nodes are matched by the engine's own selectors.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from stead.asks import ASK_ID, Affinity, Ask, Group
from stead.errors import did_you_mean
from stead.labelling import IDENTITY_KEYS, Operator, Requirement
from stead.operate.rows import Shapes
from stead.operate.snapshot import Snapshot
from stead.resources import amount_text

VALUES_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that matches nothing today. `code` is stable."""

    ids: tuple[str, ...]  # the work that says so
    code: str  # unknown-label, unknown-value, unknown-resource, too-large, unknown-work
    text: str


def finding_json(found: Finding) -> dict[str, Any]:
    return {"ids": list(found.ids), "code": found.code, "text": found.text}


def lint(snapshot: Snapshot, items: Iterable[Ask | Group]) -> list[Finding]:
    """Findings about these asks and groups, each once with everybody it concerns."""
    found: dict[tuple[str, str], dict[str, None]] = {}
    shapes, told = Shapes(), dict[int, list[tuple[str, str]]]()
    for item in items:
        members = item.all_members if isinstance(item, Group) else (item,)
        for ask in members:
            shape = shapes.of(ask)
            if shape not in told:
                told[shape] = list(_of(ask, snapshot))
            for code, text in told[shape]:
                found.setdefault((code, text), {})[item.id] = None
    return [Finding(tuple(ids), code, text) for (code, text), ids in found.items()]


def _of(ask: Ask, snapshot: Snapshot) -> Iterator[tuple[str, str]]:
    for choice in ask.choices:
        for term in choice.selector.terms:
            for requirement in term:
                yield from _label(requirement, snapshot.labels, "node")
    yield from _amounts(ask, snapshot)
    preferred = [each.want for each in ask.prefers]
    affinities = [affinity for term in ask.affinities for affinity in term]
    for affinity in [*affinities, *(want for want in preferred if isinstance(want, Affinity))]:
        if not affinity.near:
            continue  # nothing to be apart from is no mistake
        for requirement in (each for term in affinity.selector.terms for each in term):
            if requirement.key != ASK_ID and not _is_own(requirement, ask):
                yield from _label(requirement, snapshot.work_labels, "work")


def _is_own(requirement: Requirement, ask: Ask) -> bool:
    """Work near its own kind: the first of them is let in."""
    return requirement.key in ask.labels


def _label(
    requirement: Requirement, labels: Mapping[str, Mapping[str, object]], what: str
) -> Iterator[tuple[str, str]]:
    key = requirement.key
    who = "no node has" if what == "node" else "no work has"
    wants_it = requirement.operator in (Operator.IN, Operator.EXISTS)
    if key not in labels and (wants_it or not requirement.absent):
        known = [each for each in labels if each not in IDENTITY_KEYS]
        code = "unknown-label" if what == "node" else "unknown-work"
        yield code, f"{requirement}: {who} the label {key}{did_you_mean(key, known)}"
        return
    if requirement.operator is not Operator.IN or key not in labels:
        return
    for value in sorted(requirement.values - labels[key].keys()):
        there = sorted(labels[key])
        shown = ", ".join(there[:VALUES_SHOWN]) + (", ..." if len(there) > VALUES_SHOWN else "")
        hint = did_you_mean(value, there) or f"; there are {shown}"
        code = "unknown-value" if what == "node" else "unknown-work"
        yield code, f"{requirement}: {who} {key}={value}{hint}"


def _amounts(ask: Ask, snapshot: Snapshot) -> Iterator[tuple[str, str]]:
    most = snapshot.greatest
    for choice in ask.choices:
        for name, units in choice.resources.items():
            if not most.get(name):
                yield "unknown-resource", f"{amount_text(name, units)}: no node has {name}{did_you_mean(name, most)}"
            elif units > most[name]:
                text = f"{amount_text(name, units)}: the greatest node has {amount_text(name, most[name])}"
                yield "too-large", text
