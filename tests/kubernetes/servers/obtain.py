"""Where the kube-apiserver and the etcd of the tests come from: this machine, a cache, or Debian's packages.

No package holds a kube-apiserver, so `obtain` builds it from Debian's source package once and keeps it in the cache:
`$STEAD_CACHE`, or ~/.cache/stead.

Rule: nothing under /etc/apt changes, no service is started, and no host is named. The source comes from where the
machine gets its packages.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

Progress = Callable[[str], None]

TOOLS = ("golang-go", "jq", "rsync", "make", "dpkg-dev", "golang-github-modern-go-reflect2-dev")
"""The packages a build needs. None of them has a service."""

REFLECT2 = Path("/usr/share/gocode/src/github.com/modern-go/reflect2")
PROGRESS_SECONDS = 15.0
APT_QUIETLY = {"DEBIAN_FRONTEND": "noninteractive"}


class Unavailable(Exception):
    """There is no server here and none can be built; the text says why in one sentence."""


def cache_folder() -> Path:
    return Path(os.environ.get("STEAD_CACHE") or Path.home() / ".cache" / "stead")


def find() -> Path | None:
    """The kube-apiserver of `$KUBE_APISERVER`, else the newest one in the cache. It does not build one."""
    return _named("KUBE_APISERVER") or _newest("kube-apiserver")


def find_etcd() -> Path | None:
    """The etcd of `$ETCD`, else the machine's own, else the one in the cache."""
    installed = shutil.which("etcd")
    return _named("ETCD") or (Path(installed) if installed else None) or _newest("etcd")


def missing() -> str | None:
    """Why no real server can be started here, in one line; None if it can."""
    lacking = [name for name, path in (("kube-apiserver", find()), ("etcd", find_etcd())) if path is None]
    lacking += [tool for tool in ("openssl", "setpriv") if shutil.which(tool) is None]
    if not lacking:
        return None
    return f"{' and '.join(lacking)} not found; run: python -m tests.kubernetes.servers.real obtain"


def obtain(progress: Progress) -> Path:
    """The path of kube-apiserver, built if necessary. It also provides etcd. Raises `Unavailable`."""
    cache = cache_folder()
    cache.mkdir(parents=True, exist_ok=True)
    with _alone(cache / "obtain.lock", progress):
        for left in [*cache.glob(".build-*"), *cache.glob(".etcd-*")]:  # by a process that was killed
            shutil.rmtree(left, ignore_errors=True)
        if find_etcd() is None:
            _unpack_etcd(cache, _Steps(progress, cache / "etcd.log"))
        return find() or _build(cache, _Steps(progress, cache / "kube-apiserver-build.log"))


def _named(variable: str) -> Path | None:
    value = os.environ.get(variable)
    if not value:
        return None
    path = Path(value)
    if not os.access(path, os.X_OK):
        raise Unavailable(f"${variable} is {value}, which is not a program")
    return path


def _newest(program: str) -> Path | None:
    found = [path for path in cache_folder().glob(f"{program}-*/{program}") if os.access(path, os.X_OK)]
    return max(found, key=lambda path: [int(part) for part in re.findall(r"\d+", path.parent.name)], default=None)


