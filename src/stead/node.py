"""Places where work can run: a Node, and the NodeTemplate of one that could be bought."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from stead.errors import Invalid
from stead.labelling import EMPTY, IDENTITY_KEYS, NODE_ID, NODE_IP, NODE_NAME, RAY_NODE_ID, Labels
from stead.resources import DEVICES, NOTHING, UNIT, Resources, amount_text
from stead.taints import Taint

NodeId = str

DEVICES_MAX = 1024
"""More devices of a kind on one node are a mistake in the input."""


@dataclass(frozen=True, slots=True)
class Node:
    """One place. `labels` are the user's; the identity labels of `all_labels` come from the fields."""

    id: NodeId
    capacity: Resources = NOTHING
    labels: Labels = EMPTY
    taints: tuple[Taint, ...] = ()
    ip: str = ""
    name: str = ""
    draining: bool = False

    @staticmethod
    def of(
        id: str,
        capacity: Mapping[str, Any] | None = None,
        labels: Mapping[str, str] | None = None,
        taints: Iterable[Taint] = (),
        *,
        ip: str = "",
        name: str = "",
        draining: bool = False,
    ) -> Node:
        """A node from what a user writes, checked."""
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
                    f"node {id!r} cannot have {amount_text(device, amounts[device])}: devices are whole, for example 1"
                )
            if amounts[device] > DEVICES_MAX * UNIT:
                raise Invalid(
                    f"node {id!r} cannot have {amount_text(device, amounts[device])}: at most {DEVICES_MAX} devices "
                    f"of a kind fit a node"
                )
        unique = {(taint.key, taint.effect): taint for taint in taints}
        return Node(id, amounts, checked, tuple(unique.values()), ip, name, draining)

    @property
    def all_labels(self) -> Labels:
        """The user's labels and the identity labels that every node has."""
        identity = {NODE_ID: self.id, RAY_NODE_ID: self.id, NODE_IP: self.ip, NODE_NAME: self.name}
        return Labels({**self.labels, **{key: value for key, value in identity.items() if value}})

    def label(self, key: str) -> str | None:
        """One of `all_labels`, or None."""
        if key == NODE_ID or key == RAY_NODE_ID:
            return self.id
        if key == NODE_IP and self.ip:
            return self.ip
        if key == NODE_NAME and self.name:
            return self.name
        found: str | None = self.labels.get(key)
        return found


@dataclass(frozen=True, slots=True)
class NodeTemplate:
    """A kind of node that could be bought."""

    name: str
    capacity: Resources = NOTHING
    labels: Labels = EMPTY
    taints: tuple[Taint, ...] = ()
    count_min: int = 0
    count_max: int = 0
    price: float = 0.0
