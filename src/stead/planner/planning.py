"""Which new nodes pending work needs, and which of it would run on them.

Rule: new nodes are hypothetical nodes of a fork, and the engine decides what runs there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from stead.engine.engine import Engine
from stead.language.asks import AskId
from stead.language.nodes import NodeTemplate
from stead.planner.allowance import Allowance
from stead.planner.growing import grow
from stead.planner.lacking import unserved
from stead.planner.plans import NO_LIMITS, NO_STOCK, Launch, Limits, Plan, Stock
from stead.planner.trials import Trial, Trials

ROUNDS_MAX = 20
"""The maximum number of rounds in which a plan grows."""


def plan(engine: Engine, catalog: Sequence[NodeTemplate], limits: Limits = NO_LIMITS, stock: Stock = NO_STOCK) -> Plan:
    """New nodes of these kinds for all pending work that they can serve, as cheap as found, and for the minimum of each
    kind. Nothing is changed.

    What fits existing nodes, and then nodes that are coming, needs no new node. The engine places all work that the
    plan serves once the coming nodes and then the new nodes have joined.
    """
    trials = Trials(engine, catalog, stock)
    allowance = Allowance(engine, catalog, limits, stock)
    least = allowance.for_minimum()
    best = _pruned(trials, _served(trials, allowance, trials.of(least)), least)
    return _plan(engine, catalog, trials, best, allowance, stock)


def _served(trials: Trials, allowance: Allowance, trial: Trial) -> Trial:
    """Nodes that join one after the other can serve more than nodes that join together, so this is tried in turns."""
    for _ in range(ROUNDS_MAX):
        more = grow(trials, trial, allowance, trials.kinds.values())
        if more.counts == trial.counts:
            break
        trial = trials.of(more.counts)
    return trial


def _pruned(trials: Trials, trial: Trial, least: Counter[str]) -> Trial:
    """The same without new nodes that have no work, if that serves as much."""
    while True:
        used = Counter(trials.new[node] for node in set(trial.engine.placed.values()) if node in trials.new)
        if (used | least) == trial.counts:
            return trial
        fewer = trials.of(used | least)
        if fewer.badness >= trial.badness:
            return trial
        trial = fewer


def _plan(
    engine: Engine,
    catalog: Sequence[NodeTemplate],
    trials: Trials,
    trial: Trial,
    allowance: Allowance,
    stock: Stock,
) -> Plan:
    serves: dict[str | None, list[AskId]] = {}
    arrives: dict[str, list[AskId]] = {}
    for id, node in trial.engine.placed.items():
        if id not in engine.placed:
            if node in trials.coming:
                arrives.setdefault(trials.coming[node], []).append(id)
            else:
                serves.setdefault(trials.new.get(node), []).append(id)
    pending = tuple(unserved(trial, catalog, allowance))
    full = [allowance.more(trials.kinds[name], trial.counts) for name in trial.counts]
    return Plan(
        tuple(serves.get(None, ())),
        _launches(catalog, trial.counts, serves),
        pending,
        tuple(
            dict.fromkeys([name for count, name in full if not count] + [each.limit for each in pending if each.limit])
        ),
        _launches(catalog, stock.coming, arrives),
    )


def _launches(
    catalog: Iterable[NodeTemplate], counts: Mapping[str, int], serves: Mapping[Any, Sequence[AskId]]
) -> tuple[Launch, ...]:
    wanted = [(kind, counts.get(kind.name, 0)) for kind in catalog]
    return tuple(Launch(kind, count, tuple(serves.get(kind.name, ()))) for kind, count in wanted if count)
