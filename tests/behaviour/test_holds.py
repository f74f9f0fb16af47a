"""Patience: nodes are reserved for work that has been pending too long, so that smaller work cannot starve it."""

from __future__ import annotations

from itertools import count
from random import Random

import pytest

from stead.engine.engine import Engine
from stead.engine.facts import (
    AskEnded,
    AskLost,
    AskRunning,
    AskSubmitted,
    ClockAdvanced,
    Fact,
    GroupEnded,
    NodeDrained,
    NodeJoined,
    NodeLabelled,
    NodeLeft,
    NodeResized,
    NodeTainted,
)
from stead.engine.reasons import Reserved, ShortOf
from stead.language.asks import Ask, Choice, Group, Strategy
from stead.language.labels import Labels
from stead.language.resources import UNIT
from tests.behaviour import (
    amounts,
    ask,
    cluster,
    codes,
    decide_after,
    fill,
    group,
    node,
    on,
    place,
    placements,
    refusals,
    reported,
    submit,
    taint,
)

BIG = ask("big", 2)


def busy(nodes: int = 2, cpu: float = 2, **settings: float | None) -> Engine:
    """Every node is full of small work, one CPU each."""
    engine = cluster(*(node(f"n{index}", cpu) for index in range(nodes)), **{"patience": 10.0, **settings})
    for index in range(nodes):
        for number in range(int(cpu)):
            fill(engine, f"n{index}", 1, f"small-n{index}-{number}")
    return engine


def stream(engine: Engine, rounds: int) -> None:
    """Every second a small ask arrives and the oldest of the small work ends."""
    for number in range(rounds):
        arrived = ask(f"streamed-{engine.now}-{number}", 1)
        submit(engine, arrived)
        small = [id for id in engine.placed if id.startswith(("small", "streamed"))]
        decide_after(engine, ClockAdvanced(engine.now + 1), *map(AskEnded, small[:1]))


def held(engine: Engine) -> list[str]:
    """The nodes that refuse other work because they are reserved."""
    found = {id: refusals(engine, ask("?", selector=on("node_id", id))) for id in engine.nodes}
    return [
        id for id, each in found.items() if any(isinstance(reason, Reserved) and alone for reason, _, alone in each)
    ]


@pytest.mark.parametrize(
    "starved",
    [
        pytest.param(BIG, id="a big ask"),
        pytest.param(group("g", ask("m0", 2), ask("m1", 2)), id="a group that needs the whole cluster"),
        pytest.param(group("g", ask("m0", 1), ask("m1", 1), strategy=Strategy.STRICT_PACK), id="a group on one node"),
        pytest.param(Ask("w", (Choice(amounts(CPU=9)), Choice(amounts(CPU=2)))), id="an ask by its second choice"),
    ],
)
def test_a_stream_of_small_work_does_not_starve(starved: Ask | Group) -> None:
    engine = busy()
    submit(engine, starved)
    stream(engine, 40)
    assert starved.id not in engine.waiting


@pytest.mark.parametrize("seed", range(16))
def test_whatever_would_fit_an_empty_cluster_is_placed_in_the_end(seed: int) -> None:
    """Random nodes, endless random small work, and one large piece of work, an ask or a group."""
    random = Random(seed)
    cpus = [random.choice((2, 3, 4)) for _ in range(4)]
    nodes = [node(f"n{index}", cpu, GPU=1, labels={"zone": random.choice("ab")}) for index, cpu in enumerate(cpus)]
    engine = cluster(*nodes, patience=5.0)
    wide = [
        ask(f"m{index}", random.choice((1.5, 2)), gpu=random.choice((0, 1))) for index in range(random.choice((2, 3)))
    ]
    strategy = random.choice((Strategy.PACK, Strategy.SPREAD, Strategy.STRICT_SPREAD))
    big: Ask | Group = ask("big", max(cpus), gpu=1) if seed % 2 else group("big", *wide, strategy=strategy)
    assert engine.explain(big).fits
    until: dict[str, float] = {}
    for now in range(60):
        done = [id for id, end in until.items() if end <= now and id in engine.placed]
        small = [ask(f"s{now}-{index}", random.choice((0.5, 1)), gpu=random.choice((0, 0.5))) for index in range(6)]
        until |= {each.id: now + random.choice((1.0, 3.0, 6.0)) for each in small}
        decide_after(engine, ClockAdvanced(now), *map(AskEnded, done), *map(AskSubmitted, small))
        if now == 3:
            submit(engine, big)
    assert "big" not in engine.waiting


@pytest.mark.parametrize("patience", [None, 1000.0], ids=["without patience", "while patience lasts"])
def test_a_stream_of_small_work_may_go_before(patience: float | None) -> None:
    engine = busy(patience=patience)
    submit(engine, BIG)
    stream(engine, 40)
    assert "big" in engine.waiting


