"""Calls to Ray's control store for which Ray has no public function.

Rule: only this file sends the control store's own messages. It does six things: create a group whose id is already in
use; add and remove a node, the only event that makes Ray retry infeasible groups; exempt restarts of evicted actors
from their limit; subscribe to changes of actors; list running and pending tasks, because Ray's own listing needs its
dashboard; and store a value in Ray's key-value store.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ray
from ray._private.gcs_pubsub import GcsAioActorSubscriber
from ray._private.gcs_utils import create_gcs_channel
from ray.core.generated import (
    autoscaler_pb2,
    autoscaler_pb2_grpc,
    common_pb2,
    gcs_pb2,
    gcs_service_pb2,
    gcs_service_pb2_grpc,
)

ANSWER_S = 10.0
NEWS_MAX = 1000
GHOST = "stead asks Ray to look again at groups that wait"
_EXPECTED_TERMINATION = 1
CLOSED_S = 86_400.0
"""When Ray's libraries expect a node to be gone that takes no new work."""

TASKS_MAX = 2000
"""Maximum number of tasks of each state that are listed individually."""

NAMES_MAX = 10_000
"""Maximum number of pending tasks that are searched for names."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class GroupSpec:
    """A placement group as it goes to Ray. It ends with `actor`, a detached one, or else with `job`, unless it is
    detached itself. (In Ray, groups of an actor that is not detached end with its job.)"""

    id: str
    bundles: tuple[Mapping[str, float], ...]
    label_selectors: tuple[Mapping[str, str], ...]
    strategy: str
    topology: Mapping[str, str]
    name: str
    job: str
    actor: str
    detached: bool


@dataclass(frozen=True, slots=True)
class TaskRow:
    """A task, or an actor that is starting, as its owner reported it to Ray up to a second ago."""

    id: str
    is_actor: bool  # True: `id` is the actor's
    name: str
    node_id: str  # where it runs, "" while it is pending
    resources: Mapping[str, float]
    selectors: tuple[Mapping[str, str], ...]  # its label selector in Ray's syntax, then its fallbacks
    job_id: str
    since: float  # when it was submitted, or began to run
    group: str = ""  # the placement group that it runs in
    has_ended: bool = False


class ControlStore:
    def __init__(self, address: str) -> None:
        channel = create_gcs_channel(address)
        self._groups = gcs_service_pb2_grpc.PlacementGroupInfoGcsServiceStub(channel)
        self._nodes = gcs_service_pb2_grpc.NodeInfoGcsServiceStub(channel)
        self._actors = gcs_service_pb2_grpc.ActorInfoGcsServiceStub(channel)
        self._tasks = gcs_service_pb2_grpc.TaskInfoGcsServiceStub(channel)
        self._autoscaler = autoscaler_pb2_grpc.AutoscalerStateServiceStub(channel)

    def create_group(self, spec: GroupSpec) -> None:
        """Create a group. Does nothing if it already exists, so the call can be repeated."""
        id = bytes.fromhex(spec.id)
        message = common_pb2.PlacementGroupSpec(
            placement_group_id=id,
            name=spec.name,
            strategy=common_pb2.PlacementStrategy.Value(spec.strategy),
            creator_job_id=bytes.fromhex(spec.job),
            creator_actor_id=bytes.fromhex(spec.actor) if spec.actor else ray.ActorID.nil().binary(),
            creator_actor_dead=not spec.actor,
            creator_job_dead=spec.detached or bool(spec.actor),
            is_detached=spec.detached,
        )
        for key, strategy in spec.topology.items():
            message.topology_strategy[key] = _topology(strategy)
        for index, (amounts, labels) in enumerate(zip(spec.bundles, spec.label_selectors, strict=True)):
            bundle = message.bundles.add()
            bundle.bundle_id.placement_group_id = id
            bundle.bundle_id.bundle_index = index
            bundle.unit_resources.update(amounts)
            bundle.label_selector.update(labels)
        request = gcs_service_pb2.CreatePlacementGroupRequest(placement_group_spec=message)
        reply = self._groups.CreatePlacementGroup(request, timeout=ANSWER_S)
        if reply.status.code:
            raise RuntimeError(f"Ray refused group {spec.id}: {reply.status.message}")

    def group(self, id: str) -> tuple[GroupSpec, float]:
        """A group as it went to Ray, and when its bundles were placed."""
        request = gcs_service_pb2.GetPlacementGroupRequest(placement_group_id=bytes.fromhex(id))
        row = self._groups.GetPlacementGroup(request, timeout=ANSWER_S).placement_group_table_data
        spec = GroupSpec(
            id,
            tuple(dict(bundle.unit_resources) for bundle in row.bundles),
            tuple(dict(bundle.label_selector) for bundle in row.bundles),
            common_pb2.PlacementStrategy.Name(row.strategy),
            {key: common_pb2.PlacementStrategy.Name(each) for key, each in row.topology_strategy.items()},
            row.name,
            row.creator_job_id.hex(),
            row.creator_actor_id.hex() if row.creator_job_dead and not row.creator_actor_dead else "",
            row.is_detached,
        )
        return spec, row.placement_group_final_bundle_placement_timestamp_ms / 1e3

    def kill_actor(self, id: str) -> None:
        """End an actor for good, also one that is pending. `ray.kill` needs a handle, which only its owner has."""
        request = gcs_service_pb2.KillActorViaGcsRequest(actor_id=bytes.fromhex(id), force_kill=True, no_restart=True)
        self._actors.KillActorViaGcs(request, timeout=ANSWER_S)

    def look_again(self) -> None:
        """Make Ray retry groups that it considers infeasible."""
        node_id = os.urandom(ray.NodeID.size())
        node = gcs_pb2.GcsNodeInfo(
            node_id=node_id,
            node_manager_address="127.0.0.1",
            node_manager_port=1,
            node_name=GHOST,
            node_manager_hostname=GHOST,
            state=gcs_pb2.GcsNodeInfo.GcsNodeState.ALIVE,
        )
        gone = gcs_service_pb2.UnregisterNodeRequest(node_id=node_id)
        gone.node_death_info.reason = _EXPECTED_TERMINATION
        gone.node_death_info.reason_message = GHOST
        self._nodes.RegisterNode(gcs_service_pb2.RegisterNodeRequest(node_info=node), timeout=ANSWER_S)
        self._nodes.UnregisterNode(gone, timeout=ANSWER_S)

    def spare_restarts(self, node_id: str) -> None:
        """Let the actors that are on this node now restart once without counting it against their limit.

        Ray does so for actors of a node that is about to be preempted, and marks them before the node has agreed. This
        call asks the node to end because it is idle, which a node with work refuses.
        """
        self.end_if_idle(node_id, "stead evicts actors of this node, without using up their restarts")

    def end_if_idle(self, node_id: str, why: str) -> bool:
        """Ask a node to end if it is idle. Returns whether it agreed; a node with work refuses."""
        request = autoscaler_pb2.DrainNodeRequest(
            node_id=bytes.fromhex(node_id),
            reason=autoscaler_pb2.DrainNodeReason.DRAIN_NODE_REASON_IDLE_TERMINATION,
            reason_message=why,
        )
        return bool(self._autoscaler.DrainNode(request, timeout=ANSWER_S).is_accepted)

    def close_for_good(self, node_id: str, why: str) -> None:
        """Let a node take no new work. This cannot be undone. What runs there goes on."""
        request = autoscaler_pb2.DrainNodeRequest(
            node_id=bytes.fromhex(node_id),
            reason=autoscaler_pb2.DrainNodeReason.DRAIN_NODE_REASON_PREEMPTION,
            reason_message=why,
            deadline_timestamp_ms=int((time.time() + CLOSED_S) * 1000),
        )
        self._autoscaler.DrainNode(request, timeout=ANSWER_S)

    def names_of_waiting_tasks(self) -> set[str] | None:
        """Resources that pending tasks ask for, also those that Ray's demands do not list; None if Ray no longer knows
        all of them."""
        names: set[str] = set()
        for state in (
            "PENDING_ARGS_AVAIL",
            "PENDING_NODE_ASSIGNMENT",
            "PENDING_OBJ_STORE_MEM_AVAIL",
            "PENDING_ARGS_FETCH",
        ):
            reply = self._events(state, NAMES_MAX)
            if reply.num_truncated or reply.num_status_task_events_dropped:
                return None
            names |= {name for row in reply.events_by_task for name in row.task_info.required_resources}
        return names

    def _events(self, state: str, limit: int) -> Any:
        request = gcs_service_pb2.GetTaskEventsRequest(limit=limit)
        request.filters.exclude_driver = True
        request.filters.state_filters.add(state=state, predicate=gcs_service_pb2.FilterPredicate.EQUAL)
        return self._tasks.GetTaskEvents(request, timeout=ANSWER_S)

    def tasks(self, state: str) -> list[TaskRow]:
        """Tasks (and starting actors) in this state, up to `TASKS_MAX`."""
        reply = self._events(state, TASKS_MAX)
        rows = [row for row in reply.events_by_task if row.task_info.type != common_pb2.TaskType.ACTOR_TASK]
        return [_task(row) for row in rows]

    def task(self, task_id: str) -> TaskRow | None:
        """The last attempt of a task; None if Ray does not know the task, or has forgotten it."""
        request = gcs_service_pb2.GetTaskEventsRequest()
        request.filters.task_filters.add(
            task_id=bytes.fromhex(task_id), predicate=gcs_service_pb2.FilterPredicate.EQUAL
        )
        found = self._tasks.GetTaskEvents(request, timeout=ANSWER_S).events_by_task
        return _task(max(found, key=lambda row: row.attempt_number)) if found else None


def _task(row: Any) -> TaskRow:
    task, now = row.task_info, row.state_updates
    is_actor = task.type == common_pb2.TaskType.ACTOR_CREATION_TASK
    running = now.state_ts_ns.get(common_pb2.TaskStatus.RUNNING, 0)
    since = running or min(now.state_ts_ns.values(), default=0)
    return TaskRow(
        (task.actor_id if is_actor else row.task_id).hex(),
        is_actor,
        task.name or task.func_or_class_name,
        now.node_id.hex() if running else "",
        dict(task.required_resources),
        selectors_in(task),
        row.job_id.hex(),
        since / 1e9,
        group_in(task),
        any(state in now.state_ts_ns for state in (common_pb2.TaskStatus.FINISHED, common_pb2.TaskStatus.FAILED)),
    )


def selectors_in(row: Any) -> tuple[Mapping[str, str], ...]:
    """The label selector of a task or an actor, then its fallbacks, as users write them."""
    is_in = common_pb2.LabelSelectorOperator.LABEL_OPERATOR_IN
    fallbacks = [
        {
            each.label_key: f"{'' if each.operator == is_in else '!'}in({','.join(each.label_values)})"
            for each in option.label_selector.label_constraints
        }
        for option in row.fallback_strategy.options
    ]
    return (dict(row.label_selector), *fallbacks)


def group_in(row: Any) -> str:
    """The placement group of a task or an actor; "" for none."""
    return row.placement_group_id.hex() if row.placement_group_id.strip(b"\xff") else ""


def _topology(strategy: str) -> int:
    return int(common_pb2.PlacementStrategy.Value(strategy))


@dataclass(frozen=True, slots=True)
class ActorNews:
    """A change of an actor; `state` is Ray's own word."""

    id: str
    state: str
    node_id: str


