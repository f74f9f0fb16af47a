"""Batches: work that is decided together, as a series of min-cost flows.

Rule: a batch is tried on the board itself and undone if it is not valid: if a gang is placed with fewer members than
its minimum, or if work is left out while work of lower priority was placed instead. `flow` has the placement costs;
this file selects the asks, sets the cost of leaving them out, and collects the result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

import numpy as np

from stead.engine.batch.flow import Flow, Ledger, Round, Solver, Want, fitting
from stead.engine.batch.improving import Improvement, Seat
from stead.engine.board import Attempt, Board
from stead.engine.decisions import BatchDecided
from stead.engine.settings import Unscheduled
from stead.engine.shapes import Demand, Shape
from stead.engine.waiting import Line, Lines
from stead.language.asks import Ask, Group, GroupId, PolicyName

LEFT_OUT = 100_000_000
"""The minimum cost of leaving one ask out: far more than any placement."""
EXTRA_LEFT_OUT = LEFT_OUT // 2
"""The same for the members that a gang does not need: less, so that the flow gives every gang its minimum first."""
LEFT_OUT_STEP = 1_000_000
LEFT_OUT_STEPS_MAX = 1_000
PRIORITY_STEP = 2_000_000_000

GANG_RETRIES_MAX = 8
"""How often a batch is decided again without the failed gangs; the last retry has no gangs."""
GANGS_ALONE_MAX = 100
"""How many failed gangs are then tried alone."""


@dataclass(slots=True)
class Run:
    """Equal asks of one line, or equal members of one gang; the first `done` of them are placed. At least `least`
    members of the gang must be placed; `is_extra` if these are others."""

    line: Line
    shape: Shape
    asks: Sequence[Ask]
    group: GroupId | None = None
    least: int = 0
    is_extra: bool = False
    done: int = 0


@dataclass(frozen=True, slots=True)
class Placing:
    """Asks of a run that were placed by one of their choices, one on each of `rows`."""

    run: Run
    demand: Demand
    asks: Sequence[Ask]
    rows: list[int]
    paid: int
    """Their cost, without the curves of the nodes."""


@dataclass(slots=True)
class Outcome:
    """The result of a batch. It is already on the board."""

    attempt: Attempt
    placings: list[Placing] = field(default_factory=list)
    failed: set[GroupId] = field(default_factory=set)
    left_out: int = 0
    """The cost of leaving out the unplaced asks."""
    bound: int = 0
    """A lower bound on the cost of any placement of these asks."""
    repaired: int = 0
    rounds: int = 0


def ready_runs(board: Board, waiting: Lines, policy: PolicyName, limit: int | None) -> list[Run]:
    """All awake work that this policy decides in batches, in order; at most `limit` asks and groups."""
    runs: list[Run] = []
    lines = [line for line in waiting.ready_lines() if line.sleeper.batch is policy]
    for line in sorted(lines, key=lambda line: line.order):
        items = list(islice(waiting.items_in(line).values(), limit))
        limit = None if limit is None else limit - len(items)
        asks = [item for item in items if isinstance(item, Ask)]
        if asks and isinstance(line.sleeper, Shape):
            runs.append(Run(line, line.sleeper, asks))
        for group in (item for item in items if isinstance(item, Group)):
            runs += _runs_of(board, line, group)
    return runs


def _runs_of(board: Board, line: Line, group: Group) -> list[Run]:
    """The members of a gang by shape. If they are equal, those that it does not need are a run of their own; of
    different members, any may be those that it needs."""
    least, members = group.least(0), dict[Shape, list[Ask]]()
    for member in group.alternatives[0]:
        members.setdefault(board.shape_of(member), []).append(member)
    if len(members) > 1 or least == len(group.alternatives[0]):
        return [Run(line, shape, equal, group.id, least) for shape, equal in members.items()]
    [(shape, equal)] = members.items()
    needed, extra = equal[:least], equal[least:]
    return [Run(line, shape, needed, group.id, least), Run(line, shape, extra, group.id, least, is_extra=True)]


def _below_minimum(runs: Sequence[Run]) -> list[GroupId]:
    """The gangs of which fewer members than their minimum are placed, in order."""
    lacking: dict[GroupId, int] = {}
    for run in runs:
        if run.group is not None:
            lacking[run.group] = lacking.get(run.group, run.least) - run.done
    return [group for group, count in lacking.items() if count > 0]


class Batch:
    def __init__(
        self,
        board: Board,
        solver: Solver,
        policy: PolicyName,
        runs: Sequence[Run],
        now: float,
        unscheduled: Unscheduled = Unscheduled.UNIFORM,
    ) -> None:
        self.board, self.solver, self.policy = board, solver, policy
        self.runs = sorted(runs, key=lambda run: run.line.order)
        self.now, self.unscheduled = now, unscheduled
        self.ranks = {priority: rank for rank, priority in enumerate(sorted({run.line.priority for run in runs}))}
        self.shapes = list(dict.fromkeys(run.shape for run in self.runs))
        views = [board.view(demand) for shape in self.shapes for demand in shape.demands]
        self.ledger = Ledger(board.fleet, board.prices(policy), views)
        self.hopeful = {shape for shape in self.shapes if any(map(self._is_open, shape.demands))}
        """Shapes that have an open node before the batch. With several priorities, the node must also have enough
        free."""

    def _is_open(self, demand: Demand) -> bool:
        view, fleet = self.board.view(demand), self.board.fleet
        if len(self.ranks) == 1:
            return bool(view.nodes)
        return bool((view.flags[: fleet.extent] & fitting(fleet, demand.needs)).any())

    def decide(self) -> Outcome:
        """Place as much as possible at the lowest cost, on the board."""
        with self.board.attempt() as tried:
            outcome = self._with_gangs(self.runs)
            if self._overtakes(outcome):
                self._take_back(outcome)
                outcome = self._by_priority(outcome)
            else:
                outcome.attempt.keep()
            tried.keep()
        return outcome

    def _by_priority(self, before: Outcome) -> Outcome:
        """Place the work of each priority separately, the highest first."""
        whole = self.board.attempt()
        by_priority = Outcome(whole, bound=before.bound, repaired=before.repaired, rounds=before.rounds)
        for priority in sorted(self.ranks, reverse=True):
            tier = self._with_gangs([run for run in self.runs if run.line.priority == priority])
            tier.attempt.keep()
            by_priority.placings += tier.placings
            by_priority.failed |= tier.failed
            by_priority.left_out += tier.left_out
            by_priority.repaired += tier.repaired
            by_priority.rounds += tier.rounds
        whole.keep()
        return by_priority

    def decided(self, outcome: Outcome) -> BatchDecided:
        """The outcome in numbers. There is no proven bound if asks have several choices or prices change during the
        batch."""
        asks = sum(len(run.asks) for run in self.runs)
        placed = sum(len(placing.rows) for placing in outcome.placings)
        proven = all(len(shape.demands) == 1 for shape in self.shapes) and not self.ledger.prices.one_a_round
        return BatchDecided(
            self.policy,
            asks,
            placed,
            self.ledger.curves + sum(placing.paid for placing in outcome.placings) + outcome.left_out,
            outcome.bound if proven else None,
            outcome.repaired,
            outcome.rounds,
        )

    def _overtakes(self, outcome: Outcome) -> bool:
        """Whether work that had an open node is left out although work of lower priority was placed."""
        if len(self.ranks) == 1 or not outcome.placings:
            return False
        lowest = min(placing.run.line.priority for placing in outcome.placings)
        return any(
            run.done < len(run.asks) and run.line.priority > lowest and run.shape in self.hopeful for run in self.runs
        )

    def _with_gangs(self, runs: Sequence[Run]) -> Outcome:
        """A flow that places at least the minimum of every gang, or nothing of it."""
        outcome = self._flow(runs)
        bound, failed = outcome.bound, set[GroupId]()
        gangs = list(dict.fromkeys(run.group for run in runs if run.group is not None))
        for tries in range(1, GANG_RETRIES_MAX + 1):
            torn = [group for group in _below_minimum(runs) if group not in failed]
            if not torn:
                break
            # The gangs may compete with each other, so keep the earlier half.
            failed.update(torn[len(torn) // 2 :] if tries < GANG_RETRIES_MAX else gangs)
            self._take_back(outcome)
            again = self._flow([run for run in runs if run.group not in failed])
            again.repaired += outcome.repaired
            again.rounds += outcome.rounds
            outcome = again
        for group in [group for group in gangs if group in failed][:GANGS_ALONE_MAX]:
            if self._place_alone([run for run in runs if run.group == group], outcome):
                failed.remove(group)
        outcome.left_out += sum(self._leaving(run) * len(run.asks) for run in runs if run.group in failed)
        outcome.failed, outcome.bound = failed, bound
        return outcome

    def _place_alone(self, gang: Sequence[Run], outcome: Outcome) -> bool:
        """Place a gang that failed in the batch, after the batch: at least its minimum, or nothing."""
        if sum(len(run.asks) for run in gang if run.shape in self.hopeful) < gang[0].least:
            return False
        alone = self._flow(gang)
        outcome.rounds += alone.rounds
        outcome.repaired += alone.repaired
        if _below_minimum(gang):
            self._take_back(alone)
            return False
        alone.attempt.keep()
        outcome.placings += alone.placings
        return True

    def _take_back(self, outcome: Outcome) -> None:
        outcome.attempt.take_back()
        for placing in outcome.placings:
            np.subtract.at(self.ledger.taken, placing.rows, 1)
            placing.run.done = 0

    def _leaving(self, run: Run) -> int:
        """The cost of leaving out one ask of a run."""
        steps = 0
        if self.unscheduled is Unscheduled.AGE:
            steps = int(self.now - run.line.moment)
        elif self.unscheduled is Unscheduled.SIZE:
            steps = max((self._thousandths(*need) for need in run.shape.demands[0].needs), default=0)
        rank, least = self.ranks[run.line.priority], EXTRA_LEFT_OUT if run.is_extra else LEFT_OUT
        return least + LEFT_OUT_STEP * min(max(steps, 0), LEFT_OUT_STEPS_MAX) + PRIORITY_STEP * rank

    def _thousandths(self, resource: str, need: int) -> int:
        largest = int(self.board.fleet.amount(resource).total.max(initial=0))
        return need * 1000 // max(largest, 1)

    def _flow(self, runs: Sequence[Run]) -> Outcome:
        """Run rounds until none places anything: for the first choices of all asks, then the second, and so on."""
        outcome = Outcome(self.board.attempt())
        crowds: dict[Shape, list[Run]] = {}
        for run in runs:
            crowds.setdefault(run.shape, []).append(run)
        for crowd in crowds.values():
            crowd.sort(key=self._leaving, reverse=True)
        choices = max((len(shape.demands) for shape in crowds), default=0)
        for choice in range(choices):
            looking = {
                shape: members
                for shape, members in crowds.items()
                if choice < len(shape.demands) and any(run.done < len(run.asks) for run in members)
            }
            if looking:
                self._by_choice(choice, looking, outcome)
        self._improve(runs, outcome)
        outcome.left_out += sum(self._leaving(run) * (len(run.asks) - run.done) for run in runs)
        return outcome

    def _improve(self, runs: Sequence[Run], outcome: Outcome) -> None:
        """Place asks that the flow left out although they had an open node, by moving other asks of the batch."""
        left = [run for run in runs if run.done < len(run.asks) and run.shape in self.hopeful]
        left.sort(key=self._leaving, reverse=True)
        if not left or not outcome.placings:
            return
        seats = [(placing, self._seats(placing)) for placing in outcome.placings]
        improvement = Improvement(self.board, (seat for _, row in seats for seat in row))
        helped = True
        while helped:
            helped = False
            for run in left:
                while run.done < len(run.asks) and (found := self._place_by_moving(run, improvement)) is not None:
                    seats.append((found, self._seats(found)))
                    improvement.add(seats[-1][1][0])
                    helped = True
        outcome.placings = [self._moved(placing, [seat.row for seat in row]) for placing, row in seats]

    def _seats(self, placing: Placing) -> list[Seat]:
        run = placing.run
        each = zip(placing.asks, placing.rows, strict=True)
        return [Seat(ask, placing.demand, row, run.line, run.group) for ask, row in each]

    def _place_by_moving(self, run: Run, improvement: Improvement) -> Placing | None:
        """Place the next ask of a run after moving other asks, if possible."""
        for demand in run.shape.demands:
            row = improvement.room_for(demand)
            if row is not None:
                placing = Placing(run, demand, [run.asks[run.done]], [row], self._worth(demand, [row]))
                run.done += 1
                self._put([placing])
                return placing
        return None

    def _moved(self, placing: Placing, rows: list[int]) -> Placing:
        """The placing with its asks on other rows, at the cost of those rows."""
        if rows == placing.rows:
            return placing
        np.subtract.at(self.ledger.taken, placing.rows, 1)
        np.add.at(self.ledger.taken, rows, 1)
        return replace(placing, rows=rows, paid=self._worth(placing.demand, rows))

    def _worth(self, demand: Demand, rows: list[int]) -> int:
        """What asks pay on these rows, without the curves of the nodes."""
        worth = self.board.view(demand).worth
        return self.ledger.offset * len(rows) - (0 if worth is None else int(worth[rows].sum()))

    def _by_choice(self, choice: int, crowds: dict[Shape, list[Run]], outcome: Outcome) -> None:
        wants = [
            Want(
                self.board.view(shape.demands[choice]),
                [(len(run.asks) - run.done, self._leaving(run)) for run in runs if run.done < len(run.asks)],
            )
            for shape, runs in crowds.items()
        ]
        members = list(crowds.values())
        flow = Flow(self.board.fleet, self.solver, self.ledger, wants)
        if not choice:
            outcome.bound = sum(want.left_out for want in wants)
        while (found := flow.round()) is not None and len(found.rows):
            if not choice and not outcome.rounds:
                inside = set(flow.inside)
                outcome.bound = found.cost + sum(w.left_out for index, w in enumerate(wants) if index not in inside)
            self._place(found, wants, members, outcome)
            outcome.rounds += 1
            outcome.repaired += found.refused

    def _place(self, found: Round, wants: Sequence[Want], members: Sequence[list[Run]], outcome: Outcome) -> None:
        order = np.argsort(found.wants, kind="stable")
        counts = np.bincount(found.wants, minlength=len(wants))
        begin, placings = 0, []
        for index in np.flatnonzero(counts).tolist():
            mine = order[begin : begin + int(counts[index])]
            begin += len(mine)
            wants[index].placed(len(mine))
            rows, paid = found.rows[mine].tolist(), found.paid[mine]
            for run in members[index]:
                count = min(len(run.asks) - run.done, len(rows))
                if count:
                    asks = run.asks[run.done : run.done + count]
                    placing = Placing(run, wants[index].demand, asks, rows[:count], int(paid[:count].sum()))
                    run.done += count
                    rows, paid = rows[count:], paid[count:]
                    placings.append(placing)
        self._put(placings)
        outcome.placings += placings

    def _put(self, placings: Sequence[Placing]) -> None:
        """Place them on the board."""
        rows = [row for placing in placings for row in placing.rows]
        self.ledger.taken += np.bincount(np.array(rows, np.intp), minlength=len(self.ledger.taken))
        single = [each for each in placings if each.run.group is None]
        self.board.place_many([(each.demand, each.asks, each.rows, each.run.line) for each in single])
        for placing in placings:
            run = placing.run
            if run.group is not None:
                for ask, row in zip(placing.asks, placing.rows, strict=True):
                    self.board.place(ask, placing.demand, row, run.line.moment, run.line.turn, run.group)
