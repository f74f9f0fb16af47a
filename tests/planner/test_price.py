"""What plans cost: beside an exact solver, and beside launching for each shape on its own."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from itertools import product
from statistics import mean

from hypothesis import given, settings
from hypothesis import strategies as st

from stead.engine.engine import Engine
from stead.engine.facts import AskSubmitted, NodeJoined
from stead.language.asks import Ask, PolicyName
from stead.language.labels import ANYWHERE, Labels, Requirement, Selector
from stead.language.nodes import NodeTemplate
from stead.language.resources import Amount, Resources
from stead.planner.planning import plan
from stead.planner.trials import settle
from tests.planner.exact import Pieces, cheapest

SEEDS = 30
MEAN_GAP_MAX, MEAN_ENGINE_GAP_MAX = 0.10, 0.02
CHEAPER_MAX = 100
"""The maximum number of cheaper sets of nodes that are tried for one plan."""


def kinds(dice: random.Random) -> list[NodeTemplate]:
    found = []
    for number in range(dice.randint(2, 4)):
        cpus, gpus, memory = dice.choice((2, 4, 8, 16)), dice.choice((0, 0, 0, 1, 2, 4)), dice.choice((2, 4, 8))
        price = cpus * 0.5 * dice.uniform(0.7, 1.3) + cpus * memory * 0.025 + gpus * 3 * dice.uniform(0.8, 1.2)
        capacity: dict[str, Amount] = {"CPU": cpus, "memory": f"{cpus * memory}Gi", "GPU": gpus}
        labels = Labels({"zone": dice.choice("ab")})
        found.append(
            NodeTemplate(f"kind-{number}", Resources.of(capacity), labels, count_max=20, price=round(price, 2))
        )
    return found


def work(dice: random.Random, catalog: list[NodeTemplate]) -> list[Pieces]:
    """Work that some kind takes."""
    found = []
    for number in range(dice.randint(2, 5)):
        needs: dict[str, Amount] = {
            "CPU": dice.choice((0.5, 1, 1, 2, 3, 4)),
            "memory": f"{dice.choice((1, 2, 4, 8))}Gi",
            "GPU": dice.choice((0, 0, 0, 1, 2)),
        }
        selector = Selector.all_of(Requirement.is_in("zone", "a")) if dice.random() < 0.3 else ANYWHERE
        ask = Ask.of(f"shape-{number}", needs, selector)
        fitting = [row for row, kind in enumerate(catalog) if fits(ask, kind)]
        if fitting:
            found.append(Pieces(ask, dice.randint(1, 6), frozenset(fitting)))
    return found


def fits(ask: Ask, kind: NodeTemplate) -> bool:
    (choice,) = ask.choices
    return choice.selector.matches(kind.labels) and times(ask, kind) > 0


def times(ask: Ask, kind: NodeTemplate) -> int:
    return min(kind.capacity.get(name) // need for name, need in ask.choices[0].resources.items())


def pending(some: list[Pieces], dice: random.Random, policy: PolicyName) -> Engine:
    asks = [Ask(f"{each.ask.id}/{n}", each.ask.choices, policy=policy) for each in some for n in range(each.count)]
    dice.shuffle(asks)
    engine = Engine()
    engine.apply(*map(AskSubmitted, asks))
    engine.decide()
    return engine


def test_plans_cost_little_more_than_the_optimum_of_an_exact_solver() -> None:
    """On these 30 instances, plans cost 7.7 % more than the optimum on average (measured in November 2026), and 20 are
    optimal. The optimum places work as it likes, but in a cluster the engine decides, in the order of the queue and by
    the policy of the work. The cheapest nodes with which the engine places everything cost 0.1 % less than the plan on
    average, for the 27 instances where all cheaper sets of nodes can be tried."""
    gaps, engine_gaps = [], []
    for seed in range(SEEDS):
        dice = random.Random(seed)
        catalog = kinds(dice)
        some = work(dice, catalog)
        if not some:
            continue
        engine = pending(some, dice, PolicyName.HYBRID)
        found = plan(engine, catalog)
        assert found.unserved == ()
        least = cheapest(catalog, some, sum(each.count for each in found.launches) + 1)
        if least is not None:
            gaps.append(found.price * 100 / least - 1)
            best = cheapest_by_engine(engine, catalog, least / 100, found.price)
            engine_gaps += [] if best is None else [found.price / best - 1]
    assert len(gaps) > SEEDS * 0.8
    assert min(gaps) > -1e-9
    assert mean(gaps) < MEAN_GAP_MAX
    assert len(engine_gaps) > SEEDS * 0.7
    assert mean(engine_gaps) < MEAN_ENGINE_GAP_MAX


def cheapest_by_engine(engine: Engine, catalog: list[NodeTemplate], least: float, most: float) -> float | None:
    """The least price from `least` to `most` for which the engine places everything; None if there are too many sets of
    nodes to try."""
    counts = product(*(range(int(most / kind.price) + 1) for kind in catalog))
    priced = [(sum(kind.price * n for kind, n in zip(catalog, each, strict=True)), each) for each in counts]
    cheaper = sorted(each for each in priced if least - 1e-6 <= each[0] < most - 1e-6)
    if len(cheaper) > CHEAPER_MAX:
        return None
    for price, each in cheaper:
        if not left_with(engine, catalog, dict(zip((kind.name for kind in catalog), each, strict=True))):
            return price
    return most


def left_with(engine: Engine, catalog: list[NodeTemplate], counts: Mapping[str, int]) -> int:
    """How much stays pending with these nodes."""
    then = engine.fork()
    for kind in catalog:
        then.apply(*(NodeJoined(kind.node(f"{kind.name}/{number}")) for number in range(counts[kind.name])))
    settle(then)
    return len(then.waiting)


@settings(max_examples=60)
@given(st.integers(0, 2**32), st.sampled_from([PolicyName.HYBRID, PolicyName.PACK, PolicyName.SPREAD]))
def test_no_plan_is_worse_than_launching_for_each_shape_on_its_own(seed: int, policy: PolicyName) -> None:
    dice = random.Random(seed)
    catalog = kinds(dice)
    some = work(dice, catalog)
    engine = pending(some, dice, policy)
    counts: Counter[str] = Counter()
    for each in some:
        nodes = {row: -(-each.count // times(each.ask, catalog[row])) for row in each.kinds}
        row = min(nodes, key=lambda row: (nodes[row] * catalog[row].price, row))
        counts[catalog[row].name] += nodes[row]
    alone, found = left_with(engine, catalog, counts), plan(engine, catalog)
    left = sum(len(each.ids) for each in found.unserved)
    assert left <= alone
    if left == alone:
        assert found.price <= sum(kind.price * counts[kind.name] for kind in catalog) + 1e-9
