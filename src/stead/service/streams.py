"""Events as they come, to all who listen.

Rule: however many listen, the cluster is asked once every half second. Streams are counted by share: each token has
one, and all visitors without a token have one together. A stream ends when what opened it is no longer accepted.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Sequence

from starlette.concurrency import run_in_threadpool

from stead.operate.desk import Desk
from stead.operate.views import Event, event_json
from stead.service.guard import VISITORS

EVERY_S = 0.5
QUIET_S = 15.0
STREAMS_MAX = 50  # of each share
CATCHING_UP_MAX = 2  # streams that ask for old events at the same time; the others wait
AT_ONCE_MAX = 1000
KEPT_MAX = 5000


class Streams:
    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._open: Counter[str] = Counter()
        self._kept: deque[Event] = deque(maxlen=KEPT_MAX)
        self._asked_at = 0.0
        self._asking = asyncio.Lock()
        self._catching_up = asyncio.Semaphore(CATCHING_UP_MAX)

    def are_full(self, share: str = VISITORS) -> bool:
        return self._open[share] >= STREAMS_MAX

    async def after(
        self, number: int, share: str = VISITORS, stands: Callable[[], bool] = lambda: True
    ) -> AsyncIterator[str]:
        """Events as they come, while `stands` says so; a comment every now and then keeps the line open."""
        if self.are_full(share):
            yield "retry: 5000\n\n"
            return
        self._open[share] += 1
        try:
            yield ": events\n\n"
            said_at = time.monotonic()
            while stands():
                for event in await self._news(number):
                    number, said_at = event.number, time.monotonic()
                    yield f"id: {event.number}\ndata: {json.dumps(event_json(event))}\n\n"
                if time.monotonic() - said_at > QUIET_S:
                    said_at = time.monotonic()
                    yield ": nothing new\n\n"
                await asyncio.sleep(EVERY_S)
        finally:
            self._open[share] -= 1
            self._open += Counter()  # forget shares that have none

    async def _news(self, after: int) -> Sequence[Event]:
        """What came after an event. Who is further back than what is kept asks for itself."""
        kept = self._kept
        if not kept or after < kept[0].number - 1:
            async with self._catching_up:
                found = await run_in_threadpool(self._desk.events, after, AT_ONCE_MAX)
            if not kept:
                kept.extend(found)
            return found
        async with self._asking:
            if time.monotonic() - self._asked_at > EVERY_S / 2:
                kept.extend(await run_in_threadpool(self._desk.events, kept[-1].number, AT_ONCE_MAX))
                self._asked_at = time.monotonic()
        return [event for event in kept if event.number > after][:AT_ONCE_MAX]
