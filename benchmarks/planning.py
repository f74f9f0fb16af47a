"""Plans: stead's planner beside Ray's own (v2), on the same demand in one run.

Rule: both get the demands that both understand: resources and label selectors. Which work the nodes of a plan would run
is what stead's engine decides, for both plans. Times are of the processor, the best of some: the machine is shared.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from benchmarks import Row, clusters
from stead.engine.engine import Engine
from stead.engine.facts import AskSubmitted, NodeJoined, NodeUsed
from stead.language.asks import Ask, Choice
from stead.language.labels import Labels
from stead.language.nodes import Node, NodeTemplate
from stead.language.resources import UNIT, Amount, Resources
from stead.planner.planning import plan
from stead.planner.trials import settle

T = TypeVar("T")

SIZES = ((1_000, 200), (10_000, 200))
"""Pieces of pending work, and how many shapes they have."""
NODES, KINDS = 1_000, 20
GOAL_MS = 500


def planning() -> list[Row]:
    rows = []
    for pending, shapes in SIZES:
        rows += _beside_ray(pending, shapes)
    return rows


def _beside_ray(pending: int, shapes: int) -> list[Row]:
    catalog, nodes = kinds(KINDS), clusters.nodes(NODES)
    wants = clusters.choices(shapes)
    asks = [Ask(f"ask-{number}", wants[number % shapes]) for number in range(pending)]
    engine = full(nodes, asks)
    ours, found = best_of(5, lambda: plan(engine, catalog))
    counts: Counter[str] = Counter()
    for each in found.launches:
        counts[each.template.name] += each.count
    request = rays_request(catalog, nodes, asks)
    theirs, reply = best_of(1, lambda: rays_plan(request))
    rays = Counter({each.instance_type: each.count for each in reply.to_launch})
    name = f"plan for {pending:,} asks of {shapes} shapes, {NODES:,} nodes, {KINDS} kinds"
    goal, met = (f"< {GOAL_MS} ms", ours * 1e3 < GOAL_MS) if pending == SIZES[-1][0] else ("", None)
    promised = pending - sum(len(each.ids) for each in found.unserved)
    rays_promised = pending - len(reply.infeasible_resource_requests)
    waves = f"{1 + max(each.wave for each in found.launches)} waves"
    served, rays_served = (pending - left(engine, catalog, each) for each in (counts, rays))
    return [
        Row(f"{name}: time", ours * 1e3, "ms", theirs * 1e3, theirs / ours, goal, met),
        _compared(f"{name}: nodes", counts.total(), "nodes", rays.total()),
        _compared(f"{name}: price", price(catalog, counts), "per hour", price(catalog, rays)),
        Row(
            f"{name}: served, as each plan says",
            promised,
            "asks",
            rays_promised,
            promised / rays_promised,
            "",
            None,
            waves,
        ),
        Row(f"{name}: served if all nodes join at once", served, "asks", rays_served, served / rays_served, "", None),
    ]


def _compared(name: str, ours: float, unit: str, theirs: float) -> Row:
    return Row(name, ours, unit, theirs, theirs / ours, "", None)


def best_of(repeats: int, work: Callable[[], T]) -> tuple[float, T]:
    """The shortest time of the processor, and what it returned."""

    def timed() -> tuple[float, T]:
        start = time.process_time()
        found = work()
        return time.process_time() - start, found

    return min((timed() for _ in range(repeats)), key=lambda each: each[0])


def kinds(count: int, seed: int = 5) -> list[NodeTemplate]:
    """Kinds of nodes with prices: zones, types, spot or on demand; one in five has GPUs."""
    dice = random.Random(seed)
    found = []
    for index in range(count):
        cpus, gpus, is_spot = dice.choice((8, 16, 32, 64)), 4 if index % 5 == 4 else 0, index % 2 == 1
        labels = {
            "zone": clusters.ZONES[index % 3],
            "type": "g5.12xlarge" if gpus else clusters.TYPES[index // 3 % 3],
            "team": dice.choice(clusters.TEAMS),
            "market": "spot" if is_spot else "on-demand",
        }
        capacity: dict[str, Amount] = {"CPU": cpus, "memory": f"{cpus * dice.choice((2, 4, 8))}Gi"}
        if gpus:
            capacity["GPU"] = gpus
        price = cpus * 0.04 * (1 + 0.3 * dice.random()) * (0.4 if is_spot else 1) + gpus
        resources = Resources.of(capacity)
        found.append(NodeTemplate(f"kind-{index}", resources, Labels(labels), count_max=1_000, price=round(price, 2)))
    return found


def full(nodes: Sequence[Node], asks: Sequence[Ask]) -> Engine:
    """A cluster without room, and pending work."""
    engine = clusters.joined(list(nodes))
    engine.apply(*(NodeUsed(node.id, node.capacity) for node in nodes), *map(AskSubmitted, asks))
    engine.decide()
    return engine


def left(engine: Engine, catalog: Sequence[NodeTemplate], counts: Mapping[str, int]) -> int:
    """How much work stays pending if these nodes join at once."""
    then = engine.fork()
    for kind in catalog:
        ids = (f"{kind.name}/{number}" for number in range(counts.get(kind.name, 0)))
        then.apply(*(NodeJoined(kind.node(id)) for id in ids))
    settle(then)
    return len(then.waiting)


def price(catalog: Sequence[NodeTemplate], counts: Mapping[str, int]) -> float:
    return sum(kind.price * counts.get(kind.name, 0) for kind in catalog)


# Ray


def rays_request(catalog: Sequence[NodeTemplate], nodes: Sequence[Node], asks: Sequence[Ask]) -> Any:
    """The same cluster, kinds and work for Ray's planner."""
    from ray.autoscaler.v2.instance_manager.config import NodeTypeConfig
    from ray.autoscaler.v2.scheduler import SchedulingRequest
    from ray.autoscaler.v2.schema import AutoscalerInstance
    from ray.core.generated.autoscaler_pb2 import NodeState, ResourceRequestByCount
    from ray.core.generated.instance_manager_pb2 import Instance, NodeKind

    types = {
        kind.name: NodeTypeConfig(
            kind.name, 0, kind.count_max, resources=_amounts(kind.capacity), labels=dict(kind.labels)
        )
        for kind in catalog
    }
    types["there"] = NodeTypeConfig("there", 0, len(nodes), resources=_amounts(nodes[0].capacity))
    there = [
        AutoscalerInstance(
            node.id,
            NodeState(total_resources=_amounts(node.capacity), labels=dict(node.labels)),
            Instance(
                instance_id=node.id, node_id=node.id, instance_type="there", status=Instance.RAY_RUNNING,
                node_kind=NodeKind.WORKER,
            ),
        )
        for node in nodes
    ]  # fmt: skip
    demand = Counter(ask.choices[0] for ask in asks)
    requests = [ResourceRequestByCount(request=rays_demand(choice), count=count) for choice, count in demand.items()]
    return SchedulingRequest(True, types, resource_requests=requests, current_instances=there)


def rays_demand(choice: Choice) -> Any:
    """One piece of work as a demand of Ray's autoscaler."""
    from ray.core.generated.autoscaler_pb2 import ResourceRequest
    from ray.core.generated.common_pb2 import LabelSelector, LabelSelectorConstraint, LabelSelectorOperator

    (term,) = choice.selector.terms
    constraints = [
        LabelSelectorConstraint(
            label_key=each.key,
            operator=LabelSelectorOperator.LABEL_OPERATOR_NOT_IN
            if each.complement
            else LabelSelectorOperator.LABEL_OPERATOR_IN,
            label_values=sorted(each.values),
        )
        for each in term
    ]
    selectors = [LabelSelector(label_constraints=constraints)] if constraints else []
    return ResourceRequest(resources_bundle=_amounts(choice.resources), label_selectors=selectors)


def rays_plan(request: Any) -> Any:
    from ray.autoscaler.v2.scheduler import ResourceDemandScheduler

    return ResourceDemandScheduler().schedule(request)


def _amounts(resources: Resources) -> dict[str, float]:
    return {name: units / UNIT for name, units in resources.items()}
