"""Writes an ask as a pod: the inverse of `podspec`.

Rule: `ask_of` reads the pod as the ask that `on_kubernetes` describes; what a pod cannot say is refused with the name
of the field, never left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from stead.errors import Invalid
from stead.kubernetes.fields import STEAD_KEYS
from stead.kubernetes.podspec import POLICY_ANNOTATION
from stead.kubernetes.requesting import CPU_STEP, DEFAULTS, PODS, image_name
from stead.kubernetes.selecting import NOT_DELETING, PREFERRED, REQUIRED, REQUIRED_PULL
from stead.language.arguments import effect_text
from stead.language.asks import Affinity, Ask, Choice, HostPort, PolicyName, Preference, Spread
from stead.language.labels import ANYWHERE, NODE_ID, NODE_NAME, NOWHERE, Operator, Requirement, Selector, Term
from stead.language.resources import CPU, GPU, UNIT, Resources
from stead.language.taints import Effect, Toleration
from stead.specs.commands import Command

HOSTNAME = "kubernetes.io/hostname"
"""The label by which pods are apart from or near others by node; in stead, that is the node itself."""

KUBE_GPU = "nvidia.com/gpu"
"""What `GPU` is on Kubernetes."""

STORAGE = "ephemeral-storage"

MAIN = "main"
"""The name of the container."""

OVERCOMMITTED = (CPU, "memory", STORAGE)
"""Resources that a container can request without a limit."""

Object = dict[str, Any]

_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*", re.ASCII)
_QUALIFIED = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?", re.ASCII)
_EXPANDED = re.compile(r"\$(?=[$(])")
NAME_MAX = 253


@dataclass(frozen=True, slots=True)
class PodOptions:
    """What a pod needs in addition to its ask.

    Attributes:
        namespace: The namespace of pods whose ask names none.
        scheduler_name: The scheduler of the pod.
        priority_class: The PriorityClass of the pod; "" for none.
    """

    namespace: str = "default"
    scheduler_name: str = "stead"
    priority_class: str = ""


class Refusal(Invalid):
    """A pod cannot say this `field` of an ask."""

    def __init__(self, field: str, why: str) -> None:
        super().__init__(f"{field}: {why}")
        self.field, self.why = field, why


def pod_of(ask: Ask, command: Command, options: PodOptions) -> Object:
    """The pod of an ask. Raises `Refusal` if a pod cannot say what the ask says.

    The priority and the deadline of an ask are not part of its pod: a PriorityClass stands for the first, and nothing
    for the second.
    """
    _check(ask, command)
    metadata: Object = {"name": ask.id, "namespace": ask.namespace or options.namespace}
    if ask.labels:
        metadata["labels"] = dict(ask.labels)
    if ask.policy is not PolicyName.KUBE:
        metadata["annotations"] = {POLICY_ANNOTATION: ask.policy.value}
    spec: Object = {"schedulerName": options.scheduler_name, "restartPolicy": "Never"}
    if options.priority_class:
        spec["priorityClassName"] = options.priority_class
    spec |= _node_rules(ask)
    if ask.spreads or any(isinstance(preference.want, Spread) for preference in ask.prefers):
        spec["topologySpreadConstraints"] = [
            *(_spread(each, "DoNotSchedule") for each in ask.spreads),
            *(_spread(each.want, "ScheduleAnyway") for each in ask.prefers if isinstance(each.want, Spread)),
        ]
    if ask.tolerations:
        spec["tolerations"] = [_toleration(each) for each in ask.tolerations]
    spec["containers"] = [_container(ask, command)]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def on_kubernetes(ask: Ask, command: Command, options: PodOptions) -> Ask:
    """The ask that a scheduler reads from the pod of an ask: the same, with what Kubernetes adds and calls otherwise.

    Every pod requests one of `pods`. The node itself is the label kubernetes.io/hostname, and GPU is nvidia.com/gpu.
    Pods that are being deleted do not count for topology spread. Pods that this one wants near it are drawn to it. The
    image of the container is known.
    """
    first = ask.choices[0]
    amounts = {KUBE_GPU if name == GPU else name: amount for name, amount in first.resources.items()}
    namespace = ask.namespace or options.namespace
    ands = tuple(_by_hostname(each, namespace) for each in (ask.affinities[0] if ask.affinities else ()))
    near = tuple(each for each in ands if each.near)
    preferred = [_preferred(each, namespace) for each in ask.prefers]
    on_work = [each for each in preferred if isinstance(each.want, Affinity)]
    on_work.sort(key=lambda each: not (isinstance(each.want, Affinity) and each.want.near))
    terms = [replace(each, topologies=(key,)) for each in near for key in each.topologies]
    return replace(
        ask,
        id=f"{namespace}/{ask.id}",
        choices=(Choice(Resources({**amounts, PODS: UNIT}), _names_last(first.selector)),),
        affinities=((*near, *(each for each in ands if not each.near)),) if ands else (),
        spreads=tuple(_counted(each) for each in ask.spreads),
        prefers=(
            *(each for each in preferred if isinstance(each.want, Selector)),
            *on_work,
            *(each for each in preferred if isinstance(each.want, Spread)),
        ),
        namespace=namespace,
        images=(image_name(command.image),),
        pulls=(*on_work, *(Preference(each, REQUIRED_PULL) for each in terms if each.selector != NOWHERE)),
        deadline=None,
        owner="",
        preemptible=True,
    )


def _by_hostname(affinity: Affinity, namespace: str) -> Affinity:
    keys = tuple(dict.fromkeys(HOSTNAME if key == NODE_ID else key for key in affinity.topologies))
    reach = None if affinity.namespaces == frozenset({namespace}) else affinity.namespaces
    return replace(affinity, topologies=keys, namespaces=reach)


def _preferred(preference: Preference, namespace: str) -> Preference:
    want = preference.want
    if isinstance(want, Affinity):
        return replace(preference, want=_by_hostname(want, namespace))
    return replace(preference, want=_counted(want) if isinstance(want, Spread) else _names_last(want))


def _names_last(selector: Selector) -> Selector:
    """The same selector; in a pod, what is about the node's name comes after what is about its labels."""
    return Selector(tuple(tuple(sorted(term, key=lambda each: each.key == NODE_NAME)) for term in selector.terms))


