"""Decisions about nodes: launch, give up a launch, retire.

Rule: each of them is also an event (`stead.engine.explain.events`).
"""

from __future__ import annotations

from dataclasses import dataclass

from stead.language.nodes import NodeId, NodeTemplate

LaunchId = str
"""The id of one launch: it names the node that is to come, from the request until the node is gone."""


@dataclass(frozen=True, slots=True)
class NodeRequested:
    """Launch a node of this kind. `serves` counts the pending work that it is for; 0 means for the minimum."""

    launch: LaunchId
    template: NodeTemplate
    serves: int = 0


@dataclass(frozen=True, slots=True)
class NodeArrived:
    """The node of a launch has joined as its kind describes it."""

    launch: LaunchId
    kind: str
    node: NodeId


@dataclass(frozen=True, slots=True)
class LaunchEnded:
    """The launch is given up: it failed, it took too long, or the node is not what was requested. No node of the kind
    is launched until `retry_at`. The provider must end what it may have started."""

    launch: LaunchId
    kind: str
    why: str
    retry_at: float


@dataclass(frozen=True, slots=True)
class RetirementBegun:
    """Drain the node: nothing needs it since `idle_s` seconds."""

    launch: LaunchId
    kind: str
    node: NodeId
    idle_s: float


@dataclass(frozen=True, slots=True)
class RetirementCancelled:
    """Uncordon the node: it is needed again."""

    launch: LaunchId
    kind: str
    node: NodeId
    why: str


@dataclass(frozen=True, slots=True)
class NodeRetired:
    """End the node: it is drained and empty."""

    launch: LaunchId
    kind: str
    node: NodeId


@dataclass(frozen=True, slots=True)
class NodeLost:
    """A node that was launched is gone, and nobody retired it: for example, a spot node was taken back."""

    launch: LaunchId
    kind: str
    node: NodeId


ScaleDecision = (
    NodeRequested | NodeArrived | LaunchEnded | RetirementBegun | RetirementCancelled | NodeRetired | NodeLost
)
