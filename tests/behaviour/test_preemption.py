"""Which work is evicted for work of a higher priority, and for whom nothing is evicted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from stead.engine.decisions import Preempted, Waiting
from stead.engine.facts import (
    AskEnding,
    AskRunning,
    BudgetChanged,
    BudgetEnded,
    EvictionFailed,
    NodeDrained,
    NodeUsed,
)
from stead.language.asks import Ask, Choice, HostPort, Spread
from stead.language.budgets import Budget
from stead.language.labels import ANYWHERE
from stead.language.resources import Resources
from tests.behaviour import (
    all_of,
    amounts,
    apart_from_app,
    ask,
    cluster,
    decide_after,
    near_app,
    node,
    on,
    submit,
    taint,
    tolerates,
    zones,
)
from tests.behaviour.preempting import boss, end, full, low, nominated, running, victims

WEB = {"app": "web"}


# -- the order of choice

OTHER = ("b", [low("b-0", 4, priority=5)])
ORDER: list[tuple[str, list[Ask], list[Ask], list[Budget]]] = [
    (
        "fewest evictions that exceed a budget, before all else",
        [low("a-0", 4, 1, labels=WEB)],
        [low("b-0", 4, 9)],
        [Budget("web", on("app", "web"), 0)],
    ),
    ("lowest priority of the most important victim", [low("a-0", 4, 5)], [low("b-0", 2, 4), low("b-1", 2, 4)], []),
    (
        "smallest sum of priorities, if these are equal",
        [low("a-0", 2, 5), low("a-1", 2, 4)],
        [low("b-0", 2, 5), low("b-1", 2, 3)],
        [],
    ),
    (
        "more victims never have a smaller sum, even with negative priorities",
        [low("a-0", 2, -5), low("a-1", 2, -7)],
        [low("b-0", 4, -5)],
        [],
    ),
    ("fewest victims", [low("a-0", 2), low("a-1", 2)], [low("b-0", 4)], []),
]


@pytest.mark.parametrize(("a", "b", "budgets"), [row[1:] for row in ORDER], ids=[row[0] for row in ORDER])
@pytest.mark.parametrize("order", ["ab", "ba"])
def test_the_node_is_taken_with(a: Sequence[Ask], b: Sequence[Ask], budgets: list[Budget], order: str) -> None:
    engine = cluster(*(node(name, 4) for name in order))
    engine.apply(*map(BudgetChanged, budgets), *running(*a, on="a"), *running(*b, on="b"))
    assert nominated(submit(engine, boss(cpu=4))) == {"boss": "b"}


@pytest.mark.parametrize("order", ["ab", "ba"])
def test_the_node_is_taken_whose_most_important_victims_started_last(order: str) -> None:
    engine = cluster(*(node(name, 4) for name in order))
    engine.apply(*running(low("a-0", 2, 5), on="a", started=7.0), *running(low("a-1", 2, 1), on="a", started=100.0))
    engine.apply(*running(low("b-0", 2, 5), on="b", started=8.0), *running(low("b-1", 2, 1), on="b", started=1.0))
    assert nominated(submit(engine, boss(cpu=4))) == {"boss": "b"}


def test_the_first_node_of_the_table_is_taken_if_all_else_is_equal() -> None:
    assert nominated(submit(full("a", "b", "c"), boss())) == {"boss": "a"}


# -- which of the work on a node


def test_as_much_as_possible_stays_the_most_important_first() -> None:
    engine = cluster(node("a", 6))
    engine.apply(*running(low("one", 2, 1), low("three", 2, 3), low("two", 2, 2), on="a"))
    assert victims(submit(engine, boss(cpu=2))) == ["one"]


def test_of_equal_priority_what_started_last_goes() -> None:
    assert victims(submit(full("a", cpu=6), boss())) == ["a-2"]


def test_small_work_does_not_go_in_vain_if_a_large_one_must_go_anyway() -> None:
    engine = cluster(node("a", 8))
    engine.apply(*running(low("small", 2, 1), low("large", 6, 2), on="a"))
    assert victims(submit(engine, boss(cpu=6))) == ["large"]


def test_work_that_a_budget_protects_stays_as_long_as_other_work_is_enough() -> None:
    engine = cluster(node("a", 4))
    engine.apply(BudgetChanged(Budget("web", on("app", "web"), 0)))
    engine.apply(*running(low("kept", 2, 1, labels=WEB), low("gone", 2, 9), on="a"))
    assert victims(submit(engine, boss())) == ["gone"]


def test_a_budget_is_exceeded_rather_than_to_leave_more_important_work_pending() -> None:
    engine = cluster(node("a", 4))
    engine.apply(BudgetChanged(Budget("web", on("app", "web"), 1)))
    engine.apply(*running(low("a-0", 2, labels=WEB), low("a-1", 2, labels=WEB), on="a"))
    (made,) = [each for each in submit(engine, boss(cpu=4)) if isinstance(each, Preempted)]
    assert (made.victims, made.violations) == (("a-0", "a-1"), 1)


def test_evictions_count_against_a_budget_at_once() -> None:
    engine = cluster(node("a", 2), node("b", 2), node("c", 2))
    engine.apply(BudgetChanged(Budget("web", on("app", "web"), 1)))
    engine.apply(*running(low("a-0", labels=WEB), on="a"), *running(low("b-0", labels=WEB), on="b"))
    engine.apply(*running(low("c-0", priority=5), on="c"))
    assert victims(submit(engine, boss("first"))) == ["a-0"]
    assert victims(submit(engine, boss("second"))) == ["c-0"]


def test_a_report_of_the_budget_counts_what_was_evicted_only_once() -> None:
    engine = cluster(node("a", 2), node("b", 2), node("c", 2))
    engine.apply(BudgetChanged(Budget("web", on("app", "web"), 2)))
    engine.apply(*running(low("a-0", labels=WEB), on="a"), *running(low("b-0", labels=WEB), on="b"))
    engine.apply(*running(low("c-0", priority=5), on="c"))
    assert victims(submit(engine, boss("first"))) == ["a-0"]
    engine.apply(BudgetChanged(Budget("web", on("app", "web"), 1)))
    assert victims(submit(engine, boss("second"))) == ["b-0"], "the cluster counts the first eviction now"


def test_a_budget_that_is_gone_protects_nothing() -> None:
    engine = cluster(node("a", 2), node("b", 2))
    engine.apply(BudgetChanged(Budget("web", on("app", "web"), 0)))
    engine.apply(*running(low("a-0", labels=WEB), on="a"), *running(low("b-0", priority=5), on="b"))
    assert victims(submit(engine.fork(), boss())) == ["b-0"]
    engine.apply(BudgetEnded("web"))
    assert victims(submit(engine, boss())) == ["a-0"]


def test_a_budget_of_another_namespace_or_for_work_without_labels_protects_nothing() -> None:
    engine = cluster(node("a", 2))
    engine.apply(BudgetChanged(Budget("blue", ANYWHERE, 0, "blue")), BudgetChanged(Budget("all", ANYWHERE, 0)))
    engine.apply(*running(low("a-0", labels={}), on="a"))
    (made,) = [each for each in submit(engine, boss()) if isinstance(each, Preempted)]
    assert made.violations == 0


# -- for whom, and what never


@pytest.mark.parametrize("priority", [10, 11])
def test_work_of_an_equal_or_higher_priority_is_not_evicted(priority: int) -> None:
    assert not victims(submit(full("a", priority=priority), boss(priority=10)))


def test_work_is_evicted_only_if_it_allows_that() -> None:
    engine = cluster(node("a", 2))
    engine.apply(*running(low("a-0", preemptible=False), on="a"))
    assert not victims(submit(engine, boss()))


def test_nothing_is_evicted_for_work_that_may_not_preempt() -> None:
    assert not victims(submit(full("a"), boss(preempts=False)))


def test_nothing_is_evicted_for_work_that_fits_somewhere() -> None:
    engine = full("a", "b")
    end(engine, "b-1")
    assert not victims(submit(engine, boss()))
    assert engine.placed["boss"] == "b"


def test_what_unmanaged_work_uses_cannot_be_evicted() -> None:
    engine = cluster(node("a", 4))
    engine.apply(NodeUsed("a", amounts(CPU=3)))
    engine.apply(*running(low("a-0", 1), on="a"))
    assert not victims(submit(engine, boss(cpu=2)))
    assert victims(submit(engine, boss("small", 1))) == ["a-0"]


def test_the_work_is_reported_as_pending_with_the_reasons_of_the_nodes() -> None:
    (waiting,) = [each for each in submit(full("a"), boss()) if isinstance(each, Waiting)]
    assert [refusal.reason.code for refusal in waiting.refusals] == ["short-now"]


def test_pending_work_is_reported_once_although_its_own_place_changes_what_refuses_it() -> None:
    engine = zones("a", "b", cpu=2)
    for number in range(2):
        engine.apply(*running(low(f"n{number}-0"), on=f"n{number}"))
    spread = Spread("zone", on("app", "boss"))
    decisions = submit(engine, boss(labels={"app": "boss"}, spreads=(spread,)))
    assert len([each for each in decisions if isinstance(each, Waiting)]) == 1


# -- refusals that evicting cannot lift

UNLIFTABLE: dict[str, dict[str, Any]] = {
    "its labels do not match": {"selector": on("zone", "z")},
    "it has a taint": {"selector": on("kind", "tainted")},
    "it is too small": {"cpu": 8},
    "it drains": {"selector": on("kind", "draining")},
    "it must be near work that is elsewhere": {"affinities": all_of(near_app("nowhere"))},
}


@pytest.mark.parametrize("work", UNLIFTABLE.values(), ids=UNLIFTABLE)
def test_nothing_is_evicted_from_a_node_because(work: dict[str, Any]) -> None:
    engine = cluster(
        node("plain", 2),
        node("tainted", 2, labels={"kind": "tainted"}, taints=[taint("gpu")]),
        node("draining", 2, labels={"kind": "draining"}),
    )
    engine.apply(*(each for name in engine.nodes for each in running(low(f"{name}-0"), on=name)))
    engine.apply(NodeDrained("draining"))
    assert not victims(submit(engine, boss(**work)))


def test_nothing_is_evicted_that_the_work_must_be_near() -> None:
    engine = full("a", cpu=2)
    assert not victims(submit(engine, boss(affinities=all_of(near_app("low")))))


def test_a_tolerated_taint_is_no_obstacle() -> None:
    engine = cluster(node("a", 2, taints=[taint("gpu")]))
    engine.apply(*running(low("a-0"), on="a"))
    assert victims(submit(engine, boss(tolerations=(tolerates("gpu"),)))) == ["a-0"]


# -- refusals that evicting lifts


@pytest.mark.parametrize("symmetric", [False, True])
def test_work_is_evicted_that_the_ask_must_be_apart_from(symmetric: bool) -> None:
    engine = cluster(node("a", 8))
    engine.apply(*running(low("other", 1, 5, labels={"app": "x"}), low("enemy", 1, 1), on="a"))
    assert victims(submit(engine, boss(affinities=all_of(apart_from_app("low", symmetric=symmetric))))) == ["enemy"]


def test_work_is_evicted_that_keeps_the_ask_away() -> None:
    engine = cluster(node("a", 8))
    keeper = low("keeper", 1, affinities=all_of(apart_from_app("boss", symmetric=True)))
    engine.apply(*running(keeper, low("other", 1), on="a"))
    assert victims(submit(engine, boss(labels={"app": "boss"}))) == ["keeper"]


def test_work_is_not_evicted_if_other_work_keeps_the_ask_away_as_well() -> None:
    engine = cluster(node("a", 8, labels={"zone": "z"}), node("b", 8, labels={"zone": "z"}))
    apart = all_of(apart_from_app("boss", "zone", symmetric=True))
    engine.apply(*running(low("a-0", 1, affinities=apart), on="a"), *running(low("b-0", 1, affinities=apart), on="b"))
    assert not victims(submit(engine, boss(labels={"app": "boss"})))


def test_work_is_evicted_that_has_the_port() -> None:
    engine = cluster(node("a", 8))
    engine.apply(*running(low("web", 1, 5, ports=(HostPort(80),)), low("other", 1, ports=(HostPort(81),)), on="a"))
    assert victims(submit(engine, boss(ports=(HostPort(80),)))) == ["web"]


def test_work_is_evicted_so_that_a_spread_is_even() -> None:
    engine = zones("a", "b", cpu=4)
    engine.apply(*running(low("n0-0", 1, 5, labels=WEB), low("n0-1", 1, labels=WEB), on="n0"))
    engine.apply(*running(low("n1-0", 4, 9, labels=WEB), on="n1"))
    spread = Spread("zone", on("app", "web"), by_selector=False)
    assert victims(submit(engine, boss(labels=WEB, spreads=(spread,), selector=on("zone", "a")))) == ["n0-1"]


def test_room_is_found_for_a_spread_among_many_nodes_whose_zones_are_too_full() -> None:
    """The cheapest 200 nodes are all in a zone that the spread refuses."""
    nodes = [node(f"a{index}", 2, labels={"zone": "a"}) for index in range(200)]
    engine = cluster(*nodes, node("a200", 2, labels={"zone": "a"}), node("b", 2, labels={"zone": "b"}))
    engine.apply(*(AskRunning(low(f"w{index}"), f"a{index}") for index in range(200)))
    engine.apply(*running(ask("web-0", 2, labels=WEB), on="a200"), *running(low("b-0", priority=5), on="b"))
    assert victims(submit(engine, boss(labels=WEB, spreads=(Spread("zone", on("app", "web")),)))) == ["b-0"]


def test_devices_are_freed_as_a_whole() -> None:
    engine = cluster(node("a", 8, GPU=2))
    engine.apply(*running(low("half-0", 1, 2, gpu=0.5), low("half-1", 1, 1, gpu=0.5), on="a"))
    engine.apply(*running(low("whole", 1, 3, gpu=1), on="a"))
    assert victims(submit(engine, boss(gpu=1))) == ["half-0", "half-1"]


# -- work that is ending, and work that cannot be evicted


def test_what_is_ending_anyway_counts_and_is_not_evicted_again() -> None:
    engine = full("a", "b")
    engine.apply(AskEnding("b-1"))
    (made,) = [each for each in submit(engine, boss()) if isinstance(each, Preempted)]
    assert (made.node, made.victims) == ("b", ())


def test_less_is_evicted_where_some_work_is_ending() -> None:
    engine = full("a", "b")
    engine.apply(AskEnding("b-1"))
    assert victims(submit(engine, boss(cpu=4))) == ["b-0"]


def test_work_of_an_equal_priority_that_is_ending_is_not_waited_for() -> None:
    engine = full("a", cpu=2, priority=10)
    engine.apply(AskEnding("a-0"))
    assert not nominated(submit(engine, boss(priority=10)))


def test_other_work_is_chosen_if_an_eviction_failed_for_good() -> None:
    engine = full("a", "b", cpu=2)
    assert victims(submit(engine, boss())) == ["a-0"]
    assert victims(decide_after(engine, EvictionFailed("a-0"))) == ["b-0"]


def test_the_same_work_may_be_chosen_again_if_an_eviction_failed_for_now() -> None:
    engine = full("a", cpu=2)
    assert victims(submit(engine, boss())) == ["a-0"]
    assert victims(decide_after(engine, EvictionFailed("a-0", is_final=False))) == ["a-0"]


# -- choices, and several preemptors


def test_a_fallback_that_fits_somewhere_is_taken_before_anything_is_evicted() -> None:
    engine = full("a", cpu=3, each=2)
    choices = (Choice(Resources.of(CPU=2)), Choice(Resources.of(CPU=1)))
    decisions = submit(engine, replace(boss(), choices=choices))
    assert not victims(decisions)
    assert engine.placed["boss"] == "a"


def test_evictions_make_room_for_the_first_choice_that_has_any() -> None:
    engine = full("a", cpu=2)
    choices = tuple(Choice(Resources.of(CPU=cpu)) for cpu in (16, 2, 1))
    (made,) = [each for each in submit(engine, replace(boss(), choices=choices)) if isinstance(each, Preempted)]
    assert made.choice == 1
    end(engine, *made.victims)
    assert engine.placed["boss"] == "a"
    assert engine.free("a")["CPU"] == 0


def test_each_piece_of_work_gets_its_own_victims() -> None:
    engine = full("a", "b")
    decisions = submit(engine, *(boss(f"boss-{number}") for number in range(5)))
    assert sorted(victims(decisions)) == ["a-0", "a-1", "b-0", "b-1"]
    assert len(nominated(decisions)) == 4, "the fifth finds nobody to evict"


def test_work_of_a_higher_priority_is_served_first() -> None:
    engine = full("a", cpu=2)
    assert nominated(submit(engine, boss("second", priority=5), boss("first", priority=6))) == {"first": "a"}


def test_priorities_at_the_ends_of_the_range_compare_as_numbers() -> None:
    engine = cluster(node("a", 2), node("b", 2))
    engine.apply(*running(low("a-0", priority=2**31 - 2), on="a"), *running(low("b-0", priority=-(2**31)), on="b"))
    assert victims(submit(engine, boss(priority=2**31 - 1))) == ["b-0"]


def test_work_preempts_once_more_important_work_has_ended_although_a_rule_refuses_the_node() -> None:
    engine = cluster(node("a", 2))
    engine.apply(*running(low("web", 1, ports=(HostPort(80),)), ask("other", 1, priority=20), on="a"))
    assert not victims(submit(engine, boss(cpu=2, ports=(HostPort(80),))))
    assert victims(end(engine, "other")) == ["web"]
