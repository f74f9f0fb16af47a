"""Work that Ray places under a pass: why it is pending, its deadlines, and its evictions.

Rule: the engine does not know this work, because no process reports it piece by piece, so its time rules are kept here
and in the processes themselves. Ray lists pending work by kind (amounts and rules), so reasons are reported by kind.
The process that submitted a task measures the time to its deadline and ends it (`submit/connection.py`).
Workers read the page and exit on their own (`submit/workers.py`, `Stays`); the taints define how long they may stay
(`stay_under`). A placement group has no process, so the controller removes it from its nodes. For actors and groups
that the engine places, the engine enforces deadlines and evictions.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import ray

from stead.engine.decisions import DeadlinePassed, Evicted, Refused, Waiting
from stead.engine.engine import Engine
from stead.engine.explain.events import event_of
from stead.engine.explain.explanations import Explanation
from stead.engine.reasons import Reason
from stead.language.asks import Ask
from stead.language.resources import amounts_text
from stead.language.taints import Effect, stay_under
from stead.ray.control.cluster import real_amounts
from stead.ray.control.passes import FULL, Issued
from stead.ray.control.state_store import StateStore
from stead.ray.submit.messages import Timed
from stead.ray.wire.own_names import is_own_group, read_name
from stead.ray.wire.tables import PendingRow, Status, Tables

LOOK_S = 0.5
KINDS_MAX = 50
"""Maximum number of kinds of pending work explained at once. The others follow when these are gone."""

REPORTS_S = 2.0
"""How long after its start the controller refuses no work at a deadline."""

EARLY_MAX = 10_000
SWEEP_S = 10.0

Causes = tuple[tuple[Reason, ...], ...]

ORPHAN_S = 2.0
"""How long after a deadline the controller ends the work, if its owner has not done so."""


Due = Mapping[str, Mapping[str, tuple[float, float]]]
"""By node and by name of a pass: since when it must leave, and how many seconds a holder of the name may stay from
then, or from its own start if that is later."""


class PendingKinds:
    """Writes an event with the reason why each kind of work is pending, once per change of its causes. A change of
    numbers alone is not an event."""

    def __init__(self, state_store: StateStore, ask_of: Callable[[PendingRow, str], Ask]) -> None:
        self._state_store, self._ask_of = state_store, ask_of
        self._looked = 0.0
        self._seen: dict[Any, Causes] = {}
        self._reported: dict[Any, Causes] = {}

    def look(self, status: Status, fork: Callable[[Status], Engine]) -> None:
        """Called regularly. `fork` returns an engine that knows what is in use."""
        if time.monotonic() - self._looked < LOOK_S:
            return
        self._looked = time.monotonic()
        rows = [row for row in status.pending if any(read_name(name) for name in row.resources)]
        seen: dict[Any, Causes] = {}
        engine = fork(status) if rows else None
        for row in rows[:KINDS_MAX]:
            assert engine is not None
            found = engine.explain(self._ask_of(row, "waiting"))
            if found.fits:
                continue  # Ray has not updated it yet
            kind = (tuple(sorted(row.resources.items())), row.labels)
            seen[kind] = causes = tuple(verdict.main_reasons for verdict in found.verdicts)
            # Work may be in Ray's queue for only a moment, so a cause is reported when it is seen twice.
            if self._seen.get(kind) == causes and self._reported.get(kind) != causes:
                self._reported[kind] = causes
                subject = f"work that asks for {amounts_text(real_amounts(row.resources))}"
                event = event_of(Waiting((subject,), found.verdicts), time.time())
                self._state_store.add_event(replace(event, count=row.count))
        self._seen = seen
        self._reported = {kind: causes for kind, causes in self._reported.items() if kind in seen}


class Deadlines:
    """Refuses work that has not started in time. Its owner ends it, or the controller if the owner is gone."""

    def __init__(self, state_store: StateStore, tables: Tables, why: Callable[[Ask], Explanation]) -> None:
        self._state_store, self._tables, self._why = state_store, tables, why
        self._opened = self._swept = time.monotonic()
        self._started_early: OrderedDict[str, None] = OrderedDict()

    def watch(self, timed: Iterable[Timed]) -> None:
        """Add work with a deadline. Ignores work that has started, or that its owner has already reported."""
        now = time.time()
        self._state_store.keep_timed(
            replace(each, ask=replace(each.ask, deadline=now + each.within_s))
            for each in timed
            if self._state_store.timed_of(each.id) is None and each.id not in self._started_early
        )

    def started(self, ids: Iterable[str]) -> None:
        """A worker may report the start of work before its owner reports the deadline."""
        ids = list(ids)
        self._started_early.update(dict.fromkeys(id for id in ids if self._state_store.timed_of(id) is None))
        while len(self._started_early) > EARLY_MAX:
            self._started_early.popitem(last=False)
        self._state_store.forget_timed(ids)

    def await_reports(self) -> None:
        """After a restart, first wait until workers have repeated what they reported to the previous controller."""
        time.sleep(max(0.0, self._opened + REPORTS_S - time.monotonic()))

    def refuse(self, id: str) -> bool:
        """Whether the work is refused: its owner reports it as overdue, and no worker has reported its start."""
        timed = self._state_store.timed_of(id)
        if timed is None:
            return False
        if timed.refused is not None:
            return True
        if timed.kind == "actor":
            row = self._tables.actor(id)
            if row is not None and row.state in ("ALIVE", "RESTARTING", "DEAD"):
                self._state_store.forget_timed([id])
                return False
        why = self._why(timed.ask)
        self._state_store.keep_timed([replace(timed, refused=str(why))])
        refused = Refused(id, DeadlinePassed(timed.ask.deadline or 0.0, why.verdicts))
        self._state_store.add_event(event_of(refused, time.time(), why.names))
        return True

    def end_orphans(self) -> None:
        """Enforce deadlines of detached actors, which can outlive the process that would end them."""
        now = time.time()
        for timed in self._state_store.open_timed():
            if timed.kind == "actor" and timed.ask.deadline is not None and now - timed.ask.deadline > ORPHAN_S:
                row = self._tables.actor(timed.id)
                if row is None:
                    self._state_store.forget_timed([timed.id])  # it ended with its owner
                elif row.name and self.refuse(timed.id):
                    ray.kill(ray.get_actor(row.name, row.namespace))
        if time.monotonic() - self._swept > SWEEP_S:
            self._swept = time.monotonic()
            self._forget_ended()

    def _forget_ended(self) -> None:
        """Forget work that ended with its owner. Detached actors have their own deadline."""
        known = self._state_store.all_timed()
        live = self._tables.live_owners({each.owner for each in known})
        self._state_store.forget_timed(
            each.id for each in known if each.owner not in live and (each.kind == "task" or each.refused is not None)
        )


class Evictions:
    """`placed_at` returns when a group was placed; `again` removes it from its nodes and places it again. The engine
    evicts the groups that it placed (`is_of_engine`)."""

    def __init__(
        self,
        state_store: StateStore,
        tables: Tables,
        placed_at: Callable[[str], float],
        again: Callable[[str], None],
        is_of_engine: Callable[[str], bool],
    ) -> None:
        self._state_store, self._tables, self._placed_at, self._again = state_store, tables, placed_at, again
        self._is_of_engine = is_of_engine
        self._lock = threading.Lock()
        self._next: dict[str, float] = {}

    def keep_rate(self, node: str, per_second: float) -> None:
        """Limit evictions from this node to this many pieces of work per second; 0 is no limit."""
        self._state_store.mark(f"evictions/{node}", f"{per_second:g}" if per_second else "")

    def admits_one(self, node: str) -> bool:
        """Whether the node's rate allows another eviction now. If so, count it."""
        rate = self._state_store.marked(f"evictions/{node}")
        with self._lock:
            now = time.monotonic()
            if rate and self._next.get(node, 0.0) > now:
                return False
            self._next[node] = now + 1.0 / float(rate) if rate else now
            return True

    def due(
        self, engine: Engine, issued: Iterable[Issued], status: Status, allowed: Mapping[str, set[str]]
    ) -> dict[str, dict[str, tuple[float, float]]]:
        """What has to leave. If a pass is no longer allowed, wait until Ray's tables show the withdrawal: work that
        ends before would come back."""
        since = {(end.node, end.key, end.effect): end.since for end in engine.taint_ends}
        passes = list(issued)
        found: dict[str, dict[str, tuple[float, float]]] = {}
        for id, node in engine.nodes.items():
            for taint in node.taints:
                if taint.effect is not Effect.NO_EXECUTE:
                    continue
                at = since[id, taint.key, taint.effect]
                for each in passes:
                    stay = stay_under(taint, each.rule.tolerations)
                    if stay is not None:
                        names = found.setdefault(id, {})
                        total = status.nodes[id].total if id in status.nodes else {}
                        is_allowed = id in allowed.get(each.rule.key, ())
                        for name in each.names:
                            if not is_allowed and total.get(name, 0.0) >= FULL:
                                continue
                            names[name] = min(names.get(name, (at, stay)), (at, stay), key=sum)
        return found

    def carry_out(self, due: Due, engine: Engine) -> None:
        """Evict groups with a bundle on a node where it may not stay."""
        now = time.time()
        over = {node: {name for name, stay in names.items() if sum(stay) <= now} for node, names in due.items()}
        if not any(over.values()):
            return
        for id, group in self._tables.groups().items():
            if is_own_group(group["name"]) or group["state"] != "CREATED" or self._is_of_engine(id):
                continue
            for index, node in group["bundles_to_node_id"].items():
                held = over.get(node, set()) & group["bundles"][index].keys()
                stay = min((due[node][each][1] for each in held), default=0.0)
                if held and self._placed_at(id) + stay <= now:
                    self.report(id, node, engine)
                    self._again(id)
                    break

    def report(self, id: str, node: str, engine: Engine) -> None:
        """Write the event of an eviction from this node."""
        taints = engine.nodes[node].taints if node in engine.nodes else ()
        for taint in [taint for taint in taints if taint.effect is Effect.NO_EXECUTE][:1]:
            self._state_store.add_event(event_of(Evicted(id, node, taint), time.time(), engine.titles))
