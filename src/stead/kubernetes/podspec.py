"""Kubernetes' nodes and pods in API form (the dicts of its JSON), as stead's values.

Rule: kube-scheduler's meaning to the letter, odd corners included, and only here. Nothing is read but
the dicts that are passed in: no client library, no clock, no cluster. A field that is null is a field
that is missing. What kube-scheduler would heed and stead cannot is refused in one sentence, never
dropped in silence.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from stead.asks import ASK_ID, Affinity, Ask, Choice, Preference, Spread
from stead.errors import Invalid, Unsupported, did_you_mean
from stead.labelling import (
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
from stead.node import Node
from stead.resources import CPU, MEMORY, NOTHING, UNIT, Resources
from stead.taints import Effect, Taint, Toleration

Fields = Mapping[str, Any]
"""An object of the API, or a part of one."""

Namespaces = Mapping[str, Mapping[str, str]]
"""Every namespace of the cluster with its labels: what a `namespaceSelector` chooses from."""

PODS = "pods"
"""The resource of which every pod takes one: how many pods a node may hold."""

UNSCHEDULABLE = Taint("node.kubernetes.io/unschedulable")
"""What `spec.unschedulable` (a cordoned node) amounts to."""

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
"""Keys that mean an identity in stead and nothing in particular in Kubernetes."""

CPU_STEP = UNIT // 1000
"""Kubernetes counts CPU in thousandths and everything else in whole units, rounding up."""


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
    """The items of a list of objects; a null one is an empty one."""
    found = [{} if item is None else item for item in _items(parent, name)]
    for item in found:
        if not isinstance(item, Mapping):
            raise Invalid(f"every item of {name!r} must be an object, not {item!r}")
    return found


def label_key(key: str) -> str:
    """The key under which stead knows a Kubernetes label: the same, unless it means an identity to stead.

    A colon is legal in no label key, so the renamed key meets no other.
    """
    return f"label:{key}" if key in STEAD_KEYS else key


def labels_of(metadata: Fields) -> Labels:
    """The labels of a node or a pod."""
    found = Labels.checked(_fields(metadata, "labels"))
    return Labels({label_key(key): value for key, value in found.items()}) if STEAD_KEYS & found.keys() else found


# -- nodes


def node_of(node: Fields) -> Node:
    """A node. Its id is its name, and a cordon is a taint like any other."""
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
    """`spec.nodeSelector` and the required node affinity; both must hold.

    None as `required` is no constraint. Its terms are alternatives; an empty one and one that does not
    parse match no node, so with no other terms nothing does.
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
    """Preferred node affinity. A term of weight 0 is not even parsed; any other must parse."""
    found = []
    for term in preferred or ():
        parsed = _node_term(_fields(term, "preference")) if term.get("weight") else ()
        if parsed:
            found.append(Preference(Selector((parsed,)), term["weight"]))
    return tuple(found)


def _node_term(term: Fields) -> Term:
    """What a nodeSelectorTerm requires, empty if nothing; `Invalid` if it does not parse."""
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
    """A matchFields item. The name is asked for as `node_name` and not as `node_id`, for stead refuses at
    once what insists on an unknown id, while in Kubernetes such a pod waits for its node."""
    key, operator, values = field.get("key"), field.get("operator"), _items(field, "values")
    if key != "metadata.name":
        raise Invalid(f"matchFields knows only the field 'metadata.name', not {key!r}")
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
    """What a pod tolerates. No operator is Equal, no key is every key, no effect is every effect."""
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
    """Required pod affinity and anti-affinity of a pod with these labels (from `labels_of`); all must hold.

    Another pod counts for affinity only if it matches every term, so the terms become one `Affinity`.
    Of anti-affinity each term stands alone, and keeps newcomers away in turn. A term that matches no pod
    at all keeps nothing apart and is left out. `namespaces` are those known now: a term that selects
    namespaces by label has to be translated again when they change.
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
    """Preferred pod affinity and anti-affinity. Every term must parse, and a weight of 0 adds nothing.

    stead asks whether a term holds on a node, where kube-scheduler counts the pods that match it.
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
    """A podAffinityTerm: which pods, and per what. `reach` are their namespaces, None for all of them."""

    def __init__(self, term: Fields, namespace: str, labels: Mapping[str, str], known: Namespaces | None) -> None:
        self.selector = pod_selector_of(term.get("labelSelector"))
        self.selector &= _same_labels(term, "matchLabelKeys", "In", labels)
        self.selector &= _same_labels(term, "mismatchLabelKeys", "NotIn", labels)
        self.reach = _reach(term, namespace, known)
        self.topology = label_key(term.get("topologyKey") or "")


def _affinity(terms: Sequence[_PodTerm], namespace: str, near: bool, symmetric: bool = False) -> Affinity:
    """One affinity towards the pods that match all the terms."""
    selector, reach = ANYWHERE, None
    for term in terms:
        selector &= term.selector
        reach = term.reach if reach is None else reach if term.reach is None else reach & term.reach
    # To `Affinity` the empty set is every namespace, so no namespace at all has to be said by the selector.
    if reach is None:
        reach = frozenset()
    elif not reach:
        selector, reach = NOWHERE, None
    elif reach == {namespace}:
        reach = None
    topologies = tuple(dict.fromkeys(term.topology for term in terms))
    return Affinity(selector, near, topologies, reach, symmetric)


