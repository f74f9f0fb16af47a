"""The smallest change that would make pending work fit: fewest edits, cheapest kind first, and tested on a fork."""

from __future__ import annotations

import pytest

from stead.engine.engine import Engine
from stead.engine.explain.smallest_change import (
    AddCapacity,
    AddLabel,
    Change,
    Drop,
    Edit,
    FreeUp,
    Tolerate,
    Uncordon,
    Widen,
)
from stead.engine.facts import AskEnded, NodeDrained, NodeJoined, NodeResized
from stead.language.asks import Ask, Choice, Spread
from stead.language.labels import NOWHERE, Requirement, Selector
from stead.language.resources import UNIT
from stead.language.taints import Effect
from tests.behaviour import (
    all_of,
    amounts,
    apart_from_app,
    ask,
    cluster,
    decide_after,
    fill,
    near,
    near_app,
    node,
    on,
    placements,
    run,
    submit,
    taint,
    zones,
)

X = taint("x")
WEB = {"app": "web"}


def change(engine: Engine, work: Ask) -> Change:
    found = engine.explain(work).change
    assert found is not None
    return found


def edits(engine: Engine, work: Ask) -> tuple[Edit, ...]:
    return change(engine, work).edits


def wanting(*requirements: Requirement) -> Ask:
    return ask("w", 1, selector=Selector.all_of(*requirements))


IN_B, EXISTS, NOT_A = Requirement.is_in("zone", "b"), Requirement.exists("zone"), Requirement.not_in("zone", "a", "c")
NO_ZONE, OVER_9, BELOW_3 = (
    Requirement.does_not_exist("zone"),
    Requirement.greater_than("n", 9),
    Requirement.less_than("n", 3),
)


@pytest.mark.parametrize(
    ("labels", "requirement", "edit"),
    [
        pytest.param({"zone": "a"}, IN_B, Widen(IN_B, "a"), id="In lets one more value in"),
        pytest.param({}, IN_B, Drop(IN_B), id="In is dropped where the label is missing"),
        pytest.param({"zone": "a"}, NOT_A, Widen(NOT_A, "a"), id="NotIn shuns one value less"),
        pytest.param({}, EXISTS, Drop(EXISTS), id="Exists is dropped"),
        pytest.param({"zone": "a"}, NO_ZONE, Drop(NO_ZONE), id="DoesNotExist is dropped"),
        pytest.param({"n": "5"}, OVER_9, Drop(OVER_9), id="Gt is dropped"),
        pytest.param({"n": "5"}, BELOW_3, Drop(BELOW_3), id="Lt is dropped"),
    ],
)
def test_a_requirement_is_loosened(labels: dict[str, str], requirement: Requirement, edit: Edit) -> None:
    assert change(cluster(node("n0", labels=labels)), wanting(requirement)) == Change((edit,), 1)


def test_the_value_most_nodes_have_is_the_one_to_allow() -> None:
    assert change(zones("a", "c", "c"), wanting(IN_B)) == Change((Widen(IN_B, "c"),), 2)
    assert change(zones("c", "a"), wanting(IN_B)) == Change((Widen(IN_B, "a"),), 1)


def test_a_selector_of_several_terms_is_dropped_as_a_whole() -> None:
    either = Selector.any_of(IN_B, Requirement.exists("rack"))
    assert change(zones("a"), ask("w", 1, selector=either)) == Change((Drop(either),), 1)
    assert change(zones("a"), ask("w", 1, selector=NOWHERE)) == Change((Drop(NOWHERE),), 1)


def test_an_affinity_is_dropped() -> None:
    engine = zones("a")
    run(engine, ask("web", labels=WEB), "n0")
    assert edits(engine, ask("w", 1, affinities=all_of(near("x")))) == (Drop(near("x")),)
    assert edits(engine, ask("w", 1, affinities=all_of(apart_from_app("web")))) == (Drop(apart_from_app("web")),)


def test_only_the_affinity_in_the_way_is_dropped() -> None:
    engine = zones("a", "b")
    run(engine, ask("web", labels=WEB), "n0")
    wanted = ask("w", 1, affinities=all_of(near_app("web"), near("x")))
    assert change(engine, wanted) == Change((Drop(near("x")),), 1)


