"""Pods that use volumes: where their claims are, claims that are bound with the pod, and what goes wrong.

Rule: the tests stand in for the provisioner and for the controllers of storage.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count

import pytest

from tests.kubernetes.objects import HOSTNAME, MERGE, ZONE, Object, condition_of, node, node_of, pod
from tests.kubernetes.scheduling.cluster import ClusterUnderTest
from tests.kubernetes.scheduling.provisioner import Provisioner
from tests.kubernetes.scheduling.running import wait_until
from tests.kubernetes.storage_objects import (
    BIND_COMPLETED,
    DRIVER,
    NO_PROVISIONER,
    SELECTED_NODE,
    claim,
    claim_reference,
    csi_node,
    pod_with,
    storage_class,
    volume,
)


def zoned(name: str, zone: str, cpu: str = "8") -> Object:
    return node(name, cpu=cpu, labels={ZONE: zone})


def apart(app: str) -> Object:
    """The anti-affinity of replicas, each on a node of its own."""
    term = {"labelSelector": {"matchLabels": {"app": app}}, "topologyKey": HOSTNAME}
    return {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}


def replica(name: str, number: int) -> Object:
    """A pod of a StatefulSet with a claim of its own."""
    return pod_with(f"{name}-{number}", f"data-{name}-{number}", labels={"app": name}, affinity=apart(name))


def bound(cluster: ClusterUnderTest, name: str, zone: str, **more: object) -> None:
    """A claim that is bound to a volume in a zone."""
    made = cluster.kubectl.create(claim(name, **more))  # type: ignore[arg-type]  # fields of a claim
    reference = claim_reference(name, "default", made["metadata"]["uid"])
    cluster.create(volume(f"pv-{name}", "disk", ZONE, zone, claimRef=reference))
    change = {"metadata": {"annotations": {BIND_COMPLETED: "yes"}}, "spec": {"volumeName": f"pv-{name}"}}
    cluster.kubectl.patch("PersistentVolumeClaim", name, change, content_type=MERGE)


def claim_of(cluster: ClusterUnderTest, name: str) -> Object:
    return cluster.kubectl.get("PersistentVolumeClaim", name)


def is_bound(cluster: ClusterUnderTest, name: str) -> bool:
    return BIND_COMPLETED in claim_of(cluster, name)["metadata"].get("annotations", {})


@contextmanager
def two_zones(cluster: ClusterUnderTest, **more: object) -> Iterator[Provisioner]:
    """Two nodes in each of two zones, a class of disks, and the controllers of storage."""
    cluster.create(*(zoned(f"{zone}-{number}", zone) for zone in "ab" for number in range(2)), storage_class("disk"))
    with Provisioner(cluster.server, **more) as found:  # type: ignore[arg-type]  # its options
        yield found


def cordon(cluster: ClusterUnderTest, name: str) -> None:
    """Cordon a node. The scheduler knows it when this returns: it sees pods and nodes in two watches, so a pod that is
    created now could be bound there otherwise."""
    cluster.kubectl.patch("Node", name, {"spec": {"unschedulable": True}})
    for number in count():
        probe = f"probe-{number}"
        cluster.create(pod(probe, cpu="1m", nodeSelector={HOSTNAME: name}))
        is_refused = wait_until(partial(outcome_of, cluster, probe), "waiting for the probe") == "refused"
        cluster.kubectl.delete("Pod", probe, grace_seconds=0)
        if is_refused:
            return


def outcome_of(cluster: ClusterUnderTest, name: str) -> str:
    """What became of a pod; empty as long as nothing did."""
    found = cluster.kubectl.get("Pod", name)
    refused = condition_of(found, "PodScheduled")
    return "bound" if node_of(found) else "refused" if refused and refused["status"] == "False" else ""


class TestAStatefulSetInTwoZones:
    def test_bound_claims_keep_their_zone_and_new_ones_are_created_where_their_pods_are(
        self, cluster: ClusterUnderTest
    ) -> None:
        with two_zones(cluster) as provisioner:
            bound(cluster, "data-db-0", "b")
            bound(cluster, "data-db-1", "b")
            cluster.create(claim("data-db-2"), claim("data-db-3"))
            cluster.scheduler().wait_until_leading()
            cluster.create(*(replica("db", number) for number in range(4)))
            nodes = cluster.wait_until_bound("db-0", "db-1", "db-2", "db-3")
            assert {nodes["db-0"], nodes["db-1"]} == {"b-0", "b-1"}
            assert {nodes["db-2"], nodes["db-3"]} == {"a-0", "a-1"}
            selected = {("default/data-db-2", nodes["db-2"]), ("default/data-db-3", nodes["db-3"])}
            assert set(provisioner.selected) == selected
            assert sorted(provisioner.created) == ["default/data-db-2", "default/data-db-3"]
        for number in (2, 3):
            assert is_bound(cluster, f"data-db-{number}"), "a pod is bound after its claims"

    def test_a_replica_comes_back_to_the_zone_of_its_claim(self, cluster: ClusterUnderTest) -> None:
        with two_zones(cluster):
            cluster.scheduler().wait_until_leading()
            cluster.create(claim("data-db-0"), replica("db", 0))
            (first,) = cluster.wait_until_bound("db-0").values()
            cluster.kubectl.delete("Pod", "db-0", grace_seconds=0)
            cordon(cluster, first)
            zone = first[0]
            cluster.create(replica("db", 0))
            (second,) = cluster.wait_until_bound("db-0").values()
            assert {first, second} == {f"{zone}-0", f"{zone}-1"}
            cluster.kubectl.delete("Pod", "db-0", grace_seconds=0)
            cordon(cluster, second)
            cluster.create(replica("db", 0))
            message = cluster.wait_until_pending("db-0")["message"]
            assert message.startswith(
                "0/4 nodes are available: 2 node(s) didn't match PersistentVolume's node affinity, 2 node(s) were "
                "unschedulable."
            )

    def test_replicas_that_fit_in_no_other_zone_wait_for_a_node_there(self, cluster: ClusterUnderTest) -> None:
        cluster.create(zoned("a-0", "a"), storage_class("disk"))
        with Provisioner(cluster.server):
            bound(cluster, "data", "b")
            cluster.scheduler().wait_until_leading()
            cluster.create(pod_with("p", "data"))
            words = "1 node(s) didn't match PersistentVolume's node affinity"
            assert words in cluster.wait_until_pending("p")["message"]
            cluster.create(zoned("b-0", "b"))
            assert cluster.wait_until_bound("p") == {"p": "b-0"}


class TestTheProvisioner:
    def test_a_provisioner_that_gives_up_is_asked_again(self, cluster: ClusterUnderTest) -> None:
        with two_zones(cluster, failures=1) as provisioner:
            cluster.scheduler().wait_until_leading()
            cluster.create(claim("data"), pod_with("p", "data"))
            assert cluster.wait_until_bound("p")
            assert provisioner.created == ["default/data"]
            assert 'provisioning failed for PVC "data"' in cluster.wait_for_event("p", "FailedScheduling")["message"]

    def test_a_provisioner_that_does_not_answer_is_waited_for_no_longer_than_the_time_out(
        self, cluster: ClusterUnderTest
    ) -> None:
        with two_zones(cluster, is_silent=True) as provisioner:
            cluster.scheduler("--volume-timeout", "1").wait_until_leading()
            cluster.create(claim("data"), pod_with("p", "data"), pod("other"))
            assert cluster.wait_until_bound("other"), "others do not wait for it"
            event = cluster.wait_for_event("p", "FailedScheduling")
            assert "binding volumes: not bound after 1 s" in event["message"]
            assert not cluster.node_of("p")
            provisioner.is_silent = False
            assert cluster.wait_until_bound("p")

    def test_the_pod_is_bound_only_when_all_its_claims_are(self, cluster: ClusterUnderTest) -> None:
        with two_zones(cluster, is_silent=True) as provisioner:
            bound(cluster, "ready", "b")
            cluster.scheduler().wait_until_leading()
            cluster.create(claim("new"), claim("newer"), pod_with("p", "ready", "new", "newer"))
            wait_until(lambda: len(provisioner.selected) == 2, "waiting for two claims to ask for a volume")
            assert {where[0] for _, where in provisioner.selected} == {"b"}, "where the first claim is"
            assert not cluster.node_of("p")
            provisioner.is_silent = False
            assert cluster.wait_until_bound("p")
            assert is_bound(cluster, "new")
            assert is_bound(cluster, "newer")

    def test_a_pod_that_is_deleted_meanwhile_is_not_bound_and_leaves_its_place(self, cluster: ClusterUnderTest) -> None:
        cluster.create(zoned("a-0", "a", cpu="1"), storage_class("disk"))
        with Provisioner(cluster.server, is_silent=True) as provisioner:
            cluster.scheduler().wait_until_leading()
            cluster.create(claim("data"), pod_with("p", "data", cpu="1"))
            wait_until(lambda: provisioner.selected, "waiting for the claim to ask for a volume")
            cluster.kubectl.delete("Pod", "p", grace_seconds=0)
            cluster.create(pod("other", cpu="1"))
            assert cluster.wait_until_bound("other") == {"other": "a-0"}

    def test_two_pods_that_share_a_new_claim_go_to_one_node(self, cluster: ClusterUnderTest) -> None:
        with two_zones(cluster) as provisioner:
            cluster.create(claim("shared"))
            cluster.create_many([pod_with(f"p-{number}", "shared") for number in range(3)])
            cluster.scheduler().wait_until_leading()
            nodes = cluster.wait_until_bound("p-0", "p-1", "p-2")
            assert len({each[0] for each in nodes.values()}) == 1, "they are in the zone of the volume"
            assert provisioner.created == ["default/shared"]

    def test_topologies_of_the_class_are_respected(self, cluster: ClusterUnderTest) -> None:
        with two_zones(cluster):
            cluster.create(storage_class("only-b", topologies={ZONE: ["b"]}))
            cluster.scheduler().wait_until_leading()
            cluster.create(claim("data", "only-b"), pod_with("p", "data"))
            assert cluster.wait_until_bound("p")["p"].startswith("b-")
            cluster.create(claim("nowhere", "only-b"), pod_with("q", "nowhere", nodeSelector={ZONE: "a"}))
            assert "2 node(s) didn't match Pod's node affinity/selector" in cluster.wait_until_pending("q")["message"]


class TestVolumesThatExist:
    def test_a_claim_gets_the_smallest_volume_of_the_node_and_each_volume_is_given_once(
        self, cluster: ClusterUnderTest
    ) -> None:
        cluster.create(*(zoned(f"n-{number}", "a") for number in range(3)))
        cluster.create(storage_class("local", NO_PROVISIONER))
        with Provisioner(cluster.server):
            for number in range(3):
                for size in ("5Gi", "10Gi"):
                    cluster.create(volume(f"disk-{number}-{size.lower()}", "local", HOSTNAME, f"n-{number}", size=size))
            wait_until(lambda: all_available(cluster), "waiting for the volumes to be available")
            cluster.create(*(claim(f"data-{number}", "local", size="4Gi") for number in range(3)))
            cluster.create(*(pod_with(f"p-{number}", f"data-{number}", labels={"app": "p"}) for number in range(3)))
            cluster.scheduler().wait_until_leading()
            nodes = cluster.wait_until_bound("p-0", "p-1", "p-2")
        volumes = [claim_of(cluster, f"data-{number}")["spec"]["volumeName"] for number in range(3)]
        assert len(set(volumes)) == 3
        assert [each.rsplit("-", 1)[0] for each in volumes] == [f"disk-{nodes[f'p-{n}'][-1]}" for n in range(3)]

    def test_pods_wait_when_no_volume_is_left_until_there_is_one(self, cluster: ClusterUnderTest) -> None:
        cluster.create(zoned("n-0", "a"), zoned("n-1", "a"), storage_class("local", NO_PROVISIONER))
        with Provisioner(cluster.server):
            cluster.create(volume("disk-0", "local", HOSTNAME, "n-0"))
            wait_until(lambda: all_available(cluster), "waiting for the volume to be available")
            cluster.create(claim("data-0", "local"), claim("data-1", "local"))
            cluster.create(pod_with("p-0", "data-0"), pod_with("p-1", "data-1"))
            cluster.scheduler().wait_until_leading()
            first = wait_until(
                lambda: [each for each in ("p-0", "p-1") if cluster.node_of(each)], "waiting for one pod"
            )
            (other,) = {"p-0", "p-1"} - set(first)
            words = "0/2 nodes are available: 2 node(s) didn't find available persistent volumes to bind."
            cluster.wait_until_pending(other, saying=words)
            cluster.create(volume("disk-1", "local", HOSTNAME, "n-1"))
            assert cluster.wait_until_bound(other) == {other: "n-1"}


def all_available(cluster: ClusterUnderTest) -> bool:
    return all(each["status"]["phase"] == "Available" for each in cluster.kubectl.list("PersistentVolume"))


class TestClaimsThatCannotBeUsed:
    def test_a_claim_that_is_created_later_wakes_its_pod(self, cluster: ClusterUnderTest) -> None:
        with two_zones(cluster):
            cluster.scheduler().wait_until_leading()
            cluster.create(pod_with("p", "data"))
            message = cluster.wait_until_pending("p")["message"]
            assert message == '0/4 nodes are available: persistentvolumeclaim "data" not found.'
            cluster.create(claim("data"))
            assert cluster.wait_until_bound("p")

    def test_a_claim_that_is_bound_at_once_is_waited_for(self, cluster: ClusterUnderTest) -> None:
        with two_zones(cluster):
            cluster.create(storage_class("at-once", mode="Immediate"), claim("data", "at-once"))
            cluster.scheduler().wait_until_leading()
            cluster.create(pod_with("p", "data"))
            message = cluster.wait_until_pending("p")["message"]
            assert message == "0/4 nodes are available: pod has unbound immediate PersistentVolumeClaims."
            uid = claim_of(cluster, "data")["metadata"]["uid"]
            cluster.create(volume("pv", "at-once", ZONE, "b", claimRef=claim_reference("data", "default", uid)))
            assert cluster.wait_until_bound("p")["p"].startswith("b-")

    def test_the_claim_of_an_ephemeral_volume_must_belong_to_the_pod(self, cluster: ClusterUnderTest) -> None:
        cluster.create(zoned("a-0", "a"), storage_class("disk"), claim("p-scratch"))
        cluster.scheduler().wait_until_leading()
        cluster.create(with_scratch("p"), with_scratch("q"))
        words = "0/1 nodes are available: PVC default/p-scratch was not created for pod default/p (pod is not owner)."
        assert cluster.wait_until_pending("p")["message"] == words
        words = 'waiting for ephemeral volume controller to create the persistentvolumeclaim "q-scratch"'
        assert cluster.wait_until_pending("q")["message"] == f"0/1 nodes are available: {words}."

    def test_a_pod_gets_its_ephemeral_volume(self, cluster: ClusterUnderTest) -> None:
        with two_zones(cluster) as provisioner:
            cluster.scheduler().wait_until_leading()
            cluster.create(with_scratch("p"))
            assert cluster.wait_until_bound("p")
            assert provisioner.created == ["default/p-scratch"]


def with_scratch(name: str) -> Object:
    """A pod with an ephemeral volume."""
    template = {"spec": claim("unnamed")["spec"]}
    return pod(name, volumes=[{"name": "scratch", "ephemeral": {"volumeClaimTemplate": template}}])


class TestHowManyMayUseAVolume:
    def test_the_second_pod_of_a_claim_for_one_pod_waits_until_the_first_has_ended(
        self, fake_cluster: ClusterUnderTest
    ) -> None:
        """Fake only: the real server is of version 1.20, which does not know the access mode."""
        cluster = fake_cluster
        with two_zones(cluster):
            bound(cluster, "data", "a", modes=["ReadWriteOncePod"])
            cluster.scheduler().wait_until_leading()
            cluster.create(pod_with("first", "data"))
            cluster.wait_until_bound("first")
            cluster.create(pod_with("second", "data"))
            words = (
                "node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode already in-use by "
                "another pod"
            )
            assert cluster.wait_until_pending("second")["message"] == f"0/4 nodes are available: 4 {words}."
            cluster.kubectl.delete("Pod", "first", grace_seconds=0)
            assert cluster.wait_until_bound("second")["second"].startswith("a-")

    def test_a_node_gets_no_more_volumes_than_it_may_have(self, cluster: ClusterUnderTest) -> None:
        cluster.create(zoned("a-0", "a"), csi_node("a-0", {DRIVER: 2, "other": None}), storage_class("disk"))
        with Provisioner(cluster.server):
            bound(cluster, "data-0", "a")
            cluster.create(claim("data-1"), claim("data-2"))
            cluster.scheduler().wait_until_leading()
            cluster.create(pod_with("p-0", "data-0"), pod_with("p-1", "data-1"))
            cluster.wait_until_bound("p-0", "p-1")
            cluster.create(pod_with("p-2", "data-2"), pod_with("shares", "data-0"))
            message = cluster.wait_until_pending("p-2")["message"]
            assert message == "0/1 nodes are available: 1 node(s) exceed max volume count."
            assert cluster.wait_until_bound("shares") == {"shares": "a-0"}
            drivers = [{"name": DRIVER, "nodeID": "a-0", "topologyKeys": None, "allocatable": {"count": 3}}]
            cluster.kubectl.delete("CSINode", "a-0")
            cluster.create({**csi_node("a-0", {}), "spec": {"drivers": drivers}})
            assert cluster.wait_until_bound("p-2") == {"p-2": "a-0"}


class TestAfterKill9:
    def test_between_the_annotation_and_the_binding_the_pod_goes_to_the_selected_node(
        self, cluster: ClusterUnderTest
    ) -> None:
        with two_zones(cluster, is_silent=True) as provisioner:
            scheduler = cluster.scheduler().wait_until_leading()
            cluster.create(claim("data"), pod_with("p", "data"))
            wait_until(lambda: provisioner.selected, "waiting for the claim to ask for a volume")
            scheduler.kill()
            ((_, selected),) = provisioner.selected
            cluster.scheduler().wait_until_leading()
            cluster.wait_until_it_knows_everything(cluster.running[-1])
            assert not cluster.node_of("p")
            provisioner.is_silent = False
            assert cluster.wait_until_bound("p") == {"p": selected}
            assert len(provisioner.selected) == 1

    @pytest.mark.parametrize("is_bound_meanwhile", [False, True])
    def test_a_volume_that_was_given_to_the_claim_is_used(
        self, cluster: ClusterUnderTest, is_bound_meanwhile: bool
    ) -> None:
        """As if the scheduler was killed after it had written the volume."""
        cluster.create(zoned("n-0", "a"), zoned("n-1", "a"), storage_class("local", NO_PROVISIONER))
        with Provisioner(cluster.server) as provisioner:
            provisioner.is_silent = True
            cluster.create(claim("data", "local"), pod_with("p", "data"))
            uid = claim_of(cluster, "data")["metadata"]["uid"]
            given = volume("disk-1", "local", HOSTNAME, "n-1", claimRef=claim_reference("data", "default", uid))
            cluster.create(volume("disk-0", "local", HOSTNAME, "n-0"), given)
            if is_bound_meanwhile:
                wait_until(lambda: is_bound(cluster, "data"), "waiting for the claim to be bound")
            cluster.scheduler().wait_until_leading()
            assert cluster.wait_until_bound("p") == {"p": "n-1"}


def test_the_pods_of_a_gang_get_their_volumes_and_are_bound_together(cluster: ClusterUnderTest) -> None:
    with two_zones(cluster) as provisioner:
        cluster.scheduler().wait_until_leading()
        cluster.create(*(claim(f"data-{number}") for number in range(4)))
        for number in range(4):
            member = pod_with(f"ring-{number}", f"data-{number}", labels={"scheduling.x-k8s.io/pod-group": "ring"})
            member["metadata"]["annotations"] = {"stead.dev/min-available": "4"}
            assert not provisioner.selected, "no volume is created for a part of the gang"
            cluster.create(member)
        assert len(cluster.wait_until_bound(*(f"ring-{number}" for number in range(4)))) == 4
        assert len(provisioner.created) == 4


def test_a_claim_of_another_scheduler_is_left_alone(cluster: ClusterUnderTest) -> None:
    with two_zones(cluster) as provisioner:
        cluster.scheduler().wait_until_leading()
        cluster.create(claim("theirs"), pod_with("p", "theirs", scheduler="other"), pod("ours"))
        cluster.wait_until_bound("ours")
        cluster.wait_until_it_knows_everything()
        assert SELECTED_NODE not in claim_of(cluster, "theirs")["metadata"].get("annotations", {})
        assert not provisioner.selected
