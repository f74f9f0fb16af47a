"""Which nodes an ask's selector allows, also when labels change."""

from __future__ import annotations

import pytest

from stead.engine.engine import Engine
from stead.engine.facts import NodeJoined, NodeLabelled, NodeLeft
from stead.engine.reasons import LacksLabel, NoTermMatches
from stead.language.labels import ANYWHERE, NOWHERE, Labels, Requirement, Selector
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
)

ZONE_A = Requirement.is_in("zone", "a")


def fleet() -> Engine:
    """a, b and c are zones; `bare` has no label; tiers are 1, 2, 10 and a text."""
    return cluster(
        node("a", labels={"zone": "a", "tier": "1"}),
        node("b", labels={"zone": "b", "tier": "2"}),
        node("c", labels={"zone": "c", "tier": "10"}),
        node("word", labels={"zone": "", "tier": "high"}),
        node("bare"),
    )


@pytest.mark.parametrize(
    ("requirement", "nodes"),
    [
        pytest.param(Requirement.is_in("zone", "a"), "a", id="In matches nodes with the value"),
        pytest.param(Requirement.is_in("zone", "a", "c"), "a c", id="In with two values matches both"),
        pytest.param(Requirement.is_in("zone", "z"), "", id="In with an unknown value matches no node"),
        pytest.param(Requirement.is_in("zone", ""), "word", id="In with the empty value is not the same as no label"),
        pytest.param(Requirement.is_in("zone"), "", id="In without values matches no node"),
        pytest.param(Requirement.is_in("rack", "a"), "", id="In needs the key"),
        pytest.param(Requirement.not_in("zone", "a"), "b c word bare", id="NotIn matches a node without the key"),
        pytest.param(Requirement.not_in("zone", "a", "b"), "c word bare", id="NotIn with two values keeps out both"),
        pytest.param(Requirement.not_in("zone"), "a b c word bare", id="NotIn without values matches all nodes"),
        pytest.param(
            Requirement.not_in("rack", "r"), "a b c word bare", id="NotIn of an unknown key matches all nodes"
        ),
        pytest.param(Requirement.exists("zone"), "a b c word", id="Exists needs the key and takes any value"),
        pytest.param(Requirement.exists("rack"), "", id="Exists of an unknown key matches no node"),
        pytest.param(Requirement.does_not_exist("zone"), "bare", id="DoesNotExist takes only nodes without the key"),
        pytest.param(Requirement.does_not_exist("rack"), "a b c word bare", id="DoesNotExist of an unknown key"),
        pytest.param(Requirement.greater_than("tier", 1), "b c", id="Gt is strict and compares numbers, not text"),
        pytest.param(Requirement.greater_than("tier", 10), "", id="Gt of the greatest number matches no node"),
        pytest.param(Requirement.greater_than("zone", 0), "", id="Gt never matches what is no number"),
        pytest.param(Requirement.less_than("tier", 10), "a b", id="Lt is strict, and a word is not less"),
        pytest.param(Requirement.less_than("tier", 1), "", id="Lt of the smallest number matches no node"),
        pytest.param(Requirement.less_than("rack", 5), "", id="Lt needs the key"),
        pytest.param(Requirement("tier", frozenset(), True, False, 1, 10), "b", id="Gt and Lt together are a range"),
        pytest.param(Requirement("tier", frozenset({"2"}), True, False, 1), "c", id="Gt together with NotIn"),
        pytest.param(Requirement("tier", frozenset(), True, True, 5), "c bare", id="Gt that also takes nodes without"),
    ],
)
def test_a_requirement_allows_exactly_the_nodes_that_meet_it(requirement: Requirement, nodes: str) -> None:
    engine = fleet()
    wanted = ask("w", selector=Selector.all_of(requirement))
    assert candidates(engine, wanted) == tuple(nodes.split())
    refused = 5 - len(nodes.split())
    assert refusals(engine, wanted) == ([(LacksLabel(requirement), refused, refused)] if refused else [])


@pytest.mark.parametrize(
    ("value", "greater_than_5", "less_than_5"),
    [
        ("5", False, False),
        ("6", True, False),
        ("4", False, True),
        ("+6", True, False),
        ("-6", False, True),
        ("006", True, False),
        ("6.0", False, False),
        ("", False, False),
        ("0x6", False, False),
        ("9223372036854775807", True, False),
        ("9223372036854775808", False, False),
        ("-9223372036854775808", False, True),
        ("-9223372036854775809", False, False),
    ],
)
def test_gt_and_lt_read_int64_numbers_in_base_ten(value: str, greater_than_5: bool, less_than_5: bool) -> None:
    engine = cluster()
    engine.apply(NodeJoined(node("n0")), NodeLabelled("n0", Labels({"tier": value})))
    for requirement, matches in (
        (Requirement.greater_than("tier", 5), greater_than_5),
        (Requirement.less_than("tier", 5), less_than_5),
    ):
        assert candidates(engine, ask("w", selector=Selector.all_of(requirement))) == (("n0",) if matches else ())


