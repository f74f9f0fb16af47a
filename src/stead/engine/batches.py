"""Batches: work that is decided together, as one min-cost flow after the other.

Rule: a batch is tried on the board itself and taken back completely where it does not hold: a gang of which a member
found no place, or work that waits while some of lower priority took the room. What costs what is in `flow`; here is
who takes part, what leaving somebody out costs, and what became of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

import numpy as np

from stead.asks import Ask, Group, GroupId, PolicyName
from stead.engine.board import Board
from stead.engine.decisions import BatchDecided
from stead.engine.flow import Flow, Ledger, Round, Solver, Want, fitting
from stead.engine.improving import Improvement, Seat
from stead.engine.settings import Unscheduled
from stead.engine.shapes import Demand, Shape
from stead.engine.waiting import Line, Lines

LEFT_OUT = 100_000_000
"""What leaving one ask out costs at least: far more than any place it could be given."""
LEFT_OUT_STEP = 1_000_000
LEFT_OUT_STEPS_MAX = 1_000
PRIORITY_STEP = 2_000_000_000

GANG_RETRIES_MAX = 8
"""How often a batch is decided again without the gangs that failed; the last time it is without any gang."""
GANGS_ALONE_MAX = 100
"""How many of them are then tried alone."""


@dataclass(slots=True)
class Run:
    """Equal asks of one line, or the equal members of one gang; the first `done` of them have a place."""

    line: Line
    shape: Shape
    asks: Sequence[Ask]
    group: GroupId | None = None
    done: int = 0


@dataclass(frozen=True, slots=True)
class Placing:
    """Asks of a run that were placed by one of their choices, one on each of `rows`."""

    run: Run
    demand: Demand
    asks: Sequence[Ask]
    rows: list[int]
    paid: int
    """What they cost, the curves of the nodes aside."""


@dataclass(slots=True)
class Outcome:
    """What became of a batch. It stands on the board already."""

    news: int
    """How much news there was when it began."""
    placings: list[Placing] = field(default_factory=list)
    failed: set[GroupId] = field(default_factory=set)
    left_out: int = 0
    """What leaving out those that wait costs."""
    bound: int = 0
    """What no placement of these asks can go below."""
    repaired: int = 0
    rounds: int = 0


def ready_runs(board: Board, waiting: Lines, policy: PolicyName, limit: int | None) -> list[Run]:
    """All that is awake and decided together by this policy, in its order; of asks and groups at most `limit`."""
    runs: list[Run] = []
    lines = [line for line in waiting.ready_lines() if line.sleeper.batch is policy]
    for line in sorted(lines, key=lambda line: line.order):
        items = list(islice(waiting.items_in(line).values(), limit))
        limit = None if limit is None else limit - len(items)
        asks = [item for item in items if isinstance(item, Ask)]
        if asks and isinstance(line.sleeper, Shape):
            runs.append(Run(line, line.sleeper, asks))
        for group in (item for item in items if isinstance(item, Group)):
            members: dict[Shape, list[Ask]] = {}
            for member in group.alternatives[0]:
                members.setdefault(board.shape_of(member), []).append(member)
            runs += [Run(line, shape, equal, group.id) for shape, equal in members.items()]
    return runs


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
        """Shapes to which some node is open before the batch; it counts only where they could be overtaken."""

    def _is_open(self, demand: Demand) -> bool:
        view, fleet = self.board.view(demand), self.board.fleet
        if len(self.ranks) == 1:
            return bool(view.nodes)
        return bool((view.flags[: fleet.extent] & fitting(fleet, demand.needs)).any())

    def decide(self) -> Outcome:
        """Place what can be placed at the least cost; the board has it when this returns."""
        outcome = self._with_gangs(self.runs)
        if not self._overtakes(outcome):
            return outcome
        self._take_back(outcome)
        by_priority = Outcome(outcome.news, bound=outcome.bound, repaired=outcome.repaired, rounds=outcome.rounds)
        for priority in sorted(self.ranks, reverse=True):
            tier = self._with_gangs([run for run in self.runs if run.line.priority == priority])
            by_priority.placings += tier.placings
            by_priority.failed |= tier.failed
            by_priority.left_out += tier.left_out
            by_priority.repaired += tier.repaired
            by_priority.rounds += tier.rounds
        return by_priority

    def decided(self, outcome: Outcome) -> BatchDecided:
        """The outcome in numbers. Nothing is proven where asks have several choices, or prices change on the way."""
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
        """Whether some work waits, to which a node was open, although work of lower priority was placed."""
        if len(self.ranks) == 1 or not outcome.placings:
            return False
        lowest = min(placing.run.line.priority for placing in outcome.placings)
        return any(
            run.done < len(run.asks) and run.line.priority > lowest and run.shape in self.hopeful for run in self.runs
        )

    def _with_gangs(self, runs: Sequence[Run]) -> Outcome:
        """A flow in which every gang is placed whole or not at all."""
        outcome = self._flow(runs)
        bound, failed = outcome.bound, set[GroupId]()
        gangs = list(dict.fromkeys(run.group for run in runs if run.group is not None))
        for tries in range(1, GANG_RETRIES_MAX + 1):
            halves = {run.group for run in runs if run.done < len(run.asks)} - failed
            torn = [group for group in gangs if group in halves]
            if not torn:
                break
            # Of gangs that tear each other the earlier ones may stay.
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
        """Place a gang that failed among others, after them; all of it, or the board is as it was."""
        if not all(run.shape in self.hopeful for run in gang):
            return False
        alone = self._flow(gang)
        outcome.rounds += alone.rounds
        outcome.repaired += alone.repaired
        if any(run.done < len(run.asks) for run in gang):
            self._take_back(alone)
            return False
        outcome.placings += alone.placings
        return True

    def _take_back(self, outcome: Outcome) -> None:
        """Lift what was placed: nothing has changed since it began, so nothing of it is news to anybody."""
        for placing in outcome.placings:
            for ask, row in zip(placing.asks, placing.rows, strict=True):
                self.board.lift(ask.id)
                self.ledger.taken[row] -= 1
            placing.run.done = 0
        del self.board.fleet.news[outcome.news :]

    def _leaving(self, run: Run) -> int:
        """What leaving one ask of a run out costs."""
        steps = 0
        if self.unscheduled is Unscheduled.AGE:
            steps = int(self.now - run.line.moment)
        elif self.unscheduled is Unscheduled.SIZE:
            steps = max((self._thousandths(*need) for need in run.shape.demands[0].needs), default=0)
        rank = self.ranks[run.line.priority]
        return LEFT_OUT + LEFT_OUT_STEP * min(max(steps, 0), LEFT_OUT_STEPS_MAX) + PRIORITY_STEP * rank

    def _thousandths(self, resource: str, need: int) -> int:
        largest = int(self.board.fleet.amount(resource).total.max(initial=0))
        return need * 1000 // max(largest, 1)

    def _flow(self, runs: Sequence[Run]) -> Outcome:
        """Round after round until nothing moves: first by everybody's first choice, then by the second, and so on."""
        outcome = Outcome(len(self.board.fleet.news))
        crowds: dict[Shape, list[Run]] = {}
        for run in runs:
            crowds.setdefault(run.shape, []).append(run)
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
        """Let in whom the flow left out although some node is open to them, by moving others of the batch."""
        left = [run for run in runs if run.done < len(run.asks) and run.shape in self.hopeful]
        if not left or not outcome.placings:
            return
        news = len(self.board.fleet.news)
        seats = [(placing, self._seats(placing)) for placing in outcome.placings]
        improvement = Improvement(self.board, (seat for _, row in seats for seat in row))
        rows, helped = len(seats), True
        while helped:
            helped = False
            for run in left:
                while run.done < len(run.asks) and (found := self._let_in(run, improvement)) is not None:
                    seats.append((found, self._seats(found)))
                    improvement.sit(seats[-1][1][0])
                    helped = True
        # That something became free was true only in between, and if nobody was let in all are where they were.
        fleet = self.board.fleet
        fleet.news[news:] = [each for each in fleet.news[news:] if each[0][0] != "free" and len(seats) > rows]
        outcome.placings = [self._moved(placing, [seat.row for seat in row]) for placing, row in seats]

    def _seats(self, placing: Placing) -> list[Seat]:
        run = placing.run
        each = zip(placing.asks, placing.rows, strict=True)
        return [Seat(ask, placing.demand, row, run.line, run.group) for ask, row in each]

    def _let_in(self, run: Run, improvement: Improvement) -> Placing | None:
        """Place the next ask of a run after moving others, if that can be done."""
        for demand in run.shape.demands:
            row = improvement.room_for(demand)
            if row is not None:
                placing = Placing(run, demand, [run.asks[run.done]], [row], self._worth(demand, [row]))
                run.done += 1
                self._put([placing])
                return placing
        return None

    def _moved(self, placing: Placing, rows: list[int]) -> Placing:
        """The placing with its asks on other rows, and what they cost there."""
        if rows == placing.rows:
            return placing
        np.subtract.at(self.ledger.taken, placing.rows, 1)
        np.add.at(self.ledger.taken, rows, 1)
        return replace(placing, rows=rows, paid=self._worth(placing.demand, rows))

    def _worth(self, demand: Demand, rows: list[int]) -> int:
        """What asks pay on these rows, the curves of the nodes aside."""
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
