"""Near other work and apart from it: by id, by labels, by node, by zone, in namespaces, one way and both ways."""

from __future__ import annotations

from typing import Any

import pytest

from stead.engine.engine import Engine
from stead.engine.facts import AskEnded, AskRunning, NodeLabelled
from stead.engine.reasons import KeptAway, NoAlternativeHolds, NotNear, TooNear
from stead.language.asks import Affinity, Ask, Preference
from stead.language.labels import ANYWHERE, NOWHERE, Labels, Requirement, Selector
from tests.behaviour import (
    all_of,
    apart,
    apart_from_app,
    ask,
    candidates,
    cluster,
    codes,
    near,
    near_app,
    node,
    on,
    place,
    refusals,
    run,
    zones,
)


def web(id: str, **rest: Any) -> Ask:
    return ask(id, labels={"app": "web"}, **rest)


def with_web_on(engine: Engine, *nodes: str) -> Engine:
    """Work labelled app=web runs on these nodes, as web-0, web-1, ..."""
    for index, where in enumerate(nodes):
        run(engine, web(f"web-{index}"), where)
    return engine


@pytest.mark.parametrize(
    ("affinity", "nodes"),
    [
        pytest.param(near("web-0"), "n1", id="near one ask is on its node"),
        pytest.param(near("web-0", "web-1"), "n1 n2", id="near either of two asks"),
        pytest.param(near("nobody"), "", id="near an ask that is not there is nowhere"),
        pytest.param(near("web-0", topologies=("zone",)), "n0 n1", id="near one ask by zone"),
        pytest.param(apart("web-0"), "n0 n2 n3 n4", id="apart from one ask is on any other node"),
        pytest.param(apart("web-0", "web-1"), "n0 n3 n4", id="apart from both of two asks"),
        pytest.param(apart("nobody"), "n0 n1 n2 n3 n4", id="apart from nobody is anywhere"),
        pytest.param(apart("web-0", topologies=("zone",)), "n2 n3 n4", id="apart by zone passes nodes without a zone"),
        pytest.param(near_app("web"), "n1 n2", id="near work with a label"),
        pytest.param(near_app("web", "zone"), "n0 n1 n2 n3", id="near work with a label, by zone"),
        pytest.param(near_app("db", "zone"), "", id="near work with a label nobody has"),
        pytest.param(apart_from_app("web"), "n0 n3 n4", id="apart from work with a label"),
        pytest.param(apart_from_app("web", "zone"), "n4", id="apart from work with a label, by zone"),
        pytest.param(apart_from_app("db"), "n0 n1 n2 n3 n4", id="apart from work with a label nobody has"),
        pytest.param(near_app("web", "rack"), "", id="near by a key that no node carries is nowhere"),
        pytest.param(apart_from_app("web", "rack"), "n0 n1 n2 n3 n4", id="apart by such a key is anywhere"),
        pytest.param(near_app("web", "node_id", "zone"), "n1 n2", id="near in every one of several topologies"),
        pytest.param(near_app("web", "zone", "rack"), "", id="near needs every key on the node"),
        pytest.param(apart_from_app("web", "node_id", "zone"), "n4", id="apart in every one of several topologies"),
        pytest.param(apart_from_app("web", "zone", "rack"), "n4", id="apart needs no key on the node"),
        pytest.param(near_app("web", "ray.io/node-id"), "n1 n2", id="both labels of the node's id are the node"),
        pytest.param(apart_from_app("web", "ray.io/node-id"), "n0 n3 n4", id="both labels of the id, apart"),
        pytest.param(Affinity(ANYWHERE), "n1 n2 n3", id="near any work"),
        pytest.param(Affinity(ANYWHERE, near=False), "n0 n4", id="apart from any work"),
        pytest.param(Affinity(NOWHERE), "", id="near work of no kind"),
        pytest.param(Affinity(NOWHERE, near=False), "n0 n1 n2 n3 n4", id="apart from work of no kind"),
        pytest.param(
            Affinity(Selector.all_of(Requirement.does_not_exist("app"))), "n3", id="near work without a label"
        ),
        pytest.param(
            Affinity(Selector.all_of(Requirement.is_in("app", "web"), Requirement.not_in("ask_id", "web-0"))),
            "n2",
            id="near work with a label, one ask excepted",
        ),
        pytest.param(
            Affinity(Selector.any_of(Requirement.is_in("ask_id", "web-0"), Requirement.does_not_exist("app"))),
            "n1 n3",
            id="near one ask or work of a kind",
        ),
        pytest.param(
            Affinity(Selector.all_of(Requirement.is_in("ask_id", "web-0"), Requirement.is_in("app", "db"))),
            "",
            id="near one ask only if it has the label",
        ),
    ],
)
def test_an_affinity_holds_on_exactly_these_nodes(affinity: Affinity, nodes: str) -> None:
    """Zones a a b b and none; app=web runs on n1 (as web-0) and n2 (web-1), unlabelled work on n3."""
    engine = with_web_on(zones("a", "a", "b", "b", "-"), "n1", "n2")
    run(engine, ask("plain"), "n3")
    wanted = ask("w", affinities=all_of(affinity), labels={"app": "other"})
    assert candidates(engine, wanted) == tuple(nodes.split())
    refused = 5 - len(nodes.split())
    reason = NotNear(affinity) if affinity.near else TooNear(affinity)
    assert refusals(engine, wanted) == ([(reason, refused, refused)] if refused else [])


