"""What the oracle for Kubernetes says a pod requests: quantities, containers of all kinds, host ports.

Rule: a case is a sentence, the spec of a pod and the integers that kube-scheduler compares.
"""

from __future__ import annotations

from fractions import Fraction

import pytest

from tests.kubernetes.kube_cluster import completed
from tests.kubernetes.kube_requests import host_ports, quantity, requested
from tests.kubernetes.kube_shorthand import Object, container, port


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", "0"),
        ("100m", "1/10"),
        ("1.5", "3/2"),
        (".5", "1/2"),
        ("1.", "1"),
        ("+1", "1"),
        ("-1k", "-1000"),
        ("1e3", "1000"),
        ("1E3", "1000"),
        ("1E", "1" + "0" * 18),
        ("12e-1", "6/5"),
        ("1Ki", "1024"),
        ("1.5Gi", "1610612736"),
        ("1k", "1000"),
        ("3u", "3/1000000"),
        ("0.1n", "1/1000000000"),
        ("9Ei", str(2**63 - 1)),
        (7, "7"),
    ],
)
def test_quantities_are_exact(text: str | int, value: str) -> None:
    assert quantity(text) == Fraction(value)


@pytest.mark.parametrize("text", ["", "m", "1K", "1mi", "1 Gi", "e3", "1e", "0x1", "1.2.3"])
def test_what_is_not_a_quantity_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a quantity"):
        quantity(text)


def sidecar(**requests: str) -> Object:
    return {**container(**requests), "restartPolicy": "Always"}


REQUESTS: dict[str, tuple[Object, dict[str, int]]] = {
    "containers add up and round up once": (
        {"containers": [container(cpu="0.5m", memory="0.5"), container(cpu="100m", memory="0.5")]},
        {"cpu": 101, "memory": 1},
    ),
    "an init container counts where it needs more than all containers": (
        {
            "containers": [container(cpu="1", memory="1")] * 2,
            "initContainers": [container(cpu="3"), container(memory="1")],
        },
        {"cpu": 3000, "memory": 2},
    ),
    "a sidecar runs beside the containers": (
        {"containers": [container(cpu="1")], "initContainers": [sidecar(cpu="1")]},
        {"cpu": 2000},
    ),
    "an init container runs beside the sidecars before it only": (
        {
            "containers": [container(cpu="1")],
            "initContainers": [container(cpu="4"), sidecar(cpu="1"), container(cpu="2")],
        },
        {"cpu": 4000},
    ),
    "a sidecar before an init container adds to it": (
        {"containers": [container(cpu="1")], "initContainers": [sidecar(cpu="2"), container(cpu="3")]},
        {"cpu": 5000},
    ),
    "overhead comes on top": ({"containers": [container(cpu="1")], "overhead": {"cpu": "250m"}}, {"cpu": 1250}),
    "what the pod requests as a whole replaces its containers": (
        {"containers": [container(cpu="1", memory="5")], "resources": {"requests": {"cpu": "3"}}},
        {"cpu": 3000, "memory": 5},
    ),
    "a limit of the pod as a whole is its request if no container requests the resource": (
        {"containers": [container(cpu="1")], "resources": {"limits": {"cpu": "3", "memory": "7"}}},
        {"cpu": 1000, "memory": 7},
    ),
    "hugepages and extended resources count, other names do not": (
        {"containers": [{"resources": {"requests": {"hugepages-2Mi": "2Mi", "a.io/b": "1", "b": "1", "pods": "9"}}}]},
        {"hugepages-2Mi": 2**21, "a.io/b": 1},
    ),
}


@pytest.mark.parametrize("sentence", REQUESTS)
def test_requests(sentence: str) -> None:
    spec, expected = REQUESTS[sentence]
    assert requested(completed({"spec": spec})) == expected


def test_init_containers_hold_no_host_ports_and_sidecars_do() -> None:
    (plain,) = port(80)["containers"]
    assert host_ports({"spec": {"initContainers": [plain]}}) == set()
    assert host_ports({"spec": {"initContainers": [{**plain, "restartPolicy": "Always"}]}}) == {("0.0.0.0", "TCP", 80)}
