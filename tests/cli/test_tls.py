"""TLS end to end: `stead serve --tls-cert` with a self-signed certificate, and commands that trust it or do not."""

from __future__ import annotations

import os
import shutil
import socket
import ssl
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from stead.commands.saved_services import SavedService, SavedServices
from tests.cli.test_serving_commands import DEMO, service
from tests.serving import serving, simulated

Run = Callable[..., tuple[int, str, str]]

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificates")


@dataclass(frozen=True)
class Certificate:
    certificate: str
    key: str

    @property
    def words(self) -> tuple[str, ...]:
        return "--tls-cert", self.certificate, "--tls-key", self.key


def made(folder: Path, name: str, *words: str) -> Certificate:
    """A self-signed certificate for 127.0.0.1 and localhost."""
    found = Certificate(str(folder / f"{name}.pem"), str(folder / f"{name}-key.pem"))
    usage = "keyUsage=critical,digitalSignature,keyCertSign"
    names = "subjectAltName=IP:127.0.0.1,DNS:localhost"
    kind = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-days", "2", "-subj", f"/CN={name}"]
    files = ["-keyout", found.key, "-out", found.certificate]
    subprocess.run(
        ["openssl", "req", "-x509", *kind, "-addext", names, "-addext", usage, *files, *(words or ("-nodes",))],
        check=True,
        capture_output=True,
    )
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("certificates")


@pytest.fixture(scope="module")
def ours(folder: Path) -> Certificate:
    return made(folder, "ours")


@pytest.fixture(scope="module")
def others(folder: Path) -> Certificate:
    return made(folder, "others")


@dataclass(frozen=True)
class Running:
    address: str
    token: str
    said: list[str]


