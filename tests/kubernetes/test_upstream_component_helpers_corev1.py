"""Kubernetes' component-helpers for core/v1: priority, node selector terms, the first untolerated taint."""

from __future__ import annotations

from copy import deepcopy

import pytest

from stead.kubernetes.fields import Fields
from stead.kubernetes.selecting import EFFECTS, REQUIRED, selector_of
from tests.kubernetes.upstream import (
    COMPARISON,
    LABELS,
    TAINTED,
    LeftOut,
    Table,
    assert_placement,
    assert_refused_aloud,
    cluster,
    compares,
    pending,
    pod,
)

TABLE = Table(
    "component-helpers_corev1",
    {
        "TestGetAvoidPodsFromNode": LeftOut("the annotation preferAvoidPods, which no scheduler plugin reads any more"),
        "TestFindMatchingUntoleratedTaint": LeftOut(COMPARISON, compares),
    },
)

EFFECTS_THAT_COUNT: dict[str, set[str]] = {
    "tolerations don't match taints, but no taints apply to the filter, expect tolerated": set(),
    "tolerations match taints, expect tolerated": {"NoExecute"},
}
"""What upstream's `applyFilter` lets through, where that is not every taint: a function, so not in the data."""


@TABLE.every("TestPodPriority")
def test_priority(case: Fields) -> None:
    assert pending(case["pod"]).priority == case.get("expectedPriority", 0)


@TABLE.every("TestMatchNodeSelectorTerms")
def test_node_selector_terms(case: Fields) -> None:
    given = case.get("args", {})
    nodes = [given["node"]] if "node" in given else []
    ask = pending(pod(affinity={"nodeAffinity": {REQUIRED: given.get("nodeSelector", {})}}))
    assert_placement(cluster(nodes), ask, [None if case.get("want") else LABELS] * len(nodes))


@TABLE.every("TestMatchNodeSelectorTermsStateless")
def test_node_selector_terms_are_left_as_they_were(case: Fields) -> None:
    given = deepcopy(case.get("args", {}).get("nodeSelector"))
    selector_of(None, given)
    assert given == case.get("want")


@TABLE.every("TestFindMatchingUntoleratedTaint")
def test_untolerated_taint(case: Fields) -> None:
    count = EFFECTS_THAT_COUNT.get(case["description"], EFFECTS.keys())
    node = {"metadata": {}, "spec": {"taints": [taint for taint in case["taints"] if taint["effect"] in count]}}
    ask = pending(pod(tolerations=case["tolerations"]))
    assert_placement(cluster([node]), ask, [None if case.get("expectTolerated") else TAINTED])


@pytest.mark.parametrize("case", TABLE.left_out(COMPARISON), ids=lambda case: case["description"])
def test_alpha_operators_are_refused(case: Fields) -> None:
    assert_refused_aloud(case)


def test_no_case_has_vanished() -> None:
    assert TABLE.counted() == {
        "TestPodPriority": (2, 0),
        "TestMatchNodeSelectorTerms": (10, 0),
        "TestMatchNodeSelectorTermsStateless": (9, 0),
        "TestGetAvoidPodsFromNode": (0, 3),
        "TestFindMatchingUntoleratedTaint": (6, 4),
    }
