"""NoExecute taints: which work is evicted, and when."""

from __future__ import annotations

from typing import Any

import pytest

from stead.engine.decisions import Evicted
from stead.engine.engine import Engine
from stead.engine.facts import (
    AskEnded,
    AskLost,
    ClockAdvanced,
    GroupSubmitted,
    NodeJoined,
    NodeLeft,
    NodeTainted,
    NodeUntainted,
)
from stead.language.asks import Ask
from stead.language.taints import TOLERATE_ALL, Effect, Toleration
from tests.behaviour import (
    ask,
    cluster,
    decide_after,
    evicted,
    group,
    node,
    place,
    placements,
    run,
    submit,
    taint,
    tolerates,
)

OUT = taint("maintenance", "now", Effect.NO_EXECUTE)


def running(*tolerations: Toleration, **rest: Any) -> Engine:
    """A cluster in which `w` runs on n0."""
    engine = cluster(node("n0"))
    assert place(engine, ask("w", 1, tolerations=tolerations, **rest)) == ["n0"]
    return engine


def staying(seconds: float | None) -> Toleration:
    return tolerates("maintenance", seconds=seconds)


def test_work_that_does_not_tolerate_a_no_execute_taint_is_evicted_at_once() -> None:
    assert decide_after(running(), NodeTainted("n0", OUT)) == [Evicted("w", "n0", OUT)]


@pytest.mark.parametrize("effect", [Effect.NO_SCHEDULE, Effect.PREFER_NO_SCHEDULE], ids=str)
def test_other_effects_evict_no_work(effect: Effect) -> None:
    assert decide_after(running(), NodeTainted("n0", taint("maintenance", "now", effect))) == []


@pytest.mark.parametrize(
    "toleration",
    [
        pytest.param(TOLERATE_ALL, id="it tolerates everything"),
        pytest.param(staying(None), id="it tolerates the key forever"),
        pytest.param(tolerates("maintenance", "now"), id="it tolerates the value forever"),
        pytest.param(tolerates("maintenance", effect=Effect.NO_EXECUTE), id="it tolerates the effect forever"),
    ],
)
def test_work_that_tolerates_it_forever_stays(toleration: Toleration) -> None:
    engine = running(toleration)
    assert decide_after(engine, NodeTainted("n0", OUT), ClockAdvanced(1e9)) == []
    assert engine.next_moment is None


@pytest.mark.parametrize(
    ("tolerations", "stay"),
    [
        pytest.param((staying(30),), 30, id="the seconds of the one that covers it"),
        pytest.param((staying(30), staying(10), staying(20)), 10, id="the shortest of several"),
        pytest.param((staying(None), staying(10)), 10, id="seconds beat forever"),
        pytest.param((staying(10), tolerates("other", seconds=1)), 10, id="one of another key does not count"),
        pytest.param((staying(10), tolerates("maintenance", "never", seconds=1)), 10, id="nor one of another value"),
        pytest.param(
            (staying(10), tolerates("maintenance", effect=Effect.NO_SCHEDULE, seconds=1)),
            10,
            id="nor of another effect",
        ),
    ],
)
def test_work_that_tolerates_it_for_a_while_stays_that_long(tolerations: tuple[Toleration, ...], stay: float) -> None:
    engine = running(*tolerations)
    engine.apply(ClockAdvanced(100), NodeTainted("n0", OUT))
    assert engine.decide() == []
    assert engine.next_moment == 100 + stay
    assert decide_after(engine, ClockAdvanced(100 + stay - 0.001)) == []
    assert decide_after(engine, ClockAdvanced(100 + stay)) == [Evicted("w", "n0", OUT)]


@pytest.mark.parametrize("seconds", [0.0, -5.0])
def test_zero_or_negative_seconds_mean_at_once(seconds: float) -> None:
    assert evicted(decide_after(running(staying(seconds)), NodeTainted("n0", OUT))) == ["w"]


def test_an_eviction_is_decided_once() -> None:
    engine = running()
    assert evicted(decide_after(engine, NodeTainted("n0", OUT))) == ["w"]
    assert decide_after(engine, NodeTainted("n0", OUT), ClockAdvanced(5)) == []


def test_a_taint_removed_in_time_evicts_no_work() -> None:
    engine = running(staying(30))
    decide_after(engine, NodeTainted("n0", OUT))
    assert decide_after(engine, ClockAdvanced(29), NodeUntainted("n0", "maintenance")) == []
    assert decide_after(engine, ClockAdvanced(1000)) == []


def test_a_taint_that_is_set_again_after_removal_restarts_the_time() -> None:
    engine = running(staying(30))
    decide_after(engine, NodeTainted("n0", OUT), ClockAdvanced(20), NodeUntainted("n0", "maintenance"))
    decide_after(engine, ClockAdvanced(25), NodeTainted("n0", OUT))
    assert decide_after(engine, ClockAdvanced(30)) == []
    assert evicted(decide_after(engine, ClockAdvanced(55))) == ["w"]


def test_setting_the_same_taint_again_does_not_extend_the_time() -> None:
    engine = running(staying(30))
    decide_after(engine, NodeTainted("n0", OUT), ClockAdvanced(20), NodeTainted("n0", OUT))
    assert evicted(decide_after(engine, ClockAdvanced(30))) == ["w"]


