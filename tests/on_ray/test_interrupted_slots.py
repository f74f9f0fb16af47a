"""The slot of an interrupted task ends with the task: no other task may take it without amounts."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

from stead.engine.facts import AskEnded
from stead.language.asks import Ask
from stead.ray.control.preempted_tasks import PreemptedTasks
from stead.ray.control.slot_pools import Place, Pools

NODE, NAME = "n1", "stead.s/shape/0"


def tasks_in(place: Place) -> PreemptedTasks:
    pool = Mock(places={NODE: place}, shape=Mock(ask=Ask.of("w", {"CPU": 1})))
    pools = Pools()
    pools[NAME] = pool
    return PreemptedTasks(pools, lambda id: pool)


def test_the_slot_and_its_unit_end_when_the_task_reports_its_end() -> None:
    place = Place(ids=["a", "b"], open=2, sent=2.0, used=2, blocked={"a"}, preempted={"a": True})
    tasks = tasks_in(place)
    tasks.ended(NODE, ["other", NAME])
    assert (place.ids, place.open, place.sent, place.blocked, place.preempted) == (["b"], 1, None, set(), {})
    assert tasks.facts(Mock(nodes={})) == [AskEnded("a")]
    assert tasks.facts(Mock(nodes={})) == []


def test_the_end_of_a_task_that_nobody_interrupted_changes_nothing() -> None:
    place = Place(ids=["a"], open=1, sent=1.0, used=1, preempted={"a": False})
    tasks = tasks_in(place)
    tasks.ended(NODE, [NAME])
    assert (place.ids, place.open, place.sent) == (["a"], 1, 1.0)


def free(cpus: float) -> Any:
    return Mock(nodes={NODE: Mock(available={"CPU": cpus})})


def test_room_is_free_again_for_the_next_interrupted_task_once_it_was_in_use() -> None:
    place = Place(ids=["a", "b"], open=2, sent=2.0, used=2, preempted={"a": True})
    tasks = tasks_in(place)
    assert tasks.facts(free(0)) == []
    assert tasks.facts(free(1))[:1] == [AskEnded("a")]
    place.preempted["b"] = True
    assert tasks.facts(free(1)) == [], "it is the room of the first"
    assert tasks.facts(free(0)) == [], "other work took it"
    assert tasks.facts(free(1))[:1] == [AskEnded("b")]
