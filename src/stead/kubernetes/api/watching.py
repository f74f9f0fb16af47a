"""Keeps a consumer up to date with one kind of object: list, then watch, and repair every gap.

Rule: the consumer sees all changes in order, or a complete new list; it never misses a change without one. A failure of
the server or the network ends in a retry, never in an exception.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from random import Random
from typing import Generic, TypeVar

import msgspec

from stead.kubernetes.api.http import ApiClient, ApiError, Backoff, Unreachable, error_of
from stead.text import printable

LOG = logging.getLogger("stead.kubernetes")

PAGE = 500
"""How many objects the server returns in one page of a list."""

LIST_TIMEOUT_S = 60.0
"""The time limit for one page."""

WATCH_S_MIN, WATCH_S_MAX = 300, 600
"""The server ends a watch after a random time between these. That spreads the load when many watches began together."""

IDLE_S = 150.0
"""A watch that receives nothing for this long is opened again. The server sends a bookmark about every minute."""

BACKOFF_BASE_S, BACKOFF_MAX_S = 0.5, 30.0
"""Bounds of the wait before a retry."""

DENIED_S_MAX = 5.0
"""The longest wait while a permission is missing: whoever grants it wants to see that it works."""

SHORT_S = 1.0
"""A watch that ends sooner, without an event, counts as a failure, so that it is not opened in a tight loop."""

EXPIRED_LISTS_MAX = 2
"""After this number of lists whose pages expired while they were read, the next list is requested in one piece."""

ABSENT_S = 60.0
"""How often a resource that the server does not have is looked for again: it may be installed later."""

GONE = 410
BOOKMARK, ERROR = "BOOKMARK", "ERROR"

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Changed(Generic[T]):
    """One object was added, modified or deleted. `kind` is the server's word: ADDED, MODIFIED or DELETED."""

    kind: str
    object: T


@dataclass(frozen=True, slots=True)
class Relisted(Generic[T]):
    """All current objects. What the consumer knows and `items` does not have was deleted meanwhile."""

    items: Sequence[T]


class _Gap(Exception):
    """The watch cannot continue from where it was; a new list is needed."""


class _Failure(msgspec.Struct):
    message: str = "no message"


class _FailureEvent(msgspec.Struct):
    object: _Failure = msgspec.field(default_factory=_Failure)


class Outages:
    """Which resources cannot be read now. Only the first failure is logged, and the end of the last one: while the API
    server cannot be reached, all of them fail for the same reason."""

    def __init__(self) -> None:
        self._paths: set[str] = set()

    def begin(self, verb: str, path: str, error: str) -> None:
        if not self._paths:
            LOG.warning("cannot %s, retrying", verb, extra={"path": path, "error": error})
        self._paths.add(path)

    def end(self, path: str) -> None:
        if path in self._paths:
            self._paths.discard(path)
            if not self._paths:
                LOG.info("everything can be read again")


