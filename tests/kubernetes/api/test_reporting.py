"""Reports on pods: what is written, and that no number of pods or changes storms the API server."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from itertools import pairwise
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stead.kubernetes.api.http import ApiClient
from stead.kubernetes.api.reporting import (
    EVENT_MESSAGE_MAX,
    REPEAT_AFTER_S_MAX,
    Job,
    Outbox,
    PodRef,
    Report,
    Reporter,
    TokenBucket,
    cut,
)
from tests.kubernetes.api.servers import ManualClock, Request, Server, ended, refusal, reply, until

POD = PodRef("prod", "web-1", "uid-web-1")


def pod(number: int) -> PodRef:
    return PodRef("default", f"pod-{number}", f"uid-{number}")


def why(message: str) -> Report:
    return Report("Unschedulable", message)


def written(outbox: Outbox, now: float) -> list[Job]:
    """Write everything that may be written now."""
    jobs = []
    while (job := outbox.take(now)) is not None:
        outbox.written(job, now)
        jobs.append(job)
    return jobs


def messages(jobs: list[Job]) -> list[str]:
    return [job.report.message for job in jobs]


class TestOutbox:
    def test_a_first_report_is_due_at_once(self) -> None:
        outbox = Outbox(0)
        outbox.report(POD, why("no cpu"), 0)
        assert messages(written(outbox, 0)) == ["no cpu"]
        assert outbox.wait_s(0) is None

    def test_equal_content_is_never_written_twice(self) -> None:
        outbox = Outbox(0)
        for second in range(10_000):
            outbox.report(POD, why("no cpu"), second)
            assert len(written(outbox, second)) == (1 if second == 0 else 0)
        assert len(outbox) == 0

    def test_a_newer_report_replaces_the_queued_one(self) -> None:
        outbox = Outbox(0)
        outbox.report(POD, why("one"), 0)
        outbox.report(POD, why("two"), 0)
        assert messages(written(outbox, 0)) == ["two"]

    def test_a_report_that_returns_to_what_was_written_costs_nothing(self) -> None:
        outbox = Outbox(0)
        outbox.report(POD, why("one"), 0)
        written(outbox, 0)
        outbox.report(POD, why("two"), 1)
        outbox.report(POD, why("one"), 2)
        assert written(outbox, 1_000) == []
        outbox.report(POD, why("two"), 1_001)
        assert messages(written(outbox, 1_001)) == ["two"]

    def test_a_pod_that_keeps_changing_is_reported_less_and_less(self) -> None:
        outbox = Outbox(0)
        moments = []
        for second in range(7_200):
            outbox.report(POD, why(f"reason {second}"), second)
            moments += [second] * len(written(outbox, second))
        gaps = [later - earlier for earlier, later in pairwise(moments)]
        assert gaps[:6] == [30, 60, 120, 240, 480, 600]
        assert set(gaps[6:]) == {REPEAT_AFTER_S_MAX}

    def test_after_a_quiet_time_a_pod_is_reported_promptly_again(self) -> None:
        outbox = Outbox(0)
        for second in range(100):
            outbox.report(POD, why(f"reason {second}"), second)
            written(outbox, second)
        outbox.report(POD, why("first after the quiet"), 10_000)
        assert len(written(outbox, 10_000)) == 1
        outbox.report(POD, why("second"), 10_001)
        assert outbox.wait_s(10_001) == pytest.approx(29)

    def test_a_change_while_a_report_is_written_is_written_later(self) -> None:
        outbox = Outbox(0)
        outbox.report(POD, why("one"), 0)
        job = outbox.take(0)
        assert job is not None
        outbox.report(POD, why("two"), 0)
        assert outbox.take(0) is None, "one request per pod at a time"
        outbox.written(job, 1)
        assert written(outbox, 30) == []
        assert messages(written(outbox, 31)) == ["two"]

    def test_ten_thousand_pods_that_flap_cost_a_bounded_number_of_writes(self) -> None:
        """Every pod changes its reason every ten seconds, for ten minutes."""
        outbox = Outbox(0)
        writes, per_pod = 0, Counter[str]()
        refs = [pod(number) for number in range(10_000)]
        for second in range(0, 600, 10):
            for ref in refs:
                outbox.report(ref, why(f"reason {second}"), second)
            for moment in range(second, second + 10):
                jobs = written(outbox, moment)
                writes += 2 * len(jobs)  # a condition and an event
                per_pod.update(job.pod.ref.uid for job in jobs)
        assert writes <= 100 + 50 * 600
        assert len(per_pod) == 10_000, "no pod is starved"
        assert max(per_pod.values()) <= 5
        assert len(outbox) <= 10_000
        assert len(outbox._due) <= 21_000

    def test_pods_that_change_nothing_cost_nothing(self) -> None:
        outbox = Outbox(0, rate=1e9, burst=10**9)
        refs = [pod(number) for number in range(10_000)]
        for second in range(20):
            for ref in refs:
                outbox.report(ref, why("no node has enough cpu"), second)
            assert len(written(outbox, second)) == (10_000 if second == 0 else 0)

    @given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 3), st.floats(0, 40)), max_size=150))
    def test_the_rate_holds_and_the_last_word_is_written(self, steps: list[tuple[int, int, float]]) -> None:
        outbox, now, last, count = Outbox(0, rate=2, burst=4), 0.0, dict[str, str](), 0
        shown: dict[str, str] = {}

        def write() -> None:
            nonlocal count
            for job in written(outbox, now):
                count += 2
                assert shown.get(job.pod.ref.uid) != job.report.message, "the same content again"
                shown[job.pod.ref.uid] = job.report.message
            assert count <= 4 + 2 * now + 1e-6

        for number, reason, wait in steps:
            now += wait
            outbox.report(pod(number), why(str(reason)), now)
            last[pod(number).uid] = str(reason)
            write()
        while (wait_s := outbox.wait_s(now)) is not None:
            now += wait_s + 1e-9
            write()
        assert shown == last

    def test_bound_pods_come_last_and_are_dropped_first(self) -> None:
        outbox = Outbox(0, rate=1, burst=4)
        outbox.scheduled(pod(1), "node-1", 0)
        outbox.report(POD, why("no cpu"), 0)
        assert messages(written(outbox, 0)) == ["no cpu", "Successfully assigned default/pod-1 to node-1"]
        assert outbox.scheduled_dropped == 0
        for number in range(2, 12):
            outbox.scheduled(pod(number), "node-1", 0)
        assert len(written(outbox, 0)) == 1
        assert outbox.scheduled_dropped == 9

    def test_bound_pods_are_dropped_when_failures_use_up_the_tokens(self) -> None:
        outbox = Outbox(0, rate=1, burst=4)
        outbox.scheduled(pod(1), "node-1", 0)
        for number in range(10, 20):
            outbox.report(pod(number), why("no cpu"), 0)
        assert len(written(outbox, 0)) == 2
        assert outbox.scheduled_dropped == 1
        outbox.scheduled(pod(2), "node-1", 0)
        assert outbox.scheduled_dropped == 2

    def test_a_pod_that_was_bound_has_no_failure_left_to_report(self) -> None:
        outbox = Outbox(0)
        outbox.report(POD, why("no cpu"), 0)
        outbox.scheduled(POD, "node-1", 0, is_reported=False)
        assert written(outbox, 0) == []
        assert len(outbox) == 0

    def test_the_queue_is_bounded_and_what_it_drops_is_counted(self) -> None:
        outbox = Outbox(0, rate=1, burst=2, pods_max=100)
        for number in range(1_000):
            outbox.report(pod(number), why("no cpu"), 0)
        assert len(outbox) == 100
        assert outbox.failures_dropped == 900

    def test_the_oldest_pod_without_a_queued_report_is_forgotten_first(self) -> None:
        outbox = Outbox(0, pods_max=10)
        for number in range(1_000):
            outbox.report(pod(number), why("no cpu"), number)
            assert len(written(outbox, number)) == 1
        assert outbox.failures_dropped == 0
        assert len(outbox._pods) == 10

    def test_forgotten_pods_do_not_fill_the_queue(self) -> None:
        outbox = Outbox(0, rate=0.001, burst=2)
        for number in range(20_000):
            outbox.report(pod(number), why("no cpu"), 0)
            outbox.forget(pod(number).uid)
        assert len(outbox._due) < 2_000

    def test_a_failed_report_is_tried_again_with_growing_waits(self) -> None:
        outbox, now, waits = Outbox(0), 0.0, []
        outbox.report(POD, why("no cpu"), now)
        for _ in range(9):
            job = outbox.take(now)
            assert job is not None
            outbox.retry(job, now)
            waits.append(outbox.wait_s(now))
            now += waits[-1] or 0
        assert waits == [1, 2, 4, 8, 16, 32, 60, 60, 60]


def test_a_token_bucket_allows_its_rate_and_its_burst() -> None:
    bucket = TokenBucket(10, 5, now=0)
    assert [bucket.take(1, 0) for _ in range(6)] == [True] * 5 + [False]
    assert bucket.wait_s(1, 0) == pytest.approx(0.1)
    assert bucket.take(1, 0.1)
    assert not bucket.take(1, 0.1)
    assert bucket.available(1_000) == 5


@given(st.text(max_size=50), st.integers(10, 60))
def test_a_cut_text_fits(text: str, most: int) -> None:
    assert len(cut(text, most).encode("utf-8", "replace")) <= most
    if len(text.encode("utf-8", "replace")) <= most:
        assert cut(text, most) == text


class Board:
    """The API server's part, and a reporter with a clock that the test moves."""

    def __init__(self) -> None:
        self.failures: dict[str, list[bytes]] = {}
        """The next responses by the last word of the path: status, events."""
        self.clock = ManualClock()
        self.is_leader = True
        self.answers = asyncio.Event()
        """Cleared while the server does not respond."""
        self.answers.set()

    async def answer(self, request: Request, _writer: asyncio.StreamWriter) -> bytes:
        await self.answers.wait()
        word = "events" if "/events" in request.path else "status"
        failures = self.failures.get(word)
        return failures.pop(0) if failures else reply(200, {})


