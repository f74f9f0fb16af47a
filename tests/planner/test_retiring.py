"""Nodes that nothing needs, and moves that would free more."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stead import solver
from stead.engine.engine import Engine
from stead.engine.facts import (
    AskEnding,
    AskLost,
    AskRunning,
    AskSubmitted,
    GroupSubmitted,
    NodeDrained,
    NodeJoined,
    NodeLeft,
    NodeTainted,
    NodeUsed,
)
from stead.language.asks import Affinity, Ask, Group, Strategy
from stead.language.labels import NODE_ID, Requirement, Selector
from stead.language.nodes import Node, NodeTemplate
from stead.language.resources import Resources
from stead.language.selectors import parse_selector
from stead.language.taints import Taint
from stead.planner.plans import Stock
from stead.planner.retiring import consolidation, retirable
from stead.planner.trials import settle
from tests.strategies_for_tests import clusters, groups, some_asks

CPU = NodeTemplate("cpu", Resources.of(CPU=4), count_max=10, price=2)


def cluster(count: int = 3) -> Engine:
    """So many idle nodes."""
    engine = Engine()
    engine.apply(*(NodeJoined(Node.of(f"n{number}", {"CPU": 4})) for number in range(count)))
    engine.decide()
    return engine


def stock(engine: Engine, **others: str) -> Stock:
    return Stock({**dict.fromkeys(engine.nodes, "cpu"), **others})


def cpu(id: str, count: float = 1, **more: object) -> Ask:
    return Ask.of(id, {"CPU": count}, **more)  # type: ignore[arg-type]  # what Ask.of takes


def kept(engine: Engine, catalog: list[NodeTemplate] | None = None) -> dict[str, str]:
    return dict(retirable(engine, catalog or [CPU], stock(engine)).kept)


def test_idle_nodes_can_go() -> None:
    engine = cluster()
    engine.apply(AskRunning(cpu("w"), "n1"))
    found = retirable(engine, [CPU], stock(engine))
    assert found.nodes == ("n0", "n2")
    assert found.kept == {"n1": "work runs on it"}


def test_nodes_of_unknown_kinds_are_left_alone() -> None:
    engine = cluster()
    assert retirable(engine, [CPU], Stock({"n0": "cpu", "n1": "other", "gone": "cpu"})).nodes == ("n0",)


def test_only_the_nodes_that_are_asked_for_go() -> None:
    engine = cluster()
    found = retirable(engine, [CPU], stock(engine), candidates={"n2"})
    assert found.nodes == ("n2",)
    assert set(found.kept) == {"n0", "n1"}


@pytest.mark.parametrize(
    ("happens", "why"),
    [
        (lambda engine: engine.apply(NodeUsed("n0", Resources.of(CPU=1))), "work runs on it"),
        (lambda engine: engine.apply(AskSubmitted(cpu("w"))), "pending work fits it"),
        (lambda engine: engine.apply(NodeTainted("n0", Taint("mine"), owner="ada")), "ada has set the taint mine"),
        (lambda engine: engine.apply(NodeTainted("n0", Taint("mine"), job="j1")), "job j1 has set the taint mine"),
        (lambda engine: engine.apply(GroupSubmitted(Group("g", ((cpu("g/0"),),)))), "pending work fits it"),
    ],
    ids=["unmanaged work", "pending work", "a taint with an owner", "a taint of a job", "a bundle of a group"],
)
def test_a_node_that_is_needed_stays_and_says_why(happens: Callable[[Engine], None], why: str) -> None:
    engine = cluster(1)
    happens(engine)
    assert kept(engine) == {"n0": why}


def test_a_taint_that_nobody_owns_keeps_no_node() -> None:
    engine = cluster(1)
    engine.apply(NodeTainted("n0", Taint("old")))
    assert kept(engine) == {}


def test_a_kind_keeps_its_minimum_and_gives_up_drained_nodes_first() -> None:
    engine = cluster()
    engine.apply(NodeDrained("n2"))
    minimum = NodeTemplate("cpu", CPU.capacity, count_min=2, count_max=10)
    found = retirable(engine, [minimum], stock(engine))
    assert found.nodes == ("n2",)
    assert found.kept == dict.fromkeys(["n0", "n1"], "its kind has its minimum")


def test_nodes_that_are_coming_do_not_replace_nodes_of_the_minimum() -> None:
    engine = cluster(1)
    minimum = NodeTemplate("cpu", CPU.capacity, count_min=1, count_max=10)
    assert retirable(engine, [minimum], Stock({"n0": "cpu"}, {"cpu": 1})).nodes == ()


def test_a_node_that_pending_work_names_stays_although_the_work_does_not_fit() -> None:
    engine = cluster(2)
    engine.apply(AskSubmitted(cpu("w", 9, selector=Selector.all_of(Requirement.is_in(NODE_ID, "n0")))))
    engine.decide()
    found = retirable(engine, [CPU], stock(engine))
    assert found.nodes == ("n1",)
    assert found.kept == {"n0": "pending work needs it"}


@settings(max_examples=60)
@given(clusters(), some_asks(most=4), st.lists(groups(), max_size=1), st.integers(0, 2))
def test_without_the_nodes_that_can_go_everything_stays_where_it_is(
    there: list[Node], asks: list[Ask], gangs: list[Group], least: int
) -> None:
    engine = Engine(solver=solver.needed())
    engine.apply(*map(NodeJoined, there), *map(AskSubmitted, asks), *map(GroupSubmitted, gangs))
    engine.decide()
    before = engine.checkpoint()
    kinds = {node.id: f"kind-{number % 2}" for number, node in enumerate(there)}
    catalog = [NodeTemplate(name, count_min=least, count_max=9) for name in ("kind-0", "kind-1")]
    found = retirable(engine, catalog, Stock(kinds))
    assert engine.checkpoint() == before
    assert found == retirable(engine, catalog, Stock(kinds))
    assert {*found.nodes, *found.kept} == set(kinds)
    settle(engine)
    then = engine.fork()
    then.apply(*map(NodeLeft, found.nodes))
    settle(then)
    assert engine.placed.items() <= then.placed.items()
    assert set(then.waiting) <= set(engine.waiting)
    left = Counter(kind for id, kind in kinds.items() if id not in found.nodes)
    assert all(left[kind] >= min(least, Counter(kinds.values())[kind]) for kind in ("kind-0", "kind-1"))


# Consolidation


def busy(**work: float) -> Engine:
    """For each node, how many CPUs work uses there."""
    engine = cluster(len(work))
    engine.apply(*(AskRunning(cpu(f"w{number}", count), f"n{number}") for number, count in enumerate(work.values())))
    engine.decide()
    return engine


def test_nearly_idle_nodes_are_freed_by_moving_their_work() -> None:
    engine = busy(n0=1, n1=2, n2=1)
    found = consolidation(engine, [CPU], stock(engine))
    assert [(each.node, each.moves, each.saves) for each in found] == [
        ("n0", (("w0", "n2"),), 2),
        ("n1", (("w1", "n2"),), 2),
    ]


def test_work_moves_to_no_idle_node() -> None:
    engine = busy(n0=1)
    engine.apply(NodeJoined(Node.of("n1", {"CPU": 4})))
    assert consolidation(engine, [CPU], stock(engine)) == ()


def test_the_node_that_saves_the_most_is_freed_first() -> None:
    engine = busy(n0=1, n1=1, n2=4)
    dear = NodeTemplate("dear", CPU.capacity, count_max=10, price=5)
    (found,) = consolidation(engine, [CPU, dear], stock(engine, n1="dear"))
    assert (found.node, found.kind, found.saves) == ("n1", "dear", 5)


@pytest.mark.parametrize(
    "happens",
    [
        lambda engine: engine.apply(NodeUsed("n0", Resources.of(CPU=1)), NodeUsed("n1", Resources.of(CPU=1))),
        lambda engine: engine.apply(*(NodeTainted(f"n{n}", Taint("t"), owner="ada") for n in range(2))),
        lambda engine: engine.apply(AskEnding("w0"), AskEnding("w1")),
        lambda engine: engine.apply(AskSubmitted(cpu("new", 3))),
        lambda engine: engine.apply(AskRunning(cpu("large", 3), "n0"), AskRunning(cpu("large-2", 3), "n1")),
    ],
    ids=["unmanaged work", "taints with an owner", "work that is ending", "pending work", "no room elsewhere"],
)
def test_nodes_that_cannot_be_freed_are_left_alone(happens: Callable[[Engine], None]) -> None:
    engine = busy(n0=1, n1=1)
    assert len(consolidation(engine, [CPU], stock(engine))) == 1
    happens(engine)
    assert consolidation(engine, [CPU], stock(engine)) == ()


def test_work_with_rules_moves_only_where_they_allow_it() -> None:
    engine = cluster(2)
    apart = Affinity(parse_selector("app=db"), near=False)
    asks = [cpu(f"db-{n}", affinities=((apart,),), labels={"app": "db"}) for n in range(2)]
    engine.apply(*(AskRunning(ask, f"n{number}") for number, ask in enumerate(asks)))
    assert consolidation(engine, [CPU], stock(engine)) == ()


def test_members_of_groups_are_not_moved() -> None:
    engine = cluster(2)
    members = tuple(cpu(f"g/{n}") for n in range(2))
    engine.apply(GroupSubmitted(Group("g", (members,), Strategy.STRICT_SPREAD)))
    engine.decide()
    assert consolidation(engine, [CPU], stock(engine)) == ()


def test_the_minimum_of_a_kind_stays() -> None:
    engine = busy(n0=1, n1=1)
    minimum = NodeTemplate("cpu", CPU.capacity, count_min=2, count_max=10)
    assert consolidation(engine, [minimum], stock(engine)) == ()


def test_no_more_nodes_than_asked_for() -> None:
    engine = busy(n0=1, n1=1, n2=1, n3=1)
    assert len(consolidation(engine, [CPU], stock(engine))) == 3
    assert len(consolidation(engine, [CPU], stock(engine), most=1)) == 1


@settings(max_examples=60)
@given(clusters(), some_asks(most=4), st.lists(groups(), max_size=1))
def test_after_the_moves_everything_is_placed_without_the_freed_nodes(
    there: list[Node], asks: list[Ask], gangs: list[Group]
) -> None:
    engine = Engine(solver=solver.needed())
    engine.apply(*map(NodeJoined, there), *map(AskSubmitted, asks), *map(GroupSubmitted, gangs))
    settle(engine)
    before = engine.checkpoint()
    kinds = {node.id: "cpu" for node in there}
    found = consolidation(engine, [CPU], Stock(kinds))
    assert engine.checkpoint() == before
    then = engine.fork()
    then.apply(*map(NodeLeft, retirable(engine, [CPU], Stock(kinds)).nodes))
    settle(then)
    for each in found:
        assert {ask for ask, _ in each.moves} == {ask for ask, node in then.placed.items() if node == each.node}
    then.apply(*(NodeDrained(each.node) for each in found))
    then.apply(*(AskLost(ask) for each in found for ask, _ in each.moves))
    settle(then)
    assert all(then.placed[ask] == target for each in found for ask, target in each.moves)
    then.apply(*(NodeLeft(each.node) for each in found))
    settle(then)
    assert engine.placed.keys() <= then.placed.keys()
    assert set(then.waiting) <= set(engine.waiting)
