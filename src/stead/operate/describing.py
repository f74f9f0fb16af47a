"""Everything that is known about one node, piece of work or group, as one value.

Rule: asks only a `Desk`, so that commands and pages describe every kind of cluster in the same way. Lists have a
maximum length. The JSON form is a promise to scripts (`docs/json.md`).
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from stead.engine.explain.events import Event, EventKind
from stead.engine.explain.explanations import Explanation
from stead.errors import Invalid
from stead.language.resources import DEVICES
from stead.operate.audit import Entry, entry_json
from stead.operate.desk import Desk, Unanswered
from stead.operate.identifying import meant, only
from stead.operate.snapshot import Query, every
from stead.operate.views import (
    GroupView,
    NodeView,
    WorkView,
    event_json,
    explanation_json,
    group_json,
    node_json,
    work_json,
)

WORK_MAX = 100
EVENTS_MAX = 20
CHANGES_MAX = 20
LOOKED_AT = 5000
"""Maximum number of the latest events to search for one subject."""

CHANGES_LOOKED_AT = 1000
"""Maximum number of the latest changes to search for one node."""


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
    """The part of a node's devices that one piece of work holds: 0.5 GPU is half of one device."""

    resource: str
    amount: float
    work: str
    name: str


@dataclass(frozen=True, slots=True)
class Description:
    """`work` is what runs on a node, or the members of a group; `nodes` is the node itself, the node of a piece of
    work, or the nodes of a group's members."""

    kind: str  # node, work or group
    state: str  # ready or draining for a node; otherwise as in the lists
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


def describe(desk: Desk, kind: str, name: str) -> Description:
    """The node, work or group with this id or name."""
    return {"node": describe_node, "work": describe_work, "group": describe_group}[kind](desk, name)


def describe_node(desk: Desk, name: str) -> Description:
    view = desk.node(name)
    work = desk.work(Query((f"node={view.id}",), limit=WORK_MAX))
    events = _recent_events(desk, {view.id})
    joined = [event.at for event in events if event.kind == EventKind.JOINED]
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


def describe_work(desk: Desk, name: str) -> Description:
    view = desk.one(name)
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
        _why(desk, view.id if view.node else view.group or view.id),  # a member is pending with its group
        tuple(_recent_events(desk, {view.id, view.group} - {""})[-EVENTS_MAX:]),
    )


def describe_group(desk: Desk, name: str) -> Description:
    view = find_group(desk, name)
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


def find_group(desk: Desk, given: str) -> GroupView:
    """The group with this id, name or beginning of an id."""
    if exact := desk.groups(Query((f"id={given}",), limit=1)).items:
        return exact[0]  # the usual case, without the list of all groups
    views = {view.id: view for view in every(desk.groups)}
    found = meant(given, sorted(views), [view.id for view in views.values() if view.name == given])
    names = [name for view in views.values() for name in (view.id, view.name) if name]
    return views[only(given, found, "group", names)]


# -- parts


def uses_of(view: NodeView) -> tuple[Use, ...]:
    """How much of each resource of the node is used."""
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
        with suppress(Invalid):  # it may have left in the meantime
            if id:
                found.append(desk.node(id))
    return tuple(found)


def _why(desk: Desk, id: str) -> Explanation | None:
    """Why it is pending or where it is; None if it left in the meantime."""
    try:
        return desk.why(id)
    except Unanswered:
        raise
    except Invalid:
        return None


def _recent_events(desk: Desk, subjects: set[str]) -> list[Event]:
    """Events about any of these subjects, oldest first, among the latest events of the cluster."""
    found: list[Event] = []
    events = desk.events(-LOOKED_AT, 1000)
    while events:
        found += [event for event in events if any(map(event.is_about, subjects))]
        events = desk.events(events[-1].number, 1000)
    return found


def _changes(desk: Desk, node: str) -> tuple[Entry, ...]:
    """The latest changes of a node, oldest first."""
    latest = desk.audit(-CHANGES_LOOKED_AT, CHANGES_LOOKED_AT)
    return tuple(entry for entry in latest if node in entry.states)[-CHANGES_MAX:]


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
