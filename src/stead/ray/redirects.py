"""Tasks that start on a node they may no longer use: the same call runs elsewhere, and the task waits for its result.

Rule: nothing of the user's runs on a node that the task's pass was withdrawn from. The task ends as if it had run here:
the same result, items and exception, one retry for one crash, cancelled when it is cancelled. While it waits, Ray lends
its CPU to others, and it keeps its unit of the withdrawn name, so that no other queued task follows it. A task that is
evicted while it runs is interrupted as `ray.cancel` does it, and goes the same way: Ray counts every end of a worker as
a retry, so the worker does not end.
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

from stead.ray.attach import Connection, connection
from stead.ray.compile import FIXED, ONCE
from stead.ray.native import NODE_ID
from stead.ray.page import ENTRY, TIMED, Page, read_name, read_slot, slot_name
from stead.ray.submission import complete

CLAIMS, TASK, CALL = b"stead-claims", b"task", b"call"
LOOK_S = 0.2
AGAIN_S = 1.0
NATIVE = {"CPU": "num_cpus", "GPU": "num_gpus", "memory": "memory"}
"""Amounts that Ray takes under a name of their own."""

INTERRUPTED, END = object(), object()
INTERRUPT = signal.SIGRTMIN + 7 if hasattr(signal, "SIGRTMIN") else signal.SIGUSR2
"""Ray blocks SIGINT in its workers, and nobody else uses this one."""

log = logging.getLogger(__name__)


def withdrawn(page: Page, node_id: str, held: Mapping[str, Any]) -> frozenset[str]:
    """The names that work holds although they were withdrawn from its node."""
    away = page.away.get(node_id)
    return frozenset(held.keys() & set(away)) if away else frozenset()


def name_today(page: Page, name: str) -> str:
    """The name that a submission under the same rules carries today."""
    if found := read_slot(name):
        return slot_name(found[0], page.slots.get(found[0], 0))
    found = read_name(name)
    return page.name(found[0]) if found else name


@dataclass(frozen=True, slots=True)
class Call:
    """A call that another worker makes in place of a task. Whoever takes the claim first makes it, and nobody else."""

    claim: bytes
    descriptor: Any
    task_id: str
    timed: bool


class Redirect:
    """One task on its way to another node: called in place of its function. `names` are the withdrawn ones that it
    holds; `skip` is how many items of a generator were already given."""

    def __init__(
        self, link: Connection, executed: Any, held: Mapping[str, Any], names: frozenset[str], skip: int = 0
    ) -> None:
        self._link, self._executed, self._names = link, executed, names
        self._skip = skip
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
        """The function itself: this node takes the task again."""
        if self._call.timed:
            self._link.report_started(self._task_id)
        return called_here(self._link, self._executed, ONCE in self._amounts)

    # -- the same call again

    def _submitted(self, carrier: Callable[..., Any], args: Any, named: Any) -> Any:
        """Submit it with what this task holds, under today's names, where this task could have gone."""
        page = self._link.page()
        choices = self._choices()
        renamed = {
            name if choices is None else name_today(page, name): amount for name, amount in self._amounts.items()
        }
        if choices is None:  # it may run here only, and waits in Ray's queue of this node
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
        """What Ray itself was told of the nodes, beside the pass; None if it is this node alone, or not known."""
        if FIXED not in self._amounts:
            return {}
        from stead.ray.gcs import ControlStore  # only here: it takes time to load

        address = ray._private.worker.global_worker.gcs_client.address
        told = ControlStore(address).label_selectors(self._task_id)
        labelled = [each for each in told if NODE_ID not in each] or told
        if not any(labelled):
            return None
        first, *rest = labelled
        return {"label_selector": first, "fallback_strategy": [{"label_selector": each} for each in rest] or None}

    # -- until it is done

    @contextmanager
    def _waiting(self, what: Any) -> Iterator[None]:
        """Wait for `what` without being evicted; turn its failures into this task's own."""
        ended = threading.Event()
        self._link.waits_elsewhere = True
        threading.Thread(target=self._look_out, args=(what, ended), name="stead-redirect", daemon=True).start()
        try:
            yield
        except RayTaskError as error:
            # The user's own exception, of which Ray makes one error with its own; unless this task came back and
            # cancelled a call that was itself waiting elsewhere.
            if not (self._is_back and isinstance(error, TaskCancelledError)):
                raise
        except TaskCancelledError:
            if not self._is_back:
                raise KeyboardInterrupt from None  # as Ray cancels a task that runs
        except TaskUnschedulableError:  # it has not begun, so it is submitted once more
            time.sleep(AGAIN_S)
        except ray.exceptions.RayError as error:
            _crash(self._task_name, error)
        except BaseException:  # this task is cancelled
            ray.cancel(what)
            raise
        finally:
            ended.set()
            self._link.waits_elsewhere = False
            if not self._is_back:
                with suppress(Exception):
                    _internal_kv_del(self._call.claim, namespace=CLAIMS)

    def _look_out(self, what: Any, ended: threading.Event) -> None:
        """Come back as soon as the names are granted here again, unless the call has begun elsewhere: what it waits for
        may be what this task holds."""
        while self._names and not ended.wait(LOOK_S):
            if not withdrawn(self._link.page(), self._link.node_id, dict.fromkeys(self._names)):
                self._is_back = _takes(self._call.claim, TASK)
                if self._is_back:
                    ray.cancel(what)
                return


