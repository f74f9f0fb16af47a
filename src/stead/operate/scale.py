"""What an autoscaler does, as plain values: kinds of nodes, launches in flight, launched nodes, the plan, the price.

Rule: the autoscaler reports it to the desk, and every process that asks the desk sees the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from stead.operate.plans import PlanView


@dataclass(frozen=True, slots=True)
class KindView:
    """A kind of node. `running` counts its nodes, `coming` its launches in flight. It rests until `rests_until`, for the
    reason `why`."""

    name: str
    resources: Mapping[str, float]
    labels: Mapping[str, str]
    taints: tuple[str, ...]
    price: float
    count_min: int
    count_max: int
    running: int
    coming: int
    rests_until: float | None = None
    why: str = ""


@dataclass(frozen=True, slots=True)
class LaunchView:
    """A launch whose node has not joined. `state` is that of its instance."""

    id: str
    kind: str
    since: float
    state: str
    deadline: float


@dataclass(frozen=True, slots=True)
class ScaledNodeView:
    """A launched node. `state` is busy, idle or retiring; `kept` says why an idle node stays."""

    launch: str
    node: str
    title: str
    kind: str
    price: float
    state: str
    idle_since: float | None = None
    kept: str = ""


@dataclass(frozen=True, slots=True)
class MoveView:
    """A proposal: if this work moved, these nodes would not be needed. Nothing is moved."""

    nodes: tuple[str, ...]
    moves: tuple[tuple[str, str], ...]
    saves: float


@dataclass(frozen=True, slots=True)
class ScaleView:
    """An autoscaler at one moment. `price` is that of all launched nodes, in one hour. `plan` is its latest plan."""

    at: float
    provider: str
    kinds: tuple[KindView, ...]
    launches: tuple[LaunchView, ...]
    nodes: tuple[ScaledNodeView, ...]
    price: float
    plan: PlanView | None = None
    proposals: tuple[MoveView, ...] = ()
