"""A task that starts on a node that was tainted meanwhile runs elsewhere, with no visible difference.

Three raylets of one CPU. Tasks prefer node 0, so Ray keeps them in its queue while an actor holds its CPU. Then the
node is tainted, the actor is killed, and the tasks are admitted and redirected.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy
import pytest

import stead
from tests.on_ray.waiting import wait_for

ray = pytest.importorskip("ray")
from stead.ray.submit.connection import connection  # noqa: E402
from stead.ray.wire.gcs import ControlStore  # noqa: E402
from stead.ray.wire.node_page import ENTRY  # noqa: E402
from stead.ray.wire.resource_grants import detect  # noqa: E402
from stead.ray.wire.tables import Tables  # noqa: E402
from tests.on_ray.workload import Resident, attached, free_cpus, pinned, where_am_i  # noqa: E402

pytestmark = pytest.mark.long

ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import a test

SOON_S = 60.0


@pytest.fixture(scope="module")
def ids(cluster_of: Any) -> Iterator[list[str]]:
    north, south = {"ray.io/region": "north"}, {"ray.io/region": "south"}
    nodes = [
        {"num_cpus": 1, "resources": {"disk": 2, "only": 1}, "labels": north},
        {"num_cpus": 1, "labels": south},
        {"num_cpus": 1, "resources": {"disk": 2}, "labels": north},
    ]
    with attached(cluster_of(nodes)) as cluster:
        found = [node.node_id for node in cluster.nodes]
        stead.taint(found[0], {"before": "yes"})  # plain work is bound from now on
        stead.untaint(found[0], ["before"])
        yield found


@pytest.fixture(autouse=True)
def as_it_was(ids: list[str]) -> Iterator[None]:
    yield
    shut_again()
    if any(view.taints for view in stead.nodes() if view.id == ids[0]):
        stead.untaint(ids[0], ["repair"])


@contextmanager
def let_in_too_late(id: str, by_hand: bool = False) -> Iterator[None]:
    """Work submitted in the block waits for the node, and starts there when it is already tainted. Work that is pinned
    to the node is admitted only when a task there ends, before the controller takes its part of the withdrawn name;
    `by_hand` leaves such a part free."""
    holder = Resident.options(scheduling_strategy=pinned(id)).remote()
    assert ray.get(holder.where.remote(), timeout=SOON_S) == id
    yield
    stead.taint(id, {"repair": "yes"})
    ray.kill(holder)
    if not by_hand:
        return
    grants = detect(ray.get_runtime_context().gcs_address)
    assert grants is not None
    names = connection().page().away[id]
    row = Tables(ray.get_runtime_context().gcs_address).status().nodes[id]
    kept = {name: row.total.get(name, 0.0) - row.available.get(name, 0.0) for name in names}

    def open_again() -> None:
        while not _shut.wait(0.2):
            grants.set_many({id: {name: amount + ENTRY for name, amount in kept.items()}})

    _shut.clear()
    opener = threading.Thread(target=open_again, daemon=True)
    opener.start()
    _openers.append(opener)


_shut = threading.Event()
_openers: list[threading.Thread] = []


def shut_again() -> None:
    """Ends what `by_hand` began. Only then can the controller give the name back: what is left free is too little for
    an actor, so if that were written last, Ray would refuse the next actor that is pinned to the node."""
    _shut.set()
    while _openers:
        _openers.pop().join()


@contextmanager
def busy(*ids: str) -> Iterator[None]:
    """Nodes whose CPU is in use, under its own pass."""
    options = {"tolerations": {"nothing": stead.Exists()}}
    held = [Resident.options(scheduling_strategy=pinned(id), **options).remote() for id in ids]
    ray.get([each.where.remote() for each in held], timeout=SOON_S)
    yield
    for each in held:
        ray.kill(each)


def task(function: Any, id: str, **options: Any) -> Any:
    given = {"num_cpus": 1, "max_retries": 0, "scheduling_strategy": pinned(id, soft=True), **options}
    return ray.remote(**given)(function)


def counted(path: Path) -> int:
    """How often it ran, as counted by the task itself."""
    return len(path.read_text().splitlines()) if path.exists() else 0


# -- results


def test_it_runs_elsewhere_with_its_arguments(ids: list[str]) -> None:
    def given(array: Any, inner: list[Any], *, word: str) -> tuple[str, float, Any, str]:
        return where_am_i(), float(array.sum()), inner[0], word

    with let_in_too_late(ids[0]):
        nested = ray.put("nested")
        ref = task(given, ids[0]).remote(ray.put(numpy.ones(200_000)), [nested], word="yes")
    node, total, kept, word = ray.get(ref, timeout=SOON_S)
    assert node in ids[1:]
    assert (total, ray.get(kept), word) == (200_000.0, "nested", "yes")


class ReadSlowly:
    """An argument that takes as long to read as the file `go` is not there; `came` tells that reading has begun."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> Any:
        return _read_slowly, (str(self.folder),)


