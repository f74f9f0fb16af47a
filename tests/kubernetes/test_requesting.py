"""What a pod takes from a node, and what a node has: amounts, estimates, host ports and images."""

from __future__ import annotations

from typing import Any

import pytest

from stead.engine.decisions import Placed, Waiting
from stead.engine.facts import AskSubmitted
from stead.errors import Invalid
from stead.kubernetes.fields import Fields
from stead.kubernetes.nodes import node_of
from stead.kubernetes.podspec import ask_of
from stead.kubernetes.requesting import image_name, images_of, needs_of, ports_of
from stead.language.asks import HostPort
from stead.language.labels import Labels
from stead.language.nodes import Node
from stead.language.resources import Resources
from stead.language.taints import Effect, Taint
from tests.kubernetes.upstream import cluster, named, pod

# -- nodes


def test_a_node() -> None:
    node = {
        "metadata": {"name": "n1", "labels": {"zone": "a", "empty": ""}},
        "spec": {"taints": [{"key": "gpu", "value": "yes", "effect": "NoExecute"}], "unschedulable": True},
        "status": {
            "allocatable": {"cpu": "3920m", "memory": "2Gi", "nvidia.com/gpu": "8", "pods": "110", "hugepages-2Mi": "0"}
        },
    }
    assert node_of(node) == Node(
        "n1",
        Resources.of({"CPU": "3.92", "memory": 2**31, "nvidia.com/gpu": 8, "pods": 110}),
        Labels({"zone": "a", "empty": ""}),
        (Taint("gpu", "yes", Effect.NO_EXECUTE), Taint("node.kubernetes.io/unschedulable")),
        name="n1",
    )


def test_a_cordon_that_is_a_taint_already_is_one_taint() -> None:
    taint = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule", "timeAdded": "2024-01-01T00:00:00Z"}
    node = {"metadata": {"name": "n1"}, "spec": {"taints": [taint], "unschedulable": True}}
    assert node_of(node).taints == (Taint("node.kubernetes.io/unschedulable"),)


@pytest.mark.parametrize(
    ("node", "words"),
    [
        ({"metadata": {}}, "must have a name"),
        ({"metadata": {"name": "n", "labels": ["zone"]}}, "'labels' must be an object"),
        ({"metadata": {"name": "n"}, "spec": {"taints": "gpu"}}, "'taints' must be a list"),
        ({"metadata": {"name": "n"}, "spec": {"taints": ["gpu"]}}, "every item of 'taints' must be an object"),
        ({"metadata": {"name": "n"}, "spec": {"taints": [{"key": "a", "effect": "NoSchedul"}]}}, "did you mean"),
        ({"metadata": {"name": "n"}, "status": {"allocatable": {"cpu": "lots"}}}, "not a quantity"),
    ],
)
def test_a_node_that_cannot_be_read(node: Fields, words: str) -> None:
    with pytest.raises(Invalid, match=words):
        node_of(node)


def test_a_node_without_a_number_of_pods_takes_none() -> None:
    assert node_of({"metadata": {"name": "n1"}}).capacity == Resources()


def test_a_node_lists_every_name_of_its_images() -> None:
    images = [
        {"names": ["example.com/web@sha256:1", "example.com/web:2"], "sizeBytes": 5000},
        {"names": None, "sizeBytes": 1},
        {"names": ["example.com/db:1"]},
    ]
    node = node_of({"metadata": {"name": "n1"}, "status": {"images": images}})
    assert node.images == (("example.com/web@sha256:1", 5000), ("example.com/web:2", 5000), ("example.com/db:1", 0))


# -- amounts


def container(cpu: str, restart: str | None = None, **more: Any) -> Fields:
    return {"resources": {"requests": {"cpu": cpu, **more}}, "restartPolicy": restart}


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({}, {}),
        ({"containers": None}, {}),
        ({"containers": [{"resources": {"limits": {"cpu": "4"}}}]}, {}),
        ({"containers": [container("1"), container("500m", memory="1Gi")]}, {"CPU": "1.5", "memory": "1Gi"}),
        ({"containers": [container("1")], "initContainers": [container("3"), container("2")]}, {"CPU": 3}),
        ({"containers": [container("4")], "initContainers": [container("3"), container("2")]}, {"CPU": 4}),
        ({"containers": [container("1")], "initContainers": [container("2", "Always"), container("2")]}, {"CPU": 4}),
        ({"containers": [container("1")], "initContainers": [container("2"), container("2", "Always")]}, {"CPU": 3}),
        ({"containers": [container("3")], "initContainers": [container("2", "Always")]}, {"CPU": 5}),
        (
            {"containers": [container("1")], "overhead": {"cpu": "250m", "memory": "1Mi"}},
            {"CPU": "1.25", "memory": "1Mi"},
        ),
        ({"containers": [container("1")], **container("6", memory="1Gi", gpu="9")}, {"CPU": 6, "memory": "1Gi"}),
        ({"containers": [container("0.1m", memory="100m")]}, {"CPU": "0.001", "memory": 1}),
        ({"containers": [container("0", **{"nvidia.com/gpu": "2"})]}, {"nvidia.com/gpu": 2}),
    ],
)
def test_what_a_pod_takes(spec: Fields, expected: dict[str, Any]) -> None:
    assert needs_of(spec)[0] == Resources.of({**expected, "pods": 1})


def test_a_node_takes_a_limited_number_of_pods() -> None:
    engine = cluster([{"metadata": {"name": "n1"}}])
    engine.apply(*(AskSubmitted(ask_of(named(pod(), f"pod-{number}"))) for number in range(111)))
    decisions = engine.decide()
    assert [type(decision) for decision in decisions] == [Placed] * 110 + [Waiting]


