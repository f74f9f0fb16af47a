"""Objects of the API server become facts, and decisions become calls: without a server.

Rule: each test lists what the watches said and compares the facts; the engine is not needed.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from stead.engine.decisions import GroupPlaced, NominationEnded, Placed, Preempted, Verdict, Waiting
from stead.engine.facts import (
    AskChanged,
    AskEnded,
    AskEnding,
    AskLost,
    AskNominated,
    AskRunning,
    AskSubmitted,
    BudgetChanged,
    BudgetEnded,
    ClaimChanged,
    ClaimEnded,
    EvictionFailed,
    Fact,
    NodeJoined,
    NodeLeft,
)
from stead.kubernetes.api.binding import BindResult, Outcome
from stead.kubernetes.api_objects import Problem
from stead.kubernetes.budgets import budget_of
from stead.kubernetes.cluster import KubeCluster
from stead.kubernetes.podspec import node_of
from stead.kubernetes.templates import Pod, Templates
from stead.language.budgets import Budget
from stead.language.labels import Labels
from stead.language.nodes import Node
from tests.kubernetes import objects


class Recorder:
    """Takes down what the cluster asks for."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, ...]] = []
        self.forgotten: list[str] = []

    def bind(self, pod: Pod, node: str) -> None:
        self.calls.append(("bind", pod.key, node))

    def preempt(self, pod: Pod, node: str, victims: Sequence[Pod]) -> None:
        self.calls.append(("preempt", pod.key, node, *(victim.key for victim in victims)))

    def end_nomination(self, pod: Pod) -> None:
        self.calls.append(("end nomination", pod.key))

    def report_pending(self, pods: Sequence[Pod], gang: str | None = None) -> None:
        self.calls.append(("pending", *(pod.key for pod in pods), *([] if gang is None else [f"of {gang}"])))

    def report_problem(self, pod: Pod, problem: Problem) -> None:
        self.calls.append(("problem", pod.key))

    def report_bound(self, pod: Pod, node: str, seconds: float, waited_s: float) -> None:
        self.calls.append(("bound", pod.key, node))

    def forget(self, pod: Pod) -> None:
        self.forgotten.append(pod.uid)

    def look_again(self, pod: Pod) -> None:
        self.calls.append(("look", pod.key))

    def try_later(self, pod: Pod, message: str) -> None:
        self.calls.append(("later", pod.key))


TEMPLATES = Templates(("stead", "batch"))


def pod(name: str, node: str = "", uid: str = "", phase: str = "Pending", **more: Any) -> Pod:
    metadata = more.pop("metadata", {})
    found = objects.pod(name, **more)
    found["metadata"] |= {"uid": uid or f"uid-{name}", **metadata}
    found["spec"] |= {"nodeName": node} if node else {}
    found["status"] = {"phase": phase}
    return TEMPLATES.decode_pod(json.dumps(found).encode())


def node(name: str, **more: Any) -> Node:
    return node_of(objects.node(name, **more))


@pytest.fixture
def calls() -> Recorder:
    return Recorder()


@pytest.fixture
def cluster(calls: Recorder) -> KubeCluster:
    return KubeCluster(calls, ("stead", "batch"))


def short(facts: Sequence[Fact]) -> list[tuple[str, ...]]:
    """Facts as words."""
    found: list[tuple[str, ...]] = []
    for fact in facts:
        match fact:
            case NodeJoined(joined):
                found.append(("joined", joined.id))
            case NodeLeft(left):
                found.append(("left", left))
            case AskSubmitted(ask):
                found.append(("submitted", ask.id))
            case AskRunning(ask, where):
                found.append(("running", ask.id, where))
            case AskEnded(id):
                found.append(("ended", id))
            case AskChanged(ask):
                found.append(("changed", ask.id))
            case AskEnding(id):
                found.append(("ending", id))
            case AskNominated(id, where):
                found.append(("nominated", id, where))
            case EvictionFailed(id, is_final):
                found.append(("not evicted", id, "for good" if is_final else "now"))
            case BudgetChanged(budget):
                found.append(("budget", budget.id, str(budget.allowed)))
            case BudgetEnded(id):
                found.append(("no budget", id))
            case AskLost(id):
                found.append(("lost", id))
    return found


