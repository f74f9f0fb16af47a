"""The scaler: when to launch and retire which node.

Rule: pure. Time, the cluster and the provider's instances are given (`Seen`); decisions are returned. It keeps no state
that a restart must not lose: what was launched is in the provider's list, and a retirement is in the node's label. A
restart forgets only since when work is pending and nodes are idle, and which kinds rest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf

from stead.engine.engine import Engine
from stead.engine.facts import NodeDrained, NodeJoined, NodeLabelled
from stead.engine.scaling.decisions import LaunchEnded, LaunchId, NodeLost, NodeRequested, ScaleDecision
from stead.language.asks import AskId, Group
from stead.language.nodes import NodeTemplate
from stead.planner.idle_nodes import RETIRING as RETIRING
from stead.planner.idle_nodes import IdleNodes
from stead.planner.idle_nodes import Standing as Standing
from stead.planner.instances import Instance, LaunchFailed
from stead.planner.joining import as_described
from stead.planner.launches import Launches
from stead.planner.planning import plan
from stead.planner.plans import HYPOTHETICAL, NO_LIMITS, NO_STOCK, Launch, Limits, Plan, Stock
from stead.planner.resting import Rest as Rest
from stead.planner.resting import Resting
from stead.planner.trials import settle


@dataclass(frozen=True, slots=True)
class ScaleSettings:
    """How fast to launch and retire. Times are in seconds.

    Attributes:
        idle_s: How long nothing must need a node before it is retired.
        settle_s: How long work must be pending before a node is launched for it, so that a burst gets one plan. Time
            in which a node is on its way for it does not count.
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

