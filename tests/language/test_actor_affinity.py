"""Near and apart from other work, by handle and by label, and what it compiles to."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from stead.language.asks import ASK_ID, Affinity, Preference
from stead.language.labels import Requirement, Selector
from stead.language.strategies import (
    ActorAffinitySchedulingStrategy,
    LabelMatchExpression,
    Wants,
    actor_affinity,
    affinity,
    anti_affinity,
    label_does_not_exist,
    label_exists,
    label_in,
    label_not_in,
    node_affinity,
    wants,
)
from tests.language.sentences import refused

EVERY_NAMESPACE: frozenset[str] = frozenset()


class Id:
    def __init__(self, text: str) -> None:
        self.text = text

    def hex(self) -> str:
        return self.text


class Handle:
    """An object with the attributes of a Ray actor handle."""

    def __init__(self, name: str, value: Any) -> None:
        setattr(self, name, value)

    _actor_id: object


def near(requirement: Requirement, topology: str = "node_id") -> Affinity:
    namespaces = EVERY_NAMESPACE if requirement.key == ASK_ID else None
    return Affinity(Selector.all_of(requirement), True, (topology,), namespaces)


def apart(requirement: Requirement, topology: str = "node_id") -> Affinity:
    namespaces = EVERY_NAMESPACE if requirement.key == ASK_ID else None
    return Affinity(Selector.all_of(requirement), False, (topology,), namespaces)


A, B = Requirement.is_in(ASK_ID, "a"), Requirement.is_in(ASK_ID, "b")
EITHER = Requirement.is_in(ASK_ID, "a", "b")
IN_DC = Requirement.is_in("location", "dc_1")
HAS_LOCATION = Requirement.exists("location")


@pytest.mark.parametrize(
    ("strategy", "affinities"),
    [
        (actor_affinity(affinity("a")), ((near(A),),)),
        (actor_affinity(affinity("a", False)), ((near(A),),)),
        (actor_affinity(affinity(["a", "b"])), ((near(EITHER),),)),
        (actor_affinity(anti_affinity("a")), ((apart(A),),)),
        (actor_affinity(anti_affinity(("a", "b"))), ((apart(EITHER),),)),
        (actor_affinity([anti_affinity("a"), anti_affinity("b")]), ((apart(A), apart(B)),)),
        (actor_affinity([affinity("a"), affinity("b")], is_or_semantics=True), ((near(A),), (near(B),))),
        (actor_affinity(label_in("location", ["dc_1"])), ((near(IN_DC),),)),
        (actor_affinity(label_exists("location")), ((near(HAS_LOCATION),),)),
        (actor_affinity(label_not_in("location", ["dc_1"])), ((apart(IN_DC),),)),
        (actor_affinity(label_does_not_exist("location")), ((apart(HAS_LOCATION),),)),
        (
            actor_affinity([label_in("location", ["dc_1"]), label_exists("location")]),
            ((near(IN_DC), near(HAS_LOCATION)),),
        ),
        (
            actor_affinity(LabelMatchExpression("size", "gt", 3)),
            ((near(Requirement.greater_than("size", 3)),),),
        ),
        (
            actor_affinity(LabelMatchExpression("size", "lt", 3)),
            ((near(Requirement.less_than("size", 3)),),),
        ),
        (
            ActorAffinitySchedulingStrategy(
                [LabelMatchExpression(key="actor_id", match_operator="IN", values=["a"], is_soft=False)]
            ),
            ((near(A),),),
        ),
        (
            ActorAffinitySchedulingStrategy(
                LabelMatchExpression(key="actor_id", match_operator="NOT_IN", values="a", is_soft=False)
            ),
            ((apart(A),),),
        ),
        (actor_affinity(("location", "in", "dc_1")), ((near(IN_DC),),)),
        (actor_affinity(affinity("a"), topology="zone"), ((near(A, "zone"),),)),
        (actor_affinity(label_not_in("location", "dc_1"), topology="rack"), ((apart(IN_DC, "rack"),),)),
    ],
)
def test_an_actor_affinity_compiles_to(strategy: ActorAffinitySchedulingStrategy, affinities: Any) -> None:
    assert wants(strategy) == Wants(affinities=affinities)
    assert pickle.loads(pickle.dumps(strategy)) == strategy


def test_soft_expressions_are_preferences_also_beside_alternatives() -> None:
    expressions = [affinity("a", True), anti_affinity("b", is_soft=True), label_exists("location")]
    expected = Wants(affinities=((near(HAS_LOCATION),),), prefers=(Preference(near(A)), Preference(apart(B))))
    assert wants(actor_affinity(expressions)) == wants(actor_affinity(expressions, True)) == expected
    assert wants(actor_affinity(affinity("a", True), True)) == Wants(prefers=(Preference(near(A), 100),))


def test_several_topologies_hold_together() -> None:
    (only,) = wants(actor_affinity(affinity("a"), topology=["zone", "rack"])).affinities[0]
    assert only.topologies == ("zone", "rack")


def test_an_id_is_meant_in_every_namespace_and_labels_in_ones_own() -> None:
    by_id, by_label = wants(actor_affinity([affinity("a"), label_exists("location")])).affinities[0]
    assert by_id.namespaces == frozenset()
    assert by_id.by_identity
    assert by_label.namespaces is None
    assert not by_label.by_identity
    assert not by_id.symmetric


@pytest.mark.parametrize(
    "handle",
    [
        "a",
        Handle("_actor_id", Id("a")),
        Handle("_ray_actor_id", Id("a")),
        Handle("_actor_id", "a"),
        [Handle("_actor_id", Id("a"))],
        ("a",),
        {"a"},
    ],
)
def test_an_actor_is_known_by_id_or_handle(handle: Any) -> None:
    assert affinity(handle) == LabelMatchExpression("actor_id", "IN", ["a"], False)
    assert anti_affinity(handle, True) == LabelMatchExpression("actor_id", "NOT_IN", ["a"], True)


def test_an_id_may_be_bytes_and_need_not_be_a_label_value() -> None:
    assert affinity(Handle("_actor_id", b"\x0a\xff")).values == ("0aff",)
    assert affinity("job 1/actor:2").values == ("job 1/actor:2",)


@pytest.mark.parametrize(
    "handle", [None, 3, "", object(), Handle, Handle("_actor_id", None), Handle("_actor_id", 3), [None], ["a", ""]]
)
def test_what_is_not_an_actor_is_refused(handle: Any) -> None:
    with refused("is not an actor; give a handle or an actor id, for example affinity(Actor.remote())"):
        affinity(handle)


@pytest.mark.parametrize("function", [affinity, anti_affinity])
def test_an_affinity_needs_an_actor(function: Any) -> None:
    with refused("affinity needs at least one actor, for example affinity(actor), but has an empty list"):
        function([])
    with refused("has is_soft='b', which must be True or False", "for example ['a', 'b']"):
        function("a", "b")


GOOD = "actor_affinity(affinity(actor))"


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (("a",), ["'a' is not an expression for actor_affinity", GOOD]),
        ((Handle("_actor_id", Id("a")),), ["is not an expression for actor_affinity", GOOD]),
        (([],), ["actor_affinity needs at least one expression, for example", GOOD]),
        ((None,), ["None is not an expression for actor_affinity", GOOD]),
        ((affinity("a"), affinity("b")), ["actor_affinity has is_or_semantics=LabelMatchExpression", GOOD]),
        ((affinity("a"), False, "a b"), ["topology 'a b' contains ' '", "for example 'zone'"]),
        ((affinity("a"), False, [3]), ["topology 3 must be a non-empty string", "for example 'zone'"]),
        ((affinity("a"), False, []), ["topology must name at least one label key, for example 'zone'"]),
        ((label_in("actor_id", "a"), 1), ["has is_or_semantics=1, which must be True or False", GOOD]),
    ],
)
def test_a_mistake_is_refused_in_one_sentence(arguments: tuple[Any, ...], parts: list[str]) -> None:
    with refused(*parts):
        actor_affinity(*arguments)


def test_an_id_is_text() -> None:
    with refused("the value for label 'actor_id', 3 must be a string"):
        LabelMatchExpression("actor_id", "in", 3)


def test_a_list_of_strategies_is_and_with_alternatives_multiplied_out() -> None:
    either = actor_affinity([affinity("a"), affinity("b")], is_or_semantics=True)
    zones = actor_affinity([label_in("location", "dc_1"), anti_affinity("a", True)], topology="zone")
    combined = wants([either, node_affinity(label_exists("gpu")), zones, node_affinity(label_exists("ssd", True))])
    assert combined == Wants(
        Selector.all_of(Requirement.exists("gpu")),
        ((near(A), near(IN_DC, "zone")), (near(B), near(IN_DC, "zone"))),
        (Preference(apart(A, "zone")), Preference(Selector.all_of(Requirement.exists("ssd")))),
    )
    assert wants((either, either)).affinities == ((near(A),), (near(A), near(B)), (near(B), near(A)), (near(B),))


def test_alternatives_of_affinities_are_bounded() -> None:
    either = [actor_affinity([affinity(f"a{n}"), affinity(f"b{n}")], True) for n in range(9)]
    assert len(wants(either[:8]).affinities) == 256
    with refused("have 512 alternatives of affinities", "at most 256 are allowed", "for example in one"):
        wants(either)
