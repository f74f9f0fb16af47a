"""The page of pending work: equal work once, equal groups once, each with its reasons and the smallest change.

Rule: work with the same owner that is equal in everything that affects its placement is one card; every reason is the
engine's own. The first in the queue comes first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fastapi import APIRouter
from fastapi.responses import HTMLResponse
from starlette.requests import Request

from stead.errors import Invalid
from stead.operate.desk import Desk, Unanswered
from stead.operate.snapshot import PAGE_MAX, Query
from stead.operate.views import GroupView, WorkView, explanation_json
from stead.service.pages.frame import Frame
from stead.text import short_id

SHAPES = 20
NAMES_SHOWN = 60


@dataclass(frozen=True, slots=True)
class Alike:
    """Pending work that is equal for the scheduler, or equal groups. `ids` are of work, or of groups."""

    ids: Sequence[str]
    names: Sequence[str]
    count: int  # pieces of work, or groups
    first: WorkView
    oldest: float | None
    members: int = 0  # in each group
    explanation: Mapping[str, Any] | None = None

    @property
    def id(self) -> str:
        """The id to ask about: one of them stands for all."""
        return self.ids[0]

    @property
    def room(self) -> str:
        return "groups" if self.members else "work"

    @property
    def listed(self) -> Sequence[tuple[str, str]]:
        """Ids and names to list, up to a maximum."""
        return [(id, short_id(name)) for id, name in zip(self.ids, self.names, strict=True)][:NAMES_SHOWN]


def add_waiting(pages: APIRouter, frame: Frame) -> None:
    desk = frame.desk

    @pages.get("/ui/waiting")
    def waiting(request: Request, offset: int = 0) -> HTMLResponse:
        everything = frame.waiting(PAGE_MAX)
        groups = {}
        if any(each.group for each in everything.items):
            found = desk.groups(Query(filters=("state=waiting",), limit=PAGE_MAX)).items
            groups = {group.id: group for group in found}
        shapes = alike(everything.items, groups)
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


def alike(items: Iterable[WorkView], groups: Mapping[str, GroupView]) -> list[Alike]:
    """Pending work by its request, in the order in which the first piece of each is tried."""
    members: dict[str, list[WorkView]] = {}
    for each in items:
        members.setdefault(each.group or f"\0{each.id}", []).append(each)  # no group has such an id
    shapes: dict[Any, list[list[WorkView]]] = {}
    for same in members.values():
        one = same[0]
        group = groups.get(one.group)
        strategy = (group.strategy, group.owner) if group else ()
        key = (bool(one.group), strategy, one.namespace, one.owner, tuple(_wants(each) for each in same))
        shapes.setdefault(key, []).append(same)
    return [_of_groups(found, groups) if found[0][0].group else _of_work(found) for found in shapes.values()]


def _wants(each: WorkView) -> tuple[Any, ...]:
    return tuple(sorted(each.resources.items())), each.rules, tuple(sorted(each.labels.items()))


def _of_work(found: Sequence[Sequence[WorkView]]) -> Alike:
    same = [each for (each,) in found]
    names = [each.name or each.id for each in same]
    count = sum(each.count for each in same)
    return Alike([each.id for each in same], names, count, same[0], _oldest(each.since for each in same))


def _of_groups(found: Sequence[Sequence[WorkView]], groups: Mapping[str, GroupView]) -> Alike:
    ids = [members[0].group for members in found]
    views = [groups[id] for id in ids if id in groups]
    names = [groups[id].name or id if id in groups else id for id in ids]
    first = found[0][0]
    if views:
        owner, owner_name = first.owner or views[0].owner, first.owner_name or views[0].owner_name
        first = replace(first, owner=owner, owner_name=owner_name)
    moments = [each.since for members in found for each in members] + [view.since for view in views]
    return Alike(ids, names, len(ids), first, _oldest(moments), members=len(found[0]))


def _oldest(moments: Iterable[float | None]) -> float | None:
    return min((moment for moment in moments if moment is not None), default=None)


def explained(desk: Desk, each: Alike) -> Alike:
    """With the explanation, unless the work has just started or ended."""
    try:
        return replace(each, explanation=explanation_json(desk.why(each.id)))
    except Unanswered:
        raise
    except Invalid:
        return each
