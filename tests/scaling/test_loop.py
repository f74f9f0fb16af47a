"""The loop goes on with a provider that fails, hangs or lies, and with a cluster that does not answer."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from stead.engine.engine import Engine
from stead.engine.facts import AskEnded, AskSubmitted, ClockAdvanced, NodeJoined, NodeLeft
from stead.engine.scaling.decisions import (
    LaunchEnded,
    NodeArrived,
    NodeRequested,
    NodeRetired,
    RetirementBegun,
    ScaleDecision,
)
from stead.errors import Invalid
from stead.language.asks import Ask
from stead.language.nodes import NodeTemplate
from stead.language.resources import Resources
from stead.operate.audit import Author
from stead.operate.changes import NodeChange
from stead.operate.scale import ScaleView
from stead.operate.snapshot import Snapshot
from stead.planner.instances import Instance, InstanceState
from stead.planner.scaler import RETIRING, Scaler, ScaleSettings
from stead.scaling.calls import CALLS_MAX, Calls
from stead.scaling.loop import GONE_AFTER, Autoscaler, end_all
from stead.scaling.provider import OutOfStock, Unlaunched

KIND = NodeTemplate("cpu", Resources.of(CPU=1), count_max=3)
OTHER = NodeTemplate("big", Resources.of(CPU=8), count_max=3, price=9)
SETTINGS = ScaleSettings(idle_s=10, settle_s=0, join_s=50, retry_s=20)
ANSWERS_S, LONG_S = 0.2, 60.0


class Bench:
    """A cluster and a provider in memory. A test replaces `launching`, `retiring`, `listing`, `looking`, `changing` or
    `reporting` by something that fails, hangs or lies."""

    title = "the bench"

    def __init__(self, *kinds: NodeTemplate) -> None:
        self.now, self.engine = 1e9, Engine()
        self.instances: dict[str, Instance] = {}
        self.troubles: list[str] = []
        self.reported: list[ScaleDecision] = []
        self.launched: list[str] = []
        self.retired: list[str] = []
        self.launching: Callable[[str], object] = lambda id: None
        self.retiring: Callable[[str], object] = lambda id: None
        self.listing: Callable[[list[Instance]], Sequence[Instance]] = lambda found: found
        self.looking: Callable[[], object] = lambda: None
        self.changing: Callable[[NodeChange], object] = lambda change: None
        self.reporting: Callable[[], object] = lambda: None
        self.loop = Autoscaler(
            self,  # type: ignore[arg-type]  # `change` returns nothing that the loop reads
            self,
            Scaler(kinds or [KIND], SETTINGS),
            Author("test"),
            troubled=self.troubles.append,
            clock=lambda: self.now,
            answers_s=ANSWERS_S,
        )

    # -- the provider

    def launch(self, id: str, template: NodeTemplate) -> None:
        self.launched.append(id)
        self.launching(id)
        self.instances[id] = Instance(id, template.name, InstanceState.STARTING, self.now)

    def retire(self, instance: Instance) -> None:
        self.retired.append(instance.launch)
        self.retiring(instance.launch)
        gone = self.instances.pop(instance.launch, None)
        if gone is not None and gone.node in self.engine.nodes:
            self.engine.apply(NodeLeft(gone.node))

    # -- the desk

    def snapshot(self) -> Snapshot:
        self.looking()
        self.engine.apply(ClockAdvanced(self.now))
        self.engine.decide()
        return Snapshot(self.engine.fork(), self.now)

    def change(self, change: NodeChange, author: Author) -> Any:
        self.changing(change)
        self.engine.apply(*change.facts(self.engine.nodes[change.node], self.now))
        return SimpleNamespace()

    def report_scale(self, view: ScaleView, decisions: Sequence[ScaleDecision]) -> None:
        self.reporting()
        self.reported += decisions

    # -- what a test does

    def submit(self, *ids: str) -> None:
        self.engine.apply(*(AskSubmitted(Ask.of(id, {"CPU": 1})) for id in ids))

    def join(self) -> None:
        for id, instance in self.instances.items():
            if not instance.node:
                self.instances[id] = replace(instance, state=InstanceState.RUNNING, node=f"node-{id}")
                self.engine.apply(NodeJoined(KIND.node(f"node-{id}")))

    def turn(self, after: float = 1.0, times: int = 1) -> list[ScaleDecision]:
        """Turns, with all answers of the provider."""
        found = []
        for _ in range(times):
            self.now += after
            found += self.loop.turn()
            assert self.loop.wait(LONG_S)
        return found

    def with_a_node(self) -> str:
        """The id of a launch whose node has joined."""
        self.submit("w")
        self.turn()
        self.join()
        assert [type(each) for each in self.turn()] == [NodeArrived]
        return self.launched[0]

    def list(self) -> Sequence[Instance]:
        return self.listing(list(self.instances.values()))


def kinds(decisions: Sequence[ScaleDecision]) -> list[type]:
    return [type(each) for each in decisions]


def failing(error: Exception) -> Callable[..., Any]:
    def fail(*_: object) -> None:
        raise error

    return fail


def test_a_node_is_launched_for_pending_work_and_ended_when_nothing_needs_it() -> None:
    bench = Bench()
    launch = bench.with_a_node()
    bench.engine.apply(AskEnded("w"))
    decisions = bench.turn(times=20)
    assert kinds(decisions) == [RetirementBegun, NodeRetired]
    assert (bench.launched, bench.retired, bench.instances) == ([launch], [launch], {})
    assert kinds(bench.reported) == [NodeRequested, NodeArrived, RetirementBegun, NodeRetired]
    assert bench.troubles == []


def test_a_retirement_drains_and_labels_the_node_in_one_change() -> None:
    bench = Bench()
    launch = bench.with_a_node()
    changes: list[NodeChange] = []
    bench.changing = changes.append
    bench.engine.apply(AskEnded("w"))
    bench.turn(times=20)
    (change,) = changes
    assert (change.node, change.draining, dict(change.labels)) == (f"node-{launch}", True, {RETIRING: launch})


@pytest.mark.parametrize(
    ("error", "is_stock_out"), [(Unlaunched("no quota"), False), (OutOfStock("none"), True), (KeyError("x"), False)]
)
def test_a_launch_that_fails_rests_its_kind_and_another_kind_is_launched(error: Exception, is_stock_out: bool) -> None:
    bench = Bench(KIND, OTHER)
    bench.submit("w")
    bench.launching = failing(error)
    bench.turn()
    bench.launching = lambda id: None
    ended, requested = bench.turn()
    assert isinstance(ended, LaunchEnded)
    assert str(error) in ended.why
    assert isinstance(requested, NodeRequested)
    assert requested.template.name == "big"
    assert [rest.is_stock_out for rest in bench.loop.scaler.rests] == [is_stock_out]
    assert bench.retired == [ended.launch], "what the provider may have started is ended"


def test_a_launch_that_hangs_is_given_up_and_its_late_node_is_ended() -> None:
    bench = Bench(KIND, OTHER)
    bench.submit("w")
    go_on = threading.Event()
    bench.launching = lambda id: go_on.wait(LONG_S)
    bench.now += 1
    (hanging,) = bench.loop.turn()
    assert isinstance(hanging, NodeRequested)
    assert not bench.loop.wait(1.5 * ANSWERS_S)
    bench.launching = lambda id: None
    decisions = bench.loop.turn()
    assert kinds(decisions) == [LaunchEnded, NodeRequested], "the loop does not wait for it"
    assert "did not answer within 0.2 s" in decisions[0].why  # type: ignore[union-attr]
    go_on.set()
    assert bench.loop.wait(LONG_S)
    assert hanging.launch in bench.instances
    bench.turn(times=40)
    assert hanging.launch not in bench.instances
    assert len(bench.launched) == 2


def test_calls_that_hang_are_limited_and_other_launches_wait_for_them() -> None:
    calls, go_on = Calls(most=2), threading.Event()
    assert calls.start("a", go_on.wait, LONG_S)
    assert not calls.start("a", go_on.wait, LONG_S), "it is under way"
    assert calls.start("b", go_on.wait, LONG_S)
    assert not calls.start("c", go_on.wait, LONG_S), "there are two"
    assert calls.wait("a", 0.01) is None
    go_on.set()
    assert calls.wait_for_all(LONG_S)
    assert {outcome.key for outcome in calls.taken()} == {"a", "b"}
    assert calls.start("c", go_on.wait, LONG_S)


def test_the_provider_is_listed_also_while_the_maximum_of_launches_hangs() -> None:
    bench, open_again = Bench(replace(KIND, count_max=CALLS_MAX + 3)), threading.Event()
    bench.launching = lambda id: open_again.wait(LONG_S)
    bench.submit(*(f"work-{number}" for number in range(CALLS_MAX + 3)))
    bench.loop.turn()
    bench.loop.turn()
    assert bench.troubles == ["the bench answers too slowly, so launches wait"]
    open_again.set()
    assert bench.loop.wait(LONG_S)


def test_waiting_for_answers_also_starts_the_launches_that_wait() -> None:
    bench = Bench(replace(KIND, count_max=CALLS_MAX + 3))
    bench.submit(*(f"work-{number}" for number in range(CALLS_MAX + 3)))
    started = threading.Event()
    bench.launching = lambda id: started.wait(LONG_S)
    bench.loop.turn()
    assert len(bench.launched) <= CALLS_MAX
    started.set()
    assert bench.loop.wait(LONG_S)
    assert len(bench.launched) == CALLS_MAX + 3


def test_a_single_turn_says_which_launches_failed() -> None:
    bench = Bench()
    bench.submit("w")
    bench.launching = failing(Unlaunched("the quota is used up"))
    assert not bench.loop.once(LONG_S)
    assert [said.partition(" ")[2] for said in bench.troubles] == ["failed: the quota is used up"]


def test_a_single_turn_fails_if_the_cluster_cannot_be_read() -> None:
    bench = Bench()
    assert bench.loop.once(LONG_S)
    bench.looking = failing(OSError("no route"))
    assert not bench.loop.once(LONG_S)


@pytest.mark.parametrize("what", ["fails", "hangs"])
def test_nothing_is_decided_without_a_list_and_it_is_said_once(what: str) -> None:
    bench, go_on = Bench(), threading.Event()
    bench.submit("w")

    def hang(found: list[Instance]) -> Sequence[Instance]:
        go_on.wait(LONG_S)
        return found

    bench.listing = failing(OSError("no route")) if what == "fails" else hang
    bench.now += 1
    assert bench.loop.turn() == bench.loop.turn() == []
    assert bench.launched == []
    (trouble,) = bench.troubles
    assert trouble == {
        "fails": "the bench cannot list its nodes: no route",
        "hangs": "the bench did not list its nodes within 0.2 s",
    }.get(what)
    go_on.set()
    assert bench.loop.wait(LONG_S)
    bench.listing = lambda found: found
    assert kinds(bench.turn(times=2)) == [NodeRequested]
    bench.listing = failing(OSError("no route"))
    bench.turn()
    assert len(bench.troubles) == 2, "it began again"


def test_a_node_that_the_provider_forgets_for_a_moment_is_neither_lost_nor_launched_again() -> None:
    bench = Bench()
    launch = bench.with_a_node()
    bench.listing = lambda found: []
    assert bench.turn(times=GONE_AFTER - 1) == []
    bench.listing = lambda found: found
    assert bench.turn(times=3) == []
    assert bench.launched == [launch]


def test_a_launch_that_the_provider_forgets_for_good_is_given_up() -> None:
    bench = Bench()
    bench.submit("w")
    bench.turn(times=2)
    bench.instances.clear()
    decisions = bench.turn(times=GONE_AFTER + 1)
    assert kinds(decisions) == [LaunchEnded]
    assert kinds(bench.turn(after=SETTINGS.retry_s)) == [NodeRequested], "after the kind has rested"


def test_a_launch_that_is_listed_twice_counts_once() -> None:
    bench = Bench()
    launch = bench.with_a_node()
    bench.listing = lambda found: [*found, *(replace(each, node="", state=InstanceState.FAILED) for each in found)]
    assert bench.turn(times=5) == []
    assert bench.troubles == ["the bench lists a launch twice; one of the two counts"]
    assert bench.launched == [launch]


def test_a_listed_node_that_does_not_exist_is_given_up_and_the_loop_goes_on() -> None:
    bench = Bench()
    ghost = Instance("ghost", KIND.name, InstanceState.RUNNING, bench.now, "node-ghost")
    bench.listing = lambda found: [*found, ghost]
    bench.submit("w")
    assert bench.turn(times=55) == [], "it may still join"
    ended = bench.turn(times=15)
    assert [each.launch for each in ended if isinstance(each, LaunchEnded)] == ["ghost"]
    assert bench.retired == ["ghost"]
    assert kinds(bench.turn(times=20)) == [NodeRequested], "after the kind has rested"


@pytest.mark.parametrize("error", [Invalid("the controller did not answer"), RuntimeError("broken")])
def test_nothing_is_decided_while_the_cluster_does_not_answer(error: Exception) -> None:
    bench = Bench()
    bench.submit("w")
    bench.looking = failing(error)
    assert bench.turn(times=3) == []
    assert bench.troubles == [f"the cluster cannot be read: {error}"]
    bench.looking = lambda: None
    assert kinds(bench.turn()) == [NodeRequested]


def test_a_node_that_cannot_be_drained_now_is_drained_later() -> None:
    bench = Bench()
    bench.with_a_node()
    bench.engine.apply(AskEnded("w"))
    bench.changing = failing(Invalid("the controller did not answer"))
    bench.turn(times=15)
    assert bench.troubles == ["nodes cannot be changed: the controller did not answer"]
    assert bench.instances, "a node that is not drained is not ended"
    bench.changing = lambda change: None
    bench.turn(times=5)
    assert bench.instances == {}


def test_a_node_that_does_not_end_is_tried_again_after_growing_pauses() -> None:
    bench = Bench()
    launch = bench.with_a_node()
    bench.engine.apply(AskEnded("w"))
    bench.retiring = failing(Unlaunched("the node has work"))
    bench.turn(times=40)
    assert 3 <= len(bench.retired) <= 6
    assert bench.troubles == [f"{launch} is not ended yet: the node has work"]
    bench.retiring = lambda id: None
    bench.turn(times=40)
    assert bench.instances == {}


def test_a_decision_is_reported_once_also_if_reports_fail_for_a_while() -> None:
    bench = Bench()
    bench.reporting = failing(Invalid("the controller did not answer"))
    launch = bench.with_a_node()
    bench.reporting = lambda: None
    bench.turn(times=3)
    assert [(type(each), each.launch) for each in bench.reported] == [(NodeRequested, launch), (NodeArrived, launch)]


def test_an_autoscaler_that_does_nothing_reports_from_time_to_time() -> None:
    bench = Bench()
    reports: list[float] = []
    bench.reporting = lambda: reports.append(bench.now)
    bench.turn(times=40)
    assert len(reports) == 3


def test_all_nodes_end_when_they_should() -> None:
    bench = Bench()
    bench.submit("a", "b", "c")
    bench.turn()
    said: list[str] = []
    failures = iter([Unlaunched("not yet")])

    def fail_once(id: str) -> None:
        for error in failures:
            raise error

    bench.retiring = fail_once
    assert end_all(bench, LONG_S, said.append)
    assert (bench.instances, said) == ({}, ["not yet"])
