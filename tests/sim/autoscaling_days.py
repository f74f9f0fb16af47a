"""Days of virtual time for the autoscaler: scenarios from seeds, and checkers that watch every step.

Rule: the same seed gives the same days. Load follows the time of day; spot nodes are taken back in storms; kinds are
out of stock; launches fail, hang and join incomplete; the scaler restarts at random steps.
"""

from __future__ import annotations

import math
import random
from bisect import bisect_right
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from itertools import accumulate

from stead.controller import Controller
from stead.engine.engine import Engine
from stead.engine.facts import AskSubmitted
from stead.engine.scaling.decisions import LaunchEnded, NodeLost, NodeRequested, ScaleDecision
from stead.engine.settings import Settings
from stead.language.asks import Ask
from stead.language.labels import Labels
from stead.language.nodes import NodeId, NodeTemplate
from stead.language.resources import UNIT, Resources
from stead.language.taints import Taint, Toleration
from stead.planner.plans import Limits, Quota
from stead.planner.scaler import ScaleSettings
from stead.sim.autoscaler import SimAutoscaler
from stead.sim.cluster import SimCluster
from stead.sim.scaling import Fault, FaultKind, Scaling
from stead.sim.scenario import Scenario

HOUR = 3600.0
DAY = 24 * HOUR
SETTINGS = ScaleSettings(
    idle_s=300, settle_s=2, join_s=600, retry_s=30, retry_max_s=1800, stock_out_s=300, launches_per_minute=30
)
LAUNCH_S = {"spot": 60.0, "normal": 120.0, "gpu": 240.0}
RESTART_SHARE = 0.01
"""The share of steps after which the scaler restarts."""


def catalog(most: int) -> tuple[NodeTemplate, ...]:
    """Cheap nodes that may be taken back, nodes that are always there, and nodes with GPUs."""
    return (
        NodeTemplate("spot", Resources.of(CPU=8), Labels({"zone": "a"}), (), 0, most, 0.3),
        NodeTemplate("normal", Resources.of(CPU=8), Labels({"zone": "b"}), (), 1, most, 1.0),
        NodeTemplate("gpu", Resources.of(CPU=8, GPU=4), Labels({"zone": "b"}), (Taint("gpu", "true"),), 0, most, 8.0),
    )


def work(rng: random.Random, days: float, per_day: int) -> tuple[list[tuple[float, AskSubmitted]], dict[str, float]]:
    """Asks with their times and durations: many at noon, few at midnight, and now and then a burst."""
    moments: list[tuple[float, AskSubmitted]] = []
    durations: dict[str, float] = {}
    now, number = 0.0, 0
    while True:
        busy = 1.0 - 0.9 * math.cos(2 * math.pi * now / DAY)
        now += rng.expovariate(per_day * busy / DAY)
        if now >= days * DAY:
            return moments, durations
        is_gpu = rng.random() < 0.1
        for _ in range(rng.randrange(4, 20) if rng.random() < 0.03 else 1):
            id, number = f"w{number}", number + 1
            needs = {"GPU": rng.choice([1, 1, 2, 4])} if is_gpu else {"CPU": rng.choice([1, 1, 2, 4])}
            tolerations = (Toleration("gpu"),) if is_gpu else ()
            moments.append((now, AskSubmitted(Ask.of(id, needs, tolerations=tolerations))))
            durations[id] = rng.uniform(300, 5400)


def faults(rng: random.Random, days: float, are_many: bool) -> list[Fault]:
    """Spot storms, stock-outs, and launches that go wrong."""
    found: list[Fault] = []
    now = 0.0
    while are_many:
        now += rng.expovariate(8 / DAY)
        if now >= days * DAY:
            break
        kind = rng.choice(["spot", "spot", "spot", "gpu"])
        fault = rng.choice(list(FaultKind))
        if fault is FaultKind.LOSS:
            found += [Fault(now + 60 * turn, "spot", fault, math.inf, rng.choice([1, 2, None])) for turn in range(3)]
        else:
            found.append(Fault(now, kind, fault, now + rng.uniform(300, 2 * HOUR)))
    return sorted(found, key=lambda fault: fault.begin)


