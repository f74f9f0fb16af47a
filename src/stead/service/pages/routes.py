"""All pages as one router.

Rule: a page's own routes are in its file; this file only lists the pages, in the order in which URLs are matched.
"""

from __future__ import annotations

from fastapi import APIRouter
from fastapi.responses import Response

from stead.operate.desk import Desk
from stead.operate.usage import History
from stead.service.keys import Keys
from stead.service.pages.about import add_about
from stead.service.pages.cluster import add_cluster
from stead.service.pages.comparing import add_comparing
from stead.service.pages.frame import Frame, asset, page_route
from stead.service.pages.many_nodes import add_many_nodes
from stead.service.pages.node import add_node
from stead.service.pages.owners import add_owners
from stead.service.pages.past import add_past
from stead.service.pages.scale import add_scale
from stead.service.pages.sign_in import add_sign_in
from stead.service.pages.use import add_use
from stead.service.pages.waiting import add_waiting
from stead.service.pages.what_if import add_what_if
from stead.service.pages.work import add_groups, add_work


def create_pages(desk: Desk, keys: Keys, history: History) -> APIRouter:
    """All pages. They are not in the OpenAPI document: programs must not rely on them."""
    frame = Frame(desk)
    pages = APIRouter(route_class=page_route(frame), include_in_schema=False)
    add_sign_in(pages, frame, keys)
    add_use(pages, frame, history)
    add_nodes = (add_cluster, add_node, add_many_nodes)
    add_all_work = (add_waiting, add_work, add_groups, add_owners)
    add_questions = (add_what_if, add_comparing, add_scale)
    for add in (*add_nodes, *add_all_work, *add_questions, add_about, add_past):  # the last one matches all other URLs
        add(pages, frame)

    @pages.get("/static/{name}")
    def static(name: str, v: str = "") -> Response:
        return asset(name, bool(v))

    return pages
