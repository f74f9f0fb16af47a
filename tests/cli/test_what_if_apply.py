"""`stead what-if --apply` makes the previewed changes, as one change; `--compare` shows two side by side."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pytest

from tests.serving import Served, serving, simulated

Run = Callable[..., tuple[int, str, str]]

CLUSTER = """
title: three
nodes:
- {id: a, name: node-a, capacity: {CPU: 1}, labels: {zone: x}}
- {id: b, capacity: {CPU: 1}, labels: {zone: x}, taints: old=yes}
- {id: c, capacity: {CPU: 1}, labels: {zone: y}}
work: [{id: one, resources: {CPU: 1}, selector: zone = x}]
"""


@pytest.fixture(autouse=True)
def served(lone: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    with simulated(CLUSTER) as desk, serving(desk) as served:
        for name, value in served.variables.items():
            monkeypatch.setenv(name, value)
        yield served


def state(run: Run) -> list[object]:
    return [
        (node["id"], node["draining"], [each["key"] for each in node["taints"]], node["labels"].get("rack"))
        for node in json.loads(run("nodes", "--json")[1])
    ]


class TestApply:
    def test_a_preview_then_one_change_and_one_undo(self, run: Run) -> None:
        before = state(run)
        words = ["--taint", "a", "k=v:NoSchedule", "--label", "a", "rack=7", "--drain", "a", "--apply", "--yes"]
        code, out, err = run("what-if", *words)
        assert (code, err) == (0, "")
        assert out.startswith("3 nodes now, 3 with the changes.\n")
        assert out.endswith("\nChanged node-a: +k=v:no-schedule +rack=7 draining. Undo it with: stead undo 1\n")
        assert "Nothing was changed" not in out
        assert state(run) != before
        (entry,) = json.loads(run("audit", "--json")[1])
        assert entry["action"] == "change"
        assert run("undo", "1")[0] == 0
        assert state(run) == before

    def test_the_same_on_several_nodes_is_one_change(self, run: Run) -> None:
        assert run("what-if", "--drain", "zone=x", "--apply", "-y")[0] == 0
        (entry,) = json.loads(run("audit", "--json")[1])
        assert sorted(entry["before"]["nodes"]) == ["a", "b"]

    def test_different_changes_of_several_nodes_are_one_change_too(self, run: Run) -> None:
        before = state(run)
        words = ["--drain", "a", "--label", "b", "rack=7", "--untaint", "b", "old", "--apply", "--yes"]
        assert run("what-if", *words)[0] == 0
        assert sorted(map(str, state(run))) == [
            "('a', True, [], None)",
            "('b', False, [], '7')",
            "('c', False, [], None)",
        ]
        assert len(json.loads(run("audit", "--json")[1])) == 1
        assert run("undo", "1")[0] == 0
        assert state(run) == before

    def test_eviction_is_a_drain_that_evicts(self, run: Run) -> None:
        assert run("what-if", "--evict", "a", "--apply", "--yes")[0] == 0
        assert run("uncordon", "a")[0] == 0
        assert {str(each) for each in state(run)} == {
            "('a', False, [], None)",
            "('b', False, ['old'], None)",
            "('c', False, [], None)",
        }

    def test_json_has_the_change_and_its_difference(self, run: Run) -> None:
        code, out, err = run("what-if", "--drain", "a", "--apply", "--yes", "--json")
        found = json.loads(out)
        assert (code, sorted(found)) == (0, ["audit", "difference", "node", "unconfirmed"])
        assert (found["node"]["id"], found["difference"]["nodes_after"]) == ("a", 3)
        assert err.startswith("3 nodes now, 3 with the changes.\n")

    @pytest.mark.parametrize(("answer", "code", "entries"), [("y", 0, 1), ("n", 1, 0), ("", 1, 0)])
    def test_on_a_terminal_it_asks_for_confirmation(
        self, answer: str, code: int, entries: int, run: Run, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        asked: list[str] = []

        def confirm(text: str, **_: object) -> bool:
            asked.append(text)
            return answer == "y"

        monkeypatch.setattr("stead.commands.what_if.can_answer", lambda: True)
        monkeypatch.setattr(click, "confirm", confirm)
        assert run("what-if", "--drain", "a", "--apply")[0] == code
        assert asked == ["\nChange node-a?"]
        assert len(json.loads(run("audit", "--json")[1])) == entries

    REFUSED = (
        (["--drain", "a", "--apply"], 2, "--apply asks for confirmation, but there is no terminal"),
        (["--drain", "a", "--yes"], 2, "--yes confirms a change; give --apply too"),
        (["--add", "CPU=1", "--apply", "--yes"], 1, "changes[0]: a new node cannot be applied; you can apply drain,"),
        (["--remove", "a", "--apply", "--yes"], 1, "changes[0]: a removed node cannot be applied"),
        (["work.yaml", "--drain", "a", "--apply", "--yes"], 1, "work of a what-if cannot be applied"),
        (["--untaint", "a", "old", "--apply", "--yes"], 1, "node node-a has no taint old; it has no taints"),
        (["--drain", "nobody", "--apply", "--yes"], 1, "changes[0].drain: there is no node 'nobody'"),
        (["--drain", "a", "--compare", "x.yaml", "--apply", "--yes"], 2, "give --apply or --compare, not both"),
    )

    @pytest.mark.parametrize(("words", "code", "sentence"), REFUSED, ids=[" ".join(words) for words, _, _ in REFUSED])
    def test_a_what_if_that_cannot_be_applied_is_one_sentence_and_changes_nothing(
        self, words: list[str], code: int, sentence: str, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "work.yaml").write_text("work: [{id: w, resources: {CPU: 1}}]")
        monkeypatch.chdir(tmp_path)
        found = run("what-if", *words)
        assert (found[0], found[1], found[2].count("\n")) == (code, "", 1)
        assert found[2].startswith(f"stead: {sentence}")
        assert json.loads(run("audit", "--json")[1]) == []


class TestCompare:
    @pytest.fixture(autouse=True)
    def files(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "a.yaml").write_text("changes: [{leave: a}]")
        (tmp_path / "b.yaml").write_text("changes: [{leave: a}, {untaint: b, key: old}]")
        monkeypatch.chdir(tmp_path)

    def test_both_are_columns_of_one_table(self, run: Run) -> None:
        code, out, err = run("what-if", "a.yaml", "--compare", "b.yaml")
        assert (code, err) == (0, "")
        rows = [line.split() for line in out.partition("\n\n")[0].splitlines()]
        assert rows == [
            ["WHAT", "a.yaml", "b.yaml"],
            ["nodes", "2", "2"],
            ["moved", "0", "1"],
            ["stranded", "1", "0"],
            ["harms", "1", "0"],
        ]
        assert out.endswith("\n\nNothing was changed.\n")

    def test_json_has_both_differences_as_they_are_alone(self, run: Run) -> None:
        found = json.loads(run("what-if", "a.yaml", "--compare", "b.yaml", "--json")[1])["compared"]
        assert [each["name"] for each in found] == ["a.yaml", "b.yaml"]
        for each in found:
            assert each["difference"] == json.loads(run("what-if", each["name"], "--json")[1])

    def test_options_are_compared_with_a_file_too(self, run: Run) -> None:
        out = run("what-if", "--drain", "a", "--compare", "b.yaml")[1]
        assert out.splitlines()[0].split() == ["WHAT", "options", "b.yaml"]

    def test_files_with_the_same_name_have_different_titles(self, run: Run, tmp_path: Path) -> None:
        (tmp_path / "other").mkdir()
        (tmp_path / "other" / "a.yaml").write_text("changes: [{drain: a}]")
        out = run("what-if", "a.yaml", "--compare", "other/a.yaml")[1]
        assert out.splitlines()[0].split("  ")[-1].strip() == "other/a.yaml (compared)"
