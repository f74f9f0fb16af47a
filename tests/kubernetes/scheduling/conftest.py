"""The clusters of these tests: a fake API server for each test, or the real one, emptied after each test.

Rule: a test that uses `cluster` runs against both servers; one that needs what only the fake has uses `fake_cluster`,
and its docstring says what that is.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.kubernetes.scheduling.cluster import USERS, ClusterUnderTest
from tests.kubernetes.scheduling.recorded import AUDIT_POLICY
from tests.kubernetes.servers.fake import FakeServer
from tests.kubernetes.servers.real import RealServer, missing

BOTH = ["fake", pytest.param("real", marks=pytest.mark.kube)]


class RealServerWithAudit:
    """A real server and its audit log."""

    def __init__(self, folder: Path) -> None:
        self.audit_log = folder / "audit.log"
        policy = folder / "audit-policy.yaml"
        policy.write_text(AUDIT_POLICY, encoding="utf-8")
        flags = [f"--audit-policy-file={policy}", f"--audit-log-path={self.audit_log}"]
        flags.append("--feature-gates=GenericEphemeralVolume=true")  # in 1.20 an alpha feature
        self.server = RealServer(USERS, [*flags, "--delete-collection-workers=8"])


@pytest.fixture(scope="session")
def real_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealServerWithAudit]:
    if why := missing():
        pytest.skip(why)
    found = RealServerWithAudit(tmp_path_factory.mktemp("audit"))
    with found.server:
        yield found


@contextmanager
def fresh_cluster(request: pytest.FixtureRequest, kind: str, folder: Path) -> Iterator[ClusterUnderTest]:
    """An empty cluster on a new fake server, or on the real one."""
    with ExitStack() as stack:
        if kind == "fake":
            fake = stack.enter_context(FakeServer(USERS, require_token=True))
            yield stack.enter_context(ClusterUnderTest(fake, folder))
            return
        real: RealServerWithAudit = request.getfixturevalue("real_server")
        cluster = stack.enter_context(ClusterUnderTest(real.server, folder, real.audit_log))
        try:
            yield cluster
        finally:
            cluster.end_schedulers()
            cluster.empty()


@pytest.fixture(params=BOTH)
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ClusterUnderTest]:
    with fresh_cluster(request, request.param, tmp_path) as found:
        yield found


@pytest.fixture
def fake_cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ClusterUnderTest]:
    with fresh_cluster(request, "fake", tmp_path) as found:
        yield found


@pytest.fixture
def real_cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ClusterUnderTest]:
    with fresh_cluster(request, "real", tmp_path) as found:
        yield found


@pytest.fixture(scope="module", params=BOTH)
def long_lived_cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ClusterUnderTest]:
    """One cluster for all tests of a module, with one scheduler that runs all the time."""
    with fresh_cluster(request, request.param, tmp_path_factory.mktemp("cluster")) as found:
        found.scheduler().wait_until_leading()
        yield found


@pytest.fixture
def shared_cluster(long_lived_cluster: ClusterUnderTest) -> Iterator[ClusterUnderTest]:
    """The same, empty at the start of each test."""
    yield long_lived_cluster
    long_lived_cluster.empty()
    long_lived_cluster.running[0].wait_until_it_knows(nodes=0, pods=0)
