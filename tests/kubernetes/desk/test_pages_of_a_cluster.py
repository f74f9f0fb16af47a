"""`stead serve --context`: pages and REST API of a Kubernetes cluster, which follow it and change it."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from stead.kubernetes.api.config import load
from stead.kubernetes.desk.desk import KubeDesk, Scope
from stead.operate.http_client import HttpDesk
from tests.kubernetes.desk.conftest import Commands
from tests.kubernetes.objects import node, pod, pods, replicas
from tests.serving import Served, serving

PAGES = {
    "/ui/": ["cpu-1", "nvidia.com/gpu=present", "draining"],
    "/ui/waiting": ["0/3 nodes are available: 1 Insufficient nvidia.com/gpu", "Tolerating nvidia.com/gpu=present"],
    "/ui/work": ["Pending", "Running", "default", "ReplicaSet/web"],
    "/ui/work/default%2Ftrain": [
        "Why it is pending",
        "0/3 nodes are available: 1 Insufficient nvidia.com/gpu",
        "Pending",
    ],
    "/ui/work/default%2Fweb-0": ["Bound to cpu-1 by stead", "ReplicaSet/web"],
    "/ui/nodes/gpu-1": ["NoSchedule", "web-1"],
    "/ui/groups": ["Groups"],
    "/ui/owners": ["ReplicaSet/web", "DaemonSet/agent"],
    "/ui/owners/ReplicaSet%2Fweb": ["web-0", "web-1"],
    "/ui/events": ["Events"],
    "/ui/history": ["History"],
    "/ui/use": ["Usage"],
}


@dataclass
class Site:
    """A service over a desk, and what a client gets from it."""

    served: Served
    desk: KubeDesk

    def page(self, path: str) -> str:
        with urllib.request.urlopen(f"{self.served.url}{path}", timeout=60) as answer:
            return str(answer.read().decode())

    def get(self, path: str) -> Any:
        return json.loads(self.page(path))

    def send(self, method: str, path: str, body: Any) -> tuple[int, Any]:
        headers = {"Authorization": f"Bearer {self.served.token}", "Content-Type": "application/json"}
        request = urllib.request.Request(f"{self.served.url}{path}", json.dumps(body).encode(), headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.status, json.loads(answer.read())
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read())


@contextmanager
def site_of(stead: Commands, folder: Path) -> Iterator[Site]:
    desk = KubeDesk(load(str(stead.cluster.server.kubeconfig_path)), folder / "desk", Scope(), pytest.fail)
    try:
        desk.follow()
        with serving(desk) as served:
            yield Site(served, desk)
    finally:
        desk.close()


@pytest.fixture
def site(stead: Commands, tmp_path: Path) -> Iterator[Site]:
    stead.fill()
    with site_of(stead, tmp_path) as found:
        yield found


def until(stead: Commands, condition: Callable[[], bool]) -> None:
    stead.cluster.kubectl.wait_until(condition)


def test_every_page_shows_the_cluster(site: Site) -> None:
    for path, words in PAGES.items():
        found = site.page(path)
        assert [word for word in words if word not in found] == [], path


def test_the_waiting_page_says_what_a_gang_lacks(site: Site, stead: Commands) -> None:
    group = {"scheduling.x-k8s.io/pod-group": "ring"}
    for each in pods(3, "ring", cpu="5", labels=group):
        each["metadata"]["annotations"] = {"stead.dev/min-available": "2"}
        stead.cluster.create(each)
    why = "The pod group needs 2 pods at once, and 1 fits."
    until(stead, lambda: site.get("/asks/default%2Fring-2/why")["text"].startswith(why))
    for path in ("/ui/waiting", "/ui/work/default%2Fring-2"):
        page = site.page(path)
        assert why in page
        assert "room for 2 of its 3 members at once" in page


def test_pages_follow_the_cluster(site: Site, stead: Commands) -> None:
    kubectl = stead.cluster.kubectl
    kubectl.create(node("cpu-3", cpu="128"))
    until(stead, lambda: site.get("/status")["nodes"] == 4)
    until(stead, lambda: "cpu-3" in site.get("/asks/default%2Fhuge/why")["text"])
    kubectl.bind("huge", "cpu-3")
    until(stead, lambda: site.get("/asks/default%2Fhuge")["state"] == "running")
    kubectl.delete("Pod", "typo", grace_seconds=0)
    until(stead, lambda: site.get("/status")["waiting"] == 2)


def test_a_change_of_somebody_else_is_an_event(site: Site, stead: Commands) -> None:
    site.get("/events")
    stead.cluster.kubectl.patch("Node", "cpu-1", {"spec": {"taints": [{"key": "repair", "effect": "NoExecute"}]}})
    until(stead, lambda: any(each["kind"] == "tainted" for each in site.get("/events?after=0")["items"]))
    (found,) = [each for each in site.get("/events?after=0")["items"] if each["kind"] == "tainted"]
    assert (found["subject"], "repair" in found["text"]) == ("cpu-1", True)


def test_a_change_by_the_service_reaches_the_api_server(site: Site, stead: Commands) -> None:
    blue = {"key": "team", "value": "blue", "effect": "no-execute"}
    status, found = site.send("PATCH", "/nodes/cpu-1", {"taints": [blue]})
    assert (status, found["node"]["taints"][0]["key"]) == (200, "team")
    spec = stead.cluster.kubectl.get("Node", "cpu-1")["spec"]
    assert spec["taints"] == [{"key": "team", "value": "blue", "effect": "NoExecute"}]
    status, found = site.send("PATCH", "/nodes/cpu-1", {"taints": [blue], "for": 60})
    assert (status, "has no end" in found["error"]) == (400, True)
    status, found = site.send("PATCH", "/nodes/cpu-1", {"draining": True})
    assert (status, found["node"]["draining"]) == (200, True)
    assert stead.cluster.kubectl.get("Node", "cpu-1")["spec"]["unschedulable"] is True


def test_commands_work_on_the_service_too(site: Site, stead: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in site.served.variables.items():
        monkeypatch.setenv(name, value)
    assert stead.says("why", "pod/train").startswith("0/3 nodes are available: 1 Insufficient nvidia.com/gpu")
    assert stead.says("work", "--waiting").splitlines()[0].split()[:3] == ["NAMESPACE", "NAME", "STATE"]
    assert "team=blue:NoExecute" in stead.says("taint", "--node-id", "gpu-1", "--append", "team=blue:NoExecute")
    with pytest.raises(Exception, match="there is no pod"):
        HttpDesk(site.served.url).why("pod/none")


def test_a_server_that_is_away_for_a_while_is_followed_again(fake_stead: Commands, tmp_path: Path) -> None:
    """Fake only: it stops and starts at once."""
    fake_stead.cluster.create(node("a"))
    with site_of(fake_stead, tmp_path) as site:
        fake_stead.cluster.fake.stop_apiserver()
        assert site.get("/status")["nodes"] == 1, "the last known state"
        fake_stead.cluster.fake.start_apiserver()
        fake_stead.cluster.create(node("b"), pod("late"), *replicas("web", 3))
        until(fake_stead, lambda: site.get("/status")["nodes"] == 2 and site.get("/status")["waiting"] == 4)
