"""Redirects a task that starts on a node it may no longer use: the call runs elsewhere, the task waits for its result.

Rule: no user code starts on a node that the task's pass was withdrawn from. The task ends as if it had run here: same
result, items and exception, one retry per crash, and cancellable. While it waits, Ray lends its CPU to other work. It
keeps its unit of the withdrawn name, so that no other queued task takes it. A task that is evicted while it runs is
interrupted like with `ray.cancel`, and redirected. Its worker does not exit, because Ray counts each exit as a retry.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from typing import Any, NoReturn

import ray
from ray.exceptions import RayTaskError, TaskCancelledError, TaskUnschedulableError
from ray.experimental.internal_kv import _internal_kv_del, _internal_kv_get, _internal_kv_put
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from stead.ray.submit.connection import Connection, connection
from stead.ray.submit.core_worker import complete
from stead.ray.wire.node_page import ENTRY, Page
from stead.ray.wire.own_names import FIXED, ONCE, SLOT, TIMED, read_labelled, read_name, read_slot, slot_name

CLAIMS, TASK, CALL = b"stead-claims", b"task", b"call"
LOOK_S = 0.2
AGAIN_S = 1.0
NATIVE = {"CPU": "num_cpus", "GPU": "num_gpus", "memory": "memory"}
"""Amounts that have their own option in Ray."""

INTERRUPTED, END = object(), object()
INTERRUPT = signal.SIGRTMIN + 7 if hasattr(signal, "SIGRTMIN") else signal.SIGUSR2
"""Ray blocks SIGINT in its workers; this signal is otherwise unused."""

log = logging.getLogger(__name__)


def withdrawn(page: Page, node_id: str, held: Mapping[str, Any]) -> frozenset[str]:
    """The names that work holds although they were withdrawn from its node."""
    away = page.away.get(node_id)
    return frozenset(held.keys() & set(away)) if away else frozenset()


def current_name(page: Page, name: str) -> str:
    """The current name for new submissions under the same rules."""
    if found := read_slot(name):
        return slot_name(found[0], page.slots.get(found[0], 0))
    found = read_name(name)
    return page.name(found[0]) if found else name


@dataclass(frozen=True, slots=True)
class Call:
    """A call that another worker makes instead of a task. Only the worker that takes the claim first makes it."""

    claim: bytes
    descriptor: Any
    task_id: str
    timed: bool


class Redirect:
    """Called instead of a task's function: runs the task on another node. `names` are the withdrawn names that it
    holds. `skip` is the number of generator items that the task already produced."""

    def __init__(
        self, link: Connection, executed: Any, held: Mapping[str, Any], names: frozenset[str], skip: int = 0
    ) -> None:
        self._link, self._executed, self._names = link, executed, names
        self._skip = skip
        link.waits_elsewhere = True
        amounts = {name: sum(part for _, part in parts) for name, parts in held.items()}
        self._amounts = {name: ENTRY if read_name(name) else amount for name, amount in amounts.items()}
        task_id = link.core.get_current_task_id()
        self._task_id, self._task_name = task_id.hex(), link.core.get_current_task_name()
        self._is_back = False
        timed = self._amounts.pop(TIMED, None) is not None
        self._call = Call(os.urandom(12), executed.descriptor, self._task_id, timed)

    @property
    def function(self) -> Callable[..., Any]:
        return self.stream if self._executed.is_generator else self.run

    def run(self, *args: Any, **named: Any) -> Any:
        self._link.arguments.take()
        while not self._is_back:
            ref = self._submitted(_call, args, named)
            with self._waiting(ref):
                found = ray.get(ref)
                self._is_back |= isinstance(found, Declined)
                if not self._is_back:
                    return found
        return self._here()(*args, **named)

    def stream(self, *args: Any, **named: Any) -> Generator[Any, Any, None]:
        self._link.arguments.take()
        while not self._is_back:
            refs = self._submitted(_stream, args, named)
            with self._waiting(refs):
                for number, ref in enumerate(refs):
                    found = ray.get(ref)
                    self._is_back |= isinstance(found, Declined)
                    if not self._is_back and number >= self._skip:
                        yield found
                if not self._is_back:
                    return
        yield from _after(self._skip, self._here()(*args, **named))

    def _here(self) -> Callable[..., Any]:
        """The function itself, because this node accepts the task again."""
        self._link.waits_elsewhere = False
        if self._call.timed:
            self._link.report_started(self._task_id)
        return called_here(self._link, self._executed, ONCE in self._amounts)

    # -- submitting the call again

    def _submitted(self, carrier: Callable[..., Any], args: Any, named: Any) -> Any:
        """Submit the call with the amounts of this task, under the current names, to the nodes this task could use."""
        page = self._link.page()
        choices = self._choices()
        renamed = {
            name if choices is None else current_name(page, name): amount for name, amount in self._amounts.items()
        }
        if choices is None:  # it may only run here, so it waits in this node's queue
            choices = {"scheduling_strategy": NodeAffinitySchedulingStrategy(self._link.node_id, soft=False)}
        options: dict[str, Any] = {keyword: renamed.pop(name, 0) for name, keyword in NATIVE.items()}
        if not options["memory"]:
            del options["memory"]
        if carrier is _stream:
            options["_generator_backpressure_num_objects"] = 1
        options = {"scheduling_strategy": "DEFAULT", **options, **choices, "name": self._task_name}
        for name in renamed:
            if found := read_slot(name):
                self._link.counter.add(found[0])
        with complete():
            remote = self._executed.remote_of(carrier)
            return remote.options(resources=renamed, max_retries=0, retry_exceptions=False, **options).remote(
                self._call, args, named
            )

    def _choices(self) -> dict[str, Any] | None:
        """Ray's own rules on nodes, beside the pass. None if they allow only this node."""
        if FIXED in self._amounts:
            return None
        first, *rest = read_labelled(self._amounts) or [{}]
        if not first:
            return {}
        return {"label_selector": first, "fallback_strategy": [{"label_selector": each} for each in rest] or None}

    # -- waiting for the result

    @contextmanager
    def _waiting(self, what: Any) -> Iterator[None]:
        """Wait for `what`, and raise its failures as this task's own."""
        ended = threading.Event()
        threading.Thread(target=self._look_out, args=(what, ended), name="stead-redirect", daemon=True).start()
        try:
            yield
        except RayTaskError as error:
            # The user's own exception, which Ray combines with its own error. But if this task came back, a call that
            # was itself redirected may have been cancelled.
            if not (self._is_back and isinstance(error, TaskCancelledError)):
                raise
        except TaskCancelledError:
            if not self._is_back:
                raise KeyboardInterrupt from None  # as Ray does for a running task
        except TaskUnschedulableError:  # it has not started, so it can be submitted again
            time.sleep(AGAIN_S)
        except ray.exceptions.RayError as error:
            _crash(self._task_name, error)
        except BaseException:  # this task was cancelled
            ray.cancel(what)
            raise
        finally:
            ended.set()
            if not self._is_back:
                with suppress(Exception):
                    _internal_kv_del(self._call.claim, namespace=CLAIMS)

    def _look_out(self, what: Any, ended: threading.Event) -> None:
        """Come back when the names are granted here again, unless the call has started elsewhere: the call may be
        waiting for what this task holds."""
        while self._names and not ended.wait(LOOK_S):
            if not withdrawn(self._link.page(), self._link.node_id, dict.fromkeys(self._names)):
                self._is_back = _takes(self._call.claim, TASK)
                if self._is_back:
                    ray.cancel(what)
                return


