"""The whole service: the API and the pages behind the guard.

Rule: every request passes the guard first. Only the title of the cluster can be set here; everything else comes from
the desk.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, cast

from anyio.to_thread import current_default_thread_limiter
from fastapi import FastAPI

from stead.errors import check_name
from stead.operate.desk import Desk
from stead.operate.usage import History
from stead.operate.views import Summary
from stead.service.api import add_refusals, create_api
from stead.service.guard import App, Guard, Limits
from stead.service.keys import Keys
from stead.service.pages.routes import create_pages
from stead.service.reference import add_reference

THREADS = 8
SWITCH_S = 0.0005
"""How long a thread may compute before Python switches to another; ten times shorter than the default."""

TITLE_MAX = 64


def create_app(
    desk: Desk,
    keys: Keys,
    hosts: Iterable[str] = (),
    open_reads: bool = True,
    limits: Limits | None = None,
    history: History | None = None,
) -> App:
    """`history` is the usage over time; a `Sampler` adds to it."""
    app = create_inner(desk, keys, history)
    return Guard(app, keys, hosts, open_reads, limits)


class _Titled:
    """A desk that gives its cluster another title."""

    def __init__(self, desk: Desk, title: str) -> None:
        self._desk, self._title = desk, title

    def summary(self) -> Summary:
        return replace(self._desk.summary(), title=self._title)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._desk, name)


def titled(desk: Desk, title: str) -> Desk:
    """The same desk, with this title for its cluster."""
    check_name("the title", title, TITLE_MAX, "Training")
    return cast(Desk, _Titled(desk, title.strip()))


def create_inner(desk: Desk, keys: Keys, history: History | None = None) -> FastAPI:
    """The application without its guard. FastAPI's own docs pages load scripts from other sites, so they are off."""
    app = FastAPI(
        title="stead",
        version="1",
        docs_url=None,
        redoc_url=None,
        openapi_url="/openapi.json",
        redirect_slashes=False,
        lifespan=_with_few_threads,
    )
    history = History() if history is None else history
    app.router.routes.extend(create_api(desk, history).routes)  # an included router would match each route twice
    add_reference(app)
    app.router.routes.extend(create_pages(desk, keys, history).routes)
    add_refusals(app)
    return app


@asynccontextmanager
async def _with_few_threads(_: FastAPI) -> AsyncIterator[None]:
    """Limits the threads: more of them than cores would only compete with the event loop, through which every request
    passes several times."""
    current_default_thread_limiter().total_tokens = THREADS
    sys.setswitchinterval(SWITCH_S)
    yield
