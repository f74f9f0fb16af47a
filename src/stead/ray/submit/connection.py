"""The connection of a process to its cluster: the page it reads, the controller it calls, the work it remembers.

Rule: a submission waits for the controller only when it needs an answer (a new ranking, the first pass of a group, of a
node affinity or under SPREAD, a hard pin, a detached actor) or when its node is late with its passes. All other
messages go through the `Registrar` or the `TaskCounter`, which repeat them until the controller acknowledges them.
There is one `Connection` per Ray connection, and it ends with it.

Anyone can kill the controller and start another one, so its handle may be dead. `ask` and `tell` then look up the name
again, and start a controller if there is none. Drivers also check regularly. Only the message `leaving`, which a worker
sends when it is about to exit, may be lost: the controller withdraws the worker's resource name in its next round
anyway.
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
from collections.abc import Collection, Hashable, Iterable, Mapping
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import ray

from stead.errors import Invalid
from stead.ray.submit.compile import Route, Wish, route
from stead.ray.submit.registration import Message, Registrar
from stead.ray.submit.shutdown import Leaving
from stead.ray.submit.slot_tasks import TaskCounter
from stead.ray.wire.node_page import HEAD, SYNC_S, AskedPage, NoPage, Page, Reader, Unreadable, folder_of
from stead.ray.wire.own_names import CONTROLLER, NAMESPACE

if TYPE_CHECKING:
    from stead.ray.submit.messages import Recalled, Registered

log = logging.getLogger(__name__)

PAGE_S = 2.0
"""How long a submission waits for a page that it requests from the controller."""

ANSWERS_S = 60.0
"""How long a call keeps looking for a live controller."""

SLOW_NODE_S = 10.0
"""How long a submission waits for its target node when that node does not answer the controller."""

FLUSH_S = 1.0
"""How long the exit of a program waits for the last messages to the controller."""

SWEEP_S = 5.0
"""How often finished tasks with a deadline are forgotten."""

LOOK_S, LOOK_MAX_S = 1.5, 30.0
"""How often a driver checks that a controller exists. The interval grows while a restarted controller keeps dying."""

REMEMBERED_MAX = 20_000
TASK_ID_BYTES = 24
"""A ref is its task's id followed by an index."""

get, get_actor, wait = (inspect.unwrap(each) for each in (ray.get, ray.get_actor, ray.wait))
"""Ray's own functions without the automatic ``ray.init``: a stead thread that calls one of them after ``ray.shutdown``
must not start a new cluster."""


class NoController(Invalid):
    """No controller is running, and none could be started."""


