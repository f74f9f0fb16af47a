"""Every kind of rule, from the API server to a binding or to a reason that the user can read."""

from __future__ import annotations

import pytest

from tests.kubernetes.objects import MERGE, ApiError, Object, condition_of, node, node_of, pod
from tests.kubernetes.scheduling.cluster import ClusterUnderTest
from tests.kubernetes.scheduling.rule_cases import CASES, Case, Expected, Pending, Untouched


@pytest.mark.parametrize("name", CASES)
def test_stead_honours(shared_cluster: ClusterUnderTest, name: str) -> None:
    case, cluster = CASES[name], shared_cluster
    if case.only_fake and not cluster.is_fake:
        pytest.skip(f"fake only: {case.only_fake}")
    create_if_new(cluster, case.others)
    running = [on(node_name, each) for node_name, pods in case.running.items() for each in pods]
    parts = [[*case.nodes, *running], case.pods]
    for part in reversed(parts) if case.nodes_last else parts:
        cluster.create(*part)
        cluster.wait_until_it_knows_everything()
    for each, expected in case.expected.items():
        check(cluster, each, expected)


def check(cluster: ClusterUnderTest, name: str, expected: Expected) -> None:
    match expected:
        case Pending(text):
            condition = cluster.wait_until_pending(name, saying=text)
            assert cluster.wait_for_event(name, "FailedScheduling")["message"] == condition["message"]
            assert cluster.node_of(name) is None
        case Untouched():
            wait_for_the_others(cluster)
            found = cluster.kubectl.get("Pod", name)
            assert (node_of(found), condition_of(found, "PodScheduled")) == (None, None)
        case str():
            assert cluster.wait_until_bound(name) == {name: expected}
        case _:
            assert cluster.wait_until_bound(name)[name] in expected


def wait_for_the_others(cluster: ClusterUnderTest) -> None:
    """A pod that is created later is bound: so the scheduler has dealt with all before it."""
    cluster.create(pod("last"))
    cluster.wait_until_bound("last")


def on(node_name: str, found: Object) -> Object:
    return {**found, "spec": {**found["spec"], "nodeName": node_name}}


def create_if_new(cluster: ClusterUnderTest, objects: list[Object]) -> None:
    """Namespaces and priority classes stay between tests."""
    for each in objects:
        try:
            cluster.create(each)
        except ApiError as error:
            if error.status != 409:
                raise


def test_a_terminating_pod_holds_its_room_until_it_is_gone(shared_cluster: ClusterUnderTest) -> None:
    cluster = shared_cluster
    cluster.create(node("a", cpu="1"), on("a", pod("ending", cpu="1")))
    cluster.wait_until_it_knows_everything()
    cluster.kubectl.delete("Pod", "ending", grace_seconds=300)
    assert cluster.kubectl.get("Pod", "ending")["metadata"]["deletionTimestamp"]
    cluster.create(pod("next", cpu="1"))
    cluster.wait_until_pending("next", saying="Insufficient cpu")
    cluster.kubectl.delete("Pod", "ending", grace_seconds=0)
    assert cluster.wait_until_bound("next") == {"next": "a"}


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_a_finished_pod_holds_nothing(shared_cluster: ClusterUnderTest, phase: str) -> None:
    cluster = shared_cluster
    cluster.create(node("a", cpu="1"), on("a", pod("finishing", cpu="1")), pod("next", cpu="1"))
    cluster.wait_until_pending("next", saying="Insufficient cpu")
    cluster.kubectl.set_phase("finishing", phase)
    assert cluster.wait_until_bound("next") == {"next": "a"}


def test_a_pending_pod_that_is_being_deleted_is_not_bound(shared_cluster: ClusterUnderTest) -> None:
    """A finalizer keeps it from being gone at once."""
    cluster = shared_cluster
    leaving = pod("leaving")
    leaving["metadata"]["finalizers"] = ["example.com/wait"]
    cluster.create(leaving)
    cluster.wait_until_pending("leaving")
    cluster.kubectl.delete("Pod", "leaving", grace_seconds=0)
    cluster.create(pod("marker", scheduler="another"))
    cluster.wait_until_it_knows_everything()
    cluster.create(node("a"), pod("next"))
    assert cluster.wait_until_bound("next") == {"next": "a"}
    assert cluster.node_of("leaving") is None
    cluster.kubectl.patch("Pod", "leaving", {"metadata": {"finalizers": None}}, content_type=MERGE)


@pytest.mark.parametrize("long_lived_cluster", ["fake"], indirect=True)
def test_a_gated_pod_is_scheduled_when_its_gates_are_removed(shared_cluster: ClusterUnderTest) -> None:
    """Fake only: Kubernetes 1.20 has no gates."""
    cluster = shared_cluster
    cluster.create(node("a"), pod("gated", schedulingGates=[{"name": "example.com/wait"}]), pod("marker"))
    cluster.wait_until_bound("marker")
    assert cluster.node_of("gated") is None
    assert cluster.running[0].metrics()['scheduler_pending_pods{queue="gated"}'] == 1
    cluster.kubectl.patch("Pod", "gated", {"spec": {"schedulingGates": None}}, content_type=MERGE)
    assert cluster.wait_until_bound("gated") == {"gated": "a"}
    assert cluster.running[0].metrics()['scheduler_pending_pods{queue="gated"}'] == 0


def test_a_pod_that_was_reported_is_bound_as_soon_as_it_fits(shared_cluster: ClusterUnderTest) -> None:
    """It does not wait for its next report, although reports about one pod are at least 30 s apart."""
    cluster = shared_cluster
    cluster.create(pod("p", cpu="4"))
    assert cluster.wait_until_pending("p")["message"].startswith("no nodes available")
    cluster.create(node("small", cpu="1"))
    cluster.wait_until_it_knows_everything()
    cluster.create(node("large", cpu="4"))
    assert cluster.wait_until_bound("p") == {"p": "large"}


def test_several_scheduler_names_are_served_by_one_scheduler(cluster: ClusterUnderTest) -> None:
    cluster.create(node("a", cpu="1"))
    scheduler = cluster.scheduler("--scheduler-name", "stead", "--scheduler-name", "batch", "--policy", "pack")
    cluster.create(pod("one", scheduler="stead"), pod("none", scheduler="third"), pod("two", scheduler="batch"))
    assert cluster.wait_until_bound("one", "two") == {"one": "a", "two": "a"}
    assert cluster.node_of("none") is None
    cluster.create(pod("large", scheduler="batch", cpu="2"))
    cluster.wait_until_pending("large")
    assert scheduler.wait_for_line("scheduling")["scheduler"] == "stead,batch"


def test_every_case_expects_something() -> None:
    assert all(isinstance(case, Case) and case.expected for case in CASES.values())