def test_alternatives_are_dropped_together() -> None:
    either = ((near("x"),), (near("y"),))
    assert edits(zones("a"), ask("w", 1, affinities=either)) == (Drop(either),)


def test_a_spread_is_dropped() -> None:
    engine = zones("a", "b")
    engine.apply(NodeDrained("n1"))
    run(engine, ask("web", labels=WEB), "n0")
    spread = Spread("zone", on("app", "web"))
    assert edits(engine, ask("w", 1, labels=WEB, spreads=(spread,))) == (Drop(spread),)


def test_a_taint_is_tolerated_and_the_one_on_most_nodes_first() -> None:
    y = taint("y", "1", Effect.NO_EXECUTE)
    engine = cluster(node("n0", taints=[X]), node("n1", taints=[y]), node("n2", taints=[y]))
    assert change(engine, ask("w", 1)) == Change((Tolerate(y),), 2)


def test_two_taints_on_one_node_are_two_edits_and_one_on_another_is_one() -> None:
    y = taint("y")
    engine = cluster(node("n0", taints=[X, y]), node("n1", taints=[y]))
    assert change(engine, ask("w", 1)) == Change((Tolerate(y),), 1)


@pytest.mark.parametrize(
    ("used", "need", "lacking"), [(4, 1, 1), (3, 2, 1), (3.5, 1, 0.5)], ids=["all", "one more", "a fraction"]
)
def test_just_enough_is_freed(used: float, need: float, lacking: float) -> None:
    engine = cluster(node("n0", 4))
    fill(engine, "n0", used)
    assert change(engine, ask("w", need)) == Change((FreeUp("n0", "CPU", round(lacking * UNIT)),), 1)


def test_the_node_that_lacks_least_is_named() -> None:
    engine = cluster(node("n0", 4), node("n1", 4), node("n2", 4))
    for id, used in (("n0", 4), ("n1", 3), ("n2", 3.5)):
        fill(engine, id, used)
    assert edits(engine, ask("w", 2)) == (FreeUp("n1", "CPU", UNIT),)
    assert edits(cluster(node("n0", 1), node("n1", 3), node("n2", 2)), ask("w", 5)) == (
        AddCapacity("n1", "CPU", 2 * UNIT),
    )


@pytest.mark.parametrize(
    ("shares", "need", "lacking"),
    [
        pytest.param((0.6, 0.7), 1, 0.6, id="for a whole device, what is used of the emptiest one"),
        pytest.param((0.6, 0.7), 2, 1.3, id="for two, what is used of both"),
        pytest.param((0.6, 0.7), 0.5, 0.1, id="for a share, what the emptiest lacks"),
        pytest.param((1, 0.7), 1, 0.7, id="a shared device before one in full use"),
    ],
)
def test_just_enough_of_devices_is_freed(shares: tuple[float, ...], need: float, lacking: float) -> None:
    engine = cluster(node("n0", GPU=2))
    for index, share in enumerate(shares):
        run(engine, ask(f"g{index}", gpu=share), "n0")
    assert change(engine, ask("w", gpu=need)) == Change((FreeUp("n0", "GPU", round(lacking * UNIT)),), 1)


@pytest.mark.parametrize(
    ("devices", "used", "need", "added"),
    [
        pytest.param(0, 0, 1, 1, id="a device where there is none"),
        pytest.param(0, 0, 0.5, 1, id="a whole device for a share"),
        pytest.param(1, 0, 2, 1, id="one more beside a free one"),
        pytest.param(1, 0.5, 2, 2, id="two more beside one in use"),
    ],
)
def test_just_enough_devices_are_added(devices: int, used: float, need: float, added: int) -> None:
    engine = cluster(node("n0", GPU=devices))
    if used:
        run(engine, ask("share", gpu=used), "n0")
    assert change(engine, ask("w", gpu=need)) == Change((AddCapacity("n0", "GPU", added * UNIT),), 1)


def test_capacity_is_added_for_what_is_in_use_too() -> None:
    engine = cluster(node("n0", 4))
    fill(engine, "n0", 3)
    assert edits(engine, ask("w", 6)) == (AddCapacity("n0", "CPU", 5 * UNIT),)


