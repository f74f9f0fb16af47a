"""`stead submit -w`: lines in a pipe, live counts on a terminal, and Ctrl-C. The cluster is one of these tests."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from stead.cli import main
from stead.commands import submitting
from stead.commands.submitting import Screen, counts_text, text_of
from stead.specs.following import Line, State, Update

NEWS: Sequence[Update | Line] = (
    Update("a", State.PENDING, reason="0 of 1 node fits"),
    Update("b", State.RUNNING, "node-1"),
    Line("b", "tab\there\x1b[31m"),
    Update("b", State.SUCCEEDED, "node-1", code=0),
    Line("", "logs cannot be read"),
)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Target:
    """Reports the news, then what a user does."""

    def __init__(self, *then: type[BaseException]) -> None:
        self.then, self.calls = list(then), list[str]()

    def check(self) -> Sequence[str]:
        return self.submit()

    def submit(self) -> Sequence[str]:
        self.calls.append("submit")
        return ["a", "b"]

    def follow(self) -> Iterator[Update | Line]:
        yield from NEWS
        for each in self.then:
            raise each
        yield Update("a", State.FAILED, code=3)

    def cancel(self) -> None:
        self.calls.append("cancel")
        if len(self.then) > 1:
            raise self.then[1]

    def close(self) -> None:
        self.calls.append("close")


@pytest.fixture
def work(tmp_path: Path) -> str:
    (tmp_path / "work.yaml").write_text("work: {id: a, run: x}", encoding="utf-8")
    return str(tmp_path / "work.yaml")


def follow(target: Target, work: str, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(submitting, "_target", lambda *given: target)
    return main(["submit", "--to", "ray", work, "-w"])


LINES = [
    "a: pending: 0 of 1 node fits",
    "b: running on node-1",
    "b | tab\there\\x1b[31m",
    "b: succeeded",
    "logs cannot be read",
]


def test_a_pipe_gets_one_line_for_everything(
    work: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A command's escape characters do not reach the terminal."""
    target = Target()
    assert follow(target, work, monkeypatch) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines == [*LINES, "a: failed with exit status 3", "1 piece succeeded, 1 failed"]
    assert target.calls == ["submit", "close"]


def test_ctrl_c_cancels_once(work: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    target = Target(KeyboardInterrupt)
    assert follow(target, work, monkeypatch) == 130
    assert target.calls == ["submit", "cancel", "close"]
    assert capsys.readouterr().out.splitlines() == [*LINES, "cancelling; press Ctrl-C again to leave at once"]


def test_a_second_ctrl_c_leaves_at_once(work: str, monkeypatch: pytest.MonkeyPatch) -> None:
    target = Target(KeyboardInterrupt, KeyboardInterrupt)
    assert follow(target, work, monkeypatch) == 130
    assert target.calls == ["submit", "cancel", "close"]


def test_a_terminal_shows_the_counts_below_the_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr("sys.stdout", terminal)
    screen = Screen(quiet=False)
    last: dict[str, Update] = {}
    for each in NEWS[:2]:
        assert isinstance(each, Update)
        last[each.id] = each
        screen.show(each, last)
    screen.end()
    clear = "\r\x1b[2K"
    assert terminal.getvalue() == (
        f"a: pending: 0 of 1 node fits\n1 pending{clear}b: running on node-1\n1 pending, 1 running{clear}"
    )


def test_counts_are_in_the_order_of_a_life() -> None:
    states = (State.FAILED, State.PENDING, State.SUCCEEDED, State.RUNNING, State.PENDING)
    updates = [Update(str(number), state) for number, state in enumerate(states)]
    assert counts_text(updates) == "2 pending, 1 running, 1 succeeded, 1 failed"


@pytest.mark.parametrize(
    ("update", "text"),
    [
        (Update("a", State.PENDING), "a: pending"),
        (Update("a", State.FAILED, code=3), "a: failed with exit status 3"),
        (Update("a", State.FAILED, reason="OOMKilled", code=137), "a: failed: OOMKilled"),
        (Update("a", State.SUCCEEDED, code=0, at=1.5), "1.5 s  a: succeeded"),
    ],
)
def test_an_update_is_one_sentence(update: Update, text: str) -> None:
    assert text_of(update) == text
