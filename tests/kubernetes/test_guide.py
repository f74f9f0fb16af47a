"""The guide docs/kubernetes.md is true: its pods are placed, and its events are those that the scheduler writes."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from stead.cli import main
from stead.kubernetes.api.config import load
from stead.kubernetes.api.http import ApiClient
from stead.kubernetes.claims import UNBOUND_IMMEDIATE, not_found
from stead.kubernetes.manifests.rendering import Installation, manifests
from stead.kubernetes.scheduler import Options, Scheduler
from stead.kubernetes.wording import REASONS
from tests.kubernetes.objects import Kubectl, node, node_of, pod, taint
from tests.kubernetes.scheduling.provisioner import Provisioner
from tests.kubernetes.servers.fake import FakeServer

ROOT = Path(__file__).parent.parent.parent
GUIDE = (ROOT / "docs" / "kubernetes.md").read_text(encoding="utf-8")
README = (ROOT / "README.md").read_text(encoding="utf-8")

EVENT = re.compile(r"^ {4,6}(?:Normal|Warning) +(\w+) +4s +stead +(.+)$", re.MULTILINE)
"""A line of `kubectl describe`."""

OBJECTS = [
    found
    for block in re.findall(r"^```yaml\n(.*?)^```$", GUIDE, re.MULTILINE | re.DOTALL)
    for found in yaml.safe_load_all(block)
]
URGENT = [
    found for found in OBJECTS if found["kind"] == "PriorityClass" or "priorityClassName" in found.get("spec", {})
]
STORED = [
    found
    for found in OBJECTS
    if found["kind"] in ("StorageClass", "PersistentVolumeClaim") or "volumes" in found.get("spec", {})
]
PODS = [found for found in OBJECTS if found["kind"] == "Pod" and found not in (*URGENT, *STORED)]

NODES = [
    node("cpu-1"),
    node("cpu-2"),
    node("gpu-1", cpu="16", resources={"nvidia.com/gpu": "2"}, taints=[taint("nvidia.com/gpu", "present")]),
]

WITH_A_DISK = pod("database", volumes=[{"name": "disk", "iscsi": {"iqn": "iqn.2026-05.com.example:disk"}}])


def advice() -> dict[str, Any]:
    """The patch with which the guide follows the advice of an event."""
    (found,) = re.findall(r"kubectl patch pod train --patch '(.+)'", GUIDE)
    return dict(yaml.safe_load(found))


def while_it_schedules(server: FakeServer, follow: Callable[[], None]) -> None:
    """Run the scheduler for as long as `follow` takes."""

    async def run() -> None:
        client = ApiClient(load(str(server.kubeconfig_path)))
        scheduler = Scheduler(client, Options())
        running = asyncio.create_task(scheduler.run())
        try:
            await asyncio.to_thread(follow)
        finally:
            scheduler.stop()
            await running
            await client.close()

    asyncio.run(run())


def test_the_events_of_the_guide_are_those_that_the_scheduler_writes() -> None:
    shown = EVENT.findall(GUIDE)
    assert [reason for reason, _ in shown] == ["Scheduled", "FailedScheduling", "FailedScheduling"]

    def written() -> list[tuple[str, str]]:
        events = sorted(kubectl.list("Event"), key=lambda event: int(event["metadata"]["resourceVersion"]))
        return [(event["reason"], event["message"]) for event in events]

    def has_written(count: int) -> bool:
        return len(written()) == count

    def follow() -> None:
        # One after the other: events of scheduled pods are left out while those of pending pods are due.
        for count, each in enumerate((*PODS, WITH_A_DISK), start=1):
            server.load([each])
            kubectl.wait_until(partial(has_written, count))
        assert written() == shown
        kubectl.patch("Pod", "train", advice())
        kubectl.wait_until(lambda: node_of(kubectl.get("Pod", "train")) == "gpu-1")

    with FakeServer() as server, Kubectl(server) as kubectl:
        server.load(NODES)
        while_it_schedules(server, follow)


def test_the_event_of_a_victim_is_as_in_the_guide() -> None:
    (shown,) = re.findall(r"^ +Normal +Preempted +2s +stead +(.+)$", GUIDE, re.MULTILINE)

    def written() -> list[str]:
        return [event["message"] for event in kubectl.list("Event") if event["reason"] == "Preempted"]

    def follow() -> None:
        (message,) = kubectl.wait_until(written)
        report = kubectl.get("Pod", "report")
        assert message == re.sub(r"pod \S+", f"pod {report['metadata']['uid']}", shown)
        assert report["status"]["nominatedNodeName"] == "cpu-1"

    with FakeServer() as server, Kubectl(server) as kubectl:
        server.load([NODES[0], pod("low", cpu="4"), *URGENT])
        kubectl.bind("low", "cpu-1")
        while_it_schedules(server, follow)


def test_the_event_of_a_gang_is_as_in_the_guide() -> None:
    (shown,) = re.findall(r"^ +Warning +FailedScheduling +5s +stead +(.+)$", GUIDE, re.MULTILINE)
    (job,) = [found for found in OBJECTS if found["metadata"]["name"] == "ring"]
    template = job["spec"]["template"]
    gang = [
        {"apiVersion": "v1", "kind": "Pod", **template, "metadata": {**template["metadata"], "name": f"ring-{number}"}}
        for number in range(job["spec"]["completions"])
    ]

    def follow() -> None:
        kubectl.wait_until(lambda: len(kubectl.list("Event")) == len(gang))
        assert {event["message"] for event in kubectl.list("Event")} == {shown}
        server.load([node("more", cpu="16")])
        kubectl.wait_until_bound(len(gang))

    with FakeServer() as server, Kubectl(server) as kubectl:
        server.load([*NODES, *gang])
        while_it_schedules(server, follow)


def test_the_database_of_the_guide_gets_its_volume() -> None:
    def follow() -> None:
        kubectl.wait_until(lambda: node_of(kubectl.get("Pod", "database")))

    with FakeServer() as server, Kubectl(server) as kubectl, Provisioner(server):
        server.load([*NODES, *STORED])
        while_it_schedules(server, follow)
        data = kubectl.get("PersistentVolumeClaim", "data")
        assert data["status"]["phase"] == "Bound"
        node = data["metadata"]["annotations"]["volume.kubernetes.io/selected-node"]
        assert node == node_of(kubectl.get("Pod", "database"))


def test_the_messages_about_volumes_are_those_of_the_guide() -> None:
    known = [*REASONS.values(), UNBOUND_IMMEDIATE, not_found("default/data")]
    listed = re.findall(r"^\| `(.*(?:olume|RBD).*)` \|", GUIDE, re.MULTILINE)
    assert len([each for each in listed if each in known]) == 6


def test_the_readme_shows_an_event_of_the_guide() -> None:
    (found,) = EVENT.findall(README)
    assert found in EVENT.findall(GUIDE)


def test_the_guide_lists_all_rights_of_the_manifests() -> None:
    roles = [each for each in yaml.safe_load_all(manifests(Installation("stead"))) if each and "rules" in each]
    used = {
        (what, verb) for role in roles for rule in role["rules"] for what in rule["resources"] for verb in rule["verbs"]
    }
    rows = re.findall(r"^\| ([a-z/, ]+?)(?:, only in its own namespace)? \| ([A-Za-z,; ]+) \|", GUIDE, re.MULTILINE)
    listed = {
        (what, verb)
        for resources, verbs in rows
        for what in resources.split(", ")
        for verb in re.findall("list|watch|get|create|patch|update|delete", verbs)
    }
    assert listed == used


def test_the_guide_begins_with_what_stead_answers_about_a_pod_of_kube_scheduler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = re.search(
        r"^    (0/3 nodes are available: .+)$", GUIDE[GUIDE.index("## Ask about any pod") :], re.MULTILINE
    )
    assert answer is not None
    (train,) = [found for found in PODS if found["metadata"]["name"] == "train"]
    of_kube_scheduler = {**train, "spec": {**train["spec"], "schedulerName": "default-scheduler"}}
    monkeypatch.setenv("STEAD_HOME", str(tmp_path))
    monkeypatch.delenv("STEAD_ADDRESS", raising=False)
    with FakeServer() as server:
        server.load([*NODES, of_kube_scheduler])
        assert main(["why", "pod/train", "--kubeconfig", str(server.kubeconfig_path)]) == 0
    assert capsys.readouterr().out.strip() == answer[1]
    assert README.count(answer[1]) == 2, "the answer, and the event of the scheduler"
