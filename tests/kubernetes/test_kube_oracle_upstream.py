"""The oracle for Kubernetes against kube-scheduler's own table tests.

Rule: every upstream case is either run here or listed in `NOT_APPLYING` with its reason, and the numbers are pinned.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from tests.kubernetes import kube_filters, kube_scores
from tests.kubernetes.kube_cluster import Cluster, completed
from tests.kubernetes.kube_filters import CycleError, Filter
from tests.kubernetes.kube_scores import Score
from tests.kubernetes.kube_selectors import (
    Fields,
    NotParsed,
    matches_any_term,
    matches_node,
    node_term,
    preferred_terms,
    tolerates,
    untolerated_taints,
)

DATA = Path(__file__).parent.parent / "data" / "kubernetes"
FILES = (
    "api_core_v1_toleration",
    "component-helpers_corev1",
    "component-helpers_nodeaffinity",
    "interpodaffinity",
    "nodeaffinity",
    "nodeports",
    "noderesources",
    "nodeunschedulable",
    "podtopologyspread",
    "tainttoleration",
)
NAMESPACES = {f"subteam{i}.team{j}": {"team": f"team{j}"} for i in (1, 2) for j in (1, 2)}
"""The namespaces that upstream's inter-pod affinity tests create."""

EFFECTS_THAT_COUNT: dict[str, list[str]] = {
    "tolerations don't match taints, but no taints apply to the filter, expect tolerated": [],
    "tolerations match taints, expect tolerated": ["NoExecute"],
}
"""What upstream's `applyFilter` lets through, where that is not every taint: a function, so not in the data."""

Test = tuple[str, str]
"""A file and the upstream test function in it."""


def loaded() -> dict[Test, list[Fields]]:
    found: dict[Test, list[Fields]] = {}
    for file in FILES:
        for line in (DATA / f"{file}.jsonl").read_text(encoding="utf-8").splitlines():
            entry = json.loads(line)
            found.setdefault((file, entry["test"]), []).append(entry["case"])
    return found


CASES = loaded()


# -- cases that do not apply


def always(case: Fields) -> bool:
    return True


def needs_comparison(case: Fields) -> bool:
    """Whether the case switches the gate of Lt and Gt on. With the gate off, the oracle must agree."""
    gates = ("enableTaintTolerationComparisonOperatorsFG", "enableComparisonOperatorsFG")
    return any(case.get(gate) for gate in (*gates, "enableTaintTolerationComparisonOps"))


def is_configured(case: Fields) -> bool:
    args = case.get("args") or {}
    return any(args.get(field) for field in ("AddedAffinity", "IgnoredResources", "IgnoredResourceGroups"))


def has_spread_gate_off(case: Fields) -> bool:
    """A field of a constraint is set and the gate that makes it count is off, or the profile has other defaults."""
    constraints = case["pod"]["spec"].get("topologySpreadConstraints") or ()
    keys_off = not case["enableMatchLabelKeys"] and any(each.get("matchLabelKeys") for each in constraints)
    policies = ("nodeAffinityPolicy", "nodeTaintsPolicy")
    policies_off = any(each.get(policy) for each in constraints for policy in policies)
    return bool(case.get("defaultConstraints")) or keys_off or (policies_off and not case["enableNodeInclusionPolicy"])


def is_removed_from_elsewhere(case: Fields) -> bool:
    return bool(case["removed"]["spec"]["nodeName"] != case["removedFrom"])


QUEUEING = "a queueing hint: when to try a pod again, not where it fits"
COMPARISON = "the toleration operators Lt and Gt are switched on; they are alpha and off by default"
CONFIGURED = "the profile is not the default one"
INTERNALS = "counts that kube-scheduler keeps between two of its steps"
GATE_OFF = "a feature gate is off that has been locked or on for years, or the profile has other default constraints"
DYNAMIC = "extended resources that are backed by dynamic resource allocation, or that the plugin checks for it"
ELSEWHERE = "the pod is removed from a node where it is not, so the expected counts are wrong on purpose"

