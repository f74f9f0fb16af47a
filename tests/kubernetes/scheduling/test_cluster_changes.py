"""The cluster changes while a batch is scheduled: nodes come, go and change, pods come back under the same name, and
another scheduler binds pods at the same time.

Rule: a decision can only respect what the scheduler has seen. So each test says from when on a change was seen, and
checks what was decided after that. What always holds is checked always: a pod is bound once, none is forgotten, and
stead's own pods never hold more of a node than it has.
"""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.kubernetes.kube_cluster import Cluster
from tests.kubernetes.objects import ApiError, Object, node, nodes, pod, pods, taint
from tests.kubernetes.scheduling.checker import broken_rules, over_capacity
from tests.kubernetes.scheduling.cluster import ClusterUnderTest
from tests.kubernetes.scheduling.running import wait_until

NODES = 30
ROOM = 10
"""How many pods of 1 cpu a node has room for."""

ANY_TAINT = [{"operator": "Exists"}]


def own_pods_over_capacity(cluster: ClusterUnderTest) -> list[str]:
    """Nodes that stead's own pods overfill, whatever others did."""
    own = [each for each in cluster.kubectl.list("Pod") if each["spec"]["schedulerName"] == "stead"]
    return list(over_capacity(Cluster(cluster.kubectl.list("Node"), own)))


def probe(name: str, node_name: str) -> Object:
    """A pod that only this node accepts, and only after its label `changed` is there; it tolerates everything."""
    selector = {"kubernetes.io/hostname": node_name, "changed": "true"}
    return pod(name, cpu="1m", nodeSelector=selector, tolerations=ANY_TAINT)


def change(cluster: ClusterUnderTest, name: str, spec: Object | None = None, **labels: str | None) -> None:
    """Change a node, and label it as changed in the same request."""
    cluster.kubectl.patch("Node", name, {"metadata": {"labels": {"changed": "true", **labels}}, "spec": spec or {}})


def wait_until_seen(cluster: ClusterUnderTest, names: Iterable[str]) -> None:
    """Wait until the scheduler has bound a probe to each changed node. Then it has seen all the changes."""
    probes = {f"probe-{name}": name for name in names}
    cluster.create_many([probe(each, name) for each, name in probes.items()])
    assert cluster.wait_until_bound(*probes) == probes


def test_what_is_decided_after_a_change_of_a_node_was_seen_respects_it(shared_cluster: ClusterUnderTest) -> None:
    """Nodes are cordoned, tainted, relabelled, deleted and created during the first wave. The second wave is created
    after the changes were seen, and must respect them; the checker looks at it as if the first had come before."""
    cluster, scheduler = shared_cluster, shared_cluster.running[0]
    cluster.create_many(nodes(NODES, cpu="20", labels={"pool": "web"}))
    with cluster.recorded() as recorded:
        cluster.create_many(pods(200, "first", cpu="1", nodeSelector={"pool": "web"}))
        recorded.wait_until_assigned(20)
        change(cluster, "node-0", {"unschedulable": True})
        change(cluster, "node-1", {"taints": [taint("gpu")]})
        change(cluster, "node-2", {"taints": [taint("gone", effect="NoExecute")]})
        change(cluster, "node-3", pool=None)
        change(cluster, "node-4", pool="other")
        cluster.kubectl.delete("Node", "node-5")
        cluster.create(node("added", labels={"pool": "web", "changed": "true"}))
        recorded.wait_until_assigned(200)
        wait_until_seen(cluster, ["node-0", "node-1", "node-2", "node-3", "node-4", "added"])
        cluster.wait_until_it_knows_everything(scheduler)
        cluster.create_many(pods(200, "second", cpu="1", nodeSelector={"pool": "web"}))
        recorded.wait_until_assigned(200 + 200 + 6)
        assert not recorded.assigned_twice()
    found = cluster.pods()
    second = [each for name, each in found.items() if name.startswith("second")]
    assert broken_rules(cluster.kubectl.list("Node"), second) == []
    assert not [each for each in second if each["spec"]["nodeName"] == "node-5"], "it was deleted"
    assert own_pods_over_capacity(cluster) == []


def test_pods_that_wait_are_bound_when_a_node_changes_so_that_they_fit(shared_cluster: ClusterUnderTest) -> None:
    """Every way in which a node can become better: uncordoned, untainted, labelled, larger, less full, and new."""
    cluster = shared_cluster
    cluster.create(
        node("cordoned", unschedulable=True),
        node("tainted", taints=[taint("gpu")]),
        node("unlabelled"),
        node("small", cpu="1"),
        node("full", cpu="2"),
        pod("filling", cpu="2", nodeName="full", scheduler="other"),
    )
    for name in ("cordoned", "tainted", "small", "full", "new"):
        cluster.create(pod(f"on-{name}", cpu="2", nodeSelector={"kubernetes.io/hostname": name}))
    cluster.create(pod("on-unlabelled", nodeSelector={"disk": "ssd"}))
    for name in ("cordoned", "tainted", "unlabelled", "small", "full", "new"):
        cluster.wait_until_pending(f"on-{name}")
    kubectl = cluster.kubectl
    kubectl.patch("Node", "cordoned", {"spec": {"unschedulable": False}})
    kubectl.patch("Node", "tainted", {"spec": {"taints": None}})
    kubectl.patch("Node", "unlabelled", {"metadata": {"labels": {"disk": "ssd"}}})
    kubectl.patch("Node", "small", {"status": {"allocatable": {"cpu": "2"}}}, subresource="status")
    kubectl.delete("Pod", "filling", grace_seconds=0)
    cluster.create(node("new"))
    wanted = {f"on-{name}": name for name in ("cordoned", "tainted", "unlabelled", "small", "full", "new")}
    assert cluster.wait_until_bound(*wanted) == wanted