def run(use: Callable[[Board, Server, Reporter], Awaitable[None]], **options: Any) -> None:
    async def main() -> None:
        board = Board()
        async with Server(board.answer) as server:
            client = ApiClient(server.config())
            reporter = Reporter(
                client,
                lambda: board.is_leader,
                clock=board.clock,
                wall_clock=board.clock,
                sleep=board.clock.sleep,
                random=Random(1),
                **options,
            )
            task = asyncio.create_task(reporter.run())
            try:
                await use(board, server, reporter)
                assert not task.done()
            finally:
                await ended(task)
                await client.close()

    asyncio.run(main())


def brief(server: Server) -> list[tuple[str, str]]:
    """Method and last two words of the path of each request."""
    return [(request.method, "/".join(request.path.split("/")[-2:])) for request in server.requests]


def test_a_pending_pod_gets_a_condition_and_an_event() -> None:
    async def use(_board: Board, server: Server, reporter: Reporter) -> None:
        reporter.pending(POD, "0/5 nodes are available: 5 Insufficient cpu.")
        await until(lambda: len(server.requests) == 2)
        condition, event = server.requests
        assert (condition.method, condition.path) == ("PATCH", "/api/v1/namespaces/prod/pods/web-1/status")
        assert condition.headers["content-type"] == "application/strategic-merge-patch+json"
        assert condition.json == {
            "metadata": {"uid": "uid-web-1"},
            "status": {
                "conditions": [
                    {
                        "type": "PodScheduled",
                        "status": "False",
                        "reason": "Unschedulable",
                        "message": "0/5 nodes are available: 5 Insufficient cpu.",
                        "lastProbeTime": None,
                        "lastTransitionTime": "1970-01-01T00:16:40Z",
                    }
                ]
            },
        }
        assert (event.method, event.path) == ("POST", "/api/v1/namespaces/prod/events")
        body = event.json
        assert body["metadata"]["name"].startswith("web-1.")
        assert body["involvedObject"] == {
            "kind": "Pod",
            "apiVersion": "v1",
            "namespace": "prod",
            "name": "web-1",
            "uid": "uid-web-1",
        }
        assert (body["type"], body["reason"], body["count"]) == ("Warning", "FailedScheduling", 1)
        assert (body["reportingComponent"], body["reportingInstance"]) == ("stead", "stead-0")
        assert body["firstTimestamp"] == body["lastTimestamp"] == "1970-01-01T00:16:40Z"

    run(use, instance="stead-0")


