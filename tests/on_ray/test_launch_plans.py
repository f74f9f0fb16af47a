"""How many nodes of which type are requested from Ray's autoscaler, and which types rest.

Rule: plain values and the real planner, no cluster.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("ray")

from stead.engine.engine import Engine
from stead.engine.facts import NodeDrained, NodeJoined, NodeTainted
from stead.engine.scaling.decisions import LaunchEnded, NodeArrived, NodeRequested
from stead.language.asks import Ask
from stead.language.labels import ANYWHERE, Requirement, Selector
from stead.language.nodes import Node
from stead.language.taints import Taint, Toleration
from stead.planner.scaler import ScaleSettings
from stead.ray.control.autoscaler_mirror import Mirror
from stead.ray.control.kept_nodes import KeptNodes
from stead.ray.control.launch_plans import NOT_LAUNCHED, LaunchPlans
from stead.ray.control.node_types import NodeTypes, read_node_types
from stead.ray.control.scale_reports import scale_view
from stead.ray.wire.node_page import HEAD
from stead.ray.wire.tables import FailedLaunch, NodeRow, Status
from tests.on_ray.test_mirror import Notes

FILE = """
    provider: {type: external}
    max_workers: 10
    head_node_type: head
    available_node_types:
      head: {resources: {CPU: 1}, max_workers: 0}
      small: {resources: {CPU: 1}, labels: {size: small}, max_workers: 4}
      big: {resources: {CPU: 4}, labels: {size: big}, max_workers: 4}
      kept: {resources: {CPU: 1}, labels: {size: kept}, max_workers: 4}
    metadata:
      stead: {node_types: {small: {price: 1}, big: {price: 2}, kept: {price: 0.1, taints: {team: blue}}}}
"""
TYPES = read_node_types(FILE)
"""At most 10 nodes. A small one costs 1, a big one with four times the CPUs costs 2, and one of blue's costs 0.1."""

HEAD_ROW = NodeRow("head", "", {}, {HEAD: 1.0, "CPU": 1.0}, {}, False, "head")


class World:
    """Ray's tables, the engine, and the time. The head is tainted."""

    def __init__(self, retry_s: float = 30, retry_max_s: float = 1_800, join_s: float = 600) -> None:
        settings = ScaleSettings(retry_s=retry_s, retry_max_s=retry_max_s, join_s=join_s)
        self.types: NodeTypes = replace(TYPES, settings=settings)
        self.now = 1_000.0
        self.engine = Engine()
        self.engine.apply(NodeJoined(Node.of("head", {"CPU": 1})), NodeTainted("head", Taint("kept", "free")))
        self.status = Status({"head": HEAD_ROW}, ())
        self.plans = LaunchPlans(lambda: self.now)
        self.standing = Counter[str]()
        self.wanted()

    def wanted(self, *pending: tuple[Ask, int]) -> Counter[str]:
        """The next plan that has settled; what it wants is requested."""
        self.next(*pending)
        return self.next(*pending) if self.plans.is_settling else self.standing

    def next(self, *pending: tuple[Ask, int]) -> Counter[str]:
        self.standing = self.plans.wanted(self.types, self.engine, pending, self.status, self.standing)
        return self.standing

    def ray(self, **changed: Any) -> None:
        self.status = replace(self.status, **changed)

    def joins(self, id: str, kind: str, cpus: float, labels: Iterable[tuple[str, str]] | None = None) -> None:
        given = {"size": kind, "ray.io/node-group": kind} if labels is None else dict(labels)
        self.engine.apply(NodeJoined(Node.of(id, {"CPU": cpus}, given)))
        total = {"CPU": cpus, "memory": 1e9}
        row = NodeRow(id, "", given, total, total, False, kind)
        self.ray(nodes={**self.status.nodes, id: row}, starting={}, requested={})


