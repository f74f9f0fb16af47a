"""What wakes pending work: every change that could make it fit, and no other."""

from __future__ import annotations

from typing import Any

import pytest

from stead.engine.engine import Engine
from stead.engine.facts import (
    AskEnded,
    AskLost,
    AskRunning,
    AskSubmitted,
    ClockAdvanced,
    Fact,
    NodeDrained,
    NodeJoined,
    NodeLabelled,
    NodeLeft,
    NodeResized,
    NodeTainted,
    NodeUntainted,
)
from stead.engine.ranking.standing import Standing
from stead.engine.rules import World
from stead.language.asks import Affinity, Ask, Choice, Group, Preference, Strategy
from stead.language.labels import Labels, Requirement, Selector
from stead.language.taints import Effect
from tests.behaviour import (
    all_of,
    amounts,
    apart,
    apart_from_app,
    ask,
    cluster,
    decide_after,
    fill,
    group,
    near,
    near_app,
    node,
    on,
    placements,
    reported,
    run,
    submit,
    taint,
)

WEB = {"app": "web"}


def labelled(id: str, **labels: str) -> NodeLabelled:
    return NodeLabelled(id, Labels(labels))


def fleet() -> Engine:
    """n0 and n1 are in zones a and b and have room; n2 has a taint, n3 drains, n4 is full; app=web is on n0."""
    engine = cluster(
        node("n0", 2, labels={"zone": "a"}),
        node("n1", 2, labels={"zone": "b"}),
        node("n2", 2, taints=[taint("keep-out")]),
        node("n3", 2, draining=True),
        node("n4", 2),
    )
    run(engine, ask("web", labels=WEB), "n0")
    run(engine, ask("full", 2), "n4")
    run(engine, ask("shy", affinities=all_of(apart_from_app("db", "zone", symmetric=True))), "n1")
    return engine


def pinned(*ids: str, **rest: Any) -> Ask:
    """An ask that may go to these nodes only."""
    return ask("w", 1, selector=on("node_id", *ids), **rest)


def either(*requirements: Requirement) -> Selector:
    return Selector.any_of(*requirements)


CASES: list[Any] = [
    pytest.param(pinned("n4"), AskEnded("full"), "n4", id="work ends where it wants to go"),
    pytest.param(pinned("n4"), AskLost("full"), "n4", id="work loses its place there"),
    pytest.param(pinned("n4"), AskRunning(ask("full", 2), "n0"), "n4", id="work turns out to run elsewhere"),
    pytest.param(pinned("n4"), NodeResized("n4", amounts(CPU=3)), "n4", id="the node grows"),
    pytest.param(ask("w", 9), NodeResized("n1", amounts(CPU=9)), "n1", id="a node grows that was too small"),
    pytest.param(ask("w", gpu=1), NodeResized("n1", amounts(CPU=2, GPU=1)), "n1", id="a node gets a device"),
    pytest.param(ask("w", 9), NodeJoined(node("n9", 9)), "n9", id="a large enough node joins"),
    pytest.param(ask("w", 9), NodeJoined(node("n1", 9)), "n1", id="a node joins again, larger"),
    pytest.param(pinned("n2"), NodeUntainted("n2", "keep-out"), "n2", id="the taint goes"),
    pytest.param(pinned("n3"), NodeDrained("n3", False), "n3", id="the node takes work again"),
    pytest.param(pinned("n3"), NodeJoined(node("n3", 2)), "n3", id="the node joins again, not draining"),
    pytest.param(ask("w", 1, selector=on("zone", "c")), labelled("n1", zone="c"), "n1", id="the label is set"),
    pytest.param(
        ask("w", 1, selector=either(Requirement.is_in("zone", "c"), Requirement.is_in("rack", "r"))),
        labelled("n1", rack="r"),
        "n1",
        id="the label of another term is set",
    ),
    pytest.param(
        ask("w", 1, selector=Selector.all_of(*on("node_id", "n1").terms[0], Requirement.not_in("zone", "b"))),
        NodeLabelled("n1", removed=("zone",)),
        "n1",
        id="the label is removed",
    ),
    pytest.param(
        pinned("n1", affinities=all_of(near("a"))),
        AskRunning(ask("a"), "n1"),
        "n1",
        id="the work it must be near comes",
    ),
    pytest.param(
        pinned("n1", affinities=all_of(near_app("web"))),
        AskRunning(ask("more", labels=WEB), "n1"),
        "n1",
        id="work of the kind it must be near comes",
    ),
    pytest.param(
        pinned("n1", affinities=all_of(near_app("web", namespaces=frozenset({"blue"})))),
        AskRunning(ask("more", labels=WEB, namespace="blue"), "n1"),
        "n1",
        id="work of the kind it must be near comes in another namespace",
    ),
    pytest.param(
        pinned("n1", namespace="blue", affinities=all_of(near_app("web"))),
        AskRunning(ask("more", labels=WEB, namespace="blue"), "n1"),
        "n1",
        id="work of the kind it must be near comes in its own namespace",
    ),
    pytest.param(
        pinned("n1", affinities=all_of(near_app("web", "zone"))),
        labelled("n1", zone="a"),
        "n1",
        id="the node moves to the zone of the work it must be near",
    ),
    pytest.param(
        pinned("n1", affinities=all_of(Affinity(Selector.all_of(Requirement.not_in("ask_id", "web", "shy"))))),
        AskRunning(ask("somebody"), "n1"),
        "n1",
        id="any work comes that is not excepted by its id",
    ),
    pytest.param(
        pinned("n0", affinities=all_of(apart("web"))), AskEnded("web"), "n0", id="the work it must be apart from ends"
    ),
    pytest.param(
        pinned("n0", affinities=all_of(apart_from_app("web"))),
        AskEnded("web"),
        "n0",
        id="the last work of the kind it must be apart from ends",
    ),
    pytest.param(
        pinned("n0", affinities=all_of(apart_from_app("web", "zone"))),
        NodeLabelled("n0", removed=("zone",)),
        "n0",
        id="the node leaves the zone of the work it must be apart from",
    ),
    pytest.param(
        pinned("n0", affinities=((near("nobody"),), (apart_from_app("web", "zone"),))),
        AskEnded("web"),
        "n0",
        id="one of the alternatives comes to hold",
    ),
    pytest.param(
        pinned("n0", affinities=((near("nobody"),), (apart_from_app("web", "zone"),))),
        NodeLabelled("n0", removed=("zone",)),
        "n0",
        id="one of the alternatives comes to hold by a label",
    ),
    pytest.param(pinned("n1", labels={"app": "db"}), AskEnded("shy"), "n1", id="the work that keeps it away ends"),
    pytest.param(
        ask("w", 1, labels={"app": "db"}, selector=on("rack", "b")),
        NodeJoined(node("n5", labels={"zone": "c", "rack": "b"})),
        "n5",
        id="a node joins where nobody keeps it away",
    ),
]


