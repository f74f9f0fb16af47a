"""The past: every decision can be replayed, byte-equal, with the explanation it had then."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from stead import Ask, Engine, Node
from stead.codec import dumps
from stead.engine.decisions import Placed, Refused, Waiting
from stead.engine.explain.events import ids_of as about
from stead.engine.facts import AskSubmitted, Fact, NodeJoined
from stead.errors import Invalid
from stead.journal import Diverged, Journal
from stead.language.taints import Effect, Taint
from stead.operate.audit import Author
from stead.operate.changes import NodeChange
from stead.operate.history import replay_decision
from stead.operate.snapshot import Query
from tests.serving import BEGAN, simulated

SCENARIO = Path(__file__).parent.parent / "golden" / "served.yaml"


def test_every_decision_about_every_ask_can_be_replayed() -> None:
    with simulated(SCENARIO) as desk:
        desk.change(NodeChange("cpu-1", (Taint("k", "v", Effect.NO_EXECUTE),)), Author("ann"))
        with Journal.reading(desk._journal_path) as journal:
            entries = list(journal.read())
            for entry in entries:
                for id in {id for decision in entry.decisions for id in about(decision)}:
                    found = replay_decision(journal, id, None)
                    last = [each for each in entries if any(id in about(one) for one in each.decisions)][-1]
                    assert (found.step, dumps(found.decisions)) == (last.step, dumps(last.decisions))
                    assert found.explanation is not None
                    assert found.explanation.id == id


def test_the_explanation_is_that_of_the_past_moment() -> None:
    with simulated(SCENARIO) as desk:
        assert not desk.why("render").fits
        free = desk.snapshot().find("012345").id
        desk.change(NodeChange(free, labels=desk.snapshot().by_id[free].labels.changed({"rack": "1"})), Author("ann"))
        found = desk.replay("render")
        assert any(isinstance(decision, Waiting) and "render" in about(decision) for decision in found.decisions)
        assert "tainted gpu_node=true" in str(found.explanation)


def test_a_time_selects_the_last_decision_before_it() -> None:
    with simulated(SCENARIO) as desk:
        late = desk.replay("late")
        assert isinstance(late.decisions[-1], Refused)
        assert late.moment == BEGAN + 45
        first = desk.replay("late", BEGAN + 1)
        assert isinstance(first.decisions[0], Placed)
        with pytest.raises(Invalid, match="the journal has no decision about 'late' before that moment"):
            desk.replay("late", BEGAN - 1)
        with pytest.raises(Invalid, match="the journal has no decision about 'nobody'"):
            desk.replay("nobody")


def test_progress_is_reported_step_by_step() -> None:
    with simulated(SCENARIO) as desk, Journal.reading(desk._journal_path) as journal:
        told: list[int] = []
        found = replay_decision(journal, "late", None, told.append)
        assert told == list(range(told[0], found.step))


def test_a_journal_that_differs_from_the_replay_is_refused(tmp_path: Path) -> None:
    with simulated(SCENARIO) as desk:
        (last,) = desk.work(Query(("id=cache",))).items
        with sqlite3.connect(desk._journal_path) as source, sqlite3.connect(tmp_path / "copy") as copy:
            source.backup(copy)
            text = "CAST(decisions AS TEXT)"
            changed = f"CAST(replace({text}, ?, 'cpu-2') AS BLOB)"
            copy.execute(f"UPDATE steps SET decisions = {changed} WHERE instr({text}, 'cache')", (last.node,))
        source.close()
        copy.close()
    with Journal.reading(tmp_path / "copy") as journal, pytest.raises(Diverged):
        replay_decision(journal, "cache", None)


def test_a_pod_without_its_namespace_gets_a_hint(tmp_path: Path) -> None:
    engine = Engine()
    facts: list[Fact] = [NodeJoined(Node.of("n1", {"CPU": 1})), AskSubmitted(Ask.of("prod/web", {"CPU": 1}))]
    engine.apply(*facts)
    with Journal.open(tmp_path / "journal", engine.settings) as journal:
        journal.append(facts, engine.decide())
        with pytest.raises(Invalid, match=r"no decision about 'web' \(did you mean 'prod/web'\?\)"):
            replay_decision(journal, "web")
