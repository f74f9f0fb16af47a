"""A long random sequence of facts from a random seed, with everything that could depend on the order of a set.

In processes with different hash seeds it must give the same bytes: equal facts give equal decisions.
"""

from __future__ import annotations

import sys
from random import Random

from stead.codec import dumps
from stead.engine.decisions import Decision
from stead.engine.engine import Engine
from stead.engine.facts import (
    AskEnded,
    AskLost,
    AskRunning,
    AskSubmitted,
    ClockAdvanced,
    Fact,
    GroupEnded,
    GroupSubmitted,
    NodeDrained,
    NodeJoined,
    NodeLabelled,
    NodeLeft,
    NodeTainted,
    NodeUntainted,
)
from stead.language.asks import Affinity, Ask, Choice, Group, PolicyName, Preference, Spread, Strategy
from stead.language.labels import Labels, Requirement, Selector
from stead.language.taints import Effect
from tests.behaviour import (
    all_of,
    amounts,
    apart_from_app,
    ask,
    cluster,
    group,
    near,
    near_app,
    node,
    on,
    taint,
    tolerates,
)

APPS, ZONES, RACKS = ("web", "db", "cache", "queue"), ("a", "b", "c"), ("r1", "r2")


def some_affinity(random: Random) -> Affinity:
    """Mostly with several values, namespaces and topologies, whose order must not matter."""
    apps = random.sample(APPS, random.choice((1, 2, 3)))
    return Affinity(
        Selector.all_of(Requirement.is_in("app", *apps)),
        near=random.random() < 0.3,
        topologies=tuple(random.sample(("node_id", "zone", "rack"), random.choice((1, 2)))),
        namespaces=random.choice((None, frozenset[str](), frozenset({"", "blue"}))),
        symmetric=random.random() < 0.7,
    )


def some_ask(random: Random, id: str) -> Ask:
    selector = random.choice(
        (
            Selector(((),)),
            on("zone", *random.sample(ZONES, 2)),
            Selector.any_of(Requirement.not_in("zone", *random.sample(ZONES, 2)), Requirement.exists("rack")),
        )
    )
    wants = amounts(CPU=random.choice((0, 0.5, 1, 2)), GPU=random.choice((0, 0, 0.5, 1)))
    return Ask(
        id,
        (Choice(wants, selector), Choice(amounts(CPU=1)))[: random.choice((1, 2))],
        tuple(
            tolerates(key, *random.sample("xyz", 2)) for key in random.sample(("gpu", "spot"), random.choice((0, 1)))
        ),
        random.choice(
            (
                (),
                (),
                all_of(some_affinity(random)),
                ((some_affinity(random),), (near_app("web"),)),
                all_of(near(*(f"w{random.randrange(100)}" for _ in range(2)))),
            )
        ),
        random.choice(((), (), (Spread("zone", on("app", *random.sample(APPS, 2))),))),
        random.choice(((), (Preference(on("rack", "r1"), 10), Preference(apart_from_app("db"), 5)))),
        Labels({"app": random.choice(APPS)}),
        random.choice(("", "blue")),
        random.choice(list(PolicyName)),
        random.choice((0, 0, 1)),
    )


def some_group(random: Random, id: str) -> Group:
    members = [ask(f"{id}-{index}", random.choice((0.5, 1)), labels={"app": random.choice(APPS)}) for index in range(3)]
    return group(
        id, *members, strategy=random.choice(list(Strategy)), topology=(("zone", random.choice(list(Strategy))),)
    )


def some_fact(random: Random, number: int, engine: Engine) -> Fact:
    where = random.choice(list(engine.nodes) or ["nowhere"])
    placed = random.choice(list(engine.placed) or ["nobody"])
    facts: list[Fact] = [
        AskSubmitted(some_ask(random, f"w{number}")),
        AskSubmitted(some_ask(random, f"w{number}")),
        GroupSubmitted(some_group(random, f"g{number}")),
        AskEnded(placed),
        AskLost(placed),
        AskRunning(some_ask(random, f"stranger{number}"), where),
        GroupEnded(f"g{random.randrange(number + 1)}"),
        NodeLabelled(where, Labels({"zone": random.choice(ZONES)}), ("rack",)),
        NodeTainted(where, taint(random.choice(("gpu", "spot")), random.choice("xyz"), random.choice(list(Effect)))),
        NodeUntainted(where, random.choice(("gpu", "spot"))),
        NodeDrained(where, random.random() < 0.3),
        ClockAdvanced(float(number)),
        NodeLeft(where) if number % 40 == 0 else ClockAdvanced(float(number)),
        NodeJoined(
            node(f"n{number % 9}", 4, GPU=2, labels={"zone": random.choice(ZONES), "rack": random.choice(RACKS)})
        ),
    ]
    return random.choice(facts)


def story(seed: int, length: int = 150) -> bytes:
    """All decisions, and at the end all explanations in words, as bytes."""
    random = Random(seed)
    engine = cluster(
        *(node(f"n{index}", 4, GPU=1, labels={"zone": ZONES[index % 3]}) for index in range(6)), patience=20.0
    )
    decided: list[list[Decision]] = []
    for number in range(length):
        engine.apply(some_fact(random, number, engine))
        decided.append(engine.decide())
    words = [str(engine.explain(id)) for id in (*list(engine.placed)[:9], *engine.waiting[:9])]
    return dumps(decided) + "\n".join(words).encode()


if __name__ == "__main__":
    sys.stdout.buffer.write(story(int(sys.argv[1])))
