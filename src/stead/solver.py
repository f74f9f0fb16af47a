"""Min-cost flow by OR-tools, for the engine's batches.

Rule: the only file that imports OR-tools, and only when a graph is solved. It solves one graph and knows nothing about
nodes and work. It holds the GIL while it solves, so the graphs of `engine/batch/flow.py` are kept small.
"""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec

import numpy as np
from numpy.typing import NDArray

from stead.engine.batch.flow import Solver
from stead.errors import Invalid

Column = NDArray[np.int64]


class OrTools:
    """Calls OR-tools' `SimpleMinCostFlow` with whole arrays."""

    def solve(self, tails: Column, heads: Column, capacities: Column, costs: Column, supplies: Column) -> Column:
        from ortools.graph.python.min_cost_flow import SimpleMinCostFlow

        graph = SimpleMinCostFlow()
        arcs = graph.add_arcs_with_capacity_and_unit_cost(tails, heads, capacities, costs)
        graph.set_nodes_supplies(np.arange(len(supplies)), supplies)
        status = graph.solve()
        if status != graph.OPTIMAL:
            raise RuntimeError(
                f"the min-cost flow solver failed with status {status}: the graph cannot carry all of its supply"
            )
        flows: Column = graph.flows(arcs)
        return flows


@cache
def found() -> Solver | None:
    """Find the solver for policies that decide in batches.

    Returns:
        The solver, or None if OR-tools is not installed.

    Example:
        ```python
        Engine(solver=found())
        ```
    """
    return OrTools() if find_spec("ortools") is not None else None


def needed() -> Solver:
    """Find the solver for policies that decide in batches, or say how to install it.

    Returns:
        The solver.

    Raises:
        Invalid: OR-tools is not installed.

    Example:
        ```python
        Engine(solver=needed())
        ```
    """
    solver = found()
    if solver is None:
        raise Invalid("policy 'flow' needs OR-tools, which is not installed; try: pip install 'stead[flow]'")
    return solver