def days_of(seed: int, days: float = 2.0, per_day: int = 200, most: int = 30, are_many: bool = True) -> Scenario:
    """The days of a seed. With a small `most`, limits are in the way."""
    rng = random.Random(seed)
    moments, durations = work(rng, days, per_day)
    quotas = (Quota("zone-a", Labels({"zone": "a"}), max(1, most - 1)),)
    scaling = Scaling(catalog(most), SETTINGS, Limits(quotas), LAUNCH_S, tuple(faults(rng, days, are_many)))
    return Scenario(f"days-{seed}", Settings(), tuple(moments), durations, None, scaling)


@dataclass
class Watched:
    """A run, with what the checkers measured.

    Attributes:
        waits: Since when and how long each piece of work was pending, each time.
        launches: When nodes of each kind were requested.
        setbacks: When launches failed and nodes were lost.
        below: The longest time with fewer nodes than a kind's minimum.
        restarts: How often the scaler restarted.
        spent: What all nodes cost.
    """

    scenario: Scenario
    waits: list[tuple[float, float, str]] = field(default_factory=list)
    launches: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    setbacks: list[float] = field(default_factory=list)
    below: float = 0.0
    restarts: int = 0
    spent: float = 0.0
    left: tuple[str, ...] = ()
    pending: tuple[str, ...] = ()
    counts: Counter[str] = field(default_factory=Counter)

    @property
    def submitted(self) -> list[tuple[float, AskSubmitted]]:
        return [(at, fact) for at, fact in self.scenario.moments if isinstance(fact, AskSubmitted)]

    def longest_wait(self) -> float:
        """The longest time that work was pending although a kind that can run it had no fault: only the kind `normal`
        never has one, and it can run all work without GPUs."""
        assert self.scenario.scaling is not None
        bad = [(fault.begin, fault.end) for fault in self.scenario.scaling.faults if fault.kind == "gpu"]
        gpus = {fact.ask.id for _, fact in self.submitted if "GPU" in fact.ask.choices[0].resources}
        return max(
            length
            for begin, length, id in self.waits
            if id not in gpus or not any(first < begin + length and begin < last + HOUR for first, last in bad)
        )

    def demand(self, resource: str = "CPU") -> tuple[list[float], list[float]]:
        """How much the work needs over time if it ran at once: times, and the amount from then on."""
        changes: dict[float, float] = defaultdict(float, {0.0: 0.0})
        for moment, fact in self.submitted:
            amount = fact.ask.choices[0].resources.get(resource, 0) / UNIT
            changes[moment] += amount
            changes[moment + self.scenario.durations[fact.ask.id]] -= amount
        times = sorted(changes)
        return times, list(accumulate(changes[at] for at in times))

    def least_cost(self) -> float:
        """A lower bound for the cost of any fleet that runs all work as soon as it is submitted: it knows the future,
        launches at once, pays by the second, never loses a node, moves work as it likes to fill nodes, and always pays
        the lowest price of the kinds that fit."""
        assert self.scenario.scaling is not None
        kinds = {kind.name: kind for kind in self.scenario.scaling.catalog}
        normal, (times, amounts) = kinds["normal"], self.demand()
        always = normal.count_min * normal.price * times[-1]
        spot = _node_seconds(times, [amount - 8 * normal.count_min for amount in amounts], 8)
        gpus = _node_seconds(*self.demand("GPU"), 4)
        return (always + spot * kinds["spot"].price + gpus * kinds["gpu"].price) / HOUR

    def growth(self, begin: float, end: float) -> float:
        """By how many CPUs the demand grew at most in this time, from its lowest point before."""
        times, amounts = self._demand
        first, last = max(0, bisect_right(times, begin) - 1), bisect_right(times, end)
        lowest, most = math.inf, 0.0
        for amount in amounts[first:last]:
            lowest = min(lowest, amount)
            most = max(most, amount - lowest)
        return most

    def worst_thrash(self) -> float:
        """The most launches of one kind in one stabilisation window beyond what the demand grew by, and beyond those
        that replaced failed launches and lost nodes."""
        self._demand = self.demand()
        window, worst = SETTINGS.idle_s, 0.0
        for kind, moments in self.launches.items():
            if kind == "gpu":
                continue  # its demand is not measured in CPUs
            for index, end in enumerate(moments):
                begin = end - window
                count = index + 1 - bisect_right(moments, begin)
                setbacks = sum(begin - SETTINGS.join_s <= at <= end for at in self.setbacks)
                worst = max(worst, count - setbacks - math.ceil(self.growth(begin - 60, end) / 8))
        return worst


