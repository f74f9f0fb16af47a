"""The supervisor: the process that owns all Ray processes of one local cluster.

Rule: its processes do not outlive it, and it does not outlive its owner. It stops everything when its pipe closes, when
its owner is gone, or on a signal. If it is killed itself, the kernel kills the raylets, and their workers exit. Only on
Linux, because it needs that kernel feature.
"""

from __future__ import annotations

import ctypes
import json
import os
import queue
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from stead.ray.local.raylets import RayletEnded, agree_on_authentication, below, import_ray, kill, raylet_of, started

NODE_ADDRESS = "127.0.0.1"
"""The only address with which Ray listens only on loopback. With 127.0.0.2 it listens on every interface."""

ATTACH_HOST = "LOCALHOST"
"""The same address for drivers, spelled so that `ray.init` does not change it: it replaces 127.0.0.1 and localhost with
the public address of this machine, where nothing listens."""

NODE_ADDRESS_WITH_DASHBOARD = "127.0.0.2"
"""The dashboard is itself a driver with that problem, and submitting a job would hang. So a cluster with a dashboard
listens on every interface, like any cluster of `ray start`. RAY_AUTH_MODE=token protects it."""

END_SECONDS_MAX = 30.0
STARTS_MAX = 3
"""How often a node is started before it counts as failed."""