class Evictable:
    """Wraps the function of a task that may run again, so that an eviction can interrupt it."""

    current: Evictable | None = None

    def __init__(self, link: Connection, executed: Any) -> None:
        self._link, self._executed = link, executed
        self._lock = threading.Lock()
        self._is_running = self._is_evicted = False
        self.is_done = False

    @property
    def function(self) -> Callable[..., Any]:
        return self._stream if self._executed.is_generator else self._run

    def interrupt(self) -> None:
        """Interrupt the function, from another thread. Code that ignores the interrupt keeps running."""
        with self._lock:
            self._is_evicted = True
            if self._is_running:
                signal.pthread_kill(threading.main_thread().ident or 0, INTERRUPT)

    @classmethod
    def allow_interrupts(cls) -> None:
        """Call this once, in the main thread."""

        def interrupted(*_: Any) -> None:
            if cls.current is not None and cls.current._is_running:
                raise KeyboardInterrupt

        signal.signal(INTERRUPT, interrupted)

    def _called(self, function: Callable[..., Any], *args: Any, **named: Any) -> Any:
        """The function's result, or `INTERRUPTED`."""
        try:
            try:
                with self._lock:
                    self._is_running, Evictable.current = True, self
                return INTERRUPTED if self._is_evicted else function(*args, **named)
            finally:
                with self._lock:
                    self._is_running = False
        except BaseException:
            if self._is_evicted:  # any error: the function may convert the interrupt
                return INTERRUPTED
            self.is_done = True
            raise

    def _run(self, *args: Any, **named: Any) -> Any:
        arguments = self._link.arguments.take()
        found = self._called(self._executed.plain, *args, **named)
        if found is not INTERRUPTED:
            self.is_done = True
            return found
        args, named = arguments()
        with self._redirected(0) as redirect:
            return redirect.run(*args, **named)

    def _stream(self, *args: Any, **named: Any) -> Generator[Any, Any, None]:
        arguments, given, sent = self._link.arguments.take(), 0, None
        items = self._executed.plain(*args, **named)
        while (item := self._called(_next, items, sent)) is not INTERRUPTED:
            if item is END:
                self.is_done = True
                return
            sent = yield item
            given += 1
        args, named = arguments()
        with self._redirected(given) as redirect:
            yield from redirect.stream(*args, **named)

    @contextmanager
    def _redirected(self, skip: int) -> Iterator[Redirect]:
        """Run the task elsewhere; afterwards, report what it held here."""
        held = self._link.core.resource_ids()
        names = withdrawn(self._link.page(), self._link.node_id, held)
        try:
            yield Redirect(self._link, self._executed, held, names, skip)
        finally:
            if slots := [name for name in held if name.startswith(SLOT)]:
                self._link.tell("interrupted", (self._link.node_id, slots))


