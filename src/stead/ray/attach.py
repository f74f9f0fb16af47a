"""How a process is tied to its cluster: the page it reads, the controller it talks to, the work it remembers.

Rule: a submission waits for the controller only when it must know an answer (a ranking never asked for before, a
group's first pass, a hard pin). Everything else is told by the `Registrar`, which keeps a message until the controller
has acknowledged it. One `Connection` per Ray connection; it goes with it.

Anybody can kill the controller and start another one, so its handle is only a guess. `ask` and `tell` look the name up
again when the handle is dead, and start a controller if there is none; drivers also do so when nobody asks. Two
messages go another way and may be lost: `leaving` and `evicted`, which a worker sends in its last moment. The
controller withdraws the name that the worker held in its next round all the same, so only an event would be missing.
"""

from __future__ import annotations

import asyncio
import atexit
import inspect
import logging
import random
import threading
import time
from collections import OrderedDict
from collections.abc import Hashable, Iterable, Mapping
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import ray

from stead.errors import Invalid
from stead.ray.compile import Route, Wish
from stead.ray.leaving import Leaving
from stead.ray.page import SYNC_S, AskedPage, NoPage, Page, Reader, Unreadable, folder_of
from stead.ray.registrar import Message, Registrar
from stead.ray.slot_tasks import TaskCounter

if TYPE_CHECKING:
    from stead.ray.book import Registered

log = logging.getLogger(__name__)

NAME, NAMESPACE = "stead-controller", "stead"
HEAD = "node:__internal_head__"
"""What Ray gives to the head of a cluster and to no other node."""

PAGE_S = 2.0
"""How long a submission waits for a page that it has to ask for."""

ANSWERS_S = 60.0
"""How long a call goes on looking for a controller that is not dead."""

FLUSH_S = 1.0
"""How long the exit of a program waits for what the controller was told last."""

SWEEP_S = 5.0
"""How often tasks with a deadline that are done are forgotten."""

LOOK_S, LOOK_MAX_S = 1.5, 30.0
"""How often a driver looks whether there is a controller; more seldom if the one it started did not stay."""

REMEMBERED_MAX = 20_000
TASK_ID_BYTES = 24
"""A ref is the id of its task and a number."""

get, get_actor, wait = (inspect.unwrap(each) for each in (ray.get, ray.get_actor, ray.wait))
"""Ray's own functions without its automatic ``ray.init``: a thread of stead's that calls one of them after
``ray.shutdown`` must not start a new cluster."""


class NoController(Invalid):
    """There is no controller, and none could be started."""


class Remembered(NamedTuple):
    """What a submission asked for, kept by whoever submitted it to answer `why`."""

    route: Route | None
    resources: Mapping[str, float]
    group: str = ""  # the placement group it goes into


