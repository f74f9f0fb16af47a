"""Bad input is refused where it was given, in one sentence that names the bad part, without tracebacks of Ray's."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

import stead
from stead import Exists, In, label_in, node_affinity
from stead.ray.local.local_cluster import LocalCluster
from tests.on_ray.conftest import ClusterOf
from tests.on_ray.workload import NOBODY, Resident, attached, where

LONG = "x" * 64


def sentence(error: BaseException) -> str:
    """The message of an error, which must be one readable line."""
    words = str(error)
    assert words and "\n" not in words and len(words) < 800, words
    assert not any(mark in words for mark in ("Traceback", "ray::", "pid=", "_stead_route", "\x1b")), words
    return words


def refused(call: Callable[[], Any], *kinds: type[Exception]) -> str:
    """The message of a call that is refused. It raises stead's own errors unless others are expected."""
    with pytest.raises(kinds or (stead.Invalid, stead.Unsupported)) as refusal:
        call()
    return sentence(refusal.value)


UNCONNECTED: dict[str, Callable[[], Any]] = {
    "nodes": stead.nodes,
    "nodes by a selector": lambda: stead.nodes("zone in [a]"),
    "labels": stead.labels,
    "events": stead.events,
    "why": lambda: stead.why("ab" * 16),
    "get": lambda: stead.get([]),
    "taint": lambda: stead.taint(NOBODY, {"k": "v"}),
    "untaint": lambda: stead.untaint(NOBODY, ["k"]),
    "label": lambda: stead.label(NOBODY, {"k": "v"}),
    "drain": lambda: stead.drain(NOBODY),
    "uncordon": lambda: stead.uncordon(NOBODY),
    "remote": lambda: stead.remote(lambda: None).remote(),
}


@pytest.fixture
def no_cluster_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray starts or joins a cluster at the first call to it. No call of stead's may cause that."""
    monkeypatch.setattr("ray._private.auto_init_hook.enable_auto_connect", False)


class TestBeforeInit:
    @pytest.mark.parametrize("name", UNCONNECTED)
    def test_a_call_before_init_says_what_to_do_first(self, no_cluster_by_itself: None, name: str) -> None:
        assert not ray.is_initialized()
        assert "stead.init()" in refused(UNCONNECTED[name])

    def test_a_ray_client_is_refused_plainly(self) -> None:
        assert "Ray Client" in refused(lambda: stead.init("ray://localhost:10001"))
        assert not ray.is_initialized()


@pytest.fixture(scope="module")
def cluster(cluster_of: ClusterOf) -> Iterator[LocalCluster]:
    with attached(cluster_of([{"num_cpus": 1, "labels": {"zone": "a"}}])) as started:
        yield started


@pytest.fixture
def node(cluster: LocalCluster) -> str:
    return cluster.nodes[0].node_id


OPTIONS: dict[str, tuple[dict[str, Any], str]] = {
    "tolerations as text": ({"tolerations": "gpu_node"}, "gpu_node"),
    "a toleration as text": ({"tolerations": {"gpu_node": "true"}}, "gpu_node"),
    "a toleration of what is not there": ({"tolerations": {"gpu_node": stead.DoesNotExist()}}, "gpu_node"),
    "a toleration's key": ({"tolerations": {LONG: Exists()}}, LONG),
    "deadline below zero": ({"deadline_s": -1}, "-1"),
    "deadline of zero": ({"deadline_s": 0}, "0"),
    "deadline in words": ({"deadline_s": "soon"}, "soon"),
    "deadline of yes": ({"deadline_s": True}, "True"),
    "deadline of nan": ({"deadline_s": math.nan}, "nan"),
    "endless deadline": ({"deadline_s": math.inf}, "inf"),
    "selector as text": ({"label_selector": "zone=a"}, "zone=a"),
    "selector with a long value": ({"label_selector": {"zone": LONG}}, LONG),
    "selector with a long key": ({"label_selector": {LONG: "a"}}, LONG),
    "selector of numbers": ({"label_selector": {"zone": 3}}, "3"),
    "fallback as a map": ({"fallback_strategy": {"label_selector": {"zone": "a"}}}, "fallback_strategy"),
    "fallback with amounts": ({"fallback_strategy": [{"num_cpus": 1}]}, "num_cpus"),
    "strategy in lower case": ({"scheduling_strategy": "spread"}, "SPREAD"),
    "strategy of a number": ({"scheduling_strategy": 3}, "3"),
    "an expression alone": ({"scheduling_strategy": label_in("zone", ["a"])}, "node_affinity"),
    "two of Ray's strategies": (
        {"scheduling_strategy": ["SPREAD", NodeAffinitySchedulingStrategy(NOBODY, soft=True)]},
        "SPREAD",
    ),
    "a selector with a slip": ({"scheduling_strategy": "zone in [a"}, "zone in [a"),
}


