"""A fork is an independent engine: nothing that happens in one affects the other."""

from __future__ import annotations

from typing import get_args

import pytest

from stead.engine.engine import Engine
from stead.engine.facts import (
    AskChanged,
    AskEnded,
    AskEnding,
    AskLost,
    AskNominated,
    AskRunning,
    AsksSubmitted,
    AskSubmitted,
    BudgetChanged,
    BudgetEnded,
    ClaimChanged,
    ClaimEnded,
    ClockAdvanced,
    EvictionFailed,
    Fact,
    GroupChanged,
    GroupEnded,
    GroupSubmitted,
    NodeDrained,
    NodeJoined,
    NodeLabelled,
    NodeLeft,
    NodeResized,
    NodeTainted,
    NodeUntainted,
    NodeUsed,
)
from stead.language.asks import Affinity, PolicyName, Preference, Spread
from stead.language.budgets import Budget
from stead.language.claims import Claim
from stead.language.labels import Labels, Requirement, Selector
from stead.language.nodes import Node
from stead.language.taints import Effect
from tests.behaviour import (
    all_of,
    amounts,
    apart_from_app,
    ask,
    cluster,
    decide_after,
    group,
    near,
    near_app,
    node,
    on,
    place,
    submit,
    taint,
)
from tests.behaviour import tolerates as tolerates_for

WEB = {"app": "web"}
NO_EXECUTE = taint("out", "", Effect.NO_EXECUTE)

FACTS: list[tuple[Fact, ...]] = [
    (ClockAdvanced(15.0),),
    (ClockAdvanced(500.0),),
    (NodeJoined(node("n9", 4, GPU=2, labels={"zone": "z"})),),
    (NodeJoined(node("n0", 8, GPU=4, labels={"zone": "z"})),),
    tuple(NodeJoined(node(f"more-{index}", 1)) for index in range(70)),
    (NodeLeft("n0"),),
    (NodeLeft("n1"), NodeJoined(node("n9", 2))),
    (NodeLabelled("n1", Labels({"zone": "z"})),),
    (NodeLabelled("n0", removed=("zone",)),),
    (NodeTainted("n0", NO_EXECUTE),),
    (NodeTainted("n1", taint("x")),),
    (NodeUntainted("n2", "gpu"),),
    (NodeDrained("n0"),),
    (NodeDrained("n3", False),),
    (NodeResized("n1", amounts(CPU=9, GPU=1)),),
    (NodeUsed("n1", amounts(CPU=2, GPU=1.5), 2),),
    (AskSubmitted(ask("new", 1, gpu=0.5, labels=WEB)), AskSubmitted(ask("new-too", 0, labels=WEB))),
    (AskSubmitted(ask("dice", 1, policy=PolicyName.RANDOM)),),
    (AsksSubmitted(ask("equal", 1, labels=WEB), 3, 2),),
    (AskRunning(ask("stranger", 1, gpu=0.5, labels=WEB), "n1"),),
    (AskRunning(ask("w0", 1, gpu=0.5, labels=WEB), "n1"),),
    (AskEnded("w0"),),
    (AskEnded("waits"),),
    (AskEnded("nobody"),),
    (AskEnded("mourns"),),
    (AskSubmitted(ask("gone", 1)),),
    (AskEnded("m0"),),
    (AskLost("w1"),),
    (AskChanged(ask("w1", 2, gpu=0.5, labels=WEB)),),
    (AskEnding("w1"),),
    (EvictionFailed("w1"),),
    (AskNominated("waits", "n1"),),
    (BudgetChanged(Budget("web", Selector(((Requirement.is_in("app", "web"),),)), 1)),),
    (BudgetEnded("web"),),
    (ClaimChanged(Claim("new")),),
    (ClaimChanged(Claim("data", on("zone", "a"), driver="nfs")),),
    (ClaimEnded("data"),),
    (AskLost("m1"),),
    (GroupSubmitted(group("h", ask("h0", 1), ask("h1", 0))),),
    (GroupChanged(group("h", ask("h0", 1), min_available=2)),),
    (GroupEnded("g"),),
    (GroupEnded("too-big"),),
]


def test_the_table_holds_every_kind_of_fact() -> None:
    assert {type(fact) for facts in FACTS for fact in facts} == set(get_args(Fact))


