"""Bugs that the random tests found, each as the shortest sequence that shows it.

Rule: every case here failed once; it stays as a named regression test.
"""

from __future__ import annotations

from stead.engine.decisions import Evicted, GroupPlaced, Placed, Refused, Waiting
from stead.engine.engine import Engine
from stead.engine.explain.smallest_change import AddLabel, Drop
from stead.engine.facts import (
    AskEnded,
    AskLost,
    AskRunning,
    AskSubmitted,
    ClockAdvanced,
    Fact,
    GroupSubmitted,
    NodeJoined,
    NodeLeft,
    NodeResized,
)
from stead.engine.settings import Settings
from stead.language.asks import Affinity, Ask, Group, Spread, Strategy
from stead.language.labels import ANYWHERE, Labels, Requirement, Selector
from stead.language.nodes import Node
from stead.language.resources import Resources
from stead.language.taints import Effect, Taint

WEB = Selector.all_of(Requirement.is_in("app", "web"))


def engine_after(*facts: Fact) -> Engine:
    engine = Engine(Settings(patience=None, seed=0))
    for fact in facts:
        engine.apply(fact)
        engine.decide()
    return engine


def cpu(id: str, amount: float = 1) -> AskSubmitted:
    return AskSubmitted(Ask.of(id, {"CPU": amount}))


def test_a_question_changes_no_order() -> None:
    asked = Engine(Settings(patience=None, seed=0))
    asked.explain(Ask.of("probe", {"CPU": 1}))
    asked.candidates(Ask.of("probe", {"CPU": 1}))
    asked.apply(cpu("b", 2), cpu("a"))
    assert asked.waiting == engine_after(cpu("b", 2), cpu("a")).waiting == ("b", "a")


def test_a_group_that_lost_its_place_comes_before_a_later_one() -> None:
    first = Group("g0", ((Ask("g0.0"),),))
    later = Group("g1", ((Ask("g1.0", spreads=(Spread("zone", ANYWHERE),)),),))
    engine = engine_after(NodeJoined(Node("n")), GroupSubmitted(first), GroupSubmitted(later), NodeLeft("n"))
    assert engine.waiting == ("g0", "g1")


def test_members_find_the_one_node_where_they_can_be_together() -> None:
    """The follower needs memory and its target; only the second node has the memory."""
    follower = Ask.of("g.1", {"memory": 1}, affinities=((Affinity(ANYWHERE),),))
    engine = engine_after(
        NodeJoined(Node("small")),
        AskSubmitted(Ask("other")),
        GroupSubmitted(Group("g", ((Ask("g.0"), follower),))),
        NodeJoined(Node.of("large", {"memory": 1})),
    )
    assert engine.placed == {"other": "small", "g.0": "large", "g.1": "large"}


def test_work_under_two_no_execute_taints_is_evicted_once() -> None:
    taints = (Taint("a", "", Effect.NO_EXECUTE), Taint("b", "", Effect.NO_EXECUTE))
    engine = Engine(Settings(patience=None, seed=0))
    engine.apply(NodeJoined(Node("n", taints=taints)), AskRunning(Ask("w"), "n"))
    evicted = [decision for decision in engine.decide() + engine.decide() if isinstance(decision, Evicted)]
    assert [(decision.ask, decision.node) for decision in evicted] == [("w", "n")]


def test_what_a_placement_makes_possible_goes_before_later_work() -> None:
    """`near` waits for work in another namespace; `stranger` is that work, and `last` must not be placed before
    `near`."""
    near = Ask("near", affinities=((Affinity(ANYWHERE, near=False), Affinity(ANYWHERE, namespaces=frozenset())),))
    engine = engine_after(NodeJoined(Node.of("n", {"CPU": 1})), AskSubmitted(Ask("own")), AskSubmitted(near))
    engine.apply(NodeJoined(Node.of("m", {"CPU": 1})))
    engine.apply(AskSubmitted(Ask("stranger", namespace="blue")), cpu("last"))
    order = [decision.ask for decision in engine.decide() if isinstance(decision, Placed)]
    assert order.index("stranger") < order.index("last")
    assert "near" not in order or order.index("near") < order.index("last")


