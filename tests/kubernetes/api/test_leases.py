"""Leader election: one leader at a time, a paused leader is fenced, and a clean stop hands over at once."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

import pytest

from stead.errors import Invalid
from stead.kubernetes.api.http import ApiClient
from stead.kubernetes.api.leases import Lease, uptime
from tests.kubernetes.api.servers import ManualClock, Request, Server, ended, refusal, reply, until

PATH = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases"


class Leases:
    """The API server's part: one Lease, with a resourceVersion that every write checks and changes."""

    def __init__(self) -> None:
        self.lease: dict[str, Any] | None = None
        self.version = 100
        self.failure: bytes | None = None
        self.is_silent = False
        self.fails_after_write = False

    async def answer(self, request: Request, _writer: asyncio.StreamWriter) -> bytes | None:
        if self.is_silent:
            await asyncio.Event().wait()
        if self.failure is not None:
            return self.failure
        response = self._answer(request)
        if self.fails_after_write and request.method != "GET":
            self.fails_after_write = False
            return refusal(500, "the response is lost")
        return response

    def _answer(self, request: Request) -> bytes:
        if request.method == "POST":
            assert request.path == PATH
            if self.lease is not None:
                return refusal(409, "exists")
            return self._store(request.json, 201)
        assert request.path == f"{PATH}/stead"
        if self.lease is None:
            return refusal(404)
        if request.method == "GET":
            return reply(200, self.lease)
        if request.json["metadata"]["resourceVersion"] != self.lease["metadata"]["resourceVersion"]:
            return refusal(409, "modified")
        return self._store(request.json, 200)

    def _store(self, lease: dict[str, Any], status: int) -> bytes:
        self.version += 1
        self.lease = lease
        lease["metadata"]["resourceVersion"] = str(self.version)
        return reply(status, lease)

    @property
    def spec(self) -> dict[str, Any]:
        assert self.lease is not None
        spec: dict[str, Any] = self.lease["spec"]
        return spec


class Process:
    """One process that takes part, with its own clock, and what happened to it."""

    def __init__(self, config: Any, identity: str) -> None:
        self.clock = ManualClock()
        self.happened: list[str] = []
        self.client = ApiClient(config)
        self.lease = Lease(
            self.client,
            "kube-system",
            "stead",
            identity,
            clock=self.clock,
            wall_clock=lambda: self.clock.now,
            sleep=self.clock.sleep,
            random=Random(1),
        )
        self.task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self.task = asyncio.create_task(
            self.lease.run(lambda: self.happened.append("started"), lambda: self.happened.append("stopped"))
        )

    async def settled(self) -> None:
        """Wait until it sleeps."""
        await until(lambda: self.clock.sleepers == 1)

    async def passes(self, seconds: float) -> None:
        """Let time pass, and wait until it sleeps again."""
        await self.settled()
        for _ in range(int(seconds / 0.5)):
            self.clock.advance(0.5)
            await self.settled()


def run(use: Callable[[Leases, Process, Process], Awaitable[None]]) -> None:
    async def main() -> None:
        leases = Leases()
        async with Server(leases.answer) as server:
            processes = Process(server.config(), "a"), Process(server.config(), "b")
            try:
                await use(leases, *processes)
            finally:
                for process in processes:
                    if process.task is not None:
                        await ended(process.task)
                    await process.client.close()

    asyncio.run(main())


def test_the_first_process_creates_the_lease_and_leads() -> None:
    async def use(leases: Leases, a: Process, _b: Process) -> None:
        a.start()
        await a.settled()
        assert a.happened == ["started"] and a.lease.is_held()
        assert leases.spec == {
            "holderIdentity": "a",
            "leaseDurationSeconds": 15,
            "acquireTime": "1970-01-01T00:16:40.000000Z",
            "renewTime": "1970-01-01T00:16:40.000000Z",
            "leaseTransitions": 0,
        }
        await a.passes(60)
        assert a.happened == ["started"] and a.lease.is_held()
        assert leases.spec["acquireTime"] == "1970-01-01T00:16:40.000000Z"
        assert leases.spec["renewTime"] > "1970-01-01T00:17:35"

    run(use)