def world() -> Engine:
    """An engine with every kind of state: placed and pending work, taints, groups, timers, random policies."""
    engine = cluster(
        node("n0", 4, GPU=2, labels={"zone": "a"}),
        Node.of("n1", {"CPU": 4}, {"zone": "b"}, volumes={"nfs": 1}),
        node("n2", 4, taints=[taint("gpu")]),
        node("n3", 4, draining=True),
        patience=100.0,
        seed=4,
    )
    for index in range(2):
        place(engine, ask(f"w{index}", 1, gpu=0.5, labels=WEB, tolerations=(tolerates_for("out", seconds=10.0),)))
    place(
        engine,
        group("g", ask("m0", 1), ask("m1", 1)),
        ask("shy", affinities=all_of(apart_from_app("db", symmetric=True))),
    )
    engine.apply(ClaimChanged(Claim("data", driver="nfs")), ClaimChanged(Claim("logs", driver="nfs")))
    submit(
        engine,
        ask("waits", 9),
        ask("follows", 1, affinities=all_of(near_app("nobody"))),
        ask("hopes", 1, affinities=all_of(near("nobody"))),
        ask("mourns", 1, affinities=all_of(near("gone"))),
        ask("late", 9, deadline=15.0),
        ask("misses", 1, claims=("new",)),
        ask("needs", 1, selector=on("zone", "b"), claims=("data",)),
        ask("too-many", 1, selector=on("zone", "b"), claims=("logs",)),
        ask("spread", 1, labels=WEB, selector=on("zone", "z"), spreads=(Spread("zone", on("app", "web")),)),
        group("too-big", ask("b0", 9)),
    )
    decide_after(engine, AskEnded("gone"))
    return engine


PROBES = [
    ask("probe-0", 1, gpu=0.5),
    ask("probe-1", 1, selector=on("zone", "a", "z")),
    ask("probe-2", affinities=all_of(near_app("web", "zone"))),
    ask("probe-3", labels={"app": "db"}),
    ask("probe-4", labels=WEB, spreads=(Spread("zone", on("app", "web")),)),
    ask("probe-5", affinities=all_of(Affinity(Selector.all_of(Requirement.is_in("ask_id", "w0", "new"))))),
    ask("probe-6", 2, prefers=(Preference(near_app("web")),)),
    ask("probe-7", claims=("data", "new")),
    ask("probe-8", claims=("data", "logs")),
]


def picture(engine: Engine) -> list[object]:
    """The whole public state of an engine."""
    return [
        engine.now,
        engine.next_moment,
        dict(engine.placed),
        engine.waiting,
        dict(engine.nodes),
        {id: engine.free(id) for id in engine.nodes},
        [(engine.candidates(probe), engine.explain(probe)) for probe in PROBES],
        [engine.explain(id) for id in (*engine.placed, *engine.waiting)],
    ]


def future(engine: Engine) -> list[object]:
    """What it decides after some more facts."""
    later: list[tuple[Fact, ...]] = [
        tuple(map(AskSubmitted, PROBES)),
        (AskSubmitted(ask("by-chance", 1, policy=PolicyName.RANDOM)),),
        (NodeTainted("n0", NO_EXECUTE), ClockAdvanced(engine.now + 20)),
        (NodeLeft("n1"), AskLost("m0"), NodeJoined(node("late", 9, GPU=1, labels={"zone": "z"}))),
    ]
    return [*(decide_after(engine, *facts) for facts in later), *picture(engine)]


def ids(facts: tuple[Fact, ...]) -> str:
    return " and ".join(dict.fromkeys(type(fact).__name__ for fact in facts))


@pytest.mark.parametrize("facts", FACTS, ids=ids)
def test_what_happens_in_a_fork_does_not_show_in_the_original(facts: tuple[Fact, ...]) -> None:
    engine, untouched = world(), world()
    before = picture(engine)
    decide_after(engine.fork(), *facts)
    assert picture(engine) == before
    assert future(engine) == future(untouched)


@pytest.mark.parametrize("facts", FACTS, ids=ids)
def test_what_happens_in_the_original_does_not_show_in_a_fork(facts: tuple[Fact, ...]) -> None:
    engine = world()
    fork = engine.fork()
    before = picture(fork)
    decide_after(engine, *facts)
    assert picture(fork) == before
    assert future(fork) == future(world())


@pytest.mark.parametrize("facts", FACTS, ids=ids)
def test_a_fork_decides_as_the_original_would(facts: tuple[Fact, ...]) -> None:
    engine = world()
    fork = engine.fork()
    assert decide_after(fork, *facts) == decide_after(engine, *facts)
    assert picture(fork) == picture(engine)
    assert future(fork) == future(engine)


def test_a_fork_may_be_taken_before_the_engine_has_decided() -> None:
    engine = cluster(node("n0", 1))
    engine.apply(AskSubmitted(ask("a", 1)), AskSubmitted(ask("b", 1)))
    fork = engine.fork()
    assert fork.decide() == engine.decide()


def test_forks_of_forks_are_independent_too() -> None:
    engine = world()
    child = engine.fork()
    grandchild = child.fork()
    decide_after(child, NodeLeft("n0"))
    decide_after(grandchild, AskEnded("w0"))
    assert "n0" in engine.nodes
    assert "n0" in grandchild.nodes
    assert "w0" in engine.placed
    assert "w0" not in grandchild.placed
    assert future(engine) == future(world())


def test_what_if_questions_leave_no_trace() -> None:
    engine, untouched = world(), world()
    for probe in PROBES:
        engine.explain(probe)
        engine.candidates(probe)
    for id in (*engine.placed, *engine.waiting):
        engine.explain(id)
    assert future(engine) == future(untouched)
