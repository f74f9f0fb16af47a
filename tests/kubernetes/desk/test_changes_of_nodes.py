"""Taints, labels and cordons reach the API server, and can be previewed and undone; a drain evicts as kubectl does."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from stead.kubernetes.desk.events import causes_of
from stead.kubernetes.desk.node_changes import patch_of
from stead.language.nodes import Node
from stead.language.taints import Effect, Taint
from stead.operate.changes import NodeChange, Removal
from tests.golden_files import assert_golden
from tests.kubernetes.desk.conftest import Commands, owned
from tests.kubernetes.objects import Object, node, pod, replicas, taint
from tests.kubernetes.scheduling.cluster import ClusterUnderTest
from tests.kubernetes.scheduling.kubelet import Kubelets

HERE = ("--context", "admin")

BLUE = {"key": "team", "value": "blue", "effect": "NoExecute"}


def spec_of(stead: Commands, name: str) -> Object:
    return dict(stead.cluster.kubectl.get("Node", name)["spec"])


def labels_of(stead: Commands, name: str) -> Object:
    return dict(stead.cluster.kubectl.get("Node", name)["metadata"]["labels"])


CHANGED = [
    ["taint", "nodes", "cpu-1", "team=blue:NoExecute", "repair:PreferNoSchedule"],
    ["taint", "nodes", "cpu-1", "team=red:NoExecute", "--overwrite"],
    ["taint", "nodes", "cpu-1", "repair-"],
    ["label", "nodes", "cpu-1", "disk=ssd"],
    ["label", "nodes", "cpu-1", "disk-"],
    ["uncordon", "cpu-2"],
    ["drain", "cpu-1"],
    ["nodes"],
    ["audit", "-o", "csv"],
    ["undo", "7"],
    ["undo", "2"],
    ["audit", "--verify"],
]


def test_the_changes_are_as_in_the_golden_file(stead: Commands) -> None:
    stead.fill()
    shown = [f"$ stead {' '.join(words)}\n{stead.says(*words, *HERE)}" for words in CHANGED]
    text = "\n".join("," .join(line.split(",")[:1] + line.split(",")[5:]) if ",cli," in line else line
                     for line in "\n".join(shown).splitlines())  # fmt: skip
    assert_golden("kubernetes/changes.txt", text + "\n")
    assert spec_of(stead, "cpu-1")["taints"] == [BLUE]
    assert "unschedulable" not in {**spec_of(stead, "cpu-1"), **spec_of(stead, "cpu-2")}
    assert "disk" not in labels_of(stead, "cpu-1")


def test_a_cordon_is_what_kubectl_makes_of_it(stead: Commands) -> None:
    stead.cluster.create(node("a"), pod("web"))
    stead.says("drain", "a", *HERE)
    assert spec_of(stead, "a")["unschedulable"] is True
    assert "1 node(s) were unschedulable" in stead.says("why", "pod/web")
    stead.says("uncordon", "a", *HERE)
    assert "unschedulable" not in spec_of(stead, "a")
    assert "1/1 node is available" in stead.says("why", "pod/web")


def test_several_nodes_are_one_change(stead: Commands) -> None:
    stead.cluster.create(*(node(name, labels={"zone": "a"}) for name in ("a", "b", "c")))
    stead.says("taint", "nodes", "-l", "zone=a", "team=blue:NoExecute", *HERE)
    assert [spec_of(stead, name)["taints"] for name in ("a", "b", "c")] == [[BLUE]] * 3
    stead.says("undo", "1", *HERE)
    assert ["taints" in spec_of(stead, name) for name in ("a", "b", "c")] == [False] * 3


def test_a_preview_changes_nothing(stead: Commands) -> None:
    stead.fill()
    (shown,) = json.loads(stead("drain", "cpu-1", "--evict", "--dry-run", *HERE, "-o", "json")[1])
    found = shown["difference"]
    assert [fate["ids"] for fate in found["stranded"]] == [["default/web-0"]], "the pod of a daemon set stays"
    assert "unschedulable" not in spec_of(stead, "cpu-1")
    assert stead.says("audit", *HERE) == "no changes\n"


def test_a_what_if_can_be_applied(stead: Commands) -> None:
    stead.fill()
    out = stead.says("what-if", "--drain", "gpu-1", "--label", "gpu-1", "repair=true", "--apply", "--yes", *HERE)
    assert "Changed gpu-1: +repair=true draining. Undo it with: stead undo 1" in out
    assert (spec_of(stead, "gpu-1")["unschedulable"], labels_of(stead, "gpu-1")["repair"]) == (True, "true")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--for", "2h"], "a taint of Kubernetes has no end; set it without --for, and remove it later: team-"),
        (["--owner", "ann"], "a taint of Kubernetes has no owner; set it without --owner, for example team=blue"),
        (["--until-job", "1"], "a taint of Kubernetes cannot end with a job; set it without --until-job"),
    ],
)
def test_what_kubernetes_cannot_do_is_refused(words: Sequence[str], sentence: str, stead: Commands) -> None:
    stead.cluster.create(node("a"))
    assert stead.refuses("taint", "nodes", "a", "team=blue:NoSchedule", *words, *HERE) == sentence
    assert "taints" not in spec_of(stead, "a")


@pytest.mark.kube
def test_what_the_api_server_does_not_accept_is_refused(real_stead: Commands) -> None:
    """Real only: the fake server checks no taints."""
    real_stead.cluster.create(node("a"))
    found = real_stead.refuses("label", "nodes", "a", f"disk={'x' * 64}", *HERE)
    assert "disk" in found and "63" in found


class TestTwoWritersAtOnce:
    """What somebody else changes at the same time is kept."""

    def test_a_change_in_between_is_kept(self, fake_stead: Commands) -> None:
        """Fake only: it answers that the version is old."""
        fake_stead.cluster.create(node("a", taints=[taint("other")]))
        fake_stead.cluster.fake.fail_next("PATCH", "/nodes/a$", 409, times=2)
        fake_stead.says("taint", "nodes", "a", "team=blue:NoExecute", *HERE)
        assert spec_of(fake_stead, "a")["taints"] == [{"key": "other", "effect": "NoSchedule"}, BLUE]
        assert fake_stead.cluster.fake.count("PATCH") == 3

    def test_an_old_version_is_refused_by_the_server(self, stead: Commands) -> None:
        stead.cluster.create(node("a"))
        kubectl = stead.cluster.kubectl
        patch = patch_of(kubectl.get("Node", "a"), NodeChange("a", (Taint("team", "blue", Effect.NO_EXECUTE),)))
        kubectl.patch("Node", "a", {"metadata": {"labels": {"disk": "ssd"}}})
        answer = kubectl.request("PATCH", "/api/v1/nodes/a", patch, content_type="application/merge-patch+json")
        assert answer.status == 409


TAINTED: Object = {
    "metadata": {"resourceVersion": "7"},
    "spec": {"taints": [{**BLUE, "timeAdded": "2026-01-01T00:00:00Z"}]},
}


@pytest.mark.parametrize(
    ("change", "patch"),
    [
        (NodeChange("a", (Taint("team", "blue", Effect.NO_EXECUTE),)), None),
        (NodeChange("a", (Taint("new"),)), [TAINTED["spec"]["taints"][0], {"key": "new", "effect": "NoSchedule"}]),
        (NodeChange("a", (Taint("team", "red", Effect.NO_EXECUTE),)), [{**BLUE, "value": "red"}]),
        (NodeChange("a", untaints=(Removal("team"),)), "nothing"),
        (NodeChange("a", untaints=(Removal("team", None, Effect.NO_SCHEDULE),)), None),
        (NodeChange("a", draining=False), None),
    ],
)
def test_a_patch_keeps_what_it_does_not_name(change: NodeChange, patch: Any) -> None:
    found = patch_of(TAINTED, change)
    if patch is None:
        assert found == {}
    else:
        wanted = None if patch == "nothing" else patch
        assert found == {"metadata": {"resourceVersion": "7"}, "spec": {"taints": wanted}}


def test_two_versions_of_a_node_differ_by_the_facts_that_a_change_would_be() -> None:
    old = Node.of("a", {"CPU": 1}, {"zone": "a", "disk": "hdd"}, [Taint("team", "blue"), Taint("old")])
    new = Node.of("a", {"CPU": 1}, {"zone": "a", "disk": "ssd"}, [Taint("team", "red")])
    assert [type(fact).__name__ for fact in causes_of(old, new)] == ["NodeTainted", "NodeUntainted", "NodeLabelled"]
    assert causes_of(old, old) == []


class TestDraining:
    """`--evict` evicts through the API server."""

    def fill(self, stead: Commands) -> None:
        stead.cluster.create(node("a"), node("b"))
        controlled = replicas("web", 2, cpu="1")
        agent = pod("agent", owner=owned("agent", "DaemonSet"))
        static = pod("static", owner={**owned("a", "Node"), "apiVersion": "v1"})
        stead.cluster.create(*controlled, agent, static)
        for name in ("web-0", "web-1", "agent", "static"):
            stead.cluster.kubectl.bind(name, "a")
            stead.cluster.kubectl.set_phase(name, "Running")

    def test_pods_of_daemon_sets_and_static_pods_stay(self, stead: Commands) -> None:
        self.fill(stead)
        with Kubelets(stead.cluster.server) as kubelets:
            out = stead.says("drain", "a", "--evict", "--rate", "100/s", "--wait", *HERE)
        assert sorted(kubelets.ended) == ["web-0", "web-1"]
        assert out == "node a: takes no new work, and running work is evicted\nnode a: empty\n"
        assert sorted(stead.cluster.pods()) == ["agent", "static"]

    def test_a_budget_delays_an_eviction(
        self, stead: Commands, monkeypatch: pytest.MonkeyPatch, allow: Callable[[Commands, int], None]
    ) -> None:
        self.fill(stead)
        monkeypatch.setattr("stead.kubernetes.desk.evicting.BLOCKED_S", 0.0)
        monkeypatch.setattr("stead.kubernetes.desk.evicting.RETRY_S", 0.01)
        allow(stead, 0)
        found = stead.refuses("drain", "a", "--evict", *HERE)
        assert found.startswith("2 pods could not be evicted: default/web-0, default/web-1; the nodes stay cordoned")
        assert "disruption budget" in found
        assert spec_of(stead, "a")["unschedulable"] is True
        allow(stead, 2)
        with Kubelets(stead.cluster.server) as kubelets:
            stead.says("drain", "a", "--evict", "--wait", *HERE)
        assert sorted(kubelets.ended) == ["web-0", "web-1"]

    def test_a_pod_without_a_controller_is_not_evicted(self, stead: Commands) -> None:
        stead.cluster.create(node("a"), pod("alone"))
        stead.cluster.kubectl.bind("alone", "a")
        assert stead.refuses("drain", "a", "--evict", *HERE) == (
            "node a has pods without a controller that would create them again: default/alone; delete them yourself, "
            "or drain the node without --evict"
        )
        assert "unschedulable" not in spec_of(stead, "a")


@pytest.fixture
def allow(cluster: ClusterUnderTest) -> Iterator[Callable[[Commands, int], None]]:
    """Creates a budget for the pods `web`, or changes how many evictions it allows: no controller counts here."""
    version = "policy/v1" if cluster.is_fake else "policy/v1beta1"
    path = f"/apis/{version}/namespaces/default/poddisruptionbudgets"

    def set_allowed(stead: Commands, count: int) -> None:
        kubectl = stead.cluster.kubectl
        budget = {
            "apiVersion": version,
            "kind": "PodDisruptionBudget",
            "metadata": {"name": "web", "namespace": "default"},
            "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "web"}}},
        }
        assert kubectl.request("POST", path, budget).status in (201, 409)
        status = {"disruptionsAllowed": count, "currentHealthy": 2, "desiredHealthy": 0, "expectedPods": 2}
        found = kubectl.request("GET", f"{path}/web").body
        status["observedGeneration"] = found["metadata"].get("generation", 1)
        changed = kubectl.request("PUT", f"{path}/web/status", {**found, "status": status})
        assert changed.status == 200, changed.body

    yield set_allowed
    cluster.kubectl.request("DELETE", f"{path}/web")
