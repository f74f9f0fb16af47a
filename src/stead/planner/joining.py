"""Which node belongs to which instance, and whether a node is what its kind describes.

Rule: an instance that does not name its node is matched by its IP address, and only if no other node or instance has
it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from stead.engine.facts import Fact, NodeLabelled, NodeResized, NodeTainted
from stead.engine.scaling.decisions import LaunchId
from stead.language.nodes import Node, NodeId, NodeTemplate
from stead.language.resources import Resources, amount_text
from stead.planner.instances import Instance


def nodes_of(instances: Iterable[Instance], nodes: Mapping[NodeId, Node]) -> dict[LaunchId, NodeId]:
    """The node of each instance whose node is in the cluster."""
    instances = list(instances)
    by_ip: dict[str, list[NodeId]] = {}
    for node in nodes.values():
        by_ip.setdefault(node.ip, []).append(node.id)
    same_ip = Counter(instance.ip for instance in instances if not instance.node)
    found: dict[LaunchId, NodeId] = {}
    for instance in instances:
        at_ip = by_ip.get(instance.ip, []) if instance.ip and same_ip[instance.ip] == 1 else []
        if instance.node in nodes:
            found[instance.launch] = instance.node
        elif not instance.node and len(at_ip) == 1:
            found[instance.launch] = at_ip[0]
    claims = Counter(found.values())
    return {launch: node for launch, node in found.items() if claims[node] == 1}


def lacking(template: NodeTemplate, node: Node) -> str:
    """What a node lacks to be what its kind describes, as a clause; empty if it lacks nothing."""
    for key, value in template.labels.items():
        if node.labels.get(key) != value and key not in template.own_keys:
            return f"it joined without the label {key}={value}"
    for taint in template.taints:
        if taint not in node.taints:
            return f"it joined without the taint {taint}"
    for name, amount in template.capacity.items():
        has = node.capacity.get(name, 0)
        if has < amount:
            return f"it joined with {amount_text(name, has)} instead of {amount_text(name, amount)}"
    return ""


def as_described(template: NodeTemplate, node: Node) -> list[Fact]:
    """Facts that make a node what its kind describes."""
    more = {name: max(node.capacity.get(name, 0), amount) for name, amount in template.capacity.items()}
    return [
        NodeLabelled(node.id, template.labels),
        *(NodeTainted(node.id, taint) for taint in template.taints if taint not in node.taints),
        NodeResized(node.id, Resources({**node.capacity, **more})),
    ]
