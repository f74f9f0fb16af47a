"""A cluster at one moment: the engine, what else the cluster knows about nodes and work, and lists of both.

Rule: a snapshot never changes. Each list is built once, on first use, and a page is a slice of it, so the hundredth
page costs as much as the first. Whatever equals the previous snapshot is taken from there.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeVar

from stead.engine.engine import Engine
from stead.engine.explain.explanations import Explanation
from stead.engine.facts import AskEnded
from stead.engine.timing.taint_times import TaintEnd
from stead.errors import Invalid
from stead.language.asks import Ask, Group
from stead.language.labels import Labels, Selector
from stead.language.nodes import Node
from stead.language.resources import UNIT, Resources
from stead.operate.filters import Condition, conditions
from stead.operate.identifying import NodeNames, meant, only
from stead.operate.lint import hints
from stead.operate.ordering import natural
from stead.operate.owners import owners_of
from stead.operate.rows import QUESTIONS_KEPT, UNKNOWN, Known, KnownOwner, Rows
from stead.operate.views import (
    GroupView,
    NodeView,
    OwnerView,
    Page,
    Summary,
    WorkView,
    amounts,
    group_json,
    resources_of,
)
from stead.text import Titles, short_id

__all__ = ["ALL", "PAGE", "PAGE_MAX", "UNKNOWN", "Known", "KnownOwner", "Query", "Snapshot", "every"]

T = TypeVar("T")

PAGE = 100
PAGE_MAX = 10_000

NODE_FIELDS = ("id", "ip", "name", "draining", "taints", "labels", "runs")
GROUP_FIELDS = ("id", "name", "state", "strategy", "owner")
OWNER_FIELDS = ("id", "name", "kind", "state")


@dataclass(frozen=True, slots=True)
class Query:
    """Which part of a list: conditions such as ``state=waiting``, an offset and a limit."""

    filters: tuple[str, ...] = ()
    selector: Selector | None = None
    offset: int = 0
    limit: int = PAGE

    def __post_init__(self) -> None:
        for name, value, least, most in (("offset", self.offset, 0, 10**9), ("limit", self.limit, 1, PAGE_MAX)):
            if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
                raise Invalid(f"{name} must be a whole number from {least} to {most}, for example 100, not {value!r}")


ALL = Query(limit=PAGE_MAX)


def every(fetch: Callable[[Query], Page[T]], query: Query = ALL) -> list[T]:
    """All items of a list, page by page."""
    page = fetch(query)
    found = list(page.items)
    while page.items and len(found) < page.total:
        page = fetch(replace(query, offset=len(found)))
        found += page.items
    return found


class Snapshot:
    """`measured` is what is free by the cluster's own count, if it has one; otherwise the engine's count is used.
    `started` holds the labels with which each node joined, if the cluster knows them. `starting` is work that is
    pending only because its process is being started: what it uses already counts as used on its node.

    A cluster passes `before` when it knows that since that snapshot no work came, went or moved, and no node joined,
    left or was resized: `known` is then the same.
    """

    def __init__(
        self,
        engine: Engine,
        at: float,
        known: Mapping[str, Known] | None = None,
        ends: Iterable[TaintEnd] = (),
        started: Mapping[str, Mapping[str, str]] | None = None,
        measured: Mapping[str, tuple[Mapping[str, float], Mapping[str, float]]] | None = None,
        title: str = "",
        kind: str = "simulation",
        owners: Mapping[str, KnownOwner] | None = None,
        links: Mapping[str, str] | None = None,
        starting: Sequence[str] = (),
        before: Snapshot | None = None,
    ) -> None:
        self.starting = tuple(starting)
        self.engine, self.at, self.title, self.kind, self._links = engine, at, title, kind, links or {}
        self.rows: Rows = Rows(engine, known or {}, owners or {}) if before is None else before.rows
        self._started = started
        self._measured = measured or {}
        self._ends: dict[str, list[TaintEnd]] = defaultdict(list)
        for end in ends:
            self._ends[end.node].append(end)
        self._views: dict[str, tuple[Node, NodeView]] = {} if before is None else before._views
        self._labels: dict[str, tuple[Node, Labels]] = {} if before is None else before._labels
        self._answered: dict[object, Sequence[Node]] = {}
        self._explained: dict[int, Explanation] = {}
        self._order = None if before is None else before._order_made

    @cached_property
    def to_plan(self) -> Engine:
        """The engine without work that has its node already and only starts: it needs no new node."""
        if not self.starting:
            return self.engine
        fork = self.engine.fork()
        fork.apply(*map(AskEnded, self.starting))
        return fork

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles the inputs only: the receiver builds its own lists."""
        ends = [end for ends in self._ends.values() for end in ends]
        known = dict(self.rows.known)
        beside = (self.title, self.kind, dict(self.rows.owners), self._links, self.starting)
        return Snapshot, (self.engine, self.at, known, ends, self._started, self._measured, *beside)

    # -- nodes

    def capacity_of_new(self, described: Resources) -> Resources:
        """What a node that somebody describes would have in this kind of cluster."""
        return described

    @cached_property
    def by_id(self) -> Mapping[str, Node]:
        return self.engine.nodes

    @cached_property
    def all_nodes(self) -> tuple[Node, ...]:
        """In list order."""
        nodes = self.by_id
        return tuple([nodes[id] for id in self._order_made])

    @cached_property
    def _order_made(self) -> Sequence[str]:
        if self._order is not None:
            return self._order
        titles = [(natural(node.name or node.ip), natural(id), id) for id, node in self.by_id.items()]
        return [id for _, _, id in sorted(titles)]

    @property
    def by_node(self) -> Mapping[str, Sequence[str]]:
        """Ids of the work on each node."""
        return self.rows.by_node

    def node(self, name: str) -> NodeView:
        return self.view(self.find(name))

    def find(self, name: str) -> Node:
        """The node with this id, beginning of an id, ip or name."""
        found = self.by_id.get(name)
        return self.by_id[self._names.one(name)] if found is None else found

    @cached_property
    def _names(self) -> NodeNames:
        return NodeNames(self.by_id.values())

    def views(self, selector: Selector | None = None) -> list[NodeView]:
        """Every node, or every node that a selector matches."""
        return list(map(self.view, self._chosen(Query(selector=selector))))

    def nodes(self, query: Query = ALL) -> Page[NodeView]:
        question = (query.filters, query.selector)
        chosen = self._answered.get(question)
        if chosen is None:
            chosen = self._chosen(query)
            if len(self._answered) < QUESTIONS_KEPT:  # for the next page
                self._answered[question] = chosen
        return _page(chosen, query, self.view)

    def _chosen(self, query: Query) -> Sequence[Node]:
        chosen: Sequence[Node] = self.all_nodes
        for condition in conditions(query.filters, NODE_FIELDS):
            chosen = self._narrowed(chosen, condition)
        if query.selector is not None:
            matches = query.selector.matches
            chosen = [node for node in chosen if matches(self.labels_of(node))]
        return chosen

    def _narrowed(self, nodes: Sequence[Node], condition: Condition) -> Sequence[Node]:
        key, value, negated = condition.key, condition.value, condition.negated
        match condition.name:
            case "id" if nodes is self.all_nodes and not negated:
                return [self.by_id[value]] if value in self.by_id else []
            case "labels" if key:
                return [node for node in nodes if (node.label(key) == value) != negated]
            case "labels":
                return [node for node in nodes if (value in self.labels_of(node)) != negated]
            case "taints":
                return [node for node in nodes if any(taint.key == value for taint in node.taints) != negated]
            case "runs":
                return [node for node in nodes if (str(self._runs(node.id)) == value) != negated]
            case "draining":
                return [node for node in nodes if (str(node.draining).lower() == value) != negated]
        name = condition.name
        return [node for node in nodes if (getattr(node, name) == value) != negated]

    def labels_of(self, node: Node) -> Labels:
        """All labels of a node."""
        made = self._labels.get(node.id)
        if made is None or made[0] is not node:
            made = self._labels[node.id] = (node, node.all_labels)
        return made[1]

    def _runs(self, node: str) -> int:
        return self.rows.count(self.rows.by_node.get(node, ()))

    def view(self, node: Node) -> NodeView:
        ends = tuple(self._ends.get(node.id, ()))
        made = self._views.get(node.id)
        if made is None or made[0] is not node or made[1].ends != ends:
            made = self._views[node.id] = (node, self._view(node, ends))
        return made[1]

    def _view(self, node: Node, ends: tuple[TaintEnd, ...]) -> NodeView:
        labels = self.labels_of(node)
        sources = self._sources(node)
        total, available = self._amounts(node)
        return NodeView(
            node.id,
            node.ip,
            node.name,
            dict(labels),
            {key: sources.get(key, "stead") for key in labels},
            node.taints,
            ends,
            node.draining,
            total,
            available,
            self._runs(node.id),
            self.titles[node.id],
        )

    @cached_property
    def titles(self) -> Titles:
        """The display name of each node."""
        return Titles({id: node.name for id, node in self.by_id.items()})

    def _sources(self, node: Node) -> dict[str, str]:
        """For each label that a user set: whether at the start of the node or at run time."""
        if self._started is None:
            return dict.fromkeys(node.labels, "start")
        start = self._started.get(node.id, {})
        return {key: "start" if start.get(key) == value else "run time" for key, value in node.labels.items()}

    def _amounts(self, node: Node) -> tuple[Mapping[str, float], Mapping[str, float]]:
        """The capacity of the node, and what is free."""
        if node.id in self._measured:
            return self._measured[node.id]
        free = self.rows.free(node.id)
        return amounts(node.capacity), {name: max(0, free.get(name, 0)) / UNIT for name in node.capacity}

    @cached_property
    def labels(self) -> Mapping[str, Mapping[str, Sequence[str]]]:
        """Every label: key -> value -> ids of the nodes that have it."""
        found: dict[str, dict[str, list[str]]] = {}
        for node in self.all_nodes:
            for key, value in self.labels_of(node).items():
                found.setdefault(key, {}).setdefault(value, []).append(node.id)
        return found

    @property
    def work_labels(self) -> Mapping[str, Mapping[str, Sequence[str]]]:
        """Every label of work, placed or waiting."""
        return self.rows.by_label

    @cached_property
    def greatest(self) -> Mapping[str, int]:
        """The largest amount of each resource on any one node, in units."""
        found: dict[str, int] = {}
        for node in self.all_nodes:
            for name, units in node.capacity.items():
                found[name] = max(units, found.get(name, 0))
        return found

    # -- work

    @property
    def known(self) -> Mapping[str, Known]:
        return self.rows.known

    def of(self, id: str) -> Known:
        return self.rows.of(id)

    def work(self, query: Query = ALL) -> Page[WorkView]:
        return _page(self.rows.chosen(query.filters, query.selector), query, self.rows.view)

    def work_id(self, name: str) -> str:
        """The id of the work or group with this id, beginning of an id, or name. Of several with one name, waiting ones
        come first; if they are all equal, any of them can answer for the others. An unknown name is returned as it
        is."""
        rows = self.rows
        if rows.knows(name):
            return name
        found = meant(name, rows.sorted_ids, rows.called.get(name, ())) or [name]
        found = [id for id in found if id not in rows.placed] or found
        alike = len(found) > 1 and len({rows.shape(id) for id in found}) == 1
        return found[0] if alike else only(name, found, "work", ())

    def existing(self, name: str) -> str:
        """The same; an unknown name is refused."""
        id = self.work_id(name)
        if not self.rows.knows(id):
            only(name, (), "work", (*self.rows.called, *self.rows.sorted_ids))
        return id

    def why(self, name: str) -> Explanation:
        """Why it is pending, or why it is where it is. Equal pending work has the same answer."""
        id = self.existing(name)
        item = self.engine.item(id)
        if (group := self.of(id).inside) and id not in self.rows.placed:
            return self.why_inside(group)
        if isinstance(item, Group) or id in self.rows.placed or id in self.rows.group_of:
            return self.explain(id)
        shape = self.rows.shape(id)
        if shape not in self._explained:
            self._explained[shape] = self.explain(id)
        return replace(self._explained[shape], id=id)

    def explained_by(self, engine: Engine, what: str | Ask | Group) -> Explanation:
        """The explanation of an engine, in the words of this kind of cluster."""
        return engine.explain(what)

    def explain(self, what: str | Ask | Group) -> Explanation:
        """The engine's explanation; for work that fits nowhere, also which of its names may be misspelt."""
        found = self.explained_by(self.engine, what)
        if found.fits or found.chosen is not None:
            return found
        return replace(found, hints=hints(self, self.engine.item(what) if isinstance(what, str) else what))

    def why_inside(self, group: str) -> Explanation:
        """Why work that runs inside a group is pending: it waits for the group."""
        if group not in self.rows.groups:
            raise Invalid(f"there is no group {short_id(group)!r}, so work that must run in it cannot start")
        if group not in self.rows.waiting_groups:
            called = self.of(group).name or short_id(group)
            raise Invalid(f"group {called} is placed; its pending work waits for free resources in the group")
        return self.explain(group)

    def one(self, id: str) -> WorkView:
        """One piece of work by its id or name."""
        id = self.existing(id)
        if isinstance(self.engine.item(id), Group):
            called = self.of(id).name or short_id(id)
            raise Invalid(f"{called!r} is a group, not a piece of work; name one of its members, or list the groups")
        return self.rows.view(id)

    def groups(self, query: Query = ALL) -> Page[GroupView]:
        rows = self.rows
        ids = sorted(rows.groups, key=lambda id: id not in rows.waiting_groups)
        wanted = conditions(query.filters, GROUP_FIELDS)
        if not wanted:
            return _page(ids, query, lambda id: self._group(rows.groups[id]))
        found = [self._group(rows.groups[id]) for id in ids]
        for each in wanted:
            names = ("owner", "owner_name") if each.name == "owner" else (each.name,)
            values = [{str(group_json(view)[name]) for name in names} for view in found]
            found = [view for view, texts in zip(found, values, strict=True) if (each.value in texts) != each.negated]
        return _page(found, query, lambda view: view)

    def _group(self, group: Group) -> GroupView:
        placed, known = self.rows.placed, self.of(group.id)
        taken = next((each for each in group.alternatives if any(member.id in placed for member in each)), None)
        members, owner = taken or group.alternatives[0], known.owner or group.owner
        return GroupView(
            group.id,
            known.name,
            "waiting" if group.id in self.rows.waiting_groups else "placed",
            group.strategy.value,
            tuple((member.id, placed.get(member.id, "")) for member in members),
            resources_of(group) if taken is None else tuple(amounts(each.choices[0].resources) for each in members),
            owner,
            known.since,
            self.rows.owner_name(owner),
            group.min_available,
            group.timeout_s,
        )

    # -- owners

    @cached_property
    def _owners(self) -> Sequence[OwnerView]:
        return owners_of(self.rows)

    def owners(self, query: Query = ALL) -> Page[OwnerView]:
        """Every owner of work, those with the most work first."""
        found = self._owners
        for each in conditions(query.filters, OWNER_FIELDS):
            found = [view for view in found if (getattr(view, each.name) == each.value) != each.negated]
        return _page(found, query, lambda view: view)

    def owner(self, given: str) -> OwnerView:
        """One owner, by its id, its name or the beginning of its id."""
        views = {view.id: view for view in self._owners}
        found = meant(given, sorted(views), [view.id for view in self._owners if view.name == given])
        names = [name for view in self._owners for name in (view.id, view.name) if name]
        return views[only(given, found, "owner", names, "with work in this cluster")]

    # -- summary

    @cached_property
    def summary(self) -> Summary:
        total: dict[str, float] = defaultdict(float)
        available: dict[str, float] = defaultdict(float)
        for node in self.all_nodes:
            has, free = self._amounts(node)
            for name, amount in has.items():
                total[name] += amount
                available[name] += free.get(name, 0.0)
        rows = self.rows
        return Summary(
            self.title,
            self.kind,
            self.at,
            len(self.all_nodes),
            sum(bool(node.taints) for node in self.all_nodes),
            sum(node.draining for node in self.all_nodes),
            rows.count(rows.running),
            rows.count(rows.waiting),
            len(rows.groups),
            len(rows.waiting_groups),
            {name: round(amount, 4) for name, amount in total.items()},
            {name: round(amount, 4) for name, amount in available.items()},
            self._links,
        )


def _page(rows: Sequence[Any], query: Query, view: Callable[[Any], T]) -> Page[T]:
    chosen = rows[query.offset : query.offset + query.limit]
    return Page(tuple(map(view, chosen)), len(rows), query.offset)
