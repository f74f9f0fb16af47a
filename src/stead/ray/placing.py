"""What the engine decides singly, carried out on Ray: tickets for tasks and actors, groups of Ray for groups.

Rule: the controller's round calls `facts` before the engine's step and `carry_out` after it, always with the same
look at Ray's tables; between the two the engine's commands arrive here. Nothing here chooses a node.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence

import ray

from stead.asks import Ask
from stead.engine import Engine
from stead.engine.decisions import Evicted, GroupPlaced, NodeUnknown, Placed, Refused, Waiting
from stead.engine.facts import AskEnded, AskLost, Fact
from stead.engine.reasons import ShortOf, TooNear
from stead.ray.book import Book, GroupAsked, Registered
from stead.ray.cluster import in_use
from stead.ray.compile import ALONE
from stead.ray.decided import Decided
from stead.ray.gcs import ControlStore, NewsOfActors
from stead.ray.grants import Grants
from stead.ray.groups import Groups
from stead.ray.page import pass_name, read_name
from stead.ray.passes import Passes
from stead.ray.tables import Status, Tables, handle
from stead.ray.tickets import Tickets
from stead.resources import Resources

OWNERS_S, ROOM_S, PLACED_S = 2.0, 0.25, 1.0


class Placing:
    """Also the `Commands` of the cluster. Other threads may only register and report."""

    def __init__(self, address: str, book: Book, tables: Tables, wake: Callable[[], None]) -> None:
        self._book, self._tables, self._wake, self._address = book, tables, wake, address
        self._lock = threading.RLock()
        self._owners_looked = self._measured = 0.0
        self._refuted: list[Fact] = []  # grants that were taken back, for the next round
        self._lost = False  # whether somebody lost a place in this round
        self._short: set[str] = set()  # what waits for room
        self._early: list[Placed | GroupPlaced | Evicted] = []
        self._is_open = False

    def open(
        self, engine: Engine, passes: Passes, grants: Grants | None, check: Callable[[], None], status: Status
    ) -> None:
        """Once the journal is read; commands of the last step, which come again before this, wait for it."""
        self._engine, self._passes = engine, passes
        tickets = Tickets(grants, check, self._tables.groups())
        self.decided = Decided(self._book, self._tables, tickets, engine)
        self.tickets = tickets
        tickets.recover(status)
        self.decided.recover(engine)
        store = ControlStore(self._address)
        self.groups = Groups(self._book, self._tables, store, lambda rule: self._name_of(rule.key))
        self.groups.create_again(engine.placed)
        self._is_open = True
        for command in self._early:
            self.evict(command) if isinstance(command, Evicted) else self.bind(command)
        self._short = set(engine.waiting)  # why each waits was told before, and is not told again
        known = {*engine.placed, *engine.waiting}
        self._unheard = [*self.decided.unheard(known), *self.groups.unheard(known)]
        self._news = NewsOfActors(self._address, self.decided.is_of_interest, self._wake)

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

    def task_started(self, name: str, node: str) -> None:
        with self._lock:
            self.decided.task_started(name, node)
        self._wake()

    def task_done(self, name: str) -> None:
        with self._lock:
            self.decided.task_done(name)
        self._wake()

    # -- in the round

    def facts(self, status: Status) -> list[Fact]:
        with self._lock:
            news, missed = self._news.take()
            if self.decided.is_idle and not self.groups.lives and not self.groups.has_news:
                return []
            unheard, self._unheard = self._unheard, []
            facts = [*unheard, *self.decided.facts(status, news, missed), *self.groups.facts(status), *self._orphans()]
            facts += self._refuted
            self._refuted, self._lost = [], any(isinstance(fact, AskLost) for fact in facts)
            facts += self.decided.close_in(status, self._passes.plugged)
            if not facts and not self._waits_for_room():
                return []
            return [*self.decided.usage(status, self.mine(status), self._passes.plugged), *facts]

    def fork(self, status: Status, but: Mapping[str, Ask] | None = None) -> Engine:
        """The engine as of now, told what everything else uses; `but` is an ask by node that is told by itself."""
        with self._lock:
            fork, mine = self.engine_alone(), {node: list(each) for node, each in self.mine(status).items()}
            for node, ask in (but or {}).items():
                if ask.id not in self.decided.lives:
                    mine.setdefault(node, []).append(ask.choices[0].resources)
            fork.apply(*in_use(status, mine, self._passes.plugged))
            return fork

    def _waits_for_room(self) -> bool:
        """Whether somebody waits for others to leave; then what they use is told again every now and then."""
        if not self._short or time.monotonic() - self._measured < ROOM_S:
            return False
        self._measured = time.monotonic()
        self._short &= set(self._engine.waiting)
        return bool(self._short)

    def engine_alone(self) -> Engine:
        """The engine as of now without what it was told of use by others."""
        with self._lock:
            fork = self._engine.fork()
            fork.apply(*(AskEnded(id) for ids in self.decided.told.values() for id in ids))
            return fork

    @property
    def plugged(self) -> set[tuple[str, str]]:
        return self._passes.plugged

    def mine(self, status: Status) -> dict[str, list[Resources]]:
        mine = self.decided.shown(status)
        for node, amounts in self.groups.shown(status).items():
            mine.setdefault(node, []).extend(amounts)
        return mine

    def _orphans(self) -> list[Fact]:
        """The end of what belonged to jobs and detached actors that are gone."""
        if time.monotonic() - self._owners_looked < OWNERS_S:
            return []
        self._owners_looked = time.monotonic()
        owners = self.decided.owners() | self.groups.owners()
        live = self._tables.live_owners(owners)
        return [*self.decided.owners_ended(live), *self.groups.owners_ended(live)]

    def carry_out(self, status: Status, nodes_changed: bool) -> None:
        """Grant what was decided in this step. When something has moved, grants that were not used yet may have become
        wrong, so they are looked at again."""
        with self._lock:
            self.groups.carry_out(status)
            if self.decided.is_idle and self.tickets.is_settled:
                return
            self._refuted += self.decided.stuck(self._lost or nodes_changed, lambda: self.fork(status))
            self.tickets.sweep(status)
            self.tickets.carry_out(status)
        if self._refuted:
            self._wake()

    def ids(self) -> list[str]:
        with self._lock:
            return [*(id for id, life in self.decided.lives.items() if life.state != "past"), *self.groups.lives]

    def evicted_tickets(self) -> list[tuple[str, str]]:
        """(name, node) of tickets whose holders have to go."""
        with self._lock:
            return [
                (self.decided.lives[id].what.name, node)
                for id, node in self.decided.evicting.items()
                if id in self.decided.lives
            ]

    def wanted(self) -> list[Ask]:
        """What waits and could be served by a node that is not there yet: nothing that has to be near other work."""
        with self._lock:
            waiting = self._engine.waiting
            asks = [self.decided.lives[id].what.ask for id in waiting if id in self.decided.lives]
            alone = [ask for ask in asks if not any(each.near for term in ask.affinities for each in term)]
            groups = [self.groups.lives[id].asked.group for id in waiting if id in self.groups.lives]
            return [*alone, *(member for group in groups for member in group.alternatives[0])]

    @property
    def batch_due_s(self) -> float | None:
        """In how many seconds work that is gathered for a batch has to be told; None if there is none."""
        due = self.decided.gathering.due
        return None if due is None else max(0.0, due - time.monotonic())

    @property
    def is_unsettled(self) -> bool:
        """Whether a look at Ray's tables soon is worth it."""
        return self.groups.is_creating or self.decided.is_closing or self.decided.is_dying

    # -- what the engine wants done

    def bind(self, placed: Placed | GroupPlaced) -> None:
        with self._lock:
            if not self._is_open:
                self._early.append(placed)
            elif isinstance(placed, GroupPlaced):
                self.groups.bind(placed)
            else:
                self.decided.bind(placed)

    def evict(self, evicted: Evicted) -> None:
        if self._is_open:
            self.decided.evict(evicted)
        else:
            self._early.append(evicted)

    def refuse(self, refused: Refused) -> None:
        """Every node it may go to is gone, and a node id never comes back. An actor is ended; who waits for a task has
        only the event, because none but its owner can end it."""
        assert isinstance(refused.cause, NodeUnknown), "deadlines are kept by the owners of work"
        text = f"it may go to no other node than {', '.join(refused.cause.nodes)}, which is gone"
        self._book.add_event(time.time(), "refused", refused.id, text)
        if self._is_open and refused.id in self.decided.lives and self.decided.lives[refused.id].what.kind == "actor":
            core = ray._private.worker.global_worker.core_worker
            core.kill_actor(ray.ActorID.from_hex(refused.id), True)

    def explain(self, waiting: Waiting) -> None:
        if not self._is_open:
            return
        known = [id for id in waiting.asks if id in self.decided.lives or id in self.groups.lives]
        if not known:
            return
        if not waiting.refusals or any(may_end_unheard(each.reason) for each in waiting.refusals):
            self._short.update(known)
        self._book.add_event(time.time(), "waiting", known[0], str(self._engine.explain(known[0])), len(known))


def may_end_unheard(reason: object) -> bool:
    """Whether an obstacle is what others use, of which only Ray's tables tell."""
    return isinstance(reason, ShortOf) or (isinstance(reason, TooNear) and reason.affinity == ALONE)
