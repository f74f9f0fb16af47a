"""The Desk: every question about a cluster and every change to it, for any kind of cluster.

Rule: every answer comes from a snapshot (`Answering`), and every change is written to the audit before it is made
(`LocalDesk`). Clusters differ only in where a snapshot comes from and in how a change is carried out.
"""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol

from stead.engine.engine import Engine
from stead.engine.explain.events import Event
from stead.engine.explain.explanations import Explanation
from stead.engine.facts import AskSubmitted, ClockAdvanced, Fact, GroupSubmitted, NodeJoined
from stead.engine.scaling.decisions import ScaleDecision
from stead.engine.timing.taint_times import TaintEnd
from stead.errors import Invalid, Unwritable
from stead.language.asks import Ask, Group
from stead.language.nodes import Node
from stead.operate.audit import Audit, Author, Entry, entry_json
from stead.operate.cancellation import still_wanted
from stead.operate.changes import Absent, NodeChange, inverse, state_of
from stead.operate.history import Replayed
from stead.operate.lint import Finding, lint
from stead.operate.plans import PlanView, planned
from stead.operate.scale import Reports, ScaleView
from stead.operate.snapshot import Query, Snapshot
from stead.operate.views import GroupView, NodeView, OwnerView, Page, Summary, WorkView, node_json
from stead.operate.what_if import Difference, read_changes, what_if

NODES_MAX = 10_000
"""Maximum number of nodes in one change."""


@dataclass(frozen=True, slots=True)
class Carried:
    """A change that was carried out: the nodes as they are now, its entry in the audit, and the ids of nodes that have
    not confirmed it because they do not answer. The cluster keeps retrying."""

    nodes: tuple[NodeView, ...]
    entry: Entry
    unconfirmed: tuple[str, ...] = ()

    @property
    def node(self) -> NodeView:
        return self.nodes[0]


def carried_json(carried: Carried) -> dict[str, Any]:
    """One node is `node`; several are `nodes`."""
    views = [node_json(view) for view in carried.nodes]
    nodes: dict[str, Any] = {"node": views[0]} if len(views) == 1 else {"nodes": views}
    return {**nodes, "audit": entry_json(carried.entry), "unconfirmed": list(carried.unconfirmed)}


Changes = NodeChange | Sequence[NodeChange]
State = Mapping[str, Any]
"""The part of a node that a change can change, as the audit stores it."""


def listed(changes: Changes) -> list[NodeChange]:
    """One change or several, as a list; an empty list is refused."""
    found = [changes] if isinstance(changes, NodeChange) else list(changes)
    if not found:
        raise Invalid("no node to change; name one, or give a selector that matches a node")
    if len(found) > NODES_MAX:
        raise Invalid(f"a change may have at most {NODES_MAX:,} nodes, not {len(found):,}; narrow the selector")
    return found


class Unanswered(Invalid):
    """The cluster does not answer now; retry later."""


class Desk(Protocol):
    """All that the command line, the REST API and the pages use of a cluster. Every method is thread-safe and raises
    `Invalid`, in one sentence, when it cannot answer or make a change."""

    def summary(self) -> Summary: ...
    def nodes(self, query: Query) -> Page[NodeView]: ...
    def node(self, name: str) -> NodeView: ...
    def labels(self) -> Mapping[str, Mapping[str, Sequence[str]]]: ...
    def work(self, query: Query) -> Page[WorkView]: ...
    def one(self, id: str) -> WorkView: ...
    def groups(self, query: Query) -> Page[GroupView]: ...
    def owners(self, query: Query) -> Page[OwnerView]: ...
    def owner(self, name: str) -> OwnerView: ...
    def events(self, after: int, limit: int) -> Sequence[Event]:
        """At most `limit` events after this one, oldest first; after -n, the last n."""

    def why(self, id: str) -> Explanation: ...
    def why_spec(self, written: Any) -> Sequence[Explanation]:
        """Why each piece of work in a spec would be pending, or where it would be placed; nothing is submitted."""

    def what_if(self, written: Any) -> Difference: ...
    def blast(self, *changes: NodeChange) -> Difference:
        """What these changes of nodes would do together; nothing is changed."""

    def plan(self, written: Any | None) -> PlanView:
        """Which new nodes pending work needs. A document may have kinds of nodes and limits, else those of the
        autoscaler or the cluster count; and more work."""

    def scale(self) -> ScaleView | None:
        """What the autoscaler of the cluster does; None if no autoscaler has reported."""

    def report_scale(self, view: ScaleView, decisions: Sequence[ScaleDecision]) -> None:
        """What an autoscaler sees now, and what it has decided since its last report; decisions become events. At
        least every `REPORT_S` seconds."""

    def lint(self, written: Any | None) -> Sequence[Finding]:
        """What can never match, in a spec or in all pending work."""

    def change(self, changes: Changes, author: Author) -> Carried:
        """Change one node, or several as one change: it is checked on all of them before the first is changed."""

    def undo(self, number: int, author: Author) -> Carried: ...
    def audit(self, after: int, limit: int) -> Sequence[Entry]:
        """Who changed what; `after` and `limit` are as for events."""

    def verify(self) -> int:
        """The number of entries in the audit; refuses if it was tampered with."""

    def replay(self, ask: str = "", at: float | None = None) -> Replayed:
        """Replay a past decision."""


