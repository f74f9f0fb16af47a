"""What workers compute on their own: how long work may stay under a no-execute taint, and the name that a redirected
task uses."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("ray")

from stead.ray.submit import redirects
from stead.ray.submit.redirects import Redirect, current_name
from stead.ray.submit.workers import Stays
from stead.ray.wire.node_page import Page

HEAD_S = 1_700_000_000.0
"""When the taint was set, on the head's clock, which workers do not use."""


@pytest.mark.parametrize("differs_s", [0.0, -3600.0, 3600.0])
def test_the_clock_of_the_head_does_not_count(differs_s: float) -> None:
    due, stays = {"pass": (HEAD_S + differs_s, 10.0)}, Stays()
    assert [stays.expired(due, began=0.0, now=now) for now in (100.0, 109.9, 110.0)] == [[], [], ["pass"]]


def test_work_that_begins_under_the_taint_may_stay_from_then_on() -> None:
    due, stays = {"pass": (HEAD_S, 10.0)}, Stays()
    assert [stays.expired(due, began=150.0, now=now) for now in (100.0, 159.9, 160.0)] == [[], [], ["pass"]]


def test_a_taint_that_is_removed_and_set_again_starts_a_new_period() -> None:
    stays = Stays()
    assert stays.expired({"pass": (HEAD_S, 10.0)}, 0.0, 100.0) == []
    assert stays.expired({}, 0.0, 105.0) == []
    assert stays.expired({"pass": (HEAD_S + 7, 10.0)}, 0.0, 112.0) == []
    assert stays.expired({"pass": (HEAD_S + 7, 10.0)}, 0.0, 122.0) == ["pass"]


def test_each_name_has_its_own_period_and_a_period_of_0_ends_at_once() -> None:
    due = {"a": (HEAD_S, 0.0), "b": (HEAD_S, 5.0)}
    assert Stays().expired(due, 0.0, 1.0) == ["a"]


@pytest.mark.parametrize(
    ("held", "today"),
    [
        ("stead.plain.0", "stead.plain.2"),
        ("stead.s/abc/1", "stead.s/abc/3"),
        ("GPU", "GPU"),
        ("stead.t/x", "stead.t/x"),
    ],
)
def test_a_redirected_task_uses_the_current_name(held: str, today: str) -> None:
    assert current_name(Page(generations={"plain": 2}, slots={"abc": 3}), held) == today


class TestARedirectedTask:
    """`waits_elsewhere` keeps the worker from asking for a second eviction of the same task."""

    @pytest.fixture
    def redirect(self, monkeypatch: pytest.MonkeyPatch) -> Any:
        core = SimpleNamespace(get_current_task_id=lambda: b"task", get_current_task_name=lambda: "train")
        link: Any = SimpleNamespace(core=core, waits_elsewhere=False, arguments=SimpleNamespace(take=lambda: None))
        found = Redirect(link, SimpleNamespace(descriptor=None, is_generator=False), {}, frozenset())
        monkeypatch.setattr(found, "_submitted", lambda *_: "ref")
        monkeypatch.setattr("ray.get", lambda ref: f"result of {ref}")
        return found

    def test_is_not_evicted_again_before_the_worker_takes_its_next_task(self, redirect: Any) -> None:
        assert redirect._link.waits_elsewhere
        assert redirect.function() == "result of ref"
        assert redirect._link.waits_elsewhere

    def test_can_be_evicted_again_once_it_is_back(self, redirect: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(redirects, "called_here", lambda *_: lambda: "result of this node")
        redirect._is_back = True
        assert redirect.function() == "result of this node"
        assert not redirect._link.waits_elsewhere
