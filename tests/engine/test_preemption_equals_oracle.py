"""Preemption equals its oracle on random small clusters: the same node, the same victims, in the same order.

Rule: every decision is checked against the oracle's state at that time. Set STEAD_SOAK=1 for fifty times as many
examples.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stead.engine.decisions import Decision, GroupPlaced, NominationEnded, Placed, Preempted
from stead.engine.engine import Engine
from stead.engine.facts import (
    AskEnded,
    AskEnding,
    AskRunning,
    AskSubmitted,
    BudgetChanged,
    EvictionFailed,
    GroupSubmitted,
    NodeJoined,
)
from stead.engine.settings import Settings
from stead.language.asks import Ask, Choice, Group, Strategy
from stead.language.budgets import Budget
from tests.oracle import Oracle
from tests.oracle_preemption import LIFTABLE, PreemptionOracle, Room
from tests.strategies_for_tests import Maker, made

SOAK = 50 if os.environ.get("STEAD_SOAK") == "1" else 1
STARTS = (1.0, 2.0, 3.0, 3.0, 5.0)
NODE_IDS = ("n0", "n1", "n2", "n3")
NEEDS = {"CPU": (2, 1, 4, 3), "memory": (0, 0, 1024, 2048), "GPU": (0, 0, 0, 1, 0.5, 2), "disk": (0, 0, 1)}


@dataclass
class Full:
    """A random cluster that is mostly full, in the engine and in the oracle."""

    engine: Engine = field(default_factory=lambda: Engine(Settings(patience=None, seed=0)))
    oracle: PreemptionOracle = field(default_factory=lambda: PreemptionOracle(Oracle()))
    preemptors: list[Ask] = field(default_factory=list)

    def apply(self, *facts: object) -> None:
        self.engine.apply(*facts)  # type: ignore[arg-type]
        self.oracle.world.apply(*facts)  # type: ignore[arg-type]

    def submit(self, ask: Ask) -> list[Decision]:
        """Submit an ask; what the engine then decides is compared with the oracle."""
        self.apply(AskSubmitted(ask))
        return self.decide()

    def end(self, *ids: str) -> list[Decision]:
        self.engine.apply(*map(AskEnded, ids))
        for id in ids:
            self.oracle.ended(id)
        return self.decide()

    def decide(self) -> list[Decision]:
        """Check each decision against the oracle's state at that time, and what is still pending at the end."""
        decisions = self.engine.decide()
        for decision in decisions:
            match decision:
                case Placed(id, node, choice):
                    ask = self.oracle.world.asks[id]
                    self.oracle.kept.pop(id, None)
                    assert self.fits(ask, choice, node)
                    self.oracle.world.place(ask, node, choice)
                case Preempted(id, node, victims, violations, _, choice):
                    room = self.oracle.room(self.oracle.world.asks[id])
                    assert room is not None
                    assert (node, choice, victims, violations) == shown(room)
                    self.oracle.took(self.oracle.world.asks[id], room)
                case NominationEnded(id):
                    del self.oracle.kept[id]
        for id in self.engine.waiting:
            ask = self.oracle.world.asks[id]
            if id not in self.oracle.kept and self.may_evict(ask):
                assert self.oracle.room(ask) is None
        return decisions

    def may_evict(self, ask: Ask) -> bool:
        """Whether anything placed is of a lower priority: without it, the engine does not look."""
        placed = [held.ask for held in self.oracle.world.held.values()]
        return any(each.preemptible and each.priority < ask.priority for each in placed)

    def fits(self, ask: Ask, choice: int, node: str) -> bool:
        return not self.oracle.with_kept_places(self.oracle.world).obstacles(ask, choice, node)


def shown(room: Room) -> tuple[str, int, tuple[str, ...], int]:
    return room.node, room.choice, room.victims, room.violations


def random_cluster(maker: Maker, special: int, preemptors: int) -> Full:
    """Each special field of an ask is used once in `special` times."""
    full = Full()
    for id in NODE_IDS[: 1 + maker.below(4)]:
        empty = maker.node(id)
        full.apply(NodeJoined(replace(empty, taints=empty.taints if maker.rarely(4) else ())))
    for number in range(4 + maker.below(12)):
        work = replace(
            maker.ask(f"w{number}", 1, False, special),
            priority=maker.one((0, 0, 1, 2, 9)),
            preemptible=not maker.rarely(8),
            deadline=None,
        )
        nodes = [node for node in full.engine.nodes if full.fits(work, 0, node)]
        if nodes:
            node, started = maker.one(nodes), maker.one(STARTS)
            full.apply(AskRunning(work, node, started))
            full.oracle.starts[work.id] = started
    placed = sorted(full.oracle.world.held)
    for id in placed:
        if maker.rarely(9):
            full.engine.apply(AskEnding(id))
            full.oracle.ending[id] = True
        elif maker.rarely(12):
            full.engine.apply(EvictionFailed(id, is_final=True))
            full.oracle.spared.add(id)
    for number in range(maker.one((0, 0, 1, 2))):
        namespace = "blue" if maker.rarely() else ""
        budget = Budget(f"b{number}", maker.work_selector(by_id=False), maker.below(3), namespace)
        full.engine.apply(BudgetChanged(budget))
        full.oracle.budgets.append(budget)
    for number in range(preemptors):
        work = maker.ask(f"p{number}", 2, False, special)
        needs = NEEDS if preemptors == 1 else {**NEEDS, "GPU": (0, 1)}  # the oracle keeps no device for pending work
        choices = tuple(Choice(maker.resources(needs), each.selector) for each in work.choices)
        full.preemptors.append(
            replace(
                work,
                choices=choices,
                priority=maker.one((5, 3, 10, 1)),
                preempts=not maker.rarely(12),
                deadline=None,
            )
        )
    full.engine.decide()
    return full