def _counted(spread: Spread) -> Spread:
    """A constraint that counts no pods which are being deleted."""
    key = HOSTNAME if spread.topology == NODE_ID else spread.topology
    selector = spread.selector if spread.selector == NOWHERE else spread.selector & NOT_DELETING
    return replace(spread, topology=key, selector=selector)


# -- what a pod cannot say


def _check(ask: Ask, command: Command) -> None:
    for what, name in (("id", ask.id), ("namespace", ask.namespace or "default")):
        if len(name) > NAME_MAX or not _NAME.fullmatch(name):
            raise Refusal(
                what, f"{name!r} is not a name on Kubernetes; use lowercase letters, digits and '-', such as 'train-1'"
            )
    if not command.image:
        raise Refusal("image", "is missing; a pod needs a container image, for example 'python:3.12'")
    if len(ask.choices) > 1:
        raise Refusal("fallback", "a pod has one choice; leave it out, or write what is better under prefers")
    if len(ask.affinities) > 1:
        raise Refusal("near", "a pod cannot have alternatives of near and apart; keep one of them")
    if len([each for each in (ask.affinities[0] if ask.affinities else ()) if each.near]) > 1:
        raise Refusal("near", "on a pod, several terms mean one other pod that matches all of them; keep one of them")
    if any(isinstance(each.want, Spread) and each.weight != Preference(each.want).weight for each in ask.prefers):
        raise Refusal("prefers", "the weight of a spread cannot be said for a pod; leave it out")
    if {GPU, KUBE_GPU} <= ask.choices[0].resources.keys():
        raise Refusal("resources", f"GPU and {KUBE_GPU} are the same on Kubernetes; name one of them")
    if ask.claims:
        raise Refusal("claims", "a pod must say where a volume is mounted, and work cannot; leave them out")
    if ask.pulls or ask.images:
        raise Refusal("pulls" if ask.pulls else "images", "cannot be said for a pod; it follows from its other fields")