def test_a_container_cannot_request_pods() -> None:
    assert needs_of({"containers": [container("0", pods="7")]})[0] == Resources.of({"pods": 1})


@pytest.mark.parametrize(
    ("requests", "words"),
    [({"cpu": "lots"}, "'cpu' 'lots' is not a quantity"), ({"memory": "-1"}, "must not be negative")],
)
def test_an_amount_that_is_not_valid(requests: Fields, words: str) -> None:
    spec = {"containers": [{"resources": {"requests": {**requests, "nvidia.com/gpu": "1"}}}]}
    with pytest.raises(Invalid, match=words):
        needs_of(spec)
    assert needs_of(spec, lenient=True)[0] == Resources.of({"nvidia.com/gpu": 1, "pods": 1})


# -- estimates


def requesting(**requests: str) -> Fields:
    return {"resources": {"requests": requests}}


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({}, {}),
        ({"containers": [{}]}, {"CPU": "100m", "memory": "200Mi"}),
        ({"containers": [{}, {}]}, {"CPU": "200m", "memory": "400Mi"}),
        ({"containers": [requesting(cpu="1", memory="1Gi")]}, {}),
        ({"containers": [requesting(cpu="0", memory="0")]}, {}),
        ({"containers": [requesting(cpu="1")]}, {"memory": "200Mi"}),
        ({"containers": [requesting(cpu="1", memory="1Gi"), requesting(memory="1Gi")]}, {"CPU": "100m"}),
        # An init container that runs alone needs no more than the containers after it.
        ({"containers": [requesting(cpu="1", memory="1Gi")], "initContainers": [{}]}, {}),
        ({"containers": [requesting(cpu="50m", memory="1Gi")], "initContainers": [{}]}, {"CPU": "50m"}),
        (
            {"containers": [requesting(cpu="1", memory="1Gi")], "initContainers": [{"restartPolicy": "Always"}]},
            {"CPU": "100m", "memory": "200Mi"},
        ),
        ({"containers": [{}], "overhead": {"cpu": "1"}}, {"CPU": "100m", "memory": "200Mi"}),
        # Requests of the pod as a whole.
        ({"containers": [{}], **requesting(cpu="1", memory="1Gi")}, {}),
        ({"containers": [{}, {}], **requesting(cpu="1")}, {"memory": "400Mi"}),
        ({"containers": [requesting(memory="1Gi"), {}], **requesting(cpu="1")}, {}),
        ({"containers": [{}], "overhead": {"memory": "1Gi"}, **requesting(cpu="1")}, {}),
        ({"containers": [{}], **requesting(**{"hugepages-2Mi": "2Mi"})}, {"CPU": "100m", "memory": "200Mi"}),
        ({"containers": [{}], **requesting(**{"ephemeral-storage": "1"})}, {"CPU": "100m", "memory": "200Mi"}),
    ],
    ids=str,
)
def test_what_scores_assume_of_containers_without_requests(spec: Fields, expected: dict[str, Any]) -> None:
    assert needs_of(spec)[1] == Resources.of(expected)


# -- host ports


@pytest.mark.parametrize(
    ("port", "expected"),
    [
        ({"containerPort": 80}, ()),
        ({"containerPort": 80, "hostPort": 0}, ()),
        ({"hostPort": 80}, (HostPort(80),)),
        ({"hostPort": 80, "protocol": "UDP", "hostIP": "10.0.0.1"}, (HostPort(80, "UDP", "10.0.0.1"),)),
        ({"hostPort": 80, "protocol": "", "hostIP": "0.0.0.0"}, (HostPort(80, "TCP", ""),)),
    ],
)
def test_a_host_port(port: Fields, expected: tuple[HostPort, ...]) -> None:
    assert ports_of({"containers": [{"ports": [port]}]}) == expected


def test_ports_of_containers_that_end_before_the_pod_runs_do_not_count() -> None:
    def with_port(number: int, **more: Any) -> Fields:
        return {"ports": [{"hostPort": number}], **more}

    spec = {
        "containers": [with_port(1), with_port(2), with_port(1)],
        "initContainers": [with_port(3), with_port(4, restartPolicy="Always"), with_port(5, restartPolicy="OnFailure")],
        "ephemeralContainers": [with_port(6)],
    }
    assert ports_of(spec) == (HostPort(4), HostPort(1), HostPort(2))


def test_a_host_port_must_be_a_number() -> None:
    with pytest.raises(Invalid, match="'hostPort' must be a whole number"):
        ports_of({"containers": [{"ports": [{"hostPort": "80"}]}]})


# -- images


@pytest.mark.parametrize(
    ("reference", "name"),
    [
        ("web", "web:latest"),
        ("web:1", "web:1"),
        ("example.com:5000/web", "example.com:5000/web:latest"),
        ("example.com:5000/web:1", "example.com:5000/web:1"),
        ("example.com/web@sha256:abc", "example.com/web@sha256:abc"),
        ("", ":latest"),
    ],
)
def test_the_name_of_an_image(reference: str, name: str) -> None:
    assert image_name(reference) == name


def test_a_pod_has_an_image_for_each_container_and_image_volume() -> None:
    spec = {
        "containers": [{"image": "web"}, {"image": "web"}, {}],
        "initContainers": [{"image": "init:1"}],
        "volumes": [{"name": "a", "image": {"reference": "model:2"}}, {"name": "b", "emptyDir": {}}],
    }
    assert images_of(spec) == ("init:1", "web:latest", "web:latest", ":latest", "model:2")
