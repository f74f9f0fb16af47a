"""Affinities while work starts, ends, fails and restarts: pending work follows, placed work stays."""

from __future__ import annotations

from stead.engine.engine import Engine
from stead.engine.facts import AskEnded, AskLost, AskRunning, AskSubmitted, NodeJoined, NodeLeft
from stead.language.asks import Ask
from tests.behaviour import (
    all_of,
    apart,
    apart_from_app,
    ask,
    cluster,
    decide_after,
    fill,
    near,
    near_app,
    node,
    place,
    placements,
    reported,
    run,
    submit,
    zones,
)

FOLLOWER = ask("b", 1, affinities=all_of(near("a")))


def actors(first: Ask | None = None) -> Engine:
    """Two nodes; actor a runs on n0, and b, which must be near it, too."""
    engine = cluster(node("n0"), node("n1"))
    assert place(engine, first or ask("a", 1), FOLLOWER) == ["n0", "n0"]
    return engine


def test_an_affinity_to_work_that_is_not_placed_yet_waits_and_follows() -> None:
    engine = cluster(node("n0", 2), node("n1", 2))
    assert reported(submit(engine, FOLLOWER)) == {"b": ["not-near"]}
    fill(engine, "n0", 2)
    assert placements(submit(engine, ask("a", 1))) == {"a": "n1", "b": "n1"}


def test_it_follows_work_that_is_submitted_later_in_the_same_call() -> None:
    assert place(cluster(node("n0")), FOLLOWER, ask("a", 1)) == ["n0", "n0"]


def test_it_follows_work_that_the_cluster_placed() -> None:
    engine = cluster(node("n0"), node("n1"))
    submit(engine, FOLLOWER)
    assert placements(decide_after(engine, AskRunning(ask("a", 1), "n1"))) == {"b": "n1"}


def test_it_follows_work_that_was_placed_in_a_crowd_of_equals() -> None:
    engine = cluster(node("n0", 1), node("n1", 4))
    fill(engine, "n0", 1)
    submit(engine, ask("b", 1, affinities=all_of(near("a-1"))))
    crowd = [ask(f"a-{index}", 1) for index in range(3)]
    assert placements(submit(engine, *crowd)) == {"a-0": "n1", "a-1": "n1", "a-2": "n1", "b": "n1"}


def test_a_chain_follows_link_by_link() -> None:
    engine = zones("a", "b")
    links = [ask(f"link-{index}", 1, affinities=all_of(near(f"link-{index - 1}"))) for index in (3, 2, 1)]
    submit(engine, *links)
    assert placements(submit(engine, ask("link-0", 1))) == {f"link-{index}": "n0" for index in range(4)}


def test_staying_apart_from_work_that_is_not_placed_does_not_wait() -> None:
    assert place(cluster(node("n0")), ask("b", 1, affinities=all_of(apart("a")))) == ["n0"]


def test_work_that_is_placed_stays_when_its_neighbour_ends() -> None:
    engine = actors()
    assert decide_after(engine, AskEnded("a")) == []
    assert engine.placed == {"b": "n0"}


def test_ended_work_that_no_work_names_is_forgotten() -> None:
    engine = cluster(node("n0"))
    place(engine, ask("a", 1))
    decide_after(engine, AskEnded("a"))
    assert reported(submit(engine, ask("c", 1, affinities=all_of(near("a"))))) == {"c": ["not-near"]}


def test_work_apart_from_work_that_ends_is_placed() -> None:
    engine = cluster(node("n0"))
    run(engine, ask("a", 1), "n0")
    assert reported(submit(engine, ask("b", 1, affinities=all_of(apart("a"))))) == {"b": ["too-near"]}
    assert placements(decide_after(engine, AskEnded("a"))) == {"b": "n0"}


def test_work_excluded_by_work_that_ends_is_placed() -> None:
    engine = cluster(node("n0"))
    run(engine, ask("shy", affinities=all_of(apart_from_app("web", symmetric=True))), "n0")
    assert reported(submit(engine, ask("w", labels={"app": "web"}))) == {"w": ["kept-away"]}
    assert placements(decide_after(engine, AskEnded("shy"))) == {"w": "n0"}


# The failures that users asked about: A is an actor, B must be near it


def test_a_restarts_elsewhere_and_b_stays() -> None:
    engine = actors()
    fill(engine, "n0", 2)
    decisions = decide_after(engine, AskLost("a"), AskRunning(ask("filler", 1), "n0"))
    assert placements(decisions) == {"a": "n1"}
    assert engine.placed["b"] == "n0"


def test_when_b_then_fails_it_goes_where_a_is() -> None:
    engine = actors()
    decide_after(engine, AskRunning(ask("a", 1), "n1"))
    assert placements(decide_after(engine, AskLost("b"))) == {"b": "n1"}


def test_when_b_fails_first_it_comes_back_to_a() -> None:
    engine = actors()
    assert placements(decide_after(engine, AskLost("b"))) == {"b": "n0"}


def test_when_their_node_dies_a_finds_another_and_b_follows() -> None:
    engine = actors()
    assert placements(decide_after(engine, NodeLeft("n0"))) == {"a": "n1", "b": "n1"}


def test_when_their_node_dies_and_there_is_no_room_b_waits_for_a() -> None:
    engine = actors()
    full = fill(engine, "n1", 4)
    decisions = decide_after(engine, NodeLeft("n0"))
    assert reported(decisions) == {"a": ["short-now"], "b": ["not-near", "short-now"]}
    assert placements(decide_after(engine, NodeJoined(node("n2")))) == {"a": "n2", "b": "n2"}
    assert full in engine.placed


def test_b_waits_while_a_restarts() -> None:
    engine = actors()
    full = fill(engine, "n1", 4)
    rest = fill(engine, "n0", 2)
    decide_after(engine, AskLost("a"), AskLost("b"), AskRunning(ask("thief", 1), "n0"))
    assert engine.placed.keys() == {full, rest, "thief", "a"}
    assert placements(decide_after(engine, AskEnded(rest))) == {"b": "n0"}


def test_b_does_not_go_where_a_was() -> None:
    engine = actors()
    decide_after(engine, AskLost("a"), AskEnded("a"))
    assert reported(decide_after(engine, AskLost("b"))) == {"b": ["target-dead"]}


def test_either_of_two_targets_will_do_and_the_one_left_is_the_one_that_counts() -> None:
    engine = cluster(node("n0"), node("n1"))
    run(engine, ask("a1", 1), "n0")
    run(engine, ask("a2", 1), "n1")
    assert place(engine, ask("b", 1, affinities=all_of(near("a1", "a2")))) == ["n0"]
    assert placements(decide_after(engine, AskEnded("a1"), AskLost("b"))) == {"b": "n1"}


def test_work_of_one_kind_gathers_again_after_its_node_died() -> None:
    engine = zones("a", "b")
    together = all_of(near_app("web", "zone"))
    crowd = [ask(f"w{index}", 1, labels={"app": "web"}, affinities=together) for index in range(3)]
    assert place(engine, *crowd) == ["n0"] * 3
    assert placements(decide_after(engine, NodeLeft("n0"))) == dict.fromkeys(("w0", "w1", "w2"), "n1")


def test_a_new_ask_under_the_name_of_an_old_one_is_followed() -> None:
    engine = actors()
    engine.apply(AskEnded("a"), AskLost("b"))
    fill(engine, "n0", 4)
    assert placements(decide_after(engine, AskSubmitted(ask("a", 1)))) == {"a": "n1", "b": "n1"}
