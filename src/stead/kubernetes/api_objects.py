"""The JSON of the API server, decoded: watch lines and list pages of pods and nodes.

Rule: only fields that a scheduler reads are decoded; managedFields, environment variables and conditions are skipped.
Fields that are compared far more often than they are read stay raw bytes.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Generic, TypeVar

import msgspec

from stead.errors import Invalid, Unsupported, sentence

K = TypeVar("K")
V = TypeVar("V")
T = TypeVar("T")

UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError)

_NULL = msgspec.Raw(b"null")


class EventKind(StrEnum):
    """What a line of a watch says about an object."""

    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"
    BOOKMARK = "BOOKMARK"
    ERROR = "ERROR"


class Problem(msgspec.Struct, frozen=True):
    """Why an object has no translation."""

    sentence: str
    is_unsupported: bool = False
    """Whether it is clear what the object means, but stead does not support it; else it is not valid."""

    @staticmethod
    def of(error: Invalid) -> Problem:
        """The problem that an error describes."""
        return Problem(sentence(error), isinstance(error, Unsupported))


class Metadata(msgspec.Struct, rename="camel", gc=False):
    name: str = ""
    namespace: str | None = None
    uid: str | None = None
    labels: msgspec.Raw = _NULL
    annotations: msgspec.Raw = _NULL
    owner_references: msgspec.Raw = _NULL
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    resource_version: str = ""


class Container(msgspec.Struct, rename="camel", omit_defaults=True, gc=False):
    image: str | None = None
    resources: msgspec.Raw = _NULL
    ports: msgspec.Raw = _NULL
    restart_policy: str | None = None


class PodSpec(msgspec.Struct, rename="camel", omit_defaults=True, gc=False):
    """The part of a pod's spec that is read. What differs between equal pods is cleared before it becomes a key."""

    node_name: str | None = None
    scheduler_name: str | None = None
    scheduling_gates: list[msgspec.Raw] | None = None
    volumes: list[dict[str, msgspec.Raw]] | None = None
    containers: list[Container] | None = None
    init_containers: list[Container] | None = None
    priority: int | None = None
    preemption_policy: str | None = None
    node_selector: msgspec.Raw = _NULL
    affinity: msgspec.Raw = _NULL
    tolerations: msgspec.Raw = _NULL
    topology_spread_constraints: msgspec.Raw = _NULL
    overhead: msgspec.Raw = _NULL
    resources: msgspec.Raw = _NULL
    resource_claims: msgspec.Raw = _NULL
    scheduling_group: msgspec.Raw = _NULL
    workload_ref: msgspec.Raw = _NULL


class PodStatus(msgspec.Struct, rename="camel", gc=False):
    phase: str = ""
    nominated_node_name: str | None = None
    start_time: str | None = None


class PodObject(msgspec.Struct, gc=False):
    metadata: Metadata
    spec: PodSpec = msgspec.field(default_factory=PodSpec)
    status: PodStatus = msgspec.field(default_factory=PodStatus)


class NodeSpec(msgspec.Struct, gc=False):
    taints: msgspec.Raw = _NULL
    unschedulable: bool | None = None


class NodeStatus(msgspec.Struct, gc=False):
    allocatable: msgspec.Raw = _NULL
    images: msgspec.Raw = _NULL


class NodeObject(msgspec.Struct, gc=False):
    metadata: Metadata
    spec: NodeSpec = msgspec.field(default_factory=NodeSpec)
    status: NodeStatus = msgspec.field(default_factory=NodeStatus)


class PodEventObject(msgspec.Struct, gc=False):
    type: EventKind
    object: PodObject


class NodeEventObject(msgspec.Struct, gc=False):
    type: EventKind
    object: NodeObject


class _AnyEvent(msgspec.Struct):
    type: EventKind
    object: msgspec.Raw


class _Error(msgspec.Struct):
    """A Status object: what an API server sends instead of the object if there is an error."""

    code: int = 0
    message: str = ""


class _ListMetadata(msgspec.Struct, rename="camel"):
    resource_version: str = ""
    token: str = msgspec.field(default="", name="continue")


class PodPageObject(msgspec.Struct):
    metadata: _ListMetadata
    items: list[PodObject] | None = None


class NodePageObject(msgspec.Struct):
    metadata: _ListMetadata
    items: list[NodeObject] | None = None


POD = msgspec.json.Decoder(PodObject)
POD_EVENT = msgspec.json.Decoder(PodEventObject)
POD_PAGE = msgspec.json.Decoder(PodPageObject)
NODE_EVENT = msgspec.json.Decoder(NodeEventObject)
NODE_PAGE = msgspec.json.Decoder(NodePageObject)
_ANY_EVENT = msgspec.json.Decoder(_AnyEvent)
_ERROR = msgspec.json.Decoder(_Error)
ANYTHING = msgspec.json.Decoder()
ENCODER = msgspec.json.Encoder()


def decoded(decoder: msgspec.json.Decoder[T], body: bytes, what: str) -> T:
    try:
        return decoder.decode(body)
    except UNREADABLE as error:
        raise Invalid(sentence(f"{what} from the API server cannot be read: {error}")) from None


def error_in(line: bytes, cause: Exception, what: str) -> tuple[int, str]:
    """Code and message of a line that holds an error instead of an object."""
    event = decoded(_ANY_EVENT, line, what)
    if event.type is not EventKind.ERROR:
        raise Invalid(sentence(f"{what} from the API server cannot be read: {cause}"))
    error = decoded(_ERROR, bytes(event.object), what)
    return error.code, error.message


class Recent(Generic[K, V]):
    """A map of at most `most` entries, in two generations.

    New and used entries go to the young one. When it is half of `most`, it becomes the old one, and the previous old
    one is dropped: those entries have not been used since.
    """

    def __init__(self, most: int) -> None:
        self._half = max(1, most // 2)
        self._young: dict[K, V] = {}
        self._old: dict[K, V] = {}

    def get(self, key: K) -> V | None:
        found = self._young.get(key)
        if found is None and self._old:
            found = self._old.pop(key, None)
            if found is not None:
                self.put(key, found)
        return found

    def put(self, key: K, value: V) -> None:
        if len(self._young) >= self._half and key not in self._young:
            self._old, self._young = self._young, {}
        self._young[key] = value

    def drop(self, key: K) -> None:
        self._young.pop(key, None)
        self._old.pop(key, None)

    def __len__(self) -> int:
        return len(self._young) + len(self._old)
