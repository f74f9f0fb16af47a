"""What the cluster does with the outcome of a binding that did not succeed: no pod is forgotten."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from stead.engine.decisions import Placed
from stead.kubernetes.api.binding import BindResult, Outcome
from stead.kubernetes.api_objects import Problem
from stead.kubernetes.cluster import KubeCluster
from stead.kubernetes.templates import Pod, Templates
from stead.language.nodes import NodeId

POD = b"""{"metadata": {"namespace": "default", "name": "web", "uid": "1"},
           "spec": {"schedulerName": "stead", "containers": [{"name": "main"}]}}"""


class RecordedWrites:
    """Notes what the cluster asks for."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def bind(self, pod: Pod, node: NodeId) -> None:
        self.asked.append("bind")

    def preempt(self, pod: Pod, node: NodeId, victims: Sequence[Pod]) -> None:
        self.asked.append("preempt")

    def end_nomination(self, pod: Pod) -> None:
        self.asked.append("end_nomination")

    def report_pending(self, pods: Sequence[Pod], gang: str | None = None) -> None:
        self.asked.append("report_pending")

    def report_problem(self, pod: Pod, problem: Problem) -> None:
        self.asked.append("report_problem")

    def report_bound(self, pod: Pod, node: NodeId, seconds: float, waited_s: float) -> None:
        self.asked.append("report_bound")

    def forget(self, pod: Pod) -> None:
        self.asked.append("forget")

    def look_again(self, pod: Pod) -> None:
        self.asked.append("look_again")

    def try_later(self, pod: Pod, message: str) -> None:
        self.asked.append("try_later")


@pytest.mark.parametrize(
    ("outcome", "then"),
    [
        (Outcome.BOUND, "report_bound"),
        (Outcome.LOST, "look_again"),
        (Outcome.AMBIGUOUS, "look_again"),
        (Outcome.FAILED, "try_later"),
        (Outcome.FENCED, "try_later"),  # the fence can open again, if the Lease is renewed in the last moment
    ],
)
def test_every_outcome_leads_on(outcome: Outcome, then: str) -> None:
    writes = RecordedWrites()
    cluster = KubeCluster(writes, ["stead"])
    cluster.pods_changed([Templates().decode_pod(POD)])
    cluster.bind(Placed("default/web", "node"))
    cluster.bound(BindResult("default", "web", "1", "node", outcome, "", 0.0))
    assert writes.asked == ["bind", then]