def test_a_draining_node_is_uncordoned() -> None:
    assert edits(cluster(node("n0", draining=True)), ask("w", 1)) == (Uncordon("n0"),)


# Which of several


ORDERED: list[tuple[str, Edit]] = [
    ("tainted", Tolerate(X)),
    ("elsewhere", Widen(IN_B, "a")),
    ("full", FreeUp("full", "CPU", UNIT)),
    ("small", AddCapacity("small", "CPU", UNIT)),
    ("drained", Uncordon("drained")),
]


@pytest.mark.parametrize("first", range(len(ORDERED)), ids=[type(edit).__name__ for _, edit in ORDERED])
def test_among_single_edits_the_cheaper_kind_is_offered(first: int) -> None:
    """In the order of the table: the cheapest kind of edit comes first."""
    nodes = {
        "tainted": node("tainted", 1, labels={"zone": "b"}, taints=[X]),
        "elsewhere": node("elsewhere", 1, labels={"zone": "a"}),
        "full": node("full", 1, labels={"zone": "b"}),
        "small": node("small", 0, labels={"zone": "b"}),
        "drained": node("drained", 1, labels={"zone": "b"}, draining=True),
    }
    names = [name for name, _ in ORDERED[first:]]
    engine = cluster(*(nodes[name] for name in reversed(names)))
    if "full" in names:
        fill(engine, "full", 1)
    assert change(engine, wanting(IN_B)) == Change((ORDERED[first][1],), 1)


def test_dropping_a_condition_comes_after_freeing_and_before_adding_capacity() -> None:
    engine = cluster(node("small", 0, labels={"zone": "b"}), node("bare", 1))
    assert edits(engine, wanting(IN_B)) == (Drop(IN_B),)
    engine.apply(NodeJoined(node("full", 1, labels={"zone": "b"})))
    fill(engine, "full", 1)
    assert edits(engine, wanting(IN_B)) == (FreeUp("full", "CPU", UNIT),)


def test_one_edit_of_any_kind_is_smaller_than_two() -> None:
    engine = cluster(node("n0", taints=[X], labels={"zone": "a"}), node("n1", labels={"zone": "b"}, draining=True))
    assert edits(engine, wanting(IN_B)) == (Uncordon("n1"),)


def test_of_equally_small_changes_the_one_that_opens_more_nodes_wins() -> None:
    engine = cluster(node("n0", taints=[X]), node("n1", taints=[taint("y")]), node("n2", taints=[taint("y")]))
    assert change(engine, ask("w", 1)) == Change((Tolerate(taint("y")),), 2)


def test_several_obstacles_of_one_node_are_removed_together() -> None:
    engine = cluster(node("n0", 1, taints=[X], labels={"zone": "a"}, draining=True))
    found = change(engine, ask("w", 2, selector=Selector.all_of(IN_B)))
    assert set(found.edits) == {Uncordon("n0"), Widen(IN_B, "a"), Tolerate(X), AddCapacity("n0", "CPU", UNIT)}


def test_the_change_names_the_choice_that_it_opens() -> None:
    choices = (Choice(amounts(CPU=1), Selector.all_of(IN_B, OVER_9)), Choice(amounts(CPU=5)))
    assert change(zones("a"), Ask("w", choices)) == Change((AddCapacity("n0", "CPU", UNIT),), 1, choice=1)


def test_what_other_work_keeps_away_cannot_be_changed() -> None:
    engine = zones("a")
    run(engine, ask("shy", affinities=all_of(apart_from_app("web", symmetric=True))), "n0")
    assert engine.explain(ask("w", 1, labels=WEB)).change is None


def test_there_is_no_change_without_nodes_and_none_is_needed_where_it_fits() -> None:
    assert cluster().explain(ask("w", 1)).change is None
    assert zones("a").explain(ask("w", 1)).change is None


# One label that removes several obstacles


def test_one_label_may_be_enough_where_several_obstacles_speak_of_it() -> None:
    engine = cluster(node("n0"))
    wanted = wanting(EXISTS, Requirement.not_in("zone", "c"), Requirement.is_in("zone", "a", "c"))
    assert edits(engine, wanted) == (AddLabel("n0", "zone", "a"),)


