"""Pods of gangs as facts about groups, held against an engine: what the watches say, and what the engine then places.

Rule: after each story, the engine knows the same as an engine that is told only how things are now.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from stead.engine.decisions import GroupPlaced
from stead.engine.engine import Engine
from stead.engine.facts import AskNominated, AskRunning, Fact, GroupChanged, GroupEnded
from stead.engine.settings import Settings
from stead.kubernetes.api.binding import BindResult, Outcome
from stead.kubernetes.api_objects import Problem
from stead.kubernetes.cluster import KubeCluster
from stead.kubernetes.gangs import GangKind, GangSize
from stead.kubernetes.podspec import node_of
from stead.kubernetes.templates import Pod, Templates
from tests.kubernetes import objects

TEMPLATES = Templates(("stead",))
LABEL = "scheduling.x-k8s.io/pod-group"
RING = (GangKind.COSCHEDULING, "default", "ring")
GANG = "default/coscheduling/ring"


class Silent:
    """Takes down what is reported; binds nothing."""

    def __init__(self) -> None:
        self.pending: list[tuple[tuple[str, ...], str | None]] = []
        self.problems: list[tuple[str, str]] = []
        self.later: list[str] = []

    def bind(self, pod: Pod, node: str) -> None:
        pass

    def preempt(self, pod: Pod, node: str, victims: Sequence[Pod]) -> None:
        pass

    def end_nomination(self, pod: Pod) -> None:
        pass

    def report_pending(self, pods: Sequence[Pod], gang: str | None = None) -> None:
        self.pending.append((tuple(pod.name for pod in pods), gang))

    def report_problem(self, pod: Pod, problem: Problem) -> None:
        self.problems.append((pod.name, problem.sentence))

    def report_bound(self, pod: Pod, node: str, seconds: float, waited_s: float) -> None:
        pass

    def forget(self, pod: Pod) -> None:
        pass

    def look_again(self, pod: Pod) -> None:
        pass

    def try_later(self, pod: Pod, message: str) -> None:
        self.later.append(pod.name)


class Story:
    """A cluster with its engine, and what happened to its pods."""

    def __init__(self, *nodes: str, cpu: str = "2") -> None:
        self.calls = Silent()
        self.cluster = KubeCluster(self.calls, ("stead",))
        self.engine = Engine(Settings(patience=None))
        self.cluster.nodes_changed([node_of(objects.node(name, cpu=cpu)) for name in nodes])

    def pods(self, *names: str, gang: str = "ring", **more: Any) -> None:
        self.cluster.pods_changed([pod(name, gang, **more) for name in names])

    def size(self, least: int, **more: Any) -> None:
        self.cluster.gang_sizes_changed({RING: GangSize(least, **more)})

    def step(self) -> dict[str, str]:
        """Decide, carry it out, and return where all pods are."""
        facts = list(self.cluster.facts())
        self.engine.apply(*facts)
        decisions = self.engine.decide()
        for decision in decisions:
            if isinstance(decision, GroupPlaced):
                self.cluster.bind(decision)
        self.cluster.tell((*facts, *decisions))
        return self.placed

    @property
    def placed(self) -> dict[str, str]:
        return {id.removeprefix("default/"): node for id, node in sorted(self.engine.placed.items())}

    def as_after_a_restart(self) -> dict[str, str]:
        """What an engine knows that begins now."""
        engine = Engine(Settings(patience=None))
        self.cluster.start_over()
        engine.apply(*self.cluster.facts())
        return {id.removeprefix("default/"): node for id, node in sorted(engine.placed.items())}


def pod(name: str, gang: str = "ring", node: str = "", uid: str = "", phase: str = "Pending", **more: Any) -> Pod:
    found = objects.pod(name, cpu=more.pop("cpu", "2"), labels={LABEL: gang} if gang else {}, **more)
    found["metadata"] |= {"uid": uid or f"uid-{name}"}
    found["spec"] |= {"nodeName": node} if node else {}
    found["status"] = {"phase": phase}
    return TEMPLATES.decode_pod(json.dumps(found).encode())


def test_nothing_is_placed_before_the_size_is_known() -> None:
    story = Story("n1", "n2")
    story.pods("a", "b")
    assert story.step() == {}
    assert story.calls.problems == [
        (name, "Waiting for the PodGroup 'ring' (scheduling.x-k8s.io), which does not exist.") for name in ("a", "b")
    ]
    story.size(2)
    assert story.step() == {"a": "n1", "b": "n2"}


def test_nothing_is_placed_before_there_are_enough_pods() -> None:
    story = Story("n1", "n2")
    story.size(2)
    story.pods("a")
    assert story.step() == {}
    assert story.calls.pending == [(("a",), GANG)]
    story.pods("b")
    assert story.step() == {"a": "n1", "b": "n2"}


def test_every_pod_that_waits_is_told_so_also_one_that_came_later() -> None:
    story = Story("n1")
    story.size(3)
    for name in ("a", "b"):
        story.pods(name)
        story.step()
    assert story.calls.pending == [(("a",), GANG), (("a", "b"), GANG)]


def test_all_or_none() -> None:
    story = Story("n1")
    story.size(2)
    story.pods("a", "b")
    assert story.step() == {}
    story.cluster.nodes_changed([node_of(objects.node("n2", cpu="2"))])
    assert story.step() == {"a": "n1", "b": "n2"}


def test_more_pods_than_needed_follow_as_they_fit() -> None:
    story = Story("n1", "n2")
    story.size(2)
    story.pods("a", "b", "c")
    assert set(story.step()) == {"a", "b"}
    story.cluster.nodes_changed([node_of(objects.node("n3", cpu="2"))])
    assert set(story.step()) == {"a", "b", "c"}


def test_pods_of_other_schedulers_and_gated_pods_are_no_members() -> None:
    story = Story("n1", "n2")
    story.size(2)
    story.pods("a")
    story.pods("b", scheduler="other")
    story.pods("c", schedulingGates=[{"name": "wait"}])
    assert story.step() == {}
    story.pods("c")
    assert set(story.step()) == {"a", "c"}


def test_after_a_restart_the_rest_is_placed_and_what_is_bound_stays() -> None:
    story = Story("n1", "n2", "n3")
    story.size(3)
    story.pods("a", node="n3")
    story.pods("b", "c")
    assert story.step() == {"a": "n3", "b": "n1", "c": "n2"}


def test_after_a_restart_nothing_more_is_placed_if_the_rest_does_not_fit() -> None:
    story = Story("n1", "n2")
    story.size(3)
    story.pods("a", node="n1")
    story.pods("b", "c")
    assert story.step() == {"a": "n1"}


def test_a_pod_that_succeeded_is_not_missed() -> None:
    story = Story("n1", "n2")
    story.size(2)
    story.pods("a", node="n1")
    story.pods("b", node="n2")
    story.step()
    story.pods("a", node="n1", phase="Succeeded")
    story.cluster.pods_deleted(["default/b"])
    story.pods("b2")
    assert set(story.step()) == {"b2"}


def test_a_pod_that_failed_is_missed() -> None:
    story = Story("n1", "n2")
    story.size(2)
    story.pods("a", node="n1")
    story.pods("b", node="n2")
    story.step()
    story.pods("a", node="n1", phase="Failed")
    story.cluster.pods_deleted(["default/b"])
    story.pods("b2")
    assert story.step() == {}


def test_a_pod_that_is_created_again_under_its_name_is_placed_again() -> None:
    story = Story("n1", "n2")
    story.size(2)
    story.pods("a", node="n1")
    story.pods("b", node="n2")
    story.step()
    story.pods("b", uid="second")
    assert story.step() == {"a": "n1", "b": "n2"}
    assert ("default/b" in story.cluster.binding) is True


def test_a_pending_pod_that_is_created_again_under_its_name_is_one_pod() -> None:
    story = Story("n1", "n2")
    story.size(2)
    story.pods("a")
    story.step()
    story.pods("a", uid="second")
    assert story.step() == {}
    story.pods("b")
    assert set(story.step()) == {"a", "b"}


@pytest.mark.parametrize("node", ["", "n1"])
def test_a_pod_can_leave_its_gang(node: str) -> None:
    story = Story("n1", "n2")
    story.size(2)
    story.pods("a", node=node)
    story.step()
    story.pods("a", gang="", node=node)
    story.step()
    assert story.placed == {"a": "n1"}
    assert not story.engine.groups


@pytest.mark.parametrize("node", ["", "n1"])
def test_a_pod_can_change_its_gang(node: str) -> None:
    story = Story("n1", "n2")
    story.size(2)
    story.cluster.gang_sizes_changed({(GangKind.COSCHEDULING, "default", "other"): GangSize(1)})
    story.pods("a", node=node)
    story.step()
    story.pods("a", gang="other", node=node)
    assert story.step() == {"a": "n1"}
    assert list(story.engine.groups) == ["default/coscheduling/other"]


def test_a_gang_without_pods_is_forgotten() -> None:
    story = Story("n1")
    story.size(1)
    story.pods("a")
    story.step()
    story.cluster.pods_deleted(["default/a"])
    assert GroupEnded(GANG) in list(story.cluster.facts())


def test_the_gang_keeps_its_size_when_its_object_is_deleted_first() -> None:
    story = Story("n1")
    story.size(2)
    story.pods("a", "b")
    story.cluster.gang_sizes_ended([RING])
    assert story.step() == {}
    story.cluster.nodes_changed([node_of(objects.node("n2", cpu="2"))])
    assert set(story.step()) == {"a", "b"}
    story.cluster.pods_deleted(["default/a", "default/b"])
    story.pods("c")
    assert story.step() == {}
    assert story.calls.problems == [
        ("c", "Waiting for the PodGroup 'ring' (scheduling.x-k8s.io), which does not exist.")
    ]


def test_a_smaller_size_lets_the_gang_start() -> None:
    story = Story("n1")
    story.size(2)
    story.pods("a", "b")
    assert story.step() == {}
    story.size(1)
    assert len(story.step()) == 1


def test_a_pod_whose_binding_failed_is_tried_again() -> None:
    story = Story("n1", "n2")
    story.size(2)
    story.pods("a", "b")
    story.step()
    result = BindResult("default", "b", "uid-b", "n2", Outcome.FAILED, "refused", 0.01)
    story.cluster.bound(result)
    assert story.calls.later == ["b"]
    story.cluster.released(story.cluster.pods["default/b"])
    assert story.step() == {"a": "n1", "b": "n2"}


def test_a_nomination_from_before_a_restart_comes_after_the_gang() -> None:
    story = Story("n1")
    story.size(1)
    found = objects.pod("a", labels={LABEL: "ring"})
    found["metadata"]["uid"] = "uid-a"
    found["status"] = {"phase": "Pending", "nominatedNodeName": "n1"}
    story.cluster.pods_changed([TEMPLATES.decode_pod(json.dumps(found).encode())])
    kinds: list[type[Fact]] = [type(fact) for fact in story.cluster.facts()]
    assert kinds.index(GroupChanged) < kinds.index(AskNominated)


def test_all_pods_of_the_gang_are_in_one_domain_if_its_object_wants_that() -> None:
    story = Story()
    racks = {"n1": "a", "n2": "b", "n3": "b"}
    story.cluster.nodes_changed([node_of(objects.node(n, cpu="2", labels={"rack": r})) for n, r in racks.items()])
    story.size(2, topologies=("rack",))
    story.pods("a", "b")
    assert set(story.step().values()) == {"n2", "n3"}


def test_the_gang_has_the_highest_priority_of_its_pods() -> None:
    story = Story("n1")
    story.size(2)
    story.pods("a", priority=5)
    story.pods("b", priority=9)
    story.step()
    assert story.engine.groups[GANG].priority == 9


def test_facts_say_the_same_after_a_restart() -> None:
    story = Story("n1", "n2", "n3")
    story.size(2)
    story.pods("a", node="n1")
    story.pods("b", node="n2")
    story.pods("c", "d")
    before = story.step()
    for name, node in before.items():
        story.pods(name, node=node)
    story.step()
    assert story.as_after_a_restart() == before


def test_a_report_about_a_running_pod_comes_before_its_gang() -> None:
    story = Story("n1")
    story.size(1)
    story.pods("a", node="n1")
    kinds = [type(fact) for fact in story.cluster.facts()]
    assert kinds.index(AskRunning) < kinds.index(GroupChanged)
