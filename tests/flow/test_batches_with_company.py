"""Groups in a batch, work with affinities beside a batch, and batches in a journal.

Rule: in a batch, too, a group is placed whole or not at all. What the graph cannot express is decided after the batch.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from stead.codec import dumps
from stead.engine.decisions import BatchDecided, Decision, GroupPlaced
from stead.engine.engine import Engine
from stead.engine.facts import (
    AskEnded,
    AskLost,
    AskSubmitted,
    ClockAdvanced,
    Fact,
    GroupEnded,
    GroupSubmitted,
    NodeJoined,
    NodeLeft,
)
from stead.engine.settings import Settings, Unscheduled
from stead.errors import Invalid
from stead.journal import Diverged, Journal, replay
from stead.language.asks import Ask, Group, PolicyName, Preference, Spread, Strategy
from tests.behaviour import (
    all_of,
    apart,
    apart_from_app,
    ask,
    decide_after,
    fill,
    free_of,
    group,
    near,
    near_app,
    node,
    on,
    place,
    placements,
    reported,
    run,
    submit,
    taint,
)
from tests.behaviour.test_engine_is_deterministic import in_another_process
from tests.flow.outcomes import batch_of, flow_cluster, with_solver

IN_BATCHES = [policy for policy in PolicyName if policy.in_batches]


def flow(id: str, cpu: float = 1, **rest: Any) -> Ask:
    return ask(id, cpu, **{"policy": "flow", **rest})


def gang(id: str, count: int, cpu: float = 1, policy: str = "flow", **rest: Any) -> Group:
    return group(id, *(flow(f"{id}.{index}", cpu, policy=policy) for index in range(count)), **rest)


def groups_placed(decisions: list[Decision]) -> list[str]:
    return [each.group for each in decisions if isinstance(each, GroupPlaced)]


@pytest.mark.parametrize("policy", IN_BATCHES)
class TestGroups:
    def test_a_group_that_fits_is_placed_whole(self, policy: str) -> None:
        engine = flow_cluster(node("a", 2), node("b", 2))
        decisions = submit(engine, gang("g", 4, policy=policy))
        assert groups_placed(decisions) == ["g"]
        assert Counter(engine.placed.values()) == {"a": 2, "b": 2}
        assert engine.waiting == ()

    def test_a_group_that_does_not_fit_holds_nothing_and_others_have_the_room(self, policy: str) -> None:
        engine = flow_cluster(node("a", 2), node("b", 2))
        decisions = submit(engine, gang("g", 5, policy=policy), *(flow(f"w{n}", policy=policy) for n in range(4)))
        assert set(placements(decisions)) == {"w0", "w1", "w2", "w3"}
        assert engine.waiting == ("g",)
        assert "g" in reported(decisions)
        assert free_of(engine) == {"a": 0, "b": 0}

    def test_members_count_in_the_batch_and_those_left_out_in_its_cost(self, policy: str) -> None:
        engine = flow_cluster(node("a", 2), node("b", 2))
        decisions = submit(engine, gang("g", 5, policy=policy), *(flow(f"w{n}", policy=policy) for n in range(4)))
        batch = batch_of(decisions, policy)
        assert (batch.asks, batch.placed) == (9, 4)
        assert batch.cost // 100_000_000 == 5
        assert batch.bound is None or batch.bound <= batch.cost
        if policy == "flow":
            assert batch.cost == 5 * 100_000_000 + 4 * 1000 + 2 * (100 + 200)

    def test_of_two_groups_that_fit_alone_but_not_together_one_is_placed_whole(self, policy: str) -> None:
        engine = flow_cluster(node("a", 2), node("b", 1))
        decisions = submit(engine, gang("g", 2, policy=policy), gang("h", 2, policy=policy))
        (winner,) = groups_placed(decisions)
        assert set(engine.placed) == {f"{winner}.0", f"{winner}.1"}
        assert len(engine.waiting) == 1

    def test_groups_in_each_others_way_never_all_wait(self, policy: str) -> None:
        engine = flow_cluster(*(node(f"n{n}", 3) for n in range(3)))
        decisions = submit(engine, *(gang(f"g{n}", 4, policy=policy) for n in range(5)))
        assert len(groups_placed(decisions)) == 2
        assert len(engine.placed) == 8

    def test_a_group_that_waits_is_placed_when_there_is_room(self, policy: str) -> None:
        engine = flow_cluster(node("a", 2))
        fill(engine, "a", 1, "filler")
        submit(engine, gang("g", 2, policy=policy))
        assert groups_placed(decide_after(engine, AskEnded("filler"))) == ["g"]

    def test_a_group_of_higher_priority_comes_before_single_asks(self, policy: str) -> None:
        engine = flow_cluster(node("a", 2), node("b", 1))
        singles = [flow(f"w{n}", policy=policy) for n in range(3)]
        decisions = submit(engine, *singles, gang("g", 3, policy=policy, priority=1))
        assert groups_placed(decisions) == ["g"]
        assert set(engine.waiting) == {"w0", "w1", "w2"}

    def test_groups_that_tear_each_other_do_not_leave_their_room_to_lower_priorities(self, policy: str) -> None:
        engine = flow_cluster(node("a", 3), node("b", 2))
        rivals = [gang(id, 3, policy=policy, priority=1) for id in ("g", "h", "i")]
        decisions = submit(engine, *(flow(f"w{n}", policy=policy) for n in range(5)), *rivals)
        assert len(groups_placed(decisions)) == 1
        assert len(engine.placed) == 5

    def test_unequal_members_are_placed_together_too(self, policy: str) -> None:
        engine = flow_cluster(node("a", 4, memory=100), node("b", 2, memory=400))
        members = (flow("m0", 3, policy=policy), flow("m1", 1, memory=300, policy=policy), flow("m2", 1, policy=policy))
        assert groups_placed(submit(engine, group("g", *members))) == ["g"]
        assert engine.placed["m0"] == "a" and engine.placed["m1"] == "b"

    def test_hard_rules_hold_for_members(self, policy: str) -> None:
        engine = flow_cluster(node("a", 4, taints=[taint("gpu")]), node("b", 1), node("c", 1, draining=True))
        assert place(engine, gang("g", 2, policy=policy)) == [None, None]

    def test_another_alternative_is_taken_where_the_first_does_not_fit(self, policy: str) -> None:
        engine = flow_cluster(node("a", 2))
        fallback = (flow("f0", policy=policy), flow("f1", policy=policy))
        decisions = submit(engine, gang("g", 3, policy=policy, fallbacks=(fallback,)))
        assert [each.alternative for each in decisions if isinstance(each, GroupPlaced)] == [1]
        assert set(engine.placed) == {"f0", "f1"}

    @pytest.mark.parametrize("strategy", [Strategy.STRICT_PACK, Strategy.STRICT_SPREAD])
    def test_a_strict_group_is_placed_strictly(self, policy: str, strategy: Strategy) -> None:
        engine = flow_cluster(node("a", 4), node("b", 4))
        places = place(engine, gang("g", 2, policy=policy, strategy=strategy), flow("w", policy=policy))
        assert None not in places
        assert len(set(places[:2])) == (1 if strategy is Strategy.STRICT_PACK else 2)

    def test_a_group_with_a_topology_holds_to_it(self, policy: str) -> None:
        zones = [node(f"n{n}", 1, labels={"zone": zone}) for n, zone in enumerate("aabb")]
        engine = flow_cluster(*zones)
        together = gang("g", 2, policy=policy, topology=(("zone", Strategy.STRICT_PACK),))
        places = place(engine, together, flow("w", policy=policy))
        assert set(places[:2]) in ({"n0", "n1"}, {"n2", "n3"})

    def test_a_member_that_loses_its_place_is_placed_again_alone(self, policy: str) -> None:
        engine = flow_cluster(node("a", 2), node("b", 2))
        submit(engine, gang("g", 2, policy=policy))
        before = dict(engine.placed)
        decisions = decide_after(engine, AskLost("g.0"))
        assert set(placements(decisions)) == {"g.0"}
        assert engine.placed["g.1"] == before["g.1"]

    def test_a_group_that_ends_gives_everything_back(self, policy: str) -> None:
        engine = flow_cluster(node("a", 2), node("b", 2))
        submit(engine, gang("g", 4, policy=policy), flow("w", policy=policy))
        assert placements(decide_after(engine, GroupEnded("g"))) == {"w": engine.placed["w"]}
        assert sum(free_of(engine).values()) == 3


class TestWorkThatLooksAtOtherWork:
    def test_near_is_decided_after_the_batch_and_so_finds_what_it_wants(self) -> None:
        engine = flow_cluster(node("a", 4), node("b", 4))
        follower = flow("follower", affinities=all_of(near("leader")))
        decisions = submit(engine, follower, flow("leader", selector=on("node_id", "b")), flow("w"))
        assert placements(decisions)["follower"] == "b"
        assert list(placements(decisions))[-1] == "follower"
        assert batch_of(decisions).asks == 2

    @pytest.mark.parametrize("policy", IN_BATCHES)
    def test_apart_holds_against_the_batch(self, policy: str) -> None:
        engine = flow_cluster(node("a", 4), node("b", 4))
        webs = [flow(f"web{n}", policy=policy, labels={"app": "web"}, selector=on("node_id", "a")) for n in range(2)]
        shy = [flow(f"shy{n}", policy=policy, affinities=all_of(apart_from_app("web"))) for n in range(2)]
        assert place(engine, *shy, *webs) == ["b", "b", "a", "a"]

    @pytest.mark.parametrize("policy", IN_BATCHES)
    def test_asks_apart_from_each_other_have_a_node_each_and_the_rest_waits(self, policy: str) -> None:
        engine = flow_cluster(node("a", 4), node("b", 4), node("c", 4))
        lonely = [
            flow(f"w{n}", policy=policy, labels={"app": "db"}, affinities=all_of(apart_from_app("db")))
            for n in range(4)
        ]
        places = place(engine, *lonely)
        assert sorted(map(str, places)) == ["None", "a", "b", "c"]

    def test_a_batch_stays_out_of_the_domain_of_work_that_keeps_it_away(self) -> None:
        engine = flow_cluster(node("a", 4), node("b", 2))
        run(engine, ask("guard", affinities=all_of(apart_from_app("web", symmetric=True))), "a")
        webs = [flow(f"w{n}", labels={"app": "web"}) for n in range(3)]
        assert sorted(map(str, place(engine, *webs))) == ["None", "b", "b"]

    def test_work_that_keeps_others_away_and_those_others_in_one_batch(self) -> None:
        engine = flow_cluster(node("a", 4), node("b", 4))
        guards = [flow("guard", affinities=all_of(apart_from_app("web", symmetric=True)))]
        webs = [flow(f"w{n}", labels={"app": "web"}) for n in range(4)]
        where = dict(zip(["guard", "w0", "w1", "w2", "w3"], place(engine, *guards, *webs), strict=True))
        assert where["guard"] is None or where["guard"] not in {where[f"w{n}"] for n in range(4)}

    def test_spread_is_even(self) -> None:
        engine = flow_cluster(*(node(f"n{n}", 4, labels={"zone": zone}) for n, zone in enumerate("aab")))
        even = Spread("zone", on("app", "web"))
        webs = [flow(f"w{n}", labels={"app": "web"}, spreads=(even,)) for n in range(6)]
        places = place(engine, *webs, flow("other", selector=on("node_id", "n0")))
        zones = Counter("b" if each == "n2" else "a" for each in places[:6])
        assert None not in places
        assert zones == {"a": 3, "b": 3}

    def test_a_preference_for_other_work_is_honoured(self) -> None:
        engine = flow_cluster(node("a", 8), node("b", 8))
        run(engine, ask("cache", 1, labels={"app": "cache"}), "a")
        likes = (Preference(near_app("cache"), 100),)
        assert place(engine, flow("w0", prefers=likes), flow("w1")) == ["a", "b"]

    def test_a_member_that_looks_at_other_work_goes_with_its_group_and_holds(self) -> None:
        engine = flow_cluster(node("a", 2), node("b", 2))
        members = (flow("m0", labels={"app": "db"}), flow("m1", affinities=all_of(apart("m0"))))
        places = place(engine, group("g", *members), flow("w"))
        assert None not in places and places[0] != places[1]


def steps() -> list[list[Fact]]:
    nodes = [node(f"n{n}", 4, memory=400, GPU=n % 3, labels={"zone": "ab"[n % 2]}) for n in range(5)]
    mixed = [
        ask(
            f"w{n}",
            (1, 2, 0.5)[n % 3],
            gpu=(0, 0, 0, 0.5)[n % 4],
            memory=(0, 100)[n % 2],
            policy=IN_BATCHES[n % 3],
            priority=n % 2,
            selector=on("zone", *("ab", "a")[n % 2]),
            prefers=(Preference(on("node_id", "n1"), 1 + n),),
        )
        for n in range(18)
    ]
    return [
        [ClockAdvanced(1), *map(NodeJoined, nodes)],
        [*map(AskSubmitted, mixed)],
        [
            ClockAdvanced(30),
            GroupSubmitted(gang("g", 3)),
            AskSubmitted(flow("follower", affinities=all_of(near("g.0")))),
        ],
        [ClockAdvanced(200), NodeLeft("n1"), AskEnded("w3"), AskLost("w4")],
        [ClockAdvanced(300), AskEnded("w0"), AskEnded("w6"), AskSubmitted(flow("late"))],
    ]


def written(path: Path, settings: Settings) -> list[list[Decision]]:
    engine, decided = with_solver(settings), list[list[Decision]]()
    with Journal.open(path, settings) as journal:
        for facts in steps():
            decided.append(decide_after(engine, *facts))
            journal.append(facts, decided[-1])
    return decided


class TestJournal:
    @pytest.mark.parametrize("unscheduled", list(Unscheduled))
    def test_batches_replay_byte_for_byte(self, tmp_path: Path, unscheduled: Unscheduled) -> None:
        path = tmp_path / "run.journal"
        decided = written(path, Settings(unscheduled=unscheduled))
        assert any(isinstance(each, BatchDecided) for decisions in decided for each in decisions)
        with Journal.reading(path) as journal:
            replay(journal)

    def test_a_batch_that_came_to_something_else_is_a_difference(self, tmp_path: Path) -> None:
        path = tmp_path / "run.journal"
        engine = with_solver(Settings())
        facts: list[Fact] = [NodeJoined(node("a", 1)), AskSubmitted(flow("w"))]
        batches = [each for each in decide_after(engine, *facts) if not isinstance(each, BatchDecided)]
        with Journal.open(path, Settings()) as journal:
            journal.append(facts, batches)
        with Journal.reading(path) as journal, pytest.raises(Diverged):
            replay(journal)


def told_again() -> str:
    """What an engine decides in all the steps, as JSON."""
    engine = with_solver(Settings())
    return "\n".join(str(dumps(decide_after(engine, *facts))) for facts in steps())


@pytest.mark.long
def test_batches_are_the_same_for_every_hash_seed() -> None:
    code = "from tests.flow.test_batches_with_company import told_again; print(told_again())"
    first, second = (in_another_process(code, seed) for seed in (0, 12345))
    assert b"BatchDecided" in first
    assert first == second


def test_a_group_of_flow_work_is_refused_without_a_solver() -> None:
    engine = Engine(Settings())
    engine.apply(NodeJoined(node("a", 4)))
    with pytest.raises(Invalid, match="flow"):
        decide_after(engine, GroupSubmitted(gang("g", 2)))
    assert placements(submit(engine, ask("plain", 1))) == {"plain": "a"}
