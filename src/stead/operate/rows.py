"""All work of a snapshot, as rows to count, filter and split into pages.

Rule: rows never change. Tables over all work are built once, on first use, and are shared by every snapshot with the
same work in the same places: a taint that moves no work costs nothing here.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from stead.engine.engine import Engine
from stead.errors import Invalid
from stead.language.asks import Ask, Group
from stead.language.labels import Selector
from stead.operate.filters import Condition, conditions
from stead.operate.views import WorkView, amounts, rules_of

WORK_FIELDS = ("id", "kind", "name", "state", "node", "namespace", "owner", "group", "labels", "count")
QUESTIONS_KEPT = 16


@dataclass(frozen=True, slots=True)
class Known:
    """What a cluster knows about one piece of work and the engine does not."""

    kind: str = "ask"
    name: str = ""
    owner: str = ""
    since: float | None = None
    count: int = 1
    inside: str = ""  # the group whose reserved resources it uses, without being a member


@dataclass(frozen=True, slots=True)
class KnownOwner:
    """What a cluster knows about an owner of work, in addition to its id."""

    name: str = ""
    state: str = ""  # running or ended
    since: float | None = None
    kind: str = "job"


UNKNOWN = Known()


class Requested(NamedTuple):
    """The texts of a shape."""

    resources: Mapping[str, float]
    rules: tuple[str, ...]
    labels: Mapping[str, str]


class Rows:
    """Ids of work in list order: waiting work first, in the order in which it is tried, then running work."""

    def __init__(self, engine: Engine, known: Mapping[str, Known], owners: Mapping[str, KnownOwner]) -> None:
        self._engine, self.known, self.owners = engine, known, owners
        self._free: dict[str, Mapping[str, int]] = {}
        self._shapes = Shapes()
        self._requested: dict[int, Requested] = {}
        self._answered: OrderedDict[object, Sequence[str]] = OrderedDict()

    def of(self, id: str) -> Known:
        return self.known.get(id, UNKNOWN)

    def ask(self, id: str) -> Ask:
        found = self._asks.get(id)
        if found is None:  # a member of a waiting group
            item = self._engine.item(id)
            assert isinstance(item, Ask)
            found = item
        return found

    def knows(self, id: str) -> bool:
        try:
            self._engine.item(id)
        except Invalid:
            return False
        return True

    def shape(self, id: str) -> int:
        """Equal for work, or groups, that are interchangeable."""
        return self._shapes.of(self._engine.item(id))

    def requested(self, ask: Ask) -> Requested:
        """What it requests; one value for all work of a shape."""
        shape = self._shapes.of(ask)
        found = self._requested.get(shape)
        if found is None:
            found = self._requested[shape] = Requested(
                amounts(ask.choices[0].resources), rules_of(ask), dict(ask.labels)
            )
        return found

    def kind(self, id: str) -> str:
        known = self.of(id)
        return "member" if known is UNKNOWN and id in self.group_of else known.kind

    def owner(self, id: str) -> str:
        """The owner of a piece of work; a member of a group belongs to the owner of the group."""
        found, group = self.of(id).owner or self.ask(id).owner, self.group_of.get(id, "")
        return found or (self.of(group).owner or self.groups[group].owner if group else "")

    def owner_name(self, owner: str) -> str:
        found = self.owners.get(owner)
        return found.name if found else ""

    def view(self, id: str) -> WorkView:
        ask, known, node, group = self.ask(id), self.known.get(id, UNKNOWN), self.placed.get(id, ""), ""
        kind, owner = known.kind, known.owner or ask.owner
        if id in self.group_of:
            group, kind, owner = self.group_of[id], self.kind(id), self.owner(id)
        return WorkView(
            id,
            kind,
            known.name,
            "running" if node else "waiting",
            node,
            *self.requested(ask),
            ask.namespace,
            owner,
            group,
            known.since,
            known.count,
            self.owner_name(owner) if owner else "",
        )

    def free(self, node: str) -> Mapping[str, int]:
        """What is free on a node, in units."""
        if node not in self._free:
            self._free[node] = self._engine.free(node)
        return self._free[node]

    # -- tables

    @cached_property
    def _asks(self) -> Mapping[str, Ask]:
        return self._engine.asks

    @cached_property
    def placed(self) -> Mapping[str, str]:
        return self._engine.placed

    @cached_property
    def in_line(self) -> Sequence[str]:
        """Waiting asks and groups, in the order in which they are tried."""
        return self._engine.waiting

    @cached_property
    def groups(self) -> Mapping[str, Group]:
        return self._engine.groups

    @cached_property
    def waiting_groups(self) -> frozenset[str]:
        return frozenset(id for id in self.in_line if id in self.groups)

    @cached_property
    def group_of(self) -> Mapping[str, str]:
        return {member.id: id for id, group in self.groups.items() for member in group.all_members}

    @cached_property
    def waiting(self) -> Sequence[str]:
        groups = self.waiting_groups
        if not groups:
            return self.in_line
        return [piece for id in self.in_line for piece in (self.missing(id) if id in groups else (id,))]

    def missing(self, group: str) -> list[str]:
        """The members of a waiting group that are not placed."""
        return [member.id for member in self.groups[group].alternatives[0] if member.id not in self.placed]

    @cached_property
    def running(self) -> Sequence[str]:
        return list(self.placed)

    @cached_property
    def all(self) -> Sequence[str]:
        return [*self.waiting, *self.running]

    @cached_property
    def by_node(self) -> Mapping[str, Sequence[str]]:
        """Ids of the work on each node."""
        found: dict[str, list[str]] = defaultdict(list)
        placed = self.placed
        for id in self.running:
            found[placed[id]].append(id)
        return dict(found)

    @cached_property
    def called(self) -> Mapping[str, Sequence[str]]:
        """Ids of the work and groups with a name, waiting ones first."""
        found: dict[str, list[str]] = defaultdict(list)
        for id in (*self.all, *self.groups):
            name = self.of(id).name
            if name and name != id:
                found[name].append(id)
        return dict(found)

    @cached_property
    def sorted_ids(self) -> Sequence[str]:
        return sorted({*self.all, *self.groups})

    @cached_property
    def by_label(self) -> Mapping[str, Mapping[str, Sequence[str]]]:
        """Every label of work: key -> value -> ids."""
        alike: dict[object, list[str]] = {}
        for id in self.all:
            alike.setdefault(self.ask(id).labels, []).append(id)
        found: dict[str, dict[str, list[str]]] = {}
        shared: set[tuple[str, str]] = set()
        for labels, ids in alike.items():
            assert isinstance(labels, Mapping)
            for key, value in labels.items():
                values = found.setdefault(key, {})
                if value in values:
                    shared.add((key, value))
                values.setdefault(value, []).extend(ids)
        if shared:  # several kinds of work have it: restore the list order
            place = {id: number for number, id in enumerate(self.all)}
            for key, value in shared:
                found[key][value].sort(key=place.__getitem__)
        return found

    def count(self, ids: Sequence[str]) -> int:
        """The number of pieces of work in these rows."""
        known = self.known
        return len(ids) if self._all_single else sum(known.get(id, UNKNOWN).count for id in ids)

    @cached_property
    def _all_single(self) -> bool:
        return all(known.count == 1 for known in self.known.values())

    # -- choosing

    def chosen(self, filters: Sequence[str], selector: Selector | None) -> Sequence[str]:
        """The rows that match every condition; the latest results are cached for their next page."""
        if not filters and selector is None:
            return self.all
        question = (tuple(filters), selector)
        found = self._answered.get(question)
        if found is None:
            found = self._choose(conditions(filters, WORK_FIELDS), selector)
            self._answered[question] = found
            while len(self._answered) > QUESTIONS_KEPT:
                self._answered.popitem(last=False)
        return found

    def _choose(self, wanted: Sequence[Condition], selector: Selector | None) -> Sequence[str]:
        begin = next((each for each in wanted if self._is_indexed(each)), None)
        found = self.all if begin is None else self._indexed(begin)
        for condition in wanted:
            if condition is not begin:
                found = self._narrowed(found, condition)
        if selector is not None:
            fits: dict[object, bool] = {}
            kept = []
            for id in found:
                labels = self.ask(id).labels
                fit = fits.get(labels)
                if fit is None:
                    fit = fits[labels] = selector.matches(labels)
                if fit:
                    kept.append(id)
            found = kept
        return found

    def _is_indexed(self, condition: Condition) -> bool:
        by = condition.name in ("state", "node", "id") or (condition.name == "labels" and condition.key)
        return bool(by) and not condition.negated

    def _indexed(self, condition: Condition) -> Sequence[str]:
        value = condition.value
        match condition.name:
            case "state":
                return {"waiting": self.waiting, "running": self.running}.get(value, ())
            case "node":
                return self.by_node.get(value, ()) if value else self.waiting
            case "id":
                return [id for id in (value,) if id in self._listed]
        return self.by_label.get(condition.key, {}).get(value, ())

    @cached_property
    def _listed(self) -> frozenset[str]:
        return frozenset(self.all)

    def _narrowed(self, ids: Sequence[str], condition: Condition) -> Sequence[str]:
        key, value, negated = condition.key, condition.value, condition.negated
        if condition.name == "labels" and key:
            return [id for id in ids if (self.ask(id).labels.get(key) == value) != negated]
        if condition.name == "labels":
            return [id for id in ids if (value in self.ask(id).labels) != negated]
        if condition.name == "owner":
            return [id for id in ids if (value in (owner := self.owner(id), self.owner_name(owner))) != negated]
        text_of = self._texts[condition.name]
        return [id for id in ids if (text_of(id) == value) != negated]

    @cached_property
    def _texts(self) -> Mapping[str, Callable[[str], str]]:
        """The text of each field of a row."""
        placed, group_of = self.placed, self.group_of
        return {
            "id": lambda id: id,
            "kind": self.kind,
            "name": lambda id: self.of(id).name,
            "state": lambda id: "running" if id in placed else "waiting",
            "node": lambda id: placed.get(id, ""),
            "namespace": lambda id: self.ask(id).namespace,
            "group": lambda id: group_of.get(id, ""),
            "count": lambda id: str(self.of(id).count),
        }


class Shapes:
    """Numbers of shapes: equal for interchangeable work. Work of one spec shares its parts, so most of it is compared
    without looking into them."""

    def __init__(self) -> None:
        self._by_parts: dict[tuple[int, ...], tuple[int, tuple[object, ...]]] = {}
        self._by_shape: dict[object, int] = {}

    def of(self, item: Ask | Group) -> int:
        parts = item.shape_key
        quick = tuple(map(id, parts))
        known = self._by_parts.get(quick)
        if known is None:  # keep its parts, so that no other object gets their address in memory
            known = self._by_parts[quick] = (self._by_shape.setdefault(parts, len(self._by_shape)), parts)
        return known[0]
