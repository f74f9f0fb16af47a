"""Growing a trial wave by wave: each one is of the kind that serves the most work for its price.

Rule: every step is tried on a fork, so this also finds nodes for work that is tied to other work: groups, affinities,
spreads. It is the slow way; `packing` proposes nodes for all other work at once.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from stead.language.asks import Group
from stead.language.nodes import NodeTemplate
from stead.planner.allowance import Allowance
from stead.planner.trials import Trial, Trials

STEPS_MAX = 1_000
"""The maximum number of steps."""

COST_MAX = 30_000
"""The maximum cost of all trials until no more step begins: some hundreds of trials of a few pieces of work."""


class _Step(NamedTuple):
    """`nodes` new nodes of a kind serve `gain` pieces of work more."""

    kind: NodeTemplate
    nodes: int
    gain: int
    trial: Trial

    @property
    def worth(self) -> tuple[float, int]:
        """How much work for the price; at the same price, nodes with fewer kinds of resources are better."""
        return self.gain / (self.nodes * (self.kind.price or 1.0)), -len(self.kind.capacity)


def grow(
    trials: Trials, trial: Trial, allowance: Allowance, kinds: Iterable[NodeTemplate], by_price: bool = True
) -> Trial:
    """The trial with more waves, until no more nodes of these kinds would serve anything. Without `by_price`, each wave
    serves as much as possible whatever it costs: work that must be together may need a large node."""
    kinds, cost_max = tuple(kinds), trials.cost + COST_MAX
    for _ in range(STEPS_MAX):
        if not any(trial.pending) or trials.cost > cost_max:
            break
        steps = (_first_of_use(trials, trial, allowance, kind) for kind in kinds if trials.cost <= cost_max)
        found = [step for step in steps if step is not None]
        if not found:
            break
        best = max(found, key=lambda step: step.worth if by_price else (step.gain, -step.nodes * step.kind.price))
        trial = _as_many_as_pay(trials, trial, allowance, best).trial
    return trial


def _step(trials: Trials, trial: Trial, kind: NodeTemplate, nodes: int) -> _Step:
    grown = trials.then(trial, {kind.name: nodes})
    return _Step(kind, nodes, sum(trial.pending) - sum(grown.pending), grown)


def _first_of_use(trials: Trials, trial: Trial, allowance: Allowance, kind: NodeTemplate) -> _Step | None:
    """The fewest new nodes of a kind that serve anything: one, or for groups up to one for each member."""
    engine = trial.engine
    items = map(engine.item, engine.waiting)
    members = max((len(item.all_members) if isinstance(item, Group) else 1 for item in items), default=0)
    most = min(allowance.more(kind, trial.counts)[0], members)
    for count in sorted({min(1 << power, most) for power in range(most.bit_length() + 1)} if most > 0 else ()):
        step = _step(trials, trial, kind, count)
        if step.gain > 0:
            return step
    return None


def _as_many_as_pay(trials: Trials, trial: Trial, allowance: Allowance, step: _Step) -> _Step:
    """Twice as many nodes of the kind each time, as long as each serves as much as the first ones."""
    most = allowance.more(step.kind, trial.counts)[0]
    while 2 * step.nodes <= most:
        more = _step(trials, trial, step.kind, 2 * step.nodes)
        if more.gain < 2 * step.gain:
            break
        step = more
    return step
