"""kube-scheduler's InterPodAffinity plugin: near to and apart from other pods."""

from __future__ import annotations

from itertools import combinations

import pytest

from stead.errors import Invalid
from stead.kubernetes.podspec import Fields
from tests.kubernetes.upstream import (
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

INTERNALS = (
    "counts kept between kube-scheduler's steps, which stead does not keep; what they are for is tested by placing"
)
SCORES = (
    "kube-scheduler's score counts the pods that match and adds what existing pods prefer; stead prefers by whether a "
    "term of the incoming pod holds"
)

COUNTS_DECIDE = {
    (
        "Affinity: nodes in one region has more matching pods comparing to other region, so the region which has "
        "more matches will get high score"
    ),
    (
        "Affinity and Anti Affinity: considering both affinity and anti-affinity, the pod to schedule and existing "
        "pods have the same labels"
    ),
    "Affinity with pods matching NamespaceSelector",
    "Affinity with pods matching both NamespaceSelector and Namespaces fields",
}
"""Cases where every node, or none, holds what the pod prefers, and only the number of pods makes a difference."""


def is_an_error(case: Fields) -> bool:
    return "Error" in case.get("wantStatus", {}).values()


def scores_otherwise(case: Fields) -> bool:
    """Whether the score comes from existing pods' own terms or from counting, or there is none at all."""
    if is_an_error(case):
        return False
    existing_prefer = any(pod["spec"].get("affinity") for pod in case.get("pods") or ())
    return existing_prefer or "expectedList" not in case or case["name"] in COUNTS_DECIDE


TABLE = Table(
    "interpodaffinity",
    {
        "TestPreFilterStateAddRemovePod": LeftOut(INTERNALS),
        "TestGetTPMapMatchingIncomingAffinityAntiAffinity": LeftOut(INTERNALS),
        "TestPreferredAffinity": LeftOut(SCORES, scores_otherwise),
        "TestPreferredAffinityWithHardPodAffinitySymmetricWeight": LeftOut(SCORES),
    },
)


def fails_to_parse(case: Fields) -> bool:
    status = case.get("wantPreFilterStatus")
    return status is not None and status["code"] != "Skip"


@TABLE.every("TestRequiredAffinitySingleNode")
def test_single_node(case: Fields) -> None:
    if fails_to_parse(case):
        with pytest.raises(Invalid, match="bad-value"):
            pending(case["pod"])
        return
    engine = cluster([case["node"]], case.get("pods") or ())
    assert_placement(engine, pending(case["pod"]), [expected_reason(case.get("wantFilterStatus"))])


@TABLE.every("TestRequiredAffinityMultipleNodes")
def test_multiple_nodes(case: Fields) -> None:
    assert not fails_to_parse(case)
    engine = cluster(case["nodes"], case.get("pods") or ())
    assert_placement(engine, pending(case["pod"]), [expected_reason(each) for each in case["wantFilterStatuses"]])


@TABLE.every("TestPreferredAffinity")
def test_preferred(case: Fields) -> None:
    """The nodes stand in upstream's order, whatever the scores."""
    if is_an_error(case):
        with pytest.raises(Invalid, match="bad-value"):
            pending(case["pod"])
        return
    engine, ask, scores = cluster(case["nodes"], case["pods"]), pending(case["pod"]), scores_of(case)
    weights = {node: preference_on(engine, ask, node) for node in scores}
    for left, right in combinations(scores, 2):
        assert (scores[left] > scores[right]) == (weights[left] > weights[right])
        assert (scores[left] < scores[right]) == (weights[left] < weights[right])
    assert_best(engine, ask, scores)


def test_no_case_has_vanished() -> None:
    assert TABLE.counted() == {
        "TestRequiredAffinitySingleNode": (26, 0),
        "TestRequiredAffinityMultipleNodes": (18, 0),
        "TestPreFilterStateAddRemovePod": (0, 3),
        "TestGetTPMapMatchingIncomingAffinityAntiAffinity": (0, 8),
        "TestPreferredAffinity": (9, 17),
        "TestPreferredAffinityWithHardPodAffinitySymmetricWeight": (0, 5),
    }