def _node_seconds(times: list[float], amounts: list[float], each: float) -> float:
    """How long the fewest whole nodes for these amounts run together."""
    spans = zip(times, times[1:], amounts, strict=False)
    return sum(max(0, math.ceil(round(amount / each, 6))) * (end - begin) for begin, end, amount in spans)


def watch(scenario: Scenario, seed: int) -> Watched:
    """Run the days with restarts at random steps, and check limits after every step."""
    assert scenario.scaling is not None
    rng, found = random.Random(seed), Watched(scenario)
    cluster = SimCluster(scenario)
    controller = Controller(cluster, Engine(scenario.settings))
    autoscaler = SimAutoscaler(scenario.scaling, cluster, controller, set[NodeId]())
    since: dict[str, float] = {}
    below: float | None = None
    while cluster.advance(_earliest(controller.next_moment, autoscaler.next_moment)):
        controller.step()
        now, decisions = cluster.now(), autoscaler.step()
        waiting = controller.engine.waiting
        for id in since.keys() - set(waiting):
            found.waits.append((since[id], now - since.pop(id), id))
        since |= {id: now for id in waiting if id not in since}
        _note(found, decisions, now)
        _check_limits(scenario.scaling, autoscaler)
        normal = (node for node in controller.engine.nodes.values() if node.labels.get("zone") == "b")
        usable = sum("GPU" not in node.capacity for node in normal)
        below = None if usable >= scenario.scaling.catalog[1].count_min else now if below is None else below
        found.below = max(found.below, 0.0 if below is None else now - below)
        if rng.random() < RESTART_SHARE:
            autoscaler.restart()
            found.restarts += 1
    found.spent = sum(kind.spent for kind in autoscaler.counts())
    found.left = tuple(instance.kind for instance in autoscaler.provider.listed())
    found.pending = tuple(controller.engine.waiting)
    assert {instance.node for instance in autoscaler.provider.listed()} == set(controller.engine.nodes)
    return found


def _earliest(*moments: float | None) -> float | None:
    return min((moment for moment in moments if moment is not None), default=None)


def _note(found: Watched, decisions: list[ScaleDecision], now: float) -> None:
    for decision in decisions:
        found.counts[type(decision).__name__] += 1
        match decision:
            case NodeRequested(_, template):
                found.launches[template.name].append(now)
            case LaunchEnded() | NodeLost():
                found.setbacks.append(now)


def _check_limits(scaling: Scaling, autoscaler: SimAutoscaler) -> None:
    """Never more nodes than the maximum of a kind, and than a quota allows."""
    counts = Counter(instance.kind for instance in autoscaler.provider.listed())
    for kind in scaling.catalog:
        assert counts[kind.name] <= kind.count_max
    for quota in scaling.limits.quotas:
        in_quota = (kind.name for kind in scaling.catalog if quota.labels.items() <= kind.labels.items())
        assert sum(counts[name] for name in in_quota) <= (quota.nodes_max or 0)
