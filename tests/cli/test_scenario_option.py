"""`--scenario FILE`: commands that only read answer from a simulation, without any cluster."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.serving import Served

Run = Callable[..., tuple[int, str, str]]

SCENARIO = str(Path(__file__).parent.parent / "golden" / "served.yaml")
SPEC = str(Path(__file__).parent.parent / "golden" / "work.yaml")

ASKED: list[list[str]] = [
    ["status"],
    ["nodes"],
    ["nodes", "cpu-one", "-o", "wide"],
    ["work"],
    ["groups"],
    ["top"],
    ["top", "owners"],
    ["why", "typo", "-o", "json"],
    ["why", "--spec", SPEC],
    ["lint"],
    ["lint", "--spec", SPEC],
    ["what-if", "--evict", "cpu-1"],
    ["what-if", "--drain", "zone=a", "-o", "json"],
]


@pytest.mark.parametrize("words", ASKED, ids=map(" ".join, ASKED))
def test_a_scenario_answers_like_a_service(words: list[str], looked_at: Served, run: Run) -> None:
    assert run(*words, "--scenario", SCENARIO) == run(*words)


@pytest.mark.usefixtures("lone")
class TestWithoutACluster:
    def test_times_count_from_the_start_of_the_scenario(self, run: Run) -> None:
        events = run("events", "--scenario", SCENARIO)[1].splitlines()
        assert events[0].startswith("0 s  joined    cpu-one: joined")
        found = json.loads(run("describe", "node", "cpu-one", "--scenario", SCENARIO, "-o", "json")[1])
        assert (found["since"], found["at"], found["age"]) == (0.0, 90.0, 90.0)

    def test_the_simulation_stops_at_until(self, run: Run) -> None:
        (node,) = json.loads(run("nodes", "cpu-two", "--scenario", SCENARIO, "--until", "40s", "--json")[1])
        assert [taint["key"] for taint in node["taints"]] == ["repair"]

    def test_nothing_is_left_behind(self, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
        assert run("nodes", "--scenario", SCENARIO)[0] == 0
        assert [path.name for path in tmp_path.iterdir() if path.name.startswith("stead")] == []

    @pytest.mark.parametrize("command", ["status", "nodes", "work", "groups", "events", "lint", "top"])
    def test_a_scenario_and_an_address_are_refused(self, command: str, run: Run) -> None:
        code, out, err = run(command, "--scenario", SCENARIO, "--address", "http://127.0.0.1:1")
        assert (code, out) == (2, "")
        assert err.startswith("stead: give --scenario or --address, not both")

    @pytest.mark.parametrize(
        ("words", "sentence"),
        [
            (["nodes", "--until", "5m"], "--until needs a scenario; give --scenario FILE too"),
            (["nodes", "--scenario", SCENARIO, "--until", "soon"], "Invalid value for '--until'"),
            (["nodes", "--scenario", "none.yaml"], "the scenario none.yaml cannot be read: No such file or directory"),
            (
                ["what-if", "--scenario", SCENARIO, "--drain", "cpu-1", "--apply", "--yes"],
                "--apply changes a cluster, not a scenario; leave out --scenario or --apply",
            ),
        ],
    )
    def test_wrong_usage_is_one_sentence(self, words: list[str], sentence: str, run: Run) -> None:
        code, out, err = run(*words)
        assert (code in (1, 2), out, err.count("\n")) == (True, "", 1)
        assert err.startswith(f"stead: {sentence}")