class Connection:
    def __init__(self, core: Any) -> None:
        worker = ray._private.worker.global_worker
        self.core = core
        self.node_id: str = core.get_current_node_id().hex()
        self._reader = Reader(folder_of(worker.node.get_session_dir_path(), self.node_id))
        self._asked_page: AskedPage | None = None
        self._page_call: Any = None
        self.running: Any = None  # in a worker: the id of its task
        self.waits_elsewhere = False  # in a worker: its task runs on another node, and this one waits for the result
        self.evictable: Any = None  # in a worker: its task, if that may be interrupted
        self.arguments: Any = None  # in a worker: what its task was given
        self._controller: Any = None
        self._lock, self._page_lock = threading.Lock(), threading.Lock()
        self._introduced: dict[str, float] = {}
        self._pins: dict[tuple[int, str, str], str] = {}
        self._tasks: OrderedDict[bytes, Remembered] = OrderedDict()
        self._actors: OrderedDict[str, Remembered] = OrderedDict()
        self._deadlines: Deadlines | None = None
        self.leaving = Leaving()
        self._registrar = Registrar(self._send, self.is_over)
        self._counter: TaskCounter | None = None
        if worker.mode == ray.SCRIPT_MODE:
            threading.Thread(target=_mind_controller, args=(self,), name="stead-controller", daemon=True).start()

    @cached_property
    def namespace(self) -> str:
        """Where labels of other work are looked up: as with names of actors, in the program's own namespace."""
        return str(ray._private.worker.global_worker.namespace)

    @property
    def job(self) -> str:
        return str(self.core.get_current_job_id().hex())

    @property
    def detached_actor(self) -> str:
        """The detached actor that what runs here belongs to: itself, or the root of who submitted it; "" if none."""
        root = self.core.get_current_root_detached_actor_id()
        return "" if root.is_nil() else str(root.hex())

    @property
    def owner(self) -> str:
        """With whom goes what is submitted here: an id of a detached actor, or else of the job."""
        return self.detached_actor or self.job

    # -- the page

    def page(self) -> Page:
        """The page that stands. Raises `NoPage` where it can neither be read nor asked for."""
        asked = self._asked_page
        if asked is None or not asked.is_needed:
            try:
                return self._reader.page()
            except Unreadable as error:
                asked = self._ask_for_pages(error)
        return asked.page()

    def _ask_for_pages(self, why: Unreadable) -> AskedPage:
        with self._page_lock:
            if self._asked_page is None or not self._asked_page.is_needed:
                self._asked_page = AskedPage(self._reader, why, self._page_text, self.is_over)
            return self._asked_page

    def _page_text(self) -> str:
        with self.leaving.call():
            if self._page_call is None:
                self._page_call = get_actor(NAME, NAMESPACE).page_text.options(max_task_retries=0).remote()
            call = self._page_call
            try:
                return str(_get(call, PAGE_S))
            except ray.exceptions.GetTimeoutError:
                call = None  # it may still be answered, so no other one is sent
                raise
            finally:
                if call is not None:
                    self._page_call = None

    def policy(self) -> str:
        """The cluster's default policy; "" also where nobody can tell."""
        try:
            return self.page().policy
        except NoPage:
            return ""

    # -- the controller

    @property
    def controller(self) -> Any:
        """The controller's handle, which may be dead by now; it is started when none runs."""
        if self._controller is None:
            with self._lock:
                if self._controller is None:
                    self._controller = find_or_start()
        return self._controller

    def _forget_controller(self, dead: Any) -> None:
        with self._lock:
            if self._controller is dead:
                self._controller = None

    def mind_controller(self) -> bool:
        """Start the controller again where there was one and is none; returns whether there was no need to."""
        with suppress(NoPage):
            if self._controller is None and not self.page().count:
                return True  # none was ever started, as far as this node knows
        try:
            found = get_actor(NAME, NAMESPACE)
        except ValueError:
            self._forget_controller(self._controller)
            log.info("stead's controller is gone; it is started again (%s)", self.controller)
            return False
        if self._controller is not None and found._actor_id != self._controller._actor_id:
            self._forget_controller(self._controller)
        return True

    def is_over(self) -> bool:
        """Whether this process has left the cluster. To call the controller then would start a new Ray: by itself, Ray
        does so for whoever is not attached."""
        worker = ray._private.worker.global_worker
        return not worker.connected or worker.core_worker is not self.core

    def ask(self, method: str, *given: Any, **named: Any) -> Any:
        """Call the controller and wait for its answer; its words come back as they are. When the controller died, the
        next one is asked, and told that the one before may have done it."""
        end, is_again, failures, pause = time.monotonic() + ANSWERS_S, False, 0, 0.05
        while True:
            if self.is_over():
                raise Invalid("there is no connection to Ray any more; call stead.init() first")
            handle = self.controller
            try:
                if is_again:
                    return _get(handle.again.remote(method, given, named))
                return _get(getattr(handle, method).remote(*given, **named))
            except ray.exceptions.RayTaskError as error:
                cause = error.cause if isinstance(error.cause, BaseException) else error
                raise cause from None
            except ray.exceptions.ActorDiedError as error:
                self._forget_controller(handle)
                failures += error.actor_init_failed
                if failures > 1 or time.monotonic() > end:
                    why = str(error).strip().splitlines()[-1].strip()
                    raise NoController(f"the controller of the cluster cannot be started: {why}") from None
            is_again, pause = True, min(2 * pause, 1.0)
            time.sleep(pause)

    def tell(self, kind: str, item: Any, key: Hashable = None) -> None:
        """Tell the controller something without waiting for it (see `Registrar`)."""
        self._registrar.add(kind, item, key)

    def flush(self) -> None:
        """Wait until the controller has acknowledged what it was told."""
        self._registrar.flush()

    def _send(self, messages: list[Message]) -> None:
        self._ask_in_background("hear", messages)

    def _ask_in_background(self, method: str, *given: Any) -> None:
        with self.leaving.call():
            self.ask(method, *given)

    def leave(self) -> None:
        """At the exit of a program, before Ray shuts down."""
        self._registrar.flush(FLUSH_S)
        self.leaving.begin(PAGE_S + 1.0)

    def introduce(self, wish: Wish, wait: bool) -> Page:
        """Tell the controller of rules it may not know; with `wait`, until the page speaks of them."""
        now = time.monotonic()
        if now - self._introduced.get(wish.key, -10.0) > 1.0 or wait:
            if len(self._introduced) > 1000:
                self._introduced.clear()
            self._introduced[wish.key] = now
            if wait:
                self.ask("introduce", [wish])
            else:
                self.tell("introduce", wish, key=wish.key)
        if wait:
            self.ask("settled")
            time.sleep(SYNC_S)
        return self.page()

    def prepare_group(self, wish: Wish) -> None:
        self.ask("prepare_group", wish)

    def refusal(self, wish: Wish, node_id: str, pinned: bool = False) -> str:
        """Why a node would not take the wish, as of the page that stands; "" if it would.

        `pinned`: Ray fails a hard pin at once if the node has not got the pass. So if it was granted there only a
        moment ago, wait until every raylet knows it.
        """
        key = (self.page().count, wish.admits.key, node_id)
        if key not in self._pins:
            if len(self._pins) > 1000:
                self._pins.clear()
            reason, wait_s = self.ask("pin", wish, node_id) if pinned else (self.ask("refuses", wish, node_id), 0.0)
            time.sleep(wait_s)
            self._pins[key] = reason
        return self._pins[key]

    def any_alive(self, node_ids: Iterable[str]) -> bool:
        alive = {node["NodeID"] for node in ray.nodes() if node["Alive"]}
        return not alive.isdisjoint(node_ids)

    # -- what was submitted

    def remember(self, ref: Any, asked: Route, resources: Mapping[str, float]) -> None:
        self._keep(self._tasks, ref.binary()[:TASK_ID_BYTES], Remembered(asked, resources))
        if asked.deadline_s is not None:
            self.deadlines.add(ref.task_id().hex(), "task", ref, asked, resources)

    def remember_in_group(self, ref: Any, group: str) -> None:
        self._keep(self._tasks, ref.binary()[:TASK_ID_BYTES], Remembered(None, {}, group))

    def remember_plain(self, ref: Any, resources: Mapping[str, float]) -> None:
        self._keep(self._tasks, ref.binary()[:TASK_ID_BYTES], Remembered(None, resources))

    def remember_actor(self, actor_id: Any, asked: Route, resources: Mapping[str, float]) -> None:
        self._keep(self._actors, actor_id.hex(), Remembered(asked, dict(resources)))
        if asked.deadline_s is not None:
            self.deadlines.add(actor_id.hex(), "actor", actor_id, asked, resources)

    @staticmethod
    def _keep(where: OrderedDict[Any, Remembered], key: Any, what: Remembered) -> None:
        where[key] = what
        if len(where) > REMEMBERED_MAX:
            where.popitem(last=False)

    def task(self, task_id: bytes) -> Remembered | None:
        return self._tasks.get(task_id)

    def actor(self, actor_id: str) -> Remembered | None:
        return self._actors.get(actor_id)

    @property
    def deadlines(self) -> Deadlines:
        if self._deadlines is None:
            self._deadlines = Deadlines(self)
        return self._deadlines

    def register(self, what: Registered, wait: bool = False) -> None:
        """Tell the controller of work that the engine places; with `wait`, until that is written down."""
        if wait:
            self.ask("register", [what])
        else:
            self.tell("register", what)

    @property
    def counter(self) -> TaskCounter:
        if self._counter is None:
            with self._lock:
                if self._counter is None:
                    self._counter = TaskCounter(self._ask_in_background, self.is_over)
        return self._counter

    # -- from workers

    def report_started(self, task_id: str) -> None:
        self.tell("started", task_id)

    def work_id(self) -> bytes:
        """In a worker: the id of its actor, or of the task that runs or ran last."""
        actor = self.core.get_actor_id()
        if not actor.is_nil():
            return bytes(actor.binary())
        return bytes(self.running.binary()) if self.running else b""

    def report_leaving(self, name: str) -> None:
        wait([self.controller.leaving.remote(self.node_id, name)], timeout=0.2)

    def may_leave(self) -> bool:
        """Ask the controller whether this worker's work is to be evicted now; False also if it does not answer."""
        is_actor = not self.core.get_actor_id().is_nil()
        asked = self.controller.evicts.remote(self.work_id().hex(), self.node_id, is_actor)
        ready, _ = ray.wait([asked], timeout=10.0)
        return bool(ready and ray.get(ready[0]))


