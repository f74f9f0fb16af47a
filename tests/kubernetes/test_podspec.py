"""What upstream's tables do not say: namespaces, amounts, identities, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from stead.engine.decisions import Placed, Waiting
from stead.engine.facts import AskSubmitted
from stead.errors import Invalid, Unsupported
from stead.kubernetes.podspec import (
    PREFERRED,
    REQUIRED,
    Fields,
    affinities_of,
    ask_of,
    node_of,
    pod_selector_of,
    preferences_of,
    requests_of,
    resident_of,
    selector_of,
    spreads_of,
    tolerations_of,
)
from stead.language.asks import Affinity, Preference, Spread
from stead.language.labels import ANYWHERE, NODE_NAME, NOWHERE, Labels, Requirement, Selector
from stead.language.nodes import Node
from stead.language.resources import Resources
from stead.language.taints import Effect, Taint, Toleration
from tests.kubernetes.upstream import NAMESPACES, cluster, named, pending, pod

WEB = Selector.all_of(Requirement.is_in("app", "web"))
WEB_SELECTOR = {"matchLabels": {"app": "web"}}


def term(key: str = "zone", selector: Fields | None = WEB_SELECTOR, **more: Any) -> Fields:
    return {"labelSelector": selector, "topologyKey": key, **more}


# -- nodes


def test_a_node() -> None:
    node = {
        "metadata": {"name": "n1", "labels": {"zone": "a", "empty": ""}},
        "spec": {"taints": [{"key": "gpu", "value": "yes", "effect": "NoExecute"}], "unschedulable": True},
        "status": {
            "allocatable": {"cpu": "3920m", "memory": "2Gi", "nvidia.com/gpu": "8", "pods": "110", "hugepages-2Mi": "0"}
        },
    }
    assert node_of(node) == Node(
        "n1",
        Resources.of({"CPU": "3.92", "memory": 2**31, "nvidia.com/gpu": 8, "pods": 110}),
        Labels({"zone": "a", "empty": ""}),
        (Taint("gpu", "yes", Effect.NO_EXECUTE), Taint("node.kubernetes.io/unschedulable")),
        name="n1",
    )


def test_a_cordon_that_is_a_taint_already_is_one_taint() -> None:
    taint = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule", "timeAdded": "2024-01-01T00:00:00Z"}
    node = {"metadata": {"name": "n1"}, "spec": {"taints": [taint], "unschedulable": True}}
    assert node_of(node).taints == (Taint("node.kubernetes.io/unschedulable"),)


@pytest.mark.parametrize(
    ("node", "words"),
    [
        ({"metadata": {}}, "must have a name"),
        ({"metadata": {"name": "n", "labels": ["zone"]}}, "'labels' must be an object"),
        ({"metadata": {"name": "n"}, "spec": {"taints": "gpu"}}, "'taints' must be a list"),
        ({"metadata": {"name": "n"}, "spec": {"taints": ["gpu"]}}, "every item of 'taints' must be an object"),
        ({"metadata": {"name": "n"}, "spec": {"taints": [{"key": "a", "effect": "NoSchedul"}]}}, "did you mean"),
        ({"metadata": {"name": "n"}, "status": {"allocatable": {"cpu": "lots"}}}, "not a quantity"),
    ],
)
def test_a_node_that_cannot_be_read(node: Fields, words: str) -> None:
    with pytest.raises(Invalid, match=words):
        node_of(node)


def test_a_node_that_says_nothing_of_pods_takes_none() -> None:
    assert node_of({"metadata": {"name": "n1"}}).capacity == Resources()


# -- labels that mean an identity in stead are just labels in Kubernetes


def test_labels_named_like_steads_identities_are_labels() -> None:
    nodes: list[Fields] = [{"metadata": {"name": "n1", "labels": {"node_id": "n2"}}}, {"metadata": {"name": "n2"}}]
    assert cluster(nodes).candidates(pending(pod(nodeSelector={"node_id": "n2"}))) == (("n1",),)


def test_a_pod_label_named_like_steads_identity_is_a_label() -> None:
    """Were it taken for an identity, the first of its kind would never be let in."""
    nodes = [{"metadata": {"name": "n1", "labels": {"zone": "a"}}}]
    first = pod(affinity={"podAffinity": {REQUIRED: [term(selector={"matchLabels": {"ask_id": "x"}})]}})
    ask = pending({**first, "metadata": {"labels": {"ask_id": "x"}}})
    assert cluster(nodes).candidates(ask) == (("n1",),)


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
    assert affinities_of({REQUIRED: terms}, None, "own", Labels(), NAMESPACES) == (near,)


def test_of_required_anti_affinity_every_term_stands_alone() -> None:
    terms = [term("zone"), term("rack", namespaceSelector={}), term("zone", None), term("zone", {}, namespaces=["b"])]
    assert affinities_of(None, {REQUIRED: terms}, "own") == (
        Affinity(WEB, False, ("zone",), None, symmetric=True),
        Affinity(WEB, False, ("rack",), frozenset(), symmetric=True),
        Affinity(ANYWHERE, False, ("zone",), frozenset({"b"}), symmetric=True),
    )


def test_anti_affinity_towards_no_namespace_at_all_is_not_towards_all_of_them() -> None:
    nowhere = term(namespaceSelector={"matchLabels": {"team": "team9"}})
    assert affinities_of(None, {REQUIRED: [nowhere]}, "own", Labels(), NAMESPACES) == ()


def test_selecting_namespaces_needs_to_know_them() -> None:
    with pytest.raises(Unsupported, match=r"team in \{team1\}"):
        affinities_of({REQUIRED: [term(namespaceSelector={"matchLabels": {"team": "team1"}})]}, None, "own")


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
    (affinity,) = affinities_of({REQUIRED: [term(**more)]}, None, "own", Labels({"hash": "1"}))
    assert affinity.selector == expected


def test_label_keys_that_the_api_server_wrote_out_stay_as_they_are() -> None:
    written = {"matchExpressions": [{"key": "hash", "operator": "In", "values": ["1"]}]}
    terms = [term(selector=written, matchLabelKeys=["hash"])]
    (affinity,) = affinities_of({REQUIRED: terms}, None, "own", Labels({"hash": "changed"}))
    assert affinity.selector == pod_selector_of(written)


@pytest.mark.parametrize("operator", ["Gt", "Lt", "Equal"])
def test_pods_are_not_selected_by_number(operator: str) -> None:
    with pytest.raises(Invalid, match="good values are In, NotIn, Exists, DoesNotExist"):
        pod_selector_of({"matchExpressions": [{"key": "a", "operator": operator, "values": ["1"]}]})


# -- evenness


def test_spread_constraints() -> None:
    strict = {"topologyKey": "zone", "maxSkew": 2, "whenUnsatisfiable": "DoNotSchedule", "labelSelector": WEB_SELECTOR}
    soft = {**strict, "whenUnsatisfiable": "ScheduleAnyway", "nodeTaintsPolicy": "Honor", "labelSelector": None}
    expected = Spread("zone", WEB, 2), Preference(Spread("zone", NOWHERE, 2, by_taints=True))
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
    assert spreads_of([constraint]) == ((replace(Spread("zone", WEB), **expected),), ())


def test_a_policy_of_a_spread_constraint_that_does_not_exist() -> None:
    with pytest.raises(Invalid, match="nodeTaintsPolicy 'Honour' is unknown; good values are Honor, Ignore"):
        spreads_of([{"topologyKey": "zone", "nodeTaintsPolicy": "Honour"}])


# -- amounts


def container(cpu: str, restart: str | None = None, **more: Any) -> Fields:
    return {"resources": {"requests": {"cpu": cpu, **more}}, "restartPolicy": restart}


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({}, {}),
        ({"containers": None}, {}),
        ({"containers": [{"resources": {"limits": {"cpu": "4"}}}]}, {}),
        ({"containers": [container("1"), container("500m", memory="1Gi")]}, {"CPU": "1.5", "memory": "1Gi"}),
        ({"containers": [container("1")], "initContainers": [container("3"), container("2")]}, {"CPU": 3}),
        ({"containers": [container("4")], "initContainers": [container("3"), container("2")]}, {"CPU": 4}),
        ({"containers": [container("1")], "initContainers": [container("2", "Always"), container("2")]}, {"CPU": 4}),
        ({"containers": [container("1")], "initContainers": [container("2"), container("2", "Always")]}, {"CPU": 3}),
        ({"containers": [container("3")], "initContainers": [container("2", "Always")]}, {"CPU": 5}),
        (
            {"containers": [container("1")], "overhead": {"cpu": "250m", "memory": "1Mi"}},
            {"CPU": "1.25", "memory": "1Mi"},
        ),
        ({"containers": [container("1")], **container("6", memory="1Gi", gpu="9")}, {"CPU": 6, "memory": "1Gi"}),
        ({"containers": [container("0.1m", memory="100m")]}, {"CPU": "0.001", "memory": 1}),
        ({"containers": [container("0", **{"nvidia.com/gpu": "2"})]}, {"nvidia.com/gpu": 2}),
    ],
)
def test_what_a_pod_takes(spec: Fields, expected: dict[str, Any]) -> None:
    assert requests_of(spec) == Resources.of({**expected, "pods": 1})


def test_a_node_holds_so_many_pods() -> None:
    engine = cluster([{"metadata": {"name": "n1"}}])
    engine.apply(*(AskSubmitted(ask_of(named(pod(), f"pod-{number}"))) for number in range(111)))
    decisions = engine.decide()
    assert [type(decision) for decision in decisions] == [Placed] * 110 + [Waiting]


# -- pods


def test_a_pod() -> None:
    owners = [{"kind": "Team", "name": "a"}, {"kind": "ReplicaSet", "name": "web-5d9", "controller": True}]
    ask = ask_of(
        {
            "metadata": {"name": "web-0", "namespace": "shop", "labels": {"app": "web"}, "ownerReferences": owners},
            "spec": {
                "containers": [container("2")],
                "priority": 1000,
                "nodeSelector": {"zone": "a"},
                "tolerations": [{"key": "gpu", "operator": "Exists"}],
                "affinity": {
                    "nodeAffinity": {
                        PREFERRED: [
                            {"weight": 3, "preference": {"matchExpressions": [{"key": "ssd", "operator": "Exists"}]}}
                        ]
                    },
                    "podAffinity": {
                        PREFERRED: [{"weight": 4, "podAffinityTerm": term()}, {"weight": 0, "podAffinityTerm": term()}]
                    },
                    "podAntiAffinity": {
                        REQUIRED: [term("kubernetes.io/hostname")],
                        PREFERRED: [
                            {"weight": 5, "podAffinityTerm": term("rack")},
                            {"weight": 6, "podAffinityTerm": term("rack", None)},
                        ],
                    },
                },
                "topologySpreadConstraints": [{"topologyKey": "zone", "maxSkew": 1, "labelSelector": WEB_SELECTOR}],
            },
        }
    )
    (choice,) = ask.choices
    assert (ask.id, ask.namespace, ask.owner, ask.priority) == ("shop/web-0", "shop", "ReplicaSet/web-5d9", 1000)
    assert ask.labels == Labels({"app": "web"})
    assert choice.resources == Resources.of({"CPU": 2, "pods": 1})
    assert choice.selector == Selector.all_of(Requirement.is_in("zone", "a"))
    assert ask.tolerations == (Toleration("gpu"),)
    assert ask.affinities == ((Affinity(WEB, False, ("kubernetes.io/hostname",), symmetric=True),),)
    assert ask.spreads == (Spread("zone", WEB),)
    assert ask.prefers == (
        Preference(Selector.all_of(Requirement.exists("ssd")), 3),
        Preference(Affinity(WEB, True, ("zone",)), 4),
        Preference(Affinity(WEB, False, ("rack",)), 5),
    )


UNSUPPORTED = [
    ({"resourceClaims": [{"name": "gpu"}]}, "resourceClaims"),
    ({"volumes": [{"name": "disk", "persistentVolumeClaim": {"claimName": "c"}}]}, "'disk'"),
    ({"volumes": [{"name": "files", "emptyDir": {}}, {"name": "scratch", "ephemeral": {}}]}, "'scratch'"),
    ({"containers": [{"ports": [{"containerPort": 80}, {"containerPort": 81, "hostPort": 8081}]}]}, "hostPort 8081"),
    ({"initContainers": [{"ports": [{"hostPort": 9}]}]}, "hostPort 9"),
    ({"tolerations": [{"key": "a", "operator": "Lt", "value": "1"}]}, "alpha"),
]


@pytest.mark.parametrize(("spec", "words"), UNSUPPORTED)
def test_what_is_not_supported_is_refused(spec: Fields, words: str) -> None:
    with pytest.raises(Unsupported, match=words) as caught:
        pending(pod(**spec))
    assert not str(caught.value).endswith(".")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("spec", "words"), UNSUPPORTED)
def test_a_pod_that_has_a_node_is_there_whatever_it_uses(spec: Fields, words: str) -> None:
    assert resident_of(named(pod(**spec), "there")).choices[0].resources.get("pods")


def test_a_pod_without_a_name_is_refused() -> None:
    with pytest.raises(Invalid, match="must have a name"):
        ask_of(pod())


def test_a_pod_that_has_a_node_is_what_others_feel_of_it() -> None:
    apart = {REQUIRED: [term()]}
    spec = {"affinity": {"podAffinity": {REQUIRED: [term()]}, "podAntiAffinity": apart}, "nodeSelector": {"zone": "a"}}
    resident = resident_of({"metadata": {"name": "p", "namespace": "own", "labels": {"app": "web"}}, "spec": spec})
    assert resident.affinities == ((Affinity(WEB, False, ("zone",), symmetric=True),),)
    assert resident.choices[0].selector == ANYWHERE
    assert (resident.labels, resident.namespace) == (Labels({"app": "web"}), "own")


def test_anti_affinity_that_does_not_parse_keeps_nobody_away() -> None:
    bad = term(selector={"matchLabels": {"app": "{{bad}}"}})
    spec = {"affinity": {"podAntiAffinity": {REQUIRED: [term(), bad]}}}
    assert resident_of(named({"metadata": {}, "spec": spec}, "p")).affinities == ()


def test_a_resident_that_selects_unknown_namespaces_is_refused() -> None:
    selecting = term(namespaceSelector={"matchLabels": {"team": "team1"}})
    spec = {"affinity": {"podAntiAffinity": {REQUIRED: [selecting]}}}
    with pytest.raises(Unsupported, match="namespaceSelector"):
        resident_of(named({"metadata": {}, "spec": spec}, "p"))
