"""Work and groups end with their owner, as in Ray: with their job, with the detached actor that created them directly
or indirectly, or never."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import ray
from ray.util.placement_group import PlacementGroup

import stead
from stead.ray.local.local_cluster import LocalCluster
from stead.ray.submit.connection import connection
from tests.on_ray.conftest import ClusterOf
from tests.on_ray.waiting import wait_for
from tests.on_ray.workload import SOON_S, attached, labelled, run_driver

pytestmark = pytest.mark.long

LAUNCHER = """
    import json, sys, ray, stead
    stead.init(sys.argv[1], namespace="tests", log_to_driver=False, logging_level="error")

    def group(**options):
        made = stead.placement_group([{"CPU": 0.01}], **options)
        return made.id.hex()

    LATER, NEVER = [{"later": "yes"}], [{"never": "yes"}]

    class Owner:
        def groups(self):
            nested = ray.remote(num_cpus=0)(group).remote(bundle_label_selector=LATER)
            return [group(), group(bundle_label_selector=LATER), ray.get(nested), group(bundle_label_selector=NEVER)]

        def submit(self):
            self.task = ray.remote(num_cpus=0)(lambda: "ran").options(
                labels={"app": "x"}, label_selector=LATER[0]).remote()
            self.timed = ray.remote(num_cpus=0)(lambda: "never").options(
                label_selector=NEVER[0], deadline_s=8.0).remote()
            self.actor = ray.remote(num_cpus=0)(Owner).options(labels={"app": "y"}, label_selector=LATER[0]).remote()
            self.answer = self.actor.ping.remote()

        def results(self):
            try:
                stead.get(self.timed)
            except stead.Unplaced:
                return ray.get([self.task, self.answer])

        def ping(self):
            return "here"

    Actor = ray.remote(num_cpus=0)(Owner)
    detached = Actor.options(name="owner", lifetime="detached").remote()
    ray.get(detached.submit.remote())
    kept = ray.get(detached.groups.remote())
    gone = ray.get(Actor.remote().groups.remote()) + [group(), group(bundle_label_selector=LATER)]
    forever = group(lifetime="detached", bundle_label_selector=LATER)
    print(json.dumps([kept, gone, forever]))
"""


@pytest.fixture(scope="module")
def cluster(cluster_of: ClusterOf) -> Iterator[LocalCluster]:
    with attached(cluster_of([{"num_cpus": 4}])) as started:
        yield started


def known(*groups: str) -> set[str]:
    return set(groups) & set(connection().ask("registered_ids"))


def group_of(id: str) -> Any:
    return PlacementGroup(ray.PlacementGroupID.from_hex(id))


def test_work_of_a_detached_actor_outlives_the_job_that_started_the_actor(cluster: LocalCluster) -> None:
    kept, gone, forever = run_driver(LAUNCHER, {}, cluster.address)
    everything = [*kept, *gone, forever]
    wait_for(lambda: not known(*gone), SOON_S, "the end of what belonged to the job")
    assert known(*everything) == {*kept, forever}
    owner = ray.get_actor("owner")
    with labelled(cluster.nodes[0].node_id, {"later": "yes"}):
        assert ray.get(owner.results.remote(), timeout=SOON_S) == ["ran", "here"]
        *placed, _ = kept
        for id in (*placed, forever):
            assert group_of(id).wait(SOON_S)
        ray.kill(owner)
        wait_for(lambda: not known(*kept), SOON_S, "the end of what belonged to the actor")
        assert known(*everything) == {forever}
        tables = [ray.util.placement_group_table(group_of(id)) for id in placed]
        assert {row["state"] for row in tables} == {"REMOVED"}
    stead.remove_placement_group(group_of(forever))