@pytest.mark.parametrize(
    ("selector", "nodes"),
    [
        pytest.param(ANYWHERE, "a b c word bare", id="one empty term matches every node"),
        pytest.param(NOWHERE, "", id="no term matches no node"),
        pytest.param(Selector(((ZONE_A,), ())), "a b c word bare", id="an empty term beside others still matches all"),
        pytest.param(
            Selector.all_of(Requirement.exists("zone"), Requirement.greater_than("tier", 1)),
            "b c",
            id="requirements of one term must all hold",
        ),
        pytest.param(
            Selector.any_of(ZONE_A, Requirement.does_not_exist("zone")), "a bare", id="one term of several is enough"
        ),
        pytest.param(
            Selector(((ZONE_A, Requirement.greater_than("tier", 1)), (Requirement.is_in("tier", "10"),))),
            "c",
            id="a term holds as a whole or not at all",
        ),
    ],
)
def test_terms_are_alternatives_and_requirements_are_not(selector: Selector, nodes: str) -> None:
    assert candidates(fleet(), ask("w", selector=selector)) == tuple(nodes.split())


def test_every_requirement_of_a_single_term_is_a_reason_of_its_own_in_the_order_written() -> None:
    tier = Requirement.greater_than("tier", 1)
    assert refusals(fleet(), ask("w", selector=Selector.all_of(tier, ZONE_A))) == [
        (LacksLabel(tier), 3, 1),
        (LacksLabel(ZONE_A), 2, 2),
    ]
    assert refusals(fleet(), ask("w", selector=Selector.all_of(ZONE_A, tier))) == [
        (LacksLabel(ZONE_A), 4, 2),
        (LacksLabel(tier), 1, 1),
    ]


@pytest.mark.parametrize(
    ("selector", "count"),
    [
        pytest.param(NOWHERE, 5, id="no term at all"),
        pytest.param(Selector.any_of(ZONE_A, Requirement.is_in("tier", "2")), 3, id="two terms"),
    ],
)
def test_a_selector_without_exactly_one_term_is_one_reason_as_a_whole(selector: Selector, count: int) -> None:
    assert refusals(fleet(), ask("w", selector=selector)) == [(NoTermMatches(selector), count, count)]


@pytest.mark.parametrize(
    ("key", "value"),
    [("node_id", "n1"), ("ray.io/node-id", "n1"), ("node_ip", "10.0.0.1"), ("node_name", "mars")],
)
def test_the_identity_of_a_node_is_a_label_like_any_other(key: str, value: str) -> None:
    engine = cluster(node("n0", ip="10.0.0.0", name="moon"), node("n1", ip="10.0.0.1", name="mars"), node("n2"))
    assert candidates(engine, ask("w", selector=on(key, value))) == ("n1",)
    others = Selector.all_of(Requirement.not_in(key, value))
    assert candidates(engine, ask("w", selector=others)) == ("n0", "n2")


@pytest.mark.parametrize(("key", "nodes"), [("node_id", 2), ("ray.io/node-id", 2), ("node_ip", 1), ("node_name", 1)])
def test_an_unknown_address_or_name_is_not_a_label(key: str, nodes: int) -> None:
    engine = cluster(node("n0", ip="10.0.0.0", name="moon"), node("n1"))
    assert len(candidates(engine, ask("w", selector=Selector.all_of(Requirement.exists(key))))) == nodes


@pytest.mark.parametrize("key", ["node_id", "ray.io/node-id", "node_ip", "node_name"])
def test_a_node_cannot_have_the_identity_labels_of_another(key: str) -> None:
    engine = cluster(node("n0", ip="10.0.0.0", name="moon"))
    engine.apply(NodeLabelled("n0", Labels({key: "other"})))
    assert candidates(engine, ask("w", selector=on(key, "other"))) == ()
    assert len(candidates(engine, ask("w", selector=Selector.all_of(Requirement.exists(key))))) == 1


# Labels that change while the node runs


def test_setting_a_label_on_a_running_node_places_pending_work() -> None:
    engine = cluster(node("n0"), node("n1"))
    assert reported(submit(engine, ask("w", 1, selector=on("disk", "ssd")))) == {"w": ["lacks-label"]}
    assert placements(decide_after(engine, NodeLabelled("n1", Labels({"disk": "ssd"})))) == {"w": "n1"}


