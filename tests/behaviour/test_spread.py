"""Spreads: work distributed evenly over the domains of a topology key."""

from __future__ import annotations

from typing import Any

import pytest

from stead.engine.engine import Engine
from stead.engine.facts import AskEnded, NodeDrained, NodeJoined, NodeLabelled, NodeLeft
from stead.engine.reasons import Skewed
from stead.errors import Invalid
from stead.language.asks import Ask, Preference, Spread
from stead.language.labels import ANYWHERE, Labels, Requirement, Selector
from tests.behaviour import (
    ask,
    candidates,
    cluster,
    codes,
    decide_after,
    node,
    on,
    place,
    placements,
    refusals,
    run,
    submit,
    zones,
)

WEB = on("app", "web")
OVER_ZONES = Spread("zone", WEB)


def web(id: str, *spreads: Spread, **rest: Any) -> Ask:
    return ask(id, labels={"app": "web"}, spreads=spreads, **rest)


def with_web_on(engine: Engine, *nodes: str, **rest: Any) -> Engine:
    for index, where in enumerate(nodes):
        run(engine, web(f"web-{index}", **rest), where)
    return engine


@pytest.mark.parametrize(
    ("placed", "max_skew", "nodes"),
    [
        pytest.param("", 1, "n0 n1 n2", id="with nothing placed all domains are even"),
        pytest.param("n0", 1, "n1 n2", id="one more here would be two ahead"),
        pytest.param("n0", 2, "n0 n1 n2", id="two ahead may be allowed"),
        pytest.param("n0 n0", 2, "n1 n2", id="but not three"),
        pytest.param("n0 n1", 1, "n2", id="the emptiest domain is the measure"),
        pytest.param("n0 n1 n2", 1, "n0 n1 n2", id="when all have one they are even again"),
        pytest.param("n0 n0 n1 n2", 1, "n1 n2", id="skew counts from the emptiest, not from zero"),
    ],
)
def test_no_domain_may_exceed_the_emptiest_by_more_than_the_skew(placed: str, max_skew: int, nodes: str) -> None:
    engine = with_web_on(zones("a", "b", "c"), *placed.split())
    spread = Spread("zone", WEB, max_skew)
    assert candidates(engine, web("w", spread)) == tuple(nodes.split())
    refused = 3 - len(nodes.split())
    assert refusals(engine, web("w", spread)) == ([(Skewed(spread), refused, refused)] if refused else [])


def test_a_domain_is_all_its_nodes() -> None:
    engine = with_web_on(zones("a", "a", "b"), "n0")
    assert candidates(engine, web("w", OVER_ZONES)) == ("n2",)


def test_a_batch_is_spread_one_by_one() -> None:
    engine = zones("a", "a", "b", cpu=4)
    crowd = [web(f"w{index}", OVER_ZONES, cpu=1) for index in range(7)]
    where = place(engine, *crowd)
    found = [engine.nodes[id].labels["zone"] for id in where if id]
    assert (found.count("a"), found.count("b")) == (4, 3)


def test_a_node_without_the_key_is_refused_and_its_work_is_not_counted() -> None:
    engine = with_web_on(zones("a", "b", "-"), "n2", "n2")
    assert candidates(engine, web("w", OVER_ZONES)) == ("n0", "n1")
    assert refusals(engine, web("w", OVER_ZONES)) == [(Skewed(OVER_ZONES), 1, 1)]


def test_where_no_node_has_the_key_nothing_fits() -> None:
    assert refusals(zones("-", "-"), web("w", OVER_ZONES)) == [(Skewed(OVER_ZONES), 2, 2)]


def test_by_node_every_node_is_a_domain() -> None:
    engine = with_web_on(zones("a", "a", "-"), "n0")
    assert candidates(engine, web("w", Spread("node_id", WEB))) == ("n1", "n2")


# Which work counts