class Deadlines:
    """Ends work of this process that has not started in time, unless the controller says that it has started. The time
    is counted here, on a clock that nobody sets: the controller's own may differ."""

    def __init__(self, link: Connection) -> None:
        self._link = link
        self._lock = threading.Condition()
        self._due: dict[str, tuple[float, str, Any]] = {}
        threading.Thread(target=self._run, name="stead-deadlines", daemon=True).start()

    def add(self, id: str, kind: str, what: Any, asked: Route, resources: Mapping[str, float]) -> None:
        assert asked.deadline_s is not None
        from stead.ray.book import Timed  # only here: most workers never need it, and start sooner without

        ask = asked.ask(id, resources)
        self._link.tell("watch", Timed(id, kind, self._link.owner, ask, within_s=asked.deadline_s))
        with self._lock:
            self._due[id] = (time.monotonic() + asked.deadline_s, kind, what)
            self._lock.notify()

    def _run(self) -> None:
        while not self._link.is_over():
            with self._lock:
                now = time.monotonic()
                first = min((due for due, _, _ in self._due.values()), default=now + SWEEP_S)
                self._lock.wait(max(0.0, min(first - now, SWEEP_S)))
            try:
                with self._link.leaving.call():
                    self._forget_done()
                    with self._lock:
                        now = time.monotonic()
                        overdue = {id: (kind, what) for id, (due, kind, what) in self._due.items() if due <= now}
                    if overdue:
                        self._end(overdue)
            except SystemExit:  # Ray's way to end calls that are under way when a process leaves
                return
            except Exception:  # there is no controller for now
                log.debug("deadlines could not be kept; trying again", exc_info=True)
                time.sleep(0.2)

    def _forget_done(self) -> None:
        """Results of tasks that are done are not kept any longer, and nobody has to be asked about them."""
        with self._lock:
            tasks = {what: id for id, (_, kind, what) in self._due.items() if kind == "task"}
        if tasks:
            done, _ = wait(list(tasks), num_returns=len(tasks), timeout=0, fetch_local=False)
            with self._lock:
                for ref in done:
                    self._due.pop(tasks[ref], None)

    def _end(self, overdue: Mapping[str, tuple[str, Any]]) -> None:
        self._link.flush()  # the controller takes what it does not know for started
        refused = set(self._link.ask("overdue", list(overdue)))
        for id, (kind, what) in overdue.items():
            if id in refused and kind == "task":
                ray.cancel(what)
            elif id in refused:
                self._link.core.kill_actor(what, True)
        with self._lock:
            for id in overdue:
                self._due.pop(id, None)


