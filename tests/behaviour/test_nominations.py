"""Places that are kept for pending work until what was evicted for it is gone."""

from __future__ import annotations

from typing import Any

import pytest

from stead.engine.decisions import NominationEnded, Placed, Preempted
from stead.engine.engine import Engine
from stead.engine.facts import (
    AskEnded,
    AskEnding,
    AskLost,
    AskNominated,
    AskSubmitted,
    ClockAdvanced,
    EvictionFailed,
    Fact,
    NodeDrained,
    NodeJoined,
    NodeLabelled,
    NodeLeft,
    NodeResized,
    NodeTainted,
)
from stead.language.asks import Spread
from stead.language.labels import Labels
from stead.language.taints import Effect
from tests.behaviour import (
    all_of,
    amounts,
    apart,
    apart_from_app,
    decide_after,
    near_app,
    node,
    on,
    run,
    submit,
    taint,
    zones,
)
from tests.behaviour.preempting import boss, end, full, gave_up, low, nominated, placed, running, victims

# -- waiting, and being placed


def test_the_work_is_placed_once_all_victims_are_gone() -> None:
    engine = full("a")
    assert victims(submit(engine, boss(cpu=4))) == ["a-0", "a-1"]
    assert not end(engine, "a-1")
    assert engine.is_pending("boss")
    assert placed(end(engine, "a-0")) == {"boss": "a"}


def test_a_victim_that_is_lost_is_gone_and_pending_behind_the_work() -> None:
    engine = full("a", cpu=2)
    submit(engine, boss())
    decisions = decide_after(engine, AskLost("a-0"))
    assert placed(decisions) == {"boss": "a"}
    assert engine.is_pending("a-0")


def test_nothing_more_is_evicted_while_the_work_waits() -> None:
    engine = full("a", "b")
    submit(engine, boss())
    assert not victims(decide_after(engine, ClockAdvanced(100.0), NodeJoined(node("c", 1))))


def test_work_that_waits_is_placed_elsewhere_if_it_fits_there_now() -> None:
    engine = full("a", cpu=2)
    submit(engine, boss())
    assert placed(decide_after(engine, NodeJoined(node("b", 2)))) == {"boss": "b"}
    assert placed(submit(engine, boss("next", preempts=False))) == {}, "the victim still runs"
    assert placed(end(engine, "a-0")) == {"next": "a"}


def test_its_own_place_does_not_count_for_the_work_itself() -> None:
    """If its place in zone a counted, zone b would be even."""
    engine = zones("a", "b", cpu=2)
    engine.apply(*running(low("n0-0", labels={"app": "x"}), on="n0"))
    engine.apply(*running(low("n1-0", priority=20, labels={"app": "boss"}), on="n1"))
    spread = Spread("zone", on("app", "boss"))
    work = boss(labels={"app": "boss"}, spreads=(spread,))
    assert nominated(submit(engine, work)) == {"boss": "n0"}
    assert not decide_after(engine, NodeJoined(node("n2", 2, labels={"zone": "b"})))
    assert placed(end(engine, "n0-0")) == {"boss": "n0"}


# -- for whom a place is kept


@pytest.mark.parametrize("priority", [0, 10])
def test_a_place_is_kept_from_work_of_a_lower_or_equal_priority(priority: int) -> None:
    engine = full("a")
    (gone,) = victims(submit(engine, boss()))
    submit(engine, boss("late", priority=priority, preempts=False))
    assert placed(end(engine, gone)) == {"boss": "a"}
    assert engine.is_pending("late")


def test_a_place_is_not_kept_from_work_of_a_higher_priority() -> None:
    engine = full("a", cpu=2)
    submit(engine, boss())
    decisions = submit(engine, boss("chief", priority=20))
    assert nominated(decisions) == {"chief": "a"}
    assert victims(decisions) == [], "what is ending is enough"
    assert gave_up(decisions) == ["boss"]
    assert placed(end(engine, "a-0")) == {"chief": "a"}


def test_work_that_lost_its_place_gets_other_victims() -> None:
    engine = full("a")
    submit(engine, boss())
    decisions = submit(engine, boss("chief", priority=20))
    assert gave_up(decisions) == ["boss"]
    assert nominated(decisions) == {"chief": "a", "boss": "a"}
    assert victims(decisions) == ["a-0"]


