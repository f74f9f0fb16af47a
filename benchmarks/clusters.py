"""Clusters and work of realistic size for the benchmarks, all from a seed."""

from __future__ import annotations

import random

from stead.engine.engine import Engine
from stead.engine.facts import NodeJoined
from stead.engine.settings import Settings
from stead.language.asks import Affinity, Ask, Choice, PolicyName
from stead.language.labels import Labels, Requirement, Selector
from stead.language.nodes import Node
from stead.language.resources import Amount, Resources
from stead.language.taints import Taint

ZONES = ("us-west4-a", "us-west4-b", "us-west4-c")
TYPES = ("m5.4xlarge", "c5.9xlarge", "r5.8xlarge", "g5.12xlarge")
TEAMS = ("search", "ads", "research", "platform", "infra")


def nodes(count: int, seed: int = 1) -> list[Node]:
    """Zones, instance types, teams and racks; one node in ten has GPUs and a taint that keeps others off."""
    dice = random.Random(seed)
    found = []
    for index in range(count):
        gpu = index % 10 == 0
        labels = {
            "zone": dice.choice(ZONES),
            "type": "g5.12xlarge" if gpu else dice.choice(TYPES[:3]),
            "team": dice.choice(TEAMS),
            "rack": f"rack-{index // 40}",
            "market": "spot" if dice.random() < 0.3 else "on-demand",
        }
        capacity: dict[str, Amount] = {"CPU": 64, "memory": "256Gi", **({"GPU": 4} if gpu else {})}
        taints = (Taint("gpu", "true"),) if gpu else ()
        found.append(Node(f"node-{index:06d}", Resources.of(capacity), Labels(labels), taints, ip=f"10.0.0.{index}"))
    return found


def joined(found: list[Node]) -> Engine:
    engine = Engine(Settings(patience=None))
    engine.apply(*map(NodeJoined, found))
    engine.decide()
    return engine


def choices(count: int, seed: int = 2) -> list[tuple[Choice, ...]]:
    """So many different wants: amounts and selectors over zone, type, team and market."""
    dice = random.Random(seed)
    found: dict[tuple[Choice, ...], None] = {}
    while len(found) < count:
        requirements = [
            Requirement.is_in("zone", *dice.sample(ZONES, 2)),
            Requirement.not_in("team", dice.choice(TEAMS)),
            Requirement.is_in("type", *dice.sample(TYPES[:3], 2)),
            Requirement.is_in("market", dice.choice(("spot", "on-demand"))),
        ]
        selector = Selector.all_of(*dice.sample(requirements, dice.randint(0, 3)))
        amounts = {"CPU": dice.choice((0.5, 1, 2, 4)), "memory": f"{dice.choice((1, 2, 4, 8))}Gi"}
        found[(Choice(Resources.of(amounts), selector),)] = None
    return list(found)


def apart_from_each_other(count: int) -> list[Ask]:
    """No two of them on one node."""
    selector = Selector.all_of(Requirement.is_in("app", "db"))
    affinities = ((Affinity(selector, near=False),),)
    wanted = (Choice(Resources.of(CPU=1)),)
    return [Ask(f"db-{i}", wanted, affinities=affinities, labels=Labels({"app": "db"})) for i in range(count)]


def each_near_an_earlier_one(count: int, seed: int = 3) -> list[Ask]:
    """Every ask but some first ones must lie on the node of one that came before it."""
    dice = random.Random(seed)
    wanted = (Choice(Resources.of(CPU=0.1)),)
    found = []
    for index in range(count):
        selector = Selector.all_of(Requirement.is_in("ask_id", f"pair-{dice.randrange(max(1, index))}"))
        affinities = ((Affinity(selector),),) if index >= 100 else ()
        found.append(Ask(f"pair-{index}", wanted, affinities=affinities, policy=PolicyName.SPREAD))
    return found
