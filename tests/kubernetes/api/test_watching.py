"""A watched resource: the consumer sees every change, or a complete list after a gap."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

import pytest

from stead.kubernetes.api.http import ApiClient
from stead.kubernetes.api.watching import BACKOFF_MAX_S, PAGE, Changed, Relisted, Watched, permission_sentence
from tests.kubernetes.api.servers import (
    CHUNKED,
    LAST_CHUNK,
    Request,
    Server,
    SkippingClock,
    chunk,
    ended,
    refusal,
    reply,
    until,
)

Names = tuple[str, ...]


def decode(line: bytes) -> tuple[str, str, str]:
    event = json.loads(line)
    item = event["object"]
    metadata = item.get("metadata", {})
    return event["type"], metadata.get("name", ""), metadata.get("resourceVersion", "")


def decode_page(body: bytes) -> tuple[list[str], str, str | None]:
    page = json.loads(body)
    return page["items"], page["metadata"]["resourceVersion"], page["metadata"].get("continue")


def page(items: list[str], version: str, more: str = "") -> bytes:
    return reply(200, {"metadata": {"resourceVersion": version, "continue": more}, "items": items})


def event(kind: str, name: str, version: str) -> bytes:
    return json.dumps({"type": kind, "object": {"metadata": {"name": name, "resourceVersion": version}}}).encode()


def events(*lines: bytes, is_broken: bool = False) -> bytes:
    """A watch with these events, which the server ends, or breaks off."""
    return CHUNKED + b"".join(chunk(line + b"\n") for line in lines) + (b"" if is_broken else LAST_CHUNK)


OPEN = None
"""A watch that stays open without events."""


class Script:
    """Answers lists and watches, each in their order. The last watch stays open."""

    def __init__(self, lists: list[bytes], watches: list[bytes | None]) -> None:
        self.lists, self.watches = list(lists), list(watches)
        self.is_done = asyncio.Event()

    async def answer(self, request: Request, writer: asyncio.StreamWriter) -> bytes | None:
        if "watch" not in request.query:
            return self.lists.pop(0)
        watch = self.watches.pop(0) if self.watches else OPEN
        if watch is not OPEN:
            writer.write(watch)
            return b"" if watch.endswith(LAST_CHUNK) or not watch.startswith(CHUNKED) else None
        writer.write(CHUNKED)
        self.is_done.set()
        await asyncio.Event().wait()
        return None


class Seen:
    """What the consumer received, and the watch it received it from."""

    def __init__(self) -> None:
        self.changes: list[Changed[str] | Relisted[str]] = []
        self.denials: list[str] = []
        self.clock = SkippingClock()
        self.requests: list[Request] = []
        self.watched: Watched[str] | None = None

    @property
    def plain(self) -> list[Any]:
        return [list(c.items) if isinstance(c, Relisted) else (c.kind, c.object) for c in self.changes]

    @property
    def versions(self) -> list[str]:
        return [request.query["resourceVersion"] for request in self.requests if "watch" in request.query]


def watch(
    script: Script, wait: Callable[[Seen], Awaitable[None]] | None = None, decoder: Any = decode, seed: int = 1
) -> Seen:
    """Run until the script is done."""
    seen = Seen()

    async def main() -> None:
        async with Server(script.answer) as server:
            client = ApiClient(server.config())
            seen.requests = server.requests
            seen.watched = Watched(
                client,
                "/api/v1/pods",
                decoder,
                decode_page,
                seen.changes.append,
                denied=seen.denials.append,
                random=Random(seed),
                sleep=seen.clock.sleep,
                clock=seen.clock,
            )
            task = asyncio.create_task(seen.watched.run())
            if wait is not None:
                await wait(seen)
            else:
                await until(lambda: script.is_done.is_set() or task.done())
            assert not task.done(), task.exception()
            await ended(task)
            await client.close()

    asyncio.run(main())
    return seen


def test_all_pages_are_one_list_and_the_watch_begins_at_its_version() -> None:
    lists = [page(["a", "b"], "7", "t1"), page(["c"], "7", "t2"), page(["d"], "7")]
    seen = watch(Script(lists, [OPEN]))
    assert seen.plain == [["a", "b", "c", "d"]]
    assert [request.query for request in seen.requests[:3]] == [
        {"limit": str(PAGE)},
        {"limit": str(PAGE), "continue": "t1"},
        {"limit": str(PAGE), "continue": "t2"},
    ]
    query = seen.requests[3].query
    assert (query["watch"], query["allowWatchBookmarks"], query["resourceVersion"]) == ("true", "true", "7")
    assert 300 <= int(query["timeoutSeconds"]) <= 600
    assert seen.watched is not None and seen.watched.is_synced
    assert (seen.watched.relists, seen.watched.restarts) == (0, 0)


def test_a_list_whose_pages_expired_begins_again_and_delivers_nothing_twice() -> None:
    lists = [page(["a"], "7", "t1"), refusal(410, "expired", "Expired"), page(["x"], "9", "t2"), page(["y"], "9")]
    seen = watch(Script(lists, [OPEN]))
    assert seen.plain == [["x", "y"]]
    assert seen.versions == ["9"]


def test_a_list_whose_pages_expire_again_and_again_is_read_in_one_piece() -> None:
    expiring = [page(["a"], "7", "t1"), refusal(410)]
    seen = watch(Script([*expiring, *expiring, page(["a", "b"], "9")], [OPEN]))
    assert seen.plain == [["a", "b"]]
    assert "limit" not in seen.requests[4].query


def test_a_closed_watch_continues_from_the_last_version_and_bookmarks_count() -> None:
    watches = [
        events(event("ADDED", "b", "8"), event("MODIFIED", "a", "9")),
        events(event("BOOKMARK", "", "20")),
        events(event("DELETED", "a", "21")),
        OPEN,
    ]
    seen = watch(Script([page(["a"], "7")], watches))
    assert seen.plain == [["a"], ("ADDED", "b"), ("MODIFIED", "a"), ("DELETED", "a")]
    assert seen.versions == ["7", "9", "20", "21"]
    assert seen.watched is not None
    assert (seen.watched.relists, seen.watched.restarts) == (0, 3)


def test_a_broken_watch_continues_after_the_last_complete_event() -> None:
    half = event("ADDED", "c", "9")[:20]
    broken = events(event("ADDED", "b", "8"), is_broken=True) + chunk(half)
    seen = watch(Script([page(["a"], "7")], [broken, events(event("ADDED", "c", "9")), OPEN]))
    assert seen.plain == [["a"], ("ADDED", "b"), ("ADDED", "c")]
    assert seen.versions == ["7", "8", "9"]


def undecodable(line: bytes) -> tuple[str, str, str]:
    if b"poison" in line:
        raise ValueError("cannot decode this")
    return decode(line)


ERROR_410 = b'{"type":"ERROR","object":{"kind":"Status","code":410,"reason":"Expired"}}'
ERROR_500 = b'{"type":"ERROR","object":{"kind":"Status","code":500}}'


@pytest.mark.parametrize(
    "broken",
    [
        refusal(410, "too old", "Expired"),
        events(event("ADDED", "b", "8"), ERROR_410, event("ADDED", "never", "9")),
        events(ERROR_500),
        events(event("ADDED", "poison", "8")),
        events(b"not json"),
    ],
    ids=["410", "410 in the stream", "another error in the stream", "an event the decoder refuses", "no JSON"],
)
def test_a_gap_is_followed_by_one_complete_list(broken: bytes) -> None:
    lists = [page(["a", "gone"], "7"), page(["a", "b", "c"], "30")]
    seen = watch(Script(lists, [broken, OPEN]), decoder=undecodable)
    assert seen.plain[0] == ["a", "gone"]
    assert seen.plain[-1] == ["a", "b", "c"]
    assert ("ADDED", "never") not in seen.plain
    assert seen.versions == ["7", "30"]
    assert seen.watched is not None and seen.watched.relists == 1


def test_a_server_that_fails_is_tried_again_with_growing_waits() -> None:
    seen = watch(Script([refusal(500)] * 12 + [page(["a"], "7")], [OPEN]))
    limits = [0.5, 1, 2, 4, 8, 16] + [BACKOFF_MAX_S] * 6
    assert len(seen.clock.slept) == 12
    assert all(0 <= slept <= limit for slept, limit in zip(seen.clock.slept, limits, strict=True))
    assert max(seen.clock.slept) > 8
    assert seen.plain == [["a"]]


def test_the_same_seed_waits_the_same() -> None:
    failing = [refusal(500)] * 5 + [page([], "7")]
    first, second = (watch(Script(failing, [OPEN]), seed=3).clock.slept for _ in range(2))
    assert first == second


@pytest.mark.parametrize("status", [429, 503])
def test_the_pause_that_the_server_asks_for_is_kept(status: int) -> None:
    seen = watch(
        Script([refusal(status, retry_after="17"), page(["a"], "7")], [refusal(status, retry_after="9"), OPEN])
    )
    assert seen.clock.slept[0] >= 17
    assert seen.clock.slept[1] >= 9


def test_watches_that_end_at_once_are_not_opened_in_a_tight_loop() -> None:
    seen = watch(Script([page([], "7")], [events()] * 10 + [OPEN]))
    assert len(seen.clock.slept) == 10
    assert sum(seen.clock.slept) > 10


def test_a_missing_permission_is_reported_once_and_access_is_tried_again() -> None:
    lists = [refusal(403, "pods is forbidden", "Forbidden")] * 3 + [page(["a"], "7")]
    seen = watch(Script(lists, [refusal(403, "forbidden")] * 2 + [OPEN]))
    assert seen.plain == [["a"]]
    first, second = seen.denials
    assert first == (
        "stead may not list pods; give its user or service account the verbs 'list' and 'watch' on 'pods', as"
        " `stead scheduler manifests` does (the API server said: pods is forbidden)"
    )
    assert second.startswith("stead may not watch pods")


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/api/v1/nodes", "list nodes; give"),
        ("/api/v1/namespaces/prod/pods", "list pods in namespace 'prod'"),
        ("/apis/policy/v1/poddisruptionbudgets", "list poddisruptionbudgets of the API group 'policy'; give"),
        ("/apis/apps/v1/namespaces/x/replicasets", "list replicasets of the API group 'apps' in namespace 'x'"),
        ("/api/v1/namespaces", "list namespaces; give"),
    ],
)
def test_a_missing_permission_names_verb_resource_and_place(path: str, words: str) -> None:
    assert f"stead may not {words}" in permission_sentence("list", path, "no")


def test_no_server_at_all_is_tried_again() -> None:
    async def main() -> None:
        async with Server(Script([], []).answer) as server:
            config = server.config()
        clock = SkippingClock()
        client = ApiClient(config)
        watched = Watched(
            client,
            "/api/v1/pods",
            decode,
            decode_page,
            lambda _: None,
            sleep=clock.sleep,
            clock=clock,
            random=Random(1),
        )
        task = asyncio.create_task(watched.run())
        await until(lambda: len(clock.slept) >= 8)
        assert not task.done() and not watched.is_synced
        await ended(task)
        await client.close()

    asyncio.run(main())


def test_it_is_known_when_the_server_last_sent_something() -> None:
    async def wait(seen: Seen) -> None:
        assert seen.watched is not None
        began = seen.watched.last_received
        await until(lambda: len(seen.changes) == 2)
        assert seen.watched.last_received > began

    watch(Script([refusal(500), page([], "7")], [events(event("ADDED", "a", "8")), OPEN]), wait)


def test_a_watch_rests_after_its_events_as_long_as_it_is_told_to() -> None:
    async def answer(request: Request, writer: asyncio.StreamWriter) -> bytes:
        if "watch" not in request.query:
            return page([], "7")
        writer.write(CHUNKED + chunk(event("ADDED", "a", "8") + b"\n"))
        await rested.wait()
        writer.write(chunk(event("ADDED", "b", "9") + b"\n"))
        await asyncio.Event().wait()
        raise AssertionError("the watch stays open")

    async def sleep(seconds: float) -> None:
        waits.append(seconds)
        rested.set()

    async def main() -> None:
        async with Server(answer) as server:
            client = ApiClient(server.config())
            watched = Watched(
                client, "/api/v1/pods", decode, decode_page, changes.append, rest_s=lambda: rests.pop(0), sleep=sleep
            )
            task = asyncio.create_task(watched.run())
            await until(lambda: len(changes) == 3)
            await ended(task)
            await client.close()

    rested = asyncio.Event()
    changes: list[Changed[str] | Relisted[str]] = []
    waits: list[float] = []
    rests = [0.25, 0.0, 0.0]
    asyncio.run(main())
    assert waits == [0.25]
    assert [each.object for each in changes if isinstance(each, Changed)] == ["a", "b"]
