"""Pages about the past: live events, replayed decisions, and who changed what.

Rule: the newest comes first. A decision is shown with the explanation it had then; Undo is offered only if it is
possible.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from fastapi import APIRouter, Depends
from fastapi.responses import HTMLResponse
from starlette.requests import Request

from stead.engine.decisions import Decision
from stead.engine.explain.events import event_of, ids_of
from stead.errors import Invalid
from stead.language.times import parse_moment
from stead.operate.changes import Absent
from stead.operate.desk import Desk, Unanswered
from stead.operate.history import Replayed
from stead.operate.views import explanation_json
from stead.service.pages.about import changed_nodes, what_stands
from stead.service.pages.frame import Frame, first, may_compute, read_form
from stead.service.pages.wording import listed

EVENTS = 200
LOOKED_AT = 5000
ENTRIES = 50
DECISIONS_SHOWN = 100


def add_past(pages: APIRouter, frame: Frame) -> None:
    desk = frame.desk

    @pages.get("/ui/events")
    def events(request: Request, about: str = "") -> HTMLResponse:
        about = about.strip()[:500]
        found = frame.latest_events(LOOKED_AT if about else EVENTS)
        newest = found[-1].number if found else 0
        if about:
            found = [event for event in found if about in event.subject or about in event.text][-EVENTS:]
        return frame.page(
            request, "events.html", section="events", events=found[::-1][:EVENTS], last=newest, about=about
        )

    def show(request: Request, ask: str, at: str, asks: bool, before: int = 0) -> HTMLResponse:
        ask = ask.strip()[:512]
        problem = undecided = ""
        replayed = None
        if asks:
            try:
                moment = parse_moment(at) if at.strip() else None
            except Invalid as error:
                problem = str(error)
            else:
                replayed, undecided = replayed_by(desk, ask, moment)
        verified, touched = verified_by(desk)
        if before > 0:
            entries = [each for each in desk.audit(max(0, before - 1 - ENTRIES), ENTRIES) if each.number < before]
        else:
            entries = frame.latest_entries(ENTRIES)
        there = changed_nodes(desk, entries)
        return frame.page(
            request,
            "history.html",
            status=400 if problem else 200,
            section="history",
            ask=ask,
            at=at,
            problem=problem,
            undecided=undecided,
            replayed=replayed,
            why=explanation_json(replayed.explanation) if replayed and replayed.explanation else None,
            decisions=decided_in(replayed) if replayed else [],
            decided=len(replayed.decisions) if replayed else 0,
            verified=verified,
            touched=touched,
            entries=entries[::-1],
            stands=what_stands(entries, there),
            there=there,
            older=entries[0].number if entries and entries[0].number > 1 else 0,
        )

    @pages.get("/ui/history")
    def history(request: Request, ask: str = "", at: str = "", before: int = 0) -> HTMLResponse:
        return show(request, ask, at, bool(ask or at) and may_compute(request), before)

    @pages.post("/ui/ask/history")
    def replay(request: Request, fields: Annotated[list[tuple[str, str]], Depends(read_form)]) -> HTMLResponse:
        given = first(fields)
        return show(request, given.get("ask", ""), given.get("at", ""), asks=True)

    @pages.get("/ui/{rest:path}")
    def nothing(rest: str) -> HTMLResponse:
        raise Absent(f"There is no page /ui/{rest}; see the menu above.")


def replayed_by(desk: Desk, ask: str, moment: float | None) -> tuple[Replayed | None, str]:
    """The replayed decision, or why there is none. Work that the cluster itself placed has no decision."""
    try:
        return desk.replay(ask, moment), ""
    except Unanswered:
        raise
    except Invalid as error:
        return None, str(error)


def verified_by(desk: Desk) -> tuple[int, str]:
    """The number of verified entries, or what is wrong."""
    try:
        return desk.verify(), ""
    except Invalid as error:
        return 0, str(error)


def decided_in(replayed: Replayed) -> list[tuple[str, str, str]]:
    return [sentence(each, replayed.names) for each in replayed.decisions[:DECISIONS_SHOWN]]


def sentence(decision: Decision, names: Mapping[str, str]) -> tuple[str, str, str]:
    """A decision as (subject, what was decided, an id to link to)."""
    event = event_of(decision, 0.0, names)
    return listed(ids_of(decision)) or event.subject, event.text, next(iter(ids_of(decision)), "")
