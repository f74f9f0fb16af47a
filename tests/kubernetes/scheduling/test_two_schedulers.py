"""Two schedulers and one Lease: only its holder writes, and the other takes over.

Rule: who wrote what is read from the server's log of requests, where the two schedulers have different users. Which of
them said what about itself is not evidence.
"""

from __future__ import annotations

from datetime import datetime
from time import monotonic

import pytest

from tests.kubernetes.objects import Object, node, nodes, pod, pods
from tests.kubernetes.scheduling.checker import broken_rules
from tests.kubernetes.scheduling.cluster import ClusterUnderTest
from tests.kubernetes.scheduling.running import RunningScheduler, wait_until

LEASE_SECONDS = 5.0
ELECTION = ("--leader-elect", "--lease-name", "stead", "--lease-seconds", str(LEASE_SECONDS), "4", "0.5")
"""The leader gives up after 4 s without a renewal: a busy machine does not stop it for that long."""

SLOW_SECONDS = 0.05


SHORT_ELECTION = (*ELECTION[:4], "3", "2.5", "0.3")
"""For tests in which it does not matter who leads at the end."""


def start_two(
    cluster: ClusterUnderTest, election: tuple[str, ...] = ELECTION
) -> tuple[RunningScheduler, RunningScheduler]:
    """A leader, and a standby that knows the cluster."""
    first = cluster.scheduler(*election, user="scheduler-1").wait_until_leading()
    second = cluster.scheduler(*election, user="scheduler-2").wait_until_ready()
    return first, second


def time_of(line: dict[str, str]) -> datetime:
    return datetime.fromisoformat(line["time"])


def with_a_disk(name: str) -> Object:
    return pod(name, volumes=[{"name": "disk", "awsElasticBlockStore": {"volumeID": "mine"}}])


