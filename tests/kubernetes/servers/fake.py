"""A small API server in a thread of the test process, with faults on request.

    with FakeServer() as server:
        server.fail_next("POST", "/binding$", 503, times=2, retry_after=1)
        ... server.url, server.token, server.kubeconfig_path, server.requests ...

It understands what a scheduler uses: see fake_resources.py for the kinds and fake_api.py for the requests. It checks
tokens but not roles. Where it differs from kube-apiserver is listed in test_fake_equals_real.py.

Rule: only the thread of the server touches its objects; methods that a test calls hand their work to that thread.
"""

from __future__ import annotations

import asyncio
import re
import shutil
import ssl
import subprocess
import tempfile
import threading
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from tests.kubernetes.servers.credentials import ADMIN, Credentials
from tests.kubernetes.servers.fake_api import Answer, Api, Request
from tests.kubernetes.servers.fake_http import Connection
from tests.kubernetes.servers.fake_resources import RESOURCES
from tests.kubernetes.servers.fake_status import Failure
from tests.kubernetes.servers.fake_store import Store, encoded

ANONYMOUS = "system:anonymous"
HISTORY = 100_000
BOOKMARK_SECONDS = 60.0
CALL_SECONDS_MAX = 30.0
READS = frozenset({"GET", "HEAD"})
T = TypeVar("T")


@dataclass(frozen=True)
class Seen:
    """A request that arrived, whatever became of it."""

    method: str
    path: str
    user: str
    query: Mapping[str, str]


@dataclass
class Fault:
    """What happens to the next requests that match: an error, no answer, or the loss of the answer."""

    method: str
    pattern: re.Pattern[str]
    left: int
    kind: str
    failure: Failure | None = None

    def takes(self, request: Request) -> bool:
        wanted = self.left > 0 and self.method in {"*", request.method} and self.pattern.search(request.path)
        self.left -= bool(wanted)
        return bool(wanted)


