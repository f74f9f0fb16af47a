"""Groups: asks placed together or not at all, from their submission to their end.

Rule: a group is queued as one item. Once a member is placed, the group keeps the alternative it took and is pending
only for its unplaced members, until it has lost all of them. As many of these as its minimum lacks are placed at once;
if it lacks none, they are placed one by one. Ended members count as placed, and are not placed again. `search` finds
the nodes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from stead.engine.board import Board
from stead.engine.columns.change_log import Column
from stead.engine.columns.sharing import Sheet
from stead.engine.decisions import Verdict
from stead.engine.explain.verdicts import DECISION_REASONS_MAX, short_verdicts
from stead.engine.fleet import Nodes
from stead.engine.groups.search import Member, Team, first_without_place, place_team
from stead.engine.rules import Hold, World, allowed
from stead.engine.shapes import Shape
from stead.engine.timing.timers import Timeout, Timers
from stead.engine.waiting import Line, Lines
from stead.engine.work import Placement
from stead.language.asks import Ask, AskId, Group, GroupId, PolicyName, Strategy
from stead.language.labels import NODE_ID

GROUP_SHAPES_MAX = 1024


class GroupShape:
    """What equal groups share. A group with placed or ended members gets its own shape, made of the members it lacks
    (`rest`): whether whole groups fit says nothing about it. `needed` is how many members must be placed at once, for
    each alternative."""

    __slots__ = ("alternatives", "batch", "is_whole", "needed", "policy", "strategies")

    def __init__(self, group: Group, board: Board, rest: GroupRecord | None = None) -> None:
        self.strategies = strategies_of(group)
        self.alternatives: tuple[tuple[Shape, ...], ...] = tuple(
            tuple(board.shape_of(member) for member in members)
            for members in (group.alternatives if rest is None else [each.missing(board) for each in rest.open()])
        )
        self.is_whole = rest is None
        if rest is None:
            self.needed = tuple(map(group.least, range(len(group.alternatives))))
        else:
            self.needed = tuple(each.needed(board) for each in rest.open())
        policies = {shape.batch for shape in self.alternatives[0]}
        self.policy = group.alternatives[0][0].policy
        self.batch: PolicyName | None = None
        """The policy whose batches take this group as a gang; None for strict groups, which need a search, and for
        groups with too few members."""
        is_searched = any(strategy.strict for _, strategy in self.strategies)
        if len(policies) == 1 and rest is None and not is_searched and self.needed[0] <= len(self.alternatives[0]):
            self.batch = next(iter(policies))

    def hopes(self, board: Board) -> Nodes:
        """The nodes where more free resources could help a member; none if free resources alone cannot help."""
        found = 0
        for shapes, needed in zip(self.alternatives, self.needed, strict=True):
            each = {shape: self._could_hold(board, shape) for shape in shapes}
            if sum(bool(each[shape]) for shape in shapes) >= needed:
                for nodes in each.values():
                    found |= nodes
        return found

    @staticmethod
    def _could_hold(board: Board, shape: Shape) -> Nodes:
        rules = shape.demands[0].rules
        return allowed((*rules.regardless_of_work, rules.could_fit), World(board.fleet, board.work))

    def columns(self, board: Board) -> list[Column]:
        """Every column whose change could make a group of this shape fit."""
        found: dict[Column, None] = {Column("label", key): None for key, _ in self.strategies}
        for shape in dict.fromkeys(shape for shapes in self.alternatives for shape in shapes):
            demand = shape.demands[0]
            found.update(dict.fromkeys(demand.reads(board.work)))
            for resource, _ in demand.needs:
                found[Column("free", resource)] = found[Column("total", resource)] = None
        return list(found)


class GroupRecord(NamedTuple):
    """A known group. `alternative` is the one that is (or was) placed, None while the whole group is pending. Members
    in `ended` are not placed again."""

    group: Group
    moment: float
    turn: int
    alternative: int | None
    ended: frozenset[AskId]

    def missing(self, board: Board) -> list[Ask]:
        """Members of the alternative taken (or of the first) that must be placed."""
        there = self.there(board)
        return [member for member in self.group.alternatives[self.alternative or 0] if member.id not in there]

    def there(self, board: Board) -> frozenset[AskId]:
        """The members of that alternative that count as placed: they are, or they have ended."""
        placed = board.work.placements.map
        ids = [member.id for member in self.group.alternatives[self.alternative or 0]]
        return frozenset(id for id in ids if id in placed or id in self.ended)

    def open(self) -> list[GroupRecord]:
        """The record with the alternative taken; if none is taken yet, one record per alternative."""
        if self.alternative is not None:
            return [self]
        return [self._replace(alternative=index) for index in range(len(self.group.alternatives))]

    def needed(self, board: Board) -> int:
        """How many of them must be placed at once: as many as the minimum lacks."""
        alternative = self.alternative or 0
        return max(0, self.group.least(alternative) - len(self.there(board)))

    def is_below_minimum(self, board: Board) -> bool:
        """Whether it holds places although fewer members than its minimum are placed."""
        return bool(self.rows(board)) and self.needed(board) > 0

    def rows(self, board: Board) -> list[int]:
        """The rows of that alternative's members that are already placed."""
        placed = board.work.placements.map
        members = self.group.alternatives[self.alternative or 0]
        return [placed[member.id].row for member in members if member.id in placed]

    def team(self, board: Board) -> Team:
        """The members of that alternative that must be placed, and the rows of the others."""
        members = [Member(ask, board.shape_of(ask)) for ask in self.missing(board)]
        strategies, rows = strategies_of(self.group), self.rows(board)
        return Team(self.group.id, members, self.needed(board), strategies, rows, self.moment, self.turn)

    @property
    def member_ids(self) -> frozenset[AskId]:
        return frozenset(member.id for member in self.group.all_members)


