"""The weight of a soft expression: 1 to 100, by default 100; a hard expression has none."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import pytest

from stead.language.asks import Preference
from stead.language.selectors import parse_selector
from stead.language.strategies import (
    LabelMatchExpression,
    NodeAffinitySchedulingStrategy,
    actor_affinity,
    affinity,
    anti_affinity,
    label_does_not_exist,
    label_exist,
    label_exists,
    label_in,
    label_not_in,
    node_affinity,
    wants,
)
from tests.language.sentences import refused, refused_saying

Make = Callable[..., LabelMatchExpression]

MAKERS: list[Any] = [
    pytest.param(lambda *a, **k: label_in("zone", ["a"], *a, **k), id="label_in"),
    pytest.param(lambda *a, **k: label_not_in("zone", ["a"], *a, **k), id="label_not_in"),
    pytest.param(lambda *a, **k: label_exists("zone", *a, **k), id="label_exists"),
    pytest.param(lambda *a, **k: label_exist("zone", *a, **k), id="label_exist"),
    pytest.param(lambda *a, **k: label_does_not_exist("zone", *a, **k), id="label_does_not_exist"),
    pytest.param(lambda *a, **k: affinity("actor-1", *a, **k), id="affinity"),
    pytest.param(lambda *a, **k: anti_affinity("actor-1", *a, **k), id="anti_affinity"),
]


def weights(*expressions: LabelMatchExpression) -> list[int]:
    """The weights of the expressions as preferences, for nodes and for other work."""
    about_nodes = wants(node_affinity(list(expressions))).prefers
    about_work = wants(actor_affinity(list(expressions))).prefers
    assert [preference.weight for preference in about_nodes] == [preference.weight for preference in about_work]
    return [preference.weight for preference in about_nodes]


@pytest.mark.parametrize("make", MAKERS)
def test_a_soft_expression_has_its_weight(make: Make) -> None:
    assert weights(make(is_soft=True, weight=30)) == [30]
    assert weights(make(True, 30)) == [30]
    assert weights(make(is_soft=True, weight=1), make(is_soft=True, weight=100)) == [1, 100]


@pytest.mark.parametrize("make", MAKERS)
def test_a_soft_expression_without_a_weight_is_worth_100(make: Make) -> None:
    assert weights(make(True)) == weights(make(is_soft=True, weight=None)) == [100]
    assert make(True) == make(True, 100)


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("weight", [1, 50, 100])
def test_a_weight_on_a_hard_expression_is_refused(make: Make, weight: int) -> None:
    for hard in ({}, {"is_soft": False}):
        with refused(f"has weight={weight} but is hard", "is_soft=True, weight=50"):
            make(**hard, weight=weight)


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("weight", [0, 101, -1, True, False, "x", "5", 1.5, 50.0, [5], float("nan")])
@pytest.mark.parametrize("is_soft", [True, False])
def test_a_weight_is_a_whole_number_from_1_to_100(make: Make, weight: Any, is_soft: bool) -> None:
    with refused("must be a whole number from 1 to 100, for example 50", f"but is {weight!r}"):
        make(is_soft=is_soft, weight=weight)


def test_the_sentences_about_weights() -> None:
    with refused_saying(
        "the expression on label 'zone' has weight=30 but is hard, and only soft ones have a weight; write for example "
        "is_soft=True, weight=50"
    ):
        label_in("zone", ["a"], weight=30)
    with refused_saying(
        "the weight of the expression on label 'zone' must be a whole number from 1 to 100, for example 50, but is 101"
    ):
        label_in("zone", ["a"], is_soft=True, weight=101)


@pytest.mark.parametrize("name", ["soft", "is_soft"])
def test_an_expression_takes_its_weight_by_name(name: str) -> None:
    softness: dict[str, Any] = {name: True}
    expression = LabelMatchExpression("zone", "IN", ["a"], **softness, weight=7)
    assert expression == label_in("zone", "a", True, 7)
    assert expression != label_in("zone", "a", True, 8)
    assert pickle.loads(pickle.dumps(expression)) == expression
    (preference,) = wants(NodeAffinitySchedulingStrategy(expression)).prefers
    assert preference == Preference(parse_selector("zone = a"), 7)


def test_tuples_stay_as_they_are() -> None:
    assert weights(("zone", "IN", ["a"], True)) == [100]  # type: ignore[arg-type]  # a tuple is an expression too
    with refused("is not an expression for node_affinity"):
        node_affinity([("zone", "IN", ["a"], True, 5)])


def test_hard_and_soft_together() -> None:
    found = wants(node_affinity([label_exists("zone"), label_in("zone", "a", True, 5), label_in("zone", "b", True)]))
    assert str(found.selector) == "zone"
    assert [(str(preference.want), preference.weight) for preference in found.prefers] == [
        ("zone in {a}", 5),
        ("zone in {b}", 100),
    ]
