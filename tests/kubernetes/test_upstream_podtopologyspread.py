"""kube-scheduler's PodTopologySpread plugin: even numbers of pods over zones and nodes, where it refuses nodes."""

from __future__ import annotations

from stead.engine.explain.verdicts import refused_sets
from stead.engine.facts import AskEnded
from stead.engine.reasons import Skewed
from stead.kubernetes.fields import Fields
from tests.kubernetes.upstream import LeftOut, Table, cluster, pending

DEFAULTS = "default constraints for pods of a service, which is not in the data, or a feature gate that is off"
ELSEWHERE = "the pod is taken from a node where it is not, so that kube-scheduler's counts are wrong on purpose"


def has_defaults(case: Fields) -> bool:
    """Keys of labels that count (matchLabelKeys) cannot be switched off since Kubernetes 1.27."""
    constraints = case["pod"]["spec"].get("topologySpreadConstraints") or ()
    is_off = not case["enableMatchLabelKeys"] and any(each.get("matchLabelKeys") for each in constraints)
    return bool(case.get("defaultConstraints")) or is_off


def is_elsewhere(case: Fields) -> bool:
    return bool(case["removed"]["spec"]["nodeName"] != case["removedFrom"])


TABLE = Table(
    "podtopologyspread",
    {
        "TestPreFilterState": LeftOut(DEFAULTS, has_defaults),
        "TestPreFilterStateRemovePod": LeftOut(ELSEWHERE, is_elsewhere),
    },
)


def skewed(case: Fields) -> set[str]:
    """The nodes that the spreads refuse, whatever other rules say about them: upstream runs this plugin alone."""
    engine = cluster(case["nodes"], case.get("existingPods") or ())
    if "removed" in case:
        engine.apply(AskEnded(f"/{case['removed']['metadata']['name']}"))
    board = engine._parts.board
    sets = refused_sets(board, board.shape_of(pending(case["pod"])).demands[0])
    return {id for reason, nodes in sets if isinstance(reason, Skewed) for id in board.fleet.ids(nodes)}


def assert_skewed(case: Fields) -> None:
    assert skewed(case) == {name for name, verdict in case.get("verdicts", {}).items() if verdict is not None}


@TABLE.every("TestPreFilterState")
def test_counts(case: Fields) -> None:
    assert_skewed(case)


@TABLE.every("TestPreFilterStateAddPod")
def test_counts_with_one_more_pod(case: Fields) -> None:
    assert_skewed(case)


@TABLE.every("TestPreFilterStateRemovePod")
def test_counts_without_a_pod_that_ended(case: Fields) -> None:
    assert_skewed(case)


@TABLE.every("TestSingleConstraint")
def test_one_constraint(case: Fields) -> None:
    assert_skewed(case)


@TABLE.every("TestMultipleConstraints")
def test_several_constraints(case: Fields) -> None:
    assert_skewed(case)


def test_no_case_has_vanished() -> None:
    assert TABLE.counted() == {
        "TestPreFilterState": (30, 6),
        "TestPreFilterStateAddPod": (16, 0),
        "TestPreFilterStateRemovePod": (7, 2),
        "TestSingleConstraint": (23, 0),
        "TestMultipleConstraints": (13, 0),
    }