def _read_slowly(folder: str) -> str:
    (Path(folder) / "came").touch()
    wait_for((Path(folder) / "go").exists, SOON_S)
    return "read"


@pytest.mark.parametrize("retries", [0, 3])
def test_it_runs_elsewhere_if_its_node_is_tainted_while_its_arguments_are_read(
    retries: int, ids: list[str], tmp_path: Path
) -> None:
    def given(argument: str) -> tuple[str, str]:
        return where_am_i(), argument

    def items(argument: str) -> Iterator[tuple[str, str]]:
        yield where_am_i(), argument

    for function, options in ((given, {}), (items, {"num_returns": "streaming"})):
        folder = tmp_path / function.__name__
        folder.mkdir()
        made = task(function, ids[0], max_retries=retries, **options).remote(ReadSlowly(folder))
        wait_for((folder / "came").exists, SOON_S, "its arguments are read")
        stead.taint(ids[0], {"repair": "yes"})
        (folder / "go").touch()
        node, argument = ray.get(next(made) if options else made, timeout=SOON_S)
        assert node in ids[1:]
        assert argument == "read"
        stead.untaint(ids[0], ["repair"])


@pytest.mark.parametrize("count", [0, 2])
def test_it_returns_the_requested_number_of_results(count: int, ids: list[str], tmp_path: Path) -> None:
    def several() -> Any:
        (tmp_path / "ran").write_text(where_am_i())
        return tuple(range(count)) or None

    with let_in_too_late(ids[0]):
        refs = task(several, ids[0], num_returns=count).remote()
    if count:
        assert ray.get(refs, timeout=SOON_S) == [0, 1]
    assert wait_for((tmp_path / "ran").exists, SOON_S)
    assert (tmp_path / "ran").read_text() in ids[1:]


def test_a_generator_yields_its_items_and_raises_its_exception(ids: list[str]) -> None:
    def items() -> Iterator[Any]:
        yield where_am_i()
        yield 2
        raise KeyError("third")

    with let_in_too_late(ids[0]):
        refs = task(items, ids[0]).remote()
    assert ray.get(next(refs), timeout=SOON_S) in ids[1:]
    assert ray.get(next(refs), timeout=SOON_S) == 2
    with pytest.raises(KeyError, match="third"):
        ray.get(next(refs), timeout=SOON_S)
    assert list(refs) == []


# -- failures


class Refused(ValueError):
    pass


def test_its_exception_is_the_users_own_and_retried_as_often_as_asked(ids: list[str], tmp_path: Path) -> None:
    def fails() -> None:
        with (tmp_path / "ran").open("a") as file:
            file.write(where_am_i() + "\n")
        raise Refused("not today")

    with let_in_too_late(ids[0]):
        ref = task(fails, ids[0], max_retries=2, retry_exceptions=[ValueError]).remote()
    with pytest.raises(Refused, match="not today") as caught:
        ray.get(ref, timeout=SOON_S)
    assert isinstance(caught.value, ray.exceptions.RayTaskError)
    assert type(caught.value.cause) is Refused
    assert caught.value.cause.args == ("not today",)
    # Its retries wait for the node that they prefer until they are admitted, or the taint is removed.
    assert 1 <= counted(tmp_path / "ran") <= 3
    assert ids[0] not in (tmp_path / "ran").read_text()


