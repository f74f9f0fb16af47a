"""Leader election on a Lease object, and the fence that a paused leader fails.

Rule: `is_held` is True only while no other process can have taken the lease. A leader counts its time from the moment
it *began* its last successful renewal, and gives up before the lease expires. Others take the lease only after they saw
it unchanged for its full duration on their own clock; times that another machine wrote are never compared.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import UTC, datetime
from random import Random
from urllib.parse import quote

import msgspec

from stead.errors import Invalid
from stead.kubernetes.api.http import ApiClient, ApiError, Unreachable, error_of, pause

LOG = logging.getLogger("stead.kubernetes")

DURATION_S, RENEW_DEADLINE_S, RETRY_S = 15.0, 10.0, 2.0
"""As of kube-scheduler: others wait `DURATION_S`, a leader gives up `RENEW_DEADLINE_S` after its last renewal, and both
try every `RETRY_S`."""

DURATION_S_MAX = 3600.0
"""The longest lease."""

JITTER = 0.2
"""A process that waits for the lease waits up to this fraction longer, so that not all of them try at once."""

RELEASE_TIMEOUT_S = 3.0
"""The time limit for releasing the lease at the end."""


def uptime() -> float:
    """Seconds since the machine started, including the time in which it was suspended, where the system has that."""
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.monotonic()


class LeaseRecord(msgspec.Struct, omit_defaults=True, frozen=True):
    """The `spec` of a Lease."""

    holderIdentity: str | None = None  # noqa: N815
    leaseDurationSeconds: int | None = None  # noqa: N815
    acquireTime: str | None = None  # noqa: N815
    renewTime: str | None = None  # noqa: N815
    leaseTransitions: int | None = None  # noqa: N815


class _LeaseObject(msgspec.Struct):
    metadata: dict[str, object] = {}
    spec: LeaseRecord = LeaseRecord()


_decode = msgspec.json.Decoder(_LeaseObject).decode


def check_times(duration_s: float, renew_deadline_s: float, retry_s: float) -> None:
    """Refuse times that are not safe."""
    times = f"{duration_s:g}, {renew_deadline_s:g} and {retry_s:g}"
    example = "good values are 15, 10 and 2"
    if not all(0 < each <= DURATION_S_MAX for each in (duration_s, renew_deadline_s, retry_s)):
        raise Invalid(f"the times of a lease must be between 0 and {DURATION_S_MAX:g} seconds, not {times}; {example}")
    if duration_s < 1:
        raise Invalid(f"a lease must last at least 1 second, not {duration_s:g}; {example}")
    if not retry_s * (1 + JITTER) < renew_deadline_s < duration_s:
        raise Invalid(
            f"the times of a lease are {times} seconds, but the second must be shorter than the first, and longer than"
            f" {1 + JITTER:g} times the third; {example}"
        )


class Lease:
    """One process's part in the election. `identity` must be unique to this process, not only to this machine."""

    def __init__(
        self,
        client: ApiClient,
        namespace: str,
        name: str,
        identity: str,
        duration_s: float = DURATION_S,
        renew_deadline_s: float = RENEW_DEADLINE_S,
        retry_s: float = RETRY_S,
        *,
        clock: Callable[[], float] = uptime,
        wall_clock: Callable[[], float] = time.time,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        random: Random | None = None,
    ) -> None:
        if not identity:
            raise Invalid("the identity of a leader is empty; give a unique one, like 'stead-0_5b7e'")
        check_times(duration_s, renew_deadline_s, retry_s)
        self.identity = identity
        self.holder = ""
        """The process that holds the lease, as far as this one has seen."""
        self._client = client
        self.name = name
        self.problem = ""
        """Why the last try to read or write the lease failed; "" if it did not."""
        self._namespace = namespace
        self._folder = f"/apis/coordination.k8s.io/v1/namespaces/{quote(namespace, '')}/leases"
        self._path = f"{self._folder}/{quote(name, '')}"
        self._duration_s = duration_s
        self._renew_deadline_s = renew_deadline_s
        self._retry_s = retry_s
        self._clock = clock
        self._wall_clock = wall_clock
        self._sleep = sleep
        self._random = random or Random()
        self._held_since: float | None = None
        self._seen: _LeaseObject | None = None
        self._seen_at = 0.0
        self._stopping = asyncio.Event()

    def is_held(self) -> bool:
        """The fence: whether this process may act as the leader at this moment. It is cheap."""
        since = self._held_since
        return since is not None and 0.0 <= self._clock() - since < self._renew_deadline_s

    async def run(self, on_started: Callable[[], None], on_stopped: Callable[[], None]) -> None:
        """Take part in the election until `stop` is called or the task is cancelled; then release the lease.

        `on_started` is called when this process becomes the leader, `on_stopped` when it no longer is. After a loss it
        takes part again.
        """
        is_leading = False
        try:
            while not self._stopping.is_set():
                is_renewed = await self._attempt()
                if is_leading and not self.is_held():
                    is_leading = self._lead_ends(on_stopped)
                elif is_renewed and not is_leading and self.is_held():
                    is_leading = True
                    LOG.info("became the leader", extra={"lease": self._full_name, "identity": self.identity})
                    on_started()
                await pause(self._wait_s(is_leading), self._stopping, self._sleep)
                if is_leading and not self.is_held():
                    is_leading = self._lead_ends(on_stopped)
        finally:
            had_lease = self._held_since is not None and self.is_held()
            self._held_since = None
            if is_leading:
                on_stopped()
            if had_lease:
                await self._release()

    def stop(self) -> None:
        """End `run`: call it when everything that needed the lease is finished."""
        self._stopping.set()

    def _lead_ends(self, on_stopped: Callable[[], None]) -> bool:
        self._held_since = None
        LOG.warning("no longer the leader", extra={"lease": self._full_name, "identity": self.identity})
        on_stopped()
        return False

    def _wait_s(self, is_leading: bool) -> float:
        """Until the next try; a leader waits no longer than it holds the lease."""
        if is_leading:
            return min(self._retry_s, self._remaining_s())
        return self._retry_s * (1 + JITTER * self._random.random())

    def _remaining_s(self) -> float:
        since = self._held_since
        return 0.0 if since is None else max(0.0, since + self._renew_deadline_s - self._clock())

    async def _attempt(self) -> bool:
        """Acquire or renew the lease once. False if another process holds it or the server did not accept."""
        try:
            is_renewed = await self._acquire_or_renew()
        except (ApiError, Unreachable) as error:
            if not self.problem:
                LOG.warning("cannot update the lease", extra={"lease": self._full_name, "error": str(error)})
            self.problem = f"cannot update the lease {self._full_name}: {error}"
            return False
        self.problem = ""
        return is_renewed

    @property
    def _full_name(self) -> str:
        return f"{self._namespace}/{self.name}"

    async def _acquire_or_renew(self) -> bool:
        if self.is_held() and self._seen is not None:  # what was seen last is current, unless the server refuses it
            if await self._write(self._seen):
                return True
        seen = await self._read()
        if seen is None:
            return await self._write(None)
        holder = seen.spec.holderIdentity or ""
        if holder != self.identity:
            self._held_since = None
            if holder and not self._has_expired(seen.spec):
                return False
        return await self._write(seen)

    def _has_expired(self, record: LeaseRecord) -> bool:
        """Whether the record stayed the same for its full duration, on this process's clock."""
        waited = self._clock() - self._seen_at
        if waited < 0:  # the clock went back: begin to wait again
            self._seen_at = self._clock()
        return waited >= (record.leaseDurationSeconds or self._duration_s)

    async def _read(self) -> _LeaseObject | None:
        response = await self._client.request("GET", self._path, timeout_s=self._timeout_s())
        if response.status == 404:
            self._seen, self.holder = None, ""
            return None
        if response.status != 200:
            raise error_of(response)
        return self._observe(response.body)

    def _observe(self, body: bytes) -> _LeaseObject:
        try:
            seen = _decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ApiError(200, "Undecodable", f"the lease {self.name} cannot be decoded: {error}") from error
        if self._seen is None or seen.spec != self._seen.spec:
            self._seen_at = self._clock()
        holder = seen.spec.holderIdentity or ""
        if holder != self.holder and holder not in ("", self.identity):
            LOG.info("waiting for the lease", extra={"lease": self._full_name, "holder": holder})
        self._seen, self.holder = seen, holder
        return seen

    async def _write(self, seen: _LeaseObject | None) -> bool:
        """Create the lease, or update it if it is still as it was `seen`. False if another process was faster."""
        now = self._now()
        is_mine = seen is not None and seen.spec.holderIdentity == self.identity
        transitions = 0 if seen is None else (seen.spec.leaseTransitions or 0) + (0 if is_mine else 1)
        record = LeaseRecord(
            holderIdentity=self.identity,
            leaseDurationSeconds=max(1, math.ceil(self._duration_s)),
            acquireTime=(seen.spec.acquireTime or now) if is_mine and seen is not None else now,
            renewTime=now,
            leaseTransitions=transitions,
        )
        timeout_s = self._timeout_s()
        began = self._clock()
        if not await self._put(seen, record, timeout_s):
            return False
        self._held_since = began
        return True

    async def _put(self, seen: _LeaseObject | None, record: LeaseRecord, timeout_s: float) -> bool:
        metadata = {"name": self.name, "namespace": self._namespace} if seen is None else seen.metadata
        body = msgspec.json.encode(
            {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": record}
        )
        method, path = ("POST", self._folder) if seen is None else ("PUT", self._path)
        response = await self._client.request(method, path, body=body, timeout_s=timeout_s)
        if response.status == 409 or (response.status == 404 and seen is not None):
            return False
        if response.status not in (200, 201):
            raise error_of(response)
        self._observe(response.body)
        return True

    def _timeout_s(self) -> float:
        """A leader's request must end before its lease does, so that `on_stopped` is called in time."""
        return max(0.1, self._remaining_s()) if self.is_held() else self._renew_deadline_s

    async def _release(self) -> None:
        """Let a successor start at once. Failures do not matter: then it waits for the full duration."""
        seen = self._seen
        if seen is None or seen.spec.holderIdentity != self.identity:
            return
        now = self._now()
        record = LeaseRecord("", 1, acquireTime=now, renewTime=now, leaseTransitions=seen.spec.leaseTransitions or 0)
        with suppress(ApiError, Unreachable):
            if await self._put(seen, record, RELEASE_TIMEOUT_S):
                LOG.info("released the lease", extra={"lease": self._full_name, "identity": self.identity})

    def _now(self) -> str:
        """``2026-05-04T12:30:00.123456Z``; a clock outside of the calendar gives its first moment."""
        try:
            moment = datetime.fromtimestamp(self._wall_clock(), UTC)
        except (ValueError, OverflowError, OSError):
            moment = datetime.fromtimestamp(0, UTC)
        return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
