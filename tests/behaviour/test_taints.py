"""Taints and tolerations: every effect against every kind of toleration."""

from __future__ import annotations

import pytest

from stead.engine.facts import NodeJoined, NodeTainted, NodeUntainted
from stead.engine.reasons import Tainted
from stead.language.asks import Preference
from stead.language.taints import TOLERATE_ALL, Effect, Taint, Toleration
from tests.behaviour import (
    ask,
    candidates,
    cluster,
    decide_after,
    node,
    on,
    place,
    placements,
    refusals,
    reported,
    submit,
    taint,
    tolerates,
)

GPU_NODE = Taint("gpu_node", "true")
REFUSING = (Effect.NO_SCHEDULE, Effect.NO_EXECUTE)
OTHER = {
    Effect.NO_SCHEDULE: Effect.NO_EXECUTE,
    Effect.NO_EXECUTE: Effect.PREFER_NO_SCHEDULE,
    Effect.PREFER_NO_SCHEDULE: Effect.NO_SCHEDULE,
}

COVERING = [
    pytest.param(TOLERATE_ALL, id="a toleration of any key covers it"),
    pytest.param(tolerates("kind"), id="a toleration of the key covers any value"),
    pytest.param(tolerates("kind", "a100"), id="a toleration In covers its value"),
    pytest.param(tolerates("kind", "a100", "t4"), id="a toleration In covers each of its values"),
    pytest.param(Toleration("kind", frozenset({"t4"})), id="a toleration NotIn covers every other value"),
    pytest.param(tolerates(None, "a100"), id="a value may be tolerated whatever the key"),
    pytest.param(tolerates("kind", seconds=0.0), id="seconds have no say in placement"),
]
NOT_COVERING = [
    pytest.param(tolerates("other"), id="another key does not cover it"),
    pytest.param(tolerates("kind", "t4"), id="In with another value does not cover it"),
    pytest.param(tolerates("kind", ""), id="In with the empty value does not cover it"),
    pytest.param(Toleration("kind", frozenset({"a100"})), id="NotIn of its value does not cover it"),
    pytest.param(Toleration("kind", frozenset(), complement=False), id="In without values covers nothing"),
    pytest.param(tolerates(None, "t4"), id="any key with another value does not cover it"),
]


@pytest.mark.parametrize("effect", REFUSING, ids=str)
@pytest.mark.parametrize("toleration", COVERING)
def test_work_that_tolerates_a_taint_may_go_there(toleration: Toleration, effect: Effect) -> None:
    engine = cluster(node("n0", taints=[taint("kind", "a100", effect)]))
    assert candidates(engine, ask("w", 1, tolerations=(toleration,))) == ("n0",)


@pytest.mark.parametrize("effect", REFUSING, ids=str)
@pytest.mark.parametrize("toleration", NOT_COVERING)
def test_work_that_does_not_tolerate_a_taint_may_not(toleration: Toleration, effect: Effect) -> None:
    unwanted = taint("kind", "a100", effect)
    engine = cluster(node("n0", taints=[unwanted]), node("n1"))
    assert refusals(engine, ask("w", 1, tolerations=(toleration,))) == [(Tainted(unwanted), 1, 1)]
    assert candidates(engine, ask("w", 1, tolerations=(toleration,))) == ("n1",)


@pytest.mark.parametrize("effect", REFUSING, ids=str)
def test_a_toleration_of_one_effect_covers_no_other(effect: Effect) -> None:
    engine = cluster(node("n0", taints=[taint("kind", "a100", effect)]))
    assert candidates(engine, ask("w", tolerations=(tolerates("kind", effect=effect),))) == ("n0",)
    assert candidates(engine, ask("w", tolerations=(tolerates("kind", effect=OTHER[effect]),))) == ()


@pytest.mark.parametrize("toleration", [*COVERING, *NOT_COVERING])
def test_prefer_no_schedule_refuses_no_work(toleration: Toleration) -> None:
    engine = cluster(node("n0", taints=[taint("kind", "a100", Effect.PREFER_NO_SCHEDULE)]))
    assert place(engine, ask("w", 1, tolerations=(toleration,))) == ["n0"]


def test_work_without_a_toleration_is_refused_whatever_else_it_asks() -> None:
    engine = cluster(node("n0", taints=[GPU_NODE], labels={"zone": "a"}))
    pinned = ask("w", 1, selector=on("node_id", "n0"), prefers=(Preference(on("zone", "a")),))
    assert reported(submit(engine, pinned)) == {"w": ["tainted"]}


def test_every_taint_of_a_node_must_be_tolerated_and_each_is_a_reason() -> None:
    spot, gpu = taint("spot"), taint("gpu", "yes", Effect.NO_EXECUTE)
    engine = cluster(node("n0", taints=[spot, gpu]), node("n1", taints=[spot]))
    assert candidates(engine, ask("w", tolerations=(tolerates("spot"),))) == ("n1",)
    assert candidates(engine, ask("w", tolerations=(tolerates("gpu"),))) == ()
    assert candidates(engine, ask("w", tolerations=(tolerates("spot"), tolerates("gpu")))) == ("n0", "n1")
    assert refusals(engine, ask("w")) == [(Tainted(gpu), 1, 0), (Tainted(spot), 1, 1)]


def test_taints_take_the_blame_in_the_order_of_key_value_and_effect() -> None:
    taints = [
        taint("a", "", Effect.NO_EXECUTE),
        taint("a", "", Effect.NO_SCHEDULE),
        taint("a", "1"),
        taint("b", "", Effect.NO_EXECUTE),
    ]
    engine = cluster(*(node(f"n{index}", taints=[each]) for index, each in enumerate(reversed(taints))))
    assert [reason for reason, _, _ in refusals(engine, ask("w"))] == [Tainted(each) for each in taints]


