"""One HTTP/1.1 connection to the fake API server: requests come in, answers and watches go out.

Rule: a connection has one request at a time. What arrives meanwhile waits in its buffer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from http import HTTPStatus
from typing import Protocol
from urllib.parse import parse_qsl, unquote

from tests.kubernetes.servers.fake_api import Answer, Request, WatchWanted
from tests.kubernetes.servers.fake_status import Failure
from tests.kubernetes.servers.fake_store import Store, Watch, encoded, event_line

PHRASES = {status.value: status.phrase for status in HTTPStatus}
WATCH_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"


class Host(Protocol):
    """What a connection needs of its server."""

    store: Store
    bookmark_seconds: float
    connections: set[Connection]

    def serve(self, connection: Connection, request: Request, authorization: str | None) -> None: ...


class Connection(asyncio.Protocol):
    """Reads requests, one after the other, and writes what the server answers."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._loop = asyncio.get_running_loop()
        self._buffer = bytearray()
        self._busy = False
        self._close_after = False
        self._timers: list[asyncio.TimerHandle] = []
        self._bookmarks = False
        self.watch: Watch | None = None
        self.closed: asyncio.Future[None] = self._loop.create_future()

    # What asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._host.connections.add(self)

    def connection_lost(self, _: Exception | None) -> None:
        self._end_watch()
        self._host.connections.discard(self)
        if not self.closed.done():
            self.closed.set_result(None)

    def data_received(self, part: bytes) -> None:
        self._buffer += part
        self._read_requests()

    # What the server calls

    def abort(self) -> None:
        """Close the connection abruptly, as a network failure does."""
        self._transport.abort()

    def respond(self, answer: Answer, retry_after: int | None = None) -> None:
        if self.closed.done():
            return
        head = f"HTTP/1.1 {answer.code} {PHRASES[answer.code]}\r\nContent-Type: {answer.content_type}\r\n"
        if retry_after is not None:
            head += f"Retry-After: {retry_after}\r\n"
        if self._close_after:
            head += "Connection: close\r\n"
        self._transport.write(f"{head}Content-Length: {len(answer.body)}\r\n\r\n".encode() + answer.body)
        self._next()

    def begin_watch(self, wanted: WatchWanted) -> None:
        """Send the events so far, then every new one, until the watch times out or the client disconnects."""
        watch = Watch(wanted.selection, lambda line: self._transport.write(_chunk(line)))
        try:
            first = self._host.store.watch(watch, wanted.since)
        except Failure as failure:
            line = event_line("ERROR", encoded(failure.body))
            self._transport.write(WATCH_HEAD + _chunk(line) + b"0\r\n\r\n")
            self._next()
            return
        self.watch, self._bookmarks = watch, wanted.bookmarks
        self._transport.write(WATCH_HEAD + b"".join(_chunk(line) for line in first))
        if wanted.seconds_max is not None:
            self._timers.append(self._loop.call_later(wanted.seconds_max, self._finish_watch))
        if wanted.bookmarks:
            self._schedule_bookmark()

    def send_bookmark(self) -> None:
        if self.watch and self._bookmarks:
            self.watch.push(self._host.store.bookmark(self.watch.selection.resource))

    # Inside

    def _schedule_bookmark(self) -> None:
        def send() -> None:
            self.send_bookmark()
            self._schedule_bookmark()

        self._timers = [timer for timer in self._timers if not timer.cancelled() and timer.when() > self._loop.time()]
        self._timers.append(self._loop.call_later(self._host.bookmark_seconds, send))

    def _finish_watch(self) -> None:
        self.send_bookmark()
        self._end_watch()
        self._transport.write(b"0\r\n\r\n")
        self._next()

    def _end_watch(self) -> None:
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()
        if self.watch:
            self._host.store.end_watch(self.watch)
            self.watch = None

    def _next(self) -> None:
        self._busy = False
        if self._close_after:
            self._transport.close()
        elif self._buffer:
            self._loop.call_soon(self._read_requests)

    def _read_requests(self) -> None:
        if self._busy or self.closed.done() or (end := self._buffer.find(b"\r\n\r\n")) < 0:
            return
        first, *lines = self._buffer[:end].decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        length = int(headers.get("content-length") or 0)
        if len(self._buffer) < end + 4 + length:
            return
        body = bytes(self._buffer[end + 4 : end + 4 + length])
        del self._buffer[: end + 4 + length]
        self._busy = True
        self._close_after = headers.get("connection", "").lower() == "close"
        if "transfer-encoding" in headers:
            self._close_after = True
            self.respond(Answer(411, b"the fake server reads no chunked bodies\n", "text/plain"))
            return
        self._host.serve(self, _request(first, headers, body), headers.get("authorization"))


def _request(first: str, headers: Mapping[str, str], body: bytes) -> Request:
    """The user is not known yet."""
    method, target, _ = first.split(" ")
    path, _, query = target.partition("?")
    parameters = dict(parse_qsl(query)) if query else {}
    return Request(method, unquote(path), parameters, body, headers.get("content-type", ""), "")


def _chunk(line: bytes) -> bytes:
    return f"{len(line):x}\r\n".encode() + line + b"\r\n"
