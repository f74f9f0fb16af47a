"""The oracle against docs/semantics.md, by hand: small cases whose answers follow from the page.

Rule: every sentence of the page that could be misread has a case here; the numbers were computed by hand.
"""

from __future__ import annotations

from typing import Any

import pytest

from stead.engine.decisions import Refusal
from stead.engine.facts import (
    AskEnded,
    AskLost,
    AskRunning,
    AskSubmitted,
    GroupEnded,
    NodeDrained,
    NodeJoined,
    NodeLabelled,
    NodeLeft,
    NodeResized,
    NodeTainted,
    NodeUntainted,
)
from stead.engine.reasons import (
    Draining,
    KeptAway,
    LacksLabel,
    NeverFits,
    NoAlternativeHolds,
    NoTermMatches,
    NotNear,
    ShortOf,
    Skewed,
    Tainted,
    TargetDead,
    TooNear,
)
from stead.language.asks import Affinity, Ask, Choice, PolicyName, Preference, Spread
from stead.language.labels import ANYWHERE, EMPTY, NOWHERE, Labels, Requirement, Selector
from stead.language.nodes import Node
from stead.language.resources import Resources
from stead.language.taints import TOLERATE_ALL, Effect, Taint, Toleration
from tests.oracle import Oracle
from tests.oracle_language import meets, stay_seconds, tolerates

IN_A = Requirement.is_in("zone", "a")
WEB = Selector.all_of(Requirement.is_in("app", "web"))
FAST = Taint("disk", "fast")


def cluster(*nodes: Node) -> Oracle:
    oracle = Oracle()
    oracle.apply(*map(NodeJoined, nodes))
    return oracle


def zoned(id: str, zone: str | None = None, **capacity: Any) -> Node:
    return Node.of(id, capacity or {"CPU": 4}, {} if zone is None else {"zone": zone})


def web(id: str, **rest: Any) -> Ask:
    return Ask(id, labels=Labels({"app": "web"}), **rest)


def apart(*keys: str, **rest: Any) -> Affinity:
    return Affinity(WEB, near=False, topologies=keys or ("node_id",), **rest)


def near(*keys: str, **rest: Any) -> Affinity:
    return Affinity(WEB, topologies=keys or ("node_id",), **rest)


@pytest.mark.parametrize(
    ("requirement", "value", "answer"),
    [
        (Requirement.is_in("k", "a", "b"), "b", True),
        (Requirement.is_in("k", "a"), "b", False),
        (Requirement.is_in("k", "a"), None, False),
        (Requirement.is_in("k", ""), "", True),
        (Requirement.is_in("k", ""), None, False),
        (Requirement.not_in("k", "a"), None, True),
        (Requirement.not_in("k", "a"), "a", False),
        (Requirement.not_in("k", "a"), "", True),
        (Requirement.exists("k"), "", True),
        (Requirement.exists("k"), None, False),
        (Requirement.does_not_exist("k"), "", False),
        (Requirement.does_not_exist("k"), None, True),
        (Requirement.greater_than("k", 5), "5", False),
        (Requirement.greater_than("k", 5), "6", True),
        (Requirement.greater_than("k", 5), "+6", True),
        (Requirement.greater_than("k", 5), "007", True),
        (Requirement.greater_than("k", -5), "-4", True),
        (Requirement.greater_than("k", 5), "6.0", False),
        (Requirement.greater_than("k", 5), "1_000", False),
        (Requirement.greater_than("k", 5), " 6", False),
        (Requirement.greater_than("k", 5), "٦", False),
        (Requirement.greater_than("k", 5), "", False),
        (Requirement.greater_than("k", 5), "-", False),
        (Requirement.greater_than("k", 5), None, False),
        (Requirement.greater_than("k", 5), "9223372036854775807", True),
        (Requirement.greater_than("k", 5), "9223372036854775808", False),
        (Requirement.less_than("k", 5), "-9223372036854775808", True),
        (Requirement.less_than("k", 5), "-9223372036854775809", False),
        (Requirement.less_than("k", 5), "5", False),
        (Requirement.less_than("k", 5), None, False),
    ],
    ids=str,
)
def test_a_requirement_matches_a_label_value_as_documented(
    requirement: Requirement, value: str | None, answer: bool
) -> None:
    labels = {} if value is None else {"k": value}
    assert meets(requirement, labels) is answer
    assert requirement.matches(labels) is answer


