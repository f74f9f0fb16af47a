"""The controller on Ray: one named, detached actor on the head node that holds the engine.

Rule: one thread changes things, in rounds (`_round`): read Ray's tables, hear, decide, write down, grant, announce,
and only then answer. Every other thread of the actor only queues a change and waits, or reads: under the lock, or what
the last round left. After a kill the journal and the book have all that was acknowledged; Ray's tables have the rest.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import ray

from stead import solver
from stead.asks import Ask, Choice, PolicyName
from stead.controller import Controller
from stead.engine import Settings
from stead.engine.facts import (
    Fact,
    NodeLabelled,
    NodeUntainted,
)
from stead.errors import Invalid, Unwritable
from stead.journal import Superseded
from stead.labelling import Labels
from stead.operate.changes import NodeChange, told
from stead.operate.views import TaintEnd
from stead.ray import grants, submission
from stead.ray.agents import Pages
from stead.ray.answers import Answers
from stead.ray.book import GroupAsked, Registered, SlotShape, Timed
from stead.ray.cluster import RayCluster
from stead.ray.compile import Pass, Wish
from stead.ray.desk import METHODS, RayDesk, called_again, is_called_again
from stead.ray.environments import LABEL, LABELS_MAX
from stead.ray.evictions import Evictions
from stead.ray.gcs import KeyValues
from stead.ray.marks import rare_resource
from stead.ray.mirror import Mirror
from stead.ray.native import binding
from stead.ray.page import SLOT, Page, open_folder, read_name
from stead.ray.passes import Passes, Settled
from stead.ray.patience import Deadlines, WaitingWork
from stead.ray.placing import Placing
from stead.ray.plugs import GroupPlugs
from stead.ray.process import be_a_daemon, collect_no_more_of_this
from stead.ray.readiness import Readiness, when_ready
from stead.ray.registrar import Message
from stead.ray.stores import Stores
from stead.ray.tables import Status, Tables
from stead.taints import TOLERATE_ALL, Effect

ROUND_S, QUICK_S, MIRROR_S, START_MAX_S = 0.25, 0.03, 2.0, 5.0
PLAIN = Pass()
SETTINGS = Settings(patience=None)
"""Nodes are not held for late work: that would shut them to work that Ray places, which nobody asked for."""

ANY = (TOLERATE_ALL,)
SQUEEZERS = 3
TIERS_MAX, TIER_NODES_MAX, WISHES_MAX = 8, 128, 64
SHAPES_MAX = 100
"""A raylet lists no more kinds of waiting work than this."""

HEARD = frozenset({"register", "introduce", "watch", "started", "holds"})
"""What `hear` takes: methods with a list of items."""

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Change:
    """Facts that someone asked for, and the moment at which they hold everywhere."""

    facts: tuple[Fact, ...] = ()
    done: threading.Event = field(default_factory=threading.Event)
    error: BaseException | None = None
    unconfirmed: tuple[str, ...] = ()  # nodes that did not answer; they are asked again until they do


@when_ready
class ControllerActor(Answers):
    def __init__(self) -> None:
        submission.exempt_this_process()
        be_a_daemon()
        self._lock = threading.RLock()
        self._wake = threading.Event()
        self._changes: list[Change] = []
        self._heard_of: list[tuple[Wish, bool]] = []
        self._wishes: dict[str, Wish] = {}
        self._page, self._status = Page(), Status({}, ())
        self._dirty, self._last_jobs = True, 0.0
        self._allowed: dict[str, set[str]] = {}
        self.readiness = Readiness()
        threading.Thread(target=self._run, name="stead-rounds", daemon=True).start()
        self.readiness.wait()

    # -- the one thread that changes things

    def _run(self) -> None:
        self.readiness.opening()
        pause = ROUND_S
        while not self._start():
            time.sleep(pause)
            pause = min(2 * pause, START_MAX_S)
        collect_no_more_of_this()
        self.readiness.ready()
        while True:
            pause, batch = QUICK_S if self._unsettled else ROUND_S, self._placing.batch_due_s
            self._wake.wait(pause if batch is None else min(pause, batch))
            self._wake.clear()
            try:
                self._round()
            except Exception as error:
                if isinstance(error, Superseded | Unwritable) or self._controller.has_failed:
                    # Superseded: Ray has started another controller, so it has given up on this process. Else something
                    # could not be written, so it must not be done: the next process starts from what is written.
                    log.exception("the controller ends itself, to be started again")
                    os._exit(1)
                log.exception("a round failed; the next one tries again")
                time.sleep(ROUND_S)

    def _start(self) -> bool:
        """Open the files and go around once. Whoever calls meanwhile is told what keeps it from that."""
        stores: Stores | None = None
        try:
            worker = ray._private.worker.global_worker
            folder = open_folder(worker.node.get_session_dir_path())
            stores = Stores(folder, SETTINGS, KeyValues(worker.gcs_client))
            self._open(stores, folder)
            self._round()
            stores.tell()
        except Superseded:
            os._exit(1)
        except Exception as error:
            log.exception("the controller cannot start; it tries again")
            self.readiness.failed(error)
            if stores is not None:
                stores.close()
            return False
        return True

    def _open(self, stores: Stores, folder: Path) -> None:
        worker = ray._private.worker.global_worker
        self._tables = Tables(worker.gcs_client.address)
        self._stores, journal, self._book = stores, stores.journal, stores.book
        self._desk = RayDesk(self, folder, worker.gcs_client.address)
        self._placing = Placing(worker.gcs_client.address, self._book, self._tables, self._wake.set)
        self._cluster = RayCluster(self._placing)
        self._controller = Controller.resumed(self._cluster, journal, stores.engine, self._desk.tally)
        self._engine = self._controller.engine
        self._grants = grants.detect(worker.gcs_client.address)
        self._passes = Passes(self._grants, GroupPlugs(self._tables.groups), self._tables.status, journal.check)
        home = worker.core_worker.get_current_node_id().hex()
        self._pages = Pages(folder.parent, worker.node_ip_address, home, self._tables.raylets)
        # Pages are told apart by their count; a new head does not know how many there were, but not one a second.
        self._page = replace(self._page, count=self._pages.last_count or (int(time.time()) if stores.news else 0))
        self._deadlines = Deadlines(self._book, self._tables, self.why)
        self._waiting = WaitingWork(self._book, self.ask_of_demand)
        self._evictions = Evictions(self._book, self._tables, self._placing.placed_at, self._placing.decide_again)
        self._mirror, self._mirrored = Mirror(self.rule_of), 0.0
        self._unsettled, self._settled, self._late = 0, Settled(), frozenset[str]()
        self._passes.issue(*(self._book.pass_of(PLAIN.key) or (PLAIN, 0)))
        status = self._tables.status()
        self._passes.adopt(status, self._book.pass_of)
        self._placing.open(self._engine, self._passes, self._grants, journal.check, status, home)

    def _round(self) -> None:
        """Once around. The order is the promise: written down before it is done, done before it is answered."""
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
                    self._cluster.hear(*change.facts)
                ended = self._ended_taints()
                self._cluster.hear(*(NodeUntainted(end.node, end.key, Effect(end.effect)) for end, _ in ended))
                before, closed = self._engine.nodes, self._placing.closed()
                self._cluster.hear(*self._placing.facts(status))
                self._controller.step()
                self._placing.carry_out(status, self._engine.nodes != before)
                self._dirty |= self._placing.closed() != closed
                self._forget(ended)
                self._dirty |= self._engine.nodes != before
                self._status, self._seen = status, (self._engine.nodes, status)
            self._mind_passes(status)
            self._settled = self._passes.settle(
                status, self._allowed, self._announce, bool(changes), self._pages.has_page
            )
            self._unsettled = self._settled.unsettled
            self._placing.grant_slots(status)
            self._placing.groups.look_again(status, self._allowed, self._fits)
            self._unsettled += self._placing.is_unsettled
            self._write_down_passes()
            self._waiting.look(status, self._placing.fork)
            self._deadlines.mind_orphans()
            self._evictions.carry_out(self._page.evict, self._engine.nodes)
            self._mirror_demand(status)
            self._stores.mind_copy(self._engine)
        except BaseException as error:
            for change in changes:
                change.error = error
            raise
        finally:
            for change in changes:
                change.unconfirmed = self._unconfirmed(change)
                change.done.set()

    def _unconfirmed(self, change: Change) -> tuple[str, ...]:
        """Of the nodes that a change concerns, those that did not answer, and nodes that did not confirm the page."""
        concerned = {getattr(fact, "node", "") for fact in change.facts}
        return tuple(sorted((self._settled.silent & concerned) | (self._late if change.facts else frozenset())))

    def _mirror_demand(self, status: Status) -> None:
        if time.monotonic() - self._mirrored > MIRROR_S:
            self._mirrored = time.monotonic()
            try:
                self._mirror.tell(status, self._placing.wanted())
            except Exception:  # an autoscaler's trouble must not hold up a taint
                log.exception("the autoscaler could not be told what waits")

    def _mind_passes(self, status: Status) -> None:
        """Which passes there are, and where each is allowed today: the engine's word. A node that has no page yet gets
        it before any grant: what a process there submits would carry no pass."""
        self._passes.note_use(status, self._book.pass_of)
        with self._lock:
            for key, issued in self._passes.issued.items():
                if self._dirty or key not in self._allowed:
                    self._allowed[key] = self._nodes_for(issued.rule)
            keep = {PLAIN.key, *self._placing.groups.passes()}
            for key in self._passes.retire(status, keep, self._names_carried):
                del self._allowed[key]
                self._wishes = {each: wish for each, wish in self._wishes.items() if wish.admits.key != key}
                self._dirty = True
        if self._pages.missing({id: row.ip for id, row in status.nodes.items()}):
            self._announce(self._passes.away())

    def _names_carried(self) -> set[str] | None:
        """Names that waiting work carries; None if some of it may not be listed."""
        tasks = self._placing.store.names_of_waiting_tasks()
        if tasks is None or len(self._status.pending) >= SHAPES_MAX:
            return None
        return tasks | self._tables.names_of_waiting_actors()

    def _write_down_passes(self) -> None:
        for issued in self._passes.issued.values():
            if self._book.pass_of(issued.rule.key) != (issued.rule, issued.current):
                self._book.keep_pass(issued.rule, issued.current)

    # -- the page

    def page_text(self) -> str:
        """The page that stands, for a process that cannot read its node's."""
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
            self._book.add_event(time.time(), "unheard", node_id, "the node did not confirm the page in time")
        self._late = late

    def _new_page(self, away: dict[str, list[str]]) -> Page:
        nodes = self._engine.nodes
        tainted = {id: ", ".join(map(str, node.taints)) for id, node in nodes.items() if node.taints}
        drained = {id: "draining" for id, node in nodes.items() if node.draining}
        closed = self._placing.closed()
        if (tainted or drained or closed) and not self._book.marked("bound"):
            self._book.mark("bound", "yes")
        tiers = self._page.tiers
        if self._dirty:
            tiers = {key: self._tiers(wish) for key, wish in self._all_wishes().items()}
            tiers = {key: found for key, found in tiers.items() if found or key in self._wishes}
        return Page(
            bound=bool(self._book.marked("bound")),
            grants=self._grants is not None,
            policy=self._policy() if self._can_keep(self._policy()) else "",
            solves=self._engine.solver is not None,
            generations={key: issued.current for key, issued in self._passes.issued.items()},
            slots=self._placing.slots.generations,
            tiers=tiers,
            only={} if self._grants else self._bindings(),
            rare={rare_resource(rare): rare for rare in self._cluster.rare},
            tainted={**drained, **tainted},
            away=self._with_slots(away),
            evict=self._due(),
        )

    def _bindings(self) -> dict[str, list[dict[str, str]]]:
        rules = {key: issued.rule.selector for key, issued in self._passes.issued.items()}
        return {key: binding(rules[key], ids, self._engine.nodes) for key, ids in self._allowed.items() if key in rules}

    def _with_slots(self, away: Mapping[str, list[str]]) -> dict[str, list[str]]:
        slots = by_node(self._placing.slots.pools.withdrawn())
        return {node: [*away.get(node, []), *slots.get(node, [])] for node in [*away, *(slots.keys() - away.keys())]}

    def _due(self) -> dict[str, dict[str, tuple[float, float]]]:
        due = self._evictions.due(self._engine, self._passes.issued.values(), self._status, self._allowed)
        for node, name in self._placing.evicted_names():
            due.setdefault(node, {})[name] = (0.0, 0.0)
        return due

    def _all_wishes(self) -> dict[str, Wish]:
        plain = {key: Wish(issued.rule) for key, issued in self._passes.issued.items()}
        return {**plain, **self._wishes}

    def _tiers(self, wish: Wish) -> list[list[str]]:
        """Nodes to be tried first, best first; nothing where all are alike."""
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
        """The cluster's default policy: what its head was started with, else what a program chose; "" for none."""
        return str(self._cluster.policy or self._book.marked("policy"))

    def _can_keep(self, policy: str) -> bool:
        """Whether work that says nothing may be given this policy: it must not fail for it."""
        is_flow = bool(policy) and PolicyName(policy).in_batches
        return self._grants is not None and (self._engine.solver is not None or not is_flow)

    def choose_policy(self, policy: PolicyName) -> None:
        """The default policy of a cluster that has none yet; a whole round later every node knows it."""
        if policy.in_batches:
            solver.needed()
        with self._lock:
            known = self._policy()
            if known and known != policy:
                raise Invalid(
                    f"this cluster's default policy is {known!r} and cannot become {policy.value!r} while it runs; "
                    f"work may say its own, for example .options(policy={policy.value!r})"
                )
            if not known:
                self._book.mark("policy", policy.value)

    # -- ends of taints

    def _ended_taints(self) -> list[tuple[TaintEnd, str]]:
        """Taints whose end has come, and why; also what is left of those whose node is gone."""
        now, ended = time.time(), list[tuple[TaintEnd, str]]()
        ends = self._book.taint_ends()
        jobs: set[str] | None = None
        if any(end.job for end in ends) and now - self._last_jobs > 1.0:
            self._last_jobs, jobs = now, self._tables.live_jobs()
        for end in ends:
            if end.node not in self._engine.nodes and end.node not in self._status.nodes:
                ended.append((end, "its node is gone"))
            elif end.until is not None and end.until <= now:
                ended.append((end, "its time is over"))
            elif jobs is not None and end.job and end.job not in jobs:
                ended.append((end, f"job {end.job} has ended"))
        return ended

    def _forget(self, ended: Sequence[tuple[TaintEnd, str]]) -> None:
        """Once the journal has it: a kill in between must not leave a taint without its end."""
        for end, why in ended:
            self._book.forget_taint(end.node, end.key, end.effect)
            self._book.add_event(time.time(), "untainted", end.node, f"{end.key} is gone: {why}")

    # -- changes that people ask for

    def _submit(self, *facts: Fact) -> tuple[str, ...]:
        """Queue the facts and wait until they hold everywhere but on the nodes that are returned: those hang."""
        change = Change(facts)
        with self._lock:
            self._engine.fork().apply(*facts)  # nonsense is refused here, in words, before anything is written
            self._changes.append(change)
        self._wake.set()
        change.done.wait()
        if change.error is not None:
            kind = Unwritable if isinstance(change.error, Unwritable) else Invalid
            raise kind(f"the controller could not carry it out: {change.error}") from None
        return change.unconfirmed

    def carry_out(self, changes: Sequence[NodeChange]) -> tuple[str, ...]:
        """Change nodes; it holds everywhere when this returns, but for nodes that hang, which it names. Whose a taint
        is and when it ends is written down before it is set: a kill in between leaves an end without a taint, never a
        taint without its end."""
        nodes, now = {change.node: self._node(change.node) for change in changes}, time.time()
        for change in changes:
            until = None if change.for_s is None else now + change.for_s
            whose = (now, until, change.until_job, change.owner)
            for taint in change.taints:
                self._book.keep_taint(TaintEnd(change.node, taint.key, taint.effect, *whose))
            if change.draining is not None:
                self._evictions.keep_rate(change.node, change.rate if change.draining else 0.0)
        facts = [fact for change in changes for fact in change.facts(nodes[change.node])]
        unconfirmed = self._submit(*facts)
        for fact in facts:
            if isinstance(fact, NodeUntainted) and fact.effect is not None:
                self._book.forget_taint(fact.node, fact.key, fact.effect)
        for change in changes:
            self._forget_leftovers(change)
            for kind, text in told(change, nodes[change.node]):
                self._book.add_event(time.time(), kind, change.node, text)
        for id in unconfirmed:
            self._book.add_event(time.time(), "unconfirmed", id, "the node does not answer; it is asked until it does")
        return unconfirmed

    def _forget_leftovers(self, change: NodeChange) -> None:
        """Ends of taints that the controller removed before it was killed, so that this call found them gone."""
        if is_called_again():
            there = {taint.key for taint in self._engine.nodes[change.node].taints}
            for end in self._book.taint_ends():
                if end.node == change.node and end.key in {each.key for each in change.untaints} - there:
                    self._book.forget_taint(end.node, end.key, end.effect)

    def hear(self, messages: Iterable[Message]) -> None:
        """What processes tell without waiting for it, in order; what has to be kept is written down when this returns.
        Any of it may come twice: its sender does not know whether a controller that died had heard it."""
        for kind, many in groupby(messages, key=itemgetter(0)):
            if kind not in HEARD:
                raise Invalid(f"a controller cannot be told {kind!r}; stead is of another version there than here")
            getattr(self, kind)([item for _, item in many])

    def again(self, method: str, given: Sequence[Any], named: Mapping[str, Any]) -> Any:
        """A call that the controller before this one was given too, and may have carried out."""
        with called_again():
            return getattr(self, method)(*given, **named)

    def holds(self, said: Iterable[tuple[str, str]]) -> None:
        """Workers say that a runtime environment exists on their node."""
        for node, digest in said:
            known = self._engine.nodes.get(node)
            key = f"{LABEL}{digest}"
            if known is not None and key not in known.labels:
                old = [each for each in known.labels if each.startswith(LABEL)]
                gone = tuple(old[: max(0, len(old) - LABELS_MAX + 1)])
                with self._lock:
                    self._changes.append(Change((NodeLabelled(node, Labels({key: "true"}), gone),)))
        self._wake.set()

    def introduce(self, wishes: Iterable[Wish], for_group: bool = False) -> None:
        """Learn what submissions ask for; they do not wait for an answer, so it is written down first."""
        wishes = list(wishes)
        for wish in wishes:
            if self._book.pass_of(wish.admits.key) is None:
                self._book.keep_pass(wish.admits, 0)
        with self._lock:
            self._heard_of += [(wish, for_group) for wish in wishes]
        self._wake.set()

    def prepare_group(self, wish: Wish) -> None:
        """Make a pass feasible on every node before a group asks for it: Ray never looks again at a group that no
        node could ever hold, but it does at one that has to wait for amounts to become free."""
        self.introduce([wish], for_group=True)
        self._submit()

    def _learn(self, heard_of: Sequence[tuple[Wish, bool]]) -> None:
        for wish, for_group in heard_of:
            key = wish.admits.key
            if key not in self._passes.issued:
                self._passes.issue(*(self._book.pass_of(key) or (wish.admits, 0)))
                self._dirty = True
            else:
                self._passes.issue(wish.admits)
            if for_group:
                self._passes.issued[key].everywhere = True
            if wish.key != key and wish.key not in self._wishes:
                self._wishes[wish.key] = wish
                self._dirty = True
        for key in list(self._wishes)[:-WISHES_MAX]:  # whoever still asks for it introduces it again
            del self._wishes[key]
            self._dirty = True

    # -- work that is placed singly

    def register(self, arrived: Sequence[Registered]) -> None:
        """Take on work for which the engine chooses the node; written down when this returns."""
        self._placing.register(arrived)

    def want_slots(self, program: str, number: int, shapes: Sequence[SlotShape], counts: Mapping[str, int]) -> None:
        """A program has submitted tasks for which the engine chooses the node; their shapes are written down when this
        returns."""
        self._placing.want_slots(program, number, shapes, counts)

    def register_group(self, asked: GroupAsked) -> None:
        """Take on a placement group; its passes stand everywhere when this returns."""
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

    # -- the desk

    @property
    def placing(self) -> Placing:
        return self._placing

    @property
    def tables(self) -> Tables:
        return self._tables

    def locked(self) -> threading.RLock:
        return self._lock

    def desk(self, what: str, given: Sequence[Any]) -> Any:
        """Whatever people ask of a cluster, or change on it."""
        if what not in METHODS:
            raise Invalid(f"a desk has no {what!r}")
        return getattr(self._desk, what)(*given)

    def check(self, change: NodeChange) -> None:
        """Refuse what Ray cannot do."""
        for key in (*change.labels, *change.unlabels):
            if key.startswith("ray.io/"):
                raise Invalid(
                    f"label {key!r} cannot change while a node runs, because Ray itself matches it; "
                    f"set it when the node starts, or use a key of your own, for example 'zone'"
                )
        if change.until_job and change.until_job not in self._tables.live_jobs():
            raise Invalid(
                f"until_job {change.until_job!r} is no job that runs; ray.get_runtime_context().get_job_id() tells one"
            )

    def settled(self) -> int:
        """Wait for one whole round, and return the count of the page that stands after it."""
        self._submit()
        return self._page.count

    # -- deadlines

    def watch(self, timed: Sequence[Timed]) -> None:
        self._deadlines.watch(timed)

    def started(self, ids: Sequence[str]) -> None:
        self._deadlines.started(ids)

    def overdue(self, ids: Sequence[str]) -> list[str]:
        """Of these, the work that has not started; its owner says that its deadline has passed, and ends it."""
        self._deadlines.await_reports()
        return [id for id in ids if self._deadlines.refuse(id)]

    def refusal(self, id: str) -> str | None:
        """The explanation of work that was refused at its deadline."""
        found = self._book.timed_of(id)
        return found.refused if found else None

    def evicts(self, id: str, node: str, is_actor: bool) -> bool:
        """A worker asks whether it is to evict its work now, as a no-execute taint says; then that is an event."""
        if not self._evictions.admits_one(node):
            return False
        if is_actor:
            self._placing.store.spare_restarts(node)
        with self._lock:
            known = self._engine.nodes.get(node)
            taints = [str(taint) for taint in known.taints if taint.effect is Effect.NO_EXECUTE] if known else []
        self._book.add_event(time.time(), "evicted", id, f"ended on node {node}: tainted {', '.join(taints)}")
        return True

    def leaving(self, node: str, name: str) -> None:
        """A worker says that it leaves a node that its name was withdrawn from."""
        if name.startswith(SLOT):
            self._wake.set()
        elif node not in self._allowed.get((read_name(name) or ("", 0))[0], ()):
            for _ in range(SQUEEZERS):
                threading.Thread(target=self._passes.squeeze, args=(node, name), daemon=True).start()


def by_node(places: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """(node, name) as names by node."""
    found: dict[str, list[str]] = {}
    for node, name in places:
        found.setdefault(node, []).append(name)
    return found
