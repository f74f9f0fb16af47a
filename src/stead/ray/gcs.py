"""What stead asks of Ray's control store beyond Ray's public calls.

Rule: the only file that speaks to the control store in its own messages. Six things are said this way, because Ray
has no other: a group whose id was given out before it could be placed; a node that joins and leaves at once, which is
the one event at which Ray looks again at groups that no node could hold; that the restarts of evicted actors do not
count; the changes of actors as they happen; which tasks run and wait, because Ray's own listing of them needs its
dashboard; and a value in Ray's key-value store.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
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
TASKS_MAX = 2000
"""So many tasks of each state are listed singly."""

NAMES_MAX = 10_000
"""So many waiting tasks are looked through for the names they carry."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class GroupSpec:
    """A placement group as it goes to Ray. It goes with `actor`, a detached one, or else with `job`, unless it is
    detached itself. (Ray has more to say, of an actor that is not detached: its groups go when its job ends.)"""

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
    """A task, or the start of an actor, that waits or runs, as its owner has told it to Ray a second ago."""

    id: str
    is_actor: bool  # then `id` is the actor's
    name: str
    node_id: str  # where it runs, "" while it waits
    resources: Mapping[str, float]
    labels: Mapping[str, str]
    job_id: str
    since: float  # when it was submitted, or began to run


class ControlStore:
    def __init__(self, address: str) -> None:
        channel = create_gcs_channel(address)
        self._groups = gcs_service_pb2_grpc.PlacementGroupInfoGcsServiceStub(channel)
        self._nodes = gcs_service_pb2_grpc.NodeInfoGcsServiceStub(channel)
        self._tasks = gcs_service_pb2_grpc.TaskInfoGcsServiceStub(channel)
        self._autoscaler = autoscaler_pb2_grpc.AutoscalerStateServiceStub(channel)

    def create_group(self, spec: GroupSpec) -> None:
        """Create it, unless it is there already: then nothing happens, so it may be said again."""
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
        """A group as it went to Ray, and since when its bundles are where they are."""
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

    def look_again(self) -> None:
        """Let Ray try once more to place the groups that it took for infeasible."""
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

        Ray does so for the actors of a node that is about to be preempted, and it marks them before the node has said
        whether it agrees. This asks to end the node for being idle, which a node with work on it refuses.
        """
        request = autoscaler_pb2.DrainNodeRequest(
            node_id=bytes.fromhex(node_id),
            reason=autoscaler_pb2.DrainNodeReason.DRAIN_NODE_REASON_IDLE_TERMINATION,
            reason_message="stead evicts actors of this node, which are not to lose a restart by it",
        )
        self._autoscaler.DrainNode(request, timeout=ANSWER_S)

    def names_of_waiting_tasks(self) -> set[str] | None:
        """Resources that waiting tasks ask for, also those that Ray's demands do not list; None if Ray does not know
        all of them any more."""
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
        """Tasks (and starts of actors) in this state, up to `TASKS_MAX`."""
        reply = self._events(state, TASKS_MAX)
        rows = [row for row in reply.events_by_task if row.task_info.type != common_pb2.TaskType.ACTOR_TASK]
        return [_task(row) for row in rows]

    def label_selectors(self, task_id: str) -> list[dict[str, str]]:
        """The label selector of a task, then those it falls back to; empty if Ray knows no such task, or no longer."""
        request = gcs_service_pb2.GetTaskEventsRequest(limit=1)
        request.filters.task_filters.add(
            task_id=bytes.fromhex(task_id), predicate=gcs_service_pb2.FilterPredicate.EQUAL
        )
        found = self._tasks.GetTaskEvents(request, timeout=ANSWER_S).events_by_task
        return [dict(row.task_info.label_selector) for row in found] + [
            _selector(option.label_selector) for row in found for option in row.task_info.fallback_strategy.options
        ]


def _task(row: Any) -> TaskRow:
    told, now = row.task_info, row.state_updates
    is_actor = told.type == common_pb2.TaskType.ACTOR_CREATION_TASK
    running = now.state_ts_ns.get(common_pb2.TaskStatus.RUNNING, 0)
    since = running or min(now.state_ts_ns.values(), default=0)
    return TaskRow(
        (told.actor_id if is_actor else row.task_id).hex(),
        is_actor,
        told.name or told.func_or_class_name,
        now.node_id.hex() if running else "",
        dict(told.required_resources),
        dict(told.label_selector),
        row.job_id.hex(),
        since / 1e9,
    )


def _selector(said: Any) -> dict[str, str]:
    """A label selector as people write it."""
    is_in = common_pb2.LabelSelectorOperator.LABEL_OPERATOR_IN
    return {
        each.label_key: f"{'' if each.operator == is_in else '!'}in({','.join(each.label_values)})"
        for each in said.label_constraints
    }


def _topology(strategy: str) -> int:
    return int(common_pb2.PlacementStrategy.Value(strategy))


@dataclass(frozen=True, slots=True)
class ActorNews:
    """What became of an actor; `state` is Ray's word."""

    id: str
    state: str
    node_id: str


class KeyValues:
    """One value of stead's in Ray's own key-value store. With Redis behind the control store it outlives the head."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def get(self, key: str) -> bytes | None:
        found: bytes | None = self._client.internal_kv_get(key.encode(), b"stead", ANSWER_S)
        return found

    def put(self, key: str, value: bytes) -> None:
        self._client.internal_kv_put(key.encode(), value, True, b"stead", ANSWER_S)


class NewsOfActors:
    """Listens to the changes of all actors in a thread of its own, and keeps those that are asked for."""

    def __init__(self, address: str, is_of_interest: Callable[[str], bool], wake: Callable[[], None]) -> None:
        self._address, self._is_of_interest, self._wake = address, is_of_interest, wake
        self._lock = threading.Lock()
        self._news: list[ActorNews] = []
        self._missed = True
        threading.Thread(target=lambda: asyncio.run(self._listen()), name="stead-actor-news", daemon=True).start()

    def take(self) -> tuple[Sequence[ActorNews], bool]:
        """What came since the last call, and whether something may have been missed before it."""
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
                    self._missed = True  # whatever happened before this moment has to be looked up
                self._wake()
                while True:
                    self._keep(await subscriber.poll(NEWS_MAX))
            except Exception:  # the control store restarts
                log.debug("no news of actors; subscribing again", exc_info=True)
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
