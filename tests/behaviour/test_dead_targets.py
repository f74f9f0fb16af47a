"""Work that must be near other work by its id, when that is dead for good: it waits, and is told that it is in vain."""

from __future__ import annotations

from dataclasses import replace

import pytest

from behaviour import (
    all_of,
    apart,
    ask,
    cluster,
    codes,
    fill,
    group,
    near,
    near_app,
    node,
    on,
    place,
    placements,
    refused,
    run,
    submit,
    tell,
    told,
    zones,
)
from stead.asks import Affinity, Ask
from stead.codec import dumps, loads
from stead.engine import Engine
from stead.engine.changes import Change, Drop
from stead.engine.decisions import Decision
from stead.engine.facts import AskEnded, AskLost, AskRunning, AskSubmitted, ClockAdvanced, GroupEnded, GroupSubmitted
from stead.labelling import ANYWHERE, Requirement, Selector

NEAR_A = all_of(near("a"))
B = ask("b", 1, affinities=NEAR_A)


def remembered(engine: Engine) -> tuple[int, int, int]:
    """How many ids the engine keeps: that are over, that name others, that are named."""
    targets = engine._board.work.targets
    return len(targets._over.map), len(targets._names.map), len(targets._named_by.map)


NOTHING = (0, 0, 0)


# When the target dies


def test_work_that_waits_is_told_again_when_its_target_ends() -> None:
    engine = cluster(node("n0"))
    assert told(submit(engine, B)) == {"b": ["not-near"]}
    assert told(tell(engine, AskEnded("a"))) == {"b": ["target-dead"]}
    assert engine.waiting == ("b",)


def test_a_target_that_ends_twice_is_told_once() -> None:
    engine = cluster(node("n0"))
    submit(engine, B)
    tell(engine, AskEnded("a"))
    assert tell(engine, AskEnded("a")) == []


def test_a_target_that_ends_before_the_first_decision_is_dead_from_the_start() -> None:
    engine = cluster(node("n0"))
    assert told(tell(engine, AskSubmitted(B), AskEnded("a"))) == {"b": ["target-dead"]}


def test_a_target_that_ended_while_the_work_ran_is_dead_when_the_work_loses_its_place() -> None:
    engine = cluster(node("n0"))
    place(engine, ask("a", 1), B)
    assert tell(engine, AskEnded("a")) == []
    assert told(tell(engine, AskLost("b"))) == {"b": ["target-dead"]}


def test_a_target_that_ends_in_line_is_dead() -> None:
    engine = cluster(node("n0", 1))
    fill(engine, "n0", 1)
    submit(engine, ask("a", 1), ask("b", affinities=NEAR_A))
    assert told(tell(engine, AskEnded("a"))) == {"b": ["target-dead"]}


def test_a_target_that_only_lost_its_place_is_not_dead() -> None:
    engine = cluster(node("n0", 2))
    place(engine, ask("a", 1))
    fill(engine, "n0", 1)
    assert told(submit(engine, B)) == {"b": ["short-now"]}
    run(engine, ask("thief", 1), "n0")
    assert told(tell(engine, AskLost("a")))["b"] == ["not-near", "short-now"]


def test_a_target_that_is_refused_is_dead() -> None:
    engine = cluster(node("n0"))
    nowhere = ask("a", 1, selector=on("node_id", "gone"))
    decisions = submit(engine, B, nowhere)
    assert [each.id for each in refused(decisions)] == ["a"]
    assert told(decisions) == {"b": ["target-dead"]}


def test_a_target_whose_deadline_passed_is_dead() -> None:
    engine = cluster(node("n0"))
    submit(engine, B, ask("a", 9, deadline=5.0))
    decisions = tell(engine, ClockAdvanced(5.0))
    assert [each.id for each in refused(decisions)] == ["a"]
    assert told(decisions) == {"b": ["target-dead"]}


