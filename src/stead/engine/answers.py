"""What an engine answers: where everything is, what could go where, and why.

Rule: an answer leaves no trace. What has to be tried is tried on a fork.
"""

from __future__ import annotations

from collections.abc import Mapping

from stead.asks import Ask, AskId, Group, GroupId, PolicyName
from stead.engine.board import Board
from stead.engine.decisions import Moved
from stead.engine.explain import Explanation, explain_group, explain_placed, explain_waiting, feasible
from stead.engine.groups import Groups
from stead.engine.moving import best_moves
from stead.engine.waiting import Lines
from stead.errors import Invalid
from stead.node import Node, NodeId


class Answers:
    """The reading half of an engine, whose other half keeps these three."""

    _board: Board
    _waiting: Lines
    _groups: Groups

    def explain(self, what: AskId | GroupId | Ask | Group) -> Explanation:
        """Why it waits, what would let it in, or why it is where it is; also for work never submitted.

        A question leaves no trace: it is asked of a fork.
        """
        if isinstance(what, str):
            if what in self._board.work.placements.map:
                return explain_placed(self._board, what)
            what = self.item(what)
        board = self._board.fork(lasting=False)
        if isinstance(what, Group):
            record = self._groups.records.map.get(what.id)
            return explain_group(board, what, record.alternative if record is not None else None)
        if what.id in board.work.placements.map:
            board.lift(what.id)  # an ask is never in its own way
        return explain_waiting(board, what)

    def item(self, id: AskId | GroupId) -> Ask | Group:
        """The ask or group of this name, as it was submitted."""
        if id in self._board.work.placements.map:
            return self._board.work.placements.map[id].ask
        if id in self._waiting:
            return self._waiting.item(id)
        if id in self._groups:
            return self._groups.records.map[id].group
        if id in self._groups.of_member.map:
            return self._groups.member(id)
        raise Invalid(f"nothing named {id!r} waits or is placed; an ask has to be submitted first")

    def feasible(self, ask: Ask) -> frozenset[NodeId]:
        """The nodes that would take the ask if only they were empty, by any of its choices."""
        board = self._board.fork(lasting=False)
        if ask.id in board.work.placements.map:
            board.lift(ask.id)
        return frozenset(board.fleet.ids(feasible(board, board.shape_of(ask))))

    def candidates(self, ask: Ask) -> tuple[tuple[NodeId, ...], ...]:
        """The nodes that would take the ask now, per choice, in table order."""
        board = self._board.fork(lasting=False)
        return board.candidates(board.shape_of(ask))

    def tiers(self, ask: Ask) -> tuple[tuple[NodeId, ...], ...]:
        """The same nodes, best first: by choice, then by what the ask prefers. How full they are has no say."""
        board = self._board.fork(lasting=False)
        return board.tiers(board.shape_of(ask))

    def moves(self, policy: PolicyName, limit: int = 10) -> tuple[Moved, ...]:
        """The moves of running work that would gain most by a batch policy's costs, the best first. None is made."""
        return tuple(best_moves(self._board.fork(lasting=False), policy, limit))

    def free(self, node: NodeId) -> Mapping[str, int]:
        """What is free on a node, in units, for every resource it has or that is in use there."""
        return self._board.fleet.free(self._board.fleet.rows.map[node])

    @property
    def placed(self) -> Mapping[AskId, NodeId]:
        """Every placed ask and its node."""
        nodes = self._board.fleet.nodes.map
        return {id: nodes[placement.row].id for id, placement in self._board.work.placements.map.items()}

    @property
    def asks(self) -> Mapping[AskId, Ask]:
        """Every ask that is placed, or waits by itself."""
        found = {id: placement.ask for id, placement in self._board.work.placements.map.items()}
        for items in self._waiting.all_lines.values():
            found.update((id, item) for id, item in items.items() if isinstance(item, Ask))
        return found

    @property
    def groups(self) -> Mapping[GroupId, Group]:
        """Every group that waits or is placed."""
        return {id: record.group for id, record in self._groups.records.map.items()}

    @property
    def waiting(self) -> tuple[str, ...]:
        """Ids of everything that waits (asks and groups), in the order in which it will be tried."""
        return tuple(item.id for item in self._waiting.in_order())

    @property
    def nodes(self) -> Mapping[NodeId, Node]:
        """Every live node as it is now, in table order."""
        return self._board.fleet.by_id
