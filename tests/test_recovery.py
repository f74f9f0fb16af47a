"""Recovery after a stop: the newest checkpoint and the steps after it, whatever an engine would decide today."""

from __future__ import annotations

import pickle
import sqlite3
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stead import journal as journals
from stead import solver
from stead.codec import dumps, loads
from stead.engine.decisions import Decision, Evicted, GroupPlaced, Placed, Refused, Waiting
from stead.engine.engine import Engine
from stead.engine.facts import (
    AskEnded,
    AskLost,
    AskRunning,
    AskSubmitted,
    ClockAdvanced,
    Fact,
    GroupSubmitted,
    NodeJoined,
    NodeTainted,
)
from stead.engine.restart.checkpoints import Checkpoint
from stead.engine.settings import Settings
from stead.errors import Invalid
from stead.journal import Diverged, Journal, Unreadable, recover, replay
from stead.language.asks import Ask, Choice, Group
from stead.language.labels import Requirement, Selector
from stead.language.nodes import Node
from stead.language.taints import Effect, Taint
from stead.operate.history import replay_decision
from tests.strategies_for_tests import clusters, groups, simple_facts, some_asks

NODES: list[Fact] = [ClockAdvanced(1), *(NodeJoined(Node.of(id, {"CPU": 2})) for id in ("a", "b"))]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run.journal"


def run(journal: Journal, engine: Engine, *steps: list[Fact]) -> None:
    for facts in steps:
        engine.apply(*facts)
        journal.append(facts, engine.decide())


def many(count: int, begin: int = 0) -> list[list[Fact]]:
    """Steps in which one piece of work is submitted and the previous one ends."""
    return [
        [ClockAdvanced(2.0 + n), AskSubmitted(Ask.of(f"x-{n}", {"CPU": 1})), AskEnded(f"x-{n - 1}")]
        for n in range(begin, begin + count)
    ]


def test_an_engine_is_recovered_from_the_newest_checkpoint_and_what_came_after(path: Path) -> None:
    engine = Engine()
    with Journal.open(path) as journal:
        run(journal, engine, NODES, *many(5))
        journal.keep(engine.checkpoint())
        run(journal, engine, *many(3, 5))
    with sqlite3.connect(path) as behind:  # the steps before the checkpoint are not needed
        behind.execute("UPDATE steps SET facts = 'damaged' WHERE number < 6")
    behind.close()
    with Journal.reading(path) as journal:
        again = recover(journal)
    assert (again.now, again.placed, again.waiting) == (engine.now, engine.placed, engine.waiting)


def test_recovery_keeps_decisions_that_the_engine_would_not_make_today(path: Path) -> None:
    """Another version of stead or OR-tools may decide differently, but these decisions may have been carried out."""
    with Journal.open(path) as journal:
        journal.append([*NODES, AskSubmitted(Ask.of("x", {"CPU": 1}))], [Placed("x", "b")])
    with Journal.open(path) as journal:
        with pytest.raises(Diverged):
            replay(journal)
        engine = recover(journal)
        assert engine.placed == {"x": "b"}
        assert engine.free("b")["CPU"] == 10_000
        journal.keep(engine.checkpoint())
        run(journal, engine, *many(2))
        assert replay(journal, after=1).placed == engine.placed  # from the checkpoint on, everything is equal


SECOND = Group("g", ((Ask.of("g-1", {"CPU": 9}),), (Ask.of("g-2", {"CPU": 1}), Ask.of("g-3", {"CPU": 1}))))
OUT = Taint("out", "", Effect.NO_EXECUTE)


def test_every_kind_of_decision_is_recovered() -> None:
    engine = Engine(Settings(patience=None))
    nowhere = Selector.all_of(Requirement.is_in("node_id", "gone"))
    choices = (Choice(selector=nowhere), Choice())
    engine.apply(*NODES, AskRunning(Ask.of("old", {"CPU": 1}), "a"), NodeTainted("a", OUT), GroupSubmitted(SECOND))
    engine.apply(*(AskSubmitted(each) for each in (Ask("fits", choices), Ask.of("large", {"CPU": 9}))))
    engine.apply(AskSubmitted(Ask.of("lost", {}, nowhere)))
    twin = engine.fork()
    decisions = engine.decide()
    assert {type(each) for each in decisions} == {Placed, GroupPlaced, Evicted, Refused, Waiting}
    twin.assume(decisions)
    assert (twin.placed, twin.waiting, dict(twin.groups)) == (engine.placed, engine.waiting, dict(engine.groups))
    assert [twin.free(id) for id in twin.nodes] == [engine.free(id) for id in engine.nodes]
    assert twin.decide() == []  # nothing is reported or evicted twice


def test_decisions_about_what_is_not_known_are_left_out() -> None:
    engine = Engine()
    engine.apply(*NODES, AskSubmitted(Ask.of("x", {"CPU": 1})))
    strange: list[Decision] = [
        Placed("nobody", "a"),
        Placed("x", "nowhere"),
        Placed("x", "a", 7),
        GroupPlaced("none", 0, (("m", "a"),)),
        Evicted("nobody", "a", OUT),
    ]
    engine.assume(strange)
    assert engine.placed == {}
    assert engine.decide() == [Placed("x", "a")]


SUBMITTED = some_asks(4).map(lambda asks: list[Fact](map(AskSubmitted, asks)))
GROUPED = groups().map(lambda group: list[Fact]([GroupSubmitted(group)]))