def clusters(preemptors: int, special: tuple[int, ...] = (12, 4, 2)) -> st.SearchStrategy[Full]:
    return made(lambda maker: random_cluster(maker, maker.one(special), preemptors))


def quietly(examples: int) -> settings:
    found = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example]
    return settings(max_examples=examples * SOAK, deadline=None, suppress_health_check=found)


def made_by(decisions: list[Decision]) -> list[Preempted]:
    return [each for each in decisions if isinstance(each, Preempted)]


@quietly(200)
@given(clusters(1))
def test_the_engine_chooses_the_node_and_the_victims_of_the_oracle(full: Full) -> None:
    full.submit(full.preemptors[0])


@quietly(200)
@given(clusters(4))
def test_it_does_so_for_several_preemptors_which_see_each_other(full: Full) -> None:
    for ask in full.preemptors:
        full.submit(ask)


@quietly(200)
@given(clusters(1))
def test_work_is_placed_on_its_node_once_the_victims_are_gone(full: Full) -> None:
    """Also nothing is evicted for work that then does not fit."""
    (ask,) = full.preemptors
    for chosen in made_by(full.submit(ask)):
        decisions = full.end(*(id for id in full.oracle.evictable_for(ask, chosen.node) if id in full.oracle.ending))
        assert [(each.ask, each.node) for each in decisions if isinstance(each, Placed)] == [(ask.id, chosen.node)]


@quietly(150)
@given(clusters(1, special=(14,)))
def test_no_set_of_evictions_is_better(full: Full) -> None:
    """By brute force. What upstream's reprieve promises: no budget is exceeded where that is not necessary, no work of
    a higher priority goes than is necessary, and nothing goes that could stay."""
    (ask,) = full.preemptors
    oracle = full.oracle
    before = replace(oracle, ending=dict(oracle.ending), kept={})
    for chosen in made_by(full.submit(ask)):
        sets = {
            node: list(before.sets_that_fit(ask, chosen.choice, node))
            for node in full.engine.nodes
            if all(isinstance(each, LIFTABLE) for each in oracle.world.obstacles(ask, chosen.choice, node))
        }
        gone = frozenset(chosen.victims)
        assert gone in sets[chosen.node]
        assert not any(each < gone for each in sets[chosen.node])
        best = min(before.worst(ask, node, each) for node, found in sets.items() for each in found)
        assert before.worst(ask, chosen.node, gone) == best


@quietly(150)
@given(clusters(1), st.integers(1, 3), st.sampled_from([None, 1, 2]))
def test_a_group_preempts_as_a_whole_or_not_at_all(full: Full, count: int, least: int | None) -> None:
    (ask,) = full.preemptors
    choices = ask.choices[:1]
    members = tuple(replace(ask, id=f"m{number}", choices=choices, priority=0) for number in range(count))
    group = Group("g", (members,), Strategy.ANY, priority=ask.priority, min_available=least)
    full.engine.apply(GroupSubmitted(group))
    made = made_by(full.engine.decide())
    if not made:
        return
    needed = min(count, group.least(0))
    assert len({each.ask for each in made}) == len(made) == needed
    full.oracle.world.apply(GroupSubmitted(group))
    victims = [victim for each in made for victim in each.victims]
    assert len(set(victims)) == len(victims)
    nodes = list(full.oracle.world.places)
    ending = [id for node in nodes for id in full.oracle.evictable_for(ask, node) if id in full.oracle.ending]
    full.engine.apply(*map(AskEnded, {*victims, *ending}))
    for id in {*victims, *ending}:
        full.oracle.ended(id)
    first, *later = [each for each in full.engine.decide() if isinstance(each, GroupPlaced)]
    assert {(each.ask, each.node) for each in made} == set(first.members)
    placed = [*first.members, *(member for each in later for member in each.members)]
    for id, node in placed:
        full.oracle.world.place(full.oracle.world.asks[id], node)
    for id, node in placed:
        world = full.oracle.world.copy()
        held = world.held[id]
        world.lose(id)
        assert not world.obstacles(held.ask, 0, node), "it is in the way of the others"
