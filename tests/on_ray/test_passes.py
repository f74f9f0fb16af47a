"""What granting and withdrawing passes does to nodes, call by call. The nodes are a fake that behaves like Ray's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pytest

from stead.ray.control import passes as module
from stead.ray.control.passes import ADMITTED_MAX, FULL, GENERATIONS_MAX, PASSES_MAX, POOL, Passes
from stead.ray.control.plugs import KEPT, SHOWN
from stead.ray.submit.compile import route
from stead.ray.wire.node_page import ACTOR_ENTRY, ACTOR_HOLDS, ENTRY, ONE, SOFT_ENTRY
from stead.ray.wire.own_names import TIMED, pass_name, read_name, soft_name
from stead.ray.wire.resource_grants import Outcome
from stead.ray.wire.tables import NodeRow, PendingRow, Status


def rule(number: int = 0) -> Any:
    return route({"label_selector": {"team": f"t{number}"}}).wish.admits


RULE = rule()
KEY = RULE.key


class Clock:
    now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    return clock


class Cluster:
    """Nodes with totals and what work holds; also the grants, the plugs and Ray's tables."""

    def __init__(self, *nodes: str) -> None:
        self.total: dict[str, dict[str, float]] = {node: {} for node in nodes}
        self.held: dict[tuple[str, str], float] = {}
        self.plugs: dict[tuple[str, str], float] = {}
        self.hung: set[str] = set()
        self.calls: list[str] = []
        self.pending: tuple[PendingRow, ...] = ()
        self.infeasible: list[tuple[str, str]] = []  # what work that waits would have failed for

    def used(self, node: str, name: str) -> float:
        return self.held.get((node, name), 0.0) + self.plugs.get((node, name), 0.0)

    def set_many(self, changes: Mapping[str, Mapping[str, float]]) -> dict[str, Outcome]:
        for node, amounts in changes.items():
            if node in self.hung:
                continue
            self.calls.append(node)
            for name, amount in amounts.items():
                self.total[node][name] = max(amount, self.used(node, name))
                if not self.total[node][name]:
                    del self.total[node][name]
        return {node: Outcome.SILENT if node in self.hung else Outcome.ANSWERED for node in changes}

    def add(self, places: Mapping[tuple[str, str], float]) -> None:
        for (node, name), amount in places.items():
            assert node not in self.hung, "a plug on a node that hangs holds up every group of the cluster"
            free = self.total[node].get(name, 0.0) - self.used(node, name)
            assert free > amount - ONE / 2, "there is no room for the plug"
            self.plugs[node, name] = amount

    def remove(self, places: Iterable[tuple[str, str]]) -> None:
        for place in places:
            self.plugs.pop(place, None)

    def placed(self) -> dict[tuple[str, str], float]:
        return dict(self.plugs)

    def asked(self) -> set[tuple[str, str]]:
        return set(self.plugs)

    def status(self) -> Status:
        rows = {}
        for node, total in self.total.items():
            available = {name: amount - self.used(node, name) for name, amount in total.items()}
            rows[node] = NodeRow(node, "10.0.0.1", {}, dict(total), available, False)
        return Status(rows, self.pending)

    def usable(self, node: str, name: str) -> bool:
        """Whether work that carries the name could start there."""
        return self.total[node].get(name, 0.0) - self.used(node, name) > ENTRY - ONE / 2

    def is_feasible(self, node: str, name: str, amount: float = KEPT) -> bool:
        return self.total[node].get(name, 0.0) > amount - ONE / 2


class World:
    """Passes over a fake cluster, and what is allowed."""

    def __init__(self, *nodes: str) -> None:
        self.cluster = Cluster(*nodes)
        self.passes = Passes(self.cluster, self.cluster, self.cluster.status, lambda: None)
        self.passes.issue(RULE)
        self.tainted: set[str] = set()
        self.settle()
        self.cluster.calls.clear()

    def allowed(self) -> dict[str, set[str]]:
        return {key: set(self.cluster.total) - self.tainted for key in self.passes.issued}

    def settle(self, **more: Any) -> Any:
        return self.passes.settle(self.cluster.status(), self.allowed(), lambda away: None, **more)

    def taint(self, *nodes: str) -> Any:
        self.tainted |= set(nodes)
        return self.settle(thorough=True)

    def untaint(self, *nodes: str) -> None:
        self.tainted -= set(nodes)
        self.settle(thorough=True)

    @property
    def current(self) -> str:
        return pass_name(KEY, self.passes.issued[KEY].current)

    @property
    def names(self) -> list[str]:
        return self.passes.issued[KEY].names

    def hold(self, node: str, amount: float = ENTRY) -> str:
        """Work starts there under the current name."""
        assert self.cluster.usable(node, self.current)
        self.cluster.held[node, self.current] = self.cluster.held.get((node, self.current), 0.0) + amount
        return self.current


