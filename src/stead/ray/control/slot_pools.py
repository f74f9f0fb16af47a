"""The slots of each resource name: where they are, how many are used, and how many are wanted.

Rule: only values and sums. `slots.py` acts on them.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import accumulate

from stead.language.asks import Ask, Choice
from stead.language.resources import DEVICES, NOTHING, UNIT, Resources, times_in
from stead.ray.control.ticketed_work import is_exclusive, named_by
from stead.ray.submit.messages import SlotShape
from stead.ray.wire.tables import NodeRow, Status

COUNTED_S = 2.0
"""How long the programs' own counts show what is pending; after that, Ray's table shows it."""

FREE_OF_CHARGE_MAX = 1_000
"""Maximum number of slots of a shape without amounts."""

Room = Mapping[Resources, int]
"""The number of nodes of each capacity."""


@dataclass(slots=True)
class Place:
    """The slots of one name on one node."""

    ids: list[str] = field(default_factory=list)  # asks that the engine has placed here, oldest first
    open: int = 0  # how many tasks may run here at the same time
    sent: float | None = None  # the total last sent to the node; None: send it (again)
    sent_at: float = 0.0
    used: int = 0  # as Ray's tables show it
    was_used: bool = False  # whether a task was seen in it since it was granted
    free_since: float = 0.0  # since when a slot is unused; 0 while none is
    full_since: float = 0.0
    closed: bool = False  # the rules no longer allow the node: nothing new may start here
    lent: set[str] = field(default_factory=set)  # asks in use whose room the engine may give to other work
    evicting: bool = False
    surplus: int = 0  # slots that no task needs
    roomy_since: float = 0.0  # since when there is room although all slots are in use; 0 while there is none
    blocked: set[str] = field(default_factory=set)  # asks of blocked tasks, for which Ray holds no CPU
    preempted: dict[str, bool] = field(default_factory=dict)  # asks of closed slots -> whether a task was interrupted
    closing: dict[str, float] = field(default_factory=dict)  # asks that wait for an empty node -> since when

    @property
    def is_empty(self) -> bool:
        """Whether there are no slots; an anchor may exist."""
        return not (self.ids or self.open or self.used)


@dataclass(slots=True)
class Pool:
    """The slots of one resource name: one generation of a shape."""

    name: str
    shape: SlotShape
    generation: int
    places: dict[str, Place] = field(default_factory=dict)
    waiting: dict[str, None] = field(default_factory=dict)  # asks that the engine has not placed
    number: int = 0  # of the next ask
    counted: deque[tuple[float, int]] = field(default_factory=deque)  # what programs have submitted, and when
    listed: int = 0  # what Ray's table says is pending
    listed_at: float = 0.0  # when Ray's table last changed and listed it
    drained_at: float = 0.0  # since when a slot is unused although there is room: then nothing was pending
    patience_s: float = 0.0  # how long an unused slot is kept, after tasks found the last one too late
    busy_at: float = 0.0  # when it last had demand or work
    left_at: float = 0.0  # when new submissions switched to another name; 0 if they did not
    is_leaving: bool = False  # and its anchor is being removed
    refused: bool = False  # the nodes it requires are gone
    grew_last: float = 0.0  # when a program last counted tasks
    names: frozenset[str] = frozenset()  # ids of the actors that its rules name
    is_exclusive: bool = False  # it needs a node without other work
    is_own_rival: bool = False  # its rules refer to its own kind, so an unused slot can block other tasks

    @staticmethod
    def of(name: str, shape: SlotShape, generation: int, now: float) -> Pool:
        pool, ask = Pool(name, shape, generation, busy_at=now), shape.ask
        pool.names, pool.is_exclusive = frozenset(named_by(ask)), is_exclusive(ask)
        affinities = [each for term in ask.affinities for each in term]
        pool.is_own_rival = bool(ask.spreads) or any(each.selector.matches(ask.labels) for each in affinities)
        return pool

    @property
    def used(self) -> int:
        return sum(place.used for place in self.places.values())

    @property
    def blocked(self) -> int:
        return sum(len(place.blocked & set(place.ids)) for place in self.places.values() if place.blocked)

    @property
    def slots(self) -> int:
        return sum(max(len(place.ids), place.open) for place in self.places.values()) + len(self.waiting)

    @property
    def one_more(self) -> Ask:
        """One more ask of the shape, without amounts and balance: only its rules count."""
        choices = tuple(Choice(NOTHING, choice.selector) for choice in self.shape.ask.choices)
        return replace(self.shape.ask, id=f"{self.name}#again", choices=choices, spreads=())

    def open_on(self, node: str) -> int:
        return self.places[node].open if node in self.places else 0

    def demand(self, now: float) -> int:
        while self.counted and now - self.counted[0][0] > COUNTED_S:
            self.counted.popleft()
        is_late = self.listed_at <= self.drained_at and now - self.drained_at <= COUNTED_S
        return max(0 if is_late else self.listed, sum(count for _, count in self.counted))

    def started(self, tasks: int) -> None:
        """Slots came into use, so at least this many of the counted tasks are no longer pending."""
        while tasks > 0 and self.counted:
            at, count = self.counted.popleft()
            if count > tasks:
                self.counted.appendleft((at, count - tasks))
            tasks -= count

    def is_still_listed(self, now: float) -> bool:
        """Whether Ray's table still lists work that seemed to have run: then a slot was free that no task had found."""
        return 0.0 < self.drained_at < now - COUNTED_S and self.listed_at <= self.drained_at

    def drain(self, since: float, now: float, settled_s: float) -> None:
        """A slot is free, so nothing was pending then except tasks that were just submitted."""
        self.drained_at = since
        while self.counted and now - self.counted[0][0] > settled_s:
            self.counted.popleft()


