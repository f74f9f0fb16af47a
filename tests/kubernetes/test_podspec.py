"""Pods: labels, policies, what is refused, and pods that stead does not place."""

from __future__ import annotations

from typing import Any

import pytest

from stead.codec import dumps, loads
from stead.engine.facts import AskRunning
from stead.errors import Invalid, Unsupported
from stead.kubernetes.default_spread import OwnerKind, Owners
from stead.kubernetes.fields import Fields
from stead.kubernetes.podspec import POLICY_ANNOTATION, ask_of, is_gated
from stead.kubernetes.selecting import DELETING, NOT_DELETING, PREFERRED, REQUIRED, NamespacesMissing
from stead.language.asks import Affinity, HostPort, PolicyName, Preference, Spread
from stead.language.labels import ANYWHERE, Labels, Requirement, Selector
from stead.language.resources import Resources
from stead.language.taints import Toleration
from tests.kubernetes.upstream import cluster, named, pending, pod

WEB = Selector.all_of(Requirement.is_in("app", "web"))
WEB_SELECTOR = {"matchLabels": {"app": "web"}}
BAD_SELECTOR = {"matchLabels": {"app": "{{bad}}"}}


def term(key: str = "zone", selector: Fields | None = WEB_SELECTOR, **more: Any) -> Fields:
    return {"labelSelector": selector, "topologyKey": key, **more}


def container(cpu: str) -> Fields:
    return {"resources": {"requests": {"cpu": cpu}}}


# -- labels that are identities in stead are ordinary labels in Kubernetes


def test_labels_named_like_steads_identities_are_labels() -> None:
    nodes: list[Fields] = [{"metadata": {"name": "n1", "labels": {"node_id": "n2"}}}, {"metadata": {"name": "n2"}}]
    assert cluster(nodes).candidates(pending(pod(nodeSelector={"node_id": "n2"}))) == (("n1",),)


def test_a_pod_label_named_like_steads_identity_is_a_label() -> None:
    """If it were an identity, the first pod of a set could never be placed."""
    nodes = [{"metadata": {"name": "n1", "labels": {"zone": "a"}}}]
    first = pod(affinity={"podAffinity": {REQUIRED: [term(selector={"matchLabels": {"ask_id": "x"}})]}})
    ask = pending({**first, "metadata": {"labels": {"ask_id": "x"}}})
    assert cluster(nodes).candidates(ask) == (("n1",),)


# -- a whole pod


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
                        REQUIRED: [term("region", {}, namespaces=["b"])],
                        PREFERRED: [{"weight": 4, "podAffinityTerm": term()}, {"weight": 0, "podAffinityTerm": term()}],
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
    near = Affinity(ANYWHERE, True, ("region",), frozenset({"b"}))
    assert ask.affinities == ((near, Affinity(WEB, False, ("kubernetes.io/hostname",), symmetric=True)),)
    assert ask.spreads == (Spread("zone", WEB & NOT_DELETING),)
    assert ask.prefers == (
        Preference(Selector.all_of(Requirement.exists("ssd")), 3),
        Preference(Affinity(WEB, True, ("zone",)), 4),
        Preference(Affinity(WEB, False, ("rack",)), 5),
    )
    assert ask.pulls == (
        Preference(Affinity(WEB, True, ("zone",)), 4),
        Preference(Affinity(WEB, False, ("rack",)), 5),
        Preference(near, 1),
    )
    assert ask.policy is PolicyName.KUBE
    assert ask.estimates == Resources.of({"memory": "200Mi"})
    assert ask.images == (":latest",)


def test_a_pod_without_a_name_is_refused() -> None:
    with pytest.raises(Invalid, match="must have a name"):
        ask_of(pod())


@pytest.mark.parametrize(("priority", "expected"), [(None, 0), (7, 7), (-5, -5)])
def test_priority(priority: int | None, expected: int) -> None:
    assert pending(pod(priority=priority)).priority == expected


