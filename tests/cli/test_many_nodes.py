"""`taint`, `label`, `drain` and `uncordon` on several nodes, by name and by selector."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import pytest

from tests.serving import Served, serving, simulated

Run = Callable[..., tuple[int, str, str]]

CLUSTER = """
title: three
nodes:
- {id: a, capacity: {CPU: 1}, labels: {zone: x}}
- {id: b, capacity: {CPU: 1}, labels: {zone: x}}
- {id: c, capacity: {CPU: 1}, labels: {zone: y}}
"""


@pytest.fixture(autouse=True)
def served(monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    with simulated(CLUSTER) as desk, serving(desk) as served:
        for name, value in served.variables.items():
            monkeypatch.setenv(name, value)
        yield served


def tainted(run: Run) -> list[str]:
    return [node["id"] for node in json.loads(run("nodes", "--json")[1]) if node["taints"]]


@pytest.mark.parametrize(
    ("words", "nodes"),
    [
        (["taint", "nodes", "a", "c", "k=v:NoSchedule"], ["a", "c"]),
        (["taint", "nodes", "-l", "zone=x", "k=v:NoSchedule"], ["a", "b"]),
        (["taint", "-l", "zone in [x, y]", "--append", "k=v"], ["a", "b", "c"]),
        (["taint", "nodes", "a", "a", "k=v:NoSchedule"], ["a"]),
    ],
)
def test_taint(run: Run, words: list[str], nodes: list[str]) -> None:
    code, out, err = run(*words)
    assert (code, err) == (0, "")
    assert tainted(run) == nodes
    assert len(out.splitlines()) == len(nodes)
    assert len(json.loads(run("audit", "--json")[1])) == 1


def test_drain_and_uncordon_and_one_undo(run: Run) -> None:
    assert run("drain", "a", "b") == (0, "node a: takes no new work\nnode b: takes no new work\n", "")
    code, out, _ = run("uncordon", "-l", "zone=x", "--json")
    (told,) = json.loads(out)
    assert (code, [node["id"] for node in told["nodes"]]) == (0, ["a", "b"])
    assert run("undo", "2")[0] == 0
    found = {node["id"]: node["draining"] for node in json.loads(run("nodes", "--json")[1])}
    assert found == {"a": True, "b": True, "c": False}
    assert "2 nodes" in run("audit")[1]


def test_labels(run: Run) -> None:
    assert run("label", "nodes", "a", "b", "disk=ssd")[0] == 0
    found = {node["id"]: node["labels"].get("disk") for node in json.loads(run("nodes", "--json")[1])}
    assert found == {"a": "ssd", "b": "ssd", "c": None}


def test_a_dry_run_previews_all_of_them_together_and_changes_nothing(run: Run) -> None:
    code, out, _ = run("drain", "-l", "zone=x", "--dry-run")
    assert code == 0
    assert out.splitlines()[-1] == "No work would be affected."
    assert json.loads(run("audit", "--json")[1]) == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["drain"], "name nodes, or give a selector, for example: -l zone=a"),
        (["drain", "a", "-l", "zone=x"], "name nodes, or give a selector, for example: -l zone=a"),
        (["drain", "-l", "zone=nowhere"], "no node has zone in {nowhere}"),
        (["taint", "nodes", "a", "nobody", "k=v:NoSchedule"], "there is no node 'nobody'"),
        (["taint", "--node-id", "a", "--node-ip", "1.2.3.4", "--append", "k=v"], "name one node with --node-id"),
    ],
)
def test_no_node_or_too_many_nodes_are_refused(run: Run, words: list[str], said: str) -> None:
    code, out, err = run(*words)
    assert code in (1, 2)
    assert out == ""
    assert said in err
    assert json.loads(run("audit", "--json")[1]) == []
