"""`stead submit --to sim`: work is added to a scenario, and followed in virtual time."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from stead.cli import main

Submit = Callable[..., tuple[int, list[str], str]]

CLUSTER = """
nodes:
  - {id: cpu, count: 2, capacity: {CPU: 4}}
  - {id: gpu, capacity: {CPU: 4, GPU: 1}, taints: "gpu_node=true"}
work: {id: old, resources: {CPU: 4}, for: 20s}
events: [{at: 40s, leave: cpu-2}]
"""


@pytest.fixture
def submit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Submit:
    (tmp_path / "cluster.yaml").write_text(CLUSTER, encoding="utf-8")

    def call(text: str, *options: str) -> tuple[int, list[str], str]:
        file = tmp_path / "work.yaml"
        file.write_text(text, encoding="utf-8")
        code = main(["submit", "--to", "sim", str(file), "--scenario", str(tmp_path / "cluster.yaml"), *options])
        said = capsys.readouterr()
        return code, said.out.splitlines(), said.err

    return call


def test_progress_is_in_virtual_time(submit: Submit) -> None:
    code, lines, _ = submit("work: {id: web, count: 2, run: x, resources: {CPU: 4}, for: 1m}", "-w")
    assert (code, lines) == (
        0,
        [
            "0 s  web-1: running on cpu-2",
            "0 s  web-2: pending: 0 of 3 nodes fit: 1 tainted gpu_node=true; 2 short of 4 CPU.",
            "20 s  web-2: running on cpu-1",
            "40 s  web-1: pending: cpu-2 left",
            "40 s  web-1: pending: 0 of 2 nodes fit: 1 tainted gpu_node=true; 1 short of 4 CPU.",
            "80 s  web-2: succeeded",
            "80 s  web-1: running on cpu-1",
            "140 s  web-1: succeeded",
            "2 pieces succeeded",
        ],
    )


def test_a_deadline_is_a_failure(submit: Submit) -> None:
    code, lines, _ = submit("work: {id: train, run: x, resources: {GPU: 1}, for: 1, deadline: 10}", "-w")
    assert (code, lines[-1]) == (1, "0 pieces succeeded, 1 failed")
    assert lines[-2].startswith("10 s  train: failed: its deadline passed: 0 of 3 nodes fit")


def test_what_has_not_ended_at_the_end_has_failed(submit: Submit) -> None:
    work = "work: [{id: long, run: x, for: 1h}, {id: never, run: x, resources: {TPU: 1}, for: 1}]"
    code, lines, _ = submit(work, "-w", "--until", "1m")
    assert code == 1
    assert "60 s  long: failed: running when the simulation ended" in lines
    why = "0 of 3 nodes fit: 1 tainted gpu_node=true; 2 too small for 1 TPU."
    assert f"60 s  never: failed: pending when the simulation ended: {why}" in lines


def test_a_group_runs_and_ends_as_a_whole(submit: Submit) -> None:
    code, lines, _ = submit("groups: {id: ring, run: x, for: 5, at: 25, bundles: [{CPU: 4}, {CPU: 4}]}", "-w")
    assert code == 0
    assert [line for line in lines if "succeeded" in line] == [
        "30 s  ring-1: succeeded",
        "30 s  ring-2: succeeded",
        "2 pieces succeeded",
    ]


def test_json_has_the_result_of_each_piece(submit: Submit) -> None:
    code, lines, err = submit("work: {id: web, run: x, for: 5}", "-w", "-o", "json")
    assert code == 0
    assert json.loads("\n".join(lines)) == [
        {"id": "web", "state": "succeeded", "node": "cpu-2", "code": 0, "reason": None, "at": 5.0}
    ]
    assert err.splitlines() == ["0 s  web: running on cpu-2", "5 s  web: succeeded"]


REFUSED: dict[str, tuple[str, str]] = {
    "no duration": ("work: {id: a, run: x}", "work.for: is missing; the simulator needs a duration, for example 10m"),
    "no work": ("work: []", "work: is missing; a good value is [{id: hello, run: echo hello"),
    "a taken id": ("work: {id: old, run: x, for: 1}", "work.id: the id 'old' is already used in the cluster"),
    "a change": ("changes: [{drain: cpu-1}]", "changes: is not a known field"),
    "nothing to run": ("work: {id: a, run: '', for: 1}", "work.run: must be a command such as 'python train.py'"),
    "a number to run": ("work: {id: a, run: 5, for: 1}", "work.run: must be a command such as"),
    "an empty list to run": ("work: {id: a, run: [], for: 1}", "work.run: must be a command such as"),
    "a list with a number": ("work: {id: a, run: [sleep, 5], for: 1}", "work.run: must be a command such as"),
    "a zero character": ('work: {id: a, run: "a\\0b", for: 1}', "work.run: contains the character U+0000"),
    "a list of variables": ("work: {id: a, env: [A], for: 1}", "work.env: must be a map such as {MODE: fast}"),
    "a number as a variable": (
        "work: {id: a, env: {A: 5}, for: 1}",
        "work.env: the value of A must be text, such as '5'",
    ),
    "a variable with a dash": ("work: {id: a, env: {a-b: x}, for: 1}", "work.env: has the name 'a-b', which must be"),
    "an image with a space": ("work: {id: a, image: a b, for: 1}", "work.image: must be the name of a container image"),
    "a port too high": ("work: {id: a, ports: 70000, for: 1}", "work.ports.port: must be a port from 1 to 65535"),
    "a protocol": (
        "work: {id: a, ports: [{port: 5, protocol: X}], for: 1}",
        "work.ports[0].protocol: must be one of TCP",
    ),
    "estimates": ("work: {id: a, estimates: 5, for: 1}", "work.estimates: must be a map such as"),
    "preempts": ("work: {id: a, preempts: maybe, for: 1}", "work.preempts: must be true or false"),
    "domains": (
        "work: {id: a, labels: {a: b}, spread: {topology: zone, min_domains: 0}, for: 1}",
        "work.spread.min_domains: must be at least 1",
    ),
    "a fallback of a group": (
        "groups: {id: a, bundles: [{CPU: 1}], fallback: {bundles: [{CPU: 2}]}, for: 1}",
        "groups.fallback: a group that is submitted has one set of bundles",
    ),
}


@pytest.mark.parametrize(("text", "sentence"), REFUSED.values(), ids=REFUSED)
def test_bad_input_is_one_sentence_that_names_its_place(submit: Submit, text: str, sentence: str) -> None:
    code, lines, err = submit(text)
    assert (code, lines) == (1, [])
    assert "work.yaml: " in err
    assert sentence in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--to", "sim"], "--to sim needs nodes; give --scenario FILE too"),
        (["--to", "sim", "--address", "a:1", "--scenario", "c"], "--address is for --to ray, but the work goes to sim"),
        (["--to", "ray", "--context", "a"], "--context is for --to kubernetes, but the work goes to ray"),
        (["--to", "kubernetes", "--until", "5m"], "--until is for --to sim, but the work goes to kubernetes"),
        (["--to", "slurm"], "'slurm' is not one of 'ray', 'kubernetes', 'sim'"),
        ([], "Missing option '--to'. Choose from: ray, kubernetes, sim (see"),
    ],
)
def test_wrong_usage_is_one_sentence(words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["submit", "work.yaml", *words]) == 2
    assert sentence in capsys.readouterr().err