@pytest.mark.parametrize("retries", [0, 1])
def test_a_crash_of_its_worker_costs_one_retry(retries: int, ids: list[str], tmp_path: Path) -> None:
    def crashes() -> int:
        with (tmp_path / "ran").open("a") as file:
            file.write("once\n")
        if counted(tmp_path / "ran") == 1:
            os._exit(1)
        return counted(tmp_path / "ran")

    with let_in_too_late(ids[0]):
        ref = task(crashes, ids[0], max_retries=retries).remote()
    wait_for(lambda: counted(tmp_path / "ran"), SOON_S, "the first run")
    if retries:
        stead.untaint(ids[0], ["repair"])
        assert ray.get(ref, timeout=SOON_S) == 2
    else:
        with pytest.raises(ray.exceptions.WorkerCrashedError):
            ray.get(ref, timeout=SOON_S)
        assert counted(tmp_path / "ran") == 1


# -- cancelling


@pytest.mark.parametrize("running", [False, True], ids=["while it waits", "while it runs"])
@pytest.mark.parametrize("options", [{}, {"recursive": False}, {"force": True}], ids=str)
def test_cancelling_it_cancels_the_redirected_call(running: bool, options: Any, ids: list[str], tmp_path: Path) -> None:
    def sleeps() -> None:
        (tmp_path / "began").touch()
        for _ in range(600):
            threading.Event().wait(0.1)
        (tmp_path / "ended").touch()

    with busy(*(() if running else ids[1:])):
        with let_in_too_late(ids[0]):
            ref = task(sleeps, ids[0]).remote()
        if running:
            wait_for((tmp_path / "began").exists, SOON_S, "the start")
        else:
            wait_for(lambda: waits_here(ids[0]), SOON_S, "the task that waits")
        ray.cancel(ref, **options)
        with pytest.raises((ray.exceptions.TaskCancelledError, ray.exceptions.WorkerCrashedError)):
            ray.get(ref, timeout=SOON_S)
    wait_for(lambda: sum(view.available.get("CPU", 0) for view in stead.nodes()) == 3, SOON_S, "the end of all of it")
    assert not (tmp_path / "ended").exists()
    assert running or not (tmp_path / "began").exists()


def waits_here(id: str) -> bool:
    """Whether Ray considers a task on the node running, although its CPU is free: it waits for another task."""
    store = ControlStore(ray.get_runtime_context().gcs_address)
    return any(row.node_id == id for row in store.tasks("RUNNING") if not row.is_actor) and free_cpus(id) == 1


# -- where it may go


def test_it_holds_what_it_asked_for(ids: list[str]) -> None:
    def held() -> tuple[str, Any]:
        return where_am_i(), ray.get_runtime_context().get_assigned_resources()

    with let_in_too_late(ids[0]):
        ref = task(held, ids[0], num_cpus=0.5, resources={"disk": 1.5}, memory=5_000_000).remote()
    node, amounts = ray.get(ref, timeout=SOON_S)
    assert node == ids[2]
    asked = {name: amount for name, amount in amounts.items() if not name.startswith(("stead.", "node:"))}
    assert asked == {"CPU": 0.5, "disk": 1.5, "memory": 5_000_000.0}


def test_labels_that_ray_matches_apply_to_it(ids: list[str]) -> None:
    with busy(ids[2]):
        with let_in_too_late(ids[0]):
            ref = task(where_am_i, ids[0], label_selector={"ray.io/region": "north"}).remote()
        assert ray.wait([ref], timeout=4.0)[0] == []
    assert ray.get(ref, timeout=SOON_S) == ids[2]


