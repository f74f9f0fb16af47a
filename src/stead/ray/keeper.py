"""The keeper: the process that owns all of Ray in one local cluster, and does nothing else.

Rule: what it started does not outlive it, and it does not outlive its owner. It ends everything when its pipe
closes, when its owner is gone and when it is told to by a signal; if it is killed itself, the kernel ends the
raylets with it, and their workers follow. Linux only, for the kernel's part in it.
"""

from __future__ import annotations

import ctypes
import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

NODE_ADDRESS = "127.0.0.1"
"""Of all addresses the one with which Ray listens on loopback alone; with 127.0.0.2 it listens on every interface."""

ATTACH_HOST = "LOCALHOST"
"""The same for drivers, in a spelling that `ray.init` leaves alone: it takes 127.0.0.1 and localhost to mean the
public address of this machine, where nothing listens."""

NODE_ADDRESS_WITH_DASHBOARD = "127.0.0.2"
"""The dashboard is itself a driver that falls into that trap, and submitting a job would hang. So a cluster with a
dashboard listens on every interface, as any cluster of `ray start` does; RAY_AUTH_MODE=token guards it."""

END_SECONDS_MAX = 30.0
SHOWS_UP_SECONDS_MAX = 75.0


def keep(directory: str, owner: int) -> None:
    """Serve one owner until it ends, then end everything."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    keeper = _Keeper(directory)
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, lambda *_: keeper.end())
    requests: queue.Queue[str] = queue.Queue()
    threading.Thread(target=_read_requests, args=(requests, keeper), daemon=True).start()
    threading.Thread(target=_watch_owner, args=(owner, keeper), daemon=True).start()
    while True:
        request = json.loads(requests.get())
        try:
            answer = keeper.answer(request)
        except Exception as error:
            words = str(error).strip().split("\n")[0]
            answer = {"error": f"{type(error).__name__}: {words}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def _read_requests(requests: queue.Queue[str], keeper: _Keeper) -> None:
    for line in sys.stdin:
        requests.put(line)
    keeper.end()


def _watch_owner(owner: int, keeper: _Keeper) -> None:
    """The pipe tells most ends of the owner, but a child that it forked may hold the pipe open."""
    while os.getppid() == owner:
        time.sleep(0.5)
    keeper.end()


class _Keeper:
    """Starts and ends the Ray processes of one cluster, in a process that does nothing else."""

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self.nodes: list[Any] = []
        self.options: dict[str, Any] = {}
        self.head: Mapping[str, Any] = {}
        self.ending = threading.Lock()
        # Orphans come to the keeper instead of to init: an agent whose raylet was killed lives on for a while.
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
        raise AssertionError(f"nobody asks to {request['do']}")

    def start(self, request: Mapping[str, Any]) -> dict[str, Any]:
        first = len(self.nodes)
        if not first:
            self.options, self.head = request["options"], request["nodes"][0]
            _agree_on_authentication()
        places: list[Any] = [None] * len(request["nodes"])
        self.nodes += places
        started = []
        for index, written in enumerate(request["nodes"], first):
            started.append(self._begin(index, partial(self._node, index, written)))
            if index == 0:
                self._finish(0, started[0])
        for index, done in enumerate(started, first):
            self._finish(index, done)
        return self._told(first)

    def _told(self, first: int) -> dict[str, Any]:
        """What the owner has to know of the nodes from this one on."""
        head = self.nodes[0]
        address = head.gcs_address.replace(f"{NODE_ADDRESS}:", f"{ATTACH_HOST}:")
        # Jobs submitted to the cluster look here for the address that "auto" means.
        import_module("ray._private.utils").write_ray_address(address, self.directory)
        return {
            "address": address,
            "dashboard": f"http://{head.webui_url}" if self.options["dashboard"] and head.webui_url else None,
            "nodes": [{"node_id": node.node_id, "raylet_pid": _raylet_of(node).pid} for node in self.nodes[first:]],
        }

    def _begin(self, index: int, start: Callable[[], Any]) -> threading.Event:
        """Start processes of a node in a thread of its own: the kernel ends them when the thread that started them
        ends, so it stays for good."""
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

    def _node(self, index: int, written: Mapping[str, Any], gcs_port: int | None = None) -> Any:
        node_of = import_module("ray._private.node").Node
        parameters_of = import_module("ray._private.parameter").RayParams
        with_dashboard = self.options["dashboard"]
        is_head = index == 0
        if not with_dashboard:
            # Without a dashboard its process has nothing to do, yet the head would wait for it.
            node_of.start_api_server = lambda *_, **__: None
            # The agents of the nodes then do what they do where the dashboard is not installed: almost nothing.
            ray_utilities: Any = import_module("ray._private.utils")
            ray_utilities.get_dashboard_dependency_error = lambda: ImportError("not wanted")
        services: Any = import_module("ray._private.services")
        if not isinstance(services.get_node, partial):
            services.get_node = partial(_patiently, services.get_node)
        # Names of our own: Ray looks for free ones, and two nodes that start at once find the same.
        sockets = [f"{self.directory}/{kind}.{index}" for kind in ("plasma", "raylet")]
        for socket in sockets:
            Path(socket).unlink(missing_ok=True)  # of a head that was killed
        parameters = parameters_of(
            num_cpus=written["num_cpus"],
            num_gpus=written["num_gpus"],
            memory=written["memory"],
            object_store_memory=written["object_store_memory"],
            resources=dict(written["resources"]),
            labels=dict(written["labels"]),
            node_name=written["name"],
            env_vars=dict(written["environment"]),
            node_ip_address=NODE_ADDRESS_WITH_DASHBOARD if with_dashboard else NODE_ADDRESS,
            temp_dir=self.directory,
            plasma_store_socket_name=sockets[0],
            raylet_socket_name=sockets[1],
            min_worker_port=0,
            max_worker_port=0,
            node_manager_port=0,
            include_dashboard=with_dashboard,
            include_log_monitor=is_head,
            no_monitor=not self.options["monitor"],
            gcs_address=None if is_head else self.nodes[0].gcs_address,
            gcs_server_port=gcs_port,
            _system_config=self.options["config"] if is_head else None,
        )
        parameters.dashboard_agent_listen_port = None
        return node_of(parameters, head=is_head, shutdown_at_exit=False, spawn_reaper=True)

    def kill(self, index: int) -> dict[str, Any]:
        raylet = _raylet_of(self.nodes[index])
        # Stopped first, so that it starts no worker between the look at its children and its end.
        raylet.send_signal(signal.SIGSTOP)
        doomed = _below(raylet.pid)
        raylet.kill()
        _kill(doomed)
        raylet.wait()
        return {}

    def kill_head(self, only_gcs: bool) -> dict[str, Any]:
        head = self.nodes[0]
        head.kill_gcs_server(check_alive=False)  # first: it must not write down that the raylet died
        if not only_gcs:
            self.kill(0)
            for kind in list(head.all_processes):
                head._kill_process_type(kind, check_alive=False, wait=True)
        return {}

    def restart_head(self) -> dict[str, Any]:
        """What was killed of the head, again, at the address where the others look for it."""
        head = self.nodes[0]
        port = int(head._ray_params.gcs_server_port)
        if "raylet" in head.all_processes:
            self._finish(0, self._begin(0, partial(_with_gcs, head)))
        else:
            self._finish(0, self._begin(0, partial(self._node, 0, self.head, port)))
        return self._told(0)

    def end(self) -> None:
        """End every process below this one, remove the files, and end."""
        if not self.ending.acquire(blocking=False):
            return
        while doomed := _below(os.getpid()):
            _kill(doomed)
        shutil.rmtree(self.directory, ignore_errors=True)
        os._exit(0)


def _with_gcs(head: Any) -> Any:
    head.start_gcs_server()
    return head


def _raylet_of(node: Any) -> subprocess.Popen[bytes]:
    raylet: subprocess.Popen[bytes] = node.all_processes["raylet"][0].process
    return raylet


def _patiently(get_node: Callable[..., Any], *given: Any) -> Any:
    """Ray gives a node half a minute to show up; several that start at once on a small machine may need longer."""
    end = time.monotonic() + SHOWS_UP_SECONDS_MAX
    while True:
        try:
            return get_node(*given)
        except RuntimeError:
            if time.monotonic() > end:
                raise
            time.sleep(0.1)


def _below(pid: int) -> list[int]:
    """Every process below this one, from the kernel's own list: Ray's psutil is there only once Ray is imported."""
    children: dict[int, list[int]] = {}
    for place in Path("/proc").iterdir():
        if place.name.isdecimal():
            with suppress(OSError):
                # The name of a program may hold spaces and brackets; the parent is the second word after it.
                parent = int((place / "stat").read_text().rpartition(")")[2].split()[1])
                children.setdefault(parent, []).append(int(place.name))
    found = list(children.get(pid, ()))
    for process in found:
        found += children.get(process, ())
    return found


def _kill(doomed: Sequence[int]) -> None:
    """Kill these and wait until they are gone; some are children of this process only since their parent died."""
    for pid in doomed:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    waiting = list(doomed)
    until = time.monotonic() + END_SECONDS_MAX / 3
    while waiting and time.monotonic() < until:
        for pid in list(waiting):
            try:
                gone = os.waitpid(pid, os.WNOHANG)[0] == pid
            except ChildProcessError:
                gone = not Path(f"/proc/{pid}").exists()
            if gone:
                waiting.remove(pid)
        if waiting:
            time.sleep(0.01)


def _agree_on_authentication() -> None:
    """Ask for a token only where RAY_AUTH_MODE says so: that is what a driver with an address goes by."""
    setup = import_module("ray._private.authentication.authentication_token_setup")
    setup.ensure_token_if_auth_enabled(None, create_token_if_missing=False)
