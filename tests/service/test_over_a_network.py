"""A real server on a real port: the desk over HTTP equals the local desk, and slow clients are disconnected."""

from __future__ import annotations

import http.client
import re
from collections.abc import Iterator
from typing import Any

import pytest

from stead.errors import Invalid
from stead.language.labels import Labels
from stead.language.selectors import parse_selector
from stead.language.taints import Effect, Taint
from stead.operate.audit import Author
from stead.operate.changes import NodeChange, Removal
from stead.operate.http_client import HttpDesk
from stead.operate.snapshot import Query
from stead.operate.views import explanation_json
from stead.service import listening
from stead.service.guard import Limits
from stead.sim.desk import SimDesk
from tests.service.conftest import SCENARIO
from tests.service.raw import answer, connected
from tests.serving import Served, serving, simulated

ANN = Author("ann")
SPEC = {"work": [{"id": "new", "resources": {"GPU": 1}, "selector": "gpu_type = A100"}]}


@pytest.fixture
def both() -> Iterator[tuple[SimDesk, HttpDesk]]:
    with simulated(SCENARIO) as desk, serving(desk) as served:
        yield desk, HttpDesk(served.url, served.token)


class TestTheDeskOverHttp:
    def test_answers_every_question_like_the_local_desk(self, both: tuple[SimDesk, HttpDesk]) -> None:
        near, far = both
        assert far.summary() == near.summary()
        for query in (Query(), Query(("labels.zone=a",), parse_selector("zone"), 1, 1)):
            assert far.nodes(query) == near.nodes(query)
            assert far.work(Query(query.filters, None, 0, 2)) == near.work(Query(query.filters, None, 0, 2))
        assert far.groups(Query()) == near.groups(Query())
        assert far.node("cpu-one") == near.node("cpu-one")
        assert far.labels() == near.labels()
        assert far.one("web-1") == near.one("web-1")
        assert [*far.events(0, 1000)] == [*near.events(0, 1000)]
        assert [*far.lint(None)] == [*near.lint(None)]
        assert [*far.lint(SPEC)] == [*near.lint(SPEC)]
        assert far.what_if(SPEC) == near.what_if(SPEC)
        assert far.replay("web-1").decisions == near.replay("web-1").decisions
        for id in ("render", "web-1", "ring"):
            assert explanation_json(far.why(id)) == explanation_json(near.why(id))
            assert str(far.why(id)) == str(near.why(id))
        assert [str(each) for each in far.why_spec(SPEC)] == [str(each) for each in near.why_spec(SPEC)]

    @pytest.mark.parametrize(
        "change",
        [
            NodeChange("cpu-1", (Taint("k", "v"), Taint("k", "w", Effect.NO_EXECUTE)), for_s=60.0, owner="ann"),
            NodeChange(
                "012345", untaints=(Removal("gpu_node", "true", Effect.NO_SCHEDULE),), labels=Labels({"a": "b"})
            ),
            NodeChange("cpu-1", draining=True, evict=True),
            NodeChange("spot-1", draining=False, unlabels=("zone",), unlabel_values=Labels({"zone": "b"})),
            NodeChange("cpu-1", untaints=(Removal("nothing"),), draining=True, missing_ok=True),
        ],
        ids=str,
    )
    def test_makes_changes_atomically(self, both: tuple[SimDesk, HttpDesk], change: NodeChange) -> None:
        near, far = both
        assert far.blast(change) == near.blast(change)
        carried = far.change(change, ANN)
        assert carried.node == near.node(change.node)
        assert [carried.entry] == [*near.audit()] == [*far.audit(0, 10)]
        assert far.undo(1, ANN).entry.action == "undo 1"
        assert far.verify() == near.verify() == 2

    @pytest.mark.parametrize(
        ("change", "words"),
        [
            (NodeChange("nowhere", draining=True), "there is no node 'nowhere'"),
            (NodeChange("cpu-1"), "the change is empty"),
            (NodeChange("cpu-1", untaints=(Removal("k", "v"),)), "has no taint k=v"),
            (NodeChange("cpu-1", labels=Labels({"zone": "b"}), overwrite=False), "is labelled zone=a"),
            (NodeChange("cpu-1", (Taint("k"),), for_s=0.0), "not 0 seconds"),
        ],
    )
    def test_refuses_with_the_same_sentence(
        self, both: tuple[SimDesk, HttpDesk], change: NodeChange, words: str
    ) -> None:
        said = []
        for desk in both:
            with pytest.raises(Invalid, match=re.escape(words)) as refused:
                desk.change(change, ANN)
            said.append(str(refused.value))
        assert said[0] == said[1]

    def test_reports_a_service_that_does_not_answer(self) -> None:
        with pytest.raises(Invalid, match="does not answer"):
            HttpDesk("http://127.0.0.1:9", "t").summary()

    @pytest.mark.parametrize("address", ["", "127.0.0.1:1", "ftp://x", "http://", "http://[", "http://x:99999"])
    def test_needs_a_valid_address(self, address: str) -> None:
        with pytest.raises(Invalid, match="must look like http"):
            HttpDesk(address)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    monkeypatch.setattr(listening, "HEADERS_S", 0.3)
    monkeypatch.setitem(listening.SETTINGS, "timeout_keep_alive", 1)
    limits = Limits(body_s=0.3, body=10_000)
    with simulated(SCENARIO) as desk, serving(desk, limits=limits) as served:
        yield served


