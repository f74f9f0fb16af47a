"""Random groups beside random single asks: whole or not at all, never overcommitted, and none that fits is pending.

Rule: all asks of an instance need the same, so counting is enough to tell whether a group fits (see `fits`).
"""

from __future__ import annotations

from random import Random

import pytest

from stead.engine.decisions import GroupPlaced, Placed
from stead.engine.facts import AskSubmitted, Fact, GroupSubmitted, NodeJoined
from stead.engine.settings import Settings
from stead.language.asks import Ask, Group, PolicyName
from tests.behaviour import ask, group, node, on, taint
from tests.flow.instances import PARTS, replayable, seeds
from tests.flow.literal import Batch
from tests.flow.outcomes import Outcome, decided
from tests.oracle import Oracle

COUNT, COUNT_IN_SOAK = 100, 4_000
POLICIES = (PolicyName.FLOW, PolicyName.FLOW_PACK)


def story(seed: int, priorities: int, minimums: bool = False) -> tuple[list[Fact], list[Ask], list[Group], PolicyName]:
    random = Random(f"gangs {priorities} {seed}")
    policy = random.choice(POLICIES)
    nodes = [
        node(f"n{n}", random.randrange(5), labels={"zone": random.choice("ab")}, taints=[taint("x")] * (n == 5))
        for n in range(random.randrange(2, 7))
    ]

    def member(id: str, zones: str) -> Ask:
        return ask(id, 1, selector=on("zone", *zones), policy=policy, priority=random.randrange(priorities))

    def gang(id: str) -> Group:
        zones = random.choice(("ab", "a", "b"))
        members = [member(f"{id}.{n}", zones) for n in range(random.randrange(1, 6))]
        least = random.randrange(1, len(members) + 1) if minimums and random.random() < 0.7 else None
        return group(id, *members, priority=random.randrange(priorities), min_available=least)

    groups = [gang(f"g{n}") for n in range(random.randrange(1, 7))]
    singles = [member(f"w{n}", random.choice(("ab", "a", "b"))) for n in range(random.randrange(6))]
    work: list[Fact] = [*map(GroupSubmitted, groups), *map(AskSubmitted, singles)]
    random.shuffle(work)
    return [*map(NodeJoined, nodes), *work], singles, groups, policy


def check(facts: list[Fact], groups: list[Group], outcome: Outcome) -> Oracle:
    """Every decision is valid when it is made; a group has at least its minimum placed, or nothing."""
    oracle = Oracle()
    oracle.apply(*facts)
    for decision in outcome.decisions:
        if isinstance(decision, Placed):
            assert not oracle.obstacles(oracle.asks[decision.ask], 0, decision.node), decision
            oracle.place(oracle.asks[decision.ask], decision.node)
        if isinstance(decision, GroupPlaced):
            for id, where in decision.members:
                assert not oracle.obstacles(oracle.asks[id], 0, where), decision
                oracle.place(oracle.asks[id], where)
    assert dict(outcome.engine.placed) == oracle.placed
    for each in groups:
        placed = [member.id for member in each.all_members if member.id in oracle.placed]
        assert not placed or len(placed) >= each.least(0), f"{each.id} is torn: {placed}"
        assert (each.id in outcome.engine.waiting) == (len(placed) < len(each.all_members))
    return oracle


def fits(oracle: Oracle, members: tuple[Ask, ...]) -> bool:
    """Whether members that may all go to the same nodes, and need one CPU each, fit together."""
    return sum(oracle.places[id].free("CPU") // 10_000 for id in oracle.verdict(members[0], 0)[0]) >= len(members)


@pytest.mark.parametrize("priorities", [1, 3])
@pytest.mark.parametrize("part", range(PARTS))
def test_groups_are_placed_whole_and_none_waits_that_fits(part: int, priorities: int) -> None:
    for seed in seeds(COUNT, COUNT_IN_SOAK, part):
        with replayable(seed):
            facts, singles, groups, _ = story(seed, priorities)
            outcome = decided(facts, Settings(patience=None))
            oracle = check(facts, groups, outcome)
            for each in groups:
                assert each.id not in outcome.engine.waiting or not fits(oracle, each.all_members), each.id
            for single in singles:
                assert single.id in oracle.placed or not fits(oracle, (single,)), single.id


@pytest.mark.parametrize("priorities", [1, 3])
@pytest.mark.parametrize("part", range(PARTS))
def test_groups_with_a_minimum_have_it_and_no_member_waits_that_fits(part: int, priorities: int) -> None:
    for seed in seeds(COUNT, COUNT_IN_SOAK, part):
        with replayable(seed):
            facts, singles, groups, _ = story(seed, priorities, minimums=True)
            outcome = decided(facts, Settings(patience=None))
            oracle = check(facts, groups, outcome)
            for each in groups:
                missing = tuple(member for member in each.all_members if member.id not in oracle.placed)
                needed = max(1, each.least(0) - len(each.all_members) + len(missing))
                assert not missing or not fits(oracle, missing[:needed]), each.id
            for single in singles:
                assert single.id in oracle.placed or not fits(oracle, (single,)), single.id


@pytest.mark.parametrize("part", range(PARTS))
def test_no_group_waits_for_room_that_work_of_lower_priority_has(part: int) -> None:
    for seed in seeds(COUNT, COUNT_IN_SOAK, part):
        with replayable(seed):
            facts, singles, groups, _ = story(seed, 3)
            outcome = decided(facts, Settings(patience=None))
            oracle = check(facts, groups, outcome)
            for waits in (each for each in groups if each.id in outcome.engine.waiting):
                without, works = oracle.copy(), list[Ask | Group]([*singles, *groups])
                for lower in (work for work in works if work.priority < waits.priority):
                    without.forget(lower.id)
                assert not fits(without, waits.all_members), f"{waits.id} of priority {waits.priority}"


@pytest.mark.parametrize("part", range(PARTS))
def test_a_batch_with_groups_reports_its_true_cost(part: int) -> None:
    for seed in seeds(COUNT, COUNT_IN_SOAK, part):
        with replayable(seed):
            facts, singles, groups, policy = story(seed, 1)
            outcome = decided(facts, Settings(patience=None))
            before = Oracle()
            before.apply(*facts)
            everybody = (*singles, *(member for each in groups for member in each.all_members))
            batch, said = Batch(before, everybody, policy), outcome.batch(policy)
            assert (said.asks, said.placed) == (len(everybody), len(outcome.placement))
            assert said.cost == batch.cost_of(outcome.placement)
            assert said.bound is None or said.bound <= batch.true_optimum() <= said.cost
