"""A restored engine decides as the original would, whatever happened before and whatever comes after.

Rule: the checkpoint is written and read as bytes, as in a journal. The second state machine adds what the oracle does
not support: patience, and work that is decided in batches.
"""

from __future__ import annotations

from dataclasses import replace

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from stead import solver
from stead.codec import dumps, loads
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
    NodeJoined,
    NodeResized,
)
from stead.engine.restart.checkpoints import Checkpoint
from stead.engine.settings import Settings
from stead.language.asks import Ask, Group, PolicyName
from stead.language.nodes import Node
from stead.language.resources import Resources
from tests.engine.test_engine_equals_oracle import NODE, SECONDS, SOAK, EngineEqualsOracle
from tests.strategies_for_tests import (
    ASK_IDS,
    GROUP_IDS,
    asks,
    capacities,
    clusters,
    groups,
    nodes,
    simple_facts,
    some_asks,
)


def written_and_read(engine: Engine) -> Engine:
    """The engine restored from its checkpoint; its own checkpoint must be the same."""
    written = dumps(engine.checkpoint())
    again = Engine.restored(loads(written, Checkpoint), engine.settings, engine.solver)
    assert dumps(again.checkpoint()) == written
    return again


class RestoredEngineEqualsOriginal(EngineEqualsOracle):
    def advance(self, *facts: Fact) -> None:
        """As before, except for the iteration order of sets, which a checkpoint does not keep."""
        self.mirror.feed(*facts)
        self.twin.apply(*facts)
        assert dumps(self.twin.decide()) == dumps(self.mirror.decide())
        assert self.twin.waiting == self.mirror.engine.waiting

    @rule()
    def restore(self) -> None:
        self.twin = written_and_read(self.twin)


FLOW = st.sampled_from((PolicyName.HYBRID, PolicyName.FLOW, PolicyName.FLOW_FGD, PolicyName.FLOW_PACK))


class RestoredEngineWithBatches(RuleBasedStateMachine):
    """Two engines with the same facts; one of them is restored from time to time."""

    def __init__(self) -> None:
        super().__init__()
        settings = Settings(patience=5.0, moves=2)
        self.one, self.other = Engine(settings, solver.found()), Engine(settings, solver.found())

    def advance(self, *facts: Fact) -> None:
        for engine in (self.one, self.other):
            engine.apply(*facts)
        assert dumps(self.other.decide()) == dumps(self.one.decide())
        assert self.other.waiting == self.one.waiting
        assert self.other.placed == self.one.placed
        assert self.other.next_moment == self.one.next_moment
        assert [self.other.free(id) for id in self.other.nodes] == [self.one.free(id) for id in self.one.nodes]

    @initialize(cluster=clusters(), some=some_asks(6))
    def begin(self, cluster: list[Node], some: list[Ask]) -> None:
        self.advance(ClockAdvanced(0.0), *map(NodeJoined, cluster))
        self.advance(*map(AskSubmitted, some))

    @rule()
    def restore(self) -> None:
        self.other = written_and_read(self.other)

    @rule(seconds=SECONDS)
    def wait(self, seconds: float) -> None:
        self.advance(ClockAdvanced(self.one.now + seconds))

    @rule(ask=asks(one_in=6), ids=st.lists(st.sampled_from(ASK_IDS), min_size=1, max_size=4, unique=True), policy=FLOW)
    def submit_equals(self, ask: Ask, ids: list[str], policy: PolicyName) -> None:
        self.advance(*(AskSubmitted(replace(ask, id=id, policy=policy)) for id in ids))

    @rule(group=groups(), policy=FLOW)
    def submit_group(self, group: Group, policy: PolicyName) -> None:
        members = tuple(tuple(replace(ask, policy=policy) for ask in some) for some in group.alternatives)
        self.advance(GroupSubmitted(replace(group, alternatives=members)))

    @rule(node=nodes())
    def join(self, node: Node) -> None:
        self.advance(NodeJoined(node))

    @rule(id=NODE, capacity=capacities())
    def resize(self, id: str, capacity: Resources) -> None:
        """Also under running work, whose devices may then be missing."""
        self.advance(NodeResized(id, capacity))

    @rule(ask=asks(choice_count_max=1), id=NODE)
    def run(self, ask: Ask, id: str) -> None:
        """Also where it does not fit."""
        self.advance(AskRunning(ask, id))

    @rule(id=st.sampled_from(ASK_IDS), is_lost=st.booleans())
    def end_or_lose(self, id: str, is_lost: bool) -> None:
        self.advance(AskLost(id) if is_lost else AskEnded(id))

    @rule(id=st.sampled_from(GROUP_IDS))
    def end_group(self, id: str) -> None:
        self.advance(GroupEnded(id))

    @rule(facts=simple_facts())
    def anything(self, facts: list[Fact]) -> None:
        self.advance(*facts)


for machine, examples in ((RestoredEngineEqualsOriginal, 60), (RestoredEngineWithBatches, 100)):
    machine.TestCase.settings = settings(
        max_examples=examples * SOAK,
        stateful_step_count=30,
        deadline=None,
        print_blob=True,
        suppress_health_check=list(HealthCheck),
    )

TestRestoredEngineEqualsOriginal = RestoredEngineEqualsOriginal.TestCase
TestRestoredEngineWithBatches = RestoredEngineWithBatches.TestCase
