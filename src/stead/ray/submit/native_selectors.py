"""Stead's rules as Ray's label selectors: what Ray can express, and how work is bound on a Ray without grants.

Rule: pure, and no selector can fail work for good. Ray fails an actor or a task for good when its first selector names
nodes by ``ray.io/node-id`` and all of them are dead. So the first selector excludes nodes, which a new node satisfies,
and only later ones name nodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set

from stead.errors import Invalid
from stead.language.labels import ANYWHERE, IDENTITY_KEYS, RAY_NODE_ID, Operator, Requirement, Selector, check_value

NOWHERE = {"stead/no-node": "has-this-label"}
"""A selector that no node matches."""


Conditions = Mapping[str, Requirement]
"""Requirements that Ray's label selectors can express, one for each key; all must hold."""


def as_ray_selector(selector: Selector) -> dict[str, str] | None:
    """The selector in Ray's syntax, or None if Ray cannot express it."""
    found = conditions(selector.terms[0]) if len(selector.terms) == 1 else None
    return None if found is None else {key: words(not each.complement, each.values) for key, each in found.items()}


def conditions(term: Iterable[Requirement]) -> Conditions | None:
    """The requirements as conditions, or None if Ray cannot express them or no label satisfies all of them."""
    result: dict[str, Requirement] = {}
    for requirement in term:
        if not is_expressible(requirement):
            return None
        merged = _merged(result.get(requirement.key), requirement)
        if merged is None:
            return None
        result[requirement.key] = merged
    return result


def is_expressible(requirement: Requirement) -> bool:
    """Ray has ``in`` and ``not in``; ``not in`` also matches nodes without the key. It has no ``exists`` and no
    numbers."""
    return (
        requirement.key not in IDENTITY_KEYS
        and requirement.operator in (Operator.IN, Operator.NOT_IN)
        and bool(requirement.values)
        and all(map(_is_expressible_value, requirement.values))
    )


def _is_expressible_value(value: str) -> bool:
    """Whether Ray reads the value unchanged. How Ray reads an empty value is not documented."""
    try:
        return bool(check_value(value))
    except Invalid:
        return False


def _merged(one: Requirement | None, other: Requirement) -> Requirement | None:
    """Both requirements on one key as one, or None if no label satisfies both."""
    if one is None:
        return other
    if one.complement and other.complement:
        return Requirement.not_in(one.key, *(one.values | other.values))
    listed, second = (other, one) if one.complement else (one, other)
    values = [value for value in listed.values if second.accepts(value)]
    return Requirement.is_in(one.key, *values) if values else None


def words(among: bool, values: Iterable[str]) -> str:
    return f"{'' if among else '!'}in({','.join(sorted(values))})"


def binding(rule: Selector, allowed: Set[str], nodes: Iterable[str]) -> list[dict[str, str]]:
    """Label selectors, first to last, that keep work on the `allowed` nodes, or let it wait for a new node that the
    rule matches. Ray does not know labels that were set at run time, so the selectors name those nodes."""
    barred = set(nodes) - allowed
    but = {RAY_NODE_ID: words(False, barred)} if barred else {}
    if rule == ANYWHERE:
        return [but]
    native = as_ray_selector(rule)
    first = NOWHERE if native is None else {**native, **but}
    return [first, {RAY_NODE_ID: words(True, allowed)}] if allowed else [first]
