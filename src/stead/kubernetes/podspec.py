"""Converts Kubernetes' nodes and pods (the dicts of its JSON API) to stead's values.

Rule: required conditions mean exactly what they mean to kube-scheduler, special cases included. Only the dicts passed
in are read: no client library, no clock, no cluster. A null field counts as missing. What kube-scheduler respects and
stead does not support is refused in one sentence, never ignored silently.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from stead.errors import Invalid, Unsupported, did_you_mean
from stead.language.asks import ASK_ID, Affinity, Ask, Choice, Preference, Spread
from stead.language.labels import (
    ANYWHERE,
    EMPTY,
    NODE_ID,
    NODE_IP,
    NODE_NAME,
    NOWHERE,
    RAY_NODE_ID,
    Labels,
    Requirement,
    Selector,
    Term,
    check_key,
    check_value,
    integer,
)
from stead.language.nodes import Node
from stead.language.resources import CPU, MEMORY, NOTHING, UNIT, Resources
from stead.language.taints import Effect, Taint, Toleration

Fields = Mapping[str, Any]
"""An API object, or a part of one."""

Namespaces = Mapping[str, Mapping[str, str]]
"""Every namespace of the cluster with its labels, for `namespaceSelector`."""

PODS = "pods"
"""The resource for the number of pods on a node; every pod uses one."""

UNSCHEDULABLE = Taint("node.kubernetes.io/unschedulable")
"""The taint for `spec.unschedulable` (a cordoned node)."""

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

STEAD_KEYS = frozenset({NODE_ID, NODE_IP, NODE_NAME, RAY_NODE_ID, ASK_ID})
"""Keys that are identity labels in stead but ordinary labels in Kubernetes."""

CPU_STEP = UNIT // 1000
"""Kubernetes rounds CPU up to thousandths and everything else up to whole numbers."""


# -- reading


def _fields(parent: Fields, name: str) -> Fields:
    found = parent.get(name)
    if found is None:
        return {}
    if not isinstance(found, Mapping):
        raise Invalid(f"{name!r} must be an object such as {{'key': 'value'}}, not {found!r}")
    return found


def _items(parent: Fields, name: str) -> Sequence[Any]:
    found = parent.get(name)
    if found is None:
        return ()
    if not isinstance(found, list | tuple):
        raise Invalid(f"{name!r} must be a list such as ['value'], not {found!r}")
    return found


def _parts(parent: Fields, name: str) -> list[Fields]:
    """The items of a list of objects; null counts as an empty object."""
    found = [{} if item is None else item for item in _items(parent, name)]
    for item in found:
        if not isinstance(item, Mapping):
            raise Invalid(f"every item of {name!r} must be an object, not {item!r}")
    return found


def label_key(key: str) -> str:
    """stead's key for a Kubernetes label: the same key, unless it is an identity label in stead.

    Label keys cannot contain a colon, so the renamed key is unique.
    """
    return f"label:{key}" if key in STEAD_KEYS else key


def labels_of(metadata: Fields) -> Labels:
    """The labels of a node or a pod."""
    found = Labels.checked(_fields(metadata, "labels"))
    return Labels({label_key(key): value for key, value in found.items()}) if STEAD_KEYS & found.keys() else found


# -- nodes


def node_of(node: Fields) -> Node:
    """Convert a node. Its name becomes its id, and a cordon becomes a taint."""
    metadata, spec = _fields(node, "metadata"), _fields(node, "spec")
    name = metadata.get("name")
    if not isinstance(name, str) or not name:
        raise Invalid(f"a node must have a name such as 'node-1' under metadata.name, not {name!r}")
    taints = [_taint(taint) for taint in _parts(spec, "taints")]
    if spec.get("unschedulable"):
        taints.append(UNSCHEDULABLE)
    capacity = _rounded(_amounts(_fields(_fields(node, "status"), "allocatable")))
    return Node(name, capacity, labels_of(metadata), tuple(dict.fromkeys(taints)), name=name)


def _taint(taint: Fields) -> Taint:
    return Taint(taint.get("key") or "", taint.get("value") or "", _effect(taint.get("effect"), "a taint"))


def _effect(effect: object, what: str) -> Effect:
    found = EFFECTS.get(effect) if isinstance(effect, str) else None
    if found is None:
        hint = did_you_mean(str(effect), EFFECTS)
        raise Invalid(f"{what} has the effect {effect!r}{hint}; good values are {', '.join(EFFECTS)}")
    return found


# -- which nodes: labels and fields


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
    for term in _parts(required, "nodeSelectorTerms"):
        try:
            parsed = _node_term(term)
        except Invalid:
            continue
        if parsed:
            terms.append(parsed)
    return selector & Selector(tuple(terms))


def preferences_of(preferred: Iterable[Fields] | None) -> tuple[Preference, ...]:
    """Preferred node affinity. A term with weight 0 is not parsed; every other term must parse."""
    found = []
    for term in preferred or ():
        parsed = _node_term(_fields(term, "preference")) if term.get("weight") else ()
        if parsed:
            found.append(Preference(Selector((parsed,)), term["weight"]))
    return tuple(found)


def _node_term(term: Fields) -> Term:
    """The requirements of a nodeSelectorTerm, which may be empty; `Invalid` if it does not parse."""
    expressions = [_requirement(expression, NODE_OPERATORS) for expression in _parts(term, "matchExpressions")]
    return (*expressions, *(_field_requirement(field) for field in _parts(term, "matchFields")))


def _requirement(expression: Fields, operators: Sequence[str]) -> Requirement:
    key, operator = label_key(check_key(expression.get("key"))), expression.get("operator")
    values = [check_value(value) for value in _items(expression, "values")]
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
    key, operator, values = field.get("key"), field.get("operator"), _items(field, "values")
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


# -- which nodes: taints


def tolerations_of(tolerations: Iterable[Fields] | None) -> tuple[Toleration, ...]:
    """A pod's tolerations. The default operator is Equal; no key means every key, no effect every effect."""
    return tuple(_toleration(toleration) for toleration in tolerations or ())


