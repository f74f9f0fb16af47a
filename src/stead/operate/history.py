"""Past decisions, decided again from the journal, with the explanation they had then.

Rule: a decision is shown only after it was made again, byte-equal to the written one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from stead import solver
from stead.codec import dumps
from stead.engine import Engine
from stead.engine.decisions import BatchDecided, Decision, Evicted, GroupPlaced, Moved, Placed, Refused, Waiting
from stead.engine.explain import Explanation
from stead.engine.facts import ClockAdvanced
from stead.errors import Invalid
from stead.journal import Diverged, Entry, Journal


@dataclass(frozen=True, slots=True)
class Replayed:
    """One step of the past: when, what was decided, and of the ask that was asked for, why."""

    step: int
    steps: int
    moment: float
    decisions: tuple[Decision, ...]
    ask: str = ""
    explanation: Explanation | None = None


def replay_decision(
    journal: Journal, ask: str = "", at: float | None = None, progress: Callable[[int], None] | None = None
) -> Replayed:
    """The last decision about an ask or group, the last one before a moment, or the last one of both."""
    step, moment = _find(journal, ask, at)
    engine = Engine(journal.settings, solver.found())
    for entry in journal.read():
        engine.apply(*entry.facts)
        if entry.step == step:
            return _decided(journal, engine, entry, ask, moment)
        _again(engine, entry)
        if progress is not None:
            progress(entry.step)
    raise AssertionError("the step was found a moment ago")


def _find(journal: Journal, ask: str, at: float | None) -> tuple[int, float]:
    found, clock = None, 0.0
    for entry in journal.read():
        clock = max([clock, *(fact.now for fact in entry.facts if isinstance(fact, ClockAdvanced))])
        if at is not None and clock > at:
            break
        if entry.decisions if not ask else any(ask in about(decision) for decision in entry.decisions):
            found = (entry.step, clock)
    if found is None:
        who = f" about {ask!r}" if ask else ""
        raise Invalid(f"the journal has no decision{who}{' before that moment' if at is not None else ''}")
    return found


def about(decision: Decision) -> tuple[str, ...]:
    """The ids that a decision concerns."""
    match decision:
        case Placed(id) | Refused(id) | Evicted(id):
            return (id,)
        case GroupPlaced(id, _, members):
            return (id, *(member for member, _ in members))
        case Waiting(ids):
            return ids
        case BatchDecided():
            return ()
        case Moved(id):
            return (id,)


def _again(engine: Engine, entry: Entry) -> tuple[Decision, ...]:
    decided = engine.decide()
    if dumps(decided) != dumps(entry.decisions):
        raise Diverged(entry.step, entry.decisions, decided)
    return tuple(decided)


def _decided(journal: Journal, engine: Engine, entry: Entry, ask: str, moment: float) -> Replayed:
    before = engine.fork()
    decided = _again(engine, entry)
    explanation = None
    if ask:
        refused = any(isinstance(decision, Refused) and decision.id == ask for decision in decided)
        explanation = (before if refused else engine).explain(ask)
    return Replayed(entry.step, len(journal), moment, decided, ask, explanation)
