"""The API server misbehaves: every pod is bound once in the end, and none is forgotten.

Rule: each test leaves the same scheduler running, so that it goes through all of these failures one after the other.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.kubernetes.objects import node, nodes, pod, pods
from tests.kubernetes.scheduling.checker import broken_rules
from tests.kubernetes.scheduling.cluster import ClusterUnderTest
from tests.kubernetes.scheduling.running import wait_until

NODES, COUNT = 30, 300
BINDING = "/binding$"
RELISTS = 'stead_watch_relists_total{path="/api/v1/pods"}'
Failure = Callable[[ClusterUnderTest], None]


def restart(cluster: ClusterUnderTest) -> None:
    cluster.server.stop_apiserver()
    cluster.server.start_apiserver()


def kill_and_start(cluster: ClusterUnderTest) -> None:
    cluster.server.kill_apiserver()
    cluster.server.start_apiserver()


def compact(cluster: ClusterUnderTest) -> None:
    cluster.server.compact()
    if cluster.is_fake:  # its open watches go on after a compaction; the next ones begin too early
        cluster.fake.cut_watches()


def restart_etcd(cluster: ClusterUnderTest) -> None:
    cluster.real.restart_etcd()


def cut_watches(cluster: ClusterUnderTest) -> None:
    assert cluster.fake.cut_watches() > 0


def overload(cluster: ClusterUnderTest) -> None:
    cluster.fake.fail_next("POST", BINDING, 429, times=40, retry_after=0)


def fail(cluster: ClusterUnderTest) -> None:
    cluster.fake.fail_next("POST", BINDING, 500, times=40)


def refuse(cluster: ClusterUnderTest) -> None:
    """An answer that means no retry at once: the pods are tried again later."""
    cluster.fake.fail_next("POST", BINDING, 422, times=5)


def fail_until_it_gives_up(cluster: ClusterUnderTest) -> None:
    """More failures than there are tries for one binding, and for the pods that come last: their effect is unknown."""
    for number in range(COUNT - 3, COUNT):
        cluster.fake.fail_next("POST", f"/pods/pod-{number}/binding$", 500, times=7)


def claim_a_conflict(cluster: ClusterUnderTest) -> None:
    """The server says that the pods are assigned, and they are not: so the scheduler must look, and try again."""
    cluster.fake.fail_next("POST", BINDING, 409, times=5)


def lose_answers(cluster: ClusterUnderTest) -> None:
    cluster.fake.lose_next("POST", BINDING, times=100)


def lose_connections_to_the_watches(cluster: ClusterUnderTest) -> None:
    cluster.fake.fail_next("GET", "/api/v1/pods$", 503, times=3)
    cluster.fake.cut_watches()


ON_BOTH: list[Failure] = [restart, kill_and_start, compact]
ON_THE_FAKE: list[Failure] = [
    cut_watches,
    overload,
    fail,
    fail_until_it_gives_up,
    refuse,
    claim_a_conflict,
    lose_answers,
    lose_connections_to_the_watches,
]


def name_of(failure: Failure) -> str:
    return failure.__name__


def survive(cluster: ClusterUnderTest, failure: Failure) -> None:
    """Let the failure happen in the middle of a batch, and compare the end with what must be."""
    scheduler = cluster.running[0]
    if cluster.is_fake:
        cluster.fake.slow(0.01)
    with cluster.recorded() as recorded:
        cluster.create_many(pods(COUNT, cpu="800m"))
        cluster.create_many(nodes(NODES, cpu="8"))
        recorded.wait_until_assigned(COUNT // 10)
        failure(cluster)
        recorded.wait_until_assigned(COUNT)
        if cluster.is_fake:
            cluster.fake.slow(0)
        scheduler.wait_until_quiet()
        assert not recorded.assigned_twice()
    assert broken_rules(cluster.kubectl.list("Node"), cluster.kubectl.list("Pod")) == []
    assert scheduler.ready() == (200, "ok\n")
    cluster.create(node("added"), pod("later", cpu="8"))
    assert cluster.wait_until_bound("later") == {"later": "added"}, "it still sees new nodes and pods"


@pytest.mark.parametrize("failure", ON_BOTH, ids=name_of)
def test_a_batch_survives(shared_cluster: ClusterUnderTest, failure: Failure) -> None:
    survive(shared_cluster, failure)


@pytest.mark.parametrize("long_lived_cluster", ["fake"], indirect=True)
@pytest.mark.parametrize("failure", ON_THE_FAKE, ids=name_of)
def test_on_the_fake_server_a_batch_survives(shared_cluster: ClusterUnderTest, failure: Failure) -> None:
    """Only the fake server can fail on request."""
    survive(shared_cluster, failure)


@pytest.mark.kube
@pytest.mark.parametrize("long_lived_cluster", ["real"], indirect=True)
def test_a_batch_survives_a_restart_of_etcd(shared_cluster: ClusterUnderTest) -> None:
    """The fake server has no etcd."""
    survive(shared_cluster, restart_etcd)


def test_what_happened_while_the_server_was_away_is_seen_afterwards(shared_cluster: ClusterUnderTest) -> None:
    """A pod and a node that are gone, and others that are new, all of it before the watches began again."""
    cluster = shared_cluster
    cluster.create(node("old", cpu="1"), pod("old-pod", cpu="1"))
    cluster.wait_until_bound("old-pod")
    cluster.create(pod("wanting", cpu="2"))
    cluster.wait_until_pending("wanting")
    scheduler = cluster.running[0]
    before = scheduler.metrics()[RELISTS]
    scheduler.pause()
    kill_and_start(cluster)  # from here on, its watches have ended
    cluster.kubectl.delete("Pod", "old-pod", grace_seconds=0)
    cluster.kubectl.delete("Node", "old")
    cluster.create(node("new", cpu="2"))
    cluster.server.compact()
    scheduler.resume()
    assert cluster.wait_until_bound("wanting") == {"wanting": "new"}
    wait_until(lambda: scheduler.metrics()[RELISTS] > before, "waiting for a new list of pods")
    scheduler.wait_until_it_knows(nodes=1, pods=1)


@pytest.mark.parametrize("long_lived_cluster", ["fake"], indirect=True)
def test_bindings_without_an_answer_do_not_delay_the_others(shared_cluster: ClusterUnderTest) -> None:
    """Fake only: it does not answer ten bindings, neither then nor later. Their connections break in the end."""
    cluster = shared_cluster
    cluster.create_many(nodes(NODES))
    cluster.fake.hang_next("POST", BINDING, times=10)
    cluster.create_many(pods(100))
    with cluster.recorded() as recorded:
        recorded.wait_until_assigned(90)
        assert cluster.fake.hanging == 10
        restart(cluster)
        recorded.wait_until_assigned(100)
        assert not recorded.assigned_twice()


@pytest.mark.parametrize("long_lived_cluster", ["fake"], indirect=True)
def test_a_report_that_the_server_did_not_take_is_written_again(shared_cluster: ClusterUnderTest) -> None:
    """Only the fake server can fail on request."""
    cluster = shared_cluster
    cluster.fake.fail_next("PATCH", "/status$", 500)
    cluster.create(node("small", cpu="1"), pod("large", cpu="2"))
    assert "Insufficient cpu" in cluster.wait_until_pending("large")["message"]
    cluster.wait_for_event("large", "FailedScheduling")
