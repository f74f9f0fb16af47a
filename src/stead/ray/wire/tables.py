"""Ray's own tables as plain values: nodes, amounts, pending demands, actors, jobs.

Rule: read-only. Only this file and `gcs.py` know the form of Ray's messages. Amounts are Ray's floats; names that begin
with ``stead.`` are included like all others.
"""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from typing import Any

import ray
from ray._private.ray_constants import KV_NAMESPACE_DASHBOARD
from ray.core.generated import autoscaler_pb2, common_pb2, gcs_pb2
from ray.util.placement_group import PlacementGroup

from stead.language.labels import RAY_NODE_ID
from stead.operate.rows import KnownOwner
from stead.ray.wire.gcs import group_in, selectors_in

ACTOR_DIGITS, GROUP_DIGITS, TASK_DIGITS = 32, 36, 48
"""Lengths of Ray's ids. Job ids are shorter."""

SHAPES_LISTED_MAX = 100
"""How many kinds of pending work a raylet lists. With this many rows, some may be missing."""

INTERPRETER = re.compile(r"python[0-9.]*|ipython[0-9.]*|bash|sh")


@dataclass(frozen=True, slots=True)
class NodeRow:
    id: str
    ip: str
    labels: Mapping[str, str]
    total: Mapping[str, float]
    available: Mapping[str, float]
    draining: bool
    kind: str = ""  # the name of its node type, if an autoscaler launched it
    idle_s: float = 0.0  # for how long Ray has used none of it; 0 if it is in use


@dataclass(frozen=True, slots=True)
class FailedLaunch:
    """A node that Ray's autoscaler could not launch. Ray keeps the reason in its own log. Times are whole seconds since
    1970."""

    kind: str
    began: float
    failed: float


@dataclass(frozen=True, slots=True)
class Raylet:
    """Where a node's raylet is on its machine."""

    socket: str
    session: str  # the directory of Ray's session there


@dataclass(frozen=True, slots=True)
class PendingRow:
    """Pending work in Ray: a number of tasks, actors or bundles of one kind."""

    resources: Mapping[str, float]
    labels: tuple[tuple[str, bool, tuple[str, ...]], ...]  # key, whether it must be one of the values, the values
    count: int
    of_a_group: bool = False  # a bundle


@dataclass(frozen=True, slots=True)
class Status:
    nodes: Mapping[str, NodeRow]
    pending: tuple[PendingRow, ...]
    groups_wait: bool = False  # a placement group is not placed, or only partly
    requested: Mapping[str, int] = field(default_factory=dict)  # by node type, what Ray's autoscaler requested
    starting: Mapping[str, int] = field(default_factory=dict)  # by node type, what exists and has not joined
    failures: tuple[FailedLaunch, ...] = ()  # what it could not launch; Ray's autoscaler never forgets them


@dataclass(frozen=True, slots=True)
class ActorRow:
    id: str
    state: str  # Ray's word: PENDING_CREATION, ALIVE, RESTARTING, DEAD, DEPENDENCIES_UNREADY
    node_id: str
    resources: Mapping[str, float]
    name: str
    namespace: str
    class_name: str
    job_id: str
    selectors: tuple[Mapping[str, str], ...]  # its label selector in Ray's syntax, then its fallbacks
    since: float | None = None  # when it became alive
    group: str = ""  # the placement group that it runs in
    restarts_freely: bool = False  # whether its next restart counts against no limit


LIVE_STATES = (b"DEPENDENCIES_UNREADY", b"PENDING_CREATION", b"RESTARTING", b"ALIVE", b"RESTARTING")
"""In the order in which actors pass through them, so that an actor that changes between two calls is in one answer."""