def test_all_affinities_of_one_alternative_must_hold_and_each_is_a_reason_in_order() -> None:
    engine = with_web_on(zones("a", "a", "b"), "n1")
    run(engine, ask("db", labels={"app": "db"}), "n0")
    together, away = near_app("web", "zone"), apart_from_app("db")
    assert candidates(engine, ask("w", affinities=all_of(together, away))) == ("n1",)
    assert refusals(engine, ask("w", affinities=all_of(together, away))) == [
        (NotNear(together), 1, 1),
        (TooNear(away), 1, 1),
    ]
    both = ask("w", affinities=all_of(away, near_app("nobody")))
    assert codes(engine, both) == ["too-near", "not-near"]


def test_one_alternative_of_several_is_enough_and_all_of_them_are_one_reason() -> None:
    engine = with_web_on(zones("a", "a", "b", "c"), "n1")
    run(engine, ask("db", labels={"app": "db"}), "n2")
    either = ((near_app("web"),), (near_app("db", "zone"), apart_from_app("web", "zone")))
    assert candidates(engine, ask("w", affinities=either)) == ("n1", "n2")
    assert refusals(engine, ask("w", affinities=either)) == [(NoAlternativeHolds(either), 2, 2)]


def test_an_alternative_without_affinities_holds_everywhere() -> None:
    engine = zones("a", "b")
    assert candidates(engine, ask("w", affinities=((near("nobody"),), ()))) == ("n0", "n1")
    assert candidates(engine, ask("w", affinities=((),))) == ("n0", "n1")


# Namespaces


@pytest.mark.parametrize(
    ("namespaces", "nodes"),
    [
        pytest.param(None, "n0", id="without a list it is the ask's own namespace"),
        pytest.param(frozenset({"green"}), "n1", id="listed namespaces do not include the own one"),
        pytest.param(frozenset({"blue", "green"}), "n0 n1", id="several may be listed"),
        pytest.param(frozenset[str](), "n0 n1 n2", id="the empty list is every namespace"),
        pytest.param(frozenset({"red"}), "", id="a namespace without work has no matching work"),
    ],
)
def test_an_affinity_speaks_of_work_in_its_namespaces(namespaces: frozenset[str] | None, nodes: str) -> None:
    engine = cluster(*(node(f"n{index}") for index in range(4)))
    for where, namespace in (("n0", "blue"), ("n1", "green"), ("n2", "")):
        run(engine, web(f"web-{where}", namespace=namespace), where)
    together = ask("w", namespace="blue", affinities=all_of(near_app("web", namespaces=namespaces)))
    away = ask("w", namespace="blue", affinities=all_of(apart_from_app("web", namespaces=namespaces)))
    assert candidates(engine, together) == tuple(nodes.split())
    assert candidates(engine, away) == tuple(id for id in engine.nodes if id not in nodes.split())


def test_an_ask_is_found_by_its_id_only_in_the_namespaces_of_the_affinity() -> None:
    engine = cluster(node("n0"))
    run(engine, ask("a", namespace="blue"), "n0")
    assert candidates(engine, ask("w", affinities=all_of(near("a")))) == ()
    assert candidates(engine, ask("w", affinities=all_of(near("a", namespaces=frozenset({"blue"}))))) == ("n0",)


# The exception for the first of its kind


def test_the_first_of_its_kind_may_go_to_every_node_that_has_the_keys() -> None:
    engine = zones("a", "b", "-")
    assert candidates(engine, web("w", affinities=all_of(near_app("web", "zone")))) == ("n0", "n1")
    assert candidates(engine, web("w", affinities=all_of(near_app("web")))) == ("n0", "n1", "n2")


