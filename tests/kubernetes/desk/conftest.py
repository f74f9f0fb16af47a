"""Commands on a Kubernetes cluster: the fake API server and the real one, and a user with a kubeconfig file.

Rule: a test that uses `stead` runs against both servers; one that needs what only the fake has uses `fake_stead`, and
its docstring says what that is.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
import yaml

from stead.cli import main
from tests.cli.conftest import KEPT, VARIABLES
from tests.kubernetes.objects import Object, namespace, node, pod, replicas, taint
from tests.kubernetes.scheduling.cluster import ClusterUnderTest
from tests.kubernetes.scheduling.conftest import cluster, fake_cluster, real_cluster, real_server

__all__ = ["cluster", "fake_cluster", "real_cluster", "real_server"]

KUBE = "default-scheduler"
AGE = re.compile(r"\b\d+(?:\.\d+)?(?:s|m)\b")


def owned(name: str, kind: str) -> Object:
    return {"apiVersion": "apps/v1", "kind": kind, "name": name, "uid": f"uid-of-{name}", "controller": True}


def small_cluster() -> list[Object]:
    """Three nodes, one cordoned and one tainted."""
    return [
        node("cpu-1"),
        node("cpu-2", unschedulable=True),
        node("gpu-1", resources={"nvidia.com/gpu": "2"}, taints=[taint("nvidia.com/gpu", "present")]),
    ]


def small_work() -> list[Object]:
    """Pods of kube-scheduler and of others, none of them bound."""
    return [
        pod("train", scheduler=KUBE, cpu="4", resources={"nvidia.com/gpu": "1"}),
        pod("huge", scheduler=KUBE, cpu="100"),
        pod("typo", scheduler="other", nodeSelector={"kubernetes.io/hostnam": "cpu-1"}),
        pod("fits", scheduler=KUBE),
        *replicas("web", 2, cpu="1"),
        pod("agent", owner=owned("agent", "DaemonSet")),
    ]


class Commands:
    """Runs `stead` as a user would, with this user's context and a home of its own."""

    def __init__(self, cluster: ClusterUnderTest, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.cluster, self.home = cluster, home
        self._capsys = capsys

    def __call__(self, *words: str) -> tuple[int, str, str]:
        """Exit code, stdout and stderr."""
        self._capsys.readouterr()
        code = main(list(words))
        captured = self._capsys.readouterr()
        return code, captured.out, captured.err

    def says(self, *words: str) -> str:
        """What a command that succeeds prints, without ages; it must have nothing to remark."""
        code, out, err = self(*words)
        assert (code, err) == (0, ""), f"stead {' '.join(words)}: {code}, {err}{out}"
        return AGE.sub("AGE", out)

    def refuses(self, *words: str) -> str:
        """The one sentence with which a command refuses."""
        code, out, err = self(*words)
        assert (code, out, err.count("\n")) == (1, "", 1), f"stead {' '.join(words)}: {code}, {out}{err}"
        return err.removeprefix("stead: ").rstrip("\n")

    def create_namespaces(self, *names: str) -> None:
        """The real server keeps them for the next test."""
        for name in names:
            answer = self.cluster.kubectl.request("POST", "/api/v1/namespaces", namespace(name))
            assert answer.status in (201, 409)

    def fill(self) -> None:
        """Create the small cluster and its work, and bind what runs."""
        self.cluster.create(*small_cluster(), *small_work())
        for name, where in (("web-0", "cpu-1"), ("web-1", "gpu-1"), ("agent", "cpu-1")):
            self.cluster.kubectl.bind(name, where)


def commands_on(
    cluster: ClusterUnderTest, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Commands:
    for name in [name for name in os.environ if name.startswith(VARIABLES) and name not in KEPT]:
        monkeypatch.delenv(name)
    home = folder / "home"
    monkeypatch.setenv("STEAD_HOME", str(home))
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("KUBECONFIG", str(cluster.server.kubeconfig_path))
    return Commands(cluster, home, capsys)


@pytest.fixture
def stead(
    cluster: ClusterUnderTest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Commands:
    return commands_on(cluster, tmp_path, monkeypatch, capsys)


@pytest.fixture
def fake_stead(
    fake_cluster: ClusterUnderTest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Commands:
    return commands_on(fake_cluster, tmp_path, monkeypatch, capsys)


@pytest.fixture
def real_stead(
    real_cluster: ClusterUnderTest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Commands:
    return commands_on(real_cluster, tmp_path, monkeypatch, capsys)


@pytest.fixture
def elsewhere(fake_stead: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Commands:
    """The user's current context has the namespace `team`."""
    found = yaml.safe_load(fake_stead.cluster.server.kubeconfig_path.read_text(encoding="utf-8"))
    for each in found["contexts"]:
        each["context"]["namespace"] = "team"
    path = tmp_path / "kubeconfig"
    path.write_text(yaml.safe_dump(found), encoding="utf-8")
    monkeypatch.setenv("KUBECONFIG", str(path))
    return fake_stead
