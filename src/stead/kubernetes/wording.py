"""Why a pod is pending, in kubectl's words.

Rule: the first sentence is the one that kube-scheduler would write, so that scripts and people who know it find what
they expect. stead's smallest change follows it, in the words of Kubernetes. It never advises a pod to tolerate that a
node is cordoned or not healthy.
"""

from __future__ import annotations

from collections.abc import Iterable

from stead.engine.engine import Engine
from stead.engine.explain import wording
from stead.engine.explain.by_plugin import Plugin, PluginRefusal
from stead.engine.explain.explanations import Explanation
from stead.engine.explain.smallest_change import Change, Drop, Edit, Tolerate, Widen
from stead.kubernetes.claims import not_found, turn_of_problem
from stead.kubernetes.nodes import UNSCHEDULABLE
from stead.kubernetes.requesting import PODS
from stead.language.asks import Affinity, Ask, AskId, Group, GroupId, HostPort, Spread
from stead.language.labels import NODE_NAME, Selector
from stead.language.resources import CPU
from stead.text import plural

EDITS_MAX = 3
"""A change with more parts is not a hint that anybody would follow."""

CONDITIONS = "node.kubernetes.io/"
"""Kubernetes itself sets taints with this prefix, while a node has a problem."""

NO_NODES = "no nodes available to schedule pods"

REASONS = {
    Plugin.NODE_SET: "node(s) didn't satisfy plugin(s) [NodeAffinity]",
    Plugin.UNSCHEDULABLE: "node(s) were unschedulable",
    Plugin.TAINTS: "node(s) had untolerated taint(s)",
    Plugin.NODE_AFFINITY: "node(s) didn't match Pod's node affinity/selector",
    Plugin.PORTS: "node(s) didn't have free ports for the requested pod ports",
    Plugin.CLAIM_IN_USE: (
        "node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode already in-use by another "
        "pod"
    ),
    Plugin.VOLUME_LIMIT: "node(s) exceed max volume count",
    Plugin.VOLUME_ELSEWHERE: "node(s) didn't match PersistentVolume's node affinity",
    Plugin.NO_VOLUME: "node(s) didn't find available persistent volumes to bind",
    Plugin.SPREAD_KEY: "node(s) didn't match pod topology spread constraints (missing required label)",
    Plugin.SPREAD: "node(s) didn't match pod topology spread constraints",
    Plugin.AFFINITY: "node(s) didn't match pod affinity rules",
    Plugin.ANTI_AFFINITY: "node(s) didn't match pod anti-affinity rules",
    Plugin.EXISTING_ANTI_AFFINITY: "node(s) didn't satisfy existing pods anti-affinity rules",
    Plugin.RESERVED: "node(s) were reserved for pods that have been pending longer",
}


def fit_error(nodes: int, refusals: Iterable[PluginRefusal]) -> str:
    """``0/5 nodes are available: 2 Insufficient cpu, 3 node(s) were unschedulable.``"""
    if not nodes:
        return NO_NODES
    refusals = list(refusals)
    unusable = [each.unusable for each in refusals if each.unusable is not None]
    if unusable:  # kube-scheduler does not look at nodes then
        first = min(unusable, key=lambda each: turn_of_problem(each.problem))
        return f"0/{nodes} nodes are available: {first.problem or not_found(first.claim)}."
    texts = sorted(f"{each.nodes} {_reason(each)}" for each in refusals)
    return f"0/{nodes} nodes are available: {', '.join(texts)}."


def _reason(refusal: PluginRefusal) -> str:
    if refusal.plugin is not Plugin.RESOURCES:
        return REASONS[refusal.plugin]
    if refusal.resource == PODS:
        return "Too many pods"
    return f"Insufficient {'cpu' if refusal.resource == CPU else refusal.resource}"


def why_pending(engine: Engine, ask: Ask, explanation: Explanation | None = None) -> str:
    """The message of a FailedScheduling event."""
    message = fit_error(len(engine.nodes), engine.refusals_by_plugin(ask))
    explanation = explanation or engine.explain(ask)
    if explanation.change is None or len(explanation.change.edits) > EDITS_MAX:
        return message
    return f"{message} {change_text(explanation.change, explanation.names)}"


def change_text(change: Change, names: wording.Names) -> str:
    """``Tolerating nvidia.com/gpu=present would be enough (1 node).``"""
    return wording.change(change, names=names, say=_edit)


def why_gang_pending(engine: Engine, gang: GroupId) -> str:
    """The message of a FailedScheduling event of the pods of a gang: how many it needs, and why they do not fit."""
    found = engine.explain(gang)
    quorum = found.quorum
    assert quorum is not None, "it is a group"
    if quorum.more_members:
        there = f"{quorum.members} exist" if quorum.members != 1 else "1 exists"
        return f"The pod group needs {plural(quorum.least, 'pod')} at once, and {there}."
    missing = max(0, quorum.least - quorum.placed)
    head = f"The pod group needs {plural(missing, 'more pod' if quorum.placed else 'pod')} at once"
    head = f"{head}, and {quorum.fitting} fit{'s' if quorum.fitting == 1 else ''}." if missing else ""
    alone = next((member for member in found.members if not member.fits), None)
    if alone is not None:
        ask = next(ask for ask in _members_of(engine, gang) if ask.id == alone.id)
        return f"{head} Pod {_short(ask.id)}: {why_pending(engine, ask)}".strip()
    if found.crowded_out is None:
        return head or "The rest of the pod group does not fit."
    id, verdict = found.crowded_out
    return f"{head} With the others placed, pod {_short(id)}: {wording.verdict(verdict, found.names)}".strip()


def _members_of(engine: Engine, gang: GroupId) -> tuple[Ask, ...]:
    group = engine.item(gang)
    return group.all_members if isinstance(group, Group) else ()


def _short(id: AskId) -> str:
    """The name of a pod."""
    return id.partition("/")[2]


def _edit(found: Edit, names: wording.Names) -> str:
    match found:
        case Tolerate(taint) if taint.key == UNSCHEDULABLE.key:
            return "uncordoning a node"
        case Tolerate(taint) if taint.key.startswith(CONDITIONS):
            return f"removing the cause of the taint {taint} from a node"
        case Widen(requirement, value) if requirement.key == NODE_NAME:
            return f"allowing metadata.name={value}"
        case Drop(Selector(())):
            return "dropping the required node affinity, which can match no node,"
        case Drop(Selector()):
            return "dropping the node selector and the required node affinity"
        case Drop(Affinity() as affinity):
            kind = "pod affinity" if affinity.near else "pod anti-affinity"
            keys = " and ".join(affinity.topologies)
            return f"dropping the {kind} to pods with {affinity.selector} (topology key {keys})"
        case Drop(Spread() as spread):
            return f"dropping the topology spread over {spread.topology}"
        case Drop(HostPort() as port):
            return f"dropping the host port {port}"
        case _:
            return wording.edit(found, names)
