"""What the tests of preemption share: full nodes, and what decisions say about evictions.

Rule: a function here builds a plain value, applies facts to an engine, or reads decisions.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from stead.engine.decisions import Decision, NominationEnded, Placed, Preempted
from stead.engine.engine import Engine
from stead.engine.facts import AskEnded, AskRunning
from stead.language.asks import Ask
from tests.behaviour import ask, cluster, decide_after, node


def low(id: str, cpu: float = 2, priority: int = 0, **rest: Any) -> Ask:
    """Work that may be evicted."""
    options: dict[str, Any] = {"preemptible": True, "labels": {"app": "low"}} | rest
    return ask(id, cpu, priority=priority, **options)


def boss(id: str = "boss", cpu: float = 2, priority: int = 10, **rest: Any) -> Ask:
    """Work that others are evicted for."""
    return ask(id, cpu, priority=priority, **rest)


def running(*works: Ask, on: str, started: float = 1.0) -> list[AskRunning]:
    return [AskRunning(work, on, started) for work in works]


def full(*nodes: str, cpu: float = 4, each: float = 2, priority: int = 0) -> Engine:
    """Nodes that work of a low priority fills: `a-0`, `a-1` on `a`, and so on, started at 0, 1, ..."""
    engine = cluster(*(node(name, cpu, labels={"zone": name[0]}) for name in nodes))
    for name in nodes:
        for index in range(int(cpu // each)):
            engine.apply(AskRunning(low(f"{name}-{index}", each, priority), name, started=float(index)))
    return engine


def victims(decisions: Iterable[Decision]) -> list[str]:
    return [victim for each in decisions if isinstance(each, Preempted) for victim in each.victims]


def nominated(decisions: Iterable[Decision]) -> dict[str, str]:
    """Who waits for which node, by these decisions."""
    return {each.ask: each.node for each in decisions if isinstance(each, Preempted)}


def gave_up(decisions: Iterable[Decision]) -> list[str]:
    """Whose place is not kept any more."""
    return [each.ask for each in decisions if isinstance(each, NominationEnded)]


def placed(decisions: Iterable[Decision]) -> dict[str, str]:
    return {each.ask: each.node for each in decisions if isinstance(each, Placed)}


def end(engine: Engine, *ids: str) -> list[Decision]:
    return decide_after(engine, *map(AskEnded, ids))
