"""Requests to the API server: connections are reused, limited and repaired, and a fence holds."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from stead.errors import Invalid
from stead.kubernetes.api.config import ApiConfig, Credentials
from stead.kubernetes.api.connection import RETRY_AFTER_MAX_S, retry_after_s
from stead.kubernetes.api.http import ApiClient, Backoff, Fenced, Response, Unreachable, error_of
from tests.kubernetes.api.servers import (
    CHUNKED,
    LAST_CHUNK,
    Answer,
    Request,
    Server,
    always,
    certificate,
    chunk,
    ended,
    forever,
    refusal,
    reply,
    scripted,
    tls_server,
    until,
)


def with_server(answer: Answer, use: Callable[[Server, ApiClient], object], connections_max: int = 4) -> None:
    """Run the coroutine function `use` with a server and a client of it."""

    async def main() -> None:
        async with Server(answer) as server:
            client = ApiClient(server.config(), connections_max)
            try:
                await use(server, client)  # type: ignore[misc]
            finally:
                await client.close()

    asyncio.run(main())


def test_requests_one_after_the_other_use_one_connection() -> None:
    async def use(server: Server, client: ApiClient) -> None:
        for _ in range(5):
            response = await client.request("POST", "/api/v1/x", body=b"{}")
            assert (response.status, response.body, response.was_repeated) == (201, b"made", False)
        assert server.connections == 1

    with_server(always(reply(201, b"made")), use)


def test_a_request_carries_its_query_its_body_and_the_headers() -> None:
    async def use(server: Server, client: ApiClient) -> None:
        await client.request("PATCH", "/api/v1/x", {"limit": "5", "continue": "a b/c=&"}, b"{}", "application/y+json")
        await client.request("GET", "/api/v1/x")
        patch, get = server.requests
        assert (patch.method, patch.path, patch.query) == ("PATCH", "/api/v1/x", {"limit": "5", "continue": "a b/c=&"})
        assert (patch.body, patch.headers["content-type"]) == (b"{}", "application/y+json")
        assert get.headers == {
            "host": f"127.0.0.1:{server.port}",
            "user-agent": "stead",
            "accept": "application/json",
        }

    with_server(always(reply()), use)


@pytest.mark.parametrize("path", ["api/v1", "/a b", "/a\r\nX-Evil: 1", "/ä", ""])
def test_a_path_that_would_break_the_request_is_refused(path: str) -> None:
    async def use(server: Server, client: ApiClient) -> None:
        with pytest.raises(Invalid, match="is not the path of a request"):
            await client.request("GET", path)
        assert server.connections == 0

    with_server(always(reply()), use)


BIG = bytes(range(256)) * 4096 * 20


@pytest.mark.parametrize(
    ("sent", "body"),
    [
        (reply(200, BIG), BIG),
        (CHUNKED + chunk(b"one") + chunk(b" two") + LAST_CHUNK, b"one two"),
        (b"HTTP/1.1 100 Continue\r\n\r\n" + reply(200, b"after"), b"after"),
        (reply(204), b""),
    ],
    ids=["20 MB", "chunks", "an interim response first", "no body"],
)
def test_a_response_is_read_to_its_end(sent: bytes, body: bytes) -> None:
    async def use(server: Server, client: ApiClient) -> None:
        for _ in range(2):
            assert (await client.request("GET", "/x")).body == body
        assert server.connections == 1

    with_server(always(sent), use)


def test_a_body_may_end_with_its_connection() -> None:
    async def answer(_request: Request, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n\r\nuntil the end")

    async def use(server: Server, client: ApiClient) -> None:
        for _ in range(2):
            assert (await client.request("GET", "/x")).body == b"until the end"
        assert server.connections == 2

    with_server(answer, use)


def test_a_server_that_asks_for_it_gets_a_new_connection_for_each_request() -> None:
    async def use(server: Server, client: ApiClient) -> None:
        for _ in range(3):
            await client.request("GET", "/x")
        assert server.connections == 3

    with_server(always(reply(connection="close")), use)


def test_requests_beyond_the_limit_wait_for_a_connection() -> None:
    arrived, go_on = [], asyncio.Event()

    async def answer(request: Request, _writer: asyncio.StreamWriter) -> bytes:
        arrived.append(request)
        await go_on.wait()
        return reply(200, request.path.encode())

    async def use(server: Server, client: ApiClient) -> None:
        tasks = [asyncio.create_task(client.request("GET", f"/{n}")) for n in range(10)]
        await until(lambda: len(arrived) == 4)
        await ended(tasks[9])  # one that waits for a connection gives up
        go_on.set()
        assert [(await task).body for task in tasks[:9]] == [b"/%d" % n for n in range(9)]
        assert server.connections == 4
        assert len(arrived) == 9

    with_server(answer, use)


def test_waiting_for_a_connection_has_a_time_limit() -> None:
    async def use(server: Server, client: ApiClient) -> None:
        first = asyncio.create_task(client.request("GET", "/x"))
        await until(lambda: server.requests)
        with pytest.raises(Unreachable, match=r"no connection to the API server was free for 0\.01 s") as caught:
            await client.request("GET", "/x", timeout_s=0.01)
        assert not caught.value.was_sent
        await ended(first)

    with_server(forever, use, connections_max=1)


def test_a_cancelled_request_does_not_give_its_response_to_the_next_one() -> None:
    async def answer(request: Request, _writer: asyncio.StreamWriter) -> bytes:
        return await forever(request, _writer) if request.path == "/slow" else reply(200, b"mine")

    async def use(server: Server, client: ApiClient) -> None:
        slow = asyncio.create_task(client.request("GET", "/slow"))
        await until(lambda: server.requests)
        await ended(slow)
        assert (await client.request("GET", "/fast")).body == b"mine"
        assert server.connections == 2

    with_server(answer, use, connections_max=1)


def test_a_server_that_does_not_respond_is_unreachable_after_the_time_limit() -> None:
    async def use(server: Server, client: ApiClient) -> None:
        with pytest.raises(Unreachable, match=r"did not respond within 0\.02 s") as caught:
            await client.request("GET", "/x", timeout_s=0.02)
        assert caught.value.was_sent
        assert len(server.requests) == 1, "a request that timed out is not repeated"

    with_server(forever, use)


def test_an_idle_connection_that_the_server_closed_is_not_used() -> None:
    async def use(server: Server, client: ApiClient) -> None:
        await client.request("GET", "/x")
        await server.disconnect()
        await until(lambda: not client._idle)
        response = await client.request("POST", "/x")
        assert not response.was_repeated
        assert server.connections == 2

    with_server(always(reply()), use)


@pytest.mark.parametrize(
    ("method", "repeatable", "is_repeated"),
    [("GET", False, True), ("PUT", False, True), ("PATCH", False, True), ("POST", False, False), ("POST", True, True)],
)
def test_a_kept_connection_that_closes_under_a_request_is_replaced_once_if_that_is_safe(
    method: str, repeatable: bool, is_repeated: bool
) -> None:
    async def use(server: Server, client: ApiClient) -> None:
        await client.request("GET", "/first")
        if is_repeated:
            response = await client.request(method, "/x", repeatable=repeatable)
            assert response.was_repeated
            assert server.connections == 2
        else:
            with pytest.raises(Unreachable, match="closed the connection before it responded") as caught:
                await client.request(method, "/x", repeatable=repeatable)
            assert caught.value.was_sent

    with_server(scripted(reply(), None, reply()), use)


def test_a_request_is_repeated_once_only() -> None:
    async def use(server: Server, client: ApiClient) -> None:
        await client.request("GET", "/first")
        with pytest.raises(Unreachable):
            await client.request("GET", "/x")
        assert [request.path for request in server.requests] == ["/first", "/x", "/x"]

    with_server(scripted(reply(), None, None), use)


@pytest.mark.parametrize(
    ("sent", "words"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf", "closed the connection while it responded"),
        (b"SSH-2.0-OpenSSH_9\r\n", "is not valid HTTP"),
        (b"HTTP/1.1 101 Switching\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n", "switched to another protocol"),
        (b"", "closed the connection before it responded"),
    ],
)
def test_a_broken_response_is_a_network_failure(sent: bytes, words: str) -> None:
    async def answer(_request: Request, writer: asyncio.StreamWriter) -> None:
        writer.write(sent)

    async def use(_server: Server, client: ApiClient) -> None:
        with pytest.raises(Unreachable, match=words):
            await client.request("GET", "/x")

    with_server(answer, use)


def test_bytes_that_nobody_asked_for_close_the_connection() -> None:
    async def use(server: Server, client: ApiClient) -> None:
        assert (await client.request("GET", "/x")).body == b"one"
        await until(lambda: not client._idle)
        assert (await client.request("GET", "/x")).body == b"one"
        assert server.connections == 2

    async def answer(_request: Request, writer: asyncio.StreamWriter) -> bytes:
        writer.write(reply(200, b"one"))
        await writer.drain()
        asyncio.get_running_loop().call_later(0.005, writer.write, reply(408, b"too late"))
        return b""

    with_server(answer, use)


def test_no_server_is_a_network_failure_in_one_sentence() -> None:
    async def main() -> None:
        async with Server(always(reply())) as server:
            config = server.config()
        client = ApiClient(config)
        with pytest.raises(Unreachable, match=r"^cannot connect to the API server at 127\.0\.0\.1:\d+: .*") as caught:
            await client.request("POST", "/x")
        assert not caught.value.was_sent
        await client.close()

    asyncio.run(main())


def test_a_closed_client_sends_nothing_and_ends_what_is_pending() -> None:
    async def use(server: Server, client: ApiClient) -> None:
        pending = [asyncio.create_task(client.request("GET", "/x")) for _ in range(3)]
        await until(lambda: server.requests)
        await client.close()
        results = await asyncio.gather(*pending, return_exceptions=True)
        assert all(isinstance(result, Unreachable) for result in results)
        with pytest.raises(Unreachable, match="the client is closed"):
            await client.request("GET", "/x")

    with_server(forever, use, connections_max=1)


class TestTheFence:
    def test_a_request_that_is_no_longer_allowed_is_not_sent(self) -> None:
        async def use(server: Server, client: ApiClient) -> None:
            await client.request("GET", "/before")
            with pytest.raises(Fenced):
                await client.request("POST", "/x", allowed=lambda: False)
            await client.request("GET", "/after")
            assert [request.path for request in server.requests] == ["/before", "/after"]
            assert server.connections == 1, "the connection stays usable"

        with_server(always(reply()), use)

    def test_it_is_asked_after_the_wait_for_a_connection(self) -> None:
        is_leader, go_on = True, asyncio.Event()

        async def answer(_request: Request, _writer: asyncio.StreamWriter) -> bytes:
            await go_on.wait()
            return reply()

        async def use(server: Server, client: ApiClient) -> None:
            nonlocal is_leader
            first = asyncio.create_task(client.request("GET", "/x"))
            second = asyncio.create_task(client.request("POST", "/bind", allowed=lambda: is_leader))
            await until(lambda: server.requests and client._waiters)
            is_leader = False
            go_on.set()
            await first
            with pytest.raises(Fenced):
                await second
            assert len(server.requests) == 1

        with_server(answer, use, connections_max=1)

    def test_it_is_asked_again_before_a_request_is_repeated(self) -> None:
        asked: list[bool] = []

        def once() -> bool:
            asked.append(not asked)
            return asked[-1]

        async def use(server: Server, client: ApiClient) -> None:
            await client.request("GET", "/first")
            with pytest.raises(Fenced):
                await client.request("POST", "/x", allowed=once, repeatable=True)
            assert asked == [True, False]
            assert len(server.requests) == 2

        with_server(scripted(reply(), None, reply()), use)


class TestCredentials:
    def test_a_refused_token_is_read_again_and_the_request_repeated(self) -> None:
        tokens = iter(["Bearer old", "Bearer new"])

        async def answer(request: Request, _writer: asyncio.StreamWriter) -> bytes:
            return reply() if request.headers["authorization"] == "Bearer new" else refusal(401)

        async def main() -> None:
            async with Server(answer) as server:
                client = ApiClient(server.config(credentials=Credentials(lambda _: next(tokens))))
                assert (await client.request("POST", "/x")).status == 200
                assert len(server.requests) == 2
                await client.close()

        asyncio.run(main())

    def test_a_token_is_read_again_after_a_minute(self) -> None:
        now, reads = 0.0, 0

        def read(_was_refused: bool) -> str:
            nonlocal reads
            reads += 1
            return f"Bearer {reads}"

        async def main() -> None:
            nonlocal now
            credentials = Credentials(read, clock=lambda: now)
            async with Server(always(reply())) as server:
                client = ApiClient(server.config(credentials=credentials))
                for moment in (1.0, 59.0, 60.5, 61.0):
                    now = moment
                    await asyncio.gather(*(client.request("GET", "/x") for _ in range(3)))
                tokens = [request.headers["authorization"] for request in server.requests]
                assert tokens == ["Bearer 1"] * 6 + ["Bearer 2"] * 6
                await client.close()

        asyncio.run(main())

    def test_a_failed_refresh_keeps_the_old_token(self) -> None:
        now, values = 0.0, ["Bearer good"]
        credentials = Credentials(lambda _: values.pop(), clock=lambda: now)
        now = 100.0
        assert credentials.is_due()
        credentials.refresh()
        assert credentials.header == b"Authorization: Bearer good\r\n"
        assert not credentials.is_due(), "it tries again in a minute, not at every request"

    def test_a_token_with_a_line_break_is_refused(self) -> None:
        with pytest.raises(Invalid, match="contains a line break"):
            Credentials(lambda _: "Bearer x\r\nX-Evil: 1")


def test_tls_works_with_a_trusted_certificate_and_refuses_another(tmp_path: Path) -> None:
    public, private = certificate(tmp_path)
    server_side = tls_server(public, private)

    async def main() -> None:
        async with Server(always(reply(200, BIG)), tls=server_side) as server:
            client = ApiClient(server.config(tls=ssl.create_default_context(cafile=str(public))))
            for _ in range(2):
                assert (await client.request("GET", "/x")).body == BIG
            assert server.connections == 1
            await client.close()
            stranger = ApiClient(server.config(tls=ssl.create_default_context()))
            with pytest.raises(Unreachable, match="its certificate is not valid"):
                await stranger.request("GET", "/x")
            await stranger.close()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("body", "status", "expected"),
    [
        (b'{"kind":"Status","message":"pod is gone","reason":"NotFound"}', 404, "responded 404 NotFound: pod is gone"),
        (b'{"message":null}', 500, "responded 500: no message"),
        (b"<html>\n bad gateway", 502, r"responded 502: <html>\n bad gateway"),
        (b"\xff\xfe", 503, "responded 503: \N{REPLACEMENT CHARACTER}\N{REPLACEMENT CHARACTER}"),
        (b"[]", 400, "responded 400: []"),
        (b"", 401, "responded 401: no message"),
    ],
)
def test_an_error_has_the_words_of_the_server(body: bytes, status: int, expected: str) -> None:
    assert str(error_of(Response(status, body))) == f"the API server {expected}"


def test_the_pause_that_a_server_asks_for_is_known_from_the_header_or_the_body() -> None:
    body = b'{"details":{"retryAfterSeconds":7}}'
    assert error_of(Response(429, body)).retry_after_s == 7
    assert error_of(Response(429, body, retry_after_s=3)).retry_after_s == 3

    async def use(_server: Server, client: ApiClient) -> None:
        assert (await client.request("GET", "/x")).retry_after_s == 4

    with_server(always(reply(429, retry_after="4")), use)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (b"5", 5),
        (b" 0 ", 0),
        (b"999999999", RETRY_AFTER_MAX_S),
        (b"Thu, 01 Jan 1970 00:00:42 GMT", 32),
        (b"Thu, 01 Jan 1970 00:00:02 GMT", 0),
        (b"soon", None),
        (b"-1", None),
        (b"", None),
    ],
)
def test_a_retry_after_header_gives_seconds_or_nothing(value: bytes, seconds: float | None) -> None:
    assert retry_after_s(value, now=10.0) == seconds


def test_waits_grow_have_full_jitter_and_respect_the_server() -> None:
    backoff = Backoff(0.5, 30.0, Random(1))
    for limit in (0.5, 1, 2, 4, 8, 16, 30, 30, 30):
        assert 0 <= backoff.next_s() <= limit
    assert backoff.next_s(retry_after_s=40) == 40
    backoff.reset()
    assert backoff.next_s() <= 0.5
    spread = [Backoff(random=Random(seed)).next_s() for seed in range(200)]
    assert min(spread) < 0.05 and max(spread) > 0.45


def test_addresses_of_version_6_have_brackets() -> None:
    assert ApiConfig("::1", 6443).address == "[::1]:6443"
