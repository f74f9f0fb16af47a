"""Groups: asks placed together or not at all.

Rule: a group fits where, with all its members in place, no rule refuses any of them (members see each
other). It is tried on the board itself, member by member, and what does not work out is taken back
completely. The search is deterministic and bounded: hardest member first, best node first, a limited
number of tries.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from stead.asks import Ask, AskId, Group, GroupId, PolicyName, Strategy
from stead.engine.amounts import REFUSED
from stead.engine.board import Board
from stead.engine.fleet import Column, Nodes, RowSet, as_flags, from_flags
from stead.engine.rules import World, allowed
from stead.engine.shapes import Demand, Shape
from stead.engine.sharing import Sheet
from stead.labelling import NODE_ID

TRIES_MAX = 2000
GROUP_SHAPES_MAX = 1024
NODES_TRIED_MAX = 32
"""How many of the best nodes are tried for one member before the search turns back."""


class Member(NamedTuple):
    ask: Ask
    shape: Shape

    @property
    def demand(self) -> Demand:
        return self.shape.demands[0]


class GroupShape:
    """What equal groups share. A group of which something is placed or over waits with a shape of its own, made of
    what it lacks (`GroupRecord.lacking`): what could take the rest again says nothing about it."""

    __slots__ = ("alternatives", "batch", "is_whole", "policy", "strategies")

    def __init__(self, group: Group, board: Board, lacking: Sequence[Sequence[Ask]] | None = None) -> None:
        self.strategies: tuple[tuple[str, Strategy], ...] = (*group.topology, (NODE_ID, group.strategy))
        self.alternatives: tuple[tuple[Shape, ...], ...] = tuple(
            tuple(board.shape_of(member) for member in members)
            for members in (group.alternatives if lacking is None else lacking)
        )
        self.is_whole = lacking is None
        policies = {shape.batch for shape in self.alternatives[0]}
        self.policy = group.alternatives[0][0].policy
        self.batch: PolicyName | None = None
        """The policy by which all of it is a gang among other work of a batch; strict groups need a search."""
        if len(policies) == 1 and lacking is None and not any(strategy.strict for _, strategy in self.strategies):
            self.batch = next(iter(policies))

    def hopes(self, board: Board) -> Nodes:
        """The nodes where more room could help some member; none if no alternative could do with more room."""
        found = 0
        for shapes in self.alternatives:
            each = [self._could_hold(board, shape) for shape in dict.fromkeys(shapes)]
            if all(each):
                for nodes in each:
                    found |= nodes
        return found

    @staticmethod
    def _could_hold(board: Board, shape: Shape) -> Nodes:
        rules = shape.demands[0].rules
        return allowed((*rules.regardless_of_work, rules.could_fit), World(board.fleet, board.work))

    def columns(self, board: Board) -> list[Column]:
        """Everything that could let a group of this shape in."""
        found: dict[Column, None] = {("label", key): None for key, _ in self.strategies}
        for shape in dict.fromkeys(shape for shapes in self.alternatives for shape in shapes):
            demand = shape.demands[0]
            found.update(dict.fromkeys(demand.reads(board.work)))
            for resource, _ in demand.needs:
                found[("free", resource)] = found[("total", resource)] = None
        return list(found)


class GroupRecord(NamedTuple):
    """A known group. `alternative` is the one that is (or was) placed, None while all of it waits; members
    in `ended` are over and are not placed again."""

    group: Group
    moment: float
    turn: int
    alternative: int | None
    ended: frozenset[AskId]

    def missing(self, board: Board) -> list[Ask]:
        """Members of the alternative taken (or of the first) that have to be placed."""
        placed = board.work.placements.map
        members = self.group.alternatives[self.alternative or 0]
        return [member for member in members if member.id not in placed and member.id not in self.ended]

    def open(self) -> list[GroupRecord]:
        """The record with the alternative taken, or, while there is none, with each of them in turn."""
        if self.alternative is not None:
            return [self]
        return [self._replace(alternative=index) for index in range(len(self.group.alternatives))]

    def lacking(self, board: Board) -> list[list[Ask]]:
        """The members that have to be placed, of each alternative that is open."""
        return [each.missing(board) for each in self.open()]

    def rows(self, board: Board) -> list[int]:
        """Where members of that alternative are already."""
        placed = board.work.placements.map
        members = self.group.alternatives[self.alternative or 0]
        return [placed[member.id].row for member in members if member.id in placed]


class Groups:
    """All known groups, their members, and their shapes."""

    def __init__(self) -> None:
        self.records: Sheet[GroupId, GroupRecord] = Sheet()
        self.of_member: Sheet[AskId, GroupId] = Sheet()
        self._shapes: Sheet[tuple[Any, ...], GroupShape] = Sheet()

    def fork(self) -> Groups:
        twin = Groups()
        twin.records, twin.of_member = self.records.fork(), self.of_member.fork()
        twin._shapes = self._shapes.fork()
        return twin

    def __contains__(self, id: str) -> bool:
        return id in self.records.map

    def add(self, group: Group, moment: float, turn: int) -> GroupRecord:
        record = GroupRecord(group, moment, turn, None, frozenset())
        self.records.write()[group.id] = record
        self.of_member.write().update({member.id: group.id for member in group.all_members})
        return record

    def remove(self, id: GroupId) -> GroupRecord:
        record = self.records.write().pop(id)
        for member in record.group.all_members:
            del self.of_member.write()[member.id]
        return record

    def update(self, record: GroupRecord) -> GroupRecord:
        self.records.write()[record.group.id] = record
        return record

    def shape_of(self, group: Group, board: Board) -> GroupShape:
        """The one shape of all equal groups that have not been placed yet."""
        key = group.shape_key
        shape = self._shapes.map.get(key)
        if shape is None:
            if len(self._shapes.map) > GROUP_SHAPES_MAX:
                self._shapes = Sheet()
            shape = self._shapes.write()[key] = GroupShape(group, board)
        return shape

    def is_shared(self, group: Group, shape: GroupShape) -> bool:
        """Whether the next group that equals this one will wait with this shape."""
        return self._shapes.map.get(group.shape_key) is shape

    def share(self, group: Group, shape: GroupShape) -> None:
        self._shapes.write()[group.shape_key] = shape

    def restore(self, records: Iterable[GroupRecord]) -> None:
        for record in records:
            self.add(record.group, record.moment, record.turn)
            self.update(record)

    def member(self, id: AskId) -> Ask:
        group = self.records.map[self.of_member.map[id]].group
        return next(member for member in group.all_members if member.id == id)


def place_missing(board: Board, shape: GroupShape, record: GroupRecord) -> GroupRecord | None:
    """Place what the group lacks: of the alternative it has, or of the first alternative that works. The
    record with that alternative, or None and the board as it was."""
    for tried in record.open():
        members = [Member(ask, board.shape_of(ask)) for ask in tried.missing(board)]
        order = (record.moment, record.turn)
        if place_group(board, record.group.id, members, shape.strategies, tried.rows(board), *order):
            return tried
    return None


def place_group(
    board: Board,
    group: GroupId,
    members: Sequence[Member],
    strategies: Sequence[tuple[str, Strategy]],
    beside: Sequence[int],
    moment: float = 0.0,
    turn: int = 0,
) -> bool:
    """Place all members, or leave the board as it was. `beside`: rows of members that are placed already;
    `moment` and `turn`: the group's place in the order."""
    board_news = len(board.fleet.news)
    done = _GroupSearch(board, group, members, strategies, beside, moment, turn).run()
    if not done:
        # A try that was taken back has changed nothing, so it is no news to anybody.
        del board.fleet.news[board_news:]
    return done


