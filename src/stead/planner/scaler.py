"""The scaler: when to launch and retire which node.

Rule: pure. Time, the cluster and the provider's instances are given (`Seen`); decisions are returned. It keeps no state
that a restart may lose: what was launched is in the provider's list, and a retirement is in the node's label.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stead.engine.engine import Engine
from stead.engine.scaling.decisions import ScaleDecision
from stead.language.nodes import NodeTemplate
from stead.planner.instances import Instance, LaunchFailed
from stead.planner.plans import NO_LIMITS, NO_STOCK, Limits, Plan, Stock

RETIRING = "stead.dev/retiring"
"""The label of a node that the autoscaler drains, so that the next autoscaler continues after a crash. The value is the
id of the launch."""


@dataclass(frozen=True, slots=True)
class ScaleSettings:
    """How fast to launch and retire. Times are in seconds.

    Attributes:
        idle_s: How long nothing must need a node before it is retired.
        settle_s: How long work must be pending before a node is launched for it, so that a burst gets one plan.
        join_s: How long a launch may take until its node has joined as requested.
        retry_s: How long a kind rests after its launch failed. Each failure in a row doubles it.
        retry_max_s: The maximum of both.
        stock_out_s: How long a kind rests after the provider had none. Each time in a row doubles it.
        launches_per_minute: The maximum number of launches in one minute.
    """

    idle_s: float = 300.0
    settle_s: float = 1.0
    join_s: float = 600.0
    retry_s: float = 30.0
    retry_max_s: float = 1800.0
    stock_out_s: float = 300.0
    launches_per_minute: int = 60


@dataclass(frozen=True, slots=True)
class Seen:
    """Cluster and provider at one moment.

    Attributes:
        now: The time.
        engine: The cluster with its nodes and its pending and running work. It is forked, not changed.
        instances: What the provider lists.
        failures: Launches that failed since the last step.
    """

    now: float
    engine: Engine
    instances: Sequence[Instance] = ()
    failures: Sequence[LaunchFailed] = ()


@dataclass(frozen=True, slots=True)
class Rest:
    """A kind that is not launched until `until`, and why."""

    kind: str
    until: float
    why: str
    failures: int = 1
    is_stock_out: bool = False


@dataclass(frozen=True, slots=True)
class Standing:
    """A launched node that is part of the cluster: what it is used for, and why it is kept.

    `idle_since` is None while it is in use. `kept` says why an idle node stays; `is_retiring` once it is drained.
    """

    launch: str
    kind: str
    node: str
    idle_since: float | None = None
    kept: str = ""
    is_retiring: bool = False


class Scaler:
    """Decides which nodes to launch and retire, one `step` at a time.

    Args:
        catalog: The kinds of nodes.
        settings: How fast.
        limits: What plans must respect.
    """

    def __init__(
        self, catalog: Sequence[NodeTemplate], settings: ScaleSettings = ScaleSettings(), limits: Limits = NO_LIMITS
    ) -> None:
        self.catalog, self.settings, self.limits = tuple(catalog), settings, limits
        self.plan: Plan | None = None
        """The latest plan."""
        self.stock: Stock = NO_STOCK
        """What the latest plan counted on."""
        self.rests: tuple[Rest, ...] = ()
        """Kinds that are not launched now."""
        self.standing: tuple[Standing, ...] = ()
        """The launched nodes that have joined."""
        self.in_flight: tuple[Instance, ...] = ()
        """The launches whose node has not joined."""

    def step(self, seen: Seen) -> list[ScaleDecision]:
        """What to do now."""
        raise NotImplementedError

    @property
    def next_moment(self) -> float | None:
        """When the next step is due if nothing happens before; None if never."""
        raise NotImplementedError
