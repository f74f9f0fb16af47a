"""How the events of the watches reach the cluster.

Rule: no server runs here. Events are delivered as a watch delivers them.
"""

from __future__ import annotations

import json
import logging

import pytest

from stead.kubernetes import watches as module
from stead.kubernetes.api.config import ApiConfig
from stead.kubernetes.api.http import ApiClient
from stead.kubernetes.api.watching import Changed
from stead.kubernetes.cluster import KubeCluster
from stead.kubernetes.default_spread import OwnerKind
from stead.kubernetes.scheduler import Options, Scheduler
from stead.kubernetes.templates import Pod
from stead.kubernetes.watches import Watches
from tests.kubernetes import objects


@pytest.fixture
def scheduler() -> Scheduler:
    return Scheduler(ApiClient(ApiConfig("127.0.0.1", 1)), Options())


def line(obj: objects.Object, kind: str = "MODIFIED") -> bytes:
    return json.dumps({"type": kind, "object": obj}).encode()


def deliver_node(watches: Watches, node: objects.Object) -> None:
    kind, read, _ = watches._decode_node(line(node))
    watches._nodes_arrived(Changed(kind, read))  # type: ignore[arg-type]  # it is no bookmark


def deliver_replica_set(watches: Watches, name: str, kind: str = "ADDED") -> None:
    kind, owner, _ = module._decode(line(objects.replica_set(name, 1), kind))
    watches._owners_arrived(OwnerKind.REPLICA_SET, Changed(kind, owner))


def test_a_node_that_cannot_be_read_is_logged_once_for_each_problem(
    scheduler: Scheduler, caplog: pytest.LogCaptureFixture
) -> None:
    def problems() -> list[str]:
        return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]

    broken = objects.node("n1", cpu="many")
    for _ in range(3):
        deliver_node(scheduler.watches, broken)
    assert len(problems()) == 1
    assert "'many' is not a quantity" in problems()[0]
    assert list(scheduler.watches.nodes_refused) == ["n1"]
    deliver_node(scheduler.watches, objects.node("n1", cpu="8", memory="much"))
    assert len(problems()) == 2
    deliver_node(scheduler.watches, objects.node("n1"))
    assert scheduler.watches.nodes_refused == {}
    assert list(scheduler.cluster.nodes) == ["n1"]


def test_a_changed_controller_reads_only_its_own_pods_again(
    scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    pods = [*objects.replicas("web", 3), *objects.replicas("api", 3), objects.pod("alone")]
    for number, each in enumerate(pods):
        each["metadata"]["uid"] = f"uid-{number}"
    cluster, templates = scheduler.cluster, scheduler.templates
    cluster.pods_changed([templates.decode_pod(json.dumps(each).encode()) for each in pods])
    again: list[str] = []

    def reread(pod: Pod) -> Pod:
        again.append(pod.name)
        return type(templates).reread(templates, pod)

    monkeypatch.setattr(templates, "reread", reread)
    deliver_replica_set(scheduler.watches, "web")
    assert again == ["web-0", "web-1", "web-2"]
    assert _spread(cluster, "web-0") and not _spread(cluster, "api-0")
    deliver_replica_set(scheduler.watches, "web", "DELETED")
    assert again == ["web-0", "web-1", "web-2"] * 2
    assert not _spread(cluster, "web-0")


def _spread(cluster: KubeCluster, name: str) -> bool:
    """Whether a pod has the default topology spread of its controller."""
    ask = cluster.pods[f"default/{name}"].ask
    assert ask is not None
    return bool(ask.prefers)
