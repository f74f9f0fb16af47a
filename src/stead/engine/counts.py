"""Counts of work as columns: by row, and by domain of a label key.

Rule: a column is built when it is first read, and then follows every change.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Generic, TypeVar

import numpy as np

from stead.engine.columns.amounts import Amounts
from stead.engine.fleet import Domains, Nodes, as_flags

K = TypeVar("K")

DOMAINS_MAX = 8
"""How many counts by domain are kept for one selector: for several keys, or sets of nodes."""


class DomainCounts:
    """Counts in the domains of a label key, on the rows `nodes` only. Never write to it."""

    __slots__ = ("_nodes", "counts", "domains", "present")

    def __init__(self, domains: Domains, nodes: Nodes, column: Amounts) -> None:
        inside = as_flags(nodes, len(column))
        self.domains, self._nodes = domains, nodes
        self.counts: Amounts = domains.sums(np.where(inside, column, 0))
        self.present = np.flatnonzero(domains.present(inside)[: domains.size])
        """The numbers of the domains that have one of the rows."""

    @property
    def least(self) -> int:
        """The smallest count of a domain that has one of the rows; 0 if there is none."""
        counts = self.counts if len(self.present) == self.domains.size else self.counts[self.present]
        return int(np.minimum.reduce(counts)) if len(counts) else 0

    def is_of(self, domains: Domains, nodes: Nodes) -> bool:
        return self.domains is domains and self._nodes == nodes

    def add(self, row: int, step: int) -> None:
        if self._nodes >> row & 1:
            number = self.domains.numbers.item(row)
            if number >= 0:
                self.counts[number] += step


class CountColumns(Generic[K]):
    """Counts by row as columns, and by domain, built when first read and then kept up to date."""

    __slots__ = ("_by_domain", "_columns")

    def __init__(self) -> None:
        self._columns: dict[K, Amounts] = {}
        self._by_domain: dict[K, list[DomainCounts]] = {}

    def by_domain(self, key: K, counts: Mapping[int, int], domains: Domains, nodes: Nodes) -> DomainCounts:
        """The counts of a key in domains, on these rows."""
        known = self._by_domain.setdefault(key, [])
        for each in known:
            if each.is_of(domains, nodes):
                return each
        if len(known) >= DOMAINS_MAX:
            known.clear()
        found = DomainCounts(domains, nodes, self.column(key, counts, len(domains.numbers)))
        known.append(found)
        return found

    def column(self, key: K, counts: Mapping[int, int], size: int) -> Amounts:
        """The column of a key, whose counts are these."""
        found = self._columns.get(key)
        if found is None or len(found) != size:
            self._by_domain.pop(key, None)
            found = self._columns[key] = np.zeros(size, np.int64)
            found[list(counts)] = list(counts.values())
        return found

    def add(self, key: K, row: int, step: int) -> None:
        """A count changed."""
        column = self._columns.get(key)
        if column is None:
            return
        if row < len(column):
            column[row] += step
            for each in self._by_domain.get(key, ()):
                each.add(row, step)
        else:
            del self._columns[key]
            self._by_domain.pop(key, None)
