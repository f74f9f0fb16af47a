"""The desk of a Kubernetes cluster: what it knows comes from the API server, under the rights of the caller.

Rule: it binds no pod and decides nothing for the cluster: its engine is only told facts, and forks try what-ifs. All
that it reads and writes goes through one event loop in a thread of its own. The first question lists everything once;
a later one begins to watch, so that a command that asks again sees what has changed.
"""

from __future__ import annotations

import asyncio
import threading
import time
from calendar import timegm
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from stead.engine.explain.events import Event
from stead.engine.explain.explanations import Explanation
from stead.engine.facts import AskSubmitted, Fact, NodeJoined, NodeLeft
from stead.engine.timing.taint_times import TaintEnd
from stead.errors import Invalid, absent
from stead.kubernetes.api.config import ApiConfig
from stead.kubernetes.api.http import ApiClient, ApiError, Unreachable, error_of
from stead.kubernetes.api_objects import ANYTHING, Problem
from stead.kubernetes.desk import manifests, node_changes
from stead.kubernetes.desk.events import Events
from stead.kubernetes.desk.evicting import evict_all
from stead.kubernetes.desk.explaining import KubeExplanation, in_one_sentence
from stead.kubernetes.desk.loop import Loop
from stead.kubernetes.desk.reading import OLD_S, Reading, tell_if_slow
from stead.kubernetes.desk.references import pod_id, reference
from stead.kubernetes.desk.snapshots import KubeSnapshot
from stead.kubernetes.templates import Pod
from stead.kubernetes.watches import PODS
from stead.language.asks import Ask
from stead.language.nodes import Node
from stead.operate.audit import Audit, Author
from stead.operate.changes import Absent, Conflict, NodeChange
from stead.operate.desk import Carried, LocalDesk, Unanswered
from stead.operate.history import Replayed
from stead.operate.lint import Finding, lint
from stead.operate.rows import Known, KnownOwner
from stead.operate.snapshot import ALL, PAGE_MAX, Query, Snapshot, every
from stead.operate.views import GroupView, OwnerView, Page, Summary, WorkView
from stead.text import first_few

T = TypeVar("T")

FRESH_S = 0.5
"""How long a snapshot is used. A change creates a new one at once."""


@dataclass(frozen=True)
class Scope:
    """Which pods a user means: those of `namespace`, or of all namespaces. A name without a namespace is in
    `namespace`."""

    namespace: str = "default"
    everywhere: bool = True
    needs_all: bool = False
    """Whether it is refused if the user may list the pods of `namespace` only."""


