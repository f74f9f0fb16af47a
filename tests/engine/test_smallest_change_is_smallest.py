"""The smallest change: what the engine proposes makes the ask fit, and nothing with fewer edits does.

Rule: edits are applied by hand to the ask and the oracle (edits.py), and all sets of fewer edits are tried, up to two.
"""

from __future__ import annotations

import os
from itertools import combinations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stead.engine.engine import Engine
from stead.engine.explain.smallest_change import Drop, Edit, FreeUp, Tolerate, Widen, _ChangeSearch
from stead.engine.explain.verdicts import refused_sets
from stead.engine.facts import AskRunning, Fact, NodeJoined
from stead.engine.settings import Settings
from stead.language.asks import Ask
from tests.engine.edits import edited, edits_worth_a_try
from tests.oracle import Oracle
from tests.strategies_for_tests import asks, clusters

SOAK = 50 if os.environ.get("STEAD_SOAK") == "1" or os.environ.get("HYPOTHESIS_PROFILE") == "soak" else 1
EDITS_TRIED_MAX = 2


@st.composite
def situations(draw: st.DrawFn) -> tuple[Oracle, list[Fact]]:
    """Up to three nodes and some work on them, no more than their devices can hold."""
    oracle, facts = Oracle(), list[Fact]()
    cluster = draw(clusters((1, 2, 3)))
    facts += map(NodeJoined, cluster)
    oracle.apply(*facts)
    for ask in draw(st.lists(asks(("w0", "w1", "w2"), 1, 2), max_size=3, unique_by=lambda it: it.id)):
        node = draw(st.sampled_from(cluster)).id
        room = all(oracle.places[node].fits_now(name, need) for name, need in ask.choices[0].resources.items())
        if room:
            facts.append(AskRunning(ask, node))
            oracle.apply(facts[-1])
    return oracle, facts


def smaller_changes(ask: Ask, oracle: Oracle, size: int) -> list[tuple[Edit, ...]]:
    """All sets of fewer than `size` edits (at most two) that make the ask fit."""
    universe = edits_worth_a_try(ask, oracle)
    found = []
    for count in range(min(size, EDITS_TRIED_MAX + 1)):
        for edits in combinations(universe, count):
            other_ask, other = edited(ask, oracle, edits)
            if other.best(other_ask) is not None:
                found.append(edits)
        if found:
            break
    return found


@settings(max_examples=200 * SOAK, deadline=None, print_blob=True, suppress_health_check=list(HealthCheck))
@given(situation=situations(), ask=asks(("probe",), one_in=2))
def test_the_change_makes_the_ask_fit_and_nothing_smaller_does(situation: tuple[Oracle, list[Fact]], ask: Ask) -> None:
    oracle, facts = situation
    engine = Engine(Settings(patience=None, seed=0))
    engine.apply(*facts)
    change = engine.explain(ask).change
    if change is None:
        fits = oracle.best(ask) is not None
        assert fits or not smaller_changes(ask, oracle, EDITS_TRIED_MAX + 1)
        return
    assert oracle.best(ask) is None, "an ask that fits needs no change"
    for edit in change.edits:
        if isinstance(edit, Tolerate | Widen | Drop):
            assert edited(ask, oracle, [edit])[0] != ask, f"{edit} is about nothing in the ask"
        if isinstance(edit, FreeUp):
            assert 0 < edit.amount <= oracle.places[edit.node].used[edit.resource], f"{edit} is more than is in use"
    other_ask, other = edited(ask, oracle, change.edits)
    best = other.best(other_ask)
    assert best is not None, f"{change} does not help"
    assert change.nodes == len(other.verdict(other_ask, best[0])[0])
    assert not smaller_changes(ask, oracle, len(change.edits)), f"{change} is not the smallest"


@settings(max_examples=200 * SOAK, deadline=None, print_blob=True, suppress_health_check=list(HealthCheck))
@given(situation=situations(), ask=asks(("probe",), one_in=2))
def test_looking_at_nodes_with_one_obstacle_first_finds_what_looking_at_all_finds(
    situation: tuple[Oracle, list[Fact]], ask: Ask
) -> None:
    engine = Engine(Settings(patience=None, seed=0))
    engine.apply(*situation[1])
    board = engine._parts.board
    for index, demand in enumerate(board.shape_of(ask).demands):
        search = _ChangeSearch(board, ask, index, refused_sets(board, demand))
        assert search.run() == search._best_of(search._signatures())
