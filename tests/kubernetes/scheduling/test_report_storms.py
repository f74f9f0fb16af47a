"""Many pending pods and a restless cluster cost a bounded number of writes.

Rule: the bound is the one that `reporting.py` promises, and it is counted at the server. Let T be the seconds that a
test lasts. All reports together: at most 100 requests at once and 50 more in each second. About one pod: at most one
report (a condition and an event) in 30 s.
"""

from __future__ import annotations

from collections import Counter
from time import monotonic

from tests.kubernetes.objects import HOSTNAME, node, pod, pods, taint
from tests.kubernetes.scheduling.cluster import ClusterUnderTest
from tests.kubernetes.scheduling.running import wait_until

PENDING = 2000
FLAPS = 50
BURST, RATE_PER_S = 100, 50
REPEAT_AFTER_S = 30.0

ATTEMPTS = 'scheduler_schedule_attempts_total{profile="stead",result="unschedulable"}'


def test_a_node_that_flaps_does_not_cause_a_storm_of_writes(fake_cluster: ClusterUnderTest) -> None:
    """Fake only, because its log has every request. The taint changes the reason of all pods, 50 times."""
    cluster = fake_cluster
    cluster.create_many([node("flapping", cpu="1"), node("steady", cpu="1")])
    cluster.create_many(pods(PENDING, cpu="2"))
    scheduler = cluster.scheduler().wait_until_leading()
    began = monotonic()
    wait_until(lambda: scheduler.metrics()[ATTEMPTS] >= PENDING, "waiting until all pods were tried")
    for number in range(FLAPS):
        taints = [taint("flap", str(number))] if number % 2 == 0 else []
        cluster.kubectl.patch("Node", "flapping", {"spec": {"taints": [{"$patch": "replace"}, *taints]}})
    cluster.create(node("last", cpu="1"), pod("last", nodeSelector={HOSTNAME: "last"}))
    assert cluster.wait_until_bound("last") == {"last": "last"}, "all the changes before it were seen"
    scheduler.wait_until_quiet()

    reports = [one for one in cluster.requests.writes(scheduler.user) if not one.path.endswith("/binding")]
    seconds = monotonic() - began
    assert len(reports) <= BURST + RATE_PER_S * seconds + 1, f"{len(reports)} writes in {seconds:.1f} s"
    conditions = Counter(one.path for one in reports if one.path.endswith("/status"))
    assert max(conditions.values()) <= 1 + seconds // REPEAT_AFTER_S
    assert len(cluster.requests.bindings(scheduler.user)) == 1, "only one pod fits"


def test_a_reason_that_does_not_change_is_written_once(fake_cluster: ClusterUnderTest) -> None:
    """Fake only, because its log has every request. The cluster changes, but not for these pods."""
    cluster = fake_cluster
    cluster.create(node("small", cpu="1"))
    scheduler = cluster.scheduler().wait_until_leading()
    cluster.create(*pods(10, cpu="2"))
    for number in range(10):
        cluster.wait_for_event(f"pod-{number}", "FailedScheduling")
    for number in range(20):
        cluster.kubectl.patch("Node", "small", {"metadata": {"labels": {"beat": str(number)}}})
        cluster.create(pod(f"other-{number}", cpu="1m"))
    cluster.wait_until_bound(*(f"other-{number}" for number in range(20)))
    scheduler.wait_until_quiet()
    conditions = cluster.requests.of(scheduler.user, "PATCH", "/pods/pod-[0-9]+/status$")
    assert len(conditions) == 10
    failed = [one for number in range(10) for one in cluster.events_of(f"pod-{number}", "FailedScheduling")]
    assert [one["count"] for one in failed] == [1] * 10


def test_pods_that_wait_do_not_delay_the_pods_that_fit(fake_cluster: ClusterUnderTest) -> None:
    """A thousand reports wait to be written; a new pod is bound meanwhile. Fake only, to keep the real part short."""
    cluster = fake_cluster
    cluster.create(node("small", cpu="1"))
    cluster.create_many(pods(PENDING, cpu="2"))
    scheduler = cluster.scheduler().wait_until_leading()
    cluster.create(pod("fits"))
    assert cluster.wait_until_bound("fits") == {"fits": "small"}
    assert scheduler.metrics()["stead_reports_total"] < PENDING
