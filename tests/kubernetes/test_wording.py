"""What a pending pod is told: kube-scheduler's sentence, then the smallest change in the words of Kubernetes.

Rule: each case is a cluster of few nodes and one pod that no node takes.
"""

from __future__ import annotations

from typing import Any

import pytest

from stead.engine.engine import Engine
from stead.engine.facts import AskRunning, NodeJoined
from stead.kubernetes.podspec import ask_of, node_of
from stead.kubernetes.wording import why_pending
from tests.kubernetes import objects as o

HOSTNAME = "kubernetes.io/hostname"
CORDONED = [o.node("a", unschedulable=True), o.node("b", unschedulable=True)]


def required(*terms: object) -> dict[str, Any]:
    kind = "requiredDuringSchedulingIgnoredDuringExecution"
    return {"affinity": {"nodeAffinity": {kind: {"nodeSelectorTerms": list(terms)}}}}


def expression(key: str, operator: str, *values: str) -> dict[str, Any]:
    return {"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}


def near(kind: str, app: str) -> dict[str, Any]:
    term = {"topologyKey": HOSTNAME, "labelSelector": {"matchLabels": {"app": app}}}
    return {"affinity": {kind: {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}}


CASES: dict[str, tuple[list[o.Object], dict[str, Any], str]] = {
    "a taint of the operator": (
        [o.node("a", taints=[o.taint("team", "web")])],
        {},
        "1 node(s) had untolerated taint(s). Tolerating team=web would be enough (1 node).",
    ),
    "cordoned nodes": (
        CORDONED,
        {},
        "2 node(s) were unschedulable. Uncordoning a node would be enough (2 nodes).",
    ),
    "a node with a problem": (
        [o.node("a", taints=[o.taint("node.kubernetes.io/disk-pressure")])],
        {},
        "Removing the cause of the taint node.kubernetes.io/disk-pressure from a node would be enough (1 node).",
    ),
    "required node affinity that does not parse": (
        [o.node("a")],
        required(expression("cores", "Gt", "many")),
        "Dropping the required node affinity, which can match no node, would be enough (1 node).",
    ),
    "an empty term of required node affinity": (
        [o.node("a")],
        required({}),
        "Dropping the required node affinity, which can match no node, would be enough (1 node).",
    ),
    "several terms of required node affinity": (
        [o.node("a")],
        required(expression("disk", "In", "ssd"), expression("zone", "In", "b")),
        "Dropping the node selector and the required node affinity would be enough (1 node).",
    ),
    "a pod that must be near another": (
        [o.node("a")],
        near("podAffinity", "cache"),
        "Dropping the pod affinity to pods with app in {cache} (topology key kubernetes.io/hostname) would be enough",
    ),
    "a pod that must be apart from another": (
        [o.node("a")],
        near("podAntiAffinity", "busy"),
        "Dropping the pod anti-affinity to pods with app in {busy} (topology key kubernetes.io/hostname) would be",
    ),
    "a name of a node": (
        [o.node("a")],
        required({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["z"]}]}),
        "Allowing metadata.name=a would be enough (1 node).",
    ),
    "more memory than stead counts with": (
        [o.node("a", memory="600Ti")],
        {"containers": [{"name": "main", "resources": {"requests": {"memory": "9Ei"}}}]},  # more than any node has
        "0/1 nodes are available: 1 Insufficient memory.",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_the_smallest_change_is_in_the_words_of_kubernetes(name: str) -> None:
    nodes, spec, expected = CASES[name]
    engine = Engine()
    engine.apply(*(NodeJoined(node_of(node)) for node in nodes))
    engine.apply(AskRunning(ask_of(o.pod("busy", labels={"app": "busy"})), nodes[0]["metadata"]["name"]))
    assert expected in why_pending(engine, ask_of(o.pod("p", **spec)))


def test_a_change_of_many_parts_is_no_hint() -> None:
    engine = Engine()
    engine.apply(NodeJoined(node_of(o.node("a"))))
    wanted = {f"key-{number}": "x" for number in range(5)}
    assert why_pending(engine, ask_of(o.pod("p", nodeSelector=wanted))) == (
        "0/1 nodes are available: 1 node(s) didn't match Pod's node affinity/selector."
    )


def test_a_node_with_more_than_stead_counts_is_used() -> None:
    engine = Engine()
    engine.apply(NodeJoined(node_of(o.node("a", resources={"ephemeral-storage": "600Ti"}))))
    assert engine.feasible(ask_of(o.pod("p"))) == {"a"}
