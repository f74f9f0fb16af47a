"""The search for room for a group: enough members fit once the victims are gone, or nothing is evicted.

Rule: members are taken one after the other, each where evicting is cheapest then, and nothing is kept of a search that
fails. Only the minimum of a group preempts; the other members wait for free places.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from stead.engine.fleet import Nodes, RowSet, as_flags
from stead.engine.groups.search import Member, Team
from stead.engine.preempting.ranking import Cost, Sources, cost_of
from stead.engine.preempting.search import ANYWHERE, Rankings, Room, open_after_evictions, room_for
from stead.engine.rules import KeepsStrategy, allowed
from stead.language.asks import AskId, Strategy
from stead.language.labels import NODE_ID

FENCES_MAX = 16
"""How many nodes or domains are tried for a group whose members must be in one."""


class Plan(NamedTuple):
    """Where enough members of a group fit once the victims are gone."""

    rooms: tuple[tuple[Member, Room], ...]
    cost: Cost


class RoomForGroup:
    """The search for one group. `mark` marks work as ending, or not any more, and returns the sources, up to date."""

    def __init__(
        self, rankings: Rankings, team: Team, priority: int, mark: Callable[[tuple[AskId, ...], bool], Sources]
    ) -> None:
        self._rankings, self._team, self._priority, self._mark = rankings, team, priority, mark
        self._sources = mark((), True)
        self._board = self._sources.board

    def cheapest(self) -> Plan | None:
        """The cheapest plan of those that are tried."""
        found = [plan for fence in self._fences() if (plan := self._plan_in(fence)) is not None]
        return min(found, key=lambda plan: plan.cost, default=None)

    def _plan_in(self, fence: Nodes) -> Plan | None:
        """Members inside the fence. The board is unchanged."""
        team, board = self._team, self._board
        rooms: list[tuple[Member, Room]] = []
        marked: list[AskId] = []
        rows = list(team.beside)
        try:
            with board.attempt():
                for number, member in enumerate(team.members):
                    room = self._room(member, rows, fence)
                    if room is not None:
                        board.nominate(member.ask, room.demand, room.row, team.moment, team.turn, team.group)
                        marked += room.victims
                        self._sources = self._mark(room.victims, True)
                        rooms.append((member, room))
                        rows.append(room.row)
                    if len(rooms) == team.needed:
                        break
                    if len(rooms) + len(team.members) - number - 1 < team.needed:
                        return None
                if not self._holds_together(rooms):
                    return None
                gone = [board.work.placements.map[id] for id in marked]
                return Plan(tuple(rooms), cost_of(gone, sum(room.violations for _, room in rooms)))
        finally:
            self._sources = self._mark(tuple(marked), False)

    def _room(self, member: Member, rows: list[int], fence: Nodes) -> Room | None:
        """A free place, or else the cheapest room."""
        board, demand = self._board, member.demand
        used = 0
        for row in rows:
            used |= 1 << row
        strict = [KeepsStrategy(key, each, used) for key, each in self._team.strategies if each.strict]
        standing = board.standing(demand)
        nodes = standing.candidates() & fence & allowed(tuple(strict), board.world)
        if nodes:
            free = np.flatnonzero(as_flags(nodes, board.fleet.size))
            row = int(free[standing.keys[free].argmin()])
            return Room(demand, row, (), 0, cost_of([], 0))
        return room_for(self._sources, self._rankings, member.shape, self._priority, fence, strict)

    def _holds_together(self, rooms: list[tuple[Member, Room]]) -> bool:
        """Whether no rule refuses any member once the victims are gone and all members are there."""
        board = self._board
        if not any(member.demand.rules.depend_on_work for member, _ in rooms):
            return True
        with board.attempt():
            for id in self._ending():
                board.lift(id)
            for member, room in rooms:
                with board.attempt():
                    board.end_nomination(member.ask.id)
                    if not board.standing(room.demand).candidates() >> room.row & 1:
                        return False
        return True

    def _ending(self) -> list[AskId]:
        """The work of a lower priority that is ending, the victims among it."""
        table = self._sources.table
        slots, rows = np.nonzero(table.is_ending & (table.priorities < self._priority))
        return [table.ids(row)[slot] for slot, row in zip(slots.tolist(), rows.tolist(), strict=True)]

    def _fences(self) -> list[Nodes]:
        """Sets of nodes to try: with strict packing, all members must be inside one of them."""
        packed = [key for key, strategy in self._team.strategies if strategy is Strategy.STRICT_PACK]
        if not packed or self._team.beside:
            return [ANYWHERE]
        common = self._board.fleet.alive
        for demand in dict.fromkeys(member.demand for member in self._team.members):
            common &= open_after_evictions(self._sources, demand)
        if NODE_ID in packed:
            needs: dict[str, int] = {}
            for member in self._team.members[: self._team.needed]:
                for resource, need in member.demand.needs:
                    needs[resource] = needs.get(resource, 0) + need
            ranking = self._rankings.of(self._sources, tuple(needs.items()), self._priority)
            return [1 << row for row in ranking.in_order(common)[:FENCES_MAX]]
        domains = [RowSet.nodes(entry) & common for _, entry in sorted(self._board.fleet.domains(packed[0]).items())]
        domains.sort(key=lambda nodes: -nodes.bit_count())
        return [nodes for nodes in domains if nodes][:FENCES_MAX]