class Remembered(NamedTuple):
    """What a submission asked for, kept by the submitting process to answer `why`."""

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
        self.waits_elsewhere = False  # in a worker: its task is redirected to another node, until the next task starts
        self.evictable: Any = None  # in a worker: its task, if that may be interrupted
        self.arguments: Any = None  # in a worker: the arguments of its task
        self._controller: Any = None
        self._lock, self._page_lock = threading.Lock(), threading.Lock()
        self._introduced: dict[str, float] = {}
        self._pins: dict[tuple[int, str, str], str] = {}
        self._tasks: OrderedDict[bytes, Remembered] = OrderedDict()
        self._actors: OrderedDict[str, Remembered] = OrderedDict()
        self._deadlines: OwnDeadlines | None = None
        self.leaving = Leaving()
        self._registrar = Registrar(self._send, self.has_left)
        self._counter: TaskCounter | None = None
        if worker.mode == ray.SCRIPT_MODE:
            threading.Thread(target=_watch_controller, args=(self,), name="stead-controller", daemon=True).start()

    @cached_property
    def namespace(self) -> str:
        """Where labels of other work are looked up: in the program's own namespace, like actor names."""
        return str(ray._private.worker.global_worker.namespace)

    @property
    def job(self) -> str:
        return str(self.core.get_current_job_id().hex())

    @property
    def detached_actor(self) -> str:
        """The detached actor that owns what runs here: this actor, or the root of its submitters; "" if there is
        none."""
        root = self.core.get_current_root_detached_actor_id()
        return "" if root.is_nil() else str(root.hex())

    @property
    def owner(self) -> str:
        """The owner of work submitted here: the id of a detached actor, or else of the job."""
        return self.detached_actor or self.job

    # -- the page

    def page(self) -> Page:
        """The current page. Raises `NoPage` if it can neither be read nor requested."""
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
                self._asked_page = AskedPage(self._reader, why, self._page_text, self.has_left)
            return self._asked_page

    def _page_text(self) -> str:
        with self.leaving.call():
            if self._page_call is None:
                self._page_call = get_actor(CONTROLLER, NAMESPACE).page_text.options(max_task_retries=0).remote()
            call = self._page_call
            try:
                return str(_get(call, PAGE_S))
            except ray.exceptions.GetTimeoutError:
                call = None  # the answer may still come, so no second call is sent
                raise
            finally:
                if call is not None:
                    self._page_call = None

    def policy(self) -> str:
        """The cluster's default policy; "" if there is none, or no page to read it from."""
        try:
            return self.page().policy
        except NoPage:
            return ""

    # -- the controller

    @property
    def controller(self) -> Any:
        """The controller's handle, which may be dead by now. Starts a controller if none runs."""
        if self._controller is None:
            with self._lock:
                if self._controller is None:
                    self._controller = find_or_start()
        return self._controller

    def _forget_controller(self, dead: Any) -> None:
        with self._lock:
            if self._controller is dead:
                self._controller = None

    def restart_if_gone(self) -> bool:
        """Restart a controller that is gone. Returns True if no restart was needed."""
        with suppress(NoPage):
            if self._controller is None and not self.page().count:
                return True  # as far as this node knows, none was ever started
        try:
            found = get_actor(CONTROLLER, NAMESPACE)
        except ValueError:
            self._forget_controller(self._controller)
            log.info("stead's controller was gone and has been restarted (%s)", self.controller)
            return False
        if self._controller is not None and found._actor_id != self._controller._actor_id:
            self._forget_controller(self._controller)
        return True

    def has_left(self) -> bool:
        """Whether this process has left the cluster. Do not call the controller then: Ray would automatically start a
        new cluster for a process that is not connected."""
        worker = ray._private.worker.global_worker
        core = getattr(worker, "core_worker", None)  # Ray deletes it during its shutdown
        return not worker.connected or core is not self.core

    def ask(self, method: str, *given: Any, **named: Any) -> Any:
        """Call the controller and return its answer or raise its error. If the controller died, call the next one
        through `again`, because the dead one may already have carried out the call."""
        end, is_again, failures, pause = time.monotonic() + ANSWERS_S, False, 0, 0.05
        while True:
            if self.has_left():
                raise Invalid("this program has disconnected from Ray; call stead.init() first")
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
        """Send a message to the controller without waiting for it (see `Registrar`)."""
        self._registrar.add(kind, item, key)

    def flush(self) -> None:
        """Wait until the controller has acknowledged all messages."""
        self._registrar.flush()

    def _send(self, messages: list[Message]) -> None:
        self._ask_in_background("receive", messages)

    def _ask_in_background(self, method: str, *given: Any) -> None:
        with self.leaving.call():
            self.ask(method, *given)

    def leave(self) -> None:
        """Call this when a program exits, before Ray shuts down."""
        self._registrar.flush(FLUSH_S)
        self.leaving.begin(PAGE_S + 1.0)

    def introduce(self, wish: Wish, wait: bool) -> Page:
        """Send the controller rules that it may not know. With `wait`, return once the page contains them."""
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

    def until_granted(self, nodes: Collection[str]) -> Page:
        """The page, once one of these nodes has the passes that it is allowed. A slow node gets them late, and without
        the pass Ray ignores a preference for the node and fails a pin to it."""
        end = time.monotonic() + SLOW_NODE_S
        while (page := self.page()).late and set(nodes) <= set(page.late) and time.monotonic() < end:
            self.ask("settled")
            time.sleep(SYNC_S)
        return page

    def prepare_group(self, wish: Wish) -> None:
        self.ask("prepare_group", wish)

    def refusal(self, wish: Wish, node_id: str, pinned: bool = False) -> str:
        """Why a node refuses the wish, according to the current page; "" if it accepts it.

        `pinned`: Ray fails a hard pin at once if the node does not have the pass. If the pass was granted a moment ago,
        wait until every raylet knows about it.
        """
        key = (self.page().count, wish.admits.key, node_id)
        if key not in self._pins:
            if len(self._pins) > 1000:
                self._pins.clear()
            if pinned:
                self._pins[key], wait_s = self.ask("admission", "pin", [wish, node_id])
                time.sleep(wait_s)
            else:
                self._pins[key] = self.ask("admission", "refuses", [wish, node_id])
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

    def remember_actor(
        self, actor_id: Any, asked: Route, resources: Mapping[str, float], by_engine: bool = False
    ) -> None:
        """With `by_engine` the engine places the actor and enforces its deadline."""
        self._keep(self._actors, actor_id.hex(), Remembered(asked, dict(resources)))
        if asked.deadline_s is not None and not by_engine:
            self.deadlines.add(actor_id.hex(), "actor", actor_id, asked, resources)

    @staticmethod
    def _keep(where: OrderedDict[Any, Remembered], key: Any, what: Remembered) -> None:
        where[key] = what
        if len(where) > REMEMBERED_MAX:
            where.popitem(last=False)

    def recalled(self, id: str, has_ended: bool = False) -> Recalled:
        """Everything that this process knows about one of its own tasks or actors."""
        from stead.ray.submit.messages import Recalled  # only here: most workers never need it

        found = self._actors.get(id)
        with suppress(ValueError):  # it may be a name
            found = found or self._tasks.get(bytes.fromhex(id))
        if found is None:
            return Recalled(has_ended=has_ended)
        ask = None if found.group else (found.route or route({})).ask(id, found.resources, self.namespace)
        return Recalled(ask, dict(found.resources), found.group, has_ended)

    @property
    def deadlines(self) -> OwnDeadlines:
        if self._deadlines is None:
            self._deadlines = OwnDeadlines(self)
        return self._deadlines

    def register(self, what: Registered, wait: bool = False) -> None:
        """Register work that the engine places. With `wait`, return once the controller has stored it."""
        if wait:
            self.ask("register", [what])
        else:
            self.tell("register", what)

    @property
    def counter(self) -> TaskCounter:
        if self._counter is None:
            with self._lock:
                if self._counter is None:
                    self._counter = TaskCounter(self._ask_in_background, self.has_left)
        return self._counter

    # -- from workers

    def report_started(self, task_id: str) -> None:
        self.tell("started", task_id)

    def work_id(self) -> bytes:
        """In a worker: the id of its actor, or of its current or last task."""
        actor = self.core.get_actor_id()
        if not actor.is_nil():
            return bytes(actor.binary())
        return bytes(self.running.binary()) if self.running else b""

    def report_leaving(self, name: str) -> None:
        wait([self.controller.leaving.remote(self.node_id, name)], timeout=0.2)

    def may_leave(self) -> bool:
        """Ask the controller whether to evict this worker's work now. False if it does not answer."""
        is_actor = not self.core.get_actor_id().is_nil()
        names = list(self.core.resource_ids())
        asked = self.controller.evicts.remote(self.work_id().hex(), self.node_id, is_actor, names)
        ready, _ = ray.wait([asked], timeout=10.0)
        return bool(ready and ray.get(ready[0]))


