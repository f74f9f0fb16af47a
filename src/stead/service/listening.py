"""How the service listens: the web server's settings, and how long it waits for whom.

Rule: nobody holds a place by doing nothing. Who opens a connection has to say what for, and who says it slowly is
cut off; headers are bounded. What a body and an answer may take is the guard's.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

HEADERS_S = 10.0
HEADERS_BYTES_MAX = 64 << 10
CONNECTIONS_MAX = 1000


class Patient(H11Protocol):
    """HTTP/1.1 that waits for the headers of a request, but not for ever."""

    _waits: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._wait()

    def handle_events(self) -> None:
        """Something arrived."""
        super().handle_events()
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop_waiting()  # a request has begun
        elif self._waits is None:
            self._wait()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._stop_waiting()  # from here on, how long a connection may idle is the server's keep-alive

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def _wait(self) -> None:
        self._waits = self.loop.call_later(HEADERS_S, self._give_up)

    def _stop_waiting(self) -> None:
        if self._waits is not None:
            self._waits.cancel()
            self._waits = None

    def _give_up(self) -> None:
        if self.cycle is None or self.cycle.response_complete:
            self.transport.close()


SETTINGS: dict[str, Any] = {
    "http": Patient,
    "h11_max_incomplete_event_size": HEADERS_BYTES_MAX,
    "limit_concurrency": CONNECTIONS_MAX,
    "backlog": 2048,
    "timeout_keep_alive": 10,
    "ws": "none",
    "proxy_headers": False,  # who asks is who is connected; a header could say anything
    "server_header": False,
    "log_config": None,
}
"""For `uvicorn.Config`."""
