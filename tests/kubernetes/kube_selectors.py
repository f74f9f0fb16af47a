"""Selectors of the Kubernetes API, parsed and matched: label selectors, node and pod affinity terms, tolerations.

Rule: every selector is parsed before it is matched. What does not parse raises `NotParsed` with the API's own words.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Fields = Mapping[str, Any]
"""A Kubernetes object, or a part of one, as its JSON form."""

Labels = Mapping[str, str]

Requirement = tuple[str, str, tuple[str, ...]]
"""Key, operator, values."""

Selector = tuple[Requirement, ...] | None
"""All of these must hold: `()` matches everything. `None` matches nothing."""

NOTHING: Selector = None
EVERYTHING: Selector = ()

NAME = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"
VALUE = f"({NAME})?"
DNS_LABEL = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
SUBDOMAIN = rf"{DNS_LABEL}(\.{DNS_LABEL})*"
CHARACTERS = (
    "consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character"
)
SUBDOMAIN_CHARACTERS = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', "
    "and must start and end with an alphanumeric character"
)

LABEL_OPERATORS = ("In", "NotIn", "Exists", "DoesNotExist")
NODE_OPERATORS = (*LABEL_OPERATORS, "Gt", "Lt")
FIELD_OPERATORS = ("In", "NotIn")
WRONG_COUNT = {
    "In": "for 'in', 'notin' operators, values set can't be empty",
    "NotIn": "for 'in', 'notin' operators, values set can't be empty",
    "Exists": "values set must be empty for exists and does not exist",
    "DoesNotExist": "values set must be empty for exists and does not exist",
    "Gt": "for 'Gt', 'Lt' operators, exactly one value is required",
    "Lt": "for 'Gt', 'Lt' operators, exactly one value is required",
}


class NotParsed(Exception):
    """A selector that is not valid. `errors` has one sentence per mistake."""

    def __init__(self, errors: Sequence[str]) -> None:
        self.errors = tuple(dict.fromkeys(errors))
        super().__init__(self.errors[0] if len(self.errors) == 1 else f"[{', '.join(self.errors)}]")


# -- objects


def name_of(object: Fields) -> str:
    return (object.get("metadata") or {}).get("name") or ""


def namespace_of(object: Fields) -> str:
    return (object.get("metadata") or {}).get("namespace") or ""


def labels_of(object: Fields) -> Labels:
    return (object.get("metadata") or {}).get("labels") or {}


def spec_of(object: Fields) -> Fields:
    return object.get("spec") or {}


def affinity_of(pod: Fields, kind: str) -> Fields:
    """`nodeAffinity`, `podAffinity` or `podAntiAffinity` of a pod; empty if the pod has none."""
    return (spec_of(pod).get("affinity") or {}).get(kind) or {}


# -- what a label may look like


def key_errors(key: str) -> list[str]:
    """Why this is not a label key; empty if it is one."""
    prefix, slash, name = key.rpartition("/")
    pattern = f"(e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '{NAME}')"
    if key.count("/") > 1:
        prefixed = "with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"
        return [f"a valid label key must {CHARACTERS} {pattern} {prefixed}"]
    errors = []
    if slash and not prefix:
        errors.append("prefix part must be non-empty")
    elif slash:
        errors += [f"prefix part {error}" for error in subdomain_errors(prefix)]
    if not name:
        errors.append("name part must be non-empty")
    elif len(name.encode()) > 63:
        errors.append("name part must be no more than 63 bytes")
    if not re.fullmatch(NAME, name):
        errors.append(f"name part must {CHARACTERS} {pattern}")
    return errors


def subdomain_errors(prefix: str) -> list[str]:
    errors = []
    if len(prefix.encode()) > 253:
        errors.append("must be no more than 253 bytes")
    if not re.fullmatch(SUBDOMAIN, prefix):
        errors.append(f"{SUBDOMAIN_CHARACTERS} (e.g. 'example.com', regex used for validation is '{SUBDOMAIN}')")
    return errors


def value_errors(value: str) -> list[str]:
    """Why this is not a label value; empty if it is one."""
    errors = []
    if len(value.encode()) > 63:
        errors.append("must be no more than 63 bytes")
    if not re.fullmatch(VALUE, value):
        errors.append(
            f"a valid label must be an empty string or {CHARACTERS} "
            f"(e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is '{VALUE}')"
        )
    return errors


def integer_of(text: str) -> int | None:
    """A base 10 integer of 64 bits, or None."""
    if not re.fullmatch("[+-]?[0-9]+", text):
        return None
    number = int(text)
    return number if -(2**63) <= number < 2**63 else None


def invalid(path: str, value: object, detail: str) -> str:
    return f"{path}: Invalid value: {json.dumps(value, separators=(',', ':'), ensure_ascii=False)}: {detail}"


def unsupported(path: str, value: str, supported: Sequence[str]) -> str:
    return f'{path}: Unsupported value: "{value}": supported values: ' + ", ".join(f'"{each}"' for each in supported)


# -- one requirement


def wrong_count(operator: str, count: int) -> bool:
    match operator:
        case "In" | "NotIn":
            return count == 0
        case "Exists" | "DoesNotExist":
            return count != 0
        case _:
            return count != 1


def requirement_errors(path: str, key: str, operator: str, values: Sequence[str] | None) -> list[str]:
    """Why a requirement with a known operator does not parse; empty if it does."""
    dot = f"{path}." if path else ""
    errors = []
    if wrong := key_errors(key):
        errors.append(invalid(f"{dot}key", key, "; ".join(wrong)))
    if wrong_count(operator, len(values or ())):
        errors.append(invalid(f"{dot}values", values, WRONG_COUNT[operator]))
    if operator in ("Gt", "Lt"):
        for index, value in enumerate(values or ()):
            if integer_of(value) is None:
                message = "for 'Gt', 'Lt' operators, the value must be an integer"
                errors.append(invalid(f"{dot}values[{index}]", value, message))
    for index, value in enumerate(values or ()):
        if wrong := value_errors(value):
            errors.append(invalid(f"{dot}values[{index}][{key}]", value, "; ".join(wrong)))
    return errors


def holds(requirement: Requirement, labels: Labels) -> bool:
    key, operator, values = requirement
    match operator:
        case "In":
            return key in labels and labels[key] in values
        case "NotIn":
            return key not in labels or labels[key] not in values
        case "Exists":
            return key in labels
        case "DoesNotExist":
            return key not in labels
        case "Gt" | "Lt":
            mine, bound = integer_of(labels.get(key, "")), integer_of(values[0])
            if mine is None or bound is None:
                return False
            return mine > bound if operator == "Gt" else mine < bound
        case _:
            raise AssertionError(f"operator {operator!r} was never parsed")


def matches(selector: Selector, labels: Labels) -> bool:
    return selector is not None and all(holds(requirement, labels) for requirement in selector)


# -- label selectors


def label_selector(fields: Fields | None) -> Selector:
    """null matches nothing, `{}` everything."""
    if fields is None:
        return NOTHING
    requirements: list[Requirement] = []
    for key, value in (fields.get("matchLabels") or {}).items():
        # The API requires one value here and has one, so only the key and the value can be wrong.
        if errors := requirement_errors("", key, "In", [value]):
            raise NotParsed(errors)
        requirements.append((key, "In", (value,)))
    for expression in fields.get("matchExpressions") or ():
        key, operator, values = parts_of(expression)
        if operator not in LABEL_OPERATORS:
            raise NotParsed([f'"{operator}" is not a valid label selector operator'])
        if errors := requirement_errors("", key, operator, values or None):
            raise NotParsed(errors)
        requirements.append((key, operator, tuple(values or ())))
    return tuple(requirements)


def parts_of(expression: Fields | None) -> tuple[str, str, list[str] | None]:
    """Key, operator and values as written: no values (null) and an empty list read differently in an error."""
    expression = expression or {}
    return expression.get("key") or "", expression.get("operator") or "", expression.get("values")


def labels_selector(labels: Labels) -> Selector:
    """Exactly these labels. Not validated: that is how nodeSelector and the selectors of services are read."""
    return tuple((key, "In", (value,)) for key, value in labels.items())


# -- node selector terms


@dataclass(frozen=True)
class NodeTerm:
    """One node selector term: all its expressions and all its fields must hold. An empty one matches no node."""

    expressions: tuple[Requirement, ...]
    fields: tuple[Requirement, ...]

    def matches(self, node: Fields) -> bool:
        if not self.expressions and not self.fields:
            return False
        if not matches(self.expressions, labels_of(node)):
            return False
        # A node without a name cannot be judged by its name: only tests have such nodes.
        return not name_of(node) or all(self._field_holds(field, node) for field in self.fields)

    @staticmethod
    def _field_holds(field: Requirement, node: Fields) -> bool:
        key, operator, (value,) = field
        equal = (name_of(node) if key == "metadata.name" else "") == value
        return equal if operator == "In" else not equal


def node_term(fields: Fields | None, path: str = "") -> NodeTerm:
    fields = fields or {}
    errors: list[str] = []
    expressions: list[Requirement] = []
    for index, expression in enumerate(fields.get("matchExpressions") or ()):
        here = f"{path}.matchExpressions[{index}]" if path else f"matchExpressions[{index}]"
        key, operator, values = parts_of(expression)
        if operator not in NODE_OPERATORS:
            errors.append(unsupported(f"{here}.operator", operator, NODE_OPERATORS))
            continue
        errors += requirement_errors(here, key, operator, values)
        expressions.append((key, operator, tuple(values or ())))
    selected: list[Requirement] = []
    for index, field in enumerate(fields.get("matchFields") or ()):
        here = f"{path}.matchFields[{index}]" if path else f"matchFields[{index}]"
        key, operator, values = parts_of(field)
        if operator not in FIELD_OPERATORS:
            errors.append(unsupported(f"{here}.operator", operator, FIELD_OPERATORS))
        elif len(values or ()) != 1:
            errors.append(invalid(f"{here}.values", values, "must have one element"))
        else:
            selected.append((key, operator, tuple(values or ())))
    if errors:
        raise NotParsed(errors)
    return NodeTerm(tuple(expressions), tuple(selected))


def matches_any_term(terms: Sequence[Fields | None] | None, node: Fields) -> bool:
    """Whether one of the terms matches. A term that does not parse does not match; no terms match no node."""
    for term in terms or ():
        try:
            if node_term(term).matches(node):
                return True
        except NotParsed:
            continue
    return False


def matches_node(pod: Fields, node: Fields) -> bool:
    """Whether a node has what the pod requires: its nodeSelector and its required node affinity."""
    if not matches(labels_selector(spec_of(pod).get("nodeSelector") or {}), labels_of(node)):
        return False
    required = affinity_of(pod, "nodeAffinity").get("requiredDuringSchedulingIgnoredDuringExecution")
    return required is None or matches_any_term(required.get("nodeSelectorTerms"), node)


def preferred_terms(terms: Sequence[Fields | None] | None) -> list[tuple[int, NodeTerm]]:
    """The preferred terms that count. Weight 0 and empty preferences are not even parsed."""
    found: list[tuple[int, NodeTerm]] = []
    errors: list[str] = []
    for index, term in enumerate(terms or ()):
        weight, preference = (term or {}).get("weight") or 0, (term or {}).get("preference") or {}
        if weight == 0 or not (preference.get("matchExpressions") or preference.get("matchFields")):
            continue
        try:
            found.append((weight, node_term(preference, f"[{index}]")))
        except NotParsed as error:
            errors += error.errors
    if errors:
        raise NotParsed(errors)
    return found


# -- pod affinity terms


@dataclass(frozen=True)
class PodTerm:
    """One pod affinity or anti-affinity term."""

    namespaces: frozenset[str]
    namespace_selector: Selector
    selector: Selector
    topology_key: str
    weight: int


def pod_term(owner: Fields, fields: Fields | None, weight: int = 0) -> PodTerm:
    """Without namespaces and with a null namespaceSelector the term is about the owner's own namespace."""
    fields = fields or {}
    selector = label_selector(fields.get("labelSelector"))
    named, namespace_selector = fields.get("namespaces") or (), fields.get("namespaceSelector")
    if not named and namespace_selector is None:
        named = (namespace_of(owner),)
    key = fields.get("topologyKey") or ""
    return PodTerm(frozenset(named), label_selector(namespace_selector), selector, key, weight)


