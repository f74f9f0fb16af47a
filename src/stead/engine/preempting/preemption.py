"""Preemption: what is evicted for whom, and the places that are kept meanwhile.

Rule: pending work that fits nowhere is *nominated* for a node: its place there is kept, and what is in the way there is
evicted. It is placed when that is gone. A nomination ends when the node cannot take the work any more, or when work of
a higher priority needs the place; the work then is pending as before. Nothing is evicted twice.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import islice
from typing import TypeVar

from stead.engine.board import Board
from stead.engine.columns.amounts import Amounts
from stead.engine.columns.sharing import Sheet
from stead.engine.decisions import Decision, NominationEnded, Preempted
from stead.engine.fleet import Nodes
from stead.engine.groups.search import Team
from stead.engine.preempting.evictable import Evictable
from stead.engine.preempting.for_groups import Plan, RoomForGroup
from stead.engine.preempting.protection import Protection
from stead.engine.preempting.ranking import Sources
from stead.engine.preempting.search import Rankings, Room, open_but_for_work, room_for
from stead.engine.shapes import Demand, Shape
from stead.engine.waiting import Line
from stead.engine.work import Placement
from stead.language.asks import Ask, AskId, GroupId
from stead.language.budgets import Budget

T = TypeVar("T")


class Preemption:
    """The state of preemption in one engine. `protection`: the budgets."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self.protection = Protection()
        self.ending: Sheet[AskId, bool] = Sheet()
        """Placed work that is being stopped, and whether the cluster's own count for its budgets includes it."""
        self.spared: Sheet[AskId, None] = Sheet()
        """Placed work that could not be evicted."""
        self._table, self._rankings = Evictable(), Rankings()
        self._left: tuple[int, Amounts] | None = None  # of each budget, for a version of the budgets
        self._settled: tuple[int, int] | None = None  # the position in the log of changed rows, and a version

    def fork(self, board: Board) -> Preemption:
        twin = Preemption(board)
        twin.protection = self.protection.fork()
        twin.ending, twin.spared = self.ending.fork(), self.spared.fork()
        return twin

    def restore(self, ending: Iterable[tuple[AskId, bool]], spared: Iterable[AskId], budgets: Iterable[Budget]) -> None:
        """Restore the state of a checkpoint."""
        self.ending.write().update(ending)
        self.spared.write().update(dict.fromkeys(spared))
        for budget in budgets:
            self.protection.set(budget)

    # -- what happens

    def is_ending(self, id: AskId) -> None:
        """Placed work is being stopped, whoever asked for it."""
        if id in self._board.work.placements.map:
            self._set_ending(id, self.ending.map.get(id, True))

    def will_end(self, id: AskId) -> None:
        """Placed work is to be evicted, as was decided."""
        if id in self._board.work.placements.map:
            self._set_ending(id, self.ending.map.get(id, False))

    def failed(self, id: AskId, is_final: bool) -> None:
        """Placed work was not evicted; if that is final, it is not chosen again."""
        placement = self._board.work.placements.map.get(id)
        if placement is not None:
            self._left = None
            self.ending.write().pop(id, None)
            if is_final:
                self.spared.write()[id] = None
            self._look_again(placement.row)

    def left(self, id: AskId) -> None:
        """Work has left its node."""
        if id in self.ending.map:
            self._left = None
            del self.ending.write()[id]
        if id in self.spared.map:
            del self.spared.write()[id]

    def budget_changed(self, budget: Budget) -> None:
        """A budget is new, or allows another number of evictions."""
        self._left = None
        before, placed = self.protection.budgets.map.get(budget.id), self._board.work.placements.map
        self.protection.set(budget)
        uncounted = [id for id, is_counted in self.ending.map.items() if not is_counted]
        asks = [placed[id].ask for id in uncounted]
        protected = [ask.id for ask in asks if budget.protects(ask.namespace, ask.labels)]
        for id in protected[: max(0, before.allowed - budget.allowed) if before is not None else None]:
            self.ending.write()[id] = True

    def has_started(self, row: int) -> None:
        """Work on this row has a new time of start."""
        self._table.look_again(row)

    def ending_on(self, *rows: int) -> tuple[AskId, ...]:
        """The work that is being stopped on these rows."""
        residents = self._board.work.residents
        return tuple(id for row in rows for id in residents.read(row) if id in self.ending.map)

    # -- nominations

    def waits_for_places(self, group: GroupId) -> bool:
        """Whether places are kept for members of a group."""
        return any(each.group == group for each in self._board.work.nominations.map.values())

    def nominate(self, ask: Ask, demand: Demand, row: int, line: Line, group: GroupId | None = None) -> None:
        """Keep a place for pending work."""
        if ask.id not in self._board.work.nominations.map:
            self._board.nominate(ask, demand, row, line.moment, line.turn, group)

    def first_tried(self, items: Mapping[str, T], one_by_one: bool) -> Mapping[str, T]:
        """The same pending work, with what is nominated at the end: a place is already kept for it. If each piece of
        work may change where the next can go (`one_by_one`), nominated work is tried alone, because its own place must
        not count for it."""
        nominations = self._board.work.nominations.map
        if not nominations:
            return items
        waiting = {id: item for id, item in items.items() if id not in nominations}
        if len(waiting) == len(items):
            return items
        if one_by_one:
            return waiting or dict(islice(items.items(), 1))
        return {**waiting, **items}

    def keeps_places_for_all(self, ids: Iterable[str]) -> bool:
        """Whether all of this pending work is nominated."""
        nominations = self._board.work.nominations.map
        return bool(nominations) and all(id in nominations for id in ids)

    def forget(self, ids: Iterable[AskId]) -> None:
        """These are not pending any more, so no place is kept for them."""
        nominations = self._board.work.nominations.map
        if nominations:
            for id in [id for id in ids if id in nominations]:
                self._board.end_nomination(id)

    def node_leaves(self, row: int) -> list[Decision]:
        """Nothing can be kept on a node that leaves."""
        kept = [each for each in self._board.work.nominations.map.values() if each.row == row]
        return [ended for each in kept for ended in self._end(each)]

    def ready(self) -> tuple[list[list[Placement]], list[Decision]]:
        """The nominations whose work fits now, highest priority first; those of a group together. Also those that have
        ended, because their work cannot fit there any more. Only rows that changed since the last call are looked
        at."""
        nominations, fleet = self._board.work.nominations.map, self._board.fleet
        fitting, ended = list[list[Placement]](), list[Decision]()
        if self._settled == (fleet.touched.end, fleet.version):
            return fitting, ended
        changed = None if self._settled is None else fleet.touched.since(self._settled[0])
        rows: Collection[int] | None = None if changed is None else frozenset(changed)
        while nominations:
            gave_way = self._settle(rows, fitting, ended)
            if not gave_way:
                break
            rows = gave_way
        self._settled = fleet.touched.end, fleet.version
        return fitting, ended

    def _settle(
        self, rows: Collection[int] | None, fitting: list[list[Placement]], ended: list[Decision]
    ) -> frozenset[int]:
        """Look at the nominations on these rows, or on all. Returns the rows where some have ended."""
        gave_way, known, open_to = set[int](), {team[0].ask.id for team in fitting}, dict[Demand, Nodes]()
        for team in _teams(self._board.work.nominations.map.values()):
            if team[0].ask.id in known:
                continue
            demands = [self._board.shape_of(each.ask).demands[each.choice] for each in team]
            for demand in demands:
                if demand not in open_to:
                    open_to[demand] = open_but_for_work(self._board, demand)
            if not all(open_to[demand] >> each.row & 1 for each, demand in zip(team, demands, strict=True)):
                is_over = True
            elif rows is None or any(each.row in rows for each in team):
                misfits = self._misfits(team, demands)
                if not misfits:
                    fitting.append(team)
                is_over = not all(self._waits_for_something(each) and self._has_enough_later(each) for each in misfits)
            else:
                continue
            if is_over:
                gave_way.update(each.row for each in team)
                ended += self._end(team[0])
        return frozenset(gave_way)

    def _misfits(self, team: Sequence[Placement], demands: Sequence[Demand]) -> list[Placement]:
        """Those that do not fit on their nodes now, if the others are there."""
        found = []
        for each, demand in zip(team, demands, strict=True):
            if self._is_short(each):
                found.append(each)
                continue
            with self._board.attempt():
                self._board.end_nomination(each.ask.id)
                if not self._board.standing(demand).candidates() >> each.row & 1:
                    found.append(each)
        return found

    def _is_short(self, nomination: Placement) -> bool:
        """Whether more than all of its node is in use, so that it cannot fit yet."""
        needs = nomination.ask.choices[nomination.choice].resources
        return any(self._board.fleet.amount(resource).free.item(nomination.row) < 0 for resource in needs)

    def _waits_for_something(self, nomination: Placement) -> bool:
        """Whether work is ending on its node."""
        return bool(self.ending_on(nomination.row))

    def _has_enough_later(self, nomination: Placement) -> bool:
        """Whether its node has enough once the work that is ending there is gone."""
        work, row = self._board.work, nomination.row
        going = [work.placements.map[id] for id in self.ending_on(row)]
        for resource in nomination.ask.choices[nomination.choice].resources:
            left = self._board.fleet.amount(resource).free.item(row)  # the nomination itself is already in use
            if left + sum(each.ask.choices[each.choice].resources.get(resource) for each in going) < 0:
                return False
        return True

    def _end(self, nomination: Placement) -> list[Decision]:
        """Keep a place no longer; of a group, none of its places."""
        ended = [nomination]
        if nomination.group is not None:
            kept = self._board.work.nominations.map.values()
            ended = [each for each in kept if each.group == nomination.group]
        for each in ended:
            self._board.end_nomination(each.ask.id)
        return [NominationEnded(each.ask.id, self._board.node_id(each.row)) for each in ended]

    # -- evicting

    def may_help(self, ask: Ask) -> bool:
        """Whether any placed work is of a lower priority and may be evicted, so that it is worth looking."""
        lowest = self._board.work.lowest_evictable
        return ask.preempts and lowest is not None and lowest < ask.priority

    def make_room(self, ask: Ask, shape: Shape, line: Line) -> list[Decision]:
        """Nominate pending work that fits nowhere for the node where evicting is cheapest; nothing if there is none."""
        room = room_for(self._sources(), self._rankings, shape, ask.priority)
        return [] if room is None else self.take(ask, room, line)

    def room_for_group(self, team: Team, priority: int) -> Plan | None:
        """Where enough members of a group fit once others are evicted."""
        return RoomForGroup(self._rankings, team, priority, self._mark).cheapest()

    def _mark(self, ids: Iterable[AskId], is_ending: bool) -> Sources:
        """For a search: this work is to be evicted, or not after all."""
        for id in ids:
            if is_ending:
                self.will_end(id)
            else:
                self._left = None
                del self.ending.write()[id]
                self._look_again(self._board.work.placements.map[id].row)
        return self._sources()

    def take(self, ask: Ask, room: Room, line: Line, group: GroupId | None = None) -> list[Decision]:
        """Nominate the work, and evict what is in its way."""
        board = self._board
        for id in room.victims:
            self.will_end(id)
        self.nominate(ask, room.demand, room.row, line, group)
        decisions: list[Decision] = [
            Preempted(ask.id, board.node_id(room.row), room.victims, room.violations, group, room.demand.index)
        ]
        for each in sorted(board.work.nominations_below(ask.priority, room.row), key=_order, reverse=True):
            if each.ask.id in board.work.nominations.map and not self._has_enough_later(each):
                decisions += self._end(each)
        return decisions

    def _sources(self) -> Sources:
        """What rankings read, up to date."""
        board = self._board
        self._table.refresh(board.fleet, board.work, self.ending.map, self.spared.map)
        return Sources(board, self._table, self.protection, self._left_by_budget())

    def _left_by_budget(self) -> Amounts:
        """How many evictions each budget still allows, less those that the cluster does not count yet."""
        if self._left is None or self._left[0] != self.protection.version:
            placed = self._board.work.placements.map
            asks = [placed[id].ask for id, is_counted in self.ending.map.items() if not is_counted]
            uncounted = [(ask.namespace, ask.labels) for ask in asks] if self.protection.budgets.map else []
            self._left = self.protection.version, self.protection.allowed(uncounted)
        return self._left[1]

    def _set_ending(self, id: AskId, is_counted: bool) -> None:
        self._left = None
        self.ending.write()[id] = is_counted
        self._look_again(self._board.work.placements.map[id].row)

    def _look_again(self, row: int) -> None:
        self._table.look_again(row)
        self._board.fleet.touched.add(row)  # a nomination there may have become useless


def _teams(nominations: Iterable[Placement]) -> Iterable[list[Placement]]:
    """The nominations in the order of their work; those of a group together."""
    teams: dict[str, list[Placement]] = {}
    for each in sorted(nominations, key=_order):
        teams.setdefault(each.group or each.ask.id, []).append(each)
    return teams.values()


def _order(placement: Placement) -> tuple[int, float, int]:
    return -placement.ask.priority, placement.moment, placement.turn
