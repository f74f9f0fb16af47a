"""Slots in virtual time (see `simulated_ray`): how they are shared, and that no task stays pending or fails without
reason."""

from __future__ import annotations

import os
import random
from collections import Counter
from typing import Any

import pytest

from stead.engine.engine import Engine
from stead.engine.facts import AskRunning, NodeDrained, NodeJoined, NodeUntainted
from stead.language.asks import Affinity, Ask, PolicyName, Spread
from stead.language.labels import Labels, Requirement, Selector
from stead.language.nodes import Node
from stead.language.taints import Effect
from stead.ray.control.anchors import KNOWN_S
from stead.ray.control.slot_pools import COUNTED_S
from stead.ray.control.slots import IDLE_S, REMOVAL_DELAY_S, RETIRED_S, Slots
from stead.ray.submit.messages import SlotShape
from stead.ray.wire.own_names import SLOT, slot_name
from tests.on_ray.simulated_ray import HEAD, TICK_S, HeldBySimulation, SimulatedRay


@pytest.fixture
def ray() -> SimulatedRay:
    return SimulatedRay({"a": 2, "b": 2})


def apart_from(key: str, value: str) -> tuple[tuple[Affinity, ...], ...]:
    return ((Affinity(Selector.all_of(Requirement.is_in(key, value)), near=False),),)


class TestDemand:
    def test_all_tasks_of_a_shape_run_on_as_many_slots_as_there_is_room_for(self, ray: SimulatedRay) -> None:
        ray.submit(ray.shape("s"), 40)
        ray.tick(3)
        assert {node: len(raylet.running) for node, raylet in ray.raylets.items()} == {HEAD: 0, "a": 2, "b": 2}
        ray.until_done()
        assert not ray.failed

    def test_tasks_that_no_program_counted_are_found_in_rays_table(self, ray: SimulatedRay) -> None:
        ray.submit(ray.shape("s"), 5, counted=False)
        ray.until_done()

    def test_counts_that_arrive_twice_count_once(self, ray: SimulatedRay) -> None:
        key = ray.shape("s")
        ray.slots.count("program", 1, {key: 3})
        ray.slots.count("program", 1, {key: 3})
        assert ray.slots.pools[slot_name(key, 0)].demand(ray.now) == 3

    def test_tasks_of_an_unknown_shape_wait_until_it_is_known(self, ray: SimulatedRay) -> None:
        ray.submit("s", 2, counted=False)
        ray.tick(20)
        assert not ray.started
        ray.shape("s")
        ray.until_done()

    def test_a_long_queue_needs_few_asks(self, ray: SimulatedRay) -> None:
        ray.submit(ray.shape("s"), 100_000, length=1e6)
        ray.tick(100)
        assert len(ray.engine.placed) + len(ray.engine.waiting) == 4

    def test_a_shape_that_fits_nowhere_waits_as_one_ask(self, ray: SimulatedRay) -> None:
        ray.shapes["big"] = SlotShape("big", Ask.of("big", {"CPU": 50}))
        ray.submit("big", 7)
        ray.tick(10)
        assert len(ray.engine.waiting) == 1

    def test_a_light_stream_has_no_more_slots_than_it_uses(self, ray: SimulatedRay) -> None:
        ray.shape("s")
        counts: Counter[int] = Counter()
        for _ in range(100):
            ray.submit("s", 1)
            ray.tick(4)
            counts[len(ray.engine.placed)] += 1
        assert counts[2] > 70, counts  # there is room for others nearly all the time

    def test_a_task_that_has_started_is_not_counted_as_pending_too(self, ray: SimulatedRay) -> None:
        """Or it would hold room for a second one, and other work would have to go elsewhere."""
        ray.submit(ray.shape("s"), 1, length=50.0)
        most = 0
        for _ in range(100):
            ray.tick(1)
            most = max(most, len(ray.engine.placed) + len(ray.engine.waiting))
        assert most == 1

    def test_more_tasks_than_free_slots_get_more_slots_at_once(self, ray: SimulatedRay) -> None:
        ray.submit(ray.shape("s"), 1)
        ray.tick(20)
        ray.submit("s", 4, length=50.0)
        ray.tick(8)
        assert sum(len(raylet.running) for raylet in ray.raylets.values()) == 4


