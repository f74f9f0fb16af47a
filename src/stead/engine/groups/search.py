"""The search for nodes for a group: asks placed together or not at all.

Rule: a group fits if at least its minimum of members can be placed so that no rule refuses any of them once they all
are (members see each other). The other members follow one by one, as they fit. The search places members on the board
itself and undoes what fails. It is deterministic and bounded: hardest member first, best node first, a limited number
of tries.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
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

SKIPPED = -1
"""Instead of a row: this member is left out."""

Strategies = Sequence[tuple[str, Strategy]]
"""Topology keys, each with the strategy for spreading or packing members over its domains."""


class Member(NamedTuple):
    ask: Ask
    shape: Shape

    @property
    def demand(self) -> Demand:
        return self.shape.demands[0]


class Team(NamedTuple):
    """The members of a group to place, at least `needed` of them at once; the other members are already on the rows
    `beside`. `moment` and `turn` are the group's position in the order."""

    group: GroupId
    members: Sequence[Member]
    needed: int
    strategies: Strategies
    beside: Sequence[int]
    moment: float = 0.0
    turn: int = 0


def place_team(board: Board, team: Team) -> bool:
    """Place the members that are needed at once, and as many others as fit; or leave the board as it was. If none is
    needed, at least one must fit."""
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


def count_fitting(board: Board, team: Team) -> int:
    """How many of the members fit now, placed one after the other. The board is unchanged."""
    with board.attempt():
        search = _Search(board, team)
        return search.place_the_rest(next(iter(search.fences()), board.fleet.alive))


