"""Time-outs of groups: what a group holds too long is given back.

Rule: a time-out releases places only while fewer members than the group's minimum are placed. The group keeps its
position in the order.
"""

from __future__ import annotations

from stead.engine.decisions import GroupReleased
from stead.engine.parts import Parts
from stead.engine.timing.timers import Timeout


def release_late(parts: Parts) -> list[GroupReleased]:
    """What the groups must give back whose time-out has passed. Reservations of nodes end at once; members leave the
    board when the cluster reports that they are lost."""
    released: list[GroupReleased] = []
    for id, what, _ in list(parts.timers.timeouts.due(parts.now)):
        if what is Timeout.HOLD:
            parts.holds.end(id, parts.now)
        elif what is Timeout.REST:
            parts.holds.rested(parts.now)
        else:
            record, placed = parts.groups.record(id), parts.board.work.placements.map
            members = tuple(member.id for member in record.group.all_members if member.id in placed)
            released.append(GroupReleased(id, members))
    return released
