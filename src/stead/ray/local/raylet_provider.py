"""A provider of real Ray nodes on this machine, for a Ray cluster that runs: for laptops, demos and tests.

Rule: each launch is a folder with a record, written before anything is started, and a lock that the node's process
holds as long as it lives (`launched_node`). So the list is right after a crash at any moment. The folders are in Ray's
session folder: they end with their cluster.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import ray

from stead.errors import Invalid
from stead.language.nodes import NodeTemplate
from stead.language.resources import UNIT
from stead.language.taints import Taint
from stead.planner.instances import Instance, InstanceState
from stead.ray.control.cluster import OF_A_GROUP
from stead.ray.local.launched_node import ENDING, JOINED, PROBLEM, PROCESS, RECORD, START
from stead.ray.local.local_cluster import OWN_KEY, NodeSpec, cluster_environment, node_spec
from stead.ray.local.supervisor import ATTACH_HOST, NODE_ADDRESS
from stead.ray.wire.folders import Folder
from stead.ray.wire.gcs import ControlStore
from stead.ray.wire.node_page import ONE, open_folder
from stead.ray.wire.own_names import is_own_group
from stead.ray.wire.tables import NodeRow, Tables
from stead.ray.wire.taint_labels import marks_of
from stead.scaling.provider import Unlaunched
from stead.specs.sections import Section
from stead.specs.values import some_text
from stead.text import quoted

LAUNCH = "stead.dev/launch"
"""The label of a launched node with the id of its launch."""

LAUNCHES, LOCK, LOG = "launches", "lock", "log"
ENDS_SECONDS_MAX = 20.0
LOOKS_S = 0.05
SETTLED_S = 0.5
"""How long after a node was closed Ray's tables show all its work."""

UNFINISHED_S = 60.0
LOOPBACK = ("127.0.0.1", "127.0.0.2")
FIELDS = ("address",)

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


class StillBusy(Unlaunched):
    """The node has work, so it was not ended."""


