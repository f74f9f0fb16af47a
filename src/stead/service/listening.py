"""How the service listens: the web server's settings, its timeouts, and which connections it closes first.

Rule: an idle connection never blocks another one. A client must send its headers and read its answers in time; the size
of everything but the body is limited here. If there are too many connections, the service closes those that are needed
least and accepts the new one. The guard limits the size and duration of a body. A client that is refused while it sends
gets the whole answer: the connection is closed only after the client has had time to read it.
"""

from __future__ import annotations

import asyncio
import gc
import json
import resource
from enum import IntEnum
from typing import Any, cast
from weakref import WeakKeyDictionary

from httptools import HttpParserError, HttpParserUpgrade
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from stead.service.guard import HEADERS_BYTES_MAX, HEADERS_MAX, TWO_LENGTHS

HEADERS_S = 10.0
READER_S = 30.0
LINGER_S = 2.0
LINGER_BYTES_MAX = 16 << 20
"""How long, and how much, a refused client may still send before its connection is closed. A system that receives data
on a closed connection resets it, and then the client loses an answer that it has not read yet."""

CONNECTIONS_MAX = 1000
PIPELINED_MAX = 16  # requests that wait for the previous answer; common clients send none


def refusal(status: str, text: str, *headers: str) -> bytes:
    """A complete answer, for a request that never reaches the application."""
    body = json.dumps({"error": text})
    length = f"content-length: {len(body)}"
    lines = [f"HTTP/1.1 {status}", "content-type: application/json", length, "connection: close", *headers]
    return "\r\n".join([*lines, "", body]).encode()


FULL = refusal("503 Service Unavailable", "too many connections are open; retry in a few seconds", "retry-after: 5")
"""The answer if every connection has a request with a token in progress."""

TOO_LONG = refusal(
    "431 Request Header Fields Too Large",
    f"the headers are too long; send at most {HEADERS_MAX} headers of {HEADERS_BYTES_MAX} bytes in all",
)


class Use(IntEnum):
    """What a connection is used for. If there are too many, those with the lowest use are closed first."""

    IDLE = 0
    VISITOR = 1  # a request without a token is in progress
    KNOWN_IDLE = 2  # the last request had a token
    KNOWN = 3  # a request with a token is in progress