@pytest.mark.parametrize(("work", "fact", "where"), CASES)
def test_pending_work_is_placed_by_a_change_that_helps_it(work: Ask, fact: Fact, where: str) -> None:
    engine = fleet()
    submit(engine, work)
    assert engine.waiting == ("w",)
    assert placements(decide_after(engine, fact)).get("w") == where


def test_work_excluded_by_zone_is_placed_when_the_node_leaves_the_zone() -> None:
    engine = fleet()
    engine.apply(NodeJoined(node("n5", 2, labels={"zone": "b", "rack": "r"})))
    submit(engine, ask("w", 1, labels={"app": "db"}, selector=on("rack", "r")))
    assert engine.waiting == ("w",)
    assert placements(decide_after(engine, labelled("n5", zone="c"))) == {"w": "n5"}


def test_a_change_that_helps_any_member_wakes_the_group() -> None:
    for fact in (NodeUntainted("n2", "keep-out"), NodeJoined(node("n2", 2))):
        engine = fleet()
        submit(engine, group("g", pinned("n2"), ask("other", 1), strategy=Strategy.SPREAD))
        assert engine.waiting == ("g",)
        assert set(placements(decide_after(engine, fact))) == {"w", "other"}


def test_placing_work_may_make_other_work_fit_at_once() -> None:
    engine = fleet()
    chain = [ask(f"w{index}", 0.5, affinities=all_of(near(f"w{index + 1}"))) for index in range(3)]
    submit(engine, *chain)
    assert set(placements(submit(engine, ask("w3", 0.5)))) == {"w0", "w1", "w2", "w3"}


# Changes that help no pending work


@pytest.fixture
def refreshed(monkeypatch: pytest.MonkeyPatch) -> list[Standing]:
    """Records every time the engine ranks the nodes."""
    looks: list[Standing] = []
    refresh = Standing.refresh

    def counting(standing: Standing, world: World) -> None:
        looks.append(standing)
        refresh(standing, world)

    monkeypatch.setattr(Standing, "refresh", counting)
    return looks


SLEEPERS: dict[str, Ask | Group] = {
    "short of CPU on n4": pinned("n4"),
    "lacking a label": ask("w", 1, selector=on("zone", "c")),
    "near nobody": ask("w", 1, affinities=all_of(near("nobody"))),
    "too near web": pinned("n0", affinities=all_of(apart_from_app("web"))),
    "never fitting": ask("w", 9),
    "a group": group("g", ask("m0", 9), ask("m1", 9)),
}