def _key(key: str, field: str) -> str:
    """The key of a label of Kubernetes."""
    if key in STEAD_KEYS or ":" in key or "_" in key.rpartition("/")[0]:
        good = HOSTNAME if key in (NODE_ID, *STEAD_KEYS) else "zone"
        raise Refusal(field, f"{key!r} is not a label of Kubernetes; use another one, for example {good}")
    return key


def _expression(requirement: Requirement, field: str, numbers: bool) -> Object:
    key, values = _key(requirement.key, field), sorted(requirement.values)
    operator = requirement.operator
    if operator in (Operator.GT, Operator.LT):
        number = requirement.greater if operator is Operator.GT else requirement.less
        same = (Requirement.greater_than if operator is Operator.GT else Requirement.less_than)(key, number or 0)
        if number is None or number < 0:
            raise Refusal(field, f"'{requirement}' cannot be said for a pod; compare with a number from 0")
        values = [str(number)]
    else:
        written = {
            Operator.IN: Requirement.is_in(key, *values),
            Operator.NOT_IN: Requirement.not_in(key, *values),
            Operator.EXISTS: Requirement.exists(key),
            Operator.DOES_NOT_EXIST: Requirement.does_not_exist(key),
        }
        same = written[operator]
    needs_values = operator in (Operator.IN, Operator.NOT_IN)
    if same != requirement or (needs_values and not values) or (operator in (Operator.GT, Operator.LT) and not numbers):
        raise Refusal(field, f"'{requirement}' cannot be said for a pod; use In, NotIn or Exists, for example zone = a")
    return {"key": key, "operator": operator.value, **({"values": values} if values else {})}


def _node_term(term: Term, field: str) -> Object:
    """A nodeSelectorTerm."""
    named = [each for each in term if each.key == NODE_NAME]
    labels = [each for each in term if each.key != NODE_NAME]
    found: Object = {}
    if labels:
        found["matchExpressions"] = [_expression(each, field, numbers=True) for each in labels]
    if named:
        found["matchFields"] = [_node_name(each, field) for each in named]
    return found


def _node_name(requirement: Requirement, field: str) -> Object:
    values = sorted(requirement.values)
    if requirement.operator not in (Operator.IN, Operator.NOT_IN) or len(values) != 1:
        raise Refusal(field, f"'{requirement}' must compare node_name with one name; use {HOSTNAME} for several")
    return {"key": "metadata.name", "operator": requirement.operator.value, "values": values}


def _label_selector(selector: Selector, field: str) -> Object | None:
    """A labelSelector; None matches nothing."""
    if selector == NOWHERE:
        return None
    if len(selector.terms) > 1:
        raise Refusal(field, f"'{selector}' has alternatives, which a label selector of pods cannot have; keep one")
    term = selector.terms[0]
    equal = _equal(term)
    if equal is not None:
        return {"matchLabels": {_key(key, field): value for key, value in equal.items()}} if equal else {}
    return {"matchExpressions": [_expression(each, field, numbers=False) for each in term]}


# -- the parts of a pod


def _node_rules(ask: Ask) -> Object:
    """`nodeSelector` and `affinity`, as far as there are any."""
    found: Object = {}
    node: Object = {}
    selector = ask.choices[0].selector
    if selector == NOWHERE:
        raise Refusal("selector", "matches no node, which a pod cannot say; name a label, for example zone = a")
    if selector != ANYWHERE:
        equal = _equal(selector.terms[0]) if len(selector.terms) == 1 else None
        if equal is not None:
            found["nodeSelector"] = {_key(key, "selector"): value for key, value in equal.items()}
        else:
            terms = [_node_term(term, "selector") for term in selector.terms]
            node[REQUIRED] = {"nodeSelectorTerms": terms}
    preferred = [_preferred_nodes(each) for each in ask.prefers if isinstance(each.want, Selector)]
    if preferred:
        node[PREFERRED] = preferred
    affinity: Object = {"nodeAffinity": node} if node else {}
    for near, name in ((True, "podAffinity"), (False, "podAntiAffinity")):
        affinity |= _pod_rules(ask, near, name)
    return {**found, "affinity": affinity} if affinity else found


