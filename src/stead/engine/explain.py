"""Explanations: the same verdict that decided, as a value, and (through `wording`) as text.

Rule: nothing here looks at a node by itself. Refusals come from the rules that decide, changes from
`changes`, scores from the standing that chose; so an explanation cannot disagree with a decision.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from stead.asks import Ask, AskId, Group
from stead.engine import wording
from stead.engine.amounts import REFUSED
from stead.engine.board import Board
from stead.engine.changes import AddCapacity, AddLabel, Change, FreeUp, Uncordon, all_and_once, smallest_change
from stead.engine.decisions import Refusal
from stead.engine.fleet import Nodes
from stead.engine.groups import GroupRecord, GroupShape, Member, place_group
from stead.engine.reasons import Reason, Reserved, ShortOf, Tainted
from stead.engine.shapes import Demand, Shape
from stead.node import NodeId

RUNNERS_UP_MAX = 3
_MAY_PASS = frozenset({Tainted, ShortOf, Reserved})
"""Reasons that people or time take away without a change of the node itself."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """How one choice stands to the cluster: refusal counts plus candidates are all live nodes."""

    nodes: int
    candidates: int
    refusals: tuple[Refusal, ...]


@dataclass(frozen=True, slots=True)
class Score:
    """What made a node better or worse than another. `load` is in 1/10000 of the node, with the ask on it."""

    node: NodeId
    preference: int
    load: int


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why an ask or group waits, what would let it in, or why it is where it is.

    `verdicts` has one entry per choice; a group has one explanation per member of its first alternative
    instead, and `together` says whether they would fit at the same time. For placed work `chosen` and
    `runners_up` are scores as they would be decided now, with the ask itself taken away.
    """

    id: str
    verdicts: tuple[Verdict, ...] = ()
    change: Change | None = None
    chosen: Score | None = None
    runners_up: tuple[Score, ...] = ()
    members: tuple[Explanation, ...] = ()
    together: bool | None = None
    policy: str = ""

    @property
    def fits(self) -> bool:
        if self.members:
            return bool(self.together)
        return any(verdict.candidates for verdict in self.verdicts)

    @property
    def causes(self) -> frozenset[tuple[int, Reason]]:
        """What refuses it, by choice, without how many nodes: numbers change all the time, causes seldom."""
        found = {(n, each.reason) for n, verdict in enumerate(self.verdicts) for each in verdict.refusals if each.nodes}
        return frozenset(found).union(*(member.causes for member in self.members))

    def __str__(self) -> str:
        return wording.explanation(self)


def refused_sets(board: Board, demand: Demand) -> list[tuple[Reason, Nodes]]:
    """Every reason that refuses a node, with the nodes, in blame order; sets may overlap."""
    found = []
    for rule in demand.rules.in_blame_order:
        for reason, nodes in rule.refusals(board.world):
            if nodes:
                found.append((reason, nodes))
    return found


def verdict(board: Board, sets: Sequence[tuple[Reason, Nodes]]) -> Verdict:
    """Blame each refused node on the first reason, and count for whom each reason is the only one."""
    alive = board.fleet.alive
    refused, once = all_and_once(sets)
    lasting, _ = all_and_once([each for each in sets if type(each[0]) not in _MAY_PASS])
    left, refusals = refused, []
    for reason, nodes in sets:
        blamed = nodes & left
        left ^= blamed
        telling = type(reason) is not Tainted or nodes & lasting != nodes
        refusals.append(Refusal(reason, _size(blamed), _size(nodes & once), telling))
    return Verdict(alive.bit_count(), (alive & ~refused).bit_count(), tuple(refusals))


def _size(nodes: Nodes) -> int:
    """How many nodes there are; quick for none and for one, as there are when each node has a taint of its own."""
    if not nodes:
        return 0
    return nodes.bit_count() if nodes & (nodes - 1) else 1


def telling_refusals(board: Board, shape: Shape) -> tuple[Refusal, ...]:
    """The refusals of the first choice that only has to wait for room, or of the first choice."""
    every = [refused_sets(board, demand) for demand in shape.demands]
    return verdict(board, next((sets for sets in every if _may_come_free(sets)), every[0])).refusals