class KeyValues:
    """One value of stead's in Ray's key-value store. If the control store uses Redis, it survives the loss of the
    head."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def get(self, key: str) -> bytes | None:
        found: bytes | None = self._client.internal_kv_get(key.encode(), b"stead", ANSWER_S)
        return found

    def put(self, key: str, value: bytes) -> None:
        self._client.internal_kv_put(key.encode(), value, True, b"stead", ANSWER_S)


class NewsOfActors:
    """Subscribes to the changes of all actors in a separate thread, and keeps the relevant ones."""

    def __init__(self, address: str, is_of_interest: Callable[[str], bool], wake: Callable[[], None]) -> None:
        self._address, self._is_of_interest, self._wake = address, is_of_interest, wake
        self._lock = threading.Lock()
        self._news: list[ActorNews] = []
        self._missed = True
        threading.Thread(target=lambda: asyncio.run(self._listen()), name="stead-actor-news", daemon=True).start()

    def take(self) -> tuple[Sequence[ActorNews], bool]:
        """The changes since the last call, and whether some may have been missed."""
        with self._lock:
            news, missed = self._news, self._missed
            self._news, self._missed = [], False
        return news, missed

    async def _listen(self) -> None:
        while True:
            try:
                subscriber = GcsAioActorSubscriber(address=self._address)
                await subscriber.subscribe()
                with self._lock:
                    self._missed = True  # earlier changes must be looked up
                self._wake()
                while True:
                    self._keep(await subscriber.poll(NEWS_MAX))
            except Exception:  # for example, the control store restarts
                log.debug("the subscription to actors failed; subscribing again", exc_info=True)
                await asyncio.sleep(0.5)

    def _keep(self, rows: Sequence[tuple[bytes, Any]]) -> None:
        mine = [_news(id, row) for id, row in rows if self._is_of_interest(id.hex())]
        if mine:
            with self._lock:
                self._news += mine
            self._wake()


def _news(id: bytes, row: Any) -> ActorNews:
    node = row.address.node_id
    state = gcs_pb2.ActorTableData.ActorState.Name(row.state)
    return ActorNews(id.hex(), state, node.hex() if node.strip(b"\xff") else "")
