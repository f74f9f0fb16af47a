"""Situations worth explaining, one function each; its name is a sentence, and the name of a golden file."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stead.engine.engine import Engine
from stead.engine.explain.explanations import Explanation
from stead.engine.facts import AskEnded, ClaimChanged, ClockAdvanced
from stead.language.asks import Affinity, Ask, Choice, HostPort, PolicyName, Preference, Spread, Strategy
from stead.language.claims import Claim
from stead.language.labels import ANYWHERE, NOWHERE, Requirement, Selector
from stead.language.nodes import Node
from stead.language.taints import Effect
from tests.behaviour import (
    all_of,
    amounts,
    apart,
    apart_from_app,
    ask,
    cluster,
    decide_after,
    fill,
    group,
    near,
    near_app,
    node,
    on,
    run,
    submit,
    taint,
    zones,
)

Case = Callable[[], Explanation]
CASES: dict[str, Case] = {}


def case(function: Case) -> Case:
    CASES[function.__name__.replace("_", "-")] = function
    return function


def wanting(requirement: Requirement, *labels: dict[str, str]) -> Explanation:
    """An ask with this requirement, on nodes with these labels."""
    engine = cluster(*(node(f"n{index}", labels=each) for index, each in enumerate(labels)))
    return engine.explain(ask("w", 1, selector=Selector.all_of(requirement)))


def with_web(engine: Engine, *nodes: str) -> Engine:
    for index, where in enumerate(nodes):
        run(engine, ask(f"web-{index}", labels={"app": "web"}), where)
    return engine


def full(*cpus: float, **more: Any) -> Engine:
    """Nodes of these sizes, full; with one amount of other resources each."""
    engine = cluster(*(node(f"n{index}", cpu, **more) for index, cpu in enumerate(cpus)))
    for index, cpu in enumerate(cpus):
        fill(engine, f"n{index}", cpu)
    return engine


# Every reason, for one node and for several


@case
def it_would_fit() -> Explanation:
    return zones("a", "b").explain(ask("w", 1))


@case
def it_would_fit_one_node_of_two() -> Explanation:
    return zones("a", "b").explain(ask("w", 1, selector=on("zone", "a")))


@case
def there_are_no_nodes() -> Explanation:
    return cluster().explain(ask("w", 1))


@case
def one_node_drains() -> Explanation:
    return cluster(node("n0", draining=True)).explain(ask("w", 1))


@case
def two_nodes_drain() -> Explanation:
    return cluster(node("n0", draining=True), node("n1", draining=True)).explain(ask("w", 1))


@case
def one_node_has_a_port_in_use() -> Explanation:
    engine = cluster(node("n0"))
    run(engine, ask("web", 1, ports=(HostPort(80),)), "n0")
    return engine.explain(ask("w", 1, ports=(HostPort(80, ip="10.0.0.1"),)))


@case
def two_nodes_have_a_port_in_use() -> Explanation:
    engine = cluster(node("n0"), node("n1"))
    for name in ("n0", "n1"):
        run(engine, ask(f"web-{name}", 1, ports=(HostPort(80),)), name)
    return engine.explain(ask("w", 1, ports=(HostPort(80),)))


def using(*claims: Claim, user: str = "", volumes: int = 9) -> Explanation:
    """An ask that uses these claims, and one that does not exist if there are none, on a node in each of two zones. If
    a user is named, it uses the first claim on the first node."""
    nodes = (Node.of(f"n{zone}", {"CPU": 4}, {"zone": zone}, volumes={"ebs": volumes}) for zone in "ab")
    engine = cluster(*nodes)
    engine.apply(*map(ClaimChanged, claims))
    if user:
        run(engine, ask(user, 1, claims=(claims[0].id,)), "na")
    return engine.explain(ask("w", 1, claims=tuple(claim.id for claim in claims) or ("missing",)))


@case
def a_claim_does_not_exist() -> Explanation:
    return using()


@case
def a_claim_cannot_be_used() -> Explanation:
    return using(Claim("data", problem="it is being deleted"))


@case
def a_claim_is_available_elsewhere() -> Explanation:
    return using(Claim("data", on("zone", "c")))


@case
def a_claim_is_available_nowhere() -> Explanation:
    return using(Claim("data", NOWHERE))


@case
def a_claim_is_in_use() -> Explanation:
    return using(Claim("data", exclusive=True), user="other")


@case
def a_claim_is_being_bound_elsewhere() -> Explanation:
    return using(Claim("data", bound=False), Claim("more", on("zone", "b")), user="other")


@case
def nodes_have_too_many_volumes() -> Explanation:
    return using(Claim("data", driver="ebs"), volumes=0)


@case
def one_node_lacks_a_label() -> Explanation:
    return wanting(Requirement.is_in("gpu_type", "A100"), {})


@case
def two_nodes_have_other_values_of_a_label() -> Explanation:
    return wanting(Requirement.is_in("gpu_type", "A100", "H100"), {"gpu_type": "T4"}, {"gpu_type": "T4"}, {})


@case
def one_node_has_an_unwanted_value() -> Explanation:
    return wanting(Requirement.not_in("market", "spot", "preemptible"), {"market": "spot"})


@case
def two_nodes_have_an_unwanted_value() -> Explanation:
    return wanting(Requirement.not_in("market", "spot"), {"market": "spot"}, {"market": "spot"})


@case
def one_node_has_an_unwanted_label() -> Explanation:
    return wanting(Requirement.does_not_exist("spot"), {"spot": "yes"})


@case
def two_nodes_have_an_unwanted_label() -> Explanation:
    return wanting(Requirement.does_not_exist("spot"), {"spot": "yes"}, {"spot": "no"})


@case
def a_label_must_exist() -> Explanation:
    return wanting(Requirement.exists("disk"), {}, {})


@case
def a_number_is_too_small() -> Explanation:
    return wanting(Requirement.greater_than("cores", 8), {"cores": "8"})


@case
def a_number_is_too_large() -> Explanation:
    return wanting(Requirement.less_than("age", 3), {"age": "3"}, {"age": "x"})


@case
def one_node_matches_no_term() -> Explanation:
    selector = Selector.any_of(Requirement.is_in("zone", "c"), Requirement.is_in("rack", "r"))
    return zones("a").explain(ask("w", 1, selector=selector))


@case
def two_nodes_match_no_term() -> Explanation:
    selector = Selector(((Requirement.is_in("zone", "c"), Requirement.exists("disk")), (Requirement.exists("rack"),)))
    return zones("a", "b").explain(ask("w", 1, selector=selector))


@case
def there_is_no_term() -> Explanation:
    return zones("a", "b").explain(ask("w", 1, selector=NOWHERE))


@case
def the_work_it_must_be_near_is_not_placed() -> Explanation:
    return zones("a", "b").explain(ask("w", 1, affinities=all_of(near("trainer"))))


def waiting_for_the_dead(*ids: str, of: int, **rest: Any) -> Explanation:
    """An ask that must be near work that has ended, on this many nodes."""
    engine = zones(*"ab"[:of])
    submit(engine, ask("w", 1, affinities=all_of(near(*ids, **rest))))
    decide_after(engine, *map(AskEnded, ids))
    return engine.explain("w")


@case
def the_work_it_must_be_near_is_dead() -> Explanation:
    return waiting_for_the_dead("trainer", of=1)


@case
def all_work_that_it_could_be_near_is_dead() -> Explanation:
    return waiting_for_the_dead("web-1", "web-0", of=2, topologies=("zone",))


@case
def the_work_it_must_be_near_is_on_a_full_node() -> Explanation:
    engine = with_web(zones("a", "b"), "n0")
    fill(engine, "n0", 4)
    return engine.explain(ask("w", 1, affinities=all_of(near("web-0", "web-1"))))


@case
def work_of_a_kind_is_not_in_the_zone() -> Explanation:
    engine = with_web(zones("a", "b"), "n0")
    fill(engine, "n0", 4)
    return engine.explain(ask("w", 1, affinities=all_of(near_app("web", "zone"))))


@case
def no_work_is_anywhere_near() -> Explanation:
    affinity = Affinity(ANYWHERE, topologies=("zone", "rack"))
    return with_web(zones("a"), "n0").explain(ask("w", 1, affinities=all_of(affinity)))


@case
def the_work_it_must_be_apart_from_is_there() -> Explanation:
    return with_web(zones("a"), "n0").explain(ask("w", 1, affinities=all_of(apart("web-0"))))


@case
def work_of_a_kind_it_must_be_apart_from_is_in_both_zones() -> Explanation:
    return with_web(zones("a", "b"), "n0", "n1").explain(ask("w", 1, affinities=all_of(apart_from_app("web", "zone"))))


@case
def any_work_but_one_is_too_near() -> Explanation:
    but_one = Affinity(Selector.all_of(Requirement.not_in("ask_id", "friend")), near=False)
    return with_web(zones("a"), "n0").explain(ask("w", 1, affinities=all_of(but_one)))


@case
def one_node_meets_no_alternative() -> Explanation:
    return with_web(zones("a"), "n0").explain(ask("w", 1, affinities=((near("x"),), (apart_from_app("web"),))))


@case
def two_nodes_meet_no_alternative() -> Explanation:
    either = ((near("x"),), (near("y"),), (near("z"),))
    return zones("a", "b").explain(ask("w", 1, affinities=either))


@case
def a_node_is_kept_free_of_work_like_this() -> Explanation:
    engine = zones("a")
    run(engine, ask("shy", affinities=all_of(apart_from_app("web", symmetric=True))), "n0")
    return engine.explain(ask("w", 1, labels={"app": "web"}))


@case
def the_spread_would_become_uneven() -> Explanation:
    engine = with_web(zones("a", "b"), "n0")
    fill(engine, "n1", 4)
    return engine.explain(ask("w", 1, labels={"app": "web"}, spreads=(Spread("zone", on("app", "web")),)))


@case
def taints_of_every_effect() -> Explanation:
    engine = cluster(
        node("n0", taints=[taint("gpu_node", "true")]),
        node("n1", taints=[taint("maintenance", "", Effect.NO_EXECUTE)]),
        node("n2", taints=[taint("spot", "yes"), taint("old", "", Effect.PREFER_NO_SCHEDULE)]),
        node("n3", taints=[taint("gpu_node", "true")]),
    )
    return engine.explain(ask("w", 1))


@case
def one_node_is_too_small() -> Explanation:
    return cluster(node("n0", 4)).explain(ask("w", 5.5))


@case
def two_nodes_are_too_small_for_memory() -> Explanation:
    return cluster(node("n0", memory="1Gi"), node("n1", memory="1536Mi")).explain(ask("w", 1, memory="2Gi"))


@case
def one_node_is_full() -> Explanation:
    return full(4).explain(ask("w", 2.25))


@case
def two_nodes_are_short_of_two_things() -> Explanation:
    engine = full(4, 2, memory="2Gi")
    for id in ("n0", "n1"):
        run(engine, ask(f"memory-{id}", memory="1Gi"), id)
    return engine.explain(ask("w", 1, memory="1.5Gi"))


@case
def shared_devices_are_not_whole() -> Explanation:
    engine = cluster(node("n0", GPU=2))
    for index in range(2):
        run(engine, ask(f"share-{index}", gpu=0.6), "n0")
    return engine.explain(ask("w", gpu=1))


@case
def a_share_of_a_device_is_too_large() -> Explanation:
    engine = cluster(node("n0", GPU=1), node("n1"))
    run(engine, ask("share", gpu=0.75), "n0")
    return engine.explain(ask("w", gpu=0.5))


@case
def a_node_is_reserved() -> Explanation:
    engine = full(2)
    submit(engine, ask("patient-one", 2))
    decide_after(engine, ClockAdvanced(1000))
    return engine.explain(ask("w"))


@case
def several_reasons_at_once_blame_each_node_on_the_first() -> Explanation:
    engine = cluster(
        node("n0", labels={"gpu_type": "T4"}),
        node("n1", labels={"gpu_type": "T4"}, taints=[taint("gpu_node", "true")]),
        node("n2", 1, labels={"gpu_type": "A100"}),
        node("n3", labels={"gpu_type": "A100"}, taints=[taint("gpu_node", "true")]),
        node("n4", labels={"gpu_type": "A100"}, draining=True),
        node("n5", labels={"gpu_type": "A100"}),
    )
    fill(engine, "n5", 3)
    return engine.explain(ask("w", 2, selector=on("gpu_type", "A100")))


# Choices


@case
def two_choices_that_do_not_fit() -> Explanation:
    choices = (Choice(amounts(CPU=2), on("zone", "c")), Choice(amounts(CPU=8)))
    return zones("a", "b").explain(Ask("w", choices))


@case
def the_second_choice_is_closer() -> Explanation:
    choices = (
        Choice(amounts(CPU=2), Selector.all_of(Requirement.exists("a"), Requirement.exists("b"))),
        Choice(amounts(GPU=1)),
    )
    return zones("a").explain(Ask("w", choices))


@case
def the_second_choice_fits() -> Explanation:
    choices = (Choice(amounts(CPU=9)), Choice(amounts(CPU=1)))
    return zones("a", "b").explain(Ask("w", choices))


# Placed work


@case
def placed_with_no_runner_up() -> Explanation:
    engine = cluster(node("n0"), node("n1", taints=[taint("x")]))
    submit(engine, ask("w", 1))
    return engine.explain("w")


@case
def placed_with_runners_up() -> Explanation:
    engine = cluster(*(node(f"n{index}", 8) for index in range(6)))
    fill(engine, "n1", 6)
    fill(engine, "n2", 5)
    submit(engine, ask("w", 2, policy=PolicyName.SPREAD))
    return engine.explain("w")


@case
def placed_by_preference() -> Explanation:
    engine = cluster(node("n0"), node("n1", taints=[taint("old", "", Effect.PREFER_NO_SCHEDULE)]), node("n2"))
    submit(engine, ask("w", 1, prefers=(Preference(on("node_id", "n2"), 30),), policy=PolicyName.PACK))
    return engine.explain("w")


@case
def placed_by_a_later_choice() -> Explanation:
    engine = zones("a", "b")
    submit(engine, Ask("w", (Choice(amounts(CPU=2), on("zone", "c")), Choice(amounts(CPU=1), on("zone", "b")))))
    return engine.explain("w")


# Groups


def members(count: int, cpu: float = 1, **rest: Any) -> list[Ask]:
    return [ask(f"m{index}", cpu, **rest) for index in range(count)]


@case
def a_group_that_fits() -> Explanation:
    return zones("a", "b").explain(group("g", *members(3)))


@case
def a_group_whose_members_fit_alone() -> Explanation:
    return zones("a", "b").explain(group("g", *members(3), strategy=Strategy.STRICT_SPREAD))


@case
def a_group_that_no_zone_can_hold() -> Explanation:
    packed = (("zone", Strategy.STRICT_PACK),)
    return zones("a", "b").explain(group("g", *members(3, 2), strategy=Strategy.SPREAD, topology=packed))


@case
def a_group_with_members_that_fit_nowhere() -> Explanation:
    picky = (*members(2), ask("chief", 1, selector=on("zone", "c")), ask("x0", 9), ask("x1", 9))
    return zones("a", "b").explain(group("g", *picky))


@case
def a_group_that_is_placed() -> Explanation:
    engine = zones("a", "b")
    submit(engine, group("g", *members(2)))
    return engine.explain("g")


@case
def a_member_that_is_placed() -> Explanation:
    engine = zones("a", "b")
    submit(engine, group("g", *members(2)))
    return engine.explain("m1")


@case
def a_member_of_a_group_that_waits() -> Explanation:
    engine = zones("a")
    submit(engine, group("g", ask("m0", 1), ask("m1", 9)))
    return engine.explain("m1")


@case
def a_group_that_waits_for_one_member() -> Explanation:
    engine = cluster(node("n0", 1))
    submit(engine, group("g", *members(2)))
    run(engine, ask("m0", 1), "n0")
    return engine.explain("g")


# Edits that only combine


@case
def a_taint_and_a_label() -> Explanation:
    engine = cluster(node("n0", labels={"zone": "a"}, taints=[taint("gpu_node", "true")]))
    return engine.explain(ask("w", 1, selector=on("zone", "b")))


@case
def three_edits() -> Explanation:
    engine = cluster(node("n0", 4, labels={"zone": "a"}, taints=[taint("x")], draining=True))
    return engine.explain(ask("w", 1, selector=on("zone", "b")))


@case
def a_label_that_cures_two_obstacles() -> Explanation:
    engine = with_web(cluster(node("n0", labels={"zone": "a"}, draining=True), node("n1")), "n0")
    wants = Selector.all_of(Requirement.exists("zone"))
    return engine.explain(ask("w", 1, selector=wants, affinities=all_of(near_app("web", "zone"))))
