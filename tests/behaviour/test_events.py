"""Events: one kind and one sentence for every fact and decision, pinned by a golden file."""

from __future__ import annotations

import pytest

from stead.engine.decisions import Placed, Refusal, Verdict, Waiting
from stead.engine.explain.events import NAMES_MAX, Event, EventKind, event_of, ids_of, listed
from stead.engine.facts import ClockAdvanced, NodeDrained, NodeTainted
from stead.engine.reasons import ShortOf
from stead.language.resources import UNIT
from tests.behaviour import taint
from tests.golden_files import assert_golden
from tests.test_codec import DECISIONS, FACTS, SCALING


def test_every_fact_and_decision_has_its_kind_and_its_sentence() -> None:
    events = [(what, event_of(what, 0.0)) for what in [*FACTS, *DECISIONS, *SCALING]]
    lines = [f"{type(what).__name__}: {event.kind}: {event.subject} {event.text}" for what, event in events if event]
    assert {type(what) for what, event in events if event is None} == {ClockAdvanced}
    assert_golden("sentences.txt", "\n".join(lines) + "\n")


def test_nodes_are_called_by_their_names_where_somebody_knows_them() -> None:
    event = event_of(Placed("w", "4f8a"), 0.0, {"4f8a": "gpu-1"})
    assert event == Event(0, 0.0, EventKind.PLACED, "w", "placed on gpu-1")


def test_the_event_of_pending_work_has_its_count_and_the_reasons_of_each_choice() -> None:
    verdict = Verdict(3, 0, (Refusal(ShortOf("CPU", UNIT), 3, 3),))
    event = event_of(Waiting(("w-1", "w-2"), (verdict, verdict)), 5.0)
    assert event is not None
    assert (event.subject, event.count, event.at) == ("w-1..2", 2, 5.0)
    assert event.text == (
        "waiting: choice 1: 0 of 3 nodes fit: 3 short of 1 CPU. choice 2: 0 of 3 nodes fit: 3 short of 1 CPU."
    )


def test_the_event_of_a_taint_has_its_end_and_its_owner() -> None:
    event = event_of(NodeTainted("n", taint("gpu"), until=90.0, job="02", owner="ml-team"), 30.0)
    assert event is not None and event.text == "tainted gpu for 1m until job 02 ends by ml-team"


def test_a_node_that_takes_work_again_is_uncordoned() -> None:
    event = event_of(NodeDrained("n", draining=False), 0.0)
    assert event is not None and event.kind is EventKind.UNCORDONED


def test_the_ids_of_a_decision_are_those_it_concerns() -> None:
    assert ids_of(Waiting(("a", "b"))) == ("a", "b")


def test_a_subject_lists_a_bounded_number_of_names() -> None:
    assert listed(["web-1", "web-2", "web-3", "db"]) == "web-1..3, db"
    assert listed([f"w{number}x" for number in range(1000)]).count(", ") == NAMES_MAX - 1


@pytest.mark.parametrize(
    ("subject", "id", "expected"),
    [
        ("web", "web", True),
        ("web", "web-1", False),
        ("web-1..3", "web-2", True),
        ("web-1..3", "web-4", False),
        ("web-1..3", "db-2", False),
        ("db, web-2..3", "web-3", True),
        ("db, web-2..3", "db", True),
        ("1 CPU, 2 GPU", "web", False),
    ],
)
def test_events_about_several_are_about_each_of_them(subject: str, id: str, expected: bool) -> None:
    assert Event(1, 0.0, EventKind.PLACED, subject, "").is_about(id) is expected
