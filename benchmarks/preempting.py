"""Preemption on a full cluster: what a preemptor costs, alone and with a thousand others.

Rule: every node is full of work that may go. The reference is the oracle, which looks at one node at a time; it is
timed on some nodes, and its time on all of them is computed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from random import Random
from statistics import median
from typing import Any

from tests.oracle import Oracle
from tests.oracle_preemption import PreemptionOracle

from benchmarks import Row
from stead.engine.decisions import Preempted
from stead.engine.engine import Engine
from stead.engine.facts import AskRunning, AskSubmitted, BudgetChanged, NodeJoined
from stead.engine.settings import Settings
from stead.language.asks import Affinity, Ask, Spread
from stead.language.budgets import Budget
from stead.language.labels import Requirement, Selector
from stead.language.nodes import Node

NODES, PREEMPTORS, ALONE = 5_000, 1_000, 10
WORK_PER_NODE, APPS, BUDGETS = 8, 50, 25
TIMED_NODES = 1
GOAL_MS = 10.0


def on(key: str, value: str) -> Selector:
    return Selector.all_of(Requirement.is_in(key, value))


def equal(_: int) -> dict[str, Any]:
    return {}


def of_their_own_kind(number: int) -> dict[str, Any]:
    return {"labels": {"app": f"boss-{number}"}}


def apart(_: int) -> dict[str, Any]:
    affinity = Affinity(on("app", "boss"), near=False, symmetric=True)
    return {"labels": {"app": "boss"}, "affinities": ((affinity,),)}


def spread(_: int) -> dict[str, Any]:
    return {"labels": {"app": "boss"}, "spreads": (Spread("zone", on("app", "boss")),)}


KINDS: dict[str, tuple[Callable[[int], dict[str, Any]], bool, bool]] = {
    "equal": (equal, False, False),
    "each of another shape": (of_their_own_kind, True, False),
    "each of another shape, with budgets": (of_their_own_kind, True, True),
    "apart from each other": (apart, False, False),
    "spread over zones": (spread, False, False),
}
"""Fields of the preemptors, whether each asks for another amount, and whether there are budgets."""


def preempting() -> list[Row]:
    return [row for name in KINDS for row in _rows(name)]


def _rows(name: str) -> list[Row]:
    fields, differ, has_budgets = KINDS[name]
    random, engine, facts = Random(1), Engine(Settings(patience=None)), _full(has_budgets)
    engine.apply(*facts)
    engine.decide()

    def preemptor(number: int) -> Ask:
        cpu = round(1 + 6 * random.random(), 1) if differ else 2
        return Ask.of(f"boss-{number}", {"CPU": cpu, "memory": "1Gi"}, priority=100, **fields(number))

    reference = _reference(facts, preemptor(-1))
    alone = []
    for number in range(ALONE):
        begun = time.perf_counter()
        engine.apply(AskSubmitted(preemptor(number)))
        made = engine.decide()
        alone.append(time.perf_counter() - begun)
        assert any(isinstance(each, Preempted) for each in made)
    asks = [preemptor(number) for number in range(ALONE, PREEMPTORS)]
    begun = time.perf_counter()
    engine.apply(*map(AskSubmitted, asks))
    decisions = engine.decide()
    each = (time.perf_counter() - begun) / len(asks)
    assert sum(isinstance(made, Preempted) for made in decisions) == len(asks), "there is room for all of them"
    rows = []
    for what, ours in ((f"p50 of {ALONE} alone", median(alone)), (f"each of {PREEMPTORS:,} at once", each)):
        label = f"a preemptor on {NODES:,} full nodes, {name}: {what}"
        rows.append(
            Row(label, ours * 1e3, "ms", reference * 1e3, reference / ours, f"< {GOAL_MS:g} ms", ours * 1e3 < GOAL_MS)
        )
    return rows


def _full(has_budgets: bool) -> list[Any]:
    """Nodes full of work of different priorities."""
    random = Random(2)
    amounts: dict[str, Any] = {"CPU": 2 * WORK_PER_NODE, "memory": "64Gi"}
    facts: list[Any] = [NodeJoined(Node.of(f"n{row}", amounts, {"zone": f"z{row % 10}"})) for row in range(NODES)]
    for row in range(NODES):
        for number in range(WORK_PER_NODE):
            labels, priority = {"app": f"app-{random.randrange(APPS)}"}, random.randrange(5)
            more: dict[str, Any] = {"labels": labels, "priority": priority, "preemptible": True}
            work = Ask.of(f"w{row}-{number}", {"CPU": 2, "memory": "4Gi"}, **more)
            facts.append(AskRunning(work, f"n{row}", float(random.randrange(1_000))))
    if has_budgets:
        facts += [BudgetChanged(Budget(f"b{app}", on("app", f"app-{app}"), 5)) for app in range(BUDGETS)]
    return facts


def _reference(facts: list[Any], ask: Ask) -> float:
    """How long the oracle needs to compare all nodes for one preemptor."""
    oracle = PreemptionOracle(Oracle())
    oracle.world.apply(*facts)
    oracle.budgets = [fact.budget for fact in facts if isinstance(fact, BudgetChanged)]
    begun = time.perf_counter()
    for row in range(TIMED_NODES):
        oracle.room_on(ask, 0, f"n{row}")
    return (time.perf_counter() - begun) / TIMED_NODES * NODES
