"""The process that owns one launched node: it starts the raylet, and ends with it.

Rule: it holds the lock of the launch's folder for as long as it lives, so the lock tells whether the node lives, also
after a crash. It outlives the autoscaler. Its processes do not outlive it, and it does not outlive its raylet, which
ends when its head is gone.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from stead.ray.local.raylets import RayletEnded, agree_on_authentication, below, import_ray, kill, last_error, started

RECORD, PROCESS, JOINED, PROBLEM, ENDING = "record.json", "process", "joined", "problem", "ending"
"""The files of a launch: what was asked for, the id of the process that owns the node, the process id of the raylet
once it has joined, why it ended, and a mark that it is being ended."""

LOOKS_S = 0.2
STARTS_MAX = 3
LEAVES_S = 5.0
"""How long a raylet may take to leave its cluster before it is killed."""

NODE_ID = "RAY_OVERRIDE_NODE_ID_FOR_TESTING"
"""Ray reads the id of a node that starts from here, so that the record has it before the node exists."""

START = (
    "import os, sys; os.fork() and os._exit(0); "  # so that nobody has to wait for its end
    "from stead.ray.local.launched_node import start; start(sys.argv[1], sys.argv[2])"
)
KEEP = "import sys; from stead.ray.local.launched_node import keep; keep(*sys.argv[1:])"


def start(folder: str, lock: str) -> None:
    """Start the node of this folder. Then become a small process that waits for its end: it needs no Ray any more."""
    _write(folder, PROCESS, str(os.getpid()))
    signal.signal(signal.SIGTERM, lambda *_: _end(folder))
    os.set_inheritable(int(lock), False)
    record = json.loads((Path(folder) / RECORD).read_text(encoding="utf-8"))
    try:
        node = _started(record)
    except Exception as error:
        _end(folder, f"it did not start: {str(error).strip().splitlines()[0] if str(error).strip() else repr(error)}")
    raylet = node.all_processes["raylet"][0].process.pid
    _write(folder, JOINED, str(raylet))
    os.set_inheritable(int(lock), True)
    words = [folder, lock, str(raylet), record["session"], record["node"]]
    os.execv(sys.executable, [sys.executable, "-c", KEEP, *words])  # the raylet stays a child of this process


def keep(folder: str, lock: str, raylet: str, session: str, node: str) -> NoReturn:
    """Wait until the raylet ends, or until the files of its cluster are gone."""
    signal.signal(signal.SIGTERM, lambda *_: _leave(folder, int(raylet)))
    os.set_inheritable(int(lock), False)
    while os.path.isdir(session):
        with suppress(ChildProcessError):
            if os.waitpid(int(raylet), os.WNOHANG) == (0, 0):
                time.sleep(LOOKS_S)
                continue
        _end(folder, f"its raylet ended{last_error(os.path.dirname(session), node)}")
    _end(folder)


def _started(record: Mapping[str, Any]) -> Any:
    import_ray()
    agree_on_authentication()
    session = Path(record["session"])
    sockets = session / "sockets"
    for left in reversed(range(STARTS_MAX)):
        os.environ[NODE_ID] = record["node"]
        try:
            return started(
                record["spec"],
                str(session.parent),
                is_head=False,
                has_agent=record["has_agent"],
                before_raylet=lambda: os.environ.pop(NODE_ID, None),
                node_ip_address=record["ip"] or None,
                gcs_address=record["address"],
                temp_dir=str(session.parent),
                plasma_store_socket_name=str(sockets / f"{record['node'][:12]}.p"),
                raylet_socket_name=str(sockets / f"{record['node'][:12]}.r"),
                include_log_monitor=False,
            )
        except RayletEnded:
            if not left:
                raise
            kill(below(os.getpid()))
    raise AssertionError("unreachable")


def _leave(folder: str, raylet: int) -> NoReturn:
    """Let the raylet leave its cluster, so that the cluster knows at once that the node has ended, and not by missing
    heartbeats. Then end everything."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with suppress(ProcessLookupError, ChildProcessError):
        os.kill(raylet, signal.SIGTERM)
        until = time.monotonic() + LEAVES_S
        while time.monotonic() < until and os.waitpid(raylet, os.WNOHANG) == (0, 0):
            time.sleep(LOOKS_S / 10)
    _end(folder)


def _end(folder: str, problem: str = "") -> NoReturn:
    """End everything below this process, note why, and exit."""
    while doomed := below(os.getpid()):
        kill(doomed)
    with suppress(OSError):
        if problem:
            _write(folder, PROBLEM, problem)
    os._exit(0)


def _write(folder: str, name: str, text: str) -> None:
    """Write a file of a launch, whole or not at all."""
    path = Path(folder) / name
    unfinished = path.with_name(f"{name}.unfinished")
    unfinished.write_text(text, encoding="utf-8")
    unfinished.replace(path)
