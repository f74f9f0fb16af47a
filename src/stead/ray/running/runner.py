"""Runs one command on a node: an actor that the engine places, with the resources of the piece.

Rule: the command is a process in a session of its own, and gets SIGTERM before SIGKILL. It does not outlive the actor.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import ray

from stead.ray.running import command_process
from stead.ray.running.command_process import END, KILL

GRACE_S = 5.0
"""The time between SIGTERM and SIGKILL."""

SEND_S = 0.1
"""How long lines are collected before they are sent."""

LINE_MAX = 16_384
"""The longest line, in bytes; longer ones are divided."""

LINES_MAX = 1_000
"""How many lines are sent in one call."""


class Runner:
    """Runs `arguments`. `supervisor` gets the lines that the command prints."""

    def __init__(self, id: str, arguments: Sequence[str], env: Mapping[str, str], supervisor: Any) -> None:
        self._id, self._supervisor = id, supervisor
        self._arguments = list(arguments)
        self._env = {**os.environ, "RAY_ADDRESS": ray.get_runtime_context().gcs_address, **env}
        self._process: subprocess.Popen[bytes] | None = None
        self._is_stopped = False
        self._lines: list[str] = []
        self._changed = threading.Condition()

    def run(self) -> int:
        """Run the command and return its exit status; 128 and the number of the signal if one ended it."""
        ray.get(self._supervisor.started.remote(self._id, ray.get_runtime_context().get_node_id()))
        sender = threading.Thread(target=self._send, daemon=True)
        sender.start()
        code = self._run()
        with self._changed:
            self._is_stopped = True
            self._changed.notify_all()
        sender.join()
        return code

    def stop(self) -> None:
        """SIGTERM now, and SIGKILL after a while."""
        self._is_stopped = True
        for number in (END, KILL):
            if self._process is None or self._process.poll() is not None:
                return
            self._process.send_signal(number)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(GRACE_S)

    def _run(self) -> int:
        if self._is_stopped:
            return 128 + END
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", command_process.__file__, str(os.getpid()), *self._arguments],
            env=self._env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        assert self._process.stdout is not None
        while line := self._process.stdout.readline(LINE_MAX):
            self._print(line.decode("utf-8", "replace").rstrip("\r\n"))
        return self._process.wait()

    def _print(self, line: str) -> None:
        """Also to the log of this actor, which `ray logs` shows."""
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()
        with self._changed:
            self._changed.wait_for(lambda: len(self._lines) < LINES_MAX)
            self._lines.append(line)
            self._changed.notify_all()

    def _send(self) -> None:
        """Send the lines in order, many in one call, until the command has ended."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._lines or self._is_stopped)
                self._changed.wait_for(lambda: self._is_stopped, SEND_S)
                lines, self._lines = self._lines, []
                is_last = self._is_stopped and not lines
                self._changed.notify_all()
            if is_last and self._process_has_ended():
                return
            if lines:
                ray.get(self._supervisor.printed.remote(self._id, lines))

    def _process_has_ended(self) -> bool:
        return self._process is None or self._process.returncode is not None
