"""Trials: forks in which new nodes have joined and the engine has decided.

Rule: nodes that are coming join first, then the new nodes, those of a wave at once. What a trial says about work is
what the engine decided. The work of all trials of one plan is bounded, and counted in pieces of work and nodes, not in
time, so equal inputs give equal plans.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from stead.engine.engine import Engine
from stead.engine.facts import AskEnded, NodeJoined
from stead.language.asks import Ask, AskId, Group
from stead.language.nodes import NodeId, NodeTemplate
from stead.planner.plans import HYPOTHETICAL, Stock

DECIDE_MAX = 1_000
"""The maximum number of calls of `Engine.decide` until a fork is settled."""

FORK_COST, SHAPE_COST, PIECE_COST, NODE_COST = 100, 15, 1, 2
"""What a trial costs: for the fork, for each shape of pending work, for each piece of it, and for each new node. One is
about 10 microseconds on the machine that this was written on."""

WAVES_FACTOR = 1.1
"""How much dearer several waves of nodes count than one."""


@dataclass(frozen=True, slots=True)
class Trial:
    """New nodes have joined `engine`, one wave after the other; `waves` are the counts of each kind, and `new` says of
    which wave and kind each node is. `pending` is how much work stays pending, for each priority, highest first, and
    `regret` how far new nodes are from what work prefers. `effort` is what it costs to decide about that work."""

    engine: Engine
    waves: tuple[Counter[str], ...]
    new: Mapping[NodeId, tuple[int, str]]
    pending: tuple[int, ...]
    regret: int
    price: float
    effort: int

    @property
    def counts(self) -> Counter[str]:
        """How many new nodes of each kind there are."""
        return sum(self.waves, Counter[str]())

    @property
    def badness(self) -> tuple[tuple[int, ...], int, float, float]:
        """Of two trials, the one with the lower value is better: it serves more, or serves work as it prefers, or costs
        less. One wave is better than several, because nobody knows which nodes join first; so several must be worth
        it."""
        factor = WAVES_FACTOR if len(self.waves) > 1 else 1.0
        return self.pending, self.regret, self.price * factor, sum(self.counts.values()) * factor


class Trials:
    """All trials of one plan.

    Args:
        engine: The cluster and its pending work; it is not changed.
        catalog: The kinds of nodes.
        stock: The nodes that are coming.
    """

    def __init__(self, engine: Engine, catalog: Sequence[NodeTemplate], stock: Stock) -> None:
        self.kinds = {kind.name: kind for kind in catalog}
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
        priorities = {item.priority for items in engine.pending for item in items}
        self._priorities = sorted(priorities, reverse=True)
        self.pending, self._effort = self._pending_of(base)
        self.preferred: dict[AskId, Mapping[str, int]] = {}
        """For work that prefers some kinds of nodes: how many better kinds there are than each kind."""
        self.cost = 0
        """What all trials so far cost."""

    def of(self, *waves: Mapping[str, int]) -> Trial:
        """The trial with these new nodes."""
        trial = Trial(self.base, (), {}, self.pending, 0, 0.0, self._effort)
        for wave in waves:
            trial = self.then(trial, wave) if any(wave.values()) else trial
        return trial

    def then(self, trial: Trial, wave: Mapping[str, int]) -> Trial:
        """The same with one more wave of nodes."""
        more, had = Counter({name: wave[name] for name in self.kinds if wave.get(name)}), trial.counts
        fork, new = trial.engine.fork(), dict[NodeId, str]()
        for name, count in more.items():
            new.update(dict.fromkeys(self._ids(name, self._had[name] + had[name], count), name))
        fork.apply(*(NodeJoined(self.kinds[name].node(id)) for id, name in new.items()))
        settle(fork)
        self.cost += FORK_COST + trial.effort + NODE_COST * len(new)
        number = len(trial.waves)
        price = trial.price + sum(count * self.kinds[name].price for name, count in more.items())
        all_new = {**trial.new, **{id: (number, name) for id, name in new.items()}}
        regret, (pending, effort) = self._regret(fork, all_new), self._pending_of(fork)
        return Trial(fork, (*trial.waves, more), all_new, pending, regret, price, effort)

    def cost_of(self, counts: Mapping[str, int]) -> int:
        """What the trial with these new nodes in one wave would cost."""
        return FORK_COST + self._effort + NODE_COST * sum(counts.values())

    def _regret(self, engine: Engine, new: Mapping[NodeId, tuple[int, str]]) -> int:
        placed = engine.placed if self.preferred else {}
        where = ((kinds, new.get(placed.get(id, ""))) for id, kinds in self.preferred.items())
        return sum(kinds.get(node[1], 0) for kinds, node in where if node is not None)

    def _ids(self, name: str, had: int, count: int) -> list[NodeId]:
        return [f"{HYPOTHETICAL}/{name}/{number + 1}" for number in range(had, had + count)]

    def _pending_of(self, engine: Engine) -> tuple[tuple[int, ...], int]:
        """How much is pending, for each priority, and what it costs to decide about it."""
        found, alike = Counter[int](), engine.pending
        for items in alike:
            if isinstance(items[0], Ask):
                found.update(item.priority for item in items)
            else:
                for item in items:
                    found[item.priority] += len(lacking(engine, item))
        effort = SHAPE_COST * len(alike) + PIECE_COST * sum(found.values())
        return tuple(found[priority] for priority in self._priorities), effort


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
    for members in item.alternatives:
        pending = tuple(member for member in members if engine.is_pending(member.id))
        if len(pending) < len(members):  # the group has taken this alternative
            return pending
    return item.alternatives[0]


def _end_the_ending(engine: Engine) -> None:
    """Work that is being stopped makes room for the work that it is stopped for, without a new node."""
    ending = engine.ending
    if ending:
        engine.apply(*map(AskEnded, ending))
        settle(engine)