NORTH = {"ray.io/region": "north"}


@pytest.mark.parametrize(
    "options",
    [
        {"label_selector": NORTH},
        {"label_selector": {"ray.io/region": "west"}, "fallback_strategy": [{"label_selector": NORTH}]},
        {"label_selector": {"ray.io/region": f"in(north,{','.join(f'the-far-west-{at}' for at in range(200))})"}},
    ],
    ids=["a selector", "a fallback", "a long selector"],
)
def test_its_labels_apply_even_if_ray_does_not_list_it(options: dict[str, Any], ids: list[str]) -> None:
    # Ray lists a task about a second after its submission, so a redirect may come first. This one is never listed.
    with let_in_too_late(ids[0]):
        refs = [task(where_am_i, ids[0], enable_task_events=False, **options).remote() for _ in range(3)]
    assert ray.get(refs, timeout=SOON_S) == [ids[2]] * 3


@pytest.mark.parametrize(
    "needs",
    [{"resources": {"only": 1}}, {"hard": True}, {"hard": True, "label_selector": NORTH}],
    ids=["it needs what only that node has", "it is pinned there", "it is pinned there and has labels"],
)
def test_work_that_can_only_run_there_waits_until_the_taint_is_gone(needs: dict[str, Any], ids: list[str]) -> None:
    options = dict(needs)
    if is_pinned := options.pop("hard", False):
        options["scheduling_strategy"] = pinned(ids[0])
    with let_in_too_late(ids[0], by_hand=is_pinned):
        refs = [task(where_am_i, ids[0], **options).remote() for _ in range(3)]
    assert ray.wait(refs, timeout=4.0)[0] == [], "none runs there, and none has failed"
    shut_again()
    stead.untaint(ids[0], ["repair"])
    assert set(ray.get(refs, timeout=SOON_S)) == {ids[0]}


def test_several_are_redirected_while_other_work_stays_on_the_node(ids: list[str]) -> None:
    stays = Resident.options(scheduling_strategy=pinned(ids[0]), num_cpus=0).remote()
    assert ray.get(stays.where.remote(), timeout=SOON_S) == ids[0]
    with let_in_too_late(ids[0]):
        refs = [task(where_am_i, ids[0]).remote() for _ in range(5)]
    assert set(ray.get(refs, timeout=2 * SOON_S)) <= {*ids[1:]}
    ray.kill(stays)


def test_while_it_waits_its_cpu_is_free_for_work_that_tolerates_the_taint(ids: list[str]) -> None:
    with busy(*ids[1:]):
        with let_in_too_late(ids[0]):
            ref = task(where_am_i, ids[0]).remote()
        wait_for(lambda: waits_here(ids[0]), SOON_S, "the task that waits")
        tolerant = task(where_am_i, ids[0], tolerations={"repair": stead.Exists()})
        assert ray.get([tolerant.remote() for _ in range(3)], timeout=SOON_S) == [ids[0]] * 3
        assert ray.wait([ref], timeout=0.5)[0] == []
    assert ray.get(ref, timeout=SOON_S) in ids[1:]


# -- deadlines


def test_a_deadline_counts_until_it_runs(ids: list[str]) -> None:
    with busy(*ids[1:]):
        with let_in_too_late(ids[0]):
            ref = task(where_am_i, ids[0], deadline_s=6.0).remote()
        with pytest.raises(stead.Unplaced):
            stead.get(ref, timeout=SOON_S)


def test_it_meets_its_deadline_when_it_starts_elsewhere_in_time(ids: list[str]) -> None:
    def sleeps() -> str:
        threading.Event().wait(35.0)
        return where_am_i()

    with let_in_too_late(ids[0]):
        ref = task(sleeps, ids[0], deadline_s=30.0).remote()
    assert stead.get(ref, timeout=SOON_S) in ids[1:]