@pytest.mark.parametrize(
    "wanted",
    [
        pytest.param(ask("w", affinities=all_of(near_app("web"))), id="it is not of the kind itself"),
        pytest.param(
            web("w", affinities=all_of(near_app("web", namespaces=frozenset({"blue"})))),
            id="its own namespace is not among the listed",
        ),
        pytest.param(web("w", affinities=all_of(near("w"))), id="the affinity names an ask"),
        pytest.param(
            web(
                "w",
                affinities=all_of(
                    Affinity(Selector.any_of(Requirement.is_in("app", "web"), Requirement.is_in("ask_id", "x")))
                ),
            ),
            id="the affinity names an ask in one of its terms",
        ),
    ],
)
def test_there_is_no_exception_for_the_first_one_when(wanted: Ask) -> None:
    assert codes(zones("a", "b"), wanted) == ["not-near"]


def test_the_first_one_fits_nowhere_when_no_node_has_the_key() -> None:
    assert candidates(zones("a", "b"), web("w", affinities=all_of(near_app("web", "rack")))) == ()
    assert candidates(zones("a", "b"), web("w", affinities=all_of(near_app("web", "rack", "zone")))) == ()


def test_the_first_one_may_go_anywhere_when_the_affinity_covers_all_namespaces() -> None:
    wanted = web("w", namespace="blue", affinities=all_of(near_app("web", namespaces=frozenset())))
    assert candidates(zones("a", "b"), wanted) == ("n0", "n1")


def test_matching_work_on_a_node_without_the_key_does_not_end_the_exception() -> None:
    engine = with_web_on(zones("a", "b", "-"), "n2")
    assert candidates(engine, web("w", affinities=all_of(near_app("web", "zone")))) == ("n0", "n1")


def test_matching_work_on_a_node_with_one_of_two_keys_ends_the_exception() -> None:
    engine = cluster(node("n0", labels={"zone": "a", "rack": "r"}), node("n1", labels={"zone": "a"}))
    wanted = web("w", affinities=all_of(near_app("web", "rack", "zone")))
    other_order = web("w", affinities=all_of(near_app("web", "zone", "rack")))
    assert candidates(engine, wanted) == candidates(engine, other_order) == ("n0",)
    with_web_on(engine, "n1")
    assert candidates(engine, wanted) == candidates(engine, other_order) == ()


def test_the_first_one_of_a_batch_decides_where_the_others_go() -> None:
    engine = zones("a", "b", "b", cpu=2)
    run(engine, ask("busy", 2), "n0")
    together = all_of(near_app("web", "zone"))
    crowd = [ask(f"w{index}", 1, labels={"app": "web"}, affinities=together) for index in range(5)]
    assert place(engine, *crowd) == ["n1", "n2", "n1", "n2", None]


def test_it_does_not_count_itself_as_other_work() -> None:
    engine = zones("a", "b")
    alone = web("w", affinities=all_of(apart_from_app("web")))
    assert place(engine, alone) == ["n0"]
    assert engine.explain("w").fits
    assert engine.explain("w").chosen is not None


# One way and both ways


def test_apart_looks_one_way() -> None:
    engine = zones("a", "b")
    assert place(engine, ask("shy", affinities=all_of(apart_from_app("web")))) == ["n0"]
    assert candidates(engine, web("w")) == ("n0", "n1")


@pytest.mark.parametrize(
    ("topologies", "nodes"),
    [
        pytest.param(("node_id",), "n1 n2 n3", id="by node"),
        pytest.param(("zone",), "n2 n3", id="by zone"),
        pytest.param(("node_id", "zone"), "n2 n3", id="by both"),
        pytest.param(("zone", "node_id"), "n2 n3", id="by both, in the other order"),
        pytest.param(("rack",), "n0 n1 n2 n3", id="by a key the node lacks"),
    ],
)
def test_a_symmetric_anti_affinity_refuses_matching_work_in_its_domain(topologies: tuple[str, ...], nodes: str) -> None:
    engine = zones("a", "a", "b", "-")
    shy = apart_from_app("web", *topologies, symmetric=True)
    run(engine, ask("shy", affinities=all_of(shy)), "n0")
    assert candidates(engine, web("w")) == tuple(nodes.split())
    refused = 4 - len(nodes.split())
    assert refusals(engine, web("w")) == ([(KeptAway(shy), refused, refused)] if refused else [])


