"""The scores of kube-scheduler's default plugins, as columns over all nodes.

Rule: among the nodes that no rule refuses, the best node is always one that kube-scheduler 1.36, with its default
plugins and weights, would rank best. The arithmetic is upstream's, integers and floats included. The scores here are
normalised over the candidates, so they are computed again when the candidates change; those in `kube_fit` are not.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stead.engine.columns.amounts import LOAD_MAX, REFUSED, Amounts
from stead.engine.columns.change_log import NODES, PULLS, TAINTS, Column
from stead.engine.fleet import Domains, Fleet, Nodes, as_flags, from_flags, rows_of
from stead.engine.ranking.in_turn import Foresight
from stead.engine.ranking.kube_fit import REPAIRED_MAX, SCORE_MAX, FitScores, Rows
from stead.engine.ranking.policies import Dice
from stead.engine.ranking.views import View
from stead.engine.rules import ToleratesTaints, World, allowed
from stead.engine.shapes import Demand
from stead.engine.work import Matching, Pull, meant_by
from stead.language.asks import Affinity, Spread
from stead.language.labels import ANYWHERE, Selector
from stead.language.resources import UNIT

TAINT_WEIGHT, AFFINITY_WEIGHT, SPREAD_WEIGHT, NEARNESS_WEIGHT = 3, 2, 2, 2
HOSTNAME = "kubernetes.io/hostname"
"""A spread over this key counts the node itself, even if two nodes have the same value."""


class SoftSpread(NamedTuple):
    """A preferred spread with what it counts."""

    spread: Spread
    matching: Matching


class KubeStanding:
    """One demand's ranking of all nodes, as `standing.Standing`, by kube-scheduler's scores."""

    __slots__ = (
        "_base",
        "_columns",
        "_feasible",
        "_fit",
        "_generation",
        "_parts",
        "_prefers",
        "_present",
        "_pulling",
        "_pulls",
        "_ranks",
        "_seen",
        "_spreads",
        "_stamp",
        "_static",
        "_static_columns",
        "_static_stamp",
        "_view",
        "demand",
        "keys",
        "nodes",
    )

    def __init__(self, demand: Demand, fit: FitScores) -> None:
        self.demand = demand
        self.nodes: Nodes = 0
        self.keys: Amounts = np.empty(0, np.int64)
        wants = [(preference.want, preference.weight) for preference in demand.prefers]
        namespace = demand.kind[0]
        self._prefers = [(want, weight) for want, weight in wants if isinstance(want, Selector)]
        self._pulls = tuple(
            Pull(meant_by(want.selector, want.namespaces, namespace), key, weight if want.near else -weight)
            for want, weight in wants
            if isinstance(want, Affinity)
            for key in want.topologies
        )
        self._spreads = tuple(
            SoftSpread(want, meant_by(want.selector, None, namespace)) for want, _ in wants if isinstance(want, Spread)
        )
        self._view = View(demand)
        self._fit, self._generation = fit, -1
        self._feasible: NDArray[np.bool_] = np.empty(0, np.bool_)
        self._ranks: Amounts = self.keys
        """The keys as if all rows were candidates."""
        self._present: dict[str, tuple[Domains, NDArray[np.intp]]] = {}
        """For topology keys: the numbers of the domains that have a candidate."""
        self._static: tuple[Amounts | None, Amounts | None] = None, None
        keys = sorted({key for want, _ in self._prefers for key in want.keys})
        self._static_columns = (NODES, TAINTS, *(Column("label", key) for key in keys))
        self._static_stamp: tuple[int, ...] | None = None
        self._parts: Amounts | None = None
        self._pulling: tuple[Pull, ...] | None = None
        self._columns: tuple[Column, ...] = ()
        self._stamp: tuple[int, ...] | None = None
        self._seen = 0

    # -- keeping up

    def refresh(self, world: World) -> None:
        """Update the keys for what changed since the last call; row by row where only few rows changed."""
        fleet = world.fleet
        changed = self._fit.refresh(fleet, self._generation, self._seen)
        is_new_mask = self._view.refresh(world)
        is_new_static = self._refresh_static(fleet)
        stamp = fleet.stamp(self._columns)
        if is_new_static:
            changed = None
        elif changed is not None and not (changed or is_new_mask or stamp != self._stamp):
            return
        self._seen, self._generation = fleet.touched.end, self._fit.generation
        moved = self._repair_candidates(fleet, changed)
        if moved is None or moved or is_new_static or stamp != self._stamp:
            before, self._parts = self._parts, self._normalised(world, self._feasible)
            changed = changed if before is self._parts else None
            pulls = world.work.pulls(self.demand.kind)
            if self._pulling is not pulls:
                self._pulling, self._columns = pulls, self._reads(world)
            self._stamp = fleet.stamp(self._columns)
        self._rank(changed, moved)

    def _repair_candidates(self, fleet: Fleet, changed: Rows) -> Rows:
        """Update the candidates. Returns the rows that became one or are no longer one."""
        flags, before, self.nodes = self._view.flags, self.nodes, self._view.nodes
        switched = before ^ self.nodes
        if changed is None or switched.bit_count() > REPAIRED_MAX:
            self._feasible = self._fit.fits & flags[: fleet.extent]
            self._present.clear()
            return None
        fits, moved = self._fit.fits, dict[int, None]()
        for row in (*changed, *rows_of(switched)):
            is_candidate = fits.item(row) and flags.item(row)
            if is_candidate != self._feasible.item(row):
                self._feasible[row], moved[row] = is_candidate, None
        if moved:
            self._present.clear()
        return moved

    def _rank(self, changed: Rows, moved: Rows) -> None:
        """Update the keys of rows whose scores changed, and of rows that became a candidate or are no longer one."""
        base = self._fit.base
        if changed is None:
            self._ranks = -base if self._parts is None else -base - self._parts
        else:
            for row in changed:
                self._ranks[row] = -base.item(row) - (0 if self._parts is None else self._parts.item(row))
        if changed is None or moved is None:
            self.keys = np.where(self._feasible, self._ranks, REFUSED)
        else:
            for row in (*changed, *moved):
                self.keys[row] = self._ranks.item(row) if self._feasible.item(row) else REFUSED

    def _reads(self, world: World) -> tuple[Column, ...]:
        """What the scores depend on that is normalised over the candidates, besides the candidates."""
        columns: dict[Column, None] = {PULLS: None}
        for pull in (*self._pulls, *world.work.pulls(self.demand.kind)):
            columns[Column("label", pull.topology)] = None
        for pull in self._pulls:
            columns.update(dict.fromkeys(world.work.columns(pull.matching)))
        for spread, matching in self._spreads:
            columns[Column("label", spread.topology)] = None
            columns.update(dict.fromkeys(world.work.columns(matching)))
            columns.update((Column("label", key), None) for key in sorted(self.demand.selector.keys))
        return tuple(columns)

    def _refresh_static(self, fleet: Fleet) -> bool:
        """Update the scores that depend on nodes alone. Returns whether they may have changed."""
        stamp = *fleet.stamp(self._static_columns), fleet.extent
        if stamp == self._static_stamp:
            return False
        self._static_stamp = stamp
        self._static = self._avoided(fleet), self._preferred(fleet)
        return True

    # -- scores that depend on nodes alone

    def _avoided(self, fleet: Fleet) -> Amounts | None:
        """The number of prefer-no-schedule taints that are not tolerated."""
        avoided = self.demand.avoided(fleet)
        if not avoided:
            return None
        found = np.zeros(fleet.extent, np.int64)
        for nodes, _ in avoided:
            found += as_flags(nodes, fleet.extent)
        return found

    def _preferred(self, fleet: Fleet) -> Amounts | None:
        """The sum of the weights of the node preferences that hold."""
        if not self._prefers:
            return None
        found = np.zeros(fleet.extent, np.int64)
        for want, weight in self._prefers:
            found += as_flags(fleet.selected(want), fleet.extent) * np.int64(weight)
        return found

    # -- scores that are normalised over the candidates

    def _normalised(self, world: World, feasible: NDArray[np.bool_]) -> Amounts | None:
        """The sum of all normalised scores, each with its weight; None if they are the same for all candidates."""
        avoided, preferred = self._static
        parts: list[Amounts] = []
        most = _most(avoided, feasible)
        if avoided is not None and most:
            parts.append(TAINT_WEIGHT * (SCORE_MAX - SCORE_MAX * avoided // most))
        most = _most(preferred, feasible)
        if preferred is not None and most:
            parts.append(AFFINITY_WEIGHT * (SCORE_MAX * preferred // most))
        spread = self._evenness(world, feasible) if self._spreads else None
        if spread is not None:
            parts.append(SPREAD_WEIGHT * spread)
        nearness = self._nearness(world, feasible)
        if nearness is not None:
            parts.append(NEARNESS_WEIGHT * nearness)
        if not parts:
            return None
        total = parts[0]
        for part in parts[1:]:
            total = total + part
        return total

    def _nearness(self, world: World, feasible: NDArray[np.bool_]) -> Amounts | None:
        """InterPodAffinity: weights of the ask's own preferences for other work, and of that work's for the ask."""
        fleet, work = world.fleet, world.work
        keys = {pull.topology for pull in (*self._pulls, *work.pulls(self.demand.kind))}
        if len(keys) == 1:
            [key] = keys
            if len(self._present_in(key, fleet.domain_column(key), feasible)) < 2:
                return None  # all candidates are in one domain
        by_key: dict[str, Amounts] = {}
        for pull in self._pulls:
            counted = work.counts_by_domain(pull.matching, fleet.domain_column(pull.topology), fleet.alive)
            by_key[pull.topology] = by_key.get(pull.topology, 0) + pull.weight * counted.counts
        for pull in work.pulls(self.demand.kind):
            counted = work.pulling(pull, fleet.domain_column(pull.topology), fleet.alive)
            by_key[pull.topology] = by_key.get(pull.topology, 0) + pull.weight * counted.counts
        if not by_key:
            return None
        if len(by_key) == 1:  # equal for all rows of a domain, so it is computed once for each domain
            [(key, sums)] = by_key.items()
            domains = fleet.domain_column(key)
            padded = np.zeros(domains.size + 1, np.int64)  # the last entry is for rows without the key
            padded[:-1] = sums
            score = _between(padded, padded[self._present_in(key, domains, feasible)])
            return None if score is None else score[domains.numbers]
        found = np.zeros(fleet.extent, np.int64)
        for key, sums in by_key.items():
            found += fleet.domain_column(key).spread_out(sums)
        return _between(found, found[feasible])

    def _present_in(self, key: str, domains: Domains, feasible: NDArray[np.bool_]) -> NDArray[np.intp]:
        """The numbers of the domains that have one of these rows; the last number is for rows without the key."""
        if feasible is not self._feasible:
            return np.flatnonzero(domains.present(feasible))
        known = self._present.get(key)
        if known is None or known[0] is not domains:
            known = self._present[key] = domains, np.flatnonzero(domains.present(feasible))
        return known[1]

    def _evenness(self, world: World, feasible: NDArray[np.bool_]) -> Amounts | None:
        """PodTopologySpread: less matching work in the domains of a node is better."""
        fleet = world.fleet
        columns = [fleet.domain_column(spread.topology) for spread, _ in self._spreads]
        scored, carrying = feasible, fleet.alive
        if all(spread.needs_key for spread, _ in self._spreads) and not all(each.are_everywhere for each in columns):
            for spread, _ in self._spreads:
                carrying &= fleet.with_key.map.get(spread.topology, 0)
            scored = feasible & as_flags(carrying, fleet.extent)
        raw = np.zeros(fleet.extent, np.float64)
        for (spread, matching), domains in zip(self._spreads, columns, strict=True):
            if spread.topology == HOSTNAME:
                size = int(np.count_nonzero(scored))
                weighted = world.work.counts(matching, fleet.extent) * math.log(size + 2)
            else:
                counted = world.work.counts_by_domain(matching, domains, carrying & self._included(world, spread))
                size = len(self._present_in(spread.topology, domains, scored))
                weighted = domains.spread_out(counted.counts * math.log(size + 2))
            weighted += float(spread.max_skew - 1)
            raw += weighted if domains.are_everywhere else np.where(domains.numbers >= 0, weighted, 0.0)
        whole = np.floor(raw)
        found = (whole + (raw - whole >= 0.5)).astype(np.int64)
        if not scored.any():
            return None
        least = int(np.where(scored, found, _INT_MAX).min())
        most = int((scored * found).max())
        even = SCORE_MAX * (most + least - found) // most if most else np.full(fleet.extent, SCORE_MAX, np.int64)
        return even if scored is feasible else np.where(scored, even, 0)

    def _included(self, world: World, spread: Spread) -> Nodes:
        """The nodes whose work a spread counts."""
        nodes = world.fleet.alive
        if spread.by_selector and self.demand.selector != ANYWHERE:
            nodes &= world.fleet.selected(self.demand.selector)
        return nodes & allowed((ToleratesTaints(self.demand.tolerations),), world) if spread.by_taints else nodes

    # -- choosing, as in `standing.Standing`

    def candidates(self) -> Nodes:
        return from_flags(self._feasible)

    def best(self, dice: Dice) -> int | None:
        """The row of the best node, or None; among equal nodes, the first in table order."""
        row = int(self.keys.argmin()) if len(self.keys) else -1
        return row if row >= 0 and self.keys.item(row) != REFUSED else None

    def best_many(self, world: World, count: int) -> list[int]:
        """The rows that `count` equal asks would get one after the other; fewer if not all fit. Call it only if placing
        one ask changes nothing for the next but the amounts."""
        fleet, fit, keys = world.fleet, self._fit, self.keys.copy()
        base, feasible, parts, is_own = fit.base, self._feasible, self._parts, False
        rooms: dict[int, int] = {}
        taken: dict[int, int] = {}
        rows: list[int] = []
        while len(rows) < count and len(keys):
            row = int(keys.argmin())
            if keys.item(row) == REFUSED:
                break
            rows.append(row)
            more = taken[row] = taken.get(row, 0) + 1
            if row not in rooms:
                rooms[row] = fit.room(fleet, row)
            if not is_own:
                base, feasible, is_own = base.copy(), feasible.copy(), True
            if more < rooms[row]:
                base[row] = fit.score(fleet, row, more)
                keys[row] = -base.item(row) - (0 if parts is None else parts.item(row))
            else:
                feasible[row] = False
                keys[row] = REFUSED
                if parts is not None:
                    parts = self._normalised(world, feasible)
                    keys = np.where(feasible, -(base if parts is None else base + parts), REFUSED)
        return rows

    def best_in_turn(self, world: World, count: int) -> list[int]:
        """The same if placing one ask changes where the next may go; none if that cannot be foreseen."""
        foresight = Foresight.of(self.demand)
        if foresight is None or not self._ranks_by_fit_alone(world, foresight):
            return []
        return foresight.rows(world, self._fit, self._view.open_but_for(world, foresight.spreads), count)

    def _ranks_by_fit_alone(self, world: World, foresight: Foresight) -> bool:
        """Whether no other score differs between the candidates, also after more equal asks were placed."""
        if self._prefers or self._pulls or self._spreads or self._static[0] is not None:
            return False
        keys = foresight.pulled_over | {pull.topology for pull in world.work.pulls(self.demand.kind)}
        if not keys:
            return True
        columns = [world.fleet.domain_column(key) for key in keys]
        are_in_one_domain = len(columns) == 1 and int(columns[0].present(self._feasible).sum()) < 2
        return are_in_one_domain and not foresight.spreads

    def score(self, fleet: Fleet, row: int) -> tuple[int, int]:
        """(kube-scheduler's score, load in 1/10000) of a row, for explanations."""
        loads = [fleet.amount(resource).load(row, need) for resource, need in self.demand.needs]
        return self.worth([row])[0], max(loads, default=min(fleet.ask_counts.item(row) * UNIT, LOAD_MAX))

    def worth(self, rows: list[int]) -> list[int]:
        """kube-scheduler's score of each of these rows, without what is the same for all candidates."""
        found: list[int] = (-self._ranks[rows]).tolist()
        return found


_INT_MAX = int(np.iinfo(np.int64).max)


def _between(column: Amounts, among: Amounts) -> Amounts | None:
    """The position of each value of a column between the least and the greatest of some of them, from 0 to 100; None if
    these are equal."""
    if not len(among):
        return None
    least, most = int(np.minimum.reduce(among)), int(np.maximum.reduce(among))
    if most <= least:
        return None
    return (float(SCORE_MAX) * ((column - least) / float(most - least))).astype(np.int64)


def _most(column: Amounts | None, where: NDArray[np.bool_]) -> int:
    return 0 if column is None else int((column * where).max(initial=0))
