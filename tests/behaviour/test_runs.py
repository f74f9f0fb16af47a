"""Runs of equal asks of which each changes where the next may go: decided at once, they go where they go one by one."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from stead.engine.board import Board
from stead.engine.decisions import Placed
from stead.engine.engine import Engine
from stead.engine.facts import AskEnded, AskSubmitted, NodeDrained, NodeJoined, NodeLeft
from stead.language.asks import Affinity, Ask, HostPort, PolicyName, Preference, Spread
from stead.language.labels import Selector
from stead.language.nodes import Node
from stead.language.taints import Effect
from tests.behaviour import all_of, apart_from_app, ask, cluster, near_app, node, on, run, submit, taint, tolerates

ZONES = "abcde"
HOSTNAME = "kubernetes.io/hostname"
WEB = on("app", "web")
KUBE: dict[str, Any] = {"policy": PolicyName.KUBE}


@pytest.fixture
def foreseen(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many asks were foreseen at a time."""
    found: list[int] = []
    original = Board.best_in_turn

    def best_in_turn(board: Board, shape: Any, count: int) -> list[int]:
        rows = original(board, shape, count)
        if rows:
            found.append(len(rows))
        return rows

    monkeypatch.setattr(Board, "best_in_turn", best_in_turn)
    return found


def one_by_one(engine: Engine) -> list[tuple[str, str]]:
    """What is placed if each call places one ask."""
    found: list[tuple[str, str]] = []
    while placed := placed_in(engine.decide(limit=1)):
        found += placed
    return found


def placed_in(decisions: list[Any]) -> list[tuple[str, str]]:
    return [(each.ask, each.node) for each in decisions if isinstance(each, Placed)]


def some_node(random: Random, number: int) -> Node:
    labels = {HOSTNAME: f"h{number // 2 if number < 4 else number}", "disk": random.choice(("ssd", "hdd"))}
    if random.random() < 0.9:
        labels["zone"] = random.choice(ZONES)
    taints = [taint("dedicated", "x")] if random.random() < 0.2 else []
    if random.random() < 0.03:
        taints.append(taint("slow", "", Effect.PREFER_NO_SCHEDULE))
    return node(
        f"n{number}", random.choice((2, 4, 8)), memory=f"{random.choice((4, 8))}Gi", labels=labels, taints=taints
    )


WISHES: dict[str, dict[str, Any]] = {
    "apart by host": {"affinities": all_of(apart_from_app("web", HOSTNAME, symmetric=True))},
    "apart by zone": {"affinities": all_of(apart_from_app("web", "zone", symmetric=True))},
    "apart by zone and by host": {"affinities": all_of(apart_from_app("web", "zone", HOSTNAME))},
    "apart by node": {"affinities": all_of(apart_from_app("web"))},
    "near by zone": {"affinities": all_of(near_app("web", "zone"))},
    "near, and pulled there": {
        "affinities": all_of(near_app("web", "zone")),
        "pulls": (Preference(Affinity(WEB, topologies=("zone",)), 1),),
    },
    "near by zone, apart by host": {"affinities": all_of(near_app("web", "zone"), apart_from_app("web", HOSTNAME))},
    "apart by host, but pulled to its zone": {
        "affinities": all_of(apart_from_app("web", HOSTNAME)),
        "pulls": (Preference(Affinity(WEB, topologies=("zone",)), 1),),
    },
    "spread over zones, but pulled to its own": {
        "spreads": (Spread("zone", WEB, 2),),
        "pulls": (Preference(Affinity(WEB, topologies=("zone",)), 1),),
    },
    "near other work": {"affinities": all_of(near_app("db", "zone"))},
    "spread over zones": {"spreads": (Spread("zone", WEB),)},
    "spread with skew 3": {"spreads": (Spread("zone", WEB, 3),)},
    "spread over at least 4 zones": {"spreads": (Spread("zone", WEB, 1, min_domains=4),)},
    "spread over tolerated nodes": {"spreads": (Spread("zone", WEB, 1, by_taints=True, by_selector=False),)},
    "spread of other work": {"spreads": (Spread("zone", on("app", "db")),)},
    "spread over zones and disks": {"spreads": (Spread("zone", WEB, 2), Spread("disk", WEB, 3))},
    "spread over zones and hosts": {"spreads": (Spread("zone", WEB, 1), Spread(HOSTNAME, WEB, 2))},
    "spread and apart by host": {
        "spreads": (Spread("zone", WEB, 2),),
        "affinities": all_of(apart_from_app("web", HOSTNAME)),
    },
    "one port": {"ports": (HostPort(80),)},
    "alternatives": {"affinities": ((near_app("db", "zone"),), (apart_from_app("web", "zone"),))},
    "preferred spread": {"prefers": (Preference(Spread("zone", WEB, 1)),)},
    "preferred label": {
        "prefers": (Preference(on("disk", "ssd"), 10),),
        "affinities": all_of(apart_from_app("web", HOSTNAME)),
    },
}

