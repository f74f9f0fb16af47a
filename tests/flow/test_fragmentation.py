"""The fragmentation cost: what an ask takes from typical work.

Rule: there is also a naive implementation of the definition, in fractions and loops; on random nodes, mixes and asks
the engine's columns must equal it.
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass
from fractions import Fraction
from math import floor

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stead.engine.batch import fragmentation
from stead.engine.batch.fragmentation import KINDS_MAX, LEFT_MAX, OFFSET, LeastFragmenting, Mix, costs
from stead.engine.columns.amounts import Amounts
from stead.engine.fleet import Fleet
from stead.engine.ranking.policies import FullestFirst
from stead.engine.shapes import Demand, Shape
from stead.language.asks import Ask
from stead.language.labels import ANYWHERE, Labels, Requirement, Selector
from stead.language.nodes import Node
from stead.language.resources import DEVICES, UNIT, Resources

SOAK = 50 if os.environ.get("STEAD_SOAK") == "1" else 1

T4 = Selector.all_of(Requirement.is_in("model", "T4"))
SELECTORS = {"anywhere": ANYWHERE, "T4": T4, "not T4": Selector.all_of(Requirement.not_in("model", "T4"))}


def demand(selector: Selector = ANYWHERE, **needs: float) -> Demand:
    return Shape(Ask.of("a", needs, selector), FullestFirst()).demands[0]


def fleet_of(*nodes: dict[str, float], models: tuple[str, ...] = ()) -> Fleet:
    fleet = Fleet()
    for index, capacity in enumerate(nodes):
        labels = Labels({"model": models[index]}) if index < len(models) else Labels()
        fleet.join(Node(f"n{index}", Resources.of(capacity), labels))
    return fleet


def mix_of(*kinds: Demand) -> Mix:
    mix = Mix()
    for kind in kinds:
        mix.add(kind)
    return mix


def changes(fleet: Fleet, mix: Mix, ask: Demand) -> list[int]:
    """The ask's cost on every node, relative to the cost of no change."""
    found: list[int] = (costs(fleet, mix, ask, np.arange(fleet.extent)) - OFFSET).tolist()
    return found