class TestWithdrawing:
    """Soon after a name is new, Ray fails queued work if the last unit goes."""

    @pytest.mark.parametrize(("left", "stays"), [(1, False), (0, True)], ids=["one of two", "the last"])
    def test_a_unit_is_withdrawn_at_once_only_if_another_one_stays(self, left: int, stays: bool) -> None:
        ray = SimulatedRay({"a": 2, "b": 2, "c": 2})
        ray.submit(ray.shape("s"), 6, length=0.01)
        ray.tick(3)
        name = slot_name("s", 0)
        (node,) = {"a", "b", "c"} - {*ray.slots._anchors.nodes(name)}
        assert not ray.raylets[node].running
        before, place = ray.raylets[node].total[name], ray.slots.pools[name].places[node]
        place.open, place.sent = left, None
        ray.slots.carry_out(ray.status())
        assert (ray.raylets[node].total[name] == before) == stays


class TestBusyMachines:
    """Ray updates its table of pending work once a second, and tasks find a slot late."""

    @pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.long) for seed in (2, 3, 4))])
    @pytest.mark.parametrize("found_s", [0.0, 0.6, 0.9])
    @pytest.mark.parametrize("rules", ["any place", "spread", "flow"])
    def test_no_pending_shape_is_forgotten_while_there_is_room(self, rules: str, found_s: float, seed: int) -> None:
        ray = SimulatedRay({"a": 2, "b": 2}, seed)
        ray.pulled_s, ray.found_s = 1.0, found_s
        for number in range(20):
            mine = Selector.all_of(Requirement.is_in("n", f"n{number}"))
            kinds: dict[str, dict[str, Any]] = {
                "any place": {},
                "spread": {"spreads": (Spread("node_id", mine),)},
                "flow": {"policy": PolicyName.FLOW},
            }
            ray.submit(ray.shape(f"s{number}", labels=Labels({"n": f"n{number}"}), **kinds[rules]), 60, length=0.05)
            ray.tick(number % 2)
        ray.until_done()
        assert not ray.failed
        assert ray.idle_most_s < found_s + 0.8

    @pytest.mark.parametrize("found_s", [0.6, 0.9, 1.7])
    @pytest.mark.parametrize("count", [1, 5, 40])
    def test_a_few_tasks_with_a_spread_find_their_slot_although_they_are_late(self, count: int, found_s: float) -> None:
        """Their unused slots would block others, so they are not kept for long."""
        ray = SimulatedRay({"a": 2, "b": 2}, 0)
        ray.pulled_s, ray.found_s = 1.0, found_s
        mine = Selector.all_of(Requirement.is_in("n", "n"))
        ray.submit(ray.shape("s", labels=Labels({"n": "n"}), spreads=(Spread("node_id", mine),)), 1, length=0.2)
        ray.until_done()
        ray.tick(round((KNOWN_S + COUNTED_S) / TICK_S))
        ray.submit("s", count)
        ray.until_done()
        assert not ray.failed

    @pytest.mark.parametrize("shapes", range(1, 8))
    def test_shapes_that_share_the_room_use_all_of_it(self, ray: SimulatedRay, shapes: int) -> None:
        for number in range(shapes):
            ray.submit(ray.shape(f"s{number}"), 500, length=0.2)
        ray.tick(10)
        for _ in range(20):
            ray.tick(4)
            assert sum(len(raylet.running) for raylet in ray.raylets.values()) == 4


