"""Where flow is exact, a batch has the optimal cost; elsewhere it reports how far it may be off.

Rule: the engine is compared with two independent solutions (literal.py) on small random instances (instances.py): 500
where flow is exact, 10,000 with STEAD_SOAK=1. CP-SAT solves all of them.
"""

from __future__ import annotations

import pytest

from stead.language.asks import PolicyName
from tests.flow.instances import OTHERS, PARTS, Instance, instance, replayable, seeds
from tests.flow.outcomes import Outcome, check, check_nobody_has_the_place_of_the_more_important, decided

EXACT_COUNT, EXACT_SOAK = 500, 10_000
OTHER_COUNT, OTHER_SOAK = 100, 2_000
FRAGMENTATION_COUNT, FRAGMENTATION_SOAK = 40, 1_000

parts = pytest.mark.parametrize("part", range(PARTS))
kinds = pytest.mark.parametrize("kind", OTHERS)


def outcome_of(case: Instance) -> Outcome:
    return decided(case.facts, case.settings)


@parts
def test_where_flow_is_exact_it_costs_what_the_literal_graph_and_cp_sat_say(part: int) -> None:
    for seed in seeds(EXACT_COUNT, EXACT_SOAK, part):
        with replayable(seed):
            case = instance("equal", seed)
            outcome = outcome_of(case)
            check(case, outcome)
            literal, best = case.batch.literal_optimum(), case.batch.true_optimum()
            assert literal == best, "the two oracles disagree"
            said = outcome.batch(case.policy)
            assert (said.asks, said.placed) == (len(case.asks), len(outcome.placement))
            assert said.cost == case.batch.cost_of(outcome.placement), "what it says is not what it placed"
            assert said.cost == best
            assert said.bound == best
            assert said.repaired == 0


@kinds
@parts
def test_elsewhere_the_bound_and_the_cost_have_the_optimum_between_them(kind: str, part: int) -> None:
    for seed in seeds(OTHER_COUNT, OTHER_SOAK, part):
        with replayable(seed):
            case = instance(kind, seed)
            outcome = outcome_of(case)
            oracle = check(case, outcome)
            check_nobody_has_the_place_of_the_more_important(case, oracle)
            said, best = outcome.batch(case.policy), case.batch.true_optimum()
            assert (said.asks, said.placed) == (len(case.asks), len(outcome.placement))
            assert said.cost == case.batch.cost_of(outcome.placement), "what it says is not what it placed"
            assert best <= said.cost, "cheaper than the cheapest: the oracle does not know the rules"
            assert said.bound is None or said.bound <= best, "what is proven is not so"


@kinds
@parts
def test_by_fragmentation_too_no_rule_is_broken_and_nothing_waits_that_fits(kind: str, part: int) -> None:
    for seed in seeds(FRAGMENTATION_COUNT, FRAGMENTATION_SOAK, part):
        with replayable(seed):
            case = instance(kind, seed, PolicyName.FLOW_FGD)
            outcome = outcome_of(case)
            oracle = check(case, outcome)
            check_nobody_has_the_place_of_the_more_important(case, oracle)
            said = outcome.batch(PolicyName.FLOW_FGD)
            assert (said.asks, said.placed) == (len(case.asks), len(outcome.placement))
            assert said.bound is None or said.bound <= said.cost