class TestWhatAnAskCosts:
    def test_a_share_that_leaves_too_little_for_the_usual_work_costs_what_is_left(self) -> None:
        fleet, mix = fleet_of({"GPU": 1}), mix_of(demand(GPU=0.6))
        assert changes(fleet, mix, demand(GPU=0.6)) == [400]

    def test_a_share_that_fills_a_broken_device_makes_up_for_what_was_lost(self) -> None:
        fleet, mix = fleet_of({"GPU": 1}, {"GPU": 1}), mix_of(demand(GPU=0.6))
        fleet.take(0, demand(GPU=0.6).needs)
        assert changes(fleet, mix, demand(GPU=0.4)) == [-400, 0]

    def test_work_that_wants_all_devices_of_a_node_loses_the_others_when_one_is_taken(self) -> None:
        fleet, mix = fleet_of({"GPU": 4}, {"GPU": 8}), mix_of(demand(GPU=4))
        assert changes(fleet, mix, demand(GPU=1)) == [3000, 0]

    def test_a_node_that_is_closed_to_the_usual_work_has_nothing_to_lose(self) -> None:
        fleet, mix = fleet_of({"GPU": 1}, {"GPU": 1}, models=("T4", "A10")), mix_of(demand(T4, GPU=1))
        assert changes(fleet, mix, demand(GPU=0.5)) == [500, -500]

    def test_kinds_count_by_how_often_they_came(self) -> None:
        fleet, mix = fleet_of({"GPU": 1}), Mix()
        mix.add(demand(GPU=1), 3)
        mix.add(demand(GPU=0.2), 1)
        assert changes(fleet, mix, demand(GPU=0.5)) == [375]

    def test_the_cpu_that_devices_need_counts_as_they_do(self) -> None:
        fleet, mix = fleet_of({"GPU": 2, "CPU": 8}, {"GPU": 2, "CPU": 12}), mix_of(demand(GPU=1, CPU=4))
        assert changes(fleet, mix, demand(GPU=1, CPU=8)) == [1000, 0]

    def test_an_ask_without_devices_avoids_nodes_whose_devices_it_would_strand(self) -> None:
        fleet, mix = fleet_of({"GPU": 2, "CPU": 8}, {"CPU": 8}), mix_of(demand(GPU=1, CPU=4))
        assert changes(fleet, mix, demand(CPU=6)) == [2000 + LEFT_MAX, LEFT_MAX // 2]

    def test_an_ask_without_devices_goes_where_few_devices_are_left_before_it_strands_any(self) -> None:
        fleet, mix = fleet_of({"GPU": 2, "CPU": 8}, {"GPU": 2, "CPU": 8}), mix_of(demand(GPU=1, CPU=1))
        fleet.take(1, demand(GPU=2).needs)
        assert changes(fleet, mix, demand(CPU=1)) == [LEFT_MAX, LEFT_MAX // 2]

    def test_an_ask_without_devices_rather_fills_the_fuller_of_two_nodes_that_are_alike(self) -> None:
        fleet, mix = fleet_of({"CPU": 10}, {"CPU": 10}), mix_of(demand(CPU=1))
        fleet.take(1, demand(CPU=5).needs)
        assert changes(fleet, mix, demand(CPU=1)) == [LEFT_MAX, LEFT_MAX // 2]

    @pytest.mark.parametrize("device", sorted(DEVICES))
    def test_every_kind_of_device_counts(self, device: str) -> None:
        fleet, mix = fleet_of({device: 1}), mix_of(demand(ANYWHERE, **{device: 1.0}))
        assert changes(fleet, mix, demand(ANYWHERE, **{device: 0.3})) == [700]

    def test_work_on_one_kind_of_device_does_not_affect_another(self) -> None:
        fleet, mix = fleet_of({"GPU": 1, "TPU": 1}), mix_of(demand(GPU=1), demand(TPU=0.5))
        assert changes(fleet, mix, demand(TPU=0.5)) == [0]

    def test_before_any_work_was_seen_all_places_are_alike(self) -> None:
        assert changes(fleet_of({"GPU": 1}, {"GPU": 8}), Mix(), demand(GPU=0.5)) == [0, 0]

    def test_no_cost_is_negative_however_many_devices_an_ask_takes(self) -> None:
        fleet, mix = fleet_of({"GPU": 200}, models=("T4",)), mix_of(demand(SELECTORS["not T4"], GPU=1))
        assert changes(fleet, mix, demand(GPU=200)) == [-OFFSET]


class TestTheMix:
    def test_weights_are_taken_again_when_the_counts_have_grown_by_a_part_not_at_every_ask(self) -> None:
        mix = Mix()
        taken = set()
        for _ in range(1000):
            mix.add(demand(GPU=0.5))
            taken.add(mix.chart.edition)
        assert 10 < len(taken) < 40

    def test_labels_that_the_mix_reads_change_costs(self) -> None:
        fleet, mix = fleet_of({"GPU": 1}, models=("A10",)), mix_of(demand(T4, GPU=1))
        assert changes(fleet, mix, demand(GPU=0.5)) == [-500]
        fleet.set_labels(0, Labels({"model": "T4"}))
        assert changes(fleet, mix, demand(GPU=0.5)) == [500]

    def test_only_the_most_common_kinds_are_kept(self) -> None:
        mix = Mix()
        common = demand(GPU=1)
        for index in range(3 * KINDS_MAX):
            mix.add(common)
            mix.add(demand(GPU=1, CPU=index + 1))
        kinds = mix.kinds
        assert len(kinds) == KINDS_MAX
        assert kinds[0] == ((common.needs, ANYWHERE), 3 * KINDS_MAX)

    def test_what_has_not_come_for_long_is_forgotten(self) -> None:
        mix = mix_of(demand(GPU=0.1))
        for _ in range(2):
            mix.add(demand(GPU=1), fragmentation.COUNT_MAX)
        assert [needs for (needs, _), _ in mix.kinds] == [demand(GPU=1).needs]

    def test_a_fork_learns_for_itself(self) -> None:
        fleet, mix = fleet_of({"GPU": 1}), mix_of(demand(GPU=1))
        twin = mix.fork()
        twin.add(demand(GPU=0.2), 9)
        assert changes(fleet, mix, demand(GPU=0.5)) == [500]
        assert changes(fleet, twin, demand(GPU=0.5)) == [50]

    def test_forks_do_not_take_each_others_labels_for_their_own(self) -> None:
        fleet, mix = fleet_of({"GPU": 1}, models=("A10",)), mix_of(demand(T4, GPU=1))
        changes(fleet, mix, demand(GPU=0.5))
        other, twin = fleet.fork(), mix.fork()
        fleet.set_labels(0, Labels({"model": "A100"}))
        other.set_labels(0, Labels({"model": "T4"}))
        assert changes(fleet, mix, demand(GPU=0.5)) == [-500]
        assert changes(other, twin, demand(GPU=0.5)) == [500]

    def test_more_stands_than_the_cache_holds_change_nothing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        kinds = [demand(GPU=1, CPU=cpu) for cpu in range(1, 9)]
        fleet, mix = fleet_of(*({"GPU": 2.0, "CPU": cpu} for cpu in range(1, 9))), mix_of(*kinds)
        expected = changes(fleet, mix, kinds[0])
        monkeypatch.setattr(fragmentation, "STANDS_MAX", 4)
        assert [changes(fleet, mix_of(*kinds), kinds[0]) for _ in range(2)] == [expected, expected]


class TestKeptCosts:
    """Cached costs equal recomputed ones."""

    def everywhere(self, fleet: Fleet, prices: LeastFragmenting, ask: Demand) -> list[int]:
        found: list[int] = (prices.column(fleet, ask, np.ones(fleet.extent, np.bool_)) - OFFSET).tolist()
        return found

    def test_they_follow_what_changes_on_a_node(self) -> None:
        fleet, prices = fleet_of({"GPU": 1}, {"GPU": 1}), LeastFragmenting(mix_of(demand(GPU=0.6)))
        assert self.everywhere(fleet, prices, demand(GPU=0.4)) == [0, 0]
        held = fleet.take(1, demand(GPU=0.6).needs)
        assert self.everywhere(fleet, prices, demand(GPU=0.4)) == [0, -400]
        fleet.give(1, demand(GPU=0.6).needs, held)
        assert self.everywhere(fleet, prices, demand(GPU=0.4)) == [0, 0]

    def test_they_follow_the_mix_and_the_labels(self) -> None:
        fleet, prices = fleet_of({"GPU": 1}, models=("A10",)), LeastFragmenting(mix_of(demand(GPU=1)))
        assert self.everywhere(fleet, prices, demand(GPU=0.5)) == [500]
        prices.mix.add(demand(T4, GPU=1), 3)
        assert self.everywhere(fleet, prices, demand(GPU=0.5)) == [-250]
        fleet.set_labels(0, Labels({"model": "T4"}))
        assert self.everywhere(fleet, prices, demand(GPU=0.5)) == [500]

    def test_of_all_nodes_only_those_whose_labels_changed_are_priced_again(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        priced: list[list[int]] = []

        def watched(fleet: Fleet, mix: Mix, ask: Demand, rows: fragmentation.Rows) -> Amounts:
            priced.append(rows.tolist())
            return costs(fleet, mix, ask, rows)

        monkeypatch.setattr(fragmentation, "costs", watched)
        fleet = fleet_of({"GPU": 1}, {"GPU": 1}, {"GPU": 1}, models=("A10", "A10", "T4"))
        prices, ask = LeastFragmenting(mix_of(demand(T4, GPU=1))), demand(GPU=0.5)
        assert self.everywhere(fleet, prices, ask) == [-500, -500, 500]
        fleet.set_labels(1, Labels({"model": "T4"}))
        assert self.everywhere(fleet, prices, ask) == [-500, 500, 500]
        fleet.join(Node("new", Resources.of({"GPU": 1}), Labels({"model": "T4"})))
        assert self.everywhere(fleet, prices, ask) == [-500, 500, 500, 500]
        assert priced == [[0, 1, 2], [1], [3]]

    def test_labels_that_keep_changing_are_followed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(fragmentation, "MOVED_MAX", 3)
        fleet, prices = fleet_of({"GPU": 1}, models=("A10",)), LeastFragmenting(mix_of(demand(T4, GPU=1)))
        for turn in range(600):
            fleet.set_labels(0, Labels({"model": "T4" if turn % 2 else "A10"}))
            assert self.everywhere(fleet, prices, demand(GPU=0.5)) == [500 if turn % 2 else -500]
        assert len(prices.mix.chart.moved) < 300

    def test_they_follow_the_largest_node(self) -> None:
        fleet, prices = fleet_of({"CPU": 10}), LeastFragmenting(mix_of(demand(CPU=1)))
        assert self.everywhere(fleet, prices, demand(CPU=1)) == [LEFT_MAX]
        fleet.join(Node("large", Resources.of({"CPU": 20})))
        assert self.everywhere(fleet, prices, demand(CPU=1)) == [LEFT_MAX // 2, LEFT_MAX]

    def test_they_follow_nodes_that_join(self) -> None:
        fleet, prices = fleet_of({"GPU": 1}), LeastFragmenting(mix_of(demand(GPU=2)))
        assert self.everywhere(fleet, prices, demand(GPU=1)) == [-1000]
        fleet.join(Node("new", Resources.of({"GPU": 2})))
        assert self.everywhere(fleet, prices, demand(GPU=1)) == [-1000, 1000]

    def test_a_node_where_the_ask_did_not_fit_is_priced_when_it_does(self) -> None:
        fleet, prices = fleet_of({"GPU": 1}, {"GPU": 1}), LeastFragmenting(mix_of(demand(GPU=1)))
        prices.column(fleet, demand(GPU=0.5), np.array([True, False]))
        assert self.everywhere(fleet, prices, demand(GPU=0.5)) == [500, 500]

    def test_they_are_computed_again_when_the_log_of_changes_was_cut(self) -> None:
        fleet, prices = fleet_of({"GPU": 1}), LeastFragmenting(mix_of(demand(GPU=1)))
        ask = demand(GPU=0.5)
        fleet.take(0, ask.needs)
        assert self.everywhere(fleet, prices, ask) == [-500]
        fleet.give(0, ask.needs, (((0, UNIT // 2),),))
        fleet.touched.keep_at_most(0)
        assert self.everywhere(fleet, prices, ask) == [500]

    def test_a_fork_keeps_its_own(self) -> None:
        fleet, prices = fleet_of({"GPU": 1}), LeastFragmenting(mix_of(demand(GPU=1)))
        ask = demand(GPU=0.5)
        assert self.everywhere(fleet, prices, ask) == [500]
        other, twin = fleet.fork(), prices.fork()
        other.take(0, ask.needs)
        assert self.everywhere(other, twin, ask) == [-500]
        assert self.everywhere(fleet, prices, ask) == [500]

    def test_the_number_of_cached_costs_is_bounded(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(fragmentation, "CELLS_MAX", 4)
        fleet, prices = fleet_of({"GPU": 1}, {"GPU": 1}), LeastFragmenting(mix_of(demand(GPU=1)))
        asks = [demand(GPU=share / 10) for share in range(1, 10)]
        for _ in range(2):
            for index, ask in enumerate(asks, start=1):
                assert self.everywhere(fleet, prices, ask) == [1000 - 100 * index] * 2
        assert len(prices._cached) <= 3


# -- the definition, implemented naively


@dataclass
class PlainNode:
    model: str
    free: dict[str, int]
    """Of resources that are no devices."""
    devices: dict[str, list[int]]
    """What is free on each device."""

    def fits(self, kind: Demand) -> bool:
        if kind.selector != ANYWHERE and (kind.selector == T4) != (self.model == "T4"):
            return False
        return all(self._fits_need(resource, need) for resource, need in kind.needs)

    def _fits_need(self, resource: str, need: int) -> bool:
        if resource not in DEVICES:
            return self.free.get(resource, 0) >= need
        return sum(share >= min(need, UNIT) for share in self.devices.get(resource, [])) * UNIT >= need

    def take(self, ask: Demand) -> None:
        for resource, need in ask.needs:
            if resource not in DEVICES:
                self.free[resource] -= need
                continue
            shares = self.devices[resource]
            for _ in range(max(need // UNIT, 1)):
                least = min(share for share in shares if share >= min(need, UNIT))
                shares[shares.index(least)] -= min(need, UNIT)

    def lost(self, kind: Demand, device: str) -> int:
        """The free units of devices that the kind cannot use."""
        shares = self.devices.get(device, [])
        need = min(dict(kind.needs)[device], UNIT)
        return sum(share for share in shares if not self.fits(kind) or share < need)

    def fragmentation(self, mix: Counter[Demand], device: str) -> Fraction:
        weights = {kind: count for kind, count in mix.items() if device in dict(kind.needs)}
        lost = sum(count * self.lost(kind, device) for kind, count in weights.items())
        return Fraction(lost, sum(weights.values()) or 1)


GPU_NEEDS = (0.0, 0.2, 0.25, 0.5, 0.81, 1, 2, 4)
amounts = st.fixed_dictionaries(
    {"CPU": st.sampled_from((0, 1, 2, 3, 6)), "GPU": st.sampled_from(GPU_NEEDS), "TPU": st.sampled_from((0, 0, 0.5, 1))}
)
demands = st.builds(lambda needs, name: demand(SELECTORS[name], **needs), amounts, st.sampled_from(sorted(SELECTORS)))
capacities = st.fixed_dictionaries(
    {"CPU": st.integers(0, 12), "GPU": st.integers(0, 5), "TPU": st.sampled_from((0, 0, 1, 2))}
)


@settings(max_examples=200 * SOAK, deadline=None, print_blob=True, suppress_health_check=list(HealthCheck))
@given(
    nodes=st.lists(st.tuples(capacities, st.sampled_from(("T4", "A10"))), min_size=1, max_size=4),
    kinds=st.lists(st.tuples(demands, st.integers(1, 9)), max_size=6),
    asks=st.lists(st.tuples(demands, st.integers(0, 3)), min_size=1, max_size=8),
)
def test_columns_equal_the_definition(
    nodes: list[tuple[dict[str, float], str]], kinds: list[tuple[Demand, int]], asks: list[tuple[Demand, int]]
) -> None:
    fleet = fleet_of(*(capacity for capacity, _ in nodes), models=tuple(model for _, model in nodes))
    plain = [
        PlainNode(model, {"CPU": int(has["CPU"]) * UNIT}, {name: [UNIT] * int(has[name]) for name in ("GPU", "TPU")})
        for has, model in nodes
    ]
    mix, counted = Mix(), Counter[Demand]()
    known: dict[object, Demand] = {}
    for kind, count in kinds:
        mix.add(kind, count)
        counted[known.setdefault((kind.needs, kind.selector), kind)] += count
    mix = mix.fork()
    for ask, choice in asks:
        rows = [row for row, node in enumerate(plain) if node.fits(ask)]
        expected = []
        for row in rows:
            node = plain[row]
            after = PlainNode(
                node.model, dict(node.free), {name: list(shares) for name, shares in node.devices.items()}
            )
            after.take(ask)
            more = [after.fragmentation(counted, name) - node.fragmentation(counted, name) for name in ("GPU", "TPU")]
            expected.append(OFFSET + sum(floor(each * 1000 / UNIT) for each in more))
        found = costs(fleet, mix, ask, np.array(rows, np.intp))
        if ask.on_devices:
            assert found.tolist() == expected
        else:
            assert all(0 <= ours - theirs <= LEFT_MAX for ours, theirs in zip(found.tolist(), expected, strict=True))
        if rows:
            taken = rows[choice % len(rows)]
            plain[taken].take(ask)
            fleet.take(taken, ask.needs)
