"""A service without a network: raw requests, even with headers that no client library would send."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from stead.operate.desk import Desk
from stead.service.guard import App, Guard
from stead.service.keys import Keys

HERE = "127.0.0.1:8625"
ORIGIN = f"http://{HERE}"


@dataclass(frozen=True)
class Answered:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> str:
        return str(self.json["error"])


class Changing:
    """A replaceable desk: all tests share the application, and each test has its own cluster, created when needed."""

    def __init__(self) -> None:
        self.make: Callable[[], Desk] | None = None
        self._made: Desk | None = None

    def instead(self, make: Callable[[], Desk]) -> None:
        self.make, self._made = make, None

    def __getattr__(self, name: str) -> Any:
        if self._made is None:
            assert self.make is not None
            self._made = self.make()
        return getattr(self._made, name)


class Service:
    """The whole application behind its own guard; `given` is for the guard."""

    def __init__(self, app: App, desk: Changing, keys: Keys, runner: asyncio.Runner, **given: Any) -> None:
        self.desk, self.keys, self._runner = desk, keys, runner
        self.app = Guard(app, keys, **given)
        self.token = keys.operator_token()

    def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        token: str = "",
        headers: Iterable[tuple[str, str]] = (),
        host: str | None = HERE,
        client: str = "127.0.0.1",
    ) -> Answered:
        sent = [*headers]
        if host is not None:
            sent.append(("host", host))
        if token:
            sent.append(("authorization", f"Bearer {token}"))
        return self._runner.run(self._ask(method, path, body, sent, client))

    def all_at_once(
        self, asked: list[tuple[str, str, Any, str]], going: threading.Event, refused: int
    ) -> list[Answered]:
        """Requests (method, path, body, token) sent together; waiting ones continue after this many were refused."""

        async def send() -> list[Answered]:
            tasks = []
            for method, path, body, token in asked:
                sent = [("host", HERE), *([("authorization", f"Bearer {token}")] if token else [])]
                tasks.append(asyncio.create_task(self._ask(method, path, body, sent, "127.0.0.1")))
            async with asyncio.timeout(30):
                waiting = set(tasks)
                while sum(task.done() and task.result().status == 429 for task in tasks) < refused:
                    _, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                going.set()
                return list(await asyncio.gather(*tasks))

        return self._runner.run(send())

    def do(self, method: str, path: str, body: Any = None) -> Answered:
        """The same, with the operator's token."""
        return self.ask(method, path, body, self.token)

    async def _ask(self, method: str, path: str, body: Any, headers: list[tuple[str, str]], client: str) -> Answered:
        raw = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        if body is not None:
            headers += [("content-type", "application/json"), ("content-length", str(len(raw)))]
        path, _, query = path.partition("?")
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "root_path": "",
            "headers": [(name.lower().encode(), value.encode("latin-1")) for name, value in headers],
            "client": (client, 50000),
            "server": ("127.0.0.1", 8625),
        }
        messages = [{"type": "http.request", "body": raw, "more_body": False}]
        told: list[Any] = []

        async def receive() -> Any:
            if not messages:
                await asyncio.Event().wait()
            return messages.pop()

        async def send(message: Any) -> None:
            told.append(message)

        await self.app(scope, receive, send)
        found = {name.decode(): value.decode("latin-1") for name, value in told[0]["headers"]}
        return Answered(told[0]["status"], found, b"".join(each.get("body", b"") for each in told[1:]))