def _next(items: Generator[Any, Any, Any], sent: Any) -> Any:
    """The next item, or `END`. `sent` is what Ray sends into the generator for the last item; Ray Data uses it."""
    try:
        return items.send(sent)
    except StopIteration:
        return END


def _after(count: int, items: Generator[Any, Any, Any]) -> Generator[Any, Any, None]:
    """Skip the first `count` items."""
    for _ in islice(items, count):
        pass
    yield from items


def called_here(link: Connection, executed: Any, once: bool) -> Callable[..., Any]:
    """The function of a task, to call on this node. With `once` it must not run twice, so it is never interrupted."""
    link.evictable = None if once else Evictable(link, executed)
    if once:
        link.arguments.release()
    found: Callable[..., Any] = executed.plain if once else link.evictable.function
    return found


@dataclass(frozen=True, slots=True)
class Declined:
    """The result of a call whose task took the claim first and so runs in its own place."""


def _call(call: Call, args: Any, named: Any) -> Any:
    return _begun(call)(*args, **named) if _takes(call.claim, CALL) else Declined()


def _stream(call: Call, args: Any, named: Any) -> Iterator[Any]:
    if _takes(call.claim, CALL):
        yield from _begun(call)(*args, **named)
    else:
        yield Declined()


def _begun(call: Call) -> Callable[..., Any]:
    from stead.ray.submit.workers import function_of

    if call.timed:
        connection().report_started(call.task_id)
    function: Callable[..., Any] = function_of(call.descriptor)
    return function


def _takes(claim: bytes, who: bytes) -> bool:
    """Whether `who` has the claim. The first one to take it keeps it, also if the call is evicted and repeated."""
    _internal_kv_put(claim, who, overwrite=False, namespace=CLAIMS)
    return bool(_internal_kv_get(claim, namespace=CLAIMS) == who)


def _crash(name: str, error: Exception) -> NoReturn:
    """The worker that ran the call died, so exit this one too: then Ray counts one retry, as without a redirect."""
    log.warning("task %s was redirected to another node and its worker died: %s", name, error)
    os._exit(1)