class Evictable:
    """The function of a task that may run again, called so that an eviction can interrupt it."""

    current: Evictable | None = None

    def __init__(self, link: Connection, executed: Any) -> None:
        self._link, self._executed = link, executed
        self._lock = threading.Lock()
        self._is_running = self._is_evicted = False
        self.is_over = False

    @property
    def function(self) -> Callable[..., Any]:
        return self._stream if self._executed.is_generator else self._run

    def interrupt(self) -> None:
        """From another thread: make the function stop. What ignores this runs on."""
        with self._lock:
            self._is_evicted = True
            if self._is_running:
                signal.pthread_kill(threading.main_thread().ident or 0, INTERRUPT)

    @classmethod
    def allow_interrupts(cls) -> None:
        """Call this in the main thread, once."""

        def interrupted(*_: Any) -> None:
            if cls.current is not None and cls.current._is_running:
                raise KeyboardInterrupt

        signal.signal(INTERRUPT, interrupted)

    def _called(self, function: Callable[..., Any], *args: Any, **named: Any) -> Any:
        """What the function returns, or `INTERRUPTED`."""
        try:
            try:
                with self._lock:
                    self._is_running, Evictable.current = True, self
                return INTERRUPTED if self._is_evicted else function(*args, **named)
            finally:
                with self._lock:
                    self._is_running = False
        except BaseException:
            if self._is_evicted:  # whatever it is: functions may turn an interrupt into an error of their own
                return INTERRUPTED
            self.is_over = True
            raise

    def _run(self, *args: Any, **named: Any) -> Any:
        arguments = self._link.arguments.take()
        found = self._called(self._executed.plain, *args, **named)
        if found is not INTERRUPTED:
            self.is_over = True
            return found
        args, named = arguments()
        return self._redirect(0).run(*args, **named)

    def _stream(self, *args: Any, **named: Any) -> Generator[Any, Any, None]:
        arguments, given, told = self._link.arguments.take(), 0, None
        items = self._executed.plain(*args, **named)
        while (item := self._called(_next, items, told)) is not INTERRUPTED:
            if item is END:
                self.is_over = True
                return
            told = yield item
            given += 1
        args, named = arguments()
        yield from self._redirect(given).stream(*args, **named)

    def _redirect(self, skip: int) -> Redirect:
        held = self._link.core.resource_ids()
        return Redirect(self._link, self._executed, held, withdrawn(self._link.page(), self._link.node_id, held), skip)


def _next(items: Generator[Any, Any, Any], told: Any) -> Any:
    """The next item, or `END`. `told` is what Ray has to say of the last one: Ray Data reads it."""
    try:
        return items.send(told)
    except StopIteration:
        return END


def _after(count: int, items: Generator[Any, Any, Any]) -> Generator[Any, Any, None]:
    """The items but the first ones."""
    for _ in islice(items, count):
        pass
    yield from items


def called_here(link: Connection, executed: Any, once: bool) -> Callable[..., Any]:
    """The function of a task, to be called on this node; one that must not run twice is never interrupted."""
    link.evictable = None if once else Evictable(link, executed)
    if once:
        link.arguments.release()
    found: Callable[..., Any] = executed.plain if once else link.evictable.function
    return found


@dataclass(frozen=True, slots=True)
class Declined:
    """What a call returns whose task has taken the claim, and so runs where it is."""


def _call(call: Call, args: Any, named: Any) -> Any:
    return _begun(call)(*args, **named) if _takes(call.claim, CALL) else Declined()


def _stream(call: Call, args: Any, named: Any) -> Iterator[Any]:
    if _takes(call.claim, CALL):
        yield from _begun(call)(*args, **named)
    else:
        yield Declined()


def _begun(call: Call) -> Callable[..., Any]:
    from stead.ray.workers import function_of

    if call.timed:
        connection().report_started(call.task_id)
    function: Callable[..., Any] = function_of(call.descriptor)
    return function


def _takes(claim: bytes, who: bytes) -> bool:
    """Whether it is theirs: whoever takes it first keeps it, also if the call is evicted and made once more."""
    _internal_kv_put(claim, who, overwrite=False, namespace=CLAIMS)
    return bool(_internal_kv_get(claim, namespace=CLAIMS) == who)


def _crash(name: str, error: Exception) -> NoReturn:
    """The worker that ran the call is gone; so this one goes too, and Ray counts one retry as it would have."""
    log.warning("task %s ran on another node and ended with it: %s", name, error)
    os._exit(1)
