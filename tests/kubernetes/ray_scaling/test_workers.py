"""Launches and retirements of workers, decided on plain values: in any order of what happens, with an operator that is
behind, no pod that works is deleted without being named, and nothing is leaked or doubled.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from random import Random

import pytest

from stead.errors import Invalid, Unsupported
from stead.kubernetes.ray_scaling.workers import LAUNCHES, LAUNCHES_BYTES_MAX, Workers
from stead.planner.instances import Instance, InstanceState
from stead.scaling.provider import Unlaunched
from tests.kubernetes.objects import JSON_PATCH, Object
from tests.kubernetes.ray_scaling.clusters import group, ray_cluster
from tests.kubernetes.ray_scaling.kuberay import ENDED, reconciled
from tests.kubernetes.servers.fake_patches import apply_patch

NOW = 1_800_000_000.0


class World:
    """A RayCluster, its pods, and an operator that may see an older version of the RayCluster."""

    def __init__(self, cluster: Object, seed: int = 0, indexes_hosts: bool = True) -> None:
        self.random, self.indexes_hosts = Random(seed), indexes_hosts
        self.versions: list[Object] = []
        self.seen = 0
        self.pods: dict[str, Object] = {}
        self.full: set[str] = set()
        self.victims: list[Object] = []
        self._store(cluster)

    @property
    def cluster(self) -> Object:
        return self.versions[-1]

    def _store(self, cluster: Object) -> None:
        metadata = {**cluster["metadata"], "resourceVersion": str(len(self.versions) + 1)}
        self.versions.append({**cluster, "metadata": metadata})

    def change(self, work: Callable[[Workers], object] = lambda _: None) -> tuple[Instance, ...]:
        """One call of a provider."""
        workers = Workers(self.cluster, list(self.pods.values()), NOW)
        work(workers)
        if patch := workers.patch():
            assert patch[0]["value"] == self.cluster["metadata"]["resourceVersion"]
            self._store(apply_patch(JSON_PATCH, self.cluster, patch))
        assert not Workers(self.cluster, list(self.pods.values()), NOW).patch(), "one write says everything"
        for each in self.cluster["spec"]["workerGroupSpecs"]:
            assert each["minReplicas"] <= each["replicas"] <= each["maxReplicas"]
        return workers.instances()

    def pods_of_launches(self) -> dict[str, str]:
        """The pod of each launch that has one."""
        records = json.loads(self.cluster["metadata"].get("annotations", {}).get(LAUNCHES, "{}"))
        return {id: record["pod"] for id, record in records.items() if "pod" in record and "at" in record}

    def launch(self, id: str, kind: str = "gpu") -> None:
        self.change(lambda workers: workers.launch(id, kind))

    def retire(self, id: str) -> None:
        self.change(lambda workers: workers.retire(id))

    def operate(self, lag: int = 0) -> bool:
        """One pass of the operator, on a RayCluster that may be `lag` versions old."""
        self.seen = max(self.seen, len(self.versions) - 1 - lag)
        pods = list(self.pods.values())
        seen = self.versions[self.seen]
        actions = reconciled(seen, pods, self.random, self.indexes_hosts, self.full)
        self.victims += [self.pods[name] for name in actions.at_random]
        for name in actions.deleted:
            del self.pods[name]
        for pod in actions.created:
            pod["metadata"]["creationTimestamp"] = "2026-11-20T00:00:00Z"
            pod["status"] = {"phase": "Pending"}
            self.pods[pod["metadata"]["name"]] = pod
        status = {}
        if actions.failure.startswith("FailedCreateWorkerPod"):
            failed = {"type": "ReplicaFailure", "status": "True", "reason": "FailedCreateWorkerPod"}
            status = {"conditions": [{**failed, "message": actions.failure}]}
        if self.cluster.get("status", {}) != status:
            self._store({**self.cluster, "status": status})
            self.seen += self.seen == len(self.versions) - 2
        return bool(actions.deleted or actions.created)

    @property
    def is_behind(self) -> bool:
        return self.seen < len(self.versions) - 1

    def run(self) -> None:
        """The kubelets run every pod."""
        for number, pod in enumerate(self.pods.values()):
            if pod["status"]["phase"] == "Pending":
                pod["status"] = {"phase": "Running", "podIP": f"10.0.0.{number}"}

    def settle(self) -> tuple[Instance, ...]:
        """Until nothing happens any more."""
        self.full.clear()
        while True:
            before, acts = len(self.versions), self.operate()
            self.run()
            found = self.change()
            if not acts and not self.is_behind and len(self.versions) == before:
                return found


def states(instances: tuple[Instance, ...]) -> dict[str, InstanceState]:
    return {each.launch: each.state for each in instances}


def replicas(world: World) -> int:
    return int(world.cluster["spec"]["workerGroupSpecs"][0]["replicas"])


# In any order


@pytest.mark.parametrize(("hosts", "indexes_hosts"), [(1, True), (2, True), (2, False), (3, True)])
@pytest.mark.parametrize("seed", range(25))
def test_whatever_happens_no_working_pod_goes_unnamed_and_in_the_end_nothing_is_left(
    seed: int, hosts: int, indexes_hosts: bool
) -> None:
    """Launches, retirements, failing pods, full quotas, a person who raises `replicas`, and an operator that is behind,
    in a random order; then everything is retired."""
    world = World(ray_cluster(group(least=seed % 3, most=6, hosts=hosts)), seed, indexes_hosts)
    random, launched, retired, pods = Random(seed), set[str](), set[str](), dict[str, str]()
    for step in range(60):
        act = random.choices(["launch", "retire", "operate", "run", "fail", "full", "raise"], [6, 4, 8, 6, 1, 1, 1])[0]
        known = {each.launch: each for each in world.change()}
        pods |= world.pods_of_launches()
        for id in launched - retired - known.keys():
            assert pods[id] not in world.pods, "a launch is forgotten when its pod is gone"
        if act == "launch":
            with suppress(Unlaunched):
                world.launch(f"launch-{step}")
                launched.add(f"launch-{step}")
        elif act == "retire" and known:
            id = random.choice(sorted(known))
            world.retire(id)
            retired.add(id)
        elif act == "operate":
            world.operate(random.choice([0, 0, 1, 2]))
        elif act == "run" and not world.is_behind:
            world.run()
        elif act == "fail" and world.pods:
            random.choice(list(world.pods.values()))["status"] = {"phase": "Failed"}
        elif act == "full":
            world.full ^= {"gpu"}
        elif act == "raise":
            written = world.cluster["spec"]["workerGroupSpecs"][0]
            more = {**written, "replicas": min(written["replicas"] + 1, 6)}
            world._store({**world.cluster, "spec": {**world.cluster["spec"], "workerGroupSpecs": [more]}})
    found = world.settle()
    assert all(pod["status"]["phase"] == "Pending" for pod in world.victims), "they did not work yet"
    assert {each.state for each in found} <= {InstanceState.RUNNING, InstanceState.ENDING}
    assert len(found) == len(world.pods) == replicas(world) * hosts
    for _ in range(4):  # a replacement of a pod that somebody else deleted is another node
        for each in world.settle():
            world.retire(each.launch)
    world.settle()
    assert replicas(world) == seed % 3
    assert len(world.pods) == seed % 3 * hosts
    assert not (world.cluster["spec"]["workerGroupSpecs"][0].get("scaleStrategy") or {}).get("workersToDelete")


@pytest.mark.parametrize("seed", range(40))
def test_every_launch_gets_one_node_and_keeps_it(seed: int) -> None:
    """Without failures there are as many nodes as launches, and never more on the way."""
    random, world = Random(seed), World(ray_cluster(group(most=5)), seed)
    count, at, nodes = random.randint(1, 5), 0, dict[str, str]()
    while at < count or world.is_behind or world.operate():
        if random.random() < 0.4 and at < count:
            world.launch(f"launch-{at}")
            world.launch(f"launch-{random.randint(0, at)}")  # again
            at += 1
        elif random.random() < 0.5:
            world.operate(random.choice([0, 1, 3]))
        world.run()
        for each in world.change():
            assert nodes.setdefault(each.launch, each.ip) in ("", each.ip), "a launch keeps its node"
            nodes[each.launch] = each.ip
        assert len(world.pods) <= at
    found = states(world.settle())
    assert found == {f"launch-{number}": InstanceState.RUNNING for number in range(count)}
    assert len(world.pods) == replicas(world) == count
    assert not world.victims


# One by one


def test_a_launch_uses_a_pod_that_is_coming_anyway() -> None:
    """At the start, the pods of the minimum have not been created: the autoscaler asks for them, too."""
    world = World(ray_cluster(group(least=2)))
    for number in range(3):
        world.launch(f"launch-{number}")
    assert replicas(world) == 3
    assert set(states(world.settle())) == {"launch-0", "launch-1", "launch-2"}


def test_a_pod_that_exists_before_a_launch_does_not_belong_to_it() -> None:
    world = World(ray_cluster(group(least=1)))
    (adopted,) = world.settle()
    world.launch("launch-1")
    assert states(world.change()) == {adopted.launch: InstanceState.RUNNING, "launch-1": InstanceState.STARTING}
    assert adopted.launch in world.pods and adopted.since > 0


def test_a_launch_that_is_given_up_leaves_no_replica_where_nothing_runs() -> None:
    world = World(ray_cluster(group()))
    world.launch("launch-1")
    world.retire("launch-1")
    assert (replicas(world), world.change()) == (0, ())


def test_a_launch_that_is_given_up_waits_for_its_pod_where_others_may_work() -> None:
    """If `replicas` were lowered now, and the operator had created the pod, it would delete any pod of the group."""
    world = World(ray_cluster(group()))
    world.launch("busy")
    world.settle()
    world.launch("late")
    world.retire("late")
    assert (replicas(world), states(world.change())["late"]) == (2, InstanceState.ENDING)
    world.operate()
    assert states(world.change())["late"] == InstanceState.ENDING
    assert states(world.settle()) == {"busy": InstanceState.RUNNING}
    assert replicas(world) == 1 and not world.victims


def test_another_launch_takes_the_place_of_one_that_was_given_up() -> None:
    world = World(ray_cluster(group()))
    world.launch("busy")
    world.settle()
    world.launch("late")
    world.retire("late")
    world.launch("next")
    assert states(world.settle()) == {"busy": InstanceState.RUNNING, "next": InstanceState.RUNNING}
    assert replicas(world) == 2


def test_a_launch_that_kuberay_cannot_create_is_withdrawn_so_that_other_groups_are_not_held_up() -> None:
    """KubeRay's pass ends at the group whose pod it cannot create."""
    world = World(ray_cluster(group("gpu"), group("cpu")))
    world.launch("busy")
    world.settle()
    world.full = {"gpu"}
    world.launch("refused")
    world.launch("after", "cpu")
    world.operate()
    (failed,) = [each for each in world.change() if each.state == InstanceState.FAILED]
    assert failed.launch == "refused" and "exceeded quota: gpus" in failed.problem
    assert failed.is_stock_out
    world.retire("refused")
    world.operate()
    world.run()
    assert states(world.change()) == {"busy": InstanceState.RUNNING, "after": InstanceState.RUNNING}


