"""Trials: forks in which new nodes have joined and the engine has decided.

Rule: nodes that are coming join first, then all new nodes of a trial at once. What a trial says about work is what the
engine decided. The work of all trials of one plan is bounded, and counted in pieces of work and nodes, not in time, so
equal inputs give equal plans.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from stead.engine.engine import Engine
from stead.engine.facts import AskEnded, NodeJoined
from stead.language.asks import Ask, Group
from stead.language.nodes import NodeId, NodeTemplate
from stead.planner.plans import HYPOTHETICAL, Stock

DECIDE_MAX = 1_000
"""The maximum number of calls of `Engine.decide` until a fork is settled."""

TRIAL_COST = 100
"""What a trial costs in addition to one for each pending piece of work and each new node."""

COST_MAX = 40_000
"""The maximum cost of all trials of one plan that only try to make it cheaper. A few of 10,000 pieces of work, or some
hundreds of a few pieces."""


@dataclass(frozen=True, slots=True)
class Trial:
    """`counts` new nodes of each kind have joined `engine`. `pending` is how much work stays pending, for each
    priority, highest first: less is better, and then a lower price."""

    engine: Engine
    counts: Counter[str]
    pending: tuple[int, ...]
    price: float

    @property
    def badness(self) -> tuple[tuple[int, ...], float, int]:
        """Of two trials, the one with the lower value is better."""
        return self.pending, self.price, sum(self.counts.values())


class Trials:
    """All trials of one plan.

    Args:
        engine: The cluster and its pending work; it is not changed.
        catalog: The kinds of nodes.
        stock: The nodes that are coming.
    """

    def __init__(self, engine: Engine, catalog: Sequence[NodeTemplate], stock: Stock) -> None:
        self.kinds = {kind.name: kind for kind in catalog}
        self.new: dict[NodeId, str] = {}
        """The kind of every hypothetical node that any trial has."""
        self.coming: dict[NodeId, str] = {}
        """The kind of every node that is coming."""
        self._had = Counter({name: count for name, count in stock.coming.items() if name in self.kinds})
        base = engine.fork()
        settle(base)
        _end_the_ending(base)
        for name, count in self._had.items():
            self.coming.update(dict.fromkeys(self._ids(name, 0, count), name))
        base.apply(*(NodeJoined(self.kinds[name].node(id)) for id, name in self.coming.items()))
        settle(base)
        self.base = base
        """All work that needs no new node is placed."""
        self._priorities = sorted({engine.item(id).priority for id in engine.waiting}, reverse=True)
        self._pending = _pieces(base)
        self._left = COST_MAX

    @property
    def may_go_on(self) -> bool:
        """Whether more trials are allowed that only try to make the plan cheaper."""
        return self._left > 0

    def of(self, counts: Mapping[str, int]) -> Trial:
        """The trial with these new nodes."""
        return self._joined(
            self.base, Counter(), Counter({name: counts[name] for name in self.kinds if name in counts})
        )

    def grown(self, trial: Trial, kind: str, count: int) -> Trial:
        """The same with more nodes, which join after the others."""
        return self._joined(trial.engine, trial.counts, Counter({kind: count}))

    def _joined(self, engine: Engine, had: Counter[str], more: Counter[str]) -> Trial:
        fork, new = engine.fork(), dict[NodeId, str]()
        for name, count in more.items():
            new.update(dict.fromkeys(self._ids(name, self._had[name] + had[name], count), name))
        fork.apply(*(NodeJoined(self.kinds[name].node(id)) for id, name in new.items()))
        settle(fork)
        self.new.update(new)
        self._left -= TRIAL_COST + self._pending + len(new)
        counts = had + more
        price = sum(count * self.kinds[name].price for name, count in counts.items())
        return Trial(fork, counts, self._pending_by_priority(fork), price)

    def _ids(self, name: str, had: int, count: int) -> list[NodeId]:
        return [f"{HYPOTHETICAL}/{name}/{number + 1}" for number in range(had, had + count)]

    def _pending_by_priority(self, engine: Engine) -> tuple[int, ...]:
        found: Counter[int] = Counter()
        for id in engine.waiting:
            item = engine.item(id)
            found[item.priority] += len(lacking(engine, item))
        return tuple(found[priority] for priority in self._priorities)


def settle(engine: Engine) -> None:
    """Decide until only time could change a decision."""
    for _ in range(DECIDE_MAX):
        engine.decide()
        if engine.next_moment is None or engine.next_moment > engine.now:
            break


def lacking(engine: Engine, item: Ask | Group) -> tuple[Ask, ...]:
    """The pieces of pending work that have no node: the ask, or members of the group."""
    if isinstance(item, Ask):
        return (item,)
    placed = engine.placed if len(item.alternatives) > 1 else {}
    taken = next((each for each in item.alternatives if any(member.id in placed for member in each)), None)
    return tuple(member for member in taken or item.alternatives[0] if engine.is_pending(member.id))


def _end_the_ending(engine: Engine) -> None:
    """Work that is being stopped makes room for the work that it is stopped for, without a new node."""
    ending = engine.ending
    if ending:
        engine.apply(*map(AskEnded, ending))
        settle(engine)


def _pieces(engine: Engine) -> int:
    return sum(len(lacking(engine, engine.item(id))) for id in engine.waiting)