def supervise(directory: str, owner: int) -> None:
    """Serve one owner until it ends, then stop everything."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    supervisor = _Supervisor(directory)
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, lambda *_: supervisor.end())
    requests: queue.Queue[str] = queue.Queue()
    threading.Thread(target=_read_requests, args=(requests, supervisor), daemon=True).start()
    threading.Thread(target=_watch_owner, args=(owner, supervisor), daemon=True).start()
    while True:
        request = json.loads(requests.get())
        try:
            answer = supervisor.answer(request)
        except Exception as error:
            words = str(error).strip().split("\n")[0]
            answer = {"error": f"{type(error).__name__}: {words}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def _read_requests(requests: queue.Queue[str], supervisor: _Supervisor) -> None:
    for line in sys.stdin:
        requests.put(line)
    supervisor.end()


def _watch_owner(owner: int, supervisor: _Supervisor) -> None:
    """The pipe usually closes when the owner ends, but a child that it forked may hold the pipe open."""
    while os.getppid() == owner:
        time.sleep(0.5)
    supervisor.end()


class _Supervisor:
    """Starts and stops the Ray processes of one cluster."""

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self.nodes: list[Any] = []
        self.options: dict[str, Any] = {}
        self.head: Mapping[str, Any] = {}
        self.ending = threading.Lock()
        # Adopt orphans instead of init: an agent whose raylet was killed lives on for a while.
        pr_set_child_subreaper = 36
        ctypes.CDLL(None, use_errno=True).prctl(pr_set_child_subreaper, 1, 0, 0, 0)

    def answer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        match request["do"]:
            case "start":
                return self.start(request)
            case "kill":
                return self.kill(request["index"])
            case "kill head":
                return self.kill_head(request["only_gcs"])
            case "restart head":
                return self.restart_head()
        raise AssertionError(f"unknown request {request['do']!r}")

    def start(self, request: Mapping[str, Any]) -> dict[str, Any]:
        first = len(self.nodes)
        if not first:
            self.options, self.head = request["options"], request["nodes"][0]
            import_ray()
            agree_on_authentication()
        places: list[Any] = [None] * len(request["nodes"])
        self.nodes += places
        started = []
        for index, written in enumerate(request["nodes"], first):
            started.append(self._begin(index, partial(self._started, index, written)))
            if index == 0:
                self._finish(0, started[0])
        for index, done in enumerate(started, first):
            self._finish(index, done)
        return self._nodes_from(first)

    def _nodes_from(self, first: int) -> dict[str, Any]:
        """What the owner needs to know about the nodes, starting with this one."""
        head = self.nodes[0]
        address = head.gcs_address.replace(f"{NODE_ADDRESS}:", f"{ATTACH_HOST}:")
        # Jobs that are submitted to the cluster read here which address "auto" means.
        import_module("ray._private.utils").write_ray_address(address, self.directory)
        return {
            "address": address,
            "dashboard": f"http://{head.webui_url}" if self.options["dashboard"] and head.webui_url else None,
            "nodes": [{"node_id": node.node_id, "raylet_pid": raylet_of(node).pid} for node in self.nodes[first:]],
        }

    def _begin(self, index: int, start: Callable[[], Any]) -> threading.Event:
        """Start processes of a node in a separate thread. The kernel kills them when the thread that started them ends,
        so it never ends."""
        done = threading.Event()

        def start_and_stay() -> None:
            try:
                self.nodes[index] = start()
            except Exception as error:
                self.nodes[index] = error
            done.set()
            threading.Event().wait()

        threading.Thread(target=start_and_stay, daemon=True).start()
        return done

    def _finish(self, index: int, done: threading.Event) -> None:
        done.wait()
        if isinstance(self.nodes[index], Exception):
            raise self.nodes[index]

    def _started(self, index: int, written: Mapping[str, Any]) -> Any:
        """Start a node, again if its raylet ends at once: Ray chooses ports before its processes listen on them, so
        another cluster on this machine may take one in between."""
        for left in reversed(range(STARTS_MAX)):
            try:
                return self._node(index, written)
            except RayletEnded:
                if not left:
                    raise
                if index == 0:
                    kill(below(os.getpid()))
        raise AssertionError("unreachable")

    def _node(self, index: int, written: Mapping[str, Any], gcs_port: int | None = None) -> Any:
        with_dashboard, is_head = self.options["dashboard"], index == 0
        # Choose the names here: Ray looks for free names, and two nodes that start at once would find the same one.
        sockets = [f"{self.directory}/{kind}.{index}" for kind in ("plasma", "raylet")]
        for path in sockets:
            Path(path).unlink(missing_ok=True)  # left by a killed head
        return started(
            written,
            self.directory,
            is_head,
            has_agent=with_dashboard,
            node_ip_address=NODE_ADDRESS_WITH_DASHBOARD if with_dashboard else NODE_ADDRESS,
            temp_dir=self.directory,
            plasma_store_socket_name=sockets[0],
            raylet_socket_name=sockets[1],
            include_dashboard=with_dashboard,
            include_log_monitor=is_head,
            no_monitor=not self.options["monitor"],
            gcs_address=None if is_head else self.nodes[0].gcs_address,
            gcs_server_port=gcs_port,
            _system_config=self.options["config"] if is_head else None,
        )

    def kill(self, index: int) -> dict[str, Any]:
        raylet = raylet_of(self.nodes[index])
        # Stop it first, so that it starts no worker between listing its children and killing them.
        raylet.send_signal(signal.SIGSTOP)
        doomed = below(raylet.pid)
        raylet.kill()
        kill(doomed)
        raylet.wait()
        return {}

    def kill_head(self, only_gcs: bool) -> dict[str, Any]:
        head = self.nodes[0]
        head.kill_gcs_server(check_alive=False)  # first, so that it does not record the raylet's death
        if not only_gcs:
            self.kill(0)
            for kind in list(head.all_processes):
                head._kill_process_type(kind, check_alive=False, wait=True)
        return {}

    def restart_head(self) -> dict[str, Any]:
        """Restart what was killed of the head, at the same address."""
        head = self.nodes[0]
        port = int(head._ray_params.gcs_server_port)
        if "raylet" in head.all_processes:
            self._finish(0, self._begin(0, partial(_with_gcs, head)))
        else:
            self._finish(0, self._begin(0, partial(self._node, 0, self.head, port)))
        return self._nodes_from(0)

    def end(self) -> None:
        """Kill every process below this one, remove the files, and exit."""
        if not self.ending.acquire(blocking=False):
            return
        while doomed := below(os.getpid()):
            kill(doomed)
        shutil.rmtree(self.directory, ignore_errors=True)
        os._exit(0)


def _with_gcs(head: Any) -> Any:
    head.start_gcs_server()
    return head