@pytest.mark.parametrize(
    ("toleration", "answer"),
    [
        (TOLERATE_ALL, True),
        (Toleration("disk"), True),
        (Toleration("cpu"), False),
        (Toleration("disk", frozenset({"fast"}), complement=False), True),
        (Toleration("disk", frozenset({"slow"}), complement=False), False),
        (Toleration("disk", frozenset({"fast"})), False),
        (Toleration("disk", frozenset(), complement=False), False),
        (Toleration("disk", effect=Effect.NO_SCHEDULE), True),
        (Toleration("disk", effect=Effect.NO_EXECUTE), False),
        (Toleration(None, seconds=0.0), True),
    ],
    ids=repr,
)
def test_a_toleration_covers_a_taint_by_key_value_and_effect(toleration: Toleration, answer: bool) -> None:
    assert tolerates((toleration,), FAST) is answer
    assert toleration.covers(FAST) is answer


@pytest.mark.parametrize(
    ("seconds", "stay"),
    [([], 0.0), ([None], None), ([5.0, None], 5.0), ([5.0, 3.0], 3.0), ([-1.0], 0.0)],
)
def test_the_shortest_covering_toleration_limits_how_long_work_stays(
    seconds: list[float | None], stay: float | None
) -> None:
    tolerations = (Toleration("other", seconds=0.0), *(Toleration("disk", seconds=each) for each in seconds))
    assert stay_seconds(tolerations, FAST) == stay


def test_every_requirement_of_a_single_term_is_a_reason_of_its_own_in_the_order_written() -> None:
    oracle = cluster(zoned("1", "a"), zoned("2", "b"), zoned("3"))
    second, first = Requirement.exists("rack"), IN_A
    ask = Ask.of("w", selector=Selector.all_of(first, second))
    assert oracle.verdict(ask, 0) == ([], [Refusal(LacksLabel(first), 2, 0), Refusal(LacksLabel(second), 1, 1)])


def test_a_reason_that_refuses_only_nodes_blamed_on_others_appears_with_no_nodes() -> None:
    oracle = cluster(zoned("1", "b"))
    ask = Ask.of("w", {"CPU": 9}, Selector.all_of(IN_A))
    assert oracle.verdict(ask, 0)[1] == [
        Refusal(LacksLabel(IN_A), 1, 0),
        Refusal(NeverFits("CPU", 90_000), 0, 0),
    ]


def test_several_terms_or_none_are_one_reason() -> None:
    oracle = cluster(zoned("1", "a"), zoned("2", "b"), zoned("3"))
    either = Selector.any_of(IN_A, Requirement.does_not_exist("zone"))
    assert oracle.verdict(Ask.of("w", selector=either), 0) == (["1", "3"], [Refusal(NoTermMatches(either), 1, 1)])
    assert oracle.verdict(Ask.of("w", selector=NOWHERE), 0) == ([], [Refusal(NoTermMatches(NOWHERE), 3, 3)])
    assert oracle.verdict(Ask.of("w", selector=Selector(((), (IN_A,)))), 0) == (["1", "2", "3"], [])


def test_identity_labels_are_on_every_node_and_cannot_be_overridden() -> None:
    oracle = cluster(Node.of("1", ip="10.0.0.1"), Node.of("2", name="two"))
    oracle.apply(NodeLabelled("1", Labels({"node_id": "2"}), removed=("ray.io/node-id",)))
    wanted = {
        Requirement.is_in("node_id", "1"): ["1"],
        Requirement.is_in("ray.io/node-id", "1"): ["1"],
        Requirement.exists("node_ip"): ["1"],
        Requirement.is_in("node_name", "two"): ["2"],
    }
    for requirement, nodes in wanted.items():
        assert oracle.verdict(Ask.of("w", selector=Selector.all_of(requirement)), 0)[0] == nodes


def test_labels_set_later_override_those_of_the_join_and_a_new_join_replaces_them_all() -> None:
    oracle = cluster(zoned("1", "a"))
    ask = Ask.of("w", selector=Selector.all_of(IN_A))
    oracle.apply(NodeLabelled("1", Labels({"zone": "b"})))
    assert oracle.verdict(ask, 0)[0] == []
    oracle.apply(NodeLabelled("1", Labels({"zone": "a", "rack": "1"}), removed=("rack",)))
    assert oracle.verdict(ask, 0)[0] == ["1"]
    assert oracle.places["1"].labels["rack"] == "1"
    oracle.apply(NodeJoined(zoned("1")))
    assert oracle.verdict(ask, 0)[0] == []


