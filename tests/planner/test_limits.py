"""Limits of a plan: the minimum and maximum of each kind, quotas, the price, and nodes that are coming."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stead.engine.engine import Engine
from stead.engine.facts import AskSubmitted, GroupSubmitted, NodeJoined, NodeUsed
from stead.language.asks import Ask, Group, Strategy
from stead.language.labels import Labels
from stead.language.nodes import Node, NodeTemplate
from stead.language.resources import Resources
from stead.planner.planning import plan
from stead.planner.plans import PRICE, Limits, Plan, Quota, Stock

CPU = NodeTemplate("cpu", Resources.of(CPU=4), Labels({"zone": "a"}), count_max=10, price=2)
GPU = NodeTemplate("gpu", Resources.of(CPU=4, GPU=2), Labels({"zone": "b"}), count_max=10, price=5)


def pending(count: int, **amounts: float) -> Engine:
    """So much pending work, beside a full node of the kind `cpu`."""
    engine = Engine()
    engine.apply(NodeJoined(Node("there", CPU.capacity, CPU.labels)), NodeUsed("there", CPU.capacity))
    engine.apply(*(AskSubmitted(Ask.of(f"w{n}", amounts or {"CPU": 4})) for n in range(count)))
    engine.decide()
    return engine


def launched(found: Plan) -> dict[str, int]:
    return {each.template.name: each.count for each in found.launches}


def left(found: Plan) -> list[tuple[int, str]]:
    """How much of each kind of work stays pending, and which limit is in the way."""
    return [(len(each.ids), each.limit) for each in found.unserved]


@pytest.mark.parametrize(
    ("stock", "count"),
    [(Stock(), 3), (Stock({"there": "cpu"}), 2), (Stock({"there": "cpu"}, {"cpu": 1}), 1), (Stock({"x": "gpu"}), 3)],
    ids=["nothing", "a node that runs", "a node that runs and one that comes", "a node of another kind"],
)
def test_nodes_that_run_or_come_count_against_the_maximum_of_their_kind(stock: Stock, count: int) -> None:
    found = plan(pending(9), [replace(CPU, count_max=3)], stock=stock)
    assert launched(found) == {"cpu": count}
    assert found.limits == ("cpu",)


def test_the_minimum_of_a_kind_is_launched_although_it_serves_nothing() -> None:
    found = plan(pending(0), [replace(CPU, count_min=3)], stock=Stock({"there": "cpu"}, {"cpu": 1}))
    assert [(each.count, each.serves) for each in found.launches] == [(1, ())]
    assert plan(pending(0), [replace(CPU, count_min=2)], stock=Stock({"there": "cpu"}, {"cpu": 1})).launches == ()


def test_work_runs_on_the_nodes_of_the_minimum_first() -> None:
    found = plan(pending(3), [CPU, replace(GPU, count_min=2)])
    assert launched(found) == {"cpu": 1, "gpu": 2}


def test_work_that_nodes_that_are_coming_will_serve_is_not_planned_for_twice() -> None:
    found = plan(pending(3), [CPU], stock=Stock(coming={"cpu": 2}))
    assert launched(found) == {"cpu": 1}
    assert [(each.template.name, each.count, len(each.serves)) for each in found.coming] == [("cpu", 2, 2)]
    assert plan(pending(2), [CPU], stock=Stock(coming={"cpu": 2})).launches == ()


def test_a_node_that_is_coming_for_nothing_is_still_listed() -> None:
    found = plan(pending(0), [CPU], stock=Stock(coming={"cpu": 1}))
    assert [(each.count, each.serves) for each in found.coming] == [(1, ())]


def test_a_kind_that_is_no_longer_in_the_catalog_is_ignored() -> None:
    found = plan(pending(1), [CPU], Limits(price_max=2), Stock({"there": "old"}, {"old": 3}))
    assert launched(found) == {"cpu": 1}
    assert found.coming == ()


@pytest.mark.parametrize(
    ("quota", "expected"),
    [
        (Quota("q", nodes_max=3), {"cpu": 2}),
        (Quota("q", Labels({"zone": "a"}), nodes_max=2), {"cpu": 1, "gpu": 4}),
        (Quota("q", Labels({"zone": "b"}), nodes_max=0), {"cpu": 5}),
        (Quota("q", resources_max=Resources.of(CPU=13)), {"cpu": 2}),
        (Quota("q", Labels({"zone": "a"}), resources_max=Resources.of(CPU=4)), {"gpu": 5}),
        (Quota("q", resources_max=Resources.of(GPU=2)), {"cpu": 5}),
    ],
    ids=["all nodes", "a zone", "an empty zone", "CPUs of all nodes", "CPUs of a zone", "GPUs"],
)
def test_a_quota_counts_existing_nodes_and_moves_work_to_other_kinds(quota: Quota, expected: dict[str, int]) -> None:
    found = plan(pending(5), [CPU, GPU], Limits((quota,)))
    assert launched(found) == expected
    missing = 5 - sum(expected.values())
    assert left(found) == ([(missing, "q")] if missing else [])
    assert "q" in found.limits or not missing


def test_a_quota_of_launched_nodes_does_not_count_the_head() -> None:
    limits = Limits((Quota("workers", nodes_max=2, only_launched=True),))
    assert launched(plan(pending(9), [CPU], limits)) == {"cpu": 2}
    assert launched(plan(pending(9), [CPU], limits, Stock({"there": "cpu"}))) == {"cpu": 1}


def test_nodes_that_are_coming_count_against_a_quota() -> None:
    found = plan(pending(5), [CPU], Limits((Quota("q", nodes_max=4),)), Stock(coming={"cpu": 2}))
    assert launched(found) == {"cpu": 1}


def test_a_quota_can_leave_out_nodes_that_nobody_launched() -> None:
    limits = Limits((Quota("workers", nodes_max=2, only_launched=True),))
    assert launched(plan(pending(5), [CPU], limits)) == {"cpu": 2}
    assert launched(plan(pending(5), [CPU], limits, Stock({"there": "cpu"}))) == {"cpu": 1}


def test_the_maximum_price_counts_all_nodes_of_known_kinds() -> None:
    limits = Limits(price_max=9)
    assert launched(plan(pending(9), [CPU], limits)) == {"cpu": 4}
    found = plan(pending(9), [CPU], limits, Stock({"there": "cpu"}, {"cpu": 1}))
    assert launched(found) == {"cpu": 2}
    assert (found.limits, left(found)) == ((PRICE,), [(6, PRICE)])


def test_within_a_maximum_price_as_much_work_is_served_as_possible() -> None:
    engine = pending(20, CPU=1)
    engine.apply(*(AskSubmitted(Ask.of(f"train-{n}", {"CPU": 1, "GPU": 1})) for n in range(6)))
    large, dear = (
        replace(CPU, capacity=Resources.of(CPU=8)),
        replace(GPU, capacity=Resources.of(CPU=8, GPU=4), price=10),
    )
    found = plan(engine, [large, dear], Limits(price_max=12))
    assert launched(found) == {"cpu": 3}
    assert left(found) == [(6, PRICE)]


def test_the_price_is_not_rounded_against_the_user() -> None:
    cheap = replace(CPU, price=0.1)
    assert launched(plan(pending(9), [cheap], Limits(price_max=0.3))) == {"cpu": 3}


def test_the_minimum_keeps_the_limits_too() -> None:
    found = plan(pending(0), [replace(CPU, count_min=5)], Limits((Quota("q", nodes_max=3),)))
    assert launched(found) == {"cpu": 2}


def test_limits_that_forbid_half_of_a_group_launch_nothing_for_it() -> None:
    engine = pending(0)
    members = tuple(Ask.of(f"g/{n}", {"CPU": 4}) for n in range(4))
    engine.apply(GroupSubmitted(Group("g", (members,), Strategy.STRICT_SPREAD)))
    found = plan(engine, [CPU], Limits((Quota("q", nodes_max=4),)))
    assert (found.launches, left(found)) == ((), [(1, "q")])
    assert launched(plan(engine, [CPU], Limits((Quota("q", nodes_max=5),)))) == {"cpu": 4}


def test_a_price_may_be_as_small_as_a_number_can_be() -> None:
    found = plan(pending(3), [replace(CPU, price=5e-324)], Limits(price_max=1.0))
    assert launched(found) == {"cpu": 3}
