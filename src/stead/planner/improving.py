"""A cheaper plan that serves as much: without a node, or with cheaper nodes instead.

Rule: every change is tried, and the engine decides. The cost of all trials is bounded.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from stead.language.nodes import NodeTemplate
from stead.planner.allowance import Allowance
from stead.planner.trials import Trial, Trials

SWAPS = ((1, 1), (2, 1), (1, 2), (3, 2), (3, 1))
"""How many nodes of one kind are replaced by how many of another."""


def improved(trials: Trials, best: Trial, least: Counter[str], allowance: Allowance, cost_max: int) -> Trial:
    """The best trial that such changes lead to; it keeps the nodes in `least`."""
    cost_max += trials.cost
    kinds, tried = tuple(trials.kinds.values()), {_key(best.counts)}
    while True:
        for counts in _changed(best.counts, least, kinds, allowance):
            if _key(counts) in tried:
                continue
            if trials.cost + trials.cost_of(counts) > cost_max:
                return best
            tried.add(_key(counts))
            trial = trials.of(counts)
            if trial.badness < best.badness:
                best = trial
                break
        else:
            return best


def _changed(
    counts: Counter[str], least: Counter[str], kinds: Sequence[NodeTemplate], allowance: Allowance
) -> Iterator[Counter[str]]:
    """Cheaper counts, those first that save the most."""
    changes: list[tuple[float, Counter[str]]] = []
    spare = [kind for kind in kinds if counts[kind.name] > least[kind.name]]
    for kind in spare:
        changes.append((kind.price, Counter({kind.name: -1})))
        for other in kinds:
            for fewer, more in SWAPS if other.name != kind.name else ():
                if counts[kind.name] - fewer >= least[kind.name]:
                    saved = fewer * kind.price - more * other.price
                    changes.append((saved, Counter({kind.name: -fewer, other.name: more})))
        for second in spare:
            for other in kinds:
                if len({kind.name, second.name, other.name}) == 3:
                    saved = kind.price + second.price - other.price
                    changes.append((saved, Counter({kind.name: -1, second.name: -1, other.name: 1})))
    changes.sort(key=lambda each: -each[0])
    for saved, change in changes:
        if saved < 0 or (saved == 0 and sum(change.values()) >= 0):
            continue
        new = counts.copy()
        new.update(change)
        new = +new
        if all(allowance.more(kind, new - Counter([kind.name]))[0] > 0 for kind in kinds if change[kind.name] > 0):
            yield new


def _key(counts: Counter[str]) -> tuple[tuple[str, int], ...]:
    return tuple(sorted(counts.items()))
