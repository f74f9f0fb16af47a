"""The watches of a scheduler: which resources it reads, and how their events reach the cluster.

Rule: what a translation depends on is listed before what is translated: first namespaces and the owners of pods, then
nodes, budgets and storage, then pods. When a namespace or an owner changes later, the pods that depend on it are read
again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, TypeVar

import msgspec

from stead.errors import Invalid
from stead.kubernetes.api.http import ApiClient
from stead.kubernetes.api.watching import Changed, Outages, Relisted, Watched
from stead.kubernetes.api_objects import EventKind
from stead.kubernetes.budgets import budget_id, budget_of
from stead.kubernetes.cluster import KubeCluster
from stead.kubernetes.default_spread import OwnerKind
from stead.kubernetes.fields import Fields
from stead.kubernetes.gangs import PATHS, GangKind, GangSize, SizeKey, sizes_of
from stead.kubernetes.node_reader import NodeReader, ReadNode
from stead.kubernetes.storage_watches import decode_fields, decode_page_of_fields, storage_watches
from stead.kubernetes.templates import Pod, Templates

T = TypeVar("T")

LOG = logging.getLogger("stead.kubernetes")

PODS, NODES, NAMESPACES = "/api/v1/pods", "/api/v1/nodes", "/api/v1/namespaces"

OWNERS = {
    OwnerKind.SERVICE: "/api/v1/services",
    OwnerKind.REPLICATION_CONTROLLER: "/api/v1/replicationcontrollers",
    OwnerKind.REPLICA_SET: "/apis/apps/v1/replicasets",
    OwnerKind.STATEFUL_SET: "/apis/apps/v1/statefulsets",
}

BUDGETS, BETA_BUDGETS = "/apis/policy/v1/poddisruptionbudgets", "/apis/policy/v1beta1/poddisruptionbudgets"
"""The second one is for Kubernetes before 1.21."""

UNFINISHED = {"fieldSelector": "status.phase!=Succeeded,status.phase!=Failed"}
"""Finished pods use nothing. The API server leaves them out, and reports a pod that finishes as deleted."""


class _Metadata(msgspec.Struct, rename="camel"):
    name: str = ""
    namespace: str = ""
    resource_version: str = ""
    labels: dict[str, str] | None = None
    token: str = msgspec.field(default="", name="continue")


class _Spec(msgspec.Struct):
    selector: dict[str, Any] | None = None


class _Object(msgspec.Struct):
    """A namespace, a service or a controller, as far as it matters."""

    metadata: _Metadata = msgspec.field(default_factory=_Metadata)
    spec: _Spec = msgspec.field(default_factory=_Spec)


class _Event(msgspec.Struct):
    type: EventKind
    object: _Object


class _Page(msgspec.Struct):
    metadata: _Metadata = msgspec.field(default_factory=_Metadata)
    items: list[_Object] | None = None


_EVENT, _PAGE = msgspec.json.Decoder(_Event), msgspec.json.Decoder(_Page)


def _decode(line: bytes) -> tuple[str, _Object, str]:
    event = _EVENT.decode(line)
    return event.type, event.object, event.object.metadata.resource_version


def _decode_page(body: bytes) -> tuple[list[_Object], str, str]:
    page = _PAGE.decode(body)
    return page.items or [], page.metadata.resource_version, page.metadata.token


class Watches:
    """All watches of a scheduler. `changed` is called after every event that may concern it."""

    def __init__(
        self,
        client: ApiClient,
        cluster: KubeCluster,
        templates: Templates,
        changed: Callable[[], None],
        rest_s: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self._cluster = cluster
        self._templates = templates
        self._nodes = NodeReader()
        self._changed = changed
        self._owners: dict[OwnerKind, dict[tuple[str, str], object]] = {kind: {} for kind in OWNERS}
        self._namespaces: dict[str, Mapping[str, str]] = {}
        self._left_out: list[Watched[Any]] = []
        self.nodes_refused: dict[str, str] = {}
        """Nodes that cannot be used, because a part of them does not parse, with the sentence that says which."""

        outages = Outages()

        def watched(path: str, deliver: Callable[[Changed[_Object] | Relisted[_Object]], None]) -> Watched[_Object]:
            return Watched(client, path, _decode, _decode_page, deliver, outages=outages)

        self._context: list[Watched[Any]] = [
            watched(NAMESPACES, self._namespaces_arrived),
            *(watched(path, partial(self._owners_arrived, kind)) for kind, path in OWNERS.items()),
        ]
        self.nodes: Watched[Any] = Watched(
            client, NODES, self._decode_node, self._nodes.decode_page, self._nodes_arrived, outages=outages
        )
        self.budgets: Watched[Fields] = Watched(
            client,
            BUDGETS,
            decode_fields,
            decode_page_of_fields,
            self._budgets_arrived,
            others=[BETA_BUDGETS],
            outages=outages,
        )
        self.storage = storage_watches(client, cluster, changed, outages)
        self.gang_sizes: list[Watched[Fields]] = [
            Watched(
                client,
                path,
                decode_fields,
                decode_page_of_fields,
                partial(self._gang_sizes_arrived, kind),
                others=others,
                may_be_missing=True,
                outages=outages,
            )
            for kind, (path, *others) in PATHS.items()
        ]
        self.pods: Watched[Any] = Watched(
            client,
            PODS,
            self._decode_pod,
            templates.decode_page,
            self._pods_arrived,
            query=UNFINISHED,
            outages=outages,
            rest_s=rest_s,
        )

    @property
    def stages(self) -> list[list[Watched[Any]]]:
        """What a translation depends on comes before what is translated."""
        stages = [self._context, [self.nodes, self.budgets, *self.gang_sizes, *self.storage], [self.pods]]
        return [[each for each in stage if each not in self._left_out] for stage in stages]

    @property
    def all(self) -> list[Watched[Any]]:
        return [each for stage in self.stages for each in stage]

    def leave_out(self, watched: Watched[Any]) -> None:
        """Go on without this resource."""
        self._left_out.append(watched)

    @property
    def are_synced(self) -> bool:
        """Whether everything was listed once."""
        return all(each.is_synced for each in self.all)

    async def run(self) -> None:
        """Watch until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for stage in self.stages:
                for each in stage:
                    tasks.create_task(each.run(), name=f"watch {each.path}")
                await asyncio.gather(*(_synced(each) for each in stage))

    def _decode_node(self, line: bytes) -> tuple[str, ReadNode | None, str]:
        event = self._nodes.decode_event(line)
        return event.kind, event.node, event.resource_version

    def _decode_pod(self, line: bytes) -> tuple[str, Pod | None, str]:
        event = self._templates.decode_event(line)
        return event.kind, event.pod, event.resource_version

    # -- what arrives

    def _pods_arrived(self, news: Changed[Pod] | Relisted[Pod]) -> None:
        if isinstance(news, Relisted):
            self._cluster.all_pods(news.items)
        elif news.kind == EventKind.DELETED:
            self._cluster.pods_finished([news.object])
        else:
            self._cluster.pods_changed([news.object])
        self._changed()

    def _nodes_arrived(self, news: Changed[ReadNode] | Relisted[ReadNode]) -> None:
        if isinstance(news, Relisted):
            self._cluster.all_nodes([node for read in news.items for node in self._usable(read)])
            current = {read.name for read in news.items}
            self.nodes_refused = {name: why for name, why in self.nodes_refused.items() if name in current}
        elif news.kind == EventKind.DELETED:
            self.nodes_refused.pop(news.object.name, None)
            self._cluster.nodes_deleted([news.object.name])
        else:
            usable = list(self._usable(news.object))
            self._cluster.nodes_changed(usable)
            self._cluster.nodes_deleted([] if usable else [news.object.name])
        self._changed()

    def _budgets_arrived(self, news: Changed[Fields] | Relisted[Fields]) -> None:
        is_beta = self.budgets.path == BETA_BUDGETS
        if isinstance(news, Relisted):
            self._cluster.all_budgets([budget_of(found, is_beta) for found in news.items])
        elif news.kind == EventKind.DELETED:
            self._cluster.budget_deleted(budget_id(news.object))
        else:
            self._cluster.budget_changed(budget_of(news.object, is_beta))
        self._changed()

    def _gang_sizes_arrived(self, kind: GangKind, news: Changed[Fields] | Relisted[Fields]) -> None:
        if isinstance(news, Relisted):
            listed = [_sizes_of(kind, found) for found in news.items]
            self._cluster.all_gang_sizes(kind, {key: size for sizes in listed for key, size in sizes.items()})
        elif news.kind == EventKind.DELETED:
            self._cluster.gang_sizes_ended(_sizes_of(kind, news.object))
        else:
            self._cluster.gang_sizes_changed(_sizes_of(kind, news.object))
        self._changed()

    def _usable(self, read: ReadNode) -> Iterable[Any]:
        before = self.nodes_refused.pop(read.name, None)
        if read.node is not None:
            yield read.node
        elif read.problem is not None:
            self.nodes_refused[read.name] = read.problem.sentence
            if read.problem.sentence != before:
                LOG.warning("a node is not used: %s", read.problem.sentence, extra={"node": read.name})

    def _namespaces_arrived(self, news: Changed[_Object] | Relisted[_Object]) -> None:
        current = {each.metadata.name: each.metadata.labels or {} for each in _present(news)}
        is_new = False
        for name in _absent(news, self._namespaces, lambda each: each.metadata.name):
            del self._namespaces[name]
            is_new |= self._templates.namespace_changed(name, None)
        for name, labels in current.items():
            self._namespaces[name] = labels
            is_new |= self._templates.namespace_changed(name, labels)
        if is_new:
            self._read_again(pod for pod in self._cluster.pods.values() if pod.depends_on_namespaces)

    def _owners_arrived(self, kind: OwnerKind, news: Changed[_Object] | Relisted[_Object]) -> None:
        known = self._owners[kind]
        touched: set[tuple[str, str]] = set()
        for name in _absent(news, known, _name_of):
            del known[name]
            if self._templates.owner_changed(kind, *name, None):
                touched.add(name)
        for each in _present(news):
            name = _name_of(each)
            known[name] = None
            if self._templates.owner_changed(kind, *name, each.spec.selector):
                touched.add(name)
        if touched:
            namespaces = {namespace for namespace, _ in touched}
            pods = [pod for pod in self._cluster.pods.values() if pod.namespace in namespaces and pod.depends_on_owners]
            if kind is not OwnerKind.SERVICE:  # a controller concerns only its own pods
                owned = {(kind, *name) for name in touched}
                pods = [pod for pod in pods if pod.template.controller in owned]
            self._read_again(pods)

    def _read_again(self, pods: Iterable[Pod]) -> None:
        self._cluster.pods_changed([again for pod in list(pods) if (again := self._templates.reread(pod)) is not pod])
        self._changed()


def _sizes_of(kind: GangKind, found: Fields) -> dict[SizeKey, GangSize]:
    """Nothing, if the object cannot be read."""
    try:
        return sizes_of(kind, found)
    except Invalid as error:
        LOG.warning("a pod group is not used: %s", error, extra={"kind": kind})
        return {}


def _name_of(each: _Object) -> tuple[str, str]:
    return each.metadata.namespace, each.metadata.name


def _present(news: Changed[_Object] | Relisted[_Object]) -> Iterable[_Object]:
    if isinstance(news, Relisted):
        return news.items
    return () if news.kind == EventKind.DELETED else (news.object,)


def _absent(news: Changed[_Object] | Relisted[_Object], known: Iterable[T], name_of: Callable[[_Object], T]) -> list[T]:
    """What is known and no longer exists."""
    if isinstance(news, Relisted):
        current = {name_of(each) for each in news.items}
        return [name for name in known if name not in current]
    return [name for name in known if name == name_of(news.object)] if news.kind == EventKind.DELETED else []


async def _synced(watched: Watched[Any]) -> None:
    while not watched.is_synced:  # the first list takes seconds on a large cluster
        await asyncio.sleep(0.02)
