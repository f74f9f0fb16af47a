"""Waiting for a drained node: it is empty when nothing ran on it for a while."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from stead.operate import draining
from stead.operate.desk import Desk
from stead.operate.snapshot import Query
from stead.operate.views import NodeView, Page


class Looked:
    """A desk that returns these views of its node one after the other, and then the last one again."""

    def __init__(self, *views: NodeView) -> None:
        self.views, self.looks = list(views), 0

    def summary(self) -> SimpleNamespace:
        return SimpleNamespace(kind="ray")

    def node(self, said: str) -> NodeView:
        assert said == "n"
        self.looks += 1
        return self.views.pop(0) if len(self.views) > 1 else self.views[0]


def view(runs: int = 0, **available: float) -> NodeView:
    total = {"CPU": 4.0, "object_store_memory": 100.0}
    return NodeView("n", "", "", {}, {}, (), (), True, total, {**total, **available}, runs)


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock that only `sleep` advances."""
    now = [0.0]
    moved = SimpleNamespace(monotonic=lambda: now[0], sleep=lambda seconds: now.__setitem__(0, now[0] + seconds))
    monkeypatch.setattr(draining, "time", moved)
    return now


def left(desk: Any, timeout_s: float | None) -> int:
    return draining.left_on(cast(Desk, desk), "n", timeout_s)


def test_it_returns_after_the_node_was_empty_for_a_while(clock: list[float]) -> None:
    assert left(Looked(view(2), view(1), view()), None) == 0
    assert clock[0] >= draining.EMPTY_S


def test_unlisted_work_that_uses_the_node_counts() -> None:
    assert left(Looked(view(CPU=3.0)), 10.0) == 1


def test_a_node_with_only_objects_is_empty() -> None:
    assert left(Looked(view(object_store_memory=40.0)), 10.0) == 0


def test_a_gap_in_the_list_does_not_end_the_wait() -> None:
    assert left(Looked(view(1), view(), view(1), view(3)), 10.0) == 3


def test_after_the_timeout_it_returns_how_many_are_left(clock: list[float]) -> None:
    assert left(Looked(view(5)), 10.0) == 5
    assert 10.0 <= clock[0] < 11.0


class LookedAtPods(Looked):
    """A desk of a Kubernetes cluster, with pods of these owners on the node."""

    def __init__(self, *owners: str) -> None:
        super().__init__(view(len(owners), CPU=1.0))
        self.owners = owners

    def summary(self) -> SimpleNamespace:
        return SimpleNamespace(kind="kubernetes")

    def work(self, query: Query) -> Page[Any]:
        assert query.filters == ("node=n",)
        return Page(tuple(SimpleNamespace(owner=owner) for owner in self.owners), len(self.owners))


@pytest.mark.parametrize(
    ("owners", "count"),
    [
        (["kube-system/DaemonSet/agent", "kube-system/Node/n"], 0),
        (["default/ReplicaSet/web", "kube-system/DaemonSet/agent"], 1),
        ([""], 1),
    ],
)
def test_pods_that_a_drain_does_not_evict_do_not_count(owners: list[str], count: int) -> None:
    assert left(LookedAtPods(*owners), 10.0) == count