def test_a_paused_leader_writes_nothing_after_another_took_over(cluster: ClusterUnderTest) -> None:
    count = 600 if cluster.is_fake else 1500
    cluster.create_many(pods(count, cpu="400m"))
    first, second = start_two(cluster)
    assert second.ready() == (200, "ok: waiting to take over\n")
    if cluster.is_fake:
        cluster.fake.slow(SLOW_SECONDS)
    with cluster.recorded() as recorded:
        cluster.create_many(nodes(count // 10, cpu="4010m"))
        recorded.wait_until_assigned(count // 10)
        first.pause()
        recorded.wait_until_assigned(count)
        if cluster.is_fake:
            cluster.fake.slow(0)

        bound_by_first = len(cluster.requests.bindings(first.user))
        written_by_first = len(cluster.requests.writes(first.user))
        assert cluster.requests.bindings(second.user), "the second one took over in the middle of the batch"
        first.resume()
        first.wait_for_line("no longer the leader")
        cluster.create_many(pods(20, "later", cpu="1m"))
        recorded.wait_until_assigned(count + 20)
        second.wait_until_quiet()
        first.wait_until_ready()
        assert len(cluster.requests.bindings(first.user)) == bound_by_first, "after it continued, it bound nothing"
        assert len(cluster.requests.writes(first.user)) == written_by_first, "nor did it write anything else"
        assert not recorded.assigned_twice()
        assert broken_rules(cluster.kubectl.list("Node"), cluster.kubectl.list("Pod")) == []

        assert second.stop() == 0
        again = first.wait_for_line("became the leader", count=2)
        ended = second.wait_for_line("stopped")
        waited = (time_of(again) - time_of(ended)).total_seconds()
        assert waited < LEASE_SECONDS, "a leader that stops releases the Lease, so nobody waits until it expires"
        cluster.create_many(pods(20, "last", cpu="1m"))
        recorded.wait_until_assigned(count + 40)
    wait_until(lambda: len(cluster.requests.bindings(first.user)) == bound_by_first + 20, "waiting for its requests")


def test_bindings_that_a_paused_leader_had_decided_are_not_sent_when_it_continues(
    fake_cluster: ClusterUnderTest,
) -> None:
    """Fake only: its answers are held back, so that the leader certainly has bindings to send when it continues."""
    fake_cluster.create_many(nodes(20))
    first, second = start_two(fake_cluster, SHORT_ELECTION)
    fake_cluster.fake.hang_next("POST", "/binding$", times=64)
    fake_cluster.create_many(pods(200))
    wait_until(lambda: fake_cluster.fake.hanging == 64, "waiting for 64 bindings in flight")
    first.pause()
    fake_cluster.fake.release()
    fake_cluster.wait_until_bound()
    assert len(fake_cluster.requests.bindings(second.user)) == 200 - 64
    first.resume()
    first.wait_for_line("no longer the leader")
    first.wait_until_ready()
    assert len(fake_cluster.requests.bindings(first.user)) == 64
    fenced = wait_until(lambda: first.said("binding fenced"), "waiting for the bindings to be dropped")
    assert all("no longer the leader" in line["why"] for line in fenced)


def test_a_scheduler_that_takes_over_reports_every_pod_that_cannot_be_scheduled(cluster: ClusterUnderTest) -> None:
    """Also those that are not supported as they are written, and those that were created before it led."""
    cluster.create(node("small", cpu="1"))
    cluster.create(with_a_disk("disk"), pod("large", cpu="2"))
    first, second = start_two(cluster)
    assert "awsElasticBlockStore" in cluster.wait_until_pending("disk")["message"]
    assert "Insufficient cpu" in cluster.wait_until_pending("large")["message"]
    cluster.create(with_a_disk("disk-2"), pod("large-2", cpu="2"))
    cluster.wait_until_pending("disk-2")
    cluster.wait_until_pending("large-2")
    assert first.stop() == 0
    cluster.create(with_a_disk("disk-3"), pod("large-3", cpu="2"), pod("fits"))
    assert cluster.wait_until_bound("fits") == {"fits": "small"}
    assert "awsElasticBlockStore" in cluster.wait_until_pending("disk-3")["message"]
    assert "Insufficient cpu" in cluster.wait_until_pending("large-3")["message"]
    assert cluster.wait_for_event("disk-3", "FailedScheduling")["reportingInstance"] == holder_of(cluster)
    assert second.stop() == 0
    assert holder_of(cluster) == "", "it released the Lease"


@pytest.mark.kube
def test_a_leader_that_is_paused_until_its_lease_has_expired_begins_again(real_cluster: ClusterUnderTest) -> None:
    """Nobody else wants the Lease. What it had decided is forgotten, and then decided again. Real only, because the
    wait for the end of the Lease is long; with the fake server, another scheduler takes over in the test above."""
    cluster, count = real_cluster, 400
    cluster.create_many(pods(count, cpu="400m"))
    scheduler = cluster.scheduler(*SHORT_ELECTION).wait_until_leading()
    with cluster.recorded() as recorded:
        cluster.create_many(nodes(count // 10, cpu="4"))
        recorded.wait_until_assigned(1)
        scheduler.pause()
        expired_at = monotonic() + float(SHORT_ELECTION[-3])
        wait_until(lambda: monotonic() > expired_at, "waiting until the Lease has expired")
        scheduler.resume()
        recorded.wait_until_assigned(count)
        assert not recorded.assigned_twice()
    scheduler.wait_for_line("became the leader", count=2)
    assert broken_rules(cluster.kubectl.list("Node"), cluster.kubectl.list("Pod")) == []


def test_a_leader_that_cannot_reach_the_server_gives_up_and_leads_again_later(cluster: ClusterUnderTest) -> None:
    cluster.create(node("a"), pod("before"))
    scheduler = cluster.scheduler(*SHORT_ELECTION)
    cluster.wait_until_bound("before")
    cluster.server.kill_apiserver()
    scheduler.wait_for_line("no longer the leader")
    cluster.server.start_apiserver()
    cluster.create(pod("after"))
    assert cluster.wait_until_bound("after") == {"after": "a"}
    assert len(scheduler.said("cannot update the lease")) == 1


def holder_of(cluster: ClusterUnderTest) -> str:
    lease = cluster.kubectl.get("Lease", "stead")
    return str(lease["spec"].get("holderIdentity") or "")
