"""`stead why pod/NAME` explains pods of every scheduler, with nothing installed in the cluster."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.golden_files import assert_golden
from tests.kubernetes.desk.conftest import KUBE, Commands, small_cluster
from tests.kubernetes.objects import namespace, node, pod, replicas

NO_NODE_FITS = (
    "0/3 nodes are available: 1 Insufficient nvidia.com/gpu, 1 node(s) had untolerated taint(s), 1 node(s) were "
    "unschedulable. Tolerating nvidia.com/gpu=present would be enough (1 node).\n"
)


def test_the_explanations_are_as_in_the_golden_file(stead: Commands) -> None:
    stead.fill()
    shown = [
        f"$ stead why pod/{name}\n{stead.says('why', f'pod/{name}')}"
        for name in ("train", "huge", "typo", "fits", "web-0")
    ]
    assert_golden("kubernetes/why.txt", "\n".join(shown))


@pytest.mark.parametrize(
    "words",
    [
        ["pod/train"],
        ["pods/train"],
        ["po/train"],
        ["pod", "train"],
        ["pod/default/train"],
        ["default/train", "-A"],
        ["train", "-n", "default"],
        ["train", "--all-namespaces"],
        ["train", "--context", "admin"],
        ["default/train", "--context", "admin", "-n", "kube-system"],
    ],
    ids=" ".join,
)
def test_a_pod_is_named_as_with_kubectl(words: list[str], stead: Commands) -> None:
    stead.fill()
    assert stead.says("why", *words) == NO_NODE_FITS


def test_a_variable_chooses_the_context(stead: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    stead.fill()
    monkeypatch.setenv("STEAD_CONTEXT", "admin")
    assert stead.says("why", "train") == NO_NODE_FITS
    monkeypatch.setenv("STEAD_ADDRESS", "http://127.0.0.1:1")
    assert stead.refuses("why", "train") == (
        "STEAD_CONTEXT is 'admin' and STEAD_ADDRESS is 'http://127.0.0.1:1'; unset one of them, or give --context or "
        "--address"
    )


def test_scripts_get_the_reasons_and_the_same_sentence(stead: Commands) -> None:
    stead.fill()
    code, out, err = stead("why", "pod/train", "-o", "json")
    found = json.loads(out)
    assert (code, err, found["id"], found["text"]) == (0, "", "default/train", NO_NODE_FITS.strip())
    assert found["change"]["text"] == "Tolerating nvidia.com/gpu=present would be enough (1 node)."
    codes = {each["code"] for choice in found["choices"] for each in choice["refusals"]}
    assert codes == {"tainted", "never-fits"}


def test_a_pod_that_is_not_scheduled_has_one_sentence(stead: Commands) -> None:
    """Those that the server of version 1.20 knows: it has no scheduling gates."""
    stead.cluster.create(*small_cluster())
    disk = {"name": "disk", "iscsi": {"targetPortal": "a", "iqn": "iqn.2001-04.com.example:disk", "lun": 0}}
    stead.cluster.create(pod("done"), pod("held"), pod("lost"), pod("disk", scheduler=KUBE, volumes=[disk]))
    kubectl = stead.cluster.kubectl
    kubectl.bind("done", "cpu-1")
    kubectl.set_phase("done", "Succeeded")
    kubectl.patch("Pod", "held", {"metadata": {"finalizers": ["example.com/hold"]}})
    kubectl.delete("Pod", "held", grace_seconds=0)
    kubectl.bind("lost", "gone")
    assert stead.says("why", "pod/done") == (
        "pod/done has finished (Succeeded), so it does not need a node any more.\n"
    )
    assert stead.says("why", "pod/held") == "pod/held is being deleted, so it is not scheduled.\n"
    assert stead.says("why", "pod/lost") == (
        "pod/lost is bound to gone, but there is no such node; Kubernetes deletes such pods.\n"
    )
    assert stead.says("why", "pod/disk") == (
        "pod/disk cannot be explained completely: spec.volumes[disk].iscsi is not supported yet. Without that: 1/3 "
        "nodes are available: cpu-1.\n"
    )


def test_a_pod_with_scheduling_gates_has_one_sentence(fake_stead: Commands) -> None:
    """Fake only: the real server is older than scheduling gates."""
    fake_stead.cluster.create(node("a"), pod("gated", schedulingGates=[{"name": "example.com/quota"}]))
    assert fake_stead.says("why", "pod/gated") == (
        "pod/gated is not scheduled before its scheduling gates are removed; see spec.schedulingGates, and the "
        "controller that removes them.\n"
    )


def test_unknown_pods_are_refused_with_a_similar_name(stead: Commands) -> None:
    stead.fill()
    stead.create_namespaces("team")
    stead.cluster.create(pod("report", namespace="team"))
    assert stead.refuses("why", "pod/trian") == (
        "there is no pod 'trian' in namespace 'default' (did you mean 'train'?)"
    )
    assert stead.refuses("why", "pod/report") == (
        "there is no pod 'report' in namespace 'default'; there is one in: -n team"
    )
    assert stead("why", "pod/report", "-n", "team")[0] == 0


def test_a_name_in_several_namespaces_must_be_chosen(stead: Commands) -> None:
    """A pod in the user's own namespace is meant first."""
    stead.create_namespaces("blue", "red")
    stead.cluster.create(node("a"))
    stead.cluster.create(*(pod("web", namespace=name, cpu=cpu) for name, cpu in (("blue", "100"), ("red", "90"))))
    assert "'web' matches 2 pieces of work: blue/web, red/web" in stead.refuses("why", "web", "-A")
    assert "Adding 82 CPU" in stead.says("why", "red/web", "-A")
    stead.cluster.create(pod("web"))
    assert stead.says("why", "web", "-A").startswith("1/1 node is available: a.")


