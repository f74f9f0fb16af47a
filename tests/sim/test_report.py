"""The report of a run: its timeline and its JSON."""

from __future__ import annotations

import json

import pytest

from stead.engine.decisions import Decision, Placed, Waiting
from stead.engine.engine import Engine
from stead.engine.facts import AskLost, Fact
from stead.sim.cluster import Happening, run
from stead.sim.report import as_json_text, timeline_rows
from stead.sim.scenario import parse


def test_reasons_with_equal_text_are_shown_once_until_the_work_is_placed() -> None:
    waiting = Waiting(("a",), ())
    timeline: list[Fact | Decision] = [waiting, waiting, Placed("a", "n"), AskLost("a"), waiting]
    lines = [words for _, words in timeline_rows(Happening(float(at), what) for at, what in enumerate(timeline))]
    reason = "a waiting: its members do not fit together"
    assert lines == [reason, "a placed on n", "a lost, pending again", reason]


def test_json_reads_the_placed_work_once_and_not_for_every_node(monkeypatch: pytest.MonkeyPatch) -> None:
    outcome = run(parse("nodes: {id: n, count: 9, capacity: {CPU: 1}}\nwork: {id: w, count: 8, resources: {CPU: 1}}"))
    reads: list[str] = []

    class Counted(dict[str, str]):
        def __getitem__(self, ask: str) -> str:
            reads.append(ask)
            return super().__getitem__(ask)

    placed = Counted(outcome.engine.placed)
    monkeypatch.setattr(Engine, "placed", placed)
    nodes = json.loads(as_json_text(outcome))["nodes"]
    assert sorted(ask for node in nodes for ask in node["runs"]) == sorted(placed)
    assert [len(node["runs"]) for node in nodes].count(1) == 8
    assert len(reads) <= len(placed)
