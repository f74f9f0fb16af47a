"""What is known about one object beside its state: its events, the changes of its nodes, and which can be undone.

Rule: a link to work, a group or a node always leads to a page, also if the object is gone or was placed by Ray itself:
the page then shows what is known about it. Only an unknown id is not found.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter
from fastapi.responses import HTMLResponse
from starlette.requests import Request

from stead.engine.explain.events import Event
from stead.errors import Invalid
from stead.language.labels import Labels
from stead.language.nodes import Node
from stead.operate.audit import Entry
from stead.operate.changes import Absent, inverse
from stead.operate.desk import Desk, Unanswered, explained
from stead.operate.snapshot import PAGE_MAX, Query
from stead.operate.views import NodeView, explanation_json
from stead.service.pages.frame import Frame
from stead.service.pages.wording import link
from stead.text import short_id

EVENTS_LOOKED_AT = 5000
ENTRIES_LOOKED_AT = 300
EVENTS_SHOWN = 15
ENTRIES_SHOWN = 8
ONE_BY_ONE_MAX = 20
"""Up to this many nodes are fetched by id; for more, one list is faster."""


@dataclass(frozen=True, slots=True)
class About:
    """Events and changes, the newest first. `stands` says why a change cannot be undone, "" if it can; `there` are the
    nodes of the changes that still exist."""

    events: Sequence[Event]
    entries: Sequence[Entry]
    stands: Mapping[int, str]
    there: Set[str]


def about(frame: Frame, events: Sequence[Event], nodes: Iterable[str] | None) -> About:
    """These events, oldest first, and the latest changes of these nodes; for None, the latest changes of any node."""
    chosen = None if nodes is None else set(nodes)
    latest = frame.latest_entries(ENTRIES_LOOKED_AT)[::-1]
    entries = [each for each in latest if chosen is None or not chosen.isdisjoint(each.states)][:ENTRIES_SHOWN]
    there = changed_nodes(frame.desk, entries)
    return About(events[::-1][:EVENTS_SHOWN], entries, what_stands(entries, there), set(there))


def add_about(pages: APIRouter, frame: Frame) -> None:
    @pages.get("/ui/about/{id:path}")
    def anything(request: Request, id: str) -> HTMLResponse:
        return past_of(request, frame, id, Absent(f"There is nothing called {short_id(id)!r}."))


def is_known(frame: Frame, id: str) -> bool:
    """Whether anything is known about an object that is not listed."""
    if _events_of(frame, id) or any(id in each.states for each in frame.latest_entries(ENTRIES_LOOKED_AT)):
        return True
    return _why(frame.desk, id) is not None


def _events_of(frame: Frame, id: str) -> list[Event]:
    return [each for each in frame.latest_events(EVENTS_LOOKED_AT) if each.is_about(id)]


def past_of(request: Request, frame: Frame, id: str, refusal: Absent) -> HTMLResponse:
    """The page of an object that is not listed; refuses an unknown id."""
    known = about(frame, _events_of(frame, id), [id])
    why = _why(frame.desk, id)
    if not known.events and not known.entries and why is None:
        raise refusal
    return frame.page(request, "about.html", id=id, about=known, why=why)


def _why(desk: Desk, id: str) -> str | None:
    """The explanation of work that only the cluster's own tables know."""
    try:
        return str(explanation_json(desk.why(id))["text"])
    except Unanswered:
        raise
    except Invalid:
        return None


def explanation_of(desk: Desk, id: str) -> Mapping[str, Any]:
    """The explanation for a template."""
    found = explained(desk, id)
    if isinstance(found, str):
        return {"text": found, "fits": False, "chosen": None, "change": None, "members": (), "runners_up": ()}
    return explanation_json(found)


# -- what can be undone


def changed_nodes(desk: Desk, entries: Iterable[Entry]) -> dict[str, NodeView]:
    """The existing nodes that these audit entries changed."""
    return views_of(desk, (id for entry in entries for id in entry.states))


def what_stands(entries: Sequence[Entry], views: Mapping[str, NodeView]) -> dict[int, str]:
    """Why each entry cannot be undone with the nodes as they are now, "" if it can."""
    nodes = {id: _node(view) for id, view in views.items()}
    undone = {each.action: each.number for each in entries}
    found = {}
    for entry in entries:
        reason = ""
        try:
            inverse(entry, nodes, entry.at)
        except Invalid as error:
            text = str(error)
            reason = text.partition(": ")[2].partition(";")[0] or "it changed nothing"
            if undo := undone.get(f"undo {entry.number}"):
                reason = f"undone by entry {undo}"
        found[entry.number] = reason
    return found


def views_of(desk: Desk, ids: Iterable[str]) -> dict[str, NodeView]:
    """The existing nodes with these ids."""
    wanted = dict.fromkeys(id for id in ids if id)
    if len(wanted) > ONE_BY_ONE_MAX:
        return {view.id: view for view in desk.nodes(Query(limit=PAGE_MAX)).items if view.id in wanted}
    found = {}
    for id in wanted:
        try:
            view = desk.node(id)
        except Unanswered:
            raise
        except Invalid:
            continue
        if view.id == id:
            found[id] = view
    return found


def _node(view: NodeView) -> Node:
    """The part of the node that a change can change."""
    labels = {key: value for key, value in view.labels.items() if view.sources.get(key) != "stead"}
    return Node(view.id, labels=Labels(labels), taints=view.taints, name=view.name, draining=view.draining)


# -- names


def titles_of(desk: Desk, ids: Iterable[str]) -> Mapping[str, str]:
    """The display names of nodes; a node that has left has no name."""
    wanted = [id for id in dict.fromkeys(ids) if id]
    views = views_of(desk, wanted)
    return {id: views[id].title if id in views else short_id(id) for id in wanted}


def is_there(desk: Desk, id: str) -> bool:
    """Whether work or a group with this id is listed."""
    with suppress(Invalid):
        if desk.work(Query(filters=(f"id={id}",), limit=1)).total:
            return True
        return bool(desk.groups(Query(filters=(f"id={id}",), limit=1)).total)
    return False


def address_of_change(nodes: Sequence[str], number: int) -> str:
    """The URL that shows a change: its node, or all of its nodes."""
    return link("nodes", nodes[0], done=number) if len(nodes) == 1 else link("change", done=number)
