"""The scheduler process: watches in, `Controller.step()`, bindings and reports out, in one event loop.

Rule: nothing is decided here. Everything runs in one thread, so a step never sees half an event. A step places a
limited number of pods, so bindings are sent while the rest is pending. Every write passes the fence of the lease: a
process that no longer holds it writes nothing. A standby watches too, and takes over with a new engine.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import time
from collections import OrderedDict, deque
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass
from urllib.parse import quote

from stead import solver
from stead.controller import Controller, Tally
from stead.engine.engine import Engine
from stead.engine.settings import Settings
from stead.errors import Invalid, Unwritable
from stead.journal import Journal
from stead.kubernetes.api.binding import Binder, BindResult, Outcome
from stead.kubernetes.api.claiming import BIND_TIMEOUT_S
from stead.kubernetes.api.http import ApiClient, Unreachable
from stead.kubernetes.api.leases import Lease
from stead.kubernetes.api.preempting import Preemptor
from stead.kubernetes.api.reporting import PodRef, Reporter
from stead.kubernetes.api_objects import Problem
from stead.kubernetes.cluster import KubeCluster
from stead.kubernetes.default_spread import SYSTEM_SPREADS, DefaultSpreads
from stead.kubernetes.metrics import Metrics
from stead.kubernetes.templates import Pod, Templates
from stead.kubernetes.volume_binding import VolumeBinding
from stead.kubernetes.watches import Watches
from stead.kubernetes.wording import fit_error, why_gang_pending, why_pending
from stead.language.asks import Ask, GroupId, PolicyName
from stead.language.nodes import NodeId

LOG = logging.getLogger("stead.kubernetes")

PLACED_AT_ONCE = 128
"""How many pods a step places. More of them share the cost of a step, and the caches of the processor. They are decided
in 4 to 17 milliseconds, while the API server works on the bindings in flight."""

QUEUED_MAX, QUEUED_MIN = 64, 16
"""When more bindings than the first number wait to be sent, no further pods are placed until only the second number
waits: a step for every binding that is done would cost more than the decisions."""

REST_S = 0.01
"""How long the watch of pods rests while bindings wait to be sent. One read of many events costs less than a read of
each, and nothing could be done for a new pod before those bindings are sent."""

TRY_LATER_S, TRY_LATER_S_MAX = 5.0, 60.0
"""How long a pod whose binding failed keeps its place before it is placed again; twice as long after each failure."""

PAUSE_MIN_S = 0.001
"""The shortest pause, so that watches, bindings and signals always get their turn."""

ANNOUNCED_MAX = 1_000
"""How many bound pods may wait for their event. During a burst, older ones get none."""

DRAIN_S = 20.0
"""How long a scheduler that is stopping waits for its bindings."""

SCHEDULER_ERROR = "SchedulerError"
"""The reason in the condition of a pod that cannot be scheduled as it is written."""


@dataclass(frozen=True, slots=True)
class Options:
    """How a scheduler runs.

    Attributes:
        names: Pods with one of these as `spec.schedulerName` are scheduled.
        policy: The policy of pods without the annotation `stead.dev/policy`.
        default_spreads: The topology spread of pods that have none of their own.
        lease: The namespace and name of the Lease; None if there is only one scheduler.
        identity: The holder of the Lease, unique to this process.
        lease_times: How long the lease lasts, until when it must be renewed, and how often that is tried, in seconds.
        journal: Where to record facts and decisions, for `stead replay`.
        reports_scheduled: Whether bound pods get an event.
        in_flight_max: How many bindings are sent at a time.
        volumes_timeout_s: How long the volumes of a pod may take to be bound, before the pod is placed again.
    """

    names: tuple[str, ...] = ("stead",)
    policy: PolicyName = PolicyName.KUBE
    default_spreads: DefaultSpreads = SYSTEM_SPREADS
    lease: tuple[str, str] | None = None
    identity: str = "stead"
    lease_times: tuple[float, float, float] = (15.0, 10.0, 2.0)
    journal: str | None = None
    reports_scheduled: bool = True
    in_flight_max: int = 64
    volumes_timeout_s: float = BIND_TIMEOUT_S


class Scheduler:
    """Schedules the pods of one cluster until `stop` is called. Create it inside the event loop."""

    def __init__(self, client: ApiClient, options: Options, lease_client: ApiClient | None = None) -> None:
        """The lease has a client of its own, so that it is renewed also while all other connections are busy."""
        if options.policy.in_batches and solver.found() is None:
            raise Invalid(f"the policy {options.policy} needs OR-tools; try: pip install 'stead[flow]'")
        self._client = client
        self._options = options
        self.metrics = Metrics()
        self.tally = Tally()
        self.cluster = KubeCluster(self, options.names)
        self.templates = Templates(
            options.names, options.policy, options.default_spreads, has_solver=solver.found() is not None
        )
        self.watches = Watches(client, self.cluster, self.templates, self._news_arrived, self._rest_s)
        self.lease: Lease | None = None
        if options.lease is not None:
            self.lease = Lease(lease_client or client, *options.lease, options.identity, *options.lease_times)
        self.binder = Binder(client, self._bound, self._may_write, options.in_flight_max)
        self.volumes = VolumeBinding(
            client, self.cluster, self._bind_pod, self._bound, self._may_write, options.volumes_timeout_s
        )
        self.preemptor = Preemptor(client, self._not_evicted, self._may_write, instance=options.identity)
        self.reporter = Reporter(
            client,
            self._may_write,
            instance=options.identity,
            reports_scheduled=options.reports_scheduled,
        )
        self.controller: Controller | None = None
        """None while this process is not the leader, or has not listed everything yet."""
        self._journal: Journal | None = None
        self._pause: asyncio.Future[None] | None = None
        """Set while the loop sleeps."""
        self._is_full = False
        """Whether bindings pile up, so that no pods are placed."""
        self._stopping = asyncio.Event()
        self._is_leader = self.lease is None
        self._to_explain: OrderedDict[object, deque[Pod]] = OrderedDict()
        self._to_announce: deque[tuple[Pod, NodeId]] = deque(maxlen=ANNOUNCED_MAX)
        self._failures: dict[str, int] = {}  # by uid: how often the binding of a pod failed
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_failing = False

    # -- the life of the process

    async def run(self) -> None:
        """Schedule until `stop`."""
        background = [
            asyncio.create_task(self.watches.run(), name="watches"),
            asyncio.create_task(self.reporter.run(), name="reports"),
        ]
        election = None
        try:
            if not await self._all_listed(background[0]):
                return
            LOG.info("listed", extra={"nodes": len(self.cluster.nodes), "pods": len(self.cluster.pods)})
            calm_the_collector()
            if self.lease is None:
                self._lead()
            else:
                election = asyncio.create_task(self.lease.run(self._lead, self._follow), name="lease")
            await self._until_stopped([*background, *([election] if election is not None else [])])
        finally:
            self.controller = None
            await self.volumes.close()
            await self.binder.drain(DRAIN_S)
            await self.binder.close()
            await self.preemptor.close()
            if election is not None and self.lease is not None:
                self.lease.stop()
                await election
            for task in (*background, *self._tasks):
                task.cancel()
            await asyncio.gather(*background, *self._tasks, return_exceptions=True)
            if self._journal is not None:
                self._journal.close()

    def stop(self) -> None:
        """Finish what was decided, and end `run`."""
        self._stopping.set()
        self._wake_up()

    @property
    def is_leader(self) -> bool:
        return self._is_leader

    @property
    def is_ready(self) -> bool:
        """Whether everything was listed, so that this process schedules or could take over."""
        return self.watches.are_synced and not self._is_failing

    async def _all_listed(self, watching: asyncio.Task[None]) -> bool:
        """Wait until everything was listed. False if it was stopped before."""
        while not self.watches.are_synced:
            if watching.done():
                watching.result()
            if self._stopping.is_set():
                return False
            await self._sleep(0.1)
        return True

    async def _until_stopped(self, background: Sequence[asyncio.Task[None]]) -> None:
        while not self._stopping.is_set():
            for task in background:
                if task.done():
                    task.result()  # end with its error instead of going on without watches or without a lease
            is_idle = not self._step()
            if is_idle:
                is_idle = not self._explain_some()
            if is_idle:
                self._announce()
                await self._until_due()
            else:
                await asyncio.sleep(0)

    async def _until_due(self) -> None:
        """Sleep until something arrives or is due."""
        if self._is_full:
            await self._sleep(1.0)  # `_bound` ends it
        elif self.cluster.has_facts and self._may_decide and not self._is_failing:
            await asyncio.sleep(0)
        else:
            moment = self.controller.next_moment if self.controller is not None and self._may_decide else None
            left = 1.0 if moment is None or self._is_failing else min(max(moment - time.time(), PAUSE_MIN_S), 1.0)
            await self._sleep(left)

    async def _sleep(self, seconds: float) -> None:
        """Sleep until `_wake_up`, at most this long. `asyncio.wait_for` would create a task each time."""
        loop = asyncio.get_running_loop()
        self._pause = loop.create_future()
        timer = loop.call_later(seconds, self._wake_up)
        try:
            await self._pause
        finally:
            timer.cancel()
            self._pause = None

    def _wake_up(self) -> None:
        if self._pause is not None and not self._pause.done():
            self._pause.set_result(None)

    def _news_arrived(self) -> None:
        """A watch has reported something. If bindings pile up, that is taken in the next step."""
        if not self._is_full:
            self._wake_up()

    def _rest_s(self) -> float:
        """How long the watch of pods may rest."""
        return REST_S if self.binder.queued else 0.0

    # -- leading

    def _may_write(self) -> bool:
        """The fence of every write."""
        return self.lease is None or self.lease.is_held()

    def _lead(self) -> None:
        """Begin with a new engine: the API server is the truth, not what this process thought before."""
        settings = Settings(patience=None, placed_at_once=PLACED_AT_ONCE)
        engine = Engine(settings, solver.found())
        if self._options.journal is not None:
            if self._journal is None:
                self._journal = Journal.open(self._options.journal, settings)
            self._journal.keep(engine.checkpoint())  # a replay of what follows begins here
        self.reporter.clear()
        self.volumes.clear()
        self._to_explain.clear()
        self._is_leader = True
        self.cluster.start_over()
        self.controller = Controller(self.cluster, engine, self._journal, self.tally)
        self._wake_up()
        LOG.info("scheduling", extra={"scheduler": ",".join(self._options.names), "policy": self._options.policy})

    async def _lead_again(self) -> None:
        """After a step that failed, which should not happen."""
        while self._is_leader and self.controller is None and not self._stopping.is_set():
            await asyncio.sleep(TRY_LATER_S)
            try:
                self._lead()
            except Exception:
                LOG.exception("cannot begin again; trying in %g s", TRY_LATER_S)

    def _follow(self) -> None:
        """Another process leads now."""
        self.controller, self._is_leader = None, False
        self.volumes.clear()
        self._to_explain.clear()
        if not self._stopping.is_set():
            LOG.warning("waiting to take over again", extra={"identity": self._options.identity})

    # -- one step

    @property
    def _may_decide(self) -> bool:
        """Whether a step is of use now: this process leads, and the bindings do not pile up."""
        return self.controller is not None and not self._is_full and self._may_write()

    def _step(self) -> bool:
        """Decide once. Returns whether there may be more to decide."""
        controller = self.controller
        if controller is None:
            self.cluster.facts()  # a new leader begins with all facts, so a standby keeps none
            return False
        self._is_full = self.binder.queued > (QUEUED_MIN if self._is_full else QUEUED_MAX)
        if not self._may_decide:
            return False
        began = time.perf_counter()
        try:
            decisions = controller.step()
        except Unwritable as error:
            if not self._is_failing:
                LOG.error("nothing is scheduled: %s", error)
            self._is_failing = True
            return False
        except Exception:
            LOG.exception("a step failed; beginning again with a new engine in %g s", TRY_LATER_S)
            self._is_failing, self.controller = True, None
            self._start(self._lead_again())
            return False
        self._is_failing = False
        if decisions:
            self.metrics.decided(decisions, time.perf_counter() - began)
        moment = controller.next_moment
        return bool(decisions) and moment is not None and moment <= time.time()

    # -- what the cluster asks for (`cluster.Writes`)

    def bind(self, pod: Pod, node: NodeId) -> None:
        self.reporter.forget(pod.uid)  # it is no longer pending, so that must not be reported any more
        if self.volumes.is_needed(pod):
            self.volumes.begin(pod, node)
        else:
            self._bind_pod(pod, node)

    def _bind_pod(self, pod: Pod, node: NodeId) -> None:
        self.binder.bind(pod.namespace, pod.name, pod.uid, node)

    def preempt(self, pod: Pod, node: NodeId, victims: Sequence[Pod]) -> None:
        self.metrics.preempts(len(victims))
        self.preemptor.preempt(_ref(pod), node, [_ref(victim) for victim in victims])

    def end_nomination(self, pod: Pod) -> None:
        self.preemptor.end_nomination(_ref(pod))

    def _not_evicted(self, victim: PodRef, is_final: bool) -> None:
        """A victim was not deleted. It keeps its place; another try follows later."""
        pod = self.cluster.pods.get(f"{victim.namespace}/{victim.name}")
        if pod is not None and pod.uid == victim.uid:
            self._start(self._spare(pod, is_final))

    async def _spare(self, pod: Pod, is_final: bool) -> None:
        await asyncio.sleep(0.0 if is_final else TRY_LATER_S)
        self.cluster.not_evicted(pod, is_final)
        self._wake_up()

    def report_pending(self, pods: Sequence[Pod], gang: GroupId | None = None) -> None:
        """Explain later, when no pod can be placed: an explanation takes milliseconds, and equal pods share it."""
        ask = pods[0].ask
        assert ask is not None, "pending pods have an ask"
        if gang is not None:
            self._to_explain[gang] = deque(pods)
        else:
            self._to_explain.setdefault(ask.shape_key, deque()).extend(pods)

    def report_problem(self, pod: Pod, problem: Problem) -> None:
        if self._is_leader:
            self.metrics.refused()
            self.reporter.pending(_ref(pod), problem.sentence, SCHEDULER_ERROR)

    def report_bound(self, pod: Pod, node: NodeId, seconds: float, waited_s: float) -> None:
        self.metrics.bound(seconds, waited_s)
        if LOG.isEnabledFor(logging.DEBUG):
            LOG.debug("bound", extra={"pod": pod.key, "node": node, "waited_s": round(waited_s, 3)})
        self._failures.pop(pod.uid, None)
        self.metrics.announcements_dropped += len(self._to_announce) == ANNOUNCED_MAX
        self._to_announce.append((pod, node))

    def forget(self, pod: Pod) -> None:
        self.reporter.forget(pod.uid)
        self.volumes.forget(pod.uid)
        if pod.key not in self.cluster.pods:
            self._failures.pop(pod.uid, None)

    def look_again(self, pod: Pod) -> None:
        self._start(self._read(pod))

    def try_later(self, pod: Pod, message: str) -> None:
        failures = self._failures.get(pod.uid, 0)
        self._failures[pod.uid] = failures + 1
        self._start(self._release(pod, min(TRY_LATER_S * 2.0**failures, TRY_LATER_S_MAX)))
        if message:
            self.reporter.pending(_ref(pod), f"the binding failed: {message}", SCHEDULER_ERROR)

    def _start(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _bound(self, result: BindResult) -> None:
        """A binding has an outcome."""
        if result.outcome is not Outcome.BOUND:
            self.metrics.not_bound(result.outcome)
            LOG.log(
                logging.INFO if result.outcome is Outcome.LOST else logging.WARNING,
                "binding %s",
                result.outcome,
                extra={"pod": f"{result.namespace}/{result.name}", "node": result.node, "why": result.message},
            )
        if self.controller is not None:
            self.cluster.bound(result)
        if not self._is_full or self.binder.queued <= QUEUED_MIN:
            self._wake_up()

    async def _read(self, pod: Pod) -> None:
        """Read a pod whose binding did not succeed."""
        path = f"/api/v1/namespaces/{quote(pod.namespace, '')}/pods/{quote(pod.name, '')}"
        response = None
        while response is None or response.status not in (200, 404):
            with suppress(Unreachable):
                response = await self._client.request("GET", path)
            if response is None or response.status not in (200, 404):
                await asyncio.sleep(TRY_LATER_S)
        found = None
        if response.status == 200:
            try:
                found = self.templates.decode_pod(response.body)
            except Invalid:
                LOG.exception("cannot read a pod again", extra={"pod": pod.key})
                found = pod
        self.cluster.read_again(pod, found)
        self._wake_up()

    async def _release(self, pod: Pod, seconds: float) -> None:
        await asyncio.sleep(seconds)
        self.cluster.released(pod)
        self._wake_up()

    # -- why pods are pending

    def _announce(self) -> None:
        """Report bound pods, once all bindings are done: each report costs the API server as much as a binding."""
        room = 0 if self.binder.queued or self.binder.in_flight else self.reporter.room_for_scheduled
        for _ in range(min(room, len(self._to_announce))):
            pod, node = self._to_announce.popleft()
            self.reporter.scheduled(_ref(pod), node)

    def _explain_some(self) -> bool:
        """Explain one kind of pending pods. Returns whether there was one."""
        if self.controller is None or not self._to_explain:
            return False
        what, pods = self._to_explain.popitem(last=False)
        engine = self.controller.engine
        waiting = [pod for pod in pods if engine.is_pending(pod.key)]
        if waiting and waiting[0].ask is not None:
            message = self._why(engine, waiting[0].ask, what if isinstance(what, GroupId) else None)
            for pod in waiting:
                self.reporter.pending(_ref(pod), message)
        return True

    def _why(self, engine: Engine, ask: Ask, gang: GroupId | None) -> str:
        try:
            return why_pending(engine, ask) if gang is None else why_gang_pending(engine, gang)
        except Exception:  # a fault in an explanation must not stop the scheduler
            LOG.exception("cannot explain why a pod is pending", extra={"pod": ask.id})
            return fit_error(len(engine.nodes), engine.refusals_by_plugin(ask))


def _ref(pod: Pod) -> PodRef:
    return PodRef(pod.namespace, pod.name, pod.uid, pod.scheduler_name)


def calm_the_collector() -> None:
    """Pods and nodes live long: look at them rarely."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)
