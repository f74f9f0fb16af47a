"""The options of one submission and their route: what Ray checks, what the pass checks, what is ranked."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest
from ray.util import scheduling_strategies

from stead.errors import Invalid
from stead.language.asks import Preference
from stead.language.labels import ANYWHERE, Requirement, Selector
from stead.language.selectors import parse_label_selector, parse_selector
from stead.language.strategies import (
    Exists,
    In,
    LabelMatchExpression,
    LabelMatchOperator,
    NodeAffinity,
    NodeAffinitySchedulingStrategy,
    NotIn,
    Wants,
    actor_affinity,
    affinity,
    label_does_not_exist,
    label_exists,
    label_in,
    label_not_in,
    node_affinity,
    node_labels,
)
from stead.language.taints import Effect, Toleration
from stead.ray.submit.compile import ENTRIES_MAX, OWN_OPTIONS, Pass, Route, Wish, is_plain, route

rays: Any = scheduling_strategies
Options = dict[str, Any]
ID, OTHER_ID = "a" * 56, "b" * 56
MARKET, REGION = "ray.io/market-type", "ray.io/availability-region"


@contextmanager
def refused(*parts: str) -> Iterator[None]:
    """The block is refused in one sentence that contains every part: what is wrong, and a good value."""
    with pytest.raises(Invalid) as caught:
        yield
    message = str(caught.value)
    assert "\n" not in message and ". " not in message and not message.endswith(".")
    for part in parts:
        assert part in message, message


def on(text: str) -> Selector:
    return parse_selector(text)


def prefer(text: str, weight: int = 100) -> Preference:
    return Preference(on(text), weight)


def native(options: Options) -> list[dict[str, str]]:
    """What Ray gets: the selector, then the fallbacks."""
    found = route(options)
    return [dict(entry) for entry in (found.label_selector, *found.fallback_strategy)]


def by(strategy: Any, **more: Any) -> Options:
    return {"scheduling_strategy": strategy, **more}


def fallbacks(*selectors: Mapping[str, str]) -> list[dict[str, Mapping[str, str]]]:
    return [{"label_selector": selector} for selector in selectors]


def group_strategy() -> Any:
    return rays.PlacementGroupSchedulingStrategy(placement_group=object(), placement_group_bundle_index=0)


# Hard rules on labels that can change go through the pass.


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (by(node_affinity(label_in("gpu_type", ["A100", "P100"]))), "gpu_type in [A100, P100]"),
        (by(node_affinity(label_not_in("gpu_type", ["A100"]))), "gpu_type not in [A100]"),
        (by(node_affinity(label_exists("gpu_type"))), "gpu_type"),
        (by(node_affinity(label_does_not_exist("gpu_type"))), "not gpu_type"),
        (by(node_affinity([label_in("zone", ["a"]), label_exists("disk")])), "disk and zone = a"),
        (by([node_affinity(label_in("zone", ["a"])), node_affinity(label_exists("disk"))]), "disk and zone = a"),
    ],
)
def test_hard_expressions_become_the_pass(options: Options, expected: str) -> None:
    found = route(options)
    assert found.wish == Wish(Pass(on(expected)))
    assert found.choices == (on(expected),)
    assert native(options) == [{}]
    assert found.strategy is None


@pytest.mark.parametrize("key", ["node_id", "node_ip", "node_name", "ray.io/node-id", "ray.io/accelerator-type"])
def test_node_ids_and_accelerators_are_never_left_to_ray(key: str) -> None:
    found = route(by(node_affinity(label_in(key, ["x"]))))
    assert found.wish.admits.selector == Selector.all_of(Requirement.is_in(key, "x"))
    assert not found.label_selector


@pytest.mark.parametrize(
    "strategy",
    [
        node_affinity(label_in("gpu_type", ["A100", "T100"])),
        NodeAffinity([("gpu_type", LabelMatchOperator.IN, ["A100", "T100"], False)]),
        NodeAffinitySchedulingStrategy([LabelMatchExpression("gpu_type", "in", ["T100", "A100"], soft=False)]),
        NodeAffinitySchedulingStrategy(
            [LabelMatchExpression("gpu_type", match_operator="IN", values=["T100", "A100"])]
        ),
        "gpu_type in [A100, T100]",
        ["gpu_type in [A100, T100]"],
        on("gpu_type in [A100, T100]"),
        rays.NodeLabelSchedulingStrategy({"gpu_type": rays.In("A100", "T100")}),
    ],
    ids=lambda strategy: type(strategy).__name__,
)
def test_every_spelling_has_the_same_pass(strategy: Any) -> None:
    assert route(by(strategy)) == route({"label_selector": {"gpu_type": "in(A100,T100)"}})


@pytest.mark.parametrize(
    "strategy", [NodeAffinitySchedulingStrategy(ID, False), NodeAffinitySchedulingStrategy(node_id=ID)]
)
def test_steads_node_affinity_strategy_is_a_pin_in_the_pass(strategy: Any) -> None:
    found = route(by(strategy))
    assert found.wish == Wish(Pass(Selector.all_of(Requirement.is_in("node_id", ID))))
    assert found.pins == (ID,)
    assert found.strategy is None
    assert not found.label_selector


def test_steads_soft_node_affinity_strategy_is_a_preference() -> None:
    found = route(by(NodeAffinitySchedulingStrategy(node_id=ID, soft=True)))
    assert found.wish == Wish(Pass(), prefers=(Preference(Selector.all_of(Requirement.is_in("node_id", ID))),))
    assert found.pins == ()


def test_expressions_joined_by_or_are_one_pass() -> None:
    expressions = [label_in("zone", ["a"]), label_exists("disk"), label_in("rack", ["r1"], is_soft=True)]
    found = route(by(node_affinity(expressions, is_or_semantics=True)))
    assert found.wish == Wish(Pass(on("disk or zone = a")), prefers=(prefer("rack = r1"),))


# Strategies together.


@pytest.mark.parametrize("word", ["DEFAULT", "SPREAD"])
def test_rays_own_strategy_names_are_passed_on(word: str) -> None:
    assert route(by(word)).strategy == word
    assert route(by([node_affinity(label_in("zone", ["a"])), word])).strategy == word


@pytest.mark.parametrize(
    "strategy",
    [group_strategy(), rays.NodeAffinitySchedulingStrategy(ID, False), rays.NodeAffinitySchedulingStrategy(ID, True)],
    ids=["group", "hard pin", "soft pin"],
)
def test_rays_own_strategies_are_passed_on_unchanged_and_need_no_pass(strategy: Any) -> None:
    assert route(by(strategy)).strategy is strategy
    assert route(by(strategy)).wish.key == "plain"
    together = route(by([strategy, "zone = a"]))
    assert together.strategy is strategy
    assert together.wish == Wish(Pass(on("zone = a")))


@pytest.mark.parametrize(
    "strategies",
    [["SPREAD", "DEFAULT"], ["SPREAD", group_strategy()], [rays.NodeAffinitySchedulingStrategy(ID, True), "SPREAD"]],
)
def test_two_of_rays_own_strategies_are_refused(strategies: list[Any]) -> None:
    with refused("scheduling_strategy has", "'SPREAD'"):
        route(by(strategies))


def test_none_in_a_list_of_strategies_is_ignored() -> None:
    assert route(by([])) == route(by([None])) == route(by(None)) == route({})


def test_rays_strategy_name_in_another_case_is_refused_and_not_read_as_a_label() -> None:
    with refused("'spread'", "'SPREAD'"):
        route(by("spread"))


@pytest.mark.parametrize("is_soft", [False, True])
def test_rules_on_other_work_leave_the_choice_to_the_engine(is_soft: bool) -> None:
    found = route(by([actor_affinity(affinity("actor-1", is_soft)), "SPREAD"]))
    assert found.is_decided
    assert found.strategy == "SPREAD"
    assert bool(found.affinities) != is_soft
    assert len(found.prefers) == is_soft


def test_an_unknown_strategy_is_refused() -> None:
    with refused("does not know the strategy", "node_affinity"):
        route(by(object()))


# Pins: the nodes without which it fails at once.


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (by(node_affinity(label_in("node_id", ["y", "x"]))), ("x", "y")),
        (by(node_affinity([label_in("node_id", ["y", "x"]), label_exists("zone")])), ("x", "y")),
        (by(node_affinity([label_in("node_id", ["y", "x"]), label_not_in("ray.io/node-id", ["x"])])), ("y",)),
        (by("node_id = x or ray.io/node-id = y and zone"), ("x", "y")),
        (by("node_id = x or zone"), ()),
        (by("node_name = x"), ()),
        (by(node_affinity(label_not_in("node_id", ["x"]))), ()),
        (by(node_affinity(label_in("node_id", ["x"], is_soft=True))), ()),
        (
            {"label_selector": {"ray.io/node-id": "in(x,y)"}, "fallback_strategy": fallbacks({"node_id": "z"})},
            ("x", "y", "z"),
        ),
        ({"label_selector": {"ray.io/node-id": "x"}, "fallback_strategy": fallbacks({})}, ()),
        (by(rays.NodeAffinitySchedulingStrategy(ID, False)), (ID,)),
        (by(rays.NodeAffinitySchedulingStrategy(ID, True)), ()),
        (by([rays.NodeAffinitySchedulingStrategy(ID, False), "zone = a"]), (ID,)),
        (by("nowhere"), ()),
        ({}, ()),
    ],
)
def test_pins_are_the_nodes_that_the_hard_rules_name(options: Options, expected: tuple[str, ...]) -> None:
    assert route(options).pins == expected


# Label selectors and fallbacks.


@pytest.mark.parametrize("strategy", [None, "SPREAD", "DEFAULT", rays.NodeAffinitySchedulingStrategy(ID, True)])
def test_a_label_selector_combines_with_any_strategy(strategy: Any) -> None:
    found = route(by(strategy, label_selector={"zone": "a", MARKET: "spot"}))
    assert found.wish.admits.selector == on(f"{MARKET} = spot and zone = a")
    assert dict(found.label_selector) == {MARKET: "spot"}, "what Ray can say helps its autoscaler"
    assert found.strategy is strategy


@pytest.mark.parametrize(
    ("condition", "told"),
    [
        ("spot", "spot"),
        ("!spot", "!spot"),
        ("in(spot,on-demand)", "in(on-demand,spot)"),
        ("IN( spot )", "spot"),
        ("!in(spot, on-demand)", "!in(on-demand,spot)"),
        ("exists()", None),
        ("!exists()", None),
        ("gt(3)", None),
        ("lt(3)", None),
        ('""', None),
        ("!in(a,'')", None),
    ],
)
def test_ray_gets_what_it_can_express_and_the_pass_the_rest(condition: str, told: str | None) -> None:
    selector = parse_label_selector({MARKET: condition})
    found = route({"label_selector": {MARKET: condition}})
    assert found.choices == (selector,)
    assert dict(found.label_selector) == ({} if told is None else {MARKET: told})
    assert found.wish == Wish(Pass(ANYWHERE if told else selector))


@pytest.mark.parametrize("condition", ["(x)", "!(x)", "in()", "isin(a)", None, ["a"]])
def test_typos_in_a_condition_are_refused(condition: Any) -> None:
    with refused(MARKET):
        route({"label_selector": {MARKET: condition}})
    with refused(MARKET):
        route({"fallback_strategy": [{"label_selector": {MARKET: condition}}]})


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (
            {"label_selector": {MARKET: "spot"}, "fallback_strategy": fallbacks({MARKET: "on-demand"}, {})},
            [{MARKET: "spot"}, {MARKET: "on-demand"}, {}],
        ),
        ({"fallback_strategy": fallbacks({MARKET: "spot"})}, [{}, {MARKET: "spot"}]),
        (
            {"label_selector": {MARKET: "spot"}, "fallback_strategy": fallbacks({MARKET: "in(spot)"})},
            [{MARKET: "spot"}],
        ),
        (
            by(f"{REGION} = r1", label_selector={MARKET: "spot"}, fallback_strategy=fallbacks({})),
            [{MARKET: "spot", REGION: "r1"}, {REGION: "r1"}],
        ),
        ({"fallback_strategy": []}, [{}]),
        ({"fallback_strategy": None, "label_selector": None}, [{}]),
        ({"fallback_strategy": [{"label_selector": None}]}, [{}]),
        (by(f"{MARKET} in [spot, x] and {MARKET} != x"), [{MARKET: "spot"}]),
        (by(f"{MARKET} != y and {MARKET} != x"), [{MARKET: "!in(x,y)"}]),
    ],
)
def test_fallbacks_on_rays_own_labels_go_to_ray(options: Options, expected: list[dict[str, str]]) -> None:
    assert native(options) == expected
    assert route(options).wish == Wish(Pass())


def test_fallbacks_on_dynamic_labels_are_ranked_under_one_pass() -> None:
    found = route(
        {"label_selector": {"zone": "a", MARKET: "spot"}, "fallback_strategy": fallbacks({"zone": "b", MARKET: "spot"})}
    )
    first, second = on(f"{MARKET} = spot and zone = a"), on(f"{MARKET} = spot and zone = b")
    assert found.wish == Wish(Pass(Selector(first.terms + second.terms)), (first, second))
    assert found.choices == (first, second)
    assert dict(found.label_selector) == {MARKET: "spot"}, "common to all choices"
    assert found.fallback_strategy == ()


def test_one_choice_that_ray_cannot_express_makes_the_engine_order_all() -> None:
    found = route({"label_selector": {MARKET: "spot"}, "fallback_strategy": fallbacks({MARKET: "exists()"})})
    assert found.wish.choices == (on(f"{MARKET} = spot"), on(MARKET))
    assert dict(found.label_selector) == {}
    assert found.fallback_strategy == ()


def test_the_order_of_choices_is_part_of_the_wish_but_not_of_its_pass() -> None:
    one = route({"label_selector": {"zone": "a"}, "fallback_strategy": fallbacks({"zone": "b"})}).wish
    other = route({"label_selector": {"zone": "b"}, "fallback_strategy": fallbacks({"zone": "a"})}).wish
    assert one.key != other.key
    assert one.admits.key == other.admits.key


@pytest.mark.parametrize(
    ("given", "parts"),
    [
        ({"label_selector": {"zone": "a"}}, ["fallback_strategy must be a list"]),
        ("zone", ["fallback_strategy must be a list", "'zone'"]),
        ([{}], ["{}", "label_selector"]),
        (["zone"], ["'zone'", "label_selector"]),
        ([{"label_selector": {"zone": "a"}, "num_cpus": 1}], ["'num_cpus'", "for example"]),
        ([{"label_selector": "zone"}], ["label_selector must be a map"]),
    ],
)
def test_a_bad_fallback_is_refused(given: Any, parts: list[str]) -> None:
    with refused(*parts):
        route({"fallback_strategy": given})


# Preferences.


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (by(node_affinity(label_in(MARKET, ["spot"], is_soft=True))), [{MARKET: "spot"}, {}]),
        (
            by(node_affinity([label_in(MARKET, ["spot"], True), label_in(MARKET, ["spot", "x"])])),
            [{MARKET: "spot"}, {MARKET: "in(spot,x)"}],
        ),
        (
            by([Wants(prefers=(prefer(f"{MARKET} = spot", 10), prefer(f"{REGION} = r1", 20)))]),
            [{MARKET: "spot", REGION: "r1"}, {REGION: "r1"}, {MARKET: "spot"}, {}],
        ),
        (
            by([Wants(prefers=(prefer(f"{MARKET} = spot", 10), prefer(f"{MARKET} = x", 20)))]),
            [{MARKET: "x"}, {MARKET: "spot"}, {}],
        ),
        (
            by(
                node_affinity(label_in(MARKET, ["spot"], True)),
                label_selector={REGION: "r1"},
                fallback_strategy=fallbacks({REGION: "r2"}),
            ),
            [{MARKET: "spot", REGION: "r1"}, {REGION: "r1"}, {MARKET: "spot", REGION: "r2"}, {REGION: "r2"}],
        ),
        (by(node_affinity(label_in(MARKET, ["x"], True)), label_selector={MARKET: "spot"}), [{MARKET: "spot"}]),
        (by([Wants(prefers=(prefer(f"{MARKET} in [x, y]"),)), f"{MARKET} != x"]), [{MARKET: "y"}, {MARKET: "!x"}]),
    ],
)
def test_preferences_on_rays_own_labels_are_fallbacks(options: Options, expected: list[dict[str, str]]) -> None:
    assert native(options) == expected
    assert route(options).wish == Wish(Pass())


def test_ray_gets_a_preference_it_can_express_in_addition_to_a_pass() -> None:
    options = by(node_affinity([label_in(MARKET, ["spot"], is_soft=True), label_in("zone", ["a"])]))
    assert route(options).wish == Wish(Pass(on("zone = a")))
    assert native(options) == [{MARKET: "spot"}, {}]


def test_preferences_that_ray_cannot_express_are_ranked() -> None:
    found = route(by(node_affinity([label_in("zone", ["a"], is_soft=True), label_in(MARKET, ["spot"])])))
    assert found.wish == Wish(Pass(), prefers=(prefer("zone = a"),))
    assert dict(found.label_selector) == {MARKET: "spot"}
    assert found.fallback_strategy == ()


def test_choices_are_ranked_together_with_preferences_that_ray_cannot_express() -> None:
    found = route(
        by(
            node_affinity(label_in("zone", ["a"], is_soft=True)),
            label_selector={MARKET: "spot"},
            fallback_strategy=fallbacks({}),
        )
    )
    assert found.wish == Wish(Pass(), (on(f"{MARKET} = spot"), ANYWHERE), (prefer("zone = a"),))
    assert native_of(found) == [{}]


def test_too_many_preferences_for_ray_are_ranked() -> None:
    keys = [f"ray.io/k{n}" for n in range(4)]
    few = by(node_affinity([label_in(key, ["x"], is_soft=True) for key in keys[:3]]))
    many = by(node_affinity([label_in(key, ["x"], is_soft=True) for key in keys]))
    assert len(native(few)) == ENTRIES_MAX
    assert not route(few).wish.prefers
    assert native(many) == [{}]
    assert len(route(many).wish.prefers) == 4


def native_of(found: Route) -> list[dict[str, str]]:
    return [dict(entry) for entry in (found.label_selector, *found.fallback_strategy)]


# Ray's own label strategy.


def test_rays_label_strategy_obeys_dynamic_labels() -> None:
    conditions = {
        "a": rays.In("x", "y"),
        "b": rays.NotIn("x"),
        "c": rays.Exists(),
        "d": rays.DoesNotExist(),
    }
    found = route(by(rays.NodeLabelSchedulingStrategy(conditions, soft={"e": rays.In("x"), "f": rays.Exists()})))
    assert found.wish == Wish(
        Pass(on("a in [x, y] and b not in [x] and c and not d")), prefers=(prefer("e = x and f"),)
    )
    assert found.strategy is None


def test_plain_strings_mean_equal_and_not_equal() -> None:
    assert route(by(node_labels({"a": "x", "b": "!y"}))).wish == Wish(Pass(on("a = x and b != y")))


def test_rays_label_strategy_on_rays_own_labels_goes_to_ray() -> None:
    strategy = rays.NodeLabelSchedulingStrategy({MARKET: rays.NotIn("spot")}, soft={REGION: rays.In("r1")})
    assert native(by(strategy)) == [{MARKET: "!spot", REGION: "r1"}, {MARKET: "!spot"}]


# Tolerations and deadlines.


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"gpu": Exists()}, Toleration("gpu")),
        ({"gpu": rays.Exists()}, Toleration("gpu")),
        ({"gpu": rays.In("A100")}, Toleration("gpu", frozenset({"A100"}), complement=False)),
        ({"gpu": NotIn("A100")}, Toleration("gpu", frozenset({"A100"}))),
        ({"gpu": rays.NotIn("A100")}, Toleration("gpu", frozenset({"A100"}))),
        (
            {"gpu": Exists(effect="no-execute", seconds=300)},
            Toleration("gpu", effect=Effect.NO_EXECUTE, seconds=300.0),
        ),
    ],
)
def test_tolerations_are_part_of_the_pass(given: Any, expected: Toleration) -> None:
    found = route({"tolerations": given})
    assert found.wish == Wish(Pass(tolerations=(expected,)))
    assert found.wish.key not in ("plain", route({}).wish.key)
    assert found.ask("w", {}).tolerations == (expected,)


@pytest.mark.parametrize("given", ["gpu", {"gpu": "A100"}, {"gpu": rays.DoesNotExist()}, ["gpu"], ""])
def test_a_toleration_that_is_not_an_expression_is_refused(given: Any) -> None:
    assert not is_plain({"tolerations": given})
    with refused("Exists()"):
        route({"tolerations": given})


def test_a_deadline_is_a_positive_number_of_seconds() -> None:
    assert route({"deadline_s": 600}).deadline_s == 600.0
    assert route({}).deadline_s is None
    for bad in (0, -1, True, float("nan"), float("inf"), "600"):
        assert not is_plain({"deadline_s": bad})
        with refused("deadline_s", repr(bad), "600"):
            route({"deadline_s": bad})


# What is plain, and equal rules.


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"num_cpus": 2, "resources": {"x": 1}, "accelerator_type": "A100", "max_retries": 3},
        by(None),
        by("SPREAD", label_selector=None, fallback_strategy=None, tolerations=None, deadline_s=None),
        by("DEFAULT", label_selector={}, fallback_strategy=[], tolerations={}),
        by(group_strategy()),
        by(rays.NodeAffinitySchedulingStrategy(ID, False)),
    ],
)
def test_plain_options_have_the_plain_pass_and_nothing_else(options: Options) -> None:
    assert is_plain(options)
    found = route(options)
    assert (found.wish.key, found.wish.admits.key, native(options)) == ("plain", "plain", [{}])


@pytest.mark.parametrize(
    "options",
    [
        by(rays.NodeLabelSchedulingStrategy({"zone": rays.In("a")})),
        by(NodeAffinitySchedulingStrategy(node_id=ID, soft=True)),
        by("zone = a"),
        by(["SPREAD"]),
        by(object()),
        {"label_selector": {"zone": "a"}},
        {"label_selector": ""},
        {"fallback_strategy": fallbacks({})},
        {"tolerations": {"gpu": Exists()}},
        {"deadline_s": 5},
        {"policy": "flow"},
        {"policy": ""},
    ],
)
def test_options_that_need_stead_are_not_plain(options: Options) -> None:
    assert not is_plain(options)


def test_these_options_are_steads_own() -> None:
    assert set(OWN_OPTIONS) == {
        "tolerations",
        "deadline_s",
        "labels",
        "spread",
        "exclusive",
        "max_per_node",
        "policy",
        "priority",
        "preemptible",
    }


def test_equal_rules_in_another_order_are_one_route() -> None:
    one: Options = {
        "scheduling_strategy": node_affinity([label_in("b", ["x", "y"]), label_exists("a"), label_exists("s", True)]),
        "label_selector": {"c": "x", "d": "y"},
        "tolerations": {"gpu": Exists(), "spot": In("x", "y")},
    }
    other: Options = {
        "tolerations": {"spot": In("y", "x"), "gpu": Exists()},
        "label_selector": {"d": "y", "c": "x"},
        "scheduling_strategy": ["b in [y, x]", node_affinity(label_exists("s", True)), "a"],
    }
    assert route(one) == route(other)
    assert route(one).wish.key == route(other).wish.key
    assert hash(route(one)) == hash(route(other))


def test_a_key_is_the_same_ten_hex_digits_in_every_process() -> None:
    """Keys are part of resource names that other processes created: changing them changes what existing clusters
    hold."""
    assert Pass(on("zone = a")).key == "b01f522d29"
    assert Pass(tolerations=(Toleration("gpu"), Toleration("gpu"))).key == Pass(tolerations=(Toleration("gpu"),)).key
    assert Wish(Pass(on("zone = a"))).key == "b01f522d29"
    assert Wish(Pass(on("zone = a")), prefers=(prefer("disk"),)).key == "e09e4ff0b8"


def test_a_route_travels_between_processes() -> None:
    found = route(
        by(["zone = a or disk", "SPREAD"], tolerations={"gpu": Exists()}, fallback_strategy=fallbacks({MARKET: "x"}))
    )
    again = pickle.loads(pickle.dumps(found))
    assert again == found
    assert again.wish.key == found.wish.key


def test_an_ask_has_every_choice_with_the_resources_except_steads_own() -> None:
    found = route({"label_selector": {MARKET: "spot"}, "fallback_strategy": fallbacks({"zone": "a"})})
    ask = found.ask("w", {"CPU": 1, "accelerator_type:A100": 0.001, "stead.pass.plain": 0.0001})
    assert [choice.selector for choice in ask.choices] == [on(f"{MARKET} = spot"), on("zone = a")]
    assert {tuple(choice.resources) for choice in ask.choices} == {("CPU", "accelerator_type:A100")}
    assert ask.policy == "hybrid"
    assert route(by(["zone = a", "SPREAD"])).ask("w", {}).policy == "spread"


def test_an_ask_includes_rays_own_node_affinity() -> None:
    wanted = Selector.all_of(Requirement.is_in("node_id", ID))
    hard, soft = (route(by(rays.NodeAffinitySchedulingStrategy(ID, soft))).ask("w", {}) for soft in (False, True))
    assert [choice.selector for choice in hard.choices] == [wanted]
    assert soft.prefers == (Preference(wanted),)
    assert [choice.selector for choice in soft.choices] == [ANYWHERE]