def test_another_process_waits_as_long_as_the_lease_is_renewed() -> None:
    async def use(_leases: Leases, a: Process, b: Process) -> None:
        a.start()
        await a.settled()
        b.start()
        for _ in range(30):
            await a.passes(2)
            await b.passes(2)
        assert b.happened == [] and not b.lease.is_held()
        assert b.lease.holder == "a"

    run(use)


def test_a_lease_that_is_not_renewed_is_taken_after_its_full_duration() -> None:
    async def use(leases: Leases, a: Process, b: Process) -> None:
        a.start()
        await a.settled()
        b.start()
        await b.passes(14.5)  # the other process stands still
        assert b.happened == []
        await b.passes(4)
        assert b.happened == ["started"]
        assert (leases.spec["holderIdentity"], leases.spec["leaseTransitions"]) == ("b", 1)

    run(use)


def test_a_duration_that_is_not_whole_is_written_rounded_up() -> None:
    """Else another process could take the lease while this one still holds it."""

    async def use(leases: Leases, a: Process, _b: Process) -> None:
        a.lease._duration_s, a.lease._renew_deadline_s = 2.4, 2.3
        a.start()
        await a.settled()
        assert leases.spec["leaseDurationSeconds"] == 3

    run(use)


def test_a_paused_leader_is_fenced_before_it_can_do_anything() -> None:
    async def use(_leases: Leases, a: Process, b: Process) -> None:
        a.start()
        await a.settled()
        a.clock.now += 9.9
        assert a.lease.is_held()
        a.clock.now += 0.2  # its clock has moved on when it wakes up, and nothing else has happened yet
        assert not a.lease.is_held()
        b.start()
        await b.passes(20)
        assert b.lease.is_held()
        a.clock.advance(20)
        await until(lambda: a.happened == ["started", "stopped"])
        await a.settled()
        assert not a.lease.is_held() and a.lease.holder == "b"

    run(use)


def test_the_time_of_a_leader_counts_from_the_beginning_of_its_renewal() -> None:
    async def use(leases: Leases, a: Process, _b: Process) -> None:
        reply_of = leases._answer

        def slowly(request: Request) -> bytes:
            a.clock.now += 4.0  # the request takes 4 s
            return reply_of(request)

        leases._answer = slowly  # type: ignore[method-assign]
        a.start()
        await a.settled()
        assert a.happened == ["started"]
        a.clock.now += 5.9
        assert a.lease.is_held()
        a.clock.now += 0.2
        assert not a.lease.is_held()

    run(use)


@pytest.mark.parametrize(
    "failure", [refusal(500), refusal(403), reply(200, b"not json")], ids=["500", "403", "no JSON"]
)
def test_a_leader_that_cannot_renew_stops_at_the_deadline_and_leads_again_later(failure: bytes) -> None:
    async def use(leases: Leases, a: Process, _b: Process) -> None:
        a.start()
        await a.settled()
        leases.failure = failure
        await a.passes(9.5)
        assert a.happened == ["started"]
        await a.passes(1)
        assert a.happened == ["started", "stopped"] and not a.lease.is_held()
        leases.failure = None
        await a.passes(5)
        assert a.happened == ["started", "stopped", "started"] and a.lease.is_held()

    run(use)


def test_a_renewal_whose_response_was_lost_does_not_end_the_leadership() -> None:
    async def use(leases: Leases, a: Process, _b: Process) -> None:
        a.start()
        await a.settled()
        leases.fails_after_write = True
        await a.passes(20)
        assert a.happened == ["started"] and a.lease.is_held()

    run(use)


def test_a_leader_whose_lease_was_taken_stops_at_once() -> None:
    async def use(leases: Leases, a: Process, _b: Process) -> None:
        a.start()
        await a.settled()
        assert leases.lease is not None
        stolen = json.loads(json.dumps(leases.lease))
        stolen["spec"]["holderIdentity"] = "thief"
        leases._store(stolen, 200)
        await a.passes(2.5)
        assert a.happened == ["started", "stopped"]
        assert a.lease.holder == "thief"

    run(use)