def test_an_ask_that_does_not_match_itself_does_not_add_to_the_count() -> None:
    engine = with_web_on(zones("a", "b"), "n0")
    other = ask("w", spreads=(OVER_ZONES,))
    assert candidates(engine, other) == ("n0", "n1")
    with_web_on(engine, "n0", namespace="")
    run(engine, web("one-more"), "n0")
    assert candidates(engine, other) == ("n1",)


def test_only_work_that_matches_is_counted() -> None:
    engine = zones("a", "b")
    run(engine, ask("db", labels={"app": "db"}), "n0")
    run(engine, ask("plain"), "n0")
    assert candidates(engine, web("w", OVER_ZONES)) == ("n0", "n1")


def test_only_work_in_the_namespace_of_the_ask_is_counted() -> None:
    engine = with_web_on(zones("a", "b"), "n0", namespace="blue")
    assert candidates(engine, web("w", OVER_ZONES)) == ("n0", "n1")
    assert candidates(engine, web("w", OVER_ZONES, namespace="blue")) == ("n1",)


def test_any_work_may_be_counted() -> None:
    engine = zones("a", "b")
    run(engine, ask("plain"), "n0")
    assert candidates(engine, ask("w", spreads=(Spread("zone", ANYWHERE),))) == ("n1",)


def test_work_named_by_its_id_may_be_counted() -> None:
    engine = with_web_on(zones("a", "b"), "n0", "n0")
    named = Spread("zone", on("ask_id", "web-0", "web-1"))
    assert candidates(engine, web("w", named)) == ("n1",)
    engine.apply(AskEnded("web-1"))
    assert candidates(engine, web("w", named)) == ("n0", "n1")


# Which domains count


def test_domains_that_the_node_selector_excludes_do_not_count() -> None:
    engine = with_web_on(zones("a", "b", "c"), "n0", "n1")
    only_ab = on("zone", "a", "b")
    assert candidates(engine, web("w", OVER_ZONES)) == ("n2",)
    assert candidates(engine, web("w", OVER_ZONES, selector=only_ab)) == ("n0", "n1")


def test_work_on_nodes_that_the_node_selector_excludes_does_not_count() -> None:
    engine = cluster(
        node("n0", labels={"zone": "a", "disk": "ssd"}),
        node("n1", labels={"zone": "a"}),
        node("n2", labels={"zone": "b", "disk": "ssd"}),
    )
    with_web_on(engine, "n1")
    assert candidates(engine, web("w", OVER_ZONES, selector=on("disk", "ssd"))) == ("n0", "n2")
    with_web_on(engine, "n0")
    run(engine, web("on-n0"), "n0")
    assert candidates(engine, web("w", OVER_ZONES, selector=on("disk", "ssd"))) == ("n2",)


def test_a_node_that_the_selector_excludes_is_measured_the_same_way() -> None:
    engine = with_web_on(zones("a", "b", "c"), "n0")
    only_ab = on("zone", "a", "b")
    found = refusals(engine, web("w", OVER_ZONES, selector=only_ab))
    assert [(reason.code, nodes, alone) for reason, nodes, alone in found] == [("lacks-label", 1, 1), ("skewed", 1, 1)]


def test_draining_and_full_domains_still_count() -> None:
    engine = with_web_on(zones("a", "b"), "n0")
    engine.apply(NodeDrained("n1"))
    assert codes(engine, web("w", OVER_ZONES)) == ["draining", "skewed"]
    assert candidates(engine, web("w", OVER_ZONES)) == ()


def test_with_several_spreads_only_nodes_with_all_the_keys_are_measured() -> None:
    engine = cluster(
        node("n0", labels={"zone": "a", "rack": "r"}),
        node("n1", labels={"zone": "b", "rack": "s"}),
        node("n2", labels={"zone": "c"}),
    )
    over_racks = Spread("rack", WEB)
    with_web_on(engine, "n0")
    assert candidates(engine, web("w", OVER_ZONES)) == ("n1", "n2")
    assert candidates(engine, web("w", OVER_ZONES, over_racks)) == ("n1",)
    run(engine, web("on-n1"), "n1")
    assert candidates(engine, web("w", OVER_ZONES, over_racks)) == ("n0", "n1")
    assert refusals(engine, web("w", OVER_ZONES, over_racks)) == [(Skewed(over_racks), 1, 1)]


