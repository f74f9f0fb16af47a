"""kube-scheduler's NodeAffinity plugin: nodeSelector, required and preferred node affinity."""

from __future__ import annotations

import pytest

from stead.errors import Invalid
from stead.kubernetes.fields import Fields
from tests.kubernetes.upstream import (
    QUEUEING,
    LeftOut,
    Table,
    assert_best,
    assert_placement,
    cluster,
    expected_reason,
    pending,
    preference_on,
    scores_of,
)


def adds_affinity(case: Fields) -> bool:
    return "AddedAffinity" in case.get("args", {})


ADDED = LeftOut("addedAffinity is configuration of kube-scheduler, which stead has none of", adds_affinity)

TABLE = Table(
    "nodeaffinity",
    {
        "TestNodeAffinity": ADDED,
        "TestNodeAffinityPriority": ADDED,
        "Test_isSchedulableAfterNodeChange": LeftOut(QUEUEING),
    },
)


@TABLE.every("TestNodeAffinity")
def test_required(case: Fields) -> None:
    node = {"metadata": {"labels": case.get("labels")}}
    if "nodeName" in case:
        node["metadata"]["name"] = case["nodeName"]
    assert_placement(cluster([node]), pending(case["pod"]), [expected_reason(case.get("wantStatus"))])


@TABLE.every("TestNodeAffinityPriority")
def test_preferred(case: Fields) -> None:
    if case.get("wantPreScoreStatus", {}).get("code") == "Error":
        with pytest.raises(Invalid, match="invalid key"):
            pending(case["pod"])
        return
    ask = pending(case["pod"])
    if case.get("wantPreScoreStatus", {}).get("code") == "Skip":
        assert ask.prefers == ()
        return
    engine, scores = cluster(case["nodes"]), scores_of(case)
    weights = {node: preference_on(engine, ask, node) for node in scores}
    most = max(weights.values())
    assert {node: 100 * weight // most if most else 0 for node, weight in weights.items()} == scores
    assert_best(engine, ask, scores)


def test_no_case_has_vanished() -> None:
    assert TABLE.counted() == {
        "TestNodeAffinity": (28, 3),
        "TestNodeAffinityPriority": (7, 2),
        "Test_isSchedulableAfterNodeChange": (0, 11),
    }
