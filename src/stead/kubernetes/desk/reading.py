"""Reads a cluster for the desk: everything once, and from then on what changes.

Rule: pods of every scheduler are read as strictly as stead's own, and nothing is ever decided or written. What the user
may not list is left out, if there is an answer without it, and `notes` says what the answers then lack. Everything here
runs in the desk's event loop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Iterator
from typing import Any

from stead import solver
from stead.engine.engine import Engine
from stead.engine.facts import ClockAdvanced, Fact
from stead.engine.settings import Settings
from stead.errors import Invalid
from stead.kubernetes.api.http import ApiClient, ApiError
from stead.kubernetes.api.watching import Watched
from stead.kubernetes.api_objects import ANYTHING
from stead.kubernetes.cluster import KubeCluster
from stead.kubernetes.templates import Templates
from stead.kubernetes.watches import Watches
from stead.text import first_few, joined

SLOW_S = 2.0
"""When the first lists take longer, the user is told what is being read."""

OLD_S = 2.0
"""When the first list is older, a question begins to watch. Most commands end before."""

SEEN_S = 5.0
"""How long to wait until the watch shows a change that this process has made."""

VOLUMES = (
    "persistentvolumeclaims persistentvolumes storageclasses csinodes csidrivers csistoragecapacities volumeattachments"
).split()

LACKING = {
    "namespaces": "the labels of namespaces",
    "poddisruptionbudgets": "PodDisruptionBudgets",
    "services": "the default topology spread",
    "replicationcontrollers": "the default topology spread",
    "replicasets": "the default topology spread",
    "statefulsets": "the default topology spread",
    "podgroups": "gangs",
    "workloads": "gangs",
    **dict.fromkeys(VOLUMES, "volumes"),
}
"""What answers lack without a resource. Without another one, they lack what its name says."""

IN_NO_NAMESPACE = {"namespaces", "nodes", *VOLUMES} - {"persistentvolumeclaims", "csistoragecapacities"}
"""Resources that cannot be listed in one namespace only."""


class EveryName(Collection[str]):
    """The names of all schedulers."""

    def __contains__(self, name: object) -> bool:
        return True

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0


class NoWrites:
    """The cluster of a desk has nothing to carry out."""

    def bind(self, *_: Any) -> None: ...
    def preempt(self, *_: Any) -> None: ...
    def end_nomination(self, *_: Any) -> None: ...
    def report_pending(self, *_: Any) -> None: ...
    def report_problem(self, *_: Any) -> None: ...
    def report_bound(self, *_: Any) -> None: ...
    def forget(self, *_: Any) -> None: ...
    def look_again(self, *_: Any) -> None: ...
    def try_later(self, *_: Any) -> None: ...


class Reading:
    """What is known of a cluster. If pods of all namespaces may not be listed, only those of `namespace` are; without
    one, that is refused."""

    def __init__(self, client: ApiClient, namespace: str | None) -> None:
        self._namespace = namespace
        self.templates = Templates(EveryName(), has_solver=solver.found() is not None)
        self.cluster = KubeCluster(NoWrites(), EveryName())
        self.watches = Watches(client, self.cluster, self.templates, lambda: None)
        self.engine = Engine(Settings(patience=None), solver.found())
        self._denied: list[str] = []  # resources that may not be listed
        self.only_namespace = ""
        """The namespace whose pods are known, if the others are not."""
        self._watching: asyncio.Task[None] | None = None

    async def read(self) -> None:
        """List everything once. Raises `Invalid`, `ApiError` and `Unreachable`."""
        for stage in self.watches.stages:
            denied = await asyncio.gather(*map(self._list, stage))
            self._denied += filter(None, denied)

    def watch(self) -> None:
        """From now on, follow what changes."""
        if self._watching is None:
            self._watching = asyncio.get_running_loop().create_task(self.watches.run(), name="watches")

    @property
    def is_watching(self) -> bool:
        return self._watching is not None

    def take_news(self) -> list[Fact]:
        """Tell the engine what has changed, and return it."""
        facts = list(self.cluster.facts())
        if facts:
            self.engine.apply(ClockAdvanced(self.cluster.now()), *facts)
        return facts

    async def node_written(self, node: bytes) -> None:
        """This process has changed a node: the next answer must know it."""
        written = self.watches.nodes
        if self.is_watching:
            version = ANYTHING.decode(node)["metadata"]["resourceVersion"]
            until = time.monotonic() + SEEN_S
            while time.monotonic() < until:
                if not version.isdecimal() or int(written.version or 0) >= int(version):
                    return
                await asyncio.sleep(0.01)
        written.take(b'{"type":"MODIFIED","object":%b}' % node)

    async def _list(self, watched: Watched[Any]) -> str:
        """List a resource. Returns its name if the user may not, and there are answers without it."""
        resource = watched.path.rpartition("/")[2]
        is_needed, message = watched is self.watches.nodes or watched is self.watches.pods, ""
        for narrows in (False, True):
            if narrows and (self._namespace is None or resource in IN_NO_NAMESPACE):
                break
            if narrows:
                watched.narrow(str(self._namespace))
            try:
                await watched.list_once(is_needed)
                if narrows and watched.path.endswith("/pods"):
                    self.only_namespace = str(self._namespace)
                return ""
            except ApiError as error:
                if error.status != 403:
                    raise
                message = message or error.message
        if is_needed:
            raise Invalid(missing_right("list", resource, message, self._namespace))
        self.watches.leave_out(watched)
        return resource

    @property
    def notes(self) -> list[str]:
        """What answers lack, in one sentence each."""
        found = []
        if self.only_namespace:
            found.append(
                f"you may list the pods of the namespace {self.only_namespace!r} only, so pods of other namespaces are "
                "not counted"
            )
        if self._denied:
            lacks = dict.fromkeys(LACKING.get(resource, resource) for resource in self._denied)
            resources = joined(dict.fromkeys(self._denied))
            found.append(f"you may not list {resources}, so the answer leaves out {joined(lacks)}")
        if self.watches.nodes_refused:
            names = first_few(sorted(self.watches.nodes_refused))
            found.append(f"nodes that cannot be read are left out: {names}")
        return found


def missing_right(verb: str, resource: str, message: str, namespace: str | None = None) -> str:
    """One sentence about a right that the user does not have."""
    where = f" in namespace {namespace!r}" if namespace and resource not in IN_NO_NAMESPACE else ""
    return f"you may not {verb} {resource}{where}; ask for the right to {verb} them (the API server said: {message})"


async def tell_if_slow(say: Callable[[str], None], title: str) -> None:
    """Tell the user what takes so long."""
    await asyncio.sleep(SLOW_S)
    say(f"reading the nodes and pods of {title}, which takes some seconds on a large cluster")
