"""Where the Kubernetes API server is, and how to authenticate there.

Rule: the official client is used only here, only to read kubeconfig files and service accounts and to run their
plugins, and it is imported only when `load` is called. A mistake in the configuration is an `Invalid`.
"""

from __future__ import annotations

import logging
import os
import shutil
import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from stead.errors import Invalid, Unsupported, did_you_mean
from stead.text import first_few

LOG = logging.getLogger("stead.kubernetes")

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where Kubernetes mounts a pod's token, certificates and namespace."""

KUBECONFIG = "~/.kube/config"
"""The kubeconfig file that is used when neither `kubeconfig` nor the variable KUBECONFIG names one."""

REFRESH_S = 60.0
"""How often a token is read again. A plugin runs again only if its token has expired or the server refuses it."""


class Credentials:
    """The `Authorization` header, kept current.

    `header` never blocks. `refresh` may block for seconds, because it may run a plugin: call it in a thread when
    `is_due`. If a refresh fails, the old header stays in use and the next refresh tries again.
    """

    def __init__(self, read: Callable[[bool], str] | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        """`read` returns the value of the header, or "" for none. Its argument is True if the server refused the last
        value."""
        self._read = read
        self._clock = clock
        self._lock = threading.Lock()
        self._due_at = float("inf")
        self.header = b""
        """The whole header line with its line end, or nothing."""
        if read is not None:
            self._take(read(False))

    @property
    def can_refresh(self) -> bool:
        """Whether there is anything to read again."""
        return self._read is not None

    def is_due(self) -> bool:
        """Whether to call `refresh` before the next request."""
        return self._clock() >= self._due_at

    def refresh(self, was_refused: bool = False) -> None:
        """Read the header again. This may block."""
        if self._read is None:
            return
        with self._lock:
            if not was_refused and not self.is_due():
                return  # another thread did it
            try:
                self._take(self._read(was_refused))
            except Exception as error:
                self._due_at = self._clock() + REFRESH_S
                LOG.warning("cannot refresh the credentials for the API server", extra={"error": str(error)})

    def _take(self, value: str) -> None:
        if not value.isprintable():
            raise Invalid(
                "the token for the API server contains a line break or control character; give it in one line"
            )
        self.header = f"Authorization: {value}\r\n".encode("latin-1") if value else b""
        self._due_at = self._clock() + REFRESH_S


@dataclass(frozen=True, slots=True)
class ApiConfig:
    """Where the API server is, and how to authenticate there."""

    host: str
    port: int
    tls: ssl.SSLContext | None = None
    server_name: str = ""
    """The name that the server's certificate must have, if that is not `host`."""
    path_prefix: str = ""
    """Precedes every path, for servers behind a proxy such as Rancher: ``/k8s/clusters/c-1``."""
    credentials: Credentials = field(default_factory=Credentials)
    namespace: str = "default"
    user_agent: str = "stead"
    title: str = ""
    """The name of the context in the kubeconfig file."""

    @property
    def address(self) -> str:
        """``10.0.0.1:6443``, for messages."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def load(kubeconfig: str | None = None, context: str | None = None, in_cluster: bool | None = None) -> ApiConfig:
    """Read the configuration.

    `kubeconfig` is one or more paths, separated as in the variable KUBECONFIG, which is the default, before
    ``~/.kube/config``. `context` is the current context of that file by default. `in_cluster` selects the pod's service
    account; by default it is used when there is no kubeconfig file.
    """
    if in_cluster and (kubeconfig or context):
        given = "kubeconfig" if kubeconfig else "context"
        raise Invalid(f"give either --in-cluster or --{given}: a service account has no kubeconfig file")
    if in_cluster:
        return _in_cluster()
    paths = kubeconfig or os.environ.get("KUBECONFIG") or KUBECONFIG
    exists = any(path and Path(os.path.expanduser(path)).exists() for path in paths.split(os.pathsep))
    if in_cluster is None and not exists and not kubeconfig and not context and _is_in_a_pod():
        return _in_cluster()
    if not exists:
        hint = "" if kubeconfig else ", and this process does not run in a pod with a service account"
        raise Invalid(
            f"there is no kubeconfig file {paths}{hint}; give one with --kubeconfig FILE or the variable KUBECONFIG"
        )
    return _from_kubeconfig(paths, context)


def _is_in_a_pod() -> bool:
    return bool(os.environ.get("KUBERNETES_SERVICE_HOST")) and (SERVICE_ACCOUNT / "token").exists()


def _user_agent() -> str:
    from stead import __version__

    return f"stead/{__version__}"


def _client_library() -> Any:
    try:
        import kubernetes.config.kube_config as library
    except ImportError as error:
        raise Unsupported(
            "a scheduler for Kubernetes needs the client library; install it with pip install 'stead[kubernetes]'"
        ) from error
    return library


def _in_cluster() -> ApiConfig:
    host, port = os.environ.get("KUBERNETES_SERVICE_HOST", ""), os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    if not host or not port.isdecimal():
        raise Invalid(
            "the variables KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT do not name the API server;"
            " Kubernetes sets them in every pod, for example to 10.96.0.1 and 443"
        )
    namespace = SERVICE_ACCOUNT / "namespace"
    return ApiConfig(
        host,
        int(port),
        tls=_tls(str(SERVICE_ACCOUNT / "ca.crt")),
        credentials=Credentials(_token_file(SERVICE_ACCOUNT / "token")),
        namespace=namespace.read_text(encoding="utf-8").strip() if namespace.exists() else "default",
        user_agent=_user_agent(),
    )


def _token_file(path: Path) -> Callable[[bool], str]:
    """Reads the token from a file, which Kubernetes replaces before the token expires."""

    def read(_was_refused: bool) -> str:
        try:
            token = path.read_text(encoding="utf-8").strip()
        except OSError as error:
            raise Invalid(f"cannot read the token file {path}: {error.strerror}; mount a service account") from error
        if not token:
            raise Invalid(f"the token file {path} is empty; mount a service account token there")
        return f"Bearer {token}"

    return read


def _from_kubeconfig(paths: str, context: str | None) -> ApiConfig:
    library = _client_library()
    from kubernetes.client import Configuration

    def loaded() -> tuple[Any, Any]:
        merger = library.KubeConfigMerger(paths)
        loader = library.KubeConfigLoader(
            merger.config, active_context=context, config_base_path=None, config_persister=merger.save_changes
        )
        configuration = Configuration()
        loader.load_and_set(configuration)
        return loader, configuration

    _check_files(paths)
    try:
        merged = library.KubeConfigMerger(paths).config
        _check(merged, paths, context)
        loader, configuration = loaded()
    except Invalid:
        raise
    except Exception as error:  # the library raises many kinds for a bad file
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise Invalid(f"the kubeconfig {paths} is not valid: {first}; check it with `kubectl config view`") from error

    users = {str(each.value["name"]): each for each in merged.value["users"]}
    node = users.get(str(loader.current_context["context"].get("user")))
    user, user_file = ((node.value.get("user") or {}), node.path) if node is not None else ({}, None)
    tls = _tls_of(configuration) if configuration.host.startswith("https") else None
    current = configuration

    def read(was_refused: bool) -> str:
        nonlocal current
        if was_refused:  # the library itself runs a plugin again only when its token has expired
            current = loaded()[1]
        elif current.refresh_api_key_hook is not None:
            current.refresh_api_key_hook(current)
        if tls is not None and current.cert_file:
            tls.load_cert_chain(current.cert_file, current.key_file)  # new connections use it
        return str(current.api_key.get("BearerToken", ""))

    if user.get("tokenFile") and not user.get("token") and "auth-provider" not in user:
        credentials = Credentials(_token_file(Path(user_file or "").parent / user["tokenFile"]))
    else:
        credentials = Credentials(read)
    _check_plugin(user, credentials, configuration, paths)
    server = urlsplit(configuration.host)
    if server.scheme not in ("http", "https") or not server.hostname:
        raise Invalid(f"the server {configuration.host!r} in {paths} is not a URL like 'https://10.0.0.1:6443'")
    return ApiConfig(
        server.hostname,
        server.port or (443 if server.scheme == "https" else 80),
        tls=tls,
        server_name=configuration.tls_server_name or "",
        path_prefix=server.path.rstrip("/"),
        credentials=credentials,
        namespace=loader.current_context["context"].get("namespace") or "default",
        user_agent=_user_agent(),
        title=str(loader.current_context["name"]),
    )


def _check_files(paths: str) -> None:
    """Refuse files that are not YAML, in better words than the library's."""
    import yaml

    for path in filter(None, paths.split(os.pathsep)):
        file = Path(os.path.expanduser(path))
        if not file.exists():
            continue  # the library ignores it too, as kubectl does
        advice = "give a file such as `kubectl config view --flatten` prints"
        try:
            found = yaml.safe_load(file.read_text(encoding="utf-8"))
        except OSError as error:
            raise Invalid(f"the kubeconfig {path} cannot be read: {error.strerror}; {advice}") from None
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            mark = getattr(error, "problem_mark", None)
            where = f" in line {mark.line + 1}" if mark is not None else ""
            raise Invalid(f"the kubeconfig {path} is not YAML{where}; {advice}") from None
        if found is None:
            raise Invalid(f"the kubeconfig {path} is empty; {advice}")
        if not isinstance(found, dict):
            raise Invalid(f"the kubeconfig {path} is not a kubeconfig file; {advice}")


def _check(config: Any, paths: str, context: str | None) -> None:
    """Refuse the common mistakes, in better words than the library's."""
    if config is None:
        raise Invalid(f"the kubeconfig {paths} is empty; check it with `kubectl config view`")
    names = [str(each.value["name"]) for each in config.value["contexts"]]
    name = context or config.value.get("current-context") or ""
    where = "; set one with `kubectl config use-context NAME`" if context is None else ""
    if not names:
        raise Invalid(f"the kubeconfig {paths} has no contexts; add one with `kubectl config set-context NAME`")
    if not name:
        raise Invalid(
            f"the kubeconfig {paths} has no current context; give one of {first_few(sorted(names), 10)}{where}"
        )
    if name not in names:
        hint = did_you_mean(name, names)
        raise Invalid(
            f"there is no context {name!r} in {paths}{hint}; known contexts are {first_few(sorted(names), 10)}"
        )
    found = next(each.value for each in config.value["contexts"] if each.value["name"] == name)
    chosen = found.get("context") or {}
    wanted = str(chosen.get("cluster") or "")
    clusters = {str(each.value["name"]): each.value.get("cluster") or {} for each in config.value["clusters"]}
    users = [str(each.value["name"]) for each in config.value["users"]]
    for kind, given, known in (("cluster", wanted, clusters), ("user", str(chosen.get("user") or ""), users)):
        if given not in known and (given or kind == "cluster"):
            raise Invalid(
                f"context {name!r} in {paths} names the {kind} {given!r}, which the file does not have"
                f"{did_you_mean(given, known)}; known {kind}s are {first_few(sorted(known), 10) or 'none'}"
            )
    if clusters[wanted].get("proxy-url"):
        raise Unsupported(
            f"the cluster {wanted!r} in {paths} has a `proxy-url`, which stead does not support;"
            " give the server an address that this machine reaches directly, like 'https://10.0.0.1:6443'"
        )


def _check_plugin(user: dict[str, Any], credentials: Credentials, configuration: Any, paths: str) -> None:
    """The library only logs that a plugin failed; without a token or certificate, every request would be refused."""
    if "exec" not in user or credentials.header or configuration.cert_file:
        return
    command = str(user["exec"].get("command", ""))
    if shutil.which(command) is None:
        raise Invalid(
            f"the plugin {command!r} of the kubeconfig {paths} is not installed; install it or add it to PATH"
        )
    raise Invalid(
        f"the plugin {command!r} of the kubeconfig {paths} gave neither a token nor a certificate;"
        f" run {' '.join([command, *map(str, user['exec'].get('args') or [])])!r} to see why"
    )


def _tls_of(configuration: Any) -> ssl.SSLContext:
    tls = _tls(configuration.ssl_ca_cert, is_verified=configuration.verify_ssl)
    if configuration.cert_file:
        try:
            tls.load_cert_chain(configuration.cert_file, configuration.key_file)
        except (OSError, ssl.SSLError) as error:
            raise Invalid(
                f"the client certificate {configuration.cert_file} or its key is not valid: {error};"
                " give a certificate and its key in PEM format"
            ) from error
    return tls


def _tls(certificates: str | None, is_verified: bool = True) -> ssl.SSLContext:
    """A TLS context that trusts these certificates, or by default those of this machine."""
    try:
        tls = ssl.create_default_context(cafile=certificates)
    except (OSError, ssl.SSLError) as error:
        raise Invalid(f"cannot read the certificates in {certificates}: {error}; give a file in PEM format") from error
    tls.verify_flags &= ~ssl.VERIFY_X509_STRICT  # many clusters' certificates lack what Python 3.13 demands
    tls.set_alpn_protocols(["http/1.1"])
    if not is_verified:
        LOG.warning("the certificate of the API server is not checked, as `insecure-skip-tls-verify` asks for")
        tls.check_hostname = False
        tls.verify_mode = ssl.CERT_NONE
    return tls
