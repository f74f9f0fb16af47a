"""The oracle for Kubernetes refuses nodes and says why, as kube-scheduler does.

Rule: a case is a sentence, what the cluster holds, the pod, and the reasons of every node.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import pytest

from tests.kubernetes import kube_oracle
from tests.kubernetes.kube_filters import (
    AFFINITY,
    ANTI_AFFINITY,
    EXISTING_ANTI_AFFINITY,
    NODE_AFFINITY,
    NODE_AFFINITY_CONFLICT,
    NODE_NAME,
    NOT_IN_NODE_SET,
    PORTS,
    SKEWED,
    SKEWED_NO_LABEL,
    TAINTED,
    TOO_MANY_PODS,
    UNSCHEDULABLE,
)
from tests.kubernetes.kube_oracle import Cluster, CycleError
from tests.kubernetes.kube_selectors import Fields
from tests.kubernetes.kube_shorthand import (
    REQUIRED,
    A,
    B,
    C,
    apart,
    container,
    expression,
    names,
    near,
    needs,
    node,
    pod,
    port,
    spread,
    taint,
    term,
    tolerate,
)

NAMESPACES = {"default": {}, "red": {"team": "red"}, "blue": {"team": "blue"}}


class Case(NamedTuple):
    pod: Fields
    refused: Mapping[str, list[str]]
    nodes: tuple[Fields, ...] = (A, B)
    placed: tuple[Fields, ...] = ()


FREE: list[str] = []

NODES: dict[str, Case] = {
    "a cordoned node is refused": Case(pod(), {"a": [UNSCHEDULABLE]}, (node(unschedulable=True),)),
    "a pod that tolerates the taint of a cordon may use a cordoned node": Case(
        pod(**tolerate(key="node.kubernetes.io/unschedulable", operator="Exists", effect="NoSchedule")),
        {"a": FREE},
        (node(unschedulable=True),),
    ),
    "a cordon comes before a taint": Case(pod(), {"a": [UNSCHEDULABLE]}, (node(unschedulable=True, **taint()),)),
    "a taint comes before node affinity": Case(pod(nodeSelector={"disk": "ssd"}), {"a": [TAINTED]}, (node(**taint()),)),
    "NoExecute refuses like NoSchedule": Case(pod(), {"a": [TAINTED]}, (node(**taint("NoExecute")),)),
    "PreferNoSchedule does not refuse": Case(pod(), {"a": FREE}, (node(**taint("PreferNoSchedule")),)),
    "a toleration without a key tolerates everything": Case(
        pod(**tolerate(operator="Exists")), {"a": FREE}, (node(**taint()),)
    ),
    "an Equal toleration needs the same value": Case(
        pod(**tolerate(key="gpu", value="no")), {"a": [TAINTED]}, (node(**taint()),)
    ),
    "a toleration of another effect does not count": Case(
        pod(**tolerate(key="gpu", operator="Exists", effect="NoExecute")), {"a": [TAINTED]}, (node(**taint()),)
    ),
    "Gt in a toleration is off by default": Case(
        pod(**tolerate(key="gpu", operator="Gt", value="1")), {"a": [TAINTED]}, (node(**taint(value="5")),)
    ),
    "a nodeSelector compares exactly": Case(pod(nodeSelector={"zone": "1"}), {"a": FREE, "b": [NODE_AFFINITY]}),
    "terms are alternatives": Case(
        pod(**needs(expression("zone", "In", "1"), expression("zone", "In", "2"))),
        {"a": FREE, "b": FREE, "c": [NODE_AFFINITY]},
        (A, B, C),
    ),
    "NotIn holds without the label": Case(
        pod(**needs(expression("zone", "NotIn", "1"))), {"a": [NODE_AFFINITY], "c": FREE}, (A, C)
    ),
    "Gt and Lt are strict": Case(
        pod(**needs(expression("zone", "Gt", "1"))), {"a": [NODE_AFFINITY], "b": FREE, "c": [NODE_AFFINITY]}, (A, B, C)
    ),
    "a label that is not an integer is neither greater nor less": Case(
        pod(**needs(expression("zone", "Lt", "9"), expression("zone", "Gt", "0"))),
        {"a": [NODE_AFFINITY]},
        (node("a", {"zone": "one"}),),
    ),
    "an integer of more than 64 bits is not an integer": Case(
        pod(**needs(expression("zone", "Gt", "0"))), {"a": [NODE_AFFINITY]}, (node("a", {"zone": "9" * 20}),)
    ),
    "an empty and a null term match no node": Case(
        pod(**needs({}, None)), {"a": [NODE_AFFINITY], "b": [NODE_AFFINITY]}
    ),
    "no terms at all match no node": Case(pod(**needs()), {"a": [NODE_AFFINITY], "b": [NODE_AFFINITY]}),
    "a null requirement is none": Case(pod(affinity={"nodeAffinity": {REQUIRED: None}}), {"a": FREE, "b": FREE}),
    "a required term that does not parse does not match": Case(
        pod(**needs(expression("zone", "Gt", "one"), expression("zone", "In", "2"))), {"a": [NODE_AFFINITY], "b": FREE}
    ),
    "a node that no term names is out before any filter": Case(
        pod(**needs(names("In", "a"))), {"a": FREE, "b": [NOT_IN_NODE_SET]}, (A, node("b", unschedulable=True))
    ),
    "a node that is named must still match the rest of the term": Case(
        pod(**needs({**names("In", "a"), **expression("zone", "In", "2")})),
        {"a": [NODE_AFFINITY], "b": [NOT_IN_NODE_SET]},
    ),
    "a term without a name opens all nodes": Case(
        pod(**needs(names("In", "a"), expression("zone", "In", "2"))), {"a": FREE, "b": FREE}
    ),
    "NotIn of a name goes through the filter": Case(
        pod(**needs(names("NotIn", "a"))), {"a": [NODE_AFFINITY], "b": FREE}
    ),
    "names that contradict each other refuse every node": Case(
        pod(**needs({"matchFields": [*names("In", "a")["matchFields"], *names("In", "b")["matchFields"]]})),
        {"a": [NODE_AFFINITY_CONFLICT], "b": [NODE_AFFINITY_CONFLICT]},
    ),
    "two names in one list do not parse": Case(
        pod(**needs(names("In", "a", "b"))), {"a": [NODE_AFFINITY], "b": [NODE_AFFINITY]}
    ),
    "a pod that names its node fits no other": Case(pod(on="a"), {"a": FREE, "b": [NODE_NAME]}),
}

ROOM: dict[str, Case] = {
    "several resources are reported together": Case(
        pod(containers=[container(cpu="5", memory="9Gi", ephemeral_storage="1")]),
        {"a": ["Insufficient cpu", "Insufficient memory", "Insufficient ephemeral-storage"]},
        (A,),
    ),
    "a node full of pods says so first": Case(
        pod(containers=[container(cpu="5")]),
        {"a": [TOO_MANY_PODS, "Insufficient cpu"]},
        (node(allocatable={"cpu": "4", "pods": "1"}),),
        (pod("a"),),
    ),
    "a node that does not say how many pods it takes takes none": Case(
        pod(), {"a": [TOO_MANY_PODS]}, (node(allocatable={"cpu": "4"}),)
    ),
    "a node without allocatable has its capacity": Case(
        pod(), {"a": FREE}, ({"metadata": {"name": "a"}, "status": {"capacity": {"pods": "1"}}},)
    ),
    "pods that ended hold nothing": Case(
        pod(containers=[container(cpu="4")]),
        {"a": FREE},
        (A,),
        tuple(
            {**pod("a", containers=[container(cpu="4")]), "status": {"phase": phase}}
            for phase in ("Succeeded", "Failed")
        ),
    ),
    "a terminating pod still holds its resources": Case(
        pod(containers=[container(cpu="1")]),
        {"a": ["Insufficient cpu"]},
        (A,),
        (pod("a", metadata={"deletionTimestamp": "now"}, containers=[container(cpu="4")]),),
    ),
    "a request of zero is never refused": Case(
        pod(containers=[{"name": "main", "resources": {"requests": {"example.com/gpu": "0", "cpu": "0"}}}]),
        {"a": FREE},
        (A,),
    ),
    "an extended resource that the node does not have is insufficient": Case(
        pod(containers=[{"name": "main", "resources": {"requests": {"example.com/gpu": "1"}}}]),
        {"a": ["Insufficient example.com/gpu"]},
        (A,),
    ),
    "a resource that is not qualified is ignored": Case(
        pod(containers=[container(gpu="1", storage="1Gi")]), {"a": FREE}, (A,)
    ),
    "a limit without a request is requested": Case(
        pod(containers=[{"name": "main", "resources": {"limits": {"cpu": "5"}}}]), {"a": ["Insufficient cpu"]}, (A,)
    ),
    "a pod being resized holds the larger of what it had and wants": Case(
        pod(containers=[container(cpu="1")]),
        {"a": ["Insufficient cpu"]},
        (A,),
        (
            {
                **pod("a", containers=[container(cpu="1")]),
                "status": {
                    "containerStatuses": [
                        {"name": "main", "resources": {"requests": {"cpu": "1"}}, "allocatedResources": {"cpu": "4"}}
                    ]
                },
            },
        ),
    ),
    "the same host port is not free": Case(pod(**port(80)), {"a": [PORTS], "b": FREE}, placed=(pod("a", **port(80)),)),
    "another protocol is another port": Case(
        pod(**port(80, protocol="UDP")), {"a": FREE, "b": FREE}, placed=(pod("a", **port(80)),)
    ),
    "another address is another port": Case(
        pod(**port(80, hostIP="10.0.0.1")), {"a": FREE}, (A,), (pod("a", **port(80, hostIP="10.0.0.2")),)
    ),
    "all addresses conflict with every address": Case(
        pod(**port(80, hostIP="0.0.0.0")), {"a": [PORTS]}, (A,), (pod("a", **port(80, hostIP="10.0.0.2")),)
    ),
    "every address conflicts with all addresses": Case(
        pod(**port(80, hostIP="10.0.0.1")), {"a": [PORTS]}, (A,), (pod("a", **port(80)),)
    ),
    "the container ports of a pod on the host network are host ports": Case(
        pod(hostNetwork=True, **port(80, hostPort=0)), {"a": [PORTS]}, (A,), (pod("a", **port(80)),)
    ),
    "a port without a host port is free on every node": Case(
        pod(**port(80, hostPort=0)), {"a": FREE}, (A,), (pod("a", **port(80)),)
    ),
    "ports come before resources": Case(
        pod(containers=[{**port(80)["containers"][0], "resources": {"requests": {"cpu": "9"}}}]),
        {"a": [PORTS], "b": ["Insufficient cpu"]},
        placed=(pod("a", **port(80)),),
    ),
}

SPREAD: dict[str, Case] = {
    "a zone may be ahead by the skew only": Case(pod(**spread()), {"a": [SKEWED], "b": FREE}, placed=(pod("a"),)),
    "a node without the key is refused in other words": Case(
        pod(**spread()), {"a": FREE, "c": [SKEWED_NO_LABEL]}, (A, C)
    ),
    "a pod that its own selector does not select adds nothing": Case(
        pod(app="db", **spread()), {"a": FREE, "b": FREE}, placed=(pod("a"),)
    ),
    "pods of other namespaces and terminating pods do not count": Case(
        pod(**spread()),
        {"a": FREE, "b": FREE},
        placed=(pod("a", namespace="red"), pod("a", metadata={"deletionTimestamp": "now"})),
    ),
    "a null selector selects no pod": Case(pod(**spread(None)), {"a": FREE, "b": FREE}, placed=(pod("a"), pod("a"))),
    "an empty selector counts no existing pod": Case(pod(**spread({})), {"a": FREE, "b": FREE}, placed=(pod("a"),)),
    "too few domains make the least number zero": Case(
        pod(**spread(minDomains=3)), {"a": [SKEWED], "b": [SKEWED]}, placed=(pod("a"), pod("b"))
    ),
    "enough domains do not": Case(pod(**spread(minDomains=2)), {"a": FREE, "b": FREE}, placed=(pod("a"), pod("b"))),
    "nodes that node affinity excludes are no domains": Case(
        pod(nodeSelector={"zone": "1"}, **spread()), {"a": FREE, "b": [NODE_AFFINITY]}, placed=(pod("a"),)
    ),
    "they are domains if the constraint ignores node affinity": Case(
        pod(nodeSelector={"zone": "1"}, **spread(nodeAffinityPolicy="Ignore")),
        {"a": [SKEWED], "b": [NODE_AFFINITY]},
        placed=(pod("a"),),
    ),
    "tainted nodes are domains": Case(
        pod(**spread()), {"a": [SKEWED], "b": [TAINTED]}, (A, node("b", {"zone": "2"}, **taint())), (pod("a"),)
    ),
    "tainted nodes are no domains if the constraint honors taints": Case(
        pod(**spread(nodeTaintsPolicy="Honor")),
        {"a": FREE, "b": [TAINTED]},
        (A, node("b", {"zone": "2"}, **taint())),
        (pod("a"),),
    ),
    "matchLabelKeys narrow the selector to the pod's own value": Case(
        pod(**spread({}, matchLabelKeys=["app", "absent"])),
        {"a": FREE, "b": [SKEWED]},
        placed=(pod("a", "db"), pod("b")),
    ),
    "ScheduleAnyway refuses nothing": Case(
        pod(**spread(whenUnsatisfiable="ScheduleAnyway")), {"a": FREE, "c": FREE}, (A, C), (pod("a"), pod("a"))
    ),
    "only nodes with the keys of all constraints count": Case(
        pod(
            topologySpreadConstraints=[
                *spread()["topologySpreadConstraints"],
                *spread(key="rack")["topologySpreadConstraints"],
            ]
        ),
        {"a": FREE, "b": [SKEWED_NO_LABEL]},
        (node("a", {"zone": "1", "rack": "r"}), B),
    ),
}

PODS: dict[str, Case] = {
    "affinity wants the domain of a matching pod": Case(
        pod(app="db", **near(term())), {"a": FREE, "b": [AFFINITY], "c": [AFFINITY]}, (A, B, C), (pod("a"),)
    ),
    "one pod must match all the terms": Case(
        pod(app="x", **near(term(), term({"matchLabels": {"app": "db"}}))),
        {"a": [AFFINITY], "b": [AFFINITY]},
        placed=(pod("a"), pod("a", "db")),
    ),
    "the first pod of a group that wants itself fits where the keys are": Case(
        pod(**near(term())), {"a": FREE, "c": [AFFINITY]}, (A, C)
    ),
    "a pod that does not match its own terms cannot be the first": Case(
        pod(app="db", **near(term())), {"a": [AFFINITY]}, (A,)
    ),
    "a matching pod on a node without the key does not end the start of a group": Case(
        pod(**near(term())), {"a": FREE, "c": [AFFINITY]}, (A, C), (pod("c"),)
    ),
    "a null selector matches nothing, not even the pod itself": Case(
        pod(**near(term(None))), {"a": [AFFINITY]}, (A,), (pod("a"),)
    ),
    "an empty selector matches every pod": Case(
        pod(**near(term({}))), {"a": FREE, "b": [AFFINITY]}, placed=(pod("a", "db"),)
    ),
    "affinity looks at the pod's own namespace": Case(
        pod(app="db", **near(term())), {"a": [AFFINITY], "b": FREE}, placed=(pod("a", namespace="red"), pod("b"))
    ),
    "listed namespaces replace the pod's own": Case(
        pod(app="db", **near(term(namespaces=["red"]))),
        {"a": FREE, "b": [AFFINITY]},
        placed=(pod("a", namespace="red"), pod("b")),
    ),
    "a namespace selector finds namespaces by label": Case(
        pod(app="db", **near(term(namespaceSelector={"matchLabels": {"team": "red"}}))),
        {"a": FREE, "b": [AFFINITY]},
        placed=(pod("a", namespace="red"), pod("b", namespace="blue")),
    ),
    "an empty namespace selector means every namespace": Case(
        pod(app="db", **near(term(namespaceSelector={}))),
        {"a": FREE, "b": [AFFINITY]},
        placed=(pod("a", namespace="blue"),),
    ),
    "a null namespace selector adds nothing to listed namespaces": Case(
        pod(app="db", **near(term(namespaces=["red"], namespaceSelector=None))), {"a": [AFFINITY]}, (A,), (pod("a"),)
    ),
    "matchLabelKeys want the pod's own value": Case(
        pod(**near(term({}, matchLabelKeys=["app"]))), {"a": [AFFINITY], "b": FREE}, placed=(pod("a", "db"), pod("b"))
    ),
    "mismatchLabelKeys want another value": Case(
        pod(**apart(term({}, mismatchLabelKeys=["app"]))),
        {"a": [ANTI_AFFINITY], "b": FREE},
        placed=(pod("a", "db"), pod("b")),
    ),
    "anti-affinity refuses the domain of a matching pod": Case(
        pod(**apart(term())), {"a": [ANTI_AFFINITY], "b": FREE, "c": FREE}, (A, B, C), (pod("a"), pod("c"))
    ),
    "each anti-affinity term counts alone": Case(
        pod(app="x", **apart(term(), term({"matchLabels": {"app": "db"}}))),
        {"a": [ANTI_AFFINITY], "b": [ANTI_AFFINITY]},
        placed=(pod("a"), pod("b", "db")),
    ),
    "anti-affinity is symmetric": Case(
        pod(), {"a": [EXISTING_ANTI_AFFINITY], "b": FREE}, placed=(pod("a", "db", **apart(term())),)
    ),
    "an existing pod's anti-affinity is about its own namespace": Case(
        pod(), {"a": FREE, "b": FREE}, placed=(pod("a", "db", "red", **apart(term())),)
    ),
    "an existing pod's namespace selector may reach the pod": Case(
        pod(namespace="blue"),
        {"a": [EXISTING_ANTI_AFFINITY]},
        (A,),
        (pod("a", "db", "red", **apart(term(namespaceSelector={"matchLabels": {"team": "blue"}}))),),
    ),
    "the pod's own anti-affinity is named before that of existing pods": Case(
        pod(**apart(term())), {"a": [ANTI_AFFINITY]}, (A,), (pod("a", **apart(term())),)
    ),
    "affinity is not symmetric": Case(pod(), {"a": FREE, "b": FREE}, placed=(pod("a", "db", **near(term())),)),
    "terminating pods count for affinity": Case(
        pod(app="db", **near(term())),
        {"a": FREE, "b": [AFFINITY]},
        placed=(pod("a", metadata={"deletionTimestamp": "now"}),),
    ),
    "a pod on a node that does not exist counts nowhere": Case(
        pod(app="db", **near(term())), {"a": [AFFINITY]}, (A,), (pod("gone"),)
    ),
    "spread comes before affinity": Case(
        pod(**spread(), **near(term({"matchLabels": {"app": "x"}}))),
        {"a": [SKEWED], "b": [AFFINITY]},
        placed=(pod("a"),),
    ),
}


@pytest.mark.parametrize("sentence", [*NODES, *ROOM, *SPREAD, *PODS])
def test_nodes_are_refused_for_the_reasons_of_the_first_plugin_that_refuses(sentence: str) -> None:
    case = {**NODES, **ROOM, **SPREAD, **PODS}[sentence]
    cluster = Cluster(case.nodes, case.placed, NAMESPACES)
    assert kube_oracle.filter(cluster, case.pod) == case.refused


BAD = {"matchExpressions": [{"key": "app", "operator": "Near", "values": ["web"]}]}


def test_pod_affinity_that_does_not_parse_refuses_every_node() -> None:
    reason = 'parsing pod: requiredAffinityTerms: "Near" is not a valid label selector operator'
    assert kube_oracle.filter(Cluster([A, B]), pod(**near(term(BAD)))) == {"a": [reason], "b": [reason]}
    assert kube_oracle.message(Cluster([A, B]), pod(**near(term(BAD)))) == f"0/2 nodes are available: {reason}."


def test_an_existing_pods_terms_that_do_not_parse_are_ignored() -> None:
    placed = pod("a", **apart(term(), term(BAD)))
    assert kube_oracle.filter(Cluster([A], [placed]), pod()) == {"a": FREE}


def test_a_spread_that_does_not_parse_ends_the_cycle() -> None:
    with pytest.raises(CycleError, match=r'PodTopologySpread.*"Near" is not a valid label selector operator'):
        kube_oracle.filter(Cluster([A]), pod(**spread(BAD)))


# -- messages


def test_the_message_counts_each_reason_and_sorts_as_text() -> None:
    small = [node(f"n{number}", allocatable={"cpu": "1", "pods": "1"}) for number in range(10)]
    cluster = Cluster([*small, node("t1", **taint()), node("t2", **taint())], [pod("n0")])
    assert kube_oracle.message(cluster, pod(containers=[container(cpu="2")])) == (
        "0/12 nodes are available: 1 Too many pods, 10 Insufficient cpu, 2 node(s) had untolerated taint(s)."
    )


def test_the_message_of_a_pod_that_names_its_node() -> None:
    cluster = Cluster([A, B, node("d", **taint())])
    counted = f"1 {TAINTED}, 2 {NOT_IN_NODE_SET}"
    pending = pod(**needs(names("In", "d"), names("In", "gone")))
    assert kube_oracle.message(cluster, pending) == f"0/3 nodes are available: {counted}."


def test_the_message_without_nodes() -> None:
    assert kube_oracle.message(Cluster([]), pod()) == "no nodes available to schedule pods"


def test_there_is_no_message_if_a_node_is_feasible() -> None:
    with pytest.raises(ValueError, match="fits a node"):
        kube_oracle.message(Cluster([A]), pod())
