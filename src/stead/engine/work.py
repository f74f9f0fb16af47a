"""The Work: all placed asks and their nodes, indexed for affinities and spreads.

Rule: an index counts asks per node and respects namespaces. Asks with equal labels in one namespace are one *kind*. A
selector over work (`Matching`) is matched against kinds, and its counts are updated as asks are placed and removed.
Only selectors that name ask ids look at single asks.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain, islice, starmap
from typing import Any, NamedTuple, TypeVar

import numpy as np

from stead.engine.columns.amounts import Amounts, DeviceShares, as_needs
from stead.engine.columns.change_log import ANY_WORK, KEEPERS, PULLS, Column
from stead.engine.columns.claims import Claims
from stead.engine.columns.sharing import Sheet, Shelf
from stead.engine.counts import CountColumns, DomainCounts
from stead.engine.fleet import Domains, Fleet, Nodes
from stead.engine.targets import Targets, ids_named
from stead.language.asks import ASK_ID, Affinity, Ask, AskId, GroupId, HostPort
from stead.language.claims import Claim, ClaimId
from stead.language.labels import Labels, Selector
from stead.language.resources import Resources

K = TypeVar("K")
T = TypeVar("T")

Kind = tuple[str, Labels]
"""(namespace, labels) of placed asks."""


class Placement(NamedTuple):
    """Where one ask is placed, and the devices it uses. `moment` and `turn` are its position in the order, in case it
    becomes pending again. `started` is known once it runs. A nomination keeps its place for an ask that is pending."""

    ask: Ask
    row: int
    choice: int
    held: tuple[DeviceShares, ...]
    moment: float
    turn: int
    group: GroupId | None
    started: float | None = None
    is_nomination: bool = False


@dataclass(frozen=True, slots=True)
class Matching:
    """The placed work that a selector matches, in these namespaces (empty: in all)."""

    selector: Selector
    namespaces: frozenset[str]
    by_id: bool = field(init=False, compare=False, repr=False)
    """Whether it looks at the ids of asks."""
    _hash: int = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "by_id", ASK_ID in self.selector.keys)
        object.__setattr__(self, "_hash", hash((self.selector, self.namespaces)))

    def __hash__(self) -> int:
        return self._hash  # every placement looks it up

    def __reduce__(self) -> tuple[Any, ...]:
        return (Matching, (self.selector, self.namespaces))

    def includes(self, kind: Kind) -> bool:
        return _includes(self, kind)

    @property
    def ids(self) -> frozenset[str] | None:
        """The ask ids it names, if every term names some."""
        return ids_named(self.selector)


@lru_cache(4096)
def _includes(matching: Matching, kind: Kind) -> bool:
    return (not matching.namespaces or kind[0] in matching.namespaces) and matching.selector.matches(kind[1])


@lru_cache(4096)
def meant_by(selector: Selector, namespaces: frozenset[str] | None, own_namespace: str) -> Matching:
    """What a selector over work matches, for an ask in this namespace."""
    return Matching(selector, frozenset({own_namespace}) if namespaces is None else namespaces)


class Keeper(NamedTuple):
    """A symmetric anti-affinity of placed work, resolved in the namespace of its ask."""

    affinity: Affinity
    matching: Matching


class Pull(NamedTuple):
    """What placed work prefers of later work that matches: a weight for all nodes of its domain."""

    matching: Matching
    topology: str
    weight: int


class Effects(NamedTuple):
    """How an ask affects other work once it is placed, besides its labels and ports."""

    keepers: tuple[Keeper, ...]
    pulls: tuple[Pull, ...]


class Unmanaged(NamedTuple):
    """What unmanaged work uses on one node, and the devices it is counted on."""

    amounts: Resources
    pieces: int
    held: tuple[DeviceShares, ...]

    @property
    def needs(self) -> Iterator[tuple[str, int]]:
        """The amounts as needs: whole devices, and a share of one more."""
        return chain.from_iterable(starmap(as_needs, self.amounts.items()))


UNMANAGED: Kind = ("(unmanaged)", Labels())
"""The kind of unmanaged work: in a namespace that users cannot name, and without labels."""


class Work:
    """All placed asks, and what unmanaged work uses."""

    def __init__(self) -> None:
        self.placements: Sheet[AskId, Placement] = Sheet()
        self.residents: Shelf[int, AskId, None] = Shelf()
        self.nominations: Sheet[AskId, Placement] = Sheet()
        """Places that are kept for pending asks, by their ids. For rules, such an ask is there already."""
        self._evictable: Sheet[int, int] = Sheet()  # how much placed work may be evicted, by priority
        self.unmanaged: Sheet[int, Unmanaged] = Sheet()
        self._kinds: Shelf[Kind, int, int] = Shelf()
        self._matched_by: Sheet[Kind, tuple[Matching, ...]] = Sheet()
        self._counts: Shelf[Matching, int, int] = Shelf()
        self._nodes: Sheet[Matching, Nodes] = Sheet()
        self._keepers: Shelf[Keeper, int, int] = Shelf()
        self._keeper_nodes: Sheet[Keeper, Nodes] = Sheet()
        self._pulls: Shelf[Pull, int, int] = Shelf()
        self._ports: Shelf[str, HostPort, Nodes] = Shelf()
        self._port_counts: Shelf[HostPort, int, int] = Shelf()
        self._watched: Sheet[AskId, None] = Sheet()
        self._all_watched = False
        self.targets = Targets()
        self.claims = Claims()
        self._caches = Caches()

    def fork(self, lasting: bool = True) -> Work:
        twin = Work.__new__(Work)
        twin._all_watched, twin._caches = self._all_watched, Caches()
        for name, value in self.__dict__.items():
            if name not in ("_all_watched", "_caches"):
                setattr(twin, name, value.fork(lasting))
        return twin

    # -- checkpoints

    @property
    def matchings(self) -> Iterable[Matching]:
        """The indexed selectors over work, in the order in which they were first read."""
        return self._nodes.map

    @property
    def watches_all(self) -> bool:
        """Whether some selector matches ask ids without naming them, so that any ask can change its result."""
        return self._all_watched

    def restore_indexes(self, matchings: Iterable[Matching], watched: Iterable[AskId], watches_all: bool) -> None:
        """Call this before any work is added."""
        for matching in matchings:
            self._register(matching)
        self._watched.write().update(dict.fromkeys(watched))
        self._all_watched = watches_all

    # -- what rules read

    def nodes(self, matching: Matching) -> Nodes:
        """The nodes with matching work."""
        if matching.by_id:
            found = 0
            for placement in self._scan(matching):
                found |= 1 << placement.row
            return found
        return self._register(matching)

    def counts(self, matching: Matching, size: int) -> Amounts:
        """The number of matching asks in every row. Read it at once and never write to it."""
        if matching.by_id:
            column = np.zeros(size, np.int64)
            for placement in self._scan(matching):
                column[placement.row] += 1
            return column
        self._register(matching)
        return self._caches.matchings.column(matching, self._counts.read(matching), size)

    def counts_by_domain(self, matching: Matching, domains: Domains, nodes: Nodes) -> DomainCounts:
        """The number of matching asks on these nodes, in every domain. Read it at once."""
        if matching.by_id:
            return DomainCounts(domains, nodes, self.counts(matching, len(domains.numbers)))
        self._register(matching)
        return self._caches.matchings.by_domain(matching, self._counts.read(matching), domains, nodes)

    def columns(self, matching: Matching) -> tuple[Column, ...]:
        """What `nodes` and `counts` depend on."""
        if not matching.by_id:
            return (Column("work", matching),)
        ids = matching.ids
        if ids is None:
            self._all_watched = True
            return (ANY_WORK,)
        for id in ids - self._watched.map.keys():
            self._watched.write()[id] = None
        return tuple(Column("ask", id) for id in sorted(ids))

    def keepers(self, kind: Kind) -> list[tuple[Affinity, Nodes]]:
        """Symmetric anti-affinities of placed work that match this kind, with the nodes of that work."""
        found = self._caches.keepers_of.get(kind)
        if found is None:
            found = tuple(keeper for keeper in self._keeper_nodes.map if keeper.matching.includes(kind))
            self._caches.keepers_of[kind] = found
        nodes = self._keeper_nodes.map
        return [(keeper.affinity, nodes[keeper]) for keeper in found]

    @property
    def keeper_changes(self) -> int:
        """How often a symmetric anti-affinity was placed for the first time, or removed for the last time."""
        return self._caches.keeper_changes

    def pulls(self, kind: Kind) -> tuple[Pull, ...]:
        """The preferences of placed work that match this kind."""
        found = self._caches.pulls_of.get(kind)
        if found is None:
            found = tuple(pull for pull in self._pulls if pull.matching.includes(kind))
            self._caches.pulls_of[kind] = found
        return found

    def pulling(self, pull: Pull, domains: Domains, nodes: Nodes) -> DomainCounts:
        """The number of asks with this preference on these nodes, in every domain. Read it at once."""
        return self._caches.pulls.by_domain(pull, self._pulls.read(pull), domains, nodes)

    def with_port(self, wanted: HostPort) -> Nodes:
        """The nodes where placed work has opened this port."""
        found = 0
        for port, nodes in self._ports.read(wanted.number).items():
            if not wanted.ip or port.ip in ("", wanted.ip):
                found |= nodes
        return found

    def watches(self, kind: Kind) -> bool:
        """Whether placing work of this kind may change where other work can go."""
        return self._all_watched or bool(self._matching(kind))

    def columns_of(self, kind: Kind) -> tuple[Column, ...]:
        """What changes when work of this kind is placed, so that other work may fit."""
        columns = [Column("work", matching) for matching in self._matching(kind)]
        return (*columns, ANY_WORK) if self._all_watched else tuple(columns)

    @property
    def watched(self) -> Mapping[AskId, None]:
        """The asks that other work names by id."""
        return self._watched.map

    def up_to_watched(self, items: Mapping[AskId, T]) -> Iterator[T]:
        """The first items, up to and including one that other work names by id: placing it may change where that other
        work can go."""
        watched = self._watched.map
        last = next((place for place, id in enumerate(items, start=1) if id in watched), None) if watched else None
        return islice(items.values(), last)

    # -- changes

    def add(self, fleet: Fleet, placement: Placement) -> None:
        ask = placement.ask
        self.placements.write()[ask.id] = placement
        self.residents.write(placement.row)[ask.id] = None
        self._count(fleet, ask, placement.row, +1)
        self._count_evictable(ask, +1)
        self._bump_watched(fleet, ask.id, placement.row)

    def add_many(self, fleet: Fleet, alike: Sequence[Sequence[Placement]]) -> None:
        """The same for runs of equal asks. If a run affects other work by more than its labels, it is the only one of
        its kind."""
        rows: dict[int, list[AskId]] = {}
        kinds: dict[Kind, tuple[Ask, dict[int, int]]] = {}
        known = self.placements.write()
        for placements in alike:
            first = placements[0].ask
            self._count_evictable(first, len(placements))
            counts = kinds.setdefault((first.namespace, first.labels), (first, {}))[1]
            for placement in placements:
                id, row = placement.ask.id, placement.row
                known[id] = placement
                counts[row] = counts.get(row, 0) + 1
                rows.setdefault(row, []).append(id)
        for row, ids in rows.items():
            self.residents.write(row).update(dict.fromkeys(ids))
        for ask, counts in kinds.values():
            for row, count in counts.items():
                self._count(fleet, ask, row, count)
        for placement in (each for run in alike for each in run) if self._watched.map else ():
            self._bump_watched(fleet, placement.ask.id, placement.row)

    def remove(self, fleet: Fleet, id: AskId) -> Placement:
        placement = self.placements.write().pop(id)
        self.residents.drop(placement.row, id)
        self._count(fleet, placement.ask, placement.row, -1)
        self._count_evictable(placement.ask, -1)
        self._bump_watched(fleet, id, placement.row)
        return placement

    def nominate(self, fleet: Fleet, nomination: Placement) -> None:
        self.nominations.write()[nomination.ask.id] = nomination
        self._count(fleet, nomination.ask, nomination.row, +1)
        self._bump_watched(fleet, nomination.ask.id, nomination.row)

    def nominations_below(self, priority: int, row: int | None = None) -> list[Placement]:
        """The places that are kept for work of a lower priority, on one row or on all."""
        kept = self.nominations.map.values()
        return [each for each in kept if each.ask.priority < priority and row in (None, each.row)]

    def has_started(self, id: AskId, started: float) -> None:
        """Placed work has begun to run."""
        self.placements.write()[id] = self.placements.map[id]._replace(started=started)

    @property
    def lowest_evictable(self) -> int | None:
        """The lowest priority of placed work that may be evicted for other work."""
        return min(self._evictable.map, default=None)

    def _count_evictable(self, ask: Ask, step: int) -> None:
        if ask.preemptible:
            count = self._evictable.map.get(ask.priority, 0) + step
            if count:
                self._evictable.write()[ask.priority] = count
            else:
                del self._evictable.write()[ask.priority]

    def end_nomination(self, fleet: Fleet, id: AskId) -> Placement:
        nomination = self.nominations.write().pop(id)
        self._count(fleet, nomination.ask, nomination.row, -1)
        self._bump_watched(fleet, id, nomination.row)
        return nomination

    def set_unmanaged(self, fleet: Fleet, row: int, used: Unmanaged | None) -> None:
        """Record what unmanaged work uses on a node now."""
        before = self.unmanaged.map.get(row)
        step = (used.pieces if used else 0) - (before.pieces if before else 0)
        if used is None:
            self.unmanaged.write().pop(row, None)
        else:
            self.unmanaged.write()[row] = used
        if step:
            self._count_kind(fleet, UNMANAGED, row, step)
            if self._all_watched:
                fleet.bump(ANY_WORK, row)

    def note_known(self, fleet: Fleet, asks: Iterable[Ask]) -> None:
        """Asks are pending or placed; work that must be near them may fit again."""
        for id in self.targets.note_known(asks):
            self._bump_watched(fleet, id)

    def claim_changed(self, fleet: Fleet, claim: Claim) -> None:
        """A claim is new, or is now this."""
        for column in self.claims.set(claim):
            fleet.bump(column)

    def claim_ended(self, fleet: Fleet, id: ClaimId) -> None:
        """There is no such claim any more."""
        for column in self.claims.end(id):
            fleet.bump(column)

    def note_ended(self, fleet: Fleet, id: AskId) -> None:
        """An ask has ended; work that must be near it is tried again, so that its reason is updated."""
        if self.targets.note_ended(id):
            self._bump_watched(fleet, id)

    def forget_indexes(self, fleet: Fleet, wanted: Container[Column]) -> None:
        """Drop the indexes that no pending work reads; they are rebuilt when read."""
        versions = fleet.versions.write()
        for column in [column for column in versions if column.kind in ("work", "ask") and column not in wanted]:
            del versions[column]
        for matching in [matching for matching in self._nodes.map if Column("work", matching) not in wanted]:
            del self._nodes.write()[matching]
            self._counts.clear(matching)
        self._caches = Caches()
        kept = self._nodes.map
        self._matched_by = Sheet({k: tuple(m for m in found if m in kept) for k, found in self._matched_by.map.items()})
        self._watched = Sheet({id: None for id in self._watched.map if Column("ask", id) in wanted})
        self._all_watched = ANY_WORK in wanted

    # -- inside

    def _bump_watched(self, fleet: Fleet, id: AskId, row: int = -1) -> None:
        if id in self._watched.map:
            fleet.bump(Column("ask", id), row)

    def _count(self, fleet: Fleet, ask: Ask, row: int, step: int) -> None:
        self._count_kind(fleet, (ask.namespace, ask.labels), row, step)
        if ask.affinities or ask.pulls:
            effects = self._caches.effects_of(ask)
            for keeper in effects.keepers:
                self._count_keeper(keeper, row, step)
                fleet.bump(KEEPERS, row, news=step < 0)  # only removing it can help other work
            for pull in effects.pulls:
                self._count_pull(pull, row, step)
            if effects.pulls:
                fleet.bump(PULLS, row, news=False)  # a preference makes nothing fit
        for port in ask.ports:
            self._count_port(port, row, step)
            fleet.bump(Column("port", port.number), row, news=step < 0)
        for column in self.claims.count(ask.claims, row, step) if ask.claims else ():
            fleet.bump(column, row, news=step < 0)
        if self._all_watched:
            fleet.bump(ANY_WORK, row)

    def _count_kind(self, fleet: Fleet, kind: Kind, row: int, step: int) -> None:
        matched_by = self._matching(kind)
        if kind not in self._matched_by.map:
            self._matched_by.write()[kind] = matched_by
        if not _tally(self._kinds, kind, row, step) and kind not in self._kinds:
            del self._matched_by.write()[kind]
        for matching in matched_by:
            if bool(_tally(self._counts, matching, row, step)) != bool(self._nodes.map[matching] >> row & 1):
                self._nodes.write()[matching] ^= 1 << row
            self._caches.matchings.add(matching, row, step)
            fleet.bump(Column("work", matching), row)

    def _matching(self, kind: Kind) -> tuple[Matching, ...]:
        """The indexed selectors that match this kind."""
        known = self._matched_by.map.get(kind)
        return tuple(each for each in self._nodes.map if each.includes(kind)) if known is None else known

    def _count_keeper(self, keeper: Keeper, row: int, step: int) -> None:
        before = nodes = self._keeper_nodes.map.get(keeper, 0)
        if bool(_tally(self._keepers, keeper, row, step)) != bool(nodes >> row & 1):
            nodes ^= 1 << row
        if not before or not nodes:
            self._caches.keepers_of.clear()
            self._caches.keeper_changes += 1
        if nodes:
            self._keeper_nodes.write()[keeper] = nodes
        else:
            self._keeper_nodes.write().pop(keeper, None)

    def _count_pull(self, pull: Pull, row: int, step: int) -> None:
        was_known = pull in self._pulls
        _tally(self._pulls, pull, row, step)
        self._caches.pulls.add(pull, row, step)
        if (pull in self._pulls) != was_known:
            self._caches.pulls_of.clear()

    def _count_port(self, port: HostPort, row: int, step: int) -> None:
        nodes = self._ports.read(port.number).get(port, 0)
        if bool(_tally(self._port_counts, port, row, step)) != bool(nodes >> row & 1):
            nodes ^= 1 << row
        if nodes:
            self._ports.write(port.number)[port] = nodes
        else:
            self._ports.drop(port.number, port)

    def _register(self, matching: Matching) -> Nodes:
        found = self._nodes.map.get(matching)
        if found is not None:
            return found
        found = 0
        totals: dict[int, int] = {}
        for kind, rows in self._kinds.map.items():
            if matching.includes(kind):
                self._matched_by.write()[kind] = (*self._matched_by.map[kind], matching)
                for row, count in rows.items():
                    totals[row] = totals.get(row, 0) + count
                    found |= 1 << row
        if totals:
            self._counts.write(matching).update(totals)
        self._nodes.write()[matching] = found
        return found

    def _scan(self, matching: Matching) -> Iterator[Placement]:
        """Matching work of a selector that uses ask ids, found by checking single asks."""
        ids, placed, nominated = matching.ids, self.placements.map, self.nominations.map
        named: Iterable[Placement | None] = chain(placed.values(), nominated.values())
        if ids is not None:
            named = (placed.get(id) or nominated.get(id) for id in sorted(ids))
        for placement in named:
            if placement is None:
                continue
            ask = placement.ask
            if matching.includes((ask.namespace, ask.labels.changed({ASK_ID: ask.id}))):
                yield placement


class Caches:
    """What a `Work` computes again when it is missing; forks start without it."""

    __slots__ = ("_effects", "keeper_changes", "keepers_of", "matchings", "pulls", "pulls_of")

    def __init__(self) -> None:
        self.matchings: CountColumns[Matching] = CountColumns()
        self.pulls: CountColumns[Pull] = CountColumns()
        self.pulls_of: dict[Kind, tuple[Pull, ...]] = {}
        self.keepers_of: dict[Kind, tuple[Keeper, ...]] = {}
        self.keeper_changes = 0
        self._effects: dict[tuple[int, int, str], tuple[Ask, Effects]] = {}

    def effects_of(self, ask: Ask) -> Effects:
        """How the ask affects other work, resolved in its namespace. Equal asks mostly share their tuples, so their
        identity is the key; the entry keeps them alive."""
        key = id(ask.affinities), id(ask.pulls), ask.namespace
        found = self._effects.get(key)
        if found is None:
            if len(self._effects) >= EFFECTS_MAX:
                self._effects.clear()
            found = self._effects[key] = ask, _effects(ask)
        return found[1]


EFFECTS_MAX = 10_000


def _effects(ask: Ask) -> Effects:
    keepers = tuple(
        Keeper(affinity, meant_by(affinity.selector, affinity.namespaces, ask.namespace))
        for term in ask.affinities
        for affinity in term
        if affinity.symmetric and not affinity.near and not affinity.by_identity
    )
    pulls = tuple(
        Pull(meant_by(want.selector, want.namespaces, ask.namespace), key, pull.weight if want.near else -pull.weight)
        for pull in ask.pulls
        if isinstance(want := pull.want, Affinity)
        for key in want.topologies
    )
    return Effects(keepers, pulls)


def _tally(shelf: Shelf[K, int, int], key: K, row: int, step: int) -> int:
    """Add `step` to a count, and remove the entry when it reaches zero."""
    count = shelf.read(key).get(row, 0) + step
    if count:
        shelf.write(key)[row] = count
    else:
        shelf.drop(key, row)
    return count
