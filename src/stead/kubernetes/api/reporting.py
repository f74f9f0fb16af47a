"""Tells users and autoscalers about pods: `PodScheduled=False` conditions and events.

Rule: reports never storm the API server. A pod that changes nothing costs nothing, a newer report replaces the queued
one, equal content is not written twice, and a token bucket limits everything. `Outbox` decides what to write and when,
without I/O; `Reporter` writes it.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
import time
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from random import Random
from urllib.parse import quote

import msgspec

from stead.kubernetes.api.http import ApiClient, ApiError, Backoff, Fenced, Response, Unreachable, error_of, pause

LOG = logging.getLogger("stead.kubernetes")

WRITES_PER_S, WRITES_BURST = 50.0, 100
"""The rate and the burst of the token bucket; every request takes one token."""

REPEAT_AFTER_S, REPEAT_AFTER_S_MAX = 30.0, 600.0
"""The shortest time between two reports on one pod. It doubles while the pod's reason keeps changing, up to the second
value, and returns to the first after a quiet time of twice its length."""

RETRY_S, RETRY_S_MAX = 1.0, 60.0
"""Bounds of the wait before a failed report is written again."""

PODS_MAX = 100_000
"""How many pods are remembered. When all of them have queued reports, reports on other pods are dropped."""

EVENTS_MAX = 4_096
"""How many written events are remembered, to count repetitions instead of new events."""

IN_FLIGHT_MAX = 8
"""How many pods are reported on at the same time."""

EVENT_MESSAGE_MAX = 1_024
"""The server's limit for the message of an event."""

CONDITION_MESSAGE_MAX = 4_096
"""A longer message of a condition is cut."""

TIMEOUT_S = 15.0
"""The time limit of one request."""

UNSCHEDULABLE = "Unschedulable"
"""The reason in the condition that autoscalers act on."""


@dataclass(frozen=True, slots=True)
class PodRef:
    """Which pod, and the name of its scheduler, which writes about it. The uid makes sure that a new pod of the same
    name is not meant."""

    namespace: str
    name: str
    uid: str
    scheduler: str = "stead"


@dataclass(frozen=True, slots=True)
class Report:
    """What to write about a pod: that it cannot be scheduled and why, or, if `node` is given, where it was bound."""

    reason: str
    message: str
    node: str = ""


class TokenBucket:
    """Allows `rate` actions a second, and up to `burst` at once."""

    def __init__(self, rate: float, burst: float, now: float) -> None:
        self._rate = rate
        self._burst = burst
        self._tokens = burst
        self._at = now

    def available(self, now: float) -> float:
        """The tokens there are now."""
        if now > self._at:
            self._tokens = min(self._burst, self._tokens + (now - self._at) * self._rate)
        self._at = now
        return self._tokens

    def take(self, count: float, now: float) -> bool:
        """Take the tokens if there are enough."""
        if self.available(now) < count:
            return False
        self._tokens -= count
        return True

    def wait_s(self, count: float, now: float) -> float:
        """How long until there are enough."""
        return max(0.0, (count - self.available(now)) / self._rate)


class _Pod:
    """What is known about one pod's reports."""

    __slots__ = ("failures", "gap_s", "is_queued", "is_writing", "ref", "since", "wanted", "written", "written_at")

    def __init__(self, ref: PodRef) -> None:
        self.ref = ref
        self.wanted: Report | None = None
        self.written: Report | None = None
        self.written_at = float("-inf")
        self.gap_s = 0.0
        self.since = ""
        self.failures = 0
        self.is_queued = False
        self.is_writing = False


@dataclass(frozen=True, slots=True)
class Job:
    """One report that is due. Give it back with `Outbox.written`, `retry` or `forget`."""

    pod: _Pod
    report: Report


