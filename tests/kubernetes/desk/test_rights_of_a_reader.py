"""Questions need only the rights of the role in the guide; without some of them, answers say what they lack."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from stead.kubernetes.api.config import load
from stead.kubernetes.desk.desk import KubeDesk, Scope
from tests.kubernetes.desk.conftest import Commands
from tests.kubernetes.objects import Kubectl, Object, node, pod
from tests.kubernetes.servers.fake import FakeServer
from tests.kubernetes.test_rights import right_of, rights_of

GUIDE = Path(__file__).parent.parent.parent.parent / "docs" / "kubernetes.md"
USER = "without-rights"
RBAC = "/apis/rbac.authorization.k8s.io/v1"

QUESTIONS = [
    ["why", "pod/train"],
    ["why", "pod/gone"],
    ["nodes"],
    ["work", "-A"],
    ["groups", "-A"],
    ["status"],
    ["top"],
    ["describe", "node", "cpu-1"],
    ["what-if", "--drain", "cpu-1"],
    ["what-if", "--evict", "cpu-1"],
    ["lint", "-A"],
    ["plan"],
    ["events", "-A"],
]


def role_of_the_guide() -> Object:
    """The ClusterRole that the guide shows."""
    blocks = re.findall(r"^```yaml\n(.*?)^```$", GUIDE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    (found,) = [each for block in blocks for each in yaml.safe_load_all(block) if each["kind"] == "ClusterRole"]
    return dict(found)


def test_the_role_of_the_guide_has_exactly_the_rights_that_are_used(fake_stead: Commands, tmp_path: Path) -> None:
    """Fake only: it records every request."""
    fake_stead.fill()
    fake = fake_stead.cluster.fake
    before = len(fake.requests)
    for words in QUESTIONS:
        fake_stead(*words, "--context", USER)
    desk = KubeDesk(load(str(fake.kubeconfig_path), USER), tmp_path / "audit", Scope(), pytest.fail)
    try:
        desk.follow()
        desk.snapshot()
        fake_stead.cluster.kubectl.wait_until(lambda: "/api/v1/pods" in watched(fake))
    finally:
        desk.close()
    used = {right_of(seen) for seen in fake.requests[before:] if seen.user == USER}
    # What is listed is watched by `stead serve`, unless the server does not have it.
    assert used | {("watch", *what) for _, *what in used} == rights_of(role_of_the_guide())


def watched(fake: FakeServer) -> set[str]:
    return {seen.path for seen in fake.requests if seen.query.get("watch") and seen.user == USER}


Grant = Callable[[list[Object], str], None]


@pytest.fixture
def grant(real_stead: Commands) -> Iterator[Grant]:
    """Gives the user these rules, in all namespaces or in one."""
    kubectl = real_stead.cluster.kubectl
    made: list[str] = []

    def post(path: str, body: Any) -> None:
        answer = kubectl.request("POST", path, body)
        assert answer.status == 201, answer.body
        made.append(f"{path}/{body['metadata']['name']}")

    def give(rules: list[Object], namespace: str) -> None:
        prefix, folder = ("", RBAC) if namespace else ("Cluster", RBAC)
        within = f"/namespaces/{namespace}" if namespace else ""
        version, name = "rbac.authorization.k8s.io/v1", {"name": "reader"}
        role = {"apiVersion": version, "kind": f"{prefix}Role", "metadata": name, "rules": rules}
        binding = {
            "apiVersion": version,
            "kind": f"{prefix}RoleBinding",
            "metadata": name,
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": USER}],
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": f"{prefix}Role", "name": "reader"},
        }
        post(f"{folder}{within}/{prefix.lower()}roles", role)
        post(f"{folder}{within}/{prefix.lower()}rolebindings", binding)
        path = f"/api/v1{within}/{rules[0]['resources'][0]}"
        with Kubectl(real_stead.cluster.server, USER) as user:
            user.wait_until(lambda: user.request("GET", path).status == 200)  # the server notices it a little later

    yield give
    for path in made:
        kubectl.request("DELETE", path)


NODES = {"apiGroups": [""], "resources": ["nodes"], "verbs": ["list"]}
PODS = {"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}


@pytest.mark.kube
class TestOnARealServer:
    """Real only: the fake server knows no roles."""

    def test_with_the_role_of_the_guide_every_question_is_answered(self, real_stead: Commands, grant: Grant) -> None:
        real_stead.fill()
        grant(role_of_the_guide()["rules"], "")
        for words in QUESTIONS:
            code, _, err = real_stead(*words, "--context", USER)
            missing = words[:2] == ["why", "pod/gone"]
            found = words[0] == "lint"
            assert (code, err.count("\n")) == (int(missing or found), int(missing)), (words, err)

    def test_a_change_names_the_missing_right(self, real_stead: Commands, grant: Grant) -> None:
        real_stead.fill()
        grant(role_of_the_guide()["rules"], "")
        assert real_stead.refuses("taint", "nodes", "cpu-1", "a=b:NoSchedule", "--context", USER).startswith(
            "you may not get nodes; ask for the right to get them (the API server said: "
        )
        grant_get = {"apiGroups": [""], "resources": ["nodes"], "verbs": ["list", "get"]}
        kubectl = real_stead.cluster.kubectl
        kubectl.patch("ClusterRole", "reader", {"rules": [grant_get, *role_of_the_guide()["rules"]]})
        kubectl.wait_until(lambda: "patch nodes" in real_stead("drain", "cpu-1", "--context", USER)[2])
        assert real_stead.refuses("drain", "cpu-1", "--context", USER).startswith("you may not patch nodes; ")

    def test_with_one_namespace_the_answer_says_what_it_does_not_count(
        self, real_stead: Commands, grant: Grant
    ) -> None:
        real_stead.create_namespaces("team")
        real_stead.cluster.create(node("a"), pod("other", cpu="8"), pod("mine", namespace="team", cpu="2"))
        real_stead.cluster.kubectl.bind("other", "a")
        grant([PODS], "team")
        assert real_stead.refuses("why", "pod/mine", "-n", "team", "--context", USER).startswith(
            "you may not list nodes; ask for the right to list them"
        )
        grant([NODES], "")
        code, out, err = real_stead("why", "pod/mine", "-n", "team", "--context", USER)
        assert (code, out.startswith("1/1 node is available: a.")) == (0, True)
        first, second = err.splitlines()
        assert first == (
            "stead: you may list the pods of the namespace 'team' only, so pods of other namespaces are not counted"
        )
        assert second.startswith("stead: you may not list namespaces, ")
        lacks = second.partition("so the answer leaves out ")[2]
        for each in ("the labels of namespaces", "the default topology spread", "PodDisruptionBudgets"):
            assert each in lacks
        assert "list pods in namespace 'default'" in real_stead.refuses("why", "pod/other", "--context", USER)
        assert real_stead.refuses("work", "-A", "--context", USER).startswith("you may not list pods; ")

    def test_without_any_right_the_first_missing_one_is_named(self, real_stead: Commands) -> None:
        found = real_stead.refuses("nodes", "--context", USER)
        assert found.startswith("you may not list nodes; ask for the right to list them")


@pytest.mark.parametrize(
    ("resource", "lacks"),
    [
        ("namespaces", "the labels of namespaces"),
        ("poddisruptionbudgets", "PodDisruptionBudgets"),
        ("services", "the default topology spread"),
    ],
)
def test_a_missing_right_is_one_line_beside_the_answer(resource: str, lacks: str, fake_stead: Commands) -> None:
    """Fake only: it refuses what the test says."""
    fake_stead.fill()
    fake_stead.cluster.fake.fail_next("GET", f"/{resource}$", 403, times=10)
    code, out, err = fake_stead("why", "pod/train")
    assert (code, out.startswith("0/3 nodes are available")) == (0, True)
    assert err == f"stead: you may not list {resource}, so the answer leaves out {lacks}\n"


def test_without_events_a_node_is_still_described(fake_stead: Commands) -> None:
    """Fake only: it refuses what the test says."""
    fake_stead.fill()
    fake_stead.cluster.fake.fail_next("GET", "/events$", 403, times=10)
    code, out, err = fake_stead("describe", "node", "cpu-1", "--context", "admin")
    assert (code, out.startswith("Node:      cpu-1")) == (0, True)
    assert err == "stead: you may not list events, so the answer leaves them out\n"


def test_a_list_whose_pages_expire_is_read_again(fake_stead: Commands) -> None:
    """Fake only: it says so when the test asks."""
    fake_stead.fill()
    fake_stead.cluster.fake.fail_next("GET", "/pods$", 410)
    assert fake_stead.says("why", "pod/train").startswith("0/3 nodes are available")


def test_credentials_that_are_not_accepted_are_one_sentence(fake_stead: Commands) -> None:
    """Fake only: it refuses what the test says."""
    fake_stead.cluster.fake.fail_next("GET", "/namespaces$", 401, times=10)
    assert fake_stead.refuses("nodes", "--context", "admin") == (
        "the API server does not accept the credentials of the context 'admin'; log in again, or choose another with "
        "--context NAME"
    )
