"""kube-scheduler's TaintToleration plugin: taints that refuse, and taints that only deter."""

from __future__ import annotations

import pytest

from stead.kubernetes.fields import Fields
from tests.kubernetes.upstream import (
    COMPARISON,
    QUEUEING,
    LeftOut,
    Table,
    assert_best,
    assert_placement,
    assert_refused_aloud,
    cluster,
    compares,
    expected_reason,
    pending,
    preference_on,
    scores_of,
)

TABLE = Table(
    "tainttoleration",
    {
        "TestTaintTolerationScore": LeftOut(COMPARISON, compares),
        "TestTaintTolerationFilter": LeftOut(COMPARISON, compares),
        "TestTaintTolerationFilterWithFeatureGate": LeftOut(COMPARISON, compares),
        "TestIsSchedulableAfterNodeChange": LeftOut(QUEUEING),
        "Test_isSchedulableAfterPodTolerationChange": LeftOut(QUEUEING),
    },
)

DETERRENCE = 100
"""What an untolerated prefer-no-schedule taint costs a node in the engine."""


@TABLE.every("TestTaintTolerationScore")
def test_taints_that_deter(case: Fields) -> None:
    engine, ask, scores = cluster(case["nodes"]), pending(case["pod"]), scores_of(case)
    untolerated = {node: -preference_on(engine, ask, node) // DETERRENCE for node in scores}
    most = max(untolerated.values())
    assert {node: 100 - (100 * count // most if most else 0) for node, count in untolerated.items()} == scores
    assert_best(engine, ask, scores)


@TABLE.every("TestTaintTolerationFilter")
def test_taints_that_refuse(case: Fields) -> None:
    assert_placement(cluster([case["node"]]), pending(case["pod"]), [expected_reason(case.get("wantStatus"))])


@pytest.mark.parametrize("case", TABLE.left_out(COMPARISON), ids=lambda case: case["name"])
def test_alpha_operators_are_refused(case: Fields) -> None:
    assert_refused_aloud(case)


def test_no_case_has_vanished() -> None:
    assert TABLE.counted() == {
        "TestTaintTolerationScore": (5, 2),
        "TestTaintTolerationFilter": (9, 5),
        "TestTaintTolerationFilterWithFeatureGate": (0, 6),
        "TestIsSchedulableAfterNodeChange": (0, 6),
        "Test_isSchedulableAfterPodTolerationChange": (0, 4),
    }
