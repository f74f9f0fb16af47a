"""Live event streams.

Rule: with any number of clients, the cluster is asked once every half second, and each new event is serialised once. A
client that starts further back reads old events in turns of its share. Streams are counted by share: each token has
one, and all visitors without a token have one together. A stream ends when its credentials are no longer accepted.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import takewhile

from starlette.concurrency import run_in_threadpool

from stead.operate.desk import Desk
from stead.operate.views import event_json
from stead.service.guard import VISITORS
from stead.service.writing import written

EVERY_S = 0.5
QUIET_S = 15.0
STREAMS_MAX = 50  # per share
AT_ONCE_MAX = 1000
KEPT_MAX = 5000

Turn = Callable[[], Awaitable[AbstractContextManager[object]]]
Numbered = tuple[int, str]
"""The number of an event, and its text in a stream."""


async def at_once() -> AbstractContextManager[object]:
    """A turn without waiting."""
    return nullcontext()


class Streams:
    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._open: Counter[str] = Counter()
        self._kept: deque[Numbered] = deque(maxlen=KEPT_MAX)
        self._asked_at = 0.0
        self._asking = asyncio.Lock()

    def are_full(self, share: str = VISITORS) -> bool:
        return self._open[share] >= STREAMS_MAX

    async def after(
        self, number: int, share: str = VISITORS, stands: Callable[[], bool] = lambda: True, turn: Turn = at_once
    ) -> AsyncIterator[str]:
        """New events while `stands` returns true; a comment from time to time keeps the connection open. `turn` waits
        for a turn of the share."""
        if self.are_full(share):
            yield "retry: 5000\n\n"
            return
        self._open[share] += 1
        try:
            yield ": events\n\n"
            said_at = time.monotonic()
            while stands():
                news = await self._news(number, turn)
                if news:
                    number, said_at = news[-1][0], time.monotonic()
                    yield "".join([text for _, text in news])
                elif time.monotonic() - said_at > QUIET_S:
                    said_at = time.monotonic()
                    yield ": nothing new\n\n"
                await asyncio.sleep(EVERY_S)
        finally:
            self._open[share] -= 1
            self._open += Counter()  # drops shares without streams

    async def _news(self, after: int, turn: Turn) -> Sequence[Numbered]:
        """The events after this one. A client that is further back than the cache asks the desk itself."""
        kept = self._kept
        if not kept or after < kept[0][0] - 1:
            with await turn():
                found = await run_in_threadpool(self._ask, after)
            if not kept:
                kept.extend(found)
            return found
        async with self._asking:
            if time.monotonic() - self._asked_at > EVERY_S / 2:
                kept.extend(await run_in_threadpool(self._ask, kept[-1][0]))
                self._asked_at = time.monotonic()
        if kept[-1][0] <= after:
            return ()
        news = list(takewhile(lambda event: event[0] > after, reversed(kept)))  # most want only the last few
        return news[::-1][:AT_ONCE_MAX]

    def _ask(self, after: int) -> list[Numbered]:
        events = self._desk.events(after, AT_ONCE_MAX)
        return [(event.number, f"id: {event.number}\ndata: {written(event_json(event))}\n\n") for event in events]
