"""The objects of the fake API server, every version of them, and who watches.

Rule: a stored object never changes; a write stores a new one under the next resourceVersion. One thread uses a store.
"""

from __future__ import annotations

import base64
import json
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.kubernetes.servers.fake_resources import RESOURCES, Object, Resource, field_of
from tests.kubernetes.servers.fake_status import bad_request, expired, expired_page, too_large

SNAPSHOTS_MAX = 20
Term = tuple[str, str, str | None]
"""A key, `=` or `!=`, and a value. Without a value: the key exists, or does not."""


@dataclass(frozen=True, slots=True)
class Version:
    """An object as it was at one resourceVersion, with the bytes that clients receive."""

    key: str
    revision: int
    obj: Object
    encoded: bytes

    @property
    def encoded_item(self) -> bytes:
        """As an item of a list, which has neither kind nor version of the API: the list says it for all."""
        return b"{" + self.encoded[self.encoded.index(b'"metadata":') :]


@dataclass(frozen=True, slots=True)
class Change:
    """One write: ADDED, MODIFIED or DELETED."""

    kind: str
    version: Version
    before: Version | None


@dataclass(frozen=True)
class Selection:
    """Which objects a list or a watch is about."""

    resource: Resource
    namespace: str | None = None
    fields: tuple[Term, ...] = ()
    labels: tuple[Term, ...] = ()

    @property
    def is_whole(self) -> bool:
        return not (self.fields or self.labels)

    def matches(self, obj: Object) -> bool:
        metadata = obj["metadata"]
        if self.namespace is not None and metadata.get("namespace") != self.namespace:
            return False
        for key, operator, value in self.fields:
            if (field_of(self.resource, obj, key) == value) != (operator == "="):
                return False
        labels = metadata.get("labels") or {}
        for key, operator, value in self.labels:
            holds = key in labels if value is None else labels.get(key) == value
            if holds != (operator == "="):
                return False
        return True

    def event(self, change: Change) -> bytes | None:
        """What a watch sees of a write: an object that stops matching is deleted, one that starts is added."""
        before, after = change.before, change.version
        was = before is not None and self.matches(before.obj)
        now = change.kind != "DELETED" and self.matches(after.obj)
        if now:
            return event_line("MODIFIED" if was else "ADDED", after.encoded)
        if not was or before is None:
            return None
        gone = after if change.kind == "DELETED" else _version(before.key, after.revision, before.obj)
        return event_line("DELETED", gone.encoded)


@dataclass(eq=False)
class Watch:
    """A client's watch: `push` receives the lines of its events."""

    selection: Selection
    push: Callable[[bytes], None]


@dataclass
class _Shelf:
    """The objects of one resource."""

    versions: dict[str, Version] = field(default_factory=dict)
    history: deque[Change] = field(default_factory=deque)
    forgotten: int = 0  # the newest revision whose event is no longer known
    watches: list[Watch] = field(default_factory=list)
    snapshots: dict[int, list[Version]] = field(default_factory=dict)  # for the later pages of a list


