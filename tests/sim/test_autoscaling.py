"""The `scaling` section of scenarios: what it means, and what a run with it launches, retires and spends."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from stead.engine.facts import NodeJoined
from stead.engine.scaling.decisions import LaunchEnded, NodeArrived, NodeLost, NodeRequested, NodeRetired
from stead.errors import Invalid
from stead.journal import Journal, replay
from stead.language.labels import Labels
from stead.language.nodes import NodeTemplate
from stead.language.resources import Resources
from stead.language.taints import Taint
from stead.planner.plans import Limits, Quota
from stead.planner.scaler import ScaleSettings
from stead.sim.cluster import Outcome, run
from stead.sim.report import as_json_text, as_text, timeline_rows
from stead.sim.scaling import Fault, FaultKind, Scaling
from stead.sim.scenario import load, parse
from tests.serving import BEGAN, simulated

SCENARIO = Path(__file__).parent.parent.parent / "scenarios" / "autoscaling.yaml"

ONE = """
work: {id: w, resources: {CPU: 1}, at: 10, for: 20m}
scaling:
  idle: 5m
  kinds:
    - {id: spot, capacity: {CPU: 4}, labels: {zone: a}, max: 2, price: 0.6, launch: 1m}
    - {id: normal, capacity: {CPU: 4}, max: 2, price: 1.2, launch: 2m}
