"""kube-scheduler's own cases of preemption, end to end through an API server.

Rule: nodes and pods are those of the case, as far as an API server stores them: a priority is a PriorityClass, and a
time of start is in the status. What does not apply is listed in `tests/kubernetes/test_upstream_defaultpreemption.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest

from stead.kubernetes.fields import Fields
from tests.kubernetes.objects import Object, node, pod, priority_class
from tests.kubernetes.scheduling.cluster import ClusterUnderTest
from tests.kubernetes.scheduling.kubelet import start
from tests.kubernetes.scheduling.test_preemption import deleted, nominated
from tests.kubernetes.test_upstream_defaultpreemption import TABLE, reason_of

TESTS = ("TestPreempt", "TestSelectBestCandidate")
CASES = [case for test in TESTS for case in TABLE.cases(test) if reason_of(test, case) is None]


def class_of(pod: Fields) -> str:
    policy = pod["spec"].get("preemptionPolicy", "PreemptLowerPriority")
    return f"at-{pod['spec'].get('priority', 0)}-{policy}".lower().replace("at--", "at-minus-")


def classes_of(case: Fields) -> list[Object]:
    found = {}
    for each in [case["pod"], *case["pods"]]:
        policy = each["spec"].get("preemptionPolicy", "PreemptLowerPriority")
        name = class_of(each)
        found[name] = priority_class(name, each["spec"].get("priority", 0), preemptionPolicy=policy)
    return list(found.values())


def as_created(written: Fields) -> Object:
    """The pod of a case with a container of its own, and its priority as a class."""
    spec = {name: value for name, value in written["spec"].items() if value is not None}
    for name in ("containers", "nodeName", "priority", "preemptionPolicy"):
        spec.pop(name, None)
    made = pod(written["metadata"]["name"], labels=written["metadata"].get("labels"), **spec)
    requests: dict[str, Any] = {}
    for container in written["spec"].get("containers") or ():
        requests |= container.get("resources", {}).get("requests") or {}
    made["spec"]["containers"][0]["resources"] = {"requests": requests}
    made["spec"]["priorityClassName"] = class_of(written)
    return made


@pytest.fixture
def classes(cluster: ClusterUnderTest, case: Fields) -> Iterator[None]:
    found = classes_of(case)
    cluster.create(*found)
    yield
    for each in found:
        cluster.kubectl.delete("PriorityClass", each["metadata"]["name"])


@pytest.mark.usefixtures("classes")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_the_same_pods_are_evicted_on_the_same_node(cluster: ClusterUnderTest, case: Fields) -> None:
    for each in case["nodes"]:
        amounts = each["status"]["allocatable"]
        cluster.create(node(each["metadata"]["name"], **amounts, labels=each["metadata"].get("labels")))
    for each in case["pods"]:
        name = each["metadata"]["name"]
        cluster.create(as_created(each))
        cluster.kubectl.bind(name, each["spec"]["nodeName"])
        if at := (each.get("status") or {}).get("startTime"):
            start(cluster.kubectl, name, datetime.fromisoformat(at))
    cluster.scheduler().wait_until_leading()
    name = case["pod"]["metadata"]["name"]
    cluster.create(as_created(case["pod"]))
    wanted = case.get("wantAnyNode") or [case["wantNode"]]
    if wanted == [""]:
        cluster.wait_until_pending(name)
        assert not deleted(cluster)
        assert not nominated(cluster, name)
        return
    assert cluster.kubectl.wait_until(lambda: nominated(cluster, name)) in wanted
    victims = set(case.get("wantVictims") or ())
    cluster.kubectl.wait_until(lambda: deleted(cluster))
    if victims:
        cluster.kubectl.wait_until(lambda: deleted(cluster) == victims)
    assert {cluster.node_of(each) for each in deleted(cluster)} == {nominated(cluster, name)}
