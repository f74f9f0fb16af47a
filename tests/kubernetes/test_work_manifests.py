"""The manifests of a submission: gangs with their strategies and sizes, PriorityClasses, and the states of pods."""

from __future__ import annotations

from typing import Any

import pytest

from stead.errors import Invalid
from stead.kubernetes.gangs import COUNT_ANNOTATION
from stead.kubernetes.pod_manifest import PodOptions
from stead.kubernetes.podspec import ask_of
from stead.kubernetes.running.pod_states import has_logs, update_of, why_deleted
from stead.kubernetes.work_manifests import GANG_LABEL, Manifests, manifests_of
from stead.language.asks import Affinity, Preference
from stead.language.labels import Requirement, Selector
from stead.specs.following import State, Update
from stead.specs.sections import load_yaml
from stead.specs.submissions import read_submission
from tests.kubernetes.random_clusters import PREFERRED, REQUIRED, Object

HOSTNAME, ZONE = "kubernetes.io/hostname", "topology.kubernetes.io/zone"
RING = Selector.all_of(Requirement.is_in(GANG_LABEL, "ring"))


def ring(fields: str, with_pod_groups: bool = False) -> Manifests:
    text = f"groups: {{id: ring, image: busybox, bundles: [{{CPU: 1}}, {{CPU: 1}}], {fields}}}"
    return manifests_of(read_submission(load_yaml(text)), PodOptions("shop"), with_pod_groups)


STRATEGIES: dict[str, tuple[str, tuple[Affinity, ...], tuple[Affinity, ...]]] = {
    "PACK": ("strategy: PACK", (), (Affinity(RING, True, (HOSTNAME,)),)),
    "SPREAD": ("strategy: SPREAD", (), (Affinity(RING, False, (HOSTNAME,)),)),
    "STRICT_PACK": ("strategy: STRICT_PACK", (Affinity(RING, True, (HOSTNAME,)),), ()),
    "STRICT_SPREAD": ("strategy: STRICT_SPREAD", (Affinity(RING, False, (HOSTNAME,), symmetric=True),), ()),
    "ANY": ("strategy: ANY", (), ()),
    "by zone": (f"strategy: ANY, topology: {{{ZONE}: STRICT_PACK}}", (Affinity(RING, True, (ZONE,)),), ()),
}


@pytest.mark.parametrize(("fields", "required", "preferred"), STRATEGIES.values(), ids=STRATEGIES)
def test_a_strategy_becomes_rules_between_the_pods(
    fields: str, required: tuple[Affinity, ...], preferred: tuple[Affinity, ...]
) -> None:
    for pod in ring(fields).pods.values():
        del pod["metadata"]["annotations"][COUNT_ANNOTATION]
        ask = ask_of(pod)
        assert ask.affinities == ((required,) if required else ())
        assert ask.prefers == tuple(map(Preference, preferred))


@pytest.mark.parametrize(("fields", "size"), [("strategy: ANY", "2"), ("min_available: 1", "1")])
def test_without_pod_groups_an_annotation_has_the_size(fields: str, size: str) -> None:
    found = ring(fields)
    assert not found.pod_groups
    assert {pod["metadata"]["annotations"][COUNT_ANNOTATION] for pod in found.pods.values()} == {size}
    assert {pod["metadata"]["labels"][GANG_LABEL] for pod in found.pods.values()} == {"ring"}


def test_a_pod_group_has_the_size_and_the_time_out() -> None:
    found = ring("min_available: 1, timeout: 90s", with_pod_groups=True)
    assert found.pod_groups == [
        {
            "apiVersion": "scheduling.x-k8s.io/v1alpha1",
            "kind": "PodGroup",
            "metadata": {"name": "ring", "namespace": "shop"},
            "spec": {"minMember": 1, "scheduleTimeoutSeconds": 90},
        }
    ]
    assert all(COUNT_ANNOTATION not in pod["metadata"]["annotations"] for pod in found.pods.values())
    assert [each["kind"] for each in found] == ["PodGroup", "Pod", "Pod"]


def test_a_time_out_needs_pod_groups() -> None:
    with pytest.raises(Invalid, match=r"^groups.timeout: needs PodGroups"):
        ring("timeout: 90s")


