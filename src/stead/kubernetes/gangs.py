"""Reads gangs: which pod belongs to which gang, and how many of its pods must be placed at once.

Rule: one table lists the ways in which a pod can name its gang, and the objects that say how large it is. Nothing here
keeps state or decides.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from stead.errors import Invalid
from stead.kubernetes.fields import Fields, fields_in, label_key, number_in, parts_in, text_in
from stead.language.asks import GroupId
from stead.text import quoted


class GangKind(StrEnum):
    """How a pod names its gang.

    Attributes:
        POD_GROUP: `spec.schedulingGroup`, which names a PodGroup of Kubernetes 1.36 or newer.
        WORKLOAD: `spec.workloadRef`, which names a pod group in a Workload of Kubernetes 1.35.
        COSCHEDULING: The label of the coscheduling plugin, which names its PodGroup.
        VOLCANO: The annotation of Volcano, which names its PodGroup.
        KUEUE: The label of Kueue's plain pods. An annotation says how many pods there are; there is no object.
    """

    POD_GROUP = "podgroup"
    WORKLOAD = "workload"
    COSCHEDULING = "coscheduling"
    VOLCANO = "volcano"
    KUEUE = "kueue"


OF_KUBERNETES = frozenset({GangKind.POD_GROUP, GangKind.WORKLOAD})
"""The gangs that kube-scheduler knows; it places other pods one by one."""

KUBE_SCHEDULER = "default-scheduler"

COSCHEDULING_LABELS = ("scheduling.x-k8s.io/pod-group", "pod-group.scheduling.sigs.k8s.io")
"""The second one is older."""

VOLCANO_ANNOTATIONS = ("scheduling.k8s.io/group-name", "scheduling.volcano.sh/group-name")

KUEUE_LABEL, KUEUE_COUNT = "kueue.x-k8s.io/pod-group-name", "kueue.x-k8s.io/pod-group-total-count"

COUNT_ANNOTATION = "stead.dev/min-available"
"""How many pods of a gang must be placed at once, where no object says it."""

GANG_ANNOTATIONS = (*VOLCANO_ANNOTATIONS, KUEUE_COUNT, COUNT_ANNOTATION)


SizeKey = tuple[GangKind, str, str]
"""Kind, namespace, and the name of what says how large a gang is."""


class Membership(NamedTuple):
    """The gang of a pod."""

    gang: GroupId
    """The gang's id: ``namespace/kind/name``. The id of a pod has one slash, so the two cannot be equal."""
    size_key: SizeKey
    least: int | None
    """How many of its pods must be placed at once, if the pods say that themselves."""

    @property
    def object(self) -> str:
        """What says how large the gang is, for a sentence: ``the PodGroup 'ring'``."""
        kind, _, name = self.size_key
        if kind is GangKind.WORKLOAD:
            workload, _, group = name.partition("/")
            return f"the pod group {group!r} of the Workload {workload!r}"
        if kind is GangKind.KUEUE:
            return f"the annotation {KUEUE_COUNT!r}"
        return f"the PodGroup {name!r} ({PATHS[kind][0].removeprefix('/apis/').partition('/')[0]})"


@dataclass(frozen=True, slots=True)
class GangSize:
    """What an object says about a gang.

    Attributes:
        least: How many pods must be placed at once; 1 if the object asks for no gang.
        timeout_s: How long pods may hold places while fewer are placed; None means without limit.
        topologies: Label keys of nodes; for each of them, all pods must be on nodes with the same value.
        priority: The priority of the gang; None means that of its pods.
        succeeded: How many pods have succeeded already, as the object's own controller counts them.
    """

    least: int
    timeout_s: float | None = None
    topologies: tuple[str, ...] = ()
    priority: int | None = None
    succeeded: int = 0


PATHS: Mapping[GangKind, tuple[str, ...]] = {
    GangKind.POD_GROUP: (
        "/apis/scheduling.k8s.io/v1alpha2/podgroups",
        "/apis/scheduling.k8s.io/v1alpha3/podgroups",
    ),
    GangKind.WORKLOAD: ("/apis/scheduling.k8s.io/v1alpha1/workloads",),
    GangKind.COSCHEDULING: ("/apis/scheduling.x-k8s.io/v1alpha1/podgroups",),
    GangKind.VOLCANO: ("/apis/scheduling.volcano.sh/v1beta1/podgroups",),
}
"""Where the API server has these objects, if it has them at all; several paths are several versions."""


