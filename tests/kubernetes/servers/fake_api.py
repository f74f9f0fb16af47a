"""The requests that the fake API server understands, and what each of them does to the store.

Rule: nothing here knows of sockets or threads. A request is either answered, or begins a watch, or raises `Failure`.
"""

from __future__ import annotations

import json
import random
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from tests.kubernetes.servers.fake_patches import apply_patch
from tests.kubernetes.servers.fake_resources import (
    BUDGETS,
    BY_PLACE,
    NAMESPACES,
    PODS,
    PRIORITY_CLASSES,
    SYSTEM_PRIORITIES,
    Object,
    Resource,
    check_changed,
    check_new,
    set_defaults,
)
from tests.kubernetes.servers.fake_status import (
    Failure,
    already_exists,
    bad_request,
    changed_meanwhile,
    conflict,
    forbidden,
    invalid,
    not_found,
    quoted,
    success,
)
from tests.kubernetes.servers.fake_store import Selection, Store, Version, encoded, parse_terms

VERSION = {
    "major": "1",
    "minor": "20",
    "gitVersion": "v1.20.2-fake",
    "gitCommit": "fake",
    "gitTreeState": "clean",
    "buildDate": "2021-01-13T00:00:00Z",
    "goVersion": "none",
    "compiler": "none",
    "platform": "linux/amd64",
}
NAME_LETTERS = "bcdfghjklmnpqrstvwxz2456789"
KEPT_IN_METADATA = ("name", "namespace", "uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds")
NO_RESOURCE = "the server could not find the requested resource"
NO_METHOD = "the server does not allow this method on the requested resource"


@dataclass(frozen=True)
class Request:
    """What a client asks."""

    method: str
    path: str
    query: Mapping[str, str]
    body: bytes
    content_type: str
    user: str


@dataclass(frozen=True)
class Answer:
    """The whole of a response."""

    code: int
    body: bytes
    content_type: str = "application/json"


@dataclass(frozen=True)
class WatchWanted:
    """A request for a watch."""

    selection: Selection
    since: int | None
    seconds_max: float | None
    bookmarks: bool


@dataclass(frozen=True)
class Place:
    """What a path points at: all objects of a resource, one of them, or a part of one."""

    resource: Resource
    namespace: str | None
    name: str | None
    subresource: str | None

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else str(self.name)


def place_of(path: str) -> Place | None:
    """None where the real server answers that the page does not exist."""
    parts = path.strip("/").split("/")
    if parts[0] == "api" and len(parts) > 2:
        api_version, rest = parts[1], parts[2:]
    elif parts[0] == "apis" and len(parts) > 3:
        api_version, rest = f"{parts[1]}/{parts[2]}", parts[3:]
    else:
        return None
    namespace = None
    if rest[0] == "namespaces" and len(rest) > 2 and rest[2] not in NAMESPACES.subresources:
        namespace, rest = rest[1], rest[2:]
    if not any(version == api_version for version, _ in BY_PLACE):
        return None
    resource = BY_PLACE.get((api_version, rest[0]))
    if rest[0] == "bindings" and namespace:
        return Place(PODS, namespace, None, "binding")
    name, subresource = (rest[1] if len(rest) > 1 else None), (rest[2] if len(rest) > 2 else None)
    wrong = resource is None or len(rest) > 3 or (subresource and subresource not in resource.subresources)
    if (
        wrong
        or resource is None
        or (namespace and not resource.namespaced)
        or (resource.namespaced and name and not namespace)
    ):
        raise Failure(404, NO_RESOURCE, details={})
    return Place(resource, namespace, name, subresource)


