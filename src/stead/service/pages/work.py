"""Pages about work and groups: lists that you can filter and sort, and one page for each piece of work and each group.

Rule: the URL holds every filter, the order and the offset. Reasons are the engine's own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from fastapi import APIRouter
from fastapi.responses import HTMLResponse
from starlette.requests import Request

from stead.errors import Invalid
from stead.language.labels import Selector
from stead.operate.changes import Absent
from stead.operate.describing import describe_group, describe_work
from stead.operate.desk import Desk
from stead.operate.snapshot import PAGE_MAX, Query
from stead.operate.views import GroupView, NodeView, Page, WorkView, explanation_json
from stead.service.pages.about import about, explanation_of, past_of, titles_of
from stead.service.pages.cluster import TEXT_MAX, understood
from stead.service.pages.frame import Frame
from stead.service.pages.sorting import Column, amount_key, heads, known, ordered_by
from stead.service.pages.wording import link, share

ROWS = 100
STATES = ("", "running", "waiting")
GROUP_STATES = ("", "placed", "waiting")
KINDS = ("task", "actor", "pod", "ask", "member", "other")


@dataclass(frozen=True, slots=True)
class Wish:
    """What the user wants to see of a list."""

    state: str = ""
    q: str = ""
    owner: str = ""
    name: str = ""
    node: str = ""
    kind: str = ""
    sort: str = ""
    offset: int = 0

    @staticmethod
    def of(request: Request) -> Wish:
        given = {name: request.query_params.get(name, "").strip()[:TEXT_MAX] for name in _TEXTS}
        offset = request.query_params.get("offset", "0")
        return Wish(**given, offset=int(offset) if offset.isascii() and offset.isdecimal() and len(offset) < 9 else 0)

    def link(self, room: str, **other: str | int) -> str:
        return link(room, **{**{name: value for name, value in asdict(self).items() if value}, **other})

    @property
    def narrows(self) -> bool:
        """Whether it filters rows."""
        return any((self.state, self.q, self.owner, self.name, self.node, self.kind))

    def has_name(self, *names: str) -> bool:
        text = self.name.lower()
        return any(text in name.lower() for name in names)


_TEXTS = ("state", "q", "owner", "name", "node", "kind", "sort")


def add_work(pages: APIRouter, frame: Frame) -> None:
    desk = frame.desk

    @pages.get("/ui/work")
    def work(request: Request) -> HTMLResponse:
        wish = Wish.of(request)
        columns = work_columns(desk, wish)
        rows: Page[WorkView] | None = None
        more, problem = False, ""
        try:
            rows, more = work_rows(desk, wish, columns)
        except Invalid as error:
            problem = str(error)
        return frame.page(
            request,
            "work_list.html",
            section="work",
            rows=rows,
            wish=wish,
            kinds=KINDS,
            states=STATES,
            heads=heads(columns, wish.sort, lambda order: wish.link("work", sort=order, offset="")),
            more=more,
            looked_at=PAGE_MAX,
            problem=problem,
            page_size=ROWS,
            titles=titles_of(desk, (each.node for each in rows.items) if rows else ()),
        )

    @pages.get("/ui/work/{id:path}")
    def one(request: Request, id: str) -> HTMLResponse:
        try:
            description = describe_work(desk, id)
            why = explanation_of(desk, description.id)
        except Absent as error:
            return past_of(request, frame, id, error)
        view = description.subject
        assert isinstance(view, WorkView)
        scored = [why["chosen"], *why["runners_up"]] if why["chosen"] else []
        ids = [view.node, *(each["node"] for each in scored)]
        return frame.page(
            request,
            "work.html",
            section="work",
            work=view,
            why=why,
            scored=scored,
            shares=shares_of(view.resources, description.nodes),
            about=about(frame, description.events, [view.node] if view.node else None),
            titles=titles_of(desk, ids),
        )


def work_columns(desk: Desk, wish: Wish) -> list[Column[WorkView]]:
    titles: Mapping[str, str] = {}
    if wish.sort.removeprefix("-") == "node":
        everything = desk.nodes(Query(limit=PAGE_MAX)).items
        titles = {view.id: view.name or view.id for view in everything}
    return [
        Column("work", "Work", lambda each: each.name or each.id),
        Column("state", "State", lambda each: each.state),
        Column("node", "Node", lambda each: titles.get(each.node, each.node)),
        Column("needs", "Needs", lambda each: amount_key(each.resources)),
        Column("rules", "Rules"),
        Column("owner", "Owner", lambda each: each.owner_title),
        Column("since", "Since", lambda each: each.since),
    ]


def work_rows(desk: Desk, wish: Wish, columns: Sequence[Column[WorkView]]) -> tuple[Page[WorkView], bool]:
    """The rows of a list, and whether there were too many to look at all of them."""
    selector = _selector(wish.q)
    filters = [f"{name}={value}" for name in ("state", "owner", "kind") if (value := getattr(wish, name))]
    if wish.node:
        filters.append(f"node={desk.node(wish.node).id}")
    sort = known(columns, wish.sort)
    if not wish.name and not sort:
        return desk.work(Query(tuple(filters), selector, wish.offset, ROWS)), False
    everything = desk.work(Query(tuple(filters), selector, limit=PAGE_MAX))
    named = [each for each in everything.items if wish.has_name(each.name, each.id)]
    return _part(ordered_by(named, columns, sort), wish), everything.total > len(everything.items)


def _selector(text: str) -> Selector | None:
    selector, problem = understood(text)
    if problem:
        raise Invalid(problem)
    return selector


def _part(rows: Sequence[Any], wish: Wish) -> Page[Any]:
    return Page(tuple(rows[wish.offset : wish.offset + ROWS]), len(rows), wish.offset)


def shares_of(amounts: Mapping[str, float], nodes: Sequence[NodeView]) -> dict[str, int]:
    """The share of its node that work takes, in percent of each resource."""
    total = nodes[0].total if nodes else {}
    return {name: share(total[name], total[name] - amount) for name, amount in amounts.items() if total.get(name)}


def add_groups(pages: APIRouter, frame: Frame) -> None:
    desk = frame.desk

    @pages.get("/ui/groups")
    def groups(request: Request) -> HTMLResponse:
        wish = Wish.of(request)
        columns = GROUP_COLUMNS
        part: Page[GroupView] | None = None
        strategies: list[str] = []
        problem = ""
        try:
            everything = desk.groups(Query(limit=PAGE_MAX)).items
            strategies = sorted({each.strategy for each in everything})
            part = _part(ordered_by(chosen_groups(desk, everything, wish), columns, known(columns, wish.sort)), wish)
        except Invalid as error:
            problem = str(error)
        nodes = (node for group in (part.items if part else ()) for _, node in group.members)
        return frame.page(
            request,
            "groups.html",
            section="groups",
            part=part,
            wish=wish,
            kinds=strategies,
            states=GROUP_STATES,
            heads=heads(columns, wish.sort, lambda order: wish.link("groups", sort=order, offset="")),
            problem=problem,
            page_size=ROWS,
            titles=titles_of(desk, nodes),
        )

    @pages.get("/ui/groups/{id:path}")
    def group(request: Request, id: str) -> HTMLResponse:
        try:
            description = describe_group(desk, id)
        except Absent:
            there_is_none = Absent(f"There is no group {id!r} in this cluster; it may have ended.")
            return past_of(request, frame, id, there_is_none)
        view = description.subject
        assert isinstance(view, GroupView)
        nodes = {each.id: each for each in description.nodes}
        return frame.page(
            request,
            "group.html",
            section="groups",
            group=view,
            why=explanation_json(description.why) if description.why else None,
            shares=[
                shares_of(amounts, [nodes[node]] if node in nodes else [])
                for (_, node), amounts in zip(view.members, view.resources, strict=False)
            ],
            about=about(frame, description.events, nodes or None),
            titles=titles_of(desk, nodes),
        )


GROUP_COLUMNS: list[Column[GroupView]] = [
    Column("group", "Group", lambda each: each.name or each.id),
    Column("state", "State", lambda each: each.state),
    Column("strategy", "Strategy", lambda each: each.strategy),
    Column("members", "Members", lambda each: len(each.members), is_number=True),
    Column("needs", "Each needs", lambda each: amount_key(each.resources[0]) if each.resources else ()),
    Column("nodes", "Nodes", lambda each: len({node for _, node in each.members if node}) or None),
    Column("owner", "Owner", lambda each: each.owner_title),
    Column("since", "Since", lambda each: each.since),
]


def chosen_groups(desk: Desk, everything: Sequence[GroupView], wish: Wish) -> list[GroupView]:
    node = desk.node(wish.node).id if wish.node else ""
    return [
        each
        for each in everything
        if wish.has_name(each.name, each.id)
        and wish.state in ("", each.state)
        and wish.kind in ("", each.strategy)
        and wish.owner in ("", each.owner, each.owner_name)
        and (not node or any(node == place for _, place in each.members))
    ]
