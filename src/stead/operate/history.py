"""Past decisions, replayed from the journal, with the explanation they had then.

Rule: a decision is shown only after its replay was byte-equal to the written one. The replay starts at the newest
checkpoint before it; steps before the oldest checkpoint were deleted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from stead.engine.decisions import Decision, Refused
from stead.engine.engine import Engine
from stead.engine.explain.events import ids_of
from stead.engine.explain.explanations import Explanation
from stead.engine.facts import ClockAdvanced
from stead.journal import Entry, Journal, decide_again, engine_after
from stead.language.nodes import NodeId
from stead.language.times import moment_text
from stead.operate.changes import Absent


@dataclass(frozen=True, slots=True)
class Replayed:
    """One past step: when it was, what was decided, and the explanation of the ask in question."""

    step: int
    steps: int
    moment: float
    decisions: tuple[Decision, ...]
    ask: str = ""
    explanation: Explanation | None = None
    oldest: int = 1
    """The oldest step that the journal still has."""
    names: Mapping[NodeId, str] = field(default_factory=dict, compare=False)
    """The names of the nodes at that time."""


def replay_decision(
    journal: Journal, ask: str = "", at: float | None = None, progress: Callable[[int], None] | None = None
) -> Replayed:
    """The last decision about an ask or group, at or before a moment, or both."""
    step, moment = _find(journal, ask, at)
    base = journal.checkpoint_before(step)
    engine = engine_after(journal, base)
    for entry in journal.read(after=base):
        if entry.step == step:
            return _decided(journal, engine, entry, ask, moment)
        decide_again(engine, entry)
        if progress is not None:
            progress(entry.step)
    raise AssertionError("the step was found a moment ago")


def _find(journal: Journal, ask: str, at: float | None) -> tuple[int, float]:
    found, clock, similar = None, 0.0, ""
    for entry in journal.read():
        clock = max([clock, *(fact.now for fact in entry.facts if isinstance(fact, ClockAdvanced))])
        if at is not None and clock > at:
            break
        if entry.decisions if not ask else any(ask in ids_of(decision) for decision in entry.decisions):
            found = (entry.step, clock)
        elif ask and not similar:  # a pod without its namespace
            ids = (id for decision in entry.decisions for id in ids_of(decision))
            similar = next((id for id in ids if id.endswith(f"/{ask}")), "")
    if found is None:
        hint = f" (did you mean {similar!r}?)" if similar else ""
        who = f" about {ask!r}{hint}" if ask else ""
        before = " before that moment" if at is not None else ""
        raise Absent(f"the journal has no decision{who}{before}{how_far_back(journal)}")
    return found


def how_far_back(journal: Journal) -> str:
    """``; it goes back to step 4001 (2026-01-31 12:00:00 UTC)``, or "" if the journal has every step."""
    if not journal.kept_after:
        return ""
    taken = moment_text(journal.checkpoint_at(journal.kept_after) or 0.0)
    return f"; it goes back to step {journal.kept_after + 1} ({taken} UTC), older steps were deleted"


def _decided(journal: Journal, engine: Engine, entry: Entry, ask: str, moment: float) -> Replayed:
    before = engine.fork()
    before.apply(*entry.facts)
    decided = decide_again(engine, entry)
    explanation = None
    if ask:
        refused = any(isinstance(decision, Refused) and decision.id == ask for decision in decided)
        explanation = (before if refused else engine).explain(ask)
    last = journal.last()
    steps = entry.step if last is None else last.step
    names = before.titles
    return Replayed(entry.step, steps, moment, decided, ask, explanation, journal.kept_after + 1, names)
