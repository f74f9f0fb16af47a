"""Evicts the pods of drained nodes, as `kubectl drain` does.

Rule: pods are evicted, never deleted, so that the API server checks their PodDisruptionBudgets. Pods of daemon sets,
static pods and finished pods stay. An eviction that a budget does not allow now is tried again for a while.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from urllib.parse import quote

from stead.errors import Invalid
from stead.kubernetes.api.http import ApiClient, ApiError, Response, Unreachable, error_of
from stead.kubernetes.api_objects import ANYTHING, ENCODER
from stead.kubernetes.cluster import FINISHED
from stead.kubernetes.desk.reading import missing_right
from stead.kubernetes.fields import Fields, fields_in
from stead.kubernetes.podspec import owner_of
from stead.kubernetes.watches import PODS
from stead.operate.changes import Conflict
from stead.operate.draining import STAYS
from stead.text import first_few, plural

BLOCKED_S = 20.0
"""How long an eviction is tried that a budget does not allow. Clients of a service wait for 30 s."""

RETRY_S = 1.0

VERSIONS = ("policy/v1", "policy/v1beta1")
"""Of an Eviction; the second one is for Kubernetes before 1.22."""

MIRROR = "kubernetes.io/config.mirror"


async def evict_all(client: ApiClient, nodes: Sequence[str], rate: float) -> int:
    """Evict the pods of these nodes, at most `rate` per second (0: no limit). Returns how many were evicted."""
    waiting = [pod for node in nodes for pod in await _pods_of(client, node)]
    until, evicted, why = time.monotonic() + BLOCKED_S, 0, ""
    while waiting:
        blocked = []
        for pod in waiting:
            refused = await _evict(client, pod)
            if refused is None:
                evicted += 1
                until = time.monotonic() + BLOCKED_S
                if rate:
                    await asyncio.sleep(1 / rate)
            else:
                blocked.append(pod)
                why = refused
        waiting = blocked
        if waiting and time.monotonic() >= until:
            names = first_few(_id_of(pod) for pod in waiting)
            raise Conflict(
                f"{plural(len(waiting), 'pod')} could not be evicted: {names}; the nodes stay cordoned, so run the "
                f"command again later (the API server said: {why})"
            )
        if waiting:
            await asyncio.sleep(RETRY_S)
    return evicted


async def _pods_of(client: ApiClient, node: str) -> list[Fields]:
    """The pods of a node that a drain evicts."""
    response = await client.request("GET", PODS, {"fieldSelector": f"spec.nodeName={node}"})
    if response.status != 200:
        raise error_of(response)
    return [pod for pod in ANYTHING.decode(response.body).get("items") or () if _is_evicted(pod)]


def _is_evicted(pod: Fields) -> bool:
    metadata = fields_in(pod, "metadata")
    stays = owner_of(metadata).startswith(STAYS) or MIRROR in fields_in(metadata, "annotations")
    is_ending = fields_in(pod, "status").get("phase") in FINISHED or bool(metadata.get("deletionTimestamp"))
    return not stays and not is_ending


def _id_of(pod: Fields) -> str:
    return f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"


async def _evict(client: ApiClient, pod: Fields) -> str | None:
    """None if it is evicted or gone; otherwise why a budget does not allow it now."""
    metadata = pod["metadata"]
    name = quote(metadata["name"], safe="")
    path = f"{PODS.rpartition('/')[0]}/namespaces/{quote(metadata['namespace'], safe='')}/pods/{name}/eviction"
    try:
        response = await _posted(client, path, metadata, VERSIONS[0])
        if response.status == 400:
            response = await _posted(client, path, metadata, VERSIONS[1])
    except Unreachable as error:
        return str(error)
    if response.status < 300 or response.status in (404, 409):  # gone, or another pod has its name
        return None
    refusal = error_of(response)
    if refusal.status == 429 or refusal.status >= 500:
        return refusal.message
    raise _refused(refusal)


async def _posted(client: ApiClient, path: str, metadata: Fields, version: str) -> Response:
    eviction = {
        "apiVersion": version,
        "kind": "Eviction",
        "metadata": {"name": metadata["name"], "namespace": metadata["namespace"]},
        "deleteOptions": {"preconditions": {"uid": metadata["uid"]}},
    }
    return await client.request("POST", path, body=ENCODER.encode(eviction), repeatable=True)


def _refused(error: ApiError) -> Exception:
    if error.status == 403:
        return Invalid(f"the nodes are cordoned, but {missing_right('create', 'pods/eviction', error.message)}")
    return error
