"""The Engine: facts in, decisions out, `fork()` for every "what if".

Rule: this file tells the story of a decision in order. Its steps and its state are in the other files (`parts.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import groupby, islice
from math import inf
from typing import Any

from stead.engine.batch.batches import Batch, Run, ready_runs
from stead.engine.batch.flow import Solver
from stead.engine.batch.moving import best_moves
from stead.engine.decisions import Decision, GroupPlaced, Moved, NodeUnknown, Refused, Waiting
from stead.engine.explain.by_plugin import PluginRefusal, refusals_by_plugin
from stead.engine.explain.explanations import Explanation, explain_pending, explain_placed
from stead.engine.explain.verdicts import feasible, short_verdicts
from stead.engine.facts import (
    AskChanged,
    AskEnded,
    AskEnding,
    AskLost,
    AskNominated,
    AskRunning,
    AsksSubmitted,
    AskSubmitted,
    BudgetChanged,
    BudgetEnded,
    ClaimChanged,
    ClaimEnded,
    ClockAdvanced,
    EvictionFailed,
    Fact,
    GroupChanged,
    GroupEnded,
    GroupSubmitted,
    NodeDrained,
    NodeJoined,
    NodeLabelled,
    NodeLeft,
    NodeResized,
    NodeTainted,
    NodeUntainted,
    NodeUsed,
)
from stead.engine.groups.changing import change_group
from stead.engine.groups.lifecycle import GroupShape, WhyNot
from stead.engine.groups.timeouts import release_late
from stead.engine.parts import Parts
from stead.engine.placing import announce, place_in_turn, place_run
from stead.engine.preempting.deciding import make_room, make_room_for_group, place_nominated, wakers
from stead.engine.restart.assumed import assume
from stead.engine.restart.checkpoints import Checkpoint, restore, save
from stead.engine.rules import dead_required_nodes
from stead.engine.settings import DEFAULTS, Settings
from stead.engine.shapes import Shape
from stead.engine.timing.deadlines import refuse_late
from stead.engine.timing.taint_times import TaintEnd
from stead.engine.waiting import Item, Line, Sleeper
from stead.errors import Invalid
from stead.language.asks import Ask, AskId, Group, GroupId, PolicyName
from stead.language.claims import Claim
from stead.language.nodes import Node, NodeId
from stead.language.resources import NOTHING

SINGLES_MAX = 2_000
"""The maximum number of tries per call for work of a batch policy that a batch cannot hold: affinities, spreads and
strict groups. Also the longest run of equal asks that are placed one after the other."""


class Engine:
    """Decides where work runs: apply facts, then ask for decisions. `explain` says why. Use a `fork` to try changes.

    Args:
        settings: Options that are fixed when the engine is created.
        solver: The solver for policies that decide in batches; see `stead.solver`.

    Example:
        ```python
        engine = Engine()
        engine.apply(NodeJoined(Node.of("node-1", {"CPU": 4})), AskSubmitted(Ask.of("web", {"CPU": 1})))
        engine.decide()  # [Placed(ask='web', node='node-1', choice=0)]
        ```
    """

    def __init__(self, settings: Settings = DEFAULTS, solver: Solver | None = None) -> None:
        self.settings = settings
        self.solver = solver
        self._parts = Parts(settings)

    def fork(self) -> Engine:
        """An independent engine in the same state. The two share their tables until one of them writes."""
        twin = Engine.__new__(Engine)
        twin.settings, twin.solver, twin._parts = self.settings, self.solver, self._parts.fork()
        return twin

    @property
    def now(self) -> float:
        """The latest time that `ClockAdvanced` reported."""
        return self._parts.now

    # -- facts in

    def apply(self, *facts: Fact) -> None:
        """Apply what happened. This is the engine's only input."""
        for kind, run in groupby(facts, key=type):
            if kind is AskSubmitted:
                self._asks_submitted(run)  # type: ignore[arg-type]  # grouped by type
            else:
                apply_one = _APPLY[kind]
                for fact in run:
                    apply_one(self, fact)

    def _clock_advanced(self, fact: ClockAdvanced) -> None:
        self._parts.now = max(self.now, fact.now)

    def _node_joined(self, fact: NodeJoined) -> None:
        fleet, times = self._parts.board.fleet, self._parts.taint_times
        row = fleet.row(fact.node.id)
        known = fleet.nodes.map[row].taints if row is not None else ()
        row = fleet.join(fact.node)
        times.joined(row, [taint for taint in fact.node.taints if taint not in known], self.now)

    def _node_left(self, fact: NodeLeft) -> None:
        parts, board = self._parts, self._parts.board
        row = board.fleet.row(fact.node)
        if row is None:
            return
        parts.preemption.node_leaves(row)
        lost = [parts.lift(id) for id in tuple(board.work.residents.read(row))]
        board.use(row, NOTHING, 0)
        board.fleet.leave(row)
        parts.taint_times.left(fact.node)
        parts.holds.node_left(row)
        for placement in lost:
            parts.wait_again(placement)

    def _node_labelled(self, fact: NodeLabelled) -> None:
        fleet = self._parts.board.fleet
        row = fleet.row(fact.node)
        if row is not None:
            fleet.set_labels(row, fleet.nodes.map[row].labels.changed(fact.labels, fact.removed))

    def _node_tainted(self, fact: NodeTainted) -> None:
        row = self._parts.board.fleet.row(fact.node)
        if row is not None:
            self._parts.taint_times.tainted(row, fact, self.now)

    def _node_untainted(self, fact: NodeUntainted) -> None:
        fleet = self._parts.board.fleet
        row = fleet.row(fact.node)
        if row is not None:
            taints = fleet.nodes.map[row].taints
            gone = [t for t in taints if t.key == fact.key and fact.effect in (None, t.effect)]
            self._parts.taint_times.untainted(row, gone)

    def _node_drained(self, fact: NodeDrained) -> None:
        row = self._parts.board.fleet.row(fact.node)
        if row is not None:
            self._parts.board.fleet.set_draining(row, fact.draining)

    def _node_resized(self, fact: NodeResized) -> None:
        row = self._parts.board.fleet.row(fact.node)
        if row is not None:
            self._parts.board.fleet.set_capacity(row, fact.capacity)

    def _node_used(self, fact: NodeUsed) -> None:
        row = self._parts.board.fleet.row(fact.node)
        if row is not None:
            self._parts.board.use(row, fact.amounts, fact.pieces)

    def _asks_submitted(self, facts: Iterable[AskSubmitted]) -> None:
        """Queue asks that arrive together, one shape at a time."""
        parts, board, now = self._parts, self._parts.board, self.now
        arrived: dict[tuple[Shape, int], dict[AskId, Item]] = {}
        seen: dict[AskId, Ask] = {}
        waiting, placed, groups, members = parts.known_ids()
        for fact in facts:
            ask = fact.ask
            id = ask.id
            if id in seen or id in waiting or id in placed or id in groups or id in members:
                continue
            seen[id] = ask
            arrived.setdefault((board.shape_of(ask), ask.priority), {})[id] = ask
        self._need_solver(shape.policy for shape, _ in arrived)
        for (shape, priority), asks in arrived.items():
            board.note_kind(shape, len(asks))
            turn = parts.waiting.turn_of(shape, priority, now) or board.next_turn()
            parts.wait(Line(shape, priority, now, turn, now), asks)
        board.work.note_known(board.fleet, seen.values())

    def _ask_running(self, fact: AskRunning) -> None:
        parts, board = self._parts, self._parts.board
        ask, row = fact.ask, board.fleet.row(fact.node)
        if row is None or ask.id in parts.groups:
            return
        choice, moment, turn = 0, self.now, 0
        started = self.now if fact.started is None else fact.started
        known = board.work.placements.map.get(ask.id)
        if known is not None:
            if known.row == row:
                if known.started is None or fact.started not in (None, known.started):
                    board.work.has_started(ask.id, started)
                    parts.preemption.has_started(row)
                return
            choice, moment, turn, ask = known.choice, known.moment, known.turn, known.ask
            parts.lift(ask.id)
        elif ask.id in parts.waiting:
            line = parts.waiting.line_of(ask.id)
            moment, turn = line.moment, line.turn
            parts.stop_waiting(ask.id)
        group = parts.groups.of_member.map.get(ask.id)
        board.work.note_known(board.fleet, (ask,))
        demand = board.shape_of(ask).demands[choice]
        parts.preemption.forget([ask.id])
        placement = board.place(ask, demand, row, moment, turn or board.next_turn(), group, started)
        parts.taint_times.placed(placement, self.now)
        if group is not None:
            parts.groups.member_runs(ask.id, self.now)

    def _ask_ended(self, fact: AskEnded) -> None:
        parts, id = self._parts, fact.ask
        if id in parts.board.work.placements.map:
            parts.lift(id)
        elif id in parts.waiting and id not in parts.groups:
            parts.stop_waiting(id)
        parts.preemption.forget([id])
        if id in parts.groups.of_member.map:
            parts.groups.member_ended(id, self.now)
        parts.board.work.note_ended(parts.board.fleet, id)

    def _ask_lost(self, fact: AskLost) -> None:
        if fact.ask in self._parts.board.work.placements.map:
            self._parts.wait_again(self._parts.lift(fact.ask))

    def _ask_nominated(self, fact: AskNominated) -> None:
        parts, row, ask = self._parts, self._parts.board.fleet.row(fact.node), self._parts.pending_ask(fact.ask)
        if row is not None and ask is not None:
            demand, group = parts.board.shape_of(ask).demands[0], parts.groups.of_member.map.get(fact.ask)
            parts.preemption.nominate(ask, demand, row, parts.line_of(fact.ask), group)

    def _group_submitted(self, fact: GroupSubmitted) -> None:
        group = fact.group
        if any(id in ids for ids in self._parts.known_ids() for id in (group.id, *(m.id for m in group.all_members))):
            return
        self._need_solver(member.policy for member in group.all_members)
        self._parts.wait(self._parts.groups.submitted(group, self.now), {group.id: group})

    def _group_changed(self, fact: GroupChanged) -> None:
        self._need_solver(member.policy for member in fact.group.all_members)
        change_group(self._parts, fact.group)

    def _group_ended(self, fact: GroupEnded) -> None:
        if fact.group in self._parts.groups:
            self._parts.forget(fact.group)

    def _need_solver(self, policies: Iterable[PolicyName]) -> None:
        """Refuse work that this engine cannot decide, before storing any of it."""
        if self.solver is None and any(policy.in_batches for policy in policies):
            raise Invalid("policy 'flow' needs OR-tools, and this engine has no solver; try: pip install 'stead[flow]'")

    # -- decisions out

    def decide(self, limit: int | None = None) -> list[Decision]:
        """What to do now, given all facts so far. The engine assumes its own placements at once.

        `limit` bounds how many asks and groups are placed (by default, the setting `placed_at_once`); the next call
        decides the rest.
        """
        parts, now = self._parts, self._parts.now
        waiting, times = parts.waiting, parts.taint_times
        decisions: list[Decision] = [*times.expire_due(now), *times.evict_due(now)]
        decisions += refuse_late(parts)
        decisions += release_late(parts)
        left = self.settings.placed_at_once if limit is None else limit
        tried, singles, parts.is_unfinished = False, 0, False
        while True:
            decisions += place_nominated(parts)
            if not self._anybody_awake():
                break
            tried = True
            for line in waiting.lines():
                if left is not None and left <= 0:
                    parts.is_unfinished = True  # so `next_moment` is now
                    return decisions
                if singles > SINGLES_MAX:
                    parts.is_unfinished = True
                    return decisions
                placed = self._decide_line(line, left, decisions, cuts_batches=limit is not None)
                singles += max(placed, 1) if line.sleeper.policy.in_batches else 0
                left = None if left is None else left - placed
                waiting.wake(parts.board.fleet)
        decisions += times.evict_due(now)
        if tried or now >= parts.holds.late_at:
            parts.holds.hold_for_the_late(now)
        parts.board.tidy(waiting)
        return decisions

    def _anybody_awake(self) -> bool:
        """Wake pending work that the latest changes could help. Returns whether any work is awake."""
        self._parts.holds.release_if_useless()
        self._parts.waiting.wake(self._parts.board.fleet)
        return self._parts.waiting.awake()

    def _decide_line(self, line: Line, limit: int | None, decisions: list[Decision], cuts_batches: bool) -> int:
        """Place the work of a line, at most `limit`; what does not fit goes to sleep. Returns how many were placed."""
        sleeper, parts = line.sleeper, self._parts
        assert isinstance(sleeper, Shape | GroupShape)
        if sleeper.policy.in_batches and self.solver is not None:
            runs = ready_runs(parts.board, parts.waiting, sleeper.policy, limit if cuts_batches else None)
            if runs:
                return self._decide_batch(sleeper.policy, runs, decisions)
        if isinstance(sleeper, GroupShape):
            return self._decide_group(sleeper, next(iter(parts.waiting.items_in(line))), decisions)
        in_turn = sleeper.one_by_one or parts.board.work.watches(sleeper.kind)
        limit = SINGLES_MAX if in_turn and limit is None else limit
        items = parts.preemption.first_tried(parts.waiting.items_in(line), in_turn)
        run: list[Ask] = list(islice(parts.board.work.up_to_watched(items), limit))  # type: ignore[arg-type]  # shapes queue asks
        placed = (place_in_turn if in_turn else place_run)(parts, line, sleeper, run)
        decisions += placed
        if len(placed) == len(run) or parts.waiting.has_woken:  # woken work may come before the rest of the run
            return len(placed)
        return len(placed) + self._block(sleeper, decisions, None if limit is None else limit - len(placed))

    def _decide_batch(self, policy: PolicyName, runs: list[Run], decisions: list[Decision]) -> int:
        """Place the work of many lines together; what does not fit goes to sleep. Returns how many were placed."""
        assert self.solver is not None, "without a solver, batch work is refused on submission"
        parts, board = self._parts, self._parts.board
        batch = Batch(board, self.solver, policy, runs, self.now, self.settings.unscheduled)
        outcome = batch.decide()
        gangs: dict[GroupId, list[tuple[AskId, NodeId]]] = {}
        for placing in outcome.placings:
            ids, group = [ask.id for ask in placing.asks], placing.run.group
            if group is None:
                parts.stop_waiting(*ids)
                decisions += announce(parts, placing.demand, ids, placing.rows)
            else:
                nodes = map(board.node_id, placing.rows)
                gangs.setdefault(group, []).extend(zip(ids, nodes, strict=True))
        for group, members in gangs.items():
            parts.preemption.forget(member.id for member in parts.groups.record(group).group.all_members)
            parts.groups.took(group, 0, self.now)
            parts.taint_times.all_placed((id for id, _ in members), self.now)
            decisions.append(GroupPlaced(group, 0, tuple(members)))
        decided = batch.decided(outcome)
        decisions.append(decided)
        for left in dict.fromkeys(run.shape for run in runs if run.group is None and run.done < len(run.asks)):
            self._block(left, decisions)
        if self.settings.moves:
            moves = best_moves(board, policy, self.settings.moves)
            for move in moves:
                parts.timers.left(move.ask)
            parts.taint_times.all_placed(dict.fromkeys(move.ask for move in moves), self.now)
            decisions += moves
        placed_alone = 0
        for group in dict.fromkeys(run.group for run in runs if run.group in outcome.failed):
            shape = parts.waiting.line_of(group).sleeper
            assert isinstance(shape, GroupShape)
            placed_alone += self._decide_group(shape, group, decisions)
        return decided.placed + placed_alone

    def _decide_group(self, shape: GroupShape, id: GroupId, decisions: list[Decision]) -> int:
        parts, board = self._parts, self._parts.board
        if parts.preemption.waits_for_places(id):
            parts.waiting.sleep(shape, shape.columns(board), shape.hopes(board))
            return 0
        placed = parts.holds.open_to(id, lambda: parts.groups.place(id, self.now))
        if placed is None:
            self._report_waiting(shape, parts.groups.why_not(id), decisions)
            decisions += make_room_for_group(parts, id)
            parts.waiting.sleep(shape, shape.columns(board), shape.hopes(board))
            return 0
        alternative, placements = placed
        for placement in placements:
            parts.taint_times.placed(placement, self.now)
        if placements:
            members = tuple((placement.ask.id, board.node_id(placement.row)) for placement in placements)
            decisions.append(GroupPlaced(id, alternative, members))
        return 1

    def _block(self, shape: Shape, decisions: list[Decision], limit: int | None = None) -> int:
        """No node fits these asks: refuse them if every node they require is gone. Else make room for them by
        preemption, for at most `limit`, and put them to sleep. Returns how many placements this counts as."""
        parts, board = self._parts, self._parts.board
        dead = [dead_required_nodes(demand.selector, board.fleet.rows.map) for demand in shape.demands]
        if all(dead):
            named = tuple(sorted(frozenset().union(*dead)))
            for item in parts.waiting.items_of(shape):
                parts.forget(item.id)
                decisions.append(Refused(item.id, NodeUnknown(named)))
            return 0
        verdicts = short_verdicts(board, shape)
        is_known = parts.preemption.keeps_places_for_all(item.id for item in parts.waiting.items_of(shape))
        made, cost, is_done = make_room(parts, shape, limit)
        if is_done:
            parts.waiting.sleep(shape, *wakers(parts, shape))
            if not is_known:
                self._report_waiting(shape, WhyNot(verdicts=verdicts), decisions)
        decisions += made
        return cost

    def _report_waiting(self, sleeper: Sleeper, why: WhyNot, decisions: list[Decision]) -> None:
        """Report why work is pending, for each ask or group whose reasons are new."""
        ids = self._parts.waiting.report(sleeper, why.verdicts)
        if ids:
            decisions.append(Waiting(ids, why.verdicts, why.member, why.more_members))

    @property
    def next_moment(self) -> float | None:
        """When time alone could next change a decision; None if never."""
        parts = self._parts
        if parts.is_unfinished:
            return self.now
        moment = min(parts.timers.next_moment(parts.waiting), parts.holds.late_at)
        return None if moment == inf else moment

    # -- queries: they change nothing, and try things only on a fork

    def explain(self, what: AskId | GroupId | Ask | Group) -> Explanation:
        """Why work is pending and what would make it fit, or why it is on its node. You can also pass work that was
        never submitted."""
        board = self._parts.board
        if isinstance(what, str) and what in board.work.placements.map:
            return explain_placed(board, what).naming(board.fleet)
        found = explain_pending(self._parts, self.item(what) if isinstance(what, str) else what)
        return found.naming(board.fleet)

    def refusals_by_plugin(self, ask: Ask) -> tuple[PluginRefusal, ...]:
        """Why no node takes the ask now, counted as kube-scheduler counts."""
        return refusals_by_plugin(self._parts.board.fork(lasting=False), ask)

    def feasible(self, ask: Ask) -> frozenset[NodeId]:
        """The nodes that would take the ask, by any of its choices, if nothing else ran there."""
        board = self._parts.board.fork(lasting=False)
        if ask.id in board.work.placements.map:
            board.lift(ask.id)
        return frozenset(board.fleet.ids(feasible(board, board.shape_of(ask))))

    def candidates(self, ask: Ask) -> tuple[tuple[NodeId, ...], ...]:
        """The nodes that would take the ask now, per choice, in table order."""
        board = self._parts.board.fork(lasting=False)
        return board.candidates(board.shape_of(ask))

    def tiers(self, ask: Ask) -> tuple[tuple[NodeId, ...], ...]:
        """The same nodes, best first: by choice, then by the ask's preferences. How full they are does not count."""
        board = self._parts.board.fork(lasting=False)
        return board.tiers(board.shape_of(ask))

    def moves(self, policy: PolicyName, limit: int = 10) -> tuple[Moved, ...]:
        """The moves of running work that a batch policy's costs favour most, best first. Nothing is moved."""
        return tuple(best_moves(self._parts.board.fork(lasting=False), policy, limit))

    def item(self, id: AskId | GroupId) -> Ask | Group:
        """The ask or group with this id, as it was submitted."""
        parts, placed = self._parts, self._parts.board.work.placements.map
        if id in placed:
            return placed[id].ask
        if id in parts.waiting:
            return parts.waiting.item(id)
        if id in parts.groups:
            return parts.groups.record(id).group
        if id in parts.groups.of_member.map:
            return parts.groups.member(id)
        raise Invalid(f"nothing named {id!r} is pending or placed; submit the ask first")

    def free(self, node: NodeId) -> Mapping[str, int]:
        """What is free on a node, in units, for every resource that it has or that is in use there."""
        fleet = self._parts.board.fleet
        return fleet.free(fleet.rows.map[node])

    @property
    def used(self) -> Mapping[NodeId, NodeUsed]:
        """What unmanaged work uses on each node, as last reported; nodes without unmanaged work are left out."""
        unmanaged, nodes = self._parts.board.work.unmanaged.map, self._parts.board.fleet.nodes.map
        return {nodes[row].id: NodeUsed(nodes[row].id, used.amounts, used.pieces) for row, used in unmanaged.items()}

    @property
    def taint_ends(self) -> tuple[TaintEnd, ...]:
        """For every taint: when it was set, its owner, and when it expires."""
        return tuple(self._parts.taint_times.ends)

    @property
    def placed(self) -> Mapping[AskId, NodeId]:
        """Every placed ask and its node."""
        nodes = self._parts.board.fleet.nodes.map
        return {id: nodes[placement.row].id for id, placement in self._parts.board.work.placements.map.items()}

    @property
    def ending(self) -> Mapping[AskId, NodeId]:
        """Placed work that is being stopped, or shall be for other work, and its node."""
        return {id: node for id, node in self.placed.items() if id in self._parts.preemption.ending.map}

    @property
    def nominated(self) -> Mapping[AskId, NodeId]:
        """Pending work for which a place is kept, and its node."""
        nodes = self._parts.board.fleet.nodes.map
        return {id: nodes[kept.row].id for id, kept in self._parts.board.work.nominations.map.items()}

    @property
    def reserved(self) -> tuple[NodeId, ...]:
        """The nodes that are reserved for work that has been pending too long."""
        hold = self._parts.board.world.hold
        return self._parts.board.fleet.ids(hold.nodes) if hold is not None else ()

    @property
    def asks(self) -> Mapping[AskId, Ask]:
        """Every ask that is placed, or pending without a group."""
        found = {id: placement.ask for id, placement in self._parts.board.work.placements.map.items()}
        for items in self._parts.waiting.all_lines.values():
            found.update((id, item) for id, item in items.items() if isinstance(item, Ask))
        return found

    @property
    def claims(self) -> tuple[Claim, ...]:
        """Every claim that work can use."""
        return tuple(self._parts.board.work.claims.known.map.values())

    @property
    def groups(self) -> Mapping[GroupId, Group]:
        """Every group that is pending or placed."""
        return {id: record.group for id, record in self._parts.groups.records.map.items()}

    @property
    def waiting(self) -> tuple[str, ...]:
        """Ids of all pending asks and groups, in the order in which they will be tried."""
        return tuple(item.id for item in self._parts.waiting.in_order())

    @property
    def pending(self) -> tuple[tuple[Item, ...], ...]:
        """The same as asks and groups, those with equal shapes together."""
        return tuple(tuple(self._parts.waiting.items_of(each)) for each in self._parts.waiting.sleepers)

    def is_pending(self, id: AskId | GroupId) -> bool:
        """Whether the ask, the member or the group waits for a node."""
        return id in self._parts.waiting or self._parts.pending_ask(id) is not None

    @property
    def nodes(self) -> Mapping[NodeId, Node]:
        """Every live node as it is now, in table order."""
        return self._parts.board.fleet.by_id

    @property
    def titles(self) -> Mapping[NodeId, str]:
        """What sentences call each live node: its name, or a short id."""
        return self._parts.board.fleet.titles

    # -- checkpoints

    def checkpoint(self) -> Checkpoint:
        """The whole state, to continue from later. Take it after `decide` and before the next `apply`."""
        return save(self._parts)

    @classmethod
    def restored(cls, saved: Checkpoint, settings: Settings = DEFAULTS, solver: Solver | None = None) -> Engine:
        """The engine from a checkpoint."""
        engine = cls(settings, solver)
        restore(engine._parts, saved)
        return engine

    def assume(self, decisions: Iterable[Decision]) -> None:
        """Apply decisions that were already made on the latest facts, instead of deciding again. They may have been
        carried out, and another version of the engine or its solver might decide differently.

        The next `decide` tries all pending work again. Decisions that contradict the engine's state are ignored.
        """
        assume(self._parts, decisions)

    def become(self, other: Engine) -> None:
        """Take over another engine's state. Do not use the other engine afterwards."""
        vars(self).update(vars(other))


