"""Work and groups go with whoever owns them, as Ray's own do: with their job, with the detached actor whose work made
them, or with nobody."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import ray
from conftest import ClusterOf
from ray.util.placement_group import PlacementGroup
from waiting import wait_for
from workload import SOON_S, attached, labelled, run_driver

import stead
from stead.ray.attach import connection
from stead.ray.local import LocalCluster

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


def test_what_a_detached_actor_asked_for_outlives_the_job_that_launched_it(cluster: LocalCluster) -> None:
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
