"""Tasks that make room for work of a higher priority.

Rule: a slot that the engine preempts is closed at once. If a task runs in it, one task of its shape on the node is
interrupted, and runs again where the engine gives it another slot. Until then its worker waits without amounts, and the
engine learns this once Ray's tables show them as free. The slot ends with the task that was interrupted in it, so that
no other task takes it without amounts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from stead.engine.facts import AskEnded, AskRunning, Fact
from stead.language.asks import Ask, Choice
from stead.language.resources import UNIT
from stead.ray.control.slot_pools import Place, Pool, Pools
from stead.ray.wire.tables import NodeRow, Status

TAKEN_S = 10.0
"""The maximum time until the room of an interrupted task is in use again."""

ROOMS_MAX = 1_000
"""How often work without amounts has room."""


class PreemptedTasks:
    """Called in the controller's round, and for workers that ask, under one lock."""

    def __init__(self, pools: Pools, pool_of: Callable[[str], Pool | None]) -> None:
        self._pools, self._pool_of = pools, pool_of
        self._freed: dict[str, list[float]] = {}  # by node, when room became free that is not in use again
        self._over: list[str] = []  # slots that ended since the last facts

    def preempt(self, id: str, node: str) -> bool:
        """Close a slot. Returns False if the ask is not a slot."""
        pool = self._pool_of(id)
        if pool is None:
            return False
        place = pool.places.get(node)
        if place is not None and id in place.ids and id not in place.preempted:
            place.ids.sort(key=id.__eq__)  # of the slots here, this one ends first
            place.preempted[id] = False
            place.open, place.sent = max(0, place.open - 1), None
        return True

    def names(self) -> Iterator[tuple[str, str]]:
        """(node, name) where a task has to be interrupted."""
        return ((node, pool.name) for pool, node, place in self._pools.places() if _missing(place))

    def admits(self, node: str, names: Iterable[str]) -> bool | None:
        """Whether a worker that holds these names on a node shall interrupt its task for other work; None if no slot
        of these names is preempted there."""
        for name in names:
            pool = self._pools.get(name)
            place = pool.places.get(node) if pool is not None else None
            if place is not None and place.preempted and not place.evicting:
                if not _missing(place):
                    return False
                place.preempted[next(id for id, is_done in place.preempted.items() if not is_done)] = True
                place.open, place.sent = place.open + 1, None  # the task keeps its unit of the name while it waits
                return True
        return None

    def ended(self, node: str, names: Iterable[str]) -> None:
        """A task that was interrupted, and held these names on a node, has ended."""
        for name in names:
            pool = self._pools.get(name)
            place = pool.places.get(node) if pool is not None else None
            done = [id for id, is_done in place.preempted.items() if is_done] if place is not None else []
            if place is not None and done:
                id = next((id for id in done if id in place.blocked), done[0])
                del place.preempted[id]
                place.blocked.discard(id)
                if id in place.ids:
                    place.ids.remove(id)
                    place.open, place.sent = max(0, place.open - 1), None
                    self._over.append(id)
                return

    def facts(self, status: Status) -> list[Fact]:
        """Interrupted tasks that have ended, or whose amounts are free now."""
        now, facts = time.monotonic(), list[Fact](map(AskEnded, self._over))
        self._over.clear()
        for pool, node, place in self._pools.places():
            if not place.preempted:
                continue
            place.preempted = {id: is_done for id, is_done in place.preempted.items() if id in place.ids}
            row = status.nodes.get(node)
            rooms = _rooms(row, pool.shape.ask) if row is not None else 0
            freed = [at for at in self._freed.get(node, ()) if now - at < TAKEN_S]
            freed = self._freed[node] = freed[max(0, len(freed) - rooms) :]  # the others are in use again
            for id in [id for id, is_done in place.preempted.items() if is_done and id not in place.blocked]:
                if rooms > len(freed):
                    freed.append(now)
                    place.blocked.add(id)
                    facts += without_amounts(pool, node, id)
        return facts


def _missing(place: Place) -> int:
    """How many more tasks have to be interrupted."""
    left = sum(not is_done for is_done in place.preempted.values())
    return max(0, min(left, place.used - place.open))


def _rooms(row: NodeRow, ask: Ask) -> int:
    """How often the amounts of one of its choices are free on the node."""
    return max(
        min(
            (
                int(row.available.get(name, 0.0) * UNIT + 0.5) // units
                for name, units in each.resources.items()
                if units
            ),
            default=ROOMS_MAX,
        )
        for each in ask.choices
    )


def without_amounts(pool: Pool, node: str, id: str) -> list[Fact]:
    """The engine still knows that the task runs there, but counts no amounts."""
    return [AskEnded(id), AskRunning(replace(pool.shape.ask, id=id, choices=(Choice(),)), node)]
