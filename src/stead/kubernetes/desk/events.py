"""What happened in a Kubernetes cluster: the API server's events about scheduling, and changes of nodes.

Rule: numbers grow with the versions of the API server, so `--after` means the same in every process. Only events about
pods and nodes whose reason has a kind in stead are shown; `kubectl get events` has them all.
"""

from __future__ import annotations

import asyncio
import time
from calendar import timegm
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from stead.engine.explain.events import Event, EventKind, event_of
from stead.engine.facts import Fact, NodeDrained, NodeJoined, NodeLabelled, NodeLeft, NodeTainted, NodeUntainted
from stead.kubernetes.api.http import ApiClient, ApiError
from stead.kubernetes.api.watching import Changed, Relisted, Watched
from stead.kubernetes.api_objects import ANYTHING
from stead.kubernetes.api_objects import EventKind as WatchKind
from stead.kubernetes.desk.reading import OLD_S
from stead.kubernetes.desk.snapshots import cordon_as_draining
from stead.kubernetes.fields import Fields, fields_in
from stead.language.labels import Labels
from stead.language.nodes import Node

EVENTS = "/api/v1/events"

KEPT_MAX = 20_000

KINDS = {
    "Scheduled": EventKind.PLACED,
    "FailedScheduling": EventKind.WAITING,
    "Preempted": EventKind.PREEMPTED,
    "Evicted": EventKind.EVICTED,
    "TaintManagerEviction": EventKind.EVICTED,
    "Started": EventKind.RUNNING,
    "Killing": EventKind.ENDING,
    "RegisteredNode": EventKind.JOINED,
    "RemovingNode": EventKind.LEFT,
    "NodeNotSchedulable": EventKind.DRAINED,
    "NodeSchedulable": EventKind.UNCORDONED,
}
"""The kind of an event by its reason."""


class Events:
    """The latest events, as of the last `read`. Everything runs in the desk's event loop."""

    def __init__(self, client: ApiClient, namespace: str, everywhere: bool) -> None:
        self._namespace, self._everywhere = namespace, everywhere
        self._kept: deque[Event] = deque(maxlen=KEPT_MAX)
        self._watched: Watched[Fields] = Watched(client, EVENTS, _decode, _decode_page, self._arrived)
        self._task: asyncio.Task[None] | None = None
        self._read_at = 0.0
        self.is_denied = False
        """Whether the user may not list events."""

    async def read(self) -> None:
        """List the events; later calls begin to watch for new ones."""
        if self.is_denied:
            return
        if self._watched.is_synced:
            if self._task is None and time.monotonic() - self._read_at > OLD_S:
                self._task = asyncio.get_running_loop().create_task(self._watched.run(), name="events")
            return
        try:
            await self._watched.list_once(is_needed=True)
        except ApiError as error:
            if error.status != 403:
                raise
            await self._read_one_namespace()
        self._read_at = time.monotonic()

    async def _read_one_namespace(self) -> None:
        """If the user may not list those of all namespaces."""
        self._watched.narrow(self._namespace)
        try:
            await self._watched.list_once(is_needed=True)
        except ApiError as error:
            if error.status != 403:
                raise
            self.is_denied = True

    def after(self, number: int, limit: int) -> Sequence[Event]:
        """At most `limit` events after this one, oldest first; after -n, the last n."""
        found = [each for each in self._kept if self._is_meant(each)]
        if number < 0:
            return found[number:][:limit]
        return [each for each in found if each.number > number][:limit]

    def _is_meant(self, event: Event) -> bool:
        namespace, slash, _ = event.subject.partition("/")
        return self._everywhere or not slash or namespace == self._namespace

    # -- what arrives

    def _arrived(self, news: Changed[Fields] | Relisted[Fields]) -> None:
        if isinstance(news, Relisted):
            known = {each.number for each in self._kept}
            found = [each for each in map(_event, news.items) if each is not None and each.number not in known]
            self._add(sorted(found, key=lambda each: each.number))
        elif news.kind != WatchKind.DELETED and (event := _event(news.object)) is not None:
            self._add([event])

    def _add(self, events: Iterable[Event]) -> None:
        """Keep events in order: a change of a node may have been seen before."""
        for event in events:
            last = self._kept[-1].number if self._kept else 0
            self._kept.append(event if event.number > last else replace(event, number=last + 1))

    def nodes_changed(self, before: dict[str, Node], after: Iterable[Fact], version: str) -> None:
        """Changes of nodes that a watch has shown, as the facts that would cause them."""
        number, now = int(version) if version.isdecimal() else 0, time.time()
        found: list[Event] = []
        for fact in after:
            causes: Iterable[Fact] = ()
            if isinstance(fact, NodeJoined):
                old = before.get(fact.node.id)
                causes = (fact,) if old is None else causes_of(cordon_as_draining(old), cordon_as_draining(fact.node))
            elif isinstance(fact, NodeLeft):
                causes = (fact,)
            found += [event for each in causes if (event := event_of(each, now, {}, number)) is not None]
        self._add(found)


def causes_of(old: Node, new: Node) -> list[Fact]:
    """The facts that turn one version of a node into the next one."""
    found: list[Fact] = [NodeTainted(new.id, taint) for taint in new.taints if taint not in old.taints]
    kept = {(taint.key, taint.effect) for taint in new.taints}
    gone = [taint for taint in old.taints if (taint.key, taint.effect) not in kept]
    found += [NodeUntainted(new.id, taint.key, taint.effect) for taint in gone]
    labels = {key: value for key, value in new.labels.items() if old.labels.get(key) != value}
    unlabels = tuple(key for key in old.labels if key not in new.labels)
    if labels or unlabels:
        found.append(NodeLabelled(new.id, Labels(labels), unlabels))
    if old.draining != new.draining:
        found.append(NodeDrained(new.id, new.draining))
    return found


def _event(written: Fields) -> Event | None:
    """An event of the API server; None if it is about something else."""
    about, kind = fields_in(written, "involvedObject"), KINDS.get(str(written.get("reason")))
    if kind is None or about.get("kind") not in ("Pod", "Node"):
        return None
    name = str(about.get("name") or "")
    subject = name if about["kind"] == "Node" else f"{about.get('namespace') or ''}/{name}"
    version = str(fields_in(written, "metadata").get("resourceVersion") or "")
    number = int(version) if version.isdecimal() else 0
    return Event(number, _moment(written), kind, subject, str(written.get("message") or ""))


def _moment(written: Fields) -> float:
    """When it happened last, in seconds since 1970."""
    series = fields_in(written, "series").get("lastObservedTime")
    metadata = fields_in(written, "metadata").get("creationTimestamp")
    for text in (series, written.get("lastTimestamp"), written.get("eventTime"), metadata):
        with suppress(ValueError, TypeError):
            return float(timegm(time.strptime(str(text)[:19], "%Y-%m-%dT%H:%M:%S")))
    return 0.0


def _decode(line: bytes) -> tuple[str, Fields, str]:
    event = ANYTHING.decode(line)
    return event["type"], event["object"], str(fields_in(event["object"], "metadata").get("resourceVersion") or "")


def _decode_page(body: bytes) -> tuple[list[Fields], str, str]:
    page: dict[str, Any] = ANYTHING.decode(body)
    metadata = fields_in(page, "metadata")
    return page.get("items") or [], metadata.get("resourceVersion") or "", metadata.get("continue") or ""