def test_removing_a_label_from_a_running_node_places_work_that_forbids_the_label() -> None:
    engine = cluster(node("n0", labels={"spot": "yes"}))
    submit(engine, ask("w", 1, selector=Selector.all_of(Requirement.does_not_exist("spot"))))
    assert placements(decide_after(engine, NodeLabelled("n0", removed=("spot",)))) == {"w": "n0"}


def test_a_label_removed_from_a_running_node_keeps_new_work_out_and_leaves_placed_work_alone() -> None:
    engine = cluster(node("n0", labels={"disk": "ssd"}))
    assert place(engine, ask("old", 1, selector=on("disk", "ssd"))) == ["n0"]
    assert decide_after(engine, NodeLabelled("n0", removed=("disk",))) == []
    assert place(engine, ask("new", 1, selector=on("disk", "ssd"))) == [None]
    assert engine.placed == {"old": "n0"}


def test_a_label_set_on_a_running_node_overrides_the_one_it_joined_with() -> None:
    engine = cluster(node("n0", labels={"disk": "ssd", "zone": "a"}))
    engine.apply(NodeLabelled("n0", Labels({"disk": "hdd"})))
    assert candidates(engine, ask("w", selector=on("disk", "ssd"))) == ()
    assert candidates(engine, ask("w", selector=on("disk", "hdd"))) == ("n0",)
    assert engine.nodes["n0"].labels == Labels({"disk": "hdd", "zone": "a"})


def test_labels_may_be_set_and_removed_in_one_fact_and_setting_wins() -> None:
    engine = cluster(node("n0", labels={"a": "1", "b": "1"}))
    engine.apply(NodeLabelled("n0", Labels({"b": "2", "c": "3"}), removed=("a", "b", "never")))
    assert engine.nodes["n0"].labels == Labels({"b": "2", "c": "3"})


def test_a_node_that_joins_again_under_its_id_has_its_new_record_and_keeps_its_work() -> None:
    engine = cluster(node("n0", 2, labels={"disk": "ssd"}))
    assert place(engine, ask("w", 1, selector=on("disk", "ssd"))) == ["n0"]
    engine.apply(NodeLabelled("n0", Labels({"set": "later"})), NodeJoined(node("n0", 4, labels={"disk": "hdd"})))
    assert engine.nodes["n0"].labels == Labels({"disk": "hdd"})
    assert engine.placed == {"w": "n0"}
    assert engine.free("n0") == {"CPU": 30000}
    assert candidates(engine, ask("x", 1, selector=on("disk", "ssd"))) == ()
    assert candidates(engine, ask("x", 1, selector=on("disk", "hdd"))) == ("n0",)


def test_a_node_that_left_takes_its_labels_with_it() -> None:
    engine = cluster(node("n0", labels={"disk": "ssd"}))
    engine.apply(NodeLeft("n0"), NodeJoined(node("n1")))
    assert candidates(engine, ask("w", selector=on("disk", "ssd"))) == ()
    assert candidates(engine, ask("w", selector=on("node_id", "n0"))) == ()
    assert list(engine.nodes) == ["n1"]


def test_a_node_that_comes_back_after_leaving_does_not_have_the_labels_set_before() -> None:
    engine = cluster(node("n0"))
    engine.apply(NodeLabelled("n0", Labels({"disk": "ssd"})), NodeLeft("n0"), NodeJoined(node("n0")))
    assert candidates(engine, ask("w", selector=on("disk", "ssd"))) == ()


@pytest.mark.parametrize("count", [3, 15, 16, 17, 40, 70])
def test_a_label_that_many_nodes_share_is_found_and_forgotten_on_each(count: int) -> None:
    engine = cluster(*(node(f"n{index}", labels={"zone": "a", "own": f"v{index}"}) for index in range(count)))
    wanted = ask("w", selector=on("zone", "a"))
    assert len(candidates(engine, wanted)) == count
    engine.apply(NodeLabelled("n1", removed=("zone",)), NodeLabelled("n2", Labels({"zone": "b"})))
    assert candidates(engine, wanted) == tuple(f"n{index}" for index in range(count) if index not in (1, 2))
    assert candidates(engine, ask("w", selector=on("own", f"v{count - 1}"))) == (f"n{count - 1}",)
    engine.apply(*(NodeLabelled(f"n{index}", removed=("zone",)) for index in range(count)))
    assert candidates(engine, wanted) == ()