def test_an_event_that_repeats_is_counted() -> None:
    async def use(board: Board, server: Server, reporter: Reporter) -> None:
        for number, message in enumerate(["one", "two", "one"], start=1):
            board.clock.advance(700)
            reporter.pending(POD, message)
            await until(lambda: len(server.requests) == 2 * number)  # noqa: B023
        name = server.requests[1].json["metadata"]["name"]
        assert brief(server)[1::2] == [("POST", "prod/events"), ("POST", "prod/events"), ("PATCH", f"events/{name}")]
        assert server.requests[5].json == {"count": 2, "lastTimestamp": "1970-01-01T00:51:40Z"}
        times = {r.json["status"]["conditions"][0]["lastTransitionTime"] for r in server.requests[::2]}
        assert len(times) == 1, "the status did not change"

    run(use)


def test_an_event_that_the_server_deleted_is_created_again() -> None:
    async def use(board: Board, server: Server, reporter: Reporter) -> None:
        board.failures["events"] = [reply(201), reply(201), refusal(404)]
        for number, message in enumerate(["one", "two", "one"], start=1):
            board.clock.advance(700)
            reporter.pending(POD, message)
            await until(lambda: len(server.requests) >= 2 * number)  # noqa: B023
        await until(lambda: len(server.requests) == 7)
        assert brief(server)[-1] == ("POST", "prod/events")

    run(use)


