"""``policy=`` of a submission, and the default of a cluster: whether Ray or the engine chooses the node, and how."""

from __future__ import annotations

from typing import Any

import pytest

from stead.language.asks import PolicyName
from stead.language.labels import Requirement, Selector
from stead.language.strategies import Exists
from stead.ray.submit.compile import by_default, route
from tests.on_ray.test_compile import ID, Options, by, group_strategy, on, rays, refused

FLOWS = ["flow", "flow-pack", "flow-fgd"]


@pytest.mark.parametrize("policy", [*FLOWS, "pack", "spread", "random", PolicyName.FLOW])
def test_a_policy_that_ray_does_not_have_leaves_the_choice_to_the_engine(policy: str) -> None:
    found = route({"policy": policy, "label_selector": {"zone": "a"}})
    assert found.is_decided
    assert found.ask("w", {}).policy == policy


def test_rays_own_policy_leaves_the_choice_to_ray() -> None:
    assert not route({"policy": "hybrid"}).is_decided
    assert route({"policy": "hybrid", "labels": {"app": "web"}}).ask("w", {}).policy == "hybrid"


def test_a_policy_combines_with_rays_pins_and_rules_on_nodes() -> None:
    ask = route(by(rays.NodeAffinitySchedulingStrategy(ID, False), policy="flow")).ask("w", {})
    assert [choice.selector for choice in ask.choices] == [Selector.all_of(Requirement.is_in("node_id", ID))]
    assert ask.policy == "flow"


@pytest.mark.parametrize("given", ["flwo", "", "FLOW", 3, True, ["flow"], {"flow": 1}])
def test_an_unknown_policy_is_refused(given: Any) -> None:
    with refused("policy", repr(given), "flow, flow-pack, flow-fgd, kube"):
        route({"policy": given})


def test_a_policy_together_with_rays_spread_is_refused() -> None:
    with refused("policy 'flow'", "'SPREAD'", "policy='flow'"):
        route(by("SPREAD", policy="flow"))
    assert route(by("SPREAD", policy="spread")).ask("w", {}).policy == "spread"


@pytest.mark.parametrize("default", FLOWS)
def test_a_default_flow_policy_applies_to_all_work_without_a_policy(default: str) -> None:
    plain = by_default(None, default, "DEFAULT")
    assert plain is not None
    assert (plain.policy, plain.is_decided, plain.wish.key) == (default, True, "plain")
    labelled = by_default(route({"label_selector": {"zone": "a"}}), default, None)
    assert labelled is not None
    assert (labelled.policy, labelled.choices) == (default, (on("zone = a"),))


@pytest.mark.parametrize(
    ("options", "strategy"),
    [
        ({"policy": "pack"}, None),
        ({"policy": "hybrid"}, None),
        (by(["SPREAD"]), "SPREAD"),
        ({"label_selector": {"zone": "a"}}, group_strategy()),
        ({"tolerations": {"gpu": Exists()}}, rays.NodeAffinitySchedulingStrategy(ID, False)),
    ],
)
def test_a_default_changes_nothing_for_work_with_its_own_policy_or_strategy(options: Options, strategy: Any) -> None:
    assert by_default(route(options), "flow", strategy) == route(options)
    assert by_default(None, "flow", "SPREAD") is None


def test_any_other_default_applies_only_to_work_that_the_engine_places_anyway() -> None:
    decided = route({"labels": {"app": "web"}})
    found = by_default(decided, "pack", None)
    assert found is not None
    assert found.ask("w", {}).policy == "pack"
    assert by_default(None, "pack", "DEFAULT") is None
    assert by_default(route({"tolerations": {"gpu": Exists()}}), "pack", None) == route(
        {"tolerations": {"gpu": Exists()}}
    )


def test_without_a_default_nothing_changes() -> None:
    assert by_default(None, "", "DEFAULT") is None
    assert by_default(route({"labels": {"a": "b"}}), "", None) == route({"labels": {"a": "b"}})
