"""Pods of a lower priority are evicted for a pod that fits nowhere.

Rule: the tests stand in for the kubelets, which end deleted pods, and for the controller that counts disruptions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta

import pytest

from tests.kubernetes.objects import HOSTNAME, MERGE, Object, condition_of, node, nodes, pod, priority_class, taint
from tests.kubernetes.scheduling.cluster import ClusterUnderTest
from tests.kubernetes.scheduling.kubelet import Kubelets, start

LOW, MIDDLE, HIGH, POLITE = "low", "middle", "high", "polite"
NOON = datetime(2026, 5, 4, 12, tzinfo=UTC)


@pytest.fixture(autouse=True)
def priorities(cluster: ClusterUnderTest) -> Iterator[None]:
    found = [priority_class(LOW, 10), priority_class(MIDDLE, 50), priority_class(HIGH, 100)]
    found.append(priority_class(POLITE, 100, preemptionPolicy="Never"))
    cluster.create(*found)
    yield
    for each in found:
        cluster.kubectl.delete("PriorityClass", each["metadata"]["name"])
    cluster.kubectl.request("DELETE", budgets_of(cluster))


def filled(
    cluster: ClusterUnderTest, names: Sequence[str], on: str, cpu: str = "2", priority: str = LOW, **more: object
) -> None:
    """These pods run on a node."""
    for name in names:
        cluster.create(pod(name, cpu=cpu, priorityClassName=priority, **more))  # type: ignore[arg-type]  # fields of a pod
        cluster.kubectl.bind(name, on)
        start(cluster.kubectl, name, NOON)


def urgent(name: str = "urgent", cpu: str = "2", priority: str = HIGH, **more: object) -> Object:
    return pod(name, cpu=cpu, priorityClassName=priority, **more)  # type: ignore[arg-type]  # fields of a pod


def version_of(cluster: ClusterUnderTest) -> str:
    return "policy/v1" if cluster.is_fake else "policy/v1beta1"


def budgets_of(cluster: ClusterUnderTest) -> str:
    return f"/apis/{version_of(cluster)}/namespaces/default/poddisruptionbudgets"


def budget(cluster: ClusterUnderTest, name: str, app: str, allowed: int) -> None:
    """A PodDisruptionBudget whose status allows so many disruptions."""
    version, path = version_of(cluster), budgets_of(cluster)
    spec = {"minAvailable": 1, "selector": {"matchLabels": {"app": app}}}
    body = {"apiVersion": version, "kind": "PodDisruptionBudget", "metadata": {"name": name}, "spec": spec}
    assert cluster.kubectl.request("POST", path, body).status == 201
    allow(cluster, name, allowed)


def allow(cluster: ClusterUnderTest, name: str, allowed: int) -> None:
    """Set how many disruptions a budget allows."""
    path = f"{budgets_of(cluster)}/{name}/status"
    status = {"disruptionsAllowed": allowed, "currentHealthy": 1, "desiredHealthy": 1, "expectedPods": 1}
    answer = cluster.kubectl.request("PATCH", path, {"status": {**status, "observedGeneration": 1}}, MERGE)
    assert answer.status == 200, answer


def deleted(cluster: ClusterUnderTest) -> set[str]:
    """The pods that are being deleted now."""
    return {name for name, each in cluster.pods().items() if each["metadata"].get("deletionTimestamp")}


def nominated(cluster: ClusterUnderTest, name: str = "urgent") -> str:
    found: str = cluster.kubectl.get("Pod", name)["status"].get("nominatedNodeName", "")
    return found


def wait_until_nominated(cluster: ClusterUnderTest, name: str = "urgent") -> str:
    return cluster.kubectl.wait_until(lambda: nominated(cluster, name))


class TestWhatIsEvicted:
    def test_pods_of_a_lower_priority_make_room_and_the_pod_gets_their_place(self, cluster: ClusterUnderTest) -> None:
        cluster.create(node("a", cpu="4"), node("b", cpu="4"))
        filled(cluster, ["a-1", "a-2"], on="a", priority=MIDDLE)
        filled(cluster, ["b-1", "b-2"], on="b")
        cluster.scheduler().wait_until_leading()
        cluster.create(urgent(cpu="4"))
        assert wait_until_nominated(cluster) == "b"
        cluster.kubectl.wait_until(lambda: deleted(cluster) == {"b-1", "b-2"})
        condition = condition_of(cluster.kubectl.get("Pod", "b-1"), "DisruptionTarget")
        assert condition is not None
        assert (condition["status"], condition["reason"]) == ("True", "PreemptionByScheduler")
        event = cluster.wait_for_event("b-1", "Preempted")
        assert (
            event["message"] == f"Preempted by pod {cluster.kubectl.get('Pod', 'urgent')['metadata']['uid']} on node b"
        )
        assert not cluster.node_of("urgent"), "it waits until they have ended"
        with Kubelets(cluster.server):
            assert cluster.wait_until_bound("urgent") == {"urgent": "b"}
        assert set(cluster.pods()) == {"a-1", "a-2", "urgent"}

    def test_as_few_and_as_unimportant_pods_as_possible_are_evicted(self, cluster: ClusterUnderTest) -> None:
        cluster.create(node("a", cpu="4"))
        filled(cluster, ["low"], on="a", cpu="2", priority=LOW)
        filled(cluster, ["middle"], on="a", cpu="2", priority=MIDDLE)
        cluster.scheduler().wait_until_leading()
        with Kubelets(cluster.server):
            cluster.create(urgent())
            assert cluster.wait_until_bound("urgent")
        assert set(cluster.pods()) == {"middle", "urgent"}

    def test_of_equal_pods_the_one_that_started_last_is_evicted(self, cluster: ClusterUnderTest) -> None:
        cluster.create(node("a", cpu="4"))
        filled(cluster, ["first", "second"], on="a", cpu="2")
        start(cluster.kubectl, "second", NOON - timedelta(hours=1))
        cluster.scheduler().wait_until_leading()
        with Kubelets(cluster.server):
            cluster.create(urgent())
            assert cluster.wait_until_bound("urgent")
        assert set(cluster.pods()) == {"second", "urgent"}

    def test_pods_that_a_budget_protects_are_evicted_only_if_nothing_else_helps(
        self, cluster: ClusterUnderTest
    ) -> None:
        cluster.create(node("a", cpu="2"), node("b", cpu="2"))
        filled(cluster, ["protected"], on="a", labels={"app": "db"})
        filled(cluster, ["important"], on="b", priority=MIDDLE)
        budget(cluster, "db", "db", allowed=0)
        cluster.scheduler().wait_until_leading()
        with Kubelets(cluster.server):
            cluster.create(urgent())
            assert cluster.wait_until_bound("urgent") == {"urgent": "b"}
            cluster.create(urgent("more"))
            assert cluster.wait_until_bound("more") == {"more": "a"}

    def test_a_pod_in_the_way_by_its_anti_affinity_is_evicted(self, cluster: ClusterUnderTest) -> None:
        term = {"labelSelector": {"matchLabels": {"app": "loud"}}, "topologyKey": HOSTNAME}
        apart = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
        cluster.create(node("a", cpu="8"))
        filled(cluster, ["loud", "quiet"], on="a", cpu="1")
        cluster.kubectl.patch("Pod", "loud", {"metadata": {"labels": {"app": "loud"}}})
        cluster.scheduler().wait_until_leading()
        with Kubelets(cluster.server):
            cluster.create(urgent(affinity=apart))
            assert cluster.wait_until_bound("urgent")
        assert set(cluster.pods()) == {"quiet", "urgent"}


class TestWhatIsNotEvicted:
    def test_nothing_is_evicted_where_the_pod_would_not_fit_anyway(self, cluster: ClusterUnderTest) -> None:
        cluster.create(node("a", cpu="4", taints=[taint("gpu")]), node("small", cpu="2"), node("equal", cpu="4"))
        filled(cluster, ["on-a"], on="a", tolerations=[{"operator": "Exists"}])
        filled(cluster, ["on-small"], on="small")
        filled(cluster, ["on-equal"], on="equal", cpu="4", priority=HIGH)
        cluster.scheduler().wait_until_leading()
        cluster.create(urgent(cpu="3"))
        cluster.wait_until_pending("urgent")
        assert not deleted(cluster)
        assert not nominated(cluster)

    def test_a_pod_with_the_policy_never_evicts_nothing(self, cluster: ClusterUnderTest) -> None:
        cluster.create(node("a", cpu="2"))
        filled(cluster, ["low"], on="a")
        cluster.scheduler().wait_until_leading()
        cluster.create(urgent(priority=POLITE))
        cluster.wait_until_pending("urgent")
        assert not deleted(cluster)

    def test_a_pod_that_is_ending_anyway_is_enough(self, cluster: ClusterUnderTest) -> None:
        cluster.create(node("a", cpu="2"), node("b", cpu="2"))
        filled(cluster, ["stays"], on="a")
        filled(cluster, ["ends"], on="b", priority=MIDDLE)
        cluster.kubectl.delete("Pod", "ends")
        cluster.scheduler().wait_until_leading()
        cluster.create(urgent())
        assert wait_until_nominated(cluster) == "b"
        with Kubelets(cluster.server):
            assert cluster.wait_until_bound("urgent") == {"urgent": "b"}
        assert set(cluster.pods()) == {"stays", "urgent"}


class TestTheNominatedNode:
    def test_a_later_pod_of_the_same_priority_does_not_take_the_place(self, cluster: ClusterUnderTest) -> None:
        cluster.create(node("a", cpu="2"))
        filled(cluster, ["low"], on="a")
        cluster.scheduler().wait_until_leading()
        cluster.create(urgent())
        wait_until_nominated(cluster)
        cluster.create(urgent("later", cpu="1"))
        cluster.wait_until_pending("later")
        with Kubelets(cluster.server):
            assert cluster.wait_until_bound("urgent") == {"urgent": "a"}
        assert not cluster.node_of("later")

    def test_a_pod_whose_node_is_tainted_meanwhile_looks_for_another(self, cluster: ClusterUnderTest) -> None:
        cluster.create(node("a", cpu="2"), node("b", cpu="2"))
        filled(cluster, ["low"], on="a")
        filled(cluster, ["middle"], on="b", priority=MIDDLE)
        cluster.scheduler().wait_until_leading()
        cluster.create(urgent())
        assert wait_until_nominated(cluster) == "a"
        cluster.kubectl.patch("Node", "a", {"spec": {"taints": [taint("out")]}})
        cluster.kubectl.wait_until(lambda: nominated(cluster) == "b")
        with Kubelets(cluster.server):
            assert cluster.wait_until_bound("urgent") == {"urgent": "b"}

    def test_a_pod_that_is_deleted_keeps_no_place(self, cluster: ClusterUnderTest) -> None:
        cluster.create(node("a", cpu="2"))
        filled(cluster, ["low"], on="a")
        cluster.scheduler().wait_until_leading()
        cluster.create(urgent())
        wait_until_nominated(cluster)
        cluster.create(urgent("next", priority=MIDDLE))
        cluster.wait_until_pending("next")
        cluster.kubectl.delete("Pod", "urgent", grace_seconds=0)
        with Kubelets(cluster.server):
            assert cluster.wait_until_bound("next") == {"next": "a"}


class TestAfterKill9:
    def test_between_nomination_and_binding_the_same_place_is_taken_and_nobody_else_is_evicted(
        self, cluster: ClusterUnderTest
    ) -> None:
        cluster.create(*nodes(3, cpu="2"))
        for number in range(3):
            filled(cluster, [f"low-{number}"], on=f"node-{number}")
        scheduler = cluster.scheduler().wait_until_leading()
        cluster.create(urgent())
        chosen = wait_until_nominated(cluster)
        cluster.kubectl.wait_until(lambda: len(deleted(cluster)) == 1)
        scheduler.kill()
        cluster.scheduler().wait_until_leading()
        cluster.wait_until_it_knows_everything(cluster.running[-1])
        with Kubelets(cluster.server) as kubelets:
            assert cluster.wait_until_bound("urgent") == {"urgent": chosen}
            assert kubelets.ended == [f"low-{chosen.removeprefix('node-')}"]

    def test_a_nomination_before_any_deletion_is_decided_again(self, cluster: ClusterUnderTest) -> None:
        """As if the scheduler was killed after it had written the nomination."""
        cluster.create(node("a", cpu="2"), node("b", cpu="2"))
        filled(cluster, ["middle"], on="a", priority=MIDDLE)
        filled(cluster, ["low"], on="b")
        cluster.create(urgent())
        cluster.kubectl.patch("Pod", "urgent", {"status": {"nominatedNodeName": "a"}}, subresource="status")
        cluster.scheduler().wait_until_leading()
        with Kubelets(cluster.server):
            assert cluster.wait_until_bound("urgent") == {"urgent": "b"}
        assert set(cluster.pods()) == {"middle", "urgent"}


def test_a_cluster_full_of_low_priority_is_filled_by_high_priority_and_budgets_are_respected(
    cluster: ClusterUnderTest,
) -> None:
    size = 20
    cluster.create_many(nodes(size, cpu="4"))
    for number in range(size):
        names = [f"low-{number}-{index}" for index in range(2)]
        filled(cluster, names, on=f"node-{number}", labels={"app": "db" if number < size // 2 else "web"})
    budget(cluster, "db", "db", allowed=2)
    scheduler = cluster.scheduler().wait_until_leading()
    gone: set[str] = set()

    def count_disruptions(name: str) -> None:
        """What the disruption controller does before the pod has ended."""
        gone.add(name)
        allow(cluster, "db", max(0, 2 - sum(int(each.split("-")[1]) < size // 2 for each in gone)))

    with Kubelets(cluster.server, before=count_disruptions) as kubelets:
        cluster.create_many([urgent(f"urgent-{number}") for number in range(size + 2)])
        bound = cluster.wait_until_bound(*(f"urgent-{number}" for number in range(size + 2)))
    assert len(bound) == size + 2
    assert len(kubelets.ended) == size + 2
    of_budget = [name for name in kubelets.ended if int(name.split("-")[1]) < size // 2]
    assert len(of_budget) == 2, "the rest of them are protected"
    assert scheduler.metrics()["scheduler_preemption_attempts_total"] == size + 2
