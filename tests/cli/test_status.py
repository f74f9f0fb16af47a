"""`stead status` on a cluster with many kinds of pending work."""

from __future__ import annotations

from collections.abc import Callable

import pytest

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
