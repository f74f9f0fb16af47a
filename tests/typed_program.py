"""A program as a user with a type checker writes it: mypy checks every line, and `test_public_names.py` runs a part.

Rule: every result has an explicit type, so that a function that returns Any, or another type, is noticed here.
"""

from __future__ import annotations

import ray
from ray.util.placement_group import PlacementGroup

import stead
from stead.engine.decisions import Decision, Placed
from stead.engine.facts import AskSubmitted, GroupSubmitted, NodeJoined
from stead.ray import LocalNode, local_cluster


@stead.remote(num_cpus=1, tolerations={"gpu_node": stead.Exists()}, scheduling_strategy="gpu_type in [A100]")
def train(epochs: int) -> float:
    return 1.0 / epochs


@stead.remote
def double(number: float) -> float:
    return 2 * number


class Cache:
    def __init__(self, size: int) -> None:
        self.size = size


Caches: stead.RemoteClass[Cache] = stead.remote(labels={"app": "cache"}, spread={"zone": 1}, policy="pack")(Cache)


def on_ray() -> list[str]:
    """Only checked: it needs a cluster."""
    with local_cluster([{"num_cpus": 2}, {"num_cpus": 1, "taints": {"gpu_node": "true"}, "memory": "2Gi"}]) as cluster:
        stead.init(cluster.address, policy="pack", namespace="typed", log_to_driver=False)
        added: LocalNode = cluster.add_node(num_cpus=1, labels={"zone": "b"})
        one: float = stead.get(train.remote(3), timeout=10)
        many: list[float] = stead.get([double.remote(one), double.options(num_cpus=0.5, deadline_s=60).remote(2.0)])
        function: stead.RemoteFunction[[int], float] = train
        cache = Caches.options(name="cache").remote(size=10)
        near = stead.actor_affinity([stead.affinity(cache), stead.label_not_in("app", ["web"])], topology="zone")
        zone = stead.node_affinity("zone=a")
        beside = function.options(scheduling_strategy=[near, zone], policy=stead.PolicyName.PACK)
        ref: ray.ObjectRef[float] = beside.remote(1)
        group: PlacementGroup = stead.placement_group(
            [{"GPU": 1.0}], tolerations={"gpu_type": stead.In("A100")}, fallback_strategy=[{"bundles": [{"CPU": 1.0}]}]
        )
        reasons: list[stead.Explanation] = [stead.why(each) for each in (ref, group, cache, "train")]
        changed: stead.Changed = stead.taint(added.node_id, {"gpu_node": "true"}, stead.Effect.NO_EXECUTE, for_s=60)
        unconfirmed: tuple[str, ...] = stead.drain(changed, evict=True, rate=10).unconfirmed
        nodes: list[stead.NodeView] = stead.nodes({"zone": "in(a,b)"})
        events: list[stead.Event] = [each for each in stead.events() if each.kind is stead.EventKind.WAITING]
        try:
            stead.get(ref)
        except stead.Unplaced as error:
            return [error.explanation]
        stead.remove_placement_group(group)
        return [*map(str, many), *map(str, reasons), *unconfirmed, *(node.title for node in nodes), *map(str, events)]


def in_the_engine() -> list[stead.Explanation]:
    node: stead.Node = stead.Node.of("gpu-1", {"CPU": 4, "memory": "8Gi"}, {"zone": "a"}, [stead.Taint("gpu_node")])
    selector: stead.Selector = stead.parse_selector("zone in [a, b]")
    ask: stead.Ask = stead.Ask.of(
        "web",
        {"CPU": 0.5},
        selector,
        tolerations=(stead.Toleration("gpu_node"),),
        labels={"app": "web"},
        policy="pack",
    )
    group = stead.Group("ring", ((stead.Ask.of("ring/0", {"CPU": 8}),),), stead.Strategy.STRICT_PACK)
    engine: stead.Engine = stead.Engine(stead.Settings(patience=None))
    engine.apply(NodeJoined(node), AskSubmitted(ask), GroupSubmitted(group))
    decisions: list[Decision] = engine.decide()
    placed: list[Placed] = [each for each in decisions if isinstance(each, Placed)]
    zone: str | None = node.labels.get("zone")
    units: int = node.capacity.get("GPU")
    assert [each.node for each in placed] == ["gpu-1"] and zone == "a" and units == 0
    return [engine.explain(id) for id in engine.waiting]
