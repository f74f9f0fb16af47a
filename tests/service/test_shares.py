"""Shares: requests without a token never use up the capacity of tokens, and no token that of another."""

from __future__ import annotations

import asyncio
import resource
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import pytest
from uvicorn.server import ServerState

from stead.errors import Invalid
from stead.service import listening, streams
from stead.service.guard import Limits
from tests.service.asking import Service
from tests.service.conftest import SCENARIO, Serve, Slow
from tests.service.raw import GET, Stream, answer, connected, is_open, status_of
from tests.serving import Served, serving, simulated

SPEC = {"work": [{"id": "x"}]}
LINT = ("POST", "/lint", SPEC)
STATUS = ("GET", "/status", None)
FORM = b"token="


Hanging = Callable[[str], AbstractContextManager[tuple[Served, ExitStack, threading.Semaphore]]]


@pytest.fixture
def hanging(monkeypatch: pytest.MonkeyPatch) -> Hanging:
    """A service whose desk blocks in one method until the block ends: the service, a stack for connections, and a
    semaphore that each call of the method releases."""

    @contextmanager
    def made(method: str) -> Iterator[tuple[Served, ExitStack, threading.Semaphore]]:
        going, asked = threading.Event(), threading.Semaphore(0)

        def wait(*_: Any) -> Any:
            asked.release()
            going.wait(60)
            raise Invalid("too late")

        monkeypatch.setattr(f"stead.operate.desk.LocalDesk.{method}", wait)
        with simulated(SCENARIO) as desk, serving(desk) as served, ExitStack() as stack:
            stack.callback(going.set)
            yield served, stack, asked

    return made


class TestRequestsAtOnce:
    def test_long_questions_of_visitors_do_not_limit_those_of_a_token(self, slow: Slow) -> None:
        service, going = slow
        asked = [(*LINT, "")] * 3 + [(*LINT, service.token)]
        found = [each.status for each in service.all_at_once(asked, going, refused=1)]
        assert (found[:3].count(429), found[3]) == (1, 400)

    @pytest.mark.parametrize("ask", [STATUS, LINT], ids=["requests", "long questions"])
    def test_of_one_token_do_not_limit_those_of_another(self, slow: Slow, ask: tuple[str, str, Any]) -> None:
        service, going = slow
        greedy = service.keys.give("viewer", "greedy")
        asked = [(*ask, greedy)] * 5 + [(*ask, service.token), (*ask, "")]
        refused = 1 if ask is STATUS else 3
        found = [each.status for each in service.all_at_once(asked, going, refused)]
        assert (found[:5].count(429), found[5:]) == (refused, [400, 400])

    def test_leave_threads_for_tokens(self, hanging: Hanging) -> None:
        """Visitors ask more slow questions than the service has threads."""
        with hanging("labels") as (served, stack, asked):
            for _ in range(20):
                stack.enter_context(connected(served)).sendall(GET % b"/labels")
            for _ in range(Limits().visitors_turns):
                assert asked.acquire(timeout=60)
            assert status_of(served, "/status", served.token) == 200
            assert status_of(served, "/healthz") == 200, "what needs no thread does not wait for one"

    def test_that_are_slow_do_not_block_others_of_the_same_token(self, hanging: Hanging) -> None:
        """An operator whose changes hang still gets pages."""
        head = b"POST /nodes/drain/cpu-1 HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer %s\r\n\r\n"
        with hanging("change") as (served, stack, asked):
            for _ in range(10):
                stack.enter_context(connected(served)).sendall(head % served.token.encode())
            for _ in range(Limits().slow_turns):
                assert asked.acquire(timeout=60)
            assert status_of(served, "/nodes", served.token) == 200

    def test_release_their_turn_when_the_answer_starts(self, serve: Serve) -> None:
        """A client that does not read its answer does not block others."""
        service = serve(limits=Limits(visitors_turns=1))

        async def both() -> list[int]:
            reading, begun = asyncio.Event(), asyncio.Event()
            statuses: list[int] = []
            scope = {
                "type": "http",
                "method": "GET",
                "path": "/nodes",
                "query_string": b"",
                "headers": [(b"host", b"127.0.0.1")],
            }

            async def receive() -> Any:
                await asyncio.Event().wait()

            async def unread(message: Any) -> None:
                begun.set()
                await reading.wait()

            async def read(message: Any) -> None:
                statuses.append(message.get("status", 0))

            first = asyncio.create_task(service.app({**scope}, receive, unread))
            async with asyncio.timeout(30):
                await begun.wait()
                await service.app({**scope}, receive, read)
                reading.set()
                await first
            return statuses

        assert service._runner.run(both())[0] == 200

    def test_never_block_the_health_check(self, slow: Slow) -> None:
        service, going = slow
        asked = [(*STATUS, "")] * 5 + [("GET", "/healthz", None, "")]
        assert [each.status for each in service.all_at_once(asked, going, refused=1)][-1] == 200