def _equal(term: Term) -> dict[str, str] | None:
    """The term as a map from keys to values, if it is one, in the order in which such a map is read."""
    keys = [each.key for each in term]
    if keys != sorted(set(keys)) or NODE_NAME in keys:
        return None
    if any(each != Requirement.is_in(each.key, *each.values) or len(each.values) != 1 for each in term):
        return None
    return {each.key: next(iter(each.values)) for each in term}


def _preferred_nodes(preference: Preference) -> Object:
    want = preference.want
    assert isinstance(want, Selector)
    if len(want.terms) != 1 or not want.terms[0]:
        raise Refusal("prefers", f"'{want}' must be one list of conditions; write several preferences instead of 'or'")
    return {"weight": preference.weight, "preference": _node_term(want.terms[0], "prefers")}


def _pod_rules(ask: Ask, near: bool, name: str) -> Object:
    field = "near" if near else "apart"
    required = [
        term
        for affinity in (ask.affinities[0] if ask.affinities else ())
        if affinity.near is near
        for term in _pod_terms(affinity, field)
    ]
    preferred = []
    for preference in ask.prefers:
        if isinstance(preference.want, Affinity) and preference.want.near is near:
            if preference.want.symmetric:
                raise Refusal("prefers", "a preference cannot be symmetric; leave that out")
            if len(preference.want.topologies) > 1:
                raise Refusal("prefers", "write one preference for each topology key")
            (term,) = _pod_terms(replace(preference.want, symmetric=not near), "prefers")
            preferred.append({"weight": preference.weight, "podAffinityTerm": term})
    rules = {REQUIRED: required, PREFERRED: preferred}
    return {name: {key: terms for key, terms in rules.items() if terms}} if required or preferred else {}


def _pod_terms(affinity: Affinity, field: str) -> Iterable[Object]:
    """One term for each topology key."""
    if not affinity.near and not affinity.symmetric:
        raise Refusal(field, "pods that must be apart are so in both directions; add symmetric: true")
    if not affinity.near and len(affinity.topologies) > 1:
        raise Refusal(field, "write one entry under apart for each topology key")
    if not affinity.near and affinity.selector == NOWHERE:
        raise Refusal(field, "selects no work; leave it out")
    if affinity.selector == NOWHERE and affinity.namespaces is not None:
        raise Refusal(field, "selects no work; leave out its namespaces")
    for key in affinity.topologies:
        term: Object = {"topologyKey": HOSTNAME if key == NODE_ID else _key(key, field)}
        selector = _label_selector(affinity.selector, field)
        if selector is not None:
            term["labelSelector"] = selector
        elif field == "prefers":
            raise Refusal(field, "selects no work; leave it out")
        if affinity.namespaces:
            term["namespaces"] = sorted(affinity.namespaces)
        elif affinity.namespaces is not None:
            term["namespaceSelector"] = {}
        yield term


def _spread(spread: Spread, unsatisfiable: str) -> Object:
    field = "spread"
    if spread.selector == ANYWHERE:
        raise Refusal(field, "over all work cannot be said for a pod; name labels, for example {app: web}")
    if not spread.needs_key:
        raise Refusal(field, "needs_key: false cannot be said for a pod; leave it out")
    if spread.min_domains > 1 and unsatisfiable != "DoNotSchedule":
        raise Refusal(field, "min_domains of a preference cannot be said for a pod; leave it out")
    constraint: Object = {
        "topologyKey": HOSTNAME if spread.topology == NODE_ID else _key(spread.topology, field),
        "maxSkew": spread.max_skew,
        "whenUnsatisfiable": unsatisfiable,
    }
    selector = _label_selector(spread.selector, field)
    if selector is not None:
        constraint["labelSelector"] = selector
    if spread.min_domains > 1:
        constraint["minDomains"] = spread.min_domains
    if not spread.by_selector:
        constraint["nodeAffinityPolicy"] = "Ignore"
    if spread.by_taints:
        constraint["nodeTaintsPolicy"] = "Honor"
    return constraint


