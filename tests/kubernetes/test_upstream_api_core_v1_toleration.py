"""Kubernetes' core/v1 API: does this toleration tolerate this taint."""

from __future__ import annotations

import pytest

from stead.kubernetes.fields import Fields
from stead.kubernetes.nodes import node_of
from stead.kubernetes.selecting import tolerations_of
from tests.kubernetes.upstream import (
    COMPARISON,
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
    "api_core_v1_toleration",
    {
        "TestTolerationToleratesTaint": LeftOut(COMPARISON, compares),
        "TestCompareNumericValues": LeftOut("the arithmetic behind the alpha operators Lt and Gt, which stead refuses"),
    },
)


@TABLE.every("TestTolerationToleratesTaint")
def test_toleration_covers_taint(case: Fields) -> None:
    node = {"metadata": {"name": "node"}, "spec": {"taints": [case["taint"]]}}
    (toleration,) = tolerations_of([case["toleration"]])
    (taint,) = node_of(node).taints
    tolerated = case.get("expectTolerated", False)
    assert toleration.covers(taint) is tolerated
    assert_placement(cluster([node]), pending(pod(tolerations=[case["toleration"]])), [None if tolerated else TAINTED])


@pytest.mark.parametrize("case", TABLE.left_out(COMPARISON), ids=lambda case: case["description"])
def test_alpha_operators_are_refused(case: Fields) -> None:
    assert_refused_aloud(case)


def test_no_case_has_vanished() -> None:
    assert TABLE.counted() == {"TestTolerationToleratesTaint": (6, 8), "TestCompareNumericValues": (0, 30)}
