"""Flow always respects the rules: random facts to an engine and the oracle, with all new work in batches.

Rule: the same machine as tests/engine/test_engine_equals_oracle.py, with the same checks except two: a batch may
overtake, and may take any allowed node (test_flow_is_optimal.py checks the costs).
"""

from __future__ import annotations

from dataclasses import replace
from zlib import crc32

from hypothesis import HealthCheck, settings

from stead.engine.decisions import BatchDecided, Decision, GroupPlaced, Placed
from stead.engine.facts import AskSubmitted, Fact, GroupSubmitted
from stead.engine.settings import Settings
from stead.language.asks import Ask, Group, PolicyName
from tests.engine.mirror import Mirror
from tests.engine.test_engine_equals_oracle import EngineEqualsOracle
from tests.flow.instances import SOAK
from tests.flow.outcomes import with_solver
from tests.oracle import Oracle

IN_BATCHES = [policy for policy in PolicyName if policy.in_batches]
CHOSEN = (*IN_BATCHES, PolicyName.FLOW, None)
"""By name: mostly one policy, so that batches are large; some work stays with its own."""


def in_batches(ask: Ask) -> Ask:
    policy = CHOSEN[crc32(ask.id.encode()) % len(CHOSEN)]
    return ask if policy is None else replace(ask, policy=policy)


def in_batches_all(group: Group) -> Group:
    """All members of a group by one policy."""
    policy = IN_BATCHES[crc32(group.id.encode()) % len(IN_BATCHES)]
    changed = tuple(tuple(replace(member, policy=policy) for member in members) for members in group.alternatives)
    return replace(group, alternatives=changed)


class FlowMirror(Mirror):
    """Checks that decisions of batches break no rule, and that their counts equal what was placed."""

    def fork(self) -> Mirror:
        other = super().fork()
        other.__class__ = FlowMirror
        return other

    def decide(self) -> list[Decision]:
        decisions = super().decide()
        placed = sum(
            len(each.members) if isinstance(each, GroupPlaced) else isinstance(each, Placed) for each in decisions
        )
        batches = [each for each in decisions if isinstance(each, BatchDecided)]
        assert all(0 <= each.placed <= each.asks and each.cost >= 0 for each in batches)
        assert sum(each.placed for each in batches) <= placed
        return decisions

    def _check_placed(self, decision: Placed, line: list[str]) -> None:
        ask = self.oracle.asks[decision.ask]
        if not ask.policy.in_batches:
            super()._check_placed(decision, line)
            return
        assert ask.id not in self.oracle.placed and ask.id not in self.oracle.member_of
        against = self.oracle.obstacles(ask, decision.choice, decision.node)
        assert not against, f"{decision}: {against}"
        self.oracle.place(ask, decision.node, decision.choice)
        self._moved((ask.id, decision.node))

    def _check_nobody_is_overtaken(self, id: str, line: list[str]) -> None:
        assert id in line, f"{id} was not in line"

    def fits(self, id: str) -> bool:
        """A group may have been tried beside a batch that then left it room; asks that fit are never pending."""
        oracle = self.oracle
        if id in oracle.groups:
            return super().fits(id)
        ask = oracle.asks[id]
        return any(oracle.verdict(ask, choice)[0] for choice in range(len(ask.choices)))


class FlowKeepsToTheRules(EngineEqualsOracle):
    def __init__(self) -> None:
        super().__init__()
        self.mirror = FlowMirror(with_solver(Settings(patience=None, seed=0)), Oracle())
        self.twin = with_solver(Settings(patience=None, seed=0))

    def advance(self, *facts: Fact) -> None:
        def changed(fact: Fact) -> Fact:
            match fact:
                case AskSubmitted(ask):
                    return AskSubmitted(in_batches(ask))
                case GroupSubmitted(group):
                    return GroupSubmitted(in_batches_all(group))
            return fact

        super().advance(*map(changed, facts))


FlowKeepsToTheRules.TestCase.settings = settings(
    max_examples=50 * (20 if SOAK else 1),
    stateful_step_count=25,
    deadline=None,
    print_blob=True,
    suppress_health_check=list(HealthCheck),
)

TestFlowKeepsToTheRules = FlowKeepsToTheRules.TestCase
