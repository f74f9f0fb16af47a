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
        is_protected = np.array([bool(self.protectors(each.kind)) for each in table.kind_numbers], np.bool_)
        if not is_protected.any():
            return np.zeros(0, np.int64)
        used = table.priorities != EMPTY_SLOT
        return np.flatnonzero((is_protected[np.where(used, table.kinds, 0)] & used).any(axis=0))

    def exceeding_on(self, table: Evictable, row: int, slots: Sequence[int], left: Amounts) -> Container[int]:
        """The same for one row and these of its slots: the slots that would exceed a budget."""
        wanted = np.zeros((table.priorities.shape[0], 1), np.bool_)
        wanted[[slot for slot in slots if not table.is_ending.item(slot, row)]] = True
        found = self.exceeding(table, np.array([row]), wanted, left)
        return () if found is None else frozenset(np.flatnonzero(found[:, 0]).tolist())

    def exceeding(self, table: Evictable, rows: Amounts, wanted: Flags, left: Amounts) -> Flags | None:
        """Of the work in these rows that might be evicted, that which would exceed a budget if all of a row were, the
        most important first; None if no budget protects any. `left` is what each budget still allows."""
        if not self.budgets.map:
            return None
        of_kind = [self.protectors(each.kind) for each in table.kind_numbers]
        most = max(map(len, of_kind), default=0)
        if not most:
            return None
        numbers = np.full((most, len(of_kind)), -1, np.int64)
        for kind, protectors in enumerate(of_kind):
            numbers[: len(protectors), kind] = protectors
        slots, where = np.nonzero(wanted & (numbers[0] >= 0)[table.kinds[: len(wanted), rows]])
        kinds = table.kinds[slots, rows[where]]
        budgets = numbers[:, kinds].ravel()
        entries = np.flatnonzero(budgets >= 0)
        budgets, which = budgets[entries], np.tile(np.arange(len(where)), most)[entries]
        group = where[which] * len(self.budgets.map) + budgets
        totals, left = np.bincount(group)[group], left[budgets]
        open_ones = np.flatnonzero((totals > left) & (left > 0))  # of the others, all exceed the budget or none
        order = open_ones[np.lexsort((slots[which[open_ones]], group[open_ones]))]
        ordered = group[order]
        firsts = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1]))
        place = np.arange(len(order)) - np.repeat(firsts, np.diff(np.append(firsts, len(order))))
        exceeds = np.append(which[order[place >= left[order]]], which[left <= 0])
        found = np.zeros(wanted.shape, np.bool_)
        found[slots[exceeds], where[exceeds]] = True
        return found
