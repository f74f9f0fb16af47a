"""Processes that a test starts itself with a command: ports for them, and cleaning up everything they started."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from contextlib import suppress
from pathlib import Path

from tests.on_ray.waiting import wait_for


def free_ports(count: int) -> list[int]:
    with_ports = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in with_ports]
    for each in with_ports:
        each.close()
    return ports


def answers(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


def processes_of(directory: Path) -> set[int]:
    """The processes that name the directory in their command line, or write to it, as workers do."""
    found = set()
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            words = (entry / "cmdline").read_bytes().decode(errors="replace")
            if str(directory) in words or str(directory) in os.readlink(entry / "fd" / "1"):
                found.add(int(entry.name))
    return found - {os.getpid()}


def end(head: subprocess.Popen[bytes], directory: Path) -> None:
    """End the head and its process group, and processes that the provider or a raylet moved to another group."""
    with suppress(ProcessLookupError):
        os.killpg(head.pid, signal.SIGKILL)
    head.wait()

    def is_empty() -> bool:
        left = processes_of(directory)
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return not left

    wait_for(is_empty, 60, f"the end of all processes of {directory}")
