"""One HTTP/1.1 connection to the API server: a request out, a response or a stream of lines in.

Rule: a request is written in the same synchronous step as the check that it is still allowed. asyncio's own event loop
passes it to the kernel in that step; uvloop does so at the end of the loop's turn. A connection serves one request at a
time, and is used again only after a complete response.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any, cast

import httptools
import msgspec

from stead.text import printable

QUEUED_BYTES_MAX = 1 << 20
"""A stream stops reading from the socket while its consumer has this many bytes of lines to read."""

LINE_BYTES_MAX = 64 << 20
"""A longer line breaks the stream."""

KEEP_ALIVE_S = 15
"""After this many silent seconds, the kernel asks the server whether it is alive; three missing answers end the
connection."""

RETRY_AFTER_MAX_S = 300.0
"""A server that asks for a longer pause gets this one."""


class Fenced(Exception):
    """The request was not sent, because it was no longer allowed."""


class Unreachable(Exception):
    """A network failure, in one sentence. `was_sent`: the server may have received the request and acted on it."""

    def __init__(self, message: str, was_sent: bool = False) -> None:
        super().__init__(message)
        self.was_sent = was_sent


class ApiError(Exception):
    """The server refused a request: its HTTP status, its reason in one word, and its message."""

    def __init__(self, status: int, reason: str, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(f"the API server responded {status}{f' {reason}' if reason else ''}: {message}")
        self.status = status
        self.reason = reason
        self.message = message
        self.retry_after_s = retry_after_s


@dataclass(slots=True)
class Response:
    """A complete response. `was_repeated`: the request was sent twice, because the first connection was lost before the
    server responded; the server may have acted on both."""

    status: int
    body: bytes
    retry_after_s: float | None = None
    was_repeated: bool = False


class _Details(msgspec.Struct):
    retryAfterSeconds: float | None = None  # noqa: N815


class _Status(msgspec.Struct):
    message: str | None = None
    reason: str | None = None
    details: _Details | None = None


_status_of = msgspec.json.Decoder(_Status).decode


def error_of(response: Response) -> ApiError:
    """The error that a response with a failure status means."""
    retry_after_s = response.retry_after_s
    try:
        status = _status_of(response.body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        text = response.body[:300].decode("utf-8", "replace").strip()
        return ApiError(response.status, "", printable(text) or "no message", retry_after_s)
    if retry_after_s is None and status.details is not None and status.details.retryAfterSeconds:
        retry_after_s = min(status.details.retryAfterSeconds, RETRY_AFTER_MAX_S)
    return ApiError(response.status, status.reason or "", printable(status.message or "no message"), retry_after_s)


def retry_after_s(value: bytes, now: float | None = None) -> float | None:
    """The pause that a Retry-After header asks for, from 0 to `RETRY_AFTER_MAX_S` seconds; None if it is malformed."""
    text = value.decode("latin-1").strip()
    try:
        if text.isdecimal():
            seconds = float(text)
        else:
            from time import time

            seconds = parsedate_to_datetime(text).timestamp() - (time() if now is None else now)
    except (ValueError, OverflowError):
        return None
    return min(max(0.0, seconds), RETRY_AFTER_MAX_S)


class Stream:
    """The lines of a response, as they arrive. Iterate over it inside ``async with``, which ends it.

    It ends when the server ends the response, and raises `Unreachable` when the connection breaks.
    """

    __slots__ = ("_connection", "_error", "_has_ended", "_lines", "_partial", "_partial_size", "_size", "_waiter")

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._lines: deque[bytes] = deque()
        self._size = 0
        self._partial: list[bytes] = []
        self._partial_size = 0
        self._waiter: asyncio.Future[None] | None = None
        self._has_ended = False
        self._error: Unreachable | None = None

    def __aiter__(self) -> Stream:
        return self

    async def __anext__(self) -> bytes:
        if not self._lines and not await self._wait():
            raise StopAsyncIteration
        line = self._lines.popleft()
        self._took(len(line))
        return line

    async def batch(self) -> list[bytes]:
        """All lines that have arrived, at least one; no lines if the stream has ended."""
        if not self._lines and not await self._wait():
            return []
        lines = list(self._lines)
        self._lines.clear()
        self._took(self._size)
        return lines

    @contextmanager
    def resting(self) -> Iterator[None]:
        """Leave what arrives in the kernel, so that later one read takes all of it."""
        self._connection.pause()
        try:
            yield
        finally:
            self._connection.resume()

    async def __aenter__(self) -> Stream:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """End the stream and close its connection."""
        self._connection.abort()
        await self._connection.closed

    async def _wait(self) -> bool:
        """Wait for a line. False: the stream has ended."""
        while not self._lines:
            if self._has_ended:
                if self._error is not None:
                    raise self._error
                return False
            self._waiter = self._connection.loop.create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        return True

    def _took(self, size: int) -> None:
        self._size -= size
        if self._size <= QUEUED_BYTES_MAX // 2:
            self._connection.resume()

    def feed(self, chunk: bytes) -> None:
        """Take a part of the body, which may begin and end inside a line."""
        first, *others = chunk.split(b"\n")
        self._partial.append(first)
        self._partial_size += len(first)
        if others:
            lines = [b"".join(self._partial), *others]
            last = lines.pop()
            self._partial = [last] if last else []
            self._partial_size = len(last)
            for line in lines:
                if line:
                    self._lines.append(line)
                    self._size += len(line)
            self._wake()
            if self._size > QUEUED_BYTES_MAX:
                self._connection.pause()
        if self._partial_size > LINE_BYTES_MAX:
            self.end(Unreachable(f"a line of the stream is longer than {LINE_BYTES_MAX:,} bytes", was_sent=True))
            self._connection.abort()

    def end(self, error: Unreachable | None) -> None:
        """No more lines come. Only the first call counts."""
        if self._has_ended:
            return
        last = b"".join(self._partial)
        if last and error is None:
            self._lines.append(last)
            self._size += len(last)
        self._has_ended, self._error = True, error
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class Connection(asyncio.Protocol):
    """The protocol of one connection. `lost` is called when it is closed."""

    def __init__(self, loop: asyncio.AbstractEventLoop, address: str, lost: Callable[[Connection], None]) -> None:
        self.loop = loop
        self.closed: asyncio.Future[None] = loop.create_future()
        self.idle_since = 0.0
        self.is_stale = False
        """It served a request before, and the server closed it before it responded to this one."""
        self._address = address
        self._lost = lost
        self._transport: asyncio.Transport | None = None
        self._parser: Any = httptools.HttpResponseParser(self)
        self._waiter: asyncio.Future[Response | None] | None = None
        self._stream: Stream | None = None
        self._is_streaming = False
        self._has_served = False
        self._has_response_begun = False
        self._is_reusable = True
        self._is_paused = False
        self._deadline = 0.0
        self._allowed_s = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._reset()

    def _reset(self) -> None:
        self._chunks: list[bytes] = []
        self._retry_after_s: float | None = None
        self._is_framed = False
        self._are_headers_complete = False

    # Sending

    @property
    def is_idle(self) -> bool:
        """Whether it can take a request."""
        transport = self._transport
        return self._waiter is None and self._is_reusable and transport is not None and not transport.is_closing()

    def send(
        self, request: bytes, timeout_s: float, allowed: Callable[[], bool] | None, stream: Stream | None = None
    ) -> asyncio.Future[Response | None]:
        """Write the request now, if it is allowed now. The result is the response, or None if its body goes to
        `stream`."""
        transport = self._transport
        assert transport is not None and self._waiter is None, "one request at a time, on an open connection"
        if allowed is not None and not allowed():
            raise Fenced("the request was not sent, because it is no longer allowed")
        transport.write(request)
        self._waiter = waiter = self.loop.create_future()
        self._stream = stream
        self._has_response_begun = False
        self._allowed_s = timeout_s
        self._deadline = deadline = self.loop.time() + timeout_s
        if self._timer is None or self._timer.when() > deadline:
            self._arm(deadline)
        return waiter

    def _arm(self, when: float) -> None:
        """One timer for many requests: it is moved when it fires, not at every request."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.loop.call_at(when, self._check_deadline)

    def _check_deadline(self) -> None:
        self._timer = None
        if self._waiter is None and not self._is_streaming:
            return
        now = self.loop.time()
        if self._is_paused:  # the consumer is slow, not the server
            self._arm(now + self._allowed_s)
        elif now < self._deadline:
            self._arm(self._deadline)
        else:
            what = "sent nothing for" if self._is_streaming else "did not respond within"
            self._fail(Unreachable(f"the API server at {self._address} {what} {self._allowed_s:g} s", was_sent=True))

    def pause(self) -> None:
        """Stop reading from the socket."""
        if not self._is_paused and self._transport is not None and not self._transport.is_closing():
            self._is_paused = True
            self._transport.pause_reading()
            self._limit_decryption(1, 0)

    def resume(self) -> None:
        """Read from the socket again."""
        if self._is_paused and self._transport is not None:
            self._is_paused = False
            self._deadline = self.loop.time() + self._allowed_s
            if not self._transport.is_closing():
                self._limit_decryption()
                self._transport.resume_reading()

    def _limit_decryption(self, *limits: int) -> None:
        """With TLS, a paused transport still reads up to 256 KiB, one record after the other, unless it may buffer no
        more than this."""
        limit = getattr(self._transport, "set_read_buffer_limits", None)
        if limit is not None:
            limit(*limits)

    def abort(self) -> None:
        """Close it at once. Its request, if any, gets `Unreachable`."""
        self._is_reusable = False
        if self._transport is not None:
            self._transport.abort()

    # Called by asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass
        keep_alive(transport.get_extra_info("socket"))

    def data_received(self, data: bytes) -> None:
        if self._waiter is None and not self._is_streaming:
            self.abort()  # bytes that no request asked for
            return
        self._has_response_begun = True
        if self._is_streaming:
            self._deadline = self.loop.time() + self._allowed_s
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._fail(Unreachable(f"the API server at {self._address} switched to another protocol", was_sent=True))
        except httptools.HttpParserError as error:
            self._fail(Unreachable(f"the response of {self._address} is not valid HTTP: {error}", was_sent=True))

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._are_headers_complete and not self._is_framed and exc is None and self._is_reusable:
            self.on_message_complete()  # the end of the connection is the end of the body
        self.is_stale = self._has_served and self._waiter is not None and not self._has_response_begun
        self._is_reusable = False
        reason = f": {exc}" if exc is not None else ""
        what = "while it responded" if self._has_response_begun else "before it responded"
        self._fail(
            Unreachable(f"the API server at {self._address} closed the connection {what}{reason}", was_sent=True)
        )
        if not self.closed.done():
            self.closed.set_result(None)
        self._lost(self)

    def _fail(self, error: Unreachable) -> None:
        self.abort()
        if self._waiter is not None:
            if not self._waiter.done():
                self._waiter.set_exception(error)
            self._waiter = None
        if self._stream is not None:
            self._stream.end(error)
            self._stream = None
        self._is_streaming = False

    # Called by the parser

    def on_header(self, name: bytes, value: bytes) -> None:
        size = len(name)
        if size == 11 and name.lower() == b"retry-after":
            self._retry_after_s = retry_after_s(value)
        elif (size == 14 and name.lower() == b"content-length") or (
            size == 17 and name.lower() == b"transfer-encoding"
        ):
            self._is_framed = True

    def on_headers_complete(self) -> None:
        self._are_headers_complete = True
        if self._stream is not None and self._parser.get_status_code() == 200 and self._waiter is not None:
            self._is_streaming = True
            if not self._waiter.done():
                self._waiter.set_result(None)
            self._waiter = None

    def on_body(self, body: bytes) -> None:
        if self._is_streaming and self._stream is not None:
            self._stream.feed(body)
        else:
            self._chunks.append(body)

    def on_message_complete(self) -> None:
        status = self._parser.get_status_code()
        if status < 200:  # an interim response; the real one follows
            self._reset()
            return
        chunks = self._chunks
        body = chunks[0] if len(chunks) == 1 else b"".join(chunks)
        response = Response(status, body, self._retry_after_s)
        self._reset()
        self._has_served = True
        self._is_reusable = self._is_reusable and self._parser.should_keep_alive()
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(response)
        self._waiter = None
        if self._stream is not None:
            self._stream.end(None)
            self._stream = None
        self._is_streaming = False


def keep_alive(sock: Any) -> None:
    """Let the kernel find out that a server has disappeared, also while nothing is sent."""
    if sock is None:
        return
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (("TCP_KEEPIDLE", KEEP_ALIVE_S), ("TCP_KEEPINTVL", KEEP_ALIVE_S), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, option):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 4 * KEEP_ALIVE_S * 1_000)
