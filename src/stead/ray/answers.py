"""What the controller answers to questions: nodes, labels, events, and why something waits.

Rule: only reads, under the lock, from the engine and Ray's tables; what is in use is told to a fork. Every answer about
places is the engine's.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import ray

import stead
from stead.asks import Ask, Choice, Group, Strategy
from stead.engine import Engine
from stead.engine.explain import Explanation
from stead.engine.facts import AskRunning, Fact, GroupEnded
from stead.errors import Invalid
from stead.labelling import ANYWHERE, Requirement, Selector
from stead.node import Node
from stead.operate.views import Event, NodeView, TaintEnd
from stead.ray.book import Book
from stead.ray.cluster import OF_A_GROUP, real_amounts, static_labels
from stead.ray.compile import Pass, Wish, is_own_name
from stead.ray.decided import NOWHERE, named_by
from stead.ray.gcs import TaskRow
from stead.ray.grants import Grants
from stead.ray.native import NODE_ID
from stead.ray.page import PREFIX, PROTOCOL, SYNC_S, read_name
from stead.ray.passes import Passes
from stead.ray.placing import Placing
from stead.ray.tables import ACTOR_ID, ActorRow, NodeRow, PendingRow, Status, Tables
from stead.resources import Resources
from stead.selectors import intersection, parse_label_selector
from stead.taints import TOLERATE_ALL

ANY = (TOLERATE_ALL,)
GROUP_ID, TASK_ID = 36, 48
"""How long Ray's ids are."""

JOINS_S = 5.0
"""How long a node may take from its place in Ray's list to its amounts, for somebody who names it."""


