"""Runs of equal asks of which each changes where the next may go, chosen at once.

Rule: the rows are exactly those that would be chosen one after the other. What an ask changes for the next one is
foreseen for spreads, for affinities to asks like itself, and for ports. Where something else would change, there is no
`Foresight`, and the asks are placed one after the other.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from stead.engine.columns.amounts import REFUSED, Amounts
from stead.engine.fleet import Domains, Nodes, as_flags
from stead.engine.ranking.kube_fit import FitScores
from stead.engine.rules import ClaimFree, HoldsAffinity, HoldsOneAlternative, NotSkewed, PortsFree, VolumesFit, World
from stead.engine.shapes import Demand
from stead.engine.work import meant_by
from stead.language.asks import Affinity
from stead.language.labels import NODE_ID, NODE_ID_KEYS

RUN_MIN = 4
"""The shortest run for which this is worth its cost."""

GROUPS_MAX = 64
"""Up to this many domains, each has its best row kept."""


class Foresight:
    """What placing one ask of a demand changes for the next equal ask, apart from the amounts: `spreads` count it, it
    refuses its domains of the keys `apart`, and `near` must have begun. `pulled_over` are the keys over which it is
    preferred to be near itself or apart from itself."""

    __slots__ = ("apart", "near", "pulled_over", "spreads")

    def __init__(self, demand: Demand) -> None:
        rules = [rule for rule in demand.rules.lasting if not isinstance(rule, HoldsAffinity) or rule.is_about_itself]
        affinities = [rule for rule in rules if isinstance(rule, HoldsAffinity)]
        self.near = [rule for rule in affinities if rule.affinity.near]
        self.spreads = [rule for rule in rules if isinstance(rule, NotSkewed) and rule.counts_itself]
        keys = dict.fromkeys(key for rule in affinities if not rule.affinity.near for key in rule.affinity.topologies)
        if any(isinstance(rule, PortsFree) for rule in rules):
            keys[NODE_ID] = None
        self.apart = tuple(keys)
        self.pulled_over = frozenset(
            key
            for want in (pull.want for pull in demand.pulls)
            if isinstance(want, Affinity)
            and meant_by(want.selector, want.namespaces, demand.kind[0]).includes(demand.kind)
            for key in want.topologies
        )

    @staticmethod
    def of(demand: Demand) -> Foresight | None:
        """None if it cannot be foreseen what the rules refuse next."""
        is_unclear = any(
            isinstance(rule, HoldsOneAlternative | ClaimFree | VolumesFit)
            or (isinstance(rule, HoldsAffinity) and rule.affinity.by_identity)
            for rule in demand.rules.lasting
        )
        return None if is_unclear else Foresight(demand)

    def rows(self, world: World, fit: FitScores, nodes: Nodes, count: int) -> list[int]:
        """The rows that `count` equal asks would get one after the other; fewer if not all fit, and none if that cannot
        be foreseen now. `nodes`: those that no rule refuses, apart from the spreads."""
        if not all(rule.has_begun(world) for rule in self.near):
            return []
        counted = [Counted(rule, world) for rule in self.spreads]
        groups = _groups(fit, as_flags(nodes, world.fleet.extent), counted)
        apart = [None if key in NODE_ID_KEYS else world.fleet.domain_column(key) for key in self.apart]
        found: list[int] = []
        taken: dict[int, tuple[int, int]] = {}  # how many each row took, and how many it has room for
        while len(found) < count:
            chosen = min((group.best for group in _open(groups, counted) if group.best is not None), default=None)
            if chosen is None:
                break
            _, row, index, group = chosen
            found.append(row)
            more, room = taken[row] if row in taken else (0, fit.room(world.fleet, row))
            more += 1
            taken[row] = more, room
            group.keys[index] = -fit.score(world.fleet, row, more) if more < room else REFUSED
            for domains in apart:
                _close(groups, group, index, row, domains)
            group.look()
            for each, number in zip(counted, group.numbers, strict=True):
                each.add(number)
        return found


class Counted:
    """One spread with its counts by domain, and the greatest count with which a domain still takes work."""

    __slots__ = ("_present", "_rule", "counts", "domains", "limit")

    def __init__(self, rule: NotSkewed, world: World) -> None:
        self._rule = rule
        self.domains, found = rule.counted(world)
        self.counts: list[int] = found.counts.tolist()
        self._present: list[int] = found.present.tolist()
        self._update()

    def add(self, number: int) -> None:
        self.counts[number] += 1
        self._update()

    def _update(self) -> None:
        counts, present = self.counts, self._present
        least = min(counts if len(present) == len(counts) else [counts[number] for number in present], default=0)
        self.limit = self._rule.limit(least, len(present))


class Group:
    """Candidates in the same domains of all spreads: their keys, and the best of them with its key, row and index."""

    __slots__ = ("best", "keys", "numbers", "rows")

    def __init__(self, rows: NDArray[np.intp], keys: Amounts, numbers: tuple[int, ...]) -> None:
        self.rows, self.keys, self.numbers = rows, keys, numbers
        self.look()

    def look(self) -> None:
        """Find the best again."""
        index = int(self.keys.argmin())
        key = self.keys.item(index)
        self.best: Best | None = None if key == REFUSED else (key, self.rows.item(index), index, self)


Best = tuple[int, int, int, Group]


def _groups(fit: FitScores, open_rows: NDArray[np.bool_], counted: Sequence[Counted]) -> list[Group]:
    """The candidates, in groups; no groups if there would be too many."""
    open_rows = open_rows & fit.fits
    place, size = np.zeros(len(open_rows), np.intp), 1
    for each in counted:
        open_rows &= each.domains.numbers >= 0
        place = place * each.domains.size + each.domains.numbers
        size *= each.domains.size
    if size > GROUPS_MAX:
        return []
    rows = np.flatnonzero(open_rows)
    rows = rows[np.argsort(place[rows], kind="stable")]
    ends = np.flatnonzero(np.diff(place[rows])) + 1
    parts = [part for part in np.split(rows, ends) if len(part)]
    return [
        Group(part, -fit.base[part], tuple(each.domains.numbers.item(part[0]) for each in counted)) for part in parts
    ]


def _open(groups: list[Group], counted: Sequence[Counted]) -> list[Group]:
    """The groups that no spread refuses."""
    for at, each in enumerate(counted):
        counts, limit = each.counts, each.limit
        groups = [group for group in groups if counts[group.numbers[at]] <= limit]
    return groups


def _close(groups: list[Group], group: Group, index: int, row: int, domains: Domains | None) -> None:
    """Refuse all rows in the domain of a row; None: only the row itself."""
    if domains is None:
        group.keys[index] = REFUSED
        return
    number = domains.numbers.item(row)
    if number < 0:
        return
    if domains.are_single:
        group.keys[index] = REFUSED
        return
    for each in groups:
        each.keys[domains.numbers[each.rows] == number] = REFUSED
        each.look()
