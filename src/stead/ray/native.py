"""Stead's rules in Ray's own label selectors: what Ray can say, and how work is bound where Ray has no grants.

Rule: pure, and never the cause of a death. Ray ends an actor for good, and fails a task, when every node is dead that
its first selector names by ``ray.io/node-id``; so the first selector says which nodes are barred, which a new node
satisfies, and only a later one may name nodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Set

from stead.labelling import ANYWHERE, IDENTITY_KEYS, Requirement, Selector

NODE_ID = "ray.io/node-id"
NOWHERE = {"stead/no-node": "has-this-label"}
"""A selector that no node matches."""


def in_rays_words(selector: Selector) -> dict[str, str] | None:
    """A selector as Ray's: one condition for each key, all of which hold. None where Ray cannot say it."""
    if len(selector.terms) != 1:
        return None
    said = {each.key: _condition(each) for each in selector.terms[0]}
    if len(said) < len(selector.terms[0]) or not all(said.values()):
        return None
    return {key: text for key, text in said.items() if text}


def _condition(rule: Requirement) -> str | None:
    """Ray's negation holds on nodes without the key, and it has no word for a key that is merely there."""
    if rule.key in IDENTITY_KEYS or rule.greater is not None or rule.less is not None:
        return None
    if rule.complement != rule.absent or not rule.values or "" in rule.values:
        return None
    return words(not rule.complement, rule.values)


def words(among: bool, values: Iterable[str]) -> str:
    return f"{'' if among else '!'}in({','.join(sorted(values))})"


def binding(rule: Selector, allowed: Set[str], nodes: Iterable[str]) -> list[dict[str, str]]:
    """Label selectors, the first one first, that keep work on the `allowed` of these nodes and let it wait for a new
    one that the rule matches. Labels that were set at run time Ray does not know: they are said by naming nodes."""
    barred = set(nodes) - allowed
    but = {NODE_ID: words(False, barred)} if barred else {}
    if rule == ANYWHERE:
        return [but]
    native = in_rays_words(rule)
    first = NOWHERE if native is None else {**native, **but}
    return [first, {NODE_ID: words(True, allowed)}] if allowed else [first]
