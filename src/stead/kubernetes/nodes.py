"""Converts Kubernetes' nodes.

Rule: a node is what kube-scheduler looks at: labels, taints, allocatable resources and images. Conditions and addresses
are not read: Kubernetes taints a node that is not ready.
"""

from __future__ import annotations

from stead.errors import Invalid
from stead.kubernetes.fields import Fields, fields_in, items_in, labels_of, number_in, parts_in
from stead.kubernetes.requesting import CAPACITY_MAX, amounts_of, rounded
from stead.kubernetes.selecting import effect_of
from stead.language.nodes import Node
from stead.language.resources import Resources
from stead.language.taints import Taint

UNSCHEDULABLE = Taint("node.kubernetes.io/unschedulable")
"""The taint for `spec.unschedulable` (a cordoned node)."""


def node_of(node: Fields) -> Node:
    """Convert a node. Its name becomes its id, and a cordon becomes a taint."""
    metadata, spec, status = fields_in(node, "metadata"), fields_in(node, "spec"), fields_in(node, "status")
    name = metadata.get("name")
    if not isinstance(name, str) or not name:
        raise Invalid(f"a node must have a name such as 'node-1' under metadata.name, not {name!r}")
    taints = [taint_of(taint) for taint in parts_in(spec, "taints")]
    if spec.get("unschedulable"):
        taints.append(UNSCHEDULABLE)
    capacity = Resources(rounded(amounts_of(fields_in(status, "allocatable"), most=CAPACITY_MAX)))
    return Node(
        name, capacity, labels_of(metadata), tuple(dict.fromkeys(taints)), name=name, images=node_images_of(status)
    )


def node_images_of(status: Fields) -> tuple[tuple[str, int], ...]:
    """Every name of every image that a node has stored, with the image's size in bytes."""
    images = [(image, number_in(image, "sizeBytes")) for image in parts_in(status, "images")]
    return tuple({name: size for image, size in images for name in items_in(image, "names")}.items())


def taint_of(taint: Fields) -> Taint:
    """Convert a taint of `spec.taints`."""
    return Taint(taint.get("key") or "", taint.get("value") or "", effect_of(taint.get("effect"), "a taint"))
