"""What workers work out by themselves: how long work may stay under a no-execute taint, and under which name it
moves on."""

from __future__ import annotations

import pytest

pytest.importorskip("ray")

from stead.ray.page import Page
from stead.ray.redirects import name_today
from stead.ray.workers import Stays

HEAD_S = 1_700_000_000.0
"""When the taint was made, on the head's clock, of which a worker knows nothing."""


@pytest.mark.parametrize("differs_s", [0.0, -3600.0, 3600.0])
def test_the_clock_of_the_head_does_not_count(differs_s: float) -> None:
    due, stays = {"pass": (HEAD_S + differs_s, 10.0)}, Stays()
    assert [stays.over(due, began=0.0, now=now) for now in (100.0, 109.9, 110.0)] == [[], [], ["pass"]]


def test_work_that_begins_under_the_taint_may_stay_from_then_on() -> None:
    due, stays = {"pass": (HEAD_S, 10.0)}, Stays()
    assert [stays.over(due, began=150.0, now=now) for now in (100.0, 159.9, 160.0)] == [[], [], ["pass"]]


def test_a_taint_that_goes_and_comes_again_counts_anew() -> None:
    stays = Stays()
    assert stays.over({"pass": (HEAD_S, 10.0)}, 0.0, 100.0) == []
    assert stays.over({}, 0.0, 105.0) == []
    assert stays.over({"pass": (HEAD_S + 7, 10.0)}, 0.0, 112.0) == []
    assert stays.over({"pass": (HEAD_S + 7, 10.0)}, 0.0, 122.0) == ["pass"]


def test_each_name_has_its_own_time_and_none_is_at_once() -> None:
    due = {"a": (HEAD_S, 0.0), "b": (HEAD_S, 5.0)}
    assert Stays().over(due, 0.0, 1.0) == ["a"]


@pytest.mark.parametrize(
    ("held", "today"),
    [
        ("stead.plain.0", "stead.plain.2"),
        ("stead.s/abc/1", "stead.s/abc/3"),
        ("GPU", "GPU"),
        ("stead.t/x", "stead.t/x"),
    ],
)
def test_a_task_that_moves_on_goes_by_the_name_that_a_new_submission_has(held: str, today: str) -> None:
    assert name_today(Page(generations={"plain": 2}, slots={"abc": 3}), held) == today
