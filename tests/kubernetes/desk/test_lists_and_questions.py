"""The lists and the questions of a Kubernetes cluster, each command at least once, in Kubernetes' words."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.golden_files import assert_golden
from tests.kubernetes.desk.conftest import KUBE, Commands
from tests.kubernetes.objects import node, nodes, pod, replicas, taint

MANIFEST = """
apiVersion: v1
kind: Pod
metadata: {name: new}
spec:
  nodeSelector: {kubernetes.io/hostname: gpu-1}
  containers:
    - {name: main, image: "registry.invalid/pause:1", resources: {requests: {cpu: "3"}}}
"""

MIXED = """
work:
  - {id: plain, resources: {CPU: 2}}
  - apiVersion: v1
    kind: Pod
    metadata: {name: new, namespace: team}
    spec: {containers: [{name: main, image: "registry.invalid/pause:1", resources: {requests: {cpu: 90}}}]}
"""

SHOWN = [
    ["nodes", "--context", "admin"],
    ["nodes", "-o", "wide", "--context", "admin"],
    ["nodes", "--filter", "draining=true", "-o", "name", "--context", "admin"],
    ["work", "--context", "admin"],
    ["work", "-A"],
    ["work", "-A", "--waiting", "-o", "name"],
    ["status", "--context", "admin"],
    ["top", "--context", "admin"],
    ["top", "owners", "-A"],
    ["groups", "-A"],
    ["describe", "node", "cpu-1", "--context", "admin"],
    ["describe", "work", "pod/web-0", "-n", "default"],
    ["what-if", "--uncordon", "cpu-2", "--context", "admin"],
    ["what-if", "--drain", "cpu-1", "--context", "admin"],
    ["what-if", "--evict", "cpu-1", "--context", "admin"],
    ["what-if", "--add", "cpu=200,memory=8Gi", "--context", "admin"],
    ["what-if", "--add-like", "cpu-2", "--taint", "cpu-1", "team=blue:NoExecute", "--context", "admin"],
    ["what-if", "--remove", "cpu-1", "--context", "admin"],
    ["plan", "--context", "admin"],
]


def test_the_answers_are_as_in_the_golden_file(stead: Commands) -> None:
    stead.fill()
    shown = [f"$ stead {' '.join(words)}\n{stead.says(*words)}" for words in SHOWN]
    assert_golden("kubernetes/questions.txt", without_moments("\n".join(shown)))


def without_moments(text: str) -> str:
    return re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", "2026-01-31 12:00:00", text)


def test_lint_finds_names_that_no_node_has(stead: Commands) -> None:
    stead.fill()
    code, out, _ = stead("lint", "--context", "admin")
    assert code == 1
    assert "kubernetes.io/hostnam in {cpu-1}: no node has the label kubernetes.io/hostnam" in out
    assert "100 CPU: the largest node has 8 CPU" in out


class TestManifests:
    """A spec may be a pod in API form."""

    def test_why(self, stead: Commands, tmp_path: Path) -> None:
        stead.fill()
        file = tmp_path / "pod.yaml"
        file.write_text(MANIFEST, encoding="utf-8")
        assert stead.says("why", "--spec", str(file), "--context", "admin") == (
            "default/new: 0/3 nodes are available: 1 node(s) didn't match Pod's node affinity/selector, 1 node(s) had "
            "untolerated taint(s), 1 node(s) were unschedulable. Tolerating nvidia.com/gpu=present would be enough (1 "
            "node).\n"
        )

    def test_what_if_and_lint_beside_work_in_the_words_of_stead(self, stead: Commands, tmp_path: Path) -> None:
        stead.fill()
        stead.create_namespaces("team")
        file = tmp_path / "work.yaml"
        file.write_text(MIXED, encoding="utf-8")
        found = json.loads(stead("what-if", "--work", str(file), "--context", "admin", "-o", "json")[1])
        assert [fate["ids"] for fate in found["placed"] if "plain" in fate["ids"]] == [["plain"]]
        assert [fate["ids"] for fate in found["unplaced"]] == [["team/new"]]
        code, out, _ = stead("lint", "--spec", str(file), "--context", "admin")
        assert (code, "90 CPU: the largest node has 8 CPU" in out) == (1, True)

    @pytest.mark.parametrize(
        ("text", "sentence"),
        [
            ("{apiVersion: batch/v1, kind: Job}", "kind 'Job' cannot be explained; give a Pod"),
            ("{apiVersion: v1, kind: Pod, metadata: {name: x}, spec: {nodeSelector: 7}}", "must be an object such as"),
            ("{apiVersion: v1, kind: Pod, metadata: {name: web-0}}", "there is a pod 'default/web-0' already"),
        ],
    )
    def test_what_cannot_be_explained_is_refused(
        self, text: str, sentence: str, stead: Commands, tmp_path: Path
    ) -> None:
        stead.fill()
        file = tmp_path / "pod.yaml"
        file.write_text(text, encoding="utf-8")
        assert sentence in stead.refuses("why", "--spec", str(file), "--context", "admin")


def test_events_of_the_api_server_have_the_kinds_of_stead(stead: Commands) -> None:
    stead.cluster.create(node("a"), pod("web"), pod("huge", cpu="100"))
    stead.cluster.scheduler()
    stead.cluster.wait_until_bound("web")
    stead.cluster.wait_for_event("web", "Scheduled")
    stead.cluster.wait_for_event("huge", "FailedScheduling")
    code, out, err = stead("events", "-n", "default", "-o", "json")
    assert (code, err) == (0, "")
    found = {(each["kind"], each["subject"], each["text"]) for each in json.loads(out)}
    assert ("placed", "default/web", "Successfully assigned default/web to a") in found
    assert any(
        kind == "waiting" and text.startswith("0/1 nodes are available: 1 Insufficient cpu.")
        for kind, name, text in found
        if name == "default/huge"
    )
    numbers = [each["number"] for each in json.loads(out)]
    assert numbers == sorted(set(numbers))
    later = json.loads(stead("events", "-n", "default", "-o", "json", "--after", str(numbers[0]))[1])
    assert [each["number"] for each in later] == numbers[1:]


def test_replay_says_where_past_decisions_are(stead: Commands) -> None:
    stead.cluster.create(node("a"))
    assert stead.refuses("replay", "--ask", "pod/web", "--context", "admin") == (
        "past decisions are in the scheduler's journal: run `stead scheduler --journal FILE`, and give that file, for "
        "example: stead replay FILE --ask pod/web"
    )


def test_the_journal_of_the_scheduler_is_replayed_by_the_name_of_a_pod(stead: Commands, tmp_path: Path) -> None:
    journal = str(tmp_path / "stead.journal")
    stead.cluster.create(node("a"), pod("web"), pod("huge", cpu="100"))
    stead.cluster.scheduler("--journal", journal)
    stead.cluster.wait_until_bound("web")
    stead.cluster.wait_until_pending("huge")
    stead.cluster.end_schedulers()
    assert "default/web: placed on a" in stead.says("replay", journal, "--ask", "pod/web")
    assert "default/huge, at that time: 0 of 1 node fits" in stead.says("replay", journal, "--ask", "pod/huge")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["nodes", "--context", "x", "--address", "http://a"], "give --address or --context, not both"),
        (["work", "-A", "--scenario", "a.yaml"], "give --scenario or --all-namespaces, not both"),
        (["work", "-A", "-n", "team"], "give --namespace or --all-namespaces, not both"),
        (["why", "pod", "a", "b"], "give the id of one piece of work, not 3: pod a b"),
        (["replay", "a.journal", "--context", "x"], "give a journal file or --context, not both"),
    ],
)
def test_wrong_usage_is_one_sentence(words: list[str], sentence: str, fake_stead: Commands) -> None:
    """Fake only: nothing is asked of a server."""
    code, out, err = fake_stead(*words)
    assert (code, out) == (2, "")
    assert err.startswith(f"stead: {sentence}")


def test_an_unknown_context_and_a_missing_file_are_refused(fake_stead: Commands) -> None:
    """Fake only: nothing is asked of a server."""
    assert "there is no context 'adnim' in" in fake_stead.refuses("nodes", "--context", "adnim")
    assert "there is no kubeconfig file none.yaml" in fake_stead.refuses("nodes", "--kubeconfig", "none.yaml")


def test_without_the_client_library_the_error_says_what_to_install(
    fake_stead: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fake only: nothing is asked of a server."""
    monkeypatch.setattr("stead.commands.scheduling.find_spec", lambda name: None)
    assert fake_stead.refuses("why", "pod/web") == (
        "stead why needs msgspec, which is not installed; try: pip install 'stead[kubernetes]'"
    )


