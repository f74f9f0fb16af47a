"""The webhook: what is posted when work has been pending for too long, and what happens when a receiver fails."""

from __future__ import annotations

import hashlib
import hmac
import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, cast

import pytest

from stead.cli import main
from stead.errors import Invalid
from stead.operate.desk import Desk
from stead.service import webhook as module
from stead.service.webhook import SECRET, SIGNATURE, Receiver, Undelivered, Webhook, secret_of
from stead.sim.cluster import play
from stead.sim.desk import SimDesk
from tests.cli.test_serving_commands import DEMO, ask
from tests.cli.test_serving_commands import service as serve
from tests.serving import BEGAN, simulated

WAIT_S = 60.0
SCENARIO = """
title: small
nodes: [{id: a, capacity: {CPU: 4}}]
work:
  - {id: big, count: 3, resources: {CPU: 16}, owner: blue}
  - {id: late, resources: {CPU: 8}, at: 500}
events:
  - {at: 900, resize: a, capacity: {CPU: 64}}
"""


@dataclass
class Server:
    """A real HTTP server that records messages and gives the configured answer."""

    answer: Callable[[BaseHTTPRequestHandler], None]
    url: str = ""
    got: list[tuple[dict[str, str], bytes]] = field(default_factory=list)
    came: threading.Condition = field(default_factory=threading.Condition)

    @property
    def messages(self) -> list[dict[str, Any]]:
        return [json.loads(body) for _, body in self.got]

    def wait_for(self, count: int) -> None:
        with self.came:
            assert self.came.wait_for(lambda: len(self.got) >= count, WAIT_S), self.got


def status(code: int, **headers: str) -> Callable[[BaseHTTPRequestHandler], None]:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(code)
        for name, value in headers.items():
            handler.send_header(name, value)
        handler.end_headers()

    return answer


@contextmanager
def receiving(answer: Callable[[BaseHTTPRequestHandler], None] | None = None) -> Iterator[Server]:
    server = Server(answer or status(204))

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            with server.came:
                server.got.append(({"path": self.path, **dict(self.headers.items())}, body))
                server.came.notify_all()
            server.answer(self)

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listening:
        listening.daemon_threads = True
        server.url = f"http://127.0.0.1:{listening.server_address[1]}"
        thread = threading.Thread(target=listening.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            listening.shutdown()
            thread.join(WAIT_S)


class At:
    """A simulated cluster at chosen times."""

    def __init__(self, desk: SimDesk) -> None:
        self._desk = desk

    def go_to(self, moment: float) -> None:
        play(self._desk._cluster, self._desk._controller, moment)
        self._desk._snapshot = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._desk, name)


@pytest.fixture
def cluster() -> Iterator[At]:
    with simulated(SCENARIO, until=60.0) as desk:
        yield At(desk)


def hook(cluster: At, url: str, secret: bytes = b"", pending_s: float = 600.0) -> Webhook:
    return Webhook(cast(Desk, cluster), Receiver(url, secret), pending_s, pauses_s=(0.0, 0.0))


