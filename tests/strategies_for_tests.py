"""Small random clusters and work, for hypothesis: few names, so that things meet.

Rule: every field of every type of the language can take every kind of value here, and most of the time takes the plain
one, so that work fits often enough for the rest to be worth testing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from hypothesis import strategies as st

from stead.asks import Affinity, Ask, Choice, Group, PolicyName, Preference, Spread, Strategy
from stead.labels import ANYWHERE, Labels, Requirement, Selector
from stead.nodes import Node
from stead.resources import Resources
from stead.taints import Effect, Taint, Toleration

T = TypeVar("T")

NODE_IDS = ("n0", "n1", "n2", "n3", "n4", "n5")
ASK_IDS = ("w0", "w1", "w2", "w3", "w4", "w5", "w6", "w7", "w8", "w9")
GROUP_IDS = ("g0", "g1", "g2")
NAMESPACES = ("", "blue")

NODE_LABELS = {
    "zone": ("a", "b", ""),
    "tier": ("1", "2", "10", "-3", "+2", "x", "9223372036854775808"),
    "rack": ("r1", "r2"),
}
WORK_LABELS = {"app": ("web", "db", ""), "size": ("1", "7")}
TOPOLOGIES = ("node_id", "zone", "rack", "zone")
CAPACITIES = {"CPU": (0, 1, 2, 4), "memory": (0, 1024, 4096), "GPU": (0, 0, 1, 2, 3), "disk": (0, 0, 2)}
NEEDS = {"CPU": (0, 0.5, 1, 2), "memory": (0, 0, 0, 1024), "GPU": (0, 0, 0, 0.25, 0.5, 1, 2), "disk": (0, 0, 0, 1)}


def rarely(usual: T, strategy: st.SearchStrategy[T], one_in: int = 3) -> st.SearchStrategy[T]:
    """Mostly `usual`; once in so many times something of the strategy."""
    return st.integers(0, one_in - 1).flatmap(lambda die: strategy if die == one_in - 1 else st.just(usual))


@st.composite
def resources(draw: st.DrawFn, amounts: dict[str, tuple[float, ...]]) -> Resources:
    return Resources.of({name: draw(st.sampled_from(values)) for name, values in amounts.items()})


def capacities() -> st.SearchStrategy[Resources]:
    return resources({**CAPACITIES})


@st.composite
def labels(draw: st.DrawFn, of: dict[str, tuple[str, ...]]) -> Labels:
    pairs = {key: draw(st.sampled_from((None, *values))) for key, values in of.items()}
    return Labels({key: value for key, value in pairs.items() if value is not None})


def node_labels() -> st.SearchStrategy[Labels]:
    return labels(NODE_LABELS)


def taints() -> st.SearchStrategy[Taint]:
    return st.builds(Taint, st.sampled_from(("gpu", "spot")), st.sampled_from(("", "x", "y")), st.sampled_from(Effect))


@st.composite
def nodes(draw: st.DrawFn, ids: tuple[str, ...] = NODE_IDS) -> Node:
    id = draw(st.sampled_from(ids))
    return Node(
        id,
        draw(capacities()),
        draw(node_labels()),
        tuple(
            {(taint.key, taint.effect): taint for taint in draw(rarely([], st.lists(taints(), max_size=3)))}.values()
        ),
        ip=draw(st.sampled_from(("", f"10.0.0.{id[1:]}"))),
        name=draw(st.sampled_from(("", f"name-{id}"))),
        draining=draw(rarely(False, st.booleans(), 5)),
    )


@st.composite
def requirements(draw: st.DrawFn, of: dict[str, tuple[str, ...]]) -> Requirement:
    key = draw(st.sampled_from(tuple(of)))
    values = draw(st.lists(st.sampled_from(of[key]), min_size=1, max_size=2, unique=True))
    bounds = st.integers(-4, 11)
    kinds: tuple[Callable[[], Requirement], ...] = (
        lambda: Requirement.is_in(key, *values),
        lambda: Requirement.not_in(key, *values),
        lambda: Requirement.exists(key),
        lambda: Requirement.does_not_exist(key),
        lambda: Requirement.greater_than(key, draw(bounds)),
        lambda: Requirement.less_than(key, draw(bounds)),
    )
    return draw(st.sampled_from(kinds))()


@st.composite
def selectors(draw: st.DrawFn, of: dict[str, tuple[str, ...]]) -> Selector:
    term_count = draw(st.sampled_from((1, 1, 1, 1, 2, 3, 0)))
    terms = [draw(st.lists(requirements(of), max_size=2)) for _ in range(term_count)]
    return Selector(tuple(map(tuple, terms)))


def node_selectors(by_id: bool = True) -> st.SearchStrategy[Selector]:
    ids = {"node_id": NODE_IDS, "ray.io/node-id": NODE_IDS} if by_id else {}
    return selectors({**NODE_LABELS, "node_name": ("name-n0", "name-n1"), **ids})


def work_selectors(by_id: bool = True) -> st.SearchStrategy[Selector]:
    return selectors({**WORK_LABELS, "ask_id": ASK_IDS} if by_id else WORK_LABELS)


def tolerations() -> st.SearchStrategy[Toleration]:
    return st.builds(
        Toleration,
        key=st.sampled_from(("gpu", "spot", None)),
        values=st.frozensets(st.sampled_from(("", "x", "y")), max_size=2),
        complement=st.booleans(),
        effect=st.sampled_from((None, *Effect)),
        seconds=st.sampled_from((None, None, 0.0, 5.0, 20.0, -1.0)),
    )


@st.composite
def affinities(draw: st.DrawFn) -> Affinity:
    near = draw(st.booleans())
    keys = draw(rarely([], st.lists(st.sampled_from(TOPOLOGIES), min_size=2, max_size=2, unique=True), 4))
    return Affinity(
        draw(work_selectors()),
        near,
        tuple(keys) or (draw(st.sampled_from(TOPOLOGIES)),),
        draw(st.sampled_from((None, None, frozenset[str](), frozenset({"blue"}), frozenset({"", "blue"})))),
        symmetric=draw(st.booleans()),
    )


def alternatives() -> st.SearchStrategy[tuple[tuple[Affinity, ...], ...]]:
    every = st.lists(affinities(), max_size=2).map(tuple)
    return st.lists(every, min_size=1, max_size=2).map(tuple)


def spreads() -> st.SearchStrategy[Spread]:
    return st.builds(Spread, st.sampled_from(TOPOLOGIES), work_selectors(by_id=False), st.integers(1, 2))


def preferences() -> st.SearchStrategy[Preference]:
    wants = st.one_of(node_selectors(), affinities(), spreads())
    return st.builds(Preference, wants, st.sampled_from((1, 50, 100)))


@st.composite
def choices(draw: st.DrawFn, by_id: bool = True) -> Choice:
    return Choice(draw(resources({**NEEDS})), draw(rarely(ANYWHERE, node_selectors(by_id))))


@st.composite
def asks(draw: st.DrawFn, ids: tuple[str, ...] = ASK_IDS, choice_count_max: int = 2, by_id: bool = True) -> Ask:
    return Ask(
        draw(st.sampled_from(ids)),
        tuple(draw(st.lists(choices(by_id), min_size=1, max_size=choice_count_max))),
        tuple(draw(rarely([], st.lists(tolerations(), min_size=1, max_size=2)))),
        draw(rarely((), alternatives())),
        tuple(draw(rarely([], st.lists(spreads(), min_size=1, max_size=2), 5))),
        tuple(draw(rarely([], st.lists(preferences(), min_size=1, max_size=2)))),
        draw(labels(WORK_LABELS)),
        draw(st.sampled_from(NAMESPACES)),
        draw(st.sampled_from(PolicyName)),
        priority=draw(rarely(0, st.sampled_from((-1, 1)), 4)),
        deadline=draw(rarely(None, st.sampled_from((0.0, 10.0, 40.0, 100.0)), 6)),
    )


@st.composite
def groups(draw: st.DrawFn) -> Group:
    """Members are named after their group, ``g0.0.1``: the second member of the first alternative."""
    id = draw(st.sampled_from(GROUP_IDS))
    alternatives = []
    for index in range(draw(st.sampled_from((1, 1, 2)))):
        count = draw(st.integers(1, 3))
        alternatives.append(tuple(draw(asks((f"{id}.{index}.{n}",), 1, by_id=False)) for n in range(count)))
    by_key = st.tuples(st.sampled_from(("zone", "rack")), st.sampled_from(Strategy))
    return Group(
        id,
        tuple(alternatives),
        draw(st.sampled_from(Strategy)),
        tuple(draw(rarely([], st.lists(by_key, min_size=1, max_size=1)))),
        priority=draw(rarely(0, st.sampled_from((-1, 1)), 4)),
        deadline=draw(rarely(None, st.sampled_from((10.0, 100.0)), 6)),
    )
