"""`stead submit --to kubernetes` against an API server, with the real scheduler and the kubelets of the tests."""

from __future__ import annotations

import json
import signal
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stead.cli import main
from stead.kubernetes.running import target
from tests.kubernetes.custom_resources import COSCHEDULING, installed
from tests.kubernetes.objects import Object, node
from tests.kubernetes.scheduling.cluster import ClusterUnderTest
from tests.kubernetes.scheduling.kubelet import Kubelets, Logs
from tests.kubernetes.scheduling.running import STEAD, WAIT_SECONDS_MAX, wait_until

USER = "scheduler-2"

Submit = Callable[..., tuple[int, list[str], str]]

GPU = {"nvidia.com/gpu": "1"}
TAINT = {"key": "gpu_node", "value": "true", "effect": "NoSchedule"}
NODES = [node("cpu-1", cpu="2"), node("cpu-2", cpu="2"), node("gpu-1", cpu="2", resources=GPU, taints=[TAINT])]

WORK = """
work:
  - {id: web, count: 2, run: exit 0, image: busybox, resources: {CPU: 1}, labels: {app: web}, apart: {symmetric: true}}
  - {id: train, run: exit 3, image: busybox, resources: {GPU: 1}, tolerations: gpu_node}
"""


def exit_code(pod: Object) -> int | None:
    """A pod runs ``exit 3`` or, for example, ``sleep``, which goes on."""
    words = pod["spec"]["containers"][0]["command"][-1].split()
    return int(words[1]) if words[0] == "exit" else None