class _Search:
    def __init__(self, board: Board, team: Team) -> None:
        self.board, self.team, self.strategies = board, team, team.strategies
        self.rows = list(team.beside)
        members = team.members
        self.placed: list[Member] = []
        self.needed = team.needed
        self.tries = TRIES_MAX + len(members)
        # Members with affinities or spreads may refer to each other, even to a member that is placed later. Then
        # rules about work only influence the order of nodes, and are checked once all members are placed.
        self.relative = any(member.demand.rules.depend_on_work for member in members)
        self.members = self._hardest_first(members)
        # Backtracking cannot help equal members that do not refer to other work.
        self.interchangeable = len({member.shape for member in members}) == 1 and not self.relative

    def run(self) -> bool:
        if not self.members:
            return True
        if not self.needed:
            return self.place_the_rest() > 0
        if len(self.members) < self.needed or not self._could_hold_enough():
            return False
        for fence in self.fences():
            if self.tries > 0 and self._place_needed(fence):
                self.place_the_rest(fence)
                return True
        return False

    def place_the_rest(self, fence: Nodes = -1) -> int:
        """Place as many of the unplaced members as fit, one by one. Returns how many members are placed then."""
        done = {member.ask.id for member in self.placed}
        full: set[Shape] = set()  # what fits nowhere will not fit once others are placed, unless it is relative
        for member in self.members:
            if member.ask.id not in done and member.shape not in full:
                rows = self._rows_to_try(member.demand, self.board.standing(member.demand).candidates() & fence)
                if rows:
                    self._place(member, rows[0])
                elif not self.relative:
                    full.add(member.shape)
        return len(self.placed)

    def place_greedily(self) -> tuple[AskId, Verdict] | None:
        fence = next(iter(self.fences()), self.board.fleet.alive)
        for member in self.members:
            rows = self._rows_to_try(member.demand, fence)
            if not rows:
                sets = refused_sets(self.board, member.demand, self._strict_rules())
                return member.ask.id, verdict(self.board, sets)
            self._place(member, rows[0])
        return None

    def fences(self) -> list[Nodes]:
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
        """Domains of `key` in which enough members have a candidate, those with most candidates first."""
        fleet = self.board.fleet
        if self.rows:
            return [fleet.domain(1 << self.rows[0], key)]
        masks = {member.shape: self._open_to(member.demand) & fence for member in self.members}
        if key == NODE_ID:
            return self._single_nodes(masks)
        count = Counter(member.shape for member in self.members)
        found = []
        for value, entry in sorted(fleet.domains(key).items()):
            nodes = RowSet.nodes(entry)
            if sum(count[shape] for shape, mask in masks.items() if mask & nodes) >= self.needed:
                found.append((-sum((mask & nodes).bit_count() for mask in masks.values()), value, nodes))
        return [nodes for _, _, nodes in sorted(found)]

    def _single_nodes(self, masks: dict[Shape, Nodes]) -> list[Nodes]:
        """Nodes with enough free for the smallest sum of the needs of enough members, best rank first."""
        fleet, spare = self.board.fleet, len(self.members) - self.needed
        open_to = np.zeros(fleet.size, np.int64)
        for shape, times in Counter(member.shape for member in self.members).items():
            open_to += times * as_flags(masks[shape] & fleet.alive, fleet.size)
        fits = open_to >= self.needed
        needs: dict[str, list[int]] = {}
        for member in self.members:
            for resource, need in member.demand.needs:
                needs.setdefault(resource, []).append(need)
        for resource, each in needs.items():
            fits &= fleet.amount(resource).free >= sum(sorted(each)[: max(len(each) - spare, 0)])
        rows = np.flatnonzero(fits)
        equal_needs = Counter(need for member in self.members for need in member.demand.needs)
        for (resource, need), count in equal_needs.items():
            rows = rows[fleet.amount(resource).rooms(rows, need) >= count - spare]
        keys = self.board.standing(self.members[0].demand).keys[rows]
        return [1 << row for row in rows[np.argsort(keys, kind="stable")].tolist()]

    def _place_needed(self, fence: Nodes) -> bool:
        """Place at least the needed members inside the fence; on failure undo everything."""
        if self.interchangeable and not any(strategy.strict for _, strategy in self.strategies):
            return self._place_equals(fence)
        options, taken = [self._options(0, fence)], list[int]()
        while options:
            row = next(options[-1], None)
            if row is None:  # nothing is left for this member, so the one before it must go elsewhere
                options.pop()
            else:
                self.tries -= 1
                if self.tries < 0:
                    return False
                taken.append(row)
                if row != SKIPPED:
                    self._place(self.members[len(taken) - 1], row)
                if len(taken) < len(self.members):
                    options.append(self._options(len(taken), fence))
                    continue
                if not self.relative or self._holds_together():
                    return True
            if taken and taken.pop() != SKIPPED:
                self._step_back()
        return False

    def _options(self, index: int, fence: Nodes) -> Iterator[int]:
        """What to try for members[index], once those before it are placed or skipped."""
        yield from self._rows_to_try(self.members[index].demand, fence)
        if index - len(self.placed) < len(self.members) - self.needed:
            yield SKIPPED

    def _place_equals(self, fence: Nodes) -> bool:
        """The same for members of which each takes the best node."""
        board, first = self.board, self.members[0]
        if not self.strategies and not first.shape.one_by_one:
            rows = board.standing(first.demand).best_many(board.world, len(self.members))
            for member, row in zip(self.members, rows, strict=False):
                self._place(member, row)
        else:
            for member in self.members:
                best = self._rows_to_try(first.demand, fence)[:1]
                if not best:
                    break
                self._place(member, best[0])
        if len(self.placed) >= self.needed:
            return True
        while self.placed:
            self._step_back()
        return False

    def _could_hold_enough(self) -> bool:
        """Whether nodes have enough free for the needed members, each kind of member taken alone."""
        fleet, found = self.board.fleet, 0
        for shape, count in Counter(member.shape for member in self.members).items():
            rows = np.flatnonzero(as_flags(self._open_to(shape.demands[0]), fleet.size))
            rooms = np.full(len(rows), count, np.int64)
            for resource, need in shape.demands[0].needs:
                np.minimum(rooms, fleet.amount(resource).rooms(rows, need), out=rooms)
            found += min(count, int(rooms.sum()))
        return found >= self.needed

    def _place(self, member: Member, row: int) -> None:
        self.board.place(member.ask, member.demand, row, self.team.moment, self.team.turn, self.team.group)
        self.rows.append(row)
        self.placed.append(member)

    def _step_back(self) -> None:
        """Lift the member that was placed last."""
        self.rows.pop()
        self.board.lift(self.placed.pop().ask.id)

    def _open_to(self, demand: Demand) -> Nodes:
        """The nodes that a member may be tried on."""
        if not self.relative:
            return self.board.standing(demand).candidates()
        nodes = allowed(demand.rules.regardless_of_work, self.board.world)
        for resource, need in demand.needs:
            nodes &= from_flags(self.board.fleet.amount(resource).levels(need) != REFUSED)
        return nodes

    def _holds_together(self) -> bool:
        """Whether no rule refuses any member that is placed, now that all of them are."""
        for member in self.placed:
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
