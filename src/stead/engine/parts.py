"""The parts of an engine: its whole state.

Rule: all state of an engine is in its parts. They may use each other, but not the engine. A fork has its own parts, and
a checkpoint is their content.
"""

from __future__ import annotations

from collections.abc import Mapping

from stead.engine.board import Board
from stead.engine.columns.change_log import Column
from stead.engine.groups.lifecycle import Groups
from stead.engine.preempting.preemption import Preemption
from stead.engine.settings import Settings
from stead.engine.timing.holds import Holds
from stead.engine.timing.taint_times import TaintTimes
from stead.engine.timing.timers import Timers
from stead.engine.waiting import Item, Line, Lines
from stead.engine.work import Placement
from stead.language.asks import Ask, AskId


class Parts:
    """`board`: nodes and placed work. `waiting`: pending work, in order. `is_unfinished`: whether the last `decide`
    stopped before it tried everything."""

    def __init__(self, settings: Settings) -> None:
        self.now = 0.0
        self.is_unfinished = False
        self.board = Board(settings.hybrid_threshold, settings.seed)
        self.waiting, self.timers = Lines(), Timers()
        self.groups = Groups(self.board, self.waiting, self.timers)
        self.taint_times = TaintTimes(self.board, self.timers)
        self.preemption = Preemption(self.board)
        self.holds = Holds(self.board, self.waiting, self.groups, self.timers.timeouts, settings.patience)

    def fork(self) -> Parts:
        twin = Parts.__new__(Parts)
        twin.now, twin.is_unfinished = self.now, self.is_unfinished
        twin.board, twin.waiting, twin.timers = self.board.fork(), self.waiting.fork(), self.timers.fork()
        twin.groups = self.groups.fork(twin.board, twin.waiting, twin.timers)
        twin.taint_times = self.taint_times.fork(twin.board, twin.timers)
        twin.preemption = self.preemption.fork(twin.board)
        twin.holds = self.holds.fork(twin.board, twin.waiting, twin.groups, twin.timers.timeouts)
        return twin

    def known_ids(self) -> tuple[Mapping[str, object], ...]:
        """The tables that hold all known ids. Read them at once and do not keep them."""
        return self.waiting.ids, self.board.work.placements.map, self.groups.records.map, self.groups.of_member.map

    def pending_ask(self, id: AskId) -> Ask | None:
        """The pending ask, or member of a pending group, with this id."""
        if id in self.waiting:
            item = self.waiting.item(id)
            return item if isinstance(item, Ask) else None
        group = self.groups.of_member.map.get(id)
        is_pending = group in self.waiting and id not in self.board.work.placements.map
        return self.groups.member(id) if is_pending else None

    def line_of(self, id: AskId) -> Line:
        """The line in which a pending ask, or the group of a member, waits."""
        return self.waiting.line_of(self.groups.of_member.map.get(id, id))

    def wait(self, line: Line, items: Mapping[str, Item]) -> None:
        """Queue new work."""
        self.waiting.add(line, items)
        for item in items.values():
            if item.deadline is not None:
                self.timers.set_deadline(item.id, item.deadline)

    def wait_again(self, placement: Placement) -> None:
        """Queue an ask that lost its place, at its old position in the order; a member is queued with its group."""
        ask = placement.ask
        if placement.group is not None:
            self.groups.member_lost(placement.group, self.now)
            return
        shape = self.board.shape_of(ask)
        self.waiting.add(Line(shape, ask.priority, placement.moment, placement.turn, self.now), {ask.id: ask})
        self.timers.renew_deadline(ask.id, ask.deadline, self.now)

    def lift(self, id: AskId) -> Placement:
        """Remove a placed ask from its node."""
        self.timers.left(id)
        self.preemption.left(id)
        return self.board.lift(id)

    def change(self, ask: Ask) -> None:
        """Describe placed work differently, where it is."""
        board, known = self.board, self.board.work.placements.map.get(ask.id)
        if known is None:
            return
        board.work.note_known(board.fleet, (ask,))
        demand = board.shape_of(ask).demands[min(known.choice, len(ask.choices) - 1)]
        with board.attempt() as tried:  # what it still uses is not free in between, so that wakes nothing
            board.lift(ask.id)
            now = board.place(ask, demand, known.row, known.moment, known.turn, known.group, known.started)
            tried.keep()
        for resource, need in known.ask.choices[known.choice].resources.items():
            if need > ask.choices[demand.index].resources.get(resource):
                board.fleet.news.add((Column("free", resource), known.row))
        self.timers.evictions.drop_all(ask.id)
        self.taint_times.placed(now, self.now)

    def stop_waiting(self, *ids: str) -> None:
        """Remove items of one line from the queue, and the places that are kept for them."""
        self.preemption.forget(ids)
        self.waiting.remove(*ids)

    def forget(self, id: str) -> None:
        """Remove a pending ask, or a group together with its placed members."""
        if id not in self.groups:
            self.stop_waiting(id)
            self.board.work.note_ended(self.board.fleet, id)
            return
        members = self.groups.record(id).group.all_members
        self.preemption.forget(member.id for member in members)
        for placed in self.groups.ended(id):
            self.lift(placed)
        for member in members:
            self.board.work.note_ended(self.board.fleet, member.id)
