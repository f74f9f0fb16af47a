"""`stead.why` in a program and `stead why` on the command line give the same answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import ray
from ray.util.placement_group import PlacementGroup
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

import stead
from stead.ray.remote_desk import RemoteDesk
from stead.text import short_id
from tests.on_ray.conftest import ClusterOf
from tests.on_ray.waiting import wait_for
from tests.on_ray.workload import SOON_S, Resident, attached, where

pytestmark = pytest.mark.long

NODES = [{"num_cpus": 2}, {"num_cpus": 2, "labels": {"zone": "a"}}, {"num_cpus": 2, "labels": {"zone": "b"}}]
NOWHERE = {"zone": "nowhere"}
FAR = [{"label_selector": {"zone": "far"}}]


@pytest.fixture(scope="module", autouse=True)
def cluster(cluster_of: ClusterOf) -> Iterator[None]:
    with attached(cluster_of(NODES)):
        yield


def id_of(what: Any) -> str:
    if isinstance(what, ray.ObjectRef):
        return str(what.task_id().hex())
    return str(what.id.hex() if isinstance(what, PlacementGroup) else what._actor_id.hex())


def by_program(what: Any) -> str:
    return answered(lambda: stead.why(what))


def by_command(what: Any) -> str:
    """The answer in another process, which knows only the id of the work."""
    return answered(lambda: RemoteDesk().why(id_of(what)))


def answered(ask: Callable[[], Any]) -> str:
    try:
        return str(ask())
    except stead.Invalid as error:
        return f"refused: {error}"


def is_listed(what: Any) -> bool:
    return RemoteDesk().snapshot().rows.knows(id_of(what))


def end(what: Any) -> None:
    if isinstance(what, PlacementGroup):
        ray.util.remove_placement_group(what)
    elif isinstance(what, ray.ObjectRef):
        ray.cancel(what)
    else:
        ray.kill(what)


def inside(group: Any) -> Any:
    return PlacementGroupSchedulingStrategy(group)


PENDING: dict[str, tuple[Callable[[], Any], str]] = {
    "a plain task": (lambda: where.options(num_cpus=9).remote(), "3 too small for 9 CPU"),
    "a task by labels": (lambda: where.options(label_selector=NOWHERE).remote(), "3 lack zone in {nowhere}"),
    "a task with a fallback": (
        lambda: where.options(label_selector=NOWHERE, fallback_strategy=FAR).remote(),
        "3 lack zone in {far}",
    ),
    "a task in a slot": (
        lambda: where.options(label_selector=NOWHERE, labels={"app": "web"}).remote(),
        "3 lack zone in {nowhere}",
    ),
    "an actor by labels": (lambda: Resident.options(label_selector=NOWHERE).remote(), "3 lack zone in {nowhere}"),
    "an actor with a fallback": (
        lambda: Resident.options(label_selector=NOWHERE, fallback_strategy=FAR).remote(),
        "3 lack zone in {far}",
    ),
    "an actor with a ticket": (
        lambda: Resident.options(label_selector=NOWHERE, labels={"app": "web"}).remote(),
        "3 lack zone in {nowhere}",
    ),
    "stead's group": (lambda: stead.placement_group([{"CPU": 9}]), "3 too small for 9 CPU"),
    "Ray's group": (lambda: ray.util.placement_group([{"CPU": 9}]), "3 too small for 9 CPU"),
}


@pytest.mark.parametrize(("make", "reason"), PENDING.values(), ids=PENDING.keys())
def test_pending_work_has_the_same_reason_from_its_submission_on(make: Callable[[], Any], reason: str) -> None:
    what = make()
    assert reason in by_program(what)
    wait_for(lambda: is_listed(what), SOON_S, "its place in the lists")
    assert reason in by_command(what)
    assert by_command(what) == by_program(what)
    assert by_program(id_of(what)) == by_program(what)
    end(what)


@pytest.mark.parametrize("make", [stead.placement_group, ray.util.placement_group], ids=["stead's", "Ray's"])
@pytest.mark.parametrize("work", [where, Resident], ids=["a task", "an actor"])
def test_work_in_a_pending_group_has_the_reason_of_the_group(make: Any, work: Any) -> None:
    group = make([{"CPU": 9}])
    what = work.options(num_cpus=1, scheduling_strategy=inside(group)).remote()
    assert "3 too small for 9 CPU" in by_program(what)
    wait_for(lambda: by_command(what) == by_program(what), SOON_S, "its place in the lists")
    assert "3 too small for 9 CPU" in by_command(what)
    end(what)
    end(group)


@pytest.mark.parametrize("make", [stead.placement_group, ray.util.placement_group], ids=["stead's", "Ray's"])
def test_a_placed_group_says_that_it_is_placed(make: Any) -> None:
    group = make([{"CPU": 1}])
    assert group.wait(30)
    wait_for(lambda: by_program(group) == "All members are placed.", SOON_S, "the news that it is placed")
    assert by_command(group) == "All members are placed."
    end(group)


PREFERRING = stead.node_affinity(stead.label_in("zone", ["a"], is_soft=True, weight=7))
RUNNING: dict[str, dict[str, Any]] = {
    "anywhere": {},
    "by labels": {"label_selector": {"zone": "b"}},
    "by preference": {"scheduling_strategy": PREFERRING},
    "with a ticket": {"labels": {"app": "web"}},
}


@pytest.mark.parametrize("options", RUNNING.values(), ids=RUNNING.keys())
def test_a_placed_actor_explains_its_node(options: dict[str, Any]) -> None:
    actor = Resident.options(num_cpus=1, **options).remote()
    node = ray.get(actor.where.remote(), timeout=SOON_S)

    def chosen() -> str:
        found = stead.why(actor).chosen
        return found.node if found else ""

    wait_for(lambda: chosen() == node, SOON_S, "the news that it runs")
    wait_for(lambda: by_command(actor) == by_program(actor), SOON_S, "one answer")
    end(actor)


def test_work_refused_at_its_deadline_still_explains_why() -> None:
    task = where.options(label_selector=NOWHERE, deadline_s=1.0).remote()
    with pytest.raises(stead.Unplaced, match=r"3 lack zone in \{nowhere\}"):
        stead.get(task, timeout=60)
    assert "3 lack zone in {nowhere}" in by_program(task)
    assert by_command(task) == by_program(task)


def test_ended_work_is_not_pending() -> None:
    task, actor = where.remote(), Resident.remote()
    ray.get([task, actor.where.remote()], timeout=SOON_S)
    assert f"task {short_id(id_of(task))} has ended" in by_program(task)
    end(actor)
    for what in (task, actor):
        sentence = f"{short_id(id_of(what))} has ended"
        wait_for(lambda what=what, sentence=sentence: sentence in by_command(what), SOON_S, "the news of its end")  # type: ignore[misc]
        assert by_command(what) == by_program(what)


def test_unknown_work_is_unknown_to_both() -> None:
    for id in ("ab" * 16, "ab" * 24, "ab" * 18, "nonsense"):
        assert answered(lambda id=id: stead.why(id)) == answered(lambda id=id: RemoteDesk().why(id))  # type: ignore[misc]
        assert short_id(id) in answered(lambda id=id: stead.why(id))  # type: ignore[misc]
