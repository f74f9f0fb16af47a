"""Converts what a pod says about nodes and about other pods: selectors, tolerations, affinity and topology spread.

Rule: required conditions mean exactly what they mean to kube-scheduler, special cases included. A part that does not
parse raises `Invalid`, except a required node affinity term, which matches no node.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from stead.errors import Invalid, Unsupported, did_you_mean
from stead.kubernetes.fields import Fields, fields_in, items_in, label_key, labels_of, number_in, parts_in
from stead.language.asks import Affinity, Preference, Spread
from stead.language.labels import (
    ANYWHERE,
    EMPTY,
    NODE_NAME,
    NOWHERE,
    Requirement,
    Selector,
    Term,
    check_key,
    check_value,
    integer,
)
from stead.language.taints import Effect, Toleration

Namespaces = Mapping[str, Mapping[str, str]]
"""Every namespace of the cluster with its labels, for `namespaceSelector`."""

EFFECTS = {
    "NoSchedule": Effect.NO_SCHEDULE,
    "PreferNoSchedule": Effect.PREFER_NO_SCHEDULE,
    "NoExecute": Effect.NO_EXECUTE,
}

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
NODE_OPERATORS = ("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt")
LABEL_OPERATORS = NODE_OPERATORS[:4]
FIELD_OPERATORS = NODE_OPERATORS[:2]

REQUIRED_PULL = 1
"""How much each required pod affinity term of a placed pod adds to the score of later pods (hardPodAffinityWeight)."""

DELETING = "deleting:"
"""The private label of pods that are being deleted. A Kubernetes label key cannot contain a colon."""

NOT_DELETING = Selector.all_of(Requirement.does_not_exist(DELETING))


class NamespacesMissing(Unsupported):
    """A namespaceSelector was found, but the caller passed no namespaces."""


# -- nodes


def selector_of(node_selector: Fields | None, required: Fields | None) -> Selector:
    """`spec.nodeSelector` and the required node affinity; both must match.

    If `required` is None, there is no constraint. Its terms are alternatives. An empty term or one that does not parse
    matches no node.
    """
    selector = ANYWHERE
    if node_selector:
        selector = Selector.all_of(*(Requirement.is_in(label_key(k), v) for k, v in sorted(node_selector.items())))
    if required is None:
        return selector
    terms = []
    for term in parts_in(required, "nodeSelectorTerms"):
        try:
            parsed = _node_term(term)
        except Invalid:
            continue
        if parsed:
            terms.append(parsed)
    alternatives = Selector(tuple(terms))
    return alternatives if selector is ANYWHERE else selector & alternatives


def preferences_of(preferred: Iterable[Fields] | None) -> tuple[Preference, ...]:
    """Preferred node affinity. A term with weight 0 is not parsed; every other term must parse."""
    found = []
    for number, term in enumerate(preferred or (), start=1):
        try:
            parsed = _node_term(fields_in(term, "preference")) if term.get("weight") else ()
        except Invalid as error:
            raise Invalid(f"preferred node affinity term {number} cannot be read: {error}") from None
        if parsed:
            found.append(Preference(Selector((parsed,)), term["weight"]))
    return tuple(found)


def _node_term(term: Fields) -> Term:
    """The requirements of a nodeSelectorTerm, which may be empty; `Invalid` if it does not parse."""
    expressions = [_requirement(expression, NODE_OPERATORS) for expression in parts_in(term, "matchExpressions")]
    return (*expressions, *(_field_requirement(field) for field in parts_in(term, "matchFields")))


def _requirement(expression: Fields, operators: Sequence[str]) -> Requirement:
    key, operator = label_key(check_key(expression.get("key"))), expression.get("operator")
    values = [check_value(value) for value in items_in(expression, "values")]
    _check_operator(operator, operators)
    if operator in ("Exists", "DoesNotExist"):
        if values:
            raise Invalid(f"operator {operator!r} of label {key!r} takes no values, but has {values!r}")
        return Requirement.exists(key) if operator == "Exists" else Requirement.does_not_exist(key)
    if operator in ("Gt", "Lt"):
        number = integer(values[0]) if len(values) == 1 else None
        if number is None:
            raise Invalid(
                f"operator {operator!r} of label {key!r} takes one whole number such as ['8'], not {values!r}"
            )
        return Requirement.greater_than(key, number) if operator == "Gt" else Requirement.less_than(key, number)
    if not values:
        raise Invalid(f"operator {operator!r} of label {key!r} needs at least one value, for example ['a100']")
    return Requirement.is_in(key, *values) if operator == "In" else Requirement.not_in(key, *values)


def _field_requirement(field: Fields) -> Requirement:
    """A matchFields item. It becomes a requirement on `node_name`, not on `node_id`: stead refuses work that requires
    an unknown node id at once, while in Kubernetes such a pod stays pending."""
    key, operator, values = field.get("key"), field.get("operator"), items_in(field, "values")
    if key != "metadata.name":
        raise Invalid(f"matchFields supports only the field 'metadata.name', not {key!r}")
    _check_operator(operator, FIELD_OPERATORS)
    if len(values) != 1 or not isinstance(values[0], str):
        raise Invalid(f"the field 'metadata.name' takes exactly one value such as ['node-1'], not {list(values)!r}")
    return Requirement.is_in(NODE_NAME, values[0]) if operator == "In" else Requirement.not_in(NODE_NAME, values[0])


def _check_operator(operator: object, operators: Sequence[str]) -> None:
    if operator not in operators:
        hint = did_you_mean(str(operator), operators)
        raise Invalid(f"operator {operator!r} is unknown{hint}; good values are {', '.join(operators)}")


# -- taints


def effect_of(effect: object, what: str) -> Effect:
    """The effect of a taint or a toleration; `what` names it in the error message."""
    found = EFFECTS.get(effect) if isinstance(effect, str) else None
    if found is None:
        hint = did_you_mean(str(effect), EFFECTS)
        raise Invalid(f"{what} has the effect {effect!r}{hint}; good values are {', '.join(EFFECTS)}")
    return found


def tolerations_of(tolerations: Iterable[Fields] | None) -> tuple[Toleration, ...]:
    """A pod's tolerations. The default operator is Equal; no key means every key, no effect every effect."""
    return tuple(_toleration(toleration) for toleration in tolerations or ())


