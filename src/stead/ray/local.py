"""Several real Ray nodes on one machine, for trying and testing: `local_cluster` and `LocalCluster`.

Rule: whatever ends the owner, nothing is left running and nothing is left on disk. All of Ray that is started
here belongs to one keeper process per cluster: the caller's process gets no environment variable, no signal
handler and no Ray state, and another Ray that it is connected to is not disturbed (see `stead.ray.keeper`).
"""

from __future__ import annotations

import atexit
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from stead.arguments import labels_of, parse_labels, parse_taints, taints_of
from stead.errors import Invalid, did_you_mean
from stead.ray.keeper import END_SECONDS_MAX
from stead.ray.marks import marks_of
from stead.ray.start import require_ray, with_hook
from stead.resources import units
from stead.taints import Taint

START_SECONDS_MAX = 120.0
OBJECT_STORE_BYTES = 80 * 2**20
"""A little above the least that Ray takes (75 MB), so that many nodes fit."""

SOCKET_DIRECTORY_LENGTH_MAX = 60
"""Unix sockets end at 107 characters; what Ray adds below the private directory needs the rest."""

_QUIET = {
    "RAY_enable_worker_prestart": "0",
    "RAY_prestart_worker_first_driver": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
}
"""Workers start when there is work for them, and nothing is reported to anyone; the caller may say otherwise."""

_NOT_INHERITED = (
    "RAY_ADDRESS RAY_GCS_SERVER_PORT RAY_JOB_CONFIG_JSON_ENV_VAR RAY_JOB_ID RAY_NODE_ID RAY_NODE_LABELS "
    "RAY_NODE_MARKET_TYPE RAY_NODE_REGION RAY_NODE_TYPE_NAME RAY_NODE_ZONE RAY_OVERRIDE_LABELS "
    "RAY_OVERRIDE_NODE_ID_FOR_TESTING RAY_OVERRIDE_RESOURCES RAY_RAYLET_PID RAY_REDIS_ADDRESS "
    "RAY_WORKER_ID STEAD_NODE_TAINTS"
).split()
"""What the caller's environment says of another cluster, or of the one node this machine would be in it."""


class NotStarted(RuntimeError):
    """Ray did not start what was asked; the message is one sentence."""


@dataclass(frozen=True)
class NodeSpec:
    """One node as the caller wrote it, checked."""

    num_cpus: int = 1
    num_gpus: int = 0
    memory: int | None = None
    object_store_memory: int = OBJECT_STORE_BYTES
    resources: Mapping[str, int] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()
    name: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)


_KEYS = tuple(NodeSpec.__dataclass_fields__)
_OWN_KEY = {"CPU": "num_cpus", "GPU": "num_gpus", "memory": "memory", "object_store_memory": "object_store_memory"}


def node_spec(written: Mapping[str, Any], index: int) -> NodeSpec:
    """A node from the keys of `local_cluster` or of a YAML file, checked."""
    try:
        return _node_spec(written)
    except Invalid as error:
        raise Invalid(f"node {index}: {error}") from None


def _node_spec(written: Mapping[str, Any]) -> NodeSpec:
    if not isinstance(written, Mapping):
        raise Invalid(f"a node must be a map such as {{'num_cpus': 2}}, not {written!r}")
    for key in written:
        if key not in _KEYS:
            raise Invalid(
                f"the key {key!r} is unknown{did_you_mean(str(key), _KEYS)}; good keys are {', '.join(_KEYS)}"
            )
    given = {key: value for key, value in written.items() if value is not None}
    checked: dict[str, Any] = {
        key: _whole(given[key], key)
        for key in ("num_cpus", "num_gpus", "memory", "object_store_memory")
        if key in given
    }
    for name, amount in _mapping(given, "resources", "{'disk': 4}").items():
        if not isinstance(name, str) or not name:
            raise Invalid(f"the resource name {name!r} must be a text, for example 'disk'")
        if name in _OWN_KEY:
            raise Invalid(f"the resource {name!r} has a key of its own; write {_OWN_KEY[name]}: {amount!r}")
        checked.setdefault("resources", {})[name] = _whole(amount, f"resource {name!r}")
    if "labels" in given:
        labels = given["labels"]
        checked["labels"] = dict(parse_labels(labels) if isinstance(labels, str) else labels_of(labels))
    if "taints" in given:
        checked["taints"] = _taints(given["taints"])
        marks_of(checked["taints"])
    if "name" in given:
        if not isinstance(given["name"], str) or not given["name"]:
            raise Invalid(f"the name {given['name']!r} must be a text, for example 'gpu-1'")
        checked["name"] = given["name"]
    environment = _mapping(given, "environment", "{'RAY_BACKEND_LOG_LEVEL': 'debug'}")
    for name, value in environment.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise Invalid(
                f"the environment variable {name!r} must be a text, for example {str(value)!r}, not {value!r}"
            )
    return NodeSpec(**checked, environment=dict(environment))


