"""kube-scheduler's NodePorts plugin: two pods on a node cannot have the same host port."""

from __future__ import annotations

from stead.engine.decisions import Placed, Waiting
from stead.engine.facts import AskSubmitted
from stead.engine.reasons import PortTaken
from stead.kubernetes.fields import Fields
from tests.kubernetes.upstream import Table, cluster, pending

TABLE = Table("nodeports", {})


@TABLE.every("TestNodePorts")
def test_host_ports(case: Fields) -> None:
    existing = [{**pod, "spec": {**pod["spec"], "nodeName": "node"}} for pod in case["existingPods"]]
    engine = cluster([{"metadata": {"name": "node"}}], existing)
    ask = pending(case["pod"])
    skipped = case["wantPreFilterStatus"] is not None and case["wantPreFilterStatus"]["code"] == "Skip"
    assert (ask.ports == ()) == skipped
    fits = case["wantStatus"] is None
    assert engine.candidates(ask) == ((("node",),) if fits else ((),))
    (verdict,) = engine.explain(ask).verdicts
    assert [type(refusal.reason) for refusal in verdict.refusals] == ([] if fits else [PortTaken])
    engine.apply(AskSubmitted(ask))
    (decision,) = engine.decide()
    assert isinstance(decision, Placed if fits else Waiting)


def test_no_case_has_vanished() -> None:
    assert TABLE.counted() == {"TestNodePorts": (15, 0)}
