"""What all pages share: templates, the frame around a page, forms, and error pages.

Rule: templates escape everything. An error is one sentence on its own page, in the same frame, with the status that the
API would return; if the cluster does not answer, the frame omits its title.
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

from stead.engine.explain.events import Event
from stead.errors import Invalid, sentence
from stead.language.resources import amounts_text, in_order, quantity_text
from stead.language.times import duration_text
from stead.operate.audit import Entry
from stead.operate.changes import Absent
from stead.operate.desk import NODES_MAX, Desk
from stead.operate.snapshot import Query
from stead.operate.views import Summary, amounts
from stead.service.api import REFUSALS
from stead.service.keys import Key
from stead.service.pages import wording
from stead.text import plural, price_text, printable, short_id, with_names

ASSETS = Path(__file__).parent.parent / "static"
THEMES = ("light", "dark")
THEME_COOKIE = "stead_theme"
FIELDS_MAX = NODES_MAX + 500
"""A form may have a field for each node of a change, plus a few."""
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
    ("scale", "/ui/scale", "Scale"),
    ("use", "/ui/use", "Usage"),
    ("events", "/ui/events", "Events"),
    ("history", "/ui/history", "History"),
)
HEADINGS = {
    400: "This is not possible",
    401: "A token is required",
    403: "This token is not enough",
    404: "Not found",
    409: "This is not possible now",
    500: "Something went wrong",
    503: "The cluster does not answer",
}

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Visitor:
    """Who looks at the page: the owner of the token, if any, and the chosen theme."""

    key: Key | None
    theme: str
    address: str  # of this page, to return to

    @property
    def may_change(self) -> bool:
        return self.key is not None and self.key.may_change


def _printable(value: Any) -> Any:
    """Escapes control and bidi characters, which could change how the page looks: names come from anywhere."""
    return printable(value, keep="\n\t\r") if type(value) is str else value


def may_compute(request: Request) -> bool:
    """Whether a page may compute an expensive answer on GET. Any site can make a browser open a URL, so this needs a
    token, and a request that no other site caused. All others send a form."""
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
        self._templates = Environment(
            loader=PackageLoader("stead.service", "templates"),
            autoescape=True,
            undefined=StrictUndefined,
            finalize=_printable,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._templates.globals.update(
            sections=SECTIONS,
            htmx=json.dumps(HTMX),
            asset=_address_of,
            words=wording,
            link=wording.link,
            plural=plural,
            short_id=short_id,
            duration_text=duration_text,
            in_order=in_order,
            named=self.named,
            called=self.called,
        )
        self._templates.filters.update(
            amount=lambda amount, name: quantity_text(name, amount),
            amounts=amounts_text,
            units=lambda resources: amounts_text(amounts(resources)),
            price=price_text,
            ago=wording.ago,
            moment=wording.moment,
            share=wording.share,
        )

    def named(self, text: str) -> str:
        """Text with display names in place of node ids."""
        return with_names(text, self.called)

    def called(self, id: str) -> str:
        """The display name of a node, or of anything else, by its id."""
        found = self.desk.nodes(Query((f"id={id}",), limit=1)).items
        return found[0].title if found else short_id(id)

    def page(self, request: Request, template: str, status: int = 200, **values: Any) -> HTMLResponse:
        """A whole page; `section` in the values selects the menu item."""
        values.setdefault("summary", None)
        values.setdefault("section", "")
        values["summary"] = values["summary"] or self.desk.summary()
        return HTMLResponse(self.text(template, visitor=visitor_of(request), **values), status)

    def part(self, template: str, **values: Any) -> HTMLResponse:
        """A part of a page, for htmx."""
        return HTMLResponse(self.text(template, **values))

    def text(self, template: str, **values: Any) -> str:
        return self._templates.get_template(template).render(**values)

    def refusal(self, request: Request, status: int, text: str) -> Response:
        """One sentence, in the frame if the cluster still answers."""
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
            text=text,
        )
        return HTMLResponse(found, status)

    # -- questions of several pages

    def latest_events(self, most: int) -> list[Event]:
        """Oldest first."""
        return list(self.desk.events(-most, most))

    def latest_entries(self, most: int) -> list[Entry]:
        """Oldest first."""
        return list(self.desk.audit(-most, most))


Answers = Callable[[Request], Coroutine[Any, Any, Response]]


def page_route(frame: Frame) -> type[APIRoute]:
    """Routes whose errors are pages."""

    def answers(route: APIRoute) -> Answers:
        inner = APIRoute.get_route_handler(route)

        async def answer(request: Request) -> Response:
            try:
                return await inner(request)
            except Exception as error:
                status, text = _refused(error)
                if status >= 500:
                    log.error("%s %s: %s", request.method, request.url.path, text, exc_info=error)
                return await run_in_threadpool(frame.refusal, request, status, text)

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
        text = sentence(str(error).strip().partition("\n")[0][:200]) or type(error).__name__
        return 503, f"The cluster does not answer ({text}); reload this page to retry."
    return 500, "Something went wrong in this service; its log has the details."


def is_part(request: Request, target: str) -> bool:
    """Whether htmx requests only this part of the page."""
    wanted = request.headers.get("hx-target", "")
    return request.headers.get("hx-request") == "true" and wanted == target


async def read_form(request: Request) -> list[tuple[str, str]]:
    """The fields of a form, in order."""
    body = (await request.body()).decode("utf-8", "replace")
    try:
        return parse_qsl(body, keep_blank_values=True, max_num_fields=FIELDS_MAX)
    except ValueError:
        raise Invalid(f"the form has more than {FIELDS_MAX} fields; send fewer") from None


def every(form: list[tuple[str, str]], name: str) -> list[str]:
    """All values of a field, each once, in order."""
    return list(dict.fromkeys(value for field, value in form if field == name and value))


def go_to(address: str) -> RedirectResponse:
    return RedirectResponse(address, 303)


# -- assets


def asset(name: str, versioned: bool) -> Response:
    """A script or a style. Its URL changes with its content, so that a browser may cache it."""
    if name not in {path.name for path in ASSETS.iterdir()}:
        raise Absent(f"There is no file /static/{name}.")
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
    """The fields by name; of several with the same name, the first."""
    return dict(reversed(form))
