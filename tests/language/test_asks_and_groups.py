"""Asks: their checks and shapes; and groups."""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import Any

import pytest

from stead.errors import Invalid
from stead.language.asks import ASK_ID, Affinity, Ask, Choice, Group, PolicyName, Preference, Spread, Strategy, locality
from stead.language.labels import ANYWHERE, Labels, Requirement, Selector
from stead.language.resources import Amount, Resources
from stead.language.taints import TOLERATE_ALL
from tests.language.sentences import refused

ZONE_A = Selector.all_of(Requirement.is_in("zone", "a"))
WEB = Selector.all_of(Requirement.is_in("app", "web"))


POLICIES = "good values are hybrid, pack, spread, random, flow, flow-pack, flow-fgd, kube"


@pytest.mark.parametrize("amount", [0, 0.5, 1, 2, "3"])
@pytest.mark.parametrize("device", ["GPU", "TPU", "neuron_cores"])
def test_devices_are_asked_for_whole_or_as_a_share_of_one(device: str, amount: Amount) -> None:
    assert Choice(Resources.of({device: amount})).selector == ANYWHERE


@pytest.mark.parametrize("amount", [1.5, 2.0001, "1500m"])
@pytest.mark.parametrize("device", ["GPU", "HPU"])
def test_a_device_and_a_half_is_refused(device: str, amount: Amount) -> None:
    with refused("you cannot ask for ", f" {device}: above 1", "for example 2;", "for example 0.5"):
        Choice(Resources.of({device: amount}))


def test_other_resources_come_in_any_amount() -> None:
    assert Ask.of("w", {"CPU": 1.5, "my_disk": 2.5}).choices[0].resources["CPU"] == 15_000


def test_equal_choices_are_one_value_in_every_process() -> None:
    choice, same = Choice(Resources.of(CPU=1), ZONE_A), Choice(Resources.of(CPU=1), ZONE_A)
    assert choice == same
    assert hash(choice) == hash(same)
    assert choice != Choice(Resources.of(CPU=1))
    assert pickle.loads(pickle.dumps(choice)) == choice


def test_an_ask_has_at_least_one_choice() -> None:
    assert Ask("w").choices == (Choice(),)
    with refused("ask 'w' has no choice; give at least one, for example Choice()"):
        Ask("w", ())


def test_an_ask_from_what_a_user_writes() -> None:
    ask = Ask.of("w", {"CPU": "500m"}, ZONE_A, priority=3)
    assert ask == Ask("w", (Choice(Resources({"CPU": 5000}), ZONE_A),), priority=3)
    assert Ask.of("w") == Ask("w")