def test_members_are_dead_when_their_group_ends() -> None:
    engine = cluster(node("n0"))
    place(engine, group("g", ask("a", 1), ask("a2", 1)), B)
    tell(engine, GroupEnded("g"))
    assert told(tell(engine, AskLost("b"))) == {"b": ["target-dead"]}


def test_a_member_that_ended_is_dead_to_the_others_of_its_group() -> None:
    engine = cluster(node("n0"))
    place(engine, group("g", ask("a", 1), B))
    tell(engine, AskEnded("a"))
    assert told(tell(engine, AskLost("b"))) == {"g": ["target-dead"]}


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
    tell(engine, AskEnded("a"), AskEnded("a2"))
    assert codes(engine, ask("w", 1, affinities=affinities)) == expected


def test_apart_from_the_dead_is_anywhere() -> None:
    engine = cluster(node("n0"))
    submit(engine, B)
    tell(engine, AskEnded("a"))
    assert place(engine, ask("w", 1, affinities=all_of(apart("a")))) == ["n0"]


def test_the_second_of_two_targets_makes_the_difference() -> None:
    engine = cluster(node("n0"))
    submit(engine, ask("b", 1, affinities=all_of(near("a1", "a2"))))
    assert tell(engine, AskEnded("a1")) == []
    assert told(tell(engine, AskEnded("a2"))) == {"b": ["target-dead"]}


# When it comes back


def test_a_target_that_is_submitted_again_is_followed() -> None:
    engine = cluster(node("n0"))
    submit(engine, B)
    tell(engine, AskEnded("a"))
    assert placements(submit(engine, ask("a", 1))) == {"a": "n0", "b": "n0"}


def test_a_target_that_waits_again_is_not_dead() -> None:
    engine = cluster(node("n0"))
    submit(engine, B)
    tell(engine, AskEnded("a"))
    assert told(submit(engine, ask("a", 9))) == {"a": ["never-fits"], "b": ["not-near"]}


def test_a_target_that_runs_after_all_is_followed() -> None:
    engine = cluster(node("n0"), node("n1"))
    submit(engine, B)
    tell(engine, AskEnded("a"))
    assert placements(tell(engine, AskRunning(ask("a", 1), "n1"))) == {"b": "n1"}


def test_a_target_that_runs_on_a_node_nobody_knows_is_still_dead() -> None:
    engine = cluster(node("n0"))
    submit(engine, B)
    tell(engine, AskEnded("a"))
    assert tell(engine, AskRunning(ask("a", 1), "elsewhere")) == []
    assert codes(engine, B) == ["target-dead"]


def test_a_target_that_comes_back_as_a_member_of_a_group_is_not_dead() -> None:
    engine = cluster(node("n0"))
    submit(engine, B)
    tell(engine, AskEnded("a"))
    assert told(submit(engine, group("g", ask("a", 9))))["b"] == ["not-near"]


# What is remembered


def test_an_id_that_nobody_names_leaves_no_trace() -> None:
    engine = cluster(node("n0"))
    place(engine, *(ask(f"w{index}") for index in range(9)))
    tell(engine, *(AskEnded(f"w{index}") for index in range(20)))
    assert remembered(engine) == NOTHING


def test_the_memory_of_the_dead_goes_with_the_last_that_names_them() -> None:
    engine = cluster(node("n0"))
    submit(engine, B, replace(B, id="c"))
    tell(engine, AskEnded("a"))
    assert remembered(engine) == (1, 2, 1)
    tell(engine, AskEnded("c"))
    assert remembered(engine) == (1, 1, 1)
    tell(engine, AskEnded("b"))
    assert remembered(engine) == NOTHING
    assert told(submit(engine, replace(B, id="d"))) == {"d": ["not-near"]}


