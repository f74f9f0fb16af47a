"""The manifests of a submission: a pod for each piece, and the objects that its pods need.

Rule: a group becomes a gang, and its strategy becomes affinities between its pods. Nothing here calls the API server.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from stead.kubernetes.gangs import COSCHEDULING_LABELS, COUNT_ANNOTATION
from stead.kubernetes.pod_manifest import HOSTNAME, Object, PodOptions, Refusal, pod_of, priority_class
from stead.language.asks import Affinity, Ask, Group, Preference, Strategy
from stead.language.labels import NODE_ID, Labels, Requirement, Selector
from stead.specs.sections import Misplaced
from stead.specs.submissions import Piece, Submission

GANG_LABEL = COSCHEDULING_LABELS[0]

POD_GROUPS = "scheduling.x-k8s.io/v1alpha1"

ClassOf = Callable[[int, bool, str], str]
"""The name of the PriorityClass for a priority and whether it preempts; the text is the place in the file."""


@dataclass(frozen=True, slots=True)
class Manifests:
    """What to create, in order.

    Attributes:
        classes: PriorityClasses, by name.
        pod_groups: PodGroups of the coscheduling plugin.
        pods: Pods by the id of their piece.
    """

    classes: dict[str, Object] = field(default_factory=dict)
    pod_groups: list[Object] = field(default_factory=list)
    pods: dict[str, Object] = field(default_factory=dict)

    def __iter__(self) -> Iterator[Object]:
        yield from (*self.classes.values(), *self.pod_groups, *self.pods.values())


def manifests_of(
    work: Submission, options: PodOptions, with_pod_groups: bool = False, class_of: ClassOf | None = None
) -> Manifests:
    """The manifests of a submission. Without `class_of`, they contain a PriorityClass for each priority. Without
    `with_pod_groups`, an annotation of each pod says how large its gang is, which only stead reads."""
    work.check_starts_now()
    found = Manifests()
    for piece in work.pieces.values():
        group = work.groups.get(piece.group)
        try:
            ask = piece.ask if group is None else _member(piece.ask, group)
            pod = pod_of(ask, piece.command, replace(options, priority_class=_class(found, piece, class_of)))
        except Refusal as refusal:
            raise Misplaced(f"{piece.place}.{refusal}") from None
        if group is not None and not with_pod_groups:
            pod["metadata"].setdefault("annotations", {})[COUNT_ANNOTATION] = str(group.least(0))
        found.pods[piece.id] = pod
    for id, group in work.groups.items():
        if with_pod_groups:
            namespace = group.alternatives[0][0].namespace or options.namespace
            found.pod_groups.append(_pod_group(group, namespace))
        elif group.timeout_s is not None:
            raise Misplaced(f"{work.places[id]}.timeout: needs PodGroups ({POD_GROUPS}) in the cluster; leave it out")
    return found


def _class(found: Manifests, piece: Piece, class_of: ClassOf | None) -> str:
    wanted = priority_class(piece.ask.priority, piece.ask.preempts)
    if wanted is None:
        return ""
    if class_of is not None:
        return class_of(piece.ask.priority, piece.ask.preempts, piece.place)
    name, made = wanted
    found.classes[name] = made
    return name


def _pod_group(group: Group, namespace: str) -> Object:
    spec: Object = {"minMember": group.least(0)}
    if group.timeout_s is not None:
        spec["scheduleTimeoutSeconds"] = max(1, round(group.timeout_s))
    metadata = {"name": group.id, "namespace": namespace}
    return {"apiVersion": POD_GROUPS, "kind": "PodGroup", "metadata": metadata, "spec": spec}


def _member(ask: Ask, group: Group) -> Ask:
    """The ask of a pod of a gang, with the strategies of the group as its own rules."""
    mine = Selector.all_of(Requirement.is_in(GANG_LABEL, group.id))
    rules: list[Affinity] = []
    prefers: list[Preference] = []
    for key, strategy in ((NODE_ID, group.strategy), *group.topology):
        together = strategy in (Strategy.PACK, Strategy.STRICT_PACK)
        affinity = Affinity(mine, together, (HOSTNAME if key == NODE_ID else key,))
        if strategy.strict:
            rules.append(replace(affinity, symmetric=not together))
        elif strategy is not Strategy.ANY:
            prefers.append(Preference(affinity))
    ands = ask.affinities or ((),)
    return replace(
        ask,
        labels=Labels({**ask.labels, GANG_LABEL: group.id}),
        affinities=tuple((*each, *rules) for each in ands) if rules else ask.affinities,
        prefers=(*ask.prefers, *prefers),
    )
