"""Deadlines: work that is still pending at its deadline is refused.

Rule: a group that is partly placed is not refused.
"""

from __future__ import annotations

from stead.engine.decisions import DeadlinePassed, Refused
from stead.engine.parts import Parts


def refuse_late(parts: Parts) -> list[Refused]:
    """Refuse pending work whose deadline has passed."""
    refused: list[Refused] = []
    for id, _, deadline in parts.timers.deadlines.due(parts.now):
        record = parts.groups.records.map.get(id)
        if (
            id in parts.waiting
            and parts.waiting.item(id).deadline == deadline
            and (record is None or record.alternative is None)
        ):
            verdicts = parts.waiting.last_reported(parts.waiting.line_of(id).sleeper)
            parts.forget(id)
            refused.append(Refused(id, DeadlinePassed(deadline, verdicts)))
    return refused
