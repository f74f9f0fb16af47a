"""Streams of lines: however the bytes arrive, the lines are the same, and a slow reader slows the server down."""

from __future__ import annotations

import asyncio
import ssl
from asyncio.sslproto import SSLProtocol
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stead.kubernetes.api.config import Credentials
from stead.kubernetes.api.connection import QUEUED_BYTES_MAX, Connection, Stream
from stead.kubernetes.api.http import ApiClient, ApiError, Unreachable
from tests.kubernetes.api.servers import (
    CHUNKED,
    LAST_CHUNK,
    Request,
    Server,
    always,
    certificate,
    chunk,
    ended,
    refusal,
    scripted,
    tls_server,
    turn,
    until,
)

LINES = st.lists(st.binary(min_size=1, max_size=40).map(lambda line: line.replace(b"\n", b"/")), max_size=12)


def pieces(content: bytes, cuts: Sequence[int]) -> list[bytes]:
    """The content, cut at these places."""
    places = sorted({min(cut, len(content)) for cut in cuts} | {0, len(content)})
    return [content[start:end] for start, end in pairwise(places)]


class FakeTransport(asyncio.Transport):
    """A transport without a socket."""

    def get_extra_info(self, _name: str, default: object = None) -> object:
        return default

    def is_closing(self) -> bool:
        return False

    def write(self, _request: object) -> None:
        pass

    def abort(self) -> None:
        pass


@settings(max_examples=150)
@given(lines=LINES, ends_with_newline=st.booleans(), chunk_cuts=st.lists(st.integers(0, 400)), data=st.data())
def test_lines_are_the_same_however_their_bytes_are_split(
    lines: list[bytes], ends_with_newline: bool, chunk_cuts: list[int], data: st.DataObject
) -> None:
    body = b"\n".join(lines) + (b"\n" if ends_with_newline else b"")
    sent = CHUNKED + b"".join(chunk(piece) for piece in pieces(body, chunk_cuts)) + LAST_CHUNK
    packets = pieces(sent, data.draw(st.lists(st.integers(0, len(sent)), max_size=30)))

    async def main() -> list[bytes]:
        connection = Connection(asyncio.get_running_loop(), "test", lambda _: None)
        connection.connection_made(FakeTransport())
        stream = Stream(connection)
        opened = connection.send(b"", 100, None, stream)
        for packet in packets:
            connection.data_received(packet)
        assert await opened is None
        received = [line async for line in stream]
        connection.connection_lost(None)
        return received

    assert asyncio.run(main()) == lines


@settings(max_examples=100)
@given(body=st.binary(max_size=300), chunk_cuts=st.lists(st.integers(0, 300)), data=st.data())
def test_a_chunked_body_is_the_same_however_its_bytes_are_split(
    body: bytes, chunk_cuts: list[int], data: st.DataObject
) -> None:
    sent = CHUNKED + b"".join(chunk(piece) for piece in pieces(body, chunk_cuts)) + LAST_CHUNK
    packets = pieces(sent, data.draw(st.lists(st.integers(0, len(sent)), max_size=30)))

    async def main() -> bytes:
        connection = Connection(asyncio.get_running_loop(), "test", lambda _: None)
        connection.connection_made(FakeTransport())
        waiter = connection.send(b"", 100, None)
        for packet in packets:
            connection.data_received(packet)
        response = await waiter
        assert response is not None
        assert connection.is_idle
        connection.connection_lost(None)
        return response.body

    assert asyncio.run(main()) == body


def test_a_stream_gives_lines_as_they_arrive_and_ends_with_the_response() -> None:
    steps: asyncio.Queue[bytes] = asyncio.Queue()

    async def answer(_request: Request, writer: asyncio.StreamWriter) -> bytes:
        writer.write(CHUNKED)
        while (step := await steps.get()) != LAST_CHUNK:
            writer.write(chunk(step))
            await writer.drain()
        return LAST_CHUNK

    async def main() -> None:
        async with Server(answer) as server:
            client = ApiClient(server.config())
            async with await client.stream("/watch", {"watch": "true"}) as stream:
                steps.put_nowait(b"one\ntw")
                assert await anext(stream) == b"one"
                steps.put_nowait(b"o\nthree\n")
                assert await anext(stream) == b"two"
                assert await stream.batch() == [b"three"]
                steps.put_nowait(LAST_CHUNK)
                assert await stream.batch() == []
            assert server.requests[0].query == {"watch": "true"}
            await client.close()

    asyncio.run(main())


def test_a_refused_stream_raises_what_the_server_said() -> None:
    async def main() -> None:
        async with Server(always(refusal(410, "too old resource version", "Expired"))) as server:
            client = ApiClient(server.config())
            with pytest.raises(ApiError, match="410 Expired: too old resource version"):
                await client.stream("/watch")
            await client.close()

    asyncio.run(main())


def test_a_stream_reads_the_token_again_when_it_is_refused() -> None:
    tokens = iter(["Bearer old", "Bearer new"])

    async def main() -> None:
        async with Server(scripted(refusal(401), CHUNKED + chunk(b"hello\n") + LAST_CHUNK)) as server:
            client = ApiClient(server.config(credentials=Credentials(lambda _: next(tokens))))
            async with await client.stream("/watch") as stream:
                assert [line async for line in stream] == [b"hello"]
            assert server.requests[1].headers["authorization"] == "Bearer new"
            await client.close()

    asyncio.run(main())