@pytest.mark.parametrize(
    "asks",
    [
        pytest.param([ask("w", affinities=all_of(near("w")))], id="work that names itself"),
        pytest.param([ask("w", affinities=all_of(near("v"))), ask("v", affinities=all_of(near("w")))], id="each other"),
        pytest.param([ask("w", deadline=1.0, affinities=NEAR_A)], id="work with a deadline"),
        pytest.param([ask("w", selector=on("node_id", "gone"), affinities=NEAR_A)], id="work that is refused"),
    ],
)
def test_nothing_is_remembered_when_all_is_over(asks: list[Ask]) -> None:
    engine = cluster(node("n0"))
    submit(engine, *asks)
    tell(engine, AskEnded("a"), ClockAdvanced(2.0))
    tell(engine, *(AskEnded(each.id) for each in asks))
    assert remembered(engine) == NOTHING


@pytest.mark.parametrize("ends_first", [False, True])
def test_nothing_is_remembered_when_a_group_is_over(ends_first: bool) -> None:
    engine = cluster(node("n0"))
    tell(engine, GroupSubmitted(group("g", ask("m0", 1), ask("m1", 1, affinities=all_of(near("m0"))))))
    tell(engine, *([AskEnded("m1"), AskEnded("m0")] if ends_first else []), GroupEnded("g"))
    assert remembered(engine) == NOTHING


def test_work_that_runs_as_another_ask_than_it_waited_as_names_what_it_now_names() -> None:
    engine = cluster(node("n0"))
    submit(engine, B)
    tell(engine, AskEnded("a"))
    run(engine, replace(B, affinities=all_of(near("c"))), "n0")
    assert remembered(engine) == (0, 1, 1)
    run(engine, replace(B, affinities=()), "n0")  # where it runs is known already, and so is what it wants
    tell(engine, AskEnded("c"))
    assert told(tell(engine, AskLost("b"))) == {"b": ["target-dead"]}


def test_work_that_is_moved_and_lost_does_not_forget_who_died() -> None:
    engine = cluster(node("n0"), node("n1"))
    place(engine, ask("a", 1), B)
    tell(engine, AskEnded("a"), AskRunning(B, "n1"))
    engine.explain("b")
    assert told(tell(engine, AskLost("b"))) == {"b": ["target-dead"]}
    assert remembered(engine) == (1, 1, 1)


def test_a_fork_knows_who_died_and_each_goes_its_own_way() -> None:
    engine = cluster(node("n0"))
    submit(engine, B)
    tell(engine, AskEnded("a"))
    fork = engine.fork()
    assert placements(submit(fork, ask("a", 1))) == {"a": "n0", "b": "n0"}
    assert codes(engine, B) == ["target-dead"]
    tell(engine, AskEnded("b"))
    assert remembered(engine) == NOTHING
    assert remembered(fork) == (0, 1, 1)


# What people and programs see


def test_work_that_was_never_submitted_may_not_know_that_its_target_is_dead() -> None:
    """Nobody named it when it ended, so nothing was remembered."""
    engine = cluster(node("n0"))
    place(engine, ask("a", 1))
    tell(engine, AskEnded("a"))
    assert codes(engine, B) == ["not-near"]
    submit(engine, B)
    tell(engine, AskEnded("a"))
    assert codes(engine, replace(B, id="never-submitted")) == ["target-dead"]


def test_the_one_change_for_the_dead_is_to_give_them_up() -> None:
    engine = zones("a", "-")
    close = near("a", topologies=("zone",))
    submit(engine, ask("b", 1, affinities=all_of(close)))
    tell(engine, AskEnded("a"))
    assert engine.explain("b").change == Change((Drop(close),), 2)


def test_the_reason_is_written_down_and_read_again() -> None:
    engine = cluster(node("n0"))
    submit(engine, B)
    decisions = tell(engine, AskEnded("a"))
    assert b'"is":"TargetDead"' in dumps(decisions)
    assert loads(dumps(decisions), tuple[Decision, ...]) == tuple(decisions)


def test_dying_changes_nothing_about_where_work_may_go() -> None:
    engine = cluster(node("n0"))
    submit(engine, B, ask("soft", 1, affinities=all_of(Affinity(ANYWHERE, near=False))))
    tell(engine, AskEnded("a"))
    assert engine.candidates(B) == ((),)
    assert engine.placed == {"soft": "n0"}
