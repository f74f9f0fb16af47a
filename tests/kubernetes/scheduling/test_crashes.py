"""The scheduler is killed in the middle of a batch, and started again.

Rule: a failure prints the seed; STEAD_CRASH_SEED=... replays the same moments of the kills.
"""

from __future__ import annotations

import os
from random import Random

import pytest

from tests.kubernetes.objects import HOSTNAME, Object, node, nodes, pod, pods
from tests.kubernetes.scheduling.checker import broken_rules
from tests.kubernetes.scheduling.cluster import ClusterUnderTest

KILLS = 3
SLOW_SECONDS = 0.02
"""How long the fake server takes for a request, so that a batch lasts. The real one is slow enough."""


@pytest.fixture
def seed() -> int:
    return int(os.environ.get("STEAD_CRASH_SEED") or Random().randrange(1_000_000))


def apart(app: str) -> Object:
    term = {"labelSelector": {"matchLabels": {"app": app}}, "topologyKey": HOSTNAME}
    return {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}


def full_cluster(size: int) -> tuple[list[Object], list[Object]]:
    """Three pools of nodes, and pods that fill each of them: a pod that is counted twice or not at all would show.

    A node of the first pool has room for 8 pods. A node of the second has one pod, because its pods must be apart; a
    node of the third has one pod, because its pods have the same host port.
    """
    work = pods(8 * size, "plain", cpu="1", nodeSelector={"pool": "plain"})
    work += pods(size, "apart", labels={"app": "apart"}, affinity=apart("apart"), nodeSelector={"pool": "apart"})
    for each in pods(size, "port", nodeSelector={"pool": "port"}):
        each["spec"]["containers"][0]["ports"] = [{"containerPort": 80, "hostPort": 8080}]
        work.append(each)
    pools = ("plain", "apart", "port")
    return [one for pool in pools for one in nodes(size, prefix=pool, cpu="8", labels={"pool": pool})], work


def test_after_kill_9_no_pod_is_bound_twice_or_forgotten_and_no_rule_is_broken(
    cluster: ClusterUnderTest, seed: int
) -> None:
    random, (room, work) = Random(seed), full_cluster(40 if cluster.is_fake else 100)
    random.shuffle(work)
    cluster.create_many(room)
    cluster.create_many(work)
    if cluster.is_fake:
        cluster.fake.slow(SLOW_SECONDS)
    moments = sorted(random.sample(range(1, len(work) * 3 // 4), KILLS))
    in_the_middle = 0
    with cluster.recorded() as recorded:
        scheduler = cluster.prepared_scheduler()
        for moment in moments:
            scheduler.start()
            recorded.wait_until_assigned(moment)
            scheduler.kill()
            in_the_middle += recorded.assigned < len(work)
        scheduler.start()
        recorded.wait_until_assigned(len(work))
        assert not recorded.assigned_twice(), f"STEAD_CRASH_SEED={seed}"
    assert in_the_middle, f"no kill came in the middle of a batch; STEAD_CRASH_SEED={seed}"
    assert broken_rules(cluster.kubectl.list("Node"), cluster.kubectl.list("Pod")) == [], f"STEAD_CRASH_SEED={seed}"
    assert scheduler.stop() == 0


def test_a_scheduler_that_was_killed_leaves_nothing_that_its_successor_needs(cluster: ClusterUnderTest) -> None:
    """A pending pod keeps its reason, and the successor binds it when it can."""
    cluster.create(node("small", cpu="1"), pod("large", cpu="4"))
    scheduler = cluster.scheduler()
    before = cluster.wait_until_pending("large")
    scheduler.kill()
    cluster.create(node("large-enough", cpu="4"))
    scheduler.start()
    assert cluster.wait_until_bound("large") == {"large": "large-enough"}
    assert before["reason"] == "Unschedulable"
