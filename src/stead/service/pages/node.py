"""The node page: what a node is and runs, its labels and taints, and a preview of every change.

Rule: a change is first a preview; sending the same fields to another URL applies it; its audit entry undoes it. A
preview has its own URL, so that you can return to it after signing in.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from fastapi import APIRouter, Depends, Path, Query
from fastapi.responses import HTMLResponse, Response
from starlette.requests import Request

from stead.errors import Invalid
from stead.language.arguments import effect_text, labels_of, parse_effect, taints_of
from stead.language.labels import Labels
from stead.language.resources import in_order
from stead.language.taints import Effect, Taint
from stead.language.times import parse_duration
from stead.operate.audit import Entry
from stead.operate.changes import Absent, NodeChange, Removal
from stead.operate.describing import Description, Share, describe_node
from stead.operate.desk import Desk
from stead.operate.views import NodeView
from stead.operate.what_if import Difference
from stead.service.api import author_of
from stead.service.disconnects import WHILE_WANTED
from stead.service.pages.about import about, address_of_change, changed_nodes, past_of, what_stands
from stead.service.pages.frame import Frame, first, go_to, may_compute, read_form
from stead.service.pages.what_if import titles_in
from stead.service.pages.wording import link

NUMBER_MAX = 2**62
CHANGES = ("taint", "untaint", "label", "unlabel", "drain", "uncordon")
FIELDS = ("do", "key", "value", "effect", "for", "owner", "until_job", "evict")
EFFECTS = (
    (Effect.NO_SCHEDULE, "no new work"),
    (Effect.PREFER_NO_SCHEDULE, "new work only as a last resort"),
    (Effect.NO_EXECUTE, "no work at all: running work is evicted"),
)


def add_node(pages: APIRouter, frame: Frame) -> None:
    desk = frame.desk

    def show(request: Request, id: str, given: Mapping[str, str], asks: bool, done: int = 0) -> HTMLResponse:
        try:
            description = describe_node(desk, id)
        except Absent as error:
            return past_of(request, frame, id, error)
        view = description.nodes[0]
        change, difference, problem = tried(desk, view, given) if asks else (None, None, "")
        made = entry_of(desk, done)
        return frame.page(
            request,
            "node.html",
            status=400 if problem else 200,
            section="cluster",
            node=view,
            resources=in_order(view.total),
            labels=sorted(view.labels.items(), key=lambda pair: (view.sources.get(pair[0]) == "stead", pair)),
            ends={(end.key, end.effect): end for end in view.ends},
            description=description,
            devices=devices_of(description),
            given=given,
            change=change,
            sentence=in_words(given, view.title, view.labels) if change else "",
            unasked=bool(given.get("do")) and not asks,
            address=link("nodes", view.id, **given),
            difference=difference,
            problem=problem,
            titles=titles_in(desk, difference),
            done=made,
            stands=what_stands([made], changed_nodes(desk, [made])) if made else {},
            about=about(frame, description.events, [view.id]),
            effects=[(effect_text(effect), text) for effect, text in EFFECTS],
        )

    @pages.get("/ui/nodes/{id:path}")
    def node(request: Request, id: str, done: Annotated[int, Query(ge=0, le=NUMBER_MAX)] = 0) -> HTMLResponse:
        return show(request, id, _fields(request.query_params), may_compute(request), done)

    @pages.post("/ui/ask/nodes/{id:path}", dependencies=[WHILE_WANTED])
    def ask(request: Request, id: str, fields: Annotated[list[tuple[str, str]], Depends(read_form)]) -> HTMLResponse:
        given = _fields(first(fields))
        answer = show(request, id, given, asks=True)
        answer.headers["hx-push-url"] = link("nodes", id, **given)  # to return to; this URL takes no GET
        return answer

    @pages.post("/ui/do/nodes/{id:path}")
    def apply(request: Request, id: str, fields: Annotated[list[tuple[str, str]], Depends(read_form)]) -> Response:
        view = desk.node(id)
        carried = desk.change(change_of(view.id, first(fields)), author_of(request, "page"))
        return go_to(link("nodes", view.id, done=carried.entry.number))

    @pages.post("/ui/do/undo/{number}")
    def undo(request: Request, number: Annotated[int, Path(ge=1, le=NUMBER_MAX)]) -> Response:
        carried = desk.undo(number, author_of(request, "page"))
        return go_to(address_of_change([each.id for each in carried.nodes], carried.entry.number))


def devices_of(description: Description) -> dict[str, list[Share]]:
    """Who holds how much of each kind of device: GPU -> shares, the largest first."""
    found: dict[str, list[Share]] = {}
    for each in sorted(description.shares, key=lambda share: -share.amount):
        found.setdefault(each.resource, []).append(each)
    return found


def _fields(given: Mapping[str, str]) -> dict[str, str]:
    return {name: given[name] for name in FIELDS if name in given}


def tried(desk: Desk, node: NodeView, given: Mapping[str, str]) -> tuple[NodeChange | None, Difference | None, str]:
    """The change that a request describes, what it would do, or what is wrong with it."""
    if not given.get("do"):
        return None, None, ""
    try:
        change = change_of(node.id, given)
        return change, desk.blast(change), ""
    except Invalid as error:
        return None, None, str(error)


def change_of(node: str, given: Mapping[str, str]) -> NodeChange:
    """The change that a form describes."""
    what, key, value = given.get("do", ""), given.get("key", "").strip(), given.get("value", "").strip()
    match what:
        case "taint":
            taint = one_taint(key, value, given.get("effect", ""))
            length = given.get("for", "").strip()
            return NodeChange(
                node,
                (taint,),
                for_s=parse_duration(length, "the time") if length else None,
                owner=given.get("owner", "").strip()[:256],
                until_job=given.get("until_job", "").strip()[:256],
            )
        case "untaint":
            effect = parse_effect(given["effect"]) if given.get("effect") else None
            return NodeChange(node, untaints=(Removal(key, None, effect),))
        case "label":
            return NodeChange(node, labels=Labels(labels_of({key: value})))
        case "unlabel":
            return NodeChange(node, unlabels=(key,))
        case "drain":
            return NodeChange(node, draining=True, evict=given.get("evict") == "yes")
        case "uncordon":
            return NodeChange(node, draining=False)
    raise Invalid(f"there is no change {what!r}; good values are {', '.join(CHANGES)}")


def one_taint(key: str, value: str, effect: str) -> Taint:
    (taint,) = taints_of({key: value})
    return Taint(taint.key, taint.value, parse_effect(effect or "NoSchedule"))


def in_words(given: Mapping[str, str], who: str, labels: Mapping[str, str]) -> str:
    """The change of one or several nodes, as a heading; `labels` are the current ones of a single node."""
    key, value = given.get("key", ""), given.get("value", "")
    pair = f"{key}={value}" if value else key
    match given["do"]:
        case "taint":
            return f"Taint {who} with {pair}:{given.get('effect') or 'NoSchedule'}"
        case "untaint":
            return f"Remove the taint {key} from {who}"
        case "label":
            old = labels.get(key)
            return f"Label {who} with {pair}" + (f" (now {key}={old})" if old not in (None, value) else "")
        case "unlabel":
            return f"Remove the label {key} from {who}"
        case "drain" | "evict":
            evicts = given["do"] == "evict" or given.get("evict") == "yes"
            return f"Drain {who}" + (" and evict running work" if evicts else "")
    return f"Schedule work on {who} again"


def entry_of(desk: Desk, number: int) -> Entry | None:
    """The change that was just made."""
    if number < 1:
        return None
    entries = desk.audit(number - 1, 1)
    return entries[0] if entries and entries[0].number == number else None