@pytest.fixture
def world() -> World:
    return World("a", "b", "c")


def test_a_node_gets_every_name_of_the_pool_in_one_call() -> None:
    cluster = World("a").cluster
    names = [TIMED, *(pass_name(KEY, each) for each in range(POOL)), soft_name(KEY)]
    assert cluster.total["a"] == dict.fromkeys(names, FULL)


def test_a_tainted_node_is_infeasible_for_actors_that_only_prefer_it_until_it_is_open_again(world: World) -> None:
    world.hold("b", 20 * ENTRY)
    world.taint("b")
    assert not world.cluster.is_feasible("b", soft_name(KEY))
    assert world.cluster.is_feasible("a", soft_name(KEY))
    world.untaint("b")
    assert world.cluster.is_feasible("b", soft_name(KEY))


def test_an_actor_that_starts_while_its_node_is_tainted_releases_the_name_once_it_has_started(
    world: World, clock: Clock
) -> None:
    soft = soft_name(KEY)
    world.hold("b", ACTOR_ENTRY)
    world.cluster.held["b", soft] = 1.0
    world.taint("b")
    assert world.cluster.is_feasible("b", soft), "Ray leaves what is in use"
    world.settle()
    world.cluster.calls.clear()
    clock.now += 5.0
    world.settle()
    assert not world.cluster.calls, "nobody asks again and again"
    world.cluster.held.clear()
    clock.now += 5.0
    world.settle()
    assert not world.cluster.is_feasible("b", soft)


def test_the_names_of_an_unknown_pass_are_removed(world: World) -> None:
    strays = dict.fromkeys([pass_name("gone", 0), soft_name("gone")], FULL)
    world.cluster.total["b"].update(strays)
    world.passes.note_use(world.cluster.status(), lambda key: None)
    assert not any(world.cluster.is_feasible("b", name) for name in strays)
    assert world.cluster.is_feasible("b", soft_name(KEY))


def test_in_an_idle_cluster_no_node_is_called(world: World) -> None:
    for _ in range(5):
        assert world.settle().unsettled == 0
    assert not world.cluster.calls


def test_a_taint_calls_the_tainted_node_and_no_other(world: World) -> None:
    world.taint("b")
    assert set(world.cluster.calls) == {"b"}


def test_after_a_taint_no_name_starts_work_there_and_the_new_name_was_never_used_there(world: World) -> None:
    old = world.hold("b")
    world.taint("b")
    assert world.current != old
    assert not any(world.cluster.usable("b", name) for name in world.names)
    assert all(world.cluster.usable(node, name) for node in "ac" for name in world.names)


def test_work_with_the_old_name_stays_feasible_on_every_node(world: World, clock: Clock) -> None:
    """A task that is pinned to a node is in none of Ray's tables, so the name looks unused."""
    old = world.current
    world.taint("b")
    for _ in range(50):
        clock.now += 5.0
        world.passes.note_use(world.cluster.status(), lambda key: None)
        world.passes.retire(world.cluster.status(), set(), set)
        world.settle()
    assert all(world.cluster.is_feasible(node, old) for node in "abc")
    assert world.cluster.usable("a", old)
    assert not world.cluster.usable("b", old)


def test_an_untaint_calls_the_node_and_no_other_and_removes_its_plugs(world: World) -> None:
    world.taint("b")
    world.cluster.calls.clear()
    world.untaint("b")
    assert set(world.cluster.calls) == {"b"}
    assert not world.cluster.plugs
    assert all(world.cluster.usable("b", name) for name in world.names)


