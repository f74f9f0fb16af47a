"""KubeRay's worker groups as templates: the resources, labels and taints that a Ray node of a group would have."""

from __future__ import annotations

from typing import Any

import pytest

from stead.errors import Invalid
from stead.kubernetes.ray_clusters import node_templates
from stead.language.nodes import NodeTemplate
from stead.language.resources import Resources
from stead.language.taints import Effect, Taint

MAX = 2**31 - 1


def group(limits: dict[str, str] | None = None, requests: dict[str, str] | None = None, **more: Any) -> dict[str, Any]:
    args = ['eval "stead start --labels-file=/etc/podinfo/labels"']
    resources = {"limits": limits or {}, "requests": requests or {}}
    containers = [{"name": "ray-worker", "args": args, "resources": resources}]
    return {"groupName": "small", "rayStartParams": {}, "template": {"spec": {"containers": containers}}, **more}


def template_of(group: dict[str, Any]) -> NodeTemplate:
    cluster = {"metadata": {"name": "vision"}, "spec": {"workerGroupSpecs": [group]}}
    (found,) = node_templates(cluster)
    return found


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (group({"cpu": "4", "memory": "8Gi"}), {"CPU": 4, "memory": "8Gi"}),
        (group({"cpu": "1500m"}), {"CPU": 2}),
        (group({}, {"cpu": "3", "memory": "8Gi"}), {"CPU": 3}),
        (group({"cpu": "2"}, {"cpu": "3"}), {"CPU": 2}),
        (group({"cpu": "4", "nvidia.com/gpu": "2"}), {"CPU": 4, "GPU": 2}),
        (group({"amd.com/gpu": "1"}), {"GPU": 1}),
        (group({"google.com/tpu": "4"}), {"TPU": 4}),
        (group({"aws.amazon.com/neuroncore": "2"}), {"neuron_cores": 2}),
        (group({"cpu": "4"}, rayStartParams={"num-cpus": "8", "num-gpus": "1", "memory": "1024"}), None),
        (group({"cpu": "4"}, rayStartParams={"resources": "'{\"disk\": 2}'"}), {"CPU": 4, "disk": 2}),
        (group({"cpu": "4"}, rayStartParams={"resources": '"{\\"disk\\": 2}"'}), {"CPU": 4, "disk": 2}),
        (group({"cpu": "4"}, resources={"CPU": "6", "disk": "3", "GPU": "1"}), {"CPU": 6, "disk": 3, "GPU": 1}),
        (group(rayStartParams={"resources": "'{\"a\": 1}'"}, resources={"b": "1"}), {"b": 1}),
    ],
)
def test_resources_are_what_kuberay_passes_to_ray(given: dict[str, Any], expected: dict[str, Any] | None) -> None:
    if expected is None:
        expected = {"CPU": 8, "GPU": 1, "memory": 1024}
    assert template_of(given).capacity == Resources.of(expected)


def test_only_the_first_container_counts() -> None:
    given = group({"cpu": "4"})
    given["template"]["spec"]["containers"].append({"name": "sidecar", "resources": {"limits": {"cpu": "9"}}})
    assert template_of(given).capacity == Resources.of({"CPU": 4})


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({}, (0, MAX)),
        ({"minReplicas": 1, "maxReplicas": 5}, (1, 5)),
        ({"minReplicas": 1, "maxReplicas": 5, "numOfHosts": 4}, (4, 20)),
        ({"minReplicas": 1, "maxReplicas": 5, "suspend": True}, (0, 0)),
    ],
)
def test_counts_are_nodes_not_replicas(more: dict[str, Any], expected: tuple[int, int]) -> None:
    found = template_of(group(**more))
    assert (found.count_min, found.count_max) == expected


def test_labels_are_those_of_the_pods_and_the_groups_own_override_them() -> None:
    given = group(labels={"zone": "b"}, rayStartParams={"labels": "zone=c,disk=ssd"})
    given["template"]["metadata"] = {"labels": {"zone": "a", "team": "blue", "ray.io/group": "mine"}}
    assert dict(template_of(given).labels) == {
        "zone": "b",
        "team": "blue",
        "ray.io/cluster": "vision",
        "ray.io/group": "small",
        "ray.io/node-group": "small",
        "ray.io/node-type": "worker",
    }


def test_labels_of_the_pods_count_only_if_the_nodes_read_them() -> None:
    given = group(labels={"zone": "b"})
    given["template"]["metadata"] = {"labels": {"team": "blue"}}
    given["template"]["spec"]["containers"][0]["args"] = ["ray start"]
    assert dict(template_of(given).labels) == {"zone": "b", "ray.io/node-group": "small"}


def test_labels_of_the_start_parameters_count_if_the_group_has_none() -> None:
    assert template_of(group(rayStartParams={"labels": "zone=c,disk=ssd"})).labels["disk"] == "ssd"


def test_taints_are_in_an_annotation_of_the_template() -> None:
    given = group()
    given["template"]["metadata"] = {"annotations": {"stead/taints": "gpu_node=true,spot:NoExecute"}}
    assert template_of(given).taints == (Taint("gpu_node", "true"), Taint("spot", "", Effect.NO_EXECUTE))
    assert template_of(group()).taints == ()


def test_the_price_is_in_an_annotation_of_the_template() -> None:
    given = group()
    given["template"]["metadata"] = {"annotations": {"stead/price": "2.5"}}
    assert template_of(given).price == 2.5
    assert template_of(group()).price == 0


def test_a_cluster_without_worker_groups_has_no_templates() -> None:
    assert node_templates({"metadata": {"name": "vision"}, "spec": {"headGroupSpec": {}}}) == ()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (group({"cpu": "many"}), "the worker group 'small': .*'many'"),
        (group(rayStartParams={"resources": "disk"}), "rayStartParams.resources must be a JSON map"),
        (
            group(template={"metadata": {"annotations": {"stead/taints": "a:Never"}}}),
            "the worker group 'small': the annotation 'stead/taints': taint effect 'Never' is unknown",
        ),
        (
            group(template={"metadata": {"annotations": {"stead/price": "cheap"}}}),
            "the worker group 'small': the annotation 'stead/price' must be a number such as 2.5, not 'cheap'",
        ),
        (group(maxReplicas="five"), "the worker group 'small': .*maxReplicas"),
    ],
)
def test_what_cannot_be_read_is_refused_in_one_sentence_that_names_the_group(given: dict[str, Any], words: str) -> None:
    with pytest.raises(Invalid, match=words) as refusal:
        template_of(given)
    assert "\n" not in str(refusal.value)