def _toleration(toleration: Fields) -> Toleration:
    operator = toleration.get("operator") or "Equal"
    if operator in ("Gt", "Lt"):
        raise Unsupported(f"toleration operator {operator!r} is an alpha feature of Kubernetes; use Equal or Exists")
    _check_operator(operator, ("Equal", "Exists"))
    any_value = operator == "Exists"
    effect = _effect(toleration["effect"], "a toleration") if toleration.get("effect") else None
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


# -- which nodes: other pods


def affinities_of(
    pod_affinity: Fields | None,
    pod_anti_affinity: Fields | None,
    namespace: str,
    labels: Mapping[str, str] = EMPTY,
    namespaces: Namespaces | None = None,
) -> tuple[Affinity, ...]:
    """Required pod affinity and anti-affinity of a pod with these labels (from `labels_of`); all must be satisfied.

    Another pod counts for affinity only if it matches every term, so the terms become one `Affinity`. Each term of
    anti-affinity becomes its own, symmetric `Affinity`; a term that can match no pod is left out. `namespaces` are the
    current ones: when they change, convert terms that select namespaces by label again.
    """
    near = [_PodTerm(term, namespace, labels, namespaces) for term in _parts(pod_affinity or {}, REQUIRED)]
    apart = [_PodTerm(term, namespace, labels, namespaces) for term in _parts(pod_anti_affinity or {}, REQUIRED)]
    found = [_affinity(near, namespace, near=True)] if near else []
    found += [_affinity([term], namespace, near=False, symmetric=True) for term in apart]
    return tuple(affinity for affinity in found if affinity.near or affinity.selector != NOWHERE)


def pod_preferences_of(
    pod_affinity: Fields | None,
    pod_anti_affinity: Fields | None,
    namespace: str,
    labels: Mapping[str, str] = EMPTY,
    namespaces: Namespaces | None = None,
) -> tuple[Preference, ...]:
    """Preferred pod affinity and anti-affinity. Every term must parse; terms with weight 0 are left out.

    stead checks whether a node satisfies a term, while kube-scheduler counts the matching pods.
    """
    found = []
    for side, near in ((pod_affinity or {}, True), (pod_anti_affinity or {}, False)):
        for weighted in _parts(side, PREFERRED):
            term = _PodTerm(_fields(weighted, "podAffinityTerm"), namespace, labels, namespaces)
            affinity = _affinity([term], namespace, near=near)
            if weighted.get("weight") and affinity.selector != NOWHERE:
                found.append(Preference(affinity, weighted["weight"]))
    return tuple(found)


class _PodTerm:
    """A podAffinityTerm: a pod selector and a topology key. `reach` are the namespaces, None for all."""

    def __init__(self, term: Fields, namespace: str, labels: Mapping[str, str], known: Namespaces | None) -> None:
        self.selector = pod_selector_of(term.get("labelSelector"))
        self.selector &= _same_labels(term, "matchLabelKeys", "In", labels)
        self.selector &= _same_labels(term, "mismatchLabelKeys", "NotIn", labels)
        self.reach = _reach(term, namespace, known)
        self.topology = label_key(term.get("topologyKey") or "")


