"""The simulated cluster: work runs for its duration, is lost with its node, and the same file gives the same run."""

from __future__ import annotations

from pathlib import Path

import pytest

from stead.codec import dumps
from stead.engine.decisions import Evicted, GroupPlaced, Placed, Refused
from stead.engine.explain.events import listed
from stead.engine.facts import AskEnded, GroupEnded
from stead.errors import Invalid
from stead.journal import Journal, replay
from stead.sim.cluster import Outcome, run
from stead.sim.report import summary, timeline_rows
from stead.sim.scenario import load, parse

ROOT = Path(__file__).parent.parent.parent
DEMO = ROOT / "scenarios" / "demo.yaml"


def timeline_of(outcome: Outcome) -> list[str]:
    """The timeline as text, without the start that every run has."""
    rows = [f"{moment} {words}" for moment, words in timeline_rows(outcome.timeline)]
    return [row for row in rows if not row.endswith((" joined", " submitted"))]


def test_work_ends_after_its_duration_and_makes_room() -> None:
    outcome = run(parse("nodes: {id: n, capacity: {CPU: 1}}\nwork: {id: w, count: 3, resources: {CPU: 1}, for: 10}"))
    assert [row for row in timeline_of(outcome) if "waiting" not in row] == [
        "0 s w-1 placed on n",
        "10 s w-1 ended",
        "10 s w-2 placed on n",
        "20 s w-2 ended",
        "20 s w-3 placed on n",
        "30 s w-3 ended",
    ]
    assert outcome.moment == 30.0
    assert not outcome.engine.placed


def test_a_run_stops_at_the_given_time() -> None:
    scenario = parse("until: 25\nnodes: {id: n, capacity: {CPU: 1}}\nwork: {id: w, resources: {CPU: 1}, for: 100}")
    assert run(scenario).moment == 25.0
    assert run(scenario, until=5.0).engine.placed == {"w": "n"}
    assert run(scenario, until=500.0).ended == ("w",)


def test_what_happens_at_the_end_time_still_happens() -> None:
    scenario = parse("nodes: {id: n, capacity: {CPU: 1}}\nwork: {id: w, resources: {CPU: 1}, for: 10}")
    assert run(scenario, until=10.0).ended == ("w",)


def test_a_node_that_leaves_takes_its_work_along_and_the_work_starts_again_elsewhere() -> None:
    text = """
    nodes: [{id: a, capacity: {CPU: 1}}, {id: b, capacity: {CPU: 1}, at: 50}]
    work: {id: w, resources: {CPU: 1}, for: 30}
    events: {at: 20, leave: a}
    """
    outcome = run(parse(text))
    assert [(h.moment, h.what) for h in outcome.timeline if isinstance(h.what, Placed | AskEnded)] == [
        (0.0, Placed("w", "a")),
        (50.0, Placed("w", "b")),
        (80.0, AskEnded("w")),
    ]


def test_evicted_work_waits_again_and_runs_its_whole_time() -> None:
    text = """
    nodes: {id: n, capacity: {CPU: 1}}
    work: {id: w, resources: {CPU: 1}, for: 30, tolerations: [{key: out, effect: NoExecute, operator: Exists, seconds: 5}]}
    events: [{at: 10, taint: n, taints: "out:NoExecute"}, {at: 12, drain: n}, {at: 40, untaint: n, key: out}, {at: 40, undrain: n}]
    """  # noqa: E501
    outcome = run(parse(text))
    happened = [(h.moment, type(h.what)) for h in outcome.timeline if isinstance(h.what, Placed | Evicted | AskEnded)]
    assert happened == [(0.0, Placed), (15.0, Evicted), (40.0, Placed), (70.0, AskEnded)]


def test_a_group_runs_as_one_and_starts_its_time_again_when_a_member_is_lost() -> None:
    text = """
    nodes: {id: n, count: 3, capacity: {CPU: 1}}
    groups: {id: g, bundles: [{CPU: 1}, {CPU: 1}], strategy: STRICT_SPREAD, for: 30}
    events: {at: 10, leave: n-1}
    """
    outcome = run(parse(text))
    happened = [(h.moment, h.what) for h in outcome.timeline if isinstance(h.what, GroupPlaced | GroupEnded)]
    assert happened == [
        (0.0, GroupPlaced("g", 0, (("g-1", "n-1"), ("g-2", "n-2")))),
        (10.0, GroupPlaced("g", 0, (("g-1", "n-3"),))),
        (40.0, GroupEnded("g")),
    ]
    assert not outcome.engine.placed


def test_work_that_is_pending_at_its_deadline_is_refused() -> None:
    outcome = run(parse("nodes: {id: n}\nwork: {id: w, resources: {CPU: 1}, at: 5, deadline: 10}"))
    assert [(h.moment, h.what.id) for h in outcome.timeline if isinstance(h.what, Refused)] == [(15.0, "w")]
    assert [refused.id for refused in outcome.refused] == ["w"]


