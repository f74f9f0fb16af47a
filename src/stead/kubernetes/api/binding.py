"""Binds pods to nodes: many requests at a time, each behind the fence, each with one outcome.

Rule: an outcome is certain or says that it is not. After a try whose effect is unknown, only two responses are certain:
success, and that the pod is gone. Everything else is AMBIGUOUS, and the watch shows what happened.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum
from random import Random
from urllib.parse import quote

import msgspec

from stead.kubernetes.api.http import ApiClient, Backoff, Fenced, Unreachable, error_of

IN_FLIGHT_MAX = 64
"""How many bindings are sent at a time. A binding that waits for its retry counts, which slows down new ones when the
server is overloaded."""

TRIES_MAX = 6
"""Maximum number of tries for one binding."""

BACKOFF_BASE_S, BACKOFF_MAX_S = 0.1, 5.0
"""Bounds of the wait before a retry."""

TIMEOUT_S = 15.0
"""The time limit of one try."""


class Outcome(StrEnum):
    """What became of a binding."""

    BOUND = "bound"
    LOST = "lost"
    """The pod is gone, is being deleted, has a scheduling gate, or is assigned already."""
    FENCED = "fenced"
    """Nothing was sent, because this process may no longer bind."""
    FAILED = "failed"
    """The server refused, or could not be reached, in every try."""
    AMBIGUOUS = "ambiguous"
    """The pod may be bound or not; wait for the watch to show it."""


@dataclass(frozen=True, slots=True)
class BindResult:
    """The outcome of one binding. `seconds` is the time since it was queued."""

    namespace: str
    name: str
    uid: str
    node: str
    outcome: Outcome
    message: str
    seconds: float


_json = msgspec.json.Encoder().encode

_Queued = tuple[str, str, str, str, float]
"""Namespace, name, uid, node, and when it was queued. A tuple, because there are thousands in a second."""


def binding_body(namespace: str, name: str, uid: str, node: str) -> bytes:
    """The Binding object. The server refuses it if the pod of this name has another uid."""
    return (
        b'{"apiVersion":"v1","kind":"Binding","metadata":{"name":%b,"namespace":%b,"uid":%b},'
        b'"target":{"apiVersion":"v1","kind":"Node","name":%b}}'
        % (_json(name), _json(namespace), _json(uid), _json(node))
    )


class Binder:
    """Sends bindings and reports each outcome to `done`, exactly once. `allowed` is the fence of every request."""

    def __init__(
        self,
        client: ApiClient,
        done: Callable[[BindResult], None],
        allowed: Callable[[], bool] | None = None,
        in_flight_max: int = IN_FLIGHT_MAX,
        *,
        tries_max: int = TRIES_MAX,
        random: Random | None = None,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._done = done
        self._allowed = allowed
        self._in_flight_max = in_flight_max
        self._tries_max = tries_max
        self._random = random or Random()
        self._sleep = sleep
        self._clock = clock
        self._queue: deque[_Queued] = deque()
        self._workers: set[asyncio.Task[None]] = set()
        self._idle: list[asyncio.Future[None]] = []
        self._drained: asyncio.Event | None = None
        self._in_flight = 0
        self._is_closed = False

    @property
    def queued(self) -> int:
        """How many bindings wait for their first request."""
        return len(self._queue)

    @property
    def in_flight(self) -> int:
        """How many bindings have begun and have no outcome yet."""
        return self._in_flight

    def bind(self, namespace: str, name: str, uid: str, node: str) -> None:
        """Queue a binding, and return at once. Call it in the event loop."""
        queued = (namespace, name, uid, node, self._clock())
        if self._is_closed:
            self._report(queued, Outcome.FAILED, "the binding was not sent, because stead is stopping")
            return
        self._queue.append(queued)
        while self._idle:
            worker = self._idle.pop()
            if not worker.done():
                worker.set_result(None)
                return
        if len(self._workers) < self._in_flight_max:
            task = asyncio.get_running_loop().create_task(self._work())
            self._workers.add(task)
            task.add_done_callback(self._workers.discard)

    async def drain(self, timeout_s: float) -> bool:
        """Wait until every binding has its outcome. False if that takes longer than `timeout_s`."""
        self._drained = asyncio.Event()
        if not self._queue and not self._in_flight:
            return True
        try:
            async with asyncio.timeout(timeout_s):
                await self._drained.wait()
        except TimeoutError:
            return False
        finally:
            self._drained = None
        return True

    async def close(self) -> None:
        """Stop. Bindings in the queue get FAILED; those in flight get AMBIGUOUS."""
        self._is_closed = True
        while self._queue:
            self._report(self._queue.popleft(), Outcome.FAILED, "the binding was not sent, because stead is stopping")
        workers = list(self._workers)
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)

    async def _work(self) -> None:
        """One of up to `in_flight_max` workers: it takes bindings from the queue, and waits when there are none."""
        loop = asyncio.get_running_loop()
        while True:
            while self._queue:
                queued = self._queue.popleft()
                self._in_flight += 1
                outcome, message = Outcome.AMBIGUOUS, "stead stopped before the API server responded"
                try:
                    outcome, message = await self._attempt(queued)
                except Exception as error:  # a bug must not lose the outcome, nor end the worker
                    message = f"the binding failed in an unexpected way: {error!r}"
                finally:
                    self._in_flight -= 1
                    self._report(queued, outcome, message)
                    if self._drained is not None and not self._queue and not self._in_flight:
                        self._drained.set()
            wake = loop.create_future()
            self._idle.append(wake)
            await wake

    def _report(self, queued: _Queued, outcome: Outcome, message: str) -> None:
        namespace, name, uid, node, since = queued
        self._done(BindResult(namespace, name, uid, node, outcome, message, self._clock() - since))

    async def _attempt(self, queued: _Queued) -> tuple[Outcome, str]:
        """Try until the outcome is known or the tries are used up."""
        namespace, name, uid, node, _ = queued
        path = f"/api/v1/namespaces/{quote(namespace, '')}/pods/{quote(name, '')}/binding"
        body = binding_body(namespace, name, uid, node)
        backoff: Backoff | None = None
        is_ambiguous = False
        tries = 0
        while True:
            tries += 1
            retry_after_s = None
            try:
                response = await self._client.request(
                    "POST", path, body=body, timeout_s=TIMEOUT_S, allowed=self._allowed, repeatable=True
                )
            except Fenced:
                message = "stead is no longer the leader, so it did not send the binding"
                return (Outcome.AMBIGUOUS if is_ambiguous else Outcome.FENCED), message
            except Unreachable as error:
                is_ambiguous = is_ambiguous or error.was_sent
                message = str(error)
            else:
                status = response.status
                if status in (200, 201):
                    return Outcome.BOUND, ""
                is_ambiguous = is_ambiguous or response.was_repeated
                refusal = error_of(response)
                message, retry_after_s = refusal.message, refusal.retry_after_s
                if status == 404:
                    return Outcome.LOST, message
                if status == 409:
                    return (Outcome.AMBIGUOUS if is_ambiguous else Outcome.LOST), message
                is_ambiguous = is_ambiguous or status >= 500  # the server may have failed after it wrote the binding
                if status != 429 and status < 500:
                    return (Outcome.AMBIGUOUS if is_ambiguous else Outcome.FAILED), message
            if tries >= self._tries_max:
                return (Outcome.AMBIGUOUS if is_ambiguous else Outcome.FAILED), message
            backoff = backoff or Backoff(BACKOFF_BASE_S, BACKOFF_MAX_S, self._random)
            await self._sleep(backoff.next_s(retry_after_s))
