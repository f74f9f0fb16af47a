"""What new nodes lack for work that stays pending, or which limit is in the way of them."""

from __future__ import annotations

from collections.abc import Iterator

from stead.language.asks import Ask, Group
from stead.planner.allowance import Allowance
from stead.planner.plans import Unserved
from stead.planner.showroom import Showroom
from stead.planner.trials import Trial


def unserved(trial: Trial, showroom: Showroom, allowance: Allowance) -> Iterator[Unserved]:
    """What stays pending in a trial: equal asks together, each group alone."""
    if not any(trial.pending):
        return
    for items in trial.engine.pending:
        first = items[0]
        alike = [[item.id for item in items]] if isinstance(first, Ask) else [[item.id] for item in items]
        asks = (first,) if isinstance(first, Ask) else first.alternatives[0]
        kind, verdict = showroom.nearest(asks)
        limit = ""
        if kind is not None and verdict is not None and verdict.candidates:
            limit = limit_of(showroom, first, trial, allowance)
        for ids in alike:
            yield Unserved(tuple(ids), "" if kind is None else kind.name, verdict, limit)


def limit_of(showroom: Showroom, item: Ask | Group, trial: Trial, allowance: Allowance) -> str:
    """The limit that is in the way of one more node (for a group: of one for each member), if possible of a kind that
    the plan launches; empty if a kind is not limited."""
    asks = (item,) if isinstance(item, Ask) else item.alternatives[0]
    for ask in asks:
        rows = [row for tier in showroom.tiers(ask) for row in tier.kinds]
        rows.sort(key=lambda row: not trial.counts[showroom.catalog[row].name])
        found = [allowance.more(showroom.catalog[row], trial.counts) for row in rows]
        if found and all(more < len(asks) for more, _ in found):
            return found[0][1]
    return ""
