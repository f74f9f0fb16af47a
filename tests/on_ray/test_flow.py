"""Work that is decided in batches on a real cluster: ``policy="flow"`` of a piece of work, or of a whole cluster."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest
import ray

import stead
from stead.engine.decisions import BatchDecided
from stead.engine.facts import AsksSubmitted, AskSubmitted
from stead.errors import Invalid, Unsupported
from stead.journal import Journal
from stead.language.resources import Resources
from stead.ray.local.local_cluster import LocalCluster
from stead.ray.submit.compile import route
from stead.ray.submit.connection import connection
from stead.ray.submit.ticketed_actors import Piece
from stead.ray.wire.node_page import FOLDER, Page
from tests.on_ray.conftest import ClusterOf
from tests.on_ray.waiting import wait_for
from tests.on_ray.workload import SOON_S, attached, labelled, tickets, waits

ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import the tests

pytestmark = pytest.mark.long

CPUS = 2
ZONE_A, ZONE_B = 1, 2  # the nodes, by their place in the cluster


class _Member:
    def where(self) -> str:
        return str(ray.get_runtime_context().get_node_id())

    def stay(self) -> str:
        return self.where()


def _stay(folder: str) -> str:
    """Returns its node, once it may continue."""
    node = str(ray.get_runtime_context().get_node_id())
    (Path(folder) / f"{os.getpid()}").write_text(node)
    while not (Path(folder) / "go").exists():
        Event().wait(0.01)
    return node


def _submit_within() -> str:
    """The cluster's policy also applies to work that a task submits."""
    return str(ray.get(ray.remote(num_cpus=1)(lambda: ray.get_runtime_context().get_node_id()).remote()))


Member: Any = ray.remote(num_cpus=1)(_Member)
stay: Any = ray.remote(num_cpus=1)(_stay)
submit_within: Any = ray.remote(num_cpus=1)(_submit_within)


@pytest.fixture(scope="module")
def cluster(cluster_of: ClusterOf) -> Iterator[LocalCluster]:
    """Room for four pieces, two of them in zone a."""
    nodes = [{"num_cpus": 0}, *({"num_cpus": CPUS, "labels": {"zone": zone}} for zone in "ab")]
    with attached(cluster_of(nodes), "flow") as started:
        yield started


@pytest.fixture(autouse=True)
def clean(cluster: LocalCluster, tmp_path: Path) -> Iterator[None]:
    yield
    (tmp_path / "go").touch()  # a test that failed may have left tasks behind
    wait_for(lambda: not connection().ask("registered_ids"), 60, "the end of all work of the test")
    wait_for(lambda: not tickets(), 60, "the end of all tickets")


@contextmanager
def at_once() -> Iterator[None]:
    """Submissions in this block reach the controller as one burst, however busy the machine is: the threads that send
    them wait, and so does the controller, which also counts tasks by itself."""
    found = connection()
    pid = found.ask("hello")["pid"]
    os.kill(pid, signal.SIGSTOP)
    try:
        with found._registrar._changed, found.counter._lock:
            yield
    finally:
        os.kill(pid, signal.SIGCONT)


def steps(cluster: LocalCluster) -> list[Any]:
    path = next(Path(cluster.temp_dir).rglob(f"{FOLDER}/journal.sqlite"))
    with Journal.reading(path) as journal:
        return list(journal.read())


def batches(cluster: LocalCluster) -> list[BatchDecided]:
    return [each for step in steps(cluster) for each in step.decisions if isinstance(each, BatchDecided)]


def policies(cluster: LocalCluster, cpus: float) -> list[str]:
    """The policies of actors and tasks with this number of CPUs. Tasks of an earlier test may be counted later, so each
    test uses its own number."""
    told = (AskSubmitted, AsksSubmitted)
    asks = [fact.ask for step in steps(cluster) for fact in step.facts if isinstance(fact, told)]
    return [ask.policy for ask in asks if ask.choices[0].resources == Resources.of({"CPU": cpus})]