class TestAMessage:
    def test_is_sent_once_when_work_is_pending_for_too_long_and_once_when_it_no_longer_is(self, cluster: At) -> None:
        with receiving() as server:
            webhook = hook(cluster, f"{server.url}/stead?team=blue")
            for moment in (60.0, 599.0):
                cluster.go_to(moment)
                assert webhook.look()
            assert server.got == [], "it is not too long yet"
            for moment in (601.0, 700.0, 800.0):
                cluster.go_to(moment)
                assert webhook.look()
            (first,) = server.messages
            assert first == {
                "event": "pending",
                "id": first["id"],
                "cluster": "small",
                "name": "big",
                "owner": "blue",
                "count": 3,
                "since": BEGAN,
                "at": BEGAN + 601.0,
                "longer_than_s": 600.0,
                "example": "big-1",
                "why": "0 of 1 node fits: 1 too small for 16 CPU. Adding 12 CPU to a would be enough (1 node).",
            }
            cluster.go_to(901.0)
            assert webhook.look() and webhook.look()
            assert server.messages[1:] == [{**first, "event": "over", "count": 0, "at": BEGAN + 901.0}]
            headers = server.got[0][0]
            assert headers["path"] == "/stead?team=blue"
            assert headers["Content-Type"] == "application/json"
            assert SIGNATURE not in headers

    def test_is_for_each_kind_of_work(self, cluster: At) -> None:
        with receiving() as server:
            webhook = hook(cluster, server.url, pending_s=60.0)
            cluster.go_to(600.0)
            assert webhook.look()
            assert [(each["name"], each["count"]) for each in server.messages] == [("big", 3), ("late", 1)]
            assert len({each["id"] for each in server.messages}) == 2

    def test_is_signed_with_the_secret(self, cluster: At) -> None:
        with receiving() as server:
            cluster.go_to(601.0)
            hook(cluster, server.url, b"hush").look()
            headers, body = server.got[0]
            assert headers[SIGNATURE] == f"sha256={hmac.new(b'hush', body, hashlib.sha256).hexdigest()}"
            assert b"hush" not in body

    def test_is_sent_automatically_while_the_thread_runs(self, cluster: At) -> None:
        with receiving() as server:
            cluster.go_to(601.0)
            with hook(cluster, server.url).running(look_s=0.01):
                server.wait_for(1)
            assert server.messages[0]["event"] == "pending"

    def test_reports_a_limited_number_of_kinds(
        self, cluster: At, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr(module, "KINDS_MAX", 1)
        with receiving() as server:
            webhook = hook(cluster, server.url, pending_s=60.0)
            cluster.go_to(600.0)
            assert webhook.look() and webhook.look()
            assert len(server.got) == 1
        assert [record.message for record in caplog.records] == [
            "2 kinds of work are pending too long; the webhook reports 1"
        ]


class TestAReceiverThatFails:
    @pytest.mark.parametrize("code", [301, 302, 307, 308, 400, 401, 404, 429, 500, 503])
    def test_is_retried_a_few_times_and_logged_once(
        self, cluster: At, code: int, caplog: pytest.LogCaptureFixture
    ) -> None:
        with receiving() as elsewhere, receiving(status(code, location=elsewhere.url)) as server:
            cluster.go_to(601.0)
            webhook = hook(cluster, f"{server.url}/secret-path")
            assert not webhook.look()
            assert not webhook.look()
            assert (len(server.got), len(elsewhere.got)) == (6, 0), "no redirect is followed"
            assert [record.message for record in caplog.records] == [
                f"the webhook at {server.url} does not take messages (it answers {code}); retrying"
            ]
            server.answer = status(200)
            assert webhook.look() and webhook.look()
            assert len(server.got) == 7, "a message that is still true is sent once"

    def test_that_does_not_run_or_is_no_web_server_fails_too(
        self, cluster: At, caplog: pytest.LogCaptureFixture
    ) -> None:
        cluster.go_to(601.0)
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            assert not hook(cluster, f"http://127.0.0.1:{unused.getsockname()[1]}").look()
        with receiving() as server:
            assert not hook(cluster, server.url.replace("http://", "https://")).look()

        def rubbish(handler: BaseHTTPRequestHandler) -> None:
            handler.wfile.write(b"hello\r\n\r\n")

        with receiving(rubbish) as server:
            assert not hook(cluster, server.url).look()
        assert len(caplog.records) == 3

    @pytest.mark.parametrize("drips", [False, True], ids=["is silent", "answers a byte at a time"])
    def test_that_hangs_is_aborted(self, monkeypatch: pytest.MonkeyPatch, drips: bool) -> None:
        monkeypatch.setattr(module, "ANSWER_S", WAIT_S if drips else 0.1)
        monkeypatch.setattr(module, "MESSAGE_S", 0.1 if drips else WAIT_S)
        ended = threading.Event()

        def hang(handler: BaseHTTPRequestHandler) -> None:
            with suppress(OSError):
                while not ended.wait(0.01):
                    if drips:
                        handler.wfile.write(b"H")

        with receiving(hang) as server:
            try:
                with pytest.raises(Undelivered):
                    Receiver(server.url).post({})
            finally:
                ended.set()

    def test_does_not_block_the_shutdown(self, cluster: At, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(module, "END_S", 0.0)
        ended = threading.Event()
        with receiving(lambda _: cast(None, ended.wait(WAIT_S))) as server:
            cluster.go_to(601.0)
            with hook(cluster, server.url).running(look_s=0.01):
                server.wait_for(1)
                assert cluster.summary().waiting == 4, "the cluster still answers"
            ended.set()

    def test_a_cluster_that_does_not_answer_sends_no_message(self) -> None:
        class Silent:
            def snapshot(self) -> Any:
                raise ConnectionError

        with receiving() as server:
            assert Webhook(cast(Desk, Silent()), Receiver(server.url), 600.0).look()
            assert server.got == []


class TestServe:
    def test_posts_with_the_given_title_and_secret(self, tmp_path: Path) -> None:
        secret = tmp_path / "secret"
        secret.write_text("hush\n")
        secret.chmod(0o600)
        with receiving() as server:
            words = ["--title", "Training", "--webhook", server.url, "--webhook-pending", "1s"]
            with serve(tmp_path, *words, "--webhook-secret-file", str(secret)) as (_, address, said):
                assert said[0].startswith("simulation Training is served at ")
                server.wait_for(1)
                assert json.loads(ask(f"{address}/status")[1])["title"] == "Training"
                samples: list[dict[str, Any]] = []
                while not samples:  # the first is taken at once, in another thread
                    samples = json.loads(ask(f"{address}/use")[1])["items"]
                assert samples[0]["nodes"] > 0
            headers, body = server.got[0]
            assert headers[SIGNATURE] == f"sha256={hmac.new(b'hush', body, hashlib.sha256).hexdigest()}"
            assert server.messages[0]["cluster"] == "Training"
        assert sorted(path.name for path in (tmp_path / "home").iterdir()) == ["token"], "a simulation stores no usage"

    @pytest.mark.parametrize(
        ("words", "said"),
        [
            (["--webhook-pending", "5m"], "give --webhook URL too"),
            (["--webhook-secret-file", "x"], "give --webhook URL too"),
            (["--webhook", "ftp://x"], "must look like https://hooks.example.com/stead"),
            (["--webhook", "http://127.0.0.1:1", "--webhook-pending", "soon"], "'soon'"),
            (["--webhook", "http://127.0.0.1:1", "--webhook-secret-file", "/nowhere"], "/nowhere cannot be read"),
            (["--title", "a\nb"], "must have 1 to 64 printable characters"),
        ],
    )
    def test_refuses_in_one_sentence_before_it_serves(
        self,
        words: list[str],
        said: str,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        monkeypatch.setenv("STEAD_HOME", str(tmp_path / "home"))
        monkeypatch.delenv(SECRET, raising=False)
        assert main(["serve", "--scenario", DEMO, "--port", "0", *words]) != 0
        assert said in capsys.readouterr().err


class TestTheAddress:
    @pytest.mark.parametrize(
        "url",
        [
            "",
            "hooks.example.com",
            "ftp://hooks.example.com/",
            "file:///etc/passwd",
            "http://",
            "http://ann:secret@hooks.example.com/",
            "http://hooks.example.com:99999/",
            "http://hooks.example.com/a b",
            "http://hooks.example.com/\r\nX-Evil: 1",
            "http://hooks.example.com/?a=\n",
            "http://hooks.example.com/#part",
        ],
    )
    def test_that_is_invalid_is_refused_without_being_printed(self, url: str) -> None:
        with pytest.raises(Invalid, match=r"must look like https://hooks\.example\.com/stead") as refused:
            Receiver(url)
        assert "secret" not in str(refused.value)

    def test_is_not_printed_by_accident(self) -> None:
        shown = repr(Receiver("https://hooks.example.com/T0/secret", b"hush"))
        assert "secret" not in shown.replace("Receiver", "") and "hush" not in shown


class TestTheSecret:
    def test_is_in_a_variable_or_in_a_file(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv(SECRET, raising=False)
        assert secret_of(None) == b""
        file = tmp_path / "secret"
        file.write_text("hush\n")
        file.chmod(0o600)
        assert secret_of(str(file)) == b"hush"
        monkeypatch.setenv(SECRET, "loud")
        assert secret_of(None) == b"loud"
        with pytest.raises(Invalid, match="is given twice"):
            secret_of(str(file))

    @pytest.mark.parametrize(
        ("text", "mode", "said"),
        [("hush", 0o644, "chmod 600"), ("", 0o600, "has no secret"), (None, 0, "cannot be read")],
    )
    def test_in_an_unusable_file_is_refused(
        self, tmp_path: Path, text: str | None, mode: int, said: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delenv(SECRET, raising=False)
        file = tmp_path / "secret"
        if text is not None:
            file.write_text(text)
            file.chmod(mode)
        with pytest.raises(Invalid, match=said):
            secret_of(str(file))
