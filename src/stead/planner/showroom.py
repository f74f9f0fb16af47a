"""The showroom: one new node of each kind and no work, to see which kinds would take which work.

Rule: every answer comes from the engine's own rules.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import NamedTuple

from stead.engine.board import Board
from stead.engine.decisions import Verdict
from stead.engine.engine import Engine
from stead.engine.explain.verdicts import refused_sets, short_verdicts
from stead.engine.facts import NodeJoined
from stead.engine.fleet import Nodes, rows_of
from stead.engine.reasons import NeverFits
from stead.engine.rules import allowed
from stead.engine.settings import DEFAULTS
from stead.language.asks import Ask
from stead.language.claims import Claim
from stead.language.nodes import Node, NodeTemplate
from stead.planner.plans import HYPOTHETICAL


class Tier(NamedTuple):
    """Kinds, as rows of the showroom, that would take a choice of an ask and that it prefers equally."""

    choice: int
    kinds: tuple[int, ...]


class Showroom:
    """`claims`: what work can use; rules about storage need them."""

    def __init__(self, catalog: Iterable[NodeTemplate], claims: Iterable[Claim] = ()) -> None:
        self.catalog, self._claims = tuple(catalog), tuple(claims)
        self._ids = [f"{HYPOTHETICAL}/{kind.name}/new" for kind in self.catalog]
        self.board = self._board(kind.node(id) for kind, id in zip(self.catalog, self._ids, strict=True))
        self._alone: dict[int, Board] = {}

    def beside(self, engine: Engine) -> Engine:
        """A fork in which one node of each kind has joined, and nothing was decided."""
        fork = engine.fork()
        fork.apply(*(NodeJoined(kind.node(id)) for kind, id in zip(self.catalog, self._ids, strict=True)))
        return fork

    def depends_on_work(self, ask: Ask) -> bool:
        """Whether other work decides which nodes take it."""
        return any(demand.rules.depend_on_work for demand in self.board.shape_of(ask).demands)

    def tiers(self, ask: Ask, beside: Engine | None = None) -> list[Tier]:
        """The kinds that would take the ask, best first: by choice, then by what it prefers. With `beside`, rules about
        other work count, too: it comes from the method of that name."""
        found, seen, world = list[Tier](), 0, self.board.world
        candidates = None if beside is None else [set(ids) for ids in beside.candidates(ask)]
        for demand in self.board.shape_of(ask).demands:
            nodes: Nodes = allowed((*demand.rules.regardless_of_work, demand.rules.could_fit), world) & ~seen
            seen |= nodes
            rows = rows_of(nodes)
            if candidates is not None:
                rows = [row for row in rows if self._ids[row] in candidates[demand.index]]
            worths = self.board.standing(demand).worth(rows) if ask.prefers or self.has_soft_taints else [0] * len(rows)
            for best in sorted(set(worths), reverse=True):
                same = tuple(row for row, worth in zip(rows, worths, strict=True) if worth == best)
                found.append(Tier(demand.index, same))
        return found

    @cached_property
    def has_soft_taints(self) -> bool:
        """Whether work avoids some kinds without refusing them."""
        return any(not taint.effect.refuses for kind in self.catalog for taint in kind.taints)

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
            self._alone[row] = self._board([self.catalog[row].node(HYPOTHETICAL)])
        board = self._alone[row]
        verdicts = short_verdicts(board, board.shape_of(ask))
        return min(verdicts, key=lambda verdict: (not verdict.candidates, _lacking(verdict)))

    def _board(self, nodes: Iterable[Node]) -> Board:
        board = Board(DEFAULTS.hybrid_threshold, DEFAULTS.seed)
        for node in nodes:
            board.fleet.join(node)
        for claim in self._claims:
            board.claim_changed(claim)
        return board


def _lacking(verdict: Verdict) -> int:
    return sum(1 + isinstance(each.reason, NeverFits) for each in verdict.refusals)