def test_work_that_is_pending_again_is_reported_even_if_equal_work_was() -> None:
    apart = Affinity(WEB, near=False)
    engine = Engine(Settings(patience=None, seed=0))
    lonely = [Ask(id, affinities=((apart,),), labels=Labels({"app": "web"})) for id in ("a", "b")]
    engine.apply(NodeJoined(Node("n")), *map(AskSubmitted, lonely))
    engine.decide()
    engine.apply(ClockAdvanced(30.0))
    engine.decide()
    engine.apply(AskLost("a"))
    decisions = engine.decide()
    reported = {id for decision in decisions if isinstance(decision, Waiting) for id in decision.asks}
    assert set(engine.waiting) <= reported | {"b"}


def test_work_is_not_in_its_own_way_however_it_is_asked_about() -> None:
    ask = Ask("w", affinities=((Affinity(WEB, near=False),),), labels=Labels({"app": "web"}))
    engine = engine_after(NodeJoined(Node("n")), AskRunning(ask, "n"))
    assert engine.explain("w").verdicts[0].candidates == 1
    assert engine.explain(ask).verdicts[0].candidates == 1


def test_one_label_makes_up_for_several_spreads() -> None:
    spreads = (Spread("zone", ANYWHERE), Spread("zone", WEB))
    ask = Ask("w", affinities=((Affinity(WEB, topologies=("zone",)),),), spreads=spreads)
    change = engine_after(NodeJoined(Node("n"))).explain(ask).change
    assert change is not None
    assert {type(edit) for edit in change.edits} == {Drop, AddLabel}
    assert len(change.edits) == 2


def test_a_missing_key_can_be_the_whole_obstacle_of_a_spread_over_two_keys() -> None:
    engine = engine_after(
        NodeJoined(Node.of("n0", {}, {"rack": "r1"})),
        NodeJoined(Node.of("n1", {"GPU": 2}, {"rack": "r2"})),
        AskRunning(Ask("x"), "n1"),
    )
    change = engine.explain(Ask.of("w", {"GPU": 0.25}, spreads=(Spread("rack", ANYWHERE), Spread("zone", ANYWHERE))))
    assert change.change is not None
    assert [type(edit) for edit in change.change.edits] == [AddLabel]


def test_a_group_is_not_overtaken_because_no_node_could_take_again_what_it_has_placed() -> None:
    """`later` frees the GPU that the group lacks; the node of its other member has no free CPUs."""
    group = Group("g", ((Ask.of("g.cpu", {"CPU": 1}), Ask.of("g.gpu", {"GPU": 1})),))
    engine = engine_after(
        NodeJoined(Node.of("n", {"CPU": 1, "GPU": 1})),
        AskSubmitted(Ask.of("later", {"GPU": 1}, priority=-1)),
        NodeJoined(Node.of("m", {"GPU": 1})),
        GroupSubmitted(group),
        NodeLeft("m"),
        NodeResized("n", Resources.of({"GPU": 1})),
        AskLost("later"),
    )
    assert (engine.placed, engine.waiting) == ({"g.cpu": "n", "g.gpu": "n"}, ("later",))


def test_a_group_needs_no_room_for_a_member_that_has_ended() -> None:
    """No node could ever take `g.gpu`; once it has ended the group only lacks a CPU, and is woken when one is free."""
    group = Group("g", ((Ask.of("g.gpu", {"GPU": 1}), Ask.of("g.cpu", {"CPU": 1})),))
    full = (NodeJoined(Node.of("n", {"CPU": 1})), cpu("full"), GroupSubmitted(group))
    assert engine_after(*full, AskEnded("g.gpu"), AskEnded("full")).placed == {"g.cpu": "n"}
    assert engine_after(*full, AskEnded("full"), AskEnded("g.gpu")).placed == {"g.cpu": "n"}


