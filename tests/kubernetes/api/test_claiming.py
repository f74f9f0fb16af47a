"""Claims are bound before their pods: what is written, and one outcome for every pod that is not forgotten."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random

import pytest

from stead.kubernetes.api.claiming import Claimer, ClaimRef, Object, SelectNode, TakeVolume, Write
from stead.kubernetes.api.http import ApiClient
from stead.kubernetes.api.reporting import PodRef
from tests.kubernetes.api.servers import Answer, Server, SkippingClock, always, forever, refusal, reply, scripted, until

POD = PodRef("shop", "web-0", "uid-web-0")
DATA = ClaimRef("shop", "data", "uid-data")
SELECT = SelectNode(DATA, "n1")
TAKE = TakeVolume(DATA, "disk-1", "uid-disk-1", "7")
WRITTEN = reply(200, {"metadata": {"name": "data"}})


class Claimed:
    """A claimer with a server. `state` is what `look` returns; `outcomes` are the results so far."""

    def __init__(self, server: Server, allowed: Callable[[], bool] | None, timeout_s: float) -> None:
        self.server = server
        self.outcomes: list[str] = []
        self.written: list[tuple[Write, Object]] = []
        self.state: bool | str = False
        self.looks = 0
        self.client = ApiClient(server.config())
        self.claimer = Claimer(
            self.client,
            lambda write, found: self.written.append((write, found)),
            allowed,
            timeout_s=timeout_s,
            random=Random(1),
            sleep=SkippingClock().sleep,
        )

    def look(self) -> bool | str:
        self.looks += 1
        return self.state

    def claim(self, *writes: Write, pod: PodRef = POD) -> None:
        self.claimer.claim(pod, "n1", ["shop/data", "shop/logs"], writes, self.look, self.outcomes.append)


def run(
    answer: Answer,
    use: Callable[[Claimed], Awaitable[None]],
    allowed: Callable[[], bool] | None = None,
    timeout_s: float = 600.0,
) -> Claimed:
    async def main() -> Claimed:
        async with Server(answer) as server:
            claimed = Claimed(server, allowed, timeout_s)
            try:
                await use(claimed)
            finally:
                await claimed.claimer.close()
                await claimed.client.close()
            assert not claimed.claimer.in_flight
            return claimed

    return asyncio.run(main())


def test_a_claim_asks_for_a_volume_and_an_existing_volume_is_given_in_the_version_that_was_seen() -> None:
    async def use(claimed: Claimed) -> None:
        claimed.claim(SELECT, TAKE)
        await until(lambda: claimed.looks == 1)

    claimed = run(always(WRITTEN), use)
    first, second = claimed.server.requests
    assert (first.method, first.path) == ("PATCH", "/api/v1/namespaces/shop/persistentvolumeclaims/data")
    assert first.headers["content-type"] == "application/merge-patch+json"
    annotations = {"volume.kubernetes.io/selected-node": "n1"}
    assert first.json == {"metadata": {"uid": "uid-data", "annotations": annotations}}
    assert (second.method, second.path) == ("PATCH", "/api/v1/persistentvolumes/disk-1")
    assert second.json["metadata"]["resourceVersion"] == "7"
    assert second.json["spec"]["claimRef"]["uid"] == "uid-data"
    assert claimed.written == [(SELECT, {"metadata": {"name": "data"}}), (TAKE, {"metadata": {"name": "data"}})]
    assert claimed.outcomes == [], "it waits"


@pytest.mark.parametrize(("state", "outcome"), [(True, ""), ("it broke", "binding volumes: it broke")])
def test_it_looks_after_every_change_of_one_of_the_claims(state: bool | str, outcome: str) -> None:
    async def use(claimed: Claimed) -> None:
        claimed.claim()
        await until(lambda: claimed.looks == 1)
        claimed.claimer.look_at("shop/logs")
        await until(lambda: claimed.looks == 2)
        claimed.claimer.look_at("shop/other")
        claimed.state = state
        claimed.claimer.look_at("shop/data")
        await until(lambda: claimed.outcomes == [outcome])
        assert claimed.looks == 3
        claimed.claimer.look_at("shop/data")

    assert not run(always(WRITTEN), use).server.requests, "there was nothing to write"


def test_a_pod_whose_claims_are_bound_already_needs_no_wait() -> None:
    async def use(claimed: Claimed) -> None:
        claimed.state = True
        claimed.claim(SELECT)
        await until(lambda: claimed.outcomes == [""])

    run(always(WRITTEN), use)


def test_it_waits_no_longer_than_the_time_out() -> None:
    async def use(claimed: Claimed) -> None:
        claimed.claim(SELECT)
        await until(lambda: bool(claimed.outcomes))

    assert run(always(WRITTEN), use, timeout_s=0.05).outcomes == ["binding volumes: not bound after 0.05 s"]


def test_the_time_out_counts_also_while_the_server_does_not_answer() -> None:
    async def use(claimed: Claimed) -> None:
        claimed.claim(SELECT)
        await until(lambda: bool(claimed.outcomes))

    assert run(forever, use, timeout_s=0.05).looks == 0


@pytest.mark.parametrize(
    ("answers", "outcome", "requests"),
    [
        ([refusal(503), refusal(429, retry_after="1"), WRITTEN], "", 3),
        ([None, WRITTEN], "", 2),
        ([refusal(409, "it has changed")], "binding volumes: it has changed", 1),
        ([refusal(404, "no such claim")], "binding volumes: no such claim", 1),
        ([refusal(422, "another uid")], "binding volumes: another uid", 1),
        ([refusal(500, "broken")] * 6, "binding volumes: broken", 6),
    ],
)
def test_a_write_is_repeated_unless_the_server_refuses_it(
    answers: list[bytes | None], outcome: str, requests: int
) -> None:
    async def use(claimed: Claimed) -> None:
        claimed.state = True
        claimed.claim(SELECT)
        await until(lambda: bool(claimed.outcomes))

    claimed = run(scripted(*answers), use)
    assert claimed.outcomes == [outcome]
    assert len(claimed.server.requests) >= requests


def test_nothing_is_written_behind_the_fence() -> None:
    async def use(claimed: Claimed) -> None:
        claimed.claim(SELECT)
        await until(lambda: bool(claimed.outcomes))

    claimed = run(always(WRITTEN), use, allowed=lambda: False)
    assert claimed.outcomes == ["stead is no longer the leader, so it did not bind the volumes"]
    assert not claimed.server.requests


def test_a_pod_that_is_forgotten_gets_no_outcome() -> None:
    async def use(claimed: Claimed) -> None:
        claimed.claim()
        await until(lambda: claimed.looks == 1)
        claimed.claimer.forget(POD.uid)
        claimed.claimer.forget(POD.uid)
        claimed.state = True
        claimed.claimer.look_at("shop/data")
        claimed.claim(pod=PodRef("shop", "web-1", "uid-web-1"))
        await until(lambda: claimed.outcomes == [""])

    assert run(always(WRITTEN), use).looks == 2


def test_a_bug_is_an_outcome_too() -> None:
    async def use(claimed: Claimed) -> None:
        def broken() -> bool:
            raise ValueError("a bug")

        claimed.claimer.claim(POD, "n1", ["shop/data"], [], broken, claimed.outcomes.append)
        await until(lambda: bool(claimed.outcomes))

    (outcome,) = run(always(WRITTEN), use).outcomes
    assert "a bug" in outcome
