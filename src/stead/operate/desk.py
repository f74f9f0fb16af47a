"""The Desk: all that can be asked of a cluster and changed on it, whatever kind of cluster it is.

Rule: every answer comes from a snapshot (`Answering`), and every change is written to the audit before it is answered
(`LocalDesk`). What differs between clusters is only where a snapshot comes from and how a change is carried out.
"""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

from stead.asks import Ask, Group
from stead.engine import Engine
from stead.engine.explain import Explanation
from stead.engine.facts import AskSubmitted, GroupSubmitted, NodeJoined
from stead.errors import Invalid, Unwritable
from stead.node import Node
from stead.operate.audit import Audit, Author, Entry, entry_json
from stead.operate.changes import Conflict, NodeChange, inverse, state_of
from stead.operate.history import Replayed
from stead.operate.leaving import still_wanted
from stead.operate.lint import Finding, lint
from stead.operate.snapshot import Query, Snapshot
from stead.operate.views import Event, GroupView, NodeView, Page, Summary, TaintEnd, WorkView, node_json
from stead.operate.what_if import Difference, read_changes, what_if


@dataclass(frozen=True, slots=True)
class Carried:
    """A change that was carried out: the node as it is now, what the audit says of it, and the ids of nodes that have
    not confirmed it, because they do not answer. The cluster goes on asking them."""

    node: NodeView
    entry: Entry
    unconfirmed: tuple[str, ...] = ()


def carried_json(carried: Carried) -> dict[str, Any]:
    return {
        "node": node_json(carried.node),
        "audit": entry_json(carried.entry),
        "unconfirmed": list(carried.unconfirmed),
    }


class Unanswered(Invalid):
    """The cluster does not answer now; it may later."""


class Desk(Protocol):
    """What the command line, the REST API and the pages know of a cluster. Every method may be called by several
    threads; every one raises `Invalid`, in one sentence, for what cannot be answered or done."""

    def summary(self) -> Summary: ...
    def nodes(self, query: Query) -> Page[NodeView]: ...
    def node(self, said: str) -> NodeView: ...
    def labels(self) -> Mapping[str, Mapping[str, Sequence[str]]]: ...
    def work(self, query: Query) -> Page[WorkView]: ...
    def one(self, id: str) -> WorkView: ...
    def groups(self, query: Query) -> Page[GroupView]: ...
    def events(self, after: int, limit: int) -> Sequence[Event]: ...
    def why(self, id: str) -> Explanation: ...
    def why_spec(self, written: Any) -> Sequence[Explanation]:
        """Why each piece of work of a spec would wait, or where it would go; nothing is submitted."""

    def what_if(self, written: Any) -> Difference: ...
    def blast(self, change: NodeChange) -> Difference:
        """What a change of a node would do; nothing is changed."""

    def lint(self, written: Any | None) -> Sequence[Finding]:
        """What can never match, of a spec or of all that waits."""

    def change(self, change: NodeChange, author: Author) -> Carried: ...
    def undo(self, number: int, author: Author) -> Carried: ...
    def audit(self, after: int, limit: int) -> Sequence[Entry]: ...
    def verify(self) -> int:
        """How many entries the audit has; refuses if it was touched."""

    def replay(self, ask: str = "", at: float | None = None) -> Replayed:
        """A past decision, decided again."""