class Answers:
    """The part of the controller that answers; the other part changes what is here."""

    _lock: threading.RLock
    _engine: Engine
    _book: Book
    _tables: Tables
    _status: Status
    _seen: tuple[Mapping[str, Node], Status]  # nodes and what Ray said of them, as the last round left them
    _passes: Passes
    _grants: Grants | None
    _placing: Placing
    _allowed: dict[str, set[str]]

    def hello(self) -> dict[str, Any]:
        """Who answers here: whether this program and the controller understand each other is the program's to say."""
        return {
            "pid": os.getpid(),
            "stead": stead.__version__,
            "protocol": PROTOCOL,
            "grants": self._grants is not None,
            "ray": ray.__version__,
            "policy": self._policy(),
        }

    @abstractmethod
    def _policy(self) -> str:
        """The cluster's default policy: what its head was started with, else what a program chose; "" for none."""

    def nodes(self, selector: Selector | None = None) -> list[NodeView]:
        """As the last round left them: nobody waits for the one that goes on."""
        ends, (nodes, status) = self._book.taint_ends(), self._seen
        chosen = (node for node in nodes.values() if selector is None or selector.matches(node.all_labels))
        return [self._view(node, status.nodes.get(node.id), ends) for node in chosen]

    def _view(self, node: Node, row: NodeRow | None, ends: Sequence[TaintEnd]) -> NodeView:
        static = static_labels(row) if row else {}
        labels = dict(node.all_labels)
        sources = {
            key: "stead" if key not in node.labels else "start" if static.get(key) == value else "run time"
            for key, value in labels.items()
        }
        mine = tuple(end for end in ends if end.node == node.id)
        total, available = (real_amounts(row.total), real_amounts(row.available)) if row else ({}, {})
        return NodeView(
            node.id, node.ip, node.name, labels, sources, node.taints, mine, node.draining, total, available
        )

    def registered_ids(self) -> list[str]:
        """Ids of all work and groups that the engine places singly and that are not over."""
        return self._placing.ids()

    def labels(self) -> dict[str, dict[str, list[str]]]:
        found: dict[str, dict[str, list[str]]] = {}
        with self._lock:
            for id, node in self._engine.nodes.items():
                for key, value in node.all_labels.items():
                    found.setdefault(key, {}).setdefault(value, []).append(id)
        return found

    def events(self, after: int = 0, limit: int = 1000) -> list[Event]:
        return self._book.events(after, limit)

    def why(self, ask: Ask, node: str = "") -> Explanation:
        """Why an ask waits now; or, with a node, why it is there."""
        with self._lock:
            fork = self._placing.fork(self._tables.status(), {node: ask} if node else {})
            if ask.id in self._placing.decided.lives and ask.id in (*fork.placed, *fork.waiting):
                return fork.explain(ask.id)
            if node and node in fork.nodes:
                fork.apply(AskRunning(ask, node))
                return fork.explain(ask.id)
            return fork.explain(ask)

    def why_group(self, id: str) -> Explanation:
        """Why a placement group waits: one that the engine decides, or any other that Ray knows."""
        with self._lock:
            fork = self._placing.fork(self._tables.status())
            life = self._placing.groups.lives.get(id)
            if life is not None and id in fork.waiting:
                return fork.explain(id)
            if life is not None:
                if self._placing.groups.is_creating_one(id):
                    fork.apply(GroupEnded(id))  # it is decided, but Ray has not placed it: would it be decided again?
                return fork.explain(life.asked.group)
            row = self._tables.group(id)
            if not row or row["state"] == "REMOVED":
                raise Invalid(f"Ray knows no placement group {id}")
            if row["state"] == "CREATED":
                raise Invalid(f"placement group {id} is placed, so it waits for nothing")
            return fork.explain(self.group_of(id, row))

    def why_in_group(self, id: str) -> Explanation:
        """Why work waits that goes into a placement group: it waits with the group."""
        if self._tables.group(id).get("state") == "CREATED":
            raise Invalid(f"placement group {id} is placed, so what waits in it waits for room in its bundle")
        return self.why_group(id)

    def _fits(self, id: str, row: Mapping[str, Any]) -> bool:
        """Whether the engine would find a place for a group, or for what is left of it, now."""
        with self._lock:
            fork = self._placing.fork(self._tables.status())
            fork.apply(GroupEnded(id))
            return fork.explain(self.group_of(id, row)).fits

    def group_of(self, id: str, row: Mapping[str, Any], whole: bool = False) -> Group:
        """What the engine makes of a group that went to Ray directly; else `whole`, what is left of it to be placed."""
        members = []
        for index, amounts in sorted(row["bundles"].items()):
            if row["bundles_to_node_id"].get(index) and not whole:
                continue
            rule = self.rule_of(amounts)
            choice = Choice(Resources.of(real_amounts(amounts)), rule.selector)
            members.append(Ask(f"{id}/{index}", (choice,), rule.tolerations))
        return Group(id, (tuple(members),), Strategy.of(row["strategy"]))

    def why_task(self, task_id: str) -> Explanation:
        """For a task that another process submitted: what Ray's own listing says of it."""
        found: Any = None
        if ray._private.services.get_webui_url_from_internal_kv():  # without a dashboard Ray would look for it for long
            from ray.util.state import get_task  # 10 MB, so only where it is used

            with contextlib.suppress(Exception):
                found = get_task(task_id, timeout=5)
        row: Any = found[-1] if isinstance(found, list) and found else found
        if row is None:
            raise Invalid(f"nothing is known of task {task_id}; ask in the program that submitted it")
        if row.state in ("FINISHED", "FAILED"):
            raise Invalid(f"task {task_id} has ended, so it waits for nothing")
        ask = self._ask_for(task_id, dict(row.required_resources or {}), ANYWHERE)
        return self.why(ask, row.node_id or "" if row.state == "RUNNING" else "")

    def why_actor(self, actor_id: str, ask: Ask | None = None) -> Explanation:
        """With an ask, it is the program that made the actor who wants to know, and Ray may hear of it only later."""
        row = self._tables.actor(actor_id)
        refused = self._book.timed_of(actor_id)
        if refused is not None and refused.refused:
            return self.why(refused.ask)
        if row is None:
            if ask is None:
                raise Invalid(f"Ray knows no actor {actor_id}")
            return self.why(ask)
        if row.state == "DEAD":
            raise Invalid(f"actor {actor_id} is dead, so it waits for nothing")
        group = next((found[1] for name in row.resources if (found := OF_A_GROUP.search(name))), "")
        if group and row.state != "ALIVE":
            return self.why_in_group(group)
        return self.why(ask or self.ask_of(row), row.node_id if row.state == "ALIVE" else "")

    def ask_of(self, row: ActorRow | TaskRow) -> Ask:
        """What the engine makes of work that Ray lists."""
        ranked = _is_bound(row.resources)
        labels = {key: said for key, said in row.labels.items() if not (ranked and key == NODE_ID)}
        return self._ask_for(row.id, row.resources, parse_label_selector(labels))

    def _ask_for(self, id: str, resources: Mapping[str, float], native: Selector) -> Ask:
        """An ask from what work asks of Ray: its slot or its pass tell the rest."""
        shape = self._placing.slots.shape_of(resources)
        if shape is not None:
            return replace(shape, id=id)
        rule = self.rule_of(resources)
        selector = intersection([rule.selector, native])
        return Ask(id, (Choice(Resources.of(real_amounts(resources)), selector),), rule.tolerations)

    def ask_of_demand(self, row: PendingRow, id: str) -> Ask:
        """What the engine makes of work that waits at Ray."""
        ranked = _is_bound(row.resources)
        native = [
            Requirement.is_in(key, *values) if among else Requirement.not_in(key, *values)
            for key, among, values in row.labels
            if not (ranked and key == NODE_ID)
        ]
        return self._ask_for(id, row.resources, Selector.all_of(*native))

    def why_id(self, id: str) -> Explanation:
        """Why work waits that only Ray's tables know: an actor, a task or a group, by the length of its id."""
        if set(id) <= set("0123456789abcdef"):
            for length, ask in ((ACTOR_ID, self.why_actor), (TASK_ID, self.why_task), (GROUP_ID, self.why_group)):
                if len(id) == length:
                    return ask(id)
        raise Invalid(f"nothing named {id!r} waits or runs; `stead work` lists what does")

    def taint_ends(self) -> list[TaintEnd]:
        return self._book.taint_ends()

    def rule_of(self, resources: Mapping[str, float]) -> Pass:
        """What the pass among these resources stands for; without one, anything goes."""
        for name in resources:
            found = read_name(name)
            if found and found[0] in self._passes.issued:
                return self._passes.issued[found[0]].rule
        return Pass(tolerations=ANY)

    def nodes_for_ask(self, ask: Ask) -> list[str]:
        """The nodes that would take an ask today."""
        with self._lock:
            engine = self._engine.fork()
            for id in named_by(ask) - engine.placed.keys():
                row = self._tables.actor(id)
                if row is not None and row.state == "ALIVE":
                    engine.apply(AskRunning(Ask(id, NOWHERE), row.node_id))
            return sorted({node for nodes in engine.candidates(ask) for node in nodes})

    def node_id(self, said: str) -> str:
        return self._node(said).id

    def _node(self, said: str) -> Node:
        """The node someone means: by id, by the beginning of an id, by ip or by name."""
        with self._lock:
            nodes = self._engine.nodes
        if said not in nodes:
            self._submit()  # one more look at Ray's tables: it may have joined just now
            end = time.monotonic() + JOINS_S
            while said in self._status.nodes.keys() - self._engine.nodes.keys() and time.monotonic() < end:
                self._submit()  # Ray lists it, and is about to hear its amounts
            nodes = self._engine.nodes
        if said in nodes:
            return nodes[said]
        by_id = [node for id, node in nodes.items() if len(said) >= 6 and id.startswith(said)]
        found = by_id or [node for node in nodes.values() if said and said in (node.ip, node.name)]
        if len(found) == 1:
            return found[0]
        if found:
            raise Invalid(f"{said!r} is {len(found)} nodes; give one id: {', '.join(node.id for node in found)}")
        example = next(iter(nodes), "none")
        raise Invalid(f"there is no node {said!r} in this cluster; a node id is, for example, {example!r}")

    def refuses(self, wish: Wish, node: str) -> str:
        """Why a node will not take work with these rules, in words; "" if it will."""
        with self._lock:
            if node not in self._engine.nodes or node in self._nodes_for(wish.admits):
                return ""
            pinned = Selector.all_of(Requirement.is_in("node_id", node))
            selector = intersection([wish.admits.selector, pinned])
            return str(self._engine.explain(Ask.of("pinned", selector=selector, tolerations=wish.admits.tolerations)))

    def pin(self, wish: Wish, node: str) -> tuple[str, float]:
        """As `refuses`; and how many seconds to wait until every raylet knows that the node has the pass."""
        reason = self.refuses(wish, node)
        if reason or self._grants is None:
            return reason, 0.0
        if self._passes.usable_since(node, wish.admits.key) is None:
            self._submit()  # a whole round: the pass, or the node, is new
        since = self._passes.usable_since(node, wish.admits.key)
        return "", SYNC_S if since is None else max(0.0, since + SYNC_S - time.monotonic())

    def has_room(self, name: str, amounts: Mapping[str, float], node: str) -> bool:
        """Whether a node other than this one takes work under the pass of this name, and has these amounts free."""
        allowed = self._allowed.get((read_name(name) or ("", 0))[0], set()) - {node}
        wanted = {each: amount for each, amount in amounts.items() if not is_own_name(each)}
        return any(
            all(row.available.get(each, 0.0) >= amount for each, amount in wanted.items())
            for id, row in self._status.nodes.items()
            if id in allowed
        )

    @abstractmethod
    def _submit(self, *facts: Fact) -> Sequence[str]:
        """Queue facts for the next round, and wait for it; returns the nodes that did not confirm."""

    def _nodes_for(self, rule: Pass) -> set[str]:
        return nodes_allowed(self._engine, rule)


def _is_bound(resources: Mapping[str, float]) -> bool:
    """Whether stead submitted the work. Then node ids in its label selector are not the user's rule, which the pass
    says: they are how stead tells Ray which nodes to try first."""
    return any(name.startswith(PREFIX) for name in resources)


def nodes_allowed(engine: Engine, rule: Pass) -> set[str]:
    """The nodes on which a pass is granted: those that would take an ask for nothing under its rules."""
    return set(engine.candidates(Ask("pass", (Choice(selector=rule.selector),), rule.tolerations))[0])
