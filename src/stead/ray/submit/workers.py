"""Binds a worker: what it submits, what it reports about its work, and when it exits.

Rule: stead never fails the worker or its work. If the worker's node was withdrawn from its work, the worker exits
between two tasks, the way Ray's own ``max_calls`` makes it exit. Only an eviction interrupts a running task.
"""

from __future__ import annotations

import contextlib
import inspect
import logging
import os
import threading
import time
import uuid
from collections.abc import Callable, Generator, Mapping
from functools import lru_cache
from typing import Any

import ray
from ray._common.signature import recover_args

from stead.ray.submit.connection import Connection, connection
from stead.ray.submit.core_worker import install
from stead.ray.submit.environments import VARIABLE
from stead.ray.submit.hooks import BIND, run_chained
from stead.ray.submit.redirects import Evictable, Redirect, called_here, withdrawn
from stead.ray.wire.own_names import ONCE, TIMED

LOOK_S = 0.5
GRACE_S = 30.0
"""How long an evicted task may take to stop."""

log = logging.getLogger(__name__)


def install_in_worker() -> None:
    """Bind a worker: its submissions, and when it exits. Never raises, because an error would end the worker."""
    try:
        install(always=os.environ.get(BIND, "always") != "asked")
        worker = ray._private.worker.global_worker
        if worker.mode == ray.WORKER_MODE:
            _end_leases(worker)
            Evictable.allow_interrupts()
            threading.Thread(target=_obey_evictions, args=(worker,), name="stead-evictions", daemon=True).start()
    except Exception:
        log.exception("stead could not bind this worker; its submissions carry no pass")
    run_chained()


class Arguments:
    """The original arguments of the running task: the function may modify the ones it gets."""

    def __init__(self, worker: Any) -> None:
        self._plain, self._is_expected, self._came = worker.deserialize_objects, False, ()
        worker.deserialize_objects = self._deserialize

    def expect(self) -> None:
        """The next deserialized values are the arguments of a task that starts."""
        self._is_expected, self._came = True, ()

    def take(self) -> Callable[[], tuple[list[Any], dict[str, Any]]]:
        """A function that returns the arguments again. Take it when the task's function is called: a task may have
        none."""
        self._is_expected, came = False, self._came
        return lambda: recover_args(self._plain(*came)) if came else ([], {})

    def release(self) -> None:
        """Release the arguments: the task is done, or does not need them again."""
        self._is_expected, self._came = False, ()

    def _deserialize(self, *given: Any, **named: Any) -> Any:
        if self._is_expected:
            self._is_expected, self._came = False, given
        return self._plain(*given, **named)


class _Executed:
    """What Ray knows about a function that it runs. Ray caches it, and reads `function` before and `max_calls` after
    each call. On the first, stead redirects the task if it may no longer run here; when the function is called, stead
    checks that again, and reports that work with a deadline has started. On the second, stead makes the worker exit, as
    ``max_calls`` does, if its node was withdrawn from its work."""

    def __init__(self, plain: Any, worker: Any, descriptor: Any, arguments: Arguments) -> None:
        self.function_name = plain.function_name
        self.plain, self._max_calls = plain.function, plain.max_calls
        self.is_generator = inspect.isgeneratorfunction(plain.function)
        self._worker, self.descriptor, self._arguments = worker, descriptor, arguments

    @property
    def function(self) -> Any:
        with contextlib.suppress(Exception):
            core = self._worker.core_worker
            link = connection(core)
            link.running = core.get_current_task_id()  # other threads of this worker cannot read it from Ray
            link.waits_elsewhere = False
            held = core.resource_ids()
            link.arguments = self._arguments
            self._arguments.expect()
            if names := withdrawn(link.page(), link.node_id, held):
                return Redirect(link, self, held, names).function
            return self._when_called(link, held, called_here(link, self, ONCE in held))
        return self.plain

    def _when_called(self, link: Connection, held: Mapping[str, Any], here: Any) -> Any:
        """Redirects the task also if its node was withdrawn while Ray read the arguments, which can take long."""

        def function() -> Any:
            with contextlib.suppress(Exception):
                if names := withdrawn(link.page(), link.node_id, held):
                    return Redirect(link, self, held, names).function
                if TIMED in held:
                    link.report_started(link.running.hex())
            return here

        def run(*args: Any, **named: Any) -> Any:
            return function()(*args, **named)

        def stream(*args: Any, **named: Any) -> Generator[Any, Any, None]:
            yield from function()(*args, **named)

        return stream if self.is_generator else run

    def remote_of(self, function: Any) -> Any:
        """A remote function whose worker exits after the same number of calls as this one."""
        return _remote(function, int(self._max_calls))

    @property
    def max_calls(self) -> int:
        self._arguments.release()
        if not _must_leave(self._worker):
            return int(self._max_calls)
        # If this is not 0, Ray counts calls, and the worker exits when the count equals this value.
        return max(1, int(self._worker.function_actor_manager.get_task_counter(self.descriptor)))


