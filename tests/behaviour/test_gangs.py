"""Gangs: groups with a minimum, groups whose members come and go, and time-outs.

Rule: no decision leaves a group with some members placed but fewer than its minimum.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from stead import solver
from stead.engine.decisions import Decision, GroupPlaced, GroupReleased, Waiting
from stead.engine.engine import Engine
from stead.engine.explain.events import event_of
from stead.engine.facts import (
    AskEnded,
    AskLost,
    AskRunning,
    AskSubmitted,
    ClockAdvanced,
    GroupChanged,
    GroupEnded,
    NodeJoined,
    NodeLeft,
)
from stead.engine.reasons import TargetDead
from stead.engine.settings import Settings
from stead.errors import Invalid
from stead.language.asks import Affinity, Ask, Group, PolicyName, Strategy
from stead.language.nodes import Node
from tests.behaviour import (
    all_of,
    apart_from_app,
    ask,
    cluster,
    decide_after,
    fill,
    free_of,
    group,
    near_app,
    node,
    on,
    place,
    placements,
    run,
    submit,
    zones,
)


def members(count: int, cpu: float = 1, **rest: Any) -> list[Ask]:
    return [ask(f"m{index}", cpu, **rest) for index in range(count)]


def gang(count: int, least: int | None, cpu: float = 1, **rest: Any) -> Group:
    return group("g", *members(count, cpu), min_available=least, **rest)


def change(engine: Engine, changed: Group) -> list[Decision]:
    return decide_after(engine, GroupChanged(changed))


def waiting(decisions: list[Decision]) -> list[Waiting]:
    return [each for each in decisions if isinstance(each, Waiting)]


def with_solver(*nodes: Node) -> Engine:
    """A cluster that can also decide in batches."""
    engine = Engine(Settings(patience=None), solver.needed())
    engine.apply(*map(NodeJoined, nodes))
    return engine


FLOW: dict[str, Any] = {"policy": PolicyName.FLOW}


# The minimum


@pytest.mark.parametrize(
    ("cpus", "count", "least", "placed"),
    [
        pytest.param((8,), 8, 8, 8, id="all of them, if all fit"),
        pytest.param((7,), 8, 8, 0, id="none, if one of all does not fit"),
        pytest.param((7,), 8, None, 0, id="without a minimum, all are needed"),
        pytest.param((7,), 8, 6, 7, id="as many as fit, if these are enough"),
        pytest.param((6,), 8, 6, 6, id="exactly the minimum"),
        pytest.param((5,), 8, 6, 0, id="none, if one of the minimum does not fit"),
        pytest.param((3, 2, 2), 8, 7, 7, id="on several nodes"),
        pytest.param((1, 1, 1), 8, 4, 0, id="one less than the minimum is nothing"),
        pytest.param((5,), 3, 1, 3, id="a minimum of one places what fits"),
    ],
)
@pytest.mark.parametrize("strategy", [Strategy.PACK, Strategy.SPREAD, Strategy.ANY], ids=str)
@pytest.mark.parametrize("policy", [PolicyName.HYBRID, PolicyName.KUBE, PolicyName.FLOW, PolicyName.FLOW_PACK], ids=str)
def test_at_least_the_minimum_is_placed_at_once_or_nothing(
    policy: PolicyName, strategy: Strategy, cpus: tuple[float, ...], count: int, least: int | None, placed: int
) -> None:
    engine = with_solver(*(node(f"n{index}", cpu) for index, cpu in enumerate(cpus)))
    equal = [replace(each, policy=policy) for each in members(count)]
    decisions = submit(engine, group("g", *equal, min_available=least, strategy=strategy))
    assert len(engine.placed) == placed
    assert len(placements(decisions)) == placed
    assert engine.is_pending("g") == (placed < count)


@pytest.mark.parametrize(
    ("strategy", "cpus", "least", "placed"),
    [
        pytest.param(Strategy.STRICT_PACK, (2, 3, 1), 3, ["n1"] * 3, id="STRICT_PACK takes the node that holds enough"),
        pytest.param(Strategy.STRICT_PACK, (2, 2, 2), 3, [], id="STRICT_PACK waits when no node holds enough"),
        pytest.param(Strategy.STRICT_SPREAD, (9, 9), 2, ["n0", "n1"], id="STRICT_SPREAD takes all nodes there are"),
        pytest.param(Strategy.STRICT_SPREAD, (9, 9), 3, [], id="STRICT_SPREAD waits when there are too few nodes"),
    ],
)
def test_a_strict_strategy_holds_for_all_members_that_are_placed(
    strategy: Strategy, cpus: tuple[float, ...], least: int, placed: list[str]
) -> None:
    engine = cluster(*(node(f"n{index}", cpu) for index, cpu in enumerate(cpus)))
    submit(engine, gang(4, least, strategy=strategy))
    assert sorted(engine.placed.values()) == placed


def test_a_strict_topology_takes_a_domain_that_holds_enough() -> None:
    engine = zones("a", "b", "b", cpu=2)
    submit(engine, gang(6, 4, strategy=Strategy.SPREAD, topology=(("zone", Strategy.STRICT_PACK),)))
    assert sorted(engine.placed.values()) == ["n1", "n1", "n2", "n2"]


def test_members_that_differ_are_left_out_where_they_do_not_fit() -> None:
    engine = cluster(node("n0", 4))
    leader, workers = ask("leader", 1, selector=on("disk", "ssd")), members(3)
    submit(engine, group("g", leader, *workers, min_available=3))
    assert engine.placed.keys() == {"m0", "m1", "m2"}
    assert placements(decide_after(engine, NodeJoined(node("n1", 1, labels={"disk": "ssd"})))) == {"leader": "n1"}


def test_members_that_need_each_other_are_found_together() -> None:
    engine = cluster(node("n0", 2), node("n1", 1))
    pair = (
        ask("m0", 1, labels={"app": "x"}, affinities=all_of(near_app("y"))),
        ask("m1", 1, labels={"app": "y"}, affinities=all_of(near_app("x"))),
        ask("m2", 1, affinities=all_of(apart_from_app("x"), near_app("nobody"))),
    )
    submit(engine, group("g", *pair, min_available=2))
    assert engine.placed == {"m0": "n0", "m1": "n0"}


def test_the_rest_follows_one_by_one_as_it_fits() -> None:
    engine = cluster(node("n0", 2))
    assert set(placements(submit(engine, gang(4, 2)))) == {"m0", "m1"}
    assert placements(decide_after(engine, NodeJoined(node("n1", 1)))) == {"m2": "n1"}
    assert placements(decide_after(engine, NodeJoined(node("n2", 1)))) == {"m3": "n2"}
    assert engine.waiting == ()


def test_below_its_minimum_a_group_places_at_once_what_it_lacks() -> None:
    engine = cluster(node("n0", 2), node("n1", 2))
    submit(engine, gang(4, 3))
    assert len(engine.placed) == 4
    decide_after(engine, NodeLeft("n1"))
    assert len(engine.placed) == 2, "one more would be three, but there is no room for it"
    assert len(placements(decide_after(engine, NodeJoined(node("n2", 1))))) == 1
    assert engine.is_pending("g"), "for its fourth member"


def test_a_group_that_lost_all_members_needs_its_minimum_again() -> None:
    engine = cluster(node("n0", 4))
    submit(engine, gang(4, 3))
    decide_after(engine, NodeLeft("n0"), NodeJoined(node("n1", 2)))
    assert engine.placed == {}
    assert len(placements(decide_after(engine, NodeJoined(node("n2", 1))))) == 3


def test_ended_members_count_as_placed() -> None:
    engine = cluster(node("n0", 2))
    submit(engine, gang(3, 2))
    assert placements(decide_after(engine, AskEnded("m0"))) == {"m2": "n0"}
    assert placements(decide_after(engine, AskLost("m2"))) == {"m2": "n0"}


@pytest.mark.parametrize("least", [None, 1])
def test_strict_packing_finds_no_place_beside_members_that_the_cluster_runs_on_two_nodes(least: int | None) -> None:
    engine = cluster(node("n0", 4), node("n1", 4))
    engine.apply(*(AskRunning(each, name) for each, name in zip(members(2), ("n0", "n1"), strict=True)))
    change(engine, gang(3, least, strategy=Strategy.STRICT_PACK))
    assert engine.waiting == ("g",)
    assert placements(decide_after(engine, AskRunning(members(2)[1], "n0"))) == {"m2": "n0"}


def test_the_rest_keeps_the_position_of_its_group_in_the_order() -> None:
    engine = cluster(node("n0", 2))
    submit(engine, gang(3, 2))
    decide_after(engine, ClockAdvanced(1))
    submit(engine, ask("later", 1))
    assert engine.waiting == ("g", "later")
    assert placements(decide_after(engine, NodeJoined(node("n1", 1)))) == {"m2": "n1"}


def test_an_alternative_is_taken_if_it_has_the_minimum() -> None:
    engine = cluster(node("n0", 2))
    wanted = group("g", *members(3, 2), fallbacks=((ask("a", 1), ask("b", 1), ask("c", 1)),), min_available=2)
    [placed, *_] = submit(engine, wanted)
    assert placed == GroupPlaced("g", 1, (("a", "n0"), ("b", "n0")))


@pytest.mark.parametrize("count", [1_500])
@pytest.mark.parametrize("mixed", [False, True], ids=["equal members", "a leader and workers"])
def test_a_large_gang_is_placed(count: int, mixed: bool) -> None:
    engine = cluster(*(node(f"n{index}", 50) for index in range(31)))
    leader = [ask("leader", 2)] * mixed
    submit(engine, group("g", *leader, *members(count), strategy=Strategy.ANY))
    assert len(engine.placed) == count + mixed


# A batch


def test_a_batch_counts_a_gang_as_placed_if_it_has_its_minimum() -> None:
    engine = with_solver(node("n0", 4), node("n1", 3))
    first = group("g", *members(5, **FLOW), min_available=3)
    second = group("h", *(ask(f"h{index}", 1, **FLOW) for index in range(5)), min_available=3)
    decisions = submit(engine, first, second)
    by_group = [sum(id.startswith(letter) for id in engine.placed) for letter in "mh"]
    assert sum(by_group) == 7
    assert min(by_group) >= 3
    assert {each.group for each in decisions if isinstance(each, GroupPlaced)} == {"g", "h"}


def test_a_batch_takes_back_a_gang_below_its_minimum() -> None:
    engine = with_solver(node("n0", 4))
    first = group("g", *members(4, **FLOW), min_available=3)
    second = group("h", *(ask(f"h{index}", 1, **FLOW) for index in range(4)), min_available=3)
    submit(engine, first, second, ask("w", 1, **FLOW))
    assert sum(id.startswith("m") for id in engine.placed) in (0, 3, 4)
    assert sum(id.startswith("h") for id in engine.placed) in (0, 3, 4)
    assert len(engine.placed) == 4


# Members come and go


def test_a_group_waits_for_members_until_it_has_its_minimum() -> None:
    engine = cluster(node("n0", 8))
    [waits] = waiting(change(engine, gang(1, 4)))
    assert (waits.asks, waits.more_members, waits.refusals) == (("g",), 3, ())
    assert event_of(waits, 0.0).text == "waiting for 3 more members"
    assert change(engine, gang(1, 4)) == [], "nothing has changed"
    [waits] = waiting(change(engine, gang(3, 4)))
    assert waits.more_members == 1
    assert len(placements(change(engine, gang(5, 4)))) == 5


def test_a_group_does_not_wait_for_a_smaller_minimum() -> None:
    engine = cluster(node("n0", 8))
    change(engine, gang(3, 4))
    assert len(placements(change(engine, gang(3, 3)))) == 3


def test_a_larger_minimum_does_not_move_what_is_placed() -> None:
    engine = cluster(node("n0", 3))
    change(engine, gang(3, 3))
    assert [each.more_members for each in waiting(change(engine, gang(3, 5)))] == []
    assert len(engine.placed) == 3
    assert placements(change(engine, gang(4, 5))) == {}
    assert placements(decide_after(engine, NodeJoined(node("n1", 4)))) == {}, "it lacks a member"
    assert set(placements(change(engine, gang(5, 5)))) == {"m3", "m4"}


def test_new_members_are_placed_as_they_fit() -> None:
    engine = cluster(node("n0", 3))
    change(engine, gang(2, 2))
    assert placements(change(engine, gang(4, 2))) == {"m2": "n0"}
    assert engine.is_pending("g")


def test_members_that_left_use_nothing() -> None:
    engine = cluster(node("n0", 4))
    change(engine, gang(4, 2))
    change(engine, gang(2, 2))
    assert engine.placed.keys() == {"m0", "m1"}
    assert free_of(engine) == {"n0": 2}
    assert placements(submit(engine, ask("m3", 1))) == {"m3": "n0"}, "its id is free again"


def test_a_member_that_left_does_not_count_as_placed() -> None:
    engine = cluster(node("n0", 4))
    change(engine, gang(4, 4))
    left = group("g", *members(4)[2:], ask("m4", 1), min_available=4)
    decide_after(engine, AskEnded("m0"), AskEnded("m1"), GroupChanged(left))
    assert engine.placed.keys() == {"m2", "m3"}
    [waits] = waiting(change(engine, replace(left, min_available=5)))
    assert waits.more_members == 2


def test_a_group_keeps_its_position_while_it_grows() -> None:
    engine = cluster(node("n0", 0))
    change(engine, gang(1, 3))
    decide_after(engine, ClockAdvanced(5))
    submit(engine, ask("later", 1))
    decide_after(engine, ClockAdvanced(9))
    change(engine, gang(3, 3))
    assert engine.waiting == ("g", "later")
    assert len(placements(decide_after(engine, NodeJoined(node("n1", 3))))) == 3


def test_pending_work_joins_a_group_and_running_work_keeps_its_place() -> None:
    engine = cluster(node("n0", 1), node("n1", 2))
    run(engine, members(2)[0], "n0")
    submit(engine, ask("m1", 9))
    assert set(placements(change(engine, gang(3, 3)))) == {"m1", "m2"}
    assert engine.placed["m0"] == "n0"
    assert engine.waiting == ()


def test_a_member_moves_to_another_group_with_its_place() -> None:
    engine = cluster(node("n0", 4))
    change(engine, gang(2, 2))
    other = group("h", members(1)[0], ask("h1", 1), min_available=2)
    assert placements(change(engine, other)) == {"h1": "n0"}
    assert engine.placed.keys() == {"m0", "m1", "h1"}
    decide_after(engine, GroupEnded("h"))
    assert engine.placed.keys() == {"m1"}
    assert [each.id for each in engine.groups["g"].all_members] == ["m1"]


@pytest.mark.parametrize(
    ("runs", "left"),
    [
        pytest.param((), ["m0", "m1"], id="none is taken, so the one with too few members is dropped"),
        pytest.param(("a1",), ["a1"], id="the one with too few members is taken"),
    ],
)
def test_a_group_with_alternatives_goes_on_when_a_member_moved_and_its_alternative_has_too_few(
    runs: tuple[str, ...], left: list[str]
) -> None:
    engine = cluster(node("n0", 1))
    change(engine, with_a_fallback(min_available=2))
    engine.apply(*(AskRunning(ask(id, 1), "n0") for id in runs))
    change(engine, group("h", ask("a0", 1), ask("h1", 1)))
    assert [each.id for each in engine.groups["g"].all_members] == left
    assert engine.is_pending("h")


def test_a_group_whose_last_member_moved_is_forgotten() -> None:
    engine = cluster(node("n0", 4))
    change(engine, gang(1, 2))
    change(engine, group("h", *members(1), min_available=1))
    assert list(engine.groups) == ["h"]
    assert engine.waiting == ()


def test_a_member_that_runs_again_after_its_end_is_placed_again_when_it_is_lost() -> None:
    engine = cluster(node("n0", 4))
    change(engine, gang(2, 2))
    decide_after(engine, AskEnded("m0"), AskRunning(members(1)[0], "n0"))
    assert placements(decide_after(engine, AskLost("m0"))) == {"m0": "n0"}


def test_a_member_that_ended_stays_dead_for_others_while_its_group_changes() -> None:
    """`near` can only be beside `m0`, and is told that this is hopeless."""
    near = ask("near", 1, affinities=all_of(Affinity(on("ask_id", "m0"))))
    engine = cluster(node("n0", 4))
    decide_after(engine, GroupChanged(gang(2, 2)), AskSubmitted(near), AskEnded("m0"))
    change(engine, gang(3, 2))
    [refusal] = engine.explain("near").verdicts[0].refusals
    assert isinstance(refusal.reason, TargetDead)


def test_a_group_of_which_all_members_have_ended_is_not_refused_at_its_deadline() -> None:
    engine = cluster(node("n0", 1))
    submit(engine, gang(2, None, deadline=5))
    assert decide_after(engine, AskEnded("m0"), AskEnded("m1"), ClockAdvanced(5)) == []
    assert (engine.waiting, list(engine.groups)) == ((), ["g"])


def with_a_fallback(**rest: Any) -> Group:
    """Two alternatives: m0 and m1, or a0 and a1."""
    return group("g", *members(2), fallbacks=((ask("a0", 1), ask("a1", 1)),), **rest)


def test_a_member_of_another_alternative_that_ended_does_not_bind_a_group_that_lost_all_its_places() -> None:
    engine = cluster(node("n0", 2))
    engine.apply(GroupChanged(with_a_fallback()), AskEnded("a0"))
    assert placements(engine.decide()).keys() == {"m0", "m1"}
    decide_after(engine, NodeLeft("n0"))
    assert placements(decide_after(engine, NodeJoined(node("n1", 1)))) == {"a1": "n1"}


def test_a_group_goes_on_with_the_alternative_whose_member_ended() -> None:
    """It is the second alternative before the change, and the first one after it."""
    engine = cluster(node("n0", 2))
    engine.apply(GroupChanged(with_a_fallback()), AskRunning(ask("a0", 1), "n0"), AskEnded("a0"))
    first, second = with_a_fallback().alternatives
    assert placements(change(engine, replace(with_a_fallback(), alternatives=(second, first)))) == {"a1": "n0"}
    assert not engine.is_pending("g")


@pytest.mark.parametrize("changed", [group("w", *members(1)), group("g", ask("h", 1))], ids=["the group", "a member"])
def test_a_group_with_the_id_of_other_work_is_ignored(changed: Group) -> None:
    engine = cluster(node("n0", 4))
    submit(engine, ask("w", 1), group("h", ask("h0", 1)))
    assert change(engine, changed) == []
    assert engine.placed.keys() == {"w", "h0"}


def test_members_that_run_already_are_the_beginning_of_their_gang() -> None:
    """After a restart in the middle of binding: the gang has begun, so it needs only what it lacks."""
    engine = cluster(node("n0", 4), node("n1", 4))
    decide_after(engine, GroupChanged(gang(4, 4)), AskRunning(members(1)[0], "n1"), AskRunning(members(2)[1], "n0"))
    assert len(engine.placed) == 4
    other = cluster(node("n0", 3))
    fill(other, "n0", 1)
    decide_after(other, *(AskRunning(each, "n0") for each in members(2)), GroupChanged(gang(4, 4)))
    assert len(other.placed) == 3, "the third and the fourth do not fit together"


# Time-outs


def begun(timeout_s: float | None) -> Engine:
    """Two of three members run, and there is no room for the third."""
    engine = cluster(node("n0", 2))
    engine.apply(*(AskRunning(each, "n0") for each in members(2)))
    change(engine, gang(3, 3, timeout_s=timeout_s))
    assert len(engine.placed) == 2
    return engine


def test_a_gang_below_its_minimum_gives_up_its_places_after_its_time_out() -> None:
    engine = begun(60)
    assert engine.next_moment == 60
    assert decide_after(engine, ClockAdvanced(59)) == []
    [released] = decide_after(engine, ClockAdvanced(60))
    assert released == GroupReleased("g", ("m0", "m1"))
    assert event_of(released, 60.0).text == "released after its time-out, below its minimum: m0, m1"
    assert engine.placed.keys() == {"m0", "m1"}, "until the cluster reports that they are lost"
    submit(engine, ask("w", 2))
    assert placements(decide_after(engine, AskLost("m0"), AskLost("m1"))) == {"w": "n0"}
    assert engine.waiting == ("g",)
    assert len(placements(decide_after(engine, NodeJoined(node("n1", 3))))) == 3


@pytest.mark.parametrize(
    ("timeout_s", "facts"),
    [
        pytest.param(None, (), id="without a time-out"),
        pytest.param(60, (NodeJoined(node("n1", 1)),), id="it has its minimum in time"),
        pytest.param(60, (GroupEnded("g"),), id="it ended"),
        pytest.param(60, (GroupChanged(gang(3, 2, timeout_s=60)),), id="its minimum became smaller"),
        pytest.param(60, (GroupChanged(gang(3, 3)),), id="its time-out was removed"),
        pytest.param(60, (AskLost("m0"), AskLost("m1")), id="nothing of it is placed"),
    ],
)
def test_nothing_is_released(timeout_s: float | None, facts: tuple[Any, ...]) -> None:
    engine = begun(timeout_s)
    decide_after(engine, ClockAdvanced(30), *facts)
    decisions = decide_after(engine, ClockAdvanced(100))
    assert not [each for each in decisions if isinstance(each, GroupReleased)]


def test_a_reservation_for_a_gang_ends_with_its_time_out_and_others_have_their_turn() -> None:
    engine = cluster(node("n0", 2), patience=10.0)
    busy = [fill(engine, "n0", 1), fill(engine, "n0", 1)]
    submit(engine, gang(2, 2, timeout_s=30))
    decide_after(engine, ClockAdvanced(1), AskSubmitted(ask("big", 2)))
    decide_after(engine, ClockAdvanced(10))
    decide_after(engine, AskSubmitted(ask("small", 1)), AskEnded(busy[0]))
    assert engine.placed.keys() == {busy[1]}, "the node is reserved for the gang"
    decide_after(engine, ClockAdvanced(39))
    assert engine.placed.keys() == {busy[1]}
    decide_after(engine, ClockAdvanced(40), AskEnded(busy[1]))
    assert engine.placed == {"m0": "n0", "m1": "n0"}, "the first in the order"


def test_after_its_time_out_a_gang_rests_before_its_next_reservation() -> None:
    engine = cluster(node("n0", 2), patience=10.0)
    fill(engine, "n0", 1)
    submit(engine, gang(2, 2, timeout_s=30))
    decide_after(engine, ClockAdvanced(10))
    for moment, is_reserved in ((39, True), (40, False), (69, False), (70, True), (99, True), (100, False)):
        decide_after(engine, ClockAdvanced(moment))
        fits = any(verdict.candidates for verdict in engine.explain(ask("?", 1)).verdicts)
        assert fits is not is_reserved, f"at {moment}"


# Why a gang is pending


@pytest.mark.parametrize(
    ("cpu", "changed", "sentence"),
    [
        pytest.param(8, gang(5, 8), "The group waits for 3 more members: it has 5 and needs 8.", id="too few members"),
        pytest.param(5, gang(8, 8), "5 of 8 members fit, and the group needs 8 at once.", id="some fit"),
        pytest.param(5, gang(8, None), "5 of 8 members fit, and the group needs 8 at once.", id="all are needed"),
        pytest.param(1, gang(8, 2), "1 of 8 members fits, and the group needs 2 at once.", id="one fits"),
        pytest.param(0, gang(2, 1), "0 of 2 members fit, and the group needs 1 at once.", id="none fits"),
        pytest.param(2, gang(3, 2), "2 of 3 members are placed and 0 more fit; the group needs 2.", id="the rest"),
    ],
)
def test_an_explanation_says_how_many_members_fit(cpu: float, changed: Group, sentence: str) -> None:
    engine = cluster(node("n0", cpu))
    change(engine, changed)
    assert str(engine.explain("g")).splitlines()[-1] == sentence


def test_a_gang_is_pending_because_of_members_that_count() -> None:
    """A member that fits nowhere is not the reason, if there are enough others."""
    engine = cluster(node("n0", 1))
    hopeless = ask("m9", 1, selector=on("disk", "ssd"))
    [waits] = waiting(submit(engine, group("g", hopeless, *members(3), min_available=2)))
    assert (waits.member, [each.reason.code for each in waits.refusals]) == ("m1", ["short-now"])
    [waits] = waiting(submit(engine, group("h", replace(hopeless, id="h9"), ask("h0", 1), min_available=2)))
    assert (waits.member, [each.reason.code for each in waits.refusals]) == ("h9", ["lacks-label"])


def test_what_fits_of_a_gang_that_is_only_asked_about() -> None:
    engine = cluster(node("n0", 5))
    explanation = engine.explain(gang(8, 6))
    assert explanation.quorum is not None
    assert (explanation.fits, explanation.quorum.fitting, explanation.quorum.more_members) == (False, 5, 0)
    assert engine.explain(gang(8, 5)).fits


# What a minimum is


@pytest.mark.parametrize(
    ("least", "timeout_s", "message"),
    [
        (0, None, "group 'g' needs a whole number as min_available, for example 2, not 0"),
        (True, None, "group 'g' needs a whole number as min_available, for example 2, not True"),
        (None, 0.0, "group 'g' needs a time-out above 0 seconds, for example 60, not 0.0"),
    ],
)
def test_a_minimum_and_a_time_out_are_positive(least: Any, timeout_s: float | None, message: str) -> None:
    with pytest.raises(Invalid, match=message):
        gang(2, least, timeout_s=timeout_s)


def test_every_alternative_has_the_minimum() -> None:
    with pytest.raises(Invalid, match="an alternative with 1 members, but min_available is 2"):
        group("g", *members(3), fallbacks=((ask("a", 1),),), min_available=2)


def test_a_plain_group_is_never_released() -> None:
    engine = cluster(node("n0", 2))
    assert place(engine, group("g", *members(2))) == ["n0", "n0"]
    assert engine.next_moment is None
