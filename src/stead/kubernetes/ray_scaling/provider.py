"""The provider of nodes of a RayCluster.

Rule: every call reads the RayCluster, then its pods, and makes at most one change, in the version that was read; if
somebody else changed it meanwhile, it reads again. So nothing is lost or doubled, whenever this process is killed and
however many such processes there are. What to change, `workers.py` says.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar
from urllib.parse import quote

from stead.engine.scaling.decisions import LaunchId
from stead.errors import Invalid, Unready, did_you_mean, sentence
from stead.kubernetes.api.config import ApiConfig, load
from stead.kubernetes.api.http import ApiClient, ApiError, Backoff, Unreachable, error_of
from stead.kubernetes.api_objects import ANYTHING, ENCODER
from stead.kubernetes.desk.loop import Loop
from stead.kubernetes.fields import Fields
from stead.kubernetes.ray_clusters import CLUSTER, NODE_TYPE, node_templates, price_of
from stead.kubernetes.ray_scaling.workers import Workers, check_ours
from stead.language.nodes import NodeTemplate
from stead.planner.instances import Instance
from stead.scaling.provider import Unlaunched
from stead.text import first_few, quoted

T = TypeVar("T")

RAY_CLUSTERS = "/apis/ray.io/v1/namespaces/{}/rayclusters/{}"
JSON_PATCH = "application/json-patch+json"
NO_RESOURCE = "could not find the requested resource"
VERBS = {
    ("GET", True): ("get", "rayclusters"),
    ("PATCH", True): ("patch", "rayclusters"),
    ("GET", False): ("list", "pods"),
}
"""What a request needs the right for, by its method and whether it is about the RayCluster."""

TRIES_MAX = 20
"""How often one call reads the RayCluster again after somebody else changed it. KubeRay changes its status often."""

TIMEOUT_S = 10.0
"""How long one request may take."""

OUTAGES_MAX = 4
"""How often one call tries again while the API server cannot be reached or fails."""

FIELDS = ("type", "cluster", "name", "namespace", "context", "kubeconfig", "prices")
"""What `provider` of a cluster's YAML may have."""


def ray_cluster_provider(fields: Mapping[str, Any], read_only: bool = False) -> RayClusterProvider:
    """The provider that a cluster's YAML describes, for example ``{type: kuberay, cluster: vision, namespace: ml}``.

    Args:
        fields: `cluster` (or `name`) is the name of the RayCluster, and `namespace` its namespace, by default that of
            the context. `kubeconfig` and `context` say which Kubernetes cluster, by default the current context, or the
            one of the pod that this runs in. `prices` are the prices of worker groups by name.
        read_only: Whether nothing is written: for a dry run, also by users who may not write.

    Returns:
        The provider. Nothing was requested yet.

    Raises:
        Invalid: A field is unknown or not valid, or there is no kubeconfig file.
    """
    for key in fields:
        if key not in FIELDS:
            raise Invalid(
                f"the provider 'kuberay' has no field {quoted(key)}{did_you_mean(str(key), FIELDS)}; its fields are "
                f"{', '.join(FIELDS)}"
            )
    texts = {key: fields.get(key) for key in FIELDS if key not in ("type", "prices")}
    for key, value in texts.items():
        if value is not None and (not isinstance(value, str) or not value):
            raise Invalid(f"the field {key!r} of the provider must be text such as 'vision', not {quoted(value)}")
    name = texts["cluster"] or texts["name"]
    if name is None:
        raise Invalid("the provider 'kuberay' needs the name of a RayCluster, for example cluster: vision")
    prices = fields.get("prices") or {}
    if not isinstance(prices, Mapping):
        raise Invalid(f"the field 'prices' of the provider must be a map such as {{gpu: 2.5}}, not {quoted(prices)}")
    checked = {str(group): price_of(price, f"the price of {str(group)!r}") for group, price in prices.items()}
    return RayClusterProvider(load(texts["kubeconfig"], texts["context"]), name, texts["namespace"], checked, read_only)