def test_a_retired_pod_that_fails_first_is_not_replaced() -> None:
    world = World(ray_cluster(group()))
    for id in ("one", "two"):
        world.launch(id)
    world.settle()
    pod = next(iter(world.pods.values()))
    pod["status"] = {"phase": "Failed", "reason": "Evicted", "message": "the node had no memory left"}
    (failed,) = [each for each in world.change() if each.state == InstanceState.FAILED]
    assert failed.problem == f"pod {pod['metadata']['name']} ended (Evicted: the node had no memory left)"
    assert not failed.is_stock_out
    world.retire(failed.launch)
    assert set(states(world.settle()).values()) == {InstanceState.RUNNING}
    assert (len(world.pods), replicas(world), world.victims) == (1, 1, [])


def test_a_pod_that_fails_is_replaced_by_kuberay_and_that_is_another_node() -> None:
    world = World(ray_cluster(group()))
    world.launch("one")
    world.settle()
    next(iter(world.pods.values()))["status"] = {"phase": ENDED[0]}
    (found,) = world.settle()
    assert found.launch in world.pods


@pytest.mark.parametrize("indexes_hosts", [True, False])
def test_a_replica_of_two_hosts_goes_when_both_are_retired(indexes_hosts: bool) -> None:
    world = World(ray_cluster(group(hosts=2)), indexes_hosts=indexes_hosts)
    for id in ("a", "b"):
        world.launch(id)
    assert replicas(world) == 1
    world.settle()
    world.retire("a")
    assert states(world.settle()) == {"a": InstanceState.ENDING, "b": InstanceState.RUNNING}
    world.retire("b")
    assert world.settle() == () and replicas(world) == 0 and not world.victims


