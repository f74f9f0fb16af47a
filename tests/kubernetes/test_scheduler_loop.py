"""The scheduler's loop: whatever fails, watches, bindings and signals get their turn.

Rule: no server runs here. The scheduler is in the test's event loop, with a controller that fails as it is told.
"""

from __future__ import annotations

import asyncio
import json

import pytest

from stead.controller import Controller
from stead.engine.decisions import Decision, Verdict, Waiting
from stead.engine.engine import Engine
from stead.errors import Unwritable
from stead.kubernetes import scheduler as module
from stead.kubernetes.api.binding import BindResult, Outcome
from stead.kubernetes.api.config import ApiConfig
from stead.kubernetes.api.http import ApiClient
from stead.kubernetes.podspec import node_of
from stead.kubernetes.scheduler import Options, Scheduler
from stead.kubernetes.templates import Pod, Templates
from tests.kubernetes import objects
from tests.kubernetes.api.servers import Server, always, ended, forever, refusal, until


class Failing(Controller):
    """A controller whose steps fail."""

    def __init__(self, scheduler: Scheduler, error: Exception) -> None:
        super().__init__(scheduler.cluster, Engine())
        self.error = error
        self.steps = 0

    def step(self) -> list[Decision]:
        self.steps += 1
        raise self.error

    @property
    def next_moment(self) -> float:
        return 0.0


def pod(name: str, **more: object) -> Pod:
    found = objects.pod(name, **more)  # type: ignore[arg-type]  # any field of a spec
    found["metadata"]["uid"] = f"uid-{name}"
    return Templates().decode_pod(json.dumps(found).encode())


async def a_turn() -> None:
    """Let every other task run once."""
    done = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_soon(done.set_result, None)
    await done


async def turns(scheduler: Scheduler, count: int) -> None:
    """Run the loop beside another task that needs this many turns."""
    running = asyncio.create_task(scheduler._until_stopped([]))
    for _ in range(count):
        await a_turn()
    scheduler.stop()
    await asyncio.wait_for(running, 30)
    for task in scheduler._tasks:
        task.cancel()
    await asyncio.gather(*scheduler._tasks, return_exceptions=True)


def test_a_journal_that_cannot_be_written_does_not_stop_the_loop() -> None:
    async def run() -> tuple[int, bool]:
        scheduler = Scheduler(ApiClient(ApiConfig("127.0.0.1", 1)), Options())
        scheduler.controller = failing = Failing(scheduler, Unwritable("the disk is full"))
        scheduler.cluster.nodes_changed([node_of(objects.node("n1"))])
        await turns(scheduler, 200)
        return failing.steps, scheduler.is_ready

    steps, is_ready = asyncio.run(run())
    assert steps < 10, "a step that cannot be written is tried again after a pause"
    assert not is_ready


def test_after_a_step_that_fails_it_begins_again_with_a_new_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TRY_LATER_S", 0.0)

    async def run() -> tuple[Controller | None, Controller]:
        scheduler = Scheduler(ApiClient(ApiConfig("127.0.0.1", 1)), Options())
        scheduler.controller = failing = Failing(scheduler, OverflowError("a bug"))
        scheduler.cluster.nodes_changed([node_of(objects.node("n1"))])
        running = asyncio.create_task(scheduler._until_stopped([]))
        while scheduler.controller in (failing, None) or not scheduler.controller.engine.nodes:
            await a_turn()
        now = scheduler.controller
        scheduler.stop()
        await running
        return now, failing

    now, failing = asyncio.run(run())
    assert now is not failing and now is not None
    assert list(now.engine.nodes) == ["n1"]


def test_an_explanation_that_fails_leaves_the_first_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> str:
        raise OverflowError("a bug")

    monkeypatch.setattr(module, "why_pending", broken)

    async def run() -> str:
        scheduler = Scheduler(ApiClient(ApiConfig("127.0.0.1", 1)), Options())
        scheduler.cluster.nodes_changed([node_of(objects.node("n1"))])
        scheduler.cluster.pods_changed([pod("a", nodeSelector={"disk": "ssd"})])
        scheduler._lead()
        assert scheduler.controller is not None
        scheduler.controller.step()
        found: list[str] = []
        monkeypatch.setattr(scheduler.reporter, "pending", lambda ref, message: found.append(message))
        assert scheduler._explain_some()
        return found[0]

    assert asyncio.run(run()) == "0/1 nodes are available: 1 node(s) didn't match Pod's node affinity/selector."


