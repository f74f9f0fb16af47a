"""What Ray's autoscaler is told of waiting work: which rows, in which words, and when it is taken back.

Rule: plain values only, no cluster; that Ray's autoscaler acts on it is shown in `test_autoscaler.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

import pytest

pytest.importorskip("ray")

from stead.labelling import ANYWHERE, Requirement, Selector
from stead.ray.compile import Pass
from stead.ray.mirror import ANY_ROOM, WANTED_MAX, Mirror, Wanted
from stead.ray.page import TIMED, pass_name
from stead.ray.tables import NodeRow, PendingRow, Status

ONE = 0.0001
FULL = 100_000.0
PLAIN = pass_name("plain", 1)
Row = tuple[tuple[str, bool, tuple[str, ...]], ...]


class Notes:
    """What was told, kept instead of sent."""

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


def mirror_of(notes: Notes, selector: Selector = ANYWHERE, is_listened_to: bool = True) -> Mirror:
    return Mirror(lambda _: Pass(selector), notes, lambda: is_listened_to)


def node(id: str, free_cpus: float = 1.0, is_tainted: bool = False, labels: Mapping[str, str] | None = None) -> NodeRow:
    """A node with one CPU; where it is tainted, a plug holds all there is of the plain pass."""
    amount, free = (ONE, 0.0) if is_tainted else (FULL, FULL)
    return NodeRow(
        id, "127.0.0.1", labels or {}, {"CPU": 1.0, PLAIN: amount}, {"CPU": free_cpus, PLAIN: free}, draining=False
    )


def waiting(count: int = 1, labels: Row = (), **amounts: float) -> PendingRow:
    return PendingRow({**(amounts or {"CPU": 1.0}), PLAIN: ONE}, labels, count)


def status(nodes: Iterable[NodeRow], *pending: PendingRow) -> Status:
    return Status({each.id: each for each in nodes}, pending)


def told(
    nodes: Iterable[NodeRow], *pending: PendingRow, selector: Selector = ANYWHERE, is_listened_to: bool = True
) -> Notes:
    """What is told of this at the second look; the first one makes the nodes known."""
    notes = Notes()
    mirror, seen = mirror_of(notes, selector, is_listened_to), status(nodes, *pending)
    mirror.tell(seen)
    assert not notes.told
    mirror.tell(seen)
    return notes


TAINTED = [node("head", is_tainted=True)]
CPU = Wanted((("CPU", 1.0),))


def test_work_that_a_taint_keeps_waiting_is_told_without_its_pass_for_any_node_but_those_there_are() -> None:
    notes = told(TAINTED, waiting(2))
    assert notes.told == [CPU, CPU]
    assert notes.but == ["head"]


def test_stead_own_marks_are_not_told() -> None:
    row = PendingRow({"CPU": 1.0, "GPU": 0.5, PLAIN: ONE, TIMED: ONE}, (), 1)
    assert told(TAINTED, row).told == [Wanted((("CPU", 1.0), ("GPU", 0.5)))]


def test_work_that_holds_nothing_still_gets_a_node() -> None:
    assert told(TAINTED, PendingRow({PLAIN: ONE}, (), 1)).told == [Wanted(ANY_ROOM)]


def test_work_without_a_pass_is_left_to_ray() -> None:
    assert not told(TAINTED, PendingRow({"CPU": 1.0}, (), 3)).told


def test_only_what_does_not_fit_the_free_nodes_is_told() -> None:
    nodes = [*TAINTED, node("free"), node("busy", free_cpus=0.0)]
    assert told(nodes, waiting(3)).told == [CPU, CPU]
    assert not told(nodes, waiting(1)).told


def test_a_node_that_is_going_counts_as_no_room() -> None:
    going = NodeRow("going", "", {}, {"CPU": 1.0, PLAIN: FULL}, {"CPU": 1.0, PLAIN: FULL}, draining=True)
    assert told([going], waiting()).told == [CPU]


def test_ray_own_conditions_on_labels_are_told_and_preferred_nodes_are_not() -> None:
    spot = ("ray.io/market-type", True, ("spot",))
    away = ("ray.io/node-group", False, ("b", "a"))
    near = ("ray.io/node-id", True, ("head",))
    wanted = Wanted(CPU.amounts, (("ray.io/market-type", "in(spot)"), ("ray.io/node-group", "!in(a,b)")))
    assert told(TAINTED, waiting(1, (spot, away, near))).told == [wanted]


@pytest.mark.parametrize(("market", "fits"), [("spot", True), ("on-demand", False), (None, False)])
def test_a_free_node_is_room_only_for_work_whose_conditions_on_labels_it_meets(market: str | None, fits: bool) -> None:
    free = node("free", labels={"ray.io/market-type": market} if market else {})
    row = waiting(1, (("ray.io/market-type", True, ("spot",)),))
    assert bool(told([free], row).told) is not fits


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        (Requirement.is_in("pool", "b", "a"), "in(a,b)"),
        (Requirement.not_in("pool", "a"), "!in(a)"),
    ],
)
def test_rules_on_labels_of_the_user_are_told_in_rays_words(rule: Requirement, words: str) -> None:
    notes = told(TAINTED, waiting(), selector=Selector.all_of(rule))
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
        Selector.all_of(Requirement.is_in("pool", "a", "b"), Requirement.not_in("pool", "b")),
        Selector.any_of(Requirement.is_in("pool", "a"), Requirement.is_in("zone", "b")),
    ],
    ids=str,
)
def test_rules_that_ray_has_no_words_for_are_not_told(selector: Selector) -> None:
    assert not told(TAINTED, waiting(), selector=selector).told


def test_what_is_told_is_taken_back_when_nothing_waits_any_more() -> None:
    notes = Notes()
    mirror = mirror_of(notes)
    mirror.tell(status(TAINTED, waiting(2)))
    mirror.tell(status(TAINTED, waiting(2)))
    mirror.tell(status(TAINTED, waiting(1)))
    assert notes.told == [CPU]
    mirror.tell(status(TAINTED))
    assert not notes.told


def test_when_a_node_has_joined_all_is_taken_back_and_what_still_waits_at_the_next_look_is_told_again() -> None:
    notes = Notes()
    mirror = mirror_of(notes)
    mirror.tell(status(TAINTED, waiting(2)))
    mirror.tell(status(TAINTED, waiting(2)))
    nodes = [*TAINTED, node("new", free_cpus=0.0)]
    mirror.tell(status(nodes, waiting(2)))
    assert not notes.told
    mirror.tell(status(nodes, waiting(1)))
    assert notes.told == [CPU]
    assert notes.but == ["head", "new"]


def test_a_node_that_has_left_changes_nothing_in_what_is_told() -> None:
    notes = Notes()
    mirror = mirror_of(notes)
    mirror.tell(status([*TAINTED, node("old", free_cpus=0.0)], waiting()))
    mirror.tell(status([*TAINTED, node("old", free_cpus=0.0)], waiting()))
    mirror.tell(status(TAINTED, waiting()))
    assert notes.told == [CPU]


def test_nothing_is_told_where_no_autoscaler_listens() -> None:
    assert not told(TAINTED, waiting(), is_listened_to=False).told


def test_a_kind_of_which_much_waits_leaves_room_for_the_others() -> None:
    notes = told(TAINTED, waiting(5_000), waiting(1, CPU=2.0))
    assert Counter(notes.told) == {CPU: WANTED_MAX // 2, Wanted((("CPU", 2.0),)): 1}


def test_no_more_is_told_than_the_most_however_many_kinds_wait() -> None:
    rows = [waiting(10, CPU=float(cpus)) for cpus in range(1, 101)]
    assert len(told(TAINTED, *rows).told) == WANTED_MAX
