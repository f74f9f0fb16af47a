"""How the service listens: the web server's settings, how long it waits, and which connection it closes first.

Rule: a connection that does nothing takes the place of nobody. A client has to send its headers in time, and they are
bounded. When there are too many connections, the service closes the ones that nobody needs, and takes the new one.
How long a body and an answer may take is the guard's.
"""

from __future__ import annotations

import asyncio
import gc
import re
import resource
from enum import IntEnum
from typing import Any
from weakref import WeakKeyDictionary

import h11
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from stead.service.guard import HEADERS_BYTES_MAX

HEADERS_S = 10.0
CONNECTIONS_MAX = 1000

_SAID = b'{"error": "too many connections are open; try again in a few seconds"}'
FULL = b"\r\n".join(
    [
        b"HTTP/1.1 503 Service Unavailable",
        b"content-type: application/json",
        b"content-length: %d" % len(_SAID),
        b"connection: close",
        b"retry-after: 5",
        b"",
        _SAID,
    ]
)
"""The answer where every connection is one of a token that has a request under way."""


class Use(IntEnum):
    """What a connection is used for. When there are too many, those of the lowest use are closed first."""

    IDLE = 0
    VISITOR = 1  # a request without a token is under way
    KNOWN_IDLE = 2  # the last request had a token
    KNOWN = 3  # a request with a token is under way


class Places:
    """All connections of one server, by their use; in each use, the one that is in it for the longest time is first."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._uses: dict[Patient, Use] = {}
        self._by_use: dict[Use, dict[Patient, None]] = {use: {} for use in Use}

    def add(self, newcomer: Patient) -> bool:
        """Take a new connection, and close others if there are too many; False if all others are needed more."""
        self._move(newcomer, Use.IDLE)
        while len(self._uses) > self._most:
            least = self._least_needed(newcomer)
            if least is None:
                return False
            self.remove(least)
            least.transport.abort()
        return True

    def note(self, connection: Patient) -> None:
        """Its use may have changed."""
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
        """The first that can be closed. Uses are looked up again: the guard may have found the token of a request, and
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
    """One for each server. Half of the files that this process may open are for other things than connections."""
    if server not in _PLACES:
        files_max = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        is_bounded = files_max != resource.RLIM_INFINITY
        _PLACES[server] = Places(min(CONNECTIONS_MAX, files_max // 2) if is_bounded else CONNECTIONS_MAX)
    return _PLACES[server]


class Patient(H11Protocol):
    """HTTP/1.1 that waits for the headers of a request, but not for ever."""

    _waits: asyncio.TimerHandle | None = None

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
        """What this connection is used for now. The guard notes in the scope whose token a request has."""
        is_known = self.scope is not None and self.scope["state"].get("key") is not None
        if self._is_asking() or self.transport.get_write_buffer_size():
            return Use.KNOWN if is_known else Use.VISITOR
        return Use.KNOWN_IDLE if is_known else Use.IDLE

    def _is_asking(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        if self._places.add(self):
            self._wait()
        else:
            transport.write(FULL)
            transport.close()

    def handle_events(self) -> None:
        """Something arrived."""
        super().handle_events()
        if self._is_asking():
            self._stop_waiting()  # a request has begun
        elif self._waits is None:
            self._wait()
        self._places.note(self)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._stop_waiting()  # from here on, how long a connection may idle is the server's keep-alive
        self._places.note(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        self._places.remove(self)
        super().connection_lost(exc)

    def _wait(self) -> None:
        self._waits = self.loop.call_later(HEADERS_S, self._give_up)

    def _stop_waiting(self) -> None:
        if self._waits is not None:
            self._waits.cancel()
            self._waits = None

    def _give_up(self) -> None:
        if not self._is_asking():
            self.transport.close()


def _refuse_lines_quickly() -> None:
    """h11 needs time that grows with the square of a line's spaces to find that the line is not HTTP: 64 KB of them and
    a NUL keep the whole service busy for a minute. These patterns match the same lines, and never look back."""
    header = rb"(?P<field_name>[-!#$%&'*+.^_`|~0-9a-zA-Z]++):[ \t]*+"
    header += rb"(?P<field_value>(?:[^\x00\s]++(?:[ \t]++[^\x00\s]++)*+)?+)[ \t]*+"
    chunk = rb"(?P<chunk_size>[0-9A-Fa-f]{1,20}+)(?P<chunk_ext>;(?:[^\r\n]|\r(?!\n))*+)?+[ \t]*+\r\n"
    h11._readers.header_field_re = re.compile(header)
    h11._readers.chunk_header_re = re.compile(chunk)


_refuse_lines_quickly()


def settle() -> None:
    """What is in memory now stays: to look through it for garbage again and again would hold up requests. Of what
    comes, hardly anything is garbage that only such a look finds."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 10, 20)


SETTINGS: dict[str, Any] = {
    "http": Patient,
    "h11_max_incomplete_event_size": HEADERS_BYTES_MAX,
    "backlog": 256,  # the event loop takes all of it at once, before a connection can be closed
    "timeout_keep_alive": 10,
    "ws": "none",
    "proxy_headers": False,  # who asks is who is connected; a header could say anything
    "server_header": False,
    "log_config": None,
}
"""For `uvicorn.Config`."""
