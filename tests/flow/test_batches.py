"""Work with a flow policy is decided together: what a batch does, one behaviour per test.

Rule: every number here was computed by hand from docs/flow.md, none by the engine.
"""

from __future__ import annotations

from typing import Any

import pytest

from stead.codec import dumps, loads
from stead.engine.decisions import BatchDecided, Decision, Placed, Refused
from stead.engine.engine import Engine
from stead.engine.facts import (
    AskEnded,
    AskLost,
    AskSubmitted,
    ClockAdvanced,
    NodeDrained,
    NodeJoined,
    NodeLeft,
    NodeTainted,
)
from stead.engine.settings import Settings
from stead.errors import Invalid
from stead.language.asks import Ask, Choice, PolicyName, Preference
from stead.language.labels import Selector
from stead.language.resources import NOTHING, Resources
from stead.language.taints import Effect
from tests.behaviour import (
    ask,
    decide_after,
    fill,
    free_of,
    node,
    on,
    place,
    placements,
    reported,
    run,
    submit,
    taint,
    tolerates,
)
from tests.flow.outcomes import batch_of, flow_cluster, waiting_ask

LEFT_OUT = 100_000_000
PREFER_NOT = Effect.PREFER_NO_SCHEDULE
ONE_AT_A_TIME = [policy for policy in PolicyName if not policy.in_batches]
IN_BATCHES = [policy for policy in PolicyName if policy.in_batches]


def flow(id: str, cpu: float = 1, **rest: Any) -> Ask:
    return ask(id, cpu, **{"policy": "flow", **rest})


def flows(count: int, cpu: float = 1, name: str = "w", **rest: Any) -> list[Ask]:
    return [flow(f"{name}{index}", cpu, **rest) for index in range(count)]


def liking(selector: Selector, weight: int = 100) -> tuple[Preference, ...]:
    return (Preference(selector, weight),)


