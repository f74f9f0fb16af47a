"""Why no node fits, counted as kube-scheduler counts: by plugin, in the order in which it runs its plugins.

Rule: all refusals come from `rules`; this only counts them in another order than `verdicts` does. A node is counted for
the first plugin that refuses it. Only NodeResourcesFit counts a node several times, once for each resource, and
VolumeBinding twice, for claims that are bound and claims that are not.
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
    ClaimBeingBound,
    ClaimElsewhere,
    ClaimInUse,
    ClaimUnusable,
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
    TooManyVolumes,
    TooNear,
)
from stead.engine.shapes import Demand
from stead.language.asks import Ask
from stead.language.labels import NODE_NAME, Operator, Selector


class Plugin(StrEnum):
    """What refuses nodes in kube-scheduler, in its order. Three plugins have several answers, so they are listed more
    than once."""

    CLAIM = "VolumeBinding, before it looks at nodes"
    NODE_SET = "node set of NodeAffinity"
    UNSCHEDULABLE = "NodeUnschedulable"
    TAINTS = "TaintToleration"
    NODE_AFFINITY = "NodeAffinity"
    PORTS = "NodePorts"
    RESOURCES = "NodeResourcesFit"
    CLAIM_IN_USE = "VolumeRestrictions"
    VOLUME_LIMIT = "NodeVolumeLimits"
    VOLUME_ELSEWHERE = "VolumeBinding, for a claim that is bound"
    NO_VOLUME = "VolumeBinding, for a claim that is not bound"
    SPREAD_KEY = "PodTopologySpread, for a missing label"
    SPREAD = "PodTopologySpread"
    AFFINITY = "InterPodAffinity"
    ANTI_AFFINITY = "InterPodAffinity, for the pod's anti-affinity"
    EXISTING_ANTI_AFFINITY = "InterPodAffinity, for the anti-affinity of existing pods"
    RESERVED = "stead's reservations"


UNSCHEDULABLE_KEY = "node.kubernetes.io/unschedulable"


@dataclass(frozen=True, slots=True)
class PluginRefusal:
    """The nodes that a plugin refuses; `resource` is what they lack, for `Plugin.RESOURCES`. `unusable` is the claim
    that no node can use, for `Plugin.CLAIM`."""

    plugin: Plugin
    nodes: int
    resource: str = ""
    unusable: ClaimUnusable | None = None


def refusals_by_plugin(board: Board, ask: Ask) -> tuple[PluginRefusal, ...]:
    """Who refuses the first choice of an ask, in the order of the plugins."""
    demand = board.shape_of(ask).demands[0]
    left = board.fleet.alive
    unusable = [reason for reason, _ in refused_sets(board, demand) if isinstance(reason, ClaimUnusable)]
    if unusable:
        return tuple(PluginRefusal(Plugin.CLAIM, left.bit_count(), unusable=each) for each in unusable)
    found: dict[tuple[Plugin, str], int] = {}
    for stage in _stages(board, demand):
        refused = 0
        for plugin, resource, nodes in _united(stage):
            # Within a plugin, only resources and volumes are counted together; elsewhere the first answer counts.
            is_counted = resource or plugin in _TOGETHER
            count = (nodes & left if is_counted else nodes & left & ~refused).bit_count()
            if count:
                found[plugin, resource] = found.get((plugin, resource), 0) + count
            refused |= nodes
        left &= ~refused
    return tuple(PluginRefusal(plugin, count, resource) for (plugin, resource), count in found.items())


Answers = list[tuple[Plugin, str, Nodes]]


def _united(stage: Answers) -> Answers:
    """The same answers, with those about several volumes as one."""
    united: dict[Plugin, Nodes] = {}
    for plugin, _, nodes in stage:
        if plugin in _TOGETHER:
            united[plugin] = united.get(plugin, 0) | nodes
    others = [answer for answer in stage if answer[0] not in _TOGETHER]
    return others + [(plugin, "", nodes) for plugin, nodes in united.items()]


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
    Plugin.CLAIM: 0,
    Plugin.NODE_SET: 0,
    Plugin.UNSCHEDULABLE: 1,
    Plugin.TAINTS: 2,
    Plugin.NODE_AFFINITY: 3,
    Plugin.PORTS: 4,
    Plugin.RESOURCES: 5,
    Plugin.CLAIM_IN_USE: 6,
    Plugin.VOLUME_LIMIT: 7,
    Plugin.VOLUME_ELSEWHERE: 8,
    Plugin.NO_VOLUME: 8,
    Plugin.SPREAD_KEY: 9,
    Plugin.SPREAD: 9,
    Plugin.AFFINITY: 10,
    Plugin.ANTI_AFFINITY: 10,
    Plugin.EXISTING_ANTI_AFFINITY: 10,
    Plugin.RESERVED: 11,
}
_TOGETHER = (Plugin.VOLUME_ELSEWHERE, Plugin.NO_VOLUME)
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
        case ClaimUnusable():
            return Plugin.CLAIM, ""
        case ClaimInUse():
            return Plugin.CLAIM_IN_USE, ""
        case TooManyVolumes():
            return Plugin.VOLUME_LIMIT, ""
        case ClaimElsewhere(_, _, bound):
            return (Plugin.VOLUME_ELSEWHERE if bound else Plugin.NO_VOLUME), ""
        case ClaimBeingBound():
            return Plugin.NO_VOLUME, ""
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
