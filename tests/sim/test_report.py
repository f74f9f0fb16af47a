"""The words of the report: a sentence for every fact and decision, held still by a golden file."""

from __future__ import annotations

from golden_files import assert_golden
from stead.engine.decisions import Decision, Placed, Waiting
from stead.engine.facts import AskLost, Fact
from stead.sim.cluster import Happening
from stead.sim.report import sentence, timeline_rows
from test_codec import DECISIONS, FACTS


def test_every_fact_and_decision_has_its_sentence() -> None:
    lines = [f"{type(what).__name__}: {' '.join(sentence(what))}" for what in [*FACTS, *DECISIONS]]
    assert_golden("sentences.txt", "\n".join(lines) + "\n")


def test_reasons_that_read_the_same_are_told_once_until_the_work_was_placed() -> None:
    waiting = Waiting(("a",), ())
    timeline: list[Fact | Decision] = [waiting, waiting, Placed("a", "n"), AskLost("a"), waiting]
    told = [words for _, words in timeline_rows(Happening(float(at), what) for at, what in enumerate(timeline))]
    reason = "a waiting: its members do not fit together"
    assert told == [reason, "a placed on n", "a lost the place", reason]