def test_blame_falls_in_the_order_of_the_table() -> None:
    oracle = cluster(
        Node.of("1", {"CPU": 1}, {"zone": "b"}, [FAST], draining=True),
        Node.of("2", {"CPU": 1}, {"zone": "b"}, [FAST]),
        Node.of("3", {"CPU": 1}, {"zone": "a"}, [FAST]),
        Node.of("4", {"CPU": 1}, {"zone": "a"}),
        Node.of("5", {"CPU": 4}, {"zone": "a"}),
        Node.of("6", {"CPU": 2}, {"zone": "a"}),
    )
    oracle.apply(AskRunning(Ask.of("x", {"CPU": 1}), "6"))
    assert oracle.verdict(Ask.of("w", {"CPU": 2}, Selector.all_of(IN_A)), 0) == (
        ["5"],
        [
            Refusal(Draining(), 1, 0),
            Refusal(LacksLabel(IN_A), 1, 0),
            Refusal(Tainted(FAST), 1, 0),
            Refusal(NeverFits("CPU", 20_000), 1, 1),
            Refusal(ShortOf("CPU", 20_000), 1, 1),
        ],
    )


def test_taints_are_reasons_in_the_order_of_key_value_and_effect_and_a_preference_is_none() -> None:
    soft = Taint("aaa", "", Effect.PREFER_NO_SCHEDULE)
    execute, schedule = Taint("k", "v", Effect.NO_EXECUTE), Taint("k", "v")
    oracle = cluster(Node.of("1", {}, {}, [schedule, soft]), Node.of("2", {}, {}, [schedule, execute]))
    assert oracle.verdict(Ask("w"), 0) == (
        [],
        [Refusal(Tainted(execute), 1, 0), Refusal(Tainted(schedule), 1, 1)],
    )
    assert oracle.verdict(Ask("w", tolerations=(Toleration("k", effect=Effect.NO_SCHEDULE),)), 0)[0] == ["1"]


def test_a_taint_replaces_one_of_the_same_key_and_effect_and_is_removed_by_effect_or_by_key() -> None:
    oracle = cluster(Node.of("1"))
    slow, execute = Taint("disk", "slow"), Taint("disk", "slow", Effect.NO_EXECUTE)
    oracle.apply(NodeTainted("1", FAST), NodeTainted("1", slow), NodeTainted("1", execute))
    assert list(oracle.places["1"].node.taints) == [slow, execute]
    oracle.apply(NodeUntainted("1", "disk", Effect.NO_SCHEDULE), NodeUntainted("1", "other"))
    assert list(oracle.places["1"].node.taints) == [execute]
    oracle.apply(NodeUntainted("1", "disk"))
    assert list(oracle.places["1"].node.taints) == []


def test_facts_about_unknown_nodes_and_work_are_harmless() -> None:
    oracle = Oracle()
    oracle.apply(NodeLeft("1"), NodeDrained("1"), NodeTainted("1", FAST), NodeResized("1", Resources()))
    oracle.apply(AskEnded("w"), AskLost("w"), GroupEnded("g"))
    assert oracle.verdict(Ask("w"), 0) == ([], [])


def test_never_fits_is_about_capacity_and_short_of_about_what_is_free_each_by_resource_name() -> None:
    oracle = cluster(Node.of("1", {"CPU": 2, "disk": 2}))
    oracle.apply(AskRunning(Ask.of("x", {"CPU": 2, "disk": 1}), "1"))
    ask = Ask.of("w", {"zap": 1, "disk": 3, "CPU": 1})
    assert oracle.verdict(ask, 0)[1] == [
        Refusal(NeverFits("disk", 30_000), 1, 0),
        Refusal(NeverFits("zap", 10_000), 0, 0),
        Refusal(ShortOf("CPU", 10_000), 0, 0),
    ]
    oracle.apply(AskEnded("x"))
    assert oracle.verdict(Ask.of("w", {"CPU": 2}), 0)[0] == ["1"]


def test_a_node_resized_below_what_is_used_has_less_than_nothing_free() -> None:
    oracle = cluster(Node.of("1", {"CPU": 4}))
    oracle.apply(AskRunning(Ask.of("x", {"CPU": 3}), "1"), NodeResized("1", Resources.of(CPU=2)))
    assert oracle.free("1") == {"CPU": -10_000}
    assert oracle.verdict(Ask.of("w", {"CPU": 1}), 0)[1] == [Refusal(ShortOf("CPU", 10_000), 1, 1)]
    assert oracle.verdict(Ask.of("w"), 0)[0] == ["1"]


