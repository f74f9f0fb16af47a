"""Min-cost flow by OR-tools, for the engine's batches.

Rule: the only file that imports OR-tools, and only when it is asked for. It solves one graph and knows nothing of
nodes and work. It holds the interpreter while it solves: the graphs of `engine/flow.py` are small for that reason.
"""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec

import numpy as np
from numpy.typing import NDArray

from stead.engine.flow import Solver
from stead.errors import Invalid

Column = NDArray[np.int64]


class OrTools:
    """`SimpleMinCostFlow`, through its calls that take whole columns."""

    def solve(self, tails: Column, heads: Column, capacities: Column, costs: Column, supplies: Column) -> Column:
        from ortools.graph.python.min_cost_flow import SimpleMinCostFlow

        graph = SimpleMinCostFlow()
        arcs = graph.add_arcs_with_capacity_and_unit_cost(tails, heads, capacities, costs)
        graph.set_nodes_supplies(np.arange(len(supplies)), supplies)
        status = graph.solve()
        if status != graph.OPTIMAL:
            raise RuntimeError(f"min-cost flow ended as {status}: the graph has no way out for all of its supply")
        flows: Column = graph.flows(arcs)
        return flows


@cache
def found() -> Solver | None:
    """The solver, or None where OR-tools is not installed."""
    return OrTools() if find_spec("ortools") is not None else None


def needed() -> Solver:
    """The solver, or one sentence on how to get it."""
    solver = found()
    if solver is None:
        raise Invalid("policy 'flow' needs OR-tools, which is not installed; try: pip install 'stead[flow]'")
    return solver