def news(cluster: KubeCluster) -> list[tuple[str, ...]]:
    return short(list(cluster.facts()))


def result(name: str, outcome: Outcome, uid: str = "", on: str = "n1") -> BindResult:
    return BindResult("default", name, uid or f"uid-{name}", on, outcome, "", 0.1)


# Which pods are submitted


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        pytest.param(pod("a"), [("submitted", "default/a")], id="a pending pod of this scheduler"),
        pytest.param(pod("a", scheduler="batch"), [("submitted", "default/a")], id="of its second name"),
        pytest.param(pod("a", scheduler="default-scheduler"), [], id="of another scheduler"),
        pytest.param(pod("a", schedulingGates=[{"name": "wait"}]), [], id="with a scheduling gate"),
        pytest.param(pod("a", metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"}), [], id="being deleted"),
        pytest.param(pod("a", phase="Succeeded"), [], id="finished"),
        pytest.param(pod("a", "n1"), [("running", "default/a", "n1")], id="with a node"),
        pytest.param(pod("a", "n1", scheduler="other"), [("running", "default/a", "n1")], id="placed by another"),
        pytest.param(pod("a", "n1", phase="Running"), [("running", "default/a", "n1")], id="running"),
        pytest.param(pod("a", "n1", phase="Failed"), [], id="failed"),
        pytest.param(pod("a", "gone"), [], id="on a node that does not exist"),
    ],
)
def test_a_pod_is_reported(cluster: KubeCluster, given: Pod, expected: list[tuple[str, ...]]) -> None:
    cluster.nodes_changed([node("n1")])
    news(cluster)
    cluster.pods_changed([given])
    assert news(cluster) == expected


def test_a_pod_that_cannot_be_read_is_reported_to_its_owner(cluster: KubeCluster, calls: Recorder) -> None:
    cluster.pods_changed([pod("a", volumes=[{"name": "data", "awsElasticBlockStore": {"volumeID": "x"}}])])
    assert (news(cluster), calls.calls) == ([], [("problem", "default/a")])


def test_a_problem_is_reported_once(cluster: KubeCluster, calls: Recorder) -> None:
    claim = pod("a", resourceClaims=[{"name": "gpu"}])
    cluster.pods_changed([claim])
    cluster.pods_changed([claim])
    assert calls.calls == [("problem", "default/a")]
    assert cluster.queues() == {"active": 0, "unschedulable": 1, "gated": 0}
    cluster.pods_deleted(["default/a"])
    assert cluster.queues() == {"active": 0, "unschedulable": 0, "gated": 0}
    assert calls.forgotten == ["uid-a"]


def test_a_gate_that_is_removed_submits_the_pod(cluster: KubeCluster) -> None:
    cluster.pods_changed([pod("a", schedulingGates=[{"name": "wait"}])])
    assert cluster.queues() == {"active": 0, "unschedulable": 0, "gated": 1}
    cluster.pods_changed([pod("a")])
    assert news(cluster) == [("submitted", "default/a")]


# What changes


def test_a_change_that_does_not_concern_scheduling_is_no_fact(cluster: KubeCluster) -> None:
    cluster.nodes_changed([known := node("n1")])
    cluster.pods_changed([pod("a"), pod("b", "n1")])
    news(cluster)
    cluster.nodes_changed([known])
    cluster.pods_changed([pod("a"), pod("b", "n1", phase="Running")])
    assert news(cluster) == []


def test_a_pending_pod_that_changes_is_submitted_again(cluster: KubeCluster) -> None:
    cluster.pods_changed([pod("a")])
    cluster.pods_changed([pod("a", tolerations=[{"operator": "Exists"}])])
    assert news(cluster) == [("submitted", "default/a"), ("ended", "default/a"), ("submitted", "default/a")]