NOT_APPLYING: Mapping[Test, tuple[str, Callable[[Fields], bool]]] = {
    ("api_core_v1_toleration", "TestTolerationToleratesTaint"): (COMPARISON, needs_comparison),
    ("api_core_v1_toleration", "TestCompareNumericValues"): (COMPARISON, always),
    ("component-helpers_corev1", "TestPodPriority"): ("the order of the queue, not where a pod fits", always),
    ("component-helpers_corev1", "TestGetAvoidPodsFromNode"): ("an annotation that no plugin reads any more", always),
    ("component-helpers_corev1", "TestFindMatchingUntoleratedTaint"): (COMPARISON, needs_comparison),
    ("interpodaffinity", "TestPreFilterStateAddRemovePod"): (INTERNALS, always),
    ("interpodaffinity", "TestGetTPMapMatchingIncomingAffinityAntiAffinity"): (INTERNALS, always),
    ("interpodaffinity", "TestPreferredAffinity"): (
        CONFIGURED,
        lambda case: bool(case.get("ignorePreferredTermsOfExistingPods")),
    ),
    ("interpodaffinity", "TestPreferredAffinityWithHardPodAffinitySymmetricWeight"): (
        CONFIGURED,
        lambda case: case.get("hardPodAffinityWeight", 0) != 1,
    ),
    ("nodeaffinity", "TestNodeAffinity"): (CONFIGURED, is_configured),
    ("nodeaffinity", "TestNodeAffinityPriority"): (CONFIGURED, is_configured),
    ("nodeaffinity", "Test_isSchedulableAfterNodeChange"): (QUEUEING, always),
    ("noderesources", "TestEnoughRequests"): (
        f"{CONFIGURED}, or {DYNAMIC}",
        lambda case: is_configured(case) or bool(case["draExtendedResourceEnabled"]),
    ),
    ("noderesources", "TestRestartableInitContainers"): (
        GATE_OFF,
        lambda case: not case["enableSidecarContainers"] and bool(case["pod"]["spec"].get("initContainers")),
    ),
    ("nodeunschedulable", "TestIsSchedulableAfterNodeChange"): (QUEUEING, always),
    ("nodeunschedulable", "TestIsSchedulableAfterPodTolerationChange"): (QUEUEING, always),
    ("podtopologyspread", "TestPreFilterState"): (GATE_OFF, has_spread_gate_off),
    ("podtopologyspread", "TestPreFilterStateRemovePod"): (ELSEWHERE, is_removed_from_elsewhere),
    ("tainttoleration", "TestTaintTolerationScore"): (COMPARISON, needs_comparison),
    ("tainttoleration", "TestTaintTolerationFilter"): (COMPARISON, needs_comparison),
    ("tainttoleration", "TestTaintTolerationFilterWithFeatureGate"): (COMPARISON, needs_comparison),
    ("tainttoleration", "TestIsSchedulableAfterNodeChange"): (QUEUEING, always),
    ("tainttoleration", "Test_isSchedulableAfterPodTolerationChange"): (QUEUEING, always),
}


def applies(test: Test, case: Fields) -> bool:
    return test not in NOT_APPLYING or not NOT_APPLYING[test][1](case)


# -- how a case runs


def named(object: Fields, name: str) -> Fields:
    """The same object with a name, if it has none: only tests have nodes without names."""
    return {**object, "metadata": {"name": name, **object["metadata"]}}


def on_node(pods: Iterable[Fields], node: str) -> list[Fields]:
    return [{**pod, "spec": {**pod["spec"], "nodeName": node}} for pod in pods]


def reasons_of(status: Fields | None) -> list[str]:
    """The reasons of an upstream status; none if the node is allowed. Skip means that the plugin has nothing to do."""
    return [] if status is None or status["code"] == "Skip" else list(status["reasons"])


def judged(plugin: Filter, cluster: Cluster, pod: Fields) -> dict[str, list[str]]:
    """What one plugin alone says about every node."""
    return {name: plugin(cluster, completed(pod), place) for name, place in cluster.places.items()}


def scored(plugin: Score, cluster: Cluster, pod: Fields) -> dict[str, int]:
    return plugin(cluster, completed(pod), list(cluster.places.values()))


def expected_scores(case: Fields) -> dict[str, int]:
    """No list of expected scores means that the plugin is skipped, which leaves all nodes at 0."""
    if "expectedList" in case:
        return {entry["Name"]: entry.get("Score", 0) for entry in case["expectedList"]}
    return {node["metadata"]["name"]: 0 for node in case["nodes"]}


def run_toleration(case: Fields) -> None:
    assert tolerates(case["toleration"], case["taint"]) == case.get("expectTolerated", False)


def run_selector_terms(case: Fields) -> None:
    given = case.get("args") or {}
    if "node" in given:
        terms = (given.get("nodeSelector") or {}).get("nodeSelectorTerms")
        assert matches_any_term(terms, given["node"]) == case.get("want", False)
    else:
        assert not case.get("want")


def run_selector_terms_stateless(case: Fields) -> None:
    given = deepcopy((case.get("args") or {}).get("nodeSelector"))
    matches_any_term((given or {}).get("nodeSelectorTerms"), {"metadata": {}})
    assert given == case.get("want")