def test_a_strategy_that_contradicts_a_rule_of_the_pods_is_refused() -> None:
    """A pod has one required term of near."""
    with pytest.raises(Invalid, match=r"^groups.bundles\[0\].near: on a pod, several terms"):
        ring("strategy: STRICT_PACK, near: {labels: {app: store}, topology: zone}")


def test_pieces_with_one_priority_share_a_class() -> None:
    text = "work: [{id: a, count: 2, image: b, priority: 5}, {id: c, image: d, priority: 5, preempts: false}]"
    found = manifests_of(read_submission(load_yaml(text)), PodOptions())
    assert list(found.classes) == ["stead-5", "stead-5-never-preempts"]
    names = [pod["spec"]["priorityClassName"] for pod in found.pods.values()]
    assert names == ["stead-5", "stead-5", "stead-5-never-preempts"]


def test_the_terms_of_a_strategy_are_those_of_a_pod() -> None:
    affinity = ring("strategy: STRICT_SPREAD").pods["ring-1"]["spec"]["affinity"]
    assert list(affinity["podAntiAffinity"]) == [REQUIRED]
    affinity = ring("strategy: PACK").pods["ring-1"]["spec"]["affinity"]
    assert list(affinity["podAffinity"]) == [PREFERRED]


# -- the states of pods


def pod(phase: str, node: str = "", **status: Any) -> Object:
    return {"spec": {"nodeName": node} if node else {}, "status": {"phase": phase, **status}}


def ended(code: int, reason: str = "") -> list[Object]:
    return [{"state": {"terminated": {"exitCode": code, "reason": reason}}}]


PENDING, RUNNING, SUCCEEDED, FAILED = State
UNSCHEDULABLE = {"type": "PodScheduled", "status": "False", "message": "0/3 nodes are available."}
PULLING = [{"state": {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}}]
CREATING = [{"state": {"waiting": {"reason": "ContainerCreating"}}}]

STATES: dict[str, tuple[Object, Update]] = {
    "unseen": (pod("Pending"), Update("a", PENDING)),
    "pending": (pod("Pending", conditions=[UNSCHEDULABLE]), Update("a", PENDING, reason="0/3 nodes are available.")),
    "gated": (
        {"spec": {"schedulingGates": [{"name": "wait"}]}, "status": {"phase": "Pending"}},
        Update("a", PENDING, reason="scheduling gates: wait"),
    ),
    "creating": (pod("Pending", "n", containerStatuses=CREATING), Update("a", PENDING, "n", "starting on n")),
    "pulling": (
        pod("Pending", "n", containerStatuses=PULLING),
        Update("a", PENDING, "n", "ImagePullBackOff: no such image on n"),
    ),
    "running": (pod("Running", "n"), Update("a", RUNNING, "n")),
    "succeeded": (pod("Succeeded", "n"), Update("a", SUCCEEDED, "n", code=0)),
    "failed": (pod("Failed", "n", containerStatuses=ended(3, "Error")), Update("a", FAILED, "n", code=3)),
    "out of memory": (
        pod("Failed", "n", containerStatuses=ended(137, "OOMKilled")),
        Update("a", FAILED, "n", "OOMKilled", 137),
    ),
    "evicted": (
        pod("Failed", "n", reason="Evicted", message="low on memory"),
        Update("a", FAILED, "n", "Evicted: low on memory"),
    ),
    "failed for no reason": (pod("Failed", "n"), Update("a", FAILED, "n", "no container says why")),
}


@pytest.mark.parametrize(("found", "update"), STATES.values(), ids=STATES)
def test_the_status_of_a_pod_says_its_state(found: Object, update: Update) -> None:
    assert update_of("a", found) == update


def test_a_deleted_pod_has_failed_unless_it_had_ended() -> None:
    assert why_deleted("a", pod("Succeeded", "n")) == Update("a", SUCCEEDED, "n", code=0)
    assert why_deleted("a", pod("Running", "n")).reason == "its pod was deleted"
    disrupted = {"type": "DisruptionTarget", "status": "True", "message": "preempted for b"}
    assert (
        why_deleted("a", pod("Running", "n", conditions=[disrupted])).reason == "its pod was deleted: preempted for b"
    )


def test_a_pod_has_logs_once_its_container_has_started() -> None:
    assert [has_logs(found) for found, _ in STATES.values()] == [False] * 5 + [True] * 6
