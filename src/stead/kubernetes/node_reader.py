"""Reads nodes from JSON. Most events of nodes are heartbeats, which change nothing that a scheduler reads.

Rule: a node whose scheduling-relevant bytes are unchanged stays the same object.
"""

from __future__ import annotations

from dataclasses import replace
from hashlib import blake2b
from typing import NamedTuple

import msgspec

from stead.errors import Invalid
from stead.kubernetes.api_objects import (
    ANYTHING,
    ENCODER,
    NODE_EVENT,
    NODE_PAGE,
    UNREADABLE,
    EventKind,
    NodeObject,
    Problem,
    Recent,
    decoded,
    error_in,
)
from stead.kubernetes.nodes import node_of
from stead.language.nodes import Node

NODES_MAX = 100_000
"""How many nodes are remembered, including those that no longer exist."""

IMAGES_MAX = 100_000
"""How many names of images are shared between nodes."""


class ReadNode(msgspec.Struct, frozen=True):
    """A node, or why it cannot be used."""

    name: str
    node: Node | None
    problem: Problem | None


class NodeEvent(NamedTuple):
    """A line of a watch of nodes; `code` and `message` are those of an error, for example 410 if a relist is needed."""

    kind: EventKind
    node: ReadNode | None
    resource_version: str
    code: int = 0
    message: str = ""


class NodePage(NamedTuple):
    """A page of a list of nodes. `continue_token` is empty on the last page."""

    nodes: list[ReadNode]
    resource_version: str
    continue_token: str


class NodeReader:
    """Reads nodes. A node whose scheduling-relevant bytes are unchanged stays the same object."""

    def __init__(self, nodes_max: int = NODES_MAX) -> None:
        self._nodes: Recent[str, tuple[bytes, ReadNode]] = Recent(nodes_max)
        self._images: Recent[tuple[str, int], tuple[str, int]] = Recent(IMAGES_MAX)

    def decode_event(self, line: bytes) -> NodeEvent:
        """A line of a watch of nodes; `Invalid` if it is not one."""
        try:
            event = NODE_EVENT.decode(line)
        except UNREADABLE as error:
            code, message = error_in(line, error, "a watch event of nodes")
            return NodeEvent(EventKind.ERROR, None, "", code, message)
        if event.type is EventKind.BOOKMARK:
            return NodeEvent(event.type, None, event.object.metadata.resource_version)
        node = self._node(event.object)
        if event.type is EventKind.DELETED:
            self._nodes.drop(node.name)
        return NodeEvent(event.type, node, event.object.metadata.resource_version)

    def decode_page(self, body: bytes) -> NodePage:
        """A page of a list of nodes; `Invalid` if it is not one."""
        page = decoded(NODE_PAGE, body, "a list of nodes")
        nodes = [self._node(item) for item in page.items or ()]
        return NodePage(nodes, page.metadata.resource_version, page.metadata.token)

    def _node(self, found: NodeObject) -> ReadNode:
        name, spec, status = found.metadata.name, found.spec, found.status
        parts = (found.metadata.labels, spec.taints, spec.unschedulable, status.allocatable, status.images)
        source = ENCODER.encode(parts)
        # Lists of images are long: keep a digest, not the bytes.
        digest = blake2b(source, digest_size=16).digest()
        known = self._nodes.get(name)
        if known is not None and known[0] == digest:
            return known[1]
        read = self._translated(name, source)
        self._nodes.put(name, (digest, read))
        return read

    def _translated(self, name: str, source: bytes) -> ReadNode:
        labels, taints, unschedulable, allocatable, images = ANYTHING.decode(source)
        fields = {
            "metadata": {"name": name, "labels": labels},
            "spec": {"taints": taints, "unschedulable": unschedulable},
            "status": {"allocatable": allocatable, "images": images},
        }
        try:
            node = node_of(fields)
        except Invalid as error:
            return ReadNode(name, None, Problem.of(error))
        return ReadNode(name, replace(node, images=tuple(map(self._shared, node.images))), None)

    def _shared(self, image: tuple[str, int]) -> tuple[str, int]:
        shared = self._images.get(image)
        if shared is None:
            self._images.put(image, image)
        return shared or image
