"""Scenarios whose work is decided in batches."""

from __future__ import annotations

import pytest

from stead import solver
from stead.engine.decisions import BatchDecided, Moved
from stead.engine.facts import AskSubmitted
from stead.engine.settings import Unscheduled
from stead.errors import Invalid
from stead.journal import Journal, replay
from stead.language.asks import PolicyName
from stead.sim.cluster import Outcome, run
from stead.sim.report import as_text
from stead.sim.scenario import Scenario, parse
from tests.serving import simulated

NESTED = """
nodes:
  - {id: plain, count: 2, capacity: {CPU: 4}}
  - {id: fast, count: 2, capacity: {CPU: 4}, labels: {disk: ssd}}
work:
  - {id: anywhere, count: 8, resources: {CPU: 1}, for: 10s}
  - {id: picky, count: 8, resources: {CPU: 1}, selector: disk=ssd, for: 10s}
"""

GAPS = """
until: 30s
settings: {policy: flow-pack, moves: %s}
nodes: [{id: n, count: 2, capacity: {CPU: 8}}]
work:
  - {id: filler-1, resources: {CPU: 6}, selector: node_id=n-1, for: 10s}
  - {id: filler-2, resources: {CPU: 5}, selector: node_id=n-2, for: 10s}
  - {id: small, count: 2, at: 1s, every: 1s, resources: {CPU: 2}, for: 1h}
  - {id: last, at: 20s, resources: {CPU: 1}}
  - {id: big, at: 25s, resources: {CPU: 8}}
"""


def policies(scenario: Scenario) -> set[PolicyName]:
    return {fact.ask.policy for _, fact in scenario.moments if isinstance(fact, AskSubmitted)}


def decisions_of(outcome: Outcome, kind: type) -> list[object]:
    return [happening.what for happening in outcome.timeline if isinstance(happening.what, kind)]


class TestThePolicyOfWorkThatSaysNone:
    def test_is_that_of_the_settings(self) -> None:
        assert policies(parse("settings: {policy: flow}\nwork: [{id: a}]")) == {PolicyName.FLOW}

    def test_is_that_of_the_caller_before_that(self) -> None:
        assert policies(parse("settings: {policy: flow}\nwork: [{id: a}]", policy=PolicyName.PACK)) == {PolicyName.PACK}

    def test_leaves_work_with_a_policy_alone(self) -> None:
        assert policies(parse("settings: {policy: flow}\nwork: [{id: a, policy: pack}]")) == {PolicyName.PACK}

    def test_is_that_of_members_of_groups_too(self) -> None:
        scenario = parse("settings: {policy: flow}\ngroups: [{id: g, bundles: [{CPU: 1}]}]")
        assert scenario.moments[0][1].group.alternatives[0][0].policy is PolicyName.FLOW  # type: ignore[union-attr]

    @pytest.mark.parametrize(
        ("settings", "error"),
        [
            ("{policy: flwo}", "settings.policy: policy 'flwo' is unknown (did you mean 'flow'?)"),
            ("{unscheduled: sized}", "settings.unscheduled: unscheduled 'sized' is unknown (did you mean 'size'?)"),
            ("{moves: -1}", "settings.moves: must be at least 0, for example 3, not -1"),
            ("{moves: many}", "settings.moves: must be a whole number"),
        ],
    )
    def test_nonsense_is_refused_with_its_place(self, settings: str, error: str) -> None:
        with pytest.raises(Invalid) as caught:
            parse(f"settings: {settings}")
        assert str(caught.value).startswith(error)

    def test_without_the_solver_it_is_refused_with_its_place(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(solver, "found", lambda: None)
        with pytest.raises(Invalid, match=r"work\[0\].policy: .*pip install 'stead\[flow\]'"):
            parse("work: [{id: a, policy: flow}]")


class TestRuns:
    def test_flow_places_all_work_where_one_at_a_time_does_not(self) -> None:
        waiting = {policy: len(run(parse(NESTED, policy=policy), until=5.0).engine.waiting) for policy in PolicyName}
        assert waiting[PolicyName.HYBRID] == waiting[PolicyName.SPREAD] == 4
        assert waiting[PolicyName.FLOW] == waiting[PolicyName.FLOW_PACK] == waiting[PolicyName.FLOW_FGD] == 0

    def test_the_timeline_shows_how_good_a_batch_is(self) -> None:
        text = as_text(run(parse(NESTED, policy=PolicyName.FLOW)))
        assert "flow placed 16 of 16 together, at cost 20,000 (optimal)" in text

    def test_what_did_not_fit_is_in_the_batch_of_whatever_makes_room(self) -> None:
        crowded = NESTED.replace("count: 8, resources: {CPU: 1}, selector", "count: 20, resources: {CPU: 1}, selector")
        outcome = run(parse(crowded, policy=PolicyName.FLOW))
        batches = decisions_of(outcome, BatchDecided)
        assert [(each.asks, each.placed) for each in batches] == [(28, 16), (12, 8), (4, 4)]  # type: ignore[attr-defined]

    def test_a_journal_of_batches_replays(self, tmp_path: object) -> None:
        scenario = parse(NESTED, policy=PolicyName.FLOW)
        with Journal.open(f"{tmp_path}/journal", scenario.settings) as journal:
            outcome = run(scenario, journal=journal)
            assert replay(journal).placed == outcome.engine.placed

    def test_settings_reach_the_engine(self) -> None:
        settings = run(parse("settings: {unscheduled: age, moves: 2}")).engine.settings
        assert (settings.unscheduled, settings.moves) == (Unscheduled.AGE, 2)


class TestMoves:
    def test_work_moves_if_the_scenario_allows_it_and_keeps_running(self) -> None:
        outcome = run(parse(GAPS % 4))
        assert decisions_of(outcome, Moved) == [Moved("small-2", "n-2", "n-1", 380)]
        assert outcome.engine.placed["small-2"] == "n-1"
        assert "small-2" not in outcome.ended

    def test_room_that_a_move_made_is_room(self) -> None:
        assert run(parse(GAPS % 4)).engine.placed["big"] == "n-2"
        assert run(parse(GAPS % 0)).engine.waiting == ("big",)

    def test_work_that_moved_ends_when_it_would_have_ended(self) -> None:
        outcome = run(parse(GAPS % 4), until=4000.0)
        assert "small-2" in outcome.ended
        assert outcome.engine.free("n-1")["CPU"] == 70_000


def test_a_batch_is_an_event_of_its_own_and_no_placement() -> None:
    with simulated(f"settings: {{policy: flow}}\n{NESTED}", until=5.0) as desk:
        events = desk.events(0, 1000)
    assert [(each.subject, each.text) for each in events if each.kind == "batch"] == [
        ("flow", "placed 16 of 16 together, at cost 20,000 (optimal)")
    ]
    assert {each.subject for each in events if each.kind == "placed"} == {
        f"{name}-{n}" for name in ("anywhere", "picky") for n in range(1, 9)
    }