def test_work_on_a_node_without_one_of_the_keys_is_not_counted_for_the_others() -> None:
    engine = cluster(
        node("n0", labels={"zone": "a", "rack": "r"}),
        node("n1", labels={"zone": "b", "rack": "s"}),
        node("n2", labels={"zone": "a"}),
    )
    with_web_on(engine, "n2", "n2")
    assert candidates(engine, web("w", OVER_ZONES, Spread("rack", WEB))) == ("n0", "n1")


def test_each_spread_is_a_reason_of_its_own_in_order() -> None:
    engine = with_web_on(zones("a", "b"), "n0")
    by_node = Spread("node_id", WEB)
    assert refusals(engine, web("w", by_node, OVER_ZONES)) == [(Skewed(by_node), 1, 0), (Skewed(OVER_ZONES), 0, 0)]


# Over time


def test_a_new_domain_is_filled_before_the_others_take_more() -> None:
    engine = with_web_on(zones("a", "b"), "n0", "n1")
    engine.apply(NodeJoined(node("n2", labels={"zone": "c"})))
    assert candidates(engine, web("w", OVER_ZONES)) == ("n2",)


def test_a_domain_that_left_no_longer_limits_the_spread() -> None:
    engine = with_web_on(zones("a", "b", "c"), "n0", "n1")
    engine.apply(NodeLeft("n2"))
    assert candidates(engine, web("w", OVER_ZONES)) == ("n0", "n1")


@pytest.mark.parametrize(
    "relief",
    [
        pytest.param(AskEnded("web-0"), id="work ends in the fuller domain"),
        pytest.param(NodeLabelled("n1", Labels({"zone": "a"})), id="the emptier domain joins the fuller one"),
        pytest.param(NodeLabelled("n1", removed=("zone",)), id="the emptier domain loses its label"),
        pytest.param(NodeLabelled("n1", removed=("disk",)), id="the emptier domain is no longer selected"),
        pytest.param(NodeLeft("n1"), id="the emptier domain leaves"),
    ],
)
def test_pending_work_is_placed_when(relief: Any) -> None:
    engine = cluster(node("n0", labels={"zone": "a", "disk": "ssd"}), node("n1", labels={"zone": "b", "disk": "ssd"}))
    with_web_on(engine, "n0")
    engine.apply(NodeDrained("n1"))
    submit(engine, web("w", OVER_ZONES, selector=Selector.all_of(Requirement.exists("disk"))))
    assert engine.waiting == ("w",)
    assert placements(decide_after(engine, relief)) == {"w": "n0"}


def test_a_preferred_spread_is_satisfied_while_possible() -> None:
    engine = zones("a", "a", "b", cpu=2)
    soft = (Preference(OVER_ZONES),)
    crowd = [ask(f"w{index}", 1, labels={"app": "web"}, prefers=soft) for index in range(6)]
    assert place(engine, *crowd) == ["n0", "n2", "n1", "n2", "n0", "n1"]


def test_a_preferred_spread_is_measured_by_its_own_key_alone() -> None:
    engine = zones("a", "b", "c")
    with_web_on(engine, "n0", "n1")
    both = (Preference(Spread("rack", WEB)), Preference(OVER_ZONES))
    assert place(engine, ask("w", 1, labels={"app": "web"}, prefers=both)) == ["n2"]


def test_a_spread_allows_at_least_one_more_in_one_domain() -> None:
    with pytest.raises(Invalid, match="max skew must be at least 1"):
        Spread("zone", WEB, 0)
