"""What a pod says about nodes and about other pods, where upstream's tables do not cover it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from stead.engine.decisions import Waiting
from stead.engine.facts import AskSubmitted
from stead.errors import Invalid
from stead.kubernetes.fields import Fields
from stead.kubernetes.selecting import (
    DELETING,
    REQUIRED,
    NamespacesMissing,
    apart_of,
    near_of,
    pod_selector_of,
    preferences_of,
    selector_of,
    spreads_of,
    tolerations_of,
)
from stead.language.asks import Affinity, Preference, Spread
from stead.language.labels import ANYWHERE, NODE_NAME, NOWHERE, Labels, Requirement, Selector
from stead.language.taints import Effect, Toleration
from tests.kubernetes.upstream import NAMESPACES, cluster, pending, pod

WEB = Selector.all_of(Requirement.is_in("app", "web"))
ALIVE_WEB = Selector.all_of(Requirement.is_in("app", "web"), Requirement.does_not_exist(DELETING))
WEB_SELECTOR = {"matchLabels": {"app": "web"}}


def term(key: str = "zone", selector: Fields | None = WEB_SELECTOR, **more: Any) -> Fields:
    return {"labelSelector": selector, "topologyKey": key, **more}


# -- node selectors


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ({"key": "a b", "operator": "Exists"}, "contains ' '"),
        ({"operator": "Exists"}, "non-empty"),
        ({"key": "a", "operator": "in", "values": ["x"]}, "did you mean 'In'"),
        ({"key": "a"}, "operator None is unknown"),
        ({"key": "a", "operator": "In"}, "at least one value"),
        ({"key": "a", "operator": "NotIn", "values": []}, "at least one value"),
        ({"key": "a", "operator": "In", "values": ["ok", "-"]}, "begin and end"),
        ({"key": "a", "operator": "Exists", "values": ["x"]}, "takes no values"),
        ({"key": "a", "operator": "DoesNotExist", "values": [""]}, "takes no values"),
        ({"key": "a", "operator": "Gt", "values": []}, "one whole number"),
        ({"key": "a", "operator": "Gt", "values": ["1", "2"]}, "one whole number"),
        ({"key": "a", "operator": "Lt", "values": ["1.5"]}, "one whole number"),
        ({"key": "a", "operator": "Gt", "values": ["9223372036854775808"]}, "one whole number"),
        ({"key": "a", "operator": "Gt", "values": ["-1"]}, "begin and end"),
    ],
)
def test_an_expression_that_does_not_parse(expression: Fields, words: str) -> None:
    """It makes a required term match nothing, spares the others, and fails a preferred one."""
    good = {"matchExpressions": [{"key": "zone", "operator": "Exists"}]}
    bad = {"matchExpressions": [*good["matchExpressions"], expression]}
    assert selector_of(None, {"nodeSelectorTerms": [bad]}) == NOWHERE
    assert selector_of(None, {"nodeSelectorTerms": [bad, good]}) == Selector.all_of(Requirement.exists("zone"))
    with pytest.raises(Invalid, match=words):
        preferences_of([{"weight": 1, "preference": bad}])
    assert preferences_of([{"weight": 0, "preference": bad}]) == ()


@pytest.mark.parametrize(
    ("node_selector", "required", "expected"),
    [
        (None, None, ANYWHERE),
        ({}, None, ANYWHERE),
        (None, {}, NOWHERE),
        (None, {"nodeSelectorTerms": [None]}, NOWHERE),
        (None, {"nodeSelectorTerms": [{"matchExpressions": [], "matchFields": None}]}, NOWHERE),
        ({"zone": "a"}, {"nodeSelectorTerms": []}, NOWHERE),
        # Upstream checks the syntax of expressions, and not that of nodeSelector.
        ({"zone": "-"}, None, Selector.all_of(Requirement.is_in("zone", "-"))),
    ],
)
def test_corners_of_node_selectors(node_selector: Fields, required: Fields, expected: Selector) -> None:
    assert selector_of(node_selector, required) == expected


@pytest.mark.parametrize(
    ("field", "expected"),
    [
        (("metadata.name", "In", ["n1"]), Selector.all_of(Requirement.is_in(NODE_NAME, "n1"))),
        (("metadata.name", "NotIn", ["n1"]), Selector.all_of(Requirement.not_in(NODE_NAME, "n1"))),
        (("metadata.name", "In", ["n1", "n2"]), NOWHERE),
        (("metadata.name", "NotIn", []), NOWHERE),
        (("metadata.name", "Exists", []), NOWHERE),
        (("metadata.uid", "In", ["n1"]), NOWHERE),
    ],
)
def test_match_fields(field: tuple[str, str, list[str]], expected: Selector) -> None:
    fields = [dict(zip(("key", "operator", "values"), field, strict=True))]
    assert selector_of(None, {"nodeSelectorTerms": [{"matchFields": fields}]}) == expected


def test_a_pod_waits_for_a_node_that_is_not_there_yet() -> None:
    fields = [{"key": "metadata.name", "operator": "In", "values": ["n2"]}]
    required = {"nodeSelectorTerms": [{"matchFields": fields}]}
    engine = cluster([{"metadata": {"name": "n1"}}])
    engine.apply(AskSubmitted(pending(pod(affinity={"nodeAffinity": {REQUIRED: required}}))))
    (decision,) = engine.decide()
    assert isinstance(decision, Waiting)


def test_preferences_have_weights_from_1_to_100() -> None:
    zone = {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}
    wanted = Preference(Selector.all_of(Requirement.is_in("zone", "a")), 7)
    assert preferences_of([{"weight": 7, "preference": zone}, {"weight": 9, "preference": {}}]) == (wanted,)
    with pytest.raises(Invalid, match="101 is out of range"):
        preferences_of([{"weight": 101, "preference": zone}])


# -- tolerations


@pytest.mark.parametrize(
    ("toleration", "expected"),
    [
        ({"operator": "Exists"}, Toleration(None)),
        ({"key": "", "operator": "Exists", "effect": ""}, Toleration(None)),
        ({"key": "a", "operator": "Exists", "value": "ignored"}, Toleration("a")),
        ({"key": "a"}, Toleration("a", frozenset({""}), complement=False)),
        ({"key": "a", "operator": "", "value": "x"}, Toleration("a", frozenset({"x"}), complement=False)),
        (
            {"key": "a", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300},
            Toleration("a", effect=Effect.NO_EXECUTE, seconds=300.0),
        ),
        # The API server lets no such toleration pass; the scheduler would take every key for the empty one.
        ({"operator": "Equal", "value": "x"}, Toleration(None, frozenset({"x"}), complement=False)),
    ],
)
def test_a_toleration(toleration: Fields, expected: Toleration) -> None:
    assert tolerations_of([toleration]) == (expected,)


@pytest.mark.parametrize(
    ("toleration", "words"),
    [
        ({"key": "a", "operator": "Gt", "value": "1"}, "alpha"),
        ({"key": "a", "operator": "Exist"}, "did you mean 'Exists'"),
        ({"key": "a", "effect": "NoExec"}, "good values are NoSchedule"),
        ({"key": "a", "tolerationSeconds": "300"}, "whole number such as 300"),
    ],
)
def test_a_toleration_that_cannot_be_read(toleration: Fields, words: str) -> None:
    with pytest.raises(Invalid, match=words):
        tolerations_of([toleration])


# -- other pods


@pytest.mark.parametrize(
    ("terms", "selector", "topologies", "namespaces"),
    [
        ([term()], WEB, ("zone",), None),
        ([term(selector={})], ANYWHERE, ("zone",), None),
        ([term(selector=None)], NOWHERE, ("zone",), None),
        ([term("zone"), term("rack"), term("zone")], WEB, ("zone", "rack"), None),
        (
            [term(), term(selector={"matchLabels": {"b": "c"}})],
            WEB & pod_selector_of({"matchLabels": {"b": "c"}}),
            ("zone",),
            None,
        ),
        ([term(namespaces=["other"])], WEB, ("zone",), frozenset({"other"})),
        ([term(namespaces=["own", "other"])], WEB, ("zone",), frozenset({"own", "other"})),
        ([term(namespaces=["own"])], WEB, ("zone",), None),
        ([term(namespaces=[])], WEB, ("zone",), None),
        ([term(namespaceSelector={})], WEB, ("zone",), frozenset()),
        ([term(namespaceSelector={}, namespaces=["other"])], WEB, ("zone",), frozenset()),
        ([term(namespaceSelector={}), term()], WEB, ("zone",), None),
        ([term(), term(namespaceSelector={})], WEB, ("zone",), None),
        ([term(namespaces=["a", "b"]), term(namespaces=["b", "c"])], WEB, ("zone",), frozenset({"b"})),
        ([term(namespaces=["a"]), term()], NOWHERE, ("zone",), None),
        ([term(namespaceSelector={"matchLabels": {"team": "team9"}})], NOWHERE, ("zone",), None),
        (
            [term(namespaceSelector={"matchLabels": {"team": "team1"}}, namespaces=["own"])],
            WEB,
            ("zone",),
            frozenset({"own", "subteam1.team1", "subteam2.team1"}),
        ),
    ],
)
def test_required_affinity_is_towards_pods_that_match_every_term(
    terms: list[Fields], selector: Selector, topologies: tuple[str, ...], namespaces: frozenset[str] | None
) -> None:
    near = Affinity(selector, True, topologies, namespaces)
    assert near_of({REQUIRED: terms}, "own", Labels(), NAMESPACES)[0] == (near,)


def test_of_required_anti_affinity_every_term_stands_alone() -> None:
    terms = [term("zone"), term("rack", namespaceSelector={}), term("zone", None), term("zone", {}, namespaces=["b"])]
    assert apart_of({REQUIRED: terms}, "own") == (
        Affinity(WEB, False, ("zone",), None, symmetric=True),
        Affinity(WEB, False, ("rack",), frozenset(), symmetric=True),
        Affinity(ANYWHERE, False, ("zone",), frozenset({"b"}), symmetric=True),
    )


def test_anti_affinity_towards_no_namespace_at_all_is_not_towards_all_of_them() -> None:
    nowhere = term(namespaceSelector={"matchLabels": {"team": "team9"}})
    assert apart_of({REQUIRED: [nowhere]}, "own", Labels(), NAMESPACES) == ()


def test_selecting_namespaces_needs_to_know_them() -> None:
    with pytest.raises(NamespacesMissing, match=r"team in \{team1\}"):
        near_of({REQUIRED: [term(namespaceSelector={"matchLabels": {"team": "team1"}})]}, "own")


def test_two_keys_must_both_be_shared_with_matching_pods() -> None:
    nodes = [
        {"metadata": {"name": "n1", "labels": {"zone": "a", "rack": "1"}}},
        {"metadata": {"name": "n2", "labels": {"zone": "a", "rack": "2"}}},
        {"metadata": {"name": "n3", "labels": {"zone": "a"}}},
    ]
    web = {"metadata": {"labels": {"app": "web"}}, "spec": {"nodeName": "n1"}}
    ask = pending(pod(affinity={"podAffinity": {REQUIRED: [term("zone"), term("rack")]}}))
    assert cluster(nodes, [web]).candidates(ask) == (("n1",),)


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({"matchLabelKeys": ["hash"]}, WEB & Selector.all_of(Requirement.is_in("hash", "1"))),
        ({"mismatchLabelKeys": ["hash"]}, WEB & Selector.all_of(Requirement.not_in("hash", "1"))),
        ({"matchLabelKeys": ["absent"]}, WEB),
    ],
)
def test_label_keys_of_the_pod_itself(more: Fields, expected: Selector) -> None:
    (affinity,), _ = near_of({REQUIRED: [term(**more)]}, "own", Labels({"hash": "1"}))
    assert affinity.selector == expected


def test_label_keys_that_the_api_server_wrote_out_stay_as_they_are() -> None:
    written = {"matchExpressions": [{"key": "hash", "operator": "In", "values": ["1"]}]}
    terms = [term(selector=written, matchLabelKeys=["hash"])]
    (affinity,), _ = near_of({REQUIRED: terms}, "own", Labels({"hash": "changed"}))
    assert affinity.selector == pod_selector_of(written)


@pytest.mark.parametrize("operator", ["Gt", "Lt", "Equal"])
def test_pods_are_not_selected_by_number(operator: str) -> None:
    with pytest.raises(Invalid, match="good values are In, NotIn, Exists, DoesNotExist"):
        pod_selector_of({"matchExpressions": [{"key": "a", "operator": operator, "values": ["1"]}]})


def test_each_required_term_of_a_placed_pod_pulls_alone() -> None:
    terms = [term("zone"), term("rack", {}, namespaces=["b"]), term("zone", None)]
    assert near_of({REQUIRED: terms}, "own")[1] == (
        Preference(Affinity(WEB, True, ("zone",)), 1),
        Preference(Affinity(ANYWHERE, True, ("rack",), frozenset({"b"})), 1),
    )


# -- topology spread


def test_spread_constraints() -> None:
    strict = {"topologyKey": "zone", "maxSkew": 2, "whenUnsatisfiable": "DoNotSchedule", "labelSelector": WEB_SELECTOR}
    soft = {**strict, "whenUnsatisfiable": "ScheduleAnyway", "nodeTaintsPolicy": "Honor", "labelSelector": None}
    expected = Spread("zone", ALIVE_WEB, 2), Preference(Spread("zone", NOWHERE, 2, by_taints=True))
    assert spreads_of([strict, soft]) == ((expected[0],), (expected[1],))


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({"minDomains": 1, "nodeAffinityPolicy": "Honor", "nodeTaintsPolicy": "Ignore"}, {}),
        ({"minDomains": 3}, {"min_domains": 3}),
        ({"nodeAffinityPolicy": "Ignore"}, {"by_selector": False}),
        ({"nodeTaintsPolicy": "Honor"}, {"by_taints": True}),
        ({"labelSelector": {}}, {"selector": NOWHERE}),
    ],
    ids=str,
)
def test_which_domains_and_pods_a_spread_constraint_counts(more: Fields, expected: dict[str, Any]) -> None:
    constraint = {"topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule", "labelSelector": WEB_SELECTOR, **more}
    assert spreads_of([constraint]) == ((replace(Spread("zone", ALIVE_WEB), **expected),), ())


def test_a_policy_of_a_spread_constraint_that_does_not_exist() -> None:
    with pytest.raises(Invalid, match="nodeTaintsPolicy 'Honour' is unknown; good values are Honor, Ignore"):
        spreads_of([{"topologyKey": "zone", "nodeTaintsPolicy": "Honour"}])
