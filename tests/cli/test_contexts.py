"""`stead context`, and which token goes to which address: a token never reaches a host that it does not belong to."""

from __future__ import annotations

import io
import json
import os
import socket
import stat
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from stead.cli import stead
from stead.commands.saved_services import SavedService, SavedServices
from stead.operate.http_client import HttpDesk
from stead.operate.origins import Origin, origin_of

Run = Callable[..., tuple[int, str, str]]

SUMMARY = {
    "title": "recorded",
    "kind": "simulation",
    "at": 0.0,
    **dict.fromkeys(("nodes", "tainted", "draining", "running", "waiting", "groups", "groups_waiting"), 0),
}
OPERATOR = "stead_operator_of_this_machine"
NAMES = ("stead.example.com", "other.example.com")
"""Names of other hosts; the tests resolve both to this machine, to see what is sent there."""


@dataclass
class Recorder:
    """A service that records the Authorization header of every request."""

    port: int
    status: int = 200
    leads_to: str = ""
    tokens: list[str | None] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def named(self, host: str) -> str:
        return f"http://{host}:{self.port}"

    def taken(self) -> list[str | None]:
        """The tokens since the last call; None for a request without one."""
        found, self.tokens = self.tokens, []
        return found


@contextmanager
def recording() -> Iterator[Recorder]:
    class Recording(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found.tokens.append(self.headers["Authorization"])
            self.send_response(found.status)
            if found.leads_to:
                self.send_header("Location", found.leads_to)
            self.end_headers()
            self.wfile.write(json.dumps(SUMMARY if found.status == 200 else {"error": "no"}).encode())

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Recording) as server:
        found = Recorder(server.server_address[1])
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield found
        finally:
            server.shutdown()
            thread.join(timeout=60)


@pytest.fixture
def recorder() -> Iterator[Recorder]:
    with recording() as found:
        yield found


@pytest.fixture
def other() -> Iterator[Recorder]:
    with recording() as found:
        yield found


