"""The API servers of these tests: a fake one for each test, or a real one with KubeRay's resource, emptied after each.

Rule: a test that uses `server` runs against both; one that needs what only the fake server has uses `fake`.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.kubernetes.custom_resources import RAY_CLUSTERS, installed
from tests.kubernetes.objects import Kubectl
from tests.kubernetes.ray_scaling.clusters import ACCOUNT
from tests.kubernetes.ray_scaling.kuberay import KubeRay
from tests.kubernetes.servers.fake import FakeServer
from tests.kubernetes.servers.interface import ApiServer
from tests.kubernetes.servers.real import RealServer, missing

USERS = {ACCOUNT: ["system:serviceaccounts", "system:authenticated"]}


@pytest.fixture(scope="package")
def real() -> Iterator[RealServer]:
    if why := missing():
        pytest.skip(why)
    with RealServer(users=USERS) as server, Kubectl(server) as kubectl, installed(kubectl, RAY_CLUSTERS):
        yield server


@pytest.fixture
def fake() -> Iterator[FakeServer]:
    with FakeServer(users=USERS) as server:
        yield server


@pytest.fixture(params=["fake", pytest.param("real", marks=pytest.mark.kube)])
def server(request: pytest.FixtureRequest) -> Iterator[ApiServer]:
    found: ApiServer = request.getfixturevalue(request.param)
    yield found
    with Kubectl(found) as kubectl:
        for kind in ("RayCluster", "Pod"):
            for each in kubectl.list(kind):
                kubectl.delete(kind, each["metadata"]["name"], each["metadata"]["namespace"], grace_seconds=0)


@pytest.fixture
def kubectl(request: pytest.FixtureRequest) -> Iterator[Kubectl]:
    name = "server" if "server" in request.fixturenames else "fake"
    with Kubectl(request.getfixturevalue(name)) as found:
        yield found


@pytest.fixture
def kuberay(kubectl: Kubectl) -> KubeRay:
    return KubeRay(kubectl)