class OwnDeadlines:
    """Ends work of this process that has not started before its deadline, unless the controller knows that it has
    started. The time is measured here, on a monotonic clock, because the controller's clock may differ."""

    def __init__(self, link: Connection) -> None:
        self._link = link
        self._lock = threading.Condition()
        self._due: dict[str, tuple[float, str, Any]] = {}
        threading.Thread(target=self._run, name="stead-deadlines", daemon=True).start()

    def add(self, id: str, kind: str, what: Any, asked: Route, resources: Mapping[str, float]) -> None:
        assert asked.deadline_s is not None
        from stead.ray.submit.messages import Timed  # only here: most workers never need it, and start sooner without

        ask = asked.ask(id, resources)
        self._link.tell("watch", Timed(id, kind, self._link.owner, ask, within_s=asked.deadline_s))
        with self._lock:
            self._due[id] = (time.monotonic() + asked.deadline_s, kind, what)
            self._lock.notify()

    def _run(self) -> None:
        while not self._link.has_left():
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
            except SystemExit:  # ends calls in progress when a process exits, as Ray does
                return
            except Exception:  # no controller is running at the moment
                log.debug("deadlines could not be checked; trying again", exc_info=True)
                time.sleep(0.2)

    def _forget_done(self) -> None:
        """Drop finished tasks, so that their results are released and the controller is not asked about them."""
        with self._lock:
            tasks = {what: id for id, (_, kind, what) in self._due.items() if kind == "task"}
        if tasks:
            done, _ = wait(list(tasks), num_returns=len(tasks), timeout=0, fetch_local=False)
            with self._lock:
                for ref in done:
                    self._due.pop(tasks[ref], None)

    def _end(self, overdue: Mapping[str, tuple[str, Any]]) -> None:
        self._link.flush()  # the controller treats work that it does not know as started
        refused = set(self._link.ask("overdue", list(overdue)))
        for id, (kind, what) in overdue.items():
            if id in refused and kind == "task":
                ray.cancel(what)
            elif id in refused:
                self._link.core.kill_actor(what, True)
        with self._lock:
            for id in overdue:
                self._due.pop(id, None)


