"""Carries out the engine's decisions on Ray: slots for tasks, tickets for actors, Ray's placement groups for groups.

Rule: in each round the controller calls `facts` before the engine's step and `carry_out` after it, with the same status
of Ray's tables. The engine's commands arrive between the two. Nothing here chooses a node.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial

from stead.engine.decisions import (
    BatchDecided,
    DeadlinePassed,
    Decision,
    Evicted,
    GroupPlaced,
    Placed,
    Preempted,
    Refused,
    TaintExpired,
    Waiting,
)
from stead.engine.engine import Engine
from stead.engine.explain.events import event_of
from stead.engine.explain.wording import Names
from stead.engine.facts import (
    AskEnded,
    AskLost,
    Fact,
    GroupEnded,
    NodeDrained,
    NodeJoined,
    NodeLabelled,
    NodeLeft,
    NodeResized,
    NodeTainted,
    NodeUntainted,
    NodeUsed,
)
from stead.engine.reasons import Reason, ShortOf, TooNear
from stead.engine.timing.taint_times import TaintEnd
from stead.language.asks import Ask
from stead.language.resources import NOTHING, Resources
from stead.ray.control.anchors import Anchors
from stead.ray.control.autoscaler_mirror import Mirror
from stead.ray.control.cluster import in_use
from stead.ray.control.groups import Groups
from stead.ray.control.kept_nodes import HELD_AMOUNT, GroupHolds, KeptNodes
from stead.ray.control.passes import Passes
from stead.ray.control.slots import Slots
from stead.ray.control.state_store import StateStore
from stead.ray.control.ticketed_work import TicketedWork
from stead.ray.control.tickets import Tickets
from stead.ray.submit.compile import ALONE
from stead.ray.submit.environments import LABEL
from stead.ray.submit.messages import GroupAsked, Registered, SlotShape, Timed
from stead.ray.wire.gcs import ControlStore, NewsOfActors
from stead.ray.wire.own_names import pass_name, read_name, read_slot
from stead.ray.wire.resource_grants import ReadingGrants
from stead.ray.wire.tables import ActorRow, Status, Tables, handle

OWNERS_S, ROOM_S, PLACED_S = 2.0, 0.25, 1.0
DEMAND_MAX = 1_000
"""Maximum number of tasks of one shape that the autoscaler sees at once."""

REPORTED = (
    NodeJoined,
    NodeLeft,
    NodeLabelled,
    NodeTainted,
    NodeUntainted,
    NodeDrained,
    NodeResized,
    TaintExpired,
    Refused,
    Preempted,
    BatchDecided,
)
"""What becomes an event on Ray, in addition to why work is pending."""


class Placing:
    """Also the `Commands` of the cluster. Other threads may only register work and report."""

    def __init__(self, address: str, state_store: StateStore, tables: Tables, wake: Callable[[], None]) -> None:
        self._state_store, self._tables, self._wake, self._address = state_store, tables, wake, address
        self._lock = threading.RLock()
        self._owners_looked = self._measured = 0.0
        self._refuted: list[Fact] = []  # revoked grants, for the next round
        self._lost = False  # whether work lost its node in this round
        self._short: dict[str, float] = {}  # what waits for room -> since when
        self._reported: dict[str, tuple[tuple[Reason, ...], ...]] = {}  # by shape, the last reported reasons
        self._world = 0  # changes when anything changes that rules depend on
        self._early: list[Placed | GroupPlaced | Evicted | Preempted] = []
        self._is_open = False
        self.autoscaler = Mirror()
        self.kept_nodes = KeptNodes(GroupHolds(tables.groups))

    def open(
        self,
        engine: Engine,
        passes: Passes,
        grants: ReadingGrants | None,
        check: Callable[[], None],
        status: Status,
        head: str,
        ask_of: Callable[[ActorRow], Ask],
    ) -> None:
        """Call once the journal is read. Commands of the last step, which are repeated before this, wait for it."""
        self._engine, self._passes = engine, passes
        tickets = Tickets(grants, check, self._tables.groups())
        self.ticketed = TicketedWork(self._state_store, self._tables, tickets, engine, ask_of)
        self.tickets = tickets
        tickets.recover(status)
        self.ticketed.recover(engine)
        self.slots = Slots(self._state_store, engine, grants, Anchors(head, self._tables.groups), check)
        self.slots.recover(status)
        self.store = ControlStore(self._address)
        self.groups = Groups(self._state_store, self._tables, self.store, lambda rule: self._name_of(rule.key))
        self.groups.create_again(engine.placed)
        self._is_open = True
        for command in self._early:
            match command:
                case Evicted():
                    self.evict(command)
                case Preempted():
                    self.preempt(command)
                case _:
                    self.bind(command)
        for id, node in engine.ending.items():
            self._stop(id, node)
        self._short = dict.fromkeys(engine.waiting, time.monotonic())  # their reasons were reported before the restart
        known = {*engine.placed, *engine.waiting}
        self._recovered = [*self._over(engine), *self.ticketed.not_in_engine(known), *self.groups.not_in_engine(known)]
        self._news = NewsOfActors(self._address, self.ticketed.is_of_interest, self._wake)

    def _over(self, engine: Engine) -> list[Fact]:
        """After a restart: end work that the engine has and the store does not. A controller that dies in between has
        deleted it from the store, but its end is not in the journal."""
        members = {member.id for group in engine.groups.values() for member in group.all_members}
        alone = {*engine.placed, *engine.waiting} - members - engine.groups.keys()
        followed = self.ticketed.is_of_interest
        asks = [id for id in alone if not (followed(id) or self.slots.pool_of(id))]
        groups = engine.groups.keys() - self.groups.lives.keys()
        return [*map(GroupEnded, sorted(groups)), *map(AskEnded, sorted(asks))]

    def _name_of(self, key: str) -> str:
        return pass_name(key, self._passes.issued[key].current)

    # -- from other threads

    def register(self, arrived: Sequence[Registered]) -> None:
        with self._lock:
            self.ticketed.register(arrived)
        self._wake()

    def register_group(self, asked: GroupAsked) -> None:
        with self._lock:
            self.groups.register(asked)
        self._wake()

    def end_group(self, id: str) -> None:
        with self._lock:
            being_placed = self.groups.is_being_placed(id)
        if being_placed:
            handle(id).wait(PLACED_S)  # Ray 2.60 may lose resources of a group removed while it is being placed
        with self._lock:
            self.groups.end(id)
        self._wake()

    def placed_at(self, id: str) -> float:
        return self.groups.placed_at(id)

    def decide_again(self, id: str) -> None:
        """Place a group again that may not stay on its nodes."""
        with self._lock:
            self.groups.again(id, self._current)
        self._wake()

    def _current(self, name: str) -> str:
        """The current name of the pass; any other resource keeps its name."""
        found = read_name(name)
        return self._name_of(found[0]) if found and found[0] in self._passes.issued else name

    def want_slots(self, program: str, number: int, shapes: Sequence[SlotShape], counts: Mapping[str, int]) -> None:
        """A program has submitted tasks. This message, with this number, counts them by shape."""
        with self._lock:
            self.slots.introduce(shapes)
            if self.slots.count(program, number, counts):
                self._wake()

    # -- in the round

    def facts(self, status: Status) -> list[Fact]:
        with self._lock:
            news, missed = self._news.take()
            self.ticketed.follow(self.slots.pools.named())
            fork = cache(partial(self.fork, status))
            slots = self.slots.facts(status, self._waits_s(), partial(self.ticketed.awaits, fork=fork))
            recovered, self._recovered = self._recovered, []
            idle = self.ticketed.is_idle and not self.groups.lives and not self.groups.has_news and self.slots.is_idle
            if idle and not recovered:
                return []
            facts = [*self.ticketed.facts(news, missed, status, fork), *self.groups.facts(status), *self._orphans()]
            self._world += bool(facts)
            facts = [*recovered, *slots, *facts, *self._refuted]
            self._refuted, self._lost = [], any(isinstance(fact, AskLost) for fact in facts)
            facts += self.ticketed.close_in(status, lambda: self._occupied(status))
            facts += self.slots.close_in(lambda: self._occupied(status))
            if not facts and not self._waits_for_room():
                return []
            return [*self._use(status), *facts]

    def _use(self, status: Status) -> list[Fact]:
        """What other work uses on each node, if that has changed. For a node whose groups are unclear, the last report
        stands."""
        known, unclear = self._engine.used, self.groups.unclear()
        used = [each for each in in_use(status, self.mine(status), self._passes.plugged) if each.node not in unclear]
        return [each for each in used if each != known.get(each.node, NodeUsed(each.node, NOTHING, 0))]

    def fork(self, status: Status) -> Engine:
        """A copy of the engine that knows what all other work uses."""
        with self._lock:
            fork = self.engine_alone()
            fork.apply(*in_use(status, self.mine(status), self._passes.plugged))
            return fork

    def closed(self) -> frozenset[str]:
        """Nodes that exclusive work has to itself."""
        with self._lock:
            return self.ticketed.closed() | self.slots.pools.closed()

    def _occupied(self, status: Status) -> Collection[str]:
        """Nodes that run something that the engine did not place there."""
        return {used.node for used in in_use(status, self.mine(status), self._passes.plugged) if used.pieces}

    def _waits_for_room(self) -> bool:
        """Whether work waits for other work to end. If so, what that uses is reported regularly."""
        if not self._short or time.monotonic() - self._measured < ROOM_S:
            return False
        self._measured = time.monotonic()
        waiting = set(self._engine.waiting)
        self._short = {id: since for id, since in self._short.items() if id in waiting}
        return bool(self._short)

    def _waits_s(self) -> dict[str, float]:
        """By shape of tasks, or "" for other work: how long the oldest has waited for room; 0 if it is new. Work for
        which a place is kept does not wait for other work to end."""
        now, found, kept = time.monotonic(), dict[str, float](), self._engine.nominated
        if self.ticketed.has_arrivals or self.groups.has_news:
            found[""] = 0.0
        for id, since in ((id, since) for id, since in self._short.items() if id not in kept):
            slot = read_slot(id.rpartition("#")[0])
            key = slot[0] if slot else ""
            found[key] = max(found.get(key, 0.0), now - since)
        return found

    def engine_alone(self) -> Engine:
        """A copy of the engine without slots that no task uses."""
        with self._lock:
            fork = self._engine.fork()
            fork.apply(*map(AskEnded, self.slots.pools.idle_ids()))
            return fork

    @property
    def taint_ends(self) -> Sequence[TaintEnd]:
        return self._engine.taint_ends

    @property
    def titles(self) -> Names:
        """The display names of nodes."""
        return self._engine.titles

    @property
    def plugged(self) -> dict[tuple[str, str], float]:
        return self._passes.plugged

    def mine(self, status: Status, slots: bool = True) -> dict[str, list[Resources]]:
        """By node, what work uses there that the engine placed."""
        mine = self.ticketed.shown(status)
        for shown in (self.groups.shown(status), self.slots.pools.shown(status) if slots else {}):
            for node, amounts in shown.items():
                mine.setdefault(node, []).extend(amounts)
        for node in self.kept_nodes.why:
            mine.setdefault(node, []).append(HELD_AMOUNT)
        return mine

    def _orphans(self) -> list[Fact]:
        """End groups whose job or detached actor is gone. Actors end with their owner, and tasks when they are no
        longer pending."""
        if time.monotonic() - self._owners_looked < OWNERS_S:
            return []
        self._owners_looked = time.monotonic()
        return self.groups.owners_ended(self._tables.live_owners(self.groups.owners()))

    def carry_out(self, status: Status, nodes_changed: bool) -> None:
        """Grant what was decided in this step. If nodes or work have changed, unused grants may be wrong, so they are
        checked again."""
        with self._lock:
            self._world += nodes_changed
            self.slots.check_rules(self._world)
            self._evict_groups(status)
            self.groups.carry_out(status)
            if self.ticketed.is_idle and self.tickets.is_settled:
                return
            self._refuted += self.ticketed.stuck(self._lost or nodes_changed, lambda: self.fork(status))
            self.tickets.sweep(status)
            self.tickets.carry_out(status)
        if self._refuted:
            self._wake()

    def _evict_groups(self, status: Status) -> None:
        for id, evicted in self.groups.evictions(status).items():
            self._state_store.add_event(event_of(replace(evicted, ask=id), time.time(), self._engine.titles))
            self.groups.again(id, self._current)

    def grant_slots(self, status: Status) -> None:
        """Called after the page was published, because a withdrawal is announced before it happens."""
        with self._lock:
            self.slots.carry_out(status)

    def ids(self) -> list[str]:
        with self._lock:
            return [*self.ticketed.lives, *self.groups.lives, *self.slots.pools.ids()]

    def evicted_names(self) -> list[tuple[str, str]]:
        """(node, name) whose holders have to leave."""
        with self._lock:
            lives = self.ticketed.lives
            tickets = [(node, lives[id].what.name) for id, node in self.ticketed.evicting.items() if id in lives]
            return [*tickets, *self.slots.pools.evicted(), *self.slots.preempted.names()]

    @property
    def batch_due_s(self) -> float | None:
        """In how many seconds the current batch is due; None if there is none."""
        due, tasks = self.ticketed.gathering.due, self.slots.due_s
        actors = None if due is None else max(0.0, due - time.monotonic())
        return tasks if actors is None else actors if tasks is None else min(actors, tasks)

    @property
    def is_unsettled(self) -> bool:
        """Whether Ray's tables should be read again soon."""
        return self.groups.is_creating or self.ticketed.is_closing or self.ticketed.is_dying or self.slots.is_unsettled

    # -- the engine's commands

    def bind(self, placed: Placed | GroupPlaced) -> None:
        with self._lock:
            if not self._is_open:
                self._early.append(placed)
            elif isinstance(placed, GroupPlaced):
                self.groups.bind(placed)
            elif not self.slots.bind(placed):
                self.ticketed.bind(placed)

    def evict(self, evicted: Evicted) -> None:
        if not self._is_open:
            self._early.append(evicted)
        elif not (self.slots.evict(evicted) or self.groups.evict(evicted)):
            self.ticketed.evict(evicted.ask, evicted.node)

    def preempt(self, preempted: Preempted) -> None:
        """Victims end like evicted work: actors restart and tasks run again, without using up a restart or a retry,
        where the engine places them next."""
        if not self._is_open:
            self._early.append(preempted)
            return
        for victim in preempted.victims:
            self._stop(victim, preempted.node)

    def interrupts(self, node: str, names: Sequence[str]) -> bool | None:
        """Whether a worker that holds these names shall interrupt its task for other work; None if it is not asked
        to."""
        with self._lock:
            return self.slots.preempted.admits(node, names)

    def interrupted_ended(self, node: str, names: Sequence[str]) -> None:
        """A task that was interrupted has ended; its worker held these names."""
        with self._lock:
            self.slots.preempted.ended(node, names)

    def _stop(self, victim: str, node: str) -> None:
        with self._lock:
            if not self.slots.preempted.preempt(victim, node):
                self.ticketed.evict(victim, node)

    def refuse(self, refused: Refused) -> None:
        """The deadline passed, or every node that the work may use is gone; a node id never comes back. An actor is
        killed. A task only gets an event, because only its owner can end it."""
        if self._is_open and not self.slots.refuse(refused.id) and refused.id in self.ticketed.lives:
            if isinstance(refused.cause, DeadlinePassed):
                what = self.ticketed.lives[refused.id].what
                why = event_of(refused, time.time()).text.removeprefix("refused: its deadline passed: ")
                self._state_store.keep_timed([Timed(refused.id, "actor", what.job, what.ask, why)])
            self.store.kill_actor(refused.id)

    def tell(self, happened: Sequence[Fact | Decision]) -> None:
        """Write events. Routine steps of single pieces of work are not events on Ray. Evictions are reported when they
        happen (`ControllerActor.evicts`)."""
        reported = [
            each for each in happened if isinstance(each, (Waiting, *REPORTED)) and not _is_about_environments(each)
        ]
        if not reported or not self._is_open:
            return
        now, names = time.time(), self._engine.titles
        for what in reported:
            if isinstance(what, Preempted) and not what.victims:
                continue
            if isinstance(what, Waiting):
                self._pending(what, now, names)
            elif (event := event_of(what, now, names)) is not None:
                self._state_store.add_event(event)

    def _pending(self, waiting: Waiting, now: float, names: Mapping[str, str]) -> None:
        known = [id for id in waiting.asks if self._is_known(id)]
        if not known:
            return
        if not waiting.refusals or any(may_end_silently(each.reason) for each in waiting.refusals):
            for id in known:
                self._short.setdefault(id, time.monotonic())
        pool = self.slots.pool_of(known[0])
        event = event_of(replace(waiting, asks=tuple(known)), now, names)
        if pool is not None:  # one event per shape and cause, not per task
            who = f"tasks that ask for {pool.shape.ask.choices[0].resources}"
            causes = tuple(verdict.main_reasons for verdict in waiting.verdicts)
            if self._reported.pop(who, None) == causes:
                self._reported[who] = causes
                return
            self._reported[who] = causes
            for old in list(self._reported)[:-DEMAND_MAX]:
                del self._reported[old]
            event = replace(event, subject=who, count=max(pool.demand(time.monotonic()), len(known)))
        self._state_store.add_event(event)

    def _is_known(self, id: str) -> bool:
        return id in self.ticketed.lives or id in self.groups.lives or self.slots.pool_of(id) is not None


def _is_about_environments(what: Fact | Decision) -> bool:
    """Whether this is about the labels that mark where a runtime environment exists."""
    return isinstance(what, NodeLabelled) and all(key.startswith(LABEL) for key in (*what.labels, *what.removed))


def may_end_silently(reason: object) -> bool:
    """Whether the obstacle is what other work uses, which can end without an event: only Ray's tables show it."""
    return isinstance(reason, ShortOf) or (isinstance(reason, TooNear) and reason.affinity == ALONE)
