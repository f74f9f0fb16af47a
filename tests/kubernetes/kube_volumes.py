"""What kube-scheduler's plugins for volumes say about a pod and a node, read from its source, one node at a time.

Rule: it reads API objects, and nothing of stead. It is simple and slow. VolumeZone counts as VolumeBinding here: it
refuses the same nodes in other words.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Object = Mapping[str, Any]

ZONES = {
    "failure-domain.beta.kubernetes.io/zone": "topology.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region": "topology.kubernetes.io/region",
    "topology.kubernetes.io/zone": "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region": "topology.kubernetes.io/region",
}
IN_USE = (
    "node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode already in-use by another pod"
)
TOO_MANY = "node(s) exceed max volume count"
ELSEWHERE = "node(s) didn't match PersistentVolume's node affinity"
NO_VOLUME = "node(s) didn't find available persistent volumes to bind"


class Rejected(Exception):
    """The pod cannot be scheduled, whatever the node."""


@dataclass
class StorageWorld:
    """The objects of a cluster. `placed` are pairs of a pod and the name of its node."""

    claims: list[Object] = field(default_factory=list)
    volumes: list[Object] = field(default_factory=list)
    classes: list[Object] = field(default_factory=list)
    csi_nodes: list[Object] = field(default_factory=list)
    placed: list[tuple[Object, str]] = field(default_factory=list)

    def claim(self, name: str) -> Object | None:
        return next((each for each in self.claims if each["metadata"]["name"] == name), None)

    def volume(self, name: str) -> Object | None:
        return next((each for each in self.volumes if each["metadata"]["name"] == name), None)

    def storage_class(self, claim: Object) -> Object | None:
        name = claim["spec"].get("storageClassName")
        return next((each for each in self.classes if each["metadata"]["name"] == name), None)


def names_of(pod: Object) -> Iterator[tuple[str, bool]]:
    """The claims of a pod; whether it is of an ephemeral volume."""
    for each in pod["spec"].get("volumes") or ():
        if "persistentVolumeClaim" in each:
            yield each["persistentVolumeClaim"]["claimName"], False
        elif "ephemeral" in each:
            yield f"{pod['metadata']['name']}-{each['name']}", True


def message(world: StorageWorld, pod: Object, nodes: Sequence[Object]) -> str | None:
    """Why no node takes the pod; None if one does."""
    try:
        reject(world, pod)
        reasons = [refusals(world, pod, node) for node in nodes]
    except Rejected as why:
        return f"0/{len(nodes)} nodes are available: {why}."
    if any(not found for found in reasons):
        return None
    counts: dict[str, int] = {}
    for reason in (each for found in reasons for each in found):
        counts[reason] = counts.get(reason, 0) + 1
    return f"0/{len(nodes)} nodes are available: {', '.join(sorted(f'{n} {why}' for why, n in counts.items()))}."


def reject(world: StorageWorld, pod: Object) -> None:
    """The PreFilter of VolumeRestrictions, VolumeBinding and VolumeZone, in that order."""
    for name, is_ephemeral in names_of(pod):
        if not is_ephemeral and world.claim(name) is None:
            raise Rejected(f'persistentvolumeclaim "{name}" not found')
    for name, is_ephemeral in names_of(pod):
        claim = world.claim(name)
        if claim is None:
            raise Rejected(f'waiting for ephemeral volume controller to create the persistentvolumeclaim "{name}"')
        if claim.get("status", {}).get("phase") == "Lost":
            volume = claim["spec"]["volumeName"]
            raise Rejected(f'persistentvolumeclaim "{name}" bound to non-existent persistentvolume "{volume}"')
        if claim["metadata"].get("deletionTimestamp"):
            raise Rejected(f'persistentvolumeclaim "{name}" is being deleted')
        owners = [each["uid"] for each in claim["metadata"].get("ownerReferences", ()) if each.get("controller")]
        if is_ephemeral and pod["metadata"]["uid"] not in owners:
            metadata = pod["metadata"]
            whose = f"{metadata['namespace']}/{metadata['name']}"
            raise Rejected(f"PVC {metadata['namespace']}/{name} was not created for pod {whose} (pod is not owner)")
    claims = [claim for name, _ in names_of(pod) if (claim := world.claim(name)) is not None]
    if any(not is_bound(claim) and not is_delayed(world, claim) for claim in claims):
        raise Rejected("pod has unbound immediate PersistentVolumeClaims")
    for claim in claims:
        name = claim["spec"].get("volumeName")
        if name and world.volume(name) is None:
            raise Rejected(f'persistentvolume "{name}" not found')


def is_bound(claim: Object) -> bool:
    annotations = claim["metadata"].get("annotations", {})
    return bool(claim["spec"].get("volumeName")) and "pv.kubernetes.io/bind-completed" in annotations


def is_delayed(world: StorageWorld, claim: Object) -> bool:
    found = world.storage_class(claim)
    waits = found is not None and found.get("volumeBindingMode") == "WaitForFirstConsumer"
    return waits and not claim["spec"].get("volumeName")


def refusals(world: StorageWorld, pod: Object, node: Object) -> list[str]:
    """The answer of the first plugin that refuses the node."""
    claims = {name: world.claim(name) or {} for name, _ in names_of(pod)}
    used = {name for placed, _ in world.placed for name, _ in names_of(placed)}
    for name, is_ephemeral in names_of(pod):
        if not is_ephemeral and name in used and "ReadWriteOncePod" in claims[name]["spec"]["accessModes"]:
            return [IN_USE]
    if _has_too_many(world, claims, node):
        return [TOO_MANY]
    labels, found = node["metadata"]["labels"], []
    volumes = [world.volume(claim["spec"]["volumeName"]) for claim in claims.values() if is_bound(claim)]
    if not all(volume is not None and reaches(volume, labels) for volume in volumes):
        found.append(ELSEWHERE)
    unbound = [claim for claim in claims.values() if not is_bound(claim)]
    if _are_assumed_elsewhere(world, unbound, node) or not _can_bind(world, unbound, node):
        found.append(NO_VOLUME)
    return found


def _are_assumed_elsewhere(world: StorageWorld, claims: list[Object], node: Object) -> bool:
    """kube-scheduler assumes that a claim gets its volume for the node of the first pod that uses it."""
    names = {claim["metadata"]["name"] for claim in claims}
    for name in names:
        users = {where for pod, where in world.placed if name in dict(names_of(pod))}
        if users and users != {node["metadata"]["name"]}:
            return True
    return False


def _has_too_many(world: StorageWorld, claims: Mapping[str, Object], node: Object) -> bool:
    limits: dict[str, int] = {}
    for csi_node in world.csi_nodes:
        if csi_node["metadata"]["name"] == node["metadata"]["name"]:
            for driver in csi_node["spec"]["drivers"]:
                if (driver.get("allocatable") or {}).get("count") is not None:
                    limits[driver["name"]] = driver["allocatable"]["count"]
    here = {name for pod, where in world.placed if where == node["metadata"]["name"] for name, _ in names_of(pod)}
    attached = {name: driver for name in here if (claim := world.claim(name)) and (driver := driver_of(world, claim))}
    new = {
        name: driver for name, claim in claims.items() if name not in attached if (driver := driver_of(world, claim))
    }
    for driver in set(new.values()):
        count = [*attached.values(), *new.values()].count(driver)
        if driver in limits and count > limits[driver]:
            return True
    return False


def driver_of(world: StorageWorld, claim: Object) -> str:
    volume = world.volume(claim["spec"].get("volumeName") or "")
    if volume is not None:
        return str(volume["spec"].get("csi", {}).get("driver", ""))
    found = world.storage_class(claim)
    return "" if found is None or found["provisioner"].startswith("kubernetes.io/") else str(found["provisioner"])


def _can_bind(world: StorageWorld, claims: list[Object], node: Object) -> bool:
    taken: list[str] = []
    labels = node["metadata"]["labels"]
    for claim in sorted(claims, key=size_of):
        selected = claim["metadata"].get("annotations", {}).get("volume.kubernetes.io/selected-node")
        if selected is not None and selected != node["metadata"]["name"]:
            return False
        volume = None if selected else find_volume(world, claim, labels, taken)
        if volume is not None:
            taken.append(volume["metadata"]["name"])
            continue
        found = world.storage_class(claim)
        if found is None or found["provisioner"] == "kubernetes.io/no-provisioner":
            return False
        if not in_topologies(found, labels):
            return False
    return True


def in_topologies(found: Object, labels: Mapping[str, str]) -> bool:
    terms = found.get("allowedTopologies") or []
    lists = [term.get("matchLabelExpressions") or [] for term in terms]
    return not terms or any(each and all(labels.get(one["key"]) in one["values"] for one in each) for each in lists)


def find_volume(
    world: StorageWorld, claim: Object, labels: Mapping[str, str], taken: Sequence[str] = ()
) -> Object | None:
    best: Object | None = None
    for volume in world.volumes:
        spec, metadata = volume["spec"], volume["metadata"]
        reference = spec.get("claimRef")
        is_meant = reference is not None and (reference["name"], reference.get("uid", claim["metadata"]["uid"])) == (
            claim["metadata"]["name"],
            claim["metadata"]["uid"],
        )
        if metadata["name"] in taken or (reference and not is_meant) or size_of(volume) < size_of(claim):
            continue
        if spec.get("volumeMode", "Filesystem") != claim["spec"].get("volumeMode", "Filesystem"):
            continue
        if metadata.get("deletionTimestamp"):
            continue
        if is_meant:
            return volume if reaches(volume, labels) else None
        wanted = (claim["spec"].get("selector") or {}).get("matchLabels", {})
        fits = volume.get("status", {}).get("phase") == "Available"
        fits &= wanted.items() <= metadata.get("labels", {}).items()
        fits &= spec.get("storageClassName") == claim["spec"].get("storageClassName")
        fits &= reaches(volume, labels) and set(claim["spec"]["accessModes"]) <= set(spec["accessModes"])
        if fits and (best is None or size_of(volume) < size_of(best)):
            best = volume
    return best


def size_of(found: Object) -> int:
    spec = found["spec"]
    amount = spec["capacity"] if "capacity" in spec else spec["resources"]["requests"]
    return int(amount["storage"].removesuffix("Gi"))


def reaches(volume: Object, labels: Mapping[str, str]) -> bool:
    """The node affinity of a volume, and its labels of zones."""
    affinity = (volume["spec"].get("nodeAffinity") or {}).get("required")
    if affinity is not None and not any(_holds(term, labels) for term in affinity["nodeSelectorTerms"]):
        return False
    if not ZONES.keys() & labels.keys():
        return True
    for key, value in volume["metadata"].get("labels", {}).items():
        if key in ZONES and labels.get(key, labels.get(ZONES[key])) not in value.split("__"):
            return False
    return True


def _holds(term: Object, labels: Mapping[str, str]) -> bool:
    expressions = term.get("matchExpressions") or []
    assert all(each["operator"] == "In" for each in expressions), "the tests use nothing else"
    return bool(expressions) and all(labels.get(each["key"]) in each["values"] for each in expressions)