def _watch_controller(link: Connection) -> None:
    """In a driver: restart a controller that was killed for good, also while the program submits nothing."""
    pause = LOOK_S
    while True:
        time.sleep(pause * random.uniform(0.75, 1.25))
        if link.has_left():
            return
        try:
            with link.leaving.call():
                pause = LOOK_S if link.restart_if_gone() else min(2 * pause, LOOK_MAX_S)
        except SystemExit:
            return
        except Exception:  # for example, Ray's control store is restarting
            pause = min(2 * pause, LOOK_MAX_S)
            log.debug("could not look for the controller", exc_info=True)


_connections: dict[int, Connection] = {}


def connection(core: Any = None) -> Connection:
    """The connection of this process; a new one after Ray was shut down and started again."""
    if core is None:
        worker = ray._private.worker.global_worker
        if not worker.connected:
            raise Invalid("this program is not connected to Ray; call stead.init() first")
        core = worker.core_worker
    found = _connections.get(id(core))
    if found is None or found.core is not core:
        _connections.clear()
        found = _connections[id(core)] = Connection(core)
    return found


@atexit.register  # registered after Ray's own exit function, so it runs before it
def _leave() -> None:
    for link in list(_connections.values()):
        if not link.has_left():
            link.leave()


def find_or_start() -> Any:
    try:
        return get_actor(CONTROLLER, NAMESPACE)
    except ValueError:
        return _start()


def _start() -> Any:
    from stead.ray.control.controller_actor import ControllerActor

    return (
        ray.remote(ControllerActor)
        .options(
            name=CONTROLLER,
            namespace=NAMESPACE,
            lifetime="detached",
            get_if_exists=True,
            num_cpus=0,
            scheduling_strategy="DEFAULT",  # not in the placement group of the work that starts it
            # The journal is on the head's disk, so the controller waits while the head is away. With a soft affinity to
            # the head's id it could start on another node.
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
    # In the event loop of an async actor, ray.get would log a warning; a separate thread does not.
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
