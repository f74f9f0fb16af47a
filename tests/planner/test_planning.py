"""The planner: which pending work a new node would serve, as the engine decides."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stead.engine.engine import Engine
from stead.engine.facts import AskRunning, AskSubmitted, GroupSubmitted, NodeJoined, NodeUsed
from stead.engine.reasons import Tainted
from stead.language.asks import Affinity, Ask, Choice, Group, Spread, Strategy
from stead.language.labels import ANYWHERE, NODE_ID, Labels, Requirement, Selector
from stead.language.nodes import Node, NodeTemplate
from stead.language.resources import Resources
from stead.language.taints import Taint
from stead.planner.planning import plan
from stead.planner.plans import HYPOTHETICAL, Plan
from stead.planner.wanting import served_by, wanting_a_node
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


# Plans

CPU_NODES = NodeTemplate("cpu", Resources.of(CPU=2), count_max=100, price=1)
GPU_NODES = NodeTemplate("gpu", Resources.of(CPU=8, GPU=2), Labels({"zone": "a"}), count_max=10, price=10)


def launched(found: Plan) -> dict[str, int]:
    return {each.template.name: each.count for each in found.launches}


def test_as_many_nodes_as_the_pending_work_fills() -> None:
    found = plan(engine_with(*(cpu(f"w{i}") for i in range(5))), [CPU_NODES])
    assert launched(found) == {"cpu": 3}
    assert found.launches[0].serves == tuple(f"w{i}" for i in range(5))
    assert (found.price, found.unserved, found.fits) == (3, (), ())


def test_existing_nodes_come_first() -> None:
    engine = engine_with(cpu("a"), cpu("b"), cpu("c"))
    engine.apply(NodeJoined(Node.of("free", {"CPU": 2})))
    found = plan(engine, [CPU_NODES])
    assert launched(found) == {"cpu": 1}
    assert len(found.fits) == 2


def test_without_prices_the_fewest_nodes() -> None:
    """Members of a group that fit existing nodes need no new ones."""
    engine = engine_with()
    engine.apply(NodeJoined(Node.of("free", {"CPU": 2})))
    members = tuple(cpu(f"g-{number}") for number in range(3))
    engine.apply(GroupSubmitted(Group("g", (members,), Strategy.STRICT_SPREAD)))
    found = plan(engine, [replace(CPU_NODES, price=0)])
    assert (launched(found), len(found.fits)) == ({"cpu": 2}, 1)


def test_the_kind_that_serves_the_most_for_its_price() -> None:
    dear = replace(CPU_NODES, name="dear", price=3)
    large = replace(CPU_NODES, name="large", capacity=Resources.of(CPU=8), price=3)
    asks = [cpu(f"w{i}") for i in range(8)]
    assert launched(plan(engine_with(*asks), [dear, CPU_NODES])) == {"cpu": 4}
    assert launched(plan(engine_with(*asks), [dear, CPU_NODES, large])) == {"large": 1}


def test_at_the_same_price_no_node_with_devices_that_nobody_needs() -> None:
    gpu = replace(GPU_NODES, capacity=Resources.of(CPU=2, GPU=2), price=1)
    assert launched(plan(engine_with(cpu("a")), [gpu, CPU_NODES])) == {"cpu": 1}


def test_each_kind_of_work_gets_a_kind_of_node_that_takes_it() -> None:
    train = Ask.of("train", {"GPU": 1}, Selector.all_of(Requirement.is_in("zone", "a")))
    found = plan(engine_with(cpu("web"), train), [CPU_NODES, GPU_NODES])
    assert launched(found)["gpu"] == 1
    assert {"web", "train"} == {id for each in found.launches for id in each.serves}


def test_a_group_gets_all_the_nodes_that_it_needs_at_once() -> None:
    engine = engine_with()
    members = tuple(cpu(f"ring/{i}") for i in range(5))
    engine.apply(GroupSubmitted(Group("ring", (members,), Strategy.STRICT_SPREAD)))
    assert launched(plan(engine, [CPU_NODES])) == {"cpu": 5}


def test_no_more_than_the_maximum_and_it_says_so() -> None:
    found = plan(engine_with(*(cpu(f"w{i}") for i in range(5))), [replace(CPU_NODES, count_max=2)])
    assert launched(found) == {"cpu": 2}
    assert found.limits == ("cpu",)
    (left,) = found.unserved
    assert (left.ids, left.nearest) == (("w4",), "cpu")
    assert left.verdict is not None and left.verdict.candidates


def test_what_no_new_node_takes_names_the_nearest_kind_and_what_it_lacks() -> None:
    tainted = replace(GPU_NODES, taints=(Taint("gpu_node", "true"),))
    train = Ask.of("train", {"GPU": 1}, Selector.all_of(Requirement.is_in("zone", "a")))
    found = plan(engine_with(train), [CPU_NODES, tainted])
    assert found.launches == ()
    (left,) = found.unserved
    assert left.nearest == "gpu"
    assert left.verdict is not None
    assert [each.reason for each in left.verdict.refusals] == [Tainted(Taint("gpu_node", "true"))]


@pytest.mark.parametrize("catalog", [[], [GPU_NODES]])
def test_without_pending_work_there_is_nothing_to_plan(catalog: list[NodeTemplate]) -> None:
    assert plan(engine_with(), catalog) == Plan((), (), ())


def test_labels_that_are_each_nodes_own_are_set_on_new_nodes() -> None:
    kind = replace(CPU_NODES, own_keys=("host",))
    assert kind.node("n-1").labels == Labels({"host": "n-1"})
    spread = Spread("host", ANYWHERE)
    found = plan(engine_with(*(cpu(f"w{i}", spreads=(spread,)) for i in range(3))), [kind])
    assert found.unserved == ()


def test_planning_changes_nothing() -> None:
    engine = engine_with(cpu("a"))
    before = engine.checkpoint()
    plan(engine, [CPU_NODES])
    assert engine.checkpoint() == before
