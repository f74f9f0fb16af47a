"""The provider of a RayCluster's nodes, on an API server with a double of KubeRay's operator."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from stead.errors import Invalid, Unready, Unsupported
from stead.kubernetes.ray_clusters import node_templates
from stead.kubernetes.ray_scaling.provider import RayClusterProvider, ray_cluster_provider
from stead.kubernetes.ray_scaling.workers import LAUNCHES
from stead.planner.instances import InstanceState
from stead.scaling.provider import OutOfStock, Unlaunched
from tests.kubernetes.objects import Kubectl, Object
from tests.kubernetes.ray_scaling.clusters import (
    change,
    group,
    instance,
    lost,
    provider_on,
    ray_cluster,
    states,
    written,
)
from tests.kubernetes.ray_scaling.kuberay import KubeRay
from tests.kubernetes.servers.fake import FakeServer
from tests.kubernetes.servers.interface import ApiServer

RAY_CLUSTER = "/rayclusters/vision$"


def launch(provider: RayClusterProvider, *ids: str, kind: str = "gpu") -> None:
    template = next(each for each in provider.catalog() if each.name == kind)
    for id in ids:
        provider.launch(id, template)


# The journey of a node


def test_a_launch_becomes_a_pod_and_then_a_node_until_it_is_retired(
    server: ApiServer, kubectl: Kubectl, kuberay: KubeRay
) -> None:
    kubectl.create(ray_cluster(group()))
    with provider_on(server) as provider:
        launch(provider, "launch-1", "launch-1")
        assert (states(provider), written(kubectl)) == ({"launch-1": "starting"}, (1, []))
        kuberay.settle()
        assert states(provider) == {"launch-1": "starting"}
        (pod,) = kuberay.run_pods()
        found = instance(provider, "launch-1")
        assert (found.state, found.ip, found.kind) == (InstanceState.RUNNING, pod["status"]["podIP"], "gpu")
        provider.retire(found)
        assert (states(provider), written(kubectl)) == ({"launch-1": "ending"}, (0, [pod["metadata"]["name"]]))
        kuberay.settle()
        assert (states(provider), written(kubectl)) == ({}, (0, []))
        provider.retire(found)
        assert LAUNCHES not in kubectl.get("RayCluster", "vision")["metadata"].get("annotations", {})


def test_another_autoscaler_continues_with_the_same_nodes(
    server: ApiServer, kubectl: Kubectl, kuberay: KubeRay
) -> None:
    kubectl.create(ray_cluster(group()))
    with provider_on(server) as first:
        launch(first, "launch-1", "launch-2")
        kuberay.settle()
        kuberay.run_pods()
        before = first.list()
    with provider_on(server) as second:
        assert list(second.list()) == list(before)


def test_workers_that_nobody_launched_are_listed_by_the_names_of_their_pods(
    server: ApiServer, kubectl: Kubectl, kuberay: KubeRay
) -> None:
    kubectl.create(ray_cluster(group(least=1)))
    kuberay.settle()
    with provider_on(server) as provider:
        (first,) = states(provider)
        change(kubectl, "workerGroupSpecs/0/replicas", 2)  # what a person does
        kuberay.settle()
        kuberay.run_pods()
        assert states(provider).keys() == {pod["metadata"]["name"] for pod in kuberay.pods()}
        provider.retire(instance(provider, first))
        kuberay.settle()
        assert len(states(provider)) == len(kuberay.pods()) == 1
        assert written(kubectl) == (1, []) and first not in states(provider)


def test_a_node_of_the_minimum_that_is_retired_is_replaced(
    server: ApiServer, kubectl: Kubectl, kuberay: KubeRay
) -> None:
    kubectl.create(ray_cluster(group(least=1)))
    kuberay.settle()
    with provider_on(server) as provider:
        (first,) = states(provider)
        provider.retire(instance(provider, first))
        kuberay.settle()
        (second,) = states(provider)
        assert second != first and written(kubectl) == (1, [])


def test_a_replica_of_two_hosts_is_two_nodes(server: ApiServer, kubectl: Kubectl, kuberay: KubeRay) -> None:
    kubectl.create(ray_cluster(group(hosts=2, most=2)))
    with provider_on(server) as provider:
        assert [(each.count_min, each.count_max) for each in provider.catalog()] == [(0, 4)]
        launch(provider, "a", "b")
        assert written(kubectl) == (1, [])
        kuberay.settle()
        kuberay.run_pods()
        assert states(provider) == {"a": "running", "b": "running"}
        provider.retire(instance(provider, "a"))
        kuberay.settle()
        assert states(provider) == {"a": "ending", "b": "running"}
        provider.retire(instance(provider, "b"))
        kuberay.settle()
        assert (states(provider), written(kubectl), kuberay.at_random) == ({}, (0, []), [])


def test_what_others_wrote_into_the_ray_cluster_stays(server: ApiServer, kubectl: Kubectl) -> None:
    cluster = ray_cluster(group("cpu", least=1), group("gpu", idleTimeoutSeconds=5))
    cluster["metadata"]["annotations"] = {"team": "blue"}
    kubectl.create(cluster)
    before = kubectl.get("RayCluster", "vision")
    with provider_on(server) as provider:
        launch(provider, "launch-1")
    after = kubectl.get("RayCluster", "vision")
    assert after["metadata"]["annotations"].pop(LAUNCHES)
    assert after["spec"]["workerGroupSpecs"][1].pop("replicas") == 1
    before["spec"]["workerGroupSpecs"][1].pop("replicas")
    assert after["spec"] == before["spec"]
    assert after["metadata"]["annotations"] == {"team": "blue"}


# Several at once


def test_two_autoscalers_at_once_lose_and_double_nothing(server: ApiServer, kubectl: Kubectl, kuberay: KubeRay) -> None:
    kubectl.create(ray_cluster(group(most=20)))
    with provider_on(server) as one, provider_on(server) as two:
        works = [
            threading.Thread(target=launch, args=(provider, *(f"{name}-{number}" for number in range(4)), "shared"))
            for name, provider in (("one", one), ("two", two))
        ]
        for work in works:
            work.start()
        kuberay.step()
        for work in works:
            work.join()
        kuberay.settle()
        kuberay.run_pods()
        assert list(one.list()) == list(two.list())
        assert written(kubectl) == (9, []) and len(kuberay.pods()) == 9
        ends = [threading.Thread(target=each.retire, args=(found,)) for found in one.list() for each in (one, two)]
        for end in ends:
            end.start()
        for end in ends:
            end.join()
        kuberay.settle()
        assert (one.list(), written(kubectl)) == ((), (0, []))
    assert not kuberay.at_random


@pytest.mark.parametrize("status", [409, 429, 500, 503])
def test_a_change_that_the_server_refuses_for_now_is_made_again(
    fake: FakeServer, kubectl: Kubectl, status: int
) -> None:
    kubectl.create(ray_cluster(group()))
    fake.fail_next("PATCH", RAY_CLUSTER, status, times=2)
    with provider_on(fake) as provider:
        launch(provider, "launch-1")
        assert (states(provider), written(kubectl)[0]) == ({"launch-1": "starting"}, 1)


def test_a_change_whose_answer_is_lost_is_made_once(fake: FakeServer, kubectl: Kubectl) -> None:
    kubectl.create(ray_cluster(group()))
    fake.lose_next("PATCH", RAY_CLUSTER)
    with provider_on(fake) as provider:
        launch(provider, "launch-1")
        assert (states(provider), written(kubectl)[0]) == ({"launch-1": "starting"}, 1)


def test_a_list_of_what_is_known_writes_nothing(fake: FakeServer, kubectl: Kubectl, kuberay: KubeRay) -> None:
    kubectl.create(ray_cluster(group(least=2)))
    kuberay.settle()
    with provider_on(fake) as provider:
        provider.list()
        before = fake.count("PATCH", RAY_CLUSTER)
        provider.list()
        assert fake.count("PATCH", RAY_CLUSTER) == before


# What goes wrong


def failing(kind: str) -> Callable[[KubeRay, Object], None]:
    """A status of a pod."""
    statuses: dict[str, Object] = {
        "no image": {
            "containerStatuses": [
                {"name": "ray-worker", "state": {"waiting": {"reason": "ImagePullBackOff", "message": "not found"}}}
            ]
        },
        "a pull that is tried again": {
            "containerStatuses": [{"name": "ray-worker", "state": {"waiting": {"reason": "ErrImagePull"}}}]
        },
        "out of memory": {
            "phase": "Failed",
            "containerStatuses": [
                {"name": "ray-worker", "state": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}}
            ],
        },
        "a crash loop": {
            "phase": "Running",
            "containerStatuses": [{"name": "ray-worker", "state": {"waiting": {"reason": "CrashLoopBackOff"}}}],
        },
        "no room for a moment": {"conditions": [_unscheduled("2100-01-01T00:00:00Z")]},
        "no room for long": {"conditions": [_unscheduled("2026-01-01T00:00:00Z")]},
    }
    return lambda kuberay, pod: kuberay.set_status(pod, complete(statuses[kind]))


def _unscheduled(since: str) -> Object:
    message = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."
    reason = {"reason": "Unschedulable", "message": message, "lastTransitionTime": since}
    return {"type": "PodScheduled", "status": "False", **reason}


def complete(status: Object) -> Object:
    """With the fields that the real API server demands."""
    image = {"image": "ray:2.60.0", "imageID": "", "ready": False, "restartCount": 0}
    return {
        **status,
        "containerStatuses": [{**image, **each} for each in status.get("containerStatuses", ())],
    }


@pytest.mark.parametrize(
    ("kind", "state", "words"),
    [
        ("no image", "failed", "the container 'ray-worker' of pod POD cannot start: ImagePullBackOff (not found)"),
        ("a pull that is tried again", "starting", "the container 'ray-worker' of pod POD cannot start: ErrImagePull"),
        ("out of memory", "failed", "the container 'ray-worker' of pod POD ended with 137 (OOMKilled)"),
        ("a crash loop", "failed", "the container 'ray-worker' of pod POD cannot start: CrashLoopBackOff"),
        (
            "no room for a moment",
            "starting",
            "no Kubernetes node has room for pod POD: 0/3 nodes are available: 3 Insufficient nvidia.com/gpu.",
        ),
        (
            "no room for long",
            "failed",
            "no Kubernetes node has room for pod POD: 0/3 nodes are available: 3 Insufficient nvidia.com/gpu.",
        ),
    ],
)
def test_a_pod_that_does_not_start_says_why(
    server: ApiServer, kubectl: Kubectl, kuberay: KubeRay, kind: str, state: str, words: str
) -> None:
    kubectl.create(ray_cluster(group()))
    with provider_on(server) as provider:
        launch(provider, "launch-1")
        kuberay.settle()
        (pod,) = kuberay.pods()
        failing(kind)(kuberay, pod)
        found = instance(provider, "launch-1")
        assert (found.state, found.problem) == (state, words.replace("POD", pod["metadata"]["name"]))
        provider.retire(found)
        kuberay.settle()
        provider.list()  # KubeRay has replaced a pod that ended by itself: the replacement goes, too
        kuberay.settle()
        assert (states(provider), kuberay.pods(), written(kubectl)) == ({}, [], (0, []))


def test_a_group_whose_pods_find_no_room_for_long_is_out_of_stock(
    fake: FakeServer, kubectl: Kubectl, kuberay: KubeRay
) -> None:
    kubectl.create(ray_cluster(group()))
    with provider_on(fake) as provider:
        launch(provider, "launch-1")
        kuberay.settle()
        failing("no room for long")(kuberay, kuberay.pods()[0])
        with pytest.raises(OutOfStock, match="no Kubernetes node has room for pod vision-gpu-worker-"):
            launch(provider, "launch-2")


def test_a_quota_of_kubernetes_is_a_stock_out(server: ApiServer, kubectl: Kubectl, kuberay: KubeRay) -> None:
    kubectl.create(ray_cluster(group()))
    kuberay.full = {"gpu"}
    with provider_on(server) as provider:
        launch(provider, "launch-1")
        kuberay.step()
        found = instance(provider, "launch-1")
        assert found.state == InstanceState.FAILED
        assert "KubeRay cannot create its pod" in found.problem and "exceeded quota: gpus" in found.problem
        with pytest.raises(OutOfStock, match=r"KubeRay cannot create pods of the worker group 'gpu': .*exceeded quota"):
            launch(provider, "launch-2")
        provider.retire(found)
        assert (states(provider), written(kubectl)) == ({}, (0, []))


def test_the_maximum_of_a_group_is_kept(server: ApiServer, kubectl: Kubectl) -> None:
    kubectl.create(ray_cluster(group(most=1)))
    with provider_on(server) as provider:
        launch(provider, "launch-1")
        with pytest.raises(Unlaunched, match="the worker group 'gpu' of the RayCluster default/vision has its maximum"):
            launch(provider, "launch-2")
        assert (states(provider), written(kubectl)[0]) == ({"launch-1": "starting"}, 1)


def test_rays_own_autoscaler_is_not_fought(server: ApiServer, kubectl: Kubectl) -> None:
    kubectl.create(ray_cluster(group(least=1)))
    with provider_on(server) as provider:
        (template,) = provider.catalog()
        change(kubectl, "enableInTreeAutoscaling", True)
        for call in (provider.catalog, provider.list, lambda: provider.retire(lost("a"))):
            with pytest.raises(Unsupported, match="enableInTreeAutoscaling: true"):
                call()
        with pytest.raises(Unlaunched, match="enableInTreeAutoscaling: true"):
            provider.launch("launch-1", template)


def test_a_ray_cluster_that_does_not_exist_is_named(server: ApiServer, kubectl: Kubectl) -> None:
    with (
        provider_on(server, "visoin") as provider,
        pytest.raises(Invalid, match="there is no RayCluster default/visoin; `kubectl get rayclusters -n default` lis"),
    ):
        provider.list()


@pytest.mark.parametrize(
    ("method", "path", "status", "words"),
    [
        ("GET", RAY_CLUSTER, 403, "you may not get rayclusters in the namespace 'default'; grant the Role of docs/kub"),
        ("PATCH", RAY_CLUSTER, 403, "you may not patch rayclusters in the namespace 'default'"),
        ("GET", "/pods$", 403, "you may not list pods in the namespace 'default'"),
        ("PATCH", RAY_CLUSTER, 422, "the API server responded 422"),
    ],
)
def test_a_refusal_of_the_api_server_is_one_sentence(
    fake: FakeServer, kubectl: Kubectl, method: str, path: str, status: int, words: str
) -> None:
    cluster = ray_cluster(group())
    kubectl.create(cluster)
    (template,) = node_templates(cluster)
    with provider_on(fake) as provider:
        fake.fail_next(method, path, status)
        with pytest.raises(Unlaunched, match=words) as refusal:
            provider.launch("launch-1", template)
        assert "\n" not in str(refusal.value)
        assert states(provider) == {}


def test_a_server_that_is_gone_is_one_sentence_and_back_again_it_has_what_was_written(
    fake: FakeServer, kubectl: Kubectl
) -> None:
    kubectl.create(ray_cluster(group()))
    with provider_on(fake) as provider:
        launch(provider, "launch-1")
        (template,) = provider.catalog()
        fake.stop_apiserver()
        with pytest.raises(Unready, match=r"cannot connect to the API server at 127.0.0.1"):
            provider.list()
        with pytest.raises(Unlaunched, match="cannot connect to the API server"):
            provider.launch("launch-2", template)
        fake.start_apiserver()
        assert states(provider) == {"launch-1": "starting"}


def test_a_ray_cluster_that_changes_all_the_time_is_given_up(
    fake: FakeServer, kubectl: Kubectl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stead.kubernetes.ray_scaling.provider.TRIES_MAX", 3)
    kubectl.create(ray_cluster(group()))
    fake.fail_next("PATCH", RAY_CLUSTER, 409, times=100)
    with provider_on(fake) as provider, pytest.raises(Unlaunched, match="is changed by others all the time; try again"):
        launch(provider, "launch-1")


# What a cluster's YAML says


def test_the_fields_of_a_clusters_yaml_name_the_ray_cluster_and_prices(server: ApiServer, kubectl: Kubectl) -> None:
    cluster = ray_cluster(group("cpu"), group("gpu"))
    for written_group, price in zip(cluster["spec"]["workerGroupSpecs"], ("1.5", "4"), strict=True):
        written_group["template"]["metadata"]["annotations"] = {"stead/price": price}
    kubectl.create(cluster)
    fields = {"type": "kuberay", "cluster": "vision", "namespace": "default", "prices": {"gpu": 2.5}}
    provider = ray_cluster_provider({**fields, "kubeconfig": str(server.kubeconfig_path)})
    try:
        assert provider.title == "RayCluster default/vision"
        assert {each.name: each.price for each in provider.catalog()} == {"cpu": 1.5, "gpu": 2.5}
    finally:
        provider.close()


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"clutser": "vision"}, "has no field 'clutser' .did you mean 'cluster'"),
        ({}, "needs the name of a RayCluster, for example cluster: vision"),
        ({"cluster": 5}, "the field 'cluster' of the provider must be text such as 'vision', not 5"),
        ({"cluster": "vision", "prices": [1]}, "the field 'prices' of the provider must be a map such as {gpu: 2.5}"),
        ({"cluster": "vision", "prices": {"gpu": -1}}, "the price of 'gpu' must be a number such as 2.5, not -1"),
        ({"cluster": "vision", "kubeconfig": "/nowhere"}, "there is no kubeconfig file /nowhere"),
    ],
)
def test_a_field_that_is_not_valid_is_named(fields: Object, words: str) -> None:
    with pytest.raises(Invalid, match=words):
        ray_cluster_provider({"type": "kuberay", **fields})


def test_a_price_for_an_unknown_group_is_named(fake: FakeServer, kubectl: Kubectl) -> None:
    kubectl.create(ray_cluster(group("large")))
    with (
        provider_on(fake, prices={"larg": 1.0}) as provider,
        pytest.raises(Invalid, match=r"has no worker group 'larg' .did you mean 'large'.. to set a price for"),
    ):
        provider.catalog()
