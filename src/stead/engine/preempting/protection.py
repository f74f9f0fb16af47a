"""Budgets as columns: which evictions would exceed one.

Rule: work that is evicted counts against its budgets from the decision on, until it has ended, or until the cluster
reports that a budget allows so many fewer: then the cluster's own count includes it.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence

import numpy as np

from stead.engine.columns.amounts import Amounts
from stead.engine.columns.sharing import Sheet
from stead.engine.preempting.evictable import EMPTY_SLOT, Evictable, Flags
from stead.engine.work import Kind
from stead.language.budgets import Budget


class Protection:
    """All budgets. `version` changes with every change of a budget or of what counts against it."""

    def __init__(self) -> None:
        self.budgets: Sheet[str, Budget] = Sheet()
        self.version = 0
        self._protectors: dict[Kind, tuple[int, ...]] = {}  # the numbers of the budgets of a kind, cached

    def fork(self) -> Protection:
        twin = Protection()
        twin.budgets, twin.version = self.budgets.fork(), self.version
        return twin

    def set(self, budget: Budget) -> None:
        self.budgets.write()[budget.id] = budget
        self._changed()

    def end(self, id: str) -> None:
        if self.budgets.write().pop(id, None) is not None:
            self._changed()

    def _changed(self) -> None:
        self._protectors.clear()
        self.version += 1

    def protectors(self, kind: Kind) -> tuple[int, ...]:
        """The numbers of the budgets that protect this kind of work, in the order of `budgets`."""
        found = self._protectors.get(kind)
        if found is None:
            budgets = self.budgets.map.values()
            found = tuple([number for number, budget in enumerate(budgets) if budget.protects(*kind)])
            self._protectors[kind] = found
        return found

    def allowed(self, evicted: Iterable[Kind]) -> Amounts:
        """How many evictions each budget still allows; work of the kinds `evicted` counts against them."""
        left = np.array([budget.allowed for budget in self.budgets.map.values()], np.int64)
        for kind in evicted:
            for number in self.protectors(kind):
                left[number] -= 1
        return left

    def protected_rows(self, table: Evictable) -> Amounts:
        """The rows with work that a budget protects."""
        is_protected = np.array([bool(self.protectors(kind)) for kind in table.kind_numbers], np.bool_)
        if not is_protected.any():
            return np.zeros(0, np.int64)
        used = table.priorities != EMPTY_SLOT
        return np.flatnonzero((is_protected[np.where(used, table.kinds, 0)] & used).any(axis=0))

    def exceeding_on(self, table: Evictable, row: int, slots: Sequence[int], evicted: Iterable[Kind]) -> Container[int]:
        """The same for one row and these of its slots: the slots that would exceed a budget."""
        wanted = np.zeros((table.priorities.shape[0], 1), np.bool_)
        wanted[[slot for slot in slots if not table.is_ending.item(slot, row)]] = True
        found = self.exceeding(table, np.array([row]), wanted, evicted)
        return () if found is None else frozenset(np.flatnonzero(found[:, 0]).tolist())

    def exceeding(self, table: Evictable, rows: Amounts, wanted: Flags, evicted: Iterable[Kind]) -> Flags | None:
        """Of the work in these rows that might be evicted, that which would exceed a budget if all of a row were, the
        most important first; None if no budget protects any."""
        if not self.budgets.map:
            return None
        of_kind = [self.protectors(kind) for kind in table.kind_numbers]
        most = max(map(len, of_kind), default=0)
        if not most:
            return None
        numbers = np.full((most, len(of_kind)), -1, np.int64)
        for kind, protectors in enumerate(of_kind):
            numbers[: len(protectors), kind] = protectors
        where, slots = np.nonzero(wanted.T & (numbers[0] >= 0)[table.kinds[: len(wanted), rows]].T)
        kinds = table.kinds[slots, rows[where]]
        budgets = numbers[:, kinds].ravel()
        entries = np.flatnonzero(budgets >= 0)
        budgets, which = budgets[entries], np.tile(np.arange(len(where)), most)[entries]
        group = where[which] * len(self.budgets.map) + budgets
        order = np.lexsort((slots[which], group))
        group = group[order]
        firsts = np.flatnonzero(np.append(True, group[1:] != group[:-1]))
        place = np.arange(len(group)) - np.repeat(firsts, np.diff(np.append(firsts, len(group))))
        exceeds = which[order][place >= self.allowed(evicted)[budgets[order]]]
        found = np.zeros(wanted.shape, np.bool_)
        found[slots[exceeds], where[exceeds]] = True
        return found