@pytest.mark.parametrize(("gates", "gated"), [(None, False), ([], False), ([{"name": "example.com/quota"}], True)])
def test_gates(gates: list[Fields] | None, gated: bool) -> None:
    assert is_gated(pod(schedulingGates=gates)) is gated


# -- policies


def with_policy(name: object) -> Fields:
    return {"metadata": {"annotations": {POLICY_ANNOTATION: name}}, "spec": {}}


@pytest.mark.parametrize("policy", list(PolicyName))
def test_an_annotation_names_the_policy(policy: PolicyName) -> None:
    assert pending(with_policy(policy.value)).policy is policy


def test_pods_without_the_annotation_have_the_policy_of_the_cluster() -> None:
    assert ask_of(named(pod(), "p"), policy=PolicyName.FLOW).policy is PolicyName.FLOW
    assert ask_of(named(with_policy("pack"), "p"), policy=PolicyName.FLOW).policy is PolicyName.PACK


def test_an_annotation_with_an_unknown_policy() -> None:
    words = r"the annotation stead.dev/policy: 'flow-pak' is unknown \(did you mean 'flow-pack'\?\); good values are"
    with pytest.raises(Invalid, match=words):
        pending(with_policy("flow-pak"))
    assert ask_of(named(with_policy("flow-pak"), "p"), lenient=True).policy is PolicyName.KUBE


# -- pods that are being deleted


def deleting(fields: Fields) -> Fields:
    return {**fields, "metadata": {**fields["metadata"], "deletionTimestamp": "2026-01-01T00:00:00Z"}}


def test_topology_spread_does_not_count_pods_that_are_being_deleted() -> None:
    nodes = [{"metadata": {"name": name, "labels": {"zone": name}}} for name in ("a", "b")]
    web = {"metadata": {"labels": {"app": "web"}}, "spec": {"nodeName": "a"}}
    constraint = {"topologyKey": "zone", "maxSkew": 1, "labelSelector": WEB_SELECTOR}
    ask = pending({"metadata": {"labels": {"app": "web"}}, "spec": {"topologySpreadConstraints": [constraint]}})
    assert cluster(nodes, [web]).candidates(ask) == (("b",),)
    assert cluster(nodes, [deleting(web)]).candidates(ask) == (("a", "b"),)


def test_affinity_counts_pods_that_are_being_deleted() -> None:
    nodes = [{"metadata": {"name": name, "labels": {"zone": name}}} for name in ("a", "b")]
    web = {"metadata": {"labels": {"app": "web"}}, "spec": {"nodeName": "a"}}
    ask = pending(pod(affinity={"podAntiAffinity": {REQUIRED: [term()]}}))
    assert cluster(nodes, [deleting(web)]).candidates(ask) == (("b",),)


def test_no_explanation_mentions_the_private_label() -> None:
    nodes = [{"metadata": {"name": name, "labels": {"zone": name}}} for name in ("a", "b")]
    constraint = {"topologyKey": "zone", "labelSelector": WEB_SELECTOR, "nodeAffinityPolicy": "Ignore"}
    web: Fields = {"metadata": {"labels": {"app": "web"}}, "spec": {"topologySpreadConstraints": [constraint]}}
    engine = cluster(nodes)
    engine.apply(AskRunning(ask_of(named(web, "first")), "a"))
    selected = pending({**web, "spec": {**web["spec"], "nodeSelector": {"zone": "a"}}})
    explanation = engine.explain(selected)
    assert explanation.verdicts[0].candidates == 0
    assert DELETING not in str(explanation)


def test_an_ask_with_the_private_label_can_be_saved_and_loaded() -> None:
    constraint = {"topologyKey": "zone", "maxSkew": 1, "labelSelector": WEB_SELECTOR}
    web = {"metadata": {"labels": {"app": "web"}}, "spec": {"topologySpreadConstraints": [constraint]}}
    fact = AskRunning(pending(deleting(web)), "a")
    assert loads(dumps(fact), AskRunning) == fact


# -- the default spread


