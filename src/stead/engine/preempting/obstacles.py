"""What rules about other work mean for an eviction: which work must go from a node, and where that is not enough.

Rule: it compares all nodes at once. `must_go` is exact for each piece of work; `hopeful` may name a node too many, but
never one too few.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import islice

import numpy as np

from stead.engine.columns.amounts import Amounts
from stead.engine.columns.change_log import Column
from stead.engine.fleet import Fleet, Nodes, as_flags
from stead.engine.preempting.evictable import Evictable, Flags, Traits
from stead.engine.rules import HoldsAffinity, NotSkewed, PortsFree, World
from stead.engine.shapes import Demand
from stead.engine.work import Kind, Matching, meant_by
from stead.language.asks import Affinity, HostPort
from stead.language.labels import NODE_ID

Keys = frozenset[str]
EVERYWHERE: Keys = frozenset()
"""Every node, because every node has an id and ports."""


class Obstacles:
    """The rules about other work of one demand. `are_all_known`: whether evicting what must go satisfies them wherever
    anything does, so that no other choice of victims needs to be tried."""

    def __init__(self, demand: Demand) -> None:
        rules = [rule for rule in demand.rules.about_work if rule is not demand.rules.kept_away]
        self.demand = demand
        self._apart = [rule for rule in rules if isinstance(rule, HoldsAffinity) and _is_apart(rule)]
        self._spreads = [rule for rule in rules if isinstance(rule, NotSkewed)]
        self._ports = [port for rule in rules if isinstance(rule, PortsFree) for port in rule.ports]
        known = len(self._apart) + bool(self._ports)
        self.are_all_known = known == len(rules) and not demand.on_devices
        self._must_go: dict[Keys, set[int]] = {}
        self._known = -1, 0

    def must_go(self, table: Evictable, fleet: Fleet, slots: int, rows: Amounts) -> Flags:
        """Which work in these slots and rows may not be on a node together with the demand."""
        self._learn(table)
        found, kinds = np.zeros((slots, len(rows)), np.bool_), table.kinds[:slots, rows]
        for keys, refused in self._must_go.items():
            is_refused = np.zeros(len(table.kind_numbers), np.bool_)
            is_refused[list(refused)] = True
            carrying = [fleet.with_key.map.get(key, 0) for key in keys]
            part = is_refused[kinds]
            found |= part & as_flags(_union(carrying), fleet.size)[rows] if keys else part
        return found

    def columns(self) -> tuple[Column, ...]:
        """The labels that `must_go` reads."""
        return tuple(Column("label", key) for keys in self._must_go for key in sorted(keys))

    def _learn(self, table: Evictable) -> None:
        """Look at the kinds of work that are new."""
        kinds, (beginnings, known) = table.kind_numbers, self._known
        if beginnings != table.beginnings:
            self._must_go, known = {}, 0
        for number, each in enumerate(islice(kinds, known, None), start=known):
            for keys in self._refusing(each):
                self._must_go.setdefault(keys, set()).add(number)
        self._known = table.beginnings, len(kinds)

    def hopeful(self, world: World, table: Evictable, priority: int) -> Flags:
        """The rows where evicting work of a lower priority can satisfy the affinities and spreads."""
        size, extent = world.fleet.size, world.fleet.extent
        found = np.ones(size, np.bool_)
        for rule in self._apart:
            gone = _counts(table, rule.meant, priority)[:extent]
            for key in rule.affinity.topologies:
                domains = world.fleet.domain_column(key)
                counts = world.work.counts_by_domain(rule.meant, domains, world.fleet.alive).counts
                found[:extent] &= domains.spread_out(counts) <= gone
        for spread in self._spreads:
            found[:extent] &= _may_be_even(spread, world, _counts(table, spread.meant, priority)[:extent])
        found[extent:] = False
        for each in world.work.nominations_below(priority):
            found[each.row] = True  # it gives way, and is counted above
        return found

    def _refusing(self, other: Traits) -> Iterator[Keys]:
        """The label keys of which a node must have one, so that it cannot have such work and the demand together."""
        if any(_collide(port, own) for port in other.ports for own in self._ports):
            yield EVERYWHERE
        apart = [rule.affinity for rule in self._apart if rule.meant.includes(other.kind)]
        both_ways = [each for term in other.affinities for each in term]
        for each in (*apart, *(it for it in both_ways if _keeps_away(it, other.kind, self.demand.kind))):
            yield EVERYWHERE if NODE_ID in each.topologies else frozenset(each.topologies)


def _union(sets: Iterable[Nodes]) -> Nodes:
    found = 0
    for each in sets:
        found |= each
    return found


def _is_apart(rule: HoldsAffinity) -> bool:
    return not rule.affinity.near and not rule.meant.by_id


def _collide(first: HostPort, second: HostPort) -> bool:
    return first.number == second.number and ("" in (first.ip, second.ip) or first.ip == second.ip)


@lru_cache(4096)
def _keeps_away(affinity: Affinity, holder: Kind, kind: Kind) -> bool:
    """Whether placed work that has this affinity keeps work of a kind away."""
    if affinity.near or not affinity.symmetric or affinity.by_identity:
        return False
    return meant_by(affinity.selector, affinity.namespaces, holder[0]).includes(kind)


def _counts(table: Evictable, meant: Matching, priority: int) -> Amounts:
    """How much matching work of a lower priority is on every row."""
    matches = np.array([meant.includes(each.kind) for each in table.kind_numbers], np.bool_)
    if not matches.any():
        return np.zeros(table.priorities.shape[1], np.int64)
    counts: Amounts = (matches[table.kinds] & (table.priorities < priority)).sum(axis=0)
    return counts


def _may_be_even(rule: NotSkewed, world: World, gone: Amounts) -> Flags:
    """The rows where a spread is satisfied if all of this matching work is gone from the row."""
    domains, found = rule.counted(world)
    present, counts = found.present, found.counts
    least_two = np.partition(counts[present], 1)[:2] if len(present) > 1 else counts[present]
    first = int(least_two[0]) if len(present) else 0
    others = np.full(domains.size, first, np.int64)
    if len(present) == 1:
        others[present] = np.iinfo(np.int64).max
    elif len(present) and least_two[1] > first:
        others[present[counts[present] == first]] = least_two[1]
    left = domains.spread_out(counts) - gone
    least = np.minimum(domains.spread_out(others), left)
    if len(present) < rule.spread.min_domains:
        least = np.zeros_like(least)
    is_even: Flags = left <= rule.spread.max_skew + least - rule.counts_itself
    return is_even & (domains.numbers >= 0)
