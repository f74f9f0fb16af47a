"""Pending work as rows: what equal pieces need, how many there are, and which kinds of new nodes would take them.

Rule: the engine's rules say which kinds would take work. What this says about work that is tied to other work (groups,
affinities, spreads) is only an estimate; the engine decides on a fork.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from stead.engine.engine import Engine
from stead.language.asks import Ask, Group, Strategy
from stead.language.labels import IDENTITY_KEYS, NODE_ID
from stead.language.resources import DEVICES, UNIT
from stead.planner.showroom import Showroom
from stead.planner.trials import lacking


@dataclass(frozen=True, slots=True)
class Way:
    """One way to serve a piece of work: on new nodes of these kinds, with these resources."""

    kinds: tuple[int, ...]
    needs: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Want:
    """`count` equal pieces of work. `ways` are in order: a later one is tried if limits forbid the ones before it.

    Wants with the same `apart` share a rule: one new node takes at most `together` of their pieces.
    """

    count: int
    priority: int
    ways: tuple[Way, ...]
    apart: int = -1
    together: int = 0


def demand_of(engine: Engine, showroom: Showroom, is_retry: bool = False) -> list[Want]:
    """What is pending in an engine and could run on new nodes. With `is_retry`, rules about other work count for all
    work, not only for work that has such rules itself: other work may keep it away."""
    return list(_Reader(engine, showroom, is_retry).wants())


class _Reader:
    def __init__(self, engine: Engine, showroom: Showroom, is_retry: bool) -> None:
        self._engine, self._showroom, self._is_retry = engine, showroom, is_retry
        self._beside: Engine | None = None
        self._known: dict[tuple[object, ...], tuple[Way, ...]] = {}
        self._next = 0

    def wants(self) -> Iterator[Want]:
        for items in self._engine.pending:
            first = items[0]
            for priority, count in Counter(item.priority for item in items).items():
                if isinstance(first, Group):
                    pieces = lacking(self._engine, first)
                    yield from self._of_groups(first, pieces, count, priority)
                else:
                    yield from self._of_asks(first, count, priority)

    def _of_asks(self, ask: Ask, count: int, priority: int) -> Iterator[Want]:
        ways = self._ways(ask)
        if ways:
            is_apart = bool(ask.ports) or any(self._keeps_apart(ask))
            yield Want(count, priority, ways, self._new() if is_apart else -1, 1)

    def _ways(self, ask: Ask) -> tuple[Way, ...]:
        key = ask.shape_key
        if key not in self._known:
            beside = None
            if self._is_retry or self._showroom.depends_on_work(ask):
                self._beside = beside = self._beside or self._showroom.beside(self._engine)
            tiers = self._showroom.tiers(ask, beside)
            self._known[key] = tuple(
                Way(tier.kinds, _whole(ask.choices[tier.choice].resources)) for tier in tiers if tier.kinds
            )
        return self._known[key]

    def _keeps_apart(self, ask: Ask) -> Iterator[bool]:
        """Whether two such pieces cannot be on one node."""
        for term in ask.affinities:
            for affinity in term:
                is_on_node = any(key in IDENTITY_KEYS or self._is_own(key) for key in affinity.topologies)
                yield not affinity.near and is_on_node and affinity.selector.matches(ask.labels)

    def _is_own(self, key: str) -> bool:
        return any(key in kind.own_keys for kind in self._showroom.catalog)

    def _new(self) -> int:
        self._next += 1
        return self._next

    # -- groups

    def _of_groups(self, group: Group, members: Sequence[Ask], count: int, priority: int) -> Iterator[Want]:
        """So many equal groups, of which these members are pending."""
        is_whole = members == group.alternatives[0]
        for index, alternative in enumerate(group.alternatives if is_whole else [members]):
            if is_whole and group.least(index) > len(alternative):  # it waits for more members
                continue
            found = self._of_members(group, alternative, count, priority)
            if found:
                yield from found
                return

    def _of_members(self, group: Group, members: Sequence[Ask], count: int, priority: int) -> list[Want]:
        """Nothing if a member has no kind of node."""
        strategies = {NODE_ID: group.strategy}
        labels: dict[str, Strategy] = {}
        for key, strategy in group.topology:
            (strategies if self._is_own(key) else labels)[key] = strategy
        equal = Counter(member.shape_key for member in members)
        first = {member.shape_key: member for member in reversed(members)}
        wants = [Want(equal[key] * count, priority, self._ways(first[key])) for key in equal]
        for key, strategy in labels.items():
            wants = list(self._by_label(key, strategy, wants, count))
        if not wants or not all(want.ways for want in wants):
            return []
        if Strategy.STRICT_PACK in strategies.values():
            return self._on_one_node(wants, count)
        if Strategy.STRICT_SPREAD in strategies.values():
            apart = self._new()
            return [replace(want, apart=apart, together=count) for want in wants]
        return wants

    def _by_label(self, key: str, strategy: Strategy, wants: Sequence[Want], count: int) -> Iterator[Want]:
        """The same for the members of so many groups, which a label keeps together or apart."""
        if not strategy.strict:
            yield from wants
            return
        catalog = self._showroom.catalog
        values = dict.fromkeys(value for kind in catalog if (value := kind.labels.get(key)) is not None)
        rows = [{row for row, kind in enumerate(catalog) if kind.labels.get(key) == value} for value in values]
        if strategy is Strategy.STRICT_PACK:
            places = [[_only(want, each) for want in wants] for each in rows]
            possible = [each for each in places if all(want.ways for want in each)]
            yield from min(possible, key=lambda each: sum(map(self._price, each)), default=())
            return
        free = iter(rows)
        for want in wants:
            for _ in range(want.count // count):
                yield replace(_only(want, next(free, set())), count=count)

    def _on_one_node(self, wants: Sequence[Want], count: int) -> list[Want]:
        needs: Counter[str] = Counter()
        kinds = set(range(len(self._showroom.catalog)))
        for want in wants:
            kinds &= {row for way in want.ways for row in way.kinds}
            for resource, need in want.ways[0].needs.items():
                needs[resource] += need * want.count // count
        if not kinds:
            return []
        return [replace(wants[0], count=count, ways=(Way(tuple(sorted(kinds)), dict(needs)),))]

    def _price(self, want: Want) -> float:
        return min(self._showroom.catalog[row].price for way in want.ways for row in way.kinds)


def _only(want: Want, rows: set[int]) -> Want:
    """The same on these kinds only."""
    ways = (Way(tuple(row for row in way.kinds if row in rows), way.needs) for way in want.ways)
    return replace(want, ways=tuple(way for way in ways if way.kinds))


def _whole(needs: Mapping[str, int]) -> dict[str, int]:
    """The needs, with shares of devices as large as they are in a device that holds as many as possible."""
    return {
        resource: UNIT // (UNIT // need) if resource in DEVICES and need < UNIT else need
        for resource, need in needs.items()
    }


def pieces(wants: Iterable[Want]) -> int:
    """How many pieces of work these are."""
    return sum(want.count for want in wants)
