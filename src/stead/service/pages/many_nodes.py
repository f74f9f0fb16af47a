"""One change of several nodes, selected on the map or in the table: one preview, one Apply, one audit entry.

Rule: Apply makes exactly the previewed change. A preview holds the ids of its nodes, so a node that joins later is not
changed, and a node that has left is refused. It works without scripts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated

from fastapi import APIRouter, Depends, Query
from fastapi.responses import HTMLResponse, Response
from starlette.requests import Request

from stead.errors import Invalid
from stead.language.arguments import effect_text
from stead.language.selectors import parse_selector
from stead.operate.changes import Absent, NodeChange
from stead.operate.desk import Desk, listed
from stead.operate.snapshot import PAGE_MAX
from stead.operate.snapshot import Query as Part
from stead.operate.views import NodeView
from stead.operate.what_if import Difference
from stead.service.api import author_of
from stead.service.disconnects import WHILE_WANTED
from stead.service.pages.about import address_of_change, changed_nodes, views_of, what_stands
from stead.service.pages.frame import Frame, every, first, go_to, may_compute, read_form
from stead.service.pages.node import EFFECTS, FIELDS, NUMBER_MAX, change_of, entry_of, in_words
from stead.service.pages.what_if import titles_in
from stead.service.pages.wording import link
from stead.text import plural, short_id

Form = list[tuple[str, str]]

ADDRESS_MAX = 3500
"""Longer URLs are not restored after a sign-in."""

VERBS: Mapping[str, str] = {
    "drain": "Drain",
    "evict": "Drain and evict",
    "uncordon": "Uncordon",
    "taint": "Taint",
    "untaint": "Remove a taint",
    "label": "Label",
    "unlabel": "Remove a label",
}
EFFECT_CHOICES = [(effect_text(effect), text) for effect, text in EFFECTS]
KEYED = ("taint", "untaint", "label", "unlabel")
NONE_SELECTED = "no node is selected; select nodes on the map or in the table, or select all"


def add_many_nodes(pages: APIRouter, frame: Frame) -> None:
    desk = frame.desk

    def show(request: Request, form: Form, asks: bool, done: int = 0) -> HTMLResponse:
        given, problem, made = _given(form), "", entry_of(desk, done)
        views: list[NodeView] = []
        difference: Difference | None = None
        try:
            views = list(changed_nodes(desk, [made]).values()) if made else selected(desk, form)
            if asks and is_whole(given):
                difference = desk.blast(*changes_of(views, given))
        except Invalid as error:
            problem = str(error)
        address = link_to([view.id for view in views], given)
        return frame.page(
            request,
            "many_nodes.html",
            status=400 if problem else 200,
            section="cluster",
            views=views,
            given=given,
            verbs=VERBS,
            effects=EFFECT_CHOICES,
            sentence=in_words(given, plural(len(views), "node"), {}) if difference else "",
            unasked=bool(given.get("do")) and not asks,
            difference=difference,
            problem=problem,
            titles=titles_in(desk, difference),
            address=address if len(address) <= ADDRESS_MAX else "/ui/",
            done=made,
            stands=what_stands([made], changed_nodes(desk, [made])) if made else {},
        )

    @pages.get("/ui/change")
    def look(request: Request, done: Annotated[int, Query(ge=0, le=NUMBER_MAX)] = 0) -> HTMLResponse:
        return show(request, request.query_params.multi_items(), may_compute(request), done)

    @pages.post("/ui/ask/change", dependencies=[WHILE_WANTED])
    def ask(request: Request, form: Annotated[Form, Depends(read_form)]) -> HTMLResponse:
        return show(request, form, asks=True)

    @pages.post("/ui/do/change")
    def apply(request: Request, form: Annotated[Form, Depends(read_form)]) -> Response:
        given = _given(form)
        carried = desk.change(changes_of(selected(desk, form), given), author_of(request, "page"))
        return go_to(address_of_change([each.id for each in carried.nodes], carried.entry.number))


def _given(form: Form) -> dict[str, str]:
    found = first(form)
    return {name: found[name].strip() for name in FIELDS if name in found}


def selected(desk: Desk, form: Form) -> list[NodeView]:
    """The selected nodes; or all nodes that match a selector."""
    given = first(form)
    if given.get("all") == "yes":
        text = given.get("q", "").strip()
        part = Part(selector=parse_selector(text) if text else None, limit=PAGE_MAX)
        return list(desk.nodes(part).items)
    ids = every(form, "node")
    if not ids:
        raise Invalid(NONE_SELECTED)
    found = views_of(desk, ids)
    gone = [id for id in ids if id not in found]
    if gone:
        raise Absent(f"there is no node {short_id(gone[0])!r} in this cluster any more; select the others again")
    return [found[id] for id in ids]


def is_whole(given: Mapping[str, str]) -> bool:
    """Whether the change is complete. The bar under the map may send only its kind."""
    what = given.get("do", "")
    return bool(what) and (what not in KEYED or bool(given.get("key")))


def changes_of(views: Sequence[NodeView], given: Mapping[str, str]) -> list[NodeChange]:
    """The same change for every node. What it removes must be on at least one of them."""
    if given.get("do") == "evict":
        given = {**given, "do": "drain", "evict": "yes"}
    elif given.get("do") == "untaint":
        given = {**given, "effect": ""}  # the field is only for taints that are set
    found = listed([replace(change_of(view.id, given), missing_ok=True) for view in views])
    for removal in found[0].untaints:
        if not any(removal.matches(taint) for view in views for taint in view.taints):
            raise Absent(f"none of the {plural(len(views), 'node')} has a taint {removal}")
    for key in found[0].unlabels:
        if not any(key in view.labels for view in views):
            raise Absent(f"none of the {plural(len(views), 'node')} has a label {key!r}")
    return found


def link_to(ids: Sequence[str], given: Mapping[str, str]) -> str:
    """The URL of a preview, to return to after signing in."""
    address = link("change", **given)
    return address + "".join(f"&{link('', node=id).partition('?')[2]}" for id in ids) if given else "/ui/"
