"""The controller on Ray: one named, detached actor on the head node that holds the engine.

Rule: one thread makes all changes, in rounds (`_round`): read Ray's tables, apply facts, decide, write, grant,
announce, and only then answer. All other threads of the actor queue a change and wait, or read: under the lock, or the
result of the last round. After a kill, the journal and the state store have everything that was acknowledged, and Ray's
tables have the rest.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import ray

from stead import solver
from stead.controller import Controller, Tally
from stead.engine.explain.events import EventKind
from stead.engine.facts import Fact, NodeLabelled, NodeUntainted
from stead.engine.settings import Settings
from stead.errors import Invalid, Unwritable
from stead.journal import Superseded
from stead.language.asks import Ask, Choice, PolicyName
from stead.language.labels import Labels
from stead.language.taints import Effect
from stead.operate.changes import NodeChange
from stead.ray.control.admission import Admission, nodes_allowed
from stead.ray.control.cluster import RayCluster
from stead.ray.control.commands import Placing
from stead.ray.control.desk import METHODS, RayDesk, called_again
from stead.ray.control.mirroring import Mirroring
from stead.ray.control.node_agents import Pages
from stead.ray.control.passes import Passes, Settled
from stead.ray.control.persistence import Stores
from stead.ray.control.plugs import GroupPlugs
from stead.ray.control.process import freeze_loaded_objects, prepare_process
from stead.ray.control.ray_placed_work import Deadlines, Evictions, PendingKinds
from stead.ray.control.ray_work import RayWork
from stead.ray.control.readiness import Readiness, when_ready
from stead.ray.submit import core_worker as submission
from stead.ray.submit.compile import Pass, Wish
from stead.ray.submit.environments import LABEL, LABELS_MAX
from stead.ray.submit.messages import GroupAsked, Registered, SlotShape, Timed
from stead.ray.submit.native_selectors import binding
from stead.ray.submit.registration import Message
from stead.ray.wire import resource_grants as grants
from stead.ray.wire.gcs import KeyValues
from stead.ray.wire.node_page import PROTOCOL, Page, open_folder
from stead.ray.wire.own_names import SLOT, read_name
from stead.ray.wire.tables import SHAPES_LISTED_MAX, Status, Tables
from stead.ray.wire.taint_labels import rare_resource

ROUND_S, QUICK_S, JOBS_S, START_MAX_S = 0.25, 0.03, 1.0, 5.0
PLAIN = Pass()
SETTINGS = Settings(patience=None)
"""Nodes are not reserved for late work: that would close them to work that Ray places."""

SQUEEZERS = 3
JOINS_S = 5.0
"""How long a caller waits for a node that Ray already lists but whose amounts are not known yet."""

TIERS_MAX, TIER_NODES_MAX, WISHES_MAX = 8, 128, 64

MESSAGE_KINDS = frozenset({"register", "introduce", "watch", "started", "holds", "interrupted"})
"""The kinds of messages that `receive` accepts: methods that take a list of items."""

log = logging.getLogger(__name__)


@dataclass(slots=True)
class QueuedChange:
    """Facts to apply, and an event that is set once they hold everywhere."""

    facts: tuple[Fact, ...] = ()
    done: threading.Event = field(default_factory=threading.Event)
    error: BaseException | None = None
    unconfirmed: tuple[str, ...] = ()  # nodes that did not answer; the calls are repeated until they do


@when_ready
class ControllerActor:
    def __init__(self) -> None:
        submission.exempt_this_process()
        prepare_process()
        self._lock = threading.RLock()
        self._wake = threading.Event()
        self._changes: list[QueuedChange] = []
        self._heard_of: list[tuple[Wish, bool]] = []
        self._wishes: dict[str, Wish] = {}
        self._page, self._status = Page(), Status({}, ())
        self._dirty, self._last_jobs = True, 0.0
        self._allowed: dict[str, set[str]] = {}
        self.readiness = Readiness()
        threading.Thread(target=self._run, name="stead-rounds", daemon=True).start()
        self.readiness.wait()

    # -- the thread that makes all changes

    def _run(self) -> None:
        self.readiness.opening()
        pause = ROUND_S
        while not self._start():
            time.sleep(pause)
            pause = min(2 * pause, START_MAX_S)
        freeze_loaded_objects()
        self.readiness.ready()
        while True:
            pause, batch = QUICK_S if self._unsettled else ROUND_S, self._placing.batch_due_s
            self._wake.wait(pause if batch is None else min(pause, batch))
            self._wake.clear()
            try:
                self._round()
            except Exception as error:
                if isinstance(error, Superseded | Unwritable) or self._controller.has_failed:
                    # Superseded: Ray has started another controller and has given up on this process. Otherwise a write
                    # failed, so the change must not be carried out: the next process starts from what is stored.
                    log.exception("the controller exits, and Ray restarts it")
                    os._exit(1)
                log.exception("a round failed; retrying in the next one")
                time.sleep(ROUND_S)

    def _start(self) -> bool:
        """Open the files and run one round. Calls during this time get the reason if it fails."""
        stores: Stores | None = None
        try:
            worker = ray._private.worker.global_worker
            folder = open_folder(worker.node.get_session_dir_path())
            stores = Stores(folder, SETTINGS, KeyValues(worker.gcs_client))
            self._open(stores, folder)
            self._round()
            stores.report_news()
        except Superseded:
            os._exit(1)
        except Exception as error:
            log.exception("the controller cannot start; retrying")
            self.readiness.failed(error)
            if stores is not None:
                stores.close()
            return False
        return True

    def _open(self, stores: Stores, folder: Path) -> None:
        worker = ray._private.worker.global_worker
        self._tables = Tables(worker.gcs_client.address)
        self._stores, journal, self._state_store = stores, stores.journal, stores.state_store
        self._placing = Placing(worker.gcs_client.address, self._state_store, self._tables, self._wake.set)
        self._cluster = RayCluster(self._placing)
        self._mirroring = Mirroring(worker.node.get_logs_dir_path(), self._placing, self._cluster)
        tally = Tally()
        self._controller = Controller.resumed(self._cluster, journal, stores.engine, tally)
        self._engine = self._controller.engine
        self._grants = grants.detect(worker.gcs_client.address)
        self._passes = Passes(self._grants, GroupPlugs(self._tables.groups), self._tables.status, journal.check)
        self._work = RayWork(self._tables, self._placing, self._passes)
        self._desk = RayDesk(self, self._lock, self._work, self._state_store, tally, folder)
        self._admission = Admission(
            self._lock,
            self._engine,
            self._tables,
            self._passes,
            lambda: self._placing.fork(self._status),
            self._submit,
        )
        home = worker.core_worker.get_current_node_id().hex()
        self._pages = Pages(folder.parent, worker.node_ip_address, home, self._tables.raylets)
        # Page counts must keep growing. A new head does not know the last one, but there is less than one page per
        # second.
        self._page = replace(self._page, count=self._pages.last_count or (int(time.time()) if stores.news else 0))
        self._deadlines = Deadlines(self._state_store, self._tables, self._desk.why_refused)
        self._pending = PendingKinds(self._state_store, self._work.ask_of_demand)
        self._evictions = Evictions(
            self._state_store,
            self._tables,
            self._placing.placed_at,
            self._placing.decide_again,
            lambda id: id in self._placing.groups.lives,
        )
        self._unsettled, self._settled, self._late = 0, Settled(), frozenset[str]()
        self._passes.issue(*(self._state_store.pass_of(PLAIN.key) or (PLAIN, 0)))
        status = self._tables.status()
        self._passes.adopt(status, self._state_store.pass_of)
        self._placing.open(self._engine, self._passes, self._grants, journal.check, status, home, self._work.ask_of)

    def _round(self) -> None:
        """One round. The order matters: a decision is stored before it is carried out, and carried out before the
        answer."""
        with self._lock:
            changes, self._changes = self._changes, []
            heard_of, self._heard_of = self._heard_of, []
            self._learn(heard_of)
        try:
            status = self._tables.status()
            unknown = status.nodes.keys() - self._engine.nodes.keys()
            with self._lock:
                self._cluster.look(status, self._tables.node_names() if unknown else {}, self._engine.nodes)
                for change in changes:
                    self._cluster.report(*change.facts)
                self._cluster.report(*self._ended_jobs())
                before, closed = self._engine.nodes, self._placing.closed()
                self._cluster.report(*self._placing.facts(status))
                self._controller.step()
                self._placing.carry_out(status, self._engine.nodes != before)
                self._dirty |= self._placing.closed() != closed
                self._dirty |= self._engine.nodes != before
                self._status = status
            self._update_passes(status)
            self._settled = self._passes.settle(
                status, self._allowed, self._announce, bool(changes), self._pages.has_page
            )
            self._unsettled = self._settled.unsettled
            self._placing.grant_slots(status)
            self._placing.groups.look_again(status, self._allowed, self._work.fits)
            self._unsettled += self._placing.is_unsettled
            self._write_down_passes()
            self._pending.look(status, self._placing.fork)
            self._deadlines.end_orphans()
            self._evictions.carry_out(self._page.evict, self._engine)
            self._mirroring.look(status, self._work, self._desk)
            self._stores.update_copy(self._engine)
        except BaseException as error:
            for change in changes:
                change.error = error
            raise
        finally:
            for change in changes:
                change.unconfirmed = self._unconfirmed(change)
                change.done.set()

    def _unconfirmed(self, change: QueuedChange) -> tuple[str, ...]:
        """The changed nodes that did not answer, and all nodes that did not confirm the page."""
        concerned = {getattr(fact, "node", "") for fact in change.facts}
        return tuple(sorted((self._settled.silent & concerned) | (self._late if change.facts else frozenset())))

    def _update_passes(self, status: Status) -> None:
        """Update which passes exist and where the engine allows each. A node gets its page before any grant: without a
        page, what a process there submits would carry no pass."""
        self._passes.note_use(status, self._state_store.pass_of)
        with self._lock:
            for key, issued in self._passes.issued.items():
                if self._dirty or key not in self._allowed:
                    self._allowed[key] = nodes_allowed(self._engine, issued.rule)
            keep = {PLAIN.key, *self._placing.groups.passes()}
            for key in self._passes.retire(status, keep, self._names_carried):
                del self._allowed[key]
                self._wishes = {each: wish for each, wish in self._wishes.items() if wish.admits.key != key}
                self._dirty = True
        if self._pages.missing({id: row.ip for id, row in status.nodes.items()}):
            self._announce(self._passes.away())

    def _names_carried(self) -> set[str] | None:
        """Names that pending work carries; None if Ray may not list all of it."""
        tasks = self._placing.store.names_of_waiting_tasks()
        if tasks is None or len(self._status.pending) >= SHAPES_LISTED_MAX:
            return None
        return tasks | self._tables.names_of_waiting_actors()

    def _write_down_passes(self) -> None:
        for issued in self._passes.issued.values():
            if self._state_store.pass_of(issued.rule.key) != (issued.rule, issued.current):
                self._state_store.keep_pass(issued.rule, issued.current)

    # -- the page

    def page_text(self) -> str:
        """The current page, for a process that cannot read its node's file."""
        return self._page.text()

    def _announce(self, away: dict[str, list[str]]) -> None:
        self._write_down_passes()
        with self._lock:
            page = self._new_page(away)
            node_ips = {id: row.ip for id, row in self._status.nodes.items()}
            stale = self._pages.missing(node_ips)
            self._dirty = False
            if not stale and page == replace(self._page, count=page.count):
                return
            self._page = replace(page, count=self._page.count + 1)
        late = frozenset(self._pages.write(self._page, node_ips))
        for node_id in late - self._late:
            self._state_store.record(EventKind.UNHEARD, node_id, "did not confirm the page in time")
        self._late = late

    def _new_page(self, away: dict[str, list[str]]) -> Page:
        nodes = self._engine.nodes
        tainted = {id: ", ".join(map(str, node.taints)) for id, node in nodes.items() if node.taints}
        drained = {id: "draining" for id, node in nodes.items() if node.draining}
        closed = self._placing.closed()
        if (tainted or drained or closed) and not self._state_store.marked("bound"):
            self._state_store.mark("bound", "yes")
        tiers = self._page.tiers
        if self._dirty:
            tiers = {key: self._tiers(wish) for key, wish in self._all_wishes().items()}
            tiers = {key: found for key, found in tiers.items() if found or key in self._wishes}
        return Page(
            bound=bool(self._state_store.marked("bound")),
            grants=self._grants is not None,
            policy=self._policy() if self._can_keep(self._policy()) else "",
            solves=self._engine.solver is not None,
            generations={key: issued.current for key, issued in self._passes.issued.items()},
            slots=self._placing.slots.generations,
            tiers=tiers,
            only={} if self._grants else self._bindings(),
            rare={rare_resource(rare): rare for rare in self._cluster.rare},
            tainted={**drained, **tainted},
            late=sorted(self._passes.late),
            away=self._with_slots(away),
            evict=self._due(),
        )

    def _bindings(self) -> dict[str, list[dict[str, str]]]:
        rules = {key: issued.rule.selector for key, issued in self._passes.issued.items()}
        return {key: binding(rules[key], ids, self._engine.nodes) for key, ids in self._allowed.items() if key in rules}

    def _with_slots(self, away: Mapping[str, list[str]]) -> dict[str, list[str]]:
        found = {node: list(names) for node, names in away.items()}
        for node, name in self._placing.slots.pools.withdrawn():
            found.setdefault(node, []).append(name)
        return found

    def _due(self) -> dict[str, dict[str, tuple[float, float]]]:
        due = self._evictions.due(self._engine, self._passes.issued.values(), self._status, self._allowed)
        for node, name in self._placing.evicted_names():
            due.setdefault(node, {})[name] = (0.0, 0.0)
        return due

    def _all_wishes(self) -> dict[str, Wish]:
        plain = {key: Wish(issued.rule) for key, issued in self._passes.issued.items()}
        return {**plain, **self._wishes}

    def _tiers(self, wish: Wish) -> list[list[str]]:
        """Nodes to try first, best first; empty if all are equally good."""
        choices = wish.choices or (wish.admits.selector,)
        ask = Ask(
            "ranking", tuple(Choice(selector=each) for each in choices), wish.admits.tolerations, prefers=wish.prefers
        )
        tiers = self._engine.tiers(ask)
        if len(tiers) < 2:
            return []
        return [list(tier[:TIER_NODES_MAX]) for tier in tiers[: TIERS_MAX - 1]]

    # -- the default policy

    def _policy(self) -> str:
        """The cluster's default policy: the one that its head was started with, else the one a program chose; "" for
        none."""
        return str(self._cluster.policy or self._state_store.marked("policy"))

    def _can_keep(self, policy: str) -> bool:
        """Whether this policy can be the default: work must not fail because of it."""
        is_flow = bool(policy) and PolicyName(policy).in_batches
        return self._grants is not None and (self._engine.solver is not None or not is_flow)

    def choose_policy(self, policy: PolicyName) -> None:
        """Set the default policy of a cluster that has none. It returns after a whole round, when every node knows
        it."""
        if policy.in_batches:
            solver.needed()
        with self._lock:
            known = self._policy()
            if known and known != policy:
                raise Invalid(
                    f"this cluster's default policy is {known!r} and cannot change to {policy.value!r} while it runs; "
                    f"set a policy on the work itself, for example .options(policy={policy.value!r})"
                )
            if not known:
                self._state_store.mark("policy", policy.value)

    def _ended_jobs(self) -> list[Fact]:
        """Remove taints that were set for a job that has ended. The engine removes taints whose duration has passed."""
        ends = [end for end in self._engine.taint_ends if end.job]
        if not ends or time.monotonic() - self._last_jobs < JOBS_S:
            return []
        self._last_jobs, jobs = time.monotonic(), self._tables.live_jobs()
        return [
            NodeUntainted(end.node, end.key, Effect(end.effect), f"job {end.job} has ended")
            for end in ends
            if end.job not in jobs
        ]

    # -- changes by users

    def _submit(self, *facts: Fact) -> tuple[str, ...]:
        """Queue the facts and wait until they hold everywhere. Returns the nodes that did not answer."""
        change = QueuedChange(facts)
        with self._lock:
            self._engine.fork().apply(*facts)  # invalid facts raise here, before anything is stored
            self._changes.append(change)
        self._wake.set()
        change.done.wait()
        if change.error is not None:
            kind = Unwritable if isinstance(change.error, Unwritable) else Invalid
            raise kind(f"the controller could not make the change: {change.error}") from None
        return change.unconfirmed

    def carry_out(self, changes: Sequence[NodeChange]) -> tuple[str, ...]:
        """Change nodes. When this returns, the change holds everywhere except on the returned nodes, which do not
        answer."""
        nodes = {change.node: self._engine.nodes[change.node] for change in changes}
        for change in changes:
            if change.draining is not None:
                self._evictions.keep_rate(change.node, change.rate if change.draining else 0.0)
        now = self._cluster.now()
        unconfirmed = self._submit(*(fact for change in changes for fact in change.facts(nodes[change.node], now)))
        for id in unconfirmed:
            self._state_store.record(EventKind.UNCONFIRMED, id, "does not answer; the call is repeated until it does")
        return unconfirmed

    def receive(self, messages: Iterable[Message]) -> None:
        """Receive messages that no process waits for, in order. Whatever must survive is stored when this returns. A
        message may arrive twice, because its sender does not know whether a controller that died had received it."""
        for kind, many in groupby(messages, key=itemgetter(0)):
            if kind not in MESSAGE_KINDS:
                raise Invalid(f"the controller does not know the message {kind!r}; use the head's version of stead")
            getattr(self, kind)([item for _, item in many])

    def again(self, method: str, given: Sequence[Any], named: Mapping[str, Any]) -> Any:
        """Repeat a call that the previous controller may have carried out."""
        with called_again():
            return getattr(self, method)(*given, **named)

    def holds(self, reports: Iterable[tuple[str, str]]) -> None:
        """Workers report that a runtime environment exists on their node."""
        for node, digest in reports:
            known = self._engine.nodes.get(node)
            key = f"{LABEL}{digest}"
            if known is not None and key not in known.labels:
                old = [each for each in known.labels if each.startswith(LABEL)]
                gone = tuple(old[: max(0, len(old) - LABELS_MAX + 1)])
                with self._lock:
                    self._changes.append(QueuedChange((NodeLabelled(node, Labels({key: "true"}), gone),)))
        self._wake.set()

    def interrupted(self, reports: Iterable[tuple[str, Sequence[str]]]) -> None:
        """Workers report that a task ended that was interrupted, with their node and what it held."""
        for node, names in reports:
            self._placing.interrupted_ended(node, names)
        self._wake.set()

    def introduce(self, wishes: Iterable[Wish], for_group: bool = False) -> None:
        """Add the rules of submissions. They are stored first, because the submissions do not wait."""
        wishes = list(wishes)
        for wish in wishes:
            if self._state_store.pass_of(wish.admits.key) is None:
                self._state_store.keep_pass(wish.admits, 0)
        with self._lock:
            self._heard_of += [(wish, for_group) for wish in wishes]
        self._wake.set()

    def prepare_group(self, wish: Wish) -> None:
        """Make a pass feasible on every node before a group asks for it. Ray does not retry a group that no node could
        ever hold, but it retries one that waits for free resources."""
        self.introduce([wish], for_group=True)
        self._submit()

    def _learn(self, heard_of: Sequence[tuple[Wish, bool]]) -> None:
        for wish, for_group in heard_of:
            key = wish.admits.key
            if key not in self._passes.issued:
                self._passes.issue(*(self._state_store.pass_of(key) or (wish.admits, 0)))
                self._dirty = True
            else:
                self._passes.issue(wish.admits)
            if for_group:
                self._passes.issued[key].everywhere = True
            if wish.key != key and wish.key not in self._wishes:
                self._wishes[wish.key] = wish
                self._dirty = True
        for key in list(self._wishes)[:-WISHES_MAX]:  # submissions that still need it introduce it again
            del self._wishes[key]
            self._dirty = True

    # -- work that the engine places

    def register(self, arrived: Sequence[Registered]) -> None:
        """Add work that the engine places. It is stored when this returns."""
        self._placing.register(arrived)

    def want_slots(self, program: str, number: int, shapes: Sequence[SlotShape], counts: Mapping[str, int]) -> None:
        """A program has submitted tasks that the engine places. Their shapes are stored when this returns."""
        self._placing.want_slots(program, number, shapes, counts)

    def register_group(self, asked: GroupAsked) -> None:
        """Add a placement group. When this returns, its passes are granted everywhere."""
        rules = {rule.key: rule for rules in asked.passes for rule in rules}
        with self._lock:
            nodes = set(self._engine.nodes)
            ready = all(key in self._page.generations and self._allowed.get(key) == nodes for key in rules)
        if not ready:
            self.introduce([Wish(rule) for rule in rules.values()], for_group=True)
            self._submit()
        self._placing.register_group(asked)

    def end_group(self, id: str) -> None:
        self._placing.end_group(id)
        self._desk.expire_snapshot()

    # -- the desk

    def await_node(self, id: str) -> None:
        """Wait for a node that may have just joined: read Ray's tables once more, and wait for its amounts."""
        end = time.monotonic() + JOINS_S
        self._submit()
        while id in self._status.nodes.keys() - self._engine.nodes.keys() and time.monotonic() < end:
            self._submit()

    def desk(self, what: str, given: Sequence[Any]) -> Any:
        """Answer a question about the cluster, or change it."""
        if what not in METHODS:
            raise Invalid(f"the desk has no method {what!r}")
        return getattr(self._desk, what)(*given)

    # -- questions from processes

    def hello(self) -> dict[str, Any]:
        """The controller's version. The program decides whether it is compatible."""
        versions = {"stead": version("stead"), "protocol": PROTOCOL, "ray": ray.__version__}
        return {**versions, "pid": os.getpid(), "grants": self._grants is not None, "policy": self._policy()}

    def admission(self, what: str, given: Sequence[Any]) -> Any:
        """Which nodes would accept work that is about to be submitted."""
        return getattr(self._admission, what)(*given)

    def registered_ids(self) -> list[str]:
        """Ids of all unfinished work that the engine places: actors, groups and slots of tasks."""
        return self._placing.ids()

    def settled(self) -> int:
        """Wait for one whole round, and return the count of the current page."""
        self._submit()
        return self._page.count

    # -- deadlines

    def watch(self, timed: Sequence[Timed]) -> None:
        self._deadlines.watch(timed)

    def started(self, ids: Sequence[str]) -> None:
        self._deadlines.started(ids)

    def overdue(self, ids: Sequence[str]) -> list[str]:
        """The work among these that has not started. Its owner reports that the deadline has passed, and ends it."""
        self._deadlines.await_reports()
        return [id for id in ids if self._deadlines.refuse(id)]

    def refusal(self, id: str) -> str | None:
        """Why work was refused at its deadline."""
        found = self._state_store.timed_of(id)
        return found.refused if found else None

    def evicts(self, id: str, node: str, is_actor: bool, names: Sequence[str] = ()) -> bool:
        """A worker that holds these names asks whether to evict its work now because of a no-execute taint, or for
        other work. In the first case, write an event."""
        is_preempted = self._placing.interrupts(node, names)
        if is_preempted is not None:
            return is_preempted
        if not self._evictions.admits_one(node):
            return False
        if is_actor:
            self._placing.store.spare_restarts(node)
        with self._lock:
            self._evictions.report(id, node, self._engine)
        return True

    def leaving(self, node: str, name: str) -> None:
        """A worker reports that it is leaving a node that its name was withdrawn from."""
        if name.startswith(SLOT):
            self._wake.set()
        elif node not in self._allowed.get((read_name(name) or ("", 0))[0], ()):
            for _ in range(SQUEEZERS):
                threading.Thread(target=self._passes.squeeze, args=(node, name), daemon=True).start()
