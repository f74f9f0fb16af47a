"""Pages about the past: events as they come, decisions decided again, and who changed what.

Rule: the newest comes first. A decision is shown with the explanation it had then; Undo is offered where
it works.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

from fastapi import APIRouter, Depends
from fastapi.responses import HTMLResponse
from starlette.requests import Request

from stead.engine import wording
from stead.engine.decisions import BatchDecided, Decision, Evicted, GroupPlaced, Moved, Placed, Refused, Waiting
from stead.errors import Invalid
from stead.operate.desk import Desk, Unanswered
from stead.operate.history import Replayed
from stead.operate.views import explanation_json
from stead.service.pages.about import changed_nodes, what_stands
from stead.service.pages.frame import Frame, Gone, first, may_compute, read_form
from stead.service.pages.wording import listed

EVENTS = 200
LOOKED_AT = 5000
ENTRIES = 50
DECISIONS_SHOWN = 100
SECONDS_MAX = 1e11


def add_past(pages: APIRouter, frame: Frame) -> None:
    desk = frame.desk

    @pages.get("/ui/events")
    def events(request: Request, about: str = "") -> HTMLResponse:
        about = about.strip()[:500]
        last = frame.last_event()
        found = list(desk.events(max(0, last - (LOOKED_AT if about else EVENTS)), LOOKED_AT))
        if about:
            found = [event for event in found if about in event.subject or about in event.text][-EVENTS:]
        newest = max([last, *(event.number for event in found)])
        return frame.page(
            request, "events.html", section="events", events=found[::-1][:EVENTS], last=newest, about=about
        )

    def show(request: Request, ask: str, at: str, asks: bool, before: int = 0) -> HTMLResponse:
        ask = ask.strip()[:512]
        problem = undecided = ""
        replayed = None
        if asks:
            try:
                moment = moment_of(at)
            except Invalid as error:
                problem = str(error)
            else:
                replayed, undecided = replayed_by(desk, ask, moment)
        verified, touched = verified_by(desk)
        last = min(frame.last_entry(), before - 1 if before > 0 else 2**62)
        entries = (
            [each for each in desk.audit(max(0, last - ENTRIES), ENTRIES) if each.number <= last] if last > 0 else []
        )
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
            decisions=[sentence(each) for each in replayed.decisions[:DECISIONS_SHOWN]] if replayed else [],
            decided=len(replayed.decisions) if replayed else 0,
            verified=verified,
            touched=touched,
            entries=entries[::-1],
            stands=what_stands(entries, there),
            there=there,
            older=last - ENTRIES if last > ENTRIES else 0,
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
        raise Gone(f"There is no page /ui/{rest}; the menu above has them all.")


def replayed_by(desk: Desk, ask: str, moment: float | None) -> tuple[Replayed | None, str]:
    """The decision, decided again; or why there is none. Work that the cluster placed by itself has no decision."""
    try:
        return desk.replay(ask, moment), ""
    except Unanswered:
        raise
    except Invalid as error:
        return None, str(error)


def verified_by(desk: Desk) -> tuple[int, str]:
    """How many entries follow from each other, or what is wrong."""
    try:
        return desk.verify(), ""
    except Invalid as error:
        return 0, str(error)


def moment_of(text: str) -> float | None:
    """``2026-11-15T16:20`` in UTC, as a browser's date field writes it, or seconds since 1970."""
    if not text.strip():
        return None
    try:
        found = float(text) if text.replace(".", "", 1).isdecimal() else _written(text)
    except (ValueError, OverflowError):
        found = -1.0
    if not 0 <= found <= SECONDS_MAX:
        raise Invalid(f"the moment {text[:50]!r} must be like 2026-11-15T16:20:00 (UTC)")
    return found


def _written(text: str) -> float:
    moment = datetime.fromisoformat(text.strip())
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def sentence(decision: Decision) -> tuple[str, str, str]:
    """A decision as (whom it concerns, what was decided, an id to look at)."""
    match decision:
        case Placed(id, node, choice):
            return id, f"placed on {node}" + (f" by fallback {choice}" if choice else ""), id
        case GroupPlaced(id, _, members):
            return id, "placed: " + ", ".join(f"{member} on {node}" for member, node in members), id
        case Waiting(ids, refusals):
            reasons = wording.reasons(refusals)
            return listed(ids), f"waits: {reasons}" if reasons else "waits: its members do not fit together", ids[0]
        case Refused(id):
            return id, "refused", id
        case Evicted(id, node, taint):
            return id, f"evicted from {node}: tainted {taint}", id
        case BatchDecided():
            return decision.policy, wording.batch(decision), ""
        case Moved(id, source, target):
            return id, f"moved from {source} to {target}", id