class Api:
    """Answers requests from a store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        for name in ("default", "kube-system", "kube-public", "kube-node-lease"):
            self.create(NAMESPACES, None, {"metadata": {"name": name}})
        for name, value in SYSTEM_PRIORITIES.items():
            self.create(PRIORITY_CLASSES, None, {"metadata": {"name": name}, "value": value})

    def handle(self, request: Request) -> Answer | WatchWanted:
        if request.path in {"/readyz", "/livez", "/healthz"}:
            return Answer(200, b"ok", "text/plain")
        if request.path in {"/version", "/version/"}:
            return Answer(200, encoded(VERSION))
        place = place_of(request.path)
        if place is None:
            return Answer(404, b"404 page not found\n", "text/plain")
        if request.query.get("dryRun"):
            raise bad_request("the fake server does not support dryRun")
        if place.resource.namespaced and not place.namespace and request.method != "GET":
            raise Failure(405, NO_METHOD, details={})
        match request.method, place.name, place.subresource:
            case "POST", _, "binding":
                return self._bind(place, request)
            case "POST", str(), "eviction":
                return self._evict(place, request)
            case "POST", None, None:
                version = self.create(place.resource, place.namespace, _object(request, place.resource))
                return Answer(201, version.encoded)
            case "GET", None, None:
                return self._list(place, request)
            case "GET", str(), None | "status":
                return Answer(200, self._existing(place).encoded)
            case "PUT", str(), None | "status":
                return self._put(place, request)
            case "PATCH", str(), None | "status":
                return self._patch(place, request)
            case "DELETE", str(), None:
                return self._delete(place, request)
            case "DELETE", None, None:
                return self._delete_all(place, request)
        raise Failure(405, NO_METHOD, details={})

    # Reading

    def _existing(self, place: Place) -> Version:
        version = self._store.get(place.resource, place.key)
        if version is None:
            raise not_found(place.resource.plural, place.resource.group, str(place.name))
        return version

    def _selection(self, place: Place, query: Mapping[str, str]) -> Selection:
        fields = parse_terms(query.get("fieldSelector", ""), place.resource.fields)
        return Selection(place.resource, place.namespace, fields, parse_terms(query.get("labelSelector", ""), None))

    def _list(self, place: Place, request: Request) -> Answer | WatchWanted:
        query = request.query
        selection = self._selection(place, query)
        asked = query.get("resourceVersion") or None
        if asked is not None and not asked.isdigit():
            raise bad_request(f"Invalid value: {quoted(asked)}: strconv.ParseUint: invalid syntax")
        if query.get("watch") in {"1", "true", "True"}:
            since = int(asked) if asked and asked != "0" else None
            seconds = float(query["timeoutSeconds"]) if query.get("timeoutSeconds") else None
            return WatchWanted(selection, since, seconds, query.get("allowWatchBookmarks") in {"1", "true", "True"})
        token = query.get("continue") or None
        limit = int(query.get("limit") or 0) if asked != "0" else 0  # version 0 comes from a cache that has no pages
        return Answer(200, self._store.page(selection, limit, token, int(asked) if asked else None))

    # Writing

    def create(self, resource: Resource, namespace: str | None, obj: Object) -> Version:
        metadata = obj.setdefault("metadata", {})
        obj |= {"kind": resource.kind, "apiVersion": resource.api_version}
        if namespace and metadata.setdefault("namespace", namespace) != namespace:
            raise bad_request("the namespace of the provided object does not match the namespace sent on the request")
        if not metadata.get("name") and metadata.get("generateName"):
            metadata["name"] = metadata["generateName"] + "".join(random.choices(NAME_LETTERS, k=5))
        if namespace:
            self._check_namespace(resource, namespace, metadata.get("name") or "")
        if metadata.get("resourceVersion"):
            raise Failure(500, "resourceVersion should not be set on objects to be created", "", None)
        if not resource.keeps_status_on_create:
            obj.pop("status", None)
        check_new(resource, obj)
        set_defaults(resource, obj, self._priority_class)
        for key in ("deletionTimestamp", "deletionGracePeriodSeconds", "managedFields", "selfLink"):
            metadata.pop(key, None)
        metadata |= {"uid": str(uuid.uuid4()), "creationTimestamp": _timestamp()}
        key = Place(resource, namespace, metadata["name"], None).key
        if self._store.get(resource, key):
            raise already_exists(resource.plural, resource.group, metadata["name"])
        return self._store.put(resource, key, obj)

    def _check_namespace(self, resource: Resource, namespace: str, name: str) -> None:
        found = self._store.get(NAMESPACES, namespace)
        if found is None:
            raise not_found("namespaces", "", namespace)
        if found.obj["metadata"].get("deletionTimestamp"):
            why = f"unable to create new content in namespace {namespace} because it is being terminated"
            cause = {"reason": "NamespaceTerminating", "field": "metadata.namespace", "message": why}
            raise forbidden(resource.plural, resource.group, name, why, [cause])

    def _priority_class(self, pod: Object) -> Object | None:
        """The class that a pod names, or the one that is the default of all."""
        name = pod["spec"].get("priorityClassName")
        if name is None:
            classes = [
                one.obj for one in self._store.selected(Selection(PRIORITY_CLASSES)) if one.obj.get("globalDefault")
            ]
            return max(classes, key=lambda one: int(one["value"]), default=None)
        found = self._store.get(PRIORITY_CLASSES, name)
        if found is None:
            raise forbidden("pods", "", pod["metadata"]["name"], f"no PriorityClass with name {name} was found")
        return found.obj

    def _put(self, place: Place, request: Request) -> Answer:
        new, resource = _object(request, place.resource), place.resource
        named = new.get("metadata", {}).get("name")
        if named != place.name:
            raise bad_request(f"the name of the object ({named}) does not match the name on the URL ({place.name})")
        old = self._store.get(resource, place.key)
        if old is None and resource.created_by_update and not place.subresource:
            return Answer(201, self.create(resource, place.namespace, new).encoded)
        old = old or self._existing(place)
        if not new["metadata"].get("resourceVersion") and not resource.unconditional_update:
            message = "Invalid value: 0x0: must be specified for an update"
            cause = ("FieldValueInvalid", "metadata.resourceVersion", message)
            raise invalid(resource.plural, resource.group, str(place.name), [cause])
        uid = old.obj["metadata"]["uid"]
        if new["metadata"].get("uid", uid) != uid:
            why = _uids_differ(resource, place.key, new["metadata"]["uid"], uid)
            raise conflict(resource.plural, resource.group, str(place.name), why)
        return Answer(200, self._update(place, old, new).encoded)

    def _patch(self, place: Place, request: Request) -> Answer:
        old = self._existing(place)
        change = _decoded(request.body)
        patched = apply_patch(request.content_type, old.obj, change)
        return Answer(200, self._update(place, old, patched).encoded)

    def _update(self, place: Place, old: Version, new: Object) -> Version:
        """Store a new state, unless it is the old one. Immutable fields keep their values."""
        resource, before, metadata = place.resource, old.obj["metadata"], new.get("metadata") or {}
        if metadata.get("uid", before["uid"]) != before["uid"]:
            cause = (
                "FieldValueInvalid",
                "metadata.uid",
                f"Invalid value: {quoted(metadata['uid'])}: field is immutable",
            )
            raise invalid(resource.kind, resource.group, before["name"], [cause, cause])
        if metadata.get("resourceVersion") not in {None, "", before["resourceVersion"]}:
            raise changed_meanwhile(resource.plural, resource.group, before["name"])
        kept = {key: before[key] for key in KEPT_IN_METADATA if key in before}
        rest = {key: value for key, value in metadata.items() if key not in (*KEPT_IN_METADATA, "managedFields")}
        new = _pruned({**new, "metadata": {**rest, **kept, "resourceVersion": before["resourceVersion"]}})
        if place.subresource == "status":
            new = {**old.obj, "metadata": new["metadata"], "status": new.get("status") or {}}
        else:
            if resource.has_status:
                new["status"] = old.obj.get("status") or {}
            check_changed(resource, old.obj, new)
        if new == old.obj:
            return old
        if _is_finished(new):
            self._store.remove(resource, place.key, new)
            return Version(place.key, old.revision, new, encoded(new))
        return self._store.put(resource, place.key, new)

    def _bind(self, place: Place, request: Request) -> Answer:
        wanted = _object(request, None)
        metadata, target = wanted.get("metadata") or {}, wanted.get("target") or {}
        name = place.name or metadata.get("name") or ""
        if metadata.get("name") != name:
            raise bad_request("name in URL does not match name in Binding object")
        problems = []
        if target.get("kind") not in {None, "", "Node"}:
            problems.append(
                f'target.kind: Unsupported value: {quoted(target["kind"])}: supported values: "Node", "<empty>"'
            )
        if not target.get("name"):
            problems.append("target.name: Required value")
        if problems:  # an internal error, as in the real server
            raise Failure(500, problems[0] if len(problems) == 1 else f"[{', '.join(problems)}]", "")
        key = f"{place.namespace}/{name}"
        old = self._store.get(PODS, key)
        if old is None:
            raise not_found("pods", "", name)
        self._check_binding(name, old.obj, metadata)
        now = _timestamp()
        scheduled = {"type": "PodScheduled", "status": "True", "lastProbeTime": None, "lastTransitionTime": now}
        status = old.obj["status"]
        conditions = [one for one in status.get("conditions") or () if one["type"] != "PodScheduled"]
        annotations = {**(old.obj["metadata"].get("annotations") or {}), **(metadata.get("annotations") or {})}
        new = {
            **old.obj,
            "metadata": {**old.obj["metadata"], **({"annotations": annotations} if annotations else {})},
            "spec": {**old.obj["spec"], "nodeName": target["name"]},
            "status": {**status, "conditions": [*conditions, scheduled]},
        }
        self._store.put(PODS, key, new)
        return Answer(201, encoded(success(code=201)))

    def _check_binding(self, name: str, pod: Object, binding: Object) -> None:
        """Preconditions first, then the state of the pod, in the order of the real server."""
        if binding.get("uid") and binding["uid"] != pod["metadata"]["uid"]:
            key = f"{pod['metadata']['namespace']}/{name}"
            raise conflict("pods", "", name, _uids_differ(PODS, key, binding["uid"], pod["metadata"]["uid"]))
        asked, found = binding.get("resourceVersion"), pod["metadata"]["resourceVersion"]
        if asked and asked != found:
            why = f"Precondition failed: ResourceVersion in precondition: {asked}, in object meta: {found}"
            raise conflict("pods", "", name, why)
        if pod["metadata"].get("deletionTimestamp"):
            raise conflict("pods/binding", "", name, f"pod {name} is being deleted, cannot be assigned to a host")
        if node := pod["spec"].get("nodeName"):
            raise conflict("pods/binding", "", name, f"pod {name} is already assigned to node {quoted(node)}")
        if pod["spec"].get("schedulingGates"):
            raise conflict("pods/binding", "", name, f"pod {name} has non-empty .spec.schedulingGates")

    def _evict(self, place: Place, request: Request) -> Answer:
        """Delete a pod if a budget that selects it allows that; pods that do not run yet need no budget's consent."""
        eviction = _decoded(request.body)
        if eviction.get("apiVersion") not in {"policy/v1", "policy/v1beta1"}:
            raise bad_request(f"no kind Eviction is registered for version {quoted(str(eviction.get('apiVersion')))}")
        pod = self._existing(place)
        metadata, runs = pod.obj["metadata"], pod.obj["status"].get("phase") == "Running"
        for budget in self._store.selected(Selection(BUDGETS, place.namespace)) if runs else ():
            wanted = (budget.obj["spec"].get("selector") or {}).get("matchLabels") or {}
            if not wanted.items() <= (metadata.get("labels") or {}).items():
                continue
            allowed = (budget.obj.get("status") or {}).get("disruptionsAllowed", 0)
            if allowed < 1:
                raise Failure(429, "Cannot evict pod as it would violate the pod's disruption budget.")
            less = {**budget.obj, "status": {**budget.obj["status"], "disruptionsAllowed": allowed - 1}}
            self._store.put(BUDGETS, budget.key, less)
        options = eviction.get("deleteOptions") or {}
        self._remove(place, pod, _grace(options, request.query), options.get("preconditions") or {})
        return Answer(201, encoded(success({})))

    def _delete(self, place: Place, request: Request) -> Answer:
        version = self._existing(place)
        options = _decoded(request.body) if request.body else {}
        version, gone = self._remove(place, version, _grace(options, request.query), options.get("preconditions") or {})
        resource = place.resource
        if resource.returns_deleted or not gone:
            return Answer(200, version.encoded)
        group = {"group": resource.group} if resource.group else {}
        details = {"name": place.name, **group, "kind": resource.plural, "uid": version.obj["metadata"]["uid"]}
        return Answer(200, encoded(success(details)))

    def _delete_all(self, place: Place, request: Request) -> Answer:
        options = _decoded(request.body) if request.body else {}
        selection, resource = self._selection(place, request.query), place.resource
        listed = self._store.page(selection, 0, None, None)
        for one in self._store.selected(selection):
            metadata = one.obj["metadata"]
            found = Place(resource, metadata.get("namespace"), metadata["name"], None)
            self._remove(found, one, _grace(options, request.query), {})
        return Answer(200, listed)

    def _remove(self, place: Place, old: Version, grace: int | None, preconditions: Object) -> tuple[Version, bool]:
        """Delete an object, or mark it: pods on a node end gracefully, and finalizers delay the end of any object.

        A pod is marked first in any case, so that a watch sees it being deleted before it is gone.
        """
        resource, metadata = place.resource, old.obj["metadata"]
        _check_preconditions(resource, metadata, preconditions)
        is_marked, held, marked = "deletionTimestamp" in metadata, bool(metadata.get("finalizers")), old.obj
        seconds = 0
        if resource is PODS and is_marked:
            seconds = metadata["deletionGracePeriodSeconds"] if grace is None else grace
        elif resource is PODS:
            seconds = _grace_of_pod(old.obj, grace)
        elif resource is NAMESPACES:  # a controller would empty it first
            held, marked = True, {**old.obj, "status": {"phase": "Terminating"}}
        elif not held:
            removed = self._store.remove(resource, place.key)
            return (old if resource.returns_deleted else removed), True
        if is_marked and seconds >= metadata.get("deletionGracePeriodSeconds", 0):
            return old, False
        marks = {"deletionTimestamp": _timestamp(seconds), "deletionGracePeriodSeconds": seconds}
        if resource is NAMESPACES:
            del marks["deletionGracePeriodSeconds"]
        version = self._store.put(resource, place.key, {**marked, "metadata": {**metadata, **marks}})
        if seconds or held:
            return version, False
        self._store.remove(resource, place.key)
        return version, True