class TestOptions:
    @pytest.mark.parametrize("name", OPTIONS)
    @pytest.mark.parametrize("target", [where, Resident], ids=["task", "actor"])
    def test_options_refuse_an_invalid_value(self, cluster: LocalCluster, target: Any, name: str) -> None:
        options, part = OPTIONS[name]
        assert part in refused(lambda: target.options(**options).remote())

    @pytest.mark.parametrize("name", OPTIONS)
    def test_both_decorators_refuse_an_invalid_value(self, cluster: LocalCluster, name: str) -> None:
        options, part = OPTIONS[name]
        assert part in refused(lambda: ray.remote(**options)(lambda: None))
        assert part in refused(lambda: stead.remote(**options)(lambda: None))

    @pytest.mark.parametrize("decorator", [ray.remote, stead.remote], ids=["ray.remote", "stead.remote"])
    def test_an_unknown_option_is_refused(self, cluster: LocalCluster, decorator: Any) -> None:
        assert "tolerance" in refused(lambda: decorator(tolerance={})(lambda: None), ValueError)
        assert "tolerance" in refused(lambda: decorator(lambda: None).options(tolerance={}), ValueError)

    def test_a_group_refuses_tolerations_as_text(self, cluster: LocalCluster) -> None:
        assert "gpu_node" in refused(lambda: ray.util.placement_group([{"CPU": 1}], tolerations="gpu_node"))

    def test_a_group_refuses_a_typo_in_a_selector(self, cluster: LocalCluster) -> None:
        bad = [{"zone": "!(a)"}]
        assert "zone" in refused(lambda: ray.util.placement_group([{"CPU": 1}], bundle_label_selector=bad))

    def test_steads_decorator_says_how_it_is_used(self, cluster: LocalCluster) -> None:
        assert "num_cpus=1" in refused(lambda: stead.remote(1, num_cpus=1), TypeError)  # type: ignore[call-overload]
        assert ".remote()" in refused(stead.remote(lambda: None), TypeError)

    @pytest.mark.parametrize("weight", [0, 101, -5, 1.5, "heavy"])
    def test_a_weight_out_of_range_is_refused(self, weight: Any) -> None:
        assert str(weight) in refused(lambda: stead.Preference(stead.parse_selector("zone in [a]"), weight))

    @pytest.mark.parametrize(
        ("call", "part"),
        [
            (lambda: label_in(LONG, ["a"]), LONG),
            (lambda: label_in("zone", [LONG]), LONG),
            (lambda: label_in("zone", []), "zone"),
            (lambda: label_in("zone", "a", "b"), "is_soft"),  # type: ignore[arg-type]
            (lambda: node_affinity([]), "node_affinity"),
            (lambda: node_affinity(3), "3"),  # type: ignore[arg-type]
            (lambda: node_affinity(label_in("zone", "a"), "yes"), "is_or_semantics"),  # type: ignore[arg-type]
            (In, "In()"),
            (lambda: Exists(effect="sometimes"), "sometimes"),
            (lambda: Exists(effect="no-execute", seconds=-1), "-1"),
        ],
        ids=range(10),
    )
    def test_a_bad_expression_is_refused_where_it_is_written(self, call: Callable[[], Any], part: str) -> None:
        assert part in refused(call)


