"""kube-scheduler's DefaultPreemption plugin: for whom pods are evicted, which ones, and on which node."""

from __future__ import annotations

from calendar import timegm
from time import strptime
from typing import Any

from stead.engine.decisions import NominationEnded, Preempted
from stead.engine.engine import Engine
from stead.engine.facts import (
    AskEnding,
    AskNominated,
    AskRunning,
    AskSubmitted,
    BudgetChanged,
    NodeJoined,
    NodeTainted,
)
from stead.engine.preempting.search import room_for
from stead.kubernetes.budgets import budget_of
from stead.kubernetes.fields import Fields
from stead.kubernetes.nodes import node_of
from stead.kubernetes.podspec import ask_of, pod_id
from stead.language.taints import Taint
from tests.kubernetes.upstream import LeftOut, Table, named

EXTENDERS = "extenders: stead has none"
FAKE_STATUS = "the test says which nodes cannot be helped, whatever their spec; here the rules say that"
FAKE_FILTER = "a fake plugin of the test refuses or allows nodes by their names"
FAILING_PLUGIN = "a fake plugin of the test fails with an error"
SAMPLED = "kube-scheduler looks at some of the nodes, from an offset on; stead compares all nodes"
POD_GROUPS = "feature gates of pods in a scheduling group"
DISRUPTED = "a pod whose eviction was processed is being deleted, so stead knows from the pod that it is ending"
TERMINATING = "stead waits for every pod of a lower priority that is terminating, whoever deleted it"


def reason_of(test: str, case: Fields) -> str | None:
    """Why a case is left out; None if it is run."""
    plugins, name = case.get("plugins") or [], case["name"]
    limit, nodes = case.get("candidatesWanted"), case.get("nodes") or []
    fake = {"TrueFilter", "FalseFilter", "MatchFilter"} & set(plugins) or case.get("fakeFilterRC") == "Unschedulable"
    given = [each["code"] for each in (case.get("filtered") or {}).values()]
    checks = [
        (case.get("extender") or case.get("extenders"), EXTENDERS),
        ("schedulingGroup" in case["pod"]["spec"], POD_GROUPS),
        ("TestPlugin" in name, FAILING_PLUGIN),
        ("UnschedulableAndUnresolvable" in given, FAKE_STATUS),
        (fake, FAKE_FILTER),
        (limit is not None and limit < len(nodes), SAMPLED),
        (any("disruptedPods" in pdb["status"] for pdb in case.get("pdbs") or []) and "belongs to" in name, DISRUPTED),
        (name == "non-victim Pods terminating", TERMINATING),
    ]
    return next((reason for is_so, reason in checks if is_so), None)


TESTS = ("TestPostFilter", "TestDryRunPreemption", "TestSelectBestCandidate", "TestPreempt")
ELIGIBLE = "TestPodEligibleToPreemptOthers"
TABLE = Table(
    "defaultpreemption",
    {
        test: LeftOut("see reason_of", lambda case, test=test: reason_of(test, case) is not None)  # type: ignore[misc]
        for test in (*TESTS, ELIGIBLE)
    },
)


def started(pod: Fields) -> float:
    """kube-scheduler takes pods without a time of start as started now; the tests' other times are long ago."""
    written = (pod.get("status") or {}).get("startTime")
    return float(timegm(strptime(written, "%Y-%m-%dT%H:%M:%SZ"))) if written else 1e9


def cluster(case: Fields) -> Engine:
    engine = Engine()
    engine.apply(*(NodeJoined(node_of(node)) for node in case.get("nodes") or ()))
    for number, pod in enumerate(case.get("pods") or ()):
        ask = ask_of(named(pod, f"existing-{number}"), lenient=True)
        engine.apply(AskRunning(ask, pod["spec"]["nodeName"], started(pod)))
        if pod["metadata"].get("deletionTimestamp"):
            engine.apply(AskEnding(ask.id))
    for number, pdb in enumerate(case.get("pdbs") or ()):
        engine.apply(BudgetChanged(budget_of(named(pdb, f"pdb-{number}"))))
    return engine


