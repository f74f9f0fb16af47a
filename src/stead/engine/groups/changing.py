"""Groups whose members come and go, as pods do.

Rule: a change never moves a member that keeps its place, and never changes a group's position in the order. A group
without members is forgotten.
"""

from __future__ import annotations

from dataclasses import replace

from stead.engine.groups.lifecycle import GroupRecord
from stead.engine.parts import Parts
from stead.language.asks import Ask, AskId, Group, GroupId


def change_group(parts: Parts, group: Group) -> None:
    """The group is now this; an unknown one is submitted. Ignored if an id is one of another kind of work."""
    groups, before = parts.groups, parts.groups.records.map.get(group.id)
    if _is_ask(parts, group.id) or any(member.id in groups for member in group.all_members):
        return
    if before is not None and before.group == group:
        return
    for member in group.all_members:
        _take_over(parts, member.id, group.id)
    parts.preemption.forget(_described_differently(parts, group))
    _become(parts, group)


def _is_ask(parts: Parts, id: str) -> bool:
    is_single = id in parts.waiting and id not in parts.groups
    return is_single or id in parts.board.work.placements.map or id in parts.groups.of_member.map


def _described_differently(parts: Parts, group: Group) -> list[AskId]:
    """The members for which a place is kept that may not suit them any more."""
    kept = parts.board.work.nominations.map
    return [member.id for member in group.all_members if member.id in kept and kept[member.id].ask != member]


def _become(parts: Parts, group: Group) -> None:
    """Give a group these members, and queue it for those that it lacks. The others have ended."""
    before, members = parts.groups.records.map.get(group.id), {member.id for member in group.all_members}
    for id in [] if before is None else [each.id for each in before.group.all_members if each.id not in members]:
        if parts.groups.of_member.map.get(id) == group.id:
            if id in parts.board.work.placements.map:
                parts.lift(id)
            parts.preemption.forget([id])
            parts.board.work.note_ended(parts.board.fleet, id)
    parts.groups.change(group, parts.now)
    if group.deadline is None or group.id not in parts.waiting:
        parts.timers.deadlines.drop_all(group.id)
    else:
        parts.timers.set_deadline(group.id, group.deadline)


def _take_over(parts: Parts, id: AskId, group: GroupId) -> None:
    """An ask becomes a member of a group. If it is placed, it keeps its place."""
    other = parts.groups.of_member.map.get(id)
    if other == group:
        return
    parts.preemption.forget([id])
    if id in parts.board.work.placements.map:
        with parts.board.attempt() as tried:  # frees nothing, so it wakes nothing
            parts.board.put_back(parts.board.lift(id)._replace(group=group))
            tried.keep()
    elif id in parts.waiting:
        parts.waiting.remove(id)
    if other is not None:
        _leave(parts, id, other)


def _leave(parts: Parts, id: AskId, group: GroupId) -> None:
    """A group goes on without an ask that became a member of another group."""
    record = parts.groups.record(group)
    del parts.groups.of_member.write()[id]
    left = _alternatives_without(record, id)
    if left:
        _become(parts, replace(record.group, alternatives=left))
    else:
        parts.groups.ended(group)


def _alternatives_without(record: GroupRecord, id: AskId) -> tuple[tuple[Ask, ...], ...]:
    """What is left of a group's alternatives. One with fewer members than the minimum can only be the last one: the one
    taken, or the first if none has enough."""
    some = [tuple(member for member in members if member.id != id) for members in record.group.alternatives]
    least = record.group.min_available or 1
    if record.alternative is not None and 0 < len(some[record.alternative]) < least:
        return (some[record.alternative],)
    return tuple(members for members in some if len(members) >= least) or tuple(filter(None, some))[:1]