def cpu(cpus: float = 1.0, selector: Selector = ANYWHERE, **more: Any) -> Ask:
    return Ask.of("pending", {"CPU": cpus}, selector=selector, **more)


SMALL_OR_KEPT = Selector.all_of(Requirement.is_in("size", "small", "kept"))


class TestWhichTypes:
    def test_the_cheapest_that_the_rules_allow(self) -> None:
        assert World().wanted((cpu(), 1)) == {"small": 1}
        assert World().wanted((cpu(), 4)) == {"big": 1}
        assert World().wanted((cpu(selector=Selector.all_of(Requirement.is_in("size", "big"))), 1)) == {"big": 1}

    def test_one_with_a_taint_only_for_work_that_tolerates_it(self) -> None:
        tolerant = cpu(selector=SMALL_OR_KEPT, tolerations=(Toleration("team"),))
        assert World().wanted((tolerant, 1)) == {"kept": 1}
        assert World().wanted((cpu(selector=SMALL_OR_KEPT), 1)) == {"small": 1}

    def test_none_when_nothing_is_pending_or_no_type_would_do(self) -> None:
        assert not World().wanted()
        world = World()
        assert not world.wanted((cpu(8.0), 3))
        assert world.plans.latest is not None
        (unserved,) = world.plans.latest.plan.unserved
        assert unserved.nearest and len(unserved.ids) == 3

    def test_without_pending_work_nothing_is_planned(self) -> None:
        world = World()
        world.plans = LaunchPlans(lambda: world.now, lambda *_: pytest.fail("planned"))
        assert not world.wanted()


class TestNothingIsRequestedTwice:
    @pytest.mark.parametrize("table", ["requested", "starting"])
    def test_nodes_that_ray_launches_already_are_counted_with_the_demands_that_they_meet(self, table: str) -> None:
        world = World()
        assert world.wanted((cpu(), 1)) == {"small": 1}
        world.ray(**{table: {"small": 1}})
        assert world.wanted((cpu(), 1)) == {"small": 1}

    def test_demands_that_stand_are_kept_while_nothing_is_cheaper(self) -> None:
        world = World()
        assert world.wanted((cpu(), 2)) in ({"big": 1}, {"small": 2})
        before = Counter(world.standing)
        assert world.wanted((cpu(), 2)) == before

    def test_what_ray_launches_already_is_used_although_another_type_is_cheaper(self) -> None:
        world = World()
        world.ray(starting={"big": 1})
        assert world.wanted((cpu(), 1)) == {"big": 1}

    def test_new_nodes_are_requested_once_two_plans_in_a_row_want_them(self) -> None:
        world = World()
        found = [(dict(world.next((cpu(4.0), count))), world.plans.is_settling) for count in (1, 2, 2)]
        assert found == [({}, True), ({"big": 1}, True), ({"big": 2}, False)]
        assert not world.next()
        assert not world.next((cpu(4.0), 1)), "the work may have just started"

    def test_after_a_node_joined_what_else_is_wanted_settles_again(self) -> None:
        world = World()
        assert world.wanted((cpu(4.0), 2)) == {"big": 2}
        world.joins("n1", "big", 4)
        world.standing.clear()  # the mirror removes all requests
        assert not world.next((cpu(4.0), 2))
        assert world.next((cpu(4.0), 2)) == {"big": 1}

    def test_a_demand_is_taken_back_when_nothing_pending_needs_it(self) -> None:
        world = World()
        assert world.wanted((cpu(4.0), 2)) == {"big": 2}
        assert world.wanted((cpu(4.0), 1)) == {"big": 1}
        assert not world.wanted()

    def test_a_node_that_has_joined_takes_the_work(self) -> None:
        world = World()
        world.wanted((cpu(), 1))
        world.joins("n1", "small", 1)
        assert not world.wanted((cpu(), 1))

    def test_nodes_that_run_count_against_the_maximum(self) -> None:
        world = World()
        for number in range(4):
            world.joins(f"n{number}", "big", 4)
        assert world.wanted((cpu(4.0), 5)) == {}
        assert world.plans.latest is not None
        assert "big" in world.plans.latest.plan.limits


