"""What stead asks of Ray's control store beyond Ray's public calls.

Rule: the only file that speaks to the control store in its own messages. Three things are said this way, because Ray
has no other: a group whose id was given out before it could be placed; a node that joins and leaves at once, which is
the one event at which Ray looks again at groups that no node could hold; and the changes of actors as they happen.
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
from ray.core.generated import common_pb2, gcs_pb2, gcs_service_pb2, gcs_service_pb2_grpc

ANSWER_S = 10.0
NEWS_MAX = 1000
GHOST = "stead asks Ray to look again at groups that wait"
_EXPECTED_TERMINATION = 1

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class GroupSpec:
    """A placement group as it goes to Ray. `job` is whose it is and with whom it goes, unless it is detached."""

    id: str
    bundles: tuple[Mapping[str, float], ...]
    label_selectors: tuple[Mapping[str, str], ...]
    strategy: str
    topology: Mapping[str, str]
    name: str
    job: str
    actor: str
    detached: bool


class ControlStore:
    def __init__(self, address: str) -> None:
        channel = create_gcs_channel(address)
        self._groups = gcs_service_pb2_grpc.PlacementGroupInfoGcsServiceStub(channel)
        self._nodes = gcs_service_pb2_grpc.NodeInfoGcsServiceStub(channel)

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
            creator_job_dead=spec.detached,
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


def _topology(strategy: str) -> int:
    return int(common_pb2.PlacementStrategy.Value(strategy))


@dataclass(frozen=True, slots=True)
class ActorNews:
    """What became of an actor; `state` is Ray's word."""

    id: str
    state: str
    node_id: str


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