def test_a_broken_stream_gives_its_complete_lines_and_then_the_failure() -> None:
    async def answer(_request: Request, writer: asyncio.StreamWriter) -> None:
        writer.write(CHUNKED + chunk(b"one\ntwo\nhal"))

    async def main() -> None:
        async with Server(answer) as server:
            client = ApiClient(server.config())
            async with await client.stream("/watch") as stream:
                assert [await anext(stream), await anext(stream)] == [b"one", b"two"]
                with pytest.raises(Unreachable, match="closed the connection while it responded"):
                    await anext(stream)
            await client.close()

    asyncio.run(main())


def test_a_silent_stream_breaks_after_the_time_limit() -> None:
    async def answer(_request: Request, writer: asyncio.StreamWriter) -> None:
        writer.write(CHUNKED + chunk(b"one\n"))
        await asyncio.Event().wait()

    async def main() -> None:
        async with Server(answer) as server:
            client = ApiClient(server.config())
            async with await client.stream("/watch", idle_timeout_s=0.03) as stream:
                assert await anext(stream) == b"one"
                with pytest.raises(Unreachable, match=r"sent nothing for 0\.03 s"):
                    await anext(stream)
            await client.close()

    asyncio.run(main())


def test_a_slow_reader_stops_the_server_and_loses_nothing() -> None:
    """The server sends 64 MB in lines of 64 kB. It gets stuck when the buffers of both sides are full."""
    line, count = b"x" * 65_535, 1_000
    sent = 0

    async def answer(_request: Request, writer: asyncio.StreamWriter) -> bytes:
        nonlocal sent
        writer.write(CHUNKED)
        for _ in range(count):
            writer.write(chunk(line + b"\n"))
            await writer.drain()
            sent += 1
        return LAST_CHUNK

    async def main() -> None:
        async with Server(answer) as server:
            client = ApiClient(server.config())
            async with await client.stream("/watch") as stream:
                assert await anext(stream) == line
                await until(lambda: stream._connection._is_paused)
                assert stream._size <= QUEUED_BYTES_MAX + (1 << 19), "the reader's queue is bounded"
                assert sent < count
                lines = [each async for each in stream]
            assert len(lines) == count - 1
            assert all(each == line for each in lines)
            await client.close()

    asyncio.run(main())


@pytest.mark.parametrize("has_tls", [False, True], ids=["plain", "TLS"])
def test_what_arrives_while_a_reader_rests_is_read_at_once(
    has_tls: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server_side = client_side = None
    if has_tls:
        public, private = certificate(tmp_path)
        server_side = tls_server(public, private)
        client_side = ssl.create_default_context(cafile=str(public))
    reads: Counter[object] = Counter()
    protocol = SSLProtocol if has_tls else Connection
    received = "buffer_updated" if has_tls else "data_received"  # called once for each read of the socket
    read = getattr(protocol, received)

    def counted(self: object, given: object) -> None:
        reads[self] += 1
        read(self, given)

    is_resting, has_sent = asyncio.Event(), asyncio.Event()
    lines = [b"%d" % number for number in range(100)]

    async def answer(_request: Request, writer: asyncio.StreamWriter) -> bytes:
        writer.write(CHUNKED + chunk(b"first\n"))
        await is_resting.wait()
        for line in lines:
            writer.write(chunk(line + b"\n"))
            await writer.drain()
            await turn()  # so that each line is a packet, and would be a read
        has_sent.set()
        return LAST_CHUNK

    async def main() -> None:
        async with Server(answer, tls=server_side) as server:
            client = ApiClient(server.config(tls=client_side))
            async with await client.stream("/watch") as stream:
                assert await stream.batch() == [b"first"]
                monkeypatch.setattr(protocol, received, counted)
                with stream.resting():
                    is_resting.set()
                    await has_sent.wait()
                    most = max(reads.values(), default=0)
                assert [line async for line in stream] == lines
            assert most <= 1, "only the first read is done; the rest stays in the kernel"
            await client.close()

    asyncio.run(main())


def test_a_line_much_longer_than_the_queue_arrives_in_one_piece() -> None:
    line = b"y" * (3 * QUEUED_BYTES_MAX)

    async def main() -> None:
        async with Server(always(CHUNKED + chunk(line + b"\n") + chunk(b"z\n") + LAST_CHUNK)) as server:
            client = ApiClient(server.config())
            async with await client.stream("/watch") as stream:
                assert [each async for each in stream] == [line, b"z"]
            await client.close()

    asyncio.run(main())


def test_a_cancelled_reader_closes_its_connection() -> None:
    is_gone = asyncio.Event()

    async def answer(_request: Request, writer: asyncio.StreamWriter) -> None:
        writer.write(CHUNKED + chunk(b"one\n"))
        await writer.drain()
        while not writer.is_closing():
            writer.write(chunk(b"more\n"))
            try:
                await writer.drain()
                await asyncio.wait_for(asyncio.Event().wait(), 0.002)
            except TimeoutError:
                continue
            except OSError:
                break
        is_gone.set()

    async def main() -> None:
        async with Server(answer) as server:
            client = ApiClient(server.config())

            async def read() -> None:
                async with await client.stream("/watch") as stream:
                    async for _ in stream:
                        pass

            reader = asyncio.create_task(read())
            await until(lambda: server.requests)
            await ended(reader)
            async with asyncio.timeout(20):
                await is_gone.wait()
            assert not client._all
            await client.close()

    asyncio.run(main())
