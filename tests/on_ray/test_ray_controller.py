"""The controller on a real cluster: killed at any moment, it loses nothing, and there is never more than one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import ray

import stead
from stead.journal import Journal, Superseded
from stead.operate.audit import Author
from stead.operate.changes import NodeChange
from stead.ray.control.passes import FULL, GENERATIONS_MAX, PASSES_MAX, POOL
from stead.ray.local.local_cluster import LocalCluster
from stead.ray.remote_desk import remote_desk
from stead.ray.submit.connection import connection
from stead.ray.submit.core_worker import check_ray
from stead.ray.wire.gcs import ControlStore
from tests.on_ray.conftest import ClusterOf
from tests.on_ray.waiting import wait_for

ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import the tests

pytestmark = pytest.mark.long

TWO_NODES = [{"num_cpus": 2}, {"num_cpus": 2, "labels": {"zone": "a"}}]


def _where(seconds: float = 0.0) -> str:
    threading.Event().wait(seconds)  # stands for work
    return str(ray.get_runtime_context().get_node_id())


class _Actor:
    def where(self) -> str:
        return str(ray.get_runtime_context().get_node_id())


where: Any = ray.remote(_where)
Actor: Any = ray.remote(_Actor)


@pytest.fixture(scope="module")
def cluster(cluster_of: ClusterOf) -> Iterator[LocalCluster]:
    started = cluster_of(TWO_NODES)
    stead.init(started.address, namespace="tests", log_to_driver=False, logging_level="error")
    ray.get([where.remote() for _ in range(4)])
    yield started
    ray.shutdown()


@pytest.fixture
def ids(cluster: LocalCluster) -> list[str]:
    return [node.node_id for node in cluster.nodes]


def controller_pid() -> int:
    return int(connection().ask("hello")["pid"])


def kill_controller() -> None:
    """Kill it with SIGKILL, and wait until it answers again."""
    os.kill(controller_pid(), signal.SIGKILL)
    stead.nodes()


def pass_names() -> list[str]:
    return [name for name in ray.cluster_resources() if name.startswith("stead.") and "_group_" not in name]


class TestAfterAKill:
    def test_taints_labels_and_pending_work_are_restored(self, ids: list[str]) -> None:
        stead.taint(ids[1], {"mine": "yes"}, owner="me", for_s=600)
        stead.label(ids[0], {"disk": "ssd"})
        waiting = [where.options(label_selector={"later": "yes"}).remote() for _ in range(3)]
        kill_controller()
        nodes = {node.id: node for node in stead.nodes()}
        assert [str(taint) for taint in nodes[ids[1]].taints] == ["mine=yes"]
        assert nodes[ids[1]].ends[0].owner == "me"
        assert nodes[ids[1]].ends[0].until is not None
        assert nodes[ids[0]].labels["disk"] == "ssd"
        assert nodes[ids[0]].sources["disk"] == "run time"
        assert set(ray.get([where.remote() for _ in range(8)])) == {ids[0]}
        assert not ray.wait(waiting, timeout=0)[0]
        stead.label(ids[0], {"later": "yes"})
        assert set(ray.get(waiting, timeout=60)) == {ids[0]}
        stead.untaint(ids[1], ["mine"])
        stead.label(ids[0], remove=["disk", "later"])

    def test_a_change_in_progress_is_carried_out(self, ids: list[str]) -> None:
        """The caller only notices a pause; its change is in effect when the call returns."""
        pid = controller_pid()
        change = NodeChange(ids[1], (stead.Taint("mid", "air"),))
        call = connection().controller.desk.remote("change", (change, Author("tester")))
        os.kill(pid, signal.SIGKILL)
        ray.get(call, timeout=60)
        assert "mid=air" in [str(taint) for node in stead.nodes() if node.id == ids[1] for taint in node.taints]
        assert set(ray.get([where.remote() for _ in range(8)])) == {ids[0]}
        stead.untaint(ids[1], ["mid"])

    def test_a_taint_with_a_duration_ends(self, ids: list[str]) -> None:
        """Also across a restart."""
        stead.taint(ids[1], {"brief": "yes"}, for_s=3.0)
        kill_controller()
        wait_for(lambda: not any(node.taints for node in stead.nodes()), 60, "the end of the taint")
        assert "untainted brief=yes: expired" in [event.text for event in stead.events()]

    def test_the_audit_continues_and_an_earlier_change_can_be_undone(self, ids: list[str]) -> None:
        """Also across a restart."""
        stead.taint(ids[1], {"kept": "yes"}, owner="me")
        kill_controller()
        desk = remote_desk()
        (entry,) = [each for each in desk.audit(0, 1000) if "kept:no-schedule" in each.after["taints"]]
        assert entry.after["taints"]["kept:no-schedule"]["owner"] == "me"
        assert desk.undo(entry.number, Author("tester")).node.taints == ()
        assert desk.verify() > entry.number

    def test_events_continue_with_the_next_number(self, ids: list[str]) -> None:
        stead.label(ids[0], {"seen": "once"})
        last = stead.events()[-1]
        kill_controller()
        assert stead.events(after=last.number - 1)[0] == last
        stead.label(ids[0], remove=["seen"])
        assert [event.kind for event in stead.events(after=last.number)] == ["labelled"]


class TestThereIsOne:
    def test_an_older_controller_can_no_longer_write_or_grant(self, cluster: LocalCluster, tmp_path: Path) -> None:
        path = tmp_path / "journal.sqlite"
        with Journal.open(path) as old, Journal.open(path):
            with pytest.raises(Superseded):
                old.check()
            with pytest.raises(Superseded):
                old.append([], [])

    def test_a_grant_that_stead_did_not_make_is_withdrawn_within_a_round(self, ids: list[str]) -> None:
        """This is what an older controller leaves that hangs between its check and its grant."""
        stead.taint(ids[1], {"stray": "yes"})
        try:
            name = connection().page().name("plain")
            gcs = ray._raylet.GcsClient(address=ray.get_runtime_context().gcs_address)
            gcs.resize_raylet_resource_instances(ids[1], {name: FULL})
            gcs.resize_raylet_resource_instances(ids[1], {"stead.nobodys.7": FULL})

            def amounts() -> dict[str, Any]:
                return dict(ray._private.state.state.total_resources_per_node()[ids[1]])

            wait_for(lambda: amounts().get(name, 0.0) < 1.0, 60, "the stray grant of a known pass went")
            wait_for(lambda: "stead.nobodys.7" not in amounts(), 60, "the stray grant of an unknown pass went")
            assert set(ray.get([where.remote() for _ in range(8)])) == {ids[0]}
        finally:
            stead.untaint(ids[1], ["stray"])


def unused_names_go(are_gone: Callable[[], bool]) -> None:
    """They stay for ten minutes if Ray has dropped task events, which it does above 100,000 tasks."""
    store = ControlStore(ray.get_runtime_context().gcs_address)
    try:
        wait_for(are_gone, 60, "the end of unused names")
    except AssertionError as error:
        raise AssertionError(f"{error}; work that waits carries {store.names_of_waiting_tasks()}") from None


class TestNames:
    def test_after_many_shapes_a_node_carries_few_names(self, cluster: LocalCluster) -> None:
        for shape in range(60):
            ray.get([where.options(label_selector={f"key-{shape}": "!x"}).remote() for _ in range(3)])
        most = PASSES_MAX * (POOL + 1) + GENERATIONS_MAX  # each has one more, for actors that only prefer their node
        unused_names_go(lambda: len(pass_names()) <= most)

    def test_a_removed_name_comes_back_with_the_work_that_carries_it(self, ids: list[str]) -> None:
        rule = where.options(label_selector={"comes-back": "!no"})
        ray.get(rule.remote())
        name = (
            connection()
            .page()
            .name(stead.ray.submit.compile.route({"label_selector": {"comes-back": "!no"}}).wish.admits.key)
        )
        shapes = count()

        def is_gone() -> bool:
            """After work of one more shape: the passes used last stay, and a lease on a busy machine ends late."""
            ray.get(where.options(label_selector={f"other-{next(shapes)}": "!x"}).remote())
            return name not in ray.cluster_resources()

        unused_names_go(is_gone)
        late = ray.remote(_where).options(resources={name: 0.0001})
        assert ray.get(late.remote(), timeout=60) in ids

    def test_every_name_of_ours_has_one_prefix(self, cluster: LocalCluster) -> None:
        rays = {"CPU", "GPU", "memory", "object_store_memory"}
        others = [name for name in ray.cluster_resources() if name not in rays and not name.startswith("node:")]
        assert [name for name in others if not name.startswith(("stead.", "bundle_group_"))] == []


class TestDeadlines:
    def test_work_that_has_not_started_by_then_is_ended_with_the_reason(self, ids: list[str]) -> None:
        options: dict[str, Any] = {"label_selector": {"never": "yes"}, "deadline_s": 1.0}
        task = where.options(**options).remote()
        actor = Actor.options(**options).remote()
        call = actor.where.remote()
        for ref in (task, call):
            with pytest.raises(stead.Unplaced, match=r"0 of 2 nodes fit: 2 lack never in \{yes\}"):
                stead.get(ref, timeout=60)
        for what in (task, actor):
            assert "2 lack never in {yes}" in str(stead.why(what))
        with pytest.raises(ray.exceptions.TaskCancelledError):
            ray.get(task)
        refused = [event for event in stead.events() if event.kind == "refused"]
        assert {task.task_id().hex(), actor._actor_id.hex()} <= {event.subject for event in refused}

    def test_work_that_has_started_is_left_alone(self, ids: list[str]) -> None:
        assert stead.get(where.options(deadline_s=8.0).remote(9.0), timeout=60) in ids


class TestEvents:
    def test_pending_work_is_reported_once_per_reason(self, ids: list[str]) -> None:
        start = max((event.number for event in stead.events()), default=0)

        def reported() -> list[str]:
            events = [event for event in stead.events(after=start) if event.kind == "waiting"]
            return [event.text for event in events if "once" in event.text]

        ref = where.options(label_selector={"once": "yes"}).remote()
        wait_for(reported, 60, "the event came")
        stead.taint(ids[0], {"other": "reason"})
        stead.label(ids[0], {"once": "yes"})
        wait_for(lambda: len(reported()) >= 2, 60, "the second reason came")
        assert reported()[0] == "waiting: 0 of 2 nodes fit: 2 lack once in {yes}."
        assert "tainted other=reason" in reported()[-1]
        stead.untaint(ids[0], ["other"])
        assert ray.get(ref, timeout=60) == ids[0]
        assert len(reported()) == len(set(reported()))
        stead.label(ids[0], remove=["once"])


class TestCapacityOfOthers:
    def test_resources_used_by_other_work_are_counted(self, ids: list[str]) -> None:
        """A plain program that stead has not bound holds the two CPUs of a node."""
        script = (
            "import ray, sys, threading\n"
            "ray.init(address=sys.argv[1], log_to_driver=False)\n"
            "pin = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(sys.argv[2], soft=False)\n"
            "hold = ray.remote(num_cpus=2, scheduling_strategy=pin)(lambda: threading.Event().wait(600)).remote()\n"
            "print('holding', flush=True)\n"
            "threading.Event().wait()\n"
        )
        address = ray.get_runtime_context().gcs_address
        other = subprocess.Popen([sys.executable, "-c", script, address, ids[1]], stdout=subprocess.PIPE)
        try:
            asked = where.options(label_selector={"zone": "a"})
            wait_for(lambda: "short of 1 CPU" in self.why(asked), 60, "the use was seen")
        finally:
            other.kill()
            other.wait()
        assert ray.get(asked.remote(), timeout=60) == ids[1]

    def why(self, asked: Any) -> str:
        ref = asked.remote()
        try:
            return str(stead.why(ref))
        except stead.Invalid:
            return "it has run"
        finally:
            ray.cancel(ref)


WITHOUT_GRANTS = {"STEAD_NO_GRANTS": "1"}
THROUGH_AGENTS = {"STEAD_AGENTS": "all"}
WITH_A_TOKEN = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0123456789abcdef0123456789abcdef"}


@pytest.mark.parametrize(
    "variables",
    [WITHOUT_GRANTS, THROUGH_AGENTS, WITH_A_TOKEN],
    ids=lambda given: next(iter(given)),
)
def test_rules_hold_without_grants_and_through_agents_and_with_a_token(
    cluster_of: ClusterOf, variables: dict[str, str]
) -> None:
    """If Ray cannot change a node's resources, stead warns and places work by the state at submission. On other
    machines, an agent on each node writes its page. Ray's own token is used."""
    cluster = cluster_of(TWO_NODES, environment=variables)
    driver = Path(__file__).parent / "drivers" / "rules_hold.py"
    environment = {**os.environ, "STEAD_EXPECT_WARNING": "1" if variables is WITHOUT_GRANTS else ""}
    if variables is WITH_A_TOKEN:
        environment.update(variables)
    done = subprocess.run(
        [sys.executable, driver, cluster.address, *(node.node_id for node in cluster.nodes)],
        env=environment, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "all good" in done.stdout


def test_another_version_of_ray_is_refused_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "__version__", "2.59.0")
    with pytest.raises(stead.Unsupported, match=r"stead supports Ray 2\.60, but this is Ray 2\.59\.0"):
        check_ray()
