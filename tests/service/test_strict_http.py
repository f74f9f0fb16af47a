"""Invalid HTTP is refused quickly: two lengths, endless headers, control characters."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from stead.service import listening
from stead.service.guard import HEADERS_BYTES_MAX, HEADERS_MAX
from tests.service.asking import Service
from tests.service.conftest import SCENARIO
from tests.service.raw import answer, connected
from tests.serving import Served, listening_at, serving, simulated

HEAD = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n"
CHUNKED = b"POST /why HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with simulated(SCENARIO) as desk, serving(desk) as served:
        yield served


def sent(served: Served, *pieces: bytes) -> bytes:
    """The whole answer to bytes that arrive piece by piece; returns only when the connection is closed. Everything is
    sent before anything is read, as most clients do, so a refusal must not reset the connection."""
    with connected(served) as connection:
        for piece in pieces:
            connection.sendall(piece)
        return answer(connection)


def status(found: bytes) -> int:
    return int(found.split(b" ", 2)[1])


class TestTwoLengths:
    @pytest.mark.parametrize("first", [True, False])
    def test_are_refused_and_the_rest_is_not_read(self, served: Served, first: bool) -> None:
        lengths = [b"Content-Length: 5\r\n", b"Transfer-Encoding: chunked\r\n"]
        head = b"POST /why HTTP/1.1\r\nHost: 127.0.0.1\r\n" + b"".join(lengths if first else reversed(lengths))
        found = sent(served, head + b"\r\n0\r\n\r\n" + HEAD + b"\r\n")
        assert status(found) == 400
        assert found.count(b"HTTP/1.1 ") == 1
        assert b"connection: close" in found
        assert b"has both Content-Length and Transfer-Encoding; send only Content-Length" in found

    def test_are_refused_with_a_token_too(self, service: Service) -> None:
        headers = [("content-length", "3"), ("transfer-encoding", "chunked")]
        assert service.ask("POST", "/nodes/drain/cpu-1", token=service.token, headers=headers).status == 400


class TestHeaders:
    def test_may_be_many_and_long(self, served: Served) -> None:
        many = b"".join(b"X-%d: %s\r\n" % (number, b"x" * 500) for number in range(HEADERS_MAX - 2))
        assert status(sent(served, HEAD + many + b"Connection: close\r\n\r\n")) == 200

    def test_that_are_too_many_are_refused(self, served: Served) -> None:
        many = b"".join(b"X-%d: x\r\n" % number for number in range(HEADERS_MAX))
        found = sent(served, HEAD + many + b"\r\n")
        assert status(found) == 431
        assert b"the headers are too long; send at most 100 headers of 65536 bytes in all" in found

    @pytest.mark.parametrize("pieces", [1, 2, 50])
    @pytest.mark.parametrize("size", [HEADERS_BYTES_MAX, 120_000, 200_000])
    def test_that_are_too_long_are_refused_in_one_piece_and_in_many(
        self, served: Served, size: int, pieces: int
    ) -> None:
        whole = HEAD + b"X: " + b"x" * size + b"\r\n\r\n"
        step = len(whole) // pieces + 1
        found = sent(served, *[whole[at : at + step] for at in range(0, len(whole), step)])
        assert status(found) in (400, 431)
        assert b'"ok"' not in found

    def test_that_are_too_long_together_are_refused(self, service: Service) -> None:
        long = [(f"x-{number}", "x" * 1000) for number in range(70)]
        assert service.ask("GET", "/healthz", headers=long).status == 431

    def test_count_together_with_the_url(self, service: Service) -> None:
        assert service.ask("GET", "/healthz?" + "x" * HEADERS_BYTES_MAX).status == 431

    @pytest.mark.parametrize("character", [*map(chr, range(32)), "\x7f"], ids=ascii)
    def test_with_a_control_character_are_refused(self, service: Service, character: str) -> None:
        found = service.ask("GET", "/healthz", headers=[("x-name", f"a{character}b")])
        assert found.status == (200 if character == "\t" else 400)
        assert character == "\t" or found.error == "the header x-name has a control character; send plain text"

    @pytest.mark.parametrize("value", [b"a\x01b", b"\x1b[31m", b"a\x7f", b"a\x00b", b"a\x0bb", b"a\rb"])
    def test_with_a_control_character_are_refused_on_a_real_socket(self, served: Served, value: bytes) -> None:
        assert status(sent(served, HEAD + b"X: " + value + b"\r\n\r\n")) == 400


class TestALineThatIsNotHttp:
    """A backtracking parser needs quadratic time: 20,000 spaces and a NUL would take seconds."""

    SPACES = b" " * 60_000

    @pytest.mark.parametrize(
        "whole",
        [
            HEAD + b"X:" + SPACES + b"\x00\r\n\r\n",
            HEAD + b"X:" + SPACES + b"\x0b\r\n\r\n",
            HEAD + b"X: x" + SPACES + b"\x00\r\n\r\n",
            HEAD + b"X:" + b"\t " * 30_000 + b"a\rb\r\n\r\n",
            CHUNKED + b"1;" + SPACES + b"\nx\r\n",
            CHUNKED + b"0\r\nX:" + SPACES + b"\x00\r\n\r\n",
        ],
        ids=["header", "tab", "value", "return", "chunk", "trailer"],
    )
    def test_is_refused_at_once(self, served: Served, whole: bytes) -> None:
        began = time.process_time()
        assert status(sent(served, whole)) == 400
        assert time.process_time() - began < 2

    def test_is_refused_with_a_reason(self, served: Served) -> None:
        found = sent(served, b"hello\r\n\r\n")
        assert found.endswith(b'{"error": "this is not a valid HTTP request: Invalid method encountered"}')


class TestTheSizeOfARequestWithoutItsBody:
    def test_is_bounded_for_chunks(self, served: Served) -> None:
        """A chunk of one byte has five bytes of framing."""
        found = sent(served, CHUNKED, *[b"1\r\nx\r\n" * (HEADERS_BYTES_MAX // 2)] * 5)
        assert status(found) in (400, 431)

    @pytest.mark.parametrize("piece", [b"x" * 1000, b"x: y\r\n" * 200], ids=["one", "many"])
    def test_is_bounded_for_trailers(self, served: Served, piece: bytes) -> None:
        found = sent(served, CHUNKED + b"0\r\nX: ", *[piece] * 500)
        assert status(found) in (400, 431)

    def test_does_not_include_the_body(self, served: Served) -> None:
        body = b'{"work": [{"id": "x", "labels": {"a": "%s"}}]}' % (b"x" * HEADERS_BYTES_MAX)
        head = b"POST /lint HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nConnection: close\r\n"
        found = sent(served, head + b"Content-Length: %d\r\n\r\n" % len(body), body)
        assert status(found) == 400
        assert b"labels" in found, "it was read"

    def test_a_trailer_is_no_header_of_the_request(self) -> None:
        received: list[Any] = []

        async def app(scope: Any, receive: Any, send: Any) -> None:
            while (await receive())["more_body"]:
                pass
            received.extend(name for name, _ in scope["headers"])
            await send({"type": "http.response.start", "status": 204, "headers": [(b"connection", b"close")]})
            await send({"type": "http.response.body"})

        with listening_at(app) as port, socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
            connection.sendall(CHUNKED + b"1\r\nx\r\n0\r\nAuthorization: x\r\n\r\n")
            assert status(answer(connection)) == 204
        assert received == [b"host", b"transfer-encoding"]


class TestPipelinedRequests:
    def test_are_answered_in_order(self, served: Served) -> None:
        last = HEAD + b"Connection: close\r\n\r\n"
        found = sent(served, (HEAD + b"\r\n") * 3 + last)
        assert found.count(b"HTTP/1.1 200") == 4

    def test_are_refused_if_there_are_too_many(self, served: Served) -> None:
        found = sent(served, (HEAD + b"\r\n") * (listening.PIPELINED_MAX + 2))
        assert b"at most 16 requests may wait for the previous one" in found
        assert found.count(b"HTTP/1.1 200") <= 1

    def test_for_an_upgrade_are_answered_in_http(self, served: Served) -> None:
        found = sent(served, HEAD + b"Upgrade: h2c\r\nConnection: Upgrade\r\n\r\n")
        assert status(found) == 200
        assert b"connection: close" in found


class TestAnUnreadAnswer:
    def test_is_aborted_after_a_timeout(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(listening, "READER_S", 0.2)
        ended = threading.Event()

        async def app(scope: Any, receive: Any, send: Any) -> None:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            leaving = asyncio.ensure_future(left(receive))
            while not leaving.done():
                await send({"type": "http.response.body", "body": b"x" * 65536, "more_body": True})
                await asyncio.wait([leaving], timeout=0)
            ended.set()

        async def left(receive: Any) -> None:
            while (await receive())["type"] != "http.disconnect":
                pass

        with listening_at(app) as port, socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
            connection.sendall(HEAD + b"\r\n")
            assert ended.wait(60)


class TestAClientThatIsRefusedWhileItSends:
    TOO_LONG = 8_000_000
    POST = b"POST /why HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: %d\r\n\r\n"

    def test_gets_the_whole_answer(self, served: Served) -> None:
        for _ in range(20):
            found = sent(served, self.POST % self.TOO_LONG, b"x" * self.TOO_LONG)
            assert status(found) == 413
            assert found.endswith(b'{"error": "the body is too long; it may have at most 1048576 bytes"}')

    def test_is_disconnected_after_a_timeout(self, served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(listening, "LINGER_S", 0.2)
        with connected(served) as connection:
            connection.sendall(self.POST % self.TOO_LONG)
            assert status(answer(connection)) == 413
            with pytest.raises(ConnectionError):
                _send_forever(connection)

    def test_is_disconnected_if_it_sends_too_much(self, served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(listening, "LINGER_S", 3600.0)
        monkeypatch.setattr(listening, "LINGER_BYTES_MAX", 1 << 20)
        with connected(served) as connection:
            connection.sendall(self.POST % self.TOO_LONG)
            with pytest.raises(ConnectionError):
                _send_forever(connection)  # the kernel's buffers alone may take all that the request announced

    def test_does_not_delay_the_end_of_the_service(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(listening, "LINGER_S", 3600.0)
        with simulated(SCENARIO) as desk, serving(desk) as served, connected(served) as connection:
            connection.sendall(self.POST % self.TOO_LONG)
            assert status(connection.recv(65536)) == 413


def _send_forever(connection: socket.socket) -> None:
    while True:
        connection.sendall(b"x" * 4096)