def _mind_controller(link: Connection) -> None:
    """In a driver: somebody has to start a controller that was ended for good, and programs may be silent for long."""
    pause = LOOK_S
    while True:
        time.sleep(pause * random.uniform(0.75, 1.25))
        if link.is_over():
            return
        try:
            with link.leaving.call():
                pause = LOOK_S if link.mind_controller() else min(2 * pause, LOOK_MAX_S)
        except SystemExit:
            return
        except Exception:  # Ray's control store restarts
            pause = min(2 * pause, LOOK_MAX_S)
            log.debug("could not look for the controller", exc_info=True)


_connections: dict[int, Connection] = {}


def connection(core: Any = None) -> Connection:
    """The connection of this process; a new one after Ray was shut down and started again."""
    if core is None:
        worker = ray._private.worker.global_worker
        if not worker.connected:
            raise Invalid("there is no connection to Ray; call stead.init() first")
        core = worker.core_worker
    found = _connections.get(id(core))
    if found is None or found.core is not core:
        _connections.clear()
        found = _connections[id(core)] = Connection(core)
    return found


@atexit.register  # after Ray's own, so before it
def _leave() -> None:
    for link in list(_connections.values()):
        if not link.is_over():
            link.leave()


def find_or_start() -> Any:
    try:
        return get_actor(NAME, NAMESPACE)
    except ValueError:
        return _start()


def _start() -> Any:
    from stead.ray.controller_actor import ControllerActor

    return (
        ray.remote(ControllerActor)
        .options(
            name=NAME,
            namespace=NAMESPACE,
            lifetime="detached",
            get_if_exists=True,
            num_cpus=0,
            scheduling_strategy="DEFAULT",  # not in the placement group of the work that happens to start it
            # The journal is on the head's disk, so the controller waits for a head that is away; a soft affinity to
            # the head's id let it start elsewhere.
            resources={HEAD: 0.001},
            max_restarts=-1,
            max_task_retries=-1,
            max_concurrency=64,
        )
        .remote()
    )


def _get(call: Any, timeout: float | None = None) -> Any:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return get(call, timeout=timeout)
    # In the event loop of an async actor ray.get would block the loop with a warning; a thread may wait quietly.
    result: list[Any] = []
    thread = threading.Thread(target=lambda: result.append(_caught(call, timeout)))
    thread.start()
    thread.join()
    value, error = result[0]
    if error is not None:
        raise error
    return value


def _caught(call: Any, timeout: float | None) -> tuple[Any, BaseException | None]:
    try:
        return get(call, timeout=timeout), None
    except BaseException as error:
        return None, error