def strategies_of(group: Group) -> tuple[tuple[str, Strategy], ...]:
    """What its members keep to, by label key; `Strategy.ANY` is nothing to keep to."""
    return tuple(each for each in (*group.topology, (NODE_ID, group.strategy)) if each[1] is not Strategy.ANY)


class WhyNot(NamedTuple):
    """Why work is pending, as in `decisions.Waiting`."""

    member: AskId = ""
    verdicts: tuple[Verdict, ...] = ()
    more_members: int = 0


class Groups:
    """All known groups, their members, and their shapes."""

    def __init__(self, board: Board, waiting: Lines, timers: Timers) -> None:
        self._board, self._waiting, self._timers = board, waiting, timers
        self.records: Sheet[GroupId, GroupRecord] = Sheet()
        self.of_member: Sheet[AskId, GroupId] = Sheet()
        self._shapes: Sheet[tuple[Any, ...], GroupShape] = Sheet()

    def fork(self, board: Board, waiting: Lines, timers: Timers) -> Groups:
        twin = Groups(board, waiting, timers)
        twin.records, twin.of_member = self.records.fork(), self.of_member.fork()
        twin._shapes = self._shapes.fork()
        return twin

    def __contains__(self, id: str) -> bool:
        return id in self.records.map

    def record(self, id: GroupId) -> GroupRecord:
        return self.records.map[id]

    def member(self, id: AskId) -> Ask:
        group = self.records.map[self.of_member.map[id]].group
        return next(member for member in group.all_members if member.id == id)

    # -- what happens to groups

    def submitted(self, group: Group, now: float) -> Line:
        """Register the group. Returns the line it is pending in."""
        shape = self.shape_of(group)
        turn = self._waiting.turn_of(shape, group.priority, now) or self._board.next_turn()
        self._add(GroupRecord(group, now, turn, None, frozenset()))
        self._board.work.note_known(self._board.fleet, group.all_members)
        return Line(shape, group.priority, now, turn, now)

    def ended(self, id: GroupId) -> list[AskId]:
        """Remove the group. Returns its placed members, for the caller to lift."""
        if id in self._waiting:
            self._waiting.remove(id)
        self._timers.timeouts.drop_all(id)
        record = self.records.write().pop(id)
        for member in record.group.all_members:
            self.of_member.write().pop(member.id, None)
        placed = self._board.work.placements.map
        return [member.id for member in record.group.all_members if member.id in placed]

    def change(self, group: Group, now: float) -> None:
        """The group is now this, and is pending for the members that are not on the board."""
        if group.id not in self:
            self.submitted(group, now)
        before, ids = self.records.map[group.id], {member.id for member in group.all_members}
        shape = self.shape_of(group)
        turn = self._waiting.turn_of(shape, group.priority, before.moment) or before.turn
        for member in before.group.all_members:
            if member.id not in ids and self.of_member.map.get(member.id) == group.id:
                del self.of_member.write()[member.id]
        record = before._replace(group=group, turn=turn, ended=before.ended & ids)
        record = record._replace(alternative=self._taken(record, before))
        record = self._complete(record) or record
        self._add(record)
        known = [member for member in group.all_members if member.id not in record.ended]
        self._board.work.note_known(self._board.fleet, known)
        self._watch_minimum(record, now)
        if record.missing(self._board):
            is_whole = record.alternative is None and not record.ended
            self._queue(record, shape if is_whole else GroupShape(group, self._board, record), now)
        elif group.id in self._waiting:
            self._waiting.remove(group.id)

    def member_ended(self, id: AskId, now: float) -> None:
        """A member ended; the group continues without it."""
        record = self.records.map[self.of_member.map[id]]
        self._wait_for_the_rest(self._update(record._replace(ended=record.ended | {id})), now)

    def member_runs(self, id: AskId, now: float) -> None:
        """The cluster runs a member: its alternative is taken, and may now be complete."""
        record = self.records.map[self.of_member.map[id]]
        if record.alternative is None:
            taken = next(i for i, ms in enumerate(record.group.alternatives) if id in {m.id for m in ms})
            record = self._update(record._replace(alternative=taken))
        if id in record.ended:
            record = self._update(record._replace(ended=record.ended - {id}))
        self._wait_for_the_rest(record, now)

    def member_lost(self, id: GroupId, now: float) -> None:
        """A member lost its place: the group is pending for it, or for all members if none is left."""
        record = self.records.map[id]
        if not record.there(self._board):
            record = self._update(record._replace(alternative=None))
        self._wait_alone(record, now)
        self._timers.renew_deadline(id, record.group.deadline, now)

    def took(self, id: GroupId, alternative: int, now: float) -> None:
        """Members of an alternative are placed; the group is pending for the others."""
        self._wait_for_the_rest(self._update(self.records.map[id]._replace(alternative=alternative)), now)

    # -- where groups go

    def place(self, id: GroupId, now: float) -> tuple[int, list[Placement]] | None:
        """Place missing members of the alternative taken, or else of the first alternative that fits. Returns the
        alternative and the new placements; or None, and the board is unchanged."""
        record = self.records.map[id]
        before = self._board.work.placements.map.keys() & record.member_ids
        taken = place_missing(self._board, record)
        if taken is None:
            return None
        self.took(id, taken, now)
        placed = self._board.work.placements.map
        members = record.group.alternatives[taken]
        return taken, [placed[ask.id] for ask in members if ask.id in placed and ask.id not in before]

    def why_not(self, id: GroupId) -> WhyNot:
        """The first member that fits no node, and why; no member if enough of them fit but not all together."""
        record, board = self.records.map[id], self._board
        team = record.team(board)
        if team.needed > len(team.members):
            return WhyNot(more_members=team.needed - len(team.members))
        fitting = [member for member in team.members if board.standing(member.demand).candidates()]
        if len(fitting) < max(team.needed, 1):
            first = next(member for member in team.members if member not in fitting)
            return WhyNot(first.ask.id, short_verdicts(board, first.shape))
        found = first_without_place(board, team._replace(members=fitting))
        return WhyNot() if found is None else WhyNot(found[0], (found[1].leading(DECISION_REASONS_MAX),))

    # -- shapes

    def shape_of(self, group: Group) -> GroupShape:
        """The shape that all equal unplaced groups share."""
        key = group.shape_key
        shape = self._shapes.map.get(key)
        if shape is None:
            if len(self._shapes.map) > GROUP_SHAPES_MAX:
                self._shapes = Sheet()
            shape = self._shapes.write()[key] = GroupShape(group, self._board)
        return shape

    def is_shared(self, group: Group, shape: GroupShape) -> bool:
        """Whether the next equal group will share this shape."""
        return self._shapes.map.get(group.shape_key) is shape

    def restore(self, records: Iterable[GroupRecord]) -> None:
        for record in records:
            self._add(record)

    def restore_shape(self, id: GroupId, is_whole: bool, is_shared: bool) -> GroupShape:
        """The shape that a pending group had."""
        record = self.records.map[id]
        shape = GroupShape(record.group, self._board, None if is_whole else record)
        if is_shared:
            self._shapes.write()[record.group.shape_key] = shape
        return shape

    # -- inside

    def _add(self, record: GroupRecord) -> None:
        self._update(record)
        self.of_member.write().update({member.id: record.group.id for member in record.group.all_members})

    def _taken(self, record: GroupRecord, before: GroupRecord) -> int | None:
        """The alternative of a changed group that has placed members, else ended ones of the alternative that it had
        taken before."""
        placed = self._board.work.placements.map
        ended = frozenset() if before.alternative is None else before.there(self._board) & record.ended
        for ids in (placed, ended):
            for index, members in enumerate(record.group.alternatives):
                if any(member.id in ids for member in members):
                    return index
        return None

    def _complete(self, record: GroupRecord) -> GroupRecord | None:
        """The record with the alternative that lacks no member, if there is one."""
        return next((each for each in record.open() if not each.missing(self._board)), None)

    def _update(self, record: GroupRecord) -> GroupRecord:
        self.records.write()[record.group.id] = record
        return record

    def _wait_alone(self, record: GroupRecord, now: float) -> None:
        """Queue a group with placed or ended members, awake and with its own shape: its reasons do not apply to whole
        groups."""
        self._watch_minimum(record, now)
        self._queue(record, GroupShape(record.group, self._board, record), now)

    def _queue(self, record: GroupRecord, shape: GroupShape, now: float) -> None:
        """Queue a group at its position in the order, perhaps again."""
        group, since, hold = record.group, now, self._board.world.hold
        if group.id in self._waiting:
            since = self._waiting.line_of(group.id).since
            self._waiting.remove(group.id)
        if hold is not None and hold.owner == group.id:
            self._board.set_hold(Hold(hold.owner, shape, hold.nodes), news=False)
        self._waiting.add(Line(shape, group.priority, record.moment, record.turn, since), {group.id: group})

    def _watch_minimum(self, record: GroupRecord, now: float) -> None:
        """Start the time-out of a group that holds places below its minimum, or stop it."""
        id, timeout_s, alarms = record.group.id, record.group.timeout_s, self._timers.timeouts
        if timeout_s is None or not record.is_below_minimum(self._board):
            alarms.drop(id, Timeout.MINIMUM)
        elif not alarms.is_set(id, Timeout.MINIMUM):
            alarms.set(id, Timeout.MINIMUM, now + timeout_s)

    def _wait_for_the_rest(self, record: GroupRecord, now: float) -> None:
        """A pending group now lacks fewer members; if it lacks none, it is no longer pending."""
        complete = self._complete(record)
        self._watch_minimum(complete or record, now)
        if complete is not None and record.group.id in self._waiting:
            self._update(complete)
            self._waiting.remove(record.group.id)
        elif record.group.id in self._waiting:
            self._wait_alone(record, now)


def place_missing(board: Board, record: GroupRecord) -> int | None:
    """Place missing members of a group: all that are needed, and more if they fit. Returns the alternative that fits;
    or None, and the board is unchanged."""
    for tried in record.open():
        if place_team(board, tried.team(board)):
            return tried.alternative
    return None