def test_a_share_goes_to_the_fullest_device_that_has_enough_and_whole_devices_from_the_lowest_index() -> None:
    oracle = cluster(Node.of("1", {"GPU": 3}))
    for id, need in (("a", 0.5), ("b", 0.75), ("c", 0.25), ("d", 0.25)):
        oracle.apply(AskRunning(Ask.of(id, {"GPU": need}), "1"))
    assert oracle.devices_free("1", "GPU") == [2_500, 0, 10_000]
    oracle.apply(AskRunning(Ask.of("e", {"GPU": 0.5}), "1"), AskEnded("a"), AskEnded("d"))
    assert oracle.devices_free("1", "GPU") == [10_000, 0, 5_000]
    oracle.apply(AskRunning(Ask.of("f", {"GPU": 1}), "1"), AskEnded("b"), AskEnded("c"), AskEnded("e"))
    assert oracle.devices_free("1", "GPU") == [0, 10_000, 10_000]


def test_a_share_needs_one_device_with_that_much_free_however_much_the_others_have() -> None:
    oracle = cluster(Node.of("1", {"GPU": 2}))
    oracle.apply(AskRunning(Ask.of("a", {"GPU": 0.75}), "1"), AskRunning(Ask.of("b", {"GPU": 0.75}), "1"))
    assert oracle.free("1")["GPU"] == 5_000
    assert oracle.verdict(Ask.of("w", {"GPU": 0.5}), 0)[1] == [Refusal(ShortOf("GPU", 5_000), 1, 1)]
    assert oracle.verdict(Ask.of("w", {"GPU": 0.25}), 0)[0] == ["1"]


def test_one_whole_device_must_be_wholly_free_and_the_number_of_devices_is_the_capacity() -> None:
    oracle = cluster(Node.of("1", {"GPU": 2}))
    oracle.apply(AskRunning(Ask.of("a", {"GPU": 0.25}), "1"))
    assert oracle.verdict(Ask.of("w", {"GPU": 1}), 0)[0] == ["1"]
    assert oracle.verdict(Ask.of("w", {"GPU": 2}), 0)[1] == [Refusal(ShortOf("GPU", 20_000), 1, 1)]
    assert oracle.verdict(Ask.of("w", {"GPU": 3}), 0)[1] == [Refusal(NeverFits("GPU", 30_000), 1, 1)]
    oracle.apply(AskRunning(Ask.of("b", {"GPU": 1}), "1"))
    assert oracle.devices_free("1", "GPU") == [7_500, 0]


def test_near_needs_every_key_and_matching_work_in_the_domain_of_each() -> None:
    oracle = cluster(
        Node.of("1", {}, {"zone": "a", "rack": "1"}),
        Node.of("2", {}, {"zone": "a", "rack": "2"}),
        Node.of("3", {}, {"zone": "a"}),
        Node.of("4", {}, {"zone": "b", "rack": "1"}),
    )
    oracle.apply(AskRunning(web("x"), "1"))
    both = near("zone", "rack")
    assert oracle.verdict(Ask("w", affinities=((both,),)), 0) == (["1"], [Refusal(NotNear(both), 3, 3)])
    oracle.apply(AskRunning(web("y"), "4"))
    assert oracle.verdict(Ask("w", affinities=((both,),)), 0)[0] == ["1", "4"]
    assert oracle.verdict(Ask("w", affinities=((near("zone"),),)), 0)[0] == ["1", "2", "3", "4"]


def test_an_ended_target_is_dead_until_it_comes_back_and_is_forgotten_with_the_last_ask_that_names_it() -> None:
    oracle = cluster(zoned("1", "a"))
    close = Affinity(Selector.all_of(Requirement.is_in("ask_id", "x")))
    wanted = Ask("w", affinities=((close,),))
    oracle.apply(AskEnded("x"))
    assert oracle.verdict(wanted, 0)[1] == [Refusal(NotNear(close), 1, 1)], "nobody named it"
    oracle.apply(AskSubmitted(wanted), AskEnded("x"))
    assert oracle.verdict(wanted, 0)[1] == [Refusal(TargetDead(close), 1, 1)]
    oracle.apply(AskSubmitted(web("x")))
    assert oracle.verdict(wanted, 0)[1] == [Refusal(NotNear(close), 1, 1)]
    oracle.apply(AskEnded("x"), AskEnded("w"))
    assert not oracle.over