STARTS_SETTLES = 3
"""How many times `settle_s` work may take to start where it had room, before a node is launched for it."""


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
        self._pending: dict[str, float] = {}  # pending work, and since when
        self._unserved: dict[str, float] = {}  # pending work without room, also when what comes has joined: until when
        self._had_room: frozenset[str] = frozenset()  # pending work that had room in the latest step
        self._wrong: set[LaunchId] = set()  # launches whose node is not what was requested
        self._planned = -inf  # when the latest plan was made
        self._state: object = None  # what plans depend on, as of the latest step
        self._latest_joined: tuple[object, Engine] | None = None  # see `_joined`: for what, and the fork
        self._held_back: set[AskId] = set()  # work of the latest plan for which nodes are launched later
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
        self._note_unserved(seen.engine, expected, decisions)
        decisions += self._requested(expected)
        decisions += idle.retire(self._joined(expected), self._unplanned(expected), self._resting)
        self.standing = idle.standing
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
        settle(fork)
        return fork

    def _joined(self, expected: Engine) -> Engine:
        """A fork in which the nodes that are coming have joined."""
        coming = [launch for launch in self._launches if launch.is_coming and launch.kind in self._kinds]
        if not coming or not expected.waiting:
            return expected
        made_for = (_state_of(expected), [launch.id for launch in coming])
        if self._latest_joined is None or self._latest_joined[0] != made_for:
            fork = expected.fork()
            fork.apply(*(NodeJoined(self._kinds[each.kind].node(f"{HYPOTHETICAL}/{each.id}")) for each in coming))
            settle(fork)
            self._latest_joined = made_for, fork
        return self._latest_joined[1]

    # -- launching

    def _requested(self, expected: Engine) -> list[ScaleDecision]:
        """Launches for the minimum of each kind, and for work that has been pending long enough."""
        self._pending = {id: self._pending.get(id, self._now) for id in expected.waiting}
        found, has_room = self._new_plan(expected), set[AskId]()
        decisions: list[ScaleDecision] = []
        for new in found.launches if found is not None else ():
            if not self._has_settled(new, expected):
                self._hold_back(new)
                continue
            served, more = divmod(len(new.serves), new.count)
            for number in range(new.count):
                if self._now < self._room_at():
                    self._hold_back(new)
                    break
                id, template = self._next_id(), self._kinds[new.template.name]
                self._launches.request(id, template.name, self._now)
                decisions.append(NodeRequested(id, template, served + (number < more)))
                has_room.update(new.serves)
        room = {id for id in self._unserved if not has_room.isdisjoint(_asks_of(expected, id))} if has_room else ()
        for id in room:  # its node may have joined before the next step
            del self._unserved[id]
        self._had_room = self._had_room.union(room)
        return decisions

    def _note_unserved(self, engine: Engine, expected: Engine, decided: Sequence[ScaleDecision]) -> None:
        """How long to wait for each piece of work without room. Work that had room a moment ago is probably starting
        there: some clusters show its node as in use for seconds while they still list it as pending."""
        wrong = {launch.id for launch in self._launches if launch.wrong}
        if wrong - self._wrong or any(isinstance(decision, LaunchEnded | NodeLost) for decision in decided):
            self._had_room = frozenset()  # the room is gone
        self._wrong = wrong
        waiting = self._joined(expected).waiting
        once, longer = self._now + self.settings.settle_s, self._now + STARTS_SETTLES * self.settings.settle_s
        self._unserved = {id: self._unserved.get(id, longer if id in self._had_room else once) for id in waiting}
        self._had_room = frozenset(engine.waiting) - self._unserved.keys()

    def _hold_back(self, new: Launch) -> None:
        """Launch this later; plan again then."""
        self._held_back.update(new.serves)
        self._state = None

    def _new_plan(self, expected: Engine) -> Plan | None:
        """A plan, if the cluster has changed since the latest one, `settle_s` has passed, and launches are allowed."""
        rests = self._resting.at(self._now)
        catalog, counted = self._open_catalog(expected, {rest.kind for rest in rests})
        stock = self.stock = self._stock()
        is_short = any(kind.count_min > counted[kind.name] for kind in catalog)
        if not self._pending and not is_short:
            self.plan, self._state, self._is_current = Plan((), (), ()), None, True
            return None
        self._due += [rest.until for rest in rests]
        state = (_state_of(expected), stock, catalog)
        self._is_current = self._is_current and self._state == state
        self._state = state
        if self._is_current:
            return None
        settles = -inf if is_short else min(self._pending.values()) + self.settings.settle_s
        moment = max(self._planned + self.settings.settle_s, settles, self._room_at())
        if self._now < moment:
            self._due.append(moment)
            return None
        self._held_back.clear()
        self.plan = plan(*self._with_others(expected, stock, catalog))
        self._planned, self._is_current = self._now, True
        return self.plan

    def _unplanned(self, expected: Engine) -> tuple[str, ...]:
        """Pending work that may still need more nodes than those that are coming."""
        if not self._is_current:
            return tuple(expected.waiting)
        waiting = expected.waiting if self._held_back else ()
        return tuple(id for id in waiting if not self._held_back.isdisjoint(_asks_of(expected, id)))

    def _stock(self) -> Stock:
        kinds = self._kinds
        running = {launch.node: launch.kind for launch in self._launches if launch.counts and launch.kind in kinds}
        return Stock(running, Counter(launch.kind for launch in self._launches if launch.is_coming))

    def _open_catalog(self, expected: Engine, resting: set[str]) -> tuple[tuple[NodeTemplate, ...], Counter[str]]:
        """The kinds with the counts that a plan may use now: none is launched of a kind that rests. Nodes that take no
        work count against the maximum, but not for the minimum; so do instances that are no node of their kind.
        Returns also how many of each kind there are."""
        counted, idle = Counter[str](), Counter[str]()
        for launch in self._launches:
            counted[launch.kind] += not launch.is_gone
            if launch.counts:
                idle[launch.kind] += expected.nodes[launch.node].draining
            else:
                idle[launch.kind] += launch.is_other
        found = []
        for kind in self.catalog:
            most = min(kind.count_max, counted[kind.name]) if kind.name in resting else kind.count_max
            found.append(replace(kind, count_max=most, count_min=min(kind.count_min + idle[kind.name], most)))
        return tuple(found), counted

    def _with_others(
        self, expected: Engine, stock: Stock, catalog: tuple[NodeTemplate, ...]
    ) -> tuple[Engine, tuple[NodeTemplate, ...], Limits, Stock]:
        """What a plan is made for: there, instances that are no node of their kind are nodes that take no work, so they
        count against all limits until they are gone. So do nodes without a label by which a quota counts them."""
        fork, running = expected.fork(), dict(stock.running)
        keys = {key for quota in self.limits.quotas for key in quota.labels}
        for launch in self._launches:
            kind, node = self._kinds.get(launch.kind), expected.nodes.get(launch.node)
            if kind is None or launch.is_gone or launch.is_coming:
                continue
            if node is None:
                node = replace(kind.node(f"{HYPOTHETICAL}/{launch.id}"), draining=True)
                fork.apply(NodeJoined(node))
            elif launch.is_other or any(node.label(key) != kind.labels[key] for key in keys & kind.labels.keys()):
                fork.apply(NodeLabelled(node.id, kind.labels), NodeDrained(node.id))
            running[node.id] = kind.name
        return fork, catalog, self.limits, Stock(running, stock.coming)

    def _has_settled(self, new: Launch, engine: Engine) -> bool:
        """Whether it is for the minimum, or serves work that has had no room for long enough."""
        served = set(new.serves)
        late = [id for id, until in self._unserved.items() if self._now < until]
        for id in late:
            served -= _asks_of(engine, id)
        if new.serves and not served:
            self._due.append(min(self._unserved[id] for id in late))
            return False
        return True

    def _room_at(self) -> float:
        """When one more launch is allowed."""
        latest = self._launches.requested_since(self._now - MINUTE_S)[-self.settings.launches_per_minute :]
        return latest[0] + MINUTE_S if len(latest) == self.settings.launches_per_minute else -inf

    def _next_id(self) -> LaunchId:
        if self._new_id is not None:
            return self._new_id()
        while True:
            self._made += 1
            id = f"{round(self._now * 1000):x}-{self._made}"
            if id not in self._launches:
                return id


def _asks_of(engine: Engine, id: str) -> set[AskId]:
    """The ask, or the members of the group."""
    item = engine.item(id)
    return {member.id for member in item.all_members} if isinstance(item, Group) else {id}


def _state_of(engine: Engine) -> object:
    """What plans depend on: equal values mean equal plans."""
    pending = {id: engine.item(id) for id in engine.waiting}
    return list(pending.items()), engine.placed, dict(engine.nodes), engine.used