def test_a_place_is_kept_beside_that_of_more_important_work_if_there_is_enough() -> None:
    engine = full("a", cpu=4, each=4)
    submit(engine, boss())
    decisions = submit(engine, boss("chief", priority=20))
    assert (nominated(decisions), gave_up(decisions), victims(decisions)) == ({"chief": "a"}, [], [])
    assert placed(end(engine, "a-0")) == {"chief": "a", "boss": "a"}


def test_for_rules_about_other_work_the_work_is_there_already() -> None:
    engine = full("a", "b", cpu=2)
    submit(engine, boss(labels={"app": "boss"}, affinities=all_of(apart_from_app("guest", symmetric=True))))
    assert nominated(submit(engine, boss("guest", labels={"app": "guest"}))) == {"guest": "b"}


def test_work_that_names_it_by_its_id_sees_it_there_as_well() -> None:
    engine = full("a", "b", cpu=2)
    assert nominated(submit(engine, boss())) == {"boss": "a"}
    assert nominated(submit(engine, boss("guest", affinities=all_of(apart("boss", topologies=("zone",)))))) == {
        "guest": "b"
    }


# -- the end of a nomination

NOTHING_KEPT: dict[str, list[Fact]] = {
    "is tainted": [NodeTainted("a", taint("out"))],
    "is tainted with no-execute": [NodeTainted("a", taint("out", effect=Effect.NO_EXECUTE))],
    "drains": [NodeDrained("a")],
    "leaves": [NodeLeft("a")],
    "has other labels": [NodeLabelled("a", Labels({"zone": "z"}))],
    "shrinks": [NodeResized("a", amounts(CPU=1))],
}


@pytest.mark.parametrize("facts", NOTHING_KEPT.values(), ids=NOTHING_KEPT)
def test_the_work_looks_for_another_node_if_its_own(facts: list[Fact]) -> None:
    engine = full("a", "b", cpu=2)
    engine.apply(NodeLabelled("b", Labels({"zone": "a"})))
    assert nominated(submit(engine, boss(selector=on("zone", "a")))) == {"boss": "a"}
    decisions = decide_after(engine, *facts)
    assert nominated(decisions) == {"boss": "b"}
    assert gave_up(decisions) == ([] if isinstance(facts[0], NodeLeft) else ["boss"])
    assert placed(end(engine, "b-0")) == {"boss": "b"}


def test_work_that_ends_while_it_waits_keeps_no_place() -> None:
    engine = full("a", cpu=2)
    submit(engine, boss())
    submit(engine, boss("next", priority=5))
    end(engine, "boss")
    assert placed(end(engine, "a-0")) == {"next": "a"}


def test_a_place_that_is_taken_by_other_work_is_not_waited_for() -> None:
    engine = full("a", cpu=2)
    submit(engine, boss())
    run(engine, boss("intruder", 2, priority=20), "a")
    assert gave_up(end(engine, "a-0")) == ["boss"]


def test_an_eviction_that_fails_ends_the_nomination() -> None:
    engine = full("a", cpu=2)
    submit(engine, boss())
    decisions = decide_after(engine, EvictionFailed("a-0"))
    assert gave_up(decisions) == ["boss"]
    assert not nominated(decisions)
    assert engine.is_pending("boss")


def test_work_that_must_be_near_other_work_gives_up_if_that_ends() -> None:
    engine = full("a", cpu=4)
    engine.apply(*running(low("friend", 0, 20, labels={"app": "friend"}), on="a"))
    assert nominated(submit(engine, boss(affinities=all_of(near_app("friend"))))) == {"boss": "a"}
    assert gave_up(end(engine, "friend")) == ["boss"]


# -- restarts and forks


def after(engine: Engine, kind: str) -> Engine:
    match kind:
        case "fork":
            return engine.fork()
        case _:
            return Engine.restored(engine.checkpoint(), engine.settings, engine.solver)


