"""Why a pod is pending, in kubectl's words.

Rule: the first sentence is the one that kube-scheduler would write, so that scripts and people who know it find what
they expect. stead's smallest change follows it.
"""

from __future__ import annotations

from collections.abc import Iterable

from stead.engine.engine import Engine
from stead.engine.explain import wording
from stead.engine.explain.by_plugin import Plugin, PluginRefusal
from stead.kubernetes.requesting import PODS
from stead.language.asks import Ask
from stead.language.resources import CPU

NO_NODES = "no nodes available to schedule pods"

REASONS = {
    Plugin.NODE_SET: "node(s) didn't satisfy plugin(s) [NodeAffinity]",
    Plugin.UNSCHEDULABLE: "node(s) were unschedulable",
    Plugin.TAINTS: "node(s) had untolerated taint(s)",
    Plugin.NODE_AFFINITY: "node(s) didn't match Pod's node affinity/selector",
    Plugin.PORTS: "node(s) didn't have free ports for the requested pod ports",
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
    texts = sorted(f"{each.nodes} {_reason(each)}" for each in refusals)
    return f"0/{nodes} nodes are available: {', '.join(texts)}."


def _reason(refusal: PluginRefusal) -> str:
    if refusal.plugin is not Plugin.RESOURCES:
        return REASONS[refusal.plugin]
    if refusal.resource == PODS:
        return "Too many pods"
    return f"Insufficient {'cpu' if refusal.resource == CPU else refusal.resource}"


def why_pending(engine: Engine, ask: Ask) -> str:
    """The message of a FailedScheduling event."""
    message = fit_error(len(engine.nodes), engine.refusals_by_plugin(ask))
    explanation = engine.explain(ask)
    if explanation.change is None:
        return message
    return f"{message} {wording.change(explanation.change, names=explanation.names)}"
