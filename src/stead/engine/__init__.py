"""The Engine: facts in, decisions out, `fork()` for every "what if".

Rule: everything here is pure. No clock, no I/O, no logging, no threads, no unseeded randomness: time
arrives as a fact, and equal facts give byte-equal decisions. Clusters, the simulator and the planner
hold this object and contain no scheduling rule of their own.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any, NamedTuple

from stead.asks import Ask, AskId, Group, GroupId
from stead.engine.board import Board
from stead.engine.decisions import (
    DeadlinePassed,
    Decision,
    Evicted,
    GroupPlaced,
    NodeUnknown,
    Placed,
    Refusal,
    Refused,
    Waiting,
)
from stead.engine.explain import Explanation, explain_group, explain_placed, explain_waiting, telling_refusals
from stead.engine.facts import (
    AskEnded,
    AskLost,
    AskRunning,
    AskSubmitted,
    ClockAdvanced,
    Fact,
    GroupEnded,
    GroupSubmitted,
    NodeDrained,
    NodeJoined,
    NodeLabelled,
    NodeLeft,
    NodeResized,
    NodeTainted,
    NodeUntainted,
)
from stead.engine.fleet import NODES, Column
from stead.engine.groups import GroupShape, Member, free_of_work, place_group
from stead.engine.rules import Hold, compulsory_node_ids
from stead.engine.shapes import Demand, Shape
from stead.engine.sharing import Sheet
from stead.engine.waiting import Entry, Line
from stead.engine.waiting import Waiting as WaitingWork
from stead.engine.work import Placement
from stead.errors import Invalid
from stead.nodes import Node, NodeId
from stead.taints import Effect, Taint, patience

__all__ = ["Engine", "Settings"]


@dataclass(frozen=True, slots=True)
class Settings:
    """What an engine is told once, at its start.

    `patience`: seconds after which nodes are held for the oldest waiting work that could fit (None:
    never). `hybrid_threshold`: how full a node gets before the hybrid policy turns to others.
    """

    patience: float | None = 60.0
    hybrid_threshold: float = 0.5
    seed: int = 0


DEFAULTS = Settings()


class GroupRecord(NamedTuple):
    """A known group. `alternative` is the one that is (or was) placed, None while all of it waits."""

    group: Group
    moment: float
    turn: int
    alternative: int | None
    ended: frozenset[AskId]


class Engine:
    def __init__(self, settings: Settings = DEFAULTS) -> None:
        self.settings = settings
        self.now = 0.0
        self._board = Board(settings.hybrid_threshold, settings.seed)
        self._waiting = WaitingWork()
        self._groups: Sheet[GroupId, GroupRecord] = Sheet()
        self._member_of: Sheet[AskId, GroupId] = Sheet()
        self._group_shapes: Sheet[tuple[Any, ...], GroupShape] = Sheet()
        self._deadlines: list[tuple[float, str]] = []
        self._evictions: list[tuple[float, AskId, Taint]] = []
        self._evict_at: Sheet[tuple[AskId, Taint], float] = Sheet()

    def fork(self) -> Engine:
        """An independent engine in the same state. It shares all tables until one of the two writes."""
        twin = Engine.__new__(Engine)
        twin.settings, twin.now = self.settings, self.now
        twin._board, twin._waiting = self._board.fork(), self._waiting.fork()
        twin._groups, twin._member_of = self._groups.fork(), self._member_of.fork()
        twin._group_shapes, twin._evict_at = self._group_shapes.fork(), self._evict_at.fork()
        twin._deadlines, twin._evictions = list(self._deadlines), list(self._evictions)
        return twin

    # -- facts in

    def apply(self, *facts: Fact) -> None:
        """Take note of what happened. The only way in."""
        for kind, run in groupby(facts, key=type):
            if kind is AskSubmitted:
                self._asks_submitted(run)  # type: ignore[arg-type]  # the key says so
            else:
                take_note = _APPLY[kind]
                for fact in run:
                    take_note(self, fact)

    def _clock_advanced(self, fact: ClockAdvanced) -> None:
        self.now = max(self.now, fact.now)

    def _node_joined(self, fact: NodeJoined) -> None:
        row = self._board.fleet.join(fact.node)
        for taint in fact.node.taints:
            self._schedule_evictions(row, taint)

    def _node_left(self, fact: NodeLeft) -> None:
        row = self._board.fleet.row(fact.node)
        if row is None:
            return
        lost = [self._board.lift(id) for id in tuple(self._board.work.residents.read(row))]
        self._board.fleet.leave(row)
        for placement in lost:
            self._wait_again(placement)

    def _node_labelled(self, fact: NodeLabelled) -> None:
        row = self._board.fleet.row(fact.node)
        if row is not None:
            node = self._board.fleet.nodes.map[row]
            self._board.fleet.set_labels(row, node.labels.changed(fact.labels, fact.removed))

    def _node_tainted(self, fact: NodeTainted) -> None:
        row = self._board.fleet.row(fact.node)
        if row is None:
            return
        taints = self._board.fleet.nodes.map[row].taints
        if fact.taint in taints:
            return
        kept = tuple(t for t in taints if (t.key, t.effect) != (fact.taint.key, fact.taint.effect))
        self._board.fleet.set_taints(row, (*kept, fact.taint))
        self._schedule_evictions(row, fact.taint)

    def _node_untainted(self, fact: NodeUntainted) -> None:
        row = self._board.fleet.row(fact.node)
        if row is None:
            return
        taints = self._board.fleet.nodes.map[row].taints
        gone = [t for t in taints if t.key == fact.key and fact.effect in (None, t.effect)]
        self._board.fleet.set_taints(row, tuple(t for t in taints if t not in gone))

    def _node_drained(self, fact: NodeDrained) -> None:
        row = self._board.fleet.row(fact.node)
        if row is not None:
            self._board.fleet.set_draining(row, fact.draining)

    def _node_resized(self, fact: NodeResized) -> None:
        row = self._board.fleet.row(fact.node)
        if row is not None:
            self._board.fleet.set_capacity(row, fact.capacity)

    def _asks_submitted(self, facts: Iterable[AskSubmitted]) -> None:
        """Work that arrives together is queued together, a shape at a time."""
        board, now = self._board, self.now
        arrived: dict[tuple[Shape, int], list[Entry]] = {}
        seen: set[AskId] = set()
        for fact in facts:
            ask = fact.ask
            if ask.id not in seen and not self._knows(ask.id):
                seen.add(ask.id)
                entry = Entry(ask, now, board.next_turn())
                arrived.setdefault((board.shape_of(ask), ask.priority), []).append(entry)
        for (shape, priority), entries in arrived.items():
            self._wait(shape, priority, entries)

    def _ask_running(self, fact: AskRunning) -> None:
        ask, row = fact.ask, self._board.fleet.row(fact.node)
        if row is None:
            return
        choice, moment, turn = 0, self.now, 0
        known = self._board.work.placements.map.get(ask.id)
        if known is not None:
            if known.row == row:
                return
            choice, moment, turn, ask = known.choice, known.moment, known.turn, known.ask
            self._board.lift(ask.id)
        elif ask.id in self._waiting:
            _, moment, turn = self._waiting.entry(ask.id)
            self._waiting.remove(ask.id)
        group = self._member_of.map.get(ask.id)
        demand = self._board.shape_of(ask).demands[choice]
        placement = self._board.place(ask, demand, row, moment, turn or self._board.next_turn(), group)
        self._watch_taints(placement)
        if group is not None:
            self._member_runs(group, ask.id)

    def _ask_ended(self, fact: AskEnded) -> None:
        if fact.ask in self._board.work.placements.map:
            self._board.lift(fact.ask)
        elif fact.ask in self._waiting and fact.ask not in self._groups.map:
            self._waiting.remove(fact.ask)
        group = self._member_of.map.get(fact.ask)
        if group is not None:
            record = self._groups.map[group]
            record = self._groups.write()[group] = record._replace(ended=record.ended | {fact.ask})
            if record.alternative is not None and group in self._waiting and not self._missing(record):
                self._waiting.remove(group)

    def _ask_lost(self, fact: AskLost) -> None:
        if fact.ask in self._board.work.placements.map:
            self._wait_again(self._board.lift(fact.ask))

    def _group_submitted(self, fact: GroupSubmitted) -> None:
        group = fact.group
        members = [member for members in group.alternatives for member in members]
        if self._knows(group.id) or any(self._knows(member.id) for member in members):
            return
        record = GroupRecord(group, self.now, self._board.next_turn(), None, frozenset())
        self._groups.write()[group.id] = record
        self._member_of.write().update({member.id: group.id for member in members})
        key = group.shape_key
        shape = self._group_shapes.map.get(key)
        if shape is None:
            shape = self._group_shapes.write()[key] = GroupShape(group, self._board, self._board.next_turn())
        self._wait(shape, group.priority, [Entry(group, record.moment, record.turn)])

    def _group_ended(self, fact: GroupEnded) -> None:
        record = self._groups.map.get(fact.group)
        if record is None:
            return
        del self._groups.write()[fact.group]
        if fact.group in self._waiting:
            self._waiting.remove(fact.group)
        for members in record.group.alternatives:
            for member in members:
                del self._member_of.write()[member.id]
                if member.id in self._board.work.placements.map:
                    self._board.lift(member.id)

    def _knows(self, id: str) -> bool:
        return (
            id in self._waiting
            or id in self._board.work.placements.map
            or id in self._groups.map
            or id in self._member_of.map
        )

    def _wait(self, shape: Shape | GroupShape, priority: int, entries: list[Entry]) -> None:
        self._waiting.add(shape, priority, entries)
        for entry in entries:
            if entry.item.deadline is not None:
                heapq.heappush(self._deadlines, (entry.item.deadline, entry.item.id))

    def _wait_again(self, placement: Placement) -> None:
        """An ask lost its place: back into the line at its old position; a member through its group."""
        if placement.group is None:
            ask, entry = placement.ask, Entry(placement.ask, placement.moment, placement.turn)
            self._wait(self._board.shape_of(ask), ask.priority, [entry])
        elif placement.group not in self._waiting:
            record = self._groups.map[placement.group]
            shape = GroupShape(record.group, self._board, self._board.next_turn())
            self._wait(shape, record.group.priority, [Entry(record.group, record.moment, record.turn)])

    def _member_runs(self, group: GroupId, member: AskId) -> None:
        """The cluster runs a member: its alternative is the one taken, and all of it may be there now."""
        record = self._groups.map[group]
        if record.alternative is None:
            taken = next(i for i, ms in enumerate(record.group.alternatives) if member in {m.id for m in ms})
            record = self._groups.write()[group] = record._replace(alternative=taken)
        if group in self._waiting and not self._missing(record):
            self._waiting.remove(group)

    def _missing(self, record: GroupRecord) -> list[Ask]:
        placed = self._board.work.placements.map
        members = record.group.alternatives[record.alternative or 0]
        return [member for member in members if member.id not in placed and member.id not in record.ended]

    # -- decisions out

    def decide(self, limit: int | None = None) -> list[Decision]:
        """What to do now, given all facts so far. Its own placements are assumed at once.

        `limit` bounds how many asks and groups are placed; the rest is decided by the next call.
        """
        decisions: list[Decision] = []
        self._evict_due(decisions)
        self._refuse_late(decisions)
        left = limit
        self._review_hold()
        self._waiting.wake(self._board.fleet.take_news())
        while self._waiting.awake():
            for line, run in self._waiting.runs():
                if left is not None and left <= 0:
                    return decisions
                placed = self._decide_run(line, run if left is None else run[:left], decisions)
                left = None if left is None else left - placed
            self._review_hold()
            self._waiting.wake(self._board.fleet.take_news())
        self._evict_due(decisions)
        if self._board.tidy(self._waiting.shapes()):
            self._group_shapes = Sheet()
            self._board.fleet.bump(NODES)
        return decisions

    def _decide_run(self, line: Line, run: list[Entry], decisions: list[Decision]) -> int:
        if isinstance(line.sleeper, GroupShape):
            return self._decide_groups(line.sleeper, run, decisions)
        assert isinstance(line.sleeper, Shape)
        placed = self._place_run(line.sleeper, run, decisions)
        if placed < len(run):
            self._block(line.sleeper, decisions)
        return placed

    def _place_run(self, shape: Shape, run: list[Entry], decisions: list[Decision]) -> int:
        """Place as many equal asks as fit, each with the first of its choices that is available."""
        if shape.one_by_one or len(run) == 1:
            for count, entry in enumerate(run):
                if not self._place_one(shape, entry, decisions):
                    return count
            return len(run)
        done = 0
        for demand in shape.demands:
            if done < len(run):
                standing = self._board.standing(demand)
                rows = standing.best_many(self._board.fleet, len(run) - done)
                if rows:
                    entries = run[done : done + len(rows)]
                    self._waiting.remove(*[entry.item.id for entry in entries])
                    self._board.place_many(demand, entries, rows)
                    self._announce(demand, entries, rows, decisions)
                    done += len(rows)
        return done

    def _place_one(self, shape: Shape, entry: Entry, decisions: list[Decision]) -> bool:
        for demand in shape.demands:
            row = self._board.standing(demand).best(self._board.dice)
            if row is not None:
                self._waiting.remove(entry.item.id)
                assert isinstance(entry.item, Ask)
                self._board.place(entry.item, demand, row, entry.moment, entry.turn)
                self._announce(demand, [entry], [row], decisions)
                return True
        return False

    def _announce(self, demand: Demand, run: list[Entry], rows: list[int], decisions: list[Decision]) -> None:
        nodes, choice = self._board.fleet.nodes.map, demand.index
        decisions.extend([Placed(entry.item.id, nodes[row].id, choice) for entry, row in zip(run, rows, strict=True)])
        if any(taint.effect is Effect.NO_EXECUTE for taint in self._board.fleet.taints.map):
            for entry in run:
                self._watch_taints(self._board.work.placements.map[entry.item.id])

    def _decide_groups(self, shape: GroupShape, run: list[Entry], decisions: list[Decision]) -> int:
        for count, entry in enumerate(run):
            if not self._place_group(shape, entry, decisions):
                refusals = self._group_refusals(self._groups.map[entry.item.id], self._board)
                self._waiting.sleep(shape, shape.columns(self._board), self._board.fleet.alive)
                told = self._waiting.tell(shape, refusals)
                if told:
                    decisions.append(Waiting(told, refusals))
                return count
        return len(run)

    def _place_group(self, shape: GroupShape, entry: Entry, decisions: list[Decision]) -> bool:
        record = self._groups.map[entry.item.id]
        placed = self._board.work.placements.map
        alternatives = range(len(record.group.alternatives)) if record.alternative is None else (record.alternative,)
        for alternative in alternatives:
            record = record._replace(alternative=alternative)
            missing = self._missing(record)
            members = [Member(ask, self._board.shape_of(ask)) for ask in missing]
            beside = [placed[m.id].row for m in record.group.alternatives[alternative] if m.id in placed]
            if place_group(self._board, record.group.id, members, shape.strategies, beside, entry.moment, entry.turn):
                self._groups.write()[record.group.id] = record
                self._waiting.remove(record.group.id)
                placements = [self._board.work.placements.map[ask.id] for ask in missing]
                for placement in placements:
                    self._watch_taints(placement)
                nodes = tuple((p.ask.id, self._board.node_id(p.row)) for p in placements)
                if nodes:
                    decisions.append(GroupPlaced(record.group.id, alternative, nodes))
                return True
        return False

    def _block(self, shape: Shape, decisions: list[Decision]) -> None:
        """Nothing fits any more of these asks: refuse them if nothing ever can, else let them sleep."""
        insisted = [compulsory_node_ids(demand.selector) for demand in shape.demands]
        if all(ids is not None and not ids & self._board.fleet.rows.map.keys() for ids in insisted):
            named = tuple(sorted({id for ids in insisted for id in ids or ()}))
            for entry in self._waiting.entries_of(shape):
                self._waiting.remove(entry.item.id)
                decisions.append(Refused(entry.item.id, NodeUnknown(named)))
            return
        columns: list[Column] = []
        hopes = 0
        for demand in shape.demands:
            hopeful = self._board.hopes(demand)
            columns += demand.reads(self._board.work)
            columns += [("total", resource) for resource, _ in demand.needs]
            columns += [("free", resource) for resource, _ in demand.needs if hopeful]
            hopes |= hopeful
        self._waiting.sleep(shape, columns, hopes)
        refusals = telling_refusals(self._board, shape)
        told = self._waiting.tell(shape, refusals)
        if told:
            decisions.append(Waiting(told, refusals))

    def _group_refusals(self, record: GroupRecord, board: Board) -> tuple[Refusal, ...]:
        """The reasons of the first member that fits nowhere; none when they only do not fit together."""
        for member in self._missing(record):
            shape = board.shape_of(member)
            if not board.standing(shape.demands[0]).candidates():
                return telling_refusals(board, shape)
        return ()

    # -- time

    def _schedule_evictions(self, row: int, taint: Taint) -> None:
        if taint.effect is Effect.NO_EXECUTE:
            for id in self._board.work.residents.read(row):
                self._schedule_eviction(self._board.work.placements.map[id], taint)

    def _watch_taints(self, placement: Placement) -> None:
        """New work on a tainted node: it may stay only as long as it tolerates the taint."""
        for taint in self._board.fleet.nodes.map[placement.row].taints:
            if taint.effect is Effect.NO_EXECUTE:
                self._schedule_eviction(placement, taint)

    def _schedule_eviction(self, placement: Placement, taint: Taint) -> None:
        stay = patience(taint, placement.ask.tolerations)
        if stay is not None:
            self._evict_at.write()[placement.ask.id, taint] = self.now + stay
            heapq.heappush(self._evictions, (self.now + stay, placement.ask.id, taint))

    def _evict_due(self, decisions: list[Decision]) -> None:
        while self._evictions and self._evictions[0][0] <= self.now:
            due, id, taint = heapq.heappop(self._evictions)
            if self._evict_at.map.get((id, taint)) != due:
                continue
            del self._evict_at.write()[id, taint]
            placement = self._board.work.placements.map.get(id)
            if placement is not None and taint in self._board.fleet.nodes.map[placement.row].taints:
                decisions.append(Evicted(id, self._board.node_id(placement.row), taint))

    def _refuse_late(self, decisions: list[Decision]) -> None:
        while self._deadlines and self._deadlines[0][0] <= self.now:
            deadline, id = heapq.heappop(self._deadlines)
            if id in self._waiting and self._waiting.entry(id).item.deadline == deadline:
                refusals = self._waiting.told(self._waiting.sleeper_of(id))
                if id in self._groups.map:
                    self._group_ended(GroupEnded(id))
                else:
                    self._waiting.remove(id)
                decisions.append(Refused(id, DeadlinePassed(deadline, refusals)))

    @property
    def next_moment(self) -> float | None:
        """When time alone could next change a decision, if ever."""
        moments = [heap[0][0] for heap in (self._deadlines, self._evictions) if heap]
        if self.settings.patience is not None and self._board.world.hold is None:
            waits = [entry.moment + self.settings.patience for _, entry in self._waiting.heads()]
            moments += [moment for moment in waits if moment > self.now]
        return min(moments, default=None)

    def _review_hold(self) -> None:
        """Hold nodes for the first piece of waiting work that has waited too long and could fit."""
        hold = self._board.world.hold
        if hold is not None and (hold.owner not in self._waiting or hold.nodes & ~self._board.fleet.alive):
            self._board.set_hold(None)
            hold = None
        if hold is not None or self.settings.patience is None:
            return
        late = [
            ((-line.priority, entry.moment, entry.turn), line, entry)
            for line, entry in self._waiting.heads()
            if self.now - entry.moment >= self.settings.patience
        ]
        for _, line, entry in sorted(late, key=lambda found: found[0]):
            nodes = self._nodes_to_hold(line, entry)
            if nodes:
                self._board.set_hold(Hold(entry.item.id, line.sleeper, nodes))
                return

    def _nodes_to_hold(self, line: Line, entry: Entry) -> int:
        if isinstance(line.sleeper, Shape):
            for demand in line.sleeper.demands:
                hopes = self._board.hopes(demand)
                if hopes:
                    return 1 << self._board.emptiest(demand, hopes)
            return 0
        twin = self.fork()
        twin._board = free_of_work(twin._board)
        record = self._groups.map[entry.item.id]
        assert isinstance(line.sleeper, GroupShape)
        if not twin._place_group(line.sleeper, entry, []):
            return 0
        members = {m.id for ms in record.group.alternatives for m in ms} - self._board.work.placements.map.keys()
        nodes = 0
        for id in members & twin._board.work.placements.map.keys():
            nodes |= 1 << twin._board.work.placements.map[id].row
        return nodes

    # -- answers

    def explain(self, what: AskId | GroupId | Ask | Group) -> Explanation:
        """Why it waits, what would let it in, or why it is where it is; also for work never submitted."""
        if isinstance(what, str):
            if what in self._board.work.placements.map:
                return explain_placed(self._board, what)
            if what in self._waiting:
                what = self._waiting.entry(what).item
            elif what in self._groups.map:
                what = self._groups.map[what].group
            elif what in self._member_of.map:
                group = self._groups.map[self._member_of.map[what]].group
                what = next(member for members in group.alternatives for member in members if member.id == what)
            else:
                raise Invalid(f"nothing named {what!r} waits or is placed; an ask has to be submitted first")
        if isinstance(what, Group):
            return explain_group(self._board, what)
        return explain_waiting(self._board, what)

    def candidates(self, ask: Ask) -> tuple[tuple[NodeId, ...], ...]:
        """The nodes that would take the ask now, per choice, in table order."""
        return self._board.candidates(self._board.shape_of(ask))

    def free(self, node: NodeId) -> Mapping[str, int]:
        """What is free on a node, in units, for every resource it has or that is in use there."""
        row = self._board.fleet.rows.map[node]
        names = {*self._board.fleet.nodes.map[row].capacity, *self._board.fleet.amounts.map}
        found = {name: int(self._board.fleet.amount(name).free[row]) for name in sorted(names)}
        return {name: units for name, units in found.items() if units or self._board.fleet.amount(name).total[row]}

    @property
    def placed(self) -> Mapping[AskId, NodeId]:
        """Every placed ask and its node."""
        nodes = self._board.fleet.nodes.map
        return {id: nodes[placement.row].id for id, placement in self._board.work.placements.map.items()}

    @property
    def waiting(self) -> tuple[str, ...]:
        """Ids of everything that waits (asks and groups), in the order in which it will be tried."""
        return tuple(entry.item.id for entry in self._waiting.in_order())

    @property
    def nodes(self) -> Mapping[NodeId, Node]:
        """Every live node as it is now, in table order."""
        nodes = self._board.fleet.nodes.map
        return {nodes[row].id: nodes[row] for row in sorted(nodes)}


_APPLY: dict[type, Callable[[Engine, Any], None]] = {
    ClockAdvanced: Engine._clock_advanced,
    NodeJoined: Engine._node_joined,
    NodeLeft: Engine._node_left,
    NodeLabelled: Engine._node_labelled,
    NodeTainted: Engine._node_tainted,
    NodeUntainted: Engine._node_untainted,
    NodeDrained: Engine._node_drained,
    NodeResized: Engine._node_resized,
    AskRunning: Engine._ask_running,
    AskEnded: Engine._ask_ended,
    AskLost: Engine._ask_lost,
    GroupSubmitted: Engine._group_submitted,
    GroupEnded: Engine._group_ended,
}