CHANGES: dict[str, tuple[Callable[[str], Any], str]] = {
    "taint nobody": (lambda _: stead.taint(NOBODY, {"k": "v"}), NOBODY),
    "taint a number": (lambda _: stead.taint(3, {"k": "v"}), "3"),  # type: ignore[arg-type]
    "taint no name": (lambda _: stead.taint("", {"k": "v"}), "''"),
    "taint with nothing": (lambda node: stead.taint(node, {}), "{}"),
    "taint with text": (lambda node: stead.taint(node, "k=v"), "k=v"),  # type: ignore[arg-type]
    "taint with a long value": (lambda node: stead.taint(node, {"k": LONG}), LONG),
    "taint with a number": (lambda node: stead.taint(node, {"k": 1}), "1"),  # type: ignore[dict-item]
    "unknown effect": (lambda node: stead.taint(node, {"k": "v"}, effect="sometimes"), "sometimes"),
    "time below zero": (lambda node: stead.taint(node, {"k": "v"}, for_s=-1), "-1"),
    "time in words": (lambda node: stead.taint(node, {"k": "v"}, for_s="2h"), "2h"),  # type: ignore[arg-type]
    "time of nan": (lambda node: stead.taint(node, {"k": "v"}, for_s=math.nan), "nan"),
    "owner of a number": (lambda node: stead.taint(node, {"k": "v"}, owner=3), "3"),  # type: ignore[arg-type]
    "unknown job": (lambda node: stead.taint(node, {"k": "v"}, until_job="gone"), "gone"),
    "untaint nobody": (lambda _: stead.untaint(NOBODY, ["k"]), NOBODY),
    "untaint what is not there": (lambda node: stead.untaint(node, ["never"]), "never"),
    "untaint a number": (lambda node: stead.untaint(node, 3), "3"),  # type: ignore[arg-type]
    "label nobody": (lambda _: stead.label(NOBODY, {"k": "v"}), NOBODY),
    "label with nothing": (stead.label, "label"),
    "label with a long value": (lambda node: stead.label(node, {"zone": LONG}), LONG),
    "label with a long key": (lambda node: stead.label(node, {LONG: "a"}), LONG),
    "label with text": (lambda node: stead.label(node, "zone=a"), "zone=a"),  # type: ignore[arg-type]
    "label of Ray's": (lambda node: stead.label(node, {"ray.io/market-type": "spot"}), "ray.io/market-type"),
    "label of identity": (lambda node: stead.label(node, {"node_id": "x"}), "node_id"),
    "remove what is not there": (lambda node: stead.label(node, remove=["never"]), "never"),
    "remove a number": (lambda node: stead.label(node, remove=3), "3"),  # type: ignore[arg-type]
    "drain nobody": (lambda _: stead.drain(NOBODY), NOBODY),
    "uncordon nobody": (lambda _: stead.uncordon(NOBODY), NOBODY),
}

QUESTIONS: dict[str, tuple[Callable[[], Any], str]] = {
    "why of a number": (lambda: stead.why(42), "42"),
    "why of nothing": (lambda: stead.why(None), "None"),
    "why of words": (lambda: stead.why("nonsense"), "nonsense"),
    "why of no hex": (lambda: stead.why("z" * 48), "zzz"),
    "why of an unknown actor": (lambda: stead.why("ab" * 16), f"Ray has no actor {'ab' * 6}"),
    "why of an unknown task": (lambda: stead.why("ab" * 24), f"task {'ab' * 6} is unknown"),
    "nodes by a number": (lambda: stead.nodes(3), "3"),  # type: ignore[arg-type]
    "nodes by a slip": (lambda: stead.nodes("zone in [a"), "zone in [a"),
    "nodes by a slip in a map": (lambda: stead.nodes({"zone": "(a)"}), "zone"),
    "events after words": (lambda: stead.events(after="x"), "x"),  # type: ignore[arg-type]
}


class TestCalls:
    @pytest.mark.parametrize("name", CHANGES)
    def test_an_invalid_change_is_refused_and_changes_nothing(self, node: str, name: str) -> None:
        call, part = CHANGES[name]
        before = stead.nodes()[0].labels, stead.nodes()[0].taints
        assert part in refused(lambda: call(node))
        assert (stead.nodes()[0].labels, stead.nodes()[0].taints) == before

    @pytest.mark.parametrize("name", QUESTIONS)
    def test_an_invalid_question_is_refused(self, cluster: LocalCluster, name: str) -> None:
        call, part = QUESTIONS[name]
        assert part in refused(call)

    def test_ended_work_is_not_pending(self, cluster: LocalCluster) -> None:
        ended = where.options(label_selector={"zone": "a"}).remote()
        ray.get(ended, timeout=60)
        assert "has ended" in refused(lambda: stead.why(ended))

    def test_a_pin_to_a_node_that_refuses_the_work_fails_at_once(self, node: str) -> None:
        stead.taint(node, {"closed": "yes"})
        try:
            pin = NodeAffinitySchedulingStrategy(node, soft=False)
            assert "closed=yes" in refused(lambda: where.options(scheduling_strategy=pin).remote())
        finally:
            stead.untaint(node, ["closed"])


def test_another_address_is_refused_while_connected(cluster: LocalCluster) -> None:
    assert cluster.address in refused(lambda: stead.init("127.0.0.1:1"))


@pytest.mark.parametrize("name", UNCONNECTED)
def test_after_a_disconnect_a_call_says_what_to_do(
    cluster: LocalCluster, no_cluster_by_itself: None, name: str
) -> None:
    """The last test of the file: it disconnects."""
    ray.shutdown()
    assert "stead.init()" in refused(UNCONNECTED[name])