def explained(desk: Desk, id: str) -> Explanation | str:
    """Why work is pending, or a sentence for work that the engine does not place, such as work inside a placed
    group."""
    try:
        return desk.why(id)
    except (Absent, Unanswered):
        raise
    except Invalid as error:
        return str(error)


class Answering:
    """The part of a desk that answers questions, from snapshots, in this process."""

    @abstractmethod
    def snapshot(self) -> Snapshot:
        """The cluster as it is now; two calls may return the same object."""

    def check(self, change: NodeChange, node: Node) -> None:
        """Refuse what cannot be done; a cluster adds its own checks."""
        change.check_on(node)

    def read(self, written: Any, snapshot: Snapshot) -> list[Fact]:
        """The changes and the work in a document; a cluster may read more forms of work."""
        return read_changes(written, snapshot, self.scale)

    def as_carried_out(self, changes: Sequence[Fact], snapshot: Snapshot) -> Sequence[Fact]:
        """What changes of nodes do in this kind of cluster."""
        return changes

    @abstractmethod
    def scale(self) -> ScaleView | None: ...

    def summary(self) -> Summary:
        return self.snapshot().summary

    def nodes(self, query: Query) -> Page[NodeView]:
        return self.snapshot().nodes(query)

    def node(self, name: str) -> NodeView:
        return self.snapshot().node(name)

    def labels(self) -> Mapping[str, Mapping[str, Sequence[str]]]:
        return self.snapshot().labels

    def work(self, query: Query) -> Page[WorkView]:
        return self.snapshot().work(query)

    def one(self, id: str) -> WorkView:
        return self.snapshot().one(id)

    def groups(self, query: Query) -> Page[GroupView]:
        return self.snapshot().groups(query)

    def owners(self, query: Query) -> Page[OwnerView]:
        return self.snapshot().owners(query)

    def owner(self, name: str) -> OwnerView:
        return self.snapshot().owner(name)

    def why(self, id: str) -> Explanation:
        return self.snapshot().why(id)

    def why_spec(self, written: Any) -> Sequence[Explanation]:
        snapshot = self.snapshot()
        found = []
        for item in self._items(written, snapshot):
            still_wanted()
            found.append(snapshot.explain(item))
        return found

    def what_if(self, written: Any) -> Difference:
        snapshot = self.snapshot()
        return what_if(snapshot, self.as_carried_out(self.read(written, snapshot), snapshot))

    def blast(self, *changes: NodeChange) -> Difference:
        snapshot = self.snapshot()
        found: list[Fact] = []
        for change in changes:
            node = snapshot.find(change.node)
            self.check(change, node)
            found += change.facts(node, snapshot.engine.now)
        return what_if(snapshot, self.as_carried_out(found, snapshot))

    def plan(self, written: Any | None = None) -> PlanView:
        return planned(self.snapshot(), written, self.read, self.scale)

    def lint(self, written: Any | None = None) -> Sequence[Finding]:
        snapshot = self.snapshot()
        if written is None:
            return lint(snapshot, (snapshot.engine.item(id) for id in snapshot.engine.waiting))
        return lint(snapshot, self._items(written, snapshot))

    def _items(self, written: Any, snapshot: Snapshot) -> list[Ask | Group]:
        """The work in a spec."""
        if isinstance(written, Mapping) and "changes" in written:
            raise Invalid("a spec of work has no changes; good fields are work and groups")
        facts = self.read(written, snapshot)
        found: list[Ask | Group] = [fact.ask for fact in facts if isinstance(fact, AskSubmitted)]
        found += [fact.group for fact in facts if isinstance(fact, GroupSubmitted)]
        if not found:
            raise Invalid(
                "the spec has no work; give at least one piece, for example work: [{id: train, resources: {CPU: 1}}]"
            )
        return found


