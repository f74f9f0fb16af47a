"""Clusters repeat facts and report them out of order: facts about unknown or known things are harmless."""

from __future__ import annotations

import pytest

from stead.engine.decisions import Placed
from stead.engine.engine import Engine
from stead.engine.facts import (
    AskEnded,
    AskLost,
    AskRunning,
    AskSubmitted,
    ClockAdvanced,
    Fact,
    GroupEnded,
    GroupSubmitted,
    NodeDrained,
    NodeJoined,
    NodeLabelled,
    NodeLeft,
    NodeResized,
    NodeTainted,
    NodeUntainted,
    NodeUsed,
)
from stead.errors import Invalid
from stead.language.labels import Labels
from tests.behaviour import (
    amounts,
    ask,
    cluster,
    decide_after,
    fill,
    group,
    node,
    place,
    placements,
    run,
    submit,
    taint,
)


def small() -> Engine:
    """`a` and group g run on n0; `b` is pending."""
    engine = cluster(node("n0", 3))
    place(engine, ask("a", 1), group("g", ask("m0", 1), ask("m1", 1)))
    assert place(engine, ask("b", 1)) == [None]
    return engine


def state(engine: Engine) -> object:
    return (
        engine.now,
        dict(engine.placed),
        engine.waiting,
        dict(engine.nodes),
        {id: engine.free(id) for id in engine.nodes},
    )


@pytest.mark.parametrize(
    "fact",
    [
        pytest.param(NodeLeft("?"), id="a node left that was never there"),
        pytest.param(NodeLabelled("?", Labels({"zone": "a"})), id="an unknown node was labelled"),
        pytest.param(NodeTainted("?", taint("x")), id="an unknown node was tainted"),
        pytest.param(NodeUntainted("?", "x"), id="an unknown node was untainted"),
        pytest.param(NodeDrained("?"), id="an unknown node was drained"),
        pytest.param(NodeResized("?", amounts(CPU=1)), id="an unknown node was resized"),
        pytest.param(NodeUsed("?", amounts(CPU=1)), id="an unknown node is used by others"),
        pytest.param(AskEnded("?"), id="an unknown ask ended"),
        pytest.param(AskLost("?"), id="an unknown ask lost its place"),
        pytest.param(AskLost("b"), id="an ask that waits lost its place"),
        pytest.param(GroupEnded("?"), id="an unknown group ended"),
        pytest.param(AskEnded("g"), id="a group ended as if it were an ask"),
        pytest.param(GroupEnded("a"), id="an ask ended as if it were a group"),
        pytest.param(AskRunning(ask("?", 1), "?"), id="work runs on an unknown node"),
        pytest.param(AskRunning(ask("a", 1), "n0"), id="work runs where it was placed"),
        pytest.param(AskRunning(ask("m0", 1), "n0"), id="a member runs where it was placed"),
        pytest.param(AskSubmitted(ask("a", 2)), id="a placed ask is submitted again"),
        pytest.param(AskSubmitted(ask("b", 0.1)), id="a waiting ask is submitted again"),
        pytest.param(AskSubmitted(ask("m0", 0.1)), id="a member is submitted as an ask"),
        pytest.param(AskSubmitted(ask("g", 0.1)), id="an ask has the name of a group"),
        pytest.param(GroupSubmitted(group("g", ask("x"))), id="a group is submitted again"),
        pytest.param(GroupSubmitted(group("a", ask("x"))), id="a group has the name of an ask"),
        pytest.param(GroupSubmitted(group("h", ask("b"))), id="a group has a member that waits as an ask"),
        pytest.param(NodeJoined(node("n0", 3)), id="a node joins again as it was"),
        pytest.param(NodeDrained("n0", False), id="a node takes work that took work"),
        pytest.param(NodeUntainted("n0", "x"), id="a taint is removed that was not there"),
        pytest.param(NodeLabelled("n0", removed=("x",)), id="a label is removed that was not there"),
        pytest.param(NodeResized("n0", amounts(CPU=3)), id="a node is as large as it was"),
        pytest.param(NodeUsed("n0", amounts(), 0), id="others use nothing of a node, as before"),
        pytest.param(ClockAdvanced(-1.0), id="the clock goes back"),
        pytest.param(ClockAdvanced(0.0), id="the clock stands still"),
    ],
)
def test_this_changes_nothing(fact: Fact) -> None:
    engine = small()
    before = state(engine)
    assert decide_after(engine, fact) == []
    assert state(engine) == before
    assert placements(decide_after(engine, AskEnded("a"))) == {"b": "n0"}