class FakeServer:
    """An API server with a few namespaces and nothing else, from `with` to the end of the block.

    `users` maps names of more users to their groups. Without a token a request comes from `system:anonymous`; with
    `require_token` it is refused. `history` is how many events of each resource a watch can go back.
    """

    def __init__(
        self,
        users: Mapping[str, Sequence[str]] | None = None,
        require_token: bool = False,
        tls: bool = False,
        history: int = HISTORY,
        bookmark_seconds: float = BOOKMARK_SECONDS,
    ) -> None:
        self.credentials = Credentials(users)
        self._users = {token: user for user, token in self.credentials.tokens.items()}
        self._require_token = require_token
        self._tls = tls
        self.store = Store(history)
        self._api = Api(self.store)
        self.bookmark_seconds = bookmark_seconds
        self._requests: list[Seen] = []
        self._faults: list[Fault] = []
        self._hanging: list[Callable[[], None]] = []
        self._delay = 0.0
        self.connections: set[Connection] = set()
        self._server: asyncio.Server | None = None
        self.port = 0

    def __enter__(self) -> Self:
        self.folder = Path(tempfile.mkdtemp(prefix="stead-fake-kube-"))
        self._trust = _certificate(self.folder) if self._tls else None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fake-server", daemon=True)
        self._thread.start()
        try:
            self.start_apiserver()
            self.credentials.write_kubeconfig(self.kubeconfig_path, self.url, self.ca_file)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        self.stop_apiserver()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    # What a client needs

    @property
    def url(self) -> str:
        return f"{'https' if self._tls else 'http'}://127.0.0.1:{self.port}"

    @property
    def token(self) -> str:
        """The admin's."""
        return self.credentials.tokens[ADMIN]

    @property
    def tokens(self) -> Mapping[str, str]:
        """Each user's."""
        return self.credentials.tokens

    @property
    def ca_file(self) -> Path | None:
        return self.folder / "apiserver.crt" if self._tls else None

    @property
    def kubeconfig_path(self) -> Path:
        return self.folder / "kubeconfig"

    # What a test does to it

    def stop_apiserver(self) -> None:
        """Close the port and every connection; the objects stay."""
        self._run(self._stop())

    kill_apiserver = stop_apiserver

    def start_apiserver(self) -> None:
        """Listen again, on the same port."""
        self._run(self._start())

    def compact(self) -> None:
        """Watches from before now, and the later pages of lists, answer 410. Open watches go on."""
        self._call(self.store.compact)

    def load(self, objects: Iterable[Mapping[str, Any]]) -> None:
        """Create many objects at once, without HTTP and without a trace in `requests`."""
        copies = [deepcopy(dict(obj)) for obj in objects]
        kinds = {resource.kind: resource for resource in RESOURCES}

        def create() -> None:
            for obj in copies:
                resource = kinds[obj["kind"]]
                namespace = obj["metadata"].get("namespace", "default") if resource.namespaced else None
                self._api.create(resource, namespace, obj)

        self._call(create)

    def fail_next(
        self, method: str, path_pattern: str, status: int, times: int = 1, retry_after: int | None = None
    ) -> None:
        """Answer the next matching requests with an error; they change nothing. The method `*` is any."""
        failure = Failure(status, f"injected by a test: {status}", retry_after=retry_after)
        self._add_fault(method, path_pattern, times, "fail", failure)

    def hang_next(self, method: str, path_pattern: str, times: int = 1) -> None:
        """Do not answer the next matching requests until `release`, nor act on them."""
        self._add_fault(method, path_pattern, times, "hang")

    def lose_next(self, method: str, path_pattern: str, times: int = 1) -> None:
        """Act on the next matching requests, then close the connection instead of answering."""
        self._add_fault(method, path_pattern, times, "lose")

    def release(self) -> None:
        """Answer the requests that hang."""

        def answer() -> None:
            hanging, self._hanging = self._hanging, []
            for go_on in hanging:
                go_on()

        self._call(answer)

    @property
    def hanging(self) -> int:
        """How many requests hang now."""
        return len(self._hanging)

    def cut_watches(self) -> int:
        """Close the connection of every watch, as a network failure does, and return their number."""

        def cut() -> int:
            watching = [one for one in self.connections if one.watch]
            for one in watching:
                one.abort()
            return len(watching)

        return self._call(cut)

    @property
    def watches(self) -> int:
        """How many watches are open."""
        return self._call(lambda: sum(1 for one in self.connections if one.watch))

    def send_bookmarks(self) -> None:
        """Send a bookmark to every watch that wants them."""

        def send() -> None:
            for one in self.connections:
                one.send_bookmark()

        self._call(send)

    def slow(self, seconds: float) -> None:
        """Answer every request this much later; 0 ends it."""
        self._delay = seconds

    @property
    def requests(self) -> list[Seen]:
        """Every request so far, in the order of arrival."""
        return list(self._requests)

    def count(self, method: str, path_pattern: str = "") -> int:
        """How many requests with this method (or `*`) have a path in which the pattern is found."""
        found = re.compile(path_pattern)
        return sum(1 for one in self.requests if method in {"*", one.method} and found.search(one.path))

    @property
    def writes(self) -> list[Seen]:
        """The requests that are not reads."""
        return [one for one in self.requests if one.method not in READS]

    # How it runs

    def _call(self, function: Callable[[], T]) -> T:
        async def run() -> T:
            return function()

        return self._run(run())

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(CALL_SECONDS_MAX)

    async def _start(self) -> None:
        self._server = await self._loop.create_server(
            lambda: Connection(self), "127.0.0.1", self.port, ssl=self._trust, backlog=1024
        )
        self.port = self._server.sockets[0].getsockname()[1]

    async def _stop(self) -> None:
        if self._server is None:
            return
        # A connection that asyncio is still setting up when the server is closed would never be closed itself.
        for listening in self._server.sockets:
            self._loop.remove_reader(listening)
        accepting = asyncio.all_tasks() - {asyncio.current_task()}
        if accepting:
            await asyncio.wait(accepting, timeout=CALL_SECONDS_MAX / 2)
        self._server.close()
        self._hanging.clear()
        connections = list(self.connections)
        for one in connections:
            one.abort()
        await asyncio.gather(*(one.closed for one in connections))
        await self._server.wait_closed()
        self._server = None

    def _add_fault(self, method: str, pattern: str, times: int, kind: str, failure: Failure | None = None) -> None:
        fault = Fault(method, re.compile(pattern), times, kind, failure)
        self._call(lambda: self._faults.append(fault))

    def serve(self, connection: Connection, request: Request, authorization: str | None) -> None:
        """Called by a connection for each request: decide about faults, then answer now or later."""
        user = ANONYMOUS
        if authorization is not None:
            user = self._users.get(authorization.removeprefix("Bearer ").strip(), "")
        self._requests.append(Seen(request.method, request.path, user, request.query))
        if not user or (user == ANONYMOUS and self._require_token):
            connection.respond(Answer(401, encoded(Failure(401, "Unauthorized").body)))
            return
        fault = next((fault for fault in self._faults if fault.takes(request)), None)
        if fault and fault.kind == "hang":
            self._hanging.append(lambda: self._answer(connection, request, None))
        elif self._delay:
            self._loop.call_later(self._delay, self._answer, connection, request, fault)
        else:
            self._answer(connection, request, fault)

    def _answer(self, connection: Connection, request: Request, fault: Fault | None) -> None:
        if connection.closed.done():
            return
        try:
            if fault and fault.failure:
                raise fault.failure
            result = self._api.handle(request)
        except Failure as failure:
            connection.respond(Answer(failure.code, encoded(failure.body)), failure.retry_after)
            return
        except Exception as error:
            connection.respond(Answer(500, encoded(Failure(500, f"the fake server failed: {error!r}").body)))
            raise
        if fault and fault.kind == "lose":
            connection.abort()
        elif isinstance(result, Answer):
            connection.respond(result)
        else:
            connection.begin_watch(result)


def _certificate(folder: Path) -> ssl.SSLContext:
    """A self-signed certificate for the loopback address."""
    key, certificate = folder / "apiserver.key", folder / "apiserver.crt"
    words = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 30".split()
    words += ["-subj", "/CN=fake-apiserver", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run([*words, "-keyout", str(key), "-out", str(certificate)], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    return context
