"""Evicts pods to make room for another: a nomination, then a condition, a deletion and an event for each victim.

Rule: nothing is deleted unless the pod that needs the room still exists, and only a pod with the uid that was meant. A
victim that was not deleted is reported to `failed`. What concerns one pod is written in order.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from datetime import UTC, datetime
from random import Random
from typing import Any
from urllib.parse import quote

import msgspec

from stead.kubernetes.api.http import ApiClient, ApiError, Backoff, Fenced, Response, Unreachable, error_of
from stead.kubernetes.api.reporting import PodRef, event_body, is_gone

LOG = logging.getLogger("stead.kubernetes")

IN_FLIGHT_MAX = 16
"""For how many pods victims are deleted at the same time."""

TRIES_MAX = 6
"""Maximum number of tries for one request."""

TIMEOUT_S = 15.0
"""The time limit of one try."""

STRATEGIC = "application/strategic-merge-patch+json"

GONE = (404, 409)
"""The pod of this name does not exist, or has another uid."""


class NotSent(Exception):
    """A request had no success; `is_final` if the server refused it for good."""

    def __init__(self, message: str, is_final: bool) -> None:
        super().__init__(message)
        self.is_final = is_final


class Preemptor:
    """Carries out preemptions. Its methods return at once. `allowed` is the fence of every request; `failed` gets the
    victims that were not deleted."""

    def __init__(
        self,
        client: ApiClient,
        failed: Callable[[PodRef, bool], None],
        allowed: Callable[[], bool] | None = None,
        *,
        instance: str = "",
        random: Random | None = None,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._client = client
        self._failed = failed
        self._allowed = allowed
        self._instance = instance or "stead"
        self._random = random or Random()
        self._sleep = sleep
        self._wall_clock = wall_clock
        self._free = asyncio.Semaphore(IN_FLIGHT_MAX)
        self._last: dict[str, asyncio.Task[None]] = {}  # the last task of each pod, by its uid

    @property
    def in_flight(self) -> int:
        """How many pods wait for what is written for them."""
        return len(self._last)

    def preempt(self, pod: PodRef, node: str, victims: Sequence[PodRef]) -> None:
        """Nominate the pod for the node, and delete the victims there."""
        self._then(pod, lambda: self._preempt(pod, node, victims))

    def end_nomination(self, pod: PodRef) -> None:
        """The pod is not nominated any more."""
        self._then(pod, lambda: self._nominate(pod, ""))

    async def close(self) -> None:
        """Stop. What is in flight may have happened or not."""
        tasks = list(self._last.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _then(self, pod: PodRef, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Do this after what was begun for the same pod."""
        before = self._last.get(pod.uid)

        async def in_order() -> None:
            if before is not None:
                await asyncio.wait([before])
            async with self._free:
                await work()

        task = asyncio.get_running_loop().create_task(in_order())
        self._last[pod.uid] = task
        task.add_done_callback(lambda _: self._last.pop(pod.uid, None) if self._last.get(pod.uid) is task else None)

    async def _preempt(self, pod: PodRef, node: str, victims: Sequence[PodRef]) -> None:
        left = list(victims)
        is_final = False
        try:
            await self._nominate(pod, node)
            while left:
                await self._evict(left[0], pod, node)
                left.pop(0)
        except NotSent as error:
            is_final = error.is_final and len(left) > 0
            LOG.warning("a pod was not evicted", extra={"pod": f"{pod.namespace}/{pod.name}", "why": str(error)})
        except Exception:  # a bug must not lose the outcome
            LOG.exception("a pod was not evicted", extra={"pod": f"{pod.namespace}/{pod.name}"})
        finally:
            for number, victim in enumerate(left):
                self._failed(victim, is_final and number == 0)

    async def _nominate(self, pod: PodRef, node: str) -> None:
        """Write or clear `status.nominatedNodeName`."""
        body = {"metadata": {"uid": pod.uid}, "status": {"nominatedNodeName": node or None}}
        await self._write(pod, body, must_exist=bool(node))

    async def _evict(self, victim: PodRef, pod: PodRef, node: str) -> None:
        """Say why the victim is deleted, and delete it with its own grace period."""
        condition = {
            "type": "DisruptionTarget",
            "status": "True",
            "reason": "PreemptionByScheduler",
            "message": f"{pod.scheduler}: preempting to accommodate a higher priority pod",
            "lastProbeTime": None,
            "lastTransitionTime": self._now(),
        }
        await self._write(victim, {"metadata": {"uid": victim.uid}, "status": {"conditions": [condition]}})
        options = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": victim.uid}}
        response = await self._send("DELETE", _path(victim), options, "application/json")
        if response.status in GONE:
            return
        self._check(response, f"delete the pod {victim.namespace}/{victim.name}")
        LOG.info("evicted", extra={"pod": f"{victim.namespace}/{victim.name}", "node": node, "by": pod.name})
        await self._write_event(victim, pod, node)

    async def _write(self, pod: PodRef, body: dict[str, Any], must_exist: bool = False) -> None:
        """Patch the status of a pod, if it still exists."""
        response = await self._send("PATCH", f"{_path(pod)}/status", body, STRATEGIC)
        if is_gone(response):
            if must_exist:
                raise NotSent("it does not exist any more", is_final=False)
            return
        self._check(response, f"patch the status of the pod {pod.namespace}/{pod.name}")

    async def _write_event(self, victim: PodRef, pod: PodRef, node: str) -> None:
        """A lost event is not retried."""
        message = f"Preempted by pod {pod.uid} on node {node}"
        name = f"{victim.name[:200].rstrip('.-')}.{int(self._wall_clock() * 1e9):x}"
        ref = PodRef(victim.namespace, victim.name, victim.uid, pod.scheduler)
        body = event_body(ref, "Normal", "Preempted", message, name, self._now(), self._instance)
        folder = f"/api/v1/namespaces/{quote(victim.namespace, '')}/events"
        try:
            await self._client.request("POST", folder, None, body, timeout_s=TIMEOUT_S, allowed=self._allowed)
        except (Fenced, Unreachable) as error:
            LOG.debug("an event was not written", extra={"why": str(error)})

    async def _send(self, method: str, path: str, body: dict[str, Any], content_type: str) -> Response:
        """Send a request that may be repeated, until the server has answered it."""
        backoff, why = Backoff(random=self._random), ""
        for number in range(TRIES_MAX):
            retry_after_s = None
            try:
                response = await self._client.request(
                    method,
                    path,
                    None,
                    msgspec.json.encode(body),
                    content_type,
                    timeout_s=TIMEOUT_S,
                    allowed=self._allowed,
                    repeatable=True,
                )
            except Fenced:
                raise NotSent("stead is no longer the leader", is_final=False) from None
            except Unreachable as error:
                why = str(error)
            else:
                if response.status != 429 and response.status < 500:
                    return response
                refusal = error_of(response)
                why, retry_after_s = refusal.message, refusal.retry_after_s
            if number < TRIES_MAX - 1:
                await self._sleep(backoff.next_s(retry_after_s))
        raise NotSent(why, is_final=False)

    def _check(self, response: Response, what: str) -> None:
        if response.status >= 400:
            error: ApiError = error_of(response)
            raise NotSent(f"cannot {what}: {error.message}", is_final=True)

    def _now(self) -> str:
        """``2026-05-04T12:30:00Z``."""
        return datetime.fromtimestamp(self._wall_clock(), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _path(pod: PodRef) -> str:
    return f"/api/v1/namespaces/{quote(pod.namespace, '')}/pods/{quote(pod.name, '')}"
