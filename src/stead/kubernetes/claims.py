"""Converts Kubernetes' storage: PersistentVolumeClaims, PersistentVolumes, StorageClasses and CSINodes.

Rule: a claim means for nodes what it means to the plugins VolumeBinding, VolumeZone, VolumeRestrictions and
NodeVolumeLimits of kube-scheduler. Only the dicts passed in are read. A part that does not parse matches no node, and
never stops the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TypeVar

from stead.errors import Invalid
from stead.kubernetes.fields import Fields, fields_in, items_in, label_key, labels_of, parts_in, text_in
from stead.kubernetes.requesting import amounts_of
from stead.kubernetes.selecting import pod_selector_of, selector_of
from stead.language.claims import Claim, ClaimId
from stead.language.labels import ANYWHERE, NODE_NAME, NOWHERE, Labels, Requirement, Selector, Term

T = TypeVar("T")

SELECTED_NODE = "volume.kubernetes.io/selected-node"
"""The annotation by which a scheduler asks for a volume that the node can use. A provisioner that fails removes it."""

BIND_COMPLETED = "pv.kubernetes.io/bind-completed"
CLASS_ANNOTATION = "volume.beta.kubernetes.io/storage-class"
NO_PROVISIONER = "kubernetes.io/no-provisioner"
WAIT_FOR_FIRST_CONSUMER = "WaitForFirstConsumer"
ONE_POD = "ReadWriteOncePod"
FILESYSTEM = "Filesystem"
AVAILABLE, LOST = "Available", "Lost"
STORAGE = "storage"

NO_VOLUME = "persistentvolume "
UNBOUND_IMMEDIATE = "pod has unbound immediate PersistentVolumeClaims"

ZONE, REGION = "topology.kubernetes.io/zone", "topology.kubernetes.io/region"
OLD_ZONE, OLD_REGION = "failure-domain.beta.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/region"
ZONE_LABELS = {OLD_ZONE: ZONE, OLD_REGION: REGION, ZONE: ZONE, REGION: REGION}
"""Labels of volumes that say where they are, each with its current key."""

ZONE_DELIMITER = "__"
"""Separates the zones of a volume that is in several."""


@dataclass(frozen=True, slots=True)
class VolumeClaim:
    """A PersistentVolumeClaim, as far as a scheduler needs it."""

    id: ClaimId
    uid: str
    version: str
    class_name: str
    volume: str
    is_bound: bool
    is_lost: bool
    is_deleting: bool
    selected_node: str
    access_modes: tuple[str, ...]
    mode: str
    size: int
    selector: Selector
    """Which volumes it takes."""
    pod: str
    """The uid of the pod that owns it, if its owner is a pod."""

    @property
    def wants(self) -> tuple[object, ...]:
        """What decides which volumes match, apart from those that name the claim."""
        return self.class_name, self.access_modes, self.mode, self.size, self.selector


@dataclass(frozen=True, slots=True)
class Volume:
    """A PersistentVolume, as far as a scheduler needs it."""

    name: str
    uid: str
    version: str
    class_name: str
    claim: ClaimId
    """The claim that it belongs to, or is meant for; "" if none."""
    claim_uid: str
    is_available: bool
    is_deleting: bool
    access_modes: tuple[str, ...]
    mode: str
    size: int
    labels: Labels
    nodes: Selector
    """Which nodes can use it."""
    driver: str

    def is_for(self, claim: VolumeClaim) -> bool:
        """Whether it belongs to this claim, or is meant for it."""
        return self.claim == claim.id and self.claim_uid in ("", claim.uid)


@dataclass(frozen=True, slots=True)
class Class:
    """A StorageClass, as far as a scheduler needs it."""

    name: str
    provisioner: str
    waits: bool
    """Whether volumes are bound only when a pod that uses the claim has a node."""
    nodes: Selector
    """Where volumes can be created."""

    @property
    def can_provision(self) -> bool:
        return self.provisioner not in ("", NO_PROVISIONER)


# -- reading


def volume_claim_of(found: Fields) -> VolumeClaim:
    """A PersistentVolumeClaim."""
    metadata, spec, status = (fields_in(found, part) for part in ("metadata", "spec", "status"))
    annotations = fields_in(metadata, "annotations")
    owner = next((each for each in parts_in(metadata, "ownerReferences") if each.get("controller")), {})
    volume = text_in(spec, "volumeName")
    return VolumeClaim(
        key_of(found),
        text_in(metadata, "uid"),
        text_in(metadata, "resourceVersion"),
        _class_of(annotations, spec),
        volume,
        bool(volume) and BIND_COMPLETED in annotations,
        text_in(status, "phase") == LOST,
        bool(metadata.get("deletionTimestamp")),
        text_in(annotations, SELECTED_NODE),
        tuple(items_in(spec, "accessModes")),
        text_in(spec, "volumeMode") or FILESYSTEM,
        amounts_of(fields_in(fields_in(spec, "resources"), "requests"), lenient=True).get(STORAGE, 0),
        ANYWHERE if spec.get("selector") is None else _or(NOWHERE, lambda: pod_selector_of(spec["selector"])),
        text_in(owner, "uid") if owner.get("kind") == "Pod" else "",
    )


def volume_of(found: Fields) -> Volume:
    """A PersistentVolume."""
    metadata, spec = fields_in(found, "metadata"), fields_in(found, "spec")
    claim = fields_in(spec, "claimRef")
    labels = labels_of(metadata, lenient=True)
    return Volume(
        text_in(metadata, "name"),
        text_in(metadata, "uid"),
        text_in(metadata, "resourceVersion"),
        _class_of(fields_in(metadata, "annotations"), spec),
        f"{text_in(claim, 'namespace')}/{text_in(claim, 'name')}" if claim else "",
        text_in(claim, "uid"),
        text_in(fields_in(found, "status"), "phase") == AVAILABLE,
        bool(metadata.get("deletionTimestamp")),
        tuple(items_in(spec, "accessModes")),
        text_in(spec, "volumeMode") or FILESYSTEM,
        amounts_of(fields_in(spec, "capacity"), lenient=True).get(STORAGE, 0),
        labels,
        _nodes_of_volume(spec, labels),
        text_in(fields_in(spec, "csi"), "driver"),
    )


def class_of(found: Fields) -> Class:
    """A StorageClass."""
    waits = text_in(found, "volumeBindingMode") == WAIT_FOR_FIRST_CONSUMER
    name = text_in(fields_in(found, "metadata"), "name")
    nodes = _or(NOWHERE, lambda: _nodes_of_topologies(parts_in(found, "allowedTopologies")))
    return Class(name, text_in(found, "provisioner"), waits, nodes)


def limits_of(csi_node: Fields) -> tuple[tuple[str, int], ...]:
    """How many volumes of each driver a node may have, from its CSINode."""
    found: dict[str, int] = {}
    for driver in parts_in(fields_in(csi_node, "spec"), "drivers"):
        count = fields_in(driver, "allocatable").get("count")
        if isinstance(count, int) and not isinstance(count, bool):
            found[text_in(driver, "name")] = max(0, count)
    return tuple(sorted(found.items()))


def key_of(found: Fields) -> str:
    """``namespace/name``"""
    metadata = fields_in(found, "metadata")
    return f"{text_in(metadata, 'namespace')}/{text_in(metadata, 'name')}"


def _class_of(annotations: Fields, spec: Fields) -> str:
    return text_in(annotations, CLASS_ANNOTATION) or text_in(spec, "storageClassName")


def _or(instead: T, read: Callable[[], T]) -> T:
    try:
        return read()
    except Invalid:
        return instead


def _nodes_of_volume(spec: Fields, labels: Labels) -> Selector:
    """The nodes that can use a volume: by its node affinity, and by its labels of zones and regions."""
    affinity = fields_in(spec, "nodeAffinity")
    is_anywhere = affinity.get("required") is None
    nodes = ANYWHERE if is_anywhere else _or(NOWHERE, lambda: selector_of(None, fields_in(affinity, "required")))
    zones = {key: labels[key] for key in ZONE_LABELS if key in labels}
    return nodes & _nodes_of_zones(zones) if zones else nodes


def _nodes_of_zones(zones: dict[str, str]) -> Selector:
    """Nodes in these zones and regions. A node without any such label is in all of them. An old key of a volume matches
    the current one of a node that lacks the old one."""
    alternatives: list[list[Term]] = []
    for key, value in zones.items():
        values = value.split(ZONE_DELIMITER)
        terms: list[Term] = [(Requirement.is_in(key, *values),)]
        if ZONE_LABELS[key] != key:
            terms.append((Requirement.does_not_exist(key), Requirement.is_in(ZONE_LABELS[key], *values)))
        alternatives.append(terms)
    inside = tuple(tuple(each for term in terms for each in term) for terms in product(*alternatives))
    return Selector(((*(Requirement.does_not_exist(key) for key in ZONE_LABELS),), *inside))


def _nodes_of_topologies(terms: Sequence[Fields]) -> Selector:
    """The nodes of `allowedTopologies`: everywhere if there are none; an empty term matches no node."""
    if not terms:
        return ANYWHERE
    found = []
    for term in terms:
        expressions = parts_in(term, "matchLabelExpressions")
        if expressions:
            needed = (
                Requirement.is_in(label_key(text_in(each, "key")), *items_in(each, "values")) for each in expressions
            )
            found.append(tuple(needed))
    return Selector(tuple(found))


# -- matching


def matches(claim: VolumeClaim, volume: Volume) -> bool:
    """Whether a claim that is not bound could take a volume, wherever it is."""
    if volume.is_deleting or volume.size < claim.size or volume.mode != claim.mode:
        return False
    if volume.claim:
        return volume.is_for(claim)
    return (
        volume.is_available
        and volume.class_name == claim.class_name
        and claim.selector.matches(volume.labels)
        and set(claim.access_modes) <= set(volume.access_modes)
    )


def best_match(claim: VolumeClaim, volumes: Iterable[Volume], labels: Labels) -> Volume | None:
    """The volume that a claim gets on a node with these labels: the one that is meant for it, else the smallest."""
    found = [volume for volume in volumes if matches(claim, volume)]
    meant = [volume for volume in found if volume.claim]
    usable = [volume for volume in meant or found if volume.nodes.matches(labels)]
    return min(usable, key=lambda volume: (volume.size, volume.name), default=None)


def nodes_of_volumes(volumes: Iterable[Volume]) -> Selector:
    """The nodes that can use one of the volumes. Volumes that name their nodes by one label each, as local ones do, are
    one term."""
    values: dict[str, dict[str, None]] = {}
    others: list[Term] = []
    for term in (term for volume in volumes for term in volume.nodes.terms):
        if len(term) == 1 and _lists_values(term[0]):
            values.setdefault(term[0].key, {}).update(dict.fromkeys(sorted(term[0].values)))
        else:
            others.append(term)
    return Selector((*((Requirement.is_in(key, *found),) for key, found in values.items()), *others))


def _lists_values(requirement: Requirement) -> bool:
    return requirement == Requirement.is_in(requirement.key, *requirement.values)


# -- what a claim means for nodes


def bound_claim(claim: VolumeClaim, its_class: Class | None, volume: Volume | None) -> Claim:
    """A claim that has a volume."""
    nodes, problem = (
        (ANYWHERE, f"{NO_VOLUME}{quoted_name(claim.volume)} not found") if volume is None else (volume.nodes, "")
    )
    return Claim(claim.id, nodes, ONE_POD in claim.access_modes, _driver(its_class, volume), problem=problem)


def waiting_claim(claim: VolumeClaim, its_class: Class, volumes: Selector) -> Claim:
    """A claim that waits for its first pod. `volumes`: the nodes that can use a volume which it could take."""
    created = its_class.nodes if its_class.can_provision else NOWHERE
    if claim.selected_node:
        nodes = created & Selector.all_of(Requirement.is_in(NODE_NAME, claim.selected_node))
    else:
        nodes = volumes | created
    return Claim(claim.id, nodes, ONE_POD in claim.access_modes, _driver(its_class, None), bound=False)


def unbound_claim(claim: VolumeClaim, its_class: Class | None, volume: Volume | None) -> Claim:
    """A claim that Kubernetes binds without waiting for a pod, so pods wait for it. `volume` is the one it names."""
    driver = _driver(its_class, volume)
    return Claim(claim.id, ANYWHERE, ONE_POD in claim.access_modes, driver, False, UNBOUND_IMMEDIATE)


def _driver(its_class: Class | None, volume: Volume | None) -> str:
    """The driver whose limit counts: that of the volume, or the one that would create it."""
    if volume is not None:
        return volume.driver
    return its_class.provisioner if its_class is not None and its_class.can_provision else ""


def problem_of(claim: VolumeClaim, owner: tuple[str, str] | None) -> str:
    """Why no pod can use a claim, in kube-scheduler's words; "" if one can. `owner` are the key and the uid of the pod
    whose ephemeral volume it is."""
    if claim.is_lost:
        return (
            f"persistentvolumeclaim {quoted_name(claim.id)} bound to non-existent persistentvolume "
            f"{quoted_name(claim.volume)}"
        )
    if claim.is_deleting:
        return f"persistentvolumeclaim {quoted_name(claim.id)} is being deleted"
    if owner is not None and claim.pod != owner[1]:
        return f"PVC {claim.id} was not created for pod {owner[0]} (pod is not owner)"
    return ""


def turn_of_problem(problem: str) -> int:
    """kube-scheduler names one problem: claims that do not exist come first ("" here), then those that are lost, ending
    or of another pod, then those that are not bound, then volumes that do not exist."""
    if problem == UNBOUND_IMMEDIATE:
        return 2
    return 0 if not problem else 3 if problem.startswith(NO_VOLUME) else 1


def missing_ephemeral(id: ClaimId) -> str:
    """The problem of the claim of an ephemeral volume that does not exist yet."""
    return f"waiting for ephemeral volume controller to create the persistentvolumeclaim {quoted_name(id)}"


def not_found(id: ClaimId) -> str:
    """The problem of a claim that does not exist."""
    return f"persistentvolumeclaim {quoted_name(id)} not found"


def quoted_name(id: str) -> str:
    """The name, without its namespace, in quotes."""
    return f'"{id.rpartition("/")[2]}"'


# -- which claims a pod uses


def claims_in(volumes: Iterable[Fields], namespace: str, pod: str) -> tuple[tuple[ClaimId, ...], tuple[ClaimId, ...]]:
    """The claims of a pod's volumes, in order, and those of its ephemeral volumes among them."""
    found: dict[ClaimId, bool] = {}
    for volume in volumes:
        if volume.get("persistentVolumeClaim") is not None:
            name = text_in(fields_in(volume, "persistentVolumeClaim"), "claimName")
            if not name:
                raise Invalid(
                    f"spec.volumes[{volume.get('name')}].persistentVolumeClaim.claimName must be text such as 'data'"
                )
            found.setdefault(f"{namespace}/{name}", False)
        elif volume.get("ephemeral") is not None:
            found[f"{namespace}/{pod}-{volume.get('name')}"] = True
    return tuple(found), tuple(id for id, is_ephemeral in found.items() if is_ephemeral)
