"""The scaler: when it launches, gives up, keeps and retires nodes, as tables of what it sees and decides."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from stead.engine.engine import Engine
from stead.engine.facts import (
    AskRunning,
    GroupSubmitted,
    NodeDrained,
    NodeJoined,
    NodeLabelled,
    NodeLeft,
    NodeTainted,
    NodeUntainted,
    NodeUsed,
)
from stead.engine.scaling.decisions import (
    LaunchEnded,
    NodeArrived,
    NodeLost,
    NodeRequested,
    NodeRetired,
    RetirementBegun,
    RetirementCancelled,
    ScaleDecision,
)
from stead.language.asks import Ask, Group, Strategy
from stead.language.labels import Labels, Requirement, Selector
from stead.language.nodes import Node
from stead.language.resources import Resources
from stead.language.taints import Taint
from stead.planner.instances import Instance, InstanceState, LaunchFailed
from stead.planner.plans import Limits, Quota
from stead.planner.scaler import RETIRING, Scaler, ScaleSettings, Seen
from tests.planner.scaling_world import QUICK, World, cpus, kind

ZONE_A = Selector.all_of(Requirement.is_in("zone", "a"))


def requested(decisions: list[ScaleDecision]) -> list[str]:
    """The kinds that were requested."""
    return [each.template.name for each in decisions if isinstance(each, NodeRequested)]


def of(kind: type, decisions: list[ScaleDecision]) -> list[ScaleDecision]:
    return [each for each in decisions if isinstance(each, kind)]


def idle_world(count: int = 1, **more: object) -> World:
    """A world in which so many nodes have arrived and are idle."""
    world = World(kind(**more))  # type: ignore[arg-type]
    world.start(count)
    world.step()
    return world


# Launching.


def test_work_that_is_pending_for_long_enough_gets_a_node() -> None:
    world = World()
    world.submit(cpus("a"), cpus("b"))
    assert world.step() == []
    assert world.scaler.next_moment == 1.0
    assert world.step(1.0) == [NodeRequested("launch-1", world.kinds[0], 2)]


def test_a_burst_gets_one_plan() -> None:
    world = World(kind("small"), kind("large", {"CPU": 16}, price=2.0))
    for number in range(16):
        world.submit(cpus(f"w{number}"))
        assert world.step(0.05) == []
    assert requested(world.until(3.0)) == ["large"]


def test_work_that_has_just_been_submitted_waits_although_other_work_is_pending_for_long() -> None:
    world = World(kind("cpu"), kind("gpu", {"GPU": 1}))
    world.submit(cpus("late", 99))
    world.until(10.0)
    world.submit(cpus("new"))
    assert world.step() == []
    assert requested(world.step(1.0)) == ["cpu"]


@pytest.mark.parametrize("looks", [True, False], ids=["after a step", "before the next step"])
def test_work_that_is_still_listed_as_pending_when_it_has_started_on_a_new_node_launches_nothing(looks: bool) -> None:
    world = World(kind(capacity={"CPU": 1}))
    world.submit(cpus("a"), cpus("b"))
    world.step()
    launches = [decision.launch for decision in world.step(1) if isinstance(decision, NodeRequested)]
    assert len(launches) == 2
    if looks:
        world.step(10)
    world.now += 10
    for launch in launches:
        world.instances[launch] = replace(world.instances[launch], node=launch)
        node = world.kinds[0].node(launch)
        world.apply(NodeJoined(node), NodeUsed(launch, Resources.of(CPU=1), 1))
    assert set(world.engine.waiting) == {"a", "b"}
    assert not [decision for decision in world.step() if isinstance(decision, NodeRequested)]
    world.end("a", "b")
    assert not [decision for decision in world.until(world.now + 5) if isinstance(decision, NodeRequested)]


def test_work_that_is_submitted_again_with_the_same_id_is_planned_again() -> None:
    world = World(kind("cpu"), kind("gpu", {"GPU": 1}))
    world.submit(cpus("w", 99))
    assert world.until(10.0) == []
    world.end("w")
    world.submit(Ask.of("w", {"GPU": 1}))
    assert requested(world.until(12.0)) == ["gpu"]


def test_work_that_ends_before_it_has_settled_launches_nothing() -> None:
    world = World()
    world.submit(cpus("a"))
    world.step()
    world.end("a")
    assert world.until(100.0) == []


def test_the_minimum_of_a_kind_is_launched_at_once_and_again_after_a_loss() -> None:
    world = World(kind(least=2))
    assert world.step() == [NodeRequested(f"launch-{n}", world.kinds[0], 0) for n in (1, 2)]
    world.join()
    world.until(20.0)
    del world.instances["launch-1"]
    world.apply(NodeLeft("node-launch-1"))
    assert world.step() == [
        NodeLost("launch-1", "cpu", "node-launch-1"),
        NodeRequested("launch-3", world.kinds[0], 0),
    ]


def test_launches_in_flight_are_counted_also_before_they_are_listed() -> None:
    world = World(lag=True)
    world.submit(*(cpus(f"w{n}") for n in range(4)))
    world.until(1.0)
    assert world.until(30.0) == []
    assert [each.launch for each in world.scaler.in_flight] == ["launch-1"]
    assert world.scaler.stock.coming == {"cpu": 1}
    world.submit(cpus("more"))
    assert requested(world.until(32.0)) == ["cpu"]


def test_launches_are_limited_in_each_minute() -> None:
    world = World(kind(capacity={"CPU": 1}, most=50), settings=replace(QUICK, launches_per_minute=3, join_s=1000))
    world.submit(*(cpus(f"w{n}") for n in range(8)))
    assert len(requested(world.until(1.0))) == 3
    assert len(requested(world.until(60.9))) == 0
    assert len(requested(world.until(61.1))) == 3
    world.restart()
    assert len(requested(world.until(120.9))) == 0, "what is listed counts after a restart, too"
    assert len(requested(world.until(123.0))) == 2


def test_never_more_nodes_than_the_maximum_and_the_quotas_allow() -> None:
    quota = Limits((Quota("zone-a", Labels({"zone": "a"}), 2),))
    world = World(kind("a", {"CPU": 1}, {"zone": "a"}), kind("b", {"CPU": 1}, most=1), limits=quota)
    world.submit(*(cpus(f"w{n}") for n in range(8)))
    assert sorted(requested(world.until(20.0))) == ["a", "a", "b"]
    assert world.scaler.plan is not None
    assert {"zone-a", "b"} & set(world.scaler.plan.limits)


def test_a_node_without_its_labels_counts_against_a_quota_also_after_a_restart() -> None:
    quota = Limits((Quota("zone-a", Labels({"zone": "a"}), 1),))
    world = World(kind(labels={"zone": "a"}, most=5), limits=quota)
    world.submit(cpus("w", selector=ZONE_A))
    world.until(1.0)
    world.submit(cpus("busy", 4))
    world.join(labels=Labels())
    for _ in range(3):
        assert requested(world.until(world.now + 100.0)) == []
        world.restart()


def test_the_ids_of_launches_differ_also_after_a_restart() -> None:
    engine = Engine()
    ids = set()
    for moment in (1000.0, 1000.001, 2000.0):
        scaler = Scaler([kind(least=3)])
        ids |= {each.launch for each in scaler.step(Seen(moment, engine)) if isinstance(each, NodeRequested)}
    assert len(ids) == 9


# Arriving.


def test_a_node_arrives_once() -> None:
    world = World(kind(least=1))
    world.step()
    world.join()
    assert world.step() == [NodeArrived("launch-1", "cpu", "node-launch-1")]
    assert world.until(30.0) == []
    assert [each.launch for each in world.scaler.standing] == ["launch-1"]
    world.restart()
    assert world.until(60.0) == [], "another autoscaler adopts it"


def test_a_node_is_found_by_its_ip_address_if_only_one_node_has_it() -> None:
    world = World(kind(least=1))
    world.step()
    world.instances["launch-1"] = replace(world.instances["launch-1"], state=InstanceState.RUNNING, ip="10.0.0.1")
    world.apply(*(NodeJoined(replace(kind().node(id), ip="10.0.0.1")) for id in ("x", "y")))
    assert world.step() == []
    world.apply(NodeLeft("y"))
    assert world.step() == [NodeArrived("launch-1", "cpu", "x")]


@pytest.mark.parametrize(
    ("differences", "why"),
    [
        ({"labels": Labels()}, "it joined without the label zone=a"),
        ({"labels": Labels({"zone": "b"})}, "it joined without the label zone=a"),
        ({"taints": ()}, "it joined without the taint spot=true"),
        ({"capacity": Resources.of(CPU=2)}, "it joined with 2 CPU instead of 4 CPU"),
    ],
)
def test_a_node_that_is_not_what_was_requested_is_ended_and_its_kind_rests(
    differences: dict[str, object], why: str
) -> None:
    world = World(kind(labels={"zone": "a"}, taints=[Taint("spot", "true")], least=1), kind("other", {"GPU": 1}))
    world.step()
    world.join(**differences)
    assert world.until(29.0) == [], "labels and taints may be set after the join"
    assert of(LaunchEnded, world.until(35.0)) == [LaunchEnded("launch-1", "cpu", why, 50.0)]
    assert [(rest.kind, rest.until, rest.why) for rest in world.scaler.rests] == [("cpu", 50.0, why)]
    assert requested(world.until(60.0)) == ["cpu"]


def test_labels_that_are_set_after_the_join_are_in_time_and_count_from_the_start() -> None:
    world = World(kind(labels={"zone": "a"}))
    world.submit(cpus("w", selector=ZONE_A))
    world.until(1.0)
    world.join(labels=Labels())
    assert world.until(20.0) == [], "no second node is launched for the work"
    world.apply(NodeLabelled("node-launch-1", Labels({"zone": "a"})))
    assert world.step() == [NodeArrived("launch-1", "cpu", "node-launch-1")]
    assert world.engine.placed == {"w": "node-launch-1"}


def test_a_wrong_node_with_work_is_kept_until_it_is_idle_and_is_no_capacity_of_its_kind() -> None:
    world = World(kind(labels={"zone": "a"}, least=1))
    world.step()
    world.join(labels=Labels())
    world.submit(cpus("w"))
    assert requested(world.until(100.0)) == ["cpu"], "the minimum is launched again after the rest"
    assert "node-launch-1" in world.engine.nodes
    world.end("w")
    assert of(LaunchEnded, world.until(110.0))


@pytest.mark.parametrize("is_listed", [True, False])
def test_a_launch_that_hangs_is_given_up_after_its_deadline(is_listed: bool) -> None:
    world = World(kind(least=1), lag=not is_listed)
    world.step()
    what = "its node did not join" if is_listed else "the provider did not list it"
    assert world.until(49.0) == []
    assert world.until(50.0) == [LaunchEnded("launch-1", "cpu", f"{what} within 50s", 70.0)]
    assert requested(world.until(70.0)) == ["cpu"]


def test_an_instance_of_a_launch_that_was_given_up_is_ended_when_it_is_listed_late() -> None:
    world = World(kind(least=1), lag=True)
    world.until(50.0)
    world.instances["launch-1"] = world.unlisted[0]
    ended = [each.launch for each in of(LaunchEnded, world.until(90.0)) if isinstance(each, LaunchEnded)]
    assert ended == ["launch-1"]
    assert "launch-1" not in world.instances


def test_an_instance_that_does_not_end_is_ended_again() -> None:
    world = World(stubborn=True)
    world.start(1)
    (retired,) = of(NodeRetired, world.until(130.0))
    assert world.until(131.0) == [retired]
    world.instances["launch-1"] = Instance("launch-1", "cpu", InstanceState.ENDING)
    assert world.until(300.0) == []


# Failures.


def test_another_kind_takes_the_work_of_a_kind_that_fails_and_the_first_choice_is_tried_again() -> None:
    world = World(kind("spot", {"CPU": 1}, price=1.0), kind("normal", {"CPU": 1}, price=5.0))
    world.submit(cpus("a"))
    assert requested(world.until(1.0)) == ["spot"]
    world.instances.clear()
    world.failures.append(LaunchFailed("launch-1", "there are no more spot nodes", is_stock_out=True))
    decisions = world.step() + world.until(2.0)
    assert decisions[0] == LaunchEnded("launch-1", "spot", "there are no more spot nodes", 61.0)
    assert requested(decisions) == ["normal"]
    world.join()
    world.until(62.0)
    world.submit(cpus("b"))
    assert requested(world.until(64.0)) == ["spot"]


@pytest.mark.parametrize(
    ("is_stock_out", "rests"), [(False, [20.0, 40.0, 80.0, 160.0, 200.0, 200.0]), (True, [60.0, 120.0, 200.0, 200.0])]
)
def test_each_failure_in_a_row_doubles_the_rest_up_to_the_longest(is_stock_out: bool, rests: list[float]) -> None:
    world = World(kind(least=1))
    for rest in rests:
        (request,) = of(NodeRequested, world.until(world.now))
        assert isinstance(request, NodeRequested)
        world.instances.clear()
        world.failures.append(LaunchFailed(request.launch, "no", is_stock_out))
        assert world.step() == [LaunchEnded(request.launch, "cpu", "no", world.now + rest)]
        world.now += rest
    assert requested(world.step()) == ["cpu"]
    world.join()
    world.step()
    assert not list(world.scaler.rests)
    world.instances.clear()
    world.apply(*map(NodeLeft, tuple(world.engine.nodes)))
    (again,) = of(NodeRequested, world.step(1.0))
    assert isinstance(again, NodeRequested)
    world.instances.clear()
    world.failures.append(LaunchFailed(again.launch, "no", is_stock_out))
    world.step()
    assert world.scaler.rests[0].until == world.now + rests[0], "a success resets it"


def test_a_burst_of_launches_that_fail_together_counts_as_one_failure() -> None:
    world = World(kind(least=5))
    world.step()
    world.failures = [LaunchFailed(launch, "no") for launch in world.instances]
    world.instances.clear()
    ended = world.step()
    assert [each.retry_at for each in ended if isinstance(each, LaunchEnded)] == [20.0] * 5


@pytest.mark.parametrize(
    ("state", "why"),
    [(InstanceState.FAILED, "the image is missing"), (None, "it disappeared before its node joined")],
)
def test_a_launch_that_is_listed_as_failed_or_disappears_is_given_up(state: InstanceState | None, why: str) -> None:
    world = World(kind(least=1))
    world.step()
    world.step()
    instance = world.instances.pop("launch-1")
    if state is not None:
        world.instances["launch-1"] = replace(instance, state=state, problem="the image is missing")
    assert world.step() == [LaunchEnded("launch-1", "cpu", why, 20.0)]


def test_a_launch_that_is_listed_as_out_of_stock_rests_as_long_as_one_that_the_provider_refused() -> None:
    world = World(kind(least=1))
    world.step()
    world.step()
    failed = replace(world.instances["launch-1"], state=InstanceState.FAILED, problem="no room", is_stock_out=True)
    world.instances["launch-1"] = failed
    assert world.step() == [LaunchEnded("launch-1", "cpu", "no room", world.scaler.settings.stock_out_s + world.now)]


# Losing.


def test_a_spot_node_that_is_taken_back_is_lost_and_its_work_gets_another() -> None:
    world = World()
    world.submit(cpus("w"))
    world.until(1.0)
    world.join()
    world.step()
    del world.instances["launch-1"]
    world.apply(NodeLeft("node-launch-1"))
    assert world.step() == [NodeLost("launch-1", "cpu", "node-launch-1")]
    assert requested(world.until(3.0)) == ["cpu"]


def test_a_node_that_leaves_while_its_instance_runs_may_come_back_for_a_minute() -> None:
    world = idle_world(least=1)
    world.until(60.0)
    node = world.node("launch-1")
    world.apply(NodeLeft(node.id))
    assert world.until(110.0) == []
    world.apply(NodeJoined(node))
    assert world.until(115.0) == []
    world.apply(NodeLeft(node.id))
    assert world.until(176.0)[:1] == [NodeLost("launch-1", "cpu", node.id)]
    assert "launch-1" not in world.instances


# Retiring.


def test_a_node_that_nothing_needs_is_drained_and_ended_in_a_later_step() -> None:
    world = idle_world()
    assert world.until(99.0) == []
    assert world.scaler.next_moment == 100.0
    assert world.step(1.0) == [RetirementBegun("launch-1", "cpu", "node-launch-1", 100.0)]
    assert world.step() == []
    assert world.scaler.standing[0].is_retiring
    assert world.until(101.0) == [NodeRetired("launch-1", "cpu", "node-launch-1")]
    assert world.engine.nodes == {}


@pytest.mark.parametrize(
    "use",
    [
        lambda world: world.submit(cpus("w")),
        lambda world: world.apply(NodeUsed("node-launch-1", Resources.of(CPU=1), 1)),
        lambda world: world.apply(GroupSubmitted(Group("g", ((cpus("g-1"),),)))),
        lambda world: world.apply(AskRunning(cpus("w", 9), "node-launch-1")),
    ],
    ids=["work", "work that stead does not manage", "a bundle of a group", "more than fits"],
)
def test_a_node_in_use_is_never_retired(use: Callable[[World], object]) -> None:
    world = idle_world()
    use(world)
    assert of(RetirementBegun, world.until(1000.0)) == []


@pytest.mark.parametrize(
    ("owner", "job", "kept"),
    [("ann", "", "its taint mine belongs to ann"), ("", "j1", "its taint mine belongs to the job j1")],
)
def test_a_node_with_a_taint_of_somebody_is_kept_until_the_taint_is_gone(owner: str, job: str, kept: str) -> None:
    world = idle_world()
    world.apply(NodeTainted("node-launch-1", Taint("mine"), owner=owner, job=job))
    assert world.until(500.0) == []
    assert world.scaler.standing[0].kept == kept
    world.apply(NodeUntainted("node-launch-1", "mine"))
    assert of(RetirementBegun, world.step())


def test_the_minimum_stays() -> None:
    world = idle_world(3, least=2)
    assert len(of(NodeRetired, world.until(1000.0))) == 1
    assert len(world.engine.nodes) == 2
    assert world.scaler.standing[0].kept == "the minimum of its kind is 2"


def test_nodes_over_a_lowered_maximum_go_at_once_if_they_are_idle() -> None:
    world = idle_world(4, most=4)
    world.submit(cpus("w", 3))
    world.kinds = (kind(most=2),)
    world.restart()
    assert len(of(NodeRetired, world.until(5.0))) == 2
    assert len(world.engine.nodes) == 2
    assert world.engine.placed.keys() == {"w"}


def test_a_kind_that_is_not_in_the_catalog_any_more_goes_once_it_is_idle() -> None:
    world = idle_world(2)
    world.submit(cpus("w", 3))
    world.kinds = (kind("other", {"GPU": 1}),)
    world.restart()
    assert len(of(NodeRetired, world.until(5.0))) == 1
    world.end("w")
    assert len(of(NodeRetired, world.until(15.0))) == 1


@pytest.mark.parametrize(
    ("use", "why"),
    [
        (lambda world: world.submit(cpus("w")), "pending work fits there"),
        (lambda world: world.apply(AskRunning(cpus("w"), "node-launch-1")), "work runs there"),
        (
            lambda world: world.apply(NodeTainted("node-launch-1", Taint("mine"), owner="ann")),
            "its taint mine belongs to ann",
        ),
    ],
)
def test_a_retirement_ends_when_the_node_is_needed_again(use: Callable[[World], object], why: str) -> None:
    world = idle_world()
    world.until(100.0)
    use(world)
    assert world.step() == [RetirementCancelled("launch-1", "cpu", "node-launch-1", why)]
    assert of(NodeRetired, world.until(150.0)) == []
    assert not world.node("launch-1").draining
    assert RETIRING not in world.node("launch-1").labels


def test_work_that_is_submitted_while_a_node_is_retired_launches_nothing() -> None:
    world = idle_world()
    world.until(100.0)
    world.submit(cpus("w"))
    assert requested(world.until(120.0)) == []
    assert world.engine.placed == {"w": "node-launch-1"}


def test_a_retirement_goes_on_after_a_restart() -> None:
    world = idle_world()
    world.until(100.0)
    world.restart()
    assert world.until(101.0) == [NodeRetired("launch-1", "cpu", "node-launch-1")]


def test_a_label_that_a_crash_left_behind_is_removed() -> None:
    world = idle_world()
    world.apply(NodeLabelled("node-launch-1", Labels({RETIRING: "launch-1"})))
    world.restart()
    assert of(RetirementCancelled, world.step())
    assert RETIRING not in world.node("launch-1").labels


def test_a_node_that_a_person_drained_is_never_uncordoned_and_is_ended_once_it_is_idle() -> None:
    world = idle_world(least=1)
    world.apply(NodeDrained("node-launch-1"))
    assert requested(world.step()) == ["cpu"], "it takes no work, so the minimum needs another node"
    world.join()
    world.submit(cpus("w", 4), cpus("v", 4))
    assert of(RetirementCancelled, world.until(99.0)) == []
    assert of(NodeRetired, world.until(100.0)) == [NodeRetired("launch-1", "cpu", "node-launch-1")]


def test_only_nodes_of_instances_are_retired() -> None:
    world = idle_world()
    world.apply(NodeJoined(Node.of("head", {"CPU": 1})), NodeJoined(Node.of("other", {"CPU": 4})))
    world.until(1000.0)
    assert list(world.engine.nodes) == ["head", "other"]


def test_an_idle_node_stays_for_a_group_that_also_needs_a_node_that_is_coming() -> None:
    world = World(kind(labels={"zone": "a"}), settings=replace(QUICK, join_s=500))
    world.start(1)
    world.step()
    world.until(90.0)
    members = tuple(cpus(f"g-{n}", 3) for n in (1, 2))
    world.apply(GroupSubmitted(Group("g", (members,), Strategy.STRICT_SPREAD)))
    decisions = world.until(300.0)
    assert requested(decisions) == ["cpu"]
    assert of(RetirementBegun, decisions) == []
    world.join()
    assert set(world.engine.placed.values()) == {"node-launch-1", "node-launch-2"}


def test_flapping_demand_launches_once_and_retires_once() -> None:
    world = World()
    decisions = []
    for turn in range(40):
        world.submit(cpus(f"w{turn}"))
        decisions += world.until(world.now + 5.0)
        world.join()
        decisions += world.until(world.now + 20.0)
        world.end(f"w{turn}")
        decisions += world.until(world.now + 50.0)
    decisions += world.until(world.now + 200.0)
    assert len(requested(decisions)) == 1
    assert len(of(NodeRetired, decisions)) == 1


def test_settings_have_sensible_defaults() -> None:
    assert ScaleSettings().settle_s < ScaleSettings().idle_s < ScaleSettings().join_s
