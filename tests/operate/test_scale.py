"""What people see of an autoscaler: its view of kinds, launches and nodes, and what a desk keeps of its reports."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from stead.engine.engine import Engine
from stead.engine.facts import AskRunning, AsksSubmitted, NodeJoined, NodeLeft
from stead.engine.scaling.decisions import LaunchEnded, NodeArrived, NodeLost, NodeRequested, NodeRetired
from stead.language.asks import Ask
from stead.language.labels import Labels
from stead.language.nodes import NodeTemplate
from stead.language.resources import Resources
from stead.language.taints import Taint
from stead.operate.scale import (
    PROPOSALS_S,
    SILENT_S,
    MoveView,
    Proposing,
    Reports,
    ScaleView,
    Tallied,
    scale_json,
    scale_of,
    scale_view,
)
from stead.planner.instances import Instance, InstanceState
from stead.planner.planning import plan
from stead.planner.plans import Stock
from stead.planner.scaler import Rest, Scaler, ScaleSettings, Standing
from tests.serving import simulated

CPU = NodeTemplate("cpu", Resources.of(CPU=8), Labels({"zone": "a"}), price=1.5, count_max=10)
GPU = NodeTemplate("gpu", Resources.of(CPU=8, GPU=4), taints=(Taint("gpu", "true"),), price=10.0, count_max=2)
BEGAN = 1_000_000.0


def cluster() -> Engine:
    engine = Engine()
    for number, template in enumerate((CPU, CPU, GPU), start=1):
        engine.apply(NodeJoined(replace(template.node(f"n{number}"), name=f"node-{number}")))
    engine.apply(AsksSubmitted(Ask.of("web", {"CPU": 8}), 1, 4))
    return engine


def seen() -> ScaleView:
    """Two CPU nodes, of which one is idle, a GPU node that is retired, one launch in flight."""
    engine, scaler = cluster(), Scaler((CPU, GPU), ScaleSettings(join_s=60.0))
    scaler.plan = plan(engine, (CPU, GPU))
    scaler.stock = Stock({"n1": "cpu", "n2": "cpu", "n3": "gpu"}, {"cpu": 1})
    scaler.rests = (Rest("gpu", 500.0, "the provider has no more such nodes"),)
    scaler.standing = (
        Standing("cpu-1", "cpu", "n1"),
        Standing("cpu-2", "cpu", "n2", 90.0, "it is the minimum of its kind"),
        Standing("gpu-1", "gpu", "n3", 30.0, is_retiring=True),
    )
    scaler.in_flight = (Instance("cpu-3", "cpu", InstanceState.STARTING, 100.0),)
    return scale_view(scaler, engine, "local raylets", BEGAN + 110.0, BEGAN)


class TestView:
    def test_a_kind_has_the_numbers_of_its_nodes_and_launches_and_why_it_rests(self) -> None:
        cpu, gpu = seen().kinds
        assert (cpu.name, cpu.price, cpu.count_min, cpu.count_max, cpu.running, cpu.coming) == ("cpu", 1.5, 0, 10, 2, 1)
        assert (cpu.resources, cpu.labels, cpu.rests_until) == ({"CPU": 8.0}, {"zone": "a"}, None)
        assert (gpu.taints, gpu.running, gpu.coming) == (("gpu=true",), 1, 0)
        assert (gpu.rests_until, gpu.why) == (BEGAN + 500.0, "the provider has no more such nodes")

    def test_a_launch_has_its_deadline_on_the_wall_clock(self) -> None:
        (launch,) = seen().launches
        assert (launch.id, launch.kind, launch.state) == ("cpu-3", "cpu", "starting")
        assert (launch.since, launch.deadline) == (BEGAN + 100.0, BEGAN + 160.0)

    def test_a_node_is_busy_idle_or_retiring_and_has_the_price_of_its_kind(self) -> None:
        view = seen()
        assert [(each.title, each.state, each.price) for each in view.nodes] == [
            ("node-1", "busy", 1.5),
            ("node-2", "idle", 1.5),
            ("node-3", "retiring", 10.0),
        ]
        assert view.nodes[1].idle_since == BEGAN + 90.0
        assert view.nodes[1].kept == "it is the minimum of its kind"
        assert view.price == 13.0

    def test_the_plan_says_what_would_be_launched(self) -> None:
        plan = seen().plan
        assert plan is not None
        assert [(each.name, each.count, each.is_like) for each in plan.new_nodes] == [("cpu", 2, False)]

    def test_a_view_comes_back_from_its_json(self) -> None:
        view = replace(seen(), proposals=(MoveView(("n2",), (("web-1", "n1"),), 1.5),), is_silent=True)
        assert scale_of(scale_json(view)) == view
        assert scale_of(scale_json(None)) is None

    def test_fields_of_a_newer_service_are_ignored(self) -> None:
        found = scale_json(seen())
        found["autoscaler"]["kinds"][0]["region"] = "eu"
        found["autoscaler"]["mood"] = "good"
        assert scale_of(found) == seen()


class TestReports:
    def test_without_a_report_there_is_no_autoscaler(self) -> None:
        with simulated("nodes: [{id: cpu, capacity: {CPU: 1}}]") as desk:
            assert desk.scale() is None

    def test_the_latest_report_counts_and_decisions_are_tallied(self) -> None:
        with simulated("nodes: [{id: cpu, capacity: {CPU: 1}}]") as desk:
            desk.report_scale(replace(seen(), price=1.0), [NodeRequested("cpu-3", CPU, 5)])
            desk.report_scale(seen(), [NodeArrived("cpu-3", "cpu", "n4"), LaunchEnded("gpu-2", "gpu", "slow", 9.0)])
            desk.report_scale(seen(), [NodeRetired("cpu-1", "cpu", "n1"), NodeLost("cpu-2", "cpu", "n2")])
            assert desk.scale() == replace(seen(), tallied=Tallied(1, 1, 1, 1))

    def test_an_autoscaler_that_stops_reporting_is_silent(self, monkeypatch: pytest.MonkeyPatch) -> None:
        now = [0.0]
        monkeypatch.setattr("stead.operate.scale.time", SimpleNamespace(monotonic=lambda: now[0]))
        reports = Reports()
        reports.add(seen(), ())
        silent = []
        for now[0] in (0.0, SILENT_S, SILENT_S + 1.0):
            view = reports.latest
            assert view is not None
            silent.append(view.is_silent)
        assert silent == [False, False, True]


class TestProposals:
    """Two nodes of a kind, each with work for half of one."""

    def half_used(self) -> tuple[Scaler, Engine]:
        engine, scaler = Engine(), Scaler((CPU,))
        for number in (1, 2):
            engine.apply(NodeJoined(CPU.node(f"n{number}")), AskRunning(Ask.of(f"w{number}", {"CPU": 4}), f"n{number}"))
        scaler.stock = Stock({"n1": "cpu", "n2": "cpu"})
        return scaler, engine

    def test_name_the_work_that_would_move_and_what_that_saves(self) -> None:
        scaler, engine = self.half_used()
        found = Proposing().proposals(scaler, engine)
        view = scale_view(scaler, engine, "local raylets", BEGAN, proposals=found)
        assert view.proposals == (MoveView(("n1",), (("w1", "n2"),), 1.5),)

    def test_are_not_computed_again_at_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        now = [1000.0]
        monkeypatch.setattr("stead.operate.scale.time", SimpleNamespace(monotonic=lambda: now[0]))
        (scaler, engine), proposing = self.half_used(), Proposing()
        found = proposing.proposals(scaler, engine)
        engine.apply(AskRunning(Ask.of("more", {"CPU": 4}), "n2"))
        assert proposing.proposals(scaler, engine) == found
        now[0] += PROPOSALS_S
        assert proposing.proposals(scaler, engine) == ()

    def test_of_nodes_that_are_gone_are_left_out(self) -> None:
        (scaler, engine), proposing = self.half_used(), Proposing()
        proposing.proposals(scaler, engine)
        engine.apply(NodeLeft("n1"))
        assert proposing.proposals(scaler, engine) == ()