def _affinity(terms: Sequence[_PodTerm], namespace: str, near: bool, symmetric: bool = False) -> Affinity:
    """One affinity to the pods that match all terms."""
    selector, reach = ANYWHERE, None
    for term in terms:
        selector &= term.selector
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
    equal = [
        Requirement.is_in(label_key(check_key(key)), check_value(value))
        for key, value in sorted(_fields(selector, "matchLabels").items())
    ]
    expressions = [_requirement(each, LABEL_OPERATORS) for each in _parts(selector, "matchExpressions")]
    return Selector.all_of(*equal, *expressions)


def _same_labels(term: Fields, field: str, operator: str, labels: Mapping[str, str]) -> Selector:
    """matchLabelKeys or mismatchLabelKeys: requires the same values as the pod's own labels, or other values.

    The API server writes them into the labelSelector when it creates the pod; this adds those that are missing there.
    """
    keys = _items(term, field)
    if not keys:
        return ANYWHERE
    expressions = _parts(_fields(term, "labelSelector"), "matchExpressions")
    done = {each.get("key") for each in expressions if each.get("operator") == operator}
    added = [
        _requirement({"key": key, "operator": operator, "values": [labels[label_key(key)]]}, LABEL_OPERATORS)
        for key in keys
        if key not in done and label_key(key) in labels
    ]
    return Selector.all_of(*added)


def _reach(term: Fields, namespace: str, known: Namespaces | None) -> frozenset[str] | None:
    """The namespaces of a pod affinity term: those it lists and selects, or the pod's own if it does neither. None
    means all."""
    listed, selector = frozenset(_items(term, "namespaces")), term.get("namespaceSelector")
    if selector is None:
        return listed or frozenset({namespace})
    chosen = pod_selector_of(selector)
    if chosen == ANYWHERE:
        return None
    if known is None:
        raise Unsupported(f"a namespaceSelector ({chosen}) needs the labels of all namespaces, which were not given")
    return listed | {name for name, labels in known.items() if chosen.matches(labels_of({"labels": labels}))}


# -- which nodes: topology spread


def spreads_of(
    constraints: Iterable[Fields] | None, labels: Mapping[str, str] = EMPTY
) -> tuple[tuple[Spread, ...], tuple[Preference, ...]]:
    """topologySpreadConstraints: the hard ones, and the soft ones as preferences.

    A selector that is empty counts no pod, as in kube-scheduler: such a constraint only requires the topology key.
    """
    strict, soft = [], []
    for constraint in constraints or ():
        selector = pod_selector_of(constraint.get("labelSelector"))
        selector &= _same_labels(constraint, "matchLabelKeys", "In", labels)
        spread = Spread(
            label_key(constraint.get("topologyKey") or ""),
            NOWHERE if selector == ANYWHERE else selector,
            constraint.get("maxSkew", 1),
            constraint.get("minDomains") or 1,
            by_selector=_honours(constraint, "nodeAffinityPolicy", "Honor"),
            by_taints=_honours(constraint, "nodeTaintsPolicy", "Ignore"),
        )
        if constraint.get("whenUnsatisfiable") == "ScheduleAnyway":
            soft.append(Preference(spread))
        else:
            strict.append(spread)
    return tuple(strict), tuple(soft)


def _honours(constraint: Fields, field: str, usual: str) -> bool:
    policy = constraint.get(field) or usual
    if policy not in ("Honor", "Ignore"):
        raise Invalid(f"{field} {policy!r} is unknown; good values are Honor, Ignore")
    return bool(policy == "Honor")


# -- how much


def requests_of(spec: Fields) -> Resources:
    """What a pod uses on a node, including 1 of `pods`.

    Containers run together with the sidecars (init containers that always restart). The other init containers run
    before, one after another, each beside the sidecars started so far. The pod needs the larger of the two. Requests of
    the pod as a whole override that.
    """
    together = sidecars = peak = NOTHING
    for container in _parts(spec, "containers"):
        together += _requested(container)
    for container in _parts(spec, "initContainers"):
        need = _requested(container) + sidecars
        if container.get("restartPolicy") == "Always":
            together += _requested(container)
            sidecars = need
        peak = _most(peak, need)
    of_the_pod = {
        name: amount
        for name, amount in _requested(spec).items()
        if name in (CPU, MEMORY) or name.startswith("hugepages-")
    }
    total = Resources({**_most(together, peak), **of_the_pod})
    return _rounded(total + _amounts(_fields(spec, "overhead"))) + Resources({PODS: UNIT})


def _requested(container: Fields) -> Resources:
    return _amounts(_fields(_fields(container, "resources"), "requests"))


