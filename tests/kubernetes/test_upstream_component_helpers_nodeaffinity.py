"""Kubernetes' component-helpers for node affinity: how single terms match, and what preferred terms sum up to."""

from __future__ import annotations

import pytest

from stead.errors import Invalid
from stead.kubernetes.fields import Fields
from stead.kubernetes.selecting import PREFERRED, REQUIRED, preferences_of
from tests.kubernetes.upstream import LABELS, LeftOut, Table, assert_placement, cluster, pending, pod, preference_on

EAGER = "the eager parser's error: kube-scheduler reads pods with the lazy one, for which such a term matches nothing"

TABLE = Table(
    "component-helpers_nodeaffinity", {"TestNodeSelectorMatch": LeftOut(EAGER, lambda case: "wantErr" in case)}
)


@TABLE.every("TestNodeSelectorMatch")
def test_node_selector(case: Fields) -> None:
    nodes = [case["node"]] if "node" in case else []
    ask = pending(pod(affinity={"nodeAffinity": {REQUIRED: case.get("nodeSelector", {})}}))
    assert_placement(cluster(nodes), ask, [None if case.get("wantMatch") else LABELS] * len(nodes))


@TABLE.every("TestPreferredSchedulingTermsScore")
def test_preferred_terms(case: Fields) -> None:
    if "wantErr" in case:
        with pytest.raises(Invalid, match="exactly one value"):
            preferences_of(case["prefSchedTerms"])
        return
    ask = pending(pod(affinity={"nodeAffinity": {PREFERRED: case["prefSchedTerms"]}}))
    engine = cluster([case["node"]])
    assert preference_on(engine, ask, case["node"]["metadata"]["name"]) == case.get("wantScore", 0)


@TABLE.every("TestPodMatchesNodeSelectorAndAffinityTerms")
def test_node_selector_and_required_affinity(case: Fields) -> None:
    node = {"metadata": {"labels": case.get("labels")}}
    if "nodeName" in case:
        node["metadata"]["name"] = case["nodeName"]
    assert_placement(cluster([node]), pending(case["pod"]), [None if case.get("want") else LABELS])


def test_no_case_has_vanished() -> None:
    assert TABLE.counted() == {
        "TestNodeSelectorMatch": (4, 1),
        "TestPreferredSchedulingTermsScore": (3, 0),
        "TestPodMatchesNodeSelectorAndAffinityTerms": (27, 0),
    }