def places(cluster: LocalCluster, refs: list[Any]) -> list[int]:
    ids = [node.node_id for node in cluster.nodes]
    return [ids.index(id) for id in ray.get(refs, timeout=SOON_S)]


class TestABurst:
    """Two pieces that can run anywhere come first, then two that must be in zone a, and there is just enough room for
    all."""

    def test_of_actors_is_placed_completely_where_placing_one_by_one_leaves_one_pending(
        self, cluster: LocalCluster
    ) -> None:
        def burst(policy: str) -> tuple[list[Any], list[Any]]:
            with at_once():
                anywhere = [Member.options(policy=policy).remote() for _ in range(2)]
                in_a = [Member.options(policy=policy, label_selector={"zone": "a"}).remote() for _ in range(2)]
            return anywhere, in_a

        anywhere, in_a = burst("flow")
        assert places(cluster, [each.where.remote() for each in anywhere]) == [ZONE_B] * 2
        assert places(cluster, [each.where.remote() for each in in_a]) == [ZONE_A] * 2
        assert [(each.asks, each.placed) for each in batches(cluster)] == [(4, 4)]
        for each in (*anywhere, *in_a):
            ray.kill(each)
        wait_for(lambda: not connection().ask("registered_ids"), 60)

        anywhere, in_a = burst("spread")
        assert sorted(places(cluster, [each.where.remote() for each in anywhere])) == [ZONE_A, ZONE_B]
        started, left = ray.wait([each.where.remote() for each in in_a], num_returns=1, timeout=SOON_S)
        assert len(started) == 1
        assert waits(*left)
        for each in (*anywhere, *in_a):
            ray.kill(each)

    def test_of_tasks_is_placed_completely(self, cluster: LocalCluster, tmp_path: Path) -> None:
        with at_once():
            anywhere = [stay.options(policy="flow").remote(str(tmp_path)) for _ in range(2)]
            in_a = [stay.options(policy="flow", label_selector={"zone": "a"}).remote(str(tmp_path)) for _ in range(2)]
        wait_for(lambda: len(list(tmp_path.iterdir())) == 4, SOON_S, "the start of all four")
        (tmp_path / "go").touch()
        assert places(cluster, anywhere) == [ZONE_B] * 2
        assert places(cluster, in_a) == [ZONE_A] * 2

    def test_packs_with_the_pack_policy(self, cluster: LocalCluster, tmp_path: Path) -> None:
        (tmp_path / "go").touch()
        with at_once():
            refs = [stay.options(policy="flow-pack").remote(str(tmp_path)) for _ in range(2)]
        assert len(set(places(cluster, refs))) == 1
        assert batches(cluster)[-1].policy == "flow-pack"


def test_a_placement_group_is_part_of_a_batch(cluster: LocalCluster) -> None:
    before = len(batches(cluster))
    with pytest.raises(Invalid, match="policy 'flwo' is unknown"):
        stead.placement_group([{"CPU": 1}], policy="flwo")
    group = stead.placement_group([{"CPU": 1}] * 4, policy="flow")
    assert group.wait(SOON_S)
    assert [(each.asks, each.placed) for each in batches(cluster)[before:]] == [(4, 4)]
    stead.remove_placement_group(group)


def test_pending_work_obeys_a_taint_set_meanwhile(cluster: LocalCluster, tmp_path: Path) -> None:
    (tmp_path / "go").touch()
    refs = [stay.options(policy="flow", label_selector={"disk": "ssd"}).remote(str(tmp_path)) for _ in range(2)]
    wait_for(lambda: "disk" in str(stead.why(refs[1])), SOON_S, "the reason of the last")
    a, b = (cluster.nodes[index].node_id for index in (ZONE_A, ZONE_B))
    stead.taint(a, {"away": "yes"})
    with labelled(a, {"disk": "ssd"}):
        assert waits(*refs)
        assert "away" in str(stead.why(refs[0]))
        with labelled(b, {"disk": "ssd"}):
            assert places(cluster, refs) == [ZONE_B] * 2
    stead.untaint(a, ["away"])


