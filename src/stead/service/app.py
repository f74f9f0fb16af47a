"""The whole service: API and pages behind the guard.

Rule: nothing is served that did not pass the guard.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

from anyio.to_thread import current_default_thread_limiter
from fastapi import FastAPI

from stead.operate.desk import Desk
from stead.service.api import add_refusals, create_api
from stead.service.guard import App, Guard, Limits
from stead.service.keys import Keys
from stead.service.pages import create_pages
from stead.service.reference import add_reference

THREADS = 8


def create_app(
    desk: Desk, keys: Keys, hosts: Iterable[str] = (), open_reads: bool = True, limits: Limits | None = None
) -> App:
    app = create_inner(desk, keys)
    return Guard(app, keys, hosts, open_reads, limits)


def create_inner(desk: Desk, keys: Keys) -> FastAPI:
    """The application without its guard; FastAPI's own pages load scripts from elsewhere, so they are off."""
    app = FastAPI(
        title="stead",
        version="1",
        docs_url=None,
        redoc_url=None,
        openapi_url="/openapi.json",
        redirect_slashes=False,
        lifespan=_with_few_threads,
    )
    app.include_router(create_api(desk))
    add_reference(app)
    app.include_router(create_pages(desk, keys), include_in_schema=False)
    add_refusals(app)
    return app


@asynccontextmanager
async def _with_few_threads(_: FastAPI) -> AsyncIterator[None]:
    """More threads than can run would only take turns, and the one that talks to everybody would wait for all."""
    current_default_thread_limiter().total_tokens = THREADS
    yield