def test_a_group_is_woken_when_a_member_that_others_must_be_apart_from_ends() -> None:
    group = Group("g", ((Ask("g.0"), Ask("g.1")),), Strategy.STRICT_SPREAD)
    nodes = (NodeJoined(Node("n")), NodeJoined(Node("m")))
    engine = engine_after(*nodes, GroupSubmitted(group), NodeLeft("m"), AskEnded("g.0"))
    assert engine.placed == {"g.1": "n"}


def test_work_that_waits_for_another_by_its_id_goes_before_later_equals_of_that_one() -> None:
    by_id = Affinity(Selector.all_of(Requirement.is_in("ask_id", "target")))
    near = Ask.of("near", {"CPU": 1}, affinities=((by_id,),))
    engine = engine_after(NodeJoined(Node.of("n", {"CPU": 2})), AskSubmitted(near), ClockAdvanced(1.0))
    engine.apply(cpu("target"), cpu("equal"))
    order = [decision.ask for decision in engine.decide() if isinstance(decision, Placed)]
    assert (order, engine.waiting) == (["target", "near"], ("equal",))


def test_work_that_began_after_its_deadline_and_lost_its_place_at_once_is_placed_again() -> None:
    late = Ask("w", deadline=5.0)
    engine = engine_after(NodeJoined(Node("n")), ClockAdvanced(30.0), AskRunning(late, "n"))
    engine.apply(AskLost("w"))
    assert engine.decide() == [Placed("w", "n", 0)]


def test_a_group_that_lost_the_last_of_its_places_after_its_deadline_is_placed_again() -> None:
    """It was pending before its deadline, but at its deadline a part of it was placed."""
    group = Group("g", ((Ask.of("g.0", {"CPU": 1}), Ask.of("g.1", {"GPU": 1})),), deadline=5.0)
    began = (NodeJoined(Node.of("n", {"CPU": 1})), GroupSubmitted(group), AskRunning(group.alternatives[0][0], "n"))
    engine = engine_after(*began, ClockAdvanced(5.0), AskLost("g.0"), ClockAdvanced(30.0))
    assert engine.waiting == ("g",)
    engine.apply(NodeJoined(Node.of("m", {"GPU": 1})))
    assert [type(decision) for decision in engine.decide()] == [GroupPlaced]


def test_a_group_is_spared_by_what_was_placed_and_not_by_what_ended() -> None:
    """Its member ends in the same call in which its deadline passes, or after that."""
    group = Group(
        "g", ((Ask.of("g.0", {"GPU": 1}), Ask.of("g.1", {"GPU": 1}), Ask.of("g.2", {"GPU": 1})),), deadline=5.0
    )
    waits = engine_after(NodeJoined(Node("n")), GroupSubmitted(group))
    spared = waits.fork()
    waits.apply(ClockAdvanced(5.0), AskEnded("g.0"))
    assert [type(decision) for decision in waits.decide()] == [Refused]
    spared.apply(AskRunning(group.alternatives[0][1], "n"), ClockAdvanced(5.0), AskLost("g.1"), AskEnded("g.0"))
    spared.decide()
    assert spared.waiting == ("g",)


def test_a_group_that_lost_the_last_of_its_places_before_its_deadline_is_refused_by_it() -> None:
    group = Group("g", ((Ask.of("g.0", {"CPU": 1}), Ask.of("g.1", {"GPU": 1})),), deadline=5.0)
    began = (NodeJoined(Node.of("n", {"CPU": 1})), GroupSubmitted(group), AskRunning(group.alternatives[0][0], "n"))
    engine = engine_after(*began, ClockAdvanced(4.0), AskLost("g.0"))
    engine.apply(ClockAdvanced(5.0))
    assert [type(decision) for decision in engine.decide()] == [Refused]
