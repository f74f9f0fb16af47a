"""Follows actors that the engine places one by one, and reports their lives as facts.

Rule: decides nothing. Registered work becomes `AskSubmitted`. Ray's tables and its notifications about actors become
`AskRunning`, `AskLost` and `AskEnded`. What the engine then places gets a ticket. Actors that other work only names are
followed too, without amounts: Ray's tables show what they use. Tasks run in slots.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from stead.engine.decisions import Placed
from stead.engine.engine import Engine
from stead.engine.facts import AskEnded, AskLost, AskRunning, AskSubmitted, Fact
from stead.language.asks import ASK_ID, Affinity, Ask
from stead.language.resources import Resources
from stead.ray.control.bursts import Gathering
from stead.ray.control.state_store import StateStore
from stead.ray.control.tickets import Tickets
from stead.ray.submit.compile import ALONE
from stead.ray.submit.messages import NOWHERE, Registered
from stead.ray.wire.gcs import ActorNews
from stead.ray.wire.node_page import ONE
from stead.ray.wire.own_names import TICKET
from stead.ray.wire.tables import ActorRow, Status, Tables

LOOK_S = 5.0
"""How often all work is compared with Ray's tables, in addition to notifications."""

STUCK_S = 2.0
"""A grant that is not used for this long is checked again: other work may have taken the room."""

CLOSING_S = 5.0
DYING_S = 2.0
LEAVES_S = 10.0
YOUNG_S = 30.0
STARTS_S, STARTS_MAX_S = 3.0, 30.0
"""How long work waits that must be apart from an actor that Ray is starting; the second is if Ray has room for it."""
CHECKED_MAX = 20


@dataclass(slots=True)
class Life:
    """What is known about one piece of registered work."""

    what: Registered
    state: str = "waiting"  # or running
    node: str = ""
    since: float = field(default_factory=time.monotonic)  # when it was granted, or last seen
    checked: float = field(default_factory=time.monotonic)  # when it was granted, or its grant was last checked
    born: float = field(default_factory=time.monotonic)
    closing: bool = False  # exclusive, and its node is not empty yet
    sure: bool = False  # seen alive after the grant that it used was revoked


