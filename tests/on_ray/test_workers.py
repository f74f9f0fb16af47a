"""What workers compute on their own: how long work may stay under a no-execute taint, and the name that a redirected
task uses."""

from __future__ import annotations

import pytest

pytest.importorskip("ray")

from stead.ray.submit.redirects import current_name
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
