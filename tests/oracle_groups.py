"""Groups in the oracle: which alternative fits, found by trying all assignments, and members that come, go and end.

Rule: simple and slow. With the chosen members placed, neither a rule nor the strategy refuses any of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import combinations, product
from typing import TYPE_CHECKING

from stead.engine import reasons
from stead.language.asks import Ask, AskId, Group, Strategy
from stead.language.nodes import NodeId

if TYPE_CHECKING:
    from tests.oracle import Oracle

RELATIVE = (
    reasons.NotNear,
    reasons.TargetDead,
    reasons.TooNear,
    reasons.NoAlternativeHolds,
    reasons.KeptAway,
    reasons.Skewed,
)


def fits_group(oracle: Oracle, group: Group) -> int | None:
    """The first alternative with a valid assignment of enough members, found by trying all. If none is needed any
    more, one member must fit alone."""
    taken = taken_of(oracle, group)
    for index, members in enumerate(group.alternatives):
        missing = [member for member in members if not is_there(oracle, member.id)]
        if taken not in (None, index):
            continue
        needed = needed_of(oracle, group, index)
        each = [[node for node in oracle.places if not _fixed_obstacles(oracle, member, node)] for member in missing]
        for nodes in product(*([*fitting, None] for fitting in each)):
            chosen = {member.id: node for member, node in zip(missing, nodes, strict=True) if node is not None}
            enough = len(chosen) >= needed if needed else len(chosen) == 1
            if enough and group_holds(oracle, group, chosen):
                return index
    return None


def is_there(oracle: Oracle, id: AskId) -> bool:
    """Whether a member counts as placed: it is, or it has ended."""
    return id in oracle.held or id in oracle.ended


def taken_of(oracle: Oracle, group: Group) -> int | None:
    """The alternative of which members were placed, until all of them have lost their places."""
    taken = oracle.taken.get(group.id)
    if taken is None or not any(is_there(oracle, member.id) for member in group.alternatives[taken]):
        return None
    return taken


def missing_of(oracle: Oracle, group: Group) -> list[Ask]:
    """The members that must be placed of the alternative taken, else of the first; none if those of another have all
    ended."""
    taken = taken_of(oracle, group)
    some = group.alternatives if taken is None else group.alternatives[taken : taken + 1]
    lacking = [[member for member in members if not is_there(oracle, member.id)] for members in some]
    return lacking[0] if all(lacking) else []


def end_member(oracle: Oracle, id: AskId) -> None:
    """A member ended: it counts as placed while it is a member, and is not placed again."""
    group = oracle.groups[oracle.member_of[id]]
    if taken_of(oracle, group) is None:
        oracle.taken.pop(group.id, None)
    oracle.lose(id)
    oracle.ended.add(id)
    _take_what_is_complete(oracle, group)


def _take_what_is_complete(oracle: Oracle, group: Group) -> None:
    for index, members in enumerate(group.alternatives):
        if all(is_there(oracle, member.id) for member in members):
            oracle.taken.setdefault(group.id, index)


def needed_of(oracle: Oracle, group: Group, alternative: int) -> int:
    """How many more members of an alternative must be placed at once."""
    members = group.alternatives[alternative]
    least = len(members) if group.min_available is None else group.min_available
    return max(0, least - sum(is_there(oracle, member.id) for member in members))


def group_follows(oracle: Oracle, group: Group, assignment: Mapping[AskId, NodeId], needed: int) -> bool:
    """Whether at least `needed` members can be placed at once by the assignment, and the others one by one after
    them."""
    if needed > 0:
        some = [part for size in range(needed, len(assignment) + 1) for part in combinations(assignment, size)]
    else:
        some = [(id,) for id in assignment]
    for part in some:
        if group_holds(oracle, group, {id: assignment[id] for id in part}):
            rest = {id: node for id, node in assignment.items() if id not in part}
            for id in part:
                oracle.hold(_member(group, id), assignment[id], 0)
            follows = not rest or group_follows(oracle, group, rest, 0)
            for id in part:
                oracle.lose(id)
            if follows:
                return True
    return False


def group_holds(oracle: Oracle, group: Group, assignment: Mapping[AskId, NodeId]) -> bool:
    """Whether the assignment is valid: with all members placed, neither a rule nor the strategy refuses any."""
    if not _strategies_hold(oracle, group, assignment):
        return False
    members = [_member(group, id) for id in assignment]
    try:
        for member in members:
            if _fixed_obstacles(oracle, member, assignment[member.id]):
                return False
            oracle.hold(member, assignment[member.id], 0)
        return not any(
            isinstance(reason, RELATIVE)
            for member in members
            for reason in oracle.obstacles(member, 0, assignment[member.id])
        )
    finally:
        for member in members:
            oracle.lose(member.id)


def _fixed_obstacles(oracle: Oracle, member: Ask, node: NodeId) -> list[reasons.Reason]:
    """The reasons against a node that other members cannot remove."""
    return [reason for reason in oracle.obstacles(member, 0, node) if not isinstance(reason, RELATIVE)]


def _member(group: Group, id: AskId) -> Ask:
    return next(member for members in group.alternatives for member in members if member.id == id)


def _strategies_hold(oracle: Oracle, group: Group, assignment: Mapping[AskId, NodeId]) -> bool:
    everywhere = dict(assignment)
    for members in group.alternatives:
        everywhere |= {member.id: oracle.held[member.id].node for member in members if member.id in oracle.held}
    for key, strategy in (("node_id", group.strategy), *group.topology):
        for id in assignment:
            mine = oracle.places[assignment[id]].labels.get(key)
            theirs = [oracle.places[node].labels.get(key) for other, node in everywhere.items() if other != id]
            if strategy in (Strategy.STRICT_PACK, Strategy.STRICT_SPREAD) and mine is None:
                return False
            if strategy == Strategy.STRICT_PACK and any(domain != mine for domain in theirs):
                return False
            if strategy == Strategy.STRICT_SPREAD and mine in theirs:
                return False
    return True


def change_group(oracle: Oracle, group: Group) -> None:
    """Members join and leave; those that are placed keep their places."""
    members = {member.id: member for member in group.all_members}
    if group.id in oracle.asks or any(id in oracle.groups for id in members):
        return
    for id in oracle.members_of(group.id):
        if id not in members:
            del oracle.member_of[id]
            oracle.forget(id)
    if group.id not in oracle.groups:
        oracle.arrived(group.id)
    for id, member in members.items():
        other = oracle.member_of.get(id)
        oracle.asks[id], oracle.member_of[id] = member, group.id
        oracle.submitted.pop(id, None)
        if other not in (None, group.id):
            _leave(oracle, oracle.groups[other], id)
            oracle.ended.discard(id)
        if id not in oracle.ended:
            oracle.over.discard(id)
    _become(oracle, group)


def _leave(oracle: Oracle, group: Group, id: AskId) -> None:
    """A group goes on without a member. It drops the alternatives that have too few members then; if it has taken such
    a one, or there is no other, it keeps only that."""
    taken, least = taken_of(oracle, group), group.min_available or 1
    left = [tuple(each for each in members if each.id != id) for members in group.alternatives]
    enough = [members for members in left if len(members) >= least]
    if taken is not None and left[taken] and left[taken] not in enough:
        enough = [left[taken]]
    if not any(left):
        oracle.forget(group.id)
        return
    some = enough or [members for members in left if members][:1]
    kept = {each.id for members in some for each in members}
    for each in oracle.members_of(group.id):
        if each not in kept:
            del oracle.member_of[each]
            oracle.forget(each)
    _become(oracle, replace(group, alternatives=tuple(some)))


def _become(oracle: Oracle, group: Group) -> None:
    """The alternative taken is the one whose members are placed, else the one with ended members of that before."""
    before = oracle.groups.get(group.id)
    taken = None if before is None else taken_of(oracle, before)
    old = [] if before is None or taken is None else [each.id for each in before.alternatives[taken]]
    ended = {id for id in old if id in oracle.ended}
    oracle.groups[group.id] = group
    oracle.taken.pop(group.id, None)
    for ids in (oracle.held.keys(), ended):
        for index, members in enumerate(group.alternatives):
            if any(member.id in ids for member in members):
                oracle.taken.setdefault(group.id, index)
    _take_what_is_complete(oracle, group)
