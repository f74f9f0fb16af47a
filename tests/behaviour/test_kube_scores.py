"""The policy `kube` ranks nodes as kube-scheduler's default plugins do.

Rule: these are hand-made cases, one for each plugin. `tests/kubernetes/test_engine_equals_kube_scheduler.py` compares
whole clusters with an independent restatement.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest

from stead.engine.engine import Engine
from stead.engine.facts import AskEnded, AskRunning, AskSubmitted, NodeJoined, NodeLabelled, NodeLeft, NodeTainted
from stead.language.asks import Affinity, Ask, HostPort, PolicyName, Preference, Spread
from stead.language.labels import Labels
from stead.language.nodes import Node
from stead.language.resources import Resources
from stead.language.taints import Effect, Taint
from tests.behaviour import ask, cluster, node, on, run, submit, tolerates

GIB = "1Gi"
WEB = on("app", "web")
MIB = 1 << 20


def kube(id: str = "w", cpu: float = 1, memory: Any = GIB, **rest: Any) -> Ask:
    return ask(id, cpu, memory=memory, policy=PolicyName.KUBE, **rest)


def place(
    name: str, cpu: float = 10, memory: Any = "10Gi", images: tuple[tuple[str, int], ...] = (), **rest: Any
) -> Node:
    return replace(node(name, cpu, memory=memory, **rest), images=images)


def chosen(engine: Engine, wanted: Ask) -> str:
    submit(engine, wanted)
    return engine.placed[wanted.id]


# One plugin each


def test_the_node_with_the_most_left_is_taken() -> None:
    engine = cluster(place("a"), place("b"), place("c"))
    run(engine, kube("x", 3, "3Gi"), "a")
    run(engine, kube("y", 1, "1Gi"), "b")
    assert chosen(engine, kube()) == "c"


def test_work_that_requests_nothing_is_assumed_to_use_something() -> None:
    engine = cluster(place("a"), place("b"))
    run(engine, kube("x", 0, 0, estimates=Resources.of(CPU="100m", memory="200Mi")), "a")
    assert chosen(engine, kube(cpu=0, memory=0)) == "b"


def test_an_estimate_takes_no_room() -> None:
    engine = cluster(place("a", 1, "1Gi"))
    run(engine, kube("x", 0, 0, estimates=Resources.of(CPU=1, memory=GIB)), "a")
    assert chosen(engine, kube(cpu=1, memory="1Gi")) == "a"


def test_a_node_whose_balance_improves_wins_over_one_where_it_suffers() -> None:
    engine = cluster(place("a"), place("b"))
    run(engine, kube("x", 4, 0), "a")  # the CPU of `a` is in use, the memory of `b`
    run(engine, kube("y", 0, "4Gi"), "b")
    assert chosen(engine, kube(cpu=0, memory="2Gi")) == "a"


def test_a_node_that_has_the_image_is_preferred() -> None:
    image = (("web:1", 900 * MIB),)
    engine = cluster(place("a"), place("b", images=image), place("c"))
    assert chosen(engine, kube(images=("web:1",))) == "b"


def test_a_small_image_does_not_count() -> None:
    engine = cluster(place("a"), place("b", images=(("web:1", 20 * MIB),)))
    assert chosen(engine, kube(images=("web:1",))) == "a"


def test_taints_to_avoid_are_counted() -> None:
    avoid = [Taint(key, "", Effect.PREFER_NO_SCHEDULE) for key in "xyz"]
    engine = cluster(place("a", taints=avoid[:2]), place("b", taints=avoid[2:]), place("c", taints=avoid))
    assert chosen(engine, kube("w")) == "b"
    tolerant = kube("v", tolerations=(tolerates("x"), tolerates("y")))
    assert chosen(engine, tolerant) == "a"


def test_the_greatest_sum_of_weights_wins() -> None:
    engine = cluster(
        place("a", labels={"disk": "ssd"}),
        place("b", labels={"zone": "z"}),
        place("c", labels={"disk": "ssd", "zone": "z"}),
    )
    wish = (Preference(on("disk", "ssd"), 60), Preference(on("zone", "z"), 50))
    assert chosen(engine, kube(prefers=wish)) == "c"
    run(engine, kube("x", 9, "9Gi"), "c")
    assert chosen(engine, kube("v", prefers=wish, cpu=2)) == "a"


def test_matching_work_is_counted_not_only_found() -> None:
    engine = cluster(place("a", labels={"zone": "1"}), place("b", labels={"zone": "2"}))
    for number, where in enumerate("abb"):
        run(engine, ask(f"web-{number}", labels={"app": "web"}), where)
    wish = (Preference(Affinity(WEB, topologies=("zone",)), 10),)
    assert chosen(engine, kube(prefers=wish)) == "b"


def test_placed_work_draws_later_work_and_drives_it_away() -> None:
    engine = cluster(*(place(name, labels={"zone": name}) for name in "abc"))
    near, far = Affinity(WEB, topologies=("zone",)), Affinity(WEB, near=False, topologies=("zone",))
    run(engine, ask("likes", pulls=(Preference(near, 50),)), "c")
    run(engine, ask("hates", pulls=(Preference(far, 50),)), "a")
    assert chosen(engine, kube(labels={"app": "web"})) == "c"
    assert chosen(engine, kube("other", labels={"app": "db"})) == "a"


def test_domains_with_less_matching_work_are_preferred() -> None:
    engine = cluster(*(place(name, labels={"zone": zone}) for name, zone in (("a", "1"), ("b", "1"), ("c", "2"))))
    run(engine, ask("web-0", labels={"app": "web"}), "a")
    spread = (Preference(Spread("zone", WEB)),)
    assert chosen(engine, kube(labels={"app": "web"}, prefers=spread)) == "c"


@pytest.mark.parametrize(("needs_key", "expected"), [(True, "a"), (False, "b")])
def test_a_node_without_the_key_of_a_spread(needs_key: bool, expected: str) -> None:
    """It gets no points, unless the spread is one of the cluster's defaults."""
    engine = cluster(place("a", labels={"zone": "1"}), place("b"))
    run(engine, ask("web-0", labels={"app": "web"}), "a")
    spread = (Preference(Spread("zone", WEB, 5, needs_key=needs_key)),)
    assert chosen(engine, kube(labels={"app": "web"}, prefers=spread)) == expected