class RayletProvider:
    """Nodes on this machine that join a Ray cluster.

    Args:
        address: The address of the cluster's GCS.
        session: Ray's session folder.
        emptied: Lets a node of the cluster take no new work, and returns whether it has none left. Without it, nodes
            are ended whether they have work or not.
        has_agent: Whether each node runs Ray's own agent, which a dashboard needs.
        environment: Environment variables of the nodes' processes.
    """

    def __init__(
        self,
        address: str,
        session: str,
        emptied: Callable[[str], bool] | None = None,
        has_agent: bool = False,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.address, self.session, self.emptied, self.has_agent = address, session, emptied, has_agent
        self._environment = cluster_environment(os.environ, environment or {}, hooked=True)
        own = open_folder(session)
        self.folder = Folder.made(own / LAUNCHES, 0o700).path
        for path in self.folder.glob(".*"):  # left by a launch that was killed before it had begun
            if not _is_held(path) and time.time() - path.stat().st_mtime > UNFINISHED_S:
                shutil.rmtree(path, ignore_errors=True)

    @property
    def title(self) -> str:
        return "raylets on this machine"

    def launch(self, id: str, template: NodeTemplate) -> None:
        if not _ID.fullmatch(id):
            raise Unlaunched(f"the id of a launch, {quoted(id)}, must be like 'gpu-1a2b3c'")
        folder, record = self.folder / id, self._record(id, template)
        if folder.exists():
            return
        try:
            lock = self._made(folder, record)
        except OSError as error:
            if folder.exists():
                return  # another call with this id was faster
            raise Unlaunched(f"a node of kind {template.name} cannot be started: {error.strerror}") from None
        try:
            self._start(folder, lock)
        except OSError as error:
            shutil.rmtree(folder, ignore_errors=True)
            raise Unlaunched(f"a node of kind {template.name} cannot be started: {error.strerror}") from None
        finally:
            os.close(lock)  # the process of the node has it, too

    def _made(self, folder: Path, record: Mapping[str, Any]) -> int:
        """Make the folder of a launch, whole or not at all. Returns its lock, which this process holds."""
        begun = folder.with_name(f".{folder.name}.{os.getpid()}")
        begun.mkdir(mode=0o700)
        lock = os.open(begun / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            (begun / RECORD).write_text(json.dumps(record), encoding="utf-8")
            begun.rename(folder)
        except OSError:
            os.close(lock)
            shutil.rmtree(begun, ignore_errors=True)
            raise
        return lock

    def _start(self, folder: Path, lock: int) -> None:
        with (folder / LOG).open("w") as log:
            subprocess.run(
                [sys.executable, "-c", START, str(folder), str(lock)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._environment,
                cwd="/",
                pass_fds=[lock],
                start_new_session=True,  # it outlives this process, and gets no Ctrl-C
                check=False,
            )

    def _record(self, id: str, template: NodeTemplate) -> dict[str, Any]:
        try:
            spec = _spec_of(id, template)
        except Invalid as error:
            raise Unlaunched(f"a node of kind {template.name} cannot run on this machine: {error}") from None
        written = asdict(spec)
        del written["taints"]
        written["labels"] = {**spec.labels, **marks_of(spec.taints), LAUNCH: id}
        host = self.address.rpartition(":")[0]
        return {
            "launch": id,
            "kind": template.name,
            "since": time.time(),
            "node": ray.NodeID.from_random().hex(),
            "address": self.address,
            "session": self.session,
            "ip": host if host in LOOPBACK else "",
            "has_agent": self.has_agent,
            "spec": written,
        }

    def retire(self, instance: Instance) -> None:
        folder = self.folder / instance.launch
        if not _ID.fullmatch(instance.launch) or not folder.exists():
            return
        if self.emptied is not None and _is_held(folder) and (folder / JOINED).exists():
            node = _record_in(folder).get("node", "")
            if not self.emptied(node):
                raise StillBusy(f"the node of launch {instance.launch} has work, so it was not ended")
        with suppress(OSError):
            (folder / ENDING).touch()
        until = time.monotonic() + ENDS_SECONDS_MAX
        while _is_held(folder):
            _terminate(folder)
            if time.monotonic() > until:
                raise Unlaunched(f"the processes of launch {instance.launch} do not end; see {folder / LOG}")
            time.sleep(LOOKS_S)
        gone = folder.with_name(f".{folder.name}.gone")  # so that no list sees a part of it
        with suppress(OSError):
            folder.rename(gone)
        shutil.rmtree(gone, ignore_errors=True)

    def list(self) -> Sequence[Instance]:
        return [_instance(path) for path in sorted(self.folder.iterdir()) if not path.name.startswith(".")]


def raylet_provider(fields: Mapping[str, Any], by_force: bool = False) -> RayletProvider:
    """The provider of a cluster file, for the Ray cluster that this process is connected to. With `by_force`, it ends
    nodes that have work, too."""
    section = Section(dict(fields), "provider", FIELDS)
    node = ray._private.worker._global_node
    address = _by_number(str(node.gcs_address))
    wanted = section.read("address", some_text, address)
    if wanted.rpartition(":")[2] != address.rpartition(":")[2]:
        raise Invalid(f"provider.address: is {wanted}, but this is the cluster at {address}; give --address {wanted}")
    work = _Work(address)
    return RayletProvider(
        address, str(node.get_session_dir_path()), None if by_force else work.has_left, has_agent=bool(node.webui_url)
    )


class _Work:
    """Whether nodes of a cluster have work."""

    def __init__(self, address: str) -> None:
        self._store, self._tables = ControlStore(address), Tables(address)

    def has_left(self, id: str) -> bool:
        """Let the node take no new work, and return whether nothing is left there."""
        if id in self._tables.status().nodes:
            self._store.close_for_good(id, "stead retires the node")
            time.sleep(SETTLED_S)
        row = self._tables.status().nodes.get(id)
        own = {group for group, fields in self._tables.groups().items() if is_own_group(fields["name"])}
        return row is None or is_empty(row, own)


def is_empty(row: NodeRow, own_groups: Collection[str]) -> bool:
    """Whether nothing on a node is in use, except by stead's own placement groups. Objects in its store count, too."""
    free = dict(row.total)
    for name, amount in row.total.items():
        if found := OF_A_GROUP.search(name):
            if found[1] not in own_groups:
                return False
            if not re.search(r"_group_\d+_", name):
                free[name.removesuffix(found[0])] = free.get(name.removesuffix(found[0]), 0.0) - amount
    return all(
        row.available.get(name, 0.0) >= amount - ONE / 2
        for name, amount in free.items()
        if not OF_A_GROUP.search(name) and name in row.total
    )


def _by_number(address: str) -> str:
    """Ray replaces some names of this machine by an address where a local cluster does not listen."""
    host, _, port = address.rpartition(":")
    return f"{NODE_ADDRESS}:{port}" if host.lower() == ATTACH_HOST.lower() else address


def _spec_of(id: str, template: NodeTemplate) -> NodeSpec:
    """The node of a launch, checked as in `local_cluster`."""
    amounts = {name: units // UNIT if units % UNIT == 0 else units / UNIT for name, units in template.capacity.items()}
    own = {OWN_KEY[name]: amounts.pop(name) for name in OWN_KEY if name in amounts}
    taints: tuple[Taint, ...] = template.taints
    labels, name = dict(template.labels), f"{template.name}-{id}"
    return node_spec({"num_cpus": 0, **own, "resources": amounts, "labels": labels, "taints": taints, "name": name}, 0)


def _instance(folder: Path) -> Instance:
    record, is_held = _record_in(folder), _is_held(folder)
    state, problem = InstanceState.STARTING, ""
    if (folder / ENDING).exists():
        state = InstanceState.ENDING
    elif not is_held:
        state, problem = InstanceState.FAILED, _text(folder / PROBLEM) or "its process ended before its node joined"
    elif (folder / JOINED).exists():
        state = InstanceState.RUNNING
    return Instance(
        folder.name,
        str(record.get("kind", "")),
        state,
        float(record.get("since", 0.0)),
        str(record.get("node", "")),
        problem=problem,
    )


def _record_in(folder: Path) -> Mapping[str, Any]:
    try:
        found = json.loads((folder / RECORD).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _text(path: Path) -> str:
    with suppress(OSError):
        return path.read_text(encoding="utf-8", errors="replace").strip()
    return ""


def _is_held(folder: Path) -> bool:
    """Whether a process holds the lock of a launch."""
    try:
        lock = os.open(folder / LOCK, os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)  # shared, so that two questions do not meet
        return False
    except BlockingIOError:
        return True
    finally:
        os.close(lock)


def _terminate(folder: Path) -> None:
    """Ask the process of a launch to end. It holds the lock, so the id in its file is still its own."""
    with suppress(OSError, ValueError):
        process = os.pidfd_open(int(_text(folder / PROCESS)))
        try:
            if _is_held(folder):
                signal.pidfd_send_signal(process, signal.SIGTERM)
        finally:
            os.close(process)
