"""What tests may do to the real API server: stop, kill and restart it, compact its etcd, and call it as any user."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kubernetes.objects import ApiError, Kubectl, pod
from tests.kubernetes.servers.real import RealServer, missing

pytestmark = pytest.mark.kube

HOLDER = """
import sys
from tests.kubernetes.servers.real import RealServer
with RealServer() as server:
    print(server.process_ids, server.folder, sep="|", flush=True)
    sys.stdin.read()
"""


@pytest.fixture(scope="module")
def server() -> Iterator[RealServer]:
    if why := missing():
        pytest.skip(why)
    with RealServer(users={"stead": ["schedulers"]}) as server:
        yield server


@pytest.fixture
def kubectl(server: RealServer) -> Iterator[Kubectl]:
    with Kubectl(server) as kubectl:
        yield kubectl


def test_objects_survive_every_restart(server: RealServer, kubectl: Kubectl) -> None:
    url, uid = server.url, kubectl.create(pod("survivor"))["metadata"]["uid"]
    server.stop_apiserver()
    with pytest.raises(ConnectionError):
        kubectl.get("Pod", "survivor")
    server.start_apiserver()
    server.kill_apiserver()
    server.start_apiserver()
    server.restart_etcd()
    assert kubectl.get("Pod", "survivor")["metadata"]["uid"] == uid
    assert server.url == url


def test_a_compacted_version_is_expired(server: RealServer, kubectl: Kubectl) -> None:
    version = kubectl.create(pod("compacted"))["metadata"]["resourceVersion"]
    kubectl.patch("Pod", "compacted", {"metadata": {"labels": {"a": "b"}}})
    server.compact()
    with kubectl.watch("Pod", resourceVersion=version) as events:
        assert next(events)["object"]["reason"] == "Expired"


def test_another_user_may_do_nothing_without_a_role(server: RealServer) -> None:
    with Kubectl(server, "stead") as stead, pytest.raises(ApiError) as caught:
        stead.list("Pod")
    assert caught.value.status == 403


def test_its_processes_die_with_the_process_that_started_them(server: RealServer, tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={"PATH": "/usr/bin:/bin", "HOME": str(Path.home()), "TMPDIR": str(tmp_path)},
    ) as holder:
        assert holder.stdout
        ids, _, _folder = holder.stdout.readline().partition("|")
        started = [Path("/proc") / number for number in ids.strip("[]()").split(", ")]
        assert len(started) == 2 and all(path.exists() for path in started)
        holder.kill()
    with Kubectl(server) as kubectl:
        kubectl.wait_until(lambda: not any(path.exists() and not _is_zombie(path) for path in started))


def _is_zombie(process: Path) -> bool:
    try:
        return (process / "stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True
