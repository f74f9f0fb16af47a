"""Kubernetes' own cases, run through the translator and the real engine.

Rule: a case of an upstream table is either run or left out for a reason that stands in a `Table`, one per upstream test
function; `Table.counted` says how many of each, and every test module pins these numbers.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from stead.engine.decisions import Placed, Waiting
from stead.engine.engine import Engine
from stead.engine.facts import AskRunning, AskSubmitted, NodeJoined
from stead.engine.reasons import KeptAway, LacksLabel, NoTermMatches, NotNear, Reason, Tainted, TooNear
from stead.errors import Unsupported
from stead.kubernetes.fields import Fields
from stead.kubernetes.nodes import UNSCHEDULABLE, node_of
from stead.kubernetes.podspec import ask_of
from stead.kubernetes.selecting import tolerations_of
from stead.language.asks import Ask, PolicyName

CASES = Path(__file__).parent.parent / "data" / "kubernetes"

NAMESPACES = {f"subteam{i}.team{j}": {"team": f"team{j}"} for i in (1, 2) for j in (1, 2)}
"""The namespaces that upstream's inter-pod affinity tests create."""

LABELS = "node(s) didn't match Pod's node affinity/selector"
NEAR = "node(s) didn't match pod affinity rules"
APART = "node(s) didn't match pod anti-affinity rules"
KEPT_AWAY = "node(s) didn't satisfy existing pods anti-affinity rules"
TAINTED = "node(s) had untolerated taint(s)"
CORDONED = "node(s) were unschedulable"

QUEUEING = "a queueing hint of kube-scheduler: when to try again, not where to place; stead's engine knows what to wake"
COMPARISON = "toleration operators Lt and Gt are alpha and off by default; the translator refuses them"


@dataclass(frozen=True)
class LeftOut:
    """Why cases of an upstream test function do not apply: all of them, or those that `when` picks."""

    reason: str
    when: Callable[[Fields], bool] = lambda case: True


class Table:
    """The cases of one upstream file."""

    def __init__(self, file: str, left_out: Mapping[str, LeftOut]) -> None:
        lines = (CASES / f"{file}.jsonl").read_text(encoding="utf-8").splitlines()
        self._cases: dict[str, list[Fields]] = {}
        for line in map(json.loads, lines):
            self._cases.setdefault(line["test"], []).append(line["case"])
        self._left_out = left_out
        self._run: Counter[str] = Counter()

    def every(self, test: str) -> pytest.MarkDecorator:
        """Run a test for every case of an upstream test function that applies, under upstream's names."""
        cases = [case for case in self._cases[test] if not self._leaves_out(test, case)]
        self._run[test] += len(cases)
        names = [case.get("name") or case["description"] for case in cases]
        return pytest.mark.parametrize("case", cases, ids=names)

    def cases(self, test: str) -> list[Fields]:
        """All cases of an upstream test function."""
        return self._cases[test]

    def left_out(self, reason: str) -> list[Fields]:
        """All cases that are not run, for this reason."""
        tests = [test for test, left_out in self._left_out.items() if left_out.reason == reason]
        return [case for test in tests for case in self._cases[test] if self._leaves_out(test, case)]

    def counted(self) -> dict[str, tuple[int, int]]:
        """For every upstream test function how many cases run and how many are left out; none is neither."""
        found = {}
        for test, cases in self._cases.items():
            out = sum(self._leaves_out(test, case) for case in cases)
            assert self._run[test] + out == len(cases), f"{test} has {len(cases)} cases: {self._run[test]} + {out}"
            found[test] = (self._run[test], out)
        assert self._left_out.keys() <= self._cases.keys(), "a reason for a test that does not exist"
        assert all(left_out.reason for left_out in self._left_out.values())
        return found

    def _leaves_out(self, test: str, case: Fields) -> bool:
        return test in self._left_out and self._left_out[test].when(case)


def compares(case: Fields) -> bool:
    """Whether a toleration of the case has one of the alpha operators."""
    spec = case.get("pod", {}).get("spec", {})
    found = [*case.get("tolerations", ()), *(spec.get("tolerations") or ()), case.get("toleration") or {}]
    return any(toleration.get("operator") in ("Lt", "Gt") for toleration in found)


