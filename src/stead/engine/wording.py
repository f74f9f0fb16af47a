"""Explanations in words, for people.

Rule: this is the rim. Nothing reads these sentences back: programs use the typed reasons and their
codes. Golden files in the tests hold every sentence still.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING, assert_never

from stead.asks import ASK_ID, Affinity, Spread
from stead.engine.changes import AddCapacity, AddLabel, Change, Drop, Edit, FreeUp, Tolerate, Uncordon, Widen
from stead.engine.decisions import BatchDecided, Refusal
from stead.engine.reasons import (
    Draining,
    KeptAway,
    LacksLabel,
    NeverFits,
    NoAlternativeHolds,
    NoTermMatches,
    NotNear,
    Reserved,
    ShortOf,
    Skewed,
    Tainted,
    TargetDead,
    TooNear,
)
from stead.engine.targets import ids_named
from stead.labelling import NODE_ID, Operator, Requirement, Selector
from stead.resources import amount_text

if TYPE_CHECKING:
    from stead.engine.explain import Explanation, Score, Verdict


REASONS_MAX = 12
"""A sentence names so many reasons: those with the most nodes."""


def explanation(found: Explanation) -> str:
    if found.chosen is not None:
        return _placed(found)
    if found.members or found.together is not None:
        return _group(found)
    lines = [verdict(each) for each in found.verdicts]
    if len(lines) > 1:
        lines = [f"Choice {index}: {line}" for index, line in enumerate(lines, start=1)]
    if found.change is not None:
        which = f" for choice {found.change.choice + 1}" if len(lines) > 1 else ""
        lines[-1] += " " + change(found.change, which)
    return "\n".join(lines)


def batch(found: BatchDecided) -> str:
    """``placed 98 of 100 together, at cost 1,010,000 (the least there is)``"""
    if found.bound is None:
        proof = ""
    elif found.cost == found.bound:
        proof = " (the least there is)"
    else:
        proof = f" (at most {100 * (found.cost - found.bound) / max(found.bound, 1):.1f} % above the least)"
    repaired = f", {found.repaired} corrected" if found.repaired else ""
    return f"placed {found.placed} of {found.asks} together, at cost {found.cost:,}{proof}{repaired}"


def verdict(found: Verdict) -> str:
    """``0 of 6 nodes fit: 3 lack gpu_type in {A100}; 2 tainted gpu_node=true; 1 short of 2 CPU.``"""
    if not found.nodes:
        return "There are no nodes."
    verb = "fits" if found.candidates == 1 or found.nodes == 1 else "fit"
    head = f"{found.candidates} of {_nodes(found.nodes)} {verb}"
    said = reasons(found.refusals)
    return f"{head}: {said}." if said else f"{head}."


def reasons(refusals: Sequence[Refusal]) -> str:
    """``3 lack gpu_type in {A100}; 2 tainted gpu_node=true``: the reasons with the most nodes, and how many others."""
    shown, others, nodes = leading([each for each in refusals if each.nodes], REASONS_MAX)
    return "; ".join(
        [*map(refusal, shown), *([f"{nodes} for {others} other reason{'s' * (others > 1)}"] if others else [])]
    )


def leading(refusals: Sequence[Refusal], most: int) -> tuple[Sequence[Refusal], int, int]:
    """The refusals with the most nodes, in their order; how many others there are, and their nodes."""
    if len(refusals) <= most:
        return refusals, 0, 0
    chosen = sorted(sorted(range(len(refusals)), key=lambda place: -refusals[place].nodes)[:most])
    shown = [refusals[place] for place in chosen]
    nodes = sum(each.nodes for each in refusals) - sum(each.nodes for each in shown)
    return shown, len(refusals) - most, nodes


def refusal(found: Refusal) -> str:
    """``3 lack gpu_type in {A100}``: the count, then what is wrong with these nodes."""
    one = found.nodes == 1
    match found.reason:
        case Draining():
            text = "draining"
        case LacksLabel(requirement):
            text = _lacks(requirement, one)
        case NoTermMatches(selector):
            matches = "matches" if one else "match"
            text = f"{matches} none of: {selector}" if selector.terms else f"{matches} no term, as there is none"
        case NotNear(affinity):
            text = f"not {near(affinity)}"
        case TargetDead(affinity):
            text = f"not near {_work(affinity)}, which {'are' if _names_several(affinity) else 'is'} dead"
        case TooNear(affinity):
            text = f"too {near(affinity)}"
        case NoAlternativeHolds(affinities):
            text = f"{'meets' if one else 'meet'} none of {len(affinities)} affinity alternatives"
        case KeptAway(affinity):
            text = f"kept free by work that stays apart from {_work(affinity)}"
        case Skewed(spread):
            text = f"would skew {spread.topology} by more than {spread.max_skew}"
        case Tainted(taint):
            text = f"tainted {taint}"
        case NeverFits(resource, need):
            text = f"too small for {amount_text(resource, need)}"
        case ShortOf(resource, need):
            text = f"short of {amount_text(resource, need)}"
        case Reserved():
            text = f"reserved for {found.reason.owner}"
        case _:
            assert_never(found.reason)
    return f"{found.nodes} {text}"


def change(found: Change, which: str = "") -> str:
    """``Tolerating gpu_node=true would be enough (2 nodes).``"""
    edits = [edit(each) for each in found.edits]
    text = edits[0] if len(edits) == 1 else ", ".join(edits[:-1]) + " and " + edits[-1]
    return f"{text[0].upper()}{text[1:]} would be enough{which} ({_nodes(found.nodes)})."


def edit(found: Edit) -> str:
    match found:
        case Tolerate(taint):
            return f"tolerating {taint}"
        case Widen(requirement, value):
            return f"allowing {requirement.key}={value}"
        case Drop(what):
            return f"dropping {_wish(what)}"
        case FreeUp(node, resource, amount):
            return f"freeing {amount_text(resource, amount)} on {node}"
        case AddCapacity(node, resource, amount):
            return f"adding {amount_text(resource, amount)} to {node}"
        case AddLabel(node, key, value):
            return f"labelling {node} with {key}={value}"
        case Uncordon(node):
            return f"uncordoning {node}"


def near(affinity: Affinity) -> str:
    """``near a-1`` or ``near work with app in {web} (same zone)``."""
    keys = [key for key in affinity.topologies if key != NODE_ID]
    return f"near {_work(affinity)}" + (f" (same {' and '.join(keys)})" if keys else "")


def relation(affinity: Affinity) -> str:
    """The same, or ``apart from a-1``."""
    return near(affinity) if affinity.near else f"apart from {near(affinity).removeprefix('near ')}"


def _work(affinity: Affinity) -> str:
    terms = affinity.selector.terms
    if len(terms) == 1 and len(terms[0]) == 1 and terms[0][0].key == ASK_ID:
        ids = sorted(terms[0][0].values)
        if terms[0][0].operator is Operator.IN and ids:
            return " or ".join(ids)
    return "any work" if () in terms else f"work with {affinity.selector}"


def _names_several(affinity: Affinity) -> bool:
    return len(ids_named(affinity.selector) or ()) > 1


def _wish(what: Requirement | Selector | Affinity | Spread | tuple[tuple[Affinity, ...], ...]) -> str:
    if isinstance(what, Selector):
        return f"the selector {what}"
    if isinstance(what, Affinity):
        return f"'{relation(what)}'"
    if isinstance(what, Spread):
        return f"the spread over {what.topology}"
    if isinstance(what, tuple):
        return "the affinities"
    return str(what)


def _lacks(requirement: Requirement, one: bool) -> str:
    """A negated requirement reads better as what the node has and should not."""
    match requirement.operator:
        case Operator.NOT_IN:
            values = ", ".join(sorted(requirement.values))
            return f"{'has' if one else 'have'} {requirement.key} in {{{values}}}"
        case Operator.DOES_NOT_EXIST:
            return f"{'has' if one else 'have'} {requirement.key}"
    return f"{'lacks' if one else 'lack'} {requirement}"


def _placed(found: Explanation) -> str:
    assert found.chosen is not None
    text = f"Placed on {found.chosen.node} by {found.policy} ({_score(found.chosen)})"
    others = "; ".join(f"{score.node} ({_score(score)})" for score in found.runners_up)
    return f"{text}. Runners-up: {others}." if others else f"{text}. No other node fits."


def _score(score: Score) -> str:
    percent = f"{score.load / 100:.4g} % full"
    return f"preference {score.preference}, {percent}" if score.preference else percent


def _group(found: Explanation) -> str:
    if not found.members:
        return "All members are placed."
    lines = []
    by_text = [(str(member), member.id) for member in found.members]
    for text, members in groupby(by_text, key=lambda pair: pair[0]):
        ids = [id for _, id in members]
        name = ids[0] if len(ids) == 1 else f"{ids[0]} to {ids[-1]}"
        lines.append(f"{name}: {text}")
    if all(member.fits for member in found.members):
        if found.together:
            lines.append("All members fit together.")
        else:
            lines.append(f"Each member fits alone, but no place was found for all together ({found.policy}).")
    return "\n".join(lines)


def _nodes(count: int) -> str:
    return f"{count} node{'' if count == 1 else 's'}"