class Tables:
    def __init__(self, address: str) -> None:
        self.address = address
        self.gcs: Any = ray._raylet.GcsClient(address=address)

    def status(self) -> Status:
        """Two calls, 1 ms each. Amounts lag by about 100 ms: they come from the scheduler's own tables, because those
        for the autoscaler lag by a second. Totals and available amounts come from the same answer: otherwise one could
        show work and the other not yet its ticket."""
        reply = autoscaler_pb2.GetClusterStatusReply()
        reply.ParseFromString(self.gcs.get_cluster_status())
        state = reply.cluster_resource_state
        usage = gcs_pb2.ResourceUsageBatchData.FromString(_accessor().get_all_resource_usage())
        amounts = {row.node_id.hex(): (dict(row.resources_total), dict(row.resources_available)) for row in usage.batch}
        alive = [_node(row) for row in state.node_states if row.status != autoscaler_pb2.NodeStatus.DEAD]
        nodes = [
            replace(node, total=amounts[node.id][0], available=amounts[node.id][1]) if node.id in amounts else node
            for node in alive
        ]
        pending = [_pending(row) for row in state.pending_resource_requests]
        pending += [
            PendingRow(dict(request.resources_bundle), (), 1, of_a_group=True)
            for group in state.pending_gang_resource_requests
            for request in group.requests
        ]
        scaling = reply.autoscaling_state
        requested = Counter[str]()
        for request in scaling.pending_instance_requests:
            requested[request.ray_node_type_name] += request.count
        return Status(
            {node.id: node for node in nodes},
            tuple(pending),
            bool(state.pending_gang_resource_requests),
            dict(requested),
            dict(Counter(instance.ray_node_type_name for instance in scaling.pending_instances)),
            _failures(scaling),
        )

    def node_names(self) -> dict[str, str]:
        """The names that users gave to nodes, by id."""
        found = self.gcs.get_all_node_info(timeout=10)
        return {node_id.hex(): row.node_name for node_id, row in found.items()}

    def raylets(self) -> dict[str, Raylet]:
        """The raylets of all live nodes, by node id."""
        found = self.gcs.get_all_node_info(timeout=10)
        alive = {id.hex(): row for id, row in found.items() if row.state == gcs_pb2.GcsNodeInfo.ALIVE}
        return {id: Raylet(row.raylet_socket_name, row.session_dir) for id, row in alive.items()}

    def actor(self, actor_id: str) -> ActorRow | None:
        raw = _accessor().get_actor_info(ray.ActorID.from_hex(actor_id))
        return None if raw is None else _actor(raw)

    def actors(self) -> list[ActorRow]:
        """All actors that are not dead. Ray keeps up to 100,000 dead ones, so they are not requested."""
        accessor = _accessor()
        rows = [_actor(raw) for state in LIVE_STATES for raw in accessor.get_actor_table(None, state)]
        return list({row.id: row for row in rows if row.state != "DEAD"}.values())

    def names_of_waiting_actors(self) -> set[str]:
        """Resources that actors wait for; with a soft node affinity they do not show in Ray's demands."""
        return {name for row in self.actors() if row.state != "ALIVE" for name in row.resources}

    def live_jobs(self) -> set[str]:
        """Ids of running jobs: Ray's own, and their submission ids."""
        alive = {id: row for id, row in self.gcs.get_all_job_info(timeout=10).items() if not row.is_dead}
        submitted = {row.config.metadata.get("job_submission_id", "") for row in alive.values()}
        return ({id.hex() for id in alive} | submitted) - {""}

    def jobs(self) -> dict[str, KnownOwner]:
        """Every job that Ray remembers, by the id that its work carries."""
        return {id.hex(): _job(row) for id, row in self.gcs.get_all_job_info(timeout=10).items()}

    def dashboard(self) -> str:
        """HOST:PORT of Ray's dashboard; "" if it has none."""
        found = self.gcs.internal_kv_get(b"webui:url", KV_NAMESPACE_DASHBOARD, timeout=10)
        return found.decode(errors="replace") if found else ""

    def live_owners(self, owners: Iterable[str]) -> set[str]:
        """The running jobs and the actors that are not dead, of these."""
        owners = set(owners)
        if not owners:
            return set()
        rows = {id: self.actor(id) for id in owners if len(id) == ACTOR_DIGITS}
        live = {id for id, row in rows.items() if row is not None and row.state != "DEAD"}
        return live | (owners & self.live_jobs() if owners - rows.keys() else set())

    def group(self, id: str) -> Mapping[str, Any]:
        """One placement group in Ray's own form; empty if Ray does not have this id."""
        found = ray.util.placement_group_table(handle(id))
        return found or {}

    def groups(self) -> dict[str, Mapping[str, Any]]:
        """All placement groups that are not removed, by id, in Ray's own form. Two can have one name: a name is unique
        in its namespace only."""
        found = ray.util.placement_group_table() or {}
        return {id: {**row, "id": id} for id, row in found.items() if row["state"] != "REMOVED"}


