"""How a worker is bound: what it submits, what it tells of its work, and when it leaves.

Rule: never fails the worker or its work. A worker whose node was withdrawn from the work it is leased for leaves
between two tasks, by the way that Ray's own limit of calls goes; only a no-execute taint ends it in the middle.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
import uuid
from functools import lru_cache
from typing import Any

import ray

from stead.ray.attach import connection
from stead.ray.environments import VARIABLE
from stead.ray.hooks import BIND, run_chained
from stead.ray.page import TIMED
from stead.ray.redirects import Redirect, withdrawn
from stead.ray.submission import install

log = logging.getLogger(__name__)


def install_in_worker() -> None:
    """Bind a worker: what it submits, and how long it goes on. Never raises: that would end the worker."""
    try:
        install(always=os.environ.get(BIND, "always") != "asked")
        worker = ray._private.worker.global_worker
        if worker.mode == ray.WORKER_MODE:
            _end_leases(worker)
            threading.Thread(target=_obey_evictions, args=(worker,), name="stead-evictions", daemon=True).start()
    except Exception:
        log.exception("stead could not bind this worker; its submissions carry no pass")
    run_chained()


class _Executed:
    """What Ray knows of a function that it runs. Ray keeps it, and reads `function` before and `max_calls` after each
    call: the first tells that work with a deadline has started, or sends it to another node if it may no longer run
    here; the second lets the worker leave as Ray's own limit of calls would, once the worker's node has been withdrawn
    from the work it is leased for."""

    def __init__(self, plain: Any, worker: Any, descriptor: Any) -> None:
        self.function_name = plain.function_name
        self.plain, self._max_calls = plain.function, plain.max_calls
        self._worker, self.descriptor = worker, descriptor

    @property
    def function(self) -> Any:
        with contextlib.suppress(Exception):
            core = self._worker.core_worker
            link = connection(core)
            link.running = core.get_current_task_id()  # other threads of this worker cannot ask for it
            held = core.resource_ids()
            if names := withdrawn(link.page(), link.node_id, held):
                return Redirect(link, self, held, names).function
            if TIMED in held:
                link.report_started(link.running.hex())
        return self.plain

    def remote_of(self, function: Any) -> Any:
        """A remote function that leaves its worker after as many calls as this one does."""
        return _remote(function, int(self._max_calls))

    @property
    def max_calls(self) -> int:
        if not _must_leave(self._worker):
            return int(self._max_calls)
        # Ray counts calls if this is not 0, and lets the worker leave when it is then just as many as were counted.
        return max(1, int(self._worker.function_actor_manager.get_task_counter(self.descriptor)))


def _must_leave(worker: Any) -> bool:
    try:
        link = connection(worker.core_worker)
        page, held = link.page(), worker.core_worker.resource_ids()
        names = withdrawn(page, link.node_id, held)
        for name in names:
            link.report_leaving(name)
        recalled = page.recalled.get(link.node_id)
        return bool(names) or bool(recalled and held.keys() & set(recalled))
    except Exception:
        return False


@lru_cache
def _remote(function: Any, max_calls: int) -> Any:
    remote = ray.remote(max_calls=max_calls)(function) if max_calls else ray.remote(function)
    remote._uuid = uuid.uuid5(uuid.NAMESPACE_OID, f"{function.__qualname__}/{max_calls}")  # the same in every worker
    return remote


def function_of(descriptor: Any) -> Any:
    """A function of this job, by what Ray calls it."""
    worker = ray._private.worker.global_worker
    found = worker.function_actor_manager.get_execution_info(worker.current_job_id, descriptor)
    return found.plain if isinstance(found, _Executed) else found.function


def _end_leases(worker: Any) -> None:
    functions = worker.function_actor_manager
    plain = functions.get_execution_info

    def executed(job_id: Any, descriptor: Any) -> Any:
        found = plain(job_id, descriptor)
        if isinstance(found, _Executed) or not worker.actor_id.is_nil():
            return found
        return _Executed(found, worker, descriptor)

    functions.get_execution_info = executed


def _obey_evictions(worker: Any) -> None:
    """End this worker when a no-execute taint says so; before that, tell in which runtime environment it runs."""
    never, began, work = threading.Event(), time.time(), b""
    digest = os.environ.get(VARIABLE)
    while not never.wait(0.5):
        with contextlib.suppress(Exception):
            link = connection(worker.core_worker)
            if work != (work := link.work_id()):
                began = time.time()
            if digest and work:
                link.tell("holds", (link.node_id, digest))
                digest = None
            due = link.page().evict.get(link.node_id)
            if due and not link.waits_elsewhere:
                for name in worker.core_worker.resource_ids().keys() & due.keys():
                    since, stay = due[name]
                    if max(since, began) + stay <= time.time():
                        link.report_evicted(name)
                        os._exit(1)