def test_a_group_that_waits_is_not_ended_as_an_ask() -> None:
    engine = cluster(node("n0", 1))
    submit(engine, group("g", ask("m", 2)))
    decide_after(engine, AskEnded("g"))
    assert engine.waiting == ("g",)


def test_the_same_ask_twice_in_one_call_is_one_ask() -> None:
    engine = cluster(node("n0", 4))
    assert submit(engine, ask("a", 1), ask("a", 1), ask("a", 2)) == [Placed("a", "n0")]
    assert engine.free("n0") == {"CPU": 30000}


def test_time_never_goes_back() -> None:
    engine = cluster()
    engine.apply(ClockAdvanced(10.0), ClockAdvanced(5.0))
    assert engine.now == 10.0


def test_no_facts_and_no_work_are_no_decisions() -> None:
    engine = cluster()
    engine.apply()
    assert engine.decide() == []
    assert engine.next_moment is None
    assert (dict(engine.placed), engine.waiting, dict(engine.nodes)) == ({}, (), {})


def test_facts_may_come_one_by_one_or_all_at_once() -> None:
    facts: list[Fact] = [
        NodeJoined(node("n0", 2)),
        AskSubmitted(ask("a", 1)),
        AskSubmitted(ask("b", 1)),
        NodeJoined(node("n1", 2)),
        AskSubmitted(ask("c", 1)),
        AskEnded("b"),
    ]
    at_once, one_by_one = cluster(), cluster()
    at_once.apply(*facts)
    for fact in facts:
        one_by_one.apply(fact)
    assert at_once.decide() == one_by_one.decide()
    assert state(at_once) == state(one_by_one)


# What the cluster reports wins


def test_work_that_runs_without_a_decision_is_placed() -> None:
    engine = cluster(node("n0", 2))
    run(engine, ask("stranger", 1), "n0")
    assert engine.placed == {"stranger": "n0"}
    assert engine.free("n0") == {"CPU": 10000}


def test_waiting_work_that_runs_already_waits_no_more() -> None:
    engine = cluster(node("n0", 1), node("n1", 1, taints=[taint("x")]))
    fill(engine, "n0", 1, "full")
    submit(engine, ask("w", 1))
    run(engine, ask("w", 1), "n1")
    assert engine.waiting == ()
    assert decide_after(engine, AskEnded("full")) == []
    assert engine.placed == {"w": "n1"}


def test_work_that_runs_elsewhere_than_decided_is_there_and_holds_what_it_was_given() -> None:
    engine = cluster(node("n0", 4), node("n1", 4))
    place(engine, ask("w", 2))
    run(engine, ask("w", 1), "n1")
    assert engine.placed == {"w": "n1"}
    assert (engine.free("n0"), engine.free("n1")) == ({"CPU": 40000}, {"CPU": 20000})


def test_a_member_that_runs_elsewhere_still_belongs_to_its_group() -> None:
    engine = cluster(node("n0", 4), node("n1", 4))
    place(engine, group("g", ask("m0", 1), ask("m1", 1)))
    run(engine, ask("m0", 1), "n1")
    decide_after(engine, GroupEnded("g"))
    assert engine.placed == {}


def test_a_member_of_a_waiting_group_that_runs_completes_it() -> None:
    engine = cluster(node("n0", 1))
    submit(engine, group("g", ask("m", 2)))
    run(engine, ask("m", 2), "n0")
    assert engine.waiting == ()
    assert decide_after(engine) == []


def test_work_that_lost_its_place_after_it_was_found_running_waits_like_any_other() -> None:
    engine = cluster(node("n0", 2))
    engine.apply(ClockAdvanced(5))
    run(engine, ask("w", 1), "n0")
    assert placements(decide_after(engine, AskLost("w"))) == {"w": "n0"}


def test_asking_about_what_is_not_known_is_refused_in_one_sentence() -> None:
    with pytest.raises(Invalid, match=r"^nothing named 'ghost' is pending or placed; submit the ask first$"):
        cluster().explain("ghost")