ONE_BY_ONE = {
    "apart by host, but pulled to its zone",
    "spread over zones, but pulled to its own",
    "alternatives",
    "preferred spread",
    "preferred label",
}


def some_asks(random: Random, wave: int, wishes: dict[str, Any]) -> list[Ask]:
    selector = on("disk", "ssd") if random.random() < 0.5 else Selector(((),))
    tolerations = (tolerates("dedicated"),) if random.random() < 0.3 else ()
    cpu, memory, priority = random.choice((0, 0.5, 1)), random.choice((0, "1Gi")), random.choice((0, 1))
    return [
        ask(
            f"w{wave}-{number}",
            cpu,
            memory=memory,
            labels={"app": "web"},
            policy=PolicyName.KUBE,
            selector=selector,
            tolerations=tolerations,
            priority=priority,
            **wishes,
        )
        for number in range(random.choice((1, 3, 12, 30)))
    ]


def check(random: Random, wishes: dict[str, Any]) -> None:
    nodes = [some_node(random, number) for number in range(random.choice((5, 10, 20, 40)))]
    at_once, alone = cluster(*nodes, patience=None), cluster(*nodes, patience=None)
    for wave in range(4):
        facts: list[Any] = [AskSubmitted(each) for each in some_asks(random, wave, wishes)]
        if random.random() < 0.5:
            db = [ask(f"db{wave}-{n}", 0.5, labels={"app": "db"}, **KUBE) for n in range(5)]
            facts += map(AskSubmitted, db)
        if wave and random.random() < 0.5:
            facts += [AskEnded(f"w{wave - 1}-{number}") for number in range(0, 12, 2)]
        if random.random() < 0.5:
            changed = random.randrange(len(nodes))
            more = NodeJoined(some_node(random, len(nodes) + wave))
            facts.append(random.choice((NodeDrained(f"n{changed}"), NodeLeft(f"n{changed}"), more)))
        at_once.apply(*facts)
        alone.apply(*facts)
        assert placed_in(at_once.decide()) == one_by_one(alone), f"wave {wave}"
        assert at_once.decide() == []


@pytest.mark.parametrize("wish", WISHES)
@pytest.mark.parametrize("seed", range(12))
def test_they_go_where_they_go_one_by_one(wish: str, seed: int) -> None:
    check(Random(f"{wish} {seed}"), WISHES[wish])


@pytest.mark.parametrize("wish", sorted(WISHES.keys() - ONE_BY_ONE))
def test_they_are_decided_at_once(wish: str, foreseen: list[int]) -> None:
    places = [{"zone": ZONES[number % 2], HOSTNAME: f"h{number}", "disk": "ssd"} for number in range(12)]
    engine = cluster(*(node(f"n{number}", 8, labels=labels) for number, labels in enumerate(places)))
    submit(engine, ask("db", 1, labels={"app": "db"}, **KUBE))
    web = KUBE | {"labels": {"app": "web"}} | WISHES[wish]
    submit(engine, *(ask(f"w{number}", 1, **web) for number in range(9)))
    assert max(foreseen, default=0) >= 2


def test_a_run_that_begins_in_one_zone_and_may_go_on_in_others_is_not_foreseen_if_scores_differ_there() -> None:
    """At first only zone c is open to it. Then the other zones are, and it prefers them, because it has more there."""
    web = KUBE | {"labels": {"app": "web"}} | WISHES["spread over zones, but pulled to its own"]
    found = []
    for decide in (lambda engine: placed_in(engine.decide()), one_by_one):
        places = [(90 if number % 3 == 2 else 9, {"zone": ZONES[number % 3]}) for number in range(9)]
        engine = cluster(*(node(f"n{number}", cpu, labels=labels) for number, (cpu, labels) in enumerate(places)))
        for number, zone in enumerate((0, 0, 1, 1)):
            run(engine, ask(f"old{number}", 1, **web), f"n{zone}")
        engine.apply(*(AskSubmitted(ask(f"w{number}", 1, **web)) for number in range(6)))
        found.append(decide(engine))
    assert found[0] == found[1]
    assert [node for _, node in found[0]][:2] == ["n2", "n3"]


def test_work_that_the_first_of_a_run_wakes_comes_before_the_rest(foreseen: list[int]) -> None:
    engine = cluster(*(node(f"n{number}", 5, labels={"zone": ZONES[number]}) for number in range(2)))
    late = ask("late", 2, affinities=all_of(near_app("web")), priority=9, **KUBE)
    spread = KUBE | {"labels": {"app": "web"}} | WISHES["spread over zones"]
    engine.apply(AskSubmitted(late), *(AskSubmitted(ask(f"w{number}", 1, **spread)) for number in range(6)))
    assert [id for id, _ in placed_in(engine.decide())] == ["w0", "late", "w1", "w2", "w3", "w4", "w5"]
    assert foreseen == [5]