class Answering:
    """The half of a desk that answers, from snapshots, in this process."""

    @abstractmethod
    def snapshot(self) -> Snapshot:
        """The cluster as it is now; two calls may answer with the same one."""

    def check(self, change: NodeChange, node: Node) -> None:
        """Refuse what cannot be done; clusters add what they cannot do."""
        change.check(node)

    def summary(self) -> Summary:
        return self.snapshot().summary

    def nodes(self, query: Query) -> Page[NodeView]:
        return self.snapshot().nodes(query)

    def node(self, said: str) -> NodeView:
        return self.snapshot().node(said)

    def labels(self) -> Mapping[str, Mapping[str, Sequence[str]]]:
        return self.snapshot().labels

    def work(self, query: Query) -> Page[WorkView]:
        return self.snapshot().work(query)

    def one(self, id: str) -> WorkView:
        return self.snapshot().one(id)

    def groups(self, query: Query) -> Page[GroupView]:
        return self.snapshot().groups(query)

    def why(self, id: str) -> Explanation:
        snapshot = self.snapshot()
        return snapshot.engine.explain(snapshot.work_id(id))

    def why_spec(self, written: Any) -> Sequence[Explanation]:
        snapshot = self.snapshot()
        found = []
        for item in self._items(written, snapshot):
            still_wanted()
            found.append(snapshot.engine.explain(item))
        return found

    def what_if(self, written: Any) -> Difference:
        snapshot = self.snapshot()
        return what_if(snapshot, read_changes(written, snapshot))

    def blast(self, change: NodeChange) -> Difference:
        snapshot = self.snapshot()
        node = snapshot.find(change.node)
        self.check(change, node)
        return what_if(snapshot, change.facts(node))

    def lint(self, written: Any | None = None) -> Sequence[Finding]:
        snapshot = self.snapshot()
        if written is None:
            return lint(snapshot, (snapshot.engine.item(id) for id in snapshot.engine.waiting))
        return lint(snapshot, self._items(written, snapshot))

    def _items(self, written: Any, snapshot: Snapshot) -> list[Ask | Group]:
        """The work of a spec."""
        if isinstance(written, Mapping) and "changes" in written:
            raise Invalid("changes have no place in a spec of work; good fields are work and groups")
        facts = read_changes(written, snapshot)
        found: list[Ask | Group] = [fact.ask for fact in facts if isinstance(fact, AskSubmitted)]
        found += [fact.group for fact in facts if isinstance(fact, GroupSubmitted)]
        if not found:
            raise Invalid(
                "the spec has no work; give at least one, for example work: [{id: train, resources: {CPU: 1}}]"
            )
        return found


class LocalDesk(Answering):
    """The desk of a cluster whose engine is in this process."""

    def __init__(self, audit: Audit) -> None:
        self._audit = audit
        self._changing = threading.Lock()  # one change at a time, so that before and after belong together

    # -- what a cluster gives

    @abstractmethod
    def carry_out(self, change: NodeChange) -> Sequence[str]:
        """Do it; it holds when this returns, but for nodes that do not answer: returns their ids."""

    @abstractmethod
    def now(self) -> float: ...

    @abstractmethod
    def ends(self) -> Iterable[TaintEnd]: ...

    @abstractmethod
    def events(self, after: int, limit: int) -> Sequence[Event]: ...

    @abstractmethod
    def replay(self, ask: str = "", at: float | None = None) -> Replayed: ...

    # -- changing

    def change(self, change: NodeChange, author: Author) -> Carried:
        with self._changing:
            return self._change([change], author, change.action)

    def undo(self, number: int, author: Author) -> Carried:
        with self._changing:
            entry = self._audit.entry(number)
            nodes = self.snapshot().by_id
            if entry.node not in nodes:
                raise Conflict(f"entry {number} cannot be undone: node {entry.node} is gone")
            return self._change(inverse(entry, nodes[entry.node], self.now()), author, f"undo {number}")

    def _change(self, changes: Sequence[NodeChange], author: Author, action: str) -> Carried:
        """Written down first: an entry too many, if this process dies now, is better than a change by nobody."""
        snapshot = self.snapshot()
        node = snapshot.find(changes[0].node)
        for each in changes:
            self.check(each, node)
        ends = [*self.ends()]
        before = state_of(node, ends)
        after = state_of(_after(node, changes), [*ends, *self._new_ends(changes)])
        entry = self._audit.add(self.now(), author, action, node.id, before, after)
        unconfirmed: set[str] = set()
        try:
            for change in changes:
                unconfirmed.update(self.carry_out(change))
        except Exception:
            left = self.snapshot().by_id.get(node.id, node)  # perhaps half of it was done
            with suppress(Unwritable):  # why it failed is to be told, not that it cannot be written down
                self._audit.add(self.now(), author, f"{action} failed", node.id, before, state_of(left, self.ends()))
            raise
        return Carried(self.snapshot().node(node.id), entry, tuple(sorted(unconfirmed)))

    def _new_ends(self, changes: Sequence[NodeChange]) -> Iterable[TaintEnd]:
        now = self.now()
        for change in changes:
            until = None if change.for_s is None else now + change.for_s
            for taint in change.taints:
                yield TaintEnd(change.node, taint.key, taint.effect.value, now, until, change.until_job, change.owner)

    def audit(self, after: int = 0, limit: int = 1000) -> Sequence[Entry]:
        return self._audit.entries(after, limit)

    def verify(self) -> int:
        return self._audit.verify()


def _after(node: Node, changes: Sequence[NodeChange]) -> Node:
    """The node as it will be; what happens to its words does not depend on other nodes."""
    alone = Engine()
    alone.apply(NodeJoined(node))
    for change in changes:
        alone.apply(*change.facts(node))
    return alone.nodes[node.id]
