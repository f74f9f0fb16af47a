"""The audit: it has every change, in order, and detects tampering."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from stead.errors import Invalid
from stead.language.taints import Effect, Taint
from stead.operate.audit import FIRST, Audit, Author
from stead.operate.changes import Conflict, NodeChange, Removal
from stead.sim.desk import SimDesk
from tests.serving import BEGAN, simulated

ANN = Author("ann", "10.0.0.9", "rest", "f00d")
STATE: dict[str, Any] = {"labels": {}, "taints": {}, "draining": False}
COPY = (
    "INTO audit SELECT {}, at, who, origin, via, request, action, node, before, after, hash FROM audit WHERE number = 3"
)
SCENARIO = """
nodes: [{id: a, count: 3, capacity: {CPU: 4}, labels: {zone: x}}]
work: [{id: w, count: 3, resources: {CPU: 1}}]
"""


@pytest.fixture
def desk() -> Iterator[SimDesk]:
    with simulated(SCENARIO) as found:
        yield found


def filled(path: Path, count: int = 3) -> Audit:
    audit = Audit(path)
    for number in range(count):
        audit.add(float(number), ANN, "label", "node", STATE, {**STATE, "labels": {"n": str(number)}})
    return audit


class TestAnEntry:
    def test_has_the_user_the_time_the_machine_the_interface_and_the_request(self, desk: SimDesk) -> None:
        entry = desk.change(NodeChange("a-1", (Taint("k", "v"),), owner="ann", for_s=60.0), ANN).entry
        assert (entry.who, entry.origin, entry.via, entry.request) == ("ann", "10.0.0.9", "rest", "f00d")
        assert (entry.number, entry.at, entry.action, entry.node) == (1, BEGAN, "taint", "a-1")
        assert entry.before["taints"] == {}
        assert entry.after["taints"] == {"k:no-schedule": {"value": "v", "until": BEGAN + 60, "owner": "ann"}}
        assert desk.audit() == [entry]
        assert str(entry) == "ann (rest from 10.0.0.9): taint +k=v:no-schedule"

    @pytest.mark.parametrize(
        ("change", "action", "said"),
        [
            (NodeChange("a-1", (Taint("k", "v"),)), "taint", "+k=v:no-schedule"),
            (NodeChange("a-1", draining=True), "drain", "draining"),
            (NodeChange("a-1", draining=True, evict=True), "drain", "+node.stead.io/drained:no-execute draining"),
            (NodeChange("a-1", draining=False), "uncordon", "nothing"),
            (NodeChange("a-1", unlabels=("zone",)), "label", "-zone=x"),
            (NodeChange("a-1", (Taint("k"),), draining=True), "change", "+k:no-schedule draining"),
        ],
    )
    def test_describes_the_change_in_one_line(self, desk: SimDesk, change: NodeChange, action: str, said: str) -> None:
        entry = desk.change(change, ANN).entry
        assert (entry.action, entry.changes) == (action, said)

    def test_is_not_written_for_a_refused_change(self, desk: SimDesk) -> None:
        for change in (
            NodeChange("nowhere", draining=True),
            NodeChange("a-1"),
            NodeChange("a-1", untaints=(Removal("k"),)),
            NodeChange("a-1", (Taint("k"),), until_job="01"),
        ):
            with pytest.raises(Invalid):
                desk.change(change, ANN)
        assert desk.audit() == []


class TestTheChain:
    def test_is_intact(self, tmp_path: Path) -> None:
        audit = filled(tmp_path / "audit")
        assert audit.verify() == 3
        assert len({FIRST, *(entry.hash for entry in audit.entries())}) == 4

    @pytest.mark.parametrize(
        "statement",
        ["UPDATE audit SET who = 'bob'", "DELETE FROM audit", f"REPLACE {COPY.format(2)}", f"INSERT {COPY.format(7)}"],
    )
    def test_refuses_to_be_changed(self, tmp_path: Path, statement: str) -> None:
        filled(tmp_path / "audit").close()
        with (
            sqlite3.connect(tmp_path / "audit") as file,
            pytest.raises(sqlite3.DatabaseError, match="append-only"),
        ):
            file.execute(statement)
        file.close()
        assert Audit(tmp_path / "audit").verify() == 3

    @pytest.mark.parametrize(
        "touch",
        [
            "UPDATE audit SET who = 'bob' WHERE number = 2",
            "UPDATE audit SET at = at + 1 WHERE number = 1",
            "UPDATE audit SET origin = '' WHERE number = 3",
            "UPDATE audit SET after = '{}' WHERE number = 2",
            "UPDATE audit SET hash = 'x' WHERE number = 2",
            "DELETE FROM audit WHERE number = 1",
            "DELETE FROM audit WHERE number = 2",
            "UPDATE audit SET number = number + 1 WHERE number = 3",
            f"INSERT {COPY.format(4)}",
            f"INSERT {COPY.format(0)}",
            f"REPLACE {COPY.format(2)}",
        ],
    )
    def test_detects_tampering_by_the_owner_of_the_file(self, tmp_path: Path, touch: str) -> None:
        filled(tmp_path / "audit").close()
        with sqlite3.connect(tmp_path / "audit") as file:
            file.execute("DROP TRIGGER audit_is_not_changed")
            file.execute("DROP TRIGGER audit_is_not_shortened")
            file.execute("DROP TRIGGER audit_only_grows")
            file.execute(touch)
        file.close()
        with pytest.raises(Invalid, match="the audit log was tampered with: entry"):
            Audit(tmp_path / "audit").verify()

    @pytest.mark.parametrize("touch", ["DELETE FROM audit WHERE number = 3", "UPDATE audit SET who = 'bob'"])
    def test_detects_tampering_since_the_last_verification(self, tmp_path: Path, touch: str) -> None:
        audit = filled(tmp_path / "audit")
        assert audit.verify() == audit.verify() == 3
        with sqlite3.connect(tmp_path / "audit") as file:
            file.execute("DROP TRIGGER audit_is_not_changed")
            file.execute("DROP TRIGGER audit_is_not_shortened")
            file.execute(touch)
        file.close()
        with pytest.raises(Invalid, match="the audit log was tampered with: entry"):
            audit.verify()

    def test_continues_in_another_process(self, tmp_path: Path) -> None:
        filled(tmp_path / "audit").close()
        assert filled(tmp_path / "audit").verify() == 6

    def test_stays_intact_with_many_writers(self, tmp_path: Path) -> None:
        filled(tmp_path / "audit", 0).close()
        audits = [Audit(tmp_path / "audit") for _ in range(4)]

        def write(audit: Audit) -> None:
            for number in range(25):
                audit.add(float(number), ANN, "label", "node", STATE, STATE)

        threads = [threading.Thread(target=write, args=(audit,)) for audit in audits for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert audits[0].verify() == 200
        assert [entry.number for entry in audits[1].entries()] == list(range(1, 201))

    def test_is_read_page_by_page(self, tmp_path: Path) -> None:
        audit = filled(tmp_path / "audit", 5)
        assert [entry.number for entry in audit.entries(2, 2)] == [3, 4]
        with pytest.raises(Invalid, match="there is no audit entry 9"):
            audit.entry(9)


class TestAFailedChange:
    def test_is_in_the_audit_as_failed(self, desk: SimDesk, monkeypatch: pytest.MonkeyPatch) -> None:
        def fail(*_: Any) -> None:
            raise OSError("the cluster is gone")

        monkeypatch.setattr(SimDesk, "carry_out", fail)
        with pytest.raises(OSError, match="gone"):
            desk.change(NodeChange("a-1", draining=True), ANN)
        first, second = desk.audit()
        assert (first.action, second.action) == ("drain", "drain failed")
        assert second.before == second.after == first.before
        with pytest.raises(Conflict, match="changed nothing"):
            desk.undo(2, ANN)

    def test_of_a_process_that_died_is_in_the_audit_and_cannot_be_undone(
        self, desk: SimDesk, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        class Killed(BaseException):
            pass

        def die(*_: Any) -> None:
            raise Killed

        with monkeypatch.context() as dying:
            dying.setattr(SimDesk, "carry_out", die)
            with pytest.raises(Killed):
                desk.change(NodeChange("a-1", (Taint("k", "v"),)), ANN)
        assert [entry.action for entry in desk.audit()] == ["taint"]
        assert desk.verify() == 1
        with pytest.raises(Conflict, match="was changed since"):
            desk.undo(1, ANN)
        assert desk.change(NodeChange("a-1", (Taint("k", "v"),)), ANN).entry.number == 2


def test_each_of_many_concurrent_entries_starts_where_the_previous_one_ended(desk: SimDesk) -> None:
    def change(number: int) -> None:
        desk.change(NodeChange("a-1", (Taint(f"k{number}", "v", Effect.PREFER_NO_SCHEDULE),)), ANN)

    threads = [threading.Thread(target=change, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    entries = desk.audit()
    assert len(entries) == 16
    assert all(one.after == two.before for one, two in pairwise(entries))
    assert len(desk.node("a-1").taints) == 16
