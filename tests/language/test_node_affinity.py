"""Node affinity in every spelling of Ray and of the node-affinity proposal, and what it compiles to."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from stead.language.asks import Preference
from stead.language.labels import ANYWHERE, Operator, Requirement, Selector
from stead.language.selectors import parse_selector
from stead.language.strategies import (
    DoesNotExist,
    Exists,
    In,
    LabelMatchExpression,
    LabelMatchOperator,
    NodeAffinity,
    NodeAffinitySchedulingStrategy,
    NotIn,
    Wants,
    label_does_not_exist,
    label_exist,
    label_exists,
    label_in,
    label_not_in,
    node_affinity,
    node_labels,
    wants,
)
from tests.language.sentences import refused

GPU = Requirement.is_in("gpu_type", "A100", "P100")
A100 = Requirement.is_in("gpu_type", "A100")
HAS_GPU = Requirement.exists("gpu_type")
NO_GPU = Requirement.does_not_exist("gpu_type")
OTHERS = Requirement.not_in("node_id", "x", "y")


def hard(*requirements: Requirement) -> Wants:
    return Wants(Selector.all_of(*requirements))


def soft(requirement: Requirement) -> Preference:
    return Preference(Selector.all_of(requirement), 100)


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        (node_affinity(label_in(key="gpu_type", values=["A100", "P100"], is_soft=False)), hard(GPU)),
        (node_affinity(label_in("gpu_type", "A100")), hard(A100)),
        (node_affinity(label_in("gpu_type", {"P100", "A100"})), hard(GPU)),
        (node_affinity(label_not_in("node_id", ["x", "y"])), hard(OTHERS)),
        (node_affinity(label_exist("gpu_type")), hard(HAS_GPU)),
        (node_affinity(label_exists("gpu_type", False)), hard(HAS_GPU)),
        (node_affinity(label_does_not_exist("gpu_type", is_soft=False)), hard(NO_GPU)),
        (node_affinity(label_in("gpu_type", ["A100"], True)), Wants(prefers=(soft(A100),))),
        (
            node_affinity([label_in("gpu_type", ["A100"], True), label_exists("gpu_type", False)]),
            Wants(Selector.all_of(HAS_GPU), prefers=(soft(A100),)),
        ),
        (node_affinity([label_exists("gpu_type"), label_not_in("node_id", ["x", "y"])]), hard(HAS_GPU, OTHERS)),
        (
            node_affinity([label_exists("gpu_type"), label_not_in("node_id", ["x", "y"])], is_or_semantics=True),
            Wants(Selector.any_of(HAS_GPU, OTHERS)),
        ),
        (
            node_affinity([label_exists("gpu_type"), label_in("gpu_type", "A100", True)], is_or_semantics=True),
            Wants(Selector.all_of(HAS_GPU), prefers=(soft(A100),)),
        ),
        (
            node_affinity([label_in("gpu_type", "A100", True), label_exists("gpu_type", True)], is_or_semantics=True),
            Wants(ANYWHERE, prefers=(soft(A100), soft(HAS_GPU))),
        ),
        (NodeAffinity([("gpu_type", LabelMatchOperator.IN, ["A100"], False)]), hard(A100)),
        (NodeAffinity([("node_id", LabelMatchOperator.NOT_IN, ["x", "y"])]), hard(OTHERS)),
        (
            NodeAffinity([("gpu_type", LabelMatchOperator.IN, ["A100"], True), ("gpu_type", LabelMatchOperator.Exist)]),
            Wants(Selector.all_of(HAS_GPU), prefers=(soft(A100),)),
        ),
        (NodeAffinity(("gpu_type", "exists")), hard(HAS_GPU)),
        (NodeAffinity("gpu_type in [A100, P100]"), hard(GPU)),
        (node_affinity("gpu_type or zone = a"), Wants(parse_selector("gpu_type or zone = a"))),
        (node_affinity("anywhere"), Wants()),
        (node_affinity(Selector.all_of(GPU)), hard(GPU)),
        (
            NodeAffinitySchedulingStrategy(
                [
                    LabelMatchExpression("gpu_type", LabelMatchOperator.IN, ["A100"], True),
                    LabelMatchExpression("gpu_type", LabelMatchOperator.EXISTS, None, False),
                ]
            ),
            Wants(Selector.all_of(HAS_GPU), prefers=(soft(A100),)),
        ),
        (NodeAffinitySchedulingStrategy(label_exists("gpu_type")), hard(HAS_GPU)),
        (
            NodeAffinitySchedulingStrategy([label_in("gpu_type", "A100"), label_exists("zone")], is_or_semantics=True),
            Wants(Selector.any_of(A100, Requirement.exists("zone"))),
        ),
        (NodeAffinitySchedulingStrategy(node_id="abc", soft=False), hard(Requirement.is_in("node_id", "abc"))),
        (NodeAffinitySchedulingStrategy(node_id="abc"), hard(Requirement.is_in("node_id", "abc"))),
        (
            NodeAffinitySchedulingStrategy(node_id="abc", soft=True),
            Wants(prefers=(soft(Requirement.is_in("node_id", "abc")),)),
        ),
        (NodeAffinitySchedulingStrategy("abc", False), hard(Requirement.is_in("node_id", "abc"))),
        (NodeAffinitySchedulingStrategy("abc", True), Wants(prefers=(soft(Requirement.is_in("node_id", "abc")),))),
        (NodeAffinitySchedulingStrategy("abc", soft=True), Wants(prefers=(soft(Requirement.is_in("node_id", "abc")),))),
        (NodeAffinitySchedulingStrategy(node_id=b"\xab\xcd"), hard(Requirement.is_in("node_id", "abcd"))),
    ],
)
def test_a_node_affinity_compiles_to(strategy: NodeAffinitySchedulingStrategy, expected: Wants) -> None:
    assert isinstance(strategy, NodeAffinitySchedulingStrategy)
    assert wants(strategy) == expected
    assert wants([strategy]) == expected
    assert pickle.loads(pickle.dumps(strategy)) == strategy


@pytest.mark.parametrize(
    ("spellings", "operator"),
    [
        (["IN", "in", "In", LabelMatchOperator.IN, Operator.IN], LabelMatchOperator.IN),
        (["NotIn", "NOT_IN", "not_in", "not in", "notin", Operator.NOT_IN], LabelMatchOperator.NOT_IN),
        (["Exists", "Exist", "EXISTS", "exist", LabelMatchOperator.Exist], LabelMatchOperator.EXISTS),
        (["DoesNotExist", "DOES_NOT_EXIST", "does-not-exist"], LabelMatchOperator.DOES_NOT_EXIST),
        (["Gt", "GT"], LabelMatchOperator.GT),
        (["Lt", "lt"], LabelMatchOperator.LT),
    ],
)
def test_an_operator_in_any_spelling(spellings: list[str], operator: LabelMatchOperator) -> None:
    for spelling in spellings:
        assert LabelMatchOperator.of(spelling) is operator


def test_both_keyword_sets_are_equal() -> None:
    one = LabelMatchExpression(key="k", operator="IN", values=["a"], soft=True)
    other = LabelMatchExpression(key="k", match_operator="in", values="a", is_soft=True)
    assert one == other
    assert hash(one) == hash(other)
    assert other.match_operator is one.operator is LabelMatchOperator.IN
    assert other.is_soft is one.soft is True
    assert one.values == ("a",)
    assert LabelMatchExpression("k", "exists", []).values == LabelMatchExpression("k", "exists").values == ()


@pytest.mark.parametrize(
    ("operator", "values", "requirement"),
    [
        ("Gt", 3, Requirement.greater_than("k", 3)),
        ("GT", ["3"], Requirement.greater_than("k", 3)),
        ("lt", " +4 ", Requirement.less_than("k", 4)),
    ],
)
def test_numbers_are_compared(operator: str, values: Any, requirement: Requirement) -> None:
    assert LabelMatchExpression("k", operator, values).requirement == requirement


@pytest.mark.parametrize("key", ["node_ip", "node_name", "node_id"])
def test_names_of_nodes_need_not_be_label_values(key: str) -> None:
    assert label_in(key, "fe80::1").requirement == Requirement.is_in(key, "fe80::1")


def invalid(*args: Any, **more: Any) -> Any:
    """A call to make later, with arguments that a type checker would refuse."""
    return lambda function: function(*args, **more)


GOOD = "node_affinity(label_in('zone', ['a']))"


@pytest.mark.parametrize(
    ("function", "call", "parts"),
    [
        (label_in, invalid("a b", ["x"]), ["label key 'a b' contains ' '", "for example 'zone'"]),
        (label_in, invalid("k", []), ["operator IN on label 'k' needs at least one value, for example ['A100']"]),
        (label_not_in, invalid("k", None), ["operator NOT_IN on label 'k' needs at least one value", "['A100']"]),
        (label_in, invalid("k", 3), ["the value for label 'k', 3 must be a string, for example '3'"]),
        (label_in, invalid("k", ["a b"]), ["the value for label 'k', 'a b' contains ' '", "'us-west4-a'"]),
        (label_in, invalid("k", {"a": 1}), ["the values of label 'k' must be a list such as ['A100', 'P100']"]),
        (label_in, invalid("k", object), ["the values of label 'k' must be a list such as ['A100', 'P100']"]),
        (label_in, invalid("k", "a", "b"), ["has is_soft='b', which must be True or False", "for example ['a', 'b']"]),
        (label_exists, invalid("k", ["a"]), ["has is_soft=['a'], which must be True or False"]),
        (LabelMatchExpression, invalid("k"), ["the expression on label 'k' has no operator", "for example 'IN'"]),
        (LabelMatchExpression, invalid("k", "inn"), ["operator 'inn' is unknown (did you mean 'IN'?)", "IN, NOT_IN"]),
        (LabelMatchExpression, invalid("k", 3), ["label operator 3 is unknown", "good values are IN, NOT_IN, EXISTS"]),
        (LabelMatchExpression, invalid("k", "exists", "a"), ["EXISTS on label 'k' takes no values", "'a'", "use []"]),
        (LabelMatchExpression, invalid("k", "gt", []), ["GT on label 'k' needs exactly one number, for example 3"]),
        (LabelMatchExpression, invalid("k", "gt", [1, 2]), ["exactly one number, for example 3, not [1, 2]"]),
        (LabelMatchExpression, invalid("k", "lt", "x"), ["the value 'x' that label 'k' is compared", "for example 3"]),
        (
            LabelMatchExpression,
            invalid("k", "in", "a", match_operator="in"),
            ["the expression on label 'k' has both operator= and match_operator=", "for example operator='in'"],
        ),
        (
            LabelMatchExpression,
            invalid("k", "in", "a", soft=True, is_soft=False),
            ["has both soft= and is_soft=", "for example soft=True"],
        ),
        (node_affinity, invalid(None), ["node_affinity needs at least one expression, for example", GOOD]),
        (node_affinity, invalid([]), ["node_affinity needs at least one expression, for example", GOOD]),
        (NodeAffinitySchedulingStrategy, invalid(), ["node_affinity needs at least one expression", GOOD]),
        (node_affinity, invalid(3), ["3 is not an expression for node_affinity", GOOD]),
        (node_affinity, invalid(["zone = a"]), ["'zone = a' is not an expression for node_affinity", GOOD]),
        (node_affinity, invalid([("zone",)]), ["('zone',) is not an expression for node_affinity", GOOD]),
        (node_affinity, invalid([("a", "in", "b", True, 5)]), ["5) is not an expression for node_affinity", GOOD]),
        (
            node_affinity,
            invalid(label_exists("a"), label_exists("b")),
            ["node_affinity has is_or_semantics=LabelMatchExpression", "must be True or False", GOOD],
        ),
        (node_affinity, invalid("zone ="), ["selector 'zone =' has its end", "for example 'gpu_type in [A100, T100]'"]),
        (
            NodeAffinitySchedulingStrategy,
            invalid("gpu_type in [A100]", False),
            ["node_id 'gpu_type in [A100]' is not a node id such as 'node-1'", "node_affinity('gpu_type in [A100]')"],
        ),
        (NodeAffinitySchedulingStrategy, invalid(node_id=""), ["node_id '' is not a node id such as 'node-1'"]),
        (NodeAffinitySchedulingStrategy, invalid(node_id=3), ["node_id 3 is not a node id such as 'node-1'"]),
        (NodeAffinitySchedulingStrategy, invalid("abc", "yes"), ["node affinity has is_soft='yes'", "True or False"]),
        (
            NodeAffinitySchedulingStrategy,
            invalid([label_exists("a")], node_id="abc"),
            ["takes expressions or node_id=, not both", "use label_in('node_id', [...])"],
        ),
        (
            NodeAffinitySchedulingStrategy,
            invalid([label_exists("a")], soft=True),
            ["has soft= without node_id=", "write is_soft=True on an expression instead"],
        ),
    ],
)
def test_a_mistake_is_refused_in_one_sentence(function: Any, call: Any, parts: list[str]) -> None:
    with refused(*parts):
        call(function)


@pytest.mark.parametrize(
    ("hard_map", "soft_map", "expected"),
    [
        ({"gpu_type": In("A100", "P100")}, None, hard(GPU)),
        ({"gpu_type": In(["A100", "P100"])}, {}, hard(GPU)),
        ({"gpu_type": Exists()}, None, hard(HAS_GPU)),
        ({"gpu_type": DoesNotExist()}, None, hard(NO_GPU)),
        ({"node_id": NotIn("x", "y")}, None, hard(OTHERS)),
        ({"gpu_type": "A100"}, None, hard(A100)),
        ({"gpu_type": "!A100"}, None, hard(Requirement.not_in("gpu_type", "A100"))),
        ({}, None, Wants()),
        (None, None, Wants()),
        (
            {"zone": In("a")},
            {"gpu_type": In("A100"), "spot": DoesNotExist()},
            Wants(
                Selector.all_of(Requirement.is_in("zone", "a")),
                prefers=(Preference(Selector.all_of(A100, Requirement.does_not_exist("spot"))),),
            ),
        ),
    ],
)
def test_node_labels_hard_and_soft(hard_map: Any, soft_map: Any, expected: Wants) -> None:
    assert node_labels(hard_map, soft=soft_map) == expected
    assert wants(node_labels(hard_map, soft_map)) == expected


@pytest.mark.parametrize(
    ("conditions", "parts"),
    [
        ("zone=a", ["label conditions must be a map such as {'zone': In('a')}, not 'zone=a'"]),
        (3, ["label conditions must be a map such as {'zone': In('a')}, not 3"]),
        ({"k": 3}, ["the condition 3 on label 'k' is unknown", "{'k': In('a')}"]),
        ({"k": Exists}, ["on label 'k' is unknown", "{'k': In('a')}"]),
        ({"a b": In("x")}, ["label key 'a b' contains ' '"]),
        ({"k": "in()"}, ["the condition 'in()' on label 'k' is not valid", "'in(a,b)'"]),
        ({"k": Exists(effect="no-execute")}, ["effect and seconds on label 'k' belong to tolerations", "In('a')"]),
        ({"k": In("a", seconds=0)}, ["effect and seconds on label 'k' belong to tolerations"]),
    ],
)
def test_bad_node_labels_are_refused(conditions: Any, parts: list[str]) -> None:
    with refused(*parts):
        node_labels(conditions)


def ray_class(name: str, **attributes: Any) -> Any:
    """An object with the class name and attributes of Ray's own class."""
    return type(name, (), attributes)()