def _whole(amount: object, what: str) -> int:
    """A whole amount: Ray's nodes have no parts of a CPU. Text such as ``2Gi`` is taken."""
    amount_units = units(amount, what)
    if amount_units % 10_000 or amount_units < 0:
        raise Invalid(f"{what} must be a whole number from 0 up, for example 2, not {amount!r}")
    return amount_units // 10_000


def _mapping(given: Mapping[str, Any], key: str, good: str) -> Mapping[Any, Any]:
    value = given.get(key, {})
    if not isinstance(value, Mapping):
        raise Invalid(f"{key} must be a map such as {good}, not {value!r}")
    return value


def _taints(written: object) -> tuple[Taint, ...]:
    if isinstance(written, str):
        return parse_taints(written)
    if isinstance(written, Sequence) and all(isinstance(taint, Taint) for taint in written):
        return tuple(written)
    if isinstance(written, Sequence) and all(isinstance(taint, str) for taint in written):
        return parse_taints(",".join(written))
    if isinstance(written, Mapping):
        return taints_of(written)
    raise Invalid(f"taints must be a map such as {{'gpu_node': 'true'}}, not {written!r}")


@dataclass
class LocalNode:
    """One node of a local cluster; it keeps its place in the list after it was killed."""

    index: int
    node_id: str
    spec: NodeSpec
    raylet_pid: int
    alive: bool = True

    @property
    def labels(self) -> Mapping[str, str]:
        """The labels it was given, without the marks that carry its taints."""
        return self.spec.labels

    @property
    def taints(self) -> tuple[Taint, ...]:
        return self.spec.taints


