"""Amounts: exact, per device for device resources, with never-fits and short-now as different reasons."""

from __future__ import annotations

from typing import Any

import pytest

from stead.engine.decisions import Placed
from stead.engine.engine import Engine
from stead.engine.facts import AskEnded, AskLost, NodeJoined, NodeLabelled, NodeLeft, NodeResized
from stead.engine.reasons import NeverFits, ShortOf
from stead.errors import Invalid
from stead.language.asks import Ask, Choice, PolicyName, Preference
from stead.language.labels import Labels
from stead.language.nodes import Node
from stead.language.resources import DEVICES, UNIT, Resources
from tests.behaviour import (
    amounts,
    ask,
    candidates,
    cluster,
    codes,
    decide_after,
    fill,
    free_of,
    node,
    on,
    place,
    placements,
    refusals,
    reported,
    run,
    submit,
)


def gpus(engine: Engine, *shares: float, where: str = "n0") -> None:
    """Work with these shares of GPUs runs on the node, as g0, g1, ..."""
    for index, share in enumerate(shares):
        run(engine, ask(f"g{index}", gpu=share), where)


# Never fits, or not now


def test_too_small_and_full_now_are_different_reasons() -> None:
    engine = cluster(node("small", 1), node("full", 4), node("free", 4))
    fill(engine, "full", 3)
    need = 2 * UNIT
    assert refusals(engine, ask("w", 2)) == [(NeverFits("CPU", need), 1, 1), (ShortOf("CPU", need), 1, 1)]
    assert candidates(engine, ask("w", 2)) == ("free",)


def test_a_resource_that_a_node_does_not_have_never_fits() -> None:
    engine = cluster(node("n0", 4), node("n1", 4, disk=1))
    wanted = Ask.of("w", {"disk": 1})
    assert refusals(engine, wanted) == [(NeverFits("disk", UNIT), 1, 1)]
    assert candidates(engine, wanted) == ("n1",)


def test_each_resource_is_a_reason_of_its_own_in_the_order_of_names() -> None:
    engine = cluster(node("n0", 1, memory=100, disk=5))
    fill(engine, "n0", 1)
    wanted = Ask.of("w", {"memory": 200, "CPU": 1, "disk": 9})
    assert refusals(engine, wanted) == [
        (NeverFits("disk", 9 * UNIT), 1, 0),
        (NeverFits("memory", 200 * UNIT), 0, 0),
        (ShortOf("CPU", UNIT), 0, 0),
    ]


def test_what_never_fits_is_not_also_short() -> None:
    engine = cluster(node("n0", 1))
    fill(engine, "n0", 1)
    assert refusals(engine, ask("w", 2)) == [(NeverFits("CPU", 2 * UNIT), 1, 1)]


def test_an_amount_that_just_fits_fits() -> None:
    engine = cluster(node("n0", 4))
    fill(engine, "n0", 3)
    assert candidates(engine, ask("w", 1)) == ("n0",)
    assert candidates(engine, ask("w", 1.0001)) == ()
    assert candidates(cluster(node("n0", 4)), ask("w", 4)) == ("n0",)
    assert codes(cluster(node("n0", 4)), ask("w", 4.0001)) == ["never-fits"]


def test_an_ask_for_nothing_fits_a_node_with_nothing() -> None:
    assert place(cluster(node("n0", 0)), ask("w")) == ["n0"]


# Exactness


def test_ten_tenths_are_one() -> None:
    engine = cluster(node("n0", 1))
    crowd = [ask(f"w{index}", 0.1) for index in range(11)]
    assert place(engine, *crowd) == ["n0"] * 10 + [None]
    assert free_of(engine) == {"n0": 0}
    decide_after(engine, AskEnded("w10"), *(AskEnded(f"w{index}") for index in range(10)))
    assert engine.free("n0") == {"CPU": UNIT}


def test_three_tenths_are_as_much_as_one_tenth_three_times() -> None:
    engine = cluster(node("n0", 0.3))
    assert place(engine, *(ask(f"w{index}", 0.1) for index in range(3))) == ["n0"] * 3
    assert engine.free("n0")["CPU"] == 0


