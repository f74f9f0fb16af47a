"""`stead describe` and `stead top`: what the golden files do not cover."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from tests.cli.test_on_a_service import GPU
from tests.serving import Served, serving, simulated

Run = Callable[..., tuple[int, str, str]]

REFUSED: list[tuple[list[str], int, str]] = [
    (["describe"], 2, "Missing argument 'node|work|group'."),
    (["describe", "node"], 2, "Missing argument 'NAME...'."),
    (["describe", "noed", "a"], 2, "'noed' cannot be described (did you mean 'node'?); give node, work or group"),
    (["describe", "node", "nobody"], 1, "there is no node 'nobody' in this cluster"),
    (["describe", "work", "nobody"], 1, "there is no work 'nobody' in this cluster"),
    (["describe", "group", "rign"], 1, "there is no group 'rign' in this cluster (did you mean 'ring'?)"),
    (["top", "owner"], 2, "'owner' cannot be shown (did you mean 'owners'?); give nodes or owners"),
]


@pytest.mark.usefixtures("looked_at")
class TestDescribe:
    def test_a_name_and_an_id_describe_the_same_node(self, run: Run) -> None:
        assert run("describe", "node", "cpu-one") == run("describe", "nodes", "cpu-1")
        assert run("describe", "node", GPU[:8])[1].startswith(f"Node:      {GPU}\n")

    def test_several_are_printed_one_after_the_other_and_as_an_array(self, run: Run) -> None:
        both = run("describe", "work", "web-1", "typo")[1]
        assert both == "\n".join([run("describe", "work", "web-1")[1], run("describe", "work", "typo")[1]])
        found = json.loads(run("describe", "work", "web-1", "typo", "-o", "json")[1])
        assert [each["id"] for each in found] == ["web-1", "typo"]

    def test_a_field_is_picked_by_jsonpath(self, run: Run) -> None:
        assert run("describe", "group", "ring", "-o", "jsonpath={.state}, {.subject.strategy}")[1] == (
            "waiting, STRICT_SPREAD\n"
        )

    @pytest.mark.parametrize(("words", "code", "sentence"), REFUSED, ids=[" ".join(words) for words, _, _ in REFUSED])
    def test_an_unknown_kind_or_name_is_one_sentence(
        self, words: list[str], code: int, sentence: str, run: Run
    ) -> None:
        found = run(*words)
        assert (found[0], found[1], found[2].count("\n")) == (code, "", 1)
        assert found[2].startswith(f"stead: {sentence}")


def test_a_changed_node_shows_its_taints_events_and_changes(changed: Served, run: Run) -> None:
    run("taint", "nodes", "cpu-1", "team=blue:NoSchedule", "--owner", "blue", "--for", "90m")
    run("label", "nodes", "cpu-1", "rack=7")
    out = run("describe", "node", "cpu-one")[1]
    assert "team=blue since 2026-01-01 00:01:30, until 2026-01-01 01:31:30 (1h30m left), by blue" in out
    assert "  rack=7  (run time)\n" in out
    assert "  1  2026-01-01 00:01:30  operator  taint: +team=blue:no-schedule\n" in out
    assert "  2026-01-01 00:01:30  tainted   cpu-one: tainted team=blue for 1h30m by blue\n" in out


def test_control_characters_in_names_are_escaped(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    scenario = 'nodes: [{id: n, name: "a\\u202eb", capacity: {CPU: 1}}]'
    with simulated(scenario) as desk, serving(desk) as served:
        for name, value in served.variables.items():
            monkeypatch.setenv(name, value)
        for words in (["describe", "node", "n"], ["top"], ["nodes"], ["nodes", "-o", "name"], ["nodes", "-o", "csv"]):
            out = run(*words)[1]
            assert "\u202e" not in out
            assert "a\\u202eb" in out


@pytest.mark.usefixtures("looked_at")
class TestTop:
    def test_the_fullest_come_first(self, run: Run) -> None:
        found = json.loads(run("top", "-o", "json")[1])
        assert [each["most"] for each in found] == sorted((each["most"] for each in found), reverse=True)
        assert (found[0]["id"], found[0]["most"], found[0]["runs"]) == ("cpu-1", 100.0, 5)
        assert found[0]["uses"][0] == {"resource": "CPU", "used": 4.0, "total": 4.0, "percent": 100.0}

    def test_owners_are_listed_with_what_they_use_and_wait_for(self, run: Run) -> None:
        found = {each["id"]: each for each in json.loads(run("top", "owners", "-o", "json")[1])}
        assert found["blue"]["uses"] == {"CPU": 1.0, "memory": 2147483648.0}
        assert found["red"]["running"] == 2

    def test_a_cut_list_says_so_on_stderr(self, run: Run) -> None:
        assert run("top", "--limit", "1")[2] == "1 of 4 shown; see more with --limit 4, or less with --filter\n"