def test_near_allows_the_first_of_its_kind_on_every_node_with_all_keys() -> None:
    oracle = cluster(zoned("1", "a"), zoned("2", "b"), zoned("3"))
    first, other = web("w", affinities=((near("zone"),),)), Ask("v", affinities=((near("zone"),),))
    assert oracle.verdict(first, 0)[0] == ["1", "2"]
    assert oracle.verdict(other, 0)[0] == []
    oracle.apply(AskRunning(web("x"), "3"))
    assert oracle.verdict(first, 0)[0] == ["1", "2"], "matching work without a domain does not count"
    oracle.apply(AskRunning(web("y"), "1"))
    assert oracle.verdict(first, 0)[0] == ["1"]


def test_the_first_one_is_refused_when_matching_work_has_only_one_of_the_keys() -> None:
    oracle = cluster(Node.of("1", {}, {"zone": "a", "rack": "1"}), Node.of("2", {}, {"zone": "b"}))
    ask = web("w", affinities=((near("zone", "rack"),),))
    assert oracle.verdict(ask, 0)[0] == ["1"]
    oracle.apply(AskRunning(web("x"), "2"))
    assert oracle.verdict(ask, 0)[0] == []


def test_near_by_ask_id_has_no_exception_for_the_first_ask() -> None:
    oracle = cluster(zoned("1", "a"), zoned("2", "a"), zoned("3", "b"))
    beside = Affinity(Selector.all_of(Requirement.is_in("ask_id", "x")), topologies=("zone",))
    also_by_label = Affinity(Selector.all_of(Requirement.not_in("ask_id", "x"), Requirement.is_in("app", "web")))
    assert oracle.verdict(Ask("w", affinities=((beside,),)), 0)[0] == []
    assert oracle.verdict(web("w", affinities=((also_by_label,),)), 0)[0] == []
    oracle.apply(AskRunning(Ask("x"), "2"))
    assert oracle.verdict(Ask("w", affinities=((beside,),)), 0)[0] == ["1", "2"]


def test_work_is_never_near_or_apart_from_itself() -> None:
    oracle = cluster(zoned("1"), zoned("2"))
    ask = web("x", affinities=((apart(symmetric=True),),))
    oracle.apply(AskRunning(ask, "1"))
    assert oracle.verdict(ask, 0)[0] == ["1", "2"]


@pytest.mark.parametrize(
    ("namespaces", "mine", "seen"),
    [
        (None, "blue", False),
        (None, "red", True),
        (frozenset(), "blue", True),
        (frozenset({"red"}), "blue", True),
        (frozenset({"blue"}), "red", False),
    ],
)
def test_an_affinity_sees_its_namespaces(namespaces: frozenset[str] | None, mine: str, seen: bool) -> None:
    oracle = cluster(zoned("1"), zoned("2"))
    oracle.apply(AskRunning(web("x", namespace="red"), "1"))
    affinity = apart(namespaces=namespaces)
    ask = Ask("w", affinities=((affinity,),), namespace=mine)
    assert oracle.verdict(ask, 0) == ((["2"], [Refusal(TooNear(affinity), 1, 1)]) if seen else (["1", "2"], []))


def test_the_exception_for_the_first_one_needs_its_own_namespace() -> None:
    oracle = cluster(zoned("1"))
    ask = web("w", affinities=((near(namespaces=frozenset({"red"})),),), namespace="blue")
    assert oracle.verdict(ask, 0)[0] == []
    assert oracle.verdict(web("w", affinities=((near(namespaces=frozenset()),),), namespace="blue"), 0)[0] == ["1"]


def test_apart_passes_a_node_without_the_key_and_refuses_by_any_key() -> None:
    oracle = cluster(zoned("1", "a"), zoned("2", "a"), zoned("3", "b"), zoned("4"))
    oracle.apply(AskRunning(web("x"), "1"), AskRunning(web("y"), "4"))
    assert oracle.verdict(Ask("w", affinities=((apart("zone"),),)), 0)[0] == ["3", "4"]
    assert oracle.verdict(Ask("w", affinities=((apart("zone", "node_id"),),)), 0)[0] == ["3"]