def _toleration(toleration: Fields) -> Toleration:
    operator = toleration.get("operator") or "Equal"
    if operator in ("Gt", "Lt"):
        raise Unsupported(f"toleration operator {operator!r} is an alpha feature of Kubernetes; use Equal or Exists")
    _check_operator(operator, ("Equal", "Exists"))
    any_value = operator == "Exists"
    effect = effect_of(toleration["effect"], "a toleration") if toleration.get("effect") else None
    seconds = toleration.get("tolerationSeconds")
    if seconds is not None and (isinstance(seconds, bool) or not isinstance(seconds, int)):
        raise Invalid(f"tolerationSeconds must be a whole number such as 300, not {seconds!r}")
    return Toleration(
        toleration.get("key") or None,
        frozenset() if any_value else frozenset({toleration.get("value") or ""}),
        complement=any_value,
        effect=effect,
        seconds=None if seconds is None else float(seconds),
    )


# -- other pods


def near_of(
    pod_affinity: Fields, namespace: str, labels: Mapping[str, str] = EMPTY, namespaces: Namespaces | None = None
) -> tuple[tuple[Affinity, ...], tuple[Preference, ...]]:
    """Required pod affinity of a pod with these labels (from `labels_of`), and what it means for later pods.

    Another pod counts only if it matches every term, so the terms become one `Affinity`. In kube-scheduler, a pod that
    others need nearby is also drawn to them: once this pod is placed, each of its terms adds to the score of the pods
    that match it. `namespaces` are the current ones: when they change, convert terms that select namespaces by label
    again.
    """
    terms = [_PodTerm(term, namespace, labels, namespaces) for term in parts_in(pod_affinity, REQUIRED)]
    if not terms:
        return (), ()
    required = _affinity(terms, namespace, near=True)
    each = [required] if len(terms) == 1 else [_affinity([term], namespace, near=True) for term in terms]
    return (required,), tuple(Preference(one, REQUIRED_PULL) for one in each if one.selector != NOWHERE)


def apart_of(
    pod_anti_affinity: Fields, namespace: str, labels: Mapping[str, str] = EMPTY, namespaces: Namespaces | None = None
) -> tuple[Affinity, ...]:
    """Required pod anti-affinity. Each term is its own, symmetric `Affinity`; one that can match no pod is left out."""
    terms = [_PodTerm(term, namespace, labels, namespaces) for term in parts_in(pod_anti_affinity, REQUIRED)]
    found = [_affinity([term], namespace, near=False, symmetric=True) for term in terms]
    return tuple(affinity for affinity in found if affinity.selector != NOWHERE)


def pod_preferences_of(
    affinity: Fields,
    near: bool,
    namespace: str,
    labels: Mapping[str, str] = EMPTY,
    namespaces: Namespaces | None = None,
) -> tuple[Preference, ...]:
    """Preferred pod affinity, or anti-affinity. Every term must parse; terms with weight 0 are left out."""
    found = []
    for weighted in parts_in(affinity, PREFERRED):
        term = _PodTerm(fields_in(weighted, "podAffinityTerm"), namespace, labels, namespaces)
        preferred = _affinity([term], namespace, near=near)
        if weighted.get("weight") and preferred.selector != NOWHERE:
            found.append(Preference(preferred, weighted["weight"]))
    return tuple(found)


class _PodTerm:
    """A podAffinityTerm: a pod selector and a topology key. `reach` are the namespaces, None for all."""

    def __init__(self, term: Fields, namespace: str, labels: Mapping[str, str], known: Namespaces | None) -> None:
        self.selector = pod_selector_of(term.get("labelSelector"))
        if term.get("matchLabelKeys"):
            self.selector &= _same_labels(term, "matchLabelKeys", "In", labels)
        if term.get("mismatchLabelKeys"):
            self.selector &= _same_labels(term, "mismatchLabelKeys", "NotIn", labels)
        self.reach = _reach(term, namespace, known)
        self.topology = label_key(term.get("topologyKey") or "")