def test_only_recent_events_are_remembered() -> None:
    async def use(board: Board, server: Server, reporter: Reporter) -> None:
        for number in range(20):
            reporter.pending(pod(number), "no cpu")
        await until(lambda: len(server.requests) == 40)
        await until(lambda: len(reporter._events) == 5)

    run(use, events_max=5)


def test_a_long_message_is_cut_to_the_limit_of_events() -> None:
    async def use(_board: Board, server: Server, reporter: Reporter) -> None:
        reporter.pending(POD, "ä" * 3_000)
        await until(lambda: len(server.requests) == 2)
        assert len(server.requests[1].json["message"].encode()) <= EVENT_MESSAGE_MAX

    run(use)


def test_a_bound_pod_gets_an_event() -> None:
    async def use(_board: Board, server: Server, reporter: Reporter) -> None:
        reporter.scheduled(POD, "node-7")
        await until(lambda: server.requests)
        body = server.requests[0].json
        assert (body["type"], body["reason"]) == ("Normal", "Scheduled")
        assert body["message"] == "Successfully assigned prod/web-1 to node-7"

    run(use)


def test_bound_pods_are_not_reported_if_that_is_switched_off() -> None:
    async def use(_board: Board, server: Server, reporter: Reporter) -> None:
        reporter.scheduled(POD, "node-7")
        reporter.pending(pod(1), "no cpu")
        await until(lambda: len(server.requests) == 2)
        assert "pod-1" in server.requests[0].path
        assert reporter.scheduled_dropped == 0

    run(use, reports_scheduled=False)