def _check_preconditions(resource: Resource, metadata: Object, wanted: Object) -> None:
    """Those of a deletion."""
    for field, word, ending in (
        ("uid", "UID", "deleted and then recreated"),
        ("resourceVersion", "ResourceVersion", "modified"),
    ):
        if wanted.get(field) not in {None, metadata[field]}:
            asked, found = wanted[field], metadata[field]
            why = f"the {word} in the precondition ({asked}) does not match the {word} in record ({found})"
            raise conflict(
                resource.kind, resource.group, metadata["name"], f"{why}. The object might have been {ending}"
            )


def _grace(options: Object, query: Mapping[str, str]) -> int | None:
    """From the body if there is one, else from the query."""
    asked = (options or query).get("gracePeriodSeconds")
    return None if asked is None else int(asked)


def _grace_of_pod(pod: Object, asked: int | None) -> int:
    """A pod without a node, or one that has ended, needs no time to stop."""
    if not pod["spec"].get("nodeName") or pod["status"].get("phase") in {"Succeeded", "Failed"}:
        return 0
    return int(pod["spec"]["terminationGracePeriodSeconds"]) if asked is None else asked


def _is_finished(obj: Object) -> bool:
    """Marked for deletion, with nothing left to wait for."""
    metadata = obj["metadata"]
    marked = "deletionTimestamp" in metadata and metadata.get("deletionGracePeriodSeconds") == 0
    return marked and not metadata.get("finalizers")