def names(ids: tuple[str, ...]) -> list[str]:
    return sorted(id.split("/")[1] for id in ids)


def preempt(case: Fields) -> Preempted | None:
    """What is evicted for the pod of a case."""
    engine = cluster(case)
    engine.apply(AskSubmitted(ask_of(case["pod"])))
    return next((each for each in engine.decide() if isinstance(each, Preempted)), None)


@TABLE.every("TestPostFilter")
def test_the_node_that_is_nominated(case: Fields) -> None:
    found = preempt(case)
    assert (found.node if found else "") == case["wantNode"]


@TABLE.every("TestSelectBestCandidate")
def test_the_best_candidate(case: Fields) -> None:
    found = preempt(case)
    assert found is not None
    assert found.node in case["wantAnyNode"]


@TABLE.every("TestPreempt")
def test_the_node_and_the_victims(case: Fields) -> None:
    found = preempt(case)
    assert (found.node if found else "") == case["wantNode"]
    assert (names(found.victims) if found else []) == sorted(case["wantVictims"] or [])


@TABLE.every("TestDryRunPreemption")
def test_the_victims_on_each_node(case: Fields) -> None:
    engine = cluster(case)
    parts, ask = engine._parts, ask_of(case["pod"])
    preemption, candidates = parts.preemption, list[dict[str, Any]]()
    for node, row in parts.board.fleet.rows.map.items():
        shape = parts.board.shape_of(ask)
        room = room_for(preemption._sources(), preemption._rankings, shape, ask.priority, fence=1 << row)
        if room is not None and room.victims:  # upstream does not look at a node where nobody could go
            candidates.append({"node": node, "pdbViolations": room.violations, "victims": names(room.victims)})
    wanted = [{**each, "victims": sorted(each["victims"])} for each in case["want"]]
    assert sorted(candidates, key=str) == sorted(wanted, key=str)


@TABLE.every(ELIGIBLE)
def test_who_may_preempt_others(case: Fields) -> None:
    """There is one more node, with a pod that would have to go."""
    engine, ask = cluster(case), ask_of(case["pod"])
    other = {"metadata": {"name": "other"}, "status": {"allocatable": {"pods": "1"}}}
    engine.apply(NodeJoined(node_of(other)))
    engine.apply(AskRunning(ask_of({"metadata": {"name": "low"}, "spec": {"priority": 1}}), "other", 0.0))
    for node in case.get("nodes") or ():  # its only place is taken by the pods of the case
        full = {**node, "status": {"allocatable": {"pods": str(len(case["pods"]))}}}
        engine.apply(NodeJoined(node_of(full)))
    nominated: str = (case["pod"].get("status") or {}).get("nominatedNodeName") or ""
    engine.apply(AskSubmitted(ask), *([AskNominated(pod_id(case["pod"]), nominated)] if nominated else []))
    if case["nominatedNodeStatus"] is not None:
        engine.apply(NodeTainted(nominated, Taint("key", "value")))
    decisions = engine.decide()
    assert any(isinstance(each, Preempted) for each in decisions) == case["want"]
    assert any(isinstance(each, NominationEnded) for each in decisions) == bool(nominated and case["want"])


def test_no_case_has_vanished() -> None:
    assert TABLE.counted() == {
        "TestPostFilter": (6, 12),
        "TestDryRunPreemption": (9, 12),
        "TestSelectBestCandidate": (9, 0),
        "TestPodEligibleToPreemptOthers": (4, 1),
        "TestPreempt": (4, 4),
    }


def test_every_case_that_is_left_out_has_a_reason() -> None:
    reasons: dict[str, int] = {}
    for test in (*TESTS, ELIGIBLE):
        for case in TABLE.cases(test):
            reason = reason_of(test, case)
            if reason is not None:
                reasons[reason] = reasons.get(reason, 0) + 1
    assert reasons == {
        EXTENDERS: 5,
        FAKE_STATUS: 3,
        FAKE_FILTER: 4,
        FAILING_PLUGIN: 2,
        SAMPLED: 6,
        POD_GROUPS: 6,
        DISRUPTED: 2,
        TERMINATING: 1,
    }