@pytest.mark.parametrize("size", ["512Gi", "24Ti", "64Ti"])
def test_memory_of_large_nodes_does_not_overflow(size: str) -> None:
    engine = cluster(node("n0", memory=size), node("n1", memory=size))
    total = engine.nodes["n0"].capacity["memory"]
    half = Resources({"memory": total // 2})
    crowd = [Ask(f"w{index}", (Choice(half),), policy=PolicyName.SPREAD) for index in range(2)]
    assert place(engine, *crowd) == ["n0", "n1"]
    assert engine.free("n0")["memory"] == total - total // 2
    assert place(engine, ask("rest", memory=size)) == [None]
    assert codes(engine, ask("rest", memory=size)) == ["short-now"]


@pytest.mark.parametrize("used", range(1, 8))
def test_the_less_loaded_of_two_large_nodes_is_found_to_the_last_unit(used: int) -> None:
    total = 2**62
    engine = cluster()
    engine.apply(*(NodeJoined(Node(f"n{index}", Resources({"memory": total}))) for index in range(2)))
    for where, units in (("n0", total // 8 * used + total // 10_000), ("n1", total // 8 * used)):
        run(engine, Ask(f"on-{where}", (Choice(Resources({"memory": units})),)), where)
    wanted = Ask("w", (Choice(Resources({"memory": 1})),), policy=PolicyName.SPREAD)
    assert place(engine, wanted) == ["n1"]


# Devices


@pytest.mark.parametrize("name", sorted(DEVICES))
def test_two_half_free_devices_do_not_make_one(name: str) -> None:
    engine = cluster(Node.of("n0", {name: 2}))
    for index in range(2):
        run(engine, Ask.of(f"half-{index}", {name: 0.6}), "n0")
    assert engine.free("n0")[name] == 8000
    assert refusals(engine, Ask.of("w", {name: 0.5})) == [(ShortOf(name, 5000), 1, 1)]
    assert candidates(engine, Ask.of("w", {name: 0.4})) == ("n0",)
    assert refusals(engine, Ask.of("w", {name: 1})) == [(ShortOf(name, UNIT), 1, 1)]


def test_other_resources_are_not_devices() -> None:
    engine = cluster(node("n0", 2))
    fill(engine, "n0", 0.6)
    fill(engine, "n0", 0.6)
    assert candidates(engine, ask("w", 0.8)) == ("n0",)
    assert candidates(cluster(node("n0", 1.5)), ask("w", 1.5)) == ("n0",)


@pytest.mark.parametrize(
    ("running", "wanted", "fits"),
    [
        pytest.param((), 3, True, id="three free devices are three"),
        pytest.param((), 4, False, id="three devices are never four"),
        pytest.param((0.1,), 3, False, id="a device with a share taken is not whole"),
        pytest.param((0.1,), 2, True, id="the others still are"),
        pytest.param((0.1, 0.9), 2, True, id="shares that add up to one lie on one device"),
        pytest.param((0.5, 0.6), 2, False, id="shares that do not fit one device lie on two"),
        pytest.param((0.5, 0.6), 1, True, id="which leaves one whole"),
        pytest.param((1, 0.5, 0.6), 0.5, True, id="the rest of a shared device is a share"),
        pytest.param((1, 0.5, 0.6), 0.6, False, id="but no share is larger than the largest rest"),
        pytest.param((2, 0.7), 0.3, True, id="a share that just fits fits"),
        pytest.param((2, 0.7), 0.3001, False, id="and a unit more does not"),
        pytest.param((3,), 0.1, False, id="whole devices have no rest"),
    ],
)
def test_shares_and_whole_devices(running: tuple[float, ...], wanted: float, fits: bool) -> None:
    engine = cluster(node("n0", GPU=3))
    gpus(engine, *running)
    assert bool(candidates(engine, ask("w", gpu=wanted))) is fits


def test_a_share_goes_to_the_fullest_device_that_suffices() -> None:
    engine = cluster(node("n0", GPU=3))
    gpus(engine, 0.5, 0.7)
    run(engine, ask("w", gpu=0.3), "n0")
    assert candidates(engine, ask("x", gpu=0.5)) == ("n0",)
    run(engine, ask("x", gpu=0.5), "n0")
    assert candidates(engine, ask("y", gpu=1)) == ("n0",)
    assert engine.free("n0")["GPU"] == UNIT


def test_among_equally_full_devices_the_first_takes_the_share_and_whole_ones_come_from_the_front() -> None:
    engine = cluster(node("n0", GPU=3))
    gpus(engine, 0.5, 1)
    engine.apply(AskEnded("g0"))
    engine.apply(NodeResized("n0", amounts(CPU=4, GPU=2)))
    assert candidates(engine, ask("w", gpu=1)) == ("n0",)
    run(engine, ask("w", gpu=1), "n0")
    assert codes(engine, ask("x", gpu=1)) == ["short-now"]


@pytest.mark.parametrize("ending", [AskEnded("g1"), AskLost("g1")], ids=["it ended", "it lost its place"])
def test_ended_work_frees_its_devices(ending: Any) -> None:
    engine = cluster(node("n0", GPU=2))
    gpus(engine, 0.6, 0.6)
    assert codes(engine, ask("w", gpu=1)) == ["short-now"]
    engine.apply(ending)
    assert candidates(engine, ask("w", gpu=1)) == ("n0",)
    assert candidates(engine, ask("w", gpu=0.4)) == ("n0",)


def test_never_fits_looks_at_the_number_of_devices_and_short_now_at_their_shares() -> None:
    engine = cluster(node("n0", GPU=1), node("n1", GPU=2), node("n2"))
    gpus(engine, 0.5, where="n1")
    assert refusals(engine, ask("w", gpu=2)) == [(NeverFits("GPU", 2 * UNIT), 2, 2), (ShortOf("GPU", 2 * UNIT), 1, 1)]
    assert refusals(engine, ask("w", gpu=0.6)) == [(NeverFits("GPU", 6000), 1, 1)]


def test_a_batch_of_shares_fills_devices_as_one_by_one() -> None:
    engine = cluster(node("n0", 9, GPU=2), node("n1", 9, GPU=1))
    assert place(engine, *(ask(f"w{index}", gpu=0.4) for index in range(7))).count(None) == 1
    assert free_of(engine, "GPU") == {"n0": 0.4, "n1": 0.2}


@pytest.mark.parametrize("amount", [1.5, 2.5])
def test_more_than_one_device_is_asked_for_in_whole_devices(amount: float) -> None:
    with pytest.raises(Invalid, match="above 1 it must be whole devices"):
        ask("w", gpu=amount)


def test_a_node_cannot_have_part_of_a_device() -> None:
    with pytest.raises(Invalid, match="give whole devices"):
        node("n0", GPU=1.5)


@pytest.mark.parametrize(("capacity", "devices"), [(0.5, 0), (1.5, 1)])
def test_a_part_of_a_device_reported_later_does_not_count(capacity: float, devices: int) -> None:
    engine = cluster(node("n0", GPU=2))
    engine.apply(NodeResized("n0", amounts(GPU=capacity)))
    assert engine.free("n0").get("GPU", 0) == devices * UNIT
    assert bool(candidates(engine, ask("w", gpu=0.5))) is bool(devices)
    engine.apply(NodeJoined(node("n1")), NodeResized("n1", amounts(GPU=capacity)))
    assert candidates(engine, ask("w", gpu=1)) == tuple(["n0", "n1"][: 2 * devices])


# What the cluster reports wins


@pytest.mark.parametrize("work", [ask("w", 3), ask("w", gpu=2), ask("w", gpu=0.6), ask("w", gpu=1)], ids=repr)
def test_more_than_fits_may_run_and_is_given_back_in_full(work: Ask) -> None:
    engine = cluster(node("n0", 2, GPU=1))
    run(engine, ask("base", 1, gpu=0.5), "n0")
    before = engine.free("n0")
    run(engine, work, "n0")
    assert engine.placed == {"base": "n0", "w": "n0"}
    assert codes(engine, ask("x", 1, gpu=0.5)) != []
    engine.apply(AskEnded("w"))
    assert engine.free("n0") == before
    assert candidates(engine, ask("x", 1, gpu=0.5)) == ("n0",)
    engine.apply(AskEnded("base"))
    assert candidates(engine, ask("x", 2, gpu=1)) == ("n0",)


def test_devices_may_run_where_none_are_known() -> None:
    engine = cluster(node("n0"))
    run(engine, ask("w", gpu=1), "n0")
    assert engine.placed == {"w": "n0"}
    engine.apply(AskEnded("w"), NodeResized("n0", amounts(GPU=1)))
    assert candidates(engine, ask("x", gpu=1)) == ("n0",)


# A node that changes its size


def test_a_node_that_grows_takes_more() -> None:
    engine = cluster(node("n0", 1))
    assert reported(submit(engine, ask("w", 2))) == {"w": ["never-fits"]}
    assert placements(decide_after(engine, NodeResized("n0", amounts(CPU=2)))) == {"w": "n0"}


def test_a_node_that_shrinks_below_what_is_in_use_evicts_no_work_and_takes_none() -> None:
    engine = cluster(node("n0", 4))
    place(engine, *(ask(f"w{index}", 1) for index in range(4)))
    assert decide_after(engine, NodeResized("n0", amounts(CPU=2))) == []
    assert free_of(engine) == {"n0": -2}
    assert codes(engine, ask("x", 1)) == ["short-now"]
    engine.apply(AskEnded("w0"), AskEnded("w1"))
    assert codes(engine, ask("x", 1)) == ["short-now"]
    engine.apply(AskEnded("w2"))
    assert candidates(engine, ask("x", 1)) == ("n0",)


def test_a_node_that_loses_a_device_in_use_gets_it_back_with_its_work() -> None:
    engine = cluster(node("n0", GPU=2))
    gpus(engine, 1, 1)
    engine.apply(NodeResized("n0", amounts(GPU=1)))
    assert codes(engine, ask("w", gpu=1)) == ["short-now"]
    assert codes(engine, ask("w", gpu=2)) == ["never-fits"]
    engine.apply(NodeResized("n0", amounts(GPU=2)))
    engine.apply(AskEnded("g1"))
    assert candidates(engine, ask("w", gpu=1)) == ("n0",)
    engine.apply(AskEnded("g0"))
    assert candidates(engine, ask("w", gpu=2)) == ("n0",)


def test_a_row_of_the_table_used_by_another_node_before_is_clean() -> None:
    engine = cluster(node("n0", 4, GPU=2))
    gpus(engine, 0.5, 1)
    engine.apply(NodeLeft("n0"), AskEnded("g0"), AskEnded("g1"), NodeJoined(node("n1", 2, GPU=1)))
    assert engine.free("n1") == {"CPU": 2 * UNIT, "GPU": UNIT}
    assert candidates(engine, ask("w", 2, gpu=1)) == ("n1",)
    assert codes(engine, ask("w", gpu=2)) == ["never-fits"]


def test_the_table_grows_with_the_cluster() -> None:
    engine = cluster(node("first", 2, GPU=2))
    run(engine, ask("w", 1, gpu=0.5), "first")
    engine.apply(*(NodeJoined(node(f"n{index}", 2, GPU=1, labels={"late": "yes"})) for index in range(150)))
    assert engine.free("first") == {"CPU": UNIT, "GPU": 15000}
    assert len(candidates(engine, ask("x", 2, gpu=1))) == 150
    assert candidates(engine, ask("x", gpu=2)) == ()
    assert place(engine, ask("x", 1, gpu=0.5, prefers=(Preference(on("node_id", "n149")),))) == ["n149"]


# Fallback choices


def choosing(id: str, *choices: Choice, **rest: Any) -> Ask:
    return Ask(id, choices, **rest)


BIG_A = Choice(amounts(CPU=2), on("zone", "a"))
SMALL_B = Choice(amounts(CPU=1), on("zone", "b"))


def test_a_later_choice_is_taken_when_no_node_of_an_earlier_one_is_available() -> None:
    engine = cluster(node("a", 2, labels={"zone": "a"}), node("b", 2, labels={"zone": "b"}))
    decisions = submit(engine, *(choosing(f"w{index}", BIG_A, SMALL_B) for index in range(4)))
    assert decisions[:3] == [Placed("w0", "a", 0), Placed("w1", "b", 1), Placed("w2", "b", 1)]
    assert reported(decisions) == {"w3": ["lacks-label", "short-now"]}
    assert free_of(engine) == {"a": 0, "b": 0}


def test_a_choice_takes_its_own_amounts_and_gives_them_back() -> None:
    engine = cluster(node("b", 2, labels={"zone": "b"}))
    assert submit(engine, choosing("w", BIG_A, SMALL_B)) == [Placed("w", "b", 1)]
    assert free_of(engine) == {"b": 1}
    decide_after(engine, AskEnded("w"))
    assert free_of(engine) == {"b": 2}


def test_an_available_node_of_an_earlier_choice_beats_a_preferred_one_of_a_later() -> None:
    engine = cluster(node("b", labels={"zone": "b"}), node("a", labels={"zone": "a"}))
    assert place(engine, choosing("w", BIG_A, SMALL_B, prefers=(Preference(on("zone", "b")),))) == ["a"]


def test_a_waiting_ask_takes_whichever_choice_comes_free_first() -> None:
    engine = cluster(node("a", 2, labels={"zone": "a"}), node("b", 2, labels={"zone": "b"}))
    on_a, on_b = fill(engine, "a", 2), fill(engine, "b", 2)
    submit(engine, choosing("w", BIG_A, SMALL_B), choosing("x", BIG_A, SMALL_B))
    assert decide_after(engine, AskEnded(on_b))[:1] == [Placed("w", "b", 1)]
    assert engine.placed["x"] == "b"
    assert decide_after(engine, AskEnded(on_a)) == []


def test_work_placed_by_a_fallback_is_placed_by_its_first_choice_when_it_starts_again() -> None:
    engine = cluster(node("b", labels={"zone": "b"}))
    submit(engine, choosing("w", BIG_A, SMALL_B))
    assert decide_after(engine, NodeJoined(node("a", labels={"zone": "a"}))) == []
    assert decide_after(engine, AskLost("w")) == [Placed("w", "a", 0)]


@pytest.mark.parametrize(
    ("choices", "reasons"),
    [
        pytest.param((BIG_A, SMALL_B), ["lacks-label", "short-now"], id="when none is feasible, those of the first"),
        pytest.param(
            (BIG_A, Choice(amounts(CPU=4))), ["short-now"], id="else of the first that only has to wait for room"
        ),
        pytest.param(
            (BIG_A, Choice(amounts(CPU=9)), Choice(amounts(CPU=4))), ["short-now"], id="not of one that never fits"
        ),
        pytest.param(
            (BIG_A, Choice(amounts(CPU=4, memory=100))),
            ["short-now", "short-now"],
            id="also when it is short of two things at once",
        ),
    ],
)
def test_the_reasons_shown_are_those_of_the_choice_that_may_come_free(
    choices: tuple[Choice, ...], reasons: list[str]
) -> None:
    engine = cluster(node("n0", 4, memory=100))
    run(engine, ask("full", 4, memory=100), "n0")
    assert reported(submit(engine, choosing("w", *choices))) == {"w": reasons}


def test_reasons_follow_the_choice_that_becomes_feasible() -> None:
    engine = cluster(node("n0", 2))
    fill(engine, "n0", 2)
    assert reported(submit(engine, choosing("w", BIG_A, SMALL_B))) == {"w": ["lacks-label", "short-now"]}
    assert reported(decide_after(engine, NodeLabelled("n0", Labels({"zone": "b"})))) == {"w": ["short-now"]}


def test_an_ask_needs_at_least_one_choice() -> None:
    with pytest.raises(Invalid, match="has no choice"):
        Ask("w", ())


def test_far_more_than_fits_is_counted_exactly() -> None:
    """Clusters report what runs, however absurd: nothing wraps around, and nothing is lost when it ends."""
    engine = cluster(node("n0", 4))
    huge = 2**62 // 10_000
    for number in range(9):
        run(engine, ask(f"huge-{number}", huge), "n0")
    assert "n0" not in engine.candidates(ask("w", 1))[0]
    assert not engine.explain(ask("w", 1)).fits
    for number in range(9):
        engine.apply(AskEnded(f"huge-{number}"))
    assert engine.free("n0")["CPU"] == 4 * UNIT
