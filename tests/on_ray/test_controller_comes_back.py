"""The controller always restarts: when this version would decide its journal differently, when its journal is
unreadable, when its disk is full, and when its first rounds fail. Nothing that was acknowledged is lost."""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import ray

import stead
from stead.errors import Unready, Unwritable
from stead.ray.control.persistence import KEY, Copy
from stead.ray.local.local_cluster import LocalCluster
from stead.ray.submit.connection import connection
from stead.ray.wire.gcs import KeyValues
from stead.ray.wire.node_page import FOLDER
from tests.on_ray.conftest import ClusterOf
from tests.on_ray.trouble import Trouble
from tests.on_ray.waiting import wait_for
from tests.on_ray.workload import Resident, where

pytestmark = pytest.mark.long

EARLY = {"early": "yes"}


@pytest.fixture(scope="module")
def trouble(tmp_path_factory: pytest.TempPathFactory) -> Trouble:
    return Trouble(tmp_path_factory.mktemp("trouble"))


@pytest.fixture(scope="module")
def cluster(cluster_of: ClusterOf, trouble: Trouble) -> Iterator[LocalCluster]:
    """With one taint and one label that were acknowledged before anything goes wrong."""
    started = cluster_of([{"num_cpus": 2}, {"num_cpus": 2}], environment=trouble.environment)
    stead.init(started.address, namespace="tests", log_to_driver=False, logging_level="error")
    stead.taint(started.nodes[1].node_id, EARLY, effect="prefer-no-schedule", owner="me")
    stead.label(started.nodes[1].node_id, EARLY)
    yield started
    ray.shutdown()


@pytest.fixture
def second(cluster: LocalCluster) -> str:
    return cluster.nodes[1].node_id


@pytest.fixture
def stores(cluster: LocalCluster) -> Path:
    return Path(ray._private.worker.global_worker.node.get_session_dir_path()) / FOLDER


def killed() -> None:
    """Kill the controller, and wait for the next one."""
    before = connection().ask("hello")["pid"]
    os.kill(before, signal.SIGKILL)
    wait_for(lambda: connection().ask("hello")["pid"] != before, 60, "another controller")


def change_steps(stores: Path, statement: str) -> None:
    with closing(sqlite3.connect(stores / "journal.sqlite", timeout=60)) as behind:
        behind.execute("PRAGMA busy_timeout = 30000")
        behind.execute(statement)
        behind.commit()


def check(second: str) -> None:
    """Acknowledged changes are in effect, and the controller works."""
    seen = {node.id: node for node in stead.nodes()}
    assert [str(taint) for taint in seen[second].taints] == ["early=yes:prefer-no-schedule"]
    assert seen[second].ends[0].owner == "me"
    assert seen[second].labels["early"] == "yes"
    assert ray.get(where.options(label_selector=EARLY).remote(), timeout=60) == second
    stead.taint(second, {"mine": "yes"})
    assert second not in ray.get([where.remote() for _ in range(3)], timeout=60)
    stead.untaint(second, ["mine"])


def copied() -> bool:
    """Whether the copy has been written, which may take a moment."""
    found = KeyValues(ray._private.worker.global_worker.gcs_client).get(KEY)
    now = {node.id: {str(taint) for taint in node.taints} for node in stead.nodes()}
    return found is not None and now == {node.id: set(map(str, node.taints)) for node in Copy.unpacked(found).nodes}


def events(kind: str) -> list[Any]:
    return [event for event in stead.events() if event.kind == kind]


def test_decisions_that_this_version_would_make_differently_are_kept_and_reported(second: str, stores: Path) -> None:
    actor = Resident.options(num_cpus=0.1, labels={"app": "kept"}, spread={"ray.io/node-id": 1}).remote()
    home = ray.get(actor.where.remote(), timeout=60)
    stead.label(second, {"again": "yes"})
    other = '[{"asks":["nobody"],"is":"Waiting","verdicts":[]}]'
    change_steps(stores, f"UPDATE steps SET decisions = '{other}' WHERE number = (SELECT max(number) FROM steps)")
    killed()
    check(second)
    assert ray.get(actor.where.remote(), timeout=60) == home
    (event,) = wait_for(lambda: events("diverged"), 60, "the difference as an event")
    assert "this version decides differently: step" in event.text
    ray.kill(actor)


def test_an_unreadable_journal_is_moved_aside_and_nothing_is_lost(second: str, stores: Path) -> None:
    before = len(events("unreadable"))
    connection().ask("settled")
    assert wait_for(copied, 60, "the copy in Ray's store")
    change_steps(stores, "UPDATE steps SET facts = 'torn'")
    change_steps(stores, "DELETE FROM checkpoints")
    killed()
    check(second)
    assert len(events("unreadable")) == before + 1
    assert events("restored")
    assert list(stores.glob("journal.sqlite.*.unreadable"))


def test_on_a_full_disk_changes_are_refused_in_one_sentence_until_there_is_room(second: str, trouble: Trouble) -> None:
    pid = connection().ask("hello")["pid"]
    with trouble.full_disk():
        with pytest.raises(Unwritable, match=r"\.sqlite cannot be written: "):
            stead.taint(second, {"refused": "yes"})
        waiting = where.options(labels={"app": "late"}, spread={"ray.io/node-id": 1}).remote()
        actor = Resident.options(num_cpus=0.1, labels={"app": "late"}, spread={"ray.io/node-id": 1}).remote()
        with contextlib.suppress(Unready):  # the work above may have ended the controller already
            connection().ask("holds", [(second, "digest")])  # a fact without a waiting caller
        said = wait_for(lambda: _refusal("settled"), 60, "the end of the controller that could not write it")
        assert "the controller cannot write its files now: " in said
        assert "it retries automatically" in said
        assert not ray.wait([waiting], timeout=1)[0]
    assert ray.get(waiting, timeout=60)
    assert ray.get(actor.where.remote(), timeout=60)
    check(second)
    node = next(node for node in stead.nodes() if node.id == second)
    assert "refused" not in {taint.key for taint in node.taints} | node.labels.keys()
    assert connection().ask("hello")["pid"] != pid  # the one that could not write ended itself
    ray.kill(actor)


def test_rounds_that_fail_at_first_are_reported_and_retried(second: str, trouble: Trouble) -> None:
    pid = connection().ask("hello")["pid"]
    with trouble.failing_rounds():
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(
            Unready, match=r"the controller cannot start now: RuntimeError: no status today; it retries"
        ):
            stead.nodes()
    wait_for(lambda: not _refusal("hello"), 60, "the controller")
    check(second)


def _refusal(method: str) -> str:
    """The error of a call while the controller cannot work."""
    try:
        connection().ask(method)
    except Unready as error:
        return str(error)
    return ""
