"""The page of the autoscaler: kinds of nodes, launches, launched nodes and what they cost, the plan, proposals.

Rule: it shows what the autoscaler reported to the desk. Without an autoscaler it can show a plan with the kinds of
nodes that the cluster has, for those who may compute one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter, Depends
from fastapi.responses import HTMLResponse
from starlette.requests import Request

from stead.errors import Invalid
from stead.operate.desk import Desk, Unanswered
from stead.operate.plans import PlanView
from stead.operate.scale import ScaleView
from stead.operate.snapshot import PAGE_MAX, Query
from stead.service.disconnects import WHILE_WANTED
from stead.service.pages.about import titles_of
from stead.service.pages.frame import Frame, may_compute, read_form

NODES_SHOWN = 500
NAMED_MAX = 4


def add_scale(pages: APIRouter, frame: Frame) -> None:
    desk = frame.desk

    def show(request: Request, is_asked: bool) -> HTMLResponse:
        view, problem = desk.scale(), ""
        plan = view.plan if view else None
        if view is None and is_asked:
            try:
                plan = desk.plan(None)
            except Unanswered:
                raise
            except Invalid as error:
                problem = str(error)
        names = names_of(desk) if plan and (plan.new_nodes or plan.pending or plan.fits or plan.coming) else {}
        return frame.page(
            request,
            "scale.html",
            section="scale",
            view=view,
            plan=plan,
            problem=problem,
            states=Counter(each.state for each in view.nodes) if view else {},
            has_prices=has_prices(view, plan),
            named_work=lambda ids: [names.get(id, id) for id in ids],
            titles=titles_of(desk, [node for node, _ in moved_to(view)]),
            nodes_shown=NODES_SHOWN,
            named_max=NAMED_MAX,
        )

    @pages.get("/ui/scale")
    def scale(request: Request) -> HTMLResponse:
        return show(request, may_compute(request))

    @pages.post("/ui/ask/scale", dependencies=[WHILE_WANTED, Depends(read_form)])
    def ask(request: Request) -> HTMLResponse:
        return show(request, True)


def has_prices(view: ScaleView | None, plan: PlanView | None) -> bool:
    """Whether any kind has a price: otherwise the page shows none."""
    return any(each.price for each in (view.kinds if view else ())) or bool(plan and plan.price)


def moved_to(view: ScaleView | None) -> list[tuple[str, str]]:
    """The nodes in proposals, each with the id of work that would move there; "" for nodes that would go."""
    proposals = view.proposals if view else ()
    found = [(node, "") for each in proposals for node in each.nodes]
    return found + [(node, id) for each in proposals for id, node in each.moves]


def names_of(desk: Desk) -> Mapping[str, str]:
    """The names of pending work and groups by id, as far as one page of the list goes."""
    waiting = Query(("state=waiting",), limit=PAGE_MAX)
    found: dict[str, Any] = {each.id: each.name for each in desk.work(waiting).items if each.name}
    return found | {each.id: each.name for each in desk.groups(waiting).items if each.name}
