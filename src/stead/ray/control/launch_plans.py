"""How many nodes of which type to request from Ray's autoscaler.

Rule: the planner chooses. What Ray's autoscaler launches already counts as coming, so nothing is requested twice. Types
whose launches fail rest. Ray's autoscaler keeps the minimum of a type and ends idle nodes, so neither is planned here.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from stead.engine.engine import Engine
from stead.engine.facts import AsksSubmitted
from stead.engine.scaling.decisions import LaunchEnded, NodeArrived, NodeRequested, ScaleDecision
from stead.language.asks import Ask
from stead.language.nodes import Node, NodeId, NodeTemplate
from stead.language.resources import Resources
from stead.language.times import duration_text
from stead.planner.joining import lacking
from stead.planner.planning import plan
from stead.planner.plans import HYPOTHETICAL, Limits, Plan, Stock
from stead.planner.resting import Rest, Resting
from stead.ray.control.node_types import MEMORY, NodeTypes
from stead.ray.wire.node_page import HEAD
from stead.ray.wire.tables import Status

Planner = Callable[[Engine, Sequence[NodeTemplate], Limits, Stock], Plan]

NOT_LAUNCHED = "Ray's autoscaler could not launch it; its log, monitor.log, says why"

PIECES_MAX = 10_000
"""The maximum number of pending pieces of one kind in a plan."""


@dataclass(frozen=True, slots=True)
class Planned:
    """The latest plan: how many nodes of each type to request, what the plan counted on, and which types rest. Times
    are in seconds since 1970; `since` is when a type was first requested of which no node has joined."""

    at: float
    types: NodeTypes
    plan: Plan
    stock: Stock
    wanted: Counter[str]
    rests: tuple[Rest, ...]
    since: Mapping[str, float]


class LaunchPlans:
    """Plans one after the other. What is remembered between them may be lost: then a type that failed is tried again
    earlier.

    Args:
        clock: The time in seconds since 1970, as Ray writes it to failures.
        planner: Makes a plan.
    """

    def __init__(self, clock: Callable[[], float] = time.time, planner: Planner = plan) -> None:
        self._clock, self._plan = clock, planner
        self._resting: Resting | None = None
        self._nodes: dict[NodeId, str] | None = None  # by node, its type; None before the first look
        self._since: dict[str, float] = {}
        self._hang: set[str] = set()  # types whose launches took too long, so they do not count as coming
        self._reported: dict[str, Rest] = {}
        self._decided: list[ScaleDecision] = []
        self.latest: Planned | None = None
        self._found = Counter[str]()  # what the plan before wanted, since the last node joined
        self.is_settling = False
        """Whether new nodes wait for the next plan to want them, too."""

    def wanted(
        self,
        types: NodeTypes,
        engine: Engine,
        pending: Iterable[tuple[Ask, int]],
        status: Status,
        standing: Mapping[str, int],
    ) -> Counter[str]:
        """How many new nodes of each type pending work needs: in the engine, and `pending`, which the engine does not
        know. `standing` counts those that are requested now."""
        now, rests = self._clock(), self._look(types, engine, status)
        kinds, tired = {each.name for each in types.catalog}, {rest.kind for rest in rests}
        running = {
            id: row.kind
            for id, row in status.nodes.items()
            if row.kind in kinds and id in engine.nodes and HEAD not in row.total
        }
        # A request for a type that rests fails again and again as long as it stands, so only what exists counts.
        launching = Counter({kind: status.starting.get(kind, 0) for kind in kinds - self._hang})
        launching += Counter({kind: status.requested.get(kind, 0) for kind in kinds - tired})
        requested = launching | Counter({kind: standing.get(kind, 0) for kind in kinds - tired})
        catalog = [replace(each, count_max=0) if each.name in tired else each for each in types.catalog]
        fork = with_pending(engine, pending)
        stock = Stock(running, dict(+launching))
        found = self._plan(fork, catalog, types.limits, stock) if fork.waiting else Plan((), (), ())
        if fork.waiting and requested != launching:  # what is requested is exchanged only for something better
            kept = Stock(running, dict(+requested))
            other = self._plan(fork, catalog, types.limits, kept)
            if _worth(other, types) <= _worth(found, types):
                found, stock = other, kept
        wanted = self._settled(_nodes(found), requested, types)
        self._since = {kind: self._since.get(kind, now) for kind in wanted}
        self._tell(types, found, wanted, rests)
        self.latest = Planned(now, types, found, stock, wanted, rests, dict(self._since))
        return Counter(wanted)

    def _settled(self, found: Counter[str], requested: Counter[str], types: NodeTypes) -> Counter[str]:
        """Without new nodes that the plan before did not want: Ray still lists work as pending that has just started,
        and what that uses is counted, too."""
        before, self._found = self._found, found
        if not types.settings.settle_s:
            return found
        settled = +Counter({kind: min(count, max(before[kind], requested[kind])) for kind, count in found.items()})
        self.is_settling = settled != found
        return settled

    def decided(self) -> list[ScaleDecision]:
        """What was decided since the last call. Ray's autoscaler names no launches, so each is named after its type."""
        found, self._decided = self._decided, []
        return found

    def _tell(self, types: NodeTypes, found: Plan, wanted: Counter[str], rests: Iterable[Rest]) -> None:
        before = Counter[str]() if self.latest is None else self.latest.wanted
        serves = Counter({each.template.name: len(each.serves) for each in (*found.coming, *found.launches)})
        for template in types.catalog:
            if wanted[template.name] > before[template.name]:
                self._decided.append(NodeRequested(template.name, template, serves[template.name]))
        for rest in rests:
            if self._reported.get(rest.kind) != rest:
                self._decided.append(LaunchEnded(rest.kind, rest.kind, rest.why, rest.until))
        self._reported = {rest.kind: rest for rest in rests}

    def _look(self, types: NodeTypes, engine: Engine, status: Status) -> tuple[Rest, ...]:
        """The types that rest now: their launches failed or took too long, or the last node that joined was not what
        its type describes."""
        now, settings = self._clock(), types.settings
        if self._resting is None:
            self._resting = Resting(settings.retry_s, settings.stock_out_s, settings.retry_max_s)
        kinds = {each.name: each for each in types.catalog}
        for failure in sorted(status.failures, key=lambda each: each.failed):
            if failure.kind in kinds and failure.failed > now - settings.retry_max_s:
                self._failed(failure.kind, failure.began or failure.failed, NOT_LAUNCHED, failure.failed)
        for kind in [kind for kind, since in self._since.items() if now >= since + settings.join_s]:
            self._hang.add(kind)
            self._failed(kind, now, f"no node has joined within {duration_text(settings.join_s)}", now)
        nodes = {id: row.kind for id, row in status.nodes.items() if id in engine.nodes}
        for id in nodes.keys() - (nodes if self._nodes is None else self._nodes).keys():
            if nodes[id] in kinds:
                self._joined(kinds[nodes[id]], engine.nodes[id], now)
        self._nodes = nodes
        return self._resting.at(now)

    def _joined(self, template: NodeTemplate, node: Node, now: float) -> None:
        self._found = Counter()
        self._since.pop(template.name, None)
        self._hang.discard(template.name)
        lack = lacking(_without_memory(template), node)
        if lack:
            self._failed(template.name, now, lack, now)
        else:
            assert self._resting is not None
            self._resting.arrived(template.name, now)
            self._decided.append(NodeArrived(template.name, template.name, node.id))

    def _failed(self, kind: str, requested: float, why: str, now: float) -> None:
        assert self._resting is not None
        self._resting.failed(kind, requested, why, False, now)


def with_pending(engine: Engine, pending: Iterable[tuple[Ask, int]]) -> Engine:
    """A copy of the engine in which this work is pending, too."""
    fork = engine.fork()
    for number, (ask, count) in enumerate(pending):
        fork.apply(AsksSubmitted(replace(ask, id=f"{HYPOTHETICAL}/{number}"), 0, min(count, PIECES_MAX)))
    return fork


def _nodes(found: Plan) -> Counter[str]:
    """How many new nodes of each type the plan uses. A node that is coming and that no work needs is not among them."""
    counts = Counter[str]()
    for launch in (*found.launches, *found.coming):
        if launch.serves:
            counts[launch.template.name] += launch.count
    return counts


def _worth(found: Plan, types: NodeTypes) -> tuple[int, float, int]:
    """Less is better: work that stays pending, then the price, then the number of nodes."""
    prices = {each.name: each.price for each in types.catalog}
    counts = _nodes(found)
    price = sum(count * prices[kind] for kind, count in counts.items())
    return sum(len(each.ids) for each in found.unserved), price, counts.total()


def _without_memory(template: NodeTemplate) -> NodeTemplate:
    kept = {name: units for name, units in template.capacity.items() if name not in MEMORY}
    return replace(template, capacity=Resources(kept))
