"""Groups preempt as a whole: room is made for as many members as the group needs, or nothing is evicted."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from stead.engine.decisions import Decision, GroupPlaced, NominationEnded
from stead.engine.engine import Engine
from stead.engine.facts import AskRunning, AskSubmitted, GroupChanged, GroupEnded, NodeTainted
from stead.language.asks import Ask, Group, Strategy
from tests.behaviour import all_of, apart_from_app, ask, cluster, decide_after, group, near_app, node, submit, taint
from tests.behaviour.preempting import end, full, low
from tests.behaviour.preempting import victims as evicted_by


def gang(count: int, cpu: float = 2, least: int | None = None, **rest: Any) -> Group:
    members = [ask(f"m{index}", cpu) for index in range(count)]
    return group("g", *members, priority=10, min_available=least, **rest)


def victims(decisions: list[Decision]) -> set[str]:
    return set(evicted_by(decisions))


def test_room_is_made_for_all_members_and_they_are_placed_together_once_it_is_there() -> None:
    engine = full("a", "b")
    gone = victims(submit(engine, gang(3)))
    assert len(gone) == 3
    first, *others = sorted(gone)
    assert not end(engine, first), "the others wait with it"
    (placed,) = end(engine, *others)
    assert isinstance(placed, GroupPlaced)
    assert {member for member, _ in placed.members} == {"m0", "m1", "m2"}


def test_a_free_place_is_kept_for_a_member_while_the_others_wait() -> None:
    engine = full("a", "b")
    end(engine, "b-0")
    gone = victims(submit(engine, gang(2)))
    assert len(gone) == 1
    submit(engine, ask("late", 2, priority=10, preempts=False))
    assert "late" not in engine.placed
    (placed,) = [each for each in end(engine, *gone) if isinstance(each, GroupPlaced)]
    assert len(placed.members) == 2


def test_nothing_is_evicted_if_not_all_members_would_fit() -> None:
    engine = full("a", "b")
    engine.apply(AskRunning(low("boss", 2, priority=20), "b"))
    assert not victims(submit(engine, gang(5)))
    assert set(engine.placed) == {"a-0", "a-1", "b-0", "b-1", "boss"}


def test_only_the_minimum_of_a_group_preempts() -> None:
    engine = full("a", "b")
    gone = victims(submit(engine, gang(4, least=2)))
    assert len(gone) == 2
    (placed,) = [each for each in end(engine, *gone) if isinstance(each, GroupPlaced)]
    assert len(placed.members) == 2
    assert engine.is_pending("g"), "the other two wait for free places"


@pytest.mark.parametrize(
    ("strategy", "nodes"),
    [(Strategy.STRICT_PACK, 1), (Strategy.STRICT_SPREAD, 2)],
)
def test_strict_strategies_hold(strategy: Strategy, nodes: int) -> None:
    engine = full("a", "b", "c")
    gone = victims(submit(engine, gang(2, strategy=strategy)))
    assert len({victim[0] for victim in gone}) == nodes
    end(engine, *gone)
    assert len({engine.placed[member] for member in ("m0", "m1")}) == nodes


def test_members_stay_in_one_zone_and_the_cheaper_zone_is_taken() -> None:
    engine = cluster(*(node(f"{zone}{index}", 2, labels={"zone": zone}) for zone in "ab" for index in range(2)))
    for zone, priority in (("a", 5), ("b", 1)):
        for index in range(2):
            engine.apply(AskRunning(low(f"{zone}{index}-0", 2, priority), f"{zone}{index}"))
    gone = victims(submit(engine, gang(2, topology=(("zone", Strategy.STRICT_PACK),))))
    assert gone == {"b0-0", "b1-0"}


def test_members_that_must_be_apart_or_together_are() -> None:
    engine = full("a", "b")
    ring = [ask(f"m{n}", 2, affinities=all_of(apart_from_app("ring")), labels={"app": "ring"}) for n in range(2)]
    gone = victims(submit(engine, group("g", *ring, priority=10)))
    assert {victim[0] for victim in gone} == {"a", "b"}
    pair = [ask(f"p{n}", 2, affinities=all_of(near_app("pair")), labels={"app": "pair"}) for n in range(2)]
    others = full("a", "b")
    gone = victims(submit(others, group("p", *pair, priority=10)))
    assert len({victim[0] for victim in gone}) == 1


def test_a_group_whose_node_is_tainted_meanwhile_looks_for_other_places() -> None:
    engine = full("a", "b", "c")
    gone = victims(submit(engine, gang(2, strategy=Strategy.STRICT_SPREAD)))
    (left,) = {"a", "b", "c"} - {victim[0] for victim in gone}
    tainted = min(gone)[0]
    decisions = decide_after(engine, NodeTainted(tainted, taint("out")))
    assert {each.ask for each in decisions if isinstance(each, NominationEnded)} == {"m0", "m1"}
    assert {victim[0] for victim in victims(decisions)} == {left}, "what is ending on the other node is enough there"


def test_work_of_a_higher_priority_displaces_the_whole_group() -> None:
    engine = full("a", "b", cpu=2)
    submit(engine, gang(2))
    decisions = submit(engine, ask("boss", 2, priority=20))
    assert {each.ask for each in decisions if isinstance(each, NominationEnded)} == {"m0", "m1"}


def test_a_group_that_ends_keeps_no_places() -> None:
    engine = full("a", cpu=2)
    gone = victims(submit(engine, gang(1)))
    engine.apply(AskSubmitted(ask("next", 2, priority=5)))
    engine.decide()
    decide_after(engine, GroupEnded("g"))
    end(engine, *gone)
    assert engine.placed == {"next": "a"}


def test_a_member_that_ends_while_it_waits_ends_the_wait_of_the_group() -> None:
    engine = full("a", "b", cpu=2)
    gone = victims(submit(engine, gang(2)))
    end(engine, "m0")
    end(engine, *gone)
    assert "m1" in engine.placed


def test_the_explanation_says_for_whom_the_group_waits() -> None:
    engine = full("a", cpu=2)
    submit(engine, gang(1))
    assert str(engine.explain("g")).endswith("Places are kept for its members until a-0 has ended.")


def test_a_restored_engine_goes_on_where_it_was() -> None:
    engine = full("a", "b")
    gone = sorted(victims(submit(engine, gang(3))))
    restored = Engine.restored(engine.checkpoint(), engine.settings, engine.solver)
    for each in (engine, restored, engine.fork()):
        assert not end(each, gone[0])
        (placed,) = end(each, *gone[1:])
        assert isinstance(placed, GroupPlaced)


def other(*ids: str, cpu: float = 2, **rest: Any) -> Group:
    """The gang with these members."""
    return group("g", *(ask(id, cpu, **rest) for id in ids), priority=10)


def test_no_place_is_kept_for_a_member_that_left() -> None:
    engine = full("a", "b")
    gone = victims(submit(engine, gang(2)))
    decide_after(engine, GroupChanged(other("m1")))
    assert set(engine.nominated) == {"m1"}
    end(engine, *gone)
    assert "m0" not in engine.placed
    assert "m1" in engine.placed


def test_no_place_is_kept_for_a_member_that_is_described_differently() -> None:
    engine = full("a", "b")
    gone = victims(submit(engine, gang(2)))
    decide_after(engine, GroupChanged(other("m0", "m1", labels={"app": "new"})))
    end(engine, *gone)
    assert {"m0", "m1"} <= set(engine.placed)


@pytest.mark.parametrize("before", [group("h", ask("m0", 2), priority=10), ask("m0", 2, priority=10)], ids=type)
def test_no_place_is_kept_for_work_that_joined_a_group(before: Ask | Group) -> None:
    """The group waits for a third member, so it needs no place yet."""
    engine = full("a", "b")
    gone = victims(submit(engine, before))
    assert set(engine.nominated) == {"m0"}
    more = decide_after(engine, GroupChanged(replace(other("m0", "m1"), min_available=3)))
    assert (engine.nominated, victims(more)) == ({}, set())
    end(engine, *gone)
    assert engine.placed.keys().isdisjoint({"m0", "m1"})
    assert list(engine.groups) == ["g"]
    decide_after(engine, GroupChanged(replace(other("m0", "m1"), min_available=1)))
    assert "m0" in engine.placed
