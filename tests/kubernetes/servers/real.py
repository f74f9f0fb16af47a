"""A real kube-apiserver with its own etcd on this machine's loopback address, for the tests that are marked `kube`.

    with RealServer() as server:
        ... server.url, server.token, server.ca_file, server.kubeconfig_path ...

`python -m tests.kubernetes.servers.real obtain` builds the server once and prints its path.

Rule: everything a server writes is in its own temporary folder, and it ends only its own processes. They also end when
the process that started them dies.
"""

from __future__ import annotations

import base64
import http.client
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.kubernetes.servers.credentials import ADMIN, Credentials
from tests.kubernetes.servers.obtain import Unavailable, find, find_etcd, missing, obtain

__all__ = ["RealServer", "Unavailable", "find", "find_etcd", "missing", "obtain"]

START_SECONDS_MAX = 90.0
STOP_SECONDS_MAX = 5.0
POLL_SECONDS = 0.05
PORT_ATTEMPTS = 3


class RealServer:
    """A kube-apiserver and its etcd, from `with` to the end of the block.

    `users` maps names of more users to their groups. Authorization is RBAC, so a user without a role binding may do
    almost nothing. `flags` are added to the command line of kube-apiserver and override the flags of this class.
    """

    def __init__(self, users: Mapping[str, Sequence[str]] | None = None, flags: Sequence[str] = ()) -> None:
        self.credentials = Credentials(users)
        self._flags = tuple(flags)
        self._etcd: subprocess.Popen[bytes] | None = None
        self._apiserver: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        apiserver, etcd = find(), find_etcd()
        if apiserver is None or etcd is None:
            raise Unavailable(missing() or "there is no kube-apiserver here")
        self._apiserver_path, self._etcd_path = apiserver, etcd
        # A child with a parent-death signal dies with the *thread* that started it, so one thread starts them all and
        # lives as long as this server.
        self._starter = ThreadPoolExecutor(1, "real-server")
        self.folder = Path(tempfile.mkdtemp(prefix="stead-kube-"))
        self._data = _etcd_data_folder(etcd, self.folder)
        try:
            self._prepare()
            self._start_on_free_ports()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """End both processes at once and remove the folder. Nothing of the cluster is worth a graceful end."""
        for process in (self._apiserver, self._etcd):
            if process:
                process.kill()
                process.wait()
        self._apiserver = self._etcd = None
        self._starter.shutdown()
        for folder in (self._data, self.folder):
            shutil.rmtree(folder, ignore_errors=True)

    # What a client needs

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    @property
    def token(self) -> str:
        """The admin's."""
        return self.credentials.tokens[ADMIN]

    @property
    def tokens(self) -> Mapping[str, str]:
        """Each user's."""
        return self.credentials.tokens

    @property
    def ca_file(self) -> Path:
        return self.folder / "certificates" / "apiserver.crt"

    @property
    def kubeconfig_path(self) -> Path:
        return self.folder / "kubeconfig"

    @property
    def apiserver_log(self) -> Path:
        return self.folder / "kube-apiserver.log"

    @property
    def etcd_log(self) -> Path:
        return self.folder / "etcd.log"

    @property
    def process_ids(self) -> list[int]:
        return [process.pid for process in (self._etcd, self._apiserver) if process]

    # What a test does to it

    def stop_apiserver(self) -> None:
        """SIGTERM; after five seconds SIGKILL, since an open watch can delay its end by a minute."""
        self._end_apiserver(signal.SIGTERM)

    def kill_apiserver(self) -> None:
        """SIGKILL: clients see their connections reset."""
        self._end_apiserver(signal.SIGKILL)

    def start_apiserver(self) -> None:
        """Start it again on the same port and the same etcd, and wait until it is ready."""
        if self._apiserver:
            raise RuntimeError("the API server runs already")
        self._launch_apiserver()
        self._wait(self._is_ready, self._apiserver, self.apiserver_log)

    def restart_etcd(self) -> None:
        """Stop etcd, start it again with its data, and wait until the API server is ready again."""
        if self._etcd:
            _end(self._etcd, signal.SIGTERM)
        self._launch_etcd()
        self._wait(self._is_etcd_healthy, self._etcd, self.etcd_log)
        if self._apiserver:
            self._wait(self._is_ready, self._apiserver, self.apiserver_log)

    def compact(self, restart: bool = True) -> None:
        """Forget every version before the current one, so that old resourceVersions and `continue` tokens answer 410.

        kube-apiserver keeps recent events in memory and serves watches from there even when etcd has forgotten them.
        It is therefore restarted, which also ends the open watches. With `restart=False` only lists answer 410.
        """
        revision = int(self._ask_etcd("/v3/kv/range", {"key": _in_base64("compaction")})["header"]["revision"])
        self._ask_etcd("/v3/kv/compaction", {"revision": str(revision), "physical": True})
        if restart:
            self.kill_apiserver()
            self.start_apiserver()

    # How it runs

    def _prepare(self) -> None:
        self.credentials.write_token_file(self.folder / "tokens.csv")
        key, public = self.folder / "service-account.key", self.folder / "service-account.pub"
        for words in (["genrsa", "-out", str(key), "2048"], ["rsa", "-in", str(key), "-pubout", "-out", str(public)]):
            subprocess.run(["openssl", *words], check=True, capture_output=True)

    def _start_on_free_ports(self) -> None:
        """Another process can take a free port before we do; then try again with other ports."""
        for attempt in range(PORT_ATTEMPTS):
            self.port, self._client_port, self._peer_port = _free_ports(3)
            try:
                self._launch_etcd()
                self._wait(self._is_etcd_healthy, self._etcd, self.etcd_log)
                self.start_apiserver()
                self.credentials.write_kubeconfig(self.kubeconfig_path, self.url, self.ca_file)
                return
            except ProcessEnded:
                if attempt == PORT_ATTEMPTS - 1:
                    raise
                for process in (self._apiserver, self._etcd):
                    if process:
                        process.kill()
                        process.wait()
                self._apiserver = self._etcd = None
                shutil.rmtree(self._data, ignore_errors=True)

    def _launch_etcd(self) -> None:
        client, peer = f"http://127.0.0.1:{self._client_port}", f"http://127.0.0.1:{self._peer_port}"
        words = [str(self._etcd_path), "--name=test", f"--data-dir={self._data}"]
        words += [f"--listen-client-urls={client}", f"--advertise-client-urls={client}"]
        words += [f"--listen-peer-urls={peer}", f"--initial-advertise-peer-urls={peer}"]
        words += [f"--initial-cluster=test={peer}", "--logger=zap", "--log-level=warn"]
        if _can_skip_fsync(self._etcd_path):
            words.append("--unsafe-no-fsync")
        self._etcd = self._launch(words, self.etcd_log)

    def _launch_apiserver(self) -> None:
        key = self.folder / "service-account.key"
        words = [
            str(self._apiserver_path),
            f"--etcd-servers=http://127.0.0.1:{self._client_port}",
            "--etcd-compaction-interval=0",  # only `compact` compacts
            "--bind-address=127.0.0.1",
            "--advertise-address=127.0.0.1",
            f"--secure-port={self.port}",
            f"--cert-dir={self.ca_file.parent}",
            f"--token-auth-file={self.folder / 'tokens.csv'}",
            "--authorization-mode=RBAC",
            "--service-cluster-ip-range=10.96.0.0/16",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-signing-key-file={key}",
            f"--service-account-key-file={key.with_suffix('.pub')}",
            # Without controllers no service account is created, and no one removes the not-ready taint of a new node.
            "--disable-admission-plugins=ServiceAccount,TaintNodesByCondition,StorageObjectInUseProtection",
            "--endpoint-reconciler-type=none",
            *self._flags,
        ]
        self._apiserver = self._launch(words, self.apiserver_log)

    def _launch(self, words: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
        """setpriv rather than preexec_fn: running Python between fork and exec can hang when there are threads."""

        def start() -> subprocess.Popen[bytes]:
            with log.open("ab") as output:
                return subprocess.Popen(
                    ["setpriv", "--pdeathsig", "KILL", *words],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    cwd=self.folder,
                    env={"PATH": os.environ["PATH"], "HOME": str(self.folder), "ETCD_UNSUPPORTED_ARCH": "arm64"},
                )

        return self._starter.submit(start).result()

    def _end_apiserver(self, how: signal.Signals) -> None:
        if self._apiserver:
            _end(self._apiserver, how)
        self._apiserver = None

    def _wait(self, condition: Callable[[], bool], process: subprocess.Popen[bytes] | None, log: Path) -> None:
        deadline, pause = time.monotonic() + START_SECONDS_MAX, threading.Event()
        while not condition():
            if process and process.poll() is not None:
                raise ProcessEnded(f"{log.stem} ended with {process.returncode}: {_last_lines(log)}")
            if time.monotonic() > deadline:
                raise TimeoutError(f"{log.stem} is not ready after {START_SECONDS_MAX:.0f} s: {_last_lines(log)}")
            pause.wait(POLL_SECONDS)

    def _is_etcd_healthy(self) -> bool:
        try:
            self._ask_etcd("/v3/maintenance/status", {})
        except (OSError, http.client.HTTPException, ValueError):
            return False
        return True

    def _ask_etcd(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", self._client_port, timeout=5)
        try:
            connection.request("POST", path, json.dumps(body))
            response = connection.getresponse()
            answer = response.read()
        finally:
            connection.close()
        if response.status != 200:
            raise ValueError(f"etcd answers {response.status} to {path}: {answer.decode(errors='replace')}")
        return dict(json.loads(answer))

    def _is_ready(self) -> bool:
        """Ready, and the namespace `default` exists: the server creates it shortly after its start."""
        return all(self._answers(path) for path in ("/readyz", "/api/v1/namespaces/default"))

    def _answers(self, path: str) -> bool:
        if not self.ca_file.exists():
            return False
        try:
            trust = ssl.create_default_context(cafile=str(self.ca_file))
            connection = http.client.HTTPSConnection("127.0.0.1", self.port, timeout=5, context=trust)
            try:
                connection.request("GET", path, headers={"Authorization": f"Bearer {self.token}"})
                return connection.getresponse().status == 200
            finally:
                connection.close()
        except (OSError, http.client.HTTPException):
            return False


class ProcessEnded(RuntimeError):
    """A server process ended while it started."""


def _end(process: subprocess.Popen[bytes], how: signal.Signals) -> None:
    process.send_signal(how)
    try:
        process.wait(STOP_SECONDS_MAX)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _can_skip_fsync(etcd: Path) -> bool:
    return subprocess.run([etcd, "--unsafe-no-fsync", "--version"], check=False, capture_output=True).returncode == 0


def _etcd_data_folder(etcd: Path, folder: Path) -> Path:
    """In memory if this etcd waits for the disk after every write and the machine has such a place."""
    memory = Path("/dev/shm")
    if _can_skip_fsync(etcd) or not os.access(memory, os.W_OK):
        return folder / "etcd"
    return memory / folder.name


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [int(one.getsockname()[1]) for one in sockets]
    for one in sockets:
        one.close()
    return ports


def _in_base64(key: str) -> str:
    return base64.b64encode(key.encode()).decode()


def _last_lines(log: Path, count: int = 5) -> str:
    return "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-count:]) if log.exists() else ""


def main(words: Sequence[str]) -> int:
    """Build the server unless it is there, and print its path."""
    if list(words) != ["obtain"]:
        sys.stderr.write("usage: python -m tests.kubernetes.servers.real obtain\n")
        return 2

    def progress(line: str) -> None:
        sys.stderr.write(line + "\n")
        sys.stderr.flush()

    try:
        path = obtain(progress)
    except Unavailable as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write(f"{path}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