def test_a_host_that_nobody_asked_for_is_listed_under_the_name_of_its_pod() -> None:
    world = World(ray_cluster(group(hosts=2)))
    world.launch("a")
    found = states(world.settle())
    assert len(found) == 2 and found.keys() - {"a"} <= world.pods.keys()


# What is refused


@pytest.mark.parametrize(
    ("cluster", "kind", "words"),
    [
        (
            ray_cluster(group(most=0)),
            "gpu",
            "the worker group 'gpu' .* has its maximum of 0 replicas; raise its maxRep",
        ),
        (ray_cluster(group(suspend=True)), "gpu", "the worker group 'gpu' .* is suspended; set its field suspend"),
        (
            ray_cluster(group(), suspend=True),
            "gpu",
            "the RayCluster default/vision is suspended; set its field suspend",
        ),
        (ray_cluster(group("large")), "larg", "no worker group 'larg' .did you mean 'large'..; its groups are large"),
    ],
)
def test_a_node_that_cannot_be_launched_is_refused_in_one_sentence(cluster: Object, kind: str, words: str) -> None:
    world = World(cluster)
    with pytest.raises(Unlaunched, match=words) as refusal:
        world.launch("launch-1", kind)
    assert "\n" not in str(refusal.value)
    assert len(world.versions) == 1, "nothing was written"


