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
import random
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial, partialmethod
from importlib import import_module
from pathlib import Path
from typing import Any

NODE_ADDRESS = "127.0.0.1"
"""The only address with which Ray listens only on loopback. With 127.0.0.2 it listens on every interface."""

ATTACH_HOST = "LOCALHOST"
"""The same address for drivers, spelled so that `ray.init` does not change it: it replaces 127.0.0.1 and localhost with
the public address of this machine, where nothing listens."""

NODE_ADDRESS_WITH_DASHBOARD = "127.0.0.2"
"""The dashboard is itself a driver with that problem, and submitting a job would hang. So a cluster with a dashboard
listens on every interface, like any cluster of `ray start`. RAY_AUTH_MODE=token protects it."""

END_SECONDS_MAX = 30.0
SHOWS_UP_SECONDS_MAX = 75.0
STARTS_MAX = 3
"""How often a node is started before it counts as failed."""

SETUP_WORKER = str(Path(__file__).with_name("setup_worker.py"))
"""Starts workers that have a runtime environment. A raylet recognises it by its name."""

IDLE_AGENT = str(Path(__file__).with_name("idle_agent.py"))

PORTS_FROM, PORTS_END, PORTS_MIN = 20_000, 65_536, 2_000

ASKS_SECONDS_MAX = 2
"""How long one question for a node that has not registered takes. Ray's 30 s would hide the end of its raylet."""

ERROR_LENGTH = 400
"""How many characters of a raylet's last error are shown."""


class RayletEnded(Exception):
    """The raylet of a node ended before it had registered."""


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
            _import_ray()
            _agree_on_authentication()
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
            "nodes": [{"node_id": node.node_id, "raylet_pid": _raylet_of(node).pid} for node in self.nodes[first:]],
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
                node = self._node(index, written)
                if _raylet_of(node).poll() is None:
                    return node
                error = _last_error(self.directory, node._node_id)
                raise RayletEnded(f"the raylet ended when it had just registered{error}")
            except RayletEnded:
                if not left:
                    raise
                if index == 0:
                    _kill(_below(os.getpid()))
        raise AssertionError("unreachable")

    def _node(self, index: int, written: Mapping[str, Any], gcs_port: int | None = None) -> Any:
        node_of = import_module("ray._private.node").Node
        parameters_of = import_module("ray._private.parameter").RayParams
        with_dashboard = self.options["dashboard"]
        is_head = index == 0
        if not with_dashboard:
            # Without a dashboard its process has nothing to do, but the head would still wait for it.
            node_of.start_api_server = lambda *_, **__: None
            if not isinstance(vars(node_of)["start_raylet"], partialmethod):
                node_of.start_raylet = partialmethod(_start_raylet, node_of.start_raylet)
        services: Any = import_module("ray._private.services")
        if not with_dashboard and not isinstance(services.start_ray_process, partial):
            services.start_ray_process = partial(_start_process, services.start_ray_process)
        if not isinstance(services.get_node, partial):
            services.get_node = partial(_patiently, services.get_node, self.directory)
        # Choose the names here: Ray looks for free names, and two nodes that start at once would find the same one.
        sockets = [f"{self.directory}/{kind}.{index}" for kind in ("plasma", "raylet")]
        for path in sockets:
            Path(path).unlink(missing_ok=True)  # left by a killed head
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
            setup_worker_path=SETUP_WORKER,
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
        parameters.runtime_env_agent_port = _free_port()
        return node_of(parameters, head=is_head, shutdown_at_exit=False, spawn_reaper=True)

    def kill(self, index: int) -> dict[str, Any]:
        raylet = _raylet_of(self.nodes[index])
        # Stop it first, so that it starts no worker between listing its children and killing them.
        raylet.send_signal(signal.SIGSTOP)
        doomed = _below(raylet.pid)
        raylet.kill()
        _kill(doomed)
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
        while doomed := _below(os.getpid()):
            _kill(doomed)
        shutil.rmtree(self.directory, ignore_errors=True)
        os._exit(0)


def _start_raylet(node: Any, start: Callable[..., None], *given: Any) -> None:
    """Write what Ray's agent writes if it has nothing to do: that it listens on no ports. A raylet waits for that."""
    raylet = import_module("ray._raylet")
    for name in ("METRICS_AGENT", "METRICS_EXPORT", "DASHBOARD_AGENT_LISTEN"):
        raylet.persist_port(node._session_dir, node._node_id, getattr(raylet, f"{name}_PORT_NAME"), -1)
    start(node, *given)


