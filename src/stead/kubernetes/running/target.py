"""Submits work to a Kubernetes cluster as pods, and follows the pods.

Rule: everything goes through the API server under the rights of the kubeconfig file. If one object is refused, those
created before it are deleted. Only pods with the uids that this command created are followed and deleted.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from stead.errors import Invalid
from stead.kubernetes.api.config import load
from stead.kubernetes.api.http import ApiClient, ApiError, Response, Unreachable, error_of
from stead.kubernetes.api.watching import Changed, Relisted, Watched
from stead.kubernetes.fields import fields_in, parts_in, text_in
from stead.kubernetes.pod_manifest import Object, PodOptions
from stead.kubernetes.running.pod_states import has_logs, is_scheduled, update_of, why_deleted
from stead.kubernetes.work_manifests import POD_GROUPS, Manifests, manifests_of
from stead.specs.following import Line, State, Update
from stead.specs.sections import Misplaced
from stead.specs.submissions import Submission

T = TypeVar("T")

UNSEEN_S = 5.0
"""After this time without a word about a pending pod, its scheduler may not run."""

LOG_END_S = 5.0
"""How long the end of a log is waited for when its pod has ended."""

LOG_IDLE_S = 86_400.0

CLASSES = "/apis/scheduling.k8s.io/v1/priorityclasses"


@dataclass(slots=True)
class _Followed:
    """A pod that was created, as it is now."""

    id: str
    path: str
    uid: str
    pod: Object
    last: Update
    log: asyncio.Task[None] | None = None
    has_ended: bool = False


class KubernetesTarget:
    def __init__(
        self,
        work: Submission,
        kubeconfig: str | None,
        context: str | None,
        namespace: str | None,
        scheduler_name: str,
        is_watched: bool,
    ) -> None:
        self._work, self._is_watched = work, is_watched
        self._where = kubeconfig, context
        self._options = PodOptions(namespace or "default", scheduler_name)
        self._has_namespace = namespace is not None
        self._runner = asyncio.Runner()
        self._client: ApiClient | None = None
        self._followed: dict[str, _Followed] = {}
        self._others: list[str] = []  # paths of PodGroups
        self._news: asyncio.Queue[Update | Line | Invalid] = asyncio.Queue()
        self._tasks: list[asyncio.Task[None]] = []
        self._began = 0.0
        self._logs_are_missing = False

    # -- the interface of every cluster

    def check(self) -> Sequence[str]:
        manifests = manifests_of(self._work, self._options, class_of=lambda priority, preempts, place: "")
        for id in () if self._is_watched else (*self._work.pieces, *self._work.groups):
            item = self._work.groups[id] if id in self._work.groups else self._work.pieces[id].ask
            if item.deadline is not None:
                raise Misplaced(
                    f"{self._work.places[id]}.deadline: on Kubernetes only this command can enforce it; add -w"
                )
        return list(manifests.pods)

    def submit(self) -> Sequence[str]:
        self.check()
        config = load(*self._where)
        if not self._has_namespace:
            self._options = PodOptions(config.namespace, self._options.scheduler_name)
        self._client = ApiClient(config)
        self._run(self._submit())
        return list(self._followed)

    def follow(self) -> Iterator[Update | Line]:
        left = set(self._followed)
        self._run(self._start())
        while left:
            news = self._run(self._news.get())
            if isinstance(news, Invalid):
                raise news
            if isinstance(news, Update) and news.state.is_final:
                left.discard(news.id)
            yield news

    def cancel(self) -> None:
        self._run(self._cancel())

    def close(self) -> None:
        with suppress(KeyboardInterrupt):
            self._run(self._close())
        self._runner.close()

    def _run(self, what: Coroutine[Any, Any, T]) -> T:
        try:
            return self._runner.run(what)
        except Unreachable as error:
            raise Invalid(str(error)) from None
        except asyncio.CancelledError:  # by Ctrl-C, while something else was cancelled too
            raise KeyboardInterrupt from None

    # -- creating

    async def _submit(self) -> None:
        with_groups = bool(self._work.groups) and await self._has_pod_groups()
        classes = await self._classes() if self._needs_classes() else {}
        manifests = manifests_of(self._work, self._options, with_groups, _class_among(classes))
        self._began = time.monotonic()
        try:
            await self._create_all(manifests)
        except BaseException:
            await self._delete_all()
            raise

    async def _create_all(self, manifests: Manifests) -> None:
        for each in manifests.pod_groups:
            path = f"/apis/{POD_GROUPS}/namespaces/{each['metadata']['namespace']}/podgroups"
            await self._create(path, each)
            self._others.append(f"{path}/{each['metadata']['name']}")

        async def create(id: str, pod: Object) -> None:
            path = f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods"
            created = await self._create(path, pod)
            uid = text_in(fields_in(created, "metadata"), "uid")
            self._followed[id] = _Followed(id, f"{path}/{id}", uid, created, Update(id, State.PENDING))

        made = await asyncio.gather(*(create(id, pod) for id, pod in manifests.pods.items()), return_exceptions=True)
        self._followed = {id: self._followed[id] for id in manifests.pods if id in self._followed}
        for error in made:
            if error is not None:
                raise error

    async def _create(self, path: str, body: Object) -> Object:
        response = await self._request("POST", path, body)
        if response.status in (200, 201):
            return dict(msgspec.json.decode(response.body))
        kind, name, namespace = body["kind"], body["metadata"]["name"], body["metadata"]["namespace"]
        error = error_of(response)
        if response.status == 409:
            what = "pod" if kind == "Pod" else kind
            raise Invalid(
                f"the {what} {name!r} exists already in the namespace {namespace!r}; delete it, or choose another id"
            )
        if response.status == 404 and "namespaces" in error.message:
            raise Invalid(f"the namespace {namespace!r} does not exist; create it, or give another one with -n")
        raise Invalid(f"the API server refuses {name!r}: {error.message}")

    def _needs_classes(self) -> bool:
        return any(piece.ask.priority or not piece.ask.preempts for piece in self._work.pieces.values())

    async def _classes(self) -> dict[tuple[int, bool], str]:
        """The names of the cluster's PriorityClasses, by value and whether they preempt."""
        response = await self._request("GET", CLASSES)
        if response.status != 200:
            raise Invalid(f"the PriorityClasses of the cluster cannot be read: {error_of(response).message}")
        found: dict[tuple[int, bool], str] = {}
        for each in parts_in(msgspec.json.decode(response.body), "items"):
            preempts = text_in(each, "preemptionPolicy") != "Never"
            found.setdefault((int(each.get("value") or 0), preempts), text_in(fields_in(each, "metadata"), "name"))
        return found

    async def _has_pod_groups(self) -> bool:
        return (await self._request("GET", f"/apis/{POD_GROUPS}")).status == 200

    async def _request(self, method: str, path: str, body: Object | None = None) -> Response:
        assert self._client is not None
        return await self._client.request(method, path, body=None if body is None else json.dumps(body).encode())

    # -- following

    async def _start(self) -> None:
        assert self._client is not None
        for namespace in {each.pod["metadata"]["namespace"] for each in self._followed.values()}:
            names = [each.id for each in self._followed.values() if each.pod["metadata"]["namespace"] == namespace]
            query = {"fieldSelector": f"metadata.name={names[0]}"} if len(names) == 1 else {}
            watched = Watched[Object](
                self._client,
                f"/api/v1/namespaces/{namespace}/pods",
                _event,
                _page,
                self._deliverer(namespace),
                query=query,
                denied=lambda sentence: self._news.put_nowait(Invalid(sentence)),
            )
            self._tasks.append(asyncio.create_task(watched.run()))
        self._tasks.append(asyncio.create_task(self._hint()))
        for id in (*self._work.pieces, *self._work.groups):
            item = self._work.groups[id] if id in self._work.groups else self._work.pieces[id].ask
            if item.deadline is not None and not (id in self._work.pieces and self._work.pieces[id].group):
                self._tasks.append(asyncio.create_task(self._enforce(id, item.deadline)))

    def _deliverer(self, namespace: str) -> Callable[[Changed[Object] | Relisted[Object]], None]:
        def deliver(change: Changed[Object] | Relisted[Object]) -> None:
            if isinstance(change, Changed):
                self._seen(change.object, is_gone=change.kind == "DELETED")
                return
            uids = {text_in(fields_in(pod, "metadata"), "uid") for pod in change.items}
            for pod in change.items:
                self._seen(pod)
            for each in self._followed.values():
                if each.uid not in uids and each.pod["metadata"]["namespace"] == namespace:
                    self._seen(each.pod, is_gone=True)

        return deliver

    def _seen(self, pod: Object, is_gone: bool = False) -> None:
        metadata = fields_in(pod, "metadata")
        each = self._followed.get(text_in(metadata, "name"))
        if each is None or each.uid != text_in(metadata, "uid") or each.has_ended:
            return
        each.pod = pod
        if has_logs(pod) and each.log is None and not self._logs_are_missing:
            each.log = asyncio.create_task(self._read_log(each))
            self._tasks.append(each.log)
        update = why_deleted(each.id, pod) if is_gone else update_of(each.id, pod)
        if update.state.is_final:
            self._end(each, update)
        elif update != each.last:
            each.last = update
            self._news.put_nowait(update)

    def _end(self, each: _Followed, update: Update) -> None:
        """Report the end, after what the log still has."""
        each.has_ended, each.last = True, update

        async def report() -> None:
            if each.log is not None:
                await asyncio.wait([each.log], timeout=LOG_END_S)
            self._news.put_nowait(update)

        self._tasks.append(asyncio.create_task(report()))

    async def _read_log(self, each: _Followed) -> None:
        assert self._client is not None
        try:
            async with await self._client.stream(f"{each.path}/log", {"follow": "true"}, LOG_IDLE_S) as stream:
                while lines := await stream.batch():
                    for line in lines:
                        self._news.put_nowait(Line(each.id, line.decode("utf-8", "replace").rstrip("\r")))
        except (ApiError, Unreachable) as error:
            if not self._logs_are_missing:
                self._logs_are_missing = True
                why = error.message if isinstance(error, ApiError) else str(error)
                self._news.put_nowait(Line("", f"logs cannot be read: {why}"))

    async def _hint(self) -> None:
        """Say once that nobody has looked at a pod."""
        await asyncio.sleep(UNSEEN_S)
        for each in self._followed.values():
            if each.last == Update(each.id, State.PENDING) and not each.has_ended:
                name = each.pod["spec"].get("schedulerName", "default-scheduler")
                why = f"no scheduler named {name!r} has looked at it yet; is it running?"
                self._news.put_nowait(Update(each.id, State.PENDING, reason=why))

    async def _enforce(self, id: str, deadline_s: float) -> None:
        """Delete the pods of a piece or a group that have no node at the deadline; of a group, all or none."""
        await asyncio.sleep(max(0.0, self._began + deadline_s - time.monotonic()))
        members = [each for each in self._followed.values() if id in (each.id, self._work.pieces[each.id].group)]
        if any(is_scheduled(each.pod) for each in members):
            return
        for each in [each for each in members if not each.has_ended]:
            each.has_ended = True
            why = f": {each.last.reason}" if each.last.reason else ""
            try:
                await self._delete(each)
            except (Invalid, Unreachable) as error:
                why += f" ({error})"
            self._end(each, Update(each.id, State.FAILED, reason=f"its deadline passed{why}"))

    # -- ending

    async def _cancel(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._client is not None:
            await self._delete_all()

    async def _delete_all(self) -> None:
        """Delete what has not ended."""
        left = [each for each in self._followed.values() if not each.last.state.is_final]
        await asyncio.gather(*map(self._delete, left), return_exceptions=True)
        for path in self._others:
            await self._request("DELETE", path)

    async def _delete(self, each: _Followed) -> None:
        options = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": each.uid}}
        response = await self._request("DELETE", each.path, options)
        if response.status >= 300 and response.status not in (404, 409):  # it is gone, or is another pod now
            raise Invalid(f"the pod {each.id!r} cannot be deleted: {error_of(response).message}")

    async def _close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._client is not None:
            await self._client.close()


def _class_among(classes: dict[tuple[int, bool], str]) -> Callable[[int, bool, str], str]:
    def class_of(priority: int, preempts: bool, place: str) -> str:
        name = classes.get((priority, preempts))
        if name is None:
            how = "" if preempts else " --preemption-policy=Never"
            raise Misplaced(
                f"{place}.priority: no PriorityClass has the value {priority}; create one, for example: kubectl create "
                f"priorityclass stead-{priority} --value={priority}{how}"
            )
        return name

    return class_of


# -- reading


def _event(line: bytes) -> tuple[str, Object, str]:
    event = msgspec.json.decode(line)
    found = event["object"]
    return event["type"], found, fields_in(found, "metadata").get("resourceVersion") or ""


def _page(body: bytes) -> tuple[Sequence[Object], str, str | None]:
    page = msgspec.json.decode(body)
    metadata = fields_in(page, "metadata")
    items = [{"apiVersion": "v1", "kind": "Pod", **item} for item in parts_in(page, "items")]
    return items, text_in(metadata, "resourceVersion"), text_in(metadata, "continue") or None