class _GroupSearch:
    def __init__(
        self,
        board: Board,
        group: GroupId,
        members: Sequence[Member],
        strategies: Sequence[tuple[str, Strategy]],
        beside: Sequence[int],
        moment: float,
        turn: int,
    ) -> None:
        self.board, self.group, self.strategies = board, group, strategies
        self.moment, self.turn = moment, turn
        self.rows = list(beside)
        self.tries = TRIES_MAX + len(members)
        # Members that look at other work may look at each other: near a member that comes later, say. Then
        # rules about work are judged when all are in place, and only steer the order of nodes until then.
        self.relative = any(member.shape.one_by_one for member in members)
        self.members = self._hardest_first(members)
        # Equal members that do not look at each other never gain from turning back.
        self.interchangeable = len({member.shape for member in members}) == 1 and not members[0].shape.one_by_one

    def run(self) -> bool:
        if not self.members:
            return True
        fences = [self.board.fleet.alive]
        for key, strategy in self.strategies:
            if strategy is Strategy.STRICT_PACK:
                fences = [fence & domain for fence in fences for domain in self._common_domains(fence, key)]
        return any(self.tries > 0 and self._place_from(0, fence) for fence in fences)

    def _hardest_first(self, members: Sequence[Member]) -> list[Member]:
        """Fewest candidates first, then the largest: they have the least choice later."""
        candidates: dict[Shape, int] = {}
        for member in members:
            if member.shape not in candidates:
                candidates[member.shape] = self._open_to(member.demand).bit_count()
        size = {shape: sum(need for _, need in shape.demands[0].needs) for shape in candidates}
        first = {shape: index for index, shape in enumerate(candidates)}
        return sorted(members, key=lambda m: (candidates[m.shape], -size[m.shape], first[m.shape]))

    def _common_domains(self, fence: Nodes, key: str) -> list[Nodes]:
        """Domains of `key` in which every member has a candidate, the roomiest first."""
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
        """Nodes that could hold all members at once by the sum of what they need, best key first."""
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
        """Place members[index:] inside the fence; on failure nothing of it stays."""
        if index == len(self.members):
            return not self.relative or self._holds_together()
        member = self.members[index]
        for row in self._rows_to_try(member.demand, fence):
            self.tries -= 1
            if self.tries < 0:
                return False
            self.board.place(member.ask, member.demand, row, self.moment, self.turn, self.group)
            self.rows.append(row)
            if self._place_from(index + 1, fence):
                return True
            self.rows.pop()
            self.board.lift(member.ask.id)
            if self.interchangeable and not any(strategy.strict for _, strategy in self.strategies):
                return False
        return False

    def _open_to(self, demand: Demand) -> Nodes:
        """The nodes that a member may be tried on."""
        if not self.relative:
            return self.board.standing(demand).candidates()
        nodes = allowed(demand.rules.regardless_of_work, self.board.world)
        for resource, need in demand.needs:
            nodes &= from_flags(self.board.fleet.amount(resource).levels(need) != REFUSED)
        return nodes

    def _holds_together(self) -> bool:
        """Whether no rule refuses any member, now that all of them are in place."""
        for member in self.members:
            placement = self.board.lift(member.ask.id)
            holds = self.board.standing(member.demand).nodes >> placement.row & 1
            self.board.place(member.ask, member.demand, placement.row, self.moment, self.turn, self.group)
            if not holds:
                return False
        return True

    def _rows_to_try(self, demand: Demand, fence: Nodes) -> list[int]:
        """Candidates inside the fence, in the order in which the strategies and the policy like them."""
        board, fleet = self.board, self.board.fleet
        standing = board.standing(demand)
        nodes = self._open_to(demand) & fence
        liked: list[tuple[Nodes, bool]] = []
        for key, strategy in self.strategies:
            used = 0
            for row in self.rows:
                used |= 1 << row
            domain = fleet.domain(used, key)
            if strategy is Strategy.STRICT_SPREAD:
                nodes &= fleet.with_key.map.get(key, 0) & ~domain
            elif strategy is Strategy.STRICT_PACK:
                nodes &= domain if self.rows else fleet.with_key.map.get(key, 0)
            elif self.rows:
                liked.append((domain, strategy is Strategy.PACK))
        rows = np.flatnonzero(as_flags(nodes, fleet.size))
        rank = np.zeros(len(rows), np.int64)
        for domain, wanted in liked:
            rank = rank * 2 + (as_flags(domain, fleet.size)[rows] != wanted)
        order = np.lexsort((rows, standing.keys[rows], rank))
        tried: list[int] = rows[order][:NODES_TRIED_MAX].tolist()
        return tried