"""


def decided(outcome: Outcome, kind: type) -> list[tuple[float, object]]:
    return [(each.moment, each.what) for each in outcome.timeline if isinstance(each.what, kind)]


def with_fault(fault: str) -> Outcome:
    return run(parse(f"{ONE}  faults: [{fault}]"))


def kinds_requested(outcome: Outcome) -> list[tuple[float, str]]:
    found = [(each.moment, each.what) for each in outcome.timeline]
    return [(moment, what.template.name) for moment, what in found if isinstance(what, NodeRequested)]


# What the section means.


def test_every_field_is_read() -> None:
    text = """
    scaling:
      kinds:
        - {id: gpu, capacity: {CPU: 8, GPU: 2}, labels: {zone: a}, taints: gpu=true,
           min: 1, max: 4, price: 8, launch: 3m}
        - {id: cpu, capacity: {CPU: 4}}
      quotas: {name: zone-a, labels: {zone: a}, nodes: 3, resources: {GPU: 6}}
      price_max: 20
      launches_per_minute: 5
      idle: 1m
      settle: 2s
      join: 3m
      retry: 4s
      retry_max: 5m
      stock_out: 6s
      faults:
        - {at: 2h, kind: gpu, fault: loss, count: 2}
        - {at: 1h, for: 30m, kind: [gpu, cpu], fault: stock-out}
    """
    gpu = NodeTemplate("gpu", Resources.of(CPU=8, GPU=2), Labels({"zone": "a"}), (Taint("gpu", "true"),), 1, 4, 8.0)
    assert parse(text).scaling == Scaling(
        (gpu, NodeTemplate("cpu", Resources.of(CPU=4), count_max=10)),
        ScaleSettings(60, 2, 180, 4, 300, 6, 5),
        Limits((Quota("zone-a", Labels({"zone": "a"}), 3, Resources.of(GPU=6)),), 20.0),
        {"gpu": 180.0, "cpu": 60.0},
        (
            Fault(3600.0, "gpu", FaultKind.STOCK_OUT, 5400.0),
            Fault(3600.0, "cpu", FaultKind.STOCK_OUT, 5400.0),
            Fault(7200.0, "gpu", FaultKind.LOSS, float("inf"), 2),
        ),
    )


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ("{}", "scaling.kinds: is missing"),
        (
            "{kinds: [{id: a, capacity: {CPU: 1}, min: 3, max: 2}]}",
            "scaling.kinds[0].min: must be at most max, which is 2",
        ),
        ("{kinds: [{id: a, max: -1}]}", "scaling.kinds[0].max: must be from 0 to"),
        ("{kinds: [{id: a, price: free}]}", "scaling.kinds[0].price: must be a number such as 2.5"),
        ("{kinds: [{id: a}, {id: a}]}", "scaling.kinds[1].id: the id 'a' is already used by scaling.kinds[0].id"),
        ("{kinds: [{id: a, cpus: 4}]}", "scaling.kinds[0].cpus: is not a known field"),
        ("{kinds: [{id: a}], idle: soon}", "scaling.idle: must be a duration"),
        ("{kinds: [{id: a}], quotas: [{name: q}]}", "scaling.quotas[0]: limits nothing; give nodes: 10"),
        (
            "{kinds: [{id: a}], faults: [{fault: fire}]}",
            "scaling.faults[0].fault: must be one of stock-out, fail, hang",
        ),
        ("{kinds: [{id: a}], faults: [{kind: b, fault: hang}]}", "scaling.faults[0].kind: there is no kind 'b'"),
        (
            "{kinds: [{id: a}], faults: [{fault: hang, count: 1}]}",
            "scaling.faults[0].count: is only for the fault 'loss'",
        ),
        ("{kinds: [{id: a}], faults: [{fault: loss, for: 1}]}", "scaling.faults[0].for: nodes are lost at one moment"),
    ],
)
def test_a_mistake_is_one_sentence_that_names_its_place(section: str, message: str) -> None:
    with pytest.raises(Invalid) as refused:
        parse(f"scaling: {section}")
    assert message in str(refused.value)


# What a run does.


def test_a_node_is_launched_for_pending_work_and_retired_when_it_is_idle() -> None:
    outcome = run(parse(ONE))
    assert kinds_requested(outcome) == [(11.0, "spot")]
    assert decided(outcome, NodeArrived) == [(71.0, NodeArrived("launch-1", "spot", "spot-1"))]
    assert decided(outcome, NodeRetired) == [(71 + 1200 + 300 + 1.0, NodeRetired("launch-1", "spot", "spot-1"))]
    assert outcome.engine.nodes == {}
    (spot, normal) = outcome.kinds
    assert (spot.launched, spot.retired, spot.nodes) == (1, 1, 0)
    assert spot.spent == pytest.approx(0.6 * (1572 - 11) / 3600)
    assert normal.spent == 0


def test_the_minimum_is_launched_at_once_and_stays() -> None:
    outcome = run(parse("scaling: {kinds: {id: a, capacity: {CPU: 1}, min: 2}}"))
    assert kinds_requested(outcome) == [(0.0, "a")] * 2
    assert list(outcome.engine.nodes) == ["a-1", "a-2"]


def test_launched_nodes_get_ids_that_no_node_of_the_scenario_has() -> None:
    outcome = run(parse("nodes: {id: a-1}\nscaling: {kinds: {id: a, capacity: {CPU: 1}, min: 1}}"))
    assert list(outcome.engine.nodes) == ["a-1", "a-2"]


@pytest.mark.parametrize(
    ("fault", "ended", "normal_at"),
    [
        ("{kind: spot, fault: stock-out}", 11.0, 12.0),
        ("{kind: spot, fault: fail}", 11.0, 12.0),
        ("{kind: spot, fault: hang}", 611.0, 612.0),
    ],
)
def test_another_kind_takes_the_work_if_launches_fail(fault: str, ended: float, normal_at: float) -> None:
    outcome = with_fault(fault)
    assert next(moment for moment, _ in decided(outcome, LaunchEnded)) == ended
    assert (normal_at, "normal") in kinds_requested(outcome)
    assert outcome.ended == ("w",)


def test_a_node_that_joins_without_its_labels_is_ended_and_another_kind_takes_the_work() -> None:
    text = ONE.replace("{CPU: 1}, at", "{CPU: 1}, selector: zone = a, at").replace(
        "{id: normal, capacity: {CPU: 4},", "{id: normal, capacity: {CPU: 4}, labels: {zone: a},"
    )
    outcome = run(parse(f"{text}  faults: [{{kind: spot, fault: incomplete}}]"))
    (first, *_) = decided(outcome, LaunchEnded)
    assert isinstance(first[1], LaunchEnded)
    assert first[1].why == "it joined without the label zone=a"
    assert (102.0, "normal") in kinds_requested(outcome)
    assert outcome.ended == ("w",)


def test_a_node_that_is_taken_back_is_lost_and_its_work_gets_another() -> None:
    outcome = with_fault("{at: 5m, kind: spot, fault: loss}")
    assert decided(outcome, NodeLost) == [(300.0, NodeLost("launch-1", "spot", "spot-1"))]
    assert kinds_requested(outcome) == [(11.0, "spot"), (301.0, "spot")]
    assert outcome.ended == ("w",)


def test_the_first_choice_is_launched_again_when_it_is_in_stock_again() -> None:
    text = ONE.replace("id: w,", "id: w, count: 2, every: 30m,").replace("{CPU: 1}", "{CPU: 4}")
    outcome = run(parse(f"{text}  faults: [{{kind: spot, fault: stock-out, for: 10m}}]"))
    assert kinds_requested(outcome) == [(11.0, "spot"), (12.0, "normal"), (1811.0, "spot")]


def test_a_run_ends_although_no_launch_ever_succeeds() -> None:
    outcome = run(
        parse(
            "work: {id: w, resources: {CPU: 1}}\nscaling: {kinds: {id: a, capacity: {CPU: 1}}, faults: {fault: fail}}"
        )
    )
    assert outcome.engine.waiting == ("w",)
    assert len(decided(outcome, LaunchEnded)) == 10


def test_the_same_file_gives_the_same_run_and_its_journal_the_same_engine(tmp_path: Path) -> None:
    scenario = load(SCENARIO)
    with Journal.open(tmp_path / "run.journal", scenario.settings) as journal:
        outcome = run(scenario, journal=journal)
        assert replay(journal).nodes == outcome.engine.nodes
    assert run(scenario).timeline == outcome.timeline


# What is shown.


def test_the_report_shows_what_was_launched_and_spent() -> None:
    outcome = with_fault("{at: 5m, kind: spot, fault: loss}")
    lines = as_text(outcome).splitlines()
    table = lines.index("KIND    NODES  LAUNCHED  FAILED  RETIRED  LOST  SPENT")
    assert lines[table + 1].split() == ["spot", "0", "2", "0", "1", "1", f"{outcome.kinds[0].spent:.2f}"]
    assert lines[table + 3].split() == ["all", f"{outcome.kinds[0].spent:.2f}"]
    rows = [f"{when} {what}" for when, what in timeline_rows(outcome.timeline)]
    assert "11 s launch-1 launching a node of kind spot for 1 piece of work" in rows
    assert "300 s spot-1 launch-1 of kind spot is gone, and nobody retired it" in rows
    (spot, normal) = json.loads(as_json_text(outcome))["scaling"]
    assert spot == {
        "kind": "spot",
        "nodes": 0,
        "launched": 2,
        "failed": 0,
        "retired": 1,
        "lost": 1,
        "spent": outcome.kinds[0].spent,
    }
    assert normal["launched"] == 0


def test_a_scenario_without_the_section_shows_nothing_of_it() -> None:
    outcome = run(parse("nodes: {id: n}"))
    assert "KIND" not in as_text(outcome)
    assert "scaling" not in json.loads(as_json_text(outcome))


def test_a_served_scenario_goes_on_scaling_and_shows_its_autoscaler() -> None:
    with simulated(ONE, until=71.0, speed=10_000.0) as desk:
        view, deadline = desk.scale(), time.monotonic() + 60
        while view is not None and not view.tallied.retired and time.monotonic() < deadline:
            view = desk.scale()
        assert view is not None
        assert [(kind.name, kind.price) for kind in view.kinds] == [("spot", 0.6), ("normal", 1.2)]
        assert (view.tallied.launched, view.tallied.retired, view.nodes) == (1, 1, ())
        assert any("is drained and ended" in event.text for event in desk.events(0, 1000))


def test_a_served_scenario_shows_launches_with_times_on_the_wall_clock() -> None:
    with simulated(ONE, until=30.0) as desk:
        view = desk.scale()
    assert view is not None
    assert [(each.id, each.since, each.deadline) for each in view.launches] == [("launch-1", BEGAN + 11, BEGAN + 611)]


def test_nodes_join_as_their_kind_describes() -> None:
    outcome = run(load(SCENARIO))
    joined = [each.what.node for each in outcome.timeline if isinstance(each.what, NodeJoined)]
    gpu = next(node for node in joined if node.id == "gpu-1")
    assert (gpu.labels, gpu.taints) == (Labels({"zone": "b"}), (Taint("gpu", "true"),))
