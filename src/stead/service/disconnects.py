"""Cancels a long answer when its client has closed the connection.

Rule: a route that may take long depends on `WHILE_WANTED`. Its work stops at the desk's next `still_wanted`; nothing
else is interrupted.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator

from fastapi import Depends
from starlette.requests import Request

from stead.operate.cancellation import stop_when


async def _while_wanted(request: Request) -> AsyncIterator[None]:
    left = threading.Event()

    async def watch() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass
        left.set()

    watching = asyncio.create_task(watch())
    stop_when(left.is_set)
    try:
        yield
    finally:
        watching.cancel()


WHILE_WANTED = Depends(_while_wanted)
