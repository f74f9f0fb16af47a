"""Which new nodes pending work needs, and which of it would run on them.

Rule: new nodes are hypothetical nodes of a fork, and the engine decides what runs there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from stead.engine.engine import Engine
from stead.language.asks import Ask, AskId, Group
from stead.language.nodes import NodeTemplate
from stead.planner.allowance import Allowance
from stead.planner.demand import demand_of
from stead.planner.growing import grow
from stead.planner.improving import improved
from stead.planner.lacking import limit_of, unserved
from stead.planner.packing import Choice, Order, Packing, proposals
from stead.planner.plans import NO_LIMITS, NO_STOCK, Launch, Limits, Plan, Stock
from stead.planner.showroom import Showroom
from stead.planner.trials import WAVES_FACTOR, Trial, Trials

ROUNDS_MAX = 20
"""The maximum number of rounds in which a plan gets more nodes."""

PROPOSALS_MAX = 3
"""The maximum number of proposals that the engine decides on."""

IMPROVING_COST_MAX = 8_000
"""The maximum cost of all trials of a plan that only try to make it cheaper."""

GROWING_EFFORT_MAX = 2_000
"""Up to this effort (`Trial.effort`), nodes for work that depends on other work are also found step by step from the
beginning."""


def plan(engine: Engine, catalog: Sequence[NodeTemplate], limits: Limits = NO_LIMITS, stock: Stock = NO_STOCK) -> Plan:
    """New nodes of these kinds for all pending work that they can serve, as cheap as found, and for the minimum of each
    kind. Nothing is changed.

    What fits existing nodes, and then nodes that are coming, needs no new node. The engine places all work that the
    plan serves once the coming nodes and then the new nodes have joined.
    """
    trials = Trials(engine, catalog, stock)
    planner = _Planner(trials, Showroom(catalog, engine.claims), Allowance(engine, catalog, limits, stock))
    return _written(engine, planner, planner.best(), stock)


class _Planner:
    """One plan: `best` tells how it is made."""

    def __init__(self, trials: Trials, showroom: Showroom, allowance: Allowance) -> None:
        self.trials, self.showroom, self.allowance = trials, showroom, allowance
        self._least = allowance.for_minimum()

    def best(self) -> Trial:
        """The best trial that was found: it serves the most work, by priority, and then it is the cheapest."""
        best = self.trials.of(self._least)
        if not any(best.pending):
            return best
        self.trials.preferred.update(self._preferred())
        wants = demand_of(self.trials.base, self.showroom)
        packing = Packing(self.showroom.catalog, wants, self.allowance)
        for counts in self._proposed(packing):
            if best.counts != self._least and self._is_dear(counts):
                break
            best = self._better(best, self._completed(self.trials.of(counts)))
        least = self.trials.of(self._least)
        for by_price in (True, False) if least.effort <= GROWING_EFFORT_MAX else ():
            if self._of_use(best):
                grown = grow(self.trials, least, self.allowance, self._of_use(least), by_price)
                best = self._better(best, self._in_one_wave(self._pruned(grown)))
        best = self._better_than_alone(best, packing)
        if not self._least and not best.regret and 0 < best.price <= packing.least_price():
            return best
        return improved(self.trials, best, self._least, self.allowance, IMPROVING_COST_MAX)

    def _proposed(self, packing: Packing) -> list[Counter[str]]:
        """Different proposals, those first that leave out the least work and are the cheapest."""
        orders = (Order.DEAREST,) if self._is_dear(self._least) else (Order.DEAREST, Order.LARGEST)
        found = list(proposals(packing, orders, self._least, by_priority=False))
        if min(each.left for each in found):  # limits forbid some of it
            found = list(proposals(packing, (*orders, Order.CHEAPEST), self._least, by_priority=True))
        found.sort(key=lambda each: (each.left, each.price))
        different = {tuple(sorted(each.counts.items())): self._least + each.counts for each in found}
        return list(different.values())[:PROPOSALS_MAX]

    def _is_dear(self, counts: Counter[str]) -> bool:
        """Whether a trial costs too much to be only one of several."""
        return self.trials.cost_of(counts) > IMPROVING_COST_MAX // PROPOSALS_MAX

    def _completed(self, trial: Trial) -> Trial:
        """With more waves for the work that the engine does not place: it places work in turn, wherever the work fits,
        so it packs less tightly than a proposal does."""
        for _ in range(ROUNDS_MAX):
            if not any(trial.pending):
                break
            wants = demand_of(trial.engine, self.showroom, is_retry=True)
            packing = Packing(self.showroom.catalog, wants, self.allowance)
            more = packing.packed(Order.DEAREST, Choice.BY_WHOLE, trial.counts, {}, by_priority=True).counts
            found = self.trials.then(trial, more) if more else trial
            if found.pending >= trial.pending:
                kinds = self._of_use(trial)
                found = grow(self.trials, trial, self.allowance, kinds) if kinds else trial
            if found.pending >= trial.pending:
                break
            trial = found
        return self._in_one_wave(self._pruned(trial))

    def _in_one_wave(self, trial: Trial) -> Trial:
        """The same nodes, and perhaps some more, in one wave, if that is not worse."""
        best = trial
        for _ in range(ROUNDS_MAX):
            if len(trial.waves) < 2 or self._is_dear(trial.counts):
                break
            once = self.trials.of(trial.counts)
            if once.badness < best.badness or once.pending <= best.pending:
                return self._pruned(once)
            wants = demand_of(once.engine, self.showroom, is_retry=True)
            packing = Packing(self.showroom.catalog, wants, self.allowance)
            more = packing.packed(Order.DEAREST, Choice.BY_WHOLE, once.counts, {}, by_priority=True).counts
            trial = self.trials.then(once, more)
            if not more or trial.price > WAVES_FACTOR * best.price:
                break
        return best

    def _preferred(self) -> Iterator[tuple[AskId, dict[str, int]]]:
        """Work that prefers some kinds of nodes to others, with the number of better kinds for each."""
        catalog = self.showroom.catalog
        for items in self.trials.base.pending:
            first = items[0]
            if isinstance(first, Ask) and (first.prefers or len(first.choices) > 1 or self.showroom.has_soft_taints):
                tiers = self.showroom.tiers(first)
                ranks = {catalog[row].name: rank for rank, tier in enumerate(tiers) for row in tier.kinds}
                if len(tiers) > 1:
                    yield from ((item.id, ranks) for item in items)

    def _of_use(self, trial: Trial) -> list[NodeTemplate]:
        """The kinds that could serve work that is pending because of other work, and not because of a limit. Packing
        knows little about such work, so steps may find more."""
        rows = set[int]()
        for items in trial.engine.pending:
            first = items[0]
            asks = (first,) if isinstance(first, Ask) else first.all_members
            is_tied = isinstance(first, Group) or self.showroom.depends_on_work(first)
            if is_tied and not limit_of(self.showroom, first, trial, self.allowance):
                rows.update(row for ask in asks for tier in self.showroom.tiers(ask) for row in tier.kinds)
        return [self.showroom.catalog[row] for row in sorted(rows)]

    def _pruned(self, trial: Trial) -> Trial:
        """The same without new nodes that have no work, if that serves as much."""
        while True:
            waves = [Counter[str]() for _ in trial.waves]
            for node in set(trial.engine.placed.values()) & trial.new.keys():
                wave, kind = trial.new[node]
                waves[wave][kind] += 1
            if self._least:
                waves[0] |= self._least
            if waves == list(trial.waves):
                return trial
            fewer = self.trials.of(*waves)
            if fewer.badness >= trial.badness:
                return trial
            trial = fewer

    def _better_than_alone(self, best: Trial, packing: Packing) -> Trial:
        """Never worse than new nodes for each kind of work on its own."""
        alone = packing.packed(Order.DEAREST, Choice.ALONE, self._least, {}, by_priority=True)
        counts = self._least + alone.counts
        price = sum(count * self.trials.kinds[name].price for name, count in counts.items())
        is_cheaper = (price, counts.total()) < (best.price, best.counts.total())
        if is_cheaper or any(best.pending):
            trial = self.trials.of(counts)
            best = self._better(best, trial if self._is_dear(counts) else self._completed(trial))
        return best

    @staticmethod
    def _better(one: Trial, other: Trial) -> Trial:
        return other if other.badness < one.badness else one


def _written(engine: Engine, planner: _Planner, trial: Trial, stock: Stock) -> Plan:
    trials, allowance, catalog = planner.trials, planner.allowance, planner.showroom.catalog
    serves: dict[tuple[int, str] | None, list[AskId]] = {}
    arrives: dict[str, list[AskId]] = {}
    before = engine.placed
    for id, node in trial.engine.placed.items():
        if id not in before:
            if node in trials.coming:
                arrives.setdefault(trials.coming[node], []).append(id)
            else:
                serves.setdefault(trial.new.get(node), []).append(id)
    pending = tuple(unserved(trial, planner.showroom, allowance))
    full = [allowance.more(trials.kinds[name], trial.counts) for name in trial.counts]
    reached = [name for more, name in full if not more] + [each.limit for each in pending if each.limit]
    launches = (
        Launch(trials.kinds[name], count, tuple(serves.get((number, name), ())), number)
        for number, wave in enumerate(trial.waves)
        for name, count in wave.items()
    )
    coming = (
        Launch(kind, stock.coming[kind.name], tuple(arrives.get(kind.name, ())))
        for kind in catalog
        if stock.coming.get(kind.name)
    )
    reached = list(dict.fromkeys(reached))
    return Plan(tuple(serves.get(None, ())), tuple(launches), pending, tuple(reached), tuple(coming))