def test_a_pod_of_a_service_is_spread_by_default() -> None:
    owners = Owners()
    owners.put(OwnerKind.SERVICE, "shop", "web", {"app": "web"})
    web: Fields = {"metadata": {"name": "p", "namespace": "shop", "labels": {"app": "web", "tier": "1"}}, "spec": {}}
    expected = [("kubernetes.io/hostname", 3), ("topology.kubernetes.io/zone", 5)]
    assert ask_of(web, owners=owners).prefers == tuple(
        Preference(Spread(key, WEB & NOT_DELETING, skew, needs_key=False)) for key, skew in expected
    )
    assert ask_of(web).prefers == ()
    other = {**web, "metadata": {**web["metadata"], "namespace": "other"}}
    assert ask_of(other, owners=owners).prefers == ()


def test_a_pod_with_its_own_constraints_has_no_default_ones() -> None:
    owners = Owners()
    owners.put(OwnerKind.SERVICE, "", "web", {"app": "web"})
    constraint = {"topologyKey": "zone", "maxSkew": 1, "labelSelector": WEB_SELECTOR}
    web = {"metadata": {"name": "p", "labels": {"app": "web"}}, "spec": {"topologySpreadConstraints": [constraint]}}
    assert ask_of(web, owners=owners).prefers == ()


# -- what is refused


UNSUPPORTED = [
    (
        {"resourceClaims": [{"name": "gpu"}]},
        r"spec\.resourceClaims \(dynamic resource allocation\) is not supported yet",
    ),
    ({"volumes": [{"name": "d", "gcePersistentDisk": {"pdName": "x"}}]}, r"\[d\]\.gcePersistentDisk"),
    ({"volumes": [{"name": "d", "awsElasticBlockStore": {"volumeID": "x"}}]}, r"\[d\]\.awsElasticBlockStore"),
    ({"volumes": [{"name": "d", "rbd": {"image": "x"}}]}, r"\[d\]\.rbd"),
    ({"volumes": [{"name": "d", "iscsi": {"iqn": "x"}}]}, r"\[d\]\.iscsi"),
    ({"volumes": [{"name": "d", "azureDisk": {"diskName": "x"}}]}, r"\[d\]\.azureDisk"),
    ({"tolerations": [{"key": "a", "operator": "Lt", "value": "1"}]}, "alpha"),
]


@pytest.mark.parametrize(("spec", "words"), UNSUPPORTED)
def test_what_is_not_supported_is_refused(spec: Fields, words: str) -> None:
    with pytest.raises(Unsupported, match=words) as caught:
        pending(pod(**spec))
    assert not str(caught.value).endswith(".")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "spec",
    [
        {"volumes": [{"name": "files", "emptyDir": {}}, {"name": "disk", "persistentVolumeClaim": None}]},
        {"volumes": [{"name": "key", "secret": {"secretName": "k"}}, {"name": "host", "hostPath": {"path": "/"}}]},
        {"resourceClaims": [], "schedulingGroup": None, "volumes": None},
        {"containers": [{"resources": {"requests": {"hugepages-2Mi": "4Mi"}}}]},
    ],
)
def test_what_is_supported(spec: Fields) -> None:
    pending(pod(**spec))


# -- pods that stead does not place


@pytest.mark.parametrize(("spec", "words"), UNSUPPORTED)
def test_a_pod_that_has_a_node_is_read_whatever_it_uses(spec: Fields, words: str) -> None:
    assert ask_of(named(pod(**spec), "there"), lenient=True).choices[0].resources.get("pods")


def test_a_pod_that_has_a_node_gives_the_same_ask_as_before() -> None:
    spec = {
        "affinity": {"podAffinity": {REQUIRED: [term()]}, "podAntiAffinity": {REQUIRED: [term("rack")]}},
        "containers": [{"ports": [{"hostPort": 80}], **container("1")}],
        "nodeSelector": {"zone": "a"},
        "tolerations": [{"operator": "Exists"}],
        "topologySpreadConstraints": [{"topologyKey": "zone", "labelSelector": WEB_SELECTOR}],
    }
    metadata = {"name": "p", "namespace": "own", "labels": {"app": "web"}}
    waiting = ask_of({"metadata": metadata, "spec": spec})
    assert ask_of({"metadata": metadata, "spec": {**spec, "nodeName": "n1"}}, lenient=True) == waiting