class TestWhatABatchCosts:
    def test_each_further_ask_on_a_node_costs_a_hundred_more_so_they_spread(self) -> None:
        engine = flow_cluster(node("a"), node("b"))
        decisions = submit(engine, *flows(4))
        assert sorted(placements(decisions).values()) == ["a", "a", "b", "b"]
        assert batch_of(decisions) == BatchDecided(PolicyName.FLOW, 4, 4, 4 * 1000 + 2 * (100 + 200), 4600, 0, 1)

    def test_a_fuller_node_costs_more(self) -> None:
        engine = flow_cluster(node("half", 8), node("empty", 8))
        fill(engine, "half", 4)
        decisions = submit(engine, *flows(4))
        # Half full is 250: the empty node takes them for 100, 200, 300, then the other for 350.
        assert sorted(placements(decisions).values()) == ["empty", "empty", "empty", "half"]
        assert batch_of(decisions).cost == 4 * 1000 + 100 + 200 + 300 + 350

    def test_an_unevenly_used_node_costs_more_than_one_that_is_used_evenly_and_more(self) -> None:
        engine = flow_cluster(node("uneven", 8, memory=800), node("even", 8, memory=800))
        run(engine, ask("r0", 4), "uneven")
        run(engine, ask("r1", 4, memory=400), "even")
        decisions = submit(engine, flow("w", 1, memory=100))
        # (250 + 500) // 2 = 375, in tens 370, against (500 + 0) // 2 = 250.
        assert placements(decisions) == {"w": "even"}
        assert batch_of(decisions).cost == 1000 + 250 + 100

    def test_only_what_the_batch_asks_for_makes_a_node_full(self) -> None:
        engine = flow_cluster(node("a", 8, memory=800), node("b", 8, memory=800))
        run(engine, ask("r0", 0, memory=800), "a")
        run(engine, ask("r1", 2), "b")
        decisions = submit(engine, flow("w"))
        assert placements(decisions) == {"w": "a"}
        assert batch_of(decisions).cost == 1000 + 0 + 100

    def test_a_resource_that_a_node_has_not_does_not_count_there(self) -> None:
        engine = flow_cluster(node("a", 8, memory=800), node("b", 8))
        run(engine, ask("r0", 4, memory=400), "a")
        run(engine, ask("r1", 4), "b")
        decisions = submit(engine, flow("x", 1, selector=on("node_id", "b")), flow("y", 1, memory=1))
        assert placements(decisions) == {"x": "b", "y": "a"}
        assert batch_of(decisions).cost == 2 * (1000 + 250 + 100)

    def test_by_pack_the_node_with_the_least_left_is_filled_first(self) -> None:
        engine = flow_cluster(node("large", 8), node("small", 2), node("used", 8))
        fill(engine, "used", 5)
        decisions = submit(engine, *flows(4, policy="flow-pack"))
        # 250 left of the largest on "small", 370 on "used".
        assert sorted(placements(decisions).values()) == ["small", "small", "used", "used"]
        assert batch_of(decisions, "flow-pack").cost == 4 * 1000 + 2 * 250 + 2 * 370

    @pytest.mark.parametrize(("policy", "cost"), [("flow", 1000 + 250 + 100), ("flow-pack", 1000 + 500)])
    @pytest.mark.parametrize("memory", ["4Ti", 2**62 // 10_000])
    def test_amounts_too_large_for_a_product_in_64_bits_are_exact(self, policy: str, cost: int, memory: Any) -> None:
        engine = flow_cluster(node("n", 4, memory=memory))
        amount = Resources.of({"memory": memory})["memory"] // 2
        run(engine, Ask("r", (Choice(Resources({"memory": amount})),)), "n")
        decisions = submit(engine, ask("w", memory=1, policy=policy))
        assert placements(decisions) == {"w": "n"}
        assert batch_of(decisions, policy).cost in ({cost} if policy == "flow" else {cost, cost - 10})

    def test_leaving_one_out_costs_more_than_any_place(self) -> None:
        engine = flow_cluster(node("a", 30), node("b", 30, taints=[taint("slow", effect=PREFER_NOT)]))
        decisions = submit(engine, *flows(61))
        assert len(placements(decisions)) == 60
        batch = batch_of(decisions)
        assert (batch.asks, batch.placed) == (61, 60)
        assert batch.cost == batch.bound == LEFT_OUT + 60 * 1000 + 2 * 100 * (30 * 31 // 2) + 30 * 100

    def test_the_offset_grows_with_the_weights_so_that_no_cost_is_below_nothing(self) -> None:
        engine = flow_cluster(node("a"))
        many = tuple(Preference(on("node_id", "a"), 100) for _ in range(11))
        assert batch_of(submit(engine, flow("w", prefers=many))).cost == 1100 + 100 - 1100

    def test_a_batch_of_one_costs_what_it_would_cost_among_others(self) -> None:
        engine = flow_cluster(node("liked", 8), node("empty", 8))
        fill(engine, "liked", 4)
        decisions = submit(engine, flow("w", prefers=liking(on("node_id", "liked"))))
        # One at a time a preference comes before everything; here 100 for it does not outweigh 250.
        assert placements(decisions) == {"w": "empty"}
        assert batch_of(decisions) == BatchDecided(PolicyName.FLOW, 1, 1, 1100, 1100, 0, 1)


class TestWhoGoesWhere:
    @pytest.mark.parametrize("policy", ONE_AT_A_TIME)
    def test_one_at_a_time_in_arrival_order_leaves_nested_work_out_and_flow_leaves_none(self, policy: str) -> None:
        def picky_last(chosen: str) -> list[Ask]:
            tiers = (["1", "2", "3"], ["1", "2"], ["1"])
            return [
                ask(f"w{count}-{index}", 1, selector=on("tier", *allowed), policy=chosen)
                for count, allowed in enumerate(tiers)
                for index in range(4)
            ]

        tiers = [node(f"n{tier}", 4, labels={"tier": str(tier)}) for tier in (1, 2, 3)]
        greedy, together = flow_cluster(*tiers), flow_cluster(*tiers)
        assert None in place(greedy, *picky_last(policy))
        assert place(together, *picky_last("flow")) == ["n3"] * 4 + ["n2"] * 4 + ["n1"] * 4

    def test_weights_are_satisfied_in_sum_not_in_arrival_order(self) -> None:
        def work(policy: str) -> list[Ask]:
            likes = (Preference(on("node_id", "a"), 60), Preference(on("node_id", "b"), 50))
            return [
                ask("first", 1, prefers=likes, policy=policy),
                ask("second", 1, prefers=liking(on("node_id", "a")), policy=policy),
            ]

        assert place(flow_cluster(node("a", 1), node("b", 1)), *work("hybrid")) == ["a", "b"]
        assert place(flow_cluster(node("a", 1), node("b", 1)), *work("flow")) == ["b", "a"]

    def test_a_node_with_a_taint_that_asks_to_prefer_others_costs_a_hundred_more(self) -> None:
        engine = flow_cluster(node("clean", 10), node("tainted", 10, taints=[taint("slow", effect=PREFER_NOT)]))
        fill(engine, "clean", 1)
        decisions = submit(engine, *flows(3))
        # 50 + 100 and 50 + 200 on the one, 100 + 100 on the other.
        assert sorted(placements(decisions).values()) == ["clean", "clean", "tainted"]
        assert batch_of(decisions).cost == 3000 + 150 + 250 + 200

    def test_who_tolerates_that_taint_does_not_pay_for_it(self) -> None:
        engine = flow_cluster(node("clean", 10), node("tainted", 10, taints=[taint("slow", effect=PREFER_NOT)]))
        fill(engine, "clean", 1)
        assert place(engine, flow("w", tolerations=(tolerates("slow"),))) == ["tainted"]

    @pytest.mark.parametrize("policy", IN_BATCHES)
    @pytest.mark.parametrize(
        ("closed", "code"),
        [
            (node("closed", 8, labels={"zone": "a"}, draining=True), "draining"),
            (node("closed", 8, labels={"zone": "b"}), "lacks-label"),
            (node("closed", 8), "lacks-label"),
            (node("closed", 8, labels={"zone": "a"}, taints=[taint("gpu")]), "tainted"),
            (node("closed", 8, labels={"zone": "a"}, taints=[taint("gpu", effect=Effect.NO_EXECUTE)]), "tainted"),
            (node("closed", 0.5, labels={"zone": "a"}), "never-fits"),
        ],
        ids=["draining", "other label", "no label", "no-schedule", "no-execute", "too small"],
    )
    def test_a_node_that_a_rule_refuses_gets_nothing_and_the_reason_is_reported(
        self, policy: str, closed: Any, code: str
    ) -> None:
        engine = flow_cluster(closed, node("open", 2, labels={"zone": "a"}))
        decisions = submit(engine, *flows(4, policy=policy, selector=on("zone", "a")))
        assert sorted(placements(decisions).values()) == ["open", "open"]
        assert set(reported(decisions)) == set(engine.waiting)
        assert len(engine.waiting) == 2
        assert all(code in codes and "short-now" in codes for codes in reported(decisions).values())

    def test_rules_that_change_between_batches_hold_for_the_next(self) -> None:
        engine = flow_cluster(node("a", 8), node("b", 8))
        assert sorted(place(engine, *flows(2))) == ["a", "b"]  # type: ignore[type-var]  # both have a place
        engine.apply(NodeTainted("a", taint("gpu")))
        assert place(engine, *flows(3, name="x")) == ["b"] * 3
        engine.apply(NodeDrained("b"))
        assert place(engine, flow("y")) == [None]
        assert place(engine, flow("z", tolerations=(tolerates("gpu"),))) == ["a"]

    @pytest.mark.parametrize("policy", IN_BATCHES)
    def test_several_resources_are_never_overcommitted(self, policy: str) -> None:
        engine = flow_cluster(node("a", 4, memory=100), node("b", 4, memory=400))
        lean = [ask(f"lean{index}", 2, memory=10, policy=policy) for index in range(2)]
        fat = [ask(f"fat{index}", 1, memory=90, policy=policy) for index in range(4)]
        place(engine, *lean, *fat)
        for name in ("CPU", "memory"):
            assert all(amount >= 0 for amount in free_of(engine, name).values())
        assert not [id for id in engine.waiting if any(engine.candidates(waiting_ask(engine, id)))]

    @pytest.mark.parametrize("policy", IN_BATCHES)
    def test_shares_of_a_device_lie_on_one_device(self, policy: str) -> None:
        engine = flow_cluster(node("a", 8, GPU=2), node("b", 8, GPU=1))
        places = place(engine, *(ask(f"g{index}", gpu=0.6, policy=policy) for index in range(4)))
        assert sorted(map(str, places)) == ["None", "a", "a", "b"]

    @pytest.mark.parametrize("policy", IN_BATCHES)
    def test_asks_for_nothing_find_places_without_end(self, policy: str) -> None:
        engine = flow_cluster(node("a", 1), node("b", 1))
        places = place(engine, *flows(10, 0, policy=policy))
        assert None not in places
        if policy == "flow":
            assert sorted(map(str, places)) == ["a"] * 5 + ["b"] * 5

    @pytest.mark.parametrize("policy", IN_BATCHES)
    def test_without_nodes_all_wait_until_one_comes(self, policy: str) -> None:
        engine = flow_cluster()
        decisions = submit(engine, *flows(3, policy=policy))
        assert placements(decisions) == {}
        assert set(engine.waiting) == {"w0", "w1", "w2"}
        assert len(placements(decide_after(engine, NodeJoined(node("late", 2))))) == 2


class TestChoices:
    def test_who_does_not_fit_by_the_first_choice_goes_by_the_next(self) -> None:
        engine = flow_cluster(node("a", 1), node("b", 4))
        choices = tuple(Choice(Resources.of(CPU=1), on("node_id", id)) for id in ("a", "b"))
        decisions = submit(engine, *(Ask(f"w{index}", choices, policy=PolicyName.FLOW) for index in range(3)))
        taken = sorted((each.choice, each.node) for each in decisions if isinstance(each, Placed))
        assert taken == [(0, "a"), (1, "b"), (1, "b")]
        # 100 on a; on b 100 and 200.
        assert batch_of(decisions).cost == 3000 + 100 + 100 + 200

    def test_first_choices_of_all_come_before_second_choices_of_any(self) -> None:
        engine = flow_cluster(node("a", 1), node("b", 1))
        fill(engine, "a", 1)
        either = tuple(Choice(Resources.of(CPU=1), on("node_id", id)) for id in ("a", "b"))
        only_b = (Choice(Resources.of(CPU=1), on("node_id", "b")),)
        early, late = Ask("early", either, policy=PolicyName.FLOW), Ask("late", only_b, policy=PolicyName.FLOW)
        assert place(engine, early, late) == [None, "b"]

    def test_what_first_choices_put_on_a_node_counts_when_the_second_are_taken(self) -> None:
        engine = flow_cluster(node("full", 1), node("b", 10), node("c", 10))
        fill(engine, "full", 1)
        fill(engine, "c", 3)
        choices = tuple(Choice(Resources.of(CPU=1), on("node_id", *ids)) for ids in (("full",), ("b", "c")))
        decisions = submit(engine, *flows(3, selector=on("node_id", "b")), Ask("x", choices, policy=PolicyName.FLOW))
        # The fourth on b would cost 400; the first on c costs 150 + 100.
        assert placements(decisions)["x"] == "c"
        assert batch_of(decisions).cost == 4000 + 100 + 200 + 300 + 250

    def test_a_smaller_second_choice_is_taken_with_its_own_amounts(self) -> None:
        engine = flow_cluster(node("a", 3))
        choices = (Choice(Resources.of(CPU=2)), Choice(Resources.of(CPU=1)))
        decisions = submit(engine, *(Ask(f"w{index}", choices, policy=PolicyName.FLOW) for index in range(2)))
        assert sorted(each.choice for each in decisions if isinstance(each, Placed)) == [0, 1]
        assert free_of(engine) == {"a": 0}


class TestWhoWaits:
    """Two asks for one place: the cost of leaving one out counts before the cost of the place."""

    def test_uniform_leaves_out_whom_the_place_suits_less(self) -> None:
        engine = flow_cluster(node("a", 1), unscheduled="uniform")
        assert place(engine, flow("plain"), flow("suited", prefers=liking(on("node_id", "a")))) == [None, "a"]

    def test_by_size_the_one_that_asks_for_more_of_a_node_is_placed(self) -> None:
        large = node("large", 10, memory=1000, taints=[taint("gpu")])
        small = flow("small", 1, prefers=liking(on("node_id", "a")))
        for unscheduled, places in (("uniform", ["a", None]), ("size", [None, "a"])):
            engine = flow_cluster(large, node("a", 1, memory=1000), unscheduled=unscheduled)
            # In thousandths of the largest node: 100 by CPU for the one, 800 by memory for the other.
            assert place(engine, small, flow("big", 1, memory=800)) == places

    def test_by_size_one_large_ask_is_worth_more_than_two_small_ones(self) -> None:
        works = [flow("s0", 1), flow("s1", 1), flow("big", 4)]
        # 2 * (100 + 250) against 100 + 1000 million.
        assert place(flow_cluster(node("a", 4), unscheduled="size"), *works) == [None, None, "a"]
        assert place(flow_cluster(node("a", 4), unscheduled="uniform"), *works) == ["a", "a", None]

    def test_by_age_the_one_that_has_waited_longer_is_placed(self) -> None:
        for unscheduled, expected in (("uniform", "new"), ("age", "old")):
            engine = flow_cluster(node("a", 1), unscheduled=unscheduled, patience=None)
            engine.apply(AskSubmitted(flow("old")), ClockAdvanced(7))
            decisions = submit(engine, flow("new", prefers=liking(on("node_id", "a"))))
            assert placements(decisions) == {expected: "a"}

    def test_what_leaving_out_costs_is_in_the_cost_of_the_batch(self) -> None:
        costs = {}
        for unscheduled in ("uniform", "size", "age"):
            engine = flow_cluster(node("a", 4), unscheduled=unscheduled, patience=None)
            fill(engine, "a", 4)
            engine.apply(AskSubmitted(flow("w", 1)), ClockAdvanced(12.9))
            costs[unscheduled] = batch_of(engine.decide()).cost
        assert costs == {"uniform": 100_000_000, "size": 350_000_000, "age": 112_000_000}

    def test_no_work_counts_as_older_than_a_thousand_seconds(self) -> None:
        engine = flow_cluster(node("a", 1), unscheduled="age", patience=None)
        fill(engine, "a", 1)
        engine.apply(AskSubmitted(flow("w")), ClockAdvanced(1e9))
        assert batch_of(engine.decide()).cost == 1_100_000_000

    def test_of_equal_asks_the_one_that_came_first_is_placed(self) -> None:
        engine = flow_cluster(node("a", 1))
        for moment, id in enumerate(("first", "second", "third")):
            engine.apply(ClockAdvanced(moment), AskSubmitted(flow(id)))
        assert placements(engine.decide()) == {"first": "a"}
        assert engine.waiting == ("second", "third")

    def test_pending_work_is_reported_once_and_decided_again_only_after_a_change(self) -> None:
        engine = flow_cluster(node("a", 1))
        decisions = submit(engine, *flows(2))
        assert list(reported(decisions)) == list(engine.waiting)
        assert engine.decide() == []
        (placed,) = placements(decisions)
        assert list(placements(decide_after(engine, AskEnded(placed)))) == [id for id in ("w0", "w1") if id != placed]

    def test_a_waiting_ask_is_refused_at_its_deadline(self) -> None:
        engine = flow_cluster(node("a", 1))
        fill(engine, "a", 1)
        submit(engine, flow("w", deadline=5.0))
        assert [each.id for each in decide_after(engine, ClockAdvanced(5)) if isinstance(each, Refused)] == ["w"]

    def test_an_ask_that_requires_a_dead_node_is_refused_and_the_others_are_placed(self) -> None:
        engine = flow_cluster(node("a", 1))
        decisions = submit(engine, flow("lost", selector=on("node_id", "gone")), flow("w"))
        assert [each.id for each in decisions if isinstance(each, Refused)] == ["lost"]
        assert placements(decisions) == {"w": "a"}


class TestPriorities:
    @pytest.mark.parametrize("policy", IN_BATCHES)
    def test_the_higher_priority_gets_the_place_whatever_it_prefers_and_whenever_it_came(self, policy: str) -> None:
        engine = flow_cluster(node("a", 1))
        low = flow("low", policy=policy, prefers=liking(on("node_id", "a")))
        assert place(engine, low, flow("high", policy=policy, priority=1)) == [None, "a"]

    @pytest.mark.parametrize("policy", IN_BATCHES)
    @pytest.mark.parametrize("count", [4, 40, 400])
    def test_no_number_of_small_asks_outweighs_a_large_one_of_higher_priority(self, policy: str, count: int) -> None:
        engine = flow_cluster(node("a", 4))
        places = place(engine, *flows(count, 4 / count, policy=policy), flow("high", 4, policy=policy, priority=1))
        assert places == [None] * count + ["a"]

    @pytest.mark.parametrize("policy", IN_BATCHES)
    def test_work_that_fits_nowhere_does_not_block_lower_priorities(self, policy: str) -> None:
        engine = flow_cluster(node("a", 4))
        never = flow("never", 1, policy=policy, priority=5, selector=on("zone", "nowhere"))
        large = flow("large", 8, policy=policy, priority=5)
        assert place(engine, never, large, *flows(4, policy=policy)) == [None, None, "a", "a", "a", "a"]

    def test_what_the_higher_leaves_goes_to_the_lower(self) -> None:
        engine = flow_cluster(node("a", 4), node("b", 4))
        places = place(engine, *flows(5), *flows(2, 3, name="high", priority=9))
        assert sorted(map(str, places[5:])) == ["a", "b"]
        assert sorted(map(str, places[:5])) == ["None"] * 3 + ["a", "b"]

    @pytest.mark.parametrize("priorities", [(-(10**9), 10**9), (0, 2**31), tuple(range(-60, 60))])
    def test_priorities_may_lie_as_far_apart_as_they_like(self, priorities: tuple[int, ...]) -> None:
        engine = flow_cluster(node("a", 1))
        places = place(engine, *(flow(f"w{index}", priority=each) for index, each in enumerate(priorities)))
        assert places == [None] * (len(priorities) - 1) + ["a"]

    def test_work_that_is_decided_alone_and_has_a_higher_priority_goes_before_the_batch(self) -> None:
        engine = flow_cluster(node("a", 1))
        assert place(engine, flow("w"), ask("alone", 1, priority=1)) == [None, "a"]

    def test_a_batch_is_decided_when_the_first_of_it_has_its_turn(self) -> None:
        engine = flow_cluster(node("a", 2))
        assert place(engine, flow("first"), ask("alone", 1), flow("last", memory=0, tolerations=(tolerates("x"),))) == [
            "a",
            None,
            "a",
        ]


class TestBatchesOverTime:
    def test_what_lost_its_place_is_in_the_next_batch(self) -> None:
        engine = flow_cluster(node("a", 4), node("b", 4))
        submit(engine, *flows(4))
        decisions = decide_after(engine, NodeLeft("a"), AskSubmitted(flow("new")))
        assert batch_of(decisions).asks == 3
        assert set(engine.placed.values()) == {"b"}
        assert len(engine.waiting) == 1

    def test_what_lost_its_place_comes_before_equals_that_came_later(self) -> None:
        engine = flow_cluster(node("a", 1))
        submit(engine, flow("old"))
        engine.apply(ClockAdvanced(5), AskSubmitted(flow("new")), AskLost("old"))
        assert placements(engine.decide()) == {"old": "a"}

    def test_by_age_what_lost_its_place_keeps_its_turn_and_the_batch_is_still_the_best(self) -> None:
        engine = flow_cluster(node("a", 1), unscheduled="age", patience=None)
        submit(engine, flow("old"))
        engine.apply(ClockAdvanced(50), AskSubmitted(flow("new")), ClockAdvanced(100), AskLost("old"))
        engine.apply(ClockAdvanced(200))
        decisions = engine.decide()
        assert placements(decisions) == {"old": "a"}
        assert batch_of(decisions).cost == batch_of(decisions).bound

    def test_running_work_stays_where_it_is(self) -> None:
        engine = flow_cluster(node("a", 4), node("b", 4))
        submit(engine, *flows(4))
        before = dict(engine.placed)
        submit(engine, *flows(4, name="x", prefers=liking(on("node_id", "a"))))
        assert {id: engine.placed[id] for id in before} == before

    def test_work_of_two_flow_policies_is_two_batches(self) -> None:
        engine = flow_cluster(node("a", 4), node("b", 4))
        decisions = submit(
            engine, *flows(4), *flows(3, name="p", policy="flow-pack"), *flows(3, name="x", policy="flow-fgd")
        )
        sizes = {batch.policy: (batch.asks, batch.placed) for batch in decisions if isinstance(batch, BatchDecided)}
        assert {policy: asks for policy, (asks, _) in sizes.items()} == {"flow": 4, "flow-pack": 3, "flow-fgd": 3}
        assert sum(placed for _, placed in sizes.values()) == len(engine.placed) == 8
        assert free_of(engine) == {"a": 0, "b": 0}

    def test_a_limit_bounds_what_one_call_places_and_the_next_call_continues(self) -> None:
        engine = flow_cluster(node("a", 4), node("b", 4))
        engine.apply(*map(AskSubmitted, flows(5)))
        counts = [len(placements(engine.decide(limit=2))) for _ in range(4)]
        assert counts == [2, 2, 1, 0]

    def test_a_limit_is_spent_on_the_highest_priority_first(self) -> None:
        engine = flow_cluster(node("a", 4), node("b", 4))
        engine.apply(*map(AskSubmitted, [*flows(3), *flows(2, name="high", priority=1)]))
        assert set(placements(engine.decide(limit=2))) == {"high0", "high1"}

    def test_a_limit_of_none_at_all_places_nothing(self) -> None:
        engine = flow_cluster(node("a", 4))
        engine.apply(*map(AskSubmitted, flows(3)))
        assert placements(engine.decide(limit=0)) == {}
        assert len(placements(engine.decide())) == 3

    def test_nodes_that_are_held_for_late_work_are_not_for_the_batch(self) -> None:
        engine = flow_cluster(node("held", 4), node("open", 2), patience=10.0)
        fill(engine, "held", 3, "filler")
        submit(engine, flow("big", 4))
        decide_after(engine, ClockAdvanced(11))
        decisions = submit(engine, *flows(3))
        assert sorted(placements(decisions).values()) == ["open", "open"]
        assert {"reserved"} <= {code for codes in reported(decisions).values() for code in codes}
        assert placements(decide_after(engine, AskEnded("filler")))["big"] == "held"

    @pytest.mark.parametrize("policy", IN_BATCHES)
    def test_a_fork_decides_what_the_original_decides(self, policy: str) -> None:
        engine = flow_cluster(node("a", 4), node("b", 3), node("c", 2))
        submit(engine, *flows(3, policy=policy))
        engine.apply(*map(AskSubmitted, [*flows(3, name="x", policy=policy), *flows(3, 1.5, name="y", policy=policy)]))
        twin = engine.fork()
        other = engine.fork()
        submit(other, *flows(2, name="z", policy=policy))
        assert repr(twin.decide()) == repr(engine.decide())
        assert twin.placed == engine.placed
        assert repr(decide_after(twin, NodeLeft("a"))) == repr(decide_after(engine, NodeLeft("a")))

    def test_a_question_about_flow_work_leaves_no_trace(self) -> None:
        engine, twin = (flow_cluster(node("a", 2), node("b", 1)) for _ in range(2))
        for each in (engine, twin):
            each.apply(*map(AskSubmitted, flows(5)))
        assert engine.explain("w4").verdicts[0].candidates == 2
        assert repr(engine.decide()) == repr(twin.decide())
        assert str(engine.explain(engine.waiting[0]))


class TestTheSolver:
    def test_an_engine_without_one_refuses_flow_work_in_one_sentence_and_continues(self) -> None:
        engine = Engine(Settings())
        engine.apply(NodeJoined(node("a", 2)))
        with pytest.raises(Invalid, match="flow") as refused:
            decide_after(engine, AskSubmitted(flow("w")))
        assert "\n" not in str(refused.value)
        assert placements(submit(engine, ask("plain", 1))) == {"plain": "a"}
        assert "w" not in engine.waiting

    @pytest.mark.parametrize("bound", [None, 0, 12_345])
    def test_what_a_batch_came_to_is_written_and_read(self, bound: int | None) -> None:
        batch = BatchDecided(PolicyName.FLOW_PACK, 5, 3, 12_345, bound, 2, 4)
        assert loads(dumps(batch), Decision) == batch

    def test_the_unscheduled_setting_is_written_and_read(self) -> None:
        settings = flow_cluster(unscheduled="age").settings
        assert loads(dumps(settings), Settings) == settings

    def test_an_amount_of_zero_is_not_a_need(self) -> None:
        engine = flow_cluster(node("a", 1))
        assert place(engine, Ask("w", (Choice(NOTHING),), policy=PolicyName.FLOW)) == ["a"]
