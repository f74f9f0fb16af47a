"""The scaler on random sequences of events: what must hold after every step, whatever happens.

Rule: the test carries decisions out as a provider would, and checks them against its own lists.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from stead.engine.facts import NodeDrained, NodeJoined, NodeLabelled, NodeLeft, NodeTainted, NodeUntainted
from stead.engine.scaling.decisions import (
    LaunchEnded,
    LaunchId,
    NodeArrived,
    NodeLost,
    NodeRequested,
    NodeRetired,
    RetirementBegun,
    RetirementCancelled,
    ScaleDecision,
)
from stead.language.asks import Ask
from stead.language.labels import EMPTY, Labels, Requirement, Selector
from stead.language.nodes import Node, NodeTemplate
from stead.language.taints import Taint
from stead.planner.instances import InstanceState, LaunchFailed
from stead.planner.plans import Limits, Quota
from stead.planner.scaler import RETIRING, ScaleSettings
from tests.planner.scaling_world import World, cpus, kind

QUOTA = Quota("zone-a", Labels({"zone": "a"}), 3)
KINDS = (
    kind("cpu", {"CPU": 2}, {"zone": "a"}, most=3, price=1.0, least=1),
    kind("spot", {"CPU": 4}, {"zone": "a"}, [Taint("spot", "true")], most=2, price=1.5),
    kind("gpu", {"CPU": 2, "GPU": 2}, {"zone": "b"}, most=2, price=5.0),
)
QUICK = ScaleSettings(
    idle_s=20, settle_s=1, join_s=40, retry_s=5, retry_max_s=40, stock_out_s=10, launches_per_minute=6
)
STEPS_MAX = 40

EVENTS = (
    *("submit", "submit", "submit", "gpu", "end", "end", "join", "join", "join", "join wrong", "fail", "stock out"),
    *("vanish", "crash", "leave", "restart", "taint", "untaint", "drain", "complete", "pass", "pass", "long pass"),
)


class CheckedWorld(World):
    """A world that checks every decision against what it knows."""

    def __init__(self) -> None:
        super().__init__(*KINDS, settings=QUICK, limits=Limits((QUOTA,)))
        self.made: set[LaunchId] = set()
        self.arrived: set[LaunchId] = set()
        self.requested_at: list[float] = []
        self.owned: set[str] = set()
        self.drained_by_person: set[str] = set()
        self.begun: set[str] = set()
        self.numbers = iter(range(1_000_000))
        self.apply(NodeJoined(Node.of("head", {"CPU": 0.5})))

    def step(self, after: float = 0.0) -> list[ScaleDecision]:
        decisions = super().step(after)
        due = self.scaler.next_moment
        assert due is None or due > self.now, "a step at one moment must not lead to another there"
        return decisions

    def carry_out(self, decision: ScaleDecision) -> None:
        getattr(self, f"check_{type(decision).__name__}")(decision)
        super().carry_out(decision)

    def check_NodeRequested(self, decision: NodeRequested) -> None:  # noqa: N802
        assert decision.launch not in self.made, "ids are never used again"
        self.made.add(decision.launch)
        rests = {rest.kind for rest in self.scaler.rests}
        assert decision.template in KINDS and decision.template.name not in rests
        counts = Counter(instance.kind for instance in self.instances.values())
        assert counts[decision.template.name] < decision.template.count_max
        if decision.template.labels.get("zone") == "a":
            in_zone = [each for each in self.instances.values() if self.template(each.kind).labels["zone"] == "a"]
            assert len(in_zone) < (QUOTA.nodes_max or 0), "nodes without their labels count, too"
        self.requested_at = [at for at in self.requested_at if at > self.now - 60] + [self.now]
        assert len(self.requested_at) <= QUICK.launches_per_minute

    def check_NodeArrived(self, decision: NodeArrived) -> None:  # noqa: N802
        assert decision.launch not in self.arrived, "once for each launch"
        self.arrived.add(decision.launch)
        node, template = self.engine.nodes[decision.node], self.template(decision.kind)
        assert set(template.taints) <= set(node.taints) and template.labels.items() <= node.labels.items()

    def check_LaunchEnded(self, decision: LaunchEnded) -> None:  # noqa: N802
        assert decision.launch in self.made and decision.retry_at >= self.now and decision.why
        instance = self.instances.get(decision.launch)
        if instance is not None and instance.node in self.engine.nodes:
            self.check_end(instance.node)

    def check_RetirementBegun(self, decision: RetirementBegun) -> None:  # noqa: N802
        assert self.instances[decision.launch].node == decision.node
        assert decision.node not in set(self.engine.placed.values()) | self.owned
        assert not self.engine.nodes[decision.node].draining
        self.begun.add(decision.node)

    def check_RetirementCancelled(self, decision: RetirementCancelled) -> None:  # noqa: N802
        assert self.instances[decision.launch].node == decision.node
        assert RETIRING in self.engine.nodes[decision.node].labels

    def check_NodeRetired(self, decision: NodeRetired) -> None:  # noqa: N802
        assert self.instances[decision.launch].node == decision.node
        self.check_end(decision.node)
        kept = self.template(decision.kind).count_min
        usable = [
            instance
            for instance in self.instances.values()
            if instance.kind == decision.kind
            and instance.node in self.engine.nodes
            and not self.engine.nodes[instance.node].draining
        ]
        assert len(usable) >= kept or decision.node in self.drained_by_person

    def check_NodeLost(self, decision: NodeLost) -> None:  # noqa: N802
        instance = self.instances.get(decision.launch)
        assert decision.launch in self.made
        assert instance is None or instance.state is InstanceState.FAILED or instance.node not in self.engine.nodes

    def check_end(self, node: str) -> None:
        """A node that is there ends only after it was drained, without work, and without a taint of somebody."""
        assert node not in set(self.engine.placed.values()), "never with work"
        assert node not in self.owned and self.engine.nodes[node].draining

    def template(self, kind: str) -> NodeTemplate:
        return next(each for each in KINDS if each.name == kind)

    def happen(self, event: str, number: int) -> None:
        """One random event; without something that it can happen to, nothing happens."""
        instances = list(self.instances.values())
        coming = [each for each in instances if not each.node]
        joined = [each for each in instances if each.node in self.engine.nodes]
        running = sorted(self.engine.placed) + sorted(self.engine.waiting)
        match event:
            case "submit":
                self.submit(self.ask(number))
            case "gpu":
                self.submit(Ask.of(f"w{next(self.numbers)}", {"GPU": 1 + number % 2}))
            case "end" if running:
                self.end(running[number % len(running)])
            case "join" if coming:
                self.join(coming[number % len(coming)].launch)
            case "join wrong" if coming:
                wrong = {"labels": EMPTY} if number % 2 else {"taints": (), "labels": Labels({"zone": "c"})}
                self.join(coming[number % len(coming)].launch, **wrong)
            case "complete" if joined:
                chosen = joined[number % len(joined)]
                self.apply(NodeLabelled(chosen.node, self.template(chosen.kind).labels))
            case "fail" | "stock out" if coming:
                gone = self.instances.pop(coming[number % len(coming)].launch)
                self.failures.append(LaunchFailed(gone.launch, "no", event == "stock out"))
            case "vanish" | "leave" | "crash" if joined:
                self.break_down(event, joined[number % len(joined)].launch)
            case "taint" | "untaint" | "drain" if joined:
                self.touch(event, joined[number % len(joined)].node)
            case "restart":
                self.restart()
                self.requested_at = [each.since for each in self.instances.values()]  # all that it can know
            case "pass" | "long pass":
                self.now += 1.0 + number % 5 if event == "pass" else 30.0

    def ask(self, number: int) -> Ask:
        id = f"w{next(self.numbers)}"
        match number % 4:
            case 0:
                return cpus(id, 1)
            case 1:
                return cpus(id, 2)
            case 2:
                return cpus(id, 3)
            case _:
                return cpus(id, 1, selector=Selector.all_of(Requirement.is_in("zone", "a")))

    def break_down(self, event: str, launch: LaunchId) -> None:
        instance = self.instances[launch]
        if event == "vanish":
            del self.instances[launch]
        if event == "crash":
            self.instances[launch] = replace(instance, state=InstanceState.FAILED, problem="it crashed")
        self.apply(NodeLeft(instance.node))

    def touch(self, event: str, node: str) -> None:
        if event == "taint":
            self.apply(NodeTainted(node, Taint("mine"), owner="ann"))
            self.owned.add(node)
        elif event == "untaint":
            self.apply(NodeUntainted(node, "mine"))
            self.owned.discard(node)
        elif RETIRING not in self.engine.nodes[node].labels:
            self.apply(NodeDrained(node))
            self.drained_by_person.add(node)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(EVENTS), st.integers(0, 11)), max_size=STEPS_MAX))
def test_whatever_happens_limits_hold_and_only_empty_drained_nodes_of_its_own_are_ended(
    events: list[tuple[str, int]],
) -> None:
    world = CheckedWorld()
    for event, number in events:
        world.happen(event, number)
        world.step()
    # When nothing goes wrong any more and all work has ended, nothing but the minimum is left.
    world.end(*world.engine.placed, *world.engine.waiting)
    world.apply(*(NodeUntainted(node, "mine") for node in world.owned))
    world.owned.clear()
    for _ in range(40):
        world.until(world.now + 10.0)
        world.join()
    counts = Counter(world.instances[each.launch].kind for each in world.scaler.standing)
    assert counts == {"cpu": 1}
    assert len(world.instances) == 1, "no instance is leaked"
    assert "head" in world.engine.nodes