def _object(request: Request, resource: Resource | None) -> Object:
    obj = _decoded(request.body)
    kind = resource.kind if resource else "Binding"
    if obj.get("kind", kind) != kind:
        raise bad_request(
            f"{obj['kind']} in version {quoted(str(obj.get('apiVersion')))} cannot be handled as a {kind}"
        )
    return dict(_pruned(obj))


def _decoded(body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError as error:
        raise bad_request(f"couldn't get version/kind; json parse error: {error}") from error


def _pruned(value: Any) -> Any:
    """Without fields that are null: in typed objects they do not exist."""
    if isinstance(value, dict):
        return {key: _pruned(inner) for key, inner in value.items() if inner is not None}
    if isinstance(value, list):
        return [_pruned(inner) for inner in value]
    return value


def _timestamp(seconds_later: float = 0) -> str:
    return (datetime.now(UTC) + timedelta(seconds=seconds_later)).strftime("%Y-%m-%dT%H:%M:%SZ")


def _uids_differ(resource: Resource, key: str, asked: str, found: str) -> str:
    return (
        f"StorageError: invalid object, Code: 4, Key: /registry/{resource.plural}/{key}, ResourceVersion: 0, "
        f"AdditionalErrorMsg: Precondition failed: UID in precondition: {asked}, UID in object meta: {found}"
    )
