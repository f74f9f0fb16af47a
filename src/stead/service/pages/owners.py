"""The owners of work: all of them, and one owner with its work, its groups, and a link to its logs.

Rule: external links lead only to the cluster's own dashboard, if it has one.
"""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse

from stead.operate.snapshot import Query
from stead.service.pages.about import titles_of
from stead.service.pages.frame import Frame
from stead.service.pages.work import ROWS


def add_owners(pages: APIRouter, frame: Frame) -> None:
    desk = frame.desk

    @pages.get("/ui/owners")
    def owners(request: Request, offset: int = 0) -> HTMLResponse:
        part = desk.owners(Query(limit=ROWS, offset=max(0, offset)))
        return frame.page(request, "owners.html", section="work", part=part, page_size=ROWS)

    @pages.get("/ui/owners/{id:path}")
    def owner(request: Request, id: str) -> HTMLResponse:
        view = desk.owner(id)
        mine = Query(filters=(f"owner={view.id}",), limit=ROWS)
        work, groups = desk.work(mine), desk.groups(mine)
        return frame.page(
            request,
            "owner.html",
            section="work",
            owner=view,
            work=work,
            groups=groups,
            titles=titles_of(desk, (each.node for each in work.items)),
        )
