"""The Engine: facts in, decisions out, `fork()` for every "what if".

Rule: everything here is pure. No clock, no I/O, no logging, no threads, no unseeded randomness: time
arrives as a fact, and equal facts give byte-equal decisions. Clusters, the simulator and the planner
hold this object and contain no scheduling rule of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from itertools import groupby, islice
from math import inf
from typing import Any

from stead.asks import Ask, AskId, GroupId, PolicyName
from stead.engine.answers import Answers
from stead.engine.batches import Batch, Run, ready_runs
from stead.engine.board import Board
from stead.engine.checkpoints import Checkpoint, Recovery
from stead.engine.decisions import (
    DeadlinePassed,
    Decision,
    Evicted,
    GroupPlaced,
    Moved,
    NodeUnknown,
    Placed,
    Refused,
    Waiting,
)
from stead.engine.explain import telling_group_refusals, telling_refusals
from stead.engine.facts import (
    AskEnded,
    AskLost,
    AskRunning,
    AsksSubmitted,
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
from stead.engine.fleet import Column
from stead.engine.flow import Solver
from stead.engine.groups import GroupRecord, Groups, GroupShape, place_missing
from stead.engine.holds import hold_for_ask, hold_for_group, is_of_use
from stead.engine.moving import best_moves
from stead.engine.rules import Hold, dead_nodes_insisted_on
from stead.engine.settings import DEFAULTS, Settings
from stead.engine.shapes import Demand, Shape
from stead.engine.timers import Timers
from stead.engine.waiting import Item, Line, Lines
from stead.engine.work import Placement
from stead.errors import Invalid
from stead.node import NodeId
from stead.taints import Effect, Taint, stay_under

__all__ = ["Engine", "Settings"]

HOPELESS_MAX = 4096
SINGLES_MAX = 2_000
"""How much work of a batch policy that no batch can decide (near, apart, strict groups) one call looks at."""


class Engine(Answers, Recovery):
    def __init__(self, settings: Settings = DEFAULTS, solver: Solver | None = None) -> None:
        self.settings = settings
        self.solver = solver
        self.now = 0.0
        self._board = Board(settings.hybrid_threshold, settings.seed)
        self._waiting = Lines()
        self._groups = Groups()
        self._timers = Timers()
        self._somebody_late_at = inf
        self._unfinished = False
        self._hopeless: dict[Hashable, int] = {}  # who could not be held for, and at which version of the fleet

    def fork(self) -> Engine:
        """An independent engine in the same state. It shares all tables until one of the two writes."""
        twin = Engine.__new__(Engine)
        twin.settings, twin.solver, twin.now = self.settings, self.solver, self.now
        twin._board, twin._waiting = self._board.fork(), self._waiting.fork()
        twin._groups, twin._timers = self._groups.fork(), self._timers.fork()
        twin._somebody_late_at, twin._hopeless = self._somebody_late_at, dict(self._hopeless)
        twin._unfinished = self._unfinished
        return twin

    @classmethod
    def restored(cls, saved: Checkpoint, settings: Settings = DEFAULTS, solver: Solver | None = None) -> Engine:
        """The engine that a checkpoint was taken of."""
        engine = cls(settings, solver)
        engine._restore(saved)
        return engine

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
        row = self._board.fleet.row(fact.node.id)
        known = self._board.fleet.nodes.map[row].taints if row is not None else ()
        row = self._board.fleet.join(fact.node)
        for taint in fact.node.taints:
            if taint not in known:
                self._schedule_evictions(row, taint)

    def _node_left(self, fact: NodeLeft) -> None:
        row = self._board.fleet.row(fact.node)
        if row is None:
            return
        lost = [self._lift(id) for id in tuple(self._board.work.residents.read(row))]
        self._board.fleet.leave(row)
        hold = self._board.world.hold
        if hold is not None and hold.nodes >> row & 1:
            self._board.set_hold(None)
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
        shape_of, now = self._board.shape_of, self.now
        arrived: dict[tuple[Shape, int], dict[AskId, Item]] = {}
        seen: dict[AskId, Ask] = {}
        waiting, placed, groups, members = self._known_ids()
        for fact in facts:
            ask = fact.ask
            id = ask.id
            if id in seen or id in waiting or id in placed or id in groups or id in members:
                continue
            seen[id] = ask
            arrived.setdefault((shape_of(ask), ask.priority), {})[id] = ask
        self._need_solver(shape.policy for shape, _ in arrived)
        for (shape, priority), asks in arrived.items():
            self._board.note_kind(shape, len(asks))
            turn = self._waiting.turn_of(shape, priority, now) or self._board.next_turn()
            self._wait(Line(shape, priority, now, turn, now), asks)
        self._board.work.came(self._board.fleet, seen.values())

    def _ask_running(self, fact: AskRunning) -> None:
        ask, row = fact.ask, self._board.fleet.row(fact.node)
        if row is None or ask.id in self._groups:
            return
        choice, moment, turn = 0, self.now, 0
        known = self._board.work.placements.map.get(ask.id)
        if known is not None:
            if known.row == row:
                return
            choice, moment, turn, ask = known.choice, known.moment, known.turn, known.ask
            self._lift(ask.id)
        elif ask.id in self._waiting:
            line = self._waiting.line_of(ask.id)
            moment, turn = line.moment, line.turn
            self._waiting.remove(ask.id)
        group = self._groups.of_member.map.get(ask.id)
        self._board.work.came(self._board.fleet, (ask,))
        demand = self._board.shape_of(ask).demands[choice]
        placement = self._board.place(ask, demand, row, moment, turn or self._board.next_turn(), group)
        self._watch_taints(placement)
        if group is not None:
            self._member_runs(group, ask.id)

    def _ask_ended(self, fact: AskEnded) -> None:
        if fact.ask in self._board.work.placements.map:
            self._lift(fact.ask)
        elif fact.ask in self._waiting and fact.ask not in self._groups:
            self._waiting.remove(fact.ask)
        group = self._groups.of_member.map.get(fact.ask)
        if group is not None:
            record = self._groups.records.map[group]
            self._wait_for_the_rest(self._groups.update(record._replace(ended=record.ended | {fact.ask})))
        self._board.work.went(self._board.fleet, fact.ask)

    def _ask_lost(self, fact: AskLost) -> None:
        if fact.ask in self._board.work.placements.map:
            self._wait_again(self._lift(fact.ask))

    def _group_submitted(self, fact: GroupSubmitted) -> None:
        group = fact.group
        if any(id in ids for ids in self._known_ids() for id in (group.id, *(m.id for m in group.all_members))):
            return
        shape = self._groups.shape_of(group, self._board)
        self._need_solver(member.policy for member in group.all_members)
        turn = self._waiting.turn_of(shape, group.priority, self.now) or self._board.next_turn()
        self._groups.add(group, self.now, turn)
        self._board.work.came(self._board.fleet, group.all_members)
        self._wait(Line(shape, group.priority, self.now, turn, self.now), {group.id: group})

    def _group_ended(self, fact: GroupEnded) -> None:
        if fact.group not in self._groups:
            return
        if fact.group in self._waiting:
            self._waiting.remove(fact.group)
        for member in self._groups.remove(fact.group).group.all_members:
            if member.id in self._board.work.placements.map:
                self._lift(member.id)
            self._board.work.went(self._board.fleet, member.id)

    def _need_solver(self, policies: Iterable[PolicyName]) -> None:
        """Refuse, before anything of it is kept, what cannot be decided."""
        if self.solver is None and any(policy.in_batches for policy in policies):
            raise Invalid("policy 'flow' needs OR-tools, and this engine has no solver; try: pip install 'stead[flow]'")

    def _known_ids(self) -> tuple[Mapping[str, object], ...]:
        """Where an id that is taken would be found; to be read at once."""
        placed = self._board.work.placements.map
        return self._waiting.ids, placed, self._groups.records.map, self._groups.of_member.map

    def _wait(self, line: Line, items: Mapping[str, Item]) -> None:
        self._waiting.add(line, items)
        for item in items.values():
            if item.deadline is not None:
                self._timers.set_deadline(item.id, item.deadline)

    def _wait_again(self, placement: Placement) -> None:
        """An ask lost its place: back into the line by its old moment; a member through its group."""
        ask = placement.ask
        if placement.group is None:
            shape = self._board.shape_of(ask)
            self._waiting.add(Line(shape, ask.priority, placement.moment, placement.turn, self.now), {ask.id: ask})
            self._timers.renew_deadline(ask.id, ask.deadline, self.now)
            return
        record = self._groups.records.map[placement.group]
        if not record.ended and not record.rows(self._board):
            record = self._groups.update(record._replace(alternative=None))  # all of it is decided again
        self._wait_alone(record)
        self._timers.renew_deadline(record.group.id, record.group.deadline, self.now)

    def _member_runs(self, group: GroupId, member: AskId) -> None:
        """The cluster runs a member: its alternative is the one taken, and all of it may be there now."""
        record = self._groups.records.map[group]
        if record.alternative is None:
            taken = next(i for i, ms in enumerate(record.group.alternatives) if member in {m.id for m in ms})
            record = self._groups.update(record._replace(alternative=taken))
        self._wait_for_the_rest(record)

    def _wait_alone(self, record: GroupRecord) -> None:
        """A group of which something is placed or over waits (awake) with a shape of its own: what keeps it
        waiting says nothing about groups that are whole."""
        group, since = record.group, self.now
        if group.id in self._waiting:
            since = self._waiting.line_of(group.id).since
            self._waiting.remove(group.id)
        shape, hold = GroupShape(group, self._board, record.lacking(self._board)), self._board.world.hold
        if hold is not None and hold.owner == group.id:
            self._board.set_hold(Hold(hold.owner, shape, hold.nodes), news=False)
        self._waiting.add(Line(shape, group.priority, record.moment, record.turn, since), {group.id: group})

    def _lift(self, id: AskId) -> Placement:
        self._timers.left(id)
        return self._board.lift(id)

    def _wait_for_the_rest(self, record: GroupRecord) -> None:
        """A group that waits lacks less now; when nothing of the alternative taken, it stops waiting."""
        if record.alternative is not None and record.group.id in self._waiting and not record.missing(self._board):
            self._waiting.remove(record.group.id)
        elif record.group.id in self._waiting:
            self._wait_alone(record)

    # -- decisions out

    def decide(self, limit: int | None = None) -> list[Decision]:
        """What to do now, given all facts so far. Its own placements are assumed at once.

        `limit` bounds how many asks and groups are placed; the rest is decided by the next call.
        """
        decisions: list[Decision] = []
        self._evict_due(decisions)
        self._refuse_late(decisions)
        left, tried, singles, self._unfinished = limit, False, 0, False
        while self._anybody_awake():
            tried = True
            for line in self._waiting.lines():
                if left is not None and left <= 0:
                    return decisions
                singles += line.sleeper.policy.in_batches
                if singles > SINGLES_MAX:
                    self._unfinished = True  # `next_moment` is now
                    return decisions
                placed = self._decide_line(line, left, decisions)
                left = None if left is None else left - placed
                self._waiting.wake(self._board.fleet.take_news())
        self._evict_due(decisions)
        if tried or self.now >= self._somebody_late_at:
            self._hold_for_the_late()
        self._board.tidy(self._waiting)
        return decisions

    def _anybody_awake(self) -> bool:
        """Wake whom the latest changes concern."""
        hold = self._board.world.hold
        if hold is not None and (
            hold.owner not in self._waiting or (self._board.fleet.news and not is_of_use(self._board, hold))
        ):
            self._board.set_hold(None)
        self._waiting.wake(self._board.fleet.take_news())
        return self._waiting.awake()

    def _decide_line(self, line: Line, limit: int | None, decisions: list[Decision]) -> int:
        """Place what stands in a line, at most `limit`; what finds no place goes to sleep. How many were placed."""
        sleeper = line.sleeper
        assert isinstance(sleeper, Shape | GroupShape)
        if sleeper.policy.in_batches and self.solver is not None:
            runs = ready_runs(self._board, self._waiting, sleeper.policy, limit)
            if runs:
                return self._decide_batch(sleeper.policy, runs, decisions)
        if isinstance(sleeper, GroupShape) or sleeper.one_by_one or self._board.work.watches(sleeper.kind):
            limit = 1  # each may wake others, or change where the next can go
        run = list(islice(self._board.work.up_to_watched(self._waiting.items_in(line)), limit))
        if isinstance(sleeper, GroupShape):
            return self._decide_group(sleeper, self._groups.records.map[run[0].id], decisions)
        placed = self._place_run(line, sleeper, run, decisions)  # type: ignore[arg-type]  # shapes queue asks
        if placed < len(run):
            self._block(sleeper, decisions)
        return placed

    def _decide_batch(self, policy: PolicyName, runs: list[Run], decisions: list[Decision]) -> int:
        """Place what stands in many lines, together; what finds no place goes to sleep. How many were placed."""
        assert self.solver is not None, "work in batches was refused without a solver"
        batch = Batch(self._board, self.solver, policy, runs, self.now, self.settings.unscheduled)
        outcome = batch.decide()
        gangs: dict[GroupId, list[tuple[AskId, NodeId]]] = {}
        for placing in outcome.placings:
            ids, group = [ask.id for ask in placing.asks], placing.run.group
            if group is None:
                self._waiting.remove(*ids)
                self._announce(placing.demand, ids, placing.rows, decisions)
            else:
                nodes = map(self._board.node_id, placing.rows)
                gangs.setdefault(group, []).extend(zip(ids, nodes, strict=True))
        for group, members in gangs.items():
            self._groups.update(self._groups.records.map[group]._replace(alternative=0))
            self._waiting.remove(group)
            self._watch_all(id for id, _ in members)
            decisions.append(GroupPlaced(group, 0, tuple(members)))
        decided = batch.decided(outcome)
        decisions.append(decided)
        for left in dict.fromkeys(run.shape for run in runs if run.group is None and run.done < len(run.asks)):
            self._block(left, decisions)
        if self.settings.moves:
            self._move(best_moves(self._board, policy, self.settings.moves), decisions)
        singly = 0
        for group in dict.fromkeys(run.group for run in runs if run.group in outcome.failed):
            shape = self._waiting.line_of(group).sleeper
            assert isinstance(shape, GroupShape)
            singly += self._decide_group(shape, self._groups.records.map[group], decisions)
        return decided.placed + singly

    def _move(self, moves: list[Moved], decisions: list[Decision]) -> None:
        for move in moves:
            self._timers.left(move.ask)
        self._watch_all(dict.fromkeys(move.ask for move in moves))
        decisions += moves

    def _place_run(self, line: Line, shape: Shape, run: list[Ask], decisions: list[Decision]) -> int:
        """Place as many equal asks as fit, each with the first of its choices that is available."""
        if len(run) == 1:
            return int(self._place_one(line, shape, run[0], decisions))
        done = 0
        for demand in shape.demands:
            if done < len(run):
                rows = self._board.standing(demand).best_many(self._board.fleet, len(run) - done)
                if rows:
                    asks = run[done : done + len(rows)]
                    ids = [ask.id for ask in asks]
                    self._waiting.remove(*ids)
                    self._board.place_many([(demand, asks, rows, line)])
                    self._announce(demand, ids, rows, decisions)
                    done += len(rows)
        return done

    def _place_one(self, line: Line, shape: Shape, ask: Ask, decisions: list[Decision]) -> bool:
        for demand in shape.demands:
            row = self._board.standing(demand).best(self._board.dice)
            if row is not None:
                self._waiting.remove(ask.id)
                self._board.place(ask, demand, row, line.moment, line.turn)
                self._announce(demand, [ask.id], [row], decisions)
                return True
        return False

    def _announce(self, demand: Demand, ids: list[AskId], rows: list[int], decisions: list[Decision]) -> None:
        nodes, choice = self._board.fleet.nodes.map, demand.index
        decisions.extend([Placed(id, nodes[row].id, choice) for id, row in zip(ids, rows, strict=True)])
        self._watch_all(ids)

    def _watch_all(self, ids: Iterable[AskId]) -> None:
        if any(taint.effect is Effect.NO_EXECUTE for taint in self._board.fleet.taints.map):
            for id in ids:
                self._watch_taints(self._board.work.placements.map[id])

    def _decide_group(self, shape: GroupShape, record: GroupRecord, decisions: list[Decision]) -> int:
        hold = self._board.world.hold
        own = hold if hold is not None and hold.owner == record.group.id else None
        if own is not None:
            self._board.set_hold(None, news=False)
        if self._place_group(shape, record, decisions):
            if own is not None:
                self._board.set_hold(None)
            return 1
        if own is not None:
            self._board.set_hold(own)
        refusals = telling_group_refusals(self._board, record)
        self._waiting.sleep(shape, shape.columns(self._board), shape.hopes(self._board))
        told = self._waiting.tell(shape, refusals)
        if told:
            decisions.append(Waiting(told, refusals))
        return 0

    def _place_group(self, shape: GroupShape, record: GroupRecord, decisions: list[Decision]) -> bool:
        missing = {ask.id for members in record.group.alternatives for ask in members}
        missing -= self._board.work.placements.map.keys()
        placed = place_missing(self._board, shape, record)
        if placed is None or placed.alternative is None:
            return False
        self._groups.update(placed)
        self._waiting.remove(record.group.id)
        members = [ask.id for ask in record.group.alternatives[placed.alternative] if ask.id in missing]
        placements = [self._board.work.placements.map[id] for id in members if id not in record.ended]
        for placement in placements:
            self._watch_taints(placement)
        nodes = tuple((placement.ask.id, self._board.node_id(placement.row)) for placement in placements)
        if nodes:
            decisions.append(GroupPlaced(record.group.id, placed.alternative, nodes))
        return True

    def _block(self, shape: Shape, decisions: list[Decision]) -> None:
        """Nothing fits any more of these asks: refuse them if nothing ever can, else let them sleep."""
        alive = self._board.fleet.rows.map
        dead = [dead_nodes_insisted_on(demand.selector, alive) for demand in shape.demands]
        if all(dead):
            named = tuple(sorted(frozenset().union(*dead)))
            for item in self._waiting.items_of(shape):
                self._forget(item.id)
                decisions.append(Refused(item.id, NodeUnknown(named)))
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
        stay = stay_under(taint, placement.ask.tolerations)
        if stay is not None:
            self._timers.set_eviction(placement.ask.id, taint, self.now + stay)

    def _evict_due(self, decisions: list[Decision]) -> None:
        for id, taint in self._timers.due_evictions(self.now):
            placement = self._board.work.placements.map.get(id)
            if placement is not None and taint in self._board.fleet.nodes.map[placement.row].taints:
                self._timers.evicted(id)
                decisions.append(Evicted(id, self._board.node_id(placement.row), taint))

    def _refuse_late(self, decisions: list[Decision]) -> None:
        for deadline, id in self._timers.passed_deadlines(self.now):
            if id in self._waiting and self._is_late(id, deadline):
                refusals = self._waiting.told(self._waiting.line_of(id).sleeper)
                self._forget(id)
                decisions.append(Refused(id, DeadlinePassed(deadline, refusals)))

    def _forget(self, id: str) -> None:
        """What waits is refused."""
        if id in self._groups:
            self._group_ended(GroupEnded(id))
        else:
            self._waiting.remove(id)
            self._board.work.went(self._board.fleet, id)

    def _is_late(self, id: str, deadline: float) -> bool:
        """Whether what waits is refused by its deadline: not if part of it runs."""
        record = self._groups.records.map.get(id)
        return self._waiting.item(id).deadline == deadline and (record is None or record.alternative is None)

    @property
    def next_moment(self) -> float | None:
        """When time alone could next change a decision, if ever."""
        if self._unfinished:
            return self.now
        moment = min(self._timers.next_moment(self._waiting), self._somebody_late_at)
        return None if moment == inf else moment

    def _hold_for_the_late(self) -> None:
        """Hold nodes for the first piece of waiting work that has waited too long and could fit."""
        patience, self._somebody_late_at = self.settings.patience, inf
        if patience is None or self._board.world.hold is not None:
            return
        for line in self._waiting.waiting_since(self.now - patience):
            hold = self._hold_for(line)
            if hold is not None:
                self._board.set_hold(hold)
                return
        self._somebody_late_at = self._waiting.next_since + patience

    def _hold_for(self, line: Line) -> Hold | None:
        """Nodes to hold for the first in a line, if room is all it lacks."""
        sleeper, item = line.sleeper, next(iter(self._waiting.items_in(line).values()))
        if not self._waiting.hopes(sleeper) or self._hopeless.get(sleeper) == self._board.fleet.version:
            return None
        if isinstance(sleeper, Shape):
            hold = hold_for_ask(self._board, item.id, sleeper)
        else:
            assert isinstance(sleeper, GroupShape)
            hold = hold_for_group(self._board, self._groups.records.map[item.id], sleeper)
        if hold is None:
            if len(self._hopeless) > HOPELESS_MAX:
                self._hopeless.clear()
            self._hopeless[sleeper] = self._board.fleet.version
        return hold


_APPLY: dict[type, Callable[[Engine, Any], None]] = {
    ClockAdvanced: Engine._clock_advanced,
    NodeJoined: Engine._node_joined,
    NodeLeft: Engine._node_left,
    NodeLabelled: Engine._node_labelled,
    NodeTainted: Engine._node_tainted,
    NodeUntainted: Engine._node_untainted,
    NodeDrained: Engine._node_drained,
    NodeResized: Engine._node_resized,
    AsksSubmitted: lambda engine, fact: engine._asks_submitted(fact.each()),
    AskRunning: Engine._ask_running,
    AskEnded: Engine._ask_ended,
    AskLost: Engine._ask_lost,
    GroupSubmitted: Engine._group_submitted,
    GroupEnded: Engine._group_ended,
}