_APPLY: dict[type, Callable[[Engine, Any], None]] = {
    ClockAdvanced: Engine._clock_advanced,
    NodeJoined: Engine._node_joined,
    NodeLeft: Engine._node_left,
    NodeLabelled: Engine._node_labelled,
    NodeTainted: Engine._node_tainted,
    NodeUntainted: Engine._node_untainted,
    NodeDrained: Engine._node_drained,
    NodeResized: Engine._node_resized,
    NodeUsed: Engine._node_used,
    AsksSubmitted: lambda engine, fact: engine._asks_submitted(fact.each()),
    AskRunning: Engine._ask_running,
    AskChanged: lambda engine, fact: engine._parts.change(fact.ask),
    AskEnded: Engine._ask_ended,
    AskLost: Engine._ask_lost,
    AskEnding: lambda engine, fact: engine._parts.preemption.is_ending(fact.ask),
    EvictionFailed: lambda engine, fact: engine._parts.preemption.failed(fact.ask, fact.is_final),
    AskNominated: Engine._ask_nominated,
    BudgetChanged: lambda engine, fact: engine._parts.preemption.budget_changed(fact.budget),
    BudgetEnded: lambda engine, fact: engine._parts.preemption.protection.end(fact.budget),
    ClaimChanged: lambda engine, fact: engine._parts.board.claim_changed(fact.claim),
    ClaimEnded: lambda engine, fact: engine._parts.board.claim_ended(fact.claim),
    GroupSubmitted: Engine._group_submitted,
    GroupChanged: Engine._group_changed,
    GroupEnded: Engine._group_ended,
}