def _start_process(start: Callable[..., Any], command: list[str], *given: Any, **named: Any) -> Any:
    """Start a process of Ray, and a raylet with an agent that does nothing: there is no dashboard to report to."""
    option = "--dashboard_agent_command="
    agent = subprocess.list2cmdline([sys.executable, "-I", "-S", IDLE_AGENT])
    return start([option + agent if each.startswith(option) else each for each in command], *given, **named)


def _free_port() -> int:
    """A port that nothing listens on, below those that the system gives to connections, so that none takes it before
    Ray does. A raylet waits 15 s for the port of its agent and then gives up, which is too short on a busy machine; it
    does not wait for a port that it is given."""
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    end = first if first - PORTS_FROM >= PORTS_MIN else PORTS_END  # some systems give all ports to connections
    for port in random.sample(range(PORTS_FROM, end), PORTS_MIN):
        with suppress(OSError), socket.socket() as trial:
            trial.bind(("", port))
            return port
    raise OSError(f"no port is free from {PORTS_FROM} to {end}")


def _import_ray() -> None:
    """Import Ray with our own time for questions. It reads its settings from the environment when it is imported; the
    processes that we start keep theirs."""
    name = "RAY_raylet_start_wait_time_s"
    given = os.environ.get(name)
    os.environ[name] = str(ASKS_SECONDS_MAX)
    try:
        import_module("ray")
    finally:
        if given is None:
            del os.environ[name]
        else:
            os.environ[name] = given


def _with_gcs(head: Any) -> Any:
    head.start_gcs_server()
    return head


def _raylet_of(node: Any) -> subprocess.Popen[bytes]:
    raylet: subprocess.Popen[bytes] = node.all_processes["raylet"][0].process
    return raylet


def _patiently(get_node: Callable[..., Any], directory: str, address: str, node_id: str) -> Any:
    """Ray waits 30 s for a node to register. Several nodes that start at once on a small machine may need longer, and
    a raylet that has ended never registers."""
    end = time.monotonic() + SHOWS_UP_SECONDS_MAX
    while True:
        try:
            return get_node(address, node_id)
        except RuntimeError:
            if time.monotonic() > end:
                raise
            if not any(f"--node_id={node_id}" in _command_of(pid) for pid in _below(os.getpid())):
                raise RayletEnded(
                    f"the raylet ended before it had registered{_last_error(directory, node_id)}"
                ) from None
            time.sleep(0.1)


def _last_error(directory: str, node_id: str) -> str:
    """The last error in the log of a node's raylet, as the end of a sentence: the log is removed with the cluster."""
    for log in Path(directory).glob("session_2*/logs/raylet*.out"):
        with suppress(OSError):
            text = log.read_text(encoding="utf-8", errors="replace")
            if node_id in text:
                lines = text.splitlines()
                errors = [line for line in lines if " E " in line or " C " in line or "Check failed" in line]
                return f"; its log ends with: {(errors or lines)[-1][-ERROR_LENGTH:]}"
    return ""


def _command_of(pid: int) -> list[str]:
    """The command line of a process; empty if it has ended."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    return []


def _below(pid: int) -> list[int]:
    """Every process below this one, read from /proc: Ray's psutil is available only after Ray is imported."""
    children: dict[int, list[int]] = {}
    for place in Path("/proc").iterdir():
        if place.name.isdecimal():
            with suppress(OSError):
                # A program's name may contain spaces and brackets; the parent's id is the second word after it.
                parent = int((place / "stat").read_text().rpartition(")")[2].split()[1])
                children.setdefault(parent, []).append(int(place.name))
    found = list(children.get(pid, ()))
    for process in found:
        found += children.get(process, ())
    return found


def _kill(doomed: Sequence[int]) -> None:
    """Kill these and wait until they are gone. Some became children of this process when their parent died."""
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
    """Require a token only if RAY_AUTH_MODE does, because drivers with an address follow that variable."""
    setup = import_module("ray._private.authentication.authentication_token_setup")
    setup.ensure_token_if_auth_enabled(None, create_token_if_missing=False)
