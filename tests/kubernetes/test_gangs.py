"""Which gang a pod belongs to, and how many of its pods must be placed at once: by what pods and objects say."""

from __future__ import annotations

from typing import Any

import pytest

from stead.errors import Invalid
from stead.kubernetes.gangs import GangKind, GangSize, membership_of, sizes_of
from stead.kubernetes.podspec import ask_of

LABEL = "scheduling.x-k8s.io/pod-group"
COUNT = "stead.dev/min-available"
KUEUE = {"kueue.x-k8s.io/pod-group-name": "ring"}


def metadata(labels: dict[str, str] | None = None, **annotations: Any) -> dict[str, Any]:
    return {"name": "web", "namespace": "ml", "labels": labels or {}, "annotations": annotations}


NAMED = {
    "spec.schedulingGroup": ({}, {"schedulingGroup": {"podGroupName": "ring"}}, "ml/podgroup/ring"),
    "spec.workloadRef": ({}, {"workloadRef": {"name": "train", "podGroup": "workers"}}, "ml/workload/train/workers"),
    "spec.workloadRef of a replica": (
        {},
        {"workloadRef": {"name": "train", "podGroup": "workers", "podGroupReplicaKey": "3"}},
        "ml/workload/train/workers/3",
    ),
    "the label of coscheduling": ({"labels": {LABEL: "ring"}}, {}, "ml/coscheduling/ring"),
    "its older label": ({"labels": {"pod-group.scheduling.sigs.k8s.io": "ring"}}, {}, "ml/coscheduling/ring"),
    "the annotation of Volcano": ({"annotations": {"scheduling.k8s.io/group-name": "ring"}}, {}, "ml/volcano/ring"),
    "its other annotation": ({"annotations": {"scheduling.volcano.sh/group-name": "ring"}}, {}, "ml/volcano/ring"),
    "the label of Kueue": ({"labels": KUEUE}, {}, "ml/kueue/ring"),
    "Kubernetes' own field before a label": (
        {"labels": {LABEL: "other"}},
        {"schedulingGroup": {"podGroupName": "ring"}},
        "ml/podgroup/ring",
    ),
}


@pytest.mark.parametrize(("more", "spec", "gang"), NAMED.values(), ids=NAMED.keys())
def test_a_pod_names_its_gang_by(more: dict[str, Any], spec: dict[str, Any], gang: str) -> None:
    found = membership_of({"name": "web", "namespace": "ml", **more}, spec)
    assert found is not None
    assert found.gang == gang


@pytest.mark.parametrize("spec", [{}, {"schedulingGroup": None}, {"workloadRef": {}}])
def test_a_pod_without_such_a_name_is_in_no_gang(spec: dict[str, Any]) -> None:
    assert membership_of(metadata({"app": "web", LABEL: ""}), spec) is None


def test_pods_of_two_replicas_are_two_gangs_of_one_size() -> None:
    found = [
        membership_of(metadata(), {"workloadRef": {"name": "train", "podGroup": "a", "podGroupReplicaKey": key}})
        for key in ("1", "2")
    ]
    assert found[0] is not None
    assert found[1] is not None
    assert found[0].gang != found[1].gang
    assert found[0].size_key == found[1].size_key == (GangKind.WORKLOAD, "ml", "train/a")


@pytest.mark.parametrize(
    ("labels", "annotations", "least"),
    [
        ({LABEL: "ring"}, {}, None),
        ({LABEL: "ring"}, {COUNT: "8"}, 8),
        (KUEUE, {"kueue.x-k8s.io/pod-group-total-count": "4"}, 4),
        (KUEUE, {COUNT: "3"}, 3),
        (KUEUE, {"kueue.x-k8s.io/pod-group-total-count": "4", COUNT: "3"}, 4),
    ],
)
def test_the_pods_may_say_how_many_are_needed(
    labels: dict[str, str], annotations: dict[str, str], least: int | None
) -> None:
    found = membership_of(metadata(labels, **annotations), {})
    assert found is not None
    assert found.least == least


WRONG = {
    "not a number": ({LABEL: "ring"}, {COUNT: "many"}, r"'stead.dev/min-available' must be .* such as '8', not 'many'"),
    "zero": ({LABEL: "ring"}, {COUNT: "0"}, r"not '0'"),
    "not text": (KUEUE, {"kueue.x-k8s.io/pod-group-total-count": 4}, r"pod-group-total-count' must be .* not 4"),
    "a number without a group": ({}, {COUNT: "8"}, rf"needs a group; name it with the label '{LABEL}'"),
    "another annotation": ({}, {"stead.dev/min-availble": "8"}, r"did you mean 'stead.dev/min-available'"),
}


@pytest.mark.parametrize(("labels", "annotations", "sentence"), WRONG.values(), ids=WRONG.keys())
def test_what_does_not_parse_is_refused(labels: dict[str, str], annotations: dict[str, Any], sentence: str) -> None:
    pod = {"metadata": metadata(labels, **annotations), "spec": {}}
    with pytest.raises(Invalid, match=sentence):
        ask_of(pod)
    assert ask_of(pod, lenient=True).id == "ml/web"


def of(spec: dict[str, Any], status: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"metadata": {"name": "ring", "namespace": "ml"}, "spec": spec, "status": status or {}}


RACK = {"topologyConstraints": [{"topologyKey": "rack"}]}
SIZES = {
    "a PodGroup": (GangKind.POD_GROUP, of({"schedulingPolicy": {"gang": {"minCount": 8}}}), GangSize(8)),
    "one with the policy basic": (GangKind.POD_GROUP, of({"schedulingPolicy": {"basic": {}}}), GangSize(1)),
    "one in a rack": (
        GangKind.POD_GROUP,
        of({"schedulingPolicy": {"gang": {"minCount": 8}}, "schedulingConstraints": RACK}),
        GangSize(8, topologies=("rack",)),
    ),
    "one with a priority": (
        GangKind.POD_GROUP,
        of({"schedulingPolicy": {"gang": {"minCount": 8}}, "priority": 100}),
        GangSize(8, priority=100),
    ),
    "a PodGroup of coscheduling": (
        GangKind.COSCHEDULING,
        of({"minMember": 4, "scheduleTimeoutSeconds": 90}, {"succeeded": 1}),
        GangSize(4, timeout_s=90, succeeded=1),
    ),
    "one without numbers": (GangKind.COSCHEDULING, of({}), GangSize(1)),
    "a PodGroup of Volcano": (GangKind.VOLCANO, of({"minMember": 4, "queue": "default"}), GangSize(4)),
}


@pytest.mark.parametrize(("kind", "found", "size"), SIZES.values(), ids=SIZES.keys())
def test_an_object_says_how_large_the_gang_is(kind: GangKind, found: dict[str, Any], size: GangSize) -> None:
    assert sizes_of(kind, found) == {(kind, "ml", "ring"): size}


def test_a_workload_has_a_size_for_each_of_its_pod_groups() -> None:
    groups = [{"name": "a", "policy": {"gang": {"minCount": 2}}}, {"name": "b", "policy": {"basic": {}}}]
    kind = GangKind.WORKLOAD
    assert sizes_of(kind, of({"podGroups": groups})) == {
        (kind, "ml", "ring/a"): GangSize(2),
        (kind, "ml", "ring/b"): GangSize(1),
    }
