"""kube-scheduler's InterPodAffinity plugin: near to and apart from other pods."""

from __future__ import annotations

from itertools import combinations

import pytest

from stead.errors import Invalid
from stead.kubernetes.fields import Fields
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
NO_SCORES = "kube-scheduler skips the plugin, and gives no scores"
OTHER_WEIGHT = f"hardPodAffinityWeight is configuration of kube-scheduler; stead has its default, 1. Or {NO_SCORES}"

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


def has_no_scores(case: Fields) -> bool:
    return not is_an_error(case) and "expectedList" not in case


def has_another_weight(case: Fields) -> bool:
    return case.get("hardPodAffinityWeight") != 1 or has_no_scores(case)


def depends_on_counts(case: Fields) -> bool:
    """Whether existing pods' own terms or the number of pods decide: only the policy ``kube`` looks at these."""
    return any(pod["spec"].get("affinity") for pod in case["pods"]) or case["name"] in COUNTS_DECIDE


TABLE = Table(
    "interpodaffinity",
    {
        "TestPreFilterStateAddRemovePod": LeftOut(INTERNALS),
        "TestGetTPMapMatchingIncomingAffinityAntiAffinity": LeftOut(INTERNALS),
        "TestPreferredAffinity": LeftOut(NO_SCORES, has_no_scores),
        "TestPreferredAffinityWithHardPodAffinitySymmetricWeight": LeftOut(OTHER_WEIGHT, has_another_weight),
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
    if not depends_on_counts(case):
        weights = {node: preference_on(engine, ask, node) for node in scores}
        for left, right in combinations(scores, 2):
            assert (scores[left] > scores[right]) == (weights[left] > weights[right])
            assert (scores[left] < scores[right]) == (weights[left] < weights[right])
    assert_best(engine, ask, scores)


@TABLE.every("TestPreferredAffinityWithHardPodAffinitySymmetricWeight")
def test_required_affinity_of_existing_pods_attracts(case: Fields) -> None:
    assert_best(cluster(case["nodes"], case["pods"]), pending(case["pod"]), scores_of(case))


def test_no_case_has_vanished() -> None:
    assert TABLE.counted() == {
        "TestRequiredAffinitySingleNode": (26, 0),
        "TestRequiredAffinityMultipleNodes": (18, 0),
        "TestPreFilterStateAddRemovePod": (0, 3),
        "TestGetTPMapMatchingIncomingAffinityAntiAffinity": (0, 8),
        "TestPreferredAffinity": (24, 2),
        "TestPreferredAffinityWithHardPodAffinitySymmetricWeight": (3, 2),
    }
