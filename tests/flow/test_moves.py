"""Running work that would cost less elsewhere: always proposed, moved only if the cluster can move work."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from stead.engine.decisions import Decision, GroupPlaced, Moved, Placed
from stead.engine.engine import Engine
from stead.engine.facts import (
    AskEnded,
    AskRunning,
    AskSubmitted,
    Fact,
    GroupSubmitted,
    NodeDrained,
    NodeJoined,
    NodeTainted,
)
from stead.engine.settings import Settings
from stead.language.asks import Ask, Group, PolicyName
from stead.language.taints import Effect, Taint
from tests.behaviour import all_of, ask, near, near_app, node, on, tolerates
from tests.flow.outcomes import with_solver

PACK, SPREAD, FGD = PolicyName.FLOW_PACK, PolicyName.FLOW, PolicyName.FLOW_FGD


def running(*facts: Fact, moves: int = 0, cpus: tuple[int, ...] = (8, 8)) -> Engine:
    engine = with_solver(Settings(patience=None, moves=moves))
    engine.apply(*(NodeJoined(node(f"n{n}", cpu)) for n, cpu in enumerate(cpus)), *facts)
    return engine


def runs(id: str, where: str, cpu: float = 2, policy: PolicyName = PACK, **rest: Any) -> AskRunning:
    return AskRunning(replace(ask(id, cpu, **rest), policy=policy), where)


def moved(decisions: list[Decision]) -> list[tuple[str, str, str]]:
    return [(each.ask, each.source, each.target) for each in decisions if isinstance(each, Moved)]


class TestProposals:
    def test_packing_moves_the_last_piece_off_a_node_that_others_could_do_without(self) -> None:
        engine = running(runs("a", "n0", 4), runs("b", "n1"))
        assert [(each.ask, each.source, each.target) for each in engine.moves(PACK)] == [("b", "n1", "n0")]

    def test_spreading_moves_work_from_the_fullest_node_to_the_emptiest(self) -> None:
        engine = running(*(runs(f"w{n}", "n0", policy=SPREAD) for n in range(3)))
        assert [each.target for each in engine.moves(SPREAD)] == ["n1"]

    def test_what_a_move_gains_is_what_its_place_costs_more_than_the_new_one(self) -> None:
        engine = running(runs("a", "n0", 4), runs("b", "n1"))
        # Without b, n1 has 1000 thousandths of a node left, and n0 has 500.
        assert [each.gain for each in engine.moves(PACK)] == [500]

    def test_nothing_has_moved_when_moves_are_only_proposed(self) -> None:
        engine = running(runs("a", "n0", 4), runs("b", "n1"))
        engine.moves(PACK)
        assert engine.placed == {"a": "n0", "b": "n1"}
        assert engine.free("n1")["CPU"] == 60_000

    def test_each_move_counts_on_those_before_it(self) -> None:
        engine = running(*(runs(f"w{n}", f"n{n}", 3) for n in range(4)), cpus=(8, 8, 8, 8))
        targets = [each.target for each in engine.moves(PACK)]
        assert len(targets) == 2
        assert len(set(targets)) == 2  # two of three CPUs fill a node of eight

    def test_at_most_the_requested_number(self) -> None:
        engine = running(*(runs(f"w{n}", f"n{n}", 1) for n in range(6)), cpus=(8,) * 6)
        assert len(engine.moves(PACK, 2)) == 2
        assert len(engine.moves(PACK)) == 5

    def test_shares_of_devices_are_moved_together(self) -> None:
        engine = with_solver(Settings(patience=None))
        engine.apply(*(NodeJoined(node(f"n{n}", 8, GPU=2)) for n in range(2)))
        shared = [replace(Ask.of(f"s{n}", {"CPU": 1, "GPU": 0.5}), policy=FGD) for n in range(2)]
        whole = replace(Ask.of("whole", {"CPU": 1, "GPU": 2}), policy=FGD)
        engine.apply(*(AskSubmitted(each) for each in (*shared, whole)))
        engine.decide()
        engine.apply(*(AskEnded(each.id) for each in (*shared, whole)))
        engine.apply(*(AskRunning(each, f"n{n}") for n, each in enumerate(shared)))
        assert len(engine.moves(FGD)) == 1


class TestWhoStays:
    @pytest.mark.parametrize(
        "facts",
        [
            pytest.param([runs("b", "n1", policy=PolicyName.PACK)], id="work of another policy"),
            pytest.param([runs("b", "n1", policy=SPREAD)], id="work of another batch policy"),
            pytest.param(
                [runs("b", "n1", affinities=all_of(near_app("x")), labels={"app": "x"})],
                id="work near other work",
            ),
            pytest.param([runs("b", "n1", selector=on("node_id", "n1"))], id="work that may go nowhere else"),
            pytest.param([runs("b", "n1"), NodeTainted("n0", Taint("t"))], id="work that the other node repels"),
            pytest.param([runs("b", "n1"), NodeDrained("n0")], id="work whose other node drains"),
            pytest.param([runs("b", "n1", 6)], id="work that does not fit elsewhere"),
            pytest.param(
                [
                    runs("b", "n1"),
                    AskSubmitted(ask("friend", 9, affinities=all_of(near("b")))),
                ],
                id="work that other work must be near",
            ),
        ],
    )
    def test_it_is_pinned(self, facts: list[Fact]) -> None:
        engine = running(runs("a", "n0", 4, policy=PolicyName.HYBRID), *facts)
        engine.decide()
        assert engine.moves(PACK) == ()

    def test_members_of_groups_stay(self) -> None:
        engine = running()
        members = tuple(replace(ask(f"m{n}", 2), policy=PACK) for n in range(2))
        engine.apply(GroupSubmitted(Group("g", (members,))))
        assert any(isinstance(each, GroupPlaced) for each in engine.decide())
        engine.apply(AskRunning(members[0], "n0"), AskRunning(members[1], "n1"))
        assert engine.moves(PACK) == ()


class TestMoving:
    def late(self) -> AskSubmitted:
        return AskSubmitted(replace(ask("late", 1), policy=PACK))

    def test_running_work_is_pinned_by_default(self) -> None:
        engine = running(runs("a", "n0", 4), runs("b", "n1"), self.late())
        assert moved(engine.decide()) == []

    def test_where_a_cluster_may_move_work_it_moves_after_a_batch(self) -> None:
        engine = running(runs("a", "n0", 4), runs("b", "n1"), self.late(), moves=1)
        assert moved(engine.decide()) == [("b", "n1", "n0")]
        assert engine.placed["b"] == "n0"
        assert engine.free("n1")["CPU"] == 80_000

    def test_what_waits_gets_the_room_that_a_move_made(self) -> None:
        engine = running(runs("a", "n0", 4), runs("b", "n1"), AskSubmitted(ask("big", 8)), moves=1)
        engine.decide()
        assert "big" in engine.waiting
        engine.apply(self.late())
        decisions = engine.decide()
        assert moved(decisions) == [("b", "n1", "n0")]
        assert Placed("big", "n1") in decisions

    def test_a_no_execute_taint_of_the_new_node_counts(self) -> None:
        engine = running(
            NodeTainted("n0", Taint("t", "", Effect.NO_EXECUTE)),
            runs("a", "n0", 4, policy=PolicyName.HYBRID, tolerations=(tolerates("t"),)),
            runs("b", "n1", tolerations=(tolerates("t", seconds=30.0),)),
            self.late(),
            moves=1,
        )
        assert moved(engine.decide()) == [("b", "n1", "n0")]
        assert engine.next_moment == 30.0
