"""The search for nodes for a group: asks placed together or not at all.

Rule: a group fits if no rule refuses any member once all members are placed (members see each other). The search places
members one by one on the board itself and undoes what fails. It is deterministic and bounded: hardest member first,
best node first, a limited number of tries.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from stead.engine.board import Board
from stead.engine.columns.amounts import REFUSED
from stead.engine.decisions import Verdict
from stead.engine.explain.verdicts import refused_sets, verdict
from stead.engine.fleet import Nodes, RowSet, as_flags, from_flags
from stead.engine.rules import KeepsStrategy, allowed
from stead.engine.shapes import Demand, Shape
from stead.language.asks import Ask, AskId, GroupId, Strategy
from stead.language.labels import NODE_ID

TRIES_MAX = 2000
NODES_TRIED_MAX = 32
"""How many of the best nodes are tried for one member before the search backtracks."""

Strategies = Sequence[tuple[str, Strategy]]
"""Topology keys, each with the strategy for spreading or packing members over its domains."""


class Member(NamedTuple):
    ask: Ask
    shape: Shape

    @property
    def demand(self) -> Demand:
        return self.shape.demands[0]


class Team(NamedTuple):
    """The members of a group to place; the other members are already on the rows `beside`. `moment` and `turn` are the
    group's position in the order."""

    group: GroupId
    members: Sequence[Member]
    strategies: Strategies
    beside: Sequence[int]
    moment: float = 0.0
    turn: int = 0


def place_team(board: Board, team: Team) -> bool:
    """Place all members, or leave the board as it was."""
    with board.attempt() as tried:
        if _Search(board, team).run():
            tried.keep()
            return True
    return False


def first_without_place(board: Board, team: Team) -> tuple[AskId, Verdict] | None:
    """Place each member on its best node, and return the first that then fits no node, with the reasons. None if all
    fit: then only the affinities between members fail. The board is unchanged."""
    with board.attempt():
        return _Search(board, team).place_greedily()