def test_a_deleted_lease_is_created_again() -> None:
    async def use(leases: Leases, a: Process, _b: Process) -> None:
        a.start()
        await a.settled()
        leases.lease = None
        await a.passes(4)
        assert a.happened == ["started"] and a.lease.is_held()
        assert leases.spec["holderIdentity"] == "a"

    run(use)


@pytest.mark.parametrize("is_cancelled", [False, True])
def test_a_clean_stop_hands_over_at_once(is_cancelled: bool) -> None:
    async def use(leases: Leases, a: Process, b: Process) -> None:
        a.start()
        await a.settled()
        b.start()
        await b.settled()
        assert a.task is not None
        if is_cancelled:
            await ended(a.task)
        else:
            a.lease.stop()
            await a.task
        assert a.happened == ["started", "stopped"] and not a.lease.is_held()
        assert (leases.spec["holderIdentity"], leases.spec["leaseDurationSeconds"]) == ("", 1)
        await b.passes(2.5)
        assert b.happened == ["started"]
        assert leases.spec["leaseTransitions"] == 1

    run(use)


def test_a_process_that_does_not_lead_releases_nothing() -> None:
    async def use(leases: Leases, a: Process, b: Process) -> None:
        a.start()
        await a.settled()
        b.start()
        await b.settled()
        b.lease.stop()
        assert b.task is not None
        await b.task
        assert leases.spec["holderIdentity"] == "a"
        assert b.happened == []

    run(use)


def test_two_processes_that_take_over_at_the_same_time_do_not_both_lead() -> None:
    async def use(leases: Leases, a: Process, b: Process) -> None:
        old = {"holderIdentity": "old", "leaseDurationSeconds": 15, "renewTime": "long ago", "leaseTransitions": 5}
        leases._store({"metadata": {"name": "stead"}, "spec": old}, 200)
        a.start()
        b.start()
        await asyncio.gather(a.settled(), b.settled())
        a.clock.advance(20)
        b.clock.advance(20)
        await until(lambda: a.happened or b.happened)
        await asyncio.gather(a.settled(), b.settled())
        assert sorted([a.happened, b.happened]) == [[], ["started"]]
        assert leases.spec["leaseTransitions"] == 6

    run(use)


def test_times_that_another_machine_wrote_do_not_matter() -> None:
    async def use(leases: Leases, a: Process, _b: Process) -> None:
        old = {"holderIdentity": "old", "leaseDurationSeconds": 5, "renewTime": "2999-01-01T00:00:00.000000Z"}
        leases._store({"metadata": {"name": "stead"}, "spec": old}, 200)
        a.start()
        await a.passes(4)
        assert a.happened == []
        await a.passes(4)
        assert a.happened == ["started"]

    run(use)


def test_a_clock_that_goes_back_closes_the_fence() -> None:
    async def use(_leases: Leases, a: Process, _b: Process) -> None:
        a.start()
        await a.settled()
        a.clock.now -= 100
        assert not a.lease.is_held()

    run(use)


@pytest.mark.parametrize(
    ("times", "problem"),
    [
        ((10, 10, 2), "the second must be shorter than the first"),
        ((15, 20, 2), "the second must be shorter than the first"),
        ((15, 10, 9), "and longer than 1.2 times the third"),
        ((15, 10, 0), "must be between 0 and 3600 seconds, not 15, 10 and 0"),
        ((math.inf, 10, 2), "must be between 0 and 3600 seconds, not inf, 10 and 2"),
        ((math.nan, 10, 2), "must be between 0 and 3600 seconds, not nan, 10 and 2"),
        ((0.5, 0.4, 0.1), "a lease must last at least 1 second, not 0.5"),
    ],
)
def test_times_that_are_not_safe_are_refused(times: tuple[float, float, float], problem: str) -> None:
    client: Any = None
    with pytest.raises(Invalid, match=f"{problem}.*; good values are 15, 10 and 2"):
        Lease(client, "x", "y", "me", *times)
    with pytest.raises(Invalid, match="identity of a leader is empty"):
        Lease(client, "x", "y", "")


def test_the_clock_does_not_go_back() -> None:
    assert uptime() <= uptime()