def run_untolerated_taint(case: Fields) -> None:
    effects = EFFECTS_THAT_COUNT.get(case["description"], ["NoSchedule", "NoExecute", "PreferNoSchedule"])
    pod, node = {"spec": {"tolerations": case["tolerations"]}}, {"spec": {"taints": case["taints"]}}
    assert (not untolerated_taints(pod, node, effects)) == case.get("expectTolerated", False)


def run_node_selector(case: Fields) -> None:
    errors: list[str] = []
    terms = (case.get("nodeSelector") or {}).get("nodeSelectorTerms") or ()
    for index, term in enumerate(terms):
        try:
            node_term(term, f"nodeSelectorTerms[{index}]")
        except NotParsed as error:
            errors += error.errors
    if "wantErr" in case:
        assert str(NotParsed(errors)) == case["wantErr"]["error"]
        return
    assert not errors
    assert ("node" in case and matches_any_term(terms, case["node"])) == case.get("wantMatch", False)


def run_preferred_terms(case: Fields) -> None:
    if "wantErr" in case:
        with pytest.raises(NotParsed) as raised:
            preferred_terms(case["prefSchedTerms"])
        assert str(raised.value) == case["wantErr"]["error"]
        return
    terms = preferred_terms(case["prefSchedTerms"])
    assert sum(weight for weight, term in terms if term.matches(case["node"])) == case.get("wantScore", 0)


def run_pod_matches_node(case: Fields) -> None:
    node = {"metadata": {"name": case.get("nodeName", ""), "labels": case.get("labels")}}
    assert matches_node(case["pod"], node) == case.get("want", False)


def run_node_affinity(case: Fields) -> None:
    node = {"metadata": {"name": case.get("nodeName", ""), "labels": case.get("labels")}}
    found = kube_filters.node_set(case["pod"])
    if reasons := reasons_of(case.get("wantPreFilterStatus")):
        assert [kube_filters.refusal_of_all_nodes(case["pod"])] == reasons
    elif case.get("runPreFilter"):
        expected = case.get("wantPreFilterResult")
        assert found == (set(expected["NodeNames"]) if expected else None)
    if not reasons_of(case.get("wantPreFilterStatus")):
        verdicts = judged(kube_filters.node_affinity, Cluster([node]), case["pod"])
        assert list(verdicts.values()) == [reasons_of(case.get("wantStatus"))]


def run_node_affinity_score(case: Fields) -> None:
    cluster = Cluster(case["nodes"])
    status = case.get("wantPreScoreStatus") or {}
    if status.get("code") == "Error":
        with pytest.raises(CycleError) as raised:
            scored(kube_scores.node_affinity, cluster, case["pod"])
        assert str(raised.value) == f'running PreScore plugin "NodeAffinity": {status["reasons"][0]}'
        return
    assert scored(kube_scores.node_affinity, cluster, case["pod"]) == expected_scores(case)


def run_pod_affinity(case: Fields) -> None:
    nodes = case["nodes"] if "nodes" in case else [case["node"]]
    statuses = case["wantFilterStatuses"] if "nodes" in case else [case.get("wantFilterStatus")]
    if reasons := reasons_of(case.get("wantPreFilterStatus")):
        assert [kube_filters.refusal_of_all_nodes(completed(case["pod"]))] == reasons
        return
    cluster = Cluster(nodes, case.get("pods") or (), NAMESPACES)
    found = judged(kube_filters.inter_pod_affinity, cluster, case["pod"])
    assert list(found.values()) == [reasons_of(status) for status in statuses]


def run_pod_affinity_score(case: Fields) -> None:
    if (case.get("wantStatus") or {}).get("code") == "Error":
        assert case["wantStatus"]["reasons"][0] in (kube_filters.refusal_of_all_nodes(case["pod"]) or "")
        return
    cluster = Cluster(case["nodes"] or (), case.get("pods") or (), NAMESPACES)
    expected = expected_scores({**case, "nodes": case["nodes"] or ()})
    assert scored(kube_scores.inter_pod_affinity, cluster, case["pod"]) == expected


def run_node_ports(case: Fields) -> None:
    cluster = Cluster([{"metadata": {"name": "m1"}}], on_node(case["existingPods"], "m1"))
    assert judged(kube_filters.node_ports, cluster, case["pod"]) == {"m1": reasons_of(case["wantStatus"])}


def run_node_resources(case: Fields) -> None:
    (node,) = case["nodes"]
    cluster = Cluster([named(node, "node")], on_node(case["existingPods"], "node"))
    assert judged(kube_filters.node_resources_fit, cluster, case["pod"]) == {"node": reasons_of(case["wantStatus"])}


def run_unschedulable(case: Fields) -> None:
    found = judged(kube_filters.node_unschedulable, Cluster([case["node"]]), case["pod"])
    assert list(found.values()) == [reasons_of(case.get("wantStatus"))]