@pytest.mark.parametrize("kind", ["fork", "checkpoint"])
def test_what_waits_goes_on_after_a(kind: str) -> None:
    engine = full("a", "b")
    engine.apply(AskEnding("b-1"))
    gone = victims(submit(engine, boss("one"), boss("two", 4, priority=20)))
    other = after(engine, kind)
    for each in (engine, other):
        assert not victims(submit(each, boss("three", 4, priority=5)))
    assert end(engine, *gone, "b-1") == end(other, *gone, "b-1")
    assert engine.placed == other.placed


def test_what_is_decided_on_a_fork_does_not_change_the_engine() -> None:
    engine = full("a", cpu=2)
    submit(engine.fork(), boss())
    submit(engine, boss("weak", preempts=False))
    assert placed(end(engine, "a-0")) == {"weak": "a"}


def test_assumed_decisions_keep_places_and_evict_nothing_again() -> None:
    engine = full("a", "b")
    twin = engine.fork()
    decisions = submit(engine, boss("one", 4), boss("two"))
    twin.apply(AskSubmitted(boss("one", 4)), AskSubmitted(boss("two")))
    twin.assume(decisions)
    assert not victims(twin.decide())
    assert placed(end(twin, *victims(decisions))) == {"one": "a", "two": "b"}


def test_an_assumed_end_of_a_nomination_frees_the_place() -> None:
    engine = full("a", cpu=2)
    engine.apply(AskSubmitted(boss(preempts=False)))
    engine.assume([Preempted("boss", "a", ("a-0",)), NominationEnded("boss", "a")])
    engine.decide()
    assert placed(submit(engine, boss("other", preempts=False), boss("boss"))) == {}
    assert placed(end(engine, "a-0"))


def test_a_reported_nomination_keeps_the_place() -> None:
    """After a restart without a journal, the cluster reports who waits for which node, and what is ending."""
    engine = full("a", "b", cpu=2)
    engine.apply(AskSubmitted(boss()), AskNominated("boss", "a"), AskEnding("a-0"))
    assert not victims(engine.decide())
    submit(engine, boss("late", preempts=False))
    assert placed(end(engine, "a-0")) == {"boss": "a"}


def test_a_reported_nomination_is_given_up_if_nothing_is_ending_there() -> None:
    engine = full("a", "b", cpu=2)
    engine.apply(AskSubmitted(boss()), AskNominated("boss", "b"))
    decisions = engine.decide()
    assert gave_up(decisions) == ["boss"]
    assert victims(decisions) == ["a-0"]


@pytest.mark.parametrize(
    "fact",
    [
        AskNominated("nobody", "a"),
        AskNominated("boss", "no-node"),
        AskEnding("nobody"),
        EvictionFailed("nobody"),
        AskEnded("nobody"),
    ],
)
def test_facts_about_unknown_things_are_ignored(fact: Fact) -> None:
    engine = full("a", cpu=2)
    engine.apply(AskSubmitted(boss()), fact)
    assert victims(engine.decide()) == ["a-0"]


# -- explanations


def test_the_explanation_says_for_which_node_the_work_waits() -> None:
    engine = full("a", cpu=2)
    submit(engine, boss())
    assert str(engine.explain("boss")).endswith("A place on a is kept for it until a-0 has ended.")


def test_the_explanation_does_not_count_the_place_that_is_kept() -> None:
    engine = zones("a", "b", cpu=2)
    engine.apply(*running(low("n0-0"), on="n0"), *running(low("n1-0"), on="n1"))
    submit(engine, boss(labels={"app": "boss"}, affinities=all_of(apart_from_app("boss"))))
    assert {each.reason.code for each in engine.explain("boss").verdicts[0].refusals} == {"short-now"}


def test_limits_leave_the_rest_for_the_next_call() -> None:
    engine = full("a", "b", "c")
    engine.apply(*(AskSubmitted(boss(f"boss-{number}")) for number in range(6)))
    made: list[Any] = []
    for _ in range(40):
        decided = engine.decide(limit=4)
        assert len(nominated(decided)) <= 1
        made += decided
        if engine.next_moment is None:
            break
    assert len(nominated(made)) == 6
    assert not [each for each in made if isinstance(each, Placed)]