class TicketedWork:
    def __init__(
        self,
        state_store: StateStore,
        tables: Tables,
        tickets: Tickets,
        engine: Engine,
        ask_of: Callable[[ActorRow], Ask],
    ) -> None:
        self._state_store, self._tables, self._tickets, self._engine = state_store, tables, tickets, engine
        self._ask_of = ask_of
        self.lives: dict[str, Life] = {}
        self._named: dict[str, str] = {}  # actors that other work names -> their node, "" if none
        self._starting: dict[str, float] = {}  # actors that work waits for -> since when
        self._arrived: list[Registered] = []
        self._held_back: list[Registered] = []
        self.gathering = Gathering()
        self._looked = 0.0
        self._to_look_up: set[str] = set()
        self._also_named: Collection[str] = ()  # actors that tasks name
        self._placed: Mapping[str, str] = {}
        self._unsure: dict[str, str] = {}  # after a restart: placed on a node, but not granted there
        self._dying: dict[str, str] = {}  # died on a node; lost once no ticket is left to restart with
        self.evicting: dict[str, str] = {}  # id -> the node it has to leave
        self._leaving: dict[str, tuple[float, Ask]] = {}  # by ticket, work that ended; Ray's tables may still show it
        for what in state_store.registered():
            self._add(what)

    def is_of_interest(self, actor_id: str) -> bool:
        return actor_id in self.lives or actor_id in self._named

    @property
    def is_idle(self) -> bool:
        return not self.lives and not self._named and not self._arrived

    def _add(self, what: Registered) -> Life:
        life = self.lives.setdefault(what.id, Life(what))
        if what.name:
            self._tickets.add(what.id, what.name)
        self._name(named_by(what.ask))
        self._named.pop(what.id, None)
        self._starting.pop(what.id, None)
        return life

    def _name(self, ids: Iterable[str]) -> None:
        for id in ids:
            if id not in self.lives and self._named.get(id, "dead") == "dead":
                self._named[id] = ""  # if it is dead, report that after the work that names it

    # -- facts

    def follow(self, ids: Collection[str]) -> None:
        """Follow actors that tasks name."""
        new = set(ids) - set(self._also_named)
        self._also_named = ids
        self._name(new)
        self._to_look_up |= new - self.lives.keys()

    @property
    def has_arrivals(self) -> bool:
        """Whether there is work that the engine does not know yet."""
        return bool(self._arrived or self._held_back or self.gathering.due)

    def awaits(self, ids: Iterable[str], fork: Callable[[], Engine]) -> bool:
        """Whether work that must be apart from these actors has to wait: Ray is starting one of them, so its node is
        still unknown, and they would probably end up on the same one. An actor without room does not start soon."""
        now = time.monotonic()
        waited = {id: now - self._starting.setdefault(id, now) for id in ids if self._named.get(id) == ""}
        return any(
            waited_s < STARTS_S or (waited_s < STARTS_MAX_S and self._has_room(id, fork))
            for id, waited_s in waited.items()
        )

    def _has_room(self, id: str, fork: Callable[[], Engine]) -> bool:
        """Whether some node could take an actor that Ray has not started yet, as far as Ray's table shows its rules."""
        row = self._tables.actor(id)
        if row is None:
            return True  # it was created a moment ago
        return any(fork().candidates(self._ask_of(row)))

    def register(self, arrived: Sequence[Registered]) -> None:
        """Stored before it is acknowledged. The next round submits it to the engine."""
        now = time.time()
        arrived = [
            what if what.within_s is None else replace(what, ask=replace(what.ask, deadline=now + what.within_s))
            for what in arrived
        ]
        self._state_store.keep_registered(arrived)
        self._arrived += arrived

    def not_in_engine(self, known: set[str]) -> list[Fact]:
        """After a restart: acknowledged work that the engine does not know."""
        return [AskSubmitted(life.what.ask) for id, life in self.lives.items() if life.what.name and id not in known]

    def facts(self, news: Sequence[ActorNews], missed: bool, status: Status, fork: Callable[[], Engine]) -> list[Fact]:
        """Everything that happened to registered and named work. `fork` knows what all other work uses."""
        facts = self._dead(status)
        arrived, self._arrived = self._arrived, []
        looked_up, self._to_look_up = self._to_look_up, set()
        in_batches: list[Registered] = []
        for what in arrived:
            if what.id in self.lives:
                continue
            self._add(what)
            if what.name and what.ask.policy.in_batches:
                in_batches.append(what)
            elif what.name:
                self._held_back.append(what)
            else:
                looked_up.add(what.id)
            looked_up |= named_by(what.ask) - self.lives.keys()
        self.gathering.add(in_batches, time.monotonic())
        if missed or time.monotonic() - self._looked > LOOK_S:
            self._looked = time.monotonic()
            facts += self._forget_unnamed()
            looked_up |= self.lives.keys() | self._named.keys()
        if looked_up:
            found = self._look_up(looked_up)
            self._see(found)
            news = [*news, *found]
        self._placed = self._engine.placed if news else {}
        for each in news:
            facts += self._actor(each)
        return [*self._submitted(fork), *facts]

    def _submitted(self, fork: Callable[[], Engine]) -> list[Fact]:
        """Submit new work. Work that must be apart from an actor that Ray is starting waits for it, and work that is
        decided in batches waits for the rest of its burst."""
        now, held, facts = time.monotonic(), list[Registered](), list[Fact]()
        for what in [*self._held_back, *self.gathering.take(now)]:
            life = self.lives.get(what.id)
            if life is None:
                continue
            if self.awaits(named_by(what.ask, apart=True), fork):
                held.append(what)
            else:
                facts.append(AskSubmitted(what.ask))
        self._held_back = held
        return facts

    def _look_up(self, ids: set[str]) -> list[ActorNews]:
        rows = (
            {row.id: row for row in self._tables.actors()}
            if len(ids) > CHECKED_MAX
            else {row.id: row for id in ids if (row := self._tables.actor(id))}
        )
        # An actor that was created a moment ago may not be in the tables yet.
        young = {id for id, life in self.lives.items() if time.monotonic() - life.born < YOUNG_S}
        gone = [ActorNews(id, "DEAD", "") for id in sorted(ids - rows.keys() - young)]
        return [*(ActorNews(id, row.state, row.node_id) for id, row in rows.items() if id in ids), *gone]

    def _see(self, looked_up: Sequence[ActorNews]) -> None:
        """After its grant is revoked, a running actor cannot restart on its own: it holds only one part of its
        ticket."""
        for news in looked_up:
            life = self.lives.get(news.id)
            if life is not None and (life.state, life.node) == ("running", news.node_id) and news.state == "ALIVE":
                life.sure = not self._tickets.is_being_taken_back(news.id)

    def _actor(self, news: ActorNews) -> list[Fact]:
        life = self.lives.get(news.id)
        if life is None:
            return self._named_actor(news) if news.id in self._named else []
        what = life.what
        if news.state == "ALIVE":
            if life.state == "running" and life.node == news.node_id:
                return []
            life.state, life.node, life.closing, life.sure = "running", news.node_id, False, False
            self._settle(news.id)
            self._tickets.started([news.id])
            if not what.name or what.running != what.ask:
                return [AskEnded(news.id), AskRunning(what.running, news.node_id)]
            return [AskRunning(what.ask, news.node_id)]
        if news.state == "DEAD":
            return self._end(news.id)
        if news.id in self._unsure:
            # It is pending, or died while there was no controller. A node may still receive an earlier grant.
            self._dying[news.id] = self._unsure.pop(news.id)
            self._tickets.take_back(news.id, self._dying[news.id])
        return self._lose(life) if news.state == "RESTARTING" and life.state == "running" else []

    def _settle(self, id: str) -> None:
        self._unsure.pop(id, None)
        self._dying.pop(id, None)

    def _lose(self, life: Life) -> list[Fact]:
        what, node = life.what, life.node
        life.state, life.node, life.since = "waiting", "", time.monotonic()
        if what.name and not life.sure and self._placed.get(what.id, node) == node:
            self._dying[what.id] = node
            return []  # it may be restarting with the grant that it used
        self.evicting.pop(what.id, None)
        if self._placed.get(what.id, node) != node:
            return []  # its node died, and the engine has already chosen another
        if not what.name:
            return [AskLost(what.id)]
        return _again(what) if self._tickets.lost(what.id) else []

    def _dead(self, status: Status) -> list[Fact]:
        """Dead work whose tickets are all revoked, so it must be placed again."""
        facts: list[Fact] = []
        placed = self._engine.placed if self._dying else {}
        for id, node in list(self._dying.items()):
            if placed.get(id) != node:
                del self._dying[id]  # its node died, and the engine has already chosen another
            elif self._tickets.is_gone(id, status):
                del self._dying[id]
                self.evicting.pop(id, None)
                facts += _again(self.lives[id].what)
        return facts

    @property
    def is_dying(self) -> bool:
        """Whether an actor has just died. If that was longer ago, it is restarting."""
        return any(time.monotonic() - self.lives[id].since < DYING_S for id in self._dying)

    def _end(self, id: str) -> list[Fact]:
        life = self.lives.pop(id, None)
        if life is not None and life.what.name and life.state == "running":
            self._leaving[life.what.name] = (time.monotonic(), life.what.running)
        self.evicting.pop(id, None)
        self._settle(id)
        self._tickets.ended(id)
        self._state_store.forget_registered([id])
        return [AskEnded(id)]

    def _named_actor(self, news: ActorNews) -> list[Fact]:
        before = self._named[news.id]
        self._named[news.id] = news.node_id if news.state == "ALIVE" else "dead" if news.state == "DEAD" else ""
        if self._named[news.id]:
            self._starting.pop(news.id, None)
        if news.state == "ALIVE":
            return [AskRunning(Ask(news.id, NOWHERE), news.node_id)] if before != news.node_id else []
        if news.state == "DEAD":
            return [AskEnded(news.id)] if before != "dead" else []
        return [AskLost(news.id)] if before else []

    def _forget_unnamed(self) -> list[Fact]:
        still = {id for life in self.lives.values() for id in named_by(life.what.ask)} | set(self._also_named)
        gone = sorted(self._named.keys() - still)
        for id in gone:
            del self._named[id]
            self._starting.pop(id, None)
        return [AskEnded(id) for id in gone]

    # -- after a restart

    def recover(self, engine: Engine) -> None:
        """Which of the engine's placements are granted, and which may have been lost meanwhile."""
        for id, node in engine.placed.items():
            life = self.lives.get(id)
            if life is not None and life.what.name:
                if self._tickets.is_granted(id, node):
                    self._tickets.want(id, node)
                elif is_exclusive(life.what.ask):
                    life.closing, life.node = True, node
                else:
                    self._unsure[id] = node

    def shown(self, status: Status) -> dict[str, list[Resources]]:
        """By node, what registered work uses there, as far as Ray's tables show that its ticket is held."""
        mine: dict[str, list[Resources]] = defaultdict(list)
        now = time.monotonic()
        self._leaving = {name: left for name, left in self._leaving.items() if now - left[0] < LEAVES_S}
        for node in status.nodes.values():
            for name, total in node.total.items():
                if name.startswith(TICKET) and total - node.available.get(name, 0.0) > ONE / 2:
                    holder = self._holder(name, node.id)
                    if holder is not None:
                        mine[node.id].append(holder.choices[0].resources)
        return mine

    def _holder(self, name: str, node: str) -> Ask | None:
        """The work that holds a ticket on a node. A plug can hold one too."""
        ticket = self._tickets.by_name.get(name)
        if ticket is None:
            return self._leaving[name][1] if name in self._leaving else None
        life = self.lives.get(ticket.id)
        return life.what.running if life is not None and node not in ticket.plugs else None

    # -- the engine's commands

    def bind(self, placed: Placed) -> None:
        life = self.lives.get(placed.ask)
        if life is None or not life.what.name:
            return
        self._settle(placed.ask)
        life.since = life.checked = time.monotonic()
        if is_exclusive(life.what.ask):
            life.closing, life.node = True, placed.node
        else:
            self._tickets.want(placed.ask, placed.node)

    @property
    def is_closing(self) -> bool:
        return any(life.closing for life in self.lives.values())

    def closed(self) -> frozenset[str]:
        """Nodes that exclusive work has to itself."""
        exclusive = [id for id, life in self.lives.items() if is_exclusive(life.what.ask)]
        if not exclusive:
            return frozenset()
        placed = self._engine.placed
        return frozenset(placed[id] for id in exclusive if id in placed)

    def evict(self, id: str, node: str) -> None:
        """The actor has to leave its node."""
        life = self.lives.get(id)
        if life is not None and life.what.name:
            self.evicting[id] = node

    def close_in(self, status: Status, occupied: Callable[[], Collection[str]]) -> list[Fact]:
        """Exclusive work gets its ticket when its node is closed and empty."""
        closing = [life for life in self.lives.values() if life.closing]
        if not closing:
            return []
        full = occupied()
        facts: list[Fact] = []
        for life in closing:
            if life.node in status.nodes and life.node not in full:
                life.closing = False
                self._tickets.want(life.what.id, life.node)
            elif time.monotonic() - life.since > CLOSING_S or life.node not in status.nodes:
                life.closing, life.node = False, ""
                facts.append(AskLost(life.what.id))
        return facts

    def stuck(self, changed: bool, fork: Callable[[], Engine]) -> list[Fact]:
        """Grants that have been unused for long, or that a change may have made wrong. They are placed again if the
        engine would no longer choose that node. `fork` knows what other work uses now: it may have taken the room
        since."""
        now, facts = time.monotonic(), list[Fact]()
        open_ones = [
            life
            for life in self.lives.values()
            if life.state == "waiting"
            and (changed or now - life.checked > STUCK_S)
            and self._tickets.is_open(life.what.id)
        ]
        for life in open_ones[:CHECKED_MAX]:
            life.checked = now
            id, node = life.what.id, self._tickets.is_open(life.what.id)
            if not _still_fits(fork(), life.what.ask, node) and self._tickets.revoke(id, node):
                facts.append(AskLost(id))
        return facts


def _again(what: Registered) -> list[Fact]:
    """The work has lost its node. If it needs more to start than it holds, it is submitted again with that."""
    if what.running != what.ask:
        return [AskEnded(what.id), AskSubmitted(what.ask)]
    return [AskLost(what.id)]


def _still_fits(engine: Engine, ask: Ask, node: str) -> bool:
    engine.apply(AskEnded(ask.id))
    return any(node in nodes for nodes in engine.candidates(ask))


def named_by(ask: Ask, apart: bool = False) -> set[str]:
    """Ids of other work that an ask names, in hard rules or preferences; with `apart`, only of work it must avoid."""
    affinities: Iterable[object] = [affinity for each in ask.affinities for affinity in each]
    if apart:
        affinities = [each for each in affinities if isinstance(each, Affinity) and not each.near]
    else:
        affinities = [*affinities, *(preference.want for preference in ask.prefers)]
    return {
        id
        for affinity in affinities
        if isinstance(affinity, Affinity)
        for term in affinity.selector.terms
        for requirement in term
        if requirement.key == ASK_ID
        for id in requirement.values
    }


def is_exclusive(ask: Ask) -> bool:
    return any(ALONE in each for each in ask.affinities)