@dataclass(frozen=True)
class PodTerms:
    """All the pod affinity terms of a pod. `errors` says which of the four lists do not parse; those are empty."""

    affinity: tuple[PodTerm, ...]
    anti_affinity: tuple[PodTerm, ...]
    preferred: tuple[PodTerm, ...]
    preferred_anti: tuple[PodTerm, ...]
    errors: tuple[str, ...]


def pod_terms(pod: Fields) -> PodTerms:
    lists: list[tuple[PodTerm, ...]] = []
    errors: list[str] = []
    for name, kind, required in (
        ("requiredAffinityTerms", "podAffinity", True),
        ("requiredAntiAffinityTerms", "podAntiAffinity", True),
        ("preferredAffinityTerms", "podAffinity", False),
        ("preferredAntiAffinityTerms", "podAntiAffinity", False),
    ):
        try:
            lists.append(_terms_of(pod, affinity_of(pod, kind), required))
        except NotParsed as error:
            lists.append(())
            errors.append(f"{name}: {error}")
    return PodTerms(lists[0], lists[1], lists[2], lists[3], tuple(errors))


def _terms_of(pod: Fields, affinity: Fields, required: bool) -> tuple[PodTerm, ...]:
    if required:
        terms = affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or ()
        return tuple(pod_term(pod, term) for term in terms)
    weighted = [term or {} for term in affinity.get("preferredDuringSchedulingIgnoredDuringExecution") or ()]
    return tuple(pod_term(pod, term.get("podAffinityTerm"), term.get("weight") or 0) for term in weighted)


# -- taints


def tolerates(toleration: Fields, taint: Fields) -> bool:
    """Whether one toleration tolerates one taint. Lt and Gt never do: they are alpha and off by default."""
    if toleration.get("effect") and toleration["effect"] != taint.get("effect"):
        return False
    if toleration.get("key") and toleration["key"] != taint.get("key"):
        return False
    match toleration.get("operator") or "Equal":
        case "Equal":
            return (toleration.get("value") or "") == (taint.get("value") or "")
        case "Exists":
            return True
        case _:
            return False


def untolerated_taints(pod: Fields, node: Fields, effects: Sequence[str]) -> list[Fields]:
    """The node's taints of these effects that the pod does not tolerate."""
    tolerations = spec_of(pod).get("tolerations") or ()
    return [
        taint
        for taint in spec_of(node).get("taints") or ()
        if taint.get("effect") in effects and not any(tolerates(toleration, taint) for toleration in tolerations)
    ]
