"""A pod becomes an entry of a spec, and the entry gives a pod that the scheduler reads as the same ask."""

from __future__ import annotations

from collections import Counter
from copy import deepcopy
from random import Random
from typing import Any

import pytest
import yaml

from stead.errors import Invalid
from stead.kubernetes.pod_conversion import Classes, converted
from stead.kubernetes.pod_manifest import PodOptions, Refusal, pod_of, priority_class
from stead.kubernetes.podspec import ask_of
from stead.specs.commands import Command
from stead.specs.submissions import Piece, read_submission
from tests.kubernetes.random_clusters import REQUIRED, Draw, Object

NO_CLASSES = Classes({})


def strict(field: str, why: str) -> None:
    raise Refusal(field, why)


def back(entry: Any) -> Piece:
    """The entry, written to a file and read again."""
    written = yaml.safe_load(yaml.safe_dump({"work": [entry]}, sort_keys=False))
    return next(iter(read_submission(written).pieces.values()))


def again(entry: Any) -> Object:
    """The pod of an entry."""
    piece = back(entry)
    wanted = priority_class(piece.ask.priority, piece.ask.preempts)
    return pod_of(piece.ask, piece.command, PodOptions(priority_class=wanted[0] if wanted else ""))


def simple(pod: Object) -> Object:
    """A random pod without what no spec can say, so that the rest is tested."""
    spec, metadata = pod["spec"], pod["metadata"]
    for field in ("initContainers", "overhead", "resources", "volumes"):
        spec.pop(field, None)
    metadata.pop("ownerReferences", None)
    container = spec["containers"][0]
    spec |= {"containers": [container], "restartPolicy": "Never", "hostNetwork": False}
    requests = container.get("resources", {}).get("requests", {})
    alike = {name: amount for name, amount in requests.items() if name in ("example.com/gpu", "hugepages-2Mi")}
    container["resources"] = {"requests": requests, "limits": alike}
    ports = [port for port in container.get("ports", ()) if port.get("hostPort")]
    container["ports"] = [{**port, "containerPort": port["hostPort"]} for port in ports]
    return pod


def test_random_pods_keep_their_shape() -> None:
    outcomes: Counter[str] = Counter()
    for seed in range(1500):
        draw = Draw(Random(seed), broken=0.0)
        pod = simple(draw.pod(f"pod-{seed}", ["node-1", "node-2"]))
        try:
            ask = ask_of(pod)
            entry = converted(deepcopy(pod), NO_CLASSES, strict)
            second = again(entry)
        except Invalid as error:
            outcomes[str(error).partition(":")[0]] += 1
            continue
        assert ask_of(second).shape_key == ask.shape_key, seed
        assert ask_of(second).id == ask.id
        outcomes["converted"] += 1
    assert outcomes["converted"] > 800, outcomes


def pod(spec: Any = None, metadata: Any = None, **container: Any) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "web-0", "namespace": "shop", **(metadata or {})},
        "spec": {
            "restartPolicy": "Never",
            "containers": [{"name": "web", "image": "nginx", **container}],
            **(spec or {}),
        },
    }


def test_a_pod_that_runs_has_many_fields_that_say_nothing() -> None:
    """As `kubectl get pod -o yaml` prints it."""
    found = pod(
        {
            "dnsPolicy": "ClusterFirst",
            "enableServiceLinks": True,
            "nodeName": "node-1",
            "preemptionPolicy": "PreemptLowerPriority",
            "priority": 0,
            "schedulerName": "default-scheduler",
            "securityContext": {},
            "serviceAccount": "default",
            "serviceAccountName": "default",
            "terminationGracePeriodSeconds": 30,
            "volumes": [{"name": "kube-api-access-x7k2p", "projected": {"sources": []}}],
        },
        {"uid": "1", "resourceVersion": "2", "creationTimestamp": "2026-01-01T00:00:00Z", "managedFields": [{}]},
        imagePullPolicy="Always",
        terminationMessagePath="/dev/termination-log",
        terminationMessagePolicy="File",
        volumeMounts=[{"name": "kube-api-access-x7k2p", "mountPath": "/var/run"}],
        command=["nginx"],
        args=["-g", "daemon off;"],
    )
    assert converted({**found, "status": {"phase": "Running"}}, NO_CLASSES, strict) == {
        "id": "web-0",
        "run": ["nginx", "-g", "daemon off;"],
        "image": "nginx",
        "namespace": "shop",
        "estimates": {"CPU": 0.1, "memory": "200Mi"},
        "policy": "kube",
    }


