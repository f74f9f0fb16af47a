"""Several real Ray nodes on one machine, for trying and testing: `local_cluster` and `LocalCluster`.

Rule: however the owner ends, no process and no file is left. A supervisor process per cluster owns all of Ray that is
started here. The caller's process gets no environment variable, no signal handler and no Ray state, and its connection
to another Ray cluster is not affected (see `stead.ray.local.supervisor`).
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
from typing import Any, TypedDict, Unpack

from stead.errors import Invalid, did_you_mean
from stead.language.arguments import labels_of, parse_labels, parse_taints, taints_of
from stead.language.resources import Amount, units
from stead.language.taints import Taint
from stead.ray.local.start import require_ray, with_hook
from stead.ray.local.supervisor import END_SECONDS_MAX
from stead.ray.wire.taint_labels import marks_of
from stead.text import aligned, short_id

START_SECONDS_MAX = 120.0
OBJECT_STORE_BYTES = 80 * 2**20
"""Slightly above Ray's minimum (75 MB), so that many nodes fit."""

SOCKET_DIRECTORY_LENGTH_MAX = 60
"""A Unix socket's path has at most 107 characters; Ray's part of it needs the rest."""

_QUIET = {
    "RAY_agent_register_timeout_ms": "120000",  # on a busy machine, agents start late
    "RAY_enable_worker_prestart": "0",
    "RAY_prestart_worker_first_driver": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
}
"""Workers start when they are needed, and no usage is reported. The caller can override both."""

_NOT_INHERITED = (
    "RAY_ADDRESS RAY_GCS_SERVER_PORT RAY_JOB_CONFIG_JSON_ENV_VAR RAY_JOB_ID RAY_NODE_ID RAY_NODE_LABELS "
    "RAY_NODE_MARKET_TYPE RAY_NODE_REGION RAY_NODE_TYPE_NAME RAY_NODE_ZONE RAY_OVERRIDE_LABELS "
    "RAY_OVERRIDE_NODE_ID_FOR_TESTING RAY_OVERRIDE_RESOURCES RAY_RAYLET_PID RAY_REDIS_ADDRESS "
    "RAY_WORKER_ID STEAD_NODE_TAINTS"
).split()
"""Variables of the caller's environment that describe another cluster, or this machine as a node of it."""


class NotStarted(RuntimeError):
    """Ray did not start; the message is one sentence."""


class NodeOptions(TypedDict, total=False):
    """One node as you write it for `local_cluster`. Amounts may be text such as ``"2Gi"``.

    Attributes:
        num_cpus: CPUs, 1 if not given.
        num_gpus: GPUs.
        memory: Memory in bytes.
        object_store_memory: Memory of the object store in bytes.
        resources: Other resources by name.
        labels: Labels, as a map or as text such as ``"zone=a,disk=ssd"``.
        taints: Taints, as a map, as text such as ``"gpu_node=true:no-execute"``, or as a list.
        name: A name for people.
        environment: Environment variables of the node's processes.
    """

    num_cpus: Amount | None
    num_gpus: Amount | None
    memory: Amount | None
    object_store_memory: Amount | None
    resources: Mapping[str, Amount] | None
    labels: Mapping[str, str] | str | None
    taints: Mapping[str, str] | str | Sequence[str] | Sequence[Taint] | None
    name: str | None
    environment: Mapping[str, str] | None


@dataclass(frozen=True)
class NodeSpec:
    """One node as it was started: `num_cpus`, `num_gpus`, `memory`, `object_store_memory`, `resources`, `labels`,
    `taints`, `name` and `environment`, as in `NodeOptions`."""

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
OWN_KEY = {"CPU": "num_cpus", "GPU": "num_gpus", "memory": "memory", "object_store_memory": "object_store_memory"}


def node_spec(written: Mapping[str, Any], index: int) -> NodeSpec:
    """Validate a node with the keys of `local_cluster` or of a YAML file."""
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
            raise Invalid(f"the resource name {name!r} must be a string, for example 'disk'")
        if name in OWN_KEY:
            raise Invalid(f"the resource {name!r} has its own key; write {OWN_KEY[name]}: {amount!r}")
        checked.setdefault("resources", {})[name] = _whole(amount, f"resource {name!r}")
    if "labels" in given:
        labels = given["labels"]
        checked["labels"] = dict(parse_labels(labels) if isinstance(labels, str) else labels_of(labels))
    if "taints" in given:
        checked["taints"] = _taints(given["taints"])
        marks_of(checked["taints"])
    if "name" in given:
        if not isinstance(given["name"], str) or not given["name"]:
            raise Invalid(f"the name {given['name']!r} must be a string, for example 'gpu-1'")
        checked["name"] = given["name"]
    environment = _mapping(given, "environment", "{'RAY_BACKEND_LOG_LEVEL': 'debug'}")
    for name, value in environment.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise Invalid(
                f"the environment variable {name!r} must be a string, for example {str(value)!r}, not {value!r}"
            )
    return NodeSpec(**checked, environment=dict(environment))