def test_the_hold_begins_when_patience_ends_and_not_before() -> None:
    engine = busy()
    engine.apply(ClockAdvanced(100))
    submit(engine, BIG)
    assert engine.next_moment == 110
    decide_after(engine, ClockAdvanced(109.9))
    assert held(engine) == []
    decide_after(engine, ClockAdvanced(110.1))
    assert held(engine) == ["n0"]


def test_other_work_reports_that_the_node_is_reserved_and_for_whom() -> None:
    engine = busy(1)
    submit(engine, BIG)
    decide_after(engine, ClockAdvanced(11), AskEnded("small-n0-0"))
    assert refusals(engine, ask("w", 1)) == [(Reserved("big"), 1, 1)]
    assert reported(submit(engine, ask("w", 1))) == {"w": ["reserved"]}


def test_reserved_takes_the_blame_last() -> None:
    engine = busy(1)
    submit(engine, BIG)
    decide_after(engine, ClockAdvanced(11))
    assert refusals(engine, ask("w", 1)) == [(ShortOf("CPU", UNIT), 1, 0), (Reserved("big"), 0, 0)]


def test_work_that_waits_only_for_a_reserved_node_shows_that_choice() -> None:
    engine = busy(1)
    submit(engine, BIG)
    decide_after(engine, ClockAdvanced(11), AskEnded("small-n0-0"))
    choices = (Choice(amounts(CPU=1), on("zone", "nowhere")), Choice(amounts(CPU=1)))
    assert reported(submit(engine, Ask("w", choices))) == {"w": ["reserved"]}


def test_the_owner_does_not_report_its_own_node_as_reserved() -> None:
    engine = busy(1)
    submit(engine, BIG)
    decide_after(engine, ClockAdvanced(11))
    assert codes(engine, BIG) == ["short-now"]
    assert engine.explain("big").verdicts[0].refusals[0].reason == ShortOf("CPU", 2 * UNIT)


def test_equal_work_may_use_the_hold() -> None:
    engine = busy(1)
    submit(engine, BIG)
    decide_after(engine, ClockAdvanced(11))
    decide_after(engine, AskEnded("small-n0-0"))
    assert placements(decide_after(engine, AskEnded("small-n0-1"))) == {"big": "n0"}
    assert held(engine) == []


@pytest.mark.parametrize(
    "relief",
    [
        pytest.param(AskEnded("big"), id="its owner is withdrawn"),
        pytest.param(NodeJoined(node("n9", 2)), id="its owner finds room elsewhere"),
    ],
)
def test_the_hold_ends_when(relief: Fact) -> None:
    engine = busy(1)
    submit(engine, BIG)
    decide_after(engine, ClockAdvanced(11), AskEnded("small-n0-0"))
    assert reported(submit(engine, ask("w", 1))) == {"w": ["reserved"]}
    assert placements(decide_after(engine, relief)).get("w") == "n0"
    assert held(engine) == []


def test_the_hold_of_a_group_ends_with_the_group() -> None:
    engine = busy(1)
    submit(engine, group("g", ask("m0", 2)))
    decide_after(engine, ClockAdvanced(11), AskEnded("small-n0-0"))
    assert reported(submit(engine, ask("w", 1))) == {"w": ["reserved"]}
    assert placements(decide_after(engine, GroupEnded("g"))) == {"w": "n0"}


def test_the_hold_ends_at_the_deadline_of_its_owner() -> None:
    engine = busy(1)
    submit(engine, ask("big", 2, deadline=20.0))
    decide_after(engine, ClockAdvanced(11), AskEnded("small-n0-0"))
    submit(engine, ask("w", 1))
    assert placements(decide_after(engine, ClockAdvanced(20))) == {"w": "n0"}


def test_the_emptiest_node_is_held() -> None:
    engine = cluster(node("n0", 4), node("n1", 8), patience=10.0)
    fill(engine, "n0", 3)
    fill(engine, "n1", 5)
    submit(engine, ask("big", 4))
    decide_after(engine, ClockAdvanced(11))
    assert held(engine) == ["n1"]


def test_only_nodes_are_held_that_could_take_the_owner() -> None:
    engine = cluster(
        node("tainted", 4, taints=[taint("x")]),
        node("small", 2),
        node("fits", 4),
        node("drained", 4, draining=True),
        patience=10.0,
    )
    for id in ("fits", "small"):
        fill(engine, id, 2)
    submit(engine, ask("big", 4))
    decide_after(engine, ClockAdvanced(11))
    assert held(engine) == ["fits"]


