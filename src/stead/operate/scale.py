"""What an autoscaler does, as plain values: kinds of nodes, launches in flight, launched nodes, the plan, the price.

Rule: `stead.planner.scaler` decides. The autoscaler reports a view to the desk after each turn, and every process that
asks the desk sees the same. Times are in seconds since 1970.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from stead.engine.engine import Engine
from stead.engine.scaling.decisions import (
    LaunchEnded,
    NodeArrived,
    NodeLost,
    NodeRetired,
    ScaleDecision,
)
from stead.operate.known_fields import picked
from stead.operate.plans import PlanView, limits_json, limits_of, plan_json, plan_of, plan_view
from stead.operate.views import amounts
from stead.planner.plans import NO_LIMITS, Limits
from stead.planner.retiring import Consolidation, consolidation

if TYPE_CHECKING:
    from stead.planner.scaler import Scaler

REPORT_S = 15.0
"""The maximum time between two reports of an autoscaler that works."""

SILENT_S = 4 * REPORT_S
"""After this time without a report, an autoscaler counts as silent."""


PROPOSALS_S = 30.0
"""The time between two computations of proposals."""

PAUSE = 50
"""After a long computation of proposals, the next one waits this many times as long."""


@dataclass(frozen=True, slots=True)
class KindView:
    """A kind of node. `running` counts its nodes, `coming` its launches in flight. None is launched until
    `rests_until`, and `why` says why."""

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
    """A launch whose node has not joined. `state` is that of its instance; `problem` says why it failed."""

    id: str
    kind: str
    since: float
    state: str
    deadline: float
    problem: str = ""


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
    """A proposal: if this work moved, these nodes would not be needed. Nothing is moved. `moves` are pairs: the id of
    the work, and the id of its new node."""

    nodes: tuple[str, ...]
    moves: tuple[tuple[str, str], ...]
    saves: float


@dataclass(frozen=True, slots=True)
class Tallied:
    """How many launches had their node join, and how many were given up; how many nodes were retired, and how many were
    lost. Counted since the desk started."""

    launched: int = 0
    failed: int = 0
    retired: int = 0
    lost: int = 0

    def plus(self, decisions: Sequence[ScaleDecision]) -> Tallied:
        found = Counter(type(each) for each in decisions)
        return Tallied(
            self.launched + found[NodeArrived],
            self.failed + found[LaunchEnded],
            self.retired + found[NodeRetired],
            self.lost + found[NodeLost],
        )


@dataclass(frozen=True, slots=True)
class ScaleView:
    """An autoscaler at one moment. `price` is that of all launched nodes, in one hour. `plan` is its latest plan. If
    `is_silent`, it has not reported for a while, so this is old."""

    at: float
    provider: str
    kinds: tuple[KindView, ...]
    launches: tuple[LaunchView, ...]
    nodes: tuple[ScaledNodeView, ...]
    price: float
    plan: PlanView | None = None
    proposals: tuple[MoveView, ...] = ()
    limits: Limits = NO_LIMITS
    is_silent: bool = False
    tallied: Tallied = Tallied()


def scale_view(
    scaler: Scaler,
    engine: Engine,
    provider: str,
    at: float,
    began: float = 0.0,
    proposals: Sequence[Consolidation] = (),
) -> ScaleView:
    """What a scaler sees and plans, as of its latest step. `provider` is the title of the provider, `at` the time on
    the wall clock, and `began` is time 0 of the scaler's clock on the wall clock."""
    running, coming = Counter(scaler.stock.running.values()), Counter(each.kind for each in scaler.in_flight)
    rests = {rest.kind: rest for rest in scaler.rests}
    prices = {template.name: template.price for template in scaler.catalog}
    kinds = tuple(
        KindView(
            each.name,
            amounts(each.capacity),
            dict(each.labels),
            tuple(map(str, each.taints)),
            each.price,
            each.count_min,
            each.count_max,
            running[each.name],
            coming[each.name],
            began + rests[each.name].until if each.name in rests else None,
            rests[each.name].why if each.name in rests else "",
        )
        for each in scaler.catalog
    )
    launches = tuple(
        LaunchView(
            each.launch,
            each.kind,
            began + each.since,
            each.state.value,
            began + each.since + scaler.settings.join_s,
            each.problem,
        )
        for each in scaler.in_flight
    )
    nodes = tuple(
        ScaledNodeView(
            each.launch,
            each.node,
            engine.titles.get(each.node, each.node),
            each.kind,
            prices.get(each.kind, 0.0),
            "retiring" if each.is_retiring else "busy" if each.idle_since is None else "idle",
            None if each.idle_since is None else began + each.idle_since,
            each.kept,
        )
        for each in scaler.standing
    )
    resting = {rest.kind: rest.why for rest in scaler.rests}
    plan = None if scaler.plan is None else plan_view(scaler.plan, False, resting)
    price = round(sum(each.price for each in nodes), 9)
    moves = tuple(MoveView((each.node,), each.moves, each.saves) for each in proposals)
    return ScaleView(at, provider, kinds, launches, nodes, price, plan, moves, scaler.limits)