def handle(id: str) -> Any:
    """A placement group by its id. By name, Ray finds only groups of the caller's namespace, and a controller runs in
    the namespace of the program that started it."""
    return PlacementGroup(ray.PlacementGroupID.from_hex(id))


def group_on(node: str, name: str, resource: str, amount: float) -> Any:
    """A new placement group that holds this amount of one resource on one node, and outlives the controller."""
    labels = {RAY_NODE_ID: node}
    return ray.util.placement_group(
        [{resource: amount}], name=name, lifetime="detached", bundle_label_selector=[labels]
    )


def _accessor() -> Any:
    return ray._private.state.state._connect_and_get_accessor()


def _node(row: Any) -> NodeRow:
    draining = row.status == autoscaler_pb2.NodeStatus.DRAINING
    return NodeRow(
        row.node_id.hex(),
        row.node_ip_address,
        dict(row.labels),
        dict(row.total_resources),
        dict(row.available_resources),
        draining,
        row.ray_node_type_name,
        row.idle_duration_ms / 1e3,
    )


def _failures(scaling: Any) -> tuple[FailedLaunch, ...]:
    return tuple(
        FailedLaunch(each.ray_node_type_name, float(each.start_ts), float(each.failed_ts))
        for each in scaling.failed_instance_requests
    )


def _pending(row: Any) -> PendingRow:
    # One selector per choice; the first is the most preferred.
    labels = [
        (each.label_key, each.operator == common_pb2.LabelSelectorOperator.LABEL_OPERATOR_IN, tuple(each.label_values))
        for selector in row.request.label_selectors[:1]
        for each in selector.label_constraints
    ]
    return PendingRow(dict(row.request.resources_bundle), tuple(labels), row.count)


def _job(row: Any) -> KnownOwner:
    named = row.config.metadata.get("job_name") or row.config.metadata.get("job_submission_id")
    return KnownOwner(
        named or program_name(row.entrypoint), "ended" if row.is_dead else "running", row.start_time / 1e3 or None
    )


def program_name(command: str) -> str:
    """The program of a command line, without path, interpreter and arguments: ``train.py``."""
    try:
        words = shlex.split(command)
    except ValueError:  # an unclosed quotation mark
        words = command.split()
    rest = iter(words)
    for word in rest:
        name = PurePosixPath(word).name
        if word == "-c":
            break
        if word in ("-W", "-X"):
            next(rest, "")
        elif not word.startswith("-") and not INTERPRETER.fullmatch(name):
            return name
    return PurePosixPath(words[0]).name if words else ""


def _actor(raw: bytes) -> ActorRow:
    row = gcs_pb2.ActorTableData.FromString(raw)
    return ActorRow(
        row.actor_id.hex(),
        gcs_pb2.ActorTableData.ActorState.Name(row.state),
        row.address.node_id.hex() if row.address.node_id.strip(b"\xff") else "",
        dict(row.required_resources),
        row.name,
        row.ray_namespace,
        row.class_name,
        row.job_id.hex(),
        selectors_in(row),
        row.start_time / 1e3 or None,
        group_in(row),
        row.max_restarts == -1 or (row.preempted and row.max_restarts > 0),
    )