@given(st.lists(SUBMITTED | simple_facts() | GROUPED, max_size=12), clusters())
@settings(deadline=None, max_examples=150)
def test_a_recovered_engine_holds_what_the_original_held(steps: list[list[Fact]], cluster: list[Node]) -> None:
    original, recovered = (Engine(Settings(patience=None), solver.found()) for _ in range(2))
    joined: list[Fact] = [NodeJoined(node) for node in cluster]
    for number, facts in enumerate([joined, *steps]):
        for engine in (original, recovered):
            engine.apply(ClockAdvanced(5.0 * number), *facts)
        recovered.assume(original.decide())
    assert recovered.placed == original.placed
    assert recovered.waiting == original.waiting
    assert [recovered.free(id) for id in recovered.nodes] == [original.free(id) for id in original.nodes]
    again = Engine.restored(loads(dumps(recovered.checkpoint()), Checkpoint), recovered.settings, solver.found())
    assert not [each for each in again.decide() if isinstance(each, Evicted | Refused)]
    lost = sorted(recovered.placed)[:2]
    again.apply(*map(AskLost, lost))
    again.decide()


def test_accepted_work_is_kept_even_if_or_tools_is_uninstalled(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(solver=solver.found())
    with Journal.open(path) as journal:
        run(journal, engine, NODES, [AskSubmitted(Ask.of(f"x-{n}", {"CPU": 1}, policy="flow")) for n in range(6)])
        monkeypatch.setattr(solver, "found", lambda: None)
        again = recover(journal)
        assert again.placed == engine.placed
        again.apply(AskEnded(next(iter(again.placed))))
        assert [type(each) for each in again.decide()] == [Placed, Waiting][:1]


def test_a_damaged_checkpoint_is_one_sentence_and_recovery_takes_an_older_one(path: Path) -> None:
    engine = Engine()
    with Journal.open(path) as journal:
        run(journal, engine, NODES)
        journal.keep(engine.checkpoint())
        journal._connection.execute("UPDATE checkpoints SET state = x'00'")
        with pytest.raises(Unreadable, match=r"the checkpoint after step 1 of .* is damaged"):
            journal.checkpoint(1)
        assert recover(journal).nodes == engine.nodes  # from the previous checkpoint, or from the first step


# -- retention


def kept(journal: Journal) -> tuple[int, int]:
    """The oldest and the newest step."""
    steps = [entry.step for entry in journal.read()]
    return steps[0], steps[-1]


def journal_of(path: Path, engine: Engine, kept_s: float = 1e9, kept_bytes: int = 10**9) -> Journal:
    """One with a checkpoint after every ten steps."""
    journal = Journal.open(path)
    journal.kept_s, journal.kept_bytes = kept_s, kept_bytes
    run(journal, engine, NODES)
    for begin in range(0, 50, 10):
        run(journal, engine, *many(10, begin))
        journal.keep(engine.checkpoint())
    return journal


def test_steps_that_are_too_old_are_deleted_up_to_a_checkpoint(path: Path) -> None:
    with journal_of(path, Engine(), kept_s=0.0) as journal:
        journal.append([ClockAdvanced(99)], [])
        assert kept(journal) == (52, 52)
        assert journal.kept_after == 51


def test_steps_beyond_the_size_that_is_kept_are_deleted_oldest_first(path: Path) -> None:
    engine = Engine()
    with journal_of(path, engine, kept_bytes=4_000) as journal:
        oldest, newest = kept(journal)
        assert newest == 51
        assert 11 < oldest < 51
        assert (oldest - 2) % 10 == 0
        assert replay(journal).placed == engine.placed


def test_nothing_is_deleted_within_the_limits(path: Path) -> None:
    with journal_of(path, Engine()) as journal:
        assert kept(journal) == (1, 51)


def test_a_past_decision_is_decided_again_from_the_checkpoint_before_it(path: Path) -> None:
    with journal_of(path, Engine()) as journal:
        seen: list[int] = []
        found = replay_decision(journal, "x-25", None, seen.append)
        assert (found.step, found.steps, found.oldest) == (27, 51, 1)
        assert seen == [22, 23, 24, 25, 26]


def test_asking_for_deleted_steps_is_refused(path: Path) -> None:
    with journal_of(path, Engine(), kept_bytes=4_000) as journal:
        oldest = kept(journal)[0]
        assert replay_decision(journal, "x-49").oldest == oldest
        with pytest.raises(
            Invalid, match=rf"no decision about 'x-1'; it goes back to step {oldest} \(20.*UTC\), older"
        ):
            replay_decision(journal, "x-1")


def test_a_checkpoint_is_due_after_a_number_of_steps_or_bytes(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journals, "CHECKPOINT_STEPS", 3)
    engine = Engine()
    with Journal.open(path) as journal:
        run(journal, engine, NODES, *many(1))
        due = [journal.is_checkpoint_due]
        run(journal, engine, *many(1, 1))
        due.append(journal.is_checkpoint_due)
    with Journal.open(path) as journal:  # also for the next writer
        due.append(journal.is_checkpoint_due)
        journal.keep(recover(journal).checkpoint())
        due.append(journal.is_checkpoint_due)
        monkeypatch.setattr(journals, "CHECKPOINT_BYTES", 100)
        journal._state_bytes = 0
        run(journal, engine, *many(1, 2))
        due.append(journal.is_checkpoint_due)
    assert due == [False, True, True, False, True]


def test_errors_can_be_pickled() -> None:
    error = Diverged(3, [Placed("x", "a")], [])
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.step, again.written) == (str(error), 3, (Placed("x", "a"),))