class Proposing:
    """Proposals to consolidate. They are computed again only from time to time: in a large cluster that takes long."""

    def __init__(self) -> None:
        self._found: tuple[Consolidation, ...] = ()
        self._again_at = 0.0

    def proposals(self, scaler: Scaler, engine: Engine) -> tuple[Consolidation, ...]:
        """The latest ones whose nodes still exist."""
        began = time.monotonic()
        if began >= self._again_at:
            self._found = consolidation(engine, scaler.catalog, scaler.stock) if scaler.stock.running else ()
            self._again_at = began + max(PROPOSALS_S, PAUSE * (time.monotonic() - began))
        return tuple(each for each in self._found if each.node in engine.nodes)


class Reports:
    """The latest report of the autoscaler, kept in memory: after a restart, the next report replaces it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._view: ScaleView | None = None
        self._tallied = Tallied()
        self._reported_at = 0.0

    def add(self, view: ScaleView, decisions: Sequence[ScaleDecision]) -> None:
        with self._lock:
            self._view, self._reported_at = view, time.monotonic()
            self._tallied = self._tallied.plus(decisions)

    @property
    def latest(self) -> ScaleView | None:
        with self._lock:
            if self._view is None:
                return None
            is_silent = time.monotonic() - self._reported_at > SILENT_S
            return replace(self._view, is_silent=is_silent, tallied=self._tallied)


# -- JSON


def scale_json(view: ScaleView | None) -> dict[str, Any]:
    """``{"autoscaler": null}`` without one."""
    if view is None:
        return {"autoscaler": None}
    return {
        "autoscaler": {
            "at": view.at,
            "provider": view.provider,
            "is_silent": view.is_silent,
            "price": view.price,
            "kinds": [_fields(each) for each in view.kinds],
            "launches": [_fields(each) for each in view.launches],
            "nodes": [_fields(each) for each in view.nodes],
            "plan": None if view.plan is None else plan_json(view.plan),
            "proposals": [
                {
                    "nodes": list(each.nodes),
                    "moves": [{"id": id, "node": node} for id, node in each.moves],
                    "saves": each.saves,
                }
                for each in view.proposals
            ],
            "limits": limits_json(view.limits),
            "tallied": _fields(view.tallied),
        }
    }


def _fields(value: Any) -> dict[str, Any]:
    found = {field.name: getattr(value, field.name) for field in fields(value)}
    return {name: list(part) if isinstance(part, tuple) else part for name, part in found.items()}


def scale_of(found: Mapping[str, Any]) -> ScaleView | None:
    """From the JSON of a service."""
    given = found["autoscaler"]
    if given is None:
        return None
    return ScaleView(
        given["at"],
        given["provider"],
        tuple(_picked({**each, "taints": tuple(each["taints"])}, KindView) for each in given["kinds"]),
        tuple(_picked(each, LaunchView) for each in given["launches"]),
        tuple(_picked(each, ScaledNodeView) for each in given["nodes"]),
        given["price"],
        None if given["plan"] is None else plan_of(given["plan"]),
        tuple(
            MoveView(tuple(each["nodes"]), tuple((move["id"], move["node"]) for move in each["moves"]), each["saves"])
            for each in given["proposals"]
        ),
        limits_of(given["limits"]),
        given["is_silent"],
        _picked(given["tallied"], Tallied),
    )


def _picked(found: Mapping[str, Any], kind: type) -> Any:
    return kind(**picked(found, kind))