def test_work_can_be_ended_and_lost_by_events() -> None:
    text = """
    nodes: {id: n, capacity: {CPU: 2}}
    work: [{id: a, resources: {CPU: 1}}, {id: b, resources: {CPU: 1}, for: 30}]
    events: [{at: 5, end: a}, {at: 10, lose: b}]
    """
    outcome = run(parse(text))
    assert timeline_of(outcome) == [
        "0 s a, b placed on n",
        "5 s a ended",
        "10 s b lost, pending again",
        "10 s b placed on n",
        "40 s b ended",
    ]


def test_a_run_that_does_not_advance_is_stopped_with_a_sentence() -> None:
    text = """
    nodes: {id: n, capacity: {CPU: 1}, taints: "out:NoExecute"}
    work: {id: w, resources: {CPU: 1}, tolerations: [{key: out, operator: Exists, seconds: 0}]}
    """
    with pytest.raises(Invalid, match="does not get past 0 s: work is placed and evicted forever"):
        run(parse(text))


def test_a_run_without_an_end_is_stopped_with_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stead.sim.cluster.STEPS_MAX", 50)
    text = """
    nodes: {id: n, capacity: {CPU: 1}, taints: "out:NoExecute"}
    work: {id: w, resources: {CPU: 1}, tolerations: [{key: out, operator: Exists, seconds: 9}]}
    """
    with pytest.raises(Invalid, match=r"does not end: .* for example until: 1h$"):
        run(parse(text))
    assert run(parse(text), until=2000.0).moment == 2000.0


def test_a_long_run_in_which_work_ends_is_not_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stead.sim.cluster.STEPS_MAX", 5)
    text = "nodes: {id: n, capacity: {CPU: 1}}\nwork: {id: w, count: 50, resources: {CPU: 1}, for: 10, deadline: 1h}"
    assert run(parse(text)).moment == 500.0


def test_a_run_ends_with_its_last_event_not_with_a_deadline_that_no_longer_matters() -> None:
    outcome = run(
        parse("nodes: {id: n, capacity: {CPU: 1}}\nwork: {id: w, resources: {CPU: 1}, deadline: 1h, for: 10}")
    )
    assert outcome.moment == 10.0


def test_a_run_does_not_wait_for_the_planned_end_of_work_that_has_ended() -> None:
    text = """
    nodes: {id: n, capacity: {CPU: 4}}
    work: {id: w, resources: {CPU: 1}, for: 1h}
    groups: {id: g, bundles: [{CPU: 1}], for: 2h}
    events: {at: 5, end: [w, g]}
    """
    outcome = run(parse(text))
    assert (outcome.moment, outcome.ended) == (5.0, ("w", "g"))
    assert "5 s w, g ended" in timeline_of(outcome)


def test_an_event_ends_a_group_with_all_its_members() -> None:
    text = """
    nodes: {id: n, capacity: {CPU: 2}}
    groups: {id: gang, bundles: [{CPU: 1}, {CPU: 1}]}
    work: {id: w, resources: {CPU: 2}, at: 1}
    events: {at: 5, end: gang}
    """
    outcome = run(parse(text))
    assert outcome.engine.placed == {"w": "n"}
    assert outcome.ended == ("gang",)


def test_a_group_that_loses_its_places_is_placed_again() -> None:
    text = """
    nodes: {id: n, capacity: {CPU: 2}}
    groups: {id: g, bundles: [{CPU: 1}, {CPU: 1}], fallback: {bundles: [{CPU: 2}]}, for: 10}
    events: {at: 5, lose: g}
    """
    placed = "g placed: g-1 on n, g-2 on n"
    assert timeline_of(run(parse(text))) == [
        f"0 s {placed}",
        "5 s g-1..2 lost, pending again",
        f"5 s {placed}",
        "15 s g ended",
    ]


def test_work_that_does_not_exist_neither_ends_nor_is_lost() -> None:
    text = """
    nodes: {id: n, capacity: {CPU: 1}}
    work: [{id: w, resources: {CPU: 1}, at: 10, for: 5}]
    events: [{at: 5, end: w}, {at: 5, lose: w}, {at: 20, end: w}, {at: 20, lose: w}]
    """
    outcome = run(parse(text))
    assert timeline_of(outcome) == ["10 s w placed on n", "15 s w ended"]
    assert outcome.ended == ("w",)


