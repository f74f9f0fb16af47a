"""The engine may drop its caches at any time: no cache limit changes a decision."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stead.engine import board as board_module
from stead.engine.facts import AskEnded, AskSubmitted, ClockAdvanced, NodeJoined, NodeLabelled
from stead.engine.groups import search as search_module
from stead.language.asks import Spread
from stead.language.labels import Labels
from tests.behaviour import (
    all_of,
    apart_from_app,
    ask,
    cluster,
    decide_after,
    fill,
    group,
    near_app,
    node,
    on,
    place,
    placements,
    submit,
)
from tests.behaviour.scenario import story


@pytest.mark.parametrize(
    ("limit", "value"),
    [
        pytest.param("STANDINGS_MAX", 1, id="one standing is remembered"),
        pytest.param("SHAPES_IDLE_MAX", 0, id="no idle shape is remembered"),
        pytest.param("TOUCHED_MAX", 0, id="no touched row is remembered"),
    ],
)
def test_small_caches_make_no_difference(limit: str, value: int, monkeypatch: pytest.MonkeyPatch) -> None:
    normal = [story(seed, 100) for seed in (11, 12)]
    assert hasattr(board_module, limit)
    monkeypatch.setattr(board_module, limit, value)
    assert [story(seed, 100) for seed in (11, 12)] == normal


def test_pending_work_is_still_woken_after_all_caches_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(board_module, "SHAPES_IDLE_MAX", 0)
    engine = cluster(node("n0", 2, labels={"zone": "a"}))
    fill(engine, "n0", 2, "full")
    submit(
        engine,
        ask("near", affinities=all_of(near_app("web"))),
        ask("room", 1),
        group("g", ask("m0", 1, selector=on("zone", "b"))),
    )
    for index in range(5):
        place(
            engine, ask(f"brief-{index}", 0, labels={"n": str(index)}, affinities=all_of(apart_from_app(f"x{index}")))
        )
        decide_after(engine, AskEnded(f"brief-{index}"))
    assert placements(submit(engine, ask("web", labels={"app": "web"}))) == {"web": "n0", "near": "n0"}
    assert placements(decide_after(engine, AskEnded("full"))) == {"room": "n0"}
    assert placements(decide_after(engine, NodeLabelled("n0", Labels({"zone": "b"})))) == {"m0": "n0"}


def test_a_thousand_ended_shapes_leave_the_engine_unchanged() -> None:
    engine = cluster(node("n0", 4))
    before = engine.free("n0")
    for index in range(1000):
        engine.apply(AskSubmitted(ask(f"w{index}", 0.001 * (index + 1), priority=index % 3)))
        engine.decide()
        engine.apply(AskEnded(f"w{index}"))
    assert engine.free("n0") == before
    assert (dict(engine.placed), engine.waiting, engine.decide()) == ({}, (), [])


def test_a_search_that_takes_too_long_stops_and_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search_module, "TRIES_MAX", 3)
    engine = cluster(*(node(f"n{index}", 1, labels={"zone": "ab"[index % 2]}) for index in range(6)))
    shy = all_of(apart_from_app("web", "zone"))
    crowd = [ask(f"m{index}", 1, labels={"app": "web"}, affinities=shy) for index in range(5)]
    assert place(engine, group("g", *crowd)) == [None] * 5
    assert {engine.free(id)["CPU"] for id in engine.nodes} == {10000}


def test_many_nodes_are_as_good_as_few() -> None:
    """Standings are updated row by row after few changes and recomputed after many; both must agree."""
    engine = cluster(*(node(f"n{index}", 2, labels={"zone": f"z{index % 3}"}) for index in range(200)))
    crowd = [
        ask(f"w{index}", 1, labels={"app": "web"}, spreads=(Spread("zone", on("app", "web")),)) for index in range(30)
    ]
    where = [str(id) for id in place(engine, *crowd)]
    zones = [engine.nodes[id].labels["zone"] for id in where]
    assert {zone: zones.count(zone) for zone in sorted(set(zones))} == {"z0": 10, "z1": 10, "z2": 10}
    engine.apply(*(NodeLabelled(f"n{index}", Labels({"zone": "z0"})) for index in range(100)))
    probe = ask("probe", 2, selector=on("zone", "z0"))
    (found,) = engine.candidates(probe)
    fresh = cluster(*engine.nodes.values())
    for id, where_it_is in engine.placed.items():
        fill(fresh, where_it_is, 1, id)
    assert found == fresh.candidates(probe)[0]
    engine.apply(NodeJoined(node("late", 2, labels={"zone": "z0"})), ClockAdvanced(1))
    assert engine.candidates(probe)[0] == (*found, "late")
    assert placements(submit(engine, replace(probe, id="w"))) == {"w": found[0]}
