"""What all pages share: templates, the frame around a page, forms, and refusals as pages.

Rule: templates escape everything. A refusal is one sentence on a page of its own, in the same frame, under the status
that the API would give; when even the cluster's name cannot be had, the frame does without it.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, HTMLResponse, RedirectResponse, Response
from fastapi.routing import APIRoute
from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request

from stead.errors import Invalid, printable, sentence
from stead.operate.audit import Entry
from stead.operate.describing import last_number
from stead.operate.desk import NODES_MAX, Desk, Unanswered
from stead.operate.snapshot import Query
from stead.operate.views import Event, Page, Summary, WorkView
from stead.service.api import REFUSALS, Missing
from stead.service.keys import Key
from stead.service.pages import wording

ASSETS = Path(__file__).parent.parent / "static"
THEMES = ("light", "dark")
THEME_COOKIE = "stead_theme"
FIELDS_MAX = NODES_MAX + 500
"""A form may have a field for each node of a change, and then some."""
HTMX = {
    "allowEval": False,
    "allowScriptTags": False,
    "includeIndicatorStyles": False,
    "historyCacheSize": 0,
    "refreshOnHistoryMiss": True,
    "scrollIntoViewOnBoost": False,
    "defaultSettleDelay": 0,
    "defaultSwapDelay": 0,
}
SECTIONS = (
    ("cluster", "/ui/", "Cluster"),
    ("waiting", "/ui/waiting", "Waiting"),
    ("work", "/ui/work", "Work"),
    ("groups", "/ui/groups", "Groups"),
    ("what-if", "/ui/what-if", "What if"),
    ("use", "/ui/use", "Use"),
    ("events", "/ui/events", "Events"),
    ("history", "/ui/history", "History"),
)
HEADINGS = {
    400: "That cannot be done",
    401: "A token is needed",
    403: "Not with this token",
    404: "Not found",
    409: "That cannot be done now",
    500: "That did not work",
    503: "The cluster does not answer",
}

log = logging.getLogger(__name__)


class Gone(Missing):
    """What the page is about is not there."""


@dataclass(frozen=True, slots=True)
class Visitor:
    """Whoever looks: a key if a token was shown, and how the page should look."""

    key: Key | None
    theme: str
    address: str  # of this page, to come back to

    @property
    def may_change(self) -> bool:
        return self.key is not None and self.key.may_change


def _printable(value: Any) -> Any:
    """What a template writes: names come from anywhere, and a control or bidi character would change the page."""
    return printable(value, keep="\n\t\r") if type(value) is str else value


def may_compute(request: Request) -> bool:
    """Whether a page may answer a long question that is only in its address. Any site can make a browser open an
    address, so it takes a token, and a request that no other site caused. Everybody else asks by a form."""
    site = request.headers.get("sec-fetch-site", "none").lower()
    return request.state.key is not None and site in ("same-origin", "none")


def visitor_of(request: Request) -> Visitor:
    theme = request.cookies.get(THEME_COOKIE, "")
    query = f"?{request.url.query}" if request.url.query else ""
    here = request.url.path + query if request.method == "GET" else "/ui/"
    return Visitor(getattr(request.state, "key", None), theme if theme in THEMES else "", here)


class Frame:
    """The templates, and the desk that pages ask."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self._last_event = self._last_entry = 0  # the last numbers that were seen
        self._templates = Environment(
            loader=PackageLoader("stead.service", "templates"),
            autoescape=True,
            undefined=StrictUndefined,
            finalize=_printable,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._templates.globals.update(
            sections=SECTIONS, htmx=json.dumps(HTMX), asset=_address_of, words=wording, link=wording.link
        )
        self._templates.filters.update(
            amount=wording.amount, amounts=wording.amounts, ago=wording.ago, moment=wording.moment, share=wording.share
        )

    def page(self, request: Request, template: str, status: int = 200, **values: Any) -> HTMLResponse:
        """A whole page; `section` among the values says where in the menu it is."""
        values.setdefault("summary", None)
        values.setdefault("section", "")
        values["summary"] = values["summary"] or self.desk.summary()
        return HTMLResponse(self.text(template, visitor=visitor_of(request), **values), status)

    def part(self, template: str, **values: Any) -> HTMLResponse:
        """A part of one, for htmx."""
        return HTMLResponse(self.text(template, **values))

    def text(self, template: str, **values: Any) -> str:
        return self._templates.get_template(template).render(**values)

    def refusal(self, request: Request, status: int, said: str) -> Response:
        """One sentence, in the frame if the cluster still says who it is."""
        summary: Summary | None = None
        if status < 500:
            try:
                summary = self.desk.summary()
            except Exception:  # the sentence matters more than the frame
                log.debug("no summary for a refusal", exc_info=True)
        found = self.text(
            "refusal.html",
            visitor=visitor_of(request),
            summary=summary,
            section="",
            heading=HEADINGS.get(status, HEADINGS[500]),
            said=said,
        )
        return HTMLResponse(found, status)

    # -- what several pages ask

    def waiting(self, most: int) -> Page[WorkView]:
        return self.desk.work(Query(filters=("state=waiting",), limit=most))

    def last_event(self) -> int:
        """The number of the last event."""
        self._last_event = last_number(self.desk.events, self._last_event)
        return self._last_event

    def last_entry(self) -> int:
        """The number of the last entry of the audit."""
        self._last_entry = last_number(self.desk.audit, self._last_entry)
        return self._last_entry

    def latest_events(self, most: int) -> list[Event]:
        """Oldest first."""
        return list(self.desk.events(max(0, self.last_event() - most), most))

    def latest_entries(self, most: int) -> list[Entry]:
        """Oldest first."""
        return list(self.desk.audit(max(0, self.last_entry() - most), most))


Answers = Callable[[Request], Coroutine[Any, Any, Response]]


def page_route(frame: Frame) -> type[APIRoute]:
    """Routes whose refusals are pages."""

    def answers(route: APIRoute) -> Answers:
        inner = APIRoute.get_route_handler(route)

        async def answer(request: Request) -> Response:
            try:
                return await inner(request)
            except Exception as error:
                status, said = _refused(error)
                if status >= 500:
                    log.error("%s %s: %s", request.method, request.url.path, said, exc_info=error)
                return await run_in_threadpool(frame.refusal, request, status, said)

        return answer

    return type("PageRoute", (APIRoute,), {"get_route_handler": answers})


def _refused(error: Exception) -> tuple[int, str]:
    """Status and sentence."""
    match error:
        case Invalid():
            return next(REFUSALS[kind] for kind in type(error).__mro__ if kind in REFUSALS), sentence(error)
        case RequestValidationError():
            first = error.errors()[0]
            return 400, f"{first['loc'][-1]}: {first['msg'].lower()}"
        case HTTPException():
            return error.status_code, str(error.detail)
    if isinstance(error, OSError) or type(error).__module__.partition(".")[0] == "ray":
        said = sentence(str(error).strip().partition("\n")[0][:200]) or type(error).__name__
        return 503, f"The cluster does not answer ({said}); reload this page to try again."
    return 500, "Something went wrong in this service; its log says more."


def found(ask: Callable[[str], Any], id: str) -> Any:
    """What the desk finds, or a page that says it is gone."""
    try:
        return ask(id)
    except Unanswered:
        raise
    except Invalid as error:
        raise Gone(str(error)) from None


def is_part(request: Request, target: str) -> bool:
    """Whether htmx asks for one part of the page only."""
    wanted = request.headers.get("hx-target", "")
    return request.headers.get("hx-request") == "true" and wanted == target


async def read_form(request: Request) -> list[tuple[str, str]]:
    """The fields of a form in their order."""
    body = (await request.body()).decode("utf-8", "replace")
    try:
        return parse_qsl(body, keep_blank_values=True, max_num_fields=FIELDS_MAX)
    except ValueError:
        raise Invalid(f"the form has more than {FIELDS_MAX} fields; send fewer") from None


def every(form: list[tuple[str, str]], name: str) -> list[str]:
    """All values of a field, each once, in their order."""
    return list(dict.fromkeys(value for field, value in form if field == name and value))


def go_to(address: str) -> RedirectResponse:
    return RedirectResponse(address, 303)


# -- what pages load


def asset(name: str, versioned: bool) -> Response:
    """A script or a style. Its address changes with what is in it, so that a browser may keep it."""
    if name not in {path.name for path in ASSETS.iterdir()}:
        raise Gone(f"There is no file /static/{name}.")
    kept = "public, max-age=31536000, immutable" if versioned else "no-cache"
    return FileResponse(ASSETS / name, headers={"cache-control": kept})


_MARKS: dict[str, tuple[int, str]] = {}


def _address_of(name: str) -> str:
    path = ASSETS / name
    changed = path.stat().st_mtime_ns
    if _MARKS.get(name, (0, ""))[0] != changed:
        _MARKS[name] = (changed, hashlib.sha256(path.read_bytes()).hexdigest()[:12])
    return f"/static/{name}?v={_MARKS[name][1]}"


def first(form: list[tuple[str, str]]) -> Mapping[str, str]:
    """The fields by name; of equal names the first."""
    return dict(reversed(form))