def test_a_pod_that_comes_back_under_its_name_is_bound_like_any_other(shared_cluster: ClusterUnderTest) -> None:
    """Half of the pods are deleted and created again during the batch, with other uids."""
    cluster = shared_cluster
    with cluster.recorded() as recorded:
        cluster.create_many(pods(200, cpu="1"))
        cluster.create_many(nodes(NODES, cpu=str(ROOM)))
        recorded.wait_until_assigned(1)

        def come_back(number: int) -> None:
            cluster.kubectl.delete("Pod", f"pod-{number}", grace_seconds=0)
            cluster.kubectl.create(pod(f"pod-{number}", cpu="1"))

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(come_back, range(0, 200, 2)))
        cluster.wait_until_bound()
        cluster.running[0].wait_until_quiet()
        assert not recorded.assigned_twice()
        current = {each["metadata"]["uid"] for each in cluster.kubectl.list("Pod")}
        assert all(recorded.pods[uid].nodes for uid in current)
    assert broken_rules(cluster.kubectl.list("Node"), cluster.kubectl.list("Pod")) == []


@pytest.mark.parametrize("long_lived_cluster", ["fake"], indirect=True)
def test_a_binding_does_not_hit_another_pod_of_the_same_name(shared_cluster: ClusterUnderTest) -> None:
    """Fake only: Kubernetes 1.20 ignores the uid in a binding. The binding of the first pod arrives after the pod was
    deleted and another one, which must not be on that node, was created under its name."""
    cluster = shared_cluster
    cluster.create(node("a", labels={"pool": "a"}), node("b", labels={"pool": "b"}))
    cluster.fake.hang_next("POST", "/binding$")
    cluster.create(pod("p", nodeSelector={"pool": "a"}))
    wait_until(lambda: cluster.fake.hanging, "waiting for the binding")
    cluster.kubectl.delete("Pod", "p", grace_seconds=0)
    cluster.create(pod("p", nodeSelector={"pool": "b"}))
    cluster.fake.release()
    assert cluster.wait_until_bound("p") == {"p": "b"}


@pytest.mark.parametrize("whose", ["stead", "rival"])
def test_another_scheduler_may_bind_pods_at_the_same_time(shared_cluster: ClusterUnderTest, whose: str) -> None:
    """The rival is this test. It binds pods of its own, or every third pod of stead before stead does: then stead gets
    a conflict (409), drops its decision, and gives the place that it had reserved to others.

    Checked: during the race stead's own pods never overfill a node. After the race, when stead has seen everything,
    it uses exactly the room that is left, and does not put a single pod on a full node.
    """
    cluster, scheduler = shared_cluster, shared_cluster.running[0]
    cluster.create_many(nodes(NODES, cpu=str(ROOM)))
    cluster.wait_until_it_knows_everything()
    own = pods(150, "own", cpu="1")
    stolen = own[::3] if whose == "stead" else pods(50, "other", cpu="1", scheduler="rival")
    if whose == "rival":
        cluster.create_many(stolen)

    def steal(index: int) -> None:
        """Bind one pod, without a look at what fits, as soon as it exists."""
        name = stolen[index]["metadata"]["name"]

        def is_bound() -> bool:
            try:
                cluster.kubectl.bind(name, f"node-{index % 5}")
            except ApiError as error:
                return error.status == 409  # stead was faster
            return True

        cluster.kubectl.wait_until(is_bound)

    with cluster.recorded() as recorded, ThreadPoolExecutor(4) as pool:
        thefts = pool.map(steal, range(len(stolen)))
        cluster.create_many(own)
        list(thefts)
        total = len(own) + (len(stolen) if whose == "rival" else 0)
        recorded.wait_until_assigned(total)
        assert not recorded.assigned_twice()
    assert own_pods_over_capacity(cluster) == [] or whose == "stead", "the rival overfills nodes, stead does not"
    cluster.wait_until_it_knows_everything()
    scheduler.wait_until_quiet()

    before = set(over_capacity(Cluster(cluster.kubectl.list("Node"), cluster.kubectl.list("Pod"))))
    holding = Cluster(cluster.kubectl.list("Node"), cluster.kubectl.list("Pod")).places.values()
    left = sum(max(ROOM - len(place.placed), 0) for place in holding)
    cluster.create_many(pods(left, "filling", cpu="1"))
    cluster.wait_until_bound()
    after = Cluster(cluster.kubectl.list("Node"), cluster.kubectl.list("Pod"))
    assert set(over_capacity(after)) == before, "no node is overfilled that was not before"
    cluster.create(pod("one-too-many", cpu="1"))
    assert f"{NODES} Insufficient cpu" in cluster.wait_until_pending("one-too-many")["message"]
