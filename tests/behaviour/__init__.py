"""The specification of the engine as tests; this file has the functions that they share.

Rule: a function here builds a plain value, applies facts to an engine, or reads its state. None contains a scheduling
rule, and every test is readable without the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from stead import solver
from stead.engine.decisions import Decision, Evicted, GroupPlaced, Placed, Refused, Waiting
from stead.engine.engine import Engine
from stead.engine.facts import AskRunning, AskSubmitted, Fact, GroupSubmitted, NodeJoined
from stead.engine.reasons import Reason
from stead.engine.settings import Settings
from stead.language.asks import ASK_ID, Affinity, Ask, Group, Strategy
from stead.language.labels import ANYWHERE, Labels, Requirement, Selector
from stead.language.nodes import Node
from stead.language.resources import UNIT, Resources
from stead.language.taints import Effect, Taint, Toleration


def node(
    id: str,
    cpu: float = 4,
    *,
    labels: Mapping[str, str] | None = None,
    taints: Iterable[Taint] = (),
    ip: str = "",
    name: str = "",
    draining: bool = False,
    **more: Any,
) -> Node:
    """A node with this many CPUs, and `more` of other resources: ``node("n0", 4, GPU=2)``."""
    return Node.of(id, {"CPU": cpu, **more}, labels, taints, ip=ip, name=name, draining=draining)


def ask(
    id: str,
    cpu: float = 0,
    *,
    gpu: float = 0,
    memory: Any = 0,
    selector: Selector = ANYWHERE,
    labels: Mapping[str, str] | None = None,
    **rest: Any,
) -> Ask:
    """An ask with one choice; `rest` are fields of `Ask`."""
    amounts = {"CPU": cpu, "GPU": gpu, "memory": memory}
    return Ask.of(id, amounts, selector, labels=Labels(labels or {}), **rest)


def group(id: str, *members: Ask, strategy: Strategy = Strategy.PACK, **rest: Any) -> Group:
    """A group with one alternative; more of them as the field `fallbacks`."""
    return Group(id, (members, *rest.pop("fallbacks", ())), strategy, **rest)


def on(key: str, *values: str) -> Selector:
    """Nodes (or work) whose label `key` has one of the values."""
    return Selector.all_of(Requirement.is_in(key, *values))


def near(*ids: str, **rest: Any) -> Affinity:
    """Near the work with one of these ids."""
    return Affinity(on(ASK_ID, *ids), **rest)


def apart(*ids: str, **rest: Any) -> Affinity:
    """Apart from the work with these ids."""
    return Affinity(on(ASK_ID, *ids), near=False, **rest)


def near_app(app: str, *topologies: str, **rest: Any) -> Affinity:
    """Near work labelled app=`app`, by node unless topologies are named."""
    return Affinity(on("app", app), topologies=topologies or ("node_id",), **rest)


def apart_from_app(app: str, *topologies: str, **rest: Any) -> Affinity:
    return Affinity(on("app", app), near=False, topologies=topologies or ("node_id",), **rest)


def all_of(*affinities: Affinity) -> tuple[tuple[Affinity, ...], ...]:
    """The field `Ask.affinities` of an ask that must satisfy all of these."""
    return (affinities,)


def taint(key: str, value: str = "", effect: Effect = Effect.NO_SCHEDULE) -> Taint:
    return Taint(key, value, effect)


def tolerates(key: str | None, *values: str, **rest: Any) -> Toleration:
    """A toleration of taints of `key` with one of the values, or with any value when none is given."""
    return Toleration(key, frozenset(values), complement=not values, **rest)


def cluster(*nodes: Node, **settings: Any) -> Engine:
    """An engine that knows these nodes."""
    engine = Engine(Settings(**settings), solver.found())
    engine.apply(*map(NodeJoined, nodes))
    return engine


def zones(*zone_of_each: str, cpu: float = 4, **settings: Any) -> Engine:
    """A cluster of n0, n1, ..., one per letter; "-" is a node without a zone."""
    nodes = [
        node(f"n{index}", cpu, labels={} if zone == "-" else {"zone": zone}) for index, zone in enumerate(zone_of_each)
    ]
    return cluster(*nodes, **settings)


def decide_after(engine: Engine, *facts: Fact) -> list[Decision]:
    """Apply the facts; returns what the engine then decides."""
    engine.apply(*facts)
    return engine.decide()


def submit(engine: Engine, *works: Ask | Group) -> list[Decision]:
    """Submit all of it at once."""
    return decide_after(
        engine, *(GroupSubmitted(work) if isinstance(work, Group) else AskSubmitted(work) for work in works)
    )


def place(engine: Engine, *works: Ask | Group) -> list[str | None]:
    """Submit all of it at once; the node of each ask (or member of a group), None while it is pending."""
    submit(engine, *works)
    asks = [ask for work in works for ask in (work.alternatives[0] if isinstance(work, Group) else (work,))]
    return [engine.placed.get(ask.id) for ask in asks]


def run(engine: Engine, ask: Ask, node: str) -> None:
    """The cluster reports that the ask runs there."""
    engine.apply(AskRunning(ask, node))


def fill(engine: Engine, node: str, cpu: float, id: str = "") -> str:
    """Run work that uses this many CPUs of the node; returns its id."""
    work = ask(id or f"filler-{node}-{len(engine.placed)}", cpu)
    run(engine, work, node)
    return work.id


def candidates(engine: Engine, work: Ask) -> tuple[str, ...]:
    """The nodes that would take an ask with one choice."""
    (found,) = engine.candidates(work)
    return found


def refusals(engine: Engine, work: Ask) -> list[tuple[Reason, int, int]]:
    """(reason, nodes blamed on it, nodes for which it is the only one) for the first choice of an ask."""
    return [(each.reason, each.nodes, each.alone) for each in engine.explain(work).verdicts[0].refusals]


def codes(engine: Engine, work: Ask) -> list[str]:
    """The codes of the reasons that refuse the first choice of an ask, in blame order."""
    return [reason.code for reason, _, _ in refusals(engine, work)]


def placements(decisions: list[Decision]) -> dict[str, str]:
    """Every ask or member that the decisions place, and its node."""
    found: dict[str, str] = {}
    for decision in decisions:
        match decision:
            case Placed(id, node):
                found[id] = node
            case GroupPlaced(_, _, members):
                found.update(members)
    return found


def reported(decisions: list[Decision]) -> dict[str, list[str]]:
    """The asks that were reported as pending, and the codes of the reasons."""
    waits = [decision for decision in decisions if isinstance(decision, Waiting)]
    return {id: [each.reason.code for each in wait.refusals] for wait in waits for id in wait.asks}


def refused(decisions: list[Decision]) -> list[Refused]:
    return [decision for decision in decisions if isinstance(decision, Refused)]


def evicted(decisions: list[Decision]) -> list[str]:
    return [decision.ask for decision in decisions if isinstance(decision, Evicted)]


def free_of(engine: Engine, resource: str = "CPU") -> dict[str, float]:
    """How much of a resource is free on every node."""
    return {id: engine.free(id).get(resource, 0) / UNIT for id in engine.nodes}


def amounts(**given: Any) -> Resources:
    return Resources.of(given)