# Prefer not to schedule


def test_a_node_preferred_not_to_be_used_is_the_last_resort() -> None:
    avoided = node("n0", 1, taints=[taint("old", "", Effect.PREFER_NO_SCHEDULE)])
    engine = cluster(avoided, node("n1", 1))
    assert place(engine, ask("a", 1), ask("b", 1), ask("c", 1)) == ["n1", "n0", None]


def test_tolerating_it_makes_the_node_as_good_as_any() -> None:
    avoided = node("n0", taints=[taint("old", "", Effect.PREFER_NO_SCHEDULE)])
    assert place(cluster(avoided, node("n1")), ask("a", 1, tolerations=(tolerates("old"),))) == ["n0"]


@pytest.mark.parametrize(
    ("taints", "weight", "chosen"),
    [
        (1, 99, "plain"),
        (1, 100, "avoided"),
        (2, 100, "plain"),
    ],
    ids=[
        "one taint outweighs a preference of 99",
        "one taint is worth a preference of 100, so table order decides",
        "two taints outweigh a preference of 100",
    ],
)
def test_each_taint_costs_a_hundred(taints: int, weight: int, chosen: str) -> None:
    unwanted = [taint(f"t{index}", "", Effect.PREFER_NO_SCHEDULE) for index in range(taints)]
    engine = cluster(node("avoided", taints=unwanted), node("plain"))
    assert place(engine, ask("w", 1, prefers=(Preference(on("node_id", "avoided"), weight),))) == [chosen]


def test_fewer_taints_are_better_than_more() -> None:
    mild = [taint("a", "", Effect.PREFER_NO_SCHEDULE)]
    engine = cluster(node("n0", taints=[*mild, taint("b", "", Effect.PREFER_NO_SCHEDULE)]), node("n1", taints=mild))
    assert place(engine, ask("w", 1)) == ["n1"]


def test_an_untolerated_taint_costs_whatever_its_value_and_is_counted_per_taint_not_per_toleration() -> None:
    avoided = node("n0", taints=[taint("a", "x", Effect.PREFER_NO_SCHEDULE)])
    wrong = (tolerates("a", "y"), tolerates("a", effect=Effect.NO_SCHEDULE))
    assert place(cluster(avoided, node("n1")), ask("w", 1, tolerations=wrong)) == ["n1"]


# Taints that come and go


def test_work_queued_before_the_taint_obeys_it() -> None:
    engine = cluster(node("n0", 1))
    place(engine, ask("first", 1), ask("second", 1))
    engine.apply(NodeTainted("n0", GPU_NODE))
    decisions = decide_after(engine, NodeJoined(node("n1", 1)))
    assert placements(decisions) == {"second": "n1"}
    assert engine.placed["first"] == "n0"


@pytest.mark.parametrize("effect", REFUSING, ids=str)
def test_removing_a_taint_places_pending_work(effect: Effect) -> None:
    engine = cluster(node("n0", taints=[taint("a", "x", effect)]))
    submit(engine, ask("w", 1))
    assert placements(decide_after(engine, NodeUntainted("n0", "a"))) == {"w": "n0"}


@pytest.mark.parametrize(
    ("key", "effect", "left"),
    [
        ("a", None, ["b"]),
        ("a", Effect.NO_SCHEDULE, ["a:no-execute", "b"]),
        ("a", Effect.PREFER_NO_SCHEDULE, ["a", "a:no-execute", "b"]),
        ("c", None, ["a", "a:no-execute", "b"]),
    ],
    ids=[
        "without an effect all taints of the key go",
        "with an effect only that one goes",
        "an effect that is not there takes nothing",
        "a key that is not there takes nothing",
    ],
)
def test_taints_are_removed_by_key_and_effect(key: str, effect: Effect | None, left: list[str]) -> None:
    engine = cluster(node("n0", taints=[taint("a"), taint("a", "", Effect.NO_EXECUTE), taint("b")]))
    engine.apply(NodeUntainted("n0", key, effect))
    assert [str(each) for each in engine.nodes["n0"].taints] == left


def test_a_taint_replaces_the_one_of_its_key_and_effect_and_no_other() -> None:
    engine = cluster(node("n0", taints=[taint("a", "1"), taint("a", "1", Effect.NO_EXECUTE), taint("b", "1")]))
    engine.apply(NodeTainted("n0", taint("a", "2")))
    assert [str(each) for each in engine.nodes["n0"].taints] == ["a=1:no-execute", "b=1", "a=2"]
    both = (tolerates("a", "1"), tolerates("b"))
    assert refusals(engine, ask("w", tolerations=both)) == [(Tainted(taint("a", "2")), 1, 1)]


def test_the_same_taint_again_changes_nothing() -> None:
    engine = cluster(node("n0", taints=[taint("a", "1"), taint("b")]))
    before = engine.nodes["n0"]
    assert decide_after(engine, NodeTainted("n0", taint("a", "1"))) == []
    assert engine.nodes["n0"] == before


def test_a_taint_on_one_node_does_not_affect_others() -> None:
    engine = cluster(node("n0"), node("n1"))
    engine.apply(NodeTainted("n0", GPU_NODE), NodeTainted("n1", GPU_NODE), NodeUntainted("n0", "gpu_node"))
    assert candidates(engine, ask("w")) == ("n0",)
