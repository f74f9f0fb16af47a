"""`stead serve` and `stead token`, as processes: what they print, what they refuse, and that they shut down cleanly."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import stat
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.serving import serving

ROOT = Path(__file__).parent.parent.parent
DEMO = str(ROOT / "scenarios" / "demo.yaml")
CODE = "import sys; from stead.cli import main; sys.exit(main())"

Run = Callable[..., tuple[int, str, str]]


def environment(home: Path) -> dict[str, str]:
    ours = ("STEAD_", "RAY_", "_STEAD_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    return {**kept, "STEAD_HOME": str(home / "home"), "TMPDIR": str(home), "PYTHONUNBUFFERED": "1"}


@contextmanager
def service(home: Path, *words: str) -> Iterator[tuple[subprocess.Popen[str], str, list[str]]]:
    """A running `stead serve`: the process, its address, and what it printed."""
    command = [sys.executable, "-c", CODE, "serve", "--scenario", DEMO, "--port", "0", *words]
    with subprocess.Popen(
        command, env=environment(home), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            said = []
            for line in process.stdout:
                said.append(line.rstrip("\n"))
                if line == "Press Ctrl-C to stop.\n":
                    break
            found = re.search(r"https?://\S+", "\n".join(said))
            assert found, (said, process.stderr.read() if process.stderr else "")
            yield process, found[0], said
        finally:
            process.kill()


def ask(url: str, method: str = "GET", **headers: str) -> tuple[int, str]:
    request = urllib.request.Request(url, method=method, headers=headers, data=b"{}" if method == "POST" else None)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


class TestServe:
    @pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
    def test_it_prints_its_address_never_the_token_and_leaves_nothing_behind(
        self, sent: signal.Signals, tmp_path: Path
    ) -> None:
        with service(tmp_path) as (process, address, said):
            lies = tmp_path / "home" / "token"
            token = lies.read_text().strip()
            assert said == [
                f"simulation demo is served at {address}",
                f"Changes need a token; the operator's is in {lies}, and your commands on this machine use it.",
                "Press Ctrl-C to stop.",
            ]
            assert json.loads(ask(f"{address}/status?token={token}")[1])["title"] == "demo"
            stream = urllib.request.urlopen(
                urllib.request.Request(f"{address}/events", headers={"Accept": "text/event-stream"}), timeout=60
            )
            stream.readline()  # an open stream does not block the shutdown
            refused = ask(f"{address}/nodes/drain/cpu-a", "POST")
            assert refused[0] == 401
            drained = ask(f"{address}/nodes/drain/cpu-a", "POST", Authorization=f"Bearer {token}")
            assert drained[0] == 200
            process.send_signal(sent)
            _, log = process.communicate(timeout=60)
            stream.close()
        assert process.returncode == 0
        assert [line.split(" ", 3)[3] for line in log.splitlines()] == [
            '- "GET /status HTTP/1.1" 200',
            '- "GET /events HTTP/1.1" 200',
            '- "POST /nodes/drain/cpu-a HTTP/1.1" 401',
            '- "POST /nodes/drain/cpu-a HTTP/1.1" 200',
        ]
        assert token not in log
        assert [path.name for path in tmp_path.iterdir()] == ["home"]
        assert stat.S_IMODE(lies.stat().st_mode) == 0o600

    def test_commands_of_the_same_user_find_it_and_its_token(
        self, tmp_path: Path, run: Run, lone: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with service(tmp_path, "--quiet", "--speed", "0") as (_, address, _):
            monkeypatch.setenv("STEAD_HOME", str(tmp_path / "home"))
            assert run("drain", "cpu-a", "--address", address) == (0, "node cpu-a: takes no new work\n", "")
            made = subprocess.run(
                [sys.executable, "-c", CODE, "token", "--role", "viewer", "--name", "ci"],
                env=environment(tmp_path),
                capture_output=True,
                text=True,
                check=True,
            )
            token = made.stdout.strip()
            assert (token.startswith("stead_"), "it is not shown again" in made.stderr) == (True, True)
            monkeypatch.setenv("STEAD_TOKEN", token)  # the running service accepts it at once
            code, _, err = run("uncordon", "cpu-a", "--address", address)
            assert (code, err) == (1, "stead: the token of 'ci' is a viewer's; a change needs an operator's\n")

    def test_a_port_in_use_is_one_sentence(self, run: Run, lone: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            said = "give another, for example --port 0 for any free port"
            sentence = f"stead: port {port} of 127.0.0.1 is in use; {said}\n"
            assert run("serve", "--scenario", DEMO, "--port", str(port)) == (1, "", sentence)

    def test_on_other_addresses_than_loopback_everything_needs_a_token(self, tmp_path: Path) -> None:
        (tmp_path / "home").mkdir()
        (tmp_path / "home" / "token").write_text("stead_made_by_hand\n")
        (tmp_path / "home" / "token").chmod(0o600)
        with service(tmp_path, "--host", "0.0.0.0") as (_, address, said):
            assert "It accepts only the host name localhost; allow others with --allow-host NAME." in said
            assert any(line.startswith("Tokens cross the network in clear text; give --tls-cert") for line in said)
            assert ask(f"{address}/status")[0] == 403
        with service(tmp_path, "--host", "0.0.0.0", "--allow-host", "stead.example.com") as (_, address, said):
            local = address.replace("0.0.0.0", "127.0.0.1")
            assert ask(f"{local}/status")[0] == 401
            bearer = {"Authorization": "Bearer stead_made_by_hand"}
            assert ask(f"{local}/status", **bearer)[0] == 200
            assert ask(f"{local}/status", **bearer, Host="stead.example.com")[0] == 200
            assert ask(f"{local}/status", **bearer, Host="evil.example.com")[0] == 403
            assert not any("allow-host" in line for line in said)

    def test_a_service_cannot_serve_a_service(self, run: Run, lone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("STEAD_ADDRESS", "http://127.0.0.1:1")
        code, out, err = run("serve", "--port", "0")
        assert (code, out, err.count("\n")) == (1, "", 1)
        assert err.startswith("stead: STEAD_ADDRESS is http://127.0.0.1:1, a service; choose the Ray cluster")

    def test_an_address_that_is_not_of_this_machine_is_one_sentence(self, run: Run, lone: Path) -> None:
        lone.mkdir()
        (lone / "token").write_text("stead_made_by_hand\n")
        (lone / "token").chmod(0o600)
        sentence = "stead: '192.0.2.1' is not an address of this machine; good ones are 127.0.0.1 and 0.0.0.0\n"
        assert run("serve", "--scenario", DEMO, "--host", "192.0.2.1", "--port", "0") == (1, "", sentence)


class TestToken:
    def test_tokens_are_created_listed_and_revoked(self, run: Run, lone: Path) -> None:
        assert run("token", "--list") == (0, "no tokens\n", "")
        code, out, err = run("token", "--role", "viewer", "--name", "grafana")
        assert (code, len(out.split())) == (0, 1)
        assert out.strip() not in err
        made = json.loads(run("token", "--role", "operator", "--name", "ci", "--json")[1])
        assert (made["name"], made["role"], made["token"].startswith("stead_")) == ("ci", "operator", True)
        assert run("token", "--list") == (0, "NAME     ROLE\ngrafana  viewer\nci       operator\n", "")
        kept = "".join(path.read_text() for path in lone.iterdir())
        assert (out.strip() in kept, made["token"] in kept) == (False, False)
        assert run("token", "--revoke", "grafana") == (0, "the token of grafana is revoked\n", "")
        assert json.loads(run("token", "--list", "--json")[1]) == [{"name": "ci", "role": "operator"}]
        sentence = "stead: there is no token named 'grafana'; for example, there is 'ci'\n"
        assert run("token", "--revoke", "grafana") == (1, "", sentence)


class TestWithoutAController:
    """The service keeps running, and says in one sentence that the cluster does not answer."""

    def test_it_is_503_for_programs_and_one_sentence_for_people(
        self, run: Run, lone: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        ray = pytest.importorskip("ray")
        from stead.ray.remote_desk import remote_desk

        class Gone:
            def ask(self, *_: object) -> None:
                raise ray.exceptions.RayActorError

        monkeypatch.setattr("stead.ray.remote_desk.connection", Gone)
        with serving(remote_desk()) as served:
            status, said = ask(f"{served.url}/status")
            assert status == 503
            assert json.loads(said)["error"].startswith("the controller of the cluster did not answer (")
            code, out, err = run("nodes", "--address", served.url)
            assert (code, out, err.count("\n")) == (1, "", 1)
            assert err.startswith("stead: the controller of the cluster did not answer (")
            assert ask(f"{served.url}/healthz")[0] == 200