def pod_selector_of(selector: Fields | None) -> Selector:
    """A labelSelector: null matches nothing, the empty one everything; `Invalid` if it does not parse."""
    if selector is None:
        return NOWHERE
    equal = [
        Requirement.is_in(label_key(check_key(key)), check_value(value))
        for key, value in sorted(_fields(selector, "matchLabels").items())
    ]
    expressions = [_requirement(each, LABEL_OPERATORS) for each in _parts(selector, "matchExpressions")]
    return Selector.all_of(*equal, *expressions)


def _same_labels(term: Fields, field: str, operator: str, labels: Mapping[str, str]) -> Selector:
    """matchLabelKeys or mismatchLabelKeys: the pod's own labels of that key, or others.

    The API server has written them into the labelSelector when the pod was made; only for a pod that
    never met one is there something left to add.
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
    """The namespaces a pod affinity term speaks of: the listed and the selected ones, the pod's own if the
    term has neither. None is all of them."""
    listed, selector = frozenset(_items(term, "namespaces")), term.get("namespaceSelector")
    if selector is None:
        return listed or frozenset({namespace})
    chosen = pod_selector_of(selector)
    if chosen == ANYWHERE:
        return None
    if known is None:
        raise Unsupported(f"a namespaceSelector ({chosen}) needs the labels of all namespaces, which were not given")
    return listed | {name for name, labels in known.items() if chosen.matches(labels_of({"labels": labels}))}


# -- which nodes: evenness


def spreads_of(
    constraints: Iterable[Fields] | None, labels: Mapping[str, str] = EMPTY
) -> tuple[tuple[Spread, ...], tuple[Preference, ...]]:
    """topologySpreadConstraints: those that refuse nodes, and those that are only preferred."""
    strict, soft = [], []
    for constraint in constraints or ():
        selector = pod_selector_of(constraint.get("labelSelector"))
        selector &= _same_labels(constraint, "matchLabelKeys", "In", labels)
        topology = label_key(constraint.get("topologyKey") or "")
        spread = Spread(topology, selector, constraint.get("maxSkew", 1))
        if constraint.get("whenUnsatisfiable") == "ScheduleAnyway":
            soft.append(Preference(spread))
            continue
        for field, usual in (("minDomains", 1), ("nodeAffinityPolicy", "Honor"), ("nodeTaintsPolicy", "Ignore")):
            if constraint.get(field) not in (None, usual):
                raise Unsupported(f"{field} {constraint[field]!r} of a topologySpreadConstraint is not supported yet")
        strict.append(spread)
    return tuple(strict), tuple(soft)


# -- how much


def requests_of(spec: Fields) -> Resources:
    """What a pod takes of a node, with the 1 it takes of `pods`.

    Containers run together, and with them the init containers that are restarted for ever (sidecars).
    The other init containers run one after another before, each beside the sidecars started by then; so
    the pod needs whichever is more. What the pod as a whole requests overrides that sum.
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
    """What a pod that has no node yet asks for.

    Its scheduling gates and its `nodeName` are not looked at: a gated pod is not to be submitted, and for
    one that has a node there is `resident_of`.
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
    """A pod that has a node, as others feel it: what it takes there, its labels, and whom it keeps away.

    It is never to be placed, so what only matters for that is left out, and nothing is refused because of
    it: the pod is there, whoever put it there. Anti-affinity that does not parse keeps nobody away.
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
    """Who made the pod: ``ReplicaSet/web-5d9``, or nothing. The one that controls it, if any does."""
    owners = sorted(_parts(metadata, "ownerReferences"), key=lambda owner: not owner.get("controller"))
    return f"{owners[0].get('kind')}/{owners[0].get('name')}" if owners else ""


def _all_of(affinities: tuple[Affinity, ...]) -> tuple[tuple[Affinity, ...], ...]:
    return (affinities,) if affinities else ()


def _refuse_the_unsupported(spec: Fields) -> None:
    """What kube-scheduler heeds and stead does not know of."""
    if _items(spec, "resourceClaims"):
        raise Unsupported("resourceClaims (dynamic resource allocation) are not supported yet; use resources.requests")
    for volume in _parts(spec, "volumes"):
        if volume.get("persistentVolumeClaim") is not None or volume.get("ephemeral") is not None:
            raise Unsupported(
                f"volume {volume.get('name')!r} is a persistent one, and stead does not know which nodes can mount it; "
                f"a pod with such volumes needs another scheduler"
            )
    for container in (*_parts(spec, "containers"), *_parts(spec, "initContainers")):
        for port in _parts(container, "ports"):
            if port.get("hostPort"):
                raise Unsupported(f"hostPort {port['hostPort']} is not supported yet; use a Service instead")
