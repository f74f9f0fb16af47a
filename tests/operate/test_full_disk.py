"""A simulated cluster with a full disk: a change is refused in one sentence and not made, reads still work, and
everything recovers when there is room again."""

from __future__ import annotations

from pathlib import Path

import pytest

from stead.errors import Unwritable
from stead.language.taints import Taint
from stead.operate.audit import Author
from stead.operate.changes import NodeChange
from stead.sim.desk import SimDesk
from tests.serving import simulated

SCENARIO = Path(__file__).parent.parent / "golden" / "served.yaml"
MINE = NodeChange("cpu-1", (Taint("mine", "v" * 63),), for_s=60.0)
TAINT = NodeChange("cpu-1", tuple(Taint(f"key-{n}", "v" * 63) for n in range(60)))


def full(desk: SimDesk, is_full: bool = True) -> None:
    """SQLite itself refuses to write to the journal."""
    connection = desk._journal._connection
    pages = connection.execute("PRAGMA page_count").fetchone()[0] if is_full else 1 << 30
    connection.execute(f"PRAGMA max_page_count = {pages}")


def test_a_refused_change_is_not_in_force() -> None:
    with simulated(SCENARIO) as desk:
        before, told = desk.snapshot().by_id["cpu-1"], len(desk.events(0, 1000))
        full(desk)
        with pytest.raises(Unwritable, match=r"journal\.sqlite cannot be written: database or disk is full"):
            desk.change(TAINT, Author("ann"))
        assert desk.snapshot().by_id["cpu-1"] == before
        assert len(desk.events(0, 1000)) == told
        assert [each.action for each in desk.audit()][-1] == "taint failed"
        full(desk, False)
        assert desk.snapshot().by_id["cpu-1"] == before
        desk.change(MINE, Author("ann"))
        assert [taint.key for taint in desk.snapshot().by_id["cpu-1"].taints] == ["mine"]
        assert desk.replay("render").oldest == 1


def test_an_audit_that_cannot_be_written_refuses_the_change() -> None:
    with simulated(SCENARIO) as desk:
        connection = desk._audit._connection
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
        connection.execute(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(Unwritable, match=r"audit\.sqlite cannot be written: database or disk is full"):
            desk.change(TAINT, Author("ann"))
        assert desk.snapshot().by_id["cpu-1"].taints == ()