class Store:
    """All objects, their history and their watches."""

    def __init__(self, history: int) -> None:
        self.revision = 1
        self._history = history
        self._shelves = {resource: _Shelf() for resource in RESOURCES}

    def get(self, resource: Resource, key: str) -> Version | None:
        return self._shelves[resource].versions.get(key)

    def put(self, resource: Resource, key: str, obj: Object) -> Version:
        self.revision += 1
        shelf = self._shelves[resource]
        before, after = shelf.versions.get(key), _version(key, self.revision, obj)
        shelf.versions[key] = after
        self._record(shelf, Change("MODIFIED" if before else "ADDED", after, before))
        return after

    def remove(self, resource: Resource, key: str, final: Object | None = None) -> Version:
        """`final` is the object's last state, if the deletion changed it."""
        self.revision += 1
        shelf = self._shelves[resource]
        before = shelf.versions.pop(key)
        last = _version(key, self.revision, before.obj if final is None else final)
        self._record(shelf, Change("DELETED", last, before))
        return last

    def selected(self, selection: Selection) -> list[Version]:
        """In the order of their keys."""
        versions = self._shelves[selection.resource].versions
        return [versions[key] for key in sorted(versions) if selection.matches(versions[key].obj)]

    def page(self, selection: Selection, limit: int, token: str | None, oldest: int | None) -> bytes:
        """A list, or a page of one, as clients receive it. `oldest` is the version that it must have reached."""
        shelf, resource = self._shelves[selection.resource], selection.resource
        if oldest is not None and oldest > self.revision:
            raise too_large(oldest, self.revision)
        revision, start = _decoded_token(token) if token else (self.revision, "")
        snapshot = shelf.snapshots.get(revision) if token else [shelf.versions[key] for key in sorted(shelf.versions)]
        if snapshot is None:
            raise expired_page()
        found = [one for one in snapshot if one.key > start and selection.matches(one.obj)]
        metadata: Object = {"resourceVersion": str(revision)}
        if limit and len(found) > limit:
            shelf.snapshots[revision] = snapshot
            if len(shelf.snapshots) > SNAPSHOTS_MAX:
                del shelf.snapshots[min(shelf.snapshots)]
            metadata["continue"] = _encoded_token(revision, found[limit - 1].key)
            if selection.is_whole:
                metadata["remainingItemCount"] = len(found) - limit
            found = found[:limit]
        head = {"kind": f"{resource.kind}List", "apiVersion": resource.api_version, "metadata": metadata}
        return encoded(head)[:-1] + b',"items":[' + b",".join(one.encoded_item for one in found) + b"]}"

    def watch(self, watch: Watch, since: int | None) -> Iterator[bytes]:
        """Begin a watch and return its first events. Without `since` these are the objects that exist."""
        shelf = self._shelves[watch.selection.resource]
        if since is None:
            first = [event_line("ADDED", one.encoded) for one in self.selected(watch.selection)]
        elif since < shelf.forgotten:
            raise expired(since, shelf.forgotten)
        else:
            later = [change for change in shelf.history if change.version.revision > since]
            first = [line for change in later if (line := watch.selection.event(change))]
        shelf.watches.append(watch)
        return iter(first)

    def end_watch(self, watch: Watch) -> None:
        watches = self._shelves[watch.selection.resource].watches
        if watch in watches:
            watches.remove(watch)

    def compact(self) -> None:
        """Forget the past: every resourceVersion before the current one, and the later pages of lists."""
        for shelf in self._shelves.values():
            shelf.history.clear()
            shelf.snapshots.clear()
            shelf.forgotten = self.revision

    def bookmark(self, resource: Resource) -> bytes:
        obj = {
            "kind": resource.kind,
            "apiVersion": resource.api_version,
            "metadata": {"resourceVersion": str(self.revision), "creationTimestamp": None},
            "spec": {"containers": None} if resource.kind == "Pod" else {},
            "status": {},
        }
        return event_line("BOOKMARK", encoded(obj))

    def _record(self, shelf: _Shelf, change: Change) -> None:
        shelf.history.append(change)
        if len(shelf.history) > self._history:
            shelf.forgotten = shelf.history.popleft().version.revision
        for watch in shelf.watches:
            if line := watch.selection.event(change):
                watch.push(line)


def encoded(obj: Any) -> bytes:
    return json.dumps(obj, separators=(",", ":")).encode()


def event_line(kind: str, obj: bytes) -> bytes:
    return b'{"type":"' + kind.encode() + b'","object":' + obj + b"}\n"


def parse_terms(text: str, known: tuple[str, ...] | None) -> tuple[Term, ...]:
    """The terms of a field selector (`known` are its fields) or, without `known`, of a label selector.

    Labels: key=value, key==value, key!=value, key and !key. The set-based operators are not supported.
    """
    terms: list[Term] = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        key, operator, value = part.partition("!=") if "!=" in part else part.partition("=")
        if " " in part:
            raise bad_request(f"the fake server does not support the selector {text!r}")
        if known is not None and (key not in known or not operator):
            raise bad_request(f"field label not supported: {key}")
        if not operator:
            terms.append((key.removeprefix("!"), "!=" if key.startswith("!") else "=", None))
        else:
            terms.append((key, "!=" if operator == "!=" else "=", value.removeprefix("=")))
    return tuple(terms)


def _version(key: str, revision: int, obj: Object) -> Version:
    head = {"kind": obj["kind"], "apiVersion": obj["apiVersion"]}
    stamped = {**head, "metadata": {**obj["metadata"], "resourceVersion": str(revision)}}
    stamped |= {key: value for key, value in obj.items() if key not in stamped}
    return Version(key, revision, stamped, encoded(stamped))


def _encoded_token(revision: int, key: str) -> str:
    return base64.urlsafe_b64encode(encoded({"rv": revision, "start": key})).decode()


def _decoded_token(token: str) -> tuple[int, str]:
    try:
        found = json.loads(base64.urlsafe_b64decode(token))
        return int(found["rv"]), str(found["start"])
    except (ValueError, KeyError, TypeError) as error:
        raise bad_request(f"continue key is not valid: {error}") from error
