"""A node, a piece of work or a group with all that is known about it, as one value.

Rule: asks a `Desk` and nothing else, so that commands and pages describe every kind of cluster alike. Lists have a
greatest length. The JSON form is a promise to scripts (`docs/json.md`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from stead.engine.explain import Explanation
from stead.errors import Invalid, did_you_mean
from stead.operate.audit import Entry, entry_json
from stead.operate.changes import Absent, Conflict
from stead.operate.desk import Desk, Unanswered
from stead.operate.snapshot import ID_BEGINS, PAGE_MAX, Query
from stead.operate.views import (
    Event,
    GroupView,
    NodeView,
    WorkView,
    event_json,
    explanation_json,
    group_json,
    node_json,
    work_json,
)
from stead.resources import DEVICES

WORK_MAX = 100
EVENTS_MAX = 20
CHANGES_MAX = 20
LOOKED_AT = 5000
"""How many of the latest events are searched for those about one subject."""

CHANGES_LOOKED_AT = 1000
JOINED = "joined"
"""The kind of the event that begins the life of a node."""


@dataclass(frozen=True, slots=True)
class Use:
    """How much of one resource of a node is used."""

    resource: str
    used: float
    total: float

    @property
    def percent(self) -> float:
        return round(100 * self.used / self.total, 1) if self.total else 0.0


@dataclass(frozen=True, slots=True)
class Share:
    """What one piece of work holds of the devices of a node: 0.5 GPU is half of one device."""

    resource: str
    amount: float
    work: str
    name: str


@dataclass(frozen=True, slots=True)
class Description:
    """`work` is what runs on a node, or the members of a group; `nodes` are the node itself, the node of a piece of
    work, or those of a group's members."""

    kind: str  # node, work or group
    state: str  # of a node ready or draining; else as in the lists
    at: float
    since: float | None
    subject: NodeView | WorkView | GroupView
    nodes: tuple[NodeView, ...] = ()
    uses: tuple[Use, ...] = ()
    shares: tuple[Share, ...] = ()
    work: tuple[WorkView, ...] = ()
    work_total: int = 0
    why: Explanation | None = None
    events: tuple[Event, ...] = ()
    changes: tuple[Entry, ...] = ()

    @property
    def id(self) -> str:
        return self.subject.id

    @property
    def name(self) -> str:
        return self.subject.name

    @property
    def age(self) -> float | None:
        return None if self.since is None else max(0.0, self.at - self.since)


def describe(desk: Desk, kind: str, said: str) -> Description:
    """The node, the work or the group that somebody means, by id or name."""
    return {"node": describe_node, "work": describe_work, "group": describe_group}[kind](desk, said)


def describe_node(desk: Desk, said: str) -> Description:
    view = desk.node(said)
    work = desk.work(Query((f"node={view.id}",), limit=WORK_MAX))
    events = _recent_events(desk, {view.id})
    joined = [event.at for event in events if event.kind == JOINED]
    return Description(
        "node",
        "draining" if view.draining else "ready",
        desk.summary().at,
        joined[-1] if joined else None,
        view,
        (view,),
        uses_of(view),
        tuple(_shares(work.items)),
        work.items,
        work.total,
        None,
        tuple(events[-EVENTS_MAX:]),
        _changes(desk, view.id),
    )


def describe_work(desk: Desk, said: str) -> Description:
    view = desk.one(said)
    return Description(
        "work",
        view.state,
        desk.summary().at,
        view.since,
        view,
        _nodes(desk, (view.node,)),
        (),
        tuple(_shares((view,))),
        (),
        0,
        _why(desk, view.id if view.node else view.group or view.id),  # a member waits with its group
        tuple(_recent_events(desk, {view.id, view.group} - {""})[-EVENTS_MAX:]),
    )


def describe_group(desk: Desk, said: str) -> Description:
    view = find_group(desk, said)
    ids = [id for id, _ in view.members]
    work = desk.work(Query((f"group={view.id}",), limit=WORK_MAX))
    return Description(
        "group",
        view.state,
        desk.summary().at,
        view.since,
        view,
        _nodes(desk, (node for _, node in view.members)),
        (),
        tuple(_shares(work.items)),
        work.items,
        work.total,
        _why(desk, view.id),
        tuple(_recent_events(desk, {view.id, *ids})[-EVENTS_MAX:]),
    )


def find_group(desk: Desk, said: str) -> GroupView:
    """The group somebody means: by its id, its name, or the beginning of its id."""
    for condition in (f"id={said}", f"name={said}"):
        if found := desk.groups(Query((condition,), limit=PAGE_MAX)).items:
            return _only(said, found)
    everyone = desk.groups(Query(limit=PAGE_MAX)).items
    if found := tuple(view for view in everyone if len(said) >= ID_BEGINS and view.id.startswith(said)):
        return _only(said, found)
    names = {name for view in everyone for name in (view.id, view.name) if name}
    example = f"; a group is, for example, {min(names)!r}" if names else ""
    raise Absent(f"there is no group {said[:100]!r} in this cluster{did_you_mean(said, names) or example}")


