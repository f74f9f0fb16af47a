"""The checker finds every kind of broken rule, and nothing where none is broken."""

from __future__ import annotations

from typing import Any

import pytest

from tests.kubernetes.kube_shorthand import A, B, C, apart, near, needs, node, pod, port, spread, taint, term
from tests.kubernetes.kube_shorthand import container as asking
from tests.kubernetes.scheduling.checker import broken_rules

EXPRESSION = {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["2"]}]}
LARGE = {"containers": [asking(cpu="3")]}


def named(name: str, on: str, **more: Any) -> dict[str, Any]:
    return pod(on, metadata={"name": name}, **more)


CASES: dict[str, tuple[list[Any], list[Any], str]] = {
    "a pod on a node that its affinity refuses": ([A, B], [named("p", "a", **needs(EXPRESSION))], "node affinity"),
    "a pod that does not tolerate a taint": ([node("a", **taint())], [named("p", "a")], "taints"),
    "a pod on a cordoned node": ([node("a", unschedulable=True)], [named("p", "a")], "cordon"),
    "more cpu than there is": ([A], [named("p", "a", **LARGE), named("q", "a", **LARGE)], "capacity"),
    "more pods than there may be": (
        [node("a", allocatable={"cpu": "4", "pods": "1"})],
        [named("p", "a"), named("q", "a")],
        "capacity",
    ),
    "one host port twice": ([A], [named("p", "a", **port(80)), named("q", "a", **port(80))], "ports"),
    "two pods that must be apart": ([A], [named("p", "a", **apart(term())), named("q", "a")], "anti-affinity"),
    "pods that must be near, in two zones": (
        [A, B],
        [named("p", "a", **near(term())), named("q", "b", **near(term()))],
        "affinity",
    ),
    "a pod that must be near others on a node without the label": ([C], [named("p", "c", **near(term()))], "affinity"),
    "two pods in one zone and none in the other": (
        [A, B],
        [named("p", "a", **spread()), named("q", "a", **spread())],
        "spread",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_it_finds(name: str) -> None:
    nodes, pods, rule = CASES[name]
    assert {each.partition(":")[0] for each in broken_rules(nodes, pods)} == {rule}


def test_it_finds_nothing_where_no_rule_is_broken() -> None:
    pods = [
        named("p", "a", **apart(term({"matchLabels": {"app": "other"}})), **spread()),
        named("q", "b", **LARGE, **needs(EXPRESSION)),
        named("r", "b", app="db", **near(term())),
        named("first", "c", app="alone", **near(term({"matchLabels": {"app": "alone"}}, "kubernetes.io/hostname"))),
    ]
    assert broken_rules([A, B, C], pods) == []
