"""kube-scheduler's NodeResourcesFit plugin: what a pod requests, and whether it fits what is free."""

from __future__ import annotations

from stead.engine.engine import Engine
from stead.engine.facts import AskRunning, NodeJoined
from stead.engine.reasons import NeverFits, ShortOf
from stead.kubernetes.fields import Fields
from stead.kubernetes.nodes import node_of
from stead.kubernetes.podspec import ask_of
from stead.language.resources import CPU
from tests.kubernetes.upstream import LeftOut, Table, named, pending

CONFIGURED = (
    "ignored resources are configuration of kube-scheduler, and devices of dynamic resource allocation are not "
    "resources of a node; stead has neither"
)
NO_SIDECARS = "a feature gate that cannot be switched off since Kubernetes 1.33"


def is_configured(case: Fields) -> bool:
    args = case["args"]
    ignores = bool(args["IgnoredResources"] or args["IgnoredResourceGroups"])
    allocates = case["draExtendedResourceEnabled"] and case["wantStatus"] is None
    return ignores or bool(allocates and case["name"] != "extended resource backed by device plugin")


def has_no_sidecars(case: Fields) -> bool:
    return not case["enableSidecarContainers"]


TABLE = Table(
    "noderesources",
    {
        "TestEnoughRequests": LeftOut(CONFIGURED, is_configured),
        "TestRestartableInitContainers": LeftOut(NO_SIDECARS, has_no_sidecars),
    },
)


def assert_fits(case: Fields) -> None:
    """The engine allows the node, or names only resources that upstream names too."""
    (node,) = case["nodes"]
    engine = Engine()
    engine.apply(NodeJoined(node_of(named(node, "node"))))
    for number, existing in enumerate(case["existingPods"]):
        engine.apply(AskRunning(ask_of(named(existing, f"existing-{number}"), lenient=True), "node"))
    ask = pending(case["pod"])
    (verdict,) = engine.explain(ask).verdicts
    short = set()
    for refusal in verdict.refusals:
        assert isinstance(refusal.reason, ShortOf | NeverFits)
        short.add(upstream_shortage(refusal.reason.resource))
    if case["wantStatus"] is None:
        assert engine.candidates(ask) == (("node",),)
        assert not short
    else:
        assert engine.candidates(ask) == ((),)
        assert short and short <= set(case["wantStatus"]["reasons"])


def upstream_shortage(resource: str) -> str:
    """What kube-scheduler would say."""
    return "Too many pods" if resource == "pods" else f"Insufficient {'cpu' if resource == CPU else resource}"


@TABLE.every("TestEnoughRequests")
def test_what_fits(case: Fields) -> None:
    assert_fits(case)


@TABLE.every("TestNotEnoughRequests")
def test_the_number_of_pods(case: Fields) -> None:
    assert_fits(case)


@TABLE.every("TestStorageRequests")
def test_storage(case: Fields) -> None:
    assert_fits(case)


@TABLE.every("TestRestartableInitContainers")
def test_sidecars(case: Fields) -> None:
    assert_fits(case)


def test_no_case_has_vanished() -> None:
    assert TABLE.counted() == {
        "TestEnoughRequests": (43, 6),
        "TestNotEnoughRequests": (4, 0),
        "TestStorageRequests": (4, 0),
        "TestRestartableInitContainers": (4, 2),
    }
