"""kube-scheduler's NodeUnschedulable plugin: cordoned nodes."""

from __future__ import annotations

from stead.kubernetes.fields import Fields
from tests.kubernetes.upstream import QUEUEING, LeftOut, Table, assert_placement, cluster, expected_reason, pending

TABLE = Table(
    "nodeunschedulable",
    {
        "TestIsSchedulableAfterNodeChange": LeftOut(QUEUEING),
        "TestIsSchedulableAfterPodTolerationChange": LeftOut(QUEUEING),
    },
)


@TABLE.every("TestNodeUnschedulable")
def test_cordoned_node(case: Fields) -> None:
    assert_placement(cluster([case["node"]]), pending(case["pod"]), [expected_reason(case.get("wantStatus"))])


def test_no_case_has_vanished() -> None:
    assert TABLE.counted() == {
        "TestNodeUnschedulable": (3, 0),
        "TestIsSchedulableAfterNodeChange": (0, 7),
        "TestIsSchedulableAfterPodTolerationChange": (0, 5),
    }