class _Search:
    def __init__(self, board: Board, team: Team) -> None:
        self.board, self.team, self.strategies = board, team, team.strategies
        self.rows = list(team.beside)
        members = team.members
        self.tries = TRIES_MAX + len(members)
        # Members with affinities or spreads may refer to each other, even to a member that is placed later. Then
        # rules about work only influence the order of nodes, and are checked once all members are placed.
        self.relative = any(member.shape.one_by_one for member in members)
        self.members = self._hardest_first(members)
        # Backtracking cannot help equal members that do not refer to other work.
        self.interchangeable = len({member.shape for member in members}) == 1 and not members[0].shape.one_by_one

    def run(self) -> bool:
        if not self.members:
            return True
        return any(self.tries > 0 and self._place_from(0, fence) for fence in self._fences())

    def place_greedily(self) -> tuple[AskId, Verdict] | None:
        fence = next(iter(self._fences()), self.board.fleet.alive)
        for member in self.members:
            rows = self._rows_to_try(member.demand, fence)
            if not rows:
                sets = refused_sets(self.board, member.demand, self._strict_rules())
                return member.ask.id, verdict(self.board, sets)
            self._place(member, rows[0])
        return None

    def _fences(self) -> list[Nodes]:
        """Sets of nodes to try; with strict packing, all members must be inside one of them."""
        fences = [self.board.fleet.alive]
        for key, strategy in self.strategies:
            if strategy is Strategy.STRICT_PACK:
                fences = [fence & domain for fence in fences for domain in self._common_domains(fence, key)]
        return fences

    def _hardest_first(self, members: Sequence[Member]) -> list[Member]:
        """Fewest candidates first, then the largest members: they have the fewest options later."""
        candidates: dict[Shape, int] = {}
        for member in members:
            if member.shape not in candidates:
                candidates[member.shape] = self._open_to(member.demand).bit_count()
        size = {shape: sum(need for _, need in shape.demands[0].needs) for shape in candidates}
        first = {shape: index for index, shape in enumerate(candidates)}
        return sorted(members, key=lambda m: (candidates[m.shape], -size[m.shape], first[m.shape]))

    def _common_domains(self, fence: Nodes, key: str) -> list[Nodes]:
        """Domains of `key` in which every member has a candidate, those with most candidates first."""
        fleet = self.board.fleet
        if self.rows:
            return [fleet.domain(1 << self.rows[0], key)]
        masks = {member.shape: self._open_to(member.demand) & fence for member in self.members}
        if key == NODE_ID:
            return self._single_nodes(masks)
        found = []
        for value, entry in sorted(fleet.domains(key).items()):
            nodes = RowSet.nodes(entry)
            if all(mask & nodes for mask in masks.values()):
                found.append((-sum((mask & nodes).bit_count() for mask in masks.values()), value, nodes))
        return [nodes for _, _, nodes in sorted(found)]

    def _single_nodes(self, masks: dict[Shape, Nodes]) -> list[Nodes]:
        """Nodes with enough free for the sum of all members' needs, best rank first."""
        fleet = self.board.fleet
        common = -1
        for mask in masks.values():
            common &= mask
        fits = as_flags(common & fleet.alive, fleet.size).copy()
        sums: dict[str, int] = {}
        for member in self.members:
            for resource, need in member.demand.needs:
                sums[resource] = sums.get(resource, 0) + need
        for resource, need in sums.items():
            fits &= fleet.amount(resource).free >= need
        rows = np.flatnonzero(fits)
        equal_needs = Counter(need for member in self.members for need in member.demand.needs)
        for (resource, need), count in equal_needs.items():
            rows = rows[fleet.amount(resource).rooms(rows, need) >= count]
        keys = self.board.standing(self.members[0].demand).keys[rows]
        return [1 << row for row in rows[np.argsort(keys, kind="stable")].tolist()]

    def _place_from(self, index: int, fence: Nodes) -> bool:
        """Place members[index:] inside the fence; on failure undo everything."""
        if index == len(self.members):
            return not self.relative or self._holds_together()
        member = self.members[index]
        for row in self._rows_to_try(member.demand, fence):
            self.tries -= 1
            if self.tries < 0:
                return False
            self._place(member, row)
            if self._place_from(index + 1, fence):
                return True
            self.rows.pop()
            self.board.lift(member.ask.id)
            if self.interchangeable and not any(strategy.strict for _, strategy in self.strategies):
                return False
        return False

    def _place(self, member: Member, row: int) -> None:
        self.board.place(member.ask, member.demand, row, self.team.moment, self.team.turn, self.team.group)
        self.rows.append(row)

    def _open_to(self, demand: Demand) -> Nodes:
        """The nodes that a member may be tried on."""
        if not self.relative:
            return self.board.standing(demand).candidates()
        nodes = allowed(demand.rules.regardless_of_work, self.board.world)
        for resource, need in demand.needs:
            nodes &= from_flags(self.board.fleet.amount(resource).levels(need) != REFUSED)
        return nodes

    def _holds_together(self) -> bool:
        """Whether no rule refuses any member, now that all are placed."""
        for member in self.members:
            with self.board.attempt():
                row = self.board.lift(member.ask.id).row
                holds = self.board.standing(member.demand).nodes >> row & 1
            if not holds:
                return False
        return True

    def _rows_to_try(self, demand: Demand, fence: Nodes) -> list[int]:
        """Candidates inside the fence, ordered by the strategies, then by the policy."""
        board, fleet = self.board, self.board.fleet
        standing = board.standing(demand)
        nodes = self._open_to(demand) & fence & allowed(self._strict_rules(), board.world)
        preferred = [
            (fleet.domain(self._used(), key), strategy is Strategy.PACK)
            for key, strategy in self.strategies
            if self.rows and not strategy.strict
        ]
        rows = np.flatnonzero(as_flags(nodes, fleet.size))
        rank = np.zeros(len(rows), np.int64)
        for domain, wanted in preferred:
            rank = rank * 2 + (as_flags(domain, fleet.size)[rows] != wanted)
        order = np.lexsort((rows, standing.keys[rows], rank))
        tried: list[int] = rows[order][:NODES_TRIED_MAX].tolist()
        return tried

    def _used(self) -> Nodes:
        used = 0
        for row in self.rows:
            used |= 1 << row
        return used

    def _strict_rules(self) -> tuple[KeepsStrategy, ...]:
        used = self._used()
        return tuple(KeepsStrategy(key, strategy, used) for key, strategy in self.strategies if strategy.strict)
