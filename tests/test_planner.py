"""The planner: which pending work a new node would serve, as the engine decides."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stead.engine.engine import Engine
from stead.engine.facts import AskRunning, AskSubmitted, GroupSubmitted, NodeJoined, NodeUsed
from stead.language.asks import Affinity, Ask, Choice, Group
from stead.language.labels import ANYWHERE, NODE_ID, Requirement, Selector
from stead.language.nodes import Node, NodeTemplate
from stead.language.resources import Resources
from stead.language.taints import Taint
from stead.planner import HYPOTHETICAL, nodes_to_add, served_by, wanting_a_node
from tests.strategies_for_tests import asks, clusters

BUSY = Node.of("busy", {"CPU": 1})


def engine_with(*asks: Ask) -> Engine:
    engine = Engine()
    engine.apply(NodeJoined(BUSY), NodeUsed("busy", Resources.of(CPU=1)), *map(AskSubmitted, asks))
    engine.decide()
    return engine


def cpu(id: str = "w", **more: object) -> Ask:
    return Ask.of(id, {"CPU": 1}, **more)  # type: ignore[arg-type]  # what Ask.of takes


def test_pending_work_and_work_unknown_to_the_engine_want_nodes() -> None:
    found = wanting_a_node(engine_with(cpu("a"), cpu("b")), [(Ask.of("x", {"GPU": 1}), 3)])
    assert [(ask.choices[0].resources, count) for ask, count in found] == [
        (Resources.of(CPU=1), 2),
        (Resources.of(GPU=1), 3),
    ]


def test_what_finds_room_wants_none() -> None:
    engine = engine_with()
    engine.apply(NodeJoined(Node.of("free", {"CPU": 2})))
    assert wanting_a_node(engine, [(cpu(), 2)]) == []
    assert [count for _, count in wanting_a_node(engine, [(cpu(), 5)])] == [3]


def test_asking_changes_nothing() -> None:
    engine = engine_with(cpu("a"))
    before = engine.checkpoint()
    wanting_a_node(engine, [(cpu(), 2)])
    assert engine.checkpoint() == before


def test_every_member_of_a_group_wants_room() -> None:
    engine = engine_with()
    engine.apply(GroupSubmitted(Group("g", ((cpu("g-1"), cpu("g-2")),))))
    assert [count for _, count in wanting_a_node(engine)] == [2]


@pytest.mark.parametrize(
    "ask",
    [
        cpu(affinities=((Affinity(Selector.all_of(Requirement.is_in("app", "db"))),),)),
        cpu(selector=Selector.all_of(Requirement.is_in(NODE_ID, "busy"))),
        cpu(selector=Selector.all_of(Requirement.is_in("zone", "a"), Requirement.is_in("zone", "b"))),
    ],
    ids=["near work that runs elsewhere", "on a node that is there", "in two zones at once"],
)
def test_what_no_new_node_could_take_wants_none(ask: Ask) -> None:
    engine = engine_with()
    engine.apply(AskRunning(Ask.of("db", labels={"app": "db"}), "busy"))
    assert served_by(engine, ask) is None
    assert wanting_a_node(engine, [(ask, 1)]) == []


def test_work_that_keeps_apart_gets_a_node_of_its_own() -> None:
    alone = Affinity(ANYWHERE, near=False, namespaces=frozenset(), symmetric=True)
    template = served_by(engine_with(), cpu(affinities=((alone,),)))
    assert template is not None and template.capacity == Resources.of(CPU=1)


@pytest.mark.parametrize(
    ("requirement", "value"),
    [
        (Requirement.is_in("k", "b", "a"), "a"),
        (Requirement.exists("k"), "any"),
        (Requirement.greater_than("k", 3), "4"),
        (Requirement.less_than("k", 3), "2"),
        (Requirement.not_in("k", "a"), None),
        (Requirement.does_not_exist("k"), None),
    ],
    ids=str,
)
def test_the_least_node_has_the_labels_that_are_asked_for(requirement: Requirement, value: str | None) -> None:
    template = served_by(engine_with(), cpu(selector=Selector.all_of(requirement)))
    assert template is not None and template.labels.get("k") == value


def test_a_later_choice_or_term_is_tried_where_the_first_cannot_be_met() -> None:
    on_busy = Selector.all_of(Requirement.is_in(NODE_ID, "busy"))
    ask = Ask("w", (Choice(Resources.of(GPU=1), on_busy), Choice(Resources.of(CPU=1))))
    template = served_by(engine_with(), ask)
    assert template is not None and template.capacity == Resources.of(CPU=1)


@given(clusters(), st.lists(asks(), max_size=4))
def test_the_engine_places_what_the_planner_promises(nodes: list[Node], some: list[Ask]) -> None:
    engine = Engine()
    engine.apply(*map(NodeJoined, nodes))
    for ask in some:
        template = served_by(engine, ask) if not ask.policy.in_batches else None
        if template is not None:
            fork = engine.fork()
            fork.apply(NodeJoined(template.node(HYPOTHETICAL)))
            assert fork.explain(ask).fits


SMALL = NodeTemplate("small", Resources.of(CPU=4), count_max=10)
LARGE = NodeTemplate("large", Resources.of(CPU=16), count_max=10, price=3.0)
TAINTED = NodeTemplate("tainted", Resources.of(CPU=64), taints=(Taint("gpu", "true"),), count_max=10)


def pending(*works: Ask | Group) -> Engine:
    engine = Engine()
    engine.apply(*(GroupSubmitted(work) if isinstance(work, Group) else AskSubmitted(work) for work in works))
    engine.decide()
    return engine


@pytest.mark.parametrize(
    ("cpus", "templates", "expected"),
    [
        ([1, 1], [SMALL], {"small": 1}),
        ([4, 4, 4], [SMALL], {"small": 3}),
        ([4, 4, 4], [SMALL, LARGE], {"large": 1}),
        ([8], [SMALL, LARGE], {"large": 1}),
        ([1], [SMALL, LARGE], {"small": 1}),
        ([1], [LARGE, SMALL], {"small": 1}),
        ([8], [SMALL], {}),
        ([1], [TAINTED], {}),
        ([1], [], {}),
        ([4] * 12, [SMALL], {"small": 10}),
    ],
)
def test_nodes_are_added_while_they_let_pending_work_run(
    cpus: list[int], templates: list[NodeTemplate], expected: dict[str, int]
) -> None:
    engine = pending(*(Ask.of(f"w{number}", {"CPU": cpu}) for number, cpu in enumerate(cpus)))
    assert nodes_to_add(engine, templates) == expected
    assert not engine.placed, "the engine itself is unchanged"


def test_nodes_are_added_for_a_whole_group_or_not_at_all() -> None:
    members = tuple(Ask.of(f"m{number}", {"CPU": 4}) for number in range(3))
    engine = pending(Group("g", (members,)))
    assert nodes_to_add(engine, [SMALL]) == {"small": 3}
    assert nodes_to_add(engine, [replace(SMALL, count_max=2)]) == {}


def test_no_more_nodes_than_the_limit_are_added() -> None:
    engine = pending(*(Ask.of(f"w{number}", {"CPU": 4}) for number in range(5)))
    assert nodes_to_add(engine, [SMALL], limit=2) == {"small": 2}
