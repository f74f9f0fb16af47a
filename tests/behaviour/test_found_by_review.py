"""Bugs that a code review found and no other test did; each case failed once."""

from __future__ import annotations

import pytest

from stead import solver
from stead.engine.engine import Engine
from stead.engine.explain.smallest_change import AddLabel
from stead.engine.facts import AskEnded, AskLost, AskRunning, AskSubmitted, ClockAdvanced, NodeJoined, NodeLeft
from stead.engine.settings import Settings
from stead.language.asks import Ask, Spread, Strategy
from stead.language.labels import Requirement, Selector
from tests.behaviour import (
    all_of,
    apart_from_app,
    ask,
    cluster,
    decide_after,
    fill,
    group,
    near_app,
    node,
    on,
    placements,
    reported,
    run,
    submit,
)


def test_new_work_is_reported_although_all_of_an_older_line_was_placed() -> None:
    engine = cluster(node("n", 2))
    fill(engine, "n", 2, "full")
    decide_after(engine, ClockAdvanced(1), AskSubmitted(ask("a1", 1)), AskSubmitted(ask("a2", 1)))
    decisions = decide_after(
        engine, ClockAdvanced(2), AskSubmitted(ask("b1", 1)), AskSubmitted(ask("b2", 1)), AskEnded("full")
    )
    assert placements(decisions) == {"a1": "n", "a2": "n"}
    assert reported(decisions) == {"b1": ["short-now"], "b2": ["short-now"]}


def test_the_order_of_peers_does_not_depend_on_how_facts_are_batched() -> None:
    facts = [
        AskSubmitted(ask("s1", 1)),
        AskSubmitted(ask("s2", 1, priority=1)),
        AskSubmitted(ask("t", 1, labels={"t": "1"})),
        AskSubmitted(ask("s3", 1)),
    ]
    at_once, one_by_one = cluster(), cluster()
    at_once.apply(*facts)
    for fact in facts:
        one_by_one.apply(fact)
    assert at_once.waiting == one_by_one.waiting == ("s2", "s1", "s3", "t")


def test_a_half_running_group_does_not_block_equal_groups() -> None:
    engine = cluster(node("small", 2))
    first = group("g1", ask("g1-1", 2), ask("g1-2", 2), strategy=Strategy.STRICT_PACK)
    second = group("g2", ask("g2-1", 2), ask("g2-2", 2), strategy=Strategy.STRICT_PACK)
    submit(engine, first, second)
    decisions = decide_after(engine, AskRunning(first.alternatives[0][0], "small"), NodeJoined(node("big", 4)))
    assert placements(decisions) == {"g2-1": "big", "g2-2": "big"}


def test_a_group_that_lost_its_last_member_tries_all_its_alternatives_again() -> None:
    engine = cluster(node("a", labels={"zone": "a"}), node("b", labels={"zone": "b"}))
    both = (ask("m1", selector=on("zone", "a")), ask("m2", selector=on("zone", "b")))
    submit(engine, group("g", *both, fallbacks=((ask("f1", selector=on("zone", "a")),),)))
    assert engine.placed == {"m1": "a", "m2": "b"}
    decide_after(engine, NodeLeft("b"))
    assert placements(decide_after(engine, AskLost("m1"))) == {"f1": "a"}


def test_late_work_is_not_hidden_by_equal_work_that_lost_its_place() -> None:
    engine = cluster(node("n", 4), patience=60)
    submit(engine, ask("a", 4))
    decide_after(engine, ClockAdvanced(1), AskSubmitted(ask("b", 4)))
    decide_after(engine, ClockAdvanced(59), AskLost("a"), AskRunning(ask("s", 1), "n"))
    decide_after(engine, ClockAdvanced(70))
    assert [refusal.reason.code for refusal in engine.explain(ask("c", 1)).verdicts[0].refusals] == ["reserved"]


def test_a_fact_about_a_group_as_if_it_were_an_ask_is_ignored() -> None:
    engine = cluster()
    submit(engine, group("g", ask("m", 1)))
    assert placements(decide_after(engine, NodeJoined(node("n", 4)), AskRunning(ask("g", 1), "n"))) == {"m": "n"}


def test_queries_leave_no_index_and_no_column_behind() -> None:
    engine = cluster(node("n", 1))
    submit(engine, ask("w", 1))
    for index in range(20):
        engine.explain(ask("q", affinities=all_of(near_app(f"app-{index}"))))
        engine.candidates(Ask.of("q", {f"rare-{index}": 1}))
    assert len(engine._parts.board.fleet.amounts.map) == 1
    assert not engine._parts.board.work._nodes.map


def test_an_ask_is_not_in_its_own_way_when_it_is_asked_about() -> None:
    engine = cluster(node("n", 2))
    shy = ask("w", 1, labels={"app": "web"}, affinities=all_of(apart_from_app("web")))
    submit(engine, shy)
    assert engine.explain(shy).fits


def test_the_log_of_changed_rows_is_bounded() -> None:
    engine = cluster(node("n", 8), node("m", 8))
    for index in range(2000):
        submit(engine, ask(f"w{index}", 1))
        engine.apply(AskEnded(f"w{index}"))
    amount = engine._parts.board.fleet.amounts.map["CPU"]
    assert len(amount._touched) <= len(amount.free) + 1


def test_an_overcommitted_node_is_shown_as_full_as_it_is() -> None:
    engine = cluster(node("n", 1))
    run(engine, ask("w", 2), "n")
    assert str(engine.explain("w")) == "Placed on n by hybrid (200 % full). No other node fits."


def test_deadlines_of_ended_work_are_ignored() -> None:
    engine = cluster(node("n", 4))
    submit(engine, ask("w", 1, deadline=3600.0))
    decide_after(engine, AskEnded("w"))
    assert engine.next_moment is None


def test_one_label_on_the_node_of_the_affinity_target_is_the_smallest_change() -> None:
    engine = cluster(node("n0"), node("n1"))
    run(engine, ask("cache", labels={"app": "cache"}), "n1")
    spread = Spread("zone", on("app", "web"))
    wanted = ask("w", 1, affinities=all_of(near_app("cache", "zone")), spreads=(spread,))
    change = engine.explain(wanted).change
    assert change is not None
    assert [type(edit) for edit in change.edits] == [AddLabel]
    assert change.edits[0].node == "n1"  # type: ignore[union-attr]  # it is an AddLabel


def test_of_two_requirements_that_contradict_each_other_one_is_dropped_and_a_label_meets_the_other() -> None:
    engine = cluster(node("n0"))
    contradiction = Selector.all_of(Requirement.is_in("zone", "a"), Requirement.is_in("zone", "b"))
    wanted = ask("w", 1, selector=contradiction, spreads=(Spread("zone", on("app", "web")),))
    change = engine.explain(wanted).change
    assert change is not None
    assert sorted(type(edit).__name__ for edit in change.edits) == ["AddLabel", "Drop"]


@pytest.mark.parametrize("policy", ["hybrid", "flow", "flow-fgd"])
def test_the_log_of_changed_rows_does_not_grow_for_ever(policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stead.engine.board.TOUCHED_MAX", 100)
    engine = Engine(Settings(), solver.found())
    engine.apply(NodeJoined(node("n", 8)), NodeJoined(node("m", 8)))
    for index in range(1000):
        submit(engine, Ask.of(f"w{index}", {"CPU": 1}, policy=policy))
        engine.apply(AskEnded(f"w{index}"))
    assert len(engine._parts.board.fleet.touched) < 1000
