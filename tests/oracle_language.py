"""What a requirement, a selector, an affinity's reach and a toleration mean, implemented again for the oracle.

Rule: only the types come from the package, never an operator, so that a bug there is found.
"""

from __future__ import annotations

from collections.abc import Mapping

from stead.language.asks import Affinity, AskId
from stead.language.labels import Requirement, Selector
from stead.language.taints import Taint, Toleration


def number(text: str) -> int | None:
    digits = text[1:] if text[:1] in ("+", "-") else text
    if not digits or any(digit not in "0123456789" for digit in digits):
        return None
    value = int(digits) * (-1 if text[0] == "-" else 1)
    return value if -(2**63) <= value <= 2**63 - 1 else None


def meets(requirement: Requirement, labels: Mapping[str, str]) -> bool:
    if requirement.key not in labels:
        return requirement.absent
    value = labels[requirement.key]
    if requirement.greater is not None or requirement.less is not None:
        as_number = number(value)
        if as_number is None:
            return False
        if requirement.greater is not None and not as_number > requirement.greater:
            return False
        if requirement.less is not None and not as_number < requirement.less:
            return False
    return value not in requirement.values if requirement.complement else value in requirement.values


def selects(selector: Selector, labels: Mapping[str, str]) -> bool:
    return any(all(meets(requirement, labels) for requirement in term) for term in selector.terms)


def names_asks(affinity: Affinity) -> bool:
    return any(requirement.key == "ask_id" for term in affinity.selector.terms for requirement in term)


def ids_named(affinity: Affinity) -> set[AskId]:
    """The ids of the first list of ids in every term; none if a term has no such list."""
    terms = [
        [r.values for r in term if r.key == "ask_id" and not (r.complement or r.absent)]
        for term in affinity.selector.terms
    ]
    return {id for lists in terms for id in lists[0]} if all(terms) else set()


def reaches(affinity: Affinity, own_namespace: str, other_namespace: str) -> bool:
    if affinity.namespaces is None:
        return own_namespace == other_namespace
    return not affinity.namespaces or other_namespace in affinity.namespaces


def tolerates(tolerations: tuple[Toleration, ...], taint: Taint) -> bool:
    for toleration in tolerations:
        key_fits = toleration.key is None or toleration.key == taint.key
        effect_fits = toleration.effect is None or toleration.effect == taint.effect
        listed = taint.value in toleration.values
        if key_fits and effect_fits and (not listed if toleration.complement else listed):
            return True
    return False


def stay_seconds(tolerations: tuple[Toleration, ...], taint: Taint) -> float | None:
    """How long work may stay under a NoExecute taint: 0 if nothing covers it, None forever."""
    covering = [toleration for toleration in tolerations if tolerates((toleration,), taint)]
    limits = [max(0.0, toleration.seconds) for toleration in covering if toleration.seconds is not None]
    if not covering:
        return 0.0
    return min(limits) if limits else None
