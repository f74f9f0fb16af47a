"""Where the API server is and how to authenticate, from kubeconfig files and service accounts."""

from __future__ import annotations

import asyncio
import os
import ssl
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from stead import __version__
from stead.errors import Invalid, Unsupported
from stead.kubernetes.api import config as module
from stead.kubernetes.api.config import load
from stead.kubernetes.api.http import ApiClient
from tests.kubernetes.api.servers import Server, always, certificate, reply, tls_server


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No test reads the configuration of this machine."""
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(module, "SERVICE_ACCOUNT", tmp_path / "serviceaccount")


def kubeconfig(path: Path, user: dict[str, Any] | None = None, **changes: Any) -> str:
    """A kubeconfig file with the contexts production and staging."""
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "production",
        "clusters": [
            {"name": "big", "cluster": {"server": "https://10.0.0.1:6443"}},
            {"name": "small", "cluster": {"server": "http://localhost:8001/k8s/clusters/c-1/"}},
        ],
        "contexts": [
            {"name": "production", "context": {"cluster": "big", "user": "me", "namespace": "web"}},
            {"name": "staging", "context": {"cluster": "small", "user": "me"}},
        ],
        "users": [{"name": "me", "user": user if user is not None else {"token": "secret"}}],
        **changes,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(content), encoding="utf-8")
    return str(path)


def test_a_context_gives_the_server_its_namespace_and_the_token(tmp_path: Path) -> None:
    config = load(kubeconfig(tmp_path / "config"))
    assert (config.host, config.port, config.namespace) == ("10.0.0.1", 6443, "web")
    assert isinstance(config.tls, ssl.SSLContext) and config.tls.verify_mode == ssl.CERT_REQUIRED
    assert config.credentials.header == b"Authorization: Bearer secret\r\n"
    assert config.user_agent == f"stead/{__version__}"


def test_another_context_can_be_chosen(tmp_path: Path) -> None:
    config = load(kubeconfig(tmp_path / "config"), context="staging")
    assert (config.host, config.port, config.path_prefix) == ("localhost", 8001, "/k8s/clusters/c-1")
    assert (config.tls, config.namespace) == (None, "default")


def test_the_file_is_found_in_the_variable_and_then_at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kubeconfig(tmp_path / ".kube" / "config")
    assert load().namespace == "web"
    first = kubeconfig(tmp_path / "first", contexts=[])
    second = kubeconfig(tmp_path / "second")
    monkeypatch.setenv("KUBECONFIG", os.pathsep.join([first, second]))
    assert load(context="staging").host == "localhost"


MISTAKES: list[tuple[str, dict[str, Any], str | None, str]] = [
    ("an unknown context", {}, "stagin", r"there is no context 'stagin' in .* \(did you mean 'staging'\?\); known "),
    ("no current context", {"current-context": ""}, None, "has no current context; give one of production, staging"),
    ("no contexts", {"contexts": []}, None, "has no contexts; add one with `kubectl config set-context NAME`"),
    ("an unknown cluster", {"clusters": []}, None, "names the cluster 'big', which the file does not have"),
    ("an unknown user", {"users": []}, None, "names the user '.*', which the file does not have; known users are none"),
    (
        "a server that is no URL",
        {"clusters": [{"name": "big", "cluster": {"server": "10.0.0.1"}}]},
        None,
        "the server '10.0.0.1' in .* is not a URL like 'https://10.0.0.1:6443'",
    ),
    (
        "a proxy",
        {"clusters": [{"name": "big", "cluster": {"server": "https://x", "proxy-url": "http://p"}}]},
        None,
        "has a `proxy-url`, which stead does not support",
    ),
    (
        "certificates that are not there",
        {"clusters": [{"name": "big", "cluster": {"server": "https://x", "certificate-authority": "no.pem"}}]},
        None,
        "is not valid: File does not exist",
    ),
    (
        "certificates that are none",
        {"clusters": [{"name": "big", "cluster": {"server": "https://x", "certificate-authority-data": "eHk="}}]},
        None,
        "cannot read the certificates in .*; give a file in PEM format",
    ),
]


@pytest.mark.parametrize(("changes", "context", "words"), [row[1:] for row in MISTAKES], ids=[r[0] for r in MISTAKES])
def test_a_mistake_is_explained_in_one_sentence(
    tmp_path: Path, changes: dict[str, Any], context: str | None, words: str
) -> None:
    path = kubeconfig(tmp_path / "config", **changes)
    with pytest.raises(Invalid, match=words) as caught:
        load(path, context)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "is empty"),
        (b"hello", "is not a kubeconfig file; give a file such as"),
        (b"[1, 2]", "is not a kubeconfig file"),
        (b"a: 1\nfoo: [", "is not YAML in line 2; give a file such as"),
        (b"\xf4\x00", "is not YAML; give a file such as"),
        (b"a: 1", "has no contexts|is not valid"),
    ],
)
def test_a_file_that_is_no_kubeconfig_is_refused(tmp_path: Path, content: bytes, problem: str) -> None:
    path = tmp_path / "config"
    path.write_bytes(content)
    with pytest.raises(Invalid, match=f"the kubeconfig {path} ({problem})"):
        load(str(path))


def test_a_folder_is_no_kubeconfig(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="cannot be read: Is a directory"):
        load(str(tmp_path))


def test_no_file_and_no_service_account_is_explained() -> None:
    with pytest.raises(Invalid, match=r"there is no kubeconfig file ~/\.kube/config, and this process does not run in"):
        load()
    with pytest.raises(Invalid, match=r"there is no kubeconfig file /no/such; give one with --kubeconfig FILE"):
        load("/no/such")


def test_a_missing_client_library_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = kubeconfig(tmp_path / "config")
    monkeypatch.setitem(sys.modules, "kubernetes.config.kube_config", None)
    with pytest.raises(Unsupported, match=r"install it with pip install 'stead\[kubernetes\]'"):
        load(path)


def test_importing_the_package_needs_no_client_library() -> None:
    modules = "config http connection watching binding reporting leases".split()
    program = f"import sys, {', '.join(f'stead.kubernetes.api.{name}' for name in modules)}\n"
    subprocess.run([sys.executable, "-c", f"{program}assert 'kubernetes' not in sys.modules"], check=True)


def plugin(path: Path, program: str) -> dict[str, Any]:
    """A user with an exec plugin."""
    path.write_text(f"#!{sys.executable}\n{program}", encoding="utf-8")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    api = "client.authentication.k8s.io/v1"
    return {"exec": {"apiVersion": api, "command": str(path), "args": ["token"], "interactiveMode": "Never"}}


COUNTING = """
import json, pathlib
count = pathlib.Path(__file__).with_suffix(".count")
runs = int(count.read_text()) + 1 if count.exists() else 1
count.write_text(str(runs))
status = {"token": f"token-{runs}"}
print(json.dumps({"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": status}))
"""


def test_a_plugin_gives_the_token_and_runs_again_when_the_server_refuses_it(tmp_path: Path) -> None:
    config = load(kubeconfig(tmp_path / "config", plugin(tmp_path / "plugin", COUNTING)))
    assert config.credentials.header == b"Authorization: Bearer token-1\r\n"
    config.credentials.refresh()
    assert config.credentials.header == b"Authorization: Bearer token-1\r\n"
    config.credentials.refresh(was_refused=True)
    assert config.credentials.header == b"Authorization: Bearer token-2\r\n"


EXPIRING = COUNTING.replace('{runs}"}', '{runs}", "expirationTimestamp": "2020-01-01T00:00:00Z"}')


def test_a_token_that_has_expired_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = load(kubeconfig(tmp_path / "config", plugin(tmp_path / "plugin", EXPIRING)))
    before = config.credentials.header
    monkeypatch.setattr(config.credentials, "_due_at", 0.0)
    config.credentials.refresh()
    assert config.credentials.header not in (b"", before)


def test_a_plugin_that_fails_or_is_missing_is_named(tmp_path: Path) -> None:
    failing = plugin(tmp_path / "plugin", "raise SystemExit(3)")
    with pytest.raises(
        Invalid, match=r"plugin' of the kubeconfig .* gave neither a token nor a certificate; run '.* tok"
    ):
        load(kubeconfig(tmp_path / "config", failing))
    failing["exec"]["command"] = "no-such-plugin"
    with pytest.raises(Invalid, match=r"the plugin 'no-such-plugin' of the kubeconfig .* is not installed"):
        load(kubeconfig(tmp_path / "config", failing))


def test_a_token_file_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "token").write_text("one\n", encoding="utf-8")
    config = load(kubeconfig(tmp_path / "config", {"tokenFile": "token"}))
    assert config.credentials.header == b"Authorization: Bearer one\r\n"
    (tmp_path / "token").write_text("two\n", encoding="utf-8")
    monkeypatch.setattr(config.credentials, "_due_at", 0.0)
    config.credentials.refresh()
    assert config.credentials.header == b"Authorization: Bearer two\r\n"


class TestInAPod:
    @pytest.fixture(autouse=True)
    def in_a_pod(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        folder = tmp_path / "serviceaccount"
        folder.mkdir()
        certificate(folder)[0].rename(folder / "ca.crt")
        (folder / "token").write_text("pod-token", encoding="utf-8")
        (folder / "namespace").write_text("scheduling\n", encoding="utf-8")
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
        monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")

    def test_the_service_account_is_used_when_there_is_no_kubeconfig(self, tmp_path: Path) -> None:
        config = load()
        assert (config.host, config.port, config.address) == ("fd00::1", 443, "[fd00::1]:443")
        assert config.namespace == "scheduling"
        assert config.credentials.header == b"Authorization: Bearer pod-token\r\n"
        assert config.tls is not None
        kubeconfig(tmp_path / ".kube" / "config")
        assert load().host == "10.0.0.1"
        assert load(in_cluster=True).host == "fd00::1"

    def test_a_token_that_was_replaced_is_read_again(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        credentials = load().credentials
        (tmp_path / "serviceaccount" / "token").write_text("newer", encoding="utf-8")
        monkeypatch.setattr(credentials, "_due_at", 0.0)
        credentials.refresh()
        assert credentials.header == b"Authorization: Bearer newer\r\n"

    def test_a_file_that_is_named_is_not_replaced_by_the_service_account(self) -> None:
        with pytest.raises(Invalid, match="there is no kubeconfig file /no/such"):
            load("/no/such")
        with pytest.raises(Invalid, match="give either --in-cluster or --kubeconfig"):
            load("/no/such", in_cluster=True)

    def test_what_is_missing_is_named(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "serviceaccount" / "token").write_text("", encoding="utf-8")
        with pytest.raises(Invalid, match="token is empty"):
            load()
        (tmp_path / "serviceaccount" / "token").unlink()
        with pytest.raises(Invalid, match="cannot read the token file"):
            load(in_cluster=True)
        (tmp_path / "serviceaccount" / "ca.crt").unlink()
        with pytest.raises(Invalid, match="cannot read the certificates"):
            load(in_cluster=True)
        monkeypatch.delenv("KUBERNETES_SERVICE_HOST")
        with pytest.raises(Invalid, match="KUBERNETES_SERVICE_HOST"):
            load(in_cluster=True)


@pytest.mark.parametrize("is_verified", [True, False])
def test_a_client_certificate_from_a_kubeconfig_is_presented(tmp_path: Path, is_verified: bool) -> None:
    public, private = certificate(tmp_path)
    server_side = tls_server(public, private)
    server_side.load_verify_locations(public)
    server_side.verify_mode = ssl.CERT_REQUIRED

    async def main() -> None:
        async with Server(always(reply(200, b"welcome")), tls=server_side) as server:
            cluster: dict[str, Any] = {"server": f"https://127.0.0.1:{server.port}"}
            trust = {"certificate-authority": str(public)} if is_verified else {"insecure-skip-tls-verify": True}
            user = {"client-certificate": public.name, "client-key": private.name}
            path = kubeconfig(tmp_path / "config", user, clusters=[{"name": "big", "cluster": cluster | trust}])
            client = ApiClient(load(path))
            assert (await client.request("GET", "/version")).body == b"welcome"
            await client.close()

    asyncio.run(main())