class KubeDesk(LocalDesk):
    """The desk of the cluster that `config` names. Its audit is a file in `folder`. `say` gets sentences about what
    answers lack because of missing rights; `tell`, that reading takes long."""

    def __init__(
        self,
        config: ApiConfig,
        folder: Path,
        scope: Scope,
        say: Callable[[str], None],
        tell: Callable[[str], None] = lambda _: None,
    ) -> None:
        super().__init__(lambda: _audit_in(folder))
        self._config, self._scope, self._say, self._tell = config, scope, say, tell
        self._title = config.title or config.address
        self._lock = threading.Lock()
        self._snapshot: KubeSnapshot | None = None
        self._made_at = 0.0
        self._known: dict[str, tuple[Pod, Known]] = {}
        self._loop = Loop("kubernetes")
        try:
            self._client = self._run(self._opened())
            self._reading = self._run(self._first_read())
            self._read_at = time.monotonic()
            self._events = Events(self._client, scope.namespace, scope.everywhere)
        except BaseException:
            self.close()
            raise
        for note in self._reading.notes:
            say(note)
        self.snapshot()

    async def _opened(self) -> ApiClient:
        return ApiClient(self._config)

    async def _first_read(self) -> Reading:
        telling = asyncio.create_task(tell_if_slow(self._tell, self._title))
        reading = Reading(self._client, None if self._scope.needs_all else self._scope.namespace)
        try:
            await reading.read()
        finally:
            telling.cancel()
        return reading

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        """Do this in the event loop; a failure is one sentence."""
        try:
            return self._loop.run(work)
        except Unreachable as error:
            raise Unanswered(f"{error}; check the server of the context {self._title!r}") from None
        except ApiError as error:
            if error.status == 401:
                raise Invalid(
                    f"the API server does not accept the credentials of the context {self._title!r}; log in again, or "
                    "choose another with --context NAME"
                ) from None
            raise Unanswered(str(error)) from None

    def close(self) -> None:
        client = getattr(self, "_client", None)
        self._loop.close(None if client is None else client.close)
        if "_audit" in self.__dict__:  # it was opened
            self._audit.close()

    # -- answering

    def follow(self) -> None:
        """Watch what changes, from now on."""
        self._run(self._follow())

    async def _follow(self) -> None:
        self._reading.watch()

    def now(self) -> float:
        return time.time()

    def ends(self) -> Iterable[TaintEnd]:
        return ()

    def snapshot(self) -> KubeSnapshot:
        with self._lock:
            if self._snapshot is None or time.monotonic() - self._made_at > FRESH_S:
                self._snapshot = self._run(self._look())
                self._made_at = time.monotonic()
            return self._snapshot

    async def _look(self) -> KubeSnapshot:
        if time.monotonic() - self._read_at > OLD_S:
            self._reading.watch()
        before = dict(self._reading.engine.nodes)
        facts = self._reading.take_news()
        if not facts and self._snapshot is not None:
            return self._snapshot
        if self._snapshot is not None:
            self._events.nodes_changed(before, facts, self._reading.watches.nodes.version)
        pods = dict(self._reading.cluster.pods)
        known_before, self._known = self._known, {}
        for key, pod in pods.items():
            made = known_before.get(key)
            self._known[key] = made if made is not None and made[0] is pod else (pod, _known(pod))
        known = {key: each for key, (_, each) in self._known.items()}
        owners = _owners({each.owner for each in known.values() if each.owner})
        has_same_nodes = not any(isinstance(fact, NodeJoined | NodeLeft) for fact in facts)
        nodes_of = self._snapshot if has_same_nodes else None
        return KubeSnapshot(self._reading.engine.fork(), time.time(), known, owners, pods, self._title, nodes_of)

    def work(self, query: Query) -> Page[WorkView]:
        return self.snapshot().work(self._scoped(query))

    def summary(self) -> Summary:
        found = self.snapshot().summary
        if self._scope.everywhere:
            return found
        running, waiting = (self.work(Query((f"state={state}",), limit=1)).total for state in ("running", "waiting"))
        groups = self.groups(ALL)
        pending = sum(group.state == "waiting" for group in groups.items)
        return replace(found, running=running, waiting=waiting, groups=groups.total, groups_waiting=pending)

    def groups(self, query: Query) -> Page[GroupView]:
        return self._within(self.snapshot().groups, query, lambda group: group.members[0][0] if group.members else "")

    def owners(self, query: Query) -> Page[OwnerView]:
        return self._within(self.snapshot().owners, query, lambda owner: owner.id)

    def lint(self, written: Any | None = None) -> Sequence[Finding]:
        if written is not None or self._scope.everywhere:
            return super().lint(written)
        snapshot, mine = self.snapshot(), f"{self._scope.namespace}/"
        return lint(snapshot, (snapshot.engine.item(id) for id in snapshot.engine.waiting if id.startswith(mine)))

    def _within(self, fetch: Callable[[Query], Page[T]], query: Query, id_of: Callable[[T], str]) -> Page[T]:
        """A page of what belongs to the namespace that the user means."""
        if self._scope.everywhere:
            return fetch(query)
        mine = f"{self._scope.namespace}/"
        found = [
            each for each in every(fetch, replace(query, offset=0, limit=PAGE_MAX)) if id_of(each).startswith(mine)
        ]
        return Page(tuple(found[query.offset : query.offset + query.limit]), len(found), query.offset)

    def _scoped(self, query: Query) -> Query:
        """Without pods of namespaces that the user does not mean."""
        if self._scope.everywhere:
            return query
        return replace(query, filters=(*query.filters, f"namespace={self._scope.namespace}"))

    def one(self, id: str) -> WorkView:
        return self.snapshot().one(self._meant(id))

    def why(self, id: str) -> Explanation:
        snapshot, key = self.snapshot(), self._meant(id)
        if snapshot.rows.knows(key):
            return snapshot.why(key)
        pod = snapshot.pods.get(key)
        if pod is None:
            return self._not_found(key, snapshot)
        problem, lenient = self._run(self._read_again(pod))
        return in_one_sentence(snapshot.engine, pod, problem, lenient, self._scope.namespace)

    async def _read_again(self, pod: Pod) -> tuple[Problem | None, Ask | None]:
        """The problem of a pod, and its ask without the parts that do not parse or are not supported."""
        return self._reading.cluster.problem_of(pod.key), self._reading.templates.lenient(pod)

    def _meant(self, given: str) -> str:
        """The id of the pod or group with this name."""
        snapshot = self.snapshot()
        if given in snapshot.pods or snapshot.rows.knows(given):
            return given
        id = pod_id(given, self._scope.namespace)
        if id in snapshot.pods or "/" in given or not self._scope.everywhere:
            return id
        return snapshot.work_id(given)

    def _not_found(self, key: str, snapshot: KubeSnapshot) -> KubeExplanation:
        """A pod that has finished; otherwise there is none with this name."""
        namespace, _, name = pod_id(key, self._scope.namespace).rpartition("/")
        phase = self._run(self._phase_of(namespace, name))
        called = reference(f"{namespace}/{name}", self._scope.namespace)
        if phase is not None:
            return KubeExplanation(
                f"{namespace}/{name}", text=f"{called} has finished ({phase}), so it does not need a node any more."
            )
        elsewhere = sorted(pod.namespace for pod in snapshot.pods.values() if pod.name == name)
        if elsewhere:
            raise Absent(f"there is no pod {name!r} in namespace {namespace!r}; there is one in: -n {elsewhere[0]}")
        known = [pod.name for pod in snapshot.pods.values() if pod.namespace == namespace]
        raise Absent(absent("pod", name, known, f"in namespace {namespace!r}"))

    async def _phase_of(self, namespace: str, name: str) -> str | None:
        """The phase of a finished pod; None if there is no such pod."""
        path = f"{PODS.rpartition('/')[0]}/namespaces/{namespace}/pods"
        if not (namespace.replace("-", "").isalnum() and namespace.isascii()):
            return None
        response = await self._client.request("GET", path, {"fieldSelector": f"metadata.name={name}"})
        if response.status == 403:
            return None
        if response.status != 200:
            raise error_of(response)
        found = ANYTHING.decode(response.body).get("items") or []
        return str((found[0].get("status") or {}).get("phase") or "Unknown") if found else None

    def events(self, after: int, limit: int) -> Sequence[Event]:
        self.snapshot()  # it also shows changes of nodes
        return self._run(self._events_after(after, limit))

    async def _events_after(self, after: int, limit: int) -> Sequence[Event]:
        was_denied = self._events.is_denied
        await self._events.read()
        if self._events.is_denied and not was_denied:
            self._say("you may not list events, so the answer leaves them out")
        return self._events.after(after, limit)

    def replay(self, ask: str = "", at: float | None = None) -> Replayed:
        raise Invalid(
            "past decisions are in the scheduler's journal: run `stead scheduler --journal FILE`, and give that file, "
            "for example: stead replay FILE --ask pod/web"
        )

    # -- changing

    def check(self, change: NodeChange, node: Node) -> None:
        super().check(change, node)
        node_changes.check(change)
        if change.evict:
            snapshot = self.snapshot()
            bare = [id for id in snapshot.evictable(node.id) if not snapshot.rows.ask(id).owner]
            if bare:
                raise Conflict(
                    f"node {node.title} has pods without a controller that would create them again: {first_few(bare)}; "
                    "delete them yourself, or drain the node without --evict"
                )

    def read(self, written: Any, snapshot: Snapshot) -> list[Fact]:
        """Work may be manifests of pods, too."""
        rest, pods = manifests.taken_out(written)
        asks = self._run(self._asks_in(pods)) if pods else []
        for ask in asks:
            if snapshot.rows.knows(ask.id):
                raise Invalid(f"there is a pod {ask.id!r} already; give the manifest another name")
        facts = map(manifests.with_gpus_of_pods, super().read(rest, snapshot) if rest or not asks else [])
        return [*facts, *map(AskSubmitted, asks)]

    async def _asks_in(self, pods: manifests.Manifests) -> list[Ask]:
        return [manifests.ask_in(pod, path, self._reading.templates, self._scope.namespace) for path, pod in pods]

    def as_carried_out(self, changes: Sequence[Fact], snapshot: Snapshot) -> Sequence[Fact]:
        assert isinstance(snapshot, KubeSnapshot)
        return list(snapshot.in_kubernetes(changes))

    def _change(self, changes: Sequence[NodeChange], author: Author, action: str) -> Carried:
        """Pods are evicted when all nodes are cordoned, which is in the audit then."""
        wanted = [replace(change, evict=False, rate=0.0) for change in changes]
        for change in changes:
            self.check(change, self.snapshot().find(change.node))
        carried = super()._change(wanted, author, action)
        nodes = [self.snapshot().find(change.node).id for change in changes if change.evict]
        if nodes:
            self._run(evict_all(self._client, nodes, max(change.rate for change in changes)))
        return carried

    def carry_out(self, changes: Sequence[NodeChange]) -> Sequence[str]:
        try:
            self._run(self._carry_out_all(changes))
        finally:
            with self._lock:
                self._made_at = 0.0
        return ()

    async def _carry_out_all(self, changes: Sequence[NodeChange]) -> None:
        """Several changes of one node, as an undo has them, are made in order."""
        by_node: dict[str, list[NodeChange]] = {}
        for change in changes:
            by_node.setdefault(change.node, []).append(change)

        async def in_order(of_one: Sequence[NodeChange]) -> None:
            for change in of_one:
                await self._carry_out(change)

        done = await asyncio.gather(*map(in_order, by_node.values()), return_exceptions=True)
        for error in done:
            if error is not None:
                raise error

    async def _carry_out(self, change: NodeChange) -> None:
        await self._reading.node_written(await node_changes.change_node(self._client, change))


def _audit_in(folder: Path) -> Audit:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return Audit(folder / "audit.sqlite")


def _known(pod: Pod) -> Known:
    moment = pod.start_time if pod.node_name and pod.start_time else pod.created
    owner = pod.ask.owner if pod.ask is not None else ""
    return Known("pod", pod.name, f"{pod.namespace}/{owner}" if owner else "", _seconds(moment))


def _owners(ids: Collection[str]) -> dict[str, KnownOwner]:
    """The names of owners by their ids: without the namespace, unless two namespaces have an owner of this name."""
    called = Counter(id.partition("/")[2] for id in ids)
    names = ((id, id.partition("/")[2]) for id in ids)
    return {id: KnownOwner(name if called[name] == 1 else id, kind="owner") for id, name in names}


def _seconds(written: str) -> float | None:
    """Seconds since 1970. The API server writes 2026-05-04T12:30:00Z."""
    with suppress(ValueError):
        return float(timegm(time.strptime(written, "%Y-%m-%dT%H:%M:%SZ")))
    return None