def test_a_node_that_joins_again_does_not_extend_the_time() -> None:
    engine = running(staying(30))
    engine.apply(NodeTainted("n0", OUT), ClockAdvanced(20), NodeJoined(node("n0", taints=[OUT])))
    assert evicted(decide_after(engine, ClockAdvanced(30))) == ["w"]


def test_a_node_that_joins_again_does_not_repeat_an_eviction() -> None:
    engine = running()
    assert evicted(decide_after(engine, NodeTainted("n0", OUT))) == ["w"]
    assert decide_after(engine, NodeJoined(node("n0", taints=[OUT]))) == []


def test_another_value_of_the_taint_is_another_taint() -> None:
    engine = running(tolerates("maintenance", "now", seconds=30))
    decide_after(engine, NodeTainted("n0", OUT))
    later = taint("maintenance", "later", Effect.NO_EXECUTE)
    assert decide_after(engine, ClockAdvanced(1), NodeTainted("n0", later)) == [Evicted("w", "n0", later)]
    assert decide_after(engine, ClockAdvanced(30)) == []


def test_each_of_two_taints_counts_its_own_time() -> None:
    engine = running(staying(30), tolerates("power", seconds=10))
    power = taint("power", "", Effect.NO_EXECUTE)
    decide_after(engine, NodeTainted("n0", OUT), ClockAdvanced(5), NodeTainted("n0", power))
    assert engine.next_moment == 15
    assert decide_after(engine, ClockAdvanced(15)) == [Evicted("w", "n0", power)]


def test_all_work_of_the_node_is_looked_at_and_that_of_others_is_not() -> None:
    engine = cluster(node("n0"), node("n1"))
    for id, where in (("a", "n0"), ("b", "n1"), ("c", "n0")):
        run(engine, ask(id, 1), where)
    run(engine, ask("d", 1, tolerations=(TOLERATE_ALL,)), "n0")
    assert sorted(evicted(decide_after(engine, NodeTainted("n0", OUT)))) == ["a", "c"]


def test_evicted_work_keeps_its_resources_until_the_cluster_reports_it_lost() -> None:
    engine = running()
    decide_after(engine, NodeTainted("n0", OUT))
    assert engine.placed == {"w": "n0"}
    assert placements(decide_after(engine, NodeJoined(node("n1")), AskLost("w"))) == {"w": "n1"}


def test_work_placed_on_a_tainted_node_may_stay_as_long_as_it_tolerates_it() -> None:
    engine = cluster(node("n0", taints=[OUT]))
    assert place(engine, ask("w", 1, tolerations=(staying(30),))) == ["n0"]
    assert decide_after(engine, ClockAdvanced(29)) == []
    assert evicted(decide_after(engine, ClockAdvanced(30))) == ["w"]


def test_equal_work_placed_together_on_a_tainted_node_leaves_together() -> None:
    engine = cluster(node("n0", taints=[OUT]))
    place(engine, *(ask(f"w{index}", 1, tolerations=(staying(30),)) for index in range(3)))
    assert evicted(decide_after(engine, ClockAdvanced(30))) == ["w0", "w1", "w2"]


def test_work_that_the_cluster_runs_on_a_tainted_node_is_evicted_too() -> None:
    engine = cluster(node("n0", taints=[OUT]))
    run(engine, ask("w", 1), "n0")
    assert engine.decide() == [Evicted("w", "n0", OUT)]


def test_members_of_a_group_are_evicted_like_any_work() -> None:
    engine = cluster(node("n0", taints=[OUT]))
    members = (ask("m0", 1, tolerations=(staying(10),)), ask("m1", 1, tolerations=(TOLERATE_ALL,)))
    decide_after(engine, GroupSubmitted(group("g", *members)))
    assert evicted(decide_after(engine, ClockAdvanced(10))) == ["m0"]


@pytest.mark.parametrize(
    "gone",
    [
        pytest.param((AskEnded("w"),), id="the work ended"),
        pytest.param((AskLost("w"),), id="the work lost its place"),
        pytest.param((NodeLeft("n0"),), id="the node left"),
    ],
)
def test_work_that_has_left_the_node_is_not_evicted(gone: tuple[Any, ...]) -> None:
    engine = running(staying(30))
    decide_after(engine, NodeTainted("n0", OUT))
    decide_after(engine, ClockAdvanced(10), NodeJoined(node("n1")), NodeTainted("n0", taint("keep out")), *gone)
    assert decide_after(engine, ClockAdvanced(30)) == []


def test_the_time_counts_from_the_last_placement() -> None:
    engine = running(staying(30))
    decide_after(engine, NodeTainted("n0", OUT))
    assert placements(decide_after(engine, ClockAdvanced(20), AskLost("w"))) == {"w": "n0"}
    assert decide_after(engine, ClockAdvanced(30)) == []
    assert evicted(decide_after(engine, ClockAdvanced(50))) == ["w"]


def test_new_work_with_an_old_id_has_its_own_time() -> None:
    engine = running(staying(30))
    decide_after(engine, NodeTainted("n0", OUT))
    patient = Ask.of("w", {"CPU": 1}, tolerations=(staying(None),))
    assert placements(decide_after(engine, AskEnded("w"))) == {}
    assert placements(submit(engine, patient)) == {"w": "n0"}
    assert decide_after(engine, ClockAdvanced(30)) == []
