"""Bindings: every one has exactly one outcome, and the outcome is certain or says that it is not."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stead.kubernetes.api.binding import Binder, BindResult, Outcome, binding_body
from stead.kubernetes.api.http import ApiClient
from tests.kubernetes.api.servers import (
    Answer,
    Request,
    Server,
    SkippingClock,
    always,
    forever,
    refusal,
    reply,
    scripted,
    until,
)

BOUND = reply(201, {"kind": "Status", "status": "Success"})
LOSS = None
"""The server closes the connection without a response."""


class Bound:
    """A binder with a server, and the results so far."""

    def __init__(self, server: Server, allowed: Callable[[], bool] | None, in_flight_max: int) -> None:
        self.server = server
        self.results: list[BindResult] = []
        self.clock = SkippingClock()
        self.client = ApiClient(server.config())
        self.binder = Binder(
            self.client,
            self.results.append,
            allowed,
            in_flight_max,
            tries_max=4,
            random=Random(1),
            sleep=self.clock.sleep,
            clock=self.clock,
        )


def run(
    answer: Answer,
    use: Callable[[Bound], Awaitable[None]],
    allowed: Callable[[], bool] | None = None,
    in_flight_max: int = 64,
) -> Bound:
    async def main() -> Bound:
        async with Server(answer) as server:
            bound = Bound(server, allowed, in_flight_max)
            try:
                await use(bound)
            finally:
                await bound.binder.close()
                await bound.client.close()
            return bound

    return asyncio.run(main())


async def one(bound: Bound) -> None:
    bound.binder.bind("prod", "web-1", "uid-1", "node-7")
    assert await bound.binder.drain(20)


OUTCOMES: list[tuple[str, list[bytes | None], Outcome]] = [
    ("created", [BOUND], Outcome.BOUND),
    ("ok", [reply(200)], Outcome.BOUND),
    ("the pod is gone", [refusal(404)], Outcome.LOST),
    ("another scheduler was faster", [refusal(409)], Outcome.LOST),
    ("forbidden", [refusal(403)], Outcome.FAILED),
    ("not valid", [refusal(422)], Outcome.FAILED),
    ("too many requests, then created", [refusal(429), refusal(429), BOUND], Outcome.BOUND),
    ("too many requests, then a conflict", [refusal(429), refusal(409)], Outcome.LOST),
    ("too many requests until the tries are used up", [refusal(429)], Outcome.FAILED),
    ("a failure of the server, then created", [refusal(500), BOUND], Outcome.BOUND),
    ("a failure of the server, then a conflict", [refusal(504), refusal(409)], Outcome.AMBIGUOUS),
    ("a failure of the server, then the pod is gone", [refusal(500), refusal(404)], Outcome.LOST),
    ("a failure of the server, then forbidden", [refusal(500), refusal(403)], Outcome.AMBIGUOUS),
    ("failures until the tries are used up", [refusal(503)], Outcome.AMBIGUOUS),
    ("a lost response, then created", [LOSS, BOUND], Outcome.BOUND),
    ("a lost response, then a conflict", [LOSS, refusal(409)], Outcome.AMBIGUOUS),
    ("lost responses until the tries are used up", [LOSS], Outcome.AMBIGUOUS),
]


@pytest.mark.parametrize(("answers", "outcome"), [row[1:] for row in OUTCOMES], ids=[row[0] for row in OUTCOMES])
def test_a_binding_has_the_outcome(answers: list[bytes | None], outcome: Outcome) -> None:
    bound = run(scripted(*answers), one)
    (result,) = bound.results
    assert (result.namespace, result.name, result.uid, result.node) == ("prod", "web-1", "uid-1", "node-7")
    assert result.outcome == outcome
    assert bool(result.message) == (outcome != Outcome.BOUND)
    assert result.seconds == pytest.approx(sum(bound.clock.slept))


def test_a_conflict_after_the_client_repeated_the_request_is_ambiguous() -> None:
    """A kept-alive connection was lost under the request, and the client sent it again on another one."""

    async def use(bound: Bound) -> None:
        await bound.client.request("GET", "/warm-up")
        await one(bound)

    bound = run(scripted(reply(), LOSS, refusal(409)), use)
    assert [result.outcome for result in bound.results] == [Outcome.AMBIGUOUS]


def test_a_server_that_cannot_be_reached_is_a_failure_without_doubt() -> None:
    async def main() -> None:
        async with Server(always(BOUND)) as server:
            pass
        bound = Bound(server, None, 1)
        await one(bound)
        assert bound.results[0].outcome == Outcome.FAILED
        assert "cannot connect" in bound.results[0].message
        assert len(bound.clock.slept) == 3
        await bound.binder.close()
        await bound.client.close()

    asyncio.run(main())


def test_the_request_is_a_binding_with_the_uid() -> None:
    bound = run(always(BOUND), one)
    (request,) = bound.server.requests
    assert (request.method, request.path) == ("POST", "/api/v1/namespaces/prod/pods/web-1/binding")
    assert request.json == {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": "web-1", "namespace": "prod", "uid": "uid-1"},
        "target": {"apiVersion": "v1", "kind": "Node", "name": "node-7"},
    }


@given(st.text(), st.text(), st.text(), st.text())
def test_any_names_give_valid_json(namespace: str, name: str, uid: str, node: str) -> None:
    body = json.loads(binding_body(namespace, name, uid, node))
    assert body["metadata"] == {"name": name, "namespace": namespace, "uid": uid}
    assert body["target"]["name"] == node


def test_the_pause_that_the_server_asks_for_is_kept() -> None:
    bound = run(scripted(refusal(429, retry_after="12"), BOUND), one)
    assert bound.clock.slept[0] >= 12


def test_nothing_is_sent_when_the_fence_is_closed() -> None:
    bound = run(always(BOUND), one, allowed=lambda: False)
    assert [result.outcome for result in bound.results] == [Outcome.FENCED]
    assert bound.server.requests == []


def test_a_fence_that_closes_after_a_lost_response_leaves_the_outcome_open() -> None:
    asked: list[bool] = []

    def once() -> bool:
        asked.append(not asked)
        return asked[-1]

    bound = run(scripted(LOSS, BOUND), one, allowed=once)
    assert [result.outcome for result in bound.results] == [Outcome.AMBIGUOUS]
    assert len(bound.server.requests) == 1


def test_the_number_of_bindings_in_flight_is_limited_and_all_of_them_end() -> None:
    now, most, arrived = 0, 0, asyncio.Event()

    async def answer(_request: Request, _writer: asyncio.StreamWriter) -> bytes:
        nonlocal now, most
        now += 1
        most = max(most, now)
        if now == 8:
            arrived.set()
        await arrived.wait()
        now -= 1
        return BOUND

    async def use(bound: Bound) -> None:
        for number in range(200):
            bound.binder.bind("default", f"pod-{number}", f"uid-{number}", "node-1")
        assert bound.binder.queued == 200
        await until(lambda: bound.binder.in_flight == 8)
        assert await bound.binder.drain(20)
        assert (bound.binder.queued, bound.binder.in_flight) == (0, 0)
        bound.binder.bind("default", "later", "uid-later", "node-1")
        assert await bound.binder.drain(20)

    bound = run(answer, use, in_flight_max=8)
    assert most == 8
    assert {result.uid for result in bound.results} == {f"uid-{number}" for number in range(200)} | {"uid-later"}
    assert len(bound.results) == 201


def test_draining_has_a_time_limit_and_closing_gives_every_binding_its_outcome() -> None:
    async def use(bound: Bound) -> None:
        for number in range(3):
            bound.binder.bind("default", f"pod-{number}", f"uid-{number}", "node-1")
        await until(lambda: bound.server.requests)
        assert not await bound.binder.drain(0.01)
        await bound.binder.close()
        bound.binder.bind("default", "late", "uid-late", "node-1")

    bound = run(forever, use, in_flight_max=1)
    assert {result.uid: result.outcome for result in bound.results} == {
        "uid-0": Outcome.AMBIGUOUS,
        "uid-1": Outcome.FAILED,
        "uid-2": Outcome.FAILED,
        "uid-late": Outcome.FAILED,
    }
