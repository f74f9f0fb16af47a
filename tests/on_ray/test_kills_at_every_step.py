"""The controller is killed with SIGKILL at every step of its loop, while a taint or a label is set or removed.

At every step: the call returns, its change is in effect, nothing acknowledged before is lost, no grant and no plug is
left over, and the journal replays byte-equal.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

import stead
from stead.journal import Journal, replay
from stead.ray.control.passes import FULL
from stead.ray.control.plugs import KEPT
from stead.ray.local.local_cluster import LocalCluster
from stead.ray.submit.compile import route
from stead.ray.submit.connection import connection
from stead.ray.wire.node_page import FOLDER
from stead.ray.wire.own_names import PLUGS, TIMED, read_name
from tests.on_ray.conftest import ClusterOf
from tests.on_ray.killing import ANNOUNCE, GRANT, PLUG, SETTLE, TELL, UNPLUG, WRITE, Killer, Step
from tests.on_ray.waiting import wait_for

ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import the tests

pytestmark = pytest.mark.long

SELECTOR = {"disk": "ssd"}
BEFORE, WITHIN, AFTER = Step(WRITE, "before"), Step(WRITE, "within"), Step(WRITE, "after")
GRANTED, ANNOUNCED, SETTLED = Step(GRANT, "after"), Step(ANNOUNCE, "after"), Step(SETTLE, "after")
TOLD = Step(TELL, "after")
"""Everything is done, but the caller has no answer yet."""


def long(*steps: Step) -> list[Any]:
    """Long runs try every step of the loop; short runs only the most important ones."""
    return [pytest.param(step, marks=pytest.mark.long) for step in steps]


TAINT = [
    WITHIN, AFTER, Step(GRANT, "after", 2),
    *long(BEFORE, GRANTED, Step(PLUG, "after"), ANNOUNCED, SETTLED, TOLD),
]  # fmt: skip
LABEL = [AFTER, *long(GRANTED, TOLD)]
UNTAINT = [AFTER, *long(GRANTED, Step(UNPLUG, "before"), TOLD)]
UNLABEL = [AFTER]
END = [BEFORE, WITHIN, *long(AFTER)]


def _where() -> str:
    return str(ray.get_runtime_context().get_node_id())


class _Actor:
    def where(self) -> str:
        return _where()


where: Any = ray.remote(_where)
Actor: Any = ray.remote(_Actor)


@pytest.fixture(scope="module")
def killer(tmp_path_factory: pytest.TempPathFactory) -> Killer:
    return Killer(tmp_path_factory.mktemp("killing"))


@pytest.fixture(scope="module")
def cluster(cluster_of: ClusterOf, killer: Killer) -> Iterator[LocalCluster]:
    """With one taint and one label that were acknowledged before anything is killed."""
    started = cluster_of([{"num_cpus": 2}, {"num_cpus": 2}], environment=killer.environment)
    stead.init(started.address, namespace="tests", log_to_driver=False, logging_level="error")
    stead.taint(started.nodes[0].node_id, {"early": "yes"}, effect="prefer-no-schedule", owner="me")
    stead.label(started.nodes[0].node_id, {"early": "yes"})
    yield started
    ray.shutdown()


@pytest.fixture
def ids(cluster: LocalCluster) -> list[str]:
    return [node.node_id for node in cluster.nodes]


def killed_while(killer: Killer, step: Step, fact: str, change: Callable[[], Any]) -> None:
    """Make a change while the controller is killed at one of its steps. The call returns, and there is a controller."""
    before = connection().ask("hello")["pid"]
    with killer.at(step, since=fact):
        change()
    assert connection().ask("hello")["pid"] != before


def check(cluster: LocalCluster, taints: list[str], labels: dict[str, str]) -> None:
    """The second node has exactly these taints and labels, everywhere they are stored."""
    first, second = (node.node_id for node in cluster.nodes)
    seen = {node.id: node for node in stead.nodes()}
    assert [str(taint) for taint in seen[second].taints] == taints
    assert {key: value for key, value in seen[second].labels.items() if key in SELECTOR} == labels
    assert [str(taint) for taint in seen[first].taints] == ["early=yes:prefer-no-schedule"]
    assert seen[first].ends[0].owner == "me"
    assert seen[first].labels["early"] == "yes"
    assert [end.owner for end in seen[second].ends] == ["me" for _ in taints]
    allowed = {"plain": {first} if taints else {first, second}}
    allowed[route({"label_selector": SELECTOR}).wish.admits.key] = {second} if labels and not taints else set()
    wait_for(lambda: not left_over(allowed), 60, f"only what is allowed is granted: {left_over(allowed)}")
    journal = Path(ray._private.worker.global_worker.node.get_session_dir_path()) / FOLDER / "journal.sqlite"
    with Journal.reading(journal) as written:
        engine = replay(written)  # raises at the first step that differs
    assert {id: (node.taints, dict(node.labels)) for id, node in engine.nodes.items()} == {
        id: (node.taints, {key: node.labels[key] for key, source in node.sources.items() if source != "stead"})
        for id, node in seen.items()
    }


def left_over(allowed: dict[str, set[str]]) -> list[tuple[str, str, float]]:
    """Missing grants, grants that should not exist, and plugs that block nothing."""
    found = []
    for node, total in ray._private.state.state.total_resources_per_node().items():
        amounts = {name: amount for name, amount in total.items() if read_name(name) and "_group_" not in name}
        for name, amount in amounts.items():
            key, _ = read_name(name) or ("", 0)
            right = amount == FULL if node in allowed.get(key, ()) else amount <= KEPT * 1.1
            found += [] if right else [(node, name, amount)]
        for key in allowed:
            current = connection().page().name(key)
            if node in allowed[key] and key in connection().page().generations and current not in amounts:
                found.append((node, current, 0.0))
        found += [] if total.get(TIMED) == FULL else [(node, TIMED, total.get(TIMED, 0.0))]
    for row in ray.util.placement_group_table().values():
        if row["name"].startswith(PLUGS) and row["state"] != "REMOVED":
            _, node, name = row["name"].split("/", 2)
            if node in allowed.get((read_name(name) or ("", 0))[0], ()):
                found.append((node, row["name"], KEPT))
    return found


@pytest.mark.parametrize("step", TAINT, ids=str)
def test_a_taint_holds_when_the_call_returns(cluster: LocalCluster, ids: list[str], killer: Killer, step: Step) -> None:
    killed_while(killer, step, "NodeTainted", lambda: stead.taint(ids[1], {"mine": "yes"}, owner="me"))
    assert set(ray.get([where.remote() for _ in range(4)], timeout=60)) == {ids[0]}
    check(cluster, ["mine=yes"], {})
    stead.untaint(ids[1], ["mine"])


@pytest.mark.parametrize("step", UNTAINT, ids=str)
def test_a_removed_taint_is_gone_when_the_call_returns(
    cluster: LocalCluster, ids: list[str], killer: Killer, step: Step
) -> None:
    stead.taint(ids[1], {"mine": "yes"}, owner="me")
    killed_while(killer, step, "NodeUntainted", lambda: stead.untaint(ids[1], ["mine"]))
    check(cluster, [], {})


@pytest.mark.parametrize("step", LABEL, ids=str)
def test_pending_work_starts_although_the_controller_dies_while_its_label_is_set(
    cluster: LocalCluster, ids: list[str], killer: Killer, step: Step
) -> None:
    waiting = where.options(label_selector=SELECTOR).remote()
    connection().ask("settled")
    killed_while(killer, step, "NodeLabelled", lambda: stead.label(ids[1], SELECTOR))
    assert ray.get(waiting, timeout=60) == ids[1]
    check(cluster, [], SELECTOR)
    stead.label(ids[1], remove=["disk"])


@pytest.mark.parametrize("step", UNLABEL, ids=str)
def test_a_removed_label_is_gone_when_the_call_returns(
    cluster: LocalCluster, ids: list[str], killer: Killer, step: Step
) -> None:
    stead.label(ids[1], SELECTOR)
    killed_while(killer, step, "NodeLabelled", lambda: stead.label(ids[1], remove=["disk"]))
    check(cluster, [], {})


@pytest.mark.parametrize("step", END, ids=str)
def test_an_ended_actor_frees_its_room_for_the_next(
    cluster: LocalCluster, ids: list[str], killer: Killer, step: Step
) -> None:
    there = NodeAffinitySchedulingStrategy(ids[1], soft=False)
    anchor = Actor.options(num_cpus=0, scheduling_strategy=there).remote()
    beside = Actor.options(num_cpus=2, scheduling_strategy=stead.actor_affinity(stead.affinity(anchor)))
    first = beside.remote()
    assert ray.get(first.where.remote(), timeout=60) == ids[1]
    before = connection().ask("hello")["pid"]
    with killer.at(step, since="AskEnded"):
        ray.kill(first)
        wait_for(lambda: connection().ask("hello")["pid"] != before, what="another controller")
    second = beside.remote()
    assert ray.get(second.where.remote(), timeout=60) == ids[1]
    for actor in (anchor, second):
        ray.kill(actor)
