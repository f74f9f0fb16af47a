"""Affinities while work comes, goes, fails and restarts: what waits follows, what is placed stays."""

from __future__ import annotations

from behaviour import (
    all_of,
    apart,
    apart_from_app,
    ask,
    cluster,
    fill,
    near,
    near_app,
    node,
    place,
    placements,
    run,
    submit,
    tell,
    told,
    zones,
)
from stead.asks import Ask
from stead.engine import Engine
from stead.engine.facts import AskEnded, AskLost, AskRunning, AskSubmitted, NodeJoined, NodeLeft

FOLLOWER = ask("b", 1, affinities=all_of(near("a")))


def actors(first: Ask | None = None) -> Engine:
    """Two nodes; actor a runs on n0, and b, which must be near it, too."""
    engine = cluster(node("n0"), node("n1"))
    assert place(engine, first or ask("a", 1), FOLLOWER) == ["n0", "n0"]
    return engine


def test_an_affinity_to_work_that_is_not_placed_yet_waits_and_follows() -> None:
    engine = cluster(node("n0", 2), node("n1", 2))
    assert told(submit(engine, FOLLOWER)) == {"b": ["not-near"]}
    fill(engine, "n0", 2)
    assert placements(submit(engine, ask("a", 1))) == {"a": "n1", "b": "n1"}


def test_it_follows_work_that_is_submitted_later_in_the_same_breath() -> None:
    assert place(cluster(node("n0")), FOLLOWER, ask("a", 1)) == ["n0", "n0"]


def test_it_follows_work_that_the_cluster_placed() -> None:
    engine = cluster(node("n0"), node("n1"))
    submit(engine, FOLLOWER)
    assert placements(tell(engine, AskRunning(ask("a", 1), "n1"))) == {"b": "n1"}


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
    assert tell(engine, AskEnded("a")) == []
    assert engine.placed == {"b": "n0"}


def test_work_that_ended_and_that_nobody_named_is_forgotten() -> None:
    engine = cluster(node("n0"))
    place(engine, ask("a", 1))
    tell(engine, AskEnded("a"))
    assert told(submit(engine, ask("c", 1, affinities=all_of(near("a"))))) == {"c": ["not-near"]}


def test_work_apart_from_one_that_ends_is_let_in() -> None:
    engine = cluster(node("n0"))
    run(engine, ask("a", 1), "n0")
    assert told(submit(engine, ask("b", 1, affinities=all_of(apart("a"))))) == {"b": ["too-near"]}
    assert placements(tell(engine, AskEnded("a"))) == {"b": "n0"}


def test_work_kept_away_by_one_that_ends_is_let_in() -> None:
    engine = cluster(node("n0"))
    run(engine, ask("shy", affinities=all_of(apart_from_app("web", symmetric=True))), "n0")
    assert told(submit(engine, ask("w", labels={"app": "web"}))) == {"w": ["kept-away"]}
    assert placements(tell(engine, AskEnded("shy"))) == {"w": "n0"}


# The failures that users asked about: A is an actor, B must be near it


def test_a_restarts_elsewhere_and_b_stays() -> None:
    engine = actors()
    fill(engine, "n0", 2)
    decisions = tell(engine, AskLost("a"), AskRunning(ask("filler", 1), "n0"))
    assert placements(decisions) == {"a": "n1"}
    assert engine.placed["b"] == "n0"


def test_when_b_then_fails_it_goes_where_a_is() -> None:
    engine = actors()
    tell(engine, AskRunning(ask("a", 1), "n1"))
    assert placements(tell(engine, AskLost("b"))) == {"b": "n1"}


def test_when_b_fails_first_it_comes_back_to_a() -> None:
    engine = actors()
    assert placements(tell(engine, AskLost("b"))) == {"b": "n0"}


def test_when_their_node_dies_a_finds_another_and_b_follows() -> None:
    engine = actors()
    assert placements(tell(engine, NodeLeft("n0"))) == {"a": "n1", "b": "n1"}


def test_when_their_node_dies_and_there_is_no_room_b_waits_for_a_wherever_it_will_be() -> None:
    engine = actors()
    full = fill(engine, "n1", 4)
    decisions = tell(engine, NodeLeft("n0"))
    assert told(decisions) == {"a": ["short-now"], "b": ["not-near", "short-now"]}
    assert placements(tell(engine, NodeJoined(node("n2")))) == {"a": "n2", "b": "n2"}
    assert full in engine.placed


def test_b_waits_while_a_restarts() -> None:
    engine = actors()
    full = fill(engine, "n1", 4)
    rest = fill(engine, "n0", 2)
    tell(engine, AskLost("a"), AskLost("b"), AskRunning(ask("thief", 1), "n0"))
    assert engine.placed.keys() == {full, rest, "thief", "a"}
    assert placements(tell(engine, AskEnded(rest))) == {"b": "n0"}


def test_b_does_not_go_where_a_was() -> None:
    engine = actors()
    tell(engine, AskLost("a"), AskEnded("a"))
    assert told(tell(engine, AskLost("b"))) == {"b": ["target-dead"]}


def test_either_of_two_targets_will_do_and_the_one_left_is_the_one_that_counts() -> None:
    engine = cluster(node("n0"), node("n1"))
    run(engine, ask("a1", 1), "n0")
    run(engine, ask("a2", 1), "n1")
    assert place(engine, ask("b", 1, affinities=all_of(near("a1", "a2")))) == ["n0"]
    assert placements(tell(engine, AskEnded("a1"), AskLost("b"))) == {"b": "n1"}


def test_members_of_a_kind_gather_again_after_the_node_of_all_of_them_died() -> None:
    engine = zones("a", "b")
    together = all_of(near_app("web", "zone"))
    crowd = [ask(f"w{index}", 1, labels={"app": "web"}, affinities=together) for index in range(3)]
    assert place(engine, *crowd) == ["n0"] * 3
    assert placements(tell(engine, NodeLeft("n0"))) == dict.fromkeys(("w0", "w1", "w2"), "n1")


def test_a_new_ask_under_the_name_of_an_old_one_is_followed() -> None:
    engine = actors()
    engine.apply(AskEnded("a"), AskLost("b"))
    fill(engine, "n0", 4)
    assert placements(tell(engine, AskSubmitted(ask("a", 1)))) == {"a": "n1", "b": "n1"}
