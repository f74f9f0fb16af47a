"""What Ray's autoscaler sees of pending work: which requests, in which form, and when they are removed.

Rule: plain values only, no cluster. `test_autoscaler.py` shows that Ray's autoscaler acts on them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import pytest

pytest.importorskip("ray")

from stead.engine.engine import Engine
from stead.engine.facts import NodeDrained, NodeJoined, NodeTainted, NodeUsed
from stead.language.asks import Ask
from stead.language.labels import ANYWHERE, Requirement, Selector
from stead.language.nodes import Node
from stead.language.resources import Resources
from stead.language.taints import Taint
from stead.ray.control.autoscaler_mirror import WANTED_MAX, Mirror
from stead.ray.control.node_types import ANY_ROOM, Wanted
from stead.ray.wire.tables import NodeRow, Status

TAINT = Taint("gpu", "true")


class Notes:
    """The requests, kept instead of sent."""

    def __init__(self) -> None:
        self.told: list[Wanted] = []
        self.but: list[str] = []

    def add(self, wanted: Wanted, but: Iterable[str]) -> None:
        self.told.append(wanted)
        self.but = list(but)

    def take_back(self, wanted: Wanted) -> None:
        self.told.remove(wanted)

    def standing(self) -> Counter[Wanted]:
        return Counter(self.told)


def cluster(*nodes: tuple[str, str]) -> Engine:
    """Nodes with one CPU each, which are free, busy, tainted or draining."""
    engine = Engine()
    for id, state in nodes:
        engine.apply(NodeJoined(Node.of(id, {"CPU": 1})))
        if state == "busy":
            engine.apply(NodeUsed(id, Resources.of(CPU=1)))
        elif state == "tainted":
            engine.apply(NodeTainted(id, TAINT))
        elif state == "draining":
            engine.apply(NodeDrained(id))
    return engine


def status_of(engine: Engine) -> Status:
    return Status({id: NodeRow(id, "", {}, {}, {}, False) for id in engine.nodes}, ())


def asking(selector: Selector = ANYWHERE, **amounts: float) -> Ask:
    return Ask.of("pending", amounts or {"CPU": 1}, selector=selector)


def told(engine: Engine, *pending: tuple[Ask, int], has_autoscaler: bool = True) -> Notes:
    """The requests after the second update; the first one makes the nodes known."""
    notes = Notes()
    mirror = Mirror(notes, lambda: has_autoscaler)
    mirror.update(status_of(engine), engine, pending)
    assert not notes.told
    mirror.update(status_of(engine), engine, pending)
    return notes


TAINTED = cluster(("head", "tainted"))
CPU = Wanted((("CPU", 1.0),))


def test_work_that_is_pending_because_of_a_taint_is_requested_on_any_other_node() -> None:
    notes = told(TAINTED, (asking(), 2))
    assert notes.told == [CPU, CPU]
    assert notes.but == ["head"]


def test_work_that_holds_nothing_still_gets_a_node() -> None:
    assert told(TAINTED, (Ask.of("pending"), 1)).told == [Wanted(ANY_ROOM)]


def test_only_what_does_not_fit_the_free_nodes_is_requested() -> None:
    engine = cluster(("head", "tainted"), ("free", ""), ("busy", "busy"))
    assert told(engine, (asking(), 3)).told == [CPU, CPU]
    assert not told(engine, (asking(), 1)).told


def test_a_draining_node_counts_as_full() -> None:
    assert told(cluster(("going", "draining")), (asking(), 1)).told == [CPU]


def test_rules_on_one_key_are_merged() -> None:
    both = Selector.all_of(Requirement.is_in("pool", "a", "b"), Requirement.not_in("pool", "b"))
    assert told(TAINTED, (asking(both), 1)).told == [Wanted(CPU.amounts, (("pool", "in(a)"),))]


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        (Requirement.is_in("pool", "b", "a"), "in(a,b)"),
        (Requirement.not_in("pool", "a"), "!in(a)"),
    ],
)
def test_rules_on_labels_are_written_in_rays_syntax(rule: Requirement, words: str) -> None:
    notes = told(TAINTED, (asking(Selector.all_of(rule)), 1))
    assert notes.told == [Wanted(CPU.amounts, (("pool", words),))]


@pytest.mark.parametrize(
    "selector",
    [
        Selector.all_of(Requirement.exists("pool")),
        Selector.all_of(Requirement.does_not_exist("pool")),
        Selector.all_of(Requirement.greater_than("size", 3)),
        Selector.all_of(Requirement.less_than("size", 3)),
        Selector.all_of(Requirement.is_in("pool", "")),
        Selector.all_of(Requirement.is_in("node_id", "head")),
        Selector.all_of(Requirement.is_in("pool", "a"), Requirement.is_in("pool", "b")),
        Selector.any_of(Requirement.is_in("pool", "a"), Requirement.is_in("zone", "b")),
    ],
    ids=str,
)
def test_work_with_rules_that_ray_cannot_express_is_not_requested(selector: Selector) -> None:
    assert not told(TAINTED, (asking(selector), 1)).told


class TestOverTime:
    @pytest.fixture
    def notes(self) -> Notes:
        return Notes()

    @pytest.fixture
    def mirror(self, notes: Notes) -> Mirror:
        mirror = Mirror(notes, lambda: True)
        self.look(mirror, TAINTED, 2)
        self.look(mirror, TAINTED, 2)
        assert notes.told == [CPU, CPU]
        return mirror

    @staticmethod
    def look(mirror: Mirror, engine: Engine, count: int) -> None:
        mirror.update(status_of(engine), engine, [(asking(), count)] if count else [])

    def test_requests_are_removed_when_nothing_is_pending_any_more(self, mirror: Mirror, notes: Notes) -> None:
        self.look(mirror, TAINTED, 1)
        assert notes.told == [CPU]
        self.look(mirror, TAINTED, 0)
        assert not notes.told

    def test_when_a_node_joins_all_requests_are_removed_and_made_again_for_pending_work(
        self, mirror: Mirror, notes: Notes
    ) -> None:
        nodes = cluster(("head", "tainted"), ("new", "busy"))
        self.look(mirror, nodes, 2)
        assert not notes.told
        self.look(mirror, nodes, 1)
        assert notes.told == [CPU]
        assert notes.but == ["head", "new"]

    def test_while_ray_lists_a_node_that_the_engine_does_not_know_yet_the_requests_stand(
        self, mirror: Mirror, notes: Notes
    ) -> None:
        listed = status_of(cluster(("head", "tainted"), ("new", "")))
        mirror.update(listed, TAINTED, [(asking(), 2)])
        assert notes.told == [CPU, CPU]

    def test_a_node_that_leaves_does_not_change_the_requests(self, mirror: Mirror, notes: Notes) -> None:
        self.look(mirror, cluster(("head", "tainted"), ("old", "busy")), 2)
        self.look(mirror, TAINTED, 2)
        assert notes.told == [CPU, CPU]


def test_nothing_is_requested_without_an_autoscaler() -> None:
    assert not told(TAINTED, (asking(), 1), has_autoscaler=False).told


def test_a_kind_with_many_pending_pieces_leaves_room_for_the_others() -> None:
    notes = told(TAINTED, (asking(), 5_000), (asking(CPU=2.0), 1))
    assert Counter(notes.told) == {CPU: WANTED_MAX // 2, Wanted((("CPU", 2.0),)): 1}


def test_the_number_of_requests_is_limited_for_any_number_of_kinds() -> None:
    pending = [(asking(CPU=float(cpus)), 10) for cpus in range(1, 101)]
    assert len(told(TAINTED, *pending).told) == WANTED_MAX