def test_apart_looks_one_way_unless_it_is_symmetric() -> None:
    oracle = cluster(zoned("1", "a"), zoned("2", "a"), zoned("3", "b"))
    one_way, both_ways = apart("zone"), apart("zone", symmetric=True)
    oracle.apply(AskRunning(Ask("x", affinities=((one_way,),)), "3"))
    assert oracle.verdict(web("w"), 0)[0] == ["1", "2", "3"]
    oracle.apply(AskRunning(Ask("y", affinities=((both_ways,),)), "1"))
    assert oracle.verdict(web("w"), 0) == (["3"], [Refusal(KeptAway(both_ways), 2, 2)])
    assert oracle.verdict(Ask("w"), 0)[0] == ["1", "2", "3"]


def test_kept_away_uses_the_namespace_of_the_placed_work() -> None:
    oracle = cluster(zoned("1"), zoned("2"))
    keeper = Ask("y", affinities=((apart(symmetric=True),),), namespace="blue")
    oracle.apply(AskRunning(keeper, "1"))
    assert oracle.verdict(web("w", namespace="red"), 0)[0] == ["1", "2"]
    assert oracle.verdict(web("w", namespace="blue"), 0)[0] == ["2"]


def test_an_affinity_that_names_ask_ids_or_means_near_is_never_symmetric() -> None:
    oracle = cluster(zoned("1"))
    by_id = Affinity(Selector.all_of(Requirement.not_in("ask_id", "z")), near=False, symmetric=True)
    oracle.apply(AskRunning(Ask("x", affinities=((by_id, near(symmetric=True)),)), "1"))
    assert oracle.verdict(web("w"), 0)[0] == ["1"]


def test_equal_symmetric_affinities_are_one_reason_and_different_ones_are_ordered_by_their_text() -> None:
    oracle = cluster(zoned("1", "a"), zoned("2", "b"), zoned("3", "c"))
    by_zone, by_node = apart("zone", symmetric=True), apart(symmetric=True)
    oracle.apply(
        AskRunning(Ask("x", affinities=((by_zone,),)), "1"), AskRunning(Ask("y", affinities=((by_zone,),)), "2")
    )
    oracle.apply(AskRunning(Ask("z", affinities=((by_node,),)), "1"))
    assert oracle.verdict(web("w"), 0) == (
        ["3"],
        [Refusal(KeptAway(by_node), 1, 0), Refusal(KeptAway(by_zone), 1, 1)],
    )


def test_one_alternative_gives_a_reason_per_affinity_and_several_give_one_for_all() -> None:
    oracle = cluster(zoned("1", "a"), zoned("2", "b"))
    oracle.apply(AskRunning(web("x"), "1"))
    close, away = near("zone"), apart("zone")
    assert oracle.verdict(Ask("w", affinities=((close, away),)), 0) == (
        [],
        [Refusal(NotNear(close), 1, 1), Refusal(TooNear(away), 1, 1)],
    )
    either = ((close, away), (close,))
    assert oracle.verdict(Ask("w", affinities=either), 0) == (["1"], [Refusal(NoAlternativeHolds(either), 1, 1)])
    assert oracle.verdict(Ask("w", affinities=((close, away), ())), 0) == (["1", "2"], [])


def test_a_spread_refuses_the_fuller_domain_and_nodes_without_the_key() -> None:
    oracle = cluster(zoned("1", "a"), zoned("2", "b"), zoned("3"))
    spread = Spread("zone", WEB)
    oracle.apply(AskRunning(web("x"), "1"))
    assert oracle.verdict(web("w", spreads=(spread,)), 0) == (["2"], [Refusal(Skewed(spread), 2, 2)])
    assert oracle.verdict(Ask("w", spreads=(spread,)), 0)[0] == ["1", "2"], "an ask that does not match adds nothing"
    assert oracle.verdict(web("w", spreads=(spread,), namespace="red"), 0)[0] == ["1", "2"]


def test_a_spread_measures_and_counts_only_nodes_its_node_selector_matches() -> None:
    oracle = cluster(
        Node.of("1", {}, {"zone": "a", "disk": "y"}),
        Node.of("2", {}, {"zone": "a"}),
        Node.of("3", {}, {"zone": "b", "disk": "y"}),
        Node.of("4", {}, {"zone": "c"}),
    )
    spread, disk = Spread("zone", WEB), Requirement.exists("disk")
    ask = Ask("w", (Choice(selector=Selector.all_of(disk)),), spreads=(spread,), labels=Labels({"app": "web"}))
    oracle.apply(AskRunning(web("x"), "2"), AskRunning(web("y"), "4"))
    assert oracle.verdict(ask, 0) == (["1", "3"], [Refusal(LacksLabel(disk), 2, 2)])
    oracle.apply(AskRunning(web("z"), "1"))
    assert oracle.verdict(ask, 0) == (["3"], [Refusal(LacksLabel(disk), 2, 1), Refusal(Skewed(spread), 1, 1)])


