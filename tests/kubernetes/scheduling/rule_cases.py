"""Every kind of rule as a case: a few nodes and pods, and where the pods must be in the end.

Rule: the meaning of each rule is tested elsewhere against an oracle (tests/kubernetes). A case here shows that the rule
arrives: from the API server, through the watches and the engine, to a binding or to a reason that the user can read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.kubernetes.kube_shorthand import PREFERRED, apart, near, needs, spread, term
from tests.kubernetes.objects import HOSTNAME, ZONE, Object, namespace, node, pod, priority_class, service, taint

WEB = {"matchLabels": {"app": "web"}}


@dataclass(frozen=True)
class Pending:
    """The pod has no node, and its condition and its event have this text."""

    text: str


@dataclass(frozen=True)
class Untouched:
    """The pod has no node and no condition: stead does not schedule it."""


Expected = str | set[str] | Pending | Untouched


@dataclass(frozen=True)
class Case:
    """`running` are pods that have a node, by that node. `pods` are created after everything else was seen.

    With `nodes_last` the pods are there before the nodes, so that they are decided together. A case with `only_fake`
    does not run on the real server; the text says why.
    """

    nodes: list[Object]
    pods: list[Object]
    expected: Mapping[str, Expected]
    running: Mapping[str, list[Object]] = field(default_factory=dict)
    others: list[Object] = field(default_factory=list)
    nodes_last: bool = False
    only_fake: str = ""


def zoned(name: str, zone: str, **more: Any) -> Object:
    return node(name, labels={ZONE: zone}, **more)


A, B = zoned("a", "1"), zoned("b", "2")


def web(name: str = "web", **more: Any) -> Object:
    return pod(name, labels={"app": "web"}, **more)


def db(name: str = "db", **more: Any) -> Object:
    return pod(name, labels={"app": "db"}, **more)


def foreign(found: Object) -> Object:
    """The same pod, of another scheduler."""
    return {**found, "spec": {**found["spec"], "schedulerName": "another"}}


def annotated(found: Object, key: str, value: str) -> Object:
    return {**found, "metadata": {**found["metadata"], "annotations": {key: value}}}


def with_port(found: Object, number: int, **more: Any) -> Object:
    found["spec"]["containers"][0]["ports"] = [{"containerPort": number, "hostPort": number, **more}]
    return found


def one_in(key: str, operator: str, *values: str) -> Object:
    return {"matchExpressions": [{"key": key, "operator": operator, **({"values": list(values)} if values else {})}]}


def prefers(weight: int, preference: Object) -> Object:
    return {"nodeAffinity": {PREFERRED: [{"weight": weight, "preference": preference}]}}


def zone_term(selector: Object, **more: Any) -> Object:
    return term(selector, ZONE, **more)


def weighted(kind: str, weight: int, chosen: Object) -> Object:
    return {kind: {PREFERRED: [{"weight": weight, "podAffinityTerm": chosen}]}}


def with_volume(name: str, **volume: Any) -> Object:
    return pod(name, volumes=[{"name": "data", **volume}])


def gated(name: str) -> Object:
    return pod(name, schedulingGates=[{"name": "example.com/wait"}])


NOT_IN_1_20 = "the field is not in Kubernetes 1.20"

DB = {"matchLabels": {"app": "db"}}
TWO_OF_EACH = {"a": [web("w1"), web("w2")], "b": [db("d1"), db("d2")]}

NODE_CASES = {
    "a node selector": Case([A, B], [pod("p", nodeSelector={ZONE: "2"})], {"p": "b"}),
    "a node selector that no node has": Case(
        [A, B],
        [pod("p", nodeSelector={ZONE: "3"})],
        {"p": Pending("0/2 nodes are available: 2 node(s) didn't match Pod's node affinity/selector.")},
    ),
    "required affinity with In": Case([A, B], [pod("p", **needs(one_in(ZONE, "In", "2", "3")))], {"p": "b"}),
    "required affinity with NotIn": Case([A, B], [pod("p", **needs(one_in(ZONE, "NotIn", "1")))], {"p": "b"}),
    "required affinity with Gt": Case([A, B], [pod("p", **needs(one_in(ZONE, "Gt", "1")))], {"p": "b"}),
    "required affinity with one of two terms": Case(
        [A, B], [pod("p", **needs(one_in("disk", "Exists"), one_in(ZONE, "In", "2")))], {"p": "b"}
    ),
    "preferred affinity": Case([A, B], [pod("p", affinity=prefers(1, one_in(ZONE, "In", "2")))], {"p": "b"}),
    "preferred affinity that no node meets": Case(
        [A], [pod("p", affinity=prefers(100, one_in(ZONE, "In", "2")))], {"p": "a"}
    ),
    "a node by its name, as a daemon set asks": Case(
        [A, B],
        [pod("p", **needs({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["b"]}]}))],
        {"p": "b"},
    ),
    "a node by a name that does not exist": Case(
        [A],
        [pod("p", **needs({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["c"]}]}))],
        {"p": Pending("0/1 nodes are available: 1 node(s) didn't satisfy plugin(s) [NodeAffinity].")},
    ),
    "a taint that is not tolerated": Case(
        [node("a", taints=[taint("gpu", "yes")])],
        [pod("p"), pod("q", tolerations=[{"key": "gpu", "value": "no", "effect": "NoSchedule"}])],
        dict.fromkeys("pq", Pending("0/1 nodes are available: 1 node(s) had untolerated taint(s).")),
    ),
    "taints that are tolerated, by value, by key, and all": Case(
        [node("a", taints=[taint("gpu", "yes"), taint("gpu", "yes", "NoExecute")])],
        [
            pod("p", tolerations=[{"key": "gpu", "value": "yes"}]),
            pod("q", tolerations=[{"key": "gpu", "operator": "Exists"}]),
            pod("r", tolerations=[{"operator": "Exists"}]),
        ],
        {"p": "a", "q": "a", "r": "a"},
    ),
    "a taint that only asks": Case(
        [node("a", taints=[taint("slow", "", "PreferNoSchedule")]), B], [pod("p")], {"p": "b"}
    ),
    "a cordoned node": Case(
        [node("a", unschedulable=True)],
        [pod("p"), pod("q", tolerations=[{"key": "node.kubernetes.io/unschedulable", "operator": "Exists"}])],
        {"p": Pending("1 node(s) were unschedulable."), "q": "a"},
    ),
    "no nodes at all": Case([], [pod("p")], {"p": Pending("no nodes available to schedule pods")}),
}

POD_CASES = {
    "affinity to a running pod": Case([A, B], [web(**near(zone_term(DB)))], {"web": "b"}, {"b": [foreign(db())]}),
    "affinity to no pod at all": Case(
        [A], [web(**near(zone_term(DB)))], {"web": Pending("1 node(s) didn't match pod affinity rules.")}
    ),
    "affinity to pods like itself, of which it is the first": Case(
        [A, B],
        [web("w1", **near(zone_term(WEB))), web("w2", **near(zone_term(WEB)))],
        {"w1": {"a", "b"}, "w2": {"a", "b"}},
    ),
    "affinity to pods of another namespace": Case(
        [A, B],
        [web(**near(zone_term(DB, namespaces=["elsewhere"])))],
        {"web": "b"},
        {"a": [db("d1")], "b": [db("d2", namespace="elsewhere")]},
        [namespace("elsewhere")],
    ),
    "affinity to pods of namespaces with a label": Case(
        [A, B],
        [web(**near(zone_term(DB, namespaceSelector={"matchLabels": {"team": "data"}})))],
        {"web": "b"},
        {"a": [db("d1")], "b": [db("d2", namespace="labelled")]},
        [namespace("labelled", {"team": "data"})],
        only_fake=NOT_IN_1_20,
    ),
    "preferred affinity to a running pod": Case(
        [A, B],
        [web(affinity=weighted("podAffinity", 100, zone_term(DB)))],
        {"web": "b"},
        {"a": [pod("other")], "b": [db()]},
    ),
    "anti-affinity to a running pod": Case([A, B], [web(**apart(zone_term(DB)))], {"web": "b"}, {"a": [db()]}),
    "anti-affinity among equal pods": Case(
        [A, B],
        [web(f"w{i}", **apart(term(WEB, HOSTNAME))) for i in range(3)],
        {"w0": {"a", "b"}, "w1": {"a", "b"}, "w2": Pending("2 node(s) didn't match pod anti-affinity rules.")},
    ),
    "anti-affinity of a running pod of another scheduler": Case(
        [A, B], [web()], {"web": "b"}, {"a": [foreign(db(**apart(zone_term(WEB))))]}
    ),
    "anti-affinity of running pods everywhere": Case(
        [A],
        [web()],
        {"web": Pending("1 node(s) didn't satisfy existing pods anti-affinity rules.")},
        {"a": [foreign(db(**apart(zone_term(WEB))))]},
    ),
    "preferred anti-affinity": Case(
        [A, B],
        [web(affinity=weighted("podAntiAffinity", 100, zone_term(DB)))],
        {"web": "b"},
        {"a": [db()], "b": [pod("other")]},
    ),
    "hard spread": Case([A, B], [web(**spread(WEB, ZONE))], {"web": "b"}, {"a": [web("w1")]}),
    "hard spread that cannot be met": Case(
        [A, zoned("b", "2", unschedulable=True)],
        [web(**spread(WEB, ZONE))],
        {"web": Pending("1 node(s) didn't match pod topology spread constraints, 1 node(s) were unschedulable.")},
        {"a": [web("w1")]},
    ),
    "hard spread over nodes without the label": Case(
        [node("a")],
        [web(**spread(WEB, ZONE))],
        {"web": Pending("didn't match pod topology spread constraints (missing required label)")},
    ),
    "hard spread with a minimum of domains": Case(
        [A],
        [web("w1", **spread(WEB, ZONE, minDomains=2)), web("w2", **spread(WEB, ZONE, minDomains=2))],
        {"w1": "a", "w2": Pending("1 node(s) didn't match pod topology spread constraints.")},
        only_fake=NOT_IN_1_20,
    ),
    "soft spread": Case(
        [A, B], [web(**spread(WEB, ZONE, whenUnsatisfiable="ScheduleAnyway"))], {"web": "b"}, TWO_OF_EACH
    ),
    "the default spread of the pods of a service": Case(
        [A, B], [web()], {"web": "b"}, TWO_OF_EACH, [service("web", {"app": "web"})]
    ),
}

RESOURCE_CASES = {
    "cpu, with the pods of all schedulers": Case(
        [node("a", cpu="2"), node("b", cpu="1")],
        [pod("p", cpu="1"), pod("q", cpu="1")],
        {"p": "b", "q": Pending("0/2 nodes are available: 2 Insufficient cpu.")},
        {"a": [foreign(pod("other", cpu="1500m"))]},
    ),
    "memory": Case([node("a", memory="1Gi")], [pod("p", memory="2Gi")], {"p": Pending("1 Insufficient memory.")}),
    "an extended resource": Case(
        [node("a"), node("b", resources={"example.com/gpu": "2"})],
        [pod("p", resources={"example.com/gpu": "2"}), pod("q", resources={"example.com/gpu": "1"})],
        {"p": "b", "q": Pending("2 Insufficient example.com/gpu.")},
    ),
    "ephemeral storage": Case(
        [node("a", resources={"ephemeral-storage": "1Gi"})],
        [pod("p", resources={"ephemeral-storage": "2Gi"})],
        {"p": Pending("1 Insufficient ephemeral-storage.")},
    ),
    "the number of pods": Case(
        [node("a", pods="2")], [pod("p"), pod("q")], {"p": "a", "q": Pending("1 Too many pods.")}, {"a": [pod("other")]}
    ),
    "init containers, of which the largest counts": Case(
        [node("a", cpu="2")],
        [
            pod(name, initContainers=[{**pod("i", cpu=cpu)["spec"]["containers"][0], "name": "init"}])
            for name, cpu in (("p", "2"), ("q", "2100m"))
        ],
        {"p": "a", "q": Pending("1 Insufficient cpu.")},
    ),
    "host ports": Case(
        [A, B],
        [with_port(pod(name), 80) for name in ("p", "q")],
        {"p": "b", "q": Pending("2 node(s) didn't have free ports for the requested pod ports.")},
        {"a": [foreign(with_port(pod("other"), 80))]},
    ),
    "host ports of another protocol": Case(
        [A], [with_port(pod("p"), 80, protocol="UDP")], {"p": "a"}, {"a": [with_port(pod("other"), 80)]}
    ),
    "priority, when there is room for one": Case(
        [node("a", cpu="1")],
        [pod("early", cpu="1"), pod("urgent", cpu="1", priorityClassName="urgent")],
        {"urgent": "a", "early": Pending("no nodes available")},  # its next reason is written half a minute later
        others=[priority_class("urgent", 1000)],
        nodes_last=True,
    ),
    "the room of a pod on a node that does not exist": Case(
        [A], [pod("p", cpu="8")], {"p": "a"}, {"nowhere": [foreign(pod("lost", cpu="8"))]}
    ),
    "the room of a static pod": Case(
        [node("a", cpu="2")],
        [pod("p", cpu="1")],
        {"p": Pending("1 Insufficient cpu.")},
        {"a": [annotated(foreign(pod("static-a", cpu="1500m")), "kubernetes.io/config.mirror", "abc")]},
    ),
}

OWNERSHIP_CASES = {
    "pods of another scheduler": Case([A], [foreign(pod("other")), pod("p")], {"other": Untouched(), "p": "a"}),
    "gated pods": Case([A], [gated("gated"), pod("p")], {"gated": Untouched(), "p": "a"}, only_fake=NOT_IN_1_20),
    "the policy pack for one pod": Case(
        [A, B],
        [annotated(pod(name), "stead.dev/policy", "pack") for name in ("p", "q")],
        {"p": "b", "q": "b"},
        {"b": [pod("other", cpu="4")]},
    ),
    "the policy flow for one pod": Case(
        [A, B],
        [annotated(pod(name, cpu="5"), "stead.dev/policy", "flow") for name in ("p", "q")],
        {"p": {"a", "b"}, "q": {"a", "b"}},
    ),
}

UNSUPPORTED_CASES = {
    "a disk by iSCSI": Case(
        [A],
        [with_volume("p", iscsi={"targetPortal": "10.0.0.1", "iqn": "iqn.2026-05.test:disk", "lun": 0})],
        {"p": Pending("spec.volumes[data].iscsi is not supported yet")},
    ),
    "a disk of a cloud": Case(
        [A],
        [with_volume("p", awsElasticBlockStore={"volumeID": "vol-1"})],
        {"p": Pending("spec.volumes[data].awsElasticBlockStore is not supported yet")},
    ),
    "a volume that every node has": Case([A], [with_volume("p", emptyDir={})], {"p": "a"}),
    "a claim of a device": Case(
        [A],
        [pod("p", resourceClaims=[{"name": "gpu", "resourceClaimName": "mine"}])],
        {"p": Pending("spec.resourceClaims (dynamic resource allocation) is not supported yet")},
        only_fake=NOT_IN_1_20,
    ),
    "a preferred term that does not parse": Case(
        [A], [pod("p", affinity=prefers(1, one_in(ZONE, "Gt", "many")))], {"p": Pending("'many'")}
    ),
    "a required term that does not parse is a term that does not match": Case(
        [A],
        [pod("p", **needs(one_in(ZONE, "Gt", "many")))],
        {"p": Pending("1 node(s) didn't match Pod's node affinity/selector.")},
    ),
    "an unknown policy": Case(
        [A], [annotated(pod("p"), "stead.dev/policy", "kub")], {"p": Pending("stead.dev/policy")}
    ),
    "an annotation of stead with a typing error": Case(
        [A],
        [annotated(pod("p"), "stead.dev/polcy", "pack")],
        {"p": Pending("the annotation 'stead.dev/polcy' is unknown (did you mean 'stead.dev/policy'?)")},
    ),
    "an operator that is newer than stead": Case(
        [A],
        [pod("p", tolerations=[{"key": "a", "operator": "Resembles", "value": "1"}])],
        {"p": Pending("Resembles")},
        only_fake="the real server refuses such a pod",
    ),
}

CASES: dict[str, Case] = {
    **NODE_CASES,
    **POD_CASES,
    **RESOURCE_CASES,
    **OWNERSHIP_CASES,
    **UNSUPPORTED_CASES,
}