@pytest.fixture(scope="module")
def running(ours: Certificate, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """`stead serve` over TLS, as a process."""
    home = tmp_path_factory.mktemp("served")
    with service(home, "--quiet", "--speed", "0", *ours.words) as (_, address, said):
        yield Running(address, (home / "home" / "token").read_text().strip(), said)


@pytest.mark.usefixtures("lone")
class TestServedOverTls:
    def test_it_says_so(self, running: Running) -> None:
        assert running.address.startswith("https://127.0.0.1:")
        assert running.said[0] == f"simulation demo is served at {running.address}"

    def test_a_command_trusts_the_ca_of_its_context_and_changes_things(
        self, running: Running, ours: Certificate, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        (tmp_path / "token").write_text(running.token)
        (tmp_path / "ca.pem").write_text(Path(ours.certificate).read_text())
        words = ("--address", running.address, "--ca", "ca.pem", "--token-file", "token")
        assert run("context", "add", "demo", *words)[0] == 0
        monkeypatch.chdir("/")  # the file is saved with its absolute path
        assert run("drain", "cpu-a", "--address", "demo") == (0, "node cpu-a: takes no new work\n", "")
        assert run("uncordon", "cpu-a", "--address", running.address)[0] == 0
        assert run("status", "--address", "demo")[1].startswith("simulation demo\n")

    def test_a_certificate_that_is_not_trusted_is_one_sentence(
        self, running: Running, others: Certificate, run: Run
    ) -> None:
        good = f"if it is your own, save its CA with: stead context add NAME --address {running.address} --ca FILE"
        SavedServices().add(SavedService("wrong", running.address, running.token, others.certificate))
        for address in (running.address, "wrong"):
            code, out, err = run("status", "--address", address)
            assert (code, out, err.count("\n")) == (1, "", 1)
            assert err.startswith(f"stead: the certificate of {running.address} is not trusted (")
            assert err.endswith(f"); {good}\n")

    def test_a_certificate_of_another_host_is_one_sentence(
        self, running: Running, ours: Certificate, run: Run, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        resolve = socket.getaddrinfo
        monkeypatch.setattr(socket, "getaddrinfo", lambda _, *rest: resolve("127.0.0.1", *rest))
        elsewhere = running.address.replace("127.0.0.1", "other.example.com")
        SavedServices().add(SavedService("other-host", elsewhere, running.token, ours.certificate))
        code, out, err = run("status", "--address", "other-host")
        assert (code, out, err.count("\n")) == (1, "", 1)
        assert "certificate is not valid for 'other.example.com'" in err

    def test_plain_http_is_not_answered(self, running: Running, run: Run) -> None:
        address = running.address.replace("https://", "http://")
        code, out, err = run("status", "--address", address)
        assert (code, out, err.count("\n")) == (1, "", 1)
        assert err.startswith(f"stead: the service at {address} does not answer (")

    def test_a_browser_gets_a_cookie_for_tls_only(self, running: Running, ours: Certificate) -> None:
        trusting = ssl.create_default_context(cafile=ours.certificate)
        opener = urllib.request.build_opener(NoRedirects, urllib.request.HTTPSHandler(context=trusting))
        body = f"token={running.token}".encode()
        headers = {"Origin": running.address, "Content-Type": "application/x-www-form-urlencoded"}
        request = urllib.request.Request(f"{running.address}/login", body, headers)
        with pytest.raises(urllib.error.HTTPError) as answer:
            opener.open(request, timeout=60)
        with answer.value as found:
            assert (found.code, "; Secure" in found.headers["Set-Cookie"]) == (303, True)


class NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: object) -> None:
        return None


def test_https_to_a_service_without_tls_is_one_sentence(run: Run, lone: Path) -> None:
    with simulated(Path(DEMO)) as desk, serving(desk) as served:
        address = served.url.replace("http://", "https://")
        code, out, err = run("status", "--address", address)
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert err.startswith(f"stead: the service at {address} does not answer over TLS (")
    assert err.endswith("; does it serve http:// only?\n")


class TestFilesThatCannotBeUsed:
    @pytest.fixture(autouse=True)
    def nothing_starts(self, lone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("stead.commands.serving._listening", lambda *_: pytest.fail("it listens already"))

    def refused(self, run: Run, *words: str) -> tuple[int, str]:
        code, out, err = run("serve", "--scenario", DEMO, "--port", "0", *words)
        assert (out, err.count("\n")) == ("", 1)
        return code, err.removeprefix("stead: ").rstrip("\n")

    @pytest.mark.parametrize("option", ["--tls-cert", "--tls-key"])
    def test_one_without_the_other(self, option: str, run: Run) -> None:
        good = "for example --tls-cert cert.pem --tls-key key.pem (see 'stead serve --help')"
        said = f"TLS needs a certificate and its key, {good}"
        assert self.refused(run, option, "x.pem") == (2, said)

    def test_a_missing_file(self, run: Run, ours: Certificate) -> None:
        said = "cannot be read: No such file or directory; give a file in PEM form"
        assert self.refused(run, "--tls-cert", "no.pem", "--tls-key", ours.key) == (1, f"--tls-cert no.pem {said}")
        assert self.refused(run, "--tls-cert", ours.certificate, "--tls-key", "no") == (1, f"--tls-key no {said}")

    @pytest.mark.skipif(os.geteuid() == 0, reason="root reads every file")
    def test_an_unreadable_file(self, run: Run, ours: Certificate, tmp_path: Path) -> None:
        (tmp_path / "key.pem").touch(mode=0)
        code, said = self.refused(run, "--tls-cert", ours.certificate, "--tls-key", str(tmp_path / "key.pem"))
        assert (code, "cannot be read: Permission denied" in said) == (1, True)

    def test_a_key_of_another_certificate(self, run: Run, ours: Certificate, others: Certificate) -> None:
        said = f"--tls-key {others.key} is not the key of --tls-cert {ours.certificate}; give a certificate and its key"
        assert self.refused(run, "--tls-cert", ours.certificate, "--tls-key", others.key) == (1, said)

    def test_a_file_that_is_not_pem(self, run: Run, ours: Certificate) -> None:
        code, said = self.refused(run, "--tls-cert", DEMO, "--tls-key", ours.key)
        assert (code, said.startswith(f"--tls-cert {DEMO} and --tls-key {ours.key} cannot be used; ")) == (1, True)

    def test_a_key_with_a_password_is_refused_without_a_prompt(self, run: Run, folder: Path) -> None:
        locked = made(folder, "locked", "-passout", "pass:secret")
        code, said = self.refused(run, *locked.words)
        assert (code, said.endswith("in PEM form, the key without a password")) == (1, True)
