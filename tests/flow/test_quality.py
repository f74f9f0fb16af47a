"""Flow compared with placing one at a time, on the same batch and with the same costs.

Rule: literal.py prices both; the numbers are asserted, so a loss of quality fails a test.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from random import Random

import pytest

from stead.engine.facts import AskRunning, AskSubmitted, Fact, NodeJoined
from stead.engine.settings import Settings
from stead.language.asks import Ask, PolicyName, Preference
from stead.language.nodes import Node
from tests.behaviour import ask, node, on
from tests.flow.instances import replayable
from tests.flow.literal import Batch
from tests.flow.outcomes import with_solver
from tests.oracle import Oracle

ONE_AT_A_TIME = ("hybrid", "pack", "spread")
SEEDS = range(20)


@dataclass(frozen=True)
class Quality:
    """The quality of a batch: how many asks are left out, which weight is satisfied, and how uneven the loads are."""

    unplaced: int
    weight: int
    steps: int
    cost: int


def quality(nodes: list[Node], asks: list[Ask], policy: str, running: list[tuple[Ask, str]] | None = None) -> Quality:
    facts: list[Fact] = [*map(NodeJoined, nodes), *(AskRunning(each, where) for each, where in running or ())]
    engine, oracle = with_solver(Settings(patience=None)), Oracle()
    oracle.apply(*facts)
    engine.apply(*facts, *(AskSubmitted(replace(each, policy=PolicyName(policy))) for each in asks))
    engine.decide()
    placement = {each.id: engine.placed[each.id] for each in asks if each.id in engine.placed}
    batch, loads = Batch(oracle, tuple(asks), PolicyName.FLOW), Counter(placement.values())
    return Quality(
        len(asks) - len(placement),
        sum(batch.weights[id, where] for id, where in placement.items()),
        sum(count * (count + 1) // 2 for count in loads.values()),
        batch.cost_of(placement),
    )


def mid_size(seed: int, sizes: tuple[float, ...]) -> tuple[list[Node], list[Ask], list[tuple[Ask, str]]]:
    """40 nodes in 4 zones, some used before; about as many asks as they hold, whose zones and preferences overlap."""
    random = Random(seed)
    nodes = [node(f"n{n}", 8, labels={"zone": "abcd"[n % 4], "rack": f"r{n % 5}"}) for n in range(40)]
    running = [(ask(f"ran{n}", random.randrange(1, 6)), f"n{n}") for n in range(0, 40, 3)]
    classes = []
    for _ in range(12):
        zones = random.sample("abcd", random.choice((1, 2, 2, 3, 4)))
        likes = tuple(Preference(on("rack", f"r{random.randrange(5)}"), random.choice((20, 50, 100))) for _ in range(2))
        classes.append(ask("", random.choice(sizes), selector=on("zone", *zones), prefers=likes))
    free = 8 * 40 - sum(work.choices[0].resources["CPU"] // 10_000 for work, _ in running)
    count = int(free / (sum(sizes) / len(sizes)))
    return nodes, [replace(random.choice(classes), id=f"w{n}") for n in range(count)], running


@pytest.mark.parametrize("seed", SEEDS)
def test_where_flow_is_exact_it_is_never_worse_than_one_at_a_time(seed: int) -> None:
    nodes, asks, running = mid_size(seed, (1,))
    with replayable(seed):
        together = quality(nodes, asks, "flow", running)
        for policy in ONE_AT_A_TIME:
            alone = quality(nodes, asks, policy, running)
            assert together.unplaced <= alone.unplaced, policy
            assert together.cost <= alone.cost, policy


def test_over_all_seeds_flow_leaves_out_fewer_and_satisfies_more_where_sizes_differ_too() -> None:
    totals = {policy: [0, 0, 0] for policy in ("flow", *ONE_AT_A_TIME)}
    for seed in SEEDS:
        nodes, asks, running = mid_size(seed, (1, 2, 3))
        for policy, total in totals.items():
            found = quality(nodes, asks, policy, running)
            for index, amount in enumerate((found.unplaced, found.weight, found.cost)):
                total[index] += amount
    for policy in ONE_AT_A_TIME:
        assert totals["flow"][0] < totals[policy][0], totals
        assert totals["flow"][2] < totals[policy][2], totals


@pytest.mark.parametrize(("policy", "left_out"), [("hybrid", 350), ("pack", 500), ("spread", 300)])
def test_one_at_a_time_leaves_hundreds_of_a_thousand_nested_asks_out_and_flow_none(policy: str, left_out: int) -> None:
    nodes = [node(f"n{n}", 5, labels={"tier": str(n * 4 // 200)}) for n in range(200)]
    asks = [
        ask(f"w{n}", 1, selector=on("tier", *map(str, range(4 - n * 4 // 1000)))) for n in range(1000)
    ]  # the last ones have the fewest options
    assert quality(nodes, asks, policy).unplaced == left_out
    assert quality(nodes, asks, "flow").unplaced == 0