class TestVisitorsPause:
    """They are computed one at a time, with an endless pause."""

    @pytest.fixture
    def service(self, serve: Serve) -> Service:
        return serve(limits=Limits(visitors_turns=1, pause=1e9, pause_s=3600))

    @staticmethod
    async def visitor(service: Service) -> int:
        return (await service._ask("GET", "/nodes", None, [("host", "127.0.0.1")], "127.0.0.1")).status

    @staticmethod
    async def holder(service: Service) -> int:
        sent = [("host", "127.0.0.1"), ("authorization", f"Bearer {service.token}")]
        return (await service._ask("GET", "/nodes", None, sent, "127.0.0.1")).status

    def test_after_an_answer_while_requests_with_tokens_arrive(self, service: Service) -> None:
        async def asked() -> tuple[list[int], bool]:
            found = [await self.holder(service), await self.visitor(service)]
            pausing = asyncio.create_task(self.visitor(service))
            found += [await self.holder(service) for _ in range(5)]
            try:
                return found, pausing.done()
            finally:
                pausing.cancel()

        assert service._runner.run(asked()) == ([200] * 7, False)

    def test_not_without_requests_with_tokens(self, service: Service) -> None:
        async def asked() -> list[int]:
            async with asyncio.timeout(30):
                return [await self.visitor(service) for _ in range(3)]

        assert service._runner.run(asked()) == [200] * 3


class TestAValidToken:
    """Even if many wrong ones come from the same address."""

    def test_is_accepted_as_a_header(self, serve: Serve) -> None:
        service = serve(limits=Limits(wrong=1, burst=2))
        assert [service.ask("GET", "/nodes", token="wrong").status for _ in range(4)][-1] == 429
        assert service.do("GET", "/nodes").status == 200

    def test_signs_in(self, serve: Serve) -> None:
        service = serve(limits=Limits(wrong=1, burst=2))
        assert [service.ask("POST", "/login", FORM + b"x").status for _ in range(4)] == [401, 401, 429, 429]
        assert service.ask("GET", "/nodes", token="wrong").status == 429
        for _ in range(2):
            assert service.ask("POST", "/login", FORM + service.token.encode()).status == 303

    def test_signs_in_when_visitors_have_used_up_their_changes(self, serve: Serve) -> None:
        service = serve(limits=Limits(writes=1, burst=1))
        assert [service.ask("POST", "/nodes/drain/cpu-1").status for _ in range(2)] == [401, 429]
        assert service.ask("POST", "/login", FORM + service.token.encode()).status == 303

    def test_signs_in_while_the_share_of_visitors_is_used_up(self, slow: Slow) -> None:
        service, going = slow
        signing_in = ("POST", "/login", FORM + service.token.encode(), "")
        found = [each.status for each in service.all_at_once([(*STATUS, "")] * 5 + [signing_in], going, refused=1)]
        assert (found[:5].count(429), found[5]) == (1, 303)

    def test_counts_for_its_owner(self, serve: Serve) -> None:
        service = serve(limits=Limits(writes=1, burst=1))
        right = FORM + service.token.encode()
        assert [service.ask("POST", "/login", right).status for _ in range(2)] == [303, 429]
        other = service.keys.give("viewer", "eve")
        assert service.ask("POST", "/login", FORM + other.encode()).status == 303

    @pytest.mark.parametrize("form", [b"", b"token", b"a=b&" * 30 + b"token=x", b"\xff\x00", b"token=&token=x"])
    def test_must_be_in_a_valid_form(self, serve: Serve, form: bytes) -> None:
        service = serve(limits=Limits(wrong=1, burst=1))
        assert [service.ask("POST", "/login", form).status for _ in range(2)] == [401, 429]

    def test_is_not_read_from_a_long_form(self, service: Service) -> None:
        assert service.ask("POST", "/login", FORM + b"x" * 20_000).status == 413


