"""A service that is newer than the command line: unknown fields and classes are ignored.

The answers are those of a real service, with unknown fields added to every object that has fields.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from stead.operate.http_client import HttpDesk, difference_of, explanation_of, node_of, replayed_of
from stead.operate.known_fields import known, picked
from stead.operate.views import Summary
from tests.cli.test_on_a_service import LOOKS
from tests.serving import Served

Run = Callable[..., tuple[int, str, str]]

NEW: dict[str, Any] = {"new_field": {"deep": [1, {"is": "NewClass"}]}, "another": None}

BY_NAME = frozenset("labels sources total available resources bundles before after amounts uses asks_for links".split())
"""Objects whose keys are names of labels and resources, not fields."""


def newer(value: Any) -> Any:
    """The value with unknown fields in every object, and unknown decisions."""
    if isinstance(value, list):
        return [newer(each) for each in value]
    if not isinstance(value, dict):
        return value
    fields = {name: part if name in BY_NAME else newer(part) for name, part in value.items()}
    if "decisions" in fields:
        fields["decisions"] = [{"is": "NewDecision", "ask": "a"}, *fields["decisions"]]
    return {**NEW, **fields}


@pytest.fixture
def updated(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """After the call, the service is newer."""

    def update() -> None:
        send = HttpDesk._send

        def sent(desk: HttpDesk, *given: Any) -> Any:
            return newer(send(desk, *given))

        monkeypatch.setattr(HttpDesk, "_send", sent)

    return update


@pytest.mark.usefixtures("looked_at")
@pytest.mark.parametrize("name", LOOKS)
def test_a_command_prints_the_same_as_before(name: str, run: Run, updated: Callable[[], None]) -> None:
    before = run(*LOOKS[name])
    updated()
    assert run(*LOOKS[name]) == before


def test_changes_are_made_and_undone(changed: Served, run: Run, updated: Callable[[], None]) -> None:
    updated()
    assert run("taint", "nodes", "cpu-1", "k=v:NoSchedule", "--for", "2h") == (0, "node/cpu-1 tainted for 2h\n", "")
    assert "k=v (2h left)" in run("nodes")[1]
    assert run("undo", "1")[0] == 0
    assert [each["number"] for each in json.loads(run("audit", "--json")[1])] == [1, 2]


def test_only_the_fields_of_a_class_are_kept() -> None:
    assert picked({"title": "t", "is": "Summary", **NEW}, Summary) == {"title": "t"}


def test_a_refusal_with_an_unknown_reason_is_dropped() -> None:
    refusals = [
        {"reason": {"is": "Draining", **NEW}, "nodes": 1, "alone": 1, **NEW},
        {"reason": {"is": "NewReason"}, "nodes": 2, "alone": 0},
    ]
    verdict = {"nodes": 3, "candidates": 0, "refusals": refusals, **NEW}
    answer = {"step": 1, "steps": 1, "at": 0.0, "ask": "", "explanation": None, "oldest": 1}
    found = replayed_of({**answer, "decisions": [{"is": "Waiting", "asks": ["a"], "verdicts": [verdict], **NEW}]})
    (waiting,) = found.decisions
    assert [type(each.reason).__name__ for each in getattr(waiting, "refusals", ())] == ["Draining"]


def test_other_values_are_unchanged() -> None:
    assert known("text", Summary) == "text"
    assert known([["a", {"b": 1}]], tuple[tuple[str, Summary], ...]) == [["a", {}]]


@pytest.mark.usefixtures("looked_at")
@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ([], "TypeError: "),
        ({}, "KeyError: 'items'"),
        ({"items": [{}]}, "KeyError: 'taints'"),
        ({"items": None}, "TypeError: "),
        ({"items": [{"id": "a", "taints": [{"key": "k", "value": "", "effect": "new-effect"}]}]}, "ValueError: "),
    ],
)
def test_an_answer_that_cannot_be_read_is_one_sentence(
    answer: Any, reason: str, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HttpDesk, "_send", lambda *_: answer)
    code, out, err = run("nodes")
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert f"sent an answer that this version of stead cannot read ({reason}" in err


@pytest.mark.parametrize("read", [node_of, difference_of, explanation_of, replayed_of])
def test_missing_fields_are_not_guessed(read: Callable[[Any], Any]) -> None:
    with pytest.raises(KeyError):
        read({"id": "a"})
