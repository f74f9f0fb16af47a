"""Unmanaged work uses nodes too: it takes room, excludes exclusive work, and is never moved."""

from __future__ import annotations

import pytest

from stead.engine.decisions import Waiting
from stead.engine.engine import Engine
from stead.engine.facts import AskEnded, AskSubmitted, NodeJoined, NodeLeft, NodeResized, NodeUsed
from stead.language.asks import Affinity, Ask
from stead.language.labels import ANYWHERE, Requirement, Selector
from stead.language.resources import NOTHING, Resources
from tests.behaviour import amounts, ask, cluster, decide_after, node, placements

ALONE = Affinity(ANYWHERE, near=False, namespaces=frozenset(), symmetric=True)


def test_what_others_use_is_not_free() -> None:
    engine = cluster(node("n0", 4))
    [waiting] = decide_after(engine, NodeUsed("n0", amounts(CPU=3)), AskSubmitted(ask("w", 2)))
    assert isinstance(waiting, Waiting)
    assert [each.reason.code for each in waiting.refusals] == ["short-now"]
    assert engine.free("n0")["CPU"] == amounts(CPU=1)["CPU"]


@pytest.mark.parametrize("now", [NodeUsed("n0", amounts(CPU=2)), NodeUsed("n0", NOTHING, 0)], ids=["less", "nothing"])
def test_pending_work_is_placed_when_unmanaged_work_uses_less(now: NodeUsed) -> None:
    engine = cluster(node("n0", 4))
    decide_after(engine, NodeUsed("n0", amounts(CPU=3)), AskSubmitted(ask("w", 2)))
    assert placements(decide_after(engine, now)) == {"w": "n0"}


def test_a_report_replaces_the_one_before() -> None:
    engine = cluster(node("n0", 4))
    decide_after(engine, NodeUsed("n0", amounts(CPU=3)), NodeUsed("n0", amounts(CPU=1), 5))
    assert engine.free("n0")["CPU"] == amounts(CPU=3)["CPU"]
    assert engine.used == {"n0": NodeUsed("n0", amounts(CPU=1), 5)}


def test_a_node_that_left_has_no_unmanaged_use() -> None:
    engine = cluster(node("n0", 4))
    decide_after(engine, NodeUsed("n0", amounts(CPU=3)), NodeLeft("n0"))
    assert engine.used == {}
    decide_after(engine, NodeJoined(node("n0", 4)))
    assert engine.free("n0")["CPU"] == amounts(CPU=4)["CPU"]


def test_more_may_be_used_than_a_node_has() -> None:
    engine = cluster(node("n0", 2))
    assert decide_after(engine, NodeUsed("n0", amounts(CPU=5))) == []
    assert engine.free("n0")["CPU"] == -amounts(CPU=3)["CPU"]
    assert placements(decide_after(engine, AskSubmitted(ask("w", 1)), NodeResized("n0", amounts(CPU=6)))) == {"w": "n0"}


def test_of_several_devices_whole_ones_are_used_and_a_share_of_another() -> None:
    engine = cluster(node("n0", 9, GPU=4))
    decide_after(engine, NodeUsed("n0", amounts(GPU=2.5)))
    decide_after(engine, AskSubmitted(Ask.of("half", {"GPU": 0.5})), AskSubmitted(Ask.of("whole", {"GPU": 1})))
    assert set(engine.placed) == {"half", "whole"}, "half of a device, and a whole one, are free"
    assert engine.free("n0")["GPU"] == 0


class TestExclusiveWork:
    def test_is_pending_until_a_node_is_unused(self) -> None:
        engine = cluster(node("n0", 4), node("n1", 4))
        decide_after(engine, NodeUsed("n0", NOTHING), NodeUsed("n1", amounts(CPU=1)))
        alone = Ask.of("w", {"CPU": 1}, affinities=((ALONE,),))
        [waiting] = decide_after(engine, AskSubmitted(alone))
        assert isinstance(waiting, Waiting)
        assert [each.reason.code for each in waiting.refusals] == ["too-near"]
        assert placements(decide_after(engine, NodeUsed("n0", NOTHING, 0))) == {"w": "n0"}

    def test_of_its_own_namespace_ignores_unmanaged_work(self) -> None:
        engine = cluster(node("n0", 4))
        apart = Affinity(ANYWHERE, near=False)
        decide_after(engine, NodeUsed("n0", amounts(CPU=1)))
        assert placements(decide_after(engine, AskSubmitted(Ask.of("w", {"CPU": 1}, affinities=((apart,),))))) == {
            "w": "n0"
        }

    def test_by_labels_ignores_unmanaged_work_too(self) -> None:
        engine = cluster(node("n0", 4))
        apart = Affinity(Selector.all_of(Requirement.is_in("app", "db")), near=False, namespaces=frozenset())
        decide_after(engine, NodeUsed("n0", amounts(CPU=1)))
        assert placements(decide_after(engine, AskSubmitted(Ask.of("w", {"CPU": 1}, affinities=((apart,),))))) == {
            "w": "n0"
        }


def test_an_equal_report_wakes_no_work() -> None:
    engine = cluster(node("n0", 4))
    decide_after(engine, NodeUsed("n0", amounts(CPU=3)), AskSubmitted(ask("w", 2)))
    assert decide_after(engine, NodeUsed("n0", amounts(CPU=3))) == []


def test_a_fork_has_its_own_reports() -> None:
    engine = cluster(node("n0", 4))
    decide_after(engine, NodeUsed("n0", amounts(CPU=3)))
    twin = engine.fork()
    twin.apply(NodeUsed("n0", NOTHING, 0))
    assert (twin.free("n0")["CPU"], engine.free("n0")["CPU"]) == (amounts(CPU=4)["CPU"], amounts(CPU=1)["CPU"])


def test_a_restored_engine_knows_what_others_use() -> None:
    engine = cluster(node("n0", 9, GPU=4))
    decide_after(
        engine, NodeUsed("n0", Resources.of({"CPU": 3, "GPU": 1.5}), 2), AskSubmitted(Ask.of("w", {"GPU": 0.5}))
    )
    again = Engine.restored(engine.checkpoint())
    assert again.checkpoint() == engine.checkpoint()
    assert again.used == engine.used
    for each in (engine, again):
        each.apply(NodeUsed("n0", NOTHING, 0), AskEnded("w"))
    assert again.free("n0") == engine.free("n0") == {**amounts(CPU=9, GPU=4)}