@pytest.mark.parametrize(
    "changes",
    [
        {"choices": (Choice(Resources.of(CPU=2)),)},
        {"tolerations": (TOLERATE_ALL,)},
        {"affinities": ((Affinity(WEB),),)},
        {"spreads": (Spread("zone", WEB),)},
        {"prefers": (Preference(ZONE_A),)},
        {"labels": Labels({"app": "web"})},
        {"namespace": "blue"},
        {"policy": PolicyName.SPREAD},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_what_can_affect_placement_is_in_the_shape(changes: dict[str, Any]) -> None:
    ask = Ask("w")
    assert replace(ask, **changes).shape_key != ask.shape_key
    assert hash(replace(ask, **changes).shape_key)


@pytest.mark.parametrize("changes", [{"id": "v"}, {"priority": 7}, {"deadline": 9.0}, {"owner": "job/1"}], ids=str)
def test_identity_order_and_owner_are_not_in_the_shape(changes: dict[str, Any]) -> None:
    assert replace(Ask("w"), **changes).shape_key == Ask("w").shape_key


@pytest.mark.parametrize("weight", [1, 50, 100])
def test_a_weight_is_from_1_to_100(weight: int) -> None:
    assert Preference(ZONE_A, weight).weight == weight
    assert Preference(ZONE_A).weight == 100


@pytest.mark.parametrize("weight", [0, 101, -1])
def test_a_weight_out_of_range_is_refused(weight: int) -> None:
    with refused(f"weight {weight} is out of range: it must be from 1 to 100"):
        Preference(ZONE_A, weight)


@pytest.mark.parametrize("weight", [True, 1.5, "5", None])
def test_a_weight_is_a_whole_number(weight: Any) -> None:
    with refused(f"weight {weight!r} must be a whole number from 1 to 100"):
        Preference(ZONE_A, weight)


def test_locality_prefers_nodes_by_id() -> None:
    wanted = Selector.all_of(Requirement.is_in("node_id", "n1", "n2"))
    assert locality("n1", "n2") == Preference(wanted, 100)
    assert locality("n1", "n2", weight=7) == Preference(wanted, 7)


@pytest.mark.parametrize("skew", [0, -1])
def test_a_skew_is_at_least_one(skew: int) -> None:
    assert Spread("zone", WEB).max_skew == 1
    with refused(f"max skew must be at least 1, but is {skew}"):
        Spread("zone", WEB, skew)


def test_plain_maps_and_strings_are_taken_for_what_they_mean() -> None:
    written = Ask.of("a", labels={"app": "web"}, policy="pack")
    assert written == Ask.of("a", labels=Labels({"app": "web"}), policy=PolicyName.PACK)


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        (
            {"policy": "pak"},
            f"policy 'pak' is unknown (did you mean 'pack'?); {POLICIES}",
        ),
        ({"policy": "best"}, f"policy 'best' is unknown; {POLICIES}"),
        ({"labels": {"app": 3}}, "the value of label 'app', 3 must be a string, for example '3'"),
    ],
)
def test_what_an_ask_cannot_mean_is_refused_when_it_is_written(wrong: dict[str, Any], sentence: str) -> None:
    with pytest.raises(Invalid) as error:
        Ask.of("a", **wrong)
    assert str(error.value) == sentence


def test_a_member_is_not_named_like_its_group() -> None:
    with pytest.raises(Invalid, match="a member with its own id"):
        Group("g", ((Ask.of("g"),),))


def test_an_affinity_to_an_id_is_by_identity() -> None:
    assert Affinity(Selector.all_of(Requirement.is_in(ASK_ID, "w1"))).by_identity
    assert not Affinity(WEB).by_identity


def test_strategies_are_known_by_name() -> None:
    assert [Strategy.of(name) for name in ("PACK", "STRICT_SPREAD")] == [Strategy.PACK, Strategy.STRICT_SPREAD]
    assert [strategy for strategy in Strategy if strategy.strict] == [Strategy.STRICT_PACK, Strategy.STRICT_SPREAD]
    with refused(
        "strategy 'STRICT_PAK' is unknown (did you mean 'STRICT_PACK'?); good values are PACK, SPREAD, STRICT_PACK"
    ):
        Strategy.of("STRICT_PAK")
    with refused("strategy 'x' is unknown; good values are PACK"):
        Strategy.of("x")


def test_a_group_has_members_with_ids_of_their_own_and_one_choice_each() -> None:
    group = Group("g", ((Ask("a"), Ask("b")), (Ask("c"),)))
    assert group.shape_key == Group("other", ((Ask("x"), Ask("y")), (Ask("z"),)), priority=4).shape_key
    assert group.shape_key != replace(group, strategy=Strategy.SPREAD).shape_key
    assert group.shape_key != replace(group, topology=(("zone", Strategy.PACK),)).shape_key
    assert group.shape_key != replace(group, alternatives=group.alternatives[:1]).shape_key


@pytest.mark.parametrize(
    ("alternatives", "parts"),
    [
        ((), ["group 'g' has no members", "for example {'CPU': 1}"]),
        (((),), ["group 'g' has no members", "for example {'CPU': 1}"]),
        (((Ask("a"),), ()), ["group 'g' has no members"]),
        (((Ask("a"), Ask("a")),), ["group 'g' has two members with one id", "give each a unique id"]),
        (((Ask("a"),), (Ask("a"),)), ["group 'g' has two members with one id"]),
        (
            ((Ask("a", (Choice(), Choice(selector=ZONE_A))),),),
            ["member 'a' of group 'g' has its own fallbacks", "give the group another alternative instead"],
        ),
    ],
)
def test_a_bad_group_is_refused(alternatives: Any, parts: list[str]) -> None:
    with refused(*parts):
        Group("g", alternatives)
