"""What rules about other work mean for an eviction: which work must go from a node, and where that is not enough.

Rule: this is about work of a lower priority and all nodes at once. `must_go` is exact for each piece of work; `hopeful`
may name a node too many, but never one too few.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from stead.engine.columns.amounts import Amounts
from stead.engine.preempting.evictable import Evictable, Flags, Traits
from stead.engine.rules import HoldsAffinity, NotSkewed, PortsFree, World
from stead.engine.shapes import Demand
from stead.engine.work import Kind, Matching, meant_by
from stead.language.asks import Affinity, HostPort


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
        self._must_go: Flags = np.zeros(0, np.bool_)
        self._beginnings = -1

    def must_go(self, table: Evictable) -> Flags:
        """By the number of the kind of work: whether no such work may be on a node that takes the demand."""
        kinds = table.kind_numbers
        if self._beginnings != table.beginnings or len(self._must_go) > len(kinds):
            self._beginnings, self._must_go = table.beginnings, np.zeros(0, np.bool_)
        new = list(kinds)[len(self._must_go) :]
        if new:
            self._must_go = np.append(self._must_go, [self._refuses(each) for each in new])
        return self._must_go

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

    def _refuses(self, other: Traits) -> bool:
        """Whether such work and the demand cannot be on one node."""
        if any(rule.meant.includes(other.kind) for rule in self._apart):
            return True
        if any(_collide(port, own) for port in other.ports for own in self._ports):
            return True
        return any(_keeps_away(each, other.kind, self.demand.kind) for term in other.affinities for each in term)


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
