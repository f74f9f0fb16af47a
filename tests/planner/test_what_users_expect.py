"""What users expect of a plan, one sentence each: mostly the autoscaler chapters of the four Ray proposals."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from stead.engine.engine import Engine
from stead.engine.facts import AskRunning, AskSubmitted, GroupSubmitted, NodeJoined, NodeTainted, NodeUsed
from stead.engine.reasons import NeverFits, NotNear
from stead.language.asks import Affinity, Ask, Choice, Group, PolicyName, Preference, Strategy
from stead.language.labels import ANYWHERE, NODE_ID, NODE_IP, Labels, Requirement, Selector
from stead.language.nodes import Node, NodeTemplate
from stead.language.resources import Resources
from stead.language.selectors import parse_selector
from stead.language.taints import Effect, Taint, Toleration
from stead.planner.planning import plan
from stead.planner.plans import Plan, Stock
from stead.solver import needed

SMALL = NodeTemplate("small", Resources.of(CPU=4), Labels({"instance": "4C8G", "zone": "a"}), count_max=100, price=1)
LARGE = NodeTemplate("large", Resources.of(CPU=8), Labels({"instance": "8C16G", "zone": "b"}), count_max=100, price=3)
GPU = NodeTemplate("gpu", Resources.of(CPU=4, GPU=4), Labels({"zone": "a"}), (Taint("gpu", "true"),), 0, 100, 8)
CATALOG = [LARGE, SMALL, GPU]

FULL = Node.of("full", {"CPU": 4}, {"instance": "4C8G", "zone": "a"}, ip="10.0.0.1")
TOLERANT = (Toleration("gpu", complement=True),)


def cluster(*asks: Ask, full: Node = FULL) -> Engine:
    engine = Engine(solver=needed())
    engine.apply(NodeJoined(full), NodeUsed(full.id, full.capacity))
    engine.apply(AskRunning(Ask("actor", (Choice(),), labels=Labels({"app": "actor"})), full.id))
    engine.apply(*map(AskSubmitted, asks))
    engine.decide()
    return engine


def cpu(id: str = "w", selector: Selector = ANYWHERE, count: float = 1, **more: object) -> Ask:
    return Ask.of(id, {"CPU": count}, selector, **more)  # type: ignore[arg-type]  # what Ask.of takes


def launched(found: Plan) -> dict[str, int]:
    counts: Counter[str] = Counter()
    for each in found.launches:
        counts[each.template.name] += each.count
    return dict(counts)


def launches(*asks: Ask) -> dict[str, int]:
    return launched(plan(cluster(*asks), CATALOG))


def test_a_label_that_one_type_has_launches_that_type() -> None:
    assert launches(cpu(selector=parse_selector("instance=8C16G"))) == {"large": 1}


def test_of_several_types_that_fit_the_cheapest_is_launched() -> None:
    assert launches(cpu()) == {"small": 1}
    assert launches(cpu(selector=parse_selector("instance in {4C8G, 8C16G}"))) == {"small": 1}


@pytest.mark.parametrize(
    "ask",
    [
        cpu(selector=Selector.all_of(Requirement.is_in(NODE_IP, "10.0.0.1"))),
        cpu(selector=Selector.all_of(Requirement.is_in(NODE_ID, "full"))),
        cpu(affinities=((Affinity(parse_selector("app=actor")),),)),
        cpu(affinities=((Affinity(Selector.all_of(Requirement.is_in("ask_id", "actor"))),),)),
    ],
    ids=["node_ip", "node_id", "an actor by label", "an actor by id"],
)
def test_work_for_a_node_that_exists_never_launches(ask: Ask) -> None:
    found = plan(cluster(ask), CATALOG)
    assert found.launches == ()
    assert [each.ids for each in found.unserved] == [("w",)]


def test_work_near_an_actor_in_its_zone_launches_a_node_in_that_zone() -> None:
    near = Affinity(parse_selector("app=actor"), topologies=("zone",))
    assert launches(cpu(affinities=((near,),))) == {"small": 1}
    found = plan(cluster(cpu(affinities=((near,),))), [LARGE])
    assert found.launches == ()
    (left,) = found.unserved
    assert left.verdict is not None
    assert [each.reason for each in left.verdict.refusals] == [NotNear(near)]


def test_anti_affinity_launches_where_the_type_allows_it() -> None:
    apart = Affinity(parse_selector("app=actor"), near=False, topologies=("zone",))
    assert launches(cpu(affinities=((apart,),))) == {"large": 1}


def test_work_that_keeps_apart_from_itself_gets_one_node_each() -> None:
    apart = Affinity(parse_selector("app=db"), near=False)
    asks = [cpu(f"db-{n}", affinities=((apart,),), labels={"app": "db"}) for n in range(5)]
    assert launches(*asks) == {"small": 5}


def test_work_that_must_be_near_pending_work_gets_a_node_that_holds_both() -> None:
    near = Affinity(parse_selector("app=db"))
    db = cpu("db", labels={"app": "db"})
    found = plan(cluster(db, *(cpu(f"near-{n}", affinities=((near,),)) for n in range(6))), CATALOG)
    assert (launched(found), found.unserved) == ({"large": 1}, ())


def test_a_soft_label_launches_a_type_that_has_it_even_if_that_costs_more() -> None:
    prefers = (Preference(parse_selector("instance=8C16G")),)
    assert launches(cpu(prefers=prefers)) == {"large": 1}


def test_a_soft_label_that_no_type_has_launches_any_type_that_fits() -> None:
    assert launches(cpu(prefers=(Preference(parse_selector("instance=64C")),))) == {"small": 1}


def test_a_type_that_is_only_preferred_gives_way_when_its_maximum_is_reached() -> None:
    prefers = (Preference(parse_selector("instance=8C16G")),)
    asks = [cpu(f"w{n}", count=4 if n else 8, prefers=prefers) for n in range(2)]
    found = plan(cluster(*asks), [replace(LARGE, count_max=1), SMALL])
    assert launched(found) == {"large": 1, "small": 1}
    assert found.unserved == ()


def test_a_type_with_a_taint_that_work_does_not_tolerate_is_never_launched() -> None:
    train = Ask.of("train", {"GPU": 1})
    assert launches(train) == {}
    assert launches(replace(train, tolerations=TOLERANT)) == {"gpu": 1}


def test_a_soft_taint_only_makes_a_type_the_last_choice() -> None:
    soft = replace(SMALL, taints=(Taint("spot", "", Effect.PREFER_NO_SCHEDULE),))
    assert launched(plan(cluster(cpu()), [LARGE, soft])) == {"large": 1}
    assert launched(plan(cluster(cpu()), [soft])) == {"small": 1}


def test_a_dynamic_taint_on_one_node_does_not_poison_its_type() -> None:
    engine = cluster(cpu())
    engine.apply(NodeTainted("full", Taint("broken", "true")))
    engine.decide()
    assert launched(plan(engine, CATALOG, stock=Stock({"full": "small"}))) == {"small": 1}


def test_equal_resources_with_different_rules_are_different_demand() -> None:
    in_a, in_b = parse_selector("zone=a"), parse_selector("zone=b")
    asks = [cpu("a", in_a, 4), cpu("b", in_b, 4), cpu("g", count=4, selector=in_a, tolerations=TOLERANT)]
    found = plan(cluster(*asks), CATALOG)
    assert launched(found) == {"small": 2, "large": 1}
    assert {each.template.name: set(each.serves) for each in found.launches} == {"small": {"a", "g"}, "large": {"b"}}


def test_a_fallback_uses_an_existing_node_before_a_new_one() -> None:
    ask = Ask("w", (Choice(Resources.of(GPU=1)), Choice(Resources.of(CPU=1))), tolerations=TOLERANT)
    engine = cluster(ask)
    engine.apply(NodeJoined(Node.of("free", {"CPU": 1})))
    found = plan(engine, CATALOG)
    assert (found.launches, found.fits) == ((), ("w",))


def test_of_several_choices_the_first_one_that_a_type_serves_is_launched() -> None:
    train = Ask("w", (Choice(Resources.of(TPU=1)), Choice(Resources.of(GPU=1)), Choice(Resources.of(CPU=1))))
    assert launches(replace(train, tolerations=TOLERANT)) == {"gpu": 1}
    assert launches(train) == {"small": 1}


def test_a_limit_that_is_reached_is_said() -> None:
    found = plan(cluster(*(cpu(f"w{n}", count=4) for n in range(3))), [replace(SMALL, count_max=2)])
    assert found.limits == ("small",)
    assert [(each.ids, each.nearest, each.limit) for each in found.unserved] == [(("w2",), "small", "small")]


def test_work_that_is_too_large_for_every_type_says_what_the_nearest_type_lacks() -> None:
    found = plan(cluster(cpu(count=16)), CATALOG)
    (left,) = found.unserved
    assert (left.nearest, left.limit) == ("large", "")
    assert left.verdict is not None
    assert [each.reason for each in left.verdict.refusals] == [NeverFits("CPU", 160000)]


def test_work_of_a_flow_policy_gets_nodes_too() -> None:
    assert launches(*(cpu(f"w{n}", count=2, policy=PolicyName.FLOW) for n in range(4))) == {"small": 2}


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        (Strategy.PACK, {"small": 1}),
        (Strategy.SPREAD, {"small": 1}),
        (Strategy.ANY, {"small": 1}),
        (Strategy.STRICT_PACK, {"small": 1}),
        (Strategy.STRICT_SPREAD, {"small": 4}),
    ],
    ids=str,
)
def test_a_group_gets_the_nodes_that_its_strategy_needs(strategy: Strategy, expected: dict[str, int]) -> None:
    engine = cluster()
    engine.apply(GroupSubmitted(Group("g", (tuple(cpu(f"g/{n}") for n in range(4)),), strategy)))
    found = plan(engine, CATALOG)
    assert launched(found) == expected
    assert sum(len(each.serves) for each in found.launches) == 4


def test_a_group_that_must_be_on_one_node_gets_one_that_is_large_enough() -> None:
    engine = cluster()
    engine.apply(GroupSubmitted(Group("g", (tuple(cpu(f"g/{n}", count=2) for n in range(4)),), Strategy.STRICT_PACK)))
    assert launched(plan(engine, CATALOG)) == {"large": 1}


def test_a_group_that_must_be_on_one_node_although_no_kind_takes_all_members_launches_nothing() -> None:
    engine = cluster()
    members = (cpu("g/0", parse_selector("zone=a")), cpu("g/1", parse_selector("zone=b")))
    engine.apply(GroupSubmitted(Group("g", (members,), Strategy.STRICT_PACK)))
    found = plan(engine, CATALOG)
    assert (found.launches, [each.ids for each in found.unserved]) == ((), [("g",)])


@pytest.mark.parametrize(
    ("strategy", "expected"), [(Strategy.STRICT_PACK, {"small": 2}), (Strategy.STRICT_SPREAD, {"small": 1, "large": 1})]
)
def test_a_group_with_a_rule_about_zones_gets_nodes_in_these_zones(
    strategy: Strategy, expected: dict[str, int]
) -> None:
    engine = cluster()
    members = tuple(cpu(f"g/{n}", count=4) for n in range(2))
    engine.apply(GroupSubmitted(Group("g", (members,), topology=(("zone", strategy),))))
    assert launched(plan(engine, CATALOG)) == expected


def test_a_group_with_a_minimum_gets_nodes_for_all_members_or_as_limits_allow_for_its_minimum() -> None:
    engine = cluster()
    members = tuple(cpu(f"g/{n}", count=4) for n in range(5))
    engine.apply(GroupSubmitted(Group("g", (members,), min_available=3)))
    assert launched(plan(engine, [SMALL])) == {"small": 5}
    found = plan(engine, [replace(SMALL, count_max=4)])
    assert launched(found) == {"small": 4}
    assert [(each.ids, each.limit) for each in found.unserved] == [(("g",), "small")]
    assert plan(engine, [replace(SMALL, count_max=2)]).launches == ()


def test_a_group_that_waits_for_more_members_launches_nothing() -> None:
    engine = cluster()
    engine.apply(GroupSubmitted(Group("g", ((cpu("g/0"), cpu("g/1")),), min_available=3)))
    assert plan(engine, [SMALL]).launches == ()


def test_many_equal_groups_share_nodes() -> None:
    engine = cluster()
    for number in range(4):
        members = tuple(cpu(f"g{number}/{n}") for n in range(3))
        engine.apply(GroupSubmitted(Group(f"g{number}", (members,), Strategy.STRICT_SPREAD)))
    assert launched(plan(engine, [SMALL])) == {"small": 3}


def test_work_of_a_higher_priority_gets_the_nodes_that_a_limit_leaves() -> None:
    asks = [cpu("low", count=4), cpu("high", count=8, priority=1)]
    found = plan(cluster(*asks), [replace(SMALL, count_max=0), replace(LARGE, count_max=1)])
    assert [each.serves for each in found.launches] == [("high",)]
    assert [(each.ids, each.limit) for each in found.unserved] == [(("low",), "large")]
