"""Pending work: its order, when its reasons are reported, and when it is refused."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest

from stead.engine.decisions import DeadlinePassed, NodeUnknown, Placed, Refusal, Refused, Verdict, Waiting
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
    NodeTainted,
    NodeUntainted,
)
from stead.engine.reasons import ShortOf
from stead.language.asks import Ask, Choice, locality
from stead.language.labels import Labels, Requirement, Selector
from stead.language.resources import UNIT
from tests.behaviour import (
    all_of,
    amounts,
    apart_from_app,
    ask,
    cluster,
    decide_after,
    fill,
    group,
    near,
    near_app,
    node,
    on,
    place,
    placements,
    refused,
    reported,
    run,
    submit,
    taint,
)


def full_node(cpu: float = 1) -> Engine:
    """n0 is full of an ask called `full`."""
    engine = cluster(node("n0", cpu))
    fill(engine, "n0", cpu, "full")
    return engine


def submit_at(engine: Engine, moment: float, *asks: Ask) -> None:
    engine.apply(ClockAdvanced(moment), *map(AskSubmitted, asks))


# Order


def test_a_greater_priority_goes_first() -> None:
    engine = cluster(node("n0", 1))
    submit_at(engine, 0, ask("low", 1, priority=-1), ask("plain", 1))
    submit_at(engine, 5, ask("high", 1, priority=1))
    assert engine.waiting == ("high", "plain", "low")
    assert placements(engine.decide()) == {"high": "n0"}


def test_at_equal_priority_the_one_that_waits_longer_goes_first() -> None:
    engine = full_node()
    for moment, id, cpu in ((1, "b", 1), (2, "a", 0.9), (3, "c", 1)):
        submit_at(engine, moment, ask(id, cpu))
        engine.decide()
    assert engine.waiting == ("b", "a", "c")
    assert placements(decide_after(engine, AskEnded("full"))) == {"b": "n0"}


def test_asks_of_one_moment_are_tried_by_shape_in_order_of_arrival() -> None:
    engine = full_node()
    submit_at(engine, 1, ask("a1", 0.1), ask("b1", 0.2), ask("a2", 0.1), ask("c1", 0.3), ask("b2", 0.2))
    assert engine.waiting == ("a1", "a2", "b1", "b2", "c1")


def test_priority_comes_before_shape_and_moment_before_shape() -> None:
    engine = full_node()
    submit_at(engine, 1, ask("a1", 0.1), ask("b1", 0.2), ask("a2", 0.1, priority=1))
    submit_at(engine, 2, ask("a3", 0.1), ask("b2", 0.2, priority=1))
    assert engine.waiting == ("a2", "b2", "a1", "b1", "a3")


def test_asking_about_work_does_not_move_it_forward() -> None:
    engine = cluster(node("n0", 3))
    first, second = ask("first", 2), ask("second", 3)
    engine.explain(second)
    engine.candidates(second)
    assert placements(submit(engine, first, second)) == {"first": "n0"}


def test_work_that_lost_its_place_has_its_old_turn() -> None:
    engine = cluster(node("n0", 1), node("n1", 1))
    submit_at(engine, 1, ask("old", 1))
    engine.decide()
    fill(engine, "n1", 1)
    submit_at(engine, 2, ask("new", 1))
    assert reported(engine.decide()) == {"new": ["short-now"]}
    assert placements(decide_after(engine, AskLost("old"))) == {"old": "n0"}


def test_equal_work_of_one_moment_is_tried_in_the_order_in_which_it_became_pending() -> None:
    engine = cluster(node("n0", 1), node("n1", 1))
    place(engine, ask("w0", 1), ask("w1", 1), ask("w2", 1))
    assert engine.placed == {"w0": "n0", "w1": "n1"}
    decide_after(engine, NodeLeft("n1"))
    assert list(engine.waiting) == ["w2", "w1"]
    decide_after(engine, NodeLeft("n0"))
    assert list(engine.waiting) == ["w2", "w1", "w0"]
    assert placements(decide_after(engine, NodeJoined(node("n2", 2)))) == {"w2": "n2", "w1": "n2"}


def test_what_fits_is_not_kept_waiting_by_what_does_not() -> None:
    engine = cluster(node("n0", 2))
    decisions = submit(engine, ask("big", 3, priority=9), ask("small", 1))
    assert placements(decisions) == {"small": "n0"}


def test_work_that_has_just_become_placeable_is_not_overtaken() -> None:
    """`a` must be near `b`; once `b` is placed `a` fits, and comes before `c`, which would take the rest."""
    engine = cluster(node("n0", 3))
    first = ask("a", 1, priority=10, affinities=all_of(near("b")))
    decisions = submit(engine, first, ask("b", 1, priority=5), ask("c", 2))
    assert placements(decisions) == {"b": "n0", "a": "n0"}


def test_work_that_has_just_become_placeable_comes_before_more_of_the_work_that_it_waited_for() -> None:
    engine = cluster(node("n0", 3))
    first = ask("a", 1, priority=10, affinities=all_of(near_app("web")))
    decisions = submit(engine, first, *(ask(f"web{index}", 1, labels={"app": "web"}) for index in range(3)))
    assert list(placements(decisions)) == ["web0", "a", "web1"]


def test_a_limit_bounds_how_much_is_placed_in_one_call() -> None:
    engine = cluster(node("n0", 9))
    engine.apply(*(AskSubmitted(ask(f"w{index}", 1)) for index in range(4)))
    engine.apply(*(AskSubmitted(ask(f"x{index}", 0.5)) for index in range(2)))
    assert engine.decide(limit=0) == []
    assert [decision.ask for decision in engine.decide(limit=3) if isinstance(decision, Placed)] == ["w0", "w1", "w2"]
    assert engine.waiting == ("w3", "x0", "x1")
    assert list(placements(engine.decide(limit=2))) == ["w3", "x0"]
    assert list(placements(engine.decide())) == ["x1"]


def test_a_group_counts_once_against_the_limit() -> None:
    engine = cluster(node("n0", 9))
    for id in ("g", "h"):
        engine.apply(GroupSubmitted(group(id, ask(f"{id}0", 1), ask(f"{id}1", 1))))
    assert set(placements(engine.decide(limit=1))) == {"g0", "g1"}
    assert set(placements(engine.decide(limit=1))) == {"h0", "h1"}


@pytest.mark.parametrize("seed", range(20))
def test_decisions_a_few_at_a_time_are_those_of_a_fork_that_starts_anew(seed: int) -> None:
    """Between two calls with a limit, the order of pending work is kept, and a fork builds it again."""
    random = Random(seed)
    engine = cluster(*(node(f"n{number}", 3, labels={"zone": "ab"[number % 2]}) for number in range(4)))
    submitted: list[str] = []
    for turn in range(60):
        facts: list[Fact] = [ClockAdvanced(float(turn // 3))]
        for _ in range(random.randrange(4)):
            submitted.append(f"w{len(submitted)}")
            facts.append(AskSubmitted(some_work(random, submitted[-1])))
        what = random.choice(("end", "end", "lose", "cordon", "label", "nothing"))
        chosen = random.choice(submitted) if submitted else "none"
        if what == "end":
            facts.append(AskEnded(chosen))
        elif what == "lose":
            facts.append(AskLost(chosen))
        elif what == "cordon":
            facts.append(NodeDrained(f"n{random.randrange(4)}", draining=random.random() < 0.5))
        elif what == "label":
            facts.append(NodeLabelled(f"n{random.randrange(4)}", Labels({"zone": random.choice("ab")})))
        engine.apply(*facts)
        limit = random.choice((0, 1, 1, 2, 5, None))
        assert engine.fork().decide(limit) == engine.decide(limit), f"turn {turn}"
    assert any(id in engine.placed for id in submitted)


def some_work(random: Random, id: str) -> Ask:
    wishes: tuple[dict[str, Any], ...] = (
        {},
        {"selector": on("zone", random.choice("ab"))},
        {"affinities": all_of(apart_from_app("web"))},
        {"affinities": all_of(near_app("db"))},
    )
    labels = random.choice(({"app": "web"}, {"app": "db"}, {"index": id}))
    return ask(
        id, random.choice((0.5, 1, 2)), labels=labels, priority=random.choice((0, 0, 1, 5)), **random.choice(wishes)
    )


# Reports


def test_equal_pending_asks_are_reported_together_and_once() -> None:
    engine = full_node()
    short = (Verdict(1, 0, (Refusal(ShortOf("CPU", UNIT), 1, 1),), feasible=1),)
    assert submit(engine, ask("a", 1), ask("b", 1)) == [Waiting(("a", "b"), short)]
    assert decide_after(engine, ClockAdvanced(1)) == []
    assert submit(engine, ask("c", 1)) == [Waiting(("c",), short)]


def test_the_rest_of_a_batch_reports_why_it_was_not_placed() -> None:
    decisions = submit(cluster(node("n0", 2)), *(ask(f"w{index}", 1) for index in range(4)))
    assert decisions == [
        Placed("w0", "n0"),
        Placed("w1", "n0"),
        Waiting(("w2", "w3"), (Verdict(1, 0, (Refusal(ShortOf("CPU", UNIT), 1, 1),), feasible=1),)),
    ]


def test_when_the_reasons_change_they_are_reported_for_all_again() -> None:
    engine = full_node()
    submit(engine, ask("a", 1), ask("b", 1, priority=1))
    for fact, reasons in (
        (NodeTainted("n0", taint("x")), ["tainted", "short-now"]),
        (NodeDrained("n0"), ["draining", "tainted", "short-now"]),
        (NodeDrained("n0", False), ["tainted", "short-now"]),
        (NodeUntainted("n0", "x"), ["short-now"]),
    ):
        assert reported(decide_after(engine, fact)) == {"b": reasons, "a": reasons}


def test_a_taint_on_nodes_that_refuse_anyway_is_not_reported() -> None:
    engine = Engine()
    decide_after(engine, NodeJoined(node("n0", 2)), NodeJoined(node("n1", 2)))
    submit(engine, *(ask(f"large-{number}", 4) for number in range(3)))
    for value in ("a", "b"):
        assert decide_after(engine, NodeTainted("n0", taint("x", value))) == []
    assert decide_after(engine, NodeUntainted("n0", "x")) == []
    assert decide_after(engine, NodeTainted("n1", taint("x"))) == []
    decide_after(engine, NodeJoined(node("n2", 4)), AskRunning(ask("full", 4), "n2"))
    assert reported(decide_after(engine, NodeTainted("n2", taint("y")))).keys() == {"large-0", "large-1", "large-2"}


def test_a_taint_on_full_nodes_is_not_reported_to_work_that_needs_room() -> None:
    engine = Engine()
    decide_after(engine, *(NodeJoined(node(f"n{number}", 1)) for number in range(3)))
    for number in range(3):
        fill(engine, f"n{number}", 1)
    submit(engine, *(ask(f"w{number}", 1) for number in range(20_000)))
    assert len(engine.waiting) == 20_000
    for value in ("a", "b"):
        assert decide_after(engine, NodeTainted("n0", taint("x", value))) == []
    assert decide_after(engine, NodeUntainted("n0", "x")) == []


def test_a_decision_has_a_bounded_number_of_reasons() -> None:
    nodes = [node(f"n{number}", 1, taints=(taint("team", str(number)),)) for number in range(40)]
    [waiting] = submit(cluster(*nodes), ask("w", 1))
    assert isinstance(waiting, Waiting)
    [verdict] = waiting.verdicts
    assert (len(verdict.refusals), verdict.other_reasons, verdict.other_nodes) == (16, 24, 24)


def test_every_choice_has_its_verdict_and_the_one_that_may_come_free_counts() -> None:
    engine = full_node()
    fallback = ask("w", 1, selector=on("zone", "nowhere"))
    fallback = replace(fallback, choices=(*fallback.choices, Choice(amounts(CPU=1))))
    [waiting] = submit(engine, fallback)
    assert isinstance(waiting, Waiting)
    assert [[each.reason.code for each in verdict.refusals] for verdict in waiting.verdicts] == [
        ["lacks-label", "short-now"],
        ["short-now"],
    ]
    assert [verdict.feasible for verdict in waiting.verdicts] == [0, 1]
    assert waiting.verdict is waiting.verdicts[1]


def test_other_counts_are_no_news() -> None:
    engine = full_node()
    submit(engine, ask("a", 1))
    assert decide_after(engine, NodeJoined(node("n1", 0.5))) == [Waiting(("a",), engine.explain("a").verdicts)]
    assert decide_after(engine, NodeJoined(node("n2", 0.5))) == []
    assert [refusal.nodes for refusal in engine.explain("a").verdicts[0].refusals] == [2, 1]


def test_work_that_is_pending_again_is_reported_again() -> None:
    engine = cluster(node("n0", 1))
    place(engine, ask("a", 1))
    assert reported(decide_after(engine, NodeLeft("n0"))) == {"a": []}
    place(engine, ask("other", 1, priority=1))
    decide_after(engine, NodeJoined(node("n1", 1)))
    assert engine.placed == {"other": "n1"}


def test_with_no_node_at_all_there_is_nothing_to_blame() -> None:
    assert submit(cluster(), ask("a", 1)) == [Waiting(("a",), (Verdict(0, 0, ()),))]
    assert submit(cluster(), ask("a", 1), ask("b", 1)) == [Waiting(("a", "b"), (Verdict(0, 0, ()),))]


# Refusals


@pytest.mark.parametrize("key", ["node_id", "ray.io/node-id"])
def test_work_that_requires_a_dead_node_is_refused_at_once(key: str) -> None:
    engine = cluster(node("n0"))
    assert submit(engine, ask("w", selector=on(key, "gone", "also-gone"))) == [
        Refused("w", NodeUnknown(("also-gone", "gone")))
    ]
    assert engine.waiting == ()


def insisting(*terms: tuple[Requirement, ...]) -> Selector:
    return Selector(terms)


GONE, LIVE = Requirement.is_in("node_id", "gone"), Requirement.is_in("node_id", "n0")
ZONE = Requirement.is_in("zone", "a")


@pytest.mark.parametrize(
    ("selector", "is_refused"),
    [
        pytest.param(insisting((GONE,)), True, id="one term that names dead nodes"),
        pytest.param(insisting((ZONE, GONE)), True, id="whatever else the term wants"),
        pytest.param(insisting((GONE,), (GONE, ZONE)), True, id="several terms that all do"),
        pytest.param(insisting((LIVE, GONE, ZONE)), True, id="a term that names a live and a dead one"),
        pytest.param(
            insisting((Requirement.is_in("node_id", "gone", "n0"), ZONE)), False, id="one of its ids is alive"
        ),
        pytest.param(insisting((GONE,), (ZONE,)), False, id="a term that names no node"),
        pytest.param(insisting((GONE,), (LIVE, ZONE)), False, id="a term that names a live node"),
        pytest.param(insisting((LIVE, ZONE), (GONE,)), False, id="also when it is not the last one"),
        pytest.param(insisting((ZONE,)), False, id="no node is named"),
        pytest.param(insisting(), False, id="there is no term"),
        pytest.param(
            insisting((Requirement.not_in("node_id", "n0", "n1"),)), False, id="live nodes are shunned, not insisted on"
        ),
        pytest.param(insisting((Requirement.does_not_exist("node_id"),)), False, id="no id may exist"),
        pytest.param(insisting((Requirement.is_in("node_ip", "10.9.9.9"),)), False, id="an address is no id"),
        pytest.param(insisting((Requirement.is_in("node_name", "gone"),)), False, id="a name is no id"),
        pytest.param(
            insisting((LIVE, Requirement.is_in("ray.io/node-id", "n1"))), False, id="two live nodes at once: never met"
        ),
    ],
)
def test_only_work_that_requires_dead_nodes_in_every_term_is_refused(selector: Selector, is_refused: bool) -> None:
    engine = cluster(node("n0"), node("n1"))
    assert bool(refused(submit(engine, ask("w", selector=selector)))) is is_refused
    assert engine.waiting == (() if is_refused else ("w",))


def test_all_the_dead_nodes_of_all_terms_are_named() -> None:
    selector = insisting(
        (Requirement.is_in("node_id", "x", "y"),), (Requirement.is_in("ray.io/node-id", "z", "x"), ZONE)
    )
    assert refused(submit(cluster(node("n0")), ask("w", selector=selector))) == [
        Refused("w", NodeUnknown(("x", "y", "z")))
    ]


def test_every_choice_must_require_dead_nodes() -> None:
    engine = cluster(node("n0"))
    gone, also_gone = Choice(selector=on("node_id", "gone")), Choice(selector=on("ray.io/node-id", "dead"))
    assert refused(submit(engine, Ask("w", (gone, also_gone)))) == [Refused("w", NodeUnknown(("dead", "gone")))]
    assert not refused(submit(engine, Ask("x", (gone, Choice(selector=on("zone", "a"))))))


def test_all_equal_work_that_waits_for_a_node_is_refused_when_it_dies() -> None:
    engine = full_node()
    pinned = ask("w0", 1, selector=on("node_id", "n0"))
    assert not refused(submit(engine, pinned, replace(pinned, id="w1", priority=3)))
    assert [each.id for each in refused(decide_after(engine, NodeLeft("n0")))] == ["w1", "w0"]


def test_work_whose_node_died_under_it_is_refused() -> None:
    engine = cluster(node("n0"))
    place(engine, ask("w", selector=on("node_id", "n0")))
    assert decide_after(engine, NodeLeft("n0")) == [Refused("w", NodeUnknown(("n0",)))]


def test_a_preference_for_a_dead_node_is_not_a_requirement() -> None:
    assert place(cluster(node("n0")), ask("w", prefers=(locality("gone"),))) == ["n0"]


def test_refused_work_is_forgotten_and_may_come_again() -> None:
    engine = cluster(node("n0"))
    submit(engine, ask("w", selector=on("node_id", "n1")))
    engine.apply(NodeJoined(node("n1")))
    assert place(engine, ask("w", selector=on("node_id", "n1"))) == ["n1"]


# Deadlines


def test_pending_work_is_refused_at_its_deadline_with_the_reasons_last_reported() -> None:
    engine = full_node()
    (waiting,) = submit(engine, ask("w", 1, deadline=10.0))
    assert isinstance(waiting, Waiting)
    assert engine.next_moment == 10
    assert decide_after(engine, ClockAdvanced(9.99)) == []
    assert decide_after(engine, ClockAdvanced(10)) == [Refused("w", DeadlinePassed(10.0, waiting.verdicts))]
    assert engine.waiting == ()


def test_work_placed_before_its_deadline_is_not_refused() -> None:
    engine = cluster(node("n0", 1))
    place(engine, ask("w", 1, deadline=10.0))
    assert decide_after(engine, ClockAdvanced(10)) == []


def test_deadlines_are_met_one_by_one_whatever_the_order_of_submission() -> None:
    engine = full_node()
    submit(engine, *(ask(f"w{deadline}", 1, deadline=float(deadline)) for deadline in (30, 10, 20)), ask("patient", 1))
    assert [each.id for each in refused(decide_after(engine, ClockAdvanced(20)))] == ["w10", "w20"]
    assert [each.id for each in refused(decide_after(engine, ClockAdvanced(99)))] == ["w30"]
    assert engine.waiting == ("patient",)


def test_at_its_deadline_it_is_refused_although_there_would_be_room_now() -> None:
    engine = full_node()
    submit(engine, ask("w", 1, deadline=10.0))
    decisions = decide_after(engine, AskEnded("full"), ClockAdvanced(10))
    assert [each.id for each in refused(decisions)] == ["w"]
    assert placements(decisions) == {}


def test_work_that_ended_or_was_resubmitted_does_not_meet_its_old_deadline() -> None:
    engine = full_node()
    submit(engine, ask("w", 1, deadline=10.0), ask("x", 1, deadline=10.0))
    decide_after(engine, AskEnded("w"), AskEnded("x"), AskSubmitted(ask("w", 1, deadline=20.0)))
    assert decide_after(engine, ClockAdvanced(10)) == []
    assert [each.id for each in refused(decide_after(engine, ClockAdvanced(20)))] == ["w"]


def test_a_group_has_a_deadline_too() -> None:
    engine = full_node()
    submit(engine, group("g", ask("m0", 1), ask("m1", 1), deadline=10.0))
    (late,) = refused(decide_after(engine, ClockAdvanced(10)))
    assert (late.id, isinstance(late.cause, DeadlinePassed)) == ("g", True)
    assert place(engine, ask("m0")) == ["n0"]


def test_running_work_does_not_end_because_its_group_lost_a_member_after_the_deadline() -> None:
    """The group was not pending at its deadline, and the other member still runs."""
    engine = cluster(node("n0", 1), node("n1", 1))
    place(engine, group("g", ask("m0", 1), ask("m1", 1), deadline=10.0))
    decide_after(engine, ClockAdvanced(20))
    decide_after(engine, AskLost("m0"))
    assert engine.placed == {"m0": "n0", "m1": "n1"}


def test_work_that_lost_its_place_after_its_deadline_is_placed_again() -> None:
    engine = cluster(node("n0", 1))
    place(engine, ask("w", 1, deadline=10.0))
    assert placements(decide_after(engine, ClockAdvanced(20), AskLost("w"))) == {"w": "n0"}


# Withdrawn work


def test_work_that_is_withdrawn_waits_no_more() -> None:
    engine = full_node()
    submit(engine, ask("a", 1), ask("b", 1))
    engine.apply(AskEnded("a"))
    assert engine.waiting == ("b",)
    assert placements(decide_after(engine, AskEnded("full"))) == {"b": "n0"}


def test_a_group_that_is_withdrawn_waits_no_more() -> None:
    engine = full_node()
    submit(engine, group("g", ask("m", 1)))
    decide_after(engine, GroupEnded("g"))
    assert engine.waiting == ()
    assert decide_after(engine, AskEnded("full")) == []


def test_labels_that_change_back_and_forth_leave_the_line_as_it_was() -> None:
    engine = full_node()
    submit(engine, ask("a", 1, selector=on("zone", "a")))
    for _ in range(3):
        decide_after(engine, NodeLabelled("n0", Labels({"zone": "a"})), NodeLabelled("n0", removed=("zone",)))
    assert engine.waiting == ("a",)
    run(engine, ask("b"), "n0")
    assert placements(decide_after(engine, AskEnded("full"), NodeLabelled("n0", Labels({"zone": "a"})))) == {"a": "n0"}