def test_a_server_that_cannot_be_reached_is_one_sentence(fake_stead: Commands) -> None:
    """Fake only: it stops at once."""
    fake_stead.cluster.server.stop_apiserver()
    assert "cannot connect to the API server at" in fake_stead.refuses("nodes", "--context", "admin")


def test_a_large_cluster_is_listed_in_pages(fake_stead: Commands) -> None:
    """Fake only: to create so many nodes takes long on the real server."""
    fake_stead.cluster.create_many([*nodes(1100), node("special", taints=[taint("only", effect="NoExecute")])])
    fake_stead.cluster.create(pod("huge", cpu="100", scheduler=KUBE))
    assert fake_stead.says("why", "pod/huge").startswith(
        "0/1101 nodes are available: 1 node(s) had untolerated taint(s), 1100 Insufficient cpu."
    )
    assert "only:NoExecute" in fake_stead.says("nodes", "special", "--context", "admin")


class TestNamespaces:
    """Lists have the pods of one namespace, unless the command line says -A; nodes and the status count all pods."""

    @pytest.fixture(autouse=True)
    def fill(self, stead: Commands) -> None:
        stead.create_namespaces("blue", "red")
        stead.cluster.create(node("a"))
        for name in ("blue", "red"):
            stead.cluster.create(*replicas("web", 2, namespace=name, cpu="1"), pod("huge", namespace=name, cpu="100"))
            stead.cluster.kubectl.bind("web-0", "a", name)

    def test_work_and_lint(self, stead: Commands) -> None:
        assert stead.says("work", "-n", "blue", "-o", "name").split() == ["blue/huge", "blue/web-1", "blue/web-0"]
        assert len(stead.says("work", "-A", "-o", "name").split()) == 6
        assert stead.says("work", "--context", "admin") == "no work\n"
        (found,) = json.loads(stead("lint", "-n", "red", "-o", "json")[1])
        assert found["ids"] == ["red/huge"]
        (found,) = json.loads(stead("lint", "-A", "-o", "json")[1])
        assert found["ids"] == ["blue/huge", "red/huge"]

    def test_status_and_nodes(self, stead: Commands) -> None:
        for words, counts in (([], (2, 4)), (["-A"], (2, 4)), (["-n", "blue"], (1, 2))):
            found = json.loads(stead("status", "--context", "admin", *words, "-o", "json")[1])
            assert (found["running"], found["waiting"]) == counts
        (found,) = json.loads(stead("nodes", "-n", "blue", "-o", "json")[1])
        assert (found["runs"], found["available"]["CPU"]) == (2, 6.0)

    def test_owners_of_two_namespaces_are_not_one(self, stead: Commands) -> None:
        shown = stead.says("top", "owners", "-A")
        assert [line.split()[0] for line in shown.splitlines()[1:]] == ["blue/ReplicaSet/web", "red/ReplicaSet/web"]
        stead.cluster.kubectl.request("DELETE", "/api/v1/namespaces/red/pods", {"gracePeriodSeconds": 0})
        shown = stead.says("top", "owners", "-A")
        assert [line.split()[0] for line in shown.splitlines()[1:]] == ["ReplicaSet/web"]
        assert stead.says("top", "owners", "-n", "red") == "no work has an owner\n"
