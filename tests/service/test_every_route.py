"""Every method of every route, from the OpenAPI document and from the application itself, so that none is forgotten.

Rule: the lists of what needs no token are repeated here, so that a new route is closed until it is opened in two
places.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from fastapi import FastAPI
from starlette.routing import Mount, Route

from stead.service.guard import Guard, Limits
from tests.service.asking import HERE, ORIGIN, Answered, Service
from tests.service.conftest import Serve

METHODS = ("GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE", "TRACE", "CONNECT", "PROPFIND")
SAFE = {"GET", "HEAD", "OPTIONS"}
QUESTIONS = {("POST", "/what-if"), ("POST", "/why"), ("POST", "/lint"), ("POST", "/plan")}
OPEN = {"/healthz", "/login", "/logout"}
NO_LIMITS = Limits(reads=1e9, writes=1e9, wrong=1e9)
VALUES = {"node_id": "cpu-1", "id": "web-1", "id:path": "web-1", "number": "1", "number:int": "1", "path:path": "x.css"}


def inside(service: Service) -> FastAPI:
    assert isinstance(service.app, Guard)
    found = service.app._app
    assert isinstance(found, FastAPI)
    return found


def templates(service: Service) -> dict[str, set[str]]:
    """Path -> its methods: from the document and from the application."""
    app = inside(service)
    found: dict[str, set[str]] = {}
    for path, methods in app.openapi()["paths"].items():
        found.setdefault(path, set()).update(method.upper() for method in methods)
    for path, methods in routed(app):
        found.setdefault(path, set()).update(methods)
    return found


def routed(app: FastAPI) -> Iterator[tuple[str, set[str]]]:
    """The routes of the router itself, documented or not."""
    waiting = [("", route) for route in app.router.routes]
    while waiting:
        prefix, route = waiting.pop()
        if isinstance(route, Mount):
            waiting += [(prefix + route.path, each) for each in route.routes or ()]
            yield f"{prefix}{route.path}/x", {"GET"}
        elif isinstance(route, Route):
            yield prefix + route.path, set(route.methods or ())
        else:  # a router that was included
            inner = getattr(route, "original_router", None) or getattr(route, "router", None)
            assert inner is not None, f"what is {route!r}? a new kind of route must be walked here"
            waiting += [(prefix, each) for each in inner.routes]


def filled(template: str) -> str:
    path = template
    for name, value in VALUES.items():
        path = path.replace("{" + name + "}", value)
    while "{" in path:
        path = path[: path.index("{")] + "x" + path[path.index("}") + 1 :]
    return path


def needs_nothing(method: str, path: str) -> bool:
    return path in OPEN or (path.startswith("/static/") and method in SAFE)


def is_question(method: str, path: str) -> bool:
    return method in SAFE or (method, path) in QUESTIONS or (method == "POST" and path.startswith("/ui/ask/"))


def is_kept_out(found: Answered) -> bool:
    """Refused by the guard; a failed sign-in is the page's own answer."""
    return found.status == 401 and found.headers.get("www-authenticate") == "Bearer"


def requests(service: Service) -> list[tuple[str, str]]:
    return [(method, filled(path)) for path in sorted(templates(service)) for method in METHODS]


@pytest.fixture
def closed(serve: Serve) -> Service:
    return serve(open_reads=False, limits=NO_LIMITS)


def state(service: Service) -> object:
    found = service.do("GET", "/nodes").json
    return found, service.do("GET", "/audit").json


def test_the_document_and_the_pages_are_all_walked(closed: Service) -> None:
    found = templates(closed)
    assert {"POST", "DELETE"} <= found["/nodes/taints/{node_id}"]
    assert "PATCH" in found["/nodes/{node_id}"]
    assert any(path.startswith("/ui/do/") for path in found), "the pages are walked too"
    assert len(found) > 30


def test_without_a_token_only_open_routes_are_answered(closed: Service) -> None:
    before = state(closed)
    for method, path in requests(closed):
        found = closed.ask(method, path)
        assert is_kept_out(found) != needs_nothing(method, path), (method, path, found.status)
    assert state(closed) == before


def test_on_loopback_only_questions_are_answered_without_a_token(serve: Serve) -> None:
    service = serve(limits=NO_LIMITS)
    before = state(service)
    for method, path in requests(service):
        found = service.ask(method, path)
        allowed = needs_nothing(method, path) or is_question(method, path)
        assert is_kept_out(found) != allowed, (method, path, found.status)
        assert found.status < 500, (method, path, found.status)
    assert state(service) == before


def test_a_viewer_changes_nothing(closed: Service) -> None:
    viewer = closed.keys.give("viewer", "eve")
    before = state(closed)
    for method, path in requests(closed):
        status = closed.ask(method, path, token=viewer).status
        allowed = needs_nothing(method, path) or is_question(method, path)
        assert (status == 403) != allowed, (method, path, status)
    assert state(closed) == before


@pytest.mark.parametrize(
    "headers",
    [
        [("origin", "http://evil.example")],
        [("origin", "null")],
        [("origin", "http://127.0.0.1:1")],
        [("sec-fetch-site", "cross-site")],
        [("sec-fetch-site", "same-site")],
        [("origin", ORIGIN), ("sec-fetch-site", "cross-site")],
    ],
    ids=lambda headers: " ".join(value for _, value in headers),
)
def test_a_page_of_another_site_sends_nothing_that_is_not_safe(closed: Service, headers: list[tuple[str, str]]) -> None:
    before = state(closed)
    cookie = closed.keys.cookie(closed.token) or ""
    for method, path in requests(closed):
        if method not in SAFE:
            shown = [*headers, ("cookie", cookie.partition(";")[0])]
            assert closed.ask(method, path, headers=shown).status == 403, (method, path)
            assert closed.ask(method, path, token=closed.token, headers=headers).status == 403, (method, path)
    assert state(closed) == before


@pytest.mark.parametrize("host", ["evil.example", f"evil.example:{HERE.partition(':')[2]}", None])
def test_an_unknown_host_name_is_refused(closed: Service, host: str | None) -> None:
    before = state(closed)
    for method, path in requests(closed):
        assert closed.ask(method, path, token=closed.token, host=host).status == 403, (method, path)
    assert state(closed) == before


def test_no_request_without_a_body_is_a_server_error(closed: Service) -> None:
    for method, path in requests(closed):
        assert closed.do(method, path).status < 500, (method, path)
