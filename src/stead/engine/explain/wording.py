"""Explanations in words, for people.

Rule: programs never parse these sentences; they use the typed reasons and their codes. Golden files in the tests pin
every sentence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING, assert_never

from stead.engine.decisions import BatchDecided, Refusal, Verdict
from stead.engine.explain.smallest_change import (
    AddCapacity,
    AddLabel,
    Change,
    Drop,
    Edit,
    FreeUp,
    Tolerate,
    Uncordon,
    Widen,
    Wish,
)
from stead.engine.reasons import (
    ApartFromGroup,
    ClaimBeingBound,
    ClaimElsewhere,
    ClaimInUse,
    ClaimUnusable,
    Draining,
    HasMember,
    KeptAway,
    LacksLabel,
    NeverFits,
    NoAlternativeHolds,
    NoTermMatches,
    NotNear,
    PortTaken,
    Reserved,
    ShortOf,
    Skewed,
    Tainted,
    TargetDead,
    TooManyVolumes,
    TooNear,
)
from stead.engine.targets import ids_named
from stead.language.asks import ASK_ID, Affinity, HostPort, Spread, Strategy
from stead.language.claims import Claim
from stead.language.labels import NODE_ID, NODE_ID_KEYS, Operator, Requirement, Selector
from stead.language.nodes import NodeId
from stead.language.resources import amount_text
from stead.text import first_few, joined, plural, short_id

if TYPE_CHECKING:
    from stead.engine.explain.explanations import Explanation, Quorum, Score


Names = Mapping[NodeId, str]
"""Node names; a node that is missing here is shown by its short id."""

NO_NAMES: Names = {}

ENDING_MAX = 4
"""Up to this many pieces of work that are being stopped are named."""

REASONS_MAX = 12
"""The maximum number of reasons in a sentence: those with the most nodes."""


def explanation(found: Explanation) -> str:
    return "\n".join([_explained(found), *(f"{hint}." for hint in found.hints)])


def _explained(found: Explanation) -> str:
    if found.chosen is not None:
        return _placed(found)
    if found.members or found.together is not None:
        return _group(found)
    lines = [verdict(each, found.names) for each in found.verdicts]
    if len(lines) > 1:
        lines = [f"Choice {index}: {line}" for index, line in enumerate(lines, start=1)]
    if found.nominated:
        lines[-1] += " " + nomination(found.nominated, found.ending, found.names)
    elif found.change is not None:
        which = f" for choice {found.change.choice + 1}" if len(lines) > 1 else ""
        lines[-1] += " " + change(found.change, which, found.names)
    return "\n".join(lines)


def batch(found: BatchDecided) -> str:
    """``placed 98 of 100 together, at cost 1,010,000 (optimal)``"""
    if found.bound is None:
        proof = ""
    elif found.cost == found.bound:
        proof = " (optimal)"
    else:
        proof = f" (at most {100 * (found.cost - found.bound) / max(found.bound, 1):.1f} % above optimal)"
    repaired = f", {found.repaired} placements corrected" if found.repaired else ""
    return f"placed {found.placed} of {found.asks} together, at cost {found.cost:,}{proof}{repaired}"


def verdict(found: Verdict, names: Names = NO_NAMES) -> str:
    """``0 of 6 nodes fit: 3 lack gpu_type in {A100}; 2 tainted gpu_node=true; 1 short of 2 CPU.``"""
    if not found.nodes:
        return "There are no nodes."
    verb = "fits" if found.candidates == 1 or found.nodes == 1 else "fit"
    head = f"{found.candidates:,} of {plural(found.nodes, 'node')} {verb}"
    why = reasons(found, names)
    return f"{head}: {why}." if why else f"{head}."


def reasons(found: Verdict, names: Names = NO_NAMES) -> str:
    """``3 lack gpu_type in {A100}; 2 tainted gpu_node=true``: the reasons with the most nodes; others are counted."""
    blamed = replace(found, refusals=tuple(each for each in found.refusals if each.nodes)).leading(REASONS_MAX)
    texts = [refusal(each, names) for each in blamed.refusals]
    if blamed.other_reasons:
        texts.append(f"{blamed.other_nodes:,} for {plural(blamed.other_reasons, 'other reason')}")
    return "; ".join(texts)


def refusal(found: Refusal, names: Names = NO_NAMES) -> str:
    """``3 lack gpu_type in {A100}``: the count, then what is wrong with these nodes."""
    one = found.nodes == 1
    match found.reason:
        case Draining():
            text = "draining"
        case LacksLabel(requirement):
            text = _lacks(_named(requirement, names), one)
        case NoTermMatches(selector):
            matches = "matches" if one else "match"
            terms = _renamed(selector, names)
            text = f"{matches} none of: {terms}" if selector.terms else f"{matches} no term: the selector has none"
        case ClaimUnusable(claim, problem):
            text = f"cannot use the claim {claim}: {problem or 'it does not exist'}"
        case ClaimElsewhere(claim, selector):
            text = f"cannot use the claim {claim}, which is available {_where(selector, names)}"
        case NotNear(affinity):
            text = f"not {near(affinity)}"
        case TargetDead(affinity):
            text = f"not near {_work(affinity)}, which {'are' if _names_several(affinity) else 'is'} dead"
        case TooNear(affinity):
            text = f"too {near(affinity)}"
        case NoAlternativeHolds(affinities):
            text = f"{'meets' if one else 'meet'} none of {len(affinities)} affinity alternatives"
        case KeptAway(affinity):
            text = f"excluded by work that must be apart from {_work(affinity)}"
        case Skewed(spread):
            text = f"would skew {spread.topology} by more than {spread.max_skew}"
        case Tainted(taint):
            text = f"tainted {taint}"
        case PortTaken(port):
            text = f"{'has' if one else 'have'} port {port} in use"
        case ClaimInUse(claim):
            text = f"cannot use the claim {claim}, which other work uses alone"
        case ClaimBeingBound(claim):
            text = f"not with the work for which the claim {claim} is being bound"
        case TooManyVolumes(driver):
            text = f"at the limit of volumes of {driver}"
        case HasMember(topology):
            text = f"{'has' if one else 'have'} another member of the group{_on(topology)}"
        case ApartFromGroup(topology):
            text = f"not with the other members of the group{_on(topology)}"
        case NeverFits(resource, need):
            text = f"too small for {amount_text(resource, need)}"
        case ShortOf(resource, need):
            text = f"short of {amount_text(resource, need)}"
        case Reserved():
            text = f"reserved for {short_id(found.reason.owner)}"
        case _:
            assert_never(found.reason)
    return f"{found.nodes:,} {text}"


def claim(found: Claim, names: Names = NO_NAMES) -> str:
    """``bound, available with zone in {a}`` or ``cannot be used: it is being deleted``"""
    if found.problem:
        return f"cannot be used: {found.problem}"
    return f"{'bound' if found.bound else 'not bound yet'}, available {_where(found.selector, names)}"


def nomination(node: NodeId, ending: Sequence[str], names: Names = NO_NAMES) -> str:
    """``A place on node-1 is kept for it until web-1 and web-2 have ended.``"""
    return f"A place on {_called(node, names)} is kept for it{_until_ended(ending)}."


def _until_ended(ending: Sequence[str]) -> str:
    what = first_few(map(short_id, ending)) if len(ending) > ENDING_MAX else joined(map(short_id, ending))
    return f" until {what} {'has' if len(ending) == 1 else 'have'} ended" if ending else ""


def change(
    found: Change, which: str = "", names: Names = NO_NAMES, say: Callable[[Edit, Names], str] | None = None
) -> str:
    """``Tolerating gpu_node=true would be enough (2 nodes).`` `say` words an edit, by default `edit`."""
    text = joined((say or edit)(each, names) for each in found.edits)
    return f"{text[0].upper()}{text[1:]} would be enough{which} ({plural(found.nodes, 'node')})."


def edit(found: Edit, names: Names = NO_NAMES) -> str:
    match found:
        case Tolerate(taint):
            return f"tolerating {taint}"
        case Widen(requirement, value):
            return f"allowing {requirement.key}={_called(value, names) if _is_of_nodes(requirement) else value}"
        case Drop(what):
            return f"dropping {_wish(what, names)}"
        case FreeUp(node, resource, amount):
            return f"freeing {amount_text(resource, amount)} on {_called(node, names)}"
        case AddCapacity(node, resource, amount):
            return f"adding {amount_text(resource, amount)} to {_called(node, names)}"
        case AddLabel(node, key, value):
            return f"labelling {_called(node, names)} with {key}={value}"
        case Uncordon(node):
            return f"uncordoning {_called(node, names)}"


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
            return " or ".join(map(short_id, ids))
    return "any work" if () in terms else f"work with {affinity.selector}"


def _where(selector: Selector, names: Names) -> str:
    if not selector.terms:
        return "nowhere"
    return "anywhere" if () in selector.terms else f"on nodes with {_renamed(selector, names)}"


def _on(topology: str) -> str:
    return "" if topology == NODE_ID else f" (same {topology})"


def _names_several(affinity: Affinity) -> bool:
    return len(ids_named(affinity.selector) or ()) > 1


def _wish(what: Wish, names: Names) -> str:
    if isinstance(what, Selector):
        return f"the selector {_renamed(what, names)}"
    if isinstance(what, Affinity):
        return f"'{relation(what)}'"
    if isinstance(what, Spread):
        return f"the spread over {what.topology}"
    if isinstance(what, HostPort):
        return f"port {what}"
    if isinstance(what, tuple):
        return "the affinities"
    return str(_named(what, names))


def _called(node: NodeId, names: Names) -> str:
    return names.get(node) or short_id(node)


def _is_of_nodes(requirement: Requirement) -> bool:
    return requirement.key in NODE_ID_KEYS


def _named(requirement: Requirement, names: Names) -> Requirement:
    """The requirement with node ids replaced by node names."""
    if not _is_of_nodes(requirement):
        return requirement
    return replace(requirement, values=frozenset(_called(node, names) for node in requirement.values))


def _renamed(selector: Selector, names: Names) -> Selector:
    return Selector(tuple(tuple(_named(each, names) for each in term) for term in selector.terms))


def nodes_named(found: Explanation) -> Iterator[NodeId]:
    """The nodes that its sentences mention, without those of members."""
    wishes: list[object] = [each.reason for verdict in found.verdicts for each in verdict.refusals]
    for edit in found.change.edits if found.change is not None else ():
        match edit:
            case FreeUp() | AddCapacity() | AddLabel() | Uncordon():
                yield edit.node
            case Widen(requirement, value):
                yield from (value,) if _is_of_nodes(requirement) else ()
            case Drop(what):
                wishes.append(what)
    if found.nominated:
        yield found.nominated
    for score in (found.chosen, *found.runners_up):
        if score is not None:
            yield score.node
    for wish in wishes:
        match wish:
            case LacksLabel(requirement) | (Requirement() as requirement):
                yield from requirement.values if _is_of_nodes(requirement) else ()
            case NoTermMatches(selector) | ClaimElsewhere(_, selector) | (Selector() as selector):
                every = (each for term in selector.terms for each in term if _is_of_nodes(each))
                yield from (node for each in every for node in each.values)


def _lacks(requirement: Requirement, one: bool) -> str:
    """A negated requirement is worded as what the node has but should not have."""
    match requirement.operator:
        case Operator.NOT_IN:
            values = ", ".join(sorted(requirement.values))
            return f"{'has' if one else 'have'} {requirement.key} in {{{values}}}"
        case Operator.DOES_NOT_EXIST:
            return f"{'has' if one else 'have'} {requirement.key}"
    return f"{'lacks' if one else 'lack'} {requirement}"


def _placed(found: Explanation) -> str:
    assert found.chosen is not None
    text = f"Placed on {_called(found.chosen.node, found.names)} by {found.policy} ({_score(found.chosen)})"
    others = "; ".join(f"{_called(score.node, found.names)} ({_score(score)})" for score in found.runners_up)
    return f"{text}. Runners-up: {others}." if others else f"{text}. No other node fits."


def _score(score: Score) -> str:
    percent = f"{score.load / 100:.4g} % full"
    return f"preference {score.preference}, {percent}" if score.preference else percent


def more_members(count: int) -> str:
    """``for 3 more members``"""
    return f"for {plural(count, 'more member')}"


def _quorum(found: Quorum) -> str:
    """How many members fit, or are still to come."""
    if found.more_members:
        return (
            f"The group waits {more_members(found.more_members)}: it has {found.members:,} and needs {found.least:,}."
        )
    if found.placed:
        members = f"{found.placed:,} of {plural(found.members, 'member')} are placed"
        return f"{members} and {found.fitting:,} more fit; the group needs {found.least:,}."
    fit = "fits" if found.fitting == 1 else "fit"
    return f"{found.fitting:,} of {plural(found.members, 'member')} {fit}, and the group needs {found.least:,} at once."


def _group(found: Explanation) -> str:
    if not found.members:
        return "All members are placed."
    lines = []
    by_text = [(str(member), member.id) for member in found.members]
    for text, members in groupby(by_text, key=lambda pair: pair[0]):
        ids = [short_id(id) for _, id in members]
        name = ids[0] if len(ids) == 1 else f"{ids[0]} to {ids[-1]}"
        lines.append(f"{name}: {text}")
    quorum = found.quorum
    has_enough = quorum is None or not quorum.more_members
    if found.together and (quorum is None or quorum.placed + quorum.fitting >= quorum.members):
        lines.append("All members fit together.")
    elif not found.together and has_enough and all(member.fits for member in found.members):
        by = "" if found.policy == Strategy.ANY else f" ({found.policy})"
        lines.append(f"Each member fits alone, but no placement was found for all of them together{by}.")
    if found.crowded_out is not None:
        member, alone = found.crowded_out
        lines.append(f"With the members before it placed, {member}: {verdict(alone)}")
    if quorum is not None and not (found.together and quorum.placed + quorum.fitting >= quorum.members):
        lines.append(_quorum(quorum))
    if found.nominated:
        lines.append(f"Places are kept for its members{_until_ended(found.ending)}.")
    return "\n".join(lines)
