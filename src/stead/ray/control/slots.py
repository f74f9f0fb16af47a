"""Slots: each one lets one task of a shape run on a node that the engine chose.

Rule: the engine decides how many slots of a shape each node has, and this file gives the node as many units of the
shape's resource name. It keeps nothing about single tasks. How many tasks are pending and running is read from Ray's
tables and the programs' counts. A task missing from a table ends only an unused slot. With more demand than room,
shapes take turns here: Ray leases workers to tasks, and the engine knows only slots. See docs/decisions/0026.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from math import ceil
from typing import Protocol

from stead.engine.decisions import Evicted, Placed
from stead.engine.engine import Engine
from stead.engine.facts import AskEnded, AskLost, AskRunning, AsksSubmitted, Fact
from stead.language.asks import Ask
from stead.language.nodes import Node
from stead.ray.control.anchors import SHOWN_S, Anchors
from stead.ray.control.preempted_tasks import PreemptedTasks, without_amounts
from stead.ray.control.slot_pools import Place, Pool, Pools, Room, could_run, has_room_for, most_of
from stead.ray.control.ticketed_work import named_by
from stead.ray.submit.messages import SlotShape
from stead.ray.wire.node_page import ONE, SYNC_S
from stead.ray.wire.own_names import SLOT, read_slot, slot_name
from stead.ray.wire.resource_grants import Outcome, ReadingGrants
from stead.ray.wire.tables import SHAPES_LISTED_MAX, NodeRow, PendingRow, Status

SETTLED_S = 0.35
"""Within this time after a grant, pending tasks of the shape have found the slot, unless its node lacks the room."""

FOUND_S, UNSEEN_MAX, PATIENCE_MAX_S = 1.0, 50, 16.0
"""On busy machines it may take `FOUND_S`, and `UNSEEN_MAX` short tasks may run between two looks. If tasks were too
late, the next slot of the shape stays twice as long, up to `PATIENCE_MAX_S`."""

UNCOUNTED_S = 0.3
"""The engine stops counting a slot that is unused for this long, or when it is about to place other work. The slot
stays for the next task of its shape, because the decision would be the same; `check_rules` withdraws it otherwise."""

IDLE_S = 2.0
"""An unused slot is removed after this time."""

TERM_S, RIVAL_TERM_S = 1.0, 0.1
"""If work other than tasks has waited for `TERM_S`, or tasks of other shapes for `RIVAL_TERM_S`, a shape that keeps its
slots busy lends them the room. Tasks of another shape that find the room taken lose only one turn."""

TURN_S = 1.0
"""A slot without room is removed after this time: longer than Ray leases a worker."""

BLOCKED_S = 0.5
"""If Ray has had room for this long while all slots of a pending shape are in use, tasks in them are blocked."""

CLOSING_S = 5.0
RETIRED_S, REMOVAL_DELAY_S = 60.0, 10.0
"""After `RETIRED_S` without demand and slots, new submissions get another name. The old one is removed after
`REMOVAL_DELAY_S` more, because Ray would fail a task that is queued under it at that moment."""

QUIET_S, MOST_S = 0.04, 0.1
"""A burst of work that is decided in batches is complete when no count has arrived for `QUIET_S`, or after `MOST_S` at
the latest. A program sends its counts at most every 20 ms."""

PROGRAMS_MAX = 10_000
UNLISTED_S = 3600.0


class Shapes(Protocol):
    """Stores shapes, also across restarts."""

    def slot_shape(self, key: str) -> SlotShape | None: ...
    def keep_slot_shape(self, shape: SlotShape) -> None: ...


class Slots:
    """Called in the controller's round. Other threads only add shapes and counts, under the same lock."""

    def __init__(
        self,
        shapes: Shapes,
        engine: Engine,
        grants: ReadingGrants | None,
        anchors: Anchors,
        check: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._shapes, self._engine, self._grants, self._anchors = shapes, engine, grants, anchors
        self._check, self._clock = check, clock
        self.pools = Pools()
        self.preempted = PreemptedTasks(self.pools, self.pool_of)
        self._current: dict[str, int] = {}  # shape -> the generation that new submissions carry
        self._last_message: dict[str, int] = {}  # program -> the number of its last message
        # When work that is decided in batches began to arrive, and last arrived; 0 once it is decided.
        self._burst = (0.0, 0.0)
        self._room: tuple[object, Room] = (None, {})
        self._saturated, self._pending = False, tuple[PendingRow, ...]()
        self._checked: object = None
        self._moved = False  # tasks that other rules may refer to began or ended since rules were checked

    # -- messages from programs

    def introduce(self, shapes: Iterable[SlotShape]) -> None:
        """Add shapes. They are stored when this returns."""
        for shape in shapes:
            self._shapes.keep_slot_shape(shape)

    def count(self, program: str, number: int, counts: Mapping[str, int]) -> bool:
        """How many more tasks of each shape a program has submitted. A number that arrives twice counts once. Returns
        whether a task waits for a slot."""
        if number <= self._last_message.get(program, 0):
            return False
        self._last_message.pop(program, None)
        self._last_message[program] = number
        if len(self._last_message) > PROGRAMS_MAX:
            del self._last_message[next(iter(self._last_message))]
        now, is_short = self._clock(), False
        for key, more in counts.items():
            pool = self._pool(key, self._current.get(key, 0))
            if pool is None:
                continue
            pool.counted.append((now, more))
            pool.busy_at = pool.grew_last = now
            if pool.shape.ask.policy.in_batches:
                self._burst = (self._burst[0] or now, now)
            is_short = is_short or sum(place.open - place.used for place in pool.places.values()) <= 0
        return is_short

    def _pool(self, key: str, generation: int) -> Pool | None:
        name = slot_name(key, generation)
        found = self.pools.get(name)
        if found is None:
            shape = self._shapes.slot_shape(key)
            if shape is None:
                return None
            found = self.pools[name] = Pool.of(name, shape, generation, self._clock())
            self._current[key] = max(generation, self._current.get(key, 0))
        return found

    # -- names

    @property
    def generations(self) -> dict[str, int]:
        """By shape, the generation that new submissions carry; 0 is omitted."""
        return {key: generation for key, generation in self._current.items() if generation}

    def shape_of(self, resources: Mapping[str, float]) -> Ask | None:
        """The ask of work that asks for a slot."""
        for name in resources:
            found = read_slot(name)
            shape = self._shapes.slot_shape(found[0]) if found else None
            if shape is not None:
                return shape.ask
        return None

    @property
    def is_idle(self) -> bool:
        return not self.pools

    @property
    def due_s(self) -> float | None:
        """In how many seconds a batch of a flow policy is complete; None if there is none."""
        now = self._clock()
        return max(0.0, self._batch_due - now) if self._burst[0] else None

    @property
    def _batch_due(self) -> float:
        first, last = self._burst
        return min(last + QUIET_S, first + MOST_S)

    # -- facts

    def recover(self, status: Status) -> None:
        """After a restart: match the engine's slots with Ray's tables."""
        placed = self._engine.placed
        for id in (*placed, *self._engine.waiting):
            pool = self.pool_of(id)
            if pool is None:
                continue
            pool.number = max(pool.number, int(id.rpartition("#")[2]) + 1)
            if id in placed:
                place = pool.places.setdefault(placed[id], Place())
                place.ids.append(id)
                place.open += 1
            else:
                pool.waiting[id] = None
        for row in status.nodes.values():
            for name in row.total:
                found = read_slot(name)
                pool = self._pool(*found) if found else None
                if pool is not None:
                    pool.places.setdefault(row.id, Place())
        self._anchors.recover(self.pools)

    def pool_of(self, id: str) -> Pool | None:
        found = read_slot(id.rpartition("#")[0])
        return self._pool(*found) if found else None

    def facts(
        self, status: Status, others_wait_s: Mapping[str, float], awaits: Callable[[set[str]], bool]
    ) -> list[Fact]:
        """What changed about slots. `others_wait_s`: by shape, or "" for other work, how long the oldest unplaced work
        has waited for room; 0 if it is new."""
        now, facts = self._clock(), list[Fact]()
        self._look(status, now)
        new = {pool.shape.key: 0.0 for pool in self.pools.values() if now - pool.grew_last < SETTLED_S}
        others_wait_s = {**new, **others_wait_s}
        room = self._room_of(self._engine.nodes)
        for pool in list(self.pools.values()):
            others = self.pools.rivals(pool, others_wait_s)
            self._nodes_gone(pool, status)
            for node, place in pool.places.items():
                facts += self._place(pool, node, place, now, others, status.nodes[node])
        facts += [*self.preempted.facts(status), *self._give_back(now)]
        wanted = {name: self._wanted(pool, now, room) for name, pool in self.pools.items()}
        loads = self.pools.loads(wanted)
        for name, (count, _) in wanted.items():
            pool = self.pools[name]
            load = loads[pool.shape.ask.priority]
            fair = count if load <= 1.0 else ceil(count / load)
            facts += self._adjust(pool, now, count, fair, awaits)
        if self._burst[0] and now >= self._batch_due:
            self._burst = (0.0, 0.0)
        self._retire(now, status)
        self._moved = self._moved or bool(facts)
        return facts

    def _look(self, status: Status, now: float) -> None:
        listed: Counter[str] = Counter()
        for row in status.pending:
            for name in row.resources:
                if name.startswith(SLOT):
                    listed[name] += row.count
        self._saturated = len(status.pending) >= SHAPES_LISTED_MAX
        is_news, self._pending = status.pending != self._pending, status.pending
        for name in listed.keys() - self.pools.keys():
            if found := read_slot(name):
                self._pool(*found)
        for pool in self.pools.values():
            pool.listed = listed.get(pool.name, 0)
            if pool.listed:
                pool.busy_at = now
                pool.listed_at = now if is_news else pool.listed_at
                if pool.is_still_listed(now):
                    pool.patience_s = min(max(FOUND_S, 2 * pool.patience_s), PATIENCE_MAX_S)
                    pool.drained_at = 0.0
            for node, place in pool.places.items():
                if node in status.nodes:
                    at, before = status.nodes[node], place.used
                    place.used = int(at.total.get(pool.name, 0.0) - at.available.get(pool.name, 0.0) + ONE / 2)
                    pool.started(place.used - before)
                if place.used:
                    pool.busy_at, place.was_used, pool.patience_s = now, True, 0.0

    def _nodes_gone(self, pool: Pool, status: Status) -> None:
        """Forget slots on nodes that are gone. The engine has already queued their asks again."""
        for node in pool.places.keys() - status.nodes.keys():
            pool.waiting.update(dict.fromkeys(pool.places.pop(node).ids))

    def _place(
        self, pool: Pool, node: str, place: Place, now: float, others: Mapping[str, float], row: NodeRow
    ) -> list[Fact]:
        """Compare the engine's slots on a node with what runs there, and find slots that no task needs."""
        facts = self._take_back(pool, node, place) if place.lent and not others else []
        if place.sent is not None and now - place.sent_at > SHOWN_S:
            for _ in range(place.used - len(place.ids)):  # tasks in slots that the engine did not count any more
                ask = self._ask(pool)
                place.ids.insert(0, ask.id)
                facts.append(AskRunning(ask, node))
            rest = len(place.ids) - max(place.open + len(place.closing), place.used)
            facts += [AskEnded(place.ids.pop()) for _ in range(rest)]
        free = place.open - place.used
        is_settled = place.sent is not None and now - place.sent_at > SETTLED_S
        place.free_since = (place.free_since or now) if free > 0 and is_settled else 0.0
        place.full_since = (place.full_since or now) if free <= 0 and place.open else 0.0
        place.surplus = 0
        if place.free_since and not place.closed:
            has_room, idle = has_room_for(row, pool.shape.ask), now - place.free_since
            if has_room and (idle > SYNC_S or others) and not self._is_on_its_way(pool, place, now, others):
                pool.drain(place.free_since, now, SETTLED_S)
            spare = free if not has_room else max(0, free - pool.demand(now))
            is_needless = idle > (IDLE_S if has_room else TURN_S) or (has_room and pool.is_own_rival)
            if is_needless and self._anchors.is_safe(pool.name):
                place.surplus = spare
            elif (is_needless or idle > UNCOUNTED_S or others) and not pool.is_own_rival:
                facts += [AskEnded(place.ids.pop()) for _ in range(len(place.ids) - place.used - (free - spare))]
            elif others and pool.is_own_rival:  # it must stay and count, but other work may use its room
                facts += self._lend(pool, node, place, spare)
        elif self._is_blocked(pool, place, row, now):
            facts += self._block(pool, node, place)
        elif self._has_had_its_turn(pool, place, now, others):
            facts += self._lend(pool, node, place, place.open)
        return facts

    def _is_on_its_way(self, pool: Pool, place: Place, now: float, others: Mapping[str, float]) -> bool:
        """Whether pending tasks may not have found a slot yet, on busy machines. If other work wants the room, a few
        tasks may have run in the slot unseen, but not many."""
        demand, idle = pool.demand(now), now - place.free_since
        takes_s = max(pool.patience_s, FOUND_S if demand > UNSEEN_MAX or not others else 0.0)
        return demand > 0 and not place.was_used and idle < takes_s

    def _has_had_its_turn(self, pool: Pool, place: Place, now: float, others: Mapping[str, float]) -> bool:
        """Whether other work should get the room of slots that are busy, or will be once pending tasks have found
        them."""
        if not others or place.sent is None or not place.open or not pool.demand(now):
            return False
        if "" in others:
            return bool(place.full_since) and min(others[""], now - place.full_since) > TERM_S
        return min(max(others.values()), now - place.sent_at) > RIVAL_TERM_S

    def _give_back(self, now: float) -> list[Fact]:
        """Remove unused slots from their nodes. A node's answer shows which of them a task took meanwhile."""
        surplus = [
            (pool, node, place) for pool in self.pools.values() for node, place in pool.places.items() if place.surplus
        ]
        if not surplus or self._grants is None:
            return []
        changes: dict[str, dict[str, float]] = defaultdict(dict)
        for pool, node, place in surplus:
            changes[node][pool.name] = place.open - place.surplus + self._anchors.amount(pool.name, node)
        self._check()
        answers, facts = self._grants.shrink(changes), list[Fact]()
        for pool, node, place in surplus:
            total = answers[node].get(pool.name, 0.0) if node in answers else None
            if total is None:
                place.sent = None
                continue
            is_kept = total > changes[node][pool.name] + ONE / 2
            left = int(total + ONE / 2) if is_kept else place.open - place.surplus
            place.open, place.sent, place.sent_at = left, total, now
            facts += [AskEnded(place.ids.pop()) for _ in range(len(place.ids) - left)]
        return facts

    def _is_blocked(self, pool: Pool, place: Place, row: NodeRow, now: float) -> bool:
        """Whether tasks of a shape wait for room that Ray has: blocked tasks hold no CPU."""
        is_full = bool(place.full_since and pool.demand(now)) and not place.preempted
        is_roomy = is_full and has_room_for(row, pool.shape.ask)
        place.roomy_since = (place.roomy_since or now) if is_roomy else 0.0
        return is_roomy and now - place.roomy_since > BLOCKED_S

    def _block(self, pool: Pool, node: str, place: Place) -> list[Fact]:
        """Let the engine count one of the tasks without its amounts. What it waits for may be queued behind it."""
        place.roomy_since = 0.0
        place.blocked &= set(place.ids)
        id = next((id for id in place.ids if id not in place.blocked), None)
        if id is None:
            return []
        place.blocked.add(id)
        return without_amounts(pool, node, id)

    def _lend(self, pool: Pool, node: str, place: Place, count: int) -> list[Fact]:
        """Let the engine give the room of some slots to other work, although they stay. Ray then makes the shapes take
        turns: a worker is leased for half a second, and the next lease goes to the shape that has less."""
        place.lent &= set(place.ids)
        ids = [id for id in place.ids if id not in place.lent and id not in place.blocked]
        lent = ids[max(0, len(ids) - count) :]
        place.lent.update(lent)
        place.ids.sort(key=place.lent.__contains__)  # lent ones are removed first
        return [fact for id in lent for fact in without_amounts(pool, node, id)]

    def _take_back(self, pool: Pool, node: str, place: Place) -> list[Fact]:
        """No other work waits any more."""
        lent = [id for id in place.ids if id in place.lent]
        place.lent.clear()
        return [fact for id in lent for fact in (AskEnded(id), AskRunning(replace(pool.shape.ask, id=id), node))]

    def close_in(self, occupied: Callable[[], Collection[str]]) -> list[Fact]:
        """Grant exclusive slots whose node is empty. `occupied` returns the nodes that are not."""
        now, facts = self._clock(), list[Fact]()
        closing = [(pool, node, place) for pool, node, place in self.pools.places() if place.closing]
        full = occupied() if closing else ()
        for pool, node, place in closing:
            for id, since in list(place.closing.items()):
                if node not in full:
                    del place.closing[id]
                    place.open, place.sent = place.open + 1, None
                elif now - since > CLOSING_S:
                    del place.closing[id]
                    place.ids.remove(id)
                    pool.waiting[id] = None
                    facts.append(AskLost(id))
        return facts

    def _wanted(self, pool: Pool, now: float, room: Room) -> tuple[int, int]:
        """How many slots a shape could use now, and how many of them the nodes could hold if they were empty."""
        most = most_of(pool.shape.ask, room)
        demand = pool.demand(now) or self._is_unlisted(pool, now)
        return min(pool.used + demand, most + pool.blocked), most + pool.blocked

    def _adjust(self, pool: Pool, now: float, wanted: int, fair: int, awaits: Callable[[set[str]], bool]) -> list[Fact]:
        """Ask for as many slots as a shape could use. While there is more demand than room, each shape asks for a fair
        share, so that other shapes do not wait until it has no work left."""
        missing = wanted - pool.slots
        if missing < 0 and pool.waiting:
            gone = list(pool.waiting)[missing:]
            for id in gone:
                del pool.waiting[id]
            return [AskEnded(id) for id in gone]
        missing = min(missing, fair - pool.slots)
        if missing <= 0 or pool.refused or self._is_gathering(pool, now):
            return []
        apart = named_by(pool.shape.ask, apart=True)
        if apart and awaits(apart):
            return []
        first, pool.number = pool.number, pool.number + missing
        pool.waiting.update((f"{pool.name}#{number}", None) for number in range(first, pool.number))
        return [AsksSubmitted(replace(pool.shape.ask, id=pool.name), first, missing)]

    def _is_gathering(self, pool: Pool, now: float) -> bool:
        """Whether work that is decided in batches waits for the rest of its burst."""
        return pool.shape.ask.policy.in_batches and bool(self._burst[0]) and now < self._batch_due

    def _ask(self, pool: Pool) -> Ask:
        pool.number += 1
        return replace(pool.shape.ask, id=f"{pool.name}#{pool.number - 1}")

    def _room_of(self, nodes: Mapping[str, Node]) -> Room:
        if self._room[0] != nodes:
            self._room = (nodes, Counter(node.capacity for node in nodes.values()))
        return self._room[1]

    def _is_unlisted(self, pool: Pool, now: float) -> int:
        """Ray's table lists a limited number of shapes. While it is full, an unlisted shape may still be pending, so it
        gets a slot now and then to find out."""
        return int(self._saturated and now - pool.busy_at < UNLISTED_S)

    def _retire(self, now: float, status: Status) -> None:
        for name, pool in list(self.pools.items()):
            for node, place in list(pool.places.items()):
                is_gone = name not in status.nodes[node].total and now - place.sent_at > SHOWN_S
                if is_gone and place.sent == 0.0 and not place.ids:
                    del pool.places[node]
            is_used = not all(place.is_empty for place in pool.places.values())
            if is_used or pool.waiting or self._saturated or now - pool.busy_at < RETIRED_S:
                pool.is_leaving, pool.left_at = False, 0.0
                continue
            if not pool.left_at:
                pool.left_at = now
                self._move_on(pool)
            pool.is_leaving = now - pool.left_at > REMOVAL_DELAY_S
            if pool.is_leaving and self._anchors.remove(name, status):
                del self.pools[name]
                if not any(other.shape.key == pool.shape.key for other in self.pools.values()):
                    self._current.pop(pool.shape.key, None)

    # -- the engine's commands

    def bind(self, placed: Placed) -> bool:
        """Returns False if the ask is not a slot."""
        pool = self.pool_of(placed.ask)
        if pool is None:
            return False
        pool.waiting.pop(placed.ask, None)
        place = pool.places.setdefault(placed.node, Place())
        if placed.ask not in place.ids:
            place.was_used = place.was_used and bool(place.open)
            place.ids.append(placed.ask)
            if pool.is_exclusive:
                place.closing[placed.ask] = self._clock()
            else:
                place.open, place.sent = place.open + 1, None
        return True

    def evict(self, evicted: Evicted) -> bool:
        pool = self.pool_of(evicted.ask)
        if pool is None:
            return False
        place = pool.places.get(evicted.node)
        if place is not None:
            place.evicting = True
            self._close(pool, place)
        return True

    def refuse(self, id: str) -> bool:
        pool = self.pool_of(id)
        if pool is None:
            return False
        pool.waiting.pop(id, None)
        pool.refused = True
        return True

    def check_rules(self, world: object) -> None:
        """Withdraw slots from nodes that the rules no longer allow. `world` changes whenever that is possible, except
        for tasks in slots that start and end."""
        if world != self._checked:
            pools = list(self.pools.values())
        elif self._moved:
            pools = self.pools.looking_at_tasks()
        else:
            return
        self._checked, self._moved = world, False
        for pool in pools:
            pool.refused = False
            if not pool.places:
                continue
            allowed = self._allowed(pool)
            self._anchors.allow(pool.name, allowed)
            for node, place in pool.places.items():
                if node not in allowed and not place.closed and not place.is_empty:
                    self._close(pool, place)
                elif node in allowed and place.closed:
                    place.closed = place.evicting = False
                    place.open, place.sent = len(place.ids), None

    def _close(self, pool: Pool, place: Place) -> None:
        place.closed, place.open, place.sent = True, 0, None
        place.closing.clear()
        self._move_on(pool)

    def _move_on(self, pool: Pool) -> None:
        """Let new submissions carry another generation of a shape's name: an old one that has nothing on a closed node
        and is not being removed, or a new one."""
        key = pool.shape.key
        if self._current.get(key, 0) != pool.generation:
            return
        pools = {each.generation: each for each in self.pools.values() if each.shape.key == key}
        clean = [
            generation
            for generation, each in sorted(pools.items())
            if not each.left_at and not any(place.closed for place in each.places.values())
        ]
        self._current[key] = clean[0] if clean else min(set(range(len(pools) + 1)) - pools.keys())

    def _allowed(self, pool: Pool) -> set[str]:
        """Nodes where one of the slots there could be placed again, regardless of what is free."""
        ask = pool.one_more
        if not ask.affinities:
            return {node for nodes in self._engine.candidates(ask) for node in nodes}
        allowed = set()
        for node, place in pool.places.items():
            fork = self._engine.fork()
            fork.apply(*(AskEnded(id) for id in place.ids[:1]))
            if any(node in nodes for nodes in fork.candidates(ask)):
                allowed.add(node)
        return allowed

    def _could_be_on(self, name: str) -> set[str]:
        """Nodes where a shape has slots, or could have more of them."""
        pool = self.pools[name]
        more = {node for nodes in self._engine.candidates(pool.one_more) for node in nodes}
        return more | {node for node, place in pool.places.items() if place.ids}

    # -- Ray

    def carry_out(self, status: Status) -> None:
        """Send each node its totals, one call per node, to all nodes in parallel."""
        if self._grants is None or not self.pools:
            return
        now = self._clock()
        staying = {name: pool.open_on for name, pool in self.pools.items() if not pool.is_leaving}
        self._anchors.advance(
            staying, status, lambda name, row: could_run(row, self.pools[name].shape.ask), self._could_be_on
        )
        changes: dict[str, dict[str, float]] = defaultdict(dict)
        for pool in self.pools.values():
            for node in self._anchors.nodes(pool.name):
                pool.places.setdefault(node, Place())
            for node, place in pool.places.items():
                row = status.nodes.get(node)
                if row is None:
                    continue
                total = place.open + self._anchors.amount(pool.name, node)
                if self._must_be_sent(pool, place, row, total, now):
                    changes[node][pool.name] = total
        if not changes:
            return
        self._check()
        for node, outcome in self._grants.set_many(changes).items():
            for name, total in changes[node].items():
                place = self.pools[name].places[node]
                place.sent, place.sent_at = (total if outcome is Outcome.ANSWERED else None), now

    def _must_be_sent(self, pool: Pool, place: Place, row: NodeRow, total: float, now: float) -> bool:
        shown, available = row.total.get(pool.name, 0.0), row.available.get(pool.name, 0.0)
        if total < min(shown - ONE / 2, 1.0) and not self._anchors.is_safe(pool.name):
            return False  # it may be the last unit of its name
        if place.sent != total:
            return True
        # Units in use at the withdrawal become free later, and a node may have missed a call.
        wrong = (shown > total + ONE / 2 and available >= 1.0) or shown < total - ONE / 2
        return wrong and now - place.sent_at > SHOWN_S

    @property
    def is_unsettled(self) -> bool:
        """Whether Ray's tables should be read again soon."""
        places = (place for pool in self.pools.values() for place in pool.places.values())
        if any(place.closing or (place.closed and place.used) for place in places):
            return True
        is_short = any(pool.waiting for pool in self.pools.values())
        return is_short and sum(bool(pool.places) for pool in self.pools.values()) > 1

    def pending(self) -> Iterator[tuple[Pool, int]]:
        """Shapes with pending tasks, and how many of each."""
        now = self._clock()
        for pool in self.pools.values():
            if pool.waiting:
                yield pool, max(len(pool.waiting), pool.demand(now))