def test_a_label_that_brings_the_node_into_the_domain_of_other_work() -> None:
    engine = cluster(node("n0", 0, labels={"zone": "a"}, draining=True), node("n1"))
    run(engine, ask("web", labels=WEB), "n0")
    wanted = ask("w", 1, selector=Selector.all_of(EXISTS), affinities=all_of(near_app("web", "zone")))
    assert edits(engine, wanted) == (AddLabel("n1", "zone", "a"),)


@pytest.mark.parametrize(
    ("requirements", "value"),
    [
        pytest.param((Requirement.exists("n"), OVER_9), "10", id="just above a bound"),
        pytest.param((Requirement.exists("n"), BELOW_3), "2", id="just below a bound"),
        pytest.param((Requirement.exists("n"), Requirement.not_in("n", "x"), Requirement.exists("n")), None, id="any"),
    ],
)
def test_the_value_of_the_label_meets_every_requirement(
    requirements: tuple[Requirement, ...], value: str | None
) -> None:
    engine = cluster(node("n0"))
    found = edits(engine, wanting(*requirements))
    if value is None:
        assert found == (Drop(Requirement.exists("n")),)
    else:
        assert found == (AddLabel("n0", "n", value),)


def test_a_label_that_the_node_has_is_never_changed() -> None:
    engine = cluster(node("n0", labels={"zone": "x"}))
    wanted = wanting(Requirement.is_in("zone", "a"), Requirement.not_in("zone", "x"))
    assert set(edits(engine, wanted)) == {
        Widen(Requirement.is_in("zone", "a"), "x"),
        Widen(Requirement.not_in("zone", "x"), "x"),
    }


def test_the_identity_of_a_node_is_never_invented() -> None:
    wanted = wanting(Requirement.exists("node_name"), Requirement.is_in("node_name", "mars"))
    assert not any(isinstance(edit, AddLabel) for edit in edits(cluster(node("n0")), wanted))


def test_a_label_may_cure_terms_and_affinities_at_once() -> None:
    engine = cluster(node("n0", 0, labels={"zone": "a"}, draining=True), node("n1"))
    run(engine, ask("web", labels=WEB), "n0")
    either = Selector.any_of(Requirement.is_in("zone", "a"), Requirement.is_in("rack", "r"))
    wanted = ask("w", 1, selector=either, affinities=((near_app("web", "zone"),), (near("x"),)))
    assert edits(engine, wanted) == (AddLabel("n1", "zone", "a"),)


def test_a_spread_that_another_edit_fixes_needs_no_edit_of_its_own() -> None:
    """Zone c is empty and excluded; allowing it makes it the emptiest domain."""
    engine = zones("a", "b", "c")
    for index, id in enumerate(("n0", "n1")):
        run(engine, ask(f"web-{index}", labels=WEB), id)
        fill(engine, id, 4)
    spread = Spread("zone", on("app", "web"))
    in_ab = Requirement.is_in("zone", "a", "b")
    wanted = ask("w", 1, labels=WEB, selector=Selector.all_of(in_ab), spreads=(spread,))
    assert edits(engine, wanted) == (Widen(in_ab, "c"),)


# The change works


@pytest.mark.parametrize("used", [1, 2, 3, 4])
def test_making_the_suggested_change_makes_the_work_fit(used: int) -> None:
    engine = cluster(node("n0", 4))
    for index in range(used):
        fill(engine, "n0", 1, f"one-{index}")
    submit(engine, ask("w", 4))
    (edit,) = edits(engine, ask("w", 4))
    assert edit == FreeUp("n0", "CPU", used * UNIT)
    assert placements(decide_after(engine, *(AskEnded(f"one-{index}") for index in range(used)))) == {"w": "n0"}


def test_adding_the_suggested_capacity_makes_the_work_fit() -> None:
    engine = cluster(node("n0", 4, GPU=1))
    run(engine, ask("share", 1, gpu=0.5), "n0")
    submit(engine, ask("w", 5, gpu=1))
    found = edits(engine, ask("w", 5, gpu=1))
    assert found == (AddCapacity("n0", "CPU", 2 * UNIT), FreeUp("n0", "GPU", 5000))
    assert placements(decide_after(engine, NodeResized("n0", amounts(CPU=6, GPU=2)))) == {"w": "n0"}