def test_several_spreads_measure_only_nodes_that_carry_all_their_keys_and_a_preferred_one_its_own() -> None:
    oracle = cluster(Node.of("1", {}, {"zone": "a", "rack": "1"}), zoned("2", "b"))
    by_zone, by_rack = Spread("zone", WEB), Spread("rack", WEB)
    oracle.apply(AskRunning(web("x"), "1"))
    assert oracle.verdict(web("w", spreads=(by_zone,)), 0)[0] == ["2"]
    assert oracle.verdict(web("w", spreads=(by_zone, by_rack)), 0) == (["1"], [Refusal(Skewed(by_rack), 1, 1)])
    ask = web("w", spreads=(by_rack,), prefers=(Preference(by_zone, 9),))
    assert (oracle.preference(ask, "1"), oracle.preference(ask, "2")) == (0, 9)


def test_a_draining_node_is_alive_and_its_domain_counts() -> None:
    oracle = cluster(zoned("1", "a"), zoned("2", "b"))
    oracle.apply(AskRunning(web("x"), "1"), NodeDrained("2"))
    spread = Spread("zone", WEB)
    assert oracle.verdict(web("w", spreads=(spread,)), 0)[1] == [
        Refusal(Draining(), 1, 1),
        Refusal(Skewed(spread), 1, 1),
    ]
    oracle.apply(NodeLeft("2"))
    assert oracle.verdict(web("w", spreads=(spread,)), 0)[0] == ["1"]


def test_preference_is_the_sum_of_what_holds_minus_a_hundred_for_each_soft_taint() -> None:
    soft = Taint("s", "", Effect.PREFER_NO_SCHEDULE)
    also_soft = Taint("t", "", Effect.PREFER_NO_SCHEDULE)
    oracle = cluster(zoned("1", "a"), Node.of("2", {"CPU": 4}, {"zone": "b"}, [soft, also_soft]))
    oracle.apply(AskRunning(web("x"), "1"))
    wants = (
        Preference(Selector.all_of(IN_A), 7),
        Preference(apart("zone"), 20),
        Preference(Spread("zone", WEB), 3),
        Preference(Affinity(WEB, namespaces=frozenset({"red"})), 50),
    )
    ask = web("w", prefers=wants)
    assert (oracle.preference(ask, "1"), oracle.preference(ask, "2")) == (7, 20 + 3 - 200)
    assert oracle.preference(web("w", tolerations=(Toleration("s"),)), "2") == -100


def test_load_is_the_fullest_of_the_resources_asked_for_with_the_ask_on_it() -> None:
    oracle = cluster(Node.of("1", {"CPU": 3, "GPU": 2, "disk": 1}))
    oracle.apply(AskRunning(Ask.of("x", {"GPU": 0.25, "disk": 1}), "1"))
    assert oracle.load(Ask.of("w", {"CPU": 1, "GPU": 0.5}), 0, "1") == 3750
    assert oracle.load(Ask.of("w", {"CPU": 2, "GPU": 0.5}), 0, "1") == 6666
    assert oracle.load(Ask.of("w"), 0, "1") == 1, "an ask for nothing looks at the number of asks"


@pytest.mark.parametrize(
    ("policy", "need", "best"),
    [
        (PolicyName.HYBRID, 1, {"1", "2"}),
        (PolicyName.HYBRID, 2, {"1"}),
        (PolicyName.SPREAD, 1, {"1"}),
        (PolicyName.PACK, 1, {"3"}),
        (PolicyName.PACK, 2, {"2"}),
        (PolicyName.RANDOM, 1, {"1", "2", "3"}),
        (PolicyName.HYBRID, 0, {"1", "2", "3"}),
        (PolicyName.SPREAD, 0, {"1"}),
        (PolicyName.PACK, 0, {"2", "3"}),
    ],
)
def test_policies_order_by_load(policy: PolicyName, need: int, best: set[str]) -> None:
    """Loads with one more CPU are 2500, 5000 and 10000; with two more 5000 and 7500, and the third has no room."""
    oracle = cluster(*(Node.of(id, {"CPU": 4}) for id in "123"))
    oracle.apply(AskRunning(Ask.of("x", {"CPU": 1}), "2"), AskRunning(Ask.of("y", {"CPU": 3}), "3"))
    assert oracle.best(Ask.of("w", {"CPU": need}, policy=policy)) == (0, best)