def _amounts(quantities: Fields) -> Resources:
    return Resources.of({CPU if name == "cpu" else name: amount for name, amount in quantities.items()})


def _most(left: Resources, right: Resources) -> Resources:
    return Resources({name: max(left.get(name), right.get(name)) for name in {*left, *right}})


def _rounded(amounts: Resources) -> Resources:
    steps = {name: CPU_STEP if name == CPU else UNIT for name in amounts}
    return Resources({name: -(-amount // steps[name]) * steps[name] for name, amount in amounts.items()})


# -- pods


def pod_id(pod: Fields) -> str:
    """The id of a pod's ask: ``namespace/name``."""
    metadata = _fields(pod, "metadata")
    name = metadata.get("name")
    if not isinstance(name, str) or not name:
        raise Invalid(f"a pod must have a name such as 'web-0' under metadata.name, not {name!r}")
    return f"{metadata.get('namespace') or ''}/{name}"


def ask_of(pod: Fields, namespaces: Namespaces | None = None) -> Ask:
    """The ask of a pod that has no node yet.

    It ignores scheduling gates and `nodeName`: do not submit a gated pod, and use `resident_of` for a pod that has a
    node.
    """
    metadata, spec = _fields(pod, "metadata"), _fields(pod, "spec")
    namespace, labels = metadata.get("namespace") or "", labels_of(metadata)
    affinity = _fields(spec, "affinity")
    _refuse_the_unsupported(spec)
    node = _fields(affinity, "nodeAffinity")
    pods = (affinity.get("podAffinity"), affinity.get("podAntiAffinity"), namespace, labels, namespaces)
    spreads, soft_spreads = spreads_of(_parts(spec, "topologySpreadConstraints"), labels)
    return Ask(
        pod_id(pod),
        (Choice(requests_of(spec), selector_of(spec.get("nodeSelector"), node.get(REQUIRED))),),
        tolerations=tolerations_of(_parts(spec, "tolerations")),
        affinities=_all_of(affinities_of(*pods)),
        spreads=spreads,
        prefers=(*preferences_of(_parts(node, PREFERRED)), *pod_preferences_of(*pods), *soft_spreads),
        labels=labels,
        namespace=namespace,
        priority=spec.get("priority") or 0,
        owner=owner_of(metadata),
    )


def resident_of(pod: Fields, namespaces: Namespaces | None = None) -> Ask:
    """A pod that has a node, as far as it affects other pods: its requests, labels and anti-affinity.

    It will not be placed again, so everything else is left out, and unsupported fields there are not refused.
    Anti-affinity that does not parse is ignored.
    """
    metadata, spec = _fields(pod, "metadata"), _fields(pod, "spec")
    namespace, labels = metadata.get("namespace") or "", labels_of(metadata)
    anti_affinity = _fields(spec, "affinity").get("podAntiAffinity")
    try:
        affinities = affinities_of(None, anti_affinity, namespace, labels, namespaces)
    except Unsupported:
        raise
    except Invalid:
        affinities = ()
    return Ask(
        pod_id(pod),
        (Choice(requests_of(spec)),),
        affinities=_all_of(affinities),
        labels=labels,
        namespace=namespace,
        priority=spec.get("priority") or 0,
        owner=owner_of(metadata),
    )


def owner_of(metadata: Fields) -> str:
    """The pod's owner, such as ``ReplicaSet/web-5d9``, or "". The controlling owner comes first."""
    owners = sorted(_parts(metadata, "ownerReferences"), key=lambda owner: not owner.get("controller"))
    return f"{owners[0].get('kind')}/{owners[0].get('name')}" if owners else ""


def _all_of(affinities: tuple[Affinity, ...]) -> tuple[tuple[Affinity, ...], ...]:
    return (affinities,) if affinities else ()


def _refuse_the_unsupported(spec: Fields) -> None:
    """Refuse fields that kube-scheduler respects and stead does not support."""
    if _items(spec, "resourceClaims"):
        raise Unsupported("resourceClaims (dynamic resource allocation) are not supported yet; use resources.requests")
    for volume in _parts(spec, "volumes"):
        if volume.get("persistentVolumeClaim") is not None or volume.get("ephemeral") is not None:
            raise Unsupported(
                f"volume {volume.get('name')!r} is persistent, and stead does not know which nodes can mount it; "
                f"use another scheduler for this pod"
            )
    for container in (*_parts(spec, "containers"), *_parts(spec, "initContainers")):
        for port in _parts(container, "ports"):
            if port.get("hostPort"):
                raise Unsupported(f"hostPort {port['hostPort']} is not supported yet; use a Service instead")