PREFERENCE = {"matchExpressions": [{"key": "ssd", "operator": "Exists"}]}
BAD_PREFERENCE = {"matchExpressions": [{"key": "ssd", "operator": "Perhaps"}]}


@pytest.mark.parametrize(
    ("part", "bad"),
    [
        ("affinities", {"affinity": {"podAffinity": {REQUIRED: [term(), term(selector=BAD_SELECTOR)]}}}),
        ("affinities", {"affinity": {"podAntiAffinity": {REQUIRED: [term(), term(selector=BAD_SELECTOR)]}}}),
        (
            "prefers",
            {"affinity": {"podAffinity": {PREFERRED: [{"weight": 1, "podAffinityTerm": term(selector=BAD_SELECTOR)}]}}},
        ),
        ("prefers", {"affinity": {"nodeAffinity": {PREFERRED: [{"weight": 1, "preference": BAD_PREFERENCE}]}}}),
        ("spreads", {"topologySpreadConstraints": [{"topologyKey": "zone", "labelSelector": BAD_SELECTOR}]}),
        ("tolerations", {"tolerations": [{"operator": "Exists", "effect": "Never"}]}),
        ("ports", {"containers": [{"ports": [{"hostPort": "80"}]}]}),
    ],
    ids=str,
)
def test_a_part_that_does_not_parse_is_left_out_only_of_pods_that_have_a_node(part: str, bad: Fields) -> None:
    with pytest.raises(Invalid):
        pending(pod(**bad))
    ask = ask_of(named({"metadata": {"labels": {"app": "web"}}, "spec": {**bad, "priority": 3}}, "p"), lenient=True)
    assert not getattr(ask, part)
    assert (ask.labels, ask.priority) == (Labels({"app": "web"}), 3)


def test_a_list_that_does_not_parse_spares_the_other_lists() -> None:
    apart = {REQUIRED: [term(selector=BAD_SELECTOR)], PREFERRED: [{"weight": 5, "podAffinityTerm": term("rack")}]}
    spec = {"affinity": {"podAffinity": {REQUIRED: [term()]}, "podAntiAffinity": apart}}
    ask = ask_of(named(pod(**spec), "p"), lenient=True)
    assert ask.affinities == ((Affinity(WEB, True, ("zone",)),),)
    assert ask.prefers == (Preference(Affinity(WEB, False, ("rack",)), 5),)


def test_labels_that_are_not_valid_are_left_out_of_pods_that_have_a_node() -> None:
    labelled = {"metadata": {"name": "p", "labels": {"app": "web", "-": "x", "team": "a b"}}, "spec": {}}
    with pytest.raises(Invalid, match="label"):
        ask_of(labelled)
    assert ask_of(labelled, lenient=True).labels == Labels({"app": "web"})


def test_a_caller_without_namespaces_is_told_so_even_if_the_pod_has_a_node() -> None:
    selecting = term(namespaceSelector={"matchLabels": {"team": "team1"}})
    spec = {"affinity": {"podAntiAffinity": {REQUIRED: [selecting]}}}
    with pytest.raises(NamespacesMissing, match="namespaceSelector"):
        ask_of(named(pod(**spec), "p"), lenient=True)


def test_a_port_of_a_pod_that_has_a_node_is_taken() -> None:
    web = {"metadata": {}, "spec": {"nodeName": "a", "containers": [{"ports": [{"hostPort": 80}]}]}}
    nodes: list[Fields] = [{"metadata": {"name": "a"}}, {"metadata": {"name": "b"}}]
    ask = pending(pod(containers=[{"ports": [{"hostPort": 80}]}]))
    assert ask.ports == (HostPort(80),)
    assert cluster(nodes, [web]).candidates(ask) == (("b",),)