class TestGivingBack:
    def test_unused_slots_are_removed_from_their_nodes(self, ray: SimulatedRay) -> None:
        ray.submit(ray.shape("s"), 4)
        ray.until_done()
        ray.tick(round((COUNTED_S + IDLE_S + 2) / TICK_S))
        assert not ray.granted()
        assert not ray.engine.placed

    def test_then_their_name_and_its_anchor_are_removed(self, ray: SimulatedRay) -> None:
        ray.submit(ray.shape("s"), 4)
        ray.until_done()
        ray.tick(round((KNOWN_S + RETIRED_S + REMOVAL_DELAY_S + COUNTED_S + IDLE_S + 5) / TICK_S))
        assert not ray.slots.pools
        assert not any(name.startswith(SLOT) for raylet in ray.raylets.values() for name in raylet.total)
        ray.submit("s", 3)
        ray.until_done()
        assert not ray.failed

    @pytest.mark.parametrize("later", range(0, 400, 7))
    def test_a_task_submitted_while_its_name_is_removed_does_not_fail(self, ray: SimulatedRay, later: int) -> None:
        """Neither the program's count nor Ray's table shows it by then."""
        ray.listed_s = 2.0
        ray.submit(ray.shape("s"), 4)
        ray.until_done()
        ray.tick(round((RETIRED_S - 1) / TICK_S) + later)
        ray.submit("s", 3, counted=False)
        ray.until_done()
        assert not ray.failed

    @pytest.mark.parametrize("rules", [{}, {"affinities": apart_from("app", "s")}], ids=["any place", "apart"])
    def test_nothing_fails_when_raylets_learn_late_about_each_other(
        self, ray: SimulatedRay, rules: dict[str, Any]
    ) -> None:
        ray.heard_s = 4.0
        ray.shape("s", labels={"app": "s"}, **rules)
        for count in (5, 1, 3, 8):
            ray.submit("s", count, length=0.3)
            ray.submit(ray.shape("t"), 4, length=0.7)
            ray.tick(14)
        ray.until_done()
        assert not ray.failed

    def test_a_slot_that_a_task_takes_during_its_removal_is_kept(self, ray: SimulatedRay) -> None:
        ray.submit(ray.shape("s"), 4)
        ray.until_done()
        ray.tick(round((IDLE_S + 1) / TICK_S) - 1)
        ray.submit("s", 4, length=50.0, counted=False)
        ray.tick(100)
        assert sum(len(raylet.running) for raylet in ray.raylets.values()) == 4
        assert len(ray.engine.placed) == 4

    def test_other_work_gets_the_room_of_unused_slots_at_once(self, ray: SimulatedRay) -> None:
        ray.submit(ray.shape("s"), 40)
        ray.until_done()
        began = ray.now
        ray.submit(ray.shape("t"), 4)
        ray.until_done()
        assert ray.now - began < IDLE_S


class TestSharing:
    def test_shapes_that_arrive_together_share_the_room(self, ray: SimulatedRay) -> None:
        for key in "stuv":
            ray.shape(key)
        for key in "stuv":
            ray.submit(key, 50)
        ray.tick(30)
        assert all(ray.started[slot_name(key, 0)] for key in "stuv")
        ray.until_done()

    def test_a_shape_with_endless_work_does_not_starve_others(self, ray: SimulatedRay) -> None:
        ray.submit(ray.shape("s"), 1_000_000)
        ray.tick(40)
        ray.submit(ray.shape("t"), 3)
        ray.tick(200)
        assert ray.pending[slot_name("t", 0)] == 0

    def test_tasks_that_wait_for_others_of_their_shape_do_not_block_them(self, ray: SimulatedRay) -> None:
        ray.submit(ray.shape("s"), 4, length=1000.0)
        ray.tick(20)
        ray.raylets["a"].blocked = 2
        ray.submit("s", 6)
        ray.tick(200)
        assert not ray.pending[slot_name("s", 0)]