IMMUTABLE = {"details": {"causes": [{"reason": "FieldValueInvalid", "field": "metadata.uid"}]}}


@pytest.mark.parametrize("gone", [refusal(404), refusal(409), reply(422, IMMUTABLE)], ids=["404", "409", "422"])
def test_a_pod_that_is_gone_is_forgotten_and_gets_no_event(gone: bytes) -> None:
    async def use(board: Board, server: Server, reporter: Reporter) -> None:
        board.failures["status"] = [gone]
        reporter.pending(POD, "no cpu")
        await until(lambda: server.requests and not reporter._outbox._pods)
        reporter.pending(pod(1), "no cpu")
        await until(lambda: len(server.requests) == 3)
        assert brief(server) == [("PATCH", "web-1/status"), ("PATCH", "pod-1/status"), ("POST", "default/events")]

    run(use)


@pytest.mark.parametrize("failure", [refusal(500), refusal(429), refusal(503, retry_after="20")], ids=[500, 429, 503])
def test_a_server_in_trouble_gets_a_pause_and_then_the_newest_report(failure: bytes) -> None:
    async def use(board: Board, server: Server, reporter: Reporter) -> None:
        board.failures["status"] = [failure]
        reporter.pending(POD, "one")
        await until(lambda: reporter.errors == 1 and board.clock.sleepers)
        reporter.pending(POD, "two")
        reporter.pending(pod(1), "other")
        board.clock.advance(30)
        await until(lambda: len(server.requests) == 5)
        sent = [r.json["status"]["conditions"][0]["message"] for r in server.requests if "/status" in r.path]
        assert sorted(sent) == ["one", "other", "two"]

    run(use)


def test_what_the_server_refuses_for_good_is_not_tried_again() -> None:
    async def use(board: Board, server: Server, reporter: Reporter) -> None:
        board.failures["status"] = [refusal(403, "may not patch")]
        reporter.pending(POD, "no cpu")
        await until(lambda: len(server.requests) == 2)
        board.clock.advance(1_000)
        reporter.pending(POD, "no cpu")
        reporter.pending(pod(1), "no cpu")
        await until(lambda: len(server.requests) == 4)
        assert [path for _, path in brief(server)].count("web-1/status") == 1

    run(use)


def test_nothing_is_written_behind_a_closed_fence_and_a_new_leader_reports_again() -> None:
    async def use(board: Board, server: Server, reporter: Reporter) -> None:
        board.is_leader = False
        reporter.pending(POD, "no cpu")
        await until(lambda: not reporter._outbox._pods)
        assert server.requests == []
        board.is_leader = True
        reporter.clear()
        reporter.pending(POD, "no cpu")
        await until(lambda: len(server.requests) == 2)

    run(use)


def test_a_pod_that_is_bound_while_its_condition_is_written_gets_no_event() -> None:
    async def use(board: Board, server: Server, reporter: Reporter) -> None:
        board.answers.clear()
        reporter.pending(POD, "no cpu")
        await until(lambda: server.requests)
        reporter.forget(POD.uid)
        board.answers.set()
        reporter.pending(pod(1), "no cpu")
        await until(lambda: ("POST", "default/events") in brief(server))
        assert brief(server) == [("PATCH", "web-1/status"), ("PATCH", "pod-1/status"), ("POST", "default/events")]

    run(use)


def test_ten_thousand_pods_are_written_at_the_rate_of_the_bucket() -> None:
    async def use(board: Board, server: Server, reporter: Reporter) -> None:
        for number in range(10_000):
            reporter.pending(pod(number), "no cpu")
        await until(lambda: len(server.requests) == 100 and board.clock.sleepers)
        for second in range(1, 6):
            board.clock.advance(1.0)
            await until(lambda: len(server.requests) == 100 + 50 * second and board.clock.sleepers)  # noqa: B023
        assert reporter.writes == len(server.requests)
        assert reporter.queued == 10_000 - reporter.writes // 2

    run(use)