class LocalCluster:
    """Real Ray nodes on this machine, the first of them the head. Made by `local_cluster`."""

    def __init__(
        self,
        nodes: Sequence[Mapping[str, Any]],
        rare_resource_isolation: Iterable[str] = (),
        *,
        hooked: bool = True,
        include_dashboard: bool = False,
        include_monitor: bool = False,
        environment: Mapping[str, str] | None = None,
        system_config: Mapping[str, Any] | None = None,
    ) -> None:
        specs = _specs(nodes)
        rare = _names(rare_resource_isolation)
        marks_of((), rare)
        require_ray("a local cluster")
        self.nodes: list[LocalNode] = []
        self.address = ""
        self.dashboard_url: str | None = None
        self.temp_dir = _private_directory()
        self._owner = os.getpid()
        self._lock = threading.Lock()
        self._closed = self._head_killed = False
        self._keeper = _start_keeper(self.temp_dir, keeper_environment(os.environ, environment or {}, hooked))
        atexit.register(self.close)
        try:
            options = {"dashboard": include_dashboard, "monitor": include_monitor, "config": dict(system_config or {})}
            self._start(specs, rare, options)
        except BaseException:
            self.close()
            raise

    def add_node(self, **node: Any) -> LocalNode:
        """One more node, with the keys that `local_cluster` takes; it has joined when this returns."""
        return self._start([node_spec(node, len(self.nodes))])[0]

    def kill_node(self, index: int) -> None:
        """End a node as a power cut would: its raylet and every process below it, with SIGKILL."""
        if not isinstance(index, int) or not 0 <= index < len(self.nodes):
            raise Invalid(f"node {index!r} is not one of this cluster; it has the nodes 0 to {len(self.nodes) - 1}")
        if index == 0:
            raise Invalid("node 0 is the head, and no cluster is left without it; kill node 1, or close() the cluster")
        if self.nodes[index].alive:
            self._ask({"do": "kill", "index": index})
            self.nodes[index].alive = False

    def kill_head(self, *, only_gcs: bool = False) -> None:
        """End the head as a power cut would; with `only_gcs` its GCS alone, the process that knows the cluster. The
        other nodes look for it at its address, for a minute or RAY_gcs_rpc_server_reconnect_timeout_s."""
        if self._head_killed:
            raise Invalid("the head is killed already; restart_head() comes next")
        self._ask({"do": "kill head", "only_gcs": only_gcs})
        self._head_killed = True
        self.nodes[0].alive = only_gcs

    def restart_head(self) -> LocalNode:
        """Start again what `kill_head` ended, at the same address. Ray knows the cluster again only where it has a
        store outside, ``environment={"RAY_REDIS_ADDRESS": ...}``; without one the other nodes are lost to it."""
        if not self._head_killed:
            raise Invalid("the head runs; kill_head() comes first")
        head = self._ask({"do": "restart head"})["nodes"][0]
        self._head_killed = False
        self.nodes[0] = LocalNode(0, head["node_id"], self.nodes[0].spec, head["raylet_pid"])
        return self.nodes[0]

    def close(self) -> None:
        """End all of it and remove its files. To close twice is to close once."""
        if self._closed or os.getpid() != self._owner:
            return
        self._closed = True
        _disconnect(self.address)
        with suppress(OSError, ValueError):
            assert self._keeper.stdin
            self._keeper.stdin.close()
        try:
            self._keeper.wait(END_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            # What it started has the kernel's word to die with it.
            self._keeper.kill()
            self._keeper.wait()
        assert self._keeper.stdout
        self._keeper.stdout.close()
        shutil.rmtree(self.temp_dir, ignore_errors=True)
        for node in self.nodes:
            node.alive = False
        atexit.unregister(self.close)

    def __enter__(self) -> LocalCluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(
        self, specs: Sequence[NodeSpec], rare: Sequence[str] = (), options: Mapping[str, Any] | None = None
    ) -> list[LocalNode]:
        wanted: list[dict[str, Any]] = []
        for spec in specs:
            is_head = not self.nodes and not wanted
            written = asdict(spec)
            del written["taints"]
            written["labels"] = {**spec.labels, **marks_of(spec.taints, rare if is_head else ())}
            wanted.append(written)
        answer = self._ask({"do": "start", "nodes": wanted, "options": dict(options or {})})
        self.address, self.dashboard_url = answer["address"], answer["dashboard"]
        first = len(self.nodes)
        self.nodes += [
            LocalNode(first + index, started["node_id"], spec, started["raylet_pid"])
            for index, (spec, started) in enumerate(zip(specs, answer["nodes"], strict=True))
        ]
        return self.nodes[first:]

    def _ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        if self._closed:
            raise NotStarted("the local cluster is closed; start another with local_cluster([...])")
        with self._lock:
            line = ""
            with suppress(OSError):
                assert self._keeper.stdin and self._keeper.stdout
                self._keeper.stdin.write(json.dumps(request) + "\n")
                self._keeper.stdin.flush()
                if select.select([self._keeper.stdout], [], [], START_SECONDS_MAX)[0]:
                    line = self._keeper.stdout.readline()
        if not line:
            raise NotStarted(
                f"Ray did not answer{_last_words(self.temp_dir)}; look at the memory and load of the machine"
            )
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise NotStarted(f"a node of the local cluster did not start: {answer['error']}")
        return answer


@contextmanager
def local_cluster(
    nodes: Sequence[Mapping[str, Any]],
    rare_resource_isolation: Iterable[str] = (),
    *,
    hooked: bool = True,
    include_dashboard: bool = False,
    include_monitor: bool = False,
    environment: Mapping[str, str] | None = None,
    system_config: Mapping[str, Any] | None = None,
) -> Iterator[LocalCluster]:
    """Several real Ray nodes on this machine, for as long as the block runs.

    A node is a map with the keys num_cpus (1 if not given), num_gpus, memory, object_store_memory, resources,
    labels, taints, name and environment; the first node is the head. `hooked` installs stead in every worker,
    `environment` is given to every process of the cluster, and `include_monitor` adds Ray's autoscaler. It listens
    on loopback alone, except with `include_dashboard`: then Ray listens on every interface of this machine.
    """
    cluster = LocalCluster(
        nodes,
        rare_resource_isolation,
        hooked=hooked,
        include_dashboard=include_dashboard,
        include_monitor=include_monitor,
        environment=environment,
        system_config=system_config,
    )
    try:
        yield cluster
    finally:
        cluster.close()


def read_cluster_file(path: str | Path) -> tuple[list[dict[str, Any]], tuple[str, ...]]:
    """The nodes and the rare resources of a file for `stead up --nodes`: a list of nodes, or a map with `nodes`."""
    import yaml

    try:
        written = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise Invalid(f"the cluster file {path} cannot be read: {reason}") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" at line {mark.line + 1}" if mark else ""
        raise Invalid(f"the cluster file {path} is not YAML{where}; a good line is '- num_cpus: 2'") from None
    rare: tuple[str, ...] = ()
    if isinstance(written, dict):
        for key in written:
            if key not in (known := ("nodes", "rare_resource_isolation")):
                hint = did_you_mean(str(key), known)
                raise Invalid(
                    f"the cluster file {path} has the unknown key {key!r}{hint}; good keys are {', '.join(known)}"
                )
        rare = _names(written.get("rare_resource_isolation") or ())
        written = written.get("nodes")
    if not isinstance(written, list) or not written:
        raise Invalid(f"the cluster file {path} must hold a list of nodes; a good line is '- num_cpus: 2'")
    _specs(written)
    marks_of((), rare)
    return written, rare


def table(cluster: LocalCluster) -> str:
    """The nodes of a cluster as text, one line each."""
    rows = [("NODE", "NAME", "ID", "CPU", "GPU", "RESOURCES", "LABELS", "TAINTS")]
    rows += [
        (
            "0 (head)" if node.index == 0 else str(node.index),
            node.spec.name or "-",
            node.node_id[:12],
            str(node.spec.num_cpus),
            str(node.spec.num_gpus),
            _pairs(node.spec.resources),
            _pairs(node.labels),
            ", ".join(map(str, node.taints)) or "-",
        )
        for node in cluster.nodes
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join([f"Ray at {cluster.address}, files in {cluster.temp_dir}", "", *lines])


def _pairs(pairs: Mapping[str, object]) -> str:
    return ", ".join(f"{key}={value}" for key, value in sorted(pairs.items())) or "-"


def keeper_environment(inherited: Mapping[str, str], given: Mapping[str, str], hooked: bool) -> dict[str, str]:
    """The environment of everything in the cluster: the caller's, without what it says of other clusters."""
    kept = {name: value for name, value in inherited.items() if name not in _NOT_INHERITED}
    environment = {**_QUIET, **kept, **given}
    return with_hook(environment) if hooked else environment


def _specs(nodes: Sequence[Mapping[str, Any]]) -> list[NodeSpec]:
    if isinstance(nodes, str | Mapping) or not isinstance(nodes, Iterable):
        raise Invalid(f"the nodes must be a list such as [{{'num_cpus': 2}}], not {nodes!r}")
    specs = [node_spec(node, index) for index, node in enumerate(nodes)]
    if not specs:
        raise Invalid("a cluster needs at least one node, the head; a good list is [{'num_cpus': 2}]")
    return specs


def _names(names: object) -> tuple[str, ...]:
    if isinstance(names, str):
        return tuple(name.strip() for name in names.split(",") if name.strip())
    if not isinstance(names, Iterable) or isinstance(names, Mapping):
        raise Invalid(f"rare_resource_isolation must be a list such as ['gpu'], not {names!r}")
    return tuple(names)


def _private_directory() -> str:
    place = tempfile.gettempdir()
    if len(place) > SOCKET_DIRECTORY_LENGTH_MAX - len("/stead-xxxxxxxx"):
        place = "/tmp"
    return tempfile.mkdtemp(prefix="stead-", dir=place)


def _last_words(directory: str) -> str:
    with suppress(OSError):
        lines = (Path(directory) / "keeper.err").read_text(encoding="utf-8", errors="replace").split("\n")
        last = [line.strip() for line in lines if line.strip()][-1:]
        return "".join(f" ({line})" for line in last)
    return ""


def _disconnect(address: str) -> None:
    """Take this process out of the cluster first: Ray ends a driver whose raylet dies."""
    ray = sys.modules.get("ray")
    with suppress(Exception):
        if address and ray and ray.is_initialized() and ray.get_runtime_context().gcs_address == address:
            ray.shutdown()


def _start_keeper(directory: str, environment: Mapping[str, str]) -> subprocess.Popen[str]:
    program = "import sys; from stead.ray.keeper import keep; keep(sys.argv[1], int(sys.argv[2]))"
    with (Path(directory) / "keeper.err").open("w") as words:
        return subprocess.Popen(
            [sys.executable, "-c", program, directory, str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=words,
            env=dict(environment),
            start_new_session=True,  # Ctrl-C is for the owner, who then says what to do
            text=True,
        )
