"""The outcome of a batch, and what must be true for every batch.

Rule: decisions are checked by the oracle, each against the cluster at that time, and only then applied to it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from stead import solver
from stead.engine.decisions import BatchDecided, Decision, Placed
from stead.engine.engine import Engine
from stead.engine.facts import Fact, NodeJoined
from stead.engine.settings import Settings, Unscheduled
from stead.language.asks import Ask, AskId, PolicyName
from stead.language.nodes import Node, NodeId
from tests.behaviour import placements
from tests.flow.instances import Instance
from tests.oracle import Oracle


@dataclass(frozen=True)
class Outcome:
    engine: Engine
    decisions: list[Decision]

    @property
    def placement(self) -> dict[AskId, NodeId]:
        """Where the decisions put every ask and member."""
        return placements(self.decisions)

    def batch(self, policy: str = PolicyName.FLOW) -> BatchDecided:
        return batch_of(self.decisions, policy)


def with_solver(settings: Settings) -> Engine:
    found = solver.found()
    assert found is not None, "OR-tools is part of the extra 'dev'"
    return Engine(settings, found)


def decided(facts: Iterable[Fact], settings: Settings) -> Outcome:
    """An engine that applies all of this and then decides once."""
    engine = with_solver(settings)
    engine.apply(*facts)
    return Outcome(engine, engine.decide())


def check(case: Instance, outcome: Outcome) -> Oracle:
    """No rule is broken, nothing is overcommitted, nothing that fits is pending. Returns the cluster afterwards."""
    oracle = case.oracle()
    before = {node: oracle.free(node) for node in oracle.places}
    for decision in outcome.decisions:
        if isinstance(decision, Placed):
            ask = oracle.asks[decision.ask]
            assert ask.id not in oracle.placed, f"{decision}: it has a place"
            against = oracle.obstacles(ask, decision.choice, decision.node)
            assert not against, f"{decision}: {against}"
            oracle.place(ask, decision.node, decision.choice)
    for node, free in before.items():
        for name, amount in oracle.free(node).items():
            assert amount >= min(0, free.get(name, 0)), f"{node} is overcommitted by {amount} {name}"
            assert amount == outcome.engine.free(node).get(name, 0), f"the engine counts another {name} on {node}"
    assert dict(outcome.engine.placed) == oracle.placed
    assert set(outcome.engine.waiting) == {ask.id for ask in case.asks} - oracle.placed.keys()
    for ask in case.asks:
        if ask.id not in oracle.placed:
            fits = [node for choice in range(len(ask.choices)) for node in oracle.verdict(ask, choice)[0]]
            assert not fits, f"{ask.id} waits, but fits {fits}"
    return oracle


def check_nobody_has_the_place_of_the_more_important(case: Instance, oracle: Oracle) -> None:
    """Pending work would not fit even without the work of lower priority in the batch."""
    for waits in (ask for ask in case.asks if ask.id not in oracle.placed):
        lower = [ask.id for ask in case.asks if ask.priority < waits.priority and ask.id in oracle.placed]
        without = oracle.copy()
        for id in lower:
            without.forget(id)
        fits = [node for choice in range(len(waits.choices)) for node in without.verdict(waits, choice)[0]]
        assert not fits, f"{waits.id} of priority {waits.priority} waits, but {lower} of lower priority have {fits}"


# Shared by the tests


def flow_cluster(*nodes: Node, **settings: Any) -> Engine:
    """An engine with a solver that knows these nodes."""
    if "unscheduled" in settings:
        settings["unscheduled"] = Unscheduled.of(settings["unscheduled"])
    engine = with_solver(Settings(**settings))
    engine.apply(*map(NodeJoined, nodes))
    return engine


def batch_of(decisions: Iterable[Decision], policy: str = PolicyName.FLOW) -> BatchDecided:
    """The one batch of this policy among the decisions."""
    (found,) = [each for each in decisions if isinstance(each, BatchDecided) and each.policy == policy]
    return found


def waiting_ask(engine: Engine, id: AskId) -> Ask:
    found = engine.item(id)
    assert isinstance(found, Ask)
    return found
