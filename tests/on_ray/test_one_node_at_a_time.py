"""A change of one node affects only that node, and a hanging node does not delay the others."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
import ray

import stead
from stead.ray.local.local_cluster import LocalCluster
from stead.ray.submit.compile import Pass, Wish, route
from stead.ray.submit.connection import connection
from stead.ray.wire.own_names import read_name
from tests.on_ray.conftest import ClusterOf
from tests.on_ray.waiting import wait_for
from tests.on_ray.workload import SOON_S, Resident, attached, landed, occupied, pinned, where

pytestmark = pytest.mark.long

PLAIN = Wish(Pass())

FAILED_WITHIN_S = 12.0
"""The original bug failed work 6 to 8 s after a taint of another node."""

SLOW_TO_NOTICE = {"RAY_health_check_failure_threshold": "1000"}
"""A stopped node is not declared dead while a test looks at it."""


@pytest.fixture(scope="module")
def cluster(cluster_of: ClusterOf) -> Iterator[LocalCluster]:
    started = cluster_of([{"num_cpus": 2}, {"num_cpus": 2}, {"num_cpus": 2}], environment=SLOW_TO_NOTICE)
    with attached(started):
        yield started


@contextmanager
def tainted(node_id: str) -> Iterator[None]:
    stead.taint(node_id, {"mine": "yes"})
    try:
        yield
    finally:
        stead.untaint(node_id, ["mine"])


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """A raylet that does not answer during a block."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def names_on(node_id: str) -> dict[str, float]:
    """The names of the pass of plain work."""
    total = ray._private.state.state.total_resources_per_node()[node_id]
    return {name: amount for name, amount in total.items() if (read_name(name) or ("",))[0] == "plain"}


def test_work_that_is_pinned_to_a_busy_node_outlives_a_taint_of_another(cluster: LocalCluster) -> None:
    _, busy, other = (node.node_id for node in cluster.nodes)
    with tainted(cluster.nodes[0].node_id):  # so that plain work is bound
        with occupied(busy, 2):
            hard = [where.options(scheduling_strategy=pinned(busy)).remote() for _ in range(3)]
            soft = [where.options(scheduling_strategy=pinned(busy, soft=True)).remote() for _ in range(3)]
            with tainted(other):
                assert not ray.wait(hard + soft, timeout=FAILED_WITHIN_S, fetch_local=False)[0]
        assert set(ray.get(hard + soft, timeout=SOON_S)) == {busy}


def test_a_taint_changes_nothing_on_the_other_nodes(cluster: LocalCluster) -> None:
    first, second, third = (node.node_id for node in cluster.nodes)
    before = names_on(first), names_on(third)
    with tainted(second):
        assert landed(cluster, 3) <= {0, 2}
        assert (names_on(first), names_on(third)) == before


class TestWhileOneNodeHangs:
    def test_another_one_can_be_tainted_and_work_with_labels_starts(self, cluster: LocalCluster) -> None:
        first, second, _ = (node.node_id for node in cluster.nodes)
        with stopped(cluster.nodes[2].raylet_pid):
            assert stead.taint(second, {"mine": "yes"}).unconfirmed == ()
            try:
                stead.label(first, {"disk": "ssd"})
                assert landed(cluster, 3, label_selector={"disk": "ssd"}) == {0}
            finally:
                stead.untaint(second, ["mine"])

    def test_a_taint_of_it_reports_that_and_holds_once_it_answers(self, cluster: LocalCluster) -> None:
        third = cluster.nodes[2].node_id
        with stopped(cluster.nodes[2].raylet_pid):
            assert stead.taint(third, {"mine": "yes"}).unconfirmed == (third,)
        try:
            wait_for(lambda: not any(amount > 1 for amount in names_on(third).values()), SOON_S, "the withdrawal")
            assert landed(cluster, 6) <= {0, 1}
            assert any(event.kind == "unconfirmed" and event.subject == third for event in stead.events())
        finally:
            stead.untaint(third, ["mine"])

    @pytest.mark.parametrize("soft", [True, False], ids=["prefers", "needs"])
    @pytest.mark.parametrize("actor", [False, True], ids=["task", "actor"])
    def test_work_for_this_node_waits_until_it_has_the_pass(
        self, actor: bool, soft: bool, cluster: LocalCluster
    ) -> None:
        """A busy node answers late, and is not called again before: it gets the second of these passes last. Without
        the pass, Ray ignores a preference for the node and fails a pin to it."""
        third = cluster.nodes[2].node_id
        first, second = (
            {f"{name}-{actor}-{soft}": stead.Exists(effect="no-execute", seconds=60)} for name in ("first", "second")
        )
        options = {"tolerations": second, "scheduling_strategy": pinned(third, soft), "num_cpus": 0}

        def submit() -> Any:
            return (Resident.options(**options).remote().where if actor else where.options(**options)).remote()

        with ThreadPoolExecutor(1) as submitting:
            with stopped(cluster.nodes[2].raylet_pid):
                connection().ask("introduce", [route({"tolerations": first}).wish])
                wait_for(lambda: third in connection().page().late, what="the news that the node is late")
                ref = submitting.submit(submit)
                key = route({"tolerations": second}).wish.admits.key
                wait_for(lambda: key in connection().page().generations, what="the pass on the other nodes")
            assert ray.get(ref.result(), timeout=SOON_S) == third
        assert connection().page().late == []


def test_a_pin_to_a_node_that_has_long_had_the_pass_does_not_wait(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Waiting for a round and a period of Ray's sync is only needed for passes granted a moment ago."""
    second, third = (node.node_id for node in cluster.nodes[1:])
    asked: list[str] = []
    with tainted(third):  # so that plain work is bound, and the page is new
        wait_for(
            lambda: connection().ask("admission", "pin", [PLAIN, second]) == ("", 0.0),
            SOON_S,
            "the pass is known there",
        )
        ask = connection().ask

        def noted(method: str, *given: Any, **named: Any) -> Any:
            asked.append(method)
            return ask(method, *given, **named)

        monkeypatch.setattr(connection(), "ask", noted)
        refs = [where.options(scheduling_strategy=pinned(second)).remote() for _ in range(20)]
        assert asked == ["admission"]
        monkeypatch.undo()
        assert set(ray.get(refs, timeout=SOON_S)) == {second}
