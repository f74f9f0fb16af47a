"""Converts pods to entries of a spec: the inverse of `pod_manifest`.

Rule: the entry gives a pod that the scheduler reads as the same ask. Every field of the pod is either converted, or a
default that says nothing, or refused by its name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from stead.errors import Invalid
from stead.kubernetes.fields import Fields, fields_in, items_in, parts_in, text_in
from stead.kubernetes.gangs import COSCHEDULING_LABELS, KUEUE_LABEL
from stead.kubernetes.pod_manifest import HOSTNAME, KUBE_GPU, OVERCOMMITTED, PodOptions, Refusal, on_kubernetes
from stead.kubernetes.podspec import OWN_ANNOTATIONS, ask_of
from stead.kubernetes.requesting import PODS, amounts_of
from stead.kubernetes.selecting import NOT_DELETING
from stead.language.asks import Affinity, Ask, Choice, Preference, Spread
from stead.language.labels import NODE_ID, Selector
from stead.language.resources import CPU, GPU, Resources
from stead.specs.commands import Command
from stead.specs.writing import Entry, entry_of
from stead.text import quoted

Refuse = Callable[[str, str], None]
"""Refuses a field, for a reason; or notes that it is left out."""

TOKEN_VOLUME = "kube-api-access-"
"""How the names of volumes begin that the API server adds for the token of the service account."""

WRITTEN_BY_THE_SERVER = frozenset(
    "uid resourceVersion creationTimestamp generation generateName managedFields selfLink namespace name labels".split()
)
"""Fields of metadata that are converted, or that say nothing about the pod."""

LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"

GANG_LABELS = (*COSCHEDULING_LABELS, KUEUE_LABEL)

CONVERTED = frozenset(
    "containers nodeSelector affinity tolerations topologySpreadConstraints priority priorityClassName".split()
) | {"preemptionPolicy", "schedulerName", "nodeName"}
"""Fields of a pod's spec that are converted. The scheduler and the node are not part of a spec."""

DEFAULTS: Mapping[str, tuple[Any, ...]] = {
    "dnsPolicy": ("ClusterFirst",),
    "enableServiceLinks": (True,),
    "hostNetwork": (False,),
    "restartPolicy": ("Never",),
    "schedulingGates": ([],),
    "securityContext": ({},),
    "serviceAccount": ("default",),
    "serviceAccountName": ("default",),
    "terminationGracePeriodSeconds": (30,),
    "initContainers": ([],),
}
"""Values of other fields that say nothing."""

OF_A_CONTAINER = frozenset("name image command args env resources ports".split())
CONTAINER_DEFAULTS: Mapping[str, tuple[Any, ...]] = {
    "imagePullPolicy": ("Always", "IfNotPresent"),
    "terminationMessagePath": ("/dev/termination-log",),
    "terminationMessagePolicy": ("File",),
    "securityContext": ({},),
}

WHY: Mapping[str, str] = {
    "restartPolicy": "work in a spec runs once; set it to Never",
    "initContainers": "work in a spec has one container; leave them out",
    "volumes": "a spec has no volumes; leave them out",
    "overhead": "is set by a runtime class, which a spec does not have; leave it out",
    "args": "without a command they depend on the image; give the whole command",
}

_REFERENCE = re.compile(r"\$(?:(\$)|\(([^)]*)\))")


@dataclass(frozen=True, slots=True)
class Classes:
    """PriorityClasses by name: their values."""

    values: Mapping[str, int]

    def value(self, spec: Fields) -> int | None:
        """The priority of a pod; None if its class is not known."""
        if spec.get("priority") is not None or not spec.get("priorityClassName"):
            return int(spec.get("priority") or 0)
        return self.values.get(text_in(spec, "priorityClassName"))


def converted(pod: Fields, classes: Classes, refuse: Refuse) -> Entry:
    """The entry of a pod. `refuse` is called for each field that a spec cannot say."""
    metadata, spec = fields_in(pod, "metadata"), fields_in(pod, "spec")
    _check_metadata(metadata, refuse)
    for field in spec.keys() - CONVERTED - {"volumes"}:
        if spec[field] is not None and spec[field] not in DEFAULTS.get(field, ()):
            refuse(f"spec.{field}", WHY.get(field, "cannot be said in a spec; leave it out"))
    if any(not text_in(volume, "name").startswith(TOKEN_VOLUME) for volume in parts_in(spec, "volumes")):
        refuse("spec.volumes", WHY["volumes"])
    if "restartPolicy" not in spec:
        refuse("spec.restartPolicy", WHY["restartPolicy"])
    priority = classes.value(spec)
    if priority is None:
        name = text_in(spec, "priorityClassName")
        refuse("spec.priorityClassName", f"{name!r} is not known; add the PriorityClass to the file, or its priority")
    command = _command(spec, refuse)
    try:
        ask = ask_of(pod)
    except Invalid as error:
        refuse("spec", str(error))
        ask = ask_of(pod, {}, lenient=True)
    said = replace(_said_in_spec(ask), id=text_in(metadata, "name"), priority=priority or 0)
    if on_kubernetes(said, command, PodOptions()).pulls != ask.pulls:
        refuse("spec.affinity.podAffinity", "a spec has one required term, or several that select the same pods")
    try:
        return entry_of(said, command)
    except Invalid as error:
        raise Refusal("spec", str(error)) from None


