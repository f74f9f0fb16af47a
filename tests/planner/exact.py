"""The cheapest new nodes for some work, by an exact solver, as a reference for plans.

Only resources count here, and which kinds a piece of work may use. CP-SAT chooses a kind for each of some nodes, and
how many pieces of each shape are on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ortools.sat.python import cp_model

from stead.language.asks import Ask
from stead.language.nodes import NodeTemplate


@dataclass(frozen=True, slots=True)
class Pieces:
    """`count` asks like `ask`, which may run on these kinds (indexes of the catalog)."""

    ask: Ask
    count: int
    kinds: frozenset[int]


def cheapest(catalog: Sequence[NodeTemplate], work: Sequence[Pieces], nodes_max: int) -> int | None:
    """The least price, in hundredths, with at most so many nodes; None if it was not proven in time."""
    model = cp_model.CpModel()
    prices = [round(kind.price * 100) for kind in catalog]
    resources = sorted({name for kind in catalog for name in kind.capacity})
    costs, placed = [], [[] for _ in work]  # type: ignore[var-annotated]
    for number in range(nodes_max):
        chosen = [model.new_bool_var(f"kind-{number}-{row}") for row in range(len(catalog))]
        model.add(sum(chosen) <= 1)
        cost = model.new_int_var(0, max(prices), f"cost-{number}")
        model.add(cost == sum(price * each for price, each in zip(prices, chosen, strict=True)))
        if costs:
            model.add(cost <= costs[-1])  # nodes are interchangeable
        costs.append(cost)
        amounts = [model.new_int_var(0, each.count, f"{number}-{place}") for place, each in enumerate(work)]
        for place, each in enumerate(work):
            placed[place].append(amounts[place])
            model.add(amounts[place] <= each.count * sum(chosen[row] for row in each.kinds))
        for resource in resources:
            used = sum(
                amount * each.ask.choices[0].resources.get(resource) for amount, each in zip(amounts, work, strict=True)
            )
            model.add(
                used <= sum(kind.capacity.get(resource) * each for kind, each in zip(catalog, chosen, strict=True))
            )
    for place, each in enumerate(work):
        model.add(sum(placed[place]) == each.count)
    model.minimize(sum(costs))
    solver = cp_model.CpSolver()
    solver.parameters.num_workers, solver.parameters.max_deterministic_time = 1, 4.0
    status = solver.solve(model)
    return round(solver.objective_value) if status == cp_model.OPTIMAL else None
