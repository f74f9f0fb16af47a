"""What the engine decides, carried out on Ray: slots for tasks, tickets for actors, groups of Ray for groups.

Rule: the controller's round calls `facts` before the engine's step and `carry_out` after it, always with the same
look at Ray's tables; between the two the engine's commands arrive here. Nothing here chooses a node.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence

import ray

from stead.asks import Ask
from stead.engine import Engine
from stead.engine.decisions import Evicted, GroupPlaced, NodeUnknown, Placed, Refused, Waiting
from stead.engine.facts import AskEnded, AskLost, Fact, GroupEnded
from stead.engine.reasons import Reason, ShortOf, TooNear
from stead.ray.anchors import Anchors
from stead.ray.book import Book, GroupAsked, Registered, SlotShape
from stead.ray.cluster import IN_USE, in_use, others_in_use
from stead.ray.compile import ALONE
from stead.ray.decided import Decided
from stead.ray.gcs import ControlStore, NewsOfActors
from stead.ray.grants import ReadingGrants
from stead.ray.groups import Groups
from stead.ray.page import pass_name, read_name, read_slot
from stead.ray.passes import Passes
from stead.ray.slots import Slots
from stead.ray.tables import Status, Tables, handle
from stead.ray.tickets import Tickets
from stead.resources import Resources

OWNERS_S, ROOM_S, PLACED_S = 2.0, 0.25, 1.0
TASKS_WANTED_MAX = 64
TOLD_MAX = 1_000
"""So many tasks of one shape are told to the autoscaler at once."""


class Placing:
    """Also the `Commands` of the cluster. Other threads may only register and report."""

    def __init__(self, address: str, book: Book, tables: Tables, wake: Callable[[], None]) -> None:
        self._book, self._tables, self._wake, self._address = book, tables, wake, address
        self._lock = threading.RLock()
        self._owners_looked = self._measured = 0.0
        self._refuted: list[Fact] = []  # grants that were taken back, for the next round
        self._lost = False  # whether somebody lost a place in this round
        self._short: dict[str, float] = {}  # what waits for room, and since when
        self._told: dict[str, frozenset[tuple[int, Reason]]] = {}  # why work waits, by what was told of it last
        self._world = 0  # changes with everything that rules look at
        self._early: list[Placed | GroupPlaced | Evicted] = []
        self._is_open = False

    def open(
        self,
        engine: Engine,
        passes: Passes,
        grants: ReadingGrants | None,
        check: Callable[[], None],
        status: Status,
        head: str,
    ) -> None:
        """Once the journal is read; commands of the last step, which come again before this, wait for it."""
        self._engine, self._passes = engine, passes
        tickets = Tickets(grants, check, self._tables.groups())
        self.decided = Decided(self._book, self._tables, tickets, engine)
        self.tickets = tickets
        tickets.recover(status)
        self.decided.recover(engine)
        self.slots = Slots(self._book, engine, grants, Anchors(head, self._tables.groups), check)
        self.slots.recover(status)
        self.store = ControlStore(self._address)
        self.groups = Groups(self._book, self._tables, self.store, lambda rule: self._name_of(rule.key))
        self.groups.create_again(engine.placed)
        self._is_open = True
        for command in self._early:
            self.evict(command) if isinstance(command, Evicted) else self.bind(command)
        self._short = dict.fromkeys(
            engine.waiting, time.monotonic()
        )  # why each waits was told before, and is not again
        known = {*engine.placed, *engine.waiting}
        self._unheard = [*self._over(engine), *self.decided.unheard(known), *self.groups.unheard(known)]
        self._news = NewsOfActors(self._address, self.decided.is_of_interest, self._wake)

    def _over(self, engine: Engine) -> list[Fact]:
        """After a restart: the end of what the engine has and the book has not. A controller that dies between the two
        has forgotten it in the book, and its end is not in the journal."""
        members = {member.id for group in engine.groups.values() for member in group.all_members}
        alone = {*engine.placed, *engine.waiting} - members - engine.groups.keys()
        followed = self.decided.is_of_interest
        asks = [id for id in alone if not (id.startswith(IN_USE) or followed(id) or self.slots.pool_of(id))]
        groups = engine.groups.keys() - self.groups.lives.keys()
        return [*map(GroupEnded, sorted(groups)), *map(AskEnded, sorted(asks))]

    def _name_of(self, key: str) -> str:
        return pass_name(key, self._passes.issued[key].current)

    # -- from other threads

    def register(self, arrived: Sequence[Registered]) -> None:
        with self._lock:
            self.decided.register(arrived)
        self._wake()

    def register_group(self, asked: GroupAsked) -> None:
        with self._lock:
            self.groups.register(asked)
        self._wake()

    def end_group(self, id: str) -> None:
        with self._lock:
            being_placed = self.groups.is_being_placed(id)
        if being_placed:
            handle(id).wait(PLACED_S)  # Ray 2.60 may lose what a group holds that is removed while it is being placed
        with self._lock:
            self.groups.end(id)
        self._wake()

    def placed_at(self, id: str) -> float:
        return self.groups.placed_at(id)

    def decide_again(self, id: str) -> None:
        """A group that may not stay where it is."""
        with self._lock:
            self.groups.again(id, self._current)
        self._wake()

    def _current(self, name: str) -> str:
        """The name that a pass has today; of any other resource, its name."""
        found = read_name(name)
        return self._name_of(found[0]) if found and found[0] in self._passes.issued else name

    def want_slots(self, program: str, number: int, shapes: Sequence[SlotShape], counts: Mapping[str, int]) -> None:
        """A program has submitted tasks: its message of this number counts them by shape."""
        with self._lock:
            self.slots.introduce(shapes)
            if self.slots.count(program, number, counts):
                self._wake()

    # -- in the round

    def facts(self, status: Status) -> list[Fact]:
        with self._lock:
            news, missed = self._news.take()
            self.decided.follow(self.slots.pools.named())
            slots = self.slots.facts(status, self._waits_s(), self.decided.is_starting)
            unheard, self._unheard = self._unheard, []
            idle = self.decided.is_idle and not self.groups.lives and not self.groups.has_news and self.slots.is_idle
            if idle and not unheard:
                return []
            facts = [*self.decided.facts(status, news, missed), *self.groups.facts(status), *self._orphans()]
            self._world += bool(facts)
            facts = [*unheard, *slots, *facts, *self._refuted]
            self._refuted, self._lost = [], any(isinstance(fact, AskLost) for fact in facts)
            facts += self.decided.close_in(status, lambda: self._occupied(status))
            facts += self.slots.close_in(lambda: self._occupied(status))
            if not facts and not self._waits_for_room():
                return []
            mine, unclear = self.mine(status), self.groups.unclear()
            return [*self.decided.usage(status, mine, self._passes.plugged, unclear), *facts]

    def fork(self, status: Status, but: Mapping[str, Ask] | None = None) -> Engine:
        """The engine as of now, told what everything else uses; `but` is an ask by node that is told by itself."""
        with self._lock:
            fork, mine = self.engine_alone(), {node: list(each) for node, each in self.mine(status).items()}
            for node, ask in (but or {}).items():
                if ask.id not in self.decided.lives:
                    mine.setdefault(node, []).append(ask.choices[0].resources)
            fork.apply(*in_use(status, mine, self._passes.plugged))
            return fork

    def closed(self) -> frozenset[str]:
        """Nodes that work has for itself."""
        with self._lock:
            return self.decided.closed() | self.slots.pools.closed()

    def _occupied(self, status: Status) -> Collection[str]:
        """Nodes on which something runs that the engine has not placed there."""
        return others_in_use(status, self.mine(status), self._passes.plugged)

    def _waits_for_room(self) -> bool:
        """Whether somebody waits for others to leave; then what they use is told again every now and then."""
        if not self._short or time.monotonic() - self._measured < ROOM_S:
            return False
        self._measured = time.monotonic()
        waiting = set(self._engine.waiting)
        self._short = {id: since for id, since in self._short.items() if id in waiting}
        return bool(self._short)

    def _waits_s(self) -> dict[str, float]:
        """How long the oldest work of each shape of tasks, or any other (""), has waited for room; 0 if it is new."""
        now, found = time.monotonic(), dict[str, float]()
        if self.decided.has_arrivals or self.groups.has_news:
            found[""] = 0.0
        for id, since in self._short.items():
            slot = read_slot(id.rpartition("#")[0])
            key = slot[0] if slot else ""
            found[key] = max(found.get(key, 0.0), now - since)
        return found

    def engine_alone(self) -> Engine:
        """The engine as of now without what it was told of use by others."""
        with self._lock:
            fork = self._engine.fork()
            fork.apply(*(AskEnded(id) for ids in self.decided.told.values() for id in ids))
            fork.apply(*map(AskEnded, self.slots.pools.idle_ids()))
            return fork

    @property
    def plugged(self) -> dict[tuple[str, str], float]:
        return self._passes.plugged

    def mine(self, status: Status, slots: bool = True) -> dict[str, list[Resources]]:
        """By node, what work uses there that the engine has placed."""
        mine = self.decided.shown(status)
        for shown in (self.groups.shown(status), self.slots.pools.shown(status) if slots else {}):
            for node, amounts in shown.items():
                mine.setdefault(node, []).extend(amounts)
        return mine

    def _orphans(self) -> list[Fact]:
        """The end of groups of jobs and detached actors that are gone. Actors end by themselves, tasks with their
        demand."""
        if time.monotonic() - self._owners_looked < OWNERS_S:
            return []
        self._owners_looked = time.monotonic()
        return self.groups.owners_ended(self._tables.live_owners(self.groups.owners()))

    def carry_out(self, status: Status, nodes_changed: bool) -> None:
        """Grant what was decided in this step. When something has moved, grants that were not used yet may have become
        wrong, so they are looked at again."""
        with self._lock:
            self._world += nodes_changed
            self.slots.check_rules(self._world)
            self.groups.carry_out(status)
            if self.decided.is_idle and self.tickets.is_settled:
                return
            self._refuted += self.decided.stuck(self._lost or nodes_changed, lambda: self.fork(status))
            self.tickets.sweep(status)
            self.tickets.carry_out(status)
        if self._refuted:
            self._wake()

    def grant_slots(self, status: Status) -> None:
        """After the page: what is withdrawn is announced before it is taken away."""
        with self._lock:
            self.slots.carry_out(status)

    def ids(self) -> list[str]:
        with self._lock:
            return [*self.decided.lives, *self.groups.lives, *self.slots.pools.ids()]

    def evicted_names(self) -> list[tuple[str, str]]:
        """(node, name) whose holders have to go."""
        with self._lock:
            lives = self.decided.lives
            tickets = [(node, lives[id].what.name) for id, node in self.decided.evicting.items() if id in lives]
            return [*tickets, *self.slots.pools.evicted()]

    def wanted(self) -> list[Ask]:
        """What waits and could be served by a node that is not there yet: nothing that has to be near other work."""
        with self._lock:
            waiting = self._engine.waiting
            asks = [self.decided.lives[id].what.ask for id in waiting if id in self.decided.lives]
            alone = [ask for ask in asks if not any(each.near for term in ask.affinities for each in term)]
            groups = [self.groups.lives[id].asked.group for id in waiting if id in self.groups.lives]
            tasks = [
                pool.shape.ask
                for pool, count in self.slots.pending()
                if not any(each.near for term in pool.shape.ask.affinities for each in term)
                for _ in range(min(count, TASKS_WANTED_MAX))
            ]
            return [*alone, *tasks, *(member for group in groups for member in group.alternatives[0])]

    @property
    def batch_due_s(self) -> float | None:
        """In how many seconds work that is gathered for a batch has to be told; None if there is none."""
        due, tasks = self.decided.gathering.due, self.slots.due_s
        actors = None if due is None else max(0.0, due - time.monotonic())
        return tasks if actors is None else actors if tasks is None else min(actors, tasks)

    @property
    def is_unsettled(self) -> bool:
        """Whether a look at Ray's tables soon is worth it."""
        return self.groups.is_creating or self.decided.is_closing or self.decided.is_dying or self.slots.is_unsettled

    # -- what the engine wants done

    def bind(self, placed: Placed | GroupPlaced) -> None:
        with self._lock:
            if not self._is_open:
                self._early.append(placed)
            elif isinstance(placed, GroupPlaced):
                self.groups.bind(placed)
            elif not self.slots.bind(placed):
                self.decided.bind(placed)

    def evict(self, evicted: Evicted) -> None:
        if not self._is_open:
            self._early.append(evicted)
        elif not self.slots.evict(evicted):
            self.decided.evict(evicted)

    def refuse(self, refused: Refused) -> None:
        """Every node it may go to is gone, and a node id never comes back. An actor is ended; who waits for a task has
        only the event, because none but its owner can end it."""
        assert isinstance(refused.cause, NodeUnknown), "deadlines are kept by the owners of work"
        text = f"it may go to no other node than {', '.join(refused.cause.nodes)}, which is gone"
        self._book.add_event(time.time(), "refused", refused.id, text)
        if self._is_open and not self.slots.refuse(refused.id) and refused.id in self.decided.lives:
            core = ray._private.worker.global_worker.core_worker
            core.kill_actor(ray.ActorID.from_hex(refused.id), True)

    def explain(self, waiting: Waiting) -> None:
        if not self._is_open:
            return
        known = [id for id in waiting.asks if self._is_known(id)]
        if not known:
            return
        if not waiting.refusals or any(may_end_unheard(each.reason) for each in waiting.refusals):
            now = time.monotonic()
            for id in known:
                self._short.setdefault(id, now)
        pool = self.slots.pool_of(known[0])
        who = known[0] if pool is None else f"tasks that ask for {pool.shape.ask.choices[0].resources}"
        count = len(known) if pool is None else pool.demand(time.monotonic())
        found = self._engine.explain(known[0])
        if self._told.get(who) != found.causes:
            self._told.pop(who, None)
            self._told[who] = found.causes
            for old in list(self._told)[:-TOLD_MAX]:
                del self._told[old]
            self._book.add_event(time.time(), "waiting", who, str(found), max(count, len(known)))

    def _is_known(self, id: str) -> bool:
        return id in self.decided.lives or id in self.groups.lives or self.slots.pool_of(id) is not None


def may_end_unheard(reason: object) -> bool:
    """Whether an obstacle is what others use, of which only Ray's tables tell."""
    return isinstance(reason, ShortOf) or (isinstance(reason, TooNear) and reason.affinity == ALONE)