class Watched(Generic[T]):
    """One resource, for example all pods. `run` reports to `deliver` until it is cancelled.

    `decode` turns a line of the watch into the kind of event, the object and its resourceVersion. `decode_page` turns a
    page of the list into its items, resourceVersion and continue token. `deliver` must not block. If the server
    denies access, `denied` gets a sentence that names the missing permission, once until access works again. After
    events were delivered, the watch rests for `rest_s()` seconds, and then reads at once what has arrived meanwhile.
    With `may_be_missing`, the server may not have the resource; `others` are the paths where other versions of the API
    server have it.
    """

    def __init__(
        self,
        client: ApiClient,
        path: str,
        decode: Callable[[bytes], tuple[str, T, str]],
        decode_page: Callable[[bytes], tuple[Sequence[T], str, str | None]],
        deliver: Callable[[Changed[T] | Relisted[T]], None],
        *,
        others: Sequence[str] = (),
        may_be_missing: bool = False,
        query: dict[str, str] | None = None,
        denied: Callable[[str], None] | None = None,
        outages: Outages | None = None,
        rest_s: Callable[[], float] = lambda: 0.0,
        random: Random | None = None,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.path = path
        """Where the resource is read now."""
        self._paths = deque([*others, path])
        self._may_be_missing = may_be_missing or bool(others)
        self._missing = 0  # how many of the paths the server does not know
        self.is_synced = False
        """Whether the consumer has received a complete list. It stays True; `last_received` shows stale objects."""
        self.last_received = clock()
        """When the server last sent something, on `clock`."""
        self.relists = 0
        """How many complete lists were delivered after the first one."""
        self.restarts = 0
        """How many times a watch was opened again without a new list."""
        self._client = client
        self._decode = decode
        self._decode_page = decode_page
        self._deliver = deliver
        self._query = dict(query or {})
        self._denied = denied or (lambda sentence: LOG.error(sentence, extra={"path": path}))
        self._random = random or Random()
        self._sleep = sleep
        self._clock = clock
        self._backoff = Backoff(BACKOFF_BASE_S, BACKOFF_MAX_S, self._random)
        self._version: str | None = None
        self._has_watched = False
        self._expired_lists = 0
        self._is_denied = False
        self._outages = Outages() if outages is None else outages
        self._rest_s = rest_s

    async def run(self) -> None:
        """List and watch until cancelled."""
        while True:
            verb, retry_after_s, began = "list", None, None
            try:
                if self._version is None:
                    self._version = await self._list()
                    self._has_watched = False
                verb, began = "watch", self._clock()
                await self._watch(self._version)
            except _Gap as gap:
                self._list_again(str(gap))
            except ApiError as error:
                retry_after_s = error.retry_after_s
                if error.status == GONE:
                    self._list_again(error.message)
                elif error.status == 404 and verb == "list" and self._may_be_missing:
                    retry_after_s = self._try_other_path()
                else:
                    self._failed(verb, error)
            except Unreachable as error:
                self._failed(verb, error)
            else:
                if self._clock() - began >= SHORT_S:  # the server ended it, as it was asked to
                    self._works_again()
                    continue
            if began is not None and self._clock() - began >= SHORT_S:
                self._works_again()
            wait_s = self._backoff.next_s(retry_after_s)
            await self._sleep(min(wait_s, DENIED_S_MAX) if self._is_denied else wait_s)

    async def list_once(self, is_needed: bool) -> None:
        """List now, without a retry; `run` then goes on from there. A server may lack a resource that is not needed.
        Raises `ApiError` and `Unreachable`."""
        while not self.is_synced:
            try:
                self._version = await self._list()
            except ApiError as error:
                if error.status == 404 and not is_needed:
                    self._try_other_path()
                elif error.status != GONE:  # its pages expired while they were read
                    raise

    def take(self, line: bytes) -> None:
        """Deliver an event that did not come from the watch. The watch still goes on from where it was."""
        kind, item, _ = self._decode(line)
        self._deliver(Changed(kind, item))

    def narrow(self, namespace: str) -> None:
        """From now on, read only the objects of this namespace."""
        self._paths = deque(_within(path, namespace) for path in self._paths)
        self.path = _within(self.path, namespace)

    @property
    def version(self) -> str:
        """The resourceVersion that was reached; "" before the first list."""
        return self._version or ""

    def _list_again(self, reason: str) -> None:
        self._version = None
        LOG.info("listing again", extra={"path": self.path, "reason": reason})

    async def _list(self) -> str:
        """Read all pages and deliver them as one list. Returns the resourceVersion to watch from."""
        items: list[T] = []
        version, token = "", None
        is_paged = self._expired_lists < EXPIRED_LISTS_MAX
        while True:
            query = self._query | ({"limit": str(PAGE)} if is_paged else {}) | ({"continue": token} if token else {})
            response = await self._client.request("GET", self.path, query, timeout_s=LIST_TIMEOUT_S)
            if response.status != 200:
                if response.status == GONE and token:
                    self._expired_lists += 1
                raise error_of(response)
            self.last_received = self._clock()
            try:
                page, page_version, token = self._decode_page(response.body)
            except Exception as error:  # any failure of the decoder means the same: these bytes have no meaning
                raise ApiError(200, "Undecodable", f"a page of {self.path} cannot be decoded: {error}") from error
            version = version or page_version  # the first page's: a watch from an earlier point misses nothing
            items.extend(page)
            if not token:
                break
        self._expired_lists = 0
        self._is_denied = False
        self._deliver(Relisted(items))
        if self.is_synced:
            self.relists += 1
        self.is_synced = True
        return version

    async def _watch(self, version: str) -> None:
        """Deliver events until the stream ends, and keep the resourceVersion that was reached."""
        if self._has_watched:
            self.restarts += 1
        self._has_watched = True
        query = self._query | {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": version,
            "timeoutSeconds": str(self._random.randint(WATCH_S_MIN, WATCH_S_MAX)),
        }
        async with await self._client.stream(self.path, query, idle_timeout_s=IDLE_S) as stream:
            self._is_denied = False
            self._outages.end(self.path)
            self.last_received = self._clock()
            while lines := await stream.batch():
                self.last_received = self._clock()
                for line in lines:
                    self._take(line)
                self._works_again()
                if rest_s := self._rest_s():
                    with stream.resting():
                        await self._sleep(rest_s)

    def _take(self, line: bytes) -> None:
        """Deliver one event."""
        try:
            kind, item, version = self._decode(line)
        except Exception as error:  # any failure of the decoder means the same: an event is missing
            raise _Gap(f"an event cannot be decoded: {error}") from error
        if kind == ERROR:
            raise _Gap(f"the server ended the watch: {_failure_in(line)}")
        if kind != BOOKMARK:
            self._deliver(Changed(kind, item))
        self._version = version or self._version

    def _try_other_path(self) -> float:
        """The server does not have this version of the resource. Returns how long to wait before the next try."""
        self._missing += 1
        self._paths.rotate(-1)
        self.path = self._paths[-1]
        if self._missing < len(self._paths):
            return 0.0
        self._missing = 0
        if not self.is_synced:
            LOG.debug("the API server does not have this resource", extra={"path": self.path})
            self._deliver(Relisted(()))
            self.is_synced = True
        return ABSENT_S

    def _works_again(self) -> None:
        self._backoff.reset()
        self._outages.end(self.path)

    def _failed(self, verb: str, error: ApiError | Unreachable) -> None:
        """Report a series of failures once; a missing permission in its own words."""
        if isinstance(error, ApiError) and error.status == 403:
            if not self._is_denied:
                self._is_denied = True
                self._denied(permission_sentence(verb, self.path, error.message))
        elif self._backoff.failures:  # one lost connection is nothing to report
            is_unknown = isinstance(error, ApiError) and error.status == 401
            text = "the API server does not accept the credentials of this user" if is_unknown else str(error)
            self._outages.begin(verb, self.path, text)


def _within(path: str, namespace: str) -> str:
    """``/api/v1/pods`` in a namespace."""
    folder, _, resource = path.rpartition("/")
    return f"{folder}/namespaces/{namespace}/{resource}"


def _failure_in(line: bytes) -> str:
    """What the server says in an ERROR event."""
    with suppress(msgspec.DecodeError, UnicodeDecodeError):
        return printable(msgspec.json.decode(line, type=_FailureEvent).object.message)
    return "no message"


def permission_sentence(verb: str, path: str, message: str) -> str:
    """Which permission is missing, in one sentence, from the path of the request."""
    parts = path.strip("/").split("/")
    group, parts = ("", parts[2:]) if parts[0] == "api" else (parts[1] if len(parts) > 1 else "", parts[3:])
    where = ""
    if len(parts) > 2 and parts[0] == "namespaces":
        where, parts = f" in namespace {parts[1]!r}", parts[2:]
    resource = parts[0] if parts else path
    of_group = f" of the API group {group!r}" if group else ""
    return (
        f"stead may not {verb} {resource}{of_group}{where}; give its user or service account the verbs 'list' and"
        f" 'watch' on {resource!r}, as `stead scheduler manifests` does (the API server said: {message})"
    )
