"""Views: which nodes are open to one choice of a shape, ignoring amounts.

Rule: a `View` is a cache of one engine. It only collects what the rules refuse, and evaluates a rule again only if a
column that the rule reads has changed.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from stead.engine.columns.amounts import SCALARS_MAX, Amounts
from stead.engine.columns.change_log import NODES, Column
from stead.engine.fleet import Nodes, as_flags, rows_of
from stead.engine.rules import Rule, World
from stead.engine.shapes import Demand


class View:
    """The nodes that are open to one demand, ignoring amounts, and the preference for each (with the policy ``kube``:
    none, because its scores also depend on amounts). A rule is evaluated again only if a column that it reads has
    changed."""

    __slots__ = (
        "_columns",
        "_keepers",
        "_open_but_for_work",
        "_readers",
        "_refused",
        "_rules",
        "_size",
        "_stamp",
        "demand",
        "flags",
        "nodes",
        "worth",
    )

    def __init__(self, demand: Demand) -> None:
        self.demand = demand
        self.nodes: Nodes = 0
        self.flags: NDArray[np.bool_] = np.empty(0, np.bool_)
        self.worth: Amounts | None = None
        self._rules = demand.rules.before_amounts
        self._refused: list[Nodes] = []  # by each rule
        self._readers: dict[Column, list[int]] = {}  # the rules that read a column
        self._columns: tuple[Column, ...] = ()
        self._stamp: tuple[int, ...] = ()
        self._open_but_for_work: Nodes | None = None
        self._size = self._keepers = -1

    def refresh(self, world: World) -> bool:
        """Recompute what depends on a column that has changed. Returns whether the result may differ."""
        fleet, is_kube = world.fleet, self.demand.is_kube
        stamp = fleet.stamp(self._columns)
        if stamp == self._stamp and self._size == fleet.size:
            return False
        self._evaluate(world, stamp)
        refused = 0
        for nodes in self._refused:
            refused |= nodes
        nodes = fleet.alive & ~refused
        is_new = nodes != self.nodes or self._size != fleet.size or not is_kube
        if is_new:
            self._show(nodes, fleet.size)
            self.worth = None if is_kube else self._preferences(world)
        self._size = fleet.size
        return is_new

    def open_but_for(self, world: World, rules: Sequence[Rule]) -> Nodes:
        """The nodes that no rule refuses, apart from these."""
        refused = 0
        for rule, nodes in zip(self._rules, self._refused, strict=True):
            if not any(rule is each for each in rules):
                refused |= nodes
        return world.fleet.alive & ~refused

    def open_but_for_work(self, world: World) -> Nodes:
        """The same, apart from the rules whose refusals may end when placed work is evicted."""
        if self._open_but_for_work is None:
            self._open_but_for_work = self.open_but_for(world, self.demand.rules.liftable)
        return self._open_but_for_work

    def _evaluate(self, world: World, stamp: tuple[int, ...]) -> None:
        """Evaluate the rules that read a changed column; all of them if nodes came or went, or if the columns that they
        read may be others."""
        self._open_but_for_work = None
        fleet, keepers = world.fleet, world.work.keeper_changes
        changed = {column for column, new, old in zip(self._columns, stamp, self._stamp, strict=False) if new != old}
        is_new_claim = any(column.kind == "claim" for column in changed)  # the labels that matter may be others
        if self._size != fleet.size or NODES in changed or self._keepers != keepers or is_new_claim:
            self._refused = [_refused(rule, world) for rule in self._rules]
            self._keepers, self._readers = keepers, {}
            for index, rule in enumerate(self._rules):
                for column in rule.reads(world.work):
                    self._readers.setdefault(column, []).append(index)
            self._columns = self.demand.reads(world.work)
            self._stamp = fleet.stamp(self._columns)
            return
        for index in {index for column in changed for index in self._readers.get(column, ())}:
            self._refused[index] = _refused(self._rules[index], world)
        self._stamp = stamp

    def _show(self, nodes: Nodes, size: int) -> None:
        changed = nodes ^ self.nodes
        if len(self.flags) == size and changed.bit_count() <= SCALARS_MAX:
            self.flags = self.flags.copy()
            for row in rows_of(changed):
                self.flags[row] = not self.flags[row]
        else:
            self.flags = as_flags(nodes, size)
        self.nodes = nodes

    def _preferences(self, world: World) -> Amounts | None:
        worth = self.demand.preferences(world)
        if not worth:
            return None
        total = np.zeros(world.fleet.size, np.int64)
        for nodes, weight in worth:
            if nodes:
                total += as_flags(nodes, world.fleet.size) * np.int64(weight)
        return total


def _refused(rule: Rule, world: World) -> Nodes:
    """All nodes that the rule refuses."""
    found = 0
    for _, nodes in rule.refusals(world):
        found |= nodes
    return found