class Pools(dict[str, Pool]):
    """All names in use, and views of them."""

    def __init__(self) -> None:
        super().__init__()
        self._priorities: dict[str, int] = {}  # by shape

    def __setitem__(self, name: str, pool: Pool) -> None:
        super().__setitem__(name, pool)
        self._priorities[pool.shape.key] = pool.shape.ask.priority

    def rivals(self, pool: Pool, waits_s: Mapping[str, float]) -> dict[str, float]:
        """Of what waits for room (shapes, or "" for other work), what may get that of a pool: nothing of a lower
        priority."""
        least, known = pool.shape.ask.priority, self._priorities
        return {key: s for key, s in waits_s.items() if key != pool.shape.key and known.get(key, least) >= least}

    def withdrawn(self) -> Iterator[tuple[str, str]]:
        """(node, name) where no task may start any more."""
        return ((node, pool.name) for pool, node, place in self.places() if place.closed)

    def evicted(self) -> Iterator[tuple[str, str]]:
        """(node, name) whose holders have to leave now."""
        return ((node, pool.name) for pool, node, place in self.places() if place.evicting)

    def places(self) -> Iterator[tuple[Pool, str, Place]]:
        return ((pool, node, place) for pool in self.values() for node, place in pool.places.items())

    def looking_at_tasks(self) -> list[Pool]:
        """The shapes whose rules refer to tasks of shapes in use."""
        looking = [pool for pool in self.values() if pool.shape.ask.affinities]
        labels = {pool.shape.ask.labels for pool in self.values() if pool.shape.ask.labels} if looking else ()
        return [
            pool
            for pool in looking
            if any(
                each.selector.matches(these) for term in pool.shape.ask.affinities for each in term for these in labels
            )
        ]

    def named(self) -> set[str]:
        """Ids of actors that the rules of shapes in use name."""
        return {id for pool in self.values() for id in pool.names}

    def shown(self, status: Status) -> dict[str, list[Resources]]:
        """By node, what tasks in slots use there, as far as Ray's tables show it."""
        mine: dict[str, list[Resources]] = defaultdict(list)
        for pool in self.values():
            amounts = pool.shape.ask.choices[0].resources
            for node, place in pool.places.items():
                if node in status.nodes:
                    mine[node] += [amounts] * (min(place.used, len(place.ids)) - len(place.blocked & set(place.ids)))
        return mine

    def idle_ids(self) -> list[str]:
        """Asks of slots that no task uses."""
        return [id for _, _, place in self.places() for id in place.ids[place.used :]]

    def ids(self) -> list[str]:
        """All of the engine's asks for slots."""
        return [*(id for _, _, place in self.places() for id in place.ids), *self.waiting_ids()]

    def waiting_ids(self) -> list[str]:
        return [id for pool in self.values() for id in pool.waiting]

    def loads(self, wanted: Mapping[str, tuple[int, int]]) -> dict[int, float]:
        """By priority, what shapes of this or a higher priority want, as a share of all room. For each name, `wanted`
        has how many slots it could use and how many there could be."""
        own: dict[int, float] = defaultdict(float)
        for name, (count, most) in wanted.items():
            own[self[name].shape.ask.priority] += count / most
        falling = sorted(own, reverse=True)
        return dict(zip(falling, accumulate(own[each] for each in falling), strict=True))

    def closed(self) -> frozenset[str]:
        """Nodes that an exclusive shape has to itself."""
        return frozenset(node for pool, node, place in self.places() if place.ids and pool.is_exclusive)

    def in_use(self) -> Iterator[tuple[str, str, list[str], int]]:
        """(node, name, asks, how many of them are in use)."""
        for pool in self.values():
            for node, place in pool.places.items():
                yield node, pool.name, place.ids, place.used


def has_room_for(row: NodeRow, ask: Ask) -> bool:
    """Whether the room that a slot was granted for is still free."""
    return any(all(_is_free(row, *need) for need in choice.resources.items()) for choice in ask.choices)


def _is_free(row: NodeRow, resource: str, units: int) -> bool:
    """Ray's tables show the sum over a node's devices, so a share of one of several surely fits only beside a whole
    device that is free."""
    is_share = resource in DEVICES and units < UNIT and row.total.get(resource, 0.0) > 1.0
    return row.available.get(resource, 0.0) * UNIT >= (UNIT if is_share else units)


def could_run(row: NodeRow, ask: Ask) -> bool:
    """Whether a node is large enough, regardless of what is free."""
    return any(
        all(row.total.get(name, 0.0) * UNIT >= units for name, units in choice.resources.items())
        for choice in ask.choices
    )


def most_of(ask: Ask, room: Room) -> int:
    """How many of an ask the nodes could hold if they were empty."""
    return max(1, *(_fitting(choice, room) for choice in ask.choices))


def _fitting(choice: Choice, room: Room) -> int:
    wanted = [(name, units) for name, units in choice.resources.items() if units]
    if not wanted:
        return FREE_OF_CHARGE_MAX
    return sum(
        count * min(times_in(name, capacity.get(name, 0), units) for name, units in wanted)
        for capacity, count in room.items()
    )
