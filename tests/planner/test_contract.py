"""The contract of plans: the engine places what a plan serves once its nodes join, and everything else is explained."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from stead import solver
from stead.engine.engine import Engine
from stead.engine.facts import AskSubmitted, ClaimChanged, Fact, GroupSubmitted, NodeJoined
from stead.language.asks import Ask, Group
from stead.language.claims import Claim
from stead.language.labels import Labels
from stead.language.nodes import Node, NodeTemplate
from stead.language.resources import Resources
from stead.planner.planning import plan
from stead.planner.plans import Launch, Limits, Plan, Quota, Stock
from stead.planner.trials import settle
from tests.strategies_for_tests import claims, clusters, groups, nodes, simple_facts, some_asks


@st.composite
def catalogs(draw: st.DrawFn) -> list[NodeTemplate]:
    kinds = draw(st.lists(nodes(), min_size=1, max_size=3))
    return [
        NodeTemplate(
            f"kind-{number}",
            kind.capacity,
            kind.labels,
            kind.taints,
            count_min=draw(st.sampled_from((0, 0, 0, 1))),
            count_max=draw(st.integers(1, 3)),
            price=draw(st.sampled_from((0.0, 1.0, 2.5))),
        )
        for number, kind in enumerate(kinds)
    ]


@st.composite
def limits(draw: st.DrawFn) -> Limits:
    quotas = [Quota("zone-a", Labels({"zone": "a"}), nodes_max=draw(st.integers(0, 4)))]
    quotas += [Quota("cpus", resources_max=Resources.of(CPU=draw(st.integers(1, 40))))]
    price_max = draw(st.sampled_from((None, None, 3.0, 6.0)))
    return Limits(tuple(quotas[: draw(st.integers(0, 2))]), price_max)


def cluster_of(there: Sequence[Node], asks: Sequence[Ask], gangs: Sequence[Group], known: Sequence[Claim]) -> Engine:
    engine = Engine(solver=solver.needed())
    engine.apply(*map(NodeJoined, there), *map(ClaimChanged, known))
    engine.apply(*map(AskSubmitted, asks), *map(GroupSubmitted, gangs))
    engine.decide()
    return engine


def after(engine: Engine, found: Plan) -> Engine:
    """The cluster after the nodes of a plan have joined, one wave after the other."""
    then = engine.fork()
    settle(then)
    waves = sorted({each.wave for each in found.launches})
    for launches in [found.coming, *([each for each in found.launches if each.wave == wave] for wave in waves)]:
        for each in launches:
            name = f"{each.template.name}/{each.wave}{'/coming' * (launches is found.coming)}"
            then.apply(*(NodeJoined(each.template.node(f"new/{name}/{number}")) for number in range(each.count)))
        settle(then)
    return then


def kinds_of(launches: Sequence[Launch]) -> Counter[str]:
    counts: Counter[str] = Counter()
    for each in launches:
        counts[each.template.name] += each.count
    return counts


@given(
    clusters(), some_asks(most=4), st.lists(groups(), max_size=2), st.lists(claims(), max_size=2), catalogs(), limits(),
    st.integers(0, 1), simple_facts(),
)  # fmt: skip
def test_what_a_plan_serves_is_placed_once_its_nodes_join(
    there: list[Node],
    asks: list[Ask],
    gangs: list[Group],
    known: list[Claim],
    catalog: list[NodeTemplate],
    limited: Limits,
    coming: int,
    facts: list[Fact],
) -> None:
    engine = cluster_of(there, asks, gangs, known)
    engine.apply(*facts)
    stock = Stock(coming={catalog[0].name: coming} if coming else {})
    found = plan(engine, catalog, limited, stock)
    then = after(engine, found)
    served = {id for each in (*found.coming, *found.launches) for id in each.serves}
    assert served | set(found.fits) == then.placed.keys() - engine.placed.keys()
    for each in (*found.coming, *found.launches):
        assert all(then.placed[id].startswith(f"new/{each.template.name}/{each.wave}") for id in each.serves)
    pending = [id for each in found.unserved for id in each.ids]
    assert sorted(pending) == sorted(then.waiting)
    assert all(each.nearest and each.verdict is not None for each in found.unserved)


@given(clusters(), some_asks(most=4), catalogs(), limits(), st.integers(0, 1))
def test_a_plan_keeps_every_limit_and_launches_nothing_for_nothing(
    there: list[Node], asks: list[Ask], catalog: list[NodeTemplate], limited: Limits, coming: int
) -> None:
    engine = cluster_of(there, asks, [], [])
    stock = Stock(coming={catalog[0].name: coming} if coming else {})
    found = plan(engine, catalog, limited, stock)
    counts = kinds_of([*found.launches, *found.coming])
    all_nodes = [*there, *(kind.node("new") for kind in catalog for _ in range(counts[kind.name]))]
    for kind in catalog:
        assert counts[kind.name] <= kind.count_max
        for each in found.launches:
            assert each.serves or kinds_of(found.launches)[each.template.name] <= each.template.count_min
    new = Counter(kinds_of(found.launches))
    for quota in limited.quotas:
        matching = [
            node for node in all_nodes if all(node.labels.get(key) == quota.labels[key] for key in quota.labels)
        ]
        if any(new[kind.name] for kind in catalog if quota.labels.items() <= kind.labels.items()):
            assert quota.nodes_max is None or len(matching) <= quota.nodes_max
            cpus = [kind for kind in catalog if new[kind.name] and kind.capacity.get("CPU")]
            if quota.resources_max is not None and cpus:
                assert sum(node.capacity.get("CPU") for node in matching) <= quota.resources_max.get("CPU")
    if limited.price_max is not None and found.price:
        assert sum(kind.price * counts[kind.name] for kind in catalog) <= limited.price_max


@settings(max_examples=30)
@given(clusters(), some_asks(most=4), st.lists(groups(), max_size=1), catalogs())
def test_equal_clusters_get_equal_plans_and_planning_changes_nothing(
    there: list[Node], asks: list[Ask], gangs: list[Group], catalog: list[NodeTemplate]
) -> None:
    engine = cluster_of(there, asks, gangs, [])
    before = engine.checkpoint()
    found = plan(engine, catalog)
    assert engine.checkpoint() == before
    assert plan(engine, catalog) == found
    assert plan(cluster_of(there, asks, gangs, []), catalog) == found
