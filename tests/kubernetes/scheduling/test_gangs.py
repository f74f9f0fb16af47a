"""Gangs on an API server: all pods of a gang are bound, or none.

Rule: the real server has the PodGroups of the coscheduling plugin, installed as a CustomResourceDefinition; it drops
fields of pods that are newer than itself, so those are tested on the fake one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from tests.kubernetes.custom_resources import COSCHEDULING, installed
from tests.kubernetes.objects import Object, condition_of, node, node_of, nodes, pod, priority_class
from tests.kubernetes.scheduling.cluster import ClusterUnderTest
from tests.kubernetes.scheduling.kubelet import Kubelets

LABEL = "scheduling.x-k8s.io/pod-group"
GROUP, VERSION = "scheduling.x-k8s.io", "v1alpha1"


@pytest.fixture(autouse=True)
def pod_groups(cluster: ClusterUnderTest) -> Iterator[None]:
    """The API server has PodGroups; they are gone at the end of the test."""
    if cluster.is_fake:
        yield
        return
    with installed(cluster.kubectl, COSCHEDULING):
        yield


def pod_group(name: str, least: int) -> Object:
    metadata = {"name": name, "namespace": "default"}
    return {"apiVersion": f"{GROUP}/{VERSION}", "kind": "PodGroup", "metadata": metadata, "spec": {"minMember": least}}


def gang(name: str, count: int, cpu: str = "4", labels: dict[str, str] | None = None, **more: object) -> list[Object]:
    each = {LABEL: name} if labels is None else labels
    return [pod(f"{name}-{i}", cpu=cpu, labels=each, **more) for i in range(count)]  # type: ignore[arg-type]  # of a pod


def bound(cluster: ClusterUnderTest) -> Counter[str]:
    """How many pods of each gang have a node."""
    found = (name.rpartition("-")[0] for name, each in cluster.pods().items() if node_of(each))
    return Counter(found)


def test_gangs_of_8_on_20_nodes_with_room_for_two_and_a_half(cluster: ClusterUnderTest) -> None:
    cluster.create_many(nodes(20, cpu="4"))
    for name in ("a", "b", "c"):
        cluster.create(pod_group(name, 8), *gang(name, 8))
    scheduler = cluster.scheduler().wait_until_leading()
    for number in range(8):
        cluster.wait_until_pending(f"c-{number}", saying="The pod group needs 8 pods at once, and 4 fit.")
    assert bound(cluster) == {"a": 8, "b": 8}
    assert cluster.wait_for_event("c-0", "FailedScheduling")["message"].startswith("The pod group needs 8 pods")
    for number in range(8):
        cluster.kubectl.delete("Pod", f"a-{number}", grace_seconds=0)
    cluster.wait_until_bound()
    assert bound(cluster) == {"b": 8, "c": 8}
    assert scheduler.stop() == 0


def test_a_gang_waits_for_its_pods_and_for_its_object(cluster: ClusterUnderTest) -> None:
    cluster.create_many(nodes(3, cpu="4"))
    cluster.scheduler().wait_until_leading()
    first, second = gang("ring", 2)
    cluster.create(first)
    found = cluster.wait_until_pending("ring-0", saying="Waiting for the PodGroup 'ring'")
    assert found["reason"] == "SchedulerError"
    cluster.create(pod_group("ring", 3), second)  # the next report on a pod would come 30 s later
    found = cluster.wait_until_pending("ring-1", saying="The pod group needs 3 pods at once, and 2 exist.")
    assert found["reason"] == "Unschedulable"
    cluster.create(pod("ring-2", cpu="4", labels={LABEL: "ring"}))
    cluster.wait_until_bound("ring-0", "ring-1", "ring-2")


KUEUE = {"kueue.x-k8s.io/pod-group-name": "ring"}
OTHERS = {
    "Kueue": (KUEUE, {"kueue.x-k8s.io/pod-group-total-count": "3"}),
    "Volcano, and the number in the pods": (
        {},
        {"scheduling.k8s.io/group-name": "ring", "stead.dev/min-available": "3"},
    ),
    "coscheduling, and the number in the pods": ({LABEL: "ring"}, {"stead.dev/min-available": "3"}),
}


@pytest.mark.parametrize(("labels", "annotations"), OTHERS.values(), ids=OTHERS.keys())
def test_gangs_of(cluster: ClusterUnderTest, labels: dict[str, str], annotations: dict[str, str]) -> None:
    cluster.create_many(nodes(2, cpu="4"))
    cluster.scheduler().wait_until_leading()
    for each in gang("ring", 3, labels=labels):
        each["metadata"]["annotations"] = annotations
        cluster.create(each)
    cluster.wait_until_pending("ring-2", saying="The pod group needs 3 pods at once, and 2 fit.")
    assert bound(cluster) == {}
    cluster.create(node("more", cpu="4"))
    cluster.wait_until_bound("ring-0", "ring-1", "ring-2")


def test_gangs_of_kubernetes_itself(fake_cluster: ClusterUnderTest) -> None:
    """Fake only: the real server is older than the field `schedulingGroup`."""
    cluster = fake_cluster
    cluster.create_many(nodes(4, cpu="4", zones=2))
    found: Object = {
        "apiVersion": "scheduling.k8s.io/v1alpha2",
        "kind": "PodGroup",
        "metadata": {"name": "ring", "namespace": "default"},
        "spec": {
            "schedulingPolicy": {"gang": {"minCount": 2}},
            "schedulingConstraints": {"topologyConstraints": [{"topologyKey": "topology.kubernetes.io/zone"}]},
        },
    }
    path = "/apis/scheduling.k8s.io/v1alpha2/namespaces/default/podgroups"
    assert cluster.kubectl.request("POST", path, found).status == 201
    cluster.create(pod("filler", cpu="4", nodeSelector={"kubernetes.io/hostname": "node-0"}))
    cluster.scheduler().wait_until_leading()
    cluster.create(*gang("ring", 2, labels={}, schedulingGroup={"podGroupName": "ring"}))
    assert set(cluster.wait_until_bound("ring-0", "ring-1").values()) == {"node-1", "node-3"}


def test_kill_9_in_the_middle_of_binding_a_gang(cluster: ClusterUnderTest) -> None:
    """What is bound stays, the rest follows, and another gang does not take its place."""
    count = 60
    cluster.create_many(nodes(count, cpu="4"))
    cluster.create(pod_group("large", count))
    cluster.create_many(gang("large", count))
    if cluster.is_fake:
        cluster.fake.slow(0.02)
    scheduler = cluster.prepared_scheduler()
    with cluster.recorded() as recorded:
        scheduler.start()
        recorded.wait_until_assigned(5)
        scheduler.kill()
        scheduler.start()
        recorded.wait_until_assigned(count)
        assert not recorded.assigned_twice()
    assert Counter(map(node_of, cluster.kubectl.list("Pod"))).most_common(1)[0][1] == 1


def test_gangs_are_placed_in_a_batch_by_flow(cluster: ClusterUnderTest) -> None:
    cluster.create_many(nodes(6, cpu="4"))
    for name in ("one", "two"):
        cluster.create(pod_group(name, 4))
        for each in gang(name, 4):
            each["metadata"]["annotations"] = {"stead.dev/policy": "flow"}
            cluster.create(each)
    cluster.scheduler().wait_until_leading()
    cluster.kubectl.wait_until(lambda: 4 in bound(cluster).values())
    (placed,) = bound(cluster)
    left = "two" if placed == "one" else "one"
    cluster.wait_until_pending(f"{left}-0", saying="The pod group needs 4 pods at once, and 2 fit.")
    assert bound(cluster) == {placed: 4}


def test_a_gang_evicts_as_many_pods_as_it_needs_or_none(cluster: ClusterUnderTest) -> None:
    cluster.create(priority_class("low", 1), priority_class("high", 100))
    cluster.create_many(nodes(3, cpu="4"))
    for number in range(3):
        cluster.create(pod(f"low-{number}", cpu="3", priorityClassName="low"))
    cluster.scheduler().wait_until_leading()
    cluster.wait_until_bound()
    cluster.create(pod_group("four", 4), *gang("four", 4, priorityClassName="high"))
    cluster.wait_until_pending("four-3", saying="The pod group needs 4 pods at once, and 0 fit.")
    assert not [name for name, each in cluster.pods().items() if each["metadata"].get("deletionTimestamp")]
    cluster.create(pod_group("two", 2), *gang("two", 2, priorityClassName="high"))
    with Kubelets(cluster.server):
        cluster.wait_until_bound("two-0", "two-1")
    left = [name for name in cluster.pods() if name.startswith("low")]
    assert len(left) == 1
    for name in ("low", "high"):
        cluster.kubectl.delete("PriorityClass", name)
    assert not condition_of(cluster.kubectl.get("Pod", left[0]), "DisruptionTarget")