def test_the_namespace_of_the_context_is_the_usual_one(elsewhere: Commands) -> None:
    """Fake only: one server is enough for what the command line does."""
    elsewhere.cluster.create(node("a"), namespace("team"), *replicas("web", 1, namespace="team"), pod("other"))
    assert "1/1 node" in elsewhere.says("why", "pod/web-0")
    assert elsewhere.says("work", "--context", "admin", "-o", "name") == "team/web-0\n"
    assert elsewhere.says("work", "-A", "-o", "name").split() == ["default/other", "team/web-0"]
    assert elsewhere.says("work", "-n", "default", "-o", "name") == "default/other\n"


def test_a_pod_with_a_place_kept_for_it_waits_for_its_victims(stead: Commands) -> None:
    stead.cluster.create(node("a", cpu="2"), pod("low", cpu="2"), pod("high", scheduler=KUBE, cpu="2"))
    kubectl = stead.cluster.kubectl
    kubectl.bind("low", "a")
    kubectl.patch("Pod", "high", {"status": {"nominatedNodeName": "a"}}, subresource="status")
    assert stead.says("why", "pod/high").startswith("0/1 nodes are available: 1 Insufficient cpu.")


def test_a_pod_of_a_gang_waits_for_its_gang(stead: Commands) -> None:
    stead.cluster.create(node("a", cpu="4"), node("b", cpu="4"))
    for number in range(3):
        each = pod(f"ring-{number}", scheduler="volcano", cpu="3", labels={"kueue.x-k8s.io/pod-group-name": "ring"})
        each["metadata"]["annotations"] = {"kueue.x-k8s.io/pod-group-total-count": "3"}
        stead.cluster.create(each, pod(f"lone-{number}", labels={"scheduling.x-k8s.io/pod-group": "none"}))
    text = stead.says("why", "pod/ring-1")
    assert text.startswith("The pod group needs 3 pods at once, and 2 fit. With the others placed, pod ring-2: 0 of 2")
    assert stead.says("groups", "-A", "-o", "name") == "default/kueue/ring\n"
    assert stead.says("why", "default/kueue/ring", "-A") == text
    assert "does not exist. Otherwise: 2/2 nodes are available" in stead.says("why", "pod/lone-0")


def test_kube_scheduler_places_pods_one_by_one_whatever_gangs_of_others_they_name(stead: Commands) -> None:
    stead.cluster.create(node("a", cpu="4"))
    each = pod("ring-0", scheduler=KUBE, cpu="8", labels={"kueue.x-k8s.io/pod-group-name": "ring"})
    each["metadata"]["annotations"] = {"kueue.x-k8s.io/pod-group-total-count": "3"}
    stead.cluster.create(each)
    assert stead.says("why", "pod/ring-0").startswith("0/1 nodes are available: 1 Insufficient cpu.")
    assert stead.says("groups", "-A", "-o", "name") == ""


def test_a_gpu_of_work_in_a_file_is_one_of_a_pod(stead: Commands, tmp_path: Path) -> None:
    """`stead submit --to kubernetes` creates such pods from the same file."""
    stead.cluster.create(node("gpu-1", resources={"nvidia.com/gpu": "2"}))
    spec = tmp_path / "work.yaml"
    bundles = "groups: [{id: ring, bundles: [{GPU: 1}, {GPU: 1}]}]"
    spec.write_text(f"work: [{{id: fits, resources: {{GPU: 2}}}}, {{id: large, resources: {{GPU: 3}}}}]\n{bundles}\n")
    fits, large, *ring = stead.says("why", "--spec", str(spec), "-n", "default").splitlines()
    assert fits == "fits: 1/1 node is available: gpu-1."
    assert large.startswith("large: 0/1 nodes are available: 1 Insufficient nvidia.com/gpu.")
    assert ring[-1].strip() == "All members fit together."
    text = stead.says("what-if", "--add", "GPU=8", "--work", str(spec), "-n", "default")
    assert "Insufficient" not in text


def test_a_plan_knows_kinds_of_nodes_as_work_describes_them(stead: Commands, tmp_path: Path) -> None:
    """A described node has room for pods, and its GPUs are those that pods need."""
    stead.cluster.create(node("a"), pod("train", scheduler=KUBE, resources={"nvidia.com/gpu": "1"}))
    kinds = tmp_path / "kinds.yaml"
    kinds.write_text("nodes: [{id: gpu, capacity: {CPU: 8, memory: 32Gi, GPU: 4}}]\n")
    text = stead.says("plan", "--nodes", str(kinds), "-n", "default")
    assert "1 new node of the kind gpu" in text
    assert "would run default/train" in text


def test_what_only_stead_refuses_is_not_said_of_kube_scheduler(stead: Commands) -> None:
    """kube-scheduler does not read this annotation."""
    for name, scheduler in (("one", KUBE), ("other", "stead")):
        each = pod(name, scheduler=scheduler)
        each["metadata"]["annotations"] = {"stead.dev/policy": "flwo"}
        stead.cluster.create(each)
    assert stead.says("why", "pod/one").startswith("stead would not schedule pod/one: the annotation stead.dev/policy")
    assert stead.says("why", "pod/other").startswith("pod/other is not scheduled: the annotation stead.dev/policy")