@pytest.mark.parametrize(
    "newcomer",
    [
        pytest.param(ask("w", labels={"app": "db"}), id="one that does not match"),
        pytest.param(ask("w"), id="one without labels"),
        pytest.param(web("w", namespace="blue"), id="one in another namespace"),
    ],
)
def test_a_symmetric_anti_affinity_ignores(newcomer: Ask) -> None:
    engine = zones("a")
    run(engine, ask("shy", affinities=all_of(apart_from_app("web", symmetric=True))), "n0")
    assert candidates(engine, newcomer) == ("n0",)


@pytest.mark.parametrize(
    ("namespaces", "kept_away"),
    [
        pytest.param(None, ["blue"], id="its own namespace is that of the placed ask"),
        pytest.param(frozenset({"green"}), ["green"], id="listed namespaces are those of newcomers"),
        pytest.param(frozenset[str](), ["blue", "green"], id="the empty list is every namespace"),
    ],
)
def test_a_symmetric_anti_affinity_uses_its_own_namespace(
    namespaces: frozenset[str] | None, kept_away: list[str]
) -> None:
    engine = zones("a")
    shy = apart_from_app("web", symmetric=True, namespaces=namespaces)
    run(engine, ask("shy", namespace="blue", affinities=all_of(shy)), "n0")
    found = [space for space in ("blue", "green") if not candidates(engine, web("w", namespace=space))]
    assert found == kept_away


@pytest.mark.parametrize(
    "affinity",
    [
        pytest.param(near_app("web", symmetric=True), id="near work"),
        pytest.param(apart("w", symmetric=True), id="apart from work named by its id"),
    ],
)
def test_this_is_never_symmetric(affinity: Affinity) -> None:
    engine = with_web_on(zones("a"), "n0")
    run(engine, ask("shy", affinities=all_of(affinity)), "n0")
    assert candidates(engine, web("w")) == ("n0",)


def test_symmetric_ones_of_every_alternative_keep_newcomers_away_and_each_is_a_reason() -> None:
    engine = zones("a", "b", "c")
    by_node, by_zone = apart_from_app("web", symmetric=True), apart_from_app("web", "zone", symmetric=True)
    run(engine, ask("shy", affinities=((by_zone,), (by_node,))), "n1")
    assert refusals(engine, web("w")) == [(KeptAway(by_node), 1, 0), (KeptAway(by_zone), 0, 0)]
    assert candidates(engine, web("w")) == ("n0", "n2")


def test_symmetric_reasons_are_ordered_by_selector_topologies_and_namespaces() -> None:
    engine = zones("a")
    any_app = Affinity(Selector.all_of(Requirement.exists("app")), near=False, symmetric=True)
    everywhere = apart_from_app("web", symmetric=True, namespaces=frozenset())
    listed = apart_from_app("web", symmetric=True, namespaces=frozenset({"", "blue"}))
    by_zone = apart_from_app("web", "zone", symmetric=True, namespaces=frozenset())
    for index, shy in enumerate((by_zone, listed, any_app, everywhere)):
        run(engine, ask(f"shy-{index}", affinities=all_of(shy)), "n0")
    found = [reason for reason, _, _ in refusals(engine, web("w"))]
    assert found == [KeptAway(each) for each in (any_app, everywhere, listed, by_zone)]


def test_equal_symmetric_affinities_are_one_reason_wherever_their_work_is() -> None:
    engine = zones("a", "b", "c")
    shy = apart_from_app("web", symmetric=True, namespaces=frozenset())
    for where, namespace in (("n0", "blue"), ("n1", "blue"), ("n2", "green")):
        run(engine, ask(f"shy-{where}", namespace=namespace, affinities=all_of(shy)), where)
    assert refusals(engine, web("w")) == [(KeptAway(shy), 3, 3)]
    engine.apply(AskEnded("shy-n1"), AskEnded("shy-n2"))
    assert refusals(engine, web("w")) == [(KeptAway(shy), 1, 1)]


def test_a_symmetric_anti_affinity_ends_with_the_last_work_that_has_it() -> None:
    engine = zones("a")
    for id in ("shy-0", "shy-1"):
        run(engine, ask(id, affinities=all_of(apart_from_app("web", symmetric=True))), "n0")
    engine.apply(AskEnded("shy-0"))
    assert candidates(engine, web("w")) == ()
    engine.apply(AskEnded("shy-1"))
    assert candidates(engine, web("w")) == ("n0",)


