"""What new nodes lack for work that stays pending.

Rule: every reason comes from the engine's own rules, on a board where one node of each kind is and no work.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from stead.engine.board import Board
from stead.engine.decisions import Verdict
from stead.engine.explain.verdicts import refused_sets, short_verdicts
from stead.engine.fleet import rows_of
from stead.engine.reasons import NeverFits
from stead.engine.settings import DEFAULTS
from stead.language.asks import Ask, Group
from stead.language.nodes import NodeTemplate
from stead.planner.allowance import Allowance
from stead.planner.plans import HYPOTHETICAL, Unserved
from stead.planner.trials import Trial


def unserved(trial: Trial, catalog: Sequence[NodeTemplate], allowance: Allowance) -> Iterator[Unserved]:
    """What stays pending in a trial: equal asks together, each group alone."""
    if not any(trial.pending):
        return
    showroom = Showroom(catalog)
    for items in trial.engine.pending:
        first = items[0]
        alike = [[item.id for item in items]] if isinstance(first, Ask) else [[item.id] for item in items]
        asks = (first,) if isinstance(first, Ask) else first.alternatives[0]
        kind, verdict = showroom.nearest(asks)
        limit = ""
        if kind is not None and verdict is not None and verdict.candidates:
            limit = _limit(showroom, asks, isinstance(first, Group), trial, allowance)
        for ids in alike:
            yield Unserved(tuple(ids), "" if kind is None else kind.name, verdict, limit)


def _limit(showroom: Showroom, asks: Sequence[Ask], is_group: bool, trial: Trial, allowance: Allowance) -> str:
    """The limit that is in the way of one more node (for a group: of one for each member) of the first kind that would
    take the work; empty if one of them is not limited."""
    names = []
    for kind in showroom.takers(asks):
        more, name = allowance.more(kind, trial.counts)
        if more >= (len(asks) if is_group else 1):
            return ""
        names.append(name)
    return names[0] if names else ""


class Showroom:
    """One node of each kind, and nothing else."""

    def __init__(self, catalog: Iterable[NodeTemplate]) -> None:
        self.catalog = tuple(catalog)
        self.board = Board(DEFAULTS.hybrid_threshold, DEFAULTS.seed)
        for kind in self.catalog:
            self.board.fleet.join(kind.node(f"{HYPOTHETICAL}/{kind.name}"))
        self._alone: dict[int, Board] = {}

    def takers(self, asks: Iterable[Ask]) -> list[NodeTemplate]:
        """The kinds that would take each of these asks alone, the one that they prefer most first."""
        kinds = dict[int, None]()
        for number, ask in enumerate(asks):
            rows = [row for _, tier in self.tiers(ask) for row in tier]
            kinds = dict.fromkeys(row for row in (kinds if number else rows) if row in rows)
        return [self.catalog[row] for row in kinds]

    def tiers(self, ask: Ask) -> list[tuple[int, list[int]]]:
        """The kinds that would take the ask, best first: by choice, then by what it prefers. Each entry is a choice and
        rows of kinds."""
        found, seen = list[tuple[int, list[int]]](), 0
        for demand in self.board.shape_of(ask).demands:
            standing = self.board.standing(demand)
            rows = rows_of(standing.candidates() & ~seen)
            seen |= standing.candidates()
            worths = [int(worth) for worth in standing.worth(rows)] if rows else []
            for best in sorted(set(worths), reverse=True):
                same = [row for row, worth in zip(rows, worths, strict=True) if worth == best]
                found.append((demand.index, same))
        return found

    def nearest(self, asks: Sequence[Ask]) -> tuple[NodeTemplate | None, Verdict | None]:
        """The kind that lacks the least for the ask that lacks the most there, and what that is."""
        if not self.catalog:
            return None, None
        lacks = [self._lacks(ask) for ask in asks]
        worst = [max(range(len(asks)), key=lambda which: lacks[which][row]) for row in range(len(self.catalog))]
        row = min(range(len(self.catalog)), key=lambda row: lacks[worst[row]][row])
        return self.catalog[row], self._verdict(row, asks[worst[row]])

    def _lacks(self, ask: Ask) -> list[int]:
        """For each kind, how many reasons are in the way of the choice that it is nearest to; a lack of resources
        counts twice, because nobody can lift it."""
        choices = []
        for demand in self.board.shape_of(ask).demands:
            found = [0] * len(self.catalog)
            for reason, nodes in refused_sets(self.board, demand):
                for row in rows_of(nodes):
                    found[row] += 1 + isinstance(reason, NeverFits)
            choices.append(found)
        return [min(found) for found in zip(*choices, strict=True)]

    def _verdict(self, row: int, ask: Ask) -> Verdict:
        """What the kind lacks: for the first choice that lacks the least."""
        if row not in self._alone:
            board = self._alone[row] = Board(DEFAULTS.hybrid_threshold, DEFAULTS.seed)
            board.fleet.join(self.catalog[row].node(HYPOTHETICAL))
        board = self._alone[row]
        verdicts = short_verdicts(board, board.shape_of(ask))
        return min(verdicts, key=lambda verdict: (not verdict.candidates, _lacking(verdict)))


def _lacking(verdict: Verdict) -> int:
    return sum(1 + isinstance(each.reason, NeverFits) for each in verdict.refusals)