def telling_group_refusals(board: Board, record: GroupRecord) -> tuple[Refusal, ...]:
    """The refusals of the first member that fits nowhere; none when they only do not fit together."""
    for member in record.missing(board):
        shape = board.shape_of(member)
        if not board.standing(shape.demands[0]).candidates():
            return telling_refusals(board, shape)
    return ()


def _may_come_free(sets: Sequence[tuple[Reason, Nodes]]) -> bool:
    """Whether some node is refused for nothing but what is in use or held now."""
    passing = lasting = 0
    for reason, nodes in sets:
        if isinstance(reason, ShortOf | Reserved):
            passing |= nodes
        else:
            lasting |= nodes
    return bool(passing & ~lasting)


def feasible(board: Board, shape: Shape) -> Nodes:
    """Nodes that some choice is refused on for nothing but what is in use or held now, or not at all."""
    found = 0
    for demand in shape.demands:
        lasting = 0
        for reason, nodes in refused_sets(board, demand):
            if not isinstance(reason, ShortOf | Reserved):
                lasting |= nodes
        found |= board.fleet.alive & ~lasting
    return found


def explain_waiting(board: Board, ask: Ask) -> Explanation:
    shape = board.shape_of(ask)
    sets = [refused_sets(board, demand) for demand in shape.demands]
    verdicts = tuple(verdict(board, found) for found in sets)
    if any(found.candidates for found in verdicts):
        return Explanation(ask.id, verdicts, policy=ask.policy)
    return Explanation(ask.id, verdicts, smallest_change(board, ask, sets), policy=ask.policy)


def explain_placed(board: Board, id: AskId) -> Explanation:
    """Why this node: decided again on a fork without the ask, the scores of its node and of the runners-up."""
    twin = board.fork(lasting=False)
    placement = twin.lift(id)
    shape = twin.shape_of(placement.ask)
    demand = shape.demands[placement.choice]
    standing = twin.standing(demand)
    order = np.argsort(standing.keys, kind="stable")[: RUNNERS_UP_MAX + 1].tolist()
    rows = [row for row in order if row != placement.row and standing.keys.item(row) != REFUSED]
    verdicts = tuple(verdict(twin, refused_sets(twin, each)) for each in shape.demands)

    def score(row: int) -> Score:
        return Score(twin.node_id(row), *standing.score(twin.fleet, row))

    runners_up = tuple(score(row) for row in rows[:RUNNERS_UP_MAX])
    return Explanation(id, verdicts, chosen=score(placement.row), runners_up=runners_up, policy=placement.ask.policy)


def explain_group(board: Board, group: Group, alternative: int | None) -> Explanation:
    """Each member of the alternative taken (or of the first) by itself, and whether all of them fit at once;
    while none is taken, the group fits if any of its alternatives does."""
    alternatives = range(len(group.alternatives)) if alternative is None else (alternative,)
    together = any(_fits_together(board.fork(), group, index) for index in alternatives)
    by_shape: dict[Shape, Explanation] = {}
    explanations = []
    for ask in group.alternatives[alternative or 0]:
        if ask.id not in board.work.placements.map:
            shape = board.shape_of(ask)
            if shape not in by_shape:
                by_shape[shape] = explain_waiting(board, ask)
            same = by_shape[shape]
            explanations.append(Explanation(ask.id, same.verdicts, same.change, policy=same.policy))
    if len(explanations) > 1:
        explanations = [replace(each, change=_of_the_ask(each.change)) for each in explanations]
    return Explanation(group.id, members=tuple(explanations), together=together, policy=group.strategy)


def _of_the_ask(change: Change | None) -> Change | None:
    """A change of one node lets one member in; only a change of what is asked can let in several."""
    on_nodes = (FreeUp, AddCapacity, AddLabel, Uncordon)
    return None if change is None or any(isinstance(edit, on_nodes) for edit in change.edits) else change


def _fits_together(twin: Board, group: Group, alternative: int) -> bool:
    """Whether the members that are not placed find places beside the others; on a fork."""
    placed = twin.work.placements.map
    members = group.alternatives[alternative]
    missing = [Member(ask, twin.shape_of(ask)) for ask in members if ask.id not in placed]
    beside = [placed[ask.id].row for ask in members if ask.id in placed]
    return place_group(twin, group.id, missing, GroupShape(group, twin).strategies, beside)