class Outbox:
    """Which report to write next. Pure: the caller brings the time, in seconds on a clock that never goes back."""

    def __init__(
        self,
        now: float,
        rate: float = WRITES_PER_S,
        burst: int = WRITES_BURST,
        repeat_after_s: float = REPEAT_AFTER_S,
        pods_max: int = PODS_MAX,
    ) -> None:
        self.failures_dropped = 0
        """Reports on pending pods that were dropped because the queue was full."""
        self.scheduled_dropped = 0
        """Reports on bound pods that were dropped because there was more important work."""
        self._bucket = TokenBucket(rate, burst, now)
        self._cost = min(2, burst)  # a condition and an event
        self._repeat_after_s = repeat_after_s
        self._repeat_after_s_max = max(REPEAT_AFTER_S_MAX, repeat_after_s)
        self._pods_max = pods_max
        self._pods: OrderedDict[str, _Pod] = OrderedDict()
        self._due: list[tuple[float, int, _Pod]] = []
        self._order = 0
        self._scheduled: deque[Job] = deque()
        self._paused_until = float("-inf")

    def __len__(self) -> int:
        """How many reports wait."""
        return sum(1 for pod in self._pods.values() if pod.wanted is not None) + len(self._scheduled)

    def report(self, ref: PodRef, report: Report, now: float) -> None:
        """The pod is pending for this reason. It replaces a report on the same pod that is still queued."""
        pod = self._pods.get(ref.uid)
        if pod is None:
            pod = self._remember(ref)
            if pod is None:
                self.failures_dropped += 1
                return
        if report == pod.written and not pod.is_writing:
            pod.wanted = None  # what was queued in between is outdated
            return
        pod.wanted = report
        if not pod.is_queued and not pod.is_writing:
            self._queue(pod, max(now, pod.written_at + pod.gap_s))

    def scheduled(self, ref: PodRef, node: str, now: float, is_reported: bool = True) -> None:
        """The pod was bound: forget its failures, and report this if nothing more important needs the tokens."""
        self.forget(ref.uid)
        if not is_reported:
            return
        if not self.room_for_scheduled(now):
            self.scheduled_dropped += 1
            return
        message = f"Successfully assigned {ref.namespace}/{ref.name} to {node}"
        self._scheduled.append(Job(_Pod(ref), Report("Scheduled", message, node)))

    def room_for_scheduled(self, now: float) -> int:
        """How many reports on bound pods the tokens allow, besides more important ones."""
        if self._is_urgent(now) or self.is_paused(now):
            return 0
        return max(int(self._bucket.available(now)) - len(self._scheduled), 0)

    def forget(self, uid: str) -> None:
        """The pod is gone or bound: drop what is queued and known about it."""
        pod = self._pods.pop(uid, None)
        if pod is not None:
            pod.wanted = None

    def holds(self, job: Job) -> bool:
        """Whether its pod was not forgotten since the report was taken."""
        return self._pods.get(job.pod.ref.uid) is job.pod

    def clear(self) -> None:
        """Forget all pods, and what was written about them."""
        for pod in self._pods.values():
            pod.wanted = None
        self._pods.clear()
        self._due.clear()
        self._scheduled.clear()

    def is_paused(self, now: float) -> bool:
        """Whether `pause_until` forbids to write now."""
        return now < self._paused_until

    def pause_until(self, moment: float) -> None:
        """Write nothing before this moment."""
        self._paused_until = max(self._paused_until, moment)

    def take(self, now: float) -> Job | None:
        """The next report that is due and that the token bucket allows."""
        if self.is_paused(now):
            return None
        if self._is_urgent(now):
            if not self._bucket.take(self._cost, now):
                self._drop_scheduled()
                return None
            pod = heapq.heappop(self._due)[2]
            pod.is_queued, pod.is_writing = False, True
            report, pod.wanted = pod.wanted, None
            assert report is not None, "_is_urgent drops entries without a report"
            return Job(pod, report)
        if self._scheduled:
            if self._bucket.take(1, now):
                return self._scheduled.popleft()
            self._drop_scheduled()
        return None

    def wait_s(self, now: float) -> float | None:
        """How long until `take` may return something; None until something is reported."""
        if self._scheduled:
            return max(0.0, self._paused_until - now)
        self._is_urgent(now)
        if not self._due:
            return None
        moment = max(self._due[0][0], self._paused_until)
        return max(moment - now, self._bucket.wait_s(self._cost, now))

    def written(self, job: Job, now: float) -> None:
        """The report was written, or the server refused it for good."""
        pod = job.pod
        is_quiet = now - pod.written_at >= 2 * pod.gap_s
        pod.gap_s = self._repeat_after_s if is_quiet else min(2 * pod.gap_s, self._repeat_after_s_max)
        pod.written, pod.written_at = job.report, now
        pod.failures = 0
        pod.is_writing = False
        if self._pods.get(pod.ref.uid) is not pod:
            return  # forgotten meanwhile
        self._pods.move_to_end(pod.ref.uid)
        if pod.wanted == pod.written:
            pod.wanted = None
        if pod.wanted is not None:
            self._queue(pod, now + pod.gap_s)

    def retry(self, job: Job, now: float) -> None:
        """The report was not written; write it, or a newer one, later."""
        pod = job.pod
        pod.is_writing = False
        if self._pods.get(pod.ref.uid) is not pod:
            return
        pod.wanted = pod.wanted or job.report
        self._queue(pod, now + min(RETRY_S * 2.0 ** min(pod.failures, 32), RETRY_S_MAX))
        pod.failures += 1

    def _queue(self, pod: _Pod, due_at: float) -> None:
        pod.is_queued = True
        self._order += 1
        heapq.heappush(self._due, (due_at, self._order, pod))
        if len(self._due) > 2 * len(self._pods) + 1_000:  # most of them are of forgotten pods
            self._due = [entry for entry in self._due if entry[2].wanted is not None]
            heapq.heapify(self._due)

    def _is_urgent(self, now: float) -> bool:
        """Whether a report on a pending pod is due."""
        while self._due and self._due[0][2].wanted is None:
            heapq.heappop(self._due)[2].is_queued = False
        return bool(self._due) and self._due[0][0] <= now

    def _drop_scheduled(self) -> None:
        self.scheduled_dropped += len(self._scheduled)
        self._scheduled.clear()

    def _remember(self, ref: PodRef) -> _Pod | None:
        """A new entry, in place of the oldest one if there are too many."""
        if len(self._pods) >= self._pods_max:
            oldest = next(iter(self._pods.values()))
            if oldest.wanted is not None or oldest.is_writing:
                return None
            del self._pods[oldest.ref.uid]
        pod = self._pods[ref.uid] = _Pod(ref)
        return pod


