"""The flow policies implemented again, naively: the literal flow graph, an assignment solved by CP-SAT, and the costs.

Rule: only the types of facts come from the engine. Hard rules are those of `oracle.py`; costs are computed
one ask and one node at a time, in plain ints, as docs/flow.md defines them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from ortools.graph.python.min_cost_flow import SimpleMinCostFlow
from ortools.sat.python import cp_model

from stead.language.asks import Ask, AskId, PolicyName
from stead.language.nodes import NodeId
from tests.oracle import DEVICES, UNIT, Oracle

OFFSET_MIN = 1000
STEP = 100
LEFT_OUT = 100_000_000
LEFT_OUT_STEP = 1_000_000
PRIORITY_STEP = 2_000_000_000

Way = tuple[NodeId, int]
"""A node, and the choice by which the ask goes there."""


def tens(number: int) -> int:
    return number // 10 * 10


def clipped(number: int) -> int:
    return min(1000, max(0, number))


@dataclass(frozen=True)
class Batch:
    """Asks that are decided together on the oracle's cluster, and the costs of placing them.

    `waited` is how many seconds each has been pending.
    """

    oracle: Oracle
    asks: tuple[Ask, ...]
    policy: PolicyName
    unscheduled: str = "uniform"
    waited: Mapping[AskId, float] | None = None

    # What may go where

    @cached_property
    def ways(self) -> dict[AskId, list[Way]]:
        """Where each ask may go, given the cluster before the batch."""
        return {
            ask.id: [
                (node, choice)
                for choice in range(len(ask.choices))
                for node in self.oracle.places
                if not self.oracle.obstacles(ask, choice, node)
            ]
            for ask in self.asks
        }

    def room(self, ask: Ask, node: NodeId) -> int:
        """How many asks like this one the node takes by the first choice, at most the size of the batch."""
        place, rooms = self.oracle.places[node], [len(self.asks)]
        for name, need in ask.choices[0].resources.items():
            if name not in DEVICES:
                rooms.append(max(0, place.free(name)) // need)
            elif need < UNIT:
                rooms.append(sum(free // need for free in place.devices(name)))
            else:
                rooms.append(sum(free == UNIT for free in place.devices(name)) // (need // UNIT))
        return min(rooms)

    # What it costs

    @cached_property
    def resources(self) -> list[str]:
        return sorted({name for ask in self.asks for choice in ask.choices for name in choice.resources})

    @cached_property
    def weights(self) -> dict[tuple[AskId, NodeId], int]:
        return {(ask.id, node): self.oracle.preference(ask, node) for ask in self.asks for node in self.oracle.places}

    @cached_property
    def offset(self) -> int:
        return max([OFFSET_MIN, *self.weights.values()])

    @cached_property
    def greatest(self) -> dict[str, int]:
        """The largest capacity of each resource."""
        return {name: max(self._total(node, name) for node in self.oracle.places) for name in self.resources}

    def _total(self, node: NodeId, name: str) -> int:
        return int(self.oracle.places[node].node.capacity.get(name))

    def fill(self, node: NodeId) -> int:
        """How full and how uneven the node is."""
        used = []
        for name in self.resources:
            total = self._total(node, name)
            if total > 0:
                used.append(clipped((total - self.oracle.places[node].free(name)) * 1000 // total))
        if not used:
            return 0
        mean = sum(used) // len(used)
        return tens((mean + (max(used) - min(used))) // 2)

    def left(self, node: NodeId) -> int:
        """How much the node has left, relative to the largest; devices count even if no ask needs them."""
        every = self.oracle.places
        devices = {name for name in DEVICES if any(self._total(other, name) for other in every)}
        greatest = {name: max(self._total(other, name) for other in every) for name in {*self.resources, *devices}}
        shares = [
            clipped(every[node].free(name) * 1000 // most) if most else 0 for name, most in sorted(greatest.items())
        ]
        return tens(sum(shares) // len(shares)) if shares else 0

    @cached_property
    def of_node(self) -> dict[NodeId, int]:
        measure = {PolicyName.FLOW: self.fill, PolicyName.FLOW_PACK: self.left}[self.policy]
        return {node: self.offset + measure(node) for node in self.oracle.places}

    def rise(self, k: int) -> int:
        """The extra cost of the k-th new ask on a node."""
        return STEP * k if self.policy is PolicyName.FLOW else 0

    @cached_property
    def left_out(self) -> dict[AskId, int]:
        """The cost of leaving each ask out."""
        ranks = {priority: rank for rank, priority in enumerate(sorted({ask.priority for ask in self.asks}))}
        return {
            ask.id: LEFT_OUT + LEFT_OUT_STEP * self._urgency(ask) + PRIORITY_STEP * ranks[ask.priority]
            for ask in self.asks
        }

    def _urgency(self, ask: Ask) -> int:
        if self.unscheduled == "size":
            needs = [(need, self.greatest[name]) for name, need in ask.choices[0].resources.items()]
            return max([0, *(clipped(need * 1000 // most) if most else 1000 for need, most in needs)])
        if self.unscheduled == "age":
            return clipped(int((self.waited or {}).get(ask.id, 0)))
        return 0

    def cost_of(self, placement: Mapping[AskId, NodeId | None]) -> int:
        """The cost of this placement of the batch; asks that are missing in it are left out."""
        total, taken = 0, Counter[NodeId]()
        for ask in self.asks:
            node = placement.get(ask.id)
            if node is None:
                total += self.left_out[ask.id]
                continue
            taken[node] += 1
            total += self.of_node[node] + self.rise(taken[node]) - self.weights[ask.id, node]
        return total

    # The optimum

    def literal_optimum(self) -> int:
        """By the literal graph: ask -> class -> one node per unit of a machine -> machine -> sink, or ask -> sink.

        A unit takes any one ask, so this is exact only if all asks need the same.
        """
        graph, names = SimpleMinCostFlow(), dict[object, int]()

        def arc(tail: object, head: object, cost: int) -> None:
            start, end = (names.setdefault(name, len(names)) for name in (tail, head))
            arcs.append((start, end, 1 if head != "sink" else len(self.asks), cost))

        arcs: list[tuple[int, int, int, int]] = []
        classes = {ask.shape_key: ask for ask in self.asks}
        for ask in self.asks:
            arc(("ask", ask.id), ("class", ask.shape_key), 0)
            arc(("ask", ask.id), "unscheduled", self.left_out[ask.id])
        arc("unscheduled", "sink", 0)
        for key, ask in classes.items():
            for node, _ in self.ways[ask.id]:
                for k in range(1, self.room(ask, node) + 1):
                    cost = self.of_node[node] + self.rise(k) - self.weights[ask.id, node]
                    arc(("class", key), ("unit", node, k), cost)
        for node in {name[1] for name in list(names) if isinstance(name, tuple) and name[0] == "unit"}:
            for k in range(1, len(self.asks) + 1):
                if ("unit", node, k) in names:
                    arc(("unit", node, k), ("machine", node), 0)
            arc(("machine", node), "sink", 0)
        tails, heads, capacities, costs = np.array(arcs, np.int64).T
        graph.add_arcs_with_capacity_and_unit_cost(tails, heads, capacities, costs)
        for ask in self.asks:
            graph.set_node_supply(names["ask", ask.id], 1)
        graph.set_node_supply(names["sink"], -len(self.asks))
        status = graph.solve()
        assert status == graph.OPTIMAL, status
        return int(graph.optimal_cost())

    def true_optimum(self) -> int:
        """By CP-SAT: any placement within what is free of every resource and on every device."""
        model = cp_model.CpModel()
        goes = {(ask.id, way): model.new_bool_var("") for ask in self.asks for way in self.ways[ask.id]}
        cost: list[cp_model.LinearExprT] = []
        for ask in self.asks:
            out = model.new_bool_var("")
            model.add_exactly_one([out, *(goes[ask.id, way] for way in self.ways[ask.id])])
            cost.append(self.left_out[ask.id] * out)
        for (id, (node, _)), goes_there in goes.items():
            cost.append((self.of_node[node] - self.weights[id, node]) * goes_there)
        for node in self.oracle.places:
            here = [goes_there for (_, (where, _)), goes_there in goes.items() if where == node]
            if here and self.rise(1):
                ranks = [model.new_bool_var("") for _ in here]  # costs rise, so the first ones are taken
                model.add(sum(here) == sum(ranks))
                cost += [self.rise(k) * taken for k, taken in enumerate(ranks, start=1)]
            for name in self.resources:
                self._stay_within(model, goes, node, name)
        model.minimize(sum(cost))
        solver = cp_model.CpSolver()
        solver.parameters.num_workers = 1
        status = solver.solve(model)
        assert status == cp_model.OPTIMAL, solver.status_name(status)
        return round(solver.objective_value)

    def _stay_within(
        self, model: cp_model.CpModel, goes: Mapping[tuple[AskId, Way], cp_model.IntVar], node: NodeId, name: str
    ) -> None:
        """Use no more of a resource on a node than is free there, per device for devices."""
        needs = [
            (goes[ask.id, (node, choice)], ask.choices[choice].resources.get(name))
            for ask in self.asks
            for choice in range(len(ask.choices))
            if (ask.id, (node, choice)) in goes
        ]
        needs = [(goes_there, need) for goes_there, need in needs if need]
        place = self.oracle.places[node]
        if name not in DEVICES:
            if needs:
                model.add(sum(need * goes_there for goes_there, need in needs) <= place.free(name))
            return
        devices = place.devices(name)
        in_use: list[list[cp_model.LinearExprT]] = [[] for _ in devices]
        for goes_there, need in needs:
            holds = [model.new_bool_var("") for _ in devices]
            model.add(sum(holds) == max(1, need // UNIT) * goes_there)
            for used, held in zip(in_use, holds, strict=True):
                used.append(min(need, UNIT) * held)
        for used, free in zip(in_use, devices, strict=True):
            model.add(sum(used) <= max(0, free))
