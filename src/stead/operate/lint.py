"""Lint: finds what work asks for but nothing in the cluster has, and suggests the most similar name.

Rule: a finding is about a name (a label key, a value, a resource) or about an amount that no node has, never about what
is in use now: work that only has to wait has no finding. The engine's own selectors match nodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from stead.errors import did_you_mean
from stead.language.asks import ASK_ID, Affinity, Ask, Group
from stead.language.labels import IDENTITY_KEYS, NODE_ID_KEYS, Operator, Requirement
from stead.language.resources import amount_text
from stead.operate.rows import Shapes
from stead.text import first_few

if TYPE_CHECKING:
    from stead.operate.snapshot import Snapshot

VALUES_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Finding:
    """A requirement that nothing matches today. `code` is stable."""

    ids: tuple[str, ...]  # the work that has this requirement
    code: str  # unknown-label, unknown-value, unknown-resource, too-large, unknown-work
    text: str
    hint: str = field(default="", compare=False)  # a sentence, if a similar name exists


Found = tuple[str, str, str]
"""Code, text and hint of a finding."""


def finding_json(found: Finding) -> dict[str, Any]:
    return {"ids": list(found.ids), "code": found.code, "text": found.text}


def hints(snapshot: Snapshot, item: Ask | Group) -> tuple[str, ...]:
    """The hints for one ask or group: its findings for which a similar name exists."""
    return tuple(found.hint for found in lint(snapshot, (item,)) if found.hint)


def lint(snapshot: Snapshot, items: Iterable[Ask | Group]) -> list[Finding]:
    """Findings about these asks and groups; each once, with all the work that it concerns."""
    found: dict[Found, dict[str, None]] = {}
    shapes, by_shape = Shapes(), dict[int, list[Found]]()
    for item in items:
        members = item.all_members if isinstance(item, Group) else (item,)
        for ask in members:
            shape = shapes.of(ask)
            if shape not in by_shape:
                by_shape[shape] = list(_of(ask, snapshot))
            for each in by_shape[shape]:
                found.setdefault(each, {})[item.id] = None
    return [Finding(tuple(ids), *each) for each, ids in found.items()]


def _of(ask: Ask, snapshot: Snapshot) -> Iterator[Found]:
    for choice in ask.choices:
        for term in choice.selector.terms:
            for requirement in term:
                yield from _label(requirement, snapshot.labels, "node")
    yield from _amounts(ask, snapshot)
    preferred = [each.want for each in ask.prefers]
    affinities = [affinity for term in ask.affinities for affinity in term]
    for affinity in [*affinities, *(want for want in preferred if isinstance(want, Affinity))]:
        if not affinity.near:
            continue  # work to stay apart from may be missing
        for requirement in (each for term in affinity.selector.terms for each in term):
            if requirement.key != ASK_ID and not _is_own(requirement, ask):
                yield from _label(requirement, snapshot.work_labels, "work")


def _is_own(requirement: Requirement, ask: Ask) -> bool:
    """Whether the ask has the label key itself: work near its own kind needs no other work for its first piece."""
    return requirement.key in ask.labels


def _label(requirement: Requirement, labels: Mapping[str, Mapping[str, object]], what: str) -> Iterator[Found]:
    key = requirement.key
    who = "no node has" if what == "node" else "no work has"
    wants_it = requirement.operator in (Operator.IN, Operator.EXISTS)
    if key not in labels and (wants_it or not requirement.absent):
        known = [each for each in labels if each not in IDENTITY_KEYS]
        code = "unknown-label" if what == "node" else "unknown-work"
        yield _found(code, requirement, f"{who} the label {key}", did_you_mean(key, known))
        return
    if requirement.operator is not Operator.IN or key not in labels:
        return
    for value in sorted(requirement.values - labels[key].keys()):
        there = sorted(labels[key])
        hint = "" if key in NODE_ID_KEYS else did_you_mean(value, there)
        others = "" if hint else f"; there are {first_few(there, VALUES_SHOWN)}"
        code = "unknown-value" if what == "node" else "unknown-work"
        yield _found(code, requirement, f"{who} {key}={value}{others}", hint)


def _found(code: str, about: object, text: str, hint: str) -> Found:
    sentence = f"{text[0].upper()}{text[1:]}{hint}" if hint else ""
    return code, f"{about}: {text}{hint}", sentence


def _amounts(ask: Ask, snapshot: Snapshot) -> Iterator[Found]:
    most = snapshot.greatest
    for choice in ask.choices:
        for name, units in choice.resources.items():
            if not most.get(name):
                hint = did_you_mean(name, most)
                yield _found("unknown-resource", amount_text(name, units), f"no node has {name}", hint)
            elif units > most[name]:
                text = f"{amount_text(name, units)}: the largest node has {amount_text(name, most[name])}"
                yield "too-large", text, ""
