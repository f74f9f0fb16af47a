"""Pending work by kind: what counts as one kind, how long it is pending, and the reasons."""

from __future__ import annotations

import pytest

from stead.engine.engine import Engine
from stead.engine.facts import AskSubmitted, Fact, GroupSubmitted, NodeJoined
from stead.language.asks import Ask, Group
from stead.language.nodes import Node
from stead.language.selectors import parse_selector
from stead.language.taints import Taint
from stead.operate import pending as module
from stead.operate.pending import NOT_EXAMINED, Pending
from stead.operate.snapshot import Known, Snapshot

NODES = (
    NodeJoined(Node.of("a", {"CPU": 4})),
    NodeJoined(Node.of("b", {"CPU": 8, "GPU": 1}, {}, [Taint("gpu_node", "true")])),
)


def pending(*facts: Fact, known: dict[str, Known] | None = None, at: float = 1000.0) -> Pending:
    engine = Engine()
    engine.apply(*NODES, *facts)
    engine.decide()
    return Pending(Snapshot(engine, at, known))


def asks(*ids: str, cpus: int = 16) -> list[Fact]:
    return [AskSubmitted(Ask.of(id, {"CPU": cpus})) for id in ids]


class TestKinds:
    def test_numbered_copies_of_one_spec_are_one_kind(self) -> None:
        (kind,) = pending(*asks("web-1", "web-2", "web-3")).kinds
        assert (kind.name, kind.count, kind.example) == ("web", 3, "web-1")

    def test_work_with_another_request_is_another_kind(self) -> None:
        found = pending(*asks("web-1"), *asks("web-2", cpus=32)).kinds
        assert [(kind.name, kind.count) for kind in found] == [("web", 1), ("web", 1)]
        assert found[0].id != found[1].id

    def test_equal_work_of_another_owner_is_another_kind(self) -> None:
        known = {"1" * 9: Known("task", "train", "job-1"), "2" * 9: Known("task", "train", "job-2")}
        found = pending(*asks(*known), known=known).kinds
        assert [(kind.name, kind.owner) for kind in found] == [("train", "job-1"), ("train", "job-2")]

    def test_the_id_of_a_kind_is_the_same_for_other_pieces_of_it(self) -> None:
        assert pending(*asks("web-1")).kinds[0].id == pending(*asks("web-7", "web-8")).kinds[0].id

    def test_a_group_counts_its_members(self) -> None:
        members = tuple(Ask.of(f"ring/{number}", {"GPU": 4}) for number in range(3))
        (kind,) = pending(GroupSubmitted(Group("ring", (members,)))).kinds
        assert (kind.name, kind.count) == ("ring", 3)

    def test_placed_work_is_not_pending(self) -> None:
        assert pending(*asks("small", cpus=1)).kinds == ()


KNOWN = {"web-1": Known(since=400.0), "web-2": Known(since=900.0, count=5), "web-3": Known()}


class TestAges:
    @pytest.mark.parametrize(("seconds", "count"), [(0, 7), (60, 6), (100, 1), (599, 1), (600, 0), (10_000, 0)])
    def test_every_piece_that_is_pending_for_longer_counts(self, seconds: int, count: int) -> None:
        assert pending(*asks(*KNOWN), known=KNOWN).longer_than(seconds) == count

    def test_a_kind_is_as_old_as_its_oldest_piece(self) -> None:
        found = pending(*asks(*KNOWN), known=KNOWN)
        assert (found.kinds[0].since, found.oldest_s) == (400.0, 600.0)
        assert pending().oldest_s == 0.0


class TestReasons:
    def test_are_those_of_the_engine_and_a_piece_counts_for_each_of_them(self) -> None:
        gpu = AskSubmitted(Ask.of("render", {"GPU": 1}))
        typo = AskSubmitted(Ask.of("typo", {"CPU": 1}, parse_selector("zonee = a")))
        assert pending(gpu, typo).by_reason == {"lacks-label": 1, "never-fits": 1, "tainted": 1}

    def test_members_that_do_not_fit_together_have_no_single_reason(self) -> None:
        members = tuple(Ask.of(f"pair/{number}", {"CPU": 3}) for number in range(2))
        assert pending(GroupSubmitted(Group("pair", (members,)))).by_reason.keys() <= {"other", "tainted"}

    def test_with_very_many_kinds_the_rarest_are_not_explained(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(module, "EXPLAINED_MAX", 1)
        found = pending(*asks("rare", cpus=99), *asks("web-1", "web-2")).by_reason
        assert found == {"never-fits": 2, "tainted": 2, NOT_EXAMINED: 1}
