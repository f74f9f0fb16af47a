"""Decisions that were already made: placed, moved, evicted or refused before a restart.

Rule: nothing is decided here. What no longer applies, because the node or the work is gone, is ignored.
"""

from __future__ import annotations

from collections.abc import Iterable

from stead.engine.decisions import (
    Decision,
    Evicted,
    GroupPlaced,
    GroupReleased,
    Moved,
    NominationEnded,
    Placed,
    Preempted,
    Refused,
    TaintExpired,
    Waiting,
)
from stead.engine.parts import Parts
from stead.engine.timing.timers import Timeout
from stead.language.asks import Ask, AskId, GroupId
from stead.language.nodes import NodeId


def assume(parts: Parts, decisions: Iterable[Decision]) -> None:
    """See `Engine.assume`."""
    for decision in decisions:
        match decision:
            case Placed(id, node, choice):
                _assume_placed(parts, id, node, choice)
            case GroupPlaced(group, alternative, members):
                _assume_group(parts, group, alternative, members)
            case GroupReleased(group):
                parts.timers.timeouts.drop(group, Timeout.MINIMUM)
            case Moved(id, _, target):
                _assume_moved(parts, id, target)
            case Evicted(id, _, taint):
                parts.timers.evictions.drop(id, taint)
                parts.timers.evicted(id)
            case Preempted():
                _assume_preempted(parts, decision)
            case NominationEnded(id):
                parts.preemption.forget([id])
            case TaintExpired(node, taint):
                row = parts.board.fleet.row(node)
                if row is not None:
                    parts.taint_times.untainted(row, [taint])
            case Refused(id) if id in parts.waiting:
                parts.forget(id)
            case Waiting(ids, verdicts) if ids[0] in parts.waiting:
                parts.waiting.report(parts.waiting.line_of(ids[0]).sleeper, verdicts)
    parts.board.fleet.news.take()
    parts.waiting.wake_all()
    parts.is_unfinished = parts.waiting.awake()


def _assume_placed(parts: Parts, id: AskId, node: NodeId, choice: int) -> None:
    row = parts.board.fleet.row(node)
    item = parts.waiting.item(id) if id in parts.waiting else None
    if row is None or not isinstance(item, Ask) or choice >= len(item.choices):
        return
    line = parts.waiting.line_of(id)
    parts.stop_waiting(id)
    demand = parts.board.shape_of(item).demands[choice]
    parts.taint_times.placed(parts.board.place(item, demand, row, line.moment, line.turn), parts.now)


def _assume_preempted(parts: Parts, decision: Preempted) -> None:
    for victim in decision.victims:
        parts.preemption.will_end(victim)
    row, id = parts.board.fleet.row(decision.node), decision.ask
    ask = parts.pending_ask(id)
    if row is not None and ask is not None:
        demand = parts.board.shape_of(ask).demands[decision.choice]
        parts.preemption.nominate(ask, demand, row, parts.line_of(id), decision.group)


def _assume_group(parts: Parts, id: GroupId, alternative: int, members: Iterable[tuple[AskId, NodeId]]) -> None:
    record, board = parts.groups.records.map.get(id), parts.board
    if record is None or alternative >= len(record.group.alternatives):
        return
    asks = {ask.id: ask for ask in record.group.alternatives[alternative]}
    for member, node in members:
        row = board.fleet.row(node)
        if row is not None and member in asks and member not in board.work.placements.map:
            demand = board.shape_of(asks[member]).demands[0]
            placement = board.place(asks[member], demand, row, record.moment, record.turn, id)
            parts.taint_times.placed(placement, parts.now)
    parts.groups.took(id, alternative, parts.now)


def _assume_moved(parts: Parts, id: AskId, target: NodeId) -> None:
    row, board = parts.board.fleet.row(target), parts.board
    if row is not None and id in board.work.placements.map:
        moved = parts.lift(id)
        demand = board.shape_of(moved.ask).demands[moved.choice]
        parts.taint_times.placed(board.place(moved.ask, demand, row, moved.moment, moved.turn, moved.group), parts.now)
