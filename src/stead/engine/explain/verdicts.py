"""Verdicts: which nodes would take an ask, and why the others refuse it.

Rule: all refusals come from `rules`; nothing here decides about a node. Decisions and explanations take their reasons
from here, so they cannot disagree.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from stead.engine.board import Board
from stead.engine.decisions import Refusal, Verdict
from stead.engine.fleet import Nodes
from stead.engine.reasons import Reason, Reserved, ShortOf
from stead.engine.rules import Rule
from stead.engine.shapes import Demand, Shape

DECISION_REASONS_MAX = 16
"""The maximum number of reasons per choice in a decision. There can be as many as nodes if each has its own taint."""

Sets = Sequence[tuple[Reason, Nodes]]
"""Every reason with the nodes it refuses, in blame order; the sets may overlap."""


def refused_sets(board: Board, demand: Demand, more: Iterable[Rule] = ()) -> list[tuple[Reason, Nodes]]:
    """The reasons that refuse a demand; `more` are rules in addition to its own."""
    found = []
    for rule in demand.rules.in_blame_order(more):
        for reason, nodes in rule.refusals(board.world):
            if nodes:
                found.append((reason, nodes))
    return found


def verdict(board: Board, sets: Sets) -> Verdict:
    """Count each refused node under its first reason, and count the nodes for which a reason is the only one."""
    alive = board.fleet.alive
    refused, once = all_and_once(sets)
    left, refusals = refused, []
    for reason, nodes in sets:
        blamed = nodes & left
        left ^= blamed
        refusals.append(Refusal(reason, _size(blamed), _size(nodes & once)))
    candidates = (alive & ~refused).bit_count()
    return Verdict(alive.bit_count(), candidates, tuple(refusals), feasible_of(board, sets).bit_count())


def short_verdicts(board: Board, shape: Shape) -> tuple[Verdict, ...]:
    """The verdict of each choice, with a limited number of reasons."""
    return tuple(verdict(board, refused_sets(board, each)).leading(DECISION_REASONS_MAX) for each in shape.demands)


def all_and_once(sets: Sets) -> tuple[Nodes, Nodes]:
    """The nodes with at least one reason, and the nodes with exactly one."""
    seen = twice = 0
    for _, nodes in sets:
        twice |= seen & nodes
        seen |= nodes
    return seen, seen & ~twice


def feasible_of(board: Board, sets: Sets) -> Nodes:
    """The nodes that would take it if nothing were in use or reserved there."""
    lasting = 0
    for reason, nodes in sets:
        if not isinstance(reason, ShortOf | Reserved):
            lasting |= nodes
    return board.fleet.alive & ~lasting


def feasible(board: Board, shape: Shape) -> Nodes:
    """The same for any of the choices."""
    found = 0
    for demand in shape.demands:
        found |= feasible_of(board, refused_sets(board, demand))
    return found


def _size(nodes: Nodes) -> int:
    """The number of nodes; fast for zero and one, which is common if each node has its own taint."""
    if not nodes:
        return 0
    return nodes.bit_count() if nodes & (nodes - 1) else 1