class RayClusterProvider:
    """Launches and retires nodes of one RayCluster. Threads may share it.

    Args:
        config: Where the API server is.
        name: The name of the RayCluster.
        namespace: Its namespace; by default that of the configuration.
        prices: Prices of worker groups, which override the annotation `stead/price`.
        read_only: Whether nothing is written.
        clock: The time in seconds since 1970.
    """

    def __init__(
        self,
        config: ApiConfig,
        name: str,
        namespace: str | None = None,
        prices: Mapping[str, float] | None = None,
        read_only: bool = False,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._namespace, self._name = namespace or config.namespace, name
        self._path = RAY_CLUSTERS.format(quote(self._namespace, safe=""), quote(name, safe=""))
        self._prices, self._read_only, self._clock = dict(prices or {}), read_only, clock
        self._loop = Loop("raycluster")
        self._client = ApiClient(config)

    @property
    def title(self) -> str:
        """``RayCluster ml/vision``."""
        return f"RayCluster {self._namespace}/{self._name}"

    def catalog(self) -> tuple[NodeTemplate, ...]:
        """The kinds of nodes: one for each worker group.

        Raises:
            Invalid: The RayCluster cannot be read, somebody else scales it, or a price is for an unknown group.
        """
        cluster = self._run(self._cluster())
        check_ours(cluster)
        found = {template.name: template for template in node_templates(cluster)}
        for group, price in self._prices.items():
            if group not in found:
                raise Invalid(
                    f"the {self.title} has no worker group {quoted(group)}{did_you_mean(group, found)} to set a price "
                    f"for; its groups are {first_few(sorted(found)) or 'none'}"
                )
            found[group] = replace(found[group], price=price)
        return tuple(found.values())

    def launch(self, id: LaunchId, template: NodeTemplate) -> None:
        """Start one node of this kind. A second call with the same id starts nothing.

        Raises:
            OutOfStock: KubeRay cannot create pods of the group, or Kubernetes has no room for one of them.
            Unlaunched: The node was not launched.
        """
        try:
            self._run(self._change(lambda workers: workers.launch(id, template.name)))
        except Unlaunched:
            raise
        except Invalid as error:
            raise Unlaunched(str(error)) from error

    def retire(self, instance: Instance) -> None:
        """End the node and its pod. Nothing happens if it is already gone.

        Raises:
            Invalid: The RayCluster cannot be read or written.
        """
        self._run(self._change(lambda workers: workers.retire(instance.launch)))

    def list(self) -> Sequence[Instance]:
        """Every worker of the RayCluster, also those that nobody launched, and every launch whose pod has not come.

        Raises:
            Invalid: The RayCluster cannot be read or written.
        """
        return self._run(self._change(Workers.instances))

    def close(self) -> None:
        """Close the connections."""
        self._loop.close(self._client.close)

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            return self._loop.run(work)
        except Unreachable as error:
            raise Unready(sentence(error)) from error

    async def _change(self, work: Callable[[Workers], T]) -> T:
        """Read, let `work` change what was read, and write it."""
        backoff = Backoff(0.02, 0.5)
        for _ in range(TRIES_MAX):
            cluster = await self._cluster()
            workers = Workers(cluster, await self._pods(), self._clock())
            found = work(workers)
            patch = workers.patch()
            if not patch or (self._read_only and work is Workers.instances):
                return found
            if self._read_only:
                raise Unready(f"the {self.title} is only read here, so nothing is launched or retired")
            status, _ = await self._request("PATCH", self._path, body=ENCODER.encode(patch))
            if status == 200:
                return found
            await asyncio.sleep(backoff.next_s())
        raise Unready(f"the {self.title} is changed by others all the time; try again")

    async def _cluster(self) -> Fields:
        return self._decoded((await self._request("GET", self._path))[1])

    async def _pods(self) -> Sequence[Fields]:
        selector = f"{CLUSTER}={self._name},{NODE_TYPE}=worker"
        path = f"/api/v1/namespaces/{quote(self._namespace, safe='')}/pods"
        found = self._decoded((await self._request("GET", path, {"labelSelector": selector}))[1])
        items: Sequence[Fields] = found.get("items") or []
        return items

    def _decoded(self, body: bytes) -> Fields:
        found: Fields = ANYTHING.decode(body)
        return found

    async def _request(
        self, method: str, path: str, query: Mapping[str, str] | None = None, body: bytes | None = None
    ) -> tuple[int, bytes]:
        """The status and body of a response: 200, or 409 for a change that must be decided again, also because nobody
        knows whether the server has made it."""
        backoff = Backoff(0.1, 2.0)
        for outage in range(1, OUTAGES_MAX + 1):
            pause_s = None
            try:
                response = await self._client.request(method, path, query, body, JSON_PATCH, TIMEOUT_S)
            except Unreachable as error:
                if body is not None and error.was_sent:
                    return 409, b""
                if outage == OUTAGES_MAX:
                    raise
            else:
                if response.status == 200 or (response.status == 409 and body is not None):
                    return response.status, response.body
                refused = error_of(response)
                if outage == OUTAGES_MAX or (response.status < 500 and response.status != 429):
                    raise self._refusal(refused, method, path)
                pause_s = refused.retry_after_s
            await asyncio.sleep(backoff.next_s(pause_s))
        raise AssertionError("the last try returns or raises")

    def _refusal(self, error: ApiError, method: str, path: str) -> Invalid:
        """One sentence about a response that is not a success."""
        if error.status == 403:
            verb, resource = VERBS[method, path == self._path]
            return Invalid(
                f"you may not {verb} {resource} in the namespace {self._namespace!r}; grant the Role of "
                f"docs/kuberay.md (the API server said: {error.message})"
            )
        if error.status == 404 and NO_RESOURCE in error.message:
            return Invalid("this Kubernetes cluster has no RayClusters; install KubeRay, version 1.0 or later")
        if error.status == 404:
            return Invalid(
                f"there is no {self.title}; `kubectl get rayclusters -n {self._namespace}` lists the names that the "
                "namespace has"
            )
        return (Unready if error.status >= 500 or error.status == 429 else Invalid)(sentence(error))
