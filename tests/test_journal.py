"""The journal: steps are read back as written and replay byte-equal; it has one writer; other files are refused."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from stead.engine.decisions import Decision, Placed
from stead.engine.engine import Engine
from stead.engine.facts import AskEnded, AskSubmitted, ClockAdvanced, Fact, NodeJoined, NodeLeft
from stead.engine.settings import Settings
from stead.errors import Invalid
from stead.journal import Diverged, Journal, Superseded, Unreadable, replay
from stead.language.asks import Ask, PolicyName
from stead.language.nodes import Node

STEPS: list[list[Fact]] = [
    [ClockAdvanced(1), NodeJoined(Node.of("a", {"CPU": 2})), NodeJoined(Node.of("b", {"CPU": 2}))],
    [AskSubmitted(Ask.of(f"x-{n}", {"CPU": 1}, policy=PolicyName.RANDOM)) for n in range(6)],
    [ClockAdvanced(2), AskEnded("x-0")],
    [NodeLeft("b")],
]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run.journal"


def write(path: Path, settings: Settings | None = None) -> list[list[Decision]]:
    """A run of the engine over STEPS, journalled."""
    engine, decided = Engine(settings or Settings()), []
    with Journal.open(path, settings) as journal:
        for facts in STEPS:
            engine.apply(*facts)
            decided.append(engine.decide())
            journal.append(facts, decided[-1])
    return decided


@pytest.fixture
def tampered(path: Path) -> Iterator[sqlite3.Connection]:
    """A SQLite connection to a written journal, to damage it."""
    write(path)
    connection = sqlite3.connect(path)
    yield connection
    connection.close()


def test_steps_come_back_as_written(path: Path) -> None:
    decided = write(path)
    with Journal.reading(path) as journal:
        entries = list(journal.read())
        assert [entry.step for entry in entries] == [1, 2, 3, 4]
        assert [list(entry.facts) for entry in entries] == STEPS
        assert [list(entry.decisions) for entry in entries] == decided
        assert journal.last() == entries[-1]
        assert len(journal) == 4


def test_a_new_journal_is_empty_and_keeps_its_settings(path: Path) -> None:
    settings = Settings(patience=None, hybrid_threshold=0.25, seed=7)
    Journal.open(path, settings).close()
    with Journal.reading(path) as journal:
        assert journal.settings == settings
        assert journal.last() is None
        assert list(journal.read()) == []


def test_replay_gives_the_engine_as_it_was(path: Path) -> None:
    write(path, Settings(seed=3))
    with Journal.reading(path) as journal:
        engine = replay(journal)
    assert engine.now == 2
    assert list(engine.nodes) == ["a"]
    assert len(engine.placed) + len(engine.waiting) == 5


def test_replay_names_the_step_that_differs(path: Path, tampered: sqlite3.Connection) -> None:
    tampered.execute("""UPDATE steps SET decisions = '[{"ask":"x-9","is":"Placed","node":"a"}]' WHERE number = 3""")
    tampered.commit()
    with Journal.reading(path) as journal, pytest.raises(Diverged) as differs:
        replay(journal)
    assert differs.value.step == 3
    assert differs.value.written == (Placed("x-9", "a"),)
    assert str(differs.value).startswith('step 3 differs: the journal says {"ask":"x-9","is":"Placed","node":"a"}, but')


def test_replay_with_other_settings_shows_whether_they_matter(path: Path) -> None:
    write(path, Settings(seed=0))
    with Journal.reading(path) as journal:
        replay(journal, Settings(seed=0))
        with pytest.raises(Diverged, match="step 2 differs"):
            replay(journal, Settings(seed=1))


def test_a_decision_too_few_or_too_many_is_a_difference() -> None:
    assert "but the engine now decides nothing more" in str(Diverged(1, [Placed("a", "n")], []))
    assert "the journal says nothing more, but" in str(Diverged(1, [], [Placed("a", "n")]))


def test_a_journal_can_be_continued(path: Path) -> None:
    write(path)
    with Journal.open(path) as journal:
        assert journal.append([ClockAdvanced(9)], []) == 5
    with Journal.reading(path) as journal:
        replay(journal)


def test_a_journal_keeps_the_settings_it_was_created_with(path: Path) -> None:
    write(path, Settings(seed=1))
    with pytest.raises(Invalid, match=r"was created with Settings\(.*seed=1,.*\), so it cannot be used with .*seed=2"):
        Journal.open(path, Settings(seed=2))


def test_an_older_writer_is_refused_once_another_has_opened_the_journal(path: Path) -> None:
    with Journal.open(path) as older:
        older.append([ClockAdvanced(1)], [])
        with Journal.open(path) as newer:
            with pytest.raises(Superseded, match="was opened by another writer"):
                older.append([ClockAdvanced(2)], [])
            assert newer.append([ClockAdvanced(3)], []) == 2
    with Journal.reading(path) as journal:
        assert [entry.facts for entry in journal.read()] == [(ClockAdvanced(1),), (ClockAdvanced(3),)]


def test_a_reader_cannot_write(path: Path) -> None:
    write(path)
    with Journal.reading(path) as journal:
        with pytest.raises(Invalid, match=r"is open for reading only; use Journal\.open to write to it"):
            journal.append([ClockAdvanced(1)], [])
        with pytest.raises(sqlite3.OperationalError, match="readonly"):
            journal._connection.execute("DELETE FROM steps")


def beside(path: Path) -> list[str]:
    return sorted(found.name for found in path.parent.iterdir())


def test_a_closed_journal_is_a_single_file_and_reading_leaves_nothing_beside_it(path: Path) -> None:
    write(path)
    assert beside(path) == ["run.journal"]
    before = path.read_bytes()
    with Journal.reading(path) as journal:
        replay(journal)
        assert beside(path) == ["run.journal"]
    assert beside(path) == ["run.journal"]
    assert path.read_bytes() == before


def test_the_last_to_close_leaves_a_single_file(path: Path) -> None:
    writer = Journal.open(path)
    reader = Journal.reading(path)
    writer.append([ClockAdvanced(1)], [])
    writer.close()
    assert len(reader) == 1
    reader.close()
    assert beside(path) == ["run.journal"]
    older, newer = Journal.open(path), Journal.open(path)
    older.close()
    newer.append([ClockAdvanced(2)], [])
    newer.close()
    assert beside(path) == ["run.journal"]


def test_closing_twice_is_no_error(path: Path) -> None:
    with Journal.open(path) as journal:
        journal.close()


def test_a_journal_that_may_not_be_written_can_be_read(path: Path) -> None:
    write(path)
    path.chmod(0o400)
    with Journal.reading(path) as journal:
        assert len(journal) == 4


def test_a_reader_sees_what_is_written_meanwhile(path: Path) -> None:
    with Journal.open(path) as writer, Journal.reading(path) as reader:
        writer.append([ClockAdvanced(1)], [])
        assert len(list(reader.read())) == 1


def test_a_step_that_cannot_be_written_leaves_no_trace(path: Path) -> None:
    with Journal.open(path) as journal:
        with pytest.raises(Invalid, match="JSON cannot represent"):
            journal.append([ClockAdvanced(float("inf"))], [])
        assert journal.append([ClockAdvanced(1)], []) == 1


def test_an_interrupt_right_after_the_commit_stays_an_interrupt(path: Path) -> None:
    """An interrupt may come right after the commit; the step stays committed."""

    class Interrupting:
        def __init__(self, connection: sqlite3.Connection) -> None:
            self.connection = connection

        def __getattr__(self, name: str) -> object:
            return getattr(self.connection, name)

        def execute(self, statement: str, *values: Any) -> sqlite3.Cursor:
            cursor = self.connection.execute(statement, *values)
            if statement == "COMMIT":
                raise KeyboardInterrupt
            return cursor

    with Journal.open(path) as journal:
        journal._connection = Interrupting(journal._connection)  # type: ignore[assignment]
        with pytest.raises(KeyboardInterrupt):
            journal.append(STEPS[0], [])
    with Journal.reading(path) as journal:
        assert [entry.facts for entry in journal.read()] == [tuple(STEPS[0])]


def test_a_missing_file_is_one_sentence(path: Path) -> None:
    with pytest.raises(Unreadable, match=r"^there is no journal at .*run\.journal$"):
        Journal.reading(path)


@pytest.mark.parametrize("opened", [Journal.open, Journal.reading], ids=["for writing", "for reading"])
def test_a_file_that_is_not_a_database_is_refused_in_one_sentence(
    path: Path, opened: Callable[[Path], Journal]
) -> None:
    path.write_text("just some text, long enough to be no empty database " * 40)
    before = path.read_bytes()
    with pytest.raises(Unreadable, match="cannot be used as a journal: file is not a database"):
        opened(path)
    assert path.read_bytes() == before


@pytest.mark.parametrize("opened", [Journal.open, Journal.reading], ids=["for writing", "for reading"])
def test_a_database_of_someone_else_is_left_alone(path: Path, opened: Callable[[Path], Journal]) -> None:
    other = sqlite3.connect(path)
    other.execute("CREATE TABLE theirs (x)")
    other.commit()
    other.close()
    before = path.read_bytes()
    with pytest.raises(Unreadable, match="is not a stead journal; use another file name"):
        opened(path)
    assert path.read_bytes() == before


def test_a_journal_of_another_version_is_refused(path: Path, tampered: sqlite3.Connection) -> None:
    tampered.execute("PRAGMA user_version = 99")
    with pytest.raises(Unreadable, match="is a journal of version 99, but this version of stead reads 4"):
        Journal.reading(path)


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        ("DELETE FROM steps WHERE number = 2", "is damaged: step 2 is missing"),
        ("UPDATE steps SET facts = '[{' WHERE number = 2", "step 2 of .* is damaged: this is not JSON"),
        (
            """UPDATE steps SET facts = '[{"is":"Boom"}]' WHERE number = 1""",
            "step 1 of .* is damaged: 'Boom' is unknown",
        ),
    ],
)
def test_a_torn_journal_says_where(path: Path, tampered: sqlite3.Connection, damage: str, sentence: str) -> None:
    tampered.execute(damage)
    tampered.commit()
    with Journal.reading(path) as journal, pytest.raises(Unreadable, match=sentence):
        list(journal.read())


def test_a_journal_without_its_settings_is_damaged(path: Path, tampered: sqlite3.Connection) -> None:
    tampered.execute("DELETE FROM about WHERE name = 'settings'")
    tampered.commit()
    with pytest.raises(Unreadable, match="is damaged: it has no settings"):
        Journal.reading(path)