def _must_leave(worker: Any) -> bool:
    try:
        link = connection(worker.core_worker)
        page, held = link.page(), worker.core_worker.resource_ids()
        names = withdrawn(page, link.node_id, held)
        for name in names:
            link.report_leaving(name)
        return bool(names)
    except Exception:
        return False


@lru_cache
def _remote(function: Any, max_calls: int) -> Any:
    remote = ray.remote(max_calls=max_calls)(function) if max_calls else ray.remote(function)
    remote._uuid = uuid.uuid5(uuid.NAMESPACE_OID, f"{function.__qualname__}/{max_calls}")  # the same in every worker
    return remote


def function_of(descriptor: Any) -> Any:
    """A function of this job, by Ray's descriptor."""
    worker = ray._private.worker.global_worker
    found = worker.function_actor_manager.get_execution_info(worker.current_job_id, descriptor)
    return found.plain if isinstance(found, _Executed) else found.function


def _end_leases(worker: Any) -> None:
    functions, arguments = worker.function_actor_manager, Arguments(worker)
    plain = functions.get_execution_info

    def executed(job_id: Any, descriptor: Any) -> Any:
        found = plain(job_id, descriptor)
        if not worker.actor_id.is_nil() and descriptor.function_name == "__init__":
            with contextlib.suppress(Exception):
                _await_room(connection(worker.core_worker), worker)
        if isinstance(found, _Executed) or not worker.actor_id.is_nil():
            return found
        return _Executed(found, worker, descriptor, arguments)

    functions.get_execution_info = executed


def _await_room(link: Connection, worker: Any) -> None:
    """Call before an actor is created on a node that its pass was withdrawn from. Waits until the node is allowed
    again, or exits when another node has room. If an exit would cost the actor one of its restarts, it is created
    here."""
    held = worker.core_worker.resource_ids()
    names = withdrawn(link.page(), link.node_id, held)
    if not names:
        return
    from stead.ray.wire.tables import Tables  # imported here because it is slow to load

    tables, actor = Tables(worker.gcs_client.address), worker.actor_id.hex()
    amounts = {name: sum(part for _, part in parts) for name, parts in held.items()}
    link.waits_elsewhere = True
    try:
        while names := withdrawn(link.page(), link.node_id, held):
            row = tables.actor(actor)
            if row is None or not row.restarts_freely:
                return
            if link.ask("admission", "has_room", [min(names), amounts, link.node_id]):
                os._exit(1)
            time.sleep(LOOK_S)
    finally:
        link.waits_elsewhere = False


class Stays:
    """When this process first saw each no-execute taint of its node, on its own clock: the head's clock may differ."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, float], float] = {}

    def expired(self, due: Mapping[str, tuple[float, float]], began: float, now: float) -> list[str]:
        """The names whose work has stayed for as long as it may. For each name, `due` has when its taint was set (only
        used to tell taints apart) and how long work may stay. `began` is when the work started."""
        taints = [(name, since) for name, (since, _) in due.items()]
        self._known = {taint: self._known.get(taint, now) for taint in taints}
        return [name for name, (since, stay) in due.items() if max(self._known[name, since], began) + stay <= now]


def _obey_evictions(worker: Any) -> None:
    """Exit this worker when a no-execute taint requires it. Before that, report its runtime environment."""
    never, stays, began, work = threading.Event(), Stays(), time.monotonic(), b""
    digest = os.environ.get(VARIABLE)
    while not never.wait(0.5):
        with contextlib.suppress(Exception):
            link = connection(worker.core_worker)
            if work != (work := link.work_id()):
                began = time.monotonic()
            if digest and work:
                link.tell("holds", (link.node_id, digest))
                digest = None
            over = stays.expired(link.page().evict.get(link.node_id, {}), began, time.monotonic())
            if over and not link.waits_elsewhere and not (link.evictable is not None and link.evictable.is_done):
                if not worker.core_worker.resource_ids().keys().isdisjoint(over) and link.may_leave():
                    _leave(link, work)


def _leave(link: Connection, work: bytes) -> None:
    """End what runs here. A task that may run again is interrupted and redirected. The worker exits only if the task
    does not stop, or if it runs an actor."""
    task = link.evictable
    if task is not None:
        task.interrupt()
        end = time.monotonic() + GRACE_S
        while time.monotonic() < end:
            if link.waits_elsewhere or task.is_done or link.work_id() != work:
                return
            time.sleep(0.05)
    os._exit(1)
