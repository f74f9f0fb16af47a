"""For any options, Ray and the pass together allow the nodes that the engine allows, in its order."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

from hypothesis import given, settings
from ray._private.label_utils import validate_fallback_strategy, validate_label_selector

from stead.engine.engine import Engine
from stead.engine.facts import NodeJoined
from stead.language.asks import Preference
from stead.language.labels import Selector
from stead.language.nodes import Node
from stead.language.selectors import label_selector_strings
from stead.language.strategies import Exists, In, NotIn, Wants
from stead.language.taints import tolerated
from stead.ray.submit.compile import Pass, Route, route
from tests.strategies_for_tests import NODE_IDS, NODE_NAMES, Maker, Words, made

Options = dict[str, Any]
MARKET, REGION = "ray.io/market-type", "ray.io/availability-region"

NATIVE_LABELS: Words = {MARKET: ("spot", "on-demand", ""), REGION: ("r1", "r2")}
OTHER_LABELS: Words = {"zone": ("a", "b", ""), "tier": ("1", "2", "10", "x")}
WORDS: Words = {**NATIVE_LABELS, **OTHER_LABELS, **NODE_NAMES, "node_id": NODE_IDS, "ray.io/node-id": NODE_IDS}


def some_node(maker: Maker, id: str) -> Node:
    node = maker.node(id)
    return Node(
        id,
        node.capacity,
        node.labels.changed(maker.labels(NATIVE_LABELS)),
        node.taints,
        node.ip,
        node.name,
        node.draining,
    )


def some_options(maker: Maker, words: Words = WORDS) -> Options:
    """Random options with every kind of node rule."""

    def label_selector() -> dict[str, str]:
        requirements = {one.key: one for one in maker.some(lambda: maker.requirement(words), 0, 2)}
        return {
            key: text
            for one in requirements.values()
            for key, text in label_selector_strings(Selector.all_of(one)).items()
        }

    def preference() -> Preference:
        return Preference(Selector.all_of(*maker.some(lambda: maker.requirement(words), 1, 2)), maker.one((100, 50, 1)))

    options: Options = {}
    if maker.rarely(2):
        options["label_selector"] = label_selector()
    if maker.rarely(2):
        options["fallback_strategy"] = [{"label_selector": one} for one in maker.some(label_selector, 1, 2)]
    strategies: list[Any] = []
    if maker.rarely(2):
        strategies.append(str(maker.selector(words)))
    if maker.rarely(2):
        strategies.append(Wants(prefers=tuple(maker.some(preference, 1, 2))))
    options["scheduling_strategy"] = strategies
    if maker.rarely(3):
        options["tolerations"] = {
            maker.one(("gpu", "spot")): maker.one((Exists(), In("x"), NotIn("x", effect="no-schedule")))
        }
    return options


def ray_matches(selector: Mapping[str, str], node: Node) -> bool:
    """Ray's own semantics: a value or a list of values; a negation also matches nodes without the label."""
    for key, condition in selector.items():
        text = condition.removeprefix("!")
        values = text[3:-1].split(",") if text.startswith("in(") else [text]
        if (node.label(key) in values) == condition.startswith("!"):
            return False
    return True


def has_pass(admits: Pass, node: Node) -> bool:
    open_to = all(tolerated(taint, admits.tolerations) for taint in node.taints if taint.effect.refuses)
    return open_to and not node.draining and admits.selector.matches(node.all_labels)


def entries(found: Route) -> list[dict[str, str]]:
    """What Ray gets: the selector, then the fallbacks."""
    return [dict(entry) for entry in (found.label_selector, *found.fallback_strategy)]


def entry_of(found: Route, node: Node) -> int | None:
    """The first of Ray's selectors that matches, or None."""
    return next((index for index, entry in enumerate(entries(found)) if ray_matches(entry, node)), None)


Case = tuple[Sequence[Node], Options]


def some_case(maker: Maker) -> Case:
    words = maker.one((WORDS, NATIVE_LABELS))
    return [some_node(maker, id) for id in NODE_IDS[: 3 + maker.below(3)]], some_options(maker, words)


@settings(max_examples=400, deadline=None)
@given(made(some_case))
def test_ray_and_the_pass_allow_exactly_the_nodes_that_the_engine_allows(case: Case) -> None:
    nodes, options = case
    found = route(options)
    engine = Engine()
    engine.apply(*map(NodeJoined, nodes))
    expected = {id for ids in engine.candidates(found.ask("w", {})) for id in ids}
    allowed = [node for node in nodes if has_pass(found.wish.admits, node) and entry_of(found, node) is not None]
    assert {node.id for node in allowed} == expected


@settings(max_examples=400, deadline=None)
@given(made(some_case))
def test_ray_tries_choices_and_then_preferences_in_the_engines_order(case: Case) -> None:
    """If nothing is left to rank, a strictly better node has an earlier entry; otherwise there is no fallback."""
    nodes, options = case
    found = route(options)
    if found.wish.choices or found.wish.prefers:
        assert found.fallback_strategy == ()
        assert found.wish.prefers == found.prefers
        assert found.wish.choices == (found.choices if len(found.choices) > 1 else ())
        return

    def standing(node: Node) -> tuple[int, int]:
        choice = next(n for n, selector in enumerate(found.choices) if selector.matches(node.all_labels))
        return choice, -sum(
            p.weight for p in found.prefers if isinstance(p.want, Selector) and p.want.matches(node.all_labels)
        )

    allowed = [(node, entry_of(found, node)) for node in nodes if has_pass(found.wish.admits, node)]
    ranked = [(standing(node), entry) for node, entry in allowed if entry is not None]
    for mine, my_entry in ranked:
        for theirs, their_entry in ranked:
            assert my_entry < their_entry or not mine < theirs


@settings(max_examples=200, deadline=None)
@given(made(some_options))
def test_ray_accepts_every_selector_it_gets(options: Options) -> None:
    found = route(options)
    assert validate_label_selector(dict(found.label_selector)) is None
    assert validate_fallback_strategy([{"label_selector": dict(entry)} for entry in found.fallback_strategy]) is None
    assert all(key.startswith("ray.io/") for entry in entries(found) for key in entry)


@settings(max_examples=100, deadline=None)
@given(made(some_options), made(lambda maker: maker.below(16)))
def test_the_order_in_which_options_are_written_changes_no_key(options: Options, seed: int) -> None:
    shuffle = random.Random(seed).shuffle
    pairs = list(options.items())
    shuffle(pairs)
    other = dict(pairs)
    other["scheduling_strategy"] = list(other["scheduling_strategy"])
    shuffle(other["scheduling_strategy"])
    if "label_selector" in other:
        other["label_selector"] = dict(reversed(other["label_selector"].items()))
    assert route(other) == route(options)
    assert route(other).wish.key == route(options).wish.key