def run_spread(case: Fields) -> None:
    pods = [pod for pod in case["existingPods"] or () if pod != case.get("removed")]
    found = judged(kube_filters.pod_topology_spread, Cluster(case["nodes"], pods), case["pod"])
    if "verdicts" in case:
        assert found == {name: reasons_of(status) for name, status in case["verdicts"].items()}
    else:
        assert not any(found.values())


def run_taints(case: Fields) -> None:
    found = judged(kube_filters.taint_toleration, Cluster([case["node"]]), case["pod"])
    assert list(found.values()) == [reasons_of(case.get("wantStatus"))]


def run_taint_score(case: Fields) -> None:
    assert scored(kube_scores.taint_toleration, Cluster(case["nodes"]), case["pod"]) == expected_scores(case)


RUNNERS: Mapping[Test, Callable[[Fields], None]] = {
    ("api_core_v1_toleration", "TestTolerationToleratesTaint"): run_toleration,
    ("component-helpers_corev1", "TestMatchNodeSelectorTerms"): run_selector_terms,
    ("component-helpers_corev1", "TestMatchNodeSelectorTermsStateless"): run_selector_terms_stateless,
    ("component-helpers_corev1", "TestFindMatchingUntoleratedTaint"): run_untolerated_taint,
    ("component-helpers_nodeaffinity", "TestNodeSelectorMatch"): run_node_selector,
    ("component-helpers_nodeaffinity", "TestPreferredSchedulingTermsScore"): run_preferred_terms,
    ("component-helpers_nodeaffinity", "TestPodMatchesNodeSelectorAndAffinityTerms"): run_pod_matches_node,
    ("interpodaffinity", "TestRequiredAffinitySingleNode"): run_pod_affinity,
    ("interpodaffinity", "TestRequiredAffinityMultipleNodes"): run_pod_affinity,
    ("interpodaffinity", "TestPreferredAffinity"): run_pod_affinity_score,
    ("interpodaffinity", "TestPreferredAffinityWithHardPodAffinitySymmetricWeight"): run_pod_affinity_score,
    ("nodeaffinity", "TestNodeAffinity"): run_node_affinity,
    ("nodeaffinity", "TestNodeAffinityPriority"): run_node_affinity_score,
    ("nodeports", "TestNodePorts"): run_node_ports,
    ("noderesources", "TestEnoughRequests"): run_node_resources,
    ("noderesources", "TestNotEnoughRequests"): run_node_resources,
    ("noderesources", "TestStorageRequests"): run_node_resources,
    ("noderesources", "TestRestartableInitContainers"): run_node_resources,
    ("nodeunschedulable", "TestNodeUnschedulable"): run_unschedulable,
    ("podtopologyspread", "TestPreFilterState"): run_spread,
    ("podtopologyspread", "TestPreFilterStateAddPod"): run_spread,
    ("podtopologyspread", "TestPreFilterStateRemovePod"): run_spread,
    ("podtopologyspread", "TestSingleConstraint"): run_spread,
    ("podtopologyspread", "TestMultipleConstraints"): run_spread,
    ("tainttoleration", "TestTaintTolerationScore"): run_taint_score,
    ("tainttoleration", "TestTaintTolerationFilter"): run_taints,
    ("tainttoleration", "TestTaintTolerationFilterWithFeatureGate"): run_taints,
}


def applying() -> Iterable[Any]:
    for test, run in RUNNERS.items():
        for case in CASES[test]:
            if applies(test, case):
                yield pytest.param(run, case, id=f"{test[1]}: {case.get('name') or case['description']}")


@pytest.mark.parametrize(("run", "case"), list(applying()))
def test_the_oracle_agrees_with_upstream(run: Callable[[Fields], None], case: Fields) -> None:
    run(case)


def test_every_case_is_run_or_listed_with_a_reason() -> None:
    unlisted = [test for test in CASES if test not in RUNNERS and NOT_APPLYING[test][1] is not always]
    assert unlisted == []
    assert {test for test in (*RUNNERS, *NOT_APPLYING) if test not in CASES} == set()
    assert all(reason for reason, _ in NOT_APPLYING.values())


def test_a_reason_that_applies_to_no_case_is_not_listed() -> None:
    assert [test for test in NOT_APPLYING if all(applies(test, case) for case in CASES[test])] == []


def test_no_case_has_vanished() -> None:
    run = sum(applies(test, case) for test in RUNNERS for case in CASES[test])
    left_out = sum(not applies(test, case) for test, cases in CASES.items() for case in cases)
    assert (run, left_out) == (353, 124)
    assert run + left_out == sum(map(len, CASES.values()))