def _toleration(toleration: Toleration) -> Object:
    field, seconds = "tolerations", toleration.seconds
    found: Object = {} if toleration.key is None else {"key": _key(toleration.key, field)}
    if toleration.complement and not toleration.values:
        found["operator"] = "Exists"
    elif not toleration.complement and len(toleration.values) == 1 and toleration.key is not None:
        found["operator"] = "Equal"
        (value,) = toleration.values
        if value:
            found["value"] = value
    else:
        raise Refusal(field, f"'{toleration}' cannot be said for a pod; write one toleration for each value")
    if toleration.effect is not None:
        found["effect"] = effect_text(toleration.effect)
    if seconds is not None:
        if toleration.effect is not Effect.NO_EXECUTE or seconds != int(seconds):
            raise Refusal(field, "seconds must be a whole number, and need the effect NoExecute")
        found["tolerationSeconds"] = int(seconds)
    return found


def _container(ask: Ask, command: Command) -> Object:
    found: Object = {"name": MAIN, "image": command.image}
    if command.arguments:
        found["command"] = [_unexpanded(each) for each in command.arguments]
    if command.env:
        found["env"] = [{"name": name, "value": _unexpanded(value)} for name, value in command.env]
    if ask.ports:
        if len(set(ask.ports)) < len(ask.ports):
            raise Refusal("ports", "lists a port twice; leave one of them out")
        found["ports"] = [_port(each) for each in ask.ports]
    found["resources"] = _resources(ask)
    return found


def _unexpanded(text: str) -> str:
    """Kubernetes replaces $(NAME) in commands and variables, and makes one dollar sign of two."""
    return _EXPANDED.sub("$$", text)


def _port(port: HostPort) -> Object:
    if port.ip == "0.0.0.0":
        raise Refusal("ports", "0.0.0.0 means all addresses; leave out the ip")
    more = {"hostIP": port.ip} if port.ip else {}
    return {"containerPort": port.port, "hostPort": port.port, "protocol": port.protocol, **more}


def _resources(ask: Ask) -> Object:
    """Requests, and limits where a container must have them. A request of 0 says that scores assume nothing more."""
    requests: dict[str, str] = {}
    limits: dict[str, str] = {}
    for name, amount in ask.choices[0].resources.items():
        kube = {CPU: "cpu", GPU: KUBE_GPU}.get(name, name)
        requests[kube] = _quantity(name, amount)
        if name not in OVERCOMMITTED:
            limits[kube] = requests[kube]
    for name in DEFAULTS:
        kube = "cpu" if name == CPU else name
        if ask.estimates.get(name) == DEFAULTS[name] and kube not in requests:
            continue
        if ask.estimates.get(name):
            raise Refusal(
                "estimates", f"of {name} must be what kube-scheduler assumes for a container without a request"
            )
        requests.setdefault(kube, "0")
    if set(ask.estimates) - set(DEFAULTS):
        raise Refusal("estimates", f"can be only of {' and '.join(DEFAULTS)}")
    return {"requests": requests, **({"limits": limits} if limits else {})} if requests else {}


def _quantity(name: str, amount: int) -> str:
    if name == CPU:
        if amount % CPU_STEP:
            raise Refusal("resources", "a pod requests CPU in steps of 0.001, for example 0.5")
        return str(amount // UNIT) if amount % UNIT == 0 else f"{amount // CPU_STEP}m"
    if amount % UNIT:
        part = "a part of a GPU" if name == GPU else f"a fraction of {name}"
        raise Refusal("resources", f"a pod cannot request {part}; a good value is 1")
    if name == PODS:
        raise Refusal("resources", "every pod counts as one of 'pods'; leave it out")
    known = name in (GPU, "memory", STORAGE) or name.startswith("hugepages-")
    if not known and not _QUALIFIED.fullmatch(name):
        raise Refusal(
            "resources",
            f"{name!r} is not a resource of Kubernetes; good names are CPU, memory, GPU and example.com/{name}",
        )
    return str(amount // UNIT)


def priority_class(priority: int, preempts: bool) -> tuple[str, Object] | None:
    """The name of a PriorityClass that stands for a priority, and the object; None if none is needed."""
    if not priority and preempts:
        return None
    name = f"stead-{'minus-' if priority < 0 else ''}{abs(priority)}{'' if preempts else '-never-preempts'}"
    found: Object = {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": name},
        "value": priority,
    }
    return name, found if preempts else {**found, "preemptionPolicy": "Never"}
