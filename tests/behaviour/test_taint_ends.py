"""Taints that expire: a taint can be set until a time, on every kind of cluster."""

from __future__ import annotations

from stead.engine.decisions import Placed, TaintExpired
from stead.engine.engine import Engine
from stead.engine.facts import AskSubmitted, ClockAdvanced, NodeJoined, NodeLeft, NodeTainted, NodeUntainted
from stead.engine.timing.taint_times import TaintEnd
from stead.language.taints import Effect
from tests.behaviour import ask, cluster, decide_after, node, run, taint

GPU = taint("gpu")


def lent(until: float | None = 60.0) -> Engine:
    engine = cluster(node("n", 4))
    decide_after(engine, ClockAdvanced(10), NodeTainted("n", GPU, until, owner="ml-team"))
    return engine


def test_it_expires_at_its_time_and_pending_work_is_placed() -> None:
    engine = lent()
    decide_after(engine, AskSubmitted(ask("w", 1)))
    assert engine.next_moment == 60.0
    assert decide_after(engine, ClockAdvanced(59)) == []
    assert decide_after(engine, ClockAdvanced(60)) == [TaintExpired("n", GPU), Placed("w", "n")]
    assert not engine.nodes["n"].taints and not engine.taint_ends
    assert engine.next_moment is None


def test_the_engine_shows_its_owner_and_when_it_expires() -> None:
    assert lent().taint_ends == (TaintEnd("n", "gpu", "no-schedule", 10.0, 60.0, "", "ml-team"),)


def test_setting_it_again_moves_its_end() -> None:
    engine = lent()
    decide_after(engine, NodeTainted("n", GPU, 90.0))
    assert decide_after(engine, ClockAdvanced(60)) == []
    assert decide_after(engine, ClockAdvanced(90)) == [TaintExpired("n", GPU)]


def test_setting_it_again_without_an_end_keeps_it() -> None:
    engine = lent()
    decide_after(engine, NodeTainted("n", GPU))
    assert engine.next_moment is None
    assert decide_after(engine, ClockAdvanced(1000)) == []


def test_a_removed_taint_does_not_expire() -> None:
    engine = lent()
    decide_after(engine, NodeUntainted("n", "gpu"), NodeTainted("n", taint("gpu", "other")))
    assert decide_after(engine, ClockAdvanced(60)) == []
    assert engine.nodes["n"].taints == (taint("gpu", "other"),)


def test_one_effect_of_a_key_ends_alone() -> None:
    engine = lent()
    decide_after(engine, NodeTainted("n", taint("gpu", effect=Effect.NO_EXECUTE)))
    assert decide_after(engine, ClockAdvanced(60)) == [TaintExpired("n", GPU)]
    assert [each.effect for each in engine.nodes["n"].taints] == [Effect.NO_EXECUTE]


def test_it_ends_with_its_node() -> None:
    engine = lent()
    decide_after(engine, NodeLeft("n"), NodeJoined(node("n", 4)))
    assert (engine.taint_ends, engine.next_moment) == ((), None)


def test_work_that_tolerates_it_long_enough_stays() -> None:
    engine = cluster(node("n", 4))
    run(engine, ask("w", 1, tolerations=()), "n")
    evicting = taint("gpu", effect=Effect.NO_EXECUTE)
    assert [type(each).__name__ for each in decide_after(engine, NodeTainted("n", evicting, 0.0))] == ["TaintExpired"]


def test_a_fork_and_a_restored_engine_keep_its_end() -> None:
    engine = lent()
    for twin in (engine.fork(), Engine.restored(engine.checkpoint())):
        assert twin.taint_ends == engine.taint_ends
        assert decide_after(twin, ClockAdvanced(60)) == [TaintExpired("n", GPU)]
    assert engine.nodes["n"].taints == (GPU,)
