"""Binds the claims of pods before the pods: writes what was chosen, then waits until every claim is bound.

Rule: nothing is chosen here. Every pod gets one outcome, unless it is forgotten: its claims are bound, or they cannot
be bound for this node, or that took too long. Every write passes the fence; what is written twice means the same.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any
from urllib.parse import quote

import msgspec

from stead.kubernetes.api.http import ApiClient, Backoff, Fenced, Unreachable, error_of
from stead.kubernetes.api.reporting import PodRef

LOG = logging.getLogger("stead.kubernetes")

IN_FLIGHT_MAX = 16
"""For how many pods claims are written at the same time."""

TRIES_MAX = 6
"""Maximum number of tries for one request."""

REQUEST_S = 15.0
"""The time limit of one try."""

BIND_TIMEOUT_S = 600.0
"""How long the claims of a pod may take to be bound, as in kube-scheduler."""

MERGE = "application/merge-patch+json"
SELECTED_NODE = "volume.kubernetes.io/selected-node"
BOUND_BY_CONTROLLER = "pv.kubernetes.io/bound-by-controller"

Object = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ClaimRef:
    """Which claim. The uid makes sure that a new one of the same name is not meant."""

    namespace: str
    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class SelectNode:
    """Ask for a new volume that the node can use."""

    claim: ClaimRef
    node: str


@dataclass(frozen=True, slots=True)
class TakeVolume:
    """Give an existing volume to the claim, if it is still in this version."""

    claim: ClaimRef
    volume: str
    uid: str
    version: str


Write = SelectNode | TakeVolume


@dataclass(slots=True)
class _Wait:
    """A pod whose claims are being bound. `look` returns whether they are, or why that failed."""

    pod: PodRef
    node: str
    claims: Sequence[str]
    look: Callable[[], bool | str]
    done: Callable[[str], None]
    task: asyncio.Task[None] | None = None
    news: asyncio.Event = field(default_factory=asyncio.Event)


class NotWritten(Exception):
    """A request had no success."""


class Claimer:
    """Binds claims. Its methods return at once. `allowed` is the fence of every request; `written` gets every object as
    the server returned it."""

    def __init__(
        self,
        client: ApiClient,
        written: Callable[[Write, Object], None],
        allowed: Callable[[], bool] | None = None,
        *,
        timeout_s: float = BIND_TIMEOUT_S,
        random: Random | None = None,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._client = client
        self._written = written
        self._allowed = allowed
        self._timeout_s = timeout_s
        self._random = random or Random()
        self._sleep = sleep
        self._free = asyncio.Semaphore(IN_FLIGHT_MAX)
        self._waits: dict[str, _Wait] = {}  # by the uid of the pod
        self._of_claim: dict[str, dict[str, None]] = {}  # the uids of the pods that wait for a claim

    @property
    def in_flight(self) -> int:
        """How many pods wait for their claims."""
        return len(self._waits)

    def claim(
        self,
        pod: PodRef,
        node: str,
        claims: Sequence[str],
        writes: Sequence[Write],
        look: Callable[[], bool | str],
        done: Callable[[str], None],
    ) -> None:
        """Write this for the claims of a pod, then wait until they are bound. `look` tells whether they are, or why
        they cannot be; it is called after the writes, and after every `look_at` of one of the claims. `done` gets "" if
        they are bound, else what failed."""
        self.forget(pod.uid)
        wait = self._waits[pod.uid] = _Wait(pod, node, claims, look, done)
        for id in claims:
            self._of_claim.setdefault(id, {})[pod.uid] = None
        wait.task = asyncio.get_running_loop().create_task(self._run(wait, writes))

    def look_at(self, claim: str) -> None:
        """Something about a claim has changed."""
        for uid in self._of_claim.get(claim, ()):
            self._waits[uid].news.set()

    def forget(self, uid: str) -> None:
        """The pod needs its claims no more. What was written stays."""
        wait = self._waits.get(uid)
        if wait is not None:
            self._remove(wait)
            if wait.task is not None:
                wait.task.cancel()

    def clear(self) -> None:
        """Forget all pods."""
        for uid in list(self._waits):
            self.forget(uid)

    async def close(self) -> None:
        """Stop. What is in flight may have happened or not."""
        tasks = [wait.task for wait in self._waits.values() if wait.task is not None]
        self.clear()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _remove(self, wait: _Wait) -> None:
        del self._waits[wait.pod.uid]
        for id in wait.claims:
            pods = self._of_claim[id]
            del pods[wait.pod.uid]
            if not pods:
                del self._of_claim[id]

    async def _run(self, wait: _Wait, writes: Sequence[Write]) -> None:
        failure = "stead stopped"
        try:
            async with asyncio.timeout(self._timeout_s):
                failure = await self._bound(wait, writes)
        except TimeoutError:
            failure = f"binding volumes: not bound after {self._timeout_s:g} s"
        except NotWritten as error:
            failure = str(error)
        except asyncio.CancelledError:
            raise  # it was forgotten
        except Exception as error:  # a bug must not lose the outcome
            LOG.exception("claims were not bound", extra={"pod": f"{wait.pod.namespace}/{wait.pod.name}"})
            failure = f"binding volumes failed in an unexpected way: {error!r}"
        if self._waits.get(wait.pod.uid) is wait:
            self._remove(wait)
            wait.done(failure)

    async def _bound(self, wait: _Wait, writes: Sequence[Write]) -> str:
        async with self._free:
            for write in writes:
                await self._write(write)
        while True:
            wait.news.clear()
            found = wait.look()
            if found is True:
                return ""
            if isinstance(found, str):
                return f"binding volumes: {found}"
            await wait.news.wait()

    async def _write(self, write: Write) -> None:
        """Send a write until the server has answered it."""
        path, body = _request_of(write)
        backoff, why = Backoff(random=self._random), ""
        for number in range(TRIES_MAX):
            retry_after_s = None
            try:
                response = await self._client.request(
                    "PATCH", path, None, msgspec.json.encode(body), MERGE, timeout_s=REQUEST_S, allowed=self._allowed
                )
            except Fenced:
                raise NotWritten("stead is no longer the leader, so it did not bind the volumes") from None
            except Unreachable as error:
                why = str(error)
            else:
                if response.status == 200:
                    self._written(write, msgspec.json.decode(response.body))
                    return
                refusal = error_of(response)
                why, retry_after_s = refusal.message, refusal.retry_after_s
                if response.status != 429 and response.status < 500:
                    break
            if number < TRIES_MAX - 1:
                await self._sleep(backoff.next_s(retry_after_s))
        raise NotWritten(f"binding volumes: {why}")


def _request_of(write: Write) -> tuple[str, Object]:
    """Path and body of the request that writes it."""
    claim = write.claim
    if isinstance(write, SelectNode):
        path = f"/api/v1/namespaces/{quote(claim.namespace, '')}/persistentvolumeclaims/{quote(claim.name, '')}"
        return path, {"metadata": {"uid": claim.uid, "annotations": {SELECTED_NODE: write.node}}}
    reference = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "namespace": claim.namespace,
        "name": claim.name,
        "uid": claim.uid,
    }
    metadata = {"uid": write.uid, "resourceVersion": write.version, "annotations": {BOUND_BY_CONTROLLER: "yes"}}
    return f"/api/v1/persistentvolumes/{quote(write.volume, '')}", {
        "metadata": metadata,
        "spec": {"claimRef": reference},
    }