def _affinity(terms: Sequence[_PodTerm], namespace: str, near: bool, symmetric: bool = False) -> Affinity:
    """One affinity to the pods that match all terms."""
    selector, reach = terms[0].selector, None
    for term in terms:
        selector = selector if term is terms[0] else selector & term.selector
        reach = term.reach if reach is None else reach if term.reach is None else reach & term.reach
    # In `Affinity` the empty set means every namespace, so "no namespace" is expressed by the selector.
    if reach is None:
        reach = frozenset()
    elif not reach:
        selector, reach = NOWHERE, None
    elif reach == {namespace}:
        reach = None
    topologies = tuple(dict.fromkeys(term.topology for term in terms))
    return Affinity(selector, near, topologies, reach, symmetric)


def pod_selector_of(selector: Fields | None) -> Selector:
    """A labelSelector: null matches nothing, an empty one everything; `Invalid` if it does not parse."""
    if selector is None:
        return NOWHERE
    equal = equal_labels(fields_in(selector, "matchLabels"))
    expressions = [_requirement(each, LABEL_OPERATORS) for each in parts_in(selector, "matchExpressions")]
    return Selector.all_of(*equal, *expressions)


def equal_labels(labels: Fields) -> list[Requirement]:
    """A map of labels as requirements, sorted by key: each label has exactly this value."""
    return [Requirement.is_in(label_key(check_key(key)), check_value(labels[key])) for key in sorted(labels)]


def _same_labels(term: Fields, field: str, operator: str, labels: Mapping[str, str]) -> Selector:
    """matchLabelKeys or mismatchLabelKeys: requires the same values as the pod's own labels, or other values.

    The API server writes them into the labelSelector when it creates the pod; this adds those that are missing there.
    """
    expressions = parts_in(fields_in(term, "labelSelector"), "matchExpressions")
    done = {each.get("key") for each in expressions if each.get("operator") == operator}
    added = [
        _requirement({"key": key, "operator": operator, "values": [labels[label_key(key)]]}, LABEL_OPERATORS)
        for key in items_in(term, field)
        if key not in done and label_key(key) in labels
    ]
    return Selector.all_of(*added)


def _reach(term: Fields, namespace: str, known: Namespaces | None) -> frozenset[str] | None:
    """The namespaces of a pod affinity term: those it lists and selects, or the pod's own if it does neither. None
    means all."""
    listed, selector = frozenset(items_in(term, "namespaces")), term.get("namespaceSelector")
    if selector is None:
        return listed or frozenset({namespace})
    chosen = pod_selector_of(selector)
    if chosen == ANYWHERE:
        return None
    if known is None:
        raise NamespacesMissing(
            f"a namespaceSelector ({chosen}) needs the labels of all namespaces; pass them as `namespaces`"
        )
    return listed | {name for name, labels in known.items() if chosen.matches(labels_of({"labels": labels}))}


# -- topology spread


def spreads_of(
    constraints: Iterable[Fields] | None, labels: Mapping[str, str] = EMPTY
) -> tuple[tuple[Spread, ...], tuple[Preference, ...]]:
    """topologySpreadConstraints: the hard ones, and the soft ones as preferences.

    A selector that is empty counts no pod, as in kube-scheduler: such a constraint only requires the topology key.
    """
    strict, soft = [], []
    for constraint in constraints or ():
        selector = pod_selector_of(constraint.get("labelSelector"))
        if constraint.get("matchLabelKeys"):
            selector &= _same_labels(constraint, "matchLabelKeys", "In", labels)
        spread = spread_of(constraint, selector)
        if is_soft(constraint):
            soft.append(Preference(spread))
        else:
            strict.append(spread)
    return tuple(strict), tuple(soft)


def spread_of(constraint: Fields, selector: Selector, needs_key: bool = True) -> Spread:
    """One constraint that counts the pods which `selector` matches and which are not being deleted."""
    return Spread(
        label_key(constraint.get("topologyKey") or ""),
        NOWHERE if selector == ANYWHERE else selector & NOT_DELETING,
        number_in(constraint, "maxSkew", 1),
        number_in(constraint, "minDomains") or 1,
        by_selector=_honours(constraint, "nodeAffinityPolicy", "Honor"),
        by_taints=_honours(constraint, "nodeTaintsPolicy", "Ignore"),
        needs_key=needs_key,
    )


def is_soft(constraint: Fields) -> bool:
    """Whether a constraint only scores nodes."""
    return bool(constraint.get("whenUnsatisfiable") == "ScheduleAnyway")


def _honours(constraint: Fields, field: str, usual: str) -> bool:
    policy = constraint.get(field) or usual
    if policy not in ("Honor", "Ignore"):
        raise Invalid(f"{field} {policy!r} is unknown; good values are Honor, Ignore")
    return bool(policy == "Honor")