def test_rays_own_strategies_are_known_without_importing_ray() -> None:
    conditions = [ray_class("_LabelMatchExpression", key="gpu_type", operator=ray_class("In", values=["A100"]))]
    preferred = [ray_class("_LabelMatchExpression", key="gpu_type", operator=ray_class("Exists"))]
    labels = ray_class("NodeLabelSchedulingStrategy", hard=conditions, soft=preferred)
    assert wants(labels) == Wants(Selector.all_of(A100), prefers=(soft(HAS_GPU),))
    pinned = ray_class("NodeAffinitySchedulingStrategy", node_id="abc", soft=False)
    assert wants(pinned) == hard(Requirement.is_in("node_id", "abc"))


def test_a_list_of_strategies_is_and() -> None:
    either = node_affinity([label_in("zone", "a"), label_in("zone", "b")], is_or_semantics=True)
    both = wants([either, node_affinity([label_exists("gpu_type"), label_exists("spot", True)])])
    zone_a, zone_b = Requirement.is_in("zone", "a"), Requirement.is_in("zone", "b")
    assert both.selector == Selector(((zone_a, HAS_GPU), (zone_b, HAS_GPU)))
    assert both.prefers == (soft(Requirement.exists("spot")),)
    assert wants(None) == wants([]) == Wants()


def test_alternatives_of_labels_are_bounded() -> None:
    either = [node_affinity([label_in(f"k{n}", "a"), label_in(f"k{n}", "b")], True) for n in range(9)]
    assert len(wants(either[:8]).selector.terms) == 256
    with refused("has 512 alternatives", "at most 256 are allowed"):
        wants(either)


@pytest.mark.parametrize(
    ("strategy", "parts"),
    [
        ("SPREAD", ["stead does not know the strategy 'SPREAD'", GOOD]),
        (3, ["stead does not know the strategy 3", GOOD]),
        (label_exists("a"), ["an expression alone does not say whether it is about nodes or actors", GOOD]),
        ([label_exists("a")], ["an expression alone does not say whether it is about nodes or actors", GOOD]),
    ],
)
def test_what_is_not_a_strategy_is_refused(strategy: Any, parts: list[str]) -> None:
    with refused(*parts):
        wants(strategy)