class TestRules:
    def test_no_task_of_a_shape_starts_on_a_tainted_node(self, ray: SimulatedRay) -> None:
        ray.submit(ray.shape("s"), 200)
        ray.tick(5)
        ray.taint("a")
        ray.tick()
        assert ("a", slot_name("s", 0)) in set(ray.slots.pools.withdrawn())
        ray.tick(5)  # what held a lease there has ended
        before = ray.places["s", "a"]
        ray.submit("s", 20)
        ray.until_done()
        assert ray.places["s", "a"] == before
        assert not ray.failed

    def test_new_submissions_carry_another_name_after_that(self, ray: SimulatedRay) -> None:
        ray.submit(ray.shape("s"), 20, length=1.0)
        ray.tick(5)
        ray.taint("a")
        ray.tick()
        assert ray.slots.generations == {"s": 1}
        ray.engine.apply(NodeUntainted("a", "t"))
        ray.world += 1
        ray.tick()
        assert not set(ray.slots.pools.withdrawn())
        ray.until_done()

    def test_names_do_not_grow_with_the_number_of_changes(self, ray: SimulatedRay) -> None:
        ray.shape("s")
        for _ in range(12):
            ray.submit("s", 8)
            ray.tick(10)
            ray.taint("a")
            ray.tick(30)
            ray.engine.apply(NodeUntainted("a", "t"))
            ray.world += 1
            ray.tick(30)
        ray.until_done()
        assert len(ray.slots.pools) <= 3
        assert not ray.failed

    def test_queued_work_waits_and_does_not_fail_when_every_node_is_tainted(self, ray: SimulatedRay) -> None:
        ray.submit(ray.shape("s"), 30, length=0.5)
        ray.tick(20)
        for node in ("a", "b", HEAD):
            ray.taint(node)
        ray.tick(60)
        done = sum(ray.started.values())
        ray.tick(60)
        assert sum(ray.started.values()) == done
        assert not ray.failed
        ray.engine.apply(NodeUntainted("b", "t"))
        ray.world += 1
        ray.until_done()

    def test_a_no_execute_taint_evicts_the_tasks_that_do_not_tolerate_it(self, ray: SimulatedRay) -> None:
        ray.submit(ray.shape("s"), 4, length=100.0)
        ray.tick(5)
        ray.taint("a", Effect.NO_EXECUTE)
        ray.tick()
        assert set(ray.slots.pools.evicted()) == {("a", slot_name("s", 0))}

    def test_work_apart_from_its_own_kind_has_one_slot_per_node(self, ray: SimulatedRay) -> None:
        ray.shape("s", labels=Labels({"role": "x"}), affinities=apart_from("role", "x"))
        ray.submit("s", 12)
        for _ in range(200):
            ray.tick()
            assert all(len(raylet.running) <= 1 for raylet in ray.raylets.values())
        assert not sum(ray.pending.values())

    def test_a_shape_leaves_a_node_when_work_arrives_that_it_must_avoid(self, ray: SimulatedRay) -> None:
        ray.shape("s", affinities=apart_from("role", "x"))
        ray.submit("s", 100)
        ray.tick(5)
        ray.engine.apply(AskRunning(Ask.of("actor", {}, labels=Labels({"role": "x"})), "a"))
        ray.world += 1
        ray.tick(6)
        before = ray.places["s", "a"]
        ray.until_done()
        assert ray.places["s", "a"] == before

    def test_a_shape_near_a_task_loses_its_slot_when_the_task_has_ended(self, ray: SimulatedRay) -> None:
        ray.submit(ray.shape("visitor", labels={"role": "visitor"}), 1, length=3.0)
        visitor = Affinity(Selector.all_of(Requirement.is_in("role", "visitor")), near=True)
        ray.submit(ray.shape("s", affinities=((visitor,),)), 1)
        ray.tick(100)
        assert not ray.raylets["a"].running and not ray.raylets["b"].running
        before = ray.started.total()
        ray.submit("s", 1)
        ray.tick(100)
        assert ray.started.total() == before