def test_an_actor_that_restarts_is_decided_as_a_batch_again(cluster: LocalCluster) -> None:
    actor = Member.options(policy="flow", label_selector={"zone": "b"}, max_restarts=-1, max_task_retries=-1).remote()
    assert places(cluster, [actor.where.remote()]) == [ZONE_B]
    before = len(batches(cluster))
    pid = ray._private.state.actors(actor._actor_id.hex())["Pid"]
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: len(batches(cluster)) > before, SOON_S, "its next decision")
    assert places(cluster, [actor.where.remote()]) == [ZONE_B]
    ray.kill(actor)


def test_without_a_solver_at_the_controller_the_submission_is_refused() -> None:
    link: Any = SimpleNamespace(page=lambda: Page(solves=False))
    with pytest.raises(Unsupported, match=r"policy 'flow' needs OR-tools on the head .*pip install 'stead\[flow\]'"):
        Piece(link, route({"policy": "flow"}), None, (), lambda *_: None)


class TestTheDefaultOfACluster:
    """It can be set only once, so these tests come last."""

    def test_an_unknown_policy_is_refused_in_one_sentence(self) -> None:
        sentence = re.escape("policy 'flwo' is unknown (did you mean 'flow'?); good values are hybrid, pack, spread, ")
        with pytest.raises(Invalid, match=sentence):
            stead.init(policy="flwo")
        with pytest.raises(Invalid, match=sentence):
            Member.options(policy="flwo")

    def test_ray_places_plain_work_while_there_is_no_default(self, cluster: LocalCluster, tmp_path: Path) -> None:
        (tmp_path / "go").touch()
        work = [stay.options(num_cpus=0.3), stay.options(num_cpus=0.3, policy="hybrid")]
        ray.get([each.remote(str(tmp_path)) for each in work], timeout=SOON_S)
        assert policies(cluster, 0.3) == []
        assert connection().ask("hello")["policy"] == ""

    def test_it_applies_to_all_work_without_a_policy(self, cluster: LocalCluster, tmp_path: Path) -> None:
        stead.init(policy="flow")
        assert connection().ask("hello")["policy"] == "flow"
        (tmp_path / "go").touch()
        actor = Member.options(num_cpus=0.4).remote()
        tasks = [stay.options(num_cpus=0.4), stay.options(num_cpus=0.4, label_selector={"zone": "a"})]
        work = [each.remote(str(tmp_path)) for each in tasks]
        ray.get([actor.where.remote(), *work, submit_within.remote()], timeout=2 * SOON_S)
        asked = policies(cluster, 0.4)
        assert set(asked) == {"flow"}
        assert len(asked) >= 3  # the actor, and two shapes of tasks
        ray.kill(actor)

    @pytest.mark.parametrize("options", [{"policy": "hybrid"}, {"scheduling_strategy": "SPREAD"}], ids=str)
    def test_it_does_not_apply_to_work_with_its_own_policy_or_strategy(
        self, cluster: LocalCluster, tmp_path: Path, options: dict[str, str]
    ) -> None:
        (tmp_path / "go").touch()
        ray.get(stay.options(num_cpus=0.6, **options).remote(str(tmp_path)), timeout=SOON_S)
        assert policies(cluster, 0.6) == []

    def test_it_survives_the_controller_and_can_be_set_once(self) -> None:
        os.kill(connection().ask("hello")["pid"], signal.SIGKILL)
        stead.init(policy="flow")
        assert connection().ask("hello")["policy"] == "flow"
        with pytest.raises(Invalid, match=r"default policy is 'flow' and cannot change to 'pack'.*policy='pack'"):
            stead.init(policy="pack")
