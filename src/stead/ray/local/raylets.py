"""Starts one raylet on this machine, as a child of this process, and finds and ends what belongs to it.

Rule: a raylet starts here as `ray start` would start it, but faster on a small machine: it waits for no agent that has
nothing to do. Its process ends with the thread that started it. Only on Linux, because it needs that kernel feature.
"""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial, partialmethod
from importlib import import_module
from pathlib import Path
from typing import Any

SHOWS_UP_SECONDS_MAX = 75.0
GONE_SECONDS_MAX = 10.0
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


def started(
    written: Mapping[str, Any],
    directory: str,
    is_head: bool,
    has_agent: bool,
    before_raylet: Callable[[], object] = lambda: None,
    **parameters: Any,
) -> Any:
    """Start Ray's processes of a node: a raylet, and on a head what a head has. It has registered when this returns.

    Args:
        written: The node: the fields of a `NodeSpec`, with its taints as labels.
        directory: Where Ray's logs are, or will be.
        is_head: Whether it is a head.
        has_agent: Whether the node runs Ray's own agent, which a dashboard needs.
        before_raylet: Called when the node has its id, before its raylet starts.
        **parameters: Ray's other parameters of a node.

    Returns:
        Ray's object for the node.

    Raises:
        RayletEnded: The raylet ended at once. It may have lost a port to another process.
    """
    node_of = import_module("ray._private.node").Node
    parameters_of = import_module("ray._private.parameter").RayParams
    services: Any = import_module("ray._private.services")
    if not has_agent:
        # Without a dashboard its process has nothing to do, but the head would still wait for it.
        node_of.start_api_server = lambda *_, **__: None
        if not isinstance(services.start_ray_process, partial):
            services.start_ray_process = partial(_start_process, services.start_ray_process)
    if not isinstance(vars(node_of)["start_raylet"], partialmethod):
        node_of.start_raylet = partialmethod(_start_raylet, node_of.start_raylet, has_agent, before_raylet)
    if not isinstance(services.get_node, partial):
        services.get_node = partial(_patiently, services.get_node, directory)
    given = parameters_of(
        num_cpus=written["num_cpus"],
        num_gpus=written["num_gpus"],
        memory=written["memory"],
        object_store_memory=written["object_store_memory"],
        resources=dict(written["resources"]),
        labels=dict(written["labels"]),
        node_name=written["name"],
        env_vars=dict(written["environment"]),
        setup_worker_path=SETUP_WORKER,
        min_worker_port=0,
        max_worker_port=0,
        node_manager_port=0,
        **parameters,
    )
    given.runtime_env_agent_port = _free_port()
    node = node_of(given, head=is_head, shutdown_at_exit=False, spawn_reaper=True)
    if raylet_of(node).poll() is not None:
        raise RayletEnded(f"the raylet ended when it had just registered{last_error(directory, node._node_id)}")
    return node


def _start_raylet(
    node: Any, start: Callable[..., None], has_agent: bool, before: Callable[[], object], *given: Any
) -> None:
    """Write what Ray's agent writes if it has nothing to do: that it listens on no ports. A raylet waits for that."""
    before()
    raylet = import_module("ray._raylet")
    for name in () if has_agent else ("METRICS_AGENT", "METRICS_EXPORT", "DASHBOARD_AGENT_LISTEN"):
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


def import_ray() -> None:
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


def raylet_of(node: Any) -> subprocess.Popen[bytes]:
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
            if not any(f"--node_id={node_id}" in _command_of(pid) for pid in below(os.getpid())):
                raise RayletEnded(
                    f"the raylet ended before it had registered{last_error(directory, node_id)}"
                ) from None
            time.sleep(0.1)


def last_error(directory: str, node_id: str) -> str:
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


def below(pid: int) -> list[int]:
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


def kill(doomed: Sequence[int]) -> None:
    """Kill these and wait until they are gone. Some became children of this process when their parent died."""
    for pid in doomed:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    waiting = list(doomed)
    until = time.monotonic() + GONE_SECONDS_MAX
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


def agree_on_authentication() -> None:
    """Require a token only if RAY_AUTH_MODE does, because drivers with an address follow that variable."""
    setup = import_module("ray._private.authentication.authentication_token_setup")
    setup.ensure_token_if_auth_enabled(None, create_token_if_missing=False)
