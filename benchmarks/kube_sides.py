"""One side of `make bench-kube`, in a process of its own: bind pods slice by slice, and say how long each slice took.

Rule: every side binds with the same binder, and is timed by the same callback, from the request for a slice to its last
binding, so that no decision is left out. The sides differ only in what else the process does: nothing (`alone`), the
scheduler's watches (`watching`), or everything (`scheduler`).

Stdin has the uids of the pods by their names, as one line of JSON. The process answers with a line when it is ready.
Then each line on stdin is a number of pods to bind, answered by a `Slice` as JSON.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Protocol

from stead.kubernetes.api.binding import Binder, BindResult, Outcome
from stead.kubernetes.api.config import load
from stead.kubernetes.api.http import ApiClient
from stead.kubernetes.cluster import KubeCluster
from stead.kubernetes.process import REPORTS_AND_LISTS
from stead.kubernetes.scheduler import Options, Scheduler, calm_the_collector
from stead.kubernetes.templates import Pod, Templates
from stead.kubernetes.watches import Watches
from stead.language.nodes import NodeId


class Side(StrEnum):
    ALONE = "alone"
    """The binder, with decisions made beforehand."""
    WATCHING = "watching"
    """The same, while the process also reads the scheduler's watches."""
    SCHEDULER = "scheduler"


@dataclass(frozen=True, slots=True)
class Slice:
    """What some bindings took."""

    bindings: int
    seconds: float
    cpu_s: float
    """CPU time of the process."""
    decision_s: float
    """Wall time of the scheduler's steps."""


class Stopwatch:
    """Notes when bindings are done."""

    def __init__(self) -> None:
        self._left = 0
        self._all_done = asyncio.Event()

    def done(self, result: BindResult) -> None:
        if result.outcome is not Outcome.BOUND:
            raise SystemExit(f"every pod must be bound, but {result.name} was {result.outcome}: {result.message}")
        self._left -= 1
        if self._left == 0:
            self._all_done.set()

    async def slice(self, count: int, begin: Callable[[int], None], decision_s: Callable[[], float]) -> Slice:
        """Begin this many bindings and wait for them."""
        self._left, decided_s = count, decision_s()
        self._all_done.clear()
        began, began_cpu_s = time.perf_counter(), time.process_time()
        begin(count)
        async with asyncio.timeout(300):
            await self._all_done.wait()
        seconds, cpu_s = time.perf_counter() - began, time.process_time() - began_cpu_s
        return Slice(count, seconds, cpu_s, decision_s() - decided_s)


class Bound(Protocol):
    """One side."""

    @abstractmethod
    async def slice(self, count: int) -> Slice: ...

    @abstractmethod
    async def close(self) -> None: ...


class NoWrites:
    """A cluster that only watches asks for nothing that matters."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_: None


class Ceiling(Bound):
    """Binds with nothing to decide."""

    def __init__(self, kubeconfig: str, namespace: str, uids: Mapping[str, str], nodes: int) -> None:
        self._client, self._watch = ApiClient(load(kubeconfig)), Stopwatch()
        self._binder = Binder(self._client, self._watch.done)
        self._left = ((namespace, name, uid, f"node-{i % nodes}") for i, (name, uid) in enumerate(uids.items()))
        self._watching: asyncio.Task[None] | None = None

    async def watch(self) -> None:
        watches = Watches(self._client, KubeCluster(NoWrites(), ()), Templates(()), lambda: None)
        self._watching = asyncio.create_task(watches.run())
        while not watches.are_synced:
            await asyncio.sleep(0.05)
        calm_the_collector()

    async def slice(self, count: int) -> Slice:
        return await self._watch.slice(count, self._bind, lambda: 0.0)

    def _bind(self, count: int) -> None:
        for _ in range(count):
            self._binder.bind(*next(self._left))

    async def close(self) -> None:
        await self._binder.close()
        if self._watching is not None:
            self._watching.cancel()
        await self._client.close()


class SlicedScheduler(Scheduler, Bound):
    """The scheduler, as `stead scheduler` runs it, but it decides only as many pods as a slice has."""

    def __init__(self, kubeconfig: str) -> None:
        options = Options()
        client = ApiClient(load(kubeconfig), options.in_flight_max + REPORTS_AND_LISTS)
        super().__init__(client, options)
        self._watch, self._to_decide = Stopwatch(), 0
        self._running = asyncio.create_task(self.run())

    async def ready(self) -> None:
        while self.controller is None:
            await asyncio.sleep(0.05)
            if self._running.done():
                self._running.result()

    async def slice(self, count: int) -> Slice:
        found = await self._watch.slice(count, self._begin, lambda: self.metrics.attempt_s["scheduled"].sum)
        while self.cluster.binding:  # the watch must show all of it before the other sides have their turn
            await asyncio.sleep(0.01)
        return found

    def _begin(self, count: int) -> None:
        self._to_decide += count
        self._wake_up()

    @property
    def _may_decide(self) -> bool:
        return self._to_decide > 0 and super()._may_decide

    def bind(self, pod: Pod, node: NodeId) -> None:
        self._to_decide -= 1
        super().bind(pod, node)

    def _bound(self, result: BindResult) -> None:
        self._watch.done(result)
        super()._bound(result)

    def _announce(self) -> None:
        """Events of bound pods are sent when the scheduler is idle, which here would be during the others' turn."""
        self._to_announce.clear()

    async def close(self) -> None:
        self.stop()
        await self._running
        await self._client.close()


async def serve(side: Side, kubeconfig: str, namespace: str, nodes: int) -> None:
    uids = json.loads(sys.stdin.readline())
    bound: Bound
    if side is Side.SCHEDULER:
        bound = scheduler = SlicedScheduler(kubeconfig)
        await scheduler.ready()
    else:
        bound = ceiling = Ceiling(kubeconfig, namespace, uids, nodes)
        if side is Side.WATCHING:
            await ceiling.watch()
    print("ready", flush=True)
    while line := await asyncio.to_thread(sys.stdin.readline):
        print(json.dumps(asdict(await bound.slice(int(line)))), flush=True)
    await bound.close()


if __name__ == "__main__":
    asyncio.run(serve(Side(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4])))