class Reporter:
    """Writes conditions and events. Its methods return at once; `run` writes until it is cancelled."""

    def __init__(
        self,
        client: ApiClient,
        allowed: Callable[[], bool] | None = None,
        *,
        instance: str = "",
        reports_scheduled: bool = True,
        rate: float = WRITES_PER_S,
        burst: int = WRITES_BURST,
        repeat_after_s: float = REPEAT_AFTER_S,
        pods_max: int = PODS_MAX,
        events_max: int = EVENTS_MAX,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        random: Random | None = None,
    ) -> None:
        """`instance` names this process in events. Bound pods are reported if `reports_scheduled`."""
        self.writes = 0
        """How many requests were sent."""
        self.errors = 0
        """How many of them failed."""
        self._client = client
        self._allowed = allowed
        self._instance = instance or "stead"
        self._reports_scheduled = reports_scheduled
        self._clock = clock
        self._wall_clock = wall_clock
        self._sleep = sleep
        self._backoff = Backoff(random=random)
        self._outbox = Outbox(clock(), rate, burst, repeat_after_s, pods_max)
        self._events_max = events_max
        self._events: OrderedDict[tuple[str, str, str], tuple[str, int]] = OrderedDict()
        self._events_made = 0
        self._wake = asyncio.Event()
        self._denied: set[str] = set()

    @property
    def queued(self) -> int:
        """How many reports wait."""
        return len(self._outbox)

    @property
    def failures_dropped(self) -> int:
        """How many reports on pending pods were dropped because the queue was full."""
        return self._outbox.failures_dropped

    @property
    def scheduled_dropped(self) -> int:
        """How many reports on bound pods were dropped because there was more important work."""
        return self._outbox.scheduled_dropped

    def pending(self, pod: PodRef, message: str, reason: str = UNSCHEDULABLE) -> None:
        """The pod cannot be scheduled, for this reason."""
        self._outbox.report(pod, Report(reason, message), self._clock())
        self._wake.set()

    @property
    def room_for_scheduled(self) -> int:
        """How many reports on bound pods would be written now, and not dropped."""
        return self._outbox.room_for_scheduled(self._clock())

    def scheduled(self, pod: PodRef, node: str) -> None:
        """The pod was bound to the node."""
        self._outbox.scheduled(pod, node, self._clock(), self._reports_scheduled)
        self._wake.set()

    def forget(self, uid: str) -> None:
        """The pod is gone."""
        self._outbox.forget(uid)

    def clear(self) -> None:
        """Forget all pods. Call it when this process becomes the leader: others may have written meanwhile."""
        self._outbox.clear()
        self._events.clear()

    async def run(self) -> None:
        """Write what is due, until cancelled."""
        free = asyncio.Semaphore(IN_FLIGHT_MAX)
        writes: set[asyncio.Task[None]] = set()

        def ended(task: asyncio.Task[None]) -> None:
            writes.discard(task)
            free.release()
            self._wake.set()

        try:
            while True:
                await free.acquire()
                job = self._outbox.take(self._clock())
                if job is not None:
                    task = asyncio.get_running_loop().create_task(self._carry_out(job))
                    writes.add(task)
                    task.add_done_callback(ended)
                    continue
                free.release()
                self._wake.clear()
                await pause(self._outbox.wait_s(self._clock()), self._wake, self._sleep)
        finally:
            for task in writes:
                task.cancel()
            await asyncio.gather(*writes, return_exceptions=True)

    async def _carry_out(self, job: Job) -> None:
        try:
            await self._write(job)
        except Fenced:
            self._outbox.forget(job.pod.ref.uid)  # the new leader reports
        except Unreachable:
            self._failed(job, None)
        except ApiError as error:
            self._failed(job, error.retry_after_s)
        except Exception:  # a bug must not stop the reports on other pods
            LOG.exception("cannot report on a pod", extra={"namespace": job.pod.ref.namespace, "pod": job.pod.ref.name})
            self._failed(job, None)
        else:
            self._backoff.reset()

    def _failed(self, job: Job, retry_after_s: float | None) -> None:
        """Write it again later, and pause all reports: the server is in trouble."""
        self.errors += 1
        now = self._clock()
        if not self._outbox.is_paused(now):  # several requests that fail together count once
            self._outbox.pause_until(now + self._backoff.next_s())
        self._outbox.pause_until(now + (retry_after_s or 0.0))
        self._outbox.retry(job, now)

    async def _write(self, job: Job) -> None:
        """Write the condition, then the event. Autoscalers need the condition; a lost event is not retried."""
        ref, report = job.pod.ref, job.report
        if report.node:
            await self._write_event(ref, "Normal", "Scheduled", report.message, self._allowed)
            return
        allowed = partial(self._may_write, job)
        job.pod.since = job.pod.since or self._now()
        response = await self._send(
            "PATCH",
            f"/api/v1/namespaces/{quote(ref.namespace, '')}/pods/{quote(ref.name, '')}/status",
            condition_body(ref, report, job.pod.since),
            "application/strategic-merge-patch+json",
            allowed,
        )
        if is_gone(response):
            self._outbox.forget(ref.uid)
            return
        self._check(response, "patch pods/status")
        self._outbox.written(job, self._clock())
        try:
            await self._write_event(ref, "Warning", "FailedScheduling", report.message, allowed)
        except (ApiError, Unreachable, Fenced):
            self.errors += 1

    async def _write_event(
        self, ref: PodRef, kind: str, reason: str, message: str, allowed: Callable[[], bool] | None
    ) -> None:
        """Create an event, or count its repetition."""
        folder = f"/api/v1/namespaces/{quote(ref.namespace, '')}/events"
        key = (ref.uid, reason, message)
        known = self._events.get(key)
        if known is not None:
            name, count = known[0], known[1] + 1
            body = msgspec.json.encode({"count": count, "lastTimestamp": self._now()})
            kind_of_patch = "application/strategic-merge-patch+json"
            response = await self._send("PATCH", f"{folder}/{name}", body, kind_of_patch, allowed)
            if response.status != 404:  # the server deletes events after an hour
                self._check(response, "patch events")
                self._keep_event(key, name, count)
                return
        self._events_made += 1
        name = f"{ref.name[:200].rstrip('.-')}.{int(self._wall_clock() * 1e9) + self._events_made:x}"
        body = event_body(ref, kind, reason, message, name, self._now(), self._instance)
        response = await self._send("POST", folder, body, "application/json", allowed)
        if response.status != 409:  # it was created by a try whose response was lost
            self._check(response, "create events")
        self._keep_event(key, name, 1)

    def _keep_event(self, key: tuple[str, str, str], name: str, count: int) -> None:
        if key[1] == "Scheduled":
            return  # a pod is bound once
        self._events[key] = (name, count)
        self._events.move_to_end(key)
        if len(self._events) > self._events_max:
            self._events.popitem(last=False)

    async def _send(
        self, method: str, path: str, body: bytes, content_type: str, allowed: Callable[[], bool] | None
    ) -> Response:
        self.writes += 1
        return await self._client.request(method, path, None, body, content_type, timeout_s=TIMEOUT_S, allowed=allowed)

    def _may_write(self, job: Job) -> bool:
        """The fence of a report: a pod that was bound meanwhile must not be called pending."""
        return (self._allowed is None or self._allowed()) and self._outbox.holds(job)

    def _check(self, response: Response, permission: str) -> None:
        """Raise what is worth a retry. Count, and log once, what the server refuses for good."""
        if response.status < 400:
            return
        error = error_of(response)
        if response.status == 429 or response.status >= 500:
            raise error
        self.errors += 1
        if permission not in self._denied:
            self._denied.add(permission)
            LOG.error("cannot %s", permission, extra={"status": response.status, "error": error.message})

    def _now(self) -> str:
        """``2026-05-04T12:30:00Z``."""
        return datetime.fromtimestamp(self._wall_clock(), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def is_gone(response: Response) -> bool:
    """Whether the pod is gone, or another pod has its name now. Servers word the second case in two ways."""
    return response.status in (404, 409) or (response.status == 422 and b'"metadata.uid"' in response.body)


def condition_body(ref: PodRef, report: Report, since: str) -> bytes:
    """The patch that sets the pod's condition. The server refuses it if the pod of this name has another uid."""
    condition = {
        "type": "PodScheduled",
        "status": "False",
        "reason": report.reason,
        "message": cut(report.message, CONDITION_MESSAGE_MAX),
        "lastProbeTime": None,
        "lastTransitionTime": since,
    }
    return msgspec.json.encode({"metadata": {"uid": ref.uid}, "status": {"conditions": [condition]}})


def event_body(ref: PodRef, kind: str, reason: str, message: str, name: str, now: str, instance: str) -> bytes:
    """A core/v1 Event about the pod."""
    pod = {"kind": "Pod", "apiVersion": "v1", "namespace": ref.namespace, "name": ref.name, "uid": ref.uid}
    return msgspec.json.encode(
        {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": ref.namespace},
            "involvedObject": pod,
            "type": kind,
            "reason": reason,
            "message": cut(message, EVENT_MESSAGE_MAX),
            "source": {"component": ref.scheduler},
            "reportingComponent": ref.scheduler,
            "reportingInstance": instance,
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }
    )


def cut(text: str, bytes_max: int) -> str:
    """The text, shortened to this many bytes."""
    encoded = text.encode("utf-8", "replace")
    return text if len(encoded) <= bytes_max else encoded[: bytes_max - 3].decode("utf-8", "ignore") + "..."
