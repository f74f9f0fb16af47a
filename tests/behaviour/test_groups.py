"""Groups: members placed together or not at all, how they are arranged, and what happens when one is lost."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from stead.engine.decisions import GroupPlaced, Waiting
from stead.engine.engine import Engine
from stead.engine.facts import (
    AskEnded,
    AskLost,
    AskRunning,
    GroupEnded,
    GroupSubmitted,
    NodeJoined,
    NodeLabelled,
    NodeLeft,
)
from stead.errors import Invalid
from stead.language.asks import Ask, Group, Spread, Strategy
from stead.language.labels import Labels
from stead.language.resources import UNIT
from tests.behaviour import (
    all_of,
    apart_from_app,
    ask,
    cluster,
    codes,
    decide_after,
    fill,
    free_of,
    group,
    near_app,
    node,
    on,
    place,
    placements,
    reported,
    run,
    submit,
    taint,
    tolerates,
    zones,
)

PACK, SPREAD = Strategy.PACK, Strategy.SPREAD
STRICT_PACK, STRICT_SPREAD = Strategy.STRICT_PACK, Strategy.STRICT_SPREAD


def members(count: int, cpu: float = 1, **rest: Any) -> list[Ask]:
    return [ask(f"m{index}", cpu, **rest) for index in range(count)]


def domains(engine: Engine, key: str) -> list[str | None]:
    """The domain of every placed member, in the order of members."""
    return [engine.nodes[where].label(key) for id, where in sorted(engine.placed.items()) if id.startswith("m")]


# How members are arranged


@pytest.mark.parametrize(
    ("cpus", "strategy", "where"),
    [
        pytest.param((4, 4), PACK, "n0 n0 n0", id="PACK puts them on one node"),
        pytest.param((2, 2), PACK, "n0 n0 n1", id="PACK uses another node when it must"),
        pytest.param((4, 4, 4), SPREAD, "n0 n1 n2", id="SPREAD puts each on a node of its own"),
        pytest.param((4, 4), SPREAD, "n0 n1 n0", id="SPREAD uses a node twice when it must"),
        pytest.param((2, 4), STRICT_PACK, "n1 n1 n1", id="STRICT_PACK finds the node that holds them all"),
        pytest.param((2, 2), STRICT_PACK, "", id="STRICT_PACK waits when no node does"),
        pytest.param((4, 1, 1), STRICT_SPREAD, "n0 n1 n2", id="STRICT_SPREAD needs a node for each"),
        pytest.param((4, 4), STRICT_SPREAD, "", id="STRICT_SPREAD waits when there are too few"),
    ],
)
def test_by_node(cpus: tuple[float, ...], strategy: Strategy, where: str) -> None:
    engine = cluster(*(node(f"n{index}", cpu) for index, cpu in enumerate(cpus)))
    found = place(engine, group("g", *members(3), strategy=strategy))
    assert sorted(id or "" for id in found) == sorted(where.split() or [""] * 3)


@pytest.mark.parametrize(
    ("letters", "strategy", "where"),
    [
        pytest.param("abaa", PACK, "a a a", id="PACK stays in one zone"),
        pytest.param("abbc", PACK, "b b ?", id="PACK takes most of one zone when it must"),
        pytest.param("aabc", SPREAD, "a b c", id="SPREAD visits every zone"),
        pytest.param("aabb", SPREAD, "a b ?", id="SPREAD visits a zone twice when it must"),
        pytest.param("abbb", STRICT_PACK, "b b b", id="STRICT_PACK finds the zone that holds them all"),
        pytest.param("aabb", STRICT_PACK, "", id="STRICT_PACK waits when no zone does"),
        pytest.param("a---", STRICT_PACK, "", id="STRICT_PACK refuses nodes without the key"),
        pytest.param("aabbc", STRICT_SPREAD, "a b c", id="STRICT_SPREAD needs a zone for each"),
        pytest.param("aabb-", STRICT_SPREAD, "", id="STRICT_SPREAD refuses nodes without the key"),
    ],
)
def test_by_a_topology_key(letters: str, strategy: Strategy, where: str) -> None:
    engine = zones(*letters, cpu=1 if strategy in (PACK, STRICT_PACK) else 2)
    place(engine, group("g", *members(3), strategy=SPREAD, topology=(("zone", strategy),)))
    found = sorted(str(domain) for domain in domains(engine, "zone"))
    assert len(found) == len(where.split())
    for letter in where.replace("?", "").split():
        assert letter in found
        found.remove(letter)


def test_node_and_topology_strategies_hold_together() -> None:
    engine = zones("a", "b", "b", "b", "c", cpu=2)
    place(engine, group("g", *members(3), strategy=STRICT_SPREAD, topology=(("zone", STRICT_PACK),)))
    assert sorted(engine.placed.values()) == ["n1", "n2", "n3"]


def test_two_topology_keys_hold_together() -> None:
    places = {"n0": ("a", "r"), "n1": ("a", "s"), "n2": ("b", "r"), "n3": ("a", "t")}
    engine = cluster(*(node(id, 1, labels={"zone": zone, "rack": rack}) for id, (zone, rack) in places.items()))
    keys = (("zone", STRICT_PACK), ("rack", STRICT_SPREAD))
    place(engine, group("g", *members(3), strategy=SPREAD, topology=keys))
    assert sorted(engine.placed.values()) == ["n0", "n1", "n3"]


def test_strict_packing_by_a_key_prefers_the_roomier_domain() -> None:
    engine = zones("a", "b", "b", "a", "b")
    place(engine, group("g", *members(2), topology=(("zone", STRICT_PACK),)))
    assert domains(engine, "zone") == ["b", "b"]


def test_strict_packing_by_node_takes_the_node_that_the_policy_likes_best() -> None:
    engine = cluster(node("n0", 4), node("n1", 4))
    fill(engine, "n0", 2)
    assert place(engine, group("g", *members(2), strategy=STRICT_PACK)) == ["n1", "n1"]


def test_strict_packing_looks_at_the_sum_of_what_all_members_need() -> None:
    engine = cluster(node("n0", 3, memory=9), node("n1", 4, memory=4), node("n2", 4, memory=9))
    both = (ask("m0", 2, memory=3), ask("m1", 2, memory=2))
    assert place(engine, group("g", *both, strategy=STRICT_PACK)) == ["n2", "n2"]


def test_strict_packing_respects_the_devices_of_the_node() -> None:
    engine = cluster(node("n0", GPU=2), node("n1", GPU=3))
    thirds = [ask(f"m{index}", gpu=0.6) for index in range(3)]
    assert place(engine, group("g", *thirds, strategy=STRICT_PACK)) == ["n1"] * 3


# What each member asks for


def test_members_have_selectors_and_tolerations_of_their_own() -> None:
    engine = cluster(
        node("n0", labels={"zone": "a"}), node("n1", taints=[taint("gpu")]), node("n2", labels={"zone": "b"})
    )
    picky = (
        ask("m0", 1, selector=on("zone", "b")),
        ask("m1", 1, tolerations=(tolerates("gpu"),), selector=on("node_id", "n1")),
        ask("m2", 1, selector=on("zone", "a")),
    )
    assert place(engine, group("g", *picky)) == ["n2", "n1", "n0"]


def test_the_pickiest_member_is_served_first() -> None:
    engine = cluster(node("n0", 1, labels={"disk": "ssd"}), node("n1", 1))
    both = (ask("m0", 1), ask("m1", 1, selector=on("disk", "ssd")))
    assert place(engine, group("g", *both)) == ["n1", "n0"]


def test_the_largest_member_is_served_before_smaller_ones() -> None:
    engine = cluster(node("n0", 3), node("n1", 2))
    assert place(engine, group("g", ask("m0", 2), ask("m1", 3))) == ["n1", "n0"]


def test_members_see_each_other() -> None:
    engine = zones("a", "b", "b")
    shy = members(2, labels={"app": "web"}, affinities=all_of(apart_from_app("web", "zone", symmetric=True)))
    place(engine, group("g", *shy))
    assert sorted(str(domain) for domain in domains(engine, "zone")) == ["a", "b"]
    third = ask("m9", 1, labels={"app": "web"})
    assert codes(engine, third) == ["kept-away"]


def test_members_may_need_each_other() -> None:
    engine = zones("a", "b")
    chief, follower = ask("m0", 1, labels={"app": "chief"}), ask("m1", 1, affinities=all_of(near_app("chief")))
    assert place(engine, group("g", chief, follower, strategy=SPREAD)) == ["n0", "n0"]


def test_members_may_need_each_other_in_a_circle() -> None:
    engine = zones("a", "b", "b")
    fill(engine, "n0", 4)
    one = ask("m0", 1, labels={"app": "x"}, affinities=all_of(near_app("y", "zone"), apart_from_app("y")))
    other = ask("m1", 1, labels={"app": "y"}, affinities=all_of(near_app("x", "zone")))
    assert sorted(map(str, place(engine, group("g", one, other)))) == ["n1", "n2"]


@pytest.mark.parametrize("shy_first", [True, False], ids=["the shy one is named first", "the shy one is named last"])
def test_a_member_that_must_be_apart_is_respected_whenever_it_is_placed(shy_first: bool) -> None:
    engine = cluster(node("n0", 4), node("n1", 4))
    shy = ask("m0", 1, affinities=all_of(apart_from_app("web")))
    trio = [ask("m1", 1, labels={"app": "web"}), ask("m2", 1, labels={"app": "web"})]
    place(engine, group("g", *([shy, *trio] if shy_first else [*trio, shy])))
    assert engine.placed["m0"] not in (engine.placed["m1"], engine.placed["m2"])


def test_members_are_spread_by_their_own_spread_rule() -> None:
    engine = zones("a", "a", "b", "b")
    even = members(4, labels={"app": "web"}, spreads=(Spread("zone", on("app", "web")),))
    place(engine, group("g", *even))
    assert sorted(str(domain) for domain in domains(engine, "zone")) == ["a", "a", "b", "b"]


def test_a_group_turns_back_when_a_member_took_the_place_of_another() -> None:
    engine = cluster(node("n0", 2), node("n1", 1), node("n2", 1))
    run(engine, ask("full", 1), "n2")
    shy = all_of(apart_from_app("web", symmetric=True))
    trio = (ask("m0", 1, labels={"app": "web"}), ask("m1", 1), ask("m2", 1, labels={"app": "web"}, affinities=shy))
    assert None not in place(engine, group("g", *trio))
    assert engine.placed["m0"] != engine.placed["m2"]


def test_work_outside_the_group_counts_as_for_any_ask() -> None:
    engine = cluster(node("n0"), node("n1"))
    run(engine, ask("web", labels={"app": "web"}), "n0")
    assert place(engine, group("g", *members(2, affinities=all_of(apart_from_app("web"))))) == ["n1", "n1"]


# All or nothing


@pytest.mark.parametrize("strategy", list(Strategy), ids=str)
def test_a_group_that_does_not_fit_takes_nothing(strategy: Strategy) -> None:
    engine = cluster(node("n0", 2, GPU=1), node("n1", 2, GPU=1))
    before = [engine.free(id) for id in engine.nodes]
    wide = [ask(f"m{index}", 1, gpu=0.6) for index in range(3)]
    assert place(engine, group("g", *wide, strategy=strategy)) == [None] * 3
    assert [engine.free(id) for id in engine.nodes] == before
    assert engine.placed == {}
    assert engine.waiting == ("g",)
    assert place(engine, *(ask(f"w{index}", 2, gpu=1) for index in range(2))) == ["n0", "n1"]


def test_a_pending_group_reports_the_reasons_of_the_first_member_that_fits_nowhere() -> None:
    engine = cluster(node("n0", 4))
    picky = (ask("m0", 1), ask("m1", 1, selector=on("zone", "a")), ask("m2", 9))
    assert reported(submit(engine, group("g", *picky))) == {"g": ["lacks-label"]}


def test_a_group_whose_members_only_do_not_fit_together_reports_the_member_left_over_and_why() -> None:
    [waiting] = submit(cluster(node("n0", 2)), group("g", *members(3)))
    assert isinstance(waiting, Waiting)
    assert (waiting.member, [each.reason.code for each in waiting.refusals]) == ("m2", ["short-now"])


@pytest.mark.parametrize(
    ("strategy", "codes"),
    [(STRICT_SPREAD, ["has-member"]), (STRICT_PACK, ["apart-from-group", "short-now"])],
)
def test_a_strict_strategy_is_a_typed_reason(strategy: Strategy, codes: list[str]) -> None:
    engine = cluster(node("n0", 2), node("n1", 2))
    assert reported(submit(engine, group("g", *members(3), strategy=strategy))) == {"g": codes}
    explanation = engine.explain("g")
    assert explanation.crowded_out is not None
    member, verdict = explanation.crowded_out
    assert (member, [each.reason.code for each in verdict.refusals]) == ("m2", codes)
    assert verdict.candidates + sum(each.nodes for each in verdict.refusals) == verdict.nodes == 2


def test_finding_the_member_left_over_changes_nothing() -> None:
    engine = cluster(node("n0", 2), node("n1", 2))
    submit(engine, group("g", *members(3), strategy=STRICT_SPREAD))
    assert (engine.placed, engine.free("n0")["CPU"], engine.decide()) == ({}, 2 * UNIT, [])


def test_a_group_that_waits_is_placed_when_there_is_room_for_all_of_it() -> None:
    engine = cluster(node("n0", 2), node("n1", 2))
    fillers = [fill(engine, "n0", 1), fill(engine, "n1", 1)]
    submit(engine, group("g", *members(2, 2)))
    assert decide_after(engine, AskEnded(fillers[0])) == [], "still short of room, which is no news"
    assert decide_after(engine, AskEnded(fillers[1])) == [GroupPlaced("g", 0, (("m0", "n0"), ("m1", "n1")))]


def test_a_group_that_waits_is_placed_when_a_node_joins_or_gets_the_label() -> None:
    engine = zones("a", "-")
    submit(engine, group("g", *members(2), strategy=SPREAD, topology=(("zone", STRICT_SPREAD),)))
    assert engine.waiting == ("g",)
    assert set(placements(decide_after(engine, NodeLabelled("n1", Labels({"zone": "b"}))))) == {"m0", "m1"}
    submit(engine, group("h", ask("h0", 9)))
    assert placements(decide_after(engine, NodeJoined(node("n2", 9)))) == {"h0": "n2"}


# Alternatives


def test_alternatives_are_tried_in_order_and_may_have_other_members() -> None:
    engine = cluster(node("n0", 2))
    wanted = group("g", *members(4), fallbacks=((ask("half-0", 1), ask("half-1", 1)), (ask("one", 1),)))
    assert submit(engine, wanted) == [GroupPlaced("g", 1, (("half-0", "n0"), ("half-1", "n0")))]


def test_the_first_alternative_that_fits_is_taken() -> None:
    wanted = group("g", *members(2), fallbacks=((ask("small", 1),),))
    assert set(placements(submit(cluster(node("n0", 2)), wanted))) == {"m0", "m1"}


def test_a_waiting_group_takes_whichever_alternative_fits_first() -> None:
    engine = cluster(node("n0", 4))
    fillers = [fill(engine, "n0", 2), fill(engine, "n0", 2)]
    submit(engine, group("g", *members(1, 4), fallbacks=((ask("small", 2),),)))
    assert decide_after(engine, AskEnded(fillers[0])) == [GroupPlaced("g", 1, (("small", "n0"),))]


def test_a_member_lost_by_a_fallback_is_placed_again_by_that_fallback() -> None:
    engine = cluster(node("n0", 2))
    submit(engine, group("g", *members(1, 4), fallbacks=((ask("a", 1), ask("b", 1)),)))
    decisions = decide_after(engine, NodeJoined(node("n1", 8)), AskLost("a"))
    assert decisions == [GroupPlaced("g", 1, (("a", "n0"),))]


def test_when_all_members_are_lost_the_alternatives_are_open_again() -> None:
    engine = cluster(node("n0", 2))
    submit(engine, group("g", *members(1, 4), fallbacks=((ask("a", 1), ask("b", 1)),)))
    assert engine.placed.keys() == {"a", "b"}
    assert decide_after(engine, NodeJoined(node("n1", 8)), NodeLeft("n0")) == [GroupPlaced("g", 0, (("m0", "n1"),))]


# Members that are lost, end, or run elsewhere


def test_a_lost_member_is_placed_again_beside_the_others() -> None:
    engine = cluster(node("n0", 2), node("n1", 4))
    assert place(engine, group("g", *members(2))) == ["n0", "n0"]
    assert decide_after(engine, AskLost("m1")) == [GroupPlaced("g", 0, (("m1", "n0"),))]


@pytest.mark.parametrize(
    ("strategy", "where"),
    [(PACK, "n1"), (SPREAD, "n2"), (STRICT_SPREAD, "n2")],
    ids=["PACK", "SPREAD", "STRICT_SPREAD"],
)
def test_a_member_lost_with_its_node_is_placed_again_by_the_strategy(strategy: Strategy, where: str) -> None:
    engine = cluster(node("n0", 1), node("n1", 4), node("n2", 4))
    engine.apply(GroupSubmitted(group("g", *members(2), strategy=strategy)))
    run(engine, members(2)[0], "n0")
    run(engine, members(2)[1], "n1")
    assert decide_after(engine) == []
    assert placements(decide_after(engine, NodeLeft("n0"))) == {"m0": where}


def test_a_member_of_a_strictly_packed_group_waits_for_the_node_of_the_others() -> None:
    engine = cluster(node("n0", 2), node("n1", 4))
    engine.apply(GroupSubmitted(group("g", *members(2), strategy=STRICT_PACK)))
    for each in members(2):
        run(engine, each, "n0")
    thief = ask("thief", 1, priority=1, selector=on("node_id", "n0"))
    decisions = decide_after(engine, AskLost("m0"), AskRunning(thief, "n0"))
    assert reported(decisions) == {"g": ["apart-from-group", "short-now"]}
    assert engine.placed == {"m1": "n0", "thief": "n0"}
    assert placements(decide_after(engine, AskEnded("thief"))) == {"m0": "n0"}


def test_a_group_that_lost_all_its_members_is_placed_as_a_whole() -> None:
    engine = cluster(node("n0", 4), node("n1", 1))
    place(engine, group("g", *members(2), strategy=STRICT_PACK))
    assert reported(decide_after(engine, NodeLeft("n0"))) == {"g": ["short-now"]}
    assert engine.placed == {}
    assert set(placements(decide_after(engine, NodeJoined(node("n2", 2)))).values()) == {"n2"}


def test_a_group_that_lost_a_member_waits_at_its_old_place_in_the_line() -> None:
    engine = cluster(node("n0", 2))
    place(engine, group("g", *members(2)), ask("later", 1))
    assert placements(decide_after(engine, AskLost("m0"))) == {"m0": "n0"}


def test_a_member_that_ended_is_not_placed_again() -> None:
    engine = cluster(node("n0", 4))
    place(engine, group("g", *members(3)))
    assert decide_after(engine, AskEnded("m0"), AskLost("m1")) == [GroupPlaced("g", 0, (("m1", "n0"),))]
    assert free_of(engine) == {"n0": 2}


def test_a_group_stops_waiting_when_the_member_it_waits_for_ended() -> None:
    engine = cluster(node("n0", 1), node("n1", 1))
    place(engine, group("g", *members(2)))
    decide_after(engine, NodeLeft("n1"))
    assert list(engine.waiting) == ["g"]
    assert decide_after(engine, AskEnded("m1" if engine.placed.get("m0") else "m0")) == []
    assert list(engine.waiting) == []


def test_a_group_whose_members_run_already_need_not_be_placed() -> None:
    engine = cluster(node("n0", 4), node("n1", 4))
    engine.apply(GroupSubmitted(group("g", *members(3))))
    run(engine, members(3)[0], "n1")
    assert set(placements(decide_after(engine)).items()) == {("m1", "n1"), ("m2", "n1")}
    assert engine.placed["m0"] == "n1"


def test_a_member_of_a_later_alternative_that_runs_decides_for_it() -> None:
    engine = cluster(node("n0", 4))
    engine.apply(GroupSubmitted(group("g", *members(2), fallbacks=((ask("a", 1), ask("b", 1)),))))
    run(engine, ask("a", 1), "n0")
    assert decide_after(engine) == [GroupPlaced("g", 1, (("b", "n0"),))]


def test_a_member_ended_before_the_group_was_placed_is_left_out() -> None:
    engine = cluster(node("n0", 2))
    submit(engine, group("g", *members(3)))
    assert set(placements(decide_after(engine, AskEnded("m1")))) <= {"m0", "m2"}
    assert set(placements(decide_after(engine, NodeJoined(node("n1", 1))))) | engine.placed.keys() == {"m0", "m2"}


def test_a_pending_group_whose_members_all_ended_is_placed_without_a_decision() -> None:
    engine = cluster(node("n0", 1))
    submit(engine, group("g", *members(2)))
    decide_after(engine, AskEnded("m0"), AskEnded("m1"))
    assert decide_after(engine, NodeJoined(node("n1", 4))) == []
    assert list(engine.waiting) == []


# The end


@pytest.mark.parametrize("waits", [False, True], ids=["placed", "waiting for a member"])
def test_the_end_of_a_group_frees_everything(waits: bool) -> None:
    engine = cluster(node("n0", 2), node("n1", 2))
    place(engine, group("g", *members(4)))
    if waits:
        decide_after(engine, NodeLeft("n1"))
        assert engine.waiting == ("g",)
    assert decide_after(engine, GroupEnded("g")) == []
    assert engine.placed == {}
    assert engine.waiting == ()
    assert set(free_of(engine).values()) == {2}
    assert None not in place(engine, *members(2))


def test_a_group_may_come_back_under_its_name() -> None:
    engine = cluster(node("n0", 4))
    place(engine, group("g", *members(2)))
    decide_after(engine, GroupEnded("g"))
    assert place(engine, group("g", *members(2))) == ["n0", "n0"]


def test_two_hundred_rounds_of_groups_leave_nothing_behind() -> None:
    engine = cluster(*(node(f"n{index}", 4, GPU=2, labels={"zone": "ab"[index % 2]}) for index in range(4)))
    before = {id: engine.free(id) for id in engine.nodes}
    random = Random(5)
    for count in range(200):
        size = random.randint(1, 7)
        wanted = [ask(f"m{index}", random.choice((1, 2)), gpu=random.choice((0, 0.5, 1))) for index in range(size)]
        key = (("zone", random.choice(list(Strategy))),) if random.random() < 0.5 else ()
        decide_after(engine, GroupSubmitted(group("g", *wanted, strategy=random.choice(list(Strategy)), topology=key)))
        if count % 3 == 0 and engine.placed:
            decide_after(engine, AskLost(random.choice(sorted(engine.placed))))
        decide_after(engine, GroupEnded("g"))
        assert {id: engine.free(id) for id in engine.nodes} == before
    assert engine.placed == {}
    assert engine.waiting == ()


# What a group is


@pytest.mark.parametrize(
    ("alternatives", "message"),
    [
        ((), "has no members"),
        (((),), "has no members"),
        (((ask("m"), ask("m")),), "has two members with one id"),
        (((ask("m"),), (ask("m"),)), "has two members with one id"),
    ],
)
def test_a_group_is_refused_that_cannot_be_meant(alternatives: tuple[tuple[Ask, ...], ...], message: str) -> None:
    with pytest.raises(Invalid, match=message):
        Group("g", alternatives)


def test_a_group_whose_member_is_known_already_is_ignored() -> None:
    engine = cluster(node("n0", 4))
    place(engine, ask("m1", 1))
    assert submit(engine, group("g", *members(2))) == []
    assert engine.placed == {"m1": "n0"}
