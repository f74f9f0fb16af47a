"""Commands that keep running, as processes: they follow the cluster, and end at Ctrl-C."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

from tests.kubernetes.desk.conftest import Commands
from tests.kubernetes.objects import node, pod

CODE = "import sys; from stead.cli import main; sys.exit(main())"
SECONDS_MAX = 60.0


class Running:
    """A process, and the lines that it prints."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self._lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line.rstrip("\n"))

    def wait_for(self, text: str) -> str:
        """The next line with this text."""
        while text not in (line := self._lines.get(timeout=SECONDS_MAX)):
            pass
        return line

    def interrupted(self) -> tuple[int, str]:
        """The exit code after Ctrl-C, and what it printed on stderr."""
        self.process.send_signal(signal.SIGINT)
        code = self.process.wait(timeout=SECONDS_MAX)
        assert self.process.stderr is not None
        return code, self.process.stderr.read()


@contextmanager
def running(*words: str) -> Iterator[Running]:
    """The environment of the test leads it to the cluster."""
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, "-c", CODE, *words]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=environment, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            yield Running(process)
        finally:
            process.kill()


def test_a_list_is_printed_again_when_a_pod_is_created(stead: Commands) -> None:
    stead.cluster.create(node("a"), pod("first"))
    with running("work", "-A", "--watch", "-o", "name") as found:
        found.wait_for("default/first")
        stead.cluster.create(pod("second"))
        found.wait_for("default/second")
        stead.cluster.kubectl.bind("second", "a")
        assert found.interrupted() == (130, "\nstead: interrupted\n")


def test_new_events_are_printed_when_they_happen(stead: Commands) -> None:
    stead.cluster.create(node("a"), pod("first"))
    with running("events", "-A", "--follow") as found:
        stead.cluster.scheduler()
        found.wait_for("default/first: Successfully assigned default/first to a")
        stead.cluster.kubectl.patch("Node", "a", {"spec": {"unschedulable": True}})
        assert found.wait_for("drained").split()[2:4] == ["drained", "a:"]
        assert found.interrupted()[0] == 130


def test_a_service_is_started_and_ends_cleanly(stead: Commands) -> None:
    stead.fill()
    with running("serve", "--context", "admin", "--port", "0") as found:
        line = found.wait_for("kubernetes admin is served at ")
        with urllib.request.urlopen(f"{line.rpartition(' ')[2]}/asks/default%2Ftrain/why", timeout=60) as answer:
            assert json.load(answer)["text"].startswith("0/3 nodes are available")
        code, log = found.interrupted()
        assert (code, "Traceback" in log) == (0, False)
