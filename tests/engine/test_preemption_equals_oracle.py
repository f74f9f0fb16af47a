"""Preemption equals its oracle on random small clusters: the same node, the same victims, in the same order.

Rule: every decision is checked against the oracle's state at that time. Set STEAD_SOAK=1 for fifty times as many
examples.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace

from hypothesis import HealthCheck, given, settings

from stead.engine.decisions import Decision, NominationEnded, Placed, Preempted
from stead.engine.engine import Engine
from stead.engine.facts import (
    AskEnding,
    AskRunning,
    AskSubmitted,
    BudgetChanged,
    EvictionFailed,
    NodeJoined,
)
from stead.engine.settings import Settings
from stead.language.asks import Ask, Choice
from stead.language.budgets import Budget
from tests.oracle import Oracle
from tests.oracle_preemption import PreemptionOracle, Room
from tests.strategies_for_tests import Maker, made

EXAMPLES = 15_000 if os.environ.get("STEAD_SOAK") == "1" else 300
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
        """Submit an ask, compare what the engine decides with the oracle, and note it."""
        found, expected = self.engine, self.oracle.room(ask)
        takes = any(self.fits(ask, choice, node) for choice in range(len(ask.choices)) for node in self.engine.nodes)
        found.apply(AskSubmitted(ask))
        decisions = found.decide()
        made = [each for each in decisions if isinstance(each, Preempted) and each.ask == ask.id]
        placed = [each for each in decisions if isinstance(each, Placed) and each.ask == ask.id]
        assert bool(placed) == takes
        if takes:
            self.oracle.world.apply(AskSubmitted(ask))
            self.oracle.world.place(ask, placed[0].node, placed[0].choice)
            return decisions
        if not self.engine.placed or not self.may_evict(ask):
            assert not made
            return decisions
        assert ([] if expected is None else [shown(expected)]) == [
            (each.node, each.choice, each.victims, each.violations) for each in made
        ]
        if expected is not None:
            self.oracle.took(ask, expected)
            for each in decisions:
                if isinstance(each, NominationEnded):
                    del self.oracle.kept[each.ask]
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
        choices = tuple(Choice(maker.resources(NEEDS), each.selector) for each in work.choices)
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


CLUSTERS_OF_ONE = made(lambda maker: random_cluster(maker, maker.one((12, 4, 2)), 1))
CLUSTERS_OF_SEVERAL = made(lambda maker: random_cluster(maker, maker.one((12, 4, 2)), 4))
QUIET = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example]


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=QUIET)
@given(CLUSTERS_OF_ONE)
def test_the_engine_chooses_the_node_and_the_victims_of_the_oracle(full: Full) -> None:
    full.submit(full.preemptors[0])
