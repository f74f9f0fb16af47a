"""Pages about work: what waits and why, what runs where and why there, and groups.

Rule: equal work is shown once, with how many alike; every reason is the engine's own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from fastapi import APIRouter
from fastapi.responses import HTMLResponse
from starlette.requests import Request

from stead.errors import Invalid
from stead.operate.desk import Desk
from stead.operate.snapshot import Query
from stead.operate.views import WorkView, explanation_json
from stead.service.pages.cluster import TEXT_MAX, understood
from stead.service.pages.frame import Frame, Gone, found
from stead.service.pages.wording import short, title

WAITING_MAX = 10_000
SHAPES = 20
ROWS = 100
STATES = ("", "running", "waiting")


@dataclass(frozen=True, slots=True)
class Alike:
    """Work that waits and is equal in all that matters, or one group."""

    ids: Sequence[str]
    names: Sequence[str]
    count: int
    first: WorkView
    oldest: float | None
    explanation: Mapping[str, Any] | None = None

    @property
    def id(self) -> str:
        """What to ask about: the group, or one of them."""
        return self.first.group or self.first.id


def add_waiting(pages: APIRouter, frame: Frame) -> None:
    desk = frame.desk

    @pages.get("/ui/waiting")
    def waiting(request: Request, offset: int = 0) -> HTMLResponse:
        everything = frame.waiting(WAITING_MAX)
        shapes = alike(everything.items)
        offset = max(0, offset)
        shown = [explained(desk, each) for each in shapes[offset : offset + SHAPES]]
        return frame.page(
            request,
            "waiting.html",
            section="waiting",
            shapes=shown,
            all_shapes=len(shapes),
            looked_at=len(everything.items),
            total=everything.total,
            offset=offset,
            page_size=SHAPES,
        )


def add_work(pages: APIRouter, frame: Frame) -> None:
    desk = frame.desk

    @pages.get("/ui/work")
    def work(request: Request, state: str = "", q: str = "", owner: str = "", offset: int = 0) -> HTMLResponse:
        state, q = state if state in STATES else "", q.strip()[:TEXT_MAX]
        selector, problem = understood(q)
        filters = [f"state={state}"] * bool(state) + [f"owner={owner}"] * bool(owner)
        part = Query(tuple(filters), selector, max(0, offset), ROWS)
        rows = desk.work(part) if not problem else None
        return frame.page(
            request,
            "work_list.html",
            section="work",
            rows=rows,
            state=state,
            q=q,
            owner=owner,
            problem=problem,
            page_size=ROWS,
            offset=max(0, offset),
            titles=titles_of(desk, (each.node for each in rows.items) if rows else ()),
        )

    @pages.get("/ui/work/{id:path}")
    def one(request: Request, id: str) -> HTMLResponse:
        view: WorkView = found(desk.one, id)
        why = explanation_json(found(desk.why, id))
        scored = [why["chosen"], *why["runners_up"]] if why["chosen"] else []
        ids = [view.node, *(each["node"] for each in scored)]
        return frame.page(
            request, "work.html", section="work", work=view, why=why, scored=scored, titles=titles_of(desk, ids)
        )


def add_groups(pages: APIRouter, frame: Frame) -> None:
    desk = frame.desk

    @pages.get("/ui/groups")
    def groups(request: Request, offset: int = 0) -> HTMLResponse:
        part = desk.groups(Query(limit=ROWS, offset=max(0, offset)))
        nodes = (node for group in part.items for _, node in group.members)
        return frame.page(
            request, "groups.html", section="groups", part=part, page_size=ROWS, titles=titles_of(desk, nodes)
        )

    @pages.get("/ui/groups/{id:path}")
    def group(request: Request, id: str) -> HTMLResponse:
        part = desk.groups(Query(filters=(f"id={id}",), limit=1))
        if not part.items:
            raise Gone(f"There is no group {id!r} in this cluster; perhaps it has ended.")
        view = part.items[0]
        return frame.page(
            request,
            "group.html",
            section="groups",
            group=view,
            why=explanation_json(found(desk.why, id)),
            titles=titles_of(desk, (node for _, node in view.members)),
        )


def alike(items: Iterable[WorkView]) -> list[Alike]:
    """Waiting work by what it asks for, in the order in which the first of each will be tried."""
    shapes: dict[Any, list[WorkView]] = {}
    for each in items:
        key: Any = each.group
        if not key:
            wants = (tuple(sorted(each.resources.items())), each.rules, tuple(sorted(each.labels.items())))
            key = (wants, each.namespace, each.owner)
        shapes.setdefault(key, []).append(each)
    found = []
    for same in shapes.values():
        moments = [each.since for each in same if each.since is not None]
        ids, names = [each.id for each in same], [each.name or each.id for each in same]
        found.append(Alike(ids, names, sum(each.count for each in same), same[0], min(moments, default=None)))
    return found


def explained(desk: Desk, each: Alike) -> Alike:
    """With the reason, which work that has just started or ended has no more; and of a group, since when it waits."""
    if each.first.group:
        for group in desk.groups(Query(filters=(f"id={each.first.group}",), limit=1)).items:
            first = replace(each.first, owner=each.first.owner or group.owner, name=group.name)
            each = replace(each, first=first, oldest=each.oldest or group.since)
    try:
        return replace(each, explanation=explanation_json(desk.why(each.id)))
    except Invalid:
        return each


def titles_of(desk: Desk, ids: Iterable[str]) -> Mapping[str, str]:
    """What to call nodes. A short id is as good as a name; one that has left has no other."""
    named = {}
    for id in dict.fromkeys(id for id in ids if id):
        named[id] = short(id)
        if named[id] != id:
            with suppress(Invalid):
                named[id] = title(desk.node(id))
    return named
