"""The oracle for Kubernetes ranks nodes as kube-scheduler does. The numbers are worked out by hand.

Rule: a case is a sentence, what the cluster holds, the pod, and the score of every node, already times its weight.
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any, NamedTuple

import pytest

from tests.kubernetes import kube_filters, kube_oracle, random_clusters
from tests.kubernetes.kube_cluster import completed
from tests.kubernetes.kube_oracle import Cluster, CycleError
from tests.kubernetes.kube_scores import SCORES, divided, rounded
from tests.kubernetes.kube_selectors import Fields
from tests.kubernetes.kube_shorthand import (
    PREFERRED,
    WEB,
    A,
    B,
    C,
    Object,
    container,
    expression,
    near,
    needs,
    node,
    pod,
    spread,
    taint,
    term,
    tolerate,
)

ZONE = "topology.kubernetes.io/zone"
MEBIBYTE = 2**20


def prefers(*weighted: tuple[int, Fields]) -> Object:
    terms = [{"weight": weight, "preference": preference} for weight, preference in weighted]
    return {"affinity": {"nodeAffinity": {PREFERRED: terms}}}


def likes(kind: str, *weighted: tuple[int, Fields]) -> Object:
    terms = [{"weight": weight, "podAffinityTerm": fields} for weight, fields in weighted]
    return {"affinity": {kind: {PREFERRED: terms}}}


def softly(selector: Fields | None = WEB, key: str = "zone", **more: Any) -> Object:
    return spread(selector, key, whenUnsatisfiable="ScheduleAnyway", **more)


def with_images(name: str, **sizes: int) -> Object:
    images = [{"names": [f"{image}:latest"], "sizeBytes": size * MEBIBYTE} for image, size in sizes.items()]
    plain = node(name)
    return {**plain, "status": {**plain["status"], "images": images}}


def running(*images: str) -> Object:
    return pod(containers=[{"name": image, "image": image} for image in images])


class Case(NamedTuple):
    plugin: str
    pod: Fields
    scores: Mapping[str, int]
    nodes: tuple[Fields, ...] = (A, B)
    placed: tuple[Fields, ...] = ()
    more: Mapping[str, Any] = {}


TWO_TAINTS: Object = {"taints": [*taint("PreferNoSchedule")["taints"], *taint("PreferNoSchedule", "no")["taints"]]}
TAINTED = (node("a"), node("b", **taint("PreferNoSchedule")), node("c", **TWO_TAINTS))

PREFERENCES: dict[str, Case] = {
    "the fewer taints to avoid, the better": Case("TaintToleration", pod(), {"a": 300, "b": 150, "c": 0}, TAINTED),
    "a tolerated taint is not avoided": Case(
        "TaintToleration", pod(**tolerate(key="gpu", value="yes")), {"a": 300, "b": 300, "c": 0}, TAINTED
    ),
    "a toleration of another effect does not help": Case(
        "TaintToleration",
        pod(**tolerate(operator="Exists", effect="NoSchedule")),
        {"a": 300, "b": 150, "c": 0},
        TAINTED,
    ),
    "taints that refuse are not counted": Case(
        "TaintToleration", pod(**tolerate(operator="Exists")), {"a": 300, "b": 300}, (A, node("b", **taint()))
    ),
    "the weights of the terms that match add up, and the best node has 100": Case(
        "NodeAffinity",
        pod(**prefers((3, expression("zone", "Exists")), (2, expression("zone", "In", "1")))),
        {"a": 200, "b": 120, "c": 0},
        (A, B, C),
    ),
    "the share of the best node is rounded down": Case(
        "NodeAffinity",
        pod(**prefers((1, expression("zone", "Exists")), (2, expression("zone", "In", "1")))),
        {"a": 200, "b": 66},
    ),
    "an empty preference and weight 0 add nothing, even if they do not parse": Case(
        "NodeAffinity", pod(**prefers((9, {}), (0, expression("zone", "Near")))), {"a": 0, "b": 0}
    ),
    "a term that is preferred pulls to its pods, and the farthest node has 0": Case(
        "InterPodAffinity", pod(**likes("podAffinity", (5, term()))), {"a": 200, "b": 0}, placed=(pod("a"),)
    ),
    "every matching pod pulls": Case(
        "InterPodAffinity",
        pod(**likes("podAffinity", (1, term()))),
        {"a": 200, "b": 66, "c": 0},
        (A, B, C),
        (pod("a"), pod("a"), pod("a"), pod("b")),
    ),
    "anti-affinity pushes away": Case(
        "InterPodAffinity", pod(**likes("podAntiAffinity", (5, term()))), {"a": 0, "b": 200}, placed=(pod("a"),)
    ),
    "what existing pods prefer counts too": Case(
        "InterPodAffinity", pod(), {"a": 200, "b": 0}, placed=(pod("a", "db", **likes("podAffinity", (5, term()))),)
    ),
    "so does what they avoid": Case(
        "InterPodAffinity", pod(), {"a": 0, "b": 200}, placed=(pod("a", "db", **likes("podAntiAffinity", (5, term()))),)
    ),
    "what they require counts one": Case(
        "InterPodAffinity",
        pod(),
        {"a": 200, "b": 100, "c": 0},
        (A, B, C),
        (pod("a", "db", **likes("podAffinity", (2, term()))), pod("b", "db", **near(term()))),
    ),
    "without a difference there is no score": Case(
        "InterPodAffinity", pod(**likes("podAffinity", (5, term()))), {"a": 0, "b": 0}, placed=(pod("a"), pod("b"))
    ),
}

SPREADS: dict[str, Case] = {
    "without constraints and without siblings nothing is spread": Case("PodTopologySpread", pod(), {"a": 0, "b": 0}),
    "without pods to spread all nodes are best": Case("PodTopologySpread", pod(**softly()), {"a": 200, "b": 200}),
    "the emptier zone is better": Case("PodTopologySpread", pod(**softly()), {"a": 0, "b": 200}, placed=(pod("a"),)),
    # ln(2 + 2) is 1.39: the zones count 2.77 and 1.39, so 3 and 1.
    "counts are weighted by the number of domains and rounded": Case(
        "PodTopologySpread", pod(**softly()), {"a": 66, "b": 200}, placed=(pod("a"), pod("a"), pod("b"))
    ),
    # 1.39 + 4 and 0 + 4, so 5 and 4.
    "a larger skew waters the difference down": Case(
        "PodTopologySpread", pod(**softly(maxSkew=5)), {"a": 160, "b": 200}, placed=(pod("a"),)
    ),
    "a node without the key has no score": Case(
        "PodTopologySpread", pod(**softly()), {"a": 0, "b": 200, "c": 0}, (A, B, C), (pod("a"),)
    ),
    "a hostname counts the pods of the node itself": Case(
        "PodTopologySpread", pod(**softly(key="kubernetes.io/hostname")), {"a": 0, "b": 200}, placed=(pod("a"),)
    ),
    "pods on nodes that node affinity excludes do not count": Case(
        "PodTopologySpread",
        pod(**softly(), **needs(expression("disk", "In", "ssd"))),
        {"a": 200, "b": 200},
        (node("a", {"zone": "1", "disk": "ssd"}), node("b", {"zone": "2", "disk": "ssd"}), node("d", {"zone": "1"})),
        (pod("d"), pod("d")),
    ),
    "a null selector spreads nothing": Case(
        "PodTopologySpread", pod(**softly(None)), {"a": 200, "b": 200}, placed=(pod("a"),)
    ),
    "an empty selector spreads nothing": Case(
        "PodTopologySpread", pod(**softly({})), {"a": 200, "b": 200}, placed=(pod("a"),)
    ),
    "a constraint that refuses turns the defaults off": Case(
        "PodTopologySpread",
        pod(**spread(maxSkew=9)),
        {"a": 0, "b": 0},
        placed=(pod("a"),),
        more={"services": [{"metadata": {"namespace": "default"}, "spec": {"selector": {"app": "web"}}}]},
    ),
}


def selected_by(kind: str, selector: Any, name: str = "owner", namespace: str = "default") -> Mapping[str, Any]:
    return {kind: [{"metadata": {"name": name, "namespace": namespace}, "spec": {"selector": selector}}]}


def owned(api: str, kind: str, controller: bool = True) -> Object:
    owner = {"apiVersion": api, "kind": kind, "name": "owner", "controller": controller}
    return pod(metadata={"ownerReferences": [owner]})


# Hosts count 1.39 + 2 and 0 + 2, so 3 and 2: 100 * 2 / 3 is 66.
SIBLINGS, STRANGERS = {"a": 132, "b": 200}, {"a": 0, "b": 0}

DEFAULTS: dict[str, tuple[Fields, Mapping[str, Any], dict[str, int]]] = {
    "the pods of a service are spread over hosts": (pod(), selected_by("services", {"app": "web"}), SIBLINGS),
    "a service of another namespace does not count": (
        pod(),
        selected_by("services", {"app": "web"}, namespace="red"),
        STRANGERS,
    ),
    "a service without a selector does not count": (pod(), selected_by("services", None), STRANGERS),
    "a service with an empty selector does not count": (pod(), selected_by("services", {}), STRANGERS),
    "the pods of a ReplicaSet are spread": (owned("apps/v1", "ReplicaSet"), selected_by("replicasets", WEB), SIBLINGS),
    "the pods of a StatefulSet are spread": (
        owned("apps/v1", "StatefulSet"),
        selected_by("statefulsets", WEB),
        SIBLINGS,
    ),
    "the pods of a ReplicationController are spread": (
        owned("v1", "ReplicationController"),
        selected_by("replicationcontrollers", {"app": "web"}),
        SIBLINGS,
    ),
    "an owner that is not the controller does not count": (
        owned("apps/v1", "ReplicaSet", controller=False),
        selected_by("replicasets", WEB),
        STRANGERS,
    ),
    "an owner that does not exist does not count": (
        owned("apps/v1", "ReplicaSet"),
        selected_by("replicasets", WEB, name="another"),
        STRANGERS,
    ),
    "a ReplicaSet of another version does not count": (
        owned("extensions/v1beta1", "ReplicaSet"),
        selected_by("replicasets", WEB),
        STRANGERS,
    ),
}

RESOURCES: dict[str, Case] = {
    "what stays free of cpu and memory, on average": Case(
        "NodeResourcesFit", pod(containers=[container(cpu="1", memory="6Gi")]), {"a": 50}, (A,)
    ),
    "a container that requests nothing counts for 100m and 200Mi": Case(
        "NodeResourcesFit",
        pod(containers=[container(), container()]),
        {"a": 46},
        (node(allocatable={"cpu": "400m", "memory": "700Mi", "pods": "9"}),),
    ),
    "containers on the node count in the same way": Case(
        "NodeResourcesFit",
        pod(),
        {"a": 46},
        (node(allocatable={"cpu": "400m", "memory": "700Mi", "pods": "9"}),),
        (pod("a"),),
    ),
    "a request of zero is a request": Case(
        "NodeResourcesFit", pod(containers=[container(cpu="0", memory="0")]), {"a": 100}, (A,)
    ),
    "a resource that the node does not have is left out": Case(
        "NodeResourcesFit",
        pod(containers=[container(cpu="1")]),
        {"a": 75},
        (node(allocatable={"cpu": "4", "pods": "9"}),),
    ),
    "a resource that is used up counts 0": Case(
        "NodeResourcesFit",
        pod(containers=[container(cpu="0", memory="4Gi")]),
        {"a": 25},
        (A,),
        (pod("a", containers=[container(cpu="5", memory="0")]),),
    ),
    "the pending pod counts by its containers even if it requests as a whole": Case(
        "NodeResourcesFit",
        pod(containers=[container(memory="0")], resources={"requests": {"cpu": "4"}}),
        {"a": 98},
        (A,),
    ),
    "a placed pod that requests as a whole counts as a whole": Case(
        "NodeResourcesFit",
        pod(containers=[container(cpu="0", memory="0")]),
        {"a": 73},
        (A,),
        (pod("a", resources={"requests": {"cpu": "2"}}),),
    ),
    "the same share of cpu and memory keeps the balance": Case(
        "NodeResourcesBalancedAllocation", pod(containers=[container(cpu="1", memory="2Gi")]), {"a": 75}, (A,)
    ),
    "half of the cpu alone disturbs it": Case(
        "NodeResourcesBalancedAllocation", pod(containers=[container(cpu="2")]), {"a": 62}, (A,)
    ),
    "a pod that restores it is better than one that keeps it": Case(
        "NodeResourcesBalancedAllocation",
        pod(containers=[container(memory="4Gi")]),
        {"a": 87, "b": 62},
        placed=(pod("a", containers=[container(cpu="2")]),),
    ),
    "a pod that requests neither is not balanced": Case(
        "NodeResourcesBalancedAllocation",
        pod(containers=[container(cpu="0", ephemeral_storage="0")]),
        {"a": 0, "b": 0},
        placed=(pod("a", containers=[container(cpu="2")]),),
    ),
    "more than all is all": Case(
        "NodeResourcesBalancedAllocation",
        pod(containers=[container(memory="8Gi")]),
        {"a": 100},
        (A,),
        (pod("a", containers=[container(cpu="5")]),),
    ),
    # Half of the nodes have 500 MiB, so 250: 100 * (250 - 23) / (1000 - 23).
    "an image counts by its size and by how many nodes have it": Case(
        "ImageLocality", running("api"), {"a": 23, "b": 0}, (with_images("a", api=500), node("b"))
    ),
    "an image without a tag is the latest": Case(
        "ImageLocality", running("api:latest"), {"a": 48}, (with_images("a", api=500),)
    ),
    "a small image does not count": Case("ImageLocality", running("api"), {"a": 0}, (with_images("a", api=23),)),
    "more than 1000 MiB for each container do not count": Case(
        "ImageLocality", running("api", "web"), {"a": 100}, (with_images("a", api=5000, web=1),)
    ),
    "an image volume counts its bytes": Case(
        "ImageLocality",
        {
            **running("api"),
            "spec": {**running("api")["spec"], "volumes": [{"image": {"reference": "model"}}, {"emptyDir": {}}]},
        },
        {"a": 48},
        (with_images("a", model=500),),
    ),
    "init containers count as containers": Case(
        "ImageLocality",
        {**running("api"), "spec": {**running("api")["spec"], "initContainers": [{"image": "init"}]}},
        {"a": 24},
        (with_images("a", init=500),),
    ),
}

ALL = {**PREFERENCES, **SPREADS, **RESOURCES}


@pytest.mark.parametrize("sentence", ALL)
def test_one_plugin(sentence: str) -> None:
    case = ALL[sentence]
    cluster = Cluster(case.nodes, case.placed, **case.more)
    found = kube_oracle.scores(cluster, case.pod, case.scores.keys())
    assert {name: points[case.plugin] for name, points in found.items()} == case.scores


@pytest.mark.parametrize("sentence", DEFAULTS)
def test_default_spreading(sentence: str) -> None:
    pending, more, expected = DEFAULTS[sentence]
    found = kube_oracle.scores(Cluster([A, B], [pod("a")], **more), pending, ["a", "b"])
    assert {name: points["PodTopologySpread"] for name, points in found.items()} == expected


def test_a_node_without_a_zone_is_spread_by_its_hostname_and_counts_as_one_more_zone() -> None:
    nodes = [node("a", {ZONE: "1"}), node("b", {ZONE: "2"}), node("c")]
    cluster = Cluster(nodes, [pod("a"), pod("c")], **selected_by("services", {"app": "web"}))
    # Hosts: ln 5 for a and c, and 2 each. Zones: ln 5 for a, and 4 for a and b. So 9 (9.2), 6 and 4 (3.6).
    found = kube_oracle.scores(cluster, pod(), ["a", "b", "c"])
    assert {name: points["PodTopologySpread"] for name, points in found.items()} == {"a": 88, "b": 154, "c": 200}


# -- the choice


def test_the_best_nodes_have_the_highest_total() -> None:
    cluster = Cluster([A, B, C, node("d", **taint())], [pod("c")])
    assert kube_oracle.best(cluster, pod()) == {"a", "b"}
    totals = kube_oracle.scores(cluster, pod(), ["a", "c"])
    assert sum(totals["a"].values()) > sum(totals["c"].values())


def test_no_node_is_best_if_none_is_feasible() -> None:
    assert kube_oracle.best(Cluster([A]), pod(nodeSelector={"disk": "ssd"})) == set()


def test_a_preference_that_does_not_parse_ends_the_cycle_unless_a_single_node_is_left() -> None:
    broken = pod(**prefers((1, expression("zone", "Gt", "one"))))
    with pytest.raises(CycleError, match='running PreScore plugin "NodeAffinity"'):
        kube_oracle.best(Cluster([A, B]), broken)
    assert kube_oracle.best(Cluster([A]), broken) == {"a"}


def test_go_divides_towards_zero_and_rounds_half_away_from_zero() -> None:
    assert [divided(number, 2) for number in (-3, -1, 1, 3)] == [-1, 0, 0, 1]
    assert [rounded(number) for number in (-0.5, 0.49999999999999994, 0.5, 1.5, 2.5)] == [-1, 0, 1, 2, 3]


# -- random clusters


def oracle_of(drawn: random_clusters.RandomCluster, nodes: list[Object]) -> Cluster:
    return Cluster(nodes, drawn.placed, drawn.namespaces, drawn.services, drawn.replicasets)


def verdict(cluster: Cluster, pending: Fields) -> tuple[Any, Any]:
    """Reasons and scores, or the error of the cycle."""
    try:
        refused = kube_oracle.filter(cluster, pending)
        feasible = [name for name, reasons in refused.items() if not reasons]
        return refused, kube_oracle.scores(cluster, pending, feasible)
    except CycleError as error:
        return str(error), None


@pytest.mark.parametrize("seed", range(20))
def test_the_order_of_nodes_does_not_matter_and_stored_pods_mean_the_same(seed: int) -> None:
    drawn = random_clusters.cluster(Random(seed), 8)
    assert drawn == random_clusters.cluster(Random(seed), 8)
    forwards, backwards = oracle_of(drawn, drawn.nodes), oracle_of(drawn, drawn.nodes[::-1])
    for pending in drawn.pending:
        assert verdict(forwards, pending) == verdict(backwards, pending) == verdict(forwards, completed(pending))


def test_random_clusters_reach_every_reason_and_every_score() -> None:
    reasons: set[str] = set()
    plugins: set[str] = set()
    for seed in range(60):
        drawn = random_clusters.cluster(Random(seed), 8)
        cluster = oracle_of(drawn, drawn.nodes)
        for pending in drawn.pending:
            refused, scored = verdict(cluster, pending)
            if scored is None:
                reasons.add("error")
                continue
            reasons |= {reason.partition(":")[0] for found in refused.values() for reason in found}
            assert all(0 <= points[name] <= 100 * SCORES[name][0] for points in scored.values() for name in points)
            plugins |= {name for name in SCORES if len({points[name] for points in scored.values()}) > 1}
    said = {value for name, value in vars(kube_filters).items() if name.isupper() and isinstance(value, str)}
    unlikely = {kube_filters.HOSTNAME, kube_filters.NODE_NAME, kube_filters.NODE_AFFINITY_CONFLICT}
    assert reasons >= (said - unlikely) | {"error", "parsing pod", "Insufficient cpu", "Insufficient hugepages-2Mi"}
    assert plugins == SCORES.keys()