@pytest.fixture(autouse=True)
def names_lead_here(lone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    resolve = socket.getaddrinfo
    monkeypatch.setattr(
        socket, "getaddrinfo", lambda host, *rest: resolve("127.0.0.1" if host in NAMES else host, *rest)
    )


@pytest.fixture
def operator(lone: Path) -> str:
    """The token that this user's service on this machine has created."""
    lone.mkdir(mode=0o700, exist_ok=True)
    (lone / "token").write_text(f"{OPERATOR}\n")
    (lone / "token").chmod(0o600)
    return OPERATOR


@pytest.fixture
def unreachable(monkeypatch: pytest.MonkeyPatch) -> None:
    """No connection may be opened."""
    monkeypatch.setattr(socket, "create_connection", lambda *_, **__: pytest.fail("something was sent"))
    monkeypatch.setattr(socket.socket, "connect", lambda *_: pytest.fail("something was sent"))


def save(name: str, address: str, token: str = "", **given: Any) -> None:
    SavedServices().add(SavedService(name, address, token, **given))


class TestATokenBelongsToAnAddress:
    def test_a_contexts_token_goes_to_its_address_by_name_or_url(self, recorder: Recorder, run: Run) -> None:
        save("prod", recorder.url, "stead_prod")
        assert run("status", "--json", "--address", "prod")[0] == 0
        assert run("status", "--json", "--address", recorder.url)[0] == 0
        assert run("status", "--json", "--address", f"{recorder.url}/")[0] == 0
        SavedServices().use("prod")
        assert run("status", "--json")[0] == 0
        assert recorder.taken() == ["Bearer stead_prod"] * 4

    def test_the_variable_may_name_a_context(
        self, recorder: Recorder, run: Run, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        save("prod", recorder.url, "stead_prod")
        monkeypatch.setenv("STEAD_ADDRESS", "prod")
        assert run("status", "--json")[0] == 0
        assert recorder.taken() == ["Bearer stead_prod"]

    def test_a_contexts_token_does_not_go_to_another_port_or_host(
        self, recorder: Recorder, other: Recorder, run: Run
    ) -> None:
        save("prod", recorder.url, "stead_prod")
        SavedServices().use("prod")
        for address in (other.url, recorder.named("localhost"), recorder.named("stead.example.com")):
            assert run("status", "--json", "--address", address)[0] == 0
        assert (recorder.taken(), other.taken()) == ([None, None], [None])

    def test_the_token_variable_goes_only_to_the_address_variable(
        self, recorder: Recorder, other: Recorder, run: Run, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("STEAD_ADDRESS", recorder.url)
        monkeypatch.setenv("STEAD_TOKEN", "stead_mine")
        assert run("status", "--json")[0] == 0
        assert run("status", "--json", "--address", other.url)[0] == 0
        assert (recorder.taken(), other.taken()) == (["Bearer stead_mine"], [None])

    @pytest.mark.parametrize("address", ["", "127.0.0.1:6379"])
    def test_if_the_address_variable_is_no_service_the_token_goes_to_the_given_address(
        self, address: str, recorder: Recorder, run: Run, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("STEAD_ADDRESS", address)
        monkeypatch.setenv("STEAD_TOKEN", "stead_mine")
        assert run("status", "--json", "--address", recorder.url)[0] == 0
        assert recorder.taken() == ["Bearer stead_mine"]

    def test_the_variables_token_does_not_go_to_the_default_context(
        self, recorder: Recorder, run: Run, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        save("prod", recorder.url)
        SavedServices().use("prod")
        monkeypatch.setenv("STEAD_TOKEN", "stead_mine")
        assert run("status", "--json")[0] == 0
        assert recorder.taken() == [None]

    def test_a_named_context_uses_its_own_token_and_an_address_the_variables(
        self, recorder: Recorder, run: Run, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        save("prod", recorder.url, "stead_prod")
        monkeypatch.setenv("STEAD_TOKEN", "stead_mine")
        run("status", "--json", "--address", "prod")
        run("status", "--json", "--address", recorder.url)
        assert recorder.taken() == ["Bearer stead_prod", "Bearer stead_mine"]

    @pytest.mark.usefixtures("operator")
    def test_the_token_of_this_machines_service_stays_on_this_machine(self, recorder: Recorder, run: Run) -> None:
        for host in ("127.0.0.1", "localhost", *NAMES):
            assert run("status", "--json", "--address", recorder.named(host))[0] == 0
        assert recorder.taken() == [f"Bearer {OPERATOR}", f"Bearer {OPERATOR}", None, None]

    @pytest.mark.parametrize("host", ["127.0.0.1", "stead.example.com"])
    def test_rays_token_goes_to_no_service(
        self, host: str, recorder: Recorder, run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        (tmp_path / "ray").write_text("ray_by_file")
        monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "ray"))
        run("status", "--json", "--address", recorder.named(host))
        monkeypatch.setenv("RAY_AUTH_TOKEN", "ray_by_variable")
        run("status", "--json", "--address", recorder.named(host))
        assert recorder.taken() == [None, None]

    def test_a_redirect_does_not_get_the_token(self, recorder: Recorder, other: Recorder, run: Run) -> None:
        save("prod", recorder.url, "stead_prod")
        recorder.status, recorder.leads_to = 302, f"{other.url}/status"
        assert run("status", "--json", "--address", "prod") == (1, "", "stead: no\n")
        assert (recorder.taken(), other.taken()) == (["Bearer stead_prod"], [])

    def test_one_address_of_two_contexts_is_not_guessed(self, recorder: Recorder, run: Run) -> None:
        save("viewer", recorder.url, "stead_viewer")
        save("operator", recorder.url, "stead_operator")
        said = f"{recorder.url} is the address of several contexts: viewer, operator; choose one: --address viewer"
        assert run("status", "--json", "--address", recorder.url) == (1, "", f"stead: {said}\n")
        run("status", "--json", "--address", "operator")
        assert recorder.taken() == ["Bearer stead_operator"]

    def test_without_a_token_the_error_shows_how_to_save_one(self, recorder: Recorder, run: Run) -> None:
        recorder.status = 401
        code, out, err = run("status", "--json", "--address", recorder.url)
        good = f"save one with: stead context add NAME --address {recorder.url}"
        said = f"stead: the service at {recorder.url} needs a token, and you have none for it; {good}\n"
        assert (code, out, err) == (1, "", said)


class TestOverPlainHttp:
    SENTENCE = (
        "stead: the token would cross the network to {0} in clear text; use https:// (start the service with: stead "
        "serve --tls-cert FILE --tls-key FILE), or allow it with: stead context add NAME --address {0} --insecure\n"
    )

    @pytest.mark.usefixtures("unreachable")
    @pytest.mark.parametrize("host", ["stead.example.com", "10.0.0.5", "[2001:db8::1]", "127.1", "localhost.evil.com"])
    def test_a_token_is_refused_before_anything_is_sent(
        self, host: str, run: Run, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("STEAD_TOKEN", "stead_mine")
        address = f"http://{host}:8625"
        assert run("status", "--json", "--address", address) == (1, "", self.SENTENCE.format(address))
        monkeypatch.setenv("STEAD_ADDRESS", address)
        assert run("drain", "cpu-1") == (1, "", self.SENTENCE.format(address))

    @pytest.mark.usefixtures("unreachable")
    def test_the_desk_itself_refuses_too(self) -> None:
        with pytest.raises(ValueError, match="in clear text"):
            HttpDesk("http://stead.example.com", "stead_mine")

    def test_a_context_may_allow_it_for_its_own_address(
        self, recorder: Recorder, other: Recorder, run: Run, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        address = recorder.named("stead.example.com")
        monkeypatch.setattr("sys.stdin", io.StringIO("stead_lab\n"))
        assert run("context", "add", "lab", "--address", address)[0] == 1
        assert run("context", "add", "lab", "--address", address, "--insecure")[0] == 0
        assert run("status", "--json", "--address", "lab")[0] == 0
        assert recorder.taken() == ["Bearer stead_lab"]
        monkeypatch.setenv("STEAD_TOKEN", "stead_mine")
        elsewhere = other.named("stead.example.com")
        assert run("status", "--json", "--address", elsewhere) == (1, "", self.SENTENCE.format(elsewhere))
        assert other.taken() == []

    def test_a_request_without_a_token_is_sent(self, recorder: Recorder, run: Run) -> None:
        assert run("status", "--json", "--address", recorder.named("stead.example.com"))[0] == 0
        assert recorder.taken() == [None]

    @pytest.mark.parametrize("token", ["two words", "two\nlines", "étoile"])
    def test_an_invalid_token_is_not_printed(
        self, token: str, recorder: Recorder, run: Run, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("STEAD_TOKEN", token)
        code, out, err = run("status", "--json", "--address", recorder.url)
        assert (code, out, err.count("\n")) == (1, "", 1)
        assert err.startswith("stead: the token contains a space, a line break or another invalid character")
        assert recorder.taken() == []


class TestAnAddress:
    GOOD = (
        ("http://h", Origin("http", "h", 80)),
        ("https://H.Example.com/", Origin("https", "h.example.com", 443)),
        ("https://h:443/stead", Origin("https", "h", 443)),
        ("http://[0:0::1]:80", Origin("http", "::1", 80)),
    )
    BAD = (
        "http://127.0.0.1@evil.example.com",
        "http://evil.example.com\\@127.0.0.1",
        "http://user:secret@127.0.0.1:1",
        "http://127.0.0.1:1?x",
        "http://127.0.0.1:1#@evil.example.com",
        "http://127.0.0.1%2eevil.example.com",
        "http://[::1%25eth0]:1",
        "http://[1:2]:1",
        "http://127.0.0.1:65536",
        "http://h\n",
    )

    @pytest.mark.parametrize(("address", "origin"), GOOD, ids=[address for address, _ in GOOD])
    def test_has_one_origin(self, address: str, origin: Origin) -> None:
        assert origin_of(address) == origin

    @pytest.mark.parametrize("address", BAD)
    def test_that_could_be_read_in_two_ways_is_refused(self, address: str, run: Run) -> None:
        code, out, err = run("status", "--json", "--address", address)
        assert (code, out, err.count("\n")) == (1, "", 1)
        assert " must look like http://" in err

    @pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.10", "[::1]", "localhost", "LOCALHOST"])
    def test_of_this_machine_is_loopback(self, host: str) -> None:
        assert origin_of(f"http://{host}:1").is_loopback

    @pytest.mark.parametrize("host", ["128.0.0.1", "0.0.0.0", "[::]", "localhost.example.com", "127.0.0.1.example.com"])
    def test_of_another_machine_is_not_loopback(self, host: str) -> None:
        assert not origin_of(f"http://{host}:1").is_loopback


class TestSaving:
    def test_contexts_are_added_listed_used_and_removed(
        self, run: Run, lone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert run("context", "list") == (0, "no contexts; add one with: stead context add NAME --address URL\n", "")
        (tmp_path / "token.txt").write_text("stead_secret_1\n")
        words = ("--address", "https://stead.example.com/", "--token-file", str(tmp_path / "token.txt"))
        said = "context prod saved, with a token; use it with --address prod, or always: stead context use prod\n"
        assert run("context", "add", "prod", *words) == (0, said, "")
        monkeypatch.setattr("sys.stdin", io.StringIO("stead_secret_2\n"))
        assert run("context", "add", "lab", "--address", "http://10.0.0.5:8625", "--insecure")[0] == 0
        assert run("context", "add", "here", "--address", "http://127.0.0.1:8625", "--no-token")[0] == 0
        assert run("context", "use", "prod") == (0, "context prod is the default\n", "")
        table = (
            "NAME  ADDRESS                    TOKEN  INSECURE  DEFAULT\n"
            "prod  https://stead.example.com  yes    -         yes\n"
            "lab   http://10.0.0.5:8625       yes    yes       -\n"
            "here  http://127.0.0.1:8625      no     -         -\n"
        )
        assert run("context", "list") == (0, table, "")
        listed = run("context", "list", "--format", "json")[1]
        assert json.loads(listed)[0] == {
            "name": "prod",
            "address": "https://stead.example.com",
            "has_token": True,
            "ca": "",
            "insecure": False,
            "default": True,
        }
        assert "secret" not in listed + run("context", "list", "--format", "yaml")[1]
        assert run("context", "remove", "lab") == (0, "context lab removed\n", "")
        assert run("context", "remove", "prod") == (0, "context prod removed; no context is the default now\n", "")
        assert "secret" not in (lone / "contexts.json").read_text()
        assert json.loads(run("context", "use", "here", "--json")[1]) == {"default": "here"}
        assert run("context", "use", "--none") == (0, "no context is the default\n", "")
        assert json.loads(run("context", "remove", "here", "--json")[1]) == {"name": "here", "removed": True}
        assert json.loads(run("context", "list", "--json")[1]) == []

    def test_the_prompt_on_a_terminal_does_not_show_the_token(self, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("sys.stdin", io.StringIO())
        monkeypatch.setattr("sys.stdin.isatty", lambda: True)
        monkeypatch.setattr("click.termui.hidden_prompt_func", lambda _: "stead_typed")
        code, out, err = run("context", "add", "prod", "--address", "https://stead.example.com")
        assert (code, "stead_typed" in out + err) == (0, False)
        assert SavedServices().get("prod").token == "stead_typed"

    def test_only_its_user_can_read_the_file(self, lone: Path) -> None:
        before = os.umask(0)
        try:
            save("prod", "https://stead.example.com", "stead_secret")
        finally:
            os.umask(before)
        assert [path.name for path in lone.iterdir()] == ["contexts.json"]
        assert stat.S_IMODE((lone / "contexts.json").stat().st_mode) == 0o600
        assert "stead_secret" not in repr(SavedServices().get("prod"))

    def test_a_new_token_replaces_the_old_one_only_with_overwrite(
        self, run: Run, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        save("prod", "https://stead.example.com", "stead_old")
        SavedServices().use("prod")
        words = ("context", "add", "prod", "--address", "https://stead.example.com")
        monkeypatch.setattr("sys.stdin", io.StringIO("stead_new"))
        said = "stead: there is a context 'prod' already; to replace it, give --overwrite\n"
        assert run(*words) == (1, "", said)
        monkeypatch.setattr("sys.stdin", io.StringIO("stead_new"))
        assert run(*words, "--overwrite")[0] == 0
        found = SavedServices().default()
        assert found is not None and found.token == "stead_new"

    def test_a_write_that_fails_leaves_the_old_file(self, lone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        save("prod", "https://stead.example.com", "stead_secret")

        def full(_: int) -> None:
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr("os.fsync", full)
            with pytest.raises(OSError, match="No space left"):
                save("lab", "https://lab.example.com")
        assert [service.name for service in SavedServices().all()] == ["prod"]
        assert [path.name for path in lone.iterdir()] == ["contexts.json"]

    def test_concurrent_processes_all_save_their_contexts(self) -> None:
        with ThreadPoolExecutor(8) as threads:
            list(threads.map(lambda each: save(f"c-{each}", "https://h"), range(24)))
        assert len(SavedServices().all()) == 24

    def test_fields_of_a_newer_version_are_ignored(self, lone: Path) -> None:
        save("prod", "https://stead.example.com", "stead_secret")
        written = json.loads((lone / "contexts.json").read_text())
        written["contexts"][0]["newer"] = written["newer"] = 1
        (lone / "contexts.json").write_text(json.dumps(written))
        assert SavedServices().get("prod").token == "stead_secret"

    def test_a_note_says_that_the_variable_takes_precedence(self, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        save("prod", "https://stead.example.com")
        monkeypatch.setenv("STEAD_ADDRESS", "127.0.0.1:6379")
        said = "STEAD_ADDRESS is set to 127.0.0.1:6379, and takes precedence.\n"
        assert run("context", "use", "prod") == (0, "context prod is the default\n", said)


def linked(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to(path.with_name("elsewhere"))


def piped(path: Path) -> None:
    path.unlink()
    os.mkfifo(path, 0o600)


SPOILED: list[tuple[Callable[[Path], Any], str]] = [
    (linked, "{} is a symbolic link; replace it with a regular file"),
    (piped, "{} is not a regular file; move it away, and add your contexts again"),
    (lambda path: path.chmod(0o640), "{0} can be read by others; restrict it first: chmod 600 {0}"),
    (lambda path: path.write_text("{"), "{} is damaged; move it away, and add your contexts again"),
    (lambda path: path.write_bytes(b"\xff"), "{} is damaged; move it away, and add your contexts again"),
    (lambda path: path.write_text("[]"), "{} is damaged; move it away, and add your contexts again"),
    (lambda path: path.write_text('{"default": "", "contexts": [1]}'), "{} is damaged; move it away"),
]


@pytest.mark.parametrize(("spoil", "sentence"), SPOILED)
def test_a_file_that_cannot_be_trusted_is_refused(
    spoil: Callable[[Path], Any], sentence: str, run: Run, lone: Path
) -> None:
    save("prod", "https://stead.example.com", "stead_secret")
    spoil(lone / "contexts.json")
    before = (lone / "contexts.json").lstat()
    for words in (
        ["context", "list"],
        ["context", "add", "b", "--address", "https://h", "--no-token"],
        ["context", "use", "--none"],
        ["nodes"],
        ["nodes", "--address", "prod"],
        ["nodes", "--address", "http://127.0.0.1:1"],
    ):
        code, out, err = run(*words)
        assert (code, out, err.count("\n")) == (1, "", 1)
        assert err.startswith(f"stead: {sentence.format(lone / 'contexts.json')}")
    after = (lone / "contexts.json").lstat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


ADD = ("context", "add")
REFUSED: list[tuple[tuple[str, ...], int, str]] = [
    (("context",), 2, ""),
    (ADD, 2, "Missing argument 'NAME'"),
    ((*ADD, "prod"), 2, "Missing option '--address'"),
    ((*ADD, "prod", "--address", "10.0.0.1:6379"), 2, "--address '10.0.0.1:6379' is not a service; it must look like"),
    ((*ADD, "prod", "--address", "https://u@h"), 1, "address 'https://u@h' must look like http://127.0.0.1:8625"),
    ((*ADD, "a:b", "--address", "https://h"), 1, "name 'a:b' must be up to 64 letters, digits and"),
    ((*ADD, "auto", "--address", "https://h"), 1, "name 'auto' must be up to 64 letters, digits and"),
    ((*ADD, "\x1b", "--address", "https://h"), 1, "name '\\x1b' must be up to 64 letters, digits and"),
    ((*ADD, "a", "--address", "https://h", "--insecure"), 2, "--insecure is for http://; to trust your own"),
    ((*ADD, "a", "--address", "http://127.0.0.1", "--ca", "ca.pem"), 2, "--ca is for https://; an http:// address"),
    ((*ADD, "a", "--address", "https://h", "--ca", "none.pem"), 1, "the CA file none.pem cannot be used: No such file"),
    ((*ADD, "a", "--address", "https://h", "--ca", "README.md"), 1, "the CA file README.md cannot be used: it has"),
    ((*ADD, "a", "--address", "https://h", "--token-file", "none"), 1, "the token file none cannot be read: No such"),
    ((*ADD, "a", "--address", "https://h", "--token-file", "a\0b"), 1, "the token file a\\x00b cannot be read: "),
    ((*ADD, "a", "--address", "https://h", "--token-file", "."), 1, "the token file . cannot be read: Is a directory"),
    ((*ADD, "a", "--address", "https://h", "--token-file", os.devnull), 1, "there is no token in /dev/null; give"),
    ((*ADD, "a", "--address", "https://h", "--no-token", "--token-file", "x"), 2, "give --token-file or --no-token"),
    ((*ADD, "a", "--address", "https://h"), 1, "there is no token in the input; give --token-file FILE, or --no-token"),
    (("context", "use"), 2, "name one context, or give --none for no default"),
    (("context", "use", "prod", "--none"), 2, "name one context, or give --none for no default"),
    (("context", "use", "prdo"), 1, "there is no context 'prdo' (did you mean 'prod'?); add one with"),
    (
        ("context", "remove", "lab"),
        1,
        "there is no context 'lab'; for example, there is 'prod'; add one with: stead context add NAME",
    ),
    (("nodes", "--address", "prdo"), 1, "address 'prdo' is unknown (did you mean 'prod'?); it can be a context (prod)"),
    (("serve", "--address", "prod"), 2, "prod is a service; --address must be a Ray cluster, HOST:PORT"),
]


@pytest.mark.usefixtures("unreachable")
@pytest.mark.parametrize(("words", "code", "sentence"), REFUSED, ids=[" ".join(words) for words, _, _ in REFUSED])
def test_invalid_arguments_are_refused_in_one_sentence(
    words: tuple[str, ...], code: int, sentence: str, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    save("prod", "https://stead.example.com", "stead_secret")
    monkeypatch.setattr("sys.stdin", io.StringIO())
    found, out, err = run(*words)
    assert (found, out) == (code, "")
    if sentence:
        assert err.startswith(f"stead: {sentence}"), err
        assert err.count("\n") == 1
    assert [service.name for service in SavedServices().all()] == ["prod"]


class TestCompletion:
    @pytest.mark.parametrize(
        ("line", "expected"),
        [
            ("stead context ", ["add", "list", "remove", "use"]),
            ("stead context use p", ["prod"]),
            ("stead context remove ", ["lab", "prod"]),
            ("stead nodes --address l", ["lab"]),
            ("stead drain c", []),
        ],
    )
    def test_names_of_contexts_are_completed(self, line: str, expected: list[str]) -> None:
        from click.shell_completion import BashComplete

        save("prod", "https://stead.example.com")
        save("lab", "https://lab.example.com")
        *words, begin = line.split(" ")[1:]
        found = BashComplete(stead, {}, "stead", "_STEAD_COMPLETE").get_completions(words, begin)
        assert [item.value for item in found] == expected

    def test_a_damaged_file_completes_nothing_and_prints_nothing(
        self, lone: Path, capfd: pytest.CaptureFixture[str]
    ) -> None:
        from click.shell_completion import BashComplete

        save("prod", "https://stead.example.com")
        (lone / "contexts.json").write_text("{")
        complete = BashComplete(stead, {}, "stead", "_STEAD_COMPLETE").get_completions
        assert complete(["context", "use"], "") == complete(["drain"], "") == []
        assert capfd.readouterr() == ("", "")