# Ports


@pytest.mark.parametrize(
    ("taken", "wanted", "fits"),
    [
        (HostPort(80), HostPort(80), False),
        (HostPort(80), HostPort(81), True),
        (HostPort(80), HostPort(80, "UDP"), True),
        (HostPort(80, ip="10.0.0.1"), HostPort(80, ip="10.0.0.2"), True),
        (HostPort(80, ip="10.0.0.1"), HostPort(80, ip="10.0.0.1"), False),
        (HostPort(80, ip="10.0.0.1"), HostPort(80), False),
        (HostPort(80), HostPort(80, ip="10.0.0.1"), False),
    ],
)
def test_two_pieces_of_work_share_a_port(taken: HostPort, wanted: HostPort, fits: bool) -> None:
    engine = cluster(node("a"))
    submit(engine, ask("x", ports=(taken,)), ask("y", ports=(wanted,)))
    assert ("y" in engine.placed) is fits
    engine.apply(AskEnded("x"))
    engine.decide()
    assert "y" in engine.placed


@pytest.mark.parametrize("count", [1, 2])
def test_without_nodes_everything_is_pending(count: int) -> None:
    engine = cluster()
    submit(engine, *(kube(f"w{number}", prefers=(Preference(Spread("zone", WEB)),)) for number in range(count)))
    submit(engine, *(kube(f"v{number}") for number in range(count)))
    assert len(engine.waiting) == 2 * count


# Scores are kept up to date


def test_scores_that_were_updated_equal_scores_computed_anew() -> None:
    """After many changes, a fork, which computes everything again, ranks all nodes as the engine does. Some work is
    not looked at for a while, and shares its columns with other work that is."""
    random = Random(7)
    zones = "1234"
    engine = cluster(*(some_node(random, number, zones) for number in range(40)))
    wishes = [kube(f"probe-{number}", **some_wish(random)) for number in range(24)]
    for turn in range(300):
        change(engine, random, turn, zones)
        engine.decide()
        for wish in random.sample(wishes, random.randrange(5)):
            board = engine._parts.board
            kept = board.standing(board.shape_of(wish).demands[0])
            twin = board.fork()
            new = twin.standing(twin.shape_of(wish).demands[0])
            assert kept.keys.tolist() == new.keys.tolist()


def some_node(random: Random, number: int, zones: str) -> Node:
    labels = {"zone": random.choice(zones), "kubernetes.io/hostname": f"n{number}"}
    return place(f"n{number}", labels=labels, images=(("web:1", 500 * MIB),) if random.random() < 0.3 else ())


def some_wish(random: Random) -> dict[str, Any]:
    wishes: list[dict[str, Any]] = [
        {},
        {"images": ("web:1",)},
        {"images": ("web:1",), "prefers": (Preference(on("zone", "2"), 40),)},
        {"prefers": (Preference(on("zone", "1"), 40),)},
        {"prefers": (Preference(Spread("zone", WEB, 2)), Preference(Spread("kubernetes.io/hostname", WEB, 3)))},
        {"prefers": (Preference(Affinity(WEB, topologies=("zone",)), 20),)},
        {"spreads": (Spread("zone", WEB, 2),)},
    ]
    return {**random.choice(wishes), "labels": {"app": random.choice(("web", "db"))}}


def change(engine: Engine, random: Random, turn: int, zones: str) -> None:
    name = f"n{random.randrange(40)}"
    match random.randrange(8):
        case 0 | 1 | 2:
            pulls = (Preference(Affinity(WEB, topologies=("zone",)), 5),) if random.random() < 0.3 else ()
            estimates = Resources.of(CPU="100m") if random.random() < 0.3 else Resources()
            extra = kube(f"x{turn}", 0.5, labels={"app": "web"}, pulls=pulls, estimates=estimates)
            engine.apply(AskRunning(extra, name))
        case 3:
            engine.apply(AskEnded(f"x{random.randrange(turn + 1)}"))
        case 4:
            engine.apply(NodeLabelled(name, Labels({"zone": random.choice(zones)})))
        case 5:
            engine.apply(NodeTainted(name, Taint("slow", "", Effect.PREFER_NO_SCHEDULE)))
        case 6:
            engine.apply(NodeLeft(name))
        case 7:
            engine.apply(NodeJoined(some_node(random, random.randrange(90), zones)))
            engine.apply(AskSubmitted(kube(f"x{turn}", 0.2, **some_wish(random))))
