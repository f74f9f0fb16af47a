"""What preemption adds to a decision: nominated work is placed once it fits, and room is made for what fits nowhere.

Rule: pending work is handled in its order. Equal work that finds no room ends the search for the rest of its line.
"""

from __future__ import annotations

from collections.abc import Sequence

from stead.engine.columns.change_log import Column
from stead.engine.decisions import Decision, GroupPlaced, NominationEnded
from stead.engine.fleet import Nodes
from stead.engine.parts import Parts
from stead.engine.placing import announce
from stead.engine.shapes import Shape
from stead.engine.work import Placement
from stead.language.asks import Ask, GroupId


def place_nominated(parts: Parts) -> list[Decision]:
    """Place the nominated work that fits on its node now."""
    fitting, decisions = parts.preemption.ready()
    _wake_ended(parts, decisions)
    for team in fitting:
        first = team[0]
        if first.group is not None:
            decisions += _place_group(parts, first.group, team)
            continue
        demand = parts.board.shape_of(first.ask).demands[first.choice]
        parts.stop_waiting(first.ask.id)
        parts.board.place(first.ask, demand, first.row, first.moment, first.turn)
        decisions += announce(parts, demand, [first.ask.id], [first.row])
    return decisions


def _place_group(parts: Parts, id: GroupId, team: Sequence[Placement]) -> list[Decision]:
    """Place the members of a group for which places were kept; nothing if they are not enough any more."""
    board, record = parts.board, parts.groups.record(id)
    parts.preemption.forget(each.ask.id for each in team)
    alternative = next(n for n, members in enumerate(record.group.alternatives) if team[0].ask in members)
    if len(team) < record._replace(alternative=alternative).needed(board):
        return [NominationEnded(each.ask.id, board.node_id(each.row)) for each in team]
    for each in team:
        demand = board.shape_of(each.ask).demands[each.choice]
        placement = board.place(each.ask, demand, each.row, each.moment, each.turn, id)
        parts.taint_times.placed(placement, parts.now)
    parts.groups.took(id, alternative, parts.now)
    return [GroupPlaced(id, alternative, tuple((each.ask.id, board.node_id(each.row)) for each in team))]


def make_room_for_group(parts: Parts, id: GroupId) -> list[Decision]:
    """Nominate as many members of a group as it needs, and evict what is in their way; or nothing at all."""
    record, line, preemption = parts.groups.record(id), parts.waiting.line_of(id), parts.preemption
    for tried in record.open():
        team = tried.team(parts.board)
        if not 0 < team.needed <= len(team.members):
            continue
        if not all(preemption.may_help(member.ask) for member in team.members):
            continue
        plan = preemption.room_for_group(team, record.group.priority)
        if plan is not None:
            made = (preemption.take(member.ask, room, line, id) for member, room in plan.rooms)
            return _wake_ended(parts, [decision for decisions in made for decision in decisions])
    return []


def wakers(parts: Parts, shape: Shape) -> tuple[list[Column], Nodes]:
    """The columns whose change could let pending asks of this shape fit or preempt, and the nodes where more free
    resources could."""
    board = parts.board
    columns, hopes = board.wakers(shape)
    (first, *_) = parts.waiting.items_in(parts.waiting.lines_of(shape)[0]).values()
    assert isinstance(first, Ask), "shapes queue asks"
    if parts.preemption.may_help(first):  # it may then preempt where a rule refuses it now
        for demand in shape.demands:
            columns += [Column("free", resource) for resource, _ in demand.needs]
            hopes |= board.view(demand).open_but_for_work(board.world)
    return columns, hopes


def _wake_ended(parts: Parts, decisions: list[Decision]) -> list[Decision]:
    """Work whose place is not kept any more is tried again."""
    for each in decisions:
        if isinstance(each, NominationEnded):
            parts.waiting.wake_sleeper(parts.line_of(each.ask).sleeper)
    return decisions


AS_PLACEMENTS = 8
"""Making room for one ask takes as long as about this many placements."""


def make_room(parts: Parts, shape: Shape, limit: int | None) -> tuple[list[Decision], int, bool]:
    """Nominate asks of this shape, and evict what is in their way. Returns how many placements this counts as, at least
    `limit` if not all were tried, and whether all were."""
    decisions: list[Decision] = []
    cost = 0
    nominations, preemption = parts.board.work.nominations, parts.preemption
    for line in parts.waiting.lines_of(shape):
        for ask in list(parts.waiting.items_in(line).values()):
            assert isinstance(ask, Ask), "shapes queue asks"
            if ask.id in nominations.map:
                continue
            if not preemption.may_help(ask):
                break
            if limit is not None and cost >= limit:
                return decisions, cost, False
            made = preemption.make_room(ask, shape, line)
            if not made:
                break
            decisions += _wake_ended(parts, made)
            cost += AS_PLACEMENTS
    return decisions, cost, True