class LocalDesk(Answering):
    """The desk of a cluster whose engine is in this process."""

    def __init__(self, audit: Audit | Callable[[], Audit]) -> None:
        """An audit that is opened by a function is opened when it is first used."""
        self._given_audit = audit
        self._changing = threading.Lock()  # one change at a time, so that before and after belong together
        self._scale_reports = Reports()

    @cached_property
    def _audit(self) -> Audit:
        return self._given_audit if isinstance(self._given_audit, Audit) else self._given_audit()

    # -- what each cluster implements

    @abstractmethod
    def carry_out(self, changes: Sequence[NodeChange]) -> Sequence[str]:
        """Carry out all changes. They are in force when this returns, except on nodes that do not answer: returns their
        ids."""

    @abstractmethod
    def now(self) -> float: ...

    @abstractmethod
    def ends(self) -> Iterable[TaintEnd]: ...

    @abstractmethod
    def events(self, after: int, limit: int) -> Sequence[Event]: ...

    @abstractmethod
    def replay(self, ask: str = "", at: float | None = None) -> Replayed: ...

    def scale(self) -> ScaleView | None:
        return self._scale_reports.latest

    def report_scale(self, view: ScaleView, decisions: Sequence[ScaleDecision]) -> None:
        self._scale_reports.add(view, decisions)

    # -- changing

    def change(self, changes: Changes, author: Author) -> Carried:
        with self._changing:
            wanted = listed(changes)
            actions = {change.action for change in wanted}
            return self._change(wanted, author, actions.pop() if len(actions) == 1 else "change")

    def undo(self, number: int, author: Author) -> Carried:
        with self._changing:
            entry = self._audit.entry(number)
            return self._change(inverse(entry, self.snapshot().by_id, self.now()), author, f"undo {number}")

    def _change(self, changes: Sequence[NodeChange], author: Author, action: str) -> Carried:
        """Writes the entry first: if this process dies now, an entry too many is better than a change without one."""
        snapshot = self.snapshot()
        changes = [replace(change, node=snapshot.find(change.node).id) for change in changes]
        nodes = {change.node: snapshot.by_id[change.node] for change in changes}
        for each in changes:
            self.check(each, nodes[each.node])
        ends, now = [*self.ends()], self.now()
        before = {id: state_of(node, ends) for id, node in nodes.items()}
        after = {id: _after(node, ends, changes, now) for id, node in nodes.items()}
        entry = self._audit.add(now, author, action, *_written(before, after))
        try:
            unconfirmed = self.carry_out(changes)
        except Exception:
            left = self.snapshot().by_id  # a part of it may have been done
            states = {id: state_of(left.get(id, node), self.ends()) for id, node in nodes.items()}
            with suppress(Unwritable):  # report why the change failed, not that the audit cannot be written
                self._audit.add(self.now(), author, f"{action} failed", *_written(before, states))
            raise
        made = self.snapshot()
        return Carried(tuple(made.node(id) for id in nodes), entry, tuple(sorted(unconfirmed)))

    def audit(self, after: int = 0, limit: int = 1000) -> Sequence[Entry]:
        return self._audit.entries(after, limit)

    def verify(self) -> int:
        return self._audit.verify()


def _after(node: Node, ends: Iterable[TaintEnd], changes: Sequence[NodeChange], now: float) -> State:
    """The state that the node will have. It does not depend on other nodes."""
    alone = Engine()
    alone.apply(NodeJoined(node), ClockAdvanced(now))
    for change in changes:
        if change.node == node.id:
            alone.apply(*change.facts(alone.nodes[node.id], now))
    new = {(taint.key, taint.effect) for change in changes if change.node == node.id for taint in change.taints}
    set_now = [end for end in alone.taint_ends if (end.key, end.effect) in new]
    return state_of(alone.nodes[node.id], (*ends, *set_now))


def _written(before: Mapping[str, State], after: Mapping[str, State]) -> tuple[str, State, State]:
    """The node and its states before and after, as an audit entry stores them; several nodes as one."""
    if len(before) == 1:
        (node,) = before
        return node, before[node], after[node]
    return "", {"nodes": before}, {"nodes": after}
