"""A simulated cluster with the report of an autoscaler, for tests of what people see of it.

`report_scaling(desk, *kinds)` makes it: nodes called `cpu-1` and `cpu-2` are of the kind `cpu`, a draining node
is retired, and a node without work is idle; two nodes of the first kind are launched, and the last kind rests.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from stead.engine.scaling.decisions import LaunchEnded, NodeArrived, NodeRequested, ScaleDecision
from stead.language.labels import Labels
from stead.language.nodes import NodeTemplate
from stead.language.resources import Resources
from stead.language.taints import Effect, Taint
from stead.operate.scale import MoveView, ScaleView, scale_view
from stead.operate.snapshot import Query
from stead.planner.instances import Instance, InstanceState
from stead.planner.planning import plan
from stead.planner.plans import Limits, Quota, Stock
from stead.planner.scaler import Rest, Scaler, ScaleSettings, Standing
from stead.sim.desk import SimDesk
from tests.serving import BEGAN

CPU = NodeTemplate("cpu", Resources.of(CPU=8, memory=2**34), Labels({"zone": "a"}), price=1.5, count_max=10)
GPU = NodeTemplate("gpu", Resources.of(CPU=8, GPU=4), taints=(Taint("gpu_node", "true"),), price=10.0, count_max=2)
ATLAS = (
    NodeTemplate(
        "cpu-b",
        Resources.of(CPU=32, memory=2**37),
        Labels({"zone": "eu-1b", "type": "cpu", "disk": "ssd"}),
        price=1.25,
        count_min=2,
        count_max=8,
    ),
    NodeTemplate(
        "spot-b",
        Resources.of(CPU=16, memory=2**36),
        Labels({"zone": "eu-1b", "type": "cpu", "market": "spot"}),
        (Taint("spot", "true", Effect.PREFER_NO_SCHEDULE),),
        price=0.22,
        count_max=20,
    ),
    NodeTemplate(
        "a100-c",
        Resources.of(CPU=48, GPU=8, memory=2**39),
        Labels({"zone": "eu-1c", "type": "gpu", "gpu": "A100"}),
        (Taint("gpu", "true"),),
        price=27.2,
        count_max=4,
    ),
    NodeTemplate(
        "l4-c",
        Resources.of(CPU=24, GPU=4, memory=96 * 2**30),
        Labels({"zone": "eu-1c", "type": "gpu", "gpu": "L4", "market": "spot"}),
        (Taint("gpu", "true"),),
        price=1.9,
        count_max=6,
    ),
)
"""Kinds for `scenarios/pages.yaml`."""


def report_scaling(desk: SimDesk, *kinds: NodeTemplate) -> ScaleView:
    """Report what an autoscaler with these kinds would see now; returns what the desk then shows."""
    snapshot = desk.snapshot()
    engine, now = snapshot.engine, desk.now() - BEGAN
    busy = set(engine.placed.values())
    kind_of = {id: each.name for id in engine.nodes for each in kinds if id.rpartition("-")[0] == each.name}
    first, last = kinds[0].name, kinds[-1].name
    scaler = Scaler(kinds, ScaleSettings(join_s=300.0), Limits((Quota("spare", nodes_max=40),), 200.0))
    scaler.stock = Stock(kind_of, {first: 1})
    had = sum(kind == last for kind in kind_of.values())
    scaler.plan = plan(engine, (*kinds[:-1], replace(kinds[-1], count_max=had)), scaler.limits, scaler.stock)
    scaler.rests = (Rest(last, now + 240.0, "the provider has no more such nodes", is_stock_out=True),)
    scaler.in_flight = (
        Instance(f"{first}-7", first, InstanceState.STARTING, now - 40.0),
        Instance(f"{first}-8", first, InstanceState.FAILED, now - 95.0, problem="no disk"),
    )
    scaler.standing = tuple(
        Standing(
            f"{id}-launch",
            kind,
            id,
            None if id in busy else now - 190.0,
            "" if id in busy or engine.nodes[id].draining else f"it is part of the minimum of {kind}",
            engine.nodes[id].draining,
        )
        for id, kind in kind_of.items()
    )
    view = scale_view(scaler, engine, "local raylets", BEGAN + now, BEGAN)
    running = desk.work(Query(("state=running",), limit=1)).items
    if running and len(view.nodes) > 1:
        move = MoveView((view.nodes[0].node,), ((running[0].id, view.nodes[1].node),), view.nodes[0].price)
        view = replace(view, proposals=(move,))
    decisions: Sequence[ScaleDecision] = [
        NodeRequested(f"{first}-7", kinds[0], 5),
        LaunchEnded(f"{last}-9", last, "the provider has no more such nodes", now + 240.0),
        *(NodeArrived(each.launch, each.kind, each.node) for each in view.nodes),
    ]
    desk.report_scale(view, decisions)
    found = desk.scale()
    assert found is not None
    return found