def test_the_number_of_names_does_not_grow_with_actors_on_tainted_nodes(world: World, clock: Clock) -> None:
    for _ in range(40):
        for node in "abc":
            world.hold(node, ACTOR_HOLDS)
            world.taint(node)
            assert not any(world.cluster.usable(node, name) for name in world.names)
            world.untaint(node)
            clock.now += 5.0
    assert len(world.names) == POOL


def test_what_an_actor_releases_starts_nothing_before_the_next_round(world: World) -> None:
    old = world.hold("b", 20 * ACTOR_HOLDS)
    world.taint("b")
    world.cluster.held.clear()
    assert not world.cluster.usable("b", old)


def test_what_a_task_releases_is_not_enough_for_an_actor(world: World) -> None:
    old = world.hold("b")
    world.taint("b")
    world.cluster.held.clear()
    available = world.cluster.total["b"][old] - world.cluster.used("b", old)
    assert ENTRY - ONE / 2 < available < ACTOR_ENTRY - ONE / 2


@pytest.mark.parametrize(
    "running", [0.0, 3 * ENTRY, 2 * ENTRY + 7 * ACTOR_HOLDS], ids=["nothing", "tasks", "actors too"]
)
def test_only_tasks_that_prefer_a_forbidden_node_are_admitted_and_only_a_few_at_a_time(
    running: float, world: World, clock: Clock
) -> None:
    old = world.hold("b", running)
    world.taint("b")
    entered = 0

    def look() -> float:
        clock.now += 2.0
        world.settle()
        return world.cluster.total["b"][old] - world.cluster.used("b", old)

    while (free := look()) > ONE / 2:
        assert free < ACTOR_HOLDS - ONE / 2, "less than an actor needs that is queued there"
        world.cluster.held["b", old] += SOFT_ENTRY
        entered += 1
    assert entered == ADMITTED_MAX
    world.cluster.held["b", old] -= SOFT_ENTRY
    assert look() == pytest.approx(SOFT_ENTRY), "one has its result, so one more may come"


def test_the_number_of_names_is_limited_with_work_of_every_age_on_tainted_nodes() -> None:
    world = World(*"abcdefghijklmnop")
    for node in "abcdefghijklmno":
        world.hold(node)
        world.taint(node)
        assert not any(world.cluster.usable(node, world.current) for node in world.tainted)
    assert len(world.names) <= GENERATIONS_MAX


def test_what_running_work_holds_needs_no_call_until_it_is_released(world: World, clock: Clock) -> None:
    old = world.hold("b")
    world.taint("b")
    clock.now += 2.0
    world.settle()
    world.cluster.calls.clear()
    for _ in range(10):
        assert world.settle().unsettled == 0
    assert not world.cluster.calls
    del world.cluster.held["b", old]
    assert world.cluster.usable("b", old)
    world.settle()
    assert set(world.cluster.calls) == {"b"}
    assert not world.cluster.usable("b", old)
    clock.now += 2.0
    assert world.settle().unsettled == 0


class TestANodeThatHangs:
    def test_is_reported_when_it_is_tainted_and_updated_when_it_answers(self, world: World) -> None:
        world.hold("b")
        world.cluster.hung = {"b"}
        assert world.taint("b").silent == {"b"}
        assert not world.cluster.calls
        world.cluster.hung = set()
        assert world.settle().silent == set()
        assert not any(world.cluster.usable("b", name) for name in world.names)

    def test_does_not_use_up_names(self, world: World) -> None:
        world.cluster.hung = {"b"}
        for _ in range(20):
            world.taint("b")
        assert len(world.names) == POOL

    def test_does_not_prevent_a_taint_of_another(self, world: World) -> None:
        world.cluster.hung = {"b"}
        assert world.taint("a").silent == set()
        assert not any(world.cluster.usable("a", name) for name in world.names)

    def test_is_late_while_it_lacks_a_pass_and_no_longer(self, world: World) -> None:
        world.cluster.hung = {"b"}
        world.settle()
        assert world.passes.late == set(), "it has all that it is allowed"
        world.passes.issue(rule(1))
        world.settle()
        assert world.passes.late == {"b"}
        world.cluster.hung = set()
        world.settle()
        assert world.passes.late == set()

    def test_loses_the_names_of_a_retired_pass_once_it_answers(self, world: World, clock: Clock) -> None:
        def rounds() -> None:
            for _ in range(5):
                clock.now += 6.0
                world.passes.note_use(world.cluster.status(), lambda key: None)
                world.passes.retire(world.cluster.status(), {KEY}, set)
                world.settle()

        for number in range(1, PASSES_MAX + 2):
            world.passes.issue(rule(number))
            world.settle()
            clock.now += 1.0
        world.cluster.hung = {"b"}
        rounds()
        retired = set(world.cluster.total["b"]) - set(world.cluster.total["a"])
        assert retired, "the others have lost them"
        world.cluster.hung = set()
        rounds()
        assert not retired & set(world.cluster.total["b"])
        world.cluster.calls.clear()
        rounds()
        assert not world.cluster.calls, "nobody asks again and again"

    def test_does_not_cause_extra_rounds(self, world: World) -> None:
        world.cluster.hung = {"b"}
        world.taint("b")
        assert world.settle().unsettled == 0