def assert_refused_aloud(case: Fields) -> None:
    """A case with an alpha operator is refused by the translator, not misread."""
    spec = case.get("pod", {}).get("spec", {})
    single = [case["toleration"]] if "toleration" in case else []
    with pytest.raises(Unsupported, match="alpha"):
        tolerations_of(case.get("tolerations") or spec.get("tolerations") or single)


# -- upstream's input, completed


def named(fields: Fields, name: str) -> dict[str, Any]:
    """The same object with a name: upstream's tests often leave it out, a cluster never does."""
    return {**fields, "metadata": {"name": name, **fields["metadata"]}}


def roomy(node: Fields) -> dict[str, Any]:
    """A node with a name and room for pods. Upstream runs one plugin at a time, here all rules apply."""
    return {**named(node, "unnamed"), "status": {"allocatable": {"pods": "110"}}}


def cluster(nodes: Iterable[Fields], pods: Iterable[Fields] = ()) -> Engine:
    engine = Engine()
    engine.apply(*(NodeJoined(node_of(roomy(node))) for node in nodes))
    for number, pod in enumerate(pods):
        existing = ask_of(named(pod, f"existing-{number}"), NAMESPACES, lenient=True)
        engine.apply(AskRunning(existing, pod["spec"]["nodeName"]))
    return engine


def pending(pod: Fields) -> Ask:
    return ask_of(named(pod, "incoming"), NAMESPACES)


def pod(**spec: Any) -> Fields:
    return {"metadata": {}, "spec": spec}


# -- upstream's expectation, checked


def upstream_reason(reason: Reason) -> str:
    """What kube-scheduler would say."""
    match reason:
        case LacksLabel() | NoTermMatches():
            return LABELS
        case NotNear():
            return NEAR
        case TooNear():
            return APART
        case KeptAway():
            return KEPT_AWAY
        case Tainted():
            return CORDONED if reason.taint == UNSCHEDULABLE else TAINTED
        case _:
            return f"unexpected: {reason}"


def expected_reason(status: Fields | None) -> str | None:
    """The one reason of an upstream status; None if the node is allowed."""
    if status is None or status["code"] == "Skip":
        return None
    (reason,) = status["reasons"]
    assert isinstance(reason, str)
    return reason


def assert_placement(engine: Engine, ask: Ask, reasons: Sequence[str | None]) -> None:
    """Node by node (in the order they joined) the engine allows the ask, or refuses it for upstream's reason.

    Asked three ways: the candidates, the explanation, and what is decided when it is submitted.
    """
    assert len(engine.nodes) == len(reasons)
    allowed = tuple(node for node, reason in zip(engine.nodes, reasons, strict=True) if reason is None)
    assert engine.candidates(ask) == (allowed,)
    (verdict,) = engine.explain(ask).verdicts
    blamed: Counter[str] = Counter()
    for refusal in verdict.refusals:
        blamed[upstream_reason(refusal.reason)] += refusal.nodes
    assert verdict.candidates == len(allowed)
    assert +blamed == Counter(reason for reason in reasons if reason is not None)
    engine.apply(AskSubmitted(ask))
    (decision,) = engine.decide()
    if allowed:
        assert isinstance(decision, Placed) and decision.node in allowed
    else:
        assert isinstance(decision, Waiting)


def preference_on(engine: Engine, ask: Ask, node: str) -> int:
    """The sum of the weights of what the ask prefers on the node, which every policy but ``kube`` scores nodes by."""
    twin = engine.fork()
    twin.apply(AskRunning(replace(ask, policy=PolicyName.HYBRID), node))
    chosen = twin.explain(ask.id).chosen
    assert chosen is not None and chosen.node == node
    return chosen.preference


def assert_best(engine: Engine, ask: Ask, scores: Mapping[str, int]) -> None:
    """With kube-scheduler's own scores, the engine places the ask on a node of the greatest score."""
    engine.apply(AskSubmitted(ask))
    (decision,) = engine.decide()
    assert isinstance(decision, Placed)
    assert scores[decision.node] == max(scores.values())


def scores_of(case: Fields) -> dict[str, int]:
    return {entry["Name"]: entry.get("Score", 0) for entry in case["expectedList"]}
