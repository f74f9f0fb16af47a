"""A service that is newer than the command line: fields and classes that it does not know yet are no matter.

The answers are those of a real service, with unknown fields added to every object that has fields.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from cli.test_on_a_service import LOOKS
from serving import Served
from stead.operate.afar import HttpDesk, difference_of, node_of, replayed_of, told
from stead.operate.known_fields import known, picked
from stead.operate.views import Summary

Run = Callable[..., tuple[int, str, str]]

NEW: dict[str, Any] = {"new_field": {"deep": [1, {"is": "NewClass"}]}, "another": None}

BY_NAME = frozenset("labels sources total available resources bundles before after amounts uses asks_for links".split())
"""Objects whose keys are names of labels and resources, not fields."""


def newer(value: Any) -> Any:
    """The same with unknown fields in every object, and unknown decisions."""
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
    """From the call on, the service is a newer one."""

    def update() -> None:
        send = HttpDesk._send

        def sent(desk: HttpDesk, *given: Any) -> Any:
            return newer(send(desk, *given))

        monkeypatch.setattr(HttpDesk, "_send", sent)

    return update


@pytest.mark.usefixtures("looked_at")
@pytest.mark.parametrize("name", LOOKS)
def test_a_command_prints_what_it_always_printed(name: str, run: Run, updated: Callable[[], None]) -> None:
    before = run(*LOOKS[name])
    updated()
    assert run(*LOOKS[name]) == before


def test_changes_are_made_and_undone(changed: Served, run: Run, updated: Callable[[], None]) -> None:
    updated()
    assert run("taint", "nodes", "cpu-1", "k=v:NoSchedule", "--for", "2h") == (0, "node/cpu-1 tainted for 2h\n", "")
    assert "k=v (2h left)" in run("nodes")[1]
    assert run("undo", "1")[0] == 0
    assert [each["number"] for each in json.loads(run("audit", "--json")[1])] == [1, 2]


def test_only_the_fields_of_a_class_are_taken() -> None:
    assert picked({"title": "t", "is": "Summary", **NEW}, Summary) == {"title": "t"}


def test_a_refusal_for_an_unknown_reason_is_left_out() -> None:
    refusals = [
        {"reason": {"is": "Draining", **NEW}, "nodes": 1, "alone": 1, **NEW},
        {"reason": {"is": "NewReason"}, "nodes": 2, "alone": 0},
    ]
    answer = {"step": 1, "steps": 1, "at": 0.0, "ask": "", "explanation": None, "oldest": 1}
    found = replayed_of({**answer, "decisions": [{"is": "Waiting", "asks": ["a"], "refusals": refusals, **NEW}]})
    (waiting,) = found.decisions
    assert [type(each.reason).__name__ for each in getattr(waiting, "refusals", ())] == ["Draining"]


def test_what_is_not_an_object_stays_as_it_is() -> None:
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


@pytest.mark.parametrize("read", [node_of, difference_of, told, replayed_of])
def test_what_is_missing_is_not_guessed(read: Callable[[Any], Any]) -> None:
    with pytest.raises(KeyError):
        read({"id": "a"})