def test_preference_goes_before_load_and_a_later_choice_is_taken_only_without_an_earlier_one() -> None:
    oracle = cluster(zoned("1", "a", CPU=4), zoned("2", "b", CPU=1))
    prefers = (Preference(Selector.all_of(Requirement.is_in("zone", "b")), 1),)
    two, one = Choice(Resources.of(CPU=5)), Choice(Resources.of(CPU=1))
    assert oracle.best(Ask("w", (two, one), prefers=prefers)) == (1, {"2"})
    assert oracle.best(Ask("w", (one, two))) == (0, {"1"})
    assert oracle.best(Ask("w", (two,))) is None


def test_a_pending_ask_reports_the_reasons_of_the_first_choice_that_only_lacks_room() -> None:
    oracle = cluster(zoned("1", "a", CPU=2))
    oracle.apply(AskRunning(Ask.of("x", {"CPU": 2}), "1"))
    never, short = Choice(Resources.of(CPU=9)), Choice(Resources.of(CPU=1))
    assert oracle.shown(Ask("w", (never, short))) == [Refusal(ShortOf("CPU", 10_000), 1, 1)]
    assert oracle.shown(Ask("w", (never, never))) == [Refusal(NeverFits("CPU", 90_000), 1, 1)]


def test_an_ask_that_requires_dead_nodes_in_every_term_of_every_choice_is_refused() -> None:
    oracle = cluster(zoned("1"))
    dead, alive = Requirement.is_in("node_id", "7", "8"), Requirement.is_in("ray.io/node-id", "1", "8")
    assert oracle.nowhere_alive(Ask.of("w", selector=Selector.all_of(IN_A, dead)))
    assert not oracle.nowhere_alive(Ask.of("w", selector=Selector.any_of(dead, alive)))
    assert not oracle.nowhere_alive(Ask.of("w", selector=Selector.any_of(dead, IN_A)))
    assert not oracle.nowhere_alive(Ask("w", (Choice(selector=Selector.all_of(dead)), Choice())))
    assert not oracle.nowhere_alive(Ask.of("w", selector=NOWHERE))
    assert not oracle.nowhere_alive(Ask.of("w", selector=Selector.all_of(Requirement.not_in("node_id", "1"))))


def test_work_of_a_node_that_left_loses_its_place_and_a_new_node_of_that_name_starts_empty() -> None:
    oracle = cluster(zoned("1", CPU=1))
    oracle.apply(AskSubmitted(Ask.of("x", {"CPU": 1})), AskRunning(Ask.of("x", {"CPU": 1}), "1"), NodeLeft("1"))
    assert (oracle.placed, list(oracle.asks)) == ({}, ["x"])
    oracle.apply(NodeJoined(zoned("1", CPU=1)))
    assert oracle.verdict(Ask.of("w", {"CPU": 1}), 0)[0] == ["1"]


def test_a_node_that_joins_again_keeps_its_work_and_takes_the_new_record() -> None:
    oracle = cluster(zoned("1", "a", CPU=2))
    oracle.apply(AskRunning(Ask.of("x", {"CPU": 1}), "1"), NodeTainted("1", FAST), NodeDrained("1"))
    oracle.apply(NodeJoined(zoned("1", "b", CPU=4)))
    assert (oracle.placed, oracle.free("1")) == ({"x": "1"}, {"CPU": 30_000})
    assert oracle.verdict(Ask.of("w", {"CPU": 3}), 0)[0] == ["1"]


def test_what_the_cluster_reports_wins_and_moves_the_work() -> None:
    oracle = cluster(zoned("1", CPU=1), zoned("2", CPU=1))
    x = Ask.of("x", {"CPU": 1})
    oracle.apply(AskRunning(x, "1"), AskRunning(x, "2"))
    assert (oracle.placed, oracle.free("1"), oracle.free("2")) == ({"x": "2"}, {"CPU": 10_000}, {"CPU": 0})


def test_an_ask_without_affinities_or_resources_fits_every_node() -> None:
    oracle = cluster(Node("1"), Node("2", labels=EMPTY))
    assert oracle.verdict(Ask("w", (Choice(selector=ANYWHERE),), affinities=((),)), 0) == (["1", "2"], [])