class TestTypesRest:
    def test_after_a_launch_failed_another_type_is_chosen_for_a_while(self) -> None:
        world = World(retry_s=30)
        assert world.wanted((cpu(), 1)) == {"small": 1}
        world.ray(failures=(FailedLaunch("small", 999.0, 1_000.0),))
        assert world.wanted((cpu(), 1)) == {"big": 1}
        world.now = 1_031.0
        assert world.wanted((cpu(), 1)) == {"small": 1}

    def test_a_request_of_a_type_that_rests_does_not_count_but_an_instance_does(self) -> None:
        world = World()
        world.ray(failures=(FailedLaunch("small", 999.0, 1_000.0),), requested={"small": 1})
        assert world.wanted((cpu(), 1)) == {"big": 1}
        world = World()
        world.ray(failures=(FailedLaunch("small", 999.0, 1_000.0),), starting={"small": 1})
        assert world.wanted((cpu(), 1)) == {"small": 1}

    def test_each_failure_in_a_row_doubles_the_rest_and_those_of_one_request_count_once(self) -> None:
        world = World(retry_s=30)
        first = (FailedLaunch("small", 999.0, 1_000.0), FailedLaunch("small", 999.0, 1_001.0))
        world.ray(failures=first)
        world.wanted((cpu(), 1))
        world.now = 1_031.0
        assert world.wanted((cpu(), 1)) == {"small": 1}
        world.ray(failures=(*first, FailedLaunch("small", 1_032.0, 1_033.0)))
        world.now = 1_092.0
        assert world.wanted((cpu(), 1)) == {"big": 1}
        world.now = 1_094.0
        assert world.wanted((cpu(), 1)) == {"small": 1}

    def test_failures_from_long_before_the_controller_started_do_not_count(self) -> None:
        world = World(retry_max_s=600)
        world.ray(failures=(FailedLaunch("small", 300.0, 301.0),))
        assert world.wanted((cpu(), 1)) == {"small": 1}

    def test_when_no_node_joins_in_time_although_ray_still_launches_it(self) -> None:
        world = World(join_s=60)
        world.wanted((cpu(), 1))
        world.ray(starting={"small": 1})
        world.now += 59
        assert world.wanted((cpu(), 1)) == {"small": 1}
        world.now += 1
        assert world.wanted((cpu(), 1)) == {"big": 1}

    @pytest.mark.parametrize(
        ("cpus", "labels", "why"),
        [
            (0.5, {"size": "small", "ray.io/node-group": "small"}, "it joined with 0.5 CPU instead of 1 CPU"),
            (1.0, {"ray.io/node-group": "small"}, "it joined without the label size=small"),
        ],
    )
    def test_when_a_node_is_not_what_its_type_describes(self, cpus: float, labels: dict[str, str], why: str) -> None:
        world = World()
        world.wanted((cpu(), 1))
        world.joins("n1", "small", cpus, labels.items())
        assert world.wanted((cpu(selector=Selector.all_of(Requirement.is_in("size", "small", "big"))), 1)) == {"big": 1}
        assert world.plans.latest is not None
        assert [each.why for each in world.plans.latest.rests] == [why]


def test_decisions_say_what_was_requested_what_joined_and_what_failed() -> None:
    world = World(retry_s=30)
    world.wanted((cpu(), 1))
    world.wanted((cpu(), 1))
    small = next(each for each in TYPES.catalog if each.name == "small")
    assert world.plans.decided() == [NodeRequested("small", small, 1)]
    world.joins("n1", "small", 1)
    world.wanted()
    assert world.plans.decided() == [NodeArrived("small", "small", "n1")]
    world.ray(failures=(FailedLaunch("small", 999.0, 1_000.0),))
    world.wanted()
    assert world.plans.decided() == [LaunchEnded("small", "small", NOT_LAUNCHED, 1_030.0)]
    world.wanted()
    assert not world.plans.decided()