@pytest.fixture
def submit(cluster: ClusterUnderTest, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Submit:
    """Submits a file: the exit code, the lines on stdout, and stderr."""

    def call(text: str, *options: str) -> tuple[int, list[str], str]:
        code = main(words(cluster, tmp_path, text, *options))
        said = capsys.readouterr()
        return code, said.out.splitlines(), said.err

    return call


def words(cluster: ClusterUnderTest, folder: Path, text: str, *options: str) -> list[str]:
    file = folder / "work.yaml"
    file.write_text(text, encoding="utf-8")
    where = ["--kubeconfig", str(cluster.server.kubeconfig_path), "--context", USER]
    return ["submit", "--to", "kubernetes", str(file), *where, *options]


def test_work_runs_where_it_may_and_its_exit_status_counts(cluster: ClusterUnderTest, submit: Submit) -> None:
    cluster.create(*NODES)
    cluster.scheduler().wait_until_leading()
    with Kubelets(cluster.server, exit_code=exit_code):
        code, lines, _ = submit(WORK, "-w")
    assert code == 1
    assert {"web-1: succeeded", "web-2: succeeded", "train: failed with exit status 3"} <= set(lines)
    assert lines[-1] == "2 pieces succeeded, 1 failed"
    assert "train: running on gpu-1" in lines
    assert sum(line.startswith("logs cannot be read: ") for line in lines) == 1, "there is no kubelet; it is said once"
    assert {cluster.node_of("web-1"), cluster.node_of("web-2")} == {"cpu-1", "cpu-2"}
    assert cluster.pods()["train"]["spec"]["schedulerName"] == "stead"


def test_success_is_exit_status_0_and_json_has_the_result(cluster: ClusterUnderTest, submit: Submit) -> None:
    cluster.create(*NODES)
    cluster.scheduler().wait_until_leading()
    with Kubelets(cluster.server, exit_code=exit_code):
        code, lines, _ = submit("work: {id: a, run: exit 0, image: busybox}", "-w", "-o", "json")
    assert code == 0
    (found,) = json.loads("\n".join(lines))
    assert (found["id"], found["state"], found["code"], found["reason"]) == ("a", "succeeded", 0, None)


def test_why_work_is_pending_is_printed_until_its_deadline(cluster: ClusterUnderTest, submit: Submit) -> None:
    cluster.create(*NODES)
    cluster.scheduler().wait_until_leading()
    spec = "work: {id: train, run: exit 0, image: busybox, resources: {GPU: 1}, deadline: 3}"
    code, lines, _ = submit(spec, "-w")
    assert code == 1
    why = "0/3 nodes are available: 1 node(s) had untolerated taint(s), 2 Insufficient nvidia.com/gpu."
    assert lines[0].startswith(f"train: pending: {why}")
    assert lines[1].startswith(f"train: failed: its deadline passed: {why}")
    wait_until(lambda: "train" not in cluster.pods(), "the pod to be deleted")


def test_a_scheduler_that_does_not_run_is_named(
    fake_cluster: ClusterUnderTest, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the fake server only, because no server is needed but its silence."""
    monkeypatch.setattr(target, "UNSEEN_S", 0.2)
    spec = "work: {id: a, run: exit 0, image: busybox, deadline: 1}"
    assert main(words(fake_cluster, tmp_path, spec, "-w", "--scheduler-name", "batch")) == 1
    why = "no scheduler named 'batch' has looked at it yet; is it running?"
    assert capsys.readouterr().out.splitlines()[0] == f"a: pending: {why}"


def test_without_watching_the_pods_stay(cluster: ClusterUnderTest, submit: Submit) -> None:
    code, lines, _ = submit(WORK, "-n", "default")
    assert (code, lines) == (0, [f"{name} submitted" for name in ("web-1", "web-2", "train")])
    assert set(cluster.pods()) == {"web-1", "web-2", "train"}


def test_a_name_that_exists_is_refused_and_nothing_else_is_left(cluster: ClusterUnderTest, submit: Submit) -> None:
    submit("work: {id: train, run: exit 0, image: busybox}")
    code, lines, err = submit(WORK)
    assert (code, lines) == (1, [])
    assert err == (
        "stead: the pod 'train' exists already in the namespace 'default'; delete it, or choose another id\n"
    )
    with Kubelets(cluster.server):
        wait_until(lambda: set(cluster.pods()) == {"train"}, "the other pods to be deleted")


def test_a_dry_run_creates_nothing(cluster: ClusterUnderTest, submit: Submit) -> None:
    code, lines, _ = submit(WORK, "--dry-run")
    assert (code, lines[-1]) == (0, "train would be submitted")
    assert not cluster.pods()


def test_a_priority_needs_its_class(cluster: ClusterUnderTest, submit: Submit) -> None:
    spec = "work: {id: a, run: exit 0, image: busybox, priority: 77}"
    code, _, err = submit(spec)
    assert code == 1
    assert "work.yaml: work.priority: no PriorityClass has the value 77; create one, for example: kubectl" in err
    name = "stead-77"
    made = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name}, "value": 77}
    cluster.create(made)
    try:
        assert submit(spec)[0] == 0
        assert cluster.pods()["a"]["spec"]["priorityClassName"] == name
    finally:
        cluster.kubectl.delete("PriorityClass", name)


def test_a_group_is_a_gang(cluster: ClusterUnderTest, submit: Submit) -> None:
    """There is no API for PodGroups on these servers, so an annotation says how large the gang is."""
    ring = "groups: {id: ring, run: exit 0, image: busybox, strategy: STRICT_SPREAD, bundles: [{CPU: 1}, {CPU: 1}]}"
    assert submit(ring)[0] == 0
    pods = cluster.pods()
    assert set(pods) == {"ring-1", "ring-2"}
    for pod in pods.values():
        assert pod["metadata"]["labels"] == {"scheduling.x-k8s.io/pod-group": "ring"}
        assert pod["metadata"]["annotations"]["stead.dev/min-available"] == "2"
        (term,) = pod["spec"]["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        assert term["topologyKey"] == "kubernetes.io/hostname"


@pytest.mark.kube
def test_a_group_is_a_pod_group_where_the_api_server_has_them(real_cluster: ClusterUnderTest, tmp_path: Path) -> None:
    """Real only: the fake server does not say which resources it has."""
    ring = "groups: {id: ring, run: exit 0, image: busybox, min_available: 2, bundles: {resources: {CPU: 1}, count: 3}}"
    with installed(real_cluster.kubectl, COSCHEDULING):
        assert main(words(real_cluster, tmp_path, ring)) == 0
        assert real_cluster.kubectl.get("PodGroup", "ring")["spec"]["minMember"] == 2
        assert "annotations" not in real_cluster.pods()["ring-1"]["metadata"] or (
            "stead.dev/min-available" not in real_cluster.pods()["ring-1"]["metadata"]["annotations"]
        )


REFUSED: dict[str, tuple[str, str]] = {
    "no image": ("work: {id: a, run: exit 0}", "work.image: is missing; a pod needs a container image"),
    "later": ("work: {id: a, run: x, image: b, at: 5}", "work: only the simulator can submit work later"),
    "a deadline that nobody enforces": (
        "work: {id: a, run: x, image: b, deadline: 5}",
        "work.deadline: on Kubernetes only this command can enforce it; add -w",
    ),
    "a time-out without PodGroups": (
        "groups: {id: a, run: x, image: b, timeout: 5, bundles: [{CPU: 1}]}",
        "groups.timeout: needs PodGroups",
    ),
    "a fallback": ("work: {id: a, run: x, image: b, fallback: {selector: c}}", "work.fallback: a pod has one choice"),
    "another namespace": (
        "work: {id: a, run: x, image: b, namespace: nowhere}",
        "the namespace 'nowhere' does not exist",
    ),
}


@pytest.mark.parametrize(("text", "sentence"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_done_is_refused_in_one_sentence(
    cluster: ClusterUnderTest, submit: Submit, text: str, sentence: str
) -> None:
    code, lines, err = submit(text)
    assert (code, lines) == (1, [])
    assert sentence in err
    assert err.count("\n") == 1
    assert not cluster.pods()


@pytest.mark.kube
def test_logs_come_from_the_kubelet(
    real_cluster: ClusterUnderTest, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The fake server has no logs; the real one reads them from the kubelet's port."""
    text = "work: {id: a, run: exit 0, image: busybox}"
    with Logs(tmp_path, "one\ntwo ä\n".encode()) as logs:
        real_cluster.create(logs.on(NODES[0]))
        real_cluster.scheduler().wait_until_leading()
        with Kubelets(real_cluster.server, exit_code=exit_code):
            code = main(words(real_cluster, tmp_path, text, "-w"))
    lines = capsys.readouterr().out.splitlines()
    assert (code, lines[-4:]) == (0, ["a | one", "a | two ä", "a: succeeded", "1 piece succeeded"])


def test_a_pod_that_somebody_deletes_has_failed(cluster: ClusterUnderTest, submit: Submit) -> None:
    cluster.create(*NODES)
    cluster.scheduler().wait_until_leading()

    def delete() -> None:
        wait_until(lambda: cluster.pods().get("a", {}).get("status", {}).get("phase") == "Running", "it to run")
        cluster.kubectl.delete("Pod", "a")

    thread = threading.Thread(target=delete)
    with Kubelets(cluster.server, exit_code=exit_code):
        thread.start()
        code, lines, _ = submit("work: {id: a, run: sleep, image: busybox}", "-w")
        thread.join()
    assert (code, lines[-2]) == (1, "a: failed: its pod was deleted")


@pytest.mark.parametrize("other", ["", "work: {id: ended, run: exit 0, image: busybox}"])
def test_ctrl_c_deletes_what_has_not_ended(cluster: ClusterUnderTest, tmp_path: Path, other: str) -> None:
    cluster.create(*NODES)
    cluster.scheduler().wait_until_leading()
    spec: Any = "work: [{id: runs, run: sleep, image: busybox}, {id: waits, run: x, image: b, resources: {GPU: 1}}]"
    with Kubelets(cluster.server, exit_code=exit_code):
        if other:
            assert main(words(cluster, tmp_path, other)) == 0
        command = [str(STEAD), *words(cluster, tmp_path, spec, "-w")]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            wait_until(lambda: cluster.pods().get("runs", {}).get("status", {}).get("phase") == "Running", "it to run")
            assert process.stdout is not None
            first = process.stdout.readline()
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=WAIT_SECONDS_MAX)
        assert (process.returncode, err.strip()) == (130, "stead: interrupted"), first + out
        assert "cancelling; press Ctrl-C again to leave at once" in out
        wait_until(lambda: set(cluster.pods()) == ({"ended"} if other else set()), "the pods to be deleted")


GANGS = """
groups:
  - {id: two, bundles: {resources: {CPU: 2}, count: 2}, run: exit 0, image: busybox}
  - {id: three, bundles: {resources: {CPU: 2}, count: 3}, run: exit 0, image: busybox, deadline: 5}
"""


def test_a_group_runs_as_a_gang_or_not_at_all(cluster: ClusterUnderTest, submit: Submit) -> None:
    cluster.create(node("a", cpu="2"), node("b", cpu="2"))
    cluster.scheduler().wait_until_leading()
    with Kubelets(cluster.server, exit_code=exit_code):
        code, lines, _ = submit(GANGS, "-w")
    assert code == 1
    assert {"two-1: succeeded", "two-2: succeeded"} <= set(lines)
    assert not [line for line in lines if line.startswith("three") and "running" in line]
    assert [line for line in lines if line.startswith("three-1: failed: ")]
    assert lines[-1] == "2 pieces succeeded, 3 failed"