def test_a_binding_that_keeps_failing_is_tried_less_and_less_often_and_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def run() -> tuple[list[float], list[str]]:
        scheduler = Scheduler(ApiClient(ApiConfig("127.0.0.1", 1)), Options())
        pauses: list[float] = []
        messages: list[str] = []

        async def release(pod: Pod, seconds: float) -> None:
            pauses.append(seconds)

        monkeypatch.setattr(scheduler, "_release", release)
        monkeypatch.setattr(scheduler.reporter, "pending", lambda pod, message, reason: messages.append(message))
        for _ in range(6):
            scheduler.try_later(pod("a"), "a webhook said no")
        await asyncio.gather(*scheduler._tasks)
        return pauses, messages

    pauses, messages = asyncio.run(run())
    assert pauses == [5, 10, 20, 40, 60, 60]
    assert messages[0] == "the binding failed: a webhook said no"


def test_the_reason_of_pods_that_were_placed_meanwhile_is_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> list[str]:
        scheduler = Scheduler(ApiClient(ApiConfig("127.0.0.1", 1)), Options())
        scheduler._lead()
        scheduler.cluster.pods_changed([pod("a")])
        scheduler.cluster.tell([Waiting(("default/a",), (Verdict(0, 0, ()),))])
        found: list[str] = []
        monkeypatch.setattr(scheduler.reporter, "pending", lambda ref, message: found.append(message))
        assert scheduler._explain_some()
        return found

    assert asyncio.run(run()) == []


def test_the_lease_has_connections_of_its_own() -> None:
    """So it is renewed also while all others are busy."""

    async def run() -> int:
        async with Server(always(refusal(500))) as busy, Server(always(refusal(500))) as own:
            client, lease_client = ApiClient(busy.config()), ApiClient(own.config())
            scheduler = Scheduler(client, Options(lease=("stead-system", "stead")), lease_client)
            assert scheduler.lease is not None
            task = asyncio.create_task(scheduler.lease.run(lambda: None, lambda: None))
            await until(lambda: own.requests)
            await ended(task)
            await lease_client.close()
            await client.close()
            return len(busy.requests)

    assert asyncio.run(run()) == 0


def test_while_bindings_pile_up_nothing_is_decided_and_nothing_is_forgotten() -> None:
    """No binding gets an answer. Pods that arrive meanwhile are placed when there is room."""

    async def run() -> tuple[int, int]:
        async with Server(forever) as server:
            client = ApiClient(server.config())
            scheduler = Scheduler(client, Options(in_flight_max=8))
            scheduler.cluster.nodes_changed([node_of(objects.node("n1", cpu="1000", pods="1000"))])
            scheduler.cluster.pods_changed([pod(f"a-{number}") for number in range(300)])
            scheduler._lead()
            running = asyncio.create_task(scheduler._until_stopped([]))
            await until(lambda: scheduler._is_full)
            scheduler.cluster.pods_changed([pod("late")])
            scheduler._news_arrived()
            await a_turn()
            assert scheduler.controller is not None
            queued, placed = scheduler.binder.queued, len(scheduler.controller.engine.placed)
            scheduler.binder._queue.clear()  # as if they were sent
            scheduler._bound(BindResult("default", "a-0", "uid-a-0", "n1", Outcome.BOUND, "", 0.0))
            await until(lambda: scheduler.controller and len(scheduler.controller.engine.placed) > placed)
            scheduler.stop()
            await asyncio.wait_for(running, 30)
            await scheduler.binder.close()
            await client.close()
            return queued, placed

    queued, placed = asyncio.run(run())
    assert module.QUEUED_MAX < queued <= module.QUEUED_MAX + module.PLACED_AT_ONCE
    assert placed < 300