def test_work_that_could_never_fit_holds_nothing() -> None:
    engine = busy(1)
    submit(engine, ask("huge", 99), group("g", ask("m", 99)), ask("nowhere", 1, selector=on("zone", "x")))
    decide_after(engine, ClockAdvanced(11))
    assert held(engine) == []
    submit(engine, BIG)
    decide_after(engine, ClockAdvanced(22))
    assert held(engine) == ["n0"]


def test_every_node_that_a_group_would_need_is_held() -> None:
    engine = busy(3)
    submit(engine, group("g", ask("m0", 2), ask("m1", 2)))
    decide_after(engine, ClockAdvanced(11))
    assert held(engine) == ["n0", "n1"]


def test_a_group_takes_the_nodes_that_are_held_for_it() -> None:
    engine = busy(2)
    submit(engine, group("g", ask("m0", 2), ask("m1", 2)))
    decide_after(engine, ClockAdvanced(11))
    ends = [AskEnded(id) for id in engine.placed]
    assert set(placements(decide_after(engine, *ends))) == {"m0", "m1"}


def test_a_lost_member_is_not_starved_beside_the_others() -> None:
    """It needs the node that the others are on."""
    engine = cluster(node("n0", 4), patience=10.0)
    submit(engine, group("g", ask("m0", 2), ask("m1", 1), strategy=Strategy.STRICT_PACK))
    engine.apply(AskLost("m0"), *(AskRunning(ask(f"small-{index}", 1), "n0") for index in range(3)))
    engine.decide()
    assert engine.waiting == ("g",)
    stream(engine, 40)
    assert "m0" in engine.placed


def test_a_lost_member_that_no_longer_fits_beside_the_others_holds_nothing() -> None:
    engine = cluster(node("n0", 5), patience=10.0)
    submit(engine, group("g", ask("m0", 4), ask("m1", 1), strategy=Strategy.STRICT_PACK))
    decide_after(engine, NodeResized("n0", amounts(CPU=4)), AskLost("m0"))
    decide_after(engine, ClockAdvanced(100))
    assert held(engine) == []
    assert place(engine, ask("w", 1)) == ["n0"]


def test_of_two_that_wait_too_long_the_more_urgent_is_served_first_and_then_the_older() -> None:
    engine = busy(1)
    for moment, work in enumerate((ask("old", 2), ask("young", 1.9), ask("urgent", 1.8, priority=1))):
        engine.apply(ClockAdvanced(moment))
        submit(engine, work)
    served = []
    for moment in (20, 40, 60):
        decide_after(engine, ClockAdvanced(moment))
        found = placements(decide_after(engine, *(AskEnded(id) for id in engine.placed)))
        served += list(found)
    assert served == ["urgent", "old", "young"]


# Changes during a hold


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(NodeLeft("n0"), id="leaves"),
        pytest.param(NodeDrained("n0"), id="drains"),
        pytest.param(NodeTainted("n0", taint("x")), id="is tainted"),
        pytest.param(NodeResized("n0", amounts(CPU=1)), id="shrinks"),
        pytest.param(NodeLabelled("n0", Labels({"zone": "b"})), id="loses the label"),
    ],
)
def test_a_hold_moves_on_when_its_node(change: Fact) -> None:
    engine = cluster(*(node(f"n{index}", 2, labels={"zone": "a"}) for index in range(2)), patience=10.0)
    numbers = count()
    for index in (0, 0, 1, 1):
        fill(engine, f"n{index}", 1, f"small-{next(numbers)}")
    submit(engine, ask("big", 2, selector=on("zone", "a")))
    decide_after(engine, ClockAdvanced(11))
    assert held(engine) == ["n0"]
    decide_after(engine, change)
    stream(engine, 30)
    assert engine.placed.get("big") == "n1"


def test_a_hold_does_not_pass_to_a_node_that_takes_the_row_of_the_held_one() -> None:
    engine = busy(2)
    submit(engine, BIG)
    decide_after(engine, ClockAdvanced(11))
    decide_after(engine, NodeLeft("n0"), NodeJoined(node("n9", 1)))
    assert "n9" not in held(engine)


def test_a_fork_keeps_the_hold() -> None:
    engine = busy(1)
    submit(engine, BIG)
    decide_after(engine, ClockAdvanced(11))
    fork = engine.fork()
    assert held(fork) == held(engine) == ["n0"]
    decide_after(fork, AskEnded("big"))
    assert held(fork) == []
    assert held(engine) == ["n0"]


def test_time_that_comes_in_small_steps_or_at_once_makes_no_difference() -> None:
    fine, coarse = busy(), busy()
    for engine in (fine, coarse):
        submit(engine, BIG)
    for moment in range(12):
        decide_after(fine, ClockAdvanced(moment))
    decide_after(coarse, ClockAdvanced(11))
    assert held(fine) == held(coarse) == ["n0"]
    assert place(fine, ask("w", 1)) == place(coarse, ask("w", 1))