def test_a_node_gets_no_grant_before_it_has_its_page(world: World) -> None:
    world.cluster.total["d"] = {}
    world.settle(ready=lambda node: node != "d")
    assert not world.cluster.total["d"]
    assert world.passes.late == {"d"}
    world.settle()
    assert world.cluster.usable("d", world.current)
    assert world.passes.late == set()


def test_a_name_that_groups_need_is_on_every_node_and_starts_nothing(world: World) -> None:
    world.taint("b")
    world.passes.issued[KEY].everywhere = True
    world.settle()
    assert world.cluster.is_feasible("b", world.current, SHOWN)
    world.taint("c")
    for node in "bc":
        assert world.cluster.is_feasible(node, world.current, SHOWN)
        assert not world.cluster.usable(node, world.current)


def test_a_new_controller_keeps_existing_grants(world: World) -> None:
    old = world.current
    world.taint("b")
    again = Passes(world.cluster, world.cluster, world.cluster.status, lambda: None)
    again.adopt(world.cluster.status(), lambda key: (RULE, world.passes.issued[KEY].current) if key == KEY else None)
    world.passes = again
    world.cluster.calls.clear()
    world.settle()
    assert not world.cluster.calls
    world.taint("c")
    assert not any(world.cluster.usable("c", name) for name in world.names)
    assert all(world.cluster.is_feasible(node, old) for node in "abc")


class TestManyPasses:
    @pytest.fixture
    def crowd(self, world: World) -> World:
        for number in range(1, PASSES_MAX + 3):
            world.passes.issue(rule(number))
        world.settle()
        return world

    def retired(self, world: World, carried: set[str] | None, clock: Clock, seconds: float) -> list[str]:
        world.passes.retire(world.cluster.status(), {KEY}, lambda: carried)
        clock.now += seconds
        return world.passes.retire(world.cluster.status(), {KEY}, lambda: carried)

    def there(self, world: World) -> set[str]:
        return {found[0] for name in world.cluster.total["a"] if (found := read_name(name))}

    def test_unused_ones_leave_the_page_first_and_the_nodes_later(self, crowd: World, clock: Clock) -> None:
        gone = self.retired(crowd, set(), clock, 6.0)
        assert len(gone) == 3
        assert set(gone) <= self.there(crowd)
        clock.now += 4.0
        crowd.passes.retire(crowd.cluster.status(), {KEY}, set)
        assert not set(gone) & self.there(crowd)

    def test_one_that_pending_work_carries_stays(self, crowd: World, clock: Clock) -> None:
        first = rule(1).key
        assert first not in self.retired(crowd, {pass_name(first, 0)}, clock, 6.0)

    def test_they_stay_longer_if_not_all_pending_work_is_listed(self, crowd: World, clock: Clock) -> None:
        assert not self.retired(crowd, None, clock, 60.0)
        assert self.retired(crowd, None, clock, 700.0)

    def test_one_that_is_requested_again_comes_back_unchanged(self, crowd: World, clock: Clock) -> None:
        gone = self.retired(crowd, set(), clock, 6.0)
        crowd.passes.issue(next(rule(number) for number in range(1, 40) if rule(number).key == gone[0]))
        clock.now += 4.0
        crowd.passes.retire(crowd.cluster.status(), {KEY}, set)
        assert gone[0] in self.there(crowd)