IRRELEVANT: dict[str, tuple[list[str], list[Fact]]] = {
    "time passes": (list(SLEEPERS), [ClockAdvanced(30.0)]),
    "another label is set": (list(SLEEPERS), [labelled("n1", colour="red")]),
    "another label is removed": (
        list(SLEEPERS),
        [labelled("n1", colour="red"), NodeLabelled("n1", removed=("colour",))],
    ),
    "a label is set that was there": (list(SLEEPERS), [labelled("n0", zone="a")]),
    "a taint is set that was there": (list(SLEEPERS), [NodeTainted("n2", taint("keep-out"))]),
    "a taint goes that was not there": (list(SLEEPERS), [NodeUntainted("n1", "keep-out")]),
    "a node drains that drained": (list(SLEEPERS), [NodeDrained("n3")]),
    "a node is as large as before": (list(SLEEPERS), [NodeResized("n0", amounts(CPU=2))]),
    "a node reports itself again": (list(SLEEPERS), [NodeJoined(node("n4", 2))]),
    "work ends on another node": (["short of CPU on n4", "lacking a label"], [AskEnded("filler")]),
    "work ends that is not meant": (["too near web", "near nobody"], [AskEnded("filler")]),
    "work ends where it never fits": (["never fitting"], [AskEnded("full"), AskEnded("web")]),
    "unknown things happen": (list(SLEEPERS), [AskEnded("?"), AskLost("?"), NodeLeft("?"), NodeDrained("?")]),
}


@pytest.mark.parametrize(
    ("sleeper", "facts"),
    [
        pytest.param(SLEEPERS[who], facts, id=f"{who}, while {what}")
        for what, (whom, facts) in IRRELEVANT.items()
        for who in whom
    ],
)
def test_a_change_that_helps_no_pending_work_wakes_none(
    sleeper: Ask | Group, facts: list[Fact], refreshed: list[Standing]
) -> None:
    engine = fleet()
    run(engine, ask("filler", 1), "n1")
    submit(engine, sleeper)
    assert len(engine.waiting) == 1
    engine.decide()
    refreshed.clear()
    assert decide_after(engine, *facts) == []
    assert refreshed == []


def test_a_shape_is_looked_at_once_however_many_asks_wait_with_it(refreshed: list[Standing]) -> None:
    engine = fleet()
    submit(engine, *(ask(f"w{index}", 1, selector=on("zone", "c")) for index in range(50)))
    refreshed.clear()
    assert set(placements(decide_after(engine, labelled("n1", zone="c")))) == {"w0", "w1"}
    assert len(refreshed) <= 6


def test_work_that_was_placed_or_ended_is_woken_no_more(refreshed: list[Standing]) -> None:
    engine = fleet()
    submit(engine, pinned("n4"))
    decide_after(engine, AskEnded("w"))
    refreshed.clear()
    assert decide_after(engine, AskEnded("full")) == []
    assert refreshed == []


def test_a_preference_alone_wakes_no_work_and_counts_when_there_is_room() -> None:
    engine = cluster(node("n0", 1), node("n1", 1))
    for id in ("n0", "n1"):
        fill(engine, id, 1, f"full-{id}")
    submit(engine, ask("w", 1, prefers=(Preference(on("disk", "ssd")),)))
    assert decide_after(engine, labelled("n1", disk="ssd")) == []
    assert placements(decide_after(engine, AskEnded("full-n0"), AskEnded("full-n1"))) == {"w": "n1"}


def test_reasons_that_change_while_work_sleeps_are_reported() -> None:
    engine = fleet()
    submit(engine, pinned("n4"))
    assert reported(decide_after(engine, NodeTainted("n4", taint("late", "", Effect.NO_SCHEDULE)))) == {
        "w": ["draining", "lacks-label", "tainted", "tainted", "short-now"]
    }


def test_a_choice_is_enough_to_be_woken_by() -> None:
    engine = fleet()
    two = Ask("w", (Choice(amounts(CPU=1), on("zone", "c")), Choice(amounts(CPU=1), on("node_id", "n4"))))
    submit(engine, two)
    assert placements(decide_after(engine, AskEnded("full"))) == {"w": "n4"}
    engine.apply(AskEnded("w"), AskRunning(ask("full", 2), "n4"))
    submit(engine, two)
    assert placements(decide_after(engine, labelled("n1", zone="c"))) == {"w": "n1"}


def test_what_arrives_while_others_sleep_does_not_wake_them(refreshed: list[Standing]) -> None:
    engine = fleet()
    submit(engine, *(ask(f"w{index}", 1, selector=on("zone", f"missing-{index}")) for index in range(9)))
    refreshed.clear()
    engine.apply(AskSubmitted(ask("x", 1)))
    assert placements(engine.decide()) == {"x": "n0"}
    assert len({id(standing) for standing in refreshed}) == 1
