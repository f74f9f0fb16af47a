"""The control loop: facts in, decisions written, then commands; and recovery from a crash in between."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

from stead import journal as journals
from stead import solver
from stead.codec import dumps
from stead.controller import Controller
from stead.engine.decisions import (
    Decision,
    Evicted,
    GroupPlaced,
    GroupReleased,
    Moved,
    NominationEnded,
    Placed,
    Preempted,
    Refused,
    Waiting,
)
from stead.engine.engine import Engine
from stead.engine.facts import AskRunning, AskSubmitted, Fact, GroupSubmitted, NodeJoined, NodeTainted
from stead.engine.settings import Settings
from stead.errors import Invalid, Unwritable
from stead.journal import Journal, Superseded, replay
from stead.language.asks import Ask, Group
from stead.language.labels import NODE_ID, Requirement, Selector
from stead.language.nodes import Node
from stead.language.taints import Effect, Taint


class Recorder:
    """A cluster that only records calls; `fails` makes it crash at the first bind."""

    def __init__(self) -> None:
        self.time = 0.0
        self.coming: list[Fact] = []
        self.commands: list[str] = []
        self.steps: list[tuple[Fact | Decision, ...]] = []
        self.fails = False

    def now(self) -> float:
        return self.time

    def facts(self) -> Iterable[Fact]:
        coming, self.coming = self.coming, []
        return coming

    def bind(self, placed: Placed | GroupPlaced) -> None:
        if self.fails:
            raise RuntimeError("the cluster died")
        self.commands.append(f"bind {placed.ask if isinstance(placed, Placed) else placed.group}")

    def evict(self, evicted: Evicted) -> None:
        self.commands.append(f"evict {evicted.ask}")

    def preempt(self, preempted: Preempted) -> None:
        self.commands.append(f"preempt {', '.join(preempted.victims)} for {preempted.ask}")

    def end_nomination(self, ended: NominationEnded) -> None:
        self.commands.append(f"end nomination of {ended.ask}")

    def release(self, released: GroupReleased) -> None:
        self.commands.append(f"release {released.group}")

    def refuse(self, refused: Refused) -> None:
        self.commands.append(f"refuse {refused.id}")

    def tell(self, happened: Sequence[Fact | Decision]) -> None:
        self.steps.append(tuple(happened))


class MovingRecorder(Recorder):
    """A recorder that can move work."""

    def move(self, moved: Moved) -> None:
        self.commands.append(f"move {moved.ask} to {moved.target}")


NODE = NodeJoined(Node.of("n", {"CPU": 4}))


def test_work_is_moved_if_the_settings_allow_it_and_a_batch_needs_no_command() -> None:
    cluster = MovingRecorder()
    controller = Controller(cluster, Engine(Settings(moves=1), solver.found()))
    packed = [Ask.of(name, {"CPU": 1}, policy="flow-pack") for name in ("first", "second", "third")]
    others = NodeJoined(Node.of("m", {"CPU": 4}))
    cluster.coming = [NODE, others, AskRunning(packed[0], "n"), AskRunning(packed[1], "m"), AskSubmitted(packed[2])]
    controller.step()
    assert cluster.commands == ["bind third", "move second to n"]


def test_every_decision_becomes_its_command() -> None:
    cluster = Recorder()
    controller = Controller(cluster, Engine())
    nowhere = Selector.all_of(Requirement.is_in(NODE_ID, "gone"))
    group = Group("g", ((Ask.of("g-1", {"CPU": 1}), Ask.of("g-2", {"CPU": 1})),))
    cluster.coming = [
        NODE,
        AskSubmitted(Ask.of("fits", {"CPU": 1})),
        GroupSubmitted(group),
        AskSubmitted(Ask.of("large", {"CPU": 9})),
        AskSubmitted(Ask.of("lost", {}, nowhere)),
    ]
    controller.step()
    assert sorted(cluster.commands) == ["bind fits", "bind g", "refuse lost"]
    [step] = cluster.steps
    assert [each.asks for each in step if isinstance(each, Waiting)] == [("large",)]
    cluster.coming, cluster.commands = [NodeTainted("n", Taint("out", "", Effect.NO_EXECUTE))], []
    controller.step()
    assert {"evict fits", "evict g-1", "evict g-2"} <= set(cluster.commands)


def test_the_clock_comes_before_the_facts_of_a_step() -> None:
    cluster = Recorder()
    cluster.time, cluster.coming = 7.0, [AskSubmitted(Ask.of("a", {"CPU": 1}, deadline=5.0))]
    decisions = Controller(cluster, Engine()).step()
    assert [type(decision) for decision in decisions] == [Refused]


def test_a_step_in_which_nothing_happened_writes_nothing(tmp_path: Path) -> None:
    cluster = Recorder()
    with Journal.open(tmp_path / "j") as journal:
        controller = Controller(cluster, Engine(), journal)
        cluster.coming = [NODE]
        controller.step()
        cluster.time = 1.0
        assert controller.step() == []
        assert len(journal) == 1


def test_time_alone_is_a_reason_to_decide_when_a_deadline_is_due() -> None:
    cluster = Recorder()
    controller = Controller(cluster, Engine(Settings(patience=None)))
    cluster.coming = [NODE, AskSubmitted(Ask.of("large", {"CPU": 9}, deadline=10.0))]
    controller.step()
    cluster.time, cluster.commands = 9.0, []
    controller.step()
    assert cluster.commands == []
    cluster.time = 10.0
    controller.step()
    assert cluster.commands == ["refuse large"]


def test_nothing_is_bound_before_it_is_written(tmp_path: Path) -> None:
    cluster = Recorder()
    cluster.fails, cluster.coming = True, [NODE, AskSubmitted(Ask.of("a", {"CPU": 1}))]
    with Journal.open(tmp_path / "j") as journal:
        with pytest.raises(RuntimeError, match="the cluster died"):
            Controller(cluster, Engine(), journal).step()
        last = journal.last()
        assert last is not None
        assert last.decisions == (Placed("a", "n"),)


def test_nothing_is_bound_when_writing_fails(tmp_path: Path) -> None:
    cluster = Recorder()
    cluster.coming = [NODE, AskSubmitted(Ask.of("a", {"CPU": 1}))]
    with (
        Journal.open(tmp_path / "j") as journal,
        Journal.open(tmp_path / "j"),
        pytest.raises(Superseded),
    ):
        Controller(cluster, Engine(), journal).step()
    assert cluster.commands == []


def full(journal: Journal, is_full: bool = True) -> None:
    """A full disk, or one with space again: SQLite itself refuses to write."""
    pages = journal._connection.execute("PRAGMA page_count").fetchone()[0] if is_full else 1 << 30
    journal._connection.execute(f"PRAGMA max_page_count = {pages}")


def test_a_step_that_cannot_be_written_did_not_happen_and_is_taken_when_there_is_room(tmp_path: Path) -> None:
    cluster = Recorder()
    with Journal.open(tmp_path / "j") as journal:
        controller = Controller(cluster, Engine(), journal)
        cluster.coming = [NODE, AskSubmitted(Ask.of("first", {"CPU": 1}))]
        controller.step()
        full(journal)
        cluster.time, cluster.commands = 1.0, []
        cluster.coming = [AskSubmitted(Ask.of(f"x-{n}", {"CPU": 1}, labels={"a": "b" * 60})) for n in range(40)]
        cluster.coming.append(NodeTainted("n", Taint("out", "", Effect.NO_EXECUTE)))
        for _ in range(2):
            with pytest.raises(Unwritable, match="cannot be written: database or disk is full"):
                controller.step()
            assert controller.has_failed
            assert cluster.commands == []
            assert controller.engine.placed == {"first": "n"}
            assert controller.engine.waiting == ()
            assert controller.engine.nodes["n"].taints == ()
        full(journal, False)
        cluster.time = 2.0
        controller.step()
        assert not controller.has_failed
        assert cluster.commands[0] == "evict first"
        assert len(controller.engine.waiting) == 40
        assert dumps(replay(journal).checkpoint()) == dumps(controller.engine.checkpoint())


def test_facts_that_could_not_be_written_can_be_dropped(tmp_path: Path) -> None:
    cluster = Recorder()
    with Journal.open(tmp_path / "j") as journal:
        controller = Controller(cluster, Engine(), journal)
        full(journal)
        taint = NodeTainted("n", Taint("mine", "v" * 50))
        large = NodeJoined(Node.of("large", {"CPU": 1}, {f"k{n}": "v" * 60 for n in range(80)}))
        cluster.coming = [NODE, large, taint]
        with pytest.raises(Unwritable):
            controller.step()
        assert controller.take_back(taint)
        assert not controller.take_back(taint)
        full(journal, False)
        controller.step()
        assert controller.engine.nodes["n"].taints == ()
        assert list(controller.engine.nodes) == ["n", "large"]


def test_a_step_that_the_engine_cannot_decide_did_not_happen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Recorder()
    with Journal.open(tmp_path / "j") as journal:
        controller = Controller(cluster, Engine(), journal)
        cluster.coming = [NODE]
        controller.step()
        cluster.coming = [AskSubmitted(Ask.of("a", {"CPU": 1}))]
        with monkeypatch.context() as broken:
            broken.setattr(Engine, "decide", lambda _: 1 // 0)
            with pytest.raises(ZeroDivisionError):
                controller.step()
        assert controller.engine.waiting == ()
        assert dumps(controller.engine.checkpoint()) == dumps(replay(journal).checkpoint())


def test_after_a_restart_replay_continues_with_the_recovered_engine(tmp_path: Path) -> None:
    cluster = Recorder()
    settings = Settings(seed=5)
    random = [AskSubmitted(Ask.of(f"x-{n}", {"CPU": 1}, policy="random")) for n in range(9)]
    nodes: list[Fact] = [NodeJoined(Node.of(f"n{n}", {"CPU": 2})) for n in range(4)]
    with Journal.open(tmp_path / "j", settings) as journal:
        cluster.coming = [*nodes, *random[:3]]
        Controller(cluster, Engine(settings), journal).step()
    for some in (random[3:6], random[6:]):
        with Journal.open(tmp_path / "j") as journal:
            controller = Controller.resumed(cluster, journal)
            cluster.coming = list(some)
            controller.step()
            assert dumps(replay(journal).checkpoint()) == dumps(controller.engine.checkpoint())


def test_a_checkpoint_is_written_now_and_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journals, "CHECKPOINT_STEPS", 3)
    cluster = Recorder()
    with Journal.open(tmp_path / "j") as journal:
        controller = Controller(cluster, Engine(), journal)
        for number in range(7):
            cluster.time, cluster.coming = float(number), [NODE]
            controller.step()
        assert journal.newest_checkpoint == 6
        assert journal.checkpoint_before(6) == 3


def test_after_a_crash_the_last_step_is_carried_out_again(tmp_path: Path) -> None:
    cluster = Recorder()
    cluster.fails, cluster.coming = True, [NODE, AskSubmitted(Ask.of("a", {"CPU": 1}))]
    with Journal.open(tmp_path / "j") as journal, pytest.raises(RuntimeError):
        Controller(cluster, Engine(), journal).step()
    cluster.fails = False
    with Journal.open(tmp_path / "j") as journal:
        controller = Controller.resumed(cluster, journal)
        assert cluster.commands == ["bind a"]
        assert controller.engine.placed == {"a": "n"}


def test_a_journal_created_with_other_settings_is_refused(tmp_path: Path) -> None:
    with Journal.open(tmp_path / "j", Settings(seed=1)) as journal:
        with pytest.raises(
            Invalid, match=r"j was created with .*seed=1,.*\), but the engine has .*seed=2,.*\); use the same settings"
        ):
            Controller(Recorder(), Engine(Settings(seed=2)), journal)
        Controller(Recorder(), Engine(Settings(seed=1)), journal)


def test_a_controller_resumes_from_an_empty_journal(tmp_path: Path) -> None:
    with Journal.open(tmp_path / "j") as journal:
        assert Controller.resumed(Recorder(), journal).engine.nodes == {}
