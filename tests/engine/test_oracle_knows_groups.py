"""The oracle on groups, by hand: all members together or none, and members that lost their place.

Rule: with all members placed, neither a rule nor the strategy refuses any of them; the answers were found by hand.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from stead.engine.facts import AskEnded, AskLost, AskRunning, GroupChanged, GroupEnded, GroupSubmitted, NodeDrained
from stead.language.asks import Ask, Group, Strategy
from tests.engine.test_oracle_knows_the_semantics import apart, cluster, near, web, zoned
from tests.oracle_groups import fits_group, group_holds, missing_of, needed_of, taken_of


def members(*needs: float, prefix: str = "m", **rest: Any) -> tuple[Ask, ...]:
    return tuple(Ask.of(f"{prefix}{index}", {"CPU": need}, **rest) for index, need in enumerate(needs))


@pytest.mark.parametrize(
    ("strategy", "topology", "needs", "answer"),
    [
        (Strategy.PACK, (), (2, 2, 1), 0),
        (Strategy.PACK, (), (2, 2, 2), None),
        (Strategy.STRICT_PACK, (), (1, 1), 0),
        (Strategy.STRICT_PACK, (), (2, 1), None),
        (Strategy.STRICT_SPREAD, (), (1, 1, 1), 0),
        (Strategy.STRICT_SPREAD, (), (1, 1, 1, 1), None),
        (Strategy.SPREAD, (), (1, 1, 1, 1), 0),
        (Strategy.PACK, (("zone", Strategy.STRICT_PACK),), (2, 2), 0),
        (Strategy.PACK, (("zone", Strategy.STRICT_PACK),), (2, 2, 1), None),
        (Strategy.PACK, (("zone", Strategy.STRICT_SPREAD),), (1, 1), None),
        (Strategy.PACK, (("zone", Strategy.SPREAD),), (2, 2, 1), 0),
    ],
)
def test_a_group_fits_when_some_assignment_of_all_members_does(
    strategy: Strategy, topology: tuple[tuple[str, Strategy], ...], needs: tuple[float, ...], answer: int | None
) -> None:
    """Two nodes of 2 CPU in zone a, and one of 1 CPU in no zone."""
    oracle = cluster(zoned("1", "a", CPU=2), zoned("2", "a", CPU=2), zoned("3", CPU=1))
    assert fits_group(oracle, Group("g", (members(*needs),), strategy, topology)) == answer
    assert oracle.placed == {}
    fallback = members(1, prefix="f")
    assert fits_group(oracle, Group("g", (members(*needs), fallback), strategy, topology)) == (0 if answer == 0 else 1)


def test_members_see_each_other_when_they_are_placed_together() -> None:
    oracle = cluster(zoned("1"), zoned("2"))
    loners = tuple(web(f"m{index}", affinities=((apart(),),)) for index in range(3))
    assert fits_group(oracle, Group("g", (loners[:2],))) == 0
    assert fits_group(oracle, Group("g", (loners,))) is None
    follower = Ask("f", affinities=((near(),),))
    assert fits_group(oracle, Group("g", ((follower,),))) is None
    assert fits_group(oracle, Group("g", ((follower, web("m")),))) == 0


def test_a_member_that_lost_its_place_is_placed_again_beside_the_others() -> None:
    oracle = cluster(zoned("1", CPU=2), zoned("2", CPU=2))
    group = Group("g", (members(1, 1), members(1, prefix="f")), Strategy.STRICT_PACK)
    oracle.apply(GroupSubmitted(group))
    oracle.apply(*(AskRunning(member, "1") for member in group.alternatives[0]))
    oracle.apply(AskLost("m1"))
    assert fits_group(oracle, group) == 0
    assert group_holds(oracle, group, {"m1": "1"})
    assert not group_holds(oracle, group, {"m1": "2"})
    oracle.apply(NodeDrained("1"))
    assert fits_group(oracle, group) is None
    oracle.apply(GroupEnded("g"))
    assert (oracle.placed, oracle.asks, oracle.free("1")) == ({}, {}, {"CPU": 20_000})


def test_a_member_that_ended_counts_as_placed_until_it_leaves_or_runs_again() -> None:
    oracle = cluster(zoned("1", CPU=1))
    group = Group("g", (members(1, 1, 1),), min_available=2)
    oracle.apply(GroupSubmitted(group), AskEnded("m0"))
    assert (needed_of(oracle, group, 0), [each.id for each in missing_of(oracle, group)]) == (1, ["m1", "m2"])
    assert (fits_group(oracle, group), oracle.waiting()) == (0, ["g"])
    oracle.apply(AskEnded("m1"), AskEnded("m2"))
    assert (oracle.waiting(), list(oracle.groups)) == ([], ["g"])
    smaller = replace(group, alternatives=(members(1, 1, 1)[1:],))
    oracle.apply(GroupChanged(smaller), AskRunning(members(1, 1)[1], "1"), AskLost("m1"))
    assert (needed_of(oracle, smaller, 0), [each.id for each in missing_of(oracle, smaller)]) == (1, ["m1"])


def test_a_group_keeps_the_alternative_whose_member_ended() -> None:
    oracle = cluster(zoned("1", CPU=2))
    group = Group("g", (members(1, 1), members(1, 1, prefix="f")))
    oracle.apply(GroupSubmitted(group), AskRunning(group.alternatives[1][0], "1"), AskEnded("f0"))
    assert (taken_of(oracle, group), [each.id for each in missing_of(oracle, group)]) == (1, ["f1"])
    assert fits_group(oracle, group) == 1
    oracle.apply(AskRunning(group.alternatives[1][0], "1"), AskLost("f0"))
    assert (taken_of(oracle, group), fits_group(oracle, group)) == (None, 0)