def test_a_gpu_has_steads_name_and_a_node_is_the_node() -> None:
    term = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": "web"}}}
    amounts = {"cpu": "500m", "memory": "1536Mi", "nvidia.com/gpu": "2"}
    found = pod(
        {"affinity": {"podAntiAffinity": {REQUIRED: [term]}}},
        resources={"requests": amounts, "limits": {"nvidia.com/gpu": "2"}},
    )
    entry = converted(found, NO_CLASSES, strict)
    assert entry["resources"] == {"CPU": 0.5, "GPU": 2, "memory": "1536Mi"}
    assert entry["apart"] == [{"labels": {"app": "web"}, "symmetric": True}]


REFUSED: dict[str, tuple[Object, str]] = {
    "another restart policy": (pod({"restartPolicy": "Always"}), "spec.restartPolicy: work in a spec runs once"),
    "volumes": (pod({"volumes": [{"name": "scratch", "emptyDir": {}}]}), "spec.volumes: a spec has no volumes"),
    "init containers": (pod({"initContainers": [{"name": "a"}]}), "spec.initContainers: "),
    "two containers": (pod({"containers": [{"name": "a"}, {"name": "b"}]}), "spec.containers: .* not 2"),
    "overhead": (pod({"overhead": {"cpu": "1"}}), "spec.overhead: "),
    "the host's network": (pod({"hostNetwork": True}), "spec.hostNetwork: "),
    "a service account": (pod({"serviceAccountName": "builder"}), "spec.serviceAccountName: "),
    "an unknown class": (pod({"priorityClassName": "high"}), "spec.priorityClassName: 'high' is not known"),
    "an owner": (pod(None, {"ownerReferences": [{"kind": "Job"}]}), "metadata.ownerReferences: "),
    "an annotation": (pod(None, {"annotations": {"a": "b"}}), r"metadata.annotations\[a\]: "),
    "a gang": (pod(None, {"labels": {"scheduling.x-k8s.io/pod-group": "ring"}}), r"metadata.labels\[scheduling"),
    "a variable from elsewhere": (
        pod(env=[{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]),
        r"spec.containers\[0\].env\[0\].valueFrom: ",
    ),
    "a variable in a command": (
        pod(env=[{"name": "A", "value": "b"}], command=["echo", "$(A)"]),
        r"spec.containers\[0\].command: \$\(A\) stands for a variable",
    ),
    "arguments of the image's command": (pod(args=["-g"]), r"spec.containers\[0\].args: "),
    "a probe": (pod(livenessProbe={"exec": {}}), r"spec.containers\[0\].livenessProbe: "),
    "a limit": (pod(resources={"limits": {"cpu": "1"}}), r"spec.containers\[0\].resources.limits\[cpu\]: "),
    "a device without a limit": (
        pod(resources={"requests": {"example.com/disk": "1"}}),
        r"spec.containers\[0\].resources.limits\[example.com/disk\]: is missing",
    ),
    "a port of the pod": (
        pod(ports=[{"containerPort": 80}]),
        r"spec.containers\[0\].ports\[0\]: a port without hostPort",
    ),
    "a port with two numbers": (
        pod(ports=[{"containerPort": 80, "hostPort": 8080}]),
        r"spec.containers\[0\].ports\[0\]: .* one number",
    ),
    "resource claims": (pod({"resourceClaims": [{"name": "gpu"}]}), "spec.resourceClaims: "),
    "what the scheduler cannot read": (
        pod({"tolerations": [{"operator": "Near"}]}),
        "spec: operator 'Near' is unknown",
    ),
}


@pytest.mark.parametrize(("found", "words"), REFUSED.values(), ids=REFUSED)
def test_what_a_spec_cannot_say_is_refused_by_name(found: Object, words: str) -> None:
    with pytest.raises(Refusal, match=f"^{words}"):
        converted(found, NO_CLASSES, strict)


@pytest.mark.parametrize("found", [found for found, _ in REFUSED.values()], ids=REFUSED)
def test_what_cannot_be_said_can_be_left_out(found: Object) -> None:
    left_out: list[str] = []
    entry = converted(found, NO_CLASSES, lambda field, why: left_out.append(field))
    assert left_out
    assert back(entry).id == "web-0" or "name" not in found["metadata"]


def test_a_priority_class_in_the_file_gives_the_priority() -> None:
    entry = converted(pod({"priorityClassName": "high"}), Classes({"high": 1000}), strict)
    assert entry["priority"] == 1000


@pytest.mark.parametrize("text", ["echo $(date)", "echo $$", "$$(A)", "$", "a$(A)$$$(A)b", "${A} $A", "$(", "$$$"])
def test_dollar_signs_of_a_command_survive(text: str) -> None:
    command = Command(("sh", "-c", text), (("A", text),), "busybox")
    ask = read_submission({"work": {"id": "a", "image": "busybox"}}).pieces["a"].ask
    written = pod_of(ask, command, PodOptions())
    assert back(converted(written, NO_CLASSES, strict)).command == command