def test_a_ray_cluster_that_is_being_deleted_gets_no_node_and_no_write() -> None:
    cluster = ray_cluster(group(least=1))
    world = World(cluster)
    world.settle()
    world.cluster["metadata"]["deletionTimestamp"] = "2026-11-20T00:00:00Z"
    with pytest.raises(Unlaunched, match="is being deleted"):
        world.launch("launch-1")
    world.pods.clear()
    assert world.change() == ()
    assert Workers(world.cluster, [], NOW).patch() == []


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (
            {"enableInTreeAutoscaling": True},
            "enableInTreeAutoscaling: true, so Ray's own autoscaler .* set it to false",
        ),
        (
            {"managedBy": "kueue.x-k8s.io/multikueue"},
            "managed by 'kueue.x-k8s.io/multikueue', so its pods run elsewhere",
        ),
    ],
)
def test_a_ray_cluster_that_somebody_else_scales_is_refused(spec: Object, words: str) -> None:
    with pytest.raises(Unsupported, match=words):
        Workers(ray_cluster(group(), **spec), [], NOW)


@pytest.mark.parametrize(
    "written", ["no JSON", "[]", '{"a": 1}', '{"a": {"node": "x"}}', '{"a": {"group": "gpu", "at": "x"}}']
)
def test_an_annotation_that_stead_has_not_written_is_refused(written: str) -> None:
    cluster = ray_cluster(group())
    cluster["metadata"]["annotations"] = {LAUNCHES: written}
    with pytest.raises(
        Invalid, match="is not what stead has written; remove it with `kubectl annotate raycluster visi"
    ):
        Workers(cluster, [], NOW)


def test_a_ray_cluster_has_at_most_as_many_nodes_as_its_annotation_can_name() -> None:
    records = {f"launch-{number}": {"group": "gpu", "at": 1.5, "pod": f"pod-{number}"} for number in range(4_500)}
    cluster = ray_cluster(group(most=10_000, replicas=4_500))
    cluster["metadata"]["annotations"] = {LAUNCHES: json.dumps(records, separators=(",", ":"))}
    pods = [
        {"metadata": {"name": each["pod"], "labels": {"ray.io/group": "gpu"}}, "status": {"phase": "Running"}}
        for each in records.values()
    ]
    assert len(cluster["metadata"]["annotations"][LAUNCHES]) > LAUNCHES_BYTES_MAX
    with pytest.raises(Unlaunched, match="has no room for one more; add a worker group with larger nodes"):
        Workers(cluster, pods, NOW).launch("one-more", "gpu")


def test_a_cluster_of_thousands_of_workers_that_nobody_launched_can_be_scaled() -> None:
    """Their records are short."""
    pods = [
        {"metadata": {"name": f"vision-gpu-worker-{number:05}", "labels": {"ray.io/group": "gpu"}}}
        for number in range(3_000)
    ]
    workers = Workers(ray_cluster(group(most=10_000, replicas=3_000)), pods, NOW)
    workers.launch("one-more", "gpu")
    (annotation,) = [each["value"][LAUNCHES] for each in workers.patch() if each["path"] == "/metadata/annotations"]
    assert len(annotation) < LAUNCHES_BYTES_MAX
    cluster = ray_cluster(group(most=10_000, replicas=3_001))
    cluster["metadata"]["annotations"] = {LAUNCHES: annotation}
    assert Workers(cluster, pods, NOW).patch() == []