def _only(said: str, found: Sequence[GroupView]) -> GroupView:
    if len(found) > 1:
        ids = ", ".join([*(view.id for view in found[:10]), *["..."] * (len(found) > 10)])
        raise Conflict(f"{said[:100]!r} matches {len(found)} groups: {ids}; give the id of one")
    return found[0]


# -- parts


def uses_of(view: NodeView) -> tuple[Use, ...]:
    """What is used of each resource that the node has."""
    return tuple(
        Use(name, round(total - view.available.get(name, 0.0), 4), total) for name, total in view.total.items() if total
    )


def _shares(work: Iterable[WorkView]) -> Iterable[Share]:
    for view in work:
        if view.node:
            held = {name: amount for name, amount in view.resources.items() if name in DEVICES and amount}
            yield from (Share(name, amount * view.count, view.id, view.name) for name, amount in held.items())


def _nodes(desk: Desk, ids: Iterable[str]) -> tuple[NodeView, ...]:
    found = []
    for id in dict.fromkeys(ids):
        with suppress(Invalid):  # it may have left meanwhile
            if id:
                found.append(desk.node(id))
    return tuple(found)


def _why(desk: Desk, id: str) -> Explanation | None:
    """Why it waits or is where it is; nothing if it went away meanwhile."""
    try:
        return desk.why(id)
    except Unanswered:
        raise
    except Invalid:
        return None


def last_number(fetch: Callable[[int, int], Sequence[object]], seen: int = 0) -> int:
    """The number of the last event or entry, found by halving: lists tell only what comes after a number. `seen` is
    one that was the last before; it saves most of the looking."""
    if seen < 1 or not fetch(seen - 1, 1):
        seen = 0
        if not fetch(0, 1):
            return 0
    if seen and not fetch(seen, 1):
        return seen
    low, step_up = seen, 1
    while fetch(low + step_up, 1):
        low, step_up = low + step_up, step_up * 2
    high = low + step_up
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fetch(middle, 1) else (low, middle)
    return high


def _recent_events(desk: Desk, subjects: set[str]) -> list[Event]:
    """Events about any of these, oldest first, among the latest of all."""
    after = max(0, last_number(desk.events) - LOOKED_AT)
    found: list[Event] = []
    while events := desk.events(after, 1000):
        found += [event for event in events if any(is_about(event.subject, id) for id in subjects)]
        after = events[-1].number
    return found


def is_about(subject: str, id: str) -> bool:
    """Whether an event is about something. Its subject may be several: ``web-1..3, db``."""
    if subject == id:
        return True
    if ", " not in subject and ".." not in subject:
        return False
    number = re.fullmatch(r"(.*-)([1-9][0-9]{0,17})", id)
    for part in subject.split(", "):
        several = re.fullmatch(r"(.*-)([1-9][0-9]{0,17})\.\.([1-9][0-9]{0,17})", part)
        if part == id:
            return True
        if number and several and number[1] == several[1] and int(several[2]) <= int(number[2]) <= int(several[3]):
            return True
    return False


def _changes(desk: Desk, node: str) -> tuple[Entry, ...]:
    """The latest changes of a node, oldest first."""
    after = max(0, last_number(desk.audit) - CHANGES_LOOKED_AT)
    return tuple(entry for entry in desk.audit(after, CHANGES_LOOKED_AT) if node in entry.states)[-CHANGES_MAX:]


# -- JSON


def description_json(found: Description) -> dict[str, Any]:
    return {
        "kind": found.kind,
        "id": found.id,
        "name": found.name,
        "state": found.state,
        "at": found.at,
        "since": found.since,
        "age": found.age,
        "subject": _subject_json(found.subject),
        "nodes": [{"id": view.id, "name": view.name} for view in found.nodes],
        "uses": [use_json(each) for each in found.uses],
        "shares": [
            {"resource": each.resource, "amount": each.amount, "work": each.work, "name": each.name}
            for each in found.shares
        ],
        "work": [work_json(view) for view in found.work],
        "work_total": found.work_total,
        "why": None if found.why is None else explanation_json(found.why),
        "events": [event_json(event) for event in found.events],
        "changes": [entry_json(entry) for entry in found.changes],
    }


def use_json(use: Use) -> dict[str, Any]:
    return {"resource": use.resource, "used": use.used, "total": use.total, "percent": use.percent}


def _subject_json(view: NodeView | WorkView | GroupView) -> dict[str, Any]:
    match view:
        case NodeView():
            return node_json(view)
        case WorkView():
            return work_json(view)
    return group_json(view)
