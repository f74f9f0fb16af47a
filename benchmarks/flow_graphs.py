"""The graphs that flow is measured against: written from its contract, sharing nothing with `engine/flow.py`.

Rule: who may run where is asked of each node's labels and taints one requirement at a time, and costs are computed
from what is free, so that an equal optimum says something. Graphs are built as columns and handed to OR-tools in bulk,
which is the quickest form it has; what was not known beforehand (how many levels a machine needs) is given for free.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from ortools.graph.python.min_cost_flow import SimpleMinCostFlow

from stead.language.asks import Choice, Preference
from stead.language.labels import Requirement, Selector
from stead.language.nodes import Node

Column = NDArray[np.int64]
Flags = NDArray[np.bool_]

OFFSET = 1_000
STEP = 100
LEFT_OUT = 100_000_000


@dataclass(frozen=True, slots=True)
class Problem:
    """Classes (equal asks) and machines: who is open to whom, how many ask, and what machine and class cost.

    `fill` is what every ask pays on a machine, `worth` what its preferences take off (one row a class), `room` how many
    of the smallest asks that may come there it would hold.
    """

    open: Flags
    counts: Column
    fill: Column
    worth: Column | None
    room: Column

    @property
    def offset(self) -> int:
        return OFFSET if self.worth is None else max(OFFSET, int(self.worth.max()))


@dataclass(frozen=True, slots=True)
class Answer:
    """The optimum of a graph, how many arcs it has, and how long it took to build and to solve."""

    cost: int
    arcs: int
    build: float
    solve: float

    @property
    def seconds(self) -> float:
        return self.build + self.solve


def problem(
    nodes: Sequence[Node],
    free: Mapping[str, Mapping[str, int]],
    wants: Sequence[Choice],
    counts: Sequence[int],
    prefers: Sequence[tuple[Preference, ...]] | None = None,
) -> Problem:
    """What flow's contract says of these asks (`counts` of each want) on these nodes (`free` of each, in units)."""
    resources = sorted({name for want in wants for name in want.resources})
    left = np.array([[free[node.id].get(name, 0) for name in resources] for node in nodes], np.int64)
    total = np.array([[node.capacity.get(name, 0) for name in resources] for node in nodes], np.int64)
    needs = np.array([[want.resources.get(name, 0) for name in resources] for want in wants], np.int64)
    untainted = np.array([not any(taint.effect.refuses for taint in node.taints) for node in nodes])
    matches = _Matches(nodes)
    open_to = np.array([matches.selector(want.selector) for want in wants]) & untainted
    room = np.full(len(nodes), sum(counts), np.int64)
    for index in range(len(resources)):
        open_to &= needs[:, index, None] <= left[:, index]
    for index in range(len(resources)):
        least = np.where(open_to, needs[:, index, None], np.iinfo(np.int64).max).min(axis=0)
        room = np.where(least > 0, np.minimum(room, left[:, index] // np.maximum(least, 1)), room)
    worth = None
    if prefers is not None:
        worth = np.zeros(open_to.shape, np.int64)
        for row, wanted in zip(worth, prefers, strict=True):
            for preference in wanted:
                assert isinstance(preference.want, Selector), "only preferences of nodes are known here"
                row += preference.weight * matches.selector(preference.want)
    return Problem(open_to, np.array(counts, np.int64), _fill(left, total), worth, room)


def _fill(left: Column, total: Column) -> Column:
    """How full machines are and how unevenly, 0 to 1000 in tens. Python's own numbers: bytes times 1000 are large."""
    found = []
    for frees, totals in zip(left.tolist(), total.tolist(), strict=True):
        used = [
            min(max((has - free) * 1000 // has, 0), 1000) for free, has in zip(frees, totals, strict=True) if has > 0
        ]
        fill = (sum(used) // len(used) + max(used) - min(used)) // 2 if used else 0
        found.append(fill - fill % 10)
    return np.array(found, np.int64)


class _Matches:
    """Which of the nodes a selector matches; each requirement is asked of every node once."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self.labels = [node.labels for node in nodes]
        self.known: dict[Requirement, Flags] = {}

    def selector(self, selector: Selector) -> Flags:
        found = np.zeros(len(self.labels), np.bool_)
        for term in selector.terms:
            holds = np.ones(len(self.labels), np.bool_)
            for requirement in term:
                holds &= self._requirement(requirement)
            found |= holds
        return found

    def _requirement(self, requirement: Requirement) -> Flags:
        if requirement not in self.known:
            self.known[requirement] = np.array([requirement.matches(labels) for labels in self.labels])
        return self.known[requirement]


def ungrouped(asked: Problem, levels: int, small: bool = False) -> Answer:
    """Class -> machine -> sink, with one arc of capacity 1 from a machine for each further ask there.

    With `small` costs OR-tools is quicker, and finds the same: without preferences no place costs more than the dearest
    level, so leaving out needs to cost only a little more than that, and all costs are multiples of ten.
    """
    assert not small or asked.worth is None
    while True:
        start = time.process_time()
        classes, machines = np.nonzero(asked.open)
        count, sink = len(asked.counts), asked.open.shape[0] + asked.open.shape[1]
        slots = np.minimum(asked.room, levels)
        at = np.repeat(np.arange(len(slots)), slots)
        nth = np.arange(len(at)) - np.repeat(np.cumsum(slots) - slots, slots) + 1
        own = asked.offset if asked.worth is None else asked.offset - asked.worth[classes, machines]
        tails = np.concatenate([classes, at + count, np.arange(count)])
        heads = np.concatenate([machines + count, np.full(len(at) + count, sink)])
        capacities = np.concatenate([asked.counts[classes], np.ones(len(at), np.int64), asked.counts])
        costs = np.concatenate(
            [np.broadcast_to(own, classes.shape), asked.fill[at] + STEP * nth, np.full(count, LEFT_OUT)]
        )
        supplies = np.zeros(sink + 1, np.int64)
        supplies[:count], supplies[sink] = asked.counts, -asked.counts.sum()
        solved = costs
        if small:
            solved = costs.copy()
            solved[-count:] = asked.offset + int(costs[len(classes) : -count].max(initial=0)) + 10
            solved //= 10
        answer, flows = _solved(tails, heads, capacities, solved, supplies, start, costs)
        taken = np.bincount(at, flows[len(classes) : len(classes) + len(at)], len(slots))
        if not ((taken >= slots) & (asked.room > slots)).any():
            return answer
        levels *= 2


def literal(asked: Problem, levels: int) -> Answer:
    """The seed's graph: a node for each ask, each class, each unit of each machine, and each machine."""
    while True:
        start = time.process_time()
        asks, count = int(asked.counts.sum()), len(asked.counts)
        slots = np.minimum(asked.room, levels)
        at = np.repeat(np.arange(len(slots)), slots)
        nth = np.arange(len(at)) - np.repeat(np.cumsum(slots) - slots, slots) + 1
        classes, units = np.nonzero(asked.open[:, at])
        own = 0 if asked.worth is None else asked.worth[classes, at[units]]
        first_class, first_unit = asks, asks + count
        first_machine = first_unit + len(at)
        unplaced, sink = first_machine + len(slots), first_machine + len(slots) + 1
        of_class = np.repeat(np.arange(count), asked.counts)
        arcs: list[tuple[Column, Column, Column | int, Column | int]] = [
            (np.arange(asks), first_class + of_class, 1, 0),
            (np.arange(asks), np.full(asks, unplaced), 1, LEFT_OUT),
            (
                first_class + classes,
                first_unit + units,
                1,
                asked.offset + asked.fill[at[units]] + STEP * nth[units] - own,
            ),
            (first_unit + np.arange(len(at)), first_machine + at, 1, 0),
            (first_machine + np.arange(len(slots)), np.full(len(slots), sink), slots, 0),
            (np.array([unplaced]), np.array([sink]), asks, 0),
        ]
        tails, heads, capacities, costs = (
            np.concatenate([np.broadcast_to(arc[part], arc[0].shape) for arc in arcs]) for part in range(4)
        )
        supplies = np.zeros(sink + 1, np.int64)
        supplies[:asks], supplies[sink] = 1, -asks
        answer, flows = _solved(tails, heads, capacities, costs, supplies, start, costs)
        taken = flows[-1 - len(slots) : -1]
        if not ((taken >= slots) & (asked.room > slots)).any():
            return answer
        levels *= 2


def _solved(
    tails: Column, heads: Column, capacities: Column, solved: Column, supplies: Column, start: float, costs: Column
) -> tuple[Answer, Column]:
    """Solve by the costs `solved`; what that costs is told in `costs`."""
    graph = SimpleMinCostFlow()
    arcs = graph.add_arcs_with_capacity_and_unit_cost(tails, heads, capacities, solved)
    graph.set_nodes_supplies(np.arange(len(supplies)), supplies)
    built = time.process_time()
    status = graph.solve()
    done = time.process_time()
    assert status == graph.OPTIMAL, f"the reference graph ended as {status}"
    flows: Column = graph.flows(arcs)
    return Answer(int((flows * costs).sum()), len(tails), built - start, done - built), flows
