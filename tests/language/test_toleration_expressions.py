"""``tolerations={"gpu_node": Exists(), "gpu_type": In("A100")}`` and what it compiles to."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from stead.language.strategies import DoesNotExist, Exist, Exists, In, NotIn, tolerations
from stead.language.taints import Effect, Toleration
from tests.language.sentences import refused


def ray_class(name: str, **attributes: Any) -> Any:
    return type(name, (), attributes)()


@pytest.mark.parametrize(
    ("expression", "toleration"),
    [
        (Exists(), Toleration("k")),
        (Exist(), Toleration("k")),
        (In("a"), Toleration("k", frozenset({"a"}), False)),
        (In("a", "b"), Toleration("k", frozenset({"a", "b"}), False)),
        (In(["a", "b"]), Toleration("k", frozenset({"a", "b"}), False)),
        (In(""), Toleration("k", frozenset({""}), False)),
        (NotIn("a"), Toleration("k", frozenset({"a"}), True)),
        (Exists("NoSchedule"), Toleration("k", effect=Effect.NO_SCHEDULE)),
        (Exists(effect=Effect.NO_EXECUTE), Toleration("k", effect=Effect.NO_EXECUTE)),
        (Exists(effect="no-execute", seconds=300), Toleration("k", effect=Effect.NO_EXECUTE, seconds=300.0)),
        (Exists(seconds=0), Toleration("k", seconds=0.0)),
        (
            In("a", effect="NoExecute", seconds=1.5),
            Toleration("k", frozenset({"a"}), False, Effect.NO_EXECUTE, 1.5),
        ),
        (NotIn("a", effect="prefer-no-schedule"), Toleration("k", frozenset({"a"}), True, Effect.PREFER_NO_SCHEDULE)),
        (ray_class("In", values=["a", "b"]), Toleration("k", frozenset({"a", "b"}), False)),
        (ray_class("NotIn", values=("a",)), Toleration("k", frozenset({"a"}), True)),
        (ray_class("Exists"), Toleration("k")),
    ],
)
def test_an_expression_tolerates(expression: Any, toleration: Toleration) -> None:
    assert tolerations({"k": expression}) == (toleration,)


def test_every_key_of_the_map_is_a_toleration() -> None:
    both = tolerations({"gpu_node": Exists(), "example.com/gpu_type": In("A100")})
    assert both == (Toleration("gpu_node"), Toleration("example.com/gpu_type", frozenset({"A100"}), False))
    assert tolerations({}) == tolerations(None) == ()


def test_expressions_are_plain_values() -> None:
    assert In("a") == In(["a"])
    assert len({In("a"), NotIn("a"), In("b"), In("a")}) == 3
    assert hash(Exists(effect="NoExecute")) == hash(Exists(effect=Effect.NO_EXECUTE))
    for expression in (In("a", "b"), NotIn("a"), Exists("no-execute", 3), DoesNotExist()):
        assert pickle.loads(pickle.dumps(expression)) == expression


@pytest.mark.parametrize(
    ("wanted", "parts"),
    [
        ("gpu_node", ["tolerations must be a map such as {'gpu_node': Exists()}, not 'gpu_node'"]),
        (["gpu_node"], ["tolerations must be a map such as {'gpu_node': Exists()}, not ['gpu_node']"]),
        ({"gpu": "true"}, ["the toleration 'true' of 'gpu' is not valid", "{'gpu': Exists()}"]),
        ({"gpu": None}, ["the toleration None of 'gpu' is not valid", "{'gpu': Exists()}"]),
        ({"gpu": Exists}, ["of 'gpu' is not valid", "{'gpu': Exists()}"]),
        (
            {"gpu": DoesNotExist()},
            ["the toleration of 'gpu' is DoesNotExist()", "needs no toleration", "{'gpu': Exists()}"],
        ),
        ({"gpu": ray_class("DoesNotExist")}, ["the toleration of 'gpu' is DoesNotExist()", "{'gpu': Exists()}"]),
        ({"a b": Exists()}, ["taint key 'a b' contains ' '", "for example 'zone'"]),
        ({"": Exists()}, ["taint key '' must be a non-empty string", "for example 'zone'"]),
        ({"gpu": ray_class("In", values=[])}, ["the toleration of 'gpu' has no values", "{'gpu': In('A100')}"]),
        ({"gpu": ray_class("In")}, ["the toleration of 'gpu' has no values", "{'gpu': In('A100')}"]),
        ({"gpu": ray_class("In", values=["a b"])}, ["the tolerated value of 'gpu', 'a b' contains", "'us-west4-a'"]),
        ({"gpu": ray_class("NotIn", values=[3])}, ["the tolerated value of 'gpu', 3 must be a string", "'3'"]),
    ],
)
def test_what_tolerates_nothing_is_refused(wanted: Any, parts: list[str]) -> None:
    with refused(*parts):
        tolerations(wanted)


def made(kind: Any, *values: Any, **more: Any) -> Any:
    return kind(*values, **more)


@pytest.mark.parametrize(
    ("kind", "values", "more", "parts"),
    [
        (In, (), {}, ["In() needs at least one value, for example In('A100')"]),
        (NotIn, (), {}, ["NotIn() needs at least one value, for example NotIn('A100')"]),
        (In, ([],), {}, ["In() needs at least one value"]),
        (In, (3,), {}, ["the value of In, 3 must be a string, for example '3'"]),
        (NotIn, ("a b",), {}, ["the value of NotIn, 'a b' contains ' '", "for example 'us-west4-a'"]),
        (Exists, ("nosched",), {}, ["taint effect 'nosched' is unknown (did you mean 'NoSchedule'?)", "NoExecute"]),
        (In, ("a",), {"effect": 3}, ["taint effect 3 is unknown", "good values are NoSchedule"]),
        (Exists, (), {"seconds": -1}, ["toleration seconds -1 must be a number, 0 or more, for example 300"]),
        (Exists, (), {"seconds": True}, ["toleration seconds True must be a number, 0 or more, for example 300"]),
        (Exists, (), {"seconds": "5m"}, ["toleration seconds '5m' must be a number, 0 or more, for example 300"]),
        (Exists, (), {"seconds": float("nan")}, ["toleration seconds nan must be a number, 0 or more"]),
        (Exists, (), {"seconds": float("inf")}, ["toleration seconds inf must be a number, 0 or more"]),
        (
            Exists,
            ("no-schedule", 5),
            {},
            ["toleration seconds 5 have no effect with no-schedule", "use effect='no-execute'"],
        ),
    ],
)
def test_a_bad_expression_is_refused_when_it_is_made(kind: Any, values: Any, more: Any, parts: list[str]) -> None:
    with refused(*parts):
        made(kind, *values, **more)
