"""`stead scheduler` as a process of its own, and what a test may do to it: stop, kill, pause, read its pages and log.

Rule: nothing here waits for a fixed time. Every wait is for a condition, with a limit that a busy machine does not
reach, and its error shows the end of the scheduler's log.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

T = TypeVar("T")

STEAD = Path(sys.executable).parent / "stead"

WAIT_SECONDS_MAX = 60.0
"""The limit of every wait: only a scheduler that does not make progress reaches it."""

POLL_SECONDS = 0.02

KEY_AND_VALUE = re.compile(r'(\w+)=("(?:[^"\\]|\\.)*"|\S*)')
SAMPLE = re.compile(r"([a-z_]+(?:\{[^}]*\})?) (\S+)")


def wait_until(condition: Callable[[], T], what: str, timeout_s: float = WAIT_SECONDS_MAX) -> T:
    """Ask again and again until the answer is true, and return it."""
    deadline, pause = time.monotonic() + timeout_s, threading.Event()
    while not (answer := condition()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: still {answer!r} after {timeout_s:g} s")
        pause.wait(POLL_SECONDS)
    return answer


class RunningScheduler:
    """One process of `stead scheduler`, from `start` to `stop` or `kill`. Leaving the `with` block ends it in any case.

    Args:
        kubeconfig: The kubeconfig file of the API server.
        log: The file that receives its log.
        user: The user, and so the context of the kubeconfig file, as which it calls the API server.
        options: More words of its command line.
    """

    def __init__(self, kubeconfig: Path, log: Path, user: str, *options: str) -> None:
        self.log = log
        self.user = user
        self._words = [str(STEAD), "scheduler", "--kubeconfig", str(kubeconfig), "--context", user]
        self._words += ["--listen", "127.0.0.1:0", *options]
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
        if self._process is not None:
            self._process.wait()

    # -- the life of the process

    def start(self) -> Self:
        """Start it, and return when it serves its pages. It may be started again after its end, with a new log."""
        self.launch()
        self._wait(lambda: self._port or self.has_ended, "the address of its pages")
        assert self._port, f"it ended with {self._running.returncode}: {self.text}"
        return self

    def launch(self) -> None:
        """Start it, and return at once."""
        self.log.unlink(missing_ok=True)
        with self.log.open("ab") as output:
            self._process = subprocess.Popen(
                self._words, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=dict(os.environ)
            )

    def stop(self, how: signal.Signals = signal.SIGTERM) -> int:
        """Ask it to end, and return its exit code."""
        self.send_signal(how)
        return self.wait()

    def send_signal(self, which: signal.Signals) -> None:
        self._running.send_signal(which)

    def wait(self) -> int:
        """Wait for its end, and return its exit code."""
        return self._running.wait(WAIT_SECONDS_MAX)

    def kill(self) -> None:
        """End it without any warning: kill -9."""
        self._running.kill()
        self._running.wait()

    def pause(self) -> None:
        """Stop it where it is, and return when it is stopped."""
        self._running.send_signal(signal.SIGSTOP)
        self._wait(lambda: self._state == "T", "the process to be stopped")

    def resume(self) -> None:
        self._running.send_signal(signal.SIGCONT)

    @property
    def has_ended(self) -> bool:
        return self._running.poll() is not None

    @property
    def _running(self) -> subprocess.Popen[bytes]:
        assert self._process is not None, "it was not started"
        return self._process

    @property
    def cpu_seconds(self) -> float:
        """The CPU time that it has used so far."""
        user, system = self._stat[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")

    @property
    def _state(self) -> str:
        """The state of the process as Linux shows it: R, S, T, ..."""
        return self._stat[0]

    @property
    def _stat(self) -> list[str]:
        """/proc/PID/stat without the first two fields, the id and the name."""
        return Path(f"/proc/{self._running.pid}/stat").read_text().rpartition(")")[2].split()

    # -- its log

    @property
    def text(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")

    @property
    def lines(self) -> list[dict[str, str]]:
        """The lines of its log, each as its keys and values."""
        return [
            {key: json.loads(value) if value.startswith('"') else value for key, value in KEY_AND_VALUE.findall(line)}
            for line in self.text.splitlines()
        ]

    def said(self, message: str) -> list[dict[str, str]]:
        """The lines with this message."""
        return [line for line in self.lines if line.get("msg") == message]

    def wait_for_line(self, message: str, count: int = 1) -> dict[str, str]:
        """Wait for a line with this message, or for several of them, and return the last of them."""
        self._wait(lambda: len(self.said(message)) >= count, f"the line {message!r}")
        return self.said(message)[count - 1]

    # -- its pages

    def ready(self) -> tuple[int, str]:
        return self.page("/readyz")

    def page(self, path: str, method: str = "GET") -> tuple[int, str]:
        """The status and the text of a page."""
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=WAIT_SECONDS_MAX)
        try:
            connection.request(method, path)
            response = connection.getresponse()
            return response.status, response.read().decode()
        finally:
            connection.close()

    def metrics(self) -> Mapping[str, float]:
        """The value of each sample: ``{'scheduler_pending_pods{queue="active"}': 3.0, ...}``."""
        lines = self.page("/metrics")[1].splitlines()
        return {found[1]: float(found[2]) for line in lines if (found := SAMPLE.fullmatch(line))}

    @property
    def _port(self) -> int:
        """The port of its pages, or 0 as long as the log does not name it."""
        lines = self.said("serving /healthz, /readyz and /metrics") if self.log.exists() else []
        return int(lines[0]["address"].rpartition(":")[2]) if lines else 0

    # -- waiting

    def wait_until_ready(self) -> Self:
        self._wait(lambda: self.ready()[0] == 200, "/readyz to answer 200")
        return self

    def wait_until_leading(self) -> Self:
        """Wait until it schedules. Without a Lease, this is when everything is listed."""
        sample = 'leader_election_master_status{name="stead"}'
        self._wait(lambda: self.metrics()[sample] == 1.0 and self.said("scheduling"), "it to lead")
        return self

    def wait_until_it_knows(self, nodes: int, pods: int) -> None:
        """Wait until it has seen that there are so many nodes and unfinished pods."""
        wanted = {"nodes": float(nodes), "pods": float(pods)}
        self._wait(lambda: self.known == wanted, f"it to know {wanted}")

    def wait_until_quiet(self) -> None:
        """Wait until no binding is queued or in flight, and no pod waits to be tried."""
        samples = (
            "stead_bindings_queued",
            'scheduler_scheduler_cache_size{type="assumed_pods"}',
            'scheduler_pending_pods{queue="active"}',
        )
        self._wait(lambda: not any(self.metrics()[name] for name in samples), "it to be quiet")

    @property
    def known(self) -> Mapping[str, float]:
        metrics = self.metrics()
        return {kind: metrics[f'scheduler_scheduler_cache_size{{type="{kind}"}}'] for kind in ("nodes", "pods")}

    def _wait(self, condition: Callable[[], Any], what: str) -> None:
        try:
            wait_until(condition, f"waiting for {what}")
        except TimeoutError as error:
            end = "\n".join(self.text.splitlines()[-20:])
            raise TimeoutError(f"{error}; the end of its log:\n{end}") from None