class TestASlowClient:
    @pytest.mark.parametrize("begun", [b"", b"G", b"GET /nodes HTTP/1.1\r\nHost: 127.0.0.1\r\n", b"\r\n\r\n"])
    def test_that_sends_its_headers_slowly_is_disconnected(self, impatient: Served, begun: bytes) -> None:
        with connected(impatient) as connection:
            connection.sendall(begun)
            answer(connection)

    def test_that_sends_the_headers_of_a_second_request_slowly_is_disconnected(self, impatient: Served) -> None:
        with connected(impatient) as connection:
            whole = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
            connection.sendall(whole + whole[:20])
            assert answer(connection).count(b"HTTP/1.1 200") == 1

    @pytest.mark.parametrize("way", [b"Content-Length: 100", b"Transfer-Encoding: chunked"])
    def test_that_sends_its_body_slowly_gets_408(self, impatient: Served, way: bytes) -> None:
        with connected(impatient) as connection:
            connection.sendall(b"POST /why HTTP/1.1\r\nHost: 127.0.0.1\r\n" + way + b"\r\n\r\n")
            assert b" 408 " in answer(connection).partition(b"\r\n")[0]

    def test_does_not_block_others(self, impatient: Served) -> None:
        connections = [connected(impatient) for _ in range(100)]
        for connection in connections:
            connection.sendall(b"POST /why HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100\r\n\r\n")
        assert HttpDesk(impatient.url).summary().nodes == 4
        for connection in connections:
            connection.close()


class TestWhatIsTooLong:
    def test_a_body_without_an_announced_length(self, impatient: Served) -> None:
        with connected(impatient) as connection:
            connection.sendall(b"POST /why HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n")
            connection.sendall(b"4000\r\n" + b"x" * 0x4000 + b"\r\n")
            assert b" 413 " in answer(connection).partition(b"\r\n")[0]

    def test_headers(self, impatient: Served) -> None:
        with connected(impatient) as connection:
            connection.sendall(b"GET /nodes HTTP/1.1\r\nHost: 127.0.0.1\r\nX: " + b"x" * 70_000)
            assert b" 4" in answer(connection).partition(b"\r\n")[0]


RAW: list[tuple[bytes, bytes]] = [
    (b"GET http://evil.example/nodes HTTP/1.1\r\nHost: evil.example\r\n\r\n", b"403"),
    (b"GET /nodes HTTP/1.1\r\nHost: 127.0.0.1\r\nHost: evil.example\r\n\r\n", b"400"),
    (b"GET /nodes HTTP/1.1\r\n\r\n", b"400"),
    (b"GET /nodes HTTP/1.0\r\n\r\n", b"403"),
    (b"POST http://127.0.0.1/nodes/drain/cpu-1 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", b"401"),
    (b"OPTIONS * HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", b"404"),
    (b"POST /nodes/%64rain/cpu-1 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", b"401"),
    (b"POST /static/%2e%2e/nodes/drain/cpu-1 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", b"401"),
    (b"GET /nodes HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n", b"200"),
    (b"POST /why HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nx", b"400"),
    (
        b"POST /why HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"4",
    ),
]


@pytest.mark.parametrize(("sent", "status"), RAW, ids=[sent.partition(b"\r\n\r\n")[0].decode() for sent, _ in RAW])
def test_an_unusual_request_is_refused(impatient: Served, sent: bytes, status: bytes) -> None:
    with connected(impatient) as connection:
        connection.sendall(sent)
        first = connection.makefile("rb").readline()
    assert first.partition(b" ")[2].startswith(status), first


def test_events_are_streamed(impatient: Served) -> None:
    connection = http.client.HTTPConnection(impatient.url.removeprefix("http://"), timeout=60)
    connection.request("GET", "/events", headers={"Accept": "text/event-stream", "Last-Event-ID": "10"})
    found: Any = connection.getresponse()
    assert found.getheader("content-type").startswith("text/event-stream")
    lines = [found.readline() for _ in range(3)]
    assert lines[0] == b": events\n"
    assert lines[2] == b"id: 11\n"
    connection.close()