def test_a_running_pod_whose_labels_change_is_counted_anew(cluster: KubeCluster) -> None:
    cluster.nodes_changed([node("n1")])
    cluster.pods_changed([pod("a", "n1")])
    news(cluster)
    cluster.pods_changed([pod("a", "n1", labels={"app": "web"})])
    assert news(cluster) == [("changed", "default/a")]


def test_a_running_pod_is_reported_again_when_its_start_is_known(cluster: KubeCluster) -> None:
    cluster.nodes_changed([node("n1")])
    cluster.pods_changed([pod("a", "n1")])
    news(cluster)
    started = msgspec.structs.replace(pod("a", "n1"), start_time="2026-05-04T12:00:00Z")
    cluster.pods_changed([started])
    (fact,) = cluster.facts()
    assert isinstance(fact, AskRunning)
    assert fact.started == datetime(2026, 5, 4, 12, tzinfo=UTC).timestamp()
    cluster.pods_changed([started])
    assert not news(cluster)


def test_a_terminating_pod_stays_on_its_node_until_it_is_gone(cluster: KubeCluster) -> None:
    cluster.nodes_changed([node("n1")])
    cluster.pods_changed([pod("a", "n1")])
    news(cluster)
    cluster.pods_changed([pod("a", "n1", metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"})])
    assert news(cluster) == [("changed", "default/a"), ("ending", "default/a")]
    cluster.pods_deleted(["default/a"])
    assert news(cluster) == [("ended", "default/a")]


def test_a_pod_of_the_same_name_with_another_uid_is_another_pod(cluster: KubeCluster) -> None:
    cluster.nodes_changed([node("n1")])
    cluster.pods_changed([pod("a", "n1", uid="old")])
    news(cluster)
    cluster.pods_changed([pod("a", uid="new")])
    assert news(cluster) == [("ended", "default/a"), ("submitted", "default/a")]


def test_a_list_tells_what_was_deleted_meanwhile(cluster: KubeCluster) -> None:
    cluster.nodes_changed([node("n1"), node("n2")])
    cluster.pods_changed([pod("a"), pod("b", "n1"), pod("c", "n2")])
    news(cluster)
    cluster.all_nodes([node("n1"), node("n3")])
    cluster.all_pods([pod("b", "n1"), pod("d")])
    assert set(news(cluster)) == {
        ("left", "n2"),
        ("ended", "default/c"),
        ("joined", "n1"),
        ("joined", "n3"),
        ("ended", "default/a"),
        ("submitted", "default/d"),
    }


# Nodes that come and go


def test_pods_of_a_deleted_node_are_not_placed_again(cluster: KubeCluster) -> None:
    cluster.nodes_changed([node("n1")])
    cluster.pods_changed([pod("a", "n1")])
    news(cluster)
    cluster.nodes_deleted(["n1", "n9"])
    assert news(cluster) == [("ended", "default/a"), ("left", "n1")]


def test_a_node_that_joins_brings_the_pods_that_name_it(cluster: KubeCluster) -> None:
    cluster.pods_changed([pod("b", "n1"), pod("a", "n1")])
    cluster.nodes_changed([node("n1")])
    assert news(cluster) == [("joined", "n1"), ("running", "default/a", "n1"), ("running", "default/b", "n1")]


def test_a_pod_that_is_gone_does_not_come_back_with_its_node(cluster: KubeCluster) -> None:
    cluster.pods_changed([pod("a", "n1")])
    cluster.pods_deleted(["default/a"])
    cluster.nodes_changed([node("n1")])
    assert news(cluster) == [("joined", "n1")]


def test_a_node_gets_its_limits_of_volumes(cluster: KubeCluster) -> None:
    read = node("n1")
    cluster.all_limits([("n1", (("ebs", 2),)), ("n2", (("ebs", 3),))])
    cluster.nodes_changed([read])
    assert news(cluster) == [("joined", "n1")]
    assert dict(cluster.nodes["n1"].volumes) == {"ebs": 2}
    cluster.nodes_changed([read])
    cluster.limits_changed("n1", (("ebs", 2),))
    assert news(cluster) == [], "nothing has changed"
    cluster.all_limits([("n2", (("ebs", 3),))])
    assert news(cluster) == [("joined", "n1")]
    assert not cluster.nodes["n1"].volumes


def test_claims_are_reported_before_the_pods_that_use_them(cluster: KubeCluster) -> None:
    cluster.pods_changed([pod("a", volumes=[{"name": "tmp", "ephemeral": {"volumeClaimTemplate": {}}}])])
    claim, submitted = cluster.facts()
    assert isinstance(claim, ClaimChanged) and claim.claim.id == "default/a-tmp"
    assert isinstance(submitted, AskSubmitted) and submitted.ask.claims == ("default/a-tmp",)
    cluster.start_over()
    assert [type(fact) for fact in cluster.facts()] == [ClaimChanged, AskSubmitted]
    cluster.pods_deleted(["default/a"])
    assert list(cluster.facts()) == [ClaimEnded("default/a-tmp"), AskEnded("default/a")]


def test_a_pod_whose_claims_cannot_be_bound_where_it_was_placed_is_placed_again(cluster: KubeCluster) -> None:
    cluster.nodes_changed([node("n1")])
    cluster.pods_changed([waiting := pod("a")])
    news(cluster)
    cluster.bind(Placed("default/a", "n1"))
    cluster.not_bound_here(waiting)
    assert news(cluster) == [("lost", "default/a")]
    assert not cluster.binding


# Bindings


@pytest.fixture
def binding(cluster: KubeCluster, calls: Recorder) -> KubeCluster:
    """A pod that is being bound."""
    cluster.nodes_changed([node("n1")])
    cluster.pods_changed([pod("a")])
    news(cluster)
    cluster.bind(Placed("default/a", "n1"))
    assert calls.calls == [("bind", "default/a", "n1")]
    calls.calls.clear()
    return cluster


@pytest.mark.parametrize(
    ("outcome", "expected"),
    [
        (Outcome.BOUND, [("bound", "default/a", "n1")]),
        (Outcome.LOST, [("look", "default/a")]),
        (Outcome.AMBIGUOUS, [("look", "default/a")]),
        (Outcome.FAILED, [("later", "default/a")]),
        (Outcome.FENCED, [("later", "default/a")]),
    ],
)
def test_after_a_binding(
    binding: KubeCluster, calls: Recorder, outcome: Outcome, expected: list[tuple[str, ...]]
) -> None:
    """Its place stays reserved: no outcome is a fact by itself."""
    binding.bound(result("a", outcome))
    assert (calls.calls, news(binding)) == (expected, [])


def test_the_result_for_an_earlier_pod_of_that_name_is_ignored(binding: KubeCluster, calls: Recorder) -> None:
    binding.pods_changed([pod("a", uid="new")])
    news(binding)
    binding.bound(result("a", Outcome.LOST))
    assert (calls.calls, news(binding)) == ([], [])


def test_the_watch_confirms_the_binding(binding: KubeCluster) -> None:
    binding.bound(result("a", Outcome.BOUND))
    binding.pods_changed([pod("a", "n1")])
    assert news(binding) == [("running", "default/a", "n1")]
    assert not binding.binding


def test_the_watch_overrides_a_lost_binding(binding: KubeCluster, calls: Recorder) -> None:
    binding.nodes_changed([node("n2")])
    binding.pods_changed([pod("a", "n2", scheduler="stead")])
    binding.bound(result("a", Outcome.LOST))
    assert news(binding) == [("joined", "n2"), ("running", "default/a", "n2")]
    assert calls.calls == []


def test_a_pod_that_changes_while_it_is_bound_waits_for_the_outcome(binding: KubeCluster) -> None:
    changed = pod("a", labels={"app": "web"})
    binding.pods_changed([changed])
    assert news(binding) == []
    binding.bound(result("a", Outcome.FAILED))
    binding.released(changed)
    assert news(binding) == [("lost", "default/a"), ("ended", "default/a"), ("submitted", "default/a")]


@pytest.mark.parametrize("end", ["deleted", "assigned", "bound again", "recreated"])
def test_a_pod_is_not_released_if_it_has(binding: KubeCluster, end: str) -> None:
    binding.bound(result("a", Outcome.FAILED))
    match end:
        case "deleted":
            binding.pods_deleted(["default/a"])
        case "assigned":
            binding.pods_changed([pod("a", "n1")])
        case "bound again":
            binding.bind(Placed("default/a", "n1"))
        case "recreated":
            binding.pods_changed([pod("a", uid="new")])
    news(binding)
    binding.released(pod("a"))
    assert news(binding) == []


@pytest.mark.parametrize(
    ("meanwhile", "found", "expected"),
    [
        pytest.param([], None, [("ended", "default/a")], id="it is gone"),
        pytest.param([], pod("a"), [("lost", "default/a")], id="it is still pending"),
        pytest.param([], pod("a", "n1"), [("running", "default/a", "n1")], id="it has a node"),
        pytest.param([], pod("a", uid="new"), [], id="it was recreated, which the watch will show"),
        pytest.param([pod("a", uid="new")], None, [], id="the new pod of its name is not deleted"),
        pytest.param([pod("a", uid="new")], pod("a", "n1"), [], id="the old pod does not come back"),
        pytest.param([pod("a", "n1")], pod("a"), [], id="an answer older than the watch is dropped"),
    ],
)
def test_a_pod_is_read_again(
    binding: KubeCluster, meanwhile: list[Pod], found: Pod | None, expected: list[tuple[str, ...]]
) -> None:
    binding.bound(result("a", Outcome.LOST))
    binding.pods_changed(meanwhile)
    news(binding)
    binding.read_again(pod("a"), found)
    assert news(binding) == expected


def test_a_pod_that_was_deleted_meanwhile_does_not_come_back(binding: KubeCluster) -> None:
    binding.bound(result("a", Outcome.LOST))
    binding.pods_deleted(["default/a"])
    news(binding)
    binding.read_again(pod("a"), pod("a", "n1"))
    assert (news(binding), binding.pods) == ([], {})


def test_nothing_more_is_reported_on_a_pod_that_another_scheduler_bound(cluster: KubeCluster, calls: Recorder) -> None:
    cluster.nodes_changed([node("n1")])
    cluster.pods_changed([pod("a")])
    cluster.tell([Waiting(("default/a",), (Verdict(0, 0, ()),))])
    cluster.pods_changed([pod("a", "n1")])
    assert calls.forgotten == ["uid-a"]
    assert cluster.queues()["unschedulable"] == 0


def test_a_decision_for_a_pod_that_is_gone_binds_nothing(cluster: KubeCluster, calls: Recorder) -> None:
    cluster.pods_changed([pod("a", "n1")])
    cluster.bind(Placed("default/a", "n1"))
    cluster.bind(Placed("default/b", "n1"))
    assert calls.calls == []


def test_all_members_of_a_group_are_bound(cluster: KubeCluster, calls: Recorder) -> None:
    cluster.pods_changed([pod("a"), pod("b")])
    cluster.bind(GroupPlaced("g", 0, (("default/a", "n1"), ("default/b", "n2"))))
    assert calls.calls == [("bind", "default/a", "n1"), ("bind", "default/b", "n2")]


# What users are told


def test_equal_pending_pods_are_reported_together(cluster: KubeCluster, calls: Recorder) -> None:
    cluster.pods_changed([pod("a"), pod("b")])
    cluster.tell([Waiting(("default/a", "default/b", "default/gone"), (Verdict(0, 0, ()),))])
    assert calls.calls == [("pending", "default/a", "default/b")]
    assert cluster.queues() == {"active": 0, "unschedulable": 2, "gated": 0}


# Another process led meanwhile


def test_a_new_engine_gets_the_whole_cluster(binding: KubeCluster) -> None:
    binding.pods_changed([pod("b", "n1"), pod("c", "gone"), pod("d", scheduler="other")])
    binding.start_over()
    assert news(binding) == [("joined", "n1"), ("submitted", "default/a"), ("running", "default/b", "n1")]


# Preemption


def victim(name: str) -> Pod:
    return pod(name, "n1")


def test_victims_are_deleted_for_a_pod_that_is_still_there(cluster: KubeCluster, calls: Recorder) -> None:
    cluster.pods_changed([pod("urgent"), victim("low")])
    cluster.preempt(Preempted("default/urgent", "n1", ("default/low", "default/gone")))
    assert calls.calls == [("preempt", "default/urgent", "n1", "default/low")]
    cluster.end_nomination(NominationEnded("default/urgent", "n1"))
    cluster.pods_deleted(["default/urgent"])
    cluster.preempt(Preempted("default/urgent", "n1", ("default/low",)))
    cluster.end_nomination(NominationEnded("default/urgent", "n1"))
    assert calls.calls[1:] == [("end nomination", "default/urgent")]


def test_a_nomination_from_before_the_start_is_reported_once(cluster: KubeCluster) -> None:
    nominated = msgspec.structs.replace(pod("urgent"), nominated="n1")
    cluster.pods_changed([nominated])
    assert news(cluster) == [("submitted", "default/urgent"), ("nominated", "default/urgent", "n1")]
    cluster.pods_changed([msgspec.structs.replace(nominated, nominated="n2")])
    assert not news(cluster), "this process wrote it"


def test_a_victim_that_was_not_deleted_goes_on_unless_it_is_being_deleted(cluster: KubeCluster) -> None:
    cluster.nodes_changed([node("n1")])
    low = victim("low")
    cluster.pods_changed([low])
    news(cluster)
    cluster.not_evicted(low, is_final=True)
    cluster.not_evicted(low, is_final=False)
    assert news(cluster) == [("not evicted", "default/low", "for good"), ("not evicted", "default/low", "now")]
    cluster.not_evicted(pod("low", "n1", uid="older"), is_final=True)
    cluster.pods_changed([pod("low", "n1", metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"})])
    news(cluster)
    cluster.not_evicted(low, is_final=True)
    assert not news(cluster)


def test_budgets_are_reported_when_they_change_and_to_a_new_engine(cluster: KubeCluster) -> None:
    def budget(name: str, allowed: int) -> Budget:
        metadata = {"namespace": "default", "name": name}
        spec = {"selector": {"matchLabels": {"app": name}}}
        return budget_of({"metadata": metadata, "spec": spec, "status": {"disruptionsAllowed": allowed}})

    cluster.all_budgets([budget("db", 1), budget("web", 2)])
    cluster.budget_changed(budget("db", 1))
    assert news(cluster) == [("budget", "default/db", "1"), ("budget", "default/web", "2")]
    cluster.all_budgets([budget("db", 0)])
    assert news(cluster) == [("no budget", "default/web"), ("budget", "default/db", "0")]
    cluster.start_over()
    assert news(cluster) == [("budget", "default/db", "0")]
    cluster.budget_deleted("default/db")
    assert news(cluster) == [("no budget", "default/db")]


@pytest.mark.parametrize(
    ("selector", "is_beta", "protects"),
    [
        ({"matchLabels": {"app": "db"}}, False, True),
        ({"matchLabels": {"app": "web"}}, False, False),
        ({}, False, True),
        ({}, True, False),
        (None, False, False),
        ({"matchExpressions": [{"key": "app", "operator": "Is"}]}, False, False),
    ],
)
def test_a_budget_protects_what_its_selector_matches(selector: Any, is_beta: bool, protects: bool) -> None:
    spec = {} if selector is None else {"selector": selector}
    found = budget_of({"metadata": {"namespace": "default", "name": "db"}, "spec": spec}, is_beta)
    assert found.protects("default", Labels({"app": "db"})) == protects
    assert not found.protects("other", Labels({"app": "db"}))
    assert found.allowed == 0
