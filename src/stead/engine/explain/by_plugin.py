"""Why no node fits, counted as kube-scheduler counts: by plugin, in the order in which it runs its plugins.

Rule: all refusals come from `rules`; this only counts them in another order than `verdicts` does. A node is counted for
the first plugin that refuses it. Only NodeResourcesFit counts a node several times, once for each resource.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import assert_never

from stead.engine.board import Board
from stead.engine.explain.verdicts import refused_sets
from stead.engine.fleet import Nodes
from stead.engine.reasons import (
    ApartFromGroup,
    Draining,
    HasMember,
    KeptAway,
    LacksLabel,
    NeverFits,
    NoAlternativeHolds,
    NoTermMatches,
    NotNear,
    PortTaken,
    Reason,
    Reserved,
    ShortOf,
    Skewed,
    Tainted,
    TargetDead,
    TooNear,
)
from stead.engine.shapes import Demand
from stead.language.asks import Ask
from stead.language.labels import NODE_NAME, Operator, Selector


class Plugin(StrEnum):
    """What refuses nodes in kube-scheduler, in its order. Three plugins have several answers, so they are listed more
    than once."""

    NODE_SET = "node set of NodeAffinity"
    UNSCHEDULABLE = "NodeUnschedulable"
    TAINTS = "TaintToleration"
    NODE_AFFINITY = "NodeAffinity"
    PORTS = "NodePorts"
    RESOURCES = "NodeResourcesFit"
    SPREAD_KEY = "PodTopologySpread, for a missing label"
    SPREAD = "PodTopologySpread"
    AFFINITY = "InterPodAffinity"
    ANTI_AFFINITY = "InterPodAffinity, for the pod's anti-affinity"
    EXISTING_ANTI_AFFINITY = "InterPodAffinity, for the anti-affinity of existing pods"
    RESERVED = "stead's reservations"


UNSCHEDULABLE_KEY = "node.kubernetes.io/unschedulable"


@dataclass(frozen=True, slots=True)
class PluginRefusal:
    """The nodes that a plugin refuses; `resource` is what they lack, for `Plugin.RESOURCES`."""

    plugin: Plugin
    nodes: int
    resource: str = ""


def refusals_by_plugin(board: Board, ask: Ask) -> tuple[PluginRefusal, ...]:
    """Who refuses the first choice of an ask, in the order of the plugins."""
    demand = board.shape_of(ask).demands[0]
    left = board.fleet.alive
    found: dict[tuple[Plugin, str], int] = {}
    for stage in _stages(board, demand):
        refused = 0
        for plugin, resource, nodes in stage:
            # Within a plugin, only resources are counted together; elsewhere the first answer counts.
            count = (nodes & left if resource else nodes & left & ~refused).bit_count()
            if count:
                found[plugin, resource] = found.get((plugin, resource), 0) + count
            refused |= nodes
        left &= ~refused
    return tuple(PluginRefusal(plugin, count, resource) for (plugin, resource), count in found.items())


Answers = list[tuple[Plugin, str, Nodes]]


def _stages(board: Board, demand: Demand) -> Iterator[Answers]:
    """The answers of each plugin, in order."""
    fleet = board.fleet
    stages: dict[int, Answers] = {}
    for reason, nodes in refused_sets(board, demand):
        if isinstance(reason, Skewed):
            without_key = nodes & ~fleet.with_key.map.get(reason.spread.topology, 0)
            answers: Answers = [(Plugin.SPREAD_KEY, "", without_key), (Plugin.SPREAD, "", nodes & ~without_key)]
        else:
            answers = [(*_plugin(reason), nodes)]
        stages.setdefault(_STAGE[answers[0][0]], []).extend(answers)
    named = _named_nodes(demand.selector)
    if named is not None:
        rows = (fleet.row(name) for name in named)
        inside = sum(1 << row for row in rows if row is not None)
        yield [(Plugin.NODE_SET, "", fleet.alive & ~inside)]
    for stage in sorted(stages):
        yield sorted(stages[stage], key=lambda answer: _SEQUENCE[answer[0]]) if stage == _INSIDE else stages[stage]


_STAGE = {
    Plugin.NODE_SET: 0,
    Plugin.UNSCHEDULABLE: 1,
    Plugin.TAINTS: 2,
    Plugin.NODE_AFFINITY: 3,
    Plugin.PORTS: 4,
    Plugin.RESOURCES: 5,
    Plugin.SPREAD_KEY: 6,
    Plugin.SPREAD: 6,
    Plugin.AFFINITY: 7,
    Plugin.ANTI_AFFINITY: 7,
    Plugin.EXISTING_ANTI_AFFINITY: 7,
    Plugin.RESERVED: 8,
}
_INSIDE = _STAGE[Plugin.AFFINITY]
_SEQUENCE = {plugin: index for index, plugin in enumerate(Plugin)}


def _plugin(reason: Reason) -> tuple[Plugin, str]:
    match reason:
        case Draining():
            return Plugin.UNSCHEDULABLE, ""
        case Tainted(taint):
            return (Plugin.UNSCHEDULABLE if taint.key == UNSCHEDULABLE_KEY else Plugin.TAINTS), ""
        case LacksLabel() | NoTermMatches():
            return Plugin.NODE_AFFINITY, ""
        case PortTaken():
            return Plugin.PORTS, ""
        case NeverFits(resource) | ShortOf(resource):
            return Plugin.RESOURCES, resource
        case Skewed():
            return Plugin.SPREAD, ""
        case NotNear() | TargetDead() | NoAlternativeHolds() | ApartFromGroup():
            return Plugin.AFFINITY, ""
        case TooNear() | HasMember():
            return Plugin.ANTI_AFFINITY, ""
        case KeptAway():
            return Plugin.EXISTING_ANTI_AFFINITY, ""
        case Reserved():
            return Plugin.RESERVED, ""
        case _:
            assert_never(reason)


def _named_nodes(selector: Selector) -> frozenset[str] | None:
    """The only nodes that are looked at, if every term names nodes by `metadata.name`; None means all."""
    if not selector.terms:
        return None
    names: set[str] = set()
    for term in selector.terms:
        listed = [each.values for each in term if each.key == NODE_NAME and each.operator is Operator.IN]
        if not listed:
            return None
        names |= frozenset.intersection(*listed)
    return frozenset(names)