def _check_metadata(metadata: Fields, refuse: Refuse) -> None:
    for field in metadata.keys() - WRITTEN_BY_THE_SERVER - {"annotations"}:
        if metadata[field]:
            refuse(f"metadata.{field}", "cannot be said in a spec; leave it out")
    for key in fields_in(metadata, "annotations"):
        if key != LAST_APPLIED and not key.startswith(OWN_ANNOTATIONS):
            refuse(f"metadata.annotations[{key}]", "a spec has no annotations; leave it out")
    for key in GANG_LABELS:
        if key in fields_in(metadata, "labels"):
            refuse(f"metadata.labels[{key}]", "gangs are not converted from pods; write a group under 'groups'")


# -- the container


def _command(spec: Fields, refuse: Refuse) -> Command:
    containers = parts_in(spec, "containers")
    if len(containers) != 1:
        refuse("spec.containers", f"work in a spec has one container, not {len(containers)}; leave the others out")
    container = containers[0] if containers else {}
    where = "spec.containers[0]"
    for field in container.keys() - OF_A_CONTAINER:
        value = container[field]
        is_token = field == "volumeMounts" and all(
            text_in(mount, "name").startswith(TOKEN_VOLUME) for mount in parts_in(container, field)
        )
        if value is not None and not is_token and value not in CONTAINER_DEFAULTS.get(field, ()):
            refuse(f"{where}.{field}", "cannot be said in a spec; leave it out")
    _check_limits(fields_in(container, "resources"), f"{where}.resources", refuse)
    for number, port in enumerate(parts_in(container, "ports")):
        if not port.get("hostPort"):
            refuse(f"{where}.ports[{number}]", "a port without hostPort cannot be said in a spec; leave it out")
        elif port.get("containerPort") != port["hostPort"] or port.get("name"):
            refuse(f"{where}.ports[{number}]", "a port in a spec has no name, and one number; use the same for both")
    env = _variables(container, f"{where}.env", refuse)
    command = tuple(_unquoted(each, env, f"{where}.command", refuse) for each in items_in(container, "command"))
    arguments = tuple(_unquoted(each, env, f"{where}.args", refuse) for each in items_in(container, "args"))
    if arguments and not command:
        refuse(f"{where}.args", WHY["args"])
        arguments = ()
    return Command((*command, *arguments), tuple(env.items()), text_in(container, "image"))


def _variables(container: Fields, where: str, refuse: Refuse) -> dict[str, str]:
    found: dict[str, str] = {}
    for number, variable in enumerate(parts_in(container, "env")):
        if variable.get("valueFrom") is not None:
            refuse(f"{where}[{number}].valueFrom", "a variable in a spec has a value; give it")
            continue
        value = _unquoted(text_in(variable, "value"), found, f"{where}[{number}].value", refuse)
        found[text_in(variable, "name")] = value
    return found


def _unquoted(text: Any, env: Mapping[str, str], where: str, refuse: Refuse) -> str:
    """The text as the container gets it: two dollar signs are one. References to variables are refused."""
    if not isinstance(text, str):
        raise Refusal(where, f"must be text, not {quoted(text)}")

    def plain(found: re.Match[str]) -> str:
        if found[1]:
            return "$"
        if found[2] in env:
            refuse(where, f"{found[0]} stands for a variable, which a spec cannot say; use a shell, as in ${found[2]}")
        return found[0]

    return _REFERENCE.sub(plain, text)


def _check_limits(resources: Fields, where: str, refuse: Refuse) -> None:
    for field in resources.keys() - {"requests", "limits"}:
        if resources[field]:
            refuse(f"{where}.{field}", "cannot be said in a spec; leave it out")
    requests, limits = (amounts_of(fields_in(resources, name)) for name in ("requests", "limits"))
    for name, amount in limits.items():
        if name in OVERCOMMITTED or requests.get(name) != amount:
            called = "cpu" if name == CPU else name
            refuse(f"{where}.limits[{called}]", "a spec has no limits; leave it out, and give the request")
    for name in requests:
        if name not in OVERCOMMITTED and name not in limits:
            refuse(f"{where}.limits[{name}]", "is missing; Kubernetes requires it to be equal to the request")


# -- the ask


def _said_in_spec(ask: Ask) -> Ask:
    """The ask of a pod without what Kubernetes adds, with stead's names."""
    first = ask.choices[0]
    amounts = {GPU if name == KUBE_GPU else name: n for name, n in first.resources.items() if name != PODS}
    return replace(
        ask,
        choices=(Choice(Resources(amounts), first.selector),),
        labels=ask.labels.changed({}, GANG_LABELS),
        affinities=tuple(tuple(_by_node(each) for each in ands) for ands in ask.affinities),
        spreads=tuple(_counted(each) for each in ask.spreads),
        prefers=tuple(_preferred(each) for each in ask.prefers),
        pulls=(),
        images=(),
        owner="",
        preemptible=False,
    )


def _preferred(preference: Preference) -> Preference:
    want = preference.want
    if isinstance(want, Affinity):
        return replace(preference, want=_by_node(want))
    return replace(preference, want=_counted(want)) if isinstance(want, Spread) else preference


def _by_node(affinity: Affinity) -> Affinity:
    return replace(affinity, topologies=tuple(map(_key, affinity.topologies)))


def _key(key: str) -> str:
    return NODE_ID if key == HOSTNAME else key


def _counted(spread: Spread) -> Spread:
    added = NOT_DELETING.terms[0]
    terms = (tuple(each for each in term if each not in added) for term in spread.selector.terms)
    return replace(spread, topology=_key(spread.topology), selector=Selector(tuple(terms)))
