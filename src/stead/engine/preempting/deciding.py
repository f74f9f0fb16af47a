"""What preemption adds to a decision: nominated work is placed once it fits, and room is made for what fits nowhere.

Rule: pending work is handled in its order. Equal work that finds no room ends the search for the rest of its line.
"""

from __future__ import annotations

from stead.engine.decisions import Decision
from stead.engine.parts import Parts
from stead.engine.placing import announce
from stead.engine.shapes import Shape
from stead.language.asks import Ask


def place_nominated(parts: Parts) -> list[Decision]:
    """Place the nominated work that fits on its node now."""
    fitting, decisions = parts.preemption.ready()
    for nomination in fitting:
        ask, row = nomination.ask, nomination.row
        demand = parts.board.shape_of(ask).demands[nomination.choice]
        parts.stop_waiting(ask.id)
        parts.board.place(ask, demand, row, nomination.moment, nomination.turn)
        decisions += announce(parts, demand, [ask.id], [row])
    return decisions


AS_PLACEMENTS = 8
"""Making room for one ask takes as long as about this many placements."""


def make_room(parts: Parts, shape: Shape, limit: int | None) -> tuple[list[Decision], int, bool]:
    """Nominate asks of this shape, and evict what is in their way. Returns how many placements this counts as, at least
    `limit` if not all were tried, and whether all were."""
    decisions: list[Decision] = []
    cost = 0
    nominations, preemption = parts.board.work.nominations, parts.preemption
    for line in parts.waiting.lines_of(shape):
        for ask in list(parts.waiting.items_in(line).values()):
            assert isinstance(ask, Ask), "shapes queue asks"
            if ask.id in nominations.map:
                continue
            if not preemption.may_help(ask):
                break
            if limit is not None and cost >= limit:
                return decisions, cost, False
            made = preemption.make_room(ask, shape, line)
            if not made:
                break
            decisions += made
            cost += AS_PLACEMENTS
    return decisions, cost, True