@contextmanager
def _alone(path: Path, progress: Progress) -> Iterator[None]:
    """Only one process builds at a time. The lock is free again when its owner ends, however it ends."""
    with path.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress("another process is obtaining the server; waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


class _Steps:
    """Runs the commands of a build one after the other, with a line of progress every few seconds."""

    def __init__(self, progress: Progress, log: Path) -> None:
        self._progress = progress
        self._log = log
        self._began = time.monotonic()
        log.unlink(missing_ok=True)

    def say(self, text: str) -> None:
        self._progress(f"[{time.monotonic() - self._began:4.0f} s] {text}")

    def run(
        self, name: str, words: Sequence[str], cwd: Path, env: Mapping[str, str] | None = None, check: bool = True
    ) -> None:
        self.say(name)
        with self._log.open("ab") as log:
            process = subprocess.Popen(
                words, cwd=cwd, env={**os.environ, **(env or {})}, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        try:
            while _is_running(process):
                self.say(f"{name}: still running")
        except BaseException:
            process.terminate()
            process.wait()
            raise
        if check and process.returncode:
            raise Unavailable(f"{name}: {words[0]} failed ({self._last_line()}); the log is {self._log}")

    def _last_line(self) -> str:
        lines = self._log.read_text(encoding="utf-8", errors="replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "no output")


def _is_running(process: subprocess.Popen[bytes]) -> bool:
    """Whether it still runs after a few seconds."""
    try:
        process.wait(PROGRESS_SECONDS)
    except subprocess.TimeoutExpired:
        return True
    return False


def _unpack_etcd(cache: Path, steps: _Steps) -> None:
    """Take the program out of Debian's package instead of installing it: an installed package starts a service."""
    _need("apt-get", "dpkg-deb")
    with tempfile.TemporaryDirectory(prefix=".etcd-", dir=cache) as name:
        folder = Path(name)
        options = _private_apt(folder, "deb")
        steps.run("reading the list of packages", ["apt-get", *options, "update", "-qq"], folder, check=False)
        steps.run("downloading etcd-server", ["apt-get", *options, "download", "-qq", "etcd-server"], folder)
        package = next(folder.glob("etcd-server_*.deb"))
        steps.run("unpacking etcd-server", ["dpkg-deb", "-x", str(package), "unpacked"], folder)
        version = package.name.split("_")[1].partition("-")[0]
        _keep(folder / "unpacked" / "usr" / "bin" / "etcd", cache / f"etcd-{version}")


def _build(cache: Path, steps: _Steps) -> Path:
    """Build kube-apiserver the way Debian does and put it into the cache."""
    _install_tools(steps)
    with tempfile.TemporaryDirectory(prefix=".build-", dir=cache, ignore_cleanup_errors=True) as name:
        folder = Path(name)
        options = _private_apt(folder, "deb-src")
        steps.run("reading the list of source packages", ["apt-get", *options, "update", "-qq"], folder, check=False)
        steps.run("downloading the source of kubernetes", ["apt-get", *options, "source", "-qq", "kubernetes"], folder)
        source = next(path for path in folder.glob("kubernetes-*") if path.is_dir())
        steps.run(
            "building kube-apiserver (about 4 minutes on 2 cores)",
            ["nice", "-n", "10", "make", "WHAT=cmd/kube-apiserver", f"KUBE_BUILD_PLATFORMS=linux/{_architecture()}"],
            _go_tree(source),
            {"GOPATH": str(source / ".go"), "GO111MODULE": "off", "GOFLAGS": "", "HOME": name, "PWD": str(source)},
        )
        program = (source / "_output" / "bin").resolve() / "kube-apiserver"
        printed = subprocess.run([program, "--version"], check=True, capture_output=True, text=True).stdout
        version = printed.split()[-1].removeprefix("v")
        kept = _keep(program, cache / f"kube-apiserver-{version}")
    steps.say(f"kube-apiserver {version} is ready")
    return kept


def _install_tools(steps: _Steps) -> None:
    _need("apt-get", "dpkg-query")
    wanted = [package for package in TOOLS if not _is_installed(package)]
    if not wanted:
        return
    if os.geteuid() != 0:
        raise Unavailable(
            f"building kube-apiserver needs the packages {', '.join(wanted)}, and only root can install them"
        )
    root = Path("/")
    steps.run("reading the list of packages", ["apt-get", "update", "-qq"], root, APT_QUIETLY, check=False)
    words = ["apt-get", "install", "-qq", "-y", "--no-install-recommends", *wanted]
    steps.run(f"installing {', '.join(wanted)}", words, root, APT_QUIETLY)


def _need(*programs: str) -> None:
    lacking = [program for program in programs if shutil.which(program) is None]
    if lacking:
        raise Unavailable(
            f"kube-apiserver is built from Debian's packages, and this machine has no {' or '.join(lacking)}"
        )


def _is_installed(package: str) -> bool:
    words = ["dpkg-query", "--show", "--showformat=${db:Status-Status}", package]
    return subprocess.run(words, check=False, capture_output=True, text=True).stdout == "installed"


def _architecture() -> str:
    return subprocess.run(["go", "env", "GOARCH"], check=True, capture_output=True, text=True).stdout.strip()


def _go_tree(source: Path) -> Path:
    """Where make runs: the source at the place Go expects, with a reflect2 that works with Debian's Go.

    The server built with the vendored reflect2 crashes at its first POST.
    """
    vendored = source / "vendor" / "github.com" / "modern-go" / "reflect2"
    shutil.rmtree(vendored, ignore_errors=True)
    shutil.copytree(REFLECT2, vendored)
    link = source / ".go" / "src" / "k8s.io" / "kubernetes"
    link.parent.mkdir(parents=True)
    link.symlink_to(source)
    return link


def _keep(program: Path, folder: Path) -> Path:
    """Move a program into its folder of the cache. Others see it complete or not at all."""
    folder.mkdir(exist_ok=True)
    part = folder / f".{program.name}.part"
    shutil.copyfile(program, part)
    part.chmod(0o755)
    return part.rename(folder / program.name)


def _private_apt(folder: Path, kind: str, machine: Path = Path("/etc/apt")) -> list[str]:
    """Options for apt-get: the machine's own sources as this kind, and everything it writes goes into `folder`."""
    parts = folder / "parts"
    for name in (parts, folder / "lists" / "partial", folder / "cache" / "archives" / "partial"):
        name.mkdir(parents=True)
    for path in [machine / "sources.list", *sorted((machine / "sources.list.d").glob("*"))]:
        if path.suffix in {".list", ".sources"} and path.is_file():
            convert = deb822_sources if path.suffix == ".sources" else one_line_sources
            (parts / path.name).write_text(convert(path.read_text(encoding="utf-8"), kind), encoding="utf-8")
    settings = {
        "Dir::Etc::sourcelist": "/dev/null",
        "Dir::Etc::sourceparts": str(parts),
        "Dir::State::lists": str(folder / "lists"),
        "Dir::Cache": str(folder / "cache"),
        "APT::Sandbox::User": "root",
    }
    return [word for name, value in settings.items() for word in ("-o", f"{name}={value}")]


def deb822_sources(text: str, kind: str) -> str:
    """A .sources file with every stanza of this kind: `deb` or `deb-src`."""
    return re.sub(r"^Types:.*$", f"Types: {kind}", text, flags=re.MULTILINE | re.IGNORECASE)


def one_line_sources(text: str, kind: str) -> str:
    """The lines of a .list file, each once and of this kind: `deb` or `deb-src`."""
    found = re.findall(r"^[ \t]*deb(?:-src)?[ \t]+(.*\S)", text, flags=re.MULTILINE)
    return "".join(f"{kind} {rest}\n" for rest in dict.fromkeys(found))