class TestStreams:
    @pytest.fixture
    def served(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
        monkeypatch.setattr(streams, "STREAMS_MAX", 2)
        with simulated(SCENARIO) as desk, serving(desk) as served:
            yield served

    def test_of_visitors_and_of_each_token_are_counted_separately(self, served: Served) -> None:
        bearers = [f"Bearer {token}" for token in (served.token, served.keys.give("viewer", "eve"))]
        with ExitStack() as stack:

            def status(**headers: str) -> int:
                stream = Stream(served, **headers)
                stack.callback(stream.close)
                return stream.answer.status

            assert [status() for _ in range(3)] == [200, 200, 429]
            for bearer in bearers:
                assert [status(authorization=bearer) for _ in range(3)] == [200, 200, 429]

    def test_end_with_the_token_that_opened_them(self, served: Served) -> None:
        stream = Stream(served, authorization=f"Bearer {served.keys.give('viewer', 'eve')}")
        assert stream.greeting == b": events\n"
        served.keys.take_back("eve")
        stream.rest()
        stream.close()

    def test_end_with_the_session_that_opened_them(self, served: Served) -> None:
        cookie = (served.keys.cookie(served.token) or "").partition(";")[0]
        stream = Stream(served, cookie=cookie)
        assert stream.greeting == b": events\n"
        served.keys.sign_out(cookie.partition("=")[2])
        stream.rest()
        stream.close()


class TestConnections:
    """A service that allows 20 at once."""

    @pytest.fixture
    def served(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
        monkeypatch.setattr(listening, "CONNECTIONS_MAX", 20)
        with simulated(SCENARIO) as desk, serving(desk, limits=Limits(body_s=30)) as served:
            yield served

    @pytest.fixture
    def stack(self) -> Iterator[ExitStack]:
        with ExitStack() as stack:
            yield stack

    def idle(self, served: Served, stack: ExitStack, sent: bytes = b"") -> list[socket.socket]:
        """Twice as many connections as allowed."""
        found = [stack.enter_context(connected(served)) for _ in range(40)]
        for connection in found:
            try:
                connection.sendall(sent)
            except ConnectionError:  # it was closed already
                assert sent
        return found

    @pytest.mark.parametrize("sent", [b"", b"GET /nodes HTTP/1.1\r\nHost: 127.0.0.1\r\n"], ids=["idle", "half a head"])
    def test_that_are_idle_do_not_block_new_ones(self, served: Served, stack: ExitStack, sent: bytes) -> None:
        opened = self.idle(served, stack, sent)
        assert status_of(served, "/status", served.token) == 200
        assert status_of(served, "/status") == 200
        assert not any(is_open(connection) for connection in opened[:20]), "the oldest go first"
        assert any(is_open(connection) for connection in opened[20:])

    def test_with_missing_bodies_do_not_block_new_ones(self, served: Served, stack: ExitStack) -> None:
        self.idle(served, stack, b"POST /why HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 9\r\n\r\n")
        assert status_of(served, "/status", served.token) == 200

    def test_of_visitors_with_streams_do_not_block_new_ones(self, served: Served, stack: ExitStack) -> None:
        self.idle(served, stack, b"GET /events HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: text/event-stream\r\n\r\n")
        assert status_of(served, "/status", served.token) == 200

    def test_of_a_token_with_a_stream_stay_open(self, served: Served, stack: ExitStack) -> None:
        stream = Stream(served, authorization=f"Bearer {served.token}")
        stack.callback(stream.close)
        self.idle(served, stack, b"POST /why HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 9\r\n\r\n")
        self.idle(served, stack)
        assert status_of(served, "/status", served.token) == 200
        assert is_open(stream.connection.sock)

    def test_of_a_token_that_waits_for_its_answer_stay_open(self, served: Served, stack: ExitStack) -> None:
        body = b'{"work": [{"id": "x"}]}'
        asking = stack.enter_context(connected(served))
        head = f"POST /why HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {served.token}\r\n"
        asking.sendall(head.encode() + b"Content-Length: %d\r\nConnection: close\r\n" % len(body))
        asking.sendall(b"Content-Type: application/json\r\n\r\n" + body[:5])
        assert status_of(served, "/status", served.token) == 200  # so the request above was read
        self.idle(served, stack)
        asking.sendall(body[5:])
        assert answer(asking).startswith(b"HTTP/1.1 200")

    def test_of_a_token_between_two_requests_are_closed_last(self, served: Served, stack: ExitStack) -> None:
        between = stack.enter_context(connected(served))
        head = f"GET /status HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {served.token}\r\n\r\n".encode()
        between.sendall(head)
        assert between.recv(65536).startswith(b"HTTP/1.1 200")
        self.idle(served, stack)
        assert status_of(served, "/status") == 200
        is_open(between)  # read what is left
        between.sendall(head)
        assert between.recv(65536).startswith(b"HTTP/1.1 200")

    def test_that_are_all_needed_stay_open_and_a_new_one_gets_503(
        self, monkeypatch: pytest.MonkeyPatch, stack: ExitStack
    ) -> None:
        monkeypatch.setattr(listening, "CONNECTIONS_MAX", 2)
        with simulated(SCENARIO) as desk, serving(desk) as served:
            for _ in range(2):
                stream = Stream(served, authorization=f"Bearer {served.token}")
                stack.callback(stream.close)
                assert stream.greeting
            with connected(served) as one_more:
                told = answer(one_more)
            assert told.startswith(b"HTTP/1.1 503 ")
            assert told.endswith(b'{"error": "too many connections are open; retry in a few seconds"}')

    def test_use_half_of_the_files_that_a_process_may_open(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for soft, most in ((1024, 512), (4096, 1000), (resource.RLIM_INFINITY, 1000)):
            monkeypatch.setattr(listening, "CONNECTIONS_MAX", 1000)
            monkeypatch.setattr("stead.service.listening.resource.getrlimit", lambda _, soft=soft: (soft, soft))
            assert listening.places_of(ServerState())._most == most