class Places:
    """All connections of one server, by their use; for each use, the oldest first."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._uses: dict[Patient, Use] = {}
        self._by_use: dict[Use, dict[Patient, None]] = {use: {} for use in Use}

    def add(self, newcomer: Patient) -> bool:
        """Accept a connection, and close others if there are too many; False if all others are needed more."""
        self._move(newcomer, Use.IDLE)
        while len(self._uses) > self._most:
            least = self._least_needed(newcomer)
            if least is None:
                return False
            self.remove(least)
            least.transport.abort()
        return True

    def note(self, connection: Patient) -> None:
        """Update the use of a connection."""
        if connection in self._uses:
            self._move(connection, connection.use())

    def remove(self, connection: Patient) -> None:
        use = self._uses.pop(connection, None)
        if use is not None:
            del self._by_use[use][connection]

    def _move(self, connection: Patient, use: Use) -> None:
        if self._uses.get(connection) is not use:
            self.remove(connection)
            self._uses[connection] = use
            self._by_use[use][connection] = None

    def _least_needed(self, newcomer: Patient) -> Patient | None:
        """The first connection to close. Uses are checked again: the guard may have found the token of a request, and
        the rest of an answer may have been sent."""
        for use in Use:
            needed_more: list[Patient] = []
            found = None
            for connection in self._by_use[use]:
                if connection.use() > use:
                    needed_more.append(connection)
                elif connection is not newcomer and connection.use() is not Use.KNOWN:
                    found = connection
                    break
            for connection in needed_more:
                self.note(connection)
            if found is not None:
                return found
        return None


_PLACES: WeakKeyDictionary[ServerState, Places] = WeakKeyDictionary()


def places_of(server: ServerState) -> Places:
    """One for each server. Half of the files that this process may open are reserved for other uses."""
    if server not in _PLACES:
        files_max = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        is_bounded = files_max != resource.RLIM_INFINITY
        _PLACES[server] = Places(min(CONNECTIONS_MAX, files_max // 2) if is_bounded else CONNECTIONS_MAX)
    return _PLACES[server]


class Patient(HttpToolsProtocol):
    """HTTP/1.1 with timeouts for the headers of a request and for a client that does not read its answer."""

    _waits: asyncio.TimerHandle | None = None
    _waits_for_reader: asyncio.TimerHandle | None = None
    _beside_bodies = 0  # bytes of the current request that do not belong to its body
    _has_head = False
    _has_message = True  # all of the current request has arrived
    _lingers: asyncio.TimerHandle | None = None  # the answer is sent, and everything else is discarded
    _discarded = 0

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._places = places_of(server_state)

    def use(self) -> Use:
        """What this connection is used for now. The guard stores the owner of a request's token in the scope."""
        is_known = self.cycle is not None and self.cycle.scope["state"].get("key") is not None
        if self._is_asking() or self.transport.get_write_buffer_size():
            return Use.KNOWN if is_known else Use.VISITOR
        return Use.KNOWN_IDLE if is_known else Use.IDLE

    def _is_asking(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    # -- the connection

    def connection_made(self, transport: Any) -> None:
        super().connection_made(cast(asyncio.Transport, _Lingering(transport, self)))
        if self._places.add(self):
            self._wait()
        else:
            self.transport.write(FULL)
            self.transport.close()

    def data_received(self, data: bytes) -> None:
        if self._lingers is not None:
            self._discarded += len(data)
            if self._discarded > LINGER_BYTES_MAX:
                self.transport.abort()
            return
        self._unset_keepalive_if_required()
        self._beside_bodies += len(data)
        try:
            self.parser.feed_data(data)
        except HttpParserUpgrade:  # answered as if no other protocol was requested
            self.cycle.keep_alive = False
        except HttpParserError as error:
            self._refuse(refusal("400 Bad Request", _sentence(error)))
            return
        self._beside_bodies = max(0, self._beside_bodies)  # a body that arrived with its headers
        if self._beside_bodies > HEADERS_BYTES_MAX:
            self._refuse(TOO_LONG)
            return
        if self._is_asking():
            self._stop_waiting()  # a request has started
        elif self._waits is None:
            self._wait()
        self._places.note(self)

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._waits_for_reader is None:
            self._waits_for_reader = self.loop.call_later(READER_S, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop_waiting_for_reader()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._stop_waiting()  # from now on the server's keep-alive limits how long the connection may be idle
        self._places.note(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        self._stop_waiting_for_reader()
        if self._lingers is not None:
            self._lingers.cancel()
        self._places.remove(self)
        super().connection_lost(exc)

    # -- callbacks of the parser

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._has_head = self._has_message = False

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._has_head:  # trailers after a chunked body were not there when the guard checked
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if len(self.pipeline) >= PIPELINED_MAX:
            raise ValueError(f"at most {PIPELINED_MAX} requests may wait for the previous one")
        if self.parser.get_http_version() == "1.1" and not any(name == b"host" for name, _ in self.headers):
            raise ValueError("the header Host is missing; send, for example, Host: 127.0.0.1")
        self._has_head = True
        self._beside_bodies = 0  # from now on the guard knows the size of the headers
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._beside_bodies -= len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._beside_bodies = 0
        self._has_message = True
        super().on_message_complete()

    # -- timeouts

    def _wait(self) -> None:
        self._waits = self.loop.call_later(HEADERS_S, self._give_up)

    def _stop_waiting(self) -> None:
        if self._waits is not None:
            self._waits.cancel()
            self._waits = None

    def _stop_waiting_for_reader(self) -> None:
        if self._waits_for_reader is not None:
            self._waits_for_reader.cancel()
            self._waits_for_reader = None

    def _give_up(self) -> None:
        if not self._is_asking():
            self.transport.close()

    # -- refusals before a request has arrived

    def _refuse(self, answer: bytes) -> None:
        """Answer something that is not a valid request."""
        self.transport.write(answer)
        self._has_message = False  # where it would end is unknown
        self.transport.close()

    def linger(self, transport: asyncio.Transport) -> bool:
        """Whether to close the connection later, because the client has not sent all of its request."""
        if self._has_message or self._lingers is not None or transport.is_closing():
            return False
        if self._is_asking():  # a request whose answer is no longer sent
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        self.flow.resume_reading()
        transport.write_eof()
        self._lingers = self.loop.call_later(LINGER_S, transport.abort)
        return True

    @property
    def is_lingering(self) -> bool:
        return self._lingers is not None


class _Lingering:
    """A transport whose `close` waits until the client has read the answer, if the client is still sending."""

    def __init__(self, transport: asyncio.Transport, connection: Patient) -> None:
        self._transport, self._connection = transport, connection

    def close(self) -> None:
        if not self._connection.linger(self._transport):
            self._transport.close()

    def is_closing(self) -> bool:
        return self._connection.is_lingering or self._transport.is_closing()

    def write(self, data: bytes) -> None:
        if not self._connection.is_lingering:
            self._transport.write(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


def _sentence(error: BaseException) -> str:
    """The parser's error, or the reason of our own check."""
    while error.__context__ is not None:
        error = error.__context__
    reason = str(error)
    if "Content-Length" in reason and "Transfer-Encoding" in reason:
        return TWO_LENGTHS
    return f"this is not a valid HTTP request: {reason}"


def settle() -> None:
    """Excludes all current objects from garbage collection, which would delay requests again and again. Hardly any new
    object is garbage that only the collector finds."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 10, 20)


SETTINGS: dict[str, Any] = {
    "http": Patient,
    "backlog": 256,  # the event loop accepts all of it at once, before a connection can be closed
    "timeout_keep_alive": 10,
    "ws": "none",
    "proxy_headers": False,  # the client is the peer of the connection; a header could claim anything
    "server_header": False,
    "log_config": None,
}
"""For `uvicorn.Config`."""
