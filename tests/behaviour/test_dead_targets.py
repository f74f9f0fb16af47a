"""Work that must be near other work by id, when that work has ended: it stays pending with the reason `TargetDead`."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stead.codec import dumps, loads
from stead.engine.decisions import Decision
from stead.engine.engine import Engine
from stead.engine.explain.smallest_change import Change, Drop
from stead.engine.facts import AskEnded, AskLost, AskRunning, AskSubmitted, ClockAdvanced, GroupEnded, GroupSubmitted
from stead.language.asks import Affinity, Ask
from stead.language.labels import ANYWHERE, Requirement, Selector
from tests.behaviour import (
    all_of,
    apart,
    ask,
    cluster,
    codes,
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
    zones,
)

NEAR_A = all_of(near("a"))
B = ask("b", 1, affinities=NEAR_A)


def remembered(engine: Engine) -> tuple[int, int, int]:
    """The number of ids that the engine remembers: ended targets, asks with targets, and targets."""
    targets = engine._parts.board.work.targets
    return len(targets._ended.map), len(targets._names.map), len(targets._named_by.map)


NOTHING = (0, 0, 0)


# When the target dies


def test_pending_work_is_reported_again_when_its_target_ends() -> None:
    engine = cluster(node("n0"))
    assert reported(submit(engine, B)) == {"b": ["not-near"]}
    assert reported(decide_after(engine, AskEnded("a"))) == {"b": ["target-dead"]}
    assert engine.waiting == ("b",)


def test_a_target_that_ends_twice_is_reported_once() -> None:
    engine = cluster(node("n0"))
    submit(engine, B)
    decide_after(engine, AskEnded("a"))
    assert decide_after(engine, AskEnded("a")) == []


def test_a_target_that_ends_before_the_first_decision_is_dead_from_the_start() -> None:
    engine = cluster(node("n0"))
    assert reported(decide_after(engine, AskSubmitted(B), AskEnded("a"))) == {"b": ["target-dead"]}


def test_a_target_that_ended_while_the_work_ran_is_dead_when_the_work_loses_its_place() -> None:
    engine = cluster(node("n0"))
    place(engine, ask("a", 1), B)
    assert decide_after(engine, AskEnded("a")) == []
    assert reported(decide_after(engine, AskLost("b"))) == {"b": ["target-dead"]}


def test_a_pending_target_that_ends_is_dead() -> None:
    engine = cluster(node("n0", 1))
    fill(engine, "n0", 1)
    submit(engine, ask("a", 1), ask("b", affinities=NEAR_A))
    assert reported(decide_after(engine, AskEnded("a"))) == {"b": ["target-dead"]}


def test_a_target_that_only_lost_its_place_is_not_dead() -> None:
    engine = cluster(node("n0", 2))
    place(engine, ask("a", 1))
    fill(engine, "n0", 1)
    assert reported(submit(engine, B)) == {"b": ["short-now"]}
    run(engine, ask("thief", 1), "n0")
    assert reported(decide_after(engine, AskLost("a")))["b"] == ["not-near", "short-now"]


def test_a_target_that_is_refused_is_dead() -> None:
    engine = cluster(node("n0"))
    nowhere = ask("a", 1, selector=on("node_id", "gone"))
    decisions = submit(engine, B, nowhere)
    assert [each.id for each in refused(decisions)] == ["a"]
    assert reported(decisions) == {"b": ["target-dead"]}


def test_a_target_whose_deadline_passed_is_dead() -> None:
    engine = cluster(node("n0"))
    submit(engine, B, ask("a", 9, deadline=5.0))
    decisions = decide_after(engine, ClockAdvanced(5.0))
    assert [each.id for each in refused(decisions)] == ["a"]
    assert reported(decisions) == {"b": ["target-dead"]}


def test_members_are_dead_when_their_group_ends() -> None:
    engine = cluster(node("n0"))
    place(engine, group("g", ask("a", 1), ask("a2", 1)), B)
    decide_after(engine, GroupEnded("g"))
    assert reported(decide_after(engine, AskLost("b"))) == {"b": ["target-dead"]}


def test_a_member_that_ended_is_dead_to_the_others_of_its_group() -> None:
    engine = cluster(node("n0"))
    place(engine, group("g", ask("a", 1), B))
    decide_after(engine, AskEnded("a"))
    assert reported(decide_after(engine, AskLost("b"))) == {"g": ["target-dead"]}


# Which affinities


@pytest.mark.parametrize(
    ("affinities", "expected"),
    [
        pytest.param(all_of(near("a", "a2")), ["target-dead"], id="all that is named has ended"),
        pytest.param(all_of(near("a", "c")), ["not-near"], id="one of two has not"),
        pytest.param(all_of(near("a"), near("c")), ["target-dead", "not-near"], id="each affinity speaks for itself"),
        pytest.param(all_of(near("a", topologies=("zone",))), ["target-dead"], id="in a zone"),
        pytest.param(all_of(near("a", namespaces=frozenset({"blue"}))), ["target-dead"], id="in any namespace"),
        pytest.param(
            all_of(Affinity(Selector.all_of(Requirement.is_in("ask_id", "a"), Requirement.exists("app")))),
            ["target-dead"],
            id="by id and label",
        ),
        pytest.param(
            all_of(Affinity(Selector.any_of(Requirement.is_in("ask_id", "a"), Requirement.exists("app")))),
            ["not-near"],
            id="by id or label",
        ),
        pytest.param(
            all_of(Affinity(Selector.all_of(Requirement.not_in("ask_id", "a")))), ["not-near"], id="any work but this"
        ),
        pytest.param(all_of(Affinity(on("ask_id"))), ["not-near"], id="no id at all"),
        pytest.param(all_of(near_app("web")), ["not-near"], id="by label"),
        pytest.param(((near("a"),), (near("a2"),)), ["no-alternative-holds"], id="alternatives"),
    ],
)
def test_what_is_dead_to_an_affinity(affinities: tuple[tuple[Affinity, ...], ...], expected: list[str]) -> None:
    engine = zones("a", "b")
    submit(engine, ask("w", 1, affinities=affinities), ask("x", affinities=all_of(near("a"), near("a2"))))
    decide_after(engine, AskEnded("a"), AskEnded("a2"))
    assert codes(engine, ask("w", 1, affinities=affinities)) == expected


def test_apart_from_ended_work_is_anywhere() -> None:
    engine = cluster(node("n0"))
    submit(engine, B)
    decide_after(engine, AskEnded("a"))
    assert place(engine, ask("w", 1, affinities=all_of(apart("a")))) == ["n0"]


def test_the_second_of_two_targets_makes_the_difference() -> None:
    engine = cluster(node("n0"))
    submit(engine, ask("b", 1, affinities=all_of(near("a1", "a2"))))
    assert decide_after(engine, AskEnded("a1")) == []
    assert reported(decide_after(engine, AskEnded("a2"))) == {"b": ["target-dead"]}


# When it comes back


def test_a_target_that_is_submitted_again_is_followed() -> None:
    engine = cluster(node("n0"))
    submit(engine, B)
    decide_after(engine, AskEnded("a"))
    assert placements(submit(engine, ask("a", 1))) == {"a": "n0", "b": "n0"}


def test_a_target_that_waits_again_is_not_dead() -> None:
    engine = cluster(node("n0"))
    submit(engine, B)
    decide_after(engine, AskEnded("a"))
    assert reported(submit(engine, ask("a", 9))) == {"a": ["never-fits"], "b": ["not-near"]}


def test_a_target_that_runs_after_all_is_followed() -> None:
    engine = cluster(node("n0"), node("n1"))
    submit(engine, B)
    decide_after(engine, AskEnded("a"))
    assert placements(decide_after(engine, AskRunning(ask("a", 1), "n1"))) == {"b": "n1"}


def test_a_target_that_runs_on_an_unknown_node_is_still_dead() -> None:
    engine = cluster(node("n0"))
    submit(engine, B)
    decide_after(engine, AskEnded("a"))
    assert decide_after(engine, AskRunning(ask("a", 1), "elsewhere")) == []
    assert codes(engine, B) == ["target-dead"]


def test_a_target_that_comes_back_as_a_member_of_a_group_is_not_dead() -> None:
    engine = cluster(node("n0"))
    submit(engine, B)
    decide_after(engine, AskEnded("a"))
    assert reported(submit(engine, group("g", ask("a", 9))))["b"] == ["not-near"]


# What is remembered


def test_an_id_that_no_work_names_is_not_remembered() -> None:
    engine = cluster(node("n0"))
    place(engine, *(ask(f"w{index}") for index in range(9)))
    decide_after(engine, *(AskEnded(f"w{index}") for index in range(20)))
    assert remembered(engine) == NOTHING


def test_an_ended_target_is_forgotten_with_the_last_ask_that_names_it() -> None:
    engine = cluster(node("n0"))
    submit(engine, B, replace(B, id="c"))
    decide_after(engine, AskEnded("a"))
    assert remembered(engine) == (1, 2, 1)
    decide_after(engine, AskEnded("c"))
    assert remembered(engine) == (1, 1, 1)
    decide_after(engine, AskEnded("b"))
    assert remembered(engine) == NOTHING
    assert reported(submit(engine, replace(B, id="d"))) == {"d": ["not-near"]}


@pytest.mark.parametrize(
    "asks",
    [
        pytest.param([ask("w", affinities=all_of(near("w")))], id="work that names itself"),
        pytest.param([ask("w", affinities=all_of(near("v"))), ask("v", affinities=all_of(near("w")))], id="each other"),
        pytest.param([ask("w", deadline=1.0, affinities=NEAR_A)], id="work with a deadline"),
        pytest.param([ask("w", selector=on("node_id", "gone"), affinities=NEAR_A)], id="work that is refused"),
    ],
)
def test_nothing_is_remembered_when_all_work_has_ended(asks: list[Ask]) -> None:
    engine = cluster(node("n0"))
    submit(engine, *asks)
    decide_after(engine, AskEnded("a"), ClockAdvanced(2.0))
    decide_after(engine, *(AskEnded(each.id) for each in asks))
    assert remembered(engine) == NOTHING


@pytest.mark.parametrize("ends_first", [False, True])
def test_nothing_is_remembered_when_a_group_has_ended(ends_first: bool) -> None:
    engine = cluster(node("n0"))
    decide_after(engine, GroupSubmitted(group("g", ask("m0", 1), ask("m1", 1, affinities=all_of(near("m0"))))))
    decide_after(engine, *([AskEnded("m1"), AskEnded("m0")] if ends_first else []), GroupEnded("g"))
    assert remembered(engine) == NOTHING


def test_work_that_runs_as_another_ask_than_it_waited_as_names_what_it_now_names() -> None:
    engine = cluster(node("n0"))
    submit(engine, B)
    decide_after(engine, AskEnded("a"))
    run(engine, replace(B, affinities=all_of(near("c"))), "n0")
    assert remembered(engine) == (0, 1, 1)
    run(engine, replace(B, affinities=()), "n0")  # where it runs is known already, and so is what it wants
    decide_after(engine, AskEnded("c"))
    assert reported(decide_after(engine, AskLost("b"))) == {"b": ["target-dead"]}


def test_work_that_is_moved_and_lost_still_knows_its_ended_targets() -> None:
    engine = cluster(node("n0"), node("n1"))
    place(engine, ask("a", 1), B)
    decide_after(engine, AskEnded("a"), AskRunning(B, "n1"))
    engine.explain("b")
    assert reported(decide_after(engine, AskLost("b"))) == {"b": ["target-dead"]}
    assert remembered(engine) == (1, 1, 1)


def test_a_fork_remembers_ended_targets_and_is_independent() -> None:
    engine = cluster(node("n0"))
    submit(engine, B)
    decide_after(engine, AskEnded("a"))
    fork = engine.fork()
    assert placements(submit(fork, ask("a", 1))) == {"a": "n0", "b": "n0"}
    assert codes(engine, B) == ["target-dead"]
    decide_after(engine, AskEnded("b"))
    assert remembered(engine) == NOTHING
    assert remembered(fork) == (0, 1, 1)


# What people and programs see


def test_a_dead_target_may_be_unknown_to_work_that_was_never_submitted() -> None:
    """No work named it when it ended, so it was not remembered."""
    engine = cluster(node("n0"))
    place(engine, ask("a", 1))
    decide_after(engine, AskEnded("a"))
    assert codes(engine, B) == ["not-near"]
    submit(engine, B)
    decide_after(engine, AskEnded("a"))
    assert codes(engine, replace(B, id="never-submitted")) == ["target-dead"]


def test_the_only_change_for_a_dead_target_is_to_drop_the_affinity() -> None:
    engine = zones("a", "-")
    close = near("a", topologies=("zone",))
    submit(engine, ask("b", 1, affinities=all_of(close)))
    decide_after(engine, AskEnded("a"))
    assert engine.explain("b").change == Change((Drop(close),), 2)


def test_the_reason_is_written_down_and_read_again() -> None:
    engine = cluster(node("n0"))
    submit(engine, B)
    decisions = decide_after(engine, AskEnded("a"))
    assert b'"is":"TargetDead"' in dumps(decisions)
    assert loads(dumps(decisions), tuple[Decision, ...]) == tuple(decisions)


def test_dying_changes_nothing_about_where_work_may_go() -> None:
    engine = cluster(node("n0"))
    submit(engine, B, ask("soft", 1, affinities=all_of(Affinity(ANYWHERE, near=False))))
    decide_after(engine, AskEnded("a"))
    assert engine.candidates(B) == ((),)
    assert engine.placed == {"soft": "n0"}
