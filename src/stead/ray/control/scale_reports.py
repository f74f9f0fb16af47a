"""What the desk shows of Ray's autoscaler: the plan, the nodes that it launches and launched, and the types that rest.

Rule: only rewrites the latest plan and Ray's tables as views. Ray's autoscaler names no launches, so launches of one
type are numbered.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from stead.language.nodes import NodeId, NodeTemplate
from stead.operate.plans import plan_view
from stead.operate.scale import KindView, LaunchView, ScaledNodeView, ScaleView
from stead.operate.views import amounts
from stead.ray.control.launch_plans import Planned
from stead.ray.wire.tables import NodeRow, Status

PROVIDER = "Ray's autoscaler"


def scale_view(planned: Planned, status: Status, titles: Mapping[NodeId, str], kept: Mapping[NodeId, str]) -> ScaleView:
    """Ray's autoscaler as of the latest plan. `kept` says why a node stays although it is idle."""
    running = Counter(planned.stock.running.values())
    rests = {rest.kind: rest for rest in planned.rests}
    templates = {each.name: each for each in planned.types.catalog}
    coming = Counter(status.requested) + Counter(status.starting)
    kinds = tuple(
        KindView(
            each.name,
            amounts(each.capacity),
            dict(each.labels),
            tuple(map(str, each.taints)),
            each.price,
            planned.types.minimums.get(each.name, 0),
            each.count_max,
            running[each.name],
            coming[each.name],
            rests[each.name].until if each.name in rests else None,
            rests[each.name].why if each.name in rests else "",
        )
        for each in planned.types.catalog
    )
    launches = tuple(
        LaunchView(f"{kind}-{number}", kind, since, "starting", since + planned.types.settings.join_s)
        for kind, count in sorted(coming.items())
        if kind in templates
        for since in [planned.since.get(kind, planned.at)]
        for number in range(1, count + 1)
    )
    nodes = tuple(
        _node(status.nodes[id], templates[kind], titles.get(id, id), planned.at, kept.get(id, ""))
        for id, kind in planned.stock.running.items()
        if id in status.nodes
    )
    price = round(sum(each.price for each in nodes), 9)
    plan = plan_view(planned.plan, is_like=False, resting={rest.kind: rest.why for rest in planned.rests})
    return ScaleView(planned.at, PROVIDER, kinds, launches, nodes, price, plan, limits=planned.types.limits)


def _node(row: NodeRow, template: NodeTemplate, title: str, at: float, kept: str) -> ScaledNodeView:
    state = "retiring" if row.draining else "idle" if row.idle_s else "busy"
    since = at - row.idle_s if row.idle_s else None
    return ScaledNodeView(row.kind, row.id, title, row.kind, template.price, state, since, kept)
