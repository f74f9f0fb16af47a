"""`stead status` on a cluster with many kinds of pending work."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from stead.engine.explain.explanations import Explanation
from stead.errors import Invalid
from stead.operate.desk import Answering
from stead.operate.pending import pending_alike
from stead.sim.desk import SimDesk
from tests.serving import serving, simulated

Run = Callable[..., tuple[int, str, str]]

MANY = """
title: many
nodes: [{id: n, capacity: {CPU: 1}}]
work:
- {id: first, count: 60, resources: {CPU: 2}}
""" + "".join(f"- {{id: w{n}, count: 3, resources: {{CPU: {n}}}, at: {n}}}\n" for n in range(3, 13))


def test_counts_pending_work_of_the_kinds_that_it_does_not_explain(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    with simulated(MANY) as desk, serving(desk) as served:
        for name, value in served.variables.items():
            monkeypatch.setenv(name, value)
        code, out, _ = run("status")
    assert code == 0
    lines = out.partition("Waiting:\n")[2].splitlines()
    assert [line.split()[0].rstrip(",") for line in lines[:5]] == ["first-1", "w3-1", "w4-1", "w5-1", "w6-1"]
    assert lines[5:] == ["  and 18 more, of 6 other kinds; list them with: stead work --filter state=waiting"]


GROUPS = """
title: groups
nodes: [{id: n, capacity: {CPU: 1}}]
work: [{id: inner, resources: {CPU: 2}}]
groups:
- {id: gang, count: 6, bundles: [{CPU: 3}, {CPU: 3}]}
- {id: apart, bundles: [{CPU: 3}, {CPU: 3}], strategy: STRICT_SPREAD}
"""


def test_equal_groups_are_one_kind_and_work_without_an_explanation_has_its_sentence(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def why(desk: SimDesk, id: str) -> Explanation:
        if id == "inner":
            raise Invalid("group g is placed; its pending work waits for free resources in the group")
        return Answering.why(desk, id)

    monkeypatch.setattr(SimDesk, "why", why)
    with simulated(GROUPS) as desk, serving(desk) as served:
        assert [each.ids for each in pending_alike(desk)[1]] == [
            ["inner"],
            [f"gang-{number}" for number in range(1, 7)],
            ["apart"],
        ]
        for name, value in served.variables.items():
            monkeypatch.setenv(name, value)
        code, out, _ = run("status")
    assert code == 0
    lines = out.partition("Waiting:\n")[2].splitlines()
    assert lines[0].startswith("  inner, for 1m: group g is placed; its pending work waits for free resources")
    assert "gang-1" in lines[1] and "more, of" not in out
