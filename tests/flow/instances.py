"""Small random batches, each made from a random seed.

Rule: a kind and a random seed determine the instance, so a failure can be repeated by the command that it prints.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from random import Random

from stead.engine.facts import AskRunning, AskSubmitted, ClockAdvanced, Fact, NodeDrained, NodeJoined
from stead.engine.settings import Settings, Unscheduled
from stead.language.asks import Affinity, Ask, Choice, PolicyName, Preference
from stead.language.labels import ANYWHERE, Labels, Requirement, Selector
from stead.language.nodes import Node
from stead.language.resources import UNIT, Resources
from tests.flow.literal import Batch
from tests.oracle import Oracle
from tests.strategies_for_tests import Maker

SEED = "STEAD_FLOW_SEED"
SOAK = os.environ.get("STEAD_SOAK") == "1" or os.environ.get("HYPOTHESIS_PROFILE") == "soak"
PARTS = 10
"""Seeds are tried in parts, so that several processes can share them."""

EXACT = ("equal",)
"""Where flow is exact: all asks of a batch need the same, have one priority and one choice."""
OTHERS = ("unequal", "several", "devices", "priorities", "choices", "everything")

CAPACITIES = {
    "CPU": (2, 3, 1, 4, 6, 0),
    "memory": (4096, 2048, 8192, 1024, 0),
    "disk": (2, 1, 4, 0),
    "GPU": (1, 2, 3, 0),
}
NEEDS = {"CPU": (1, 2, 0.5, 1.5, 0), "memory": (1024, 512, 0, 1536), "disk": (0, 0, 1, 2), "GPU": (1, 0.5, 0.25, 0, 2)}
EQUAL_NEEDS: tuple[dict[str, float], ...] = ({"CPU": 1}, {"CPU": 0.5}, {"CPU": 1, "memory": 1024}, {"memory": 512}, {})
RESOURCES_OF = {
    "equal": ("CPU", "memory"),
    "unequal": ("CPU",),
    "several": ("CPU", "memory", "disk"),
    "devices": ("CPU", "GPU"),
    "priorities": ("CPU", "memory"),
    "choices": ("CPU", "memory"),
    "everything": ("CPU", "memory", "disk", "GPU"),
}


@dataclass(frozen=True)
class Instance:
    """Nodes, the work that ran on them before, and asks with their submission times."""

    kind: str
    seed: int
    policy: PolicyName
    settings: Settings
    nodes: tuple[Node, ...]
    running: tuple[tuple[Ask, str], ...]
    asks: tuple[Ask, ...]
    moments: tuple[float, ...]
    now: float

    @property
    def facts(self) -> list[Fact]:
        facts: list[Fact] = [NodeJoined(node) for node in self.nodes]
        facts += [AskRunning(ask, node) for ask, node in self.running]
        facts += [NodeDrained(node.id) for node in self.nodes if node.draining]
        for ask, moment in zip(self.asks, self.moments, strict=True):
            facts += [ClockAdvanced(moment), AskSubmitted(ask)]
        return [*facts, ClockAdvanced(self.now)]

    def oracle(self) -> Oracle:
        """The cluster before the batch."""
        oracle = Oracle()
        oracle.apply(*self.facts)
        return oracle

    @cached_property
    def batch(self) -> Batch:
        waited = {ask.id: self.now - moment for ask, moment in zip(self.asks, self.moments, strict=True)}
        return Batch(self.oracle(), self.asks, self.policy, self.settings.unscheduled, waited)


def instance(kind: str, seed: int, policy: PolicyName | None = None) -> Instance:
    random = Random(f"{kind} {seed}")
    maker = Maker(random.randrange)
    nodes = tuple(_node(maker, f"n{index}", RESOURCES_OF[kind]) for index in range(2 + maker.below(6)))
    running = _running(maker, nodes)
    needs = Resources.of(maker.one(EQUAL_NEEDS)) if kind == "equal" else None
    classes = [_ask(maker, kind, needs) for _ in range(1 + maker.below(5))]
    asks = tuple(replace(maker.one(classes), id=f"w{index}") for index in range(1 + maker.below(12)))
    if kind in ("priorities", "everything"):
        levels = 1 + maker.below(3)
        asks = tuple(replace(ask, priority=maker.below(levels)) for ask in asks)
        ranks = {priority: rank for rank, priority in enumerate(sorted({ask.priority for ask in asks}))}
        asks = tuple(replace(ask, priority=ranks[ask.priority]) for ask in asks)
    chosen = policy or maker.one((PolicyName.FLOW, PolicyName.FLOW, PolicyName.FLOW_PACK))
    moments = sorted(float(maker.one((0, 0, 1, 30, 200, 1500))) for _ in asks)
    return Instance(
        kind,
        seed,
        chosen,
        Settings(patience=None, unscheduled=maker.one(tuple(Unscheduled))),
        nodes,
        running,
        tuple(replace(ask, policy=chosen) for ask in asks),
        tuple(moments),
        max(moments) + maker.one((0, 5, 100)),
    )


def _node(maker: Maker, id: str, resources: Sequence[str]) -> Node:
    capacity = {name: values for name, values in CAPACITIES.items() if name in resources}
    node = maker.node(id)
    return replace(node, capacity=maker.resources(capacity))


def _running(maker: Maker, nodes: Sequence[Node]) -> tuple[tuple[Ask, str], ...]:
    """Some nodes are partly used; on a few the cluster runs more than fits, or work with symmetric anti-affinity."""
    running: list[tuple[Ask, str]] = []
    for node in nodes:
        if not maker.rarely(2):
            continue
        share = maker.one((0.5, 0.25, 1, 1.25))
        used = {name: int(units * share) for name, units in node.capacity.items() if name != "GPU"}
        if node.capacity.get("GPU") and maker.rarely(2):
            used["GPU"] = maker.one((UNIT // 2, UNIT))
        lonely = Affinity(_is("app", "db"), near=False, symmetric=True, namespaces=frozenset())
        affinities = ((lonely,),) if maker.rarely(6) else ()
        running.append((Ask(f"ran-{node.id}", (Choice(Resources(used)),), affinities=affinities), node.id))
    return tuple(running)


def _is(key: str, *values: str) -> Selector:
    return Selector.all_of(Requirement.is_in(key, *values))


def _ask(maker: Maker, kind: str, needs: Resources | None) -> Ask:
    """One class of work: everything except id, priority and policy."""
    return Ask(
        "",
        tuple(_choice(maker, kind, needs) for _ in range(_choice_count(maker, kind))),
        tuple(maker.some(maker.toleration, 1, 2) if maker.rarely() else ()),
        prefers=tuple(_preference(maker) for _ in range(maker.one((0, 0, 1, 2, 3)))),
        labels=Labels({"app": "db"} if maker.rarely(4) else {}),
    )


def _choice_count(maker: Maker, kind: str) -> int:
    return maker.one((1, 2, 3)) if kind in ("choices", "everything") else 1


def _choice(maker: Maker, kind: str, needs: Resources | None) -> Choice:
    amounts = {name: values for name, values in NEEDS.items() if name in RESOURCES_OF[kind]}
    return Choice(needs if needs is not None else maker.resources(amounts), _selector(maker))


def _selector(maker: Maker) -> Selector:
    match maker.below(6):
        case 0 | 1:
            return ANYWHERE
        case 2:
            return _is("zone", *maker.one((("a",), ("b",), ("a", "b"))))
        case 3:
            return _is("node_id", *(f"n{maker.below(2)}" for _ in range(2)))
        case _:
            return maker.node_selector(by_id=False)


def _preference(maker: Maker) -> Preference:
    wants = (
        _is("zone", "a"),
        _is("rack", "r1"),
        _is("node_id", f"n{maker.below(4)}"),
        maker.node_selector(by_id=False),
    )
    return Preference(maker.one(wants), maker.one((1, 10, 50, 99, 100)))


def seeds(count: int, count_in_soak: int, part: int) -> Iterator[int]:
    """The random seeds of a part, or only the one named in the environment."""
    named = os.environ.get(SEED)
    if named is not None:
        yield from (int(named),) if int(named) % PARTS == part else ()
    else:
        yield from range(part, count_in_soak if SOAK else count, PARTS)


@contextmanager
def replayable(seed: int) -> Iterator[None]:
    """A failure in this block says how to repeat it."""
    try:
        yield
    except BaseException as error:
        test = os.environ.get("PYTEST_CURRENT_TEST", "tests/flow").partition(" ")[0]
        error.add_note(f"replay: {SEED}={seed} .venv/bin/python -m pytest '{test}'")
        raise
