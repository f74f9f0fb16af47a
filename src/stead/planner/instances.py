"""Instances: the nodes that a provider runs or starts, as the provider lists them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from stead.engine.scaling.decisions import LaunchId
from stead.language.nodes import NodeId


class InstanceState(StrEnum):
    """How far an instance is.

    Attributes:
        STARTING: It was requested and may not run yet.
        RUNNING: It runs; its node has joined or will join.
        ENDING: It is being ended.
        FAILED: It did not start or has crashed; what is left of it must be ended.
    """

    STARTING = "starting"
    RUNNING = "running"
    ENDING = "ending"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Instance:
    """One node of a provider.

    Attributes:
        launch: The id of the launch that asked for it. Every provider stores it with the instance, so that it is known
            after a crash of the autoscaler.
        kind: The name of its kind.
        state: How far it is.
        since: When it was requested, on the autoscaler's clock.
        node: The id of its node in the cluster, as soon as the provider knows it.
        ip: Its IP address, as soon as the provider knows it; it identifies the node if `node` is empty.
        problem: Why it failed.
        is_stock_out: Whether it failed because the provider has no more nodes of this kind now.
    """

    launch: LaunchId
    kind: str
    state: InstanceState
    since: float = 0.0
    node: NodeId = ""
    ip: str = ""
    problem: str = ""
    is_stock_out: bool = False


@dataclass(frozen=True, slots=True)
class LaunchFailed:
    """A provider refused or failed to launch. `is_stock_out`: it has no more nodes of this kind now."""

    launch: LaunchId
    why: str
    is_stock_out: bool = False
