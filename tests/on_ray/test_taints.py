"""Taints and tolerations on a real cluster of four raylets, with `stead.init`.

Nodes 0 and 1 are open, node 2 is tainted from its start, node 3 has a rare resource. A test may taint and drain node 1,
which is restored afterwards.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import stead
from tests.on_ray.waiting import wait_for

ray = pytest.importorskip("ray")
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group  # noqa: E402
from ray.util.scheduling_strategies import (  # noqa: E402
    Exists,
    In,
    NodeAffinitySchedulingStrategy,
    NodeLabelSchedulingStrategy,
    NotIn,
)

ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import a test

DRIVERS = Path(__file__).parent / "drivers"
TAINT = "gpu_node=true"


@pytest.fixture(scope="module")
def cluster(cluster_of: Any) -> Iterator[Any]:
    found = cluster_of(
        [
            {"num_cpus": 2},
            {"num_cpus": 2},
            {"num_cpus": 2, "labels": {"pool": "gpu"}, "taints": {"gpu_node": "true"}},
            {"num_cpus": 1, "num_gpus": 1},
        ],
        ["gpu", "scarce"],
    )
    stead.init(found.address, namespace="tests", log_to_driver=False, logging_level="error")
    yield found
    ray.shutdown()


@pytest.fixture(scope="module")
def ids(cluster: Any) -> list[str]:
    return [node.node_id for node in cluster.nodes]


@pytest.fixture(autouse=True)
def as_it_was(ids: list[str]) -> Iterator[None]:
    """After each test nothing runs, and node 1 is restored."""
    before = len(Started.actors)
    yield
    for actor in Started.actors[before:]:
        ray.kill(actor)
    for group in Started.groups:
        remove_placement_group(group)
    del Started.actors[before:], Started.groups[:]
    view = node(ids[1])
    for taint in view.taints:
        stead.untaint(ids[1], [taint.key], taint.effect)
    if view.draining:
        stead.uncordon(ids[1])


class Started:
    """What a test started, to be ended after it."""

    actors: list[Any] = []  # noqa: RUF012
    groups: list[PlacementGroup] = []  # noqa: RUF012


@ray.remote(num_cpus=1)  # type: ignore[untyped-decorator]
def where(seconds: float = 0.0, only_on: str = "", mark: str = "") -> str:
    """The node it ran on; with `only_on`, it sleeps only on that node. It adds its node to the file `mark`."""
    here = str(ray.get_runtime_context().get_node_id())
    if mark:
        with open(mark, "a") as file:
            file.write(f"{here}\n")
    if only_on in ("", here):
        threading.Event().wait(seconds)
    return here


class Home:
    def where(self) -> str:
        return str(ray.get_runtime_context().get_node_id())


Stayer: Any = ray.remote(num_cpus=1)(Home)


def started(**options: Any) -> Any:
    actor = Stayer.options(**options).remote()
    Started.actors.append(actor)
    return actor


def group(bundles: list[dict[str, float]], **options: Any) -> PlacementGroup:
    made = placement_group(bundles, **options)
    Started.groups.append(made)
    return made


def places(made: PlacementGroup) -> set[str]:
    """The nodes that hold the bundles of a group, once they do."""
    assert made.wait(60), ray.util.placement_group_table(made)
    return set(ray.util.placement_group_table(made)["bundles_to_node_id"].values())


def node(id: str) -> Any:
    return next(each for each in stead.nodes() if each.id == id)


def soft_to(id: str) -> NodeAffinitySchedulingStrategy:
    return NodeAffinitySchedulingStrategy(id, soft=True)


def home_of(actor: Any) -> str:
    return str(ray.get(actor.where.remote(), timeout=60))


def waits(ref: Any, seconds: float = 0.5) -> bool:
    return not ray.wait([ref], timeout=seconds)[0]


def filled(id: str, cpus: float = 2) -> Any:
    """An actor that holds all CPUs of a node until it is killed, under its own pass. Otherwise Ray would give its pass
    to queued work before stead can withdraw it."""
    pin = NodeAffinitySchedulingStrategy(id, soft=False)
    actor = started(num_cpus=cpus, scheduling_strategy=pin, tolerations={"nothing": stead.Exists()})
    assert home_of(actor) == id
    return actor


@contextmanager
def only_open(id: str, others: list[str]) -> Iterator[None]:
    """During the block the other open nodes are full, so that work goes to this one without a rule."""
    held = [filled(other) for other in others if other != id]
    yield
    for actor in held:
        free(actor)


def free(actor: Any) -> None:
    Started.actors.remove(actor)
    ray.kill(actor)


def events_of(kind: str, since: int) -> list[Any]:
    return [event for event in stead.events(after=since) if event.kind == kind]


def last_event() -> int:
    return max((event.number for event in stead.events()), default=0)


# -- taints given at start


def test_a_node_shows_the_taints_it_was_started_with(ids: list[str]) -> None:
    assert [str(taint) for taint in node(ids[2]).taints] == [TAINT]
    assert not node(ids[0]).taints
    assert not node(ids[1]).taints


# -- work without a toleration never runs there


@pytest.mark.parametrize(
    "strategy",
    [
        pytest.param(lambda _: "DEFAULT", id="default"),
        pytest.param(lambda _: "SPREAD", id="spread"),
        pytest.param(soft_to, id="soft node affinity to the tainted node"),
        pytest.param(lambda _: NodeLabelSchedulingStrategy({}, soft={"pool": In("gpu")}), id="soft labels"),
        pytest.param(
            lambda id: stead.node_affinity(stead.label_in("node_id", [id], is_soft=True)), id="stead's soft affinity"
        ),
    ],
)
def test_tasks_avoid_a_tainted_node_under_every_strategy(strategy: Any, ids: list[str]) -> None:
    there = ray.get([where.options(scheduling_strategy=strategy(ids[2])).remote(0.05) for _ in range(12)], timeout=60)
    assert set(there) <= {ids[0], ids[1]}


@pytest.mark.long
def test_a_nested_task_avoids_it_too(ids: list[str]) -> None:
    @ray.remote(num_cpus=0)  # type: ignore[untyped-decorator]
    def parent(id: str) -> list[str]:
        return list(ray.get([where.options(scheduling_strategy=soft_to(id)).remote() for _ in range(3)]))

    assert set(ray.get(parent.remote(ids[2]), timeout=60)) <= {ids[0], ids[1]}


@pytest.mark.parametrize("strategy", [pytest.param(soft_to, id="soft"), pytest.param(lambda _: "SPREAD", id="spread")])
@pytest.mark.long
def test_actors_avoid_a_tainted_node(strategy: Any, ids: list[str]) -> None:
    actors = [started(scheduling_strategy=strategy(ids[2])) for _ in range(3)]
    assert {home_of(actor) for actor in actors} <= {ids[0], ids[1]}


@pytest.mark.long
def test_an_actor_waits_while_only_the_tainted_node_is_free(ids: list[str]) -> None:
    first, _ = filled(ids[0]), filled(ids[1])
    waiting = started(num_cpus=2)
    home = waiting.where.remote()
    assert waits(home)
    assert TAINT in str(stead.why(waiting))
    free(first)
    assert ray.get(home, timeout=60) == ids[0]


@pytest.mark.parametrize("strategy", ["PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"])
def test_bundles_avoid_a_tainted_node(strategy: str, ids: list[str]) -> None:
    assert places(group([{"CPU": 1}, {"CPU": 1}], strategy=strategy)) <= {ids[0], ids[1]}


@pytest.mark.long
def test_a_group_waits_while_only_the_tainted_node_is_free(ids: list[str]) -> None:
    first, _ = filled(ids[0]), filled(ids[1])
    made = group([{"CPU": 2}])
    assert not made.wait(0.5)
    free(first)
    assert places(made) == {ids[0]}


@pytest.mark.parametrize("kind", [where, Stayer], ids=["a task", "an actor"])
def test_a_hard_pin_to_a_tainted_node_is_refused_at_once_and_names_the_taint(kind: Any, ids: list[str]) -> None:
    pin = NodeAffinitySchedulingStrategy(ids[2], soft=False)
    with pytest.raises(stead.Invalid, match=TAINT):
        kind.options(scheduling_strategy=pin).remote()


def test_a_hard_pin_with_a_toleration_is_obeyed(ids: list[str]) -> None:
    pin = NodeAffinitySchedulingStrategy(ids[2], soft=False)
    pinned = where.options(scheduling_strategy=pin, tolerations={"gpu_node": stead.Exists()})
    assert ray.get(pinned.remote(), timeout=60) == ids[2]


# -- tolerations

TOLERATING = {
    "whatever the value": stead.Exists(),
    "that value": stead.In("true"),
    "one of several values": stead.In("false", "true"),
    "any but another value": stead.NotIn("false"),
    "that effect": stead.Exists(effect="no-schedule"),
    "Ray's own Exists": Exists(),
    "Ray's own In": In("true"),
    "Ray's own NotIn": NotIn("false"),
}
NOT_TOLERATING = {
    "another value": stead.In("false"),
    "any but that value": stead.NotIn("true"),
    "another effect": stead.Exists(effect="no-execute"),
    "Ray's own In": In("false"),
    "Ray's own NotIn": NotIn("true"),
}


@pytest.mark.parametrize("match", TOLERATING.values(), ids=TOLERATING.keys())
def test_a_matching_toleration_admits_work(match: Any, ids: list[str]) -> None:
    tolerant = where.options(tolerations={"gpu_node": match}, label_selector={"pool": "gpu"})
    assert ray.get(tolerant.remote(), timeout=60) == ids[2]


@pytest.mark.usefixtures("ids")
def test_a_toleration_that_does_not_match_admits_nothing() -> None:
    refs = {
        name: where.options(tolerations={"gpu_node": match}, label_selector={"pool": "gpu"}).remote()
        for name, match in NOT_TOLERATING.items()
    }
    refs["another key"] = where.options(tolerations={"other": stead.Exists()}, label_selector={"pool": "gpu"}).remote()
    assert ray.wait(list(refs.values()), timeout=1.0)[0] == []
    for name, ref in refs.items():
        assert f"1 tainted {TAINT}" in str(stead.why(ref)), name
        ray.cancel(ref)


def test_a_toleration_admits_an_actor_and_a_group(ids: list[str]) -> None:
    tolerations = {"gpu_node": stead.Exists()}
    assert home_of(started(tolerations=tolerations, label_selector={"pool": "gpu"})) == ids[2]
    bundles = [{"CPU": 1.0}]
    assert places(group(bundles, tolerations=tolerations, bundle_label_selector=[{"pool": "gpu"}])) == {ids[2]}


@pytest.mark.parametrize(
    ("tolerations", "sentence"),
    [({"gpu_node": stead.DoesNotExist()}, "DoesNotExist"), ({"gpu_node": "true"}, "gpu_node"), ("gpu_node", "map")],
    ids=["DoesNotExist", "a bare value", "a bare key"],
)
@pytest.mark.parametrize(
    "submit",
    [
        lambda tolerations: where.options(tolerations=tolerations).remote(),
        lambda tolerations: Stayer.options(tolerations=tolerations).remote(),
        lambda tolerations: placement_group([{"CPU": 1}], tolerations=tolerations),
    ],
    ids=["a task", "an actor", "a group"],
)
def test_a_toleration_without_a_meaning_is_refused(tolerations: Any, sentence: str, submit: Any) -> None:
    with pytest.raises(stead.Invalid, match=sentence):
        submit(tolerations)


# -- work that was queued before obeys too


@pytest.mark.long
def test_tasks_and_an_actor_queued_before_the_taint_obey_it(ids: list[str]) -> None:
    first, second = filled(ids[0]), filled(ids[1])
    tasks = [where.remote() for _ in range(6)]
    home = started(scheduling_strategy=soft_to(ids[1])).where.remote()
    assert waits(tasks[0], 0.2)
    stead.taint(ids[1], {"later": "yes"})
    free(second)
    assert ray.wait([*tasks, home], timeout=0.5)[0] == []
    free(first)
    assert set(ray.get(tasks, timeout=60)) == {ids[0]}
    assert ray.get(home, timeout=60) == ids[0], "it only preferred the tainted node"


@pytest.mark.long
def test_a_group_queued_before_the_taint_obeys_it(ids: list[str]) -> None:
    _, second = filled(ids[0]), filled(ids[1])
    made = group([{"CPU": 2}])
    assert not made.wait(0.2)
    stead.taint(ids[1], {"later": "yes"})
    free(second)
    assert not made.wait(0.5)
    stead.untaint(ids[1], ["later"])
    assert places(made) == {ids[1]}


def test_a_taint_stops_no_running_work(ids: list[str]) -> None:
    actor = started(scheduling_strategy=soft_to(ids[1]))
    assert home_of(actor) == ids[1]
    stead.taint(ids[1], {"later": "yes"})
    assert home_of(actor) == ids[1]


# -- the other effects


@pytest.mark.long
def test_no_execute_ends_an_actor_which_restarts_elsewhere_and_the_event_names_the_taint(ids: list[str]) -> None:
    with only_open(ids[1], ids[:2]):
        actor = started(max_restarts=1, max_task_retries=-1)
        steady = started(tolerations={"repair": stead.Exists()})
        assert [home_of(actor), home_of(steady)] == [ids[1], ids[1]]
    since = last_event()
    stead.taint(ids[1], {"repair": "disk"}, effect="no-execute")
    wait_for(lambda: home_of(actor) == ids[0], what="the restart elsewhere")
    told = [(event.subject, "repair=disk:no-execute" in event.text) for event in events_of("evicted", since)]
    assert told == [(actor._actor_id.hex(), True)]
    assert home_of(steady) == ids[1]


def test_no_execute_ends_a_task_which_runs_again_elsewhere(ids: list[str], tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    with only_open(ids[1], ids[:2]):
        ref = where.options(max_retries=1).remote(120, only_on=ids[1], mark=str(mark))
        wait_for(mark.exists, what="the start")
    since = last_event()
    stead.taint(ids[1], {"repair": "disk"}, effect="no-execute")
    assert ray.get(ref, timeout=60) == ids[0]
    told = [(event.subject, "repair=disk:no-execute" in event.text) for event in events_of("evicted", since)]
    assert told == [(ref.task_id().hex(), True)]
    assert mark.read_text().split() == [ids[1], ids[0]]


@pytest.mark.long
def test_an_evicted_actor_that_prefers_its_node_restarts_elsewhere(ids: list[str]) -> None:
    actor = started(scheduling_strategy=soft_to(ids[1]), max_restarts=-1, max_task_retries=-1)
    assert home_of(actor) == ids[1]
    since = last_event()
    stead.taint(ids[1], {"repair": "disk"}, effect="no-execute")
    wait_for(lambda: events_of("evicted", since), what="the eviction")
    assert home_of(actor) == ids[0]


@pytest.mark.parametrize("tolerations", [None, {"other": stead.Exists()}], ids=["plain", "with tolerations"])
@pytest.mark.long
def test_actors_queued_at_the_node_they_prefer_leave_for_another(
    tolerations: dict[str, Any] | None, ids: list[str]
) -> None:
    """Running work continues on the node; the actors queued behind it do not wait for its end."""
    stead.taint(ids[2], {"first": "yes"})
    stead.untaint(ids[2], ["first"])  # plain work is bound from here on
    filled(ids[1])
    more = {} if tolerations is None else {"tolerations": tolerations}
    actors = [started(scheduling_strategy=soft_to(ids[1]), **more) for _ in range(2)]
    assert all(waits(actor.where.remote(), 1.0) for actor in actors), "they wait for their node"
    stead.taint(ids[1], {"repair": "disk"})
    assert [home_of(actor) for actor in actors] == [ids[0]] * 2


@pytest.mark.long
def test_an_actor_that_prefers_a_tainted_node_is_pending_if_there_is_no_other(ids: list[str]) -> None:
    filled(ids[0])
    holder = filled(ids[1])
    actor = started(scheduling_strategy=soft_to(ids[1]), tolerations={"other": stead.Exists()})
    assert waits(actor.where.remote(), 1.0)
    stead.taint(ids[1], {"repair": "disk"})
    ray.kill(holder)
    assert waits(actor.where.remote(), 3.0), "it has no place, and did not fail"
    stead.untaint(ids[1], ["repair"])
    assert home_of(actor) == ids[1]


@pytest.mark.long
def test_work_that_tolerates_a_taint_for_some_seconds_is_then_ended(ids: list[str]) -> None:
    brief = {"repair": stead.Exists(effect="no-execute", seconds=2.0)}
    actor = started(scheduling_strategy=soft_to(ids[1]), tolerations=brief)
    assert home_of(actor) == ids[1]
    since, at = last_event(), time.time()
    stead.taint(ids[1], {"repair": "disk"}, effect="no-execute")
    told = wait_for(lambda: events_of("evicted", since), what="the eviction")
    assert told[0].subject == actor._actor_id.hex()
    assert told[0].at - at >= 2.0


@pytest.mark.long
def test_a_prefer_no_schedule_node_is_used_only_when_the_others_are_full(ids: list[str]) -> None:
    stead.taint(ids[1], {"slow": "yes"}, effect="prefer-no-schedule")
    one_by_one = {ray.get(where.options(scheduling_strategy=each).remote()) for each in ("DEFAULT", "SPREAD") * 4}
    assert one_by_one == {ids[0]}
    filled(ids[0])
    assert ray.get(where.remote(), timeout=60) == ids[1]


@pytest.mark.long
def test_work_that_tolerates_prefer_no_schedule_ignores_it(ids: list[str]) -> None:
    stead.taint(ids[1], {"slow": "yes"}, effect="prefer-no-schedule")
    careless = where.options(scheduling_strategy="SPREAD", tolerations={"slow": stead.Exists()})
    wait_for(lambda: ids[1] in ray.get([careless.remote() for _ in range(4)]), what="work on the slow node")


# -- rare resources


def test_a_node_with_a_rare_resource_is_reserved_for_work_that_asks_for_it(ids: list[str]) -> None:
    assert [str(taint) for taint in node(ids[3]).taints] == ["rare_resource.ray.io/gpu=true"]
    plain = ray.get([where.options(scheduling_strategy=soft_to(ids[3])).remote() for _ in range(4)], timeout=60)
    assert ids[3] not in plain
    assert ray.get(where.options(num_cpus=0, num_gpus=0.5).remote(), timeout=60) == ids[3]
    assert home_of(started(num_cpus=0, num_gpus=0.5)) == ids[3]
    assert places(group([{"GPU": 0.5}])) == {ids[3]}


@pytest.mark.long
def test_a_node_with_a_rare_resource_that_joins_later_is_reserved_too(cluster: Any, ids: list[str]) -> None:
    joined = cluster.add_node(num_cpus=1, resources={"scarce": 1}).node_id
    wait_for(lambda: joined in {each.id for each in stead.nodes()}, what="the new node")
    assert [str(taint) for taint in node(joined).taints] == ["rare_resource.ray.io/scarce=true"]
    assert ray.get(where.options(scheduling_strategy=soft_to(joined)).remote(), timeout=60) in ids[:2]
    assert ray.get(where.options(num_cpus=0, resources={"scarce": 1}).remote(), timeout=60) == joined


# -- owners and ends


def test_a_taint_shows_its_owner_and_ends_automatically(ids: list[str]) -> None:
    since, before = last_event(), time.time()
    stead.taint(ids[1], {"lent": "yes"}, for_s=600, owner="ada")
    [end] = node(ids[1]).ends
    assert (end.key, end.owner, end.effect) == ("lent", "ada", "no-schedule")
    assert end.until is not None
    assert before <= end.until - 600 <= time.time()
    assert ray.get(where.options(scheduling_strategy=soft_to(ids[1])).remote(), timeout=60) == ids[0]
    sooner = time.time()
    stead.taint(ids[1], {"lent": "yes"}, for_s=0.5, owner="ada")
    wait_for(lambda: not node(ids[1]).taints, what="the end of the taint")
    assert time.time() - sooner >= 0.5
    assert not node(ids[1]).ends
    assert any("lent" in event.text for event in events_of("untainted", since))
    wait_for(lambda: ray.get(where.options(scheduling_strategy=soft_to(ids[1])).remote()) == ids[1], what="work there")


@pytest.mark.long
def test_a_taint_ends_with_the_job_it_was_set_for(cluster: Any, ids: list[str]) -> None:
    with subprocess.Popen(
        [sys.executable, str(DRIVERS / "stays.py"), cluster.address],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as driver:
        assert driver.stdin and driver.stdout
        job = driver.stdout.readline().strip()
        stead.taint(ids[1], {"lent": "yes"}, until_job=job)
        assert [end.job for end in node(ids[1]).ends] == [job]
        driver.stdin.close()
    wait_for(lambda: not node(ids[1]).taints, what="the end of the taint")


def test_a_taint_until_the_end_of_an_unknown_job_is_refused(ids: list[str]) -> None:
    with pytest.raises(stead.Invalid, match="is not a running job"):
        stead.taint(ids[1], {"lent": "yes"}, until_job="ffffffff")
    assert not node(ids[1]).taints
    assert not node(ids[1]).ends


# -- drain


def test_a_drained_node_keeps_its_work_gets_nothing_new_and_can_be_uncordoned(ids: list[str]) -> None:
    actor = started(scheduling_strategy=soft_to(ids[1]))
    assert home_of(actor) == ids[1]
    stead.drain(ids[1])
    assert node(ids[1]).draining
    here = where.options(scheduling_strategy=soft_to(ids[1]))
    assert set(ray.get([here.remote() for _ in range(4)], timeout=60)) == {ids[0]}
    assert places(group([{"CPU": 1}])) == {ids[0]}
    assert home_of(actor) == ids[1]
    stead.uncordon(ids[1])
    assert not node(ids[1]).draining
    # A preference works once the raylet that gets the task knows the node's grants.
    assert wait_for(lambda: ray.get(here.remote(), timeout=60) == ids[1], 60, "work on the node again")


@pytest.mark.long
def test_a_drain_that_evicts_moves_running_work(ids: list[str]) -> None:
    with only_open(ids[1], ids[:2]):
        actor = started(max_restarts=1, max_task_retries=-1)
        assert home_of(actor) == ids[1]
    stead.drain(ids[1], evict=True)
    wait_for(lambda: home_of(actor) == ids[0], what="the move")
    stead.uncordon(ids[1])
    assert not node(ids[1]).taints
    assert ray.get(where.options(scheduling_strategy=soft_to(ids[1])).remote(), timeout=60) == ids[1]