def test_two_of_a_kind_that_stay_apart_both_ways_never_meet() -> None:
    engine = zones("a", "b", "c")
    shy = all_of(apart_from_app("web", symmetric=True))
    assert place(engine, *(web(f"w{index}", affinities=shy) for index in range(4))) == ["n0", "n1", "n2", None]


# As preferences


@pytest.mark.parametrize(
    ("want", "chosen"),
    [
        pytest.param(near_app("web"), "n2", id="near work goes there"),
        pytest.param(near_app("web", "zone"), "n1", id="near work by zone goes to the first node of the zone"),
        pytest.param(near("nobody"), "n0", id="near nobody is no obstacle"),
        pytest.param(near("shop"), "n2", id="near one ask"),
    ],
)
def test_a_soft_affinity_is_a_preference(want: Affinity, chosen: str) -> None:
    engine = zones("a", "b", "b")
    run(engine, ask("shop", labels={"app": "web"}), "n2")
    assert place(engine, ask("w", 1, prefers=(Preference(want),))) == [chosen]


def test_a_soft_apart_is_satisfied_while_possible() -> None:
    engine = zones("a", "b", cpu=2)
    soft = (Preference(apart_from_app("web")),)
    crowd = [ask(f"w{index}", 1, labels={"app": "web"}, prefers=soft) for index in range(4)]
    assert place(engine, *crowd) == ["n0", "n1", "n0", "n1"]


def test_a_soft_apart_is_never_symmetric() -> None:
    engine = zones("a")
    place(engine, ask("shy", prefers=(Preference(apart_from_app("web", symmetric=True)),)))
    assert candidates(engine, web("w")) == ("n0",)


def test_with_a_soft_affinity_the_first_of_its_kind_may_go_anywhere() -> None:
    engine = zones("-", "a")
    assert place(engine, web("w", prefers=(Preference(near_app("web", "zone")),))) == ["n1"]


# Domains that change under placed work


def test_a_domain_is_what_the_labels_say_now() -> None:
    engine = with_web_on(zones("a", "a", "b"), "n0")
    together = ask("w", affinities=all_of(near_app("web", "zone")))
    assert candidates(engine, together) == ("n0", "n1")
    engine.apply(NodeLabelled("n2", Labels({"zone": "a"})), NodeLabelled("n1", removed=("zone",)))
    assert candidates(engine, together) == ("n0", "n2")


def test_work_counts_as_often_as_it_is_there() -> None:
    engine = with_web_on(zones("a", "b"), "n0", "n0")
    together = ask("w", affinities=all_of(near_app("web")))
    engine.apply(AskEnded("web-0"))
    assert candidates(engine, together) == ("n0",)
    engine.apply(AskEnded("web-1"))
    assert candidates(engine, together) == ()


def test_work_that_moves_is_found_where_it_is_now() -> None:
    engine = with_web_on(zones("a", "b"), "n0")
    engine.apply(AskRunning(web("web-0"), "n1"))
    assert candidates(engine, ask("w", affinities=all_of(near_app("web")))) == ("n1",)
    assert candidates(engine, ask("w", affinities=all_of(near("web-0")))) == ("n1",)
    assert candidates(engine, ask("w", affinities=all_of(apart("web-0")), selector=on("zone", "a", "b"))) == ("n0",)


@pytest.mark.parametrize("count", [2, 20, 40])
def test_domains_of_many_nodes_are_found_from_few_and_from_many_places(count: int) -> None:
    engine = zones(*("ab"[index % 2] for index in range(count)), *"cd")
    with_web_on(engine, "n0")
    together = ask("w", affinities=all_of(near_app("web", "zone")))
    assert candidates(engine, together) == tuple(f"n{index}" for index in range(0, count, 2))
    for index in range(2, count, 2):
        run(engine, web(f"web-on-{index}"), f"n{index}")
    run(engine, web("web-on-c"), f"n{count}")
    assert candidates(engine, together) == (*(f"n{index}" for index in range(0, count, 2)), f"n{count}")


def test_work_that_keeps_others_away_is_named_in_the_order_of_its_selector_not_of_its_arrival() -> None:
    engine = cluster(node("n0"))
    of_web = Affinity(on("tier", "front"), near=False, symmetric=True)
    of_all = Affinity(on("app", "web"), near=False, symmetric=True)
    run(engine, ask("first", affinities=all_of(of_web)), "n0")
    run(engine, ask("second", affinities=all_of(of_all)), "n0")
    newcomer = ask("w", labels={"app": "web", "tier": "front"})
    assert [reason for reason, _, _ in refusals(engine, newcomer)] == [KeptAway(of_all), KeptAway(of_web)]
