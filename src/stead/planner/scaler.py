"""The scaler: when to launch and retire which node.

Rule: pure. Time, the cluster and the provider's instances are given (`Seen`); decisions are returned. It keeps no state
that a restart must not lose: what was launched is in the provider's list, and a retirement is in the node's label. A
restart forgets only since when work is pending and nodes are idle, and which kinds rest.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf

from stead.engine.engine import Engine
from stead.engine.facts import NodeJoined
from stead.engine.scaling.decisions import LaunchId, NodeRequested, ScaleDecision
from stead.language.asks import Group
from stead.language.nodes import NodeTemplate
from stead.planner.idle_nodes import RETIRING as RETIRING
from stead.planner.idle_nodes import IdleNodes, settled
from stead.planner.idle_nodes import Standing as Standing
from stead.planner.instances import Instance, LaunchFailed
from stead.planner.joining import as_described
from stead.planner.launches import Launches
from stead.planner.planning import plan
from stead.planner.plans import NO_LIMITS, NO_STOCK, Launch, Limits, Plan, Stock
from stead.planner.resting import Rest as Rest
from stead.planner.resting import Resting


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


MINUTE_S = 60.0


class Scaler:
    """Decides which nodes to launch and retire, one `step` at a time.

    Args:
        catalog: The kinds of nodes.
        settings: How fast.
        limits: What plans must respect.
        new_id: Makes the id of each launch. Ids must differ from all before, also after a restart; by default they are
            made of the time and a number.
    """

    def __init__(
        self,
        catalog: Sequence[NodeTemplate],
        settings: ScaleSettings = ScaleSettings(),
        limits: Limits = NO_LIMITS,
        new_id: Callable[[], LaunchId] | None = None,
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
        self._kinds = {template.name: template for template in self.catalog}
        self._resting = Resting(settings.retry_s, settings.stock_out_s, settings.retry_max_s)
        self._launches = Launches(self._kinds, settings.join_s, self._resting)
        self._new_id, self._made = new_id, 0
        self._requests: deque[float] = deque(maxlen=max(1, settings.launches_per_minute))
        self._pending: dict[str, float] = {}  # pending work, and since when
        self._planned = -inf  # when the latest plan was made
        self._planned_for: object = None
        self._is_current = False  # whether the latest plan is for the cluster as it is
        self._due: list[float] = []
        self._now = -inf

    @property
    def next_moment(self) -> float | None:
        """When the next step is due if nothing happens before; None if never."""
        return min((moment for moment in self._due if moment > self._now), default=None)

    def step(self, seen: Seen) -> list[ScaleDecision]:
        """What to do now."""
        self._now, self._due = seen.now, []
        decisions = self._launches.follow(seen.now, seen.instances, seen.failures, seen.engine.nodes)
        idle = IdleNodes(
            seen.now, seen.engine, self._launches, self._kinds, self.settings.idle_s, self.settings.settle_s
        )
        expected, cancelled = idle.take_back(self._expected(seen.engine))
        decisions += cancelled
        decisions += self._requested(expected)
        retired, self.standing = idle.retire(expected, self._unserved(), self._resting)
        decisions += retired
        self._due += [*idle.due, *self._launches.moments()]
        self.rests = self._resting.at(seen.now)
        self.in_flight = tuple(launch.instance for launch in self._launches if launch.is_coming)
        return decisions

    def _expected(self, engine: Engine) -> Engine:
        """A fork in which nodes that have just joined are what their kind describes, as they soon should be."""
        fork = engine.fork()
        for launch in self._launches:
            if launch.is_incomplete and launch.kind in self._kinds:
                fork.apply(*as_described(self._kinds[launch.kind], fork.nodes[launch.node]))
        return settled(fork)

    # -- launching

    def _requested(self, expected: Engine) -> list[ScaleDecision]:
        """Launches for the minimum of each kind, and for work that has been pending long enough."""
        self._pending = {id: self._pending.get(id, self._now) for id in expected.waiting}
        found = self._new_plan(expected)
        decisions: list[ScaleDecision] = []
        for new in found.launches if found is not None else ():
            if not self._has_settled(new, expected):
                self._planned_for = None  # plan again when it has
                continue
            served, more = divmod(len(new.serves), new.count)
            for number in range(new.count):
                if not self._may_request():
                    self._planned_for = None
                    break
                id, template = self._next_id(), self._kinds[new.template.name]
                self._launches.request(id, template.name, self._now)
                decisions.append(NodeRequested(id, template, served + (number < more)))
        return decisions

    def _new_plan(self, expected: Engine) -> Plan | None:
        """A plan, if the cluster has changed since the latest one and `settle_s` has passed."""
        rests = self._resting.at(self._now)
        catalog = self._open_catalog({rest.kind for rest in rests})
        stock = self.stock = self._stock()
        is_short = any(self._missing(template, stock) for template in catalog)
        self._is_current = not self._pending
        if not self._pending and not is_short:
            self.plan, self._planned_for = Plan((), (), ()), None
            return None
        self._due += [rest.until for rest in rests]
        state = (expected.waiting, expected.placed, dict(expected.nodes), expected.used, stock, catalog)
        if self._planned_for == state:
            self._is_current = True
            return None
        settles = -inf if is_short else min(self._pending.values()) + self.settings.settle_s
        moment = max(self._planned + self.settings.settle_s, settles)
        if self._now < moment:
            self._due.append(moment)
            return None
        self.plan = planned(expected, catalog, self.limits, stock)
        self._planned, self._planned_for, self._is_current = self._now, state, True
        return self.plan

    def _unserved(self) -> frozenset[str]:
        """Pending work that no node will be launched for."""
        left = self.plan.unserved if self._is_current and self.plan is not None else ()
        return frozenset(id for each in left for id in each.ids)

    def _stock(self) -> Stock:
        kinds = self._kinds
        running = {launch.node: launch.kind for launch in self._launches if launch.counts and launch.kind in kinds}
        return Stock(running, Counter(launch.kind for launch in self._launches if launch.is_coming))

    def _open_catalog(self, resting: set[str]) -> tuple[NodeTemplate, ...]:
        """The kinds with the counts that a plan may use now: none is launched of a kind that rests, and instances that
        are no capacity of their kind still count against its maximum until they are gone."""
        counted, others = Counter[str](), Counter[str]()
        for launch in self._launches:
            counts = launch.counts or launch.is_coming
            (counted if counts else others)[launch.kind] += not launch.is_gone
        found = []
        for kind in self.catalog:
            most = max(0, kind.count_max - others[kind.name])
            most = min(most, counted[kind.name]) if kind.name in resting else most
            found.append(replace(kind, count_max=most, count_min=min(kind.count_min, most)))
        return tuple(found)

    @staticmethod
    def _missing(template: NodeTemplate, stock: Stock) -> int:
        """How many nodes of a kind are missing for its minimum."""
        running = sum(kind == template.name for kind in stock.running.values())
        return max(0, template.count_min - running - stock.coming.get(template.name, 0))

    def _has_settled(self, new: Launch, engine: Engine) -> bool:
        """Whether it is for the minimum, or serves work that has been pending long enough."""
        served = set(new.serves)
        late = [id for id, since in self._pending.items() if self._now < since + self.settings.settle_s]
        for id in late:
            item = engine.item(id)
            served -= {member.id for member in item.all_members} if isinstance(item, Group) else {id}
        if new.serves and not served:
            self._due.append(min(self._pending[id] for id in late) + self.settings.settle_s)
            return False
        return True

    def _may_request(self) -> bool:
        """Whether one more launch is allowed in this minute. Launches from before a restart count, too."""
        recent = [launch.instance.since for launch in self._launches if launch.adopted is not None]
        times = sorted(moment for moment in (*recent, *self._requests) if moment > self._now - MINUTE_S)
        if len(times) < self.settings.launches_per_minute:
            self._requests.append(self._now)
            return True
        self._due += [times[0] + MINUTE_S] if times else []
        return False

    def _next_id(self) -> LaunchId:
        if self._new_id is not None:
            return self._new_id()
        while True:
            self._made += 1
            id = f"{round(self._now * 1000):x}-{self._made}"
            if id not in self._launches:
                return id


def planned(engine: Engine, catalog: Sequence[NodeTemplate], limits: Limits, stock: Stock) -> Plan:
    """TEMPORARY until `plan` takes limits and stock."""
    fork, kinds = engine.fork(), {kind.name: kind for kind in catalog}
    running = Counter(stock.running.values())
    short = {}
    for kind in catalog:
        had = running[kind.name] + stock.coming.get(kind.name, 0)
        short[kind.name] = max(0, kind.count_min - had)
        new = stock.coming.get(kind.name, 0) + short[kind.name]
        fork.apply(*(NodeJoined(kind.node(f"(coming)/{kind.name}/{n}")) for n in range(new)))
    settled(fork)
    left = {
        kind.name: kind.count_max - running[kind.name] - stock.coming.get(kind.name, 0) - short[kind.name]
        for kind in catalog
    }
    found = plan(fork, [replace(kind, count_max=max(0, left[kind.name])) for kind in catalog])
    minimum = [Launch(kinds[name], count, ()) for name, count in short.items() if count]
    return replace(found, launches=(*found.launches, *minimum))
