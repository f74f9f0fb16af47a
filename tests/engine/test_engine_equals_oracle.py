"""The engine equals the oracle: random facts to both, and every answer compared.

Rule: each decision is checked against the oracle's state at that time, never afterwards. Set
STEAD_SOAK=1 for fifty times as many examples.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace

from hypothesis import HealthCheck, assume, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from stead.engine.engine import Engine
from stead.engine.facts import (
    AskChanged,
    AskEnded,
    AskLost,
    AskRunning,
    AskSubmitted,
    ClaimChanged,
    ClaimEnded,
    ClockAdvanced,
    Fact,
    GroupChanged,
    GroupEnded,
    GroupSubmitted,
    NodeDrained,
    NodeJoined,
    NodeLabelled,
    NodeLeft,
    NodeResized,
    NodeTainted,
    NodeUntainted,
    NodeUsed,
)
from stead.engine.settings import Settings
from stead.language.asks import Affinity, Ask, Group
from stead.language.claims import Claim
from stead.language.labels import Labels, Requirement, Selector
from stead.language.nodes import Node
from stead.language.resources import UNIT, Resources
from stead.language.taints import Effect, Taint
from tests.engine.mirror import Mirror
from tests.oracle import Oracle
from tests.oracle_groups import taken_of
from tests.strategies_for_tests import (
    ASK_IDS,
    CLAIM_IDS,
    GROUP_IDS,
    NODE_IDS,
    NODE_LABELS,
    TAINT_KEYS,
    asks,
    capacities,
    claims,
    clusters,
    groups,
    node_labels,
    nodes,
    simple_facts,
    some_asks,
    taints,
)

SOAK = 50 if os.environ.get("STEAD_SOAK") == "1" or os.environ.get("HYPOTHESIS_PROFILE") == "soak" else 1

NODE = st.sampled_from(NODE_IDS)
TARGETS = st.lists(st.sampled_from(ASK_IDS[:4]), min_size=1, max_size=3, unique=True)
SECONDS = st.sampled_from((0.0, 1.0, 5.0, 30.0))


class EngineEqualsOracle(RuleBasedStateMachine):
    """`twin` gets the same facts and is never queried or forked; `other` is the last fork, with its own facts."""

    def __init__(self) -> None:
        super().__init__()
        self.mirror = Mirror(Engine(Settings(patience=None, seed=0)), Oracle())
        self.twin = Engine(Settings(patience=None, seed=0))
        self.other: Mirror | None = None

    def advance(self, *facts: Fact) -> None:
        """Apply the facts to all engines, then let all decide."""
        self.mirror.feed(*facts)
        self.twin.apply(*facts)
        decisions = self.mirror.decide()
        same = self.twin.decide()
        assert same == decisions
        assert repr(same) == repr(decisions)
        assert self.twin.waiting == self.mirror.engine.waiting, "a question changed the line"

    @property
    def oracle(self) -> Oracle:
        return self.mirror.oracle

    @initialize(cluster=clusters(), some=some_asks(6), known=st.lists(claims(), max_size=4))
    def begin(self, cluster: list[Node], some: list[Ask], known: list[Claim]) -> None:
        self.advance(ClockAdvanced(0.0), *map(NodeJoined, cluster), *map(ClaimChanged, known))
        self.advance(*map(AskSubmitted, some))

    # Nodes

    @rule(node=nodes())
    def join(self, node: Node) -> None:
        capacity = self._with_devices_in_use(node.id, node.capacity)
        self.advance(NodeJoined(replace(node, capacity=capacity)))

    @rule(id=NODE)
    def leave(self, id: str) -> None:
        self.advance(NodeLeft(id))

    @rule(id=NODE, node=nodes())
    def leave_to_another_in_one_breath(self, id: str, node: Node) -> None:
        assume(node.id not in self.oracle.places or node.id == id)
        self.advance(NodeLeft(id), NodeJoined(node))

    @rule(id=NODE, labels=node_labels(), removed=st.lists(st.sampled_from(tuple(NODE_LABELS)), max_size=2))
    def label(self, id: str, labels: Labels, removed: list[str]) -> None:
        self.advance(NodeLabelled(id, labels, tuple(removed)))

    @rule(id=NODE, taint=taints())
    def taint(self, id: str, taint: Taint) -> None:
        self.advance(NodeTainted(id, taint))

    @rule(id=NODE, key=st.sampled_from(TAINT_KEYS), effect=st.sampled_from((None, *Effect)))
    def untaint(self, id: str, key: str, effect: Effect | None) -> None:
        self.advance(NodeUntainted(id, key, effect))

    @rule(id=NODE, draining=st.booleans())
    def drain(self, id: str, draining: bool) -> None:
        self.advance(NodeDrained(id, draining))

    @rule(id=NODE, capacity=capacities())
    def resize(self, id: str, capacity: Resources) -> None:
        self.advance(NodeResized(id, self._with_devices_in_use(id, capacity)))

    @rule(id=NODE, amounts=capacities(), pieces=st.integers(0, 2))
    def use(self, id: str, amounts: Resources, pieces: int) -> None:
        self.advance(NodeUsed(id, amounts, pieces))

    def _with_devices_in_use(self, id: str, capacity: Resources) -> Resources:
        """Devices in use are not removed: the semantics do not define what happens to their work."""
        if id not in self.oracle.places:
            return capacity
        shares = self.oracle.places[id].shares
        count = max((index + 1 for (_, index), share in shares.items() if share), default=0)
        return Resources({**capacity, "GPU": max(capacity.get("GPU"), count * UNIT)})

    # Work

    @rule(some=some_asks())
    def submit(self, some: list[Ask]) -> None:
        self.advance(*map(AskSubmitted, some))

    @rule(ask=asks(), ids=st.lists(st.sampled_from(ASK_IDS), min_size=2, max_size=4, unique=True))
    def submit_equals(self, ask: Ask, ids: list[str]) -> None:
        self.advance(*(AskSubmitted(_named(ask, id)) for id in ids))

    @rule(ask=asks(), named=TARGETS, ended=TARGETS)
    def submit_a_follower_and_end_some_of_whom_it_may_follow(
        self, ask: Ask, named: list[str], ended: list[str]
    ) -> None:
        close = Affinity(Selector.all_of(Requirement.is_in("ask_id", *named)), namespaces=frozenset())
        self.advance(AskSubmitted(replace(ask, affinities=((close,),))))
        self.advance(*map(AskEnded, ended))

    @rule(ask=asks(choice_count_max=1), id=NODE)
    def run_elsewhere(self, ask: Ask, id: str) -> None:
        """The cluster runs work that the engine did not place, or placed elsewhere."""
        self._run(self.oracle.asks.get(ask.id, ask), id)

    @rule(ask=asks(choice_count_max=1), data=st.data())
    def change(self, ask: Ask, data: st.DataObject) -> None:
        """Placed work is described differently: other amounts, labels or rules."""
        placed = sorted(id for id in self.oracle.placed if id not in self.oracle.member_of)
        assume(placed)
        changed = _named(ask, data.draw(st.sampled_from(placed)))
        place = self.oracle.places[self.oracle.placed[changed.id]]
        resources = changed.choices[0].resources
        assume(all(place.fits_now(name, need) for name, need in resources.items()))
        self.advance(AskChanged(changed))

    def _run(self, ask: Ask, id: str) -> None:
        assume(id in self.oracle.places)
        assume(len(ask.choices) == 1 and self.oracle.placed.get(ask.id) != id)
        need = ask.choices[0].resources.get("GPU")
        assume(not need or self.oracle.places[id].fits_now("GPU", need))
        self.advance(AskRunning(ask, id))

    @precondition(lambda self: self.oracle.member_of)
    @rule(choose=st.data(), id=NODE)
    def run_a_member(self, choose: st.DataObject, id: str) -> None:
        """The cluster runs a missing member of a group, or a placed one elsewhere; never of two alternatives at
        once."""
        member = self.oracle.asks[choose.draw(st.sampled_from(sorted(self.oracle.member_of)))]
        group = self.oracle.groups[self.oracle.member_of[member.id]]
        taken = taken_of(self.oracle, group)
        assume(taken is None or member in group.alternatives[taken])
        self._run(member, id)

    @precondition(lambda self: self.oracle.placed)
    @rule(choose=st.data())
    def confirm(self, choose: st.DataObject) -> None:
        id, node = choose.draw(st.sampled_from(sorted(self.oracle.placed.items())))
        self.advance(AskRunning(self.oracle.asks[id], node))

    @precondition(lambda self: self.oracle.placed)
    @rule(choose=st.data())
    def lose(self, choose: st.DataObject) -> None:
        self.advance(AskLost(choose.draw(st.sampled_from(sorted(self.oracle.placed)))))

    @rule(id=st.sampled_from(ASK_IDS))
    def end(self, id: str) -> None:
        self.advance(AskEnded(id))

    @precondition(lambda self: self.oracle.member_of)
    @rule(choose=st.data())
    def end_a_member(self, choose: st.DataObject) -> None:
        self.advance(AskEnded(choose.draw(st.sampled_from(sorted(self.oracle.member_of)))))

    @precondition(lambda self: self.mirror.evicted)
    @rule(wants_another=st.booleans())
    def obey_evictions(self, wants_another: bool) -> None:
        kinds: Callable[[str], Fact] = AskLost if wants_another else AskEnded
        self.advance(*map(kinds, sorted(self.mirror.evicted)))

    @rule(group=groups())
    def submit_group(self, group: Group) -> None:
        self.advance(GroupSubmitted(group))

    @rule(choose=st.data(), group=groups(), ask=asks(ids=ASK_IDS, choice_count_max=1))
    def change_group(self, choose: st.DataObject, group: Group, ask: Ask) -> None:
        """Members leave a group, and others join it: new ones, single asks, and members of other groups."""
        known = sorted({*self.oracle.members_of(group.id), *choose.draw(st.sampled_from(((), ("g1.0.0",), (ask.id,))))})
        kept = choose.draw(st.lists(st.sampled_from(known), unique=True)) if known else []
        members = {each.id: each for each in (*group.alternatives[0], ask)}
        members = {id: members[id] for id in members if id != ask.id or id in kept}
        members |= {id: self.oracle.asks[id] for id in kept if id in self.oracle.asks}
        members |= {id: self.oracle.held[id].ask for id in members if id in self.oracle.held}
        assume(all(len(each.choices) == 1 for each in members.values()))
        least = choose.draw(st.sampled_from((None, 1, 2, 4)))
        self.advance(GroupChanged(replace(group, alternatives=(tuple(members.values()),), min_available=least)))

    @rule(id=st.sampled_from(GROUP_IDS))
    def end_group(self, id: str) -> None:
        self.advance(GroupEnded(id))

    @rule(seconds=SECONDS)
    def wait(self, seconds: float) -> None:
        self.advance(ClockAdvanced(self.oracle.now + seconds))

    @rule(seconds=SECONDS)
    def hear_an_earlier_time(self, seconds: float) -> None:
        self.advance(ClockAdvanced(self.oracle.now - seconds))

    @rule(some=st.lists(claims(), min_size=1, max_size=2))
    def change_claims(self, some: list[Claim]) -> None:
        self.advance(*map(ClaimChanged, some))

    @rule(id=st.sampled_from(CLAIM_IDS))
    def end_a_claim(self, id: str) -> None:
        self.advance(ClaimEnded(id))

    # Questions

    @rule(probe=asks(ids=("probe",)))
    def ask_about_work_never_submitted(self, probe: Ask) -> None:
        self.mirror.check_explanation(probe, probe)

    @rule(facts=simple_facts())
    def fork(self, facts: list[Fact]) -> None:
        self.other = self.mirror.fork()
        self._live(self.other, facts)

    @precondition(lambda self: self.other is not None)
    @rule(facts=simple_facts())
    def live_on_in_the_fork(self, facts: list[Fact]) -> None:
        assert self.other is not None
        self._live(self.other, facts)

    @staticmethod
    def _live(mirror: Mirror, facts: list[Fact]) -> None:
        mirror.feed(*facts)
        mirror.decide()

    @invariant()
    def the_engine_shows_what_the_oracle_knows(self) -> None:
        for mirror in (self.mirror, self.other):
            if mirror is not None:
                mirror.check_state()
                for id in mirror.oracle.waiting():
                    if id in mirror.oracle.asks:
                        mirror.check_explanation(mirror.oracle.asks[id], id)


def _named(ask: Ask, id: str) -> Ask:
    values = {name: getattr(ask, name) for name in Ask.__dataclass_fields__}
    return Ask(**{**values, "id": id})


EngineEqualsOracle.TestCase.settings = settings(
    max_examples=100 * SOAK,
    stateful_step_count=30,
    deadline=None,
    print_blob=True,
    suppress_health_check=list(HealthCheck),
)

TestEngineEqualsOracle = EngineEqualsOracle.TestCase