def test_a_scenario_too_large_for_the_machine_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def too_large(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr("stead.controller.Controller.step", too_large)
    with pytest.raises(Invalid, match="too large to simulate on this machine; use smaller counts and amounts"):
        run(parse("nodes: {id: n}"))


def test_an_empty_scenario_ends_at_once() -> None:
    outcome = run(parse("title: nothing"))
    assert summary(outcome) == "nothing at 0 s: 0 nodes; 0 asks placed, 0 waiting, 0 refused, 0 ended"


def test_the_same_file_gives_the_same_run_byte_for_byte(tmp_path: Path) -> None:
    runs = [run(load(DEMO)) for _ in range(2)]
    first, second = (dumps([happening.what for happening in outcome.timeline]) for outcome in runs)
    assert first == second


def test_a_journalled_run_replays_to_the_same_engine(tmp_path: Path) -> None:
    scenario = load(DEMO)
    with Journal.open(tmp_path / "demo.journal", scenario.settings) as journal:
        outcome = run(scenario, journal=journal)
        again = replay(journal)
    assert again.placed == outcome.engine.placed
    assert again.waiting == outcome.engine.waiting
    assert again.now <= outcome.moment


@pytest.mark.parametrize(
    ("ids", "shown"),
    [
        ([], ""),
        (["a"], "a"),
        (["a-1", "a-2", "a-3", "b"], "a-1..3, b"),
        (["a-1", "a-3", "a-4"], "a-1, a-3..4"),
        (["a-1", "b-2"], "a-1, b-2"),
        (["a-09", "a-10"], "a-09, a-10"),
        (["b", "a-9", "a-10", "c"], "b, a-9..10, c"),
    ],
)
def test_numbered_names_are_joined(ids: list[str], shown: str) -> None:
    assert listed(ids) == shown


def test_a_gang_with_a_minimum_runs_for_its_duration_from_its_first_members() -> None:
    text = """
    nodes: {id: n, capacity: {CPU: 3}}
    work: {id: busy, resources: {CPU: 1}, for: 5}
    groups: {id: g, bundles: {resources: {CPU: 1}, count: 3}, min_available: 2, for: 20}
    """
    assert [row for row in timeline_of(run(parse(text))) if "waiting" not in row] == [
        "0 s busy placed on n",
        "0 s g placed: g-1 on n, g-2 on n",
        "5 s busy ended",
        "5 s g placed: g-3 on n",
        "20 s g ended",
    ]


def test_a_gang_below_its_minimum_releases_its_nodes_after_its_time_out() -> None:
    text = """
    until: 3m
    nodes: [{id: n-1, capacity: {CPU: 2}}, {id: n-2, capacity: {CPU: 2}}]
    groups: {id: g, bundles: {resources: {CPU: 1}, count: 4}, timeout: 1m, for: 10m}
    work: {id: w, resources: {CPU: 2}, at: 30, for: 1m}
    events: {at: 10, leave: n-2}
    """
    assert [row for row in timeline_of(run(parse(text))) if "waiting" not in row] == [
        "0 s g placed: g-1 on n-1, g-2 on n-1, g-3 on n-2, g-4 on n-2",
        "10 s n-2 left",
        "70 s g released after its time-out, below its minimum: g-1..2",
        "70 s g-1..2 lost, pending again",
        "70 s w placed on n-1",
        "130 s w ended",
    ]


def test_work_of_a_higher_priority_evicts_work_of_a_lower_one_which_starts_again_later() -> None:
    text = """
        nodes: {id: n, capacity: {CPU: 2}}
        work:
          - {id: batch, count: 2, resources: {CPU: 1}, for: 100}
          - {id: urgent, resources: {CPU: 1}, for: 10, at: 20, priority: 5}
          - {id: equal, resources: {CPU: 1}, for: 10, at: 25}
    """
    assert [row for row in timeline_of(run(parse(text))) if "waiting" not in row] == [
        "0 s batch-1..2 placed on n",
        "20 s batch-2 evicted from n for urgent",
        "20 s batch-2 lost, pending again",
        "20 s urgent placed on n",
        "30 s urgent ended",
        "30 s batch-2 placed on n",
        "100 s batch-1 ended",
        "100 s equal placed on n",
        "110 s equal ended",
        "130 s batch-2 ended",
    ]


def test_a_group_evicts_as_much_as_it_needs_at_once_or_nothing() -> None:
    text = """
        until: 50
        nodes: {id: n, count: 2, capacity: {CPU: 2}}
        work: {id: batch, count: 2, resources: {CPU: 2}}
        groups:
          - {id: gang, bundles: {resources: {CPU: 2}, count: 2}, priority: 5, for: 10, at: 10}
          - {id: large, bundles: {resources: {CPU: 2}, count: 3}, priority: 9, for: 10, at: 30}
    """
    rows = timeline_of(run(parse(text)))
    assert [row for row in rows if "evicted" in row] == [
        "10 s batch-1 evicted from n-1 for gang-1",
        "10 s batch-2 evicted from n-2 for gang-2",
    ]
