"""The oracle of preemption: docs/semantics.md implemented naively, one node and one piece of work at a time.

Rule: what fits is what `tests/oracle.py` says. Places that are kept for pending work are placed work here that nobody
evicts. Nothing of the engine is used but its types.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import combinations
from math import inf

from stead.engine import reasons
from stead.language.asks import Ask, AskId
from stead.language.budgets import Budget
from stead.language.nodes import NodeId
from tests.oracle import Held, Oracle
from tests.oracle_language import selects

MORE_VICTIMS_COST_MORE = 2**31
"""Added to every priority before they are summed."""

Order = tuple[int, int, int, int, float]
"""The five criteria; the smallest is best."""

LIFTABLE = (
    reasons.ShortOf,
    reasons.TooNear,
    reasons.KeptAway,
    reasons.Skewed,
    reasons.PortTaken,
    reasons.NoAlternativeHolds,
)
"""Reasons that may end when work is evicted."""


@dataclass(frozen=True)
class Room:
    """Where an ask fits once these victims are gone, the most important first."""

    node: NodeId
    choice: int
    victims: tuple[AskId, ...]
    violations: int
    order: Order = field(compare=False)


@dataclass
class PreemptionOracle:
    """The cluster, and what its running work is worth."""

    world: Oracle
    starts: dict[AskId, float] = field(default_factory=dict)
    budgets: list[Budget] = field(default_factory=list)
    ending: dict[AskId, bool] = field(default_factory=dict)
    """Work that is being stopped, and whether the budgets count it already."""
    spared: set[AskId] = field(default_factory=set)
    kept: dict[AskId, tuple[Ask, NodeId, int]] = field(default_factory=dict)
    """Places that are kept for pending asks."""

    def room(self, ask: Ask) -> Room | None:
        """The best node by the order of choice, for the first choice of the ask that has one; None if there is none."""
        for choice in range(len(ask.choices)) if ask.preempts else ():
            rooms = [room for node in self.world.places if (room := self.room_on(ask, choice, node)) is not None]
            if rooms:
                return min(rooms, key=lambda room: room.order)
        return None

    def room_on(self, ask: Ask, choice: int, node: NodeId) -> Room | None:
        """Remove all work of a lower priority, then give back what can stay, the most important first."""
        world = self.with_kept_places(self.world)
        if not all(isinstance(reason, LIFTABLE) for reason in world.obstacles(ask, choice, node)):
            return None
        lower = self.evictable_for(ask, node)
        for id in [*lower, *self.lower_places(ask, node)]:
            world.lose(id)
        if world.obstacles(ask, choice, node):
            return None
        candidates = self.evictable_now(ask, node)
        exceeding = self.exceeding(candidates)
        victims = []
        for id in sorted(candidates, key=lambda id: id not in exceeding):
            put_back(world, self.world.held[id])
            if world.obstacles(ask, choice, node):
                world.lose(id)
                victims.append(id)
        victims.sort(key=lower.index)
        violations = sum(id in exceeding for id in victims)
        return Room(node, choice, tuple(victims), violations, self.order(victims, violations))

    # The parts of the algorithm

    def with_kept_places(self, world: Oracle) -> Oracle:
        """A copy in which pending work is where a place is kept for it."""
        twin = world.copy()
        for ask, node, choice in self.kept.values():
            twin.hold(ask, node, choice)
        return twin

    def work(self, id: AskId) -> Ask:
        return self.world.held[id].ask

    def evictable_for(self, ask: Ask, node: NodeId) -> list[AskId]:
        """The work of a lower priority on a node, the most important first."""
        found = [
            id
            for id in self.world.places[node].asks
            if self.work(id).priority < ask.priority and self.work(id).preemptible and id not in self.spared
        ]
        arrived = list(self.world.held)
        return sorted(found, key=lambda id: (-self.work(id).priority, self.starts.get(id, inf), arrived.index(id)))

    def evictable_now(self, ask: Ask, node: NodeId) -> list[AskId]:
        """The same without what is ending anyway."""
        return [id for id in self.evictable_for(ask, node) if id not in self.ending]

    def lower_places(self, ask: Ask, node: NodeId) -> list[AskId]:
        """The pending work of a lower priority for which this node keeps a place: it gives way."""
        return [id for id, (other, where, _) in self.kept.items() if where == node and other.priority < ask.priority]

    def exceeding(self, ids: Iterable[AskId]) -> set[AskId]:
        """Those whose eviction would exceed a budget, if they were evicted in this order."""
        left = {budget.id: budget.allowed for budget in self.budgets}
        for id, is_counted in self.ending.items():
            for budget in self.budgets_of(id) if not is_counted else ():
                left[budget.id] -= 1
        found = set()
        for id in ids:
            for budget in self.budgets_of(id):
                left[budget.id] -= 1
                if left[budget.id] < 0:
                    found.add(id)
        return found

    def budgets_of(self, id: AskId) -> Iterator[Budget]:
        work = self.work(id)
        for budget in self.budgets:
            if work.labels and work.namespace == budget.namespace and selects(budget.selector, work.labels):
                yield budget

    def order(self, victims: Collection[AskId], violations: int) -> Order:
        """Fewest violations, lowest highest priority, smallest sum, fewest victims, latest start."""
        if not victims:
            return violations, -(2**40), 0, 0, -inf
        priorities = [self.work(id).priority for id in victims]
        highest = max(priorities)
        first = min(self.starts.get(id, inf) for id in victims if self.work(id).priority == highest)
        total = sum(priority + MORE_VICTIMS_COST_MORE for priority in priorities)
        return violations, highest, total, len(victims), -first

    # Brute force

    def sets_that_fit(self, ask: Ask, choice: int, node: NodeId) -> Iterator[frozenset[AskId]]:
        """Every set of evictions on a node after which the ask fits there; what is ending is gone, too."""
        lower = self.evictable_for(ask, node)
        gone = [*(id for id in lower if id in self.ending), *self.lower_places(ask, node)]
        rest = self.evictable_now(ask, node)
        for size in range(len(rest) + 1):
            for chosen in combinations(rest, size):
                world = self.with_kept_places(self.world)
                for id in (*gone, *chosen):
                    world.lose(id)
                if not world.obstacles(ask, choice, node):
                    yield frozenset(chosen)

    def worst(self, ask: Ask, node: NodeId, victims: Collection[AskId]) -> tuple[bool, int]:
        """Whether such a set exceeds a budget; if not, the priority of its most important work."""
        if not self.exceeding(self.evictable_now(ask, node)).isdisjoint(victims):
            return True, 0
        return False, max((self.work(id).priority for id in victims), default=-(2**40))

    # What was decided

    def took(self, ask: Ask, room: Room) -> None:
        """The ask waits for this node, and the victims are being stopped."""
        self.kept[ask.id] = ask, room.node, room.choice
        self.ending |= dict.fromkeys(room.victims, False)

    def ended(self, id: AskId) -> None:
        self.world.forget(id)
        self.ending.pop(id, None)
        self.spared.discard(id)


def put_back(world: Oracle, held: Held) -> None:
    """Work is where it was again, on the same devices."""
    place = world.places[held.node]
    world.held[held.ask.id] = place.asks[held.ask.id] = held
    for name, need in held.ask.choices[held.choice].resources.items():
        place.used[name] = place.used.get(name, 0) + need
    for name, index, share in held.shares:
        place.shares[name, index] = place.shares.get((name, index), 0) + share