def _whole(amount: object, what: str) -> int:
    """A whole number: Ray's nodes have whole CPUs. Strings such as ``2Gi`` are accepted."""
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
    """One node of a local cluster. It stays in `LocalCluster.nodes` after it was killed.

    Attributes:
        index: Its index in `LocalCluster.nodes`; 0 is the head.
        node_id: Its id in Ray.
        spec: What it was started with.
        raylet_pid: The process id of its raylet.
        alive: Whether it runs.
    """

    index: int
    node_id: str
    spec: NodeSpec
    raylet_pid: int
    alive: bool = True

    @property
    def labels(self) -> Mapping[str, str]:
        """The labels it was given, without the labels that carry its taints."""
        return self.spec.labels

    @property
    def taints(self) -> tuple[Taint, ...]:
        """The taints it was given."""
        return self.spec.taints


class LocalCluster:
    """Real Ray nodes on this machine, the first of them the head. `local_cluster` makes one and closes it for you.

    Attributes:
        nodes: Its nodes, in the order in which they were started.
        address: Its address, for `stead.init`.
        dashboard_url: The URL of Ray's dashboard, if it has one.
        temp_dir: The directory with its files.

    Args:
        nodes: The nodes to start.
        rare_resource_isolation: Resources whose nodes only take work that asks for them, for example ``["GPU"]``.
        hooked: Whether stead places what programs on this cluster submit, also without `stead.init`.
        include_dashboard: Whether to start Ray's dashboard.
        include_monitor: Whether to start Ray's autoscaler.
        environment: Environment variables of every process of the cluster.
        system_config: Ray's own ``_system_config``.

    Raises:
        Invalid: A node is not described as it must be.
        Unsupported: Ray is not installed.
        NotStarted: A node did not start.

    Example:
        ```python
        cluster = LocalCluster([{"num_cpus": 2}, {"num_cpus": 1, "labels": {"zone": "a"}}])
        cluster.close()
        ```
    """

    def __init__(
        self,
        nodes: Sequence[NodeOptions | Mapping[str, object]],
        rare_resource_isolation: Iterable[str] = (),
        *,
        hooked: bool = True,
        include_dashboard: bool = False,
        include_monitor: bool = False,
        environment: Mapping[str, str] | None = None,
        system_config: Mapping[str, object] | None = None,
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
        self._supervisor = _start_supervisor(self.temp_dir, cluster_environment(os.environ, environment or {}, hooked))
        atexit.register(self.close)
        try:
            options = {"dashboard": include_dashboard, "monitor": include_monitor, "config": dict(system_config or {})}
            self._start(specs, rare, options)
        except BaseException:
            self.close()
            raise

    def add_node(self, **node: Unpack[NodeOptions]) -> LocalNode:
        """Start one more node. It has joined the cluster when this returns.

        Args:
            **node: The options of the node.

        Returns:
            The node.

        Raises:
            Invalid: An option is unknown or has a value that cannot be used.

        Example:
            ```python
            cluster.add_node(num_cpus=1, labels={"zone": "b"})
            ```
        """
        return self._start([node_spec(node, len(self.nodes))])[0]

    def kill_node(self, index: int) -> None:
        """End a node as a power cut would: its raylet and every process below it, with SIGKILL.

        Args:
            index: Its index in `nodes`; not 0, the head.

        Raises:
            Invalid: There is no such node, or it is the head.

        Example:
            ```python
            cluster.kill_node(1)
            ```
        """
        if not isinstance(index, int) or not 0 <= index < len(self.nodes):
            raise Invalid(f"node {index!r} is not in this cluster, which has the nodes 0 to {len(self.nodes) - 1}")
        if index == 0:
            raise Invalid("node 0 is the head, which the cluster needs; kill node 1, or close() the cluster")
        if self.nodes[index].alive:
            self._ask({"do": "kill", "index": index})
            self.nodes[index].alive = False

    def kill_head(self, *, only_gcs: bool = False) -> None:
        """End the head as a power cut would. The other nodes look for it at its address for one minute, or for
        ``RAY_gcs_rpc_server_reconnect_timeout_s`` seconds.

        Args:
            only_gcs: End only the head's GCS, the process that knows the cluster.

        Raises:
            Invalid: The head is killed already.

        Example:
            ```python
            cluster.kill_head(only_gcs=True)
            ```
        """
        if self._head_killed:
            raise Invalid("the head was already killed; call restart_head() first")
        self._ask({"do": "kill head", "only_gcs": only_gcs})
        self._head_killed = True
        self.nodes[0].alive = only_gcs

    def restart_head(self) -> LocalNode:
        """Start again what `kill_head` ended, at the same address.

        Ray remembers the cluster only if it has an external store, ``environment={"RAY_REDIS_ADDRESS": ...}``.
        Without one, the other nodes are lost.

        Returns:
            The new head.

        Raises:
            Invalid: The head runs.

        Example:
            ```python
            cluster.restart_head()
            ```
        """
        if not self._head_killed:
            raise Invalid("the head is running; call kill_head() first")
        head = self._ask({"do": "restart head"})["nodes"][0]
        self._head_killed = False
        self.nodes[0] = LocalNode(0, head["node_id"], self.nodes[0].spec, head["raylet_pid"])
        return self.nodes[0]

    def close(self) -> None:
        """End all nodes and remove their files. A second call does nothing.

        Example:
            ```python
            cluster.close()
            ```
        """
        if self._closed or os.getpid() != self._owner:
            return
        self._closed = True
        _disconnect(self.address)
        with suppress(OSError, ValueError):
            assert self._supervisor.stdin
            self._supervisor.stdin.close()
        try:
            self._supervisor.wait(END_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            # The kernel kills the processes that it started.
            self._supervisor.kill()
            self._supervisor.wait()
        assert self._supervisor.stdout
        self._supervisor.stdout.close()
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
                assert self._supervisor.stdin and self._supervisor.stdout
                self._supervisor.stdin.write(json.dumps(request) + "\n")
                self._supervisor.stdin.flush()
                if select.select([self._supervisor.stdout], [], [], START_SECONDS_MAX)[0]:
                    line = self._supervisor.stdout.readline()
        if not line:
            raise NotStarted(
                f"Ray did not answer{_last_words(self.temp_dir)}; check the memory and the load of the machine"
            )
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise NotStarted(f"a node of the local cluster did not start: {answer['error']}")
        return answer


@contextmanager
def local_cluster(
    nodes: Sequence[NodeOptions | Mapping[str, object]],
    rare_resource_isolation: Iterable[str] = (),
    *,
    hooked: bool = True,
    include_dashboard: bool = False,
    include_monitor: bool = False,
    environment: Mapping[str, str] | None = None,
    system_config: Mapping[str, object] | None = None,
) -> Iterator[LocalCluster]:
    """Run several real Ray nodes on this machine for as long as the ``with`` block runs.

    The cluster listens on loopback only. With `include_dashboard`, Ray listens on every interface of this machine.

    Args:
        nodes: The nodes to start; the first is the head.
        rare_resource_isolation: Resources whose nodes only take work that asks for them, for example ``["GPU"]``.
        hooked: Whether stead places what programs on this cluster submit, also without `stead.init`.
        include_dashboard: Whether to start Ray's dashboard.
        include_monitor: Whether to start Ray's autoscaler.
        environment: Environment variables of every process of the cluster.
        system_config: Ray's own ``_system_config``.

    Returns:
        A context manager whose value is the `LocalCluster`.

    Raises:
        Invalid: A node is not described as it must be.
        Unsupported: Ray is not installed.
        NotStarted: A node did not start.

    Example:
        ```python
        with local_cluster([{"num_cpus": 2}, {"num_cpus": 1, "taints": {"gpu_node": "true"}}]) as cluster:
            stead.init(cluster.address)
        ```
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
        raise Invalid(f"the cluster file {path} must contain a list of nodes; a good line is '- num_cpus: 2'")
    _specs(written)
    marks_of((), rare)
    return written, rare


def table(cluster: LocalCluster) -> str:
    """The nodes of a cluster as text, one per line."""
    rows = [("NODE", "NAME", "ID", "CPU", "GPU", "RESOURCES", "LABELS", "TAINTS")]
    rows += [
        (
            "0 (head)" if node.index == 0 else str(node.index),
            node.spec.name or "-",
            short_id(node.node_id),
            str(node.spec.num_cpus),
            str(node.spec.num_gpus),
            _pairs(node.spec.resources),
            _pairs(node.labels),
            ", ".join(map(str, node.taints)) or "-",
        )
        for node in cluster.nodes
    ]
    return "\n".join([f"Ray at {cluster.address}, files in {cluster.temp_dir}", "", *aligned(rows)])


def _pairs(pairs: Mapping[str, object]) -> str:
    return ", ".join(f"{key}={value}" for key, value in sorted(pairs.items())) or "-"


def cluster_environment(inherited: Mapping[str, str], given: Mapping[str, str], hooked: bool) -> dict[str, str]:
    """The environment of all processes of the cluster: the caller's, without variables about other clusters."""
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
        lines = (Path(directory) / "supervisor.err").read_text(encoding="utf-8", errors="replace").split("\n")
        last = [line.strip() for line in lines if line.strip()][-1:]
        return "".join(f" ({line})" for line in last)
    return ""


def _disconnect(address: str) -> None:
    """Disconnect this process from the cluster first: Ray kills a driver whose raylet dies."""
    ray = sys.modules.get("ray")
    with suppress(Exception):
        if address and ray and ray.is_initialized() and ray.get_runtime_context().gcs_address == address:
            ray.shutdown()


def _start_supervisor(directory: str, environment: Mapping[str, str]) -> subprocess.Popen[str]:
    program = "import sys; from stead.ray.local.supervisor import supervise; supervise(sys.argv[1], int(sys.argv[2]))"
    with (Path(directory) / "supervisor.err").open("w") as words:
        return subprocess.Popen(
            [sys.executable, "-c", program, directory, str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=words,
            env=dict(environment),
            start_new_session=True,  # Ctrl-C goes only to the owner, which then stops the cluster
            text=True,
        )
