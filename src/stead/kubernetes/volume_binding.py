"""Binds the claims of placed pods: what must be written for them, and what follows when they are bound or fail.

Rule: the storage chooses, and the claimer writes and waits; this joins them. A pod is bound after all its claims, and a
pod whose claims cannot be bound gives its place back.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from stead.errors import Invalid
from stead.kubernetes.api.binding import BindResult, Outcome
from stead.kubernetes.api.claiming import Claimer, ClaimRef, Object, SelectNode, TakeVolume, Write
from stead.kubernetes.api.http import ApiClient
from stead.kubernetes.api.reporting import PodRef
from stead.kubernetes.claims import volume_claim_of, volume_of
from stead.kubernetes.cluster import KubeCluster
from stead.kubernetes.storage import Chosen
from stead.kubernetes.templates import Pod
from stead.language.claims import ClaimId
from stead.language.nodes import NodeId


class VolumeBinding:
    """Binds the claims of pods. `bind` gets a pod whose claims are bound; `failed` gets the outcome of one whose claims
    cannot be."""

    def __init__(
        self,
        client: ApiClient,
        cluster: KubeCluster,
        bind: Callable[[Pod, NodeId], None],
        failed: Callable[[BindResult], None],
        allowed: Callable[[], bool],
        timeout_s: float,
    ) -> None:
        self._cluster, self._storage = cluster, cluster.storage
        self._bind, self._failed = bind, failed
        self._claimer = Claimer(client, self._written, allowed, timeout_s=timeout_s)
        self._claims: dict[str, tuple[ClaimId, ...]] = {}  # of the pods that wait for them, by uid
        self._storage.look = self._claimer.look_at

    @property
    def in_flight(self) -> int:
        """How many pods wait for their claims."""
        return self._claimer.in_flight

    def is_needed(self, pod: Pod) -> bool:
        """Whether claims of a pod must be bound before it."""
        return bool(pod.claims[0]) and not self._storage.are_bound(pod.claims[0])

    def begin(self, pod: Pod, node: NodeId) -> None:
        """Bind the claims of a pod that was placed on this node, then the pod."""
        ids, known = pod.claims[0], self._cluster.nodes.get(node)
        chosen = None if known is None else self._storage.choose(ids, known)
        if chosen is None:
            self._cluster.not_bound_here(pod)
            return
        began = time.monotonic()
        self._claims[pod.uid] = ids
        self._claimer.claim(
            PodRef(pod.namespace, pod.name, pod.uid, pod.scheduler_name),
            node,
            ids,
            [_write_of(each, node) for each in chosen],
            lambda: self._look(ids, node),
            lambda failure: self._done(pod, node, failure, time.monotonic() - began),
        )

    def forget(self, uid: str) -> None:
        """The pod is gone, or was placed by somebody else."""
        self._claimer.forget(uid)
        self._storage.give_back(self._claims.pop(uid, ()))

    def clear(self) -> None:
        """Forget all pods: another process leads, or this one begins again."""
        self._claimer.clear()
        self._claims.clear()

    async def close(self) -> None:
        await self._claimer.close()

    def _look(self, ids: tuple[ClaimId, ...], node: NodeId) -> bool | str:
        known = self._cluster.nodes.get(node)
        if known is None:
            return f"failed to get node {node!r}"
        found = self._storage.progress(ids, known)
        return found.failure or found.is_bound

    def _done(self, pod: Pod, node: NodeId, failure: str, seconds: float) -> None:
        ids = self._claims.pop(pod.uid, ())
        if not failure:
            self._bind(pod, node)
            return
        self._storage.give_back(ids)
        self._failed(BindResult(pod.namespace, pod.name, pod.uid, node, Outcome.FAILED, failure, seconds))

    def _written(self, write: Write, found: Object) -> None:
        """What was written is known at once, as far as the watch has not shown something newer."""
        try:
            if isinstance(write, SelectNode):
                self._storage.claim_written(volume_claim_of(found))
            else:
                self._storage.volume_written(volume_of(found))
        except Invalid:
            return  # the watch shows it, too


def _write_of(chosen: Chosen, node: NodeId) -> Write:
    namespace, _, name = chosen.claim.id.partition("/")
    claim = ClaimRef(namespace, name, chosen.claim.uid)
    if chosen.volume is None:
        return SelectNode(claim, node)
    return TakeVolume(claim, chosen.volume.name, chosen.volume.uid, chosen.volume.version)
