"""Taints and time: how long work may stay on a tainted node, and when a taint expires.

Rule: the engine schedules evictions and the expiry of taints here and nowhere else.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from stead.engine.board import Board
from stead.engine.columns.sharing import Shelf
from stead.engine.decisions import Evicted, TaintExpired
from stead.engine.facts import NodeTainted
from stead.engine.fleet import Nodes
from stead.engine.timing.timers import Timers
from stead.engine.work import Placement
from stead.language.asks import AskId
from stead.language.nodes import NodeId
from stead.language.taints import Effect, Taint, stay_under


@dataclass(frozen=True, slots=True)
class TaintEnd:
    """A taint's owner, when it was set, and when it is removed: at a time, or when a job ends.

    Attributes:
        node: The id of the node.
        key: The key of the taint.
        effect: The effect of the taint.
        since: When it was set.
        until: When it expires; None means never.
        job: The job that it ends with, or the empty string.
        owner: Who set it, or the empty string.
    """

    node: NodeId
    key: str
    effect: str
    since: float
    until: float | None = None
    job: str = ""
    owner: str = ""


class TaintTimes:
    def __init__(self, board: Board, timers: Timers) -> None:
        self._board, self._timers = board, timers
        self._ends: Shelf[NodeId, tuple[str, Effect], TaintEnd] = Shelf()

    def fork(self, board: Board, timers: Timers) -> TaintTimes:
        twin = TaintTimes.__new__(TaintTimes)
        twin._board, twin._timers, twin._ends = board, timers, self._ends.fork()
        return twin

    @property
    def ends(self) -> Iterator[TaintEnd]:
        """One entry per taint."""
        return (end for ends in self._ends.map.values() for end in ends.values())

    def restore(self, ends: Iterable[TaintEnd]) -> None:
        for end in ends:
            self._set(end)

    # -- what happens to taints

    def tainted(self, row: int, fact: NodeTainted, now: float) -> None:
        """A taint was set, or set again with another end."""
        taint = fact.taint
        self._set(TaintEnd(fact.node, taint.key, taint.effect, now, fact.until, fact.job, fact.owner))
        taints = self._taints(row)
        if taint not in taints:
            kept = tuple(t for t in taints if (t.key, t.effect) != (taint.key, taint.effect))
            self._board.fleet.set_taints(row, (*kept, taint))
            self.schedule_evictions(row, taint, now)

    def untainted(self, row: int, gone: Iterable[Taint]) -> None:
        gone = list(gone)
        for taint in gone:
            self._forget(self._board.node_id(row), taint)
        self._board.fleet.set_taints(row, tuple(taint for taint in self._taints(row) if taint not in gone))

    def joined(self, row: int, new: Iterable[Taint], now: float) -> None:
        """A node joined, perhaps again: it has new taints, and may have lost others."""
        node, there = self._board.node_id(row), {(taint.key, taint.effect) for taint in self._taints(row)}
        for key, effect in [each for each in self._ends.read(node) if each not in there]:
            self._forget(node, Taint(key, "", effect))
        for taint in new:
            self._set(TaintEnd(node, taint.key, taint.effect, now))
            self.schedule_evictions(row, taint, now)

    def left(self, node: NodeId) -> None:
        self._ends.clear(node)
        self._timers.taint_ends.drop_all(node)

    def expire_due(self, now: float) -> list[TaintExpired]:
        """Remove the taints that have expired."""
        expired = []
        for node, (key, effect), _ in list(self._timers.taint_ends.due(now)):
            row = self._board.fleet.row(node)
            for taint in () if row is None else self._taints(row):
                if row is not None and (taint.key, taint.effect) == (key, effect):
                    self.untainted(row, [taint])
                    expired.append(TaintExpired(node, taint))
        return expired

    # -- how long work may stay

    def schedule_evictions(self, row: int, taint: Taint, now: float) -> None:
        """A node has a new taint: schedule the eviction of work that does not tolerate it."""
        if taint.effect is Effect.NO_EXECUTE:
            for id in self._board.work.residents.read(row):
                self._schedule_eviction(self._board.work.placements.map[id], taint, now)

    def placed(self, placement: Placement, now: float) -> None:
        """New work on a tainted node: it may stay only as long as it tolerates the taint."""
        for taint in self._taints(placement.row):
            if taint.effect is Effect.NO_EXECUTE:
                self._schedule_eviction(placement, taint, now)

    def all_placed(self, ids: Iterable[AskId], now: float) -> None:
        """The same for many asks; fast if no node has such a taint."""
        if self._board.fleet.about_taints("evicting", _any_evicts):
            for id in ids:
                self.placed(self._board.work.placements.map[id], now)

    def evict_due(self, now: float) -> list[Evicted]:
        due = []
        for id, taint, _ in self._timers.evictions.due(now):
            placement = self._board.work.placements.map.get(id)
            if placement is not None and not self._timers.is_being_evicted(id) and taint in self._taints(placement.row):
                self._timers.evicted(id)
                due.append(Evicted(id, self._board.node_id(placement.row), taint))
        return due

    def _schedule_eviction(self, placement: Placement, taint: Taint, now: float) -> None:
        stay = stay_under(taint, placement.ask.tolerations)
        if stay is not None:
            self._timers.evictions.set(placement.ask.id, taint, now + stay)

    def _taints(self, row: int) -> tuple[Taint, ...]:
        return self._board.fleet.nodes.map[row].taints

    def _set(self, end: TaintEnd) -> None:
        what = (end.key, Effect(end.effect))
        self._ends.write(end.node)[what] = end
        self._timers.taint_ends.drop(end.node, what)
        if end.until is not None:
            self._timers.taint_ends.set(end.node, what, end.until)

    def _forget(self, node: NodeId, taint: Taint) -> None:
        what = (taint.key, taint.effect)
        if what in self._ends.read(node):
            self._ends.drop(node, what)
        self._timers.taint_ends.drop(node, what)


def _any_evicts(taints: Iterable[tuple[Taint, Nodes]]) -> bool:
    return any(taint.effect is Effect.NO_EXECUTE for taint, _ in taints)