def test_the_mirror_requests_the_types_of_the_plan() -> None:
    world, notes = World(), Notes()
    mirror = Mirror(notes, lambda: True, TYPES, world.plans)
    for _ in range(3):
        mirror.update(world.status, world.engine, [(cpu(), 5)])
    assert Counter(notes.told) == {TYPES.demands["big"]: 1, TYPES.demands["small"]: 1}
    assert notes.but == ["head"]
    mirror.clear()
    assert not notes.told


def test_the_report_has_what_runs_what_comes_and_what_rests() -> None:
    world = World(retry_s=30, join_s=60)
    world.joins("n1", "big", 4)
    world.wanted((cpu(), 9))
    world.ray(requested={"big": 1}, starting={"big": 1}, failures=(FailedLaunch("small", 999.0, 1_000.0),))
    world.now += 1
    world.wanted((cpu(), 9))
    assert world.plans.latest is not None
    view = scale_view(world.plans.latest, world.status, {"n1": "worker"}, {"n1": "vision has set the taint suspect"})
    small, big, _ = (next(each for each in view.kinds if each.name == name) for name in ("small", "big", "kept"))
    assert (big.running, big.coming, big.count_max, big.price) == (1, 2, 4, 2)
    assert (small.rests_until, small.why) == (1_030.0, NOT_LAUNCHED)
    assert [(each.id, each.since, each.deadline) for each in view.launches] == [
        ("big-1", 1_000.0, 1_060.0),
        ("big-2", 1_000.0, 1_060.0),
    ]
    (node,) = view.nodes
    assert (node.title, node.kind, node.state, node.kept) == (
        "worker",
        "big",
        "busy",
        "vision has set the taint suspect",
    )
    assert view.price == 2


class Held:
    """The nodes that are held, noted instead of held."""

    def __init__(self) -> None:
        self.held: set[str] = set()

    def add(self, node: str) -> None:
        self.held.add(node)

    def remove(self, node: str) -> None:
        self.held.remove(node)

    def nodes(self) -> Iterable[str]:
        return tuple(self.held)


class TestKeptNodes:
    def test_launched_nodes_with_an_owned_taint_are_held_until_it_is_gone(self) -> None:
        world, held = World(), Held()
        for id in ("owned", "of a job", "nobody's", "drained"):
            world.joins(id, "small", 1)
        red = Taint("team", "red")
        world.engine.apply(
            NodeTainted("head", red, owner="vision"),
            NodeTainted("owned", red, owner="vision"),
            NodeTainted("of a job", red, job="01"),
            NodeTainted("nobody's", red),
            NodeTainted("drained", red, owner="vision"),
            NodeDrained("drained"),
        )
        kept = KeptNodes(held)
        kept.update(world.status, world.engine)
        assert held.held == {"owned", "of a job"}
        assert kept.why == {
            "owned": "vision has set the taint team",
            "of a job": "job 01 has set the taint team",
        }
        world.engine.apply(NodeDrained("owned"))
        kept.update(world.status, world.engine)
        assert held.held == {"of a job"}
        kept.clear()
        assert not held.held and not kept.why


def test_the_report_says_that_a_type_rests_and_not_that_it_has_its_maximum() -> None:
    world = World()
    world.ray(failures=tuple(FailedLaunch(kind, 999.0, 1_000.0) for kind in ("small", "big", "kept")))
    world.wanted((cpu(), 1))
    assert world.plans.latest is not None
    plan = scale_view(world.plans.latest, world.status, {}, {}).plan
    assert plan is not None
    (pending,) = plan.pending
    assert (pending.why, plan.limits) == (f"it rests: {NOT_LAUNCHED}", ())