def membership_of(metadata: Fields, spec: Fields) -> Membership | None:
    """The gang of a pod, or None. If a pod names several, the first kind of `GangKind` counts."""
    named, annotations = next(_names(metadata, spec), None), fields_in(metadata, "annotations")
    if named is None:
        if annotations.get(COUNT_ANNOTATION) is not None:
            raise Invalid(
                f"the annotation {COUNT_ANNOTATION!r} needs a group; name it with the label {COSCHEDULING_LABELS[0]!r}"
            )
        return None
    kind, name, more = named
    namespace = text_in(metadata, "namespace")
    return Membership(f"{namespace}/{kind}/{name}{more}", (kind, namespace, name), _count(annotations, kind))


def _names(metadata: Fields, spec: Fields) -> Iterator[tuple[GangKind, str, str]]:
    """Each gang that a pod names: its kind, the name of what says its size, and what else makes it another gang."""
    group = fields_in(spec, "schedulingGroup")
    if name := text_in(group, "podGroupName"):
        yield GangKind.POD_GROUP, name, ""
    workload = fields_in(spec, "workloadRef")
    if name := text_in(workload, "name"):
        replica = text_in(workload, "podGroupReplicaKey")
        yield GangKind.WORKLOAD, f"{name}/{text_in(workload, 'podGroup')}", f"/{replica}" if replica else ""
    labels, annotations = fields_in(metadata, "labels"), fields_in(metadata, "annotations")
    for kind, keys, found in (
        (GangKind.COSCHEDULING, COSCHEDULING_LABELS, labels),
        (GangKind.VOLCANO, VOLCANO_ANNOTATIONS, annotations),
        (GangKind.KUEUE, (KUEUE_LABEL,), labels),
    ):
        for key in keys:
            if name := text_in(found, key):
                yield kind, name, ""


def _count(annotations: Fields, kind: GangKind) -> int | None:
    """How many pods must be placed at once, as the pods say it."""
    keys = (KUEUE_COUNT, COUNT_ANNOTATION) if kind is GangKind.KUEUE else (COUNT_ANNOTATION,)
    for key in keys:
        written = annotations.get(key)
        if written is None:
            continue
        if not isinstance(written, str) or not written.isdecimal() or not int(written):
            raise Invalid(f"the annotation {key!r} must be a number of pods such as '8', not {quoted(written)}")
        return int(written)
    return None


def sizes_of(kind: GangKind, found: Fields) -> dict[SizeKey, GangSize]:
    """What an object says about gangs. What cannot be read says nothing."""
    metadata, spec = fields_in(found, "metadata"), fields_in(found, "spec")
    namespace, name = text_in(metadata, "namespace"), text_in(metadata, "name")
    if kind is GangKind.WORKLOAD:
        groups = ((f"{name}/{text_in(group, 'name')}", group) for group in parts_in(spec, "podGroups"))
        return {(kind, namespace, each): _by_policy(group, "policy") for each, group in groups}
    if kind is GangKind.POD_GROUP:
        return {(kind, namespace, name): _by_policy(spec, "schedulingPolicy")}
    succeeded = number_in(fields_in(found, "status"), "succeeded")
    timeout_s = number_in(spec, "scheduleTimeoutSeconds")
    size = GangSize(max(1, number_in(spec, "minMember")), timeout_s if timeout_s > 0 else None, succeeded=succeeded)
    return {(kind, namespace, name): size}


def _by_policy(spec: Fields, field: str) -> GangSize:
    """A pod group of Kubernetes itself. With the policy `basic`, each pod may be placed alone."""
    gang = fields_in(fields_in(spec, field), "gang")
    constraints = parts_in(fields_in(spec, "schedulingConstraints"), "topologyConstraints")
    priority = number_in(spec, "priority") if spec.get("priority") is not None else None
    return GangSize(
        max(1, number_in(gang, "minCount")),
        topologies=tuple(label_key(key) for each in constraints if (key := text_in(each, "topologyKey"))),
        priority=priority,
    )
