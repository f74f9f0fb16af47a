"""A small HTTP server on the loopback interface, clocks that a test moves, and waits for conditions.

Rule: what a server sends is bytes that the test wrote, so that a test can also send what no good server would.
"""

from __future__ import annotations

import asyncio
import heapq
import json
import shutil
import ssl
import subprocess
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest

from stead.kubernetes.api.config import ApiConfig, Credentials


@dataclass(frozen=True, slots=True)
class Request:
    """What the server received. `connection` counts the connections of the server, from 1."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes
    connection: int

    @property
    def json(self) -> Any:
        return json.loads(self.body)


Answer = Callable[[Request, asyncio.StreamWriter], Awaitable[bytes | None]]
"""Returns the bytes to send, after what it wrote itself. None closes the connection."""


def reply(status: int = 200, body: object = b"", **headers: str) -> bytes:
    """A complete response. A body that is not bytes is sent as JSON; ``retry_after="3"`` is a header."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"HTTP/1.1 {status} Whatever", f"Content-Length: {len(content)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + content


def refusal(status: int, message: str = "no", reason: str = "", **headers: str) -> bytes:
    """A response with a Status object, as the API server sends it."""
    body = {"kind": "Status", "status": "Failure", "message": message, "reason": reason, "code": status}
    return reply(status, body, **headers)


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
LAST_CHUNK = b"0\r\n\r\n"


def chunk(content: bytes) -> bytes:
    """One chunk of a chunked body."""
    return b"%x\r\n%b\r\n" % (len(content), content)


class Server:
    """Use it in ``async with``. It keeps all `requests`, and the number of `connections` it accepted."""

    def __init__(self, answer: Answer, tls: ssl.SSLContext | None = None) -> None:
        self.requests: list[Request] = []
        self.connections = 0
        self.port = 0
        self._answer = answer
        self._tls = tls
        self._tasks: set[asyncio.Task[Any]] = set()
        self._writers: list[asyncio.StreamWriter] = []

    def config(self, tls: ssl.SSLContext | None = None, credentials: Credentials | None = None) -> ApiConfig:
        return ApiConfig("127.0.0.1", self.port, tls=tls, credentials=credentials or Credentials())

    async def __aenter__(self) -> Server:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._tls)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.disconnect()
        await self._server.wait_closed()

    async def disconnect(self) -> None:
        """Close all connections, as a server that restarts does."""
        for writer in self._writers:
            writer.close()
        for writer in self._writers:
            with suppress(OSError):
                await writer.wait_closed()
        self._writers.clear()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._writers.append(writer)
        self.connections += 1
        number = self.connections
        try:
            while (request := await _read(reader, number)) is not None:
                self.requests.append(request)
                answer = await self._answer(request, writer)
                if answer is None:
                    break
                writer.write(answer)
                await writer.drain()
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            writer.close()
            self._tasks.discard(task)


async def _read(reader: asyncio.StreamReader, connection: int) -> Request | None:
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    except asyncio.IncompleteReadError:
        return None
    first, *lines = head.strip().split("\r\n")
    method, target, _ = first.split(" ")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    url = urlsplit(target)
    return Request(method, url.path, dict(parse_qsl(url.query)), headers, body, connection)


def always(response: bytes) -> Answer:
    """The same answer to every request."""

    async def answer(_request: Request, _writer: asyncio.StreamWriter) -> bytes:
        return response

    return answer


def scripted(*responses: bytes | None) -> Answer:
    """One answer after the other; the last one again and again."""
    left = list(responses)

    async def answer(_request: Request, _writer: asyncio.StreamWriter) -> bytes | None:
        return left.pop(0) if len(left) > 1 else left[0]

    return answer


async def forever(_request: Request, _writer: asyncio.StreamWriter) -> bytes:
    """No answer."""
    await asyncio.Event().wait()
    return b""


async def turn() -> None:
    """Let the event loop work for a moment."""
    moment = asyncio.Event()
    asyncio.get_running_loop().call_later(0.001, moment.set)
    await moment.wait()


async def until(condition: Callable[[], object]) -> None:
    """Wait for a condition."""
    async with asyncio.timeout(20):
        while not condition():
            await turn()


async def ended(task: asyncio.Task[Any]) -> None:
    """Cancel a task and wait for its end."""
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


@dataclass
class SkippingClock:
    """Time passes only while something sleeps, and then at once. It keeps how long each sleep was."""

    now: float = 1_000.0
    slept: list[float] = field(default_factory=list)

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds
        await turn()


class ManualClock:
    """Time passes only when the test calls `advance`. `sleepers` counts who sleeps."""

    def __init__(self) -> None:
        self.now = 1_000.0
        self._sleeping: list[tuple[float, int, asyncio.Future[None]]] = []
        self._count = 0

    def __call__(self) -> float:
        return self.now

    @property
    def sleepers(self) -> int:
        return sum(1 for _, _, future in self._sleeping if not future.done())

    async def sleep(self, seconds: float) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._count += 1
        heapq.heappush(self._sleeping, (self.now + seconds, self._count, future))
        await future

    def advance(self, seconds: float) -> None:
        self.now += seconds
        while self._sleeping and self._sleeping[0][0] <= self.now:
            future = heapq.heappop(self._sleeping)[2]
            if not future.done():
                future.set_result(None)


def certificate(folder: Path) -> tuple[Path, Path]:
    """A self-signed certificate for 127.0.0.1 and its key."""
    if shutil.which("openssl") is None:
        pytest.skip("needs openssl to make a certificate")
    files = folder / "certificate.pem", folder / "key.pem"
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=test"
    names = ["-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run(
        [*command.split(), *names, "-out", str(files[0]), "-keyout", str(files[1])], check=True, capture_output=True
    )
    return files


def tls_server(public: Path, private: Path) -> ssl.SSLContext:
    """For a server with this certificate and key."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(public, private)
    return context
