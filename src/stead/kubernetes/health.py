"""A small HTTP server for probes and metrics: /healthz, /readyz and /metrics.

Rule: it only reads. Requests are short and answered at once; a client that is slow or says too much is disconnected. It
listens on loopback by default; listening elsewhere shows nothing but these three pages.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from stead.errors import Invalid

REQUEST_MAX = 8192
"""The maximum size of a request, in bytes."""

TIMEOUT_S = 5.0
"""How long a client may take to send its request and to read the response."""

CLIENTS_MAX = 64

Page = Callable[[], tuple[int, str]]
"""Gives the status and the text of a page."""

_REASONS = {200: "OK", 400: "Bad Request", 404: "Not Found", 405: "Method Not Allowed", 503: "Service Unavailable"}


class HealthServer:
    """Serves pages by path, until `close`."""

    def __init__(self, pages: dict[str, Page]) -> None:
        self._pages = pages
        self._clients = 0
        self._server: asyncio.Server | None = None

    async def listen(self, host: str, port: int) -> int:
        """Begin to serve. Returns the port."""
        try:
            self._server = await asyncio.start_server(self._serve, host, port, limit=REQUEST_MAX)
        except OSError as error:
            raise Invalid(
                f"cannot listen on {host}:{port} ({error.strerror}); choose another address with --listen, for example"
                " 127.0.0.1:10260"
            ) from None
        found: int = self._server.sockets[0].getsockname()[1]
        return found

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._clients += 1
        try:
            if self._clients <= CLIENTS_MAX:
                async with asyncio.timeout(TIMEOUT_S):
                    status, text = self._answer(await reader.readuntil(b"\r\n\r\n"))
                    body = text.encode()
                    kind = "text/plain; version=0.0.4; charset=utf-8"
                    head = (
                        f"HTTP/1.1 {status} {_REASONS[status]}\r\nContent-Type: {kind}\r\nAllow: GET, HEAD\r\n"
                        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
                    )
                    writer.write(head.encode() + body)
                    await writer.drain()
        except (TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ConnectionError):
            pass  # the client is gone, slow, or said too much
        finally:
            self._clients -= 1
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()

    def _answer(self, request: bytes) -> tuple[int, str]:
        method, _, rest = request.split(b"\r\n", 1)[0].partition(b" ")
        path = rest.split(b" ", 1)[0].split(b"?", 1)[0].decode("ascii", "replace")
        if not rest:
            return 400, "the request has no path\n"
        if method not in (b"GET", b"HEAD"):
            return 405, "only GET and HEAD are allowed here\n"
        page = self._pages.get(path)
        if page is None:
            return 404, f"there is only {', '.join(self._pages)}\n"
        status, text = page()
        return status, "" if method == b"HEAD" else text
