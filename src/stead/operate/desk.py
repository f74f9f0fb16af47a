"""The Desk: all that can be asked of a cluster and changed on it, whatever kind of cluster it is.

Rule: every answer comes from a snapshot (`Answering`), and every change is written to the audit before it is answered
(`LocalDesk`). What differs between clusters is only where a snapshot comes from and how a change is carried out.
"""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Protocol

from stead.asks import Ask, Group
from stead.engine import Engine
from stead.engine.explain import Explanation
from stead.engine.facts import AskSubmitted, Fact, GroupSubmitted, NodeJoined
from stead.errors import Invalid, Unwritable
from stead.node import Node
from stead.operate.audit import Audit, Author, Entry, entry_json
from stead.operate.changes import NodeChange, inverse, state_of
from stead.operate.history import Replayed
from stead.operate.leaving import still_wanted
from stead.operate.lint import Finding, lint
from stead.operate.snapshot import Query, Snapshot
from stead.operate.views import Event, GroupView, NodeView, OwnerView, Page, Summary, TaintEnd, WorkView, node_json
from stead.operate.what_if import Difference, read_changes, what_if

NODES_MAX = 10_000
"""How many nodes one change may have."""


@dataclass(frozen=True, slots=True)
class Carried:
    """A change that was carried out: the nodes as they are now, what the audit says of it, and the ids of nodes that
    have not confirmed it, because they do not answer. The cluster goes on asking them."""

    nodes: tuple[NodeView, ...]
    entry: Entry
    unconfirmed: tuple[str, ...] = ()

    @property
    def node(self) -> NodeView:
        return self.nodes[0]


def carried_json(carried: Carried) -> dict[str, Any]:
    """Of one node it is `node`, of several `nodes`."""
    views = [node_json(view) for view in carried.nodes]
    said: dict[str, Any] = {"node": views[0]} if len(views) == 1 else {"nodes": views}
    return {**said, "audit": entry_json(carried.entry), "unconfirmed": list(carried.unconfirmed)}


Changes = NodeChange | Sequence[NodeChange]


def listed(changes: Changes) -> list[NodeChange]:
    """One change or several, as a list; several changes of nothing are refused."""
    found = [changes] if isinstance(changes, NodeChange) else list(changes)
    if not found:
        raise Invalid("no node is to be changed; name one, or a selector that some node has")
    if len(found) > NODES_MAX:
        raise Invalid(f"a change may have at most {NODES_MAX:,} nodes, not {len(found):,}; narrow the selector")
    return found


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
    def owners(self, query: Query) -> Page[OwnerView]: ...
    def owner(self, said: str) -> OwnerView: ...
    def events(self, after: int, limit: int) -> Sequence[Event]: ...
    def why(self, id: str) -> Explanation: ...
    def why_spec(self, written: Any) -> Sequence[Explanation]:
        """Why each piece of work of a spec would wait, or where it would go; nothing is submitted."""

    def what_if(self, written: Any) -> Difference: ...
    def blast(self, *changes: NodeChange) -> Difference:
        """What changes of nodes, made together, would do; nothing is changed."""

    def lint(self, written: Any | None) -> Sequence[Finding]:
        """What can never match, of a spec or of all that waits."""

    def change(self, changes: Changes, author: Author) -> Carried:
        """Change one node, or several as one change: checked on all of them before the first is changed."""

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

    def owners(self, query: Query) -> Page[OwnerView]:
        return self.snapshot().owners(query)

    def owner(self, said: str) -> OwnerView:
        return self.snapshot().owner(said)

    def why(self, id: str) -> Explanation:
        return self.snapshot().why(id)

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

    def blast(self, *changes: NodeChange) -> Difference:
        snapshot = self.snapshot()
        found: list[Fact] = []
        for change in changes:
            node = snapshot.find(change.node)
            self.check(change, node)
            found += change.facts(node)
        return what_if(snapshot, found)

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
    def carry_out(self, changes: Sequence[NodeChange]) -> Sequence[str]:
        """Do it, all at once; it holds when this returns, but for nodes that do not answer: returns their ids."""

    @abstractmethod
    def now(self) -> float: ...

    @abstractmethod
    def ends(self) -> Iterable[TaintEnd]: ...

    @abstractmethod
    def events(self, after: int, limit: int) -> Sequence[Event]: ...

    @abstractmethod
    def replay(self, ask: str = "", at: float | None = None) -> Replayed: ...

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
        """Written down first: an entry too many, if this process dies now, is better than a change by nobody."""
        snapshot = self.snapshot()
        changes = [replace(change, node=snapshot.find(change.node).id) for change in changes]
        nodes = {change.node: snapshot.by_id[change.node] for change in changes}
        for each in changes:
            self.check(each, nodes[each.node])
        ends = [*self.ends()]
        new_ends = [*ends, *self._new_ends(changes)]
        before = {id: state_of(node, ends) for id, node in nodes.items()}
        after = {id: state_of(_after(node, changes), new_ends) for id, node in nodes.items()}
        entry = self._audit.add(self.now(), author, action, *_written(before, after))
        try:
            unconfirmed = self.carry_out(changes)
        except Exception:
            left = self.snapshot().by_id  # perhaps half of it was done
            states = {id: state_of(left.get(id, node), self.ends()) for id, node in nodes.items()}
            with suppress(Unwritable):  # why it failed is to be told, not that it cannot be written down
                self._audit.add(self.now(), author, f"{action} failed", *_written(before, states))
            raise
        made = self.snapshot()
        return Carried(tuple(made.node(id) for id in nodes), entry, tuple(sorted(unconfirmed)))

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
        if change.node == node.id:
            alone.apply(*change.facts(node))
    return alone.nodes[node.id]


State = Mapping[str, Any]


def _written(before: Mapping[str, State], after: Mapping[str, State]) -> tuple[str, State, State]:
    """The node and its states before and after, as an entry of the audit has them; of several nodes as one."""
    if len(before) == 1:
        (node,) = before
        return node, before[node], after[node]
    return "", {"nodes": before}, {"nodes": after}