class TestTrouble:
    def test_the_slots_of_a_node_that_is_gone_are_placed_elsewhere(self, ray: SimulatedRay) -> None:
        ray.submit(ray.shape("s"), 30)
        ray.tick(5)
        ray.kill("a")
        ray.until_done()
        assert set(ray.slots.pools[slot_name("s", 0)].places) <= {"b", HEAD}

    def test_pending_work_survives_the_nodes_of_its_anchors(self) -> None:
        ray = SimulatedRay(dict.fromkeys("abcde", 1))
        ray.submit(ray.shape("long"), 5, length=100.0)
        ray.tick(20)
        ray.submit(ray.shape("s"), 20)
        for _ in range(4):
            ray.tick(200)
            anchored = [node for node, raylet in ray.raylets.items() if slot_name("s", 0) in raylet.total]
            assert anchored
            ray.kill(anchored[0])
        ray.until_done(1000.0)
        assert not ray.failed

    def test_a_name_is_anchored_on_nodes_that_its_rules_allow_and_moves_with_them(self) -> None:
        """Otherwise Ray would queue tasks on any other node that has the name."""
        ray, name = SimulatedRay(dict.fromkeys("abc", 1)), slot_name("s", 0)

        def anchored() -> set[str]:
            return {node for node, raylet in ray.raylets.items() if name in raylet.total}

        ray.taint("a")
        ray.taint("c")
        ray.submit(ray.shape("s"), 1000, length=1.0)
        ray.tick(round(2 * KNOWN_S / TICK_S))
        assert anchored() == {"b"}
        ray.untaint("c")
        ray.tick(round(2 * KNOWN_S / TICK_S))
        assert anchored() == {"b", "c"}
        ray.taint("b")
        ray.tick(round(3 * KNOWN_S / TICK_S))
        assert anchored() == {"c"}
        ray.taint("c")
        ray.tick(round(3 * KNOWN_S / TICK_S))
        assert "c" in anchored(), "where no node is allowed, the name stays"
        ray.untaint("a")
        ray.tick(round(3 * KNOWN_S / TICK_S))
        assert anchored() == {"a"}
        assert not ray.failed

    def test_a_node_that_does_not_answer_is_called_again(self, ray: SimulatedRay) -> None:
        ray.silent = {"a", "b"}
        ray.submit(ray.shape("s"), 4)
        ray.tick(10)
        assert not ray.started
        ray.silent.clear()
        ray.until_done()

    def test_after_a_restart_slots_in_use_are_known_again(self, ray: SimulatedRay) -> None:
        ray.submit(ray.shape("s"), 30, length=5.0)
        ray.tick(20)
        ray.slots = Slots(ray, ray.engine, ray, HeldBySimulation(ray), lambda: None, lambda: ray.now)
        ray.slots.recover(ray.status())
        ray.until_done()
        assert not ray.failed

    def test_a_controller_that_lost_its_engine_adopts_running_tasks(self, ray: SimulatedRay) -> None:
        ray.submit(ray.shape("s"), 4, length=5.0)
        ray.tick(20)
        ray.engine = Engine()
        ray.engine.apply(*(NodeJoined(Node.of(node, {"CPU": each.cpus})) for node, each in ray.raylets.items()))
        ray.slots = Slots(ray, ray.engine, ray, HeldBySimulation(ray), lambda: None, lambda: ray.now)
        ray.slots.recover(ray.status())
        ray.tick(20)
        assert len(ray.engine.placed) == 4


@pytest.mark.parametrize("seed", range(1000 if os.environ.get("STEAD_SOAK") == "1" else 12))
def test_whatever_happens_everything_runs_nothing_fails_and_nothing_is_left(seed: int) -> None:
    rng = random.Random(seed)
    ray = SimulatedRay({f"n{index}": rng.randint(1, 3) for index in range(rng.randint(1, 4))}, seed)
    ray.listed_s, ray.heard_s = 2.0 * rng.random(), 4.0 * rng.random()
    nodes = [node for node in ray.raylets if node != HEAD]
    keys = [
        ray.shape(f"s{index}", policy=rng.choice([PolicyName.HYBRID, PolicyName.SPREAD, PolicyName.FLOW]))
        for index in range(rng.randint(1, 6))
    ]
    for _ in range(40):
        match rng.randrange(6):
            case 0:
                ray.taint(rng.choice(nodes))
            case 1:
                ray.engine.apply(NodeUntainted(rng.choice(nodes), "t"))
                ray.world += 1
            case 2:
                node, drained = rng.choice(nodes), rng.random() < 0.5
                ray.engine.apply(NodeDrained(node, drained))
                ray.world += 1
            case _:
                ray.submit(rng.choice(keys), rng.randint(1, 30), rng.choice([0.05, 0.3, 2.0]), rng.random() < 0.8)
        ray.tick(rng.randint(1, 30))
    for node in nodes:
        ray.engine.apply(NodeUntainted(node, "t"), NodeDrained(node, False))
    ray.world += 1
    ray.until_done(3000.0)
    assert not ray.failed
    ray.tick(round((COUNTED_S + IDLE_S + 3) / TICK_S))
    assert not ray.granted()
    assert not ray.engine.placed
    assert not ray.engine.waiting
