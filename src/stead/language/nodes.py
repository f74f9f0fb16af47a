"""Nodes, where work runs, and NodeTemplates, which describe nodes that could be added."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from stead.errors import Invalid
from stead.language.labels import EMPTY, IDENTITY_KEYS, NODE_ID, NODE_IP, NODE_NAME, RAY_NODE_ID, Labels
from stead.language.resources import DEVICES, NOTHING, UNIT, Amount, Resources, amount_text
from stead.language.taints import Taint
from stead.text import short_id

NodeId = str

DEVICES_MAX = 1024
"""The maximum number of devices of a kind on one node; more must be a mistake in the input."""


@dataclass(frozen=True, slots=True)
class Node:
    """A node that can run work. `Node.of` creates one from plain maps and text.

    Attributes:
        id: Its id, unique in the cluster.
        capacity: Its total resources, in units.
        labels: The labels that users gave it.
        taints: Its taints, one for each key and effect.
        ip: Its IP address.
        name: Its display name.
        draining: Whether it takes no new work.
        images: The container images that it has stored: names with sizes in bytes.
        volumes: How many volumes it may have, by driver; a driver that is missing has no limit.

    Example:
        ```python
        Node.of("gpu-1", {"CPU": 8, "GPU": 4}, {"gpu_type": "A100"}, [Taint("gpu_node", "true")])
        ```
    """

    id: NodeId
    capacity: Resources = NOTHING
    labels: Labels = EMPTY
    taints: tuple[Taint, ...] = ()
    ip: str = ""
    name: str = ""
    draining: bool = False
    images: tuple[tuple[str, int], ...] = ()
    volumes: tuple[tuple[str, int], ...] = ()

    @staticmethod
    def of(
        id: str,
        capacity: Mapping[str, Amount] | None = None,
        labels: Mapping[str, str] | None = None,
        taints: Iterable[Taint] = (),
        *,
        ip: str = "",
        name: str = "",
        draining: bool = False,
        volumes: Mapping[str, int] | None = None,
    ) -> Node:
        """A node from plain maps and text.

        Args:
            id: Its id, unique in the cluster.
            capacity: Amounts by name, for example ``{"CPU": 8, "memory": "64Gi"}``.
            labels: Its labels.
            taints: Its taints.
            ip: Its IP address.
            name: Its display name.
            draining: Whether it takes no new work.
            volumes: How many volumes it may have, by driver.

        Returns:
            The node.

        Raises:
            Invalid: The id is empty, an amount or label is not valid, or a label key is one that stead sets.

        Example:
            ```python
            Node.of("gpu-1", {"CPU": 8, "GPU": 4}, {"zone": "a"})
            ```
        """
        if not isinstance(id, str) or not id:
            raise Invalid(f"node id {id!r} must be a non-empty string, for example 'node-1'")
        checked = Labels.checked(labels or {})
        for key in checked:
            if key in IDENTITY_KEYS:
                raise Invalid(f"label {key!r} is set by stead on every node; choose another key, for example 'zone'")
        amounts = Resources.of(capacity)
        for device in sorted(DEVICES & amounts.keys()):
            if amounts[device] % UNIT:
                raise Invalid(
                    f"node {id!r} cannot have {amount_text(device, amounts[device])}: give whole devices, for example 1"
                )
            if amounts[device] > DEVICES_MAX * UNIT:
                raise Invalid(
                    f"node {id!r} cannot have {amount_text(device, amounts[device])}: a node has at most {DEVICES_MAX} "
                    f"devices of a kind"
                )
        unique = {(taint.key, taint.effect): taint for taint in taints}
        limits = tuple(sorted((volumes or {}).items()))
        return Node(id, amounts, checked, tuple(unique.values()), ip, name, draining, volumes=limits)

    @property
    def title(self) -> str:
        """Its name, or the beginning of its id if it has none."""
        return self.name or short_id(self.id)

    @property
    def all_labels(self) -> Labels:
        """The labels that users gave it and those that stead sets: node_id, node_ip, node_name, ray.io/node-id."""
        identity = {NODE_ID: self.id, RAY_NODE_ID: self.id, NODE_IP: self.ip, NODE_NAME: self.name}
        return Labels({**self.labels, **{key: value for key, value in identity.items() if value}})

    def label(self, key: str) -> str | None:
        """The value of `key` in `all_labels`, or None."""
        if key == NODE_ID or key == RAY_NODE_ID:
            return self.id
        if key == NODE_IP and self.ip:
            return self.ip
        if key == NODE_NAME and self.name:
            return self.name
        return self.labels.get(key)


@dataclass(frozen=True, slots=True)
class NodeTemplate:
    """A kind of node that an autoscaler could start.

    Attributes:
        name: The name of the kind.
        capacity: What each node has, in units.
        labels: The labels of each node.
        taints: The taints of each node.
        count_min: The minimum number of such nodes.
        count_max: The maximum number of such nodes.
        price: What one costs, in a unit of your choice.
        own_keys: Keys of labels whose value is the id of each node, such as ``kubernetes.io/hostname``.

    Example:
        ```python
        NodeTemplate("gpu", Resources.of(CPU=8, GPU=4), count_max=10).node("gpu-1")
        ```
    """

    name: str
    capacity: Resources = NOTHING
    labels: Labels = EMPTY
    taints: tuple[Taint, ...] = ()
    count_min: int = 0
    count_max: int = 0
    price: float = 0.0
    own_keys: tuple[str, ...] = ()

    def node(self, id: NodeId) -> Node:
        """A node of this kind with the id `id`."""
        labels = self.labels.changed(dict.fromkeys(self.own_keys, id)) if self.own_keys else self.labels
        return Node(id, self.capacity, labels, self.taints)
